//! Resources that tasks ask for: slots and named ones, and that a head is never asked for more than it has.

use std::path::Path;

use serde_json::{Value, json};

use super::support::{Cluster, Driver, HOOK, skip, wait_until};

/// Submits a task that runs until the file `go` exists, and waits until it has begun. Returns its id.
#[track_caller]
fn occupy(cluster: &Cluster, name: &str, further: &[&str]) -> u64 {
    let (started, go) = (json!(cluster.file(name)).to_string(), json!(cluster.file("go")).to_string());
    let mut arguments = vec!["submit", "task", "--no-wait", "misbehaving_tasks:waits", &started, &go];
    arguments.extend(further);
    let id = submitted(cluster, &arguments);
    cluster.wait_for_file(&cluster.file(name));
    id
}

#[track_caller]
fn submitted(cluster: &Cluster, arguments: &[&str]) -> u64 {
    cluster.tracer(arguments).success().stdout_text().trim().parse().expect("an id")
}

#[track_caller]
fn why(cluster: &Cluster, id: u64) -> String {
    let answer = cluster.tracer(&["explain", &id.to_string(), "--format", "json"]).success().json();
    let reasons = answer["reasons"].as_array().expect("reasons are a list");
    reasons.iter().map(|reason| reason["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

fn resource<'a>(status: &'a Value, name: &str) -> &'a Value {
    status["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == name).expect("it has it")
}

#[test]
fn slots_and_resources_are_counted_explained_given_back_and_kept_by_the_next_head() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).arg("--resources=gpu=2,license=5").start();
    if differs!() {
        return are_counted_where_they_are(&cluster);
    }
    let first = occupy(&cluster, "first", &["--resource", "gpu=2", "--resource=license=1"]);
    let status = cluster.status();
    assert_eq!((&status["cpus"]["used"], &status["cpus"]["total"]), (&json!(1), &json!(2)));
    assert_eq!(resource(&status, "gpu"), &json!({ "name": "gpu", "total": 2, "used": 2 }));
    assert_eq!(resource(&status, "license")["used"], 1);
    cluster.tracer(&["status"]).success().stdout_contains("in use   cpus 1 of 2, gpu 2 of 2, license 1 of 5\n");
    cluster.tracer(&["list", "workers"]).success().stdout_contains("1 cpu, gpu=2,license=1");

    // One that lacks a resource lets another pass that does not.
    let second = submitted(&cluster, &["submit", "task", "--no-wait", "demo:my_function", "--resource=gpu=1"]);
    assert_eq!(
        why(&cluster, second),
        "it asks for 1 of the resource `gpu`, and 0 of 2 are free; task 1 (misbehaving_tasks.waits) has 2"
    );
    cluster.submit("demo:my_function", &[]).success();
    let large = submitted(&cluster, &["submit", "command", "--no-wait", "--num-cpus=2", "--", "true"]);
    let sentence = "it asks for 2 cpus, and 1 is free: worker ";
    assert!(why(&cluster, large).starts_with(sentence), "{}", why(&cluster, large));

    // What they asked for is in the journal.
    let head = cluster.head_pid();
    cluster.kill_head();
    cluster.start_head(&[]).success();
    assert_ne!(cluster.head_pid(), head);
    end_knowing_their_demands(&cluster, [first, second, large]);
    assert_eq!(resource(&cluster.status(), "gpu")["used"], 0);

    // Only those that asked have it on their spans.
    let spans = cluster.spans();
    let of = |id: u64, key: &str| spans.attempt_of(id).attribute(key).clone();
    assert_eq!(of(first, "tracer.resources"), "gpu=2,license=1");
    assert_eq!(of(large, "tracer.num_cpus"), 2);
    assert_eq!(of(second, "tracer.num_cpus"), Value::Null);
    assert_eq!(of(second, "tracer.resources"), "gpu=1");
}

/// Expects that what the first and the last of these tasks ask for is known, and has all of them end.
#[track_caller]
fn end_knowing_their_demands(cluster: &Cluster, [first, second, large]: [u64; 3]) {
    let demand = |id| cluster.task(id)["demand"].clone();
    assert_eq!(demand(first), json!({ "num_cpus": 1, "resources": { "gpu": 2, "license": 1 }, "memory_bytes": null }));
    assert_eq!(demand(large), json!({ "num_cpus": 2, "resources": {}, "memory_bytes": null }));
    std::fs::write(cluster.file("go"), "").unwrap();
    for id in [first, second, large] {
        assert_eq!(cluster.wait_for_task(id)["state"], "succeeded");
    }
}

/// Checks as much of resources as there is to see where tasks run on another node.
fn are_counted_where_they_are(cluster: &Cluster) {
    let first = occupy(cluster, "first", &["--resource", "gpu=2", "--resource=license=1"]);
    let status = cluster.runner().status();
    assert_eq!((&status["cpus"]["used"], &status["cpus"]["total"]), (&json!(1), &json!(2)));
    assert_eq!(resource(&status, "gpu"), &json!({ "name": "gpu", "total": 2, "used": 2 }));
    cluster.runner().tracer(&["list", "workers"]).success().stdout_contains("1 cpu, gpu=2,license=1");
    // What fits nowhere stays in the queue, whatever it is behind.
    let second = submitted(cluster, &["submit", "task", "--no-wait", "demo:my_function", "--resource=gpu=1"]);
    let large = submitted(cluster, &["submit", "command", "--no-wait", "--num-cpus=2", "--", "true"]);
    wait_until("both are in the queue", || {
        let why = [why(cluster, second), why(cluster, large)];
        why.iter().all(|why| why.contains("it is in the queue `default`")).then_some(())
    });
    assert_eq!(cluster.runner().tasks().len(), 1);
    end_knowing_their_demands(cluster, [first, second, large]);
    assert_eq!(resource(&cluster.runner().status(), "gpu")["used"], 0);
    let spans = cluster.spans();
    let asked: Vec<_> = spans.all_named("misbehaving_tasks.waits tracer.remote_worker");
    assert_eq!(asked[0].attribute("tracer.resources"), "gpu=2,license=1");
    assert_eq!(spans.all_named("true tracer.remote_worker")[0].attribute("tracer.num_cpus"), 2);
}

#[test]
fn what_can_never_run_here_is_refused_and_nothing_else_is() {
    let cluster = Cluster::builder().arg("--resources=gpu=1").start();
    if differs!() {
        for (flag, asked) in
            [("--num-cpus=2", "2 cpus"), ("--resource=gpu=2", "1 cpu, gpu=2"), ("--resource=gpus=1", "1 cpu, gpus=1")]
        {
            let run = cluster.tracer(&["submit", "task", "demo:my_function", flag]).status(1);
            run.stderr_contains(&format!(
                "the task asks for {asked}, but one of the queue `default` may ask for 1 cpu, gpu=1\n(hint: "
            ));
        }
        let can = ["submit", "task", "demo:my_function", "--resource=gpu=1"];
        cluster.tracer(&can).success();
        cluster.tracer(&["submit", "task", "demo:my_function", "--num-cpus=0"]).success();
        return;
    }
    for (flag, expected) in [
        (
            "--num-cpus=2",
            "the task asks for 2 cpus (--num-cpus), but this head has 1, one for each of its workers\n(hint: ",
        ),
        ("--resource=gpu=2", "the task asks for `gpu=2`, but this head has 1 of it in all\n(hint: "),
        (
            "--resource=gpus=1",
            "the task asks for the resource `gpus`, which this head does not have; it has `gpu=1`\n(hint: did you mean `gpu`?)",
        ),
    ] {
        cluster.tracer(&["submit", "task", "demo:my_function", flag]).status(1).stderr_contains(expected);
    }
    cluster
        .tracer(&["submit", "task", "--resource", "gpu"])
        .status(2)
        .stderr_contains("expected NAME=AMOUNT, found `gpu`");
    assert_eq!(cluster.tasks().len(), 0);
    // A task without a slot runs beside one that has the only slot.
    occupy(&cluster, "first", &[]);
    cluster.tracer(&["submit", "task", "demo:my_function", "--num-cpus=0"]).success().stdout("1\n");

    // A head that has less lets it wait, and says why.
    let waits = submitted(&cluster, &["submit", "task", "demo:my_function", "--no-wait", "--resource=gpu=1"]);
    cluster.kill_head();
    cluster.run(cluster.command(&["start", "--head", "--num-workers=1"])).success();
    wait_until("it is told", || why(&cluster, waits).contains("which this head does not have").then_some(()));
    assert_eq!(
        why(&cluster, waits),
        "the task asks for the resource `gpu`, which this head does not have; it has none; \
         it waits for a head that is started in this place with enough"
    );
    cluster.stop().success();
}

#[test]
fn a_driver_asks_for_what_its_tasks_need_and_never_more_runs_than_there_is() {
    let cluster = Cluster::builder().workers(3).arg("--resources=gpu=2").start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let log = cluster.file("log");
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let task = driver.remote("misbehaving_tasks:notes_when").arg(&log).unwrap();
        tasks.push(task.num_cpus(1).resource("gpu", 1).unwrap().submit().unwrap());
    }
    let large = driver.remote("misbehaving_tasks:notes_when").arg(&log).unwrap();
    tasks.push(large.num_cpus(3).resource("gpu", 2).unwrap().submit().unwrap());
    let text = driver.remote("demo:my_function").resource("gpu", 0).err().expect("it is refused").to_string();
    assert_eq!(text, "expected a whole number from 1, found 0 for `gpu`");
    for task in tasks {
        driver.get::<()>(task).unwrap();
    }
    let most = most_at_a_time(&log, 61);
    assert!(most <= 2, "{most} ran at a time that need a gpu each, of which there are 2");
}

/// Returns the most of these tasks that ran at a time, by the times that they have noted.
#[track_caller]
fn most_at_a_time(log: &Path, tasks: usize) -> i64 {
    let text = std::fs::read_to_string(log).unwrap();
    let (mut now, mut most) = (0, 0);
    for line in text.lines() {
        now += if line == "begin" { 1 } else { -1 };
        most = most.max(now);
    }
    assert_eq!((text.lines().count(), now), (2 * tasks, 0));
    most
}

#[test]
fn a_task_asks_for_what_the_tasks_need_that_it_submits() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).arg("--resources=gpu=2").start();
    let log = cluster.file("log");
    cluster.submit("nested_tasks:with_needs", &[&json!(log).to_string(), "20"]).success();
    assert_eq!(most_at_a_time(&log, 20), 1, "each takes both slots");
    let tasks = cluster.runner().tasks();
    let task = tasks.into_iter().find(|task| task["target"] == "misbehaving_tasks.notes_when").unwrap();
    assert_eq!(task["demand"], json!({ "num_cpus": 2, "resources": { "gpu": 1 }, "memory_bytes": null }));
    let spans = cluster.spans();
    for span in spans.all_named("misbehaving_tasks.notes_when tracer.remote_worker") {
        assert_eq!(
            (span.attribute("tracer.num_cpus"), span.attribute("tracer.resources")),
            (&json!(2), &json!("gpu=1"))
        );
    }
    assert_eq!(resource(&cluster.runner().status(), "gpu")["used"], 0);

    // What can never be is said as it is to drivers.
    for (cpus, name, amount, expected) in [
        (
            "3",
            "gpu",
            "1",
            "the task asks for 3 cpus (--num-cpus), but this head has 2, one for each of its workers\n(hint: ",
        ),
        ("1", "gpu", "3", "the task asks for `gpu=3`, but this head has 2 of it in all\n(hint: "),
        ("1", "gpus", "1", "which this head does not have; it has `gpu=2`\n(hint: did you mean `gpu`?)"),
        ("1", "gpu", "0", "expected a whole number from 1, found 0 for `gpu`"),
        ("1", "cpu", "1", "`cpu` is no resource by name\n(hint: "),
    ] {
        let arguments = [cpus, &json!(name).to_string(), amount];
        let said = cluster.submit("nested_tasks:with_needs_beyond", &arguments).success().json();
        assert!(said.as_str().unwrap().contains(expected), "{said}");
    }

    let said = |mebibytes, bound| cluster.submit("nested_tasks:with_a_bound", &[mebibytes, bound]).success().json();
    assert_eq!(said("20", "96"), json!(["", "20"]));
    let failed = said("400", "96");
    assert_eq!(failed[0], "oom");
    assert!(failed[1].as_str().unwrap().contains("out of memory: it may take 96 MiB"), "{failed}");
    let refused = said("1", "1");
    assert_eq!(refused[1], "the bound on its memory: expected at least 32 MiB, found 1 MiB");
}

#[test]
fn a_bound_on_memory_is_never_lost_where_tasks_run_in_the_process_that_waits_for_them() {
    let cluster = Cluster::builder().arg("--max-processes=1").start();
    let said = |mebibytes, bound| cluster.submit("nested_tasks:with_a_bound", &[mebibytes, bound]).success().json();
    let refused = said("20", "96");
    assert_eq!(refused[0], "no_worker");
    let expected = "it may take 96 MiB of memory (--memory), so it needs a process of its own, but all 1 worker process that \
                    there may be wait for other tasks\n(hint: start the head with a higher --max-processes)";
    assert!(refused[1].as_str().unwrap().ends_with(expected), "{refused}");
    // Without a bound of its own it runs there, and slots and resources are counted.
    let needs = cluster.submit("nested_tasks:with_needs_beyond", &["2", "\"gpu\"", "1"]).success().json();
    assert!(needs.as_str().unwrap().contains("the task asks for 2 cpus"), "{needs}");
    assert_eq!(cluster.submit("nested_tasks:sum_of_squares", &["3"]).success().stdout_text(), "5\n");
    assert_eq!(cluster.worker_pids().len(), 1);
}

/// Returns true if this machine lets a head make control groups, which depends on who runs the tests and where.
fn is_held_by_kernel(cluster: &Cluster) -> bool {
    cluster.runner().status()["worker_memory"]["is_held_by_kernel"].as_bool().expect("it is said")
}

/// Takes more memory than is allowed: that fails by this name, and the head and the others go on.
fn memory_is_bounded(cluster: &Cluster) {
    let may = "out of memory: it may take 96 MiB";
    cluster.submit("misbehaving_tasks:takes_memory", &["20"]).success().stdout("20\n");
    cluster.submit("misbehaving_tasks:keeps_memory", &["400"]).status(1).stderr_contains(may);
    let failure = cluster.task(2)["failure"].clone();
    assert_eq!((&failure["reason"], &failure["limit_bytes"]), (&json!("out_of_memory"), &json!(96 << 20)));
    let peak = failure["peak_bytes"].as_u64().expect("it is known");
    assert!((90 << 20..500 << 20).contains(&peak), "{peak}");
    // What a command starts counts.
    let hungry = "head -c 400m /dev/zero | tail";
    for script in [hungry.to_owned(), format!("({hungry}) & wait $!")] {
        let command = ["submit", "command", "--", "sh", "-c", &script];
        cluster.tracer(&command).status(1).stderr_contains(may);
    }
    // Where the head looks, it sees what a task keeps; one that gives it back at once may be gone before.
    // Its own bound is lower, and is its own failure, which may be tried again.
    let arguments = ["submit", "task", "--memory=64MiB", "--retries=1", "--retry-on=oom", "--retry-backoff=1ms"];
    let run = cluster.tracer(&[&arguments[..], &["misbehaving_tasks:keeps_memory", "85"]].concat()).status(1);
    run.stderr_contains("out of memory: it may take 64 MiB");
    let task = cluster.tasks()[0].clone();
    assert_eq!((&task["attempt"], &task["demand"]["memory_bytes"]), (&json!(2), &json!(64 << 20)));
    let spans = cluster.spans();
    let attempt = spans.attempt_of(task["id"].as_u64().unwrap());
    assert_eq!(attempt.attribute("error.type"), "oom");
    assert_eq!(*attempt.attribute("tracer.memory_limit_bytes"), 64 << 20);
    // The next one in the same worker has its own bound.
    cluster.submit("misbehaving_tasks:takes_memory", &["70"]).success().stdout("70\n");
    // A worker that somebody kills has not run out of memory.
    for (id, pid) in (1..).zip(cluster.worker_pids()) {
        super::support::kill(pid, rustix::process::Signal::KILL);
        wait_until("it is replaced", || (!cluster.worker_pids().contains(&pid)).then_some(()));
        let text = format!("worker {id} (pid {pid}) was killed");
        assert!(!cluster.runner().head_log().contains(&format!("{text}, because")), "{}", cluster.runner().head_log());
    }
    cluster.submit("demo:my_function", &[]).success();
}

#[test]
fn memory_is_bounded_by_the_kernel_where_that_is_allowed() {
    let cluster = Cluster::builder().hook(HOOK).arg("--worker-memory=96MiB").start();
    if !is_held_by_kernel(&cluster) {
        return skip("control groups", "the head could make none for its workers");
    }
    let status = cluster.runner().tracer(&["status"]).success();
    status.stdout_contains("at most 96 MiB for each worker, held by a control group\n");
    memory_is_bounded(&cluster);
}

#[test]
fn memory_is_bounded_by_the_head_where_there_are_no_control_groups() {
    let bounded = Cluster::builder().hook(HOOK).arg("--worker-memory=96MiB");
    let cluster = bounded.env("TRACER_TEST_WITHOUT", "control_groups").start();
    assert!(!is_held_by_kernel(&cluster));
    let status = cluster.runner().tracer(&["status"]).success();
    status.stdout_contains("at most 96 MiB for each worker, watched by the head\n");
    memory_is_bounded(&cluster);
}

#[test]
fn a_bound_on_memory_that_cannot_be_is_refused() {
    let (cluster, run) = Cluster::builder().arg("--worker-memory=1MiB").try_start();
    run.status(2).stderr_contains("`--worker-memory`: expected at least 32 MiB, found 1 MiB");
    cluster.start_command(&[]);
    let run = cluster.run(cluster.command(&["start", "--head", "--worker-memory", "2G"])).status(2);
    run.stderr_contains("expected a size such as `500MiB` or `2GiB`, found `2G`");
}
