//! The agent on the head's side: the process that speaks to the engine which other machines share, and what it is told.
//!
//! The head starts it, watches it, and starts it again when it dies; a new one is told all that is open. To the reactor it is a worker that takes tasks, and a
//! driver that submits some.

mod keeping;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracer_core::clock::now_unix_nano;
use tracer_core::count::{Count, Elapsed};
use tracer_core::task::{Failure, ModuleVersion, Outcome};
use tracer_core::value::JsonText;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_engine::digest;
use tracer_host::hook::builtin_names;
use tracer_host::module_store::ModuleStore;
use tracer_ipc::protocol::frame::put_frame;
use tracer_ipc::protocol::{
    AgentNode, ClaimedBy, ClusterReport, Digest, EngineReport, Found, Reply, SharedEnd, SharedReport, Stop, TaskState,
    ToAgent, kind,
};
use tracer_settings::Engine;

use super::process::FrontProcess;

/// Pause before a process that has ended is started again.
const START_AGAIN: Duration = Duration::from_millis(200);
/// Time that it may take to bring ends of imports into their records when the head ends.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);
/// Time within which it must end when it is asked to; it has nothing to do then.
const END_LIMIT: Duration = Duration::from_millis(500);

/// Time for which it is said that this place was copied, after the copy was seen last.
const COPY_TOLD: Duration = Duration::from_secs(30);

/// A question that the agent answers.
#[derive(Clone, Copy)]
enum Question {
    /// State of a task of any node.
    Task(ClusterTaskId),
    /// Nodes and queues of the engine.
    Cluster,
    /// End of a task of another node, which somebody here wants.
    Cancel(ClusterTaskId, Stop),
}

/// The agent of this head.
pub(super) struct AgentLink {
    engine: Engine,
    place: PlaceId,
    life: u64,
    process: Option<FrontProcess>,
    /// Its connection, once it has said hello.
    pub(super) connection: Option<u64>,
    /// Frames for it that are to be written with the next turn.
    pub(super) outbox: Vec<u8>,
    /// Last message about free slots that it was sent.
    pub(super) told_free: Option<ToAgent>,
    /// True if the engine can be reached, with what it says of itself; else the reason why not.
    pub(super) state: (bool, String),
    start_at: Option<Instant>,
    restarts: u64,
    last_end: Option<String>,
    /// Time at which the head gives up that ends are settled; set once it ends.
    give_up_at: Option<Instant>,
    /// True once it has nothing of any queue any more, after it was told that the head stops.
    has_let_go: bool,
    /// Time at which it is killed; set once it was asked to end.
    kill_at: Option<Instant>,
    /// Questions that it has not answered, by their numbers: each with the connection that waits and the number of its query.
    questions: BTreeMap<u64, (Question, u64, u64)>,
    next_question: u64,
    put_aside: PutAside,
    /// Number of imports that the head was told to end because the engine did not hear it.
    ended_on_partition: u64,
    /// While it does not: how many of those that were, and after what time.
    cut_off: Option<(u32, Duration)>,
    /// Warning of a copy of this place, with the time at which it was told last.
    copied: Option<(String, Instant)>,
    /// Number of times that the engine has lost writes under this head, and the last one, for people.
    lost_writes: (u64, String),
    pub(super) digests: ModuleDigests,
}

/// Digests of the libraries of tasks that go into queues, by version: a copy never changes, so each is read once.
#[derive(Default)]
pub(super) struct ModuleDigests(BTreeMap<ModuleVersion, Digest>);

impl ModuleDigests {
    /// Versions that are remembered. Beyond it all are forgotten.
    const LIMIT: usize = 256;

    /// Returns the digest of a version, if there is a copy of it that can be read.
    pub(super) fn of(&mut self, version: ModuleVersion, store: &ModuleStore) -> Option<Digest> {
        if let Some(digest) = self.0.get(&version) {
            return Some(*digest);
        }
        let digest = digest::of_file(&store.find(version)?.library).ok()?;
        if self.0.len() == ModuleDigests::LIMIT {
            self.0.clear();
        }
        self.0.insert(version, digest);
        Some(digest)
    }
}

/// Messages of queues that were put aside under this head.
#[derive(Debug, Default)]
struct PutAside {
    count: u64,
    /// The last one, for people.
    last: String,
    /// Queues of which it was said in the log that one was put aside, and of which that one could not be.
    said: BTreeSet<(String, bool)>,
}

impl AgentLink {
    /// Makes the link of a head whose agent is still to be started.
    pub(super) fn new(engine: Engine, place: PlaceId, life: u64) -> AgentLink {
        AgentLink {
            engine,
            place,
            life,
            process: None,
            connection: None,
            outbox: Vec::new(),
            told_free: None,
            state: (false, EngineReport::NOT_YET.into()),
            start_at: Some(Instant::now()),
            restarts: 0,
            last_end: None,
            give_up_at: None,
            has_let_go: false,
            kill_at: None,
            questions: BTreeMap::new(),
            next_question: 0,
            put_aside: PutAside::default(),
            ended_on_partition: 0,
            cut_off: None,
            copied: None,
            lost_writes: (0, String::new()),
            digests: ModuleDigests::default(),
        }
    }

    /// Returns the id of the head's place.
    pub(super) fn place(&self) -> PlaceId {
        self.place
    }

    /// Returns its process, if it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(FrontProcess::pid)
    }

    /// Returns when it wants to be looked at next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.start_at.into_iter().chain(self.kill_at).chain(self.give_up_at).min()
    }

    /// Notes that it has said hello on a connection, and returns who it is told that it is.
    pub(super) fn on_hello(&mut self, connection: u64, node_id: &str, module_folders: Vec<PathBuf>) -> ToAgent {
        self.connection = Some(connection);
        self.has_let_go = false;
        self.outbox.clear();
        self.told_free = None;
        ToAgent::Node(Box::new(AgentNode {
            place: self.place,
            life: self.life,
            node_id: node_id.into(),
            access: self.engine.access.clone(),
            queues: self.engine.queues.clone(),
            engine_wait_ms: u64::try_from(self.engine.wait.as_millis()).unwrap_or(u64::MAX),
            max_shared_value: self.engine.max_shared_value,
            trusted_keys: self.engine.trusted_keys.clone(),
            shared_commands: self.engine.shared_commands,
            on_partition: self.engine.on_partition,
            module_folders,
            built_in_modules: builtin_names().map(str::to_owned).collect(),
        }))
    }

    /// Notes that its connection has closed.
    pub(super) fn on_gone(&mut self) {
        self.connection = None;
        self.outbox.clear();
        self.state = (false, "its agent is started again".into());
    }

    /// Appends a message for it. False if there is none.
    pub(super) fn notify(&mut self, message: &ToAgent) -> bool {
        if self.connection.is_some() {
            put_frame(&mut self.outbox, kind::SHARING, |out| message.put(out));
        }
        self.connection.is_some()
    }

    /// Asks it something for a connection that waits with the number of its query. False if there is none.
    fn ask(&mut self, question: Question, (connection, query): (u64, u64)) -> bool {
        let number = self.next_question;
        let is_told = self.notify(&match question {
            Question::Task(id) => ToAgent::Find { number, id },
            Question::Cluster => ToAgent::Survey(number),
            Question::Cancel(id, stop) => {
                let end = SharedEnd::unbegun(Failure::Cancelled, now_unix_nano());
                ToAgent::CancelElsewhere { number, id, stop, end: end.encode() }
            }
        });
        if is_told {
            self.next_question += 1;
            self.questions.insert(number, (question, connection, query));
        }
        is_told
    }

    fn cluster_reply(&self, cluster: Result<Box<ClusterReport>, String>) -> Reply {
        let address = &self.engine.access.address;
        Reply::Cluster(cluster.map_err(|why| match why.contains("\n(hint: ") {
            true => why,
            false => format!(
                "the engine at `{address}` cannot be asked: {why}\n(hint: `tracer doctor` says what is wrong with it)"
            ),
        }))
    }

    /// Describes it for people.
    pub(super) fn report(&self, (shared, imports): (usize, usize)) -> EngineReport {
        EngineReport {
            address: self.engine.access.address.clone(),
            is_reachable: self.state.0,
            text: self.state.1.clone(),
            place_id: self.place.to_string(),
            queues: self.engine.queues.iter().cloned().collect(),
            shared_commands: self.engine.shared_commands,
            shared,
            imports,
            pid: self.pid(),
            restarts: self.restarts,
            credentials: self.engine.access.credentials.clone(),
            authority: self.engine.access.authority.clone(),
            is_insecure: self.engine.access.is_insecure,
            on_partition: self.engine.on_partition,
            ended_on_partition: self.ended_on_partition,
            put_aside: self.put_aside.count,
            cluster: None,
        }
    }

    /// Returns what a person should know.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let end = self.last_end.as_ref().filter(|_| self.connection.is_none());
        let end = end.map(|end| {
            format!(
                "the agent, which speaks to the engine, {end}, and is started again each time; see its log, agent.log"
            )
        });
        let engine = (self.connection.is_some() && !self.state.0).then(|| {
            format!(
                "the engine at `{}` cannot be reached, so queues stand still: {}",
                self.engine.access.address, self.state.1
            )
        });
        let PutAside { count, last, .. } = &self.put_aside;
        let put_aside = (*count > 0).then(|| {
            let were = if *count == 1 { "was" } else { "were" };
            format!("{} of queues {were} put aside: {last}\n{PUT_ASIDE_HINT}", Count(*count, "message"))
        });
        let cut_off = self.cut_off.map(|cut_off| cut_off_line(&self.engine.access.address, cut_off));
        let (times, lost) = &self.lost_writes;
        let lost = (*times > 0).then(|| lost.clone());
        let copied = self.copied.as_ref().filter(|(_, told)| told.elapsed() < COPY_TOLD);
        let copied = copied.map(|(text, _)| text.clone());
        end.into_iter().chain(engine).chain(copied).chain(cut_off).chain(lost).chain(put_aside)
    }

    /// Ends it once nothing is left to be settled. True when it has ended.
    pub(super) fn end(&mut self, is_settled: bool, is_forced: bool) -> bool {
        self.start_at = None;
        let Some(process) = &self.process else { return true };
        let now = Instant::now();
        let give_up_at = *self.give_up_at.get_or_insert(now + if is_forced { END_LIMIT } else { SETTLE_LIMIT });
        // A claim that was on its way when the stop began is known to the agent alone.
        let is_settled = is_settled && self.has_let_go;
        if !is_settled && self.connection.is_some() && now < give_up_at {
            return false;
        }
        match self.kill_at {
            None => {
                process.terminate();
                self.kill_at = Some(now + END_LIMIT);
            }
            Some(kill_at) if kill_at <= now => {
                process.kill();
                // Its end wakes the loop.
                self.kill_at = Some(now + END_LIMIT);
            }
            Some(_) => {}
        }
        self.give_up_at = None;
        false
    }
}

/// Says that the engine does not hear this node, and what was done about it.
fn cut_off_line(address: &str, (ended, after): (u32, Duration)) -> String {
    let ended = match ended {
        1 => "1 task of a queue is ended here".to_owned(),
        more => format!("{more} tasks of queues are ended here"),
    };
    format!(
        "the engine at `{address}` has not heard this node for {}, so {ended} (--on-partition stop): another node may take over what it held",
        Elapsed(after)
    )
}

/// Hint for messages that were put aside.
const PUT_ASIDE_HINT: &str = "(hint: the stream `TRACER_default_DEAD` of the engine keeps them for seven days, each with its reason in its headers)";

/// Hint for an engine that loses what it has acknowledged.
const LOST_WRITES_HINT: &str = "(hint: `tracer engine config` writes a configuration with which it syncs what it acknowledges; `tracer doctor` says what is missing)";

/// Returns what is told of a task that was looked for.
fn shared_report(id: ClusterTaskId, found: Found, engine: &str) -> Result<SharedReport, String> {
    let mut report = SharedReport {
        cluster_task_id: id.to_string(),
        state: TaskState::Waiting,
        queue: None,
        node_id: None,
        attempt: 0,
        attempts: Vec::new(),
        started_unix_nano: None,
        ended_unix_nano: None,
        result: None,
        result_loss: None,
        stored: None,
        failure: None,
        message: None,
    };
    let outcome = match found {
        Found::Unreachable => {
            return Err(format!(
                "task {id} cannot be looked for: the engine at `{engine}` cannot be reached\n(hint: `tracer status` says why)"
            ));
        }
        Found::Unknown => {
            return Err(unknown_task(id, engine));
        }
        Found::Waiting { queue, attempts } => {
            report.queue = Some(queue).filter(|queue| !queue.is_empty());
            report.attempt = attempts;
            return Ok(report);
        }
        Found::Claimed(ClaimedBy { node_id, attempt, since_unix_nano }) => {
            (report.state, report.node_id, report.attempt) = (TaskState::Running, Some(node_id), attempt);
            report.started_unix_nano = Some(since_unix_nano);
            return Ok(report);
        }
        Found::Ended { end, loss } => {
            let end = SharedEnd::decode(&end)
                .map_err(|error| format!("task {id} has ended, but its end cannot be read here: {error}"))?;
            report.node_id = Some(end.node_id).filter(|node| !node.is_empty());
            (report.attempt, report.attempts) = (end.attempt, end.past);
            report.started_unix_nano = end.started_unix_nano;
            report.ended_unix_nano = Some(end.ended_unix_nano);
            report.result_loss = loss;
            end.outcome
        }
        Found::Lost { attempt, why } => {
            report.attempt = attempt;
            Outcome::Failed(Failure::Lost { message: why })
        }
    };
    report.state = TaskState::of_outcome(&outcome);
    match outcome {
        Outcome::Returned(value) => {
            report.result = JsonText::of(&value).ok();
            report.result_loss = report.result.as_ref().and_then(JsonText::loss);
        }
        Outcome::Stored(stored) => report.stored = Some(stored).filter(|stored| !stored.name.is_empty()),
        Outcome::Completed => {}
        Outcome::Failed(failure) => {
            report.message = Some(failure.to_string());
            report.failure = Some(failure);
        }
    }
    Ok(report)
}

/// Returns the error for a task that neither the engine nor a node that answers knows.
fn unknown_task(id: ClusterTaskId, engine: &str) -> String {
    format!(
        "the engine at `{engine}` has no task {id}: it was never put into a queue, waits at its origin for an argument, or ended too long ago\n\
         (hint: `list tasks` on the node that submitted it shows those that are known there)"
    )
}

/// Returns the error for a task that cannot be ended because the engine does not answer.
fn cancel_problem(id: ClusterTaskId, engine: &str) -> String {
    format!(
        "task {id} cannot be cancelled now: neither the node that submitted it answers nor the engine at `{engine}`\n\
         (hint: `tracer status` says what is wrong with the engine)"
    )
}
