//! Tasks as the host sees them: what the record says, how arguments go in, and how results, errors and panics come out.

// The calls of the contract are the test's own host's.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use support::{Call, Failed, TRACED, load, module, text};
use tracer_abi::*;
use tracer_sdk::task;

/// Counts words.
///
/// A word stands between white space.
#[task]
fn count(text: String) -> u64 {
    text.split_whitespace().count() as u64
}

#[task]
fn first(text: &str, limit: Option<u32>) -> String {
    text.chars().take(limit.map_or(usize::MAX, |limit| limit as usize)).collect()
}

#[task]
fn repeat(text: String, limit: u32) -> String {
    text.repeat(limit as usize)
}

#[derive(Deserialize, Serialize)]
struct Limits {
    max: u32,
    names: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct Config {
    limits: Limits,
    ratio: f64,
}

#[task]
fn configure(config: Config) -> Config {
    config
}

#[task]
fn nothing() {}

#[task]
fn sizes(path: &Path, bytes: &[u8], wide: u128, pair: (char, Option<i8>), table: BTreeMap<u16, f32>) -> Vec<String> {
    vec![format!("{path:?}"), format!("{bytes:?}"), wide.to_string(), format!("{pair:?}"), format!("{table:?}")]
}

#[derive(Debug)]
struct Refused {
    cause: std::num::ParseIntError,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

fn parse(text: &str) -> Result<i32, Refused> {
    text.parse().map_err(|cause| Refused { cause })
}

#[task]
fn fails_with_error(text: String) -> Result<i32, Refused> {
    parse(&text)
}

#[task]
fn fails_with_box(text: String) -> Result<i32, Box<dyn Error>> {
    Ok(parse(&text)?)
}

#[task]
fn fails_with_send_box(text: String) -> Result<i32, Box<dyn Error + Send + Sync>> {
    Ok(parse(&text)?)
}

#[task]
fn fails_with_text(text: String) -> Result<i32, &'static str> {
    parse(&text).map_err(|_| "not a number")
}

/// Displayable and no error, with its causes in the alternate form, as `anyhow` has it.
struct Alternate;

impl fmt::Display for Alternate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if f.alternate() { "outer: inner" } else { "outer" })
    }
}

type Outcome<T> = Result<T, Alternate>;

#[task]
fn fails_under_another_name(fail: bool) -> Outcome<u8> {
    if fail { Err(Alternate) } else { Ok(1) }
}

#[task]
fn panics(text: String) -> u8 {
    panic!("cannot {text}")
}

#[task]
fn survives_a_panic() -> bool {
    std::panic::catch_unwind(|| panic!("inside")).is_err()
}

/// Cannot be encoded: it says so itself.
struct Stubborn;

impl Serialize for Stubborn {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

#[task]
fn stubborn() -> Stubborn {
    Stubborn
}

#[task]
fn who_am_i() -> [u64; 4] {
    let context = tracer_sdk::current().expect("this is a task");
    [context.task_id, context.job_id, context.attempt.into(), context.worker_id]
}

#[task]
fn address() -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::LOCALHOST
}

#[task]
fn r#match(r#type: u8) -> u8 {
    r#type
}

fn call(name: &str, arguments: Value) -> support::Called {
    Call::new(arguments).run(name)
}

#[test]
fn record_says_what_the_source_says() {
    let module = module(&TRACED);
    assert_eq!((module.magic, module.abi_major), (MODULE_MAGIC, ABI_MAJOR));
    let producer = unsafe { text(module.producer) };
    assert!(producer.starts_with(concat!("tracer-sdk ", env!("CARGO_PKG_VERSION"))), "{producer}");
    assert!(producer.contains(", rustc 1."), "{producer}");
    assert_eq!(unsafe { text(module.version) }, env!("CARGO_PKG_VERSION"));

    let count = support::task(module, "count");
    assert_eq!(unsafe { text(count.doc) }, "Counts words.\n\nA word stands between white space.");
    assert_eq!(unsafe { text(count.code_function_name) }, "tasks::count");
    assert_eq!(unsafe { text(count.code_file_path) }, "hooks/sdk/tests/tasks.rs");
    let source = include_str!("tasks.rs").lines().nth(count.code_line_number as usize - 1);
    assert_eq!(source, Some("fn count(text: String) -> u64 {"));
    assert_eq!(unsafe { text(count.result_type) }, "u64");
    assert_eq!(count.is_async, 0);

    let parameters = |name| {
        let task = support::task(module, name);
        let parameters: Vec<_> = (0..task.parameter_count)
            .map(|index| unsafe {
                let parameter = &**task.parameters.add(index);
                (text(parameter.name), text(parameter.type_name), parameter.is_optional)
            })
            .collect();
        parameters
    };
    assert_eq!(
        parameters("first"),
        [("text".to_owned(), "&str".to_owned(), 0), ("limit".to_owned(), "Option<u32>".to_owned(), 1)]
    );
    assert_eq!(parameters("sizes")[4].1, "BTreeMap<u16, f32>");
    assert_eq!(parameters("match"), [("type".to_owned(), "u8".to_owned(), 0)]);
}

#[test]
fn arguments_that_fit_are_passed() {
    for (name, arguments, expected) in [
        ("count", json!(["one two"]), json!(2)),
        ("first", json!(["abc", 2]), json!("ab")),
        ("first", json!(["abc", null]), json!("abc")),
        ("first", json!(["abc"]), json!("abc")),
        ("nothing", json!([]), json!(null)),
        ("match", json!([3]), json!(3)),
        (
            "configure",
            json!([{"ratio": 1, "limits": {"names": ["a"], "max": 3}}]),
            json!({"limits": {"max": 3, "names": ["a"]}, "ratio": 1.0}),
        ),
        (
            "sizes",
            json!(["a/b", [1, 2], 5, ["x", null], {"80": 1}]),
            json!(["\"a/b\"", "[1, 2]", "5", "('x', None)", "{80: 1.0}"]),
        ),
        ("address", json!([]), json!("127.0.0.1")),
    ] {
        assert_eq!(call(name, arguments.clone()).result, Ok(expected), "{name} {arguments}");
    }
    let no_bytes = Call { arguments: Vec::new(), ..Call::new(json!([])) };
    assert_eq!(no_bytes.run("nothing").result, Ok(json!(null)));
}

#[test]
fn arguments_that_do_not_fit_are_named_with_both_types() {
    for (name, arguments, expected) in [
        ("count", json!([7]), "argument 1 (`text`) of `count` takes String, but got an integer"),
        ("count", json!([null]), "argument 1 (`text`) of `count` takes String, but got `null`"),
        ("count", json!([["a"]]), "argument 1 (`text`) of `count` takes String, but got an array of 1 element"),
        ("count", json!([{}]), "argument 1 (`text`) of `count` takes String, but got an object with 0 fields"),
        ("count", json!([true]), "argument 1 (`text`) of `count` takes String, but got a boolean"),
        ("count", json!([1.5]), "argument 1 (`text`) of `count` takes String, but got a number"),
        ("count", json!(["a", "b", "c"]), "`count` takes 1 argument (text: String), but got 3"),
        ("count", json!([]), "argument 1 (`text`) of `count` is missing; it takes String"),
        ("nothing", json!([1]), "`nothing` takes no arguments, but got 1"),
        ("repeat", json!(["a"]), "argument 2 (`limit`) of `repeat` is missing; it takes u32"),
        (
            "repeat",
            json!(["a", -1]),
            "argument 2 (`limit`) of `repeat` takes u32, a whole number from 0 to 4294967295, but got a negative integer",
        ),
        (
            "repeat",
            json!(["a", 2.5]),
            "argument 2 (`limit`) of `repeat` takes u32, a whole number from 0 to 4294967295, but got a number with a decimal point",
        ),
        (
            "match",
            json!([300]),
            "argument 1 (`type`) of `match` takes u8, a whole number from 0 to 255, but got an integer outside of its range",
        ),
        (
            "first",
            json!(["a", "b"]),
            "argument 2 (`limit`) of `first` takes Option<u32>, a whole number from 0 to 4294967295, but got a string",
        ),
        ("first", json!(["a", 1, 2]), "`first` takes 1 to 2 arguments (text: &str, limit: Option<u32>), but got 3"),
        (
            "configure",
            json!([{"ratio": 1, "limits": {"names": ["a", 2], "max": 3}}]),
            "argument 1 (`config`) of `configure` does not fit Config: \
             `limits.names[1]`: expected a string, got an integer",
        ),
        (
            "configure",
            json!([{"ratio": 1, "limits": {"names": []}}]),
            "argument 1 (`config`) of `configure` does not fit Config: \
             `limits`: missing field `max`",
        ),
    ] {
        let called = call(name, arguments.clone());
        assert_eq!(called.error(), (TASK_ERROR_ARGUMENTS, expected.to_owned()), "{name} {arguments}");
    }
    let torn = Call { arguments: vec![0x91, 0xa5, b'a'], ..Call::new(json!([])) };
    let message = "the arguments of `count` cannot be read: not MessagePack: it ends in the middle";
    assert_eq!(torn.run("count").error(), (TASK_ERROR_ARGUMENTS, message.to_owned()));
}

#[test]
fn returned_errors_have_type_and_causes() {
    let failed = |type_name: &str, message: &str| {
        let (type_name, message) = (type_name.to_owned(), message.to_owned());
        Err(Failed { kind: TASK_ERROR_RETURNED, type_name, message, ..Failed::default() })
    };
    let chain = "refused: invalid digit found in string";
    let boxed = "alloc::boxed::Box<dyn core::error::Error>";
    let send_boxed = "alloc::boxed::Box<dyn core::error::Error + core::marker::Send + core::marker::Sync>";
    for (name, type_name, message) in [
        ("fails_with_error", "tasks::Refused", chain),
        ("fails_with_box", boxed, chain),
        ("fails_with_send_box", send_boxed, chain),
        ("fails_with_text", "&str", "not a number"),
    ] {
        assert_eq!(call(name, json!(["x"])).result, failed(type_name, message), "{name}");
        assert_eq!(call(name, json!(["8"])).result, Ok(json!(8)), "{name}");
    }
    let aliased = call("fails_under_another_name", json!([true]));
    assert_eq!(aliased.result, failed("tasks::Alternate", "outer: inner"));
    assert_eq!(call("fails_under_another_name", json!([false])).result, Ok(json!(1)));
}

#[test]
fn panic_is_an_error_with_its_place() {
    let failed = call("panics", json!(["go on"])).result.expect_err("it panics");
    assert_eq!((failed.kind, failed.type_name.as_str()), (TASK_ERROR_PANICKED, "panic"));
    assert_eq!(failed.message, "cannot go on");
    let line =
        include_str!("tasks.rs").lines().position(|line| line.contains("panic!(\"cannot")).expect("it is here") + 1;
    assert_eq!(failed.location, format!("hooks/sdk/tests/tasks.rs:{line}:5"));
    // With a stack exactly if one is asked for.
    let asked = std::env::var("RUST_LIB_BACKTRACE").or_else(|_| std::env::var("RUST_BACKTRACE"));
    assert_eq!(failed.stacktrace.contains("panics"), asked.is_ok_and(|asked| asked != "0"), "{}", failed.stacktrace);
    assert_eq!(call("survives_a_panic", json!([])).result, Ok(json!(true)));
    assert_eq!(call("count", json!(["still works"])).result, Ok(json!(2)));
}

#[test]
fn result_that_cannot_be_encoded_is_an_error_of_its_own() {
    let message = "the result, a tasks::Stubborn, cannot be encoded: not today".to_owned();
    assert_eq!(call("stubborn", json!([])).error(), (TASK_ERROR_RESULT, message));
}

#[test]
fn task_knows_its_numbers_and_nobody_else_does() {
    assert_eq!(call("who_am_i", json!([])).result, Ok(json!([11, 33, 2, 44])));
    assert_eq!(tracer_sdk::current(), None);
}

mod built_in {
    /// Returns 1.
    #[tracer_sdk::task]
    pub(crate) fn one() -> u8 {
        1
    }
}

mod refusing {
    pub(crate) fn refuse() -> Result<(), String> {
        Err("no table".to_owned())
    }

    pub(crate) fn give_up() -> Result<(), String> {
        panic!("gave up");
    }

    #[allow(non_upper_case_globals)]
    pub(crate) const __tracer_load_refuse: tracer_sdk::export::LoadItem = item("refuse", refuse);
    #[allow(non_upper_case_globals)]
    pub(crate) const __tracer_load_give_up: tracer_sdk::export::LoadItem = item("give_up", give_up);

    const fn item(function_name: &'static str, run: fn() -> Result<(), String>) -> tracer_sdk::export::LoadItem {
        tracer_sdk::export::LoadItem { function_name, crate_name: "", crate_version: "", file: "", line: 0, run }
    }
}

tracer_sdk::builtin_module!(fn demo, tasks = [built_in::one]);
tracer_sdk::builtin_module!(fn refusing_module, loads = [refusing::refuse]);
tracer_sdk::builtin_module!(fn panicking_module, loads = [refusing::give_up], tasks = []);

#[test]
fn built_in_module_has_what_is_listed_and_nothing_else() {
    let demo = unsafe { &*demo() };
    assert_eq!((demo.task_count, demo.hook_count), (1, 0));
    assert_eq!(load(demo, &TRACED), (STATUS_OK, String::new()));
    assert_eq!(Call::new(json!([])).run_in(demo, "one").result, Ok(json!(1)));
    // It is in this program's record too, because it is registered.
    assert_eq!(call("one", json!([])).result, Ok(json!(1)));
}

#[test]
fn module_that_cannot_be_made_ready_says_why() {
    let refusing = unsafe { &*refusing_module() };
    assert_eq!(load(refusing, &TRACED), (STATUS_FAILED, "`refuse`: no table".to_owned()));
    let panicking = unsafe { &*panicking_module() };
    let (status, text) = load(panicking, &TRACED);
    assert_eq!(status, STATUS_PANICKED);
    assert!(text.starts_with("gave up at hooks/sdk/tests/tasks.rs:"), "{text}");
}

#[task]
fn submits() -> Result<u64, tracer_sdk::RemoteError> {
    tracer_sdk::remote("wordcount:count").arg("a b").submit()?.get()
}

#[test]
fn on_a_host_that_is_too_old_a_submission_fails_and_names_both_versions() {
    let (kind, message) = call("submits", json!([])).error();
    assert_eq!(kind, TASK_ERROR_RETURNED);
    let expected = "the host speaks ABI 1.0, in which tasks cannot submit tasks; it takes 1.1\n(hint: ";
    assert!(message.starts_with(expected), "{message}");
}

#[task]
fn creates() -> Result<u64, tracer_sdk::RemoteError> {
    Ok(tracer_sdk::actor("counter:Counter").create()?.id())
}

#[test]
fn on_a_host_without_actors_a_creation_fails_and_names_both_versions() {
    let (_, message) = call("creates", json!([])).error();
    let expected = "the host speaks ABI 1.0, in which there are no actors; it takes 1.2\n(hint: ";
    assert!(message.starts_with(expected), "{message}");
}

#[cfg(feature = "async")]
mod asynchronous {
    use super::*;

    #[task]
    async fn add(a: i32, b: i32) -> i32 {
        let sum = tokio::spawn(async move {
            tokio::task::yield_now().await;
            a + b
        });
        sum.await.expect("it does not panic")
    }

    #[task]
    async fn fails_later(text: &str) -> Result<i32, Box<dyn Error>> {
        tokio::task::yield_now().await;
        Ok(parse(text)?)
    }

    #[task]
    async fn panics_later() {
        tokio::task::yield_now().await;
        panic!("later");
    }

    /// Waits for another task in a way that keeps the thread busy, as a host does that runs it meanwhile.
    #[task]
    async fn waits_for_another() -> Value {
        tokio::task::yield_now().await;
        let called = Call::new(json!([1, 2])).run("add");
        json!([called.result.expect("it adds"), tracer_sdk::current().map(|context| context.task_id)])
    }

    #[test]
    fn async_tasks_run_to_their_end() {
        assert_eq!(support::task(module(&TRACED), "add").is_async, 1);
        assert_eq!(call("add", json!([1, 2])).result, Ok(json!(3)));
        assert_eq!(call("fails_later", json!(["5"])).result, Ok(json!(5)));
        let message = "refused: invalid digit found in string".to_owned();
        assert_eq!(call("fails_later", json!(["x"])).error(), (TASK_ERROR_RETURNED, message));
    }

    #[test]
    fn runtime_outlives_a_panic_in_it() {
        for _ in 0..2 {
            let failed = call("panics_later", json!([])).result.expect_err("it panics");
            assert_eq!((failed.kind, failed.message.as_str()), (TASK_ERROR_PANICKED, "later"));
            assert!(failed.location.starts_with("hooks/sdk/tests/tasks.rs:"), "{}", failed.location);
        }
        assert_eq!(call("add", json!([2, 2])).result, Ok(json!(4)));
    }

    #[test]
    fn async_task_may_run_within_another() {
        assert_eq!(call("waits_for_another", json!([])).result, Ok(json!([3, 11])));
    }
}

#[test]
fn the_host_is_told_of_the_parts_of_a_call() {
    let whole = [TASK_PHASE_DECODE, TASK_PHASE_RUN, TASK_PHASE_ENCODE, TASK_PHASE_END];
    assert_eq!(Call::new(json!(["a b"])).run("count").phases, whole);
    // The function is not called.
    assert_eq!(Call::new(json!([1])).run("count").phases, [TASK_PHASE_DECODE, TASK_PHASE_END]);
    assert_eq!(Call::new(json!([])).run("count").phases, [TASK_PHASE_DECODE, TASK_PHASE_END]);
}
