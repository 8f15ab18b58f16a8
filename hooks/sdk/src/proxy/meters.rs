//! Meter provider and instruments for one version of OpenTelemetry: the values are the host's, which outlive the process.
//!
//! The parent module says which version: `super::api` is the crate. This file is loaded once for each.

use std::borrow::Cow;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use tracer_abi::{self as abi, LOG_WARN, Measurement, Number, STATUS_OK, STATUS_WANTS_SPAN, SpanContext, Str};

use super::api::metrics::{
    AsyncInstrument, AsyncInstrumentBuilder, Callback, Counter, Gauge, Histogram, HistogramBuilder, InstrumentBuilder,
    InstrumentProvider, Meter, ObservableCounter, ObservableGauge, ObservableUpDownCounter, SyncInstrument,
    UpDownCounter,
};
use super::api::trace::TraceContextExt;
use super::api::{self, Context, InstrumentationScope, KeyValue};
use super::spans::Attributes;
use crate::host::{self, HostMetrics};

/// The provider. What all of its instruments measure is counted by the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeterProvider {}

/// Makes the proxy this copy's global provider of meters.
pub(crate) fn install() {
    api::global::set_meter_provider(MeterProvider {});
}

impl api::metrics::MeterProvider for MeterProvider {
    fn meter_with_scope(&self, scope: InstrumentationScope) -> Meter {
        Meter::new(Arc::new(Instruments { scope }))
    }
}

/// The instruments of a scope.
struct Instruments {
    scope: InstrumentationScope,
}

/// A number that instruments take.
trait Value: Copy + Send + Sync + 'static {
    const NUMBER: u32;
    fn raw(self) -> Number;
}

impl Value for u64 {
    const NUMBER: u32 = abi::NUMBER_U64;
    fn raw(self) -> Number {
        Number { u64_: self }
    }
}

impl Value for i64 {
    const NUMBER: u32 = abi::NUMBER_I64;
    fn raw(self) -> Number {
        Number { i64_: self }
    }
}

impl Value for f64 {
    const NUMBER: u32 = abi::NUMBER_F64;
    fn raw(self) -> Number {
        Number { f64_: self }
    }
}

/// An instrument of the host's, from the first value on that was measured with a host.
struct Instrument {
    kind: u32,
    number: u32,
    name: Cow<'static, str>,
    unit: Cow<'static, str>,
    description: Cow<'static, str>,
    scope: InstrumentationScope,
    boundaries: Option<Vec<f64>>,
    found: OnceLock<Option<Found>>,
}

#[derive(Clone, Copy)]
struct Found {
    host: HostMetrics,
    instrument: *mut c_void,
}

// SAFETY: the host's functions may be called from any thread, and its instruments live as long as the process.
unsafe impl Send for Found {}
// SAFETY: as above.
unsafe impl Sync for Found {}

impl Instrument {
    fn find(&self) -> Option<Found> {
        if let Some(found) = self.found.get() {
            return *found;
        }
        // Without a host there may be one later.
        let host = host::metrics()?;
        *self.found.get_or_init(|| {
            let instrument = abi::Instrument {
                size: size_of::<abi::Instrument>(),
                kind: self.kind,
                number: self.number,
                name: Str::new(&self.name),
                unit: Str::new(&self.unit),
                description: Str::new(&self.description),
                scope: Str::new(self.scope.name()),
                scope_version: Str::new(self.scope.version().unwrap_or_default()),
                boundaries: self.boundaries.as_ref().map_or(ptr::null(), |boundaries| boundaries.as_ptr()),
                boundary_count: self.boundaries.as_ref().map_or(0, Vec::len),
            };
            // SAFETY: the host's function, with an instrument that outlives the call.
            let instrument = unsafe { (host.instrument)(&instrument) };
            (!instrument.is_null()).then_some(Found { host, instrument })
        })
    }

    fn take(&self, value: Number, attributes: &[KeyValue]) {
        let Some(found) = self.find() else { return };
        let attributes = Attributes::new(attributes);
        let mut measurement = Measurement {
            size: size_of::<Measurement>(),
            value,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
            span_context: ptr::null(),
        };
        // SAFETY: the host's function and instrument, with a measurement that outlives the call.
        if unsafe { (found.host.measure)(found.instrument, &measurement) } == STATUS_WANTS_SPAN
            && let Some(context) = sampled_span()
        {
            measurement.span_context = &context;
            // SAFETY: as above.
            unsafe { (found.host.exemplar)(found.instrument, &measurement) };
        }
    }
}

/// Returns the ids of the span that is current on this thread, if it is sampled.
fn sampled_span() -> Option<SpanContext> {
    Context::map_current(|context| {
        let span = context.has_active_span().then(|| context.span())?;
        let context = span.span_context();
        context.is_sampled().then(|| SpanContext {
            trace_id: context.trace_id().to_bytes(),
            span_id: context.span_id().to_bytes(),
            trace_flags: context.trace_flags().to_u8(),
            ..SpanContext::INVALID
        })
    })
}

impl<T: Value> SyncInstrument<T> for Instrument {
    fn measure(&self, measurement: T, attributes: &[KeyValue]) {
        self.take(measurement.raw(), attributes);
    }
}

impl<T: Value> AsyncInstrument<T> for Instrument {
    fn observe(&self, measurement: T, attributes: &[KeyValue]) {
        self.take(measurement.raw(), attributes);
    }
}

/// An instrument with the author's functions that measure it.
struct Observed<T> {
    instrument: Instrument,
    callbacks: Vec<Callback<T>>,
}

/// Calls the author's functions.
///
/// # Safety
///
/// `data` is an [`Observed`] of this type that is never freed.
unsafe extern "C" fn observe<T: Value>(data: *mut c_void) {
    // SAFETY: promised by the caller.
    let observed = unsafe { &*data.cast::<Observed<T>>() };
    for callback in &observed.callbacks {
        // A panic is told by the panic hook; the others are asked all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| callback(&observed.instrument)));
    }
}

impl Instruments {
    fn of<T: Value, I>(&self, kind: u32, builder: InstrumentBuilder<'_, I>) -> Arc<Instrument> {
        self.make::<T>(kind, builder.name, builder.unit, builder.description, None).into()
    }

    fn make<T: Value>(
        &self,
        kind: u32,
        name: Cow<'static, str>,
        unit: Option<Cow<'static, str>>,
        description: Option<Cow<'static, str>>,
        boundaries: Option<Vec<f64>>,
    ) -> Instrument {
        let (unit, description) = (unit.unwrap_or_default(), description.unwrap_or_default());
        let (scope, found) = (self.scope.clone(), OnceLock::new());
        Instrument { kind, number: T::NUMBER, name, unit, description, scope, boundaries, found }
    }

    fn histogram_of<T: Value>(&self, builder: HistogramBuilder<'_, Histogram<T>>) -> Histogram<T> {
        let kind = abi::INSTRUMENT_HISTOGRAM;
        let instrument = self.make::<T>(kind, builder.name, builder.unit, builder.description, builder.boundaries);
        Histogram::new(Arc::new(instrument))
    }

    /// Gives an observable instrument's functions to the host, for as long as the process lives.
    fn observe<T: Value, I>(&self, kind: u32, builder: AsyncInstrumentBuilder<'_, I, T>) {
        let instrument = self.make::<T>(kind, builder.name, builder.unit, builder.description, None);
        let Some(host) = host::metrics().filter(|_| !builder.callbacks.is_empty()) else { return };
        let name = instrument.name.clone();
        let observed = Box::into_raw(Box::new(Observed { instrument, callbacks: builder.callbacks }));
        // SAFETY: the host's function; what it is given is never freed, and may be used from any thread.
        if unsafe { (host.observe)(observed.cast(), Some(observe::<T>)) } != STATUS_OK {
            host::log(LOG_WARN, &format!("the host does not take the observer of `{name}`, which has no values"));
        }
    }
}

impl InstrumentProvider for Instruments {
    fn u64_counter(&self, builder: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
        Counter::new(self.of::<u64, _>(abi::INSTRUMENT_COUNTER, builder))
    }

    fn f64_counter(&self, builder: InstrumentBuilder<'_, Counter<f64>>) -> Counter<f64> {
        Counter::new(self.of::<f64, _>(abi::INSTRUMENT_COUNTER, builder))
    }

    fn i64_up_down_counter(&self, builder: InstrumentBuilder<'_, UpDownCounter<i64>>) -> UpDownCounter<i64> {
        UpDownCounter::new(self.of::<i64, _>(abi::INSTRUMENT_UP_DOWN_COUNTER, builder))
    }

    fn f64_up_down_counter(&self, builder: InstrumentBuilder<'_, UpDownCounter<f64>>) -> UpDownCounter<f64> {
        UpDownCounter::new(self.of::<f64, _>(abi::INSTRUMENT_UP_DOWN_COUNTER, builder))
    }

    fn u64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<u64>>) -> Gauge<u64> {
        Gauge::new(self.of::<u64, _>(abi::INSTRUMENT_GAUGE, builder))
    }

    fn i64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<i64>>) -> Gauge<i64> {
        Gauge::new(self.of::<i64, _>(abi::INSTRUMENT_GAUGE, builder))
    }

    fn f64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<f64>>) -> Gauge<f64> {
        Gauge::new(self.of::<f64, _>(abi::INSTRUMENT_GAUGE, builder))
    }

    fn u64_histogram(&self, builder: HistogramBuilder<'_, Histogram<u64>>) -> Histogram<u64> {
        self.histogram_of(builder)
    }

    fn f64_histogram(&self, builder: HistogramBuilder<'_, Histogram<f64>>) -> Histogram<f64> {
        self.histogram_of(builder)
    }

    fn u64_observable_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableCounter<u64>, u64>,
    ) -> ObservableCounter<u64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_COUNTER, builder);
        ObservableCounter::new()
    }

    fn f64_observable_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableCounter<f64>, f64>,
    ) -> ObservableCounter<f64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_COUNTER, builder);
        ObservableCounter::new()
    }

    fn i64_observable_up_down_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableUpDownCounter<i64>, i64>,
    ) -> ObservableUpDownCounter<i64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_UP_DOWN_COUNTER, builder);
        ObservableUpDownCounter::new()
    }

    fn f64_observable_up_down_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableUpDownCounter<f64>, f64>,
    ) -> ObservableUpDownCounter<f64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_UP_DOWN_COUNTER, builder);
        ObservableUpDownCounter::new()
    }

    fn u64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<u64>, u64>,
    ) -> ObservableGauge<u64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_GAUGE, builder);
        ObservableGauge::new()
    }

    fn i64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<i64>, i64>,
    ) -> ObservableGauge<i64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_GAUGE, builder);
        ObservableGauge::new()
    }

    fn f64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<f64>, f64>,
    ) -> ObservableGauge<f64> {
        self.observe(abi::INSTRUMENT_OBSERVABLE_GAUGE, builder);
        ObservableGauge::new()
    }
}
