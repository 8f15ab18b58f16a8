//! Calls whose head and replica are the test.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::ThreadId;
use std::time::Duration;

use tracer_host::hook::CallEvent;
use tracer_ipc::calling::{CallRoute, CallerOrder, CallerReport, listen_for_callers};
use tracer_ipc::claims::SharedClaims;
use tracer_ipc::control;
use tracer_ipc::lane;
use tracer_ipc::replica_table::{Capacity, ReplicaTable};
use tracer_ipc::serving::Detail;
use tracer_ipc::spin::Spin;

use super::*;

/// Time by which something has come that is on its way.
const DEADLINE: Duration = Duration::from_secs(20);

/// A caller, and the ends of its sockets that are the head's and a replica's.
struct Called {
    calls: Arc<Calls>,
    head: OwnedFd,
    replica: Option<(UnixStream, SharedClaims)>,
    /// Readable by nobody.
    events: OwnedFd,
    _folder: tempfile::TempDir,
}

impl Called {
    fn new() -> Called {
        let folder = tempfile::tempdir().unwrap();
        let session = folder.path().join("place/sessions/1");
        std::fs::create_dir_all(&session).unwrap();
        let listener = listen_for_callers(&session).unwrap();
        let calls = Calls::connect(&session, None, None).unwrap();
        calls.lock().spin = Spin::always().for_answers();
        let head = rustix::net::accept(&listener).unwrap();
        let events = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Called { calls, head, replica: None, events, _folder: folder }
    }

    /// Begins a call. What comes of it comes with the thread that has told it.
    fn call(&self) -> Receiver<(ThreadId, CallEvent)> {
        let (told, events) = channel();
        let request = CallRequest { deployment: "Model".into(), target: "predict".into(), ..CallRequest::default() };
        self.calls.call(
            request,
            Box::new(move |event| {
                let _ = told.send((std::thread::current().id(), event));
            }),
        );
        events
    }

    /// Answers what the first call asks of the head: a table with one replica, and a lane to it.
    fn introduce(&mut self) {
        let asked = || control::receive::<CallerReport>(&self.head).unwrap().unwrap().0;
        assert!(matches!(asked(), CallerReport::Find { .. }));
        let (table, file) = ReplicaTable::create(Capacity { replicas: 1, callers: 1, deployments: 1 }).unwrap();
        table.add_replica(table.replica(0).unwrap(), table.deployment(0).unwrap(), 8);
        table.add_caller(table.caller(0).unwrap());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let tell = |order: &CallerOrder, files: &[BorrowedFd<'_>]| control::send(&self.head, order, files).unwrap();
        tell(&CallerOrder::Service { service: "shop".into(), caller: 0 }, &[file.as_fd(), wake.as_fd()]);
        let route = CallRoute {
            service: "shop".into(),
            application: "app".into(),
            route_prefix: "/".into(),
            deployment: "Model".into(),
            index: 0,
            queue_timeout: None,
            is_traced: false,
            detail: Detail::Hops,
        };
        tell(&CallerOrder::Route { wanted: "Model".into(), route: Ok(route) }, &[]);
        assert!(matches!(asked(), CallerReport::Lane { replica: 0, .. }));
        let (own, other) = UnixStream::pair().unwrap();
        own.set_read_timeout(Some(DEADLINE)).unwrap();
        let (claims, file) = SharedClaims::create().unwrap();
        let order = CallerOrder::Lane { service: "shop".into(), replica: 0, name: "Model#1".into() };
        tell(&order, &[other.as_fd(), file.as_fd()]);
        self.replica = Some((own, claims));
    }

    /// Takes a call as the replica does. Returns its number.
    fn take(&mut self) -> u32 {
        let (stream, claims) = self.replica.as_mut().unwrap();
        let mut bytes = Vec::new();
        while bytes.is_empty() || lane::whole_frames(&bytes).unwrap() < bytes.len() {
            let mut read = [0; 4096];
            let count = stream.read(&mut read).unwrap();
            bytes.extend_from_slice(&read[..count]);
        }
        let number = lane::frames(&bytes).next().unwrap().unwrap().request;
        assert!(claims.claim(number.into()));
        number
    }

    /// Answers a call.
    fn answer(&mut self, number: u32) {
        let mut frames = Vec::new();
        lane::put_head(&mut frames, number, true, 200, []);
        self.replica.as_mut().unwrap().0.write_all(&frames).unwrap();
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        self.calls.close();
    }
}

/// Returns the thread that has told the end of a call.
fn teller(events: &Receiver<(ThreadId, CallEvent)>) -> ThreadId {
    loop {
        match events.recv_timeout(DEADLINE).expect("the call ends") {
            (thread, CallEvent::Ended) => return thread,
            (_, CallEvent::Head(200, _)) => {}
            (_, event) => panic!("{event:?}"),
        }
    }
}

#[test]
fn a_loop_that_looks_is_told_of_an_answer_on_its_own_thread_and_otherwise_the_thread_tells() {
    let mut called = Called::new();
    let own = std::thread::current().id();
    let first = called.call();
    called.introduce();
    let number = called.take();
    called.answer(number);
    assert_ne!(teller(&first), own, "nobody has looked");
    for _ in 0..50 {
        let events = called.call();
        let number = called.take();
        // As if it looked already.
        called.calls.have_thread_read(false);
        called.answer(number);
        assert!(called.calls.look(called.events.as_fd()));
        assert_eq!(teller(&events), own);

        let events = called.call();
        let number = called.take();
        assert!(!called.calls.look(called.events.as_fd()), "there is nothing, for as long as it pays to look");
        called.answer(number);
        assert_ne!(teller(&events), own, "it looks no more");
    }
}

#[test]
fn a_look_ends_when_the_loop_has_something_else_to_do() {
    let mut called = Called::new();
    let events = called.call();
    called.introduce();
    let number = called.take();
    rustix::io::write(&called.events, &1_u64.to_ne_bytes()).unwrap();
    assert!(called.calls.look(called.events.as_fd()));
    called.answer(number);
    assert_ne!(teller(&events), std::thread::current().id());
}

#[test]
fn nobody_looks_for_one_of_several_answers_and_nobody_without_a_call() {
    let mut called = Called::new();
    assert!(!called.calls.wants_look() && !called.calls.look(called.events.as_fd()));
    let first = called.call();
    called.introduce();
    let number = called.take();
    assert!(called.calls.wants_look(), "a loop that sleeps is woken to look");
    let second = called.call();
    let other = called.take();
    rustix::io::write(&called.events, &1_u64.to_ne_bytes()).unwrap();
    assert!(!called.calls.wants_look() && !called.calls.look(called.events.as_fd()));
    for (events, number) in [(second, other), (first, number)] {
        called.answer(number);
        teller(&events);
    }
    assert!(!called.calls.wants_look());
}
