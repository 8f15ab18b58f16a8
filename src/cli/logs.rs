//! `tracer logs`.

use std::time::Duration;

use super::serve::{self, tail::Tails};
use super::{CommandError, CommandResult, PlaceArgs, report};
use crate::exit;
use crate::suggestion;

/// Show what a replica has written
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer logs app#1 --follow")]
pub(super) struct Args {
    /// The replica, as `tracer list replicas` names it; `SERVICE/REPLICA` where several services have one of that name
    replica: String,
    /// Go on with what it writes, until it ends
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Interval between two reads of new lines.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args) -> CommandResult {
    let found = find(args)?;
    let Some(path) = found.log else {
        return Err(CommandError::new(exit::FAILED, format!("replica `{}` has no log yet", found.name)));
    };
    let mut tails = Tails::default();
    tails.add(&path, String::new());
    loop {
        // Looked at before what it wrote last is read.
        let goes_on = args.follow && find(args).is_ok_and(|again| again.pid == found.pid);
        tails.take(|_, line| report::text(line));
        if !goes_on {
            tails.take_rest(|_, line| report::text(line));
            return Ok(exit::OK);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The replica that is meant.
fn find(args: &Args) -> Result<crate::protocol::ReplicaReportRow, CommandError> {
    let rows: Vec<_> = serve::list(&args.place)?.into_iter().flat_map(|service| service.replicas).collect();
    let wanted = &args.replica;
    let mut meant = rows.iter().filter(|row| row.name == *wanted || format!("{}/{}", row.service, row.name) == *wanted);
    match (meant.next(), meant.next()) {
        (Some(found), None) => Ok(found.clone()),
        (Some(one), Some(other)) => {
            let text = format!(
                "two services have a replica `{wanted}`\n(hint: `{}/{}` or `{}/{}`)",
                one.service, one.name, other.service, other.name
            );
            Err(CommandError::new(exit::USAGE, text))
        }
        (None, _) => {
            let hint = suggestion::hint(wanted, rows.iter().map(|row| row.name.as_str()));
            let hint = if hint.is_empty() { "\n(hint: `tracer list replicas` names them)".to_owned() } else { hint };
            Err(CommandError::new(exit::FAILED, format!("there is no replica `{wanted}`{hint}")))
        }
    }
}
