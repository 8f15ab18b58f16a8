//! Output of a replica.

use std::collections::VecDeque;

use tracer_core::{exit, suggestion};

use super::super::serve::tail::Tails;
use super::super::serve::{self};
use super::super::{CommandError, CommandResult, report};
use super::{Args, INTERVAL};

/// Shows what a replica has written.
pub(super) fn run(args: &Args, replica: &str) -> CommandResult {
    let found = find(args, replica)?;
    let Some(path) = found.log else {
        return Err(CommandError::new(exit::FAILED, format!("replica `{}` has no log yet", found.name)));
    };
    let mut tails = Tails::default();
    tails.add(&path, String::new());
    let mut newest = args.tail.map(|limit| (limit, VecDeque::new()));
    loop {
        // Looked at before what it wrote last is read.
        let goes_on = args.follow && find(args, replica).is_ok_and(|again| again.pid == found.pid);
        while take(&mut tails, &mut newest) {}
        if !goes_on {
            let mut text = newest.map_or_else(String::new, |(_, lines)| lines.into_iter().collect());
            tails.take_rest(|line| text.push_str(line.text));
            if !text.is_empty() {
                report::text(&text);
            }
            return Ok(exit::OK);
        }
        if let Some((_, lines)) = newest.take() {
            report::part(&lines.into_iter().collect::<String>());
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Shows what is read at a time, or keeps the newest of its lines. Returns whether there is more.
fn take(tails: &mut Tails, newest: &mut Option<(usize, VecDeque<String>)>) -> bool {
    let mut text = String::new();
    let has_more = tails.take(|line| {
        let end = if line.is_partial { "" } else { "\n" };
        match newest {
            None => text.extend([line.text, end]),
            Some((limit, lines)) => {
                match lines.back_mut().filter(|last| !last.ends_with('\n')) {
                    Some(last) => last.extend([line.text, end]),
                    None => lines.push_back(format!("{}{end}", line.text)),
                }
                if lines.len() > *limit {
                    lines.pop_front();
                }
            }
        }
    });
    if !text.is_empty() {
        report::part(&text);
    }
    has_more
}

/// The replica that is meant.
fn find(args: &Args, wanted: &str) -> Result<tracer_ipc::protocol::ReplicaReportRow, CommandError> {
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
