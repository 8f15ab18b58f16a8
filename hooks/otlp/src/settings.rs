//! Settings of the exporter from the environment, after the OpenTelemetry specification: "OpenTelemetry Protocol Exporter", and
//! "Batch Span Processor" of the SDK's environment variables.
//!
//! A variable that is empty counts as unset. Of `OTEL_EXPORTER_OTLP_TRACES_…` and `OTEL_EXPORTER_OTLP_…` the first counts. A value
//! that cannot be understood is ignored with a [warning](Settings::warnings), as the specification has it; but what would send
//! spans elsewhere, or less safely, than whoever set it wanted is an error.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tracer_otel_env::{LogLevel, Reader};
use ureq::http::Uri;
use ureq::http::header::{HeaderName, HeaderValue};

/// Transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Protobuf in the body of a POST: the hook `otlp:setup_tracing`.
    Http,
    /// gRPC: the hook `otlp_grpc:setup_tracing`.
    Grpc,
}

/// Compression of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// With gzip.
    Gzip,
}

/// The exporter's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The URL to send to: for HTTP with its path, for gRPC of the server.
    pub endpoint: String,
    /// Sent with each request; names in lower case.
    pub headers: Vec<(String, String)>,
    /// Compression of requests.
    pub compression: Compression,
    /// Limit of time for the delivery of one batch, with all its tries.
    pub timeout: Duration,
    /// A file with the certificates, in PEM, that are trusted instead of those of the public authorities.
    pub certificate: Option<PathBuf>,
    /// Files with the client's certificates and key, in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Values that were ignored, for people to read.
    pub warnings: Vec<String>,
}

/// A setting with which spans would not go where they should.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingsError {
    message: String,
}

impl SettingsError {
    /// Makes an error that says `message`.
    pub fn new(message: impl Into<String>) -> SettingsError {
        SettingsError { message: message.into() }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SettingsError {}

/// Default limit of time, from the specification.
const TIMEOUT: Duration = Duration::from_secs(10);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// For "no limit", which is what 0 means. Clocks can add it.
const NO_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The variables of the batch processor, which the SDK reads and silently ignores when they are not numbers.
const BATCH_VARIABLES: [&str; 3] =
    ["OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"];

impl Settings {
    /// Reads the variables of this process.
    pub fn from_env(protocol: Protocol) -> Result<Settings, SettingsError> {
        Settings::from_variables(protocol, |name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// Reads the variables that `lookup` knows.
    pub fn from_variables(
        protocol: Protocol,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, SettingsError> {
        let mut variables = Variables { lookup: &lookup, warnings: Vec::new() };
        variables.check_protocol(protocol)?;
        let endpoint = match protocol {
            Protocol::Http => variables.http_endpoint()?,
            Protocol::Grpc => variables.grpc_endpoint()?,
        };
        let headers = variables.headers();
        let compression = variables.of_exporter("COMPRESSION", |value| match value {
            "gzip" => Ok(Compression::Gzip),
            "none" => Ok(Compression::None),
            _ => Err("expected `gzip` or `none`"),
        });
        let timeout = variables.of_exporter("TIMEOUT", milliseconds).map_or(TIMEOUT, |(_, value)| value);
        let export_timeout = variables.parse("OTEL_BSP_EXPORT_TIMEOUT", milliseconds).unwrap_or(EXPORT_TIMEOUT);
        for name in BATCH_VARIABLES {
            variables.parse(name, milliseconds);
        }
        let client = variables.client()?;
        let certificate = variables.first("CERTIFICATE").map(|(_, file)| file.into());
        Ok(Settings {
            endpoint,
            headers,
            compression: compression.map_or(Compression::default(), |(_, value)| value),
            timeout: timeout.min(export_timeout),
            certificate,
            client,
            warnings: variables.warnings,
        })
    }

    /// Reads the variables for log records; none unless `OTEL_LOGS_EXPORTER` has `otlp`. They are those for traces with `LOGS` in
    /// place of `TRACES`, and over HTTP the path is `/v1/logs`.
    pub fn of_logs(
        protocol: Protocol,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Settings>, SettingsError> {
        Settings::of_signal(protocol, "LOGS", "/v1/logs", lookup)
    }

    /// Reads the variables for metrics, over HTTP; none unless `OTEL_METRICS_EXPORTER` has `otlp`. They are those for traces with `METRICS` in
    /// place of `TRACES`, and the path is `/v1/metrics`.
    pub fn of_metrics(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, SettingsError> {
        Settings::of_signal(Protocol::Http, "METRICS", "/v1/metrics", lookup)
    }

    fn of_signal(
        protocol: Protocol,
        signal: &str,
        path: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Settings>, SettingsError> {
        let exporters = lookup(&format!("OTEL_{signal}_EXPORTER")).unwrap_or_default();
        if !exporters.split(',').any(|exporter| exporter.trim() == "otlp") {
            return Ok(None);
        }
        let of_signal = |text: &str| text.replace("_TRACES_", &format!("_{signal}_"));
        let mut settings = Settings::from_variables(protocol, |name| lookup(&of_signal(name)))
            .map_err(|error| SettingsError::new(of_signal(&error.message)))?;
        let own = lookup(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
        let has_own = own.is_some_and(|url| !url.trim().is_empty());
        if let (false, Some(at)) = (has_own, settings.endpoint.rfind("/v1/traces")) {
            settings.endpoint.replace_range(at..at + "/v1/traces".len(), path);
        }
        settings.warnings.iter_mut().for_each(|warning| *warning = of_signal(warning));
        Ok(Some(settings))
    }

    /// Says the warnings on standard error, unless `OTEL_LOG_LEVEL` wants to hear nothing of them.
    pub fn warn(&self) {
        if Reader::of_this_process().log_level() < LogLevel::Warn {
            return;
        }
        for warning in &self.warnings {
            eprintln!("tracer: {warning}");
        }
    }

    /// Returns the endpoint for people to read: without a password or a token in it.
    pub fn shown_endpoint(&self) -> String {
        let without_query = self.endpoint.split(['?', '#']).next().unwrap_or_default();
        match without_query.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let host = authority.rsplit('@').next().unwrap_or(authority);
                format!("{scheme}://{host}{path}")
            }
            None => without_query.to_owned(),
        }
    }
}

struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// Returns the variable for traces, else the one for all signals, with its name.
    fn first(&self, what: &str) -> Option<(String, String)> {
        names(what).into_iter().find_map(|name| self.get(&name).map(|value| (name, value)))
    }

    fn parse<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, &'static str>) -> Option<T> {
        let value = self.get(name)?;
        match parse(&value) {
            Ok(parsed) => Some(parsed),
            Err(reason) => {
                self.warnings.push(format!("`{name}` is `{value}` and is ignored: {reason}"));
                None
            }
        }
    }

    /// Returns the first of the exporter's two variables that can be understood, with its name.
    fn of_exporter<T>(&mut self, what: &str, parse: impl Fn(&str) -> Result<T, &'static str>) -> Option<(String, T)> {
        names(what).into_iter().find_map(|name| self.parse(&name, &parse).map(|value| (name, value)))
    }

    fn check_protocol(&mut self, protocol: Protocol) -> Result<(), SettingsError> {
        let named = self.of_exporter("PROTOCOL", |value| match value {
            "http/protobuf" => Ok("http/protobuf"),
            "http/json" => Ok("http/json"),
            "grpc" => Ok("grpc"),
            _ => Err("expected `http/protobuf` or `grpc`"),
        });
        match (named, protocol) {
            (None, _) | (Some((_, "http/protobuf")), Protocol::Http) | (Some((_, "grpc")), Protocol::Grpc) => Ok(()),
            (Some((name, "grpc")), _) => Err(SettingsError::new(format!(
                "`{name}` is `grpc`, but this hook speaks HTTP; use the hook `otlp_grpc:setup_tracing`, or `http/protobuf`"
            ))),
            (Some((name, "http/protobuf")), _) => Err(SettingsError::new(format!(
                "`{name}` is `http/protobuf`, but this hook speaks gRPC; use the hook `otlp:setup_tracing`, or `grpc`"
            ))),
            (Some((name, other)), _) => Err(SettingsError::new(format!(
                "`{name}` is `{other}`, which no hook of tracer speaks; use `http/protobuf`, which the same servers take"
            ))),
        }
    }

    fn http_endpoint(&self) -> Result<String, SettingsError> {
        if let Some((name, url)) = self.named("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            check_url(&name, &url)?;
            return Ok(url);
        }
        let (name, url) = self
            .named("OTEL_EXPORTER_OTLP_ENDPOINT")
            .unwrap_or_else(|| (String::new(), "http://localhost:4318".to_owned()));
        check_url(&name, &url)?;
        // Below the path that is there, before the query.
        let (path, query) = url.split_at(url.find('?').unwrap_or(url.len()));
        Ok(format!("{}/v1/traces{query}", path.trim_end_matches('/')))
    }

    fn grpc_endpoint(&mut self) -> Result<String, SettingsError> {
        let found =
            self.named("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| self.named("OTEL_EXPORTER_OTLP_ENDPOINT"));
        // Whether there is TLS, where the endpoint does not say it.
        let insecure = self.of_exporter("INSECURE", |value| match value {
            _ if value.eq_ignore_ascii_case("true") => Ok(true),
            _ if value.eq_ignore_ascii_case("false") => Ok(false),
            _ => Err("expected `true` or `false`"),
        });
        let is_insecure = insecure.is_some_and(|(_, is_insecure)| is_insecure);
        let (name, url) = found.unwrap_or_else(|| (String::new(), "http://localhost:4317".to_owned()));
        let url = match url.contains("://") {
            true => url,
            false if is_insecure => format!("http://{url}"),
            false => format!("https://{url}"),
        };
        check_url(&name, &url)?;
        Ok(url)
    }

    fn named(&self, name: &str) -> Option<(String, String)> {
        self.get(name).map(|value| (name.to_owned(), value))
    }

    /// `key=value,key=value` with percent-encoded values. An entry that no header can be made of is left out.
    fn headers(&mut self) -> Vec<(String, String)> {
        let Some((name, list)) = self.first("HEADERS") else { return Vec::new() };
        let mut headers: Vec<(String, String)> = Vec::new();
        for (index, entry) in list.split(',').map(str::trim).enumerate().filter(|(_, entry)| !entry.is_empty()) {
            match header(entry) {
                Ok((key, value)) => {
                    headers.retain(|(known, _)| *known != key);
                    headers.push((key, value));
                }
                // Not the entry itself: it may be a secret.
                Err(reason) => {
                    self.warnings.push(format!("entry {} of `{name}` is ignored: {reason}", index + 1));
                }
            }
        }
        headers
    }

    fn client(&self) -> Result<Option<(PathBuf, PathBuf)>, SettingsError> {
        match (self.first("CLIENT_CERTIFICATE"), self.first("CLIENT_KEY")) {
            (None, None) => Ok(None),
            (Some((_, certificate)), Some((_, key))) => Ok(Some((certificate.into(), key.into()))),
            (Some((name, _)), None) => Err(SettingsError::new(format!(
                "`{name}` names a certificate, but `{}` is not set; both or none",
                name.replace("CLIENT_CERTIFICATE", "CLIENT_KEY")
            ))),
            (None, Some((name, _))) => Err(SettingsError::new(format!(
                "`{name}` names a key, but `{}` is not set; both or none",
                name.replace("CLIENT_KEY", "CLIENT_CERTIFICATE")
            ))),
        }
    }
}

fn names(what: &str) -> [String; 2] {
    [format!("OTEL_EXPORTER_OTLP_TRACES_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")]
}

fn milliseconds(value: &str) -> Result<Duration, &'static str> {
    match value.parse::<u32>() {
        Ok(0) => Ok(NO_LIMIT),
        Ok(number) => Ok(Duration::from_millis(number.into()).min(NO_LIMIT)),
        Err(_) => Err("expected a whole number"),
    }
}

fn check_url(name: &str, url: &str) -> Result<(), SettingsError> {
    let is_url = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if is_url {
        return Ok(());
    }
    Err(SettingsError::new(format!("`{name}` is `{url}`, expected a URL such as `http://localhost:4318`")))
}

fn header(entry: &str) -> Result<(String, String), &'static str> {
    let (key, value) = entry.split_once('=').ok_or("expected `key=value`")?;
    let key = HeaderName::from_bytes(key.trim().as_bytes()).map_err(|_| "its key cannot be the name of a header")?;
    let value = percent_decode_str(value.trim())
        .decode_utf8()
        .map_err(|_| "its value is not UTF-8 when its percent signs are decoded")?;
    HeaderValue::from_str(&value).map_err(|_| "its value cannot be that of a header")?;
    Ok((key.as_str().to_owned(), value.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(protocol: Protocol, variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_variables(protocol, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[track_caller]
    fn http(variables: &[(&str, &str)]) -> Settings {
        settings(Protocol::Http, variables).unwrap()
    }

    #[test]
    fn log_records_are_sent_when_it_is_asked_for_and_by_variables_of_their_own() {
        let of_logs = |variables: &[(&str, &str)]| {
            Settings::of_logs(Protocol::Http, |name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of_logs(&[]), Ok(None));
        assert_eq!(of_logs(&[("OTEL_LOGS_EXPORTER", "none")]), Ok(None));
        let asked = ("OTEL_LOGS_EXPORTER", "console, otlp");
        let endpoint = |variables: &[(&str, &str)]| of_logs(variables).unwrap().unwrap().endpoint;
        assert_eq!(endpoint(&[asked]), "http://localhost:4318/v1/logs");
        let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a/x?k=/v1");
        assert_eq!(endpoint(&[asked, general]), "http://a/x/v1/logs?k=/v1");
        let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/");
        let own = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://l/v1/traces");
        assert_eq!(endpoint(&[asked, general, of_traces, own]), "http://l/v1/traces");
        let headers = [asked, ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "a=1"), ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2")];
        assert_eq!(of_logs(&headers).unwrap().unwrap().headers, [("a".to_owned(), "1".to_owned())]);
        let over_grpc = Settings::of_logs(Protocol::Grpc, |name| (name == asked.0).then(|| asked.1.to_owned()));
        assert_eq!(over_grpc.unwrap().unwrap().endpoint, "http://localhost:4317");
        let error = of_logs(&[asked, ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "nowhere")]).unwrap_err();
        assert!(error.message.starts_with("`OTEL_EXPORTER_OTLP_LOGS_ENDPOINT` is `nowhere`"), "{error}");
    }

    #[test]
    fn without_variables_the_defaults_of_the_specification_hold() {
        let expected = Settings {
            endpoint: "http://localhost:4318/v1/traces".into(),
            headers: vec![],
            compression: Compression::None,
            timeout: Duration::from_secs(10),
            certificate: None,
            client: None,
            warnings: vec![],
        };
        assert_eq!(http(&[]), expected);
        // Empty is unset.
        let all = ["ENDPOINT", "HEADERS", "COMPRESSION", "TIMEOUT", "PROTOCOL", "CERTIFICATE", "CLIENT_KEY"];
        let empty: Vec<String> = all.into_iter().flat_map(names).collect();
        let empty: Vec<(&str, &str)> = empty.iter().map(|name| (name.as_str(), " ")).collect();
        assert_eq!(http(&empty), expected);
        assert_eq!(settings(Protocol::Grpc, &[]).unwrap().endpoint, "http://localhost:4317");
    }

    #[test]
    fn the_path_is_appended_to_the_general_endpoint_only() {
        for (name, url, expected) in [
            ("ENDPOINT", "http://a:1", "http://a:1/v1/traces"),
            ("ENDPOINT", "http://a:1/", "http://a:1/v1/traces"),
            ("ENDPOINT", "https://a/base", "https://a/base/v1/traces"),
            ("ENDPOINT", "https://a/base/", "https://a/base/v1/traces"),
            ("ENDPOINT", "https://a/base?key=1", "https://a/base/v1/traces?key=1"),
            ("TRACES_ENDPOINT", "http://a:1", "http://a:1"),
            ("TRACES_ENDPOINT", "http://a:1/", "http://a:1/"),
            ("TRACES_ENDPOINT", "http://a/x/y", "http://a/x/y"),
            ("TRACES_ENDPOINT", "http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
        ] {
            let variable = format!("OTEL_EXPORTER_OTLP_{name}");
            assert_eq!(http(&[(&variable, url)]).endpoint, expected, "{name} {url}");
        }
    }

    #[test]
    fn the_variable_for_traces_comes_first() {
        let both = http(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/path"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=general,b=general"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=traces"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/general.pem"),
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/traces.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/general.crt"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "/traces.crt"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/general.key"),
        ]);
        assert_eq!(
            both,
            Settings {
                endpoint: "http://traces/path".into(),
                headers: vec![("a".into(), "traces".into())],
                compression: Compression::None,
                timeout: Duration::from_secs(2),
                certificate: Some("/traces.pem".into()),
                client: Some(("/traces.crt".into(), "/general.key".into())),
                warnings: vec![],
            }
        );
    }

    #[test]
    fn headers_are_decoded_and_bad_entries_left_out_without_showing_them() {
        let found = http(&[(
            "OTEL_EXPORTER_OTLP_HEADERS",
            " Authorization = Basic%20abc== , x-honeycomb-team=k%2C1,plain=a=b,,no-value=,X-Honeycomb-Team=last,secret,bad key=1,\
             new=%0a,raw=%ff",
        )]);
        let expected =
            [("authorization", "Basic abc=="), ("plain", "a=b"), ("no-value", ""), ("x-honeycomb-team", "last")];
        assert_eq!(found.headers, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(
            found.warnings,
            [
                "entry 7 of `OTEL_EXPORTER_OTLP_HEADERS` is ignored: expected `key=value`",
                "entry 8 of `OTEL_EXPORTER_OTLP_HEADERS` is ignored: its key cannot be the name of a header",
                "entry 9 of `OTEL_EXPORTER_OTLP_HEADERS` is ignored: its value cannot be that of a header",
                "entry 10 of `OTEL_EXPORTER_OTLP_HEADERS` is ignored: its value is not UTF-8 when its percent signs are decoded",
            ]
        );
    }

    #[test]
    fn what_cannot_be_understood_is_ignored_with_a_warning() {
        let found = http(&[
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zip"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ]);
        assert_eq!(found.compression, Compression::Gzip);
        assert_eq!(found.timeout, Duration::from_secs(10));
        assert_eq!(
            found.warnings,
            [
                "`OTEL_EXPORTER_OTLP_PROTOCOL` is `carrier-pigeon` and is ignored: expected `http/protobuf` or `grpc`",
                "`OTEL_EXPORTER_OTLP_TRACES_COMPRESSION` is `zip` and is ignored: expected `gzip` or `none`",
                "`OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` is `soon` and is ignored: expected a whole number",
                "`OTEL_BSP_MAX_QUEUE_SIZE` is `many` and is ignored: expected a whole number",
            ]
        );
    }

    #[test]
    fn the_shorter_of_the_two_timeouts_holds_and_0_is_no_limit() {
        for (timeout, export_timeout, expected) in
            [("5000", "", 5_000), ("", "3000", 3_000), ("60000", "", 30_000), ("0", "0", 86_400_000), ("0", "", 30_000)]
        {
            let found =
                http(&[("OTEL_EXPORTER_OTLP_TIMEOUT", timeout), ("OTEL_BSP_EXPORT_TIMEOUT", export_timeout)]).timeout;
            assert_eq!(found, Duration::from_millis(expected), "{timeout} {export_timeout}");
        }
    }

    #[test]
    fn a_protocol_of_another_hook_is_an_error_that_names_the_hook() {
        let error = settings(Protocol::Http, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`OTEL_EXPORTER_OTLP_PROTOCOL` is `grpc`, but this hook speaks HTTP; use the hook `otlp_grpc:setup_tracing`, or \
             `http/protobuf`"
        );
        let error = settings(Protocol::Grpc, &[("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")]).unwrap_err();
        assert!(error.to_string().contains("use the hook `otlp:setup_tracing`"), "{error}");
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let error = settings(protocol, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]).unwrap_err();
            assert!(error.to_string().contains("use `http/protobuf`"), "{error}");
        }
    }

    #[test]
    fn an_endpoint_that_is_no_url_is_an_error() {
        for url in ["localhost:4318", "localhost", "ftp://a", "http://", "http:// a", "/v1/traces"] {
            for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
                let error = settings(Protocol::Http, &[(name, url)]).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("`{name}` is `{url}`, expected a URL such as `http://localhost:4318`")
                );
            }
        }
    }

    #[test]
    fn for_grpc_insecure_decides_where_the_endpoint_does_not() {
        for (endpoint, insecure, expected) in [
            ("collector:4317", "", "https://collector:4317"),
            ("collector:4317", "TRUE", "http://collector:4317"),
            ("collector:4317", "false", "https://collector:4317"),
            ("collector:4317", "yes", "https://collector:4317"),
            ("http://collector:4317", "false", "http://collector:4317"),
            ("https://collector:4317", "true", "https://collector:4317"),
        ] {
            let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("OTEL_EXPORTER_OTLP_INSECURE", insecure)];
            let found = settings(Protocol::Grpc, &variables).unwrap();
            assert_eq!(found.endpoint, expected, "{endpoint} {insecure}");
            assert_eq!(found.warnings.len(), usize::from(insecure == "yes"));
        }
    }

    #[test]
    fn half_of_a_client_certificate_is_an_error() {
        let error = settings(Protocol::Http, &[("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`OTEL_EXPORTER_OTLP_CLIENT_KEY` names a key, but `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE` is not set; both or none"
        );
        let error =
            settings(Protocol::Http, &[("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "/c.pem")]).unwrap_err();
        assert!(error.to_string().contains("`OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY` is not set"), "{error}");
    }

    #[test]
    fn secrets_in_an_endpoint_are_not_shown() {
        for (url, expected) in [
            ("https://user:secret@host:1/path?token=secret", "https://host:1/path"),
            ("https://host", "https://host"),
            ("https://host/a@b", "https://host/a@b"),
        ] {
            let found = http(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)]);
            assert_eq!(found.endpoint, url);
            assert_eq!(found.shown_endpoint(), expected);
        }
    }
}
