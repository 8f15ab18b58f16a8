//! Costs of being looked at: traced tasks while a page follows them, tasks that write lines, and round trips beside a task that writes all it can.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::cluster::{self, Cluster, Place};
use super::report::{self, Figure, Variant};
use super::{Failure, Run, driver, each, http, say};

/// Writes that a task with one line on each output makes, at least.
const LINE: &[u8] = b"out 1000\n";

pub(crate) fn measure(run: &mut Run) -> Result<(), Failure> {
    page(run)?;
    lines(run)?;
    writer(run)
}

/// A page that follows changes, and asks for the list again each time, as the one in a browser does.
struct Page {
    is_over: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    reader: JoinHandle<Result<(), String>>,
}

impl Page {
    fn open(url: &str, token: &str) -> Result<Page, Failure> {
        let address = url.trim_start_matches("http://").to_owned();
        let (is_over, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut events = BufReader::new(TcpStream::connect(&address)?);
        let ask = |path: &str| {
            format!("GET /api/v1/{path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n")
        };
        events.get_mut().write_all(ask("events").as_bytes())?;
        let list = ask("traces?limit=200");
        let mut lists = BufReader::new(TcpStream::connect(&address)?);
        let mut line = String::new();
        while !line.starts_with("id: ") {
            line.clear();
            if events.read_line(&mut line)? == 0 {
                return Err("there are no events".into());
            }
        }
        let (own_end, own_looks) = (Arc::clone(&is_over), Arc::clone(&looks));
        let reader = std::thread::spawn(move || {
            let mut follow = || -> Result<(), Failure> {
                while !own_end.load(Ordering::Relaxed) {
                    let mut line = String::new();
                    if events.read_line(&mut line)? == 0 {
                        break;
                    }
                    if line.starts_with("id: ") {
                        let begun = Instant::now();
                        lists.get_mut().write_all(list.as_bytes())?;
                        http::read_answer(&mut lists)?;
                        own_looks.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(begun.elapsed() * 3);
                    }
                }
                Ok(())
            };
            follow().map_err(|error| error.to_string())
        });
        Ok(Page { is_over, looks, reader })
    }

    /// Waits for the page's end, which comes with that of the server. Returns how often it has asked.
    fn close(self) -> Result<u64, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        match self.reader.join().map_err(|_| "the page panicked")? {
            Err(reason) if reason.contains("`HTTP/") => return Err(reason.into()),
            // A stream that breaks off is the end too.
            Ok(()) | Err(_) => {}
        }
        Ok(self.looks.load(Ordering::Relaxed))
    }
}

/// Traced tasks a second with a live page open, and with none.
fn page(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.tasks;
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    for number in 1..=run.effort.runs {
        for has_page in [false, true] {
            say(&format!("{tasks} traced tasks, page open: {has_page}, run {number} of {}", run.effort.runs));
            let place = Place::new()?;
            let cluster = Cluster::start_with_http(&place, run.hook(Variant::Traced))?;
            let (url, token) = cluster.http()?;
            let page = has_page.then(|| Page::open(&url, &token)).transpose()?;
            let found: driver::Throughput = cluster.drive(&["throughput".into(), tasks.to_string()])?;
            cluster.stop()?;
            if let Some(page) = page {
                let looks = page.close()?;
                if looks == 0 {
                    return Err("the page was told of no change".into());
                }
            }
            (if has_page { &mut open } else { &mut closed }).push(tasks as f64 / found.seconds);
        }
    }
    let figure = Figure::rate("traced tasks, a live page open", Variant::Traced, f64::NAN).over(&open);
    run.report.add(Figure { floor: Some(("no page", report::percentile(&closed, 50))), ..figure });
    Ok(())
}

/// Tasks that write a line to each output, beside the same function that writes nothing; and the two writes alone.
fn lines(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.tasks;
    cluster::build("misbehaving_tasks")?;
    let measured = run.by_turns(&format!("lines of {tasks} tasks"), |_, cluster, _| {
        cluster.drive::<[f64; 2]>(&["lines".into(), tasks.to_string()])
    })?;
    let writes = writes_into_a_pipe(tasks)?;
    for (variant, runs) in &measured {
        let added = each(runs, |[silent, writing]| writing - silent);
        let figure = Figure::time("a line on each output of a task", *variant, f64::NAN).over(&added);
        run.report.add(Figure { floor: Some(("two writes into a pipe that is read", writes)), ..figure });
    }
    Ok(())
}

/// Nanoseconds of two writes into a pipe that somebody reads.
fn writes_into_a_pipe(count: usize) -> Result<f64, Failure> {
    let (mut reader, mut writer) = std::io::pipe()?;
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let begun = Instant::now();
    for _ in 0..count {
        writer.write_all(LINE)?;
        writer.write_all(LINE)?;
    }
    let nanos = report::nanos(begun.elapsed()) / count as f64;
    drop(writer);
    reading.join().map_err(|_| "the reader panicked")??;
    Ok(nanos)
}

/// Round trips beside a command that writes as fast as it is read, and without it.
fn writer(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.round_trips;
    let role = ["round_trips".to_owned(), count.to_string()];
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for number in 1..=run.effort.runs {
        say(&format!("round trips beside a task that writes, run {number} of {}", run.effort.runs));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, None)?;
        let times: Vec<f64> = cluster.drive(&role)?;
        alone.push(report::percentile(&times, 50));
        let script = "while :; do head -c 5000000 /dev/zero; sleep 0.01; done";
        let mut writer = cluster.submit_command(&[], &["sh", "-c", script])?;
        std::thread::sleep(Duration::from_millis(300));
        let times: Vec<f64> = cluster.drive(&role)?;
        beside.push(report::percentile(&times, 50));
        cluster.stop_at_once()?;
        writer.wait()?;
    }
    let figure = Figure::time("round trip beside a command that writes 500 MB/s, p50", Variant::Untraced, f64::NAN)
        .over(&beside);
    run.report.add(Figure { floor: Some(("without it", report::percentile(&alone, 50))), ..figure });
    Ok(())
}
