//! The HTTP API, for everybody who is no program in Rust: `tracer start --head --http 127.0.0.1:8265`.
//!
//! ```text
//!   HTTP clients          the process of the HTTP API                          the head
//!   ┌──────────┐  TCP   ┌──────────────────────────────────────────┐ socket ┌───────────────┐
//!   │ curl, …  │──────▶ │ runtime (hyper)   queue  link (2 threads)│──────▶ │ like of every │
//!   │          │◀────── │ who? how much?  ───────▶  hook, PRODUCER │◀────── │ other driver  │
//!   └──────────┘        └──────────────────────────────────────────┘        └───────────────┘
//! ```
//!
//! It is a process of its own that the head starts and keeps (`head::front`), and a driver like any other. So there is one path for
//! submissions, with its journal, its idempotency and its PRODUCER spans; the session's hook, which the head does not load, runs here;
//! and whatever HTTP clients do to this process reaches neither the head's memory nor its loop. When it dies it is started
//! again on the same port with the same token, and no task is touched.
//!
//! # Who may ask
//!
//! The API runs code for whoever reaches it. It listens on loopback addresses only. On every request, whatever its method: `Host` and
//! `Origin` have to name this server (`access`), and `Authorization: Bearer` has to show a token of this head, which are in the session's folder:
//! `http.token` is good for everything, `viewer.token` for reading, `control.token` for reading and cancelling. Only the files of the page, which
//! have no data, are for everybody who names this server; `tracer view` makes a link with a code, for which the page gets one of the lesser tokens
//! ([`crate::view`]). There are no cookies and no CORS. Functions are named as `module:function` and found in the folders that the head
//! knows; a path is refused, and so are commands, unless the head was started with `--http-commands`.
//!
//! # How much
//!
//! `limits` has the bounds: of bodies and heads, of the time that both may take, of connections, of requests a second, of requests that wait
//! or follow. The OpenAPI description says them too.
//!
//! # Example
//!
//! ```text
//! url=http://127.0.0.1:8265/api/v1
//! auth="Authorization: Bearer $(cat "$(tracer status --format json | jq -r .http.token_path)")"
//! curl -H "$auth" -H 'Content-Type: application/json' "$url/tasks?wait_ms=10000" \
//!   -d '{"function": "wordcount:count", "arguments": ["the quick brown fox"]}' | jq .result
//! curl -H "$auth" "$url/tasks/1"
//! curl -H "$auth" "$url/tasks/1/wait?timeout_ms=5000"
//! curl -H "$auth" -N "$url/tasks/1/logs"
//! curl -H "$auth" -X POST "$url/tasks/1/cancel"
//! ```
//!
//! A `traceparent` in the request is what the submission's spans are below; `x-trace-id` in the answer is the task's trace.

pub(crate) mod access;
pub(crate) mod body;
pub(crate) mod connection;
mod handlers;
pub(crate) mod limits;
mod link;
pub(crate) mod log;
pub mod metrics;
mod openapi;
mod otlp;
pub mod otlp_counts;
mod output;
pub(crate) mod reports;
mod routes;
mod submission;
mod trace;

use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};
use std::{fmt, io};

use connection::{Connections, Known, Socket};
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use limits::Rate;
use link::Link;
use log::Log;
use metrics::export::ExportSettings;
use otlp::Receiver;
pub use otlp::received_line;
use output::Outputs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tracer_client::driver::DriverError;
use tracer_core::problem::{self, Problem};
use tracer_host::hook::Recorder;
use tracer_ipc::http_place::{self as place, HttpSettings, Tokens};
use tracer_ipc::metrics::SeriesFile;
use tracer_ipc::protocol::Welcome;
use tracer_process::parent;

use crate::view::{READERS, Session, Traces};

/// Time that requests in progress may take to end when the process is asked to.
const END_TIME: Duration = Duration::from_millis(1500);
/// Limit of time for a hook to deliver what it has queued when the process ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// Threads for what takes long: large results, and questions about traces.
const BLOCKING_THREADS: usize = limits::LARGE_ANSWERS + READERS;
/// Nice value added to that of its head: it stands back when the cpus are all taken.
const NICE: i32 = 5;
/// Pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Reason why the process cannot go on. The head sees it end and starts it again.
#[derive(Debug)]
pub enum ServeError {
    /// The process that started it is gone.
    Orphaned,
    /// Something with the operating system.
    Io {
        /// The failed action: a verb with its object.
        doing: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The head cannot be reached.
    Driver(DriverError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Orphaned => {
                f.write_str("the HTTP API is started by a head only, which is not this one's parent")
            }
            ServeError::Io { doing, .. } => write!(f, "cannot {doing}"),
            ServeError::Driver(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Io { source, .. } => Some(source),
            ServeError::Driver(error) => error.source(),
            ServeError::Orphaned => None,
        }
    }
}

fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::Io { doing, source }
}

/// State that requests share.
struct App {
    settings: HttpSettings,
    tokens: Tokens,
    /// The traces of the session's folder, for pages.
    traces: Arc<Traces>,
    /// Token that is enough for `GET /metrics`.
    metrics_token: String,
    /// The receiver of OTLP; none when the head was started without.
    receiver: Option<Arc<Receiver>>,
    /// Counts of requests; none when the file cannot be used.
    requests: Option<Mutex<SeriesFile>>,
    session_dir: PathBuf,
    /// Time at which the session's folder was made, in nanoseconds since the Unix epoch; 0 if it is not known.
    session_began_unix_nano: u64,
    welcome: Welcome,
    recorder: Option<&'static Recorder>,
    link: Arc<Link>,
    outputs: Arc<Outputs>,
    /// The OpenAPI description.
    description: Bytes,
    rate: Mutex<Rate>,
    /// The rate of those who are not let in.
    strangers: Mutex<Rate>,
    waits: Semaphore,
    streams: Arc<Semaphore>,
    large: Arc<Semaphore>,
    connections: Connections,
    log: Log,
}

/// Serves until the head says that it is enough, or is gone. Standard input is the socket to accept from, and standard error the log, which takes
/// `log_limit` bytes.
pub fn run(session_dir: &Path, head_pid: u32, log_limit: u64) -> Result<(), ServeError> {
    // A large trace or log is read for one answer.
    tracer_process::allocator::release_at_once();
    if !parent::die_with(head_pid).map_err(io_error("be ended with the head"))? {
        return Err(ServeError::Orphaned);
    }
    // Those who work come first: the head, the workers, and drivers on the socket. Where it is not allowed, nothing is lost.
    let _ = rustix::process::nice(NICE);
    let (ended, end_tx) = UnixStream::pair().map_err(io_error("watch for signals"))?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, end_tx)
        .map_err(io_error("watch for signals"))?;
    let listener = take_listener().map_err(io_error("take over the port"))?;
    let (tokens, settings) = place::read(session_dir).map_err(io_error("read the token"))?;
    let outputs = Arc::new(Outputs::default());
    let (link, welcome, recorder) = Link::start(session_dir, Arc::clone(&outputs), |reason| {
        // The head has died, and takes this process along.
        eprintln!("tracer: {reason}");
        std::process::exit(tracer_core::exit::FAILED.into());
    })
    .map_err(ServeError::Driver)?;
    let now = Instant::now();
    let app = Arc::new(App {
        settings,
        tokens,
        traces: Traces::new(welcome.tracing.spans_dir.clone(), Session::Of(session_dir.into())),
        metrics_token: place::read_metrics_token(session_dir).map_err(io_error("read the token of scrapers"))?,
        receiver: settings
            .receives_otlp
            .then(|| Receiver::open(session_dir, &welcome.tracing.spans_dir, recorder).map(Arc::new))
            .transpose()
            .map_err(io_error("read the token of senders"))?,
        requests: open_request_metrics(session_dir),
        session_dir: session_dir.into(),
        session_began_unix_nano: began_unix_nano(session_dir),
        welcome,
        recorder,
        link: Arc::new(link),
        outputs,
        description: openapi::description(&settings).into(),
        rate: Mutex::new(Rate::new(limits::REQUESTS_PER_SECOND, now)),
        strangers: Mutex::new(Rate::new(limits::STRANGERS_PER_SECOND, now)),
        waits: Semaphore::new(limits::WAITS),
        streams: Arc::new(Semaphore::new(limits::STREAMS)),
        large: Arc::new(Semaphore::new(limits::LARGE_ANSWERS)),
        connections: Connections::default(),
        log: Log::new(session_dir.join("logs/http.log"), log_limit),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(io_error("start the runtime"))?;
    runtime.block_on(serve(app, listener, ended)).map_err(io_error("serve"))?;
    drop(runtime);
    if let Some(Err(reason)) = recorder.map(|recorder| recorder.shutdown(SHUTDOWN_LIMIT)) {
        eprintln!("tracer: the spans of the HTTP API could not be delivered: {reason}");
    }
    Ok(())
}

/// Returns the time at which a folder was made.
fn began_unix_nano(folder: &Path) -> u64 {
    let made = std::fs::metadata(folder).and_then(|metadata| metadata.created()).ok();
    let since = made.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

/// Opens the file in which requests are counted. Without it, requests are answered all the same.
fn open_request_metrics(session_dir: &Path) -> Option<Mutex<SeriesFile>> {
    let path = place::request_metrics_path(session_dir);
    match SeriesFile::open(&path) {
        Ok(file) => Some(Mutex::new(file)),
        Err(error) => {
            eprintln!("tracer: requests are not counted, `{}` cannot be used: {error}", path.display());
            None
        }
    }
}

/// Says once that the disk has no room for series.
fn say_no_room(requests: &mut SeriesFile) {
    if let Some(failure) = requests.take_failure() {
        eprintln!("tracer: {failure}");
    }
}

/// Returns the socket that is standard input. What else wants to read that finds nothing.
fn take_listener() -> io::Result<TcpListener> {
    let listener = TcpListener::from(parent::take_standard_input()?);
    listener.set_nonblocking(true)?;
    listener.local_addr()?;
    Ok(listener)
}

/// Accepts until `ended` is readable, then lets what is going on come to its end.
async fn serve(app: Arc<App>, listener: TcpListener, ended: UnixStream) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    ended.set_nonblocking(true)?;
    let mut ended = tokio::net::UnixStream::from_std(ended)?;
    let (ending_tx, ending) = watch::channel(false);
    let exporting = export_metrics(&app, ending.clone());
    let accepting = tokio::spawn(accept(Arc::clone(&app), listener, ending));
    let mut byte = [0];
    let _ = ended.read(&mut byte).await;
    accepting.abort();
    let _ = ending_tx.send(true);
    let deadline = Instant::now() + END_TIME;
    if let Some(exporting) = exporting {
        let _ = tokio::time::timeout_at(deadline.into(), exporting).await;
    }
    while app.connections.count() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Exports metrics from now on, if the environment says so.
fn export_metrics(app: &Arc<App>, ending: watch::Receiver<bool>) -> Option<JoinHandle<()>> {
    match ExportSettings::of_environment() {
        Ok(settings) => settings.map(|settings| tokio::spawn(metrics::export::run(Arc::clone(app), settings, ending))),
        Err(error) => {
            eprintln!("tracer: metrics are not exported: {error}");
            None
        }
    }
}

async fn accept(app: Arc<App>, listener: tokio::net::TcpListener, ending: watch::Receiver<bool>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // As many files are open as may be. Those who wait are served when others have gone.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Answers are small, and nobody waits for a second one.
        let _ = stream.set_nodelay(true);
        match app.connections.admit() {
            Some((id, known)) => {
                let (own, ending) = (Arc::clone(&app), ending.clone());
                let connection = tokio::spawn(async move {
                    let _guard = ConnectionGuard { app: Arc::clone(&own), id };
                    converse(own, stream, known, ending).await;
                });
                app.connections.started(id, connection.abort_handle());
            }
            None => drop(tokio::spawn(turn_away(stream))),
        }
    }
}

/// A connection that has ended, however it did.
struct ConnectionGuard {
    app: Arc<App>,
    id: u64,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.app.connections.ended(self.id);
    }
}

/// Serves one connection.
async fn converse(app: Arc<App>, stream: TcpStream, known: Arc<Known>, mut ending: watch::Receiver<bool>) {
    let service = service_fn(|request| {
        let (app, known) = (Arc::clone(&app), Arc::clone(&known));
        async move {
            let mut served = Served(None);
            let response = app.answer(request, || served.begin(known)).await;
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIME)
        .max_buf_size(limits::HEAD_BYTES)
        .max_headers(limits::HEADERS)
        .serve_connection(TokioIo::new(Socket::new(stream, limits::WRITE_TIME)), service);
    let mut connection = pin!(connection);
    let mut is_ending = false;
    let ending = async move {
        // It fails when there is nobody left to say it, which says it too.
        let _ = ending.wait_for(|ending| *ending).await;
    };
    let mut ending = pin!(ending);
    // An error is the client's: it has gone, or sends what is no HTTP.
    let _ = std::future::poll_fn(|context| {
        if !is_ending && ending.as_mut().poll(context) == Poll::Ready(()) {
            is_ending = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await;
}

/// A request that was let in, until it is answered or its client has gone.
struct Served(Option<Arc<Known>>);

impl Served {
    fn begin(&mut self, known: Arc<Known>) {
        known.begin();
        self.0 = Some(known);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(known) = &self.0 {
            known.end();
        }
    }
}

/// Tells a client that there is no room for it.
async fn turn_away(mut stream: TcpStream) {
    let problem =
        Problem::new(problem::UNAVAILABLE, "the limit on connections is reached, and all of them are busy").json();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n",
        problem.len()
    );
    let write = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&problem).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), write).await;
}
