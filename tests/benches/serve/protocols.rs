//! gRPC, WebSockets, programs and TLS, each beside the same server without anything before it, or behind nginx.

use std::cell::{Cell, RefCell};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

use super::client::percentile;
use super::floors::{Role, wait_for_socket};
use super::load::{Body, Load, Measured, cpu_of};
use super::service::{self, Service, one};
use super::{Failure, Server, compare, peers};

/// Messages of one stream.
const MESSAGES: u32 = 10_000;
/// Connections of WebSocket, each with a message under way.
const TALKS: usize = 32;
/// Bytes of a message over WebSocket.
const TEXT: [u8; 32] = [b'x'; 32];

/// A server of the interoperability tests without anything before it, or uvicorn.
struct Alone {
    port: u16,
    role: Role,
    _folder: Option<tempfile::TempDir>,
}

impl Server for Alone {
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn processes(&self) -> Vec<(String, u32)> {
        vec![("server".into(), self.role.pid())]
    }
}

fn alone(which: &str) -> Result<Box<dyn Server>, Failure> {
    let program = service::build("interop", "interop_server")?.join("interop_server");
    let child = Command::new(program).arg(which).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut role = Role::of(child);
    Ok(Box::new(Alone { port: role.port()?, role, _folder: None }))
}

/// Measures calls and streams of gRPC, and shows.
pub(crate) fn grpc(seconds: u32, runs: usize) -> Result<(), Failure> {
    let servers =
        [("tonic alone", alone("grpc")?), ("tracer serve, traced", service::of("interop:plain_service", true)?)];
    let path = "/grpc.testing.TestService/UnaryCall";
    let call = Load { streams: 8, body: Body::Message(|| message(&[])), ..Load::get(4, path) };
    compare("grpc, unary", &call, &servers, seconds, runs)?;
    // A stream at a time, so the rate is that of its messages in ten thousands.
    let path = "/grpc.testing.TestService/StreamingOutputCall";
    let stream = Load { streams: 1, body: Body::Message(many_answers), ..Load::get(1, path) };
    compare(&format!("grpc, streams of {MESSAGES} messages"), &stream, &servers, seconds, runs)
}

/// Frames a message of gRPC, uncompressed.
fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("it is small");
    [&[0], &length.to_be_bytes()[..], bytes].concat()
}

/// Returns the request of a `StreamingOutputCall` for answers of 100 bytes each.
fn many_answers() -> Vec<u8> {
    // `response_parameters`, the second field, of two bytes each: `size`, the first field, is 100.
    let answers: Vec<u8> = (0..MESSAGES).flat_map(|_| [2 << 3 | 2, 2, 1 << 3, 100]).collect();
    message(&answers)
}

/// Measures an echo over WebSocket, and shows.
pub(crate) fn websocket(seconds: u32, runs: usize) -> Result<(), Failure> {
    let servers = [("axum alone", alone("websocket")?), ("tracer serve, traced", service::of("interop:echo", true)?)];
    let mut found = [Vec::new(), Vec::new()];
    for number in 0..=runs {
        for ((name, server), found) in servers.iter().zip(&mut found) {
            let seconds = if number == 0 { 1 } else { seconds };
            let measured = talk(&**server, seconds).map_err(|error| format!("{name}: {error}"))?;
            if number > 0 {
                found.push(measured);
            }
        }
    }
    println!("\nwebsocket: an echo of {} bytes over {TALKS} connections", TEXT.len());
    println!("{:<26}{:>12}{:>10}{:>10}{:>10}{:>10}", "", "messages/s", "ratio", "p50 µs", "p99 µs", "CPU µs");
    let alone = Measured::median(&found[0]).per_second;
    for ((name, _), found) in servers.iter().zip(&found) {
        let Measured { per_second, p50_us, p99_us, cpu } = Measured::median(found);
        let all: f64 = cpu.iter().map(|(_, us)| us).sum();
        let ratio = per_second / alone;
        println!("{name:<26}{per_second:>12.0}{ratio:>10.2}{p50_us:>10.0}{p99_us:>10.0}{all:>10.1}");
    }
    Ok(())
}

/// Talks over all connections for so long, each message as soon as the one before has come back.
fn talk(server: &dyn Server, seconds: u32) -> Result<Measured, Failure> {
    let url = server.url();
    let address = url.strip_prefix("http://").ok_or("no address")?.to_owned();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let times = Rc::new(RefCell::new(Vec::new()));
    let has_ended = Rc::new(Cell::new(false));
    LocalSet::new().block_on(&runtime, async {
        let mut streams = Vec::new();
        for _ in 0..TALKS {
            streams.push(upgraded(&address).await?);
        }
        let before = cpu_of(server)?;
        let begun = Instant::now();
        let talks: Vec<_> = streams
            .into_iter()
            .map(|stream| spawn_local(echoes(stream, Rc::clone(&times), Rc::clone(&has_ended))))
            .collect();
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        has_ended.set(true);
        for talk in talks {
            talk.await??;
        }
        let elapsed = begun.elapsed().as_secs_f64();
        let mut times = times.take();
        let count = times.len() as f64;
        let cpu = cpu_of(server)?.into_iter().zip(before);
        let cpu = cpu.map(|((name, after), (_, before))| (name, (after - before) as f64 / 1e3 / count)).collect();
        let [p50_us, p99_us] = [50, 99].map(|percent| percentile(&mut times, percent).as_secs_f64() * 1e6);
        Ok(Measured { per_second: count / elapsed, p50_us, p99_us, cpu })
    })
}

/// Opens a connection of WebSocket.
async fn upgraded(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let head = "GET / HTTP/1.1\r\nhost: bench\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    if answer.starts_with(b"HTTP/1.1 101 ") {
        Ok(stream)
    } else {
        Err(format!("no WebSocket: {}", String::from_utf8_lossy(&answer)).into())
    }
}

async fn echoes(
    mut stream: TcpStream,
    times: Rc<RefCell<Vec<Duration>>>,
    has_ended: Rc<Cell<bool>>,
) -> Result<(), std::io::Error> {
    // A whole message of binary data. What clients send is masked, here with zeros, which change nothing.
    let length = TEXT.len() as u8;
    let frame = [&[0x82, 0x80 | length, 0, 0, 0, 0][..], &TEXT].concat();
    let mut answer = [0; 2 + TEXT.len()];
    while !has_ended.get() {
        let begun = Instant::now();
        stream.write_all(&frame).await?;
        stream.read_exact(&mut answer).await?;
        assert_eq!((&answer[..2], &answer[2..]), (&[0x82, length][..], &TEXT[..]), "the echo is another");
        times.borrow_mut().push(begun.elapsed());
    }
    Ok(())
}

/// The application of FastAPI.
const FASTAPI: &str =
    "import fastapi\napp = fastapi.FastAPI()\n@app.get('/')\nasync def hello():\n    return {'hello': 'world'}\n";
const UVICORN: [&str; 5] = ["-m", "uvicorn", "hello:app", "--no-access-log", "--log-level=warning"];

/// Measures FastAPI under uvicorn, and shows.
pub(crate) fn program(seconds: u32, runs: usize) -> Result<(), Failure> {
    let python = std::env::var_os("PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    if !Command::new(&python).args(["-c", "import fastapi, uvicorn"]).stderr(Stdio::null()).status()?.success() {
        eprintln!("skipped: program: {} has no fastapi and uvicorn; `PYTHON` names another", python.display());
        return Ok(());
    }
    let folder = peers::new_folder()?;
    fs::write(folder.path().join("hello.py"), FASTAPI)?;
    let uvicorn = |place: &[&str]| -> Result<Role, Failure> {
        let mut command = Command::new(&python);
        command.current_dir(&folder).args(UVICORN).args(place).stdin(Stdio::null());
        Ok(Role::of(command.spawn()?))
    };
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let role = uvicorn(&["--port", &port.to_string()])?;
    role.wait_for_port(port)?;
    let on_socket = |folder: &Path| {
        let socket = folder.join("upstream.sock");
        let role = uvicorn(&["--uds", socket.to_str().ok_or("the target folder has a name that is no text")?])?;
        wait_for_socket(&socket)?;
        Ok(role)
    };
    let words = [python.to_str().ok_or("`PYTHON` is no text")?].into_iter().chain(UVICORN).chain(["--uds", "{socket}"]);
    let (words, cwd) = (words.collect::<Vec<_>>(), folder.path());
    let application = format!(
        "[[applications]]\n[[applications.deployments]]\nname = \"Hello\"\ncommand = {words:?}\ncwd = {cwd:?}\n"
    );
    let servers: [(&str, Box<dyn Server>); 3] = [
        ("uvicorn alone", Box::new(Alone { port, role, _folder: None })),
        ("nginx to uvicorn", peers::nginx_before(peers::new_folder()?, on_socket, "")?),
        ("tracer serve, traced", Box::new(Service::start(&application, true, &[])?)),
    ];
    compare("program", &Load::get(32, "/"), &servers, seconds, runs)?;
    compare("program, alone", &Load::get(1, "/"), &servers, seconds, runs)
}

/// Measures hello over TLS, and shows.
pub(crate) fn tls(seconds: u32, runs: usize) -> Result<(), Failure> {
    let folder = peers::new_folder()?;
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-out"]).arg(&certificate).arg("-keyout").arg(&key);
    service::succeed(openssl)?;
    let [certificate, key] = [&certificate, &key].map(|path| path.display().to_string());
    let listen = format!("ssl; ssl_certificate {certificate}; ssl_certificate_key {key}");
    let applications = format!("[http.tls]\ncertificate = {certificate:?}\nkey = {key:?}\n{}", one("handlers:app"));
    let servers: [(&str, Box<dyn Server>); 3] = [
        ("nginx to hyper", peers::nginx_before(peers::new_folder()?, super::floors::upstream, &listen)?),
        ("tracer serve, untraced", Box::new(Service::start(&applications, false, &[])?)),
        ("tracer serve, traced", Box::new(Service::start(&applications, true, &[])?)),
    ];
    compare("tls", &Load::get(32, "/"), &servers, seconds, runs)
}
