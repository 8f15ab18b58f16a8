//! Requests that two parsers could read in two ways. They go to a service, to nginx and to Node's parser (llhttp): what both of these refuse,
//! the service refuses.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Cluster, skip, wait_until};

/// A server in Node, which answers with what it has read of each request.
const NODE: &str = r#"
const http = require('http');
const server = http.createServer((request, response) => {
    let length = 0;
    request.on('data', piece => length += piece.length);
    request.on('end', () => response.end(`${request.method} ${length}`));
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"#;

/// Time after which a server that says nothing is taken to wait for the rest of a request.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Another server, ended with the test.
struct Other {
    child: Child,
    address: SocketAddr,
}

impl Drop for Other {
    fn drop(&mut self) {
        // nginx takes its children along when it is asked to end.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn node(cluster: &Cluster) -> Option<Other> {
    let mut command = cluster.program("node");
    command.args(["-e", NODE]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            skip("node", error);
            return None;
        }
    };
    let mut port = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take()?), &mut port).ok()?;
    let address = format!("127.0.0.1:{}", port.trim()).parse().expect("Node has said its port");
    Some(Other { child, address })
}

fn nginx(cluster: &Cluster) -> Option<Other> {
    let address = free_address();
    let folder = cluster.file("nginx");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("nginx.conf");
    std::fs::write(&file, nginx_configuration(address, &folder)).unwrap();
    let mut command: Command = cluster.program("nginx");
    command.arg("-c").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => {
            let other = Other { child, address };
            wait_until("nginx listens", || TcpStream::connect(address).ok());
            Some(other)
        }
        Err(error) => {
            skip("nginx", error);
            None
        }
    }
}

fn nginx_configuration(address: SocketAddr, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};\n\
         uwsgi_temp_path {folder}; scgi_temp_path {folder};\n\
         server {{ listen {address}; location / {{ return 200 \"well\"; }} }} }}\n"
    )
}

fn free_address() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

/// Returns the statuses of all answers to these bytes, until the server closes, or waits for more.
fn statuses(address: SocketAddr, bytes: &[u8]) -> Vec<u16> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server may close before all is sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::WouldBlock) => {}
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let heads = text.match_indices("HTTP/1.").filter_map(|(at, _)| text.get(at + 9..at + 12)?.parse().ok());
    heads.filter(|status| *status >= 200).collect()
}

/// A server has refused unless the first answer is a good one.
fn refuses(address: SocketAddr, bytes: &[u8]) -> bool {
    statuses(address, bytes).first().is_none_or(|status| *status >= 400)
}

/// Requests with one thing in each that is out of the ordinary; a second request follows, which a parser may take for a body.
fn requests() -> Vec<Vec<u8>> {
    let next = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let posts = [
        "Content-Length: 3\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3, 3",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\r\n x",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked;a=b",
        "Transfer-Encoding:",
        "Content-Length: +3",
        "Content-Length: -3",
        "Content-Length: 0x3",
        "Content-Length: 3 3",
        "Content-Length:",
        "Content-Length: 99999999999999999999",
        "Content-Length : 3",
        " Content-Length: 3",
        "Content-Length: 3\r\n\tX: y",
        "Content-Length: 3\rX: y",
        "Content-Length: 3\nX: y",
        "Content-Length: 3\r\nX: a\0b",
        "Content-Length: 3\r\nX: a\x01b",
        "Content-Length: 3\r\nX y: z",
        "Content-Length: 3\r\nX",
        "Content-Length: 3\r\n: y",
        "Content-Length: 3\r\nX\u{e4}: y",
        "Content-Length: 3\r\nX(: y",
    ];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for head in posts {
        for body in ["abc", "3\r\nabc\r\n0\r\n\r\n"] {
            all.push(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n{body}{next}").into_bytes());
        }
    }
    let chunks = [
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "3;\0\r\nabc\r\n0\r\n\r\n",
        "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "ffffffffffffffff3\r\nabc\r\n0\r\n\r\n",
        "g\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\nX y: z\r\n\r\n",
        "3\r\nabc\r\n0\r\n X: z\r\n\r\n",
        "3\r\nabc\r\n0\r\nX: a\0\r\n\r\n",
    ];
    for body in chunks {
        all.push(format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{next}").into_bytes());
    }
    let lines = [
        "GET / HTTP/1.1 ",
        "GET  / HTTP/1.1",
        "GET /\tHTTP/1.1",
        "GET / HTTP/1.1\r",
        "GET / HTTP/1.2",
        "GET / HTTP/2.0",
        "GET / HTTP/0.9",
        "GET / http/1.1",
        "GET / HTTP/1.10",
        "GET / HTTP/ 1.1",
        "GET /a b HTTP/1.1",
        "GET /\0 HTTP/1.1",
        "GET /\x7f HTTP/1.1",
        "G\0T / HTTP/1.1",
        "G(T / HTTP/1.1",
        "get / HTTP/1.1",
        "/ HTTP/1.1",
        " GET / HTTP/1.1",
        "GET HTTP/1.1",
        "GET / ",
        "CONNECT a:80 HTTP/1.1",
        "GET * HTTP/1.1",
        "GET a HTTP/1.1",
    ];
    for line in lines {
        all.push(format!("{line}\r\nHost: a\r\n\r\n{next}").into_bytes());
    }
    for hosts in [
        "",
        "Host: a\r\nHost: b\r\n",
        "Host: a\r\nHost: a\r\n",
        "Host: a b\r\n",
        "Host: a/b\r\n",
        "Host: a,b\r\n",
        "Host: u@a\r\n",
        "Host: [::1\r\n",
    ] {
        all.push(format!("GET / HTTP/1.1\r\n{hosts}\r\n{next}").into_bytes());
    }
    all
}

#[test]
fn what_nginx_and_node_refuse_is_refused() {
    let cluster = Cluster::builder().workers(1).start();
    let (Some(node), Some(nginx)) = (node(&cluster), nginx(&cluster)) else { return };
    let address = free_address();
    let text =
        format!("name = \"shop\"\n[http]\naddress = \"{address}\"\n[[applications]]\nimport_path = \"shop:echo\"\n");
    let file = cluster.file("service.toml");
    std::fs::write(&file, text).unwrap();
    cluster.tracer(&["serve", "deploy", file.to_str().unwrap()]).success();
    let good = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    assert_eq!([node.address, nginx.address, address].map(|server| statuses(server, good)), [[200], [200], [200]]);
    let (mut refused_by_both, mut taken) = (0, Vec::new());
    for request in requests() {
        if refuses(node.address, &request) && refuses(nginx.address, &request) {
            refused_by_both += 1;
            if !refuses(address, &request) {
                taken.push(String::from_utf8_lossy(&request).into_owned());
            }
        }
    }
    assert!(refused_by_both > 30, "only {refused_by_both} requests were refused by both");
    assert!(taken.is_empty(), "{} requests are taken that others refuse: {taken:#?}", taken.len());
}
