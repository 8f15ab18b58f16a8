//! Services with TLS: certificates that change while connections go on, names, handshakes of all kinds, and a proxy that is replaced.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::metrics::scrape;
use crate::support::{Answer, Builder, Certificates, Cluster, HOOK, Run, kill, read_answer, skip, wait_until};

/// The longest that a client waits for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A service with TLS on a port of its own.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
    certificates: Certificates,
}

impl Service {
    /// None, which skips the test: there is nothing to make certificates with.
    fn start(builder: Builder) -> Option<Service> {
        let certificates = Certificates::make()?;
        certificates.make_for("one", &["shop.example", "localhost"]);
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let service = Service { cluster: builder.start(), address: port.expect("there is a free port"), certificates };
        service.deploy("", "").success();
        Some(service)
    }

    /// Deploys with further lines of `[http]`'s tables and of deployments.
    fn deploy(&self, further: &str, of_deployment: &str) -> Run {
        self.deploy_text(&format!(
            "{}\n{further}\n[[applications]]\nimport_path = \"shop:hello\"\n\
             [[applications.deployments]]\nimport_path = \"shop:hello\"\n{of_deployment}\n",
            self.tls()
        ))
    }

    /// The lines from `[http]` to the certificate for every name.
    fn tls(&self) -> String {
        let path = |file| self.certificates.path(file).display().to_string();
        let (certificate, key) = (path("one.pem"), path("one.key"));
        format!("[http]\naddress = \"{}\"\n[http.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"", self.address)
    }

    fn deploy_text(&self, text: &str) -> Run {
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, format!("name = \"shop\"\n{text}")).expect("the folder is ours");
        self.cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")])
    }

    fn client(&self, name: &str) -> Client {
        Client::new(self.address, name, &self.certificates.path("authority.pem"))
    }

    fn warnings(&self) -> String {
        let status = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        status["services"][0]["warnings"].to_string()
    }

    fn proxies(&self) -> Vec<u64> {
        let status = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        let proxies = status["services"][0]["proxies"].as_array().cloned().unwrap_or_default();
        proxies.iter().filter_map(|proxy| proxy["pid"].as_u64()).collect()
    }

    /// Asks with curl for a path at a name, which it takes for that of this machine.
    fn curl(&self, version: &str, url: &str, further: &[&str]) -> Option<Run> {
        let mut curl = self.cluster.program("curl");
        let port = self.address.port();
        curl.args(["-sS", "-v", version, "--cacert"]).arg(self.certificates.path("authority.pem")).args(further);
        for name in ["shop.example", "api.example.com", "www.example.com"] {
            curl.args(["--resolve", &format!("{name}:{port}:127.0.0.1")]);
        }
        curl.arg(url.replace("PORT", &port.to_string()));
        if Command::new("curl").arg("--version").output().is_err() {
            skip("curl", "it asks with TLS");
            return None;
        }
        Some(self.cluster.run(curl))
    }

    /// Runs `openssl s_client` without input.
    fn openssl(&self, arguments: &[&str]) -> Run {
        let mut openssl = self.cluster.program("openssl");
        openssl.args(["s_client", "-connect", &self.address.to_string(), "-CAfile"]);
        openssl.arg(self.certificates.path("authority.pem")).args(arguments).stdin(std::process::Stdio::null());
        self.cluster.run(openssl)
    }
}

/// A client with one connection, which is kept as long as the server keeps it.
struct Client {
    address: SocketAddr,
    name: String,
    config: Arc<ClientConfig>,
    connection: Option<BufReader<StreamOwned<ClientConnection, TcpStream>>>,
}

impl Client {
    fn new(address: SocketAddr, name: &str, authority: &Path) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).expect("a certificate")).expect("an authority");
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
        Client { address, name: name.into(), config: Arc::new(config), connection: None }
    }

    fn connect(&mut self) -> io::Result<&mut BufReader<StreamOwned<ClientConnection, TcpStream>>> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_nodelay(true)?;
            let name = self.name.clone().try_into().expect("a name");
            let session = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
            self.connection = Some(BufReader::new(StreamOwned::new(session, stream)));
        }
        Ok(self.connection.as_mut().expect("it is there"))
    }

    fn ask(&mut self, path: &str) -> io::Result<Answer> {
        let name = self.name.clone();
        let reader = self.connect()?;
        reader.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())?;
        let answer = read_answer(reader, false);
        if !answer.as_ref().is_ok_and(|answer| answer.header("connection") != "close") {
            self.connection = None;
        }
        answer
    }

    /// Returns the certificate that the server has shown on the connection there is.
    fn certificate(&self) -> Vec<u8> {
        let session = &self.connection.as_ref().expect("it has a connection").get_ref().conn;
        session.peer_certificates().expect("the server has one")[0].to_vec()
    }

    fn is_connected(&self) -> bool {
        self.connection.is_some()
    }
}

/// Clients that ask all the time, and what has failed.
struct Load {
    is_over: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// Starts so many clients; each `renewal`th request has a new connection.
    fn start(service: &Service, count: usize, renewal: u64) -> Load {
        let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..count).map(|_| service.client("shop.example"));
        let threads = clients.map(|mut client| {
            let (is_over, answered) = (Arc::clone(&is_over), Arc::clone(&answered));
            std::thread::spawn(move || {
                let (mut failures, mut number) = (Vec::new(), 0_u64);
                while !is_over.load(Ordering::Relaxed) {
                    if number.is_multiple_of(renewal) {
                        client.connection = None;
                    }
                    number += 1;
                    match client.ask("/") {
                        Ok(answer) if answer.status == 200 => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        other => failures.push(format!("request {number}: {other:?}")),
                    }
                }
                failures
            })
        });
        Load { threads: threads.collect(), is_over, answered }
    }

    #[track_caller]
    fn wait_for(&self, further: u64) {
        let enough = self.answered.load(Ordering::Relaxed) + further;
        wait_until(&format!("{further} more answers"), || {
            (self.answered.load(Ordering::Relaxed) >= enough).then_some(())
        });
    }

    #[track_caller]
    fn expect_none_failed(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let failures: Vec<_> = self.threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect();
        let answered = self.answered.load(Ordering::Relaxed);
        assert!(failures.is_empty(), "{} failed beside {answered} answers: {failures:#?}", failures.len());
    }
}

#[test]
fn clients_that_nobody_here_wrote_speak_both_versions_over_tls() {
    let Some(service) = Service::start(Cluster::builder().workers(1).hook(HOOK)) else { return };
    let status = service.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
    assert_eq!(status["services"][0]["url"], format!("https://{}/", service.address));
    for (version, told) in [("--http1.1", "http/1.1"), ("--http2", "h2")] {
        let Some(run) = service.curl(version, "https://shop.example:PORT/", &[]) else { return };
        let run = run.success();
        assert_eq!(run.stdout_text(), "hello");
        let said = run.stderr_text();
        assert!(
            said.contains(&format!("ALPN: server accepted {told}")) && said.contains("SSL certificate verify ok"),
            "{said}"
        );
    }
    for (arguments, expected) in [
        (&["-alpn", "h2", "-tls1_3"][..], &["ALPN protocol: h2", "TLSv1.3", "Verify return code: 0 (ok)"][..]),
        (&["-alpn", "http/1.1", "-tls1_2"], &["ALPN protocol: http/1.1", "TLSv1.2", "Verify return code: 0 (ok)"]),
        (&["-tls1_2"], &["No ALPN negotiated", "Verify return code: 0 (ok)"]),
    ] {
        let text = service.openssl(arguments).success().stdout_text();
        assert!(expected.iter().all(|expected| text.contains(expected)), "{arguments:?}: {text}");
    }
    assert!(service.openssl(&["-alpn", "h3"]).stderr_text().contains("no application protocol"));
    if Command::new("h2load").arg("--version").output().is_ok() {
        for version in ["h2", "http/1.1"] {
            let mut h2load = service.cluster.program("h2load");
            let list = format!("--npn-list={version}");
            h2load.args(["-n", "400", "-c", "4", "-m", "8", &list, &format!("https://{}/", service.address)]);
            let text = service.cluster.run(h2load).success().stdout_text();
            assert!(
                text.contains("400 succeeded, 0 failed") && text.contains(&format!("Application protocol: {version}")),
                "{text}"
            );
        }
    }
    let spans = service.cluster.wait_for_spans("spans of requests", |spans| {
        spans.iter().filter(|span| span.name().starts_with("replica_handle_request")).count() >= 2
    });
    let of_requests = spans.iter().filter(|span| span.name().contains("_request hello"));
    assert!(of_requests.clone().count() >= 4);
    of_requests.for_each(|span| assert_eq!(*span.attribute("url.scheme"), "https", "{}", span.name()));
}

#[test]
fn certificates_that_change_are_those_of_the_next_handshake_and_broken_ones_change_nothing() {
    let Some(service) = Service::start(Cluster::builder().workers(1)) else { return };
    let mut kept = service.client("shop.example");
    assert_eq!(kept.ask("/").unwrap().status, 200);
    let first = kept.certificate();
    let load = Load::start(&service, 2, 5);
    load.wait_for(20);
    service.certificates.make_for("one", &["shop.example"]);
    let mut next = service.client("shop.example");
    wait_until("a handshake has the new certificate", || {
        next.connection = None;
        assert_eq!(next.ask("/").unwrap().status, 200, "while the files change");
        (next.certificate() != first).then_some(())
    });
    let second = next.certificate();
    assert_eq!((kept.ask("/").unwrap().status, kept.certificate()), (200, first), "a connection goes on with its own");
    assert!(!service.warnings().contains("certificates have changed"), "{}", service.warnings());

    // A certificate whose key is another one's.
    let certificate = std::fs::read(service.certificates.path("server.pem")).unwrap();
    let before = std::fs::read(service.certificates.path("one.pem")).unwrap();
    std::fs::write(service.certificates.path("one.pem"), certificate).unwrap();
    load.wait_for(20);
    let warnings = wait_until("the service says that its certificates cannot be used", || {
        let warnings = service.warnings();
        warnings.contains("goes on with those that it had").then_some(warnings)
    });
    assert!(warnings.contains("expected the key of the certificate"), "{warnings}");
    next.connection = None;
    assert_eq!((next.ask("/").unwrap().status, next.certificate()), (200, second.clone()));
    let mistake = service.deploy("", "max_ongoing_requests = 20").status(1).stderr_text();
    assert!(mistake.contains("service.toml:6: `http.tls.key`: expected the key of the certificate"), "{mistake}");

    std::fs::write(service.certificates.path("one.pem"), before).unwrap();
    load.wait_for(20);
    wait_until("the service says nothing of certificates", || {
        (!service.warnings().contains("that it had")).then_some(())
    });
    next.connection = None;
    assert_eq!((next.ask("/").unwrap().status, next.certificate()), (200, second));
    load.expect_none_failed();
}

#[test]
fn a_proxy_that_dies_while_its_certificates_are_broken_is_back_when_they_are_not() {
    let Some(service) = Service::start(Cluster::builder().workers(1)) else { return };
    let key = std::fs::read(service.certificates.path("one.key")).unwrap();
    std::fs::write(service.certificates.path("one.key"), "").unwrap();
    let [proxy] = service.proxies()[..] else { panic!("there is one") };
    kill(u32::try_from(proxy).unwrap(), Signal::KILL);
    wait_until("the head has tried another one, which says why it cannot", || {
        let logs = service.cluster.session_dir().join("logs/serve");
        let files = std::fs::read_dir(logs).unwrap().flatten();
        let text: String = files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
        text.contains("the proxy cannot use its settings: expected a private key in PEM").then_some(())
    });
    std::fs::write(service.certificates.path("one.key"), key).unwrap();
    let mut client = service.client("shop.example");
    wait_until("the service answers", || client.ask("/").ok().filter(|answer| answer.status == 200).map(drop));
}

#[test]
fn warnings_of_certificates_are_there_after_a_head_that_was_killed() {
    let Some(service) = Service::start(Cluster::builder().workers(1)) else { return };
    let is_warned = || service.warnings().contains("goes on with those that it had");
    let [certificate, foreign] =
        ["one.pem", "server.pem"].map(|file| std::fs::read(service.certificates.path(file)).unwrap());
    let mut client = service.client("shop.example");
    for found_by_the_next in [false, true] {
        std::fs::write(service.certificates.path("one.pem"), &foreign).unwrap();
        if !found_by_the_next {
            assert_eq!(client.ask("/").unwrap().status, 200);
            wait_until("the service says that its certificates cannot be used", || is_warned().then_some(()));
            service.cluster.kill_head_and_wait_for_the_next();
            assert!(is_warned(), "the next head does not say it: {}", service.warnings());
        } else {
            // The handshake is while there is no head.
            service.cluster.kill_head();
            client.connection = None;
            assert_eq!(client.ask("/").unwrap().status, 200);
            service.cluster.wait_for_head();
            wait_until("the next head says it", || is_warned().then_some(()));
        }
        std::fs::write(service.certificates.path("one.pem"), &certificate).unwrap();
        client.connection = None;
        assert_eq!(client.ask("/").unwrap().status, 200);
        wait_until("the service says nothing of certificates", || (!is_warned()).then_some(()));
    }
}

#[test]
fn proxies_that_are_replaced_lose_no_request_of_connections_with_tls() {
    let Some(service) = Service::start(Cluster::builder().workers(1).hook(HOOK)) else { return };
    let (kept, renewed) = (Load::start(&service, 3, u64::MAX), Load::start(&service, 2, 5));
    let mut idle = service.client("shop.example");
    assert_eq!(idle.ask("/").unwrap().status, 200);
    for ratio in ["0.5", "0.25", "1.0"] {
        let before = service.proxies();
        kept.wait_for(20);
        // Another ratio is another proxy.
        let text = format!(
            "{}\n[tracing]\nsampling_ratio = {ratio}\n[[applications]]\nimport_path = \"shop:hello\"\n\
             [[applications.deployments]]\nimport_path = \"shop:hello\"\ndrain_timeout = \"10m\"\n",
            service.tls()
        );
        service.deploy_text(&text).success();
        assert_ne!(service.proxies().last(), before.last());
        // Its connection stays with the old proxy until it asks once more, and is told to go.
        assert!(idle.is_connected());
        assert_eq!(idle.ask("/").expect("it is answered by the proxy that it knows").status, 200);
        assert!(!idle.is_connected(), "the answer says that the connection is closed");
        assert_eq!(idle.ask("/").unwrap().status, 200);
        renewed.wait_for(5);
        wait_until("the old proxy has ended", || (service.proxies().len() == 1).then_some(()));
    }
    kept.expect_none_failed();
    renewed.expect_none_failed();
}

#[test]
fn a_service_that_is_shut_down_does_not_wait_for_connections_with_tls_that_have_nothing_to_do() {
    let Some(service) = Service::start(Cluster::builder().workers(1)) else { return };
    service.deploy("", "drain_timeout = \"10m\"").success();
    let mut idle = service.client("shop.example");
    assert_eq!(idle.ask("/").unwrap().status, 200);
    service.cluster.tracer(&["serve", "shutdown"]).success();
    // It is closed in an orderly way: an end without `close_notify` would be an error.
    assert_eq!(idle.connect().unwrap().read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_name_chooses_its_certificate_and_its_applications() {
    let Some(service) = Service::start(Cluster::builder().workers(1)) else { return };
    service.certificates.make_for("api", &["api.example.com"]);
    service.certificates.make_for("star", &["*.example.com"]);
    let path = |file: &str| service.certificates.path(file).display().to_string();
    let name = |host: &str, name: &str| {
        let (certificate, key) = (path(&format!("{name}.pem")), path(&format!("{name}.key")));
        format!("[[http.tls.names]]\nhost = \"{host}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")
    };
    let text = format!(
        "{}\n{}{}\
         [[applications]]\nname = \"main\"\nhost = \"shop.example\"\nimport_path = \"shop:hello\"\n\
         [[applications]]\nname = \"api\"\nhost = \"API.example.com\"\nimport_path = \"handlers:spanned\"\n\
         [[applications]]\nname = \"stars\"\nhost = \"*.example.com\"\nroute_prefix = \"/echo\"\nimport_path = \"shop:echo\"\n",
        service.tls(),
        name("api.example.com", "api"),
        name("*.example.com", "star"),
    );
    service.deploy_text(&text).success();
    let status = service.cluster.tracer(&["serve", "status"]).success().stdout_text();
    for route in ["shop.example/ ", "api.example.com/ ", "*.example.com/echo "] {
        assert!(status.contains(route), "`{route}` is missing: {status}");
    }
    let mut certificates = Vec::new();
    for (name, path, status, body) in [
        ("shop.example", "/", 200, Some("hello")),
        ("shop.example", "/echo", 200, Some("hello")),
        ("api.example.com", "/", 200, Some("well")),
        ("api.example.com", "/echo", 200, Some("")),
        ("www.example.com", "/echo", 200, Some("")),
        ("www.example.com", "/", 404, None),
        // The certificate for every name is for this one too.
        ("localhost", "/", 421, None),
    ] {
        let mut client = service.client(name);
        let answer = client.ask(path).unwrap_or_else(|error| panic!("{name}{path}: {error}"));
        assert_eq!(answer.status, status, "{name}{path}: {answer:?}");
        assert!(body.is_none_or(|body| answer.text() == body), "{name}{path}: {answer:?}");
        certificates.push(client.certificate());
    }
    let [shop, _, api, _, www, .., localhost] = &certificates[..] else { unreachable!() };
    assert!(shop == localhost && shop != api && api != www && shop != www, "each name has its own");
    // Over HTTP/2 the host is in the request's authority.
    if let Some(run) = service.curl("--http2", "https://api.example.com:PORT/", &[]) {
        assert_eq!(run.success().stdout_text(), "well");
    }
    service.certificates.make_for("api", &["other.example.com"]);
    assert_eq!(service.client("shop.example").ask("/").unwrap().status, 200);
    wait_until("the service says that a certificate is not for its host", || {
        service.warnings().contains("is chosen for `api.example.com`, and is not valid for that host").then_some(())
    });
}

#[test]
fn mistakes_with_certificates_name_the_line_the_key_and_what_was_found() {
    let Some(service) = Service::start(Cluster::builder().workers(1)) else { return };
    let path = |file: &str| service.certificates.path(file).display().to_string();
    std::fs::write(service.certificates.path("text.pem"), "no certificate").unwrap();
    let mut openssl = service.cluster.program("openssl");
    openssl.args(["pkey", "-aes256", "-passout", "pass:secret", "-in", &path("one.key"), "-out", &path("locked.key")]);
    service.cluster.run(openssl).success();
    for (certificate, key, line, expected) in [
        ("none.pem", "one.key", "5: `http.tls.certificate`: expected a file, found `", "none.pem`: No such file"),
        ("text.pem", "one.key", "5: `http.tls.certificate`: expected certificates in PEM, found none in", "text.pem"),
        ("one.key", "one.key", "5: `http.tls.certificate`: expected certificates in PEM, found none in", "one.key"),
        ("one.pem", "none.key", "6: `http.tls.key`: expected a file, found `", "none.key`: No such file"),
        ("one.pem", "one.pem", "6: `http.tls.key`: expected a private key in PEM", "one.pem"),
        (
            "one.pem",
            "locked.key",
            "6: `http.tls.key`: expected a private key in PEM without a pass phrase",
            "(hint: `openssl pkey",
        ),
        ("one.pem", "server.key", "6: `http.tls.key`: expected the key of the certificate", "found another one's in"),
    ] {
        let (certificate, key) = (path(certificate), path(key));
        let text = format!(
            "[http]\naddress = \"{}\"\n[http.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n\
             [[applications]]\nimport_path = \"shop:hello\"\n",
            service.address
        );
        let said = service.deploy_text(&text).status(1).stderr_text();
        assert!(said.contains(line) && said.contains(expected), "expected {line}… {expected}, found {said}");
    }
    assert_eq!(service.client("shop.example").ask("/").unwrap().status, 200, "what was served is");
    // The certificates of tests are short-lived.
    assert!(service.warnings().contains("one.pem` expires in 1 day, at 20"), "{}", service.warnings());
}

/// Counts of handshakes that have failed, by reason.
fn failed(service: &Service, reason: &str) -> u64 {
    let text = scrape(&service.cluster, "text/plain").text();
    let of_reason = format!("error_type=\"{reason}\"");
    let lines = text.lines().filter(|line| line.starts_with("tracer_serve_handshakes_failed_total{"));
    let values =
        lines.filter(|line| line.contains(&of_reason)).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

#[test]
fn handshakes_that_are_none_or_never_end_are_bounded_and_counted() {
    let builder = Cluster::builder().workers(1).arg("--http").arg("127.0.0.1:0");
    let Some(service) = Service::start(builder.env("TRACER_TEST_SETTING", "proxy_look_ms=100")) else { return };
    let open = || {
        let stream = TcpStream::connect(service.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    // Nothing, a part of a record, and a byte now and then: all are closed after the time for the head of a request.
    let (silent, mut torn, mut slow) = (open(), open(), open());
    torn.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).unwrap();
    let trickle = std::thread::spawn(move || {
        let mut sent = 0;
        for byte in [22, 3, 1, 0x3f, 0].into_iter().chain(std::iter::repeat(0)) {
            if slow.write_all(&[byte]).is_err() {
                break;
            }
            sent += 1;
            std::thread::park_timeout(Duration::from_millis(5));
        }
        sent
    });
    for mut stream in [silent, torn] {
        let _ = stream.read(&mut [0; 64]);
    }
    trickle.join().unwrap();
    wait_until("three were too slow", || (failed(&service, "timeout") >= 3).then_some(()));
    // Garbage in a record, a record that is too large, and a client of versions that nobody speaks any more.
    for bytes in [&[22, 3, 1, 0, 5, 9, 9, 9, 9, 9][..], &[22, 3, 1, 0xff, 0xff, 1], &[22, 3, 0, 0, 4, 1, 0, 0, 0]] {
        let mut stream = open();
        stream.write_all(bytes).unwrap();
        // What is too large is not even answered with an alert.
        let mut alert = Vec::new();
        let _ = stream.read_to_end(&mut alert);
        assert!(matches!(alert.first(), None | Some(21)), "{bytes:?} gets an alert at most: {alert:?}");
    }
    wait_until("three were no handshakes", || (failed(&service, "handshake_failure") >= 3).then_some(()));
    let mut plain = open();
    plain.write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", service.address).as_bytes()).unwrap();
    let answer = read_answer(&mut BufReader::new(plain), false).unwrap().problem(400, "malformed-request");
    assert!(answer["detail"].as_str().is_some_and(|detail| detail.contains("expected TLS")), "{answer}");
    drop(open());
    wait_until("one has gone, and one spoke plain HTTP", || {
        (failed(&service, "connection_closed") >= 1 && failed(&service, "not_tls") == 1).then_some(())
    });
    let mut client = service.client("shop.example");
    wait_until("others are served", || client.ask("/").ok().filter(|answer| answer.status == 200));
}

#[test]
fn connections_that_were_there_before_tls_go_on_without_it() {
    let Some(service) = Service::start(Cluster::builder().workers(1).hook(HOOK)) else { return };
    let without = format!(
        "[http]\naddress = \"{}\"\n[[applications]]\nimport_path = \"shop:hello\"\n[tracing]\nsampling_ratio = 1.0\n",
        service.address
    );
    service.deploy_text(&without).success();
    let mut plain = crate::support::Clients::at_rest(service.address, "/");
    assert_eq!(plain.ask().status(), Some(200));
    service.deploy("", "").success();
    assert_eq!(
        plain.ask().status(),
        Some(200),
        "its connection has come to another proxy, whose new clients speak TLS"
    );
    assert_eq!(service.client("shop.example").ask("/").unwrap().status, 200);
}
