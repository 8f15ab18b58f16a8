//! An OTLP receiver that others wrote the essence of: the official protobuf classes, in Python.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::python::python_with;
use super::run::Background;
use super::wait::wait_until;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/otlp.py");

/// A running receiver. Dropped, it is killed.
pub struct Receiver {
    process: Background,
    port: u16,
}

impl Receiver {
    /// One for HTTP; `tests/fixtures/otlp.py` explains the replies. None, which is said: there is no Python for it.
    #[track_caller]
    pub fn start(replies: &[&str]) -> Option<Receiver> {
        Receiver::start_as("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "receive", replies)
    }

    /// One of another kind, for which Python needs `module`.
    #[track_caller]
    pub fn start_as(module: &str, kind: &str, arguments: &[&str]) -> Option<Receiver> {
        let mut command = Command::new(python_with(module)?);
        command.args([SCRIPT, kind]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child: Child = command.spawn().expect("the receiver can be started");
        let process = Background::new(child, format!("otlp.py {kind}"), Vec::new());
        let port = wait_until("the receiver listens", || process.stdout_text().split_once('\n')?.0.parse().ok());
        Some(Receiver { process, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Answers the requests that are held, and all further ones.
    #[track_caller]
    pub fn release(&mut self) {
        let stdin = self.process.child.stdin.as_mut().expect("its input is piped");
        stdin.write_all(b"\n").expect("the receiver reads");
        stdin.flush().expect("the receiver reads");
    }

    /// What has come so far, in order.
    pub fn requests(&self) -> Vec<Value> {
        let text = self.process.stdout_text();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().skip(1).map(|line| serde_json::from_str(line).expect("the receiver prints JSON")).collect()
    }

    /// The spans of the requests that were, or will be, answered with 200.
    pub fn accepted(&self) -> Vec<Value> {
        let taken = |request: &Value| request["reply"] == "200" || request["reply"] == "held";
        let requests = self.requests().into_iter().filter(taken);
        requests.flat_map(|request| request["spans"].as_array().expect("spans are a list").clone()).collect()
    }

    /// Waits until so many spans have come.
    #[track_caller]
    pub fn wait_for_spans(&self, count: usize) -> Vec<Value> {
        wait_until(&format!("{count} spans have arrived"), || Some(self.accepted()).filter(|it| it.len() >= count))
    }

    /// Waits until so many requests have come.
    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) -> Vec<Value> {
        wait_until(&format!("{count} requests have arrived"), || Some(self.requests()).filter(|it| it.len() >= count))
    }
}
