//! The ring of claims.
//!
//! Lease number `n` of a worker lives in entry `n % CLAIM_COUNT`. The head writes it before it sends the lease; from
//! then on the entry changes once, by compare-and-swap: to claimed, by the worker, or to revoked, by the head.
//! So both always agree on who has the task. The worker passes its leases in order, and holds fewer than
//! `CLAIM_COUNT`, so an entry is not written again before it was passed.

use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::layout::{CLAIM_COUNT, INLINE_COUNT, Mapping, SpoolError};
use super::story::SpoolCounts;

/// What became of a lease, as the spool has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Sent to the worker; not begun.
    Granted,
    /// The worker began it.
    Claimed,
    /// The head took it back.
    Revoked,
    /// Another lease has the entry by now.
    Unknown,
}

const GRANTED: u64 = 1;
const CLAIMED: u64 = 2;
const REVOKED: u64 = 3;

/// The head's view of a worker's claims.
pub struct ClaimRing {
    mapping: Mapping,
}

impl ClaimRing {
    /// Makes the spool file of a worker that is about to be started.
    pub fn create(path: &Path) -> Result<ClaimRing, SpoolError> {
        Ok(ClaimRing { mapping: Mapping::create(path)? })
    }

    /// Enters a lease, before it is sent.
    pub fn grant(&self, lease: u64, task: u64) {
        self.mapping.claim_tasks()[entry(lease)].store(task, Release);
        self.mapping.claims()[entry(lease)].store(lease << 2 | GRANTED, Release);
    }

    /// Takes an unclaimed lease back. False when the worker was faster.
    pub fn revoke(&self, lease: u64) -> bool {
        change(&self.mapping, lease, REVOKED)
    }

    /// Whether the worker has begun this task while others of its tasks waited.
    pub fn has_begun_inline(&self, task: u64) -> bool {
        self.mapping.header().inline_tasks.iter().any(|begun| begun.load(Acquire) == task)
    }

    /// What became of a lease.
    pub fn state(&self, lease: u64) -> ClaimState {
        let found = self.mapping.claims()[entry(lease)].load(Acquire);
        if found >> 2 != lease {
            return ClaimState::Unknown;
        }
        match found & 3 {
            GRANTED => ClaimState::Granted,
            CLAIMED => ClaimState::Claimed,
            REVOKED => ClaimState::Revoked,
            _ => ClaimState::Unknown,
        }
    }
}

impl ClaimRing {
    /// The lease that the worker is running, and since when in nanoseconds since the Unix epoch.
    pub fn running(&self) -> Option<(u64, u64)> {
        let header = self.mapping.header();
        let lease = header.running_lease.load(Acquire).checked_sub(1)?;
        Some((lease, header.running_since.load(Acquire)))
    }

    /// What did not fit the worker's spool so far.
    pub fn counts(&self) -> SpoolCounts {
        SpoolCounts::of(&self.mapping)
    }
}

/// Claims a lease for its worker. False when the head has taken it back.
pub(super) fn claim(mapping: &Mapping, lease: u64) -> bool {
    change(mapping, lease, CLAIMED)
}

/// The tasks whose leases were claimed, of those whose entries were not used again.
pub(super) fn claimed_tasks(mapping: &Mapping) -> Vec<u64> {
    let claims = mapping.claims().iter().zip(mapping.claim_tasks());
    let claimed = claims.filter(|(claim, _)| claim.load(Acquire) & 3 == CLAIMED).map(|(_, task)| task.load(Acquire));
    let inline = mapping.header().inline_tasks.iter().map(|task| task.load(Acquire)).filter(|&task| task != 0);
    claimed.chain(inline).collect()
}

/// Which of the entries for tasks that run inside of others hold one that has not ended. Kept by the owner.
#[derive(Debug)]
pub(super) struct InlineEntries {
    is_running: [bool; INLINE_COUNT],
    next: usize,
}

impl Default for InlineEntries {
    fn default() -> InlineEntries {
        InlineEntries { is_running: [false; INLINE_COUNT], next: 0 }
    }
}

impl InlineEntries {
    /// Notes that a task begins, in the place of the one that ended longest ago. None when all run.
    pub(super) fn begin(&mut self, mapping: &Mapping, task: u64) -> Option<usize> {
        let from_next = (0..INLINE_COUNT).map(|step| (self.next + step) % INLINE_COUNT);
        let entry = from_next.into_iter().find(|&entry| !self.is_running[entry])?;
        self.is_running[entry] = true;
        self.next = (entry + 1) % INLINE_COUNT;
        mapping.header().inline_tasks[entry].store(task, Release);
        Some(entry)
    }

    /// Notes that it has ended. It stays on record until its place is needed.
    pub(super) fn end(&mut self, entry: usize) {
        self.is_running[entry] = false;
    }
}

fn change(mapping: &Mapping, lease: u64, to: u64) -> bool {
    mapping.claims()[entry(lease)].compare_exchange(lease << 2 | GRANTED, lease << 2 | to, AcqRel, Acquire).is_ok()
}

fn entry(lease: u64) -> usize {
    (lease % CLAIM_COUNT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::super::Spool;
    use super::*;

    #[test]
    fn a_lease_is_claimed_or_revoked_but_never_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path).unwrap();
        let spool = Spool::attach(&path).unwrap();

        for lease in 0..4 {
            ring.grant(lease, 100 + lease);
            assert_eq!(ring.state(lease), ClaimState::Granted);
        }
        assert!(spool.claim(0, 70));
        assert_eq!(ring.running(), Some((0, 70)));
        spool.attempt_ended();
        assert_eq!(ring.running(), None);
        assert!(!ring.revoke(0), "a claimed lease stays claimed");
        assert_eq!(super::super::Story::open(&path).unwrap().claimed_tasks(), [100]);
        assert!(ring.revoke(1));
        assert!(!spool.claim(1, 71), "a revoked lease cannot be claimed");
        assert!(!spool.claim(0, 72), "a lease is claimed once");
        assert_eq!(ring.running(), None);
        assert_eq!(
            [0, 1, 2].map(|lease| ring.state(lease)),
            [ClaimState::Claimed, ClaimState::Revoked, ClaimState::Granted]
        );
        assert_eq!(ring.state(CLAIM_COUNT as u64), ClaimState::Unknown);
    }

    #[test]
    fn tasks_inside_of_others_are_on_record_while_they_run_and_for_a_while_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path).unwrap();
        let spool = Spool::attach(&path).unwrap();
        let first = spool.begin_inline(7).unwrap();
        assert!(ring.has_begun_inline(7) && !ring.has_begun_inline(8));
        assert_eq!(super::super::Story::open(&path).unwrap().claimed_tasks(), [7]);
        for task in 100..100 + 3 * INLINE_COUNT as u64 {
            let entry = spool.begin_inline(task).unwrap();
            spool.end_inline(entry);
            assert!(ring.has_begun_inline(task), "it has ended, and the head may not know");
        }
        assert!(ring.has_begun_inline(7), "it still runs");
        spool.end_inline(first);
        (0..INLINE_COUNT as u64).for_each(|task| assert!(spool.begin_inline(1000 + task).is_some()));
        assert!(!ring.has_begun_inline(7));
        assert_eq!(spool.begin_inline(1), None);
    }

    #[test]
    fn worker_and_head_that_race_for_a_lease_agree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path).unwrap();
        let spool = Spool::attach(&path).unwrap();
        let leases = 0..CLAIM_COUNT as u64;
        leases.clone().for_each(|lease| ring.grant(lease, lease));
        let (claimed, revoked) = std::thread::scope(|scope| {
            let claimed = scope.spawn(|| leases.clone().filter(|&lease| spool.claim(lease, 1)).collect::<Vec<_>>());
            let revoked: Vec<_> = leases.clone().rev().filter(|&lease| ring.revoke(lease)).collect();
            (claimed.join().unwrap(), revoked)
        });
        assert_eq!(claimed.len() + revoked.len(), CLAIM_COUNT);
        assert!(claimed.iter().all(|lease| !revoked.contains(lease)));
    }
}
