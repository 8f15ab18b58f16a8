//! The OpenAPI description of the API, as a client gets it. It is written by hand, in `openapi.json`, save for the options of submissions, which
//! come from the rows that the requests are read with; tests compare the rest with the routes, the limits and the problems.

use serde_json::{Value, json};
use tracer_ipc::http_place::HttpSettings;
use tracer_options::{Kind, RESOURCES_LIMIT, Row, Scope, TaskOptions};

use super::submission;

/// Path of the description.
pub(super) const PATH: &str = "/api/v1/openapi.json";

const SOURCE: &str = include_str!("openapi.json");

/// All that may be described, with the options in it.
fn whole() -> Value {
    let mut document: Value = serde_json::from_str(SOURCE).expect("a test reads it");
    for (schema, is_of_command) in [("FunctionSubmission", false), ("CommandSubmission", true)] {
        let properties = &mut document["components"]["schemas"][schema]["properties"];
        for row in submission::rows().filter(|row| is_of_command || row.face.scope != Scope::Commands) {
            properties[row.face.json] = schema_of(row);
        }
    }
    document
}

/// The JSON Schema of an option.
fn schema_of(row: &Row<TaskOptions>) -> Value {
    let mut description = row.paragraphs().join(" ");
    if !row.face.excludes.is_empty() {
        let others = row.face.excludes.join("` and `");
        description.push_str(&format!(" Not with `{others}`."));
    }
    let mut schema = match row.face.kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text { longest } => json!({ "type": "string", "maxLength": longest }),
        Kind::Failures => {
            const KIND: &str =
                "^(error|panic|timeout|exit|signal|exit:[1-9][0-9]?|signal:[1-9]|[A-Za-z_][A-Za-z0-9_]*)$";
            json!({ "type": "array", "items": { "type": "string", "pattern": KIND } })
        }
        Kind::Amounts => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$" },
            "additionalProperties": { "type": "integer", "minimum": 1, "maximum": i64::MAX },
            "maxProperties": RESOURCES_LIMIT,
        }),
        kind => {
            let (least, most, unit) = kind.range().expect("all others are numbers");
            let least = if let Kind::Size { least } = kind { least.into() } else { json!(least) };
            if !unit.is_empty() {
                description.push_str(&format!(" In{unit}."));
            }
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
    };
    schema["description"] = description.into();
    if let Some(default) = row.default_value() {
        schema["default"] = json!(default);
    }
    schema
}

/// The description of an API with these settings: what is not taken is not described.
pub(super) fn description(settings: &HttpSettings) -> Vec<u8> {
    let mut document = whole();
    document["info"]["version"] = tracer_ipc::VERSION.into();
    if !settings.receives_otlp {
        let paths = document["paths"].as_object_mut().expect("a test reads it");
        paths.retain(|path, _| !path.starts_with("/v1/"));
    }
    if !settings.allows_commands {
        let schemas = document["components"]["schemas"].as_object_mut().expect("a test reads it");
        schemas.remove("CommandSubmission");
        schemas.insert("Submission".into(), serde_json::json!({ "$ref": "#/components/schemas/FunctionSubmission" }));
    }
    serde_json::to_vec(&document).expect("it was read")
}

#[cfg(test)]
mod tests {
    use tracer_core::task::RefusalCode;
    use tracer_reactor::deployments::Stage;

    use super::super::routes::ROUTES;
    use super::super::{limits, output, problem, submission};
    use super::*;

    fn source() -> Value {
        whole()
    }

    fn served(allows_commands: bool) -> Value {
        let settings = HttpSettings {
            address: "127.0.0.1:0".parse().unwrap(),
            allows_commands,
            is_metrics_only: false,
            receives_otlp: true,
        };
        serde_json::from_slice(&description(&settings)).unwrap()
    }

    #[test]
    fn every_route_is_described_and_no_other() {
        let mut described = Vec::new();
        for (path, item) in source()["paths"].as_object().unwrap() {
            described
                .extend(item.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())));
        }
        let mut routes: Vec<_> = ROUTES.iter().map(|route| format!("{} {}", route.method.name(), route.path)).collect();
        described.sort();
        routes.sort();
        assert_eq!(described, routes);
    }

    #[test]
    fn every_code_of_a_refusal_is_described() {
        let document = source();
        let described = document.pointer("/components/schemas/Problem/properties/code/examples").unwrap();
        assert_eq!(*described, Value::from(RefusalCode::ALL.map(|code| code.name()).to_vec()));
    }

    #[test]
    fn every_problem_is_described_and_no_other() {
        let mut described = source()["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].clone();
        let described = described.as_array_mut().unwrap();
        let kinds = problem::ALL.iter().map(|kind| Value::from(format!("urn:tracer:problem:{}", kind.name)));
        assert_eq!(*described, kinds.collect::<Vec<_>>());
    }

    #[test]
    fn the_limits_are_those_of_the_code() {
        let document = source();
        let text = |path: &str| document.pointer(path).unwrap_or_else(|| panic!("{path}")).to_string();
        let responses = |name: &str| text(&format!("/components/responses/{name}/description"));
        for (text, limit) in [
            (text("/info/description"), format!("{} bytes and {} headers", limits::HEAD_BYTES, limits::HEADERS)),
            (text("/info/description"), format!("within {} seconds", limits::HEAD_TIME.as_secs())),
            (text("/info/description"), format!("{} connections", limits::CONNECTIONS)),
            (text("/info/description"), format!("for {} seconds", limits::WRITE_TIME.as_secs())),
            (responses("TooLarge"), format!("{} bytes", limits::BODY_BYTES)),
            (responses("TooSlow"), format!("{} seconds", limits::BODY_TIME.as_secs())),
            (responses("Otlp"), format!("{} bytes, {} unpacked", limits::BODY_BYTES, limits::UNPACKED_BYTES)),
            (responses("Otlp"), format!("{} are received at one time", limits::BODIES)),
            (responses("TooManyRequests"), format!("{} requests", limits::REQUESTS_PER_SECOND)),
            (responses("TooManyRequests"), format!("at one time, {} each", limits::WAITS)),
            (responses("TooManyRequests"), format!("each {} tasks", limits::LISTED_PER_REQUEST)),
            (
                text("/paths/~1api~1v1~1tasks~1{id}~1logs/get/description"),
                format!("newest {} bytes", output::TASK_BYTES),
            ),
            (text("/paths/~1api~1v1~1tasks~1{id}~1logs/get/description"), format!("newest {} tasks", output::TASKS)),
        ] {
            assert!(text.contains(&limit), "`{limit}` is not in {text}");
        }
        assert_eq!(limits::WAITS, limits::STREAMS);
        let parameter =
            |path: &str, index: usize| document["paths"][path]["get"]["parameters"][index]["schema"].clone();
        let list = parameter("/api/v1/tasks", 0);
        assert_eq!((&list["maximum"], &list["default"]), (&limits::LIST.into(), &limits::DEFAULT_LIST.into()));
        let wait = parameter("/api/v1/tasks/{id}/wait", 1);
        let millis = |duration: std::time::Duration| Value::from(duration.as_millis() as u64);
        assert_eq!(
            (&wait["maximum"], &wait["default"]),
            (&millis(limits::WAIT_TIME), &millis(limits::DEFAULT_WAIT_TIME))
        );
        for schema in ["FunctionSubmission", "CommandSubmission"] {
            let properties = &document["components"]["schemas"][schema]["properties"];
            assert_eq!(properties["timeout_ms"]["maximum"], tracer_options::LONGEST_MS);
            let memory = &properties["memory_bytes"]["minimum"];
            assert!(tracer_core::size::check_memory(memory.as_u64().unwrap()).is_ok());
            assert!(tracer_core::size::check_memory(memory.as_u64().unwrap() - 1).is_err());
            assert_eq!(properties["name"]["maxLength"], submission::NAME_LENGTH);
            for count in ["retries", "crash_limit"] {
                assert_eq!(properties[count]["maximum"], 1000);
            }
        }
        let command = &document["components"]["schemas"]["CommandSubmission"]["properties"]["command"];
        assert_eq!(
            document["components"]["schemas"]["FunctionSubmission"]["properties"]["num_cpus"]["maximum"],
            tracer_settings::NUM_WORKERS_LIMIT
        );
        assert_eq!(command["maxItems"], submission::WORDS);
        assert_eq!(submission::KEY_LENGTH, 255);
    }

    #[test]
    fn states_are_those_of_the_code() {
        use tracer_ipc::protocol::WorkerState;
        let schemas = &source()["components"]["schemas"];
        assert_eq!(schemas["State"]["enum"], serde_json::to_value(tracer_ipc::protocol::TaskState::ALL).unwrap());
        let workers =
            [WorkerState::Starting, WorkerState::Idle, WorkerState::Busy, WorkerState::Waiting, WorkerState::Stopping];
        assert_eq!(schemas["Worker"]["properties"]["state"]["enum"], serde_json::to_value(workers).unwrap());
        use tracer_ipc::protocol::ServiceState;
        let services = serde_json::to_value(ServiceState::ALL).unwrap();
        for schema in ["Service", "ServiceSummary"] {
            assert_eq!(schemas[schema]["properties"]["state"]["enum"], services, "{schema}");
        }
        let stages = Stage::ALL.map(Stage::name).to_vec();
        assert_eq!(schemas["Replica"]["properties"]["state"]["enum"], Value::from(stages));
    }

    #[test]
    fn commands_are_described_only_where_they_are_taken() {
        assert!(served(true).to_string().contains("CommandSubmission"));
        assert!(!served(false).to_string().contains("CommandSubmission"));
        assert_eq!(served(false)["info"]["version"], tracer_ipc::VERSION);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(document: &Value, value: &Value) {
            match value {
                Value::Object(object) => {
                    if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
                        let found = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
                        assert!(found.is_some(), "{reference}");
                    }
                    object.values().for_each(|value| check(document, value));
                }
                Value::Array(array) => array.iter().for_each(|value| check(document, value)),
                _ => {}
            }
        }
        for allows_commands in [false, true] {
            let document = served(allows_commands);
            check(&document, &document);
        }
    }
}
