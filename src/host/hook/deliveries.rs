//! Delivery thread of a process: re-queues spans that the first hook's exporters failed to deliver, and passes finished spans to the additional hooks.
//!
//! ```text
//!   spool ── given back by exporters ─────────────────────▶ parcel in the session's folder ─▶ the head ─▶ another worker
//!     └───── of every span, for each additional hook ▶ its sink ─ not taken, or failed ┘
//! ```
//!
//! Whatever happens to the process, a span is in its spool until it is delivered or in a parcel.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracer_abi as abi;

use tracer_ipc::spool::otlp::export_request;
use tracer_ipc::spool::{Arrival, PARCEL_SPANS, Parcel, Pause, SlotIndex, SpanStory, Spool, hooks};

/// Longest time that a span waits for others that go the same way.
const LINGER: Duration = Duration::from_millis(100);
/// Batches that an additional hook may have at once, and that all of them share. They keep their slots in the spool, which are needed for
/// others too.
const BATCHES_LIMIT: usize = 3;
const BATCHES_OF_ALL: usize = 4;

thread_local! {
    /// True while this thread gives spans to hooks, which may make spans in their turn.
    static IS_GIVING: Cell<bool> = const { Cell::new(false) };
}

/// A hook's table as a place to bring spans to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sink {
    data: *mut c_void,
    sink_export:
        unsafe extern "C" fn(*mut c_void, spans: *const abi::FinishedSpans, error: *mut abi::TextBuffer) -> u32,
    /// Its bit.
    pub(super) hook: u32,
    /// One of `tracer_abi::SINK_*`.
    wanted: u32,
    /// True if what it has not delivered may be left to another process.
    can_hand_back: bool,
}

// SAFETY: the table may be used from any thread by contract, and the pointers in it live as long as the process.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

impl Sink {
    /// Returns the sink of a table, if it has one.
    pub(super) fn of(table: &abi::Tracing, hook: u32, wanted: u32) -> Option<Sink> {
        let can_hand_back = table.hand_back.is_some();
        Some(Sink { data: table.data, sink_export: table.sink_export?, hook, wanted, can_hand_back })
    }

    /// Gives spans to the hook; `on_done` hears once what became of them: one of `tracer_abi::STATUS_*`, and how many were refused
    /// of spans that were taken.
    pub(super) fn export(&self, request: &[u8], on_done: Box<dyn FnOnce(u32, u64) + Send>) {
        // A thin pointer for the way through C.
        let data = Box::into_raw(Box::new(Sunk { refused: 0, on_done }));
        let spans = abi::FinishedSpans {
            size: size_of::<abi::FinishedSpans>(),
            request: abi::Bytes::new(request),
            wanted: self.wanted,
            data: data.cast(),
            host_delivered: Some(host_sunk),
            host_refused: Some(host_refused),
        };
        let mut reason = [0; 512];
        let mut error = abi::TextBuffer::new(&mut reason);
        // SAFETY: the hook's function with the hook's data; the rest is lent for the call.
        let status = unsafe { (self.sink_export)(self.data, &spans, &mut error) };
        if status != abi::STATUS_OK {
            // SAFETY: it was not taken, so nobody else tells, and the box is still ours.
            unsafe { host_sunk(data.cast(), status) };
        }
    }
}

/// Waiter for the outcome of spans.
struct Sunk {
    /// Number of spans that were refused, as far as was told.
    refused: u64,
    on_done: Box<dyn FnOnce(u32, u64) + Send>,
}

unsafe extern "C" fn host_sunk(data: *mut c_void, status: u32) {
    // SAFETY: `data` is the box that `Sink::export` made, and it is told once.
    let Sunk { refused, on_done } = *unsafe { Box::from_raw(data.cast::<Sunk>()) };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_done(status, refused)));
}

unsafe extern "C" fn host_refused(data: *mut c_void, count: u64) {
    // SAFETY: as in `host_sunk`, which by contract comes after this and on the same thread.
    let sunk = unsafe { &mut *data.cast::<Sunk>() };
    sunk.refused = sunk.refused.saturating_add(count);
}

/// Target of a listener's `data`.
struct Listening {
    spool: &'static Spool,
    /// The bit of the hook that tells.
    hook: u32,
    /// Folder in which pauses are kept.
    folder: Option<PathBuf>,
}

/// Returns the listener for a hook: what the exporters of the first say goes to the spool, and pauses of receivers to all processes of the
/// session. It lives as long as the process.
pub(super) fn listener(spool: &'static Spool, hook: u32, quiet: Duration) -> &'static abi::DeliveryListener {
    let folder = tracer_ipc::session::handover_of_spool(spool.path());
    let listening: &'static Listening = Box::leak(Box::new(Listening { spool, hook, folder }));
    Box::leak(Box::new(abi::DeliveryListener {
        size: size_of::<abi::DeliveryListener>(),
        data: std::ptr::from_ref(listening).cast_mut().cast(),
        // Half of the slots are for spans that are open, or wait to be put aside.
        in_flight_max: spool.slot_count() / 2,
        host_delivered: Some(host_delivered),
        quiet_ms: u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX),
        host_pause: Some(host_pause),
        host_pause_left: Some(host_pause_left),
        host_log_records_given_up: Some(host_log_records_given_up),
    }))
}

unsafe extern "C" fn host_log_records_given_up(data: *mut c_void, count: u64) {
    // SAFETY: `data` is of `listener`, and lives as long as the process.
    unsafe { &*data.cast::<Listening>() }.spool.count_log_records_given_up(count);
}

unsafe extern "C" fn host_pause(data: *mut c_void, pause_ms: u64, failures: u32) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: `data` is of `listener`, and lives as long as the process.
        let Listening { hook, folder: Some(folder), .. } = (unsafe { &*data.cast::<Listening>() }) else { return };
        match (pause_ms, failures) {
            (0, 0) => Pause::end(folder, *hook),
            // Where it cannot be written, the others find out by themselves.
            _ => drop(Pause::begin(folder, *hook, Duration::from_millis(pause_ms), failures)),
        }
    }));
}

unsafe extern "C" fn host_pause_left(data: *mut c_void, failures: *mut u32) -> u64 {
    let read = std::panic::AssertUnwindSafe(|| {
        // SAFETY: as in `host_pause`.
        let Listening { hook, folder: Some(folder), .. } = (unsafe { &*data.cast::<Listening>() }) else {
            return Pause::default();
        };
        Pause::read(folder, *hook)
    });
    let pause = std::panic::catch_unwind(read).unwrap_or_default();
    // SAFETY: null, or lent for the call.
    if let Some(place) = unsafe { failures.as_mut() } {
        *place = pause.failures;
    }
    u64::try_from(pause.left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

unsafe extern "C" fn host_delivered(data: *mut c_void, spans: *const abi::SpanIdentity, count: usize, status: u32) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: `data` is of `listener`, and lives as long as the process; the identities are lent for the call.
        let (listening, spans) =
            unsafe { (&*data.cast::<Listening>(), tracer_ipc::spool::record::slice(spans, count)) };
        if listening.hook != hooks::EXPORTERS {
            // An additional hook ends no spans of its own; of what it is given it says at the sink what became of it.
            return;
        }
        let arrival = match status {
            abi::STATUS_OK => Arrival::Arrived,
            abi::STATUS_REFUSED => Arrival::Refused,
            _ => Arrival::Returned,
        };
        listening.spool.delivered(spans.iter().map(|span| (span.trace_id, span.span_id)), arrival);
    }));
}

/// The thread's state.
pub(super) struct Deliveries {
    spool: &'static Spool,
    /// The additional hooks, each with its bit and its batches under way. One that failed in this process has no sink.
    sinks: Vec<(u32, Option<Sink>, Arc<AtomicUsize>)>,
    /// Held while spans are taken from the spool and given away, so that whoever ends the hooks comes after it.
    giving: Mutex<()>,
    folder: PathBuf,
    mark: u32,
    /// Parcels so far, for their names.
    parcels: AtomicU64,
    /// Nothing is given before to an additional hook that sends over a network: the process may be about to end.
    quiet_until: Instant,
    /// True if the process is about to end.
    is_leaving: AtomicBool,
}

impl Deliveries {
    /// Starts the thread. `sinks` are the additional hooks.
    pub(super) fn start(
        spool: &'static Spool,
        sinks: Vec<(u32, Option<Sink>)>,
        mark: u32,
        quiet: Duration,
    ) -> Option<&'static Deliveries> {
        let folder = tracer_ipc::session::handover_of_spool(spool.path())?;
        let sinks = sinks.into_iter().map(|(hook, sink)| (hook, sink, Arc::default())).collect();
        let deliveries: &'static Deliveries = Box::leak(Box::new(Deliveries {
            spool,
            sinks,
            giving: Mutex::new(()),
            folder,
            mark,
            parcels: AtomicU64::new(0),
            quiet_until: Instant::now() + quiet,
            is_leaving: AtomicBool::new(false),
        }));
        let relieve = move || {
            deliveries.put_returned_aside(&spool.take_returned(PARCEL_SPANS));
            if !IS_GIVING.get() {
                deliveries.give_batch();
            }
        };
        spool.set_relief(Box::leak(Box::new(relieve)));
        // Without the thread, spans wait in the spool for whoever comes after.
        let _ = std::thread::Builder::new().name("tracer-spans".into()).spawn(move || deliveries.run());
        Some(deliveries)
    }

    fn run(&'static self) {
        loop {
            self.spool.wait_for_undelivered(LINGER, PARCEL_SPANS);
            self.give_batch();
        }
    }

    /// Brings on a batch of what has ended. False if there was nothing.
    fn give_batch(&'static self) -> bool {
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        let undelivered = self.spool.take_undelivered(PARCEL_SPANS);
        self.put_returned_aside(&undelivered.returned);
        let is_any = !undelivered.ungiven.is_empty() || !undelivered.returned.is_empty();
        if !undelivered.ungiven.is_empty() {
            IS_GIVING.set(true);
            self.give(undelivered.ungiven);
            IS_GIVING.set(false);
        }
        is_any
    }

    /// Gives the additional hooks all that has ended, now.
    pub(super) fn give_all(&'static self) {
        while self.give_batch() {}
    }

    /// Gives what has ended to the additional hooks that keep it on this machine, and puts the rest aside. To be called before the hooks end.
    pub(super) fn begin_to_leave(&'static self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        self.give_all();
    }

    /// Puts aside what the hooks have not delivered. To be called when they have ended.
    pub(super) fn leave(&'static self) {
        self.give_all();
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        for spans in self.spool.take_under_way().chunks(PARCEL_SPANS) {
            self.put_returned_aside(spans);
        }
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    fn put_returned_aside(&self, spans: &[SlotIndex]) {
        if !spans.is_empty() {
            self.put_aside(spans, hooks::EXPORTERS, &self.request(spans));
        }
    }

    fn request(&self, spans: &[SlotIndex]) -> Vec<u8> {
        let stories = self.spool.stories(spans);
        // Whoever gets it gets no more than this.
        self.spool.count_cut(stories.iter().map(|story| u64::from(story.cut)).sum());
        export_request(&self.spool.resource(), stories.into_iter().map(SpanStory::into_record).collect())
    }

    /// Puts spans where the head finds them.
    fn put_aside(&self, spans: &[SlotIndex], hooks: u32, request: &[u8]) {
        let whence = format!("{}-aside", self.next_name());
        if Parcel::write(&self.folder, &whence, hooks, self.mark, spans.len(), request).is_err() {
            // A full disk: there is nowhere else, and the slots are needed.
            self.spool.count_given_up(spans.len() as u64);
        }
        self.spool.settled(spans, hooks);
    }

    /// Puts spans of others than this process where the head finds them.
    pub(super) fn hand_on(&self, request: &[u8], spans: u64) -> io::Result<()> {
        let hooks = self.spool.hooks() & hooks::SINKS;
        let whence = format!("{}-received", self.next_name());
        let spans = usize::try_from(spans).unwrap_or(usize::MAX);
        Parcel::write(&self.folder, &whence, hooks, self.mark, spans, request).map(drop)
    }

    /// Returns what the names of a new parcel begin with.
    fn next_name(&self) -> String {
        let number = self.parcels.fetch_add(1, Ordering::Relaxed);
        let stem = self.spool.path().file_stem().and_then(|stem| stem.to_str()).unwrap_or("spool");
        format!("{stem}-{}-{number}", std::process::id())
    }

    /// Gives spans to every additional hook.
    fn give(&'static self, spans: Vec<SlotIndex>) {
        let request: Arc<[u8]> = self.request(&spans).into();
        let spans: Arc<[SlotIndex]> = spans.into();
        let limit = (BATCHES_OF_ALL / self.sinks.len().max(1)).clamp(1, BATCHES_LIMIT);
        for (hook, sink, under_way) in &self.sinks {
            let Some(sink) = sink else {
                self.put_aside(&spans, *hook, &request);
                continue;
            };
            if sink.can_hand_back && (self.is_leaving() || Instant::now() < self.quiet_until) {
                self.put_aside(&spans, sink.hook, &request);
                continue;
            }
            if under_way.fetch_add(1, Ordering::AcqRel) >= limit {
                under_way.fetch_sub(1, Ordering::AcqRel);
                self.put_aside(&spans, sink.hook, &request);
                continue;
            }
            let (hook, under_way) = (*hook, Arc::clone(under_way));
            let (spans, kept) = (Arc::clone(&spans), Arc::clone(&request));
            let on_done = move |status, refused: u64| {
                match status {
                    abi::STATUS_OK => {
                        self.spool.count_given_up(refused.min(spans.len() as u64));
                        self.spool.settled(&spans, hook);
                    }
                    abi::STATUS_REFUSED => {
                        self.spool.count_given_up(spans.len() as u64);
                        self.spool.settled(&spans, hook);
                    }
                    // This process is ending. If it does not put them aside itself, the head finds them in the spool.
                    abi::STATUS_ALREADY if !self.is_leaving() => {}
                    _ => self.put_aside(&spans, hook, &kept),
                }
                under_way.fetch_sub(1, Ordering::AcqRel);
            };
            sink.export(&request, Box::new(on_done));
        }
    }
}
