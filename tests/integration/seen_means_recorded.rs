//! Seen means recorded: processes are killed at chosen points and at random, and the span files are read at the moment when the outcome
//! is seen. Ends that were seen are in them, and so are the spans of processes that died.

use std::collections::HashMap;
use std::fs;

use rustix::process::Signal;
use serde_json::Value;
use tracer::Driver;
use tracer::propagation::Carrier;
use tracer::protocol::{Query, Reply, WorkerState};
use tracer::task::{Failure, Outcome, TaskId};

use crate::support::{Background, Cluster, HOOK, Random, Receiver, Span, Spans, is_alive, kill, wait_until};

const TARGET: &str = "misbehaving_tasks:makes_spans";
const ATTEMPT: &str = "misbehaving_tasks.makes_spans tracer.remote_worker";
const INNER_ATTEMPT: &str = "misbehaving_tasks.makes_one_span tracer.remote_worker";

/// Starts a cluster in which one worker kills itself when it comes to `point` for the `time`th time.
fn with_a_kill_at(point: &str, time: u32) -> Cluster {
    let cluster = Cluster::builder().hook(HOOK).build();
    cluster.note(format!("a worker dies at {point}, the time {time}"));
    let mut start = cluster.start_command(&[]);
    start.env("TRACER_TEST_KILL_AT", format!("{point}:{time}"));
    start.env("TRACER_TEST_KILL_ONCE", cluster.file("killed"));
    cluster.run(start).success();
    cluster
}

/// The span has the status and attributes of one that the head has closed for a process that died of `error_type`.
#[track_caller]
fn assert_closed(span: &Span, error_type: &str, description: &str) {
    assert_eq!((span.status_code(), span.status_description()), ("ERROR", description), "{}", span.value);
    assert_eq!(*span.attribute("error.type"), error_type, "{}", span.value);
    assert_eq!(*span.attribute("tracer.completed_by"), "head", "{}", span.value);
}

/// The spans that the function of [`TARGET`] ended are below the attempt, once and as they were.
#[track_caller]
fn assert_ended_children(spans: &Spans, attempt: &Span) {
    for name in ["ended 1", "ended 2", "ended 3"] {
        let children: Vec<_> = spans.children_of(attempt).into_iter().filter(|span| span.name() == name).collect();
        assert_eq!(children.len(), 1, "`{name}` of one attempt, among {}", spans.describe());
        assert_eq!(children[0].value["status"], serde_json::json!({"status_code": "UNSET"}));
        assert_eq!(children[0].value["attributes"], serde_json::json!({}));
    }
}

const KILLED: &str = "the worker was killed by SIGKILL (signal 9)";

/// Progress of the attempt before its worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// The function was not called.
    Claimed,
    /// The function had returned and the attempt's span was open.
    Returned,
    /// The attempt's span had ended, and its result was not sent.
    SpanEnded,
}

/// Submits three tasks, of which the second is killed at `point`, and reads the files each time that the outcome is seen.
fn a_worker_dies_before_its_result(point: &str, got: Got) {
    let cluster = with_a_kill_at(point, 2);
    cluster.submit(TARGET, &["3"]).success().stdout("3\n");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let first = spans.attempt_of(1);
    assert_eq!(first.status_code(), "UNSET");
    assert_ended_children(&spans, first);
    let first_pid = first.attribute("tracer.pid").clone();

    let run = cluster.submit(TARGET, &["3", "--crash-limit=0"]).status(1).stdout("");
    let run = run.stderr_contains("task 2 (misbehaving_tasks.makes_spans) failed: its worker (pid <pid>) ");
    run.stderr_contains("was killed by SIGKILL (signal 9)");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempt = spans.attempt_of(2);
    assert_eq!((attempt.name(), attempt.kind()), (ATTEMPT, "SpanKind.CONSUMER"));
    assert_eq!(attempt.attribute("tracer.pid"), &first_pid);
    assert_eq!(spans.parent_of(attempt).name(), "misbehaving_tasks.makes_spans tracer.remote");
    let children = spans.children_of(attempt);
    let left_open: Vec<_> = children.iter().filter(|span| span.name() == "left open").collect();
    match got {
        Got::Claimed => assert_eq!(children.len(), 0, "{}", spans.describe()),
        Got::Returned | Got::SpanEnded => {
            assert_ended_children(&spans, attempt);
            assert_eq!((children.len(), left_open.len()), (4, 1), "{}", spans.describe());
            assert_closed(left_open[0], "signal:9", KILLED);
        }
    }
    if got == Got::SpanEnded {
        assert_eq!(attempt.value["status"], serde_json::json!({"status_code": "UNSET"}));
        assert!(attempt.attribute("tracer.completed_by").is_null());
    } else {
        assert_closed(attempt, "signal:9", KILLED);
        assert_eq!(attempt.events("exception").len(), 1);
    }
    // Whatever became of the attempt's span, the job knows that the task failed, and why.
    let job = spans.parent_of(spans.parent_of(attempt));
    assert_eq!((job.status_code(), job.attribute("error.type")), ("ERROR", &Value::from("signal:9")));
    // The span that the first task left open died with the same worker.
    let left_open = spans.children_of(spans.attempt_of(1)).into_iter().filter(|span| span.name() == "left open");
    left_open.for_each(|span| assert_closed(span, "signal:9", KILLED));

    cluster.submit(TARGET, &["3"]).success().stdout("3\n");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let third = spans.attempt_of(3);
    assert_eq!(third.status_code(), "UNSET");
    assert_ne!(third.attribute("tracer.pid"), &first_pid);
    assert_ended_children(&spans, third);
    cluster.stop().success();
    // Three attempts with their children, and for each submission a job and a PRODUCER span: nothing is missing, nothing more.
    let children = if got == Got::Claimed { 8 } else { 12 };
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 3 * 3 + children, "{}", spans.describe());
}

#[test]
fn a_worker_that_dies_before_the_function_is_called_leaves_the_attempt() {
    a_worker_dies_before_its_result("after_claim", Got::Claimed);
}

#[test]
fn a_worker_that_dies_when_the_function_has_returned_leaves_all_its_spans() {
    a_worker_dies_before_its_result("function_returned", Got::Returned);
}

#[test]
fn a_worker_that_dies_before_the_attempts_span_ends_leaves_all_its_spans() {
    a_worker_dies_before_its_result("before_span_end", Got::Returned);
}

#[test]
fn a_worker_that_dies_when_the_attempts_span_has_ended_leaves_it_as_it_was() {
    a_worker_dies_before_its_result("after_span_end", Got::SpanEnded);
}

#[test]
fn a_worker_that_dies_before_its_spans_are_written_leaves_them() {
    a_worker_dies_before_its_result("before_commit", Got::SpanEnded);
}

#[test]
fn a_worker_that_dies_before_it_notes_that_its_spans_are_written_leaves_none_twice() {
    a_worker_dies_before_its_result("after_write", Got::SpanEnded);
}

#[test]
fn a_worker_that_dies_when_its_spans_are_written_leaves_none_twice() {
    a_worker_dies_before_its_result("after_commit", Got::SpanEnded);
}

#[test]
fn a_worker_that_dies_when_its_result_is_sent_has_succeeded() {
    let cluster = with_a_kill_at("after_result", 2);
    for task in 1..=3 {
        cluster.submit(TARGET, &["3"]).success().stdout("3\n");
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let attempt = spans.attempt_of(task);
        assert_eq!(attempt.status_code(), "UNSET");
        assert_ended_children(&spans, attempt);
    }
    assert!(cluster.file("killed").exists());
    // Nobody waited for the spans that were left open; the head closes them when it learns of the death.
    let spans =
        cluster.wait_for_spans("two are left open by the dead worker", |spans| spans.all_named("left open").len() == 2);
    spans.all_named("left open").iter().for_each(|span| assert_closed(span, "signal:9", KILLED));
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
}

/// A driver in this process. Its tasks are children of a span that somebody else has made: this process has no tracing of its
/// own, which all tests in it would share.
pub(crate) struct Submitter {
    driver: Driver,
    pub(crate) outcomes: HashMap<TaskId, Outcome>,
}

const OUTSIDE: &str = "b7ad6b7169203331";

impl Submitter {
    #[track_caller]
    pub(crate) fn of(cluster: &Cluster) -> Submitter {
        let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
        let parent = format!("00-0af7651916cd43dd8448eb211c80319c-{OUTSIDE}-01");
        let (carrier, rejections) = Carrier::from_headers([parent.as_str()], [], []);
        assert!(rejections.is_empty());
        driver.set_parent(carrier, true);
        Submitter { driver, outcomes: HashMap::new() }
    }

    #[track_caller]
    pub(crate) fn submit(&mut self, target: &str, argument: u64) {
        let remote = self.driver.remote(target).arg(argument).expect("a number is an argument");
        // One attempt each: what becomes of one is what these tests are about.
        remote.crash_limit(0).submit().expect("the head takes it");
    }

    /// Waits until another task has ended, and returns its place among the submissions. The outcome of each is told once.
    #[track_caller]
    pub(crate) fn next_ended(&mut self) -> (u64, TaskId, Outcome) {
        let finished = self.driver.next_finished().expect("the head answers");
        let earlier = self.outcomes.insert(finished.task, finished.outcome.clone());
        assert_eq!(earlier, None, "task {} has ended twice", finished.task);
        (finished.tag, finished.task, finished.outcome)
    }

    /// Kills one of the workers that take tasks, and none that was killed before.
    #[track_caller]
    pub(crate) fn kill_a_worker(&mut self, random: &mut Random, killed: &mut Vec<u32>) {
        let ready = wait_until("a worker takes tasks", || {
            let mut ready = self.ready_workers();
            // The head may not have learnt of the last one's death.
            ready.retain(|pid| !killed.contains(pid));
            (!ready.is_empty()).then_some(ready)
        });
        let victim = *random.choose(&ready).expect("one is ready");
        killed.push(victim);
        kill(victim, Signal::KILL);
    }

    /// Returns the workers that take tasks.
    #[track_caller]
    fn ready_workers(&mut self) -> Vec<u32> {
        let reply = self.driver.query(&Query::Workers).expect("the head answers");
        let Reply::Workers(workers) = reply else { panic!("workers were asked for, but got {reply:?}") };
        let is_ready = |state| matches!(state, WorkerState::Idle | WorkerState::Busy);
        workers.iter().filter(|worker| is_ready(worker.state)).map(|worker| worker.pid).collect()
    }
}

/// Returns the number of spans of attempts at a task in the span files. Reads less carefully than [`Spans`], and faster.
fn recorded_attempts(cluster: &Cluster, id: TaskId) -> usize {
    let mark = format!("\"tracer.task_id\":{id},");
    let files = fs::read_dir(cluster.spans_dir()).into_iter().flatten().flatten();
    let texts = files.map(|entry| fs::read_to_string(entry.path()).expect("a span file is UTF-8"));
    texts
        .map(|text| {
            let found = text.match_indices(&mark).filter(|(place, _)| {
                let start = text[..*place].rfind('\n').map_or(0, |feed| feed + 1);
                let is_whole = text[*place..].contains('\n');
                is_whole && text[start..*place].contains("SpanKind.CONSUMER")
            });
            found.count()
        })
        .sum()
}

/// Expects what holds for every task that has ended, however it did. `inner` says whether its function makes one span.
#[track_caller]
fn assert_recorded(spans: &Spans, id: TaskId, outcome: &Outcome) {
    let attempts: Vec<_> = spans
        .iter()
        .filter(|span| span.kind() == "SpanKind.CONSUMER" && *span.attribute("tracer.task_id") == id.0)
        .collect();
    assert_eq!(attempts.len(), 1, "the attempts of task {id}, which ended as {outcome:?}");
    let attempt = attempts[0];
    assert_eq!(attempt.parent_id(), Some(&*format!("0x{OUTSIDE}")));
    let has_ended_by_itself = attempt.attribute("tracer.completed_by").is_null();
    match outcome {
        Outcome::Returned(_) => assert!(has_ended_by_itself, "{}", attempt.value),
        Outcome::Failed(Failure::WorkerLost { error_type, .. }) => {
            assert_eq!(error_type, "signal:9");
            if !has_ended_by_itself {
                assert_closed(attempt, "signal:9", KILLED);
            }
        }
        other => panic!("task {id} ended as {other:?}"),
    }
    if has_ended_by_itself {
        assert_eq!(attempt.value["status"], serde_json::json!({"status_code": "UNSET"}), "{}", attempt.value);
        let children = spans.children_of(attempt);
        assert_eq!(children.len(), 1, "the spans in task {id}");
        assert_eq!((children[0].name(), children[0].status_code()), ("inner", "UNSET"));
    }
}

const MANY: u64 = 300;

/// Many quick tasks share a lease and a batch of results; the worker dies among them.
fn a_worker_dies_among_many(point: &str, time: u32) {
    let cluster = with_a_kill_at(point, time);
    let mut submitter = Submitter::of(&cluster);
    (0..MANY).for_each(|number| submitter.submit("misbehaving_tasks:makes_one_span", number));
    let mut failed = 0;
    for _ in 0..MANY {
        let (number, id, outcome) = submitter.next_ended();
        assert_eq!(recorded_attempts(&cluster, id), 1, "task {id} is seen to have ended as {outcome:?}");
        match &outcome {
            Outcome::Returned(bytes) => {
                assert_eq!(tracer::value::from_bytes::<u64>(bytes).expect("a number"), number);
            }
            _ => failed += 1,
        }
    }
    assert!(cluster.file("killed").exists(), "the worker passed {point} fewer than {time} times");
    if point != "after_result" {
        assert!(failed > 0, "a worker was killed while it ran a task, and all succeeded");
    }
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{OUTSIDE}")]);
    assert_eq!(spans.all_named(INNER_ATTEMPT).len() as u64, MANY, "leases that were not claimed are no attempts");
    for (&id, outcome) in &submitter.outcomes {
        assert_recorded(&spans, id, outcome);
    }
    // Nothing more is told of them.
    submitter.submit("misbehaving_tasks:makes_one_span", MANY);
    assert_eq!(submitter.next_ended().0, MANY);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_after_a_claim() {
    a_worker_dies_among_many("after_claim", 150);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_in_a_task() {
    a_worker_dies_among_many("function_returned", 150);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_between_tasks() {
    a_worker_dies_among_many("after_span_end", 150);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_before_they_are_written() {
    a_worker_dies_among_many("before_commit", 2);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_before_it_notes_that_they_are() {
    a_worker_dies_among_many("after_write", 2);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_before_they_are_sent() {
    a_worker_dies_among_many("after_commit", 2);
}

#[test]
fn results_of_one_lease_are_recorded_when_its_worker_dies_after_they_were_sent() {
    a_worker_dies_among_many("after_result", 2);
}

#[test]
fn workers_that_are_killed_at_random_leave_one_outcome_and_one_span_for_each_task() {
    const ROUNDS: usize = 20;
    const WAVE: usize = 50;
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let mut random = Random::of_test(&cluster);
    let mut submitter = Submitter::of(&cluster);
    let mut submitted = 0;
    let mut killed = Vec::new();
    let has_ended = |submitter: &mut Submitter| {
        let (_, id, outcome) = submitter.next_ended();
        assert_eq!(recorded_attempts(&cluster, id), 1, "task {id} is seen to have ended as {outcome:?}");
    };
    for _ in 0..ROUNDS {
        for _ in 0..WAVE {
            submitter.submit("misbehaving_tasks:makes_one_span", submitted);
            submitted += 1;
        }
        for _ in 0..=random.below(WAVE as u64) {
            has_ended(&mut submitter);
        }
        submitter.kill_a_worker(&mut random, &mut killed);
    }
    while submitter.outcomes.len() < ROUNDS * WAVE {
        has_ended(&mut submitter);
    }
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{OUTSIDE}")]);
    for (&id, outcome) in &submitter.outcomes {
        assert_recorded(&spans, id, outcome);
    }
    assert_eq!(spans.all_named(INNER_ATTEMPT).len(), ROUNDS * WAVE);
    assert_eq!(cluster.status()["workers"]["lost"], ROUNDS);
}

/// Submits a task that runs until the file `released` exists, and waits until the submission shows what the task writes: then
/// it has been told that the task is accepted, and its PRODUCER span has ended.
#[track_caller]
fn submit_and_see_it_run(cluster: &Cluster) -> Background {
    let released = format!("\"{}\"", cluster.file("released").display());
    let waiting = cluster.submit_in_background(
        "misbehaving_tasks:prints_and_waits_in_span",
        &["\"seen\"", "1", &released, "--crash-limit=0"],
    );
    waiting.wait_for_stderr("seen out 1");
    waiting
}

const WAITING: &str = "misbehaving_tasks.prints_and_waits_in_span tracer.remote";
const WAITING_ATTEMPT: &str = "misbehaving_tasks.prints_and_waits_in_span tracer.remote_worker";

#[test]
fn a_submission_that_dies_while_it_waits_leaves_its_job_and_the_task_goes_on() {
    let cluster = Cluster::traced();
    let waiting = submit_and_see_it_run(&cluster);
    waiting.signal(Signal::KILL);
    assert_eq!(waiting.wait().output.status.code(), None);

    let spans = cluster.wait_for_spans("the job is closed", |spans| spans.all_named("tracer job").len() == 1);
    let job = spans.named("tracer job");
    assert_closed(job, "lost", "the process that waited for it died");
    // What had ended is as it was.
    let producer = spans.named(WAITING);
    assert_eq!(producer.value["status"], serde_json::json!({"status_code": "UNSET"}));
    assert_eq!(*producer.attribute("tracer.task_id"), 1);

    fs::write(cluster.file("released"), "").expect("the test's folder can be written to");
    assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 4, "{}", spans.describe());
    assert_eq!(spans.attempt_of(1).status_code(), "UNSET");
}

#[test]
fn a_submission_that_dies_before_it_is_sent_leaves_its_spans_and_no_task() {
    let cluster = Cluster::traced();
    let mut submit = cluster.command(&["submit", "task"]);
    submit.env("TRACER_TEST_KILL_AT", "before_submit");
    assert_eq!(cluster.run(submit).output.status.code(), None);
    let spans = cluster.wait_for_spans("job and submission are closed", |spans| spans.len() == 2);
    spans.assert_whole(&[]);
    for span in spans.iter() {
        assert_closed(span, "lost", "the process that waited for it died");
    }
    assert_eq!(spans.parent_of(spans.named("demo.my_function tracer.remote")).name(), "tracer job");
    assert_eq!(cluster.tasks(), Vec::<Value>::new());
}

#[test]
fn the_next_head_completes_the_spans_that_a_killed_head_left() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    let waiting = submit_and_see_it_run(&cluster);
    let workers = cluster.worker_pids();
    kill(cluster.head_pid(), Signal::KILL);
    waiting.wait().status(1).stderr_contains("the connection to the head broke");
    // At once: the worker may not have died yet.
    cluster.start_head(&[]).success();
    let spans = cluster.wait_for_spans("the attempt is closed", |spans| spans.all_named(WAITING_ATTEMPT).len() == 1);
    wait_until("the worker is gone", || workers.iter().all(|&pid| !is_alive(pid)).then_some(()));
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 3 + 4, "{}", spans.describe());
    let description = "the head of its session died, and it with it";
    assert_closed(spans.named(WAITING_ATTEMPT), "lost", description);
    assert_closed(spans.named("inner"), "lost", description);
    assert_eq!(spans.parent_of(spans.named("inner")), spans.named(WAITING_ATTEMPT));
    let job = spans.parent_of(spans.parent_of(spans.named(WAITING_ATTEMPT)));
    assert_eq!((job.status_code(), job.attribute("error.type")), ("ERROR", &Value::from("submission")));

    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
    cluster.start_head(&[]).success();
    // Nothing is completed a second time.
    assert_eq!(cluster.spans().len(), 7 + 3);
    cluster.spans().assert_whole(&[]);
}

#[test]
fn head_worker_and_submission_that_are_killed_together_leave_their_spans_to_the_next_head() {
    let cluster = Cluster::traced();
    let waiting = submit_and_see_it_run(&cluster);
    // Stopped first, so that neither sees the other die.
    let processes: Vec<_> = cluster.processes().iter().map(|process| process.pid).collect();
    assert_eq!(processes.len(), 4, "a guard, a head, a worker and the submission: {:?}", cluster.processes());
    processes.iter().for_each(|&pid| kill(pid, Signal::STOP));
    processes.iter().for_each(|&pid| kill(pid, Signal::KILL));
    assert_eq!(waiting.wait().output.status.code(), None);
    cluster.assert_nothing_runs();
    // A process that ends loses its environment, by which it is found, before it lets go of its files and locks.
    wait_until("all have let go", || processes.iter().all(|&pid| !is_alive(pid)).then_some(()));
    cluster.start_head(&[]).success();
    let spans = cluster.wait_for_spans("all four are closed", |spans| spans.len() == 4);
    spans.assert_whole(&[]);
    for name in ["tracer job", "inner", WAITING_ATTEMPT] {
        assert_closed(spans.named(name), "lost", "the head of its session died, and it with it");
    }
    assert_eq!(spans.named(WAITING).value["status"], serde_json::json!({"status_code": "UNSET"}));
}

/// A span as a file or an exporter has it: all that is needed to tell whether one is missing.
struct Known {
    span_id: String,
    parent_id: String,
    is_attempt: bool,
    task_id: Option<u64>,
    status: String,
}

/// Submits ten thousand tasks and kills workers at random meanwhile. Returns how each task has ended.
fn ten_thousand_tasks_among_killed_workers(cluster: &Cluster) -> HashMap<TaskId, Outcome> {
    const KILLS: usize = 40;
    const WAVE: u64 = 250;
    let mut random = Random::of_test(cluster);
    let mut submitter = Submitter::of(cluster);
    let mut killed = Vec::new();
    let mut submitted = 0;
    for _ in 0..KILLS {
        for _ in 0..WAVE {
            submitter.submit("misbehaving_tasks:makes_one_span", submitted);
            submitted += 1;
        }
        for _ in 0..=random.below(WAVE) {
            submitter.next_ended();
        }
        submitter.kill_a_worker(&mut random, &mut killed);
    }
    while (submitter.outcomes.len() as u64) < submitted {
        submitter.next_ended();
    }
    assert_eq!(submitted, 10_000);
    submitter.outcomes
}

/// Expects of ten thousand tasks one attempt each, its inner span if it ended by itself, and nothing else.
#[track_caller]
fn assert_none_is_missing(spans: &[Known], outcomes: &HashMap<TaskId, Outcome>) {
    let mut attempts: HashMap<u64, Vec<&Known>> = HashMap::new();
    let mut children: HashMap<&str, Vec<&Known>> = HashMap::new();
    for span in spans {
        if span.is_attempt {
            attempts.entry(span.task_id.expect("an attempt has its task")).or_default().push(span);
        } else {
            children.entry(&span.parent_id).or_default().push(span);
        }
    }
    let mut expected = 0;
    for (id, outcome) in outcomes {
        let of_task = attempts.get(&id.0).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(of_task.len(), 1, "the attempts of task {id}, which ended as {outcome:?}");
        let inner = children.get(&*of_task[0].span_id).map(Vec::as_slice).unwrap_or_default();
        let has_ended_by_itself = of_task[0].status == "UNSET";
        if has_ended_by_itself {
            assert_eq!(inner.len(), 1, "the inner spans of task {id}, which ended as {outcome:?}");
        } else {
            assert!(matches!(outcome, Outcome::Failed(_)), "task {id} ended as {outcome:?}");
            assert!(inner.len() <= 1, "the inner spans of task {id}");
        }
        expected += 1 + inner.len();
    }
    assert_eq!(spans.len(), expected, "spans of nobody");
}

#[test]
fn ten_thousand_tasks_among_killed_workers_leave_every_span_in_the_files_and_none_twice() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let outcomes = ten_thousand_tasks_among_killed_workers(&cluster);
    let spans = cluster.spans();
    assert!(spans.torn_lines.is_empty(), "{:?}", spans.torn_lines);
    let known: Vec<_> = spans
        .iter()
        .map(|span| Known {
            span_id: span.span_id().to_owned(),
            parent_id: span.parent_id().unwrap_or_default().to_owned(),
            is_attempt: span.kind() == "SpanKind.CONSUMER",
            task_id: span.attribute("tracer.task_id").as_u64(),
            status: span.status_code().to_owned(),
        })
        .collect();
    assert_none_is_missing(&known, &outcomes);
}

/// The last spans leave at the exporters' own pace.
#[track_caller]
fn wait_until_no_span_waits(cluster: &Cluster) {
    wait_until("no span waits", || {
        let counts = cluster.status()["spans"].clone();
        assert_eq!((&counts["lost"], &counts["at_risk"]), (&0.into(), &0.into()));
        let spools = fs::read_dir(cluster.session_dir().join("spool")).expect("the session has spools").flatten();
        let left = spools.filter_map(|spool| tracer::spool::Story::open(&spool.path()).ok());
        let is_wanted = |story: tracer::spool::Story| story.spans().iter().any(|span| span.pending != 0);
        (counts["waiting"] == 0 && !left.into_iter().any(is_wanted)).then_some(())
    });
}

#[test]
fn ten_thousand_tasks_among_killed_workers_leave_every_span_at_an_otlp_receiver() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = Cluster::builder()
        .workers(2)
        .hook("otlp:setup_tracing")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .start();
    let outcomes = ten_thousand_tasks_among_killed_workers(&cluster);
    wait_until_no_span_waits(&cluster);
    let known: HashMap<String, Known> = receiver
        .accepted()
        .iter()
        .map(|span| {
            let text = |key: &str| span[key].as_str().expect("it has one").to_owned();
            let known = Known {
                span_id: text("span_id"),
                parent_id: text("parent_span_id"),
                is_attempt: text("name").ends_with("tracer.remote_worker"),
                task_id: span["attributes"]["tracer.task_id"]["int_value"].as_u64(),
                status: if span["status"]["code"] == 0 { "UNSET".to_owned() } else { "ERROR".to_owned() },
            };
            // One that was under way may have arrived twice, with the same id.
            (text("span_id"), known)
        })
        .collect();
    assert_none_is_missing(&known.into_values().collect::<Vec<_>>(), &outcomes);
}

#[test]
fn ten_thousand_tasks_among_killed_workers_leave_every_span_at_the_exporter() {
    let cluster = Cluster::builder().workers(2).hook("exporters:batches").env("EXPORTED_DIR", "arrived").start();
    let outcomes = ten_thousand_tasks_among_killed_workers(&cluster);
    wait_until_no_span_waits(&cluster);
    let mut known = HashMap::new();
    for file in fs::read_dir(cluster.file("arrived")).expect("spans have arrived").flatten() {
        let text = fs::read_to_string(file.path()).expect("it is text");
        // A process that was killed may have left half a batch; the other half has come by another way.
        for span in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let text = |key: &str| span[key].as_str().expect("it has one").to_owned();
            let status = text("status").split(' ').next().unwrap_or_default().to_owned();
            let task_id = span["attributes"]["tracer.task_id"].as_str().and_then(|id| id.parse().ok());
            let is_attempt = text("name").ends_with("tracer.remote_worker");
            let (span_id, parent_id) = (text("span_id"), text("parent_id"));
            // One that was under way may have arrived twice, with the same id.
            known.insert(span_id.clone(), Known { span_id, parent_id, is_attempt, task_id, status });
        }
    }
    assert_none_is_missing(&known.into_values().collect::<Vec<_>>(), &outcomes);
}

/// Kills a worker at any point, with several threads: none of its spans is twice, and none is without its parent.
#[test]
fn a_worker_that_is_killed_amid_spans_on_several_threads_leaves_whole_traces() {
    const ROUNDS: usize = 12;
    const THREADS: u32 = 6;
    let cluster = Cluster::traced();
    let mut random = Random::of_test(&cluster);
    for round in 1..=ROUNDS {
        let started = cluster.file(&format!("started-{round}"));
        let (threads, path) = (THREADS.to_string(), format!("\"{}\"", started.display()));
        let submit =
            cluster.submit_in_background("misbehaving_tasks:traces_on_threads", &[&threads, &path, "--crash-limit=0"]);
        cluster.wait_for_file(&started);
        let pid = fs::read_to_string(&started).expect("it is there").trim().parse().expect("a process id");
        (0..random.below(2000)).for_each(|_| std::thread::yield_now());
        kill(pid, Signal::KILL);
        submit.wait().status(1);
        // No waiting: what anyone can see to have ended is in the files.
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let attempt = spans.attempt_of(round as u64);
        assert_closed(attempt, "signal:9", KILLED);
        let open: Vec<_> = spans.iter().filter(|span| *span.attribute("tracer.completed_by") == "head").collect();
        open.iter().for_each(|span| assert_closed(span, "signal:9", KILLED));
        for outer in spans.children_of(attempt) {
            assert_eq!(outer.name(), "outer");
            // An attribute that was set before the death is there.
            let has_ended = outer.status_code() == "UNSET";
            assert!(!has_ended || outer.attribute("round").is_u64(), "{}", outer.value);
            assert!(!has_ended || outer.attribute("thread").is_u64(), "{}", outer.value);
        }
    }
}
