use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN_ID: &str = "00f067aa0ba902b7";

fn trace_parent(version: &str, flags: &str) -> String {
    format!("{version}-{TRACE_ID}-{SPAN_ID}-{flags}")
}

fn env<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
}

#[test]
fn valid_trace_parents_are_sent_on_as_version_00() {
    for (text, expected) in [
        (trace_parent("00", "00"), trace_parent("00", "00")),
        (trace_parent("00", "01"), trace_parent("00", "01")),
        // The random flag is kept, bits without a meaning are not.
        (trace_parent("00", "02"), trace_parent("00", "02")),
        (trace_parent("00", "03"), trace_parent("00", "03")),
        (trace_parent("00", "ff"), trace_parent("00", "03")),
        (trace_parent("00", "fc"), trace_parent("00", "00")),
        // Later versions are read as far as they are known.
        (trace_parent("01", "01"), trace_parent("00", "01")),
        (trace_parent("cc", "01-what-the-future-brings"), trace_parent("00", "01")),
        (trace_parent("fe", "03-"), trace_parent("00", "03")),
    ] {
        let parent = TraceParent::parse(&text).expect(&text);
        assert_eq!(parent.to_string(), expected, "{text}");
        assert_eq!(u128::from_be_bytes(parent.trace_id), 0x4bf92f3577b34da6a3ce929d0e0e4736);
        assert_eq!(u64::from_be_bytes(parent.span_id), 0x00f067aa0ba902b7);
    }
}

#[test]
fn flags_are_read_by_name() {
    for (flags, is_sampled, is_random) in
        [("00", false, false), ("01", true, false), ("02", false, true), ("07", true, true)]
    {
        let parent = TraceParent::parse(&trace_parent("00", flags)).expect(flags);
        assert_eq!((parent.is_sampled(), parent.is_random()), (is_sampled, is_random), "{flags}");
    }
}

#[test]
fn malformed_trace_parents_are_refused_with_their_reason() {
    use TraceParentError::{Length, NotHex, Separator, Version, Zero};
    let exactly = |found| Length { found, is_minimum: false };
    for (text, expected) in [
        // What other parsers let through.
        ("00-42-1-01".to_string(), exactly(10)),
        (format!("0-{TRACE_ID}-{SPAN_ID}-01"), NotHex { part: "version" }),
        (format!("00-{TRACE_ID}-{SPAN_ID}-1"), exactly(54)),
        (trace_parent("00", "01-"), exactly(56)),
        (format!("00-+{}-{SPAN_ID}-01", &TRACE_ID[1..]), NotHex { part: "trace id" }),
        // Length.
        (String::new(), Length { found: 0, is_minimum: true }),
        ("0".to_string(), Length { found: 1, is_minimum: true }),
        ("00".to_string(), exactly(2)),
        (trace_parent("00", "01-extra"), exactly(61)),
        (format!(" {}", trace_parent("00", "01")), NotHex { part: "version" }),
        (format!("{} ", trace_parent("00", "01")), exactly(56)),
        (trace_parent("01", "1"), Length { found: 54, is_minimum: true }),
        // Version.
        (trace_parent("ff", "01"), Version),
        (trace_parent("FF", "01"), NotHex { part: "version" }),
        (trace_parent(".0", "01"), NotHex { part: "version" }),
        (trace_parent("01", "01.extra"), Separator { offset: 55 }),
        (trace_parent("01", "0100"), Separator { offset: 55 }),
        // Digits.
        (trace_parent("00", "0G"), NotHex { part: "flags" }),
        (trace_parent("00", "0A"), NotHex { part: "flags" }),
        (format!("00-{}-{SPAN_ID}-01", TRACE_ID.to_uppercase()), NotHex { part: "trace id" }),
        (format!("00-{TRACE_ID}-{}-01", SPAN_ID.to_uppercase()), NotHex { part: "span id" }),
        (format!("00-{TRACE_ID}-é{}-01", &SPAN_ID[2..]), NotHex { part: "span id" }),
        // Zeros.
        (format!("00-{}-{SPAN_ID}-01", "0".repeat(32)), Zero { part: "trace id" }),
        (format!("00-{TRACE_ID}-{}-01", "0".repeat(16)), Zero { part: "span id" }),
        // Separators.
        (format!("00_{TRACE_ID}-{SPAN_ID}-01"), Separator { offset: 2 }),
        (format!("00-{TRACE_ID}_{SPAN_ID}-01"), Separator { offset: 35 }),
        (format!("00-{TRACE_ID}-{SPAN_ID}_01"), Separator { offset: 52 }),
    ] {
        assert_eq!(TraceParent::parse(&text), Err(expected), "{text}");
    }
}

fn trace_state(values: &[&str]) -> Result<String, TraceStateError> {
    TraceState::parse(values.iter().copied()).map(|state| state.to_string())
}

#[test]
fn valid_trace_states_keep_order_and_text() {
    let (long_key, long_value) = ("k".repeat(256), "v".repeat(256));
    let longest = format!("{long_key}={long_value}");
    let multi_tenant = format!("{}@{}=1", "a".repeat(20), "b".repeat(18));
    for (values, expected) in [
        (vec![], ""),
        (vec![""], ""),
        (vec![" \t "], ""),
        (vec!["rojo=1,congo=2"], "rojo=1,congo=2"),
        // Optional whitespace and empty members are not part of the list.
        (vec!["foo=1 \t , \t bar=2, \t baz=3"], "foo=1,bar=2,baz=3"),
        (vec!["foo=1,", ",,bar=2,,"], "foo=1,bar=2"),
        // Several headers are one list.
        (vec!["a=1", "b=2,c=3", "", "d=4"], "a=1,b=2,c=3,d=4"),
        // Level 2, 3.3.1.3.1: `key = ( lcalpha / DIGIT ) 0*255 ( keychar )`, and `@` is a keychar. What level 1 said of tenant and system is gone.
        (vec![multi_tenant.as_str()], multi_tenant.as_str()),
        (vec!["0@1=x"], "0@1=x"),
        (vec!["foo@=1,foo@@bar=1,foo@bar@baz=1"], "foo@=1,foo@@bar=1,foo@bar@baz=1"),
        (vec!["0_-*/@=x"], "0_-*/@=x"),
        (vec![longest.as_str()], longest.as_str()),
        (vec!["a=  b ~!\"#"], "a=  b ~!\"#"),
        // Level 2, 3.3.1.4: "only one entry per key is allowed"; 3.5: what is newest is leftmost, and entries of others are not to be deleted.
        (vec!["a=1,b=2,a=3"], "a=1,b=2"),
        (vec!["a=1,a=1"], "a=1"),
        (vec!["a=1", "a=2"], "a=1"),
    ] {
        assert_eq!(trace_state(&values).as_deref(), Ok(expected), "{values:?}");
    }
}

#[test]
fn malformed_trace_states_are_refused_with_their_reason() {
    use TraceStateError::{Key, NoValue, Value};
    let (long_key, long_value) = (format!("{}=1", "k".repeat(257)), format!("a={}", "v".repeat(257)));
    for (value, expected) in [
        ("foo", NoValue { position: 1 }),
        ("foo=1,bar", NoValue { position: 2 }),
        ("=1", Key { position: 1 }),
        ("foo =1", Key { position: 1 }),
        ("foo=1,Foo=2", Key { position: 2 }),
        ("foo=1,,foo.bar=2", Key { position: 2 }),
        ("@foo=1", Key { position: 1 }),
        ("_foo=1", Key { position: 1 }),
        ("föö=1", Key { position: 1 }),
        (&long_key, Key { position: 1 }),
        ("foo=", Value { position: 1 }),
        ("foo=,bar=3", Value { position: 1 }),
        ("foo=bar=baz", Value { position: 1 }),
        ("foo=a\tb", Value { position: 1 }),
        ("foo=é", Value { position: 1 }),
        ("foo=a\nb", Value { position: 1 }),
        ("foo=\u{7f}", Value { position: 1 }),
        (&long_value, Value { position: 1 }),
    ] {
        assert_eq!(trace_state(&[value]), Err(expected), "{value:?}");
    }
}

fn numbered(count: usize) -> String {
    (0..count).map(|index| format!("k{index:02}={index}")).collect::<Vec<_>>().join(",")
}

#[test]
fn a_trace_state_has_at_most_32_members() {
    assert_eq!(trace_state(&[&numbered(32)]), Ok(numbered(32)));
    assert_eq!(trace_state(&[&numbered(33)]), Err(TraceStateError::Members { found: 33 }));
    assert_eq!(trace_state(&[&numbered(20), &numbered(20)]), Err(TraceStateError::Members { found: 40 }));
}

#[test]
fn a_new_trace_state_member_goes_to_the_front() {
    let mut state = TraceState::parse(["a=1,b=2,c=3"]).expect("valid");
    state.insert("b", "9").expect("valid");
    assert_eq!(state.to_string(), "b=9,a=1,c=3");
    state.insert("d", "4").expect("valid");
    assert_eq!(state.to_string(), "d=4,b=9,a=1,c=3");
    assert_eq!((state.get("a"), state.get("x")), (Some("1"), None));
    assert_eq!(state.insert("D", "4"), Err(TraceStateError::Key { position: 1 }));
    assert_eq!(state.insert("d", "4 "), Err(TraceStateError::Value { position: 1 }));
    assert_eq!(state.to_string(), "d=4,b=9,a=1,c=3");

    let mut full = TraceState::parse([numbered(32).as_str()]).expect("valid");
    full.insert("new", "1").expect("valid");
    assert_eq!(full.members().len(), 32);
    assert_eq!((full.get("new"), full.get("k30"), full.get("k31")), (Some("1"), Some("30"), None));
}

#[test]
fn a_long_trace_state_loses_long_members_first_and_then_the_last() {
    let long = "x".repeat(127);
    let text = format!("a=1,l1={long},b=2,l2={long},c=3");
    let truncated = |limit| {
        let mut state = TraceState::parse([text.as_str()]).expect("valid");
        let cut = state.truncate(limit);
        (state.to_string(), cut)
    };
    assert_eq!(truncated(text.len()), (text.clone(), 0));
    assert_eq!(truncated(text.len() - 1), (format!("a=1,l1={long},b=2,c=3"), 1));
    assert_eq!(truncated(100), ("a=1,b=2,c=3".into(), 2));
    assert_eq!(truncated(11), ("a=1,b=2,c=3".into(), 2));
    assert_eq!(truncated(10), ("a=1,b=2".into(), 3));
    assert_eq!(truncated(0), (String::new(), 5));
}

fn baggage(values: &[&str]) -> (String, Vec<BaggageError>) {
    let (baggage, errors) = Baggage::parse(values.iter().copied());
    (baggage.to_string(), errors)
}

#[test]
fn valid_baggage_is_carried_byte_for_byte() {
    for (values, expected) in [
        (vec![], ""),
        (vec!["", " , ,"], ""),
        (
            vec!["userId=alice,serverNode=DF%2028,isProduction=false"],
            "userId=alice,serverNode=DF%2028,isProduction=false",
        ),
        (
            vec!["key1=value1;property1;property2, key2 = value2, key3=value3; propertyKey=propertyValue"],
            "key1=value1;property1;property2,key2 = value2,key3=value3; propertyKey=propertyValue",
        ),
        (vec!["a=1", "b=2"], "a=1,b=2"),
        (vec!["q=a=b=c"], "q=a=b=c"),
        (vec!["p=50%25"], "p=50%25"),
        (vec!["empty="], "empty="),
        (vec!["!#$%&'*+-.^_`|~09azAZ=x"], "!#$%&'*+-.^_`|~09azAZ=x"),
    ] {
        assert_eq!(baggage(&values), (expected.into(), Vec::new()), "{values:?}");
    }
}

#[test]
fn baggage_values_are_decoded_when_read() {
    for (member, expected) in [
        ("k=50%25", "50%"),
        ("k=a=b=c", "a=b=c"),
        ("k = v ;p", "v"),
        ("k=", ""),
        ("k=%C3%A9%20%22%2C%3b%5C", "é \",;\\"),
        ("k=a%FFb", "a\u{fffd}b"),
        ("k=%E2%82", "\u{fffd}"),
        // A percent sign that encodes nothing stands for itself.
        ("k=100%", "100%"),
        ("k=%zz%2", "%zz%2"),
        ("k=%+1", "%+1"),
        ("k=1,k=2", "2"),
    ] {
        let (baggage, errors) = Baggage::parse([member]);
        assert_eq!((baggage.get("k").as_deref(), errors), (Some(expected), Vec::new()), "{member}");
    }
    let (baggage, _) = Baggage::parse(["a = %31 ; p = v; q"]);
    let entries: Vec<_> = baggage.entries().collect();
    assert_eq!(entries, [BaggageEntry { key: "a", value: "1".into(), properties: "p = v; q" }]);
}

#[test]
fn a_malformed_baggage_member_is_left_out_alone() {
    use BaggageMemberError::{Key, NoValue, Property, Value};
    for (member, reason) in [
        ("novalue", NoValue),
        ("novalue;p=1", NoValue),
        ("=v", Key),
        ("a b=v", Key),
        ("a(b)=v", Key),
        ("kéy=v", Key),
        ("k=a b", Value),
        ("k=\"quoted\"", Value),
        ("k=back\\slash", Value),
        ("k=é", Value),
        ("k=a\tb", Value),
        ("k=a\nb", Value),
        ("k=v;", Property),
        ("k=v;;p", Property),
        ("k=v;p q", Property),
        ("k=v;p=\"x\"", Property),
    ] {
        let expected = ("a=1,b=2".to_string(), vec![BaggageError::Member { position: 2, reason }]);
        assert_eq!(baggage(&[&format!("a=1,{member}"), "b=2"]), expected, "{member:?}");
    }
}

#[test]
fn baggage_keeps_whole_members_within_its_limits() {
    assert_eq!(baggage(&[&numbered(64)]), (numbered(64), Vec::new()));
    assert_eq!(baggage(&[&numbered(65)]), (numbered(64), vec![BaggageError::Limit { members: 1 }]));
    assert_eq!(baggage(&[&numbered(40), &numbered(40)]).1, [BaggageError::Limit { members: 16 }]);

    let exact = format!("k={}", "v".repeat(BAGGAGE_BYTES_LIMIT - 2));
    assert_eq!(baggage(&[&exact]), (exact.clone(), Vec::new()));
    let over = format!("{exact}v");
    // What is too long goes whole, and what still fits is kept.
    assert_eq!(baggage(&[&over, "a=1"]), ("a=1".into(), vec![BaggageError::Limit { members: 1 }]));
    let two = format!("a=1,k={}", "v".repeat(BAGGAGE_BYTES_LIMIT - 6));
    assert_eq!(baggage(&[&two]), (two.clone(), Vec::new()));
    assert_eq!(baggage(&[&two, "b="]).1, [BaggageError::Limit { members: 1 }]);
}

#[test]
fn inserted_baggage_is_encoded_and_replaces_its_key() {
    let (mut baggage, _) = Baggage::parse(["a=1,b=2;p"]);
    baggage.insert("a", "50% off, \"today\"").expect("there is room");
    assert_eq!(baggage.to_string(), "b=2;p,a=50%25%20off%2C%20%22today%22");
    assert_eq!(
        baggage.insert("not a token", ""),
        Err(BaggageError::Member { position: 3, reason: BaggageMemberError::Key })
    );
    assert_eq!(baggage.insert("c", &"v".repeat(BAGGAGE_BYTES_LIMIT)), Err(BaggageError::Limit { members: 1 }));
    assert_eq!(baggage.to_string(), "b=2;p,a=50%25%20off%2C%20%22today%22");
}

#[test]
fn the_environment_carries_all_three() {
    let text = trace_parent("00", "03");
    let variables = [("TRACEPARENT", text.as_str()), ("TRACESTATE", "a=1,b=2"), ("BAGGAGE", "q=a=b=c,p=50%25")];
    let (carrier, rejections) = Carrier::from_env(env(&variables));
    assert_eq!(rejections, []);
    assert_eq!(
        carrier,
        Carrier {
            trace_context: Some(TraceContext {
                parent: TraceParent {
                    trace_id: 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes(),
                    span_id: 0x00f067aa0ba902b7_u64.to_be_bytes(),
                    flags: 3,
                },
                trace_state: "a=1,b=2".into(),
            }),
            baggage: "q=a=b=c,p=50%25".into(),
        }
    );
    assert_eq!(carrier.to_env(), variables.map(|(name, value)| (name, Some(value.to_string()))));
}

#[test]
fn variables_that_say_nothing_are_removed_for_the_child() {
    let nothing = [("TRACEPARENT", None), ("TRACESTATE", None), ("BAGGAGE", None)];
    assert_eq!(Carrier::from_env(env(&[])), (Carrier::default(), Vec::new()));
    assert_eq!(Carrier::default().to_env(), nothing);
    let empty = [("TRACEPARENT", ""), ("TRACESTATE", ""), ("BAGGAGE", "")];
    assert_eq!(Carrier::from_env(env(&empty)), (Carrier::default(), Vec::new()));
    // An empty tracestate is never sent.
    let text = trace_parent("00", "01");
    let (carrier, _) = Carrier::from_env(env(&[("TRACEPARENT", &text), ("TRACESTATE", " , ")]));
    assert_eq!(carrier.to_env(), [("TRACEPARENT", Some(text)), ("TRACESTATE", None), ("BAGGAGE", None)]);
}

#[test]
fn only_the_upper_case_names_are_read() {
    let text = trace_parent("00", "01");
    assert_eq!(Carrier::from_env(env(&[("traceparent", &text), ("Baggage", "a=1")])).0, Carrier::default());
}

#[test]
fn what_is_wrong_in_the_environment_is_said() {
    let valid = trace_parent("00", "01");
    let bad = trace_parent("ff", "01");
    let long = (0..20).map(|index| format!("k{index}={}", "v".repeat(150))).collect::<Vec<_>>().join(",");
    for (variables, has_context, sentences) in [
        // A bad traceparent takes tracestate with it and leaves baggage alone.
        (
            vec![("TRACEPARENT", bad.as_str()), ("TRACESTATE", "a=1"), ("BAGGAGE", "b=2")],
            false,
            vec![
                "`TRACEPARENT` is ignored: version `ff` is forbidden\n\
                 (hint: it is `00-<32 hex digits>-<16 hex digits>-01`; without one, a new trace begins)",
                "`TRACESTATE` is ignored: there is no valid traceparent with it",
            ],
        ),
        (vec![("TRACESTATE", "a=1")], false, vec!["`TRACESTATE` is ignored: there is no valid traceparent with it"]),
        // A bad tracestate leaves traceparent alone.
        (
            vec![("TRACEPARENT", valid.as_str()), ("TRACESTATE", "A=1")],
            true,
            vec![
                "`TRACESTATE` is ignored: expected a key of at most 256 characters a-z, 0-9, `_`, `-`, `*`, `/` and `@` that \
                 begins with a letter or digit, found another in member 1",
            ],
        ),
        (
            vec![("TRACEPARENT", valid.as_str()), ("TRACESTATE", long.as_str())],
            true,
            vec!["`TRACESTATE` is cut: 7 members left out to stay within 2048 characters"],
        ),
        (
            vec![("BAGGAGE", "a=1,b")],
            false,
            vec!["`BAGGAGE` is cut: member 2 left out: expected `key=value`, found no `=`"],
        ),
    ] {
        let (carrier, rejections) = Carrier::from_env(env(&variables));
        let found: Vec<_> = rejections.iter().map(ToString::to_string).collect();
        assert_eq!(
            (carrier.trace_context.is_some(), found),
            (has_context, sentences.iter().map(ToString::to_string).collect())
        );
    }
}

#[test]
fn a_variable_that_is_not_utf_8_is_ignored_alone() {
    let lookup = |name: &str| match name {
        "TRACEPARENT" => Some(trace_parent("00", "01").into()),
        _ => Some(OsString::from_vec(b"a=\xff".to_vec())),
    };
    let (carrier, rejections) = Carrier::from_env(lookup);
    assert_eq!(carrier.trace_context.map(|context| context.trace_state), Some(String::new()));
    assert_eq!(carrier.baggage, "");
    let found: Vec<_> = rejections.iter().map(|rejection| (rejection.name, rejection.reason.clone())).collect();
    assert_eq!(found, [("TRACESTATE", Reason::NotUtf8), ("BAGGAGE", Reason::NotUtf8)]);
}

#[test]
fn header_lines_are_joined_in_order() {
    let text = format!(" \t{} ", trace_parent("00", "01"));
    let (carrier, rejections) = Carrier::from_headers([text.as_str()], ["a=1", "b=2"], ["c=3", " d=4 "]);
    assert_eq!(rejections, []);
    assert_eq!(carrier.trace_context.expect("traceparent is valid").trace_state, "a=1,b=2");
    assert_eq!(carrier.baggage, "c=3,d=4");
}

#[test]
fn two_trace_parents_are_none() {
    let text = trace_parent("00", "01");
    let (carrier, rejections) = Carrier::from_headers([text.as_str(), text.as_str()], ["a=1"], []);
    assert_eq!(carrier, Carrier::default());
    let reasons: Vec<_> = rejections.into_iter().map(|rejection| rejection.reason).collect();
    assert_eq!(reasons, [Reason::SeveralTraceParents, Reason::TraceStateAlone]);
}

proptest! {
    #[test]
    fn a_trace_parent_survives_the_round_trip(trace_id in 1_u128.., span_id in 1_u64.., flags in 0_u8..4) {
        let parent = TraceParent { trace_id: trace_id.to_be_bytes(), span_id: span_id.to_be_bytes(), flags };
        prop_assert_eq!(TraceParent::parse(&parent.to_string()), Ok(parent));
    }

    #[test]
    fn a_trace_state_survives_the_round_trip(
        members in prop::collection::vec(("[a-z0-9][a-z0-9_*/@-]{0,40}", "[ -+\\--<>-~]{0,40}[!-+\\--<>-~]"), 0..40),
    ) {
        let mut state = TraceState::default();
        for (key, value) in &members {
            state.insert(key, value).expect("the member is valid");
            prop_assert_eq!(state.get(key), Some(value.as_str()));
        }
        prop_assert_eq!(TraceState::parse([state.to_string().as_str()]), Ok(state));
    }

    #[test]
    fn a_truncated_trace_state_fits_and_keeps_its_order(lens in prop::collection::vec(1_usize..250, 0..32), limit in 0_usize..3000) {
        let text = lens.iter().enumerate().map(|(i, len)| format!("k{i}={}", "v".repeat(*len))).collect::<Vec<_>>().join(",");
        let whole = TraceState::parse([text.as_str()]).expect("the list is valid");
        let mut cut = whole.clone();
        let gone = cut.truncate(limit);
        prop_assert!(cut.to_string().len() <= limit);
        prop_assert_eq!(cut.members().len() + gone, whole.members().len());
        prop_assert_eq!(gone == 0, text.len() <= limit);
        let mut rest = whole.members();
        prop_assert!(cut.members().all(|member| rest.any(|known| known == member)));
    }

    #[test]
    fn baggage_survives_the_round_trip(members in prop::collection::btree_map("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,10}", any::<String>(), 0..20)) {
        let mut baggage = Baggage::default();
        for (key, value) in &members {
            baggage.insert(key, value).expect("there is room");
        }
        let (parsed, errors) = Baggage::parse([baggage.to_string().as_str()]);
        prop_assert_eq!(errors, Vec::new());
        for (key, value) in &members {
            let found = parsed.get(key);
            prop_assert_eq!(found.as_deref(), Some(value.as_str()));
        }
    }

    #[test]
    fn whatever_is_received_is_carried_on_valid(trace_parent in any::<String>(), trace_state in any::<String>(), baggage in any::<String>()) {
        let valid = super::tests::trace_parent("00", "01");
        for trace_parent in [trace_parent.as_str(), valid.as_str()] {
            let (carrier, _) = Carrier::from_headers([trace_parent], [trace_state.as_str()], [baggage.as_str()]);
            let variables = carrier.to_env();
            let (again, rejections) = Carrier::from_env(|name| {
                variables.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.clone()).map(Into::into)
            });
            prop_assert_eq!(rejections, Vec::new());
            prop_assert_eq!(again, carrier);
        }
    }
}
