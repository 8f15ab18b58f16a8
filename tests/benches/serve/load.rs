//! The load: wrk and h2load, and what they say.

use std::fmt;
use std::process::Command;

use super::cpu_time::cpu_ns;
use super::{Failure, Server};

/// Load: a path, and the number of connections that ask for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: u32,
    /// Streams of each connection, over HTTP/2; 0 for HTTP/1.1.
    pub(crate) streams: u32,
    pub(crate) path: &'static str,
    pub(crate) body: Body,
    /// True if the percentiles are those of the requests that were sent, as over HTTP/2. Those of wrk are corrected for coordinated omission: a stall counts as many times as
    /// requests would have been sent meanwhile, so that over a few connections the p99 says whether more than a hundredth of the time was lost in stalls.
    pub(crate) is_as_sent: bool,
}

/// Body of each request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    None,
    Mebibyte,
    /// A message of gRPC, over HTTP/2.
    Message(fn() -> Vec<u8>),
}

impl Load {
    /// Requests of HTTP/1.1 without bodies.
    pub(crate) const fn get(connections: u32, path: &'static str) -> Load {
        Load { connections, streams: 0, path, body: Body::None, is_as_sent: false }
    }

    /// Does the same, with the times of the requests [as they were sent](Self::is_as_sent).
    pub(crate) const fn get_as_sent(connections: u32, path: &'static str) -> Load {
        Load { is_as_sent: true, ..Load::get(connections, path) }
    }

    /// Returns true for bodies of a mebibyte.
    pub(crate) fn is_upload(&self) -> bool {
        matches!(self.body, Body::Mebibyte)
    }
}

/// Says to wrk that each request has a body of a mebibyte.
const BODIES: &str = "wrk.method = 'POST'; wrk.body = string.rep('x', 1048576)";

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { connections, streams, path, .. } = self;
        match streams {
            0 if self.is_upload() => {
                write!(f, "bodies of 1 MiB to `{path}` over HTTP/1.1 by {connections} connections")
            }
            0 => write!(f, "`{path}` over HTTP/1.1 by {connections} connections"),
            _ => write!(f, "`{path}` over HTTP/2 by {connections} connections with {streams} streams each"),
        }
    }
}

/// One run, or the median of several.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU time of each process for a request, in microseconds.
    pub(crate) cpu: Vec<(String, f64)>,
}

impl Measured {
    /// Returns the median of each figure.
    pub(crate) fn median(runs: &[Measured]) -> Measured {
        let of = |figure: &dyn Fn(&Measured) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let cpu = runs[0].cpu.iter().enumerate();
        Measured {
            per_second: of(&|run| run.per_second),
            p50_us: of(&|run| run.p50_us),
            p99_us: of(&|run| run.p99_us),
            cpu: cpu.map(|(at, (name, _))| (name.clone(), of(&|run| run.cpu[at].1))).collect(),
        }
    }
}

impl Load {
    /// Puts a server under load for so long.
    pub(crate) fn run(&self, server: &dyn Server, seconds: u32) -> Result<Measured, Failure> {
        let url = format!("{}{}", server.url(), self.path);
        let before = cpu_of(server)?;
        let is_of_wrk = self.streams == 0 && !self.is_as_sent;
        let said = if is_of_wrk { self.wrk(&url, seconds)? } else { self.h2load(&url, seconds)? };
        let cpu = cpu_of(server)?.into_iter().zip(before);
        let each = |((name, after), (_, before)): ((String, u64), (String, u64))| {
            (name, (after - before) as f64 / 1e3 / said.requests)
        };
        let Said { per_second, p50_us, p99_us, .. } = said;
        Ok(Measured { per_second, p50_us, p99_us, cpu: cpu.map(each).collect() })
    }

    fn wrk(&self, url: &str, seconds: u32) -> Result<Said, Failure> {
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", "--latency", "-c"]).arg(self.connections.to_string()).arg(format!("-d{seconds}s"));
        let script = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))?;
        if self.is_upload() {
            std::fs::write(script.path(), BODIES)?;
            wrk.arg("-s").arg(script.path());
        }
        wrk.arg(url);
        let text = output_of(wrk)?;
        if let Some(line) = text.lines().find(|line| line.contains("Non-2xx") || line.contains("Socket errors")) {
            return Err(format!("requests have failed: {}", line.trim()).into());
        }
        let after = |word: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(word));
            line.map(str::trim).ok_or_else(|| format!("wrk has not said `{word}`: {text}"))
        };
        let requests = text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
        Ok(Said {
            requests: requests.ok_or("wrk has not said how many requests there were")?,
            per_second: after("Requests/sec:")?.parse()?,
            p50_us: microseconds(after("50%")?)?,
            p99_us: microseconds(after("99%")?)?,
        })
    }

    fn h2load(&self, url: &str, seconds: u32) -> Result<Said, Failure> {
        let log = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))?;
        let mut h2load = Command::new("h2load");
        h2load.args(["-t1", "-c", &self.connections.to_string(), "-m", &self.streams.max(1).to_string()]);
        if self.streams == 0 {
            h2load.arg("--h1");
        }
        h2load.args(["-D", &seconds.to_string(), "--log-file"]).arg(log.path());
        let data = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))?;
        if let Body::Message(message) = self.body {
            std::fs::write(data.path(), message())?;
            h2load.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]).arg(data.path());
        }
        h2load.arg(url);
        let text = output_of(h2load)?;
        let rate =
            text.lines().find_map(|line| line.strip_prefix("finished in ")?.split_once(", ")?.1.split_once(" req/s"));
        let per_second: f64 = rate.ok_or_else(|| format!("h2load has not said its rate: {text}"))?.0.trim().parse()?;
        let failed = text.lines().find(|line| line.starts_with("requests:")).unwrap_or_default();
        if !failed.contains(" 0 failed, 0 errored") {
            return Err(format!("requests have failed: {failed}").into());
        }
        // Each line: when it began, its status, how many microseconds it took.
        let times = std::fs::read_to_string(log.path())?;
        let mut times: Vec<f64> = times.lines().filter_map(|line| line.split('\t').nth(2)?.parse().ok()).collect();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or(f64::NAN);
        Ok(Said { requests: times.len() as f64, per_second, p50_us: at(50), p99_us: at(99) })
    }
}

/// Figures of a load generator for one run.
struct Said {
    requests: f64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

fn output_of(mut command: Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("`{name}` cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("`{name}` failed: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// Returns a time as wrk writes it.
fn microseconds(text: &str) -> Result<f64, Failure> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let found = units.iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor));
    found.ok_or_else(|| format!("`{text}` is no time of wrk's").into())
}

pub(crate) fn cpu_of(server: &dyn Server) -> Result<Vec<(String, u64)>, Failure> {
    server.processes().into_iter().map(|(name, pid)| Ok((name, cpu_ns(pid)?))).collect()
}
