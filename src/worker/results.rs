//! Results on their way to the head, in batches.
//!
//! A batch is taken, then the spans are committed, then the batch is sent; a result enters the batch only after its span has ended.
//! So whoever sees a result finds its spans recorded.
//!
//! When many tasks come in one lease, their results wait for each other, but not for long: a thread sends what has waited for
//! [`LINGER`], so that a long task does not hold back the results of short ones before it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracer_core::lock::lock;
use tracer_host::hook::Recorder;
use tracer_ipc::channel::{NewRings, Sender};
use tracer_ipc::protocol::frame::put_frame;
use tracer_ipc::protocol::wire::Put;
use tracer_ipc::protocol::{ActorMethods, AttemptResult, kind, put_value};
use tracer_ipc::{fault, fork};

/// Longest time that a result may wait for more.
const LINGER: Duration = Duration::from_millis(2);
/// Bytes of results that are sent without waiting for more.
const BATCH_BYTES: usize = 64 << 10;
/// Results that are sent without waiting for more. Their spans are a write of 100 KiB, and the memory of twice as many would not be worth it.
const BATCH_RESULTS: usize = 128;

/// The batch and its way to the head.
pub(super) struct Results {
    batch: Mutex<Batch>,
    /// Tells the sending thread that something waits.
    waiting: Condvar,
    /// Held while sending, so that batches leave in order.
    outlet: Mutex<Outlet>,
    recorder: Option<&'static Recorder>,
}

struct Outlet {
    stream: UnixStream,
    sender: Sender,
}

#[derive(Default)]
struct Batch {
    body: Vec<u8>,
    count: usize,
    has_thread: bool,
    /// Time since which the batch waits for tasks that follow; none when it is sent anyway.
    lingers_since: Option<Instant>,
    /// True if the thread sleeps until something lingers. While it watches a batch, it need not be told of the next.
    is_thread_asleep: bool,
}

impl Results {
    pub(super) fn new(stream: UnixStream, recorder: Option<&'static Recorder>) -> Results {
        let outlet = Mutex::new(Outlet { stream, sender: Sender::default() });
        Results { batch: Mutex::default(), waiting: Condvar::new(), outlet, recorder }
    }

    /// Asks the head for rings.
    pub(super) fn ask_for_rings(&self) -> io::Result<()> {
        let Outlet { stream, sender } = &mut *lock(&self.outlet);
        sender.ask_for_rings(stream)
    }

    /// Notes that the head has answered that.
    pub(super) fn attach(&self, rings: Option<NewRings>) {
        lock(&self.outlet).sender.attach(rings);
    }

    /// Tells the head what it has to know of an actor that was made here, before it hears of the result of that.
    pub(super) fn report_methods(&self, methods: &ActorMethods) {
        let mut frame = Vec::new();
        put_value(&mut frame, kind::ACTOR_METHODS, methods);
        let Outlet { stream, sender } = &mut *lock(&self.outlet);
        // A broken connection is found by the next read.
        let _ = sender.write_all(stream, &frame);
    }

    /// Adds a result. `more_follows` says whether another task is run before [`send`](Self::send) is called.
    pub(super) fn push(self: &Arc<Self>, result: &AttemptResult, more_follows: bool) {
        let mut batch = lock(&self.batch);
        result.put(&mut batch.body);
        batch.count += 1;
        let is_full = batch.body.len() >= BATCH_BYTES || batch.count >= BATCH_RESULTS;
        if more_follows && !is_full && batch.lingers_since.is_none() {
            batch.lingers_since = Some(Instant::now());
            if !batch.has_thread {
                let results = Arc::clone(self);
                // Without the thread results may wait for a whole lease; they are not lost.
                batch.has_thread = std::thread::Builder::new()
                    .name("tracer-results".into())
                    .spawn(move || results.send_late())
                    .is_ok();
            }
            if std::mem::take(&mut batch.is_thread_asleep) {
                self.waiting.notify_one();
            }
        }
        drop(batch);
        if is_full {
            // A broken connection is found again by the next read.
            let _ = self.send();
        }
    }

    /// Sends what there is.
    pub(super) fn send(&self) -> io::Result<()> {
        fork::end_copy();
        let Outlet { stream, sender } = &mut *lock(&self.outlet);
        let body = {
            let mut batch = lock(&self.batch);
            batch.lingers_since = None;
            batch.count = 0;
            std::mem::take(&mut batch.body)
        };
        if body.is_empty() {
            return Ok(());
        }
        fault::point("before_commit");
        if let Some(recorder) = self.recorder
            && let Err(reason) = recorder.commit()
        {
            // The spans stay in the spool, which is as safe; the head says how many were never written.
            eprintln!("tracer: spans could not be written: {reason}");
        }
        fault::point("after_commit");
        let mut frame = Vec::with_capacity(body.len() + 8);
        put_frame(&mut frame, kind::RESULTS, |out| out.put_exact(&body));
        sender.write_all(stream, &frame)?;
        fault::point("after_result");
        Ok(())
    }

    /// Sends, again and again, what has waited for long enough.
    fn send_late(&self) {
        let mut batch = lock(&self.batch);
        loop {
            let Some(since) = batch.lingers_since else {
                batch.is_thread_asleep = true;
                batch = self.waiting.wait(batch).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            match LINGER.checked_sub(since.elapsed()) {
                // The batch may have left by then, and another one linger: that one is looked at again.
                Some(rest) if !rest.is_zero() => {
                    (batch, _) = self.waiting.wait_timeout(batch, rest).unwrap_or_else(PoisonError::into_inner);
                }
                _ => {
                    drop(batch);
                    // A broken connection is found again by the main thread's next read.
                    let _ = self.send();
                    batch = lock(&self.batch);
                }
            }
        }
    }
}
