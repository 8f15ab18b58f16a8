//! Parsing of the command line, and what is said of one that cannot be parsed: the mistake, what was expected, and the next step.
//!
//! clap finds the mistake. Its words are replaced where they name a Rust type's error, a flag that nobody gave (the value came from the environment),
//! or a usage line in which a variable of the environment makes a flag look required. Words and flags of other tools get a tip of their own.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use tracer_core::suggestion::shell_word;
use tracer_core::{escape, exit};

use super::{Cli, CommandError, Format, hints};

/// Reason why a command line was not run: it is wrong, or asks for help or for the version.
pub(super) enum NotParsed {
    /// Help or a version, to be printed as clap does it, with its exit code.
    Answered(clap::Error),
    /// A mistake.
    Mistake(Mistake),
}

/// A command line that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Description of the mistake.
    pub(super) message: String,
    /// The next steps; several if there are several ways.
    pub(super) tips: Vec<String>,
    /// The usage of the command, on which nothing depends that was given.
    usage: Option<String>,
    /// The command, as in `tracer list tasks`.
    command: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        for tip in &self.tips {
            write!(f, "\n(hint: {tip})")?;
        }
        if let Some(usage) = &self.usage {
            write!(f, "\n\n{usage}")?;
        }
        write!(f, "\n\nFor more information, try `{} --help`.", self.command)
    }
}

impl std::error::Error for Mistake {}

/// Reads a command line; the first argument is the program.
pub(super) fn parse(arguments: &[OsString]) -> Result<Cli, NotParsed> {
    if let Some(cli) = parse_alone(arguments) {
        return Ok(cli);
    }
    if let Ok(matches) = Cli::command().ignore_errors(true).try_get_matches_from(arguments)
        && let Some(place) = hints::place_of(&matches)
    {
        hints::note_place(&place);
    }
    let parsed =
        Cli::command().try_get_matches_from(arguments).and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            NotParsed::Answered(error)
        }
        _ => NotParsed::Mistake(explain(&error, arguments, |name| std::env::var_os(name))),
    })
}

/// Reads a command line without a mistake, by the subcommand that it names first alone. What is to be said of any other one takes all of them.
fn parse_alone(arguments: &[OsString]) -> Option<Cli> {
    let command = super::command_with_only(arguments.get(1)?.to_str()?)?;
    let mut matches = command.try_get_matches_from(arguments).ok()?;
    let place = hints::place_of(&matches);
    let cli = Cli::from_arg_matches_mut(&mut matches).ok()?;
    if let Some(place) = place {
        hints::note_place(&place);
    }
    Some(cli)
}

/// Returns the format that the command line asks for, whether or not it can be parsed. A mistake is told in it, too.
pub(super) fn wanted_format(arguments: &[OsString]) -> Format {
    let mut before = None;
    for argument in arguments.iter().skip(1).take_while(|argument| *argument != "--") {
        if argument == "--format=json" || (argument == "json" && before.is_some_and(|before| before == "--format")) {
            return Format::Json;
        }
        before = Some(argument);
    }
    Format::Text
}

/// Returns the command that the arguments name, as far as they name one.
fn named<'a>(command: &'a mut Command, arguments: &[OsString]) -> &'a mut Command {
    let mut named = command;
    for argument in arguments.iter().skip(1) {
        if named.find_subcommand(argument).is_some() {
            named = named.find_subcommand_mut(argument).expect("it was just found");
        } else if !named.has_subcommands() || argument == "--" || !argument.to_string_lossy().starts_with('-') {
            // Behind a word that is no command here there are none either: `job submit` is no `submit`.
            break;
        }
    }
    named
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}

/// Returns the argument that clap names so, such as `--num-workers <N>` or `<ID>`.
fn argument_named<'a>(command: &'a Command, shown: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| argument.to_string() == shown)
}

/// Returns the name of the argument's value, such as `ID`.
fn value_name(argument: &Arg) -> &str {
    argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
}

/// Returns the variable of the environment that the value came from: that of the argument, if the argument was not given.
fn origin(argument: &Arg, arguments: &[OsString], lookup: impl Fn(&OsStr) -> Option<OsString>) -> Option<String> {
    let variable = argument.get_env()?;
    lookup(variable).filter(|value| !value.is_empty())?;
    let flag = format!("--{}", argument.get_long()?);
    let is_given = |given: &OsString| {
        given
            .to_str()
            .is_some_and(|given| given.strip_prefix(&flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    };
    (!arguments.iter().any(is_given)).then(|| variable.to_string_lossy().into_owned())
}

fn explain(error: &clap::Error, arguments: &[OsString], lookup: impl Fn(&OsStr) -> Option<OsString>) -> Mistake {
    let mut all = Cli::command();
    all.build();
    let command = named(&mut all, arguments);
    let usage = command.render_usage().to_string();
    let command = &*command;
    let path = command.get_bin_name().unwrap_or("tracer").to_owned();
    let mut mistake = Mistake { message: String::new(), tips: Vec::new(), usage: Some(usage), command: path.clone() };
    let shown = text_of(error, ContextKind::InvalidArg);
    let value = text_of(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let argument = shown.as_deref().and_then(|shown| argument_named(command, shown));
            wrong_value(&mut mistake, error, argument, shown.as_deref().unwrap_or_default(), &value, arguments, lookup);
        }
        ErrorKind::UnknownArgument => {
            let given = shown.unwrap_or_default();
            match before_negative_number(command, arguments, &given) {
                Some(argument) => {
                    let found = negative_number(arguments, &given);
                    let shown = argument.to_string();
                    wrong_value(&mut mistake, error, Some(argument), &shown, &found, arguments, lookup);
                }
                None => {
                    (mistake.message, mistake.tips) = clap_words(error);
                    let own = tip_for_flag(&path, &given).or_else(|| tip_for_value(command, arguments, &given));
                    if let Some(tip) = own {
                        mistake.tips = vec![tip];
                    }
                }
            }
        }
        ErrorKind::InvalidSubcommand => {
            (mistake.message, mistake.tips) = clap_words(error);
            let hidden = command.get_subcommands().filter(|command| command.is_hide_set());
            let hidden: Vec<_> = hidden.map(|command| format!("'{}'", command.get_name())).collect();
            mistake.tips.retain(|tip| !hidden.iter().any(|name| tip.contains(name)));
            let given = text_of(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let own = tip_for_word(&path, &given, arguments);
            if own.is_some() {
                mistake.tips = own.into_iter().collect();
            }
        }
        // A command that only tracer itself calls, with a name that other tools have.
        _ if command.is_hide_set() => {
            let name = command.get_name();
            mistake.message = format!("unrecognized subcommand '{name}'");
            mistake.tips = tip_for_word("tracer", name, arguments).into_iter().collect();
            mistake.usage = Some(Cli::command().render_usage().to_string());
            mistake.command = "tracer".to_owned();
        }
        _ => (mistake.message, mistake.tips) = clap_words(error),
    }
    if mistake.message.contains(&usage_head(&mistake)) {
        mistake.usage = None;
    }
    mistake
}

fn usage_head(mistake: &Mistake) -> String {
    mistake.usage.as_deref().and_then(|usage| usage.lines().next()).unwrap_or("\0").to_owned()
}

/// Returns the message and the tips of an error in clap's own words, without its usage.
fn clap_words(error: &clap::Error) -> (String, Vec<String>) {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nUsage:").next().unwrap_or(text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    let (mut message, mut tips) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match line.trim_start().strip_prefix("tip: ") {
            Some(tip) => tips.push(tip.to_owned()),
            None => message.push(line),
        }
    }
    (message.join("\n").trim_end().to_owned(), tips)
}

/// A value that its argument does not take.
fn wrong_value(
    mistake: &mut Mistake,
    error: &clap::Error,
    argument: Option<&Arg>,
    shown: &str,
    value: &str,
    arguments: &[OsString],
    lookup: impl Fn(&OsStr) -> Option<OsString>,
) {
    mistake.usage = None;
    let value = escape::line(value);
    if value.is_empty() && error.kind() == ErrorKind::InvalidValue {
        mistake.message = format!("`{shown}` needs a value");
        return;
    }
    let variable = argument.and_then(|argument| origin(argument, arguments, lookup));
    let place = match &variable {
        Some(variable) => format!("the environment variable `{variable}`"),
        None => format!("`{shown}`"),
    };
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let (what, own_tips) = expected(&source, argument.map_or("", value_name), &value, argument);
    mistake.message = match what.contains(", found ") {
        true => format!("wrong value for {place}: {what}"),
        false => format!("wrong value for {place}: {what}, found `{value}`"),
    };
    mistake.tips = own_tips;
    if let (Some(variable), Some(long)) = (variable, argument.and_then(Arg::get_long)) {
        mistake.tips.push(format!("`unset {variable}`, or `--{long}` on the command line, which is stronger"));
    }
}

/// Describes the values that were expected, with tips. `source` says why it was refused, perhaps in the words of Rust's parsers.
fn expected(source: &str, value_name: &str, value: &str, argument: Option<&Arg>) -> (String, Vec<String>) {
    let possible: Vec<_> = argument.map(|argument| argument.get_possible_values()).unwrap_or_default();
    let is_switch = source.contains("value was not a boolean");
    if !possible.is_empty() && !is_switch {
        let names: Vec<_> = possible
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let names = match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => names.concat(),
        };
        let nearest =
            tracer_core::suggestion::nearest(value, possible.iter().map(clap::builder::PossibleValue::get_name));
        return (
            format!("expected {names}"),
            nearest.map(|nearest| format!("did you mean `{nearest}`?")).into_iter().collect(),
        );
    }
    if is_switch {
        return ("expected `true` or `false`".into(), Vec::new());
    }
    let is_id = value_name == "ID";
    let number = || match is_id {
        true => (
            "expected an id, which is a whole number such as `7`".to_owned(),
            vec!["`tracer list tasks` shows the ids".to_owned()],
        ),
        false => ("expected a whole number such as `4`".to_owned(), Vec::new()),
    };
    // Of the parsers of Rust, and of clap's for numbers of a range.
    if let Some((_, range)) = source.split_once(" is not in ") {
        let (first, last) = range.split_once("..").unwrap_or((range, ""));
        let text = match last.trim_start_matches('=') {
            "" => format!("expected a whole number from {first} on"),
            last if last.len() > 18 => format!("expected a whole number from {first} on"),
            last => format!("expected a whole number from {first} to {last}"),
        };
        return (text, Vec::new());
    }
    if source.contains("number too large") || source.contains("number too small") {
        let (text, tips) = number();
        return (format!("{text}, found {value}, which is out of range"), tips);
    }
    if source.contains("invalid digit")
        || source.contains("cannot parse integer")
        || source.contains("invalid float")
        || source.is_empty()
    {
        return number();
    }
    // The words of tracer's own parsers, which may end in hints.
    let (text, tips) = split_hints(source);
    (text, tips)
}

/// Returns a message without the hints at its end, and these.
pub(super) fn split_hints(text: &str) -> (String, Vec<String>) {
    let (mut message, mut hints): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let hint = line.strip_prefix("(hint: ").and_then(|hint| hint.strip_suffix(')'));
        match hint.or_else(|| line.starts_with("Did you mean ").then_some(line)) {
            Some(hint) => hints.push(hint.to_owned()),
            None => message.push(line),
        }
    }
    (message.join("\n"), hints)
}

/// Returns the flag that a negative number was given to, which clap takes for a flag of its own.
fn before_negative_number<'a>(command: &'a Command, arguments: &[OsString], given: &str) -> Option<&'a Arg> {
    given.strip_prefix('-').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    let at = arguments.iter().position(|argument| argument.to_string_lossy().starts_with(given))?;
    if let Some(id) = command.get_positionals().find(|argument| value_name(argument) == "ID") {
        return Some(id);
    }
    let before = arguments.get(at.checked_sub(1)?)?.to_str()?.strip_prefix("--")?;
    command.get_arguments().find(|argument| argument.get_long() == Some(before) && argument.get_action().takes_values())
}

/// Returns how a value is given to the flag before it, if that one takes its value behind `=` only: it may also stand alone.
fn tip_for_value(command: &Command, arguments: &[OsString], given: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == given)?;
    let before = arguments.get(at.checked_sub(1)?)?.to_str()?.strip_prefix("--")?;
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(before))?;
    argument.is_require_equals_set().then(|| format!("a value of `{argument}` stands behind `=`: `--{before}={given}`"))
}

/// Returns the whole of a negative number, of which clap names the beginning.
fn negative_number(arguments: &[OsString], given: &str) -> String {
    let whole =
        arguments.iter().map(|argument| argument.to_string_lossy()).find(|argument| argument.starts_with(given));
    whole.map_or_else(|| given.to_owned(), std::borrow::Cow::into_owned)
}

/// Returns what is meant by a word that is no command here: one of another tool, or one at another place.
fn tip_for_word(path: &str, word: &str, arguments: &[OsString]) -> Option<String> {
    let rest = || {
        let at = arguments.iter().position(|argument| argument == word);
        let rest = arguments.iter().skip(at.unwrap_or(arguments.len()));
        escape::line(&rest.map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")).into_owned()
    };
    let looks_like_function = word.contains(':') && !word.contains("//");
    Some(match (path, word) {
        ("tracer" | "tracer submit", _) if looks_like_function => {
            format!("`tracer submit task {}` runs a function", rest())
        }
        ("tracer", "run" | "exec" | "launch" | "call") => {
            "`tracer submit task MODULE:FUNCTION` runs a function, `tracer submit command -- PROGRAM` a program".into()
        }
        // As one submits to Ray, to Slurm and to HyperQueue.
        ("tracer", "job" | "jobs" | "hq" | "sbatch" | "srun" | "qsub") if program_of_job(arguments).is_some() => format!(
            "`tracer submit command -- {}` runs a program, `--no-wait` before it returns at once",
            program_of_job(arguments).unwrap_or_default()
        ),
        ("tracer", "job") if arguments.iter().any(|word| word == "logs") => "`tracer logs ID` shows what a task has written".into(),
        ("tracer", "job") if arguments.iter().any(|word| word == "stop" || word == "cancel" || word == "delete") => {
            "`tracer cancel ID` ends a task".into()
        }
        ("tracer", "job") if arguments.iter().any(|word| word == "info" || word == "status" || word == "cat") => {
            "`tracer get ID` shows a task, `tracer logs ID` what it has written".into()
        }
        ("tracer", "task" | "command" | "actor") => format!("`tracer submit {}`", rest()),
        ("tracer", "tasks" | "actors" | "workers" | "modules_list") => format!("`tracer list {word}`"),
        ("tracer", "ps" | "jobs" | "job" | "ls" | "queue" | "squeue" | "summary" | "memory") => {
            "`tracer list tasks` lists tasks, `tracer status` sums them up".into()
        }
        ("tracer", "log" | "output" | "attach" | "tail") => {
            "`tracer logs ID` shows what a task has written, `tracer logs REPLICA` what a replica has".into()
        }
        ("tracer", "show" | "result" | "results" | "inspect" | "describe" | "info") => {
            "`tracer get ID` shows a task, `tracer trace show ID` a trace".into()
        }
        ("tracer", "kill" | "rm" | "abort" | "delete" | "scancel" | "terminate") => {
            "`tracer cancel ID` ends a task, `tracer stop` the head".into()
        }
        ("tracer", "reload" | "reboot") => {
            "`tracer restart` has a new version, or changed settings, go on in the place of the head".into()
        }
        ("tracer", "up" | "init" | "head" | "server" | "daemon" | "boot" | "connect") => {
            "`tracer start --head` starts a head".into()
        }
        ("tracer", "down" | "shutdown" | "quit" | "exit") => "`tracer stop` ends the head and its workers".into(),
        ("tracer", "worker" | "alloc" | "node" | "nodes" | "join" | "scale" | "cluster") => {
            "`tracer start --num-workers N` says how many workers run, `tracer start --address nats://HOST --queue NAME` joins other machines, \
             `tracer list nodes` shows them"
                .into()
        }
        ("tracer", "timeline" | "profile" | "trace-export") => {
            "`tracer trace export last --format chrome` writes a timeline".into()
        }
        ("tracer", "stack" | "debug" | "stats" | "monitor") => {
            "`tracer top` shows what runs now, `tracer trace stats` what took how long".into()
        }
        ("tracer", "events" | "watch" | "web" | "ui") => "`tracer view` shows traces and tasks in a browser while they run".into(),
        ("tracer", "apply" | "rollout" | "expose" | "service" | "services") => {
            "`tracer serve deploy FILE` rolls a service file out, `tracer serve status` shows services".into()
        }
        ("tracer", "sbatch" | "srun" | "qsub" | "hq") => "`tracer submit command -- PROGRAM` runs a program".into(),
        ("tracer", "images" | "image" | "volume" | "network" | "pull" | "push" | "container" | "pod" | "pods") => {
            "there are no images and no containers: `tracer submit command -- PROGRAM` runs a program of this machine".into()
        }
        ("tracer", "build" | "create") => {
            "`tracer new NAME` makes a task module, which `cargo build` builds".into()
        }
        ("tracer", "clean" | "gc" | "cleanup" | "purge") => "`tracer prune --older-than 7d` removes what is old".into(),
        ("tracer", "health" | "healthcheck" | "ping" | "check") => {
            "`tracer status` says how the head is, `tracer doctor` what is wrong with an engine".into()
        }
        ("tracer", "env" | "settings" | "configure") => {
            "`tracer start --config tracer.toml` takes a file with settings, `tracer status` shows those in use".into()
        }
        ("tracer", "upgrade" | "update") => "install the new tracer, then `tracer restart`".into(),
        ("tracer", "pause" | "unpause" | "suspend" | "resume" | "hold" | "release") => {
            "a task that was accepted is not held back: `tracer cancel ID` ends it".into()
        }
        ("tracer", "deploy" | "rollback" | "history" | "config") => format!("`tracer serve {}`", rest()),
        ("tracer serve", "start" | "up") => {
            "`tracer serve run MODULE:NAME` serves a deployment, `tracer serve deploy FILE` a service file".into()
        }
        ("tracer serve", "stop" | "down" | "delete" | "rm" | "kill") => "`tracer serve shutdown` ends a service".into(),
        ("tracer serve", "list" | "ls" | "ps" | "get" | "describe" | "info") => {
            "`tracer list services` lists services, `tracer serve status` shows their state".into()
        }
        ("tracer serve", "logs" | "log") => "`tracer logs REPLICA` shows what a replica has written".into(),
        ("tracer serve", "apply" | "update" | "check" | "validate" | "create" | "restart" | "reload") => {
            "`tracer serve deploy FILE` rolls a service file out; `--dry-run` only checks it".into()
        }
        ("tracer", "http" | "dashboard") => "`tracer start --head --http 127.0.0.1:8265` serves the HTTP API".into(),
        ("tracer", "traces" | "spans") => "`tracer trace list` lists traces".into(),
        ("tracer", "hook") => {
            "`tracer hooks check MODULE:ATTRIBUTE` tries a hook out, `tracer list hooks` lists them".into()
        }
        ("tracer", "module") => "`tracer modules show MODULE` shows one, `tracer list modules` lists them".into(),
        ("tracer", "why") => "`tracer explain ID` says why a task waits".into(),
        ("tracer serve", "scale") => "`num_replicas` or `autoscaling` in the service file says how many replicas run; `tracer serve deploy` rolls it out".into(),
        ("tracer serve", "undo") => "`tracer serve rollback` goes back to the version before".into(),
        ("tracer serve", _) if looks_like_function => format!("`tracer serve run {}` serves a deployment", rest()),
        ("tracer trace", "get" | "view" | "last") => "`tracer trace show last` shows the last trace".into(),
        ("tracer trace", "ls") => "`tracer trace list` lists traces".into(),
        ("tracer list", "task" | "actor" | "worker" | "module" | "hook") => format!("`tracer list {word}s`"),
        ("tracer list", "traces" | "spans" | "trace") => "`tracer trace list` lists traces".into(),
        ("tracer list", "service" | "deployment" | "replica") => format!("`tracer list {word}s`"),
        ("tracer list", "logs" | "log") => "`tracer logs ID` shows what a task has written".into(),
        ("tracer list", "cluster-events" | "objects" | "runtime-envs" | "placement-groups") => {
            format!("tracer has no {word}; `tracer list` shows what it has")
        }
        ("tracer list", "queues") => "`tracer list nodes` shows the queues of a cluster".into(),
        ("tracer list", "jobs" | "queue" | "ps" | "all") => "`tracer list tasks` lists tasks".into(),
        ("tracer modules", "list" | "ls") => "`tracer list modules` lists modules".into(),
        ("tracer hooks", "list" | "ls") => "`tracer list hooks` lists hooks".into(),
        ("tracer hooks", "show" | "test" | "try" | "run") => {
            "`tracer hooks check MODULE:ATTRIBUTE` tries a hook out".into()
        }
        ("tracer submit", "function" | "job") => "`tracer submit task MODULE:FUNCTION` runs a function".into(),
        ("tracer submit", "cmd" | "program" | "script" | "shell") => {
            "`tracer submit command -- PROGRAM` runs a program".into()
        }
        ("tracer submit", "method") => "`tracer submit call ACTOR METHOD` calls a method of an actor".into(),
        ("tracer submit", _) => format!(
            "`tracer submit command -- {}` runs a program, `tracer submit task MODULE:FUNCTION` a function",
            rest()
        ),
        _ => return None,
    })
}

/// Refuses a flag that stands among the words of a query, where nearly everything may stand.
pub(super) fn check_query(path: &str, words: &[String]) -> Result<(), CommandError> {
    let Some(flag) = words.iter().find(|word| word.starts_with("--")) else { return Ok(()) };
    let tip = tip_for_flag(path, flag).unwrap_or_else(|| format!("`{path} --help` lists the flags"));
    let text = format!("unexpected argument '{}' found\n(hint: {tip})", escape::line(flag));
    Err(CommandError::new(exit::USAGE, text))
}

/// Returns the program that a `job submit … -- PROGRAM ARG…` of another tool runs; none without one.
fn program_of_job(arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().position(|word| word == "--").or_else(|| {
        let submit = arguments.iter().position(|word| word == "submit" || word == "run")?;
        // Without the two dashes the program is what follows; a flag before it might have a value.
        arguments.get(submit + 1).filter(|word| !word.to_string_lossy().starts_with('-')).map(|_| submit)
    })?;
    let words: Vec<_> = arguments[at + 1..].iter().map(|word| shell_word(&word.to_string_lossy())).collect();
    (!words.is_empty()).then(|| escape::line(&words.join(" ")).into_owned())
}

/// Returns what is meant by a flag that is none here: one of another tool, or of another command.
pub(super) fn tip_for_flag(path: &str, flag: &str) -> Option<String> {
    let name = flag.split('=').next().unwrap_or(flag);
    let tip = match (path, name) {
        (_, "--json" | "-o" | "--output-format") => "`--format json` writes JSON",
        (_, "--verbose" | "-v" | "--debug" | "--quiet" | "-q") => {
            "tracer is neither more verbose nor quieter; `--format json` has all there is to say"
        }
        ("tracer start", "--hook" | "--tracing-hook" | "--startup-hook" | "--tracing_startup_hook" | "--tracing") => {
            "`--tracing-startup-hook=MODULE:ATTRIBUTE` names the hook"
        }
        ("tracer start", "--workers" | "-n" | "-j" | "--jobs" | "--num-cpus" | "--num_workers" | "--cpus") => {
            "`--num-workers N` says how many workers run"
        }
        ("tracer start", "--port" | "--dashboard-port" | "--dashboard-host" | "--listen") => {
            "`--http 127.0.0.1:8265` serves the HTTP API"
        }
        ("tracer start", "--foreground" | "-f" | "--no-daemon" | "--fg") => "`--block` stays in the foreground",
        ("tracer start", "--detach" | "-d" | "--background" | "--daemon") => "a head goes to the background by itself",
        ("tracer start", "--dashboard" | "--include-dashboard" | "--metrics-export-port") => {
            "`--http 127.0.0.1:8265` serves the HTTP API, `--metrics` metrics alone; `tracer view` shows a page"
        }
        ("tracer start", "--memory" | "--object-store-memory") => {
            "`--worker-memory SIZE` limits a worker, `--queue-memory SIZE` what waits"
        }
        ("tracer start", "--redis-password" | "--token") => {
            "the head is for one user: its place has mode 0700, and needs no password"
        }
        ("tracer start", "--temp" | "--data-dir" | "--server-dir" | "--dir" | "--state-dir") => {
            "`--temp-dir DIR` names the place of the head"
        }
        ("tracer start", "--worker") => {
            "`tracer start --address nats://HOST --queue NAME` starts a node that serves a queue"
        }
        ("tracer start", "--config-file" | "-c" | "--settings") => "`--config FILE` names a file with settings",
        ("tracer start", "--env" | "-e") => "`tracer submit command --env NAME=VALUE` gives a program a variable",
        ("tracer start", "--restart") => "a systemd unit restarts it: see `running.md` of the guide",
        ("tracer start", "--name") => "a place names a head: `--temp-dir DIR`",
        ("tracer start", "--num-gpus") => "`--resources gpu=2` says how much there is of a named resource",
        ("tracer start", "--spans" | "--spans-folder" | "--span-dir") => {
            "`--spans-dir DIR` says where spans are written"
        }
        (path, "--async" | "--detach" | "-d" | "--background" | "--nowait") if path.starts_with("tracer submit") => {
            "`--no-wait` prints the id and does not wait"
        }
        (path, "--wait" | "--sync") if path.starts_with("tracer submit") || path == "tracer serve deploy" => {
            "it waits unless `--no-wait` is given"
        }
        ("tracer serve deploy", "--async" | "--detach" | "-d" | "--background" | "--nowait") => {
            "`--no-wait` does not wait until it is rolled out"
        }
        ("tracer serve run" | "tracer serve build", "--port" | "-p" | "--host" | "--listen") => {
            "`--address 127.0.0.1:8000` says where it listens"
        }
        ("tracer serve run" | "tracer serve build", "--replicas" | "--workers" | "-n") => {
            "`--num-replicas N` says how many processes it has"
        }
        (path, "--name" | "-s") if path.starts_with("tracer serve") => "`--service NAME` says which service is meant",
        ("tracer submit command", "--working-dir" | "--workdir" | "--dir" | "-w" | "-C") => {
            "`--cwd DIR` says where it runs"
        }
        (path, "--num_cpus" | "--cpus" | "--cpus-per-task" | "-c") if path.starts_with("tracer submit") => {
            "`--num-cpus N` says how many cpus it needs"
        }
        (path, "--num_gpus" | "--gres" | "--entrypoint-num-gpus") if path.starts_with("tracer submit") => {
            "`--resource gpu=1` asks for a named resource"
        }
        (path, "--entrypoint-num-cpus") if path.starts_with("tracer submit") => {
            "`--num-cpus N` says how many cpus it needs"
        }
        (path, "--max-fails" | "--keep-going") if path.starts_with("tracer submit") => {
            "with `--map`, `--halt now,fail=3` ends the rest after three failures"
        }
        (path, "--mem" | "--memory-limit" | "--entrypoint-memory" | "-m") if path.starts_with("tracer submit") => {
            "`--memory SIZE` says how much memory it needs"
        }
        (path, "--runtime-env" | "--runtime-env-json") if path.starts_with("tracer submit") => {
            "`tracer submit command --env NAME=VALUE --cwd DIR` gives a program variables and a folder"
        }
        (path, "--array" | "--each-line" | "--from-json") if path.starts_with("tracer submit") => {
            "`tracer submit task MODULE:FUNCTION --map FILE` submits a task for each line"
        }
        (path, "--rm" | "-it" | "-t" | "--tty") if path.starts_with("tracer submit") => {
            "nothing is left of a program that has ended but its log; `-i` hands standard input over"
        }
        (path, "--user" | "-u" | "--privileged" | "--network" | "-p" | "--publish" | "--volume" | "--mount")
            if path.starts_with("tracer submit") =>
        {
            "a program runs as the user of the head, without a container: it sees this machine as it is"
        }
        (path, "--restart" | "--restart-policy" | "--backoff-limit") if path.starts_with("tracer submit") => {
            "`--retries N` says how often it is tried again, `--crash-limit N` after its worker died"
        }
        (path, "--ttl" | "--max-time" | "--time" | "--time-request" | "--active-deadline-seconds")
            if path.starts_with("tracer submit") =>
        {
            "`--timeout DURATION` bounds an attempt, `--queue-timeout` the wait for it"
        }
        (path, "--job-name" | "-J" | "--submission-id" | "--label" | "-l") if path.starts_with("tracer submit") => {
            "`--name NAME` names it; `--idempotency-key KEY` makes submitting twice harmless"
        }
        (path, "--priority-class" | "--nice") if path.starts_with("tracer submit") => {
            "`--priority N` says what begins before others"
        }
        (path, "--output" | "--stdout" | "--stderr" | "--log") if path.starts_with("tracer submit") => {
            "what it writes is shown, and kept: `tracer logs ID`; or redirect with `>`"
        }
        (path, "--depends-on" | "--dependency" | "--after") if path.starts_with("tracer submit") => {
            "`tracer wait ID && tracer submit …` begins when another has ended; programs pass the handle of one task to the next"
        }
        (path, "--address") if path.starts_with("tracer submit") => {
            "`--temp-dir DIR` names the place of another head of this machine"
        }
        (path, "--namespace" | "--context") => {
            if path.starts_with("tracer serve") {
                "`--service NAME` says which service is meant"
            } else {
                "`--temp-dir DIR` names the place of another head"
            }
        }
        ("tracer logs", "-f") => "`--follow` goes on until the task has ended",
        ("tracer logs", "--timestamps" | "-t") => "`--times` puts its time before each line",
        ("tracer logs", "-p" | "--previous" | "--attempt") => "the log has all attempts, in their order",
        ("tracer status", "--watch" | "-w") => "`tracer top` shows it again and again",
        ("tracer list tasks", "--all" | "-a") => {
            "all that are remembered are listed: `--limit N` says how many, `--state running` which"
        }
        ("tracer list tasks", "--filter" | "-f" | "--selector" | "-l") => {
            "a question stands behind it: `tracer list tasks 'state:failed name:count'`"
        }
        ("tracer list tasks", "--status" | "--states") => "`--state failed` chooses by state",
        ("tracer list tasks", "--watch" | "-w") => "`tracer top` shows it again and again",
        ("tracer prune", "--all" | "-a" | "-f" | "--volumes") => {
            "`--older-than 0s` removes all that is not in use; `--dry-run` lists it first"
        }
        ("tracer prune", "--until" | "--age" | "--keep" | "--days") => "`--older-than 7d` says from which age on",
        ("tracer prune", "--keep-last" | "--max-count") => "`--max-tasks N` says how many tasks are kept",
        ("tracer cancel", "--signal" | "-s" | "-15" | "-SIGTERM") => {
            "it sends SIGTERM, and SIGKILL after `--grace DURATION`"
        }
        ("tracer cancel", "--yes" | "-y") | ("tracer stop", "--yes" | "-y" | "--all") => {
            "nothing is asked before: leave it out"
        }
        ("tracer stop", "--timeout" | "--time" | "-t" | "--grace") => {
            "`--grace-period DURATION` says how long tasks may take to end"
        }
        ("tracer wait", "--for") => "`tracer wait ID…` waits for the end; `--any` for the first of several",
        ("tracer get", "-w" | "--watch") => "`--wait` waits for its end",
        ("tracer serve deploy", "-f" | "--filename" | "--file") => {
            "the file stands alone: `tracer serve deploy service.toml`"
        }
        ("tracer serve run", "--non-blocking" | "-d" | "--detach") => {
            "`tracer serve deploy FILE` returns when it is served; `tracer serve build` prints such a file"
        }
        ("tracer serve run", "--route-prefix") => {
            "`route_prefix` stands in a service file, which `tracer serve build` prints"
        }
        (path, "--num-gpus" | "--gpus") if path.starts_with("tracer submit") => {
            "`--resource gpu=1` asks for a named resource"
        }
        (path, "--max-retries" | "--retry") if path.starts_with("tracer submit") => {
            "`--retries N` says how often it is tried again"
        }
        (path, "--time-limit" | "--deadline") if path.starts_with("tracer submit") => {
            "`--timeout DURATION` bounds an attempt"
        }
        (path, "--module-path") if path.starts_with("tracer submit") => {
            "modules are found in the folders that `tracer start --module-path` named; or give the library's path: `./libNAME.so:FUNCTION`"
        }
        (path, "--spans-dir" | "--tracing-startup-hook") if path.starts_with("tracer submit") => {
            "it belongs to `tracer start`; a submission takes the head's"
        }
        ("tracer stop", "--now" | "--kill" | "-9") => "`--force` kills at once",
        ("tracer list tasks", "-n" | "--max" | "--count") => "`--limit N` says how many are shown",
        ("tracer cancel", "--force" | "-9" | "--now") => "`--grace 0s` kills at once",
        ("tracer trace show", "-f") => "`--follow` goes on until the trace is complete",
        _ => return None,
    };
    Some(tip.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(arguments: &[&str], environment: &[(&str, &str)]) -> Mistake {
        let arguments: Vec<OsString> =
            std::iter::once("tracer").chain(arguments.iter().copied()).map(OsString::from).collect();
        let error = Cli::command().try_get_matches_from(&arguments).expect_err("it is a mistake");
        let lookup = |name: &OsStr| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        explain(&error, &arguments, lookup)
    }

    #[test]
    fn a_value_that_belongs_behind_an_equals_sign_is_told_so() {
        for (flag, shown) in [("--metrics", "--metrics[=<ADDRESS>]"), ("--otlp", "--otlp[=<ADDRESS>]")] {
            let mistake = mistake(&["start", "--head", flag, "127.0.0.1:0"], &[]);
            assert_eq!(mistake.message, "unexpected argument '127.0.0.1:0' found");
            let tip = format!("a value of `{shown}` stands behind `=`: `{flag}=127.0.0.1:0`");
            assert_eq!(mistake.tips, [tip]);
        }
        let other = mistake(&["start", "--head", "127.0.0.1:0"], &[]);
        assert!(!other.tips.iter().any(|tip| tip.contains("behind `=`")), "{other:?}");
    }

    #[test]
    fn a_value_is_refused_with_what_was_expected() {
        for (arguments, message) in [
            (
                &["get", "1.5"] as &[&str],
                "wrong value for `<ID>`: expected an id, which is a whole number such as `7`, found `1.5`",
            ),
            (
                &["start", "--num-workers", "lots"],
                "wrong value for `--num-workers <N>`: expected a whole number such as `4`, found `lots`",
            ),
            (
                &["start", "--num-workers", "-1"],
                "wrong value for `--num-workers <N>`: expected a whole number such as `4`, found `-1`",
            ),
            (
                &["start", "--num-workers", "1.5"],
                "wrong value for `--num-workers <N>`: expected a whole number such as `4`, found `1.5`",
            ),
            (
                &["start", "--num-workers", "99999999999"],
                "wrong value for `--num-workers <N>`: expected a whole number from 0 to 4294967295, found `99999999999`",
            ),
            (
                &["start", "--block=maybe"],
                "wrong value for `--block[=<BOOL>]`: expected `true` or `false`, found `maybe`",
            ),
            (
                &["status", "--format", "yaml"],
                "wrong value for `--format <FORMAT>`: expected `text` or `json`, found `yaml`",
            ),
            (
                &["submit", "task", "--timeout", "soon"],
                "wrong value for `--timeout <DURATION>`: expected a duration such as `500ms`, `10s` or `2m`, found `soon`",
            ),
        ] {
            assert_eq!(mistake(arguments, &[]).message, message, "{arguments:?}");
        }
    }

    #[test]
    fn a_value_of_the_environment_is_told_by_the_name_of_the_variable() {
        // As the environment gives it, which a test cannot change: with the flag, but as if it were not there.
        let arguments: Vec<OsString> = ["tracer", "start", "--head", "--num-workers=abc"].map(OsString::from).into();
        let error = Cli::command().try_get_matches_from(&arguments).expect_err("it is a mistake");
        let mistake = explain(&error, &arguments[..3], |name| (name == "TRACER_NUM_WORKERS").then(|| "abc".into()));
        assert_eq!(
            mistake.message,
            "wrong value for the environment variable `TRACER_NUM_WORKERS`: expected a whole number such as `4`, found `abc`"
        );
        assert_eq!(
            mistake.tips,
            ["`unset TRACER_NUM_WORKERS`, or `--num-workers` on the command line, which is stronger"]
        );
    }

    #[test]
    fn the_usage_says_what_is_needed_whatever_else_was_given() {
        let mistake = mistake(&["get", "--temp-dir", "x"], &[]);
        assert_eq!(mistake.usage.as_deref(), Some("Usage: tracer get [OPTIONS] <ID>"));
    }

    #[test]
    fn the_format_is_known_before_anything_is_parsed() {
        let wanted = |arguments: &[&str]| {
            wanted_format(&std::iter::once(&"tracer").chain(arguments).map(OsString::from).collect::<Vec<_>>())
        };
        assert_eq!(wanted(&["get", "x", "--format", "json"]), Format::Json);
        assert_eq!(wanted(&["get", "--format=json"]), Format::Json);
        assert_eq!(wanted(&["get", "json"]), Format::Text);
        assert_eq!(wanted(&["submit", "command", "--", "jq", "--format", "json"]), Format::Text);
    }
}
