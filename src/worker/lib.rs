//! A worker: one process that runs attempts, one at a time; if it is an `actor`'s, perhaps several.
//!
//! It runs the hook once, tells the head that it is ready, and then takes leases from its socket. For each it *claims* the lease in
//! its spool, opens the CONSUMER span, runs the task, ends the span, and puts the result into a batch (`results`). A batch
//! is sent when there is nothing left to do, after the spans that belong to it are where a SIGKILL cannot reach them: *seen means
//! recorded*. The order of these steps is the point of this crate.
//!
//! **For** the program, which runs it as a process. **Uses** the host's side of modules, and the client for tasks that submit tasks.
//!
//! **Never** decides which task is next, or writes a journal. `unsafe` code is here for what a child does before it becomes a command, and for counters of the kernel.

mod actor;
mod attempt;
mod calling;
mod command;
mod nested;
mod output_marks;
pub mod replica;
mod results;
mod sink;
mod submitting;
mod usage;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use attempt::Attempts;
use nested::Nested;
use output_marks::OutputMarks;
use results::Results;
use tracer_core::task::{Refusal, WorkerId};
use tracer_host::hook::{
    HookError, OwnSettings, Recorder, SearchPath, offer_calls, offer_metrics, offer_tasks, run_hook,
};
use tracer_host::module_store::ModuleStore;
use tracer_ipc::channel::Receiver;
use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer};
use tracer_ipc::protocol::wire::Take;
use tracer_ipc::protocol::{Hello, Lease, Role, TracingSettings, Welcome, WorkerReady, kind, put_value, take_value};
use tracer_ipc::spin::Spin;
use tracer_ipc::spool::Spool;
use tracer_ipc::task_output::Marking;
use tracer_ipc::{fork, session};

/// Time that a hook may take to deliver what it has queued when the worker ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Runs a worker until the head tells it to end or is gone.
pub fn run(session_dir: &Path, worker: WorkerId, head_pid: u32) -> Result<(), WorkerError> {
    usage::die_with_parent(head_pid).map_err(WorkerError::Orphaned)?;
    let spool_path = session::worker_spool(session_dir, worker);
    let spool: &'static Spool = Box::leak(Box::new(Spool::attach(&spool_path).map_err(WorkerError::Spool)?));
    tracer_host::hook::set_stops(spool);
    tracer_host::hook::note_in(session_dir);
    let mut stream = session::connect(session_dir).map_err(WorkerError::Session)?;
    let mut inbox = FrameBuffer::new();
    let welcome = say_hello(&mut stream, &mut inbox, Role::Worker(worker))?;
    let (recorder, hook_failure) = set_up_tracing(&welcome.tracing, spool);
    let ready = WorkerReady {
        tracing: recorder.map_or_else(|| "none".into(), Recorder::description),
        hook_failure: hook_failure.as_ref().map(ToString::to_string),
    };
    let mut frame = Vec::new();
    put_value(&mut frame, kind::WORKER_READY, &ready);
    std::io::Write::write_all(&mut stream, &frame).map_err(WorkerError::Io)?;

    let sink = sink::SpanSink::start(session_dir, worker, recorder);
    let results = Arc::new(Results::new(stream.try_clone().map_err(WorkerError::Io)?, recorder));
    let search = SearchPath { module_path: welcome.module_folders, is_complete: true };
    let nested: &'static Nested = Box::leak(Box::new(Nested::new(session_dir, worker, recorder)));
    offer_tasks(Box::leak(Box::new(nested)));
    offer_calls(Box::leak(Box::new(calling::ProcessCalls::new(session_dir, recorder, None))));
    offer_metrics(session::place_of(session_dir));
    let store = ModuleStore::of_session(session_dir);
    let mut attempts =
        Attempts::new(spool, recorder, nested, (search, store), worker, welcome.node_id, welcome.tracing.propagators);
    attempts.record_arguments(welcome.tracing.record_arguments);
    attempts.mark_output(OutputMarks::new(welcome.output_nonce));
    let attempts = Arc::new(attempts);
    nested.run_with(Arc::clone(&attempts), Arc::clone(&results));
    let calls = actor::Calls::new(Arc::clone(&attempts), Arc::clone(&results));
    let outcome = take_leases(&mut stream, &mut inbox, &attempts, &results, &calls);
    attempts.output_marks().end();
    if !matches!(outcome, Ok(End::Told)) {
        // The head is gone, or this worker cannot go on: the next head, or this one, learns from the claims what has begun here.
        spool.keep();
    }
    if let Some(sink) = sink {
        sink.finish();
    }
    if let Some(recorder) = recorder
        && let Err(reason) = recorder.shutdown(SHUTDOWN_LIMIT)
    {
        eprintln!("tracer: worker {worker}: {reason}");
    }
    outcome.map(drop)
}

/// Reason why a worker takes no more leases.
enum End {
    /// The head has told it to end.
    Told,
    /// The head is gone.
    Left,
}

/// Takes leases until the head says that it is enough, or is gone.
fn take_leases(
    stream: &mut UnixStream,
    inbox: &mut FrameBuffer,
    attempts: &Attempts,
    results: &Arc<Results>,
    calls: &Arc<actor::Calls>,
) -> Result<End, WorkerError> {
    let (mut spin, mut receiver) = <(Spin, Receiver)>::default();
    loop {
        fork::end_copy();
        match receiver.wait(stream, inbox, &mut spin) {
            Ok(0) => return Ok(End::Left),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(WorkerError::Io(error)),
        }
        spin.request_began();
        attempts.waited();
        while let Some((frame_kind, body)) =
            inbox.next_frame(FRAME_LIMIT).map_err(|error| WorkerError::Io(error.into()))?
        {
            match frame_kind {
                kind::LEASES => {
                    let mut take = Take::new(body);
                    while !take.is_empty() {
                        let lease = Lease::take(&mut take).map_err(|error| WorkerError::Protocol(error.to_string()))?;
                        if let Some(limit) = attempts.runs_beside_others(&lease) {
                            calls.begin(&lease, limit);
                            continue;
                        }
                        calls.wait_for_all();
                        let was_actor = attempts.is_actor();
                        if let Some(result) = attempts.run(&lease) {
                            if let Some(methods) = attempts.actor_methods().filter(|_| !was_actor) {
                                results.report_methods(&methods);
                            }
                            results.push(&result, !take.is_empty());
                        }
                    }
                }
                kind::MARKING => {
                    let mut take = Take::new(body);
                    while !take.is_empty() {
                        let order = Marking::take(&mut take);
                        let order = order.map_err(|error| WorkerError::Protocol(error.to_string()))?;
                        attempts.output_marks().follow(order);
                    }
                }
                kind::RINGS => results.attach(receiver.attach(inbox)),
                kind::SHUTDOWN => {
                    calls.wait_for_all();
                    let sent = results.send().map_err(WorkerError::Io);
                    attempts.release_actor();
                    return sent.map(|()| End::Told);
                }
                other => return Err(WorkerError::Protocol(format!("a frame of kind {other} is not for a worker"))),
            }
        }
        results.send().map_err(WorkerError::Io)?;
        spin.request_ended();
        if receiver.begins_to_ask(&spin) {
            results.ask_for_rings().map_err(WorkerError::Io)?;
        }
    }
}

fn say_hello(stream: &mut UnixStream, inbox: &mut FrameBuffer, role: Role) -> Result<Welcome, WorkerError> {
    let mut hello = Vec::new();
    Hello::of_this_process(role).encode(&mut hello);
    std::io::Write::write_all(stream, &hello).map_err(WorkerError::Io)?;
    loop {
        if let Some((frame_kind, body)) =
            inbox.next_frame(FRAME_LIMIT).map_err(|error| WorkerError::Io(error.into()))?
        {
            return match frame_kind {
                kind::WELCOME => take_value(body).map_err(|error| WorkerError::Protocol(error.to_string())),
                kind::REFUSED => Err(WorkerError::Protocol(
                    Refusal::decode(body).map_or_else(|error| error.to_string(), |refusal| refusal.text),
                )),
                other => Err(WorkerError::Protocol(format!("a frame of kind {other} answered the hello"))),
            };
        }
        if inbox.read_from(stream).map_err(WorkerError::Io)? == 0 {
            return Err(WorkerError::Protocol("the head closed the connection".into()));
        }
    }
}

fn set_up_tracing(tracing: &TracingSettings, spool: &'static Spool) -> (Option<&'static Recorder>, Option<HookError>) {
    let Some(hook) = &tracing.hook else { return (None, None) };
    let own = OwnSettings::of_session(tracing);
    let run = run_hook(hook, own, Some(spool), Duration::ZERO);
    if let Some(failure) = &run.failure {
        eprintln!("tracer: {failure}");
    }
    for failure in &run.further_failures {
        eprintln!("tracer: an additional hook failed; it gets this process's spans through another one: {failure}");
    }
    let further = run.further_failures.into_iter().next().filter(|_| hook.is_required);
    (run.recorder, run.failure.or(further))
}

/// Reason why a worker cannot go on. The head sees it end and says so.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The process that started it is gone.
    #[error("a worker is started by a head only: {0}")]
    Orphaned(std::io::Error),
    /// Its spool cannot be used.
    #[error("{0}")]
    Spool(tracer_ipc::spool::SpoolError),
    /// The head cannot be reached.
    #[error("{0}")]
    Session(session::SessionError),
    /// The connection to the head broke.
    #[error("the connection to the head broke: {0}")]
    Io(std::io::Error),
    /// The head refused it, or said something that is not for a worker.
    #[error("the head said something that this worker cannot take: {0}")]
    Protocol(String),
}
