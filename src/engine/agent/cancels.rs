//! Requests to end tasks of other nodes. The node that has submitted a task ends it as one of its own; where that node does not answer, or knows nothing of the
//! task, whoever asks does it by the task's record: unless somebody has begun the task it has ended there, else the record has the wish, and its holder is told.
//! Of a bundle that has begun there is no record of the task by itself: its holder is told again until there is, or until time is up.

use tracer_core::task::{Failure, Outcome, TaskId};
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::{CancelAnswer, CancelReport, Found, SharedEnd, Stop};

use super::questions::Asker;
use super::{Agent, ToHead};
use crate::interface::Request;
use crate::message::Told;
use crate::record::{Claim, End, Event, Record};

/// Time after which the origin is told again, in nanoseconds.
const TELL_AGAIN_NS: u64 = 1_000_000_000;
/// Time that the origin has for its answer, in nanoseconds.
const ORIGIN_LIMIT_NS: u64 = 3_000_000_000;
/// Time after which whoever asks is told that there is no answer, in nanoseconds.
const LIMIT_NS: u64 = 15_000_000_000;

/// A request to end a task of another node.
#[derive(Debug)]
pub(super) struct Cancel {
    id: ClusterTaskId,
    stop: Stop,
    /// End that its record gets if nobody has begun it.
    end: Vec<u8>,
    /// Time at which it came, in nanoseconds of the monotonic clock.
    since_ns: u64,
    /// Time at which the origin is to be told again, or the engine asked again, by the same clock.
    tell_ns: u64,
    /// True while the engine is asked, since the origin has not answered in time or does not know the task.
    is_asked: bool,
    /// True once its holder was told, and did not have to answer.
    is_told: bool,
    /// State of the task as its settled bundle says, as long as there is no record of its own.
    base: Option<Record>,
}

/// Record that says where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The task's own.
    Own,
    /// Record of its bundle, which is settled.
    Bundle,
    /// Record of its bundle, which one node has all of.
    WholeBundle,
}

/// Returns whether a task has ended because somebody wanted that.
fn is_cancelled(end: &End) -> bool {
    match end {
        End::Outcome { outcome, .. } => {
            SharedEnd::decode(outcome).is_ok_and(|end| matches!(end.outcome, Outcome::Failed(Failure::Cancelled)))
        }
        End::Lost(claim) | End::NodesLost(claim) => claim.wish.is_some(),
    }
}

impl Cancel {
    /// Returns when something is to be done for it.
    fn due_ns(&self) -> u64 {
        if self.is_asked { self.since_ns + LIMIT_NS } else { self.tell_ns }
    }
}

impl Agent {
    /// Ends a task of another node, and answers under the number of the question. The end is the one that it has if nobody has begun it.
    pub fn on_cancel_elsewhere(&mut self, number: u64, id: ClusterTaskId, stop: Stop, end: Vec<u8>, now_ns: u64) {
        if !self.is_reachable {
            return self.notify(ToHead::CancelAnswered(number, CancelAnswer::Unreachable));
        }
        let cancel =
            Cancel { id, stop, end, since_ns: now_ns, tell_ns: now_ns, is_asked: false, is_told: false, base: None };
        self.cancels.insert(number, cancel);
        self.resume_cancelling(now_ns);
        self.is_due_soon = true;
    }

    /// Notes the outcome of a request from another node, which hears of it.
    pub fn on_cancelled_for(&mut self, by: PlaceId, task: TaskId, report: CancelReport) {
        let told = Told::CancelAnswered(self.id(task), report).encode();
        self.say(Request::Tell(by, told));
    }

    /// Does what is due, and returns when to come again, if for any.
    pub(super) fn resume_cancelling(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.cancels.iter().filter(|(_, cancel)| cancel.due_ns() <= now_ns).map(|(number, _)| *number);
        for number in due.collect::<Vec<_>>() {
            let own = self.settings.own.place;
            let Some(cancel) = self.cancels.get_mut(&number) else { continue };
            if now_ns >= cancel.since_ns + LIMIT_NS {
                self.answer_cancel(number, CancelAnswer::Unreachable);
                continue;
            }
            cancel.tell_ns = now_ns + TELL_AGAIN_NS;
            if now_ns >= cancel.since_ns + ORIGIN_LIMIT_NS {
                self.cancel_without_origin(number);
            } else {
                let (id, told) = (cancel.id, Told::Cancel(cancel.id, cancel.stop, own).encode());
                self.say(Request::Tell(id.place, told));
            }
        }
        self.cancels.values().map(Cancel::due_ns).min()
    }

    /// Takes the answer of the origin.
    pub(super) fn on_cancel_answered(&mut self, id: ClusterTaskId, report: CancelReport) {
        for number in self.cancels_of(id) {
            match report {
                // Its place may have been wiped: the engine may know more.
                CancelReport::Unknown => self.cancel_without_origin(number),
                report => self.answer_cancel(number, CancelAnswer::Report(report)),
            }
        }
    }

    /// Ends a task by its record.
    fn cancel_without_origin(&mut self, number: u64) {
        let Some(cancel) = self.cancels.get_mut(&number).filter(|cancel| !cancel.is_asked) else { return };
        cancel.is_asked = true;
        let id = cancel.id;
        self.find(Asker::Cancel(number), id);
    }

    /// Answers a request to end a task. Later answers to it count for nothing.
    pub(super) fn answer_cancel(&mut self, number: u64, answer: CancelAnswer) {
        if self.cancels.remove(&number).is_some() {
            self.notify(ToHead::CancelAnswered(number, answer));
        }
    }

    /// Goes on with a task that has no record, or one that cannot be read.
    pub(super) fn cancel_as_found(&mut self, number: u64, found: &Found) {
        match found {
            Found::Waiting { .. } => self.end_elsewhere(number),
            Found::Unknown => self.answer_cancel(number, CancelAnswer::Report(CancelReport::Unknown)),
            // Servers that choose who leads answer later.
            _ => {
                if let Some(cancel) = self.cancels.get_mut(&number) {
                    cancel.is_asked = false;
                }
            }
        }
    }

    /// Goes on with a task that has this record, or of which its bundle says so.
    pub(super) fn cancel_by_record(&mut self, number: u64, record: Record, of: Source) {
        let Some(cancel) = self.cancels.get_mut(&number) else { return };
        match (record, of) {
            (Record::Ended(end), _) => {
                let report =
                    if cancel.is_told && is_cancelled(&end) { CancelReport::Cancelled } else { CancelReport::Ended };
                self.answer_cancel(number, CancelAnswer::Report(report));
            }
            (Record::Claimed(claim) | Record::Suspected { claim, .. }, Source::WholeBundle) => {
                (cancel.is_asked, cancel.is_told) = (false, true);
                let told = Told::Stop(cancel.id, cancel.stop).encode();
                self.say(Request::Tell(claim.holder.place, told));
            }
            (record, of) => {
                cancel.base = Some(record).filter(|_| of == Source::Bundle);
                self.end_elsewhere(number);
            }
        }
    }

    /// Returns what the settled bundle of a task says of it that somebody here wants to end.
    pub(super) fn base_of_cancel(&self, id: ClusterTaskId) -> Option<&Record> {
        self.cancels.values().filter(|cancel| cancel.id == id).find_map(|cancel| cancel.base.as_ref())
    }

    /// Has the record of a task say that it has ended; or if somebody has begun it, that it is to end.
    fn end_elsewhere(&mut self, number: u64) {
        if let Some(cancel) = self.cancels.get(&number) {
            let (id, event) = (cancel.id, Event::EndedUnbegun { outcome: cancel.end.clone(), is_cancelled: true });
            self.bring_about(id, event);
        }
    }

    /// Tells the holder of a task that it is to end, as its record says, if somebody here wants that.
    pub(super) fn stop_elsewhere(&mut self, id: ClusterTaskId, claim: Option<&Claim>) {
        let Some(claim) = claim else { return };
        for number in self.cancels_of(id) {
            let Some(cancel) = self.cancels.get(&number) else { continue };
            let told = Told::Stop(id, cancel.stop).encode();
            self.say(Request::Tell(claim.holder.place, told));
            self.answer_cancel(number, CancelAnswer::Report(CancelReport::Cancelling));
        }
    }

    /// Answers whoever wants a task to end that has ended.
    pub(super) fn on_ended_elsewhere(&mut self, id: ClusterTaskId, report: CancelReport) {
        for number in self.cancels_of(id) {
            self.answer_cancel(number, CancelAnswer::Report(report));
        }
    }

    fn cancels_of(&self, id: ClusterTaskId) -> Vec<u64> {
        let of_it = self.cancels.iter().filter(|(_, cancel)| cancel.id == id);
        of_it.map(|(number, _)| *number).collect()
    }
}
