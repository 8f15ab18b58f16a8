//! How far `--map` has come: a bar on a terminal, nothing elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the rate and the time left are drawn anew while nothing happens.
const INTERVAL: Duration = Duration::from_millis(200);

/// A bar on standard error.
pub(super) struct Progress {
    started: Instant,
    bar: Option<ProgressBar>,
}

/// Whether it is shown.
pub(super) fn is_shown() -> bool {
    io::stderr().is_terminal()
}

impl Progress {
    /// Begins. With a total it tells the time left.
    pub(super) fn new(total: Option<u64>) -> Progress {
        let bar = is_shown().then(|| {
            let template = match total {
                Some(_) => "{bar:24} {human_pos}/{human_len} tasks  {per_sec}  {msg}  {eta} left",
                None => "{spinner} {human_pos} tasks  {per_sec}  {msg}  {elapsed}",
            };
            let style = ProgressStyle::with_template(template).expect("the template is well-formed");
            ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style.progress_chars("━╸ "))
        });
        Progress { started: Instant::now(), bar }
    }

    /// How long it has taken so far.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long to wait before it is shown again; none when it is not shown.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.bar.as_ref().map(|_| INTERVAL)
    }

    /// Shows how many tasks have ended.
    pub(super) fn show(&self, succeeded: u64, failed: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{failed} failed"));
            bar.set_position(succeeded + failed);
            bar.tick();
        }
    }

    /// Takes the bar away while something else is written.
    pub(super) fn suspend(&self, write: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away for good.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
