//! The process `agent`: one runtime over two ends, the head's socket and the engine, with the core between them.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::unbounded_channel;
use tracer_core::clock::now_unix_nano;
use tracer_core::codec::WireError;
use tracer_core::count::Count;
use tracer_core::queue::QueueBound;
use tracer_core::task::{Refusal, RefusalCode};
use tracer_ipc::fault;
use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer, put_frame};
use tracer_ipc::protocol::{
    self, ClaimedBy, EngineAccess, Found, FromAgent, Hello, ImportedTask, LostElsewhere, Role, ToAgent, kind,
};
use tracer_ipc::session::socket_path;
use tracer_ipc::stored;

use crate::agent::{Agent, BUNDLE_WAIT_NS, Effect, Import, NotStored, Settings, Sharing, SharingBundle, ToHead, Token};
use crate::clock::Clocks;
use crate::doctor::{Examination, Finding};
use crate::interface::{Answer, Key, PutError, Queues, Request, Tier};
use crate::message::{BundledTask, Prepared, TaskMessage, prepare};
use crate::modules::Modules;
use crate::nats::{self, ACK_WAIT, FromEngine, Nats, roles};
use crate::record::{Claim, End, Holder, Mark, PastAttempt, Terms};
use crate::signed::Signer;

pub use crate::access::EngineError;
pub use crate::nats::{Made, OwnNode};

/// Interval of heartbeats, and of saying that messages are held.
pub(crate) const KEEP: Duration = Duration::from_secs(3);

/// Time that it may take to tell the engine of messages that are given back.
const GIVE_BACK_LIMIT: Duration = Duration::from_millis(500);

/// Reason why the process ends. The head starts it again.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The head cannot be spoken to.
    #[error("the head cannot be spoken to: {0}")]
    Head(io::Error),
    /// The head says what cannot be.
    #[error("the head sent what cannot be read: {0}")]
    Protocol(WireError),
    /// The engine's address cannot be used.
    #[error("{0}")]
    Engine(EngineError),
    /// The runtime cannot be started.
    #[error("the runtime cannot be started: {0}")]
    Runtime(io::Error),
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

/// Tries an engine out in this process, which ends soon after, for a node of this place and name that has so much for tasks. Returns what is not as it should be.
pub fn try_out(
    access: &EngineAccess,
    queues: &Queues,
    node: Option<OwnNode<'_>>,
    has: &QueueBound,
) -> Result<Vec<Finding>, AgentError> {
    let runtime = runtime().map_err(AgentError::Runtime)?;
    runtime.block_on(nats::try_out(access, queues, node, has)).map_err(AgentError::Engine)
}

/// Makes the streams of a cluster and of these queues, and returns them with the number of their copies: three where there are several servers unless said.
pub fn init(
    access: &EngineAccess,
    queues: &Queues,
    copies: Option<usize>,
) -> Result<(usize, Vec<(String, Made)>), AgentError> {
    let runtime = runtime().map_err(AgentError::Runtime)?;
    runtime.block_on(nats::init(access, queues, copies)).map_err(AgentError::Engine)
}

/// Says what tasks of a queue may ask for from now on, or asks what they may.
pub fn bound(access: &EngineAccess, queue: &str, bound: Option<&QueueBound>) -> Result<QueueBound, AgentError> {
    let runtime = runtime().map_err(AgentError::Runtime)?;
    runtime.block_on(nats::bound(access, queue, bound)).map_err(AgentError::Engine)
}

/// Examines an engine for somebody of this role, and returns what is wrong with it. `monitors` are addresses of the monitoring pages of its servers.
pub fn examine(access: &EngineAccess, role: roles::Role, monitors: &[String]) -> Result<Examination, AgentError> {
    let runtime = runtime().map_err(AgentError::Runtime)?;
    runtime.block_on(nats::examine(access, role, monitors)).map_err(AgentError::Engine)
}

/// Runs the agent of a session's head until that is gone.
pub fn run(session_dir: &Path) -> Result<(), AgentError> {
    // Between a head and an engine, both of which have more to say soon.
    tracer_ipc::background::batch_wakeups();
    let mut stream = UnixStream::connect(socket_path(session_dir)).map_err(AgentError::Head)?;
    let mut hello = Vec::new();
    Hello::of_this_process(Role::Agent).encode(&mut hello);
    stream.write_all(&hello).map_err(AgentError::Head)?;
    stream.set_nonblocking(true).map_err(AgentError::Head)?;
    let runtime = runtime().map_err(AgentError::Runtime)?;
    runtime.block_on(async {
        let (reading, writing) = tokio::net::UnixStream::from_std(stream).map_err(AgentError::Head)?.into_split();
        let head = FromHead { stream: reading, frames: FrameBuffer::new() };
        serve(head, writing, stored::folder(session_dir)).await
    })
}

/// The messages of the head.
struct FromHead {
    stream: OwnedReadHalf,
    frames: FrameBuffer,
}

impl FromHead {
    /// Waits for messages, and returns all that have come together, in their order; none once the head is gone. Who gives the wait up loses none.
    async fn next(&mut self) -> Result<Option<Vec<ToAgent>>, AgentError> {
        let mut messages = Vec::new();
        while messages.is_empty() {
            self.stream.readable().await.map_err(AgentError::Head)?;
            match self.frames.read_from(&mut Available(&self.stream)) {
                Ok(0) => return Ok(None),
                Ok(_) => take_all(&mut self.frames, &mut messages)?,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(AgentError::Head(error)),
            }
        }
        Ok(Some(messages))
    }
}

/// The bytes that have come from the head, without waiting for others.
struct Available<'a>(&'a OwnedReadHalf);

impl Read for Available<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(room)
    }
}

/// Takes all messages that have come as a whole.
fn take_all(frames: &mut FrameBuffer, messages: &mut Vec<ToAgent>) -> Result<(), AgentError> {
    loop {
        match frames.next_frame(FRAME_LIMIT).map_err(|error| AgentError::Head(error.into()))? {
            None => return Ok(()),
            Some((kind::SHARING, body)) => messages.push(ToAgent::decode(body).map_err(AgentError::Protocol)?),
            Some((kind::WELCOME, _)) => {}
            Some(_) => return Err(AgentError::Protocol(WireError::UnknownValue("frame kind"))),
        }
    }
}

async fn serve(mut head: FromHead, mut to_head: OwnedWriteHalf, values: PathBuf) -> Result<(), AgentError> {
    let clock = Instant::now();
    let now_ns = || u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // First it says who this node is.
    let Some(first) = head.next().await? else { return Ok(()) };
    let mut first = first.into_iter();
    let Some(ToAgent::Node(node)) = first.next() else {
        return Err(AgentError::Protocol(WireError::UnknownValue("first message")));
    };
    let signer = Signer::of(&node.access).map_err(AgentError::Engine)?;
    let limited =
        |(queue, slots): &(String, u32)| (queue.clone(), if *slots == 0 { usize::MAX } else { *slots as usize });
    let settings = Settings {
        own: Holder { place: node.place, life: node.life },
        node_id: node.node_id,
        queues: node.queues.iter().map(limited).collect(),
        shared_commands: node.shared_commands,
        ack_wait_ns: ACK_WAIT.as_nanos() as u64,
        keep_ns: KEEP.as_nanos() as u64,
        engine_wait_ns: node.engine_wait_ms.saturating_mul(1_000_000),
        max_value: node.max_shared_value,
        signs_as: signer.as_ref().map(|signer| signer.public_key().to_owned()),
        on_partition: node.on_partition,
    };
    let mut agent = Agent::new(settings, now_ns());
    let mut modules = Modules::new(node.module_folders, node.built_in_modules);
    let (events, mut from_engine) = unbounded_channel();
    let names = node.queues.into_iter().map(|(queue, _)| queue).collect();
    let queues = Queues { names, shared_commands: node.shared_commands };
    let trust = (signer, node.trusted_keys);
    let nats = Nats::connect(&node.access, node.place, queues, trust, values.clone(), events).await;
    let nats = Arc::new(nats.map_err(AgentError::Engine)?);
    let (address, engine_wait_ms) = (node.access.address, node.engine_wait_ms);
    let mut out = Out { bytes: Vec::new(), address, engine_wait_ms, why: String::new() };
    let mut next_ns = now_ns();
    on_all(&mut agent, &mut modules, &nats, first, now_ns())?;
    loop {
        let wait = Duration::from_nanos(next_ns.saturating_sub(now_ns()));
        tokio::select! {
            messages = head.next() => {
                let Some(messages) = messages? else { return Ok(()) };
                on_all(&mut agent, &mut modules, &nats, messages, now_ns())?;
            }
            event = from_engine.recv() => {
                let Some(event) = event else { return Ok(()) };
                on_engine(&mut agent, &mut modules, (&mut out, &nats), event, now_ns());
                while let Ok(event) = from_engine.try_recv() {
                    on_engine(&mut agent, &mut modules, (&mut out, &nats), event, now_ns());
                }
            }
            () = tokio::time::sleep(wait) => {}
        }
        if next_ns <= now_ns() {
            modules.look().into_iter().for_each(|listed| agent.on_modules(listed));
            next_ns = agent.on_tick(now_ns());
        }
        if agent.take_due_soon() {
            next_ns = next_ns.min(now_ns() + BUNDLE_WAIT_NS);
        }
        let mut given_back = Vec::new();
        for effect in agent.take_effects() {
            match effect {
                Effect::Ask(number, request @ Request::GiveBack(_)) => {
                    given_back.push(nats.carry_out(number, request));
                }
                Effect::Ask(number, request) => drop(nats.carry_out(number, request)),
                Effect::Tell(told) => out.put(told, &nats.clocks()),
                // What is left goes with the head.
                Effect::SendOutput(place, message) => nats.send_output(place, message),
                Effect::RemoveFile(name) => drop(std::fs::remove_file(values.join(name))),
            }
        }
        // A head that stops ends this process once it hears that all is settled.
        let given_back = async {
            for giving in given_back {
                let _ = giving.await;
            }
        };
        let _ = tokio::time::timeout(GIVE_BACK_LIMIT, given_back).await;
        out.write(&mut to_head).await?;
    }
}

/// Messages that are to be told to the head.
struct Out {
    bytes: Vec<u8>,
    address: String,
    engine_wait_ms: u64,
    /// Reason why the engine cannot be reached, while it cannot.
    why: String,
}

impl Out {
    /// Puts a message for the head, which has all times by the clock of this node.
    fn put(&mut self, told: ToHead, clocks: &Clocks) {
        let message = match told {
            ToHead::Stored(task) => FromAgent::Stored(task),
            ToHead::Unanswered(tasks) => FromAgent::Unanswered(tasks),
            ToHead::NotStored(task, why) => FromAgent::NotStored(task, self.refusal(why)),
            ToHead::Ended(task, End::Outcome { outcome, .. }) => FromAgent::Ended(task, outcome.into()),
            ToHead::EndedTogether(ended) => {
                let outcomes = ended.outcomes();
                return outcomes.for_each(|(task, end)| self.put_message(&FromAgent::Ended(task, end.into())));
            }
            ToHead::Ended(task, End::Lost(claim)) => FromAgent::Lost {
                task,
                attempt: claim.attempt,
                lost: all_lost(&claim, clocks),
                why: format!("the node that ran it was lost ({})", of(&claim)),
                end: claim.wish.map(Vec::from),
            },
            ToHead::Ended(task, End::NodesLost(claim)) => FromAgent::Lost {
                task,
                attempt: claim.attempt,
                lost: all_lost(&claim, clocks),
                why: format!(
                    "the nodes that ran it were lost {}, the last one with attempt {} ({})",
                    Count(claim.crashes.saturating_add(1), "time"),
                    claim.attempt,
                    of(&claim)
                ),
                end: None,
            },
            ToHead::LostWrites(task) => FromAgent::Lost {
                task,
                attempt: 0,
                lost: Vec::new(),
                why: "the engine has lost it, and nobody knows whether it had begun".into(),
                end: None,
            },
            ToHead::Claimed(task, claim) => FromAgent::Claimed(task, on_own_clock(claim, clocks)),
            ToHead::BundleClaimed(first, claim) => {
                FromAgent::BundleClaimed(first, claim.map(|claim| on_own_clock(claim, clocks)))
            }
            ToHead::LetGo(task) => FromAgent::LetGo(task),
            ToHead::Import(Import { token, claim, submitted_unix_nano, envelope, problem }) => {
                let origin = token.id.place;
                let (submitted_unix_nano, envelope) =
                    clocks.on_own_clock(origin, submitted_unix_nano, Cow::Owned(envelope));
                let task = ImportedTask { place: 0, submitted_unix_nano, envelope };
                FromAgent::Import(protocol::Import { problem, ..import(&token, &claim, vec![task], clocks) })
            }
            ToHead::ImportBundle(bundle) => {
                let (token, claim) = (&bundle.token, &bundle.claim);
                let task = |BundledTask { place, submitted_unix_nano, envelope }| {
                    let (submitted_unix_nano, envelope) =
                        clocks.on_own_clock(token.id.place, submitted_unix_nano, Cow::Borrowed(envelope));
                    ImportedTask { place, submitted_unix_nano, envelope }
                };
                let tasks = bundle.tasks().into_iter().map(task).collect();
                return self.put_message(&FromAgent::Import(import(token, claim, tasks, clocks)));
            }
            ToHead::Stop(id, stop) => FromAgent::Stop(id, stop),
            ToHead::Superseded(id) => FromAgent::Superseded(id),
            ToHead::CutOff(ended) => {
                FromAgent::CutOff { ended, after_ms: u64::try_from(ACK_WAIT.as_millis()).unwrap_or(u64::MAX) }
            }
            ToHead::HeardAgain => FromAgent::HeardAgain,
            ToHead::HasLetGo => FromAgent::HasLetGo,
            ToHead::Settled(first, count) => FromAgent::Settled(first, count),
            ToHead::GiveBack(id) => FromAgent::GiveBack(id),
            ToHead::Found(number, Found::Claimed(claim)) => {
                FromAgent::Found { number, found: Found::Claimed(on_own_clock(claim, clocks)) }
            }
            ToHead::Found(number, found) => FromAgent::Found { number, found },
            ToHead::Cancel(task, stop, by) => FromAgent::Cancel { task, stop, by },
            ToHead::CancelAnswered(number, answer) => FromAgent::CancelAnswered { number, answer },
            ToHead::Output { task, place, node_id, output } => FromAgent::Output { task, place, node_id, output },
            ToHead::Log(line) => FromAgent::Log(line),
        };
        self.put_message(&message);
    }

    fn put_message(&mut self, message: &FromAgent<'_>) {
        put_frame(&mut self.bytes, kind::SHARED, |out| message.put(out));
    }

    fn refusal(&self, why: NotStored) -> Refusal {
        let address = &self.address;
        match why {
            NotStored::Unreachable => Refusal::new(
                RefusalCode::EngineUnreachable,
                format!(
                    "the engine at `{address}` could not be reached for {} ms, so nothing was accepted: {}\n\
                     (hint: submit again when it is back; `tracer status` says so)",
                    self.engine_wait_ms, self.why
                ),
            ),
            NotStored::KeyTaken(key, id) => Refusal::new(
                RefusalCode::KeyTaken,
                format!(
                    "the idempotency key `{key}` names task {id} of the engine at `{address}` already, which is another one"
                ),
            ),
            NotStored::Put(PutError::NoQueue) => Refusal::new(
                RefusalCode::QueueRefused,
                format!(
                    "the engine at `{address}` has no such queue\n\
                     (hint: a queue is made by the first node that serves it: `tracer start --address {address} --queue NAME`)"
                ),
            ),
            NotStored::Put(PutError::NoCommands(queue)) => Refusal::new(
                RefusalCode::QueueRefused,
                format!(
                    "the queue `{queue}` in the engine at `{address}` takes no commands: no node that serves it runs some\n\
                     (hint: start one with `tracer start --address {address} --queue {queue} --shared-commands`)"
                ),
            ),
            NotStored::Put(PutError::Full) => Refusal::new(
                RefusalCode::QueueFull,
                format!("the queue in the engine at `{address}` is full\n(hint: submit more when some have ended)"),
            ),
            NotStored::Put(PutError::AsksForTooMuch(reason)) => Refusal::new(RefusalCode::ImpossibleDemand, reason),
            NotStored::Put(PutError::Refused(reason)) => {
                Refusal::new(RefusalCode::QueueRefused, format!("the engine at `{address}` does not take it: {reason}"))
            }
        }
    }

    async fn write(&mut self, head: &mut OwnedWriteHalf) -> Result<(), AgentError> {
        if !self.bytes.is_empty() {
            head.write_all(&self.bytes).await.map_err(AgentError::Head)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Returns these tasks under this claim, as the head is told of them.
fn import<'a>(token: &Token, claim: &Claim, tasks: Vec<ImportedTask<'a>>, clocks: &Clocks) -> protocol::Import<'a> {
    protocol::Import {
        id: token.id,
        token: token.encode().into(),
        attempt: claim.attempt,
        failures: claim.failures,
        crashes: claim.crashes,
        lost: claim.without_span().map(|past| lost_elsewhere(past, clocks)).collect(),
        tasks,
        problem: None,
    }
}

fn of(claim: &Claim) -> String {
    format!("node `{}` of place {}", claim.mark.node_id, claim.holder.place)
}

/// Returns a claim with its time by the clock of this node.
fn on_own_clock(claim: ClaimedBy, clocks: &Clocks) -> ClaimedBy {
    ClaimedBy { since_unix_nano: clocks.to_own(claim.since_unix_nano), ..claim }
}

/// Returns the attempts whose spans are missing where the last one was lost too.
fn all_lost(claim: &Claim, clocks: &Clocks) -> Vec<LostElsewhere> {
    let last = lost_between((claim.attempt, &claim.mark), clocks.to_engine(now_unix_nano()), clocks);
    claim.without_span().map(|past| lost_elsewhere(past, clocks)).chain([last]).collect()
}

fn lost_elsewhere(past: &PastAttempt, clocks: &Clocks) -> LostElsewhere {
    lost_between((past.number, &past.mark), past.until_unix_nano, clocks)
}

/// Returns a lost attempt with its times by the clock of this node.
fn lost_between((attempt, mark): (u32, &Mark), until_unix_nano: u64, clocks: &Clocks) -> LostElsewhere {
    let since_unix_nano = clocks.to_own(mark.unix_nano);
    let until_unix_nano = clocks.to_own(until_unix_nano);
    LostElsewhere { attempt, node_id: mark.node_id.clone(), since_unix_nano, until_unix_nano }
}

/// Takes messages of the head that came together.
fn on_all(
    agent: &mut Agent,
    modules: &mut Modules,
    nats: &Arc<Nats>,
    messages: impl IntoIterator<Item = ToAgent>,
    now_ns: u64,
) -> Result<(), AgentError> {
    messages.into_iter().try_for_each(|message| on_head(agent, modules, nats, message, now_ns))
}

fn on_head(
    agent: &mut Agent,
    modules: &mut Modules,
    nats: &Arc<Nats>,
    message: ToAgent,
    now_ns: u64,
) -> Result<(), AgentError> {
    match message {
        ToAgent::Node(_) => return Err(AgentError::Protocol(WireError::UnknownValue("second node"))),
        ToAgent::Share {
            task,
            queue,
            is_command,
            is_of_many,
            submitted_unix_nano,
            at_most_once,
            crash_limit,
            envelope,
            large,
            key,
            is_new,
            is_stored,
        } => {
            fault::point("task_shared");
            modules.note_shared(&envelope);
            let terms = Terms { at_most_once, crash_limit };
            let Prepared { envelope, values, asks_for } = prepare(&envelope, large).map_err(AgentError::Protocol)?;
            let message = TaskMessage { submitted_unix_nano, terms, envelope: &envelope, digests: &[] }.encode();
            let key = key.map(|(name, fingerprint)| Key { name, fingerprint });
            let tier = match (is_command, is_of_many) {
                (true, _) => Tier::Commands,
                (false, true) => Tier::Second,
                (false, false) => Tier::First,
            };
            agent.on_share(task, Sharing { queue, tier, message, values, key, asks_for, is_new, is_stored }, now_ns);
        }
        ToAgent::ShareBundle { first, count, queue, crash_limit, run_ns, is_new, is_stored, tasks } => {
            if let Some(first) = tasks.iter().next() {
                modules.note_shared(first.envelope);
            }
            let sharing = SharingBundle { queue, crash_limit, count, run_ns, tasks, is_new, is_stored };
            agent.on_share_bundle(first, sharing, now_ns);
        }
        ToAgent::Withdraw { task, stops, end } => agent.on_withdraw(task, end, stops),
        ToAgent::Free { slots, free, resources, imports } => {
            agent.on_resources(resources);
            agent.on_free(slots as usize, free as usize, imports);
        }
        ToAgent::Open { id, token, attempt } => {
            agent.on_import_open(Token::decode(id, &token).map_err(AgentError::Protocol)?, attempt);
        }
        ToAgent::AttemptFailed { id, attempt, charge, report } => {
            agent.on_attempt_failed(id, attempt, (charge, report), engine_now(nats));
        }
        ToAgent::Ended { id, attempt, end } => agent.on_import_ended(id, attempt, end),
        ToAgent::GivenBack { id, attempt, has_begun } => agent.on_import_given_back(id, attempt, has_begun),
        ToAgent::StoodIn { id, attempt } => agent.on_stood_in(id, attempt),
        ToAgent::Stopping => agent.on_stopping(),
        ToAgent::Taken(task) => agent.on_taken(task),
        ToAgent::Find { number, id } => agent.on_find(number, id, now_ns),
        ToAgent::CancelElsewhere { number, id, stop, end } => agent.on_cancel_elsewhere(number, id, stop, end, now_ns),
        ToAgent::Cancelled { task, report, by } => agent.on_cancelled_for(by, task, report),
        ToAgent::TakeBack(task) => agent.on_take_back(task, engine_now(nats)),
        ToAgent::Survey(number) => nats.survey_for(number),
        ToAgent::Output { id, output } => agent.on_output(id, output),
        ToAgent::NotFollowed(task, place) => agent.on_not_followed(task, place),
    }
    Ok(())
}

/// Returns the time of the engine's clock, as far as it is known, in nanoseconds since the Unix epoch.
fn engine_now(nats: &Nats) -> u64 {
    nats.clocks().to_engine(now_unix_nano())
}

fn on_engine(agent: &mut Agent, modules: &mut Modules, (out, nats): (&mut Out, &Nats), event: FromEngine, now_ns: u64) {
    match event {
        FromEngine::Answer(number, answer) => {
            match answer {
                Answer::Key(_) => fault::point("key_entered"),
                Answer::Put(Ok(())) => fault::point("task_acknowledged"),
                Answer::Swapped(Some(_)) => fault::point("record_written"),
                _ => {}
            }
            agent.on_answer(number, answer);
        }
        FromEngine::Delivered(delivery) => match modules.lacked_by(&delivery.message) {
            None => agent.on_delivered(delivery, engine_now(nats)),
            Some(module) => agent.on_delivered_lacking(delivery, &module, engine_now(nats)),
        },
        FromEngine::Nodes(nodes) => agent.on_nodes(nodes),
        FromEngine::Record(key, record) => agent.on_record(key, &record),
        FromEngine::Told(told, _room) => agent.on_told(&told, now_unix_nano()),
        FromEngine::Dead(dead) => agent.on_dead(dead),
        FromEngine::PutAside { queue, name, reason, problem } => {
            let problem = problem.map(|problem| problem.to_string());
            out.put_message(&FromAgent::PutAside { queue, name, reason, problem });
        }
        FromEngine::Bounds(bounds) => agent.on_bounds(bounds),
        FromEngine::LostWrites { told, now } => {
            out.put_message(&FromAgent::LostWrites { told, now });
            agent.on_lost_writes();
        }
        FromEngine::Copied(text) => out.put_message(&FromAgent::Copied(text)),
        FromEngine::Mended(text) => out.put_message(&FromAgent::Log(text)),
        FromEngine::Clock(clock) => agent.on_clock(clock),
        FromEngine::Heard(sent) => {
            let age_ns = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
            agent.on_heard(now_ns.saturating_sub(age_ns));
        }
        FromEngine::Surveyed(number, survey) => {
            let cluster = survey.map(|survey| Box::new(survey.report()));
            out.put_message(&FromAgent::Surveyed { number, cluster });
        }
        FromEngine::Reachable(text) => {
            out.why.clear();
            out.put_message(&FromAgent::Engine { is_reachable: true, text });
            agent.on_reachable(now_ns);
        }
        FromEngine::Unreachable(text) => {
            out.why.clone_from(&text);
            out.put_message(&FromAgent::Engine { is_reachable: false, text });
            agent.on_unreachable(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::task::TaskId;

    use super::*;

    /// Returns the end of the agent, and that of its head.
    fn connected() -> (FromHead, tokio::net::UnixStream) {
        let (agent, head) = tokio::net::UnixStream::pair().unwrap();
        (FromHead { stream: agent.into_split().0, frames: FrameBuffer::new() }, head)
    }

    #[test]
    fn messages_that_come_in_pieces_are_taken_whole_and_those_that_come_together_at_once() {
        runtime().unwrap().block_on(async {
            let (mut agent, mut head) = connected();
            let sent: Vec<_> = (1..=5).map(|task| ToAgent::Taken(TaskId(task))).collect();
            let mut bytes = Vec::new();
            sent.iter().for_each(|message| put_frame(&mut bytes, kind::SHARING, |out| message.put(out)));
            for &byte in &bytes[..bytes.len() - 1] {
                head.write_all(&[byte]).await.unwrap();
            }
            assert_eq!(agent.next().await.unwrap(), Some(sent[..4].to_vec()));
            // Who gives up waiting for the rest loses nothing of it.
            assert!(tokio::time::timeout(Duration::ZERO, agent.next()).await.is_err());
            head.write_all(&bytes[bytes.len() - 1..]).await.unwrap();
            assert_eq!(agent.next().await.unwrap(), Some(sent[4..].to_vec()));
            drop(head);
            assert_eq!(agent.next().await.unwrap(), None);
        });
    }

    #[test]
    fn nonsense_from_the_head_is_an_error() {
        runtime().unwrap().block_on(async {
            for bytes in [&[0, 0, 0, 0][..], &[1, 0, 0, 0, 255], &[2, 0, 0, 0, kind::SHARING, 255]] {
                let (mut agent, mut head) = connected();
                head.write_all(bytes).await.unwrap();
                assert!(agent.next().await.is_err(), "{bytes:?}");
            }
        });
    }
}
