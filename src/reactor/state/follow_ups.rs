//! Follow-ups: what an end brings about elsewhere, noted where it happens and done with the next turn.
//!
//! The end of a task ends no other task itself: it notes what follows, and `follow_up` does that in one loop. So each function that ends
//! something leaves a state without contradictions, however long the chain behind it is.

use std::collections::VecDeque;

use tracer_core::task::{Failure, JobId, TaskId};

/// Consequence of an end.
#[derive(Debug)]
pub(crate) enum FollowUp {
    /// Fails a held task: an argument will not come, or its actor is dead.
    InputFailed(TaskId, Failure),
    /// Cancels a task, because the one that has submitted it did not get to its end.
    Abandoned(TaskId),
    /// Ends the actors of a job that is over.
    JobGone(JobId),
    /// Gives up the file of a value that nobody needs any more.
    ValueUnused(String),
    /// Notes when an actor died.
    ActorDied(TaskId),
    /// Leases calls to an actor that may be leased some.
    ActorReady(TaskId),
}

/// Queue of follow-ups, each in the order in which it was noted.
#[derive(Debug, Default)]
pub(crate) struct FollowUps {
    ends: VecDeque<FollowUp>,
    ready: VecDeque<TaskId>,
}

impl FollowUps {
    /// Notes one.
    pub(crate) fn push(&mut self, follow_up: FollowUp) {
        match follow_up {
            FollowUp::ActorReady(actor) => self.ready.push_back(actor),
            end => self.ends.push_back(end),
        }
    }

    /// Takes out the next one. Ends come before leases: no worker is given what is about to end.
    pub(crate) fn pop(&mut self) -> Option<FollowUp> {
        self.ends.pop_front().or_else(|| self.ready.pop_front().map(FollowUp::ActorReady))
    }

    /// Takes out the files of values that nobody needs any more.
    pub(crate) fn take_unused_values(&mut self) -> Vec<String> {
        let (mut names, ends) = (Vec::new(), std::mem::take(&mut self.ends));
        for end in ends {
            match end {
                FollowUp::ValueUnused(name) => names.push(name),
                other => self.ends.push_back(other),
            }
        }
        names
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.ready.is_empty()
    }
}
