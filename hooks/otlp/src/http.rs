//! Sending over HTTP: protobuf in the body of a POST, after "OTLP/HTTP" of the OTLP specification.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;
use ureq::http::{HeaderMap, StatusCode, header};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::delivery::{Answer, LogTransport, Transport};
use crate::settings::{Compression, Settings, SettingsError};

/// No answer is read further.
const ANSWER_LIMIT: u64 = 1 << 20;
/// Limit on the bytes of an answer that are shown to people.
const SHOWN_LIMIT: usize = 300;
const CONTENT_TYPE: &str = "application/x-protobuf";
const USER_AGENT: &str = concat!("OTel-OTLP-Exporter-Rust/", env!("CARGO_PKG_VERSION"), " tracer");

/// OTLP/HTTP to one URL.
pub struct HttpTransport {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
    compression: Compression,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and the URL may hold secrets.
        f.debug_struct("HttpTransport").field("compression", &self.compression).finish_non_exhaustive()
    }
}

impl HttpTransport {
    /// Makes the client. Fails if a file of the settings cannot be used.
    pub fn new(settings: &Settings) -> Result<HttpTransport, SettingsError> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A POST must not become a GET elsewhere.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(USER_AGENT)
            .tls_config(tls(settings)?);
        Ok(HttpTransport {
            agent: config.build().new_agent(),
            url: settings.endpoint.clone(),
            headers: settings.headers.clone(),
            compression: settings.compression,
        })
    }
}

impl HttpTransport {
    fn pack(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self.compression {
            Compression::None => bytes,
            Compression::Gzip => {
                let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), flate2::Compression::fast());
                let written = encoder.write_all(&bytes).and_then(|()| encoder.finish());
                written.expect("a vector takes everything")
            }
        }
    }
}

impl Transport for HttpTransport {
    type Message = Vec<u8>;

    fn encode(&self, request: ExportTraceServiceRequest) -> Vec<u8> {
        self.pack(request.encode_to_vec())
    }

    fn send(&self, message: &Vec<u8>, timeout: Duration) -> Answer {
        let mut request = self.agent.post(&self.url).config().timeout_global(Some(timeout)).build();
        request = request.header(header::CONTENT_TYPE, CONTENT_TYPE);
        if self.compression == Compression::Gzip {
            request = request.header(header::CONTENT_ENCODING, "gzip");
        }
        for (key, value) in &self.headers {
            request = request.header(key, value);
        }
        match request.send(message.as_slice()) {
            Ok(mut response) => answer_of(response.status(), response.headers().clone(), response.body_mut()),
            Err(error) => failure(&error),
        }
    }
}

impl HttpTransport {
    /// Makes a request with metrics ready, for [`send`](Transport::send).
    pub fn encode_metrics(&self, request: &ExportMetricsServiceRequest) -> Vec<u8> {
        self.pack(request.encode_to_vec())
    }
}

impl LogTransport for HttpTransport {
    fn encode_logs(&self, request: ExportLogsServiceRequest) -> Vec<u8> {
        self.pack(request.encode_to_vec())
    }
}

// The answers to all signals have the same form.
fn answer_of(status: StatusCode, headers: HeaderMap, body: &mut Body) -> Answer {
    // The status says it all; what the body adds is for people, so one that cannot be read counts as empty.
    let body = body.with_config().limit(ANSWER_LIMIT).read_to_vec().unwrap_or_default();
    if status.is_success() {
        let said = ExportTraceServiceResponse::decode(body.as_slice()).unwrap_or_default().partial_success;
        return match said {
            Some(partial) if partial.rejected_spans > 0 => {
                Answer::Partly { rejected: partial.rejected_spans.unsigned_abs(), reason: partial.error_message }
            }
            _ => Answer::Accepted,
        };
    }
    let said = text_of(&headers, &body);
    let reason = if said.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {said}") };
    match status.as_u16() {
        429 | 502 | 503 | 504 => Answer::Later { pause: retry_after(&headers, SystemTime::now()), reason },
        _ => Answer::Refused { reason },
    }
}

/// `google.rpc.Status`, which the body of a failure holds.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
}

fn text_of(headers: &HeaderMap, body: &[u8]) -> String {
    let is_protobuf =
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(CONTENT_TYPE.as_bytes()));
    let text = match RpcStatus::decode(body) {
        Ok(status) if is_protobuf => status.message,
        _ => String::from_utf8_lossy(body).into_owned(),
    };
    let shown = text.split_whitespace().collect::<Vec<_>>().join(" ");
    shown.chars().filter(|character| !character.is_control()).take(SHOWN_LIMIT).collect()
}

/// `Retry-After`: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let longest = Duration::from_secs(24 * 60 * 60);
    match value.parse::<u32>() {
        Ok(seconds) => Some(Duration::from_secs(seconds.into()).min(longest)),
        Err(_) => {
            let date = httpdate::parse_http_date(value).ok()?;
            Some(date.duration_since(now).unwrap_or_default().min(longest))
        }
    }
}

fn failure(error: &ureq::Error) -> Answer {
    let reason = error.to_string();
    match error {
        ureq::Error::Timeout(_) => Answer::Later { pause: None, reason: "it did not answer in time".to_owned() },
        // Among them what the other side says about a certificate.
        ureq::Error::Io(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => {
            Answer::Later { pause: None, reason }
        }
        _ => Answer::Refused { reason },
    }
}

fn tls(settings: &Settings) -> Result<TlsConfig, SettingsError> {
    let mut builder = TlsConfig::builder();
    if let Some(file) = &settings.certificate {
        builder = builder.root_certs(RootCerts::new_with_certs(&certificates(file, "CERTIFICATE")?));
    }
    if let Some((certificate, key)) = &settings.client {
        let chain = certificates(certificate, "CLIENT_CERTIFICATE")?;
        builder = builder.client_cert(Some(ClientCert::new_with_certs(&chain, private_key(key)?)));
    }
    Ok(builder.build())
}

fn certificates(file: &Path, what: &str) -> Result<Vec<Certificate<'static>>, SettingsError> {
    let pem = read(file, what)?;
    let found = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(unusable(file, what, "holds no certificate in PEM")) } else { Ok(found) }
}

fn private_key(file: &Path) -> Result<PrivateKey<'static>, SettingsError> {
    let pem = read(file, "CLIENT_KEY")?;
    PrivateKey::from_pem(&pem).map_err(|_| unusable(file, "CLIENT_KEY", "holds no private key in PEM"))
}

/// Returns the file of the authorities to trust, for another client than ureq. It holds a certificate.
pub fn authorities_pem(file: &Path) -> Result<Vec<u8>, SettingsError> {
    certificates(file, "CERTIFICATE")?;
    read(file, "CERTIFICATE")
}

/// Returns the files of the client's certificates and key, for another client than ureq. They hold that.
pub fn client_pem(certificate: &Path, key: &Path) -> Result<[Vec<u8>; 2], SettingsError> {
    certificates(certificate, "CLIENT_CERTIFICATE")?;
    private_key(key)?;
    Ok([read(certificate, "CLIENT_CERTIFICATE")?, read(key, "CLIENT_KEY")?])
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(file).map_err(|error| unusable(file, what, &format!("cannot be read: {error}")))
}

fn unusable(file: &Path, what: &str, reason: &str) -> SettingsError {
    SettingsError::new(format!("the file `{}` of `OTEL_EXPORTER_OTLP_{what}` {reason}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(retry_after: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, retry_after.parse().unwrap());
        headers
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, expected) in [
            ("7", Some(7)),
            ("0", Some(0)),
            ("4000000000", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            assert_eq!(retry_after(&headers(value), now), expected.map(Duration::from_secs), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn what_a_receiver_says_is_shortened_and_has_no_control_characters() {
        let mut headers = HeaderMap::new();
        assert_eq!(text_of(&headers, b" <p>\n\x1b[31mno </p>"), "<p> [31mno </p>");
        assert_eq!(text_of(&headers, &[b'x'; 1000]).len(), SHOWN_LIMIT);
        let status = RpcStatus { message: "no such key".into() }.encode_to_vec();
        headers.insert(header::CONTENT_TYPE, CONTENT_TYPE.parse().unwrap());
        assert_eq!(text_of(&headers, &status), "no such key");
    }
}
