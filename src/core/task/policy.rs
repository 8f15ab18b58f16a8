//! Retry policy: whether an attempt that failed is followed by another one, and when.
//!
//! The task's own failures and lost workers are counted apart. The first are charged to [`Policy::retries`], the second to
//! [`Policy::crash_limit`]. An attempt that had not begun costs nothing.

use std::time::Duration;

use tracer_options::{DEFAULT_CRASH_LIMIT, DEFAULT_GRACE, DEFAULT_RETRY_BACKOFF, ExtraOptions, TaskOptions};

use crate::codec::{Put, Take, WireError};
use crate::task::outcome::Failure;

/// The longest wait before a retry, unless the first one is longer already.
pub const RETRY_BACKOFF_CAP: Duration = Duration::from_secs(60);

/// Retries and limits of a task. Borrowed from its [`Envelope`](super::Envelope).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy<'a> {
    /// Limit of how often it is tried again after failures of its own.
    pub retries: u32,
    /// The wait before the first retry. It doubles with each further one, up to [`RETRY_BACKOFF_CAP`].
    pub retry_backoff: Duration,
    /// Failures of its own that are tried again: kinds as [`check_retry_on`](tracer_options::check_retry_on) takes them, with commas between. Empty
    /// for the usual ones.
    pub retry_on: &'a str,
    /// Limit of how often it is started again after its worker was lost.
    pub crash_limit: u32,
    /// True if it must not be started a second time, whatever happens. Then the two numbers above count for nothing.
    pub at_most_once: bool,
    /// Submissions with the same key are one task; empty for none.
    pub idempotency_key: &'a str,
    /// The longest it may wait until its first attempt begins; none for no limit.
    pub queue_limit: Option<Duration>,
    /// The longest a command may write nothing; none for no limit.
    pub idle_limit: Option<Duration>,
    /// Time that an attempt that is to end gets for each step: to end when it is asked, then after SIGTERM.
    pub grace: Duration,
    /// Options of which most tasks have none.
    pub extra: ExtraOptions,
    /// The queue whose nodes may run it; empty for a task of this head.
    pub queue: &'a str,
}

impl Default for Policy<'_> {
    fn default() -> Self {
        Policy {
            retries: 0,
            retry_backoff: DEFAULT_RETRY_BACKOFF,
            retry_on: "",
            crash_limit: DEFAULT_CRASH_LIMIT,
            at_most_once: false,
            idempotency_key: "",
            queue_limit: None,
            idle_limit: None,
            grace: DEFAULT_GRACE,
            extra: ExtraOptions::NONE,
            queue: "",
        }
    }
}

/// Budget that a failed attempt is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Charge {
    /// To the task's own failures.
    Own,
    /// To the workers that were lost under it.
    Crash,
    /// To none: its head was stopped in good order.
    Free,
}

impl Charge {
    /// Appends it.
    pub fn put(self, out: &mut Vec<u8>) {
        out.put_u8(self as u8);
    }

    /// Takes one.
    pub fn take(take: &mut Take<'_>) -> Result<Charge, WireError> {
        [Charge::Own, Charge::Crash, Charge::Free]
            .into_iter()
            .nth(take.u8()?.into())
            .ok_or(WireError::UnknownValue("charge"))
    }
}

/// Decision about a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The task is tried again after this many nanoseconds.
    Again {
        /// Delay before it, in nanoseconds.
        after_ns: u64,
    },
    /// The failure is the task's.
    Final,
}

impl<'a> Policy<'a> {
    /// Returns the policy that the options of a task make.
    pub fn of(options: &'a TaskOptions) -> Policy<'a> {
        Policy {
            retries: options.retries,
            retry_backoff: options.retry_backoff,
            retry_on: &options.retry_on,
            crash_limit: options.crash_limit,
            at_most_once: options.at_most_once,
            idempotency_key: &options.idempotency_key,
            queue_limit: options.queue_timeout,
            idle_limit: options.idle_timeout,
            grace: options.grace,
            extra: ExtraOptions::of(options),
            queue: &options.queue,
        }
    }

    /// Decides about a failure. `failures` and `crashes` were before it; `seed` decides on the jitter.
    pub fn judge(&self, failure: &Failure, failures: u32, crashes: u32, seed: u64) -> Verdict {
        let Some(charge) = charge(failure).filter(|_| !self.at_most_once) else { return Verdict::Final };
        match charge {
            Charge::Crash if crashes < self.crash_limit => Verdict::Again { after_ns: 0 },
            Charge::Own if failures < self.retries && self.is_tried_again(failure) => {
                Verdict::Again { after_ns: self.backoff_ns(failures, seed) }
            }
            // What may not follow a worker that was lost, may not follow this either: it had begun.
            Charge::Free if self.crash_limit > 0 => Verdict::Again { after_ns: 0 },
            Charge::Crash | Charge::Own | Charge::Free => Verdict::Final,
        }
    }

    fn is_tried_again(&self, failure: &Failure) -> bool {
        if !self.retry_on.is_empty() {
            return self.retry_on.split(',').any(|kind| is_of_kind(failure, kind.trim()));
        }
        // What is wrong with the arguments, the result or the module is wrong the next time too.
        matches!(
            failure,
            Failure::Error { .. }
                | Failure::Panic { .. }
                | Failure::ExitCode { .. }
                | Failure::Signal { .. }
                | Failure::TimedOut { .. }
                | Failure::OutOfMemory { .. }
        )
    }

    /// Returns the wait before the next attempt, which doubles with each failure; between half of it and all of it is waited, so that tasks that failed together do not
    /// come back together.
    fn backoff_ns(&self, failures: u32, seed: u64) -> u64 {
        let first = u64::try_from(self.retry_backoff.as_nanos()).unwrap_or(u64::MAX);
        let cap = first.max(RETRY_BACKOFF_CAP.as_nanos() as u64);
        let whole = first.saturating_mul(1_u64.checked_shl(failures).unwrap_or(u64::MAX)).min(cap);
        let half = whole / 2;
        whole - half + ((u128::from(mix(seed)) * u128::from(half)) >> 64) as u64
    }

    /// Appends the policy, without the [extra options](Self::extra) and the [queue](Self::queue).
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.retries);
        out.put_u64(u64::try_from(self.retry_backoff.as_nanos()).unwrap_or(u64::MAX));
        out.put_str(self.retry_on);
        out.put_u32(self.crash_limit);
        out.put_u8(self.at_most_once.into());
        out.put_str(self.idempotency_key);
        for limit in [self.queue_limit, self.idle_limit, Some(self.grace)] {
            out.put_u64(limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
        }
    }

    /// Takes a policy, without the [extra options](Self::extra) and the [queue](Self::queue).
    pub(super) fn take(take: &mut Take<'a>) -> Result<Policy<'a>, WireError> {
        Ok(Policy {
            retries: take.u32()?,
            retry_backoff: Duration::from_nanos(take.u64()?),
            retry_on: take.str()?,
            crash_limit: take.u32()?,
            at_most_once: match take.u8()? {
                0 => false,
                1 => true,
                _ => return Err(WireError::UnknownValue("policy")),
            },
            idempotency_key: take.str()?,
            queue_limit: Some(take.u64()?).filter(|&limit| limit != 0).map(Duration::from_nanos),
            idle_limit: Some(take.u64()?).filter(|&limit| limit != 0).map(Duration::from_nanos),
            grace: Duration::from_nanos(take.u64()?),
            extra: ExtraOptions::NONE,
            queue: "",
        })
    }
}

/// Returns the budget that a failure is charged to. None for those after which no task is started again, such as those that were cancelled.
pub fn charge(failure: &Failure) -> Option<Charge> {
    match failure {
        Failure::WorkerLost { .. } | Failure::HeadLost => Some(Charge::Crash),
        Failure::ActorDied { has_begun: true, .. } => Some(Charge::Crash),
        Failure::ActorDied { has_begun: false, .. } => None,
        Failure::HeadStopped => Some(Charge::Free),
        Failure::Cancelled | Failure::Abandoned { .. } | Failure::Kept | Failure::Superseded => None,
        Failure::NoWorker { .. } | Failure::Deadlock { .. } => None,
        _ => Some(Charge::Own),
    }
}

/// Returns whether a failure is of a kind that `--retry-on` names.
fn is_of_kind(failure: &Failure, kind: &str) -> bool {
    match (failure, kind) {
        (Failure::Error { .. }, "error") | (Failure::ExitCode { .. }, "exit") | (Failure::Signal { .. }, "signal") => {
            true
        }
        (Failure::Error { type_name, .. }, _) => {
            type_name == kind || type_name.rsplit("::").next().is_some_and(|last| last == kind)
        }
        _ => failure.error_type() == kind,
    }
}

/// Scatters a number (SplitMix64).
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::outcome::TimeLimit;

    fn error(type_name: &str) -> Failure {
        Failure::Error { type_name: type_name.into(), message: String::new(), stacktrace: String::new() }
    }

    fn lost() -> Failure {
        Failure::WorkerLost { worker_pid: 1, cause: String::new(), error_type: "signal:9".into() }
    }

    const AGAIN: Policy<'static> = Policy {
        queue_limit: None,
        idle_limit: None,
        grace: DEFAULT_GRACE,
        extra: ExtraOptions::NONE,
        queue: "",
        retries: 1,
        retry_backoff: Duration::ZERO,
        retry_on: "",
        crash_limit: 1,
        at_most_once: false,
        idempotency_key: "",
    };

    #[test]
    fn own_failures_and_lost_workers_are_charged_apart() {
        let again = |failure: &Failure, failures, crashes| {
            matches!(AGAIN.judge(failure, failures, crashes, 0), Verdict::Again { .. })
        };
        assert!(again(&error("E"), 0, 7) && !again(&error("E"), 1, 0));
        assert!(again(&lost(), 7, 0) && !again(&lost(), 0, 1));
        assert!(again(&Failure::HeadLost, 1, 0));
        assert!(!again(&Failure::Cancelled, 0, 0) && !again(&Failure::Kept, 0, 0));
        let once = Policy { at_most_once: true, ..AGAIN };
        assert_eq!(once.judge(&lost(), 0, 0, 0), Verdict::Final);
    }

    #[test]
    fn what_a_stop_cuts_short_is_charged_to_nothing_unless_it_may_not_begin_twice() {
        let judge = |policy: Policy<'_>, crashes| policy.judge(&Failure::HeadStopped, 9, crashes, 0);
        assert_eq!(
            (charge(&Failure::HeadStopped), judge(AGAIN, 9)),
            (Some(Charge::Free), Verdict::Again { after_ns: 0 })
        );
        assert_eq!(judge(Policy { crash_limit: 0, ..AGAIN }, 0), Verdict::Final);
        assert_eq!(judge(Policy { at_most_once: true, ..AGAIN }, 0), Verdict::Final);
    }

    #[test]
    fn what_stays_wrong_is_not_tried_again_unless_it_is_named() {
        let module = Failure::Module { message: String::new() };
        assert_eq!(AGAIN.judge(&module, 0, 0, 0), Verdict::Final);
        let named = Policy { retry_on: "module", ..AGAIN };
        assert_eq!(named.judge(&module, 0, 0, 0), Verdict::Again { after_ns: 0 });
    }

    #[test]
    fn kinds_are_told_apart() {
        let exit = Failure::ExitCode { program: "x".into(), code: 75 };
        let timeout = Failure::TimedOut { limit: TimeLimit::Run, after_ns: 1 };
        let panic = Failure::Panic { message: String::new(), location: String::new(), stacktrace: String::new() };
        for (failure, kinds, others) in [
            (
                &error("std::io::Error"),
                &["error", "Error", "std::io::Error", "panic,error"][..],
                &["io::Error", "exit"][..],
            ),
            (&exit, &["exit", "exit:75", "exit:3, exit:75"], &["exit:7", "signal", "error"]),
            (&Failure::Signal { program: "x".into(), signal: 9 }, &["signal", "signal:9"], &["signal:15"]),
            (&timeout, &["timeout"], &["panic"]),
            (&panic, &["panic"], &["error"]),
        ] {
            let is_again = |retry_on| Policy { retry_on, ..AGAIN }.judge(failure, 0, 0, 0) != Verdict::Final;
            assert!(kinds.iter().all(|kinds| is_again(kinds)), "{failure:?}");
            assert!(!others.iter().any(|kinds| is_again(kinds)), "{failure:?}");
        }
    }

    #[test]
    fn the_wait_doubles_up_to_its_cap_and_is_scattered() {
        let policy = Policy { retry_backoff: Duration::from_secs(1), ..AGAIN };
        for (failures, whole) in [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (63, 60), (64, 60), (4000, 60)] {
            let whole = whole * 1_000_000_000;
            let waits: Vec<_> = (0..100).map(|seed| policy.backoff_ns(failures, seed)).collect();
            assert!(waits.iter().all(|wait| (whole / 2..=whole).contains(wait)), "{waits:?}");
            assert!(waits.iter().max().unwrap() - waits.iter().min().unwrap() > whole / 4);
        }
        let long = Policy { retry_backoff: Duration::from_secs(100), ..AGAIN };
        assert!((50_000_000_000..=100_000_000_000).contains(&long.backoff_ns(9, 1)));
    }
}
