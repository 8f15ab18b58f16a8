//! The services in the loop of the head: reports and exits of their processes, questions of people.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::{Reply, ServiceQuery, ServiceReply, Stream, WorkerReport, WorkerState, put_reply};
use tracer_ipc::serving::ProxyOrder;
use tracer_reactor::deployments::{self, Version};
use tracer_reactor::state::{DriverId, Now};
use tracer_reactor::{Effects, Loss, Why, WorkerExit};

use super::control::Order;
use super::effects::Acting;
use super::{Follower, LAST_OUTPUT, ProcessKind, Said, events_for, said_last};
use crate::connection::drain;
use crate::io::HeadIo;
use crate::keeper::Key;
use crate::oom::{self, OomKills};
use crate::process::{WorkerProcess, describe_exit};
use crate::server::Server;
use crate::source::Source;

impl HeadIo {
    pub(crate) fn kill_of_service(&mut self, process: WorkerId) {
        if let Some(process) = self.services.processes.get_mut(&process) {
            process.was_killed = true;
            process.worker.kill(&process.spool);
        }
    }

    /// Hears of room at a control socket for as long as orders wait for it.
    pub(crate) fn watch_control(&mut self, process: WorkerId) {
        let Some(found) = self.services.processes.get_mut(&process) else { return };
        let wants_room = found.control.has_waiting();
        if wants_room == found.is_watched_for_room {
            return;
        }
        found.is_watched_for_room = wants_room;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wants_room);
        let data = epoll::EventData::new_u64(Source::ServiceControl(process).token());
        let _ = epoll::modify(&self.epoll, found.control.as_fd(), data, flags);
    }

    /// Takes back what callers held that are no more.
    pub(crate) fn forget_callers(&mut self, service: &str, callers: &[u32]) {
        let Some(entry) = self.services.tables.get_mut(service) else { return };
        for number in callers {
            if let Some(caller) = entry.table.caller(*number as usize) {
                entry.table.forget_caller(caller);
            }
            if entry.wakers.remove(number).is_some()
                && let Some(keeper) = &self.keeper
            {
                keeper.forget(Key::Waker(service.to_owned(), *number));
            }
        }
        self.services.callers.note_change(service);
        // Whoever else waits for a place may find one now.
        for waker in entry.wakers.values() {
            // One that is not read is awake already.
            let _ = rustix::io::write(waker, &1_u64.to_ne_bytes());
        }
    }

    /// Takes a report of a process. None when there is no further one.
    fn take_report(&mut self, process: WorkerId) -> Option<Said> {
        let found = self.services.processes.get_mut(&process)?;
        if found.control.is_closed() {
            return None;
        }
        let report = match found.kind {
            ProcessKind::Replica { .. } => {
                found.control.report().map(|report| report.map(|(report, _)| Said::Replica(report)))
            }
            ProcessKind::Proxy { .. } => found.control.report().map(|report| report.map(Said::of_proxy)),
        };
        if found.control.is_closed() {
            // It is heard of by its end.
            let _ = epoll::delete(&self.epoll, found.control.as_fd());
        }
        match report {
            Ok(report) => report,
            Err(error) => {
                self.log(format!("process {process} of a service sent an invalid report, and is killed: {error}"));
                self.kill_of_service(process);
                None
            }
        }
    }

    /// Reads what a process of a service has written, to its log.
    pub(crate) fn read_service_output(&mut self, process: WorkerId, stream: Stream, buffer: &mut [u8]) {
        let Some(found) = self.services.processes.get_mut(&process) else { return };
        let (logs, last) = (&mut self.logs, &mut found.last_output);
        let take = |bytes: &[u8], _| {
            logs.write(process, bytes, &[]);
            last.extend_from_slice(bytes);
            last.drain(..last.len().saturating_sub(LAST_OUTPUT));
        };
        let WorkerProcess { stdout, stderr, .. } = &mut found.worker;
        let is_open = match stream {
            Stream::Stdout => stdout.as_mut().is_none_or(|pipe| drain(pipe, buffer, take)),
            Stream::Stderr => stderr.as_mut().is_none_or(|pipe| drain(pipe, buffer, take)),
        };
        if !is_open {
            let closed: Option<OwnedFd> = match stream {
                Stream::Stdout => stdout.take().map(Into::into),
                Stream::Stderr => stderr.take().map(Into::into),
            };
            if let Some(closed) = closed {
                let _ = epoll::delete(&self.epoll, &closed);
            }
        }
    }

    /// Reaps a process of a service that has ended, and finishes its story. Returns how it ended, with what it wrote last; none when it has not
    /// ended.
    fn end_of_service_process(&mut self, process: WorkerId, oom_kills: &mut OomKills) -> Option<String> {
        let mut found = self.services.processes.remove(&process)?;
        // Before it is reaped: its pid, and so its group, is still its own.
        found.worker.kill(&found.spool);
        let counter = oom::counter_of(found.worker.pid());
        let exit = match found.worker.try_reap() {
            Ok(Some(status)) => found.bound.end(oom_kills.explain(describe_exit(status), counter)),
            Ok(None) => {
                self.services.processes.insert(process, found);
                return None;
            }
            Err(error) => {
                let cause = format!("ended, and its exit status cannot be read: {error}");
                WorkerExit { cause, error_type: "unknown".into(), memory: None }
            }
        };
        let _ = epoll::delete(&self.epoll, &found.worker.pidfd);
        self.logs.close(process);
        let pid = found.worker.pid();
        let what = match &found.kind {
            ProcessKind::Replica { name } => format!("replica {name}"),
            ProcessKind::Proxy { .. } => "the proxy".into(),
        };
        let left = if found.spool.exists() { None } else { found.worker.claims.story() };
        let description = format!("{what} (pid {pid}) {}", exit.cause);
        let why = Why { error_type: exit.error_type.clone(), description };
        let loss = Loss { why, of_tasks: Vec::new(), attempts: Vec::new() };
        self.finish_story(&found.spool, left, &loss, Some(process));
        found.worker.reap();
        if let ProcessKind::Proxy { callers } = &found.kind {
            self.forget_callers(&found.service, callers);
        }
        Some(exit.cause + &said_last(&found.last_output))
    }
}

impl Server {
    pub(in crate::services) fn acting(&mut self) -> (&mut deployments::Services, Acting<'_>) {
        let acting = Acting { io: &mut self.io, processes: self.state.processes_mut() };
        (&mut self.services, acting)
    }

    /// Answers a question about services; none when the answer comes later.
    pub(crate) fn on_service_query(
        &mut self,
        (id, number): (u64, u64),
        query: ServiceQuery,
        now: Now,
    ) -> Option<Reply> {
        self.notify_services_of_tasks();
        let (services, mut acting) = self.acting();
        let acting = &mut acting;
        let reply = match query {
            ServiceQuery::Deploy { service, is_dry_run, is_bound } => {
                let owner = is_bound.then_some(DriverId(id));
                deployments::on_deploy(services, acting, *service, (is_dry_run, owner), now).map(ServiceReply::Accepted)
            }
            ServiceQuery::Rollback { service, version } => {
                deployments::on_rollback(services, acting, (&service, version), now).map(ServiceReply::Accepted)
            }
            ServiceQuery::ShutDown { service } => {
                deployments::on_shut_down(services, acting, &service, now).map(ServiceReply::Accepted)
            }
            ServiceQuery::Follow { service, after } => {
                let follower = Follower { connection: id, number, service, after };
                if !services.knows(&follower.service) {
                    let refused = deployments::find_service(services, &follower.service).err();
                    return refused.map(|refusal| Reply::Service(ServiceReply::Refused(refusal)));
                }
                let Some(events) = events_for(services, &follower) else {
                    self.io.services.followers.push(follower);
                    return None;
                };
                Ok(ServiceReply::Events(events))
            }
            ServiceQuery::List => Ok(ServiceReply::Services(self.service_rows(now))),
            ServiceQuery::Versions { service } => deployments::find_service(services, &service)
                .map(|served| ServiceReply::Versions(deployments::list_versions(served))),
        };
        Some(Reply::Service(reply.unwrap_or_else(ServiceReply::Refused)))
    }

    pub(crate) fn service_rows(&mut self, now: Now) -> Vec<tracer_ipc::protocol::ServiceReport> {
        let (services, acting) = self.acting();
        let mut rows = deployments::list_services(services, &acting, now);
        for replica in rows.iter_mut().flat_map(|row| &mut row.replicas) {
            replica.log = self.io.services.processes.get(&replica.worker_id).and_then(|process| process.log.clone());
        }
        rows
    }

    /// Returns the replicas among the rows of worker processes.
    pub(crate) fn replica_rows(&mut self, now: Now) -> Vec<WorkerReport> {
        let rows = self.service_rows(now);
        let replicas = rows.into_iter().flat_map(|row| row.replicas);
        let row = |replica: tracer_ipc::protocol::ReplicaReportRow| WorkerReport {
            id: replica.worker_id,
            pid: replica.pid.unwrap_or(0),
            state: match (replica.state.as_str(), replica.ongoing) {
                ("starting", _) => WorkerState::Starting,
                ("draining", _) => WorkerState::Stopping,
                (_, 0) => WorkerState::Idle,
                _ => WorkerState::Busy,
            },
            uptime_ns: replica.uptime_ns,
            task: None,
            actor: None,
            replica: Some(replica.name),
            leases: usize::try_from(replica.ongoing).unwrap_or(usize::MAX),
            cpus: 0,
            resources: BTreeMap::new(),
            tasks_ended: 0,
            tracing: replica.tracing,
            hook_failure: replica.hook_failure,
        };
        replicas.map(row).collect()
    }

    /// Processes of services have said something, or can be told more.
    pub(crate) fn on_service_control(&mut self, process: WorkerId, now: Now) {
        if let Some(found) = self.io.services.processes.get_mut(&process) {
            // What cannot be sent is told by its end.
            let _ = found.control.send();
            self.io.watch_control(process);
        }
        while let Some(said) = self.io.take_report(process) {
            let (services, mut acting) = self.acting();
            match said {
                Said::Replica(report) => {
                    deployments::on_replica_report(services, &mut acting, process, report, now);
                }
                Said::Proxy(report) => deployments::on_proxy_report(services, &mut acting, process, report, now),
                Said::Connection(socket) => {
                    if let Some(heir) = deployments::heir(services, process) {
                        acting.order(heir, Order::Proxy(ProxyOrder::Connection), vec![socket]);
                    }
                }
            }
        }
    }

    /// Notes that a process of a service has ended.
    pub(crate) fn on_service_exit(&mut self, process: WorkerId, buffer: &mut [u8], now: Now) {
        // What it said before it died counts.
        self.on_service_control(process, now);
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.io.read_service_output(process, stream, buffer);
        }
        let Some(cause) = self.io.end_of_service_process(process, &mut self.oom_kills) else { return };
        let place = deployments::place_of(&self.services, process);
        let (services, mut acting) = self.acting();
        deployments::on_exit(services, &mut acting, process, &cause, now);
        if let Some((service, replica)) = place {
            self.io.notify_callers_of_loss(&service, replica);
        }
        // Whatever it left behind has become the head's.
        self.due.orphans = Some(std::time::Instant::now());
    }

    /// Tells services how much of what replicas may have tasks and actors have.
    fn notify_services_of_tasks(&mut self) {
        let others = self.state.workers().len().saturating_sub(self.state.settings().workers_wanted);
        self.services.set_others(others);
        self.services.set_held(self.state.held_by_tasks());
    }

    /// Starts, publishes and ends what is to be, and tells those who follow.
    pub(crate) fn turn_services(&mut self, now: Now) {
        if self.services.is_due(now) {
            self.notify_services_of_tasks();
        }
        let (services, mut acting) = self.acting();
        let had_news = services.has_news();
        self.due.services = deployments::turn(services, &mut acting, now);
        if had_news {
            self.state.occupy(self.services.occupied(), self.services.replicas());
            self.notify_callers();
        }
        if had_news {
            self.keep_services();
        }
        let followers = std::mem::take(&mut self.io.services.followers);
        for follower in followers {
            let Some(connection) = self.io.clients.connections.get_mut(&follower.connection) else { continue };
            match events_for(&self.services, &follower) {
                Some(events) => {
                    let reply = Reply::Service(ServiceReply::Events(events));
                    put_reply(&mut connection.outbox, follower.number, &reply);
                    self.io.clients.dirty.push(follower.connection);
                }
                None => self.io.services.followers.push(follower),
            }
        }
    }

    /// Ends the services that were to end with a connection.
    pub(crate) fn end_services_of(&mut self, connection: u64, now: Now) {
        let (services, mut acting) = self.acting();
        deployments::on_owner_gone(services, &mut acting, DriverId(connection), now);
    }

    /// Serves again what a head before this one served.
    pub(crate) fn restore_services(&mut self, versions: Vec<Version>, now: Now) {
        let (services, mut acting) = self.acting();
        versions.into_iter().for_each(|version| deployments::on_restored(services, version));
        deployments::begin_restored(services, &mut acting, now);
    }

    /// Notes on the services that other machines reach.
    pub(crate) fn public_services(&self) -> Vec<String> {
        self.services.public_notes().map(|(name, note)| format!("service `{name}`: {note}")).collect()
    }

    /// Every service ends what it has, for so long.
    pub(crate) fn stop_services(&mut self, grace: std::time::Duration, now: Now) {
        let (services, mut acting) = self.acting();
        deployments::on_stop(services, &mut acting, grace, now);
    }
}
