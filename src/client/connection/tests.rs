//! Connections to heads that are threads of the test, over a pair of sockets.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::task::{Context, Wake};
use std::thread::JoinHandle;

use proptest::prelude::*;
use tracer_core::codec::Put;
use tracer_core::propagation::Carrier;
use tracer_core::task::{Demand, Failure, JobId, Outcome, Policy, Refusal, RefusalCode, TaskId, TaskSpec};
use tracer_ipc::protocol::frame::{FrameBuffer, put_frame};
use tracer_ipc::protocol::{
    Accepted, Finished, Output, OutputSize, Stream, Submissions, TracingSettings, put_refusal, put_reply,
    put_task_refusal,
};

use super::*;

/// Longer than any wait of these tests, which are for facts.
const LIMIT: Duration = Duration::from_secs(30);

/// The head's end of a connection.
struct Head {
    stream: UnixStream,
    inbox: FrameBuffer,
}

impl Head {
    /// Returns the next frame that the client has sent.
    fn next(&mut self) -> (u8, Vec<u8>) {
        loop {
            if let Some((frame_kind, body)) = self.inbox.next_frame(FRAME_LIMIT).expect("clients send whole frames") {
                return (frame_kind, body.to_vec());
            }
            let count = self.inbox.read_from(&mut self.stream).expect("something comes in time");
            assert_ne!(count, 0, "the client has closed the connection");
        }
    }

    /// Returns the next batch: its first tag, and how many there are.
    fn next_batch(&mut self) -> (u64, u64) {
        let (frame_kind, body) = self.next();
        assert_eq!(frame_kind, kind::SUBMIT);
        let submissions = Submissions::decode(&body).unwrap();
        (submissions.first_tag, submissions.count() as u64)
    }

    fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut frames = Vec::new();
        encode(&mut frames);
        io::Write::write_all(&mut self.stream, &frames).expect("the client reads");
    }

    fn accept(&mut self, first_tag: u64, first_task: u64, count: u32) {
        let first_task = TaskId(first_task);
        self.send(|out| Accepted { first_tag, first_task, count, journaled: None }.encode(out));
    }

    fn finish(&mut self, tag: u64, outcome: &Outcome) {
        self.send(|out| put_finished(out, tag, outcome));
    }
}

fn put_finished(out: &mut Vec<u8>, tag: u64, outcome: &Outcome) {
    put_frame(out, kind::FINISHED, |out| Finished::put_parts(out, tag, TaskId(tag + 1), 1, outcome, None, &[]));
}

fn put_output(out: &mut Vec<u8>, task: u64, bytes: &[u8]) {
    let (stream, lost) = (Stream::Stdout, OutputSize::default());
    Output { task: TaskId(task), worker_pid: 5, stream, is_shared: false, node_id: "", lost, bytes }.encode(out);
}

fn welcome() -> Welcome {
    Welcome {
        version: "0".into(),
        head_pid: std::process::id(),
        node_id: "here".into(),
        place_id: None,
        job_id: JobId(1),
        session_dir: "/nowhere".into(),
        module_path: Vec::new(),
        module_folders: Vec::new(),
        tracing: TracingSettings::untraced("/nowhere".into()),
        output_nonce: None,
    }
}

fn connected_as(role: Role) -> (Arc<Connection>, Head) {
    let (stream, head) = UnixStream::pair().expect("sockets can be made");
    head.set_read_timeout(Some(LIMIT)).unwrap();
    let connection = Connection::new(stream, ReadHalf::new(), welcome(), role);
    (Arc::new(connection), Head { stream: head, inbox: FrameBuffer::default() })
}

fn connected() -> (Arc<Connection>, Head) {
    connected_as(Role::Driver)
}

fn submit_with(connection: &Connection, follower: Option<Box<dyn Follower>>) -> Result<u64, DriverError> {
    submit_as(connection, follower, "")
}

fn submit_as(connection: &Connection, follower: Option<Box<dyn Follower>>, queue: &str) -> Result<u64, DriverError> {
    let origin = Origin { parent: &Carrier::default(), is_parent_remote: false, task: None };
    let request = SubmitRequest {
        spec: TaskSpec::command(b"true", Vec::new(), Vec::new(), b"/"),
        name: "",
        run_limit: None,
        policy: Policy { queue, ..Policy::default() },
        demand: Demand::default(),
        wants_output: follower.is_some(),
        trace_runtime: false,
        inputs: &[],
    };
    connection.submit(&request, &origin, follower).map(|ticket| ticket.tag())
}

fn submit(connection: &Connection) -> u64 {
    submit_with(connection, None).expect("it can be submitted")
}

fn end_of(connection: &Connection, tag: u64) -> Result<Outcome, DriverError> {
    let deadline = Some(Instant::now() + LIMIT);
    let finished = connection.wait_for(deadline, |exchange| exchange.take_finished(tag))?;
    Ok(finished.expect("it ends in time").outcome)
}

fn value(byte: u8) -> Outcome {
    Outcome::Returned(vec![byte])
}

fn in_thread<T: Send + 'static>(
    connection: &Arc<Connection>,
    act: impl FnOnce(&Connection) -> T + Send + 'static,
) -> JoinHandle<T> {
    let connection = Arc::clone(connection);
    std::thread::spawn(move || act(&connection))
}

/// Waits until the state is as it has to be.
fn until(connection: &Connection, is_so: impl Fn(&Shared) -> bool) {
    let since = Instant::now();
    while !is_so(&connection.lock()) {
        assert!(since.elapsed() < LIMIT, "it does not come to that");
        std::thread::yield_now();
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn of_two_threads_that_wait_one_reads_for_both() {
    let (connection, mut head) = connected();
    let (one, other) = (submit(&connection), submit(&connection));
    let waiters = [one, other].map(|tag| in_thread(&connection, move |connection| end_of(connection, tag).unwrap()));
    assert_eq!(head.next_batch(), (0, 2));
    until(&connection, |shared| shared.read_half.is_none() && shared.waiting == 1);
    head.accept(0, 1, 2);
    head.finish(other, &value(2));
    head.finish(one, &value(1));
    assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [value(1), value(2)]);
    assert_eq!(connection.lock().waiting, 0);
}

#[test]
fn a_head_that_dies_is_told_to_all_who_wait_in_every_way() {
    struct Dropped(mpsc::Sender<&'static str>);
    impl Follower for Dropped {}
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send("follower");
        }
    }
    let (connection, mut head) = connected();
    let (told, tells) = mpsc::channel();
    let first = submit(&connection);
    let followed = submit_with(&connection, Some(Box::new(Dropped(told.clone())))).unwrap();
    let waiters = [first, followed].map(|tag| in_thread(&connection, move |connection| end_of(connection, tag)));
    until(&connection, |shared| shared.waiting == 1);
    let (ended, settled) = (told.clone(), told.clone());
    connection.on_ended(first, Box::new(move || ended.send("ended").unwrap())).unwrap();
    connection.on_settled(first, Box::new(move || settled.send("settled").unwrap())).unwrap();
    let asked = Dropped(told);
    connection.query_then(&Query::Status, move |_| drop(asked)).unwrap();
    let woken = Arc::new(Woken::default());
    let poll =
        || connection.poll_for(first, &Waker::from(Arc::clone(&woken)), |exchange| exchange.take_finished(first));
    assert!(poll().is_pending());
    head.next_batch();
    drop(head);
    for waiter in waiters {
        let error = waiter.join().unwrap().expect_err("nothing comes any more");
        assert!(matches!(error, DriverError::Disconnected(_)), "{error:?}");
    }
    let mut heard: Vec<_> = (0..4).map(|_| tells.recv_timeout(LIMIT).expect("it is told")).collect();
    heard.sort_unstable();
    assert_eq!(heard, ["ended", "follower", "follower", "settled"]);
    until(&connection, |_| woken.0.load(SeqCst) == 1);
    assert!(matches!(poll(), Poll::Ready(Err(DriverError::Disconnected(_)))));
    assert!(connection.on_ended(first, Box::new(|| ())).is_err());
    let query = connection.query(&Query::Status, None);
    assert!(matches!(query, Err(DriverError::Disconnected(_))), "{query:?}");
}

#[test]
fn what_has_come_before_the_head_died_is_there() {
    let (connection, mut head) = connected();
    let tag = submit(&connection);
    connection.send().unwrap();
    head.accept(0, 1, 1);
    head.finish(tag, &value(7));
    drop(head);
    assert_eq!(end_of(&connection, tag).unwrap(), value(7));
    assert!(end_of(&connection, tag).is_err());
}

#[test]
fn frames_that_make_no_sense_break_the_connection_for_all() {
    let accepted = |first_tag, count| {
        let mut frame = Vec::new();
        Accepted { first_tag, first_task: TaskId(u64::MAX - 1), count, journaled: None }.encode(&mut frame);
        frame
    };
    let framed = |frame_kind, body: &[u8]| {
        let mut frame = Vec::new();
        put_frame(&mut frame, frame_kind, |out| out.put_exact(body));
        frame
    };
    let hostile = [
        framed(255, b""),
        framed(kind::ACCEPTED, b"short"),
        framed(kind::FINISHED, &[0xff; 64]),
        framed(kind::OUTPUT, &[9; 13]),
        framed(kind::REPLY, b"\xc1"),
        framed(kind::REFUSED, &[0xff; 3]),
        framed(kind::RUN, b"a lease"),
        // Others than were sent, more than were sent, and ids that do not exist.
        accepted(5, 1),
        accepted(0, u32::MAX),
        accepted(u64::MAX, u32::MAX),
        accepted(0, 2),
        u32::MAX.to_le_bytes().to_vec(),
        0_u32.to_le_bytes().to_vec(),
    ];
    for frame in hostile {
        let (connection, mut head) = connected();
        let (tag, _) = (submit(&connection), submit(&connection));
        let waiters = [(), ()].map(|()| in_thread(&connection, move |connection| end_of(connection, tag).is_err()));
        assert_eq!(head.next_batch(), (0, 2));
        until(&connection, |shared| shared.waiting == 1);
        head.send(|out| out.extend_from_slice(&frame));
        assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [true; 2], "after {frame:?}");
        let left = io::Read::read(&mut head.stream, &mut [0; 64]).expect("it is told in time");
        assert_eq!(left, 0, "the connection is shut after {frame:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_of_a_head_make_an_exchange_panic(
        frames in prop::collection::vec((0..40_u8, prop::collection::vec(any::<u8>(), 0..80)), 0..20),
    ) {
        let (connection, _head) = connected();
        submit(&connection);
        let exchange = &mut connection.lock().exchange;
        exchange.outbox().close_batch();
        for (frame_kind, body) in &frames {
            let _ = exchange.take_frame(*frame_kind, body);
        }
    }
}

#[test]
fn a_wait_that_is_over_before_the_end_takes_nothing_away() {
    let (connection, mut head) = connected();
    let tag = submit(&connection);
    let in_no_time = connection.wait_for(Some(Instant::now()), |exchange| exchange.take_finished(tag));
    assert!(matches!(in_no_time, Ok(None)));
    assert!(matches!(connection.look_now(|exchange| exchange.take_finished(tag)), Ok(None)));
    // A future that is dropped after it was polled.
    let woken = Arc::new(Woken::default());
    {
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut future = std::pin::pin!(std::future::poll_fn(|context| {
            connection.poll_for(tag, context.waker(), |exchange| exchange.take_finished(tag))
        }));
        for _ in 0..2 {
            assert!(Future::poll(future.as_mut(), &mut context).is_pending());
        }
    }
    assert_eq!(head.next_batch(), (0, 1));
    head.accept(0, 1, 1);
    head.finish(tag, &value(3));
    until(&connection, |_| woken.0.load(SeqCst) == 1);
    assert_eq!(end_of(&connection, tag).unwrap(), value(3));
}

#[test]
fn an_end_that_nobody_asks_for_is_given_back_to_the_head() {
    let (connection, mut head) = connected();
    let (early, late) = (submit(&connection), submit(&connection));
    let (told, tells) = mpsc::channel();
    connection.on_ended(early, Box::new(move || told.send(()).unwrap())).unwrap();
    assert_eq!(head.next_batch(), (0, 2));
    connection.with(|exchange| exchange.forget(early));
    tells.recv_timeout(LIMIT).expect("who is forgotten is called back");
    let large = Outcome::Stored(Stored { name: "1".into(), bytes: 1 << 20 });
    head.accept(0, 1, 2);
    head.finish(early, &large);
    head.finish(late, &large);
    let has_come = connection.wait_for(None, |exchange| exchange.has_finished(late).then_some(()));
    assert!(matches!(has_come, Ok(Some(()))));
    assert!(!connection.with(|exchange| exchange.has_finished(early)));
    connection.with(|exchange| exchange.forget(late));
    for task in [1_u64, 2] {
        assert_eq!(head.next(), (kind::FORGET, task.to_le_bytes().to_vec()));
    }
}

#[test]
fn submitting_blocks_while_the_head_is_behind_and_takes_in_what_comes() {
    for (queue, limit) in [("", outbox::UNANSWERED), ("default", outbox::UNANSWERED_OF_QUEUES)] {
        submitting_blocks_behind(queue, limit);
    }
}

fn submitting_blocks_behind(queue: &'static str, limit: u64) {
    let (connection, mut head) = connected();
    let count = 4 * limit;
    let submitting = in_thread(&connection, move |connection| {
        for _ in 0..count {
            submit_as(connection, None, queue).expect("it can be submitted");
        }
    });
    let (mut sent, mut accepted) = (0, 0);
    while accepted < count {
        while sent < count && sent - accepted <= limit {
            sent += head.next_batch().1;
        }
        if sent < count {
            // It reads, and sends nothing more.
            until(&connection, |shared| shared.read_half.is_none());
            assert!(head.inbox.unread() == 0 && !is_readable(&head.stream, Duration::ZERO), "{sent} are sent");
        }
        head.accept(accepted, accepted + 1, BATCH as u32);
        accepted += BATCH as u64;
    }
    submitting.join().unwrap();
    let settled = connection.wait_for(None, |exchange| exchange.is_settled().then_some(()));
    assert!(matches!(settled, Ok(Some(()))));
    assert_eq!(connection.with(|exchange| exchange.id_of_tag(count - 1)), Some(TaskId(count)));
}

/// Keeps what it hears.
struct Hears(mpsc::Sender<String>);

impl Follower for Hears {
    fn accepted(&mut self, task: TaskId) {
        let _ = self.0.send(format!("accepted {task}"));
    }

    fn output(&mut self, output: &TaskOutput) -> Option<Waker> {
        let _ = self.0.send(String::from_utf8_lossy(&output.bytes).into_owned());
        None
    }

    fn ended(self: Box<Self>, finished: Finished) -> Option<Finished> {
        let _ = self.0.send("ended".into());
        Some(finished)
    }
}

#[test]
fn output_is_followed_in_order_while_another_thread_submits() {
    let (connection, mut head) = connected();
    let (hears, heard) = mpsc::channel();
    let followed = submit_with(&connection, Some(Box::new(Hears(hears)))).unwrap();
    connection.send().unwrap();
    assert_eq!(head.next_batch(), (0, 1));
    head.accept(0, 1, 1);
    let following = in_thread(&connection, move |connection| end_of(connection, followed).unwrap());
    let batches = 30;
    let count = batches * BATCH as u64;
    let submitting = in_thread(&connection, move |connection| {
        for _ in 0..count {
            submit(connection);
        }
    });
    for batch in 0..batches {
        let (first_tag, count) = head.next_batch();
        head.send(|out| {
            put_output(out, 1, format!("line {batch}").as_bytes());
            put_output(out, 99, b"of nobody");
            let first_task = TaskId(first_tag + 1);
            let count = u32::try_from(count).unwrap();
            Accepted { first_tag, first_task, count, journaled: None }.encode(out);
        });
    }
    submitting.join().unwrap();
    head.finish(followed, &value(1));
    assert_eq!(following.join().unwrap(), value(1));
    let lines = (0..batches).map(|batch| format!("line {batch}"));
    let expected: Vec<_> =
        std::iter::once("accepted 1".into()).chain(lines).chain(std::iter::once("ended".into())).collect();
    assert_eq!(heard.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_task_of_two_submissions_is_heard_by_the_followers_of_both() {
    let (connection, mut head) = connected();
    let (hears, heard) = mpsc::channel();
    let tags = [(), ()].map(|()| submit_with(&connection, Some(Box::new(Hears(hears.clone())))).unwrap());
    connection.send().unwrap();
    // A batch with idempotency keys is answered in parts.
    tags.iter().for_each(|&tag| head.accept(tag, 1, 1));
    head.send(|out| put_output(out, 1, b"text"));
    connection.with(|exchange| exchange.is_settled());
    let settled = connection.wait_for(None, |exchange| exchange.is_settled().then_some(()));
    assert!(matches!(settled, Ok(Some(()))));
    connection.with(|exchange| exchange.forget(tags[0]));
    head.send(|out| {
        put_output(out, 1, b"more");
        let outcome = value(1);
        put_frame(out, kind::FINISHED, |out| Finished::put_parts(out, tags[1], TaskId(1), 1, &outcome, None, &[]));
    });
    assert_eq!(end_of(&connection, tags[1]).unwrap(), value(1));
    drop(hears);
    assert_eq!(
        heard.iter().collect::<Vec<_>>(),
        ["accepted 1", "accepted 1", "text", "text", "more", "ended"],
        "each until it is forgotten or has ended"
    );
}

#[test]
fn a_refused_batch_is_the_end_of_its_tasks_and_of_nothing_else() {
    let (connection, mut head) = connected();
    let refused = [submit(&connection), submit(&connection)];
    connection.send().unwrap();
    let later = submit(&connection);
    let (told, tells) = mpsc::channel();
    connection.on_settled(refused[1], Box::new(move || told.send(()).unwrap())).unwrap();
    head.send(|out| put_refusal(out, &Refusal::new(RefusalCode::QueueFull, "it is full")));
    head.accept(later, 1, 1);
    head.finish(later, &value(1));
    assert_eq!(end_of(&connection, later).unwrap(), value(1));
    for tag in refused {
        let failure = Failure::from(Refusal::new(RefusalCode::QueueFull, "it is full"));
        assert_eq!(end_of(&connection, tag).unwrap(), Outcome::Failed(failure));
        assert_eq!(connection.with(|exchange| exchange.id_of_tag(tag)), None);
    }
    tells.recv_timeout(LIMIT).expect("a refusal settles");
    assert_eq!(connection.with(Exchange::take_refusal).map(|refusal| refusal.code), Some(RefusalCode::QueueFull));
}

#[test]
fn tasks_of_several_batches_are_accepted_together_and_one_is_refused_alone() {
    let (connection, mut head) = connected();
    let tags: Vec<_> = (0..6).map(|_| submit(&connection)).collect();
    connection.send().unwrap();
    let more = [submit(&connection), submit(&connection)];
    connection.send().unwrap();
    head.accept(tags[0], 1, 2);
    head.send(|out| put_task_refusal(out, tags[2], &Refusal::new(RefusalCode::QueueFull, "it is full")));
    // The last ones of a batch, and the first one of the next.
    head.accept(tags[3], 4, 4);
    head.finish(more[0], &value(1));
    assert_eq!(end_of(&connection, more[0]).unwrap(), value(1));
    let failure = Failure::from(Refusal::new(RefusalCode::QueueFull, "it is full"));
    assert_eq!(end_of(&connection, tags[2]).unwrap(), Outcome::Failed(failure));
    let ids = tags.iter().chain(&more).map(|tag| connection.with(|exchange| exchange.id_of_tag(*tag)));
    let ids: Vec<_> = ids.map(|id| id.map(|id| id.0)).collect();
    assert_eq!(ids, [Some(1), Some(2), None, Some(4), Some(5), Some(6), Some(7), None]);
    head.accept(more[1], 8, 1);
    let settled = connection.wait_for(None, |exchange| exchange.is_settled().then_some(()));
    assert!(matches!(settled, Ok(Some(()))));
}

#[test]
fn callbacks_may_use_the_connection() {
    let (connection, mut head) = connected_as(Role::Tasks(tracer_core::task::WorkerId(1)));
    let (told, tells) = mpsc::channel();
    let runs = told.clone();
    connection.run_with(move |lease| runs.send(u64::from(lease[0])).unwrap());
    connection.read_in_thread(|_| ()).unwrap();
    let tag = submit(&connection);
    let (own, settled) = (Arc::clone(&connection), told.clone());
    let on_settled = move || settled.send(own.with(|exchange| exchange.id_of_tag(tag)).unwrap().0).unwrap();
    connection.on_settled(tag, Box::new(on_settled)).unwrap();
    let own = Arc::clone(&connection);
    let on_ended = move || {
        assert!(own.with(|exchange| exchange.take_finished(tag)).is_some());
        told.send(0).unwrap();
    };
    connection.on_ended(tag, Box::new(on_ended)).unwrap();
    assert_eq!(head.next_batch(), (0, 1));
    head.accept(0, 40, 1);
    assert_eq!(tells.recv_timeout(LIMIT), Ok(40));
    head.send(|out| put_frame(out, kind::RUN, |out| out.put_exact(&[7])));
    assert_eq!(tells.recv_timeout(LIMIT), Ok(7));
    head.finish(tag, &value(1));
    assert_eq!(tells.recv_timeout(LIMIT), Ok(0));
    connection.close();
}

#[test]
fn a_lease_that_comes_amid_submissions_is_run_at_once() {
    let (connection, mut head) = connected_as(Role::Tasks(tracer_core::task::WorkerId(1)));
    let (runs, leases) = mpsc::channel();
    connection.run_with(move |lease| runs.send(lease).unwrap());
    head.send(|out| put_frame(out, kind::RUN, |out| out.put_exact(&[7])));
    for _ in 0..BATCH {
        submit(&connection);
    }
    assert_eq!(leases.try_recv(), Ok(vec![7]), "nobody else reads");
}

#[test]
fn whoever_asks_gets_the_answer_to_the_own_question() {
    let (connection, mut head) = connected();
    let (told, tells) = mpsc::channel();
    connection.query_then(&Query::Status, move |reply| told.send(reply).unwrap()).unwrap();
    let asking = in_thread(&connection, |connection| connection.query(&Query::Status, None).unwrap());
    assert_eq!([head.next().0, head.next().0], [kind::QUERY; 2]);
    head.send(|out| {
        put_reply(out, 1, &Reply::Running(1));
        put_reply(out, 0, &Reply::Running(0));
    });
    assert!(matches!(asking.join().unwrap(), Some(Reply::Running(1))));
    assert!(matches!(tells.recv_timeout(LIMIT), Ok(Reply::Running(0))));
    let in_no_time = connection.query(&Query::Status, Some(Instant::now()));
    assert!(matches!(in_no_time, Ok(None)), "a head that says nothing until then");
}

#[test]
fn sets_are_told_of_each_end_once() {
    let (connection, mut head) = connected();
    let tags = [submit(&connection), submit(&connection), submit(&connection)];
    connection.send().unwrap();
    head.accept(0, 1, 3);
    head.finish(tags[0], &value(0));
    assert!(matches!(connection.wait_for(None, |exchange| exchange.has_finished(tags[0]).then_some(())), Ok(Some(()))));
    let set = Arc::new(EndedTasks::default());
    connection.watch_set(tags.into_iter(), &set);
    connection.with(|exchange| exchange.forget(tags[1]));
    head.finish(tags[2], &value(2));
    let mut ends = Vec::new();
    for _ in 0..2 {
        let next = connection.wait_for(None, |exchange| exchange.take_finished(set.pop()?));
        ends.push(next.unwrap().unwrap().tag);
    }
    assert_eq!((ends, set.is_empty()), (vec![tags[0], tags[2]], true));
}
