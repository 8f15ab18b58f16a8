//! A client of the HTTP API that sends exactly what a test says.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::Cluster;

/// Limit of time for an answer. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(60);

/// Address of a cluster's HTTP API, and its token.
#[derive(Clone, Debug)]
pub struct Api {
    pub address: SocketAddr,
    pub token: String,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    address: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Api {
    /// Returns the API of a cluster that was started with `--http`.
    #[track_caller]
    pub fn of(cluster: &Cluster) -> Api {
        let http = &cluster.status()["http"];
        let url = http["url"].as_str().expect("it has an HTTP API");
        let address = url.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("an address");
        let token = std::fs::read_to_string(http["token_path"].as_str().expect("a path")).expect("it has a token");
        Api { address, token: token.trim_end().to_owned() }
    }

    /// Returns a request with everything that it needs to be let in.
    pub fn ask(&self, method: &str, target: &str) -> Ask {
        self.bare(method, target)
            .header("Host", &self.address.to_string())
            .header("Authorization", &format!("Bearer {}", self.token))
    }

    /// Returns a request without any headers.
    pub fn bare(&self, method: &str, target: &str) -> Ask {
        let (method, target) = (method.into(), target.into());
        Ask { address: self.address, method, target, headers: Vec::new(), body: Vec::new() }
    }

    #[track_caller]
    pub fn get(&self, target: &str) -> Answer {
        self.ask("GET", target).send()
    }

    /// Returns a submission, with this query, as `?wait_ms=1`, or nothing.
    pub fn submission(&self, query: &str, body: &Value) -> Ask {
        self.ask("POST", &format!("/api/v1/tasks{query}")).json(body)
    }

    /// Submits, and waits for the end.
    #[track_caller]
    pub fn run(&self, body: &Value) -> Value {
        self.submission("?wait_ms=60000", body).send().status(200).json()
    }

    #[track_caller]
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("it is a socket");
        stream
    }
}

impl Ask {
    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Takes a header away.
    pub fn without(mut self, name: &str) -> Ask {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        self
    }

    pub fn json(self, body: &Value) -> Ask {
        self.header("Content-Type", "application/json").body(body.to_string())
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Ask {
        self.body = body.into();
        self
    }

    /// Returns the bytes that go over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend(format!("{name}: {value}\r\n").bytes());
        }
        if !self.body.is_empty() || self.method == "POST" {
            bytes.extend(format!("Content-Length: {}\r\n", self.body.len()).bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        bytes
    }

    /// Sends it on a connection of its own, and reads the answer.
    #[track_caller]
    pub fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.target);
        self.try_send().unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Sends as [`send`](Self::send) does, where perhaps nobody listens.
    pub fn try_send(self) -> io::Result<Answer> {
        let mut reader = self.open()?;
        let is_head = self.method == "HEAD";
        read_answer(&mut reader, is_head)
    }

    /// Sends it, and returns the connection with the answer on it.
    pub fn open(&self) -> io::Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        // The answer may come, and the connection be closed, before all is sent.
        let _ = stream.write_all(&self.bytes());
        Ok(BufReader::new(stream))
    }
}

/// Reads one answer.
pub fn read_answer(reader: &mut impl BufRead, is_head: bool) -> io::Result<Answer> {
    let (status, headers) = read_head(reader)?;
    let mut answer = Answer { status, headers, body: Vec::new() };
    if is_head || status == 204 {
        return Ok(answer);
    }
    if answer.header("transfer-encoding") == "chunked" {
        while let Some(chunk) = read_chunk(reader)? {
            answer.body.extend(chunk);
        }
    } else if let Ok(length) = answer.header("content-length").parse() {
        answer.body.resize(length, 0);
        reader.read_exact(&mut answer.body)?;
    } else {
        reader.read_to_end(&mut answer.body)?;
    }
    Ok(answer)
}

/// Reads the status and the headers.
pub fn read_head(reader: &mut impl BufRead) -> io::Result<(u16, Vec<(String, String)>)> {
    let mut line = String::new();
    let no_http = |line: &str| io::Error::other(format!("the answer is no HTTP: {line:?}"));
    reader.read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| no_http(&line))?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| no_http(line))?;
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

/// Reads a chunk of a body in chunks; none at the end.
pub fn read_chunk(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::UnexpectedEof)?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}

impl Answer {
    /// Returns the value of a header; empty when it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// Expects this status.
    #[track_caller]
    pub fn status(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Expects a problem of this kind, and returns it.
    #[track_caller]
    pub fn problem(self, status: u16, name: &str) -> Value {
        let answer = self.status(status);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        let problem = answer.json();
        assert_eq!(problem["type"], format!("urn:tracer:problem:{name}"), "{problem}");
        assert_eq!(problem["status"], status);
        problem
    }

    /// Returns the events of a stream: name, id and data.
    #[track_caller]
    pub fn events(&self) -> Vec<(String, String, Value)> {
        let text = self.text();
        let blocks = text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
        let field = |block: &str, name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned));
            line.unwrap_or_default()
        };
        blocks
            .map(|block| {
                let data = serde_json::from_str(&field(block, "data")).expect("the data is JSON");
                (field(block, "event"), field(block, "id"), data)
            })
            .collect()
    }
}
