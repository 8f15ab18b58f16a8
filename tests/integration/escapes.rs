//! Names and messages that would steer a terminal: every command shows them escaped.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, Run, in_a_terminal, run_in_a_terminal, wait_until};

/// Sets a terminal's title, clears its screen, turns the direction of writing, and goes back to the beginning of a line; the last is a C1 control.
const HOSTILE: &str = "evil\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}txet\r\n\u{9b}2Jend";

/// Returns true if a terminal would act on it. A line feed is between lines.
fn is_steering(c: char) -> bool {
    c != '\n'
        && (c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

#[track_caller]
fn assert_escaped(what: &str, text: &str) {
    assert!(!text.chars().any(is_steering), "{what} steers a terminal: {text:?}");
}

#[track_caller]
fn assert_all_escaped(run: &Run) {
    let what = run.describe();
    assert_escaped(what.lines().next().unwrap_or_default(), &run.stdout_text());
    assert_escaped(what.lines().next().unwrap_or_default(), &run.stderr_text());
}

/// Runs the command as text and as JSON. Each says the name or the message, if it is one that has it.
#[track_caller]
fn check(cluster: &Cluster, arguments: &[&str], has_it: bool) {
    let text = cluster.tracer(arguments);
    assert_all_escaped(&text);
    let all = text.stdout_text() + &text.stderr_text();
    assert_eq!(all.contains(r"evil\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}txet"), has_it, "{text:?}");
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--format", "json"]).collect();
    let json = cluster.tracer(&arguments);
    assert_all_escaped(&json);
    let value: Value = json.json();
    let has = |value: &Value| value.as_str().is_some_and(|text| text.contains(HOSTILE));
    assert_eq!(any(&value, &has), has_it, "{json:?}");
}

fn any(value: &Value, test: &impl Fn(&Value) -> bool) -> bool {
    test(value)
        || match value {
            Value::Array(items) => items.iter().any(|item| any(item, test)),
            Value::Object(fields) => fields.values().any(|field| any(field, test)),
            _ => false,
        }
}

#[test]
fn what_a_task_is_named_and_says_steers_no_terminal() {
    let cluster = Cluster::builder().hook(HOOK).start();
    let message = json!(HOSTILE).to_string();
    let failed = cluster.tracer(&["submit", "task", "misbehaving_tasks:returns_error", &message, "--name", HOSTILE]);
    assert_all_escaped(&failed.status(1));
    cluster.tracer(&["submit", "actor", "actor_tasks:Traced", "--name", HOSTILE]).success();
    for (arguments, has_it) in [
        (&["get", "1"] as &[&str], true),
        (&["explain", "1"], true),
        (&["list", "tasks"], true),
        (&["list", "actors"], true),
        (&["list", "workers"], false),
        (&["list", "hooks"], false),
        (&["list", "modules"], false),
        (&["status"], false),
        (&["trace", "list"], false),
        (&["trace", "open"], false),
        (&["trace", "stats"], false),
        (&["submit", "task", "misbehaving_tasks:returns_error", &message, "--name", HOSTILE], true),
        (&["submit", "task", "traced_tasks:no_such_task", "--name", HOSTILE], false),
    ] {
        check(&cluster, arguments, has_it);
    }
    let failed = cluster.tracer(&["get", "1", "--format", "json"]).success().json()["trace_id"].clone();
    check(&cluster, &["trace", "show", failed.as_str().expect("it was traced")], true);
    // What the command line itself says, wrong as it is.
    for arguments in [
        &["get", HOSTILE] as &[&str],
        &["cancel", HOSTILE],
        &["submit", "task", HOSTILE],
        &["submit", "task", "demo:my_function", HOSTILE],
        &["submit", "call", HOSTILE, HOSTILE],
        &["trace", "show", HOSTILE],
        &["modules", "show", HOSTILE],
        &["hooks", "check", HOSTILE],
        &["start", "--head", "--num-workers", HOSTILE],
        &[HOSTILE],
    ] {
        assert_all_escaped(&cluster.tracer(arguments));
    }
    let mut inherited = cluster.command(&["submit", "task"]);
    inherited.env("TRACEPARENT", HOSTILE).env("BAGGAGE", HOSTILE);
    assert_all_escaped(&cluster.run(inherited).success());
    let export = cluster.tracer(&["trace", "export", "--all", "--format", "otlp"]).success();
    assert_all_escaped(&export);
}

#[test]
fn lines_of_a_task_stay_behind_their_prefix_on_a_terminal_and_whole_elsewhere() {
    let cluster = Cluster::builder().start();
    let bytes = json!("a\u{1b}[2J\u{1b}[31mb\u{1b}]0;x\u{7}\u{202e}c\n".as_bytes()).to_string();
    let arguments = ["submit", "task", "misbehaving_tasks:prints_bytes", &bytes];
    let (mut running, screen) = in_a_terminal(&cluster, &arguments);
    let status = wait_until("the submission ends", || running.try_wait().expect("it can be waited for"));
    assert!(status.success());
    let expected = "a\\u{1b}[2J\u{1b}[31mb\\u{1b}]0;x\\u{7}\\u{202e}c\u{1b}[0m";
    wait_until("the line is on the terminal", || {
        screen.lock().expect("no reader panics").contains(expected).then_some(())
    });
    let piped: Command = cluster.command(&arguments);
    cluster.run(piped).success().stderr_contains("a\u{1b}[2J\u{1b}[31mb\u{1b}]0;x\u{7}\u{202e}c\n");
}

#[test]
fn a_terminal_without_colours_and_cursor_gets_plain_text_and_no_pager() {
    let cluster = Cluster::builder().hook(HOOK).start();
    cluster.submit("traced_tasks:many", &["60"]).success();
    for term in ["xterm", "dumb"] {
        let mut show = cluster.command(&["trace", "show", "last", "--no-fold"]);
        let paged = cluster.file(term);
        // Longer than the terminal's 24 rows: a pager is asked for, which notes that it was.
        show.env_remove("NO_COLOR").env("TERM", term).env("TRACER_PAGER", format!("cat > '{}'", paged.display()));
        let (mut running, screen) = run_in_a_terminal(show);
        let status = wait_until("the trace is shown", || running.try_wait().expect("it can be waited for"));
        assert!(status.success());
        let is_dumb = term == "dumb";
        assert_eq!(paged.exists(), !is_dumb, "{term}");
        if is_dumb {
            wait_until("the trace is on the terminal", || {
                screen.lock().expect("no reader panics").contains("critical path").then_some(())
            });
            let screen = screen.lock().expect("no reader panics");
            assert!(!screen.contains('\u{1b}'), "{screen}");
        }
    }
    let (mut running, screen) = in_a_terminal(&cluster, &["list", "tasks"]);
    wait_until("the list ends", || running.try_wait().expect("it can be waited for"));
    wait_until("the list is on the terminal", || {
        screen.lock().expect("no reader panics").contains("traced_tasks.many").then_some(())
    });
    let screen = screen.lock().expect("no reader panics");
    assert!(screen.lines().all(|line| line.chars().count() <= 100), "{screen}");
}
