//! Callers in the loop of the head: their sockets, what they ask, what they are told.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracer_core::task::WorkerId;
use tracer_ipc::calling::{CallerOrder, CallerReport, listen_for_callers, socket_path};
use tracer_ipc::serving::{ProxyOrder, ReplicaOrder};
use tracer_reactor::Effects;
use tracer_reactor::deployments::{find_route, on_wanted, replica_at};
use tracer_reactor::state::Now;

use super::super::ProcessKind;
use super::super::control::{Control, Order};
use super::super::effects::{Acting, lane};
use super::{CALLER_LIMIT, CALLERS, Caller, CallerFacts, Known};
use crate::io::HeadIo;
use crate::keeper::Key;
use crate::server::Server;
use crate::source::Source;

impl HeadIo {
    /// Listens for callers, if nobody does.
    pub(crate) fn open_for_callers(&mut self) -> std::io::Result<()> {
        if self.services.callers.listener.is_some() {
            return Ok(());
        }
        let _ = std::fs::remove_file(socket_path(&self.session_dir));
        let listener = listen_for_callers(&self.session_dir)?;
        self.keep(Key::CallerSocket, &(), &[listener.as_fd()]);
        self.watch(listener.as_fd(), Source::CallerListener)?;
        self.services.callers.listener = Some(listener);
        Ok(())
    }

    /// Takes callers that want to connect.
    pub(crate) fn accept_callers(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Some(listener) = &self.services.callers.listener {
            match accept_with(listener, flags) {
                // One too many sees its connection closed.
                Ok(socket) if self.services.callers.all.len() >= CALLER_LIMIT => drop(socket),
                Ok(socket) => self.add_caller(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => return self.log(format!("a caller of deployments could not be taken: {error}")),
            }
        }
    }

    fn add_caller(&mut self, socket: OwnedFd) {
        self.services.callers.last += 1;
        let id = self.services.callers.last;
        if let Err(error) = self.watch(socket.as_fd(), Source::Caller(id)) {
            return self.log(format!("a caller of deployments could not be taken: {error}"));
        }
        let caller = Caller {
            control: Control::of(socket),
            numbers: BTreeMap::new(),
            lanes: BTreeSet::new(),
            known: BTreeMap::new(),
            is_watched_for_room: false,
        };
        self.services.callers.all.insert(id, caller);
    }

    /// Has the guard keep what is known of a caller.
    fn keep_caller(&mut self, id: u64) {
        let Some(caller) = self.services.callers.all.get(&id) else { return };
        let Ok(socket) = caller.control.as_fd().try_clone_to_owned() else { return };
        let known =
            caller.known.iter().map(|(wanted, known)| (wanted.clone(), known.home.clone(), known.route.clone()));
        let facts =
            CallerFacts { numbers: caller.numbers.clone(), lanes: caller.lanes.clone(), known: known.collect() };
        self.keep(Key::Caller(id), &facts, &[socket.as_fd()]);
    }

    /// Goes on with a caller that a head before this one had.
    pub(in crate::services) fn take_over_caller(
        &mut self,
        id: u64,
        facts: CallerFacts,
        socket: OwnedFd,
    ) -> std::io::Result<()> {
        self.watch(socket.as_fd(), Source::Caller(id))?;
        let CallerFacts { numbers, lanes, known } = facts;
        let known = known.into_iter().map(|(wanted, home, route)| (wanted, Known { home, route })).collect();
        let caller = Caller { control: Control::of(socket), numbers, lanes, known, is_watched_for_room: false };
        self.services.callers.last = self.services.callers.last.max(id);
        self.services.callers.all.insert(id, caller);
        self.order_caller(id, CallerOrder::Again, Vec::new());
        Ok(())
    }

    /// Goes on with the socket for callers.
    pub(crate) fn take_over_caller_socket(&mut self, listener: OwnedFd) -> std::io::Result<()> {
        self.watch(listener.as_fd(), Source::CallerListener)?;
        self.services.callers.listener = Some(listener);
        Ok(())
    }

    /// Tells a caller something.
    fn order_caller(&mut self, id: u64, order: CallerOrder, files: Vec<OwnedFd>) {
        let Some(caller) = self.services.callers.all.get_mut(&id) else { return };
        // What cannot be sent is told by its end.
        let _ = caller.control.order(Order::Caller(order), files);
        self.watch_caller(id);
    }

    /// Hears of room at a caller's socket for as long as orders wait for it.
    fn watch_caller(&mut self, id: u64) {
        let Some(caller) = self.services.callers.all.get_mut(&id) else { return };
        let wants_room = caller.control.has_waiting();
        if wants_room == caller.is_watched_for_room {
            return;
        }
        caller.is_watched_for_room = wants_room;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wants_room);
        let data = epoll::EventData::new_u64(Source::Caller(id).token());
        let _ = epoll::modify(&self.epoll, caller.control.as_fd(), data, flags);
    }

    /// Takes back what a caller held, which has gone.
    fn end_caller(&mut self, id: u64) {
        let Some(caller) = self.services.callers.all.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, caller.control.as_fd());
        self.forget(Key::Caller(id));
        for (service, number) in &caller.numbers {
            self.forget_callers(service, &[*number]);
        }
    }

    /// Tells those that have lanes to a replica that it is gone and its spans are complete.
    pub(crate) fn notify_callers_of_loss(&mut self, service: &str, replica: u32) {
        let place = (service.to_owned(), replica);
        let callers = &mut self.services.callers.all;
        let told: Vec<_> =
            callers.iter_mut().filter_map(|(id, caller)| caller.lanes.remove(&place).then_some(*id)).collect();
        for id in told {
            self.order_caller(id, CallerOrder::ReplicaGone { service: service.to_owned(), replica }, Vec::new());
        }
    }

    /// Tells those that call deployments of a service that it has ended.
    pub(crate) fn notify_callers_of_end(&mut self, service: &str) {
        for caller in self.services.callers.all.values_mut() {
            caller.lanes.retain(|(of, _)| of != service);
        }
        let told: Vec<_> = self.services.callers.of_service(service).map(|(id, _)| id).collect();
        for id in told {
            if let Some(caller) = self.services.callers.all.get_mut(&id) {
                caller.numbers.remove(service);
                caller.known.retain(|_, known| known.route.service != service);
            }
            self.order_caller(id, CallerOrder::ServiceGone { service: service.to_owned() }, Vec::new());
        }
    }
}

impl Server {
    /// A caller has said something, has gone, or can be told more.
    pub(crate) fn on_caller(&mut self, id: u64, now: Now) {
        if let Some(caller) = self.io.services.callers.all.get_mut(&id) {
            let _ = caller.control.send();
            self.io.watch_caller(id);
        }
        loop {
            let Some(caller) = self.io.services.callers.all.get_mut(&id) else { return };
            match caller.control.report::<CallerReport>() {
                Ok(Some((CallerReport::Find { deployment, home }, _))) => self.find_for_caller(id, deployment, home),
                Ok(Some((CallerReport::Wanted { service, deployment }, _))) => {
                    on_wanted(&mut self.services, &service, deployment, now);
                }
                Ok(Some((CallerReport::Lane { service, replica }, _))) => self.lane_for_caller(id, service, replica),
                Ok(None) if caller.control.is_closed() => return self.io.end_caller(id),
                Ok(None) => return,
                Err(error) => {
                    self.io.log(format!("a caller of deployments sent an invalid report, and is closed: {error}"));
                    return self.io.end_caller(id);
                }
            }
        }
    }

    fn find_for_caller(&mut self, id: u64, wanted: String, home: Option<(String, String)>) {
        let near = home.as_ref().map(|(service, application)| (service.as_str(), application.as_str()));
        let route = find_route(&self.services, near, &wanted).and_then(|route| {
            self.acting().1.join(id, &route.service)?;
            Ok(route)
        });
        if let (Ok(route), Some(caller)) = (&route, self.io.services.callers.all.get_mut(&id)) {
            caller.known.insert(wanted.clone(), Known { home, route: route.clone() });
        }
        self.io.keep_caller(id);
        self.io.order_caller(id, CallerOrder::Route { wanted, route }, Vec::new());
    }

    fn lane_for_caller(&mut self, id: u64, service: String, replica: u32) {
        let number = self.io.services.callers.all.get(&id).and_then(|caller| caller.numbers.get(&service).copied());
        let found = replica_at(&self.services, &service, replica).map(|(process, name)| (process, name.to_owned()));
        let (Some(number), Some((process, name))) = (number, found) else {
            return self.io.order_caller(id, CallerOrder::NoLane { service, replica }, Vec::new());
        };
        let made = lane().and_then(|(own, other, claims)| Ok((vec![other, claims.try_clone()?], vec![own, claims])));
        let (to_replica, to_caller) = match made {
            Ok(files) => files,
            Err(error) => {
                self.io.log(format!("a lane to replica {name} cannot be made: {error}"));
                return self.io.order_caller(id, CallerOrder::NoLane { service, replica }, Vec::new());
            }
        };
        self.acting().1.order(process, Order::Replica(ReplicaOrder::Lane { caller: number }), to_replica);
        if let Some(caller) = self.io.services.callers.all.get_mut(&id) {
            caller.lanes.insert((service.clone(), replica));
        }
        self.io.keep_caller(id);
        self.io.order_caller(id, CallerOrder::Lane { service, replica, name }, to_caller);
    }

    /// Tells callers what has changed of the services whose deployments they call.
    pub(crate) fn notify_callers(&mut self) {
        for service in std::mem::take(&mut self.io.services.callers.changed) {
            let told: Vec<_> = self.io.services.callers.of_service(&service).map(|(id, _)| id).collect();
            for id in told {
                self.io.order_caller(id, CallerOrder::Refresh { service: service.clone() }, Vec::new());
            }
        }
        let mut changes = Vec::new();
        for (id, caller) in &mut self.io.services.callers.all {
            for (wanted, known) in &mut caller.known {
                let near = known.home.as_ref().map(|(service, application)| (service.as_str(), application.as_str()));
                let route = find_route(&self.services, near, wanted);
                if route.as_ref().ok() != Some(&known.route) {
                    changes.push((*id, wanted.clone(), known.home.clone(), route));
                }
            }
        }
        for (id, wanted, home, route) in changes {
            match route {
                // As if it had asked again: it may be in another service.
                Ok(_) => self.find_for_caller(id, wanted, home),
                Err(reason) => {
                    if let Some(caller) = self.io.services.callers.all.get_mut(&id) {
                        caller.known.remove(&wanted);
                    }
                    self.io.order_caller(id, CallerOrder::Route { wanted, route: Err(reason) }, Vec::new());
                }
            }
        }
    }
}

impl Acting<'_> {
    /// Makes a connection a caller of the table of a service, if it is none.
    fn join(&mut self, id: u64, service: &str) -> Result<(), String> {
        let is_known = |caller: &Caller| caller.numbers.contains_key(service);
        if self.io.services.callers.all.get(&id).is_none_or(is_known) {
            return Ok(());
        }
        let Some(entry) = self.io.services.tables.get_mut(service) else {
            return Err(format!("service `{service}` has no table yet"));
        };
        let free = (0..CALLERS as u32).find(|number| !entry.wakers.contains_key(number));
        let Some(number) = free else {
            return Err(format!("service `{service}` has {CALLERS} callers, which is as many as there may be"));
        };
        let files = || {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok::<_, std::io::Error>((entry.file.try_clone()?, wake.try_clone()?, wake))
        };
        let (table, own, wake) = { files }().map_err(|error| format!("a caller cannot be added: {error}"))?;
        if let Some(caller) = entry.table.caller(number as usize) {
            // One that lived when the last that had this number died may have granted it a place since.
            entry.table.forget_caller(caller);
            entry.table.add_caller(caller);
        }
        if let Some(keeper) = &self.io.keeper {
            let kept = keeper.keep(Key::Waker(service.to_owned(), number), &(), &[wake.as_fd()]);
            kept.map_err(|error| format!("a caller cannot be added: {error}"))?;
        }
        entry.wakers.insert(number, wake);
        let others: Vec<u32> = entry.wakers.keys().copied().filter(|other| *other != number).collect();
        if let Some(caller) = self.io.services.callers.all.get_mut(&id) {
            caller.numbers.insert(service.to_owned(), number);
        }
        let order = CallerOrder::Service { service: service.to_owned(), caller: number };
        self.io.order_caller(id, order, vec![table, own]);
        for other in others {
            self.notify_caller_of(service, other, id);
        }
        self.notify_all_of(service, number, Some(id));
        Ok(())
    }

    /// Tells the proxies and callers of a service of a caller, but for that caller itself.
    pub(crate) fn notify_all_of(&mut self, service: &str, number: u32, of: Option<u64>) {
        let proxies: Vec<WorkerId> = self
            .io
            .services
            .processes
            .iter()
            .filter(|(_, process)| process.service == service && matches!(process.kind, ProcessKind::Proxy { .. }))
            .map(|(id, _)| *id)
            .collect();
        for proxy in proxies.into_iter().filter(|_| of.is_some()) {
            if let Some(wake) = self.waker(service, number) {
                self.order(proxy, Order::Proxy(ProxyOrder::Caller { caller: number }), vec![wake]);
            }
        }
        let callers: Vec<_> = self.io.services.callers.of_service(service).map(|(id, _)| id).collect();
        for id in callers.into_iter().filter(|id| Some(*id) != of) {
            self.notify_caller_of(service, number, id);
        }
    }

    fn notify_caller_of(&mut self, service: &str, number: u32, to: u64) {
        if let Some(wake) = self.waker(service, number) {
            let order = CallerOrder::Caller { service: service.to_owned(), caller: number };
            self.io.order_caller(to, order, vec![wake]);
        }
    }

    /// Tells a proxy that has begun of the callers that are no proxies.
    pub(crate) fn notify_proxy_of_callers(&mut self, proxy: WorkerId, service: &str) {
        let numbers: Vec<_> = self.io.services.callers.of_service(service).map(|(_, number)| number).collect();
        for number in numbers {
            if let Some(wake) = self.waker(service, number) {
                self.order(proxy, Order::Proxy(ProxyOrder::Caller { caller: number }), vec![wake]);
            }
        }
    }

    /// Returns another descriptor of what wakes a caller.
    pub(crate) fn waker(&self, service: &str, number: u32) -> Option<OwnedFd> {
        let waker = self.io.services.tables.get(service)?.wakers.get(&number)?;
        BorrowedFd::try_clone_to_owned(&waker.as_fd()).ok()
    }
}
