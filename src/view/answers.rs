//! Answers to the requests of the page.
//!
//! | request | answer |
//! |---|---|
//! | `POST /api/v1/viewer` with `{"code"}` | `token`, once |
//! | `GET /api/v1/traces?query=&limit=` | the newest traces that a query finds; with `since`, `until`, `min_ns`, `max_ns` those of a region of the heat map |
//! | `GET /api/v1/heat?query=&columns=&rows=` | counts of traces by start and duration |
//! | `GET /api/v1/differences?query=&since=…` | attributes by which the traces of a region differ from the others that the query finds |
//! | `GET /api/v1/traces/{id}` | the trace in columns; `last` and the beginning of an id are taken too |
//! | `GET /api/v1/traces/{id}/spans/{id}` | one span as it was written |
//! | `GET /api/v1/logs?trace=&task=&text=&stream=&level=&since=&until=&limit=&before=&after=` | lines of output and log records by time, each with its span |
//! | `GET /api/v1/open` | what is open now, by process |
//! | `GET /api/v1/events` | server-sent events: `changed` with a revision |

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::page;
use super::questions::Question;
use super::server::Shared;
use super::source::Watched;
use crate::http_api::access::{self, Claims};
use crate::http_api::body::Body;
use crate::http_api::limits;
use crate::http_api::problem::{self, Problem};
use crate::json;

/// The longest body: that with a code.
const BODY_BYTES: usize = 1 << 10;
/// Interval at which a page is told that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that wait for a page that does not read: it has not to know of each change.
const EVENTS: usize = 2;

pub(super) type Answer = Result<Response<Body>, Problem>;

#[derive(Deserialize)]
struct Exchange {
    code: String,
}

#[derive(Serialize)]
struct Token {
    token: String,
}

impl Shared {
    /// Answers a request.
    pub(super) async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let answer = match self.check_access(&request) {
            Ok(()) => Arc::clone(self).serve(request).await,
            Err(problem) => Err(problem),
        };
        let mut response = answer.unwrap_or_else(|problem| problem.into_response(Body::whole));
        page::add_headers(response.headers_mut());
        response
    }

    /// Checks the name and the origin of every request, and the token of all but those for the page's files and for a token.
    fn check_access(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        let all = |name| request.headers().get_all(name).into_iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
        let (hosts, origins, authorizations) = (all(header::HOST), all(header::ORIGIN), all(header::AUTHORIZATION));
        let claims = Claims {
            authority: request.uri().authority().map(|authority| authority.as_str()),
            hosts: &hosts,
            origins: &origins,
            authorizations: &authorizations,
        };
        let path = request.uri().path();
        let checked = access::check_names(&claims, self.address).and_then(|()| {
            let is_open = page::find(path).is_some() || path == "/api/v1/viewer";
            if is_open { Ok(()) } else { access::check_token(&claims, |token| self.links.is_token(token)) }
        });
        checked.map_err(|denied| {
            let address = self.address;
            let own = format!("this server is http://{address} and http://localhost:{}", address.port());
            let another = "the page of another link is not let in: `tracer view` makes a new link";
            match denied {
                access::Denied::HostMissing => {
                    Problem::new(problem::INVALID, "the request has not exactly one `Host`").hint(own)
                }
                access::Denied::Host(host) => {
                    Problem::new(problem::FORBIDDEN_NAME, format!("`{host}` is not a name of this server")).hint(own)
                }
                access::Denied::Origin(origin) => {
                    let text = format!("the request comes from a page of `{origin}`");
                    Problem::new(problem::FORBIDDEN_ORIGIN, text).hint(own)
                }
                access::Denied::TokenMissing => {
                    Problem::new(problem::UNAUTHORIZED, "the request has no `Authorization: Bearer` with a token")
                        .hint(another)
                }
                access::Denied::TokenWrong => {
                    Problem::new(problem::UNAUTHORIZED, "the token is not one of this server's").hint(another)
                }
            }
        })
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let is_get = matches!(parts.method, Method::GET | Method::HEAD);
        if let Some(file) = page::find(&path) {
            return allowed(is_get, "GET, HEAD", &path).map(|()| file_answer(file));
        }
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match segments.as_slice() {
            ["api", "v1", "viewer"] => {
                allowed(parts.method == Method::POST, "POST", &path)?;
                self.exchange(body).await
            }
            ["api", "v1", rest @ ..] => {
                let question = Question::new(rest, &path, &query)?;
                allowed(is_get, "GET, HEAD", &path)?;
                match question {
                    Question::Events => Ok(self.events()),
                    question => self.look(move |watched| question.answer(watched)).await,
                }
            }
            _ => Err(nothing_at(&path)),
        }
    }

    async fn exchange(&self, body: Incoming) -> Answer {
        let read = tokio::time::timeout(limits::BODY_TIME, Limited::new(body, BODY_BYTES).collect()).await;
        let bytes = match read {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return Err(Problem::new(problem::TOO_LARGE, format!("more than {BODY_BYTES} bytes"))),
            Err(_) => return Err(Problem::new(problem::TOO_SLOW, "the body did not arrive")),
        };
        let exchange: Exchange = serde_json::from_slice(&bytes)
            .map_err(|_| Problem::new(problem::INVALID, "expected an object with the `code` of a link"))?;
        let token = self.links.exchange(&exchange.code, Instant::now()).map_err(unreadable)?;
        let token = token.ok_or_else(|| {
            Problem::new(problem::UNAUTHORIZED, "the link was used, or is older than a minute")
                .hint("`tracer view` makes a new link; where it runs, Enter does")
        })?;
        json_answer(&Token { token })
    }

    /// Answers with what is there, on a thread that may read files.
    async fn look(self: Arc<Self>, answer: impl FnOnce(&Watched) -> Answer + Send + 'static) -> Answer {
        let looked = tokio::task::spawn_blocking(move || match self.source.look() {
            Ok(watched) => answer(&watched),
            Err(error) => Err(unreadable(error)),
        });
        looked.await.unwrap_or_else(|error| Err(unreadable(error)))
    }

    /// Server-sent events, for as long as the page reads. The revision is the event's id: a page that connects again gets the one of then, and
    /// asks anew for what it shows if that is another.
    fn events(self: &Arc<Self>) -> Response<Body> {
        let (pieces_tx, pieces) = mpsc::channel(EVENTS);
        let mut revisions = self.follow();
        let maker = tokio::spawn(async move {
            loop {
                let revision = *revisions.borrow_and_update();
                let event = format!("id: {revision}\nevent: changed\ndata: {{\"revision\":{revision}}}\n\n");
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
        let mut response = Response::new(Body::pieces(pieces, maker.abort_handle()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }
}

fn file_answer(file: &'static page::File) -> Response<Body> {
    let mut response = Response::new(Body::whole(Bytes::from_static(file.bytes)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    response
}

pub(super) fn json_answer(report: &impl Serialize) -> Answer {
    json::bytes(report).map(json_text).map_err(unreadable)
}

pub(super) fn json_text(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn allowed(is_allowed: bool, methods: &'static str, path: &str) -> Result<(), Problem> {
    if is_allowed {
        return Ok(());
    }
    let text = format!("`{}` takes {methods}", path.escape_debug());
    Err(Problem::new(problem::WRONG_METHOD, text).header(header::ALLOW, methods))
}

pub(super) fn nothing_at(path: &str) -> Problem {
    Problem::new(problem::NO_ROUTE, format!("there is nothing at `{}`", path.escape_debug()))
}

fn unreadable(error: impl std::fmt::Display) -> Problem {
    Problem::new(problem::UNREADABLE, error.to_string())
}
