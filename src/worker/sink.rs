//! The worker's span sink: takes spans over from the head, on a connection and a thread of its own, so that neither waits for a task.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tracer_abi as abi;
use tracer_core::task::WorkerId;
use tracer_host::hook::Recorder;
use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer};
use tracer_ipc::protocol::{Role, SpansDone, SpansOffer, kind, put_value, take_value};
use tracer_ipc::session;

use super::say_hello;

/// Time that the worker waits at its end for offers of the head.
const LAST_OFFERS_LIMIT: Duration = Duration::from_secs(1);

/// The thread, as the worker sees it.
pub(super) struct SpanSink {
    /// True if the head offers nothing more.
    is_over: Arc<(Mutex<bool>, Condvar)>,
}

impl SpanSink {
    /// Starts the thread, if the process's hooks have a sink. Without it, others take spans over.
    pub(super) fn start(session_dir: &Path, worker: WorkerId, recorder: Option<&'static Recorder>) -> Option<SpanSink> {
        let recorder = recorder.filter(|recorder| recorder.has_sinks())?;
        let mut stream = session::connect(session_dir).ok()?;
        let mut inbox = FrameBuffer::new();
        say_hello(&mut stream, &mut inbox, Role::Sink(worker)).ok()?;
        let is_over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let over = Arc::clone(&is_over);
        let run = move || {
            if let Err(error) = take_offers(stream, inbox, recorder) {
                eprintln!("tracer: worker {worker} no longer accepts spans of other processes: {error}");
            }
            *over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            over.1.notify_all();
        };
        std::thread::Builder::new().name("tracer-handover".into()).spawn(run).ok()?;
        Some(SpanSink { is_over })
    }

    /// Waits until the head has offered everything that it wants to. To be called when the worker is to end.
    pub(super) fn finish(&self) {
        let is_over = self.is_over.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.is_over.1.wait_timeout_while(is_over, LAST_OFFERS_LIMIT, |is_over| !*is_over));
    }
}

/// Takes what the head offers until it says that this was all, or is gone.
fn take_offers(mut stream: UnixStream, mut inbox: FrameBuffer, recorder: &'static Recorder) -> io::Result<()> {
    let answers = Arc::new(Mutex::new(stream.try_clone()?));
    loop {
        while let Some((frame_kind, body)) = inbox.next_frame(FRAME_LIMIT)? {
            match frame_kind {
                kind::SPANS => take(recorder, &answers, take_value(body).map_err(io::Error::other)?),
                kind::SHUTDOWN => return Ok(()),
                other => return Err(io::Error::other(format!("a frame of kind {other} is not for a sink"))),
            }
        }
        if inbox.read_from(&mut stream)? == 0 {
            return Ok(());
        }
    }
}

fn take(recorder: &'static Recorder, answers: &Arc<Mutex<UnixStream>>, offer: SpansOffer) {
    let answers = Arc::clone(answers);
    let number = offer.number;
    let answer = move |failed_hooks, failure, refused| {
        let mut frame = Vec::new();
        put_value(&mut frame, kind::SPANS_DONE, &SpansDone { number, failed_hooks, failure, refused });
        // A head that is gone has the parcel still.
        let _ = answers.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame);
    };
    match std::fs::read(&offer.path) {
        Ok(request) => recorder.deliver(&request, offer.hooks, offer.mark, answer),
        // Somebody has removed it.
        Err(_) => answer(offer.hooks, Some(abi::STATUS_FAILED), 0),
    }
}
