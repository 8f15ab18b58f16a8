//! The drivers: copies of this program that submit through the library and print what they found.
//!
//! A process of its own, because a hook runs once in a process, and so that its cpu time and memory are the driver's alone.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tracer::Driver;
use tracer::driver::{SubmitRequest, Ticket, command_spec};
use tracer::task::{Demand, Policy};

use super::report::nanos;
use super::{Failure, floor, process};

/// The task that does nothing.
const NO_OP: &str = "demo:my_function";
/// Tasks before those that count, so that every worker has loaded the module.
const WARM_UP: usize = 500;

/// What submitting and collecting many tasks took.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Throughput {
    /// From the first submission to the last result.
    pub(crate) seconds: f64,
    /// The driver's cpu time in between.
    pub(crate) cpu_ns: u64,
    /// Bytes, after the last result.
    pub(crate) pss: u64,
    /// The warm-up included.
    pub(crate) tasks_in_all: usize,
}

/// Does what a copy of this program was started for: `role`, a count and the head's place. Prints JSON.
pub(crate) fn run_role(arguments: &[String]) -> Result<(), Failure> {
    let [role, count, temp_dir] = arguments else { return Err("a role takes a count and a place".into()) };
    let count: usize = count.parse()?;
    let mut driver = Driver::connect(Path::new(temp_dir))?;
    if let Some(failure) = driver.start_tracing() {
        return Err(failure.into());
    }
    let found = match role.as_str() {
        "throughput" => serde_json::to_string(&throughput(&mut driver, count)?)?,
        "round_trips" => serde_json::to_string(&round_trips(&mut driver, count)?)?,
        "calls" => serde_json::to_string(&calls(&mut driver, count)?)?,
        "calls_in_a_row" => serde_json::to_string(&calls_in_a_row(&mut driver, count)?)?,
        "nested" => serde_json::to_string(&nested(&mut driver, count)?)?,
        "large" => serde_json::to_string(&large(&mut driver, count)?)?,
        "commands" => serde_json::to_string(&commands(&mut driver, count)?)?,
        other => return Err(format!("no role is called `{other}`").into()),
    };
    if let Some(recorder) = driver.recorder() {
        recorder.shutdown(std::time::Duration::from_secs(10))?;
    }
    println!("{found}");
    Ok(())
}

fn throughput(driver: &mut Driver, count: usize) -> Result<Throughput, Failure> {
    run_all(driver, WARM_UP)?;
    let pid = std::process::id();
    let cpu_before = process::cpu_ns(pid)?;
    let begun = Instant::now();
    run_all(driver, count)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_ns = process::cpu_ns(pid)? - cpu_before;
    Ok(Throughput { seconds, cpu_ns, pss: process::pss(pid)?, tasks_in_all: count + WARM_UP })
}

fn run_all(driver: &mut Driver, count: usize) -> Result<(), Failure> {
    let mut tasks = Vec::with_capacity(count);
    for _ in 0..count {
        tasks.push(driver.remote(NO_OP).submit()?);
    }
    for task in tasks {
        expect_one(driver, task)?;
    }
    Ok(())
}

fn expect_one(driver: &mut Driver, task: Ticket) -> Result<(), Failure> {
    match driver.get::<u32>(task)? {
        1 => Ok(()),
        other => Err(format!("`{NO_OP}` returned {other}, expected 1").into()),
    }
}

/// Nanoseconds of each.
fn round_trips(driver: &mut Driver, count: usize) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count + WARM_UP {
        let begun = Instant::now();
        let task = driver.remote(NO_OP).submit()?;
        expect_one(driver, task)?;
        if number >= WARM_UP {
            times.push(nanos(begun.elapsed()));
        }
    }
    Ok(times)
}

/// Nanoseconds of each.
fn calls(driver: &mut Driver, count: usize) -> Result<Vec<f64>, Failure> {
    let counter = driver.actor("counter:Counter").create()?;
    let mut times = Vec::with_capacity(count);
    for number in 0..count + WARM_UP {
        let begun = Instant::now();
        let call = driver.call(&counter, "increment").arg(1)?.submit()?;
        expect_count(driver, call, number + 1)?;
        if number >= WARM_UP {
            times.push(nanos(begun.elapsed()));
        }
    }
    Ok(times)
}

/// Seconds from the first submission to the last result.
fn calls_in_a_row(driver: &mut Driver, count: usize) -> Result<f64, Failure> {
    let counter = driver.actor("counter:Counter").create()?;
    let run = |driver: &mut Driver, before: usize, count: usize| {
        let begun = Instant::now();
        let submit = |_| Ok::<_, Failure>(driver.call(&counter, "increment").arg(1)?.submit()?);
        let calls = (0..count).map(submit).collect::<Result<Vec<_>, _>>()?;
        for (call, number) in calls.into_iter().zip(before + 1..) {
            expect_count(driver, call, number)?;
        }
        Ok::<_, Failure>(begun.elapsed().as_secs_f64())
    };
    run(driver, 0, WARM_UP)?;
    run(driver, WARM_UP, count)
}

fn expect_count(driver: &mut Driver, call: Ticket, expected: usize) -> Result<(), Failure> {
    match driver.get::<usize>(call)? {
        count if count == expected => Ok(()),
        count => Err(format!("the counter returned {count}, expected {expected}").into()),
    }
}

/// Seconds that one task takes to submit so many tasks and to sum what they return.
fn nested(driver: &mut Driver, count: usize) -> Result<f64, Failure> {
    let run = |driver: &mut Driver, count: usize| {
        let begun = Instant::now();
        let task = driver.remote("nested_tasks:sum_of_squares").arg(count)?.submit()?;
        let sum: u64 = driver.get(task)?;
        let expected: u64 = (0..count as u64).map(|number| number * number).sum();
        if sum == expected {
            Ok::<_, Failure>(begun.elapsed().as_secs_f64())
        } else {
            Err(format!("the sum is {sum}, expected {expected}").into())
        }
    };
    run(driver, WARM_UP)?;
    run(driver, count)
}

/// Nanoseconds of each: tasks with 1 MiB in and out, and then, a tenth as often, tasks with 100 MiB out.
fn large(driver: &mut Driver, count: usize) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    const MIB: usize = 1 << 20;
    let text = "x".repeat(MIB);
    let (mut both_ways, mut out) = (Vec::new(), Vec::new());
    for _ in 0..=count {
        let begun = Instant::now();
        let task = driver.remote("nested_tasks:echo").arg(&text)?.submit()?;
        let echoed: String = driver.get(task)?;
        both_ways.push(nanos(begun.elapsed()));
        if echoed.len() != MIB {
            return Err(format!("{} bytes came back, expected {MIB}", echoed.len()).into());
        }
    }
    for _ in 0..=count.div_ceil(10) {
        let begun = Instant::now();
        let task = driver.remote("nested_tasks:text_of").arg(100 * MIB)?.submit()?;
        let text: String = driver.get(task)?;
        out.push(nanos(begun.elapsed()));
        if text.len() != 100 * MIB {
            return Err(format!("{} bytes came, expected {}", text.len(), 100 * MIB).into());
        }
    }
    // The first of each loads the module, and touches memory for the first time.
    Ok((both_ways.split_off(1), out.split_off(1)))
}

/// Seconds from the first submission to the last end.
fn commands(driver: &mut Driver, count: usize) -> Result<f64, Failure> {
    let begun = Instant::now();
    let mut tasks = Vec::with_capacity(count);
    for _ in 0..count {
        let spec = command_spec(floor::TRUE.as_bytes(), Vec::new(), Vec::new(), b"/");
        tasks.push(driver.submit(&SubmitRequest {
            spec,
            name: "",
            run_limit: None,
            policy: Policy::default(),
            demand: Demand::default(),
            wants_output: false,
            trace_runtime: false,
            inputs: &[],
        })?);
    }
    for task in tasks {
        driver.get::<()>(task)?;
    }
    Ok(begun.elapsed().as_secs_f64())
}
