//! Requests that ask for another protocol, such as a WebSocket.
//!
//! Frameworks take the connection over from hyper (`hyper::upgrade`), and from nothing else. So such a request goes to the handler through a
//! connection of hyper's within the process: the far end is served by it, the near end carries what the host passes on. Both are driven by the
//! future of the request, so that the handler runs with the request's span current.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::body::Body;
use super::context::RequestContext;
use super::exchange::{Ending, Mailbox, respond, send};
use super::handler::Handler;
use super::lent::Taken;
use crate::task::Failure;

/// Bytes that are on their way within the process in each direction.
const BUFFER: usize = 64 << 10;
/// Bytes that are taken from the handler at a time.
const READ: usize = 16 << 10;

/// Returns whether a request asks for another protocol.
pub(super) fn is_asked(request: &Request<Body>) -> bool {
    let headers = request.headers();
    request.method() == Method::GET && headers.contains_key(UPGRADE) && headers.contains_key(CONNECTION)
}

/// Calls the handler, and passes on what it answers; after a change of the protocol, the bytes of both directions until the handler has closed its end.
pub(super) async fn answer(handler: Arc<dyn Handler>, request: Request<Body>, mailbox: Arc<Mailbox>) -> Ending {
    let (near, far) = tokio::io::duplex(BUFFER);
    let failure = Arc::new(Mutex::new(None));
    let (context, failed) = (request.extensions().get::<RequestContext>().cloned(), failure.clone());
    let service = service_fn(move |asked: Request<Incoming>| {
        let mut asked = asked.map(Body::new);
        if let Some(context) = &context {
            asked.extensions_mut().insert(context.clone());
        }
        let (called, failed) = (handler.call(asked), failed.clone());
        async move {
            called.await.map_err(|failure| {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
                io::Error::other("the handler has failed")
            })
        }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service);
    let mut serving = Some(Box::pin(serving.with_upgrades()));
    let mut passing = pin!(pass(near, request, mailbox));
    let passed = poll_fn(|context| {
        if let Some(connection) = &mut serving
            && connection.as_mut().poll(context).is_ready()
        {
            serving = None;
        }
        passing.as_mut().poll(context)
    })
    .await;
    passed.unwrap_or_else(|error| {
        let failure = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ending::Failed(
            failure.unwrap_or_else(|| Failure::runtime(format!("the connection was not taken over: {error}"))),
        )
    })
}

/// The connection within the process, as its near end drives it.
struct Driven<C>(Option<Pin<Box<C>>>);

impl<C: Future> Driven<C> {
    /// Waits for something that happens while the connection is driven.
    async fn beside<T>(&mut self, waited: impl Future<Output = T>) -> T {
        let mut waited = pin!(waited);
        poll_fn(|context| {
            if let Some(connection) = &mut self.0
                && connection.as_mut().poll(context).is_ready()
            {
                self.0 = None;
            }
            waited.as_mut().poll(context)
        })
        .await
    }
}

/// Sends the request through the connection within the process, and its answer to the host.
async fn pass(near: DuplexStream, request: Request<Body>, mailbox: Arc<Mailbox>) -> hyper::Result<Ending> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
    let mut connection = Driven(Some(Box::pin(connection.with_upgrades())));
    let (head, body) = request.into_parts();
    let response = connection.beside(sender.send_request(Request::from_parts(head, String::new()))).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(connection.beside(respond(&mailbox, response.map(Body::new))).await);
    }
    if mailbox.begin(response.status(), response.headers(), false) != Taken::Yes {
        return Ok(Ending::Failed(Failure::cancelled()));
    }
    let upgraded = connection.beside(hyper::upgrade::on(response)).await?;
    let (from_handler, to_handler) = tokio::io::split(TokioIo::new(upgraded));
    let mut taking = Some(Box::pin(take(body, to_handler)));
    let mut giving = pin!(give(from_handler, &mailbox));
    Ok(poll_fn(|context| {
        if let Some(take) = &mut taking
            && take.as_mut().poll(context).is_ready()
        {
            taking = None;
        }
        giving.as_mut().poll(context)
    })
    .await)
}

/// Takes what the client sends to the handler, until either has enough.
async fn take(mut body: Body, mut to_handler: impl AsyncWriteExt + Unpin) -> io::Result<()> {
    while let Some(Ok(piece)) = body.next().await {
        to_handler.write_all(&piece).await?;
        to_handler.flush().await?;
    }
    to_handler.shutdown().await
}

/// Gives the host what the handler sends, until it has closed its end.
async fn give(mut from_handler: impl AsyncReadExt + Unpin, mailbox: &Mailbox) -> Ending {
    let mut buffer = vec![0; READ];
    loop {
        match from_handler.read(&mut buffer).await {
            // A handler that drops its end without a word has ended it too.
            Ok(0) | Err(_) => return Ending::Whole(None),
            Ok(count) => {
                if send(mailbox, Bytes::copy_from_slice(&buffer[..count])).await.is_err() {
                    return Ending::Failed(Failure::cancelled());
                }
            }
        }
    }
}
