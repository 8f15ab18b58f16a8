//! Stories of priorities: what overtakes what, and that nothing starves.

use std::collections::BTreeSet;

use crate::state::ready_queue::{Rank, SECONDS_PER_POINT};
use crate::testing::*;

const SECOND: u64 = 1_000_000_000;

fn of(priority: i8) -> Envelope<'static> {
    plain(Policy { extra: ExtraOptions { priority }, ..NEVER_AGAIN })
}

impl Story {
    fn submit_priority(&mut self, priority: i8) -> TaskId {
        self.submit_envelope(&of(priority))
    }

    fn submit_of_job(&mut self, job: u64, envelope: &Envelope<'_>) -> TaskId {
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        let (driver, job) = (Some(DriverId(1)), JobId(job));
        let (tag, queued_unix_nano) = (self.next_tag, self.now.unix_nano);
        self.next_tag += 1;
        let envelope = Envelope::decode(&bytes).unwrap();
        let submission = Submission { driver, tag, job, bytes: &bytes, envelope, queued_unix_nano };
        on_submission(&mut self.state, submission, self.now)
    }

    fn pass_seconds(&mut self, seconds: u64) {
        self.now.monotonic_ns += seconds * SECOND;
        self.now.unix_nano += seconds * SECOND;
    }

    /// Takes all that wait out, in the order of their turn.
    fn drain(&mut self) -> Vec<u64> {
        let listed: Vec<_> = self.state.queue.iter().collect();
        let taken: Vec<_> = std::iter::from_fn(|| self.state.queue.pop_front(&None)).collect();
        assert_eq!(taken, listed, "they are listed in the order of their turn");
        assert!(self.state.queue.is_empty() && !self.state.queue.plain().has_priorities());
        taken.into_iter().map(|id| id.0).collect()
    }
}

#[test]
fn a_higher_priority_comes_first_and_among_equals_the_first_submitted() {
    let mut story = Story::new(1, false);
    for priority in [0, 5, 0, -3, 5, 7] {
        story.submit_priority(priority);
    }
    assert_eq!(story.drain(), [6, 2, 5, 1, 3, 4]);
}

#[test]
fn a_minute_of_waiting_counts_as_one_more() {
    let mut story = Story::new(1, false);
    story.submit_priority(0);
    story.pass_seconds(5 * 60 - 1);
    story.submit_priority(5);
    story.pass_seconds(2);
    story.submit_priority(5);
    // The first has waited for a second less than five minutes when the second comes, and for a second more when the last does.
    assert_eq!(story.state.queue.iter().map(|id| id.0).collect::<Vec<_>>(), [2, 1, 3]);
    let ranks: Vec<_> = [1, 2, 3].map(|id| Rank::of(story.state.tasks.get(TaskId(id)).unwrap())).into();
    assert!(ranks[1] > ranks[0] && ranks[0] > ranks[2], "{ranks:?}");
}

#[test]
fn jobs_of_equal_priority_take_turns() {
    let mut story = Story::new(1, false);
    for (job, priority) in [(1, 3), (1, 3), (1, 3), (2, 3), (2, 3), (2, 0)] {
        story.submit_of_job(job, &of(priority));
    }
    assert_eq!(story.drain(), [1, 4, 2, 5, 3, 6]);
}

#[test]
fn what_a_task_has_submitted_comes_before_a_driver_s_of_any_priority() {
    let mut story = Story::new(1, false);
    let parent = story.submit_priority(0);
    story.submit_priority(100);
    story.submit_envelope(&Envelope { submitter: Some(parent), ..of(-100) });
    story.submit_envelope(&Envelope { submitter: Some(parent), ..of(0) });
    assert_eq!(story.drain(), [4, 3, 2, 1]);
}

#[test]
fn a_task_that_is_cancelled_leaves_its_level() {
    let mut story = Story::new(1, false);
    let ids: Vec<_> = [4, 0, 4].map(|priority| story.submit_priority(priority)).into();
    on_cancel(&mut story.state, &mut story.effects, ids[0], None, story.now);
    assert_eq!(story.state.queue.iter().collect::<Vec<_>>(), [ids[2], ids[1]]);
    on_cancel(&mut story.state, &mut story.effects, ids[2], None, story.now);
    assert!(!story.state.queue.plain().has_priorities());
    assert_eq!(story.drain(), [ids[1].0]);
}

#[test]
fn a_lane_of_higher_priority_has_its_turn_first() {
    for (of_gpu, of_plain, first) in [(5, 0, 1), (0, 5, 2)] {
        let mut story = Story::with_workers(1);
        story.resources(&[("gpu", 1)]);
        let demand = Demand { resources: vec![("gpu", 1)], ..Demand::default() };
        story.submit_envelope(&Envelope { demand, ..of(of_gpu) });
        story.submit_priority(of_plain);
        let leases = story.schedule();
        let leased: Vec<_> = leases.iter().map(|&(_, _, task, _)| task).collect();
        assert_eq!(leased.first(), Some(&first), "{of_gpu} and {of_plain}: {leases:?}");
    }
}

#[test]
fn a_call_overtakes_other_calls_of_its_actor_that_have_not_begun() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(NAMED);
    let calls: Vec<_> = (0..3).map(|_| story.call(actor)).collect();
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|&(_, _, task, _)| task).collect::<Vec<_>>(), [calls[0].0, calls[1].0, calls[2].0]);
    story.claim(worker, leases[0].1);
    let role = ActorRole::Call(actor);
    let function = FunctionSpec { actor: role, ..FunctionSpec::of_task("counter", "Counter.get", &[0x90]) };
    let urgent = story.submit_envelope(&Envelope { spec: TaskSpec::Function(function), ..of(9) });
    let leases = story.schedule();
    let leased: Vec<_> = leases.iter().map(|&(_, _, task, _)| task).collect();
    assert_eq!(leased, [urgent.0, calls[1].0, calls[2].0], "what runs goes on, and the rest is behind it");
}

proptest! {
    /// The order is that of priority and age, whatever comes when.
    #[test]
    fn the_order_is_that_of_priority_and_age(
        tasks in prop::collection::vec((prop_oneof![Just(0), -100..=100_i8], 0..400_u64), 1..60),
    ) {
        let mut story = Story::new(1, false);
        story.is_large = true;
        let mut expected = Vec::new();
        let start_s = story.now.unix_nano / SECOND;
        for (number, &(priority, seconds)) in tasks.iter().enumerate() {
            story.pass_seconds(seconds);
            let submitted_s = (story.now.unix_nano / SECOND - start_s) as i64;
            let id = story.submit_priority(priority);
            let rank = i64::from(priority) * SECONDS_PER_POINT - submitted_s;
            expected.push((std::cmp::Reverse((rank, priority)), number, id.0));
        }
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(_, _, id)| id).collect();
        prop_assert_eq!(story.drain(), expected);
    }

    /// However many of the highest priority come, and of whichever jobs: when a task has waited for as many minutes as there are priorities
    /// between them, none that comes later is before it.
    #[test]
    fn nothing_starves(every in 300..2000_u64, at_once in 1..4_u64, jobs in 1..4_u64, low in -100..=99_i8) {
        let mut story = Story::new(1, false);
        story.is_large = true;
        let lowest = story.submit_priority(low);
        let minutes = (100 - i64::from(low)).unsigned_abs();
        let mut came_before = BTreeSet::new();
        let mut begun = false;
        // One begins whenever `at_once` of the highest priority come, so the queue never empties.
        for step in 0_u64.. {
            for number in 0..at_once {
                let id = story.submit_of_job(1 + (step + number) % jobs, &of(100));
                if step * every <= minutes * 60 {
                    came_before.insert(id);
                }
            }
            let is_due = step * every > minutes * 60 && came_before.is_empty();
            let first = story.state.queue.pop_front(&None).expect("there are some");
            came_before.remove(&first);
            if first == lowest {
                begun = true;
                prop_assert!(step * every >= minutes * 60, "it began after {} s", step * every);
                break;
            }
            story.pass_seconds(every);
            if is_due {
                break;
            }
        }
        prop_assert!(begun, "all that may come before it have begun, and it has not");
    }
}
