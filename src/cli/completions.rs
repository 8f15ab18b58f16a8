//! `tracer completions`: what a shell offers at the Tab key, generated from the arguments that are parsed.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CommandResult, report};
use crate::exit;

/// Print a script with which a shell completes commands and flags
///
/// It has the commands and flags of this version: write it again after an upgrade, and start a new shell.
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

/// Returns the shell's script.
fn script(shell: Shell) -> Vec<u8> {
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
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_is_offered_every_command_and_flag_that_is_not_hidden() {
        let mut words = Vec::new();
        words_of(&Cli::command(), &mut words);
        assert!(words.contains(&"tracing-startup-hook".to_owned()) && words.contains(&"stats".to_owned()), "{words:?}");
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).expect("a script is text");
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
