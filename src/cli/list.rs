//! `tracer list`.

mod tasks;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use tracer_client::driver::Driver;
use tracer_core::clock::{now_unix_nano, parse_rfc3339};
use tracer_core::count::{Count, Elapsed};
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_core::task::Amounts;
use tracer_host::hook::{HookContract, Module, ModuleDescription};
use tracer_ipc::protocol::{ActorReport, Query, Reply, TaskFilter, TaskState, WorkerReport};

use self::tasks::Chosen;
use super::connect::{ask, unexpected_reply};
use super::modules::{Found, SearchArgs, SearchedAs};
use super::parse::check_query;
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, cluster, report, serve};

/// List tasks, actors, workers, nodes, services, deployments, replicas, modules or hooks
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer list tasks --limit 20")]
pub(super) struct Args {
    #[command(subcommand)]
    kind: ListedKind,
}

impl Args {
    /// Returns whether it loads modules to list what is in them.
    pub(super) fn loads_modules(&self) -> bool {
        matches!(self.kind, ListedKind::Modules { .. } | ListedKind::Hooks { .. })
    }
}

#[derive(Subcommand)]
enum ListedKind {
    /// List tasks, newest first
    #[command(
        after_help = "Example:\n  tracer list tasks --limit 20\n  tracer list tasks --state failed --state cancelled --since 1h\n  tracer list tasks 'error name:count attempt>1'\n  tracer list tasks --summary"
    )]
    Tasks {
        /// Only tasks that a question finds, in the language of `tracer trace list`: `state:failed name:count attempt>1 since:10m`
        #[arg(value_name = "QUERY", allow_hyphen_values = true)]
        query: Vec<String>,
        /// Maximum number of tasks to show
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Show functions instead: their tasks by state, run times, and the longest wait
        #[arg(long, conflicts_with = "limit")]
        summary: bool,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List actors, newest first
    #[command(after_help = "Example:\n  tracer list actors --format json | jq '.actors[].state'")]
    Actors {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List worker processes
    #[command(after_help = "Example:\n  tracer list workers --format json | jq '.workers[].pid'")]
    Workers {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List nodes that share the engine of the head, and its queues
    ///
    /// A node is alive if it was heard in the last 10 s. Those that are silent are listed for seven days.
    #[command(
        after_help = "Example:\n  tracer list nodes\n  tracer list nodes --format json | jq '.queues[] | select(.served_by == [])'"
    )]
    Nodes {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List services
    #[command(after_help = "Example:\n  tracer list services --format json | jq '.services[].url'")]
    Services {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List deployments of services
    #[command(after_help = "Example:\n  tracer list deployments")]
    Deployments {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List replicas of deployments
    #[command(after_help = "Example:\n  tracer list replicas --format json | jq '.replicas[].log'")]
    Replicas {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List modules that can be found by name
    #[command(after_help = "Example:\n  tracer list modules --module-path target/debug")]
    Modules {
        #[command(flatten)]
        search: SearchArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List tracing hooks of modules that can be found by name
    #[command(after_help = "Example:\n  tracer list hooks")]
    Hooks {
        #[command(flatten)]
        search: SearchArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// Chooses tasks: those that meet all that is said.
#[derive(clap::Args)]
struct FilterArgs {
    /// In this state; may be repeated, for any of several
    #[arg(long, value_name = "STATE", value_parser = state_parser())]
    state: Vec<TaskState>,
    /// Submitted with a --name that fits; `*` stands for any text, `?` for any character. QUERY has `name:` for functions too
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// With a function or actor of a module that fits; `*` and `?` as for --name
    #[arg(long, value_name = "PATTERN")]
    module: Option<String>,
    /// Submitted since: a duration before now, such as 10m, or a time, such as 2026-11-20T19:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    since: Option<u64>,
}

fn state_parser() -> impl TypedValueParser<Value = TaskState> {
    PossibleValuesParser::new(TaskState::ALL.map(TaskState::name))
        .map(|name| TaskState::ALL.into_iter().find(|state| state.name() == name).expect("it is one of their names"))
}

/// Nanoseconds since the Unix epoch.
fn parse_since(text: &str) -> Result<u64, String> {
    if let Some(time) = parse_rfc3339(text) {
        return Ok(time);
    }
    let before = parse_duration(text).map_err(|_| {
        "expected a duration before now, such as `30s`, `10m` or `2h`, or a time as RFC 3339 writes it, such as \
         `2026-11-20T19:00:00Z`"
            .to_owned()
    })?;
    let before = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
    Ok(now_unix_nano().saturating_sub(before))
}

impl FilterArgs {
    fn filter(&self) -> TaskFilter {
        TaskFilter {
            states: self.state.clone(),
            name: self.name.clone(),
            module: self.module.clone(),
            since_unix_nano: self.since,
            trace_id: None,
        }
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.kind {
        ListedKind::Tasks { query, limit, summary, filter, place, format } => {
            check_query("tracer list tasks", query)?;
            let question = tracer_trace::Query::parse_for_tasks(&query.join(" "), now_unix_nano())
                .map_err(|error| CommandError::new(exit::USAGE, error))?;
            let driver = Driver::connect(&place.temp_dir())?;
            if *summary {
                let summary = tasks::summary(Chosen::new(driver, filter.filter(), question, None))?;
                report::value(format.format, &tracer_trace::json::with_times(&summary), |_| {
                    tasks::render_summary(&summary, now_unix_nano())
                });
            } else {
                tasks::list(Chosen::new(driver, filter.filter(), question, Some(*limit)), format.format)?;
            }
        }
        ListedKind::Actors { place, format } => {
            let Reply::Actors(actors) = ask(place, &Query::Actors)? else { return Err(unexpected_reply()) };
            let report = tracer_trace::json::with_times(&json!({ "actors": actors }));
            report::value(format.format, &report, |_| render_actors(&actors));
        }
        ListedKind::Workers { place, format } => {
            let Reply::Workers(workers) = ask(place, &Query::Workers)? else { return Err(unexpected_reply()) };
            let report = tracer_trace::json::with_times(&json!({ "workers": workers }));
            report::value(format.format, &report, |_| render_workers(&workers));
        }
        ListedKind::Nodes { place, format } => {
            let Reply::Cluster(found) = ask(place, &Query::Cluster)? else { return Err(unexpected_reply()) };
            let cluster = found.map_err(|why| CommandError::new(exit::FAILED, why))?;
            report::value(format.format, &*cluster, cluster::render);
        }
        ListedKind::Services { place, format } => {
            let services = serve::list(place)?;
            let report = tracer_trace::json::with_times(&json!({ "services": services }));
            report::value(format.format, &report, |_| serve::services_table(&services));
        }
        ListedKind::Deployments { place, format } => {
            let rows: Vec<_> = serve::list(place)?.into_iter().flat_map(|service| service.deployments).collect();
            report::value(format.format, &json!({ "deployments": rows }), |_| serve::deployments_table(&rows));
        }
        ListedKind::Replicas { place, format } => {
            let rows: Vec<_> = serve::list(place)?.into_iter().flat_map(|service| service.replicas).collect();
            let report = tracer_trace::json::with_times(&json!({ "replicas": rows }));
            report::value(format.format, &report, |_| serve::replicas_table(&rows));
        }
        ListedKind::Modules { search, format } => {
            let modules = modules(search);
            report::value(format.format, &json!({ "modules": modules }), |_| render_modules(&modules));
        }
        ListedKind::Hooks { search, format } => {
            let hooks = hooks(search);
            report::value(format.format, &json!({ "hooks": hooks }), |_| render_hooks(&hooks));
        }
    }
    Ok(exit::OK)
}

/// Returns the slots and resources that a worker's tasks have.
fn has(worker: &WorkerReport) -> String {
    let resources: Vec<_> = worker.resources.iter().map(|(name, &amount)| (name.as_str(), amount)).collect();
    match (worker.cpus, resources.is_empty()) {
        (0, true) => String::new(),
        (0, false) => Amounts(&resources).to_string(),
        (cpus, true) => Count(cpus, "cpu").to_string(),
        (cpus, false) => format!("{}, {}", Count(cpus, "cpu"), Amounts(&resources)),
    }
}

/// Returns a text of several lines in one, for a table.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn render_actors(actors: &[ActorReport]) -> String {
    report::table(
        ["ID", "NAME", "ACTOR", "STATE", "WORKER", "PID", "RESTARTS", "CALLS", "AGE", "WHY"],
        actors.iter().map(|actor| {
            [
                actor.id.to_string(),
                actor.name.clone().unwrap_or_default(),
                format!("{}:{}", actor.module, actor.type_name),
                format!("{}{}", actor.state, if actor.is_outdated { " (older build)" } else { "" }),
                actor.worker_id.map(|worker| worker.to_string()).unwrap_or_default(),
                actor.worker_pid.map(|pid| pid.to_string()).unwrap_or_default(),
                format!("{} of {}", actor.restarts, actor.max_restarts),
                (actor.calls_waiting + actor.calls_leased).to_string(),
                Elapsed::from_nanos(now_unix_nano().saturating_sub(actor.created_unix_nano)).to_string(),
                one_line(actor.reason.as_deref().unwrap_or_default()),
            ]
        }),
    )
}

fn render_workers(workers: &[WorkerReport]) -> String {
    report::table(
        ["ID", "PID", "STATE", "UP", "TASK", "REPLICA", "HAS", "ENDED", "SPANS"],
        workers.iter().map(|worker| {
            [
                worker.id.to_string(),
                worker.pid.to_string(),
                worker.state.to_string(),
                Elapsed::from_nanos(worker.uptime_ns).to_string(),
                worker.task.map(|task| task.to_string()).unwrap_or_default(),
                worker.replica.clone().unwrap_or_default(),
                has(worker),
                worker.tasks_ended.to_string(),
                worker.tracing.clone(),
            ]
        }),
    )
}

/// Returns every library in the folders that is a module, and those built in. What is no module is not mentioned.
fn modules(search: &SearchArgs) -> Vec<Found> {
    let (search, searched_as) = search.search_path();
    let mut names = search.libraries();
    names.extend(tracer_host::hook::builtin_names().map(String::from));
    names.sort();
    names.dedup();
    let found = |module: Module| Found { module: module.describe(), searched_as: searched_as.clone() };
    names.iter().filter_map(|name| Module::load(&search, name).ok()).map(found).collect()
}

/// Says who was asked where modules are.
fn line(searched_as: Option<&SearchedAs>) -> String {
    searched_as.map(|searched_as| format!("found {}\n", searched_as.line())).unwrap_or_default()
}

fn render_modules(modules: &[Found]) -> String {
    let searched_as = line(modules.first().map(|found| &found.searched_as));
    let table = report::table(
        ["MODULE", "VERSION", "TASKS", "ACTORS", "HOOKS", "LIBRARY"],
        modules.iter().map(|Found { module, .. }| {
            [
                module.name.clone(),
                module.version.clone(),
                module.tasks.len().to_string(),
                module.actors.len().to_string(),
                module.hooks.len().to_string(),
                place(module),
            ]
        }),
    );
    table + &searched_as
}

fn place(module: &ModuleDescription) -> String {
    module.library.as_ref().map_or_else(|| "built in".into(), |path| path.display().to_string())
}

/// A row of `list hooks`.
#[derive(serde::Serialize)]
struct HookRow {
    hook: String,
    contract: HookContract,
    summary: String,
    library: Option<std::path::PathBuf>,
    searched_as: SearchedAs,
}

fn hooks(search: &SearchArgs) -> Vec<HookRow> {
    modules(search)
        .into_iter()
        .flat_map(|Found { module, searched_as }| {
            let library = module.library;
            module.hooks.into_iter().map(move |hook| HookRow {
                hook: format!("{}:{}", module.name, hook.name),
                contract: hook.contract,
                summary: hook.doc.lines().next().unwrap_or_default().to_owned(),
                library: library.clone(),
                searched_as: searched_as.clone(),
            })
        })
        .collect()
}

fn render_hooks(hooks: &[HookRow]) -> String {
    let row = |hook: &HookRow| [hook.hook.clone(), hook.contract.to_string(), hook.summary.clone()];
    let table = report::table(["HOOK", "IS A", "WHAT IT DOES"], hooks.iter().map(row));
    table + &line(hooks.first().map(|hook| &hook.searched_as))
}
