//! Counts of what came by OTLP, for reports: read from the file in which the process of the HTTP API counts.

use tracer_core::metric_names::{OTLP_ITEMS, OTLP_REQUESTS, OTLP_WRITTEN, SIGNAL};
use tracer_core::request_names::OUTCOME;
use tracer_ipc::http_place as place;
use tracer_ipc::metrics::{Series, read};
use tracer_ipc::protocol::{OtlpCounts, StatusReport};

/// Outcome of a request that was answered with 200.
pub(super) const OTLP_TAKEN: &str = "accepted";
/// Outcome of a request of which nothing was taken.
pub(super) const OTLP_REFUSED: &str = "refused";
/// Outcome of what is in a file.
pub(super) const OTLP_WRITTEN_ITEM: &str = "written";
/// Outcome of what was refused alone, in a request that was taken.
pub(super) const OTLP_REJECTED: &str = "rejected";

/// Adds the counts to the report of a head that receives OTLP. Where they cannot be read, they lack.
pub fn add(status: &mut StatusReport) {
    let path = place::request_metrics_path(&status.session_dir);
    if let Some(http) = status.http.as_mut().filter(|http| http.receives_otlp) {
        http.otlp = read(&path).ok().map(|series| counts(&series));
    }
}

fn counts(series: &[Series]) -> OtlpCounts {
    let sum = |metric: usize, wanted: &[(&str, &str)]| {
        let has = |series: &&Series| {
            series.metric == metric
                && wanted.iter().all(|(key, value)| series.attributes.iter().any(|(k, v)| k == key && v == value))
        };
        series.iter().filter(has).map(|series| series.count).sum::<u64>()
    };
    OtlpCounts {
        accepted_requests: sum(OTLP_REQUESTS, &[(OUTCOME, OTLP_TAKEN)]),
        refused_requests: sum(OTLP_REQUESTS, &[(OUTCOME, OTLP_REFUSED)]),
        spans: sum(OTLP_ITEMS, &[(SIGNAL, "traces"), (OUTCOME, OTLP_WRITTEN_ITEM)]),
        log_records: sum(OTLP_ITEMS, &[(SIGNAL, "logs"), (OUTCOME, OTLP_WRITTEN_ITEM)]),
        metric_points: sum(OTLP_ITEMS, &[(SIGNAL, "metrics"), (OUTCOME, OTLP_WRITTEN_ITEM)]),
        rejected: sum(OTLP_ITEMS, &[(OUTCOME, OTLP_REJECTED)]),
        written_bytes: sum(OTLP_WRITTEN, &[]),
    }
}
