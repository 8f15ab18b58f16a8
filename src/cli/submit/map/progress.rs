//! Progress of `--map`: a bar on a terminal, nothing elsewhere.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Interval at which the rate and the time left are drawn anew while nothing happens.
const INTERVAL: Duration = Duration::from_millis(200);

/// A bar on standard error.
pub(super) struct Progress {
    started: Instant,
    bar: Option<ProgressBar>,
}

/// Tasks in a second, with three digits that count or as a whole number.
struct Rate(f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate < 9.995 => write!(f, "{rate:.2} tasks/s"),
            rate if rate < 99.95 => write!(f, "{rate:.1} tasks/s"),
            // More than fits is as many as fit.
            rate => write!(f, "{} tasks/s", HumanCount(rate.round() as u64)),
        }
    }
}

/// Returns whether it is shown.
pub(super) fn is_shown() -> bool {
    io::stderr().is_terminal()
}

impl Progress {
    /// Begins. With a total it tells the time left.
    pub(super) fn new(total: Option<u64>) -> Progress {
        let bar = is_shown().then(|| {
            let template = match total {
                Some(_) => "{bar:24} {human_pos}/{human_len} tasks  {rate}  {msg}  {eta} left",
                None => "{spinner} {human_pos} tasks  {rate}  {msg}  {elapsed}",
            };
            let style = ProgressStyle::with_template(template).expect("the template is well-formed").with_key(
                "rate",
                |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    // What cannot be written is not shown.
                    let _ = write!(out, "{}", Rate(state.per_sec()));
                },
            );
            ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style.progress_chars("━╸ "))
        });
        Progress { started: Instant::now(), bar }
    }

    /// Returns how long it has taken so far.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns how long to wait before it is shown again; none when it is not shown.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit_and_no_more_digits_than_count() {
        for (rate, text) in [
            (0.0, "0.00 tasks/s"),
            (0.5, "0.50 tasks/s"),
            (9.99, "9.99 tasks/s"),
            (9.996, "10.0 tasks/s"),
            (10.8283, "10.8 tasks/s"),
            (99.96, "100 tasks/s"),
            (312_345.678, "312,346 tasks/s"),
        ] {
            assert_eq!(Rate(rate).to_string(), text);
        }
    }
}
