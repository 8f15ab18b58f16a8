//! Takeover of services: facts and files that the guard keeps for the next head, and that head, which goes on with them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracer_core::task::WorkerId;
use tracer_ipc::control::send_long;
use tracer_ipc::fault;
use tracer_ipc::replica_table::ReplicaTable;
use tracer_ipc::spool::ClaimRing;
use tracer_process::control_group::Group;
use tracer_reactor::Effects;
use tracer_reactor::deployments::{self, Left, Version};
use tracer_reactor::state::Now;

use super::control::Control;
use super::listeners::Listeners;
use super::{ProcessKind, ServiceProcess, ServiceTable, ServicesIo};
use crate::io::HeadIo;
use crate::keeper::{AllKept, Keeper, Kept, Key};
use crate::memory::Bound;
use crate::process::WorkerProcess;
use crate::server::Server;

/// Facts about a process of a service that the guard keeps, beside its pid and its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProcessFacts {
    pub(super) service: String,
    /// The name of its log.
    pub(super) name: String,
    pub(super) spool: PathBuf,
    pub(super) kind: ProcessKind,
}

impl ServicesIo {
    /// Returns whether a process that lives, or is not reaped, has this spool.
    pub(crate) fn has_spool(&self, spool: &Path) -> bool {
        self.processes.values().any(|process| process.spool == spool)
    }
}

impl HeadIo {
    /// Goes on with the tables, listeners, callers and processes that were kept. Returns what the head before this one knew of the services; none if
    /// nothing was kept.
    pub(crate) fn take_over_services(&mut self, kept: AllKept, is_replaced: bool) -> Option<Left> {
        if !kept.contains_key(&Key::Head) {
            return None;
        }
        fault::point("head_takes_over");
        self.services.is_head_kept = true;
        let mut left = Left::default();
        // In the order of the keys: a table comes before what belongs to it.
        for (key, kept) in kept {
            if let Err(error) = self.take_over_one(&key, kept, &mut left) {
                self.log(format!("{key:?} of the head before this one cannot be taken over: {error}"));
                if let Key::Process(_) = key {
                    // It is ended, as nobody's.
                    self.forget(key);
                }
            }
        }
        let processes = left.processes.len();
        let restarts = self.restarts;
        let end = if is_replaced { "has made way for this one" } else { "has died" };
        self.log(format!(
            "the head before this one {end} (restart {restarts}); {processes} processes of services go on"
        ));
        Some(left)
    }

    fn take_over_one(&mut self, key: &Key, kept: Kept, left: &mut Left) -> std::io::Result<()> {
        match key {
            Key::Head | Key::Socket | Key::Front => Ok(()),
            Key::CallerSocket => self.take_over_caller_socket(kept.file(0)?),
            Key::Service(name) => {
                let bytes: Vec<u8> = tracer_ipc::control::receive_long(kept.file(0)?)?;
                let served = rmp_serde::from_slice(&bytes).map_err(std::io::Error::other)?;
                left.services.insert(name.clone(), served);
                Ok(())
            }
            Key::Table(name) => {
                let file = kept.file(0)?;
                let table = ReplicaTable::attach(&file)?;
                let entry = ServiceTable { table, file, listeners: Vec::new(), wakers: BTreeMap::new() };
                self.services.tables.insert(name.clone(), entry);
                Ok(())
            }
            Key::Listeners(name, address) => {
                let listeners = Listeners { address: *address, sockets: kept.files };
                match self.services.tables.get_mut(name) {
                    Some(entry) => entry.listeners.push(listeners),
                    // Its service begins anew.
                    None => self.services.spare_listeners.push((name.clone(), listeners)),
                }
                Ok(())
            }
            Key::Waker(name, number) => {
                if let Some(entry) = self.services.tables.get_mut(name) {
                    entry.wakers.insert(*number, kept.file(0)?);
                }
                Ok(())
            }
            Key::Process(number) => {
                self.take_over_process(WorkerId(*number), kept)?;
                left.processes.insert(WorkerId(*number));
                Ok(())
            }
            Key::Caller(id) => self.take_over_caller(*id, kept.value()?, kept.file(0)?),
        }
    }

    fn take_over_process(&mut self, process: WorkerId, kept: Kept) -> std::io::Result<()> {
        let missing = |what: &str| std::io::Error::other(format!("its {what} is missing"));
        let facts: ProcessFacts = kept.value()?;
        let pid = kept.pid.ok_or_else(|| missing("pid"))?;
        let [control, pidfd, stdout, stderr] = <[OwnedFd; 4]>::try_from(kept.files).map_err(|_| missing("files"))?;
        let claims = ClaimRing::take_over(&facts.spool).map_err(std::io::Error::other)?;
        let keeper = self.keeper.as_ref().map(Keeper::try_clone).ok_or_else(|| missing("guard"))??;
        let worker = WorkerProcess::of_guard(pid, process.0, keeper, [pidfd, stdout, stderr], claims)?;
        let found = ServiceProcess {
            worker,
            control: Control::of(control),
            service: facts.service,
            spool: facts.spool,
            kind: facts.kind,
            log: None,
            last_output: Vec::new(),
            was_killed: false,
            is_watched_for_room: false,
            bound: Bound::of_group(Group::of(pid).filter(Group::is_of_worker)),
        };
        let is_replica = matches!(found.kind, ProcessKind::Replica { .. });
        self.watch_service_process(process, found, pid, &facts.name).map_err(std::io::Error::other)?;
        if is_replica && self.settings.worker_memory.is_some() {
            self.bound_memory(process, None);
        }
        Ok(())
    }

    /// Has the guard keep what a head needs that goes on with the callers' socket and the processes of services. The rest of the head is kept with it by
    /// [`Server::keep_services`].
    pub(super) fn keep_session_of_services(&mut self) {
        self.services.wants_head_kept = true;
    }
}

impl Server {
    /// Has the guard keep each service that has changed, and with the first one what is of the head as a whole.
    pub(super) fn keep_services(&mut self) {
        if self.io.keeper.is_none() {
            return;
        }
        let mut changes = Vec::new();
        for (name, served) in self.services.all() {
            match rmp_serde::to_vec_named(served) {
                Ok(bytes) if self.io.services.kept.get(name) == Some(&bytes) => {}
                Ok(bytes) => changes.push((name.to_owned(), bytes)),
                Err(error) => {
                    let line = format!("service `{name}` is not kept for the next head: {error}");
                    return self.io.log(line);
                }
            }
        }
        let gone: Vec<_> = self.io.services.kept.keys().filter(|name| !self.services.knows(name)).cloned().collect();
        for name in gone {
            self.io.services.kept.remove(&name);
            self.io.forget(Key::Service(name));
        }
        for (name, bytes) in changes {
            match send_long(&bytes) {
                Ok(file) => self.io.keep(Key::Service(name.clone()), &(), &[file.as_fd()]),
                Err(error) => self.io.log(format!("service `{name}` is not kept for the next head: {error}")),
            }
            self.io.services.kept.insert(name, bytes);
        }
        self.keep_head();
    }

    /// Has the guard keep what is of the head as a whole, once there are processes of services.
    pub(crate) fn keep_head(&mut self) {
        if self.io.services.is_head_kept || !self.io.services.wants_head_kept {
            return;
        }
        let Server { io, session, listener, .. } = self;
        let mut settings = io.settings.clone();
        settings.fresh = None;
        let (kept, [lock, folder]) = session.to_keep();
        match send_long(&settings) {
            Ok(file) => io.keep(Key::Head, &kept, &[file.as_fd(), lock, folder]),
            Err(error) => return io.log(format!("the session is not kept for the next head: {error}")),
        }
        io.keep(Key::Socket, &(), &[listener.as_fd()]);
        let port = io.front.as_ref().and_then(|front| front.port()?.try_clone_to_owned().ok());
        if let Some(port) = port {
            io.keep(Key::Front, &(), &[port.as_fd()]);
        }
        io.services.is_head_kept = true;
    }

    /// Has the guard keep it for another program, also where there are no processes of services.
    pub(crate) fn keep_head_for_another(&mut self) {
        self.io.services.wants_head_kept = true;
        self.keep_head_again();
    }

    /// The same once more: some of it is another by now.
    pub(crate) fn keep_head_again(&mut self) {
        self.io.services.is_head_kept = false;
        self.keep_head();
    }

    /// Goes on with the services that the head before this one has left. Returns the versions in the journal that begin anew.
    pub(crate) fn take_over_services(&mut self, journaled: Vec<Version>, now: Now) -> Vec<Version> {
        let Some(left) = self.left.take() else { return journaled };
        let (services, mut acting) = self.acting();
        deployments::take_over(services, &mut acting, left, journaled, now)
    }

    /// Closes the listeners that were kept and that no service has taken.
    pub(crate) fn close_spare_listeners(&mut self) {
        for (service, listeners) in std::mem::take(&mut self.io.services.spare_listeners) {
            self.io.forget(Key::Listeners(service, listeners.address));
        }
    }
}
