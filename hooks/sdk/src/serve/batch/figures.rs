//! Metrics of batches: how many inputs each has, and how long its oldest one has waited. The host keeps them as those that modules make themselves.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use tracer_abi::{self as abi, Str};

use crate::host::{self, HostMetrics};
use crate::serve::lent::HostTable;

/// Boundaries of sizes, of which the largest is that of a batch.
const SIZES: [f64; 13] = powers_of_two(1.0);
/// Boundaries of times in seconds, from 0.12 ms to 8 s.
const TIMES: [f64; 17] = powers_of_two(1.0 / 8192.0);

const fn powers_of_two<const N: usize>(mut value: f64) -> [f64; N] {
    let mut all = [0.0; N];
    let mut index = 0;
    while index < N {
        all[index] = value;
        value *= 2.0;
        index += 1;
    }
    all
}

/// The host's instruments, from the first batch on that ran with a host.
struct Figures {
    host: HostMetrics,
    size: *mut c_void,
    wait: *mut c_void,
}

// SAFETY: the host's functions may be called from any thread, and its instruments live as long as the process.
unsafe impl Send for Figures {}
// SAFETY: as above.
unsafe impl Sync for Figures {}

static FIGURES: OnceLock<Figures> = OnceLock::new();

fn figures() -> Option<&'static Figures> {
    if let Some(figures) = FIGURES.get() {
        return Some(figures);
    }
    // Without a host there may be one later.
    let host = host::metrics()?;
    let histogram = |name: &str, unit: &str, description: &str, boundaries: &[f64]| {
        let instrument = abi::Instrument {
            size: size_of::<abi::Instrument>(),
            kind: abi::INSTRUMENT_HISTOGRAM,
            number: abi::NUMBER_F64,
            name: Str::new(name),
            unit: Str::new(unit),
            description: Str::new(description),
            scope: Str::new("tracer"),
            scope_version: Str::EMPTY,
            boundaries: boundaries.as_ptr(),
            boundary_count: boundaries.len(),
        };
        // SAFETY: the host's function, with an instrument that outlives the call.
        unsafe { (host.instrument)(&instrument) }
    };
    let size = histogram("tracer.serve.batch.size", "{request}", "Requests in a batch.", &SIZES);
    let wait =
        histogram("tracer.serve.batch.wait", "s", "Time that the oldest request of a batch waited for it.", &TIMES);
    Some(FIGURES.get_or_init(|| Figures { host, size, wait }))
}

/// Counts a batch that begins.
pub(super) fn count(function: &str, size: usize, waited: Duration, replica: Option<HostTable>) {
    let Some(figures) = figures() else { return };
    let settings = replica.map(|host| host.settings());
    let (application, deployment) =
        settings.map_or((Str::EMPTY, Str::EMPTY), |settings| (settings.application, settings.deployment));
    let attribute = |key: &str, value: Str| abi::KeyValue {
        key: Str::new(key),
        value: abi::Value { tag: abi::VALUE_STR, as_: abi::ValueUnion { str_: value } },
    };
    let attributes = [
        attribute("app", application),
        attribute("deployment", deployment),
        attribute("call_method", Str::new(function)),
    ];
    for (instrument, value) in [(figures.size, size as f64), (figures.wait, waited.as_secs_f64())] {
        if instrument.is_null() {
            continue;
        }
        let measurement = abi::Measurement {
            size: size_of::<abi::Measurement>(),
            value: abi::Number { f64_: value },
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
            span_context: ptr::null(),
        };
        // SAFETY: the host's function and instrument, with a measurement that outlives the call. That an exemplar would be welcome is left to the next one.
        unsafe { (figures.host.measure)(instrument, &measurement) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_powers_of_two_up_to_the_largest_batch() {
        assert_eq!((SIZES[0], SIZES[12]), (1.0, 4096.0));
        assert_eq!((TIMES[0], TIMES[16]), (1.0 / 8192.0, 8.0));
    }
}
