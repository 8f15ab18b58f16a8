//! Hostile clients: what they do to the latency of well-behaved ones, as a ratio to the latency without them in the same run.
//!
//! The hostile ones are a process that runs only where nobody else wants a core, so that what is seen is what the server does for them, and
//! not that two cores are few. What they cost all the same, as packets that they make, is seen by a control: the same clients with a process for
//! a server that takes no part, and reads what they send and nothing else.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::Failure;
use super::client::{Client, median};
use super::floors::Role;
use super::load::Load;
use super::service::{Service, one};

/// Kinds of hostile clients, and whether they go on without an answer, so that there is a control.
const KINDS: [(&str, &str, bool); 4] = [
    ("resets", "HTTP/2 rapid reset, 4 connections", false),
    ("slow", "slow heads, 1,000 connections", true),
    ("idle", "14,000 connections with nothing to do", false),
    ("heads", "heads of 1 MiB and of 10,000 headers, 4 connections", false),
];
/// Connections of those that behave.
const CONNECTIONS: u32 = 8;

/// Measures with and without them by turns, and shows the median of each figure.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let service = Service::start(&one("handlers:app"), true, &[])?;
    let (host, port) = service.address();
    let load = Load::get_as_sent(CONNECTIONS, "/");
    load.run(&service, 1)?;
    println!("\nhostile: traced, {load} that behave");
    println!("{:<52}{:>12}{:>12}{:>12}{:>8}", "", "p99 µs with", "control", "without", "ratio");
    let beside = |kind: &str, address: &str| {
        let mut hostile = Role::start(&["hostile", kind, address])?;
        // It says so when it is under way.
        hostile.port()?;
        load.run(&service, seconds).map(|measured| measured.p99_us)
    };
    for (kind, what, has_control) in KINDS {
        let (mut with, mut control, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            without.push(load.run(&service, seconds)?.p99_us);
            with.push(beside(kind, &format!("{host}:{port}"))?);
            if has_control {
                let mut reader = Role::start(&["hostile", "reader", &format!("{host}:0")])?;
                control.push(beside(kind, &format!("{host}:{}", reader.port()?))?);
            }
        }
        let (with, without) = (median(with), median(without));
        let control = if has_control { format!("{:.0}", median(control)) } else { "-".into() };
        println!("{what:<52}{with:>12.0}{control:>12}{without:>12.0}{:>8.2}", with / without);
    }
    Ok(())
}

/// Is hostile until it is killed.
pub(crate) fn run(kind: &str, address: &str) -> Result<(), Failure> {
    leave_cores_to_others()?;
    let (connections, act): (usize, fn(&str, usize)) = match kind {
        "resets" => (4, reset),
        "heads" => (4, flood),
        "slow" => (8, drip),
        "idle" => return idle(address),
        "reader" => return read(address),
        other => return Err(format!("there is no hostile client `{other}`").into()),
    };
    thread::scope(|scope| {
        for number in 0..connections {
            scope.spawn(move || {
                loop {
                    act(address, number);
                }
            });
        }
        thread::sleep(Duration::from_millis(500));
        println!("1");
    });
    Ok(())
}

/// Has this process run only where nobody else wants the core (`SCHED_IDLE`, see sched(7)). One that is merely nice keeps a core for milliseconds once it has it, which would be
/// seen in place of what the server does.
fn leave_cores_to_others() -> Result<(), Failure> {
    let changed = Command::new("chrt").args(["--idle", "--pid", "0", &std::process::id().to_string()]).status();
    match changed.map_err(|error| format!("`chrt` cannot be run: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("`chrt` has failed: {status}").into()),
    }
}

/// Begins requests and gives them up, until the server has enough.
fn reset(address: &str, _: usize) {
    const STREAMS: u32 = 50;
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let mut next = 1_u32;
    let mut read = [0; 16 << 10];
    while stream.write_all(&bytes).is_ok() {
        let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
        match stream.read(&mut read) {
            Ok(0) => return,
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
            _ => {}
        }
        bytes.clear();
        for _ in 0..STREAMS {
            let id = next.to_be_bytes();
            // HEADERS, the last of its stream: GET, http, `/`, `a`; and RST_STREAM with CANCEL.
            bytes.extend([&[0, 0, 6, 1, 5][..], &id, &[0x82, 0x86, 0x84, 0x41, 1, b'a']].concat());
            bytes.extend([&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, 8]].concat());
            next += 2;
        }
    }
}

/// Sends a head that is too long, or has too many headers.
fn flood(address: &str, number: usize) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let mut head = b"GET / HTTP/1.1\r\nhost: a\r\n".to_vec();
    match number % 2 {
        0 => (0..16).for_each(|_| head.extend([b"x-a: ", &[b'a'; 64 << 10][..], b"\r\n"].concat())),
        _ => (0..10_000).for_each(|_| head.extend(b"x-a: a\r\n")),
    }
    if stream.write_all(&head).is_ok() {
        let _ = stream.read(&mut [0; 1024]);
    }
}

/// Interval between two bytes of a slow head.
const DRIP: Duration = Duration::from_millis(100);

/// Sends heads on many connections, a byte of each at a time.
fn drip(address: &str, _: usize) {
    let mut streams: Vec<_> = (0..125).filter_map(|_| TcpStream::connect(address).ok()).collect();
    let mut bytes = b"GET / HTTP/1.1\r\nx-a: ".iter().copied().chain(std::iter::repeat(b'a'));
    while streams.len() > 100 {
        let byte = [bytes.next().unwrap_or(b'a')];
        streams.retain_mut(|stream| stream.write_all(&byte).is_ok());
        thread::sleep(DRIP);
    }
}

/// Reads what clients send, in the place of a server, and does nothing with it.
fn read(address: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?.port());
    let mut streams = Vec::new();
    loop {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true)?;
            streams.push(stream);
        }
        streams.iter_mut().for_each(|stream| drop(stream.read(&mut [0; 1024])));
        thread::sleep(DRIP);
    }
}

/// Opens connections, and does nothing with them.
fn idle(address: &str) -> Result<(), Failure> {
    let clients = (0..14_000).map(|_| {
        let mut client = Client::connect(address)?;
        client.get("/")?;
        Ok(client)
    });
    let clients = clients.collect::<Result<Vec<_>, Failure>>()?;
    println!("1");
    loop {
        thread::park();
        std::hint::black_box(&clients);
    }
}
