//! Metrics that the head counts and that outlive it: run time, time in the queue and ends of tasks, in the file `metrics` of its place.
//!
//! The head's loop is the only writer. Whoever serves metrics reads the file (`tracer_web::http_api`), so a scrape costs the head nothing.

use std::path::Path;

use tracer_core::metric_names::{ERROR_TYPE, FUNCTION, OVERFLOW, QUEUE_DURATION, STATE, TASK_DURATION, TASKS_ENDED};
use tracer_core::task::{Envelope, Outcome, SpanLink};
use tracer_ipc::metrics::{Exemplar, SERVING_FOLDER, SeriesFile, SeriesIndex, read_overflowed};
use tracer_ipc::{http_place, session};
use tracer_reactor::EndedAttempt;

/// Bit of the trace flags: the trace is sampled.
const SAMPLED: u8 = 1;

/// The metrics of a head. Without a file nothing is counted.
#[derive(Debug)]
pub struct Figures {
    file: Option<SeriesFile>,
    /// Reason why there is no file.
    pub(super) failure: Option<String>,
    /// Series of each target's attempts that succeeded, and of its time in the queue, by the number of the target.
    of_targets: Vec<Option<[SeriesIndex; 2]>>,
    /// Series of tasks that succeeded, failed and were cancelled.
    ended: [Option<SeriesIndex>; 3],
    /// Values that were in overflow series when the head began.
    overflowed_before: u64,
    /// True once it is said that the disk has no room.
    is_no_room_said: bool,
}

impl Figures {
    /// Opens the file of a place, which is made if it is not there.
    pub fn open(path: &Path) -> Figures {
        let (file, failure) = match SeriesFile::open(path) {
            Ok(file) => (Some(file), None),
            Err(error) => {
                (None, Some(format!("metrics are not counted, `{}` cannot be used: {error}", path.display())))
            }
        };
        let (of_targets, ended) = (Vec::new(), [None; 3]);
        Figures { file, failure, of_targets, ended, overflowed_before: 0, is_no_room_said: false }
    }

    /// Takes what all processes of a session have counted in overflow series before this head.
    pub(super) fn begin(&mut self, session_dir: &Path) {
        self.overflowed_before = self.all_overflowed(session_dir);
    }

    /// Returns how many values all processes of a session have counted in overflow series since the head began, because the disk had no room for
    /// series of their own.
    pub(super) fn overflowed(&self, session_dir: &Path) -> u64 {
        self.all_overflowed(session_dir).saturating_sub(self.overflowed_before)
    }

    /// Reads the counts in the files; of one that cannot be read there is none.
    fn all_overflowed(&self, session_dir: &Path) -> u64 {
        let place = session::place_of(session_dir);
        let serving = place.join(SERVING_FOLDER).read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        let files =
            serving.chain([http_place::head_metrics_path(place), http_place::request_metrics_path(session_dir)]);
        let in_files: u64 = files.filter_map(|path| read_overflowed(&path).ok()).fold(0, u64::wrapping_add);
        in_files.wrapping_add(self.file.as_ref().map_or(0, SeriesFile::unwritten))
    }

    /// Counts an attempt that has ended.
    pub fn count_attempt(&mut self, attempt: &EndedAttempt<'_>) {
        let Some(file) = &mut self.file else { return };
        let function = (FUNCTION, attempt.name);
        if self.of_targets.len() <= attempt.target {
            self.of_targets.resize(attempt.target + 1, None);
        }
        let [succeeded, queue] = match self.of_targets[attempt.target] {
            Some(series) => series,
            None => {
                let series = [TASK_DURATION, QUEUE_DURATION].map(|metric| file.series(metric, &[function]));
                self.of_targets[attempt.target] = (!file.take_refused()).then_some(series);
                series
            }
        };
        let ran = match attempt.failure {
            None => succeeded,
            Some(failure) => file.series(TASK_DURATION, &[function, (ERROR_TYPE, &failure.error_type())]),
        };
        for (series, ns) in [(ran, attempt.run_ns), (queue, attempt.queued_ns)] {
            let Some(ns) = ns else { continue };
            let seconds = ns as f64 / 1e9;
            let bucket = file.observe(series, seconds);
            if file.wants_exemplar(series, bucket, attempt.ended_unix_nano)
                && let Some(link) = span_of(attempt)
            {
                let SpanLink { trace_id, span_id, .. } = link;
                let exemplar = Exemplar { value: seconds, unix_nano: attempt.ended_unix_nano, trace_id, span_id };
                file.set_exemplar(series, bucket, &exemplar);
            }
        }
    }

    /// Counts a task that has ended.
    pub fn count_end(&mut self, outcome: &Outcome) {
        let Some(file) = &mut self.file else { return };
        let (place, state) = match outcome {
            Outcome::Failed(failure) if failure.is_cancellation() => (2, "cancelled"),
            Outcome::Failed(_) => (1, "failed"),
            _ => (0, "succeeded"),
        };
        let series = match self.ended[place] {
            Some(series) => series,
            None => {
                let series = file.series(TASKS_ENDED, &[(STATE, state)]);
                self.ended[place] = (!file.take_refused()).then_some(series);
                series
            }
        };
        file.count(series, 1);
    }

    /// Returns, once, what is to be said of a disk that has no room for further series, of this file or of others, with so many values in
    /// overflow series.
    pub(super) fn take_failure(&mut self, overflowed: u64) -> Option<String> {
        if self.is_no_room_said {
            return None;
        }
        let of_others =
            || format!("the disk has had no room for series of metrics, whose values are counted with `{OVERFLOW}`");
        let own = self.file.as_mut().and_then(SeriesFile::take_failure);
        let failure = own.or_else(|| (overflowed > 0).then(of_others))?;
        self.is_no_room_said = true;
        Some(failure)
    }
}

/// Returns the span that an exemplar names: the attempt's own where the head knows it, else that of the submission, in the same trace. None when the
/// trace is not sampled.
fn span_of(attempt: &EndedAttempt<'_>) -> Option<SpanLink> {
    let link = attempt.span.or_else(|| {
        let trace = Envelope::trace_of(attempt.envelope)?;
        Some(SpanLink { trace_id: trace.trace_id, span_id: trace.span_id, trace_flags: trace.trace_flags })
    })?;
    (link.trace_flags & SAMPLED != 0 && link.trace_id != [0; 16]).then_some(link)
}

#[cfg(test)]
mod tests {
    use tracer_core::task::Failure;
    use tracer_ipc::metrics::read;

    use super::*;

    #[test]
    fn attempts_are_counted_by_function_and_error_and_the_next_head_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let panic = Failure::Panic { message: "boom".into(), location: String::new(), stacktrace: String::new() };
        let span = SpanLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1 };
        let attempt = EndedAttempt {
            target: 3,
            name: "demo.work",
            failure: None,
            run_ns: Some(2_000_000),
            queued_ns: Some(1_000),
            span: None,
            envelope: b"",
            ended_unix_nano: 5_000_000_000,
        };
        for _ in 0..2 {
            let mut figures = Figures::open(&http_place::head_metrics_path(folder.path()));
            figures.count_attempt(&attempt);
            figures.count_attempt(&EndedAttempt {
                failure: Some(&panic),
                span: Some(span),
                queued_ns: None,
                ..attempt
            });
            figures.count_end(&Outcome::Returned(Vec::new()));
            figures.count_end(&Outcome::Failed(panic.clone()));
            figures.count_end(&Outcome::Failed(Failure::Cancelled));
        }
        let all = read(&http_place::head_metrics_path(folder.path())).unwrap();
        let count = |metric, attributes: &[(&str, &str)]| {
            let is_meant = |key: &[(String, String)]| {
                key.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(attributes.iter().copied())
            };
            let found = all.iter().find(|series| series.metric == metric && is_meant(&series.attributes));
            found.unwrap_or_else(|| panic!("{attributes:?} in {all:?}")).clone()
        };
        let function = (FUNCTION, "demo.work");
        assert_eq!(count(TASK_DURATION, &[function]).count, 2);
        assert_eq!(count(QUEUE_DURATION, &[function]).count, 2);
        let failed = count(TASK_DURATION, &[function, (ERROR_TYPE, "panic")]);
        assert_eq!((failed.count, failed.sum), (2, 0.004));
        let exemplars: Vec<_> = failed.exemplars.iter().flatten().collect();
        assert_eq!((exemplars.len(), exemplars[0].trace_id, exemplars[0].span_id), (1, [1; 16], [2; 8]));
        for state in ["succeeded", "failed", "cancelled"] {
            assert_eq!(count(TASKS_ENDED, &[(STATE, state)]).count, 2);
        }
    }
}
