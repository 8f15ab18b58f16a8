//! Output of a replica.

use super::super::serve::{self, tail::Tails};
use super::super::{CommandError, CommandResult, report};
use super::{Args, INTERVAL};
use crate::exit;
use crate::suggestion;

/// Shows what a replica has written.
pub(super) fn run(args: &Args, replica: &str) -> CommandResult {
    let found = find(args, replica)?;
    let Some(path) = found.log else {
        return Err(CommandError::new(exit::FAILED, format!("replica `{}` has no log yet", found.name)));
    };
    let mut tails = Tails::default();
    tails.add(&path, String::new());
    loop {
        // Looked at before what it wrote last is read.
        let goes_on = args.follow && find(args, replica).is_ok_and(|again| again.pid == found.pid);
        tails.take(|_, line| report::text(line));
        if !goes_on {
            tails.take_rest(|_, line| report::text(line));
            return Ok(exit::OK);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The replica that is meant.
fn find(args: &Args, wanted: &str) -> Result<crate::protocol::ReplicaReportRow, CommandError> {
    let rows: Vec<_> = serve::list(&args.source.place)?.into_iter().flat_map(|service| service.replicas).collect();
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
