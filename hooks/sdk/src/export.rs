//! Record of a module's exports, which the host finds under [`ENTRY_SYMBOL`](tracer_abi::ENTRY_SYMBOL).
//!
//! The attributes [`task`](crate::task), [`on_load`](crate::on_load) and `startup_hook` make an item each and
//! register it; the first call of the entry function builds the record from all items in the library. Authors have no
//! business here; the names are public because the attributes use them.
//!
//! This file is the boundary: every function that the host calls is here, and none lets a panic out.

use std::ffi::c_void;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, ptr};

use tracer_abi::{
    ABI_MAJOR, ABI_MINOR, Actor, Bytes, Deployment, Hook, Host, MODULE_MAGIC, Module, Parameter, STATUS_FAILED,
    STATUS_OK, STATUS_PANICKED, Str, TASK_CONCURRENT, TASK_PHASE_DECODE, TASK_PHASE_END, Task, TaskCall, TextBuffer,
    Tracing,
};

pub use crate::items::{ActorItem, HookItem, LoadItem, MethodItem, ParameterItem, TaskItem};
#[cfg(feature = "serve")]
use crate::serve::DeploymentItem;
use crate::task::Phases;
pub use crate::task::{
    Arguments, ErrorProbe, Failure, Outcome, ReturnProbe, TaskFailure, TaskResult, ViaBoxedError, ViaDisplay, ViaError,
    ViaNothing, ViaResult, ViaUnserializable, ViaValue, encode,
};
use crate::{blocking, host, panics, proxy, runtime};

/// Properties that all kinds of items share: the place in the source, the function's name, the package.
trait Item: 'static {
    fn place(&self) -> (&'static str, u32);
    fn function_name(&self) -> &'static str;
    fn package(&self) -> (&'static str, &'static str);
}

macro_rules! item {
    ($($item:ty)*) => {$(
        impl Item for $item {
            fn place(&self) -> (&'static str, u32) {
                (self.file, self.line)
            }

            fn function_name(&self) -> &'static str {
                self.function_name
            }

            fn package(&self) -> (&'static str, &'static str) {
                (self.crate_name, self.crate_version)
            }
        }
    )*};
}
item!(ActorItem TaskItem HookItem LoadItem);
#[cfg(feature = "serve")]
item!(DeploymentItem);

/// Returns what is registered in this library, in the order of the source, each once: an item that was registered by its
/// attribute and exported again by [`export!`](crate::export!) is there twice.
fn registered<T: Item + inventory::Collect>() -> Vec<&'static T> {
    let mut items: Vec<&'static T> = inventory::iter::<T>.into_iter().collect();
    items.sort_by_key(|item| item.place());
    items.dedup_by_key(|item| (item.place(), item.function_name()));
    items
}

/// Returns the name and version of the crate that registered something here: tasks first.
pub(crate) fn package() -> Option<(&'static str, &'static str)> {
    let task = registered::<TaskItem>().first().map(|item| item.package());
    let load = || registered::<LoadItem>().first().map(|item| item.package());
    let hook = || registered::<HookItem>().first().map(|item| item.package());
    let actor = || registered::<ActorItem>().first().map(|item| item.package());
    let item = task.or_else(actor).or_else(load).or_else(hook);
    #[cfg(feature = "serve")]
    let item = item.or_else(|| registered::<DeploymentItem>().first().map(|item| item.package()));
    item
}

/// Returns the record of this library: everything that is registered in it. It lives as long as the process.
pub fn module() -> *const Module {
    static RECORD: OnceLock<&'static Module> = OnceLock::new();
    *RECORD.get_or_init(|| {
        let version = package().map_or("", |(_, version)| version);
        let (tasks, actors, hooks) = (registered::<TaskItem>(), registered::<ActorItem>(), registered::<HookItem>());
        record(version, &tasks, &actors, &hooks, &deployments(), on_load)
    })
}

/// Returns the module's record: the one symbol that the host looks for. A library that links the SDK exports it without further ado.
///
/// # Safety
///
/// None is needed of the caller; the signature is the contract's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tracer_module() -> *const Module {
    panics::catch(module).unwrap_or(ptr::null())
}

/// The functions to run when a built-in module is loaded, as a type, so that they can be part of a function pointer.
pub trait Loads {
    /// The functions, in order.
    const ITEMS: &'static [&'static LoadItem];
}

/// Returns the record of a module that is linked into the host, from items that are listed one by one. For
/// [`builtin_module!`](crate::builtin_module!), which keeps the result.
pub fn builtin<L: Loads>(
    version: &'static str,
    tasks: &[&'static TaskItem],
    hooks: &[&'static HookItem],
) -> &'static Module {
    record(version, tasks, &[], hooks, &[], on_load_builtin::<L>)
}

/// Returns the record of a module that is linked into the host and has deployments: those of one crate. For modules that are part of tracer.
#[cfg(feature = "serve")]
#[doc(hidden)]
pub fn builtin_deployments(crate_name: &str, version: &'static str) -> *const Module {
    struct None;
    impl Loads for None {
        const ITEMS: &'static [&'static LoadItem] = &[];
    }
    static RECORD: OnceLock<&'static Module> = OnceLock::new();
    *RECORD.get_or_init(|| {
        let items = registered::<DeploymentItem>().into_iter().filter(|item| item.crate_name == crate_name);
        let deployments: Vec<_> = items.map(|item| ptr::from_ref(&leak_one(deployment_record(item)).raw)).collect();
        record(version, &[], &[], &[], &deployments, on_load_builtin::<None>)
    })
}

/// A task of the contract with what this side needs to run it. The host sees the first field.
#[repr(C)]
struct TaskRecord {
    raw: Task,
    item: &'static TaskItem,
}

/// A hook of the contract with what this side needs to run it. The host sees the first field.
#[repr(C)]
struct HookRecord {
    raw: Hook,
    item: &'static HookItem,
}

type OnLoad = unsafe extern "C" fn(*const Host, *mut TextBuffer) -> u32;

/// Builds a record, for ever.
fn record(
    version: &'static str,
    tasks: &[&'static TaskItem],
    actors: &[&'static ActorItem],
    hooks: &[&'static HookItem],
    deployments: &[*const Deployment],
    on_load: OnLoad,
) -> &'static Module {
    let tasks = leak(tasks.iter().map(|item| task_pointer(item, false)).collect());
    let actors = leak(actors.iter().map(|item| ptr::from_ref(leak_one(actor_record(item)))).collect());
    let hooks = leak(hooks.iter().map(|item| ptr::from_ref(&leak_one(hook_record(item)).raw)).collect());
    let deployments = leak(deployments.to_vec());
    leak_one(Module {
        magic: MODULE_MAGIC,
        size: size_of::<Module>(),
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        producer: Str::new(producer()),
        version: Str::new(version),
        hooks: hooks.as_ptr(),
        hook_count: hooks.len(),
        tasks: tasks.as_ptr(),
        task_count: tasks.len(),
        on_load: Some(on_load),
        actors: actors.as_ptr(),
        actor_count: actors.len(),
        deployments: deployments.as_ptr(),
        deployment_count: deployments.len(),
    })
}

/// Returns the deployments that are registered in this library.
#[cfg(feature = "serve")]
fn deployments() -> Vec<*const Deployment> {
    let record = |item: &&'static DeploymentItem| ptr::from_ref(&leak_one(deployment_record(item)).raw);
    registered::<DeploymentItem>().iter().map(record).collect()
}

#[cfg(not(feature = "serve"))]
fn deployments() -> Vec<*const Deployment> {
    Vec::new()
}

/// A deployment of the contract with what this side needs to run it. The host sees the first field.
#[cfg(feature = "serve")]
#[repr(C)]
struct DeploymentRecord {
    raw: Deployment,
    item: &'static DeploymentItem,
}

#[cfg(feature = "serve")]
fn deployment_record(item: &'static DeploymentItem) -> DeploymentRecord {
    let parameters = parameter_records(item.parameters);
    let raw = Deployment {
        size: size_of::<Deployment>(),
        name: Str::new(item.name),
        doc: Str::new(item.doc),
        code_function_name: Str::new(item.function_name),
        code_file_path: Str::new(item.file),
        code_line_number: item.line,
        flags: item.flags,
        parameters: parameters.as_ptr(),
        parameter_count: parameters.len(),
        max_ongoing_requests: item.max_ongoing_requests,
        max_batch_size: item.batch.map_or(0, |(_, size)| size),
        batch_function: Str::new(item.batch.map_or("", |(function, _)| function)),
        on_serve: Some(on_serve),
    };
    DeploymentRecord { raw, item }
}

/// Called from: the replica's main thread, once.
#[cfg(feature = "serve")]
unsafe extern "C" fn on_serve(
    deployment: *const Deployment,
    serving: *const tracer_abi::Serving,
    error: *mut TextBuffer,
) -> u32 {
    // SAFETY: the host passes a deployment of this module's record, and keeps to the contract of `Deployment::on_serve`.
    unsafe {
        guard(error, || {
            let item = (*deployment.cast::<DeploymentRecord>()).item;
            let served = crate::serve::serve(item, serving);
            let _ = io::stdout().flush();
            served.map_err(|failure| failure.message)
        })
    }
}

fn actor_record(item: &'static ActorItem) -> Actor {
    let methods = item.methods.iter().map(|method| task_pointer(&method.task, method.is_concurrent));
    let methods = leak(methods.collect());
    Actor {
        size: size_of::<Actor>(),
        name: Str::new(item.name),
        doc: Str::new(item.doc),
        creation: task_pointer(item.creation, false),
        methods: methods.as_ptr(),
        method_count: methods.len(),
        max_concurrency: item.max_concurrency,
        on_drop: Some(on_drop),
    }
}

/// Called from: the worker's main thread, when the actor ends in good order.
unsafe extern "C" fn on_drop(_actor: *const Actor, state: *mut c_void) {
    // SAFETY: the host keeps to the contract of `Actor::on_drop`. A panic of the author's is said by the panic hook, and ends here.
    let _ = panics::catch(|| unsafe { crate::actor::release(state) });
    let _ = io::stdout().flush();
}

fn task_pointer(item: &'static TaskItem, is_concurrent: bool) -> *const Task {
    ptr::from_ref(&leak_one(task_record(item, is_concurrent)).raw)
}

fn task_record(item: &'static TaskItem, is_concurrent: bool) -> TaskRecord {
    let parameters = parameter_records(item.parameters);
    let raw = Task {
        size: size_of::<Task>(),
        name: Str::new(item.name),
        doc: Str::new(item.doc),
        code_function_name: Str::new(item.function_name),
        code_file_path: Str::new(item.file),
        code_line_number: item.line,
        is_async: item.is_async.into(),
        parameters: parameters.as_ptr(),
        parameter_count: parameters.len(),
        result_type: Str::new(item.result_type),
        on_run: Some(on_run),
        flags: if is_concurrent { TASK_CONCURRENT } else { 0 },
    };
    TaskRecord { raw, item }
}

fn parameter_records(parameters: &[ParameterItem]) -> &'static [*const Parameter] {
    let record = |parameter: &ParameterItem| {
        ptr::from_ref(leak_one(Parameter {
            size: size_of::<Parameter>(),
            name: Str::new(parameter.name),
            type_name: Str::new(parameter.type_name),
            is_optional: parameter.is_optional.into(),
        }))
    };
    leak(parameters.iter().map(record).collect())
}

fn hook_record(item: &'static HookItem) -> HookRecord {
    let raw = Hook {
        size: size_of::<Hook>(),
        name: Str::new(item.name),
        doc: Str::new(item.doc),
        on_setup: Some(on_setup),
        contract: item.contract,
    };
    HookRecord { raw, item }
}

fn leak<T>(items: Vec<T>) -> &'static [T] {
    items.leak()
}

fn leak_one<T>(item: T) -> &'static T {
    Box::leak(Box::new(item))
}

/// Returns who built this module: the SDK, its OpenTelemetry and the compiler.
fn producer() -> &'static str {
    static PRODUCER: OnceLock<String> = OnceLock::new();
    PRODUCER.get_or_init(|| {
        let mut parts = vec![concat!("tracer-sdk ", env!("CARGO_PKG_VERSION"))];
        if cfg!(feature = "otel-0-33") {
            parts.push("opentelemetry 0.33");
        }
        if cfg!(feature = "otel-0-32") {
            parts.push("opentelemetry 0.32");
        }
        if cfg!(feature = "otel-0-31") {
            parts.push("opentelemetry 0.31");
        }
        if cfg!(feature = "hooks") {
            parts.push("hooks on opentelemetry 0.33");
        }
        parts.push(env!("TRACER_SDK_RUSTC"));
        parts.join(", ")
    })
}

/// Called from: the host, once, before the first task.
unsafe extern "C" fn on_load(host: *const Host, error: *mut TextBuffer) -> u32 {
    // SAFETY: the host keeps to the contract of `Module::on_load`.
    unsafe { load(host, error, registered::<LoadItem>) }
}

/// Called from: the host, once, before the first task.
unsafe extern "C" fn on_load_builtin<L: Loads>(host: *const Host, error: *mut TextBuffer) -> u32 {
    // SAFETY: the host keeps to the contract of `Module::on_load`.
    unsafe { load(host, error, || L::ITEMS.to_vec()) }
}

/// Makes the module ready: the host's table, the panic hook, the proxy, the author's functions, and a subscriber
/// if the author has set none.
///
/// # Safety
///
/// As [`Module::on_load`] promises.
unsafe fn load(host: *const Host, error: *mut TextBuffer, items: impl FnOnce() -> Vec<&'static LoadItem>) -> u32 {
    // SAFETY: promised by the caller.
    unsafe {
        guard(error, || {
            host::bind(host);
            panics::install();
            proxy::install();
            for item in items() {
                (item.run)().map_err(|text| format!("`{}`: {text}", item.function_name))?;
            }
            #[cfg(any(feature = "tracing", feature = "tracing-0-32", feature = "tracing-0-31"))]
            crate::subscriber::install();
            Ok(())
        })
    }
}

/// Called from: the host, once per process.
unsafe extern "C" fn on_setup(hook: *const Hook, tracing: *mut *const Tracing, error: *mut TextBuffer) -> u32 {
    // SAFETY: the host passes a hook of this module's record, and places to write to.
    unsafe {
        guard(error, || {
            panics::install();
            let item = (*hook.cast::<HookRecord>()).item;
            *tracing = (item.setup)()?;
            Ok(())
        })
    }
}

/// Runs `f` and turns its error or panic into a status and a text.
///
/// # Safety
///
/// `error` is null or points to a buffer that may be written to.
unsafe fn guard(error: *mut TextBuffer, f: impl FnOnce() -> Result<(), String>) -> u32 {
    let (status, text) = match panics::catch(f) {
        Ok(Ok(())) => return STATUS_OK,
        Ok(Err(text)) => (STATUS_FAILED, text),
        Err(panic) => (STATUS_PANICKED, panic.text()),
    };
    // SAFETY: promised by the caller.
    if let Some(error) = unsafe { error.as_mut() } {
        // SAFETY: as above.
        unsafe { error.write(&text) };
    }
    status
}

/// Called from: the worker's main thread, one call at a time; calls of concurrent methods from several threads at once.
unsafe extern "C" fn on_run(task: *const Task, call: *const TaskCall) -> u32 {
    // SAFETY: the host passes a task of this module's record and a call that outlives this function.
    let (item, call) = unsafe { ((*task.cast::<TaskRecord>()).item, host::read_sized(call)) };
    let run = || {
        let outcome = run(item, &call);
        // What the task printed belongs before its result.
        let _ = io::stdout().flush();
        let _ = io::stderr().flush();
        outcome
    };
    let outcome = panics::catch(run).unwrap_or_else(|panic| Err(Failure::of_panic(panic)));
    report(&call, outcome)
}

/// A call, on its way to a thread of its own.
struct OtherThread<'a>(&'a TaskCall);
// SAFETY: the call outlives the thread, which is the only one to use it meanwhile.
unsafe impl Send for OtherThread<'_> {}

/// Runs the task where it can run: an `async fn` cannot on a thread whose runtime is busy, as it is when a future of
/// one task waits for another task and the host runs that meanwhile.
fn run(item: &'static TaskItem, call: &TaskCall) -> Outcome {
    if !(item.is_async && blocking::is_entered()) {
        return perform(item, call);
    }
    let call = OtherThread(call);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let OtherThread(call) = { call };
            perform(item, call)
        });
        thread.join().unwrap_or_else(|_| Err(Failure::runtime("the thread of the task ended without a result")))
    })
}

/// Runs the task on this thread, with everything around it.
fn perform(item: &'static TaskItem, call: &TaskCall) -> Outcome {
    // SAFETY: what the call points to stays valid until `on_run` returns.
    let _entered = runtime::enter(Some(unsafe { runtime::RuntimeContext::of_call(call) }));
    // SAFETY: as above.
    let attached = unsafe {
        proxy::attach(proxy::Lent {
            span: call.span,
            context: call.span_context,
            baggage: call.baggage,
            is_guarded: true,
        })
    };
    let phases = Phases::of_call(call);
    phases.begin(TASK_PHASE_DECODE);
    // Hosts that have actors are told; what has to do with none runs alone.
    blocking::notify_first_wait(Some(phases).filter(|_| call.actor_id != 0));
    let outcome = panics::catch(|| {
        // SAFETY: as above.
        let mut arguments = unsafe { Arguments::of_call(item, call, phases)? };
        (item.run)(&mut arguments)
    });
    blocking::notify_first_wait(None);
    phases.begin(TASK_PHASE_END);
    drop(attached);
    static HAS_RUN: AtomicBool = AtomicBool::new(false);
    if !HAS_RUN.swap(true, Ordering::Relaxed) {
        proxy::report_displaced(item.crate_name);
    }
    outcome.unwrap_or_else(|panic| Err(Failure::of_panic(panic)))
}

/// Hands the outcome to the host.
fn report(call: &TaskCall, outcome: Outcome) -> u32 {
    let data: *mut c_void = call.data;
    match outcome {
        Ok(value) => match call.host_result {
            // SAFETY: the host's function with its own data; the value outlives the call.
            Some(host_result) => unsafe { host_result(data, Bytes::new(&value)) },
            None => return STATUS_PANICKED,
        },
        Err(failure) => {
            let Some(host_error) = call.host_error else { return STATUS_PANICKED };
            // SAFETY: the host's function with its own data; the error outlives the call.
            failure.lend(|error| unsafe { host_error(data, error) });
            return STATUS_FAILED;
        }
    }
    STATUS_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Tracing = {
        // SAFETY: pointers and nullable functions, for which zero means "none".
        let mut table: Tracing = unsafe { std::mem::zeroed() };
        table.size = size_of::<Tracing>();
        table
    };

    const fn hook(name: &'static str, setup: fn() -> Result<*const Tracing, String>) -> HookItem {
        let (doc, file, crate_name, crate_version) = ("Sets up.", "", "", "");
        HookItem {
            name,
            doc,
            crate_name,
            crate_version,
            function_name: name,
            file,
            line: 1,
            contract: tracer_abi::HOOK_STARTUP,
            setup,
        }
    }

    static HOOKS: [HookItem; 3] = [
        hook("works", || Ok(&raw const TABLE)),
        hook("fails", || Err("cannot create `/spans`".to_owned())),
        hook("panics", || panic!("no collector")),
    ];

    struct None;
    impl Loads for None {
        const ITEMS: &'static [&'static LoadItem] = &[];
    }

    /// Status, table and error text.
    fn set_up(index: usize) -> (u32, *const Tracing, String) {
        let hooks: Vec<_> = HOOKS.iter().collect();
        let module = builtin::<None>("1.2.3", &[], &hooks);
        assert_eq!(module.hook_count, HOOKS.len());
        let (mut table, mut buffer) = (ptr::null(), [0; 100]);
        let mut error = TextBuffer::new(&mut buffer);
        // SAFETY: the hook is one of the record's, and the places are this function's own.
        let status = unsafe {
            let hook = *module.hooks.add(index);
            (*hook).on_setup.expect("every hook has it")(hook, &mut table, &mut error)
        };
        let length = error.filled();
        (status, table, String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[test]
    fn hook_hands_over_its_table() {
        assert_eq!(set_up(0), (STATUS_OK, &raw const TABLE, String::new()));
    }

    #[test]
    fn hook_that_fails_says_why() {
        assert_eq!(set_up(1), (STATUS_FAILED, ptr::null(), "cannot create `/spans`".to_owned()));
    }

    #[test]
    fn hook_that_panics_says_where() {
        let (status, table, text) = set_up(2);
        assert_eq!((status, table), (STATUS_PANICKED, ptr::null()));
        assert!(text.starts_with("no collector at hooks/sdk/src/export.rs:"), "{text}");
    }

    #[test]
    fn entry_returns_the_same_record_every_time() {
        // SAFETY: none is needed.
        let (first, second) = unsafe { (tracer_module(), tracer_module()) };
        assert!(!first.is_null());
        assert_eq!(first, second);
    }
}
