//! An OTLP receiver that others wrote the essence of: the official protobuf classes, in Python.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::python::python_with;
use super::run::Background;
use super::skip::skip;
use super::wait::wait_until;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/otlp.py");

/// Python module that a receiver needs.
const PROTOCOL: &str = "opentelemetry.proto.collector.trace.v1.trace_service_pb2";
const PROTOCOL_GRPC: &str = "opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc";

/// A running receiver. Dropped, it is killed.
pub struct Receiver {
    process: Background,
    scheme: &'static str,
    port: u16,
}

impl Receiver {
    /// Starts one for HTTP; `tests/fixtures/otlp.py` explains the replies. None, which skips the test: there is no Python for it.
    #[track_caller]
    pub fn start(replies: &[&str]) -> Option<Receiver> {
        Receiver::run(PROTOCOL, "http", &["receive", "", "", ""], replies)
    }

    /// Starts one for HTTP over TLS. Clients need a certificate too when `asks` is set.
    #[track_caller]
    pub fn start_tls(tls: &Certificates, asks: bool, replies: &[&str]) -> Option<Receiver> {
        let [certificate, key, authority] = tls.of_server(asks);
        Receiver::run(PROTOCOL, "https", &["receive", &certificate, &key, &authority], replies)
    }

    /// Starts one for gRPC. One that does not take `any` compression takes none.
    #[track_caller]
    pub fn start_grpc(any: bool, replies: &[&str]) -> Option<Receiver> {
        let compression = if any { "any" } else { "none" };
        Receiver::run(PROTOCOL_GRPC, "http", &["receive-grpc", "", "", "", compression], replies)
    }

    /// Starts one for gRPC over TLS.
    #[track_caller]
    pub fn start_grpc_tls(tls: &Certificates, asks: bool, replies: &[&str]) -> Option<Receiver> {
        let [certificate, key, authority] = tls.of_server(asks);
        Receiver::run(PROTOCOL_GRPC, "https", &["receive-grpc", &certificate, &key, &authority, "any"], replies)
    }

    #[track_caller]
    fn run(module: &str, scheme: &'static str, arguments: &[&str], replies: &[&str]) -> Option<Receiver> {
        let mut command = Command::new(python_with(module)?);
        command.arg(SCRIPT).args(arguments).args(replies);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child: Child = command.spawn().expect("the receiver can be started");
        let process = Background::new(child, format!("otlp.py {}", arguments[0]), Vec::new());
        let port = wait_until("the receiver listens", || process.stdout_text().split_once('\n')?.0.parse().ok());
        Some(Receiver { process, scheme, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `http://127.0.0.1:<port>`, with TLS `https://…`.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Answers the requests that are held, and all further ones.
    #[track_caller]
    pub fn release(&mut self) {
        let stdin = self.process.child.stdin.as_mut().expect("its input is piped");
        stdin.write_all(b"\n").expect("the receiver reads");
        stdin.flush().expect("the receiver reads");
    }

    /// Returns what has come so far, in order.
    pub fn requests(&self) -> Vec<Value> {
        let text = self.process.stdout_text();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().skip(1).map(|line| serde_json::from_str(line).expect("the receiver prints JSON")).collect()
    }

    /// Returns the spans of the requests that were, or will be, answered with 200.
    pub fn accepted(&self) -> Vec<Value> {
        let taken = |request: &Value| request["reply"] == "200" || request["reply"] == "held";
        let requests = self.requests().into_iter().filter(taken);
        requests.flat_map(|request| request["spans"].as_array().expect("spans are a list").clone()).collect()
    }

    /// Waits until so many spans have come.
    #[track_caller]
    pub fn wait_for_spans(&self, count: usize) -> Vec<Value> {
        wait_until(&format!("{count} spans have arrived"), || Some(self.accepted()).filter(|it| it.len() >= count))
    }

    /// Waits until so many requests have come.
    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) -> Vec<Value> {
        wait_until(&format!("{count} requests have arrived"), || Some(self.requests()).filter(|it| it.len() >= count))
    }
}

/// An authority with certificates of its own making for a server at 127.0.0.1 and a client, in a folder that goes with it.
pub struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    /// None, which skips the test: there is no `openssl` to make them with.
    #[track_caller]
    pub fn make() -> Option<Certificates> {
        if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
            skip("openssl", "it makes the certificates");
            return None;
        }
        let made = Certificates { folder: tempfile::tempdir().expect("a folder for certificates") };
        made.certificate("authority", &["-addext", "basicConstraints=critical,CA:TRUE"]);
        for name in ["server", "client"] {
            let by = [made.path("authority.pem"), made.path("authority.key")].map(|path| path.display().to_string());
            let names = "subjectAltName=IP:127.0.0.1,DNS:localhost";
            let constraints = "basicConstraints=critical,CA:FALSE";
            made.certificate(name, &["-CA", &by[0], "-CAkey", &by[1], "-addext", names, "-addext", constraints]);
        }
        Some(made)
    }

    /// Makes a certificate `NAME.pem` with its key `NAME.key` for these hosts, signed by the authority, or replaces them.
    #[track_caller]
    pub fn make_for(&self, name: &str, hosts: &[&str]) {
        let by = [self.path("authority.pem"), self.path("authority.key")].map(|path| path.display().to_string());
        let names: Vec<_> = hosts.iter().map(|host| format!("DNS:{host}")).collect();
        let names = format!("subjectAltName=IP:127.0.0.1,{}", names.join(","));
        let constraints = "basicConstraints=critical,CA:FALSE";
        self.certificate(name, &["-CA", &by[0], "-CAkey", &by[1], "-addext", &names, "-addext", constraints]);
    }

    /// Replaces a certificate by one that has expired, of the same authority and for the same key.
    #[track_caller]
    pub fn expire(&self, name: &str) {
        let [certificate, own_key, request] =
            ["pem", "key", "csr"].map(|kind| self.path(&format!("{name}.{kind}")).display().to_string());
        let [authority, key] = ["pem", "key"].map(|kind| self.path(&format!("authority.{kind}")).display().to_string());
        let asked = [
            "req",
            "-new",
            "-key",
            &own_key,
            "-subj",
            "/CN=expired",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            &request,
        ];
        let signed = [
            "x509",
            "-req",
            "-in",
            &request,
            "-copy_extensions",
            "copy",
            "-CA",
            &authority,
            "-CAkey",
            &key,
            "-days",
            "-1",
            "-out",
            &certificate,
        ];
        for arguments in [&asked[..], &signed[..]] {
            let output = Command::new("openssl").args(arguments).output().expect("openssl runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[track_caller]
    fn certificate(&self, name: &str, further: &[&str]) {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
        openssl.args(["-subj", &format!("/CN=a {name} of the tests")]).args(further);
        openssl.arg("-keyout").arg(self.path(&format!("{name}.key")));
        openssl.arg("-out").arg(self.path(&format!("{name}.pem")));
        let output = openssl.output().expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// `authority.pem`, `client.pem`, `client.key` and so on.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn of_server(&self, asks: bool) -> [String; 3] {
        let text = |path: &Path| path.display().to_string();
        let authority = if asks { text(&self.path("authority.pem")) } else { String::new() };
        [text(&self.path("server.pem")), text(&self.path("server.key")), authority]
    }
}
