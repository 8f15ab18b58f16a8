//! Run times of functions at this node, as the ends of their tasks tell: short tasks that come by themselves are taken ahead of free slots too, so that no
//! slot waits for a claim.

use std::collections::BTreeMap;

use tracer_core::queue::QueueBound;
use tracer_core::task::{Envelope, FunctionSpec, TaskSpec};

use super::bundles::AHEAD;
use super::{Agent, ToHead};
use crate::agent::bundles::BUNDLE_WAIT_NS;
use crate::message::TaskMessage;

/// Limit on the functions whose run times are known.
const FUNCTIONS: usize = 1_024;
/// Longest expected run time of a task that is taken ahead of a free slot, in nanoseconds.
const SHORT_NS: u64 = 5_000_000;

/// A function in a table of run times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function(usize);

/// Expected run times of functions.
#[derive(Debug, Default)]
pub(super) struct RunTimes {
    by_name: BTreeMap<(String, String), Function>,
    /// Moving averages in nanoseconds; none of a function that has not run.
    expected: Vec<Option<u64>>,
}

impl RunTimes {
    /// Returns the function of a task, unless there are too many.
    fn function(&mut self, spec: &FunctionSpec<'_>) -> Option<Function> {
        let name = (spec.module.to_owned(), spec.function.to_owned());
        if let Some(function) = self.by_name.get(&name) {
            return Some(*function);
        }
        let next = Function(self.expected.len());
        if next.0 == FUNCTIONS {
            return None;
        }
        self.expected.push(None);
        self.by_name.insert(name, next);
        Some(next)
    }

    fn note(&mut self, function: Function, run_ns: u64) {
        if let Some(expected) = self.expected.get_mut(function.0) {
            let average = |before: u64| {
                // A run that is longer counts more: the next ones may be long too.
                let weight = if run_ns > before { 2 } else { 8 };
                before - before / weight + run_ns / weight
            };
            *expected = Some(expected.map_or(run_ns, average));
        }
    }

    /// Returns the time that a task of a function is expected to run, in nanoseconds, if that is short.
    pub(super) fn short_ns(&self, function: Option<Function>) -> Option<u64> {
        self.expected.get(function?.0).copied().flatten().filter(|expected_ns| *expected_ns <= SHORT_NS)
    }
}

/// Number of messages that are asked for at a time ahead of free slots: few while it is not known that what is in the queues is short, because what is not goes
/// back, and more with each that is.
#[derive(Debug)]
pub(super) struct Window(usize);

impl Default for Window {
    fn default() -> Window {
        Window(1)
    }
}

impl Window {
    pub(super) fn size(&self) -> usize {
        self.0
    }

    /// Notes that a message has come that may be taken ahead of a free slot.
    pub(super) fn widen(&mut self) {
        self.0 = (2 * self.0).min(AHEAD);
    }

    /// Notes that one had to be given back.
    pub(super) fn narrow(&mut self) {
        *self = Window::default();
    }
}

impl Agent {
    /// Returns what a task asks for; and its function, if it is one that may be taken ahead of a free slot once that is known to be short.
    pub(super) fn look_into(&mut self, message: &TaskMessage<'_>) -> (QueueBound, Option<Function>) {
        let Ok(envelope) = Envelope::decode(message.envelope) else { return (QueueBound::default(), None) };
        let asks_for = QueueBound::of(&envelope.demand);
        let is_plain = asks_for == QueueBound::default() && message.digests.is_empty();
        let function = match &envelope.spec {
            TaskSpec::Function(function) if is_plain => self.run_times.function(function),
            _ => None,
        };
        (asks_for, function)
    }

    /// Notes how long a task ran that came by itself.
    pub(super) fn note_run_time(&mut self, function: Option<Function>, run_ns: Option<u64>) {
        if let (Some(function), Some(run_ns)) = (function, run_ns) {
            self.run_times.note(function, run_ns);
        }
    }

    /// Has the head give back what has waited there for long, although it was taken ahead because it is short: other nodes may have room. Returns whether some
    /// of it is to be looked at again soon.
    pub(super) fn ask_slow_back(&mut self, now_ns: u64) -> bool {
        let (mut is_waiting, mut slow) = (false, Vec::new());
        for (id, held) in self.held.alone_mut() {
            if !held.is_short {
                continue;
            }
            is_waiting = true;
            let seen_ns = *held.seen_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(seen_ns) >= BUNDLE_WAIT_NS {
                held.seen_ns = Some(now_ns);
                slow.push(id);
            }
        }
        slow.into_iter().for_each(|id| self.notify(ToHead::GiveBack(id)));
        is_waiting
    }
}
