//! The record of a shared task: who has it, at which attempt, and how it ended; and the table by which it changes.
//!
//! There is one record for each task, under a key of its own, and it is changed by compare-and-swap only: whoever wants to change it has read it, asks
//! [`change`] what it becomes, and writes that if nobody else was faster. Nothing else decides who may run a task and which outcome counts.
//!
//! | | delivered | ended unbegun | withdrawn | attempt failed | outcome | given back, not run | spans written |
//! |---|---|---|---|---|---|---|---|
//! | **none** | claimed, attempt 1 | ended | claimed by its origin | not its holder | not its holder | not its holder | not its holder |
//! | **claimed** | suspected; to its holder: has it; of an older life: taken over | begun | begun | next attempt | ended | given back | noted |
//! | **suspected** | taken over, or too early; to its holder: claimed | begun | begun | next attempt | ended | given back | noted |
//! | **given back** | claimed; if it had begun: taken over | ended | claimed by its origin; if it had begun: taken over | not its holder | not its holder | not its holder | not its holder |
//! | **ended** | has ended | has ended | has ended | has ended | has ended | has ended | has ended |
//!
//! A row is what the record [is](Record), a column what [happens](Event). What only a holder may do, it may do with the life and the attempt that stand
//! there: the outcome of an attempt that was taken over meets a record that is another one's.
//!
//! *Taken over* is the next attempt, charged as a lost worker; or the end: of a task that must not be started twice, which is lost, of one that has
//! lost as many workers as it may, and of one that somebody has cancelled.
//!
//! A task that is cancelled after it has begun stays with its holder, which is told; the record keeps the [wish](Claim::wish), so that nobody begins another
//! attempt, whoever dies.

use tracer_core::PlaceId;
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::task::Charge;

use crate::message::take_name;

/// A life of a node: its place, and the start of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The place.
    pub place: PlaceId,
    /// The number of the start of its head; a later one is higher.
    pub life: u64,
}

/// The node that takes a task, for the span of its attempt, and when it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Its name, as spans have it.
    pub node_id: String,
    /// The time, in nanoseconds since the Unix epoch by the engine's clock, as far as the node knows how far its own is from that.
    pub unix_nano: u64,
}

/// An attempt before the one that the record is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastAttempt {
    /// Number of the attempt, from 1.
    pub number: u32,
    /// The node that had it.
    pub holder: Holder,
    /// The name of that node, and when it took the attempt.
    pub mark: Mark,
    /// Time of the next attempt, in nanoseconds since the Unix epoch by the engine's clock too.
    pub until_unix_nano: u64,
    /// Report of its failure, encoded as the head does; none if its node was lost.
    pub report: Option<Vec<u8>>,
    /// True once its span is written, although it has no report: by its own node, which let go of it, or by another one in its stead.
    pub has_span: bool,
}

/// The attempt that is going on, and what was before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Node that has it.
    pub holder: Holder,
    /// The name of that node, and when it took the attempt.
    pub mark: Mark,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Number of attempts that failed by themselves.
    pub failures: u32,
    /// Number of attempts that were lost.
    pub crashes: u32,
    /// Attempts before, the oldest first; of very many, the newest.
    pub past: Vec<PastAttempt>,
    /// End of the task, encoded as the head does, unless its holder ends it otherwise: somebody has cancelled it.
    pub wish: Option<Box<[u8]>>,
}

/// The end of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It has an outcome of its own: encoded as the head does, with the attempt that it counts for.
    Outcome {
        /// Number of the attempt; 0 if none had begun.
        attempt: u32,
        /// Node that ran it; none if nobody did.
        holder: Option<Holder>,
        /// The outcome, with attempts before it.
        outcome: Vec<u8>,
    },
    /// Its node is gone, and it must not be started twice; or it has a [wish](Claim::wish), which is its outcome.
    Lost(Claim),
    /// The end of a task that has lost as many nodes as it may.
    NodesLost(Claim),
}

/// The record of a task. Where there is none, nobody has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A node has it.
    Claimed(Claim),
    /// A node has it, and its message was delivered to another one: either its node is gone, or the engine has forgotten who had it.
    Suspected {
        /// The claim that stands.
        claim: Claim,
        /// Node that suspects.
        by: Holder,
    },
    /// A node had it and has let go of it.
    GivenBack {
        /// Claim that was given up.
        claim: Claim,
        /// True if the attempt had begun, and counts.
        has_begun: bool,
    },
    /// It has ended.
    Ended(End),
}

/// The receiver's view of the holder in a record, by stamps of the engine's clock alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The holder may live.
    MayLive,
    /// The holder was not heard since the record was suspected, which is not a whole interval of redelivery ago as far as the receiver was heard.
    Quiet,
    /// The record has been suspected for a whole interval of redelivery, through which the receiver was heard and the holder was not.
    Silent,
    /// The holder's place has a head that began after the claim.
    NewLife,
}

/// Rules of a task that decide what follows when its node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// True if it must not be started twice.
    pub at_most_once: bool,
    /// Limit of how often it is started again after its node or its worker was lost.
    pub crash_limit: u32,
}

/// An event of a shared task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its message is delivered.
    Delivered {
        /// To whom.
        to: Holder,
        /// The receiver's name and clock.
        mark: Mark,
        /// View that this node has of the holder.
        sight: Sight,
        /// See [`Terms`].
        terms: Terms,
    },
    /// Its origin or who speaks for it ends it, because it was cancelled or has waited for too long.
    EndedUnbegun {
        /// The outcome, encoded as the head does.
        outcome: Vec<u8>,
        /// True if it is to end also if somebody has begun it.
        is_cancelled: bool,
    },
    /// Its origin takes it, to run it itself.
    Withdrawn {
        /// The origin.
        by: Holder,
        /// The origin's name and clock.
        mark: Mark,
        /// See [`Terms`].
        terms: Terms,
    },
    /// An attempt failed, and its holder goes on with the next one.
    AttemptFailed {
        /// Node that says so.
        by: Holder,
        /// The attempt that failed.
        attempt: u32,
        /// Budget that it is charged to.
        charge: Charge,
        /// The report, encoded as the head does.
        report: Vec<u8>,
        /// Time at which the next one follows, in nanoseconds since the Unix epoch.
        unix_nano: u64,
    },
    /// The task has an outcome.
    Outcome {
        /// Node that says so.
        by: Holder,
        /// The attempt that it counts for.
        attempt: u32,
        /// The outcome, encoded as the head does.
        outcome: Vec<u8>,
    },
    /// Its holder lets go of it.
    GivenBack {
        /// Node that says so.
        by: Holder,
        /// The attempt that is given up.
        attempt: u32,
        /// True if it had begun, and counts.
        has_begun: bool,
    },
    /// Its holder has written spans that stand in for those of the lost attempts before its own.
    StoodIn {
        /// Node that says so.
        by: Holder,
        /// Its own attempt.
        attempt: u32,
    },
    /// Its holder was asked, and does not run it: it lived through the claim, and its agent did not.
    NotRun {
        /// Node that says so.
        by: Holder,
    },
}

/// Reason why a record stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has ended: the first end counts, and whoever has its message acknowledges that.
    HasEnded,
    /// The receiver has it already, and runs it or is about to.
    HasIt,
    /// Somebody else has it, and nobody may take it over yet.
    TooEarly,
    /// It has begun, perhaps: its holder is to be asked.
    Begun,
    /// Whoever says so is not its holder any more, or is at another attempt.
    NotItsHolder,
}

/// Attempts before the present one that a record keeps.
const PAST_LIMIT: usize = 32;

impl Claim {
    pub(crate) fn first(holder: Holder, mark: Mark) -> Claim {
        Claim { holder, mark, attempt: 1, failures: 0, crashes: 0, past: Vec::new(), wish: None }
    }

    /// Returns the next attempt, after this one has ended.
    fn next(&self, holder: Holder, mark: Mark, report: Option<Vec<u8>>) -> Claim {
        let mut past = self.past.clone();
        if past.len() >= PAST_LIMIT {
            past.remove(0);
        }
        past.push(PastAttempt {
            number: self.attempt,
            holder: self.holder,
            mark: self.mark.clone(),
            until_unix_nano: mark.unix_nano,
            report,
            has_span: false,
        });
        let (attempt, failures, crashes) = (self.attempt.saturating_add(1), self.failures, self.crashes);
        Claim { holder, mark, attempt, failures, crashes, past, wish: self.wish.clone() }
    }

    /// Returns what becomes of it when its node is lost, or has given up an attempt that had begun.
    pub(crate) fn taken_over(&self, by: Holder, mark: &Mark, terms: Terms) -> Record {
        if terms.at_most_once || self.wish.is_some() {
            return Record::Ended(End::Lost(self.clone()));
        }
        if self.crashes >= terms.crash_limit {
            return Record::Ended(End::NodesLost(self.clone()));
        }
        Record::Claimed(Claim { crashes: self.crashes.saturating_add(1), ..self.next(by, mark.clone(), None) })
    }

    /// Returns the attempts before whose nodes were lost, and whose spans nobody has written yet.
    pub fn without_span(&self) -> impl Iterator<Item = &PastAttempt> {
        self.past.iter().filter(|past| past.report.is_none() && !past.has_span)
    }

    /// Notes that those are written.
    fn stood_in(&self) -> Claim {
        let mut claim = self.clone();
        claim.past.iter_mut().for_each(|past| past.has_span |= past.report.is_none());
        claim
    }

    fn is_at(&self, holder: Holder, attempt: u32) -> bool {
        self.holder == holder && self.attempt == attempt
    }
}

/// The table: returns what a record becomes, or why it stays.
pub fn change(record: Option<&Record>, event: &Event) -> Result<Record, Refusal> {
    use Event as On;
    use Record as At;
    match (record, event) {
        (Some(At::Ended(_)), _) => Err(Refusal::HasEnded),

        (None, On::Delivered { to, mark, .. }) => Ok(At::Claimed(Claim::first(*to, mark.clone()))),
        (None, On::EndedUnbegun { outcome, .. }) => Ok(ended_unbegun(outcome)),
        (None, On::Withdrawn { by, mark, .. }) => Ok(At::Claimed(Claim::first(*by, mark.clone()))),

        (Some(At::Claimed(claim)), On::Delivered { to, .. }) if claim.holder == *to => Err(Refusal::HasIt),
        (Some(At::Suspected { claim, .. }), On::Delivered { to, .. }) if claim.holder == *to => {
            Ok(At::Claimed(claim.clone()))
        }
        (
            Some(At::Claimed(claim) | At::Suspected { claim, .. }),
            On::Delivered { to, mark, sight: Sight::NewLife, terms },
        ) => Ok(claim.taken_over(*to, mark, *terms)),
        // Silence counts from a suspicion on, and there was none.
        (Some(At::Claimed(claim)), On::Delivered { to, sight: Sight::MayLive | Sight::Quiet | Sight::Silent, .. }) => {
            Ok(At::Suspected { claim: claim.clone(), by: *to })
        }
        (Some(At::Suspected { claim, .. }), On::Delivered { to, mark, sight: Sight::Silent, terms }) => {
            Ok(claim.taken_over(*to, mark, *terms))
        }
        (Some(At::Suspected { .. }), On::Delivered { sight: Sight::MayLive | Sight::Quiet, .. }) => {
            Err(Refusal::TooEarly)
        }
        (Some(At::Claimed(claim)), On::EndedUnbegun { outcome, is_cancelled: true }) if claim.wish.is_none() => {
            Ok(At::Claimed(Claim { wish: Some(outcome.clone().into()), ..claim.clone() }))
        }
        (Some(At::Suspected { claim, by }), On::EndedUnbegun { outcome, is_cancelled: true })
            if claim.wish.is_none() =>
        {
            Ok(At::Suspected { claim: Claim { wish: Some(outcome.clone().into()), ..claim.clone() }, by: *by })
        }
        (Some(At::Claimed(_) | At::Suspected { .. }), On::EndedUnbegun { .. } | On::Withdrawn { .. }) => {
            Err(Refusal::Begun)
        }

        (
            Some(At::GivenBack { claim: Claim { wish: Some(outcome), .. }, .. }),
            On::Delivered { .. } | On::Withdrawn { .. },
        ) => Ok(ended_unbegun(outcome)),

        (
            Some(At::GivenBack { claim, has_begun: true }),
            On::Delivered { to, mark, terms, .. } | On::Withdrawn { by: to, mark, terms },
        ) => Ok(written_by_its_node(claim.taken_over(*to, mark, *terms))),
        (
            Some(At::GivenBack { claim, has_begun: false }),
            On::Delivered { to, mark, .. } | On::Withdrawn { by: to, mark, .. },
        ) => Ok(At::Claimed(Claim { holder: *to, mark: mark.clone(), ..claim.clone() })),
        (Some(At::GivenBack { .. }), On::EndedUnbegun { outcome, .. }) => Ok(ended_unbegun(outcome)),

        (
            Some(At::Claimed(claim) | At::Suspected { claim, .. }),
            On::AttemptFailed { by, attempt, charge, report, unix_nano },
        ) if claim.is_at(*by, *attempt) => {
            let mark = Mark { node_id: claim.mark.node_id.clone(), unix_nano: *unix_nano };
            let next = claim.next(*by, mark, Some(report.clone()));
            let (failures, crashes) = (u32::from(*charge == Charge::Own), u32::from(*charge == Charge::Crash));
            let failures = next.failures.saturating_add(failures);
            Ok(At::Claimed(Claim { failures, crashes: next.crashes.saturating_add(crashes), ..next }))
        }
        (Some(At::Claimed(claim) | At::Suspected { claim, .. }), On::Outcome { by, attempt, outcome })
            if claim.is_at(*by, *attempt) =>
        {
            let (holder, outcome) = (Some(*by), outcome.clone());
            Ok(At::Ended(End::Outcome { attempt: *attempt, holder, outcome }))
        }
        (Some(At::Claimed(claim) | At::Suspected { claim, .. }), On::GivenBack { by, attempt, has_begun })
            if claim.is_at(*by, *attempt) =>
        {
            Ok(At::GivenBack { claim: claim.clone(), has_begun: *has_begun })
        }
        (Some(At::Claimed(claim) | At::Suspected { claim, .. }), On::NotRun { by }) if claim.holder == *by => {
            Ok(At::GivenBack { claim: claim.clone(), has_begun: false })
        }
        (Some(At::Claimed(claim)), On::StoodIn { by, attempt }) if claim.is_at(*by, *attempt) => {
            Ok(At::Claimed(claim.stood_in()))
        }
        (Some(At::Suspected { claim, by: suspecting }), On::StoodIn { by, attempt }) if claim.is_at(*by, *attempt) => {
            Ok(At::Suspected { claim: claim.stood_in(), by: *suspecting })
        }
        (
            _,
            On::AttemptFailed { .. }
            | On::Outcome { .. }
            | On::GivenBack { .. }
            | On::NotRun { .. }
            | On::StoodIn { .. },
        ) => Err(Refusal::NotItsHolder),
    }
}

/// Notes that the span of the attempt before was written by its own node, which has let go of it in order.
fn written_by_its_node(mut record: Record) -> Record {
    if let Record::Claimed(claim) = &mut record
        && let Some(past) = claim.past.last_mut()
    {
        past.has_span = true;
    }
    record
}

fn ended_unbegun(outcome: &[u8]) -> Record {
    Record::Ended(End::Outcome { attempt: 0, holder: None, outcome: outcome.into() })
}

impl Record {
    /// Returns the claim that stands, unless nobody has it.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Record::Claimed(claim) | Record::Suspected { claim, .. } => Some(claim),
            Record::GivenBack { .. } | Record::Ended(_) => None,
        }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        // A node that knows of no wishes leaves what has one to others.
        let put = |out: &mut Vec<u8>, kind: u8, claim: &Claim| {
            out.put_u8(if claim.wish.is_some() { kind | HAS_WISH } else { kind });
            if let Some(wish) = &claim.wish {
                out.put_bytes(wish);
            }
            claim.put(out);
        };
        match self {
            Record::Claimed(claim) => put(&mut out, CLAIMED, claim),
            Record::Suspected { claim, by } => {
                put(&mut out, SUSPECTED, claim);
                by.put(&mut out);
            }
            Record::GivenBack { claim, has_begun } => {
                put(&mut out, GIVEN_BACK, claim);
                out.put_u8(u8::from(*has_begun));
            }
            Record::Ended(End::Outcome { attempt, holder, outcome }) => {
                out.put_u8(ENDED);
                out.put_u32(*attempt);
                out.put_u8(u8::from(holder.is_some()));
                if let Some(holder) = holder {
                    holder.put(&mut out);
                }
                out.put_bytes(outcome);
            }
            Record::Ended(End::Lost(claim)) => put(&mut out, LOST, claim),
            Record::Ended(End::NodesLost(claim)) => put(&mut out, NODES_LOST, claim),
        }
        out
    }

    /// Takes a record apart. What another version wrote, or nobody of tracer's, is an error.
    pub fn decode(bytes: &[u8]) -> Result<Record, WireError> {
        let mut take = Take::new(bytes);
        if take.u8()? != VERSION {
            return Err(WireError::UnknownValue("version of the record"));
        }
        let kind = take.u8()?;
        let wish = if kind & HAS_WISH == 0 { None } else { Some(Box::from(take.bytes()?)) };
        let claim = |take: &mut Take<'_>| Ok::<_, WireError>(Claim { wish: wish.clone(), ..Claim::take(take)? });
        let record = match kind & !HAS_WISH {
            CLAIMED => Record::Claimed(claim(&mut take)?),
            SUSPECTED => Record::Suspected { claim: claim(&mut take)?, by: Holder::take(&mut take)? },
            GIVEN_BACK => Record::GivenBack { claim: claim(&mut take)?, has_begun: flag(&mut take)? },
            ENDED if wish.is_none() => Record::Ended(End::Outcome {
                attempt: take.u32()?,
                holder: if flag(&mut take)? { Some(Holder::take(&mut take)?) } else { None },
                outcome: take.bytes()?.into(),
            }),
            LOST => Record::Ended(End::Lost(claim(&mut take)?)),
            NODES_LOST => Record::Ended(End::NodesLost(claim(&mut take)?)),
            _ => return Err(WireError::UnknownValue("record")),
        };
        take.finish()?;
        Ok(record)
    }
}

/// Version of the encoding.
const VERSION: u8 = 1;
const CLAIMED: u8 = 1;
const SUSPECTED: u8 = 2;
const GIVEN_BACK: u8 = 3;
const ENDED: u8 = 4;
const LOST: u8 = 5;
const NODES_LOST: u8 = 6;
/// Bit of a record's kind whose claim has a wish, which comes before it.
const HAS_WISH: u8 = 0x80;

fn flag(take: &mut Take<'_>) -> Result<bool, WireError> {
    match take.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::UnknownValue("flag")),
    }
}

impl Mark {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_str(&self.node_id);
        out.put_u64(self.unix_nano);
    }

    fn take(take: &mut Take<'_>) -> Result<Mark, WireError> {
        Ok(Mark { node_id: take_name(take)?, unix_nano: take.u64()? })
    }
}

impl Holder {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.place.0);
        out.put_u64(self.life);
    }

    pub(crate) fn take(take: &mut Take<'_>) -> Result<Holder, WireError> {
        Ok(Holder { place: PlaceId(take.u64()?), life: take.u64()? })
    }
}

impl Claim {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.holder.put(out);
        self.mark.put(out);
        [self.attempt, self.failures, self.crashes].into_iter().for_each(|number| out.put_u32(number));
        out.put_u32(self.past.len() as u32);
        for past in &self.past {
            out.put_u32(past.number);
            past.holder.put(out);
            past.mark.put(out);
            out.put_u64(past.until_unix_nano);
            out.put_u8(u8::from(past.has_span));
            out.put_u8(u8::from(past.report.is_some()));
            if let Some(report) = &past.report {
                out.put_bytes(report);
            }
        }
    }

    pub(crate) fn take(take: &mut Take<'_>) -> Result<Claim, WireError> {
        let (holder, mark) = (Holder::take(take)?, Mark::take(take)?);
        let (attempt, failures, crashes) = (take.u32()?, take.u32()?, take.u32()?);
        let past = (0..take.u32()?).map(|_| {
            let (number, holder, mark) = (take.u32()?, Holder::take(take)?, Mark::take(take)?);
            let (until_unix_nano, has_span) = (take.u64()?, flag(take)?);
            let report = if flag(take)? { Some(take.bytes()?.to_vec()) } else { None };
            Ok(PastAttempt { number, holder, mark, until_unix_nano, report, has_span })
        });
        let past = past.collect::<Result<Vec<_>, WireError>>()?;
        Ok(Claim { holder, mark, attempt, failures, crashes, past, wish: None })
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
