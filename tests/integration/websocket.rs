//! WebSockets through the proxy: an axum handler, clients that nobody here wrote and bare frames, and one trace for each connection.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Background, Cluster, HOOK, Span, kill, node_client, node_clients, python_with, wait_until};

/// The deployment on a port of its own, and a client.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
    python: std::path::PathBuf,
}

impl Service {
    /// None, which skips the test, without a Python that has a client.
    fn deploy() -> Option<Service> {
        Some(Service::deploy_for(python_with("websockets")?))
    }

    fn deploy_for(python: std::path::PathBuf) -> Service {
        Service::deploy_on(Cluster::builder().workers(1).hook(HOOK).start(), python, "")
    }

    /// With settings of tests, and keys of the deployment; for clients by bare bytes.
    fn deploy_with(settings: &[&str], deployment: &str) -> Service {
        let builder = Cluster::builder().workers(1).hook(HOOK).env("TRACER_TEST_SETTING", settings.join(","));
        Service::deploy_on(builder.start(), "python3".into(), deployment)
    }

    fn deploy_on(cluster: Cluster, python: std::path::PathBuf, deployment: &str) -> Service {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let service = Service { cluster, address: port.expect("there is a free port"), python };
        service.deploy_again("", deployment).success();
        service
    }

    /// Opens a connection by bare bytes, which says nothing more by itself.
    fn open(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it is served");
        let head = "GET /rooms/lobby/talk HTTP/1.1\r\nhost: chat\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                    sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("it takes a request");
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("it answers");
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        stream
    }

    fn deploy_again(&self, tracing: &str, deployment: &str) -> crate::support::Run {
        let text = format!(
            "name = \"chat\"\n[http]\naddress = \"{}\"\n[tracing]\n{tracing}\n\
             [[applications]]\nimport_path = \"axum_chat:chat\"\n\
             [[applications.deployments]]\nimport_path = \"axum_chat:chat\"\n{deployment}\n",
            self.address
        );
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).expect("the folder is ours");
        self.cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")])
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/python/websocket_client.py");
        let mut client = self.cluster.program(&self.python);
        client.arg(script).arg(self.address.to_string()).args(arguments);
        client
    }

    /// Runs a client to its end, and returns what it says.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Vec<Value> {
        said(&self.cluster.run(self.client(arguments)).success().stdout_text())
    }

    /// Starts a client that holds its connection, which is open when this returns.
    #[track_caller]
    fn hold(&self) -> Background {
        let client = self.cluster.spawn(self.client(&["hold", "x"]));
        client.wait_for_stdout("answer");
        client
    }

    /// Waits for the span of a connection's request at the proxy, and returns it with that of the replica.
    #[track_caller]
    fn spans_of_connection(&self) -> (Span, Span) {
        wait_until("the spans of the connection are there", || {
            let spans = self.cluster.spans();
            let is_of = |span: &&Span| *span.attribute("url.path") == json!("/rooms/lobby/talk");
            let proxy = spans.iter().filter(is_of).find(|span| span.name().starts_with("proxy_http_request"))?;
            let replica = spans.iter().find(|span| {
                span.trace_id() == proxy.trace_id() && span.name().starts_with("replica_handle_request")
            })?;
            Some((proxy.clone(), replica.clone()))
        })
    }
}

#[track_caller]
fn said(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// The code with which a held connection was closed.
#[track_caller]
fn code(client: Background) -> Value {
    said(&client.wait().success().stdout_text()).pop().expect("it has said something")["code"].take()
}

fn is_error(span: &Span) -> bool {
    span.status_code() == "ERROR"
}

#[test]
fn frames_and_closes_are_those_of_the_handler() {
    let Some(service) = Service::deploy() else { return };
    let cases = service.run(&["cases"]);
    let wrong: Vec<_> = cases.iter().filter(|case| case["is_right"] != json!(true)).collect();
    assert!(wrong.is_empty() && cases.len() > 70, "{} cases, of which are wrong: {wrong:#?}", cases.len());
    assert_eq!(service.run(&["hasty"]), [json!({"outcome": ["end"]})]);
}

#[test]
fn a_connection_is_one_request_with_a_span_until_it_is_closed() {
    let Some(service) = Service::deploy() else { return };
    let answers = service.run(&["orderly", "hello"]);
    assert_eq!(answers, [json!({"answer": "1: hello"}), json!({"length": 3_000_000}), json!({"code": 1000})]);
    let (proxy, replica) = service.spans_of_connection();
    assert!(!is_error(&proxy) && !is_error(&replica));
    assert_eq!(proxy.attribute("http.response.status_code"), &json!(101));
    assert_eq!(proxy.attribute("tracer.websocket.close_code"), &json!(1000));
    let bytes = |name: &str| proxy.attribute(name).as_u64().expect("a number");
    assert!(bytes("tracer.request_body_bytes") > 3_000_000 && bytes("tracer.response_body_bytes") > 3_000_000);
    assert_eq!(replica.attribute("http.route"), &json!("/rooms/{room}/talk"));
    assert_eq!(proxy.attribute("http.route"), &json!("/rooms/{room}/talk"), "its handler says it");
    for name in ["server.address", "server.port", "client.address"] {
        assert_eq!(proxy.attribute(name), replica.attribute(name), "{name}");
    }
    let spans = service.cluster.spans();
    let inner = spans.named("say");
    assert_eq!((inner.trace_id(), inner.parent_id()), (proxy.trace_id(), Some(replica.span_id())));
    let log = service.cluster.session_dir().join("logs/serve/access.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("the connection has a line in the access log", || read().contains(" 101 ").then_some(()));
}

#[test]
fn the_client_in_node_talks_and_closes_with_a_code_of_its_own() {
    let Some(tools) = node_clients() else { return };
    let Some(service) = Service::deploy() else { return };
    let url = format!("ws://{}/rooms/lobby/talk", service.address);
    let node = node_client(&service.cluster, &tools, "websocket_client.js", &[&url, "hello"]);
    assert_eq!(
        said(&service.cluster.run(node).success().stdout_text()),
        [
            json!({"answer": "1: hello"}),
            json!({"length": 1_000_000}),
            json!({"pong": "are you there"}),
            json!({"code": 4001, "reason": "enough"})
        ]
    );
    assert_eq!(service.spans_of_connection().0.attribute("tracer.websocket.close_code"), &json!(4001));
}

#[test]
fn the_client_wsproto_talks_and_closes_with_a_code_of_its_own() {
    if python_with("wsproto, websockets").is_none() {
        return;
    }
    let Some(service) = Service::deploy() else { return };
    assert_eq!(service.run(&["wsproto", "hello"]), by_wsproto("1: hello"));
    assert_eq!(service.spans_of_connection().0.attribute("tracer.websocket.close_code"), &json!(4002));
}

/// Output of the client, if all is well.
fn by_wsproto(answer: &str) -> [Value; 4] {
    [json!({"answer": answer}), json!({"pong": "there"}), json!({"length": 1_000_000}), json!({"code": 4002})]
}

/// A server of others as a program: uvicorn, with one of the libraries for WebSockets that it takes.
fn deploy_program(library: &str) -> Option<(Service, Vec<String>)> {
    let python = python_with(&format!("uvicorn, websockets, {library}"))?;
    let cluster = Cluster::builder().workers(1).hook(HOOK).start();
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let service = Service { cluster, address: port.expect("there is a free port"), python };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/python").display().to_string();
    let python = service.python.display().to_string();
    let words = [&python, "-m", "uvicorn", "--app-dir", &folder, "--ws", library, "websocket_program:app"];
    let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    service.deploy_command(&command, "").success();
    Some((service, command))
}

impl Service {
    fn deploy_command(&self, command: &[String], further: &str) -> crate::support::Run {
        let mut words = command.to_vec();
        words.extend(["--uds".into(), "{socket}".into()]);
        let text = format!(
            "name = \"chat\"\n[http]\naddress = \"{}\"\n[[applications]]\n[[applications.deployments]]\n\
             name = \"Chat\"\nhealth = \"/\"\ncommand = {}\n{further}\n",
            self.address,
            json!(words)
        );
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).expect("the folder is ours");
        self.cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")])
    }
}

#[test]
fn frames_and_closes_of_a_program_are_those_of_the_program_without_a_proxy() {
    for library in ["websockets", "wsproto"] {
        let Some((service, command)) = deploy_program(library) else { return };
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).unwrap();
        let mut bare = service.cluster.program(&command[0]);
        bare.args(&command[1..]).args(["--port", &port.port().to_string()]);
        let bare = service.cluster.spawn(bare);
        wait_until("the program listens", || std::net::TcpStream::connect(port).ok());
        let at = |address: SocketAddr| {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/python/websocket_client.py");
            let mut client = service.cluster.program(&service.python);
            client.arg(script).arg(address.to_string()).arg("cases");
            said(&service.cluster.run(client).success().stdout_text())
        };
        // Whether a failed connection ends with a close frame or without one depends on what the network has done with it.
        let outcome = |case: &Value| {
            let found = case["found"].to_string();
            let is_failed = [r#"["end"]"#, r#"["close 1002"]"#, r#"["close 1007"]"#].contains(&&*found);
            (case["case"].clone(), if is_failed { "failed".to_owned() } else { found })
        };
        let [expected, found] =
            [port, service.address].map(|address| at(address).iter().map(outcome).collect::<Vec<_>>());
        assert!(expected.len() > 70, "{expected:?}");
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(found, expected, "{library}: through the proxy, and without");
        }
        assert_eq!(expected.len(), found.len());
        drop(bare);
    }
}

#[test]
fn a_program_speaks_websocket_with_clients_that_nobody_here_wrote() {
    let Some((service, command)) = deploy_program("wsproto") else { return };
    assert_eq!(service.run(&["wsproto", "hello"]), by_wsproto("hello"));
    let (proxy, replica) = service.spans_of_connection();
    assert!(!is_error(&proxy) && !is_error(&replica));
    assert_eq!(proxy.attribute("http.response.status_code"), &json!(101));
    assert_eq!(proxy.attribute("tracer.websocket.close_code"), &json!(4002));
    assert!(proxy.attribute("tracer.request_body_bytes").as_u64().is_some_and(|bytes| bytes > 1_000_000));
    // The program is told the span that it continues.
    let client = service.cluster.spawn(service.client(&["hold", "parent"]));
    client.wait_for_stdout("answer");
    assert!(client.stdout_text().contains("\"answer\": \"00-"), "{}", client.stdout_text());
    service.deploy_command(&command, "env = { COLOUR = \"blue\" }").success();
    assert_eq!(code(client), json!(1001), "who is connected to a version that ends is told to come again");
    let client = service.hold();
    let mut curl = service.cluster.program("curl");
    curl.arg("-s").arg(format!("http://{}/", service.address));
    let pid = service.cluster.run(curl).success().stdout_text();
    kill(pid.trim().parse().expect("a process id"), Signal::KILL);
    assert_eq!(code(client), json!(1011), "its program was killed");
    if let Some(tools) = node_clients() {
        let url = format!("ws://{}/rooms/lobby/talk", service.address);
        let said_by_node = wait_until("another program answers", || {
            let node = node_client(&service.cluster, &tools, "websocket_client.js", &[&url, "hello"]);
            let run = service.cluster.run(node);
            (run.output.status.success()).then(|| said(&run.stdout_text()))
        });
        assert_eq!(said_by_node.last(), Some(&json!({"code": 4001, "reason": "enough"})));
    }
    service.cluster.stop().success();
    service.cluster.assert_nothing_runs();
}

#[test]
fn an_upgrade_that_a_program_refuses_is_answered() {
    let Some((service, _)) = deploy_program("websockets") else { return };
    let mut curl = service.cluster.program("curl");
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    let headers = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", key];
    curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]).args(headers.iter().flat_map(|header| ["-H", header]));
    curl.arg(format!("http://{}/refused", service.address));
    service.cluster.run(curl).success().stdout("403");
}

#[test]
fn an_upgrade_that_the_handler_refuses_is_answered() {
    let Some(service) = Service::deploy() else { return };
    let mut curl = service.cluster.program("curl");
    let headers = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: AAAA"];
    curl.args(["-s", "-w", " %{http_code}"]).args(headers.iter().flat_map(|header| ["-H", header]));
    curl.arg(format!("http://{}/rooms/none", service.address));
    service.cluster.run(curl).success().stdout("nobody has said anything in `none`\n 404");
    let mut curl = service.cluster.program("curl");
    curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]).arg(format!("http://{}/rooms/a/talk", service.address));
    // A plain request for what only a WebSocket is served from.
    service.cluster.run(curl).success().stdout("400");
}

#[test]
fn a_client_that_vanishes_is_no_error() {
    let Some(service) = Service::deploy() else { return };
    service.run(&["vanish"]);
    let (proxy, replica) = service.spans_of_connection();
    assert_eq!(proxy.attribute("tracer.outcome"), &json!("client_gone"));
    assert!(!is_error(&proxy) && !is_error(&replica), "{proxy:?} {replica:?}");
}

/// RFC 6455, section 7.1.5: a connection that ends without a close frame is not closed cleanly, by whoever has ended it.
#[test]
fn a_client_that_ends_its_connection_without_a_close_frame_has_gone() {
    let service = Service::deploy_for("python3".into());
    drop(service.open());
    let (proxy, replica) = service.spans_of_connection();
    assert_eq!(proxy.attribute("tracer.outcome"), &json!("client_gone"));
    assert!(!is_error(&proxy) && !is_error(&replica), "{proxy:?} {replica:?}");
}

/// RFC 6455, section 7.1.1: the server closes the connection, whether or not its close frame is answered.
#[test]
fn a_client_that_does_not_answer_a_close_frame_holds_no_version_and_is_no_error() {
    let service = Service::deploy_with(&["proxy_look_ms=100"], "drain_timeout = \"300s\"");
    let mut client = service.open();
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("it is a socket");
    service.deploy_again("", "env = { COLOUR = \"blue\" }").success();
    let mut last = Vec::new();
    client.read_to_end(&mut last).expect("it is closed in good order");
    assert!(last.ends_with(&[0x88, 2, 0x03, 0xe9]), "{last:?}");
    let (proxy, _) = service.spans_of_connection();
    assert_eq!(proxy.attribute("tracer.websocket.close_code"), &json!(1001));
    assert!(!is_error(&proxy), "{proxy:?}");
}

/// A message of 60,000 bytes as a client frames it. It is answered with itself.
fn large_message() -> Vec<u8> {
    let mut message = vec![0x82, 0x80 | 126];
    message.extend(60_000_u16.to_be_bytes());
    message.extend([0; 4 + 60_000]);
    message
}

/// One that reads nothing gets no close frame: what was sent before that is still on the way.
#[test]
fn a_client_that_reads_nothing_holds_no_version() {
    let service = Service::deploy_with(&["proxy_look_ms=100"], "drain_timeout = \"300s\"");
    let mut client = service.open();
    client.set_write_timeout(Some(Duration::from_secs(1))).expect("it is a socket");
    while client.write_all(&large_message()).is_ok() {}
    service.deploy_again("", "env = { COLOUR = \"blue\" }").success();
    wait_until("the replica that the client had has ended", || {
        let status = service.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        (status["services"][0]["replicas"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
}

/// Time in which nothing is taken is what counts, and not that there is always more to be taken.
#[test]
fn a_client_that_is_slower_than_what_it_is_sent_is_served_on() {
    const LOOK: Duration = Duration::from_millis(20);
    let service = Service::deploy_with(&[&format!("proxy_look_ms={}", LOOK.as_millis())], "");
    let mut client = service.open();
    rustix::net::sockopt::set_socket_recv_buffer_size(&client, 64 << 10).expect("it is a socket");
    client.set_read_timeout(Some(Duration::from_secs(30))).expect("it is a socket");
    let mut writer = client.try_clone().expect("it is a socket");
    thread::scope(|scope| {
        scope.spawn(|| while writer.write_all(&large_message()).is_ok() {});
        let (begun, mut piece) = (Instant::now(), vec![0; 16 << 10]);
        // Thrice the time after which one that takes nothing is cut.
        while begun.elapsed() < 3 * 30 * LOOK {
            client.read_exact(&mut piece).expect("it is sent more");
            // As slow as another connection is.
            assert!(TcpStream::connect(service.address).is_ok());
            drop(service.open());
        }
        client.shutdown(Shutdown::Both).expect("it is connected");
    });
}

#[test]
fn who_is_connected_to_a_version_that_ends_is_told_to_come_again() {
    let Some(service) = Service::deploy() else { return };
    let client = service.hold();
    service.deploy_again("", "env = { COLOUR = \"blue\" }").success();
    assert_eq!(code(client), json!(1001));
    let (proxy, replica) = service.spans_of_connection();
    assert!(!is_error(&proxy) && !is_error(&replica), "{proxy:?} {replica:?}");
    assert_eq!(proxy.attribute("tracer.websocket.close_code"), &json!(1001));
    // A proxy that is replaced too.
    let client = service.hold();
    service.deploy_again("enabled = false", "").success();
    assert_eq!(code(client), json!(1001));
    let client = service.hold();
    service.cluster.tracer(&["serve", "shutdown"]).success();
    assert_eq!(code(client), json!(1001));
}

#[test]
fn a_connection_whose_replica_is_killed_is_closed_with_a_code_and_its_spans_say_so() {
    let Some(service) = Service::deploy() else { return };
    let client = service.hold();
    let replicas = service.cluster.tracer(&["list", "replicas", "--format", "json"]).success().json();
    let pid = replicas["replicas"][0]["pid"].as_u64().expect("it has a pid");
    kill(u32::try_from(pid).expect("a process id"), Signal::KILL);
    assert_eq!(code(client), json!(1011));
    let (proxy, replica) = service.spans_of_connection();
    assert_eq!(proxy.attribute("tracer.outcome"), &json!("replica_lost"));
    assert!(is_error(&proxy) && is_error(&replica));
    assert_eq!(replica.attribute("error.type"), &json!("signal:9"));
}
