//! Submissions that are being put together.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tracer_core::propagation::Carrier;
use tracer_core::task::{ActorRole, FunctionSpec, Input, InputSource, TaskOptions, TaskSpec, sort_resources};
use tracer_core::value;
use tracer_ipc::stored::{Pending, Written};
use tracer_options::{HasOptions, NotesProblems};

use super::connected::Cluster;
use super::current;
use super::error::RemoteError;
use super::output::Followed;
use super::task::TaskHandle;
use crate::connection::{Follower, Origin, SubmitRequest};
use crate::driver::{encode_argument, split_target};

/// A submission that is being put together: of a function, which [`Cluster::remote`] begins, or of a command, which
/// [`Cluster::command`] begins. What is wrong with it is said by [`submit`](Self::submit), so that calls can be written one after another.
#[must_use = "nothing is submitted before `submit`"]
pub struct Remote<'a, Spec = Function<'a>> {
    pub(super) cluster: &'a Cluster,
    pub(super) spec: Spec,
    /// The first thing that is wrong.
    failure: Option<RemoteError>,
    options: TaskOptions,
    wants_output: bool,
    /// Parent, if it is not the cluster's.
    parent: Option<Carrier>,
}

/// A function of a module, in a submission.
#[derive(Debug)]
pub struct Function<'a> {
    pub(super) target: Cow<'a, str>,
    arguments: Vec<Vec<u8>>,
    inputs: Vec<Input>,
    /// Arguments that are in files.
    pending: Vec<Pending>,
}

/// A program, in a submission.
#[derive(Debug)]
pub struct Command {
    program: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// None for the folder of this process.
    directory: Option<PathBuf>,
}

/// A type whose values can be arguments of a task: one that can be serialized, or a `&TaskHandle`, for the result of that task.
pub trait Argument {
    /// Returns the argument as it travels.
    #[doc(hidden)]
    fn encode(&self, cluster: &Cluster) -> Result<Encoded, RemoteError>;
}

/// An argument on its way.
#[doc(hidden)]
#[derive(Debug)]
pub enum Encoded {
    Value(Written),
    Task(tracer_core::task::TaskId),
}

impl<T: Serialize> Argument for T {
    fn encode(&self, cluster: &Cluster) -> Result<Encoded, RemoteError> {
        let written = encode_argument(self, &cluster.0.values);
        written.map(Encoded::Value).map_err(|error| RemoteError::submission(error.to_string()))
    }
}

impl Argument for &TaskHandle {
    fn encode(&self, cluster: &Cluster) -> Result<Encoded, RemoteError> {
        if self.inner.session_dir != cluster.0.session_dir {
            return Err(RemoteError::submission("it is the handle of a task in another cluster"));
        }
        self.task_id().map(Encoded::Task)
    }
}

impl Cluster {
    /// Begins the submission of a task: `module:function`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/documentation.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use_built_executable();
    /// # let cluster = tracer::init()?;
    /// let task = cluster.remote("demo:my_function").name("first").retries(3).submit()?;
    /// eprintln!("submitted as task {:?}", task.id());
    /// assert_eq!(task.get::<u64>()?, 1);
    /// # Ok(()) }
    /// ```
    pub fn remote<'a>(&'a self, target: impl Into<Cow<'a, str>>) -> Remote<'a> {
        Remote::function(self, target.into())
    }

    /// Begins the submission of a program, which runs without a shell. Unless said otherwise it runs in this process's folder and in the
    /// environment of the cluster. What it writes goes to the logs of its worker.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/documentation.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use_built_executable();
    /// # let cluster = tracer::init()?;
    /// cluster.command("test").args(["-n", "text"]).submit()?.get::<()>()?;
    /// let error = cluster.command("false").submit()?.get::<()>().unwrap_err();
    /// assert_eq!(error.error_type(), "exit:1");
    /// # Ok(()) }
    /// ```
    pub fn command(&self, program: impl AsRef<OsStr>) -> Remote<'_, Command> {
        Remote::command(self, program.as_ref())
    }
}

impl<Spec> HasOptions for Remote<'_, Spec> {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        &mut self.options
    }
}

impl<Spec> NotesProblems for Remote<'_, Spec> {
    fn note(&mut self, problem: String) {
        self.failure.get_or_insert_with(|| RemoteError::submission(problem));
    }
}

impl<Spec> fmt::Debug for Remote<'_, Spec> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("name", &self.options.name).finish_non_exhaustive()
    }
}

impl<'a, Spec> Remote<'a, Spec> {
    fn new(cluster: &'a Cluster, spec: Spec) -> Remote<'a, Spec> {
        Remote { cluster, spec, failure: None, options: TaskOptions::default(), wants_output: false, parent: None }
    }

    tracer_options::task_builder_methods!([later]);

    /// Has what it writes sent here, for [`TaskHandle::lines`]. Beside such a task none is given to its worker.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/documentation.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use_built_executable();
    /// let cluster = tracer::init()?;
    /// let task = cluster.command("sh").args(["-c", "echo one; echo two"]).follow().submit()?;
    /// let lines = task.lines().map(|line| line.map(|line| line.text)).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(lines, ["one", "two"]);
    /// task.get::<()>()?;
    /// # Ok(()) }
    /// ```
    pub fn follow(mut self) -> Self {
        self.wants_output = true;
        self
    }

    /// Returns what the task is a child of, as a W3C `traceparent`. Unless said it is the span that OpenTelemetry has current on this thread, if this
    /// program makes spans of its own with the crate `opentelemetry` 0.33; else what [`Init`](super::Init) said.
    pub fn parent(mut self, traceparent: &str) -> Self {
        match Carrier::from_headers([traceparent], [], []) {
            (carrier, rejections) if rejections.is_empty() => self.parent = Some(carrier),
            (_, rejections) => {
                let reasons: Vec<_> = rejections.iter().map(ToString::to_string).collect();
                let text = format!("the parent `{traceparent}` cannot be taken: {}", reasons.join("; "));
                self.failure.get_or_insert(RemoteError::submission(text));
            }
        }
        self
    }

    /// Sets the parent as [`parent`](Self::parent) does, with all that travels beside it.
    pub fn parent_context(mut self, carrier: Carrier) -> Self {
        self.parent = Some(carrier);
        self
    }

    /// Submits what `spec` describes.
    fn send(&mut self, target: &str, spec: TaskSpec<'_>, inputs: &[Input]) -> Result<TaskHandle, RemoteError> {
        let resource = std::mem::take(&mut self.options.resource);
        self.options.resource = sort_resources(resource).map_err(RemoteError::submission)?;
        let request =
            SubmitRequest { wants_output: self.wants_output, inputs, ..SubmitRequest::new(spec, &self.options) };
        let inner = &self.cluster.0;
        let current = if self.parent.is_none() { current::carrier() } else { None };
        let (parent, is_parent_remote) = match (&self.parent, &current) {
            (Some(parent), _) => (parent, true),
            (None, Some(current)) => (current, false),
            (None, None) => (&inner.parent, inner.is_parent_remote),
        };
        let origin = Origin { parent, is_parent_remote, task: None };
        let followed = self.wants_output.then(Arc::<Followed>::default);
        let follower = followed.as_ref().map(|followed| Box::new(Arc::downgrade(followed)) as Box<dyn Follower>);
        match inner.connection.submit(&request, &origin, follower) {
            Ok(ticket) => Ok(TaskHandle::new(Arc::clone(inner), ticket, inner.target(target), followed)),
            Err(error) => Err(RemoteError::from(error).of(&target_name(target), None)),
        }
    }
}

impl<'a> Remote<'a> {
    pub(super) fn function(cluster: &'a Cluster, target: Cow<'a, str>) -> Remote<'a> {
        Remote::new(cluster, Function { target, arguments: Vec::new(), inputs: Vec::new(), pending: Vec::new() })
    }

    /// Adds the next argument: a value, or a handle, for the result of another task. A task with a handle among its arguments
    /// starts when that task has ended, and fails if that fails. The handle can still be waited for.
    pub fn arg(mut self, argument: impl Argument) -> Self {
        let index = self.spec.arguments.len();
        match argument.encode(self.cluster) {
            Ok(Encoded::Value(Written::Small(value))) => self.spec.arguments.push(value),
            Ok(Encoded::Value(Written::Large(stored))) => {
                self.spec.pending.push(Pending::new(&self.cluster.0.values, &stored));
                self.add_input(InputSource::Stored(stored));
            }
            Ok(Encoded::Task(task)) => self.add_input(InputSource::Task(task)),
            Err(reason) => {
                let text = format!("argument {} of `{}`: {reason}", index + 1, self.spec.target);
                self.failure.get_or_insert(RemoteError::submission(text));
            }
        }
        self
    }

    /// Adds an argument that does not come with the others; nil stands in its place.
    fn add_input(&mut self, source: InputSource) {
        let argument = u32::try_from(self.spec.arguments.len()).expect("arguments fit memory");
        self.spec.inputs.push(Input { argument, source });
        self.spec.arguments.push(vec![0xc0]);
    }

    /// Submits the task. It is on its way when this returns, and sent with the next batch: when [`BATCH`](crate::driver::BATCH) have come
    /// together, when something is waited for, with [`Cluster::flush`], or when the cluster is dropped, whichever comes first.
    ///
    /// Blocks while the head takes nothing more in.
    pub fn submit(self) -> Result<TaskHandle, RemoteError> {
        self.submit_as(ActorRole::None)
    }

    /// Submits it as what it has to do with an actor.
    pub(super) fn submit_as(mut self, actor: ActorRole<'_>) -> Result<TaskHandle, RemoteError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let target = std::mem::take(&mut self.spec.target);
        let (module, function) = split_target(&target)?;
        let arguments = value::array(&self.spec.arguments);
        let inputs = std::mem::take(&mut self.spec.inputs);
        // A path is relative to the folder of this process, not to the worker's.
        let module = if tracer_core::module_name::is_path(module) {
            let path = std::path::absolute(module).unwrap_or_else(|_| module.into());
            Cow::Owned(path.display().to_string())
        } else {
            Cow::Borrowed(module)
        };
        let function = FunctionSpec { actor, ..FunctionSpec::of_task(&module, function, &arguments) };
        let pending = std::mem::take(&mut self.spec.pending);
        let task = self.send(&target, TaskSpec::Function(function), &inputs)?;
        pending.into_iter().for_each(Pending::keep);
        Ok(task)
    }
}

impl<'a> Remote<'a, Command> {
    pub(super) fn command(cluster: &'a Cluster, program: &OsStr) -> Remote<'a, Command> {
        let program = program.as_bytes().to_vec();
        Remote::new(cluster, Command { program, arguments: Vec::new(), environment: Vec::new(), directory: None })
    }

    /// Adds the next argument. There is no shell, so it arrives as it is.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.spec.arguments.push(argument.as_ref().as_bytes().to_vec());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.spec.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().as_bytes().to_vec()));
        self
    }

    /// Sets a variable in its environment, which is that of the cluster otherwise, with `PATH` and the virtual environment of this process (unless it
    /// goes to a queue), and `TRACEPARENT`, `TRACESTATE` and `BAGGAGE` of its own span.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.spec.environment.push((name.as_ref().as_bytes().to_vec(), value.as_ref().as_bytes().to_vec()));
        self
    }

    /// Sets the folder that it runs in; that of this process unless said.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.spec.directory = Some(directory.as_ref().into());
        self
    }

    tracer_options::command_builder_methods!([later]);

    /// Submits the command, as [a task](Remote::submit) is. Its result is `()`; an exit code other than 0 is an error.
    pub fn submit(mut self) -> Result<TaskHandle, RemoteError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let empty = Command { program: Vec::new(), arguments: Vec::new(), environment: Vec::new(), directory: None };
        let Command { program, arguments, environment, directory } = std::mem::replace(&mut self.spec, empty);
        let target = String::from_utf8_lossy(&program).into_owned();
        let directory = match directory {
            Some(directory) => std::path::absolute(&directory),
            None => std::env::current_dir(),
        };
        let directory = directory
            .map_err(|error| RemoteError::submission(format!("the folder of `{target}` cannot be found: {error}")))?;
        let directory = directory.into_os_string().into_vec();
        // A command of a queue runs on any machine.
        let search_path = if self.options.queue.is_empty() { self.cluster.0.search_path() } else { &[] };
        let search_path = search_path.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let set = environment.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let environment = search_path.chain(set).collect();
        let arguments = arguments.iter().map(Vec::as_slice).collect();
        let spec = TaskSpec::command(&program, arguments, environment, &directory);
        self.send(&target, spec, &[])
    }
}

/// Returns what people call it: `module.function`, or the program's file name.
pub(super) fn target_name(target: &str) -> String {
    match split_target(target) {
        Ok((module, function)) => TaskSpec::Function(FunctionSpec::of_task(module, function, &[])).target(),
        Err(_) => TaskSpec::command(target.as_bytes(), Vec::new(), Vec::new(), &[]).target(),
    }
}
