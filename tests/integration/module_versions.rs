//! Modules that are built anew or overwritten while a head runs: what is submitted runs what was built last, and nothing dies of it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::support::{Cluster, HOOK, compile_c_with, module_folder, skip, wait_until};

const SOURCE: &str = "tests/fixtures/c/version.c";

/// Starts a head that finds modules in the folder `built`.
fn cluster(workers: usize, hook: Option<&str>) -> Cluster {
    let builder = Cluster::builder().workers(workers).arg("--module-path").arg("built");
    let cluster = if let Some(hook) = hook { builder.hook(hook) } else { builder }.build();
    fs::create_dir(cluster.file("built")).unwrap();
    cluster.start_head(&[]).success();
    cluster
}

/// Compiles the module that answers with a number, to a file of its own.
fn compile(cluster: &Cluster, answer: u8) -> PathBuf {
    let library = cluster.file(&format!("version-{answer}.so"));
    compile_c_with(SOURCE, &library, &[&format!("-DANSWER={answer}"), "-Wl,--build-id"]);
    library
}

fn library(cluster: &Cluster) -> PathBuf {
    cluster.file("built/libversion.so")
}

/// Builds the module as linkers and cargo do: what was there is replaced.
fn build(cluster: &Cluster, answer: u8) {
    let built = compile(cluster, answer);
    fs::rename(built, library(cluster)).unwrap();
}

/// Writes it over what is there, as `cp` does.
fn overwrite(cluster: &Cluster, answer: u8) {
    let built = fs::read(compile(cluster, answer)).unwrap();
    fs::write(library(cluster), built).unwrap();
}

#[track_caller]
fn assert_answers(cluster: &Cluster, answer: u8) {
    cluster.submit("version:answer", &[]).success().stdout(&format!("{answer}\n"));
}

/// Returns the names of the versions of which there are copies.
fn copies(cluster: &Cluster) -> Vec<String> {
    let entries = fs::read_dir(cluster.temp_dir().join("modules")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.len() == 16).collect()
}

#[test]
fn what_was_built_last_is_used_by_the_next_submission() {
    let cluster = cluster(2, Some(HOOK));
    for answer in 1..=4 {
        // Each in another way.
        if answer % 2 == 0 {
            overwrite(&cluster, answer)
        } else {
            build(&cluster, answer)
        }
        assert_answers(&cluster, answer);
        let lines = "[]\n".repeat(20);
        let mapped = map(&cluster, "version:answer", &lines);
        assert_eq!(mapped, vec![answer.to_string(); 20], "one version for all of them");
    }
    let status = cluster.status();
    assert_eq!(status["workers"]["lost"], 0, "nothing has died");
    assert_eq!(status["tasks"]["failed"], 0);
    assert!(copies(&cluster).len() <= 2, "old copies are removed: {:?}", copies(&cluster));
    // Every span of an attempt says what it ran.
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let mut seen = std::collections::BTreeSet::new();
    for span in spans.iter().filter(|span| span.kind() == "SpanKind.CONSUMER") {
        let version = span.attribute("tracer.module.version").as_str().unwrap_or_default();
        assert!(version.len() == 40 && version.bytes().all(|byte| byte.is_ascii_hexdigit()), "a build id: {version}");
        seen.insert(version.to_owned());
    }
    assert_eq!(seen.len(), 4);
    let shown = cluster.tracer(&["modules", "show", "./built/libversion.so", "--format", "json"]).success().json();
    assert!(seen.contains(shown["build_id"].as_str().unwrap()), "{shown} has one of {seen:?}");
}

/// `tracer submit task --map`, with these lines. Returns those that it printed.
#[track_caller]
fn map(cluster: &Cluster, target: &str, lines: &str) -> Vec<String> {
    let input = cluster.file("lines");
    fs::write(&input, lines).unwrap();
    let run = cluster.tracer(&["submit", "task", target, "--map", "lines"]).success();
    run.stdout_text().lines().map(str::to_owned).collect()
}

#[test]
fn mapping_runs_one_version_whatever_is_built_meanwhile() {
    let cluster = cluster(2, None);
    build(&cluster, 1);
    let mut command = cluster.command(&["submit", "task", "version:answer", "--map", "-"]);
    command.stdin(std::process::Stdio::piped());
    let mut mapping = cluster.spawn(command);
    let mut input = mapping.take_stdin();
    for answer in 2..=5 {
        input.write_all("[]\n".repeat(50).as_bytes()).unwrap();
        input.flush().unwrap();
        wait_until("those lines have run", || {
            let done = cluster.status()["tasks"]["succeeded"].as_u64()?;
            (done >= u64::from(answer - 1) * 50 + u64::from(answer - 2)).then_some(())
        });
        if answer % 2 == 0 {
            overwrite(&cluster, answer)
        } else {
            build(&cluster, answer)
        }
        // What others submit is new, and must not take the old one's place, nor its copy.
        assert_answers(&cluster, answer);
    }
    input.write_all("[]\n".repeat(50).as_bytes()).unwrap();
    drop(input);
    let run = mapping.wait().success();
    assert_eq!(run.stdout_text().lines().collect::<Vec<_>>(), ["1"; 250]);
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}

#[test]
fn an_attempt_after_a_crash_and_a_task_of_a_task_run_the_same_version() {
    let cluster = cluster(2, Some(HOOK));
    build(&cluster, 1);
    let go = cluster.file("go");
    let path = format!("\"{}\"", go.display());
    let again = cluster.submit_in_background("version:dies_when", &[&path]);
    let nested = cluster.submit_in_background("version:asks_when", &[&path]);
    wait_until("both run", || {
        let running = cluster.tasks().iter().filter(|task| task["state"] == "running").count();
        (running == 2).then_some(())
    });
    overwrite(&cluster, 2);
    File::create(&go).unwrap();
    again.wait().success().stdout("1\n");
    nested.wait().success().stdout("1\n");
    assert_answers(&cluster, 2);
    let spans = cluster.spans();
    let versions: Vec<_> = spans
        .all_named("version.dies_when tracer.remote_worker")
        .iter()
        .map(|span| span.attribute("tracer.module.version").clone())
        .collect();
    assert_eq!(versions.len(), 2, "{}", spans.describe());
    assert_eq!(versions[0], versions[1]);
}

#[test]
fn a_head_that_follows_one_that_was_killed_runs_waiting_tasks_in_their_version() {
    let cluster = cluster(1, None);
    build(&cluster, 1);
    let go = cluster.file("go");
    cluster.tracer(&["submit", "task", "version:answer_when", &format!("\"{}\"", go.display()), "--no-wait"]).success();
    cluster.tracer(&["submit", "task", "version:answer", "--no-wait"]).success();
    build(&cluster, 2);
    cluster.kill_head();
    cluster.start_head(&[]).success();
    File::create(&go).unwrap();
    for id in [1, 2] {
        assert_eq!(cluster.wait_for_task(id)["result"], 1, "task {id}");
    }
    assert_answers(&cluster, 2);
}

#[test]
fn workers_that_have_an_older_version_are_replaced() {
    let cluster = cluster(1, None);
    build(&cluster, 1);
    assert_answers(&cluster, 1);
    let before = cluster.worker_pids();
    assert_answers(&cluster, 1);
    assert_eq!(cluster.worker_pids(), before, "nothing has changed");
    // The same contents under another time.
    let same = fs::read(library(&cluster)).unwrap();
    fs::write(library(&cluster), same).unwrap();
    assert_answers(&cluster, 1);
    assert_eq!(cluster.worker_pids(), before, "it is the same version");
    assert_eq!(copies(&cluster).len(), 1);
    build(&cluster, 2);
    assert_answers(&cluster, 2);
    wait_until("the worker is another one", || {
        let pids = cluster.worker_pids();
        (!pids.is_empty() && !pids.contains(&before[0])).then_some(())
    });
    assert_eq!(cluster.status()["workers"]["lost"], 0, "it was told to end");
}

#[test]
fn a_library_that_is_being_written_is_waited_for() {
    let cluster = cluster(1, None);
    build(&cluster, 1);
    assert_answers(&cluster, 1);
    let new = fs::read(compile(&cluster, 2)).unwrap();
    let mut file = OpenOptions::new().write(true).truncate(true).open(library(&cluster)).unwrap();
    let half = new.len() / 2;
    file.write_all(&new[..half]).unwrap();
    let submission = cluster.submit_in_background("version:answer", &[]);
    // While it waits, what comes first is here.
    for part in new[half..].chunks(half / 8) {
        file.write_all(part).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    submission.wait().success().stdout("2\n");
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}

#[test]
fn a_library_that_stays_incomplete_is_refused_with_the_reason() {
    let cluster = cluster(1, None);
    build(&cluster, 1);
    assert_answers(&cluster, 1);
    let whole = fs::read(library(&cluster)).unwrap();
    fs::write(library(&cluster), &whole[..whole.len() - 100]).unwrap();
    cluster
        .submit("version:answer", &[])
        .status(1)
        .stderr_contains("`<folder>/built/libversion.so` is not a complete library: it has")
        .stderr_contains("submit again when its build has ended");
    fs::write(library(&cluster), &whole).unwrap();
    assert_answers(&cluster, 1);
}

#[test]
fn actors_keep_their_version_until_they_are_made_again() {
    let cluster = cluster(2, None);
    let original = module_folder().join("libcounter.so");
    let library = cluster.file("built/libmine.so");
    fs::copy(&original, &library).unwrap();
    cluster.tracer(&["submit", "actor", "mine:Counter", "5", "--name", "keeps"]).success();
    cluster.tracer(&["submit", "call", "keeps", "increment", "1"]).success().stdout("6\n");
    let row = || {
        let rows = cluster.tracer(&["list", "actors", "--format", "json"]).success().json();
        rows["actors"].as_array().unwrap().iter().find(|row| row["name"] == "keeps").cloned().unwrap()
    };
    assert_eq!(row()["is_outdated"], false);
    // Other contents that do the same.
    let mut bytes = fs::read(&library).unwrap();
    bytes.extend(b"behind the tables");
    fs::write(&library, bytes).unwrap();
    cluster.tracer(&["submit", "call", "keeps", "increment", "1"]).success().stdout("7\n");
    assert_eq!(row()["is_outdated"], true);
    cluster.tracer(&["list", "actors"]).success().stdout_contains("alive (older build)");
    cluster.tracer(&["status"]).success().stdout_contains("`keeps` (mine:Counter) runs an older build of its module");
    cluster.tracer(&["submit", "actor", "mine:Counter", "1", "--name", "new"]).success();
    cluster.tracer(&["submit", "call", "keeps", "increment", "1"]).success().stdout("8\n");
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}

#[test]
fn libraries_that_a_module_finds_beside_it_are_copied_with_it() {
    let cluster = cluster(1, None);
    for answer in [1_u8, 2] {
        let answer = format!("-DANSWER={answer}");
        compile_c_with(SOURCE, &cluster.file("built/parts/libneeded.so"), &["-DLIBRARY", &answer]);
        if answer == "-DANSWER=1" {
            let parts = format!("-L{}", cluster.file("built/parts").display());
            let further = ["-DNEEDS", &answer, &parts, "-lneeded", "-Wl,-rpath,$ORIGIN/../built/parts"];
            compile_c_with(SOURCE, &library(&cluster), &further);
        }
        assert_answers(&cluster, answer.trim_start_matches("-DANSWER=").parse().unwrap());
        fs::write(cluster.file("built/parts/libneeded.so"), vec![0; 1 << 16]).unwrap();
        // What is mapped is the copy.
        fs::remove_file(cluster.file("built/parts/libneeded.so")).unwrap();
    }
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}

#[test]
fn a_module_of_tasks_and_the_hook_of_a_session_do_not_disturb_each_other() {
    let cluster = Cluster::builder().arg("--module-path").arg("built").hook("./built/libmine.so:setup_tracing").build();
    fs::create_dir(cluster.file("built")).unwrap();
    let hook = cluster.file("built/libmine.so");
    fs::copy(module_folder().join("liblocal_tmp_tracing.so"), &hook).unwrap();
    cluster.start_head(&[]).success();
    for answer in 1..=2 {
        build(&cluster, answer);
        assert_answers(&cluster, answer);
        // A hook that is built anew is that of the processes that are started from then on.
        let mut bytes = fs::read(&hook).unwrap();
        bytes.push(answer);
        fs::write(cluster.file("new.so"), bytes).unwrap();
        fs::rename(cluster.file("new.so"), &hook).unwrap();
    }
    let status = cluster.status();
    assert_eq!(status["hook"]["failed_workers"], serde_json::json!([]));
    assert_eq!(status["workers"]["lost"], 0);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.all_named("version.answer tracer.remote_worker").len(), 2, "{}", spans.describe());
}

/// A file system on which nothing may be executed; none, which skips the test, where none can be mounted.
struct Noexec(PathBuf);

impl Noexec {
    fn mount(path: &Path) -> Option<Noexec> {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "noexec,mode=0700,size=64m", "tracer-test"]).arg(path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            skip("tmpfs", "none can be mounted here");
        }
        mounted.then(|| Noexec(path.into()))
    }
}

impl Drop for Noexec {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn copies_in_a_folder_where_nothing_may_be_executed_are_loaded_from_memory() {
    let cluster = Cluster::builder().arg("--module-path").arg("built").build();
    fs::create_dir(cluster.file("built")).unwrap();
    let place = cluster.temp_dir();
    fs::create_dir_all(&place).unwrap();
    let Some(mounted) = Noexec::mount(&place) else { return };
    cluster.start_head(&[]).success();
    build(&cluster, 1);
    assert_answers(&cluster, 1);
    overwrite(&cluster, 2);
    assert_answers(&cluster, 2);
    assert_eq!(cluster.status()["workers"]["lost"], 0);
    cluster.stop().success();
    drop(mounted);
}

#[test]
fn whoever_asks_about_modules_is_told_what_the_head_finds() {
    let cluster = cluster(1, None);
    build(&cluster, 1);
    let pid = cluster.head_pid();
    // These commands have no module path of their own.
    let tracer = |arguments: &[&str]| {
        let mut command = cluster.command(arguments);
        command.env_remove("TRACER_MODULE_PATH");
        cluster.run(command)
    };
    let shown = tracer(&["modules", "show", "version"]).success();
    shown.stdout_contains("built/libversion.so").stdout_contains(&format!("as the head (pid {pid}) looks for modules"));
    let rows = tracer(&["list", "modules", "--format", "json"]).success().json();
    let row = rows["modules"].as_array().unwrap().iter().find(|row| row["name"] == "version").expect("it is listed");
    assert_eq!(row["searched_as"], serde_json::json!({"by": "head", "head_pid": pid}));
    fs::copy(module_folder().join("libhook_stdout.so"), cluster.file("built/libmine.so")).unwrap();
    tracer(&["hooks", "check", "mine:setup_tracing"]).success().stdout_contains("as the head (pid");
    tracer(&["list", "hooks"]).success().stdout_contains("mine:setup_tracing");
    // Who names folders, or wants no head, gets his own.
    tracer(&["modules", "show", "version", "--no-head"]).status(1).stderr_contains("`version` was not found");
    let own = tracer(&["modules", "show", "version", "--module-path", "built"]).success();
    own.stdout_contains("no head was asked");
    cluster.stop().success();
    tracer(&["modules", "show", "version"]).status(1).stderr_contains("`version` was not found");
}
