//! `--priority`: which of the tasks that wait begins first.

use serde_json::json;

use crate::support::Cluster;

#[test]
fn of_tasks_that_wait_the_one_of_higher_priority_begins_first_and_it_is_said() {
    let cluster = Cluster::untraced();
    let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
    cluster.tracer(&["submit", "task", "--no-wait", "misbehaving_tasks:waits", &started, &go]).success();
    cluster.wait_for_file(&cluster.file("started"));
    let order = cluster.file("order");
    let submit = |name: &str, flag: &str| {
        let script = format!("echo {name} >> {}", order.display());
        cluster.tracer(&["submit", "command", "--no-wait", flag, "--", "sh", "-c", &script]).success();
    };
    submit("plain", "--priority=0");
    submit("low", "--priority=-7");
    submit("high", "--priority=7");
    submit("higher", "--priority=100");

    let tasks = cluster.tracer(&["list", "tasks", "--format", "json"]).success().json();
    let options: Vec<_> = tasks["tasks"].as_array().unwrap().iter().map(|task| task["options"].clone()).collect();
    assert_eq!(
        options,
        [json!({"priority": 100}), json!({"priority": 7}), json!({"priority": -7}), json!(null), json!(null)]
    );
    cluster.tracer(&["list", "tasks"]).success().stdout_contains("waiting (priority 7)");
    cluster
        .tracer(&["explain", "4"])
        .success()
        .stdout_contains("options    priority 7\n")
        .stdout_contains("1 task is before it in the queue");

    std::fs::write(cluster.file("go"), "").unwrap();
    (2..=5).for_each(|task| drop(cluster.wait_for_task(task)));
    assert_eq!(std::fs::read_to_string(order).unwrap(), "higher\nhigh\nplain\nlow\n");
}

#[test]
fn a_priority_that_cannot_be_is_refused() {
    let cluster = Cluster::untraced();
    let refused = cluster.tracer(&["submit", "task", "--priority", "101"]).status(2);
    refused.stderr_contains("expected a whole number from -100 to 100, found `101`");
    assert_eq!(cluster.tracer(&["list", "tasks", "--format", "json"]).success().json()["tasks"], json!([]));
}

#[test]
fn the_span_of_an_attempt_says_the_priority_of_its_task_if_it_has_one() {
    let cluster = Cluster::traced();
    for flags in [&["--priority", "5"][..], &[]] {
        let command = [&["submit", "command"], flags, &["--", "true"]].concat();
        cluster.tracer(&command).success();
    }
    let spans = cluster.spans();
    for (task, priority) in [(1, json!(5)), (2, json!(null))] {
        let attempt = spans.attempt_of(task);
        assert_eq!(*attempt.attribute("tracer.priority"), priority, "{}", attempt.value);
    }
}
