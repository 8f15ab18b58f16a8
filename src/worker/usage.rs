//! This process as the kernel knows it: its parent, its use of cpu and memory.

use std::cell::Cell;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};
use tracer_ipc::protocol::CommandUsage;
use tracer_process::parent;

/// Makes sure that this process and what its tasks start ends: it becomes a subreaper, and asks the kernel for SIGKILL when the head dies, which has to be this process's parent, and checks that it has not died before.
pub(super) fn die_with_parent(head_pid: u32) -> io::Result<()> {
    // What a task leaves behind stays below the worker, and is the head's to end when the worker has ended.
    set_child_subreaper(Some(getpid()))?;
    match parent::die_with(head_pid)? {
        true => Ok(()),
        false => Err(io::Error::other(format!("its parent is not process {head_pid}, which has died already"))),
    }
}

/// Counters of the kernel for a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// User and system time.
    pub(super) cpu_time_ns: u64,
    /// The largest resident size so far. The only one that is no sum.
    pub(super) peak_memory_bytes: u64,
    /// Pages that were there and not mapped.
    pub(super) minor_page_faults: u64,
    /// Pages that had to be read.
    pub(super) major_page_faults: u64,
    /// It waited for something.
    pub(super) voluntary_context_switches: u64,
    /// Its time was up.
    pub(super) involuntary_context_switches: u64,
}

impl From<Usage> for CommandUsage {
    fn from(usage: Usage) -> CommandUsage {
        CommandUsage {
            cpu_time_ns: usage.cpu_time_ns,
            peak_memory_bytes: usage.peak_memory_bytes,
            minor_page_faults: usage.minor_page_faults,
            major_page_faults: usage.major_page_faults,
            voluntary_context_switches: usage.voluntary_context_switches,
            involuntary_context_switches: usage.involuntary_context_switches,
        }
    }
}

/// Returns the usage of this process with all its threads.
fn of_this_process() -> Usage {
    // SAFETY: all zeroes are a valid value, and getrusage fills it in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    Usage::of(&usage)
}

impl Usage {
    pub(super) fn of(usage: &libc::rusage) -> Usage {
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        let nanos = |time: libc::timeval| count(time.tv_sec) * 1_000_000_000 + count(time.tv_usec) * 1000;
        Usage {
            cpu_time_ns: nanos(usage.ru_utime) + nanos(usage.ru_stime),
            // Linux counts in KiB.
            peak_memory_bytes: count(usage.ru_maxrss) * 1024,
            minor_page_faults: count(usage.ru_minflt),
            major_page_faults: count(usage.ru_majflt),
            voluntary_context_switches: count(usage.ru_nvcsw),
            involuntary_context_switches: count(usage.ru_nivcsw),
        }
    }

    /// This and that of a command, whose peak counts.
    pub(super) fn with_command(self, command: Usage) -> Usage {
        Usage { peak_memory_bytes: command.peak_memory_bytes, ..self.combine(command, u64::saturating_add) }
    }

    /// Subtracts `earlier`, with the peak up to now.
    fn since(self, earlier: Usage) -> Usage {
        self.combine(earlier, u64::saturating_sub)
    }

    fn combine(self, other: Usage, sum: impl Fn(u64, u64) -> u64) -> Usage {
        Usage {
            cpu_time_ns: sum(self.cpu_time_ns, other.cpu_time_ns),
            peak_memory_bytes: self.peak_memory_bytes,
            minor_page_faults: sum(self.minor_page_faults, other.minor_page_faults),
            major_page_faults: sum(self.major_page_faults, other.major_page_faults),
            voluntary_context_switches: sum(self.voluntary_context_switches, other.voluntary_context_switches),
            involuntary_context_switches: sum(self.involuntary_context_switches, other.involuntary_context_switches),
        }
    }
}

/// Attempts of functions that take less are not measured: asking the kernel would take an eighth of their time.
const SHORT: Duration = Duration::from_micros(50);
/// Limit on the time of attempts that were not measured, and of the waits between them. Twenty times that, and an attempt after them is measured for sure.
const UNREAD_LIMIT: Duration = Duration::from_micros(50);
/// Share that they may have of the time of an attempt that is measured.
const UNREAD_SHARE: u32 = 20;

/// Divides what this process uses among the attempts in it. The end of one is the beginning of the next, so that the kernel is asked
/// once for each, and for many short ones in a row once for all.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// Usage that the kernel last said. None when something else went on since then.
    read: Option<Usage>,
    /// Time of attempts that were not measured since then, with the waits between them.
    unread: Duration,
    /// Time at which the last attempt ended, if it was short.
    short_ended: Option<Instant>,
    /// True if the worker has waited since then.
    has_waited: bool,
    /// Used since then by attempts that ran while this one waited.
    inside: Usage,
}

/// The meter of this process, of which there is one.
///
/// Threads: any, though nearly all attempts run on one. That one notes short attempts for itself, and tells the meter of many at once: a lock
/// is not taken before all that was written before, the attempt's span above all, has left the processor.
#[derive(Debug, Default)]
pub(super) struct SharedMeter {
    meter: Mutex<Meter>,
    /// True if an attempt may begin without the meter's knowing. Changed under the lock.
    is_ready: AtomicBool,
}

/// Short attempts that the meter has not been told of.
#[derive(Clone, Copy, Debug)]
struct Untold {
    /// Their run time together.
    took: Duration,
    /// Time at which the last has ended.
    ended: Option<Instant>,
    /// Limit on their time.
    limit: Duration,
}

impl Untold {
    const NONE: Untold = Untold { took: Duration::ZERO, ended: None, limit: Duration::ZERO };
}

thread_local! {
    static UNTOLD: Cell<Untold> = const { Cell::new(Untold::NONE) };
}

/// State of an attempt's meter when attempts inside of it began.
#[derive(Debug)]
pub(super) struct Outer {
    meter: Meter,
    read: Usage,
}

impl SharedMeter {
    fn with<R>(&self, work: impl FnOnce(&mut Meter) -> R) -> R {
        // It is whole after every statement.
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        let untold = UNTOLD.replace(Untold::NONE);
        if let Some(ended) = untold.ended {
            meter.unread += untold.took;
            meter.short_ended = Some(ended);
        }
        let done = work(&mut meter);
        self.is_ready.store(meter.is_ready(), Relaxed);
        UNTOLD.set(Untold { limit: UNREAD_LIMIT.saturating_sub(meter.unread), ..Untold::NONE });
        done
    }

    /// Notes that an attempt has just begun that is to be measured.
    pub(super) fn begin(&self, now: Instant) {
        // If others of this process change it meanwhile, its end finds no reading, and nothing is said of this attempt.
        if !self.is_ready.load(Relaxed) {
            self.with(|meter| meter.begin(now, of_this_process));
        }
    }

    /// Notes that it has just ended. None if it cannot be said what it used.
    pub(super) fn end(&self, began: Instant, now: Instant, must_measure: bool) -> Option<Usage> {
        let (took, mut untold) = (now.saturating_duration_since(began), UNTOLD.get());
        if is_short(took, must_measure) && untold.took + took < untold.limit && self.is_ready.load(Relaxed) {
            untold.took += took;
            untold.ended = Some(now);
            UNTOLD.set(untold);
            return None;
        }
        self.with(|meter| meter.end(began, now, must_measure, of_this_process))
    }

    /// Notes that the worker has waited for the next attempt, and perhaps looked for it all the time.
    pub(super) fn wait(&self) {
        self.with(|meter| meter.has_waited = true);
    }

    /// Notes that something else goes on: the worker runs what is not measured.
    pub(super) fn interrupt(&self) {
        self.with(|meter| *meter = Meter::default());
    }

    /// Attempts run inside of the one that runs, which waits for them.
    pub(super) fn begin_inside(&self) -> Outer {
        let read = of_this_process();
        let inner = Meter { read: Some(read), ..Meter::default() };
        Outer { meter: self.with(|meter| std::mem::replace(meter, inner)), read }
    }

    /// Ends the measurement of attempts that ran inside of another one: their usage is not that one's.
    pub(super) fn end_inside(&self, outer: Outer) {
        let Outer { meter: mut outer, read } = outer;
        outer.add_inside(of_this_process().since(read));
        self.with(|meter| *meter = outer);
    }
}

impl Meter {
    /// Returns whether the beginning of an attempt changes nothing.
    fn is_ready(&self) -> bool {
        self.read.is_some() && !self.has_waited
    }

    fn add_inside(&mut self, used: Usage) {
        self.inside = self.inside.combine(used, u64::saturating_add);
    }

    fn begin(&mut self, now: Instant, read: impl Fn() -> Usage) {
        let has_waited = std::mem::take(&mut self.has_waited);
        if let Some(ended) = self.short_ended.take().filter(|_| has_waited) {
            self.unread += now.saturating_duration_since(ended);
        } else if has_waited {
            self.read = None;
        }
        if self.read.is_none() || (has_waited && self.unread >= UNREAD_LIMIT) {
            *self = Meter { read: Some(read()), ..Meter::default() };
        }
    }

    fn end(&mut self, began: Instant, now: Instant, must_measure: bool, read: impl Fn() -> Usage) -> Option<Usage> {
        let took = now.saturating_duration_since(began);
        let is_short = is_short(took, must_measure);
        self.short_ended = Some(now).filter(|_| is_short);
        if is_short && self.unread + took < UNREAD_LIMIT {
            self.unread += took;
            return None;
        }
        let usage = read();
        let Meter { read: before, unread, inside, .. } =
            std::mem::replace(self, Meter { read: Some(usage), short_ended: self.short_ended, ..Meter::default() });
        let is_its_own = must_measure || unread * UNREAD_SHARE <= took;
        let used = usage.since(before?).since(inside);
        (!is_short && is_its_own).then_some(used)
    }
}

fn is_short(took: Duration, must_measure: bool) -> bool {
    took < SHORT && !must_measure
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter with a clock and a kernel that are held: a microsecond of time is one of CPU time.
    struct Story {
        meter: Meter,
        started: Instant,
        now: Duration,
        readings: Cell<u32>,
    }

    impl Story {
        fn new() -> Story {
            Story { meter: Meter::default(), started: Instant::now(), now: Duration::ZERO, readings: Cell::new(0) }
        }

        fn read(&self) -> Usage {
            self.readings.set(self.readings.get() + 1);
            Usage { cpu_time_ns: u64::try_from(self.now.as_nanos()).unwrap(), peak_memory_bytes: 7, ..Usage::default() }
        }

        fn attempt(&mut self, micros: u64, must_measure: bool) -> Option<u64> {
            let mut meter = self.meter;
            let began = self.started + self.now;
            if !meter.is_ready() {
                meter.begin(began, || self.read());
            }
            self.now += Duration::from_micros(micros);
            let used = meter.end(began, self.started + self.now, must_measure, || self.read());
            self.meter = meter;
            used.map(|used| used.cpu_time_ns / 1000)
        }
    }

    #[test]
    fn each_long_attempt_is_measured_with_one_reading() {
        let mut story = Story::new();
        assert_eq!(story.attempt(50, false), Some(50));
        assert_eq!(story.attempt(80, false), Some(80));
        assert_eq!(story.attempt(1, true), Some(1), "a command, however short");
        assert_eq!(story.readings.get(), 4);
    }

    #[test]
    fn short_attempts_in_a_row_share_a_reading_and_are_not_counted_for_others() {
        let mut story = Story::new();
        for _ in 0..1000 {
            assert_eq!(story.attempt(5, false), None);
        }
        assert_eq!(story.readings.get(), 1 + 100);
        assert_eq!(story.attempt(5, false), None);
        assert_eq!(story.attempt(99, false), None, "more than a twentieth would be of the one before");
        assert_eq!(story.attempt(99, false), Some(99));
        assert_eq!(story.attempt(5, false), None);
        assert_eq!(story.attempt(1000, false), Some(1005));
        story.attempt(49, false);
        assert_eq!(story.attempt(1000, false), Some(1049));
    }

    #[test]
    fn what_goes_on_between_attempts_is_of_neither() {
        let mut story = Story::new();
        story.attempt(100, false);
        story.now += Duration::from_secs(1);
        story.meter = Meter::default();
        assert_eq!(story.attempt(100, false), Some(100));
    }

    #[test]
    fn short_attempts_that_follow_one_another_closely_share_a_reading() {
        let mut story = Story::new();
        let mut after = |wait: u64, attempt: u64| {
            story.now += Duration::from_micros(wait);
            story.meter.has_waited = true;
            let before = story.readings.get();
            let used = story.attempt(attempt, false);
            (used, story.readings.get() - before)
        };
        assert_eq!(after(0, 2), (None, 1));
        assert_eq!(after(10, 2), (None, 0));
        assert_eq!(after(10, 2), (None, 0));
        assert_eq!(after(10, 2), (None, 0));
        assert_eq!(after(10, 2), (None, 1), "too much has not been read by its end");
        assert_eq!(after(10, 100), (None, 1), "the wait would be more than a twentieth of it");
        assert_eq!(after(10, 100), (Some(100), 2), "what is long is read before it begins");
        assert_eq!(after(1_000_000, 2), (None, 1), "as is what comes after a long one");
        assert_eq!(after(1_000_000, 100), (Some(100), 2), "and what comes after a long wait");
    }

    #[test]
    fn the_shared_meter_is_told_all_that_a_meter_is() {
        // Attempts of up to 100 µs, most of them short, and waits; now and then something that is not measured, or attempts inside.
        let mut random = 1_u64;
        let mut random = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (shared, mut meter) = (SharedMeter::default(), Meter::default());
        let mut now = Instant::now();
        let mut untold = 0;
        for step in 0..20_000 {
            if random(3) == 0 {
                shared.wait();
                meter.has_waited = true;
                now += Duration::from_nanos(random(20_000));
            }
            shared.begin(now);
            if !meter.is_ready() {
                meter.begin(now, Usage::default);
            }
            if random(50) == 0 {
                let outer = shared.begin_inside();
                for _ in 0..random(4) {
                    shared.end(now, now + Duration::from_micros(1), false);
                }
                shared.end_inside(outer);
            }
            let began = now;
            now += Duration::from_nanos(if random(10) == 0 { random(100_000) } else { random(3_000) });
            let must_measure = random(100) == 0;
            let measured = shared.end(began, now, must_measure).is_some();
            assert_eq!(measured, meter.end(began, now, must_measure, Usage::default).is_some(), "step {step}");
            untold += u32::from(UNTOLD.get().ended.is_some());
            if random(20) == 0 {
                let state = |meter: &Meter| (meter.read.is_some(), meter.unread, meter.short_ended, meter.has_waited);
                assert_eq!(shared.with(|meter| state(meter)), state(&meter), "step {step}");
            }
            if random(200) == 0 {
                shared.interrupt();
                meter = Meter::default();
            }
        }
        assert!(untold > 5_000, "{untold} attempts took no lock");
    }

    #[test]
    fn what_ran_inside_of_an_attempt_is_not_counted_twice() {
        let mut meter = Meter::default();
        let started = Instant::now();
        let reading = |cpu_time_ns| Usage { cpu_time_ns, major_page_faults: cpu_time_ns, ..Usage::default() };
        meter.begin(started, || reading(10));
        meter.add_inside(reading(30));
        let used = meter.end(started, started + SHORT, false, || reading(100)).unwrap();
        assert_eq!((used.cpu_time_ns, used.major_page_faults), (60, 60));
    }
}
