//! The environment of a session, for the hook of its driver.
//!
//! Workers get theirs when they are started; a driver was started by somebody else. Its hook may bring exporters that read `OTEL_…` variables by
//! themselves, so to hand the variables to the hook would not be enough: the environment of the process is changed, while that is safe.

use std::ffi::OsString;

use super::Driver;
use tracer_ipc::environment;
use tracer_ipc::protocol::TracingSettings;

impl Driver {
    /// Sets the variables in this process that the session's processes have, so that the session's hook does here what it does there. Where other
    /// threads could read the environment meanwhile, nothing is set. Returns the variables that are to be set and are not.
    pub fn take_over_environment(&self) -> Vec<(String, OsString)> {
        let differs = |(name, value): &(String, OsString)| std::env::var_os(name).as_ref() != Some(value);
        let missing: Vec<_> = variables(&self.welcome().tracing).into_iter().filter(differs).collect();
        if missing.is_empty() || !is_single_threaded() {
            return missing;
        }
        for (name, value) in missing {
            // SAFETY: this process has one thread, which is in here, so nobody else looks at the environment.
            unsafe { std::env::set_var(name, value) };
        }
        Vec::new()
    }
}

/// Lists the variables that a driver of the session should have.
fn variables(tracing: &TracingSettings) -> Vec<(String, OsString)> {
    let mut variables: Vec<_> = tracing.variables().map(|(name, value)| (name.to_owned(), value)).into();
    let own: Vec<_> = std::env::vars_os()
        .filter(|(_, value)| !value.is_empty())
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    let taken_over = environment::to_take_over(&tracing.environment, &own);
    variables.extend(taken_over.map(|(name, value)| (name.to_owned(), value.into())));
    variables
}

fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}
