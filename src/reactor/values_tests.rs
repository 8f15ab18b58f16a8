//! Stories of files of values.

use crate::testing::*;

#[test]
fn files_of_values_go_when_nobody_needs_them_any_more() {
    let mut story = Story::with_workers(1);
    let stored = |name: &str| Stored { name: name.into(), bytes: 1_000_000 };
    let removed = |story: &mut Story| {
        follow_up::follow_up(&mut story.state, &mut story.effects, story.now);
        std::mem::take(&mut story.effects.unused_values)
    };
    let end_with = |story: &mut Story, name: &str| {
        let (worker, lease, _, _) = story.schedule()[0];
        story.claim(worker, lease);
        let outcome = Outcome::Stored(stored(name));
        let result = AttemptResult { lease, started_unix_nano: 1, run_ns: 5_000_000, span: None, outcome, usage: None };
        on_result(&mut story.state, &mut story.effects, WorkerId(worker), result, story.now);
        story.check();
    };
    story.next_inputs = vec![Input { argument: 0, source: InputSource::Stored(stored("1")) }];
    let first = story.submit_from(None, None, false);
    let needs_it = story.submit_after(&[first]);
    end_with(&mut story, "2");
    assert_eq!(removed(&mut story), ["1"], "an argument goes with its task");
    on_result_forgotten(&mut story.state, first);
    assert_eq!(removed(&mut story), [""; 0], "another task is to get it");
    let mut expected = Vec::new();
    expected.put_u32(0);
    expected.put_u8(1);
    expected.put_str("2");
    expected.put_u64(1_000_000);
    assert_eq!(values::values(&story.state.tasks, needs_it), expected);
    end_with(&mut story, "3");
    assert_eq!(removed(&mut story), ["2"]);
    assert_eq!(value_files(&story.state), HashSet::from(["3".to_owned()]));
    on_result_forgotten(&mut story.state, needs_it);
    assert_eq!(removed(&mut story), ["3"]);
    story.submit(2);
    end_with(&mut story, "4");
    story.state.settings.stored_bytes_limit = 1_500_000;
    end_with(&mut story, "5");
    assert_eq!(removed(&mut story), ["4"], "the oldest goes when there are too many");
    let task = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap();
    assert_eq!(task(3).stored.unwrap().name, "");
    assert_eq!(task(4).stored.unwrap().name, "5");
}
