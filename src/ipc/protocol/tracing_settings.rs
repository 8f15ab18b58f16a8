//! The session's tracing as one value, which the head hands to every process.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracer_core::propagation::Propagators;
use tracer_core::{HookContract, LogSettings, SamplingRatio};

use crate::environment::{SAMPLING_RATIO_VARIABLE, SPANS_DIR_VARIABLE};

/// Tracing settings of a session. Travels in the [`Welcome`](super::Welcome). A reader ignores fields that it does not know, and takes defaults for
/// those that are missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracingSettings {
    /// Counts the values that a head has given out, from 1. Of two values a process keeps the one with the higher revision.
    pub revision: u64,
    /// The folder of the span files. Absolute.
    pub spans_dir: PathBuf,
    /// The hook to run; none when the session is not traced.
    pub hook: Option<HookChoice>,
    /// The share of new traces that are sampled, if neither the hook nor `OTEL_TRACES_SAMPLER` says otherwise.
    #[serde(default)]
    pub sampling_ratio: SamplingRatio,
    /// Propagators: formats of the context that submissions take from their environment, and that commands get in theirs.
    #[serde(default)]
    pub propagators: Propagators,
    /// True if the runtime's own work is traced for every task.
    #[serde(default)]
    pub trace_runtime: bool,
    /// True if the arguments of tasks are put on their spans.
    #[serde(default)]
    pub record_arguments: bool,
    /// The `OTEL_*` variables that the session was started with and that a driver's hook should have too, unless its own environment
    /// says something else. A worker has them already, and gets none.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Log records of modules: which events become some.
    #[serde(default)]
    pub logs: LogSettings,
}

impl TracingSettings {
    /// Settings of a session that is not traced.
    pub fn untraced(spans_dir: PathBuf) -> TracingSettings {
        TracingSettings {
            revision: 1,
            spans_dir,
            hook: None,
            sampling_ratio: SamplingRatio::default(),
            propagators: Propagators::default(),
            trace_runtime: false,
            record_arguments: false,
            environment: Vec::new(),
            logs: LogSettings::default(),
        }
    }

    /// Renders what hooks read from the environment of their process, whatever its own environment says.
    pub fn variables(&self) -> [(&'static str, OsString); 2] {
        [
            (SPANS_DIR_VARIABLE, self.spans_dir.clone().into_os_string()),
            (SAMPLING_RATIO_VARIABLE, self.sampling_ratio.to_string().into()),
        ]
    }
}

/// The hook that every process of the session runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookChoice {
    /// Text that was given: `module:attribute`.
    pub import_string: String,
    /// Contract that it was named for.
    pub contract: HookContract,
    /// The library it was found in; none for a hook built into tracer.
    pub library: Option<PathBuf>,
    /// The longest it may take.
    pub timeout_ms: u64,
    /// True if a process may go on when its hook fails.
    pub is_required: bool,
    /// The hooks that get the finished spans of this one, in their order.
    pub further: Vec<FurtherHook>,
}

/// A hook beside the one that makes the spans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherHook {
    /// Text that was given: `module:attribute`.
    pub import_string: String,
    /// Contract that it was named for.
    pub contract: HookContract,
    /// The library it was found in; none for a hook built into tracer.
    pub library: Option<PathBuf>,
    /// Description of its work with spans, as it gave it when `tracer start` tried it out.
    pub description: String,
}

#[cfg(test)]
mod tests {
    use tracer_core::hex::hex;

    use super::*;

    fn half() -> TracingSettings {
        TracingSettings {
            revision: 2,
            hook: Some(HookChoice {
                import_string: "m:h".into(),
                contract: HookContract::Startup,
                library: None,
                timeout_ms: 10,
                is_required: true,
                further: Vec::new(),
            }),
            sampling_ratio: "0.5".parse().unwrap(),
            environment: vec![("OTEL_A".into(), "b".into())],
            ..TracingSettings::untraced("/s".into())
        }
    }

    #[test]
    fn tracing_settings_have_golden_bytes() {
        let bytes = rmp_serde::to_vec_named(&half()).unwrap();
        // A map of nine: each name before its value.
        let expected = "89 \
             a87265766973696f6e 02 \
             a97370616e735f646972 a22f73 \
             a4686f6f6b 86 \
             ad696d706f72745f737472696e67 a36d3a68 \
             a8636f6e7472616374 a773746172747570 \
             a76c696272617279 c0 \
             aa74696d656f75745f6d73 0a \
             ab69735f7265717569726564 c3 \
             a766757274686572 90 \
             ae73616d706c696e675f726174696f cb 3fe0000000000000 \
             ab70726f70616761746f7273 82 ad74726163655f636f6e74657874 c3 a762616767616765 c3 \
             ad74726163655f72756e74696d65 c2 \
             b07265636f72645f617267756d656e7473 c2 \
             ab656e7669726f6e6d656e74 91 92 a64f54454c5f41 a162 \
             a46c6f6773 82 a66576656e7473 a4626f7468 a56c6576656c a4696e666f";
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
    }

    #[test]
    fn settings_of_a_newer_head_are_read_without_what_is_new_and_those_of_an_older_one_with_defaults() {
        #[derive(Serialize)]
        struct Newer {
            revision: u64,
            exporters: Vec<u8>,
            spans_dir: PathBuf,
            hook: Option<()>,
        }
        let newer = Newer { revision: 1, exporters: vec![7], spans_dir: "/s".into(), hook: None };
        let bytes = rmp_serde::to_vec_named(&newer).unwrap();
        assert_eq!(rmp_serde::from_slice::<TracingSettings>(&bytes).unwrap(), TracingSettings::untraced("/s".into()));
    }

    #[test]
    fn hooks_find_folder_and_ratio_in_the_environment() {
        let variables = half().variables().map(|(name, value)| format!("{name}={}", value.display()));
        assert_eq!(variables, ["TRACER_SPANS_DIR=/s", "TRACER_TRACING_SAMPLING_RATIO=0.5"]);
    }
}
