//! Attempts of this node that count for nothing any more: it was stopped or away for so long that another one has taken them over, or somebody has ended them.
//! Their outcomes would change nothing, so their processes are ended.

use tracer_core::ClusterTaskId;
use tracer_core::count::Count;
use tracer_ipc::protocol::Stop;

use super::{Agent, Asked, ToHead};
use crate::bundle::{BundleRecord, member};
use crate::interface::{Answer, RecordKey, Request};
use crate::record::{End, Holder, Record};

impl Agent {
    /// Has the records read of all that the head runs, because this node was not heard for a while.
    pub(super) fn look_for_superseded(&mut self) {
        let runs_alone = |id: &ClusterTaskId| {
            self.held.get(id).is_some_and(|held| held.attempt.is_some()) && self.whole_bundle_of(*id).is_none()
        };
        let alone = self.held.keys().filter(runs_alone).map(RecordKey::Task);
        let whole = self.whole_bundles().map(RecordKey::Bundle);
        for key in alone.chain(whole).collect::<Vec<_>>() {
            self.ask(Asked::IsSuperseded(key), Request::Read(key));
        }
    }

    /// Takes such a record in. One that the engine has lost says nothing.
    pub(super) fn on_standing_read(&mut self, key: RecordKey, answer: Answer) {
        let Answer::Record(Some(entry)) = answer else { return };
        let own = self.settings.own;
        match key {
            RecordKey::Task(id) => {
                let Ok(record) = Record::decode(&entry.value) else { return };
                if is_of_another(&record, own) {
                    if self.stop_superseded(id) {
                        let why = "another node has taken it over, or it has ended";
                        self.notify(ToHead::Log(format!("task {id} is ended here: {why}")));
                    }
                } else if record.claim().is_some_and(|claim| claim.wish.is_some())
                    && self.held.get(&id).is_some_and(|held| held.attempt.is_some())
                {
                    // Whoever cancelled it did not reach this node.
                    self.notify(ToHead::Stop(id, Stop::default()));
                }
            }
            RecordKey::Bundle(first) => {
                let Ok(record) = BundleRecord::decode(&entry.value) else { return };
                // This node has not settled it.
                let is_of_another = record.claim().is_none_or(|claim| claim.holder != own);
                if is_of_another && self.whole_bundles().any(|whole| whole == first) {
                    let ended = (0..record.count()).filter(|place| self.stop_superseded(member(first, *place))).count();
                    if ended > 0 {
                        let (tasks, why) = (Count(ended, "task"), "another node has taken it over, or all have ended");
                        self.notify(ToHead::Log(format!("{tasks} of the bundle {first} ended here: {why}")));
                    }
                }
            }
        }
    }

    /// Has the head end a task, and returns whether it has it.
    fn stop_superseded(&mut self, id: ClusterTaskId) -> bool {
        let is_here = self.held.get(&id).is_some_and(|held| held.attempt.is_some());
        if is_here {
            self.hurry_bundle_of(id);
            self.notify(ToHead::Superseded(id));
        }
        is_here
    }
}

/// Returns whether a record says that a task is not this node's any more.
fn is_of_another(record: &Record, own: Holder) -> bool {
    match record {
        Record::Claimed(claim) | Record::Suspected { claim, .. } => claim.holder != own,
        Record::GivenBack { .. } => false,
        Record::Ended(End::Outcome { holder, .. }) => *holder != Some(own),
        Record::Ended(End::Lost(_) | End::NodesLost(_)) => true,
    }
}
