//! Engines that `tracer engine` sets up: configuration files that a real server takes, roles that may do what they are for and nothing else, and what
//! `tracer doctor` says of them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};
use tracer::Driver;

use super::engine_access::address_beyond_loopback;
use crate::support::{
    Broker, Certificates, Cluster, HOOK, Run, free_port, free_ports_of_servers, skip, wait_until, wait_until_within,
};

const ROLES: [&str; 4] = ["submitter", "node", "viewer", "admin"];

/// A folder for commands, in which no head runs.
fn commands() -> Cluster {
    Cluster::builder().build()
}

/// Writes the configuration of one server with roles, and starts it.
fn set_up(commands: &Cluster, flags: &[&str]) -> Option<Broker> {
    let port = free_ports_of_servers();
    let (port_text, store) = (port.to_string(), commands.file("store").display().to_string());
    let version = Broker::version_of_tests()?;
    let command = ["engine", "config", "--output", "nats", "--port", &port_text, "--store", &store];
    commands.tracer(&[&command[..], &["--server-version", &version], flags].concat()).success();
    Broker::start_file(&commands.file("nats/tracer.conf"), port)
}

fn seed(commands: &Cluster, role: &str) -> String {
    let text = fs::read_to_string(commands.file(&format!("nats/{role}.nk"))).expect("it was written");
    text.lines().find(|line| !line.starts_with('#')).expect("it has a seed").to_owned()
}

fn credentials(commands: &Cluster, role: &str) -> String {
    format!("--credentials={}", commands.file(&format!("nats/{role}.nk")).display())
}

fn doctor(commands: &Cluster, broker: &Broker, flags: &[&str]) -> Run {
    commands.tracer(&[&["doctor", "--address", &broker.address()], flags].concat())
}

/// Returns the kinds of what the doctor finds.
fn findings(run: &Run) -> Vec<String> {
    let findings = run.json()["findings"].as_array().expect("a list").clone();
    let text = |finding: &Value, key: &str| finding[key].as_str().expect("a text").to_owned();
    assert!(findings.iter().all(|finding| !text(finding, "text").is_empty() && !text(finding, "hint").is_empty()));
    findings.iter().map(|finding| text(finding, "code")).collect()
}

#[test]
fn each_role_may_do_what_it_is_for_and_nothing_else_on_a_real_server() {
    let commands = commands();
    let Some(broker) = set_up(&commands, &["--roles"]) else { return };
    let address = broker.address();
    let init = |role: &str| {
        let credentials = credentials(&commands, role);
        commands.tracer(&[
            "engine",
            "init",
            "--address",
            &address,
            &credentials,
            "--queue",
            "default",
            "--format",
            "json",
        ])
    };
    for role in ["submitter", "node", "viewer"] {
        init(role)
            .status(1)
            .stdout_contains("do not permit to publish to \\\"$JS.API.STREAM.CREATE.TRACER_default_RECORD\\\"")
            .stdout_contains("tracer engine init --address ");
    }
    let made = init("admin").success().json();
    assert_eq!(made["replicas"], 1);
    let is = |made: &Value| made["streams"].as_array().unwrap().iter().map(|row| row["is"].clone()).collect::<Vec<_>>();
    assert_eq!(is(&made), ["made"; 6]);
    assert_eq!(is(&init("admin").success().json()), ["kept"; 6]);

    // Command by command, with nothing of tracer in between: who may is behind each.
    let (submitters, nodes, all, admin) =
        (&["submitter", "node", "admin"][..], &["node", "admin"][..], &ROLES[..], &["admin"][..]);
    let of_stream = |change: &str, stream: &str| format!("$JS.API.STREAM.{change}.TRACER_default_{stream}");
    let mut commands_of = vec![
        ("tracer.default.q.default.a-1".to_owned(), submitters),
        ("tracer.default.q2.default.a-1".into(), submitters),
        ("tracer.default.qc.default.a-1".into(), submitters),
        ("tracer.default.record.task.a.1".into(), submitters),
        ("tracer.default.record.bundle.a.1".into(), submitters),
        ("tracer.default.record.node.a".into(), submitters),
        ("tracer.default.key.a".into(), submitters),
        ("tracer.default.value.a.1.0.d".into(), submitters),
        ("tracer.default.to.a".into(), submitters),
        ("tracer.default.dead.default".into(), nodes),
        (of_stream("PURGE", "VALUE"), submitters),
        ("$JS.API.CONSUMER.CREATE.TRACER_default_RECORD.x.tracer.default.record.*.a.*".into(), submitters),
        ("$JS.API.CONSUMER.CREATE.TRACER_default_RECORD.x.tracer.default.record.node.a".into(), admin),
        ("$JS.API.CONSUMER.CREATE.TRACER_default_RECORD".into(), admin),
        ("$JS.API.CONSUMER.CREATE.TRACER_default_Q_default.x".into(), admin),
        ("$JS.API.CONSUMER.CREATE.TRACER_default_VALUE.x.tracer.default.value.>".into(), admin),
        ("$JS.API.CONSUMER.DURABLE.CREATE.TRACER_default_Q_default.w".into(), admin),
        ("$JS.API.CONSUMER.DELETE.TRACER_default_Q_default.x".into(), admin),
        ("$JS.API.CONSUMER.MSG.NEXT.TRACER_default_Q_default.w".into(), nodes),
        ("$JS.API.CONSUMER.MSG.NEXT.TRACER_default_Q2_default.w".into(), nodes),
        ("$JS.API.CONSUMER.MSG.NEXT.TRACER_default_QC_default.w".into(), nodes),
        ("$JS.ACK.TRACER_default_Q_default.w.1.1.1.1.0".into(), nodes),
        ("$JS.API.CONSUMER.INFO.TRACER_default_Q_default.w".into(), all),
        ("$JS.API.STREAM.NAMES".into(), all),
        ("$JS.API.STREAM.LIST".into(), all),
        ("$JS.API.INFO".into(), all),
        (of_stream("INFO", "RECORD"), all),
        (of_stream("MSG.GET", "RECORD"), all),
        ("$JS.API.DIRECT.GET.TRACER_default_VALUE.tracer.default.value.a.1.0.d".into(), all),
        ("elsewhere".into(), &[]),
        ("tracer.other.q.default.a-1".into(), &[]),
        ("$SYS.REQ.SERVER.PING".into(), &[]),
    ];
    for change in ["CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN"] {
        commands_of.push((of_stream(change, "none"), admin));
    }
    // At last an admin empties what was said before.
    for change in ["UPDATE", "MSG.DELETE", "PURGE"] {
        commands_of.extend(
            ["RECORD", "KEY", "DEAD", "Q_default", "Q2_default"].map(|stream| (of_stream(change, stream), admin)),
        );
    }
    for role in ROLES {
        let mut client = broker.sign_in(&seed(&commands, role));
        for (subject, who) in &commands_of {
            assert_eq!(client.may_publish(subject), who.contains(&role), "{role}: {subject}");
        }
        if role != "admin" {
            assert!(!client.may_publish(&of_stream("DELETE", "RECORD")), "{role}");
        }
        assert_eq!(client.may_subscribe("tracer.default.to.a"), role != "viewer", "{role}");
        for subject in [">", "_INBOX.>", "_INBOX.x", "$JS.API.>", "tracer.default.q.>"] {
            let may = role == "admin" && subject == "tracer.default.q.>";
            assert_eq!(client.may_subscribe(subject), may, "{role}: {subject}");
        }
    }

    // The same as this program sees it: of no role less than it needs, of a lower one what it lacks.
    let order = ["viewer", "submitter", "node", "admin"];
    for (rank, role) in order.iter().enumerate() {
        for (wanted_rank, wanted) in order.iter().enumerate() {
            let credentials = credentials(&commands, role);
            let run = doctor(&commands, &broker, &[&credentials, "--role", wanted, "--format", "json"]);
            let found = findings(&run);
            assert_eq!(found.is_empty(), wanted_rank <= rank, "{role} as {wanted}: {found:?}");
            assert!(found.iter().all(|code| code == "permission"), "{found:?}");
            run.status(if found.is_empty() { 0 } else { 1 });
        }
    }

    // And what they are for works: a node and a submitter make nothing, and share tasks with all that belongs to them.
    let joins = |role: &str, workers: usize, flags: &[&str]| {
        let builder = Cluster::builder().workers(workers).hook(HOOK).arg("--address").arg(&address);
        flags.iter().fold(builder.arg(credentials(&commands, role)), |builder, flag| builder.arg(flag))
    };
    let refused = |role: &str, flags: &[&str], missing: &str| {
        joins(role, 1, flags)
            .try_start()
            .1
            .status(1)
            .stderr_contains(&format!("do not permit to publish to \"{missing}"));
    };
    refused("submitter", &["--queue=default"], "$JS.API.CONSUMER.MSG.NEXT.*.w\"");
    refused("viewer", &[], "tracer.default.q.>\"");
    refused("node", &["--queue=other"], "$JS.API.STREAM.CREATE.TRACER_default_Q_other\"");
    let (b, a) = (joins("node", 2, &["--queue=default=2"]).start(), joins("submitter", 0, &[]).start());
    let run = a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success();
    assert_eq!(run.stdout_text(), "1\n");
    let large = "x".repeat(600_000);
    let mut driver = Driver::connect(&a.temp_dir()).expect("its head runs");
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&large).unwrap().submit().unwrap();
    assert!(driver.get::<String>(echoed).unwrap() == large, "it went through the engine, and back");
    let followed = ["submit", "task", "--queue", "default", "misbehaving_tasks:prints_bytes", "[104,105,10]"];
    a.tracer(&followed).success().stderr_contains(") hi\n");
    let (id, [started, _]) = super::engine::submit_blocked(&a, &[], "one");
    b.wait_for_file(started.as_ref());
    a.tracer(&["cancel", &id.to_string(), "--grace", "0s"]).success();
    assert_eq!(a.wait_for_task(id)["state"], "cancelled");
    let in_cluster = format!("{}-1", a.status()["engine"]["place_id"].as_str().expect("it has joined"));
    b.tracer(&["get", &in_cluster]).success().stdout_contains("succeeded");
    for node in [&a, &b] {
        let nodes = node.tracer(&["list", "nodes", "--format", "json"]).success().json();
        assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(2), "{nodes}");
        node.tracer(&["doctor"]).success().stdout_contains("nothing to mend: nats-server ");
    }
}

#[test]
fn files_of_a_configuration_are_for_their_owner_and_nothing_is_written_over() {
    let commands = commands();
    let config = |flags: &[&str]| commands.tracer(&[&["engine", "config"], flags].concat());
    let written =
        config(&["--roles", "--output", "nats", "--format", "json", "--server-version", "2.12.3"]).success().json();
    let files: Vec<_> =
        written["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(files.len(), 5);
    for file in files {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::metadata(commands.file("nats")).unwrap().permissions().mode() & 0o777, 0o700);
    let before = seed(&commands, "admin");
    config(&["--roles", "--output", "nats"])
        .status(1)
        .stderr_contains("cannot be made")
        .stderr_contains("(hint: name another");
    assert_eq!(seed(&commands, "admin"), before);

    let text = config(&["--server-version", "2.9.10"]).success();
    assert!(!text.stdout_text().contains("\n  sync_interval"), "{text:?}");
    text.stderr_contains("nats-server 2.9.10 knows no `sync_interval: always`");
    config(&["--server-version", "2.15.1"]).success().stdout_contains("\n  sync_interval: always\n").stderr("");
    config(&["--servers", "3", "--output", "three", "--server-version", "2.12.2"])
        .success()
        .stderr_contains("is older than 2.12.3");
    config(&["--servers", "2"]).status(2).stderr_contains("expected 1 or 3");
    config(&["--servers", "3"]).status(2).stderr_contains("(hint: `--output DIR`)");
    config(&["--host", "10.0.0.5"]).status(2).stderr_contains("(hint: `--tls DIR --roles --output DIR`");
    config(&["--host", "a", "--host", "b", "--servers", "3"])
        .status(2)
        .stderr_contains("expected 3 of --host, found 2");
    config(&["--roles"]).status(2).stderr_contains("--output");
}

#[test]
fn three_servers_with_tls_keep_three_copies_and_go_on_without_one_of_them() {
    let Some(certificates) = Certificates::make() else { return };
    let commands = commands();
    let tls = certificates.path("authority.pem").parent().expect("it is in a folder").display().to_string();
    let port = free_ports_of_servers();
    let (port_text, store) = (port.to_string(), commands.file("store").display().to_string());
    let Some(version) = Broker::version_of_tests() else { return };
    let command = ["engine", "config", "--servers", "3", "--tls", &tls, "--roles", "--output", "nats"];
    let flags = ["--port", &port_text, "--store", &store, "--server-version", &version];
    commands.tracer(&[&command[..], &flags].concat()).success();
    let start = |at: u16| Broker::start_file(&commands.file(&format!("nats/tracer-{}.conf", at + 1)), port + at);
    let Some(mut first) = start(0) else { return };
    let others = [1, 2].map(|at| start(at).expect("the first one has started"));
    let ca = format!("--engine-ca={tls}/authority.pem");
    let access = |role: &str| [ca.clone(), credentials(&commands, role)];
    let address = others[0].address();
    assert!(address.starts_with("tls://"));
    let init = |flags: &[&str]| {
        let [ca, credentials] = access("admin");
        let command = ["engine", "init", "--address", &address, &ca, &credentials, "--queue=default", "--format=json"];
        commands.tracer(&[&command[..], flags].concat())
    };
    // Servers that have just started have to find each other first.
    wait_until("the servers take streams", || init(&["--replicas=1"]).output.status.success().then_some(()));
    let [ca_flag, viewer] = access("viewer");
    let examined =
        |flags: &[&str]| doctor(&commands, &others[0], &[&[&*ca_flag, &viewer, "--format=json"], flags].concat());
    let alone = examined(&[]);
    assert!(findings(&alone).contains(&"no_replicas".to_owned()), "{alone:?}");
    alone.status(6).stdout_contains("tracer engine init --address ");

    let changed = init(&[]).success().json();
    assert_eq!(changed["replicas"], 3, "as many as there are servers");
    assert!(changed["streams"].as_array().unwrap().iter().all(|row| row["is"] == "changed"), "{changed}");
    let copies = |run: &Run| run.json()["cluster"]["replicas"].clone();
    // The servers of a stream choose first who leads.
    let run = wait_until("every stream answers", || {
        let run = examined(&[]);
        (copies(&run) == 3 && run.json()["cluster"]["unanswered"] == json!([])).then_some(run)
    });
    let version = run.json()["cluster"]["version"].as_str().expect("a text").to_owned();
    let is_old = version.starts_with("2.9.");
    let expected = if is_old { vec!["unsafe_replicas", "no_sync"] } else { vec![] };
    assert_eq!(findings(&run), expected, "of {version}");
    let run = run.status(if is_old { 6 } else { 0 });
    let monitors: Vec<_> = (0..3).map(|at| format!("--monitor=http://127.0.0.1:{}", port + 4000 + at)).collect();
    let monitored = examined(&monitors.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(monitored.json()["sync_always"], json!(vec![!is_old; 3]));
    assert_eq!(findings(&monitored), findings(&run));

    let node = |role: &str, workers: usize, flag: &[&str]| {
        let builder = Cluster::builder().workers(workers).hook(HOOK).arg("--address").arg(&address);
        let builder = access(role).iter().fold(builder, |builder, flag| builder.arg(flag));
        flag.iter().fold(builder, |builder, flag| builder.arg(flag))
    };
    let (b, started) = node("node", 1, &["--queue=default"]).try_start();
    let started = started.success();
    let a = node("submitter", 0, &[]).start();
    if is_old {
        started.stderr_contains("before 2.12.3 they may lose").stderr_contains("syncs every two minutes");
        let warnings = b.status()["warnings"].to_string();
        assert!(warnings.contains("before 2.12.3 they may lose"), "{warnings}");
        a.tracer(&["doctor"]).status(6).stdout_contains("warning: ").stdout_contains("(hint: ");
    }
    // A pull that waits at the server which is killed is made anew when its time is up.
    let limit = Duration::from_secs(90);
    let submit = || {
        let command = ["submit", "task", "--queue", "default", "demo:my_function"];
        a.tracer_in_background(&command).wait_within(limit).output.status.success().then_some(())
    };
    wait_until("it runs", submit);
    first.kill();
    wait_until_within(limit, "the two others go on", submit);
    first.come_back();
}

#[test]
fn wrong_engines_are_found_and_each_is_told_with_what_mends_it() {
    let commands = commands();
    let at = |address: &str, flags: &[&str]| commands.tracer(&[&["doctor", "--address", address], flags].concat());
    let told = |run: Run, code: i32, parts: &[&str]| {
        parts.iter().fold(run.status(code).stdout_contains("(hint: "), |run, part| run.stdout_contains(part));
    };
    told(
        at(&format!("nats://127.0.0.1:{}", free_port()), &[]),
        1,
        &["error: no engine can be reached", "nats-server -a"],
    );
    told(at("nats://10.0.0.5", &[]), 1, &["error: the address `nats://10.0.0.5` is on another machine", "`tls://`"]);
    let Some(bare) = Broker::start_without_jetstream() else { return };
    told(at(&bare.address(), &[]), 1, &["has no JetStream"]);
    let Some(mut broker) = Broker::start() else { return };
    let address = broker.address();
    at(&address, &[]).success().stdout_contains("nothing to mend: nats-server ").stdout_contains(", 0 living nodes");
    commands.tracer(&["doctor"]).status(3).stderr_contains("no head is running");
    told(at(&address, &["--monitor", &format!("http://127.0.0.1:{}", free_port())]), 1, &["monitoring page"]);

    // A queue with tasks whose only node has gone.
    let b = super::engine::holder(&broker);
    let (id, [started, _]) = super::engine::submit_blocked(&b, &[], "one");
    b.wait_for_file(started.as_ref());
    let explained = |cluster: &Cluster, id: u64| cluster.tracer(&["explain", &id.to_string()]).success();
    explained(&b, id).stdout_contains("` has had it for ").stdout_contains(", at attempt 1");
    b.tracer(&["status"]).success().stdout_contains("default: 0 waiting, 1 running, served by");
    b.stop().success();
    let a = super::engine::origin(&broker);
    super::engine::agent_pid(&a);
    let (waiting, _) = super::engine::submit_blocked(&a, &[], "two");
    let served = || a.tracer(&["list", "nodes", "--format", "json"]).success().json()["queues"][0]["served_by"].clone();
    wait_until("the node that has stopped is not counted any more", || (served() == json!([])).then_some(()));
    told(a.tracer(&["doctor"]), 6, &["warning: the queue `default` has 2 messages", "no living node serves it"]);
    explained(&a, waiting).stdout_contains("no living node serves the queue `default`");
    let reasons = a.tracer(&["explain", &waiting.to_string(), "--format", "json"]).success().json()["reasons"].clone();
    assert!(reasons.as_array().unwrap().iter().any(|reason| reason["reason"] == "unserved_queue"), "{reasons}");
    a.tracer(&["list", "nodes"]).success().stdout_contains("silent").stdout_contains("nobody");
    a.tracer(&["status"]).success().stdout_contains("default: 2 waiting, 0 running, served by nobody");

    // A name that a living node has.
    let place = a.status()["engine"]["place_id"].as_str().expect("it has joined").to_owned();
    let same_name = Cluster::builder().workers(0).arg("--address").arg(&address).build();
    let of_other = format!("{}{}", if place.starts_with('1') { "2222222z" } else { "1111111z" }, &place[8..]);
    fs::create_dir_all(same_name.temp_dir()).expect("the folder is ours");
    fs::set_permissions(same_name.temp_dir(), fs::Permissions::from_mode(0o700)).expect("it is ours");
    fs::write(same_name.temp_dir().join("place.id"), format!("{of_other}\n7\n")).expect("it is ours");
    same_name
        .start_head(&[])
        .status(1)
        .stderr_contains("another living node of the engine")
        .stderr_contains(&format!("has the name `{}`", a.status()["node_id"].as_str().expect("a text")))
        .stderr_contains("(hint: remove `place.id`");

    // Streams that are of another version, or of somebody else.
    let stream = |description: &str| {
        broker.request("$JS.API.STREAM.DELETE.TRACER_default_RECORD", &[], b"");
        let subjects = ["tracer.default.record.>"];
        let config = json!({ "name": "TRACER_default_RECORD", "subjects": subjects, "description": description });
        let made = broker.jetstream("STREAM.CREATE.TRACER_default_RECORD", &config);
        assert_eq!(made["error"], Value::Null, "{made}");
    };
    stream("tracer, cluster version 2");
    told(
        at(&address, &[]),
        1,
        &["`TRACER_default_RECORD` in the engine is of cluster version 2, and this tracer is of 1"],
    );
    let joins = || Cluster::builder().workers(0).arg("--address").arg(&address).try_start().1;
    joins().status(1).stderr_contains("is of cluster version 2").stderr_contains("(hint: install the version");
    stream("somebody else's");
    joins().status(1).stderr_contains("was not made by tracer").stderr_contains("(hint: delete it");
    broker.kill();
}

#[test]
fn an_engine_beyond_loopback_without_copies_or_encryption_is_warned_of() {
    let Some(host) = address_beyond_loopback() else {
        return skip("address beyond loopback", "this machine has none");
    };
    assert_ne!(host, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let commands = commands();
    commands.tracer(&["engine", "config", "--roles", "--output", "nats"]).success();
    let text = fs::read_to_string(commands.file("nats/tracer.conf")).expect("it was written");
    // The users alone: where it listens is said by the test.
    let users = &text[text.find("accounts {").expect("it has users")..];
    let Some(broker) = Broker::start_on(host, users) else { return };
    let admin = credentials(&commands, "admin");
    let access = ["--address", &broker.address(), &admin, "--insecure-engine"];
    commands.tracer(&[&["engine", "init", "--queue=default"][..], &access].concat()).success();
    let run = commands.tracer(&[&["doctor", "--format", "json"][..], &access].concat());
    let found = findings(&run);
    assert!(["no_replicas", "plain_nats"].iter().all(|code| found.iter().any(|found| found == code)), "{found:?}");
    run.status(6);
    let node =
        Cluster::builder().arg("--address").arg(broker.address()).arg("--insecure-engine").arg("--queue=default");
    let (_cluster, started) = node.arg(credentials(&commands, "node")).try_start();
    started.success().stderr_contains("warning: `TRACER_default_KEY` and 4 other streams have one copy");
}
