//! Stories of calls that wait for each other.

use crate::testing::*;

/// Calls of it run beside each other, two at a time.
const BESIDE: &str = "Counter.beside";
const ALONE: &str = "Counter.alone";

const UNNAMED: ActorOptions<'static> = ActorOptions { name: "", ..NAMED };

impl Story {
    /// Starts so many actors, each with its worker, beside one worker for tasks.
    fn with_actors(count: usize) -> (Story, Vec<(TaskId, u64)>) {
        let mut story = Story::with_room(count);
        let actors: Vec<_> = (0..count).map(|_| story.living(UNNAMED)).collect();
        for &(actor, worker) in &actors {
            let methods = ActorMethods { actor, concurrent: vec![BESIDE.into()], max_concurrency: 2 };
            on_methods(&mut story.state, WorkerId(worker), &methods);
        }
        (story, actors)
    }

    fn call_from(&mut self, submitter: Option<TaskId>, actor: TaskId, method: &str, inputs: &[TaskId]) -> TaskId {
        let role = ActorRole::Call(actor);
        let function = FunctionSpec { actor: role, ..FunctionSpec::of_task("counter", method, &[0x90]) };
        let input = |(argument, &task)| Input { argument, source: InputSource::Task(task) };
        let inputs = (0..).zip(inputs).map(input).collect();
        let spec = TaskSpec::Function(function);
        self.submit_envelope(&Envelope { spec, submitter, inputs, ..plain(NEVER_AGAIN) })
    }

    /// Returns a call that a driver has submitted and that has begun.
    fn running_call(&mut self, (actor, worker): (TaskId, u64), method: &str) -> TaskId {
        let call = self.call_from(None, actor, method, &[]);
        self.schedule();
        self.begin(worker, call);
        call
    }

    fn begin(&mut self, worker: u64, task: TaskId) {
        let lease = self.state.workers[&WorkerId(worker)].lease_of(task).unwrap();
        self.claim(worker, lease);
    }

    /// Failure of a task.
    fn failure(&self, id: TaskId) -> Option<Failure> {
        match self.state.tasks.get(id).map(|task| task.progress()) {
            Some(Progress::Ended(ended)) => match &ended.outcome {
                Outcome::Failed(failure) => Some(failure.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    #[track_caller]
    fn deadlock(&self, id: TaskId) -> String {
        match self.failure(id) {
            Some(Failure::Deadlock { message }) => message,
            other => panic!("task {id}: {other:?}"),
        }
    }

    fn explained_cycle(&self, id: TaskId) -> Option<Cycle> {
        let explanation = explain_task(&self.state, &self.effects, id).unwrap();
        explanation.reasons.into_iter().find_map(|reason| match reason {
            Reason::Deadlock(cycle) => Some(cycle),
            _ => None,
        })
    }
}

#[test]
fn a_call_that_blocks_on_its_own_actor_has_the_inner_call_fail() {
    let (mut story, actors) = Story::with_actors(1);
    let outer = story.running_call(actors[0], ALONE);
    // Behind others in the line, leased ahead, or both: it can never begin.
    let inner = story.call_from(Some(outer), actors[0].0, ALONE, &[]);
    story.schedule();
    story.block(outer, actors[0].1, 1, &[inner]);
    let message = story.deadlock(inner);
    let sentence = format!(
        "task {inner} (Counter.alone) cannot begin before task {outer} (Counter.alone) has ended, which waits for \
         task {inner}\n(hint: a method calls another one of the same actor as a function, `self.method(..)`, or returns without \
         waiting for it)"
    );
    assert_eq!(message, sentence);
    assert!(story.state.workers[&WorkerId(actors[0].1)].waits.is_empty(), "the outer call goes on");
    let again = story.call_from(Some(outer), actors[0].0, BESIDE, &[]);
    story.block(outer, actors[0].1, 1, &[again]);
    story.deadlock(again);
    let lease = story.state.workers[&WorkerId(actors[0].1)].lease_of(outer).unwrap();
    story.result(actors[0].1, lease, 1_000);
    let after = story.running_call(actors[0], ALONE);
    assert!(story.failure(after).is_none(), "the actor lives on");
}

#[test]
fn a_creation_that_calls_the_actor_that_it_makes_has_the_call_fail() {
    let mut story = Story::with_room(1);
    let actor = story.create(NAMED);
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    let call = story.call_from(Some(actor), actor, ALONE, &[]);
    story.schedule();
    story.block(actor, worker, 1, &[call]);
    assert!(story.deadlock(call).contains("(Counter.new) has ended, which waits for task"));
    story.result(worker, lease, 1_000);
    story.get_ready();

    // As well when it is made again.
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(ActorOptions { max_restarts: 1, ..NAMED });
    story.exit(worker);
    let (worker, lease, task, _) = story.schedule()[0];
    assert_eq!(task, actor.0);
    story.claim(worker, lease);
    let call = story.call_from(Some(actor), actor, ALONE, &[]);
    story.schedule();
    story.block(actor, worker, 1, &[call]);
    story.deadlock(call);
    story.result(worker, lease, 1_000);
    assert!(story.state.workers[&WorkerId(worker)].waits.is_empty());
}

#[test]
fn a_cycle_through_actors_and_tasks_breaks_at_the_call_that_has_not_begun() {
    let (mut story, actors) = Story::with_actors(2);
    let [(first, worker), (second, other)] = actors[..] else { unreachable!() };
    let outer = story.running_call(actors[0], ALONE);
    let middle = story.call_from(Some(outer), second, ALONE, &[]);
    story.schedule();
    story.begin(other, middle);
    story.block(outer, worker, 1, &[middle]);
    assert!(story.failure(middle).is_none());
    let back = story.call_from(Some(middle), first, ALONE, &[]);
    story.schedule();
    story.block(middle, other, 1, &[back]);
    let message = story.deadlock(back);
    let sentence = format!(
        "task {back} (Counter.alone) cannot begin before task {outer} (Counter.alone) has ended, which waits for \
         task {middle} (Counter.alone), which waits for task {back}\n(hint: "
    );
    assert!(message.starts_with(&sentence), "{message}");

    // Through a task, and one that has the result as its argument.
    let (mut story, actors) = Story::with_actors(1);
    let (actor, worker) = actors[0];
    let outer = story.running_call(actors[0], ALONE);
    let task = story.submit_nested(outer);
    let lease = story.schedule().into_iter().find(|lease| lease.2 == task.0).unwrap();
    story.claim(lease.0, lease.1);
    story.block(outer, worker, 1, &[task]);
    let call = story.call_from(Some(task), actor, ALONE, &[]);
    story.next_inputs = vec![Input { argument: 0, source: InputSource::Task(call) }];
    let held = story.submit_nested(task);
    story.block(task, lease.0, 1, &[held]);
    let message = story.deadlock(call);
    let end = format!("which waits for task {held} (demo.my_function), which needs the result of task {call}\n");
    assert!(message.contains(&end), "{message}");
    story.schedule();
    assert!(matches!(story.failure(held), Some(Failure::Input { task, .. }) if task == call));
}

#[test]
fn of_two_actors_that_call_each_other_one_call_fails_and_the_other_runs() {
    let (mut story, actors) = Story::with_actors(2);
    let calls = [0, 1].map(|which| story.running_call(actors[which], ALONE));
    let to_first = story.call_from(Some(calls[1]), actors[0].0, ALONE, &[]);
    let to_second = story.call_from(Some(calls[0]), actors[1].0, ALONE, &[]);
    story.schedule();
    story.block(calls[0], actors[0].1, 1, &[to_second]);
    assert!(story.failure(to_second).is_none(), "the other may end");
    story.block(calls[1], actors[1].1, 1, &[to_first]);
    story.deadlock(to_first);
    assert!(story.failure(to_second).is_none());
}

#[test]
fn concurrent_calls_wait_for_each_other_up_to_the_limit() {
    let (mut story, actors) = Story::with_actors(1);
    let (actor, worker) = actors[0];
    let outer = story.running_call(actors[0], BESIDE);
    let inner = story.call_from(Some(outer), actor, BESIDE, &[]);
    story.schedule();
    story.block(outer, worker, 1, &[inner]);
    assert!(story.failure(inner).is_none(), "there is room for it");
    story.begin(worker, inner);
    let third = story.call_from(Some(inner), actor, BESIDE, &[]);
    story.schedule();
    story.block(inner, worker, 1, &[third]);
    story.deadlock(third);

    // One that runs alone waits for all, and those behind it wait for that one.
    let (mut story, actors) = Story::with_actors(1);
    let outer = story.running_call(actors[0], BESIDE);
    let alone = story.call_from(None, actors[0].0, ALONE, &[]);
    let behind = story.call_from(Some(outer), actors[0].0, BESIDE, &[]);
    story.schedule();
    story.block(outer, actors[0].1, 1, &[behind]);
    story.deadlock(behind);
    assert!(story.failure(alone).is_none());
}

#[test]
fn as_many_calls_fail_as_the_wait_needs() {
    let (mut story, actors) = Story::with_actors(1);
    let (actor, worker) = actors[0];
    let calls = |story: &mut Story, outer| [(); 3].map(|()| story.call_from(Some(outer), actor, ALONE, &[]));
    let outer = story.running_call(actors[0], ALONE);
    let all = calls(&mut story, outer);
    story.block(outer, worker, 3, &all);
    all.iter().for_each(|&call| drop(story.deadlock(call)));

    let any = calls(&mut story, outer);
    let task = story.submit_nested(outer);
    story.block(outer, worker, 1, &[any[0], task]);
    assert!(story.failure(any[0]).is_none(), "the other one ends");
    on_go_on(&mut story.state, WorkerId(worker), 1_000_000 + outer.0);
    story.block(outer, worker, 2, &any);
    assert_eq!(any.map(|call| story.failure(call).is_some()), [true, true, false]);
}

#[test]
fn a_wait_that_may_end_otherwise_breaks_nothing_and_is_explained() {
    let (mut story, actors) = Story::with_actors(1);
    let (actor, worker) = actors[0];
    let outer = story.running_call(actors[0], ALONE);
    assert!(story.explained_cycle(outer).is_none());
    let inner = story.call_from(Some(outer), actor, ALONE, &[]);
    let behind = story.call_from(None, actor, ALONE, &[]);
    story.schedule();
    story.wait(worker, 1, 1, &[inner]);
    assert!(story.failure(inner).is_none());
    let ids = |cycle: Cycle| cycle.tasks.iter().map(|task| task.id).collect::<Vec<_>>();
    assert_eq!(ids(story.explained_cycle(inner).unwrap()), [inner, outer]);
    assert_eq!(ids(story.explained_cycle(outer).unwrap()), [outer, inner]);
    assert_eq!(ids(story.explained_cycle(behind).unwrap()), [outer, inner], "it waits for the same");
    let text = explain_task(&story.state, &story.effects, behind).unwrap().reasons.last().unwrap().to_string();
    assert_eq!(
        text,
        format!(
            "deadlock: task {outer} (Counter.alone) waits for task {inner} (Counter.alone), which cannot begin before \
             task {outer} has ended; none of them goes on before one is cancelled or stops waiting"
        )
    );
    on_go_on(&mut story.state, WorkerId(worker), 1);
    assert!(story.explained_cycle(behind).is_none());
}

/// A task that submits these, and blocks until so many of them have ended.
#[derive(Clone, Debug)]
struct Script {
    /// The actor, and true if it runs beside others there; none for a task.
    target: Option<(usize, bool)>,
    children: Vec<Script>,
    waits_for_all: bool,
}

fn script() -> impl Strategy<Value = Script> {
    let target = || prop::option::weighted(0.8, (0..ACTORS, any::<bool>()));
    let leaf = target().prop_map(|target| Script { target, children: Vec::new(), waits_for_all: true });
    leaf.prop_recursive(4, 24, 3, move |inner| {
        let children = prop::collection::vec(inner, 0..3);
        let parts = (target(), children, any::<bool>());
        parts.prop_map(|(target, children, waits_for_all)| Script { target, children, waits_for_all })
    })
}

const ACTORS: usize = 2;

/// A task of a script, with what it has submitted once it has begun.
struct Scripted<'a> {
    script: &'a Script,
    children: Option<Vec<TaskId>>,
}

proptest! {
    #[test]
    fn whatever_blocks_on_what_every_task_comes_to_its_end(scripts in prop::collection::vec(script(), 1..4)) {
        let (mut story, actors) = Story::with_actors(ACTORS);
        story.state.settings.max_processes += 2;
        let mut tasks: HashMap<TaskId, Scripted<'_>> = HashMap::new();
        let submit = |story: &mut Story, submitter, script: &Script| match script.target {
            None => story.submit_from(submitter, None, false),
            Some((actor, is_beside)) => {
                story.call_from(submitter, actors[actor].0, if is_beside { BESIDE } else { ALONE }, &[])
            }
        };
        for script in &scripts {
            let id = submit(&mut story, None, script);
            tasks.insert(id, Scripted { script, children: None });
        }
        // Each round begins what its worker would, and ends what waits for nothing; without a change there is nothing more to come.
        loop {
            story.get_ready();
            story.schedule();
            let mut has_changed = false;
            let workers: Vec<_> = story.state.workers.keys().collect();
            for worker in workers {
                let leases: Vec<_> = story.state.workers[&worker].leases.iter().map(|grant| (grant.number, grant.task)).collect();
                let is_alone = |story: &Story, id: TaskId| {
                    story.state.targets.name(story.state.tasks.get(id).unwrap().target) != "Counter.beside"
                };
                for (lease, id) in leases {
                    let running: Vec<_> = story.state.workers[&worker].leases.iter()
                        .filter(|grant| story.effects.claim_state(worker, grant.number) == ClaimState::Claimed)
                        .map(|grant| grant.task).collect();
                    let must_wait = match is_alone(&story, id) {
                        true => !running.is_empty(),
                        false => running.len() >= 2 || running.iter().any(|&id| is_alone(&story, id)),
                    };
                    match story.effects.claim_state(worker, lease) {
                        ClaimState::Granted if !must_wait => {
                            story.claim(worker.0, lease);
                            has_changed = true;
                        }
                        ClaimState::Granted => break,
                        _ => {}
                    }
                }
                let begun: Vec<_> = {
                    let held = &story.state.workers[&worker];
                    held.leases.iter().chain(&held.inline).map(|grant| (grant.number, grant.task))
                        .filter(|&(lease, _)| story.effects.claim_state(worker, lease) == ClaimState::Claimed).collect()
                };
                for (lease, id) in begun {
                    let script = tasks[&id].script;
                    let Some(children) = &tasks[&id].children else {
                        let children: Vec<_> = script.children.iter().map(|child| submit(&mut story, Some(id), child)).collect();
                        for (&child, script) in children.iter().zip(&script.children) {
                            tasks.insert(child, Scripted { script, children: None });
                        }
                        let wanted = if script.waits_for_all { children.len() as u32 } else { children.len().min(1) as u32 };
                        tasks.get_mut(&id).unwrap().children = Some(children.clone());
                        story.block(id, worker.0, wanted, &children);
                        has_changed = true;
                        continue;
                    };
                    let has_ended = |id: &&TaskId| matches!(story.state.tasks.get(**id).unwrap().progress(), Progress::Ended(_));
                    let wanted = if script.waits_for_all { children.len() } else { children.len().min(1) };
                    if children.iter().filter(has_ended).count() >= wanted {
                        story.result(worker.0, lease, 1_000);
                        has_changed = true;
                    }
                }
            }
            if !has_changed {
                break;
            }
        }
        for (id, task) in story.state.tasks.iter_newest_first() {
            prop_assert!(matches!(task.progress(), Progress::Ended(_)), "task {} hangs: {:?}", id, task.progress());
            let failure = story.failure(id);
            prop_assert!(matches!(failure, None | Some(Failure::Deadlock { .. })), "{:?}", failure);
        }
    }
}
