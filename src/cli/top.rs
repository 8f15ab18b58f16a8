//! `tracer top`.

mod draw;
mod input;
mod model;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tracer_client::driver::Driver;
use tracer_core::clock::now_unix_nano;
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_ipc::protocol::{Query, Reply, TaskFilter, TaskState};
use tracer_trace::Live;

use self::input::{Key, Screen};
use self::model::{Model, Sample};
use super::connect::unexpected_reply;
use super::{CommandError, CommandResult, PlaceArgs, report};

/// Tasks of the queue that are looked at; the others are counted.
const TASKS: usize = 2000;

/// Show workers, queue and rates on a terminal, until `q`
///
/// Has a table of workers, with the task and the innermost open span of each; a table of waiting tasks by function, with the reason; tasks per second;
/// warnings. Keys: arrows or `j` and `k` scroll, Tab goes to the other table, `p` pauses, `q` or Ctrl-C ends.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tracer top\n  tracer top --interval 2s")]
pub(super) struct Args {
    /// Interval at which the head is asked
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    interval: Duration,
    #[command(flatten)]
    place: PlaceArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || report::is_dumb() {
        let text = "`tracer top` needs a terminal with a cursor that moves for what it shows and for keys\n(hint: `tracer status` and `tracer list workers` write text, with `--format json` for programs)";
        return Err(CommandError::new(exit::FAILED, text));
    }
    let mut live = Live::new(&driver.welcome().session_dir);
    // The terminal is taken when the head has answered, so that an error is seen.
    let mut model = Model::new(look(&mut driver, &mut live)?);
    let mut screen = Screen::take().map_err(terminal_error)?;
    let is_told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_told_to_end)).map_err(terminal_error)?;
    }
    let interval = args.interval.max(Duration::from_millis(50));
    let mut next = Instant::now() + interval;
    while !is_told_to_end.load(Relaxed) {
        screen.draw(|frame| draw::draw(frame, &mut model)).map_err(terminal_error)?;
        let key = screen.key(next.saturating_duration_since(Instant::now())).map_err(terminal_error)?;
        match key {
            Some(Key::Quit) => return Ok(exit::OK),
            Some(key) => model.on_key(key),
            None => {}
        }
        if Instant::now() >= next {
            if !model.is_paused() {
                model.add(look(&mut driver, &mut live)?);
            }
            next = Instant::now() + interval;
        }
    }
    Ok(exit::OK)
}

fn terminal_error(error: io::Error) -> CommandError {
    CommandError::new(exit::FAILED, format!("the terminal cannot be used: {error}"))
}

/// Asks the head, and looks into the spools of its processes.
fn look(driver: &mut Driver, live: &mut Live) -> Result<Sample, CommandError> {
    let Reply::Status(status) = driver.query(&Query::Status)? else { return Err(unexpected_reply()) };
    let Reply::Workers(workers) = driver.query(&Query::Workers)? else { return Err(unexpected_reply()) };
    let which = TaskFilter { states: TaskState::without_outcome(), ..TaskFilter::default() };
    let tasks = driver.tasks(TASKS, which)?;
    let mut sample = Sample {
        at: Instant::now(),
        unix_nano: now_unix_nano(),
        status: *status,
        workers,
        tasks: tasks.tasks,
        tasks_left_out: tasks.left_out,
        open: live.look(now_unix_nano(), |_| true).spans,
        reasons: Vec::new(),
    };
    for id in sample.oldest_of_each_function() {
        let Reply::Explanation(explanation) = driver.query(&Query::Explain { id })? else {
            return Err(unexpected_reply());
        };
        let reason = explanation.and_then(|explanation| explanation.reasons.first().map(ToString::to_string));
        sample.reasons.push((id, reason.unwrap_or_default()));
    }
    Ok(sample)
}
