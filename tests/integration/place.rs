//! The place of a head: what may be one, and what happens to it while the head runs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Cluster, is_alive, kill, python_with, wait_until};

/// Starts a cluster with one worker, which is busy until the file `go` exists, and a task that waits.
fn busy() -> Cluster {
    let cluster = Cluster::builder().workers(1).start();
    let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
    cluster.submit("misbehaving_tasks:waits", &[&started, &go, "--no-wait"]).success().stdout("1\n");
    cluster.wait_for_file(&cluster.file("started"));
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("2\n");
    cluster
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|found| found.ino())
}

fn is_warned(cluster: &Cluster, text: &str) -> bool {
    let status = cluster.status();
    let warnings = status["warnings"].as_array().expect("a list");
    warnings.iter().any(|warning| warning.as_str().is_some_and(|warning| warning.contains(text)))
}

#[test]
fn a_journal_that_is_removed_or_replaced_is_written_anew_with_all_that_is_known() {
    let cluster = busy();
    let journal = cluster.temp_dir().join("tasks.journal");
    fs::remove_file(&journal).unwrap();
    wait_until("the journal is there again", || inode(&journal));
    assert!(is_warned(&cluster, "tasks.journal` was removed or replaced, and is written anew"));
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("3\n");

    fs::write(cluster.file("other"), "shopping list: milk, eggs, bread").unwrap();
    let other = inode(&cluster.file("other"));
    fs::rename(cluster.file("other"), &journal).unwrap();
    wait_until("the journal is there again", || (inode(&journal) != other).then_some(()));
    let names = fs::read_dir(cluster.temp_dir()).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = names.filter(|path| path.to_string_lossy().contains("tasks.journal.replaced-")).collect();
    assert_eq!(kept.len(), 1, "what was there is kept");
    assert_eq!(fs::read_to_string(&kept[0]).unwrap(), "shopping list: milk, eggs, bread");
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("4\n");

    cluster.kill_head();
    fs::write(cluster.file("go"), "").unwrap();
    cluster.start_head(&[]).success().stderr_contains("4 tasks that an earlier head had accepted");
    for task in 1..=4 {
        assert_eq!(cluster.wait_for_task(task)["state"], "succeeded");
    }
    cluster.stop().success();
}

#[test]
fn a_journal_that_is_cut_short_is_noticed_at_once() {
    let cluster = busy();
    // As `> tasks.journal` in a shell. Nothing asks the head meanwhile.
    fs::OpenOptions::new().write(true).truncate(true).open(cluster.temp_dir().join("tasks.journal")).unwrap();
    wait_until("the head notices", || cluster.head_log().contains("was truncated by another process").then_some(()));
    assert!(is_warned(
        &cluster,
        "tasks.journal` was truncated by another process: tasks that were accepted before then are lost"
    ));
    // The commands that it names can be typed as they are, for people and for programs.
    let place = cluster.temp_dir().display().to_string();
    for format in ["text", "json"] {
        let mut status = cluster.command(&["status", "--temp-dir", &place, "--format", format]);
        status.env_remove("TRACER_TEMP_DIR");
        let text = cluster.run(status).success().stdout_text();
        for named in
            [format!("`tracer stop --temp-dir {place}`"), format!("`tracer start --temp-dir {place} --head --fresh`")]
        {
            assert!(text.contains(&named), "{format}: {named}: {text}");
        }
    }
    // Those tasks are known as long as the head lives.
    fs::write(cluster.file("go"), "").unwrap();
    for task in 1..=2 {
        assert_eq!(cluster.wait_for_task(task)["state"], "succeeded");
    }
    cluster.stop().success();
}

#[test]
fn a_journal_that_is_cut_short_by_its_path_is_noticed_too() {
    let Some(python) = python_with("os") else { return };
    let cluster = busy();
    // Nothing is opened and closed, and nothing asks the head meanwhile.
    let cut = "import os, sys; os.truncate(sys.argv[1], 16)";
    let mut command = Command::new(python);
    command.args(["-c", cut]).arg(cluster.temp_dir().join("tasks.journal"));
    assert!(command.status().expect("Python is there").success());
    wait_until("the head notices", || cluster.head_log().contains("was truncated by another process").then_some(()));
    fs::write(cluster.file("go"), "").unwrap();
    for task in 1..=2 {
        assert_eq!(cluster.wait_for_task(task)["state"], "succeeded");
    }
    cluster.stop().success();
}

#[test]
fn a_lock_that_is_removed_or_replaced_is_taken_back_and_no_second_head_starts() {
    let cluster = busy();
    let lock = cluster.temp_dir().join("head.lock");
    for replacement in [None, Some("not a lock")] {
        let head = cluster.head_pid();
        // As long as the head cannot see it, nobody else gets the place.
        if let Some(text) = replacement {
            fs::write(cluster.file("other"), text).unwrap();
            fs::rename(cluster.file("other"), &lock).unwrap();
        } else {
            // As long as the head cannot see it, nobody else gets the place.
            kill(head, Signal::STOP);
            fs::remove_file(&lock).unwrap();
            cluster.start_head(&[]).status(1).stderr_contains("another process holds a lock on the folder");
            kill(head, Signal::CONT);
        }
        wait_until("the lock is there again", || (cluster.head_record()["pid"] == head).then_some(()));
        cluster.start_head(&[]).status(5).stderr_contains("a head is already running in");
        assert!(is_warned(&cluster, "head.lock` was removed or replaced, and was made anew"));
    }
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("3\n");
    cluster.tracer(&["stop", "--force"]).success();
    cluster.assert_nothing_runs();
}

#[test]
fn a_socket_that_is_removed_is_made_anew() {
    let cluster = busy();
    let socket = cluster.session_dir().join("head.sock");
    fs::remove_file(&socket).unwrap();
    wait_until("the socket is there again", || inode(&socket));
    wait_until("it is this user's alone", || {
        (fs::metadata(&socket).ok()?.permissions().mode() & 0o777 == 0o600).then_some(())
    });
    assert!(is_warned(&cluster, "head.sock` was removed or replaced, and was made anew"));
    fs::write(cluster.file("go"), "").unwrap();
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    cluster.stop().success();
}

#[test]
fn a_head_whose_folder_is_moved_or_removed_ends_with_all_its_processes() {
    for is_moved in [true, false] {
        let cluster = busy();
        fs::write(cluster.file("go"), "").unwrap();
        let head = cluster.head_pid();
        if is_moved {
            fs::rename(cluster.temp_dir(), cluster.file("elsewhere")).unwrap();
        } else {
            // What the head makes meanwhile keeps the folder from going at once.
            wait_until("the place is removed", || {
                let _ = fs::remove_dir_all(cluster.temp_dir());
                (!cluster.temp_dir().exists()).then_some(())
            });
        }
        wait_until("the head ends", || (!is_alive(head)).then_some(()));
        cluster.assert_nothing_runs();
        cluster.start_head(&[]).success();
        cluster.stop().success();
    }
}

/// systemd-tmpfiles leaves alone what is locked, and everything below it.
#[test]
fn the_folder_is_locked_as_long_as_its_head_lives() {
    let cluster = Cluster::builder().workers(1).start();
    let folder = fs::File::open(cluster.temp_dir()).unwrap();
    let tried = || flock(&folder, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(tried(), Err(rustix::io::Errno::WOULDBLOCK));
    cluster.kill_head();
    wait_until("the lock is free", || tried().ok());
    flock(&folder, FlockOperation::Unlock).unwrap();
    cluster.start_head(&[]).success();
    cluster.stop().success();
    assert_eq!(tried(), Ok(()));
}

#[test]
fn a_folder_that_cannot_be_a_place_is_refused_with_the_reason() {
    let cluster = Cluster::builder().build();
    fs::write(cluster.file("file"), "").unwrap();
    std::os::unix::fs::symlink(cluster.file("nowhere"), cluster.file("dangling")).unwrap();
    let in_folder = |name: &str| cluster.file(name).display().to_string();
    let table = [
        ("/proc/x".to_owned(), "cannot create `/proc/x`: No such file or directory"),
        ("/proc/self/x".to_owned(), "cannot create `/proc/self/x`: No such file or directory"),
        ("/proc/x/y".to_owned(), "cannot create `/proc/x`: No such file or directory"),
        ("/sys/x".to_owned(), "cannot create `/sys/x`: "),
        (in_folder("file"), "it is not a folder"),
        (in_folder("file/x"), "Not a directory"),
        (in_folder("dangling"), "it is a symbolic link"),
        ("/dev/null".to_owned(), "it is not a folder"),
    ];
    for (folder, expected) in table {
        let run = cluster.start_head(&["--temp-dir", &folder]);
        let text = run.stderr_text();
        assert!([Some(1), Some(2)].contains(&run.output.status.code()), "{folder}: {}", run.describe());
        assert!(text.starts_with("error: ") && text.contains(expected), "{folder}: {text}");
    }
    cluster.assert_nothing_runs();
}

#[test]
fn a_journal_or_a_lock_that_is_no_regular_file_is_refused_and_nobody_waits() {
    for (name, expected) in [
        ("tasks.journal", "tasks.journal` is a named pipe, but has to be a regular file"),
        ("head.lock", "head.lock`: it is not a regular file"),
    ] {
        let cluster = Cluster::builder().build();
        fs::create_dir(cluster.temp_dir()).unwrap();
        fs::set_permissions(cluster.temp_dir(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = cluster.temp_dir().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo can be run");
        assert!(made.success());
        cluster.start_head(&[]).status(1).stderr_contains(expected);
        cluster.assert_nothing_runs();
        fs::remove_file(&path).unwrap();
        cluster.start_head(&[]).success();
        cluster.stop().success();
    }
}
