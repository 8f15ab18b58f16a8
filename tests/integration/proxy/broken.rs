//! Replicas that are broken: whatever one writes into its lane, its claims and the table, it loses its lane, and the proxy serves the others.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tracer::lane::{self, DATA_LIMIT, Reset};
use tracer_ipc::replica_table::ReplicaState;
use tracer_ipc::serving::{ProxyOrder, ProxyRoute};

use super::played::{Client, FrameContent, Head, Replica};
use crate::support::Random;

/// Lanes that are broken, one after the other.
const ROUNDS: u64 = 300;
/// The replica that is well, of a deployment of its own.
const GOOD: u32 = 7;

/// Starts a proxy with a second application at `/good`.
fn start() -> Head {
    Head::start_with(1, |settings| {
        let of_good = ProxyRoute {
            route_prefix: "/good".into(),
            application: "good".into(),
            deployment: "good".into(),
            index: 1,
            ..settings.routes[0].clone()
        };
        settings.routes.push(of_good);
    })
}

/// Frames of an answer, right ones and others, for requests that there are and others.
fn frame(random: &mut Random, request: u32, out: &mut Vec<u8>) {
    let number = match random.below(6) {
        0 => random.below(u64::from(u32::MAX)) as u32,
        1 => request.wrapping_add(random.below(4) as u32),
        _ => request,
    };
    let is_last = random.below(4) == 0;
    match random.below(8) {
        0 | 1 => {
            let status = random.choose(&[100, 101, 103, 200, 204, 304, 500, 999]).copied().unwrap_or(200);
            let headers = [("content-length", &b"5"[..]), ("x-a", b"b"), ("connection", b"close")];
            let count = random.below(4) as usize;
            lane::put_head(out, number, is_last && status >= 200, status, headers.into_iter().take(count));
        }
        2 | 3 => {
            let length = *random.choose(&[0, 1, 5, 100, DATA_LIMIT]).expect("there are some");
            out.extend_from_slice(&lane::data_header(number, is_last, length));
            out.resize(out.len() + length, b'x');
        }
        4 => lane::put_trailers(out, number, [("x-end", &b"1"[..])]),
        5 => lane::put_credit(out, number, *random.choose(&[0, 1, 1 << 18, u32::MAX]).expect("there are some")),
        6 => {
            let resets = [Reset::Refused, Reset::HandlerFailed, Reset::BodyFailed, Reset::Timeout, Reset::ClientGone];
            lane::put_reset(out, number, *random.choose(&resets).expect("there are some"));
        }
        _ => lane::put_drain(out),
    }
}

/// Reads until the proxy closes the connection, which it does in time.
#[track_caller]
fn read_to_end(client: &mut Client) {
    match client.0.read_to_end(&mut Vec::new()) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => panic!("it never ends"),
        Ok(_) | Err(_) => {}
    }
}

fn ask(head: &Head, target: &str) -> Client {
    head.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"))
}

/// Expects that the good replica is asked, and that its answer arrives.
#[track_caller]
fn assert_served(head: &mut Head, good: &mut Replica) {
    let mut client = head.get("/good");
    let request = loop {
        let came = good.next();
        // What others asked who have left meanwhile is passed over.
        if let FrameContent::Open { opening, .. } = came.content
            && opening.method == "GET"
            && good.claims.claim(came.request.into())
        {
            break came.request;
        }
    };
    good.answer(request, 200, "well");
    assert_eq!(client.answer().status(200).text(), "well");
    assert!(head.is_running(), "{}", head.log());
}

/// Overwrites words of a file that the proxy maps.
fn scribble(random: &mut Random, file: impl AsFd, words: u64) {
    for _ in 0..=random.below(words) {
        let value = match random.below(3) {
            0 => random.below(8),
            1 => u64::MAX - random.below(8),
            _ => random.below(u64::MAX),
        };
        let at = random.below(words) * 8;
        rustix::io::pwrite(&file, &value.to_ne_bytes(), at).expect("it is shared memory");
    }
}

#[test]
fn a_replica_that_writes_anything_into_its_lane_and_its_claims_loses_its_lane_alone() {
    let mut head = start();
    let mut random = Random::of_test_alone();
    let mut good = head.add_replicas_of(1, GOOD, 10).remove(0);
    for round in 0..ROUNDS {
        let number = (round % u64::from(GOOD)) as u32;
        let mut broken = head.add_replica(number, 10);
        let mut clients = [ask(&head, "/1"), ask(&head, "/2")];
        let (request, _, _) = broken.take();
        let mut bytes = Vec::new();
        (0..random.below(12)).for_each(|_| frame(&mut random, request, &mut bytes));
        if random.below(3) > 0 {
            random.spoil(&mut bytes);
        }
        if random.below(4) == 0 {
            let words = rustix::fs::fstat(&broken.claims_file).expect("a file").st_size as u64 / 8;
            scribble(&mut random, &broken.claims_file, words);
        }
        // The proxy may have closed it before all is written.
        let _ = broken.socket.write_all(&bytes);
        if random.below(2) == 0 {
            assert_served(&mut head, &mut good);
        }
        drop(broken);
        head.set_state(number, ReplicaState::Gone);
        head.order(&ProxyOrder::ReplicaGone { replica: number }, &[]);
        // What nobody has begun waits for another replica, and is given up by its client.
        for client in &clients {
            let _ = client.0.get_ref().shutdown(std::net::Shutdown::Write);
        }
        clients.iter_mut().for_each(read_to_end);
    }
    assert_served(&mut head, &mut good);
    let broken = head.broken_lanes.load(Relaxed);
    assert!(broken > ROUNDS / 4, "only {broken} lanes of {ROUNDS} had anything that none may send");
}

/// Whoever maps the table may write anything there. While it does, requests may be refused or wait; the proxy goes on, and all is well when
/// the table is.
#[test]
fn a_table_that_is_overwritten_ends_no_proxy() {
    let mut head = start();
    let mut random = Random::of_test_alone();
    let mut good = head.add_replicas_of(1, GOOD, 10).remove(0);
    assert_served(&mut head, &mut good);
    let words = rustix::fs::fstat(&head.table_file).expect("a file").st_size as u64 / 8;
    let mut sound = vec![0; words as usize * 8];
    rustix::io::pread(&head.table_file, &mut sound, 0).expect("it is shared memory");
    let (is_over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (head, is_over, asked) = (&head, &is_over, &asked);
        for target in ["/", "/good", "/good"] {
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let client = ask(head, target);
                    // Nobody waits for an answer; the next one leaves while this one waits or is refused.
                    asked.fetch_add(1, Relaxed);
                    drop(client);
                }
            });
        }
        let mut rounds = 0;
        while rounds < 300 || asked.load(Relaxed) < 600 {
            scribble(&mut random, &head.table_file, words);
            head.order(&ProxyOrder::Refresh, &[]);
            // A replica is told to go, and comes, in a table that says anything.
            if rounds % 50 == 49 {
                drop(head.add_replicas_of(0, (rounds / 50) % GOOD, 10));
            }
            rounds += 1;
        }
        is_over.store(true, Relaxed);
    });
    drop(good);
    rustix::io::pwrite(&head.table_file, &sound, 0).expect("it is shared memory");
    head.order(&ProxyOrder::ReplicaGone { replica: GOOD }, &[]);
    let mut good = head.add_replicas_of(1, GOOD, 10).remove(0);
    assert_served(&mut head, &mut good);
}
