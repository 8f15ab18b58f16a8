//! The peers themselves, beside tracer in the same run, as far as they are installed: what [`peer`](super::peer) has as constants, measured.
//!
//! Nothing is installed for it. GNU parallel, `xargs` and HyperQueue's `hq` are looked for on the PATH, Ray and Dask in `$PYTHON`, or in `python3`.
//! Ray is run in a network name space that has the loopback interface only, which takes root, because it listens on the machine's own address; its
//! hook writes to `/tmp/spans`. What Ray and Dask take stands where a constant of Ray stands otherwise.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::cluster::{Cluster, Place};
use super::report::{self, Better, Figure, Unit, Variant};
use super::{Effort, Failure, Run, VARIANTS, cluster, driver, say};

/// Time that HyperQueue may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Measurements of the same work, in the order in which a program of a peer prints them: as many as it can do. Tasks per second or a p50 in nanoseconds.
const ALIKE: [(&str, Unit); 6] = [
    ("no-op tasks by one driver", Unit::PerSecond),
    ("round trip, p50", Unit::Nanoseconds),
    ("call of an actor, p50", Unit::Nanoseconds),
    ("tasks of one task, summed", Unit::PerSecond),
    ("1 MiB of bytes in and out, p50", Unit::Nanoseconds),
    ("100 MiB of zeroes out, p50", Unit::Nanoseconds),
];

const RAY: &str = r#"
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         _tracing_startup_hook="ray.util.tracing.setup_local_tmp_tracing:setup_tracing" if sys.argv[1] == "traced" else None)
@ray.remote
def one():
    return 1
@ray.remote
class Counter:
    def __init__(self):
        self.count = 0
    def increment(self, by):
        self.count += by
        return self.count
@ray.remote
def square(number):
    return number * number
@ray.remote
def sum_of_squares(count):
    return sum(ray.get([square.remote(number) for number in range(count)]))
@ray.remote
def echo(value):
    return value
@ray.remote
def zeroes(length):
    return bytes(length)
def run(count):
    ray.get([one.remote() for _ in range(count)])
def trip():
    ray.get(one.remote())
def further(trips, nested, large):
    counter, value = Counter.remote(), b"x" * MIB
    yield p50(trips, lambda: ray.get(counter.increment.remote(1)))
    yield rate(nested, lambda count: ray.get(sum_of_squares.remote(count)))
    yield p50(large, lambda: ray.get(echo.remote(value)))
    yield p50(large // 10, lambda: ray.get(zeroes.remote(100 * MIB)))
"#;
const DASK: &str = r#"
from distributed import Client, LocalCluster
def one(_=None):
    return 1
def run(count):
    client.gather(client.map(one, range(count), pure=False))
def trip():
    client.submit(one, pure=False).result()
def further(trips, nested, large):
    return []
if __name__ == "__main__":
    client = Client(LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"))
"#;
/// Goes before either of them.
const TOOLS: &str = r#"
import json, sys, time
MIB = 1 << 20
def rate(count, act):
    act(500)
    begun = time.perf_counter_ns()
    act(count)
    return count / ((time.perf_counter_ns() - begun) / 1e9)
def p50(count, act):
    times = []
    for _ in range(count + 1):
        begun = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - begun)
    return sorted(times[1:])[count // 2]
"#;
/// Goes after either of them.
const MEASURE: &str = r#"
if __name__ == "__main__":
    tasks, trips, nested, large = map(int, sys.argv[2:])
    print(json.dumps([rate(tasks, run), p50(trips, trip), *further(trips, nested, large)]))
"#;

/// Measures the work that a peer and tracer both do.
pub(crate) fn measure(run: &mut Run) -> Result<(), Failure> {
    commands(run)?;
    tasks(run)
}

/// `/bin/true`, two at a time.
fn commands(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.commands;
    let mut ours = Vec::new();
    for variant in VARIANTS {
        say(&format!("tracer, {variant}, {count} times /bin/true"));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let seconds: f64 = cluster.drive(&["commands".into(), count.to_string()])?;
        cluster.stop()?;
        run.report.add(Figure::rate("commands (/bin/true) by tracer", variant, count as f64 / seconds));
        ours.push((variant, count as f64 / seconds));
    }
    let numbers: String = (0..count).map(|number| format!("{number}\n")).collect();
    let fed: [(&str, &[&str]); 2] =
        [("xargs", &["-P2", "-n1", "/bin/true"]), ("parallel", &["--will-cite", "-j2", "/bin/true"])];
    for (name, arguments) in fed {
        if !is_installed(name) {
            say(&format!("{name} is not on the PATH and left out"));
            continue;
        }
        say(&format!("{name}, {count} times /bin/true"));
        let begun = Instant::now();
        let mut peer = Command::new(name).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        std::io::Write::write_all(&mut peer.stdin.take().ok_or("it has no input")?, numbers.as_bytes())?;
        expect_success(name, &peer.wait()?)?;
        against(run, name, count as f64 / begun.elapsed().as_secs_f64(), &ours);
    }
    if is_installed("hq") {
        let rate = hyperqueue(count)?;
        against(run, "HyperQueue", rate, &ours);
    } else {
        say("hq is not on the PATH and left out");
    }
    Ok(())
}

/// Tasks that are functions. A peer takes a minute or two, so tracer is measured before it and after it.
fn tasks(run: &mut Run) -> Result<(), Failure> {
    cluster::build("counter")?;
    cluster::build("nested_tasks")?;
    for (name, module, program) in [("Ray", "ray", RAY), ("Dask", "distributed", DASK)] {
        if !has_module(module) {
            say(&format!("{name} is not installed for {} and left out", python()));
            continue;
        }
        let is_ray = name == "Ray";
        if is_ray && !rustix::process::geteuid().is_root() {
            say("Ray listens on the machine's own address unless root takes that away, and is left out");
            continue;
        }
        for variant in VARIANTS {
            // Dask has no tracing.
            if !is_ray && variant == Variant::Traced {
                continue;
            }
            let mut ours = our_tasks(run, variant)?;
            say(&format!("{name}, {variant}"));
            let theirs = in_python(program, is_ray, &run.effort, variant)?;
            ours.extend(our_tasks(run, variant)?);
            for (index, (&theirs, (what, unit))) in theirs.iter().zip(ALIKE).enumerate() {
                let what = format!("{what}, beside {name}");
                let figure = match unit {
                    Unit::PerSecond => Figure::rate(&what, variant, f64::NAN),
                    _ => Figure::time(&what, variant, f64::NAN),
                };
                run.report.add(Figure { peer: Some(theirs), ..figure.over(&super::each(&ours, |ours| ours[index])) });
            }
        }
    }
    Ok(())
}

/// Measures [`ALIKE`] in some clusters.
fn our_tasks(run: &Run, variant: Variant) -> Result<Vec<[f64; ALIKE.len()]>, Failure> {
    let effort = &run.effort;
    let mut found = Vec::new();
    for number in 1..=effort.runs {
        say(&format!("tracer, {variant}, run {number} of {}", effort.runs));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let many: driver::Throughput = cluster.drive(&["throughput".into(), effort.tasks.to_string()])?;
        let trips: Vec<f64> = cluster.drive(&["round_trips".into(), effort.round_trips.to_string()])?;
        let calls: Vec<f64> = cluster.drive(&["calls".into(), effort.round_trips.to_string()])?;
        let nested: f64 = cluster.drive(&["nested".into(), effort.nested.to_string()])?;
        let [both_ways, _, out, _]: [Vec<f64>; 4] = cluster.drive(&["large".into(), effort.large.to_string()])?;
        cluster.stop()?;
        let p50 = |times: &[f64]| report::percentile(times, 50);
        found.push([
            effort.tasks as f64 / many.seconds,
            p50(&trips),
            p50(&calls),
            effort.nested as f64 / nested,
            p50(&both_ways),
            p50(&out),
        ]);
    }
    Ok(found)
}

fn against(run: &mut Run, name: &str, rate: f64, ours: &[(Variant, f64)]) {
    run.report.add(Figure::rate(&format!("commands (/bin/true) by {name}"), Variant::Untraced, rate));
    for &(variant, our_rate) in ours {
        run.report.add(times(&format!("the same by tracer, times {name}"), variant, our_rate / rate));
    }
}

fn times(name: &str, variant: Variant, ratio: f64) -> Figure {
    Figure { better: Better::Higher, ..Figure::count(name, variant, ratio) }
}

/// A server and a worker with two cpus, and one array of tasks without output.
fn hyperqueue(count: usize) -> Result<f64, Failure> {
    let folder = tempfile::tempdir()?;
    let hq = |arguments: &[&str]| {
        let mut command = Command::new("hq");
        command.args(arguments).env("HQ_SERVER_DIR", folder.path()).current_dir(folder.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let _server = Killed(hq(&["server", "start", "--host=127.0.0.1"]).spawn()?);
    let access = folder.path().join("hq-current/access.json");
    let begun = Instant::now();
    while !access.exists() {
        if begun.elapsed() > READY_LIMIT {
            return Err(format!("`hq server start` did not write `{}` in {READY_LIMIT:?}", access.display()).into());
        }
        std::thread::yield_now();
    }
    let _worker = Killed(hq(&["worker", "start", "--cpus=2"]).spawn()?);
    expect_success("hq worker wait", &hq(&["worker", "wait", "1"]).status()?)?;
    say(&format!("hq, {count} times /bin/true"));
    let array = format!("--array=1-{count}");
    let submit = ["submit", "--wait", &array, "--stdout=none", "--stderr=none", "--", "/bin/true"];
    let begun = Instant::now();
    expect_success("hq submit", &hq(&submit).status()?)?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// A process that does not outlive what it is for.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the part of [`ALIKE`] that the program can do.
fn in_python(program: &str, is_alone: bool, effort: &Effort, variant: Variant) -> Result<Vec<f64>, Failure> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("peer.py");
    std::fs::write(&script, format!("{TOOLS}{program}{MEASURE}"))?;
    let python = python();
    let mut command = if is_alone {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh", &python]);
        command
    } else {
        Command::new(&python)
    };
    let counts = [effort.tasks, effort.round_trips, effort.nested, effort.large].map(|count| count.to_string());
    command.arg(&script).arg(variant.to_string()).args(counts).stderr(Stdio::null());
    let output = command.output()?;
    expect_success(&format!("`{python}` with {}", script.display()), &output.status)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().ok_or("the peer said nothing")?;
    Ok(serde_json::from_str(last)?)
}

fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".into())
}

fn has_module(name: &str) -> bool {
    let mut command = Command::new(python());
    command.args(["-c", &format!("import {name}")]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn expect_success(what: &str, status: &ExitStatus) -> Result<(), Failure> {
    if status.success() { Ok(()) } else { Err(format!("{what} failed: {status}").into()) }
}
