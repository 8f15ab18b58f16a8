//! Actors, as a driver has them: it creates them, calls them, finds them and ends them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Argument, Driver, DriverError, Remote, Ticket};
use tracer_core::task::{ActorRole, Refusal, RefusalCode, TaskId, TaskOptions};
use tracer_ipc::protocol::{ActorReport, ActorState};
use tracer_options::{ActorOptions, HasOptions};

/// An actor somewhere: it may be called, and passed on as an argument, where it arrives as an `ActorHandle` of `tracer-sdk`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActorHandle {
    #[serde(rename = "actor_id")]
    id: TaskId,
    #[serde(rename = "actor")]
    target: String,
}

impl ActorHandle {
    /// Returns the actor's id, which is that of the task that creates it.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// Returns what it is: `module:Type`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the actor of a row.
    pub fn of(report: &ActorReport) -> ActorHandle {
        ActorHandle { id: report.id, target: format!("{}:{}", report.module, report.type_name) }
    }
}

/// An actor that is about to be created; see [`Driver::actor`].
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
    pub fn arg(mut self, argument: impl Argument) -> Result<Self, DriverError> {
        self.remote = self.remote.arg(argument)?;
        Ok(self)
    }

    tracer_options::actor_builder_methods!([later]);

    /// Creates the actor. It is accepted when this returns, and `new` may not have run; calls wait for it. If `new` fails, every call fails
    /// with the reason.
    pub fn create(self) -> Result<ActorHandle, DriverError> {
        let Actor { mut remote, options } = self;
        remote.target.push_str(".new");
        remote.options.name.clone_from(&options.name);
        let (task, driver) = remote.submit_as(ActorRole::Create((&options).into()))?;
        let id = driver.accepted(&task)?;
        driver.connection.with(|exchange| exchange.forget(task.tag()));
        let report = driver.actor_report(&id.to_string())?;
        match report.reason {
            // Whoever has taken the name is said at once.
            Some(reason) if !options.name.is_empty() => {
                Err(DriverError::Refused(Refusal::new(RefusalCode::Other, reason)))
            }
            _ => Ok(ActorHandle::of(&report)),
        }
    }
}

/// A call of an actor's method that is being put together; see [`Driver::call`].
#[must_use = "nothing is called before `submit`"]
pub struct Call<'a> {
    remote: Remote<'a>,
    actor: TaskId,
}

impl HasOptions for Call<'_> {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        &mut self.remote.options
    }
}

impl Call<'_> {
    /// Adds the next argument, as [`Remote::arg`] does.
    pub fn arg(mut self, argument: impl Argument) -> Result<Self, DriverError> {
        self.remote = self.remote.arg(argument)?;
        Ok(self)
    }

    /// Names the call, for people.
    pub fn name(mut self, name: &str) -> Self {
        self.remote = self.remote.name(name);
        self
    }

    tracer_options::call_builder_methods!([later]);

    /// Submits the call. It is sent with the next batch.
    pub fn submit(self) -> Result<Ticket, DriverError> {
        self.remote.submit_as(ActorRole::Call(self.actor)).map(|(task, _)| task)
    }
}

impl Driver {
    /// Begins the creation of an actor: `module:Type`. It gets a worker process of its own, and ends with this driver unless it is
    /// [detached](Actor::detached).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut driver = tracer::Driver::connect(&tracer::environment::default_temp_dir())?;
    /// let hits = driver.actor("counter:Counter").arg(0)?.name("hits").max_restarts(3).create()?;
    /// for _ in 0..1000 {
    ///     driver.call(&hits, "increment").arg(1)?.submit()?;
    /// }
    /// let count = driver.call(&hits, "get").submit()?;
    /// assert_eq!(driver.get::<i64>(count)?, 1000);
    /// # Ok(()) }
    /// ```
    pub fn actor(&mut self, target: &str) -> Actor<'_> {
        Actor { remote: self.remote(target), options: ActorOptions::default() }
    }

    /// Begins a call of an actor's method. Calls that a driver submits run in their order, save for those that are concurrent.
    pub fn call(&mut self, actor: &ActorHandle, method: &str) -> Call<'_> {
        Call { actor: actor.id, remote: self.remote(&format!("{}.{method}", actor.target)) }
    }

    /// Finds an actor by its name, whoever has created it.
    pub fn find_actor(&mut self, name: &str) -> Result<ActorHandle, DriverError> {
        let report = self.actor_report(name)?;
        match &report.reason {
            Some(reason) if report.state == ActorState::Dead => {
                let id = report.id;
                Err(DriverError::Actor(format!("actor {id} `{name}` is dead: {reason}")))
            }
            _ => Ok(ActorHandle::of(&report)),
        }
    }

    /// Returns what the head says of an actor, which is named by its name or its id.
    pub fn actor_report(&mut self, wanted: &str) -> Result<ActorReport, DriverError> {
        self.connection.actor_report(wanted)
    }

    /// Ends an actor: calls that wait fail, those that run may take `grace` (2 seconds unless said). One that has ended is none.
    pub fn end_actor(&mut self, actor: TaskId, grace: Option<Duration>) -> Result<(), DriverError> {
        self.connection.end_actor(actor, grace)
    }
}
