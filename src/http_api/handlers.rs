//! Operations of the HTTP API, once a request is let in.

use std::cell::Cell;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Bytes, Incoming};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tracer_options::LONGEST_MS;

use super::body::Body;
use super::limits::{self, BODY_BYTES, BODY_TIME, HELD_TIME, Rate};
use super::link::LinkError;
use super::metrics::Collected;
use super::metrics::report::MetricsReport;
use super::otlp::{Form, Signal, Taken};
use super::otlp_counts::{OTLP_REFUSED, OTLP_REJECTED, OTLP_TAKEN, OTLP_WRITTEN_ITEM};
use super::output::Next;
use super::problem::{self, Problem};
use super::routes::{self, Found, Operation, Route};
use super::submission::{Submission, idempotency_key};
use super::trace::{self, Asked, ServerSpan};
use super::{App, access, metrics, openapi, otlp_counts, parameters, place};
use crate::json;
use crate::log_entries::{PageRequest, Reader, Spans};
use crate::pattern;
use crate::propagation::Carrier;
use crate::protocol::{
    CancelReport, CancelWhich, Query, Reply, ServiceQuery, ServiceReply, Stream, TaskReport, TaskState,
};
use crate::stored;
use crate::task::TaskId;
use crate::trace::{Live, TraceId};
use crate::value::JsonText;
use tracer_core::lock::lock;
use tracer_core::metric_names::{HTTP_DURATION, OTLP_ITEMS, OTLP_REQUESTS, OTLP_WRITTEN, SIGNAL};
use tracer_core::request_names::OUTCOME;
use tracer_ipc::metrics::SERVING_FOLDER;
use tracer_ipc::metrics::instruments::{self, MODULES_FOLDER, Measured};
use tracer_ipc::session;

/// The trace of a task, in answers about it.
const X_TRACE_ID: &str = "x-trace-id";
/// The path for scrapers.
const METRICS_PATH: &str = "/metrics";
/// Longest time that a scrape waits for the observers of modules.
const OBSERVERS_PATIENCE: Duration = Duration::from_millis(200);
/// Interval at which a client that follows is told that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The highest number of a line that is taken; there are never so many.
const LAST_LINE: u64 = (1 << 53) - 1;
/// Pieces that wait for a client that follows.
const PIECES: usize = 64;

pub(super) type Answer = Result<Response<Body>, Problem>;

/// Parent of a submission.
struct Parent {
    carrier: Carrier,
    is_remote: bool,
}

impl App {
    /// Answers a request. `let_in` is called when it has shown the token.
    pub(super) async fn answer(&self, request: Request<Incoming>, let_in: impl FnOnce()) -> Response<Body> {
        let begun = Instant::now();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let is_received = is_received(&method, &path);
        let form = Form::of(request.headers()).ok().filter(|_| is_received);
        let answer = match self.check_access(&request) {
            // Those who are not let in take nothing from those who are.
            Err(problem) => Err(self.take(&self.strangers, 1).await.err().unwrap_or(problem)),
            Ok(()) => {
                let_in();
                // What is received has limits of its own.
                let turn = if is_received { Ok(()) } else { self.take(&self.rate, 1).await };
                match turn {
                    Ok(()) => self.serve(request).await,
                    Err(problem) => Err(problem),
                }
            }
        };
        let mut response = answer.unwrap_or_else(|problem| match form {
            Some(form) => form.failure(problem),
            None => problem.into_response(Body::whole),
        });
        self.log.look();
        self.count(&method, &path, response.status(), begun);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    /// Counts a request that is answered; a stream up to its head.
    fn count(&self, method: &Method, path: &str, status: StatusCode, begun: Instant) {
        let Some(requests) = &self.requests else { return };
        let known =
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH];
        let method_name = if known.contains(method) { method.as_str() } else { "_OTHER" };
        let mut attributes = vec![("http.request.method", method_name)];
        if let Found::Route(route, _) = routes::find(method, path) {
            attributes.push(("http.route", route.path));
        }
        attributes.push(("http.response.status_code", status.as_str()));
        let mut file = lock(requests);
        let series = file.series(HTTP_DURATION, &attributes);
        file.observe(series, begun.elapsed().as_secs_f64());
        if let Found::Route(Route { operation: Operation::Receive(signal), .. }, _) = routes::find(method, path)
            && self.receiver.is_some()
        {
            let outcome = if status.is_success() { OTLP_TAKEN } else { OTLP_REFUSED };
            let series = file.series(OTLP_REQUESTS, &[(SIGNAL, signal.name()), (OUTCOME, outcome)]);
            file.count(series, 1);
        }
    }

    /// Counts what a request has brought.
    fn count_items(&self, signal: Signal, taken: &Taken) {
        let Some(requests) = &self.requests else { return };
        let mut file = lock(requests);
        for (outcome, count) in [(OTLP_WRITTEN_ITEM, taken.decoded.accepted), (OTLP_REJECTED, taken.decoded.rejected)] {
            if count > 0 {
                let series = file.series(OTLP_ITEMS, &[(SIGNAL, signal.name()), (OUTCOME, outcome)]);
                file.count(series, count);
            }
        }
        let series = file.series(OTLP_WRITTEN, &[(SIGNAL, signal.name())]);
        file.count(series, taken.written);
    }

    /// Every metric, in the format that the request accepts.
    async fn metrics(&self, headers: &HeaderMap) -> Answer {
        let collected = self.collect().await?;
        let format = metrics::Format::asked(headers);
        let mut response = Response::new(Body::whole(Bytes::from(metrics::render(format, &collected))));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        Ok(response)
    }

    /// Collects every metric: from the files of the place, from the head and from observers.
    pub(super) async fn collect(&self) -> Result<Collected, Problem> {
        let Reply::Status(status) = self.query(Query::Status).await? else { return Err(unexpected()) };
        let Reply::Workers(workers) = self.query(Query::Workers).await? else { return Err(unexpected()) };
        let Reply::Service(ServiceReply::Services(services)) = self.query(Query::Service(ServiceQuery::List)).await?
        else {
            return Err(unexpected());
        };
        let place = session::place_of(&self.session_dir);
        let paths = [crate::head::figures::path(place), place::request_metrics_path(&self.session_dir)];
        let read = |path: &PathBuf| {
            let unreadable = |error| Problem::new(problem::UNREADABLE, format!("`{}`: {error}", path.display()));
            tracer_ipc::metrics::read(path).map_err(unreadable)
        };
        let mut kept: Vec<_> = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?.concat();
        let serving = place.join(SERVING_FOLDER);
        let unreadable = |error| Problem::new(problem::UNREADABLE, format!("`{}`: {error}", serving.display()));
        kept.extend(tracer_ipc::metrics::read_folder(&serving).map_err(unreadable)?);
        let modules = self.metrics_of_modules(place.join(MODULES_FOLDER)).await?;
        let processes = metrics::processes(status.head_pid, &workers);
        let received = self.receiver.as_ref().map(|receiver| {
            let mut received = lock(&receiver.metrics);
            (received.measured(Instant::now()), received.not_shown())
        });
        let (received, not_shown) = received.map_or_else(Default::default, |(all, count)| (all, Some(count)));
        Ok(Collected { kept, modules, received, not_shown, status, services, processes })
    }

    /// Asks the observers of modules, and reads what all modules have measured.
    async fn metrics_of_modules(&self, folder: PathBuf) -> Result<Vec<Measured>, Problem> {
        let read = move || {
            instruments::ask_observers(&folder, OBSERVERS_PATIENCE)
                .and_then(|()| instruments::read_folder(&folder))
                .map_err(|error| Problem::new(problem::UNREADABLE, format!("`{}`: {error}", folder.display())))
        };
        tokio::task::spawn_blocking(read).await.map_err(|_| unexpected())?
    }

    fn check_access<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let all = |name| request.headers().get_all(name).into_iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
        let (hosts, origins, authorizations) = (all(header::HOST), all(header::ORIGIN), all(header::AUTHORIZATION));
        let claims = access::Claims {
            authority: request.uri().authority().map(|authority| authority.as_str()),
            hosts: &hosts,
            origins: &origins,
            authorizations: &authorizations,
        };
        let address = self.settings.address;
        let is_scrape = request.uri().path() == METRICS_PATH;
        let receiver = self.receiver.as_ref().filter(|_| is_received(request.method(), request.uri().path()));
        // Shown where it is good for nothing: an exporter with a wrong path, most likely.
        let is_sender = Cell::new(false);
        let is_known = |shown: &[u8]| {
            let is_token = access::is_same(shown, self.token.as_bytes());
            let is_scraper = is_scrape && access::is_same(shown, self.metrics_token.as_bytes());
            let senders = self.receiver.as_ref().map(|receiver| receiver.token.as_bytes());
            is_sender.set(senders.is_some_and(|token| access::is_same(shown, token)));
            is_token || is_scraper || (receiver.is_some() && is_sender.get())
        };
        let checked = access::check_names(&claims, address.get()).and_then(|()| access::check_token(&claims, is_known));
        let Err(denied) = checked else { return Ok(()) };
        let hint = format!(
            "this server is {} and http://localhost:{}; behind `ssh -L` use the same port on both sides",
            address.url(),
            address.get().port()
        );
        Err(match denied {
            access::Denied::HostMissing => {
                Problem::new(problem::INVALID, "the request has not exactly one `Host`").hint(hint)
            }
            access::Denied::Host(host) => {
                Problem::new(problem::FORBIDDEN_NAME, format!("`{host}` is not a name of this server")).hint(hint)
            }
            access::Denied::Origin(origin) => {
                let text = format!("the request comes from a page of `{origin}`");
                Problem::new(problem::FORBIDDEN_ORIGIN, text).hint(hint)
            }
            access::Denied::TokenMissing if receiver.is_some() => {
                self.no_sender("the request has no `Authorization: Bearer` with the token of senders")
            }
            access::Denied::TokenWrong if receiver.is_some() => {
                self.no_sender("the token in `Authorization: Bearer` is not the one of senders")
            }
            access::Denied::TokenWrong if is_sender.get() => {
                let text = "the token of senders is taken with POST at /v1/traces, /v1/logs and /v1/metrics only";
                self.no_sender(text)
            }
            access::Denied::TokenMissing => {
                self.unauthorized("the request has no `Authorization: Bearer` with the token")
            }
            access::Denied::TokenWrong => {
                self.unauthorized("the token is not the one of this head; each start makes a new one")
            }
        })
    }

    fn unauthorized(&self, text: &str) -> Problem {
        let path = place::token_path(&self.session_dir);
        let hint = format!("the token is in `{}`: curl -H \"Authorization: Bearer $(cat {0})\"", path.display());
        Problem::new(problem::UNAUTHORIZED, text).hint(hint).header(header::WWW_AUTHENTICATE, "Bearer realm=\"tracer\"")
    }

    fn no_sender(&self, text: &str) -> Problem {
        let path = place::otlp_token_path(&self.session_dir);
        let hint = format!(
            "the token is in `{}`: OTEL_EXPORTER_OTLP_HEADERS=\"authorization=Bearer%20$(cat {0})\"",
            path.display()
        );
        Problem::new(problem::UNAUTHORIZED, text).hint(hint).header(header::WWW_AUTHENTICATE, "Bearer realm=\"tracer\"")
    }

    /// Waits until it is this request's turn, or refuses it when that takes too long.
    async fn take(&self, rate: &Mutex<Rate>, count: u32) -> Result<(), Problem> {
        let wait = lock(rate).take(count, Instant::now());
        if wait != Some(Duration::ZERO) {
            // Also before it is refused: who is refused at once asks again at once.
            tokio::time::sleep(wait.unwrap_or(HELD_TIME)).await;
        }
        wait.map(drop).ok_or_else(|| {
            Problem::new(problem::TOO_MANY, "more requests arrive than the rate limit admits")
                .header(header::RETRY_AFTER, "1")
        })
    }

    async fn serve(&self, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let (route, id) = match routes::find(&parts.method, parts.uri.path()) {
            Found::Route(Route { operation: Operation::Receive(_), .. }, _) if self.receiver.is_none() => {
                let text = format!("`{}` is not served here: no OTLP is received", parts.uri.path());
                return Err(Problem::new(problem::NO_ROUTE, text).hint("start the head with --otlp"));
            }
            Found::Route(Route { operation, .. }, _)
                if self.settings.is_metrics_only
                    && !matches!(operation, Operation::Metrics | Operation::Receive(_)) =>
            {
                let served = if self.receiver.is_some() { "only /metrics and OTLP are" } else { "only /metrics is" };
                let text = format!("`{}` is not served here, {served}", parts.uri.path());
                return Err(
                    Problem::new(problem::NO_ROUTE, text).hint("start the head with --http ADDRESS for the HTTP API")
                );
            }
            Found::Route(route, id) => (route, id.map(str::to_owned)),
            Found::Nothing => {
                let text = format!("there is nothing at `{}`", parts.uri.path().escape_debug());
                return Err(Problem::new(problem::NO_ROUTE, text).hint("GET / lists the routes"));
            }
            Found::OtherMethods(allowed) => {
                let text = format!("`{}` takes {allowed}, not {}", parts.uri.path(), parts.method);
                return Err(Problem::new(problem::WRONG_METHOD, text).header(header::ALLOW, allowed));
            }
        };
        let carrier = trace::carrier(&parts.headers, self.welcome.tracing.propagators);
        // A request that only looks, and that nobody traces, is no trace of its own.
        let is_asked = route.operation == Operation::Submit || carrier.trace_context.is_some();
        // Nor is what is received, which would never end.
        let is_traced = is_asked && !matches!(route.operation, Operation::Receive(_));
        let span = self.recorder.filter(|_| is_traced).map(|recorder| {
            let asked = Asked {
                method: parts.method.as_str(),
                route: route.path,
                path: parts.uri.path(),
                query: parts.uri.query(),
                user_agent: parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()),
                address: self.settings.address,
            };
            ServerSpan::start(recorder, &asked, &carrier)
        });
        let parent = match &span {
            Some(span) => Parent { carrier: span.carrier(carrier.baggage), is_remote: false },
            None => Parent { carrier, is_remote: true },
        };
        let answer = self.operate(route, id.as_deref(), &parts, body, parent).await;
        let response = answer.unwrap_or_else(|problem| problem.into_response(Body::whole));
        if let Some(span) = span {
            span.finish(response.status());
        }
        Ok(response)
    }

    async fn operate(
        &self,
        route: &'static Route,
        id: Option<&str>,
        parts: &Parts,
        body: Incoming,
        parent: Parent,
    ) -> Answer {
        let query = parts.uri.query().unwrap_or_default();
        let id = id.map(task_id).transpose();
        match (route.operation, id?) {
            (Operation::FollowTask, Some(id)) => self.follow(id, query, parts).await,
            (Operation::GetTask, Some(id)) => {
                parameters::parse(query, &[])?;
                self.task_answer(id, StatusCode::OK).await
            }
            (Operation::WaitForTask, Some(id)) => self.wait(id, query).await,
            (Operation::CancelTask, Some(id)) => self.cancel(id, query).await,
            (Operation::Submit, _) => self.submit(parts, body, query, parent).await,
            (Operation::ListTasks, _) => self.list(query).await,
            (Operation::ListWorkers, _) => {
                parameters::parse(query, &[])?;
                match self.query(Query::Workers).await? {
                    Reply::Workers(workers) => {
                        Ok(json_answer(StatusCode::OK, &json::with_times(&json!({ "workers": workers }))))
                    }
                    _ => Err(unexpected()),
                }
            }
            (operation @ (Operation::ListServices | Operation::ListDeployments | Operation::ListReplicas), _) => {
                parameters::parse(query, &[])?;
                self.services(operation).await
            }
            (Operation::ListLogs, _) => self.logs(query).await,
            (Operation::ReportMetrics, _) => {
                parameters::parse(query, &[])?;
                let collected = self.collect().await?;
                Ok(json_answer(StatusCode::OK, &MetricsReport::of(&collected)))
            }
            (Operation::Status, _) => {
                parameters::parse(query, &[])?;
                match self.query(Query::Status).await? {
                    Reply::Status(mut status) => {
                        otlp_counts::add(&mut status);
                        Ok(json_answer(StatusCode::OK, &*status))
                    }
                    _ => Err(unexpected()),
                }
            }
            (Operation::Metrics, _) => {
                parameters::parse(query, &[])?;
                self.metrics(&parts.headers).await
            }
            (Operation::Receive(signal), _) => {
                parameters::parse(query, &[])?;
                let form = Form::of(&parts.headers)?;
                match &self.receiver {
                    Some(receiver) => Ok(match receiver.receive(signal, form, parts, body).await {
                        Ok(taken) => {
                            self.count_items(signal, &taken);
                            form.success(signal, &taken.decoded)
                        }
                        Err(problem) => form.failure(problem),
                    }),
                    None => Err(Problem::new(problem::NO_ROUTE, "no OTLP is received")),
                }
            }
            (Operation::Describe, _) => {
                parameters::parse(query, &[])?;
                Ok(json_bytes(StatusCode::OK, self.description.clone()))
            }
            (Operation::Index, _) => {
                parameters::parse(query, &[])?;
                Ok(json_answer(StatusCode::OK, &index()))
            }
            (_, None) => Err(Problem::new(problem::NO_ROUTE, "the path lacks a task's id")),
        }
    }

    /// Lines of output and log records of this head's session.
    async fn logs(&self, query: &str) -> Answer {
        let parameters = parameters::parse(query, PageRequest::PARAMETERS)?;
        let PageRequest { task, mut selection, part, limit } = PageRequest::new(&parameters)?;
        if let (Some(id), Some(tasks)) = (task, &mut selection.tasks) {
            let report = self.report(id).await?;
            tasks.since_unix_nano = report.submitted_unix_nano;
            tasks.traces.extend(report.trace_id.as_deref().and_then(|id| id.parse::<TraceId>().ok()));
        }
        // The folder of the spans has those of earlier sessions too.
        selection.since_unix_nano = selection.since_unix_nano.max(self.session_began_unix_nano);
        let permit = Arc::clone(&self.large).acquire_owned().await.map_err(|_| unexpected())?;
        let (session_dir, folder) = (self.session_dir.clone(), self.welcome.tracing.spans_dir.clone());
        let read = tokio::task::spawn_blocking(move || {
            let spans = Spans::Stored(Some(Live::new(&session_dir)));
            let page = Reader::new(selection, &folder, Some(&session_dir), spans).page(part, limit)?;
            Ok::<_, std::io::Error>(json::bytes(&page).expect("reports are plain data"))
        });
        let read = read.await.map_err(|_| unexpected())?;
        let unreadable = |error| Problem::new(problem::UNREADABLE, format!("the logs cannot be read: {error}"));
        let bytes = read.map_err(unreadable)?;
        let mut response = json_bytes(StatusCode::OK, Bytes::new());
        *response.body_mut() = Body::Large(Some(bytes.into()), permit);
        Ok(response)
    }

    /// Services, or all their deployments or replicas.
    async fn services(&self, operation: Operation) -> Answer {
        let Reply::Service(ServiceReply::Services(services)) = self.query(Query::Service(ServiceQuery::List)).await?
        else {
            return Err(unexpected());
        };
        let report = match operation {
            Operation::ListDeployments => {
                let rows: Vec<_> = services.into_iter().flat_map(|service| service.deployments).collect();
                json!({ "deployments": rows })
            }
            Operation::ListReplicas => {
                let rows: Vec<_> = services.into_iter().flat_map(|service| service.replicas).collect();
                json!({ "replicas": rows })
            }
            _ => json!({ "services": services }),
        };
        Ok(json_answer(StatusCode::OK, &json::with_times(&report)))
    }

    async fn submit(&self, parts: &Parts, body: Incoming, query: &str, parent: Parent) -> Answer {
        let parameters = parameters::parse(query, &["wait_ms"])?;
        let wait = parameters::number(&parameters, "wait_ms", 0, limits::WAIT_TIME.as_millis() as u64)?.unwrap_or(0);
        let keys: Vec<_> = parts.headers.get_all("idempotency-key").into_iter().collect();
        let key = match keys[..] {
            [] => String::new(),
            [key] => idempotency_key(key.as_bytes())?,
            _ => return Err(Problem::new(problem::INVALID, "`Idempotency-Key` is there more than once")),
        };
        check_is_json(&parts.headers)?;
        let body = read_body(body).await?;
        let submission = Submission::parse(&body, key, self.settings.allows_commands)?;
        drop(body);
        // A place to wait in is had before the task is there: what cannot be waited for is not begun.
        let place = if wait > 0 { Some(self.place(&self.waits)?) } else { None };
        let submitted = self.link.submit(submission, parent.carrier, parent.is_remote).await;
        let id = submitted.map_err(unavailable)?;
        let has_ended = match place {
            Some(_place) => self.wait_for(id, Duration::from_millis(wait)).await?,
            None => false,
        };
        let status = if has_ended { StatusCode::OK } else { StatusCode::ACCEPTED };
        let mut response = self.task_answer(id, status).await?;
        if let Ok(location) = HeaderValue::try_from(format!("/api/v1/tasks/{id}")) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        Ok(response)
    }

    async fn wait(&self, id: TaskId, query: &str) -> Answer {
        let parameters = parameters::parse(query, &["timeout_ms"])?;
        let limit = parameters::number(&parameters, "timeout_ms", 0, limits::WAIT_TIME.as_millis() as u64)?;
        let limit = limit.map_or(limits::DEFAULT_WAIT_TIME, Duration::from_millis);
        self.report(id).await?;
        let place = self.place(&self.waits)?;
        self.wait_for(id, limit).await?;
        drop(place);
        self.task_answer(id, StatusCode::OK).await
    }

    /// True when the task has ended in time.
    async fn wait_for(&self, id: TaskId, limit: Duration) -> Result<bool, Problem> {
        match tokio::time::timeout(limit, self.link.wait(id)).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(unavailable(error)),
            Err(_) => Ok(false),
        }
    }

    fn place<'a>(&self, places: &'a Semaphore) -> Result<SemaphorePermit<'a>, Problem> {
        places.try_acquire().map_err(|_| {
            Problem::new(problem::TOO_MANY, "the limit on requests that wait is reached")
                .header(header::RETRY_AFTER, "1")
        })
    }

    async fn cancel(&self, id: TaskId, query: &str) -> Answer {
        let parameters = parameters::parse(query, &["grace_ms"])?;
        let grace_ms = parameters::number(&parameters, "grace_ms", 0, LONGEST_MS)?;
        let trace_id = self.report(id).await?.trace_id;
        let query = Query::Cancel { which: CancelWhich::Ids(vec![id]), grace_ms };
        let Reply::Cancelled(cancelled) = self.query(query).await? else { return Err(unexpected()) };
        let (status, state) = match cancelled.first() {
            Some((_, CancelReport::Cancelling)) => (StatusCode::ACCEPTED, CancelReport::Cancelling),
            Some((_, state @ (CancelReport::Cancelled | CancelReport::Ended))) => (StatusCode::OK, *state),
            _ => return Err(no_task(id)),
        };
        Ok(with_trace_id(json_answer(status, &json!({ "id": id, "state": state })), trace_id.as_deref()))
    }

    async fn list(&self, query: &str) -> Answer {
        let parameters = parameters::parse(query, &["limit", "state", "name"])?;
        let limit = parameters::number(&parameters, "limit", 1, limits::LIST as u64)?;
        let limit = limit.map_or(limits::DEFAULT_LIST, |limit| limit as usize);
        let name = parameters::text(&parameters, "name");
        let state = match parameters::text(&parameters, "state") {
            None => None,
            Some(text) => Some(state(text)?),
        };
        let is_filtered = name.is_some() || state.is_some();
        // Filters look at no more than the newest that one request may list, whatever there is.
        let looked_at = if is_filtered { limits::LIST } else { limit };
        let listed = looked_at / limits::LISTED_PER_REQUEST;
        self.take(&self.rate, u32::try_from(listed).unwrap_or(u32::MAX)).await?;
        let Reply::Tasks(mut list) =
            self.query(Query::Tasks { limit: looked_at, which: crate::protocol::TaskFilter::default() }).await?
        else {
            return Err(unexpected());
        };
        let all = list.tasks.len();
        list.tasks.retain(|task| {
            state.is_none_or(|state| task.state == state)
                && name.is_none_or(|name| task.name.as_deref().is_some_and(|own| pattern::fits(name, own)))
        });
        let filtered_out = all - list.tasks.len();
        let over = list.tasks.len().saturating_sub(limit);
        list.tasks.truncate(limit);
        list.tasks.iter_mut().for_each(|task| task.stored = None);
        Ok(json_answer(
            StatusCode::OK,
            &json::with_times(&json!({
                "tasks": list.tasks, "left_out": list.left_out + over, "filtered_out": filtered_out,
                "forgotten": list.forgotten,
            })),
        ))
    }

    /// Returns what a task has written, as events, until it has ended.
    async fn follow(&self, id: TaskId, query: &str, parts: &Parts) -> Answer {
        let parameters = parameters::parse(query, &["after"])?;
        let after = parameters::number(&parameters, "after", 0, LAST_LINE)?;
        // What a client that connects again has seen last.
        let seen = match parts.headers.get("last-event-id") {
            None => None,
            Some(seen) => {
                let seen = [("Last-Event-ID".to_owned(), String::from_utf8_lossy(seen.as_bytes()).into_owned())];
                parameters::number(&seen, "Last-Event-ID", 0, LAST_LINE)?
            }
        };
        let report = self.report(id).await?;
        let Some(log) = self.outputs.of(id) else {
            let text = format!("the output of task {id} is not kept here");
            let hint = "it is for tasks that were submitted over HTTP, unless with \"output\": false, and of the newest of them";
            let problem = Problem::new(problem::NO_OUTPUT, text).hint(hint);
            return Ok(with_trace_id(problem.into_response(Body::whole), report.trace_id.as_deref()));
        };
        let place = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Problem::new(problem::TOO_MANY, "the limit on requests that follow tasks is reached")
                .header(header::RETRY_AFTER, "1")
        })?;
        let (pieces, taken) = mpsc::channel(PIECES);
        let link = Arc::clone(&self.link);
        let mut number = seen.or(after).unwrap_or(0);
        let maker = tokio::spawn(async move {
            let _place = place;
            loop {
                let event = match tokio::time::timeout(KEEP_ALIVE, log.next(number)).await {
                    Err(_) => ": still running\n\n".to_owned(),
                    Ok(Next::Line(at, line)) => {
                        number = at;
                        let stream = match line.stream {
                            Stream::Stdout => "stdout",
                            Stream::Stderr => "stderr",
                        };
                        let mut written = json!({ "pid": line.worker_pid, "line": line.text });
                        if line.is_shared {
                            written["shared"] = true.into();
                        }
                        event(stream, Some(at), &written)
                    }
                    Ok(Next::Missed(lines)) => {
                        number += lines;
                        event("missed", Some(number), &json!({ "lines": lines }))
                    }
                    Ok(Next::End) => {
                        let state = match link.query(Query::Task { id }).await {
                            Ok(Reply::Task(Some(task))) => Some(task.state),
                            _ => None,
                        };
                        let _ = pieces.send(event("end", None, &json!({ "id": id, "state": state })).into()).await;
                        return;
                    }
                };
                if pieces.send(Bytes::from(event)).await.is_err() {
                    return;
                }
            }
        });
        let body = if parts.method == Method::HEAD {
            maker.abort();
            Body::whole(Bytes::new())
        } else {
            Body::pieces(taken, maker.abort_handle())
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Ok(with_trace_id(response, report.trace_id.as_deref()))
    }

    async fn query(&self, query: Query) -> Result<Reply, Problem> {
        self.link.query(query).await.map_err(unavailable)
    }

    async fn report(&self, id: TaskId) -> Result<Box<TaskReport>, Problem> {
        match self.query(Query::Task { id }).await? {
            Reply::Task(task) => task.ok_or_else(|| no_task(id)),
            _ => Err(unexpected()),
        }
    }

    /// A task with its result.
    async fn task_answer(&self, id: TaskId, status: StatusCode) -> Answer {
        let mut task = self.report(id).await?;
        let trace_id = task.trace_id.clone();
        let response = match task.stored.take() {
            None => json_answer(status, &json::task(*task)),
            Some(stored) => {
                let permit = Arc::clone(&self.large).acquire_owned().await.map_err(|_| unexpected())?;
                let folder = stored::folder(&self.session_dir);
                // It is large: others need not wait for it.
                let read = tokio::task::spawn_blocking(move || {
                    let bytes = stored::load(&folder, &stored).map_err(|error| error.to_string())?;
                    task.set_result(Some(JsonText::of(&bytes).map_err(|error| error.to_string())?));
                    drop(bytes);
                    json::bytes(&json::task(*task)).map_err(|error| error.to_string())
                });
                let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
                let unreadable = |error| Problem::new(problem::UNREADABLE, format!("the result of task {id}: {error}"));
                let mut response = json_bytes(status, Bytes::new());
                *response.body_mut() = Body::Large(Some(read.map_err(unreadable)?.into()), permit);
                response
            }
        };
        Ok(with_trace_id(response, trace_id.as_deref()))
    }
}

/// Returns whether a request brings OTLP.
fn is_received(method: &Method, path: &str) -> bool {
    matches!(routes::find(method, path), Found::Route(Route { operation: Operation::Receive(_), .. }, _))
}

fn unavailable(error: LinkError) -> Problem {
    let busy = |text: &str| Problem::new(problem::UNAVAILABLE, text).header(header::RETRY_AFTER, "1");
    match error {
        LinkError::Busy => busy("too many requests wait for the head"),
        LinkError::Gone => busy("the connection to the head is broken"),
        LinkError::Refused(refusal) => Problem::of_refusal(refusal),
        LinkError::Invalid(reason) => Problem::new(problem::INVALID, reason),
    }
}

fn unexpected() -> Problem {
    Problem::new(
        problem::UNAVAILABLE,
        "the head answered another question than it was asked; it may be of another version",
    )
}

fn no_task(id: TaskId) -> Problem {
    Problem::new(
        problem::NO_TASK,
        format!("there is no task {id}: it was never submitted to this head, or ended too long ago"),
    )
    .hint("GET /api/v1/tasks lists those that are known")
}

fn task_id(text: &str) -> Result<TaskId, Problem> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|&id| is_number && id > 0) {
        Some(id) => Ok(TaskId(id)),
        None => Err(Problem::new(
            problem::INVALID,
            format!("`{}` is not the id of a task, which is a number from 1", text.escape_debug()),
        )),
    }
}

fn state(text: &str) -> Result<TaskState, Problem> {
    TaskState::ALL.into_iter().find(|state| state.to_string() == text).ok_or_else(|| {
        let known: Vec<_> = TaskState::ALL.iter().map(|state| format!("`{state}`")).collect();
        let text = format!("`state` is `{}`, but takes one of {}", text.escape_debug(), known.join(", "));
        Problem::new(problem::INVALID, text)
    })
}

fn check_is_json(headers: &HeaderMap) -> Result<(), Problem> {
    for encoding in headers.get_all(header::CONTENT_ENCODING) {
        let encoding = encoding.to_str().unwrap_or("of other bytes").trim();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            let found = encoding.escape_debug();
            let text = format!("`Content-Encoding` is `{found}`, but a body is taken as it is only");
            return Err(Problem::new(problem::WRONG_TYPE, text).hint("send it without compression"));
        }
    }
    let type_of = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = type_of.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let text = match type_of {
        "" => "the request has no `Content-Type`; send `Content-Type: application/json`".to_owned(),
        found => format!("`Content-Type` is `{}`; send `application/json`", found.escape_debug()),
    };
    Err(Problem::new(problem::WRONG_TYPE, text))
}

/// Reads a body that is not too long and comes in time.
pub(super) async fn read_body(body: Incoming) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(problem::TOO_LARGE, format!("the body has more than {BODY_BYTES} bytes"))
            .hint("pass large data in a file, and its path as the argument")
    };
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large());
    }
    match in_time(BODY_TIME, Limited::new(body, BODY_BYTES).collect()).await? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Problem::new(problem::INVALID, format!("the body did not arrive whole: {error}"))),
    }
}

async fn in_time<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Problem> {
    let too_slow = |_| {
        let text = format!("the body did not arrive within {} seconds", limit.as_secs());
        Problem::new(problem::TOO_SLOW, text).header(header::CONNECTION, "close")
    };
    tokio::time::timeout(limit, future).await.map_err(too_slow)
}

/// Returns a server-sent event. JSON has no line feeds of its own.
fn event(name: &str, id: Option<u64>, data: &serde_json::Value) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}

fn json_answer(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    json_bytes(status, json::bytes(value).expect("reports are plain data").into())
}

fn json_bytes(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn with_trace_id(mut response: Response<Body>, trace_id: Option<&str>) -> Response<Body> {
    if let Some(trace_id) = trace_id.and_then(|trace_id| HeaderValue::from_str(trace_id).ok()) {
        response.headers_mut().insert(X_TRACE_ID, trace_id);
    }
    response
}

fn index() -> serde_json::Value {
    let paths: Vec<_> = routes::ROUTES.iter().map(|route| format!("{} {}", route.method.name(), route.path)).collect();
    json!({ "name": "tracer", "version": crate::VERSION, "description": openapi::PATH, "paths": paths })
}
