//! `tracer completions`: what a shell offers at the Tab key, generated from the arguments that are parsed.
//!
//! The scripts of bash, zsh and fish ask `tracer complete` each time, so that values are offered too ([`values`]). Those of other shells are written by
//! clap, with commands and flags.

mod values;

use std::ffi::OsString;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::{CompletionCandidate, complete};
use tracer_core::exit;

use super::{Cli, CommandResult, report};

/// Print a script with which a shell completes commands, flags and values
///
/// In bash, zsh and fish ids of tasks, names of actors, services and queues, modules and their functions are completed too, where a head runs. The scripts of
/// elvish and PowerShell have the commands and flags of this version: write them again after an upgrade, and start a new shell.
#[derive(clap::Args)]
#[command(after_help = "\
Where it goes:
  bash        ~/.local/share/bash-completion/completions/tracer
              (with the package bash-completion)
  zsh         _tracer in a folder of $fpath, such as ~/.zfunc, with
              `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc
  fish        ~/.config/fish/completions/tracer.fish
  elvish      in ~/.config/elvish/rc.elv:
              eval (tracer completions elvish | slurp)
  powershell  in $PROFILE:
              tracer completions powershell | Out-String | Invoke-Expression

Example:
  tracer completions bash > \\
    ~/.local/share/bash-completion/completions/tracer")]
pub(super) struct Args {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> CommandResult {
    report::raw(&script(args.shell));
    Ok(exit::OK)
}

/// The words of a command line that a shell completes, as its script calls it.
#[derive(clap::Args)]
pub(super) struct CompleteArgs {
    /// The words from `tracer` on; the last one is completed
    #[arg(last = true)]
    words: Vec<OsString>,
}

/// Prints what the last word may be, a candidate a line, each with a tab and what it is. Nothing is said of what goes wrong: somebody is typing.
pub(super) fn run_complete(args: &CompleteArgs) -> CommandResult {
    let Some(last) = args.words.len().checked_sub(1) else { return Ok(exit::OK) };
    let mut command = values::completed(visible(&Cli::command()), &args.words);
    let folder = std::env::current_dir().ok();
    let candidates = complete(&mut command, args.words.clone(), last, folder.as_deref()).unwrap_or_default();
    let mut text = String::new();
    // Flags are for whoever has typed a dash.
    let has_dash = args.words[last].as_encoded_bytes().starts_with(b"-");
    let is_meant = |candidate: &&CompletionCandidate| {
        let is_flag = candidate.get_value().as_encoded_bytes().starts_with(b"-");
        !candidate.is_hide_set() && (has_dash || !is_flag)
    };
    for candidate in candidates.iter().filter(is_meant) {
        text.push_str(&candidate.get_value().to_string_lossy());
        if let Some(help) = candidate.get_help() {
            text.push('\t');
            text.push_str(help.to_string().lines().next().unwrap_or_default());
        }
        text.push('\n');
    }
    report::raw(text.as_bytes());
    Ok(exit::OK)
}

/// Returns the shell's script.
fn script(shell: Shell) -> Vec<u8> {
    match shell {
        Shell::Bash => return include_bytes!("completions/tracer.bash.txt").to_vec(),
        Shell::Zsh => return include_bytes!("completions/tracer.zsh.txt").to_vec(),
        Shell::Fish => return include_bytes!("completions/tracer.fish.txt").to_vec(),
        _ => {}
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&Cli::command()), "tracer", &mut script);
    script
}

/// Copies a command without hidden subcommands and flags, which scripts would offer.
fn visible(command: &clap::Command) -> clap::Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(visible);
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(command.get_name().to_owned()).about(about).args(arguments).subcommands(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the candidates for the last word.
    fn offered(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let mut command = values::completed(visible(&Cli::command()), &words);
        let last = words.len() - 1;
        let candidates = complete(&mut command, words, last, None).expect("it needs nothing");
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn flags_commands_and_values_are_offered_and_nothing_hidden() {
        for command in ["", "fin"] {
            let offered = offered(&["tracer", command]);
            assert!(!offered.iter().any(|word| ["finish-place", "head", "complete"].contains(&&**word)), "{offered:?}");
        }
        assert!(offered(&["tracer", ""]).contains(&"submit".to_owned()));
        assert_eq!(offered(&["tracer", "start", "--tracing-st"]), ["--tracing-startup-hook"]);
        assert_eq!(offered(&["tracer", "status", "--format", "j"]), ["json"]);
        // What is built in needs neither a head nor a file.
        assert!(offered(&["tracer", "submit", "task", "dem"]).contains(&"demo:".to_owned()));
        assert_eq!(offered(&["tracer", "submit", "task", "demo:"]), ["demo:my_function"]);
        let hook = "console:setup_tracing".to_owned();
        assert!(offered(&["tracer", "start", "--tracing-startup-hook", "console:"]).contains(&hook));
    }

    #[test]
    fn every_shell_is_offered_every_command_and_flag_that_is_not_hidden() {
        let mut words = Vec::new();
        words_of(&Cli::command(), &mut words);
        assert!(words.contains(&"tracing-startup-hook".to_owned()) && words.contains(&"stats".to_owned()), "{words:?}");
        for shell in [Shell::Elvish, Shell::PowerShell] {
            let script = String::from_utf8(script(shell)).expect("a script is text");
            for word in &words {
                assert!(script.contains(word), "{shell} is not offered `{word}`");
            }
            for hidden in ["finish-place", "embedded", "session_dir"] {
                assert!(!script.contains(hidden), "{shell} is offered `{hidden}`");
            }
        }
    }

    /// Collects the visible commands and flags.
    fn words_of(command: &clap::Command, words: &mut Vec<String>) {
        let flags = command.get_arguments().filter(|argument| !argument.is_hide_set());
        words.extend(flags.filter_map(|flag| flag.get_long().map(str::to_owned)));
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            words.push(command.get_name().to_owned());
            words_of(command, words);
        }
    }
}
