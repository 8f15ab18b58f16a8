//! The ring of claims: the [claims](crate::claims) of a worker's leases, which the head grants.
//!
//! The worker passes its leases in order, and holds fewer than `CLAIM_COUNT`, so an entry is not written again before it was passed.
//!
//! What a task writes where it should not may hit the ring. An entry that says nothing of the kind above counts for what the
//! [grants](super::grants) say, a file of the head's own: claimed, unless the worker has surely not come so far.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Release};

use tracer_core::task::StopReason;

use super::grants::{Grants, Reached};
use super::layout::{INLINE_COUNT, Mapping, SpoolError, inline_seal};
use super::story::{SpoolCounts, Story};
use crate::claims::ClaimState;
use crate::identity::BirthWindow;

/// The head's view of a worker's claims.
pub struct ClaimRing {
    mapping: Mapping,
    grants: Grants,
    path: PathBuf,
}

impl ClaimRing {
    /// Makes the spool file of a worker that is about to be started, with room for so many spans.
    pub fn create(path: &Path, slot_count: usize) -> Result<ClaimRing, SpoolError> {
        let mut mapping = Mapping::create(path, slot_count)?;
        mapping.rescue();
        let grants = Grants::create(path).inspect_err(|_| {
            // It would be taken for what a process left behind.
            let _ = std::fs::remove_file(path);
        })?;
        Ok(ClaimRing { mapping, grants, path: path.into() })
    }

    /// Takes over the spool file of a process that a head before this one has started.
    pub fn take_over(path: &Path) -> Result<ClaimRing, SpoolError> {
        let mut mapping = Mapping::open(path)?;
        mapping.rescue();
        Ok(ClaimRing { mapping, grants: Grants::take_over(path)?, path: path.into() })
    }

    /// Says who the worker is, and whether its attempts have spans, for whoever finishes its story.
    pub fn set_worker(&self, pid: u32, is_traced: bool) {
        self.grants.set_worker(pid, is_traced);
    }

    /// Enters a lease, before it is sent.
    pub fn grant(&self, lease: u64, task: u64, attempt: u32) {
        self.grants.grant(lease, task, attempt);
        self.mapping.claims().grant(lease);
    }

    /// Takes an unclaimed lease back. False when the worker was faster.
    pub fn revoke(&self, lease: u64) -> bool {
        let is_revoked = self.mapping.claims().revoke(lease);
        if is_revoked {
            self.grants.revoke(lease);
        }
        is_revoked
    }

    /// Notes a task that is sent to run while others of the worker's tasks wait.
    pub fn grant_inline(&self, task: u64, attempt: u32) {
        self.grants.grant_inline(task, attempt);
    }

    /// Returns whether the worker has begun this attempt at a task while others of its tasks waited.
    pub fn has_begun_inline(&self, task: u64, attempt: u32) -> bool {
        begun_inline(&self.mapping).is_none_or(|mut begun| begun.any(|begun| begun == (task, attempt)))
    }

    /// Returns the state of a lease.
    pub fn state(&self, lease: u64) -> ClaimState {
        state(&self.mapping, &self.grants, lease)
    }

    /// Returns whether something has been written over what head and worker agree on.
    pub fn is_damaged(&self) -> bool {
        !self.mapping.is_sound() || begun_inline(&self.mapping).is_none()
    }

    /// Reads what the worker has left, as far as its file can be read; also when nobody finds the file any more.
    pub fn story(&self) -> Option<Story> {
        Story::of_file(self.mapping.file.try_clone().ok()?, &self.path).ok()
    }
}

impl ClaimRing {
    /// Returns the lease that the worker is running, and since when in nanoseconds since the Unix epoch.
    pub fn running(&self) -> Option<(u64, u64)> {
        let header = self.mapping.header();
        let lease = header.running_lease.load(Acquire).checked_sub(1)?;
        Some((lease, header.running_since.load(Acquire)))
    }

    /// Returns the attempt that the worker has begun last, whether or not it has ended: the task and the number of the attempt.
    pub fn last_attempt(&self) -> Option<(u64, u32)> {
        let begun = self.grants.leases().filter(|&(lease, ..)| self.state(lease) == ClaimState::Claimed);
        begun.max_by_key(|&(lease, ..)| lease).map(|(_, task, attempt)| (task, attempt))
    }

    /// Tells the worker that an attempt is to end, and why.
    pub fn ask_to_stop(&self, task: u64, attempt: u32, why: StopReason) {
        let header = self.mapping.header();
        header.stop_attempt.store(attempt, Release);
        header.stop_reason.store(reason_code(why), Release);
        header.stop_task.store(task, Release);
    }

    /// Returns the process group of the command that the worker runs, if its leader is the very process that was started.
    pub fn command_group(&self) -> Option<u32> {
        let header = self.mapping.header();
        // 1 would stand for every process there is.
        let group = Some(header.command_group.load(Acquire)).filter(|&group| group > 1)?;
        BirthWindow::is_of(header.command_birth.load(Acquire), group).then_some(group)
    }

    /// Counts what did not fit the worker's spool so far.
    pub fn counts(&self) -> SpoolCounts {
        SpoolCounts::of(&self.mapping)
    }
}

fn reason_code(why: StopReason) -> u32 {
    match why {
        StopReason::Cancelled => 1,
        StopReason::RunTimeout => 2,
        StopReason::IdleTimeout => 3,
        StopReason::Superseded => 4,
    }
}

/// Returns why an attempt is to end, if it is.
pub(super) fn stop_reason(mapping: &Mapping, task: u64, attempt: u32) -> Option<StopReason> {
    let header = mapping.header();
    // The head tells of one attempt at a time, and of the next only when this one has ended.
    if header.stop_task.load(Acquire) != task || header.stop_attempt.load(Acquire) != attempt {
        return None;
    }
    match header.stop_reason.load(Acquire) {
        1 => Some(StopReason::Cancelled),
        2 => Some(StopReason::RunTimeout),
        3 => Some(StopReason::IdleTimeout),
        4 => Some(StopReason::Superseded),
        _ => None,
    }
}

/// Claims a lease for its worker. False when the head has taken it back.
///
/// # Panics
///
/// When the ring says something that no ring says: the head and this worker cannot agree on anything any more.
pub(super) fn claim(mapping: &Mapping, lease: u64) -> bool {
    let is_claimed = mapping.claims().claim(lease);
    assert!(
        is_claimed || matches!(mapping.claims().state(lease), Some(ClaimState::Claimed | ClaimState::Revoked)),
        "a task has overwritten the claims in the spool of this worker, which ends"
    );
    is_claimed
}

/// Returns the state of a lease.
fn state(mapping: &Mapping, grants: &Grants, lease: u64) -> ClaimState {
    mapping.claims().state(lease).unwrap_or_else(|| match grants.reached() {
        // Nobody has written this who should.
        Reached::Lease(reached) if reached <= lease => ClaimState::Granted,
        Reached::Lease(_) | Reached::Unknown => ClaimState::Claimed,
    })
}

/// Returns the tasks that a worker has begun and which attempts at them these were, whether or not they have ended; of those whose entries were
/// not used again.
pub(super) fn claimed_tasks(mapping: &Mapping, grants: &Grants) -> Vec<(u64, u32)> {
    let leases = grants.leases().filter(|&(lease, _, _)| state(mapping, grants, lease) == ClaimState::Claimed);
    let claimed = leases.map(|(_, task, attempt)| (task, attempt));
    match begun_inline(mapping) {
        Some(begun) => claimed.chain(begun).collect(),
        None => claimed.chain(grants.inline()).collect(),
    }
}

/// The same of a worker whose spool is gone.
pub(super) fn claimed_tasks_without_spool(grants: &Grants) -> Vec<(u64, u32)> {
    let is_claimed = |lease| !matches!(grants.reached(), Reached::Lease(reached) if reached <= lease);
    let leases = grants.leases().filter(|&(lease, _, _)| is_claimed(lease));
    leases.map(|(_, task, attempt)| (task, attempt)).chain(grants.inline()).collect()
}

/// Returns the tasks on record that began while others waited, and which attempts at them these were. None when something else has written there.
fn begun_inline(mapping: &Mapping) -> Option<impl Iterator<Item = (u64, u32)>> {
    let header = mapping.header();
    let entries = header.inline_tasks.iter().zip(&header.inline_attempts).zip(&header.inline_seals);
    let read = entries
        .map(|((task, attempt), seal)| {
            let (task, attempt) = (task.load(Acquire), attempt.load(Acquire));
            (seal.load(Acquire) == inline_seal(task, attempt)).then_some((task, attempt))
        })
        .collect::<Option<Vec<_>>>()?;
    Some(read.into_iter().filter(|&(task, _)| task != 0))
}

/// Set of the entries for tasks that run inside of others which hold one that has not ended. Kept by the owner.
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
    /// Notes that an attempt at a task begins, in the place of the one that ended longest ago. None when all run.
    pub(super) fn begin(&mut self, mapping: &Mapping, task: u64, attempt: u32) -> Option<usize> {
        let from_next = (0..INLINE_COUNT).map(|step| (self.next + step) % INLINE_COUNT);
        let entry = from_next.into_iter().find(|&entry| !self.is_running[entry])?;
        self.is_running[entry] = true;
        self.next = (entry + 1) % INLINE_COUNT;
        let header = mapping.header();
        // In between it is nobody's, whenever this process ends.
        header.inline_tasks[entry].store(0, Release);
        header.inline_attempts[entry].store(attempt, Release);
        header.inline_seals[entry].store(inline_seal(task, attempt), Release);
        header.inline_tasks[entry].store(task, Release);
        Some(entry)
    }

    /// Notes that it has ended. It stays on record until its place is needed.
    pub(super) fn end(&mut self, entry: usize) {
        self.is_running[entry] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::CLAIM_COUNT;
    use crate::spool::layout::SLOT_COUNT;
    use crate::spool::owner::Spool;

    #[test]
    fn a_lease_is_claimed_or_revoked_but_never_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path, SLOT_COUNT).unwrap();
        let spool = Spool::attach(&path).unwrap();

        for lease in 0..4 {
            ring.grant(lease, 100 + lease, 3);
            assert_eq!(ring.state(lease), ClaimState::Granted);
        }
        assert!(spool.claim(0, 70));
        assert_eq!((ring.running(), ring.last_attempt()), (Some((0, 70)), Some((100, 3))));
        spool.attempt_ended();
        assert_eq!((ring.running(), ring.last_attempt()), (None, Some((100, 3))));
        assert!(!ring.revoke(0), "a claimed lease stays claimed");
        assert_eq!(super::super::Story::open(&path).unwrap().claimed_tasks(), [(100, 3)]);
        assert!(ring.revoke(1));
        assert!(!spool.claim(1, 71), "a revoked lease cannot be claimed");
        assert!(!spool.claim(0, 72), "a lease is claimed once");
        assert_eq!(ring.running(), None);
        assert_eq!(
            [0, 1, 2].map(|lease| ring.state(lease)),
            [ClaimState::Claimed, ClaimState::Revoked, ClaimState::Granted]
        );
    }

    #[test]
    fn what_something_else_has_written_over_counts_as_begun_unless_the_worker_has_surely_not_come_so_far() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path, SLOT_COUNT).unwrap();
        let spool = Spool::attach(&path).unwrap();
        (0..4).for_each(|lease| ring.grant(lease, 100 + lease, 1));
        assert!(spool.claim(0, 70) && ring.revoke(1) && spool.claim(2, 71));
        ring.grant_inline(200, 1);
        let states = || [0, 2, 3].map(|lease| ring.state(lease));
        let claimed = || {
            let mut claimed = Story::open(&path).unwrap().claimed_tasks();
            claimed.sort_unstable();
            claimed
        };
        use ClaimState::{Claimed, Granted};
        for byte in [0, 1, 0xff] {
            ring.mapping.claims().0.iter().for_each(|entry| entry.store(u64::from_ne_bytes([byte; 8]), Release));
            assert_eq!((states(), claimed()), ([Claimed, Claimed, Granted], vec![(100, 1), (102, 1)]));
        }
        // A worker that cannot agree with its head any more ends.
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| spool.claim(3, 72))).is_err());
        ring.mapping.header().inline_tasks[7].store(1, Release);
        assert!(ring.is_damaged() && ring.has_begun_inline(200, 1), "what it says of those is worth nothing");
        assert_eq!(claimed(), [(100, 1), (102, 1), (200, 1)]);
        ring.mapping.header().inline_tasks[7].store(0, Release);
        let file = std::fs::File::options().write(true).open(path.with_extension("grants")).unwrap();
        crate::pages::FileExt::write_all_at(&file, &[0; 4096], 0).unwrap();
        assert_eq!((states(), claimed()), ([Claimed; 3], vec![(100, 1), (102, 1), (103, 1)]));
        std::fs::remove_file(&path).unwrap();
        let (_, without) = Story::claimed_tasks_without_spool(&path).unwrap_or_default();
        assert_eq!(without, [], "no worker was noted");
        ring.set_worker(7, true);
        let (pid, mut without) = Story::claimed_tasks_without_spool(&path).unwrap();
        without.sort_unstable();
        assert_eq!((pid, without), (7, vec![(100, 1), (102, 1), (103, 1), (200, 1)]));
    }

    #[test]
    fn tasks_inside_of_others_are_on_record_while_they_run_and_for_a_while_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path, SLOT_COUNT).unwrap();
        let spool = Spool::attach(&path).unwrap();
        let first = spool.begin_inline(7, 2).unwrap();
        assert!(ring.has_begun_inline(7, 2) && !ring.has_begun_inline(8, 2));
        assert!(!ring.has_begun_inline(7, 1) && !ring.has_begun_inline(7, 3), "another attempt");
        assert_eq!(super::super::Story::open(&path).unwrap().claimed_tasks(), [(7, 2)]);
        for task in 100..100 + 3 * INLINE_COUNT as u64 {
            let entry = spool.begin_inline(task, 1).unwrap();
            spool.end_inline(entry);
            assert!(ring.has_begun_inline(task, 1), "it has ended, and the head may not know");
        }
        assert!(ring.has_begun_inline(7, 2), "it still runs");
        spool.end_inline(first);
        (0..INLINE_COUNT as u64).for_each(|task| assert!(spool.begin_inline(1000 + task, 1).is_some()));
        assert!(!ring.has_begun_inline(7, 2));
        assert_eq!(spool.begin_inline(1, 1), None);
    }

    #[test]
    fn an_attempt_is_told_that_it_is_to_end_and_no_other_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path, SLOT_COUNT).unwrap();
        let spool = Spool::attach(&path).unwrap();
        assert_eq!(spool.stop_reason(7, 2), None);
        ring.ask_to_stop(7, 2, StopReason::IdleTimeout);
        assert_eq!(spool.stop_reason(7, 2), Some(StopReason::IdleTimeout));
        assert!(spool.stop_reason(7, 1).is_none() && spool.stop_reason(8, 2).is_none());
        assert!(!spool.was_stop_seen(7));
        assert!(!spool.is_to_stop(7, 3) && !spool.was_stop_seen(7));
        assert!(spool.is_to_stop(7, 2) && spool.was_stop_seen(7));
    }

    #[test]
    fn worker_and_head_that_race_for_a_lease_agree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.spool");
        let ring = ClaimRing::create(&path, SLOT_COUNT).unwrap();
        let spool = Spool::attach(&path).unwrap();
        let leases = 0..CLAIM_COUNT as u64;
        leases.clone().for_each(|lease| ring.grant(lease, lease, 1));
        let (claimed, revoked) = std::thread::scope(|scope| {
            let claimed = scope.spawn(|| leases.clone().filter(|&lease| spool.claim(lease, 1)).collect::<Vec<_>>());
            let revoked: Vec<_> = leases.clone().rev().filter(|&lease| ring.revoke(lease)).collect();
            (claimed.join().unwrap(), revoked)
        });
        assert_eq!(claimed.len() + revoked.len(), CLAIM_COUNT);
        assert!(claimed.iter().all(|lease| !revoked.contains(lease)));
    }
}
