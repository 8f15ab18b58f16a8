//! Commands in queues: which nodes run them, and what is said where none does.

use serde_json::{Value, json};
use tracer::{EmbeddedHead, Init};

use super::engine::origin;
use crate::support::{Api, Broker, Cluster, HOOK, Run, wait_until};

fn holder(broker: &Broker, further: &[&str]) -> Cluster {
    let node = Cluster::builder().workers(1).hook(HOOK).arg("--address").arg(broker.address()).arg("--queue=default");
    further.iter().fold(node, |node, argument| node.arg(argument)).start()
}

#[track_caller]
fn submit(origin: &Cluster, further: &[&str]) -> Run {
    origin.tracer(&[&["submit", "command", "--queue=default"], further].concat())
}

fn nodes(cluster: &Cluster) -> Value {
    cluster.tracer(&["list", "nodes", "--format=json"]).success().json()
}

fn explanation(cluster: &Cluster, id: u64) -> String {
    cluster.tracer(&["explain", &id.to_string()]).success().stdout_text()
}

#[test]
fn a_queue_takes_commands_once_a_node_runs_some_and_no_other_node_ever_does() {
    let Some(broker) = Broker::start() else { return };
    let (origin, plain) = (origin(&broker), holder(&broker, &[]));
    let address = broker.address();
    // Nobody has ever run some.
    submit(&origin, &["--", "touch", "made"]).status(1).stderr(&format!(
        "error: the head refused: the queue `default` in the engine at `{address}` takes no commands: no node that serves it runs some\n\
         (hint: start one with `tracer start --address {address} --queue default --shared-commands`)\n"
    ));
    assert!(!origin.file("made").exists());

    let runs_them = holder(&broker, &["--shared-commands"]);
    for _ in 0..5 {
        submit(&origin, &["--", "sh", "-c", "echo $TRACEPARENT >> ran"]).success();
    }
    let ran = std::fs::read_to_string(origin.file("ran")).expect("they ran in the folder of the submitter");
    assert_eq!(ran.lines().count(), 5);
    assert_eq!((plain.tasks().len(), runs_them.tasks().len()), (0, 5), "the other node takes none");
    origin.submit("wordcount:count", &["\"a b\"", "--queue=default"]).success().stdout("2\n");

    // One that waits for a node that is gone is nobody's, and is said to be.
    let name = runs_them.status()["node_id"].clone();
    let id = |run: Run| run.success().stdout_text().trim().parse::<u64>().expect("an id");
    runs_them.stop().success();
    let waits = id(submit(&origin, &["--no-wait", "--", "touch", "late"]));
    wait_until("its node counts as gone", || {
        let nodes = nodes(&origin);
        let of_name = nodes["nodes"].as_array().and_then(|nodes| nodes.iter().find(|node| node["node_id"] == name));
        of_name.is_none_or(|node| node["is_alive"] == false).then_some(())
    });
    let plain_name = plain.status()["node_id"].as_str().expect("it has a name").to_owned();
    let why = explanation(&origin, waits);
    let said = format!(
        "it is a command, and the living nodes that serve the queue `default` run functions alone: {plain_name}"
    );
    assert!(why.contains(&said) && why.contains("--queue default --shared-commands"), "{why}");
    let queue = nodes(&origin)["queues"][0].clone();
    assert_eq!((&queue["waiting_commands"], &queue["commands_run_by"]), (&json!(1), &json!([])), "{queue}");
    origin.tracer(&["status"]).success().stdout_contains(&format!("served by {plain_name}; 1 command for nobody"));
    let doctor = origin.tracer(&["doctor"]).status(6);
    doctor.stdout_contains("the queue `default` has 1 command, and no living node that serves it runs commands");
    assert!(!origin.file("late").exists());

    let again = holder(&broker, &["--shared-commands"]);
    assert_eq!(origin.wait_for_task(waits)["state"], "succeeded");
    assert!(origin.file("late").exists() && plain.tasks().iter().all(|task| task["target"] == "wordcount.count"));
    again.tracer(&["status"]).success().stdout_contains("serves default, commands too");
}

#[test]
fn programs_submit_commands_to_queues_too() {
    let Some(broker) = Broker::start() else { return };
    let (origin, _holder) = (origin(&broker), holder(&broker, &["--shared-commands"]));
    let init = Init::new().temp_dir(origin.temp_dir()).embedded(EmbeddedHead::Never).untraced();
    let cluster = init.init().expect("its head runs");
    let made = origin.file("made");
    cluster.command("touch").arg(&made).queue("default").submit().unwrap().get::<()>().unwrap();
    assert!(made.exists());
    let error = cluster.command("false").queue("default").submit().unwrap().get::<()>().unwrap_err();
    assert_eq!(error.error_type(), "exit:1");
}

#[test]
fn commands_over_http_go_into_queues_and_are_refused_as_those_of_the_command_line_are() {
    let Some(broker) = Broker::start() else { return };
    let origin = Cluster::builder().workers(0).hook(HOOK).arg("--address").arg(broker.address());
    let origin = origin.arg("--http").arg("127.0.0.1:0").arg("--http-commands").start();
    let _plain = holder(&broker, &[]);
    let api = Api::of(&origin);
    let made = origin.file("made");
    let body = |command: &[&str]| json!({ "command": command, "cwd": "/", "queue": "default" });
    let touch = body(&["touch", &made.to_string_lossy()]);
    // The words are those of the command line.
    let problem = api.submission("", &touch).send().problem(422, "refused");
    let text = problem["detail"].as_str().expect("it says why");
    assert!(text.contains("the queue `default` in the engine at") && text.contains("takes no commands"), "{problem}");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("--shared-commands")), "{problem}");

    let runs_them = holder(&broker, &["--shared-commands"]);
    let task = api.submission("?wait_ms=60000", &touch).send().status(200).json();
    assert_eq!(task["state"], "succeeded", "{task}");
    assert!(made.exists());
    let failed = api.submission("?wait_ms=60000", &body(&["sh", "-c", "exit 3"])).send().status(200).json();
    assert_eq!((&failed["state"], &failed["failure"]["code"]), (&json!("failed"), &json!(3)), "{failed}");
    assert_eq!(runs_them.tasks().len(), 2);
}

#[test]
fn what_it_means_is_said_at_the_start_and_where_it_means_nothing_it_is_refused() {
    let Some(broker) = Broker::start() else { return };
    let address = format!("--address={}", broker.address());
    let (_node, run) = Cluster::builder().arg(&address).arg("--queue=default").arg("--shared-commands").try_start();
    run.success().stderr_contains(
        "\n  commands  whoever reaches the engine, which asks for no credentials, runs any program here, as you (--shared-commands)\n",
    );
    let idle = Cluster::builder().arg(&address).arg("--shared-commands").try_start().1;
    idle.status(2).stderr_contains(
        "`--shared-commands`: takes commands from the queues of this node, and it serves none\n(hint: ",
    );
    let alone = Cluster::builder().arg("--shared-commands").try_start().1;
    alone
        .status(2)
        .stderr_contains("`--shared-commands`: needs an engine that shares the tasks, and --address names none\n");
}

#[test]
fn a_command_that_is_too_large_for_a_message_is_refused() {
    let Some(broker) = Broker::start() else { return };
    let (origin, _holder) = (origin(&broker), holder(&broker, &["--shared-commands"]));
    let large = "x".repeat(100_000);
    let (five, six) = (vec![&*large; 5], vec![&*large; 6]);
    submit(&origin, &[&["--", "true"][..], &*five].concat()).success();
    submit(&origin, &[&["--", "true"][..], &*six].concat()).status(1).stderr_contains(
        "a command of a queue, with its arguments and variables, takes 586 KiB, but at most 512 KiB are taken\n(hint: ",
    );
}
