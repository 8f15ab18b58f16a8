//! Errors of modules and hooks that are refused: one variant for each step of the loading staircase.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracer_abi::{ABI_MAJOR, ABI_MINOR, ENTRY_SYMBOL};
use tracer_core::HookContract;
use tracer_core::count::Elapsed;
use tracer_core::suggestion::nearest;

/// A module that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleError {
    /// No file of that name is where modules are looked for. Build it, or extend `TRACER_MODULE_PATH`.
    NotFound {
        /// The name that was looked for.
        module: String,
        /// The folders that were looked at, in order.
        searched: Vec<PathBuf>,
        /// Names that would have been found, for a suggestion.
        known: Vec<String>,
    },
    /// The path does not name a file.
    NoFile {
        /// The path, as given.
        path: PathBuf,
    },
    /// The system's loader refuses the file: it is not a shared library, or needs something that is missing.
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The loader's message, without the path.
        reason: String,
    },
    /// The library does not export the one symbol of a tracer module.
    NoEntry {
        /// The file.
        path: PathBuf,
    },
    /// The entry symbol is there, but what it returns is not the record of a module.
    NoRecord {
        /// The file, or the name of a built-in module.
        path: PathBuf,
    },
    /// The module was built against another version of the contract.
    OtherAbi {
        /// The file, or the name of a built-in module.
        path: PathBuf,
        /// The major version of the ABI that it speaks.
        major: u32,
        /// The minor version.
        minor: u32,
        /// The program that built it, as it says itself; empty when it does not say.
        producer: String,
    },
    /// The module has no hook of that name.
    NoSuchHook {
        /// The module, as it was named.
        module: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// The name that was looked for.
        attribute: String,
        /// The names of the hooks that it has.
        hooks: Vec<String>,
    },
    /// The module has no task of that name.
    NoSuchTask {
        /// The module, as it was named.
        module: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// The name that was looked for.
        function: String,
        /// The names of the tasks that it has.
        tasks: Vec<String>,
    },
    /// The module has no type of actors of that name.
    NoSuchActor {
        /// The module, as it was named.
        module: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// The name that was looked for.
        actor: String,
        /// The names of the types that it has.
        actors: Vec<String>,
    },
    /// The module has no deployment of that name.
    NoSuchDeployment {
        /// The module, as it was named.
        module: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// The name that was looked for.
        deployment: String,
        /// The names of the deployments that it has.
        deployments: Vec<String>,
    },
    /// An actor has no method of that name.
    NoSuchMethod {
        /// The actor's type.
        actor: String,
        /// The name that was looked for.
        method: String,
        /// The names of the methods that it has.
        methods: Vec<String>,
    },
    /// The module's own preparation failed.
    LoadFailed {
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// The module's message.
        reason: String,
    },
}

/// Returns whether a file is a source or a script by its name, and no library that went wrong.
fn is_source(path: &Path) -> bool {
    let extension = path.extension().and_then(std::ffi::OsStr::to_str);
    extension
        .is_some_and(|extension| ["py", "rs", "c", "js", "ts", "sh", "rb", "pl", "go", "java"].contains(&extension))
}

impl fmt::Display for ModuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModuleError::NotFound { module, searched, known } => {
                write!(f, "module `{module}` was not found: there is no `lib{module}.so` in ")?;
                list(f, searched.iter().map(|path| path.display().to_string()))?;
                let rays = module.strip_suffix("setup_local_tmp_tracing").is_some_and(|package| package.ends_with('.'));
                match nearest(module, known.iter().map(String::as_str)) {
                    _ if rays => {
                        f.write_str("\n(hint: Ray's hook of that name is `local_tmp_tracing:setup_tracing` here)")
                    }
                    Some(nearest) => write!(f, "\nDid you mean `{nearest}`?"),
                    None => f.write_str("\n(hint: name its folder in TRACER_MODULE_PATH, or give the library's path)"),
                }
            }
            ModuleError::NoFile { path } => {
                write!(f, "module `{}` was not found: there is no such file", path.display())
            }
            ModuleError::Unloadable { path, reason } => {
                write!(f, "`{}` cannot be loaded as a shared library: {reason}", path.display())?;
                if reason.contains("static TLS block") {
                    return f.write_str(
                        "\n(hint: its allocator wants thread-local variables that fit into this process no more; build it without, as with the feature \
                         `disable_initial_exec_tls` of tikv-jemallocator, or set GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536 where this process is started)",
                    );
                }
                f.write_str(match is_source(path) {
                    true => {
                        "\n(hint: a module is a library of functions in Rust or C; `tracer new` makes one, and \
                             `tracer submit command -- PROGRAM` runs a program)"
                    }
                    false => "\n(hint: a module is a cdylib for this system; check it with `file` and `ldd`)",
                })
            }
            ModuleError::NoEntry { path } => {
                write!(f, "`{}` is a shared library but not a tracer module: ", path.display())?;
                write!(f, "it does not export `{ENTRY_SYMBOL}`")?;
                f.write_str(
                    "\n(hint: a module in Rust is a cdylib that uses tracer-sdk; in C it includes tracer_abi.h)",
                )
            }
            ModuleError::NoRecord { path } => {
                write!(
                    f,
                    "`{}` exports `{ENTRY_SYMBOL}`, but it does not return the record of a module",
                    path.display()
                )
            }
            ModuleError::OtherAbi { path, major, minor, producer } => {
                write!(f, "module `{}` speaks ABI {major}.{minor}", path.display())?;
                if !producer.is_empty() {
                    write!(f, " (built by {producer})")?;
                }
                write!(f, ", but this tracer speaks ABI {ABI_MAJOR}.{ABI_MINOR}")?;
                f.write_str("\n(hint: rebuild the module with the tracer-sdk of this tracer)")
            }
            ModuleError::NoSuchHook { module, place, attribute, hooks } => {
                write!(f, "module `{module}`{} has no hook `{attribute}`; ", at(module, place))?;
                owned(f, "hook", hooks, attribute)
            }
            ModuleError::NoSuchTask { module, place, function, tasks } => {
                write!(f, "module `{module}`{} has no task `{function}`; ", at(module, place))?;
                owned(f, "task", tasks, function)
            }
            ModuleError::NoSuchActor { module, place, actor, actors } => {
                write!(f, "module `{module}`{} has no actor `{actor}`; ", at(module, place))?;
                owned(f, "actor", actors, actor)
            }
            ModuleError::NoSuchDeployment { module, place, deployment, deployments } => {
                write!(f, "module `{module}`{} has no deployment `{deployment}`; ", at(module, place))?;
                owned(f, "deployment", deployments, deployment)
            }
            ModuleError::NoSuchMethod { actor, method, methods } => {
                write!(f, "actor `{actor}` has no method `{method}`; ")?;
                owned(f, "method", methods, method)
            }
            ModuleError::LoadFailed { place, reason } => {
                write!(f, "the module {place} could not get ready to run tasks: {reason}")
            }
        }
    }
}

impl std::error::Error for ModuleError {}

/// Returns where a module is, in parentheses; nothing when its name is the path already.
fn at(name: &str, place: &str) -> String {
    let module = name.rsplit_once(':').map_or(name, |(module, _)| module);
    // Of a library that is named by its path, what is behind that: its build.
    let rest = [module, name].into_iter().find_map(|path| place.strip_prefix(path));
    match rest.map(|rest| rest.trim_start_matches(", ")) {
        Some("") => String::new(),
        Some(build) if rest != Some(build) => format!(" ({build})"),
        _ => format!(" ({place})"),
    }
}

/// Says which names there are, and which one may have been meant.
fn owned(f: &mut fmt::Formatter<'_>, noun: &str, names: &[String], wanted: &str) -> fmt::Result {
    if names.is_empty() {
        return write!(f, "it has no {noun}s at all");
    }
    f.write_str("it has ")?;
    list(f, names.iter().cloned())?;
    match nearest(wanted, names.iter().map(String::as_str)) {
        Some(nearest) => write!(f, "\nDid you mean `{nearest}`?"),
        None => Ok(()),
    }
}

/// `a`, `b` and `c`, each in backticks.
fn list(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = String>) -> fmt::Result {
    let items: Vec<_> = items.collect();
    for (index, item) in items.iter().enumerate() {
        let separator = match index {
            0 => "",
            _ if index + 1 == items.len() => " and ",
            _ => ", ",
        };
        write!(f, "{separator}`{item}`")?;
    }
    Ok(())
}

/// A hook that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookError {
    /// The text is not `module:attribute`.
    ImportString {
        /// The text that was given instead.
        given: String,
    },
    /// Its module cannot be used.
    Module(ModuleError),
    /// It keeps another contract than the one it was named for.
    OtherContract {
        /// The hook, as `module:attribute`.
        hook: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// Its contract.
        contract: HookContract,
    },
    /// The hook returned an error.
    Failed {
        /// The hook, as `module:attribute`.
        hook: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// The hook's message.
        reason: String,
    },
    /// The hook panicked.
    Panicked {
        /// The hook, as `module:attribute`.
        hook: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
        /// Message of the panic, with its place where that is known.
        reason: String,
    },
    /// The hook did not return in time.
    TimedOut {
        /// The hook, as `module:attribute`.
        hook: String,
        /// Place of the module, or, when it was tried out, the process that was ended.
        place: String,
        /// Time that it was given.
        limit: Duration,
    },
    /// It was named after another, and takes no finished spans.
    TakesNoSpans {
        /// The hook, as `module:attribute`.
        hook: String,
        /// Place of the module: its library's path, or `built in`.
        place: String,
    },
    /// The process that tried the hook out died.
    Died {
        /// The hook, as `module:attribute`.
        hook: String,
        /// A clause that fits after "it", on the end of the process.
        cause: String,
    },
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookError::ImportString { given } => {
                write!(f, "a tracing hook is named `module:attribute`, but got `{given}`")?;
                match given.is_empty() {
                    true => f.write_str(
                        "\n(hint: is a variable of the shell not set? For example `local_tmp_tracing:setup_tracing`)",
                    ),
                    false => f.write_str("\n(hint: for example `local_tmp_tracing:setup_tracing`)"),
                }
            }
            HookError::Module(error) => error.fmt(f),
            HookError::OtherContract { hook, place, contract } => {
                f.write_str(&match contract {
                    HookContract::Exporter => {
                        format!(
                            "`{hook}`{} is an exporter, which returns span processors, and no startup hook",
                            at(hook, place)
                        )
                    }
                    HookContract::Startup => {
                        format!(
                            "`{hook}`{} is a startup hook, which sets up all of the tracing, and no exporter",
                            at(hook, place)
                        )
                    }
                })?;
                write!(f, "\n(hint: name it with {})", contract.flag())
            }
            HookError::Failed { hook, place, reason } => {
                write!(f, "hook `{hook}`{} returned an error: {reason}", at(hook, place))
            }
            HookError::Panicked { hook, place, reason } => {
                write!(f, "hook `{hook}`{} panicked: {reason}", at(hook, place))
            }
            HookError::TimedOut { hook, place, limit } => {
                write!(f, "hook `{hook}`{} did not return within {}", at(hook, place), Elapsed(*limit))?;
                f.write_str("\n(hint: give it more time with --hook-timeout, or do slow work on a thread of its own)")
            }
            HookError::TakesNoSpans { hook, place } => {
                write!(
                    f,
                    "hook `{hook}`{} does not accept finished spans of other hooks, so it can only be the first",
                    at(hook, place)
                )?;
                f.write_str(
                    "\n(hint: name it first; or, where it returns a finished provider, let it return \
                     `Tracing::builder()` with its exporters instead)",
                )
            }
            HookError::Died { hook, cause } => {
                write!(f, "hook `{hook}` ended the process that tried it out: it {cause}")
            }
        }
    }
}

impl std::error::Error for HookError {}

impl From<ModuleError> for HookError {
    fn from(error: ModuleError) -> HookError {
        HookError::Module(error)
    }
}
