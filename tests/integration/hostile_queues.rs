//! Queues into which anybody has written anything: what cannot be read and what is not trusted is put aside, and all real tasks run.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nkeys::KeyPair;
use serde_json::{Value, json};

use super::engine::{agent_pid, holder, origin};
use crate::support::{Broker, Builder, Cluster, wait_until};

/// Returns how many messages the broker keeps that were put aside.
fn put_aside(broker: &Broker) -> u64 {
    broker.jetstream("STREAM.INFO.TRACER_default_DEAD", &Value::Null)["state"]["messages"].as_u64().unwrap_or(0)
}

/// Returns how many messages a queue has.
fn in_queue(broker: &Broker) -> u64 {
    let of = |stream: &str| {
        broker.jetstream(&format!("STREAM.INFO.TRACER_default_{stream}"), &Value::Null)["state"]["messages"].as_u64()
    };
    of("Q_default").unwrap_or(0) + of("Q2_default").unwrap_or(0)
}

/// Returns the headers of a message that was put aside, by its number.
fn headers(broker: &Broker, number: u64) -> String {
    let message = broker.jetstream("STREAM.MSG.GET.TRACER_default_DEAD", &json!({ "seq": number }));
    let text = message["message"]["hdrs"].as_str().expect("it has headers");
    String::from_utf8(base64(text)).expect("headers are text")
}

fn base64(text: &str) -> Vec<u8> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.bytes().filter(|digit| *digit != b'=').map(|digit| value(digit).into()).collect();
    let of_chunk = |chunk: &[u32]| {
        let bits = chunk.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - chunk.len()));
        bits.to_be_bytes()[1..chunk.len()].to_vec()
    };
    digits.chunks(4).flat_map(of_chunk).collect()
}

#[test]
fn rubbish_in_a_queue_is_put_aside_with_its_reason_and_every_real_task_runs() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let place = a.status()["engine"]["place_id"].as_str().expect("it has a place").to_owned();
    let own_place = b.status()["engine"]["place_id"].as_str().expect("it has a place").to_owned();
    let submit = || {
        let run = a.tracer(&["submit", "task", "--queue", "default", "--no-wait", "demo:my_function"]).success();
        run.stdout_text().trim().parse::<u64>().expect("an id")
    };
    // A message of every kind of nobody's, a few after each real task. Ids go on far above those of the real ones.
    let (mut ids, mut rubbish) = (Vec::new(), 0);
    for round in 0_u32..8 {
        ids.push(submit());
        let valid_id = format!("{place}-{}", 1000 + round);
        for (name, payload) in [
            (format!("no-id-{round}"), &b"rubbish"[..]),
            (valid_id.clone(), b"rubbish"),
            (format!("{place}-{}", 2000 + round), b""),
            (format!("{place}-{}", 3000 + round), b"\x01\x00"),
            (format!("{place}-{}", 4000 + round), b"\x02\x00\x00"),
            (format!("{place}-{}", 5000 + round), b"\x03\xff\xff\xff\xff"),
        ] {
            let tier = if round % 2 == 0 { "q" } else { "q2" };
            broker.publish(None, &format!("tracer.default.{tier}.default.{name}"), payload);
            rubbish += 1;
        }
        // What is no message of a queue is hostile too.
        for subject in [
            format!("tracer.default.to.{place}"),
            format!("tracer.default.to.{own_place}"),
            format!("tracer.default.record.task.{place}.{}", 1000 + round),
            format!("tracer.default.record.bundle.{place}.{}", 1000 + round),
            format!("tracer.default.record.node.{round}"),
        ] {
            broker.publish(None, &subject, &[7; 2000][..(round as usize * 250)]);
        }
    }
    for id in ids {
        let task = a.wait_for_task(id);
        assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(1)), "{task}");
    }
    wait_until("all of it is put aside", || (put_aside(&broker) == rubbish).then_some(()));
    wait_until("the queue is empty", || (in_queue(&broker) == 0).then_some(()));
    let counted = wait_until("all is counted", || {
        let status = b.status();
        (status["engine"]["put_aside"] == rubbish).then_some(status)
    });
    let warnings = counted["warnings"].to_string();
    assert!(warnings.contains(&format!("{rubbish} messages of queues were put aside")), "{warnings}");
    assert!(warnings.contains("TRACER_default_DEAD"), "{warnings}");
    let all: String = (1..=rubbish).map(|number| headers(&broker, number)).collect();
    for reason in ["its subject has no id of a task", "it cannot be read: a message ends too early", "its signature"] {
        assert!(all.contains(&format!("Tracer-Reason: {reason}")), "{reason}: {all}");
    }
    assert!(all.contains(&format!("Tracer-Name: {place}-2007")) && all.contains("Tracer-Bytes: 7"), "{all}");
    let log = b.head_log();
    let said = log.lines().filter(|line| line.contains("is put aside")).count();
    assert_eq!(said, 1, "it is said once: {log}");
    let examined = a.tracer(&["doctor", "--address", &broker.address()]);
    examined.stdout_contains(&format!("{rubbish} messages of queues were put aside"));
    assert_eq!(a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success().stdout_text(), "1\n");
}

/// A user with an nkey, whose seed is in a file.
struct User {
    key: KeyPair,
    flag: String,
}

impl User {
    fn new(folder: &Path, name: &str) -> User {
        let key = KeyPair::new_user();
        let path = folder.join(format!("{name}.nk"));
        fs::write(&path, key.seed().expect("it is new")).expect("the folder is ours");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
        User { key, flag: format!("--credentials={}", path.display()) }
    }

    fn seed(&self) -> String {
        self.key.seed().expect("it is new")
    }
}

fn node(broker: &Broker, user: &User, flags: &[&str]) -> Builder {
    let builder = Cluster::builder().arg("--address").arg(broker.address()).arg(&user.flag);
    flags.iter().fold(builder, |builder, flag| builder.arg(flag))
}

/// Starts a broker with these users, or skips the test.
fn broker_of(users: &[&User]) -> Option<Broker> {
    let users: Vec<_> = users.iter().map(|user| format!("{{ nkey: {} }}", user.key.public_key())).collect();
    Broker::start_configured(&format!("authorization {{ users: [ {} ] }}\n", users.join(", ")))
}

#[test]
fn nodes_with_trusted_keys_run_what_those_have_signed_and_put_everything_else_aside() {
    let folder = tempfile::tempdir().expect("a folder for credentials");
    let [trusted, other, runner] = ["trusted", "other", "runner"].map(|name| User::new(folder.path(), name));
    let Some(broker) = broker_of(&[&trusted, &other, &runner]) else { return };
    let key = format!("--trusted-key={}", trusted.key.public_key());
    // Whoever serves a queue and trusts everybody is told what that means.
    let (_open, started) = node(&broker, &runner, &["--queue=open"]).workers(1).try_start();
    started
        .success()
        .stderr_contains("whoever may publish to the queues")
        .stderr_contains("(hint: `--trusted-key KEY`");
    let (b, started) = node(&broker, &runner, &["--queue=default", &key]).workers(2).try_start();
    assert!(!started.success().stderr_text().contains("whoever may publish"));
    let a = node(&broker, &trusted, &[]).workers(0).start();
    agent_pid(&b);
    let submit = |cluster: &Cluster, flags: &[&str]| {
        cluster.tracer(&[&["submit", "task", "--queue", "default"], flags, &["demo:my_function"]].concat())
    };
    assert_eq!(submit(&a, &[]).success().stdout_text(), "1\n");
    assert_eq!(put_aside_of(&b), 0);

    // Another one's are refused, and whoever submits them hears why.
    let c = node(&broker, &other, &[]).workers(0).start();
    submit(&c, &[])
        .status(1)
        .stderr_contains(&format!("tasks are signed by {}, which the node of place", other.key.public_key()))
        .stderr_contains("(hint: start that node with `--trusted-key");
    let refused = c.wait_for_task(1);
    assert_eq!(refused["state"], "failed", "{refused}");
    c.tracer(&["explain", "1"]).success().stdout_contains("does not trust");
    wait_until("it is counted", || (put_aside_of(&b) == 1).then_some(()));

    // A message that was signed, as the broker has it: altered, and under other ids and in another queue.
    let (holding, [started, go]) = super::engine::submit_blocked(&a, &[], "held");
    b.wait_for_file(started.as_ref());
    let place = a.status()["engine"]["place_id"].as_str().expect("it has a place").to_owned();
    let mut client = broker.sign_in(&runner.seed());
    let subject = format!("tracer.default.q.default.{place}-{holding}");
    let question = json!({ "last_by_subj": subject }).to_string();
    let answer = client.request("$JS.API.STREAM.MSG.GET.TRACER_default_Q_default", question.as_bytes());
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    let signed = base64(answer["message"]["data"].as_str().expect("the queue still has it"));
    assert_eq!(signed[0], 3, "it is signed");
    let mut altered = signed.clone();
    *altered.last_mut().expect("it has bytes") ^= 1;
    let unsigned = &signed[1 + 4 + 56 + 64..];
    for (name, payload) in [
        (format!("{place}-7001"), &signed[..]),
        (format!("{place}-7002"), &altered),
        (format!("{place}-7003"), unsigned),
    ] {
        client.publish(&format!("tracer.default.q.default.{name}"), payload);
    }
    wait_until("all are put aside", || (put_aside_of(&b) == 4).then_some(()));
    fs::write(&go, "").expect("the folder is ours");
    assert_eq!(a.wait_for_task(holding)["state"], "succeeded");
    assert_eq!(submit(&a, &[]).success().stdout_text(), "1\n", "and nothing stands still");
    assert_eq!(b.tasks().len(), 3, "what was signed, and nothing else");
    let warnings = b.status()["warnings"].to_string();
    assert!(warnings.contains("4 messages of queues were put aside"), "{warnings}");
}

fn put_aside_of(cluster: &Cluster) -> u64 {
    cluster.status()["engine"]["put_aside"].as_u64().expect("it is counted")
}

#[test]
fn a_message_of_a_signed_task_that_somebody_replaces_is_put_again_and_runs() {
    let folder = tempfile::tempdir().expect("a folder for credentials");
    let [trusted, runner] = ["trusted", "runner"].map(|name| User::new(folder.path(), name));
    let Some(broker) = broker_of(&[&trusted, &runner]) else { return };
    let key = format!("--trusted-key={}", trusted.key.public_key());
    // Makes the queue, and serves it no more.
    node(&broker, &runner, &["--queue=default", &key]).workers(1).start().tracer(&["stop"]).success();
    let a = node(&broker, &trusted, &[]).workers(0).start();
    agent_pid(&a);
    let run = a.tracer(&["submit", "task", "--queue", "default", "--no-wait", "demo:my_function"]).success();
    let id: u64 = run.stdout_text().trim().parse().expect("an id");
    let place = a.status()["engine"]["place_id"].as_str().expect("it has a place").to_owned();
    broker.publish(Some(&runner.seed()), &format!("tracer.default.q.default.{place}-{id}"), b"\x01of somebody else");
    let b = node(&broker, &runner, &["--queue=default", &key]).workers(1).start();
    let task = a.wait_for_task(id);
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(1)), "{task}");
    assert_eq!(put_aside_of(&b), 1);
}

#[test]
fn tasks_that_are_not_signed_are_refused_by_name_and_wrong_keys_are_told() {
    let Some(broker) = Broker::start() else { return };
    let key = format!("--trusted-key={}", KeyPair::new_user().public_key());
    let (b, started) =
        Cluster::builder().arg("--address").arg(broker.address()).arg("--queue=default").arg(&key).try_start();
    started.success().stderr_contains("tasks that are submitted here are not signed");
    agent_pid(&b);
    let a = origin(&broker);
    a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"])
        .status(1)
        .stderr_contains("runs nothing but what its trusted keys have signed, and this node's tasks are not signed")
        .stderr_contains("(hint: start this node with `--credentials FILE`");
    wait_until("it is counted", || (put_aside_of(&b) == 1).then_some(()));
    assert_eq!(b.tasks().len(), 0);

    let refused = |flags: &[&str]| {
        let builder = flags.iter().fold(Cluster::builder(), |builder, flag| builder.arg(flag));
        builder.try_start().1.status(2)
    };
    let seed = KeyPair::new_user().seed().expect("it is new");
    let of_seed = refused(&["--address", &broker.address(), &format!("--trusted-key={seed}")]);
    of_seed.stderr_contains("found a seed, which nobody else may know");
    refused(&["--address", &broker.address(), "--trusted-key=UABC"])
        .stderr_contains("expected the public key of a user");
    refused(&[&key]).stderr_contains("`--trusted-key`: needs an engine");
}
