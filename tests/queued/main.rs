//! A million tasks that wait: how much memory they take, counted at the allocator, and that what the head decides for one does not grow with them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use idle_effects::IdleEffects;
use tracer::head::reactor::{self, Submission};
use tracer::head::state::{DriverId, Now, Settings, State};
use tracer::protocol::{AttemptResult, TaskFilter, WorkerReady};
use tracer::task::{Envelope, FunctionSpec, JobId, Outcome, TaskSpec, TraceLink, WorkerId};

#[path = "../support/idle_effects.rs"]
mod idle_effects;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: Now = Now { monotonic_ns: 1, unix_nano: 1_000 };
const TASKS: u64 = 1_000_000;
/// The most bytes of a task that waits, at the peak, beyond its arguments. Eight of them are its time of submission in the queue, which its
/// priority is reckoned from.
const BYTES: usize = 232;
/// Encoded arguments: an array with a number.
const ARGUMENTS: &[u8] = &[0x91, 0xce, 0, 1, 2, 3];

fn envelope() -> Vec<u8> {
    let mut bytes = Vec::new();
    Envelope {
        trace: Some(TraceLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1, trace_state: "" }),
        ..Envelope::of(TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", ARGUMENTS)))
    }
    .encode(&mut bytes);
    bytes
}

fn submit(state: &mut State, tag: u64, envelope: &[u8]) {
    let job = JobId(1 + tag % 3);
    let bytes = envelope;
    let envelope = Envelope::decode(bytes).expect("the envelope is whole");
    let submission = Submission { driver: Some(DriverId(1)), tag, job, bytes, envelope, queued_unix_nano: 0 };
    reactor::on_submission(state, submission, NOW);
}

/// One test, because every thread of a process is counted.
#[test]
fn a_million_tasks_that_wait_take_little_memory_and_all_come_to_an_end() {
    let envelope = envelope();
    let mut state = State::new(Settings::of_workers(2));
    let mut world = IdleEffects::default();
    for worker in [WorkerId(1), WorkerId(2)] {
        reactor::on_worker_started(&mut state, worker, 1000 + worker.0 as u32, NOW);
        let ready = WorkerReady { tracing: "none".into(), hook_failure: None };
        reactor::on_worker_ready(&mut state, &mut world, worker, ready, NOW);
    }
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    (0..TASKS).for_each(|tag| submit(&mut state, tag, &envelope));
    let per_task = |bytes: usize| (bytes - before) / TASKS as usize - ARGUMENTS.len();
    let (live, peak) = (per_task(LIVE.load(Relaxed)), per_task(PEAK.load(Relaxed)));
    println!("{live} bytes for each of {TASKS} tasks, {peak} at the peak, beyond the arguments");
    assert!(peak <= BYTES, "{peak} bytes a task at the peak, {live} afterwards; expected at most {BYTES}");

    // What people ask for is bounded.
    let list = reactor::list_tasks(&state, &world, 100, None, &TaskFilter::default());
    assert_eq!((list.tasks.len(), list.left_out), (100, TASKS as usize - 100));
    assert_eq!(state.counts().waiting, TASKS as usize);

    // And they all end, which gives the memory back.
    while world.finished < TASKS {
        reactor::schedule(&mut state, &mut world, NOW);
        for (worker, lease) in std::mem::take(&mut world.leases) {
            let outcome = Outcome::Returned(vec![1]);
            let result = AttemptResult { lease, started_unix_nano: 0, run_ns: 1_000, span: None, outcome, usage: None };
            reactor::on_result(&mut state, &mut world, worker, result, NOW);
        }
    }
    let left = LIVE.load(Relaxed) - before;
    println!("{left} bytes are left, for the {} that are remembered", reactor::HISTORY_LIMIT);
    assert!(left < 1024 * reactor::HISTORY_LIMIT, "{left} bytes are left");
}
