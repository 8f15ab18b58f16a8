//! Protocol of head, workers and drivers, over Unix sockets.
//!
//! A connection carries *frames*: a length, a kind, a body ([`frame`]). The first frame from a client is a [`Hello`]; the
//! head answers with a [`Welcome`] or says why not, and closes. Messages that travel once per task have a fixed layout written by hand
//! ([`wire`]) and are decoded without copying; the few others ([`Query`], [`Reply`]) are MessagePack.
//!
//! Everything is bounded and checked: a frame that is too long, cut short or not what it says closes its connection
//! and touches nothing else. The peer is always a process of the same user (the socket is private), so the checks
//! guard against mistakes and other versions, not against the user.

mod cancel;
mod cluster;
mod explanation;
pub mod frame;
pub(crate) mod message;
mod metrics;
pub mod order;
mod service;
mod shared;
mod task_pages;
pub(crate) mod tracing_settings;

pub use cancel::{CancelAnswer, CancelReport, CancelWhich};
pub use cluster::{ClusterReport, ModuleReport, NodeReport, QueueReport};
pub use explanation::{BlockedTask, Cycle, Explanation, Holder, OtherTask, Reason, RunningTask, WaitsFor};
pub use message::*;
pub use metrics::{JournalCounts, METRICS_VERSION, Metrics};
pub use service::{
    DeploymentReport, ProxyReportRow, ReplicaReportRow, ServiceAccepted, ServiceEvent, ServiceNews, ServiceQuery,
    ServiceRefusal, ServiceRefusalCode, ServiceReply, ServiceReport, ServiceState, ServiceSummary, ServiceVersion,
};
pub use shared::{
    AgentNode, BUNDLE_LIMIT, BorrowedEnd, ClaimedBy, Digest, EngineAccess, Found, FromAgent, Import, ImportedTask,
    LostElsewhere, OnPartition, OpenTask, OpenTasks, SharedEnd, SharedOutput, Stop, ToAgent, Written, encode_report,
};
pub use task_pages::TaskPages;
pub use tracer_core::codec as wire;
pub use tracing_settings::{FurtherHook, HookChoice, TracingSettings};

/// The version of everything in this module but [`order`], and of what a head's guard keeps. Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 10;

/// Returns the [`PROTOCOL_VERSION`] that this process speaks, which a test may change.
pub fn spoken_version() -> u32 {
    crate::fault::setting("protocol_version").map_or(PROTOCOL_VERSION, |version| version as u32)
}
