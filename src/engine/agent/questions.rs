//! Questions for a task of any node, which its record answers, the record of its bundle, or its message. While the engine does not answer, as servers that choose
//! who leads do not, or has just gone away, a question is asked again, for as long as a submission waits.

use tracer_core::count::Size;
use tracer_core::task::{Outcome, TaskId};
use tracer_core::{ClusterTaskId, Stored};
use tracer_ipc::protocol::{BUNDLE_LIMIT, CancelAnswer, Found, SharedEnd};

use super::cancels::Source;
use super::{Agent, Asked, ToHead, claimed_by, too_large};
use crate::bundle::BundleRecord;
use crate::interface::{Answer, InQueue, RecordKey, Request, ValueError, ValueKey};
use crate::message::value_of;
use crate::record::{Claim, End, Mark, Record};

/// Whoever a question comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// A person at this node, by the number of the question.
    Person(u64),
    /// A request to end the task, by its number.
    Cancel(u64),
}

/// Time after which a question is asked again that was not answered, in nanoseconds.
const ASK_AGAIN_NS: u64 = 250_000_000;

/// A question of a person.
#[derive(Debug)]
pub(super) struct Question {
    id: ClusterTaskId,
    /// Time at which it came, in nanoseconds of the monotonic clock.
    since_ns: u64,
    /// Time at which it is due again, by the same clock; none while the engine is asked.
    again_ns: Option<u64>,
}

impl Agent {
    fn answer(&mut self, asker: Asker, found: Found) {
        match asker {
            Asker::Person(number) => {
                let Some(question) = self.questions.get_mut(&number) else { return };
                let again_ns = self.ticked_ns + ASK_AGAIN_NS;
                // Whoever asks an engine that has long been away need not wait.
                let since_ns = match self.is_reachable {
                    true => question.since_ns,
                    false => question.since_ns.min(self.unreachable_since_ns),
                };
                let is_asked_again = found == Found::Unreachable && again_ns < since_ns + self.settings.engine_wait_ns;
                if is_asked_again {
                    question.again_ns = Some(again_ns);
                    self.is_due_soon = true;
                } else {
                    self.questions.remove(&number);
                    self.notify(ToHead::Found(number, found));
                }
            }
            Asker::Cancel(number) => self.cancel_as_found(number, &found),
        }
    }

    /// Looks for a task of any node, and answers under the number of the question.
    pub fn on_find(&mut self, number: u64, id: ClusterTaskId, now_ns: u64) {
        self.questions.insert(number, Question { id, since_ns: now_ns, again_ns: None });
        self.find(Asker::Person(number), id);
    }

    /// Asks again what was not answered, and returns when to come again, if for any.
    pub(super) fn resume_asking(&mut self, now_ns: u64) -> Option<u64> {
        let is_due = |question: &Question| question.again_ns.is_some_and(|again_ns| again_ns <= now_ns);
        let due = self.questions.iter().filter(|(_, question)| is_due(question));
        for (number, id) in due.map(|(number, question)| (*number, question.id)).collect::<Vec<_>>() {
            self.questions.entry(number).and_modify(|question| question.again_ns = None);
            self.find(Asker::Person(number), id);
        }
        self.questions.values().filter_map(|question| question.again_ns).min()
    }

    pub(super) fn find(&mut self, asker: Asker, id: ClusterTaskId) {
        if self.is_reachable {
            self.ask(Asked::Find(asker, id), Request::Read(RecordKey::Task(id)));
        } else {
            self.answer(asker, Found::Unreachable);
        }
    }

    pub(super) fn on_record_found(&mut self, asker: Asker, id: ClusterTaskId, answer: Answer) {
        let Answer::Record(entry) = answer else { return self.answer(asker, Found::Unreachable) };
        match entry.map(|entry| Record::decode(&entry.value)).transpose() {
            Ok(None) => self.find_in_bundle(asker, id, 0),
            Ok(Some(record)) => self.report_found(asker, id, record, Source::Own),
            Err(error) => {
                self.note_unread(RecordKey::Task(id), &error);
                self.answer(asker, Found::Unreachable);
            }
        }
    }

    /// Answers a question for a task whose record is this one.
    fn report_found(&mut self, asker: Asker, id: ClusterTaskId, record: Record, of: Source) {
        if let Asker::Cancel(number) = asker {
            return self.cancel_by_record(number, record, of);
        }
        let attempts_of = |claim: &Claim, has_begun: bool| claim.attempt - u32::from(!has_begun && claim.attempt > 0);
        let found = match record {
            Record::GivenBack { claim, has_begun } => {
                let attempts = attempts_of(&claim, has_begun);
                return self.ask(Asked::FindMessage(asker, attempts), Request::FindMessage(id));
            }
            Record::Claimed(claim) | Record::Suspected { claim, .. } => Found::Claimed(claimed_by(claim)),
            Record::Ended(End::Outcome { attempt, outcome, .. }) => match value_of(&outcome) {
                None => Found::Ended { end: outcome, loss: None },
                Some((mut shared, stored)) => {
                    let max = self.settings.max_value;
                    let digest = match shared.digest {
                        Some(digest) if stored.bytes <= max => digest,
                        digest => {
                            let loss = match digest {
                                Some(_) => too_large("the result", stored.bytes, max),
                                None => "the result is said to be in a file of another node".to_owned(),
                            };
                            // No file of this node is meant.
                            shared.outcome = Outcome::Stored(Stored { name: String::new(), ..stored });
                            shared.digest = Some(digest.unwrap_or_default());
                            let found = Found::Ended { end: shared.encode(), loss: Some(loss) };
                            return self.answer(asker, found);
                        }
                    };
                    let key = ValueKey { id, attempt, digest, bytes: stored.bytes };
                    let asked = Asked::FindValue(asker, Box::new(shared), stored.bytes);
                    return self.ask(asked, Request::GetValue(key));
                }
            },
            Record::Ended(End::Lost(claim) | End::NodesLost(claim)) => {
                let Mark { node_id, .. } = claim.mark;
                if let Some(mut end) = claim.wish.and_then(|wish| SharedEnd::decode(&wish).ok()) {
                    (end.attempt, end.node_id) = (claim.attempt, node_id);
                    return self.answer(asker, Found::Ended { end: end.encode(), loss: None });
                }
                Found::Lost { attempt: claim.attempt, why: format!("the node that ran it was lost (node `{node_id}`)") }
            }
        };
        self.answer(asker, found);
    }

    pub(super) fn on_message_found(&mut self, asker: Asker, attempts: u32, answer: Answer) {
        let found = match answer {
            Answer::InQueue(Some(InQueue { queue, is_bundle })) => match asker {
                Asker::Cancel(number) if is_bundle => return self.answer_cancel(number, CancelAnswer::InBundle),
                _ => Found::Waiting { queue, attempts },
            },
            // Its record says that somebody gave it back.
            Answer::InQueue(None) if attempts > 0 => Found::Waiting { queue: String::new(), attempts },
            Answer::InQueue(None) => Found::Unknown,
            _ => Found::Unreachable,
        };
        self.answer(asker, found);
    }

    pub(super) fn on_value_found(&mut self, asker: Asker, mut shared: SharedEnd, bytes: u64, answer: Answer) {
        let loss = match answer {
            Answer::ValueGot(Ok(name)) => {
                (shared.outcome, shared.digest) = (Outcome::Stored(Stored { name, bytes }), None);
                None
            }
            Answer::ValueGot(Err(ValueError::Missing)) => Some(format!(
                "the result takes {}, and its origin has taken it out of the engine\n(hint: ask there)",
                Size(bytes)
            )),
            Answer::ValueGot(Err(why)) => Some(format!("the result takes {}, but {why}", Size(bytes))),
            _ => return self.answer(asker, Found::Unreachable),
        };
        self.answer(asker, Found::Ended { end: shared.encode(), loss });
    }

    /// Looks for the bundle that has a task without a record, from the task itself on downward.
    fn find_in_bundle(&mut self, asker: Asker, id: ClusterTaskId, place: u32) {
        let first = id.task.0.checked_sub(u64::from(place)).filter(|first| *first > 0 && place < BUNDLE_LIMIT);
        match first {
            Some(first) => {
                let first = ClusterTaskId { task: TaskId(first), ..id };
                self.ask(Asked::FindInBundle(asker, id, place), Request::Read(RecordKey::Bundle(first)));
            }
            None => self.ask(Asked::FindMessage(asker, 0), Request::FindMessage(id)),
        }
    }

    pub(super) fn on_bundle_found(&mut self, asker: Asker, id: ClusterTaskId, place: u32, answer: Answer) {
        let Answer::Record(entry) = answer else {
            return self.answer(asker, Found::Unreachable);
        };
        let record = entry.and_then(|entry| BundleRecord::decode(&entry.value).ok());
        match record.filter(|record| place < record.count()) {
            None => self.find_in_bundle(asker, id, place + 1),
            Some(bundle) => match bundle.of(place) {
                Some(record) => {
                    let of = if bundle.claim().is_some() { Source::WholeBundle } else { Source::Bundle };
                    self.report_found(asker, id, record, of);
                }
                None => self.ask(Asked::FindMessage(asker, 0), Request::FindMessage(id)),
            },
        }
    }
}
