//! The environment variables and folders by which a program and the session that it uses agree.

use std::path::PathBuf;

use tracer_otel_env as otel_env;

/// The environment variable for the place of the head.
pub const TEMP_DIR_VARIABLE: &str = "TRACER_TEMP_DIR";
/// The environment variable for the folder of the span files.
pub const SPANS_DIR_VARIABLE: &str = "TRACER_SPANS_DIR";
/// The environment variable for the share of new traces that are sampled. Hooks in Rust read it too, in every process of a session.
pub const SAMPLING_RATIO_VARIABLE: &str = "TRACER_TRACING_SAMPLING_RATIO";
/// The environment variable for the name of the service that a process is of: its `service.name` where nothing else names it.
pub const SERVICE_VARIABLE: &str = "TRACER_SERVICE";
/// Default folder in which span files are written and read.
pub const DEFAULT_SPANS_DIR: &str = "/tmp/spans";

/// Returns the session folder when nothing else was said: `/tmp/tracer-<uid>`, so that two users of a machine do not meet.
pub fn default_temp_dir() -> PathBuf {
    format!("/tmp/tracer-{}", rustix::process::getuid().as_raw()).into()
}

/// Selects the variables of a session that a driver takes over: all but those about which its own environment says something.
///
/// Some belong together, such as an endpoint and the headers for it. Of those it takes all or none, so that nothing meant for one
/// place goes to another.
pub fn to_take_over<'a>(
    session: &'a [(String, String)],
    own: &'a [String],
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let is_said = move |name: &str| own.iter().any(|own| family(own) == family(name));
    session.iter().filter(move |(name, _)| !is_said(name)).map(|(name, value)| (name.as_str(), value.as_str()))
}

/// Returns the family that a variable belongs to.
fn family(name: &str) -> &str {
    const FAMILIES: [&str; 3] = ["OTEL_EXPORTER_", "OTEL_BSP_", "OTEL_TRACES_SAMPLER"];
    match FAMILIES.iter().find(|family| name.starts_with(*family)) {
        Some(family) => family,
        None if name == otel_env::SERVICE_NAME => otel_env::RESOURCE_ATTRIBUTES,
        None if name.ends_with("_LIMIT") => "_LIMIT",
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_takes_over_what_its_own_environment_says_nothing_about() {
        let session: Vec<(String, String)> = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://there"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=secret"),
            ("OTEL_SERVICE_NAME", "session"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "3"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        let taken = |own: &[&str]| {
            let own: Vec<_> = own.iter().map(ToString::to_string).collect();
            to_take_over(&session, &own).map(|(name, _)| name.to_owned()).collect::<Vec<_>>().join(" ")
        };
        let all = "OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_HEADERS OTEL_SERVICE_NAME \
                   OTEL_SPAN_LINK_COUNT_LIMIT OTEL_TRACES_SAMPLER";
        assert_eq!(taken(&[]), all);
        assert_eq!(taken(&["OTEL_LOG_LEVEL"]), all);
        let own = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER_ARG"];
        assert_eq!(taken(&own), "OTEL_SPAN_LINK_COUNT_LIMIT");
    }
}
