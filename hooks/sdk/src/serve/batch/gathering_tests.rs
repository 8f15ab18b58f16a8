//! Batches over recorded and random times: nothing here waits.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn batch(inputs: impl IntoIterator<Item = u32>, waited: Duration) -> Next<u32> {
    Next::Batch(Batch { inputs: inputs.into_iter().collect(), waited })
}

#[test]
fn without_a_wait_a_free_handler_takes_what_is_there() {
    let (mut gathering, now) = (Gathering::new(4, Duration::ZERO), Instant::now());
    assert_eq!(gathering.next(now), Next::Nothing);
    gathering.put(1, now);
    assert_eq!(gathering.next(now), batch([1], Duration::ZERO));
    // The handler is busy for 3 ms, and five come meanwhile.
    for input in 2..7 {
        gathering.put(input, now + MS);
    }
    assert_eq!(gathering.next(now + 3 * MS), batch([2, 3, 4, 5], 2 * MS));
    assert_eq!(gathering.next(now + 4 * MS), batch([6], 3 * MS));
    assert_eq!(gathering.next(now + 4 * MS), Next::Nothing);
}

#[test]
fn a_batch_is_due_when_it_is_full_or_the_time_of_its_oldest_is_up() {
    let (mut gathering, start) = (Gathering::new(3, 5 * MS), Instant::now());
    gathering.put(1, start);
    gathering.put(2, start + 4 * MS);
    assert_eq!(gathering.next(start + 4 * MS), Next::Until(start + 5 * MS));
    assert_eq!(gathering.next(start + 5 * MS), batch([1, 2], 5 * MS));
    for input in 3..7 {
        gathering.put(input, start + 6 * MS);
    }
    assert!(gathering.is_full());
    assert_eq!(gathering.next(start + 6 * MS), batch([3, 4, 5], Duration::ZERO));
    assert_eq!(gathering.next(start + 7 * MS), Next::Until(start + 11 * MS));
}

#[test]
fn one_that_leaves_takes_its_time_along_and_nothing_else() {
    let (mut gathering, start) = (Gathering::new(3, 5 * MS), Instant::now());
    let first = gathering.put(1, start);
    gathering.put(2, start + 2 * MS);
    assert_eq!(gathering.leave(first), Some(1));
    assert_eq!(gathering.leave(first), None);
    assert_eq!(gathering.next(start + 5 * MS), Next::Until(start + 7 * MS));
    assert_eq!(gathering.next(start + 7 * MS), batch([2], 5 * MS));
}

#[derive(Clone, Debug)]
enum Step {
    Put,
    /// One of those that were put, by its place among them.
    Leave(usize),
    Next,
    Pass(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Put),
        1 => any::<usize>().prop_map(Step::Leave),
        3 => Just(Step::Next),
        2 => (0_u16..2000).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Against a model in which all are in one list: who waits is in the next batch that is due, in order, once; nobody else is in it.
    #[test]
    fn every_input_is_in_one_batch_or_has_left(max_size in 1_usize..6, wait_us in 0_u64..3000, steps in steps()) {
        let (wait, mut now) = (Duration::from_micros(wait_us), Instant::now());
        let mut gathering = Gathering::new(max_size, wait);
        let (mut model, mut tickets) = (BTreeMap::new(), Vec::new());
        for step in steps {
            match step {
                Step::Pass(us) => now += Duration::from_micros(us.into()),
                Step::Put => {
                    let ticket = gathering.put(tickets.len(), now);
                    model.insert(tickets.len(), now);
                    tickets.push(ticket);
                }
                Step::Leave(which) if !tickets.is_empty() => {
                    let which = which % tickets.len();
                    let is_there = model.remove(&which).is_some();
                    prop_assert_eq!(gathering.leave(tickets[which]), is_there.then_some(which));
                }
                Step::Leave(_) => {}
                Step::Next => match gathering.next(now) {
                    Next::Nothing => prop_assert!(model.is_empty()),
                    Next::Until(due) => {
                        let oldest = *model.values().next().expect("one waits");
                        prop_assert_eq!(due, oldest + wait);
                        prop_assert!(now < due && model.len() < max_size);
                    }
                    Next::Batch(batch) => {
                        let (_, &oldest) = model.iter().next().expect("one waits");
                        prop_assert!(model.len() >= max_size || now >= oldest + wait);
                        let expected: Vec<_> = model.keys().copied().take(max_size).collect();
                        prop_assert_eq!(&batch.inputs, &expected);
                        prop_assert_eq!(batch.waited, now - oldest);
                        model.retain(|input, _| !expected.contains(input));
                    }
                },
            }
        }
        prop_assert_eq!(gathering.clear(), model.into_keys().collect::<Vec<_>>());
    }
}
