use proptest::prelude::*;

use super::super::fixture::{EPOCH, SpanText, loaded, span};
use super::super::{Attributes, SpanId, TraceId};
use super::*;
use crate::load::{NEEDLES, load, load_traces};
use crate::loaded::Loaded;

/// Output of the console exporter of the OpenTelemetry Python SDK 1.45 when it is asked for one object per line.
const ONE_PER_LINE: &str = include_str!("golden/one_per_line.json");
/// The same, by default: objects with an indentation of four, one after another.
const PRETTY_PRINTED: &str = include_str!("golden/pretty_printed.json");
/// SDK 1.1: parent ids without `0x`, and a resource that is its attributes.
const SDK_1_1: &str = include_str!("golden/sdk_1_1.json");

fn names(loaded: &Loaded) -> Vec<&str> {
    loaded.traces.iter().flat_map(|trace| &trace.spans).map(|span| span.name()).collect()
}

fn problems(loaded: &Loaded) -> Vec<Problem> {
    loaded.notices.iter().map(|notice| notice.problem.clone()).collect()
}

fn spans(count: u64) -> Vec<SpanText> {
    (0..count).map(|index| span(&format!("span {index}"), index + 1, None, (index, index + 1))).collect()
}

fn lines(spans: &[SpanText]) -> String {
    spans.iter().map(SpanText::line).collect()
}

#[test]
fn every_layout_is_read() {
    let trace_id = TraceId(0x8f3c6a2e9d514b7083e1f6a4c2d95b07);
    let day_2026 = EPOCH;
    let day_2021 = 1_628_164_800_000_000_000;
    for (layout, text, day) in
        [("one per line", ONE_PER_LINE, day_2026), ("pretty", PRETTY_PRINTED, day_2026), ("1.1", SDK_1_1, day_2021)]
    {
        let loaded = loaded([("4711.json", text.into())]);
        assert_eq!(loaded.notices, [], "{layout}");
        let [trace] = loaded.traces.as_slice() else { panic!("{layout}: one trace expected") };
        let [submit, run] = trace.spans.as_slice() else { panic!("{layout}: two spans expected") };
        assert_eq!(trace.id, trace_id, "{layout}");
        assert_eq!(submit.name(), "my_module.my_function ray.remote", "{layout}");
        assert_eq!((submit.kind, run.kind), (Kind::Producer, Kind::Consumer), "{layout}");
        assert_eq!((submit.parent_id(), run.parent_id()), (None, Some(SpanId(0x1111111111111111))), "{layout}");
        assert_eq!(submit.start_unix_nano, day + 100_000, "{layout}");
        assert_eq!(run.end_unix_nano(), Some(day + 12_500_000), "{layout}");
        assert_eq!(run.duration_ns(), 10_500_000, "{layout}");
        assert_eq!(run.attribute("ray.remote"), Some("function".into()), "{layout}");
        assert_eq!(run.resource().text("telemetry.sdk.language"), Some("python"), "{layout}");
        assert_eq!(run.pid(), Some(4711), "{layout}");
    }
}

#[test]
fn the_parts_of_a_span_are_parsed_on_demand() {
    let loaded = loaded([("1.json", PRETTY_PRINTED.into())]);
    let run = &loaded.traces[0].spans[1];
    assert_eq!(run.status, Status::Error);
    assert_eq!(run.status_description().as_deref(), Some("ValueError: boom"));
    let keys: Vec<_> = run.attributes().0.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["ray.remote", "ray.function", "ray.pid"]);
    let [event] = run.events().try_into().expect("there is one event");
    assert_eq!((event.name.as_str(), event.time_unix_nano), ("exception", Some(EPOCH + 12_400_000)));
    assert_eq!(event.attributes.text("exception.message"), Some("boom"));
    let [link] = run.links().try_into().expect("there is one link");
    assert_eq!((link.trace_id, link.span_id), (run.trace_id(), SpanId(0x1111111111111111)));
    assert_eq!(link.attributes, Attributes(vec![("reason".into(), "retry".into())]));
    assert!(run.text().starts_with("{\n    \"name\": \"my_module.my_function ray.remote_worker\""));
    assert!(run.text().ends_with("\n}"));
}

#[test]
fn of_several_attributes_with_one_key_the_last_holds() {
    let line = span("a", 1, None, (0, 1)).attributes(r#"{"k": 1, "k": [true, 2.5, "x"]}"#).line();
    let loaded = loaded([("1.json", line.into())]);
    assert_eq!(loaded.traces[0].spans[0].attribute("k"), Some(serde_json::json!([true, 2.5, "x"])));
}

#[test]
fn parts_of_an_unexpected_shape_are_absent() {
    let line = span("a", 1, None, (0, 1)).line();
    let line = line.replace("\"events\": []", "\"events\": 3").replace("\"links\": []", "\"links\": [{}]");
    let line = line.replace("\"attributes\": {}", "\"attributes\": null");
    let loaded = loaded([("worker.json", line.into())]);
    let span = &loaded.traces[0].spans[0];
    assert_eq!((span.events(), span.links(), span.attributes()), (vec![], vec![], Attributes::default()));
    assert_eq!((span.pid(), span.status_description()), (None, None));
}

#[test]
fn the_process_is_known_from_the_resource_or_the_file_name() {
    let line = span("a", 1, None, (0, 1)).line();
    for (file, resource, expected) in [
        ("4711.json", "", Some(4711)),
        ("4711.3.json", "", Some(4711)),
        ("proxy_10.0.0.1_tracing.json", "", None),
        ("4711.json", r#""process.pid": 12, "#, Some(12)),
        ("4711.json", r#""process.pid": "12", "#, Some(12)),
        ("4711.json", r#""process.pid": -1, "#, Some(4711)),
    ] {
        let line = line.replace("\"service.name\"", &format!("{resource}\"service.name\""));
        let loaded = loaded([(file, line.into())]);
        assert_eq!(loaded.traces[0].spans[0].pid(), expected, "{file} {resource}");
    }
}

#[test]
fn escapes_in_names_are_decoded() {
    let line = span("a\"b\\c\u{e9}\n", 1, None, (0, 1)).line();
    assert_eq!(names(&loaded([("1.json", line.into())])), ["a\"b\\c\u{e9}\n"]);
}

#[test]
fn a_torn_last_line_is_reported_and_costs_nothing_else() {
    let whole = lines(&spans(2));
    let torn = span("torn", 9, None, (9, 10)).line();
    for len in [1, 10, 60, torn.len() - 2] {
        let loaded = loaded([("1.json", format!("{whole}{}", &torn[..len]).into())]);
        assert_eq!(names(&loaded), ["span 0", "span 1"], "{len} bytes");
        assert_eq!(problems(&loaded), [Problem::Unfinished], "{len} bytes");
    }
    // A missing line break at the end cuts nothing off.
    let loaded = loaded([("1.json", format!("{whole}{}", torn.trim_end()).into())]);
    assert_eq!((names(&loaded), problems(&loaded)), (vec!["span 0", "span 1", "torn"], vec![]));
}

#[test]
fn a_character_torn_in_half_is_no_trouble() {
    let mut bytes = lines(&spans(1)).into_bytes();
    bytes.extend_from_slice(b"{\"name\": \"caf\xc3");
    let loaded = loaded([("1.json", bytes)]);
    assert_eq!((names(&loaded), problems(&loaded)), (vec!["span 0"], vec![Problem::Unfinished]));
}

#[test]
fn a_torn_pretty_printed_object_costs_only_itself() {
    let objects: Vec<&str> = PRETTY_PRINTED.split_inclusive("\n}\n").collect();
    let [first, second] = objects.as_slice() else { panic!("two objects expected") };
    let loaded = loaded([("1.json", format!("{first}{}\n{second}", &first[..first.len() / 2]).into())]);
    assert_eq!(names(&loaded).len(), 2);
    assert_eq!(problems(&loaded), [Problem::Damaged(1)]);
}

#[test]
fn what_follows_a_torn_line_is_read_even_on_the_same_line() {
    let [first, torn, last] = spans(3).try_into().map_err(|_| ()).expect("there are three");
    for len in [1, 40, 120, 300] {
        let torn = &torn.line()[..len];
        let mended = format!("{}{torn}\n{}", first.line(), last.line());
        let appended = format!("{}{torn}{}", first.line(), last.line());
        for text in [mended, appended] {
            let loaded = loaded([("1.json", text.clone().into())]);
            assert_eq!(
                (names(&loaded), problems(&loaded)),
                (vec!["span 0", "span 2"], vec![Problem::Damaged(1)]),
                "{text}"
            );
        }
    }
}

#[test]
fn a_torn_line_with_an_event_does_not_become_a_span() {
    let torn = span("torn", 1, None, (0, 1)).exception("Boom", "it broke").line();
    let torn = &torn[..torn.len() - 40];
    let loaded = loaded([("1.json", format!("{torn}\n{}", lines(&spans(1))).into())]);
    assert_eq!((names(&loaded), problems(&loaded)), (vec!["span 0"], vec![Problem::Damaged(1)]));
}

#[test]
fn what_is_not_a_span_is_counted_and_skipped() {
    let good = lines(&spans(2));
    let line = span("x", 9, None, (0, 1)).line();
    for (what, bad) in [
        ("text", "hello\n".to_string()),
        ("a number", "12\n".to_string()),
        ("an array", "[1, 2]\n".to_string()),
        ("an empty object", "{}\n".to_string()),
        ("OTLP of another signal", "{\"resourceLogs\": []}\n".to_string()),
        ("a short trace id", line.replace("0x4bf9", "0x")),
        ("a signed trace id", line.replace("0x4bf9", "0x+bf9")),
        ("a zero span id", line.replace("0x0000000000000009", "0x0000000000000000")),
        ("a bad parent", line.replace("\"parent_id\": null", "\"parent_id\": \"root\"")),
        ("a bad start", line.replace("\"start_time\": \"2026", "\"start_time\": \"26")),
        ("a bad end", line.replace("\"end_time\": \"2026", "\"end_time\": \"26")),
        ("a number for a name", line.replace("\"x\"", "1")),
        ("no context", line.replace("\"context\"", "\"contexts\"")),
        ("a key twice", line.replace("\"kind\"", "\"name\"")),
    ] {
        assert_ne!(bad, line, "{what}");
        let loaded = loaded([("1.json", format!("{bad}{good}").into())]);
        assert_eq!(
            (names(&loaded), problems(&loaded)),
            (vec!["span 0", "span 1"], vec![Problem::NotSpans(1)]),
            "{what}"
        );
    }
}

#[test]
fn what_may_be_missing_may_be_missing() {
    let text = r#"{"name": "a", "context": {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}, "start_time": "2026-11-05T12:00:00Z"}"#;
    let loaded = loaded([("1.json", text.into())]);
    let span = &loaded.traces[0].spans[0];
    assert_eq!(
        (span.end_unix_nano(), span.duration_ns(), span.status, span.kind),
        (None, 0, Status::Unset, Kind::Internal)
    );
}

#[test]
fn the_first_of_two_records_of_a_span_is_kept() {
    let [first, second] = ["first", "second"].map(|name| span(name, 1, None, (0, 1)).line());
    let other_trace = span("other", 1, None, (0, 1)).trace(7).line();
    let loaded = loaded([("1.json", first.into()), ("2.json", format!("{second}{other_trace}").into())]);
    assert_eq!(names(&loaded), ["other", "first"]);
    let duplicates: Vec<_> = loaded.traces.iter().map(|trace| trace.duplicates).collect();
    assert_eq!(duplicates, [0, 1]);
}

#[test]
fn a_folder_is_read_with_its_rotated_files_and_without_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let spans = spans(5);
    for (name, span) in [("12.json", 2), ("12.1.json", 0), ("12.2.jsonl", 1), ("7.txt", 3), ("12.json.tmp", 4)] {
        std::fs::write(folder.path().join(name), spans[span].line()).expect("the file is written");
    }
    std::fs::write(folder.path().join("8.json"), "").expect("the file is written");
    std::fs::create_dir(folder.path().join("9.json")).expect("the folder is made");
    let loaded = load(folder.path()).expect("the folder is read");
    assert_eq!(names(&loaded), ["span 0", "span 1", "span 2", "span 3"]);
    assert_eq!(loaded.notices, []);
    assert_eq!(loaded.traces[0].process_count(), 2);
    assert_eq!(loaded.traces[0].spans[3].path(), folder.path().join("7.txt"));
}

#[test]
fn files_in_a_form_that_is_not_read_are_reported_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in
        ["1.json.gz", "traces.jsonl.zst", "traces.zst", "traces.pb", "notes.tar.gz", "1.logs.jsonl.gz", "read.me"]
    {
        std::fs::write(folder.path().join(name), "x").expect("the file is written");
    }
    let mut tail = Tail::new(folder.path());
    let (spans, notices) = tail.read().expect("the folder is read");
    let names: Vec<_> = notices.iter().map(|notice| notice.path.file_name().expect("a name").to_owned()).collect();
    assert_eq!(
        (spans.len(), names),
        (0, ["1.json.gz", "traces.jsonl.zst", "traces.pb", "traces.zst"].map(Into::into).to_vec())
    );
    assert_eq!(tail.read().expect("the folder is read").1, []);
}

#[test]
fn otlp_is_read_as_older_and_other_writers_write_it() {
    let span = |more: &str| {
        format!(r#"{{"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331","name":"a",{more}}}"#)
    };
    let body = |key: &str, spans: &str| {
        format!(r#"{{"resourceSpans":[{{"resource":{{}},"{key}":[{{"spans":[{spans}]}}]}}]}}"#)
    };
    let times = r#""startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000000000000512""#;
    let floats = r#""startTimeUnixNano":1.7e18,"endTimeUnixNano":"1.700000000000000512e18","kind":"SPAN_KIND_SERVER""#;
    for text in [
        body("instrumentationLibrarySpans", &span(times)),
        body("instrumentation_library_spans", &span(times)),
        body("scopeSpans", &span(floats)),
        body("scopeSpans", &span(times))
            .replace("}]}]}", &format!(r#"}}],"instrumentationLibrarySpans":[{{"spans":[{}]}}]}}]}}"#, span(times))),
    ] {
        let loaded = loaded([("1.json", text.clone().into())]);
        assert_eq!(problems(&loaded), [], "{text}");
        let [span] = loaded.traces[0].spans.as_slice() else { panic!("{text}") };
        assert_eq!((span.start_unix_nano, span.duration_ns()), (1_700_000_000_000_000_000, 512), "{text}");
    }
    for wrong in ["1.5", "-1", "1e30", "\"soon\""] {
        let text = body("scopeSpans", &span(&format!(r#""startTimeUnixNano":{wrong}"#)));
        assert_eq!(problems(&loaded([("1.json", text.into())])), [Problem::NotSpans(1)], "{wrong}");
    }
}

#[test]
fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("spans");
    let error = load(&missing).expect_err("there is no folder");
    assert_eq!(
        error.to_string(),
        format!(
            "there is no spans folder `{}`: nothing has been traced yet, or the spans are elsewhere",
            missing.display()
        )
    );
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("the file is written");
    let error = load(&file).expect_err("it is a file");
    assert_eq!(
        error.to_string(),
        format!("cannot read the spans folder `{}`: Not a directory (os error 20)", file.display())
    );
}

#[test]
fn notices_are_sentences() {
    for (problem, expected) in [
        (Problem::Unreadable("Permission denied".into()), "`1.json`: cannot be read: Permission denied"),
        (Problem::NotSpans(1), "`1.json`: 1 record skipped that is not a span"),
        (Problem::NotSpans(2), "`1.json`: 2 records skipped that are not a span"),
        (Problem::Damaged(2), "`1.json`: 2 records skipped that are damaged"),
        (Problem::Unfinished, "`1.json`: the last record is cut off"),
        (
            Problem::OtherForm("a packed file", "unpack it"),
            "`1.json` was passed over: expected spans in JSON, found a name of a packed file (hint: unpack it)",
        ),
    ] {
        assert_eq!(Notice { path: "/tmp/spans/1.json".into(), problem }.to_string(), expected);
    }
}

#[test]
fn hostile_files_are_read_in_linear_time() {
    // Each would take minutes if every line were read to the end of the file.
    for line in [
        "{\"a\":\n",
        "{\"a\": [0,\n",
        "{\"name\": \"x\"",
        "{\"a\": \"",
        "{",
        "[",
        "{\"name\"",
        "}\n",
        "{\"resourceSpans\":[",
        "{\"resourceSpans\":[],\n",
    ] {
        let text = line.repeat(200_000);
        let loaded = loaded([("1.json", text.into())]);
        assert_eq!(names(&loaded), [""; 0], "{line}");
        assert!(!loaded.notices.is_empty(), "{line}");
    }
}

/// Makes a line as the hook `otlp_file` and collectors write it; of three spans the second has an id that is none.
fn otlp_line(spans: &[(&str, &str)]) -> String {
    let span = |(name, id): &(&str, &str)| {
        format!(
            r#"{{"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"{id}","name":"{name}","kind":5,"startTimeUnixNano":"{EPOCH}","endTimeUnixNano":"{}","events":[{{"name":"e"}}]}}"#,
            EPOCH + 7
        )
    };
    let spans: Vec<_> = spans.iter().map(span).collect();
    format!(
        r#"{{"resourceSpans":[{{"resource":{{"attributes":[{{"key":"process.pid","value":{{"intValue":"12"}}}}]}},"scopeSpans":[{{"scope":{{}},"spans":[{}]}}]}}]}}"#,
        spans.join(",")
    ) + "\n"
}

#[test]
fn otlp_lines_are_read_beside_the_others() {
    let line = otlp_line(&[("a", "00f067aa0ba902b7"), ("bad", "0"), ("b", "00f067aa0ba902b8")]);
    let text = format!("{line}{}{line}", lines(&spans(1)));
    for file in ["7.json", "7.txt", "7.otlp.jsonl"] {
        let loaded = loaded([(file, text.clone().into())]);
        assert_eq!((names(&loaded), problems(&loaded)), (vec!["a", "b", "span 0"], vec![Problem::NotSpans(2)]));
        let a = &loaded.traces[0].spans[0];
        assert_eq!((a.kind, a.start_unix_nano, a.end_unix_nano()), (Kind::Consumer, EPOCH, Some(EPOCH + 7)));
        assert_eq!((a.pid(), loaded.traces[0].duplicates), (Some(12), 2), "{file}");
        assert_eq!(a.events().len(), 1);
    }
}

#[test]
fn what_the_export_writes_is_read_back_as_it_was() {
    for text in [ONE_PER_LINE, PRETTY_PRINTED, SDK_1_1] {
        let before = loaded([("4711.json", text.into())]);
        let traces: Vec<_> = before.traces.iter().collect();
        let mut otlp = Vec::new();
        super::super::export::otlp(&traces, &mut otlp).expect("a vector takes everything");
        let after = loaded([("4711.otlp.jsonl", otlp)]);
        assert_eq!(after.notices, []);
        for (before, after) in before.traces[0].spans.iter().zip(&after.traces[0].spans) {
            let value = |span: &Span| serde_json::from_str::<serde_json::Value>(&span.text()).expect("it is JSON");
            let (mut before, after) = (value(before), value(after));
            if text == SDK_1_1 {
                // Of that age: no `0x`, and no object around the attributes of the resource.
                for key in ["parent_id", "resource"] {
                    before[key] = after[key].clone();
                }
            }
            assert_eq!(before, after);
        }
    }
}

#[test]
fn a_torn_otlp_line_costs_only_itself() {
    let whole = otlp_line(&[("whole", "00f067aa0ba902b7")]);
    let torn = otlp_line(&[("torn", "00f067aa0ba902b8"), ("torn too", "00f067aa0ba902b9")]);
    let last = otlp_line(&[("last", "00f067aa0ba902ba")]);
    for len in [1, 10, 17, 60, 200, torn.len() - 3] {
        let torn = &torn[..len];
        let found = loaded([("1.jsonl", format!("{whole}{torn}").into())]);
        assert_eq!((names(&found), problems(&found)), (vec!["whole"], vec![Problem::Unfinished]), "{len} bytes");
        for text in [format!("{whole}{torn}\n{last}"), format!("{whole}{torn}{last}")] {
            let found = loaded([("1.jsonl", text.into())]);
            assert_eq!((names(&found), problems(&found)), (vec!["whole", "last"], vec![Problem::Damaged(1)]), "{len}");
        }
    }
}

#[test]
fn an_otlp_file_is_read_on_from_where_it_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.otlp.jsonl");
    let mut tail = Tail::new(folder.path());
    let lines = ["a", "b", "c"].map(|name| otlp_line(&[(name, "00f067aa0ba902b7"), ("second", "00f067aa0ba902b8")]));
    let mut written = String::new();
    for (text, expected) in [
        (lines[0].as_str(), vec!["a", "second"]),
        (&lines[1][..100], vec![]),
        (&lines[1][100..], vec!["b", "second"]),
        (&lines[2], vec!["c", "second"]),
    ] {
        written.push_str(text);
        fs::write(&path, &written).unwrap();
        let spans = tail.read().unwrap().0;
        assert_eq!(spans.iter().map(|span| span.name()).collect::<Vec<_>>(), expected);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(loaded([("1.json", bytes)]).traces.is_empty());
    }

    #[test]
    fn a_file_cut_anywhere_gives_every_whole_span(cut in 0_usize..=5000, is_pretty in any::<bool>()) {
        let text = if is_pretty { PRETTY_PRINTED.into() } else { lines(&spans(4)) };
        let cut = cut.min(text.len());
        let separator = if is_pretty { "\n}" } else { "}}\n" };
        let whole = text[..cut].matches(separator).count();
        let found = loaded([("1.json", text.as_bytes()[..cut].into())]);
        // The line break after the last span may be what was cut.
        let count = names(&found).len();
        prop_assert!(count == whole || (!is_pretty && count == whole + 1), "{} of {}", count, whole);
        prop_assert!(problems(&found).iter().all(|problem| *problem == Problem::Unfinished));
    }

    #[test]
    fn damage_in_one_line_spares_the_others(at in 0_usize..300, bytes in prop::collection::vec(any::<u8>(), 1..20)) {
        let [first, second, last] = [0, 1, 2].map(|index| spans(3)[index].line());
        let mut second = second.into_bytes();
        second.splice(at..at, bytes);
        let text = [first.as_bytes(), &second, last.as_bytes()].concat();
        let found = loaded([("1.json", text)]);
        let names = names(&found);
        prop_assert!(names.contains(&"span 0"));
        prop_assert!(names.contains(&"span 2"));
    }
}

#[test]
fn a_folder_is_read_on_from_where_it_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.json");
    let mut tail = Tail::new(folder.path());
    let mut names = |expected: &[&str]| {
        let spans = tail.read().unwrap().0;
        assert_eq!(spans.iter().map(|span| span.name()).collect::<Vec<_>>(), expected);
    };
    let append = |path: &Path, text: &str| {
        std::io::Write::write_all(
            &mut fs::File::options().create(true).append(true).open(path).unwrap(),
            text.as_bytes(),
        )
        .unwrap();
    };
    let line = |name, id| span(name, id, None, (0, 1)).line();
    names(&[]);
    append(&path, &line("a", 1));
    names(&["a"]);
    names(&[]);
    // A line that is being written is read when it is whole.
    let whole = line("b", 2);
    let (start, rest) = whole.split_at(40);
    append(&path, start);
    names(&[]);
    append(&path, rest);
    names(&["b"]);
    // A file that is rotated is not read again, and the new one from its start.
    append(&path, &line("c", 3));
    fs::rename(&path, folder.path().join("1.1.json")).unwrap();
    append(&path, &line("d", 4));
    names(&["c", "d"]);
    names(&[]);
    fs::write(&path, "").unwrap();
    names(&[]);
    append(&path, &line("e", 5));
    names(&["e"]);
}

#[test]
fn floats_and_times_that_python_writes_and_json_does_not_know_are_read() {
    let pretty = r#"{
    "name": "odd",
    "context": {
        "trace_id": "0x0000000000000000000000000000000a",
        "span_id": "0x000000000000000b",
        "trace_state": "[]"
    },
    "kind": "SpanKind.INTERNAL",
    "parent_id": null,
    "start_time": START,
    "end_time": END,
    "status": {
        "status_code": "UNSET"
    },
    "attributes": {
        "none": NaN,
        "list": [Infinity, -Infinity, 1.5],
        "text": "NaN \" Infinity"
    },
    "events": [],
    "links": [],
    "resource": {
        "attributes": {"weight": -Infinity},
        "schema_url": ""
    }
}
"#;
    let one_line = |text: &str| format!("{}\n", text.replace("\n    ", " ").replace('\n', " "));
    let time = "\"2026-11-22T18:00:00.000000Z\"";
    for (start, end, expected) in [
        (time, time, (1_795_370_400_000_000_000, Some(1_795_370_400_000_000_000))),
        ("null", time, (0, Some(1_795_370_400_000_000_000))),
        ("null", "null", (0, Some(0))),
    ] {
        let text = pretty.replace("START", start).replace("END", end);
        let after = span("after", 2, None, (0, 1)).line();
        for text in [text.clone(), one_line(&text)] {
            let found = loaded([("1.json", format!("{text}{after}").into_bytes())]);
            assert_eq!(problems(&found), [], "{text}");
            assert_eq!(names(&found).len(), 2, "{text}");
            let odd = found.traces.iter().flat_map(|trace| &trace.spans).find(|span| span.name() == "odd").unwrap();
            assert_eq!((odd.start_unix_nano, odd.end_unix_nano()), expected);
            let value = |key| odd.attribute(key).unwrap();
            assert_eq!(value("none"), "NaN");
            assert_eq!(value("list"), serde_json::json!(["Infinity", "-Infinity", 1.5]));
            assert_eq!(value("text"), "NaN \" Infinity");
            assert_eq!(odd.resource().get("weight").unwrap(), "-Infinity");
            serde_json::from_str::<serde_json::Value>(&odd.compact_text()).expect("it is JSON");
        }
    }
}

#[test]
fn traces_that_are_asked_for_are_read_in_every_layout() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("1.json", ONE_PER_LINE), ("2.json", PRETTY_PRINTED)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let other = span("of another trace", 1, None, (0, 1)).trace(7).line();
    fs::write(folder.path().join("3.json"), format!("{other}{ONE_PER_LINE}{other}")).unwrap();
    let all = load(folder.path()).unwrap();
    for beginning in ["8f3c6a2e9d514b7083e1f6a4c2d95b07", "8f3c6a2", "00000000000000000000000000000007", "ffff"] {
        let expected: Vec<_> = all.traces.iter().filter(|trace| trace.id.to_string().starts_with(beginning)).collect();
        let found = load_traces(folder.path(), &[beginning.into()]).unwrap();
        assert_eq!(found.traces.len(), expected.len(), "{beginning}");
        for (found, expected) in found.traces.iter().zip(expected) {
            assert_eq!((found.id, found.duplicates), (expected.id, expected.duplicates));
            let texts = |trace: &super::super::Trace| -> Vec<String> {
                trace.spans.iter().map(|span| span.text().into_owned()).collect()
            };
            assert_eq!(texts(found), texts(expected));
        }
    }
    let many: Vec<String> = (0..NEEDLES as u64 + 1).map(|number| format!("{number:032x}")).collect();
    assert_eq!(load_traces(folder.path(), &many).unwrap().traces.len(), 1);
    assert!(matches!(load_traces(&folder.path().join("none"), &many), Err(LoadError::Missing { .. })));
}
