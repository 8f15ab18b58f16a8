//! Answers to the requests of the page.
//!
//! | request | answer |
//! |---|---|
//! | `POST /api/v1/viewer` with `{"code"}` | `token`, once |
//! | `GET /api/v1/traces?query=&limit=` | the newest traces that a query finds |
//! | `GET /api/v1/traces/{id}` | the trace in columns; `last` and the beginning of an id are taken too |
//! | `GET /api/v1/traces/{id}/spans/{id}` | one span as it was written |
//! | `GET /api/v1/open` | what is open now, by process |
//! | `GET /api/v1/events` | server-sent events: `changed` with a revision |

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::columns::Columns;
use super::page;
use super::server::Shared;
use super::source::Watched;
use crate::http_api::access::{self, Claims};
use crate::http_api::body::Body;
use crate::http_api::problem::{self, Kind, Problem};
use crate::http_api::{limits, parameters};
use crate::json;
use crate::trace::{Filter, FindError, List, LiveSpan, Query, Row, SpanId, Trace, rfc3339};

/// The longest body: that with a code.
const BODY_BYTES: usize = 1 << 10;
/// The traces that are listed if the request does not say how many.
const DEFAULT_LIST: usize = 200;
/// The most traces that one request lists.
const LIST: usize = 5000;
/// How often a page is told that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that wait for a page that does not read: it has not to know of each change.
const EVENTS: usize = 2;

/// There is no such trace.
const NO_TRACE: Kind = Kind { name: "no-such-trace", status: StatusCode::NOT_FOUND, title: "There is no such trace" };
/// There is no such span.
const NO_SPAN: Kind = Kind { name: "no-such-span", status: StatusCode::NOT_FOUND, title: "There is no such span" };

type Answer = Result<Response<Body>, Problem>;

#[derive(Deserialize)]
struct Exchange {
    code: String,
}

#[derive(Serialize)]
struct Token {
    token: String,
}

/// The traces that were found.
#[derive(Serialize)]
struct Traces<'a> {
    revision: u64,
    time: String,
    folder: String,
    notices: &'a [String],
    traces: Vec<TraceRow>,
    left_out: usize,
    filtered_out: usize,
}

#[derive(Serialize)]
struct TraceRow {
    #[serde(flatten)]
    row: Row,
    running: usize,
}

/// Everything that is open.
#[derive(Serialize)]
struct Open {
    revision: u64,
    time: String,
    open: usize,
    processes: Vec<OpenProcess>,
}

#[derive(Serialize)]
struct OpenProcess {
    pid: u32,
    service: String,
    spans: Vec<OpenSpan>,
}

#[derive(Serialize)]
struct OpenSpan {
    trace_id: String,
    span_id: String,
    name: String,
    age_ns: u64,
    task_id: Option<u64>,
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

    /// The name and the origin are checked of every request; the token of all but those for the page's files and for a token.
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
                    Problem::new(problem::UNAUTHORIZED, "the token is none of this server's").hint(another)
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
                let wanted = Wanted::new(rest, &path, &query)?;
                allowed(is_get, "GET, HEAD", &path)?;
                match wanted {
                    Wanted::Events => Ok(self.events()),
                    wanted => self.look(move |watched| wanted.answer(watched)).await,
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

/// A request for data, with its parameters parsed.
enum Wanted {
    Traces { query: String, limit: usize },
    Trace(String),
    Span(String, SpanId),
    Open,
    Events,
}

impl Wanted {
    fn new(segments: &[&str], path: &str, query: &str) -> Result<Wanted, Problem> {
        let known: &[&str] = if *segments == ["traces"] { &["query", "limit"] } else { &[] };
        let parameters = parameters::parse(query, known)?;
        Ok(match segments {
            ["traces"] => Wanted::Traces {
                query: parameters::text(&parameters, "query").unwrap_or_default().into(),
                limit: parameters::number(&parameters, "limit", 1, LIST as u64)?
                    .map_or(DEFAULT_LIST, |limit| usize::try_from(limit).unwrap_or(LIST)),
            },
            ["traces", id] => Wanted::Trace((*id).into()),
            ["traces", id, "spans", span_id] => {
                let span_id = span_id.parse().map_err(|_| {
                    let text = format!("expected a span id of 16 hex digits, found `{}`", span_id.escape_debug());
                    Problem::new(problem::INVALID, text)
                })?;
                Wanted::Span((*id).into(), span_id)
            }
            ["open"] => Wanted::Open,
            ["events"] => Wanted::Events,
            _ => return Err(nothing_at(path)),
        })
    }

    fn answer(&self, watched: &Watched) -> Answer {
        match self {
            Wanted::Traces { query, limit } => traces(watched, query, *limit),
            Wanted::Trace(id) => json_answer(&Columns::new(find(watched, id)?, watched.revision)),
            Wanted::Span(id, span_id) => {
                let span = find(watched, id)?.span(*span_id);
                let span = span.ok_or_else(|| {
                    let text = format!("there is no span {span_id} in the trace");
                    Problem::new(NO_SPAN, text)
                })?;
                Ok(json_text(span.compact_text()))
            }
            Wanted::Open => json_answer(&open(watched)),
            Wanted::Events => unreachable!("events are answered by the loop"),
        }
    }
}

fn traces(watched: &Watched, query: &str, limit: usize) -> Answer {
    let query = Query::parse(query, watched.now_unix_nano)
        .map_err(|error| Problem::new(problem::INVALID, error.to_string()))?;
    let loaded = watched.watch.loaded();
    let filter = Filter { query, ..Filter::default() };
    let List { rows, left_out, filtered_out, .. } = loaded.list(&filter, Some(limit));
    let mut running: std::collections::HashMap<_, usize> = std::collections::HashMap::new();
    for live in watched.watch.open() {
        *running.entry(live.span.trace_id).or_default() += 1;
    }
    let row = |row: Row| TraceRow { running: running.get(&row.trace_id).copied().unwrap_or(0), row };
    json_answer(&Traces {
        revision: watched.revision,
        time: rfc3339(watched.now_unix_nano),
        folder: loaded.folder.display().to_string(),
        notices: &watched.notices,
        traces: rows.into_iter().map(row).collect(),
        left_out,
        filtered_out,
    })
}

fn open(watched: &Watched) -> Open {
    let mut processes: Vec<OpenProcess> = Vec::new();
    for live in watched.watch.open() {
        let at = processes.iter().position(|process| process.pid == live.pid).unwrap_or_else(|| {
            let service = live.span.resource().text("service.name").unwrap_or_default().to_owned();
            processes.push(OpenProcess { pid: live.pid, service, spans: Vec::new() });
            processes.len() - 1
        });
        processes[at].spans.push(open_span(live));
    }
    for process in &mut processes {
        process.spans.sort_by_key(|span| std::cmp::Reverse(span.age_ns));
    }
    processes.sort_by_key(|process| process.pid);
    let open = processes.iter().map(|process| process.spans.len()).sum();
    Open { revision: watched.revision, time: rfc3339(watched.now_unix_nano), open, processes }
}

fn open_span(live: &LiveSpan) -> OpenSpan {
    OpenSpan {
        trace_id: live.span.trace_id.to_string(),
        span_id: live.span.span_id.to_string(),
        name: live.span.name.clone(),
        age_ns: live.span.duration_ns(),
        task_id: live.task_id,
    }
}

fn find<'a>(watched: &'a Watched, id: &str) -> Result<&'a Trace, Problem> {
    watched.watch.loaded().find(id).map_err(|error| {
        let kind = if matches!(error, FindError::NotAnId { .. }) { problem::INVALID } else { NO_TRACE };
        Problem::new(kind, error.to_string())
    })
}

fn file_answer(file: &'static page::File) -> Response<Body> {
    let mut response = Response::new(Body::whole(Bytes::from_static(file.bytes)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    response
}

fn json_answer(report: &impl Serialize) -> Answer {
    json::bytes(report).map(json_text).map_err(unreadable)
}

fn json_text(text: impl Into<Bytes>) -> Response<Body> {
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

fn nothing_at(path: &str) -> Problem {
    Problem::new(problem::NO_ROUTE, format!("there is nothing at `{}`", path.escape_debug()))
}

fn unreadable(error: impl std::fmt::Display) -> Problem {
    Problem::new(problem::UNREADABLE, error.to_string())
}
