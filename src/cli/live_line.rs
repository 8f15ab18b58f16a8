//! A line at the end of a terminal that says what a task is at, or how many of several have ended, while somebody waits for them.
//!
//! It is on standard error, comes after a second, and is gone at the end. [`report`](super::report) writes everything else above it: it takes the line away first,
//! and the line comes back with the next tick. While the cursor stands behind a part of a line that a command has written, nothing is shown,
//! because taking it away would take that part as well.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracer_client::driver::Driver;
use tracer_core::count::Elapsed;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{Explanation, Query, Reply};
use tracer_trace::render;

use super::report;

/// A task that ends within this time has no line.
const DELAY: Duration = Duration::from_secs(1);
/// Interval at which the line is drawn anew.
const TICK: Duration = Duration::from_millis(500);
/// Takes the line away, with the cursor at its beginning.
const CLEAR: &[u8] = b"\r\x1b[2K";

/// True if there may be a line. Before the first one, and where there is none, writers pay for this alone.
static IS_ON: AtomicBool = AtomicBool::new(false);
static SCREEN: Mutex<Screen> = Mutex::new(Screen { is_shown: false, is_in_line: false });

/// The end of the terminal.
struct Screen {
    /// True if the line is there.
    is_shown: bool,
    /// True if the cursor stands behind something that was written without a line feed.
    is_in_line: bool,
}

impl Screen {
    fn lock() -> MutexGuard<'static, Screen> {
        SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears the line. Does not fail if the terminal cannot be written to.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = io::stderr().lock().write_all(CLEAR);
        }
    }

    fn draw(&mut self, text: &str) {
        if self.is_in_line || !IS_ON.load(Ordering::Relaxed) {
            return;
        }
        let _ = io::stderr().lock().write_all(&[CLEAR, text.as_bytes()].concat());
        self.is_shown = true;
    }
}

/// Writes something else, with the line out of the way.
pub(super) fn above<R>(write: impl FnOnce() -> R) -> R {
    if !IS_ON.load(Ordering::Relaxed) {
        return write();
    }
    let mut screen = Screen::lock();
    screen.clear();
    write()
}

/// Notes that a command's own output was written, as it is, to standard output.
pub(super) fn note_output(bytes: &[u8]) {
    if IS_ON.load(Ordering::Relaxed)
        && let Some(last) = bytes.last()
        && io::stdout().is_terminal()
    {
        Screen::lock().is_in_line = *last != b'\n';
    }
}

/// Takes the line away for good.
pub(super) fn end() {
    if IS_ON.swap(false, Ordering::Relaxed) {
        Screen::lock().clear();
    }
}

/// Returns whether a line can be shown.
pub(super) fn is_possible() -> bool {
    io::stderr().is_terminal() && !report::is_dumb()
}

/// The line. Dropped, it is gone.
pub(super) struct LiveLine {
    /// Never sent to: the thread ends when it is dropped.
    _stop: Sender<()>,
}

impl LiveLine {
    /// Begins for a task that was submitted to the head of this place. None if there can be no thread for it.
    pub(super) fn start(temp_dir: &Path, id: TaskId, target: &str) -> Option<LiveLine> {
        let mut asker = Asker { temp_dir: temp_dir.to_owned(), id, driver: None };
        let target = target.to_owned();
        LiveLine::begin(move |elapsed| text(id, &target, elapsed, asker.ask().as_ref()))
    }

    /// Begins for several tasks, of which `ended` counts those that have ended.
    pub(super) fn of_several(all: usize, ended: Arc<AtomicUsize>) -> Option<LiveLine> {
        LiveLine::begin(move |elapsed| {
            let elapsed = Elapsed(Duration::from_secs(elapsed.as_secs()));
            format!("{} of {all} tasks have ended, {elapsed}", ended.load(Ordering::Relaxed))
        })
    }

    /// Begins with a text of the time since then.
    fn begin(mut text: impl FnMut(Duration) -> String + Send + 'static) -> Option<LiveLine> {
        let (stop, stopped) = mpsc::channel();
        let since = Instant::now();
        IS_ON.store(true, Ordering::Relaxed);
        let draw_until_stopped = move || {
            let mut wait = DELAY;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
                wait = TICK;
                let text = text(since.elapsed());
                // The last column stays free, since a terminal may go on to the next line behind it.
                Screen::lock().draw(&render::one_line(&text, width().saturating_sub(1)));
            }
        };
        std::thread::Builder::new().name("live line".into()).spawn(draw_until_stopped).ok()?;
        Some(LiveLine { _stop: stop })
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        end();
    }
}

fn width() -> usize {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col.into()).max(20)
}

/// Asks the head, on a connection of its own, what the task is at.
struct Asker {
    temp_dir: PathBuf,
    id: TaskId,
    driver: Option<Driver>,
}

impl Asker {
    /// None when the head does not say.
    fn ask(&mut self) -> Option<Explanation> {
        let driver = match self.driver.take() {
            Some(driver) => driver,
            None => Driver::connect(&self.temp_dir).ok()?,
        };
        let driver = self.driver.insert(driver);
        match driver.query(&Query::Explain { id: self.id }) {
            Ok(Reply::Explanation(explanation)) => explanation.map(|explanation| *explanation),
            _ => {
                self.driver = None;
                None
            }
        }
    }
}

fn text(id: TaskId, target: &str, elapsed: Duration, explanation: Option<&Explanation>) -> String {
    let elapsed = Elapsed(Duration::from_secs(elapsed.as_secs()));
    let text = match explanation.map(|explanation| (explanation.task.state, explanation.reasons.first())) {
        None => format!("task {id} ({target}): {elapsed}"),
        Some((state, Some(reason))) => format!("task {id} ({target}) {state} {elapsed}: {reason}"),
        Some((state, None)) => format!("task {id} ({target}) {state} {elapsed}"),
    };
    tracer_core::escape::line(&text).into_owned()
}
