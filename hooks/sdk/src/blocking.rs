//! Runs futures to their end, on a runtime that the module owns.
//!
//! Tokio, like OpenTelemetry, is in every library once more, so a runtime of the host's would be of no use here. This
//! one has no threads of its own: the futures that a task spawns run while a task waits in it, on the task's
//! thread. One that outlives its task stands still until the module's next `async` task.
//!
//! So what is current on the thread is the task's only while the task's own future is polled. In between there is nothing: what an
//! earlier task left behind must not see this one's context.

use crate::task::Failure;

#[cfg(feature = "async")]
mod tokio_runtime {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::{Mutex, PoisonError};

    use tokio::runtime::{Builder, Handle, Runtime};

    use super::Failure;
    use crate::{proxy, runtime};

    /// Runtimes that nobody is in. There is one, unless tasks were nested: a runtime that is waited in runs nothing
    /// that others spawn on it.
    static IDLE: Mutex<Vec<Runtime>> = Mutex::new(Vec::new());

    /// A runtime in use. It is idle again when this is dropped, also by a panic.
    struct Busy(Option<Runtime>);

    impl Busy {
        fn take() -> Result<Busy, Failure> {
            let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let runtime = match idle {
                Some(runtime) => runtime,
                None => Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| Failure::runtime(format!("cannot start the async runtime: {error}")))?,
            };
            Ok(Busy(Some(runtime)))
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
        }
    }

    /// Runs `future` to its end on this thread.
    pub fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
        let busy = Busy::take()?;
        let runtime = busy.0.as_ref().expect("it is taken away only when it is dropped");
        let (held, call) = (proxy::Held::current(), runtime::current());
        let _nothing = (proxy::Held::default().attach(), runtime::enter(None));
        let mut future = pin!(future);
        Ok(runtime.block_on(poll_fn(|context| {
            let _attached = (held.attach(), runtime::enter(call));
            future.as_mut().poll(context)
        })))
    }

    /// Whether this thread is inside of [`block_on`], where it cannot enter again.
    pub(crate) fn is_entered() -> bool {
        Handle::try_current().is_ok()
    }
}

#[cfg(feature = "async")]
pub use tokio_runtime::block_on;
#[cfg(feature = "async")]
pub(crate) use tokio_runtime::is_entered;

/// Implemented for nothing: says what is missing.
#[cfg(not(feature = "async"))]
#[diagnostic::on_unimplemented(
    message = "a task that is an `async fn` needs feature `async` of tracer-sdk",
    label = "this task is an `async fn`"
)]
pub trait AsyncFeature {}

/// Cannot be called without feature `async`.
#[cfg(not(feature = "async"))]
pub fn block_on<F: Future + AsyncFeature>(_future: F) -> Result<F::Output, Failure> {
    Err(Failure::runtime("tracer-sdk was built without feature `async`"))
}

#[cfg(not(feature = "async"))]
pub(crate) fn is_entered() -> bool {
    false
}
