//! Reaching the head, for the subcommands that ask it something.

use tracer_client::driver::{Driver, DriverError};
use tracer_ipc::protocol::{Query, Reply};

use super::{CommandError, PlaceArgs};

/// Connects, asks one thing, and returns the answer.
pub(super) fn ask(place: &PlaceArgs, query: &Query) -> Result<Reply, CommandError> {
    let mut driver = Driver::connect(&place.temp_dir())?;
    Ok(driver.query(query)?)
}

/// Returns the error for a reply of another kind than was asked for.
pub(super) fn unexpected_reply() -> CommandError {
    DriverError::Protocol(tracer_ipc::protocol::wire::WireError::UnknownValue("reply")).into()
}
