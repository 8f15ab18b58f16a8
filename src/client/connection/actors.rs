//! Questions about actors, which drivers, programs and tasks ask alike.

use std::time::Duration;

use tracer_core::codec::WireError;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{ActorReport, CancelWhich, Query, Reply};

use super::Connection;
use crate::error::DriverError;

impl Connection {
    /// Returns what the head says of an actor, which is named by its name or its id.
    pub fn actor_report(&self, wanted: &str) -> Result<ActorReport, DriverError> {
        match self.query(&Query::Actor { wanted: wanted.into() }, None)? {
            Some(Reply::Actor(Ok(report))) => Ok(*report),
            Some(Reply::Actor(Err(reason))) => Err(DriverError::Actor(reason)),
            _ => Err(DriverError::Protocol(WireError::UnknownValue("reply"))),
        }
    }

    /// Ends an actor: calls that wait fail, those that run may take `grace` (2 seconds unless said).
    pub fn end_actor(&self, actor: TaskId, grace: Option<Duration>) -> Result<(), DriverError> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.query(&Query::Cancel { which: CancelWhich::Ids(vec![actor]), grace_ms }, None).map(drop)
    }
}
