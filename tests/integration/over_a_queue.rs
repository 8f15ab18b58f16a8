//! The modules about tasks once more, with a queue between two nodes: what a test submits goes from its node, which has no workers, over a NATS server
//! to another node, which has them. The tests are the same ones, compiled a second time with [`Cluster`](nodes::Cluster) in place of
//! the one of `support`.
//!
//! The list [`DIFFERS`] names the tests that mean something else over a queue, each with its reason. Such a test asks `differs!()`, which is true here, and then
//! checks something else, or less.

mod following;
mod nodes;
mod waiting;

/// The harness, with two nodes for a cluster.
mod support {
    pub(crate) use super::nodes::{Cluster, Driver};
    pub(crate) use crate::support::*;
}

/// True: the test that this stands in is of the list of what differs.
macro_rules! differs {
    () => {{
        fn here() {}
        crate::over_a_queue::differs(std::any::type_name_of_val(&here))
    }};
}

#[path = "attempts.rs"]
mod attempts;
#[path = "cancelling.rs"]
mod cancelling;
#[path = "commands.rs"]
mod commands;
#[path = "explain.rs"]
mod explain;
#[path = "fairness.rs"]
mod fairness;
#[path = "large_values.rs"]
mod large_values;
#[path = "map.rs"]
mod map;
#[path = "nesting.rs"]
mod nesting;
#[path = "output.rs"]
mod output;
#[path = "resources.rs"]
mod resources;
#[path = "submit.rs"]
mod submit;

/// Tests that do not check all that they check of one head, because it means something else over a queue.
const DIFFERS: &[(&str, &str)] = &[
    (
        "attempts::a_task_that_ran_when_its_head_died_is_started_again_under_the_next_and_stays_charged",
        "a task outlives the head of its origin; that of its holder is not waited for, another node takes over: see `engine`",
    ),
    (
        "attempts::attempts_that_were_charged_survive_the_head",
        "the pause before the next attempt is the holder's, whom the death of the origin's head does not touch",
    ),
    (
        "attempts::what_is_to_start_at_most_once_is_lost_with_its_worker_or_its_head_and_never_started_again",
        "the death of the origin's head loses no attempt, and that of a holder is seen in `engine`",
    ),
    (
        "cancelling::a_task_in_the_lease_of_a_busy_worker_is_cancelled_without_waiting_for_that_worker",
        "a node takes a task for a free slot, so none is leased behind one that runs",
    ),
    (
        "cancelling::a_task_that_waits_for_too_long_and_a_command_that_is_silent_for_too_long_are_told_apart",
        "what has waited for too long never came to the node that counts the others",
    ),
    (
        "commands::input_is_given_once",
        "a command of a queue reads nothing of its submitter, who may be on another machine",
    ),
    (
        "commands::input_that_a_command_does_not_read_holds_nobody_up",
        "a command of a queue reads nothing of its submitter, who may be on another machine",
    ),
    (
        "commands::it_reads_the_input_of_its_submitter_in_order_and_to_the_end_when_told_to",
        "it is refused: the input of a submitter is on another machine, perhaps",
    ),
    ("commands::without_waiting_its_id_is_printed_and_it_goes_on", "the id in the cluster is said too"),
    (
        "explain::a_running_task_has_its_worker_named_and_those_behind_it_what_they_wait_for",
        "the origin names the node, and the node its worker; how many are before it in a queue, no node knows",
    ),
    (
        "fairness::a_job_of_one_task_does_not_wait_for_thousands_of_another",
        "jobs take turns in a head; a queue has no turns, how many are before a task no node knows, and what goes back for want of room may begin after others",
    ),
    (
        "large_values::after_a_head_that_was_killed_what_is_needed_is_kept_and_the_rest_goes",
        "a worker that was stopped is not ended with the head of the origin, whose it is not",
    ),
    ("output::a_task_waits_for_a_submitter_that_takes_its_time_and_nothing_is_lost", HINT),
    ("output::much_output_arrives_whole_and_in_order", HINT),
    ("output::without_waiting_the_output_is_in_the_logs_alone", "the id in the cluster is said too"),
    (
        "resources::slots_and_resources_are_counted_explained_given_back_and_kept_by_the_next_head",
        "what a node lacks it does not take, so it waits in the queue, and the node that has what there is counts it",
    ),
    (
        "resources::what_can_never_run_here_is_refused_and_nothing_else_is",
        "what a task may ask for is said of its queue, and not of a head",
    ),
    (
        "submit::a_module_is_also_named_by_the_path_of_its_library",
        "a queue takes no paths of libraries, which would mean something else on each machine",
    ),
    (
        "submit::cancel_ends_a_task_that_runs_and_one_that_waits_and_says_when_there_is_nothing_to_end",
        "that nobody has begun a task that waits is decided in the engine, after the answer",
    ),
    ("submit::results_are_json_on_standard_output", "the report has the id in the cluster too"),
    (
        "submit::unknown_modules_and_functions_are_named_and_the_nearest_is_offered",
        "a queue takes no paths of libraries",
    ),
    ("submit::without_waiting_the_id_is_printed_and_get_gives_the_result_later", "the id in the cluster is said too"),
];

const HINT: &str = "no node waits for another one's reader: what is too much is left out, and how much is said";

/// Returns true for a test of the list, of which the path of a function in it is given. Panics for others.
fn differs(function_in_test: &str) -> bool {
    let test = function_in_test.rsplit_once("::over_a_queue::").and_then(|(_, path)| path.strip_suffix("::here"));
    let line = DIFFERS.iter().find(|(name, _)| Some(*name) == test);
    let (name, reason) = line.unwrap_or_else(|| panic!("{function_in_test} is not in the list of what differs"));
    eprintln!("{name} differs over a queue: {reason}");
    true
}

/// The source of each module, under its name.
const SOURCES: &[(&str, &str)] = &[
    ("attempts", include_str!("attempts.rs")),
    ("cancelling", include_str!("cancelling.rs")),
    ("commands", include_str!("commands.rs")),
    ("explain", include_str!("explain.rs")),
    ("fairness", include_str!("fairness.rs")),
    ("large_values", include_str!("large_values.rs")),
    ("map", include_str!("map.rs")),
    ("nesting", include_str!("nesting.rs")),
    ("output", include_str!("output.rs")),
    ("resources", include_str!("resources.rs")),
    ("submit", include_str!("submit.rs")),
];

#[test]
fn the_list_names_the_tests_that_differ_and_nothing_else() {
    let mut asking = Vec::new();
    for (module, source) in SOURCES {
        for test in source.split("#[test]\nfn ").skip(1) {
            let (name, body) = test.split_once("()").expect("a test has no arguments");
            // Up to the end of the function.
            let body = body.split("\n}\n").next().unwrap_or_default();
            asking.extend(body.contains("differs!()").then(|| format!("{module}::{name}")));
        }
    }
    asking.sort();
    let mut listed: Vec<_> = DIFFERS.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    assert_eq!(listed, asking);
}
