//! OTLP in: spans per second over one connection, and CPU time per span, beside a hyper server that decodes the same bodies and drops them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

use super::cpu_time::cpu_ns;
use super::service::{succeed, tracer};
use super::{Failure, floors};

/// Spans of a request, as many as an SDK sends at once.
const SPANS: usize = 512;

/// Something that receives spans.
struct Target {
    name: &'static str,
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

/// Answers a request when its body is decoded.
pub(crate) async fn decode(request: Request<Incoming>) -> Response<Empty<Bytes>> {
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let decoded = ExportTraceServiceRequest::decode(&body[..]);
    let mut response = Response::new(Empty::new());
    if std::hint::black_box(decoded).is_err() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    response
}

/// Measures both by turns, and prints the median of each figure.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let floor = floors::decoding()?;
    let place = tempfile::Builder::new().prefix("otlp-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut head = tracer(place.path());
    head.args(["start", "--head", "--num-workers", "1", "--otlp=127.0.0.1:0", "--spans-dir"]);
    succeed({
        head.arg(place.path().join("spans"));
        head
    })?;
    let measured = receiver(place.path()).and_then(|receiver| {
        let (port, pid) = floor.port_and_pid();
        let floor =
            Target { name: "hyper that decodes", address: ([127, 0, 0, 1], port).into(), token: String::new(), pid };
        by_turns(&[floor, receiver], seconds, runs)
    });
    let _ = tracer(place.path()).args(["stop", "--force"]).output();
    measured
}

fn receiver(place: &std::path::Path) -> Result<Target, Failure> {
    let status = tracer(place).args(["status", "--format", "json"]).output()?.stdout;
    let http = serde_json::from_slice::<serde_json::Value>(&status)?["http"].take();
    let text = |key: &str| http[key].as_str().ok_or_else(|| format!("`tracer status` says no `{key}`"));
    Ok(Target {
        name: "tracer start --otlp",
        address: text("url")?.trim_start_matches("http://").parse()?,
        token: fs::read_to_string(text("otlp_token_path")?)?.trim_end().to_owned(),
        pid: u32::try_from(http["pid"].as_u64().ok_or("the receiver does not run")?)?,
    })
}

fn by_turns(targets: &[Target], seconds: u32, runs: usize) -> Result<(), Failure> {
    let body = request().encode_to_vec();
    let mut found: Vec<Vec<Figures>> = targets.iter().map(|_| Vec::new()).collect();
    // One run that does not count.
    for number in 0..=runs {
        for (target, found) in targets.iter().zip(&mut found) {
            let limit = Duration::from_secs(if number == 0 { 1 } else { seconds.into() });
            let figures = send(target, &body, limit).map_err(|error| format!("{}: {error}", target.name))?;
            if number > 0 {
                found.push(figures);
            }
        }
    }
    println!("\notlp: {SPANS} spans in {} bytes of protobuf over one connection", body.len());
    println!("{:<26}{:>14}{:>14}", "", "spans/s", "CPU ns/span");
    for (target, runs) in targets.iter().zip(&found) {
        let median = |figure: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (rate, cpu) = (median(|run| run.spans_per_second), median(|run| run.cpu_ns_per_span));
        println!("{:<26}{rate:>14.0}{cpu:>14.0}", target.name);
    }
    Ok(())
}

/// Sends requests one after the other for so long.
fn send(target: &Target, body: &[u8], limit: Duration) -> Result<Figures, Failure> {
    let mut stream = TcpStream::connect(target.address)?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
        target.address,
        target.token,
        body.len()
    );
    let message = [head.as_bytes(), body].concat();
    let (before, begun, mut requests) = (cpu_ns(target.pid)?, Instant::now(), 0_u64);
    while begun.elapsed() < limit {
        stream.write_all(&message)?;
        read_answer(&mut answers)?;
        requests += 1;
    }
    let spans = (requests * SPANS as u64) as f64;
    let cpu = cpu_ns(target.pid)? - before;
    Ok(Figures { spans_per_second: spans / begun.elapsed().as_secs_f64(), cpu_ns_per_span: cpu as f64 / spans })
}

fn read_answer(answers: &mut impl BufRead) -> Result<(), Failure> {
    let (mut line, mut length) = (String::new(), 0);
    answers.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(format!("the answer is `{}`", line.trim()).into());
    }
    while !line.trim().is_empty() {
        line.clear();
        answers.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    answers.read_exact(&mut vec![0; length])?;
    Ok(())
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
