//! The record of a bundle: several short tasks of one job in one message, and the table by which it changes.
//!
//! A bundle has the ids of its tasks in a row, so that the id of its first task and their number say which they are, and both are in the journal of their
//! origin before anybody else hears of it: whatever is published again is the same bundle. As long as all goes well it costs what one task costs: one
//! message, one claim, one end with the outcome of each of its tasks. The first time that anything else happens to it, its record is *settled*:
//! that says of each task where it stands, and never changes again. From then on each task that has not ended has a
//! [record of its own](crate::record), and is run, retried, cancelled, given back and taken over by itself.
//!
//! | | delivered | ended unbegun | settled by its holder | not run |
//! |---|---|---|---|---|
//! | **none** | claimed | settled: those ended, the others unbegun | not its holder | not its holder |
//! | **claimed** | suspected; to its holder: has it; of an older life: settled, taken over | begun | settled | settled: unbegun |
//! | **suspected** | settled, taken over; or too early; to its holder: claimed | begun | settled | settled: unbegun |
//! | **settled** | has ended | has ended | has ended | has ended |
//!
//! *Settled, taken over* is the next attempt of every task, kept by the receiver; or their end, if they have lost as many nodes as they may.
//!
//! The state of a task in a bundle is that of its own record, if there is one; else what [its bundle says](BundleRecord::of). A task has an own record only after
//! its bundle is settled, so the two never contradict each other, and each task ends in exactly one of them: in its bundle's, if it had ended when that was
//! settled, and else in its own.
//!
//! | what happens | what comes of it |
//! |---|---|
//! | all tasks have ended, as nearly always | settled: all ended |
//! | an attempt at one fails or is lost with its worker; one is stopped; one takes much longer than was measured; outcomes are too many bytes | settled: those that have ended, the others kept by the holder |
//! | the holder stops, or has no process for some of them because all wait for others | settled: those that have ended, those given back or unbegun; the message too |
//! | the holder is lost | settled by whoever gets the message: kept at the second attempt, the lost one of each to be stood in for |
//! | the origin cancels tasks that nobody has begun, or takes one back to run it itself | settled: those ended, the others unbegun |
//! | the origin cancels a task that has begun | its holder is told; when it has ended, as above |
//! | the origin publishes it again, because writes were lost or its agent was | the message of the same bundle, with the tasks that it still waits for |

use tracer_core::ClusterTaskId;
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::task::TaskId;

use crate::record::{Claim, End, Holder, Mark, Record, Refusal, Sight, Terms};

/// The most tasks of a bundle.
pub const BUNDLE_LIMIT: u32 = tracer_ipc::protocol::BUNDLE_LIMIT;

/// State of a task in a bundle that is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// Nobody has begun it.
    Unbegun,
    /// The claim stands for it.
    Kept,
    /// Its holder has let go of it after it had begun.
    GivenBack,
    /// The end of a task that has lost as many nodes as it may.
    NodesLost,
    /// An outcome, encoded as the head does, with the attempt that it counts for; 0 if none had begun.
    Ended(u32, Vec<u8>),
}

/// The record of a bundle. Where there is none, nobody has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleRecord {
    /// A node has all of it.
    Claimed {
        /// The claim.
        claim: Claim,
        /// Number of its tasks.
        count: u32,
    },
    /// A node has it, and its message was delivered to another one.
    Suspected {
        /// The claim that stands.
        claim: Claim,
        /// Number of its tasks.
        count: u32,
        /// Node that suspects.
        by: Holder,
    },
    /// Each of its tasks stands where this says, or where its own record says.
    Settled {
        /// The claim, if there was one.
        claim: Option<Claim>,
        /// The state of each task, in their order.
        members: Vec<Member>,
    },
}

/// An event of a bundle of `count` tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleEvent {
    /// Its message is delivered.
    Delivered {
        /// To whom.
        to: Holder,
        /// The receiver's name and clock.
        mark: Mark,
        /// View that this node has of the holder.
        sight: Sight,
        /// Terms of all of its tasks.
        terms: Terms,
        /// Number of its tasks.
        count: u32,
    },
    /// Its origin ends some of its tasks, by their places in it, with these outcomes.
    EndedUnbegun {
        /// The places and outcomes.
        ended: Vec<(u32, Vec<u8>)>,
        /// Number of its tasks.
        count: u32,
    },
    /// Its holder says of each task where it stands.
    Settled {
        /// Node that says so.
        by: Holder,
        /// The states, in the order of the tasks.
        members: Vec<Member>,
    },
    /// Its holder was asked, and does not run it.
    NotRun {
        /// Node that says so.
        by: Holder,
    },
}

/// The table: returns what the record of a bundle becomes, or why it stays.
pub fn change_bundle(record: Option<&BundleRecord>, event: BundleEvent) -> Result<BundleRecord, Refusal> {
    use BundleEvent as On;
    use BundleRecord as At;
    match (record, event) {
        (Some(At::Settled { .. }), _) => Err(Refusal::HasEnded),

        (None, On::Delivered { to, mark, count, .. }) => Ok(At::Claimed { claim: Claim::first(to, mark), count }),
        (None, On::EndedUnbegun { ended, count }) => {
            let mut members = vec![Member::Unbegun; count as usize];
            for (place, outcome) in ended {
                if let Some(member) = members.get_mut(place as usize) {
                    *member = Member::Ended(0, outcome);
                }
            }
            Ok(At::Settled { claim: None, members })
        }

        (Some(At::Claimed { claim, .. }), On::Delivered { to, .. }) if claim.holder == to => Err(Refusal::HasIt),
        (Some(At::Suspected { claim, count, .. }), On::Delivered { to, .. }) if claim.holder == to => {
            Ok(At::Claimed { claim: claim.clone(), count: *count })
        }
        (
            Some(At::Claimed { claim, count } | At::Suspected { claim, count, .. }),
            On::Delivered { to, mark, sight: Sight::NewLife, terms, .. },
        )
        | (Some(At::Suspected { claim, count, .. }), On::Delivered { to, mark, sight: Sight::Silent, terms, .. }) => {
            let (claim, member) = match claim.taken_over(to, &mark, terms) {
                Record::Claimed(next) => (next, Member::Kept),
                _ => (claim.clone(), Member::NodesLost),
            };
            Ok(At::Settled { claim: Some(claim), members: vec![member; *count as usize] })
        }
        // Silence counts from a suspicion on, and there was none.
        (
            Some(At::Claimed { claim, count }),
            On::Delivered { to, sight: Sight::MayLive | Sight::Quiet | Sight::Silent, .. },
        ) => Ok(At::Suspected { claim: claim.clone(), count: *count, by: to }),
        (Some(At::Suspected { .. }), On::Delivered { sight: Sight::MayLive | Sight::Quiet, .. }) => {
            Err(Refusal::TooEarly)
        }
        (Some(At::Claimed { .. } | At::Suspected { .. }), On::EndedUnbegun { .. }) => Err(Refusal::Begun),

        (Some(At::Claimed { claim, .. } | At::Suspected { claim, .. }), On::Settled { by, members })
            if claim.holder == by =>
        {
            Ok(At::Settled { claim: Some(claim.clone()), members })
        }
        (Some(At::Claimed { claim, count } | At::Suspected { claim, count, .. }), On::NotRun { by, .. })
            if claim.holder == by =>
        {
            Ok(At::Settled { claim: None, members: vec![Member::Unbegun; *count as usize] })
        }
        (_, On::Settled { .. } | On::NotRun { .. }) => Err(Refusal::NotItsHolder),
    }
}

impl BundleRecord {
    /// Returns the number of its tasks.
    pub fn count(&self) -> u32 {
        match self {
            BundleRecord::Claimed { count, .. } | BundleRecord::Suspected { count, .. } => *count,
            BundleRecord::Settled { members, .. } => members.len() as u32,
        }
    }

    /// Returns the claim of all of it that stands.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            BundleRecord::Claimed { claim, .. } | BundleRecord::Suspected { claim, .. } => Some(claim),
            BundleRecord::Settled { .. } => None,
        }
    }

    /// Returns the state of the task in this place, as long as it has no record of its own. None if nobody has it.
    pub fn of(&self, place: u32) -> Option<Record> {
        let (claim, members) = match self {
            BundleRecord::Claimed { claim, .. } => return Some(Record::Claimed(claim.clone())),
            BundleRecord::Suspected { claim, by, .. } => {
                return Some(Record::Suspected { claim: claim.clone(), by: *by });
            }
            BundleRecord::Settled { claim, members } => (claim, members),
        };
        let member = members.get(place as usize)?;
        if let Member::Ended(attempt, outcome) = member {
            let holder = claim.as_ref().map(|claim| claim.holder).filter(|_| *attempt > 0);
            return Some(Record::Ended(End::Outcome { attempt: *attempt, holder, outcome: outcome.clone() }));
        }
        match (member, claim.clone()) {
            (Member::Kept, Some(claim)) => Some(Record::Claimed(claim)),
            (Member::GivenBack, Some(claim)) => Some(Record::GivenBack { claim, has_begun: true }),
            (Member::NodesLost, Some(claim)) => Some(Record::Ended(End::NodesLost(claim))),
            (Member::Unbegun | Member::Kept | Member::GivenBack | Member::NodesLost | Member::Ended(..), _) => None,
        }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let bytes_of = |member: &Member| match member {
            Member::Ended(_, outcome) => 9 + outcome.len(),
            Member::Unbegun | Member::Kept | Member::GivenBack | Member::NodesLost => 1,
        };
        let members = match self {
            BundleRecord::Settled { members, .. } => members.iter().map(bytes_of).sum(),
            BundleRecord::Claimed { .. } | BundleRecord::Suspected { .. } => 0,
        };
        // With room for a claim.
        let mut out = Vec::with_capacity(256 + members);
        out.put_u8(VERSION);
        match self {
            BundleRecord::Claimed { claim, count } => {
                out.put_u8(CLAIMED);
                out.put_u32(*count);
                claim.put(&mut out);
            }
            BundleRecord::Suspected { claim, count, by } => {
                out.put_u8(SUSPECTED);
                out.put_u32(*count);
                claim.put(&mut out);
                by.put(&mut out);
            }
            BundleRecord::Settled { claim, members } => {
                out.put_u8(SETTLED);
                out.put_u32(members.len() as u32);
                out.put_u8(u8::from(claim.is_some()));
                if let Some(claim) = claim {
                    claim.put(&mut out);
                }
                for member in members {
                    match member {
                        Member::Unbegun => out.put_u8(0),
                        Member::Kept => out.put_u8(1),
                        Member::GivenBack => out.put_u8(2),
                        Member::NodesLost => out.put_u8(3),
                        Member::Ended(attempt, outcome) => {
                            out.put_u8(ENDED);
                            out.put_u32(*attempt);
                            out.put_bytes(outcome);
                        }
                    }
                }
            }
        }
        out
    }

    /// Returns the attempt and the outcome of each task, in their order, from an encoded record in which all of them have ended. None of any other.
    pub fn all_ended(bytes: &[u8]) -> Option<Vec<(u32, &[u8])>> {
        let mut take = Take::new(bytes);
        if (take.u8().ok()?, take.u8().ok()?) != (VERSION, SETTLED) {
            return None;
        }
        let count = take.u32().ok()?;
        check_count(count).ok()?;
        match take.u8().ok()? {
            0 => {}
            1 => drop(Claim::take(&mut take).ok()?),
            _ => return None,
        }
        let mut members = Vec::with_capacity(count as usize);
        for _ in 0..count {
            match take.u8().ok()? {
                ENDED => members.push((take.u32().ok()?, take.bytes().ok()?)),
                _ => return None,
            }
        }
        take.finish().ok()?;
        Some(members)
    }

    /// Takes a record apart. What another version wrote, or nobody of tracer's, is an error.
    pub fn decode(bytes: &[u8]) -> Result<BundleRecord, WireError> {
        let mut take = Take::new(bytes);
        if take.u8()? != VERSION {
            return Err(WireError::UnknownValue("version of the record of a bundle"));
        }
        let (kind, count) = (take.u8()?, take.u32()?);
        check_count(count)?;
        let record = match kind {
            CLAIMED => BundleRecord::Claimed { claim: Claim::take(&mut take)?, count },
            SUSPECTED => {
                BundleRecord::Suspected { claim: Claim::take(&mut take)?, count, by: Holder::take(&mut take)? }
            }
            SETTLED => {
                let claim = match take.u8()? {
                    0 => None,
                    1 => Some(Claim::take(&mut take)?),
                    _ => return Err(WireError::UnknownValue("flag")),
                };
                let member = |_| {
                    Ok(match take.u8()? {
                        0 => Member::Unbegun,
                        1 => Member::Kept,
                        2 => Member::GivenBack,
                        3 => Member::NodesLost,
                        ENDED => Member::Ended(take.u32()?, take.bytes()?.into()),
                        _ => return Err(WireError::UnknownValue("state of a task in a bundle")),
                    })
                };
                let members = (0..count).map(member).collect::<Result<_, WireError>>()?;
                BundleRecord::Settled { claim, members }
            }
            _ => return Err(WireError::UnknownValue("record of a bundle")),
        };
        take.finish()?;
        Ok(record)
    }
}

/// Version of the encoding.
const VERSION: u8 = 1;
const CLAIMED: u8 = 1;
const SUSPECTED: u8 = 2;
const SETTLED: u8 = 3;
/// The state of a task that has an outcome.
const ENDED: u8 = 4;

pub(crate) fn check_count(count: u32) -> Result<(), WireError> {
    if (2..=BUNDLE_LIMIT).contains(&count) {
        Ok(())
    } else {
        Err(WireError::UnknownValue("number of tasks in a bundle"))
    }
}

/// Returns the task in a place of the bundle that begins with this one.
pub(crate) fn member(first: ClusterTaskId, place: u32) -> ClusterTaskId {
    ClusterTaskId { task: TaskId(first.task.0.saturating_add(u64::from(place))), ..first }
}

/// Returns the place of a task in the bundle that begins with this one.
pub(crate) fn place_of(first: ClusterTaskId, id: ClusterTaskId) -> u32 {
    u32::try_from(id.task.0.saturating_sub(first.task.0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;
