//! Tests of README.md and the guide: every `tracer` command line and flag in them is one that clap takes, and nothing is missing from their tables.

use std::collections::BTreeSet;

use clap::error::ErrorKind;
use clap::{ArgAction, Command, CommandFactory};
use tracer_core::exit;

use super::Cli;

const README: &str = include_str!("../../README.md");
const COMMANDS: &str = include_str!("../guide/commands.md");
const CONFIGURATION: &str = include_str!("../guide/configuration.md");
const PAGES: [(&str, &str); 15] = [
    ("README.md", README),
    ("CONTRIBUTING.md", include_str!("../../.github/CONTRIBUTING.md")),
    ("actors.md", include_str!("../guide/actors.md")),
    ("commands.md", COMMANDS),
    ("configuration.md", CONFIGURATION),
    ("hooks.md", include_str!("../guide/hooks.md")),
    ("how_it_works.md", include_str!("../guide/how_it_works.md")),
    ("http.md", include_str!("../guide/http.md")),
    ("json.md", include_str!("../guide/json.md")),
    ("many_machines.md", include_str!("../guide/many_machines.md")),
    ("programs.md", include_str!("../guide/programs.md")),
    ("running.md", include_str!("../guide/running.md")),
    ("spans.md", include_str!("../guide/spans.md")),
    ("start.md", include_str!("../guide/start.md")),
    ("tasks.md", include_str!("../guide/tasks.md")),
];

/// Returns the lines of a page inside fences of these languages, and its other lines.
fn split_page<'a>(page: &'a str, languages: &[&str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut fenced, mut other, mut language) = (Vec::new(), Vec::new(), None);
    for line in page.lines() {
        match (line.strip_prefix("```"), language) {
            (Some(name), None) => language = Some(name),
            (Some(_), Some(_)) => language = None,
            (None, Some(name)) if languages.contains(&name) => fenced.push(line),
            (None, Some(_)) => {}
            (None, None) => other.push(line),
        }
    }
    assert_eq!(language, None, "a fence that is not closed");
    (fenced, other)
}

/// Returns the commands of a shell's line as their words, without redirections. Enough of a shell for these pages: quotes, comments, pipes,
/// lists, and commands whose output is taken.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        let ends_command = quote.is_none() && matches!(c, '|' | '&' | ';' | '(' | ')' | '<' | '>');
        match (quote, c) {
            // What is in the parentheses is a command of its own, also inside of quotes.
            (None | Some('"'), '$') if characters.peek() == Some(&'(') => {
                characters.next();
                quote = None;
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() || ends_command => {
                words.extend(word.take());
                if ends_command {
                    commands.push(std::mem::take(&mut words));
                }
                // A file that is read or written is no program.
                if matches!(c, '<' | '>') {
                    words.push(c.to_string());
                }
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    commands.push(words);
    commands
}

/// Returns its words from `tracer` on, if this is a command line of tracer's.
fn of_tracer(words: &[String]) -> Option<&[String]> {
    let at = words.iter().position(|word| !word.contains('='))?;
    let program = words[at].rsplit('/').next()?;
    (program == "tracer").then(|| &words[at..])
}

#[test]
fn every_command_line_in_the_pages_is_taken() {
    let mut count = 0;
    for (page, text) in PAGES {
        let (shell, _) = split_page(text, &["console"]);
        let (units, _) = split_page(text, &["ini"]);
        let of_shell = shell.into_iter().filter_map(|line| line.strip_prefix("$ "));
        let of_units = units.into_iter().filter_map(|line| Some(line.strip_prefix("Exec")?.split_once('=')?.1));
        for line in of_shell.chain(of_units) {
            for words in commands_of(line) {
                let Some(words) = of_tracer(&words) else { continue };
                count += 1;
                if let Err(error) = Cli::command().try_get_matches_from(words) {
                    assert!(!error.use_stderr(), "{page}: `{line}`: {error}");
                }
            }
        }
    }
    assert!(count > 40, "{count} command lines were found");
}

/// Finds the command that the words name, and the words behind it. Of `list tasks|workers` each is one.
fn named<'a>(command: &'a Command, words: &[String]) -> Result<Vec<(&'a Command, usize)>, String> {
    let Some(word) = words.first() else { return Ok(vec![(command, 0)]) };
    if !command.has_subcommands() || command.get_name() == "help" || word.starts_with(['-', '…']) {
        return Ok(vec![(command, 0)]);
    }
    let mut all = Vec::new();
    for name in word.split('|') {
        let found = command.find_subcommand(name).filter(|found| !found.is_hide_set() || name == "help");
        let found = found.ok_or_else(|| format!("`{}` has no `{name}`", command.get_name()))?;
        all.extend(named(found, &words[1..])?.into_iter().map(|(command, used)| (command, used + 1)));
    }
    Ok(all)
}

fn long_flags(command: &Command) -> BTreeSet<String> {
    let visible = command.get_arguments().filter(|argument| argument.get_long().is_some());
    visible
        .flat_map(|argument| {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            argument.get_long().into_iter().chain(aliases).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

fn all_flags(command: &Command, all: &mut BTreeSet<String>) {
    all.extend(long_flags(command));
    command.get_subcommands().for_each(|command| all_flags(command, all));
}

/// Returns the texts in backticks of lines outside of fences.
fn code_in(lines: &[&str]) -> Vec<String> {
    let lines = lines.iter().map(|line| line.replace("\\|", "|"));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn every_command_and_flag_in_the_text_of_the_pages_exists() {
    let mut tracer = Cli::command();
    tracer.build();
    let mut known = BTreeSet::new();
    all_flags(&tracer, &mut known);
    // Flags of cargo and other programs.
    known.extend(
        ["workspace", "no-deps", "open", "path", "release", "bench", "profile", "all", "check"].map(str::to_owned),
    );
    let mut count = 0;
    for (page, text) in PAGES {
        let (_, lines) = split_page(text, &[]);
        for code in code_in(&lines) {
            let words: Vec<String> = code.split_whitespace().map(str::to_owned).collect();
            if code == tracer_core::names::JOB_SPAN {
                continue;
            }
            if words.first().is_some_and(|word| word == "tracer") && words.len() > 1 {
                if let Err(error) = Cli::command().try_get_matches_from(commands_of(&code).concat()) {
                    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
                    let has_placeholder =
                        words.iter().any(|word| word.contains(|c: char| c.is_ascii_uppercase() || c == '|'));
                    assert!(has_placeholder || !is_value, "{page}: `{code}`: {error}");
                }
                let found = named(&tracer, &words[1..]).unwrap_or_else(|problem| panic!("{page}: `{code}`: {problem}"));
                for (command, used) in found {
                    let own = words[1 + used..].iter().take_while(|word| *word != "--");
                    for flag in own.filter_map(|word| word.strip_prefix("--")) {
                        let name = flag.split('=').next().unwrap_or(flag);
                        assert!(long_flags(command).contains(name), "{page}: `{code}`: no `--{name}`");
                        count += 1;
                    }
                }
            } else if let Some(flag) = code.strip_prefix("--") {
                let name = flag.split([' ', '=']).next().unwrap_or(flag);
                assert!(name.is_empty() || known.contains(name), "{page}: no command has `--{name}`");
                count += 1;
            }
        }
    }
    assert!(count > 80, "{count} flags were found");
}

/// Every command that a user may call, as words behind `tracer`.
fn leaves(command: &Command, path: &str, all: &mut Vec<String>) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let path = format!("{path} {}", sub.get_name());
        match sub.has_subcommands() {
            true => leaves(sub, &path, all),
            false => all.push(path),
        }
    }
}

#[test]
fn the_tables_of_the_readme_and_the_guide_name_every_command() {
    let mut all = Vec::new();
    leaves(&Cli::command(), "tracer", &mut all);
    for (page, text) in [("README.md", README), ("commands.md", COMMANDS)] {
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with("| `tracer ")).collect();
        let codes = code_in(&table);
        for command in &all {
            let (group, verb) = command.rsplit_once(' ').expect("a command has two words");
            // `tracer list tasks|actors` names both.
            let is_named = codes.iter().any(|code| {
                code == command
                    || code.starts_with(&format!("{command} "))
                    || code.strip_prefix(group).is_some_and(|rest| {
                        rest.split_whitespace().next().is_some_and(|words| words.split('|').any(|word| word == verb))
                    })
            });
            assert!(is_named, "{page} does not name `{command}`");
        }
    }
}

#[test]
fn examples_in_the_help_fit_80_columns() {
    fn wide_lines(command: &Command, found: &mut Vec<String>) {
        let texts = [command.get_after_help(), command.get_after_long_help()].into_iter().flatten();
        for text in texts.map(ToString::to_string) {
            let wide = text.lines().filter(|line| line.chars().count() > 80);
            found.extend(wide.map(|line| format!("{}: {line}", command.get_name())));
        }
        command.get_subcommands().for_each(|command| wide_lines(command, found));
    }
    let mut found = Vec::new();
    wide_lines(&Cli::command(), &mut found);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_readme_is_short() {
    assert!(README.lines().count() <= 150, "{} lines", README.lines().count());
}

#[test]
fn the_guide_has_the_exit_codes_of_the_help() {
    for line in exit::HELP.lines().skip(1) {
        let (code, meaning) = line.trim().split_once("  ").expect("a code and its meaning");
        assert!(COMMANDS.contains(&format!("| {code} | {meaning} |")), "commands.md does not say `{code} {meaning}`");
    }
}

#[test]
fn the_guide_has_every_setting_of_start_with_its_variable() {
    let tracer = Cli::command();
    let start = tracer.find_subcommand("start").expect("it is there");
    let rows: Vec<&str> = CONFIGURATION.lines().filter(|line| line.starts_with("| `")).collect();
    for argument in start.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let (Some(long), Some(variable)) = (argument.get_long(), argument.get_env()) else { continue };
        if long == "config" {
            continue;
        }
        assert!(!matches!(argument.get_action(), ArgAction::SetTrue), "`--{long}` has a variable and takes no value");
        let ending = format!("| `--{long}` | `{}` |", variable.to_string_lossy());
        assert!(rows.iter().any(|row| row.ends_with(&ending)), "configuration.md has no row that ends with {ending}");
    }
    let variables = code_in(&rows);
    let known: BTreeSet<_> = start.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
    for variable in variables.iter().filter(|code| code.starts_with("TRACER_")) {
        assert!(known.contains(variable.as_str()), "no flag of `tracer start` has `{variable}`");
    }
}

#[test]
fn the_configuration_file_in_the_guide_is_read_and_has_every_key() {
    let (lines, _) = split_page(CONFIGURATION, &["toml"]);
    let text = lines.join("\n");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("tracer.toml");
    std::fs::write(&path, &text).expect("the folder is ours");
    let overrides = tracer_settings::Overrides { config: Some(path), ..Default::default() };
    let settings = tracer_settings::load(overrides).expect("the file is right");
    assert_eq!((settings.num_workers, settings.max_processes), (4, 20));
    let (mut table, mut keys) = (String::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, _)) = line.split_once(" = ") {
            keys.insert(format!("{table}{key}"));
        }
    }
    for row in CONFIGURATION.lines().filter(|line| line.starts_with("| `") && line.contains("| `--")) {
        let key = row.split('`').nth(1).expect("a row begins with its key");
        assert!(keys.contains(key) || key == "tracing.exporter", "the file does not show `{key}`");
    }
}
