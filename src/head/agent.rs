//! The agent on the head's side: the process that speaks to the engine which other machines share, and what it is told.
//!
//! The head starts it, watches it, and starts it again when it dies; a new one is told all that is open. To the reactor it is a worker that takes tasks, and a
//! driver that submits some.

use std::time::{Duration, Instant};

use tracer_core::PlaceId;

use super::io::{HeadIo, Source};
use super::process::{AgentCommand, FrontProcess, describe_exit};
use super::reactor::Effects;
use crate::config::Engine;
use crate::protocol::frame::put_frame;
use crate::protocol::{EngineReport, ToAgent, kind};

/// Pause before a process that has ended is started again.
const START_AGAIN: Duration = Duration::from_millis(200);
/// Time that it may take to bring ends of imports into their records when the head ends.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);
/// Time within which it must end when it is asked to; it has nothing to do then.
const END_LIMIT: Duration = Duration::from_millis(500);

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
    /// Time at which it is killed; set once it was asked to end.
    kill_at: Option<Instant>,
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
            state: (false, "it was not reached yet".into()),
            start_at: Some(Instant::now()),
            restarts: 0,
            last_end: None,
            give_up_at: None,
            kill_at: None,
        }
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
    pub(super) fn on_hello(&mut self, connection: u64, node_id: &str) -> ToAgent {
        self.connection = Some(connection);
        self.outbox.clear();
        self.told_free = None;
        ToAgent::Node {
            place: self.place,
            life: self.life,
            node_id: node_id.into(),
            address: self.engine.address.clone(),
            queues: self.engine.queues.clone(),
            engine_wait_ms: u64::try_from(self.engine.wait.as_millis()).unwrap_or(u64::MAX),
            max_shared_value: self.engine.max_shared_value,
        }
    }

    /// Notes that its connection has closed.
    pub(super) fn on_gone(&mut self) {
        self.connection = None;
        self.outbox.clear();
        self.state = (false, "its agent is started again".into());
    }

    /// Appends a message for it. False if there is none.
    pub(super) fn tell(&mut self, message: &ToAgent) -> bool {
        if self.connection.is_some() {
            put_frame(&mut self.outbox, kind::SHARING, |out| message.put(out));
        }
        self.connection.is_some()
    }

    /// Describes it for people.
    pub(super) fn report(&self, (shared, imports): (usize, usize)) -> EngineReport {
        EngineReport {
            address: self.engine.address.clone(),
            is_reachable: self.state.0,
            text: self.state.1.clone(),
            place_id: self.place.to_string(),
            queues: self.engine.queues.iter().cloned().collect(),
            shared,
            imports,
            pid: self.pid(),
            restarts: self.restarts,
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
                self.engine.address, self.state.1
            )
        });
        end.into_iter().chain(engine)
    }

    /// Ends it once nothing is left to be settled. True when it has ended.
    pub(super) fn end(&mut self, is_settled: bool, is_forced: bool) -> bool {
        self.start_at = None;
        let Some(process) = &self.process else { return true };
        let now = Instant::now();
        let give_up_at = *self.give_up_at.get_or_insert(now + if is_forced { END_LIMIT } else { SETTLE_LIMIT });
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

impl HeadIo {
    /// Starts the agent, if there is to be one and it is time.
    pub(super) fn start_agent(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let is_due = agent.process.is_none() && agent.start_at.is_some_and(|start_at| start_at <= Instant::now());
        if !is_due {
            return;
        }
        agent.start_at = None;
        let settings = &self.settings;
        let command =
            AgentCommand { temp_dir: &settings.temp_dir, session_dir: &self.session_dir, tracing: &settings.tracing };
        let watched = FrontProcess::spawn_agent(&command).and_then(|process| {
            let watched = self.watch(std::os::fd::AsFd::as_fd(&process.pidfd), Source::AgentExit);
            if watched.is_err() {
                // Nobody would hear of its end.
                process.kill();
            }
            watched.map(|()| process)
        });
        let Some(agent) = &mut self.agent else { return };
        match watched {
            Ok(process) => agent.process = Some(process),
            Err(error) => {
                agent.start_at = Some(Instant::now() + START_AGAIN);
                agent.restarts += 1;
                agent.last_end = Some(format!("could not be started: {error}"));
                self.log(format!("the agent could not be started: {error}"));
            }
        }
    }

    /// Notes that the agent has ended. What it sent before was taken in already.
    pub(super) fn on_agent_exit(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let Some(process) = &mut agent.process else { return };
        let exit = match process.try_reap() {
            Ok(None) => return,
            Ok(Some(status)) => describe_exit(status).cause,
            Err(error) => format!("ended, and its exit status cannot be read: {error}"),
        };
        let _ = rustix::event::epoll::delete(&self.epoll, &process.pidfd);
        agent.process = None;
        agent.last_end = Some(exit.clone());
        if agent.kill_at.is_none() {
            agent.start_at = Some(Instant::now() + START_AGAIN);
            agent.restarts += 1;
            self.log(format!("the agent {exit}; it is started again"));
        }
    }
}
