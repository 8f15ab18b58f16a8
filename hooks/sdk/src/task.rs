//! The two ends of a task: its arguments before the call, and its result or error after it.
//!
//! What a task returns is told apart by type, with method calls that find the most specific of several traits. The
//! attribute writes those calls where the types are known.

use std::any::type_name;
use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error;
use std::ffi::c_void;
use std::fmt::{Display, Write};
use std::{io, ptr};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracer_abi::{
    Bytes, Str, TASK_ERROR_ARGUMENTS, TASK_ERROR_PANICKED, TASK_ERROR_RESULT, TASK_ERROR_RETURNED, TASK_PHASE_ENCODE,
    TASK_PHASE_RUN, TaskCall, TaskError,
};

use crate::items::{ParameterItem, TaskItem};
use crate::messagepack::{self, Reader, counted, describe};
use crate::panics::Panic;
use crate::wide::Wide;

/// The encoded result of a task, or what is left of it when its beginning went to the host already; or why there is none.
pub type Outcome = Result<Vec<u8>, Failure>;

/// Failure of a task, which has no result then.
#[derive(Debug)]
pub struct Failure {
    pub(crate) kind: u32,
    pub(crate) type_name: Cow<'static, str>,
    pub(crate) message: String,
    pub(crate) location: String,
    pub(crate) stacktrace: String,
}

impl Failure {
    /// Returns the failure of code that panicked.
    pub(crate) fn of_panic(panic: Panic) -> Failure {
        Failure {
            kind: TASK_ERROR_PANICKED,
            type_name: "panic".into(),
            message: panic.message,
            location: panic.location,
            stacktrace: panic.stacktrace,
        }
    }

    /// Lends it to `f` as the host takes it.
    pub(crate) fn lend<R>(&self, f: impl FnOnce(*const TaskError) -> R) -> R {
        f(&TaskError {
            size: size_of::<TaskError>(),
            kind: self.kind,
            type_name: Str::new(&self.type_name),
            message: Str::new(&self.message),
            location: Str::new(&self.location),
            stacktrace: Str::new(&self.stacktrace),
        })
    }

    fn new(kind: u32, type_name: &'static str, message: String) -> Failure {
        let (location, stacktrace) = (String::new(), String::new());
        Failure { kind, type_name: type_name.into(), message, location, stacktrace }
    }

    fn arguments(message: String) -> Failure {
        Failure::new(TASK_ERROR_ARGUMENTS, "arguments", message)
    }

    /// Makes the error of a task that its surroundings failed.
    pub(crate) fn runtime(message: impl Into<String>) -> Failure {
        Failure::new(TASK_ERROR_RETURNED, "runtime", message.into())
    }

    /// Makes the error of a call of a method that a deployment does not have.
    #[cfg(feature = "serve")]
    pub(crate) fn no_method(method: &str, known: &[&str]) -> Failure {
        let known = match known {
            [] => {
                "none that can be called: a deployment's methods are the public `async` ones of its type, with `&self`"
                    .to_owned()
            }
            known => format!("`{}`", known.join("`, `")),
        };
        Failure::new(
            TASK_ERROR_RETURNED,
            "NoSuchMethod",
            format!("the deployment has no method `{method}`; it has {known}"),
        )
    }

    /// Makes the error of a task or request that was to end, and whose future was dropped.
    #[cfg(feature = "async")]
    pub(crate) fn cancelled() -> Failure {
        Failure::new(tracer_abi::TASK_ERROR_CANCELLED, "cancelled", "it was cancelled".into())
    }

    /// Makes the error of a task that returned `error`, which says `message`.
    pub fn returned<E: TaskFailure + ?Sized>(_error: &E, message: String) -> Failure {
        Failure::new(TASK_ERROR_RETURNED, type_name::<E>(), message)
    }
}

/// The arguments of one call, still encoded.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The name of what is called, for errors.
    name: &'static str,
    parameters: &'static [ParameterItem],
    values: Vec<&'a [u8]>,
    phases: Phases,
    part_taker: Option<PartTaker>,
    /// Place of the actor's state; null for a task that has to do with none.
    pub(crate) state: *mut *mut c_void,
}

/// Tells the host which part of a call begins, if it asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    data: *mut c_void,
    host_phase: Option<unsafe extern "C" fn(*mut c_void, u32)>,
}

impl Phases {
    /// For a call of which nobody wants to know the parts.
    #[cfg(feature = "serve")]
    const NONE: Phases = Phases { data: ptr::null_mut(), host_phase: None };

    /// Returns what the host asks in a call. It is used while that lasts, from one thread at a time.
    pub(crate) fn of_call(call: &TaskCall) -> Phases {
        Phases { data: call.data, host_phase: call.host_phase }
    }

    pub(crate) fn begin(self, phase: u32) {
        if let Some(host_phase) = self.host_phase {
            // SAFETY: the host's function with its own data, while the call lasts.
            unsafe { host_phase(self.data, phase) };
        }
    }
}

impl<'a> Arguments<'a> {
    /// Returns the arguments of a call of `item`: one by one, or in a MessagePack array.
    ///
    /// # Safety
    ///
    /// What the call points to is readable for as long as the arguments are used.
    pub(crate) unsafe fn of_call(
        item: &'static TaskItem,
        call: &TaskCall,
        phases: Phases,
    ) -> Result<Arguments<'a>, Failure> {
        let values = if call.argument_values.is_null() {
            // SAFETY: promised by the caller.
            elements(item.name, unsafe { call.arguments.as_bytes() })?
        } else {
            // SAFETY: promised by the caller; there are as many as the host says.
            let values = unsafe { std::slice::from_raw_parts(call.argument_values, call.argument_value_count) };
            // SAFETY: as above.
            values.iter().map(|value| unsafe { value.as_bytes() }).collect()
        };
        let mut arguments = Arguments::new(item.name, item.parameters, values, phases)?;
        arguments.state = call.state;
        arguments.part_taker =
            call.host_result_part.map(|host_result_part| PartTaker { data: call.data, host_result_part });
        Ok(arguments)
    }

    /// Returns the arguments of what makes a handler of requests: a MessagePack array.
    #[cfg(feature = "serve")]
    pub(crate) fn of_creation(
        name: &'static str,
        parameters: &'static [ParameterItem],
        bytes: &'a [u8],
    ) -> Result<Arguments<'a>, Failure> {
        Arguments::new(name, parameters, elements(name, bytes)?, Phases::NONE)
    }

    fn new(
        name: &'static str,
        parameters: &'static [ParameterItem],
        values: Vec<&'a [u8]>,
        phases: Phases,
    ) -> Result<Arguments<'a>, Failure> {
        if values.len() > parameters.len() {
            return Err(Failure::arguments(format!("`{name}` {}, but got {}", takes(parameters), values.len())));
        }
        Ok(Arguments { name, parameters, values, phases, part_taker: None, state: ptr::null_mut() })
    }

    /// Notes that all arguments are decoded; the function runs from now on.
    pub fn begin_run(&self) {
        self.phases.begin(TASK_PHASE_RUN);
    }

    /// Notes that the function has returned; what it returned is encoded from now on.
    pub fn begin_encode(&self) {
        self.phases.begin(TASK_PHASE_ENCODE);
        PART_TAKER.set(self.part_taker);
    }

    /// Decodes argument `index`, counted from 0.
    pub fn take<T: DeserializeOwned>(&mut self, index: usize) -> Result<T, Failure> {
        let parameter = &self.parameters[index];
        let value = match self.values.get(index) {
            Some(value) => value,
            // MessagePack's nil: what an optional parameter becomes when it is left out.
            None if parameter.is_optional => [0xc0].as_slice(),
            None => {
                return Err(
                    self.fail(index, |ParameterItem { type_name, .. }| format!("is missing; it takes {type_name}"))
                );
            }
        };
        messagepack::decode(value).map_err(|error| {
            self.fail(index, |ParameterItem { type_name, .. }| {
                let Some((found, range)) = error.plain_mismatch() else {
                    return format!("does not fit {type_name}: {error}");
                };
                // An array and an object are told with their sizes.
                let found = if range.is_empty() { describe(value) } else { found };
                format!("takes {type_name}{range}, but got {found}")
            })
        })
    }

    fn fail(&self, index: usize, what: impl FnOnce(&ParameterItem) -> String) -> Failure {
        let parameter = &self.parameters[index];
        let (name, task) = (parameter.name, self.name);
        Failure::arguments(format!("argument {} (`{name}`) of `{task}` {}", index + 1, what(parameter)))
    }
}

/// Splits the MessagePack array of the arguments of `name`. No bytes at all are no arguments.
fn elements<'a>(name: &str, bytes: &'a [u8]) -> Result<Vec<&'a [u8]>, Failure> {
    let elements = Reader::new(bytes).elements();
    elements.map_err(|error| Failure::arguments(format!("the arguments of `{name}` cannot be read: {error}")))
}

/// `takes 1 to 2 arguments (text: String, limit: Option<usize>)`.
fn takes(parameters: &[ParameterItem]) -> String {
    let most = parameters.len();
    if most == 0 {
        return "takes no arguments".to_owned();
    }
    let least = most - parameters.iter().rev().take_while(|parameter| parameter.is_optional).count();
    let count =
        if least == most { counted(most, "argument") } else { format!("{least} to {}", counted(most, "argument")) };
    let list: Vec<_> =
        parameters.iter().map(|parameter| format!("{}: {}", parameter.name, parameter.type_name)).collect();
    format!("takes {count} ({})", list.join(", "))
}

/// A host that takes results in parts.
#[derive(Clone, Copy, Debug)]
struct PartTaker {
    data: *mut c_void,
    host_result_part: unsafe extern "C" fn(*mut c_void, Bytes),
}

thread_local! {
    /// Taker of the parts of the call whose result is about to be encoded on this thread.
    static PART_TAKER: Cell<Option<PartTaker>> = const { Cell::new(None) };
}

impl Drop for Arguments<'_> {
    /// Notes that the call is over, whether or not there was a result to encode.
    fn drop(&mut self) {
        PART_TAKER.set(None);
    }
}

/// Bytes that are put together before they go to the host,
const PART: usize = 256 << 10;
/// unless so many come at once.
const WHOLE_PART: usize = 64 << 10;

/// Buffer that a result is encoded to. A large result goes on to the host as it comes, if that takes it.
struct Encoded {
    rest: Vec<u8>,
    taker: Option<PartTaker>,
}

impl Encoded {
    fn hand_over(taker: PartTaker, part: &[u8]) {
        // SAFETY: the host's function with its own data, while the call lasts; the part outlives this.
        unsafe { (taker.host_result_part)(taker.data, Bytes::new(part)) };
    }
}

impl io::Write for Encoded {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if let Some(taker) = self.taker.filter(|_| self.rest.len() + part.len() >= PART) {
            Encoded::hand_over(taker, &self.rest);
            self.rest.clear();
            if part.len() >= WHOLE_PART {
                Encoded::hand_over(taker, part);
                return Ok(part.len());
            }
        }
        self.rest.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encodes what a task returned: MessagePack with the names of fields, so that it converts to JSON objects.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Outcome {
    let mut encoded = Encoded { rest: Vec::with_capacity(64), taker: PART_TAKER.take() };
    // Human readable, because people will read it: an address is text and not four bytes.
    let mut serializer = rmp_serde::Serializer::new(&mut encoded).with_struct_map().with_human_readable();
    match value.serialize(Wide(&mut serializer)) {
        Ok(()) => Ok(encoded.rest),
        Err(error) => {
            let message = format!("the result, a {}, cannot be encoded: {error}", type_name::<T>());
            Err(Failure::new(TASK_ERROR_RESULT, "result", message))
        }
    }
}

/// The error of a task: any type that can be displayed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a task, because it does not implement `Display`",
    label = "a task's error is shown to people",
    note = "implement `std::fmt::Display` for it, or return `Box<dyn std::error::Error>`"
)]
pub trait TaskFailure {}
impl<E: Display + ?Sized> TaskFailure for E {}

/// Finds out how to put an error into words.
#[derive(Debug)]
pub struct ErrorProbe<'a, E: ?Sized>(pub &'a E);

/// For boxed errors, which are not themselves errors.
pub trait ViaBoxedError {
    /// Returns the message with all its causes.
    fn text(&self) -> String;
}

impl ViaBoxedError for &&&ErrorProbe<'_, Box<dyn Error>> {
    fn text(&self) -> String {
        chain(&**self.0)
    }
}

impl ViaBoxedError for &&&ErrorProbe<'_, Box<dyn Error + Send + Sync>> {
    fn text(&self) -> String {
        chain(&**self.0)
    }
}

/// For errors, which know their causes.
pub trait ViaError {
    /// Returns the message with all its causes.
    fn text(&self) -> String;
}

impl<E: Error> ViaError for &&ErrorProbe<'_, E> {
    fn text(&self) -> String {
        chain(&SizedError(self.0))
    }
}

/// For everything else. The alternate form is where `anyhow` and its kin put the causes.
pub trait ViaDisplay {
    /// Returns the message.
    fn text(&self) -> String;
}

impl<E: Display + ?Sized> ViaDisplay for &ErrorProbe<'_, E> {
    fn text(&self) -> String {
        format!("{:#}", self.0)
    }
}

/// Return types that cannot be an error. [`Failure::returned`] says so; this keeps the compiler from saying it twice.
pub trait ViaNothing {
    /// Nothing.
    fn text(&self) -> String;
}

impl<E: ?Sized> ViaNothing for ErrorProbe<'_, E> {
    fn text(&self) -> String {
        String::new()
    }
}

/// Lets a borrowed error of any lifetime be walked like one that owns itself.
#[derive(Debug)]
struct SizedError<'a, E>(&'a E);

impl<E: Error> Display for SizedError<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Display::fmt(self.0, f)
    }
}

impl<E: Error> Error for SizedError<'_, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// `message: cause: its cause`. A cause that the message repeats is not said twice.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {words}");
        }
        next = cause.source();
    }
    text
}

/// Finds out whether what a task returned is a `Result`, for types that are not called that.
#[derive(Debug)]
pub struct ReturnProbe<R>(pub R);

/// For results.
pub trait ViaResult {
    /// Returns the outcome.
    fn outcome(self) -> Outcome;
}

impl<T: Serialize, E: Display> ViaResult for ReturnProbe<Result<T, E>> {
    fn outcome(self) -> Outcome {
        match self.0 {
            Ok(value) => encode(&value),
            Err(error) => Err(Failure::returned(&error, ViaDisplay::text(&&ErrorProbe(&error)))),
        }
    }
}

/// For values.
pub trait ViaValue {
    /// Returns the outcome.
    fn outcome(self) -> Outcome;
}

impl<R: Serialize> ViaValue for &ReturnProbe<R> {
    fn outcome(self) -> Outcome {
        encode(&self.0)
    }
}

/// The result of a task: any type that can be serialized.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a task, because it does not implement `serde::Serialize`",
    label = "a task's result is sent to whoever waits for it",
    note = "add `#[derive(serde::Serialize)]` to it, or return something that can be serialized"
)]
pub trait TaskResult: Serialize {}
impl<R: Serialize + ?Sized> TaskResult for R {}

/// Return types that cannot be a result: the compiler says why.
pub trait ViaUnserializable<R> {
    /// Returns the outcome.
    fn outcome(self) -> Outcome
    where
        R: TaskResult;
}

impl<R> ViaUnserializable<R> for &mut ReturnProbe<R> {
    fn outcome(self) -> Outcome
    where
        R: TaskResult,
    {
        encode(&self.0)
    }
}
