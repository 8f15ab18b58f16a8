//! The traces of a folder, for the requests of one server: that of `tracer view`, or the HTTP API of a head. Both answer the same.
//!
//! | request, below `/api/v1` | answer |
//! |---|---|
//! | `GET traces?query=&limit=` | the newest traces that a query finds; with `since`, `until`, `min_ns`, `max_ns` those of a region of the heat map |
//! | `GET heat?query=&columns=&rows=` | counts of traces by start and duration |
//! | `GET differences?query=&since=…` | attributes by which the traces of a region differ from the others that the query finds |
//! | `GET traces/{id}?rows=&span=&text=` | the trace in columns, of many equal spans the first; `last` and the beginning of an id are taken too |
//! | `GET traces/{id}/spans/{id}` | one span as it was written |
//! | `GET traces/{id}/find?text=` | the spans that a query finds, or that have a text in their names, attributes or events |
//! | `GET traces/{id}/links` | links of its spans, and links to them |
//! | `GET traces/{id}/attempts` | attempts with what they used, times in which nothing ran, tasks that wait and why |
//! | `GET traces/{id}/written` | span events, log records and lines of output |
//! | `GET compare?before=&after=` | two sides, each a trace or a query, aligned by path of names |
//! | `GET history?text=&state=&limit=` | tasks, from spans and from the head |
//! | `GET now` | what runs: a track for each process, the queue, the head's figures |
//! | `GET open` | what is open now, by process |
//! | `GET events?after=` | server-sent events: `changed` with a revision, the traces that have changed since the one before, and how many it does not name |
//! | `GET logs?trace=&task=&text=&stream=&level=&since=&until=&limit=&before=&after=` | lines of output and log records by time, each with its span |

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderValue, Method, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tracer_core::parameters;
use tracer_core::problem::{self, Problem};
use tracer_trace::json;

use super::page;
use super::questions::Question;
use super::source::{Session, Source};
use crate::http_api::access::Role;
use crate::http_api::body::Body;
use crate::http_api::limits;

/// The longest body with a code.
const CODE_BYTES: usize = 4 << 10;
/// Interval at which a page is told that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that wait for a page that does not read: it has not to know of each change.
const EVENTS: usize = 2;
/// The highest revision that is taken; there is never one so high.
pub(super) const LAST_REVISION: u64 = (1 << 53) - 1;
/// The shortest time between two looks while a page follows.
const INTERVAL: Duration = Duration::from_millis(100);
/// Looking takes at most this part of the time.
const LOOK_SHARE: u32 = 4;
/// Time without a look after which the index is given up.
const IDLE: Duration = Duration::from_secs(600);
/// Threads that read files, each for one request.
pub(crate) const READERS: usize = 4;

pub(crate) type Answer = Result<Response<Body>, Problem>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exchange {
    code: String,
}

#[derive(Serialize)]
struct Token<'a> {
    token: &'a str,
    /// True if it is good for cancelling tasks, and not only for reading.
    may_cancel: bool,
}

/// The traces of a folder, and the pages that follow them.
pub(crate) struct Traces {
    source: Arc<Source>,
    /// The revision of the last look, for the pages that follow.
    revisions: watch::Sender<u64>,
    /// True if somebody looks again and again.
    is_looking: AtomicBool,
    /// True if somebody waits for the time to give the index up.
    is_kept: AtomicBool,
}

impl Traces {
    /// Makes the traces of a folder of span files, together with what is open in a session's processes. Nothing is read yet.
    pub(crate) fn new(folder: PathBuf, session: Session) -> Arc<Traces> {
        Arc::new(Traces {
            source: Arc::new(Source::new(folder, session)),
            revisions: watch::Sender::new(0),
            is_looking: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
        })
    }

    /// Answers a question, whose path has these segments below `/api/v1`.
    pub(crate) async fn answer(self: &Arc<Self>, segments: &[&str], parts: &Parts) -> Answer {
        match Question::new(segments, parts.uri.path(), parts.uri.query().unwrap_or_default())? {
            Question::Events { after } => {
                // What a page that connects again has seen last.
                let seen = match parts.headers.get("last-event-id") {
                    None => None,
                    Some(seen) => {
                        let seen =
                            [("Last-Event-ID".to_owned(), String::from_utf8_lossy(seen.as_bytes()).into_owned())];
                        parameters::number(&seen, "Last-Event-ID", 0, LAST_REVISION)?
                    }
                };
                if parts.method == Method::HEAD {
                    return Ok(event_stream(Body::whole(Bytes::new())));
                }
                self.ask(Question::Looked).await?;
                Ok(self.events(seen.or(after)))
            }
            question => self.ask(question).await,
        }
    }

    /// Answers with what is there, on a thread that may read files and wait for the head.
    async fn ask(self: &Arc<Self>, question: Question) -> Answer {
        let source = Arc::clone(&self.source);
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).give_up_when_idle());
        }
        let asked = tokio::task::spawn_blocking(move || {
            let next = match source.look() {
                Ok(watched) => question.prepare(&watched)?,
                Err(error) => return Err(unreadable(error)),
            };
            next()
        });
        asked.await.unwrap_or_else(|error| Err(unreadable(error)))
    }

    /// Follows the revisions. While anybody does, the source is looked at again and again.
    fn follow(self: &Arc<Self>) -> watch::Receiver<u64> {
        let revisions = self.revisions.subscribe();
        if !self.is_looking.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).look_while_followed());
        }
        revisions
    }

    /// Waits until nobody has looked for a while, and gives the index up. Without an index there is nobody who waits.
    async fn give_up_when_idle(self: Arc<Self>) {
        let mut pause = IDLE;
        loop {
            tokio::time::sleep(pause).await;
            let source = Arc::clone(&self.source);
            let Ok(Some(next)) = tokio::task::spawn_blocking(move || source.forget_after(IDLE)).await else { break };
            pause = next;
        }
        self.is_kept.store(false, Ordering::Relaxed);
    }

    async fn look_while_followed(self: Arc<Self>) {
        while self.revisions.receiver_count() > 0 {
            let source = Arc::clone(&self.source);
            let start = Instant::now();
            let looked = tokio::task::spawn_blocking(move || source.look().ok().map(|watched| watched.revision));
            if let Ok(Some(revision)) = looked.await {
                self.revisions.send_if_modified(|known| std::mem::replace(known, revision) != revision);
            }
            tokio::time::sleep(INTERVAL.max(start.elapsed() * LOOK_SHARE)).await;
        }
        // Without an await since the count was read: whoever subscribes now finds that nobody looks.
        self.is_looking.store(false, Ordering::Relaxed);
    }

    /// Server-sent events, for as long as the page reads. The revision is the event's id: a page that connects again names the one that it has seen,
    /// and the first event says what has changed since.
    fn events(self: &Arc<Self>, mut seen: Option<u64>) -> Response<Body> {
        let (pieces_tx, pieces) = mpsc::channel(EVENTS);
        let mut revisions = self.follow();
        let source = Arc::clone(&self.source);
        let maker = tokio::spawn(async move {
            loop {
                revisions.borrow_and_update();
                let since = source.since(seen);
                seen = Some(since.revision);
                let data = serde_json::to_string(&since).unwrap_or_default();
                let event = format!("id: {}\nevent: changed\ndata: {data}\n\n", since.revision);
                if pieces_tx.send(Bytes::from(event)).await.is_err() {
                    return;
                }
                while tokio::time::timeout(KEEP_ALIVE, revisions.changed()).await.is_err() {
                    if pieces_tx.send(Bytes::from_static(b":\n\n")).await.is_err() {
                        return;
                    }
                }
            }
        });
        event_stream(Body::pieces(pieces, maker.abort_handle()))
    }
}

fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// Reads the code that a page wants to exchange.
pub(crate) async fn read_code(body: Incoming) -> Result<String, Problem> {
    let read = tokio::time::timeout(limits::BODY_TIME, Limited::new(body, CODE_BYTES).collect()).await;
    let bytes = match read {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            let text = format!("the body has more than {CODE_BYTES} bytes, or did not arrive whole");
            return Err(Problem::new(problem::TOO_LARGE, text));
        }
        Err(_) => return Err(Problem::new(problem::TOO_SLOW, "the body did not arrive")),
    };
    let exchange: Exchange = serde_json::from_slice(&bytes)
        .map_err(|_| Problem::new(problem::INVALID, "expected an object with the `code` of a link"))?;
    Ok(exchange.code)
}

/// Answers who showed a code with the token for it.
pub(crate) fn token_answer(token: Option<(&str, Role)>) -> Answer {
    let (token, role) = token.ok_or_else(|| {
        Problem::new(problem::UNAUTHORIZED, "the link was used, or is older than a minute")
            .hint("`tracer view` makes a new link; where it runs, Enter does")
            .header(header::WWW_AUTHENTICATE, "Bearer realm=\"tracer\"")
    })?;
    json_answer(&Token { token, may_cancel: role == Role::Control })
}

/// Answers with a file of the page.
pub(crate) fn file_answer(path: &str) -> Option<Response<Body>> {
    let file = page::find(path)?;
    let mut response = Response::new(Body::whole(Bytes::from_static(file.bytes)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    Some(response)
}

pub(super) fn json_answer(report: &impl Serialize) -> Answer {
    json::bytes(report).map(json_text).map_err(unreadable)
}

pub(super) fn json_text(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn nothing_at(path: &str) -> Problem {
    Problem::new(problem::NO_ROUTE, format!("there is nothing at `{}`", path.escape_debug()))
}

pub(super) fn unreadable(error: impl std::fmt::Display) -> Problem {
    Problem::new(problem::UNREADABLE, error.to_string())
}
