//! The agent as origin: tasks of its head go into queues, their arguments before them, and the head is told how they ended.

use std::sync::Arc;

use tracer_core::count::Size;
use tracer_core::queue::QueueBound;
use tracer_core::task::{Outcome, TaskId};
use tracer_core::{ClusterTaskId, Stored};
use tracer_ipc::protocol::{Digest, SharedEnd, Stop};

use super::holder::Held;
use super::keys::SharedKey;
use super::{
    Agent, Asked, Effect, LOOK_AGAIN, LOOKS, NotStored, Sharing, TRIES, ToHead, claimed_by, share_queue, too_large,
};
use crate::interface::{Answer, Handle, PutError, RecordKey, Request, Tier, ValueError, ValueKey, ValueSource};
use crate::message::{TaskMessage, value_of, without_value};
use crate::record::{Claim, End, Event, Mark, Record, Terms};

/// A task that this node's head has accepted for a queue.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) queue: Arc<str>,
    pub(super) tier: Tier,
    pub(super) message: Vec<u8>,
    pub(super) terms: Terms,
    /// Its large arguments, each with its digest once the engine has it.
    pub(super) values: Vec<(ValueSource, Option<Digest>)>,
    pub(super) asks_for: Option<Box<QueueBound>>,
    /// Its end, while the result is on the way.
    pub(super) ending: Option<Box<Ending>>,
    /// Time at which it came, in nanoseconds of the monotonic clock.
    pub(super) since_ns: u64,
    /// True once a request to put it may have reached the engine.
    pub(super) is_sent: bool,
    /// True once the engine is known to have it.
    pub(super) is_stored: bool,
    /// True once it was said that the engine does not answer.
    pub(super) is_unanswered: bool,
    /// True if the engine may have it since before this agent, so that its record is looked at first.
    pub(super) is_old: bool,
    /// True if it was put before without an answer, so that the engine may have it whatever it says now.
    pub(super) was_tried: bool,
    /// True while a request to put it, or to read its record, is on the way.
    pub(super) is_asked: bool,
    /// Time at which it was looked at last, in nanoseconds of the monotonic clock.
    pub(super) looked_ns: u64,
    /// True while it is looked at because nothing was heard of it for long.
    pub(super) is_overdue: bool,
    /// The outcome that it is to have if nobody has begun it, and how it is to end where it runs if it is, once its origin wants to end it.
    pub(super) withdrawn: Option<(Vec<u8>, Option<Stop>)>,
    /// Set while the head wants to run it itself if nobody has begun it: since when, in nanoseconds since the Unix epoch.
    pub(super) taken_back: Option<u64>,
    pub(super) key: Option<Box<SharedKey>>,
    /// The first task of the bundle that it is in; none if it goes by itself.
    pub(super) bundle: Option<TaskId>,
    /// True once the record of its bundle is settled, and what that says of it: it goes on by itself.
    pub(super) is_apart: bool,
    pub(super) base: Option<Box<Record>>,
}

impl Share {
    pub(super) fn new(queue: Arc<str>, tier: Tier, terms: Terms, now_ns: u64) -> Share {
        Share {
            queue,
            tier,
            message: Vec::new(),
            terms,
            values: Vec::new(),
            asks_for: None,
            ending: None,
            since_ns: now_ns,
            is_sent: false,
            is_stored: false,
            is_unanswered: false,
            is_old: false,
            was_tried: false,
            is_asked: false,
            looked_ns: now_ns,
            is_overdue: false,
            withdrawn: None,
            taken_back: None,
            key: None,
            bundle: None,
            is_apart: false,
            base: None,
        }
    }
}

/// The end of a task of this node whose result is to be got.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) shared: SharedEnd,
    pub(super) key: ValueKey,
    pub(super) tries: u32,
    pub(super) is_asked: bool,
}

impl Agent {
    /// Takes a task that the head has accepted for a queue.
    pub fn on_share(&mut self, task: TaskId, sharing: Sharing, now_ns: u64) {
        let Sharing { queue, tier, message, values, key, asks_for, is_new, is_stored } = sharing;
        let Ok(TaskMessage { terms, .. }) = TaskMessage::decode(&message) else {
            let reason = "its message cannot be read".into();
            return self.notify(ToHead::NotStored(task, NotStored::Put(PutError::Refused(reason))));
        };
        let share = Share {
            message,
            values: values.into_iter().map(|value| (value, None)).collect(),
            asks_for: asks_for.map(Box::new),
            is_sent: !is_new,
            is_stored,
            is_old: !is_new,
            was_tried: !is_new,
            key: key.map(|key| Box::new(SharedKey::from(key))),
            ..Share::new(queue.into(), tier, terms, now_ns)
        };
        let has_values = !share.values.is_empty();
        self.shares.insert(task, Box::new(share));
        if has_values {
            self.note_values(task);
        }
        self.note_submission(now_ns);
        self.resume_sharing(task);
    }

    /// Returns whether a task of this node is in a queue, and its end is not known.
    pub(super) fn is_open(&self, task: TaskId) -> bool {
        match self.shares.get(&task) {
            Some(share) => share.ending.is_none(),
            None => self.bundle_with(task).is_some(),
        }
    }

    /// Notes that the head has written down the end of a task: nobody needs its values any more.
    pub fn on_taken(&mut self, task: TaskId) {
        if !self.shares.contains_key(&task) {
            self.drop_values(task);
        }
    }

    /// Notes that the engine may have values of a task, which this node removes. Where a key names it others may want them later: they go by age.
    fn note_values(&mut self, task: TaskId) {
        if self.shares.get(&task).is_none_or(|share| share.key.is_none()) {
            self.with_values.insert(task);
        }
    }

    /// Has the values of a task removed, if there may be any.
    pub(super) fn drop_values(&mut self, task: TaskId) {
        if self.with_values.remove(&task) {
            self.say(Request::DropValues(self.id(task)));
        }
    }

    /// Has tasks looked at that nothing was heard of for long, in turn: an engine that has lost writes may have lost a message, or take the
    /// acknowledgement of one for that of another.
    pub(super) fn look_again(&mut self, now_ns: u64) {
        let interval_ns = LOOK_AGAIN * self.settings.ack_wait_ns;
        let next = self.looked_at_last.map_or(TaskId(0), |last| TaskId(last.0.saturating_add(1)));
        let due: Vec<_> = self.shares.range_from(next).map(|(task, _)| task).take(LOOKS).collect();
        self.looked_at_last = due.last().copied();
        for task in due {
            let share = self.shares.get_mut(&task).filter(|share| share.bundle.is_none());
            let Some(share) = share else { continue };
            if now_ns.saturating_sub(share.looked_ns) >= interval_ns {
                (share.looked_ns, share.is_old, share.is_overdue) = (now_ns, true, true);
                self.puts_again(task);
            }
        }
        self.look_at_bundles_again(now_ns, interval_ns);
    }

    /// Takes the next step of a task that the engine may not have.
    pub(super) fn resume_sharing(&mut self, task: TaskId) {
        let is_due = |share: &&mut Box<Share>| !share.is_asked && share.ending.is_none();
        if self.shares.get_mut(&task).filter(is_due).is_none() || !self.is_reachable || self.asks_for_key(task) {
            return;
        }
        let id = self.id(task);
        let Some(share) = self.shares.get_mut(&task) else { return };
        if share.is_old {
            share.is_asked = true;
            self.ask(Asked::Look(task), Request::Read(RecordKey::Task(id)));
        } else if !share.is_stored && share.bundle.is_none() {
            self.put(task);
        }
    }

    /// Puts a task into its queue, after its large arguments: where its message is there already, that changes nothing.
    fn put(&mut self, task: TaskId) {
        let id = self.id(task);
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = true;
        if let Some(at) = share.values.iter().position(|(_, digest)| digest.is_none()) {
            let source = share.values[at].0.clone();
            return self.ask(Asked::PutArgument(task, at), Request::PutValue { id, attempt: 0, source });
        }
        share.is_sent = true;
        let digests: Vec<u8> = share.values.iter().flat_map(|(_, digest)| digest.unwrap_or_default()).collect();
        // Nothing stands behind the envelope yet.
        let message = [&share.message[..], &digests].concat();
        let (queue, tier) = (share.queue.to_string(), share.tier);
        // What was accepted stays so.
        let asks_for = share.asks_for.as_deref().filter(|_| !share.was_tried && !share.is_stored).cloned();
        let is_overdue = std::mem::take(&mut share.is_overdue);
        self.ask(Asked::Put(task), Request::Put { queue, tier, id, message, asks_for, is_overdue });
    }

    pub(super) fn on_argument_put(&mut self, task: TaskId, at: usize, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else {
            // It was refused or has ended meanwhile.
            self.with_values.insert(task);
            return self.drop_values(task);
        };
        share.is_asked = false;
        match answer {
            Answer::ValuePut(Ok(digest)) => {
                if let Some((_, known)) = share.values.get_mut(at) {
                    *known = Some(digest);
                }
                if share.ending.is_none() {
                    self.put(task);
                }
            }
            Answer::ValuePut(Err(why)) if !share.was_tried && !share.is_stored => self.refuse(task, why),
            // It is tried again.
            _ => {}
        }
    }

    /// Forgets a task of this node.
    pub(super) fn remove_share(&mut self, task: TaskId) -> Option<Share> {
        let Some(share) = self.shares.remove(&task) else {
            if let Some((first, _)) = self.bundle_with(task) {
                self.forget_shared(first, task);
            }
            return None;
        };
        self.follow_no_more(task);
        if let Some(first) = share.bundle {
            self.forget_shared(first, task);
        }
        Some(*share)
    }

    pub(super) fn refuse(&mut self, task: TaskId, why: PutError) {
        self.remove_share(task);
        self.drop_values(task);
        self.notify(ToHead::NotStored(task, NotStored::Put(why)));
    }

    /// Ends a task of this head with an outcome, if nobody has begun it; else its holder is told to end it, if it `stops` there.
    pub fn on_withdraw(&mut self, task: TaskId, outcome: Vec<u8>, stops: Option<Stop>) {
        self.share_by_itself(task);
        let Some(share) = self.shares.get(&task) else { return };
        let is_sent = share.bundle.map_or(share.is_sent, |first| self.is_bundle_sent(first));
        if !is_sent {
            self.remove_share(task);
            let end = End::Outcome { attempt: 0, holder: None, outcome };
            return self.notify(ToHead::Ended(task, end));
        }
        let Some(share) = self.shares.get_mut(&task).filter(|share| share.ending.is_none()) else { return };
        let before = share.withdrawn.as_ref().and_then(|(_, stops)| *stops);
        let stops = stops.into_iter().chain(before).reduce(Stop::sooner);
        share.withdrawn = Some((outcome, stops));
        self.resume_withdrawing(task);
    }

    pub(super) fn resume_withdrawing(&mut self, task: TaskId) {
        let id = self.id(task);
        let share = self.shares.get(&task).filter(|share| share.ending.is_none());
        let Some(share) = share.filter(|share| share.withdrawn.is_some()) else { return };
        if let (Some(first), false) = (share.bundle, share.is_apart) {
            return self.withdraw_from_bundle(first);
        }
        let Some((outcome, stops)) = share.withdrawn.clone() else { return };
        let change = self.changes.get_or_default(id);
        if !change.todo.iter().any(|event| matches!(event, Event::EndedUnbegun { .. })) {
            change.todo.push_back(Event::EndedUnbegun { outcome, is_cancelled: stops.is_some() });
            change.known = change.known.take().filter(|_| change.is_asked);
        }
        self.resume_changing(id);
    }

    /// Takes a task of this node back, unless somebody has begun it: the head is to run it in a worker that waits for it. The time is in nanoseconds since the
    /// Unix epoch.
    pub fn on_take_back(&mut self, task: TaskId, now_unix_nano: u64) {
        self.share_by_itself(task);
        // One that is another node's is in its place in the queue.
        if let Some(share) = self.shares.get_mut(&task).filter(|_| !self.follows.contains_key(&task)) {
            share.taken_back = Some(now_unix_nano);
            self.resume_taking_back(task);
        }
    }

    pub(super) fn resume_taking_back(&mut self, task: TaskId) {
        let id = self.id(task);
        let is_wanted = |share: &&Share| share.taken_back.is_some() && share.ending.is_none() && !self.is_stopping;
        let Some(share) = self.shares.get(&task).map(|share| &**share).filter(is_wanted) else { return };
        match share.bundle {
            // It goes on by itself once its bundle is settled, unless somebody has begun that.
            Some(first) if !share.is_apart => return self.withdraw_from_bundle(first),
            None if !share.is_sent => return,
            _ => {}
        }
        let terms = share.terms;
        // Its message is known once the engine has its arguments.
        let has_message = share.values.iter().all(|(_, digest)| digest.is_some());
        let Some(unix_nano) = share.taken_back.filter(|_| has_message) else { return };
        let change = self.changes.get_or_default(id);
        if !change.todo.iter().any(|event| matches!(event, Event::Withdrawn { .. })) {
            let mark = Mark { node_id: self.settings.node_id.clone(), unix_nano };
            change.todo.push_back(Event::Withdrawn { by: self.settings.own, mark, terms });
            change.known = change.known.take().filter(|_| change.is_asked);
        }
        self.resume_changing(id);
    }

    /// Hands a task to the head that this node has taken back. Its message stays in the queue, and whoever it comes to finds the record.
    pub(super) fn hold_own(&mut self, id: ClusterTaskId, claim: Claim) {
        self.share_by_itself(id.task);
        let Some(share) = self.shares.get_mut(&id.task) else {
            let by = self.settings.own;
            return self.bring_about(id, Event::NotRun { by });
        };
        share.taken_back = None;
        let digests = share.values.iter().flat_map(|(_, digest)| digest.unwrap_or_default());
        let message = share.message.iter().copied().chain(digests).collect();
        let (queue, terms, bundle) = (share.queue.clone(), share.terms, share.bundle);
        let message = bundle.and_then(|first| self.message_from_bundle(first, id.task)).unwrap_or(message);
        let of_no_delivery = Handle("".into());
        let held = Held { message: Some(message), ..Held::new(&queue, &of_no_delivery, terms) };
        self.held.get_or_insert_with(id, || held);
        self.import(id, claim);
    }

    /// Notes that the record of a task or a bundle of this node has changed.
    pub fn on_record(&mut self, key: RecordKey, record: &[u8]) {
        let id = match key {
            RecordKey::Task(id) => id,
            RecordKey::Bundle(id) => return self.on_bundle_record(id, record),
        };
        let Some(task) = self.task_of(id) else { return };
        self.share_by_itself(task);
        let record = Record::decode(record);
        if let Some(share) = self.shares.get_mut(&task) {
            // Whoever has it keeps its message.
            share.is_overdue &= matches!(record, Ok(Record::GivenBack { .. }));
        }
        match record {
            Ok(Record::Ended(end)) => self.on_ended(task, end),
            Ok(record) => {
                if self.shares.get(&task).is_none_or(|share| share.ending.is_some()) {
                    return;
                }
                self.note_stored(task);
                self.notify(match record {
                    Record::Claimed(claim) | Record::Suspected { claim, .. } => {
                        ToHead::Claimed(task, claimed_by(claim))
                    }
                    Record::GivenBack { .. } | Record::Ended(_) => ToHead::LetGo(task),
                });
            }
            Err(error) => self.note_unread(key, &error),
        }
    }

    /// Notes that the engine has a task.
    fn note_stored(&mut self, task: TaskId) {
        let share = self.shares.get_mut(&task).filter(|share| share.bundle.is_none());
        if share.is_some_and(|share| !std::mem::replace(&mut share.is_stored, true)) {
            self.notify(ToHead::Stored(task));
        }
    }

    pub(super) fn on_ended(&mut self, task: TaskId, end: End) {
        let id = self.id(task);
        self.share_by_itself(task);
        let Some(share) = self.shares.get_mut(&task).filter(|share| share.ending.is_none()) else { return };
        if let End::Outcome { attempt, outcome, .. } = &end
            && let Some((shared, stored)) = value_of(outcome)
        {
            let max = self.settings.max_value;
            let problem = match shared.digest {
                None => Some("it is said to be in a file of another node".to_owned()),
                Some(_) if stored.bytes > max => Some(too_large("the result", stored.bytes, max)),
                Some(digest) => {
                    let key = ValueKey { id, attempt: *attempt, digest, bytes: stored.bytes };
                    share.ending = Some(Box::new(Ending { end, shared, key, tries: 0, is_asked: false }));
                    self.note_values(task);
                    return self.resume_ending(task);
                }
            };
            let message = format!("the result cannot be had: {}", problem.unwrap_or_default());
            let outcome = without_value(&shared, message);
            self.note_values(task);
            return self.report_ended(task, end, outcome);
        }
        self.remove_share(task);
        self.notify(ToHead::Ended(task, end));
    }

    /// Tells the head of an end with another outcome than the one that travelled.
    fn report_ended(&mut self, task: TaskId, end: End, outcome: Vec<u8>) {
        let End::Outcome { attempt, holder, .. } = end else { return };
        self.remove_share(task);
        self.notify(ToHead::Ended(task, End::Outcome { attempt, holder, outcome }));
    }

    /// Gets the result of a task of this node that has ended.
    pub(super) fn resume_ending(&mut self, task: TaskId) {
        let Some(ending) = self.shares.get_mut(&task).and_then(|share| share.ending.as_mut()) else { return };
        if self.is_reachable && !ending.is_asked {
            ending.is_asked = true;
            let key = ending.key.clone();
            self.ask(Asked::GetResult(task, key.clone()), Request::GetValue(key));
        }
    }

    pub(super) fn on_result_got(&mut self, task: TaskId, key: &ValueKey, answer: Answer) {
        let share = self.shares.get_mut(&task);
        let ending = share.and_then(|share| share.ending.take_if(|ending| ending.key == *key));
        let Some(mut ending) = ending else { return self.remove_file(answer) };
        ending.is_asked = false;
        let why = match answer {
            Answer::ValueGot(Ok(name)) => {
                let mut shared = ending.shared;
                (shared.outcome, shared.digest) = (Outcome::Stored(Stored { name, bytes: ending.key.bytes }), None);
                let outcome = shared.encode();
                return self.report_ended(task, ending.end, outcome);
            }
            Answer::ValueGot(Err(why)) => {
                ending.tries += 1;
                Some(why).filter(|why| matches!(why, ValueError::Damaged(_)) || ending.tries >= TRIES)
            }
            _ => None,
        };
        match why {
            Some(why) => {
                let bytes = Size(ending.key.bytes);
                let message = format!(
                    "the task has returned {bytes}, but its node's value cannot be had: {why}\n(hint: submit it again)"
                );
                let outcome = without_value(&ending.shared, message);
                self.report_ended(task, ending.end, outcome);
            }
            None => {
                if let Some(share) = self.shares.get_mut(&task) {
                    share.ending = Some(ending);
                }
            }
        }
    }

    /// Removes the file of a value that nobody waits for any more.
    pub(super) fn remove_file(&mut self, answer: Answer) {
        if let Answer::ValueGot(Ok(name)) = answer {
            self.effects.push(Effect::RemoveFile(name));
        }
    }

    pub(super) fn on_put(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        match answer {
            Answer::Put(Ok(())) => {
                self.note_stored(task);
                self.resume_withdrawing(task);
                self.resume_taking_back(task);
            }
            // What the engine may have had before is not refused: it is tried again.
            Answer::Put(Err(why)) if !share.was_tried && !share.is_stored => self.refuse(task, why),
            _ => (share.is_old, share.was_tried) = (true, true),
        }
    }

    pub(super) fn on_looked_at(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        let Answer::Record(entry) = answer else { return };
        share.is_old = false;
        match entry {
            Some(entry) => {
                self.note_stored(task);
                self.on_record(RecordKey::Task(self.id(task)), &entry.value);
                if self.shares.get(&task).is_some_and(|share| share.bundle.is_none()) && self.takes_put(task) {
                    self.put(task);
                }
            }
            // Its bundle is in the engine, or is put there again.
            None if share.bundle.is_some() => {}
            None if share.terms.at_most_once && share.is_stored => {
                share.is_asked = true;
                let is_overdue = std::mem::take(&mut share.is_overdue);
                let (id, queue) = (self.id(task), share_queue(&self.shares, task));
                self.ask(Asked::Has(task), Request::Has { queue, id, is_overdue });
            }
            None if self.takes_put(task) => self.put(task),
            None => {}
        }
    }

    /// Takes in whether the engine has the message of a task that must not be started twice and that had no record.
    pub(super) fn on_has(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        match answer {
            Answer::Has(true) => {}
            // Or it was claimed, ended and acknowledged just now.
            Answer::Has(false) => {
                share.is_asked = true;
                let key = RecordKey::Task(self.id(task));
                self.ask(Asked::LookAgain(task), Request::Read(key));
            }
            _ => share.is_old = true,
        }
    }

    pub(super) fn on_looked_again(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        match answer {
            Answer::Record(None) => {
                self.remove_share(task);
                self.drop_values(task);
                self.notify(ToHead::LostWrites(task));
            }
            Answer::Record(Some(entry)) => self.on_record(RecordKey::Task(self.id(task)), &entry.value),
            _ => share.is_old = true,
        }
    }

    /// Puts the arguments of a task into the engine once more, which seems to have lost them.
    pub(super) fn put_values_again(&mut self, task: TaskId) {
        let Some(share) = self.shares.get_mut(&task).filter(|share| !share.is_asked && share.ending.is_none()) else {
            return;
        };
        if self.is_reachable && !share.values.is_empty() {
            share.values.iter_mut().for_each(|(_, digest)| *digest = None);
            self.put(task);
        }
    }
}
