//! Heads and workers are killed at random while tasks flow, for as long as one likes: whatever was accepted has one outcome, and keeps it.
//!
//! `TRACER_SOAK_SECONDS` says how long, and `TRACER_HEAD_KILLS` how many heads are killed under load; without them, not long and few. `TRACER_TEST_SEED` repeats the choices of a run, which says its seed when it fails.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tracer::Driver;

use crate::support::{Cluster, HOOK, Random, is_alive, kill, kill_if_there, wait_until, wait_until_within};

const SECONDS: u64 = 15;
/// Tasks between two looks at all of them. Well below what a head remembers.
const EPOCH: usize = 1500;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Tasks that were accepted and not looked at since.
#[derive(Default)]
struct Open {
    /// By id: what must be true of it.
    tasks: BTreeMap<u64, Expected>,
    total: usize,
    /// Outcomes that its driver was told, by id.
    told: BTreeMap<u64, bool>,
}

enum Expected {
    Value,
    Error,
    /// It is begun once at most; a line in this file for each time.
    Once(std::path::PathBuf),
}

/// A wave of tasks. The head may die at any time.
fn submit(cluster: &Cluster, random: &mut Random, open: &mut Open) {
    let Ok(mut driver) = Driver::connect(&cluster.temp_dir()) else { return };
    let mut wave = Vec::new();
    for _ in 0..10 + random.below(60) {
        let number = random.below(1000);
        let submitted = match random.below(8) {
            0 => {
                let task = driver.remote("misbehaving_tasks:returns_error").arg("no");
                let backoff = Duration::from_millis(1);
                task.and_then(|task| task.retries(1).retry_backoff(backoff).submit()).map(|task| (task, false))
            }
            1 => {
                let path = cluster.file(&format!("once-{}", open.total));
                let task = driver.remote("misbehaving_tasks:notes_when").arg(&path);
                let submitted = task.and_then(|task| task.at_most_once().submit());
                let Ok(task) = submitted else { break };
                let Ok(id) = driver.accepted(&task) else { break };
                open.tasks.insert(id.0, Expected::Once(path));
                open.total += 1;
                continue;
            }
            _ => {
                let task = driver.remote("misbehaving_tasks:makes_one_span").arg(number);
                task.and_then(|task| task.submit()).map(|task| (task, true))
            }
        };
        let Ok(task) = submitted else { break };
        wave.push(task);
    }
    let mut waited = Vec::new();
    for (task, succeeds) in wave {
        let Ok(id) = driver.accepted(&task) else { return };
        open.tasks.insert(id.0, if succeeds { Expected::Value } else { Expected::Error });
        open.total += 1;
        waited.push((id.0, task));
    }
    // Some are waited for, until the head dies or that is enough.
    let count = random.below(waited.len() as u64 + 1) as usize;
    for (id, task) in waited.into_iter().take(count) {
        match driver.wait(task) {
            Ok(finished) => open.told.insert(id, !matches!(finished.outcome, tracer::task::Outcome::Failed(_))),
            Err(_) => return,
        };
    }
}

/// Returns every task that is remembered, by id.
fn recorded(cluster: &Cluster) -> BTreeMap<u64, Value> {
    let list = cluster.tracer(&["list", "tasks", "--limit", "20000", "--format", "json"]).success().json();
    list["tasks"].as_array().unwrap().iter().map(|task| (task["id"].as_u64().unwrap(), task.clone())).collect()
}

/// Waits until everything has ended, and looks at each.
fn look(cluster: &Cluster, open: &mut Open, before: &mut BTreeMap<u64, Value>) {
    let tasks = wait_until_within(Duration::from_secs(60), "all have ended", || {
        let tasks = cluster.status()["tasks"].clone();
        (tasks["waiting"] == 0 && tasks["leased"] == 0).then(|| recorded(cluster))
    });
    for (id, expected) in std::mem::take(&mut open.tasks) {
        let task = tasks.get(&id).unwrap_or_else(|| panic!("task {id} was accepted and is not known"));
        let is_good = task["state"] == "succeeded";
        assert!(is_good || task["state"] == "failed", "{task}");
        if let Some(told) = open.told.remove(&id) {
            assert_eq!(told, is_good, "its driver was told otherwise: {task}");
        }
        let reason = task["failure"]["reason"].as_str().unwrap_or_default();
        let is_lost = ["worker_lost", "head_lost", "lost"].contains(&reason);
        match expected {
            Expected::Value => assert!(is_good || is_lost, "{task}"),
            Expected::Error => assert!(is_lost || reason == "error", "{task}"),
            Expected::Once(path) => {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let begun = text.lines().filter(|line| *line == "begin").count();
                assert!(begun <= 1 && (is_good || is_lost) && (!is_good || begun == 1), "{begun} times: {task}");
                let _ = fs::remove_file(path);
            }
        }
    }
    // What had an outcome has the same.
    for (id, task) in before.iter().filter_map(|(id, task)| Some((id, (task, tasks.get(id)?)))) {
        assert_eq!(task.0["state"], task.1["state"], "task {id} had another outcome before");
        assert_eq!(task.0["ended_unix_ms"], task.1["ended_unix_ms"], "task {id} ended twice");
    }
    *before = tasks;
}

#[test]
fn whatever_was_accepted_has_one_outcome_however_heads_and_workers_are_killed() {
    let limit = Duration::from_secs(number_of("TRACER_SOAK_SECONDS").unwrap_or(SECONDS));
    let builder = Cluster::builder().workers(2).hook(HOOK).env("TRACER_TEST_SETTING", "compaction_bytes=100000");
    let cluster = builder.start();
    let mut random = Random::of_test(&cluster);
    let (mut open, mut before) = (Open::default(), BTreeMap::new());
    let (mut heads, mut workers) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < limit {
        submit(&cluster, &mut random, &mut open);
        let kills_head = random.below(6) == 0;
        if random.below(3) == 0 {
            let pids = cluster.worker_pids();
            if let Some(&pid) = random.choose(&pids) {
                // One that the round before killed is listed until the head has heard of it.
                workers += u32::from(kill_if_there(pid, Signal::KILL));
            }
        }
        if kills_head {
            let head = cluster.head_pid();
            kill(head, Signal::KILL);
            heads += 1;
            wait_until("the head is gone", || (!is_alive(head)).then_some(()));
            cluster.start_head(&[]).success();
        }
        if open.tasks.len() >= EPOCH {
            look(&cluster, &mut open, &mut before);
        }
    }
    look(&cluster, &mut open, &mut before);
    println!("{} tasks, {heads} heads and {workers} workers killed in {:?}", open.total, begun.elapsed());
    assert!(open.total > 100 && heads > 0 && workers > 0, "{} tasks, {heads} heads, {workers} workers", open.total);
    cluster.stop().success();
}

/// Heads that are killed while tasks run that may not be lost once.
const HEAD_KILLS: u64 = 3;
/// Tasks that each of them gets.
const LOAD: u64 = 100;

#[test]
fn a_task_with_no_crash_to_spare_begins_once_however_often_its_head_is_killed() {
    let kills = number_of("TRACER_HEAD_KILLS").unwrap_or(HEAD_KILLS);
    let cluster = Cluster::builder().workers(2).start();
    let mut random = Random::of_test(&cluster);
    let path = |round: u64, number: u64| cluster.file(&format!("once-{round}-{number}"));
    for round in 0..kills {
        let mut driver = Driver::connect(&cluster.temp_dir()).expect("a head runs");
        for number in 0..LOAD {
            let task = driver.remote("misbehaving_tasks:notes_when").arg(path(round, number));
            let task = task.and_then(|task| task.crash_limit(0).submit()).expect("the head takes it");
            driver.accepted(&task).expect("the head takes it");
        }
        cluster.wait_for_file(&path(round, random.below(LOAD)));
        let head = cluster.head_pid();
        kill(head, Signal::KILL);
        wait_until("the head is gone", || (!is_alive(head)).then_some(()));
        cluster.start_head(&[]).success();
    }
    let open = || {
        let tasks = cluster.status()["tasks"].clone();
        tasks["waiting"].as_u64().expect("a number") + tasks["leased"].as_u64().expect("a number")
    };
    wait_until_within(Duration::from_secs(300), "everything has ended", || (open() == 0).then_some(()));
    let begun = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default().matches("begin").count();
    let all = (0..kills).flat_map(|round| (0..LOAD).map(move |number| (round, number)));
    let counts: Vec<_> = all.map(|(round, number)| begun(path(round, number))).collect();
    println!(
        "{kills} heads killed, {} tasks, {} of them lost",
        counts.len(),
        counts.iter().filter(|count| **count == 0).count()
    );
    assert!(counts.iter().all(|count| *count <= 1), "some began twice");
    cluster.stop().success();
}
