//! `tracer man`: manual pages, generated from the arguments that are parsed.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::CommandFactory;
use clap_mangen::Man;
use tracer_core::count::Count;
use tracer_core::exit;

use super::{Cli, CommandError, CommandResult, report};

/// Write the manual pages, one for each command
///
/// `man tracer-submit-task` then shows one. `man` finds them in ~/.local/share/man/man1 if ~/.local/bin is on the PATH, and in /usr/local/share/man/man1 always.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  tracer man ~/.local/share/man/man1
  tracer man | man -l -")]
pub(super) struct Args {
    /// The folder to write them to, made if it does not exist; without it the page of `tracer` itself is printed
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        page_of(Cli::command()).render(&mut page)?;
        report::raw(&page);
        return Ok(exit::OK);
    };
    let count = write(dir).map_err(|error| {
        CommandError::new(exit::FAILED, format!("manual pages cannot be written to `{}`: {error}", dir.display()))
    })?;
    report::text(&format!("wrote {} to {}", Count(count, "manual page"), dir.display()));
    Ok(exit::OK)
}

/// Writes all pages, and returns their number.
fn write(dir: &Path) -> io::Result<usize> {
    fs::create_dir_all(dir)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_page(&command, dir)
}

/// Returns the page of a command, with tracer's version at its foot.
fn page_of(command: clap::Command) -> Man {
    Man::new(command).source(format!("tracer {}", tracer_ipc::VERSION)).manual("tracer")
}

/// Writes the page of a command and those of its visible subcommands.
fn write_page(command: &clap::Command, dir: &Path) -> io::Result<usize> {
    page_of(command.clone()).generate_to(dir)?;
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
    subcommands.map(|command| write_page(command, dir)).sum::<io::Result<usize>>().map(|count| count + 1)
}
