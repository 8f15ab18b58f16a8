//! The paths of the API and the methods that each takes. The OpenAPI description has the same, which a test compares.

use http::Method;

use super::otlp::Signal;

/// Operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// A file of the page.
    Page,
    ExchangeCode,
    Index,
    Describe,
    Submit,
    ListTasks,
    GetTask,
    WaitForTask,
    CancelTask,
    FollowTask,
    ListWorkers,
    ListActors,
    ListServices,
    ListDeployments,
    ListReplicas,
    ListLogs,
    ReportMetrics,
    Status,
    Summary,
    /// A question about traces.
    Look,
    Metrics,
    Receive(Signal),
}

/// A path with a method.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) method: Verb,
    pub(super) path: &'static str,
    pub(super) operation: Operation,
}

/// The methods that there are; HEAD is answered wherever GET is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
        }
    }
}

const fn get(path: &'static str, operation: Operation) -> Route {
    Route { method: Verb::Get, path, operation }
}

const fn post(path: &'static str, operation: Operation) -> Route {
    Route { method: Verb::Post, path, operation }
}

pub(super) const ROUTES: &[Route] = &[
    get("/", Operation::Page),
    get("/page.js", Operation::Page),
    get("/page.css", Operation::Page),
    post("/api/v1/viewer", Operation::ExchangeCode),
    get("/api/v1", Operation::Index),
    get("/api/v1/openapi.json", Operation::Describe),
    post("/api/v1/tasks", Operation::Submit),
    get("/api/v1/tasks", Operation::ListTasks),
    get("/api/v1/tasks/{id}", Operation::GetTask),
    get("/api/v1/tasks/{id}/wait", Operation::WaitForTask),
    post("/api/v1/tasks/{id}/cancel", Operation::CancelTask),
    get("/api/v1/tasks/{id}/logs", Operation::FollowTask),
    get("/api/v1/workers", Operation::ListWorkers),
    get("/api/v1/actors", Operation::ListActors),
    get("/api/v1/services", Operation::ListServices),
    get("/api/v1/deployments", Operation::ListDeployments),
    get("/api/v1/replicas", Operation::ListReplicas),
    get("/api/v1/logs", Operation::ListLogs),
    get("/api/v1/metrics", Operation::ReportMetrics),
    get("/api/v1/status", Operation::Status),
    get("/api/v1/summary", Operation::Summary),
    get("/api/v1/traces", Operation::Look),
    get("/api/v1/traces/{id}", Operation::Look),
    get("/api/v1/traces/{id}/spans/{span_id}", Operation::Look),
    get("/api/v1/traces/{id}/find", Operation::Look),
    get("/api/v1/traces/{id}/links", Operation::Look),
    get("/api/v1/traces/{id}/attempts", Operation::Look),
    get("/api/v1/traces/{id}/written", Operation::Look),
    get("/api/v1/compare", Operation::Look),
    get("/api/v1/history", Operation::Look),
    get("/api/v1/now", Operation::Look),
    get("/api/v1/heat", Operation::Look),
    get("/api/v1/differences", Operation::Look),
    get("/api/v1/open", Operation::Look),
    get("/api/v1/events", Operation::Look),
    get("/metrics", Operation::Metrics),
    post("/v1/traces", Operation::Receive(Signal::Traces)),
    post("/v1/logs", Operation::Receive(Signal::Logs)),
    post("/v1/metrics", Operation::Receive(Signal::Metrics)),
];

/// Result of looking up a path and a method.
#[derive(Clone, Debug)]
pub(super) enum Found<'a> {
    /// The route, and what stands in the place of `{id}`, the first name in braces.
    Route(&'static Route, Option<&'a str>),
    /// The path takes these methods only, as `Allow` has them.
    OtherMethods(String),
    Nothing,
}

pub(super) fn find<'a>(method: &Method, path: &'a str) -> Found<'a> {
    // Many who send OTLP put a slash behind the path, and other receivers take it.
    let path = path.strip_suffix('/').filter(|path| path.starts_with("/v1/")).unwrap_or(path);
    let matching: Vec<_> = ROUTES.iter().filter_map(|route| Some((route, id_in(route.path, path)?))).collect();
    let wanted = if *method == Method::HEAD { "GET" } else { method.as_str() };
    if let Some(&(route, id)) = matching.iter().find(|(route, _)| route.method.name() == wanted) {
        return Found::Route(route, id);
    }
    if matching.is_empty() {
        return Found::Nothing;
    }
    let mut methods: Vec<_> = matching.iter().map(|(route, _)| route.method.name()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    Found::OtherMethods(methods.join(", "))
}

/// Returns whether a path is of that pattern, in which a name in braces stands for a segment, and what stands for the first.
fn id_in<'a>(pattern: &str, path: &'a str) -> Option<Option<&'a str>> {
    let (mut known, mut found, mut id) = (pattern.split('/'), path.split('/'), None);
    loop {
        match (known.next(), found.next()) {
            (None, None) => return Some(id),
            (Some(known), Some(found)) if known.starts_with('{') && !found.is_empty() => id = id.or(Some(found)),
            (Some(known), Some(found)) if known == found => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> String {
        match find(&method.parse().unwrap(), path) {
            Found::Route(route, id) => format!("{:?} {}", route.operation, id.unwrap_or_default()),
            Found::OtherMethods(methods) => methods,
            Found::Nothing => "nothing".into(),
        }
    }

    #[test]
    fn paths_lead_where_they_should() {
        for (method, path, expected) in [
            ("GET", "/", "Page "),
            ("HEAD", "/page.js", "Page "),
            ("GET", "/api/v1", "Index "),
            ("POST", "/api/v1/viewer", "ExchangeCode "),
            ("GET", "/api/v1/traces/last", "Look last"),
            ("GET", "/api/v1/traces/last/spans/7", "Look last"),
            ("GET", "/api/v1/traces/last/spans/", "nothing"),
            ("GET", "/api/v1/traces/last/spans", "nothing"),
            ("POST", "/api/v1/tasks", "Submit "),
            ("GET", "/api/v1/tasks", "ListTasks "),
            ("GET", "/api/v1/tasks/7", "GetTask 7"),
            ("GET", "/api/v1/tasks/wait", "GetTask wait"),
            ("GET", "/api/v1/tasks/7/wait", "WaitForTask 7"),
            ("POST", "/api/v1/tasks/7/cancel", "CancelTask 7"),
            ("GET", "/api/v1/tasks/7/cancel", "POST"),
            ("OPTIONS", "/api/v1/tasks", "POST, GET, HEAD"),
            ("DELETE", "/api/v1/tasks/7", "GET, HEAD"),
            ("GET", "/api/v1/tasks/", "nothing"),
            ("POST", "/v1/traces/", "Receive(Traces) "),
            ("POST", "/v1/traces//", "nothing"),
            ("GET", "/api/v1/tasks//wait", "nothing"),
            ("GET", "/api/v1/tasks/7/wait/", "nothing"),
            ("GET", "/api/v1/tasks/7/8", "nothing"),
            ("GET", "/api/v2/tasks", "nothing"),
            ("GET", "", "nothing"),
            ("GET", "*", "nothing"),
        ] {
            assert_eq!(found(method, path), expected, "{method} {path}");
        }
    }
}
