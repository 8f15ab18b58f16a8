//! Any question parses or is an error with a mark below the mistake, and one that parses is asked of traces without harm.

use std::sync::OnceLock;

use tracer::trace::{Filter, Loaded, Query, load};

const NOW: u64 = 1_793_880_000_000_000_000;

/// The bytes are the text of a question.
pub(super) fn holds(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Query::parse(&text, NOW) {
        Err(error) => {
            let said = error.to_string();
            let mut lines = said.lines();
            assert!(lines.next().is_some_and(|line| line.starts_with("expected ")), "{said}");
            let marked = said
                .lines()
                .any(|line| line.trim_start().starts_with('^') && line.trim().bytes().all(|byte| byte == b'^'));
            assert!(marked, "{said}");
        }
        Ok(query) => {
            let filter = Filter { query: query.clone(), ..Filter::default() };
            let traces = traces();
            let list = traces.list(&filter, None);
            assert_eq!(list.rows.len() + list.filtered_out, traces.traces.len());
            let _ = query.doubtful_keys().count();
            if query.is_empty() {
                assert_eq!(list.filtered_out, 0);
            }
        }
    }
}

/// Traces with spans of each kind.
fn traces() -> &'static Loaded {
    static TRACES: OnceLock<Loaded> = OnceLock::new();
    TRACES.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let span = |trace: u8, id: u8, status: &str, attributes: &str| {
            format!(
                r#"{{"name": "job {id}", "context": {{"trace_id": "0x{trace:032x}", "span_id": "0x{id:016x}"}}, "parent_id": null, "start_time": "2026-11-05T12:00:00.000000Z", "end_time": "2026-11-05T12:00:0{id}.000000Z", "status": {{"status_code": "{status}"}}, "attributes": {attributes}, "events": [], "links": []}}"#
            ) + "\n"
        };
        let lines = [
            span(1, 1, "OK", r#"{"region": "eu", "code": 200}"#),
            span(1, 2, "ERROR", r#"{"region": "us", "code": 500.0, "flags": [true]}"#),
            span(2, 3, "UNSET", "{}"),
        ];
        std::fs::write(folder.path().join("1.json"), lines.concat()).expect("it can be written");
        load(folder.path()).expect("it can be read")
    })
}
