//! Effects of the reactor on services.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Resource, prlimit};
use tracer_core::task::WorkerId;
use tracer_host::hook::{HookContract, Located, SearchPath, locate_in};
use tracer_ipc::claims::SharedClaims;
use tracer_ipc::control::send_long;
use tracer_ipc::protocol::{FurtherHook, HookChoice, ServiceRefusal, ServiceRefusalCode, Stream, TracingSettings};
use tracer_ipc::replica_table::{Capacity, ReplicaState, ReplicaTable};
use tracer_ipc::serving::{
    Deployment, ProxyBegin, ProxyOrder, ProxySettings, ReplicaBegin, ReplicaOrder, Service, ServiceTracing,
};
use tracer_ipc::spool::SLOT_COUNT;
use tracer_ipc::{fault, session};
use tracer_reactor::Effects;
use tracer_reactor::deployments::{INDICES, PLACES, ProxyStart, ReplicaStart, ServiceEffects};
use tracer_reactor::state::ProcessIds;
use tracer_settings::LOG_SIZE_LEAST;

use super::callers::CALLERS;
use super::control::{Control, Order};
use super::listeners::Listeners;
use super::takeover::ProcessFacts;
use super::{ProcessKind, ServiceProcess, ServiceTable};
use crate::io::HeadIo;
use crate::keeper::{Keeper, Key};
use crate::memory::Bound;
use crate::process::{ServiceCommand, WorkerProcess};
use crate::source::Source;

/// Spans that the spool of a proxy has room for.
const PROXY_SLOTS: usize = 32_768;
/// The share of the session's logs that a proxy's may take.
const LOG_SHARE: u64 = 8;
/// Hook of a service in a session without one.
const OWN_HOOK: &str = "local_tmp_tracing:setup_tracing";
/// The longest that hook may take, in milliseconds.
const OWN_HOOK_LIMIT_MS: u64 = 10_000;

/// Does what the reactor wants.
pub(super) struct Acting<'a> {
    pub(super) io: &'a mut HeadIo,
    pub(super) processes: &'a mut ProcessIds,
}

/// Returns the tracing settings of a service: those of the session, unless the service says otherwise.
fn tracing(io: &HeadIo, service: &ServiceTracing) -> TracingSettings {
    let session = &io.settings.tracing;
    if !service.is_enabled || io.settings.tracing_off.is_some() {
        return TracingSettings::untraced(session.spans_dir.clone());
    }
    let own = || HookChoice {
        import_string: OWN_HOOK.into(),
        contract: HookContract::Startup,
        library: None,
        timeout_ms: OWN_HOOK_LIMIT_MS,
        is_required: false,
        further: Vec::new(),
    };
    let mut hook = session.hook.clone().unwrap_or_else(own);
    let folders = SearchPath { module_path: io.settings.module_path.clone(), is_complete: false }.folders();
    let is_known = |hook: &HookChoice, name: &str| {
        hook.import_string == *name || hook.further.iter().any(|further| further.import_string == *name)
    };
    for exporter in &service.exporters {
        if is_known(&hook, exporter) {
            continue;
        }
        let module = exporter.rsplit_once(':').map_or(exporter.as_str(), |(module, _)| module);
        let library = match locate_in(&folders, module) {
            Some(Located::Library(path)) => Some(path),
            // One that is not there fails where it is to run, and is told of with the process.
            Some(Located::BuiltIn(_)) | None => None,
        };
        hook.further.push(FurtherHook {
            import_string: exporter.clone(),
            contract: HookContract::Exporter,
            library,
            description: String::new(),
        });
    }
    TracingSettings {
        hook: Some(hook),
        sampling_ratio: service.sampling_ratio.unwrap_or(session.sampling_ratio),
        ..session.clone()
    }
}

fn system(doing: &str, error: &io::Error) -> ServiceRefusal {
    ServiceRefusal { code: ServiceRefusalCode::System, message: format!("{doing}: {error}") }
}

impl Acting<'_> {
    fn table(&self, service: &str) -> Option<&ReplicaTable> {
        Some(&self.io.services.tables.get(service)?.table)
    }

    /// Does something at a replica's place in the table of a service.
    fn at(&self, service: &str, place: u32, act: impl FnOnce(&ReplicaTable, tracer_ipc::replica_table::ReplicaIndex)) {
        if let Some(table) = self.table(service)
            && let Some(place) = table.replica(place as usize)
        {
            act(table, place);
        }
    }

    pub(super) fn order(&mut self, process: WorkerId, order: Order, files: Vec<OwnedFd>) {
        let Some(found) = self.io.services.processes.get_mut(&process) else { return };
        let sent = found.control.order(order, files);
        if let Err(error) = sent {
            self.io.log(format!("process {process} of a service cannot be given orders: {error}"));
            self.io.kill_of_service(process);
        } else {
            self.io.watch_control(process);
        }
    }

    /// Starts a process of a service, and watches it.
    fn start(&mut self, process: WorkerId, new: NewProcess<'_>) -> Result<u32, String> {
        let session_dir = self.io.session_dir.clone();
        self.io.keep_session_of_services();
        let settings = &self.io.settings;
        let (control, other) = Control::pair().map_err(|error| error.to_string())?;
        let keeper = self.io.keeper.as_ref().map(Keeper::try_clone).ok_or("this head has no guard")?;
        let empty = std::collections::BTreeMap::new();
        let command = ServiceCommand {
            service: new.service,
            role: if new.deployment.is_none() { "proxy" } else { "replica" },
            temp_dir: &settings.temp_dir,
            session_dir: &session_dir,
            tracing: &new.tracing,
            number: process.0,
            keeper: keeper.map_err(|error| error.to_string())?,
            control: (other, control.as_fd()),
            spool: &new.spool,
            slots: new.slots,
            env: new.deployment.map_or(&empty, |deployment| &deployment.env),
            cwd: new.deployment.and_then(|deployment| deployment.cwd.as_deref()),
        };
        let facts = ProcessFacts {
            service: new.service.into(),
            name: new.name.clone(),
            spool: new.spool.clone(),
            kind: new.kind.clone(),
        };
        let worker = WorkerProcess::spawn_for_service(command, &facts).map_err(|error| error.to_string())?;
        let pid = worker.pid();
        worker.claims.set_worker(pid, new.tracing.hook.is_some());
        if let (Some(limit), Some(pid)) = (&self.io.workers.open_files, i32::try_from(pid).ok().and_then(Pid::from_raw))
            && new.deployment.is_some()
        {
            // It runs nothing of a user's before it has its first order. At worst it may open more files.
            let _ = prlimit(Some(pid), Resource::Nofile, *limit);
        }
        let found = ServiceProcess {
            worker,
            control,
            service: new.service.into(),
            spool: new.spool,
            kind: new.kind,
            log: None,
            last_output: Vec::new(),
            was_killed: false,
            is_watched_for_room: false,
            bound: Bound::default(),
        };
        self.io.watch_service_process(process, found, pid, &new.name)?;
        if new.deployment.is_some() && self.io.settings.worker_memory.is_some() {
            self.io.bound_memory(process, None);
        }
        if new.tracing.hook.is_some() {
            let link = session_dir.join(format!("logs/serve/spans/{}.json", new.name));
            // For people who look for the spans of a process by its name; nothing reads it.
            let _ = std::os::unix::fs::symlink(new.tracing.spans_dir.join(format!("{pid}.json")), link);
        }
        Ok(pid)
    }
}

impl HeadIo {
    /// Watches a process of a service, and opens its log.
    pub(super) fn watch_service_process(
        &mut self,
        process: WorkerId,
        mut found: ServiceProcess,
        pid: u32,
        name: &str,
    ) -> Result<(), String> {
        let set_up = || -> io::Result<()> {
            found.log = Some(self.logs.open_as(process, &format!("serve/{name}-{pid}.log"))?);
            self.watch(found.worker.pidfd.as_fd(), Source::ServiceExit(process))?;
            self.watch(found.control.as_fd(), Source::ServiceControl(process))?;
            if let Some(pipe) = &found.worker.stdout {
                self.watch(pipe.as_fd(), Source::ServiceOutput(process, Stream::Stdout))?;
            }
            if let Some(pipe) = &found.worker.stderr {
                self.watch(pipe.as_fd(), Source::ServiceOutput(process, Stream::Stderr))?;
            }
            Ok(())
        };
        let set_up = { set_up }();
        if let Err(error) = set_up {
            // Nobody would hear of its end; so it ends here.
            found.worker.kill(&found.spool);
            found.worker.reap();
            self.logs.close(process);
            return Err(error.to_string());
        }
        self.services.processes.insert(process, found);
        Ok(())
    }
}

/// Command line and environment of a process of a service.
struct NewProcess<'a> {
    service: &'a str,
    /// Name of its log.
    name: String,
    tracing: TracingSettings,
    spool: PathBuf,
    slots: usize,
    /// None for a proxy.
    deployment: Option<&'a Deployment>,
    kind: ProcessKind,
}

impl ServiceEffects for Acting<'_> {
    fn next_process(&mut self) -> WorkerId {
        self.processes.give()
    }

    fn open_service(&mut self, service: &str) -> Result<(), ServiceRefusal> {
        if self.io.services.tables.contains_key(service) {
            return Ok(());
        }
        let folder = self.io.session_dir.join("logs/serve/spans");
        std::fs::create_dir_all(folder).map_err(|error| system("the folder of its logs cannot be made", &error))?;
        self.io.open_for_callers().map_err(|error| system("the socket for callers cannot be made", &error))?;
        let capacity = Capacity { replicas: PLACES as usize, callers: CALLERS, deployments: INDICES as usize };
        let (table, file) =
            ReplicaTable::create(capacity).map_err(|error| system("the table of replicas cannot be made", &error))?;
        self.io.keep(Key::Table(service.to_owned()), &(), &[file.as_fd()]);
        let entry = ServiceTable { table, file, listeners: Vec::new(), wakers: Default::default() };
        self.io.services.tables.insert(service.into(), entry);
        Ok(())
    }

    fn close_service(&mut self, service: &str) {
        self.io.notify_callers_of_end(service);
        let Some(entry) = self.io.services.tables.remove(service) else { return };
        let listeners = entry.listeners.iter().map(|open| Key::Listeners(service.to_owned(), open.address));
        let wakers = entry.wakers.keys().map(|number| Key::Waker(service.to_owned(), *number));
        let keys = listeners.chain(wakers).chain([Key::Table(service.to_owned())]);
        keys.for_each(|key| self.io.forget(key));
    }

    fn listen(&mut self, service: &str, address: SocketAddr) -> Result<SocketAddr, ServiceRefusal> {
        let Some(entry) = self.io.services.tables.get_mut(service) else { return Ok(address) };
        if entry.listeners.iter().any(|open| open.address == address) {
            return Ok(address);
        }
        let spare = &mut self.io.services.spare_listeners;
        let is_kept = |(name, open): &(String, Listeners)| name == service && open.address == address;
        let open = match spare.iter().position(is_kept) {
            Some(at) => spare.swap_remove(at).1,
            None => Listeners::open(address)?,
        };
        let address = open.address;
        entry.listeners.push(open);
        let sockets = || -> io::Result<Vec<OwnedFd>> {
            let open = self.io.services.tables.get(service).and_then(|entry| entry.listeners.last());
            open.iter().flat_map(|open| &open.sockets).map(OwnedFd::try_clone).collect()
        };
        match sockets() {
            Ok(sockets) => {
                let files: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                self.io.keep(Key::Listeners(service.to_owned(), address), &(), &files);
            }
            Err(error) => self.io.log(format!("the listeners at {address} are not kept for the next head: {error}")),
        }
        Ok(address)
    }

    fn listen_only(&mut self, service: &str, address: SocketAddr) {
        let Some(entry) = self.io.services.tables.get_mut(service) else { return };
        let (kept, closed) = std::mem::take(&mut entry.listeners).into_iter().partition(|open| open.address == address);
        entry.listeners = kept;
        let closed: Vec<Listeners> = closed;
        closed.iter().for_each(|open| self.io.forget(Key::Listeners(service.to_owned(), open.address)));
    }

    fn start_replica(&mut self, process: WorkerId, start: &ReplicaStart<'_>) -> Result<u32, String> {
        let tracing = tracing(self.io, &start.service.tracing);
        let spool = session::worker_spool(&self.io.session_dir, process);
        let module_path = self.io.settings.module_path.clone();
        let begin = ReplicaBegin {
            service: start.service.name.clone(),
            application: start.application.into(),
            route_prefix: start.route_prefix.into(),
            deployment: start.deployment.clone(),
            name: start.name.into(),
            worker: process,
            spool: spool.clone(),
            node_id: self.io.node_id.clone(),
            module_folders: SearchPath { module_path, is_complete: false }.folders(),
            tracing: tracing.clone(),
        };
        let file = send_long(&begin).map_err(|error| error.to_string())?;
        let new = NewProcess {
            service: &start.service.name,
            name: format!("replica-{}-{}", start.service.name, start.name.replace('#', "-")),
            tracing,
            spool,
            slots: SLOT_COUNT,
            deployment: Some(start.deployment),
            kind: ProcessKind::Replica { name: start.name.into() },
        };
        let pid = self.start(process, new)?;
        self.order(process, Order::Replica(ReplicaOrder::Begin), vec![file]);
        Ok(pid)
    }

    fn start_proxy(&mut self, process: WorkerId, start: &ProxyStart<'_>) -> Result<u32, String> {
        let text = |error: io::Error| error.to_string();
        let name = &start.service.name;
        let tracing = tracing(self.io, &start.service.tracing);
        let spool = session::proxy_spool(&self.io.session_dir, process);
        let log_limit = (self.io.settings.max_log_size / LOG_SHARE).max(LOG_SIZE_LEAST / LOG_SHARE);
        let Some(entry) = self.io.services.tables.get_mut(name) else { return Err("it has no table".into()) };
        let open = entry.listeners.iter().find(|open| open.address == start.service.http.address);
        let Some(open) = open else { return Err("its address has no listener".into()) };
        let mut files = vec![entry.file.try_clone().map_err(text)?];
        for socket in &open.sockets {
            files.push(socket.try_clone().map_err(text)?);
        }
        let mut callers = Vec::new();
        for caller in (0..CALLERS as u32).filter(|caller| !entry.wakers.contains_key(caller)).take(open.sockets.len()) {
            let waker =
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| text(error.into()))?;
            files.push(waker.try_clone().map_err(text)?);
            callers.push((caller, waker));
        }
        if callers.len() < open.sockets.len() {
            return Err("too many proxies are still ending".into());
        }
        let numbers: Vec<u32> = callers.iter().map(|(caller, _)| *caller).collect();
        for caller in &numbers {
            if let Some(caller) = entry.table.caller(*caller as usize) {
                // One that lived when the last that had this number died may have granted it a place since.
                entry.table.forget_caller(caller);
                entry.table.add_caller(caller);
            }
        }
        if let Some(keeper) = &self.io.keeper {
            for (number, waker) in &callers {
                keeper.keep(Key::Waker(name.clone(), *number), &(), &[waker.as_fd()]).map_err(text)?;
            }
        }
        entry.wakers.extend(callers);
        let begin = ProxyBegin {
            service: name.clone(),
            number: start.number,
            spool: spool.clone(),
            node_id: self.io.node_id.clone(),
            tracing: tracing.clone(),
            callers: numbers.clone(),
            log_limit,
        };
        let new = NewProcess {
            service: name,
            name: format!("proxy-{name}-{}", start.number),
            tracing,
            spool,
            slots: PROXY_SLOTS,
            deployment: None,
            kind: ProcessKind::Proxy { callers: numbers.clone() },
        };
        let started = self.start(process, new);
        if started.is_err() {
            self.io.forget_callers(name, &numbers);
        } else {
            self.order(process, Order::Proxy(ProxyOrder::Begin(Box::new(begin))), files);
            self.report_callers(process, name);
            self.notify_proxy_of_callers(process, name);
            numbers.iter().for_each(|number| self.notify_all_of(name, *number, None));
        }
        started
    }

    fn give_lanes(&mut self, proxy: WorkerId, replica: WorkerId, place: u32, name: &str) {
        fault::point("head_gives_lanes");
        let Some(ServiceProcess { kind: ProcessKind::Proxy { callers }, .. }) = self.io.services.processes.get(&proxy)
        else {
            return;
        };
        let mut of_proxy = Vec::new();
        for caller in callers.clone() {
            let made = lane().and_then(|(own, other, claims)| {
                of_proxy.push(own);
                of_proxy.push(claims.try_clone()?);
                Ok(vec![other, claims])
            });
            match made {
                Ok(files) => self.order(replica, Order::Replica(ReplicaOrder::Lane { caller }), files),
                Err(error) => {
                    self.io.log(format!("a lane to replica {name} cannot be made: {error}"));
                    // It is made again with its next process.
                    return self.io.kill_of_service(replica);
                }
            }
        }
        self.order(proxy, Order::Proxy(ProxyOrder::Lanes { replica: place, name: name.into() }), of_proxy);
    }

    fn order_proxy(&mut self, proxy: WorkerId, order: ProxyOrder) {
        self.order(proxy, Order::Proxy(order), Vec::new());
    }

    fn configure_proxy(&mut self, proxy: WorkerId, settings: &ProxySettings) {
        fault::point("head_configures");
        match send_long(settings) {
            Ok(file) => self.order(proxy, Order::Proxy(ProxyOrder::Configure), vec![file]),
            Err(error) => {
                self.io.log(format!("a proxy cannot be given its settings: {error}"));
                self.io.kill_of_service(proxy);
            }
        }
    }

    fn order_replica(&mut self, replica: WorkerId, order: ReplicaOrder) {
        self.order(replica, Order::Replica(order), Vec::new());
    }

    fn configure_replica(&mut self, replica: WorkerId, order: u64, deployment: &Deployment) {
        match send_long(&deployment.user_config) {
            Ok(file) => self.order(replica, Order::Replica(ReplicaOrder::Configure { order }), vec![file]),
            Err(error) => {
                self.io.log(format!("a replica cannot be given its settings: {error}"));
                self.io.kill_of_service(replica);
            }
        }
    }

    fn kill(&mut self, process: WorkerId) {
        self.io.kill_of_service(process);
    }

    fn publish(&mut self, service: &str, place: u32, index: u32, limit: u32) {
        fault::point("head_publishes");
        self.io.services.callers.note_change(service);
        self.at(service, place, |table, place| {
            if let Some(deployment) = table.deployment(index as usize) {
                table.add_replica(place, deployment, limit);
            }
        });
    }

    fn set_draining(&mut self, service: &str, place: u32) {
        self.io.services.callers.note_change(service);
        self.at(service, place, |table, place| table.set_state(place, ReplicaState::Draining));
    }

    fn set_gone(&mut self, service: &str, place: u32) {
        self.io.services.callers.note_change(service);
        self.at(service, place, |table, place| table.set_state(place, ReplicaState::Gone));
    }

    fn set_limit(&mut self, service: &str, place: u32, limit: u32) {
        self.io.services.callers.note_change(service);
        self.at(service, place, |table, place| table.set_limit(place, limit));
    }

    fn set_waiting_limit(&mut self, service: &str, index: u32, limit: u32) {
        if let Some(table) = self.table(service)
            && let Some(deployment) = table.deployment(index as usize)
        {
            table.set_waiting_limit(deployment, limit);
        }
    }

    fn state_in_table(&self, service: &str, place: u32) -> ReplicaState {
        let found = self.table(service).and_then(|table| Some(table.state(table.replica(place as usize)?)));
        found.unwrap_or(ReplicaState::Gone)
    }

    fn in_flight(&self, service: &str, place: u32) -> u64 {
        let found = self.table(service).and_then(|table| Some(table.in_flight(table.replica(place as usize)?)));
        found.unwrap_or(0)
    }

    fn waiting(&self, service: &str, index: u32) -> u64 {
        let found = self.table(service).and_then(|table| Some(table.waiting(table.deployment(index as usize)?)));
        found.unwrap_or(0)
    }

    fn watch_load(&mut self, service: &str, index: u32) {
        if let Some(table) = self.table(service)
            && let Some(deployment) = table.deployment(index as usize)
        {
            table.watch(deployment);
        }
    }

    fn journal_deployed(&mut self, version: u64, deployed_unix_nano: u64, service: &Service) {
        self.io.kept.journal.service_deployed(version, deployed_unix_nano, service);
        fault::point("head_deployed");
    }

    fn journal_shut_down(&mut self, service: &str, unix_nano: u64) {
        self.io.kept.journal.service_shut_down(service, unix_nano);
    }

    fn log(&mut self, line: String) {
        self.io.log(line);
    }
}

impl Acting<'_> {
    /// Tells the proxies of a service of each other's threads, so that one can wake another's.
    fn report_callers(&mut self, new: WorkerId, service: &str) {
        let of_service = |(id, process): (&WorkerId, &ServiceProcess)| match &process.kind {
            ProcessKind::Proxy { callers } if process.service == service => Some((*id, callers.clone())),
            _ => None,
        };
        let proxies: Vec<_> = self.io.services.processes.iter().filter_map(of_service).collect();
        let new_callers =
            proxies.iter().find(|(id, _)| *id == new).map(|(_, callers)| callers.clone()).unwrap_or_default();
        for (other, callers) in proxies.iter().filter(|(id, _)| *id != new) {
            callers.iter().for_each(|caller| self.report_caller(service, *caller, new));
            new_callers.iter().for_each(|caller| self.report_caller(service, *caller, *other));
        }
    }

    fn report_caller(&mut self, service: &str, caller: u32, to: WorkerId) {
        if let Some(waker) = self.waker(service, caller) {
            self.order(to, Order::Proxy(ProxyOrder::Caller { caller }), vec![waker]);
        }
    }
}

/// Both ends of a lane, and the file of its claims.
pub(super) fn lane() -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (_claims, file) = SharedClaims::create()?;
    Ok((own, other, file))
}
