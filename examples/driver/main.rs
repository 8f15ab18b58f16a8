//! A program that submits tasks: counts the words of files, each in a task of its own, shows how far it is, and tells what failed.
//!
//! ```text
//! $ cargo build -p tracer -p wordcount
//! $ cargo run --example driver -- src/*.rs no/such/file
//! no/such/file: task 32 (wordcount.count_file) failed: cannot open `/home/you/tracer/no/such/file`: No such file or directory (os error 2)
//!   attempt 1 (worker 2, pid 9212): cannot open `/home/you/tracer/no/such/file`: No such file or directory (os error 2)
//!   attempt 2 (worker 2, pid 9212): cannot open `/home/you/tracer/no/such/file`: No such file or directory (os error 2)
//! 27235 words in 31 files
//! ```
//!
//! It uses the head that runs on this machine, or has one of its own while it runs. With `TRACER_TRACING_STARTUP_HOOK` set that one is
//! traced, and all of this is one trace: `tracer trace show last` draws it. A Ctrl-C cancels what has not ended.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tracer::{AsCompleted, Init, as_completed};

/// Interval at which the line on the terminal is drawn anew.
const REDRAW: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match count(&files) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts the words of all files, and returns how many could not be counted.
fn count(files: &[PathBuf]) -> Result<usize, Box<dyn Error>> {
    let cluster = Init::new().job_span().cancel_on_ctrl_c(|text| eprintln!("{text}")).init()?;
    for warning in cluster.warnings() {
        eprintln!("warning: {warning}");
    }
    let mut tasks = Vec::new();
    for file in files {
        // The folder of a worker may be another one.
        let path = std::path::absolute(file)?;
        let task = cluster.remote("wordcount:count_file").arg(path).name(file.display().to_string());
        tasks.push(task.retries(2).retry_backoff(Duration::from_millis(50)).submit()?);
    }
    let mut words = 0;
    let mut results = as_completed::<u64>(tasks)?;
    loop {
        while !results.wait(REDRAW) {
            draw(&results);
        }
        let Some(completed) = results.next() else { break };
        match completed.result {
            Ok(count) => words += count,
            Err(error) => println!("{}: {error}", files[completed.index].display()),
        }
    }
    let progress = results.progress();
    println!("{words} words in {} files", progress.succeeded);
    Ok(progress.failed)
}

/// Draws how far it is, over what was drawn before.
fn draw(results: &AsCompleted<u64>) {
    let mut terminal = io::stderr();
    if !terminal.is_terminal() {
        return;
    }
    let progress = results.progress();
    let left = progress.left().map_or_else(String::new, |left| format!(", {} s left", left.as_secs()));
    // Nobody is left to tell of an error.
    let _ = write!(
        terminal,
        "\r\x1b[K{} of {} files, {} failed, {} running{left}\r",
        progress.done(),
        progress.total,
        progress.failed,
        progress.running,
    );
}
