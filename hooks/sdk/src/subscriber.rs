//! `tracing` on top of the proxy: spans of that crate become spans of the host's, and events log records or events of spans.
//!
//! `tracing` too is in every library once more, with a dispatcher of its own, so each module needs a subscriber.

#[path = "events.rs"]
mod events;

use std::env;
use std::str::FromStr;

#[cfg(feature = "tracing")]
use opentelemetry as api;
#[cfg(not(any(feature = "tracing", feature = "tracing-0-32")))]
use opentelemetry_0_31 as api;
#[cfg(all(feature = "tracing-0-32", not(feature = "tracing")))]
use opentelemetry_0_32 as api;
use tracer_abi::{LOG_WARN, SEVERITY_DEBUG, SEVERITY_TRACE};
use tracing::{Subscriber, dispatcher, level_filters::LevelFilter, subscriber};
#[cfg(feature = "tracing")]
use tracing_opentelemetry as bridge;
#[cfg(not(any(feature = "tracing", feature = "tracing-0-32")))]
use tracing_opentelemetry_0_32 as bridge;
#[cfg(all(feature = "tracing-0-32", not(feature = "tracing")))]
use tracing_opentelemetry_0_33 as bridge;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

#[cfg(not(any(feature = "tracing", feature = "tracing-0-32")))]
use crate::proxy::otel_0_31::Tracer;
#[cfg(all(feature = "tracing-0-32", not(feature = "tracing")))]
use crate::proxy::otel_0_32::Tracer;
#[cfg(feature = "tracing")]
use crate::proxy::otel_0_33::Tracer;
use crate::{export, host};

/// Returns a layer that turns `tracing` spans into spans of the task, for a module with a subscriber of its own.
///
/// A module that sets no subscriber gets one with this layer, at the level that `RUST_LOG` asks for, else `info`. A
/// module that wants its own sets it in a function with [`on_load`](crate::on_load):
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
///
/// #[tracer_sdk::on_load]
/// fn subscribe() -> Result<(), tracing::subscriber::SetGlobalDefaultError> {
///     tracing::subscriber::set_global_default(tracing_subscriber::registry().with(tracer_sdk::layer()))
/// }
/// ```
///
/// Events become log records, events of their span, or both, as `[logs]` in `tracer.toml` has it.
///
/// The instrumentation scope of the spans is the module's crate. The layer may be made before the module is loaded.
pub fn layer<S>() -> impl Layer<S> + Send + Sync + 'static
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let (name, version) = export::package().unwrap_or(("tracing", ""));
    let scope = api::InstrumentationScope::builder(name);
    let scope = if version.is_empty() { scope } else { scope.with_version(version) };
    events::Events(bridge::layer().with_tracer(Tracer::new(scope.build())))
}

/// Sets the default subscriber, unless the author has set one.
pub(crate) fn install() {
    let filter = filter(env::var("RUST_LOG").ok().as_deref());
    #[cfg(feature = "log")]
    events::of_log::install(&filter);
    if dispatcher::has_been_set() {
        return;
    }
    // It fails only if another thread has been faster, and then that is the author's.
    let _ = subscriber::set_global_default(Registry::default().with(filter).with(layer()));
}

/// Returns the level without `RUST_LOG`: `info`, or what the session wants log records from, if that is finer.
fn default_level() -> LevelFilter {
    if host::wants_records(SEVERITY_TRACE) {
        LevelFilter::TRACE
    } else if host::wants_records(SEVERITY_DEBUG) {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    }
}

/// Returns what `RUST_LOG` asks for, in the words of `tracing_subscriber::filter::Targets`; unset or empty means the default.
fn filter(asked: Option<&str>) -> Targets {
    let default = Targets::new().with_default(default_level());
    let Some(asked) = asked.filter(|asked| !asked.trim().is_empty()) else { return default };
    Targets::from_str(asked).unwrap_or_else(|error| {
        let text = format!(
            "`RUST_LOG` is `{asked}`, but takes `level` or `target=level`, separated by commas ({error}); `info` is used"
        );
        host::log(LOG_WARN, &text);
        default
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn rust_log_sets_the_level_and_info_is_the_default() {
        for (asked, target, debug, info) in [
            (None, "any", false, true),
            (Some(" "), "any", false, true),
            (Some("debug"), "any", true, true),
            (Some("warn,mine=debug"), "mine::inner", true, true),
            (Some("warn,mine=debug"), "other", false, false),
            (Some("mine=no-such-level"), "any", false, true),
        ] {
            let filter = filter(asked);
            assert_eq!(filter.would_enable(target, &Level::DEBUG), debug, "{asked:?} {target}");
            assert_eq!(filter.would_enable(target, &Level::INFO), info, "{asked:?} {target}");
        }
    }
}
