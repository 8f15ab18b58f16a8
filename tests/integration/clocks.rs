//! Nodes whose clocks are wrong, by Debian's `faketime`: what their spans say, and who takes tasks over when.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer_core::clock::parse_rfc3339;

use crate::engine::{agent_pid, origin, submit_blocked};
use crate::support::{Broker, Cluster, HOOK, kill_if_there, skip, wait_until, wait_until_within};

const SECOND_NS: i64 = 1_000_000_000;
/// The most by which offsets may be wrong before a task is submitted, in nanoseconds, and the most by which what follows from two of them may be.
const ERROR_NS: i64 = 40_000_000;
const TOLERANCE_NS: i64 = 2 * ERROR_NS;
const ATTEMPT: &str = "misbehaving_tasks.waits tracer.remote_worker";

/// A time that processes see in place of the machine's. They share some memory, which goes with the `faketime` that has made it, whatever they die of.
struct FakeTime {
    faketime: Child,
    environment: Vec<(String, String)>,
}

impl FakeTime {
    /// Makes a time this far from the machine's, or skips the test.
    fn start(time: &str) -> Option<FakeTime> {
        let script = "env | grep -E '^(LD_PRELOAD|FAKETIME)'; echo; read line";
        let mut command = Command::new("faketime");
        command.args(["-f", time, "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut faketime) = command.spawn() else {
            skip("faketime", "it is not installed");
            return None;
        };
        let lines = BufReader::new(faketime.stdout.take().expect("it is piped")).lines();
        let lines = lines.map(|line| line.expect("it is text")).take_while(|line| !line.is_empty());
        let variable = |line: String| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut environment: Vec<_> = lines.filter_map(variable).collect();
        assert!(environment.iter().any(|(name, _)| name == "LD_PRELOAD"), "{environment:?}");
        // The time between two events is right on a machine whose clock is wrong.
        environment.push(("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into()));
        Some(FakeTime { faketime, environment })
    }

    /// Starts a node with one slot for tasks of the queue `default` at this time.
    fn holder(&self, broker: &Broker) -> Cluster {
        self.node(broker, 1, &["--queue=default=1"])
    }

    /// Starts a node at this time.
    fn node(&self, broker: &Broker, workers: usize, flags: &[&str]) -> Cluster {
        let builder = Cluster::builder().workers(workers).hook(HOOK).arg("--address").arg(broker.address());
        let builder = flags.iter().fold(builder, |builder, flag| builder.arg(flag));
        self.environment.iter().fold(builder, |builder, (name, value)| builder.env(name, value)).start()
    }
}

impl Drop for FakeTime {
    fn drop(&mut self) {
        drop(self.faketime.stdin.take());
        let _ = self.faketime.wait();
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    since.as_nanos().try_into().expect("it is before 2262")
}

fn time_of(span: &Value, key: &str) -> i64 {
    let time = span[key].as_str().and_then(parse_rfc3339).expect("it has a time");
    time.try_into().expect("it is before 2262")
}

fn is_near(found: i64, expected: i64) -> bool {
    (found - expected).abs() <= TOLERANCE_NS
}

/// Returns the contents of the span files of a node.
fn files(node: &Cluster) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(node.spans_dir()).expect("there are spans").map(|file| file.expect("it is there").path());
    files.map(|path| (path.clone(), fs::read(path).expect("it can be read"))).collect()
}

/// Waits until a node has said its offset well enough, and returns that.
fn offset_of(asked: &Cluster, node: &Cluster) -> i64 {
    let node_id = node.status()["node_id"].clone();
    wait_until(&format!("{node_id} has measured its clock"), || {
        let listed = asked.tracer(&["list", "nodes", "--format", "json"]).success().json();
        let node = listed["nodes"].as_array()?.iter().find(|node| node["node_id"] == node_id)?.clone();
        let error_ns = node["clock_error_ns"].as_i64().filter(|error| *error < ERROR_NS)?;
        let offset_ns = node["clock_offset_ns"].as_i64()?;
        // A microsecond is for what is rounded.
        let [apart, allowed] = [(offset_ns.rem_euclid(SECOND_NS)), error_ns + 1000];
        assert!(apart <= allowed || SECOND_NS - apart <= allowed, "{node}: whole seconds were set");
        Some(offset_ns)
    })
}

fn a_node_at(time: &str, seconds: i64) {
    let Some(broker) = Broker::start() else { return };
    let Some(wrong) = FakeTime::start(time) else { return };
    let (b, a) = (wrong.holder(&broker), origin(&broker));
    for node in [&b, &a] {
        agent_pid(node);
    }
    assert!(is_near(offset_of(&a, &b), seconds * SECOND_NS));
    assert!(is_near(offset_of(&a, &a), 0));
    a.tracer(&["list", "nodes"]).success().stdout_contains(&format!("{seconds:+} s ± "));
    let findings = a.tracer(&["doctor", "--format", "json"]).status(6).json()["findings"].clone();
    let of_clocks = findings.as_array().expect("a list").iter().filter(|finding| finding["code"] == "clock");
    let texts: Vec<_> = of_clocks.map(|finding| finding["text"].as_str().expect("a text")).collect();
    let [text] = texts[..] else { panic!("{findings}") };
    assert!(text.contains(b.status()["node_id"].as_str().expect("a name")) && text.contains(" 5 s "), "{text}");

    // The second task waits for the first one's slot.
    let (_, [started, go]) = submit_blocked(&a, &[], "one");
    a.wait_for_file(started.as_ref());
    fs::write(a.file("two-go"), "").expect("the folder is ours");
    let before = now_ns();
    let (second, _) = submit_blocked(&a, &[], "two");
    let accepted = now_ns();
    wait_until("it has waited for longer than what is measured may be wrong", || {
        (now_ns() - accepted > 3 * TOLERANCE_NS).then_some(())
    });
    let let_go = now_ns();
    fs::write(go, "").expect("the folder is ours");
    assert_eq!(a.wait_for_task(second)["state"], "succeeded");
    let ended = now_ns();

    let (of_a, of_b) = (a.spans(), b.spans());
    let attempt = of_b.only("attempt at the second task", |span| {
        span.name() == ATTEMPT && span.attribute("tracer.cluster_task_id").as_str().is_some_and(|id| id.ends_with("-2"))
    });
    let number = |key: &str| attempt.attribute(key).as_i64().expect("it is a number");
    let queued = number("tracer.queued_ns");
    assert!(queued >= let_go - accepted - TOLERANCE_NS && queued <= ended - before + TOLERANCE_NS, "{}", attempt.value);
    assert!(is_near(number("tracer.clock_offset_ns"), seconds * SECOND_NS), "{}", attempt.value);
    assert!(is_near(number("tracer.origin_clock_offset_ns"), 0), "{}", attempt.value);
    // The times are those of its clock.
    let by_right_clock = time_of(&attempt.value, "start_time") - seconds * SECOND_NS;
    assert!((let_go..=ended).contains(&by_right_clock), "{by_right_clock} in {let_go}..={ended}");
    let submission = of_a.iter().find(|span| Some(span.span_id()) == attempt.parent_id()).expect("it is there");

    let files_before = [files(&a), files(&b)];
    let folders = [&a, &b].map(|node| node.spans_dir().to_string_lossy().into_owned());
    let show = |format: &str| {
        let folders = folders.iter().flat_map(|folder| ["--spans-dir", folder]);
        let command = ["trace", "show", attempt.trace_id(), "--format", format].into_iter().chain(folders);
        a.tracer(&command.collect::<Vec<_>>()).success()
    };
    let shown = show("json").json();
    let shifts = shown["clock_shifts"].as_array().expect("it is a list");
    let [shift] = &shifts[..] else { panic!("{shown}") };
    assert_eq!((&shift["node_id"], &shift["spans"]), (&b.status()["node_id"], &json!(1)));
    let shift_ns = shift["shift_ns"].as_i64().expect("it is a number");
    assert!(is_near(shift_ns, -seconds * SECOND_NS), "{shift}");
    assert!(time_of(&attempt.value, "start_time") + shift_ns >= time_of(&submission.value, "start_time"), "{shown}");
    assert!(shown["duration_ns"].as_i64().is_some_and(|ns| ns <= ended - before + TOLERANCE_NS), "{shown}");
    let is_stored = |span: &Value| time_of(span, "start_time") == time_of(&attempt.value, "start_time");
    assert!(shown["spans"].as_array().is_some_and(|spans| spans.iter().any(is_stored)), "{shown}");
    let (moved, clock) = if seconds < 0 { ("later", "behind") } else { ("earlier", "ahead") };
    let text = show("text").stdout_text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("Shown 5 s {moved} than stored: 1 span of node ")), "{text}");
    assert!(text.contains(&format!("whose clock was {clock}.")), "{text}");
    assert!([files(&a), files(&b)] == files_before, "what is stored is as it was");
}

#[test]
fn the_spans_of_a_node_whose_clock_is_five_seconds_ahead_are_right_and_are_shown_on_one_clock() {
    a_node_at("+5s", 5);
}

#[test]
fn the_spans_of_a_node_whose_clock_is_five_seconds_behind_are_right_and_are_shown_on_one_clock() {
    a_node_at("-5s", -5);
}

#[test]
fn a_task_that_another_node_refuses_ends_by_the_clock_of_the_one_that_submitted_it() {
    let Some(broker) = Broker::start() else { return };
    let Some(ahead) = FakeTime::start("+5s") else { return };
    let key = format!("--trusted-key={}", nkeys::KeyPair::new_user().public_key());
    let b = Cluster::builder().arg("--address").arg(broker.address()).arg("--queue=default").arg(&key).start();
    let a = ahead.node(&broker, 0, &[]);
    for node in [&b, &a] {
        agent_pid(node);
    }
    offset_of(&b, &a);
    a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).status(1);
    let task = a.wait_for_task(1);
    let [submitted, ended] = ["submitted_time", "ended_time"].map(|key| time_of(&task, key));
    assert!((0..SECOND_NS * 60).contains(&(ended - submitted)), "{task}");
}

/// A node at one time dies, and one at another time takes its task over.
fn a_take_over(lost: &str, taker: (&str, i64)) {
    let Some(broker) = Broker::start() else { return };
    let (Some(time_of_lost), Some(time_of_taker)) = (FakeTime::start(lost), FakeTime::start(taker.0)) else { return };
    let (b, a) = (time_of_lost.holder(&broker), origin(&broker));
    for node in [&b, &a] {
        agent_pid(node);
    }
    offset_of(&a, &b);
    let submitted = now_ns();
    let (id, [started, go]) = submit_blocked(&a, &[], "one");
    a.wait_for_file(started.as_ref());
    let begun = now_ns();
    let c = time_of_taker.holder(&broker);
    agent_pid(&c);
    offset_of(&a, &c);
    fs::remove_file(&started).expect("it was there");
    let died = Instant::now();
    for process in b.processes() {
        kill_if_there(process.pid, Signal::KILL);
    }
    let death = now_ns();
    wait_until_within(Duration::from_secs(60), "another node has begun it", || fs::metadata(&started).ok());
    let (silent, taken_over) = (died.elapsed(), now_ns());
    // A message comes again ten seconds after it was held last, which was three before the death at the earliest; then its holder has to be silent for ten more.
    assert!((17..50).contains(&silent.as_secs()), "{silent:?}");
    fs::write(go, "").expect("the folder is ours");
    let task = a.wait_for_task(id);
    assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(2)), "{task}");

    // What stands in for the attempt of the lost node has the clock of its writer, and is moved with that.
    let of_c = c.spans();
    let stand_in = of_c.only("span that stands in", |span| *span.attribute("tracer.stand_in") == json!(true));
    let by_right_clock = |key: &str| time_of(&stand_in.value, key) - taker.1 * SECOND_NS;
    let about = |from: i64, to: i64| from - TOLERANCE_NS..=to + TOLERANCE_NS;
    assert!(about(submitted, begun).contains(&by_right_clock("start_time")), "{}", stand_in.value);
    assert!(about(death, taken_over).contains(&by_right_clock("end_time")), "{}", stand_in.value);
    let offset = stand_in.attribute("tracer.clock_offset_ns").as_i64().expect("it says its clock");
    assert!(is_near(offset, taker.1 * SECOND_NS), "{}", stand_in.value);
    let folders = [&a, &c].map(|node| node.spans_dir().to_string_lossy().into_owned());
    let shown = ["trace", "show", stand_in.trace_id(), "--format", "json"].into_iter();
    let shown = shown.chain(folders.iter().flat_map(|folder| ["--spans-dir", folder])).collect::<Vec<_>>();
    let shown = a.tracer(&shown).success().json();
    let shifts = shown["clock_shifts"].as_array().expect("it is a list");
    let of_stand_in = shifts.iter().find(|shift| shift["span_id"] == stand_in.value["context"]["span_id"]);
    let shift = of_stand_in.unwrap_or_else(|| panic!("it is not shifted: {shown}"));
    assert_eq!(shift["node_id"], Value::Null, "it names the lost node, whose clock was another one");
    assert!(is_near(shift["shift_ns"].as_i64().expect("a number"), -taker.1 * SECOND_NS), "{shift}");
}

#[test]
fn wrong_clocks_make_no_take_over_come_early_or_late() {
    a_take_over("-5s", ("+5s", 5));
}

#[test]
fn the_span_of_an_attempt_that_was_lost_with_a_clock_ahead_of_its_writers_has_one_clock() {
    a_take_over("+5s", ("-5s", -5));
}
