//! Costs of log records, metrics and OTLP in, each beside what else does the same, or beside what it is to reach.

mod modules;
mod otlp;

use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tracer::head::figures::Figures;
use tracer::head::reactor::EndedAttempt;
use tracer::task::{Outcome, SpanLink};

use super::cluster::{self, Cluster, HAS_SPINNING, Place};
use super::report::{self, Figure, Variant};
use super::{Failure, Run, each, http, process, say, system_calls};

pub(crate) use modules::{ROLE as MODULES, run_role};
pub(crate) use otlp::{ROLE as DECODER, decode_for_ever};

/// Nanoseconds of the metrics of a task in the head, to be reached.
const HEAD_NS: f64 = 20.0;
/// The span of a traced task.
const SPAN: SpanLink = SpanLink { trace_id: [7; 16], span_id: [9; 8], trace_flags: 1 };
/// Series of the scrape, and its nanoseconds, to be reached.
const SERIES: usize = 2_000;
const SCRAPE_NS: f64 = 5e6;
/// Scrapes of a cluster.
const SCRAPES: usize = 30;
/// Time in which a cluster that has nothing to do is looked at.
const IDLE: Duration = Duration::from_secs(2);
/// Wake-ups in that time that are let pass: the kernel counts those of its own doing too.
const WAKE_UPS: f64 = 2.0;

pub(crate) fn measure(run: &mut Run) -> Result<(), Failure> {
    cluster::build("traced_tasks")?;
    head(run)?;
    modules::measure(run)?;
    scrape(run)?;
    nobody(run)?;
    otlp::measure(run)
}

/// Counts of a task in the head: its attempt, with the time it ran and waited, and its end. In cpu time, of which other processes take nothing.
fn head(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.tasks * 20;
    for (variant, span) in [(Variant::Untraced, None), (Variant::Traced, Some(SPAN))] {
        say(&format!("metrics of {tasks} tasks in the head, {variant}"));
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let mut figures = Figures::open(&folder.path().join("metrics"));
        let outcome = Outcome::Completed;
        let mut count = |tasks: usize| {
            let begun = clock_gettime(ClockId::ThreadCPUTime);
            for number in 0..tasks as u64 {
                figures.count_attempt(&EndedAttempt {
                    target: 0,
                    name: "demo:my_function",
                    failure: None,
                    run_ns: Some(1_000 + number % 1_000_000),
                    queued_ns: Some(2_000 + number % 3_000_000),
                    span,
                    envelope: &[],
                    ended_unix_nano: 1_793_880_000_000_000_000 + number * 1_000,
                });
                figures.count_end(&outcome);
            }
            let ended = clock_gettime(ClockId::ThreadCPUTime);
            let seconds = (ended.tv_sec - begun.tv_sec) as f64;
            (seconds * 1e9 + (ended.tv_nsec - begun.tv_nsec) as f64) / tasks as f64
        };
        count(10_000);
        let times: Vec<_> = (0..run.effort.runs).map(|_| count(tasks)).collect();
        let figure = Figure::time("metrics of a task in the head", variant, f64::NAN).over(&times);
        run.report.add(Figure { floor: Some(("to reach", HEAD_NS)), ..figure });
    }
    Ok(())
}

/// `GET /metrics` of one instrument with many series, over a connection that stays.
fn scrape(run: &mut Run) -> Result<(), Failure> {
    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    for number in 1..=run.effort.runs {
        say(&format!("scrapes of {SERIES} series, run {number} of {}", run.effort.runs));
        let place = Place::new()?;
        let cluster = Cluster::start_with_flags(&place, run.hook(Variant::Traced), &["--metrics=127.0.0.1:0"])?;
        // One of them is that for which there is no room.
        cluster.submit_and_wait("traced_tasks:counts_series", &[&SERIES.to_string()])?;
        let http = cluster.http_report()?;
        let address = http.url.trim_start_matches("http://").to_owned();
        let token = fs::read_to_string(http.metrics_token_path)?;
        let mut answers = BufReader::new(TcpStream::connect(&address)?);
        let ask = format!(
            "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nAccept: application/openmetrics-text\r\n\r\n",
            token.trim_end()
        );
        for number in 0..=SCRAPES {
            let begun = Instant::now();
            answers.get_mut().write_all(ask.as_bytes())?;
            let body = http::read_answer(&mut answers)?;
            if number > 0 {
                times.push(report::nanos(begun.elapsed()));
                continue;
            }
            let series = String::from_utf8_lossy(&body).matches("\nshop_sold_total{").count();
            if series != SERIES {
                return Err(format!("the scrape has {series} series, expected {SERIES}").into());
            }
            bytes.push(body.len() as f64);
        }
        cluster.stop()?;
    }
    let name = format!("scrape of {SERIES} series, {:.0} bytes", report::percentile(&bytes, 50));
    let figure = Figure::time(&name, Variant::Traced, f64::NAN).over(&times);
    run.report.add(Figure { floor: Some(("to reach", SCRAPE_NS)), ..figure });
    Ok(())
}

/// Threads, wake-ups and system calls of a cluster whose metrics nobody scrapes, beside one that cannot count any.
fn nobody(run: &mut Run) -> Result<(), Failure> {
    let obstacle = system_calls::obstacle();
    if let Some(obstacle) = &obstacle {
        say(&format!("system calls are not counted: {obstacle}"));
    }
    let tasks = run.effort.tasks;
    HAS_SPINNING.store(false, Ordering::Relaxed);
    let mut measured = [Vec::new(), Vec::new()];
    for number in 1..=run.effort.runs.min(3) {
        for (counts, found) in [false, true].into_iter().zip(&mut measured) {
            say(&format!("nobody scrapes, counting: {counts}, run {number}"));
            let place = Place::new()?;
            if !counts {
                block(&place.temp_dir())?;
            }
            let cluster = Cluster::start_with(&place, run.hook(Variant::Traced), 1)?;
            cluster.submit_and_wait("traced_tasks:counts_many", &[&tasks.to_string()])?;
            let pids: Vec<u32> = cluster.processes()?.iter().map(|process| process.pid).collect();
            let threads: usize = pids.iter().map(|&pid| process::threads(pid)).sum::<Result<_, _>>()?;
            let wake_ups = || pids.iter().map(|&pid| process::sleeps(pid)).sum::<Result<u64, Failure>>();
            let before = wake_ups()?;
            std::thread::sleep(IDLE);
            let slept = wake_ups()?.saturating_sub(before);
            let calls = match obstacle {
                None => {
                    let calls = system_calls::per_task(&cluster, &system_calls::AMONG_MANY)?;
                    calls[..2].iter().map(system_calls::sum).sum()
                }
                Some(_) => f64::NAN,
            };
            found.push([threads as f64, slept as f64, calls]);
            cluster.stop()?;
        }
    }
    HAS_SPINNING.store(true, Ordering::Relaxed);
    let [without, with] = measured;
    for (index, (name, slack)) in [
        ("threads of head and worker, nobody scrapes", 0.0),
        ("wake-ups of both in two idle seconds, nobody scrapes", WAKE_UPS),
        ("system calls of a task in both, nobody scrapes", 0.1),
    ]
    .into_iter()
    .enumerate()
    {
        let value = |found: &[[f64; 3]]| report::percentile(&each(found, |one| one[index]), 50);
        let (floor, value) = (value(&without), value(&with));
        if value > floor + slack {
            run.excesses.push(format!("{name}: {value}, without metrics {floor}"));
        }
        if !value.is_nan() {
            let figure = Figure::count(name, Variant::Traced, value);
            run.report.add(Figure { floor: Some(("without metrics", floor)), ..figure });
        }
    }
    Ok(())
}

/// Makes a place in which nothing can be counted: a folder is no file, and a file no folder.
fn block(place: &Path) -> Result<(), Failure> {
    fs::DirBuilder::new().mode(0o700).create(place)?;
    fs::create_dir(place.join("metrics"))?;
    fs::write(place.join("metrics.modules"), "")?;
    Ok(())
}
