//! Stories of slots and named resources.

use crate::testing::*;

#[test]
fn slots_and_resources_are_taken_by_the_lease_and_given_back_with_the_end_however_it_comes() {
    let mut story = Story::with_workers(3);
    story.resources(&[("gpu", 2)]);
    let first = story.submit_demand(None, demand(2, &[("gpu", 2)]));
    let second = story.submit_demand(None, demand(1, &[("gpu", 1)]));
    story.submit(2);
    let leased = story.schedule();
    let tasks = |leased: &[(u64, u64, u64, u32)]| leased.iter().map(|lease| lease.2).collect::<HashSet<_>>();
    assert_eq!(tasks(&leased), HashSet::from([first.0, 3]), "two slots and one");
    assert_eq!(Free::of(&story.state), Free { cpus: 0, resources: vec![0], without_slot: 1 });
    let (worker, lease, ..) = *leased.iter().find(|lease| lease.2 == first.0).unwrap();
    story.claim(worker, lease);
    story.exit(worker);
    assert_eq!(Free::of(&story.state).resources, [2]);
    let leased = story.schedule();
    assert_eq!(tasks(&leased), HashSet::from([second.0]), "one process is left");
    let lacks = story.submit_demand(None, demand(1, &[("gpu", 2)]));
    story.schedule();
    assert_eq!(
        explained(&story, lacks),
        ["it asks for 2 of the resource `gpu`, and 1 of 2 are free; task 2 (demo.my_function) has 1"]
    );
    story.claim(leased[0].0, leased[0].1);
    story.fail(leased[0].0, leased[0].1);
    let (worker, lease, task, _) = story.schedule()[0];
    assert_eq!(task, 4, "it has been first for longer");
    story.claim(worker, lease);
    story.result(worker, lease, 1_000);
    assert_eq!(story.schedule()[0].2, lacks.0);
}

#[test]
fn a_task_without_a_slot_runs_beside_others_up_to_the_processes_there_may_be() {
    let mut story = Story::with_workers(1);
    story.state.settings.max_processes = 3;
    for _ in 0..4 {
        story.submit_demand(None, demand(0, &[]));
    }
    story.submit(1);
    let mut begun = Vec::new();
    for worker in 1..=3 {
        begun.extend(story.schedule().into_iter().map(|lease| lease.2));
        story.start_missing();
        if worker < 3 {
            story.ready(WorkerId(worker + 1), None);
        }
    }
    // Two processes are beyond the one that the slot needs.
    begun.sort_unstable();
    assert_eq!((begun, story.state.workers.len()), (vec![1, 2, 5], 3));
    assert_eq!(Free::of(&story.state), Free { cpus: 0, resources: vec![], without_slot: 0 });
}

#[test]
fn what_can_never_run_here_is_refused_by_name() {
    let mut story = Story::with_workers(2);
    story.resources(&[("gpu", 2), ("license", 1)]);
    let check = |cpus, resources: &[(&str, u64)]| resources::check(&story.state, cpus, resources);
    assert_eq!(check(2, &[("gpu", 2)]), Ok(()));
    for (cpus, resources, expected) in [
        (3, &[][..], "the task asks for 3 cpus (--num-cpus), but this head has 2, one for each of its workers"),
        (1, &[("gpu", 3)], "the task asks for `gpu=3`, but this head has 2 of it in all"),
        (
            1,
            &[("gup", 1)],
            "the task asks for the resource `gup`, which this head does not have; it has `gpu=2,license=1`\n\
             (hint: did you mean `gpu`?)",
        ),
        (1, &[("tape_drive", 1)], "(hint: start the head with --resources gpu=2,license=1,tape_drive=1)"),
    ] {
        let refused = check(cpus, resources).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn a_waiting_task_keeps_its_resources_and_who_waits_for_whom_is_told() {
    let mut story = Story::with_workers(2);
    story.resources(&[("gpu", 1)]);
    let parent = story.submit_demand(None, demand(2, &[("gpu", 1)]));
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    let child = story.submit_demand(Some(parent), demand(1, &[("gpu", 1)]));
    story.wait(worker, 1, 1, &[child]);
    assert_eq!(story.schedule(), []);
    assert_eq!(Free::of(&story.state), Free { cpus: 2, resources: vec![0], without_slot: 1 });
    assert_eq!(
        explained(&story, child),
        [
            "it asks for 1 of the resource `gpu`, and 0 of 1 are free; task 1 (demo.my_function) has 1 and waits for this task; \
          so neither can go on until one of them is cancelled"
        ]
    );
    on_cancel(&mut story.state, &mut story.effects, child, None, story.now);
    assert!(story.state.workers[&WorkerId(worker)].waits.is_empty(), "the parent goes on");
}

#[test]
fn a_large_task_is_passed_for_a_while_and_then_gets_what_it_lacks() {
    let mut story = Story::with_workers(2);
    story.measure(1_000_000);
    story.submit(1);
    let (mut worker, mut lease, ..) = story.schedule()[0];
    let large = story.submit_demand(None, demand(2, &[]));
    story.submit(100);
    let mut passed = 0;
    for _ in 0..100 {
        let leased = story.schedule();
        passed += leased.len();
        if leased.iter().any(|lease| lease.2 == large.0) {
            assert!(story.now.monotonic_ns > PASSED_FOR_NS, "nothing was idle before");
            assert!(passed > 2, "the slots were used meanwhile");
            return;
        }
        if let Some(other) = story.state.queue.reserved_for() {
            assert_eq!(other, large);
            let plain = story.state.queue.plain().front().copied().unwrap();
            assert_eq!(
                explained(&story, plain).last().unwrap(),
                "the free part is reserved for task 2, which needs more and has waited longer"
            );
        }
        story.now.monotonic_ns += PASSED_FOR_NS / 4;
        story.claim(worker, lease);
        story.result(worker, lease, 1_000_000);
        let Some((next, number)) = story.leases(ClaimState::Granted).first().copied() else { continue };
        (worker, lease) = (next, number);
    }
    panic!("it never began");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Tasks of several needs, with always more of each than can run.
    #[test]
    fn no_needs_starve_and_nothing_is_idle_that_is_not_kept(
        kinds in prop::collection::vec((0u32..=4, 0u64..=3, 0u64..=2), 1..6),
        lengths in prop::collection::vec(1u64..8, 16),
    ) {
        const STEP_NS: u64 = 50_000_000;
        let mut story = Story::with_workers(4);
        story.state.settings.max_processes = 8;
        story.resources(&[("gpu", 3), ("license", 2)]);
        let needs = |&(cpus, gpus, licenses): &(u32, u64, u64)| {
            let amounts = [("gpu", gpus), ("license", licenses)];
            demand(cpus, &amounts.into_iter().filter(|&(_, amount)| amount > 0).collect::<Vec<_>>())
        };
        // One kind is plain.
        let mut kinds: Vec<_> = kinds.iter().map(needs).chain([Demand::default()]).collect();
        kinds.sort_by_key(|kind| (kind.num_cpus, kind.resources.clone()));
        kinds.dedup();
        let mut kind_of: HashMap<u64, usize> = HashMap::new();
        let mut last_begun = vec![0_u64; kinds.len()];
        let mut ends: HashMap<(u64, u64), u64> = HashMap::new();
        // Each kind may wait for the others to have had their turn, each of them after it was passed and what ran has ended.
        let limit = (PASSED_STEPS + 3 * 8) * (kinds.len() as u64 + 1);
        const PASSED_STEPS: u64 = PASSED_FOR_NS / STEP_NS;
        for round in 1..=3 * limit {
            let has_ended = |id| matches!(story.state.tasks.get(id).map(|task| task.progress()), None | Some(Progress::Ended(_)));
            kind_of.retain(|&id, _| !has_ended(TaskId(id)));
            for (index, kind) in kinds.iter().enumerate() {
                let waiting = kind_of.iter().filter(|&(id, &of)| {
                    let task = story.state.tasks.get(TaskId(*id));
                    of == index && task.is_some_and(|task| matches!(task.progress(), Progress::Waiting))
                });
                for _ in waiting.count()..8 {
                    let id = story.submit_demand(None, kind.clone());
                    kind_of.insert(id.0, index);
                }
            }
            for _ in 0..2 {
                story.start_missing();
                for worker in std::mem::take(&mut story.effects.started) {
                    story.ready(worker, None);
                }
                for (worker, lease, task, _) in story.schedule() {
                    last_begun[kind_of[&task]] = round;
                    ends.insert((worker, lease), round + lengths[task as usize % lengths.len()]);
                }
            }
            let free = Free::of(&story.state);
            let idle = story.state.workers.idle() > 0;
            if story.state.queue.reserved_for().is_none() && idle {
                for kind in &kinds {
                    let needs = Needs::of(kind);
                    prop_assert!(!free.fits(&story.state, needs.as_ref()), "{:?} is idle for {:?}", free, kind);
                }
            }
            let taken: usize = story.state.workers.values().map(Worker::slots).sum();
            prop_assert!(taken <= 4, "{} slots are taken of 4", taken);
            for (index, &begun) in last_begun.iter().enumerate() {
                prop_assert!(round - begun <= limit, "{:?} starves: begun in {} and not by {}", kinds[index], begun, round);
            }
            for worker in story.state.workers.values().map(|worker| worker.pid - 100).collect::<Vec<_>>() {
                let id = WorkerId(u64::from(worker));
                while let Some(grant) = story.state.workers[&id].leases.front().copied() {
                    if story.effects.claim_state(id, grant.number) == ClaimState::Granted {
                        story.claim(id.0, grant.number);
                    }
                    if ends[&(id.0, grant.number)] > round {
                        break;
                    }
                    story.result(id.0, grant.number, STEP_NS);
                }
            }
            story.now.monotonic_ns += STEP_NS;
            on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
            let asked = std::mem::take(&mut story.effects.asked);
            asked.iter().for_each(|worker| drop(story.exit(worker.0)));
        }
    }
}
