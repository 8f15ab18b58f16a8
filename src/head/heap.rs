//! The head's own memory: what many tasks took goes back to the system when they have ended.

/// Memory that tasks must have taken at least for a look at it.
const WORTH_BYTES: u64 = 1 << 20;
/// Time without an open task after which memory is given back: who sends one wave after the other needs it again.
const REST_NS: u64 = 200_000_000;

/// Decides when memory is given back: once for each time that there was much.
#[derive(Debug, Default)]
pub(super) struct Heap {
    most_bytes: u64,
    give_back_ns: Option<u64>,
}

impl Heap {
    /// Takes in what the tasks take that have not ended. True when memory is to be given back.
    pub(super) fn is_due(&mut self, open_bytes: u64, now_ns: u64) -> bool {
        self.most_bytes = self.most_bytes.max(open_bytes);
        if open_bytes > 0 || self.most_bytes < WORTH_BYTES {
            self.give_back_ns = None;
            return false;
        }
        let is_due = *self.give_back_ns.get_or_insert(now_ns.saturating_add(REST_NS)) <= now_ns;
        if is_due {
            *self = Heap::default();
        }
        is_due
    }

    /// Returns when it is to be asked again, at the latest.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.give_back_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_tasks_took_is_given_back_once_when_nothing_has_come_for_a_while() {
        let mut heap = Heap::default();
        assert!(!heap.is_due(WORTH_BYTES - 1, 0) && !heap.is_due(0, 1) && heap.next_ns().is_none(), "not worth it");
        assert!(!heap.is_due(WORTH_BYTES, 2) && heap.next_ns().is_none(), "it is in use");
        assert!(!heap.is_due(0, 3));
        assert_eq!(heap.next_ns(), Some(3 + REST_NS));
        assert!(!heap.is_due(10, 4) && heap.next_ns().is_none(), "the next wave");
        assert!(!heap.is_due(0, 5) && !heap.is_due(0, 4 + REST_NS) && heap.is_due(0, 5 + REST_NS));
        assert!(!heap.is_due(0, 6 + REST_NS) && heap.next_ns().is_none(), "once");
    }
}
