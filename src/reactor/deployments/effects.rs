use std::net::SocketAddr;

use tracer_core::task::WorkerId;
use tracer_ipc::protocol::ServiceRefusal;
use tracer_ipc::replica_table::ReplicaState;
use tracer_ipc::serving::{Deployment, ProxyOrder, ProxySettings, ReplicaOrder, Service};

/// Effects that services may cause. The server carries them out; tests remember them.
pub trait ServiceEffects {
    /// Returns the number of a further process of the head.
    fn next_process(&mut self) -> WorkerId;
    /// Makes the table of a service that begins.
    fn open_service(&mut self, service: &str) -> Result<(), ServiceRefusal>;
    /// Forgets the table and the listeners of a service that has ended.
    fn close_service(&mut self, service: &str);
    /// Listens on an address for a service, unless it does so already. Returns the address, whose port may have been 0, for any.
    fn listen(&mut self, service: &str, address: SocketAddr) -> Result<SocketAddr, ServiceRefusal>;
    /// Listens no more on any other address.
    fn listen_only(&mut self, service: &str, address: SocketAddr);
    /// Starts the process of a replica, and sends it its first order. Returns the process's pid, or why not.
    fn start_replica(&mut self, process: WorkerId, start: &ReplicaStart<'_>) -> Result<u32, String>;
    /// Starts the process of a proxy at an address, and sends it its first order. Returns the process's pid, or why not.
    fn start_proxy(&mut self, process: WorkerId, start: &ProxyStart<'_>) -> Result<u32, String>;
    /// Gives both ends of the lanes between a proxy and a replica away.
    fn give_lanes(&mut self, proxy: WorkerId, replica: WorkerId, place: u32, name: &str);
    /// Sends an order to a proxy.
    fn order_proxy(&mut self, proxy: WorkerId, order: ProxyOrder);
    /// Gives a proxy its settings.
    fn configure_proxy(&mut self, proxy: WorkerId, settings: &ProxySettings);
    /// Sends an order to a replica.
    fn order_replica(&mut self, replica: WorkerId, order: ReplicaOrder);
    /// Gives a replica the `user_config` of its deployment, by an order of this number.
    fn configure_replica(&mut self, replica: WorkerId, order: u64, deployment: &Deployment);
    /// Kills a process with all that it has started; it will be heard of.
    fn kill(&mut self, process: WorkerId);
    /// Enters a replica in the table: it takes requests from now on.
    fn publish(&mut self, service: &str, place: u32, index: u32, limit: u32);
    /// Says in the table that a replica takes no more requests.
    fn set_draining(&mut self, service: &str, place: u32);
    /// Says in the table that a replica is no more.
    fn set_gone(&mut self, service: &str, place: u32);
    /// Says in the table how many requests may be in flight at a replica.
    fn set_limit(&mut self, service: &str, place: u32, limit: u32);
    /// Says in the table how many requests may wait for a deployment.
    fn set_waiting_limit(&mut self, service: &str, index: u32, limit: u32);
    /// Returns what the table says of a replica.
    fn state_in_table(&self, service: &str, place: u32) -> ReplicaState;
    /// Returns the number of requests in flight at a replica.
    fn in_flight(&self, service: &str, place: u32) -> u64;
    /// Returns the number of requests that wait for a deployment.
    fn waiting(&self, service: &str, index: u32) -> u64;
    /// Has whoever calls a deployment say so once, from now on: the next request of it is [heard of](super::on_wanted).
    fn watch_load(&mut self, service: &str, index: u32);
    /// Notes in the journal which version of a service is served.
    fn journal_deployed(&mut self, version: u64, deployed_unix_nano: u64, service: &Service);
    /// Notes in the journal that there is no such service any more.
    fn journal_shut_down(&mut self, service: &str, unix_nano: u64);
    /// Writes a line to the head's log.
    fn log(&mut self, line: String);
}

/// First order of a replica.
#[derive(Debug)]
pub struct ReplicaStart<'a> {
    /// Its service.
    pub service: &'a Service,
    /// Its application.
    pub application: &'a str,
    /// Route prefix of the application.
    pub route_prefix: &'a str,
    /// Its deployment.
    pub deployment: &'a Deployment,
    /// Its name.
    pub name: &'a str,
}

/// First order of a proxy.
#[derive(Debug)]
pub struct ProxyStart<'a> {
    /// Its service.
    pub service: &'a Service,
    /// Its number, from 1.
    pub number: u64,
}
