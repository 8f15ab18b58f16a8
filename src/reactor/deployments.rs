//! Services: what there should be of each, and what there is.
//!
//! A request is no task and passes neither the head nor the journal. The head is the control plane: it keeps the proxy of each service and the
//! replicas of its deployments, rolls out new versions, and says in the table who may be called. [`Services`] is a state beside the one of tasks,
//! with effects of its own ([`ServiceEffects`]); the head's loop calls [`turn`] once after a batch of inputs, as it does `schedule`.
//!
//! | | |
//! |---|---|
//! | `replica` | the life of a replica as one table |
//! | `effects` | everything that leaves |
//! | `service` | services, versions, proxies and rollouts as data |
//! | `plan` | which replicas can stay in a version, and which are missing |
//! | `processes` | replicas and proxies that begin, join each other, and end |
//! | `rollout` | a version on its way: nothing of the old one goes before all of the new one is ready |
//! | `turn` | what there is, compared with what there should be; health, limits, the end |
//! | `scale`, `scaling` | how many replicas there should be, by how many requests there are |
//! | `takeover` | what a head before this one has left, that runs on |
//! | `inputs`, `report` | wishes and reports; rows for people |
//! | `calls` | deployments and replicas, as callers that are no proxies ask for them |

mod calls;
pub(crate) mod effects;
pub(crate) mod inputs;
pub(crate) mod plan;
pub(crate) mod processes;
pub(crate) mod replica;
pub(crate) mod report;
pub(crate) mod rollout;
pub(crate) mod scale;
pub(crate) mod scaling;
pub(crate) mod service;
pub(crate) mod takeover;
pub(crate) mod turn;

#[cfg(test)]
#[path = "deployments_tests.rs"]
mod tests;

pub use calls::{find_route, place_of, replica_at};
pub use effects::{ProxyStart, ReplicaStart, ServiceEffects};
pub use inputs::{
    begin_restored, find_service, heir, on_deploy, on_exit, on_owner_gone, on_proxy_report, on_replica_report,
    on_restored, on_restored_shut_down, on_rollback, on_shut_down, on_stop,
};
pub use replica::Stage;
pub use report::{list_services, list_versions};
pub use scaling::on_wanted;
pub use service::{INDICES, PLACES, Served, Services, VERSION_LIMIT, Version};
pub use takeover::{Left, take_over};
pub use turn::turn;
