//! The agent as holder: it pulls tasks for the free slots of its head, claims them, has their arguments brought, and hands them over.

use std::sync::Arc;

use tracer_core::codec::WireError;
use tracer_core::count::Size;
use tracer_core::task::{Charge, Outcome};
use tracer_core::{ClusterTaskId, Stored};
use tracer_ipc::protocol::SharedEnd;

use super::records::Known;
use super::run_times::Function;
use super::{Agent, Asked, Effect, Import, TRIES, TURNS, ToHead, Token, UNREAD, too_large};
use crate::interface::{Answer, Dead, Delivery, Handle, RecordKey, Request, Tier, ValueError, ValueKey, ValueSource};
use crate::message::{BundleMessage, TaskMessage, Told, value_of, with_files, without_value};
use crate::record::{Claim, Event, Mark, Record, Sight, Terms};

/// A claim whose arguments are to be got.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pub(super) claim: Claim,
    pub(super) values: Vec<ValueKey>,
    /// Files of those that are there, in the same order.
    pub(super) files: Vec<String>,
    pub(super) tries: u32,
    pub(super) is_asked: bool,
}

/// A result that is to go into the engine before the record names it.
#[derive(Debug)]
pub(super) struct Giving {
    pub(super) attempt: u32,
    pub(super) shared: SharedEnd,
    pub(super) stored: Stored,
    pub(super) is_asked: bool,
}

/// A message that this node has, whose task it claims or runs.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) queue: Arc<str>,
    pub(super) handle: Handle,
    pub(super) terms: Terms,
    /// Its message, until the head has it.
    pub(super) message: Option<Vec<u8>>,
    /// The attempt that this node is at, once the head has it.
    pub(super) attempt: Option<u32>,
    /// Slots that it takes.
    pub(super) slots: usize,
    /// Its function, if its run time is measured here.
    pub(super) function: Option<Function>,
    /// True if the head has it because it is short, whether or not a slot was free.
    pub(super) is_short: bool,
    /// Time at which that was looked at last, in nanoseconds of the monotonic clock.
    pub(super) seen_ns: Option<u64>,
    /// The claim, while its arguments are on the way.
    pub(super) fetch: Option<Box<Fetch>>,
    /// True if it is one of this node that was taken back: it runs in a worker that waits for it, and takes no slot of its queue.
    pub(super) is_taken_back: bool,
    /// The bundle that it came in, by its first task.
    pub(super) bundle: Option<ClusterTaskId>,
    /// State of it as its bundle says, as long as there is no record of its own.
    pub(super) base: Option<Box<Record>>,
    /// True once its origin has said that nobody follows its output.
    pub(super) is_not_followed: bool,
}

impl Held {
    pub(super) fn new(queue: &Arc<str>, handle: &Handle, terms: Terms) -> Held {
        Held {
            queue: queue.clone(),
            handle: handle.clone(),
            terms,
            message: None,
            attempt: None,
            slots: 1,
            function: None,
            is_short: false,
            seen_ns: None,
            fetch: None,
            // What is taken back came with no delivery.
            is_taken_back: handle.0.is_empty(),
            bundle: None,
            base: None,
            is_not_followed: false,
        }
    }
}

/// Pulls from a queue.
#[derive(Debug, Default)]
pub(super) struct Pulling {
    /// The pulls that go on, each with whether it waits.
    pub(super) going: Vec<(Tier, bool)>,
    /// True if one part was looked into, and had less than there was room for.
    pub(super) has_looked: bool,
    /// Number of the next turn among [`TURNS`].
    pub(super) turn: usize,
}

impl Agent {
    /// Takes what the head says of its slots: how many there are and how many are free, and the number of imports that it had been told of by then.
    pub fn on_free(&mut self, slots: usize, free: usize, told: u64) {
        (self.slots, self.free, self.told_then) = (slots, free, told);
        self.demands.forget_seen(self.told - told.min(self.told));
        self.is_full_of_singles &= free == 0;
        self.pull();
    }

    /// Returns for how many messages there is room.
    pub(super) fn room(&self) -> usize {
        self.free_room().max(self.room_ahead())
    }

    /// Returns for how many messages there are free slots.
    pub(super) fn free_room(&self) -> usize {
        let on_the_way = self.demands.slots_on_the_way();
        let is_claiming = |held: &&Held| held.attempt.is_none();
        let claiming = self.held.alone().filter(is_claiming).map(|held| held.slots).sum::<usize>();
        let claiming = claiming + self.bundles_being_claimed();
        self.free.saturating_sub(on_the_way).saturating_sub(claiming)
    }

    pub(super) fn pull(&mut self) {
        if self.room() == 0 || !self.is_reachable || self.is_stopping {
            return;
        }
        for at in 0..self.settings.queues.len() {
            let queue = &self.settings.queues[at].0;
            let count = self.room_of(queue);
            if count > 0 && !self.modules.leaves(queue) {
                self.pull_from(queue.clone(), count);
            }
        }
    }

    /// Goes on with the turn of a queue: what is there in one part and then in the others, and where there was less than there is room for, what comes within
    /// a while. A part that is pulled from since before has nothing that waits.
    fn pull_from(&mut self, queue: String, count: usize) {
        let pulling = self.pulling.entry(queue.clone()).or_default();
        if pulling.going.iter().any(|(_, waits)| !waits) {
            return;
        }
        let parts = Tier::served(self.settings.shared_commands);
        let asked: Vec<_> = if pulling.has_looked || !pulling.going.is_empty() {
            let is_asked = |tier: &Tier| pulling.going.iter().any(|(going, _)| going == tier);
            parts.iter().filter(|tier| !is_asked(tier)).map(|tier| (*tier, true)).collect()
        } else {
            let first = TURNS[pulling.turn];
            pulling.turn = (pulling.turn + 1) % TURNS.len();
            vec![(if parts.contains(&first) { first } else { Tier::First }, false)]
        };
        pulling.has_looked = false;
        pulling.going.extend(&asked);
        for (tier, waits) in asked {
            self.ask(
                Asked::Pull(queue.clone(), tier, waits),
                Request::Pull { queue: queue.clone(), tier, count, waits },
            );
        }
    }

    pub(super) fn on_pulled(&mut self, queue: String, tier: Tier, waits: bool, answer: &Answer) {
        let pulling = self.pulling.entry(queue).or_default();
        pulling.going.retain(|going| *going != (tier, waits));
        // What cannot be reached is not asked again at once.
        if *answer != Answer::Unreachable {
            pulling.has_looked = !waits;
            self.pull();
            // If there is no room left, the next turn begins anew.
            self.pulling.values_mut().for_each(|pulling| pulling.has_looked = false);
        }
    }

    /// Returns for how many messages of a queue there is room.
    pub(super) fn room_of(&self, queue: &str) -> usize {
        self.room_by_slots(queue).min(self.room_by_bound(queue))
    }

    /// Returns the same, as far as it depends on slots.
    fn room_by_slots(&self, queue: &str) -> usize {
        let most = self.most_of(queue);
        if most >= self.slots {
            return self.room();
        }
        // The tasks of one bundle take as many slots as the queue may.
        match self.bundles.values().any(|bundle| *bundle.queue == *queue) {
            true => 0,
            false => self.room().min(most.saturating_sub(self.alone(queue))),
        }
    }

    /// Returns the most slots that tasks of a queue take.
    pub(super) fn most_of(&self, queue: &str) -> usize {
        self.settings.queues.iter().find(|(name, _)| name == queue).map_or(0, |(_, slots)| *slots)
    }

    /// Returns whether a queue may have all slots of this node, and its tasks ask for one each.
    fn is_unlimited(&self, queue: &str) -> bool {
        self.most_of(queue) >= self.slots && self.room_by_bound(queue) == usize::MAX
    }

    /// Returns the number of tasks of a queue that this node has, that came by themselves, and that take slots.
    pub(super) fn alone(&self, queue: &str) -> usize {
        let is_of_queue = |held: &&Held| !held.is_taken_back && *held.queue == *queue;
        self.held.alone().filter(is_of_queue).count()
    }

    /// Takes a message that a pull has brought. The time is in nanoseconds since the Unix epoch.
    pub fn on_delivered(&mut self, delivery: Delivery, now_unix_nano: u64) {
        if BundleMessage::is_one(&delivery.message) {
            return self.on_bundle_delivered(delivery, now_unix_nano);
        }
        let Delivery { queue, handle, id, message, is_again } = delivery;
        let (terms, (asks_for, function)) = match TaskMessage::decode(&message) {
            Ok(message) => (message.terms, self.look_into(&message)),
            Err(error) => return self.put_aside(Delivery { queue, handle, id, message, is_again }, &error),
        };
        let is_held = self.held.contains_key(&id);
        // One of which nobody knows that it is short takes a free slot.
        let is_short = self.run_times.short_ns(function).is_some();
        let is_ahead = self.free_room() == 0 && !is_short;
        // Parts of a queue are asked side by side: of what is short a little too much may come, and giving it back would only change the order.
        let has_room = self.room_of(&queue) > 0 || (is_short && self.is_unlimited(&queue));
        if self.is_stopping || (!is_held && (is_ahead || !has_room)) {
            self.is_full_of_singles |= is_ahead;
            self.ahead.narrow();
            return self.say(Request::GiveBack(handle));
        }
        if is_short {
            self.ahead.widen();
        }
        if !is_held && !is_short && !self.has_free(&asks_for) {
            return self.give_back_later(handle);
        }
        let held = self.held.get_or_insert_with(id, || Held::new(&queue.into(), &handle, terms));
        // The delivery before it is over.
        held.handle = handle;
        held.slots = (asks_for.num_cpus as usize).max(1);
        held.function = function;
        if held.attempt.is_none() {
            held.message = Some(message);
        }
        let to = self.settings.own;
        let change = self.changes.get_or_default(id);
        if change.todo.iter().any(|event| matches!(event, Event::Delivered { .. })) {
            return;
        }
        if !change.is_asked && (is_again || change.known.is_some()) {
            change.known = None;
        }
        if !is_again && !change.is_asked && change.todo.is_empty() {
            // Nearly always nobody has it; if somebody does, that is found out by trying.
            change.known = Some(Known { revision: None, record: None, stamp_ns: 0 });
        }
        let mark = Mark { node_id: self.settings.node_id.clone(), unix_nano: now_unix_nano };
        change.todo.push_back(Event::Delivered { to, mark, sight: Sight::MayLive, terms });
        self.resume_changing(id);
    }

    /// Has a message put aside that a pull has brought, and that is of no task or is not to be run here.
    pub fn on_dead(&mut self, dead: Dead) {
        self.say(Request::PutAside(dead));
    }

    /// Has a message put aside that cannot be read: its queue is not to wait for it. Its origin, if it has one, puts another one in its place.
    pub(super) fn put_aside(&mut self, Delivery { queue, handle, id, message, .. }: Delivery, error: &WireError) {
        let reason = format!("it cannot be read: {error}");
        self.on_dead(Dead { queue, handle, name: id.to_string(), message, reason });
    }

    /// Says of a record that it cannot be read; once.
    pub(super) fn note_unread(&mut self, key: RecordKey, error: &WireError) {
        if self.unread.len() < UNREAD && self.unread.insert(key) {
            let (kind, id) = match key {
                RecordKey::Task(id) => ("task", id),
                RecordKey::Bundle(id) => ("bundle", id),
            };
            self.notify(ToHead::Log(format!("the record of {kind} {id} cannot be read: {error}")));
        }
    }

    /// Takes a task that the head runs since before this agent: its token, and the attempt that it is at.
    pub fn on_import_open(&mut self, token: Token, attempt: u32) {
        if let Some(bundle) = token.bundle {
            self.on_bundled_import_open(bundle, &token);
        }
        let Token { id, queue, handle, terms, bundle } = token;
        let bundle = bundle.map(|(first, _)| ClusterTaskId { task: first, ..id });
        let held = Held { attempt: Some(attempt), bundle, ..Held::new(&queue, &handle, terms) };
        self.held.insert(id, held);
    }

    /// Notes that an attempt of an import has failed and the head goes on with the next one. The time is in nanoseconds since the Unix epoch.
    pub fn on_attempt_failed(
        &mut self,
        id: ClusterTaskId,
        attempt: u32,
        (charge, report): (Charge, Vec<u8>),
        unix_nano: u64,
    ) {
        if let Some(held) = self.held.get_mut(&id) {
            held.attempt = Some(attempt + 1);
        }
        let by = self.settings.own;
        self.bring_about(id, Event::AttemptFailed { by, attempt, charge, report, unix_nano });
    }

    /// Notes that the head has written spans that stand in for those of the lost attempts before this one.
    pub fn on_stood_in(&mut self, id: ClusterTaskId, attempt: u32) {
        let by = self.settings.own;
        self.bring_about(id, Event::StoodIn { by, attempt });
    }

    /// Notes that an import has an outcome.
    pub fn on_import_ended(&mut self, id: ClusterTaskId, attempt: u32, outcome: Vec<u8>) {
        if let Some((shared, stored)) = value_of(&outcome) {
            self.giving.insert(id, Giving { attempt, shared, stored, is_asked: false });
            return self.resume_giving(id);
        }
        self.note_run_time(self.held.get(&id).and_then(|held| held.function), SharedEnd::run_ns(&outcome));
        let by = self.settings.own;
        self.bring_about(id, Event::Outcome { by, attempt, outcome });
    }

    /// Puts a result into the engine.
    pub(super) fn resume_giving(&mut self, id: ClusterTaskId) {
        let Some(giving) = self.giving.get_mut(&id).filter(|giving| self.is_reachable && !giving.is_asked) else {
            return;
        };
        giving.is_asked = true;
        let (attempt, source) = (giving.attempt, ValueSource::File(giving.stored.clone()));
        self.ask(Asked::PutResult(id, attempt), Request::PutValue { id, attempt, source });
    }

    pub(super) fn on_result_put(&mut self, id: ClusterTaskId, attempt: u32, answer: Answer) {
        if self.giving.get(&id).is_none_or(|giving| giving.attempt != attempt) {
            return;
        }
        let Some(mut giving) = self.giving.remove(&id) else { return };
        let bytes = giving.stored.bytes;
        let outcome = match answer {
            Answer::ValuePut(Ok(digest)) => {
                let mut shared = giving.shared;
                (shared.outcome, shared.digest) =
                    (Outcome::Stored(Stored { name: String::new(), bytes }), Some(digest));
                shared.encode()
            }
            Answer::ValuePut(Err(why)) => {
                let message = format!("the result, of {}, is not taken by the engine: {why}", Size(bytes));
                without_value(&giving.shared, message)
            }
            // It is tried again.
            _ => {
                giving.is_asked = false;
                self.giving.insert(id, giving);
                return;
            }
        };
        let by = self.settings.own;
        self.bring_about(id, Event::Outcome { by, attempt, outcome });
    }

    /// Notes that the head lets go of an import, which another node is to run.
    pub fn on_import_given_back(&mut self, id: ClusterTaskId, attempt: u32, has_begun: bool) {
        // Ahead of free slots nothing is taken that this head would give back too.
        self.is_full_of_singles |= !has_begun && !self.is_stopping;
        let by = self.settings.own;
        self.bring_about(id, Event::GivenBack { by, attempt, has_begun });
    }

    /// Notes that the head ends: nothing is pulled any more.
    pub fn on_stopping(&mut self) {
        self.is_stopping = true;
        self.say(Request::StopPulling);
        self.let_go_of_unimported();
    }

    /// Returns whether a node that stops has nothing of any queue any more, and nothing on the way.
    pub(super) fn has_let_go(&self) -> bool {
        let is_empty = self.held.len() == 0 && self.bundles.is_empty();
        is_empty && self.pulling.values().all(|pulling| pulling.going.is_empty()) && self.is_settled()
    }

    /// Gives back what this node has claimed and the head was not told of yet.
    pub(super) fn let_go_of_unimported(&mut self) {
        let fetching = self.held.iter().filter_map(|(id, held)| Some((id, held.fetch.as_ref()?.claim.attempt)));
        let fetching: Vec<_> = fetching.collect();
        for (id, attempt) in fetching.into_iter().chain(self.waiting_in_bundles()) {
            self.on_import_given_back(id, attempt, false);
        }
    }

    pub(super) fn on_given_back(&mut self, id: ClusterTaskId) {
        self.notify(ToHead::Settled(id, 1));
        let bundle = self.held.get(&id).and_then(|held| held.bundle);
        let of_bundle = bundle.and_then(|first| self.return_bundle(first));
        let is_let_go = of_bundle.is_some();
        let alone = self.remove_held(id, is_let_go).filter(|held| held.bundle.is_none()).map(|held| held.handle);
        if let Some(handle) = of_bundle.or(alone) {
            self.say(Request::GiveBack(handle));
        }
    }

    /// Lets go of a task, and of arguments that have come for it. Of one in a bundle it is said whether other nodes may have it.
    pub(super) fn remove_held(&mut self, id: ClusterTaskId, is_let_go: bool) -> Option<Held> {
        let mut held = self.held.remove(&id)?;
        let files = held.fetch.take().map(|fetch| fetch.files).unwrap_or_default();
        self.effects.extend(files.into_iter().map(Effect::RemoveFile));
        match held.bundle {
            Some(first) => self.remove_from_bundle(first, id, is_let_go),
            // The queue may have had no room beside it.
            None => self.pull(),
        }
        Some(held)
    }

    /// Hands a task to the head that this node has claimed, once its large arguments are here.
    pub(super) fn import(&mut self, id: ClusterTaskId, claim: Claim) {
        let max = self.settings.max_value;
        let is_to_run = self.held.get(&id).is_some_and(|held| held.attempt.is_none()) && !self.is_given_back(id);
        if is_to_run && self.is_stopping {
            // Its claim was on the way when the stop began.
            return self.on_import_given_back(id, claim.attempt, false);
        }
        if !is_to_run || self.puts_off(id, &claim) {
            return;
        }
        let Some(held) = self.held.get_mut(&id) else { return };
        if let Some(fetch) = &mut held.fetch {
            fetch.claim = claim;
            return;
        }
        let values = held.message.as_deref().map(|message| TaskMessage::decode(message)?.values(id));
        let problem = match values {
            Some(Ok(values)) => match values.iter().find(|value| value.bytes > max) {
                Some(value) => Some(too_large("an argument", value.bytes, max)),
                None if values.is_empty() => None,
                None => {
                    held.fetch = Some(Box::new(Fetch { claim, values, files: Vec::new(), tries: 0, is_asked: false }));
                    return self.resume_fetching(id);
                }
            },
            Some(Err(error)) => Some(format!("this node cannot read which arguments it has: {error}")),
            None => return,
        };
        self.hand_over(id, claim, Vec::new(), problem);
    }

    /// Returns whether this node is about to give a task back: by then it is anybody's, and it is claimed again before it runs here.
    fn is_given_back(&self, id: ClusterTaskId) -> bool {
        let is_it = |event: &Event| matches!(event, Event::GivenBack { .. });
        self.changes.get(&id).is_some_and(|change| change.todo.iter().any(is_it))
    }

    fn hand_over(&mut self, id: ClusterTaskId, claim: Claim, files: Vec<String>, problem: Option<String>) {
        let is_given_back = self.is_given_back(id);
        if is_given_back || self.hearing.is_cut_off() {
            self.effects.extend(files.into_iter().map(Effect::RemoveFile));
            if !is_given_back {
                self.on_import_given_back(id, claim.attempt, false);
            }
            return;
        }
        let Some(held) = self.held.get_mut(&id) else { return };
        let Some(message) = held.message.take() else { return };
        let Ok(TaskMessage { submitted_unix_nano, envelope, .. }) = TaskMessage::decode(&message) else { return };
        let envelope = match files.is_empty() {
            true => envelope.into(),
            false => with_files(envelope, files).unwrap_or_default(),
        };
        held.attempt = Some(claim.attempt);
        // What was taken back stays so for the next agent, also if its message has come meanwhile.
        let handle = if held.is_taken_back { Handle("".into()) } else { held.handle.clone() };
        let (queue, terms) = (held.queue.clone(), held.terms);
        let of_bundle = held.bundle.and_then(|first| Some((first.task, self.bundles.get(&first)?.count())));
        self.told += 1;
        self.demands.note_told(held.slots);
        held.is_short = self.run_times.short_ns(held.function).is_some();
        self.is_due_soon |= held.is_short;
        let token = Token { id, queue, handle, terms, bundle: of_bundle };
        self.notify(ToHead::Import(Import { token, claim, submitted_unix_nano, envelope, problem }));
    }

    /// Gets the next large argument of a task that this node has claimed.
    pub(super) fn resume_fetching(&mut self, id: ClusterTaskId) {
        let fetch = self.held.get_mut(&id).and_then(|held| held.fetch.as_mut());
        let Some(fetch) = fetch.filter(|fetch| self.is_reachable && !fetch.is_asked) else { return };
        let Some(key) = fetch.values.get(fetch.files.len()) else { return };
        fetch.is_asked = true;
        let key = key.clone();
        self.ask(Asked::GetArgument(id, key.clone()), Request::GetValue(key));
    }

    pub(super) fn on_argument_got(&mut self, id: ClusterTaskId, key: &ValueKey, answer: Answer) {
        let fetch = self.held.get_mut(&id).and_then(|held| held.fetch.as_mut());
        // It may be that of a delivery before, which was let go of.
        let fetch = fetch.filter(|fetch| fetch.values.get(fetch.files.len()) == Some(key));
        let Some(fetch) = fetch else { return self.remove_file(answer) };
        fetch.is_asked = false;
        let why = match answer {
            Answer::ValueGot(Ok(name)) => {
                fetch.files.push(name);
                if fetch.files.len() < fetch.values.len() {
                    return self.resume_fetching(id);
                }
                None
            }
            Answer::ValueGot(Err(why)) => {
                fetch.tries += 1;
                if !matches!(why, ValueError::Damaged(_)) && fetch.tries < TRIES {
                    if why == ValueError::Missing {
                        self.say(Request::Tell(id.place, Told::NeedsValues(id).encode()));
                    }
                    return;
                }
                Some(why)
            }
            _ => return,
        };
        let fetch = self.held.get_mut(&id).and_then(|held| held.fetch.take());
        let Some(Fetch { claim, values, mut files, .. }) = fetch.map(|fetch| *fetch) else { return };
        let problem = why.map(|why| {
            let bytes = Size(values.get(files.len()).map_or(0, |value| value.bytes));
            self.effects.extend(files.drain(..).map(Effect::RemoveFile));
            format!("an argument of {bytes} cannot be had: {why}\n(hint: submit the task again)")
        });
        self.hand_over(id, claim, files, problem);
    }

    /// Removes the message of a task that has ended.
    pub(super) fn acknowledge(&mut self, id: ClusterTaskId) {
        if let Some(held) = self.remove_held(id, false).filter(|held| held.bundle.is_none()) {
            self.say(Request::Done(held.handle));
        }
    }

    /// Leaves a message to be delivered again, unless the head runs its task.
    pub(super) fn let_go_of(&mut self, id: ClusterTaskId) {
        if self.held.get(&id).is_some_and(|held| held.attempt.is_none()) {
            self.remove_held(id, true);
        }
    }
}
