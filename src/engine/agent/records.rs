//! Records, and what is to be brought about in them: one event at a time for each, by reading, deciding and swapping.

use tracer_core::ClusterTaskId;
use tracer_ipc::protocol::{CancelReport, SharedEnd, Stop};

use super::todo::Todo;
use super::{Agent, Asked, ToHead, change_of, sight_of};
use crate::interface::{Answer, RecordKey, Request};
use crate::message::{Told, without_value};
use crate::record::{Claim, End, Event, Record, Refusal, Sight};

/// A record, and what is to be brought about in it.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) todo: Todo<Event>,
    /// The record as it was read or written last, with its revision and its stamp; none if it is not known.
    pub(super) known: Option<Known>,
    /// True while a request is on the way.
    pub(super) is_asked: bool,
    /// True if the heartbeats of its holder were looked at since it was read.
    pub(super) sight: Option<Sight>,
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) revision: Option<u64>,
    pub(super) record: Option<Record>,
    pub(super) stamp_ns: u64,
}

impl Agent {
    pub(super) fn bring_about(&mut self, id: ClusterTaskId, event: Event) {
        let bundle = self.whole_bundle_of(id);
        if let Some(first) = bundle {
            self.note_in_bundle(first, &event);
        }
        self.changes.get_or_default(id).todo.push_back(event);
        match bundle {
            Some(first) => self.resume_with_bundle(first),
            None => self.resume_changing(id),
        }
    }

    /// Takes the next step towards what is to be brought about in a record.
    pub(super) fn resume_changing(&mut self, id: ClusterTaskId) {
        if self.whole_bundle_of(id).is_some() {
            return;
        }
        while let Some(change) = self.changes.get_mut(&id) {
            if change.is_asked || !self.is_reachable {
                return;
            }
            let Some(event) = change.todo.front() else {
                // What is known of a record that this node does not hold grows old.
                if !self.held.contains_key(&id) {
                    self.changes.remove(&id);
                }
                return;
            };
            let Some(known) = &change.known else {
                change.is_asked = true;
                change.sight = None;
                return self.ask(Asked::Read(id), Request::Read(RecordKey::Task(id)));
            };
            let event = match event {
                // It has come to this node since that was asked, and goes on under the same claim.
                Event::NotRun { .. } if self.held.contains_key(&id) => {
                    change.todo.pop_front();
                    continue;
                }
                Event::Delivered { to, mark, terms, .. } => {
                    let standing = known.record.as_ref().and_then(Record::claim).filter(|claim| claim.holder != *to);
                    match (standing, change.sight) {
                        (Some(claim), None) => {
                            let holder = claim.holder.place;
                            change.is_asked = true;
                            return self.ask(Asked::Sight(id), Request::ReadHeartbeats(holder));
                        }
                        (Some(_), Some(sight)) => {
                            Event::Delivered { to: *to, mark: mark.clone(), sight, terms: *terms }
                        }
                        (None, _) => event.clone(),
                    }
                }
                _ => event.clone(),
            };
            match change_of(known, &event) {
                Ok(next) => {
                    let (revision, record) = (known.revision, next.encode());
                    change.is_asked = true;
                    let key = RecordKey::Task(id);
                    return self.ask(Asked::Swap(id, Some(next)), Request::Swap { key, revision, record });
                }
                Err(refusal) => {
                    let record = known.record.clone();
                    change.todo.pop_front();
                    self.on_refused(id, &event, refusal, record);
                }
            }
        }
    }

    /// Returns what the bundle of a task says of it, if that is known here.
    fn base_of(&self, id: ClusterTaskId) -> Option<Record> {
        let of_share = || self.shares.get(&id.task).filter(|_| id.place == self.settings.own.place)?.base.as_deref();
        let of_held = self.held.get(&id).and_then(|held| held.base.as_deref());
        of_held.or_else(of_share).or_else(|| self.base_of_cancel(id)).cloned()
    }

    pub(super) fn on_read(&mut self, id: ClusterTaskId, answer: Answer) {
        let base = self.base_of(id);
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.is_asked = false;
        let Answer::Record(entry) = answer else { return };
        let known = match entry {
            None => Ok(Known { revision: None, record: base, stamp_ns: 0 }),
            Some(entry) => Record::decode(&entry.value).map(|record| Known {
                revision: Some(entry.revision),
                record: Some(record),
                stamp_ns: entry.stamp_ns,
            }),
        };
        match known {
            Ok(known) => change.known = Some(known),
            Err(error) => {
                // A node of a later version has it. What is to be brought about here waits for the next delivery.
                change.todo.retain(|event| !matches!(event, Event::Delivered { .. }));
                self.note_unread(RecordKey::Task(id), &error);
                return self.let_go_of(id);
            }
        }
        self.resume_changing(id);
    }

    pub(super) fn on_heartbeats(&mut self, id: ClusterTaskId, answer: Answer) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.is_asked = false;
        let Answer::Heartbeats { of_other, own } = answer else {
            change.known = None;
            return;
        };
        let Some(known) = &change.known else { return };
        let Some(claim) = known.record.as_ref().and_then(Record::claim) else { return };
        let is_suspected = matches!(known.record, Some(Record::Suspected { .. }));
        let stamp_ns = is_suspected.then_some(known.stamp_ns);
        change.sight = Some(sight_of(&self.settings, claim.holder, stamp_ns, (of_other, own)));
        self.resume_changing(id);
    }

    pub(super) fn on_swapped(&mut self, id: ClusterTaskId, next: Option<Record>, answer: Answer) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.is_asked = false;
        change.sight = None;
        if let Answer::TooLarge(why) = answer {
            return self.on_record_too_large(id, why);
        }
        let (Answer::Swapped(Some(revision)), Some(next)) = (answer, next) else {
            // Somebody else was faster, or nobody knows who was.
            change.known = None;
            return self.resume_changing(id);
        };
        change.known = Some(Known { revision: Some(revision), record: Some(next.clone()), stamp_ns: 0 });
        if let Some(event) = change.todo.pop_front() {
            self.on_brought_about(id, &event, next);
        }
        self.resume_changing(id);
    }

    /// Has a task fail by name whose outcome the engine does not take. Anything else stays as it is until there is room.
    fn on_record_too_large(&mut self, id: ClusterTaskId, why: String) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        let Some(Event::Outcome { outcome, .. }) = change.todo.front_mut() else { return };
        let Some(shared) = SharedEnd::decode(outcome).ok().filter(SharedEnd::has_returned) else { return };
        *outcome = without_value(&shared, format!("the result is not taken by the engine: {why}"));
        self.resume_changing(id);
    }

    /// Notes that the record is now what an event makes of it.
    fn on_brought_about(&mut self, id: ClusterTaskId, event: &Event, record: Record) {
        match (event, record) {
            (Event::Delivered { to, .. }, Record::Claimed(claim)) if claim.holder == *to => self.import(id, claim),
            (Event::Delivered { .. }, Record::Ended(end)) => {
                self.acknowledge(id);
                self.on_own_ended(id, end);
            }
            // Its holder is heard of, or not, until it is delivered again.
            (Event::Delivered { .. }, record) => {
                self.ask_holder(id, record.claim());
                self.let_go_of(id);
            }
            (Event::EndedUnbegun { .. } | Event::Withdrawn { .. }, Record::Ended(end)) => {
                self.on_ended_elsewhere(id, CancelReport::Cancelled);
                self.on_own_ended(id, end);
            }
            (Event::EndedUnbegun { .. }, record) => self.on_to_end(id, record.claim()),
            (Event::Withdrawn { .. }, Record::Claimed(claim)) => self.hold_own(id, claim),
            // Whoever wanted it to end may not have reached this node.
            (Event::AttemptFailed { .. }, Record::Claimed(claim)) if claim.wish.is_some() => {
                self.notify(ToHead::Stop(id, Stop::default()));
            }
            (Event::Outcome { .. }, Record::Ended(end)) => {
                self.notify(ToHead::Settled(id, 1));
                self.acknowledge(id);
                self.on_own_ended(id, end);
            }
            (Event::GivenBack { .. }, _) => self.on_given_back(id),
            (
                Event::AttemptFailed { .. }
                | Event::Withdrawn { .. }
                | Event::Outcome { .. }
                | Event::StoodIn { .. }
                | Event::NotRun { .. },
                _,
            ) => {}
        }
    }

    fn on_own_ended(&mut self, id: ClusterTaskId, end: End) {
        if let Some(task) = self.task_of(id) {
            self.on_ended(task, end);
        }
    }

    /// Notes that the record refuses an event: perhaps because it was brought about already, and the answer was lost.
    fn on_refused(&mut self, id: ClusterTaskId, event: &Event, refusal: Refusal, record: Option<Record>) {
        let claim = record.as_ref().and_then(Record::claim);
        match (event, refusal) {
            (Event::Delivered { .. }, Refusal::HasEnded) => {
                // What this node's head may still run of it counts for nothing; its end says so.
                if self.held.get(&id).is_some_and(|held| held.attempt.is_none()) {
                    self.acknowledge(id);
                }
            }
            (Event::Delivered { .. }, Refusal::HasIt) => {
                if let Some(claim) = claim.cloned()
                    && self.held.get(&id).is_some_and(|held| held.attempt.is_none())
                {
                    self.import(id, claim);
                }
            }
            (Event::Delivered { sight, .. }, _) => {
                self.ask_holder(id, claim);
                self.leave_to_be_delivered(id, *sight);
            }
            (Event::EndedUnbegun { .. }, Refusal::Begun) => {
                self.on_to_end(id, claim);
            }
            (Event::EndedUnbegun { .. }, _) => self.on_ended_elsewhere(id, CancelReport::Ended),
            // It was brought about, and the answer was lost.
            (Event::Withdrawn { by, .. }, Refusal::Begun)
                if claim.is_some_and(|claim| claim.holder == *by) && !self.held.contains_key(&id) =>
            {
                if let Some(claim) = claim.cloned() {
                    self.hold_own(id, claim);
                }
            }
            (Event::Withdrawn { .. }, _) => {
                if let Some(share) = self.shares.get_mut(&id.task) {
                    share.taken_back = None;
                }
            }
            (Event::Outcome { .. }, Refusal::HasEnded) => {
                self.notify(ToHead::Settled(id, 1));
                self.acknowledge(id);
            }
            // Another node has it now, whose message is not acknowledged by this one.
            (Event::Outcome { .. }, _) => {
                self.notify(ToHead::Settled(id, 1));
                self.remove_held(id, true);
            }
            // The same, if this node was to end it for that.
            (Event::GivenBack { by, .. }, _) if claim.is_some_and(|claim| claim.holder != *by) => {
                self.notify(ToHead::Settled(id, 1));
                self.remove_held(id, true);
            }
            (Event::GivenBack { .. }, _) => self.on_given_back(id),
            (Event::AttemptFailed { .. } | Event::StoodIn { .. } | Event::NotRun { .. }, _) => {}
        }
        if let Some(Record::Ended(end)) = record {
            self.on_own_ended(id, end);
        }
    }

    /// Tells the holder of a task that it is to end.
    fn on_to_end(&mut self, id: ClusterTaskId, claim: Option<&Claim>) {
        self.stop_elsewhere(id, claim);
        let task = self.task_of(id);
        let share = task.and_then(|task| self.shares.get_mut(&task));
        let withdrawn = share.as_ref().and_then(|share| share.withdrawn.as_ref());
        if let (Some(claim), Some(stop)) = (claim, withdrawn.and_then(|(_, stops)| *stops)) {
            let (place, told) = (claim.holder.place, Told::Stop(id, stop).encode());
            self.say(Request::Tell(place, told));
        } else if let Some(share) = share {
            // It has begun in time.
            share.withdrawn = None;
        }
    }

    /// Asks who has claimed a task whether it runs it.
    fn ask_holder(&mut self, id: ClusterTaskId, claim: Option<&Claim>) {
        if let Some(claim) = claim {
            self.say(Request::Tell(claim.holder.place, Told::DoYouRun(id).encode()));
        }
    }
}
