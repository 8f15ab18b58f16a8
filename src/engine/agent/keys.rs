//! Idempotency keys that hold for the cluster. A task with a key is entered under it before it is published; where the key names another task already, this
//! node's task *follows* that one: it is told to the head as its own, and ends as it does.
//!
//! | who died in between | what the same submission finds, on any node |
//! |---|---|
//! | the origin, before the key was entered | no key: it is entered, and the task is published |
//! | the origin, after the key and before the message | the key, no record: the task is published under the id that the key names |
//! | the origin, after the message; the holder | the key: whoever follows hears of the end by the record |
//!
//! Who follows publishes under the id of the other one, so it is one message, one record and one run whoever does so first.

use tracer_core::ClusterTaskId;
use tracer_core::task::TaskId;

use super::{Agent, Asked, NotStored, ToHead};
use crate::interface::{Answer, Key, PutError, Request};
use crate::message::{KeyEntry, with_origin};

/// The key of a share.
#[derive(Debug)]
pub(super) struct SharedKey {
    key: Key,
    /// True once it is known which task it names.
    is_known: bool,
    /// True if the message is to be put where it is missing; only now and then where the key names another task, whose origin sees to it.
    puts: bool,
}

impl From<Key> for SharedKey {
    fn from(key: Key) -> SharedKey {
        SharedKey { key, is_known: false, puts: true }
    }
}

impl Agent {
    /// Returns the id of a task of this node: that which its key names, if it has one.
    pub(super) fn id(&self, task: TaskId) -> ClusterTaskId {
        self.follows.get(&task).copied().unwrap_or(ClusterTaskId { place: self.settings.own.place, task })
    }

    /// Returns the task of this node that has an id, if one has.
    pub(super) fn task_of(&self, id: ClusterTaskId) -> Option<TaskId> {
        self.followed.get(&id).copied().or_else(|| (id.place == self.settings.own.place).then_some(id.task))
    }

    /// Asks for the task that the key of a share names, if that is not known. True if nothing else may be done before.
    pub(super) fn asks_for_key(&mut self, task: TaskId) -> bool {
        let id = self.id(task);
        let Some(share) = self.shares.get_mut(&task) else { return false };
        let Some(SharedKey { key, is_known: false, .. }) = share.key.as_deref() else { return false };
        let entry = KeyEntry { key: &key.name, fingerprint: key.fingerprint, id }.encode();
        let key = key.name.clone();
        share.is_asked = true;
        self.ask(Asked::Key(task), Request::EnterKey { key, entry });
        true
    }

    /// Takes in which task the key of a share names.
    pub(super) fn on_key(&mut self, task: TaskId, answer: Answer) {
        let own = self.id(task);
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        let may_refuse = !share.was_tried && !share.is_stored;
        let Some(SharedKey { key, is_known, .. }) = share.key.as_deref_mut() else { return };
        let entry = match &answer {
            Answer::Key(Ok(entry)) => KeyEntry::decode(entry).map_err(|error| error.to_string()),
            Answer::Key(Err(why)) if may_refuse => return self.refuse(task, why.clone()),
            // It is asked again.
            _ => return,
        };
        match entry {
            Ok(entry) if entry.key == key.name && entry.fingerprint == key.fingerprint => {
                *is_known = true;
                if entry.id != own {
                    return self.follow(task, entry.id);
                }
            }
            Ok(entry) if may_refuse => {
                self.remove_share(task);
                return self.notify(ToHead::NotStored(task, NotStored::KeyTaken(entry.key.into(), entry.id)));
            }
            Err(problem) if may_refuse => {
                let why = format!("the entry of its idempotency key cannot be read: {problem}");
                return self.refuse(task, PutError::Refused(why));
            }
            // It was accepted longer ago than keys are kept.
            Ok(_) | Err(_) => *is_known = true,
        }
        self.resume_sharing(task);
    }

    /// Has a task of this node be the one that its key names.
    fn follow(&mut self, task: TaskId, id: ClusterTaskId) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        match with_origin(&share.message, id) {
            Ok(message) => share.message = message,
            Err(error) => return self.refuse(task, PutError::Refused(format!("its message cannot be read: {error}"))),
        }
        // The other one is there, or was.
        (share.is_sent, share.is_old) = (true, true);
        self.follows.insert(task, id);
        self.followed.insert(id, task);
        self.resume_sharing(task);
    }

    /// Forgets which task one of this node follows.
    pub(super) fn follow_no_more(&mut self, task: TaskId) {
        if let Some(id) = self.follows.remove(&task) {
            self.followed.remove(&id);
        }
    }

    /// Has the tasks looked at that those of this node follow: the records of other places are not watched.
    pub(super) fn look_at_followed(&mut self) {
        for task in self.follows.keys() {
            if let Some(share) = self.shares.get_mut(task) {
                share.is_old = true;
            }
        }
    }

    /// Has the message of a task put again when it is looked at next, if it follows one.
    pub(super) fn puts_again(&mut self, task: TaskId) {
        if let Some(key) = self.shares.get_mut(&task).and_then(|share| share.key.as_mut()) {
            key.puts = true;
        }
    }

    /// Returns whether the message of a share that was looked at is put; once, where it follows another task.
    pub(super) fn takes_put(&mut self, task: TaskId) -> bool {
        let key = self.shares.get_mut(&task).and_then(|share| share.key.as_mut());
        match key.filter(|_| self.follows.contains_key(&task)) {
            Some(key) => std::mem::take(&mut key.puts),
            None => true,
        }
    }
}
