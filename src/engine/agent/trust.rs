//! Refusals by nodes that trust some keys and not the one that has signed: the origin hears of it, and ends what cannot run there.

use tracer_core::task::{Failure, Refusal, RefusalCode, TaskId};
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::SharedEnd;

use super::Agent;
use crate::message::Distrust;

impl Agent {
    /// Notes that the node of a place has refused the message of a task of this node, or of its bundle, and has put it aside. The time is in nanoseconds since
    /// the Unix epoch. What this node has published is put into the queue again if somebody has altered it; else its tasks end, unless somebody has
    /// begun them.
    pub(super) fn on_message_refused(&mut self, id: ClusterTaskId, why: Distrust, by: PlaceId, now_unix_nano: u64) {
        if id.place != self.settings.own.place {
            return;
        }
        let first = id.task;
        let is_own = match why {
            Distrust::Unsigned => self.settings.signs_as.is_none(),
            Distrust::OfOther => self.settings.signs_as.is_some(),
            Distrust::Altered => false,
        };
        if !is_own {
            // Somebody else's stood in its place.
            return self.look_at_message_of(first);
        }
        let refusal = Refusal::new(RefusalCode::QueueRefused, refusal(by, self.settings.signs_as.as_deref()));
        let end = SharedEnd::unbegun(Failure::from(refusal), now_unix_nano);
        let is_apart = |task: &TaskId| self.shares.get(task).is_some_and(|share| share.is_apart);
        let mut tasks: Vec<_> = self.open_of(first).filter(|task| !is_apart(task)).collect();
        if tasks.is_empty() {
            tasks.push(first);
        }
        tasks.into_iter().for_each(|task| self.on_withdraw(task, end.encode(), None));
    }

    /// Has the record of a task looked at soon, or that of the bundle that begins with it, and its message put again if it has none.
    fn look_at_message_of(&mut self, first: TaskId) {
        if let Some(bundle) = self.shared_bundles.get_mut(&first) {
            bundle.is_old = true;
        } else if let Some(share) = self.shares.get_mut(&first) {
            share.is_old = true;
        }
    }
}

/// Returns what whoever has submitted a task is told of its refusal by the node of a place.
fn refusal(by: PlaceId, signs_as: Option<&str>) -> String {
    match signs_as {
        None => format!(
            "the node of place {by} runs nothing but what its trusted keys have signed, and this node's tasks are not signed\n\
             (hint: start this node with `--credentials FILE` of a user whose key that node trusts)"
        ),
        Some(key) => format!(
            "this node's tasks are signed by {key}, which the node of place {by} does not trust\n\
             (hint: start that node with `--trusted-key {key}` too, or this one with the credentials of a user that it trusts)"
        ),
    }
}
