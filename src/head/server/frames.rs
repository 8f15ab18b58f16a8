//! The frames of drivers, workers and tasks: hello, submissions, results, questions.

use std::ops::Range;
use std::time::Duration;

use tracer_core::task::{Failure, JobId, Outcome, Refusal, RefusalCode, TaskId, WorkerId};
use tracer_host::hook::SearchPath;
use tracer_ipc::fault;
use tracer_ipc::protocol::order::ORDER;
use tracer_ipc::protocol::wire::{Take, WireError};
use tracer_ipc::protocol::{
    ActorMethods, AttemptResult, FromAgent, Hello, Query, Reply, Role, SharedEnd, Stop, StopMode, Submissions, ToAgent,
    TracingSettings, Wait, Welcome, WorkerReady, kind, put_refusal, put_reply, put_value, spoken_version, take_value,
};
use tracer_reactor::Effects;
use tracer_reactor::state::{DriverId, Now, Unfinished, WorkerPhase};
use tracer_settings::otel;

use super::{RINGED, Server};
use crate::connection::{Connection, Peer, ReadState};

impl Server {
    /// Reads from a connection and handles what has come. True when there may be more.
    pub(super) fn read_connection(&mut self, id: u64, now: Now) -> bool {
        // Taken out while it is handled, so that handling may look at the others.
        let Some(mut connection) = self.io.clients.connections.remove(&id) else { return false };
        let read = connection.read();
        let handled = self.handle_frames(id, &mut connection, now);
        if let (Peer::Worker(worker) | Peer::Tasks(worker) | Peer::Sink(worker), Err(_)) = (connection.peer, &handled) {
            self.io.break_with(worker, "it sent a message that is not a worker's");
        }
        let reason = match (&read, handled) {
            (_, Err(error)) => Some(error),
            (Err(error), _) => Some(error.to_string()),
            (Ok(ReadState::Closed), _) => Some(String::new()),
            (Ok(ReadState::Open | ReadState::More), Ok(())) => None,
        };
        if let Some(reason) = reason {
            self.close(id, connection, &reason);
            return false;
        }
        if std::mem::take(&mut connection.wants_rings) && self.io.clients.ringed.len() < RINGED {
            // Without rings it goes on with its socket.
            if connection.give_rings().is_ok() {
                self.io.clients.ringed.push(id);
            }
        }
        if connection.has_backlog() {
            if std::mem::take(&mut connection.may_wait) {
                &mut self.io.clients.patient
            } else {
                &mut self.io.clients.dirty
            }
            .push(id);
        }
        self.io.clients.connections.insert(id, connection);
        matches!(read, Ok(ReadState::More))
    }

    /// Forgets a connection. A worker whose connection breaks is of no more use, and is killed if it is not dead already.
    pub(super) fn close(&mut self, id: u64, connection: Connection, reason: &str) {
        self.io.unwatch(id, &connection);
        if !reason.is_empty() {
            self.io.log(format!("connection {id} is closed: {reason}"));
        }
        if let Peer::Driver(_) | Peer::Tasks(_) = connection.peer {
            self.io.on_driver_gone(id, connection.peer, connection.pid);
        }
        if let Peer::Sink(_) = connection.peer {
            self.io.stories.handover.on_gone(id);
        }
        if connection.peer == Peer::Agent
            && let Some(agent) = &mut self.io.agent
        {
            agent.on_gone();
            self.io.fail_questions();
        }
        if let Peer::Worker(worker) = connection.peer {
            if let Some(process) = self.io.workers.processes.get_mut(&worker) {
                process.connection = None;
            }
            if self.state.workers().get(&worker).is_some_and(|worker| worker.phase() != WorkerPhase::Stopping)
                || !reason.is_empty()
            {
                self.io.kill(worker);
            }
        }
    }

    pub(super) fn handle_frames(&mut self, id: u64, connection: &mut Connection, now: Now) -> Result<(), String> {
        while !connection.is_closing {
            let Connection { inbox, outbox, peer, pid, is_closing, may_wait, receiver, wants_rings, .. } = connection;
            let mut gaps = Vec::new();
            let Some((frame_kind, body)) = inbox.next_frame(peer.frame_limit()).map_err(|error| error.to_string())?
            else {
                // A byte that is not a worker's own shifts all that follow, and what then counts for a length might be waited for for ever.
                let expected = [kind::WORKER_READY, kind::RESULTS, kind::RINGS];
                return match (*peer, inbox.next_kind()) {
                    (Peer::Worker(_), Some(next)) if !expected.contains(&next) => {
                        Err(format!("a frame of kind {next} is not for this end of the connection"))
                    }
                    _ => Ok(()),
                };
            };
            match (*peer, frame_kind) {
                (Peer::Unknown, kind::HELLO) => {
                    let answer = self.on_hello(id, body)?;
                    *peer = answer.peer;
                    *pid = answer.pid;
                    *is_closing = answer.is_refused;
                    outbox.extend_from_slice(&answer.frames);
                }
                (Peer::Unknown, ORDER) if !fault::is_without("orders") => {
                    let order = serde_json::from_slice(body).map_err(|error| format!("an order: {error}"))?;
                    *peer = Peer::Commander;
                    if let Some(answer) = self.on_order(id, order, now) {
                        answer.encode(outbox);
                    }
                }
                (Peer::Driver(job), kind::SUBMIT) => {
                    // One alone: its end may come at once, and is all that whoever waits for it needs to hear.
                    *may_wait =
                        outbox.is_empty() && Submissions::decode(body).is_ok_and(|all| all.take(2).count() == 1);
                    self.on_submit(id, Some(job), body, (outbox, &mut gaps), now)?;
                }
                (Peer::Tasks(_), kind::SUBMIT) => self.on_submit(id, None, body, (outbox, &mut gaps), now)?,
                (Peer::Agent, kind::SHARED) => {
                    let told = FromAgent::decode(body).map_err(|error| error.to_string())?;
                    self.on_told_by_agent(told, now);
                }
                (Peer::Driver(_) | Peer::Tasks(_), kind::FORGET) => {
                    for task in take_all(body, Take::u64).map_err(|error| error.to_string())? {
                        tracer_reactor::on_result_forgotten(&mut self.state, TaskId(task));
                    }
                }
                (Peer::Driver(_), kind::WATCH) => {
                    let mut take = Take::new(body);
                    let (tag, task) = (take.u64(), take.u64());
                    let (tag, task) =
                        (tag.map_err(|error| error.to_string())?, task.map_err(|error| error.to_string())?);
                    tracer_reactor::on_submitted_again(&mut self.state, &mut self.io, TaskId(task), DriverId(id), tag);
                }
                (Peer::Tasks(worker), kind::WAIT) => {
                    let wait = Wait::decode(body).map_err(|error| error.to_string())?;
                    tracer_reactor::on_wait(&mut self.state, &mut self.io, worker, &wait, now);
                }
                (Peer::Tasks(worker), kind::GO_ON) => {
                    let number = Take::new(body).u64().map_err(|error| error.to_string())?;
                    tracer_reactor::on_go_on(&mut self.state, worker, number);
                }
                (Peer::Driver(_) | Peer::Tasks(_), kind::QUERY) => {
                    let (number, query) = take_value(body).map_err(|error| error.to_string())?;
                    if let Some(reply) = self.on_query(id, number, query, now) {
                        put_reply(outbox, number, &reply);
                    }
                }
                (Peer::Worker(worker), kind::WORKER_READY) => {
                    let ready: WorkerReady = take_value(body).map_err(|error| error.to_string())?;
                    tracer_reactor::on_worker_ready(&mut self.state, &mut self.io, worker, ready, now);
                }
                (Peer::Worker(worker), kind::ACTOR_METHODS) => {
                    let methods: ActorMethods = take_value(body).map_err(|error| error.to_string())?;
                    tracer_reactor::on_methods(&mut self.state, worker, &methods);
                }
                (Peer::Worker(worker), kind::RESULTS) => {
                    self.io.read_watched_output(&self.state, worker);
                    let mut take = Take::new(body);
                    while !take.is_empty() {
                        let result = AttemptResult::take(&mut take).map_err(|error| error.to_string())?;
                        if let Outcome::Failed(Failure::OutOfMemory { .. }) = result.outcome
                            && let Some(process) = self.io.workers.processes.get_mut(&worker)
                        {
                            process.bound.note_kills();
                        }
                        if let Some(usage) = &result.usage {
                            self.io.report_usage(&self.state, worker, result.lease, usage);
                        }
                        tracer_reactor::on_result(&mut self.state, &mut self.io, worker, result, now);
                    }
                }
                (Peer::Driver(_) | Peer::Worker(_), kind::RINGS) => {
                    receiver.was_asked(inbox);
                    *wants_rings = true;
                }
                (Peer::Sink(_), kind::SPANS_DONE) => {
                    let done = take_value(body).map_err(|error| error.to_string())?;
                    if let Some(line) = self.io.stories.handover.on_done(id, &done, now.monotonic_ns) {
                        self.io.log(line);
                    }
                }
                _ => return Err(format!("a frame of kind {frame_kind} is not for this end of the connection")),
            }
            gaps.into_iter().for_each(|(from, tags)| connection.leave_gap(from, tags));
        }
        Ok(())
    }

    pub(super) fn on_hello(&mut self, id: u64, body: &[u8]) -> Result<Answer, String> {
        let hello = Hello::decode(body).map_err(|error| error.to_string())?;
        let refuse = |code: RefusalCode, reason: String| {
            let mut frames = Vec::new();
            put_refusal(&mut frames, &Refusal::new(code, reason));
            Ok(Answer { peer: Peer::Unknown, pid: 0, frames, is_refused: true })
        };
        let not_started = |worker: WorkerId| {
            let reason = format!("the head has not started worker {worker} as process {}", hello.pid);
            refuse(RefusalCode::UnknownWorker, reason)
        };
        if hello.protocol_version != spoken_version() {
            let reason = format!(
                "the head (tracer {}) speaks version {} of the protocol, but this program speaks version {}",
                tracer_ipc::VERSION,
                spoken_version(),
                hello.protocol_version
            );
            return refuse(RefusalCode::ProtocolVersion, reason);
        }
        let peer = match hello.role {
            Role::Driver => {
                let job = JobId(self.io.clients.next_job);
                self.io.clients.next_job += 1;
                tracer_reactor::on_driver(&mut self.state, job);
                Peer::Driver(job)
            }
            Role::Worker(worker) => match self.io.workers.processes.get_mut(&worker) {
                Some(process) if process.worker.pid() == hello.pid && process.connection.is_none() => {
                    process.connection = Some(id);
                    Peer::Worker(worker)
                }
                _ => return not_started(worker),
            },
            Role::Tasks(worker) => match self.io.workers.processes.get_mut(&worker) {
                Some(process) if process.worker.pid() == hello.pid => {
                    process.tasks_connection = Some(id);
                    Peer::Tasks(worker)
                }
                _ => return not_started(worker),
            },
            Role::Agent => match self.io.agent.as_mut() {
                Some(agent) if agent.pid() == Some(hello.pid) && agent.connection.is_none() => {
                    let module_path = self.io.settings.module_path.clone();
                    let folders = SearchPath { module_path, is_complete: false }.folders();
                    let node = agent.on_hello(id, &self.io.node_id, folders);
                    agent.notify(&node);
                    tracer_reactor::on_agent(&mut self.state, &mut self.io);
                    Peer::Agent
                }
                _ => {
                    let reason = format!("the head has not started process {} as its agent", hello.pid);
                    return refuse(RefusalCode::UnknownWorker, reason);
                }
            },
            Role::Sink(worker) => match self.io.workers.processes.get(&worker) {
                Some(process) if process.worker.pid() == hello.pid => {
                    // A worker that comes when the head stops delivers what it has, and takes nothing over.
                    if self.stop.is_none() {
                        self.io.stories.handover.on_sink(id);
                    }
                    Peer::Sink(worker)
                }
                _ => return not_started(worker),
            },
        };
        let settings = &self.io.settings;
        let welcome = Welcome {
            version: tracer_ipc::VERSION.into(),
            head_pid: std::process::id(),
            node_id: self.io.node_id.clone(),
            place_id: self.io.agent.as_ref().map(super::AgentLink::place),
            job_id: if let Peer::Driver(job) = peer { job } else { JobId(0) },
            session_dir: self.io.session_dir.clone(),
            module_path: settings.module_path.clone(),
            module_folders: SearchPath { module_path: settings.module_path.clone(), is_complete: false }.folders(),
            tracing: TracingSettings {
                environment: match (peer, &settings.tracing.hook) {
                    // A worker has this process's environment already.
                    (Peer::Driver(_), Some(_)) => otel::for_drivers(),
                    _ => Vec::new(),
                },
                ..settings.tracing.clone()
            },
            output_nonce: match peer {
                Peer::Worker(worker) => self.io.workers.processes.get(&worker).map(|process| process.output.nonce()),
                _ => None,
            },
        };
        let mut frames = Vec::new();
        put_value(&mut frames, kind::WELCOME, &welcome);
        Ok(Answer { peer, pid: hello.pid, frames, is_refused: false })
    }

    /// Takes a batch in. `job` is the driver's; tasks that were submitted by tasks belong to the job of those. `gaps` gets the offsets of the outbox at which
    /// answers come later, with the driver's numbers for them.
    pub(super) fn on_submit(
        &mut self,
        id: u64,
        job: Option<JobId>,
        body: &[u8],
        (outbox, gaps): (&mut Vec<u8>, &mut Vec<(usize, Range<u64>)>),
        now: Now,
    ) -> Result<(), String> {
        self.spin.request_began();
        let batch = Submissions::decode(body).map_err(|error| error.to_string())?;
        let answer = &mut |answer| match answer {
            tracer_reactor::Answer::Accepted(accepted) => accepted.encode(outbox),
            tracer_reactor::Answer::Refused(refusal) => put_refusal(outbox, &refusal),
            tracer_reactor::Answer::Later { first_tag, count } => {
                gaps.push((outbox.len(), first_tag..first_tag + u64::from(count)))
            }
        };
        tracer_reactor::on_submit(&mut self.state, &mut self.io, (DriverId(id), job), batch, answer, now)
    }

    /// Takes in what the agent says.
    fn on_told_by_agent(&mut self, told: FromAgent<'_>, now: Now) {
        let (state, io) = (&mut self.state, &mut self.io);
        match told {
            FromAgent::Stored(task) => {
                fault::point("task_stored");
                tracer_reactor::on_stored(state, io, task);
            }
            FromAgent::Unanswered(tasks) => tracer_reactor::on_unanswered(state, io, &tasks),
            FromAgent::NotStored(task, refusal) => tracer_reactor::on_not_stored(state, io, task, refusal, now),
            FromAgent::Ended(task, end) => {
                io.end_shared_output(state, task, &end);
                tracer_reactor::on_shared_ended(state, io, task, &end, now);
            }
            FromAgent::Lost { task, attempt, lost, why, end } => {
                io.forget_shared_output(task);
                let cancelled = end.and_then(|end| SharedEnd::decode(&end).ok()).map(|end| end.outcome);
                let outcome = cancelled.unwrap_or(Outcome::Failed(Failure::Lost { message: why }));
                tracer_reactor::on_shared_lost(state, io, task, (attempt, &lost), outcome, now);
            }
            FromAgent::Claimed(task, claim) => tracer_reactor::on_claimed(state, task, Some(claim)),
            FromAgent::BundleClaimed(first, claim) => tracer_reactor::on_bundle_claimed(state, first, claim),
            FromAgent::LetGo(task) => tracer_reactor::on_claimed(state, task, None),
            FromAgent::Import(import) => tracer_reactor::on_import(state, io, import, now),
            FromAgent::Stop(id, stop) => tracer_reactor::on_stop_import(state, io, id, stop, now),
            FromAgent::Superseded(id) => tracer_reactor::on_superseded(state, io, id, now),
            FromAgent::CutOff { ended, after_ms } => io.on_cut_off(ended, after_ms),
            FromAgent::HeardAgain => io.on_heard_again(),
            FromAgent::HasLetGo => io.on_let_go(),
            FromAgent::Settled(id, count) => tracer_reactor::on_settled(state, id, count),
            FromAgent::GiveBack(id) => tracer_reactor::on_give_back(state, io, id, now),
            FromAgent::Engine { is_reachable, text } => {
                let word = if is_reachable { "is there" } else { "cannot be reached" };
                io.log(format!("the engine {word}: {text}"));
                tracer_reactor::on_reach(state, is_reachable);
                if let Some(agent) = &mut io.agent {
                    agent.state = (is_reachable, text);
                }
            }
            FromAgent::Found { number, found } => io.on_found(number, found),
            FromAgent::Cancel { task, stop, by } => {
                let report = tracer_reactor::on_cancel(state, io, task, stop.grace_ns, now);
                if let Some(agent) = &mut io.agent {
                    agent.notify(&ToAgent::Cancelled { task, report, by });
                }
            }
            FromAgent::CancelAnswered { number, answer } => io.on_cancel_answered(number, answer),
            FromAgent::Surveyed { number, cluster } => io.on_surveyed(number, cluster),
            FromAgent::PutAside { queue, name, reason, problem } => io.on_put_aside(&queue, &name, &reason, problem),
            FromAgent::Output { task, place, node_id, output } => {
                io.show_shared_output(state, task, (place, &node_id), &output);
            }
            FromAgent::Copied(text) => io.on_copied(text),
            FromAgent::LostWrites { told, now } => io.on_lost_writes(told, now),
            FromAgent::Log(line) => io.log(format!("the agent: {line}")),
        }
    }

    /// Answers a query; none when the answer comes later.
    pub(super) fn on_query(&mut self, id: u64, number: u64, query: Query, now: Now) -> Option<Reply> {
        if let Query::Status = query {
            self.check_place(now);
            return Some(Reply::Status(Box::new(self.status(now))));
        }
        let (state, io) = (&mut self.state, &mut self.io);
        Some(match query {
            Query::Status => Reply::Status(Box::new(self.status(now))),
            Query::Tasks { limit, which, before } => {
                Reply::Tasks(tracer_reactor::list_tasks(state, io, limit, before, &which))
            }
            Query::Task { id } => Reply::Task(tracer_reactor::get_task(state, io, id).map(Box::new)),
            Query::Import { id } => {
                let found = id.parse().ok().and_then(|id| tracer_reactor::get_import(state, io, id));
                Reply::Task(found.map(Box::new))
            }
            Query::Shared { id: shared } => return io.find_shared(&shared, id, number),
            Query::Cluster => return io.find_cluster(id, number),
            Query::Explain { id } => Reply::Explanation(tracer_reactor::explain_task(state, io, id).map(Box::new)),
            Query::Actors => Reply::Actors(self.actors()),
            Query::Actor { wanted } => Reply::Actor(tracer_reactor::find_actor(state, &wanted).map(Box::new)),
            Query::Workers => {
                let mut workers = tracer_reactor::list_workers(state, io, now);
                workers.append(&mut self.replica_rows(now));
                Reply::Workers(workers)
            }
            Query::Running { job } => Reply::Running(tracer_reactor::count_running(state, io, job)),
            Query::Cancel { which, grace_ms } => {
                let grace_ns = grace_ms.map(|grace| grace.saturating_mul(1_000_000));
                Reply::Cancelled(tracer_reactor::on_cancel_many(state, io, &which, grace_ns, now))
            }
            Query::CancelElsewhere { id: task, grace_ms } => {
                let stop = Stop { grace_ns: grace_ms.map(|grace| grace.saturating_mul(1_000_000)) };
                return io.cancel_elsewhere(&task, stop, (id, number));
            }
            Query::Prune(which) => Reply::Pruned(tracer_reactor::on_prune(state, io, &which, now)),
            Query::HttpTracing { pid, failures } => {
                if let Some(front) = io.front.as_mut().filter(|front| front.pid() == Some(pid)) {
                    front.hook_failures = failures;
                }
                Reply::Noted
            }
            Query::MakePageCode { may_cancel } => {
                Reply::PageCode(io.front.as_mut().and_then(|front| front.make_code(may_cancel)))
            }
            Query::TakePageCode { code } => {
                Reply::PageAccess(io.front.as_mut().and_then(|front| front.take_code(&code)))
            }
            Query::Service(query) => return self.on_service_query((id, number), query, now),
            Query::Stop { grace_ms, force, mode } => {
                let (asked_by, grace) = ((id, Some(number)), Duration::from_millis(grace_ms));
                match mode {
                    StopMode::Drain if self.stop.is_none() => self.begin_drain(asked_by, grace),
                    StopMode::Drain | StopMode::Keep => {
                        self.begin_stop(Some(asked_by), grace, Unfinished::Kept, force, now);
                    }
                    StopMode::Discard => self.begin_stop(Some(asked_by), grace, Unfinished::Discarded, force, now),
                }
                return None;
            }
        })
    }
}

/// The answer to a hello.
pub(super) struct Answer {
    peer: Peer,
    pid: u32,
    frames: Vec<u8>,
    is_refused: bool,
}

fn take_all<'a, T>(
    body: &'a [u8],
    take_one: impl Fn(&mut Take<'a>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let mut take = Take::new(body);
    let mut all = Vec::new();
    while !take.is_empty() {
        all.push(take_one(&mut take)?);
    }
    Ok(all)
}
