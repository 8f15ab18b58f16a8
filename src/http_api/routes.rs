//! The paths of the API and the methods that each takes. The OpenAPI description has the same, which a test compares.

use http::Method;

use super::otlp::Signal;

/// Operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Index,
    Describe,
    Submit,
    ListTasks,
    GetTask,
    WaitForTask,
    CancelTask,
    FollowTask,
    ListWorkers,
    ListServices,
    ListDeployments,
    ListReplicas,
    ListLogs,
    ReportMetrics,
    Status,
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
    get("/", Operation::Index),
    get("/api/v1/openapi.json", Operation::Describe),
    post("/api/v1/tasks", Operation::Submit),
    get("/api/v1/tasks", Operation::ListTasks),
    get("/api/v1/tasks/{id}", Operation::GetTask),
    get("/api/v1/tasks/{id}/wait", Operation::WaitForTask),
    post("/api/v1/tasks/{id}/cancel", Operation::CancelTask),
    get("/api/v1/tasks/{id}/logs", Operation::FollowTask),
    get("/api/v1/workers", Operation::ListWorkers),
    get("/api/v1/services", Operation::ListServices),
    get("/api/v1/deployments", Operation::ListDeployments),
    get("/api/v1/replicas", Operation::ListReplicas),
    get("/api/v1/logs", Operation::ListLogs),
    get("/api/v1/metrics", Operation::ReportMetrics),
    get("/api/v1/status", Operation::Status),
    get("/metrics", Operation::Metrics),
    post("/v1/traces", Operation::Receive(Signal::Traces)),
    post("/v1/logs", Operation::Receive(Signal::Logs)),
    post("/v1/metrics", Operation::Receive(Signal::Metrics)),
];

/// Result of looking up a path and a method.
#[derive(Clone, Debug)]
pub(super) enum Found<'a> {
    /// The route, and what stands in the place of `{id}`.
    Route(&'static Route, Option<&'a str>),
    /// The path takes these methods only, as `Allow` has them.
    OtherMethods(String),
    Nothing,
}

pub(super) fn find<'a>(method: &Method, path: &'a str) -> Found<'a> {
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

/// Returns whether a path is of that pattern, and what stands in the place of `{id}`.
fn id_in<'a>(pattern: &str, path: &'a str) -> Option<Option<&'a str>> {
    match pattern.split_once("{id}") {
        None => (pattern == path).then_some(None),
        Some((before, after)) => {
            let id = path.strip_prefix(before)?.strip_suffix(after)?;
            (!id.is_empty() && !id.contains('/')).then_some(Some(id))
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
            ("GET", "/", "Index "),
            ("HEAD", "/", "Index "),
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
