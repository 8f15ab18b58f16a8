//! The tracing of a process that submits: its session's hook runs here once, and all connections share what it has made.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tracer_core::clock::now_unix_nano;
use tracer_host::hook::{HookError, OwnSettings, Recorder, log_in, run_hook};
use tracer_ipc::protocol::{HookChoice, Welcome};
use tracer_ipc::session;
use tracer_ipc::spool::{SLOT_COUNT, Spool};
use tracer_otel_env::Reader;

/// The hooks that made it.
static HOOKS: OnceLock<Vec<String>> = OnceLock::new();
/// The tracing of this process, once a driver has started it.
static TRACING: Mutex<Option<&'static Recorder>> = Mutex::new(None);

/// The tracing that a connection gets.
#[derive(Default)]
pub(crate) struct Started {
    /// None without tracing.
    pub(crate) recorder: Option<&'static Recorder>,
    /// The hook's failure, if it has run now and failed.
    pub(crate) failure: Option<HookError>,
    /// Failures of further hooks.
    pub(crate) further_failures: Vec<HookError>,
}

/// Runs the session's hook in this process, if none has run. During `quiet`, what is for a network goes to the head.
pub(crate) fn start(welcome: &Welcome, quiet: Duration) -> Started {
    let Some(hook) = &welcome.tracing.hook else { return Started::default() };
    if Reader::of_this_process().is_sdk_disabled() {
        return Started::default();
    }
    let mut of_process = TRACING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorder) = *of_process {
        return Started { recorder: Some(recorder), ..Started::default() };
    }
    log_in(&welcome.session_dir);
    let path = session::driver_spool(&welcome.session_dir, std::process::id(), now_unix_nano());
    // Without a spool the spans are recorded all the same; they only do not survive this process.
    let spool: Option<&'static Spool> = Spool::create(&path, SLOT_COUNT).ok().map(|spool| &*Box::leak(Box::new(spool)));
    let own = OwnSettings::of_session(&welcome.tracing);
    let run = run_hook(hook, own, spool, quiet);
    *of_process = run.recorder;
    let _ = HOOKS.set(hook_names(hook));
    Started { recorder: run.recorder, failure: run.failure, further_failures: run.further_failures }
}

/// Returns the hooks that made the tracing of this process, if a driver has started it.
pub(crate) fn hooks_of_this_process() -> Option<Vec<String>> {
    HOOKS.get().cloned()
}

/// Returns what the hooks of a session are called, the first one first.
pub fn hook_names(hook: &HookChoice) -> Vec<String> {
    let further = hook.further.iter().map(|further| further.import_string.clone());
    std::iter::once(hook.import_string.clone()).chain(further).collect()
}
