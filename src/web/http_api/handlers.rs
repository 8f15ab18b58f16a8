//! Operations of the HTTP API, once a request is let in.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Bytes, Incoming};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tracer_core::lock::lock;
use tracer_core::metric_names::{HTTP_DURATION, OTLP_ITEMS, OTLP_REQUESTS, OTLP_WRITTEN, SIGNAL};
use tracer_core::parameters;
use tracer_core::problem::{self, Problem};
use tracer_core::propagation::Carrier;
use tracer_core::request_names::OUTCOME;
use tracer_core::task::TaskId;
use tracer_ipc::metrics::SERVING_FOLDER;
use tracer_ipc::metrics::instruments::{self, MODULES_FOLDER, Measured};
use tracer_ipc::protocol::{Query, Reply, ServiceQuery, ServiceReply, Stream, TaskReport};
use tracer_ipc::{http_place as place, session};
use tracer_trace::log_entries::{PageRequest, Reader, Spans};
use tracer_trace::{Live, TraceId, json};

use super::access::Role;
use super::body::{Answer, Body, read_body};
use super::limits::{self, HELD_TIME, Rate};
use super::link::LinkError;
use super::metrics::Collected;
use super::metrics::report::MetricsReport;
use super::otlp::{Form, Signal, Taken};
use super::otlp_counts::{OTLP_REFUSED, OTLP_REJECTED, OTLP_TAKEN, OTLP_WRITTEN_ITEM};
use super::output::Next;
use super::reports::{
    self, Head, ServiceList, TasksAsked, json_answer, json_bytes, task_id, unexpected, with_trace_id,
};
use super::routes::{self, Found, Operation, Route};
use super::submission::{Submission, idempotency_key};
use super::trace::{self, Asked, ServerSpan};
use super::{App, access, metrics, openapi, say_no_room};
use crate::view;

/// The path at which a page exchanges the code of its link.
const CODE_PATH: &str = "/api/v1/viewer";
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
            Ok(None) => match self.take(&self.strangers, 1).await {
                Ok(()) => self.serve(request, None).await,
                Err(problem) => Err(problem),
            },
            Ok(Some(role)) => {
                let_in();
                // What is received has limits of its own.
                let turn = if is_received { Ok(()) } else { self.take(&self.rate, 1).await };
                match turn {
                    Ok(()) => self.serve(request, Some(role)).await,
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
        view::add_headers(response.headers_mut());
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
        say_no_room(&mut file);
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
        let paths = [tracer_ipc::http_place::head_metrics_path(place), place::request_metrics_path(&self.session_dir)];
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

    /// Returns whether a path is for everybody who names this server: the files of the page, which have no data, and the exchange of a code.
    fn is_open(&self, path: &str) -> bool {
        !self.settings.is_metrics_only && (view::find_file(path).is_some() || path == CODE_PATH)
    }

    /// Checks the names that a request uses, and returns what its token is good for; none where it needs no token.
    fn check_access<B>(&self, request: &Request<B>) -> Result<Option<Role>, Problem> {
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
        let role_of = |shown: &[u8]| {
            let is = |token: &str| tracer_ipc::http_codes::is_same(shown, token.as_bytes());
            let roles = [
                (is(&self.tokens.full), Role::Full),
                (is(&self.tokens.control), Role::Control),
                (is(&self.tokens.viewer), Role::Viewer),
                (is_scrape & is(&self.metrics_token), Role::Scraper),
                (self.receiver.as_ref().is_some_and(|receiver| is(&receiver.token)), Role::Sender),
            ];
            let (_, role) = roles.into_iter().find(|(is_shown, _)| *is_shown)?;
            is_sender.set(role == Role::Sender);
            (role != Role::Sender || receiver.is_some()).then_some(role)
        };
        let checked = access::check_names(&claims, address.get()).and_then(|()| {
            if self.is_open(request.uri().path()) { Ok(None) } else { access::check_token(&claims, role_of).map(Some) }
        });
        let denied = match checked {
            Ok(role) => return Ok(role),
            Err(denied) => denied,
        };
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

    async fn serve(&self, request: Request<Incoming>, role: Option<Role>) -> Answer {
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
                return Err(Problem::new(problem::NO_ROUTE, text).hint("GET /api/v1 lists the routes"));
            }
            Found::OtherMethods(allowed) => {
                let text = format!("`{}` takes {allowed}, not {}", parts.uri.path(), parts.method);
                return Err(Problem::new(problem::WRONG_METHOD, text).header(header::ALLOW, allowed));
            }
        };
        if let Some(role) = role {
            check_role(role, route.operation)?;
        }
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
        let id = id.filter(|_| route.operation != Operation::Look).map(task_id).transpose();
        match (route.operation, id?) {
            (Operation::FollowTask, Some(id)) => self.follow(id, query, parts).await,
            (Operation::GetTask, Some(id)) => {
                parameters::parse(query, &[])?;
                self.task_answer(id, StatusCode::OK).await
            }
            (Operation::WaitForTask, Some(id)) => self.wait(id, query).await,
            (Operation::CancelTask, Some(id)) => reports::cancel(self, id, query).await,
            (Operation::Submit, _) => self.submit(parts, body, query, parent).await,
            (Operation::ListTasks, _) => {
                let asked = TasksAsked::parse(query)?;
                let listed = asked.looked_at() / limits::LISTED_PER_REQUEST;
                self.take(&self.rate, u32::try_from(listed).unwrap_or(u32::MAX)).await?;
                reports::tasks(self, &asked).await
            }
            (
                operation @ (Operation::ListWorkers
                | Operation::ListActors
                | Operation::ListServices
                | Operation::ListDeployments
                | Operation::ListReplicas
                | Operation::Status
                | Operation::Summary),
                _,
            ) => {
                parameters::parse(query, &[])?;
                match operation {
                    Operation::ListWorkers => reports::workers(self).await,
                    Operation::ListActors => reports::actors(self).await,
                    Operation::ListServices => reports::services(self, ServiceList::Services).await,
                    Operation::ListDeployments => reports::services(self, ServiceList::Deployments).await,
                    Operation::ListReplicas => reports::services(self, ServiceList::Replicas).await,
                    Operation::Summary => {
                        let listed = 2 * limits::LIST / limits::LISTED_PER_REQUEST;
                        self.take(&self.rate, u32::try_from(listed).unwrap_or(u32::MAX)).await?;
                        reports::summary(self).await
                    }
                    _ => reports::status(self).await,
                }
            }
            (Operation::Look, _) => {
                let segments: Vec<&str> = parts.uri.path().trim_start_matches("/api/v1/").split('/').collect();
                self.traces.answer(&segments, parts).await
            }
            (Operation::ListLogs, _) => self.logs(query).await,
            (Operation::ReportMetrics, _) => {
                parameters::parse(query, &[])?;
                let collected = self.collect().await?;
                Ok(json_answer(StatusCode::OK, &MetricsReport::of(&collected)))
            }
            (Operation::ExchangeCode, _) => {
                parameters::parse(query, &[])?;
                let code = view::read_code(body).await?;
                let Reply::PageAccess(access) = self.query(Query::TakePageCode { code }).await? else {
                    return Err(unexpected());
                };
                let token = access.map(|may_cancel| match Role::of_page(may_cancel) {
                    Role::Control => (self.tokens.control.as_str(), Role::Control),
                    role => (self.tokens.viewer.as_str(), role),
                });
                view::token_answer(token)
            }
            (Operation::Page, _) => {
                parameters::parse(query, &[])?;
                view::file_answer(parts.uri.path()).ok_or_else(unexpected)
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
            let page = Reader::new(selection, &folder, Some(session_dir.as_path()), spans).page(part, limit)?;
            Ok::<_, std::io::Error>(json::bytes(&page).expect("reports are plain data"))
        });
        let read = read.await.map_err(|_| unexpected())?;
        let unreadable = |error| Problem::new(problem::UNREADABLE, format!("the logs cannot be read: {error}"));
        let bytes = read.map_err(unreadable)?;
        let mut response = json_bytes(StatusCode::OK, Bytes::new());
        *response.body_mut() = Body::Large(Some(bytes.into()), permit);
        Ok(response)
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
        let id = submitted.map_err(|error| match error {
            LinkError::Unknown => not_known("the connection to the head has broken, and it may have accepted the task")
                .hint("with an `Idempotency-Key` the same submission can be repeated and is one task; without one see first whether `GET /api/v1/tasks` has it"),
            error => unavailable(error),
        })?;
        let location = format!("/api/v1/tasks/{id}");
        let shown = async {
            let has_ended = match place {
                Some(_place) => self.wait_for(id, Duration::from_millis(wait)).await?,
                None => false,
            };
            let status = if has_ended { StatusCode::OK } else { StatusCode::ACCEPTED };
            self.task_answer(id, status).await
        };
        // It is accepted: nothing that happens after that is to read as a refusal.
        let mut response = shown.await.map_err(|problem| {
            not_known(format!("the task is accepted as {id}, but it cannot be shown: {}", problem.detail()))
                .hint(format!("do not submit it again; `GET {location}` shows it"))
                .header(header::LOCATION, location.as_str())
        })?;
        if let Ok(location) = HeaderValue::try_from(location) {
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
                        if !line.node_id.is_empty() {
                            written["node_id"] = (*line.node_id).into();
                        }
                        event(stream, Some(at), &written)
                    }
                    Ok(Next::Lost(at, lines)) => {
                        number = at;
                        event("missed", Some(at), &json!({ "lines": lines }))
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
        let changes = match query {
            Query::Cancel { .. } => {
                Some("`GET` of the task shows whether it is being cancelled; the request can be repeated")
            }
            Query::TakePageCode { .. } => Some("the code may be used up: `tracer view` makes another link"),
            _ => None,
        };
        self.link.query(query).await.map_err(|error| match (error, changes) {
            (LinkError::Unknown, Some(hint)) => {
                not_known("the connection to the head has broken, and it may have done it").hint(hint)
            }
            (error, _) => unavailable(error),
        })
    }

    async fn report(&self, id: TaskId) -> Result<Box<TaskReport>, Problem> {
        reports::report(self, id).await
    }

    async fn task_answer(&self, id: TaskId, status: StatusCode) -> Answer {
        reports::task(self, id, status, &self.large).await
    }
}

impl Head for App {
    async fn ask(&self, query: Query) -> Result<Reply, Problem> {
        self.query(query).await
    }

    async fn session_dir(&self) -> Result<PathBuf, Problem> {
        Ok(self.session_dir.clone())
    }
}

/// Returns whether a request brings OTLP.
fn is_received(method: &Method, path: &str) -> bool {
    matches!(routes::find(method, path), Found::Route(Route { operation: Operation::Receive(_), .. }, _))
}

/// Checks that a token is good for an operation.
fn check_role(role: Role, operation: Operation) -> Result<(), Problem> {
    let needs = match operation {
        Operation::Submit | Operation::Receive(_) => Role::Full,
        Operation::CancelTask => Role::Control,
        _ => Role::Viewer,
    };
    let is_enough = match role {
        // Checked beside the path.
        Role::Full | Role::Sender | Role::Scraper => true,
        Role::Control => needs != Role::Full,
        Role::Viewer => needs == Role::Viewer,
    };
    if is_enough {
        return Ok(());
    }
    let (text, hint) = match needs {
        Role::Control => ("the token of viewers only reads", "`tracer view --control` makes a link that may cancel"),
        _ => ("the token of a page does not submit", "the token in `http.token` of the session's folder does"),
    };
    Err(Problem::new(problem::FORBIDDEN_ROLE, text).hint(hint))
}

fn not_known(text: impl Into<String>) -> Problem {
    Problem::new(problem::UNKNOWN, text)
}

/// Returns the answer to what was not done, or has changed nothing.
fn unavailable(error: LinkError) -> Problem {
    let busy = |text: &str| Problem::new(problem::UNAVAILABLE, text).header(header::RETRY_AFTER, "1");
    match error {
        LinkError::Busy => busy("too many requests wait for the head"),
        LinkError::Gone | LinkError::Unknown => busy("the connection to the head is broken"),
        LinkError::Refused(refusal) => Problem::of_refusal(refusal),
        LinkError::Invalid(reason) => Problem::new(problem::INVALID, reason),
    }
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

/// Returns a server-sent event. JSON has no line feeds of its own.
fn event(name: &str, id: Option<u64>, data: &serde_json::Value) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}

fn index() -> serde_json::Value {
    let paths: Vec<_> = routes::ROUTES.iter().map(|route| format!("{} {}", route.method.name(), route.path)).collect();
    json!({ "name": "tracer", "version": tracer_ipc::VERSION, "description": openapi::PATH, "paths": paths })
}
