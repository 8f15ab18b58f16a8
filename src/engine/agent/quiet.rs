//! Holders that are about to count as silent. The message of what they hold comes again by itself one interval of redelivery after it was suspected, which is a
//! moment before the receiver was heard for so long: without what is here, a lost node would cost one interval more.

use tracer_core::ClusterTaskId;

use super::{Agent, Request};
use crate::interface::Handle;
use crate::record::Sight;

impl Agent {
    /// Leaves a message to be delivered again, unless the head runs its task: in a moment if its holder is quiet.
    pub(super) fn leave_to_be_delivered(&mut self, id: ClusterTaskId, sight: Sight) {
        if self.held.get(&id).is_none_or(|held| held.attempt.is_some()) {
            return;
        }
        let bundle = self.held.get(&id).and_then(|held| held.bundle);
        if sight == Sight::Quiet
            && let Some(first) = bundle
        {
            self.have_bundle_delivered_soon(first);
        }
        let held = self.remove_held(id, true);
        if let (Sight::Quiet, None, Some(held)) = (sight, bundle, held) {
            self.have_delivered_soon(held.handle);
        }
    }

    /// Has a message delivered again in a moment, before which this node is heard once more.
    pub(super) fn have_delivered_soon(&mut self, handle: Handle) {
        self.next_beat_ns = 0;
        self.is_due_soon = true;
        self.say(Request::GiveBackLater(handle));
    }
}
