//! Metrics of the calls of a process, in a file that outlives it: the first of the folder that no living process or thread of a proxy has.

use std::path::Path;

use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_core::metric_names::{CALL_DURATION, ERROR_TYPE, SERVE_QUEUE_DURATION, SERVE_RETRIES, SERVE_SHED, SERVICE};
use tracer_core::propagation::FLAG_SAMPLED;
use tracer_core::request_names as names;
use tracer_ipc::metrics::{Exemplar, SERVING_FOLDER, SeriesFile, SeriesIndex};

use super::call::{Call, Target};

/// Series of a target that are remembered; further ones are looked up.
const REMEMBERED: usize = 64;

/// A series of a target: of which metric, which method, and what became of the call.
pub(super) struct Remembered {
    metric: usize,
    method: String,
    error_type: String,
    series: SeriesIndex,
}

/// The metrics of a process's calls. Without a file nothing is counted.
pub(super) struct Figures {
    file: Option<SeriesFile>,
}

impl Figures {
    /// Takes a file of the place.
    pub(super) fn open(place: &Path) -> Figures {
        // A program's own output is not tracer's to write to, so nobody hears of a failure.
        Figures { file: SeriesFile::open_free(&place.join(SERVING_FOLDER)).ok() }
    }

    /// Counts a call that has ended, of which the span is still open.
    pub(super) fn count_end(&mut self, call: &Call, outcome: &'static str) {
        let (Some(target), Some(_)) = (&call.target, &self.file) else { return };
        let code = call.status.to_string();
        let error_type = match (outcome, call.status) {
            (names::OUTCOME_CLIENT_GONE, _) => names::OUTCOME_CLIENT_GONE,
            ("", 500..) => &code,
            (outcome, _) => outcome,
        };
        let series = self.series(target, CALL_DURATION, call.method(), error_type);
        let Some(file) = &self.file else { return };
        let now = now_unix_nano();
        let seconds = now.saturating_sub(call.begun_unix_nano) as f64 / 1e9;
        let bucket = file.observe(series, seconds);
        if let Some(context) = call.span_context().filter(|context| context.parent.flags & FLAG_SAMPLED != 0)
            && file.wants_exemplar(series, bucket, now)
        {
            let (trace_id, span_id) = (context.parent.trace_id, context.parent.span_id);
            file.set_exemplar(series, bucket, &Exemplar { value: seconds, unix_nano: now, trace_id, span_id });
        }
        if matches!(outcome, names::OUTCOME_SHED | names::OUTCOME_UNAVAILABLE) {
            self.count(target, SERVE_SHED, outcome);
        }
    }

    /// Counts an attempt after which another one follows.
    pub(super) fn count_retry(&mut self, call: &Call, outcome: &'static str) {
        if let Some(target) = &call.target {
            self.count(target, SERVE_RETRIES, outcome);
        }
    }

    fn count(&mut self, target: &Target, metric: usize, outcome: &str) {
        if self.file.is_some() {
            let series = self.series(target, metric, "", outcome);
            self.file.iter().for_each(|file| file.count(series, 1));
        }
    }

    /// Counts how long a call has waited for a place at a replica.
    pub(super) fn count_wait(&mut self, target: &Target, waited_ns: u64) {
        if self.file.is_some() {
            let series = self.series(target, SERVE_QUEUE_DURATION, "", "");
            self.file.iter().for_each(|file| {
                file.observe(series, waited_ns as f64 / 1e9);
            });
        }
    }

    /// Returns a series. Only with a file.
    fn series(&mut self, target: &Target, metric: usize, method: &str, error_type: &str) -> SeriesIndex {
        let mut remembered = lock(&target.series);
        let is_it =
            |known: &&Remembered| known.metric == metric && known.method == method && known.error_type == error_type;
        if let Some(known) = remembered.iter().find(is_it) {
            return known.series;
        }
        let route = &target.route;
        let mut attributes: Vec<(&str, &str)> =
            vec![(SERVICE, &route.service), (names::APP, &route.application), (names::DEPLOYMENT, &route.deployment)];
        if !method.is_empty() {
            attributes.push((names::CALL_METHOD, method));
        }
        if !error_type.is_empty() {
            attributes.push((if metric == CALL_DURATION { ERROR_TYPE } else { names::OUTCOME }, error_type));
        }
        let file = self.file.as_mut().expect("whoever asks has looked whether there is one");
        let series = file.series(metric, &attributes);
        if !file.take_refused() && remembered.len() < REMEMBERED {
            let (method, error_type) = (method.to_owned(), error_type.to_owned());
            remembered.push(Remembered { metric, method, error_type, series });
        }
        series
    }
}
