//! Clocks of nodes, by that of the engine: how far this node's is ahead, and what that makes of the times of other nodes.
//!
//! A node writes its heartbeat, and its engine stamps the entry at some time between the sending and the acknowledgement. If the stamp is from the middle of the
//! two, the node's clock is ahead of the engine's by the middle less the stamp; it is wrong by at most half the time between them. Of the last samples the
//! one with the least error counts, and it is less sure the older it is, because clocks run at different speeds. A sample that cannot be true
//! together with an older one says that the clock was set since, and the older one is dropped.
//!
//! With several servers the stamps are from the one that leads the stream of records.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use tracer_core::PlaceId;
use tracer_core::task::{ClockOffsets, Envelope};

/// Samples that the best one is chosen of: those of the last 24 seconds.
const SAMPLES: usize = 8;
/// Difference in speed that two clocks may have, in nanoseconds a second.
const DRIFT_NS: u64 = 50_000;
/// Offset of one of the two nodes above which both are on the spans of attempts, in nanoseconds.
const SAID_ABOVE_NS: u64 = 1_000_000;
/// The largest offset of another node that is believed, in nanoseconds: a day.
const BELIEVED_NS: u64 = 24 * 3600 * 1_000_000_000;
/// The most places of which an offset is remembered.
const PLACES: usize = 10_000;

/// Offset of a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Time by which it is ahead of the engine's clock, in nanoseconds; negative if it is behind.
    pub offset_ns: i64,
    /// The most by which that is wrong, in nanoseconds.
    pub error_ns: u64,
}

impl ClockOffset {
    /// Returns the offset by one stamp of the engine and this node's times around it, all in nanoseconds since the Unix epoch; none if the node's clock was set
    /// back in between.
    pub fn of_stamp(sent_unix_nano: u64, stamp_ns: u64, acknowledged_unix_nano: u64) -> Option<ClockOffset> {
        let error_ns = acknowledged_unix_nano.checked_sub(sent_unix_nano)? / 2;
        Some(ClockOffset { offset_ns: difference(sent_unix_nano.saturating_add(error_ns), stamp_ns), error_ns })
    }
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

/// The last samples of this node's clock.
#[derive(Debug, Default)]
pub struct Samples {
    /// Each with its time by the monotonic clock, in nanoseconds; the last one is the newest.
    samples: VecDeque<(u64, ClockOffset)>,
}

impl Samples {
    /// Takes a sample, and returns the offset by the best one there is.
    pub fn take(&mut self, sample: ClockOffset, now_ns: u64) -> ClockOffset {
        self.samples.retain(|(at_ns, older)| {
            let older = aged(*older, now_ns.saturating_sub(*at_ns));
            older.offset_ns.abs_diff(sample.offset_ns) <= older.error_ns.saturating_add(sample.error_ns)
        });
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now_ns, sample));
        let aged = self.samples.iter().map(|(at_ns, sample)| aged(*sample, now_ns.saturating_sub(*at_ns)));
        aged.min_by_key(|sample| sample.error_ns).unwrap_or(sample)
    }
}

/// Returns what is left of a sample after so many nanoseconds.
fn aged(sample: ClockOffset, age_ns: u64) -> ClockOffset {
    let drift_ns = u64::try_from(u128::from(age_ns) * u128::from(DRIFT_NS) / 1_000_000_000).unwrap_or(u64::MAX);
    ClockOffset { error_ns: sample.error_ns.saturating_add(drift_ns), ..sample }
}

/// Offsets of the clocks of this node and of those whose tasks it has got.
#[derive(Debug)]
pub struct Clocks {
    place: PlaceId,
    own_ns: Option<i64>,
    of_origins: BTreeMap<PlaceId, i64>,
}

impl Clocks {
    /// Makes those of a node of which nothing is known.
    pub fn new(place: PlaceId) -> Clocks {
        Clocks { place, own_ns: None, of_origins: BTreeMap::new() }
    }

    /// Notes the offset of this node's clock.
    pub fn set_own(&mut self, offset_ns: i64) {
        self.own_ns = Some(offset_ns);
    }

    /// Returns the offset of this node's clock, once it is measured.
    pub fn own_ns(&self) -> Option<i64> {
        self.own_ns
    }

    /// Returns the time of the engine's clock at a time of this node's, in nanoseconds since the Unix epoch; the same if their difference is not known. Times
    /// in records are by that clock: whoever reads them has another one than whoever wrote them.
    pub fn to_engine(&self, own_unix_nano: u64) -> u64 {
        shifted(own_unix_nano, -i128::from(self.own_ns.unwrap_or(0)))
    }

    /// Returns the time of this node's clock at a time of the engine's.
    pub fn to_own(&self, engine_unix_nano: u64) -> u64 {
        shifted(engine_unix_nano, self.own_ns.unwrap_or(0).into())
    }

    /// Notes what the message of a task says of the clock of its origin. Anybody who may write to the queue may have said it.
    pub fn note_origin(&mut self, place: PlaceId, offset_ns: i64) {
        if offset_ns.unsigned_abs() > BELIEVED_NS {
            return;
        }
        if self.of_origins.len() >= PLACES && !self.of_origins.contains_key(&place) {
            self.of_origins.clear();
        }
        self.of_origins.insert(place, offset_ns);
    }

    /// Returns the offsets of the clocks of a task from this place that runs here, if both are known.
    fn of_task_from(&self, place: PlaceId) -> Option<ClockOffsets> {
        let holder_ns = self.own_ns?;
        // It is one clock, at whatever time it was measured.
        let origin_ns = if place == self.place { holder_ns } else { *self.of_origins.get(&place)? };
        Some(ClockOffsets { origin_ns, holder_ns })
    }

    /// Returns what this node's head is to see of a task from this place: the time of its acceptance by this node's clock, and an envelope with the offsets
    /// that its spans are to have, and never with those that its message had.
    pub fn on_own_clock<'a>(
        &self,
        origin: PlaceId,
        submitted_unix_nano: u64,
        envelope: Cow<'a, [u8]>,
    ) -> (u64, Cow<'a, [u8]>) {
        let clocks = self.of_task_from(origin);
        let submitted_unix_nano = clocks.map_or(submitted_unix_nano, |clocks| {
            shifted(submitted_unix_nano, i128::from(clocks.holder_ns) - i128::from(clocks.origin_ns))
        });
        let said = clocks.filter(|clocks| is_said(clocks.origin_ns) || is_said(clocks.holder_ns));
        if (said.is_some() || Envelope::has_clocks(&envelope))
            && let Ok(read) = Envelope::decode(&envelope)
        {
            let mut with_clocks = Vec::with_capacity(envelope.len() + size_of::<ClockOffsets>());
            Envelope { clocks: said, ..read }.encode(&mut with_clocks);
            return (submitted_unix_nano, with_clocks.into());
        }
        (submitted_unix_nano, envelope)
    }
}

fn shifted(unix_nano: u64, by_ns: i128) -> u64 {
    u64::try_from((i128::from(unix_nano) + by_ns).max(0)).unwrap_or(u64::MAX)
}

/// Returns whether an offset has to be said on spans.
fn is_said(offset_ns: i64) -> bool {
    offset_ns.unsigned_abs() > SAID_ABOVE_NS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_core::task::{FunctionSpec, TaskSpec};

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const OWN: PlaceId = PlaceId(1);
    const OTHER: PlaceId = PlaceId(2);

    /// Returns the time of acceptance and the offsets on spans of a task from this place, as its head is to see them.
    fn told(
        by: &Clocks,
        place: PlaceId,
        submitted_unix_nano: u64,
        clocks: Option<ClockOffsets>,
    ) -> (u64, Option<ClockOffsets>) {
        let spec = TaskSpec::Function(FunctionSpec::of_task("m", "f", &[0x90]));
        let mut envelope = Vec::new();
        Envelope { clocks, ..Envelope::of(spec) }.encode(&mut envelope);
        let (submitted_unix_nano, envelope) = by.on_own_clock(place, submitted_unix_nano, envelope.into());
        (submitted_unix_nano, Envelope::decode(&envelope).expect("it was encoded here").clocks)
    }

    fn clocks(own_ns: i64, origin_ns: i64) -> Clocks {
        let mut clocks = Clocks::new(OWN);
        clocks.set_own(own_ns);
        clocks.note_origin(OTHER, origin_ns);
        clocks
    }

    #[test]
    fn the_best_of_the_last_samples_counts_until_the_clock_is_set() {
        let sample = |offset_ns, error_ns| ClockOffset { offset_ns, error_ns };
        let mut samples = Samples::default();
        assert_eq!(samples.take(sample(900, 500), 0), sample(900, 500));
        assert_eq!(samples.take(sample(700, 300), 0), sample(700, 300));
        assert_eq!(samples.take(sample(1000, 900), 0), sample(700, 300), "it is less sure");
        // Half a second later the two clocks may have come apart by 25 microseconds.
        assert_eq!(samples.take(sample(2000, 30_000), SECOND / 2), sample(700, 25_300));
        assert_eq!(samples.take(sample(2000, 20_000), SECOND / 2), sample(2000, 20_000));
        let set = sample(-5_000_000_000, 50_000);
        assert_eq!(samples.take(set, SECOND), set, "what was measured before is not true any more");
        assert_eq!(samples.samples.len(), 1);
        for at in 0..100 {
            samples.take(set, SECOND + at);
        }
        assert_eq!(samples.samples.len(), SAMPLES);
    }

    #[test]
    fn a_clock_that_was_set_back_within_a_sample_gives_none() {
        assert_eq!(ClockOffset::of_stamp(10, 5, 9), None);
        let sample = ClockOffset::of_stamp(10, 5, 20);
        assert_eq!(sample, Some(ClockOffset { offset_ns: 10, error_ns: 5 }));
        assert!(ClockOffset::of_stamp(0, u64::MAX, u64::MAX).is_some_and(|sample| sample.offset_ns == i64::MIN));
    }

    #[test]
    fn a_task_is_accepted_by_the_clock_of_the_node_that_runs_it() {
        // Its origin is five seconds ahead, and this node two seconds behind.
        let far = clocks(-2_000_000_000, 5_000_000_000);
        let offsets = ClockOffsets { origin_ns: 5_000_000_000, holder_ns: -2_000_000_000 };
        assert_eq!(told(&far, OTHER, 100 * SECOND, None), (93 * SECOND, Some(offsets)));
        let own = Some(ClockOffsets { origin_ns: -2_000_000_000, ..offsets });
        assert_eq!(told(&far, OWN, 100 * SECOND, None), (100 * SECOND, own), "it is one clock");
        assert_eq!(told(&far, PlaceId(3), 100 * SECOND, None), (100 * SECOND, None));
        let near = told(&clocks(1_000_000, -400_000), OTHER, 100 * SECOND, None);
        assert_eq!(near, (100 * SECOND + 1_400_000, None), "a millisecond is not said");
    }

    #[test]
    fn times_of_records_are_by_the_engines_clock() {
        let behind = clocks(-2_000_000_000, 0);
        assert_eq!((behind.to_engine(98 * SECOND), behind.to_own(100 * SECOND)), (100 * SECOND, 98 * SECOND));
        assert_eq!((behind.to_own(SECOND), Clocks::new(OWN).to_engine(7)), (0, 7));
    }

    #[test]
    fn what_a_message_says_of_the_clocks_of_others_counts_for_nothing() {
        let lie = Some(ClockOffsets { origin_ns: 9 * SECOND as i64, holder_ns: -9 * SECOND as i64 });
        for clocks in [Clocks::new(OWN), clocks(0, 0)] {
            assert_eq!(told(&clocks, OTHER, SECOND, lie), (SECOND, None));
        }
        let mut clocks = clocks(0, 5);
        (0..2 * PLACES as u64).for_each(|place| clocks.note_origin(PlaceId(place), 1));
        assert!(clocks.of_origins.len() <= PLACES);
        clocks.note_origin(OTHER, -5);
        let known = clocks.of_task_from(OTHER);
        assert_eq!(known, Some(ClockOffsets { origin_ns: -5, holder_ns: 0 }));
        for beyond_a_day in [BELIEVED_NS as i64 + 1, -(BELIEVED_NS as i64) - 1, i64::MIN, i64::MAX] {
            clocks.note_origin(OTHER, beyond_a_day);
            assert_eq!(clocks.of_task_from(OTHER), known);
        }
    }

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_error(
            ahead_ns in -(3600 * SECOND as i64)..3600 * SECOND as i64,
            trips in proptest::collection::vec((0..SECOND, 0..SECOND), 1..20),
        ) {
            let mut samples = Samples::default();
            let mut now_ns = 7200 * SECOND;
            for (there_ns, back_ns) in trips {
                let stamp_ns = now_ns + there_ns;
                let on_node = |at: u64| at.saturating_add_signed(ahead_ns);
                let sample = ClockOffset::of_stamp(on_node(now_ns), stamp_ns, on_node(stamp_ns + back_ns));
                let best = samples.take(sample.expect("nobody has set the clock"), stamp_ns + back_ns);
                // Half a nanosecond is lost at each halving.
                prop_assert!(best.offset_ns.abs_diff(ahead_ns) <= best.error_ns + 1, "{best:?}");
                now_ns = stamp_ns + back_ns + 3 * SECOND;
            }
        }

        #[test]
        fn no_offset_is_too_large(own: i64, origin: i64, submitted: u64) {
            told(&clocks(own, origin), OTHER, submitted, None);
        }
    }
}
