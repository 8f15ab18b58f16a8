//! The head's side of the agent: it is started again when it ends, and questions about other nodes go through it.

use std::time::{Duration, Instant};

use tracer_core::ClusterTaskId;
use tracer_core::count::Count;
use tracer_ipc::protocol::{CancelAnswer, CancelReport, ClusterReport, Found, Reply, Stop, put_reply};
use tracer_reactor::Effects;

use super::{
    AgentLink, LOST_WRITES_HINT, PUT_ASIDE_HINT, Question, START_AGAIN, cancel_problem, cut_off_line, shared_report,
    unknown_task,
};
use crate::io::HeadIo;
use crate::process::{AgentCommand, FrontProcess, describe_exit};
use crate::source::Source;

impl HeadIo {
    /// Has the agent look for a task of any node. The answer comes later, unless nobody can be asked.
    pub(crate) fn find_shared(&mut self, id: &str, connection: u64, query: u64) -> Option<Reply> {
        let (agent, id) = match self.agent_for(id) {
            Ok(found) => found,
            Err(why) => return Some(Reply::Shared(Err(why))),
        };
        if !agent.ask(Question::Task(id), (connection, query)) {
            return Some(Reply::Shared(
                shared_report(id, Found::Unreachable, &agent.engine.access.address).map(Box::new),
            ));
        }
        None
    }

    /// Has the agent end a task of another node. The answer comes later, unless nobody can be asked.
    pub(crate) fn cancel_elsewhere(&mut self, id: &str, stop: Stop, (connection, query): (u64, u64)) -> Option<Reply> {
        let asked = self.agent_for(id).and_then(|(agent, id)| {
            let is_asked = agent.ask(Question::Cancel(id, stop), (connection, query));
            if is_asked { Ok(()) } else { Err(cancel_problem(id, &agent.engine.access.address)) }
        });
        asked.err().map(|why| Reply::CancelledElsewhere(Err(why)))
    }

    /// Tells whoever asked what became of a request to end a task of another node.
    pub(crate) fn on_cancel_answered(&mut self, number: u64, answer: CancelAnswer) {
        let Some(agent) = &mut self.agent else { return };
        let Some((Question::Cancel(id, _), connection, query)) = agent.questions.remove(&number) else { return };
        let reply = match answer {
            CancelAnswer::Report(CancelReport::Unknown) => Err(unknown_task(id, &agent.engine.access.address)),
            CancelAnswer::Report(report) => Ok(report),
            CancelAnswer::Unreachable => Err(cancel_problem(id, &agent.engine.access.address)),
            CancelAnswer::InBundle => Err(format!(
                "task {id} cannot be cancelled now: it waits in a bundle of short tasks that no node has begun, and the node that submitted it, which alone \
                 can take it out, does not answer\n\
                 (hint: cancel it again when a node runs it, or that node is back; `tracer list nodes` shows those that are there)"
            )),
        };
        self.answer_late(connection, query, &Reply::CancelledElsewhere(reply));
    }

    /// Returns the agent and the id of a task of a queue; or why it cannot be asked for such a task.
    fn agent_for(&mut self, id: &str) -> Result<(&mut AgentLink, ClusterTaskId), String> {
        let id: ClusterTaskId =
            id.parse().map_err(|error| format!("`{id}` is no id of a task in a cluster: {error}"))?;
        let agent = self.agent.as_mut().ok_or_else(|| {
            format!(
                "task {id} is one of a queue, but this head has joined no engine\n\
                 (hint: ask on a node that has, or start this one with `tracer start --address nats://127.0.0.1:4222`)"
            )
        })?;
        Ok((agent, id))
    }

    /// Has the agent look for the nodes and queues of the engine. The answer comes later, unless nobody can be asked.
    pub(crate) fn find_cluster(&mut self, connection: u64, query: u64) -> Option<Reply> {
        let Some(agent) = &mut self.agent else {
            return Some(Reply::Cluster(Err("this head has joined no engine, so it knows of no other nodes\n\
                 (hint: start it with `tracer start --address nats://127.0.0.1:4222`)"
                .into())));
        };
        let is_asked = agent.ask(Question::Cluster, (connection, query));
        (!is_asked).then(|| agent.cluster_reply(Err(agent.state.1.clone())))
    }

    /// Tells whoever asked what was found of a task.
    pub(crate) fn on_found(&mut self, number: u64, found: Found) {
        let Some(agent) = &mut self.agent else { return };
        let Some((Question::Task(id), connection, query)) = agent.questions.remove(&number) else { return };
        let reply = Reply::Shared(shared_report(id, found, &agent.engine.access.address).map(Box::new));
        self.answer_late(connection, query, &reply);
    }

    /// Notes that a message of a queue was put aside, or could not be. The first of each queue is said in the log.
    pub(crate) fn on_put_aside(&mut self, queue: &str, name: &str, reason: &str, problem: Option<String>) {
        let Some(agent) = &mut self.agent else { return };
        let of = format!("a message of the queue `{queue}`, under `{name}`");
        let is_first = agent.put_aside.said.insert((queue.to_owned(), problem.is_some()));
        let line = match problem {
            None => {
                agent.put_aside.count += 1;
                agent.put_aside.last = format!("the last one of the queue `{queue}`, under `{name}`, because {reason}");
                format!("{of}, is put aside, and others are from now on without a word: {reason}\n{PUT_ASIDE_HINT}")
            }
            Some(problem) => format!("{of}, is of no use ({reason}), and cannot be put aside: {problem}"),
        };
        if is_first {
            self.log(line);
        }
    }

    /// Notes that a copy of this head's place has begun, and yields.
    pub(crate) fn on_copied(&mut self, text: String) {
        let Some(agent) = &mut self.agent else { return };
        let is_known = agent.copied.replace((text.clone(), Instant::now())).is_some_and(|(known, _)| known == text);
        if !is_known {
            self.log(text);
        }
    }

    /// Notes that the engine has lost writes.
    pub(crate) fn on_lost_writes(&mut self, told: u64, now: u64) {
        let Some(agent) = &mut self.agent else { return };
        agent.lost_writes.0 += 1;
        let (address, times) = (&agent.engine.access.address, Count(agent.lost_writes.0, "time"));
        let line = format!(
            "the engine at `{address}` has lost writes, {times} under this head: it had told of record {told}, and the next one was {now}. What this node had put \
             into queues is put there again, and what must not be started twice and may have begun is reported lost\n{LOST_WRITES_HINT}"
        );
        agent.lost_writes.1.clone_from(&line);
        self.log(line);
    }

    /// Notes that the engine does not hear this node, and that so many imports are ended for that.
    pub(crate) fn on_cut_off(&mut self, ended: u32, after_ms: u64) {
        let Some(agent) = &mut self.agent else { return };
        agent.ended_on_partition += u64::from(ended);
        let cut_off = (ended, Duration::from_millis(after_ms));
        agent.cut_off = Some(cut_off);
        let line = cut_off_line(&agent.engine.access.address, cut_off);
        self.log(line);
    }

    /// Notes that the agent has nothing of any queue any more.
    pub(crate) fn on_let_go(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.has_let_go = true;
        }
    }

    /// Notes that the engine hears this node again.
    pub(crate) fn on_heard_again(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.cut_off = None;
        }
    }

    /// Tells whoever asked what was found of the engine.
    pub(crate) fn on_surveyed(&mut self, number: u64, cluster: Result<Box<ClusterReport>, String>) {
        let Some(agent) = &mut self.agent else { return };
        let Some((Question::Cluster, connection, query)) = agent.questions.remove(&number) else { return };
        let reply = agent.cluster_reply(cluster);
        self.answer_late(connection, query, &reply);
    }

    fn answer_late(&mut self, connection: u64, query: u64, reply: &Reply) {
        if let Some(asking) = self.clients.connections.get_mut(&connection) {
            put_reply(&mut asking.outbox, query, reply);
            self.clients.dirty.push(connection);
        }
    }

    /// Answers the questions that an agent has not, because it is gone.
    pub(crate) fn fail_questions(&mut self) {
        let open = |agent: &AgentLink| agent.questions.iter().map(|(number, of)| (*number, of.0)).collect::<Vec<_>>();
        for (number, question) in self.agent.as_ref().map(open).unwrap_or_default() {
            match question {
                Question::Task(_) => self.on_found(number, Found::Unreachable),
                Question::Cluster => self.on_surveyed(number, Err("its agent has ended".into())),
                Question::Cancel(..) => self.on_cancel_answered(number, CancelAnswer::Unreachable),
            }
        }
    }

    /// Starts the agent, if there is to be one and it is time.
    pub(crate) fn start_agent(&mut self) {
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
    pub(crate) fn on_agent_exit(&mut self) {
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
