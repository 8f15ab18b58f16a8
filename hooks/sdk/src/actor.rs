//! Actors: a state that lives in a worker of its own, and the methods that are called on it from anywhere.

use std::any::Any;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tracer_abi::{self as abi, Str};
use tracer_options::{ActorOptions, HasOptions, TaskOptions};

use crate::host;
use crate::remote::{Argument, Parts, RemoteError, TaskHandle, submit, with_reason};
use crate::task::{Arguments, Failure};

/// Begins the creation of an actor: `module:Type`, as the attribute [`actor`](macro@crate::actor) exports it.
///
/// The actor gets a worker process of its own. It ends with the job that has created it, unless it is [detached](Actor::detached).
///
/// ```no_run
/// use tracer_sdk::{RemoteError, actor, find_actor, task};
///
/// #[task]
/// fn count_hits(urls: Vec<String>) -> Result<i64, RemoteError> {
///     let hits = actor("counter:Counter").arg(0).name("hits").max_restarts(3).create()?;
///     for url in &urls {
///         hits.call("increment").arg(url.len()).submit()?;
///     }
///     // Somewhere else:
///     find_actor("hits")?.call("get").submit()?.get()
/// }
/// ```
pub fn actor(target: impl Into<String>) -> Actor {
    Actor { parts: Parts::new(target), options: ActorOptions::default() }
}

/// An actor that is about to be created; see [`actor`](fn@actor).
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct Actor {
    parts: Parts,
    options: ActorOptions,
}

impl HasOptions for Actor {
    type Options = ActorOptions;

    fn options(&mut self) -> &mut ActorOptions {
        &mut self.options
    }
}

impl Actor {
    /// Adds the next argument of `new`, as [`Remote::arg`](crate::Remote::arg) does.
    pub fn arg(mut self, argument: impl Argument) -> Actor {
        self.parts.add(&argument);
        self
    }

    tracer_options::actor_builder_methods!([later]);

    /// Creates the actor. It is accepted when this returns, and `new` may not have run; calls wait for it. If `new` fails, every call fails with
    /// the reason.
    pub fn create(self) -> Result<ActorHandle, RemoteError> {
        let host_find_actor = entry()?;
        let (module, type_name) = self.parts.target("an actor", "module:Type")?;
        let ActorOptions { name, max_restarts, max_call_retries, detached, get_or_create } = &self.options;
        let flag = |is_set: &bool, flag| if *is_set { flag } else { 0 };
        let options = abi::ActorOptions {
            size: size_of::<abi::ActorOptions>(),
            name: Str::new(name),
            max_restarts: *max_restarts,
            max_call_retries: *max_call_retries,
            flags: flag(detached, abi::ACTOR_DETACHED) | flag(get_or_create, abi::ACTOR_OR_EXISTING),
        };
        let function = format!("{type_name}.new");
        let created = submit(&self.parts, module, &function, function.clone(), 0, &options)?;
        let id = created.id().ok_or_else(|| RemoteError::submission("the head did not take the actor in"))?;
        // Whoever has taken the name is said at once.
        let found = find(host_find_actor, &id.to_string())?;
        match found.death {
            Some(death) if !name.is_empty() => Err(RemoteError::submission(death)),
            _ => Ok(found.handle),
        }
    }
}

/// An actor somewhere: it may be called, and passed on.
///
/// It is a value like any other: a task or a method with an `ActorHandle` among its parameters takes `&handle` as the argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActorHandle {
    #[serde(rename = "actor_id")]
    id: u64,
    #[serde(rename = "actor")]
    target: String,
}

impl ActorHandle {
    /// Returns the actor's id, which is that of the task that creates it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns what it is: `module:Type`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Begins a call of a method. Calls that one task submits run in their order, save for those that are concurrent.
    pub fn call(&self, method: impl AsRef<str>) -> Call {
        let (module, type_name) = self.target.rsplit_once(':').unwrap_or(("", &self.target));
        let function = format!("{type_name}.{}", method.as_ref());
        Call { parts: Parts::new(format!("{module}:{function}")), actor: self.id }
    }

    /// Ends the actor: calls that wait fail, those that run may take 2 seconds. One that has ended is none.
    pub fn kill(&self) -> Result<(), RemoteError> {
        /// Milliseconds.
        const GRACE: u64 = 2000;
        entry()?;
        let host_end_actor = host::entry(|host| host.host_end_actor).map_err(RemoteError::submission)?;
        // SAFETY: the host's function, which writes to the buffer only.
        with_reason(|error| unsafe { host_end_actor(self.id, GRACE, error) }).map(drop).map_err(RemoteError::submission)
    }
}

/// A call of an actor's method that is being put together; see [`ActorHandle::call`].
#[derive(Debug)]
#[must_use = "nothing is called before `submit`"]
pub struct Call {
    parts: Parts,
    actor: u64,
}

impl HasOptions for Call {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        &mut self.parts.options
    }
}

impl Call {
    /// Adds the next argument, as [`Remote::arg`](crate::Remote::arg) does.
    pub fn arg(mut self, argument: impl Argument) -> Call {
        self.parts.add(&argument);
        self
    }

    /// Names the call, for people.
    pub fn name(mut self, name: impl Into<String>) -> Call {
        self.parts.options.name = name.into();
        self
    }

    tracer_options::call_builder_methods!([later]);

    /// Submits the call. It is on its way when this returns, as [`Remote::submit`](crate::Remote::submit) says.
    pub fn submit(self) -> Result<TaskHandle, RemoteError> {
        entry()?;
        let (module, function) = self.parts.target("a method", "module:Type.method")?;
        let called = function.to_owned();
        submit(&self.parts, module, function, called, self.actor, std::ptr::null())
    }
}

/// Finds an actor by its name, whoever has created it: the living one, or, if there is none, the last one that had the name.
pub fn find_actor(name: impl AsRef<str>) -> Result<ActorHandle, RemoteError> {
    let found = find(entry()?, name.as_ref())?;
    match found.death {
        None => Ok(found.handle),
        Some(death) => {
            let text = format!("actor {} `{}` is dead: {death}", found.handle.id, name.as_ref());
            Err(RemoteError::submission(text))
        }
    }
}

struct Found {
    handle: ActorHandle,
    death: Option<String>,
}

type FindActor = unsafe extern "C" fn(
    Str,
    *mut c_void,
    Option<unsafe extern "C" fn(*mut c_void, *const abi::ActorIdentity)>,
    *mut abi::TextBuffer,
) -> u32;

/// Returns the host's entry, which is there in all hosts that have actors.
fn entry() -> Result<FindActor, RemoteError> {
    host::entry_since(2, "there are no actors", |host| host.host_find_actor).map_err(RemoteError::submission)
}

fn find(host_find_actor: FindActor, wanted: &str) -> Result<Found, RemoteError> {
    unsafe extern "C" fn on_found(data: *mut c_void, actor: *const abi::ActorIdentity) {
        // SAFETY: `data` is `found` of the call that is going on; what the actor points to is borrowed for this one.
        unsafe {
            let actor = host::read_sized(actor);
            let text = |text: Str| String::from_utf8_lossy(text.as_bytes()).into_owned();
            let target = format!("{}:{}", text(actor.module), text(actor.type_name));
            let death = Some(text(actor.death)).filter(|death| !death.is_empty());
            *data.cast::<Option<Found>>() = Some(Found { handle: ActorHandle { id: actor.actor_id, target }, death });
        }
    }
    let mut found: Option<Found> = None;
    let data = std::ptr::from_mut(&mut found).cast();
    // SAFETY: the host's function; it calls back before it returns.
    with_reason(|error| unsafe { host_find_actor(Str::new(wanted), data, Some(on_found), error) })
        .map_err(RemoteError::submission)?;
    found.ok_or_else(|| RemoteError::submission(format!("the host says nothing of actor `{wanted}`")))
}

// The module's side: the state.

/// An actor's state, as the host keeps it: behind a lock, because methods that take `&self` may run beside each other. The host lets those
/// that take `&mut self` run alone, so nobody ever waits for it.
struct ActorCell<T>(RwLock<T>);

/// Target of the pointer that the host keeps.
type AnyState = Box<dyn Any>;

impl Arguments<'_> {
    /// Hands a new actor's state to the host.
    pub fn create<T: 'static>(&self, state: T) -> Result<(), Failure> {
        if self.state.is_null() {
            return Err(Failure::runtime("the host has no place for the state of an actor"));
        }
        let state: AnyState = Box::new(ActorCell(RwLock::new(state)));
        // SAFETY: the place is the host's, for the time of the call.
        unsafe { *self.state = Box::into_raw(Box::new(state)).cast() };
        Ok(())
    }

    /// Calls `f` with the actor's state, which others may look at meanwhile.
    pub fn with_state<T: 'static, R>(&self, f: impl FnOnce(&T) -> R) -> Result<R, Failure> {
        let kept = self.kept::<T>()?;
        let state = kept.0.read().unwrap_or_else(PoisonError::into_inner);
        Ok(f(&state))
    }

    /// Calls `f` with the actor's state, which nobody else has meanwhile.
    pub fn with_state_mut<T: 'static, R>(&self, f: impl FnOnce(&mut T) -> R) -> Result<R, Failure> {
        let kept = self.kept::<T>()?;
        let mut state = kept.0.write().unwrap_or_else(PoisonError::into_inner);
        Ok(f(&mut state))
    }

    fn kept<T: 'static>(&self) -> Result<&ActorCell<T>, Failure> {
        // SAFETY: null, or the host's place for the state that `create` has put there.
        let state = unsafe { self.state.as_ref().and_then(|state| state.cast::<AnyState>().as_ref()) };
        let kept = state.and_then(|state| state.downcast_ref());
        kept.ok_or_else(|| Failure::runtime("the host has called a method without the state of its actor"))
    }
}

/// Releases a state that [`Arguments::create`] has made.
///
/// # Safety
///
/// `state` is what the host was given then, and nobody uses it any more.
pub(crate) unsafe fn release(state: *mut c_void) {
    // SAFETY: promised by the caller.
    drop(unsafe { Box::from_raw(state.cast::<AnyState>()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::{Encoded, RemoteErrorKind};

    #[test]
    fn without_a_host_there_are_no_actors_and_it_is_said_why() {
        let error = actor("counter:Counter").arg(0).create().expect_err("there is no host");
        assert_eq!(error.kind(), RemoteErrorKind::Submission);
        assert!(find_actor("hits").is_err());
    }

    #[test]
    fn a_handle_is_a_value_that_programs_can_read() {
        let handle = ActorHandle { id: 7, target: "counter:Counter".to_owned() };
        let Ok(Encoded::Value(bytes)) = handle.encode() else { panic!("a handle is a value") };
        assert_eq!(crate::messagepack::decode::<ActorHandle>(&bytes).unwrap(), handle);
        assert_eq!(handle.call("get").parts.target, "counter:Counter.get");
    }
}
