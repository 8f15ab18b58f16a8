//! The modules that are linked into tracer, so that one copied binary traces on a bare machine.

use tracer_abi as abi;

type Entry = fn() -> *const abi::Module;

const MODULES: &[(&str, Entry)] = &[
    ("console", console_hook::module),
    ("demo", tracer_demo::module),
    ("local_tmp_tracing", local_tmp_tracing_hook::module),
    ("otlp", otlp_hook::module),
    ("otlp_file", otlp_file_hook::module),
    #[cfg(feature = "program")]
    ("program", tracer_program::module),
];

/// Returns the record of a built-in module.
pub(super) fn find(name: &str) -> Option<*const abi::Module> {
    MODULES.iter().find(|(known, _)| *known == name).map(|(_, entry)| entry())
}

/// Names of the modules that are built in.
pub fn names() -> impl Iterator<Item = &'static str> {
    MODULES.iter().map(|(name, _)| *name)
}
