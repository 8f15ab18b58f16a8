//! The drivers: copies of this program that submit through the library and print what they found.
//!
//! A process of its own, because a hook runs once in a process, and so that its cpu time and memory are the driver's alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, Serializer};
use tracer::{Cluster, EmbeddedHead, Init, TaskHandle};

use super::queued::{self, Queued};
use super::report::nanos;
use super::{Failure, floor, process, spans};

/// The task that does nothing.
const NO_OP: &str = "demo:my_function";
/// The queue of tasks that are shared.
const QUEUE: &str = "default";
/// Tasks of it on the way at a time that must not be started twice.
pub(crate) const ONCE_AT_A_TIME: usize = 64;
/// Tasks before those that count, so that every worker has loaded the module.
const WARM_UP: usize = 500;
/// Rounds in which a few tasks wait.
const QUEUED_ROUNDS: usize = 100;

/// Figures of submitting and collecting many tasks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Throughput {
    /// From the first submission to the last result.
    pub(crate) seconds: f64,
    /// The driver's cpu time in between.
    pub(crate) cpu_ns: u64,
    /// Bytes, after the last result.
    pub(crate) pss: u64,
    pub(crate) tasks: usize,
    /// The warm-up included.
    pub(crate) tasks_in_all: usize,
}

/// Does what a copy of this program was started for: `role`, a count and the head's place. Prints JSON.
pub(crate) fn run_role(arguments: &[String]) -> Result<(), Failure> {
    let [role, count, temp_dir] = arguments else { return Err("a role takes a count and a place".into()) };
    let count: usize = count.parse()?;
    let cluster = Init::new().temp_dir(temp_dir).embedded(EmbeddedHead::Never).init()?;
    if let Some(warning) = cluster.warnings().first() {
        return Err(warning.as_str().into());
    }
    let found = match role.as_str() {
        "throughput" => serde_json::to_string(&throughput(&cluster, count)?)?,
        "round_trips" => serde_json::to_string(&round_trips(&cluster, count)?)?,
        "shared_throughput" => serde_json::to_string(&shared_throughput(&cluster, count)?)?,
        "shared_burst" => serde_json::to_string(&shared_burst(&cluster, count)?)?,
        "shared_round_trips" => serde_json::to_string(&shared_round_trips(&cluster, count)?)?,
        "shared_large" => serde_json::to_string(&shared_large(&cluster, count)?)?,
        "shared_once" => serde_json::to_string(&shared_once(&cluster, count)?)?,
        "sparse" => serde_json::to_string(&sparse(&cluster, count)?)?,
        "calls" => serde_json::to_string(&calls(&cluster, count)?)?,
        "calls_in_a_row" => serde_json::to_string(&calls_in_a_row(&cluster, count)?)?,
        "nested" => serde_json::to_string(&nested(&cluster, count)?)?,
        "large" => serde_json::to_string(&large(&cluster, count)?)?,
        "commands" => serde_json::to_string(&commands(&cluster, count)?)?,
        "queued" => serde_json::to_string(&queued(&cluster, count)?)?,
        "stepped" => serde_json::to_string(&stepped(&cluster, count)?)?,
        "lines" => serde_json::to_string(&lines(&cluster, count)?)?,
        "spans" => serde_json::to_string(&spans(&cluster, count)?)?,
        other => return Err(format!("no role is called `{other}`").into()),
    };
    // Its spans are delivered.
    drop(cluster);
    println!("{found}");
    Ok(())
}

fn throughput(cluster: &Cluster, count: usize) -> Result<Throughput, Failure> {
    throughput_of(count, |count| run_all(cluster, count))
}

/// The same of tasks of a queue.
fn shared_throughput(cluster: &Cluster, count: usize) -> Result<Throughput, Failure> {
    throughput_of(count, |count| shared_burst(cluster, count))
}

/// Tasks of a queue, all submitted before the first result is asked for.
fn shared_burst(cluster: &Cluster, count: usize) -> Result<(), Failure> {
    let tasks = (0..count).map(|_| cluster.remote(NO_OP).queue(QUEUE).submit());
    expect_ones(tasks.collect::<Result<_, _>>()?)
}

fn throughput_of(count: usize, run_all: impl Fn(usize) -> Result<(), Failure>) -> Result<Throughput, Failure> {
    run_all(WARM_UP)?;
    let pid = std::process::id();
    let cpu_before = process::cpu_ns(pid)?;
    let begun = Instant::now();
    run_all(count)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_ns = process::cpu_ns(pid)? - cpu_before;
    Ok(Throughput { seconds, cpu_ns, pss: process::pss(pid)?, tasks: count, tasks_in_all: count + WARM_UP })
}

fn run_all(cluster: &Cluster, count: usize) -> Result<(), Failure> {
    expect_ones(submit_all(cluster, count)?)
}

pub(crate) fn submit_all(cluster: &Cluster, count: usize) -> Result<Vec<TaskHandle>, Failure> {
    Ok((0..count).map(|_| cluster.remote(NO_OP).submit()).collect::<Result<_, _>>()?)
}

pub(crate) fn expect_ones(tasks: Vec<TaskHandle>) -> Result<(), Failure> {
    tasks.into_iter().try_for_each(expect_one)
}

fn expect_one(task: TaskHandle) -> Result<(), Failure> {
    match task.get::<u32>()? {
        1 => Ok(()),
        other => Err(format!("`{NO_OP}` returned {other}, expected 1").into()),
    }
}

/// Nanoseconds of each.
fn round_trips(cluster: &Cluster, count: usize) -> Result<Vec<f64>, Failure> {
    times_of(count, || Ok(cluster.remote(NO_OP).submit()?))
}

/// Nanoseconds of each, of a queue.
fn shared_round_trips(cluster: &Cluster, count: usize) -> Result<Vec<f64>, Failure> {
    times_of(count, || Ok(cluster.remote(NO_OP).queue(QUEUE).submit()?))
}

/// Seconds of so many tasks of a queue that must not be started twice, some at a time.
fn shared_once(cluster: &Cluster, count: usize) -> Result<f64, Failure> {
    let mut open = VecDeque::new();
    let begun = Instant::now();
    for _ in 0..count {
        if open.len() == ONCE_AT_A_TIME {
            open.pop_front().map_or(Ok(()), expect_one)?;
        }
        open.push_back(cluster.remote(NO_OP).queue(QUEUE).at_most_once().submit()?);
    }
    open.into_iter().try_for_each(expect_one)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Nanoseconds of each: tasks of a queue with so many bytes in and out, several of them.
fn shared_large(cluster: &Cluster, bytes: usize) -> Result<Vec<f64>, Failure> {
    const TASKS: usize = 3;
    let text = "x".repeat(bytes);
    let mut times = Vec::with_capacity(TASKS);
    // The first one loads the module.
    for number in 0..=TASKS {
        let begun = Instant::now();
        let task = cluster.remote("nested_tasks:echo").queue(QUEUE).arg(&text).submit()?;
        let value = task.get_value()?;
        if value.decode::<&str>()?.len() != bytes {
            return Err("another text came back".into());
        }
        if number > 0 {
            times.push(nanos(begun.elapsed()));
        }
    }
    Ok(times)
}

fn times_of(count: usize, submit: impl Fn() -> Result<TaskHandle, Failure>) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count + WARM_UP {
        let begun = Instant::now();
        let task = submit()?;
        expect_one(task)?;
        if number >= WARM_UP {
            times.push(nanos(begun.elapsed()));
        }
    }
    Ok(times)
}

/// Nanoseconds of each, begun a millisecond apart, and of this process's cpu time.
fn sparse(cluster: &Cluster, count: usize) -> Result<(Vec<f64>, u64), Failure> {
    let pid = std::process::id();
    let cpu_before = process::cpu_ns(pid)?;
    let mut times = Vec::with_capacity(count);
    let first = Instant::now();
    for number in 0..count as u32 {
        std::thread::sleep((first + Duration::from_millis(1) * number).saturating_duration_since(Instant::now()));
        let begun = Instant::now();
        expect_one(cluster.remote(NO_OP).submit()?)?;
        times.push(nanos(begun.elapsed()));
    }
    Ok((times, process::cpu_ns(pid)? - cpu_before))
}

/// Nanoseconds of each.
fn calls(cluster: &Cluster, count: usize) -> Result<Vec<f64>, Failure> {
    let counter = cluster.actor("counter:Counter").create()?;
    let mut times = Vec::with_capacity(count);
    for number in 0..count + WARM_UP {
        let begun = Instant::now();
        let call = cluster.call(&counter, "increment").arg(1).submit()?;
        expect_count(call, number + 1)?;
        if number >= WARM_UP {
            times.push(nanos(begun.elapsed()));
        }
    }
    Ok(times)
}

/// Seconds from the first submission to the last result.
fn calls_in_a_row(cluster: &Cluster, count: usize) -> Result<f64, Failure> {
    let counter = cluster.actor("counter:Counter").create()?;
    let run = |before: usize, count: usize| {
        let begun = Instant::now();
        let calls = (0..count).map(|_| cluster.call(&counter, "increment").arg(1).submit());
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        for (call, number) in calls.into_iter().zip(before + 1..) {
            expect_count(call, number)?;
        }
        Ok::<_, Failure>(begun.elapsed().as_secs_f64())
    };
    run(0, WARM_UP)?;
    run(WARM_UP, count)
}

fn expect_count(call: TaskHandle, expected: usize) -> Result<(), Failure> {
    match call.get::<usize>()? {
        count if count == expected => Ok(()),
        count => Err(format!("the counter returned {count}, expected {expected}").into()),
    }
}

/// Seconds that one task takes to submit so many tasks and to sum what they return.
fn nested(cluster: &Cluster, count: usize) -> Result<f64, Failure> {
    let run = |cluster: &Cluster, count: usize| {
        let begun = Instant::now();
        let task = cluster.remote("nested_tasks:sum_of_squares").arg(count).submit()?;
        let sum: u64 = task.get()?;
        let expected: u64 = (0..count as u64).map(|number| number * number).sum();
        if sum == expected {
            Ok::<_, Failure>(begun.elapsed().as_secs_f64())
        } else {
            Err(format!("the sum is {sum}, expected {expected}").into())
        }
    };
    run(cluster, WARM_UP)?;
    run(cluster, count)
}

/// Bytes, which are no sequence of numbers.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Nanoseconds of each: tasks with 1 MiB of bytes in and out, and of text; and then, a tenth as often, tasks with 100 MiB of either out. Text is
/// copied into one of this program; bytes are looked at where they are, each page of them.
fn large(cluster: &Cluster, count: usize) -> Result<[Vec<f64>; 4], Failure> {
    const MIB: usize = 1 << 20;
    let text = "x".repeat(MIB);
    let times = |count: usize, expected: usize, run: &dyn Fn() -> Result<usize, Failure>| {
        let mut times = Vec::with_capacity(count);
        for number in 0..=count {
            let begun = Instant::now();
            let length = run()?;
            // The first loads the module, and touches memory for the first time.
            if number > 0 {
                times.push(nanos(begun.elapsed()));
            }
            if length != expected {
                return Err(format!("{length} bytes came back, expected {expected}").into());
            }
        }
        Ok::<_, Failure>(times)
    };
    let text_of = |task: TaskHandle| Ok(task.get::<String>()?.len());
    let bytes_of = |task: TaskHandle, byte: u8| {
        let value = task.get_value()?;
        let bytes: &[u8] = value.decode()?;
        Ok(if bytes.chunks(4096).all(|page| page[0] == byte) { bytes.len() } else { 0 })
    };
    let remote = |name: &str| cluster.remote(format!("nested_tasks:{name}"));
    let few = count.div_ceil(10);
    Ok([
        times(count, MIB, &|| bytes_of(remote("echo_bytes").arg(Bytes(text.as_bytes())).submit()?, b'x'))?,
        times(count, MIB, &|| text_of(remote("echo").arg(&text).submit()?))?,
        times(few, 100 * MIB, &|| bytes_of(remote("bytes_of").arg(100 * MIB).submit()?, 0))?,
        times(few, 100 * MIB, &|| text_of(remote("text_of").arg(100 * MIB).submit()?))?,
    ])
}

/// Seconds from the first submission to the last end.
fn commands(cluster: &Cluster, count: usize) -> Result<f64, Failure> {
    let begun = Instant::now();
    let mut tasks = Vec::with_capacity(count);
    for _ in 0..count {
        tasks.push(cluster.command(floor::TRUE).current_dir("/").submit()?);
    }
    for task in tasks {
        task.get::<()>()?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Tasks that make spans. How many spans in all.
fn spans(cluster: &Cluster, count: usize) -> Result<usize, Failure> {
    for _ in 0..count {
        cluster.remote("traced_tasks:many").arg(spans::TOGETHER).submit()?.get::<()>()?;
    }
    Ok(count * spans::TOGETHER)
}

/// Nanoseconds of each task of a function that may write a line to each output: that writes nothing, and that writes.
fn lines(cluster: &Cluster, count: usize) -> Result<[f64; 2], Failure> {
    let run = |least: u64, count: usize| {
        let begun = Instant::now();
        let submit = |number| cluster.remote("misbehaving_tasks:says_from").arg(least).arg(number).submit();
        let tasks = (1000..1000 + count as u64).map(submit).collect::<Result<Vec<_>, _>>()?;
        tasks.into_iter().try_for_each(|task| task.get::<()>())?;
        Ok::<_, Failure>(nanos(begun.elapsed()) / count as f64)
    };
    run(u64::MAX, WARM_UP)?;
    let silent = run(u64::MAX, count)?;
    run(0, WARM_UP)?;
    Ok([silent, run(0, count)?])
}

/// A thousand tasks that wait, again and again, and then so many at once.
fn queued(cluster: &Cluster, count: usize) -> Result<[Queued; 2], Failure> {
    run_all(cluster, WARM_UP)?;
    Ok([queued::measure(cluster, queued::FEW, QUEUED_ROUNDS)?, queued::measure(cluster, count, 1)?])
}

/// Round trips that begin with a line of the input. A line is printed before, and when they are over; the next line ends it.
fn stepped(cluster: &Cluster, count: usize) -> Result<(), Failure> {
    round_trips(cluster, 0)?;
    let mut line = String::new();
    println!();
    std::io::stdin().read_line(&mut line)?;
    (0..count).try_for_each(|_| run_all(cluster, 1))?;
    println!();
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}
