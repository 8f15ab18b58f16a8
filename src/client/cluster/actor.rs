//! Actors, as a program has them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tracer_core::task::{ActorRole, TaskId, TaskOptions};
use tracer_ipc::protocol::ActorReport;
use tracer_options::{ActorOptions, HasOptions};

use super::connected::Cluster;
use super::error::RemoteError;
use super::remote::{Argument, Remote};
use super::task::TaskHandle;
use crate::driver::ActorHandle;

/// An actor that is about to be created; see [`Cluster::actor`].
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct Actor<'a> {
    remote: Remote<'a>,
    options: ActorOptions,
}

impl HasOptions for Actor<'_> {
    type Options = ActorOptions;

    fn options(&mut self) -> &mut ActorOptions {
        &mut self.options
    }
}

impl Actor<'_> {
    /// Adds the next argument of `new`, as [`Remote::arg`] does.
    pub fn arg(mut self, argument: impl Argument) -> Self {
        self.remote = self.remote.arg(argument);
        self
    }

    tracer_options::actor_builder_methods!([later]);

    /// Creates the actor. It is accepted when this returns, and `new` may not have run; calls wait for it. If `new` fails, every call fails
    /// with the reason.
    pub fn create(self) -> Result<ActorHandle, RemoteError> {
        let Actor { remote, options } = self;
        let cluster = remote.cluster();
        let created = remote.name(&options.name).create(&options)?;
        let report = cluster.actor_report(&created.task_id()?.to_string())?;
        match report.reason {
            // Whoever has taken the name is said at once.
            Some(reason) if !options.name.is_empty() => Err(RemoteError::submission(reason)),
            _ => Ok(ActorHandle::of(&report)),
        }
    }
}

/// A call of an actor's method that is being put together; see [`Cluster::call`].
#[derive(Debug)]
#[must_use = "nothing is called before `submit`"]
pub struct Call<'a> {
    remote: Remote<'a>,
    actor: TaskId,
}

impl HasOptions for Call<'_> {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        self.remote.options()
    }
}

impl Call<'_> {
    /// Adds the next argument, as [`Remote::arg`] does.
    pub fn arg(mut self, argument: impl Argument) -> Self {
        self.remote = self.remote.arg(argument);
        self
    }

    /// Names the call, for people.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.remote = self.remote.name(name);
        self
    }

    tracer_options::call_builder_methods!([later]);

    /// Submits the call, as [`Remote::submit`] does a task.
    pub fn submit(self) -> Result<TaskHandle, RemoteError> {
        self.remote.submit_as(ActorRole::Call(self.actor))
    }
}

impl Cluster {
    /// Begins the creation of an actor: `module:Type`. It gets a worker process of its own, and ends with this program unless it is
    /// [detached](Actor::detached).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = tracer::init()?;
    /// let hits = cluster.actor("counter:Counter").arg(0).name("hits").max_restarts(3).create()?;
    /// for _ in 0..1000 {
    ///     cluster.call(&hits, "increment").arg(1).submit()?;
    /// }
    /// assert_eq!(cluster.call(&hits, "get").submit()?.get::<i64>()?, 1000);
    /// # Ok(()) }
    /// ```
    pub fn actor<'a>(&'a self, target: impl Into<Cow<'a, str>>) -> Actor<'a> {
        Actor { remote: self.remote(target), options: ActorOptions::default() }
    }

    /// Begins a call of an actor's method. Calls that a program submits run in their order, save for those that are concurrent.
    pub fn call(&self, actor: &ActorHandle, method: &str) -> Call<'_> {
        Call { actor: actor.id(), remote: self.remote(format!("{}.{method}", actor.target())) }
    }

    /// Finds an actor by its name, whoever has created it.
    pub fn find_actor(&self, name: &str) -> Result<ActorHandle, RemoteError> {
        let report = self.actor_report(name)?;
        match &report.reason {
            Some(reason) => Err(RemoteError::submission(format!("actor {} `{name}` is dead: {reason}", report.id))),
            None => Ok(ActorHandle::of(&report)),
        }
    }

    /// Returns what the head says of an actor, which is named by its name or its id.
    pub fn actor_report(&self, wanted: &str) -> Result<ActorReport, RemoteError> {
        Ok(self.0.connection.actor_report(wanted)?)
    }

    /// Ends an actor: calls that wait fail, those that run may take `grace` (2 seconds unless said). One that has ended is none.
    pub fn end_actor(&self, actor: &ActorHandle, grace: Option<Duration>) -> Result<(), RemoteError> {
        Ok(self.0.connection.end_actor(actor.id(), grace)?)
    }
}

impl Remote<'_> {
    fn create(mut self, options: &ActorOptions) -> Result<TaskHandle, RemoteError> {
        self.spec.target.to_mut().push_str(".new");
        self.submit_as(ActorRole::Create(options.into()))
    }

    fn cluster(&self) -> Cluster {
        Cluster(Arc::clone(&self.cluster.0))
    }
}
