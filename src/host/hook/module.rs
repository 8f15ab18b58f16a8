//! Opens a library and checks it, step by step; the only place that opens shared libraries.
//!
//! Each step is safe only because the one before it passed: the file opens; it exports the one entry symbol; that returns
//! a record with our mark; the record speaks our ABI; only then is the rest of it read.

use std::collections::HashSet;
use std::error::Error;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};
use tracer_abi as abi;
use tracer_core::HookContract;
use tracer_ipc::spool::record::slice;

use super::builtin;
use super::log::log;
use super::otel_versions::{self, OtelVersion};
use super::recorder::Recorder;
use super::records::{read_prefix, read_sized, text};
use crate::hook::error::ModuleError;
use crate::hook::search::{Located, SearchPath};
use crate::module_store::{self, FileState, StoredModule};

/// A module that has passed every step. It stays loaded as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    name: &'static str,
    /// The library's path; none for a built-in module.
    path: Option<&'static std::path::Path>,
    /// The version that was loaded; none for a module that was not loaded from a copy.
    version: Option<&'static str>,
    record: &'static abi::Module,
}

/// Description of a module by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleDescription {
    /// The name or the path that it was asked for by.
    pub name: String,
    /// The file that it was loaded from; none for a built-in module.
    pub library: Option<PathBuf>,
    /// The module's own version; empty when it does not say.
    pub version: String,
    /// The build id that the linker noted in the library, in hexadecimal digits; empty for none.
    #[serde(default)]
    pub build_id: String,
    /// The version of the ABI that it speaks, `major.minor`.
    pub abi: String,
    /// The program that built it, as it says itself; empty when it does not say.
    pub producer: String,
    /// Versions of OpenTelemetry that it holds and its SDK does not serve: spans made with them are lost.
    #[serde(default)]
    pub unserved_opentelemetry: Vec<OtelVersion>,
    /// A sentence on those who could change the library, and on what helps; none if only root and this user can.
    #[serde(default)]
    pub changeable_by_others: Option<String>,
    /// Its hooks, in its own order.
    pub hooks: Vec<HookDescription>,
    /// Its tasks, in its own order.
    pub tasks: Vec<TaskDescription>,
    /// Its types of actors, in its own order.
    #[serde(default)]
    pub actors: Vec<ActorDescription>,
}

/// Description of a type of actors by its module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorDescription {
    /// The type of `module:Type`.
    pub name: String,
    /// Its documentation; empty for none.
    pub doc: String,
    /// Number of calls of concurrent methods that run at a time.
    pub max_concurrency: u32,
    /// The function that makes one; its name is `Type.new`.
    pub creation: Option<TaskDescription>,
    /// The methods that can be called; their names are `Type.method`.
    pub methods: Vec<TaskDescription>,
}

/// Description of a hook by its module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookDescription {
    /// The attribute of `module:attribute`.
    pub name: String,
    /// Its documentation; empty for none.
    pub doc: String,
    /// The contract that it promises to keep.
    pub contract: HookContract,
}

/// Description of a task by its module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDescription {
    /// The function of `module:function`.
    pub name: String,
    /// Its documentation; empty for none.
    pub doc: String,
    /// True if the function is asynchronous. The call blocks the worker all the same.
    pub is_async: bool,
    /// True for an actor's method whose calls may run beside each other.
    #[serde(default)]
    pub is_concurrent: bool,
    /// Its parameters, in the order of the arguments.
    pub parameters: Vec<ParameterDescription>,
    /// The type of its result, as its language writes it; empty when it does not say.
    pub result_type: String,
    /// The function's qualified name; empty when it is not known.
    pub code_function_name: String,
    /// Its source file, as its compiler saw it; empty when it is not known.
    pub code_file_path: String,
    /// Its line there, from 1; 0 when it is not known.
    pub code_line_number: u32,
}

/// Description of a parameter by its module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterDescription {
    /// Its name.
    pub name: String,
    /// Its type, as its language writes it.
    pub type_name: String,
    /// True if the argument may be left out.
    pub is_optional: bool,
}

/// Returns the contract that a hook's table declares.
pub(super) fn contract_of(hook: &abi::Hook) -> HookContract {
    match hook.contract {
        abi::HOOK_EXPORTER => HookContract::Exporter,
        _ => HookContract::Startup,
    }
}

/// The session's folder, in which is noted what was said once.
static NOTED: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder in which is noted what is to be said once in a session. Without it, nothing is said.
pub fn note_in(session_dir: &std::path::Path) {
    let _ = NOTED.set(session_dir.into());
}

impl Module {
    /// Finds a module and loads it.
    pub fn load(search: &SearchPath, module: &str) -> Result<Module, ModuleError> {
        Module::load_at(module, search.locate(module)?)
    }

    /// Loads a module from where it was found.
    pub fn load_at(name: &str, located: Located) -> Result<Module, ModuleError> {
        let name = name.to_owned();
        match located {
            Located::BuiltIn(builtin_name) => {
                let record = builtin::find(&builtin_name).expect("only modules that are built in are located there");
                check_record(record, PathBuf::from(&builtin_name)).map(|record| Module {
                    name: String::leak(name),
                    path: None,
                    version: None,
                    record,
                })
            }
            Located::Library(path) => {
                let state = FileState::of(&path).ok();
                let record = check_record(open(&path, &path)?, path.clone())?;
                let path = Some(&*Box::leak(path.into_boxed_path()));
                let module = Module { name: String::leak(name), path, version: None, record };
                module.report_others();
                if let Some(state) = state {
                    lock_opened().push((state, module));
                }
                Ok(module)
            }
        }
    }

    /// Loads a module from its copy. Where this very file was loaded before, for the process's hook, that is it: the hook and the tasks of one
    /// library share what is static in it.
    pub fn load_copy(name: &str, stored: &StoredModule, version: &'static str) -> Result<Module, ModuleError> {
        let version = Some(version);
        let opened = lock_opened().iter().find(|(state, _)| state == stored.source_state()).map(|(_, module)| *module);
        if let Some(opened) = opened {
            return Ok(Module { name: String::leak(name.to_owned()), version, ..opened });
        }
        let source = stored.source().to_path_buf();
        let library = to_open(stored).map_err(|reason| ModuleError::Unloadable { path: source.clone(), reason })?;
        let record = check_record(open(&library, &source)?, source.clone())?;
        let path = Some(&*Box::leak(source.into_boxed_path()));
        let module = Module { name: String::leak(name.to_owned()), path, version, record };
        module.report_others();
        Ok(module)
    }

    /// Returns the name or the path that it was asked for by.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the library's path; none for a built-in module.
    pub fn path(&self) -> Option<&'static std::path::Path> {
        self.path
    }

    /// Returns where it is, in words.
    pub fn place(&self) -> String {
        let Some(path) = self.path else { return "built in".into() };
        match self.version {
            // The first digits tell one build from another.
            Some(version) => format!("{}, build {}", path.display(), version.get(..12).unwrap_or(version)),
            None => path.display().to_string(),
        }
    }

    /// Returns the hook of that name.
    pub(super) fn hook(&self, attribute: &str) -> Result<Record<abi::Hook>, ModuleError> {
        let hooks = self.hooks();
        hooks.iter().find(|hook| text(hook.name) == attribute).copied().ok_or_else(|| ModuleError::NoSuchHook {
            module: self.name.into(),
            place: self.place(),
            attribute: attribute.into(),
            hooks: hooks.iter().map(|hook| text(hook.name)).collect(),
        })
    }

    /// Returns the task of that name.
    pub(super) fn task(&self, function: &str) -> Result<Record<abi::Task>, ModuleError> {
        let tasks = self.tasks();
        tasks.iter().find(|task| text(task.name) == function).copied().ok_or_else(|| ModuleError::NoSuchTask {
            module: self.name.into(),
            place: self.place(),
            function: function.into(),
            tasks: tasks.iter().map(|task| text(task.name)).collect(),
        })
    }

    /// Returns the type of actors of that name.
    pub(super) fn actor(&self, type_name: &str) -> Result<Record<abi::Actor>, ModuleError> {
        let actors = self.actors();
        actors.iter().find(|actor| text(actor.name) == type_name).copied().ok_or_else(|| ModuleError::NoSuchActor {
            module: self.name.into(),
            place: self.place(),
            actor: type_name.into(),
            actors: actors.iter().map(|actor| text(actor.name)).collect(),
        })
    }

    /// Returns the deployment of that name.
    pub(super) fn deployment(&self, name: &str) -> Result<Record<abi::Deployment>, ModuleError> {
        let deployments = self.deployments();
        let found = deployments.iter().find(|deployment| text(deployment.name) == name).copied();
        found.ok_or_else(|| ModuleError::NoSuchDeployment {
            module: self.name.into(),
            place: self.place(),
            deployment: name.into(),
            deployments: deployments.iter().map(|deployment| text(deployment.name)).collect(),
        })
    }

    /// Lends the process's tracing to the module, once, so that its tasks can run.
    pub(super) fn get_ready(&self, tracing: Option<&'static Recorder>) -> Result<(), ModuleError> {
        static READY: Mutex<Option<HashSet<usize>>> = Mutex::new(None);
        let Some(on_load) = self.record.on_load else { return Ok(()) };
        let mut ready = READY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ready = ready.get_or_insert_default();
        let key = std::ptr::from_ref(self.record) as usize;
        if ready.contains(&key) {
            return Ok(());
        }
        if tracing.is_some() {
            self.report_lost_spans();
        }
        let mut host = Box::new(abi::Host {
            size: size_of::<abi::Host>(),
            abi_major: abi::ABI_MAJOR,
            abi_minor: abi::ABI_MINOR,
            tracing: tracing.map_or(std::ptr::null(), Recorder::table),
            host_log: Some(host_log),
            ..super::host::entries()
        });
        if tracing.is_some() {
            super::logs::notify(&mut host);
        }
        super::metrics::notify(&mut host);
        let host = Box::leak(host);
        let mut reason = [0; 4096];
        let mut error = abi::TextBuffer::new(&mut reason);
        // SAFETY: the entry passed the staircase; `host` lives as long as the process.
        let status = unsafe { on_load(host, &mut error) };
        if status != abi::STATUS_OK {
            let filled = error.filled();
            return Err(ModuleError::LoadFailed {
                place: self.place(),
                reason: String::from_utf8_lossy(&reason[..filled]).into_owned(),
            });
        }
        ready.insert(key);
        Ok(())
    }

    /// Returns which minor version of the ABI it was compiled for.
    pub(super) fn abi_minor(&self) -> u32 {
        self.record.abi_minor
    }

    /// Returns the module's own description.
    pub fn describe(&self) -> ModuleDescription {
        ModuleDescription {
            name: self.name.into(),
            library: self.path.map(Into::into),
            version: text(self.record.version),
            build_id: self.path.map(module_store::build_id).unwrap_or_default(),
            abi: format!("{}.{}", self.record.abi_major, self.record.abi_minor),
            producer: text(self.record.producer),
            unserved_opentelemetry: self.unserved_opentelemetry(),
            changeable_by_others: self.path.and_then(super::trust::changeable_by_others),
            hooks: self
                .hooks()
                .iter()
                .map(|hook| HookDescription { name: text(hook.name), doc: text(hook.doc), contract: contract_of(hook) })
                .collect(),
            tasks: self.tasks().iter().map(|task| describe_task(task)).collect(),
            actors: self.actors().iter().map(|actor| describe_actor(actor)).collect(),
        }
    }

    /// Versions of OpenTelemetry that the library holds and its SDK does not serve. Reads the library.
    pub fn unserved_opentelemetry(&self) -> Vec<OtelVersion> {
        self.path.map(|path| otel_versions::unserved(path, &text(self.record.producer))).unwrap_or_default()
    }

    /// Returns what is to be said of such versions; none if there are none.
    pub(super) fn otel_advice(&self) -> Option<String> {
        let unserved = self.unserved_opentelemetry();
        (!unserved.is_empty()).then(|| otel_versions::advice(&unserved, &text(self.record.producer)))
    }

    /// Says once in a session, in the log of this process, that spans of this module are lost.
    fn report_lost_spans(&self) {
        self.report_once("otel", || self.otel_advice());
    }

    /// Says once in a session, in the log of this process, that others could change what is loaded.
    fn report_others(&self) {
        self.report_once("others", || {
            let said = super::trust::changeable_by_others(self.path?)?;
            Some(format!("it runs with your rights, and others can change it: {said}"))
        });
    }

    /// Says something of this library in the log of this process, once in a session. `what` is a name for it.
    fn report_once(&self, what: &str, advice: impl FnOnce() -> Option<String>) {
        let (Some(path), Some(folder)) = (self.path, NOTED.get()) else { return };
        let len = path.metadata().map_or(0, |metadata| metadata.len());
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("module");
        // Whoever makes the file is the first to load this library.
        let note = folder.join(format!("{what}-{stem}-{len}"));
        if std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(note).is_err() {
            return;
        }
        if let Some(advice) = advice() {
            log(&format!("module `{}` ({}): {advice}", self.name, path.display()));
        }
    }

    fn hooks(&self) -> Vec<Record<abi::Hook>> {
        // SAFETY: the record passed the staircase, so the pointers are what the ABI says, and live for ever.
        unsafe { slice(self.record.hooks, self.record.hook_count) }.iter().map(|&hook| keep(hook)).collect()
    }

    fn actors(&self) -> Vec<Record<abi::Actor>> {
        // SAFETY: as in `hooks`.
        unsafe { slice(self.record.actors, self.record.actor_count) }.iter().map(|&actor| keep(actor)).collect()
    }

    fn deployments(&self) -> Vec<Record<abi::Deployment>> {
        // SAFETY: as in `hooks`.
        let records = unsafe { slice(self.record.deployments, self.record.deployment_count) };
        records.iter().map(|&deployment| keep(deployment)).collect()
    }

    fn tasks(&self) -> Vec<Record<abi::Task>> {
        // SAFETY: as in `hooks`.
        unsafe { slice(self.record.tasks, self.record.task_count) }.iter().map(|&task| keep(task)).collect()
    }
}

/// Returns the methods of a type of actors.
pub(super) fn methods(actor: &abi::Actor) -> Vec<Record<abi::Task>> {
    // SAFETY: the record passed the staircase, so the pointers are what the ABI says, and live for ever.
    unsafe { slice(actor.methods, actor.method_count) }.iter().map(|&method| keep(method)).collect()
}

/// Returns what makes an actor of a type.
pub(super) fn creation(actor: &abi::Actor) -> Option<Record<abi::Task>> {
    (!actor.creation.is_null()).then(|| keep(actor.creation))
}

fn describe_actor(actor: &abi::Actor) -> ActorDescription {
    ActorDescription {
        name: text(actor.name),
        doc: text(actor.doc),
        max_concurrency: actor.max_concurrency,
        creation: creation(actor).map(|creation| describe_task(&creation)),
        methods: methods(actor).iter().map(|method| describe_task(method)).collect(),
    }
}

pub(super) fn describe_task(task: &abi::Task) -> TaskDescription {
    TaskDescription {
        name: text(task.name),
        doc: text(task.doc),
        is_async: task.is_async != 0,
        is_concurrent: task.flags & abi::TASK_CONCURRENT != 0,
        parameters: describe_parameters(task.parameters, task.parameter_count),
        result_type: text(task.result_type),
        code_function_name: text(task.code_function_name),
        code_file_path: text(task.code_file_path),
        code_line_number: task.code_line_number,
    }
}

/// Returns the parameters of a record that passed the staircase.
pub(super) fn describe_parameters(parameters: *const *const abi::Parameter, count: usize) -> Vec<ParameterDescription> {
    // SAFETY: of such a record.
    let parameters = unsafe { slice(parameters, count) };
    let describe = |&parameter: &*const abi::Parameter| {
        // SAFETY: as above.
        let parameter = unsafe { read_sized(parameter) };
        ParameterDescription {
            name: text(parameter.name),
            type_name: text(parameter.type_name),
            is_optional: parameter.is_optional != 0,
        }
    };
    parameters.iter().map(describe).collect()
}

/// Returns the modules that were loaded from where they were found, with what the system said of the file.
fn lock_opened() -> std::sync::MutexGuard<'static, Vec<(FileState, Module)>> {
    static OPENED: Mutex<Vec<(FileState, Module)>> = Mutex::new(Vec::new());
    // What the lock guards is whole after every statement.
    OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns what is to be opened of a module that there is a copy of: the copy. Where nothing may be executed in the folder of copies, or where the library
/// works in its own folder only, there are other ways.
fn to_open(stored: &StoredModule) -> Result<PathBuf, String> {
    let is_executable = rustix::fs::statvfs(&stored.library)
        .is_ok_and(|mount| !mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC));
    if is_executable && !stored.is_bound_to_its_folder() {
        return Ok(stored.library.clone());
    }
    if stored.stands_alone() {
        match in_memory(&stored.library) {
            Ok(path) => return Ok(path),
            Err(error) => log(&format!("warning: a library cannot be copied to memory: {error}")),
        }
    }
    let (source, folder) = (stored.source(), stored.library.parent().unwrap_or(&stored.library));
    let why = if is_executable {
        "it needs libraries that are found from its own folder only".to_owned()
    } else {
        format!("nothing may be executed in `{}` (it is mounted noexec)", folder.display())
    };
    if FileState::of(source).is_ok_and(|state| state == *stored.source_state()) {
        log(&format!(
            "warning: `{}` is loaded where it is, because {why}; do not overwrite it while workers run, but replace it",
            source.display()
        ));
        return Ok(source.into());
    }
    Err(format!("it has changed since the task was submitted, and its copy cannot be loaded: {why}"))
}

/// Copies a library to memory that this process alone has. Returns a path of it.
fn in_memory(library: &std::path::Path) -> std::io::Result<PathBuf> {
    use std::os::fd::{AsRawFd, IntoRawFd};
    let memory = std::fs::File::from(rustix::fs::memfd_create("tracer-module", rustix::fs::MemfdFlags::CLOEXEC)?);
    std::io::copy(&mut std::fs::File::open(library)?, &mut &memory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    // A library is never closed. Another one must not get the path of this one.
    let _ = memory.into_raw_fd();
    Ok(path)
}

/// Opens the library and calls its entry symbol. The library is never closed. `shown` is its path for people.
fn open(path: &std::path::Path, shown: &std::path::Path) -> Result<*const abi::Module, ModuleError> {
    // RTLD_NOW: a symbol that is missing is said now and not at the first call. RTLD_LOCAL: two modules may use
    // different versions of one crate.
    // SAFETY: runs the library's initialisers; modules are trusted code.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        ModuleError::Unloadable { path: shown.into(), reason: loader_reason(&reason, path) }
    })?;
    let entry = {
        // SAFETY: the ABI gives the symbol this type.
        let symbol = unsafe { library.get::<abi::ModuleEntry>(abi::ENTRY_SYMBOL) };
        *symbol.map_err(|_| ModuleError::NoEntry { path: shown.into() })?
    };
    std::mem::forget(library);
    // SAFETY: the symbol has this type by contract.
    Ok(unsafe { entry() })
}

/// Returns the loader's reason without the path it begins with, which the message names already.
fn loader_reason(reason: &str, path: &std::path::Path) -> String {
    reason.strip_prefix(&format!("{}: ", path.display())).unwrap_or(reason).into()
}

/// Checks mark and ABI, reading only what never changes, and then the rest of the record.
fn check_record(record: *const abi::Module, path: PathBuf) -> Result<&'static abi::Module, ModuleError> {
    if record.is_null() || !record.is_aligned() {
        return Err(ModuleError::NoRecord { path });
    }
    // SAFETY: a module's record begins with the mark; of anything else that a function of this name may return, eight
    // bytes are read.
    if unsafe { (&raw const (*record).magic).read() } != abi::MODULE_MAGIC {
        return Err(ModuleError::NoRecord { path });
    }
    // SAFETY: with the mark, the first five fields are there in every version.
    let (size, major, minor, producer) =
        unsafe { ((*record).size, (*record).abi_major, (*record).abi_minor, (*record).producer) };
    if major != abi::ABI_MAJOR {
        return Err(ModuleError::OtherAbi { path, major, minor, producer: text(producer) });
    }
    // SAFETY: `size` is what the module compiled, and it speaks our major version.
    let copy = unsafe { read_prefix(record, size) };
    Ok(Box::leak(Box::new(copy)))
}

/// A sized record of a module, for as long as the process lives.
#[derive(Debug)]
pub(super) struct Record<T: 'static> {
    /// All fields that this host knows: the record itself, or a copy filled up with zeroes when its writer knew fewer.
    fields: &'static T,
    /// The record where the module has it, which its own functions are handed: there may be more behind it.
    original: *const T,
}

impl<T> Clone for Record<T> {
    fn clone(&self) -> Record<T> {
        *self
    }
}

impl<T> Copy for Record<T> {}

// SAFETY: a module's records live as long as the process and do not change.
unsafe impl<T: Sync> Send for Record<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Record<T> {}

impl<T> Deref for Record<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.fields
    }
}

impl<T> Record<T> {
    /// Returns what the functions of the record are handed.
    pub(super) fn original(self) -> *const T {
        self.original
    }
}

/// Reads as much of a record as this host knows.
fn keep<T>(record: *const T) -> Record<T> {
    // SAFETY: every sized record begins with its size.
    let size = unsafe { record.cast::<usize>().read() };
    let fields = if size >= size_of::<T>() {
        // SAFETY: records of a module live as long as the process.
        unsafe { &*record }
    } else {
        // SAFETY: as above.
        Box::leak(Box::new(unsafe { read_prefix(record, size) }))
    };
    Record { fields, original: record }
}

unsafe extern "C" fn host_log(level: u32, line: abi::Str) {
    let level = match level {
        abi::LOG_ERROR => "error",
        abi::LOG_WARN => "warning",
        _ => "info",
    };
    // A worker's standard error goes to its log in the session folder, and to whoever watches the running task.
    log(&format!("{level}: {}", text(line)));
}

const _: () = assert!(offset_of!(abi::Module, version) == 40, "the first five fields never change");
