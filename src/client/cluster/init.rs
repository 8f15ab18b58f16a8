//! `tracer::init`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use tracer_core::causes;
use tracer_core::propagation::Carrier;
use tracer_host::hook::{HookContract, HookError};
use tracer_ipc::environment;
use tracer_ipc::protocol::{HookChoice, Welcome};
use tracer_ipc::session::{self, SessionError};
use tracer_otel_env::Reader;

use super::connected::{Cluster, Inner};
use super::embedded::{EXECUTABLE_VARIABLE, Embedded};
use super::interrupts::{self, Say};
use crate::driver::{Driver, DriverError, DriverParts, hook_names};

/// Choice between a running head and one of the program's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmbeddedHead {
    /// One of its own if none runs in the place.
    #[default]
    IfNoneRuns,
    /// One of its own in any case. Several programs with heads of their own do not meet.
    Always,
    /// A running one in any case: it is an error when none runs.
    Never,
}

/// Connects to the running head of this machine, or starts one for the life of this program if none runs. [`Init`] says more.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/documentation.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use_built_executable();
/// let cluster = tracer::init()?;
/// let one: u64 = cluster.remote("demo:my_function").submit()?.get()?;
/// assert_eq!(one, 1);
/// # Ok(()) }
/// ```
pub fn init() -> Result<Cluster, InitError> {
    Init::new().init()
}

/// Says how [`init`](super::init) goes about it. Without anything said, it is [`init`](super::init).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/documentation.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use_built_executable();
/// use tracer::{EmbeddedHead, Init};
///
/// let cluster = Init::new().embedded(EmbeddedHead::Always).num_workers(1).init()?;
/// assert_eq!(cluster.remote("demo:my_function").submit()?.get::<u64>()?, 1);
/// # Ok(()) }
/// ```
#[must_use = "nothing happens before `init`"]
#[derive(Default)]
pub struct Init {
    temp_dir: Option<PathBuf>,
    embedded: EmbeddedHead,
    executable: Option<PathBuf>,
    num_workers: Option<u32>,
    hooks: Vec<String>,
    exporters: Vec<String>,
    spans_dir: Option<PathBuf>,
    module_path: Vec<PathBuf>,
    start_arguments: Vec<OsString>,
    is_untraced: bool,
    has_job_span: bool,
    parent: Option<Result<Carrier, String>>,
    on_ctrl_c: Option<Say>,
    grace: Option<Duration>,
}

impl fmt::Debug for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Init")
            .field("temp_dir", &self.temp_dir)
            .field("embedded", &self.embedded)
            .finish_non_exhaustive()
    }
}

/// Failure to connect to a cluster or to start one.
#[non_exhaustive]
pub enum InitError {
    /// The head cannot be reached, or does not take this program.
    Head(DriverError),
    /// The executable of tracer, which the head is, was not found.
    NoExecutable {
        /// Files that were looked for.
        looked: Vec<PathBuf>,
    },
    /// There is no room for a head's files.
    Place {
        /// The operating system's error.
        source: io::Error,
    },
    /// The head did not start.
    NotStarted {
        /// The executable that was run.
        executable: PathBuf,
        /// Reason why it did not start.
        reason: String,
    },
    /// The cluster that runs, or this process, has other hooks than were asked for.
    OtherHooks {
        /// The hooks that were asked for.
        asked: Vec<String>,
        /// The hooks that there are; empty for none.
        found: Vec<String>,
        /// Place in which they are.
        place: HookPlace,
    },
    /// The cluster that runs has another setting than was asked for.
    OtherSetting {
        /// The option, as a method of [`Init`].
        option: &'static str,
        /// The value that was asked for.
        asked: String,
        /// The value that the cluster has, if it can be told.
        found: Option<String>,
        /// Its place.
        temp_dir: PathBuf,
    },
    /// The hook failed in this process, and the cluster must not go on without it.
    Hook(HookError),
    /// The text that is to be the parent of everything is not a trace context.
    Parent {
        /// Description of the mistake.
        reason: String,
    },
    /// A thread, a socket or a signal handler of the driver could not be made.
    Io(io::Error),
}

/// Place of hooks that are not those that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookPlace {
    /// In the cluster that runs in this folder.
    Cluster(PathBuf),
    /// In this process, which has its tracing since another [`init`](super::init).
    Process,
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::Head(error) => error.fmt(f),
            InitError::NoExecutable { looked } => {
                f.write_str(
                    "the executable `tracer`, from which a head of this program's own is started, was not found; looked for ",
                )?;
                for (index, path) in looked.iter().enumerate() {
                    write!(f, "{}`{}`", if index == 0 { "" } else { ", " }, path.display())?;
                }
                write!(
                    f,
                    "\n(hint: set `{EXECUTABLE_VARIABLE}` to its path, or start a head with `tracer start --head`)"
                )
            }
            InitError::Place { .. } => {
                write!(
                    f,
                    "there is no folder for a head of this program's own in `{}`",
                    std::env::temp_dir().display()
                )?;
                f.write_str("\n(hint: make room there, or name another folder with `TMPDIR`)")
            }
            InitError::NotStarted { executable, reason } => {
                write!(f, "a head of this program's own (`{}`) did not start: {reason}", executable.display())
            }
            InitError::OtherHooks { asked, found, place } => {
                let list = |hooks: &[String]| match hooks {
                    [] => "no hook".to_owned(),
                    hooks => hooks.iter().map(|hook| format!("`{hook}`")).collect::<Vec<_>>().join(" and "),
                };
                match place {
                    HookPlace::Cluster(temp_dir) => {
                        let (asked, found) = (list(asked), list(found));
                        write!(
                            f,
                            "expected a cluster with {asked}, but the one in `{}` has {found}",
                            temp_dir.display()
                        )?;
                        f.write_str(
                            "\n(hint: ask for no hook to use what it has; start it anew with other hooks, `tracer stop` first; or \
                             have a head of this program's own with `EmbeddedHead::Always`)",
                        )
                    }
                    HookPlace::Process => {
                        write!(
                            f,
                            "expected to trace with {}, but this process traces with {}",
                            list(asked),
                            list(found)
                        )?;
                        f.write_str("\n(hint: hooks run once in a process, with the first `init`; use the same ones, or another process)")
                    }
                }
            }
            InitError::OtherSetting { option, asked, found, temp_dir } => {
                write!(f, "`{option}` asked for {asked}, but ")?;
                match found {
                    Some(found) => write!(f, "the cluster that runs in `{}` has {found}", temp_dir.display())?,
                    None => write!(f, "the cluster in `{}` is running already", temp_dir.display())?,
                }
                f.write_str("\n(hint: leave it out to use that cluster, or have a head of this program's own with `EmbeddedHead::Always`)")
            }
            InitError::Hook(error) => write!(f, "the cluster's hook failed in this process: {error}"),
            InitError::Parent { reason } => write!(f, "the parent cannot be taken: {reason}"),
            InitError::Io(_) => f.write_str("a thread, a socket or a signal handler of the driver cannot be made"),
        }
    }
}

impl fmt::Debug for InitError {
    /// The text with its causes and its hint, because `main` prints this form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        causes::debug(self, f)
    }
}

impl std::error::Error for InitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            InitError::Head(error) => error.source(),
            InitError::Place { source } | InitError::Io(source) => Some(source),
            InitError::Hook(error) => error.source(),
            _ => None,
        }
    }
}

impl From<DriverError> for InitError {
    fn from(error: DriverError) -> InitError {
        InitError::Head(error)
    }
}

impl From<io::Error> for InitError {
    fn from(error: io::Error) -> InitError {
        InitError::Io(error)
    }
}

impl Init {
    /// Begins to say it.
    pub fn new() -> Init {
        Init::default()
    }

    /// Sets the place of the head to connect to, as `--temp-dir` of `tracer start`. Unless said it is what `TRACER_TEMP_DIR` says, else
    /// `/tmp/tracer-<uid>`.
    pub fn temp_dir(mut self, temp_dir: impl Into<PathBuf>) -> Init {
        self.temp_dir = Some(temp_dir.into());
        self
    }

    /// Returns whether this program has a head of its own: if none runs in the place, unless said otherwise.
    ///
    /// It runs for as long as the [`Cluster`], and ends when this process does, however that ends. Nobody else finds it but
    /// what its tasks run.
    pub fn embedded(mut self, embedded: EmbeddedHead) -> Init {
        self.embedded = embedded;
        self
    }

    /// Sets the executable of tracer, for a head of this program's own. Unless said it is what `TRACER_EXECUTABLE` says, else a `tracer` beside
    /// this program or on the `PATH`.
    pub fn executable(mut self, executable: impl Into<PathBuf>) -> Init {
        self.executable = Some(executable.into());
        self
    }

    /// Returns how many workers a head of this program's own has; as many as there are cpus unless said. When a head runs already, it is an
    /// error, because its workers are what they are.
    pub fn num_workers(mut self, num_workers: u32) -> Init {
        self.num_workers = Some(num_workers);
        self
    }

    /// Sets the hook that sets up tracing in every process, this one included, as `module:attribute`; repeat it to send the spans to further
    /// hooks too. A cluster that runs already must have the same ones. Without it, a cluster's own hooks are used, and a head of this
    /// program's own has those that `TRACER_TRACING_STARTUP_HOOK` or `OTEL_TRACES_EXPORTER` name.
    pub fn tracing_startup_hook(mut self, hook: impl Into<String>) -> Init {
        self.hooks.push(hook.into());
        self
    }

    /// Sets the exporter that says where spans go, as `module:attribute`; instead of a startup hook, and repeated like it.
    pub fn tracing_exporter(mut self, exporter: impl Into<String>) -> Init {
        self.exporters.push(exporter.into());
        self
    }

    /// Returns where span files are written. A cluster that runs already must have the same folder.
    pub fn spans_dir(mut self, spans_dir: impl Into<PathBuf>) -> Init {
        self.spans_dir = Some(spans_dir.into());
        self
    }

    /// Adds a folder to look for modules in first; may be repeated. A cluster that runs already must have the same folders.
    pub fn module_path(mut self, folder: impl Into<PathBuf>) -> Init {
        self.module_path.push(folder.into());
        self
    }

    /// Adds a further argument of `tracer start`, for a head of this program's own, such as `--resources=gpu=2`; may be repeated. When a head runs
    /// already, it is an error.
    pub fn start_argument(mut self, argument: impl Into<OsString>) -> Init {
        self.start_arguments.push(argument.into());
        self
    }

    /// Does not run the cluster's hook in this process, so that submissions here are no spans. What tasks do is traced all the same.
    pub fn untraced(mut self) -> Init {
        self.is_untraced = true;
        self
    }

    /// Puts a span around all that is submitted: `tracer job`, from now until the cluster is dropped.
    pub fn job_span(mut self) -> Init {
        self.has_job_span = true;
        self
    }

    /// Returns what all that is submitted is a child of, as a W3C `traceparent`. Unless said it is what `TRACEPARENT`, `TRACESTATE` and `BAGGAGE` say,
    /// where the cluster propagates them. A submission may say otherwise.
    pub fn parent(mut self, traceparent: &str) -> Init {
        let (carrier, rejections) = Carrier::from_headers([traceparent], [], []);
        let reasons: Vec<_> = rejections.iter().map(ToString::to_string).collect();
        self.parent = Some(if reasons.is_empty() { Ok(carrier) } else { Err(reasons.join("; ")) });
        self
    }

    /// Sets the parent as [`parent`](Self::parent) does, with all that travels beside it.
    pub fn parent_context(mut self, carrier: Carrier) -> Init {
        self.parent = Some(Ok(carrier));
        self
    }

    /// Has a Ctrl-C cancel what was submitted and has not ended; a second one ends this program at once. `say` hears what is done, such as
    /// `|text| eprintln!("{text}")`; it is called on another thread.
    ///
    /// Unless this is said, the library does nothing about signals, and a Ctrl-C ends the program as it ends any other. A
    /// head of its own ends then, and records what ran.
    pub fn cancel_on_ctrl_c(mut self, say: impl FnMut(&str) + Send + 'static) -> Init {
        self.on_ctrl_c = Some(Box::new(say));
        self
    }

    /// Returns how long tasks that run get to end when the cluster is dropped and the head is this program's own; 2 seconds unless said.
    pub fn grace(mut self, grace: Duration) -> Init {
        self.grace = Some(grace);
        self
    }

    /// Connects to the head, or starts one, and runs its hook here.
    ///
    /// Where the cluster's settings have to be in this process's environment for the hook to do here what it does there
    /// (`TRACER_SPANS_DIR`, variables of OpenTelemetry), they are set there, if this process has one thread yet. Otherwise
    /// [`Cluster::warnings`] says what is missing.
    pub fn init(mut self) -> Result<Cluster, InitError> {
        let parent = match self.parent.take() {
            Some(Err(reason)) => return Err(InitError::Parent { reason }),
            Some(Ok(carrier)) => Some(carrier),
            None => None,
        };
        let (embedded, mut driver) = self.connect()?;
        let mut warnings = Vec::new();
        if !self.is_untraced {
            self.start_tracing(&mut driver, &mut warnings)?;
        }
        let carrier = parent.unwrap_or_else(|| {
            let propagators = driver.welcome().tracing.propagators;
            let (carrier, rejections) =
                Carrier::from_env(|name| propagators.lookup(name, |name| std::env::var_os(name)));
            warnings.extend(rejections.iter().map(ToString::to_string));
            carrier
        });
        driver.set_parent(carrier, true);
        let job = if self.has_job_span { driver.start_job() } else { None };
        let (recorder, welcome) = (driver.recorder(), driver.welcome().clone());
        let (watched, listen) = match self.on_ctrl_c.take().map(interrupts::watch).transpose()? {
            Some((watched, listen)) => (Some(watched), Some(listen)),
            None => (None, None),
        };
        let DriverParts { connection, carrier: parent, is_carrier_remote: is_parent_remote } = driver.into_parts();
        let inner = Arc::new(Inner {
            search_path: std::sync::OnceLock::new(),
            connection,
            parent,
            is_parent_remote,
            last_target: Mutex::new("".into()),
            values: tracer_ipc::stored::folder(&welcome.session_dir),
            session_dir: welcome.session_dir.clone(),
            job_id: welcome.job_id,
            welcome,
            recorder,
            job: Mutex::new(job),
            warnings,
            grace: self.grace.unwrap_or(tracer_core::task::DEFAULT_GRACE),
            embedded: Mutex::new(embedded),
            calls: Mutex::default(),
            _watched: watched,
        });
        if let Some(listen) = listen {
            listen(Arc::downgrade(&inner))?;
        }
        Ok(Cluster(inner))
    }

    fn connect(&self) -> Result<(Option<Embedded>, Driver), InitError> {
        if self.embedded != EmbeddedHead::Always {
            let temp_dir = self.place();
            match session::find_head(&temp_dir) {
                Ok(head) => {
                    let driver = Driver::connect_to_session(&head.session_dir)?;
                    self.check(driver.welcome(), &temp_dir)?;
                    return Ok((None, driver));
                }
                Err(SessionError::NoHead { .. }) if self.embedded == EmbeddedHead::IfNoneRuns => {}
                Err(error) => return Err(DriverError::Session(error).into()),
            }
        }
        let embedded = Embedded::start(self.executable.as_deref(), &self.arguments())?;
        let driver = Driver::connect_to_session(embedded.session_dir())?;
        Ok((Some(embedded), driver))
    }

    fn place(&self) -> PathBuf {
        let variable = || std::env::var_os(environment::TEMP_DIR_VARIABLE).map(PathBuf::from);
        let said = self.temp_dir.clone().or_else(variable).filter(|path| !path.as_os_str().is_empty());
        said.unwrap_or_else(environment::default_temp_dir)
    }

    /// Returns what was said, as arguments of `tracer start`.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: OsString| {
            let mut argument = OsString::from(name);
            argument.push("=");
            argument.push(value);
            arguments.push(argument);
        };
        if let Some(num_workers) = self.num_workers {
            option("--num-workers", num_workers.to_string().into());
        }
        self.hooks.iter().for_each(|hook| option("--tracing-startup-hook", hook.into()));
        self.exporters.iter().for_each(|exporter| option("--tracing-exporter", exporter.into()));
        if let Some(spans_dir) = &self.spans_dir {
            option("--spans-dir", spans_dir.into());
        }
        if !self.module_path.is_empty() {
            // A folder with a colon in its name could not be told from two.
            option("--module-path", std::env::join_paths(&self.module_path).unwrap_or_default());
        }
        arguments.extend(self.start_arguments.iter().cloned());
        arguments
    }

    /// Expects that a cluster that runs is as was said.
    fn check(&self, welcome: &Welcome, temp_dir: &Path) -> Result<(), InitError> {
        let found = welcome.tracing.hook.as_ref().map(hook_names).unwrap_or_default();
        let (asked, contract) = if self.hooks.is_empty() {
            (&self.exporters, HookContract::Exporter)
        } else {
            (&self.hooks, HookContract::Startup)
        };
        let has_contract = |hook: &HookChoice| hook.contract == contract;
        if !asked.is_empty() && (*asked != found || !welcome.tracing.hook.as_ref().is_some_and(has_contract)) {
            let place = HookPlace::Cluster(temp_dir.into());
            return Err(InitError::OtherHooks { asked: asked.clone(), found, place });
        }
        let other = |option, asked: String, found: Option<String>| {
            Err(InitError::OtherSetting { option, asked, found, temp_dir: temp_dir.into() })
        };
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let shown = |folders: &[PathBuf]| {
            let folders: Vec<_> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
            if folders.is_empty() { "none".to_owned() } else { folders.join(" and ") }
        };
        if let Some(num_workers) = self.num_workers {
            return other("num_workers", tracer_core::count::Count(num_workers, "worker").to_string(), None);
        }
        if let Some(argument) = self.start_arguments.first() {
            return other("start_argument", format!("`{}`", argument.display()), None);
        }
        if let Some(spans_dir) = self.spans_dir.as_ref().map(absolute).filter(|dir| *dir != welcome.tracing.spans_dir) {
            return other(
                "spans_dir",
                shown(&[spans_dir]),
                Some(shown(std::slice::from_ref(&welcome.tracing.spans_dir))),
            );
        }
        let module_path: Vec<_> = self.module_path.iter().map(absolute).collect();
        if !module_path.is_empty() && module_path != welcome.module_path {
            return other("module_path", shown(&module_path), Some(shown(&welcome.module_path)));
        }
        Ok(())
    }

    /// Runs the cluster's hook here.
    fn start_tracing(&self, driver: &mut Driver, warnings: &mut Vec<String>) -> Result<(), InitError> {
        let Some(hook) = driver.welcome().tracing.hook.clone() else { return Ok(()) };
        if Reader::of_this_process().is_sdk_disabled() {
            return Ok(());
        }
        let asked = hook_names(&hook);
        match Driver::hooks_of_this_process() {
            Some(found) if found != asked => {
                return Err(InitError::OtherHooks { asked, found, place: HookPlace::Process });
            }
            Some(_) => {}
            None => warn_of_environment(driver.take_over_environment(), warnings),
        }
        match driver.start_tracing() {
            Some(failure) if hook.is_required => return Err(InitError::Hook(failure)),
            Some(failure) => {
                warnings.push(format!("the hook failed here, so tracer writes this program's spans itself: {failure}"));
            }
            None => {}
        }
        warnings.extend(driver.further_failures().iter().map(|failure| {
            format!("an additional hook failed here; it gets this program's spans through another process: {failure}")
        }));
        Ok(())
    }
}

/// Warns of the variables that could not be set as the cluster's processes have them.
fn warn_of_environment(missing: Vec<(String, OsString)>, warnings: &mut Vec<String>) {
    for (name, value) in missing {
        // What is said by the default of the one and by the variable of the other is the same.
        let is_default = match name.as_str() {
            environment::SPANS_DIR_VARIABLE => value == environment::DEFAULT_SPANS_DIR,
            environment::SAMPLING_RATIO_VARIABLE => value == tracer_core::SamplingRatio::ALL.to_string().as_str(),
            _ => false,
        };
        if is_default && std::env::var_os(&name).is_none() {
            continue;
        }
        warnings.push(format!(
            "this program's spans may differ from the cluster's: `{name}` is `{}` there, and could not be set here, because this process has \
             threads already\n(hint: call `init` first in `main`, or start this program with `{name}` set)",
            value.to_string_lossy()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_is_told_with_its_cause_and_the_next_step() {
        // `main` prints the `Debug` form.
        let told = |error: InitError| format!("{:?}", Box::<dyn std::error::Error>::from(error));
        let error = told(InitError::NoExecutable { looked: vec!["/usr/bin/tracer".into()] });
        assert!(error.ends_with("looked for `/usr/bin/tracer`\n(hint: set `TRACER_EXECUTABLE` to its path, or start a head with `tracer start --head`)"), "{error}");
        let error = told(InitError::Place { source: io::ErrorKind::StorageFull.into() });
        let (what, hint) = error.split_once('\n').expect("there is a hint");
        assert!(what.ends_with(": no storage space") && hint.starts_with("(hint: make room"), "{error}");
        let error = told(DriverError::Disconnected(io::ErrorKind::BrokenPipe.into()).into());
        assert!(error.starts_with("the connection to the head broke: broken pipe\n(hint: "), "{error}");
    }

    #[test]
    fn what_was_said_becomes_arguments_of_start() {
        let init = Init::new()
            .num_workers(3)
            .tracing_startup_hook("a:b")
            .tracing_startup_hook("c:d")
            .spans_dir("/spans")
            .module_path("/one")
            .module_path("/two")
            .start_argument("--resources=gpu=2");
        let expected = [
            "--num-workers=3",
            "--tracing-startup-hook=a:b",
            "--tracing-startup-hook=c:d",
            "--spans-dir=/spans",
            "--module-path=/one:/two",
            "--resources=gpu=2",
        ];
        assert_eq!(init.arguments(), expected);
        assert!(Init::new().arguments().is_empty());
    }

    #[test]
    fn a_parent_that_is_none_is_refused() {
        let error = Init::new().parent("00-0-0-01").init().expect_err("that is no parent");
        assert!(error.to_string().starts_with("the parent cannot be taken: `traceparent` is ignored: "), "{error}");
    }

    #[test]
    fn where_nothing_was_found_it_is_said_where_it_was_looked_for() {
        let looked = vec!["/a/tracer".into(), "/b/tracer".into()];
        let text = InitError::NoExecutable { looked }.to_string();
        assert!(text.contains("looked for `/a/tracer`, `/b/tracer`\n(hint: set `TRACER_EXECUTABLE`"), "{text}");
    }
}
