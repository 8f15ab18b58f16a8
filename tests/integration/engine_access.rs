//! Ways to an engine: TLS, credentials, and what is told when they are wrong. The nkeys are of these tests.

use std::fs::{self, Permissions};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nkeys::KeyPair;
use serde_json::{Value, json};
use tracer::Driver;

use crate::support::{Broker, Builder, Certificates, Cluster, HOOK, Run, base64_url, skip, wait_until};

/// A user's seed and public key.
const NODE: [&str; 2] = [
    "SUAPXJCVNNWXFSRFTWFYXYLHO4G2U2BETGA2ZYGYBRVWUPA2K2OKGC7UVE",
    "UD6MZTGLCZZD4U5BZZVLM73LKHQ5Q3TSF4RXD5PZS6PVVHD65XNUKIK4",
];
/// Another user's.
const OTHER: [&str; 2] = [
    "SUAFGS3FH2V75GKWLXKYUQKAG3SV2XSFOK6GJ2HR2KX5E3HNYEI3ABGWWQ",
    "UCXZ6WRXDMKL5AYPD6FU5EGBNSDCWTOYYPSDORT74OXZVAEPGVZ54UFK",
];

fn users(lines: &str) -> String {
    format!("authorization {{ users: [ {lines} ] }}\n")
}

fn user([_, public_key]: [&str; 2]) -> String {
    format!("{{ nkey: {public_key} }}")
}

/// Writes a file with credentials, and returns the flag that names it.
fn credentials(folder: &Path, [seed, _]: [&str; 2], mode: u32) -> String {
    let path = folder.join(format!("{mode:o}-{}.nk", &seed[..6]));
    fs::write(&path, format!("# of a test\n{seed}\n")).expect("the folder is ours");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
    format!("--credentials={}", path.display())
}

fn joining(broker: &Broker, flags: &[&str]) -> Builder {
    let builder = Cluster::builder().workers(1).arg("--address").arg(broker.address());
    flags.iter().fold(builder, |builder, flag| builder.arg(flag))
}

fn refused(broker: &Broker, flags: &[&str]) -> Run {
    joining(broker, flags).try_start().1
}

/// Waits until the head's engine is in this state, with a text that has this in it.
fn wait_for_engine(cluster: &Cluster, is_reachable: bool, text: &str) {
    wait_until(&format!("the engine is told to be `{text}`"), || {
        let engine = &cluster.status()["engine"];
        let has_text = engine["text"].as_str().is_some_and(|said| said.contains(text));
        (engine["is_reachable"] == json!(is_reachable) && has_text).then_some(())
    });
}

#[test]
fn an_engine_with_tls_and_nkeys_is_joined_and_each_wrong_way_is_told_with_what_mends_it() {
    let Some(certificates) = Certificates::make() else { return };
    let [authority, certificate, key] =
        ["authority.pem", "server.pem", "server.key"].map(|file| certificates.path(file).display().to_string());
    let tls = format!("tls {{ cert_file: \"{certificate}\", key_file: \"{key}\" }}\n");
    let Some(broker) = Broker::start_configured(&format!("{tls}{}", users(&user(NODE)))) else { return };
    assert!(broker.address().starts_with("tls://"));
    let folder = tempfile::tempdir().expect("a folder for credentials");
    let (ca, node) = (format!("--engine-ca={authority}"), credentials(folder.path(), NODE, 0o600));

    let b = joining(&broker, &[&ca, &node, "--queue=default"]).start();
    let a = joining(&broker, &[&ca, &node]).start();
    let run = a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success();
    assert_eq!(run.stdout_text(), "1\n");
    assert_eq!(b.tasks().len(), 1, "it ran on the other node");
    let text = "0123456789abcdef".repeat(5 << 16);
    let mut driver = Driver::connect(&a.temp_dir()).expect("its head runs");
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
    assert!(driver.get::<String>(echoed).unwrap() == text, "5 MiB went through the engine, and back");

    refused(&broker, &[&node])
        .status(1)
        .stderr_contains("cannot be trusted: its certificate is not accepted: UnknownIssuer")
        .stderr_contains("(hint: `--engine-ca FILE`");
    let not_pem = format!("--engine-ca={key}");
    refused(&broker, &[&not_pem, &node]).status(2).stderr_contains("`--engine-ca`").stderr_contains("no certificate");
    refused(&broker, &[&ca])
        .status(1)
        .stderr_contains("asks for credentials, and none are given")
        .stderr_contains("(hint: `--credentials FILE`");
    let other = credentials(folder.path(), OTHER, 0o600);
    refused(&broker, &[&ca, &other]).status(1).stderr_contains("refuses the credentials of `");
    let open = credentials(folder.path(), NODE, 0o644);
    refused(&broker, &[&ca, &open])
        .status(2)
        .stderr_contains("`--credentials`: the file")
        .stderr_contains("expected mode 0600, found 0644")
        .stderr_contains("(hint: `chmod 600 ");

    let Some(plain) = Broker::start() else { return };
    let address = plain.address().replacen("nats", "tls", 1);
    let to_plain = Cluster::builder().arg("--address").arg(&address).arg(&ca).try_start().1;
    to_plain.status(1).stderr_contains("it speaks no TLS").stderr_contains("(hint: write `tls` with `cert_file`");
}

#[test]
fn another_machine_is_refused_without_tls_or_credentials() {
    let refused = |flags: &[&str]| {
        let builder = flags.iter().fold(Cluster::builder(), |builder, flag| builder.arg(flag));
        builder.try_start().1.status(2)
    };
    refused(&["--address=nats://10.0.0.5"])
        .stderr_contains("`--address`: the address `nats://10.0.0.5` is on another machine")
        .stderr_contains("(hint: `tls://` in its place")
        .stderr_contains("`--insecure-engine`");
    for flags in [&["--address=tls://10.0.0.5"][..], &["--address=nats://10.0.0.5", "--insecure-engine"]] {
        refused(flags).stderr_contains("no credentials are given").stderr_contains("(hint: `--credentials FILE`");
    }
    refused(&["--credentials=node.nk"]).stderr_contains("`--credentials`: needs an engine");
}

/// Returns an address of this machine that is not loopback, if it has one. Nothing is sent.
pub(crate) fn address_beyond_loopback() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn plain_nats_beyond_loopback_is_for_who_says_so() {
    let Some(host) = address_beyond_loopback() else {
        return skip("address beyond loopback", "this machine has none");
    };
    let Some(broker) = Broker::start_on(host, &users(&user(NODE))) else { return };
    let folder = tempfile::tempdir().expect("a folder for credentials");
    let node = credentials(folder.path(), NODE, 0o600);
    refused(&broker, &[&node]).status(2).stderr_contains("is not encrypted");
    let cluster = joining(&broker, &[&node, "--insecure-engine", "--queue=default"]).start();
    cluster.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success();
}

#[test]
fn a_certificate_that_is_not_accepted_any_more_is_told_while_a_head_runs() {
    let (Some(certificates), Some(others)) = (Certificates::make(), Certificates::make()) else { return };
    let tls = |of: &Certificates| {
        let [certificate, key] = ["server.pem", "server.key"].map(|file| of.path(file).display().to_string());
        format!("tls {{ cert_file: \"{certificate}\", key_file: \"{key}\" }}\n")
    };
    let Some(mut broker) = Broker::start_configured(&tls(&certificates)) else { return };
    let ca = format!("--engine-ca={}", certificates.path("authority.pem").display());
    let cluster = joining(&broker, &[&ca, "--queue=default", "--engine-wait=300ms"]).start();
    wait_for_engine(&cluster, true, "nats-server");
    broker.start_again_with(&tls(&others));
    wait_for_engine(&cluster, false, "cannot be trusted: its certificate is not accepted");
    let said = cluster.status()["warnings"].to_string();
    assert!(said.contains("(hint: `--engine-ca FILE`"), "{said}");
    cluster.tracer(&["doctor"]).status(1).stdout_contains("cannot be trusted");
    broker.start_again_with(&tls(&certificates));
    wait_for_engine(&cluster, true, "nats-server");

    certificates.expire("server");
    broker.start_again_with(&tls(&certificates));
    wait_for_engine(&cluster, false, "cannot be trusted: its certificate is not accepted");
    let said = cluster.status()["warnings"].to_string();
    assert!(said.contains("xpired") && said.contains("(hint: renew the server's certificate"), "{said}");
}

#[test]
fn credentials_that_are_refused_or_permit_too_little_are_told_while_a_head_runs_and_at_its_start() {
    let Some(mut broker) = Broker::start_configured(&users(&user(NODE))) else { return };
    let folder = tempfile::tempdir().expect("a folder for credentials");
    let node = credentials(folder.path(), NODE, 0o600);
    let cluster = joining(&broker, &[&node, "--queue=default"]).start();
    wait_for_engine(&cluster, true, "nats-server");

    broker.start_again_with(&users(&user(OTHER)));
    wait_for_engine(&cluster, false, "refuses the credentials of `");
    let warnings = cluster.status()["warnings"].to_string();
    assert!(warnings.contains("refuses the credentials of `"), "{warnings}");

    let denied = r#"permissions: { publish: { deny: "$JS.API.STREAM.CREATE.>" } }"#;
    let [_, public_key] = NODE;
    broker.start_again_with(&users(&format!("{{ nkey: {public_key}, {denied} }}")));
    wait_for_engine(&cluster, true, "nats-server");
    refused(&broker, &[&node, "--queue=other"])
        .status(1)
        .stderr_contains("do not permit to publish to \"$JS.API.STREAM.CREATE.TRACER_default_Q_other\"")
        .stderr_contains("(hint: have what is missing made with other ones: `tracer engine init --address ");
    let denied = r#"permissions: { publish: { deny: "$JS.API.CONSUMER.>" } }"#;
    broker.start_again_with(&users(&format!("{{ nkey: {public_key}, {denied} }}")));
    wait_for_engine(&cluster, false, "do not permit to publish to \"$JS.API.CONSUMER.");
    broker.start_again_with(&users(&user(NODE)));
    wait_for_engine(&cluster, true, "nats-server");
    cluster.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success();
}

/// Returns claims about who has this key, signed by another one: a JWT as operators, accounts and users of servers have them.
fn jwt(of: &KeyPair, by: &KeyPair, name: &str, claims: &Value) -> String {
    let claims =
        json!({ "iat": 1_700_000_000, "iss": by.public_key(), "sub": of.public_key(), "name": name, "nats": claims });
    let parts = [json!({ "typ": "JWT", "alg": "ed25519-nkey" }), claims];
    let signed = parts.map(|part| base64_url(part.to_string().as_bytes())).join(".");
    let signature = by.sign(signed.as_bytes()).expect("it signs");
    format!("{signed}.{}", base64_url(&signature))
}

/// Returns the claims of an account; one of tasks has JetStream without limits.
fn account(has_jetstream: bool) -> Value {
    let unlimited = ["subs", "data", "payload", "imports", "exports", "conn", "leaf"];
    let of_jetstream = ["mem_storage", "disk_storage", "streams", "consumer"];
    let limit =
        |names: &[&str], limit: i64| names.iter().map(|name| ((*name).to_owned(), json!(limit))).collect::<Vec<_>>();
    let mut limits: serde_json::Map<_, _> = limit(&unlimited, -1).into_iter().collect();
    limits.extend(limit(&of_jetstream, if has_jetstream { -1 } else { 0 }));
    limits.insert("wildcards".into(), json!(true));
    json!({ "type": "account", "version": 2, "limits": limits })
}

/// Writes a user's creds file, as `nsc` does, and returns the flag that names it.
fn creds_file(folder: &Path, name: &str, by: &KeyPair) -> (String, String) {
    let user = KeyPair::new_user();
    let claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
    let (token, seed) = (jwt(&user, by, name, &claims), user.seed().expect("it is new"));
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    let path = folder.join(format!("{name}.creds"));
    fs::write(&path, text).expect("the folder is ours");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    (format!("--credentials={}", path.display()), user.public_key())
}

#[test]
fn users_of_an_account_whose_operator_has_signed_it_share_tasks_with_their_creds_files() {
    let Some(certificates) = Certificates::make() else { return };
    let [authority, certificate, key] =
        ["authority.pem", "server.pem", "server.key"].map(|file| certificates.path(file).display().to_string());
    let (operator, system, tasks) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let of_operator = jwt(&operator, &operator, "operator", &json!({ "type": "operator", "version": 2 }));
    let [of_system, of_tasks] = [(&system, "system", false), (&tasks, "tasks", true)]
        .map(|(key, name, has_jetstream)| jwt(key, &operator, name, &account(has_jetstream)));
    let (system, tasks_key) = (system.public_key(), tasks.public_key());
    let configuration = format!(
        "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\" }}\n\
         operator: {of_operator}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{ {system}: {of_system}, {tasks_key}: {of_tasks} }}\n"
    );
    let Some(broker) = Broker::start_configured(&configuration) else { return };
    let folder = tempfile::tempdir().expect("a folder for credentials");
    let ca = format!("--engine-ca={authority}");
    let (node, _) = creds_file(folder.path(), "node", &tasks);
    let (submitter, public_key) = creds_file(folder.path(), "submitter", &tasks);
    let trusted = format!("--trusted-key={public_key}");

    let b = joining(&broker, &[&ca, &node, "--queue=default", &trusted]).hook(HOOK).start();
    let a = joining(&broker, &[&ca, &submitter]).start();
    let run = a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success();
    assert_eq!(run.stdout_text(), "1\n");
    assert_eq!(b.tasks().len(), 1, "it ran on the other node, which trusts the nkey of the submitter's file");
    a.tracer(&["doctor"]).success().stdout_contains("nothing to mend: nats-server ");
    b.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).status(1).stderr_contains("trust");

    let (stranger, _) = creds_file(folder.path(), "stranger", &KeyPair::new_account());
    refused(&broker, &[&ca, &stranger]).status(1).stderr_contains("refuses the credentials of `");
}
