//! Contract of a hook: all of the tracing, or only where spans go.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The contract that a hook keeps. A module says it of each of its hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookContract {
    /// It says how the process is traced. Named with `--tracing-startup-hook`.
    #[default]
    Startup,
    /// It returns span processors, around which tracer builds the rest. Named with `--tracing-exporter`.
    Exporter,
}

impl HookContract {
    /// Returns the flag of `tracer start` that names such a hook.
    pub fn flag(self) -> &'static str {
        match self {
            HookContract::Startup => "--tracing-startup-hook",
            HookContract::Exporter => "--tracing-exporter",
        }
    }
}

impl fmt::Display for HookContract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookContract::Startup => "startup hook",
            HookContract::Exporter => "exporter",
        })
    }
}
