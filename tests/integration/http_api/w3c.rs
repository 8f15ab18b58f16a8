//! The cases of the W3C's own suite for trace context, as level 2 has them: what a request says in its headers, and what the task sees.

use serde_json::json;

use super::traced;
use crate::support::Api;

const TRACE: &str = "12345678901234567890123456789012";
const PARENT: &str = "1234567890123456";
const VALID: &str = "00-12345678901234567890123456789012-1234567890123456-00";

/// Runs a task with these headers. Returns the `traceparent` and `tracestate` that are current in it.
#[track_caller]
fn seen(api: &Api, headers: &[(&str, &str)]) -> (String, String) {
    let ask = api.submission("?wait_ms=60000", &json!({"function": "traced_tasks:headers"}));
    let ask = headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value));
    let seen = ask.send().status(200).json()["result"][0].clone();
    let text = |index: usize| seen[index].as_str().unwrap_or_else(|| panic!("{headers:?}: {seen}")).to_owned();
    (text(0), text(1))
}

/// Returns the members of a list, without the blanks around them.
fn members(state: &str) -> Vec<&str> {
    state.split(',').map(str::trim).filter(|member| !member.is_empty()).collect()
}

#[test]
fn a_traceparent_is_gone_on_from_if_it_is_valid_and_replaced_if_it_is_not() {
    let (_cluster, api) = traced();
    let with = |before: &str, after: &str| format!("{before}{TRACE}-{PARENT}{after}");
    let valid = with("00-", "-01");
    let blank = [
        format!(" {valid}"),
        format!("\t{valid}"),
        format!("{valid} "),
        format!("{valid}\t"),
        format!("\t {valid} \t"),
    ];
    let newer = [with("cc-", "-01"), with("cc-", "-01-what-the-future-will-be-like")];
    let mut cases: Vec<(&str, String, bool)> = ["traceparent", "TraceParent", "TrAcEpArEnT", "TRACEPARENT"]
        .map(|name| (name, valid.clone(), true))
        .into_iter()
        .chain(["trace-parent", "trace.parent"].map(|name| (name, valid.clone(), false)))
        .collect();
    cases.extend(blank.into_iter().chain(newer).map(|value| ("traceparent", value, true)));
    cases.extend(
        [
            with("00-", "-01."),
            with("00-", "-01-what-the-future-will-be-like"),
            with("cc-", "-01.what-the-future-will-be-like"),
            with("ff-", "-01"),
            with(".0-", "-01"),
            with("0.-", "-01"),
            with("000-", "-01"),
            with("0000-", "-01"),
            with("0-", "-01"),
            format!("00-{}-{PARENT}-01", "0".repeat(32)),
            format!("00-.{}-{PARENT}-01", &TRACE[1..]),
            format!("00-{}.-{PARENT}-01", &TRACE[..31]),
            format!("00-{TRACE}3-{PARENT}-01"),
            format!("00-{}-{PARENT}-01", &TRACE[..31]),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-.{}-01", &PARENT[1..]),
            format!("00-{TRACE}-{}.-01", &PARENT[..15]),
            format!("00-{TRACE}-{PARENT}7-01"),
            format!("00-{TRACE}-{}-01", &PARENT[..15]),
            with("00-", "-.0"),
            with("00-", "-0."),
            with("00-", "-001"),
            with("00-", "-1"),
        ]
        .map(|value| ("traceparent", value, false)),
    );
    for (name, value, goes_on) in cases {
        let (traceparent, _) = seen(&api, &[(name, &value)]);
        let parts: Vec<&str> = traceparent.split('-').collect();
        let [version, trace, parent, flags] = parts[..] else { panic!("`{name}: {value}`: {traceparent}") };
        assert_eq!((version, trace.len(), parent.len(), flags.len()), ("00", 32, 16, 2), "`{name}: {value}`");
        assert_eq!(trace == TRACE, goes_on, "`{name}: {value}`: {traceparent}");
        assert_ne!(parent, PARENT, "`{name}: {value}`");
    }
    let other = VALID.replace("9012-", "9011-");
    let (twice, _) = seen(&api, &[("traceparent", VALID), ("traceparent", &other)]);
    assert!(!twice.contains("12345678901234567890123456789"), "{twice}");
    assert_ne!(seen(&api, &[]).0, seen(&api, &[]).0);
}

#[test]
fn a_tracestate_is_inherited_if_it_is_valid_and_dropped_if_it_is_not() {
    let (_cluster, api) = traced();
    let key = "abcdefghijklmnopqrstuvwxyz0123456789_-*/";
    let value: String = (0x20..=0x7e_u8).filter(|byte| !b",=".contains(byte)).map(char::from).collect();
    let many = |count: usize| (1..=count).map(|number| format!("bar{number:02}={number:02}")).collect::<Vec<_>>();
    let long = |length: usize| format!("{}=1", "z".repeat(length));
    let all_characters = [format!("{key}={value}"), format!("{key}@a-z0-9_-*/={value}")];
    let thirty_two = many(32);
    let (in_four, of_33): (Vec<String>, String) =
        (thirty_two.chunks(10).map(|ten| ten.join(",")).collect(), many(33).join(","));
    let in_four: Vec<&str> = in_four.iter().map(String::as_str).collect();
    let lengths = [long(256), format!("{}@{}=1", "t".repeat(241), "v".repeat(14)), long(257)];
    // Each with the headers `tracestate`, and what is inherited of them.
    let mut cases: Vec<(Vec<&str>, Vec<&str>)> = vec![
        (vec!["foo=1,bar=2"], vec!["foo=1", "bar=2"]),
        (vec![""], vec![]),
        (vec!["foo=1", ""], vec!["foo=1"]),
        (vec!["", "foo=1"], vec!["foo=1"]),
        (vec!["foo=1,bar=2", "rojo=1,congo=2", "baz=3"], vec!["foo=1", "bar=2", "rojo=1", "congo=2", "baz=3"]),
        (vec!["foo=1 \t , \t bar=2, \t baz=3"], vec!["foo=1", "bar=2", "baz=3"]),
        (vec!["foo=1\t \t,\t \tbar=2,\t \tbaz=3"], vec!["foo=1", "bar=2", "baz=3"]),
        (vec![" foo=1"], vec!["foo=1"]),
        (vec!["\tfoo=1"], vec!["foo=1"]),
        (vec!["foo=1 "], vec!["foo=1"]),
        (vec!["foo=1\t"], vec!["foo=1"]),
        (vec!["\t foo=1 \t"], vec!["foo=1"]),
        (vec![&all_characters[0]], vec![&all_characters[0]]),
        (vec![&all_characters[1]], vec![&all_characters[1]]),
        (in_four, thirty_two.iter().map(String::as_str).collect()),
        (vec!["foo=1", &lengths[0]], vec!["foo=1", &lengths[0]]),
        (vec!["foo=1", &lengths[1]], vec!["foo=1", &lengths[1]]),
    ];
    // Level 1 gave the parts around an `@` limits and a form of their own, and the suite's `test_tracestate_key_illegal_vendor_format` and
    // `test_tracestate_key_length_limit` still expect them. Level 2, 3.3.1.3.1: `key = ( lcalpha / DIGIT ) 0*255 ( keychar )`, and `@` is a keychar.
    let level_2 = ["foo@=1", "foo@@bar=1", "foo@bar@baz=1", "0@1=1"].map(str::to_owned);
    let parts = [format!("{}@v=1", "t".repeat(242)), format!("t@{}=1", "v".repeat(15))];
    for key in level_2.iter().chain(&parts) {
        cases.push((vec![key, "bar=2"], vec![key, "bar=2"]));
    }
    // A key that is there twice, for which the suite's `test_tracestate_duplicated_keys` would have the whole list dropped. Level 2, 3.3.1.4: "Only one
    // entry per key is allowed because the entry represents that last position in the trace", and 3.5: who is newest is leftmost, and other vendors'
    // entries are not to be deleted. So the first of the key stays, and with it all other members.
    for twice in [vec!["foo=1,foo=1"], vec!["foo=1,foo=2"], vec!["foo=1", "foo=1"], vec!["foo=1", "foo=2"]] {
        cases.push((twice, vec!["foo=1"]));
    }
    cases.push((vec!["congo=2,rojo=1,congo=1"], vec!["congo=2", "rojo=1"]));
    for invalid in [
        vec!["foo =1"],
        vec!["FOO=1"],
        vec!["foo.bar=1"],
        vec!["@foo=1,bar=2"],
        vec![&*of_33],
        vec!["foo=1", &*lengths[2]],
        vec!["foo=bar=baz"],
        vec!["foo=,bar=3"],
    ] {
        cases.push((invalid, Vec::new()));
    }
    for (states, inherited) in cases {
        let mut headers = vec![("traceparent", VALID)];
        headers.extend(states.iter().map(|state| ("tracestate", *state)));
        let (traceparent, tracestate) = seen(&api, &headers);
        assert!(traceparent.contains(TRACE), "{states:?}: {traceparent}");
        assert_eq!(members(&tracestate), inherited, "{states:?}");
    }
    for (name, inherited) in [
        ("TraceState", "foo=1"),
        ("TrAcEsTaTe", "foo=1"),
        ("TRACESTATE", "foo=1"),
        ("trace-state", ""),
        ("trace.state", ""),
    ] {
        assert_eq!(seen(&api, &[("traceparent", VALID), (name, "foo=1")]).1, inherited, "{name}");
    }
    assert_eq!(seen(&api, &[("tracestate", "foo=1")]).1, "", "there is no traceparent with it");
}
