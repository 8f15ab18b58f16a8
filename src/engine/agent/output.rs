//! Output of followed tasks on both sides: the holder sends it to the origin, whose head shows it. Nobody waits for it.

use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::SharedOutput;

use super::{Agent, Effect, Request, ToHead};
use crate::message::Told;
use crate::output::OutputMessage;

impl Agent {
    /// Sends the origin of an import what that has written, unless nobody follows it any more.
    pub fn on_output(&mut self, id: ClusterTaskId, output: SharedOutput) {
        if self.held.get(&id).is_none_or(|held| held.attempt.is_none() || held.is_not_followed) {
            return;
        }
        let own = self.settings.own.place;
        let message = OutputMessage { id, place: own, node_id: self.settings.node_id.clone(), output };
        if id.place == own {
            return self.report_output(message);
        }
        if self.is_reachable {
            self.effects.push(Effect::SendOutput(id.place, message.encode()));
        }
    }

    /// Takes output that another node has sent.
    pub(super) fn on_output_told(&mut self, told: &[u8]) {
        if let Ok(message) = OutputMessage::decode(told)
            && message.id.place == self.settings.own.place
        {
            self.report_output(message);
        }
    }

    fn report_output(&mut self, message: OutputMessage) {
        let OutputMessage { id, place, node_id, output } = message;
        if self.is_open(id.task) {
            self.notify(ToHead::Output { task: id.task, place, node_id, output });
        }
    }

    /// Tells the node of a place that nobody follows the output of a task of this node any more.
    pub fn on_not_followed(&mut self, task: TaskId, place: PlaceId) {
        let id = self.id(task);
        if place == self.settings.own.place {
            return self.on_told_not_followed(id);
        }
        self.say(Request::Tell(place, Told::NotFollowed(id).encode()));
    }

    pub(super) fn on_told_not_followed(&mut self, id: ClusterTaskId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.is_not_followed = true;
        }
    }
}
