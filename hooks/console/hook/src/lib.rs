//! The hook that writes spans to standard error as an item to export: for the module `console`, and for the binary, which has it
//! built in.
//!
//! All of it is in `tracer-console`. Why the attribute is neither there nor in the module is told in
//! `tracer-local-tmp-tracing-hook`.

use tracer_console::FormatError;
use tracer_sdk::hook::Tracing;

/// Writes every sampled span to standard error, one line each, which begins with the process.
///
/// `TRACER_CONSOLE_FORMAT` chooses between `text`, for people, and `json`, the objects of the default hook.
#[tracer_sdk::startup_hook]
pub fn setup_tracing() -> Result<Tracing, FormatError> {
    tracer_console::setup_tracing()
}

tracer_sdk::builtin_module! {
    /// The record of this module, for the binary.
    pub fn module, hooks = [setup_tracing]
}
