//! A client of HTTP/1.1 of this program's own, where wrk and h2load do not know what is asked: one request at a time, with its time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Failure;

/// Limit of time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that is kept.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: impl ToSocketAddrs) -> Result<Client, Failure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream), body: Vec::new() })
    }

    /// Asks for a path. Returns the body of an answer of status 200, and how long it took.
    pub(crate) fn get(&mut self, path: &str) -> Result<(&[u8], Duration), Failure> {
        let begun = Instant::now();
        self.ask(path)?;
        self.answer()?;
        Ok((&self.body, begun.elapsed()))
    }

    /// Asks for a path.
    pub(crate) fn ask(&mut self, path: &str) -> Result<(), Failure> {
        Ok(self.stream.get_ref().write_all(format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").as_bytes())?)
    }

    /// Reads an answer.
    pub(crate) fn answer(&mut self) -> Result<(), Failure> {
        let length = self.read_head()?.ok_or("an answer without a length")?;
        self.body.resize(length, 0);
        Ok(self.stream.read_exact(&mut self.body)?)
    }

    /// Reads the head of an answer of status 200. Returns the length of its body, if it says one.
    fn read_head(&mut self) -> Result<Option<usize>, Failure> {
        let (mut line, mut length, mut is_first) = (String::new(), None, true);
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err("the server has closed the connection".into());
            }
            if std::mem::take(&mut is_first) && !line.starts_with("HTTP/1.1 200 ") {
                return Err(format!("a request has failed: {}", line.trim()).into());
            }
            if line.trim().is_empty() {
                return Ok(length);
            }
            let field = line.trim().split_once(": ");
            length = field
                .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(Ok(length), |(_, value)| value.parse().map(Some))?;
        }
    }
}

/// Returns what is greater than or equal to so many percent of these.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

/// Returns the one in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
