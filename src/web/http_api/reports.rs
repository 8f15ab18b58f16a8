//! Reports of the head about tasks, workers, actors and services, as answers. The HTTP API and the server of `tracer view` have the same.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tracer_core::clock::now_unix_nano;
use tracer_core::problem::{self, Problem};
use tracer_core::task::TaskId;
use tracer_core::value::JsonText;
use tracer_core::{parameters, pattern};
use tracer_ipc::protocol::{
    CancelReport, CancelWhich, Metrics, Query, Reply, ServiceQuery, ServiceReply, TaskFilter, TaskList, TaskPages,
    TaskReport, TaskState,
};
use tracer_ipc::stored;
use tracer_options::LONGEST_MS;
use tracer_trace::json;
use tracer_trace::task_summary::{self, EXPLAINED, FunctionSummary, Summary};

use super::body::{Answer, Body};
use super::{limits, otlp_counts};

/// The trace of a task, in answers about it.
const X_TRACE_ID: &str = "x-trace-id";

/// A connection to a head.
pub(crate) trait Head: Sync {
    /// Asks the head something.
    fn ask(&self, query: Query) -> impl Future<Output = Result<Reply, Problem>> + Send;

    /// Returns the folder of the head's session.
    fn session_dir(&self) -> impl Future<Output = Result<PathBuf, Problem>> + Send;
}

/// Waiting tasks of a function, in a summary.
#[derive(Serialize)]
struct Queue {
    target: String,
    /// Tasks that no worker has begun.
    waiting: usize,
    /// The one that has waited longest, since when, and why.
    oldest: TaskId,
    oldest_unix_nano: u64,
    reason: Option<String>,
}

/// The head at a glance.
#[derive(Serialize)]
struct Overview {
    time: String,
    /// Counts of tasks, workers and spans.
    #[serde(flatten)]
    metrics: Metrics,
    warnings: Vec<String>,
    /// Functions with their tasks by state and run times, of the newest tasks.
    functions: Vec<FunctionSummary>,
    /// Functions that wait, that with the most tasks first.
    queue: Vec<Queue>,
    /// Number of older tasks that were not looked at.
    left_out: usize,
    /// Number of tasks that ended too long ago to be remembered.
    forgotten: u64,
}

/// Tasks to list, with the parameters parsed.
pub(crate) struct TasksAsked {
    limit: usize,
    name: Option<String>,
    state: Option<TaskState>,
    question: tracer_trace::Query,
}

impl TasksAsked {
    /// Reads the parameters.
    pub(crate) fn parse(query: &str) -> Result<TasksAsked, Problem> {
        let parameters = parameters::parse(query, &["limit", "state", "name", "query"])?;
        let limit = parameters::number(&parameters, "limit", 1, limits::LIST as u64)?;
        let state = parameters::text(&parameters, "state").map(state).transpose()?;
        Ok(TasksAsked {
            limit: limit.map_or(limits::DEFAULT_LIST, |limit| limit as usize),
            name: parameters::text(&parameters, "name").map(str::to_owned),
            state,
            question: tracer_trace::Query::parse_for_tasks(
                parameters::text(&parameters, "query").unwrap_or_default(),
                now_unix_nano(),
            )
            .map_err(|error| Problem::new(problem::NOT_A_QUESTION, error.to_string()))?,
        })
    }

    /// Number of tasks that are looked at: filters look at no more than the newest that one request may list, whatever there is.
    pub(crate) fn looked_at(&self) -> usize {
        if self.name.is_some() || self.state.is_some() || !self.question.is_empty() { limits::LIST } else { self.limit }
    }
}

/// Lists tasks, newest first.
pub(crate) async fn tasks(head: &impl Head, asked: &TasksAsked) -> Answer {
    let mut list = newest_tasks(head, asked.looked_at(), TaskFilter::default()).await?;
    let all = list.tasks.len();
    list.tasks.retain(|task| {
        asked.state.is_none_or(|state| task.state == state)
            && asked.question.matches_task(task)
            && asked.name.as_ref().is_none_or(|name| task.name.as_deref().is_some_and(|own| pattern::fits(name, own)))
    });
    let filtered_out = all - list.tasks.len();
    let over = list.tasks.len().saturating_sub(asked.limit);
    list.tasks.truncate(asked.limit);
    list.tasks.iter_mut().for_each(|task| task.stored = None);
    Ok(json_answer(
        StatusCode::OK,
        &json::with_times(&json!({
            "tasks": list.tasks, "left_out": list.left_out + over, "filtered_out": filtered_out,
            "forgotten": list.forgotten,
        })),
    ))
}

async fn newest_tasks(head: &impl Head, limit: usize, which: TaskFilter) -> Result<TaskList, Problem> {
    let (mut pages, mut tasks) = (TaskPages::new(limit, which), Vec::new());
    while let Some(query) = pages.next_query() {
        let Reply::Tasks(page) = head.ask(query).await? else { return Err(unexpected()) };
        tasks.extend(pages.take(page));
    }
    Ok(TaskList { tasks, ..pages.rest().clone() })
}

/// Answers with a task and its result. Large results are in memory as `large` permits.
pub(crate) async fn task(head: &impl Head, id: TaskId, status: StatusCode, large: &Arc<Semaphore>) -> Answer {
    let mut task = report(head, id).await?;
    let trace_id = task.trace_id.clone();
    let response = match task.stored.take() {
        None => json_answer(status, &json::task(*task)),
        Some(stored) => {
            let permit = Arc::clone(large).acquire_owned().await.map_err(|_| unexpected())?;
            let folder = stored::folder(&head.session_dir().await?);
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

/// Asks for a task, which has to be known.
pub(crate) async fn report(head: &impl Head, id: TaskId) -> Result<Box<TaskReport>, Problem> {
    match head.ask(Query::Task { id }).await? {
        Reply::Task(task) => task.ok_or_else(|| no_task(id)),
        _ => Err(unexpected()),
    }
}

/// Cancels a task.
pub(crate) async fn cancel(head: &impl Head, id: TaskId, query: &str) -> Answer {
    let parameters = parameters::parse(query, &["grace_ms"])?;
    let grace_ms = parameters::number(&parameters, "grace_ms", 0, LONGEST_MS)?;
    let trace_id = report(head, id).await?.trace_id;
    let query = Query::Cancel { which: CancelWhich::Ids(vec![id]), grace_ms };
    let Reply::Cancelled(cancelled) = head.ask(query).await? else { return Err(unexpected()) };
    let (status, state) = match cancelled.first() {
        Some((_, CancelReport::Cancelling)) => (StatusCode::ACCEPTED, CancelReport::Cancelling),
        Some((_, state @ (CancelReport::Cancelled | CancelReport::Ended))) => (StatusCode::OK, *state),
        _ => return Err(no_task(id)),
    };
    Ok(with_trace_id(json_answer(status, &json!({ "id": id, "state": state })), trace_id.as_deref()))
}

/// Lists the workers.
pub(crate) async fn workers(head: &impl Head) -> Answer {
    match head.ask(Query::Workers).await? {
        Reply::Workers(workers) => Ok(json_answer(StatusCode::OK, &json::with_times(&json!({ "workers": workers })))),
        _ => Err(unexpected()),
    }
}

/// Lists the actors, newest first.
pub(crate) async fn actors(head: &impl Head) -> Answer {
    match head.ask(Query::Actors).await? {
        Reply::Actors(actors) => Ok(json_answer(StatusCode::OK, &json::with_times(&json!({ "actors": actors })))),
        _ => Err(unexpected()),
    }
}

/// A list of what belongs to services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceList {
    Services,
    Deployments,
    Replicas,
}

/// Lists services, or all their deployments or replicas.
pub(crate) async fn services(head: &impl Head, which: ServiceList) -> Answer {
    let Reply::Service(ServiceReply::Services(services)) = head.ask(Query::Service(ServiceQuery::List)).await? else {
        return Err(unexpected());
    };
    let report = match which {
        ServiceList::Deployments => {
            let rows: Vec<_> = services.into_iter().flat_map(|service| service.deployments).collect();
            json!({ "deployments": rows })
        }
        ServiceList::Replicas => {
            let rows: Vec<_> = services.into_iter().flat_map(|service| service.replicas).collect();
            json!({ "replicas": rows })
        }
        ServiceList::Services => json!({ "services": services }),
    };
    Ok(json_answer(StatusCode::OK, &json::with_times(&report)))
}

/// Answers with the head's state.
pub(crate) async fn status(head: &impl Head) -> Answer {
    match head.ask(Query::Status).await? {
        Reply::Status(mut status) => {
            otlp_counts::add(&mut status);
            Ok(json_answer(StatusCode::OK, &*status))
        }
        _ => Err(unexpected()),
    }
}

/// Answers with the head at a glance: counts, functions, and what waits and why.
pub(crate) async fn summary(head: &impl Head) -> Answer {
    let Reply::Status(status) = head.ask(Query::Status).await? else { return Err(unexpected()) };
    let newest = newest_tasks(head, limits::LIST, TaskFilter::default()).await?;
    let states = vec![TaskState::Waiting, TaskState::Retrying, TaskState::Leased];
    let waiting = newest_tasks(head, limits::LIST, TaskFilter { states, ..TaskFilter::default() }).await?;
    let row = |queued: task_summary::Queued<'_>| Queue {
        target: queued.target.to_owned(),
        waiting: queued.tasks,
        oldest: queued.oldest.id,
        oldest_unix_nano: queued.oldest.submitted_unix_nano,
        reason: None,
    };
    let mut queue: Vec<Queue> = task_summary::queue(&waiting.tasks).into_iter().map(row).collect();
    for row in queue.iter_mut().take(EXPLAINED) {
        let Reply::Explanation(explanation) = head.ask(Query::Explain { id: row.oldest }).await? else {
            return Err(unexpected());
        };
        row.reason = explanation.and_then(|explanation| explanation.reasons.first().map(ToString::to_string));
    }
    let Summary { functions, left_out, forgotten, .. } = Summary::of(&newest);
    let time = tracer_trace::rfc3339(now_unix_nano());
    let (metrics, warnings) = (status.metrics, status.warnings);
    let overview = Overview { time, metrics, warnings, functions, queue, left_out, forgotten };
    Ok(json_answer(StatusCode::OK, &json::with_times(&overview)))
}

/// Says that the head's answer cannot be used.
pub(crate) fn unexpected() -> Problem {
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

/// Reads the id of a task.
pub(crate) fn task_id(text: &str) -> Result<TaskId, Problem> {
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

/// Answers with a report as JSON.
pub(crate) fn json_answer(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    json_bytes(status, json::bytes(value).expect("reports are plain data").into())
}

/// Answers with JSON that is written already.
pub(crate) fn json_bytes(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds the trace of the task that an answer is about.
pub(crate) fn with_trace_id(mut response: Response<Body>, trace_id: Option<&str>) -> Response<Body> {
    if let Some(trace_id) = trace_id.and_then(|trace_id| HeaderValue::from_str(trace_id).ok()) {
        response.headers_mut().insert(X_TRACE_ID, trace_id);
    }
    response
}
