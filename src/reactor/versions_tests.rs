//! Stories of modules that are submitted in another version.

use crate::testing::*;

fn version(number: u64) -> Option<ModuleVersion> {
    ModuleVersion::of_number(number)
}

#[test]
fn a_worker_in_which_an_actor_was_to_begin_again_has_loaded_its_version_too() {
    let mut story = Story::with_room(1);
    let role = ActorRole::Create(ActorOptions { max_restarts: 1, ..NAMED });
    let function = FunctionSpec { actor: role, ..FunctionSpec::of_task("counter", "Counter.new", &[0x90]) };
    let spec = TaskSpec::Function(function);
    story.submit_envelope(&Envelope { spec, module_version: version(1), ..plain(NEVER_AGAIN) });
    story.schedule();
    story.claim(1, 0);
    story.result(1, 0, 1_000);
    story.get_ready();
    story.exit(1);
    story.get_ready();
    let (again, lease) = match story.schedule()[..] {
        [(worker, lease, 1, 2)] => (worker, lease),
        ref leases => panic!("{leases:?}"),
    };
    story.claim(again, lease);
    story.fail(again, lease);
    let spec = TaskSpec::Function(FunctionSpec::of_task("counter", "get", &[0x90]));
    story.submit_envelope(&Envelope { spec, module_version: version(2), ..plain(NEVER_AGAIN) });
    story.start_missing();
    assert!(story.effects.asked.contains(&WorkerId(again)), "it has the older version: {:?}", story.effects.log);
}
