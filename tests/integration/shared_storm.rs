//! Nodes, their processes and the brokers between them are killed and stopped at random, one at a time and all at once, while tasks of a queue flow from
//! several origins: each that was accepted has one outcome and its spans, and none runs that must not.
//!
//! `TRACER_SHARED_STORM_TASKS` says how many tasks; without it, few. `TRACER_TEST_SEED` repeats the choices of a run, which says its seed when it fails.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tracer::driver::DriverError;
use tracer::propagation::Carrier;
use tracer::{Driver, task};

use crate::support::{
    Background, Broker, Cluster, HOOK, Random, Span, Spans, kill_if_there, wait_until, wait_until_within,
};

/// The variable that says how many tasks there are.
const TASKS: &str = "TRACER_SHARED_STORM_TASKS";
/// The `traceparent` of whoever calls the drivers of this test, which have no spans of their own: a task of no trace that is lost with its node has no span.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const CALLER_SPAN: &str = "0x00f067aa0ba902b7";
/// Tasks in a run of all tests; with three brokers, which need longer after each fault.
const FEW: usize = 600;
const FEW_OF_THREE: usize = 200;
/// Nodes with workers, and further ones that only submit.
const HOLDERS: usize = 3;
const NODES: usize = 4;
const WORKERS: usize = 2;
/// Limits of the tasks that count their starts.
const RETRIES: u32 = 2;
const CRASHES: u32 = 3;
/// The most rounds after the next one until a fault is undone.
const ROUNDS_OF_A_FAULT: u64 = 3;
/// Time for what is open to end once nothing goes wrong any more: a message that a broker keeps and does not deliver is replaced after 40 s, and what two nodes
/// lost in turn is taken over twice.
const END: Duration = Duration::from_secs(180);

/// A task whose submission was answered.
struct Accepted {
    origin: usize,
    id: u64,
    expected: Expected,
}

/// Outcome that a task must have if it is not lost, and the file in which it counts its starts.
enum Expected {
    Value,
    Error,
    /// A task that fails once.
    Retried(PathBuf),
    Once(PathBuf),
}

/// State of tasks that were submitted one after the other.
#[derive(Default)]
struct Wave {
    accepted: Vec<(u64, Expected)>,
    /// Files of tasks that were refused, each with the reason.
    refused: Vec<(PathBuf, String)>,
    /// Outcomes that the driver was told, by id: true for a success.
    told: Vec<(u64, bool)>,
}

/// A fault that is to be undone after some rounds.
enum Undo {
    /// Of processes that were stopped, and of which node they are all.
    Continue(Vec<u32>, Option<usize>),
    Start(usize),
    StartBroker(usize),
}

#[derive(Debug, Default)]
struct Counts {
    workers: u32,
    agents: u32,
    heads: u32,
    nodes: u32,
    stops: u32,
    brokers: u32,
    broker_stops: u32,
    all: u32,
}

impl Counts {
    /// Returns whether each kind of fault has happened.
    fn has_all(&self) -> bool {
        let Counts { workers, agents, heads, nodes, stops, brokers, all, .. } = *self;
        [workers, agents, heads, nodes, stops, brokers, all].iter().all(|count| *count > 0)
    }
}

struct Storm {
    nodes: Vec<Cluster>,
    brokers: Vec<Broker>,
    random: Random,
    /// Nodes that are killed or stopped as a whole, or whose head is.
    away: BTreeSet<usize>,
    undo: Vec<(u64, Undo)>,
    round: u64,
    accepted: Vec<Accepted>,
    /// Files of tasks that were refused, each with the reason.
    refused: Vec<(PathBuf, String)>,
    /// Outcomes that drivers were told, by origin and id: true for a success.
    told: HashMap<(usize, u64), bool>,
    /// Waves that go on, each with its origin: an answer may have to wait for a broker or an agent that is stopped.
    waves: Vec<(usize, JoinHandle<Wave>)>,
    maps: Vec<Background>,
    files: usize,
    counts: Counts,
}

impl Storm {
    fn start(brokers: Vec<Broker>, start: impl Fn(usize) -> Cluster) -> Storm {
        let nodes: Vec<_> = (0..NODES).map(start).collect();
        let random = Random::of_test(&nodes[0]);
        Storm {
            nodes,
            brokers,
            random,
            away: BTreeSet::new(),
            undo: Vec::new(),
            round: 0,
            accepted: Vec::new(),
            refused: Vec::new(),
            told: HashMap::new(),
            waves: Vec::new(),
            maps: Vec::new(),
            files: 0,
            counts: Counts::default(),
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn new_file(&mut self) -> PathBuf {
        self.files += 1;
        self.nodes[0].file(&format!("counted-{}", self.files))
    }

    // ---- tasks ----

    /// Submits a wave of tasks at one of the nodes that are there, and takes in what is known of this one and of others within a moment.
    fn submit(&mut self) {
        let there: Vec<_> = (0..NODES).filter(|node| !self.away.contains(node)).collect();
        if self.waves.len() < NODES
            && let Some(&origin) = self.random.choose(&there)
        {
            let files = (0..10 + self.below(30)).map(|_| self.new_file()).collect();
            let place = self.nodes[origin].temp_dir();
            self.waves.push((origin, thread::spawn(move || submit_wave(&place, files))));
        }
        let end = Instant::now() + Duration::from_secs(1);
        wait_until("a wave is over, or a moment has passed", || {
            let is_over = self.waves.iter().any(|(_, wave)| wave.is_finished());
            (is_over || Instant::now() > end).then_some(())
        });
        self.take_waves();
    }

    /// Takes in the waves that are over.
    fn take_waves(&mut self) {
        let (over, going) = std::mem::take(&mut self.waves).into_iter().partition(|(_, wave)| wave.is_finished());
        self.waves = going;
        let over: Vec<(usize, JoinHandle<Wave>)> = over;
        for (origin, wave) in over {
            let Wave { accepted, refused, told } = wave.join().expect("it does not panic");
            self.accepted.extend(accepted.into_iter().map(|(id, expected)| Accepted { origin, id, expected }));
            self.refused.extend(refused);
            self.told.extend(told.into_iter().map(|(id, is_good)| ((origin, id), is_good)));
        }
    }

    /// Waits for a moment.
    fn pause(&self) {
        let end = Instant::now() + Duration::from_millis(500);
        wait_until("a moment has passed", || (Instant::now() > end).then_some(()));
    }

    /// Submits a map, whose command may end with its head.
    fn submit_map(&mut self) {
        let there: Vec<_> = (0..NODES).filter(|node| !self.away.contains(node)).collect();
        let Some(&origin) = self.random.choose(&there) else { return };
        let lines: Vec<_> = (0..20 + self.below(60)).map(|number| number.to_string()).collect();
        let file = self.new_file();
        fs::write(&file, lines.join("\n")).expect("the folder is ours");
        let file = file.to_string_lossy().into_owned();
        let node = &self.nodes[origin];
        let flags = ["--queue", "default", "--map", &file, "--crash-limit", "3"];
        self.maps.push(node.submit_in_background("misbehaving_tasks:makes_one_span", &flags));
    }

    // ---- faults ----

    /// Returns the processes of a node that have a role.
    fn of_role(&self, node: usize, role: &str) -> Vec<u32> {
        let is_it = |command: &str| command.split(' ').nth(1) == Some(role);
        let all = self.nodes[node].processes();
        all.into_iter().filter(|process| is_it(&process.command)).map(|process| process.pid).collect()
    }

    fn all_of(&self, node: usize) -> Vec<u32> {
        let all = self.nodes[node].processes().into_iter();
        // Commands that submit are no part of it.
        all.filter(|process| !process.command.contains(" submit ")).map(|process| process.pid).collect()
    }

    /// Does one thing to somebody.
    fn fault(&mut self, kind: u64) {
        let there: Vec<_> = (0..NODES).filter(|node| !self.away.contains(node)).collect();
        let Some(&node) = self.random.choose(&there) else { return };
        let after = self.round + 1 + self.random.below(ROUNDS_OF_A_FAULT);
        match kind {
            0 | 1 => {
                let role = if kind == 0 { "worker" } else { "agent" };
                let pids = self.of_role(node, role);
                let Some(&pid) = self.random.choose(&pids) else { return };
                let count = if kind == 0 { &mut self.counts.workers } else { &mut self.counts.agents };
                *count += u32::from(kill_if_there(pid, Signal::KILL));
            }
            2 => {
                self.nodes[node].kill_head_and_guard();
                self.counts.heads += 1;
                self.away.insert(node);
                self.undo.push((self.round, Undo::Start(node)));
            }
            3 => self.kill_node(node, after),
            4 => {
                let role = ["worker", "agent"][self.below(2)];
                let pids = self.of_role(node, role);
                let Some(&pid) = self.random.choose(&pids) else { return };
                self.stop(vec![pid], None, after);
            }
            5 => {
                self.away.insert(node);
                self.stop(self.all_of(node), Some(node), after);
            }
            6 | 7 => {
                let broker = self.below(self.brokers.len());
                if self.undo.iter().any(|(_, undo)| matches!(undo, Undo::StartBroker(other) if *other == broker)) {
                    return;
                }
                if kind == 6 {
                    self.brokers[broker].kill();
                    self.counts.brokers += 1;
                } else {
                    self.brokers[broker].signal(Signal::STOP);
                    self.counts.broker_stops += 1;
                }
                self.undo.push((after, Undo::StartBroker(broker)));
            }
            _ => {
                self.counts.all += 1;
                for broker in 0..self.brokers.len() {
                    self.brokers[broker].kill();
                    self.undo.push((after, Undo::StartBroker(broker)));
                }
                there.into_iter().for_each(|node| self.kill_node(node, after));
            }
        }
    }

    fn kill_node(&mut self, node: usize, until: u64) {
        for pid in self.all_of(node) {
            kill_if_there(pid, Signal::KILL);
        }
        wait_until("the node is gone", || self.all_of(node).is_empty().then_some(()));
        self.counts.nodes += 1;
        self.away.insert(node);
        self.undo.push((until, Undo::Start(node)));
    }

    fn stop(&mut self, pids: Vec<u32>, all_of: Option<usize>, until: u64) {
        for pid in &pids {
            kill_if_there(*pid, Signal::STOP);
        }
        self.counts.stops += 1;
        self.undo.push((until, Undo::Continue(pids, all_of)));
    }

    /// Undoes faults whose time has come; brokers first, without whom no head starts.
    fn mend(&mut self, round: u64) {
        let (mut due, later): (Vec<_>, _) =
            std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= round);
        self.undo = later;
        due.sort_by_key(|(_, undo)| !matches!(undo, Undo::StartBroker(_)));
        for (at, undo) in due {
            let has_brokers = !self.undo.iter().any(|(_, undo)| matches!(undo, Undo::StartBroker(_)));
            match undo {
                Undo::StartBroker(broker) => self.brokers[broker].come_back(),
                Undo::Continue(pids, node) => {
                    for pid in pids {
                        kill_if_there(pid, Signal::CONT);
                    }
                    if let Some(node) = node {
                        self.away.remove(&node);
                    }
                }
                Undo::Start(node) if has_brokers => {
                    self.start_node(node);
                    self.away.remove(&node);
                }
                Undo::Start(_) => self.undo.push((at, undo)),
            }
        }
    }

    /// Starts a head again in its place. The engine may need a moment.
    fn start_node(&self, node: usize) {
        let node = &self.nodes[node];
        let mut last = None;
        wait_until_within(Duration::from_secs(60), "a head starts again", || {
            let run = node.start_head(&[]);
            let has_started = run.output.status.success();
            if !has_started && last.replace(run.stderr_text()) != Some(run.stderr_text()) {
                eprintln!("{}", run.describe());
            }
            has_started.then_some(())
        });
    }

    // ---- the end ----

    /// Lets tasks flow and things go wrong until there were so many, and each kind of fault.
    fn rage(&mut self, tasks: usize) {
        while self.accepted.len() < tasks || !self.counts.has_all() {
            self.round += 1;
            self.submit();
            self.maps.retain_mut(|map| map.is_running());
            if self.maps.len() < 2 && self.round.is_multiple_of(3) {
                self.submit_map();
            }
            self.mend(self.round);
            // Each kind has its turn, and then what comes; every now and then nothing does.
            let kind = if self.round <= 9 { 9 - self.round } else { self.random.below(12) };
            // All at once are rare.
            let kind = if self.round > 9 && kind >= 8 && self.random.below(4) > 0 { 0 } else { kind };
            self.fault(kind);
        }
        self.mend(u64::MAX);
        assert!(self.undo.is_empty() && self.away.is_empty(), "all are back: {:?}", self.away);
        wait_until_within(END, "every submission is answered", || {
            self.waves.iter().all(|(_, wave)| wave.is_finished()).then_some(())
        });
        self.take_waves();
    }

    /// Waits until all has ended, and returns the tasks that each origin knows, by id.
    fn wait_for_ends(&mut self) -> Vec<BTreeMap<u64, Value>> {
        let listed = |node: &Cluster| -> BTreeMap<u64, Value> {
            let list = node.tracer(&["list", "tasks", "--limit", "20000", "--format", "json"]).success().json();
            let tasks = list["tasks"].as_array().expect("a list").iter();
            tasks.map(|task| (task["id"].as_u64().expect("a number"), task.clone())).collect()
        };
        let mut open = String::new();
        let ended = |open: &mut String| {
            let all: Vec<_> = self.nodes.iter().map(listed).collect();
            let is_open =
                |task: &&Value| !["succeeded", "failed", "cancelled"].contains(&task["state"].as_str().unwrap_or(""));
            let left: Vec<_> = all.iter().map(|tasks| tasks.values().filter(is_open).collect::<Vec<_>>()).collect();
            *open = format!("{left:#?}");
            left.iter().all(Vec::is_empty).then_some(all)
        };
        let end = Instant::now() + END;
        loop {
            if let Some(all) = ended(&mut open) {
                return all;
            }
            assert!(Instant::now() < end, "these do not end: {open}");
            self.pause();
        }
    }

    /// Returns the id in the cluster of a task.
    fn in_cluster(&self, origin: usize, id: u64) -> String {
        let text = fs::read_to_string(self.nodes[origin].temp_dir().join("place.id")).expect("it has joined");
        format!("{}-{id}", text.lines().next().expect("an id"))
    }

    fn check(&mut self) {
        let all = self.wait_for_ends();
        let starts = |path: &PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().filter(|line| ["begin", "started"].contains(line)).count() as u32
        };
        for Accepted { origin, id, expected } in &self.accepted {
            let task = all[*origin].get(id).unwrap_or_else(|| panic!("task {id} of node {origin} is not known"));
            let is_good = task["state"] == "succeeded";
            let reason = task["failure"]["reason"].as_str().unwrap_or_default();
            let is_lost = ["worker_lost", "head_lost", "lost", "node_lost"].contains(&reason);
            if let Some(told) = self.told.get(&(*origin, *id)) {
                assert_eq!(*told, is_good, "its driver was told otherwise: {task}");
            }
            match expected {
                Expected::Value => assert!(is_good || is_lost, "{task}"),
                Expected::Error => assert!(is_lost || reason == "error", "{task}"),
                Expected::Retried(path) => {
                    let starts = starts(path);
                    assert!(is_good || is_lost, "{task}");
                    assert!(starts <= 1 + RETRIES + CRASHES && (starts >= 2 || !is_good), "{starts} starts: {task}");
                }
                Expected::Once(path) => {
                    let starts = starts(path);
                    assert!(
                        starts <= 1 && (is_good || is_lost) && (!is_good || starts == 1),
                        "{starts} starts: {task}"
                    );
                }
            }
        }
        for (path, why) in &self.refused {
            assert_eq!(starts(path), 0, "what was refused has run: {}: {why}", path.display());
        }
        // Servers that have only just come back choose who leads.
        let known =
            self.accepted.first().map(|task| self.in_cluster(task.origin, task.id)).expect("tasks were accepted");
        for node in &self.nodes {
            wait_until_within(END, "a node can ask the engine", || {
                node.tracer(&["get", &known]).output.status.success().then_some(())
            });
        }
        // Any other node says the same of it.
        for _ in 0..self.accepted.len() / 20 {
            let which = self.below(self.accepted.len());
            let Accepted { origin, id, .. } = &self.accepted[which];
            let (there, asked) = (&all[*origin][id], (origin + 1) % NODES);
            let found = self.nodes[asked].tracer(&["get", &self.in_cluster(*origin, *id), "--format", "json"]);
            let found = found.success().json();
            for key in ["state", "attempt"] {
                assert_eq!(found[key], there[key], "{found} {there}");
            }
        }
        self.wait_until_idle();
        for map in std::mem::take(&mut self.maps) {
            map.wait_within(Duration::from_secs(30));
        }
        for node in &self.nodes {
            node.stop().success();
            node.assert_nothing_runs();
        }
        self.check_spans(&all);
    }

    /// Waits until no node has more processes than its own, each worker without a task.
    fn wait_until_idle(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            wait_until(&format!("node {number} runs nothing"), || {
                let tasks = node.status()["tasks"].clone();
                let workers = if number < HOLDERS { WORKERS } else { 0 };
                let is_idle = tasks["waiting"] == 0 && tasks["leased"] == 0;
                (is_idle && self.of_role(number, "worker").len() == workers).then_some(())
            });
        }
    }

    fn check_spans(&self, all: &[BTreeMap<u64, Value>]) {
        let mut spans = Spans::default();
        for node in &self.nodes {
            let Spans { spans: of_node, torn_lines } = node.spans();
            spans.spans.extend(of_node);
            spans.torn_lines.extend(torn_lines);
        }
        spans.assert_whole(&[CALLER_SPAN]);
        let mut attempts: HashMap<(&str, u64), Vec<&Span>> = HashMap::new();
        for span in spans.iter().filter(|span| span.kind() == "SpanKind.CONSUMER") {
            let Some(id) = span.attribute("tracer.cluster_task_id").as_str() else { continue };
            let number = span.attribute("tracer.attempt").as_u64().expect("a number");
            attempts.entry((id, number)).or_default().push(span);
        }
        // Two nodes may give one number: while the engine is away a node counts by itself, and whoever takes over from it counts from the record.
        let of_process = |span: &Span| ["tracer.pid", "tracer.stand_in"].map(|key| span.attribute(key).clone());
        let is_twice = |spans: &[&Span]| {
            let processes: Vec<_> = spans.iter().map(|span| of_process(span)).collect();
            (1..processes.len()).any(|at| processes[..at].contains(&processes[at]))
        };
        let twice: Vec<_> = attempts.iter().filter(|(_, spans)| is_twice(spans)).collect();
        assert!(twice.is_empty(), "a process has begun an attempt twice: {twice:#?}");
        let mut without = Vec::new();
        for (origin, tasks) in all.iter().enumerate() {
            for (task, id) in tasks.values().map(|task| (task, task["id"].as_u64().expect("a number"))) {
                let id = self.in_cluster(origin, id);
                // A node also lists what it ran for others, and for itself.
                if task["cluster_task_id"] != *id {
                    continue;
                }
                let count = task["attempt"].as_u64().unwrap_or(0);
                let missing = (1..=count).filter(|number| !attempts.contains_key(&(&*id, *number)));
                let of_task =
                    || attempts.keys().filter(|(of, _)| *of == id).map(|(_, number)| *number).collect::<Vec<_>>();
                without.extend(missing.map(|number| (number, of_task(), task.clone())));
            }
        }
        println!("{} spans, {} attempts", spans.len(), attempts.len());
        assert!(without.is_empty(), "attempts without a span, and those of the task that have one: {without:#?}");
    }
}

/// Submits tasks with these files at a head until it dies, and waits a moment for the ends of some.
fn submit_wave(place: &Path, files: Vec<PathBuf>) -> Wave {
    let mut wave = Wave::default();
    let Ok(mut driver) = Driver::connect(place) else { return wave };
    driver.set_parent(Carrier::from_headers([CALLER], [], []).0, true);
    let mut submitted = Vec::new();
    let count = files.len();
    for (number, path) in files.into_iter().enumerate() {
        // Tasks of one kind after one another go together.
        let kind = number * 8 / count;
        let (target, expected) = match kind {
            0 => ("misbehaving_tasks:returns_error", Expected::Error),
            1 => ("misbehaving_tasks:fails_at_first", Expected::Retried(path.clone())),
            2 | 3 => ("misbehaving_tasks:notes_when", Expected::Once(path.clone())),
            _ => ("misbehaving_tasks:makes_one_span", Expected::Value),
        };
        let task = driver.remote(target).queue("default");
        let task = match &expected {
            Expected::Value => task.arg(number as u64),
            Expected::Error => task.arg("no"),
            Expected::Retried(path) => task.arg(path).and_then(|task| task.arg(1)),
            Expected::Once(path) => task.arg(path),
        };
        let ticket = task.and_then(|task| match &expected {
            Expected::Once(path) if kind == 3 => task.idempotency_key(path.to_string_lossy()).at_most_once().submit(),
            Expected::Once(_) => task.at_most_once().submit(),
            Expected::Value => task.crash_limit(CRASHES).submit(),
            _ => task.retries(RETRIES).retry_backoff(Duration::from_millis(1)).crash_limit(CRASHES).submit(),
        });
        match ticket {
            Ok(ticket) => submitted.push((ticket, path, expected)),
            Err(_) => break,
        }
    }
    for (ticket, path, expected) in submitted {
        match driver.accepted(&ticket) {
            Ok(id) => wave.accepted.push((id.0, expected)),
            Err(DriverError::Refused(why)) => wave.refused.push((path, why.to_string())),
            // The head has died: nobody knows whether it has them.
            Err(_) => return wave,
        }
    }
    let mut left = wave.accepted.len() / 2;
    let end = Instant::now() + Duration::from_secs(1);
    wait_until("some have ended, or a second has passed", || {
        while let Ok(Some(finished)) = driver.try_next_finished() {
            left = left.saturating_sub(1);
            if let task::Outcome::Failed(task::Failure::Kept) = finished.outcome {
                // The guard was killed first, and the head has begun to end: the next one goes on with it.
                continue;
            }
            let is_good = !matches!(finished.outcome, task::Outcome::Failed(_));
            wave.told.push((finished.task.0, is_good));
        }
        (left == 0 || Instant::now() > end).then_some(())
    });
    wave
}

fn number_of_tasks(few: usize) -> usize {
    std::env::var(TASKS).map_or(few, |tasks| tasks.parse().expect("a number of tasks"))
}

fn weather(mut storm: Storm) {
    let few = if storm.brokers.len() > 1 { FEW_OF_THREE } else { FEW };
    let begun = Instant::now();
    storm.rage(number_of_tasks(few));
    let (tasks, refused) = (storm.accepted.len(), storm.refused.len());
    println!("{tasks} tasks accepted and {refused} refused in {:?}, {:?}", begun.elapsed(), storm.counts);
    storm.check();
    println!("all has ended after {:?}", begun.elapsed());
}

/// Starts a node of a storm: the first ones have workers.
fn node(number: usize, address: &str, flags: &[&str]) -> Cluster {
    let is_holder = number < HOLDERS;
    let builder = Cluster::builder().workers(if is_holder { WORKERS } else { 0 }).hook(HOOK);
    let builder = builder.arg("--address").arg(address).arg("--engine-wait=2s");
    let builder = flags.iter().fold(builder, |builder, flag| builder.arg(flag));
    if is_holder { builder.arg("--queue=default=2").start() } else { builder.start() }
}

#[test]
fn of_nodes_and_a_broker_that_are_killed_and_stopped_at_random_each_accepted_task_has_one_end() {
    let Some(broker) = Broker::start() else { return };
    let address = broker.address();
    weather(Storm::start(vec![broker], |number| node(number, &address, &[])));
}

#[test]
fn of_nodes_and_three_brokers_that_are_killed_and_stopped_at_random_each_accepted_task_has_one_end() {
    let Some(brokers) = Broker::start_three() else { return };
    let addresses: Vec<_> = brokers.iter().map(Broker::address).collect();
    // Without TLS a node goes to another server only if it may.
    weather(Storm::start(brokers, |number| node(number, &addresses[number % addresses.len()], &["--insecure-engine"])));
}
