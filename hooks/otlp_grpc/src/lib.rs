//! A tracing hook: sampled spans, and log records if they are asked for, go over OTLP/gRPC to a collector or a backend, in batches.
//!
//! [`setup_tracing`] is the hook. Variables, tries and pauses are those of the hook `otlp`, told in `tracer-otlp`; but the endpoint
//! has no path, its default is `http://localhost:4317`, and where it has no scheme `OTEL_EXPORTER_OTLP_INSECURE` decides about TLS.
//!
//! The client needs a Tokio runtime, and finds none: a library has its own copy of Tokio, so that of a task is not in reach. It
//! gets one of its own, with one thread.

use std::fmt;
use std::time::Duration;

use http::uri::PathAndQuery;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;

use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tracer_otlp::delivery::{self, Answer, LogTransport, Transport};
use tracer_otlp::{Compression, Protocol, Settings, SettingsError, authorities_pem, client_pem};
use tracer_sdk::hook::Tracing;

const EXPORT_SPANS: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const EXPORT_LOGS: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
const USER_AGENT: &str = concat!("OTel-OTLP-Exporter-Rust/", env!("CARGO_PKG_VERSION"), " tracer");

/// Spans over OTLP/gRPC to where the variables say, and with `OTEL_LOGS_EXPORTER=otlp` log records too.
///
/// On failure: a variable says something with which spans would not go where they should, or a file that one names cannot be
/// used. Whether anyone listens there is not tried.
pub fn setup_tracing() -> Result<Tracing, SettingsError> {
    let settings = Settings::from_env(Protocol::Grpc)?;
    settings.warn();
    let transport = GrpcTransport::new(&settings)?;
    let receiver = format!("`{}`", settings.shown_endpoint());
    let description = format!("spans over OTLP/gRPC to {receiver}");
    let mut builder = delivery::builder(transport, receiver, settings.timeout, description);
    if let Some(settings) = Settings::of_logs(Protocol::Grpc, |name| std::env::var(name).ok())? {
        settings.warn();
        let receiver = format!("`{}`", settings.shown_endpoint());
        builder = delivery::with_logs(builder, GrpcTransport::new(&settings)?, receiver, settings.timeout);
    }
    Ok(builder.build())
}

/// OTLP/gRPC to one server.
pub struct GrpcTransport {
    runtime: Runtime,
    client: Grpc<Channel>,
    metadata: MetadataMap,
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The metadata may hold secrets.
        f.debug_struct("GrpcTransport").finish_non_exhaustive()
    }
}

impl GrpcTransport {
    /// Makes the client. Fails if a file of the settings cannot be used, or there can be no thread.
    pub fn new(settings: &Settings) -> Result<GrpcTransport, SettingsError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("otlp-grpc")
            .enable_all()
            .build()
            .map_err(|error| SettingsError::new(format!("there can be no thread for gRPC: {error}")))?;
        // The channel puts its tasks there.
        let _entered = runtime.enter();
        let refused = |error: tonic::transport::Error| {
            SettingsError::new(format!("OTLP/gRPC cannot be set up: {}", with_sources(&error)))
        };
        let mut endpoint = Endpoint::from_shared(settings.endpoint.clone())
            .and_then(|it| it.user_agent(USER_AGENT))
            .map_err(refused)?;
        if settings.endpoint.starts_with("https://") {
            endpoint = endpoint.tls_config(tls(settings)?).map_err(refused)?;
        }
        let mut client = Grpc::new(endpoint.connect_lazy());
        if settings.compression == Compression::Gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let client = client.accept_compressed(CompressionEncoding::Gzip);
        drop(_entered);
        Ok(GrpcTransport { runtime, client, metadata: metadata(&settings.headers)? })
    }

    async fn call<A, B>(&self, method: &'static str, message: A) -> Result<B, Status>
    where
        A: Message + Default + 'static,
        B: Message + Default + 'static,
    {
        let mut client = self.client.clone();
        client.ready().await.map_err(|error| Status::unavailable(with_sources(&error)))?;
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        let codec = ProstCodec::<A, B>::default();
        Ok(client.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner())
    }

    async fn export(&self, batch: &Batch) -> Result<Answer, Status> {
        let (rejected, reason) = match batch {
            Batch::Spans(request) => {
                let response: ExportTraceServiceResponse = self.call(EXPORT_SPANS, request.clone()).await?;
                response.partial_success.map(|partial| (partial.rejected_spans, partial.error_message))
            }
            Batch::Logs(request) => {
                let response: ExportLogsServiceResponse = self.call(EXPORT_LOGS, request.clone()).await?;
                response.partial_success.map(|partial| (partial.rejected_log_records, partial.error_message))
            }
        }
        .unwrap_or_default();
        Ok(if rejected > 0 { Answer::Partly { rejected: rejected.unsigned_abs(), reason } } else { Answer::Accepted })
    }
}

/// A batch of spans or of log records.
#[derive(Clone, Debug)]
pub enum Batch {
    /// Spans.
    Spans(ExportTraceServiceRequest),
    /// Log records.
    Logs(ExportLogsServiceRequest),
}

impl Transport for GrpcTransport {
    type Message = Batch;

    fn encode(&self, request: ExportTraceServiceRequest) -> Batch {
        Batch::Spans(request)
    }

    fn send(&self, message: &Batch, timeout: Duration) -> Answer {
        let called = self.runtime.block_on(async { tokio::time::timeout(timeout, self.export(message)).await });
        match called {
            Err(_) => Answer::Later { pause: None, reason: "it did not answer in time".to_owned() },
            Ok(Err(status)) => failure(&status),
            Ok(Ok(answer)) => answer,
        }
    }
}

impl LogTransport for GrpcTransport {
    fn encode_logs(&self, request: ExportLogsServiceRequest) -> Batch {
        Batch::Logs(request)
    }
}

/// `google.rpc.Status`, which a failure holds, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<RpcDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct RpcDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// After the table in "OTLP/gRPC" of the OTLP specification.
fn failure(status: &Status) -> Answer {
    let said = status.message();
    let reason =
        if said.is_empty() { format!("gRPC {:?}", status.code()) } else { format!("gRPC {:?}: {said}", status.code()) };
    // Of a connection that failed, the cause is in the sources.
    let reason = match std::error::Error::source(status) {
        Some(source) => format!("{reason}: {}", with_sources(source)),
        None => reason,
    };
    let pause = retry_delay(status.details());
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Answer::Later { pause, reason },
        // It says whether it will get better.
        Code::ResourceExhausted if pause.is_some() => Answer::Later { pause, reason },
        _ => Answer::Refused { reason },
    }
}

fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    let seconds = u64::try_from(delay.seconds).ok()?.min(24 * 60 * 60);
    Some(Duration::new(seconds, u32::try_from(delay.nanos).unwrap_or(0).min(999_999_999)))
}

fn metadata(headers: &[(String, String)]) -> Result<MetadataMap, SettingsError> {
    let mut metadata = MetadataMap::new();
    for (name, value) in headers {
        let unusable =
            || SettingsError::new(format!("the header `{name}` of `OTEL_EXPORTER_OTLP_HEADERS` cannot go over gRPC"));
        if let Some(key) = name.ends_with("-bin").then(|| MetadataKey::from_bytes(name.as_bytes())) {
            metadata.insert_bin(key.map_err(|_| unusable())?, MetadataValue::from_bytes(value.as_bytes()));
        } else {
            let key: MetadataKey<tonic::metadata::Ascii> =
                MetadataKey::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            metadata.insert(key, value.parse().map_err(|_| unusable())?);
        }
    }
    Ok(metadata)
}

fn tls(settings: &Settings) -> Result<ClientTlsConfig, SettingsError> {
    let mut tls = match &settings.certificate {
        Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities_pem(file)?)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    if let Some((certificate, key)) = &settings.client {
        let [certificate, key] = client_pem(certificate, key)?;
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Ok(tls)
}

/// Returns an error with what caused it. Each text once: some repeat their source's.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}
