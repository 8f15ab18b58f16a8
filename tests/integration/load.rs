//! Much of everything: many tasks that wait, many clients, clients that are slow or dead, and what a head costs when nothing happens.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::json;
use tracer::Driver;

use crate::support::{Cluster, HOOK, kill, program_path, read_answer, skip, wait_until};

/// Open files, threads and memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Footprint {
    files: usize,
    threads: usize,
    /// Memory that is its own, in KiB.
    memory: u64,
}

fn footprint(pid: u32) -> Footprint {
    let count = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).expect("it runs").count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says it");
    let memory = memory.trim().trim_end_matches(" kB").parse().expect("a number");
    Footprint { files: count("fd"), threads: count("task"), memory }
}

/// Processor time in ticks, and how often each of its threads went to sleep.
fn activity(pid: u32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<_> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    let mut switches = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        switches += line.map_or(0, |count| count.trim().parse::<u64>().expect("a number"));
    }
    (ticks, switches)
}

#[test]
fn a_cluster_in_which_nothing_happens_does_nothing() {
    let cluster = Cluster::builder()
        .workers(2)
        .hook(HOOK)
        .arg("--worker-memory=1GiB")
        .env("TRACER_TEST_WITHOUT", "control_groups")
        .arg("--journal-sync")
        .start();
    cluster.submit("demo:my_function", &[]).success();
    let pids: Vec<_> = cluster.processes().iter().map(|process| process.pid).collect();
    assert!(pids.len() >= 4, "the head, its guard, and two workers");
    wait_for_rest(&pids);
}

/// Waits until these processes have come to rest, and then rest for two seconds: this is what is measured, and nothing is waited for.
#[track_caller]
fn wait_for_rest(pids: &[u32]) {
    let all = || pids.iter().map(|&pid| (pid, activity(pid))).collect::<BTreeMap<_, _>>();
    let rest = wait_until("it comes to rest", || {
        let (before, since) = (all(), Instant::now());
        while since.elapsed() < Duration::from_secs(2) {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        let after = all();
        (before == after).then_some(after)
    });
    assert_eq!(rest.len(), pids.len());
}

#[test]
fn a_service_whose_clients_ask_for_nothing_does_nothing() {
    let cluster = Cluster::builder().workers(1).hook(HOOK).start();
    let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let address = address.expect("there is a free port");
    let file = cluster.file("service.toml");
    let text =
        format!("name = \"shop\"\n[http]\naddress = \"{address}\"\n[[applications]]\nimport_path = \"shop:hello\"\n");
    fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
    let pids: Vec<_> = cluster.processes().iter().map(|process| process.pid).collect();
    assert!(pids.len() >= 4, "the head, its guard, a proxy and a replica");
    let mut client = BufReader::new(TcpStream::connect(address).expect("it is accepted"));
    for _ in 0..2 {
        client.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").expect("it is connected");
        assert_eq!(read_answer(&mut client, false).expect("it answers").status(200).text(), "hello");
        wait_for_rest(&pids);
    }
}

/// Runs so many tasks with a span each, and one that fails, by a driver in a process of its own, whose spans are in the cluster's folder.
fn run_tasks(cluster: &Cluster, count: u64) {
    let mut program = cluster.program(program_path("driver_program"));
    program.arg("runs-traced-tasks").arg(cluster.temp_dir()).arg(count.to_string());
    cluster.run(program).success();
}

/// Kills one of two workers, and waits for another in its place.
fn replace_a_worker(cluster: &Cluster) {
    let pid = cluster.worker_pids()[0];
    kill(pid, Signal::KILL);
    wait_until("it is replaced", || {
        let idle = cluster.status()["workers"]["idle"] == 2;
        (idle && !cluster.worker_pids().contains(&pid)).then_some(())
    });
}

/// Returns the head's footprint at rest: one thread, because the one that compacts the journal ends, and no more than the fewest `files` that it
/// ever had open at rest, because it closes what belonged to a client or a worker, only not before that one has ended.
fn at_rest(cluster: &Cluster, head: u32, files: &Cell<usize>) -> Footprint {
    let rest = wait_until("the head has closed what it does not need", || {
        let first = footprint(head);
        let is_alone = first.threads == 1 && first.files <= files.get() && footprint(head) == first;
        (cluster.status()["tasks"]["leased"] == 0 && is_alone).then_some(first)
    });
    files.set(rest.files);
    rest
}

#[test]
fn files_threads_and_memory_stay_as_they_are_however_much_is_done() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let head = cluster.head_pid();
    let round = |number: u64| {
        run_tasks(&cluster, 300);
        if number.is_multiple_of(3) {
            replace_a_worker(&cluster);
        }
        cluster.tracer(&["submit", "command", "--", "true"]).success();
    };
    let files = Cell::new(footprint(head).files);
    let at_rest = || at_rest(&cluster, head, &files);
    let round = |number| {
        round(number);
        at_rest();
    };
    // What is remembered of tasks is bounded, but not filled yet: so the memory is compared per task.
    (0..6).for_each(round);
    let warm = at_rest();
    let workers: Vec<_> = cluster.worker_pids().into_iter().map(|pid| (pid, footprint(pid))).collect();
    (7..27_u64).filter(|number| !number.is_multiple_of(3)).for_each(round);
    let after = at_rest();
    let more = after.memory.saturating_sub(warm.memory);
    assert!(more < 8 << 10, "{more} KiB more for 4,000 tasks, which are remembered");
    for (pid, before) in workers {
        let now = wait_until("the worker has what it had", || {
            let now = footprint(pid);
            ((now.files, now.threads) == (before.files, before.threads)).then_some(now)
        });
        assert!(now.memory < before.memory + (8 << 10), "worker {pid}: {before:?}, then {now:?}");
    }
}

/// `TRACER_SOAK_SECONDS` says how long; without it, not long. First all that is remembered of tasks is filled, so that nothing may grow after that.
#[test]
fn a_head_that_remembers_as_much_as_it_may_grows_no_more() {
    let limit = std::env::var("TRACER_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(5);
    let limit = Duration::from_secs(limit);
    let setting = ("TRACER_TEST_SETTING", "compaction_bytes=1000000");
    let cluster = Cluster::builder()
        .workers(2)
        .hook(HOOK)
        .env(setting.0, setting.1)
        .env("TRACER_SPANS_MAX_BYTES", "1000000")
        .start();
    let head = cluster.head_pid();
    let mut done = 0_u64;
    let mut round = |number: u64| {
        run_tasks(&cluster, 1000);
        done += 1001;
        if number % 10 == 5 {
            replace_a_worker(&cluster);
        }
    };
    let files = Cell::new(footprint(head).files);
    let at_rest = || at_rest(&cluster, head, &files);
    let journal = || fs::metadata(cluster.temp_dir().join("tasks.journal")).expect("a journal").len();
    for number in 0.. {
        round(number);
        if cluster.tracer(&["list", "tasks", "--limit", "1", "--format", "json"]).success().json()["forgotten"] != 0 {
            break;
        }
    }
    let warm = at_rest();
    let (mut most, mut longest, mut number, begun) = (warm.memory, journal(), 0, Instant::now());
    while begun.elapsed() < limit {
        round(number);
        number += 1;
        most = most.max(at_rest().memory);
        longest = longest.max(journal());
    }
    let last = at_rest();
    println!(
        "{done} tasks in {:?}: {warm:?} at first, {most} KiB at most, {last:?} at last; journal of {longest} bytes at most",
        begun.elapsed()
    );
    assert!(most < warm.memory + (8 << 10), "{warm:?} at first, {most} KiB at most");
}

#[test]
fn thousands_of_connections_and_clients_that_are_slow_or_dead_hurt_nobody() {
    const CONNECTIONS: usize = 3000;
    let allowed = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: allowed.maximum, maximum: allowed.maximum });
    if getrlimit(Resource::Nofile).current.is_some_and(|files| files < CONNECTIONS as u64 + 500) {
        return skip("open files", format_args!("this process may not open {CONNECTIONS}"));
    }
    let cluster = Cluster::builder().workers(2).start();
    let socket = cluster.session_dir().join("head.sock");
    let mut hello = Vec::new();
    tracer::protocol::Hello::of_this_process(tracer::protocol::Role::Driver).encode(&mut hello);
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(&socket).unwrap_or_else(|error| panic!("{number}: {error}"));
        match number % 4 {
            // Says nothing.
            0 => {}
            // Says hello, and nothing more.
            1 => stream.write_all(&hello).unwrap(),
            // Dies amid its hello, for the head.
            2 => stream.write_all(&hello[..hello.len() / 2]).unwrap(),
            // Dies amid a frame.
            _ => {
                stream.write_all(&hello).unwrap();
                stream.write_all(&[200, 0, 0, 0, 2, 1, 2, 3]).unwrap();
            }
        }
        connections.push(stream);
    }
    // All of them are there, and the others do not notice.
    let mut welcome = [0; 5];
    connections[CONNECTIONS - 3].read_exact(&mut welcome).expect("the head answers");
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    assert!(footprint(cluster.head_pid()).files > CONNECTIONS);
    // A driver that never reads what becomes of its tasks, with large results.
    let mut deaf = Driver::connect(&cluster.temp_dir()).unwrap();
    for _ in 0..200 {
        deaf.remote("wordcount:count").arg("x ".repeat(50_000)).unwrap().submit().unwrap();
    }
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    drop(connections);
    wait_until("they are forgotten", || (footprint(cluster.head_pid()).files < 100).then_some(()));
    drop(deaf);
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    cluster.stop().success();
}

#[test]
fn more_tasks_than_there_is_memory_for_are_refused_and_what_is_asked_is_answered_at_once() {
    let cluster = Cluster::builder().arg("--queue-memory=32MiB").start();
    let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
    cluster.submit("misbehaving_tasks:waits", &[&started, &go, "--no-wait"]).success();
    cluster.wait_for_file(&cluster.file("started"));
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let mut accepted = 0_u64;
    let refused = loop {
        let task = driver.remote("misbehaving_tasks:makes_one_span").arg(accepted).unwrap().submit();
        let result =
            task.and_then(|task| if accepted % 128 == 127 { driver.accepted(&task).map(drop) } else { Ok(()) });
        match result {
            Ok(()) => accepted += 1,
            Err(error) => break error.to_string(),
        }
        assert!(accepted < 1_000_000, "nothing pushes back");
    };
    assert!(refused.contains("the queue is full: ") && refused.contains("and may take 32 MiB"), "{refused}");
    assert!(refused.contains("(hint: submit more when some have ended"), "{refused}");
    // 256 bytes each would be 131,072.
    let waiting = cluster.status()["tasks"]["waiting"].as_u64().unwrap();
    assert!((80_000..200_000).contains(&waiting), "{waiting}");
    let memory = footprint(cluster.head_pid()).memory;
    assert!(memory < 96 << 10, "{memory} KiB for {waiting} tasks");
    let before = Instant::now();
    let list = cluster.tracer(&["list", "tasks", "--format", "json"]).success().json();
    assert_eq!(
        (list["tasks"].as_array().unwrap().len() as u64, list["left_out"].as_u64()),
        (100, Some(waiting + 1 - 100))
    );
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    cluster.tracer(&["list", "tasks"]).success().stdout_contains(" older tasks (--limit shows more)\n");
    // There is room again when some have ended.
    cluster.tracer(&["cancel", "--all"]).success();
    wait_until("they have ended", || (cluster.status()["tasks"]["waiting"] == 0).then_some(()));
    fs::write(cluster.file("go"), "").unwrap();
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
}

/// The head may take so much address space, and no more.
fn start_with_ulimit(cluster: &Cluster, kibibytes: u64) -> crate::support::Run {
    let start = cluster.start_command(&[]);
    let mut shell = cluster.program("sh");
    shell.args(["-c", &format!("ulimit -v {kibibytes} && exec \"$@\""), "sh"]).arg(start.get_program());
    shell.args(start.get_args());
    cluster.run(shell)
}

#[test]
fn the_queue_takes_a_quarter_of_what_limits_allow_and_the_next_head_starts_with_all_of_it() {
    const LIMIT: u64 = 600 << 10;
    let cluster = Cluster::builder().workers(1).build();
    let said = "takes up to 150 MiB of memory, a quarter of the limit of this process (`ulimit -v`)";
    start_with_ulimit(&cluster, LIMIT).success().stderr_contains(said);
    let queue = cluster.status()["queue_memory"].clone();
    assert_eq!(
        (&queue["bytes"], &queue["source"]),
        (&json!(LIMIT * 256), &json!("a quarter of the limit of this process (`ulimit -v`)"))
    );
    let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
    cluster.submit("misbehaving_tasks:waits", &[&started, &go, "--no-wait"]).success();
    cluster.wait_for_file(&cluster.file("started"));
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    let text = "x ".repeat(50_000);
    let mut accepted = 1;
    let refused = loop {
        let task = driver.remote("wordcount:count").arg(&text).and_then(|remote| remote.submit());
        match task.and_then(|task| driver.accepted(&task)) {
            Ok(_) => accepted += 1,
            Err(error) => break error.to_string(),
        }
        assert!(accepted < 4000, "it takes as many as there are");
    };
    assert!(refused.contains("the queue is full: ") && refused.contains("and may take 150 MiB"), "{refused}");
    assert!(accepted > 1000, "{accepted}: {refused}");
    drop(driver);
    cluster.kill_head();
    fs::write(cluster.file("go"), "").unwrap();
    start_with_ulimit(&cluster, LIMIT)
        .success()
        .stderr_contains(&format!("restored  {} tasks that an earlier head had accepted", accepted));
    assert_eq!(cluster.wait_for_task(accepted)["result"], 50_000);
    cluster.tracer(&["stop", "--force"]).success();
}

#[test]
fn the_queue_takes_a_quarter_of_what_a_control_group_above_allows() {
    let Some(group) = MemoryGroup::make(400 << 20) else { return };
    let cluster = Cluster::builder().workers(1).build();
    let start = cluster.start_command(&[]);
    let mut shell = cluster.program("sh");
    let script = format!("echo $$ > {} && exec \"$@\"", group.0.join("cgroup.procs").display());
    shell.args(["-c", &script, "sh"]).arg(start.get_program()).args(start.get_args());
    let started = cluster.run(shell).success();
    started.stderr_contains("takes up to 100 MiB of memory, a quarter of the control group `");
    assert_eq!(cluster.status()["queue_memory"]["bytes"], 100 << 20);
    cluster.tracer(&["status"]).success().stdout_contains(" up to 100 MiB, a quarter of the control group `");
    cluster.stop().success();
}

/// A control group with a bound on its memory, for as long as this lives.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// None, which skips the test, where there are none or they may not be made.
    fn make(bytes: u64) -> Option<MemoryGroup> {
        let name = format!("tracer-test-{}", std::process::id());
        let (one, two) = (Path::new("/sys/fs/cgroup/memory").join(&name), Path::new("/sys/fs/cgroup").join(&name));
        let one = (one, "memory.limit_in_bytes");
        for (path, file) in [one, (two, "memory.max")] {
            if fs::create_dir(&path).is_ok() {
                let group = MemoryGroup(path);
                if fs::write(group.0.join(file), bytes.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        skip("control groups", "none can be made here");
        None
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The last process in it is about to be gone.
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
