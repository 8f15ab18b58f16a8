//! The user's guide: how to write and run tasks, actors, programs and hooks, and how to run a head.
//!
//! | chapter | |
//! |---|---|
//! | [`start`] | from nothing to the first trace, with completions and manual pages |
//! | [`tasks`] | functions of a module: arguments, errors, retries, limits, needs, tasks that submit tasks |
//! | [`actors`] | a state in a worker of its own |
//! | [`programs`] | Rust programs that submit tasks |
//! | [`commands`] | running programs with `tracer submit command`; all commands of `tracer`; exit codes |
//! | [`hooks`] | tracing hooks and exporters, those that are shipped, several at once |
//! | [`serving`] | functions and types of libraries behind HTTP |
//! | [`http`] | the HTTP API |
//! | [`otlp`] | OTLP over HTTP from commands and other programs: variables, files, limits, answers |
//! | [`other_programs`] | what SDKs, servers, test runners and tools do beside tracer, with versions, and what to set |
//! | [`many_machines`] | queues that several nodes share over a NATS server |
//! | [`logs`] | log records of modules: `tracing`, `log` and C, files, settings |
//! | [`metrics`] | `GET /metrics` for Prometheus: names, tokens, what survives, exemplars |
//! | [`configuration`] | flags, variables and `tracer.toml`; OpenTelemetry's variables |
//! | [`running`] | systemd, containers, logs, upgrades, memory, cleaning up |
//! | [`spans`] | every span and attribute that tracer makes |
//! | [`promises`] | what is promised, how far, and which tests keep it |
//! | [`how_it_works`] | processes, the spool, the journal; the terms used in code and messages |
//! | [`json`] | the schemas of `--format json` |
//!
//! Every `tracer` command line in these pages and in README.md is parsed by a test, and every example in Rust is compiled.

#[doc = include_str!("guide/actors.md")]
pub mod actors {}
#[doc = include_str!("guide/commands.md")]
pub mod commands {}
#[doc = include_str!("guide/configuration.md")]
pub mod configuration {}
#[doc = include_str!("guide/hooks.md")]
pub mod hooks {}
#[doc = include_str!("guide/how_it_works.md")]
pub mod how_it_works {}
#[doc = include_str!("guide/http.md")]
pub mod http {}
#[doc = include_str!("guide/json.md")]
pub mod json {}
#[doc = include_str!("guide/logs.md")]
pub mod logs {}
#[doc = include_str!("guide/many_machines.md")]
pub mod many_machines {}
#[doc = include_str!("guide/otlp.md")]
pub mod otlp {}
#[doc = include_str!("guide/metrics.md")]
pub mod metrics {}
#[doc = include_str!("guide/other_programs.md")]
pub mod other_programs {}
#[doc = include_str!("guide/programs.md")]
pub mod programs {}
pub mod promises;
#[doc = include_str!("guide/running.md")]
pub mod running {}
#[doc = include_str!("guide/serving.md")]
pub mod serving {}
#[doc = include_str!("guide/spans.md")]
pub mod spans {}
#[doc = include_str!("guide/start.md")]
pub mod start {}
#[doc = include_str!("guide/tasks.md")]
pub mod tasks {}
