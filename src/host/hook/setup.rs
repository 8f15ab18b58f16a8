//! Runs the hook in a process, and tries it out before a head is started.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use tracer_abi as abi;
use tracer_core::HookContract;
use tracer_ipc::protocol::HookChoice;
use tracer_ipc::spool::{Owners, Spool};

use super::module::{Record, contract_of};
use super::records::text;
use crate::hook::error::HookError;
use crate::hook::import::ImportString;
use crate::hook::module::Module;
use crate::hook::own::{OwnSettings, OwnTracing};
use crate::hook::recorder::Recorder;
use crate::hook::search::{Located, SearchPath};

/// Result of running a hook.
pub struct HookRun {
    /// The process's tracing; none when the hook failed and tracer cannot write spans itself either.
    pub recorder: Option<&'static Recorder>,
    /// Failure of the first hook.
    pub failure: Option<HookError>,
    /// Failures of additional hooks. They get this process's spans through another one.
    pub further_failures: Vec<HookError>,
}

/// A table that a hook returned: a pointer that may change threads.
struct Table(*const abi::Tracing);

// SAFETY: the table may be used from any thread by contract and lives as long as the process.
unsafe impl Send for Table {}

/// Runs the hooks in this process and wraps what the first returns. When that fails, tracer writes the spans itself, as `own` says, and
/// the additional hooks get them from it. During `quiet`, exporters begin nothing and leave their spans to the head: for processes that
/// may be about to end, which would have to wait for an answer.
pub fn run_hook(hook: &HookChoice, own: OwnSettings<'_>, spool: Option<&'static Spool>, quiet: Duration) -> HookRun {
    let limit = Duration::from_millis(hook.timeout_ms);
    let first = set_up(&hook.import_string, hook.contract, hook.library.as_deref(), limit);
    let mut further_failures = Vec::new();
    let mut further = Vec::new();
    for hook in &hook.further {
        let table = set_up(&hook.import_string, hook.contract, hook.library.as_deref(), limit);
        further.push(table.map_or_else(
            |failure| {
                further_failures.push(failure);
                std::ptr::null()
            },
            |table| table.0,
        ));
    }
    let mark = owners(hook).mark;
    let (table, failure) = match first {
        Ok(table) => (Some(table.0), None),
        Err(failure) => (OwnTracing::table(own).ok(), Some(failure)),
    };
    // What belongs to the exporters of a hook that failed here is not for this process.
    let mark = if failure.is_some() && further.is_empty() { 0 } else { mark };
    // SAFETY: tables that hooks returned keep the contract of the ABI, and tracer's own is made for it.
    let recorder = table.map(|table| unsafe { Recorder::install(table, &further, mark, spool, quiet) });
    if let Some(recorder) = recorder {
        super::logs::take_from(own.logs, own.spans_dir, spool, recorder.log_sinks());
    }
    HookRun { recorder, failure, further_failures }
}

/// Returns the hooks of a session as the owners of the spans that wait for them.
pub fn owners(hook: &HookChoice) -> Owners {
    let further = hook.further.iter().map(|further| further.import_string.clone());
    let names: Vec<_> = std::iter::once(hook.import_string.clone()).chain(further).collect();
    Owners { mark: crc32fast::hash(names.join(",").as_bytes()), names }
}

/// Result of trying a hook out.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HookCheck {
    /// The library of the module; none for a built-in one.
    pub library: Option<std::path::PathBuf>,
    /// The contract that it promises to keep.
    pub contract: HookContract,
    /// The program that built it.
    pub producer: String,
    /// The hook's description of what it does with spans.
    pub description: String,
    /// Warning of versions of OpenTelemetry whose spans are lost, if the library holds any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opentelemetry: Option<String>,
    /// A sentence on those who could change the library, and on what helps; none if only root and this user can.
    #[serde(default)]
    pub changeable_by_others: Option<String>,
    /// True if it takes finished spans, so that it may be an additional hook.
    pub takes_spans: bool,
}

/// Loads a hook and runs it in this process, to find out whether it works and keeps the contract that is wanted, if any.
pub fn check_hook(
    search: &SearchPath,
    import_string: &str,
    wanted: Option<HookContract>,
    limit: Duration,
) -> Result<HookCheck, HookError> {
    let import: ImportString = import_string.parse()?;
    let module = Module::load(search, &import.module)?;
    let hook = hook_of(&module, &import, wanted)?;
    let contract = contract_of(&hook);
    let opentelemetry = module.otel_advice();
    let table = call_hook(module, hook, &import, limit)?;
    // SAFETY: a table that a hook returned begins with its size and lives as long as the process.
    let table = unsafe { super::records::read_sized(table.0) };
    Ok(HookCheck {
        library: module.path().map(Into::into),
        contract,
        producer: module.describe().producer,
        description: text(table.description),
        opentelemetry,
        changeable_by_others: module.path().and_then(super::trust::changeable_by_others),
        takes_spans: table.sink_export.is_some(),
    })
}

fn set_up(
    import_string: &str,
    contract: HookContract,
    library: Option<&Path>,
    limit: Duration,
) -> Result<Table, HookError> {
    let import: ImportString = import_string.parse()?;
    let located =
        library.map_or_else(|| Located::BuiltIn(import.module.clone()), |path| Located::Library(path.to_path_buf()));
    let module = Module::load_at(&import.module, located)?;
    let hook = hook_of(&module, &import, Some(contract))?;
    call_hook(module, hook, &import, limit)
}

/// Returns the hook, if it keeps the contract that is wanted; none means that any will do.
fn hook_of(
    module: &Module,
    import: &ImportString,
    wanted: Option<HookContract>,
) -> Result<Record<abi::Hook>, HookError> {
    let hook = module.hook(&import.attribute)?;
    let contract = contract_of(&hook);
    match wanted {
        Some(wanted) if wanted != contract => {
            Err(HookError::OtherContract { hook: import.to_string(), place: module.place(), contract })
        }
        _ => Ok(hook),
    }
}

/// Calls the hook on a thread of its own, so that one that never returns can be told from a slow one.
fn call_hook(
    module: Module,
    hook: Record<abi::Hook>,
    import: &ImportString,
    limit: Duration,
) -> Result<Table, HookError> {
    let (place, name) = (module.place(), import.to_string());
    let (sender, receiver) = mpsc::sync_channel(1);
    let called = std::thread::Builder::new().name("tracing-hook".into()).spawn({
        let (place, name) = (place.clone(), name.clone());
        move || {
            // The receiver may be gone: then the limit was reached, and the caller went on.
            let _ = sender.send(call(hook, &place, &name));
        }
    });
    match called {
        Ok(_) => receiver.recv_timeout(limit).unwrap_or(Err(HookError::TimedOut { hook: name, place, limit })),
        Err(error) => Err(HookError::Failed { hook: name, place, reason: format!("no thread for it: {error}") }),
    }
}

fn call(hook: Record<abi::Hook>, place: &str, name: &str) -> Result<Table, HookError> {
    let failed = |reason: String| HookError::Failed { hook: name.into(), place: place.into(), reason };
    let Some(on_setup) = hook.on_setup else { return Err(failed("it has no function to call".into())) };
    let mut table = std::ptr::null();
    let mut reason = [0; 4096];
    let mut error = abi::TextBuffer::new(&mut reason);
    // SAFETY: the module passed the staircase; everything is lent for the call.
    let status = unsafe { on_setup(hook.original(), &mut table, &mut error) };
    let filled = error.filled();
    let reason = match String::from_utf8_lossy(&reason[..filled]).into_owned() {
        silence if silence.trim().is_empty() => "it gave no reason".to_owned(),
        reason => reason,
    };
    match status {
        abi::STATUS_OK if table.is_null() => Err(failed("it returned no tracing, and no error".into())),
        abi::STATUS_OK => Ok(Table(table)),
        abi::STATUS_PANICKED => Err(HookError::Panicked { hook: name.into(), place: place.into(), reason }),
        _ => Err(failed(reason)),
    }
}
