//! Export of metrics by OTLP over HTTP, where `OTEL_METRICS_EXPORTER` has `otlp`: everything that `GET /metrics` has, at an interval and at the end.
//!
//! | variable | |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_METRICS_*`, else `OTEL_EXPORTER_OTLP_*` | endpoint, headers, compression, timeout, certificates |
//! | `OTEL_METRIC_EXPORT_INTERVAL` | milliseconds between two requests; 60,000 |
//! | `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` | `cumulative`, or `delta` for growing sums and distributions (`lowmemory` is the same here) |
//!
//! With `delta`, the file `metrics.exported` of the place has what the receiver took last, so that no other process sends it again.
//! Source: <https://opentelemetry.io/docs/specs/otel/metrics/sdk_exporters/otlp/>.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use tokio::sync::watch;
use tracer_core::clock::now_unix_nano;
use tracer_otel_env::Reader;
use tracer_otlp::delivery::{Answer, Transport};
use tracer_otlp::{HttpTransport, Settings, SettingsError};

use super::super::App;
use super::Sink;
use super::otlp::{Request, Times, since};

const INTERVAL: Duration = Duration::from_secs(60);
/// Attempts at one request, if the receiver wants it later.
const ATTEMPTS: u32 = 3;
/// Longest pause between two of them.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time that the last request may take, when the process ends.
const LAST_LIMIT: Duration = Duration::from_secs(1);

/// Settings of the export, by the environment.
pub struct ExportSettings {
    otlp: Settings,
    interval: Duration,
    is_delta: bool,
}

impl ExportSettings {
    /// Reads the variables of this process. None unless metrics are to be exported. What is wrong is an error, and a variable that is ignored a
    /// warning.
    pub fn of_environment() -> Result<Option<ExportSettings>, SettingsError> {
        if Reader::of_this_process().is_sdk_disabled() {
            return Ok(None);
        }
        ExportSettings::of(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn of(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<ExportSettings>, SettingsError> {
        let Some(mut otlp) = Settings::of_metrics(&lookup)? else { return Ok(None) };
        let get = |name| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let mut interval = INTERVAL;
        const INTERVAL_VARIABLE: &str = "OTEL_METRIC_EXPORT_INTERVAL";
        if let Some(value) = get(INTERVAL_VARIABLE) {
            match value.parse::<u64>() {
                Ok(ms) if ms > 0 => interval = Duration::from_millis(ms),
                _ => otlp.warnings.push(format!(
                    "`{INTERVAL_VARIABLE}` is `{value}` and is ignored: expected a number of milliseconds"
                )),
            }
        }
        const TEMPORALITY: &str = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
        let preference = get(TEMPORALITY).unwrap_or_default().to_ascii_lowercase();
        let is_delta = matches!(preference.as_str(), "delta" | "lowmemory");
        if !is_delta && !matches!(preference.as_str(), "" | "cumulative") {
            otlp.warnings.push(format!(
                "`{TEMPORALITY}` is `{preference}` and is ignored: expected `cumulative`, `delta` or `lowmemory`"
            ));
        }
        Ok(Some(ExportSettings { otlp, interval, is_delta }))
    }

    /// Returns the variables that are ignored, and why.
    pub fn warnings(&self) -> &[String] {
        &self.otlp.warnings
    }

    /// Returns where metrics go, for people.
    pub(crate) fn endpoint(&self) -> String {
        self.otlp.shown_endpoint()
    }
}

/// Exports until `ending` says that it is enough, and once more then.
pub(in crate::http_api) async fn run(app: Arc<App>, settings: ExportSettings, mut ending: watch::Receiver<bool>) {
    let exporter = match Exporter::new(&app.session_dir, settings) {
        Ok(exporter) => Arc::new(exporter),
        Err(error) => return eprintln!("tracer: metrics are not exported: {error}"),
    };
    let mut failures = 0_u64;
    loop {
        let is_last = tokio::time::timeout(exporter.settings.interval, ending.changed()).await.is_ok();
        let (limit, attempts) = if is_last { (LAST_LIMIT, 1) } else { (exporter.settings.otlp.timeout, ATTEMPTS) };
        match export(&app, &exporter, limit, attempts).await {
            Ok(()) => failures = 0,
            Err(reason) => {
                failures += 1;
                // Said at once, and then ever more rarely: the next request has the same counts.
                if failures.is_power_of_two() {
                    eprintln!("tracer: metrics have not reached {}: {reason}", exporter.settings.endpoint());
                }
            }
        }
        if is_last {
            return;
        }
    }
}

async fn export(app: &App, exporter: &Arc<Exporter>, limit: Duration, attempts: u32) -> Result<(), String> {
    let collected = app.collect().await.map_err(|problem| problem.detail().to_owned())?;
    let now = now_unix_nano();
    let times =
        Times { place: exporter.place_begun, head: now.saturating_sub(collected.status.metrics.uptime_ns), now };
    let mut request = Request::new(times);
    request.own(&collected.kept, (&collected.status, &collected.services), &collected.processes);
    request.add_modules(&collected.modules);
    let request = request.finish(exporter.resource.clone());
    let exporter = Arc::clone(exporter);
    let send = move || exporter.send(request, limit, attempts);
    tokio::task::spawn_blocking(send).await.map_err(|error| error.to_string())?
}

struct Exporter {
    settings: ExportSettings,
    transport: HttpTransport,
    resource: Vec<(String, String)>,
    /// Time since which the files of the place are counted to.
    place_begun: u64,
    /// The file with what was exported last.
    exported: PathBuf,
}

impl Exporter {
    fn new(session_dir: &Path, settings: ExportSettings) -> Result<Exporter, SettingsError> {
        let place = tracer_ipc::session::place_of(session_dir);
        let mut resource = Reader::of_this_process().resource_attributes();
        for (key, value) in
            [("service.name", "tracer".to_owned()), ("service.instance.id", place.display().to_string())]
        {
            if !resource.iter().any(|(known, _)| known == key) {
                resource.push((key.to_owned(), value));
            }
        }
        let begun = fs::metadata(tracer_ipc::http_place::head_metrics_path(place))
            .and_then(|file| file.created().or_else(|_| file.modified()))
            .unwrap_or_else(|_| SystemTime::now());
        let place_begun = begun.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let transport = HttpTransport::new(&settings.otlp)?;
        Ok(Exporter { settings, transport, resource, place_begun, exported: place.join("metrics.exported") })
    }

    fn send(&self, whole: ExportMetricsServiceRequest, limit: Duration, attempts: u32) -> Result<(), String> {
        let mut request = whole.clone();
        if self.settings.is_delta {
            let before = fs::read(&self.exported).unwrap_or_default();
            since(&ExportMetricsServiceRequest::decode(before.as_slice()).unwrap_or_default(), &mut request);
        }
        let message = self.transport.encode_metrics(&request);
        let mut attempt = 1;
        loop {
            match self.transport.send(&message, limit) {
                Answer::Accepted | Answer::Partly { .. } => break,
                Answer::Later { pause, reason } if attempt < attempts => {
                    let wait = pause.unwrap_or(Duration::from_secs(1 << attempt.min(4))).min(LONGEST_PAUSE);
                    let _ = reason;
                    std::thread::sleep(wait);
                    attempt += 1;
                }
                Answer::Later { reason, .. } | Answer::Refused { reason } => return Err(reason),
            }
        }
        if self.settings.is_delta {
            self.remember(&whole).map_err(|error| {
                format!("they were sent, but `{}` cannot be written: {error}", self.exported.display())
            })?;
        }
        Ok(())
    }

    /// Notes what the receiver has. The file is replaced whole.
    fn remember(&self, whole: &ExportMetricsServiceRequest) -> std::io::Result<()> {
        let folder = self.exported.parent().unwrap_or(Path::new("."));
        let mut file = tempfile_in(folder)?;
        file.1.write_all(&whole.encode_to_vec())?;
        fs::rename(&file.0, &self.exported)
    }
}

/// Makes a file of this process beside those of the place, of mode 0600.
fn tempfile_in(folder: &Path) -> std::io::Result<(PathBuf, fs::File)> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(format!("metrics.exported.{}", std::process::id()));
    let file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Option<ExportSettings> {
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        ExportSettings::of(lookup).expect("they can be understood")
    }

    #[test]
    fn metrics_are_exported_if_their_exporter_is_otlp() {
        const EXPORTER: (&str, &str) = ("OTEL_METRICS_EXPORTER", "otlp");
        assert!(settings(&[]).is_none() && settings(&[("OTEL_METRICS_EXPORTER", "none")]).is_none());
        let plain = settings(&[EXPORTER]).expect("they are");
        assert_eq!((plain.endpoint().as_str(), plain.interval), ("http://localhost:4318/v1/metrics", INTERVAL));
        assert!(!plain.is_delta && plain.warnings().is_empty());
        let set = settings(&[
            EXPORTER,
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:1/base"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
        ]);
        let set = set.expect("they are");
        assert_eq!(set.endpoint(), "http://collector:1/base/v1/metrics");
        assert_eq!((set.interval, set.is_delta), (Duration::from_millis(250), true));
        let own = settings(&[EXPORTER, ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://own:2/x")]).expect("they are");
        assert_eq!(own.endpoint(), "http://own:2/x");
        let wrong = [
            EXPORTER,
            ("OTEL_METRIC_EXPORT_INTERVAL", "soon"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
        ];
        let wrong = settings(&wrong).expect("they are");
        assert_eq!(wrong.warnings().len(), 2, "{:?}", wrong.warnings());
        assert_eq!((wrong.interval, wrong.is_delta), (INTERVAL, false));
    }
}
