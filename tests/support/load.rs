//! Clients that put a service under constant load, and remember what became of each request.

use std::io::{self, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::http::{Answer, read_answer};

/// The longest that a client waits for an answer.
const LIMIT: Duration = Duration::from_secs(30);
/// Numbers of requests, of all clients of this process: their trace ids.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Outcome of one request.
#[derive(Debug)]
pub struct Exchange {
    /// The trace that the client has begun for it, as span files write it.
    pub trace_id: String,
    /// The client's span.
    pub span_id: String,
    /// True if the client wants spans of it.
    pub is_sampled: bool,
    pub outcome: Outcome,
}

#[derive(Debug)]
pub enum Outcome {
    /// The whole answer is there.
    Whole(Answer),
    /// Nobody has accepted the connection.
    Refused,
    /// The connection broke before the answer was whole.
    Broken(io::Error),
}

impl Exchange {
    /// Returns the status of the answer, if it is whole.
    pub fn status(&self) -> Option<u16> {
        match &self.outcome {
            Outcome::Whole(answer) => Some(answer.status),
            _ => None,
        }
    }
}

/// Clients that run until they are stopped.
pub struct Clients {
    is_over: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<Exchange>>>,
}

impl Clients {
    /// Starts so many clients, each with a connection that is kept as long as the server keeps it; every `renewal`th request gets a new one.
    pub fn start(address: SocketAddr, count: usize, path: &str, renewal: usize) -> Clients {
        Clients::start_sampled(address, count, path, renewal, |_| true)
    }

    /// Starts clients that want spans of those requests whose number `is_sampled` names.
    pub fn start_sampled(
        address: SocketAddr,
        count: usize,
        path: &str,
        renewal: usize,
        is_sampled: fn(u64) -> bool,
    ) -> Clients {
        let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..count).map(|_| {
            let (is_over, answered, path) = (Arc::clone(&is_over), Arc::clone(&answered), path.to_owned());
            std::thread::spawn(move || {
                let (mut connection, mut exchanges) = (None, Vec::new());
                while !is_over.load(Ordering::Relaxed) {
                    if exchanges.len() % renewal == 0 {
                        connection = None;
                    }
                    exchanges.push(ask(&mut connection, address, &path, "", is_sampled));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                exchanges
            })
        });
        Clients { threads: threads.collect(), is_over, answered }
    }

    /// Returns the number of requests that have ended.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until so many more requests have ended.
    #[track_caller]
    pub fn wait_for(&self, further: u64) {
        let enough = self.answered() + further;
        super::wait_until(&format!("{further} more requests have ended"), || (self.answered() >= enough).then_some(()));
    }

    /// Ends them, and returns what became of all requests.
    pub fn stop(mut self) -> Vec<Exchange> {
        self.is_over.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.threads).into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    }
}

impl Drop for Clients {
    /// Ends those of a test that fails, which would go on for as long as others run.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A client that asks when it is told to.
pub struct Idle {
    address: SocketAddr,
    path: String,
    /// Header lines of its own, each with its end.
    headers: String,
    connection: Option<BufReader<TcpStream>>,
}

impl Clients {
    /// Returns a client that keeps its connection, and asks when it is told to.
    pub fn at_rest(address: SocketAddr, path: &str) -> Idle {
        Idle { address, path: path.into(), headers: String::new(), connection: None }
    }
}

impl Idle {
    /// Sends this header too from now on.
    pub fn header(mut self, name: &str, value: &str) -> Idle {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    pub fn ask(&mut self) -> Exchange {
        ask(&mut self.connection, self.address, &self.path, &self.headers, |_| true)
    }
}

fn ask(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    path: &str,
    headers: &str,
    is_sampled: fn(u64) -> bool,
) -> Exchange {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let is_sampled = is_sampled(number);
    let (trace_id, span_id) = (format!("{:032x}", u128::from(number) | 1 << 100), format!("{number:016x}"));
    let trace_parent = format!("00-{trace_id}-{span_id}-0{}", u8::from(is_sampled));
    let headers = format!("traceparent: {trace_parent}\r\n{headers}");
    let outcome = exchange(connection, address, path, &headers);
    let outcome = outcome.map_or_else(
        |error| if error.kind() == ErrorKind::ConnectionRefused { Outcome::Refused } else { Outcome::Broken(error) },
        Outcome::Whole,
    );
    let is_to_close = !matches!(&outcome, Outcome::Whole(answer) if answer.header("connection") != "close");
    if is_to_close {
        *connection = None;
    }
    Exchange { trace_id: format!("0x{trace_id}"), span_id: format!("0x{span_id}"), is_sampled, outcome }
}

fn exchange(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    path: &str,
    headers: &str,
) -> io::Result<Answer> {
    let reader = match connection {
        Some(reader) => reader,
        None => {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_nodelay(true)?;
            connection.insert(BufReader::new(stream))
        }
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
    reader.get_mut().write_all(request.as_bytes())?;
    read_answer(reader, false)
}
