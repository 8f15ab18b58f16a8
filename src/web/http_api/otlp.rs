//! The receiver of OTLP over HTTP: `POST /v1/traces`, `/v1/logs` and `/v1/metrics`, for the programs that tracer runs and for others of this
//! machine.
//!
//! ```text
//!   body ──▶ size ──▶ gzip ──▶ protobuf or JSON ──▶ one line of OTLP JSON ──▶ <spans>/<pid>.received.jsonl ──▶ 200
//! ```
//!
//! A request is one line, appended in one write before it is acknowledged: it is there whole or not at all, so a sender that tries again after a
//! failure writes nothing twice. Ids, texts and numbers are checked; a span that has no ids, say, is rejected alone, and the answer counts it.
//!
//! Whoever may send can do nothing else: the token in `otlp.token` is taken here and nowhere else.
//!
//! Source: <https://opentelemetry.io/docs/specs/otlp/#otlphttp>.

mod answer;
mod encode;
mod json;
mod line;
mod protobuf;
mod schema;

#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub(super) use answer::Form;
use flate2::read::MultiGzDecoder;
use http::request::Parts;
use http::{HeaderMap, header};
use hyper::body::{Bytes, Incoming};
use line::Decoded;
use tokio::sync::Semaphore;
use tracer_core::lock::lock;
use tracer_core::problem::{self, Problem};
use tracer_host::hook::Recorder;
use tracer_ipc::http_place as place;
use tracer_span_file::{Rotation, SpanFile};

use super::body::read_body;
use super::limits::{BODIES, HELD_TIME, UNPACKED_BYTES};
use super::metrics::received::ReceivedMetrics;

/// Signal of telemetry that a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Logs,
    Metrics,
}

impl Signal {
    /// Returns the extension of the names of its files.
    fn extension(self) -> &'static str {
        match self {
            Signal::Traces => "received.jsonl",
            Signal::Logs => "logs.jsonl",
            Signal::Metrics => "metrics.jsonl",
        }
    }

    /// Returns its name in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Logs => "logs",
            Signal::Metrics => "metrics",
        }
    }

    fn schema(self) -> &'static schema::Message {
        match self {
            Signal::Traces => &schema::TRACES,
            Signal::Logs => &schema::LOGS,
            Signal::Metrics => &schema::METRICS,
        }
    }
}

/// The files that what is received goes to, each opened at the first line for it.
pub(super) struct Receiver {
    /// Token of senders.
    pub(super) token: String,
    /// The folder of the span files.
    folder: PathBuf,
    files: [Mutex<Option<SpanFile>>; 3],
    /// The process's tracing, by which spans go on to exporters and additional hooks.
    recorder: Option<&'static Recorder>,
    /// Bodies that may be in memory.
    bodies: Arc<Semaphore>,
    /// Series of metrics for `GET /metrics`.
    pub(super) metrics: Mutex<ReceivedMetrics>,
}

/// Outcome of a request that was taken.
pub(super) struct Taken {
    pub(super) decoded: Decoded,
    /// Bytes that were appended to the file.
    pub(super) written: u64,
}

impl Receiver {
    pub(super) fn open(session_dir: &Path, folder: &Path, recorder: Option<&'static Recorder>) -> io::Result<Receiver> {
        Ok(Receiver {
            token: place::read_otlp_token(session_dir)?,
            folder: folder.into(),
            files: Default::default(),
            recorder,
            bodies: Arc::new(Semaphore::new(BODIES)),
            metrics: Mutex::default(),
        })
    }

    /// Takes a request.
    pub(super) async fn receive(
        self: &Arc<Self>,
        signal: Signal,
        form: Form,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Taken, Problem> {
        let is_packed = is_packed(&parts.headers)?;
        let place = tokio::time::timeout(HELD_TIME, Arc::clone(&self.bodies).acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let text = format!("{BODIES} bodies are being received already");
            return Err(Problem::new(problem::TOO_MANY, text).header(header::RETRY_AFTER, "1"));
        };
        let body = read_body(body).await?;
        let receiver = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            // The body is in memory for as long as this takes, also when its sender has gone.
            let _place = place;
            receiver.write(signal, form, is_packed, &body)
        });
        written.await.map_err(|error| Problem::new(problem::UNAVAILABLE, error.to_string()))?
    }

    fn write(&self, signal: Signal, form: Form, is_packed: bool, body: &Bytes) -> Result<Taken, Problem> {
        let unpacked = if is_packed { Some(unpack(body)?) } else { None };
        let bytes = unpacked.as_deref().unwrap_or(body);
        let decoded = match form {
            Form::Protobuf => protobuf::decode(signal.schema(), bytes),
            Form::Json => json::decode(signal.schema(), bytes),
        };
        let mut decoded =
            decoded.map_err(|error| Problem::new(problem::INVALID, format!("the body cannot be read: {error}")))?;
        if !decoded.line.is_empty() {
            // Room is made by people, which takes longer than a moment.
            let later = |error| Problem::new(problem::UNAVAILABLE, error).header(header::RETRY_AFTER, "5");
            self.append(signal, &decoded.line).map_err(later)?;
            self.hand_on(signal, &decoded).map_err(later)?;
            if signal == Signal::Metrics {
                lock(&self.metrics).take_in(&decoded.line, Instant::now());
            }
        }
        let written = decoded.line.len() as u64;
        decoded.line = Vec::new();
        Ok(Taken { decoded, written })
    }

    /// Leaves spans to the exporters and additional hooks of the session, if it has any.
    fn hand_on(&self, signal: Signal, decoded: &Decoded) -> Result<(), String> {
        let Some(recorder) = self.recorder.filter(|recorder| signal == Signal::Traces && recorder.hands_on()) else {
            return Ok(());
        };
        let cannot = |error: &dyn std::fmt::Display| format!("spans cannot be handed to the session's hooks: {error}");
        let request = encode::encode(signal.schema(), &decoded.line).map_err(|error| cannot(&error))?;
        recorder.hand_on(&request, decoded.accepted).map_err(|error| cannot(&error))
    }

    fn append(&self, signal: Signal, line: &[u8]) -> Result<(), String> {
        let mut file = lock(&self.files[signal as usize]);
        let file = match &mut *file {
            Some(file) => file,
            none => {
                let pid = std::process::id();
                let opened = SpanFile::try_with_extension(&self.folder, pid, signal.extension(), Rotation::from_env());
                none.insert(opened.map_err(|error| error.to_string())?)
            }
        };
        file.append(line).map_err(|error| error.to_string())
    }
}

/// Returns the line that is appended for a body of OTLP, sent to `path`, in JSON or else in protobuf; it is empty if nothing is accepted. On failure: what is
/// wrong with the body.
pub fn received_line(path: &str, is_json: bool, body: &[u8]) -> Result<Vec<u8>, String> {
    let signal = match path {
        "/v1/traces" => Signal::Traces,
        "/v1/logs" => Signal::Logs,
        "/v1/metrics" => Signal::Metrics,
        _ => return Err(format!("`{path}` receives no OTLP")),
    };
    let decoded = if is_json { json::decode(signal.schema(), body) } else { protobuf::decode(signal.schema(), body) };
    decoded.map(|decoded| decoded.line).map_err(|malformed| malformed.0)
}

/// Returns whether the body is compressed with gzip; what else it may be is refused.
fn is_packed(headers: &HeaderMap) -> Result<bool, Problem> {
    let mut is_packed = false;
    for encoding in headers.get_all(header::CONTENT_ENCODING) {
        match encoding.to_str().unwrap_or("of other bytes").trim() {
            "" => {}
            encoding if encoding.eq_ignore_ascii_case("identity") => {}
            encoding if encoding.eq_ignore_ascii_case("gzip") && !is_packed => is_packed = true,
            found => {
                let text = format!(
                    "`Content-Encoding` is `{}`, but a body is taken with gzip or as it is",
                    found.escape_debug()
                );
                return Err(
                    Problem::new(problem::WRONG_OTLP_TYPE, text).header(header::ACCEPT_ENCODING, "gzip, identity")
                );
            }
        }
    }
    Ok(is_packed)
}

/// Unpacks what gzip has packed, as long as it is not more than it may be.
fn unpack(body: &[u8]) -> Result<Vec<u8>, Problem> {
    let mut unpacked = Vec::new();
    let read = MultiGzDecoder::new(body).take(UNPACKED_BYTES as u64 + 1).read_to_end(&mut unpacked);
    read.map_err(|error| Problem::new(problem::INVALID, format!("the body is no gzip, or damaged: {error}")))?;
    if unpacked.len() > UNPACKED_BYTES {
        let text = format!("the body has more than {UNPACKED_BYTES} bytes when it is unpacked");
        return Err(Problem::new(problem::TOO_LARGE, text).hint("send smaller batches"));
    }
    Ok(unpacked)
}
