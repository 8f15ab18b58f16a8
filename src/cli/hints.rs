//! Commands that messages name, such as `tracer status`, as they work in the place that this command line is about.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{ArgMatches, Command, CommandFactory};

use super::{Cli, PlaceArgs};

/// The flag that names the place, with a blank before it; empty where the default or the environment finds it.
static FLAG: OnceLock<String> = OnceLock::new();

/// Notes which place this command line is about. The first call counts.
pub(super) fn note_place(temp_dir: &Path) {
    let _ = FLAG.set(PlaceArgs::flag(temp_dir));
}

/// Returns the place that a command line names, if it does.
pub(super) fn place_of(matches: &ArgMatches) -> Option<PathBuf> {
    let mut leaf = matches;
    while let Some((_, below)) = leaf.subcommand() {
        leaf = below;
    }
    leaf.try_get_one::<PathBuf>("temp_dir").ok().flatten().filter(|path| !path.as_os_str().is_empty()).cloned()
}

/// Returns a message in which each command of tracer between backticks is given the place, if it takes one and has none.
pub(super) fn with_place(text: &str) -> Cow<'_, str> {
    with_flag(text, FLAG.get().map_or("", String::as_str))
}

fn with_flag<'t>(text: &'t str, flag: &str) -> Cow<'t, str> {
    const BEGINNING: &str = "`tracer ";
    if flag.is_empty() || !text.contains(BEGINNING) {
        return Cow::Borrowed(text);
    }
    let root = Cli::command();
    let (mut out, mut rest) = (String::with_capacity(text.len() + flag.len()), text);
    while let Some(begin) = rest.find(BEGINNING) {
        let (before, from) = rest.split_at(begin + BEGINNING.len());
        let command = &from[..from.find('`').unwrap_or(from.len())];
        out.push_str(before);
        let end = if command.contains("--temp-dir") { None } else { end_of_verb(&root, command) };
        let (verb, after) = from.split_at(end.unwrap_or(0));
        out.push_str(verb);
        out.push_str(if end.is_some() { flag } else { "" });
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns where the words of the verb end, for one that takes a place.
fn end_of_verb(root: &Command, command: &str) -> Option<usize> {
    let (mut verb, mut end) = (root, 0);
    while let Some(below) = verb.find_subcommand(next_word(&command[end..])) {
        end += command[end..].len() - command[end..].trim_start().len() + next_word(&command[end..]).len();
        verb = below;
    }
    let takes_place = verb.get_arguments().any(|argument| argument.get_id() == "temp_dir");
    (end > 0 && takes_place).then_some(end)
}

fn next_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracer_client::driver::DriverError;
    use tracer_ipc::protocol::Reason;
    use tracer_ipc::session::SessionError;

    use super::*;

    const FLAG: &str = " --temp-dir /place";

    #[test]
    fn a_command_that_a_message_names_is_given_the_place_if_it_takes_one() {
        for (text, expected) in [
            ("see `tracer status`", "see `tracer status --temp-dir /place`"),
            ("`tracer start --head`, then", "`tracer start --temp-dir /place --head`, then"),
            ("`tracer list tasks` shows them", "`tracer list tasks --temp-dir /place` shows them"),
            ("`tracer hooks undelivered`", "`tracer hooks undelivered --temp-dir /place`"),
            ("`tracer trace show last`", "`tracer trace show --temp-dir /place last`"),
            ("`tracer submit command -- sleep 1`", "`tracer submit command --temp-dir /place -- sleep 1`"),
            (
                "`tracer stop` and `tracer get 7`",
                "`tracer stop --temp-dir /place` and `tracer get --temp-dir /place 7`",
            ),
            // It has one, takes none, or is no command.
            ("`tracer status --temp-dir /other`", "`tracer status --temp-dir /other`"),
            ("`tracer version`", "`tracer version`"),
            ("`tracer submit` lists them", "`tracer submit` lists them"),
            ("`tracer frobnicate`", "`tracer frobnicate`"),
            ("a tracer status, and `tracer ", "a tracer status, and `tracer "),
            ("nothing", "nothing"),
        ] {
            assert_eq!(with_flag(text, FLAG), expected);
            assert_eq!(with_flag(text, ""), text, "the default place");
        }
    }

    #[test]
    fn what_messages_name_can_be_typed_as_it_is_printed() {
        let no_head = || SessionError::NoHead { temp_dir: "/place".into() };
        let messages = [
            no_head().to_string(),
            DriverError::Session(no_head()).to_string(),
            SessionError::Occupied {
                temp_dir: "/place".into(),
                holder: Some(tracer_ipc::session::HeadRecord {
                    pid: 7,
                    version: "1".into(),
                    session_dir: "/place/sessions/1".into(),
                    spans_dir: "/spans".into(),
                    started_unix_nano: 1,
                    guard_pid: None,
                }),
            }
            .to_string(),
            Reason::NoProcessForActor { actors: 1, replicas: 0, max_processes: 2, before: 0 }.to_string(),
            "undelivered: 3 spans (see `tracer hooks undelivered`)".to_owned(),
            "there is no task 7\n(hint: `tracer list tasks` shows those that are known)".to_owned(),
            "task 7 is being cancelled; `tracer get 7` shows how far that is".to_owned(),
            "was truncated by another process\n(hint: `tracer stop` and `tracer start --head --fresh` begin a whole one)"
                .to_owned(),
        ];
        for message in messages {
            let told = with_flag(&message, FLAG);
            let commands: Vec<_> = told.split('`').filter(|part| part.starts_with("tracer ")).collect();
            assert!(!commands.is_empty(), "{message}");
            for command in commands {
                // An id is left to whoever reads it.
                let words: Vec<_> =
                    command.split(' ').chain((command == "tracer cancel --temp-dir /place").then_some("1")).collect();
                let matches = Cli::command().try_get_matches_from(&words);
                let matches = matches.unwrap_or_else(|error| panic!("`{command}`: {error}"));
                assert_eq!(place_of(&matches), Some("/place".into()), "`{command}`");
            }
        }
    }
}
