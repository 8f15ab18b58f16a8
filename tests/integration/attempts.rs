//! Failed attempts: the task is tried again, charged, told, and never more often than was granted.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::driver::DriverError;
use tracer::propagation::Carrier;
use tracer::task::Outcome;

use super::support::{Cluster, Driver, HOOK, Span, Spans, kill, wait_until};

/// Returns the number of starts of a task that counts them in this file.
fn starts(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// Returns the spans of a task's attempts, in their order.
fn attempts_of(spans: &Spans, task: u64) -> Vec<&Span> {
    let is_attempt = |span: &&Span| span.kind() == "SpanKind.CONSUMER" && *span.attribute("tracer.task_id") == task;
    let mut attempts: Vec<_> = spans.iter().filter(is_attempt).collect();
    attempts.sort_by_key(|span| span.attribute("tracer.attempt").as_u64());
    attempts
}

/// The attempts have one parent, and each is linked to the one before, and to that alone.
#[track_caller]
fn assert_linked(attempts: &[&Span]) {
    for (index, attempt) in attempts.iter().enumerate() {
        assert_eq!(*attempt.attribute("tracer.attempt"), index as u64 + 1);
        assert_eq!(attempt.parent_id(), attempts[0].parent_id());
        let linked: Vec<_> = attempt.links().iter().map(|link| link["context"]["span_id"].clone()).collect();
        let before: Vec<_> = index.checked_sub(1).map(|before| json!(attempts[before].span_id())).into_iter().collect();
        assert_eq!(linked, before, "{}", attempt.value);
    }
}

#[test]
fn an_error_is_tried_again_and_every_attempt_has_a_span_that_is_linked_to_the_one_before() {
    let cluster = Cluster::traced();
    let file = cluster.file("starts");
    let arguments = [&json!(file).to_string(), "2", "--retries=5", "--retry-backoff=1ms"];
    cluster.submit("misbehaving_tasks:fails_at_first", &arguments).success().stdout("3\n");
    assert_eq!(starts(&file), 3);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = attempts_of(&spans, 1);
    assert_linked(&attempts);
    let states: Vec<_> = attempts.iter().map(|span| (span.status_code(), span.status_description())).collect();
    assert_eq!(states, [("ERROR", "start 1 fails"), ("ERROR", "start 2 fails"), ("UNSET", "")]);

    let task = cluster.task(1);
    assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(3)));
    let told = task["attempts"].as_array().unwrap().iter();
    let told: Vec<_> = told.map(|attempt| (attempt["number"].clone(), attempt["message"].clone())).collect();
    assert_eq!(told, [(json!(1), json!("start 1 fails")), (json!(2), json!("start 2 fails")), (json!(3), Value::Null)]);
    let text = cluster.tracer(&["get", "1"]).success().stdout_text();
    assert!(text.contains("attempt") && text.contains(": start 2 fails\n") && text.contains(": succeeded\n"), "{text}");
    let table = cluster.tracer(&["list", "tasks"]).success().stdout_text();
    assert!(table.lines().nth(1).unwrap().split_whitespace().any(|word| word == "3"), "{table}");
}

#[test]
fn the_last_error_tells_all_attempts() {
    let cluster = Cluster::untraced();
    let file = cluster.file("starts");
    let arguments = [&json!(file).to_string(), "9", "--retries=2", "--retry-backoff=1ms"];
    let run = cluster.submit("misbehaving_tasks:fails_at_first", &arguments).status(1);
    assert_eq!(
        run.normalized(&run.stderr_text()),
        "error: task 1 (misbehaving_tasks.fails_at_first) failed: start 3 fails\n  \
           attempt 1 (worker 1, pid <pid>): start 1 fails\n  \
           attempt 2 (worker 1, pid <pid>): start 2 fails\n"
    );
    assert_eq!(starts(&file), 3);
    // The library's error says the same.
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let remote = driver.remote("misbehaving_tasks:fails_at_first").arg(&file).unwrap().arg(9).unwrap();
    let task = remote.retries(1).retry_backoff(Duration::from_millis(1)).retry_on("error").unwrap().submit().unwrap();
    let error = driver.get::<u32>(task).unwrap_err();
    assert!(error.to_string().contains("failed: start 5 fails\n  attempt 1 (worker 1, pid "), "{error}");
    assert!(matches!(&error, DriverError::Failed { past, .. } if past.len() == 1));
    let Err(error) = driver.remote("demo:my_function").retry_on("exit:300") else { panic!("it was taken") };
    assert_eq!(error.to_string(), "`exit:300` in `exit:300`: an exit code is 1 to 255");
}

#[test]
fn only_the_named_kinds_of_failure_are_tried_again() {
    let cluster = Cluster::untraced();
    let flaky = "echo started >> starts; [ $(wc -l < starts) -ge 3 ] || exit 75";
    let flags = ["submit", "command", "--retries=9", "--retry-backoff=1ms", "--retry-on=exit:75,timeout"];
    let run = |script: &str| cluster.tracer(&[&flags[..], &["--", "sh", "-c", script]].concat());
    run(flaky).success();
    assert_eq!(starts(&cluster.file("starts")), 3);
    run("echo started >> others; exit 3").status(3).stderr("");
    assert_eq!(starts(&cluster.file("others")), 1);
    let mut slow = vec!["submit", "command", "--retries=1", "--retry-backoff=1ms", "--retry-on=timeout"];
    slow.extend(["--timeout=50ms", "--", "sh", "-c", "echo started >> slow; exec sleep 1000"]);
    cluster.tracer(&slow).status(124).stderr_contains("\n  attempt 1 (worker 1, pid <pid>): timed out: ");
    assert_eq!(starts(&cluster.file("slow")), 2);
    // What is wrong with the arguments is wrong the next time too.
    cluster.submit("wordcount:count", &["3", "--retries=9"]).status(1);
    assert_eq!(cluster.tasks()[0]["attempt"], 1);
    cluster
        .submit("demo:my_function", &["--retry-on=panic"])
        .status(2)
        .stderr_contains("`--retry-on` says which failures are tried again, but `--retries` says how often, and is 0");
}

#[test]
fn a_task_that_kills_its_worker_is_started_again_twice_unless_it_says_otherwise() {
    let cluster = Cluster::traced();
    let file = cluster.file("starts");
    cluster.submit("misbehaving_tasks:dies_at_first", &[&json!(file).to_string(), "2"]).success().stdout("3\n");
    assert_eq!(starts(&file), 3);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = attempts_of(&spans, 1);
    assert_eq!(attempts.len(), 3);
    assert_linked(&attempts);
    assert_eq!(*attempts[1].attribute("tracer.completed_by"), "head");

    let file = cluster.file("more starts");
    let run = cluster.submit("misbehaving_tasks:dies_at_first", &[&json!(file).to_string(), "9"]).status(1);
    let text = run.normalized(&run.stderr_text());
    assert!(
        text.contains("failed: its worker (pid <pid>) was killed by SIGABRT (signal 6)\n  attempt 1 (worker"),
        "{text}"
    );
    assert!(
        text.contains("\n  attempt 2 (worker 4, pid <pid>): its worker (pid <pid>) was killed by SIGABRT"),
        "{text}"
    );
    assert_eq!(starts(&file), 3);
}

/// A worker that is killed amid a long lease of short tasks: what it had begun is charged, whether or not the function was called, and
/// the rest is not.
#[test]
fn a_killed_workers_claimed_task_is_charged_and_its_other_leases_are_not() {
    const MANY: u64 = 300;
    let cluster = Cluster::builder().hook(HOOK).build();
    let mut start = cluster.start_command(&[]);
    start.env("TRACER_TEST_KILL_AT", "after_claim:150").env("TRACER_TEST_KILL_ONCE", cluster.file("killed"));
    cluster.run(start).success();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    // Who submits has a trace, and no spans here: they would be where this process's environment says.
    let (carrier, _) = Carrier::from_headers(["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"], [], []);
    driver.set_parent(carrier, true);
    let target = "misbehaving_tasks:makes_one_span";
    for number in 0..MANY {
        driver.remote(target).arg(number).unwrap().submit().unwrap();
    }
    let mut again = Vec::new();
    for _ in 0..MANY {
        let finished = driver.next_finished().unwrap();
        assert!(matches!(finished.outcome, Outcome::Returned(_)), "{finished:?}");
        assert_eq!(finished.past.len() as u32 + 1, finished.attempt);
        again.extend((finished.attempt > 1).then_some((finished.task.0, finished.past)));
    }
    assert!(cluster.file("killed").exists());
    // The one that was claimed, and those before it whose results were on their way.
    assert!((1..150).contains(&again.len()), "{} were charged", again.len());
    let spans = cluster.spans();
    let names = spans.all_named("misbehaving_tasks.makes_one_span tracer.remote_worker");
    assert_eq!(names.len(), MANY as usize + again.len(), "a lease that was not claimed is no attempt");
    for (task, past) in &again {
        assert!(past[0].message.as_ref().unwrap().contains("was killed by SIGKILL (signal 9)"), "{past:?}");
        let attempts = attempts_of(&spans, *task);
        assert_eq!(attempts.len(), 2);
        assert_linked(&attempts);
    }
    let not_called = |task: &u64| spans.children_of(attempts_of(&spans, *task)[0]).is_empty();
    assert_eq!(again.iter().filter(|(task, _)| not_called(task)).count(), 1, "one was charged without its function");
}

#[test]
fn what_is_to_start_at_most_once_is_lost_with_its_worker_or_its_head_and_never_started_again() {
    let cluster = Cluster::traced();
    let released = json!(cluster.file("released")).to_string();
    let submit = |name: &str| {
        let arguments = [&*json!(cluster.file(name)).to_string(), &released, "--at-most-once"];
        cluster.submit_in_background("misbehaving_tasks:counts_and_waits", &arguments)
    };
    let with_worker = submit("with worker");
    cluster.wait_for_file(&cluster.file("with worker"));
    kill(cluster.worker_pids()[0], Signal::KILL);
    with_worker.wait().status(1).stderr_contains(
        "failed: lost: its worker (pid <pid>) was killed by SIGKILL (signal 9); it may not be started again, and whether it was \
         done is not known\n",
    );
    let with_head = submit("with head");
    cluster.wait_for_file(&cluster.file("with head"));
    let queued = submit("queued");
    wait_until("it is queued", || (cluster.tasks().len() == 3).then_some(()));
    if differs!() {
        fs::write(cluster.file("released"), "").unwrap();
        with_head.wait().success();
        queued.wait().success();
        return;
    }
    cluster.kill_head();
    with_head.wait().status(1);
    queued.wait().status(1);
    fs::write(cluster.file("released"), "").unwrap();
    cluster.start_head(&[]).success().stderr_contains("\n  lost       1 task that ran when their head died");
    assert_eq!(cluster.wait_for_task(3)["result"], 1);
    let lost = cluster.task(2);
    assert_eq!(lost["failure"]["reason"], "lost");
    assert_eq!(["with worker", "with head", "queued"].map(|name| starts(&cluster.file(name))), [1, 1, 1]);
    cluster.spans().assert_whole(&[]);
    cluster
        .submit("demo:my_function", &["--at-most-once", "--retries=2"])
        .status(2)
        .stderr_contains("cannot be used with");
}

#[test]
fn a_task_that_ran_when_its_head_died_is_started_again_under_the_next_and_stays_charged() {
    if differs!() {
        return;
    }
    let cluster = Cluster::traced();
    let (file, released) = (cluster.file("starts"), cluster.file("released"));
    let arguments = [&*json!(file).to_string(), &*json!(released).to_string(), "--no-wait", "--crash-limit=2"];
    cluster.submit("misbehaving_tasks:counts_and_waits", &arguments).success();
    for deaths in 1..=2 {
        wait_until("it runs", || (starts(&file) == deaths).then_some(()));
        cluster.kill_head();
        cluster
            .start_head(&[])
            .success()
            .stderr_contains("1 task of them ran when their head died and will be started");
    }
    wait_until("it runs again", || (starts(&file) == 3).then_some(()));
    fs::write(&released, "").unwrap();
    let task = cluster.wait_for_task(1);
    assert_eq!((&task["result"], &task["attempt"]), (&json!(3), &json!(3)));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = attempts_of(&spans, 1);
    assert_eq!(attempts.iter().map(|span| span.status_code()).collect::<Vec<_>>(), ["ERROR", "ERROR", "UNSET"]);
    assert_linked(&attempts);
}

#[test]
fn attempts_that_were_charged_survive_the_head() {
    let cluster = Cluster::traced();
    let file = cluster.file("starts");
    let arguments = [&*json!(file).to_string(), "9", "--no-wait", "--retries=1", "--retry-backoff=1h"];
    cluster.submit("misbehaving_tasks:fails_at_first", &arguments).success();
    let waiting = wait_until("it waits to be tried again", || {
        cluster.runner().tasks().into_iter().find(|task| task["state"] == "retrying")
    });
    assert_eq!(waiting["attempts"][0]["message"], "start 1 fails");
    if differs!() {
        return;
    }
    cluster.kill_head();
    // The wait is not remembered; what was charged is.
    cluster.start_head(&[]).success();
    let task = cluster.wait_for_task(1);
    assert_eq!((&task["message"], &task["attempt"]), (&json!("start 2 fails"), &json!(2)));
    assert_eq!(starts(&file), 2);
    let spans = cluster.spans();
    assert_linked(&attempts_of(&spans, 1));
    cluster.stop().success();
    cluster.start_head(&[]).success();
    assert_eq!(cluster.task(1)["attempts"], task["attempts"], "the history is kept");
}

#[test]
fn one_key_is_one_task_and_another_task_under_it_is_refused() {
    let cluster = Cluster::untraced();
    let (file, released) = (cluster.file("starts"), cluster.file("released"));
    let arguments = [&*json!(file).to_string(), &*json!(released).to_string(), "--idempotency-key=nightly"];
    let first = cluster.submit_in_background("misbehaving_tasks:counts_and_waits", &arguments);
    cluster.wait_for_file(&file);
    let second = cluster.submit_in_background("misbehaving_tasks:counts_and_waits", &arguments);
    let no_wait = [&arguments[..], &["--no-wait"]].concat();
    cluster.submit("misbehaving_tasks:counts_and_waits", &no_wait).success().stdout("1\n");
    fs::write(&released, "").unwrap();
    first.wait().success().stdout("1\n");
    second.wait().success().stdout("1\n");
    for _ in 0..2 {
        cluster.submit("misbehaving_tasks:counts_and_waits", &arguments).success().stdout("1\n");
        cluster.submit("demo:my_function", &["--idempotency-key=nightly"]).status(1).stderr_contains(
            "the head refused: the idempotency key `nightly` names task 1 already, which runs \
             `misbehaving_tasks.counts_and_waits` and is another one\n",
        );
        let refused = cluster.submit("demo:my_function", &["--idempotency-key=nightly", "--format=json"]).status(1);
        assert_eq!(
            (&refused.json()["error"]["code"], &refused.json()["error"]["kind"]),
            (&json!("key_taken"), &json!("failed"))
        );
        // And so with the head after it.
        cluster.kill_head();
        cluster.start_head(&[]).success();
    }
    assert_eq!(starts(&file), 1);

    // In a batch of a library driver, among others.
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let submit =
        |driver: &mut Driver, key: &str| driver.remote("demo:my_function").idempotency_key(key).submit().unwrap();
    let tasks = ["", "a", "", "b", "a", ""].map(|key| submit(&mut driver, key));
    let ids = tasks.each_ref().map(|task| driver.accepted(task).unwrap().0);
    assert_eq!(ids, [2, 3, 4, 5, 3, 6]);
    let results: HashMap<u64, u64> = ids.into_iter().zip(tasks.map(|task| driver.get::<u64>(task).unwrap())).collect();
    assert_eq!(results.len(), 5);
}
