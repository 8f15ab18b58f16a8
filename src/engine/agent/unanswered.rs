//! Submissions that the engine does not answer, although it was asked: it may have them by now, or get them later. Whoever submits is not kept waiting for longer
//! than for an engine that is away: the task is in the head's journal, and goes into its queue once the engine answers.

use super::{Agent, ToHead};

impl Agent {
    /// Notes that something was submitted.
    pub(super) fn note_submission(&mut self, now_ns: u64) {
        self.unanswered_ns = self.unanswered_ns.min(now_ns.saturating_add(self.settings.engine_wait_ns));
    }

    /// Says which submissions were not answered for too long, once of each, and returns when to come again, if for any.
    pub(super) fn resume_unanswered(&mut self, now_ns: u64) -> Option<u64> {
        if self.unanswered_ns <= now_ns {
            let limit_ns = self.settings.engine_wait_ns;
            let (mut next_ns, mut next_ns_of_others, mut over) = (u64::MAX, u64::MAX, Vec::new());
            let mut look = |since_ns: u64, first, was_told: &mut bool| {
                let due_ns = since_ns.saturating_add(limit_ns);
                if due_ns > now_ns {
                    next_ns = next_ns.min(due_ns);
                } else if !std::mem::replace(was_told, true) {
                    over.push(first);
                }
            };
            for (task, share) in self.shares.iter_mut() {
                // Large arguments take their time.
                let is_asked = share.is_sent || (share.is_asked && share.values.is_empty());
                if share.bundle.is_none() && !share.is_stored && is_asked {
                    look(share.since_ns, task, &mut share.is_unanswered);
                } else if share.bundle.is_none() && !share.is_stored && !share.is_unanswered {
                    next_ns_of_others = now_ns.saturating_add(limit_ns.max(self.settings.keep_ns));
                }
            }
            for (first, bundle) in self.shared_bundles.iter_mut().filter(|(_, bundle)| bundle.is_unconfirmed()) {
                look(bundle.since_ns, *first, &mut bundle.is_unanswered);
            }
            let next_ns = next_ns.min(next_ns_of_others);
            self.unanswered_ns = next_ns;
            if !over.is_empty() {
                self.notify(ToHead::Unanswered(over));
            }
        }
        Some(self.unanswered_ns).filter(|next_ns| *next_ns < u64::MAX)
    }
}
