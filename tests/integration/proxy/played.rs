//! A head and replicas, played by the test, around a proxy that is the built program.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketType, sockopt};
use tempfile::TempDir;
use tracer::lane::{self, Body, Frame, LANE_FRAME_LIMIT};
use tracer::protocol::frame::FrameBuffer;
use tracer::protocol::{HookChoice, TracingSettings};
use tracer::spool::ClaimRing;
use tracer_core::HookContract;
use tracer_ipc::claims::SharedClaims;
use tracer_ipc::control;
use tracer_ipc::metrics::SERVING_FOLDER;
use tracer_ipc::replica_table::{Capacity, ReplicaState, ReplicaTable};
use tracer_ipc::serving::{
    Detail, Http, ProxyBegin, ProxyOrder, ProxyReport, ProxyRoute, ProxySettings, Retry, ServiceTracing,
};

use crate::support::{Answer, HOOK, Spans, read_answer, wait_until};

/// Deadline of any fact. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// The head of a service with one proxy.
pub(super) struct Head {
    pub(super) folder: TempDir,
    session: PathBuf,
    pub(super) table: ReplicaTable,
    pub(super) table_file: OwnedFd,
    /// Lanes that the proxy has closed, because of what it was sent.
    pub(super) broken_lanes: AtomicU64,
    pub(super) address: SocketAddr,
    pub(super) settings: ProxySettings,
    child: Child,
    control: OwnedFd,
    /// Sockets that the head would keep open.
    _listeners: Vec<OwnedFd>,
    wakes: Vec<OwnedFd>,
    _spool: ClaimRing,
    threads: u32,
}

/// A lane, from the side of a replica.
pub(super) struct Replica {
    pub(super) claims: SharedClaims,
    pub(super) claims_file: OwnedFd,
    pub(super) socket: UnixStream,
    inbox: FrameBuffer,
}

/// A frame that has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Came {
    pub(super) request: u32,
    pub(super) is_last: bool,
    pub(super) content: FrameContent,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum FrameContent {
    Open { opening: Opened, headers: Vec<(String, String)> },
    Data(Vec<u8>),
    Trailers(Vec<(String, String)>),
    Credit(u32),
    Reset(lane::Reset),
    Drain,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opened {
    pub(super) trace_id: String,
    pub(super) span_id: String,
    pub(super) trace_flags: u8,
    pub(super) has_deadline: bool,
    pub(super) version: u8,
    pub(super) method: String,
    pub(super) authority: String,
    pub(super) target: String,
    pub(super) request_id: String,
    pub(super) client: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listener(address: SocketAddr) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 128).unwrap();
    socket
}

impl Head {
    /// Starts a proxy with one thread, one application at `/`, and tracing.
    pub(super) fn start() -> Head {
        Head::start_with(1, |_| {})
    }

    /// The same, where the proxy looks for what comes next each time before it sleeps.
    pub(super) fn start_looking() -> Head {
        Head::start_in(1, &[("TRACER_TEST_SPINNING", "always")], |_| {})
    }

    /// The same with as many threads, and with these settings.
    pub(super) fn start_with(threads: u32, change: impl FnOnce(&mut ProxySettings)) -> Head {
        Head::start_in(threads, &[], change)
    }

    fn start_in(threads: u32, variables: &[(&str, &str)], change: impl FnOnce(&mut ProxySettings)) -> Head {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        // As a head has it: the proxy counts requests in the place.
        let session = place.join("sessions/played");
        std::fs::create_dir_all(session.join("logs")).unwrap();
        let spans_dir = folder.path().join("spans");
        let (table, table_file) = ReplicaTable::create(Capacity { replicas: 8, callers: 4, deployments: 2 }).unwrap();
        (0..threads).for_each(|caller| table.add_caller(table.caller(caller as usize).unwrap()));
        (0..2).for_each(|number| table.set_waiting_limit(table.deployment(number).unwrap(), 1000));
        let first = listener("127.0.0.1:0".parse().unwrap());
        let address = TcpListener::from(first.try_clone().unwrap()).local_addr().unwrap();
        let listeners: Vec<_> = std::iter::once(first).chain((1..threads).map(|_| listener(address))).collect();
        let wakes: Vec<_> = (0..threads).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        let spool = session.join("proxy.spool");
        let ring = ClaimRing::create(&spool, 4096).unwrap();
        let (control, of_proxy) = control::pair().unwrap();
        let log = std::fs::File::create(session.join("logs/proxy.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tracer"))
            .arg("proxy")
            .arg(&session)
            .arg(std::process::id().to_string())
            .env("TRACER_SPANS_DIR", &spans_dir)
            .envs(variables.iter().copied())
            .stdin(Stdio::from(of_proxy))
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let mut tracing = TracingSettings::untraced(spans_dir);
        tracing.hook = Some(HookChoice {
            import_string: HOOK.into(),
            contract: HookContract::Startup,
            library: None,
            timeout_ms: 10_000,
            is_required: true,
            further: Vec::new(),
        });
        let begin = ProxyBegin {
            service: "shop".into(),
            number: 1,
            spool,
            node_id: "node".into(),
            tracing,
            callers: (0..threads).collect(),
            log_limit: 1 << 20,
        };
        let mut settings = settings(address);
        change(&mut settings);
        let head = Head {
            folder,
            session,
            table,
            table_file,
            broken_lanes: AtomicU64::new(0),
            address,
            settings,
            child,
            control,
            _listeners: listeners,
            wakes,
            _spool: ring,
            threads,
        };
        let files = std::iter::once(&head.table_file).chain(&head._listeners).chain(&head.wakes);
        let files: Vec<BorrowedFd<'_>> = files.map(AsFd::as_fd).collect();
        control::send(&head.control, &ProxyOrder::Begin(Box::new(begin)), &files).unwrap();
        assert!(matches!(head.report(), ProxyReport::Ready { hook_failure: None, .. }));
        head.configure();
        assert!(place.join(SERVING_FOLDER).is_dir(), "requests are counted elsewhere");
        head
    }

    /// Gives the proxy its settings, which it takes.
    pub(super) fn configure(&self) {
        let file = control::send_long(&self.settings).unwrap();
        self.order(&ProxyOrder::Configure, &[file.as_fd()]);
        let revision = self.settings.revision;
        assert_eq!(self.report(), ProxyReport::Configured { revision, failure: None });
    }

    pub(super) fn order(&self, order: &ProxyOrder, files: &[BorrowedFd<'_>]) {
        control::send(&self.control, order, files).unwrap();
    }

    /// Returns the next report of the proxy.
    #[track_caller]
    pub(super) fn report(&self) -> ProxyReport {
        self.report_with_files().0
    }

    /// The same, with what came along.
    #[track_caller]
    pub(super) fn report_with_files(&self) -> (ProxyReport, Vec<OwnedFd>) {
        let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        let mut files = [PollFd::new(&self.control, PollFlags::IN)];
        assert_eq!(poll(&mut files, Some(&limit)), Ok(1), "the proxy has said nothing: {}", self.log());
        control::receive(&self.control).unwrap().unwrap_or_else(|| panic!("it ended: {}", self.log()))
    }

    /// Returns the sockets of the idle connections that a proxy which drains has given away until it has said that it accepts no more,
    /// once. The one comes from its main thread, the others from those that serve, in any order.
    #[track_caller]
    pub(super) fn given_away(&self, count: usize) -> Vec<OwnedFd> {
        let mut reports: Vec<_> = (0..=count).map(|_| self.report_with_files()).collect();
        let said = reports.iter().position(|(report, _)| *report == ProxyReport::AcceptsNoMore);
        reports.remove(said.unwrap_or_else(|| panic!("it has not said that it accepts no more: {reports:?}")));
        let sockets = reports.into_iter().map(|(report, files)| {
            assert_eq!((&report, files.len()), (&ProxyReport::Connection, 1));
            files
        });
        sockets.flatten().collect()
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.session.join("logs/proxy.log")).unwrap_or_default()
    }

    pub(super) fn access_log(&self) -> String {
        std::fs::read_to_string(self.session.join("logs/serve/access.log")).unwrap_or_default()
    }

    /// Returns a replica of the first deployment, with a lane for each thread.
    pub(super) fn add_replicas(&self, number: u32, limit: u32) -> Vec<Replica> {
        self.add_replicas_of(0, number, limit)
    }

    /// The same of any deployment.
    pub(super) fn add_replicas_of(&self, deployment: usize, number: u32, limit: u32) -> Vec<Replica> {
        let lanes: Vec<_> = (0..self.threads).map(|_| lane()).collect();
        let files = lanes.iter().flat_map(|(_, socket, claims)| [socket.as_fd(), claims.as_fd()]);
        let files: Vec<_> = files.collect();
        self.order(&ProxyOrder::Lanes { replica: number, name: format!("hello#{number}") }, &files);
        loop {
            match self.report() {
                // What a test has broken before.
                ProxyReport::LaneBroken { .. } => drop(self.broken_lanes.fetch_add(1, Relaxed)),
                // Of a table that has it watched, perhaps because it says anything.
                ProxyReport::Wanted { .. } => {}
                report => break assert_eq!(report, ProxyReport::LanesTaken { replica: number }),
            }
        }
        let (replica, deployment) = (self.table.replica(number as usize), self.table.deployment(deployment));
        self.table.add_replica(replica.unwrap(), deployment.unwrap(), limit);
        self.order(&ProxyOrder::Refresh, &[]);
        lanes.into_iter().map(|(replica, _, _)| replica).collect()
    }

    /// The same, where there is one thread.
    pub(super) fn add_replica(&self, number: u32, limit: u32) -> Replica {
        self.add_replicas(number, limit).remove(0)
    }

    pub(super) fn set_state(&self, number: u32, state: ReplicaState) {
        self.table.set_state(self.table.replica(number as usize).unwrap(), state);
        self.order(&ProxyOrder::Refresh, &[]);
    }

    /// Requests in flight at a replica.
    pub(super) fn in_flight(&self, number: u32) -> u64 {
        self.table.in_flight(self.table.replica(number as usize).unwrap())
    }

    pub(super) fn waiting(&self) -> u64 {
        self.table.waiting(self.table.deployment(0).unwrap())
    }

    /// Returns a connection of a client.
    pub(super) fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }

    /// Sends bytes over a connection of their own.
    pub(super) fn send(&self, bytes: impl AsRef<[u8]>) -> Client {
        let mut client = self.connect();
        client.send(bytes);
        client
    }

    pub(super) fn get(&self, path: &str) -> Client {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n"))
    }

    /// Returns the spans in the files, once there are as many of the proxy.
    #[track_caller]
    pub(super) fn spans(&self, count: usize) -> Spans {
        wait_until(&format!("there are {count} spans: {}", self.log()), || {
            let spans = Spans::read(&self.spans_dir());
            (spans.spans.len() >= count).then_some(spans)
        })
    }

    pub(super) fn spans_dir(&self) -> PathBuf {
        self.folder.path().join("spans")
    }

    /// Waits until the proxy has ended, and says whether it did so well.
    pub(super) fn wait(&mut self) -> bool {
        wait_until("the proxy ends", || self.child.try_wait().unwrap()).success()
    }

    /// Returns true if all its threads sleep.
    pub(super) fn sleeps(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let states = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default());
        states.into_iter().all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the proxy's log\n{}", self.log());
        }
    }
}

fn settings(address: SocketAddr) -> ProxySettings {
    ProxySettings {
        revision: 1,
        http: Http {
            address,
            is_public: false,
            trusted_proxies: Vec::new(),
            hosts: Vec::new(),
            request_timeout: None,
            max_body: None,
            tls: None,
        },
        tracing: ServiceTracing { is_enabled: true, sampling_ratio: None, exporters: Vec::new(), detail: Detail::Hops },
        routes: vec![ProxyRoute {
            route_prefix: "/".into(),
            hosts: Vec::new(),
            application: "default".into(),
            deployment: "hello".into(),
            index: 0,
            queue_timeout: None,
            queue_full: 503,
            retry: Retry::Never,
        }],
    }
}

fn lane() -> (Replica, OwnedFd, OwnedFd) {
    let (socket, of_proxy) = UnixStream::pair().unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let (claims, file) = SharedClaims::create().unwrap();
    let claims_file = file.try_clone().unwrap();
    (Replica { claims, claims_file, socket, inbox: FrameBuffer::new() }, of_proxy.into(), file)
}

fn texts(headers: lane::Headers<'_>) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned())).collect()
}

impl Replica {
    /// Returns the next frame; none at the end of the lane.
    #[track_caller]
    pub(super) fn try_next(&mut self) -> Option<Came> {
        loop {
            if let Some((kind, body)) = self.inbox.next_frame(LANE_FRAME_LIMIT).unwrap() {
                let frame = Frame::decode(kind, body).unwrap();
                let content = match frame.body {
                    Body::Open(opening, headers) => FrameContent::Open {
                        opening: Opened {
                            trace_id: hex(&opening.trace_id),
                            span_id: hex(&opening.span_id),
                            trace_flags: opening.trace_flags,
                            has_deadline: opening.deadline_unix_nano > 0,
                            version: opening.version,
                            method: opening.method.into(),
                            authority: opening.authority.into(),
                            target: opening.target.into(),
                            request_id: opening.request_id.into(),
                            client: opening.client.into(),
                        },
                        headers: texts(headers),
                    },
                    Body::Data(piece) => FrameContent::Data(piece.into()),
                    Body::Trailers(trailers) => FrameContent::Trailers(texts(trailers)),
                    Body::Credit(bytes) => FrameContent::Credit(bytes),
                    Body::Reset(reset) => FrameContent::Reset(reset),
                    Body::Drain => FrameContent::Drain,
                    Body::Head(..) => panic!("a proxy sends no HEAD"),
                };
                return Some(Came { request: frame.request, is_last: frame.is_last, content });
            }
            if self.inbox.read_from(&mut self.socket).expect("the lane is read in time") == 0 {
                return None;
            }
        }
    }

    #[track_caller]
    pub(super) fn next(&mut self) -> Came {
        self.try_next().expect("the lane goes on")
    }

    /// Returns the next request, claimed as a replica does it.
    #[track_caller]
    pub(super) fn take(&mut self) -> (u32, Opened, Vec<(String, String)>) {
        let (request, opening, headers) = self.take_unclaimed();
        assert!(self.claims.claim(request.into()), "it was granted");
        (request, opening, headers)
    }

    /// Takes a request if one has come, over a socket that does not block.
    pub(super) fn try_take(&mut self) -> Option<u32> {
        loop {
            if let Some((kind, body)) = self.inbox.next_frame(LANE_FRAME_LIMIT).unwrap() {
                let frame = Frame::decode(kind, body).unwrap();
                if matches!(frame.body, Body::Open(..)) {
                    assert!(self.claims.claim(frame.request.into()), "it was granted");
                    return Some(frame.request);
                }
            } else if self.inbox.read_from(&mut self.socket).ok()? == 0 {
                return None;
            }
        }
    }

    #[track_caller]
    pub(super) fn take_unclaimed(&mut self) -> (u32, Opened, Vec<(String, String)>) {
        let came = self.next();
        match came.content {
            FrameContent::Open { opening, headers } => (came.request, opening, headers),
            content => panic!("expected OPEN, found {content:?}"),
        }
    }

    /// Returns the body of a request that has been opened.
    #[track_caller]
    pub(super) fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let came = self.next();
            match came.content {
                FrameContent::Data(piece) => body.extend(piece),
                FrameContent::Trailers(_) => {}
                content => panic!("expected DATA, found {content:?}"),
            }
            if came.is_last {
                return body;
            }
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(super) fn head(&mut self, request: u32, is_last: bool, status: u16, headers: &[(&str, &str)]) {
        let mut out = Vec::new();
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        lane::put_head(&mut out, request, is_last, status, headers);
        self.write(&out);
    }

    pub(super) fn data(&mut self, request: u32, is_last: bool, piece: &[u8]) {
        self.write(&[&lane::data_header(request, is_last, piece.len()), piece].concat());
    }

    pub(super) fn trailers(&mut self, request: u32, trailers: &[(&str, &str)]) {
        let mut out = Vec::new();
        lane::put_trailers(&mut out, request, trailers.iter().map(|(name, value)| (*name, value.as_bytes())));
        self.write(&out);
    }

    pub(super) fn reset(&mut self, request: u32, reset: lane::Reset) {
        let mut out = Vec::new();
        lane::put_reset(&mut out, request, reset);
        self.write(&out);
    }

    pub(super) fn credit(&mut self, request: u32, bytes: u32) {
        let mut out = Vec::new();
        lane::put_credit(&mut out, request, bytes);
        self.write(&out);
    }

    /// Answers with a short body.
    pub(super) fn answer(&mut self, request: u32, status: u16, body: &str) {
        let mut out = Vec::new();
        lane::put_head(&mut out, request, false, status, [("content-type", &b"text/plain"[..])]);
        out.extend_from_slice(&lane::data_header(request, true, body.len()));
        out.extend_from_slice(body.as_bytes());
        self.write(&out);
    }

    /// Answers with a part of a body of ten bytes and the failure of the rest, in one write.
    pub(super) fn answer_in_part(&mut self, request: u32, part: &str) {
        let mut out = Vec::new();
        lane::put_head(&mut out, request, false, 200, [("content-length", &b"10"[..])]);
        out.extend_from_slice(&lane::data_header(request, false, part.len()));
        out.extend_from_slice(part.as_bytes());
        lane::put_reset(&mut out, request, lane::Reset::BodyFailed);
        self.write(&out);
    }
}

/// A connection of a client.
pub(super) struct Client(pub(super) BufReader<TcpStream>);

impl Client {
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    #[track_caller]
    pub(super) fn answer(&mut self) -> Answer {
        read_answer(&mut self.0, false).unwrap()
    }

    /// Reads until the connection is closed.
    pub(super) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut self.0, &mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}
