//! The conversation on a connection, from its first byte to its last: handshake, requests, the end.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracer_core::problem::Problem;

use super::super::pace::Pace;
use super::super::refusals::{self};
use super::super::socket::{Opening, Socket};
use super::super::stream::ClientStream;
use super::super::thread::ProxyThread;
use super::super::tls::{self, Certified, Failed};
use super::super::{limits, request};
use super::{Connection, Refusing};
use crate::request_head::HEAD_BYTES;
/// Runs the streams of a connection of HTTP/2 on this thread, each until it ends or is cut.
#[derive(Clone, Default)]
struct Streams {
    /// The stream whose request was made last, and which is about to run.
    last: Rc<RefCell<Option<Rc<Pace>>>>,
}

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, future: F) {
        let pace = self.last.borrow_mut().take();
        drop(tokio::task::spawn_local(async move {
            let mut future = std::pin::pin!(future);
            poll_fn(|context| match pace.as_ref().is_some_and(|pace| pace.poll_cut(context)) {
                true => Poll::Ready(()),
                false => future.as_mut().poll(context).map(drop),
            })
            .await;
        }));
    }
}

/// Serves a connection to its end, or until another proxy has it. With certificates its client speaks TLS.
pub(in crate::proxy) async fn converse(
    thread: Rc<ProxyThread>,
    stream: TcpStream,
    connection: Rc<Connection>,
    certified: Option<Arc<Certified>>,
) {
    let mut stream = match certified {
        None => ClientStream::Plain(stream),
        Some(certified) => match Box::pin(tls::shake_hands(&certified, stream, &connection)).await {
            Ok(stream) => stream,
            Err((why, stream)) => return Box::pin(refuse_handshake(&thread, why, stream)).await,
        },
    };
    let mut may_be_2 = true;
    loop {
        let opened = {
            let mut opening = std::pin::pin!(Opening::read(&mut stream, &connection, may_be_2));
            poll_fn(|context| match (connection.poll_cut(context), opening.as_mut().poll(context)) {
                (true, _) => Poll::Ready(None),
                (false, Poll::Ready(opened)) => Poll::Ready(opened.ok().flatten().map(Some)),
                (false, Poll::Pending) if !connection.has_opened.get() && connection.may_leave() => {
                    Poll::Ready(Some(None))
                }
                (false, Poll::Pending) => Poll::Pending,
            })
            .await
        };
        // In boxes, so that a connection over which nothing has come yet, or nothing more, takes no room for what may come.
        stream = match opened.map(|opening| opening.ok_or(())) {
            Some(Ok(opening)) => match Socket::new(stream, Rc::clone(&connection), opening) {
                (false, socket) => match Box::pin(converse_1(&thread, socket, &connection)).await {
                    Some(stream) => stream,
                    None => return,
                },
                (true, socket) => return Box::pin(converse_2(thread, socket, connection)).await,
            },
            Some(Err(())) => return Box::pin(leave(&thread, stream)).await,
            None => return,
        };
        may_be_2 = false;
        connection.has_opened.set(false);
    }
}

/// Counts a handshake that has failed, and tells a client that speaks plain HTTP that it has to speak TLS.
async fn refuse_handshake(thread: &ProxyThread, why: Failed, stream: Option<ClientStream>) {
    thread.figures.count_handshake_failure(why.error_type());
    if let Some(stream) = stream {
        let problem = Problem::new(
            refusals::MALFORMED,
            "expected TLS, found something else: this address is asked with `https://`",
        );
        turn_away(thread, stream, problem, thread.new_request_id().to_str().unwrap_or_default()).await;
    }
}

/// Gives a connection that has nothing to do to another proxy, or ends it if nobody else can have it.
async fn leave(thread: &ProxyThread, stream: ClientStream) {
    match stream {
        ClientStream::Plain(stream) => thread.hand_over(stream),
        // One whose head has begun is not handed over.
        mut stream => drop(tokio::time::timeout(limits::LINGER, stream.shutdown()).await),
    }
}

/// End of the service of a connection of HTTP/1.1.
enum Left {
    /// There is nothing more to do.
    Over,
    /// All that was asked is answered, the last time perhaps with another protocol.
    Served,
    /// The client is told that it is refused.
    Refused,
    /// Idle, while this proxy ends.
    Idle,
    /// Rest: the client has asked for nothing for a while.
    Resting,
}

/// Serves HTTP/1.1 over a connection to its end. Returns the socket when the client has asked for nothing for a while, so that nothing else is kept
/// for it.
async fn converse_1(thread: &Rc<ProxyThread>, socket: Socket, connection: &Rc<Connection>) -> Option<ClientStream> {
    let own = Rc::clone(connection);
    let for_requests = Rc::clone(thread);
    let service = service_fn(move |asked| request::serve(Rc::clone(&for_requests), Rc::clone(&own), None, asked));
    // The scanner refuses more headers than hyper takes by itself.
    let mut serving = http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(socket), service);
    let left = poll_fn(|context| {
        if connection.poll_cut(context) {
            return Poll::Ready(Left::Over);
        }
        match Pin::new(&mut serving).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Left::Served),
            Poll::Ready(Err(_)) => Poll::Ready(Left::Over),
            Poll::Pending if connection.is_refusing() && connection.is_done() => Poll::Ready(Left::Refused),
            Poll::Pending if connection.may_leave() => Poll::Ready(Left::Idle),
            Poll::Pending if connection.rests() => Poll::Ready(Left::Resting),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    match left {
        Left::Over => {}
        Left::Resting => {
            let parts = serving.into_parts();
            let socket = parts.io.into_inner();
            // An empty line after a request is the most that hyper can have and not have taken.
            let is_at_rest = socket.is_at_rest() && parts.read_buf.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
            return is_at_rest.then(|| socket.into_stream());
        }
        Left::Served => {
            let parts = serving.into_parts();
            let socket = parts.io.into_inner();
            let is_at_rest = socket.is_at_rest() && parts.read_buf.is_empty() && !connection.is_refusing();
            // The slot is empty before the tunnel runs, which ends the request when it is dropped.
            let tunnel = connection.tunnel.borrow_mut().take();
            // A client that does not wait for the answer speaks a protocol of its own.
            if let Some(tunnel) = tunnel.filter(|_| is_at_rest) {
                tunnel.run(thread, connection, socket.into_stream()).await;
            }
        }
        Left::Refused => {
            let problem = match connection.refusing.get() {
                Some(Refusing::Head(refusal)) => refusals::of_head(refusal),
                _ => Problem::new(refusals::TOO_SLOW, "the head of the request did not arrive in time"),
            };
            let request_id = connection.thread.new_request_id();
            let stream = serving.into_parts().io.into_inner().into_stream();
            turn_away(thread, stream, problem, request_id.to_str().unwrap_or_default()).await;
        }
        Left::Idle => leave(thread, serving.into_parts().io.into_inner().into_stream()).await,
    }
    // Of a connection that was cut before the head of the answer was written.
    drop(connection.tunnel.borrow_mut().take());
    connection.set_slow(false);
    None
}

async fn converse_2(thread: Rc<ProxyThread>, socket: Socket, connection: Rc<Connection>) {
    connection.is_2.set(true);
    let own = Rc::clone(&connection);
    let for_requests = Rc::clone(&thread);
    let streams = Streams::default();
    let last = Rc::clone(&streams.last);
    let service = service_fn(move |asked| {
        let pace = own.begin_stream();
        *last.borrow_mut() = Some(Rc::clone(&pace));
        request::serve(Rc::clone(&for_requests), Rc::clone(&own), Some(pace), asked)
    });
    let mut serving = http2::Builder::new(streams)
        .max_concurrent_streams(limits::STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .max_pending_accept_reset_streams(limits::PENDING_RESETS)
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(socket), service);
    let mut is_ending = false;
    poll_fn(|context| {
        if connection.poll_cut(context) {
            return Poll::Ready(());
        }
        if !is_ending && connection.is_ending_well() {
            is_ending = true;
            Pin::new(&mut serving).graceful_shutdown();
        }
        Pin::new(&mut serving).poll(context).map(drop)
    })
    .await;
}

/// Tells a client that it is refused, when it is its turn, and closes the connection. What the client still sends is taken for a moment, a little at a time and
/// much of it from few clients at once: if it were not, the answer could be lost on its way.
pub(in crate::proxy) async fn turn_away(
    thread: &ProxyThread,
    mut stream: ClientStream,
    problem: Problem,
    request_id: &str,
) {
    match thread.take_refusal_turn() {
        Some(Duration::ZERO) => {}
        Some(wait) => tokio::time::sleep(wait).await,
        None => return,
    }
    let problem =
        problem.header(http::header::CONNECTION, "close").header(crate::proxy::headers::X_REQUEST_ID, request_id);
    let response = problem.into_response(|json| json);
    let status = response.status();
    let mut head = format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    for (name, value) in response.headers() {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap_or_default());
    }
    head += &format!("content-length: {}\r\n\r\n", response.body().len());
    let told = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(response.body()).await?;
        stream.shutdown().await?;
        let (mut lingering, mut taken) = (None, 0);
        loop {
            match stream.discard().await? {
                0 => return std::io::Result::Ok(()),
                count => taken += count,
            }
            if taken >= limits::LINGER_BYTES {
                lingering = lingering.or_else(|| thread.linger());
                if lingering.is_none() {
                    return Ok(());
                }
                tokio::time::sleep(limits::LINGER_PAUSE).await;
                taken = 0;
            }
        }
    };
    let _ = tokio::time::timeout(limits::LINGER, told).await;
}
