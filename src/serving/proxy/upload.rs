//! The body of a request on its way into a lane.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Incoming};
use tracer_ipc::lane::WINDOW;

use super::exchange::Exchange;
use super::headers;
use super::pace::Pace;

/// The most bytes of a body that is sent again to another replica after the first one has begun.
pub(super) const REPEATED_BYTES: u64 = 64 << 10;

/// Outcome of the sending of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadEnd {
    /// All of it is sent.
    Sent,
    /// The request is over, so nobody wants the rest.
    Over,
    /// It is longer than it may be.
    TooLarge,
    /// It does not come to its end.
    Broken,
    /// It has stopped to come, over HTTP/2.
    TooSlow,
}

/// A body. What was sent of it is kept for as long as it may have to be sent again.
pub(super) struct Upload {
    body: Incoming,
    /// None over HTTP/1, where it is the connection that is too slow.
    pace: Option<Rc<Pace>>,
    /// True if nobody is too slow with it.
    may_pause: bool,
    /// Read, and not sent yet.
    waiting: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    is_read: bool,
    is_done: bool,
    /// Bytes that were sent to this replica; none once they cannot be sent again.
    sent: Option<Vec<Bytes>>,
    read_bytes: u64,
    limit: u64,
    /// True if a request that a replica has begun may begin again at another one.
    is_repeatable: bool,
}

impl Upload {
    pub(super) fn new(body: Incoming, pace: Option<Rc<Pace>>, limit: Option<u64>, is_repeatable: bool) -> Upload {
        Upload {
            is_read: body.is_end_stream(),
            is_done: body.is_end_stream(),
            body,
            pace,
            may_pause: false,
            waiting: VecDeque::new(),
            trailers: None,
            sent: Some(Vec::new()),
            read_bytes: 0,
            limit: limit.unwrap_or(u64::MAX),
            is_repeatable,
        }
    }

    /// Returns whether there is nothing to send, now that it begins.
    pub(super) fn is_empty(&self) -> bool {
        self.is_read && self.waiting.is_empty() && self.trailers.is_none()
    }

    /// Says whether its client may send nothing for as long as it likes.
    pub(super) fn may_pause(&mut self, may_pause: bool) {
        self.may_pause = may_pause;
    }

    /// Returns whether it has ended, well or not.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Begins again, for another replica. False when not all is there any more that was sent.
    pub(super) fn begin_again(&mut self) -> bool {
        let Some(sent) = self.sent.replace(Vec::new()) else { return false };
        sent.into_iter().rev().for_each(|piece| self.waiting.push_front(piece));
        self.is_done = self.is_empty();
        true
    }

    /// Sends what there is and what there is room for. `look` is the number of the last look at connections.
    pub(super) fn poll(&mut self, exchange: &Rc<Exchange>, look: u32, context: &mut Context<'_>) -> Poll<UploadEnd> {
        let end = ready!(self.poll_end(exchange, look, context));
        self.is_done = true;
        Poll::Ready(end)
    }

    fn poll_end(&mut self, exchange: &Rc<Exchange>, look: u32, context: &mut Context<'_>) -> Poll<UploadEnd> {
        let (lane, number) = (&exchange.lane, exchange.number);
        loop {
            if let Some(first) = self.waiting.front_mut() {
                let room = exchange.poll_room(first.len(), context);
                if let Some(pace) = &self.pace {
                    pace.hold(room.is_pending());
                }
                let Some(count) = ready!(room) else {
                    return Poll::Ready(UploadEnd::Over);
                };
                let piece = first.split_to(count);
                if first.is_empty() {
                    self.waiting.pop_front();
                }
                let has_more = !self.waiting.is_empty() || self.trailers.is_some();
                let is_last = !has_more && (self.is_read || self.body.is_end_stream());
                self.keep(&piece, exchange);
                lane.send_data(number, piece, is_last);
                if is_last {
                    self.is_read = true;
                    exchange.is_sent.set(true);
                    return Poll::Ready(UploadEnd::Sent);
                }
                continue;
            }
            if self.is_read {
                if exchange.is_over() {
                    return Poll::Ready(UploadEnd::Over);
                }
                match &self.trailers {
                    Some(trailers) => lane.send_trailers(number, headers::trailers(trailers)),
                    None => lane.send_data(number, Bytes::new(), true),
                }
                exchange.is_sent.set(true);
                return Poll::Ready(UploadEnd::Sent);
            }
            let Poll::Ready(came) = Pin::new(&mut self.body).poll_frame(context) else {
                return self.poll_late(exchange, look, context);
            };
            if let Some(pace) = &self.pace {
                pace.body_came();
            }
            match came {
                None => self.is_read = true,
                Some(Err(_)) => return Poll::Ready(UploadEnd::Broken),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.read_bytes += data.len() as u64;
                        exchange.received.set(self.read_bytes);
                        if self.read_bytes > self.limit {
                            return Poll::Ready(UploadEnd::TooLarge);
                        }
                        if !data.is_empty() {
                            self.waiting.push_back(data);
                        }
                    }
                    Err(frame) => {
                        self.trailers = frame.into_trailers().ok().filter(headers::are_few);
                        self.is_read = true;
                    }
                },
            }
        }
    }

    /// Waits for more of the body, over HTTP/2 no longer than that may take, nor than anybody wants it.
    fn poll_late(&self, exchange: &Rc<Exchange>, look: u32, context: &mut Context<'_>) -> Poll<UploadEnd> {
        let Some(pace) = &self.pace else { return Poll::Pending };
        if exchange.poll_over(context).is_ready() {
            return Poll::Ready(UploadEnd::Over);
        }
        match !self.may_pause && pace.poll_body_late(look, context) {
            true => Poll::Ready(UploadEnd::TooSlow),
            false => Poll::Pending,
        }
    }

    fn keep(&mut self, piece: &Bytes, exchange: &Exchange) {
        let may_begin_again = match exchange.has_begun() {
            true => self.is_repeatable && self.read_bytes <= REPEATED_BYTES,
            false => self.read_bytes <= u64::from(WINDOW) * 2,
        };
        match &mut self.sent {
            Some(sent) if may_begin_again => sent.push(piece.clone()),
            _ => self.sent = None,
        }
    }
}
