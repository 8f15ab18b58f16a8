//! The module `program`, which is built into `tracer`: a program that speaks HTTP/1.1, served as a deployment.
//!
//! ```text
//!   proxy ─lane─▶ replica process: claim, span ─▶ Program::handle ─HTTP/1.1─▶ the program, on a Unix socket or a port of loopback
//! ```
//!
//! The replica starts the program in its own process group and forwards each request to it, with `traceparent` of the request's span. So lanes,
//! claims, spans, limits and draining are those of every replica. A replica and its program are one: the program gets SIGTERM when the replica
//! is over, and a replica whose program has ended ends in the same way, by the same signal or status.

mod connections;
mod process;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tracer_sdk::serve::http::header::{CONNECTION, HeaderName, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING, UPGRADE};
use tracer_sdk::serve::{Body, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, deployment};

use connections::{Address, Connections};
use process::{End, Process};

/// Pauses between two looks at whether the program answers.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];
/// Time that is left of `start_timeout` to report that it is over.
const REPORTING: Duration = Duration::from_millis(250);
/// Time in which the end of a program is noticed after its connections have broken.
const DYING: Duration = Duration::from_millis(250);
/// The same after it has closed a connection that speaks another protocol, which it may do in good order.
const CLOSING: Duration = Duration::from_millis(50);
/// The most bytes of an answer about health that are read.
const HEALTH_BODY: usize = 64 << 10;
/// The context of a question for health: of a trace that is not sampled (W3C Trace Context, section 3.2.2.5.1), so that an instrumented program records none.
const NOT_SAMPLED: &str = "00-6865616c74680000000000000000001d-6865616c74680001-00";
/// The name of a header that HTTP/1.1 clients of old send, and that is about a connection alone.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// A program that answers requests.
pub struct Program {
    connections: Connections,
    health: Option<Uri>,
    /// Ends when it is dropped.
    process: Process,
}

#[deployment]
impl Program {
    /// Starts the program, and waits until it answers: `address` is the path of its socket or a port; `health` a path that answers 2xx; `variables` are set in its
    /// environment, which is that of the replica otherwise.
    pub async fn new(
        command: Vec<String>,
        address: String,
        health: Option<String>,
        start_timeout_ms: u64,
        variables: Option<BTreeMap<String, String>>,
    ) -> Result<Program, String> {
        let health = health.map(|path| path.parse().map_err(|error| format!("health: `{path}`: {error}")));
        let process = Process::start(&command, &variables.unwrap_or_default())?;
        let connections = Connections::to(Address::of(&address));
        let program = Program { connections, health: health.transpose()?, process };
        let limit = Duration::from_millis(start_timeout_ms);
        program.wait_until_it_answers(limit.saturating_sub(REPORTING.min(limit / 4))).await?;
        program.process.serves();
        Ok(program)
    }

    /// Forwards a request. A program that does not answer is a 502.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        if request.headers().contains_key(UPGRADE) {
            return self.change_protocol(request).await;
        }
        let (mut head, body) = request.into_parts();
        remove_hop_headers(&mut head.headers);
        match self.connections.send(Request::from_parts(head, body)).await {
            Ok(mut response) => {
                remove_hop_headers(response.headers_mut());
                // The replica's own.
                response.headers_mut().remove("tracer-outcome");
                response.map(Body::new)
            }
            Err(error) => self.refuse(&error).await,
        }
    }

    /// Asks the program for its health, where it has a path for that.
    pub async fn health(&self) -> Result<(), String> {
        self.ask().await
    }
}

impl Program {
    async fn wait_until_it_answers(&self, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        let mut pause = PAUSES[0];
        loop {
            if let Some(end) = self.process.has_ended() {
                return Err(format!("{end} before it listened at {}", self.connections.address));
            }
            let Err(reason) = self.ask().await else { return Ok(()) };
            if Instant::now() >= deadline {
                let (name, last) = (self.process.name(), self.process.last_lines());
                return Err(format!("{name} was not ready within `start_timeout`: {reason}{last}"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Answers a request that the program has not answered, if it still runs.
    async fn refuse(&self, error: &str) -> Response<Body> {
        self.process.end().wait_if_it_has_come(DYING).await;
        process::say(&format!("tracer: {} did not answer a request: {error}", self.process.name()));
        let mut response = Response::new(Body::from("the program did not answer\n"));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        // The proxy says it to the client, as it says all that is not of a handler.
        response.headers_mut().insert("tracer-outcome", HeaderValue::from_static("program_failed"));
        response
    }

    /// Forwards a request for another protocol, such as a WebSocket, and then the bytes of both sides until both have ended.
    async fn change_protocol(&self, mut request: Request<Body>) -> Response<Body> {
        let client = hyper::upgrade::on(&mut request);
        let (mut head, _) = request.into_parts();
        let asked = head.headers.get(UPGRADE).cloned();
        remove_hop_headers(&mut head.headers);
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.extend(asked.map(|protocol| (UPGRADE, protocol)));
        let mut response = match self.connections.send_alone(Request::from_parts(head, Body::empty())).await {
            Ok(response) => response,
            Err(error) => return self.refuse(&error).await,
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            remove_hop_headers(response.headers_mut());
            return response.map(Body::new);
        }
        let (program, end) = (hyper::upgrade::on(&mut response), self.process.end());
        // It ends with the connection, and that with the request.
        tokio::spawn(async move {
            if let (Ok(client), Ok(program)) = (client.await, program.await) {
                join(TokioIo::new(client), TokioIo::new(program), end).await;
            }
        });
        response.map(|_| Body::empty())
    }

    /// Connects, and asks for the path of health if there is one.
    async fn ask(&self) -> Result<(), String> {
        let address = &self.connections.address;
        let Some(path) = &self.health else {
            return self
                .connections
                .open()
                .await
                .map(drop)
                .map_err(|error| format!("waited for a connection to {address}: {error}"));
        };
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = path.clone();
        request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
        request.headers_mut().insert("traceparent", HeaderValue::from_static(NOT_SAMPLED));
        let answer = self.connections.send(request).await;
        let status = match answer {
            Ok(answer) => {
                let status = answer.status();
                // Read to its end, so that the connection is used again.
                let _ = Body::new(answer.into_body()).collect(HEALTH_BODY).await;
                Ok(status)
            }
            Err(error) => Err(error),
        };
        match status {
            Ok(status) if status.is_success() => Ok(()),
            Ok(status) => {
                Err(format!("`GET {path}` at {address}: expected a status of 2xx, found {}", status.as_u16()))
            }
            Err(error) => Err(format!("`GET {path}` at {address}: {error}")),
        }
    }
}

/// Passes bytes on in both directions, each until its end. When the program has closed its side because it has died, the client's is left to the
/// end of the replica, which says how.
async fn join(client: impl AsyncRead + AsyncWrite, program: impl AsyncRead + AsyncWrite, end: End) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_program, mut to_program) = split(program);
    let forth = async {
        let _ = copy(&mut from_client, &mut to_program).await;
        let _ = to_program.shutdown().await;
    };
    let back = async {
        let _ = copy(&mut from_program, &mut to_client).await;
        end.wait_if_it_has_come(CLOSING).await;
        let _ = to_client.shutdown().await;
    };
    let (mut forth, mut back) = (Some(pin!(forth)), pin!(back));
    poll_fn(|context| {
        if forth.as_mut().is_some_and(|forth| forth.as_mut().poll(context).is_ready()) {
            forth = None;
        }
        back.as_mut().poll(context)
    })
    .await;
}

/// Removes the headers that are about one connection: each side of the replica has its own.
fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&[CONNECTION, KEEP_ALIVE, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING, UPGRADE]) {
        headers.remove(name);
    }
}

/// Returns the record of the module `program`.
pub fn module() -> *const tracer_sdk::__private::Module {
    tracer_sdk::export::builtin_deployments(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_are_removed_and_all_others_stay() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("traceparent", "00-a"),
            ("trailer", "x-sum"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        remove_hop_headers(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["traceparent", "trailer"]);
    }
}
