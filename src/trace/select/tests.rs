use super::super::fixture::{SpanText, loaded, span};
use super::*;

fn three_traces() -> Loaded {
    let spans = [
        span("job a", 1, None, (20, 30)).trace(0xaaaa_0000_0000_0000_0000_0000_0000_0001),
        span("job b", 2, None, (10, 90)).trace(0xaaaa_1111_0000_0000_0000_0000_0000_0002),
        span("job c", 3, None, (0, 10)).trace(0xbbbb_0000_0000_0000_0000_0000_0000_0003),
    ];
    loaded([("1.json", spans.iter().map(|span| span.line()).collect::<String>().into())])
}

#[test]
fn a_trace_is_found_by_the_beginning_of_its_id() {
    let loaded = three_traces();
    for (text, expected) in [
        ("last", "job a"),
        ("b", "job c"),
        ("bbbb", "job c"),
        ("BBBB", "job c"),
        ("0xbbbb", "job c"),
        ("aaaa0", "job a"),
        ("aaaa1", "job b"),
        ("aaaa1111000000000000000000000002", "job b"),
        ("0xAAAA1111000000000000000000000002", "job b"),
    ] {
        assert_eq!(loaded.find(text).map(|trace| trace.root().name()), Ok(expected), "{text}");
    }
}

#[test]
fn what_is_not_found_is_explained() {
    let loaded = three_traces();
    for (text, expected) in [
        (
            "aaaa",
            "2 traces begin with `aaaa`:\n  aaaa0000000000000000000000000001  job a\n  aaaa1111000000000000000000000002  job b",
        ),
        ("c0ffee", "no trace begins with `c0ffee`: looked at 3 traces in `/tmp/spans`{IDS}"),
        ("", "expected a trace id (up to 32 hex digits), or `last`, found ``{IDS}"),
        (
            "lats",
            "expected a trace id (up to 32 hex digits), or `last`, found `lats`\n(hint: did you mean `last`?){IDS}",
        ),
        ("0x", "expected a trace id (up to 32 hex digits), or `last`, found `0x`{IDS}"),
        (
            "aaaa11110000000000000000000000021",
            "expected a trace id (up to 32 hex digits), or `last`, found `aaaa11110000000000000000000000021`{IDS}",
        ),
    ] {
        let expected = expected.replace("{IDS}", "\n(hint: `tracer trace list` shows the ids)");
        assert_eq!(loaded.find(text).map(|trace| trace.id).map_err(|error| error.to_string()), Err(expected));
    }
}

#[test]
fn an_empty_folder_is_said_to_be_empty() {
    let loaded = loaded([]);
    for text in ["last", "aaaa"] {
        let error = loaded.find(text).map(|trace| trace.id).expect_err("there is no trace");
        assert!(error.to_string().starts_with("there are no traces in `/tmp/spans`\n(hint: "), "{error}");
    }
}

#[test]
fn of_many_candidates_only_some_are_named() {
    let spans: String =
        (0..25).map(|index| span("job", 1, None, (index, 99)).trace(0xc << 124 | u128::from(index)).line()).collect();
    let loaded = loaded([("1.json", spans.into())]);
    let error = loaded.find("c").map(|trace| trace.id).expect_err("it is ambiguous").to_string();
    assert_eq!(error.lines().count(), 12);
    assert!(error.starts_with("25 traces begin with `c`:\n  c0000000000000000000000000000018  job\n"), "{error}");
    assert!(error.ends_with("\n  and 15 more"), "{error}");
}

fn traces_of(files: &[(&str, &[SpanText])]) -> Loaded {
    loaded(files.iter().map(|(name, spans)| (*name, spans.iter().map(|span| span.line()).collect::<String>().into())))
}

#[test]
fn the_last_trace_is_that_of_the_last_submission_or_request() {
    let job = |span_id, start| span("tracer job", span_id, None, (start, start + 50));
    let producer = |span_id, parent: Option<u64>, start| {
        span("m.f tracer.remote", span_id, parent, (start, start + 1)).kind("PRODUCER")
    };
    let attempt =
        |span_id, parent, start| span("m.f tracer.remote_worker", span_id, parent, (start, start + 9)).kind("CONSUMER");
    let last = |loaded: &Loaded| loaded.find("last").map(|trace| trace.id.0);
    let driver = [job(1, 10).trace(1), producer(2, Some(1), 11).trace(1)];
    // The task begins a trace of its own, later than the job, and submits in it.
    let detached = [
        attempt(3, 2, 12).trace(1),
        span("detached root", 4, None, (13, 15)).trace(2),
        producer(5, Some(4), 14).trace(2),
    ];
    assert_eq!(last(&traces_of(&[("1.json", &driver), ("2.json", &detached)])), Ok(1));
    // A submission into a trace that is older than another one.
    let old = [span("shell", 6, None, (0, 90)).trace(3), job(7, 30).trace(3)];
    assert_eq!(last(&traces_of(&[("1.json", &driver), ("2.json", &detached), ("3.json", &old)])), Ok(3));
    // A library's driver has no job span.
    let library = [span("main", 8, None, (40, 90)).trace(4), producer(9, Some(8), 41).trace(4)];
    assert_eq!(last(&traces_of(&[("1.json", &driver), ("2.json", &detached), ("4.json", &library)])), Ok(4));
    // A request that a service took counts as a submission does, with the task that its handler submits.
    let request = |name, kind| span(name, 12, None, (50, 60)).trace(7).kind(kind);
    for name in ["proxy_http_request hello GET /", "proxy_grpc_request greeter /pkg.Service/Method"] {
        let served = [request(name, "SERVER"), producer(13, Some(12), 55).trace(7)];
        assert_eq!(last(&traces_of(&[("1.json", &driver), ("5.json", &served[..1])])), Ok(7));
        assert_eq!(last(&traces_of(&[("1.json", &driver), ("5.json", &served)])), Ok(7));
    }
    let foreign_name = [request("proxy_http_requests of another program", "SERVER")];
    assert_eq!(last(&traces_of(&[("1.json", &driver), ("5.json", &foreign_name)])), Ok(1));
    // Only a worker's submissions are left; else the youngest trace counts, whoever made it.
    assert_eq!(last(&traces_of(&[("2.json", &detached)])), Ok(2));
    let foreign = [span("a", 10, None, (0, 9)).trace(5), span("b", 11, None, (1, 2)).trace(6)];
    assert_eq!(last(&traces_of(&[("1.json", &foreign)])), Ok(6));
}
