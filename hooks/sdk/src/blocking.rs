//! Runs futures to their end, on a runtime that the module owns.
//!
//! Tokio, like OpenTelemetry, is in every library once more, so a runtime of the host's would be of no use here. This
//! one has no threads of its own: the futures that a task spawns run while a task waits in it, on the task's
//! thread. One that outlives its task stands still until the module's next `async` task.
//!
//! So what is current on the thread is the task's only while the task's own future is polled. In between there is nothing: what an
//! earlier task left behind must not see this one's context.

use std::cell::Cell;

use tracer_abi::TASK_PHASE_WAIT;

use crate::task::{Failure, Phases};

thread_local! {
    /// Phases of the call on this thread, which are told when it waits for the first time; none once they were.
    static FIRST_WAIT: Cell<Option<Phases>> = const { Cell::new(None) };
}

/// Says who is told when the call on this thread waits for the first time, if anybody.
pub(crate) fn notify_first_wait(to: Option<Phases>) {
    FIRST_WAIT.set(to);
}

/// Tells who asked for it that the call on this thread waits, if it is the first time.
pub(crate) fn note_wait() {
    if let Some(phases) = FIRST_WAIT.take() {
        phases.begin(TASK_PHASE_WAIT);
    }
}

#[cfg(feature = "async")]
mod tokio_runtime {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::{Mutex, PoisonError};
    use std::task::Poll;
    use std::time::Duration;

    use tokio::runtime::{Builder, Handle, Runtime};
    use tokio::time::{MissedTickBehavior, interval};

    use super::{Failure, note_wait};
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

    /// Interval at which a task that waits looks whether it is to end.
    const LOOK_EVERY: Duration = Duration::from_millis(50);

    /// Runs `future` to its end on this thread. When the task is to end before, the future is dropped, as it would be by `select!`.
    pub fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
        let busy = Busy::take()?;
        let runtime = busy.0.as_ref().expect("it is taken away only when it is dropped");
        let (held, call) = (proxy::Held::current(), runtime::current());
        let _nothing = (proxy::Held::default().attach(), runtime::enter(None));
        let mut future = pin!(Some(future));
        runtime.block_on(async {
            let mut looks = interval(LOOK_EVERY);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            poll_fn(|context| {
                let _attached = (held.attach(), runtime::enter(call));
                let running = future.as_mut().as_pin_mut().expect("it is taken away with the last poll");
                if let Poll::Ready(output) = running.poll(context) {
                    return Poll::Ready(Ok(output));
                }
                note_wait();
                while call.is_some() && looks.poll_tick(context).is_ready() {
                    if call.is_some_and(|call| call.is_cancelled()) {
                        // Here, where what it has to clean up finds its context and the runtime.
                        future.set(None);
                        return Poll::Ready(Err(Failure::cancelled()));
                    }
                }
                Poll::Pending
            })
            .await
        })
    }

    /// Returns whether this thread is inside of [`block_on`], where it cannot enter again.
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

/// Blocks on a future; it cannot be called without feature `async`.
#[cfg(not(feature = "async"))]
pub fn block_on<F: Future + AsyncFeature>(_future: F) -> Result<F::Output, Failure> {
    Err(Failure::runtime("tracer-sdk was built without feature `async`"))
}

#[cfg(not(feature = "async"))]
pub(crate) fn is_entered() -> bool {
    false
}
