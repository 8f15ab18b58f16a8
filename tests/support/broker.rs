//! A real NATS server, in a folder and on a port of its own.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::skip;
use super::wait::{DEADLINE, wait_until};

/// The variable that says what runs as the server of a test: a [`Kind`].
const KIND: &str = "TRACER_TEST_BROKER";
/// The variable that names the program of a current version.
const CURRENT: &str = "TRACER_CURRENT_NATS_SERVER";
/// The variable that names a file to which each server that starts adds its version.
const STARTED: &str = "TRACER_TEST_BROKERS";

/// Program, settings and number of the servers of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The one that is installed: Debian's is 2.9.10.
    Debian,
    /// A current one.
    Current,
    /// A current one that syncs each write before it acknowledges.
    Always,
    /// Three of those; where a test has a configuration of its own, one.
    Cluster,
}

impl Kind {
    /// Returns the one that is asked for by [`KIND`].
    fn of_tests() -> Kind {
        match std::env::var(KIND).as_deref() {
            Err(_) | Ok("" | "debian") => Kind::Debian,
            Ok("current") => Kind::Current,
            Ok("always") => Kind::Always,
            Ok("cluster") => Kind::Cluster,
            Ok(other) => panic!("{KIND}: expected `debian`, `current`, `always` or `cluster`, found `{other}`"),
        }
    }

    /// Returns the program and its version; none, and the test is skipped, if there is none. Debian has its own where only root looks.
    fn program(self) -> Option<&'static (String, String)> {
        static PROGRAMS: [OnceLock<Option<(String, String)>>; 2] = [const { OnceLock::new() }; 2];
        let with_version = |program: String| {
            let said = Command::new(&program).arg("--version").output().ok()?.stdout;
            Some((program, String::from_utf8_lossy(&said).trim().replace("nats-server: v", "nats-server ")))
        };
        if self == Kind::Debian {
            let programs = || ["nats-server", "/usr/sbin/nats-server"].map(str::to_owned).into_iter();
            let found = PROGRAMS[0].get_or_init(|| programs().find_map(with_version));
            return found.as_ref().or_else(|| {
                skip("nats-server", "it is not installed");
                None
            });
        }
        let found = PROGRAMS[1].get_or_init(|| with_version(std::env::var(CURRENT).ok()?));
        found.as_ref().or_else(|| {
            skip("current nats-server", format!("{CURRENT} names none"));
            None
        })
    }
}

/// Returns the program that tests run as a server; none, and the test is skipped, if there is none.
pub fn broker_program() -> Option<&'static str> {
    Kind::of_tests().program().map(|(program, _)| program.as_str())
}

/// A `nats-server` with JetStream, or three. Dropped, it is killed.
pub struct Broker {
    kind: Kind,
    folder: tempfile::TempDir,
    host: IpAddr,
    port: u16,
    is_tls: bool,
    has_jetstream: bool,
    /// Lines of its configuration beside where it listens and keeps things.
    configuration: String,
    /// File that is all of its configuration, of one that was started with such.
    file: Option<PathBuf>,
    child: Option<Child>,
    /// Further servers of its cluster, to which everything happens that happens to it.
    others: Vec<Broker>,
}

impl Broker {
    /// Starts one, or three that keep three copies, or skips the test.
    pub fn start() -> Option<Broker> {
        match Kind::of_tests() {
            Kind::Cluster => {
                let mut others = Broker::start_three()?;
                let mut first = others.remove(0);
                first.others = others;
                Some(first)
            }
            _ => Broker::start_with("", true),
        }
    }

    /// Starts one that has no JetStream, or skips the test.
    pub fn start_without_jetstream() -> Option<Broker> {
        Broker::start_with("", false)
    }

    /// Starts one with further lines of configuration, or skips the test.
    pub fn start_configured(configuration: &str) -> Option<Broker> {
        Broker::start_with(configuration, true)
    }

    /// Starts one that listens on this address of the machine, or skips the test.
    pub fn start_on(host: IpAddr, configuration: &str) -> Option<Broker> {
        Broker::start_at(host, configuration, true)
    }

    /// Starts three current ones that know each other and sync each write, and makes streams with three copies on them; or skips the test. A client goes to
    /// the others only with `--insecure-engine` where there is no TLS.
    pub fn start_three() -> Option<Vec<Broker>> {
        Kind::Cluster.program()?;
        let port = free_ports_of_servers();
        let route = |at: u16| format!("nats://127.0.0.1:{}", port + at + 2000);
        let start = |at: u16| {
            let mut broker = Broker::unstarted(Kind::Cluster, port + at)?;
            let routes: Vec<_> = (0..3).filter(|other| *other != at).map(route).collect();
            let routes = routes.join(", ");
            broker.configuration = format!(
                "server_name: tracer-{}\nhttp: 127.0.0.1:{}\ncluster {{ name: tracer, listen: 127.0.0.1:{}, routes: [ {routes} ] }}\n",
                at + 1,
                port + at + 4000,
                port + at + 2000
            );
            broker.run();
            Some(broker)
        };
        let brokers = (0..3).map(start).collect::<Option<Vec<_>>>()?;
        let mut init = Command::new(env!("CARGO_BIN_EXE_tracer"));
        init.env_clear().args([
            "engine",
            "init",
            "--replicas",
            "3",
            "--queue",
            "default",
            "--address",
            &brokers[0].address(),
        ]);
        // Servers that have just started have to find each other first.
        wait_until("the servers take streams", || {
            let run = init.output().expect("it starts");
            run.status.success().then_some(())
        });
        Some(brokers)
    }

    fn start_with(configuration: &str, has_jetstream: bool) -> Option<Broker> {
        Broker::start_at(Ipv4Addr::LOCALHOST.into(), configuration, has_jetstream)
    }

    fn start_at(host: IpAddr, configuration: &str, has_jetstream: bool) -> Option<Broker> {
        let mut broker = Broker::unstarted(Kind::of_tests(), free_port())?;
        broker.host = host;
        broker.is_tls = configuration.contains("tls {");
        broker.has_jetstream = has_jetstream;
        broker.configuration = configuration.to_owned();
        broker.run();
        Some(broker)
    }

    fn unstarted(kind: Kind, port: u16) -> Option<Broker> {
        kind.program()?;
        Some(Broker {
            kind,
            folder: tempfile::Builder::new().prefix("tracer-broker-").tempdir().expect("a folder for the broker"),
            host: Ipv4Addr::LOCALHOST.into(),
            port,
            is_tls: false,
            has_jetstream: true,
            configuration: String::new(),
            file: None,
            child: None,
            others: Vec::new(),
        })
    }

    /// Starts one with a configuration file that says all, this port of loopback among it; or skips the test.
    pub fn start_file(file: &Path, port: u16) -> Option<Broker> {
        let mut broker = Broker::unstarted(Kind::of_tests(), port)?;
        broker.configuration = std::fs::read_to_string(file).expect("there is a configuration");
        broker.is_tls = broker.configuration.contains("tls {");
        broker.file = Some(file.into());
        broker.run();
        Some(broker)
    }

    /// Returns the version of the servers that `tracer engine config` is to write files for.
    pub fn version_of_tests() -> Option<String> {
        Kind::of_tests().program().map(|(_, version)| version.trim_start_matches("nats-server ").to_owned())
    }

    fn run(&mut self) {
        let (program, version) = self.kind.program().expect("it was found");
        let mut command = Command::new(program);
        let file = self.file.clone().unwrap_or_else(|| {
            let file = self.folder.path().join("nats.conf");
            let sync = match self.kind {
                Kind::Debian | Kind::Current => "",
                Kind::Always | Kind::Cluster => "\n  sync_interval: always",
            };
            let jetstream = match self.has_jetstream {
                true => format!("jetstream {{\n  store_dir: \"{}\"{sync}\n}}\n", self.folder.path().display()),
                false => String::new(),
            };
            std::fs::write(&file, format!("{jetstream}{}", self.configuration)).expect("its folder is ours");
            command.args(["-a", &self.host.to_string(), "-p", &self.port.to_string()]);
            file
        });
        note_start(version, &std::fs::read_to_string(&file).expect("it is there"));
        command.arg("-c").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the broker starts"));
        wait_until("the broker listens", || TcpStream::connect(SocketAddr::new(self.host, self.port)).ok());
    }

    /// `nats://127.0.0.1:PORT`; with `tls` in its configuration `tls://`.
    pub fn address(&self) -> String {
        let scheme = if self.is_tls { "tls" } else { "nats" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a message with these headers, each a line, as any client could, and returns the answer.
    pub fn request(&self, subject: &str, headers: &[&str], payload: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(SocketAddr::new(self.host, self.port)).expect("the broker listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket has a timeout");
        let head = headers.iter().fold("NATS/1.0\r\n".to_owned(), |head, line| head + line + "\r\n") + "\r\n";
        let sizes = format!("{} {}", head.len(), head.len() + payload.len());
        let mut message =
            format!("CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB answer.{0} 1\r\nHPUB {subject} answer.{0} {sizes}\r\n{head}", self.port)
                .into_bytes();
        message.extend([payload, b"\r\n"].concat());
        stream.write_all(&message).expect("the broker reads");
        read_answer(&mut BufReader::new(stream))
    }

    /// Signs in with the seed of an nkey.
    pub fn sign_in(&self, seed: &str) -> SignedIn {
        let stream = TcpStream::connect(SocketAddr::new(self.host, self.port)).expect("the broker listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket has a timeout");
        let mut lines = BufReader::new(stream);
        let mut info = String::new();
        lines.read_line(&mut info).expect("the broker introduces itself");
        let info: Value = serde_json::from_str(info.trim().trim_start_matches("INFO ")).expect("JSON");
        let key = nkeys::KeyPair::from_seed(seed).expect("a seed");
        let signature = key.sign(info["nonce"].as_str().expect("it asks for nkeys").as_bytes()).expect("it signs");
        let (nkey, sig) = (key.public_key(), base64_url(&signature));
        let connect = json!({ "nkey": nkey, "sig": sig, "verbose": false, "pedantic": false, "headers": true });
        let mut client = SignedIn { lines };
        client.write(&format!("CONNECT {connect}\r\n"));
        client.refusal().map_or(client, |refusal| panic!("it is not let in: {refusal}"))
    }

    /// Publishes something, as any client could that signs in with this seed or needs not to, and waits until the broker has it.
    pub fn publish(&self, seed: Option<&str>, subject: &str, payload: &[u8]) {
        let mut client = match seed {
            Some(seed) => self.sign_in(seed),
            None => {
                let stream = TcpStream::connect(SocketAddr::new(self.host, self.port)).expect("the broker listens");
                stream.set_read_timeout(Some(DEADLINE)).expect("a socket has a timeout");
                let mut client = SignedIn { lines: BufReader::new(stream) };
                client.lines.read_line(&mut String::new()).expect("the broker introduces itself");
                client.write("CONNECT {\"verbose\":false}\r\n");
                client
            }
        };
        client.publish(subject, payload);
    }

    /// Asks JetStream's interface something, and returns the answer.
    pub fn jetstream(&self, subject: &str, question: &Value) -> Value {
        let answer = self.request(&format!("$JS.API.{subject}"), &[], question.to_string().as_bytes());
        serde_json::from_slice(&answer).expect("JSON")
    }

    /// Returns the number of servers that it stands for.
    pub fn servers(&self) -> usize {
        1 + self.others.len()
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            child.wait().expect("it is ours");
        }
        self.others.iter_mut().for_each(Broker::kill);
    }

    /// Sends a signal to it while it runs.
    pub fn signal(&self, signal: Signal) {
        super::kill(self.child.as_ref().expect("it runs").id(), signal);
        self.others.iter().for_each(|other| other.signal(signal));
    }

    /// Has one that was stopped go on, and starts one that was killed again.
    pub fn come_back(&mut self) {
        match &self.child {
            Some(child) => super::kill(child.id(), Signal::CONT),
            None => self.run(),
        }
        self.others.iter_mut().for_each(Broker::come_back);
    }

    /// Kills it, and starts it again with other lines of configuration.
    pub fn start_again_with(&mut self, configuration: &str) {
        self.kill();
        configuration.clone_into(&mut self.configuration);
        self.run();
    }

    /// Starts it again if it has ended by itself, as whoever supervises it would: 2.9.10 dereferences a null pointer when it is asked for a message of a stream
    /// that is just being made.
    pub fn supervise(&mut self) {
        if self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            self.child = None;
            self.run();
        }
        self.others.iter_mut().for_each(Broker::supervise);
    }

    /// Removes all that one has on its disk that was killed.
    pub fn wipe(&self) {
        std::fs::remove_dir_all(self.folder.path().join("jetstream")).expect("its folder is ours");
        self.others.iter().for_each(Broker::wipe);
    }

    /// Removes the messages of a stream on the disk of one that was killed, and keeps what its consumers know: the stream forgets how far its sequence had come.
    pub fn wipe_messages(&self, stream: &str) {
        let messages = self.folder.path().join("jetstream/$G/streams").join(stream).join("msgs");
        std::fs::remove_dir_all(messages).expect("its folder is ours");
        self.others.iter().for_each(|other| other.wipe_messages(stream));
    }
}

/// Adds a server that starts to the list of the gate (`.ci/run`), which cannot see what a test prints that passes.
fn note_start(version: &str, configuration: &str) {
    let Some(path) = std::env::var_os(STARTED) else { return };
    let sync = if configuration.contains("\n  sync_interval: always") { ", sync_interval: always" } else { "" };
    let cluster = if configuration.contains("\ncluster {") { ", one of three" } else { "" };
    let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("the list can be written to");
    // One write, because several test binaries may append at once.
    file.write_all(format!("{version}{sync}{cluster}\n").as_bytes()).expect("the list can be written to");
}

/// A client of a broker that has signed in.
pub struct SignedIn {
    lines: BufReader<TcpStream>,
}

impl SignedIn {
    fn write(&mut self, text: &str) {
        self.lines.get_mut().write_all(text.as_bytes()).expect("the broker reads");
    }

    /// Waits until the broker has taken all in, and returns what it refused.
    fn refusal(&mut self) -> Option<String> {
        self.write("PING\r\n");
        let mut refusal = None;
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("the broker answers"), 0, "closed after {refusal:?}");
            match line.trim() {
                "PONG" => return refusal,
                "PING" => self.write("PONG\r\n"),
                said if said.starts_with("-ERR") => refusal = Some(said.to_owned()),
                _ => {}
            }
        }
    }

    /// Publishes something, and waits until the broker has it.
    pub fn publish(&mut self, subject: &str, payload: &[u8]) {
        self.write(&format!("PUB {subject} {}\r\n", payload.len()));
        self.lines.get_mut().write_all(&[payload, b"\r\n"].concat()).expect("the broker reads");
        assert_eq!(self.refusal(), None, "{subject}");
    }

    /// Sends a message and returns the answer to it.
    pub fn request(&mut self, subject: &str, payload: &[u8]) -> Vec<u8> {
        self.write(&format!("SUB answer 1\r\nPUB {subject} answer {}\r\n", payload.len()));
        self.lines.get_mut().write_all(&[payload, b"\r\n"].concat()).expect("the broker reads");
        read_answer(&mut self.lines)
    }

    /// Publishes nothing under a subject, and returns whether that is permitted.
    pub fn may_publish(&mut self, subject: &str) -> bool {
        self.write(&format!("PUB {subject} 0\r\n\r\n"));
        self.is_permitted()
    }

    /// Subscribes, and returns whether that is permitted.
    pub fn may_subscribe(&mut self, subject: &str) -> bool {
        self.write(&format!("SUB {subject} 9\r\n"));
        self.is_permitted()
    }

    fn is_permitted(&mut self) -> bool {
        match self.refusal() {
            None => true,
            Some(refusal) if refusal.contains("Permissions Violation") => false,
            Some(refusal) => panic!("{refusal}"),
        }
    }
}

/// Reads what comes until it is a message, and returns that.
fn read_answer(lines: &mut BufReader<TcpStream>) -> Vec<u8> {
    let length: usize = loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).expect("the broker answers"), 0, "the broker has closed");
        assert!(!line.starts_with("-ERR"), "{line}");
        if line.starts_with("MSG ") {
            break line.trim().rsplit(' ').next().and_then(|length| length.parse().ok()).expect("a length");
        }
    };
    let mut answer = vec![0; length + 2];
    lines.read_exact(&mut answer).expect("the broker answers");
    answer.truncate(length);
    answer
}

/// Returns bytes as URLs have them.
pub fn base64_url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |bits: u32| char::from(DIGITS[(bits & 63) as usize]);
    let mut text = String::new();
    for piece in bytes.chunks(3) {
        let bits = piece.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - piece.len()));
        text.extend((0..=piece.len()).map(|at| digit(bits >> (18 - 6 * at))));
    }
    text
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a port on which nobody listens, and that no other test is given. Those that the kernel gives to connections are above.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    free_among(18_000..32_000, &NEXT, &[0])
}

/// Returns a port such that it and the next two are free, with the ports that servers of a cluster have beside them.
pub fn free_ports_of_servers() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    free_among(12_000..14_000, &NEXT, &[0, 1, 2, 2000, 2001, 2002, 4000, 4001, 4002])
}

/// Returns a port of a range such that all at these distances are free.
fn free_among(range: Range<u16>, next: &AtomicU32, distances: &[u16]) -> u16 {
    wait_until("there is a free port", || {
        // Processes that test at the same time begin elsewhere.
        let at = std::process::id().wrapping_mul(61).wrapping_add(next.fetch_add(4, Relaxed));
        let port = range.start + (at % range.len() as u32) as u16;
        let is_free = |distance: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port + distance)).is_ok();
        distances.iter().all(is_free).then_some(port)
    })
}
