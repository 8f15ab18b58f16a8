//! `tracer modules`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;
use serde::Serialize;
use tracer_client::driver::Driver;
use tracer_core::exit;
use tracer_host::hook::{Module, ModuleDescription, ParameterDescription, SearchPath, TaskDescription, otel_advice};
use tracer_ipc::protocol::Welcome;

use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};

/// Show the contents of modules
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer modules show wordcount")]
pub(super) struct Args {
    #[command(subcommand)]
    command: ModulesCommand,
}

#[derive(Subcommand)]
enum ModulesCommand {
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

/// Folders in which modules are looked for.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SearchArgs {
    /// Folders to look in first, separated by colons; then beside tracer, in ../lib/tracer, and built in [default: those of the running head]
    #[arg(long, value_name = "DIRS", env = tracer_settings::MODULE_PATH_VARIABLE)]
    module_path: Option<OsString>,
    /// Do not ask the running head for its folders of modules
    #[arg(long)]
    no_head: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Origin of the search path for modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(super) enum SearchedAs {
    /// The head with this process.
    Head {
        /// Its process.
        head_pid: u32,
    },
    /// This command, by its flag or its environment.
    Command,
}

impl SearchedAs {
    /// The same for people.
    pub(super) fn line(&self) -> String {
        match self {
            SearchedAs::Head { head_pid } => format!("as the head (pid {head_pid}) looks for modules"),
            SearchedAs::Command => "as this command looks for modules; no head was asked".into(),
        }
    }
}

impl SearchArgs {
    /// Returns the folders that are named here; else those of the head, if one runs.
    pub(super) fn search_path(&self) -> (SearchPath, SearchedAs) {
        let (search, searched_as) = self.searched();
        if searched_as == SearchedAs::Command {
            warn_of_missing(&search.module_path, "--module-path");
        }
        (search, searched_as)
    }

    /// Returns the arguments that say the same.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = self.no_head.then(|| "--no-head".into()).into_iter().collect::<Vec<OsString>>();
        if let Some(path) = &self.module_path {
            arguments.extend(["--module-path".into(), path.clone()]);
        }
        arguments.extend(["--temp-dir".into(), self.place.temp_dir().into()]);
        arguments
    }

    /// Does what [`Self::search_path`] does, without a warning of folders that are not there.
    pub(super) fn searched(&self) -> (SearchPath, SearchedAs) {
        let named = split_paths(self.module_path.as_ref());
        if let (None, false) = (&named, self.no_head)
            && let Ok(driver) = Driver::connect(&self.place.temp_dir())
        {
            let Welcome { module_folders, head_pid, .. } = driver.welcome().clone();
            let search = SearchPath { module_path: module_folders, is_complete: true };
            return (search, SearchedAs::Head { head_pid });
        }
        let search = SearchPath { module_path: named.unwrap_or_default(), is_complete: false };
        (search, SearchedAs::Command)
    }
}

/// Warns of folders that are not there: most probably their names are mistyped.
pub(super) fn warn_of_missing(module_path: &[PathBuf], said_by: &str) {
    for folder in module_path.iter().filter(|folder| !folder.is_dir()) {
        let what = if folder.exists() { "is not a folder" } else { "does not exist" };
        report::warning(&format!("no modules are found in `{}`: it {what} ({said_by})", folder.display()));
    }
}

/// Returns the warning of a library that others could change, which `said` describes.
pub(super) fn others_can_change_it(said: &str) -> String {
    format!("it runs with your rights, and others can change it: {said}")
}

/// Returns the folders of a list separated by colons; none for an empty list.
pub(super) fn split_paths(list: Option<&OsString>) -> Option<Vec<PathBuf>> {
    list.filter(|list| !list.is_empty()).map(|list| std::env::split_paths(list).collect())
}

pub(super) fn run(args: &Args) -> CommandResult {
    let ModulesCommand::Show { module, search, format } = &args.command;
    let (search, searched_as) = search.search_path();
    let module = Module::load(&search, module).map_err(|error| CommandError::new(exit::FAILED, error))?;
    report::value(format.format, &Found { module: module.describe(), searched_as }, render);
    Ok(exit::OK)
}

/// A module, and who says where it was found.
#[derive(Serialize)]
pub(super) struct Found {
    #[serde(flatten)]
    pub(super) module: ModuleDescription,
    pub(super) searched_as: SearchedAs,
}

fn render(Found { module, searched_as }: &Found) -> String {
    let library = module.library.as_ref().map_or_else(|| "built in".into(), |path| path.display().to_string());
    let is_built_in = module.library.is_none();
    let mut fields = vec![
        ("module", module.name.clone()),
        ("library", library),
        ("found", searched_as.line()),
        ("version", module.version.clone()),
        (
            "build",
            if is_built_in {
                format!("tracer {}", tracer_ipc::VERSION)
            } else if module.build_id.is_empty() {
                "without a build id".into()
            } else {
                module.build_id.clone()
            },
        ),
        ("built by", format!("{}, ABI {}", module.producer, module.abi)),
    ];
    if !module.unserved_opentelemetry.is_empty() {
        fields.push(("warning", otel_advice(&module.unserved_opentelemetry, &module.producer)));
    }
    fields.extend(module.changeable_by_others.as_deref().map(|said| ("warning", others_can_change_it(said))));
    let mut text = report::fields(&fields);
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
