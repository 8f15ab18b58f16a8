//! `tracer modules`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;

use super::{CommandError, CommandResult, FormatArgs, report};
use crate::exit;
use crate::hook::{Module, ModuleDescription, ParameterDescription, SearchPath, TaskDescription};

/// Look into modules
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer modules show wordcount")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show a module's tasks and actors with their parameters, its hooks and its versions
    #[command(after_help = "Example:\n  tracer modules show wordcount")]
    Show {
        /// The module's name, or the path of its library
        module: String,
        #[command(flatten)]
        search: SearchArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// Where modules are looked for.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SearchArgs {
    /// Folders to look in first, separated by colons; then beside tracer, in ../lib/tracer, and built in
    #[arg(long, value_name = "DIRS", env = crate::config::MODULE_PATH_VARIABLE)]
    module_path: Option<OsString>,
}

impl SearchArgs {
    pub(super) fn search_path(&self) -> SearchPath {
        SearchPath { module_path: split_paths(self.module_path.as_ref()).unwrap_or_default() }
    }
}

/// The folders of a list separated by colons; none for an empty list.
pub(super) fn split_paths(list: Option<&OsString>) -> Option<Vec<PathBuf>> {
    list.filter(|list| !list.is_empty()).map(|list| std::env::split_paths(list).collect())
}

pub(super) fn run(args: &Args) -> CommandResult {
    let What::Show { module, search, format } = &args.what;
    let module = Module::load(&search.search_path(), module).map_err(|error| CommandError::new(exit::FAILED, error))?;
    report::value(format.format, &module.describe(), render);
    Ok(exit::OK)
}

fn render(module: &ModuleDescription) -> String {
    let library = module.library.as_ref().map_or_else(|| "built in".into(), |path| path.display().to_string());
    let mut text = report::fields(&[
        ("module", module.name.clone()),
        ("library", library),
        ("version", module.version.clone()),
        ("built by", format!("{}, ABI {}", module.producer, module.abi)),
    ]);
    for task in &module.tasks {
        text.push_str(&format!("\n{}\n{}", signature(task), indented(&task.doc)));
    }
    for actor in &module.actors {
        text.push_str(&format!("\nactor {}:{}\n{}", module.name, actor.name, indented(&actor.doc)));
        for method in actor.creation.iter().chain(&actor.methods) {
            let doc = indented(&indented(&method.doc));
            text.push_str(&format!("    {}\n{doc}", signature(method)));
        }
    }
    for hook in &module.hooks {
        text.push_str(&format!("\n{} {}:{}\n{}", hook.contract, module.name, hook.name, indented(&hook.doc)));
    }
    text
}

fn signature(task: &TaskDescription) -> String {
    let parameters: Vec<_> = task.parameters.iter().map(parameter).collect();
    let kind = match (task.name.contains('.'), task.is_async) {
        // A method of an actor.
        (true, _) if task.is_concurrent => "concurrent",
        (_, true) => "async task",
        (_, false) => "task",
    };
    let result = if task.result_type.is_empty() { String::new() } else { format!(" -> {}", task.result_type) };
    format!("{kind} {}({}){result}", task.name, parameters.join(", "))
}

fn parameter(parameter: &ParameterDescription) -> String {
    format!("{}: {}", parameter.name, parameter.type_name)
}

fn indented(doc: &str) -> String {
    doc.lines().map(|line| if line.is_empty() { "\n".into() } else { format!("    {line}\n") }).collect()
}
