//! Whole programs that use the library: what they leave when they end, are killed or interrupted, and where their spans go.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::support::{Background, Cluster, HOOK, Spans, is_alive, kill, program_path, wait_until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Returns a place without a head, for a program that has one of its own.
#[track_caller]
fn no_head() -> Cluster {
    Cluster::builder().env("TRACER_TRACING_STARTUP_HOOK", HOOK).env("TRACER_NUM_WORKERS", "2").build()
}

/// Returns a program of the workspace, in the environment of the cluster. The places of heads of its own are in the cluster's folder.
fn program(cluster: &Cluster, name: &str, arguments: &[&str]) -> Command {
    let mut command = cluster.program(program_path(name));
    command.args(arguments).env("TMPDIR", cluster.folder());
    command
}

fn driver_program(cluster: &Cluster, arguments: &[&str]) -> Command {
    program(cluster, "driver_program", arguments)
}

/// Returns the places of heads that programs of this cluster have, or have left.
fn places(cluster: &Cluster) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cluster.folder()).expect("the folder is there").flatten();
    let is_place = |path: &PathBuf| path.to_string_lossy().contains("tracer-embedded-");
    entries.map(|entry| entry.path()).filter(is_place).collect()
}

/// Returns the paths of the files and folders in a folder and below it.
fn paths_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| std::iter::once(entry.path()).chain(paths_below(&entry.path()))).collect()
}

/// Returns a program that has a task and a command running, and what it said of its head.
#[track_caller]
fn holding(cluster: &Cluster, how: &str) -> (Background, Value) {
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let mut command = driver_program(cluster, &[how, &path(&started), &path(&released)]);
    // As a shell with job control has it.
    command.process_group(0);
    let program = cluster.spawn(command);
    cluster.wait_for_file(&started);
    program.wait_for_stdout("\n");
    let said = serde_json::from_str(&program.stdout_text()).expect("it says what head it has");
    (program, said)
}

/// Expects that the spans of a program whose task was running when it ended are all there.
#[track_caller]
fn assert_all_is_recorded(cluster: &Cluster) {
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let job = spans.named("tracer job");
    let attempt = spans.named("misbehaving_tasks.waits_in_span tracer.remote_worker");
    assert_eq!(spans.parent_of(attempt).name(), "misbehaving_tasks.waits_in_span tracer.remote");
    assert_eq!(spans.parent_of(spans.parent_of(attempt)).span_id(), job.span_id());
    assert_eq!(attempt.status_code(), "ERROR", "{}", attempt.value);
    let inner = spans.named("inner");
    assert_eq!(inner.parent_id(), Some(attempt.span_id()));
    assert!(spans.iter().all(|span| !span.value["end_time"].is_null()), "{}", spans.describe());
}

#[test]
fn the_example_counts_shows_what_failed_and_is_one_trace() {
    let cluster = no_head();
    let (one, two) = (cluster.file("one"), cluster.file("two"));
    std::fs::write(&one, "the quick brown fox").unwrap();
    std::fs::write(&two, "jumps over\nthe lazy dog\n").unwrap();
    let run = cluster.run(program(&cluster, "driver", &["one", "missing", "two"])).status(1);
    let text = run.stdout_text();
    assert!(text.starts_with("missing: task 2 (wordcount.count_file) failed: cannot open"), "{text}");
    assert!(text.contains("\n  attempt 1 ") && text.contains("\n  attempt 2 "), "{text}");
    assert!(text.ends_with("9 words in 2 files\n"), "{text}");
    assert_eq!(run.stderr_text(), "");
    cluster.assert_nothing_runs();
    assert!(places(&cluster).is_empty());
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let job = spans.named("tracer job");
    assert!(spans.iter().all(|span| span.trace_id() == job.trace_id()), "{}", spans.describe());
    assert_eq!(spans.all_named("wordcount.count_file tracer.remote").len(), 3);
    assert_eq!(spans.all_named("wordcount.count_file tracer.remote_worker").len(), 5, "two of them are retries");
}

#[test]
fn a_program_that_is_killed_leaves_no_process_and_all_spans() {
    let cluster = no_head();
    let (program, said) = holding(&cluster, "holds");
    assert_eq!(places(&cluster), [PathBuf::from(said["place"].as_str().expect("it has a head of its own"))]);
    kill(program.pid(), Signal::KILL);
    program.wait();
    cluster.assert_nothing_runs();
    assert!(places(&cluster).is_empty(), "the head has cleaned up after itself");
    assert_all_is_recorded(&cluster);
    let spans = cluster.spans();
    let job = spans.named("tracer job");
    assert_eq!((job.status_code(), job.status_description()), ("ERROR", "the process that waited for it died"));
}

/// Kills each subset of a program and its head: what was running is recorded, and nothing has a parent that is nowhere.
#[test]
fn whoever_dies_the_spans_of_a_program_and_its_own_head_are_all_there() {
    let subsets: [&[&str]; 8] = [
        &["head"],
        &["guard"],
        &["worker"],
        &["guard", "head"],
        &["head", "worker"],
        &["program", "head"],
        &["program", "head", "worker"],
        &["program", "guard"],
    ];
    for subset in subsets {
        let cluster = no_head();
        let (program, said) = holding(&cluster, "holds");
        let place = PathBuf::from(said["place"].as_str().expect("it has a head of its own"));
        let record: Value = serde_json::from_str(&std::fs::read_to_string(place.join("head.lock")).unwrap()).unwrap();
        let of_record = |name: &str| u32::try_from(record[name].as_u64().expect("a process id")).unwrap();
        let worker: u32 = std::fs::read_to_string(cluster.file("started")).unwrap().parse().unwrap();
        let pid = |who: &str| match who {
            "program" => program.pid(),
            "guard" => of_record("guard_pid"),
            "head" => of_record("pid"),
            _ => worker,
        };
        // None of them may act on the death of another before that one is dead too.
        subset.iter().for_each(|who| kill(pid(who), Signal::STOP));
        subset.iter().for_each(|who| kill(pid(who), Signal::KILL));
        if *subset == ["worker"] {
            // It is tried again, and ends then.
            std::fs::write(cluster.file("released"), "").unwrap();
        }
        let ended = program.wait();
        cluster.assert_nothing_runs();
        assert!(
            places(&cluster).is_empty(),
            "{subset:?} were killed, and {:?} is still there: {}",
            paths_below(&place),
            ended.stderr_text()
        );
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let attempts = spans.all_named("misbehaving_tasks.waits_in_span tracer.remote_worker");
        assert_eq!(attempts.len(), if *subset == ["worker"] { 2 } else { 1 }, "{subset:?}: {}", spans.describe());
        assert_eq!(spans.all_named("tracer job").len(), 1, "{subset:?}: {}", spans.describe());
        assert!(spans.iter().all(|span| !span.value["end_time"].is_null()), "{subset:?}: {}", spans.describe());
    }
}

#[test]
fn a_program_that_is_killed_with_its_head_and_guard_leaves_no_process() {
    let cluster = no_head();
    let (program, said) = holding(&cluster, "holds");
    let lock = Path::new(said["place"].as_str().expect("it has a head of its own")).join("head.lock");
    let record: Value = serde_json::from_str(&std::fs::read_to_string(lock).unwrap()).unwrap();
    let pid = |name: &str| u32::try_from(record[name].as_u64().expect("a process id")).unwrap();
    for pid in [program.pid(), pid("guard_pid"), pid("pid")] {
        kill(pid, Signal::KILL);
    }
    program.wait();
    cluster.assert_nothing_runs();
}

#[test]
fn a_ctrl_c_ends_a_program_and_its_head_records_what_ran() {
    let cluster = no_head();
    let (program, _) = holding(&cluster, "holds");
    let group = Pid::from_raw(i32::try_from(program.pid()).unwrap()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    let run = program.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&run.output.status), Some(2), "{}", run.describe());
    cluster.assert_nothing_runs();
    assert!(places(&cluster).is_empty());
    assert_all_is_recorded(&cluster);
}

#[test]
fn a_ctrl_c_cancels_where_a_program_wants_that_and_a_second_one_ends_it() {
    let cluster = no_head();
    let (program, _) = holding(&cluster, "holds-and-cancels");
    let group = Pid::from_raw(i32::try_from(program.pid()).unwrap()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    program.wait_for_stderr("cancelling 2 tasks (Ctrl-C again ends this program at once)\n");
    let run = program.wait().status(1);
    assert!(run.stdout_text().ends_with("\n{\"after\":1}\n"), "its head goes on: {}", run.describe());
    let text = run.stderr_text();
    assert!(text.ends_with("error: task 1 (misbehaving_tasks.waits_in_span) failed: it was cancelled\n"), "{text}");
    cluster.assert_nothing_runs();
    assert_all_is_recorded(&cluster);
    let spans = cluster.spans();
    assert_eq!(spans.named("tracer job").status_code(), "UNSET", "the program has ended it");

    let again = no_head();
    let (program, _) = holding(&again, "holds-and-cancels");
    let group = Pid::from_raw(i32::try_from(program.pid()).unwrap()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    program.wait_for_stderr("cancelling 2 tasks");
    kill_process_group(group, Signal::INT).unwrap();
    program.wait().status(130);
    again.assert_nothing_runs();
    assert_all_is_recorded(&again);
}

#[test]
fn a_program_traces_as_the_running_cluster_does() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let mut command = driver_program(&cluster, &["traces"]);
    // The head says where spans go; this program's environment does not.
    command.env_remove("TRACER_SPANS_DIR");
    let run = cluster.run(command).success();
    let said: Vec<Value> = run.stdout_text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&said[0]["place"], &said[0]["warnings"]), (&Value::Null, &json!([])));
    assert_eq!(said[1]["ones"], 20);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let job = spans.named("tracer job");
    assert_eq!(job.trace_id(), format!("0x{}", said[1]["trace_id"].as_str().unwrap()));
    assert_eq!(spans.children_of(job).len(), 21, "{}", spans.describe());
    assert_eq!(spans.all_named("demo.my_function tracer.remote_worker").len(), 20);
    // The same hook, said: that is what the cluster has. Another one is an error, and nothing is submitted.
    cluster.run(driver_program(&cluster, &["traces", HOOK])).success();
    let refused = cluster.run(driver_program(&cluster, &["traces", "console:setup_tracing"])).status(1);
    let text = refused.stderr_text();
    assert!(text.starts_with("error: expected a cluster with `console:setup_tracing`, but the one in `"), "{text}");
    assert!(text.contains("` has `local_tmp_tracing:setup_tracing`\n(hint: "), "{text}");
    assert_eq!(cluster.spans().all_named("tracer job").len(), 2);
}

#[test]
fn a_submission_is_a_part_of_the_trace_that_it_is_given() {
    let cluster = Cluster::traced();
    let mut command = driver_program(&cluster, &["traces-as-a-part", &format!("00-{TRACE}-{PARENT}-01")]);
    let shell = "00-11111111111111111111111111111111-2222222222222222-01";
    command.env("TRACEPARENT", shell).env("BAGGAGE", "customer=ada");
    let said = cluster.run(command).success().json();
    assert_eq!(said, json!({ "part": TRACE, "other": "1".repeat(32) }), "what the environment says is for the others");
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{PARENT}"), "0x2222222222222222"]);
    let submissions = spans.all_named("demo.my_function tracer.remote");
    let parents: Vec<_> = submissions.iter().map(|span| span.parent_id().unwrap()).collect();
    assert_eq!(parents, [format!("0x{PARENT}").as_str(), "0x2222222222222222"]);
}

#[test]
fn a_tracestate_of_level_2_goes_on_from_a_program_as_it_came() {
    let cluster = Cluster::traced();
    for state in crate::spans::level_2_trace_states() {
        let mut command = driver_program(&cluster, &["shows-headers"]);
        command.env("TRACEPARENT", format!("00-{TRACE}-{PARENT}-01")).env("TRACESTATE", &state);
        let said = cluster.run(command).success().stderr("").json();
        assert_eq!(said["task"][0][1], *state, "{said}");
        assert_eq!(said["command"], json!([state]), "{said}");
    }
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{PARENT}")]);
    assert!(spans.iter().all(|span| !span.value["context"]["trace_state"].to_string().contains("tracer-level2")));
}

#[test]
fn a_submission_is_a_child_of_the_span_that_the_program_has_current() {
    let cluster = Cluster::traced();
    let said = cluster.run(driver_program(&cluster, &["has-spans-of-its-own"])).success().json();
    assert_eq!(said["baggage"], json!([{ "customer": "ada" }, {}]));
    let own = format!("0x{}", said["span_id"].as_str().unwrap());
    let spans = cluster.spans();
    // The program's own provider keeps its spans for itself.
    spans.assert_whole(&[&own]);
    let submissions = spans.all_named("misbehaving_tasks.baggage tracer.remote");
    assert_eq!(submissions.len(), 2);
    assert_eq!(submissions[0].parent_id(), Some(own.as_str()));
    assert_eq!(submissions[0].trace_id(), format!("0x{}", said["trace_id"].as_str().unwrap()));
    assert_eq!(spans.parent_of(submissions[1]).name(), "tracer job");
}

#[test]
fn what_cannot_be_taken_over_amid_threads_is_said() {
    let cluster = Cluster::traced();
    let mut command = driver_program(&cluster, &["has-threads"]);
    let elsewhere = cluster.file("elsewhere");
    command.env("TRACER_SPANS_DIR", &elsewhere);
    let said = cluster.run(command).success().json();
    let warning = said["warnings"][0].as_str().expect("one warning");
    let expected =
        format!("`TRACER_SPANS_DIR` is `{}` there, and could not be set here", cluster.spans_dir().display());
    assert!(warning.contains(&expected), "{warning}");
    assert_eq!(Spans::read(&elsewhere).all_named("demo.my_function tracer.remote").len(), 1);
    let mut same = driver_program(&cluster, &["has-threads"]);
    same.env("TRACER_SPANS_DIR", cluster.spans_dir()).env("TRACER_TRACING_SAMPLING_RATIO", "1");
    assert_eq!(cluster.run(same).success().json()["warnings"], json!([]));
}

#[test]
fn a_process_has_its_hooks_once() {
    let cluster = no_head();
    let run = cluster.run(driver_program(&cluster, &["inits-twice", HOOK, "otlp_file:setup_tracing"])).success();
    let expected = "1\n1\nexpected to trace with `otlp_file:setup_tracing`, but this process traces with \
                    `local_tmp_tracing:setup_tracing`\n(hint: ";
    assert!(run.stdout_text().starts_with(expected), "{}", run.stdout_text());
    cluster.assert_nothing_runs();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.all_named("demo.my_function tracer.remote").len(), 2, "of both heads");
}

#[test]
fn a_program_that_panics_stops_its_head_and_its_job_says_so() {
    let cluster = no_head();
    let run = cluster.run(driver_program(&cluster, &["panics"])).status(101);
    assert!(run.stderr_text().contains("in the middle"), "{}", run.describe());
    assert!(places(&cluster).is_empty());
    cluster.assert_nothing_runs();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let job = spans.named("tracer job");
    assert_eq!((job.status_code(), job.status_description()), ("ERROR", "the program panicked"));
}

#[test]
fn what_a_program_leaves_behind_was_accepted() {
    let cluster = Cluster::traced();
    let released = cluster.file("released");
    let leaves = driver_program(&cluster, &["submits-and-leaves", released.to_str().unwrap()]);
    cluster.run(leaves).success();
    std::fs::write(&released, "").unwrap();
    assert_eq!(cluster.wait_for_task(1)["result"], 5);
    let spans = cluster.wait_for_spans("the attempt has ended", |spans| {
        !spans.all_named("nested_tasks.after tracer.remote_worker").is_empty()
    });
    spans.assert_whole(&[]);
    assert_eq!(*spans.named("nested_tasks.after tracer.remote").attribute("tracer.task_id"), 1);
}

#[test]
fn a_program_that_submits_and_submits_needs_few_slots_of_its_spool() {
    let cluster = Cluster::traced();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let many = ["submits-many", "12000", started.to_str().unwrap(), released.to_str().unwrap()];
    let program = cluster.spawn(driver_program(&cluster, &many));
    cluster.wait_for_file(&started);
    let spools = std::fs::read_dir(cluster.session_dir().join("spool")).unwrap().flatten();
    let own = format!("driver-{}-", program.pid());
    let spool = spools.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&own));
    let bytes = spool.expect("it has one").metadata().unwrap().blocks() * 512;
    std::fs::write(&released, "").unwrap();
    program.wait().success();
    // As many as wait to be accepted, and as many as are written together; the whole spool has four times as many.
    let most = (1024 + 128 + 64 + 64) * 2048 + (64 << 10);
    assert!(
        (1..=most).contains(&bytes),
        "the spool of a program with 12,000 spans has {bytes} bytes, expected at most {most}"
    );
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_command_of_an_embedded_head_finds_that_head() {
    let cluster = no_head();
    let (program, said) = holding(&cluster, "holds");
    let place = said["place"].as_str().unwrap().to_owned();
    // As anybody may look at it while it runs.
    let status = cluster.tracer(&["status", "--temp-dir", &place, "--format", "json"]).success().json();
    assert_eq!(status["head_pid"], said["head_pid"]);
    std::fs::write(cluster.file("released"), "").unwrap();
    program.wait().success();
    let head = u32::try_from(said["head_pid"].as_u64().unwrap()).unwrap();
    wait_until("the head is gone", || (!is_alive(head)).then_some(()));
}
