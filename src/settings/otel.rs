//! Settings of the whole session in the `OTEL_*` variables of `tracer start`.
//!
//! How spans are made is read where they are made, by each process, from the same environment. Here is what tracer itself decides by
//! them, and what is wrong with any of them, which is said once.

use std::ffi::OsString;

use tracer_core::propagation::Propagators;
use tracer_otel_env::{self as otel_env, LogLevel, Reader, Root};

use super::SamplingRatio;

/// Exporters that [`TRACES_EXPORTER`](otel_env::TRACES_EXPORTER) may name, apart from `none`, each with its hook.
const EXPORTERS: [(&str, &str); 3] =
    [("console", "console:setup_tracing"), ("otlp", OTLP_HOOK), ("otlp_file", "otlp_file:setup_tracing")];
const OTLP_HOOK: &str = "otlp:setup_tracing";
const OTLP_GRPC_HOOK: &str = "otlp_grpc:setup_tracing";
/// The protocol of `otlp`, the one for traces first.
const OTLP_PROTOCOL: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
/// Variables that are settled for the session; a driver has no use for them.
const SETTLED: [&str; 4] =
    [otel_env::SDK_DISABLED, otel_env::TRACES_EXPORTER, otel_env::PROPAGATORS, otel_env::CONFIG_FILE];

/// Settings of a session in the `OTEL_*` variables. Without any of them it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtelSettings {
    /// `OTEL_SDK_DISABLED`: nothing is traced.
    pub is_disabled: bool,
    /// `OTEL_PROPAGATORS`.
    pub propagators: Option<Propagators>,
    /// `OTEL_TRACES_EXPORTER`, which counts when no hook is named.
    pub exporters: Option<Exporters>,
    /// Mistakes in the variables, for people to read. Empty when `OTEL_LOG_LEVEL` wants to hear nothing of it.
    pub warnings: Vec<String>,
}

/// Exporters that `OTEL_TRACES_EXPORTER` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exporters {
    /// `none`: nothing is traced.
    None,
    /// Hooks, one for each exporter, in their order.
    Hooks {
        /// The names, as given.
        named: String,
        /// The hooks, as `module:attribute`.
        hooks: Vec<String>,
    },
    /// Names that cannot be taken; why.
    Refused(String),
}

impl OtelSettings {
    /// Reads the environment of this process.
    pub fn of_this_process() -> OtelSettings {
        OtelSettings::read(|name| std::env::var_os(name))
    }

    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> OtelSettings {
        let mut reader = Reader::new(lookup);
        reader.read_all();
        let is_disabled = reader.is_sdk_disabled();
        let log_level = reader.log_level();
        let propagators = propagators(&mut reader);
        let exporters = reader.names(otel_env::TRACES_EXPORTER).map(|names| exporters(&mut reader, names));
        let problems = reader.into_problems();
        let warnings = if log_level >= LogLevel::Warn { problems } else { Vec::new() };
        let warnings = warnings.iter().map(ToString::to_string).collect();
        OtelSettings { is_disabled, propagators, exporters, warnings }
    }
}

/// Returns the known ones among the names; none, which is the default, when there are none.
fn propagators(reader: &mut Reader<'_>) -> Option<Propagators> {
    let names = reader.names(otel_env::PROPAGATORS)?;
    let is_known = |name: &&String| matches!(name.as_str(), "tracecontext" | "baggage" | "none");
    let (known, unknown): (Vec<_>, Vec<_>) = names.iter().partition(is_known);
    for name in unknown {
        let text = format!("names `{name}`, expected `tracecontext`, `baggage`, both or `none`; that name is ignored");
        reader.complain(otel_env::PROPAGATORS, text);
    }
    if known.is_empty() {
        return None;
    }
    if known.len() > 1 && known.iter().any(|name| *name == "none") {
        reader.complain(otel_env::PROPAGATORS, "names `none` and others; the others are ignored");
        return Some(Propagators::NONE);
    }
    Propagators::from_names(known.into_iter().map(String::as_str)).ok()
}

fn exporters(reader: &mut Reader<'_>, names: Vec<String>) -> Exporters {
    let named = names.join(",");
    if names == ["none"] {
        return Exporters::None;
    }
    if names.iter().any(|name| name == "none") {
        return Exporters::Refused(format!("expected `none` alone, found `{named}`"));
    }
    let hook_of = |name: &String| match EXPORTERS.iter().find(|(known, _)| known == name) {
        Some((_, OTLP_HOOK)) => Ok(otlp_hook(reader).to_owned()),
        Some((_, hook)) => Ok((*hook).to_owned()),
        None => {
            let known: Vec<_> = EXPORTERS.iter().map(|(known, _)| format!("`{known}`")).collect();
            Err(format!(
                "expected {} or `none`, found `{name}`{}",
                known.join(", "),
                tracer_core::suggestion::hint(name, EXPORTERS.iter().map(|(known, _)| *known).chain(["none"]))
            ))
        }
    };
    match names.iter().map(hook_of).collect::<Result<Vec<_>, _>>() {
        Ok(hooks) => Exporters::Hooks { named, hooks },
        Err(reason) => Exporters::Refused(reason),
    }
}

/// Returns which of the two; the hook itself says what is wrong with a protocol that neither speaks.
fn otlp_hook(reader: &mut Reader<'_>) -> &'static str {
    let protocol = OTLP_PROTOCOL.iter().find_map(|variable| reader.text(variable));
    if protocol.as_deref() == Some("grpc") { OTLP_GRPC_HOOK } else { OTLP_HOOK }
}

/// Returns the variables of this process that drivers of its session should have as well, so that all of its processes trace alike.
pub fn for_drivers() -> Vec<(String, String)> {
    let mut variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| name.starts_with("OTEL_") && !value.trim().is_empty())
        .filter(|(name, _)| !SETTLED.contains(&name.as_str()))
        .collect();
    variables.sort();
    variables
}

/// Says which traces are sampled with a ratio in this environment, for people.
pub fn sampling_line(ratio: SamplingRatio) -> String {
    sampling_line_in(ratio, &mut Reader::of_this_process())
}

fn sampling_line_in(ratio: SamplingRatio, environment: &mut Reader<'_>) -> String {
    let at_ratio = |ratio: f64| match ratio {
        0.0 => "no new trace is sampled".to_owned(),
        1.0 => "all new traces are sampled".to_owned(),
        ratio => format!("new traces are sampled at a ratio of {ratio}"),
    };
    let Some(sampler) = environment.sampler() else {
        return format!("{}, unless the hook decides", at_ratio(ratio.get()));
    };
    let what = match (sampler.follows_parent, sampler.root) {
        (true, root) => at_ratio(root.ratio()),
        (false, Root::Always) => "every span is sampled, whatever its parent is".to_owned(),
        (false, Root::Never) => "no span is sampled".to_owned(),
        (false, Root::Ratio(ratio)) => {
            format!("spans are sampled by their trace ids at a ratio of {ratio}, whatever their parents are")
        }
    };
    format!("{what}, as OTEL_TRACES_SAMPLER says, unless the hook decides")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> OtelSettings {
        OtelSettings::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn an_environment_without_variables_says_nothing() {
        assert_eq!(read(&[]), OtelSettings::default());
        let empty = [("OTEL_SDK_DISABLED", ""), ("OTEL_PROPAGATORS", " "), ("OTEL_TRACES_EXPORTER", ",")];
        assert_eq!(read(&empty), OtelSettings::default());
    }

    #[test]
    fn propagators_that_are_not_known_are_ignored_and_said() {
        let unknown = |name: &str| {
            format!(
                "`OTEL_PROPAGATORS` names `{name}`, expected `tracecontext`, `baggage`, both or `none`; \
                 that name is ignored"
            )
        };
        let others = "`OTEL_PROPAGATORS` names `none` and others; the others are ignored".to_owned();
        let both = Propagators::default();
        for (text, expected, warnings) in [
            ("tracecontext,baggage", Some(both), vec![]),
            ("baggage, tracecontext ,baggage", Some(both), vec![]),
            ("baggage", Some(Propagators { trace_context: false, baggage: true }), vec![]),
            ("none", Some(Propagators::NONE), vec![]),
            ("b3,tracecontext", Some(Propagators { trace_context: true, baggage: false }), vec![unknown("b3")]),
            ("b3,xray", None, vec![unknown("b3"), unknown("xray")]),
            ("none,baggage", Some(Propagators::NONE), vec![others]),
        ] {
            let settings = read(&[("OTEL_PROPAGATORS", text)]);
            assert_eq!((settings.propagators, settings.warnings), (expected, warnings), "{text}");
        }
    }

    #[test]
    fn exporters_are_hooks() {
        let hooks = |variables: &[(&str, &str)]| match read(variables).exporters {
            Some(Exporters::Hooks { hooks, .. }) => hooks.join(" "),
            other => format!("{other:?}"),
        };
        for (text, expected) in [
            ("console", "console:setup_tracing"),
            ("otlp", "otlp:setup_tracing"),
            ("otlp_file", "otlp_file:setup_tracing"),
            (" console , otlp,console", "console:setup_tracing otlp:setup_tracing"),
            ("none", "Some(None)"),
        ] {
            assert_eq!(hooks(&[("OTEL_TRACES_EXPORTER", text)]), expected, "{text}");
        }
        for (all, traces, expected) in [
            ("grpc", "", "otlp_grpc:setup_tracing"),
            ("http/protobuf", "", "otlp:setup_tracing"),
            ("http/protobuf", "grpc", "otlp_grpc:setup_tracing"),
            ("grpc", "http/json", "otlp:setup_tracing"),
        ] {
            let variables = [
                ("OTEL_TRACES_EXPORTER", "otlp"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", all),
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", traces),
            ];
            assert_eq!(hooks(&variables), expected, "{all} {traces}");
        }
        for (text, reason) in [
            ("zipkin", "expected `console`, `otlp`, `otlp_file` or `none`, found `zipkin`"),
            (
                "consol",
                "expected `console`, `otlp`, `otlp_file` or `none`, found `consol`\n(hint: did you mean `console`?)",
            ),
            ("none,console", "expected `none` alone, found `none,console`"),
        ] {
            let refused = Some(Exporters::Refused(reason.into()));
            assert_eq!(read(&[("OTEL_TRACES_EXPORTER", text)]).exporters, refused, "{text}");
        }
    }

    #[test]
    fn the_log_level_decides_whether_mistakes_are_said() {
        for (level, count) in [("", 1), ("debug", 1), ("warn", 1), ("error", 0), ("none", 0)] {
            let warnings = read(&[("OTEL_LOG_LEVEL", level), ("OTEL_SPAN_LINK_COUNT_LIMIT", "few")]).warnings;
            assert_eq!(warnings.len(), count, "{level}");
        }
    }
}
