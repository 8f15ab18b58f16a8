//! The example hook in C, compiled and driven through its table as the host drives it.

use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use serde_json::Value as Json;
use tracer_abi as abi;

/// Set in the process that loads the library: the folder with it.
const INSIDE: &str = "C_HOOK_TEST";

fn compiled(dir: &Path) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let library = dir.join("libhook_c.so");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-O1",
        "-fPIC",
        "-shared",
        "-pthread",
        "-I",
    ]);
    compiler.arg(root.join("hooks/abi/include")).arg("-o").arg(&library).arg(root.join("examples/hook_c/hook_c.c"));
    let output = compiler.output().expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Runs the test `name` again in a process of its own, with a span folder: a hook runs once in a process, and takes the folder
/// from the environment. Returns the folder.
#[track_caller]
fn run_inside(name: &str, dir: &Path, spans: &Path) {
    compiled(dir);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, dir).env("TRACER_SPANS_DIR", spans);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the test ran inside");
}

fn with_text(call: impl FnOnce(*mut abi::TextBuffer) -> u32) -> (u32, String) {
    let mut bytes = [0; 512];
    let mut buffer = abi::TextBuffer::new(&mut bytes);
    let status = call(&raw mut buffer);
    let filled = buffer.filled();
    (status, String::from_utf8_lossy(&bytes[..filled]).into_owned())
}

/// Loads the library and runs its hook.
fn set_up(dir: &Path) -> Result<&'static abi::Tracing, String> {
    // SAFETY: the library is the example's. It stays loaded, as every module does.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new(dir.join("libhook_c.so")).unwrap()));
        let entry = library.get::<abi::ModuleEntry>(abi::ENTRY_SYMBOL).unwrap();
        let module = &*entry();
        assert_eq!(module.magic, abi::MODULE_MAGIC);
        assert_eq!((module.size, module.abi_major), (size_of::<abi::Module>(), abi::ABI_MAJOR));
        assert_eq!((module.hook_count, module.task_count), (1, 1));
        let hook = &**module.hooks;
        assert_eq!(hook.name.as_bytes(), b"setup_tracing");
        let mut tracing = ptr::null();
        let (status, text) = with_text(|error| hook.on_setup.unwrap()(hook, &raw mut tracing, error));
        if status == abi::STATUS_OK { Ok(&*tracing) } else { Err(text) }
    }
}

fn pair(key: &'static str, tag: u32, as_: abi::ValueUnion) -> abi::KeyValue {
    abi::KeyValue { key: abi::Str::new(key), value: abi::Value { tag, as_ } }
}

fn elements<T>(elements: &'static [T]) -> abi::ValueUnion {
    abi::ValueUnion { array: abi::Array { ptr: elements.as_ptr().cast(), count: elements.len() } }
}

fn start(name: abi::Str) -> abi::SpanStart {
    abi::SpanStart::new(name, abi::SPAN_KIND_INTERNAL)
}

fn start_span(table: &abi::Tracing, start: &abi::SpanStart) -> (*mut c_void, abi::SpanStarted) {
    let mut said = abi::SpanStarted::EMPTY;
    // SAFETY: the table is live, and what is passed outlives the call.
    let span = unsafe { table.span_start.unwrap()(table.data, start, &raw mut said) };
    (span, said)
}

fn lines(dir: &Path) -> Vec<Json> {
    let files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let text = fs::read_to_string(&files[0]).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

#[test]
fn spans_of_the_hook_in_c_are_whole() {
    if let Some(dir) = std::env::var_os(INSIDE) {
        let table = set_up(Path::new(&dir)).unwrap();
        const TEXTS: &[abi::Str] = &[abi::Str::new("x"), abi::Str::new("y\"")];
        let attributes = [
            pair("bool", abi::VALUE_BOOL, abi::ValueUnion { bool_: 1 }),
            pair("int", abi::VALUE_I64, abi::ValueUnion { i64_: i64::MIN }),
            pair("float", abi::VALUE_F64, abi::ValueUnion { f64_: 2.0 }),
            pair("nan", abi::VALUE_F64, abi::ValueUnion { f64_: f64::NAN }),
            pair("text", abi::VALUE_STR, abi::ValueUnion { str_: abi::Str::new("é\n") }),
            pair("unknown", 99, abi::ValueUnion { i64_: 0 }),
            pair("bools", abi::VALUE_BOOL_ARRAY, elements(&[1_u8, 0])),
            pair("ints", abi::VALUE_I64_ARRAY, elements(&[1_i64, -2])),
            pair("floats", abi::VALUE_F64_ARRAY, elements(&[0.5_f64])),
            pair("texts", abi::VALUE_STR_ARRAY, elements(TEXTS)),
            pair("none", abi::VALUE_I64_ARRAY, elements::<i64>(&[])),
        ];
        let parent = abi::SpanContext {
            trace_id: [0xab; 16],
            span_id: [0xcd; 8],
            trace_flags: 3,
            trace_state: abi::Str::new("a=it's, b=\\"),
            ..abi::SpanContext::INVALID
        };
        let event = abi::Event {
            size: size_of::<abi::Event>(),
            name: abi::Str::new("moment"),
            time_unix_nano: 1_795_203_275_500_000_999,
            attributes: &attributes[0],
            attribute_count: 1,
        };
        let link =
            abi::Link { size: size_of::<abi::Link>(), context: parent, attributes: &attributes[1], attribute_count: 1 };
        // SAFETY: the table is live, the handles are valid, and what is passed outlives the calls.
        unsafe {
            let (span, said) = start_span(
                table,
                &abi::SpanStart {
                    kind: abi::SPAN_KIND_CONSUMER,
                    start_time_unix_nano: 1_795_203_275_000_000_000,
                    parent: &raw const parent,
                    attributes: attributes.as_ptr(),
                    attribute_count: attributes.len(),
                    links: [&raw const link].as_ptr(),
                    link_count: 1,
                    events: [&raw const event].as_ptr(),
                    event_count: 1,
                    ..start(abi::Str::new("before"))
                },
            );
            assert_eq!((said.trace_id, said.trace_flags, said.is_recording), (parent.trace_id, 3, 1));
            table.span_update_name.unwrap()(span, abi::Str { ptr: b"bad \xff\xc3 name".as_ptr(), len: 11 });
            table.span_set_attributes.unwrap()(span, &pair("int", abi::VALUE_I64, abi::ValueUnion { i64_: 7 }), 1);
            table.span_add_event.unwrap()(span, &raw const event);
            table.span_set_status.unwrap()(span, 99, abi::Str::EMPTY);
            table.span_set_status.unwrap()(span, abi::SPAN_STATUS_ERROR, abi::Str::new("it \"broke\""));
            table.span_end.unwrap()(span, 1_795_203_276_000_000_000);
            table.span_end.unwrap()(span, 0);
            table.span_update_name.unwrap()(span, abi::Str::new("too late"));
            table.span_release.unwrap()(span);

            let (root, said) = start_span(table, &start(abi::Str::new("root")));
            assert!(said.trace_id != [0; 16] && said.span_id != [0; 8]);
            assert_eq!(said.trace_flags, 3);
            table.span_release.unwrap()(root);

            let unsampled = abi::SpanContext { trace_flags: 2, ..parent };
            let (none, said) =
                start_span(table, &abi::SpanStart { parent: &raw const unsampled, ..start(abi::Str::new("none")) });
            assert!(none.is_null() && said.span_id != [0; 8] && said.span_id != parent.span_id);
            assert_eq!((said.trace_id, said.trace_flags, said.is_recording), (parent.trace_id, 2, 0));
            table.span_set_attributes.unwrap()(none, attributes.as_ptr(), attributes.len());
            table.span_end.unwrap()(none, 0);
            table.span_release.unwrap()(none);

            assert_eq!(with_text(|error| table.commit.unwrap()(table.data, error)), (abi::STATUS_OK, String::new()));
            assert_eq!(table.shutdown.unwrap()(table.data, 1_000, ptr::null_mut()), abi::STATUS_OK);
            assert_eq!(table.shutdown.unwrap()(table.data, 1_000, ptr::null_mut()), abi::STATUS_ALREADY);
            let (late, _) = start_span(table, &start(abi::Str::new("late")));
            table.span_release.unwrap()(late);
        }
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let spans = temp.path().join("spans");
    run_inside("spans_of_the_hook_in_c_are_whole", temp.path(), &spans);
    let mut lines = lines(&spans);
    assert_eq!(lines.len(), 2);
    let root = lines.pop().unwrap();
    assert_eq!((&root["name"], &root["parent_id"]), (&Json::from("root"), &Json::Null));
    assert_eq!(root["status"], serde_json::json!({"status_code": "UNSET"}));

    let line = lines.pop().unwrap();
    let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
    let expected_keys = [
        "name",
        "context",
        "kind",
        "parent_id",
        "start_time",
        "end_time",
        "status",
        "attributes",
        "events",
        "links",
        "resource",
    ];
    assert_eq!(keys, expected_keys);
    assert_eq!(line["name"], "bad \u{fffd}\u{fffd} name");
    assert_eq!(line["context"]["trace_id"], "0xabababababababababababababababab");
    assert_eq!(line["context"]["trace_state"], r#"["{key=a, value=it's}", '{key=b, value=\\}']"#);
    assert_eq!(line["kind"], "SpanKind.CONSUMER");
    assert_eq!(line["parent_id"], "0xcdcdcdcdcdcdcdcd");
    assert_eq!(line["start_time"], "2026-11-20T19:34:35.000000Z");
    assert_eq!(line["end_time"], "2026-11-20T19:34:36.000000Z");
    assert_eq!(line["status"], serde_json::json!({"status_code": "ERROR", "description": "it \"broke\""}));
    let attributes = serde_json::json!({
        "bool": true, "int": 7, "float": 2.0, "nan": "NaN", "text": "é\n", "bools": [true, false], "ints": [1, -2],
        "floats": [0.5], "texts": ["x", "y\""], "none": [],
    });
    assert_eq!(line["attributes"], attributes);
    assert_eq!(line["attributes"].to_string(), attributes.to_string(), "in the order in which they were set");
    let event = serde_json::json!(
        {"name": "moment", "timestamp": "2026-11-20T19:34:35.500000Z", "attributes": {"bool": true}}
    );
    assert_eq!(line["events"], Json::from(vec![event.clone(), event]));
    assert_eq!(line["links"][0]["context"]["span_id"], "0xcdcdcdcdcdcdcdcd");
    assert_eq!(line["links"][0]["attributes"]["int"], i64::MIN);
    let resource = &line["resource"];
    assert_eq!(resource["schema_url"], "");
    assert_eq!(resource["attributes"]["service.name"], "tracer");
    assert_eq!(resource["attributes"]["service.instance.id"].as_str().map(str::len), Some(36));
}

#[test]
fn threads_of_the_hook_in_c_lose_nothing() {
    if let Some(dir) = std::env::var_os(INSIDE) {
        let table = set_up(Path::new(&dir)).unwrap();
        std::thread::scope(|threads| {
            for thread in 0..8 {
                threads.spawn(move || {
                    for number in 0..100 {
                        let name = format!("{thread}/{number}");
                        let name = abi::Str { ptr: name.as_ptr(), len: name.len() };
                        let (span, _) = start_span(table, &start(name));
                        // SAFETY: the table is live and the handle is given back once.
                        unsafe { table.span_release.unwrap()(span) };
                    }
                });
            }
        });
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let spans = temp.path().join("spans");
    run_inside("threads_of_the_hook_in_c_lose_nothing", temp.path(), &spans);
    let mut names: Vec<String> = lines(&spans).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 800);
}

#[test]
fn the_hook_in_c_says_why_it_fails() {
    if let Some(dir) = std::env::var_os(INSIDE) {
        let dir = Path::new(&dir);
        let error = set_up(dir).unwrap_err();
        assert_eq!(error, format!("span folder `{}` is a symbolic link", dir.join("spans").display()));
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let spans = temp.path().join("spans");
    std::os::unix::fs::symlink(temp.path(), &spans).unwrap();
    run_inside("the_hook_in_c_says_why_it_fails", temp.path(), &spans);
}
