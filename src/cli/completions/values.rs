//! Values that a shell offers: what the head knows, and what modules hold.
//!
//! Without a head there are none of its values. A module is loaded when its name stands on the command line, and no other one is.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Arg, Command};
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use tracer_client::driver::Driver;
use tracer_host::hook::{Module, ModuleDescription, SearchPath, builtin_names};
use tracer_ipc::environment::{TEMP_DIR_VARIABLE, default_temp_dir};
use tracer_ipc::protocol::{Query, Reply, TaskFilter};
use tracer_settings::MODULE_PATH_VARIABLE;

use super::super::modules::split_paths;
use super::super::serve;

/// Most tasks that are offered: the newest.
const TASKS: usize = 50;

/// Place and folders of modules that the command line or the environment names, and its words.
struct Asked {
    temp_dir: PathBuf,
    module_path: Option<OsString>,
    words: Vec<String>,
}

type Values = Vec<(String, String)>;

/// Adds values to the arguments of a command and its subcommands. `words` are those of the command line.
pub(super) fn completed(command: Command, words: &[OsString]) -> Command {
    let of_flag = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).filter(|word| !word.is_empty()).cloned()
    };
    let of_variable = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    let asked = Asked {
        temp_dir: of_flag("--temp-dir")
            .or_else(|| of_variable(TEMP_DIR_VARIABLE))
            .map_or_else(default_temp_dir, PathBuf::from),
        module_path: of_flag("--module-path").or_else(|| of_variable(MODULE_PATH_VARIABLE)),
        words: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    with_values(command, "", &Arc::new(asked))
}

fn with_values(command: Command, path: &str, asked: &Arc<Asked>) -> Command {
    let named: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(|argument| with_values_of(argument, path, asked));
    named.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| with_values(sub, format!("{path} {name}").trim_start(), asked))
    })
}

/// Returns the argument with its values, by the name that its value has in the help.
fn with_values_of(argument: Arg, path: &str, asked: &Arc<Asked>) -> Arg {
    let value = argument.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
    let long = argument.get_long().unwrap_or_default();
    let values: fn(&Asked, &str) -> Values = match (path, long, value.as_deref().unwrap_or_default()) {
        ("logs", "", _) => |asked, _| [tasks(asked), actors(asked), replicas(asked)].concat(),
        ("get" | "wait" | "explain" | "cancel", "", "ID") => |asked, _| [tasks(asked), actors(asked)].concat(),
        ("submit task", "", "MODULE:FUNCTION") => |asked, word| of_module(asked, word, functions),
        ("submit actor", "", "MODULE:TYPE") => |asked, word| of_module(asked, word, types),
        ("submit call", "", "ACTOR") => |asked, _| actors(asked),
        ("submit call", "", "METHOD") => |asked, _| methods(asked),
        ("modules show", "", _) => |asked, _| modules(asked, ""),
        (_, _, "MODULE:ATTRIBUTE") => |asked, word| of_module(asked, word, hooks),
        ("serve run" | "serve build", "", "MODULE:NAME") => |asked, _| modules(asked, ":"),
        ("serve status" | "serve config" | "serve history" | "serve rollback" | "serve shutdown", "service", _) => {
            |asked, _| services(asked)
        }
        (path, "queue", _) if path.starts_with("submit") => |asked, _| queues(asked),
        (path, "", "TRACE") if path.starts_with("trace") => |_, _| vec![("last".to_owned(), String::new())],
        _ => return argument,
    };
    let asked = Arc::clone(asked);
    argument.add(ArgValueCompleter::new(move |current: &OsStr| {
        let Some(current) = current.to_str() else { return Vec::new() };
        let found = values(&asked, current).into_iter().filter(|(value, _)| value.starts_with(current));
        let candidate = |(value, help): (String, String)| {
            CompletionCandidate::new(value).help((!help.is_empty()).then(|| help.into()))
        };
        found.map(candidate).collect()
    }))
}

fn ask(asked: &Asked, query: &Query) -> Option<Reply> {
    Driver::connect(&asked.temp_dir).ok()?.query(query).ok()
}

fn tasks(asked: &Asked) -> Values {
    let query = Query::Tasks { limit: TASKS, which: TaskFilter::default(), before: None };
    let Some(Reply::Tasks(list)) = ask(asked, &query) else { return Values::new() };
    list.tasks.iter().map(|task| (task.id.to_string(), format!("{} {}", task.target, task.state))).collect()
}

fn actors(asked: &Asked) -> Values {
    let Some(Reply::Actors(actors)) = ask(asked, &Query::Actors) else { return Values::new() };
    let value = |actor: tracer_ipc::protocol::ActorReport| {
        let help = format!("{}:{} {}", actor.module, actor.type_name, actor.state);
        (actor.name.unwrap_or_else(|| actor.id.to_string()), help)
    };
    actors.into_iter().map(value).collect()
}

fn methods(asked: &Asked) -> Values {
    let Some(Reply::Actors(actors)) = ask(asked, &Query::Actors) else { return Values::new() };
    let is_named = |word: &String, actor: &tracer_ipc::protocol::ActorReport| {
        actor.name.as_ref() == Some(word) || *word == actor.id.to_string()
    };
    let Some(actor) = actors.iter().find(|actor| asked.words.iter().any(|word| is_named(word, actor))) else {
        return Values::new();
    };
    let Some(module) = load(asked, &actor.module) else { return Values::new() };
    let of_type = module.actors.into_iter().find(|described| described.name == actor.type_name);
    let methods = of_type.into_iter().flat_map(|described| described.methods);
    methods
        .map(|method| {
            let name = method.name.rsplit('.').next().unwrap_or_default().to_owned();
            (name, first_line(&method.doc))
        })
        .collect()
}

fn services(asked: &Asked) -> Values {
    let Ok(mut driver) = Driver::connect(&asked.temp_dir) else { return Values::new() };
    let services = serve::services(&mut driver, None).unwrap_or_default();
    services.into_iter().map(|service| (service.name, service.url)).collect()
}

fn replicas(asked: &Asked) -> Values {
    let Ok(mut driver) = Driver::connect(&asked.temp_dir) else { return Values::new() };
    let services = serve::services(&mut driver, None).unwrap_or_default();
    let replicas = services.into_iter().flat_map(|service| service.replicas);
    replicas.map(|replica| (replica.name, replica.service)).collect()
}

fn queues(asked: &Asked) -> Values {
    let Some(Reply::Status(status)) = ask(asked, &Query::Status) else { return Values::new() };
    let queues = status.engine.into_iter().flat_map(|engine| engine.queues);
    queues.map(|(name, _)| (name, String::new())).collect()
}

/// Returns the folders of modules: those that are named; else the head's, if one runs.
fn search(asked: &Asked) -> SearchPath {
    match split_paths(asked.module_path.as_ref()) {
        Some(module_path) => SearchPath { module_path, is_complete: false },
        None => match Driver::connect(&asked.temp_dir) {
            Ok(driver) => SearchPath { module_path: driver.welcome().module_folders.clone(), is_complete: true },
            Err(_) => SearchPath::default(),
        },
    }
}

/// Returns the names of modules, each with `end`. They are not loaded, so some are libraries of another kind.
fn modules(asked: &Asked, end: &str) -> Values {
    let mut names = search(asked).libraries();
    names.extend(builtin_names().map(String::from));
    names.sort();
    names.dedup();
    names.into_iter().map(|name| (format!("{name}{end}"), String::new())).collect()
}

fn load(asked: &Asked, module: &str) -> Option<ModuleDescription> {
    Module::load(&search(asked), module).ok().map(|module| module.describe())
}

/// Returns modules up to the colon; behind it, what the module before it holds.
fn of_module(asked: &Asked, word: &str, held: fn(ModuleDescription) -> Values) -> Values {
    let Some((module, _)) = word.rsplit_once(':') else { return modules(asked, ":") };
    let held = load(asked, module).map(held).unwrap_or_default();
    held.into_iter().map(|(name, doc)| (format!("{module}:{name}"), first_line(&doc))).collect()
}

fn functions(module: ModuleDescription) -> Values {
    module.tasks.into_iter().map(|task| (task.name, task.doc)).collect()
}

fn types(module: ModuleDescription) -> Values {
    module.actors.into_iter().map(|actor| (actor.name, actor.doc)).collect()
}

fn hooks(module: ModuleDescription) -> Values {
    module.hooks.into_iter().map(|hook| (hook.name, hook.doc)).collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
