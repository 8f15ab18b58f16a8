//! Bundles on both sides: the origin puts several short tasks into a queue as one message, and the holder brings their ends into one record. See
//! [`crate::bundle`] for when the tasks of a bundle go on by themselves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tracer_core::ClusterTaskId;
use tracer_core::codec::WireError;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{OpenTask, OpenTasks, SharedEnd};

use super::places::Places;
use super::{
    Agent, Asked, Effect, EndedTogether, Import, ImportBundle, LOOKS, NotStored, QUESTIONS, SharingBundle, ToHead,
    Token, claimed_by, sight_of,
};
use crate::agent::holder::Held;
use crate::agent::origin::Share;
use crate::agent::records::Known;
use crate::bundle::{BundleEvent, BundleRecord, Member, change_bundle, member, place_of};
use crate::interface::{Answer, Delivery, Handle, RecordKey, Request, Tier};
use crate::message::{BundleMessage, BundledTask, TaskMessage, Told};
use crate::record::{Claim, Event, Mark, Record, Refusal, Sight, Terms};

/// Time after which tasks of a bundle that have ended do not wait for the others any more, in nanoseconds.
pub(crate) const BUNDLE_WAIT_NS: u64 = 250_000_000;
/// The most bytes of outcomes in the record of a bundle.
pub(super) const OUTCOMES_BYTES: usize = 512 << 10;
/// Limit on the work that a node takes ahead of its free slots, for each slot, in expected nanoseconds.
const AHEAD_NS: u64 = 20_000_000;
/// The most bundles and short tasks that a node has while it takes some ahead.
pub(super) const AHEAD: usize = 32;

/// A bundle that this node's head has accepted the tasks of.
#[derive(Debug)]
pub(super) struct SharedBundle {
    queue: Arc<str>,
    crash_limit: u32,
    count: u32,
    run_ns: u64,
    tasks: OpenTasks,
    /// Places of those that have not ended.
    open: Places,
    /// See the fields of these names of [`Share`].
    pub(super) since_ns: u64,
    is_sent: bool,
    is_stored: bool,
    pub(super) is_unanswered: bool,
    pub(super) is_old: bool,
    was_tried: bool,
    is_asked: bool,
    looked_ns: u64,
    /// True while it is looked at because nothing was heard of it for long.
    is_overdue: bool,
}

/// A message of a bundle that this node has.
#[derive(Debug)]
pub(super) struct HeldBundle {
    pub(super) queue: Arc<str>,
    pub(super) handle: Handle,
    terms: Terms,
    count: u32,
    run_ns: u64,
    /// The message; none if an agent before this one had it.
    message: Option<Arc<Vec<u8>>>,
    /// Places of tasks that this node claims or runs.
    open: Places,
    /// Places of those that the head is not to have yet, because its queue takes no more slots, with their claims.
    waiting: BTreeMap<u32, Claim>,
    /// Places of tasks that are another node's, or may be.
    let_go: Places,
    /// Tasks of which all that is left is to bring their end about, and the bytes of their outcomes.
    over: usize,
    bytes: usize,
    /// True once the head has its tasks.
    is_imported: bool,
    /// True once its tasks go on by themselves, and the settled record; none if that is another one's.
    is_settled: bool,
    record: Option<BundleRecord>,
    /// True if what has ended does not wait for the others.
    is_hurried: bool,
    /// True if the message is for others too when this node is done with it.
    is_to_return: bool,
    /// True if this delivery has been given back, for a moment: the holder of some of its tasks is quiet.
    is_quiet: bool,
    /// Time at which it was looked at first, in nanoseconds of the monotonic clock.
    seen_ns: Option<u64>,
}

/// A change that is to be brought about in the record of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    /// Delivery of it to this node.
    Deliver(Mark, Terms, u32),
    /// The end of those tasks that their origin wants to end, if nobody has begun any: the others go on by themselves.
    End(u32),
    /// The states of its tasks.
    Settle,
    /// Note that this node does not run it.
    NotRun,
}

/// The record of a bundle, and what is to be brought about in it.
#[derive(Debug, Default)]
pub(super) struct BundleChange {
    todo: VecDeque<Wish>,
    known: Option<KnownBundle>,
    is_asked: bool,
    sight: Option<Sight>,
    /// Places of the tasks whose ends are in the record that is on the way.
    collected: Vec<u32>,
}

#[derive(Clone, Debug)]
struct KnownBundle {
    revision: Option<u64>,
    record: Option<BundleRecord>,
    stamp_ns: u64,
}

impl SharedBundle {
    /// Returns whether the engine may have it, and has not said so.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.is_sent && !self.is_stored
    }
}

impl BundleChange {
    /// Returns whether nothing is left to be brought about.
    pub(super) fn is_settled(&self) -> bool {
        self.todo.is_empty()
    }
}

impl Agent {
    // ---- the origin ---------------------------------------------------------------------------------------------------

    /// Takes a bundle of tasks that the head has accepted for a queue.
    pub fn on_share_bundle(&mut self, first: TaskId, sharing: SharingBundle, now_ns: u64) {
        let SharingBundle { queue, crash_limit, count, run_ns, tasks, is_new, is_stored } = sharing;
        let id = self.id(first);
        let open = tasks.iter().map(|task| place_of(id, ClusterTaskId { task: task.id, ..id })).collect();
        let bundle = SharedBundle {
            queue: queue.into(),
            crash_limit,
            count,
            run_ns,
            tasks,
            open,
            since_ns: now_ns,
            is_sent: !is_new,
            is_stored,
            is_unanswered: false,
            is_old: !is_new,
            was_tried: !is_new,
            is_asked: false,
            looked_ns: now_ns,
            is_overdue: false,
        };
        self.shared_bundles.insert(first, bundle);
        self.note_submission(now_ns);
        self.resume_sharing_bundle(first);
    }

    /// Takes the next step of a bundle that the engine may not have.
    pub(super) fn resume_sharing_bundle(&mut self, first: TaskId) {
        let id = self.id(first);
        let Some(bundle) = self.shared_bundles.get_mut(&first).filter(|bundle| self.is_reachable && !bundle.is_asked)
        else {
            return;
        };
        if bundle.is_old {
            bundle.is_asked = true;
            self.ask(Asked::LookAtBundle(first), Request::Read(RecordKey::Bundle(id)));
        } else if !bundle.is_stored {
            self.put_bundle(first);
        }
    }

    fn put_bundle(&mut self, first: TaskId) {
        let id = self.id(first);
        let Some(bundle) = self.shared_bundles.get_mut(&first) else { return };
        (bundle.is_asked, bundle.is_sent) = (true, true);
        let tasks = bundle.tasks.iter().map(|OpenTask { id: task, submitted_unix_nano, envelope }| BundledTask {
            place: place_of(id, ClusterTaskId { task, ..id }),
            submitted_unix_nano,
            envelope,
        });
        let tasks = tasks.filter(|task| bundle.open.contains(task.place));
        let SharedBundle { crash_limit, count, run_ns, .. } = *bundle;
        let message = BundleMessage { crash_limit, count, run_ns, tasks: tasks.collect() }.encode();
        let queue = bundle.queue.to_string();
        let (tier, is_overdue) = (Tier::Second, std::mem::take(&mut bundle.is_overdue));
        self.ask(Asked::PutBundle(first), Request::Put { queue, tier, id, message, asks_for: None, is_overdue });
    }

    pub(super) fn on_bundle_put(&mut self, first: TaskId, answer: Answer) {
        let Some(bundle) = self.shared_bundles.get_mut(&first) else { return };
        bundle.is_asked = false;
        match answer {
            Answer::Put(Ok(())) => {
                self.note_bundle_stored(first);
                self.for_each_shared(first, Self::resume_withdrawing);
            }
            // What the engine may have had before is not refused: it is tried again.
            Answer::Put(Err(why)) if !bundle.was_tried && !bundle.is_stored => {
                self.refuse_bundle(first, NotStored::Put(why));
            }
            _ => (bundle.is_old, bundle.was_tried) = (true, true),
        }
    }

    fn refuse_bundle(&mut self, first: TaskId, why: NotStored) {
        self.for_each_shared(first, |agent, task| drop(agent.remove_share(task)));
        self.notify(ToHead::NotStored(first, why));
    }

    fn note_bundle_stored(&mut self, first: TaskId) {
        let Some(bundle) = self.shared_bundles.get_mut(&first) else { return };
        if !std::mem::replace(&mut bundle.is_stored, true) {
            self.notify(ToHead::Stored(first));
        }
    }

    /// Does something with each task of a bundle that has not ended.
    fn for_each_shared(&mut self, first: TaskId, mut act: impl FnMut(&mut Agent, TaskId)) {
        self.open_of(first).for_each(|task| act(self, task));
    }

    pub(super) fn on_bundle_looked_at(&mut self, first: TaskId, answer: Answer) {
        let Some(bundle) = self.shared_bundles.get_mut(&first) else { return };
        bundle.is_asked = false;
        let Answer::Record(entry) = answer else { return };
        bundle.is_old = false;
        // Whoever has it keeps its message.
        bundle.is_overdue &= entry.is_none();
        if let Some(entry) = entry {
            self.on_bundle_record(self.id(first), &entry.value);
            // What has a record of its own is looked at by itself.
            self.for_each_shared(first, |agent, task| {
                if let Some(share) = agent.shares.get_mut(&task).filter(|share| share.is_apart) {
                    share.is_old = true;
                    agent.resume_sharing(task);
                }
            });
        }
        if self.shared_bundles.contains_key(&first) {
            self.put_bundle(first);
        }
    }

    /// Notes that the record of a bundle of this node has changed.
    pub(super) fn on_bundle_record(&mut self, id: ClusterTaskId, record: &[u8]) {
        let is_open =
            |agent: &Agent| id.place == agent.settings.own.place && agent.shared_bundles.contains_key(&id.task);
        if is_open(self)
            && let Some(ended) = BundleRecord::all_ended(record)
        {
            self.on_all_ended(id.task, &ended, record);
        }
        if !is_open(self) {
            return;
        }
        match BundleRecord::decode(record) {
            Ok(record) => self.on_shared_bundle(id, &record),
            Err(error) => self.note_unread(RecordKey::Bundle(id), &error),
        }
    }

    /// Ends the tasks of a bundle of this node that have ended by its record, as all of them have, but for those of which more is to be done here than to tell
    /// the head.
    fn on_all_ended(&mut self, first: TaskId, ended: &[(u32, &[u8])], record: &[u8]) {
        self.note_bundle_stored(first);
        let (id, shared) = (self.id(first), &self.shares);
        let Some(bundle) = self.shared_bundles.get_mut(&first) else { return };
        let is_plain = |place: &u32| {
            let outcome = ended.get(*place as usize).map(|(_, outcome)| *outcome);
            !shared.contains_key(&member(id, *place).task) && outcome.is_some_and(|it| !SharedEnd::has_stored(it))
        };
        let places: Places = bundle.open.iter().filter(is_plain).collect();
        if places.is_empty() {
            return;
        }
        places.iter().for_each(|place| bundle.open.remove(place));
        if bundle.open.is_empty() {
            self.shared_bundles.remove(&first);
        }
        self.notify(ToHead::EndedTogether(EndedTogether { first, record: record.into(), places }));
    }

    /// Makes the share of a task by itself that has none because it is in a bundle with others, and nothing has happened to it but to all of them.
    pub(super) fn share_by_itself(&mut self, task: TaskId) {
        if !self.shares.contains_key(&task)
            && let Some((first, bundle)) = self.bundle_with(task)
        {
            let terms = Terms { at_most_once: false, crash_limit: bundle.crash_limit };
            let share = Share::new(bundle.queue.clone(), Tier::Second, terms, bundle.since_ns);
            self.shares.insert(task, Box::new(Share { bundle: Some(first), ..share }));
        }
    }

    /// Returns the bundle of this node that has a task which has not ended, with its first task.
    pub(super) fn bundle_with(&self, task: TaskId) -> Option<(TaskId, &SharedBundle)> {
        let (first, bundle) = self.shared_bundles.range(..=task).next_back()?;
        let place = place_of(self.id(*first), self.id(task));
        bundle.open.contains(place).then_some((*first, bundle))
    }

    /// Returns the number of tasks of this node's bundles that have not ended.
    pub(super) fn open_in_bundles(&self) -> usize {
        self.shared_bundles.values().map(|bundle| bundle.open.len()).sum()
    }

    /// Returns the tasks of a bundle of this node that have not ended.
    pub(super) fn open_of(&self, first: TaskId) -> impl Iterator<Item = TaskId> + use<> {
        let (id, open) = (self.id(first), self.shared_bundles.get(&first).map(|bundle| bundle.open));
        open.into_iter().flat_map(Places::iter).map(move |place| member(id, place).task)
    }

    /// Takes in what the record of a bundle is now, if it is one of this node.
    fn on_shared_bundle(&mut self, id: ClusterTaskId, record: &BundleRecord) {
        let first = id.task;
        if id.place != self.settings.own.place || !self.shared_bundles.contains_key(&first) {
            return;
        }
        self.note_bundle_stored(first);
        if let Some(claim) = record.claim() {
            return self.notify(ToHead::BundleClaimed(first, Some(claimed_by(claim.clone()))));
        }
        let mut is_new = true;
        self.for_each_shared(first, |agent, task| {
            let base = record.of(place_of(id, ClusterTaskId { task, ..id }));
            if let Some(Record::Ended(end)) = base {
                return agent.on_ended(task, end);
            }
            agent.share_by_itself(task);
            let Some(share) = agent.shares.get_mut(&task).filter(|share| share.ending.is_none()) else { return };
            let was_apart = std::mem::replace(&mut share.is_apart, true);
            share.base = base.clone().map(Box::new);
            if !was_apart {
                if std::mem::take(&mut is_new) {
                    agent.notify(ToHead::BundleClaimed(first, None));
                }
                if let Some(Record::Claimed(claim)) = base {
                    agent.notify(ToHead::Claimed(task, claimed_by(claim)));
                }
            }
            agent.resume_withdrawing(task);
            agent.resume_taking_back(task);
        });
    }

    /// Returns the message of a task of a bundle as it is by itself.
    pub(super) fn message_from_bundle(&self, first: TaskId, task: TaskId) -> Option<Vec<u8>> {
        let bundle = self.shared_bundles.get(&first)?;
        let OpenTask { submitted_unix_nano, envelope, .. } = bundle.tasks.get(task)?;
        let terms = Terms { at_most_once: false, crash_limit: bundle.crash_limit };
        Some(TaskMessage { submitted_unix_nano, terms, envelope, digests: &[] }.encode())
    }

    /// Has tasks of a bundle end or go on by themselves, if nobody has begun it.
    pub(super) fn withdraw_from_bundle(&mut self, first: TaskId) {
        let (id, Some(bundle)) = (self.id(first), self.shared_bundles.get(&first)) else { return };
        let wish = Wish::End(bundle.count);
        let change = self.bundle_changes.entry(id).or_default();
        if !change.todo.contains(&wish) {
            change.todo.push_back(wish);
            change.known = change.known.take().filter(|_| change.is_asked);
        }
        self.resume_changing_bundle(id);
    }

    /// Refuses bundles that have not left for an engine that is away for too long.
    pub(super) fn refuse_waiting_bundles(&mut self, now_ns: u64) {
        let (since_ns, limit_ns) = (self.unreachable_since_ns, self.settings.engine_wait_ns);
        let is_over =
            |bundle: &SharedBundle| !bundle.is_sent && now_ns.saturating_sub(since_ns.max(bundle.since_ns)) >= limit_ns;
        let over = self.shared_bundles.iter().filter(|(_, bundle)| is_over(bundle)).map(|(first, _)| *first);
        for first in over.collect::<Vec<_>>() {
            self.refuse_bundle(first, NotStored::Unreachable);
        }
    }

    /// Has every bundle looked at that may be in the engine.
    pub(super) fn look_at_bundles(&mut self) {
        self.shared_bundles.values_mut().for_each(|bundle| bundle.is_old |= bundle.is_sent);
    }

    /// Has some of the bundles looked at of which nothing was heard for so long.
    pub(super) fn look_at_bundles_again(&mut self, now_ns: u64, interval_ns: u64) {
        let is_due = |bundle: &&mut SharedBundle| now_ns.saturating_sub(bundle.looked_ns) >= interval_ns;
        for bundle in self.shared_bundles.values_mut().filter(is_due).take(LOOKS) {
            (bundle.looked_ns, bundle.is_old, bundle.is_overdue) = (now_ns, true, true);
        }
    }

    /// Returns whether a bundle may have left for the engine.
    pub(super) fn is_bundle_sent(&self, first: TaskId) -> bool {
        self.shared_bundles.get(&first).is_some_and(|bundle| bundle.is_sent)
    }

    /// Forgets a task of a bundle of this node.
    pub(super) fn forget_shared(&mut self, first: TaskId, task: TaskId) {
        let id = self.id(first);
        if let Some(bundle) = self.shared_bundles.get_mut(&first) {
            bundle.open.remove(place_of(id, ClusterTaskId { task, ..id }));
            if bundle.open.is_empty() {
                self.shared_bundles.remove(&first);
            }
        }
    }

    // ---- the holder ---------------------------------------------------------------------------------------------------

    /// Returns for how many messages there is room ahead of free slots: bundles and tasks that are known to be short wait here, so that no slot waits for them.
    pub(super) fn room_ahead(&self) -> usize {
        let (mut count, mut work_ns, mut long) = (self.bundles.len(), 0_u64, 0);
        for held in self.held.alone() {
            match self.run_times.short_ns(held.function) {
                Some(expected_ns) => (count, work_ns) = (count + 1, work_ns + expected_ns),
                None => long += 1,
            }
        }
        let limit_ns = AHEAD_NS.saturating_mul(self.slots.saturating_sub(long) as u64);
        let of_bundle = |bundle: &HeldBundle| match bundle.is_settled || bundle.is_hurried {
            true => u64::MAX,
            false => bundle.run_ns.saturating_mul(u64::from(bundle.count)),
        };
        let work_ns = self.bundles.values().map(of_bundle).fold(work_ns, u64::saturating_add);
        if count == 0 || self.is_full_of_singles || work_ns >= limit_ns {
            return 0;
        }
        let each_ns = (work_ns / count as u64).max(1);
        let fitting = usize::try_from((limit_ns - work_ns) / each_ns + 1).unwrap_or(usize::MAX);
        AHEAD.saturating_sub(count).min(fitting).min(self.ahead.size())
    }

    /// Returns the number of bundles whose claim is on the way.
    pub(super) fn bundles_being_claimed(&self) -> usize {
        self.bundles.values().filter(|bundle| !bundle.is_imported && !bundle.is_settled).count()
    }

    /// Takes the message of a bundle that a pull has brought.
    pub(super) fn on_bundle_delivered(&mut self, delivery: Delivery, now_unix_nano: u64) {
        let Delivery { queue, handle, id, message, is_again } = delivery;
        let (terms, count, run_ns) = match BundleMessage::decode(&message) {
            // Ids of its tasks are counted up from its own.
            Ok(bundle) if id.task.0.checked_add(bundle.count.into()).is_none() => {
                let error = WireError::UnknownValue("id of a bundle");
                return self.put_aside(Delivery { queue, handle, id, message, is_again }, &error);
            }
            Ok(bundle) => (bundle.terms(), bundle.count, bundle.run_ns),
            Err(error) => return self.put_aside(Delivery { queue, handle, id, message, is_again }, &error),
        };
        if self.is_stopping || (self.room_of(&queue) == 0 && !self.bundles.contains_key(&id)) {
            return self.say(Request::GiveBack(handle));
        }
        let bundle =
            self.bundles.entry(id).or_insert_with(|| HeldBundle::new(queue.into(), handle.clone(), terms, count));
        self.ahead.widen();
        // The delivery before it is over.
        bundle.handle = handle.clone();
        bundle.is_quiet = false;
        bundle.run_ns = run_ns;
        bundle.message.get_or_insert_with(|| message.into());
        let mark = Mark { node_id: self.settings.node_id.clone(), unix_nano: now_unix_nano };
        if bundle.is_settled {
            if self.is_full_of_singles && !bundle.let_go.is_empty() {
                // Others may have room for what this node has let go of.
                return self.say(Request::GiveBack(handle));
            }
            if let Some(record) = bundle.record.clone() {
                self.claim_apart(id, &record, &mark);
            }
            return;
        }
        let change = self.bundle_changes.entry(id).or_default();
        if change.todo.iter().any(|wish| matches!(wish, Wish::Deliver(..))) {
            return;
        }
        if !change.is_asked && (is_again || change.known.is_some()) {
            change.known = None;
        }
        if !is_again && !change.is_asked && change.todo.is_empty() {
            // Nearly always nobody has it; if somebody does, that is found out by trying.
            change.known = Some(KnownBundle { revision: None, record: None, stamp_ns: 0 });
        }
        change.todo.push_back(Wish::Deliver(mark, terms, count));
        self.resume_changing_bundle(id);
    }

    /// Takes a task of a bundle that the head runs since before this agent.
    pub(super) fn on_bundled_import_open(&mut self, (first, count): (TaskId, u32), token: &Token) {
        let first = ClusterTaskId { task: first, ..token.id };
        let bundle = self
            .bundles
            .entry(first)
            .or_insert_with(|| HeldBundle::new(token.queue.clone(), token.handle.clone(), token.terms, count));
        bundle.open.insert(place_of(first, token.id));
        bundle.is_imported = true;
        self.is_due_soon = true;
    }

    /// Hands the tasks of a bundle to the head that this node has claimed.
    fn import_bundle(&mut self, first: ClusterTaskId, claim: &Claim) {
        if self.hearing.is_cut_off() {
            // Whoever it comes to asks, and hears that it does not run here.
            return self.let_go_of_bundle(first);
        }
        let is_limited = self.bundles.get(&first).is_some_and(|bundle| self.most_of(&bundle.queue) < self.slots);
        let Some(bundle) = self.bundles.get_mut(&first).filter(|bundle| !bundle.is_imported) else { return };
        let Some(message) = bundle.message.clone() else { return };
        let Ok(BundleMessage { tasks, .. }) = BundleMessage::decode(&message) else { return };
        bundle.is_imported = true;
        let (queue, handle, terms, count) = (&bundle.queue, &bundle.handle, bundle.terms, bundle.count);
        let bundle_of = Some((first.task, count));
        let token = Token { id: first, queue: queue.clone(), handle: handle.clone(), terms, bundle: bundle_of };
        let (mut places, mut here) = (Places::default(), Places::default());
        for BundledTask { place, submitted_unix_nano, envelope } in tasks {
            let id = member(first, place);
            if self.held.contains_key(&id) {
                // This node has taken it back, and the engine has lost that.
                continue;
            }
            bundle.open.insert(place);
            if is_limited {
                let of_task = TaskMessage { submitted_unix_nano, terms, envelope, digests: &[] };
                let message = Some(of_task.encode());
                self.held.insert(id, Held { bundle: Some(first), message, ..Held::new(queue, handle, terms) });
                bundle.waiting.insert(place, claim.clone());
                continue;
            }
            here.insert(place);
            let of_task = TaskMessage { submitted_unix_nano, terms, envelope, digests: &[] };
            self.told += 1;
            self.demands.note_told(1);
            let Err(error) = of_task.values(id) else {
                places.insert(place);
                continue;
            };
            let problem = Some(format!("this node cannot read which arguments it has: {error}"));
            let (token, claim, envelope) = (Token { id, ..token.clone() }, claim.clone(), envelope.to_vec());
            let import = Import { token, claim, submitted_unix_nano, envelope, problem };
            self.effects.push(Effect::Tell(ToHead::Import(import)));
        }
        let held = Held { bundle: Some(first), attempt: Some(claim.attempt), ..Held::new(queue, handle, terms) };
        self.held.insert_together(first, here, held);
        if !places.is_empty() {
            let together = ImportBundle { token, claim: claim.clone(), message, places };
            self.effects.push(Effect::Tell(ToHead::ImportBundle(together)));
        }
        self.is_due_soon = true;
        if self.is_stopping {
            // The head gives back what it was told of.
            self.let_go_of_unimported();
        }
        self.import_waiting(first);
        self.consider_settling(first);
    }

    /// Hands as many of the tasks of a bundle to the head as its queue takes slots.
    fn import_waiting(&mut self, first: ClusterTaskId) {
        loop {
            let Some(bundle) = self.bundles.get(&first).filter(|bundle| !bundle.waiting.is_empty()) else { return };
            if self.is_stopping || !self.takes_more(&bundle.queue) {
                return;
            }
            let waiting = self.bundles.get_mut(&first).and_then(|bundle| bundle.waiting.pop_first());
            let Some((place, claim)) = waiting else { return };
            self.import(member(first, place), claim);
        }
    }

    /// Returns whether a queue may have one more slot of this node.
    fn takes_more(&self, queue: &str) -> bool {
        let most = self.most_of(queue);
        if most >= self.slots {
            return true;
        }
        let is_over = |event: &Event| matches!(event, Event::Outcome { .. } | Event::GivenBack { .. });
        let runs = |id: &ClusterTaskId| {
            let is_here = self.held.get(id).is_some_and(|held| held.attempt.is_some());
            is_here && !self.changes.get(id).is_some_and(|change| change.todo.iter().any(is_over))
        };
        let of_bundle = |(first, bundle): (&ClusterTaskId, &HeldBundle)| {
            bundle.open.iter().filter(|place| runs(&member(*first, *place))).count()
        };
        let bundles = self.bundles.iter().filter(|(_, bundle)| *bundle.queue == *queue);
        self.alone(queue) + bundles.map(of_bundle).sum::<usize>() < most
    }

    /// Keeps a task of a bundle from the head, if its queue takes no more slots. True if so.
    pub(super) fn puts_off(&mut self, id: ClusterTaskId, claim: &Claim) -> bool {
        let Some(first) = self.held.get(&id).and_then(|held| held.bundle) else { return false };
        let is_full = self.bundles.get(&first).is_some_and(|bundle| !self.takes_more(&bundle.queue));
        if is_full && let Some(bundle) = self.bundles.get_mut(&first) {
            bundle.waiting.insert(place_of(first, id), claim.clone());
        }
        is_full
    }

    /// Returns the tasks of bundles that the head does not have yet, with the attempt that each is at.
    pub(super) fn waiting_in_bundles(&self) -> Vec<(ClusterTaskId, u32)> {
        let of_bundle = |(first, bundle): (&ClusterTaskId, &HeldBundle)| {
            let of_place = |(place, claim): (&u32, &Claim)| (member(*first, *place), claim.attempt);
            bundle.waiting.iter().map(of_place).collect::<Vec<_>>()
        };
        self.bundles.iter().flat_map(of_bundle).collect()
    }

    /// Returns the bundles that the head has the tasks of, and whose records this node has not settled.
    pub(super) fn whole_bundles(&self) -> impl Iterator<Item = ClusterTaskId> {
        let is_whole = |bundle: &HeldBundle| bundle.is_imported && !bundle.is_settled;
        self.bundles.iter().filter(move |(_, bundle)| is_whole(bundle)).map(|(first, _)| *first)
    }

    /// Returns the bundle of a task whose record is that of its bundle.
    pub(super) fn whole_bundle_of(&self, id: ClusterTaskId) -> Option<ClusterTaskId> {
        let first = self.held.get(&id)?.bundle?;
        self.bundles.get(&first).is_some_and(|bundle| !bundle.is_settled).then_some(first)
    }

    /// Counts what is to be brought about in the record of a task of a whole bundle.
    pub(super) fn note_in_bundle(&mut self, first: ClusterTaskId, event: &Event) {
        let Some(bundle) = self.bundles.get_mut(&first) else { return };
        match event {
            Event::Outcome { outcome, .. } => {
                bundle.over += 1;
                bundle.bytes += outcome.len();
            }
            Event::GivenBack { .. } => {
                bundle.over += 1;
                // Somebody may wait for it.
                bundle.is_hurried |= !self.is_stopping;
            }
            _ => bundle.is_hurried = true,
        }
    }

    /// Takes the next step of a whole bundle, of which something has been noted.
    pub(super) fn resume_with_bundle(&mut self, first: ClusterTaskId) {
        self.import_waiting(first);
        self.consider_settling(first);
    }

    /// Notes that a task of a bundle is to end before its time: it does not wait for the others.
    pub(super) fn hurry_bundle_of(&mut self, id: ClusterTaskId) {
        if let Some(bundle) = self.whole_bundle_of(id).and_then(|first| self.bundles.get_mut(&first)) {
            bundle.is_hurried = true;
        }
    }

    /// Settles a bundle if that is due.
    fn consider_settling(&mut self, first: ClusterTaskId) {
        let Some(bundle) = self.bundles.get(&first) else { return };
        let is_due = bundle.over >= bundle.open.len() || bundle.is_hurried || bundle.bytes > self.outcomes_bytes;
        if !bundle.is_imported || bundle.is_settled || !is_due {
            return;
        }
        let has_something =
            |place: u32| self.changes.get(&member(first, place)).is_some_and(|change| !change.todo.is_empty());
        if bundle.open.iter().any(has_something) || bundle.open.is_empty() {
            let change = self.bundle_changes.entry(first).or_default();
            if !change.todo.contains(&Wish::Settle) {
                change.todo.push_back(Wish::Settle);
            }
            self.resume_changing_bundle(first);
        }
    }

    /// Returns the states of the tasks of a bundle that this node has, and the places of those whose ends are among them.
    fn members(&self, first: ClusterTaskId) -> (Vec<Member>, Vec<u32>) {
        let Some(bundle) = self.bundles.get(&first) else { return (Vec::new(), Vec::new()) };
        let (mut collected, mut bytes) = (Vec::new(), 0);
        let of_place = |place| {
            if !bundle.open.contains(place) {
                return Member::Unbegun;
            }
            let state = match self.changes.get(&member(first, place)).and_then(|change| change.todo.only()) {
                Some(Event::Outcome { attempt, outcome, .. }) if bytes + outcome.len() <= self.outcomes_bytes => {
                    bytes += outcome.len();
                    Member::Ended(*attempt, outcome.clone())
                }
                Some(Event::GivenBack { has_begun: true, .. }) => Member::GivenBack,
                Some(Event::GivenBack { has_begun: false, .. }) => Member::Unbegun,
                _ => return Member::Kept,
            };
            collected.push(place);
            state
        };
        let members = (0..bundle.count).map(of_place).collect();
        (members, collected)
    }

    /// Lets the tasks of a bundle go on by themselves, whose record is settled. `collected` are those whose ends are in it.
    fn on_bundle_settled(
        &mut self,
        first: ClusterTaskId,
        record: Option<&BundleRecord>,
        (collected, mark): (&[u32], Option<&Mark>),
    ) {
        if let Some(record) = record {
            self.on_shared_bundle(first, record);
        }
        let Some(bundle) = self.bundles.get_mut(&first).filter(|bundle| !bundle.is_settled) else { return };
        (bundle.is_settled, bundle.over) = (true, 0);
        bundle.is_to_return |= record.is_none();
        // Those that an agent before this one did not hand over to the head are for others.
        bundle.is_to_return |= bundle.is_imported && bundle.lacks_tasks();
        let (mut for_others, mut settled) = (None, Places::default());
        for place in collected {
            let id = member(first, *place);
            bundle.open.remove(*place);
            bundle.waiting.remove(place);
            let event = self.changes.remove(&id).and_then(|mut change| change.todo.pop_front());
            if matches!(event, Some(Event::GivenBack { .. })) {
                bundle.is_to_return = true;
                if !self.is_stopping {
                    // At once, although this node may run others of them.
                    bundle.let_go.insert(*place);
                    for_others = Some(bundle.handle.clone());
                }
            }
            settled.insert(*place);
        }
        self.held.forget_together(first, settled);
        for (place, count) in settled.runs() {
            self.effects.push(Effect::Tell(ToHead::Settled(member(first, place), count)));
        }
        let (open, is_imported) = (bundle.open, bundle.is_imported);
        bundle.record = record.filter(|_| !open.is_empty() || !is_imported).cloned();
        for place in open.iter() {
            let (id, base) = (member(first, place), record.and_then(|record| record.of(place)));
            if let Some(held) = self.held.get_mut(&id) {
                held.base = base.clone().map(Box::new);
            }
            let change = self.changes.get_or_default(id);
            // Where this node has settled it nobody else has made a record since, unless that is found out by trying.
            change.known = record.map(|_| Known { revision: None, record: base, stamp_ns: 0 });
            self.resume_changing(id);
        }
        if let Some(handle) = for_others {
            self.say(Request::GiveBack(handle));
        }
        if let (false, Some(record), Some(mark)) = (is_imported, record, mark) {
            self.claim_apart(first, record, mark);
        }
        self.finish_bundle(first);
    }

    /// Claims the tasks of a settled bundle that have not ended and that this node does not run, each by itself.
    fn claim_apart(&mut self, first: ClusterTaskId, record: &BundleRecord, mark: &Mark) {
        let Some(bundle) = self.bundles.get_mut(&first) else { return };
        let Some(message) = bundle.message.take() else { return };
        let tasks = BundleMessage::decode(&message).map(|message| message.tasks).unwrap_or_default();
        let terms = bundle.terms;
        for BundledTask { place, submitted_unix_nano, envelope } in tasks {
            let base = record.of(place);
            if matches!(base, Some(Record::Ended(_))) || bundle.open.contains(place) {
                continue;
            }
            if self.held.contains_key(&member(first, place)) {
                // This node has taken it back. Should it die, another one is to find that out.
                bundle.let_go.insert(place);
                continue;
            }
            let of_task = TaskMessage { submitted_unix_nano, terms, envelope, digests: &[] };
            let message = Some(of_task.encode());
            let base = base.map(Box::new);
            let held = Held { bundle: Some(first), base, message, ..Held::new(&bundle.queue, &bundle.handle, terms) };
            bundle.let_go.remove(place);
            bundle.open.insert(place);
            self.held.insert(member(first, place), held);
        }
        (bundle.message, bundle.is_imported) = (Some(message), true);
        let (open, to) = (bundle.open, self.settings.own);
        for place in open.iter() {
            let id = member(first, place);
            let change = self.changes.get_or_default(id);
            change.known = change.known.take().filter(|_| change.is_asked);
            if !change.todo.iter().any(|event| matches!(event, Event::Delivered { .. })) {
                let mark = mark.clone();
                change.todo.push_back(Event::Delivered { to, mark, sight: Sight::MayLive, terms });
            }
            self.resume_changing(id);
        }
    }

    /// Notes that this node is done with a task of a bundle, or has let go of it.
    pub(super) fn remove_from_bundle(&mut self, first: ClusterTaskId, id: ClusterTaskId, is_let_go: bool) {
        let Some(bundle) = self.bundles.get_mut(&first) else { return };
        let place = place_of(first, id);
        bundle.open.remove(place);
        bundle.waiting.remove(&place);
        if is_let_go {
            bundle.let_go.insert(place);
        }
        self.import_waiting(first);
        self.finish_bundle(first);
    }

    /// Notes that a task of a bundle is for other nodes. Returns the delivery that is to be given back for that at once, although this node may run others of
    /// them; none if it has been, or if this node lets go of all of it soon.
    pub(super) fn return_bundle(&mut self, first: ClusterTaskId) -> Option<Handle> {
        let bundle = self.bundles.get_mut(&first)?;
        bundle.is_to_return = true;
        (!self.is_stopping && bundle.let_go.is_empty()).then(|| bundle.handle.clone())
    }

    /// Has the message of a bundle delivered again in a moment, also if this node goes on with others of its tasks.
    pub(super) fn have_bundle_delivered_soon(&mut self, first: ClusterTaskId) {
        let bundle = self.bundles.get_mut(&first).filter(|bundle| !bundle.is_quiet);
        let handle = bundle.map(|bundle| {
            bundle.is_quiet = true;
            bundle.handle.clone()
        });
        handle.into_iter().for_each(|handle| self.have_delivered_soon(handle));
    }

    /// Lets go of the message of a settled bundle when nothing of it is left to be done here.
    fn finish_bundle(&mut self, first: ClusterTaskId) {
        let is_done = |bundle: &&HeldBundle| bundle.is_settled && bundle.open.is_empty();
        if self.bundles.get(&first).filter(is_done).is_none() {
            return;
        }
        let Some(HeldBundle { handle, let_go, is_to_return, .. }) = self.bundles.remove(&first) else { return };
        if self.bundle_changes.get(&first).is_some_and(|change| change.todo.is_empty() && !change.is_asked) {
            self.bundle_changes.remove(&first);
        }
        // What other nodes may have is left to be delivered again.
        if let_go.is_empty() {
            self.say(if is_to_return { Request::GiveBack(handle) } else { Request::Done(handle) });
        }
        self.pull();
    }

    /// Returns the deliveries of bundles that this node goes on with. One of which other nodes may have tasks is to be delivered again.
    pub(super) fn kept_bundles(&self) -> impl Iterator<Item = Handle> {
        self.bundles.values().filter(|bundle| bundle.let_go.is_empty()).map(|bundle| bundle.handle.clone())
    }

    /// Settles bundles whose tasks take much longer than was measured. Returns whether others are to be looked at soon.
    pub(super) fn hurry_bundles(&mut self, now_ns: u64) -> bool {
        let mut is_waiting = false;
        let mut slow = Vec::new();
        for (first, bundle) in &mut self.bundles {
            if !bundle.is_imported || bundle.is_settled || bundle.is_hurried {
                continue;
            }
            let seen_ns = *bundle.seen_ns.get_or_insert(now_ns);
            bundle.is_hurried = now_ns.saturating_sub(seen_ns) >= BUNDLE_WAIT_NS;
            if bundle.is_hurried {
                slow.push(*first);
            }
            is_waiting |= !bundle.is_hurried;
        }
        for first in slow {
            self.ask_bundle_back(first);
            self.consider_settling(first);
        }
        is_waiting
    }

    /// Has the head give back what it has not begun of a bundle.
    fn ask_bundle_back(&mut self, first: ClusterTaskId) {
        let Some(bundle) = self.bundles.get(&first) else { return };
        let here = bundle.open.iter().map(|place| member(first, place));
        let here: Vec<_> = here.filter(|id| self.held.get(id).is_some_and(|held| held.attempt.is_some())).collect();
        here.into_iter().for_each(|id| self.notify(ToHead::GiveBack(id)));
    }

    // ---- records of bundles -------------------------------------------------------------------------------------------

    /// Answers whoever has got a bundle that this node has claimed: if it does not run it, its record says so.
    pub(super) fn on_asked_for_bundle(&mut self, id: ClusterTaskId) {
        if self.bundles.contains_key(&id) || self.bundle_changes.len() >= QUESTIONS {
            return;
        }
        let change = self.bundle_changes.entry(id).or_default();
        if !change.todo.contains(&Wish::NotRun) {
            change.todo.push_back(Wish::NotRun);
        }
        self.resume_changing_bundle(id);
    }

    /// Takes the next step towards what is to be brought about in the record of a bundle.
    pub(super) fn resume_changing_bundle(&mut self, id: ClusterTaskId) {
        while let Some(change) = self.bundle_changes.get_mut(&id) {
            if change.is_asked || !self.is_reachable {
                return;
            }
            let Some(wish) = change.todo.front().cloned() else {
                // What is known of a record that this node does not hold grows old.
                if !self.bundles.contains_key(&id) {
                    self.bundle_changes.remove(&id);
                }
                return;
            };
            // It has come to this node since that was asked, and goes on under the same claim.
            if matches!(wish, Wish::NotRun) && self.bundles.contains_key(&id) {
                change.todo.pop_front();
                continue;
            }
            let Some(known) = &change.known else {
                (change.is_asked, change.sight) = (true, None);
                return self.ask(Asked::ReadBundle(id), Request::Read(RecordKey::Bundle(id)));
            };
            let (own, revision, record) = (self.settings.own, known.revision, known.record.clone());
            let standing = record.as_ref().and_then(BundleRecord::claim).filter(|claim| claim.holder != own);
            let sight = match (&wish, standing, change.sight) {
                (Wish::Deliver(..), Some(claim), None) => {
                    let holder = claim.holder.place;
                    change.is_asked = true;
                    return self.ask(Asked::BundleSight(id), Request::ReadHeartbeats(holder));
                }
                (_, _, sight) => sight.unwrap_or(Sight::MayLive),
            };
            let (event, collected) = self.event_of(id, &wish, sight);
            let changed = change_bundle(record.as_ref(), event);
            let Some(change) = self.bundle_changes.get_mut(&id) else { return };
            match changed {
                Ok(next) => {
                    (change.is_asked, change.collected) = (true, collected);
                    let (key, record) = (RecordKey::Bundle(id), next.encode());
                    return self.ask(Asked::SwapBundle(id, Box::new(next)), Request::Swap { key, revision, record });
                }
                Err(refusal) => {
                    change.todo.pop_front();
                    self.on_bundle_refused(id, &wish, refusal, record.as_ref());
                }
            }
        }
    }

    /// Returns the event of a wish as it is now, and the places of the tasks whose ends are in it.
    fn event_of(&self, id: ClusterTaskId, wish: &Wish, sight: Sight) -> (BundleEvent, Vec<u32>) {
        let own = self.settings.own;
        let event = match wish {
            Wish::Deliver(mark, terms, count) => {
                BundleEvent::Delivered { to: own, mark: mark.clone(), sight, terms: *terms, count: *count }
            }
            Wish::End(count) => {
                let outcome = |place: u32| {
                    let share = self.shares.get(&member(id, place).task)?;
                    let (outcome, _) = share.withdrawn.clone().filter(|_| share.bundle == Some(id.task))?;
                    Some((place, outcome))
                };
                BundleEvent::EndedUnbegun { ended: (0..*count).filter_map(outcome).collect(), count: *count }
            }
            Wish::Settle => {
                let (members, collected) = self.members(id);
                return (BundleEvent::Settled { by: own, members }, collected);
            }
            Wish::NotRun => BundleEvent::NotRun { by: own },
        };
        (event, Vec::new())
    }

    pub(super) fn on_bundle_read(&mut self, id: ClusterTaskId, answer: Answer) {
        let Some(change) = self.bundle_changes.get_mut(&id) else { return };
        change.is_asked = false;
        let Answer::Record(entry) = answer else { return };
        let (revision, stamp_ns) = entry.as_ref().map_or((None, 0), |entry| (Some(entry.revision), entry.stamp_ns));
        match entry.map(|entry| BundleRecord::decode(&entry.value)).transpose() {
            Ok(record) => change.known = Some(KnownBundle { revision, record, stamp_ns }),
            Err(error) => {
                // A node of a later version has it. What is to be brought about here waits for the next delivery.
                change.todo.retain(|wish| !matches!(wish, Wish::Deliver(..)));
                self.note_unread(RecordKey::Bundle(id), &error);
                return self.let_go_of_bundle(id);
            }
        }
        self.resume_changing_bundle(id);
    }

    pub(super) fn on_bundle_heartbeats(&mut self, id: ClusterTaskId, answer: Answer) {
        let Some(change) = self.bundle_changes.get_mut(&id) else { return };
        change.is_asked = false;
        let Answer::Heartbeats { of_other, own } = answer else {
            change.known = None;
            return;
        };
        let Some(known) = &change.known else { return };
        let Some(claim) = known.record.as_ref().and_then(BundleRecord::claim) else { return };
        let is_suspected = matches!(known.record, Some(BundleRecord::Suspected { .. }));
        let stamp_ns = is_suspected.then_some(known.stamp_ns);
        change.sight = Some(sight_of(&self.settings, claim.holder, stamp_ns, (of_other, own)));
        self.resume_changing_bundle(id);
    }

    pub(super) fn on_bundle_swapped(&mut self, id: ClusterTaskId, next: BundleRecord, answer: &Answer) {
        let Some(change) = self.bundle_changes.get_mut(&id) else { return };
        (change.is_asked, change.sight) = (false, None);
        let collected = std::mem::take(&mut change.collected);
        if let Answer::TooLarge(_) = answer {
            // Fewer outcomes go together; those that are left out go by themselves.
            self.outcomes_bytes /= 2;
            return self.resume_changing_bundle(id);
        }
        let Answer::Swapped(Some(revision)) = answer else {
            // Somebody else was faster, or nobody knows who was.
            change.known = None;
            return self.resume_changing_bundle(id);
        };
        let known = |record| Some(KnownBundle { revision: Some(*revision), record: Some(record), stamp_ns: 0 });
        let wish = change.todo.pop_front();
        if wish == Some(Wish::Settle) {
            // Nearly always nothing is left of it then, and nobody needs a copy of all outcomes.
            change.known = None;
            self.on_bundle_settled(id, Some(&next), (&collected, None));
            if let Some(change) = self.bundle_changes.get_mut(&id) {
                change.known = known(next);
            }
            return self.resume_changing_bundle(id);
        }
        change.known = known(next.clone());
        match (wish, &next) {
            (Some(Wish::Deliver(..)), BundleRecord::Claimed { claim, .. }) => self.import_bundle(id, claim),
            (Some(Wish::Deliver(mark, ..)), BundleRecord::Settled { .. }) => {
                self.on_bundle_settled(id, Some(&next), (&[], Some(&mark)));
            }
            // Its holder is heard of, or not, until it is delivered again.
            (Some(Wish::Deliver(..)), BundleRecord::Suspected { claim, .. }) => self.ask_bundle_holder(id, claim),
            (Some(Wish::End(_)), _) => self.on_shared_bundle(id, &next),
            (Some(Wish::Settle | Wish::NotRun) | None, _) => {}
        }
        self.resume_changing_bundle(id);
    }

    /// Notes that the record of a bundle refuses what was to be brought about: perhaps because it was already, and the answer was lost.
    fn on_bundle_refused(&mut self, id: ClusterTaskId, wish: &Wish, refusal: Refusal, record: Option<&BundleRecord>) {
        let claim = record.and_then(BundleRecord::claim);
        match (wish, refusal) {
            (Wish::Deliver(mark, ..), Refusal::HasEnded) => self.on_bundle_settled(id, record, (&[], Some(mark))),
            (Wish::Deliver(..), Refusal::HasIt) => {
                if let Some(claim) = claim {
                    self.import_bundle(id, claim);
                }
            }
            (Wish::Deliver(..), _) => {
                let Some(claim) = claim else { return };
                let is_quiet = self.bundle_changes.get(&id).is_some_and(|change| change.sight == Some(Sight::Quiet));
                let bundle = self.bundles.get(&id).filter(|bundle| is_quiet && !bundle.is_imported);
                let handle = bundle.map(|bundle| bundle.handle.clone());
                self.ask_bundle_holder(id, claim);
                handle.into_iter().for_each(|handle| self.have_delivered_soon(handle));
            }
            (Wish::End(count), Refusal::Begun) => {
                let Some(claim) = claim else { return };
                for place in 0..*count {
                    let task = member(id, place);
                    let share = self.shares.get_mut(&task.task).filter(|share| share.bundle == Some(id.task));
                    match share.map(|share| &mut **share) {
                        Some(Share { withdrawn: Some((_, Some(stop))), .. }) => {
                            let told = Told::Stop(task, *stop).encode();
                            self.say(Request::Tell(claim.holder.place, told));
                        }
                        // It has begun in time.
                        Some(share) => share.withdrawn = None,
                        None => {}
                    }
                    if let Some(share) = self.shares.get_mut(&task.task) {
                        share.taken_back = None;
                    }
                }
                // The head may not have heard of that.
                if let Some(record) = record {
                    self.on_shared_bundle(id, record);
                }
            }
            (Wish::End(_), _) => {
                if let Some(record) = record {
                    self.on_shared_bundle(id, record);
                }
            }
            // Another node has settled it, or has it now: what this one still runs counts if its own record says so.
            (Wish::Settle, _) => {
                let record = record.filter(|_| refusal == Refusal::HasEnded);
                self.on_bundle_settled(id, record, (&[], None));
            }
            (Wish::NotRun, _) => {}
        }
    }

    fn ask_bundle_holder(&mut self, id: ClusterTaskId, claim: &Claim) {
        self.say(Request::Tell(claim.holder.place, Told::DoYouRunBundle(id).encode()));
        self.let_go_of_bundle(id);
    }

    /// Leaves the message of a bundle to be delivered again, unless the head runs its tasks.
    fn let_go_of_bundle(&mut self, id: ClusterTaskId) {
        if self.bundles.get(&id).is_some_and(|bundle| !bundle.is_imported) {
            self.bundles.remove(&id);
        }
    }
}

impl HeldBundle {
    /// Returns the number of tasks that it was made of.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns whether there are tasks in its message, as far as that is known, that this node does not have.
    fn lacks_tasks(&self) -> bool {
        let is_lacking = |bytes: &[u8]| {
            BundleMessage::decode(bytes).is_ok_and(|all| all.tasks.iter().any(|task| !self.open.contains(task.place)))
        };
        self.open.len() < self.count as usize && self.message.as_ref().is_none_or(|message| is_lacking(message))
    }

    fn new(queue: Arc<str>, handle: Handle, terms: Terms, count: u32) -> HeldBundle {
        HeldBundle {
            queue,
            handle,
            terms,
            count,
            run_ns: u64::MAX,
            message: None,
            open: Places::default(),
            waiting: BTreeMap::new(),
            let_go: Places::default(),
            over: 0,
            bytes: 0,
            is_imported: false,
            is_settled: false,
            record: None,
            is_hurried: false,
            is_to_return: false,
            is_quiet: false,
            seen_ns: None,
        }
    }
}
