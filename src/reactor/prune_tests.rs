//! Stories of pruning: which ended tasks go, and what goes with them.

use crate::testing::*;

#[test]
fn pruning_forgets_the_oldest_with_their_keys_and_files_and_keeps_what_is_needed() {
    let mut story = Story::with_workers(1);
    let ends = |story: &mut Story, outcome: Outcome| {
        let (worker, lease, ..) = story.schedule()[0];
        story.claim(worker, lease);
        story.now.unix_nano += 10;
        let started_unix_nano = story.now.unix_nano;
        let result = AttemptResult { lease, started_unix_nano, run_ns: 0, outcome, span: None, usage: None };
        on_result(&mut story.state, &mut story.effects, WorkerId(worker), result, story.now);
        story.check();
    };
    let stored = |name: &str| Outcome::Stored(Stored { name: name.into(), bytes: 1_000 });
    let keyed = story.submit_policy(Policy { idempotency_key: "nightly", ..NEVER_AGAIN });
    ends(&mut story, stored("first"));
    for outcome in [Outcome::Returned(vec![7; 100]), stored("third"), Outcome::Completed] {
        story.submit(1);
        ends(&mut story, outcome);
    }
    // The third is needed by one that waits.
    story.submit_after(&[TaskId(3)]);
    let prune = |story: &mut Story, which: PruneWhich| {
        let dry = PruneWhich { dry_run: true, ..which };
        let said = on_prune(&mut story.state, &mut story.effects, &dry, story.now);
        assert!(story.effects.pruned.is_empty());
        let report = on_prune(&mut story.state, &mut story.effects, &which, story.now);
        story.check();
        assert_eq!(said, report);
        (report, std::mem::take(&mut story.effects.pruned))
    };
    let nothing = PruneReport { kept: 4, kept_bytes: 2_110, in_use: 1, ..PruneReport::default() };
    assert_eq!(prune(&mut story, PruneWhich::default()), (nothing, vec![]));
    // They ended 30, 20, 10 and 0 ns ago.
    let old = PruneWhich { older_than_ns: Some(20), ..PruneWhich::default() };
    assert_eq!(prune(&mut story, PruneWhich { older_than_ns: Some(30), ..old }), (nothing, vec![]));
    let (report, gone) = prune(&mut story, old);
    assert_eq!((report.removed, report.removed_bytes, gone), (1, 1_005, vec![keyed]));
    assert!(story.state.keys.is_empty() && story.state.tasks.get(keyed).is_none());
    assert_eq!(story.state.take_unused_values(), ["first"]);
    assert_eq!(story.state.history.stored_bytes(), 1_000);
    let (report, gone) = prune(&mut story, PruneWhich { max_bytes: Some(1_006), ..PruneWhich::default() });
    assert_eq!((report.kept, report.kept_bytes, gone), (2, 1_005, vec![TaskId(2)]));
    let (report, gone) = prune(&mut story, PruneWhich { max_tasks: Some(0), ..PruneWhich::default() });
    assert_eq!((report.kept, report.in_use, gone), (1, 1, vec![TaskId(4)]));
    // A clock that was set back makes nothing old.
    story.now.unix_nano = 0;
    assert_eq!(prune(&mut story, PruneWhich { older_than_ns: Some(0), ..old }).0.removed, 0);
    // What needed it has ended.
    ends(&mut story, Outcome::Completed);
    let (report, gone) = prune(&mut story, PruneWhich { max_tasks: Some(0), ..PruneWhich::default() });
    assert_eq!((report.kept, report.removed, gone.len()), (0, 2, 2));
    assert_eq!(story.state.tally.counts().forgotten, 5);
    // The key is free again.
    let again = story.submit_policy(Policy { idempotency_key: "nightly", ..NEVER_AGAIN });
    assert_eq!(story.state.keys["nightly"].task, again);
}
