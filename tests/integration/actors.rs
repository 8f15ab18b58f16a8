//! Actors: a state in a worker of its own, which is called from anywhere, and the traces of that.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::Driver;

use crate::support::{Cluster, HOOK, Run, Span, Spans, is_alive, kill, program_path, wait_until};

const CREATED: &str = "Counter.new tracer.remote";
const MADE: &str = "Counter.new tracer.remote_worker";
const CALLED: &str = "Counter.increment tracer.remote";
const RUN: &str = "Counter.increment tracer.remote_worker";

/// `tracer submit actor`. Returns its id.
#[track_caller]
fn create(cluster: &Cluster, target: &str, arguments: &[&str]) -> u64 {
    let mut command = cluster.command(&["submit", "actor", target]);
    command.args(arguments);
    cluster.run(command).success().json().as_u64().expect("an id")
}

/// Returns an actor that notes in the cluster's folder what becomes of it.
#[track_caller]
fn fragile(cluster: &Cluster, arguments: &[&str]) -> u64 {
    let folder = json!(cluster.folder()).to_string();
    create(cluster, "actor_tasks:Fragile", &[&[&*folder], arguments].concat())
}

/// `tracer submit call`.
#[track_caller]
fn call(cluster: &Cluster, actor: &str, method: &str, arguments: &[&str]) -> Run {
    let mut command = cluster.command(&["submit", "call", actor, method]);
    command.args(arguments);
    cluster.run(command)
}

/// `tracer submit call --no-wait`. Returns its id.
#[track_caller]
fn call_later(cluster: &Cluster, actor: &str, method: &str, arguments: &[&str]) -> u64 {
    call(cluster, actor, method, &[&["--no-wait"], arguments].concat()).success().json().as_u64().expect("an id")
}

/// Returns the rows of `tracer list actors`.
#[track_caller]
fn actors(cluster: &Cluster) -> Vec<Value> {
    let rows = cluster.tracer(&["list", "actors", "--format", "json"]).success().json();
    rows["actors"].as_array().expect("actors are a list").clone()
}

#[track_caller]
fn actor(cluster: &Cluster, id: u64) -> Value {
    actors(cluster).into_iter().find(|actor| actor["id"] == id).expect("the actor is listed")
}

#[track_caller]
fn worker_of(cluster: &Cluster, id: u64) -> u32 {
    let pid = wait_until("the actor has a worker", || actor(cluster, id)["worker_pid"].as_u64());
    u32::try_from(pid).expect("a process id")
}

#[track_caller]
fn wait_for_state(cluster: &Cluster, id: u64, state: &str) -> Value {
    wait_until(&format!("actor {id} is {state}"), || Some(actor(cluster, id)).filter(|actor| actor["state"] == state))
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Returns the names of the spans from this one up to the root.
fn way_up(spans: &Spans, span: &Span) -> Vec<String> {
    let mut names = vec![span.name().to_owned()];
    let mut current = span;
    while current.parent_id().is_some() {
        current = spans.parent_of(current);
        names.push(current.name().to_owned());
    }
    names
}

#[test]
fn the_example_counts_for_whoever_knows_its_name_or_has_its_handle() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let id = create(&cluster, "counter:Counter", &["40", "--name", "hits"]);
    assert_eq!(call(&cluster, "hits", "increment", &["2"]).success().json(), json!(42));
    assert_eq!(call(&cluster, &id.to_string(), "get", &[]).success().json(), json!(42));
    let run = cluster.submit("counter:count_words", &[r#"["to be or", "not to be"]"#, "\"hits\""]).success();
    assert_eq!(run.json(), json!(48));
    let text = cluster.tracer(&["list", "actors"]).success().stdout_text();
    assert!(text.lines().nth(1).is_some_and(|row| row.contains("hits  counter:Counter  alive")), "{text}");
    // Its name stands for the task that has created it.
    for (verb, place) in [("get", "/id"), ("explain", "/task/id"), ("wait", "/tasks/0/id"), ("cancel", "/tasks/0/id")] {
        let report = cluster.tracer(&[verb, "hits", "--format", "json"]).success().json();
        assert_eq!(report.pointer(place), Some(&json!(id)), "{verb}: {report:#}");
    }
    wait_for_state(&cluster, id, "dead");

    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for (submitted, run) in [(CREATED, MADE), (CALLED, RUN)] {
        for run in spans.all_named(run) {
            let producer = spans.parent_of(run);
            let kinds = (producer.kind(), run.kind());
            assert_eq!((producer.name(), kinds), (submitted, ("SpanKind.PRODUCER", "SpanKind.CONSUMER")));
            for span in [producer, run] {
                assert_eq!(span.attribute("tracer.actor_id"), id);
                assert_eq!(span.attribute("tracer.remote"), "actor");
                assert_eq!(span.attribute("tracer.actor_class"), "counter.Counter");
                let method = span.attribute("tracer.function").as_str().and_then(|name| name.strip_prefix("Counter."));
                assert_eq!(span.attribute("tracer.actor_method").as_str(), method);
            }
        }
    }
    assert_eq!((spans.all_named(MADE).len(), spans.all_named(RUN).len()), (1, 3));
    let shown = cluster.tracer(&["modules", "show", "counter"]).success();
    shown.stdout_contains("increment(by: i64) -> i64").stdout_contains("concurrent Counter.get() -> i64");
}

#[test]
fn ten_thousand_calls_of_one_driver_run_in_their_order() {
    const MANY: i64 = 10_000;
    let cluster = Cluster::untraced();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let counter = driver.actor("counter:Counter").arg(0).unwrap().create().unwrap();
    let submit = |_| driver.call(&counter, "increment").arg(1).unwrap().submit().unwrap();
    let calls: Vec<_> = (0..MANY).map(submit).collect();
    let counts: Vec<i64> = calls.into_iter().map(|call| driver.get(call).unwrap()).collect();
    assert!(counts.into_iter().eq(1..=MANY));
}

#[test]
fn concurrent_calls_run_beside_each_other_up_to_the_limit_and_no_context_is_anothers() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let id = create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let until = json!(cluster.file("until")).to_string();
    let calls: Vec<_> =
        (0..5).map(|number| call_later(&cluster, "beside", "run", &[&number.to_string(), &until])).collect();
    // It waits until they have ended.
    let last = cluster.tracer_in_background(&["submit", "call", "beside", "seen"]);
    let running = |task: &&u64| cluster.task(**task)["state"] == "running";
    wait_until("three of them run", || (calls.iter().filter(running).count() == 3).then_some(()));
    wait_until("each of those has its task done", || {
        (cluster.spans().all_named("actor_tasks.same tracer.remote_worker").len() == 3).then_some(())
    });
    fs::write(cluster.file("until"), "").unwrap();
    for &task in &calls {
        let ids = json!([task, id]);
        assert_eq!(cluster.wait_for_task(task)["result"], json!([ids, ids]), "its own ids, before and after it waited");
    }
    assert_eq!(last.wait().success().json(), json!([3, [0, 1, 2, 3, 4]]));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for (number, &task) in calls.iter().enumerate() {
        let own = spans.named(&format!("run {number}"));
        let attempt = spans.attempt_of(task);
        assert_eq!(spans.parent_of(own).span_id(), attempt.span_id());
        let below: Vec<_> = spans.children_of(own).iter().map(|span| span.name().to_owned()).collect();
        assert_eq!(below.len(), 2, "{}", spans.describe());
        assert!(
            ["actor_tasks.same tracer.remote", &format!("end of run {number}")]
                .iter()
                .all(|name| below.iter().any(|known| known == name))
        );
        assert_eq!(own.trace_id(), attempt.trace_id());
    }
}

#[test]
fn calls_that_somebody_waits_for_run_beside_each_other_as_those_do_that_nobody_does() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let until = json!(cluster.file("until")).to_string();
    let run = |number: &str| cluster.tracer_in_background(&["submit", "call", "beside", "run", number, &until]);
    let waited = [run("0"), run("1")];
    call_later(&cluster, "beside", "run", &["2", &until]);
    let begun = || cluster.spans().all_named("actor_tasks.same tracer.remote_worker").len() == 3;
    wait_until("three of them have their task done, whoever waits for them", || begun().then_some(()));
    // The limit is three, so the next one begins when one of those ends.
    let last = run("3");
    fs::write(cluster.file("until"), "").unwrap();
    for call in waited.into_iter().chain([last]) {
        call.wait().success();
    }
    assert_eq!(call(&cluster, "beside", "seen", &[]).success().json()[0], 3, "three ran at a time");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_call_that_somebody_waits_for_may_release_another_one_of_the_same_actor() {
    let cluster = Cluster::builder().workers(1).start();
    create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let until = cluster.file("until");
    let argument = json!(until).to_string();
    let run = cluster.tracer_in_background(&["submit", "call", "beside", "run", "0", &argument]);
    wait_until("it runs", || (call(&cluster, "beside", "running", &[]).success().json() == 1).then_some(()));
    fs::write(&until, "").unwrap();
    run.wait().success();
}

#[test]
fn what_a_call_writes_is_its_callers_and_where_several_run_it_is_said_to_be_shared() {
    let cluster = Cluster::builder().workers(1).start();
    create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let say = |method: &str, name: &str, until: &Path| {
        let (name, until) = (json!(name).to_string(), json!(until).to_string());
        cluster.tracer_in_background(&["submit", "call", "beside", method, &name, &until])
    };
    let lines = |run: &Run| -> Vec<String> {
        let text = run.stderr_text();
        text.lines().filter_map(|line| Some(line.split_once(") ")?.1.to_owned())).collect()
    };
    let note = "note: other calls of this actor run beside this one";
    // One after the other, of both kinds: nothing is another's, although they are submitted at once.
    let go = cluster.file("go");
    fs::write(&go, "").unwrap();
    let names = ["a", "b", "c", "d"];
    let alone = names.map(|name| (name, say("say_alone", name, &go)));
    for (name, call) in alone {
        let run = call.wait().success();
        assert_eq!(lines(&run), [format!("{name} begins"), format!("{name} ends")]);
        assert!(!run.stderr_text().contains(note), "{}", run.describe());
    }
    // At a time: each sees what both write.
    let [first_go, second_go] = ["first", "second"].map(|name| cluster.file(name));
    let first = say("say", "first", &first_go);
    first.wait_for_stderr("first begins\n");
    let second = say("say", "second", &second_go);
    first.wait_for_stderr("second begins\n");
    fs::write(&second_go, "").unwrap();
    let second = second.wait().success();
    assert_eq!(lines(&second), ["second begins", "second ends"], "what was written before is not its own");
    fs::write(&first_go, "").unwrap();
    let first = first.wait().success();
    assert_eq!(lines(&first), ["first begins", "second begins", "second ends", "first ends"]);
    for run in [first, second] {
        assert_eq!(run.stderr_text().matches(note).count(), 1, "{}", run.describe());
    }
}

#[test]
fn a_processor_of_a_hook_is_told_the_call_that_a_span_is_of_although_others_run_beside_it() {
    let cluster = Cluster::builder().arg("--tracing-exporter=hook_forms:stamping_exporter").workers(2).start();
    let id = create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let until = json!(cluster.file("until")).to_string();
    let calls: Vec<_> =
        (0..3).map(|number| call_later(&cluster, "beside", "run", &[&number.to_string(), &until])).collect();
    let inner = |cluster: &Cluster| cluster.tasks().iter().filter(|task| task["target"] == "actor_tasks.same").count();
    wait_until("all have submitted their task", || (inner(&cluster) == 3).then_some(()));
    fs::write(cluster.file("until"), "").unwrap();
    calls.iter().for_each(|&task| assert_eq!(cluster.wait_for_task(task)["state"], "succeeded"));
    cluster.stop().success();
    let spans = super::hooks::exported(&cluster);
    for (number, &task) in calls.iter().enumerate() {
        let own = spans.named(&format!("run {number}"));
        for span in spans.children_of(own).into_iter().chain([spans.attempt_of(task), own]) {
            let ids = (span.attribute("fixture.task"), span.attribute("fixture.actor"));
            assert_eq!(ids, (&json!(task), &json!(id)), "{}", span.value);
        }
        assert_eq!(spans.children_of(own).len(), 2);
    }
}

#[test]
fn a_call_whose_argument_comes_late_holds_up_its_submitters_and_nobody_elses() {
    let cluster = Cluster::builder().workers(2).start();
    let folder = json!(cluster.folder()).to_string();
    assert_eq!(cluster.submit("actor_tasks:in_order", &[&folder]).success().json(), json!([2, 11, 3]));
}

#[test]
fn an_actor_whose_worker_is_killed_begins_again_and_every_span_is_there() {
    let cluster = Cluster::traced();
    let id = fragile(&cluster, &["--name", "fragile", "--max-restarts", "1"]);
    let first = call(&cluster, "fragile", "count", &[]).success().json();
    assert_eq!((&first[0], &first[1]), (&json!(id), &json!(1)));
    let died = call(&cluster, "fragile", "die", &["1"]).status(1);
    died.stderr_contains(&format!("actor {id} (actor_tasks.Fragile `fragile`) died while it ran: its worker (pid"));
    // It waits for the actor, which knows nothing of what was.
    let second = call(&cluster, "fragile", "count", &[]).success().json();
    assert_eq!(second[1], 1);
    assert_ne!(second[2], first[2]);
    let row = actor(&cluster, id);
    assert_eq!((&row["state"], &row["restarts"]), (&json!("alive"), &json!(1)));
    assert_eq!(lines(&cluster.file("begun")).len(), 2);

    let alive = cluster.tracer(&["explain", "fragile"]).success().stdout_text();
    assert!(alive.contains("it takes calls in worker") && alive.contains("made again 1 time of 1 at most"), "{alive}");
    kill(worker_of(&cluster, id), Signal::KILL);
    let row = wait_for_state(&cluster, id, "dead");
    let dead = cluster.tracer(&["explain", "fragile", "--format", "json"]).success().json();
    assert_eq!(
        (&dead["actor"]["id"], &dead["actor"]["state"], &dead["task"]["id"]),
        (&json!(id), &json!("dead"), &json!(id))
    );
    let why = dead["reasons"][0]["text"].as_str().expect("a text");
    assert!(why.starts_with("it is dead since ") && why.contains("was killed by SIGKILL (signal 9)"), "{dead}");
    assert!(dead["actor"]["died_time"].is_string(), "{dead}");
    assert!(row["reason"].as_str().unwrap().contains("was killed by SIGKILL (signal 9)"), "{row}");
    let late = call(&cluster, "fragile", "count", &[]).status(1);
    late.stderr_contains("is dead: its worker (pid").stderr_contains("was killed by SIGKILL (signal 9)");

    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let mut made: Vec<_> = spans.all_named("Fragile.new tracer.remote_worker");
    made.sort_by_key(|span| span.attribute("tracer.attempt").as_u64());
    assert_eq!(made.len(), 2);
    assert_eq!(made[0].parent_id(), made[1].parent_id());
    assert_eq!(made[1].links()[0]["context"]["span_id"], made[0].span_id());
    let die = spans.named("Fragile.die tracer.remote_worker");
    assert_eq!((die.status_code(), die.attribute("error.type")), ("ERROR", &json!("signal:9")));
    let inner = spans.named("before the end");
    assert_eq!(
        (spans.parent_of(inner).span_id(), inner.attribute("tracer.completed_by")),
        (die.span_id(), &json!("head"))
    );
}

#[test]
fn a_call_that_was_going_on_is_run_again_as_often_as_its_actor_allows() {
    let cluster = Cluster::traced();
    fragile(&cluster, &["--name", "fragile", "--max-restarts", "9", "--max-call-retries", "1"]);
    assert_eq!(call(&cluster, "fragile", "die", &["1"]).success().json(), json!(1));
    let run = call(&cluster, "fragile", "die", &["9"]).status(1);
    run.stderr_contains("  attempt 1 (worker");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = spans.all_named("Fragile.die tracer.remote_worker");
    assert_eq!(attempts.len(), 4);
    assert_eq!(attempts.iter().filter(|attempt| attempt.links().len() == 1).count(), 2, "{}", spans.describe());
}

#[test]
fn a_panic_fails_the_call_and_the_actor_lives_on() {
    let cluster = Cluster::traced();
    fragile(&cluster, &["--name", "fragile"]);
    call(&cluster, "fragile", "panics", &[]).status(1).stderr_contains("not so fragile");
    assert_eq!(call(&cluster, "fragile", "count", &[]).success().json()[1], 101);
    cluster.spans().assert_whole(&[]);
}

#[test]
fn an_actor_whose_new_fails_is_dead_and_says_why() {
    let cluster = Cluster::untraced();
    fs::write(cluster.file("refuse"), "").unwrap();
    let folder = json!(cluster.folder()).to_string();
    let run = cluster.tracer(&["submit", "actor", "actor_tasks:Fragile", &folder, "--name", "no"]).status(1);
    run.stderr_contains("(Fragile.new) failed: the folder says no");
    call(&cluster, "no", "count", &[])
        .status(1)
        .stderr_contains("actor 1 (actor_tasks.Fragile `no`) is dead: its `new` failed: the folder says no");
    // Its worker went back to the others, and its name is free.
    assert_eq!(cluster.submit("demo:my_function", &[]).success().json(), json!(1));
    fs::remove_file(cluster.file("refuse")).unwrap();
    fragile(&cluster, &["--name", "no"]);
}

#[test]
fn a_name_is_that_of_the_actor_that_had_it_and_never_of_one_that_was_refused_it() {
    let cluster = Cluster::untraced();
    let folder = json!(cluster.folder()).to_string();
    let first = fragile(&cluster, &["--name", "fragile"]);
    let refused = cluster.tracer(&["submit", "actor", "actor_tasks:Fragile", &folder, "--name", "fragile"]);
    refused.status(1).stderr_contains(&format!("actor {first} (actor_tasks.Fragile) has the name `fragile`"));
    let names =
        || actors(&cluster).iter().map(|actor| (actor["id"].clone(), actor["name"].clone())).collect::<Vec<_>>();
    assert_eq!(names(), [(json!(first + 1), json!(null)), (json!(first), json!("fragile"))]);
    kill(worker_of(&cluster, first), Signal::KILL);
    wait_for_state(&cluster, first, "dead");
    let text = format!("actor {first} (actor_tasks.Fragile `fragile`) is dead: its worker (pid ");
    call(&cluster, "fragile", "count", &[]).status(1).stderr_contains(&text);
    cluster.kill_head();
    cluster.start_head(&[]).success();
    // Another head reads it back as it was.
    call(&cluster, "fragile", "count", &[]).status(1).stderr_contains(&format!("actor {first} "));
}

#[test]
fn a_reason_of_several_lines_is_one_line_of_the_table() {
    let cluster = Cluster::untraced();
    cluster.tracer(&["submit", "actor", "misssing:Type"]).status(1);
    let reason = actors(&cluster)[0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains('\n'), "{reason}");
    let text = cluster.tracer(&["list", "actors"]).success().stdout_text();
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn what_is_wrong_with_a_call_is_named() {
    let cluster = Cluster::untraced();
    create(&cluster, "counter:Counter", &["--name", "hits"]);
    call(&cluster, "hist", "get", &[])
        .status(1)
        .stderr("error: there is no actor `hist`\n(hint: did you mean `hits`?)\n");
    call(&cluster, "hits", "incremnt", &["1"]).status(1).stderr_contains(
        "actor `Counter` has no method `incremnt`; it has `increment` and `get`\nDid you mean `increment`?",
    );
    call(&cluster, "hits", "increment", &["true"])
        .status(1)
        .stderr_contains("argument 1 (`by`) of `Counter.increment` takes i64");
    call(&cluster, "hits", "increment", &[])
        .status(1)
        .stderr_contains("argument 1 (`by`) of `Counter.increment` is missing");
    let run = cluster.tracer(&["submit", "actor", "counter:Cuonter"]).status(1);
    run.stderr_contains("has no actor `Cuonter`; it has `Counter`\nDid you mean `Counter`?");
    let run = cluster.tracer(&["submit", "actor", "counter:Counter", "--name", "hits"]).status(1);
    run.stderr_contains("the head refused it: actor 1 (counter.Counter) has the name `hits`");
    let same = create(&cluster, "counter:Counter", &["--name", "hits", "--get-or-create"]);
    assert_eq!(same, 1);
    cluster.tracer(&["submit", "actor", "counter"]).status(2).stderr_contains("an actor is named `module:Type`");
    let id = call_later(&cluster, "hits", "get", &[]);
    cluster.wait_for_task(id);
    call(&cluster, &id.to_string(), "get", &[]).status(1).stderr(&format!("error: task {id} is no actor\n"));
}

#[test]
fn in_a_task_a_name_is_given_once_and_the_living_actor_to_whoever_asks_for_it() {
    let cluster = Cluster::untraced();
    let folder = json!(cluster.folder()).to_string();
    let said = cluster.submit("actor_tasks:create_twice", &[&folder]).success().json();
    assert_eq!(said, json!(["actor 2 (actor_tasks.Fragile) has the name `twice`", true]));
}

#[test]
fn an_actor_ends_with_the_job_that_created_it_unless_it_is_detached() {
    let cluster = Cluster::untraced();
    let folder = json!(cluster.folder()).to_string();
    let created = |is_detached: &str| {
        let handle = cluster.submit("actor_tasks:create", &[&folder, is_detached]).success().json();
        assert_eq!(handle["actor"], "actor_tasks:Fragile");
        handle["actor_id"].as_u64().unwrap()
    };
    let (bound, detached) = (created("false"), created("true"));
    let row = wait_for_state(&cluster, bound, "dead");
    assert_eq!(row["reason"], "the job that had created it has ended");
    wait_until("its state is dropped in good order", || (lines(&cluster.file("dropped")) == ["1"]).then_some(()));
    assert_eq!(call(&cluster, &detached.to_string(), "count", &[]).success().json()[1], 2);
    let pid = worker_of(&cluster, detached);
    cluster.tracer(&["cancel", &detached.to_string()]).success();
    wait_until("its worker has ended", || (!is_alive(pid)).then_some(()));
    assert_eq!(lines(&cluster.file("dropped")), ["1", "2"]);
    assert_eq!(actor(&cluster, detached)["reason"], "it was cancelled");
}

#[test]
fn a_driver_that_goes_takes_its_actors_along() {
    let cluster = Cluster::untraced();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let counter = driver.actor("counter:Counter").create().unwrap();
    let found = driver.actor("counter:Counter").name("kept").detached().create().unwrap();
    assert_eq!(driver.find_actor("kept").unwrap(), found);
    assert!(driver.find_actor("kpet").unwrap_err().to_string().contains("did you mean `kept`?"));
    let count = driver.call(&counter, "increment").arg(5).unwrap().submit().unwrap();
    assert_eq!(driver.get::<i64>(count).unwrap(), 5);
    drop(driver);
    wait_for_state(&cluster, counter.id().0, "dead");
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    driver.end_actor(found.id(), None).unwrap();
    let error = driver.find_actor("kept").unwrap_err().to_string();
    assert_eq!(error, format!("actor {} `kept` is dead: it was cancelled", found.id()));
}

#[test]
fn a_program_has_actors_through_the_library_too() {
    let cluster = Cluster::untraced();
    let library = tracer::Init::new().temp_dir(cluster.temp_dir()).init().unwrap();
    let counter = library.actor("counter:Counter").arg(1).name("hits").create().unwrap();
    let words = library.remote("wordcount:count").arg("to be or").submit().unwrap();
    let count = library.call(&counter, "increment").arg(&words).submit().unwrap();
    assert_eq!((count.get::<i64>().unwrap(), words.get::<i64>().unwrap()), (4, 3));
    // It is an argument of a task, as is the result of one.
    library.remote("counter:count_into").arg(&counter).arg("not to be").submit().unwrap().get::<()>().unwrap();
    let found = library.find_actor("hits").unwrap();
    assert_eq!(library.call(&found, "get").submit().unwrap().get::<i64>().unwrap(), 7);
    let again = library.actor("counter:Counter").name("hits");
    let error = again.create().unwrap_err().to_string();
    assert!(error.contains("has the name `hits`"), "{error}");
    assert_eq!(library.actor("counter:Counter").name("hits").get_or_create().create().unwrap(), counter);
    library.end_actor(&counter, None).unwrap();
    let error = library.call(&counter, "get").submit().unwrap().get::<i64>().unwrap_err().to_string();
    assert!(error.contains("is dead: it was cancelled"), "{error}");
}

#[test]
fn a_call_that_waits_is_cancelled_and_one_that_does_not_end_takes_the_actor_along() {
    let cluster = Cluster::traced();
    let id = fragile(&cluster, &["--name", "fragile"]);
    let running = call_later(&cluster, "fragile", "hold", &["\"never\""]);
    cluster.wait_for_file(&cluster.file("held"));
    let (queued, left) = (call_later(&cluster, "fragile", "count", &[]), call_later(&cluster, "fragile", "count", &[]));
    cluster.tracer(&["cancel", &queued.to_string()]).success();
    assert_eq!(cluster.wait_for_task(queued)["failure"]["reason"], "cancelled");
    assert_eq!(cluster.task(running)["state"], "running");
    cluster.tracer(&["explain", &left.to_string()]).success();
    cluster.tracer(&["cancel", &running.to_string(), "--grace", "0s"]).success();
    assert_eq!(cluster.wait_for_task(running)["failure"]["reason"], "cancelled");
    let row = wait_for_state(&cluster, id, "dead");
    let why = format!("call {running} was cancelled and did not end, so its worker (pid");
    assert!(row["reason"].as_str().unwrap().starts_with(&why), "{row}");
    assert_eq!(cluster.wait_for_task(left)["failure"]["reason"], "actor_died");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_concurrent_call_that_is_cancelled_is_dropped_and_the_others_go_on() {
    let cluster = Cluster::traced();
    create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let until = cluster.file("until");
    fs::write(cluster.file("until.dropped"), "").unwrap();
    let argument = json!(until).to_string();
    let [cancelled, other] =
        [0, 1].map(|number| call_later(&cluster, "beside", "run", &[&number.to_string(), &argument]));
    wait_until("both have their task done", || {
        (cluster.spans().all_named("actor_tasks.same tracer.remote_worker").len() == 2).then_some(())
    });
    cluster.tracer(&["cancel", &cancelled.to_string(), "--grace", "60s"]).success();
    assert_eq!(cluster.wait_for_task(cancelled)["failure"]["reason"], "cancelled");
    assert_eq!(lines(&cluster.file("until.dropped")), ["dropped"]);
    assert_eq!(cluster.task(other)["state"], "running");
    fs::write(&until, "").unwrap();
    assert_eq!(cluster.wait_for_task(other)["state"], "succeeded");
    assert_eq!(call(&cluster, "beside", "seen", &[]).success().json()[0], 2);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.attempt_of(cancelled).attribute("error.type"), "cancelled");
    assert_eq!(spans.attempt_of(other).status_code(), "UNSET");
}

#[test]
fn a_concurrent_call_that_must_be_killed_is_cancelled_and_the_others_say_what_it_has_done_to_them() {
    let cluster = Cluster::traced();
    create(&cluster, "actor_tasks:Beside", &["--name", "beside"]);
    let until = json!(cluster.file("never")).to_string();
    let other = call_later(&cluster, "beside", "run", &["1", &until]);
    wait_until("it has its task done", || {
        (cluster.spans().all_named("actor_tasks.same tracer.remote_worker").len() == 1).then_some(())
    });
    let stuck = call_later(&cluster, "beside", "stick", &[&json!(cluster.file("stuck")).to_string()]);
    cluster.wait_for_file(&cluster.file("stuck"));
    cluster.tracer(&["cancel", &stuck.to_string(), "--grace", "0s"]).success();
    assert_eq!(cluster.wait_for_task(stuck)["failure"]["reason"], "cancelled");
    assert_eq!(cluster.wait_for_task(other)["failure"]["reason"], "actor_died");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for span in [spans.attempt_of(stuck), spans.named("stuck")] {
        assert_eq!(
            (span.attribute("error.type"), span.status_description()),
            (&json!("cancelled"), "it was cancelled")
        );
    }
    let why = format!("call {stuck} was cancelled and did not end, so the worker was killed by SIG");
    for span in [spans.attempt_of(other), spans.named("run 1")] {
        assert!(span.attribute("error.type").as_str().unwrap().starts_with("signal:"), "{}", span.name());
        assert!(span.status_description().starts_with(&why), "{}", span.name());
    }
}

#[test]
fn a_detached_actor_outlives_the_head_and_the_calls_that_wait_for_it_are_run() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let kept = fragile(&cluster, &["--name", "kept", "--max-restarts", "2"]);
    let spent = fragile(&cluster, &["--name", "spent"]);
    assert_eq!(call(&cluster, "kept", "count", &[]).success().json()[1], 1);
    let running = call_later(&cluster, "kept", "hold", &["\"never\""]);
    cluster.wait_for_file(&cluster.file("held"));
    let waiting: Vec<_> = (0..20).map(|_| call_later(&cluster, "kept", "count", &[])).collect();
    let pids = [kept, spent].map(|id| worker_of(&cluster, id));
    cluster.kill_head();
    wait_until("the actors' workers die with their head", || pids.iter().all(|&pid| !is_alive(pid)).then_some(()));
    cluster.start_head(&[]).success();
    for (task, count) in waiting.iter().zip(1..) {
        assert_eq!(cluster.wait_for_task(*task)["result"][1], count, "in their order, on a state that began anew");
    }
    let lost = cluster.wait_for_task(running);
    assert_eq!(lost["failure"]["reason"], "actor_died");
    assert!(
        lost["message"].as_str().unwrap().ends_with("died while it ran: the head died, and its worker with it"),
        "{lost}"
    );
    assert_eq!(actor(&cluster, kept)["restarts"], 1);
    let row = actor(&cluster, spent);
    assert_eq!((&row["state"], &row["reason"]), (&json!("dead"), &json!("the head died, and its worker with it")));
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_journal_that_is_compacted_keeps_actors_that_live_with_their_names_restarts_and_calls() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).build();
    let mut start = cluster.start_command(&[]);
    start.env("TRACER_TEST_SETTING", "compaction_bytes=4000");
    cluster.run(start).success();
    let kept = fragile(&cluster, &["--name", "kept", "--max-restarts", "4"]);
    let unnamed = fragile(&cluster, &["--max-restarts", "1"]);
    let ended = fragile(&cluster, &["--name", "ended", "--max-restarts", "4"]);
    // One restart is spent before, and a name is free again.
    call(&cluster, "kept", "die", &["1"]).status(1);
    assert_eq!(wait_for_state(&cluster, kept, "alive")["restarts"], 1);
    cluster.tracer(&["cancel", &ended.to_string()]).success();
    wait_for_state(&cluster, ended, "dead");
    let running = call_later(&cluster, "kept", "hold", &["\"never\""]);
    cluster.wait_for_file(&cluster.file("held"));
    let waiting: Vec<_> = (0..5).map(|_| call_later(&cluster, "kept", "count", &[])).collect();
    let of_unnamed = {
        let held = call_later(&cluster, &unnamed.to_string(), "hold", &["\"released\""]);
        wait_until("it runs", || (cluster.task(held)["state"] == "running").then_some(()));
        held
    };

    // Each compaction makes another file.
    let file = || fs::metadata(cluster.temp_dir().join("tasks.journal")).unwrap().ino();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    for _ in 0..3 {
        let before = file();
        wait_until("the journal is compacted", || {
            let tasks: Vec<_> =
                (0..50).map(|_| driver.remote("demo:my_function").submit().expect("it is taken in")).collect();
            tasks.into_iter().for_each(|task| assert_eq!(driver.get::<u64>(task).unwrap(), 1));
            (file() != before).then_some(())
        });
    }
    let pids = [kept, unnamed].map(|id| worker_of(&cluster, id));
    cluster.kill_head();
    wait_until("the actors' workers die with their head", || pids.iter().all(|&pid| !is_alive(pid)).then_some(()));
    cluster.start_head(&[]).success();
    assert!(!cluster.head_log().contains("were cut off"), "{}", cluster.head_log());

    for (task, count) in waiting.iter().zip(1..) {
        let task = cluster.wait_for_task(*task);
        assert_eq!((&task["result"][0], &task["result"][1]), (&json!(kept), &json!(count)), "in their order: {task}");
    }
    for lost in [running, of_unnamed] {
        assert_eq!(cluster.wait_for_task(lost)["failure"]["reason"], "actor_died");
    }
    let told = |id| {
        let row = actor(&cluster, id);
        json!([row["name"], row["state"], row["restarts"], row["max_restarts"]])
    };
    assert_eq!(told(kept), json!(["kept", "alive", 2, 4]));
    assert_eq!(call(&cluster, &unnamed.to_string(), "count", &[]).success().json()[0], unnamed);
    assert_eq!(told(unnamed), json!([null, "alive", 1, 1]));
    let is_dead = |row: &Value| row["id"] != ended || row["state"] == "dead";
    assert!(actors(&cluster).iter().all(is_dead), "those that are dead need not be remembered");
    // The names are as they were: one is taken, the other free.
    let folder = json!(cluster.folder()).to_string();
    let again = |name: &str| cluster.tracer(&["submit", "actor", "actor_tasks:Fragile", &folder, "--name", name]);
    again("kept").status(1).stderr_contains("`kept`");
    again("ended").success();
    // Restarts are spent as they were counted.
    call(&cluster, "kept", "die", &["2"]).status(1);
    call(&cluster, "kept", "die", &["3"]).status(1);
    assert_eq!(wait_for_state(&cluster, kept, "alive")["restarts"], 4);
    call(&cluster, "kept", "die", &["4"]).status(1);
    wait_for_state(&cluster, kept, "dead");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn where_no_process_may_be_started_an_actor_waits_and_explain_says_so() {
    let cluster = Cluster::builder().arg("--max-processes=2").start();
    let first = create(&cluster, "counter:Counter", &["--name", "first"]);
    let waits = cluster.tracer(&["submit", "actor", "counter:Counter", "--no-wait"]).success().json();
    let text = cluster.tracer(&["explain", &waits.to_string()]).success().stdout_text();
    let expected = "of the 2 that there may be 1 is taken by actors and one is kept for tasks";
    assert!(text.contains(expected) && text.contains("--max-processes"), "{text}");
    assert_eq!(cluster.submit("demo:my_function", &[]).success().json(), json!(1), "tasks go on");
    cluster.tracer(&["cancel", &first.to_string()]).success();
    assert_eq!(cluster.wait_for_task(waits.as_u64().unwrap())["state"], "succeeded");
}

// What breaks in Ray when tracing is on.

#[test]
fn a_method_that_another_attribute_has_wrapped_is_called_and_its_trace_is_whole() {
    let cluster = Cluster::traced();
    create(&cluster, "actor_tasks:Traced", &["--name", "traced"]);
    for (method, inner) in [("wrapped", "inner"), ("wrapped_future", "inner of a future")] {
        assert_eq!(call(&cluster, "traced", method, &["1"]).success().json(), json!(2));
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let (called, run) = (format!("Traced.{method} tracer.remote"), format!("Traced.{method} tracer.remote_worker"));
        assert_eq!(way_up(&spans, spans.named(inner)), [inner, method, &*run, &*called, "tracer job"]);
    }
}

#[test]
fn a_static_function_of_an_actor_is_a_task_and_is_traced() {
    let cluster = Cluster::traced();
    assert_eq!(cluster.submit("actor_tasks:Traced.fixed", &["1"]).success().json(), json!(2));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let expected = [
        "in fixed",
        "actor_tasks.Traced.fixed tracer.remote_worker",
        "actor_tasks.Traced.fixed tracer.remote",
        "tracer job",
    ];
    assert_eq!(way_up(&spans, spans.named("in fixed")), expected);
}

#[test]
fn an_actor_found_by_name_from_another_process_is_called_in_one_whole_trace() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let id = fragile(&cluster, &["--name", "found"]);
    let handle = json!({ "actor_id": id, "actor": "actor_tasks:Fragile" }).to_string();
    for (function, argument) in [("call_by_name", "\"found\""), ("call_by_handle", &*handle)] {
        let run = cluster.submit(&format!("actor_tasks:{function}"), &[argument]).success();
        assert_eq!(run.json()[0], id);
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let task = spans.named(&format!("actor_tasks.{function} tracer.remote_worker"));
        let [called] = spans.children_of(task)[..] else { panic!("{}", spans.describe()) };
        let [ran] = spans.children_of(called)[..] else { panic!("{}", spans.describe()) };
        let names = (called.name(), ran.name());
        assert_eq!(names, ("Fragile.count tracer.remote", "Fragile.count tracer.remote_worker"));
        assert_eq!((called.file == task.file, ran.file == task.file), (true, false), "each in its process");
        assert_eq!(ran.attribute("tracer.pid"), worker_of(&cluster, id));
    }
}

/// In Ray, what was decorated before `init` is not traced. Here a program has its actor and a call of it before its tracing begins.
#[test]
fn an_actor_created_and_a_call_begun_before_tracing_are_traced_from_then_on() {
    let cluster = Cluster::traced();
    let mut program = cluster.program(program_path("driver_program"));
    program.args(["calls-an-actor", &cluster.temp_dir().display().to_string()]);
    assert_eq!(cluster.run(program).success().json(), json!([2, 3]));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    // The first call was submitted without a trace; where it ran, it is one of its own.
    let ran = spans.all_named("Traced.wrapped tracer.remote_worker");
    let [untraced, traced] = ran[..] else { panic!("{}", spans.describe()) };
    assert_eq!(untraced.parent_id(), None);
    assert_eq!(
        way_up(&spans, traced),
        ["Traced.wrapped tracer.remote_worker", "Traced.wrapped tracer.remote", "tracer job"]
    );
    assert_eq!(spans.all_named("inner").len(), 2);
}

#[test]
fn calls_between_actors_and_of_a_method_on_itself_are_one_whole_trace() {
    let cluster = Cluster::traced();
    let [one, other] = ["one", "other"].map(|name| create(&cluster, "actor_tasks:Traced", &["--name", name]));
    let handle = json!({ "actor_id": other, "actor": "actor_tasks:Traced" }).to_string();
    assert_eq!(call(&cluster, &one.to_string(), "through", &[&handle]).success().json(), json!(3));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let through = spans.named("Traced.through tracer.remote_worker");
    let mut below: Vec<_> = spans.children_of(through).iter().map(|span| span.name().to_owned()).collect();
    below.sort();
    assert_eq!(below, ["Traced.wrapped tracer.remote", "wrapped"]);
    assert_eq!(spans.named("Traced.wrapped tracer.remote_worker").attribute("tracer.actor_id"), other);
}

#[test]
fn a_call_that_waits_for_its_own_actor_has_the_inner_one_fail_and_the_actor_lives_on() {
    let cluster = Cluster::traced();
    let (first, second) = ("first", "second");
    for name in [first, second] {
        create(&cluster, "actor_tasks:Caller", &["--name", name]);
    }
    call(&cluster, first, "calls", &["\"first\""])
        .status(1)
        .stderr_contains("deadlock: task 4 (Caller.one) cannot begin before task 3 (Caller.calls) has ended, which waits for task 4\n")
        .stderr_contains("(hint: a method calls another one of the same actor as a function, `self.method(..)`");
    assert_eq!(cluster.task(4)["failure"]["reason"], "deadlock");
    cluster.tracer(&["explain", "4"]).success().stdout_contains("it was never begun and failed: deadlock: task 4 ");

    // Through the other one, which is told and goes on too.
    call(&cluster, first, "calls_through", &["\"second\"", "\"first\""])
        .status(1)
        .stderr_contains(
            "task 7 (Caller.one) cannot begin before task 5 (Caller.calls_through) has ended, which waits for ",
        )
        .stderr_contains("task 6 (Caller.calls), which waits for task 7");
    for actor in [first, second] {
        assert_eq!(call(&cluster, actor, "one", &[]).success().json(), json!(1));
    }
    let spans = cluster.wait_for_spans("both callers have failed with it", |spans| {
        let calls = spans.iter().filter(|span| span.name() == "Caller.calls tracer.remote_worker");
        calls.filter(|span| span.status_description().contains(" failed: deadlock: task ")).count() == 2
    });
    assert_eq!(spans.all_named("Caller.one tracer.remote_worker").len(), 2, "what failed was never begun");
}

#[test]
fn concurrent_calls_may_block_on_each_other() {
    let cluster = Cluster::untraced();
    create(&cluster, "actor_tasks:Caller", &["--name", "caller"]);
    assert_eq!(call(&cluster, "caller", "calls_beside", &["\"caller\""]).success().json(), json!(1));
}

#[test]
fn a_wait_with_a_limit_for_the_own_actor_is_explained_as_a_deadlock_and_ends_with_the_limit() {
    let cluster = Cluster::untraced();
    create(&cluster, "actor_tasks:Caller", &["--name", "caller"]);
    let outer = call_later(&cluster, "caller", "calls_within", &["\"caller\"", "3600"]);
    let explained = wait_until("the inner call waits", || {
        let answer = cluster.tracer(&["explain", &outer.to_string(), "--format", "json"]).success().json();
        answer["reasons"].as_array().unwrap().iter().find(|reason| reason["reason"] == "deadlock").cloned()
    });
    let ids: Vec<_> = explained["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect();
    assert_eq!(ids, [outer, outer + 1]);
    assert_eq!(explained["tasks"][0]["waits_for"], "end");
    assert_eq!(explained["tasks"][1]["waits_for"], "actor");
    cluster.tracer(&["cancel", &outer.to_string()]).success();
    assert_eq!(cluster.wait_for_task(outer)["state"], "cancelled");
    assert_eq!(call(&cluster, "caller", "calls_within", &["\"caller\"", "0"]).success().json(), json!(false));
}
