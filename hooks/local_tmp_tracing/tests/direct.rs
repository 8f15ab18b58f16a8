//! Spans that are rendered as they grow, against the same spans made by the SDK: nobody can tell them apart in the file.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SpanLimits};
use serde_json::Value as Json;
use tracer_abi as abi;
use tracer_local_tmp_tracing::FileProcessor;
use tracer_sdk::hook::{Tracing, export};
use tracer_span_file::Rotation;

type Setup = Box<dyn FnOnce() -> Result<Tracing, String>>;

thread_local! {
    static SETUP: RefCell<Option<Setup>> = const { RefCell::new(None) };
}

/// Returns the table of a hook that writes to `dir`. One that names its sampler is left to the SDK.
fn table(dir: &Path, names_sampler: bool) -> &'static abi::Tracing {
    fn hook() -> Result<Tracing, String> {
        SETUP.take().expect("set below")()
    }
    let dir = dir.to_path_buf();
    SETUP.set(Some(Box::new(move || {
        let processor = FileProcessor::try_new(&dir, Rotation::default()).map_err(|error| error.to_string())?;
        let who = [KeyValue::new("service.name", "test"), KeyValue::new("service.instance.id", "1")];
        let builder = Tracing::builder()
            .with_durable_processor(processor)
            .with_resource(Resource::builder_empty().with_attributes(who).build())
            .with_span_limits(SpanLimits {
                max_attributes_per_span: 40,
                max_events_per_span: 3,
                max_links_per_span: 2,
                max_attributes_per_event: 2,
                max_attributes_per_link: 1,
            });
        let parent_based = Sampler::ParentBased(Box::new(Sampler::AlwaysOn));
        Ok(if names_sampler { builder.with_sampler(parent_based) } else { builder }.build())
    })));
    let table = export(hook).expect("the folder can be used");
    // SAFETY: a table lives as long as the process.
    unsafe { &*table }
}

fn attribute(key: &'static [u8], tag: u32, as_: abi::ValueUnion) -> abi::KeyValue {
    abi::KeyValue { key: abi::Str { ptr: key.as_ptr(), len: key.len() }, value: abi::Value { tag, as_ } }
}

fn text(key: &'static str, value: &'static [u8]) -> abi::KeyValue {
    let str_ = abi::Str { ptr: value.as_ptr(), len: value.len() };
    attribute(key.as_bytes(), abi::VALUE_STR, abi::ValueUnion { str_ })
}

fn number(key: &'static str, value: i64) -> abi::KeyValue {
    attribute(key.as_bytes(), abi::VALUE_I64, abi::ValueUnion { i64_: value })
}

fn array<T>(key: &'static str, tag: u32, values: &'static [T]) -> abi::KeyValue {
    let array = abi::Array { ptr: values.as_ptr().cast(), count: values.len() };
    attribute(key.as_bytes(), tag, abi::ValueUnion { array })
}

/// Changes of a span after its start.
type Say = dyn Fn(&abi::Tracing, *mut c_void);

fn set(table: &abi::Tracing, span: *mut c_void, attributes: &[abi::KeyValue]) {
    // SAFETY: a handle of this table; the attributes are borrowed for the call.
    unsafe { table.span_set_attributes.unwrap()(span, attributes.as_ptr(), attributes.len()) };
}

fn status(table: &abi::Tracing, span: *mut c_void, code: u32, description: &'static str) {
    // SAFETY: a handle of this table.
    unsafe { table.span_set_status.unwrap()(span, code, abi::Str::new(description)) };
}

fn event(table: &abi::Tracing, span: *mut c_void, name: &'static str, attributes: &[abi::KeyValue]) {
    let event = abi::Event {
        size: size_of::<abi::Event>(),
        name: abi::Str::new(name),
        time_unix_nano: 1_795_203_275_500_000_000,
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    };
    // SAFETY: a handle of this table; the event is borrowed for the call.
    unsafe { table.span_add_event.unwrap()(span, &event) };
}

fn link(table: &abi::Tracing, span: *mut c_void, id: u8, attributes: &[abi::KeyValue]) {
    let link = abi::Link {
        size: size_of::<abi::Link>(),
        context: abi::SpanContext {
            trace_id: [id; 16],
            span_id: [id; 8],
            trace_state: abi::Str::new("a=1"),
            ..abi::SpanContext::INVALID
        },
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    };
    // SAFETY: a handle of this table; the link is borrowed for the call.
    unsafe { table.span_add_link.unwrap()(span, &link) };
}

fn end(table: &abi::Tracing, span: *mut c_void) {
    // SAFETY: a handle of this table.
    unsafe { table.span_end.unwrap()(span, 1_795_203_276_000_000_000) };
}

/// Makes one span, child of the span 0xcdcd… if it `has_parent`.
fn span(table: &abi::Tracing, has_parent: bool, attributes: &[abi::KeyValue], say: &Say) {
    span_with_prefix(table, has_parent, (0, 0), attributes, say);
}

/// Makes one span as [`span`] does, with the number of a prefix and the count of its attributes.
fn span_with_prefix(
    table: &abi::Tracing,
    has_parent: bool,
    (prefix_id, prefix_count): (u64, usize),
    attributes: &[abi::KeyValue],
    say: &Say,
) {
    span_named(table, b"one \"span\"", has_parent, (prefix_id, prefix_count), attributes, say);
}

/// Makes one span as [`span_with_prefix`] does, of this name.
fn span_named(
    table: &abi::Tracing,
    name: &[u8],
    has_parent: bool,
    (prefix_id, prefix_count): (u64, usize),
    attributes: &[abi::KeyValue],
    say: &Say,
) {
    let scope = abi::Scope {
        size: size_of::<abi::Scope>(),
        name: abi::Str::new("test"),
        version: abi::Str::EMPTY,
        schema_url: abi::Str::EMPTY,
        attributes: ptr::null(),
        attribute_count: 0,
    };
    let parent = abi::SpanContext {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        trace_flags: 1,
        is_remote: 1,
        ..abi::SpanContext::INVALID
    };
    let start = abi::SpanStart {
        start_time_unix_nano: 1_795_203_275_000_000_000,
        parent: if has_parent { &parent } else { ptr::null() },
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
        baggage: abi::Str::new("tenant=acme"),
        prefix_id,
        prefix_count,
        ..abi::SpanStart::new(abi::Str { ptr: name.as_ptr(), len: name.len() }, abi::SPAN_KIND_CONSUMER)
    };
    let mut started = abi::SpanStarted::EMPTY;
    // SAFETY: the table's own functions; everything is borrowed for the calls, and each handle is given back once.
    unsafe {
        let tracer = table.tracer.unwrap()(table.data, &scope);
        let span = table.span_start.unwrap()(tracer, &start, &mut started);
        assert!(!span.is_null());
        // A new trace has the random flag; flags of a parent stay as they are.
        let flags = if has_parent { 1 } else { 3 };
        assert_eq!((started.trace_flags, started.is_recording, started.has_trace_state), (flags, 1, 0));
        assert_eq!(started.trace_id == parent.trace_id, has_parent);
        assert_ne!(started.span_id, [0; 8]);
        say(table, span);
        table.span_end_and_release.unwrap()(span, 1_795_203_276_000_000_000);
        table.tracer_release.unwrap()(tracer);
    }
}

/// Returns the lines that were written, without the ids that are random.
fn lines(table: &abi::Tracing, dir: &Path) -> Vec<Json> {
    // SAFETY: the table's own function with its own data.
    assert_eq!(unsafe { table.commit.unwrap()(table.data, ptr::null_mut()) }, abi::STATUS_OK);
    let text = fs::read_to_string(dir.join(format!("{}.json", std::process::id()))).unwrap();
    let read = |line: &str| {
        let mut line: Json = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        line["context"]["span_id"] = Json::Null;
        if line["parent_id"].is_null() {
            line["context"]["trace_id"] = Json::Null;
        }
        line
    };
    text.lines().map(read).collect()
}

/// Returns the keys of each line's attributes, in order: the maps of the JSON reader have none.
fn keys(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join(format!("{}.json", std::process::id()))).unwrap();
    let between = |line: &str| {
        let start = line.find("\"attributes\":").expect("it has attributes");
        let end = line[start..].find(",\"events\":").expect("they end");
        line[start..start + end].to_owned()
    };
    text.lines().map(between).collect()
}

#[test]
fn a_span_that_is_rendered_as_it_grows_has_the_line_of_one_of_the_sdk() {
    let (direct, by_sdk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tables = [table(direct.path(), false), table(by_sdk.path(), true)];
    static BOOLS: [u8; 2] = [1, 0];
    static FLOATS: [f64; 2] = [0.5, f64::INFINITY];
    static NUMBERS: [i64; 3] = [1, -2, i64::MIN];
    // No empty key: the host drops those before it calls a table.
    let every_kind = || {
        vec![
            attribute(b"bool", abi::VALUE_BOOL, abi::ValueUnion { bool_: 1 }),
            number("int", -7),
            attribute(b"float", abi::VALUE_F64, abi::ValueUnion { f64_: f64::NAN }),
            text("text", "é \n\"quoted\" \\ \u{2028}".as_bytes()),
            text("not a text", b"broken \xff\xfe"),
            text("empty", b""),
            attribute(b"no \xff key", abi::VALUE_I64, abi::ValueUnion { i64_: 3 }),
            array("bools", abi::VALUE_BOOL_ARRAY, &BOOLS),
            array("ints", abi::VALUE_I64_ARRAY, &NUMBERS),
            array("floats", abi::VALUE_F64_ARRAY, &FLOATS),
            attribute(b"unknown", 99, abi::ValueUnion { i64_: 0 }),
        ]
    };
    let many: &'static [String] = (0..60).map(|number| format!("many.{number}")).collect::<Vec<_>>().leak();
    let cases: Vec<(Vec<abi::KeyValue>, Box<Say>)> = vec![
        (vec![], Box::new(end)),
        (every_kind(), Box::new(end)),
        // It ends when it is given back.
        (every_kind(), Box::new(|_, _| ())),
        (
            every_kind(),
            Box::new(move |table, span| {
                set(table, span, &[number("int", 8), text("new", b"x"), number("newer", 5)]);
                set(table, span, &[text("int", b"longer than it was before"), number("text", 1), number("new", 2)]);
                set(table, span, &[array("bool", abi::VALUE_I64_ARRAY, &NUMBERS), number("int", 1)]);
                end(table, span);
                set(table, span, &[number("int", 9), number("after", 1)]);
            }),
        ),
        (
            // As many as are kept, and then those that are not.
            many[..35].iter().map(|key| number(key, 1)).collect(),
            Box::new(move |table, span| {
                many_after(table, span, many);
                end(table, span);
            }),
        ),
        (
            vec![number("a", 1)],
            Box::new(|table, span| {
                let more = [text("x", b"1"), text("y", b"2"), text("z", b"3")];
                for name in ["first", "sec\"ond", "third", "one too many"] {
                    event(table, span, name, &more);
                }
                link(table, span, 0, &[]);
                for id in [1, 2, 3] {
                    link(table, span, id, &more);
                }
                status(table, span, abi::SPAN_STATUS_ERROR, "it \"broke\"");
                status(table, span, abi::SPAN_STATUS_UNSET, "");
                status(table, span, 99, "nonsense");
                // SAFETY: a handle of this table.
                unsafe { table.span_update_name.unwrap()(span, abi::Str::new("a longer name than it had")) };
                set(table, span, &[number("a", 22_222), number("b", 3)]);
                // SAFETY: as above.
                unsafe { table.span_update_name.unwrap()(span, abi::Str::new("short")) };
                set(table, span, &[number("a", 3)]);
                end(table, span);
                end(table, span);
                event(table, span, "after", &[]);
                status(table, span, abi::SPAN_STATUS_OK, "");
            }),
        ),
        (
            vec![],
            Box::new(|table, span| {
                status(table, span, abi::SPAN_STATUS_ERROR, "first");
                status(table, span, abi::SPAN_STATUS_OK, "");
                status(table, span, abi::SPAN_STATUS_ERROR, "too late");
                end(table, span);
            }),
        ),
    ];
    // Several times, as what is remembered from one span must not show in the next.
    for round in 0..20 {
        for ((attributes, say), case) in cases.iter().zip(1..) {
            let count = attributes.len();
            let mut attributes = attributes.clone();
            attributes.push(number("round", round / 3));
            // Some come in each other's way, and one has more than there are.
            let prefix = [(0, 0), (case, count), (case << 32, count), (0, count), (1 << 40, 1_000)][round as usize % 5];
            for table in tables {
                span_with_prefix(table, round % 2 == 0, prefix, &attributes, say);
            }
        }
    }
    let [ours, theirs] = [lines(tables[0], direct.path()), lines(tables[1], by_sdk.path())];
    assert_eq!(ours.len(), 20 * cases.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in keys(direct.path()).iter().zip(&keys(by_sdk.path())) {
        assert_eq!(ours, theirs, "the order is the same too");
    }
}

fn many_after(table: &abi::Tracing, span: *mut c_void, many: &'static [String]) {
    many.iter().skip(35).for_each(|key| set(table, span, &[number(key, 2)]));
}

#[test]
fn every_name_is_written_as_the_sdk_writes_it_however_often_and_wherever_it_comes_from() {
    let (direct, by_sdk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tables = [table(direct.path(), false), table(by_sdk.path(), true)];
    let names: [&[u8]; 6] =
        [b"", b"plain", b"with \"quotes\" and \\", b"broken \xff\xfe", "\u{2028}\n".as_bytes(), b"sixteen and some!"];
    let many: Vec<Vec<u8>> = (0..40).map(|number| format!("a name like others {number}").into_bytes()).collect();
    let long = [vec![b'l'; 256], vec![b'l'; 257], vec![b'"'; 10_000]];
    // The same memory has one name after the other.
    let mut place = [b'x'; 9];
    for _ in 0..3 {
        for name in names.into_iter().chain(many.iter().chain(&long).map(Vec::as_slice)) {
            tables.iter().for_each(|table| span_named(table, name, false, (0, 0), &[], &end));
        }
        for digit in b'0'..=b'9' {
            place[8] = digit;
            tables.iter().for_each(|table| span_named(table, &place, true, (0, 0), &[number("a", 1)], &end));
        }
    }
    let [ours, theirs] = [lines(tables[0], direct.path()), lines(tables[1], by_sdk.path())];
    assert_eq!(ours.len(), 3 * (names.len() + many.len() + long.len() + 10));
    assert_eq!(ours, theirs);
    assert!(ours.iter().any(|line| line["name"] == "broken \u{fffd}\u{fffd}"));
}

#[test]
fn keys_that_change_at_one_address_are_not_mistaken_and_a_key_that_is_dropped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path(), false);
    let say = |table: &abi::Tracing, span: *mut c_void| {
        let mut key = *b"key_0";
        for (digit, value) in [(b'1', 1), (b'2', 1), (b'1', 2), (b'3', 1)] {
            key[4] = digit;
            let key = abi::Str { ptr: key.as_ptr(), len: key.len() };
            let value = abi::Value { tag: abi::VALUE_I64, as_: abi::ValueUnion { i64_: value } };
            set(table, span, &[abi::KeyValue { key, value }]);
        }
        end(table, span);
    };
    (0..8).for_each(|_| span(table, false, &[], &say));
    for line in lines(table, folder.path()) {
        assert_eq!(line["attributes"], serde_json::json!({"key_1": 2, "key_2": 1, "key_3": 1}));
    }
}

#[test]
fn more_keys_than_a_thread_remembers_are_not_mistaken_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path(), false);
    let keys: &'static [String] = (0..400).map(|number| format!("key.{number}")).collect::<Vec<_>>().leak();
    for (round, part) in (0..3).flat_map(|round| keys.chunks(40).map(move |part| (round, part))) {
        let say = move |table: &abi::Tracing, span: *mut c_void| {
            part.iter().for_each(|key| set(table, span, &[number(key, -1)]));
            part.iter().for_each(|key| set(table, span, &[number(key, round)]));
            end(table, span);
        };
        span(table, false, &[], &say);
    }
    let lines = lines(table, folder.path());
    assert_eq!(lines.len(), 30);
    for (index, line) in lines.iter().enumerate() {
        let (round, part) = (index / 10, &keys[index % 10 * 40..][..40]);
        let said: serde_json::Map<_, _> = part.iter().map(|key| (key.clone(), round.into())).collect();
        assert_eq!(line["attributes"], Json::Object(said));
    }
}
