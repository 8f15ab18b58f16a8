//! Figures of a peer for the same work, measured before: constants, so that a run needs no peer installed.
//!
//! Source: Ray 2.60.0 with Python 3.11 on two cores of the same kind of machine, one node, a Python function that does nothing in a
//! warm worker process; medians of three runs. Traced means with Ray's own startup hook that writes span files. Compare
//! them with a figure taken on such a machine only, and with the difference between Python and native code in mind.

use super::report::Variant;

/// A figure of Ray.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    untraced: f64,
    traced: f64,
}

impl Peer {
    pub(crate) fn of(&self, variant: Variant) -> Option<f64> {
        Some(match variant {
            Variant::Untraced => self.untraced,
            Variant::Traced => self.traced,
        })
    }
}

/// `ray start --head` until it returns.
pub(crate) const START_NS: Peer = Peer { untraced: 3.57e9, traced: 4.08e9 };
/// 50,000 tasks submitted by one driver, then all collected.
pub(crate) const TASKS_PER_SECOND: Peer = Peer { untraced: 1_900.0, traced: 1_120.0 };
/// Submit one, get one.
pub(crate) const ROUND_TRIP_P50_NS: Peer = Peer { untraced: 1_608e3, traced: 2_264e3 };
/// The same, at the 99th percentile.
pub(crate) const ROUND_TRIP_P99_NS: Peer = Peer { untraced: 4_593e3, traced: 4_823e3 };
/// A task with 1 MiB of bytes in and out.
pub(crate) const LARGE_BOTH_WAYS_NS: Peer = Peer { untraced: 4.8e6, traced: 4.8e6 };
/// A task with 100 MiB of zeroes out.
pub(crate) const LARGE_OUT_NS: Peer = Peer { untraced: 101e6, traced: 101e6 };
/// PSS of all of its processes before the first task.
pub(crate) const IDLE_BYTES: Peer = Peer { untraced: 376.0 * 1048576.0, traced: 376.0 * 1048576.0 };
/// PSS of all of its processes with two warm workers.
pub(crate) const WARM_BYTES: Peer = Peer { untraced: 490.0 * 1048576.0, traced: 495.0 * 1048576.0 };
