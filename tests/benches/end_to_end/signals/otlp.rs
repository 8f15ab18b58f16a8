//! OTLP in: spans per second over one connection, and CPU time per span, beside a hyper server that decodes the same bodies and drops them. Each
//! server has one core, and the client another one.

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use super::super::cluster::{Cluster, Place};
use super::super::process::{self, cpu_ns};
use super::super::report::{Figure, Variant, percentile};
use super::super::{Failure, Run, each, http, say};

/// Spans of a request, as many as an SDK sends at once.
const SPANS: usize = 512;
/// The name of the floor's role.
pub(crate) const ROLE: &str = "decoder";

/// Something that receives spans.
struct Target {
    address: SocketAddr,
    token: String,
    pid: u32,
}

/// Figures of one run.
#[derive(Clone, Copy)]
struct Figures {
    spans_per_second: f64,
    cpu_ns_per_span: f64,
}

/// The floor's process, which is killed in the end.
struct Decoder(Child);

impl Drop for Decoder {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures both by turns.
pub(super) fn measure(run: &mut Run) -> Result<(), Failure> {
    let decoder = Command::new(std::env::current_exe()?).args(["role", ROLE]).stdout(Stdio::piped()).spawn()?;
    let mut decoder = Decoder(decoder);
    let mut port = String::new();
    BufReader::new(decoder.0.stdout.take().ok_or("no pipe")?).read_line(&mut port)?;
    let floor =
        Target { address: ([127, 0, 0, 1], port.trim().parse()?).into(), token: String::new(), pid: decoder.0.id() };
    let place = Place::new()?;
    let cluster = Cluster::start_with_flags(&place, None, &["--otlp=127.0.0.1:0"])?;
    let http = cluster.http_report()?;
    let own = Target {
        address: http.url.trim_start_matches("http://").parse()?,
        token: fs::read_to_string(http.otlp_token_path)?.trim_end().to_owned(),
        pid: http.pid.ok_or("the receiver does not run")?,
    };
    let found = by_turns(&[floor, own], run.effort.otlp, run.effort.runs);
    cluster.stop()?;
    let [floor, own] = found?;
    let rate = |found: &[Figures]| each(found, |one| one.spans_per_second);
    let cpu = |found: &[Figures]| each(found, |one| one.cpu_ns_per_span);
    let beside = "hyper that decodes";
    let figure = Figure::rate("OTLP in, spans over one connection", Variant::Untraced, f64::NAN).over(&rate(&own));
    run.report.add(Figure { floor: Some((beside, percentile(&rate(&floor), 50))), ..figure });
    let figure = Figure::time("OTLP in, cpu time of a span", Variant::Untraced, f64::NAN).over(&cpu(&own));
    run.report.add(Figure { floor: Some((beside, percentile(&cpu(&floor), 50))), ..figure });
    Ok(())
}

fn by_turns(targets: &[Target; 2], limit: Duration, runs: usize) -> Result<[Vec<Figures>; 2], Failure> {
    let body = request().encode_to_vec();
    let before = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).collect();
    let (server, client) = (cores[0], cores[cores.len() - 1]);
    for target in targets {
        process::tasks(target.pid)?.try_for_each(|thread| stay(Pid::from_raw(thread?), server))?;
    }
    stay(None, client)?;
    let mut found = [Vec::new(), Vec::new()];
    // One run that does not count.
    for number in 0..=runs {
        say(&format!("{SPANS} spans in {} bytes of protobuf, run {number} of {runs}", body.len()));
        for (target, found) in targets.iter().zip(&mut found) {
            let figures = send(target, &body, if number == 0 { limit / 4 } else { limit })?;
            if number > 0 {
                found.push(figures);
            }
        }
    }
    sched_setaffinity(None, &before)?;
    Ok(found)
}

/// Keeps a thread on a core.
fn stay(thread: Option<Pid>, core: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(thread, &set)?)
}

/// Sends requests one after the other for so long.
fn send(target: &Target, body: &[u8], limit: Duration) -> Result<Figures, Failure> {
    let stream = TcpStream::connect(target.address)?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
        target.address,
        target.token,
        body.len()
    );
    let message = [head.as_bytes(), body].concat();
    let (before, begun, mut requests) = (cpu_ns(target.pid)?, Instant::now(), 0_u64);
    while begun.elapsed() < limit {
        stream.get_mut().write_all(&message)?;
        http::read_answer(&mut stream)?;
        requests += 1;
    }
    let spans = (requests * SPANS as u64) as f64;
    let cpu = cpu_ns(target.pid)? - before;
    Ok(Figures { spans_per_second: spans / begun.elapsed().as_secs_f64(), cpu_ns_per_span: cpu as f64 / spans })
}

/// Runs the floor: answers each request when its body is decoded, until it is killed.
pub(crate) fn decode_for_ever() -> Result<(), Failure> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let answering = service_fn(|request| async { Ok::<_, Infallible>(decode(request).await) });
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answering);
            // A client that goes is no failure. There is one at a time.
            let _ = serving.await;
        }
    })
}

async fn decode(request: Request<Incoming>) -> Response<Empty<Bytes>> {
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let decoded = ExportTraceServiceRequest::decode(&body[..]);
    let mut response = Response::new(Empty::new());
    if std::hint::black_box(decoded).is_err() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    response
}

/// Returns a request with spans of a server, as automatic instrumentation makes them.
fn request() -> ExportTraceServiceRequest {
    let attribute = |key: &str, value| KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    let span = |number: u64| Span {
        trace_id: (u128::from(number) << 64 | 1).to_be_bytes().to_vec(),
        span_id: (number + 1).to_be_bytes().to_vec(),
        parent_span_id: (number + 2).to_be_bytes().to_vec(),
        name: format!("GET /items/{number}"),
        kind: 2,
        start_time_unix_nano: 1_795_474_803_888_769_277 + number,
        end_time_unix_nano: 1_795_474_803_898_769_277 + number,
        flags: 0x101,
        attributes: vec![
            attribute("http.request.method", Value::StringValue("GET".into())),
            attribute("url.path", Value::StringValue(format!("/items/{number}"))),
            attribute("http.response.status_code", Value::IntValue(200)),
            attribute("server.address", Value::StringValue("127.0.0.1".into())),
            attribute("user_agent.original", Value::StringValue("python-requests/2.32".into())),
        ],
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: (0..SPANS as u64).map(span).collect(), ..ScopeSpans::default() }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] }
}
