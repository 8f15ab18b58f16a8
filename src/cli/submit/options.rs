//! Flags for the options of tasks and actors, made from the rows of [`tracer_options`].

use std::marker::PhantomData;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use tracer_core::duration::parse_duration;
use tracer_core::size::parse_size;
use tracer_options::{ActorOptions, Kind, Row, Scope, TaskOptions, Value, check_retry_on, parse_resource};

/// The flags for options of `T` that a command has which submits `Of`.
#[derive(Clone, Debug, Default)]
pub(super) struct Flags<T, Of = T> {
    /// The options that the flags set.
    pub(super) options: T,
    of: PhantomData<Of>,
}

/// A set of options, each of which is in a row.
pub(super) trait Rows: Default + 'static {
    const ROWS: &'static [Row<Self>];
}

impl Rows for TaskOptions {
    const ROWS: &'static [Row<Self>] = TaskOptions::ROWS;
}

impl Rows for ActorOptions {
    const ROWS: &'static [Row<Self>] = ActorOptions::ROWS;
}

/// Kind of a submission, which says which options it has.
pub(super) trait Submits {
    fn has(scope: Scope) -> bool;
}

/// A function.
#[derive(Clone, Debug, Default)]
pub(super) struct OfFunction;
/// A command.
#[derive(Clone, Debug, Default)]
pub(super) struct OfCommand;
/// A call of an actor, or its creation.
#[derive(Clone, Debug, Default)]
pub(super) struct OfCall;

impl Submits for OfFunction {
    fn has(scope: Scope) -> bool {
        matches!(scope, Scope::Tasks | Scope::Any)
    }
}

impl Submits for OfCommand {
    fn has(scope: Scope) -> bool {
        matches!(scope, Scope::Tasks | Scope::Any | Scope::Commands)
    }
}

impl Submits for OfCall {
    fn has(scope: Scope) -> bool {
        scope == Scope::Any
    }
}

impl Submits for ActorOptions {
    fn has(scope: Scope) -> bool {
        scope != Scope::Libraries
    }
}

/// Returns the rows of those options.
fn rows<T: Rows, Of: Submits>() -> impl Iterator<Item = &'static Row<T>> {
    T::ROWS.iter().filter(|row| Of::has(row.face.scope))
}

/// Returns the flag of an option.
fn flag<T: Default>(row: &Row<T>) -> Arg {
    let paragraphs = row.paragraphs();
    // As clap takes a sentence from a doc comment.
    let first = paragraphs[0].strip_suffix('.').unwrap_or(&paragraphs[0]).to_owned();
    let mut flag = Arg::new(row.name).long(row.flag()).help(first.clone());
    if paragraphs.len() > 1 {
        flag = flag.long_help([std::slice::from_ref(&first), &paragraphs[1..]].concat().join("\n\n"));
    }
    if !row.face.heading.is_empty() {
        flag = flag.help_heading(row.face.heading);
    }
    let default = row.default_value().map(|value| match value {
        Value::Time(span) => format!("{}s", span.as_secs_f64()),
        Value::Whole(number) => number.to_string(),
        Value::Text(text) => text,
        Value::Flag(_) | Value::Amounts(_) => String::new(),
    });
    let (flag, value_name) = match row.face.kind {
        Kind::Flag => (flag.action(ArgAction::SetTrue), ""),
        Kind::Text { .. } => (flag.value_parser(value_parser!(String)), "NAME"),
        Kind::Count { .. } => (flag.value_parser(value_parser!(u32)), "N"),
        Kind::Whole { least, most } => {
            let numbers = value_parser!(i64).range(i64::from(least)..=i64::from(most));
            (flag.value_parser(numbers).allow_negative_numbers(true), "N")
        }
        Kind::Time { .. } => (flag.value_parser(parse_duration), "DURATION"),
        Kind::Size { .. } => (flag.value_parser(parse_size), "SIZE"),
        Kind::Failures => (flag.value_parser(|list: &str| check_retry_on(list).map(|()| list.to_owned())), "KINDS"),
        Kind::Amounts => (flag.value_parser(parse_resource).action(ArgAction::Append), "NAME=AMOUNT"),
    };
    let flag = match (row.face.kind, row.face.value_name) {
        (Kind::Flag, _) => flag,
        (_, "") => flag.value_name(value_name),
        (_, own) => flag.value_name(own),
    };
    let flag = flag.conflicts_with_all(row.face.excludes);
    let flag = row.face.requires.iter().fold(flag, |flag, other| flag.requires(*other));
    match default.filter(|_| row.face.kind != Kind::Flag) {
        Some(default) => flag.default_value(default),
        None => flag,
    }
}

/// Returns the value of a flag; none where it was not given and has no default.
fn value(kind: Kind, name: &str, matches: &mut ArgMatches) -> Option<Value> {
    match kind {
        Kind::Flag => matches.remove_one::<bool>(name).map(Value::Flag),
        Kind::Text { .. } | Kind::Failures => matches.remove_one::<String>(name).map(Value::Text),
        Kind::Count { .. } => matches.remove_one::<u32>(name).map(|count| Value::Whole(count.into())),
        Kind::Whole { .. } => matches.remove_one::<i64>(name).map(Value::Whole),
        Kind::Time { .. } => matches.remove_one::<Duration>(name).map(Value::Time),
        Kind::Size { .. } => {
            let size = matches.remove_one::<u64>(name);
            size.map(|size| Value::Whole(i64::try_from(size).unwrap_or(i64::MAX)))
        }
        Kind::Amounts => matches.remove_many::<(String, u64)>(name).map(|amounts| Value::Amounts(amounts.collect())),
    }
}

impl<T: Rows, Of: Submits> clap::FromArgMatches for Flags<T, Of> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Flags { options: T::default(), of: PhantomData };
        flags.update_from_arg_matches_mut(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.update_from_arg_matches_mut(&mut matches.clone())
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), clap::Error> {
        for row in rows::<T, Of>() {
            if let Some(value) = value(row.face.kind, row.name, matches) {
                (row.set)(&mut self.options, value);
            }
        }
        Ok(())
    }
}

impl<T: Rows, Of: Submits> clap::Args for Flags<T, Of> {
    fn augment_args(command: Command) -> Command {
        command.args(rows::<T, Of>().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
