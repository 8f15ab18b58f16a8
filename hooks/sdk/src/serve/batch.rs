//! Batches: a function that takes many inputs at once, each from a caller of its own.
//!
//! A handler that is free takes what is due, one batch at a time, in a future of its own. Callers wait for their outputs; one that is dropped leaves.

#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
mod figures;
mod gathering;
mod span;

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
/// Makes a function take its inputs in batches: it is written for many, and called with one.
///
/// ```
/// use tracer_sdk::serve::{BatchError, Json, batch, deployment};
///
/// pub struct Model;
///
/// #[deployment(max_ongoing_requests = 64)]
/// impl Model {
///     pub fn new() -> Self {
///         Model
///     }
///
///     /// One request; up to 32 that are there at the same time are predicted together.
///     pub async fn handle(&self, input: Json<f64>) -> Result<Json<f64>, BatchError> {
///         self.predict(input.0).await.map(Json)
///     }
///
///     #[batch(max_size = 32, wait = "5ms")]
///     async fn predict(&self, inputs: Vec<f64>) -> Vec<f64> {
///         inputs.into_iter().map(f64::sqrt).collect()
///     }
/// }
///
/// /// The same as a function: each request gives one element, and gets one.
/// #[deployment]
/// #[batch(max_size = 32)]
/// fn roots(inputs: Vec<Json<f64>>) -> Vec<Json<f64>> {
///     inputs.into_iter().map(|input| Json(input.0.sqrt())).collect()
/// }
/// ```
///
/// It stands on a function, or on a method with `&self` of a [`deployment`](super::deployment). The function takes a `Vec<I>` and returns a `Vec<O>` with one output for
/// each input in their order, or a `Result` of that. Its callers see `async fn(I) -> Result<O, BatchError>`. One that is not `async` runs on a thread of
/// the replica's pool.
///
/// - `max_size`: the most inputs in a batch, from 1 to 4096. Of a deployment's functions it is at most the number of requests that a replica handles at a time: a deploy with a
///   lower limit is refused.
/// - `wait`: the time after which a batch begins that is not full, counted from its first input; `"0"` unless said: then a handler that is free takes what is there. A replica's
///   timer has a resolution of a millisecond.
///
/// One batch of a function runs at a time in each replica; what comes meanwhile waits for the next one. A caller that is dropped, because its client has gone, leaves the batch; when it
/// has begun, its output is dropped. When the function fails, panics, or returns a wrong number of outputs, each caller of the batch gets a [`BatchError`].
///
/// The span `batch <deployment>.<function>` is a child of the span that is current at the oldest sampled caller, and is linked with those of all sampled callers, in both directions. Inside
/// of a batch there is no [`request_context`](super::request_context).
///
/// Outside of a replica, as in tests of a library, each call is a batch of its own.
pub use tracer_macros::batch;

use self::gathering::{Batch, Gathering, Next, Ticket};
use self::span::{BatchSpan, Caller};
use super::handler::Boxed;
use super::lent::HostTable;
use crate::proxy::Held;
use crate::task::Failure;
use crate::{panics, runtime};

/// The reason for which a caller of a [`batch`] has no output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchError {
    /// The function returned another number of outputs than it was given inputs.
    #[non_exhaustive]
    Count {
        /// The function.
        function: &'static str,
        /// Number of inputs.
        inputs: usize,
        /// Number of outputs.
        outputs: usize,
    },
    /// The function returned an error.
    #[non_exhaustive]
    Failed {
        /// The function.
        function: &'static str,
        /// Its words.
        message: String,
    },
    /// The function panicked.
    #[non_exhaustive]
    Panicked {
        /// The function.
        function: &'static str,
        /// Message and place of the panic.
        message: String,
    },
    /// The replica ended before.
    #[non_exhaustive]
    Ended {
        /// The function.
        function: &'static str,
    },
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchError::Count { function, inputs, outputs } => {
                write!(
                    f,
                    "the batch of `{function}` failed: expected as many outputs as inputs, {inputs}, found {outputs}"
                )
            }
            BatchError::Failed { function, message } => write!(f, "the batch of `{function}` failed: {message}"),
            BatchError::Panicked { function, message } => write!(f, "the batch of `{function}` panicked: {message}"),
            BatchError::Ended { function } => write!(f, "the replica ended before the batch of `{function}`"),
        }
    }
}

impl std::error::Error for BatchError {}

/// Outputs of a batch, or the failure of all.
#[doc(hidden)]
pub type Outputs<O> = Result<Vec<O>, Failure>;

/// A function that runs a batch on its state.
#[doc(hidden)]
pub type BatchFunction<S, I, O> = fn(Arc<S>, Vec<I>) -> Boxed<Outputs<O>>;

/// The static part of a function with [`batch`].
#[doc(hidden)]
pub struct BatchPoint {
    function: &'static str,
    max_size: u32,
    wait: Duration,
    /// For each state that calls have come with: what waits there.
    batchers: Mutex<Vec<(AnyState, Arc<dyn Any + Send + Sync>)>>,
}

type AnyState = Weak<dyn Any + Send + Sync>;

/// States of this process' deployments, and the one of functions that have none.
static STATES: Mutex<Vec<AnyState>> = Mutex::new(Vec::new());
/// The replica of this process; before it begins none.
static REPLICA: Mutex<Option<HostTable>> = Mutex::new(None);
/// The state of functions that have none.
static NO_STATE: Mutex<Option<Arc<()>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that this process is a replica, so that calls are put together.
pub(super) fn begin_replica(host: HostTable) {
    *lock(&REPLICA) = Some(host);
    *lock(&NO_STATE) = Some(Arc::new(()));
}

fn replica() -> Option<HostTable> {
    *lock(&REPLICA)
}

/// Makes the state of a deployment one whose batched methods find it.
#[doc(hidden)]
pub fn adopt<S: Send + Sync + 'static>(state: &Arc<S>) {
    let mut states = lock(&STATES);
    states.retain(|state| state.strong_count() > 0);
    let weak = Arc::downgrade(state);
    states.push(weak);
}

impl BatchPoint {
    pub const fn new(function: &'static str, max_size: u32, wait_nanos: u64) -> BatchPoint {
        BatchPoint { function, max_size, wait: Duration::from_nanos(wait_nanos), batchers: Mutex::new(Vec::new()) }
    }

    /// Returns the state that `of` points to, if it is a deployment's in a replica.
    pub fn state<S: Send + Sync + 'static>(&self, of: &S) -> Option<Arc<S>> {
        let states = lock(&STATES);
        let found = states.iter().find(|state| std::ptr::addr_eq(state.as_ptr(), of))?.upgrade();
        drop(states);
        found?.downcast().ok()
    }

    /// Returns the state of a function that has none, if this process is a replica.
    pub fn no_state(&self) -> Option<Arc<()>> {
        lock(&NO_STATE).clone()
    }

    /// Runs a batch of one, outside of a replica.
    pub async fn alone<O>(&self, outputs: impl Future<Output = Outputs<O>>) -> Result<O, BatchError> {
        let outputs = outputs.await.map_err(|failure| self.error(&failure))?;
        let mut outputs = self.counted(1, outputs)?;
        outputs.pop().ok_or(BatchError::Ended { function: self.function })
    }

    /// Waits for the output of an input, which goes into a batch with others.
    pub async fn collect<S, I, O>(
        &'static self,
        state: Arc<S>,
        input: I,
        run: BatchFunction<S, I, O>,
    ) -> Result<O, BatchError>
    where
        S: Send + Sync + 'static,
        I: Send + 'static,
        O: Send + 'static,
    {
        let batcher = self.batcher(&state);
        let (answer, answered) = oneshot::channel();
        let call = Call { input, answer, caller: Caller::current() };
        let (ticket, is_first) = batcher.put(call);
        let mut waiting = WaitingCall { batcher, ticket: Some(ticket) };
        if is_first {
            tokio::spawn(Runner { batcher: waiting.batcher.clone(), state, run }.run());
        }
        let answer = answered.await;
        waiting.ticket = None;
        answer.unwrap_or(Err(BatchError::Ended { function: self.function }))
    }

    /// Returns what waits for this function with that state.
    fn batcher<S, I, O>(&'static self, state: &Arc<S>) -> Arc<Batcher<I, O>>
    where
        S: Send + Sync + 'static,
        I: Send + 'static,
        O: Send + 'static,
    {
        let mut batchers = lock(&self.batchers);
        batchers.retain(|(state, _)| state.strong_count() > 0);
        let known = batchers.iter().find(|(known, _)| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(state)));
        if let Some(batcher) = known.and_then(|(_, batcher)| batcher.clone().downcast().ok()) {
            return batcher;
        }
        let made = Arc::new(Batcher::new(self));
        let weak = Arc::downgrade(state);
        batchers.push((weak, made.clone()));
        made
    }

    fn counted<O>(&self, inputs: usize, outputs: Vec<O>) -> Result<Vec<O>, BatchError> {
        match outputs.len() {
            count if count == inputs => Ok(outputs),
            outputs => Err(BatchError::Count { function: self.function, inputs, outputs }),
        }
    }

    fn error(&self, failure: &Failure) -> BatchError {
        let (function, message) = (self.function, failure.message.clone());
        if failure.kind != tracer_abi::TASK_ERROR_PANICKED {
            return BatchError::Failed { function, message };
        }
        let place = if failure.location.is_empty() { String::new() } else { format!(" at {}", failure.location) };
        BatchError::Panicked { function, message: message + &place }
    }
}

/// Runs a function that blocks on a thread of the pool, with what is current here.
#[doc(hidden)]
pub async fn on_a_thread<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Result<R, Failure> {
    if Handle::try_current().is_err() {
        return panics::catch(f).map_err(Failure::of_panic);
    }
    let held = Held::current();
    let call = move || {
        let _current = held.attach();
        panics::catch(f)
    };
    match tokio::task::spawn_blocking(call).await {
        Ok(outcome) => outcome.map_err(Failure::of_panic),
        Err(error) => Err(Failure::runtime(format!("the thread of the batch ended without a result: {error}"))),
    }
}

/// A call that waits for its output.
struct Call<I, O> {
    input: I,
    answer: oneshot::Sender<Result<O, BatchError>>,
    caller: Caller,
}

/// Calls of one function with one state.
struct Batcher<I, O> {
    point: &'static BatchPoint,
    state: Mutex<State<I, O>>,
    /// Told when a batch is full that waits for its time.
    full: Notify,
}

struct State<I, O> {
    gathering: Gathering<Call<I, O>>,
    /// True while a [`Runner`] takes what waits.
    has_runner: bool,
}

impl<I, O> Batcher<I, O> {
    fn new(point: &'static BatchPoint) -> Batcher<I, O> {
        let gathering = Gathering::new(point.max_size as usize, point.wait);
        Batcher { point, state: Mutex::new(State { gathering, has_runner: false }), full: Notify::new() }
    }

    /// Takes a call. Returns whether a runner is to be started.
    fn put(&self, call: Call<I, O>) -> (Ticket, bool) {
        let mut state = lock(&self.state);
        let ticket = state.gathering.put(call, Instant::now());
        let is_first = !std::mem::replace(&mut state.has_runner, true);
        if state.gathering.is_full() {
            self.full.notify_one();
        }
        (ticket, is_first)
    }

    /// Waits for the batch that is due. None when nothing waits any more; then the runner is none.
    async fn next(&self) -> Option<Batch<Call<I, O>>> {
        loop {
            let next = {
                let mut state = lock(&self.state);
                let next = state.gathering.next(Instant::now());
                state.has_runner = !matches!(next, Next::Nothing);
                next
            };
            match next {
                Next::Batch(batch) => return Some(batch),
                Next::Nothing => return None,
                Next::Until(due) => {
                    let (mut time, mut full) = (pin!(tokio::time::sleep_until(due.into())), pin!(self.full.notified()));
                    poll_fn(|context| match time.as_mut().poll(context) {
                        Poll::Ready(()) => Poll::Ready(()),
                        Poll::Pending => full.as_mut().poll(context),
                    })
                    .await;
                }
            }
        }
    }
}

/// A caller's place. Dropped before the batch has begun, it takes the call out.
struct WaitingCall<I, O> {
    batcher: Arc<Batcher<I, O>>,
    ticket: Option<Ticket>,
}

impl<I, O> Drop for WaitingCall<I, O> {
    fn drop(&mut self) {
        // What the input's own `drop` does is done without the lock.
        let left = self.ticket.map(|ticket| lock(&self.batcher.state).gathering.leave(ticket));
        drop(left);
    }
}

/// Takes batches one after the other while there are any.
struct Runner<S, I, O> {
    batcher: Arc<Batcher<I, O>>,
    state: Arc<S>,
    run: BatchFunction<S, I, O>,
}

impl<S, I, O> Runner<S, I, O> {
    async fn run(self) {
        // It may be dropped with its runtime: then those that wait are told, and a later call starts another one.
        let ended = Ended(&self.batcher);
        while let Some(batch) = ended.0.next().await {
            self.handle(batch).await;
        }
        std::mem::forget(ended);
    }

    /// Runs a batch and gives each caller its output.
    async fn handle(&self, batch: Batch<Call<I, O>>) {
        let point = self.batcher.point;
        let (mut inputs, mut answers) =
            (Vec::with_capacity(batch.inputs.len()), Vec::with_capacity(batch.inputs.len()));
        let mut callers = Vec::with_capacity(batch.inputs.len());
        for Call { input, answer, caller } in batch.inputs {
            inputs.push(input);
            answers.push(answer);
            callers.push(caller);
        }
        let count = inputs.len();
        let span = BatchSpan::start(point.function, &callers, batch.waited, replica());
        drop(callers);
        #[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
        figures::count(point.function, count, batch.waited, replica());
        let outputs = within(&span.held, || (self.run)(self.state.clone(), inputs)).await;
        let outcome = match outputs {
            Ok(outputs) => point.counted(count, outputs).map_err(|error| {
                let failure = Failure::returned(&error, error.to_string());
                Box::new((error, failure))
            }),
            Err(failure) => Err(Box::new((point.error(&failure), failure))),
        };
        // The span has ended before anybody has an answer.
        span.end(outcome.as_ref().err().map(|failed| &failed.1));
        match outcome {
            Ok(outputs) => {
                for (answer, output) in answers.into_iter().zip(outputs) {
                    drop(answer.send(Ok(output)));
                }
            }
            Err(failed) => answers.into_iter().for_each(|answer| drop(answer.send(Err(failed.0.clone())))),
        }
    }
}

/// Guard of a runner that is dropped.
struct Ended<'a, I, O>(&'a Batcher<I, O>);

impl<I, O> Drop for Ended<'_, I, O> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.has_runner = false;
        let left = state.gathering.clear();
        drop(state);
        drop(left);
    }
}

/// Runs a batch's future with `held` current and nothing else; a panic is a failure.
async fn within<O>(held: &Held, run: impl FnOnce() -> Boxed<Outputs<O>>) -> Outputs<O> {
    let enter = || (held.attach(), super::context::enter(None), runtime::enter(None));
    let mut future = {
        let _current = enter();
        Some(panics::catch(run).map_err(Failure::of_panic)?)
    };
    let outputs = poll_fn(|context| {
        let _current = enter();
        let Some(running) = &mut future else { return Poll::Pending };
        match panics::catch(|| running.as_mut().poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(outputs)) => Poll::Ready(outputs),
            Err(panic) => Poll::Ready(Err(Failure::of_panic(panic))),
        }
    })
    .await;
    let _current = enter();
    let dropped = panics::catch(|| drop(future.take()));
    outputs.and_then(|outputs| dropped.map(|()| outputs).map_err(Failure::of_panic))
}
