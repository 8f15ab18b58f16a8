//! Floors: the least that a server, and a server behind a proxy, can do. Each role is a process of this program with one thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};
use tracer::lane::{self, Frame, Opening};
use tracer::protocol::frame::FrameBuffer;

use super::load::Load;
use super::{Failure, Server};

const STARTING: Duration = Duration::from_secs(10);
const MEBIBYTE: &[u8] = &[b'x'; 1 << 20];

/// A process, killed when it is dropped.
pub(crate) struct Role(Child);

impl Role {
    pub(crate) fn of(child: Child) -> Role {
        Role(child)
    }

    pub(crate) fn start(arguments: &[&str]) -> Result<Role, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("role").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(Role(command.spawn()?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the port, or other number, that it prints when it has started.
    pub(crate) fn port(&mut self) -> Result<u16, Failure> {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().ok_or("it has no output")?).read_line(&mut line)?;
        line.trim().parse().map_err(|_| format!("a floor has not started: it said `{}`", line.trim()).into())
    }

    pub(crate) fn wait_for_port(&self, port: u16) -> Result<(), Failure> {
        let deadline = Instant::now() + STARTING;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err(format!("nobody listens on port {port}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub(crate) fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Floor {
    port: u16,
    roles: Vec<(&'static str, Role)>,
    /// False for frames: the least that a proxy over them does is without bodies of requests.
    passes_bodies: bool,
    _folder: Option<TempDir>,
}

impl Server for Floor {
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn takes(&self, load: &Load) -> bool {
        !load.is_upload() || self.passes_bodies
    }

    fn processes(&self) -> Vec<(String, u32)> {
        self.roles.iter().map(|(name, role)| ((*name).into(), role.pid())).collect()
    }
}

/// Returns one hyper process.
pub(crate) fn bare() -> Result<Box<dyn Server>, Failure> {
    let mut role = Role::start(&["bare"])?;
    Ok(Box::new(Floor { port: role.port()?, roles: vec![("server", role)], passes_bodies: true, _folder: None }))
}

/// The process behind a proxy: hyper on a Unix socket in this folder.
pub(crate) fn upstream(folder: &Path) -> Result<Role, Failure> {
    behind("upstream", folder)
}

fn behind(role: &str, folder: &Path) -> Result<Role, Failure> {
    let socket = folder.join("upstream.sock");
    let role = Role::start(&[role, socket.to_str().ok_or("the target folder has a name that is no text")?])?;
    wait_for_socket(&socket)?;
    Ok(role)
}

/// Waits until a process listens on a Unix socket.
pub(crate) fn wait_for_socket(socket: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + STARTING;
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        if Instant::now() > deadline {
            return Err("the process behind the proxy has not started".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// hyper, a pool of connections, and a second hyper process.
pub(crate) fn relay() -> Result<Box<dyn Server>, Failure> {
    proxied("relay", "upstream")
}

/// hyper, one lane, and a second process that answers frames.
pub(crate) fn frames() -> Result<Box<dyn Server>, Failure> {
    proxied("frames", "answering_frames")
}

fn proxied(front: &str, back: &'static str) -> Result<Box<dyn Server>, Failure> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let back = behind(back, folder.path())?;
    let socket = folder.path().join("upstream.sock");
    let mut process = Role::start(&[front, socket.to_str().unwrap_or_default()])?;
    let port = process.port()?;
    let roles = vec![("proxy", process), ("upstream", back)];
    Ok(Box::new(Floor { port, roles, passes_bodies: front != "frames", _folder: Some(folder) }))
}

/// Runs a role until it is killed.
pub(crate) fn run_role(role: &[String]) -> Result<(), Failure> {
    if let [name, kind, address] = role
        && name == "hostile"
    {
        return super::hostile::run(kind, address);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let socket = role.get(1).map(PathBuf::from).unwrap_or_default();
    local.block_on(&runtime, async move {
        match role[0].as_str() {
            "bare" => serve_tcp(answer).await,
            "upstream" => serve_unix(&socket).await,
            "relay" => {
                let pool = Rc::new(Pool { socket, idle: RefCell::default() });
                serve_tcp(move |request| Rc::clone(&pool).forward(request)).await
            }
            "frames" => {
                let caller = Caller::connect(&socket).await?;
                serve_tcp(move |request| Rc::clone(&caller).call(request)).await
            }
            "answering_frames" => answer_frames(&socket).await,
            other => Err(format!("there is no role `{other}`").into()),
        }
    })
}

/// A body of this program's: all of it, or events without an end.
enum Answered {
    Whole(Full<Bytes>),
    Events(tokio::time::Interval),
}

/// Interval between events.
const EVENT: Duration = Duration::from_millis(100);

impl Body for Answered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Answered::Whole(body) => Pin::new(body).poll_frame(context),
            Answered::Events(ticks) => ticks
                .poll_tick(context)
                .map(|_| Some(Ok(hyper::body::Frame::data(Bytes::from_static(b"data: hello\n\n"))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answered::Whole(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answered::Whole(body) => body.size_hint(),
            Answered::Events(_) => SizeHint::default(),
        }
    }
}

async fn answer(request: Request<Incoming>) -> Response<Answered> {
    let body: &'static [u8] = match request.uri().path() {
        "/mebibyte" => MEBIBYTE,
        "/events" => return Response::new(Answered::Events(tokio::time::interval(EVENT))),
        "/sink" => {
            let mut body = request.into_body();
            while body.frame().await.is_some_and(|frame| frame.is_ok()) {}
            b"hello"
        }
        _ => b"hello",
    };
    Response::new(Answered::Whole(Full::new(Bytes::from_static(body))))
}

async fn serve_tcp<F, R, B>(handle: F) -> Result<(), Failure>
where
    F: Fn(Request<Incoming>) -> R + Clone + 'static,
    R: Future<Output = Response<B>> + 'static,
    B: hyper::body::Body<Data = Bytes> + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let handle = handle.clone();
        spawn_local(async move {
            let service = service_fn(move |request| {
                let answered = handle(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let mut preface = [0; 3];
            let is_h2 = stream.peek(&mut preface).await.is_ok_and(|length| length == 3 && &preface == b"PRI");
            // An error is the client's, which has gone.
            let stream = TokioIo::new(stream);
            if is_h2 {
                let _ = hyper::server::conn::http2::Builder::new(Local).serve_connection(stream, service).await;
            } else {
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
            }
        });
    }
}

/// Runs what hyper starts on this thread.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local
where
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

async fn serve_unix(socket: &Path) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket)?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn_local(async move {
            let service = service_fn(|request| async move { Ok::<_, Infallible>(answer(request).await) });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Connections to the process behind, as every HTTP proxy keeps them.
struct Pool {
    socket: PathBuf,
    idle: RefCell<Vec<SendRequest<Incoming>>>,
}

impl Pool {
    async fn forward(self: Rc<Self>, request: Request<Incoming>) -> Response<Incoming> {
        // One whose body is still being read is not ready.
        let idle = {
            let mut idle = self.idle.borrow_mut();
            idle.retain(|sender| !sender.is_closed());
            idle.iter().position(SendRequest::is_ready).map(|at| idle.swap_remove(at))
        };
        let mut sender = match idle {
            Some(sender) => sender,
            None => {
                let stream = UnixStream::connect(&self.socket).await.expect("the process behind listens");
                let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
                spawn_local(connection);
                sender
            }
        };
        let (mut head, body) = request.into_parts();
        head.version = http::Version::HTTP_11;
        head.headers.insert("host", http::HeaderValue::from_static("upstream"));
        head.uri = head.uri.path().parse().expect("a path");
        sender.ready().await.expect("it is idle, or new");
        let response = sender.send_request(Request::from_parts(head, body)).await.expect("it answers");
        self.idle.borrow_mut().push(sender);
        response
    }
}

/// The caller's end of a lane, without spans, claims and windows: the least that a proxy over frames does.
struct Caller {
    out: RefCell<Vec<u8>>,
    waiting: RefCell<HashMap<u32, Answer>>,
    next: RefCell<u32>,
    has_something: tokio::sync::Notify,
}

struct Answer {
    body: Vec<u8>,
    done: oneshot::Sender<Vec<u8>>,
}

impl Caller {
    async fn connect(socket: &Path) -> Result<Rc<Caller>, Failure> {
        let (read, mut write) = UnixStream::connect(socket).await?.into_split();
        let caller = Rc::new(Caller {
            out: RefCell::default(),
            waiting: RefCell::default(),
            next: RefCell::new(1),
            has_something: tokio::sync::Notify::new(),
        });
        let writer = Rc::clone(&caller);
        spawn_local(async move {
            loop {
                writer.has_something.notified().await;
                // Everything that is ready goes into the same write.
                tokio::task::yield_now().await;
                let out = std::mem::take(&mut *writer.out.borrow_mut());
                write.write_all(&out).await.expect("the process behind reads");
            }
        });
        let reader = Rc::clone(&caller);
        spawn_local(async move { reader.read(read).await });
        Ok(caller)
    }

    async fn read(&self, read: tokio::net::unix::OwnedReadHalf) {
        let mut inbox = FrameBuffer::new();
        loop {
            let length = read_into(&mut inbox, read.as_ref()).await.expect("the process behind answers");
            assert!(length > 0, "the process behind has ended");
            while let Some((kind, body)) = inbox.next_frame(lane::LANE_FRAME_LIMIT).expect("frames") {
                let frame = Frame::decode(kind, body).expect("a frame of a lane");
                let mut waiting = self.waiting.borrow_mut();
                if let lane::Body::Data(piece) = frame.body {
                    waiting.get_mut(&frame.request).expect("it was asked").body.extend_from_slice(piece);
                }
                if frame.is_last {
                    let Answer { body, done } = waiting.remove(&frame.request).expect("it was asked");
                    let _ = done.send(body);
                }
            }
        }
    }

    async fn call(self: Rc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let number = {
            let mut next = self.next.borrow_mut();
            *next = next.wrapping_add(1).max(1);
            *next
        };
        let opening = Opening {
            trace_id: [0; 16],
            span_id: [0; 8],
            trace_flags: 0,
            deadline_unix_nano: 0,
            is_secure: false,
            version: 11,
            method: request.method().as_str(),
            authority: "",
            target: request.uri().path(),
            request_id: "",
            client: "",
        };
        let headers = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        lane::put_open(&mut self.out.borrow_mut(), number, true, &opening, headers);
        let (done, answered) = oneshot::channel();
        self.waiting.borrow_mut().insert(number, Answer { body: Vec::new(), done });
        self.has_something.notify_one();
        let _ = request.into_body().collect().await;
        Response::new(Full::new(answered.await.expect("the lane is open").into()))
    }
}

/// Waits for bytes, and takes all that have come.
async fn read_into(inbox: &mut FrameBuffer, stream: &UnixStream) -> std::io::Result<usize> {
    loop {
        stream.readable().await?;
        match inbox.read_from(&mut TryRead(stream)) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

struct TryRead<'a>(&'a UnixStream);

impl Read for TryRead<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.try_read(bytes)
    }
}

async fn answer_frames(socket: &Path) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket)?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        spawn_local(async move {
            let (mut inbox, mut out) = (FrameBuffer::new(), Vec::new());
            while read_into(&mut inbox, &stream).await.is_ok_and(|length| length > 0) {
                while let Some((kind, body)) = inbox.next_frame(lane::LANE_FRAME_LIMIT).expect("frames") {
                    let frame = Frame::decode(kind, body).expect("a frame of a lane");
                    let lane::Body::Open(opening, _) = frame.body else { continue };
                    let body: &[u8] = if opening.target == "/mebibyte" { MEBIBYTE } else { b"hello" };
                    lane::put_head(&mut out, frame.request, false, 200, []);
                    let pieces = body.chunks(lane::DATA_LIMIT);
                    let last = pieces.len() - 1;
                    for (at, piece) in pieces.enumerate() {
                        out.extend(lane::data_header(frame.request, at == last, piece.len()));
                        out.extend_from_slice(piece);
                    }
                }
                if stream.write_all(&out).await.is_err() {
                    return;
                }
                out.clear();
            }
        });
    }
}
