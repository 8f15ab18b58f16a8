//! Claims: entries of shared memory by which two processes agree who has a piece of work, without asking each other.
//!
//! One process *grants* a number before it sends the work; from then on the entry changes once, by compare-and-swap: to claimed, by whoever
//! was sent the work and begins it, or to revoked, by whoever granted it. So also whoever looks after a death knows what had begun.
//!
//! Anyone may grant: the head to a worker, for whose leases the entries are in its [spool](crate::spool); a proxy, or a replica that calls
//! another, to a replica. Number `n` has entry `n % CLAIM_COUNT`, and whoever grants sees to it that the entry is not used again before what
//! was granted there is over: numbers of leases are consecutive, because a worker passes them in order.
//!
//! Nothing in an entry is believed: one that says something which no entry says has no [state](Claims::state).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::shared_memory::SharedMemory;

/// Numbers that are granted at once, at most.
pub const CLAIM_COUNT: usize = 1024;

const GRANTED: u64 = 1;
const CLAIMED: u64 = 2;
const REVOKED: u64 = 3;

/// State of a number that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Sent; not begun.
    Granted,
    /// Begun by whoever it was sent to.
    Claimed,
    /// Taken back by whoever has granted it.
    Revoked,
    /// There is no such worker any more.
    Unknown,
}

/// The entries, in memory that both sides have mapped.
#[repr(transparent)]
pub struct Claims(pub(crate) [AtomicU64; CLAIM_COUNT]);

impl Claims {
    /// Enters a number, before its work is sent.
    #[inline]
    pub fn grant(&self, number: u64) {
        self.entry(number).store(number << 2 | GRANTED, Release);
    }

    /// Begins the work of a number that was granted. False when it is not to be had: see its [state](Self::state).
    #[inline]
    pub fn claim(&self, number: u64) -> bool {
        self.change(number, CLAIMED)
    }

    /// Takes a number back that nobody has claimed. False when whoever has it was faster.
    #[inline]
    pub fn revoke(&self, number: u64) -> bool {
        self.change(number, REVOKED)
    }

    /// Returns what became of a number. None when its entry says nothing of it: something else has written there, or the entry is another one's by
    /// now.
    #[inline]
    pub fn state(&self, number: u64) -> Option<ClaimState> {
        let found = self.entry(number).load(Acquire);
        match (found >> 2 == number, found & 3) {
            (true, GRANTED) => Some(ClaimState::Granted),
            (true, CLAIMED) => Some(ClaimState::Claimed),
            (true, REVOKED) => Some(ClaimState::Revoked),
            _ => None,
        }
    }

    fn change(&self, number: u64, to: u64) -> bool {
        self.entry(number).compare_exchange(number << 2 | GRANTED, number << 2 | to, AcqRel, Acquire).is_ok()
    }

    fn entry(&self, number: u64) -> &AtomicU64 {
        &self.0[(number % CLAIM_COUNT as u64) as usize]
    }
}

/// Claims in [sealed memory](crate::shared_memory), as a lane has them, and the time that its replica takes over a request.
#[derive(Debug)]
pub struct SharedClaims(SharedMemory);

/// Words of its file: the entries, and the mean time in nanoseconds.
const WORDS: usize = CLAIM_COUNT + 1;
/// Multiple of the mean as which a longer time counts: one that was held up, because another process had the core, says little.
const MOST_MEANS: u64 = 2;
/// Requests that count in the mean time, the last ones most.
const MEAN_OF: u64 = 8;

impl SharedClaims {
    /// Makes the entries, and the file from which others map them.
    pub fn create() -> io::Result<(SharedClaims, OwnedFd)> {
        let (memory, file) = SharedMemory::create(c"tracer-claims", WORDS)?;
        Ok((SharedClaims(memory), file))
    }

    /// Maps what another process has made.
    pub fn attach(file: impl AsFd) -> io::Result<SharedClaims> {
        let memory = SharedMemory::attach(file, WORDS)?;
        if memory.words().len() != WORDS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(SharedClaims(memory))
    }

    /// Notes how long a request has taken until its answer began, in nanoseconds, from the answer before on if that was later than its own beginning.
    #[inline]
    pub fn note_handled(&self, ns: u64) {
        // Another thread may do the same, which costs one of the two.
        let mean = self.handling_ns();
        let next =
            if mean == 0 { ns } else { mean - mean / MEAN_OF + ns.min(mean.saturating_mul(MOST_MEANS)) / MEAN_OF };
        self.mean().store(next.max(1), Relaxed);
    }

    /// Mean time that a request takes until its answer begins, in nanoseconds; 0 before the first.
    #[inline]
    pub fn handling_ns(&self) -> u64 {
        self.mean().load(Relaxed)
    }

    fn mean(&self) -> &AtomicU64 {
        &self.0.words()[CLAIM_COUNT]
    }
}

impl std::ops::Deref for SharedClaims {
    type Target = Claims;

    #[inline]
    fn deref(&self) -> &Claims {
        let words: &[AtomicU64; CLAIM_COUNT] =
            self.0.words()[..CLAIM_COUNT].try_into().expect("the length was checked");
        // SAFETY: `Claims` is a transparent wrapper of this array.
        unsafe { &*std::ptr::from_ref(words).cast::<Claims>() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims() -> Claims {
        Claims([const { AtomicU64::new(0) }; CLAIM_COUNT])
    }

    #[test]
    fn an_entry_speaks_of_the_number_that_was_granted_last_and_of_no_other() {
        let claims = claims();
        assert!(claims.state(0).is_none() && !claims.claim(0) && !claims.revoke(0), "nothing was granted");
        let again = 5 + CLAIM_COUNT as u64;
        claims.grant(5);
        assert!(!claims.claim(again), "it is not granted yet");
        assert!(claims.claim(5));
        claims.grant(again);
        assert_eq!((claims.state(5), claims.state(again)), (None, Some(ClaimState::Granted)));
        assert!(!claims.claim(5) && claims.revoke(again) && !claims.claim(again));
    }

    #[test]
    fn of_many_callers_that_race_for_the_same_numbers_one_has_each() {
        let claims = claims();
        let numbers = 0..CLAIM_COUNT as u64;
        numbers.clone().for_each(|number| claims.grant(number));
        let takers: Vec<_> = std::thread::scope(|scope| {
            let take = |is_owner: bool| {
                let (claims, numbers) = (&claims, numbers.clone());
                scope.spawn(move || {
                    let take = |&number: &u64| if is_owner { claims.revoke(number) } else { claims.claim(number) };
                    numbers.filter(take).collect::<Vec<_>>()
                })
            };
            let takers = [true, false, true, false].map(take);
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        let mut all: Vec<u64> = takers.concat();
        all.sort_unstable();
        assert_eq!(all, numbers.collect::<Vec<_>>());
    }

    #[test]
    fn both_ends_of_a_lane_see_the_same_claims() {
        let (callers, file) = SharedClaims::create().unwrap();
        let replicas = SharedClaims::attach(&file).unwrap();
        callers.grant(7);
        assert!(replicas.claim(7) && !callers.revoke(7));
        let (_memory, other) = SharedMemory::create(c"test", CLAIM_COUNT - 1).unwrap();
        assert!(SharedClaims::attach(&other).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_in_an_entry_nothing_is_begun_that_was_not_granted(found: u64, number in 0_u64..1 << 62) {
            let claims = claims();
            claims.entry(number).store(found, Release);
            let state = claims.state(number);
            prop_assert_eq!(claims.claim(number), state == Some(ClaimState::Granted));
            prop_assert_eq!(state == Some(ClaimState::Granted), found == number << 2 | GRANTED);
        }
    }
}
