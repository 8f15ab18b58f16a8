use super::super::fixture::{loaded, span};
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
        assert_eq!(loaded.find(text).map(|trace| trace.root().name.as_str()), Ok(expected), "{text}");
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
        ("c0ffee", "no trace begins with `c0ffee`: looked at 3 traces in `/tmp/spans`"),
        ("", "expected a trace id, the beginning of one, or `last`, found ``"),
        ("lats", "expected a trace id, the beginning of one, or `last`, found `lats`\n(hint: did you mean `last`?)"),
        ("0x", "expected a trace id, the beginning of one, or `last`, found `0x`"),
        (
            "aaaa11110000000000000000000000021",
            "expected a trace id, the beginning of one, or `last`, found `aaaa11110000000000000000000000021`",
        ),
    ] {
        assert_eq!(loaded.find(text).map(|trace| trace.id).map_err(|error| error.to_string()), Err(expected.into()));
    }
}

#[test]
fn an_empty_folder_is_said_to_be_empty() {
    let loaded = loaded([]);
    for text in ["last", "aaaa"] {
        let error = loaded.find(text).map(|trace| trace.id).expect_err("there is no trace");
        assert_eq!(error.to_string(), "there are no traces in `/tmp/spans`");
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
