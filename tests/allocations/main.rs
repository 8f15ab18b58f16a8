//! Costs of spans that are not sampled: next to nothing, counted in allocations, which do not depend on the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use tracer::hook::{Attribute, AttributePrefix, Recorder, SpanRequest};
use tracer::propagation::{TraceContext, TraceParent};
use tracer::spool::{SLOT_COUNT, Spool};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // It fails only while a thread ends, where nothing is counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) };
    }
}

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const SPANS_DIR_VARIABLE: &str = "TRACER_SPANS_DIR";

fn hook() -> Result<tracer_sdk::hook::Tracing, String> {
    let dir = std::env::var_os(SPANS_DIR_VARIABLE).ok_or("no folder")?;
    tracer_local_tmp_tracing::setup_tracing_in(Path::new(&dir)).map_err(|error| error.to_string())
}

/// The most allocations of a sampled span with an event. It has 2.3: the handle here, and in the hook the event's attributes. The span itself
/// is rendered into memory that is used again. A string that is copied instead of found again shows.
const SAMPLED_SPAN: u64 = 3;

/// A span as a worker makes it for an attempt.
fn span(recorder: &'static Recorder, parent: &TraceContext) {
    let span = recorder.start(&SpanRequest {
        name: "demo.my_function tracer.remote_worker",
        kind: tracer_abi::SPAN_KIND_CONSUMER,
        parent: Some(parent),
        is_parent_remote: true,
        baggage: "",
        start_time_unix_nano: 0,
        prefix: AttributePrefix {
            id: 1,
            attributes: &|put| {
                put("tracer.remote", Attribute::Str("function"));
                put("tracer.function", Attribute::Str("demo.my_function"));
                put("tracer.pid", Attribute::I64(4711));
            },
        },
        attributes: &[],
        link: None,
        is_attempt: false,
        request: None,
    });
    span.set_attributes(&[("tracer.cpu_time_ns", 1234i64.into())]);
    span.add_event("exception", &[("exception.message", Attribute::Str("no"))]);
    span.end();
}

#[test]
fn a_span_that_is_not_sampled_allocates_next_to_nothing_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let spans = folder.path().join("spans");
    // SAFETY: this is the only test of its process, and no other thread reads the environment.
    unsafe { std::env::set_var(SPANS_DIR_VARIABLE, &spans) };
    let table = tracer_sdk::hook::export(hook).expect("the folder can be written to");
    let spool = Spool::create(&folder.path().join("test.spool"), SLOT_COUNT).expect("the folder can be written to");
    let spool: &'static Spool = Box::leak(Box::new(spool));
    // SAFETY: a table that a hook returned, which lives as long as the process.
    let recorder = unsafe { Recorder::install(table, &[], 0, Some(spool), std::time::Duration::ZERO) };
    let parent = |flags| TraceContext {
        parent: TraceParent { trace_id: [1; 16], span_id: [2; 8], flags },
        trace_state: String::new(),
    };
    let (sampled, unsampled) = (parent(1), parent(0));
    // What is made once, is made.
    span(recorder, &sampled);
    span(recorder, &unsampled);
    let count = 100;
    let cost_unsampled = allocations(|| (0..count).for_each(|_| span(recorder, &unsampled)));
    let cost_sampled = allocations(|| (0..count).for_each(|_| span(recorder, &sampled)));
    assert!(cost_unsampled < count, "{cost_unsampled} allocations for {count} spans that are not sampled");
    let (least, most) = (count, SAMPLED_SPAN * count);
    assert!((least..=most).contains(&cost_sampled), "{cost_sampled} allocations for {count} spans that are sampled");
    recorder.commit().expect("the folder can be written to");
    let lines: usize = std::fs::read_dir(&spans)
        .expect("it is there")
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text").lines().count())
        .sum();
    assert_eq!(lines as u64, count + 1);
}
