//! Actors, as a program has them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::{Argument, Cluster, Remote, RemoteError, TaskHandle};
use crate::driver::ActorHandle;
use tracer_core::task::{ActorOptions, ActorRole, TaskId};
use tracer_ipc::protocol::{ActorReport, CancelWhich, Query, Reply};

/// An actor that is about to be created; see [`Cluster::actor`].
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct Actor<'a> {
    remote: Remote<'a>,
    name: String,
    options: ActorOptions<'static>,
}

impl Actor<'_> {
    /// Adds the next argument of `new`, as [`Remote::arg`] does.
    pub fn arg(mut self, argument: impl Argument) -> Self {
        self.remote = self.remote.arg(argument);
        self
    }

    /// Gives it a name, by which [`Cluster::find_actor`] finds it. While it lives, no other actor can have that name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Creates it again when its worker was lost, up to `limit` times; 0 unless said. Its state begins anew.
    pub fn max_restarts(mut self, limit: u32) -> Self {
        self.options.max_restarts = limit;
        self
    }

    /// Runs a call again that was going on when the worker was lost, up to `limit` times; 0 unless said. Calls that had not begun wait
    /// in any case, as long as the actor is created again.
    pub fn max_call_retries(mut self, limit: u32) -> Self {
        self.options.max_call_retries = limit;
        self
    }

    /// Lets it outlive this program, until somebody ends it.
    pub fn detached(mut self) -> Self {
        self.options.is_detached = true;
        self
    }

    /// Takes the living actor of this name and type, if there is one, and creates none.
    pub fn get_or_create(mut self) -> Self {
        self.options.or_existing = true;
        self
    }

    /// Creates the actor. It is accepted when this returns, and `new` may not have run; calls wait for it. If `new` fails, every call fails
    /// with the reason.
    pub fn create(self) -> Result<ActorHandle, RemoteError> {
        let Actor { remote, name, options } = self;
        let cluster = remote.cluster();
        let created = remote.name(&name).create(ActorOptions { name: &name, ..options })?;
        let report = cluster.actor_report(&created.task_id()?.to_string())?;
        match report.reason {
            // Whoever has taken the name is said at once.
            Some(reason) if !name.is_empty() => Err(RemoteError::submission(reason)),
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

    /// Bounds how long the call may run. It has the actor for itself then. If it does not end, the actor's worker is ended.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.remote = self.remote.timeout(limit);
        self
    }

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
        Actor { remote: self.remote(target), name: String::new(), options: ActorOptions::default() }
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

    /// What the head says of an actor, which is named by its name or its id.
    pub fn actor_report(&self, wanted: &str) -> Result<ActorReport, RemoteError> {
        match self.0.connection.query(&Query::Actor { wanted: wanted.into() }, None)? {
            Some(Reply::Actor(Ok(report))) => Ok(*report),
            Some(Reply::Actor(Err(reason))) => Err(RemoteError::submission(reason)),
            _ => Err(RemoteError::submission(format!("the head did not say what it knows of actor `{wanted}`"))),
        }
    }

    /// Ends an actor: calls that wait fail, those that run may take `grace` (2 seconds unless said). One that has ended is none.
    pub fn end_actor(&self, actor: &ActorHandle, grace: Option<Duration>) -> Result<(), RemoteError> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let query = Query::Cancel { which: CancelWhich::Ids(vec![actor.id()]), grace_ms };
        Ok(self.0.connection.query(&query, None).map(drop)?)
    }
}

impl Remote<'_> {
    fn create(mut self, options: ActorOptions<'_>) -> Result<TaskHandle, RemoteError> {
        self.what.target.to_mut().push_str(".new");
        self.submit_as(ActorRole::Create(options))
    }

    fn cluster(&self) -> Cluster {
        Cluster(Arc::clone(&self.cluster.0))
    }
}
