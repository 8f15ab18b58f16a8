//! Limits of spans: those of the hook, else those of the environment.
//!
//! The SDK counts. It does not shorten values, so that is done here, as a span ends.

use std::time::Duration;

use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanLimits, SpanProcessor};
use tracer_otel_env::{DEFAULT_COUNT_LIMIT, DEFAULT_LINK_LIMIT, Limits};

/// The limits that a hook has set. Those are never replaced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SaidLimits {
    pub(super) attributes_per_span: Option<u32>,
    pub(super) events_per_span: Option<u32>,
    pub(super) links_per_span: Option<u32>,
    pub(super) attributes_per_event: Option<u32>,
    pub(super) attributes_per_link: Option<u32>,
}

impl SaidLimits {
    pub(super) fn of(limits: SpanLimits) -> SaidLimits {
        SaidLimits {
            attributes_per_span: Some(limits.max_attributes_per_span),
            events_per_span: Some(limits.max_events_per_span),
            links_per_span: Some(limits.max_links_per_span),
            attributes_per_event: Some(limits.max_attributes_per_event),
            attributes_per_link: Some(limits.max_attributes_per_link),
        }
    }

    /// Returns all limits, with the environment's where the hook has set none.
    pub(super) fn or(self, environment: &Limits) -> SpanLimits {
        let or = |said: Option<u32>, environment: Option<usize>, default: usize| {
            said.unwrap_or_else(|| u32::try_from(environment.unwrap_or(default)).unwrap_or(u32::MAX))
        };
        let either = |said, environment| or(said, environment, DEFAULT_COUNT_LIMIT);
        SpanLimits {
            max_attributes_per_span: either(self.attributes_per_span, environment.span_attributes),
            max_events_per_span: either(self.events_per_span, environment.span_events),
            max_links_per_span: or(self.links_per_span, environment.span_links, DEFAULT_LINK_LIMIT),
            max_attributes_per_event: either(self.attributes_per_event, environment.event_attributes),
            max_attributes_per_link: either(self.attributes_per_link, environment.link_attributes),
        }
    }
}

/// Limits of the length of texts, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    span: Option<usize>,
    other: Option<usize>,
}

/// Shortens texts before the processor gets them. It stands only where there is a limit.
#[derive(Debug)]
pub(super) struct ShorteningProcessor<P> {
    inner: P,
    lengths: Lengths,
}

impl Lengths {
    /// Returns the lengths that the environment allows; none when it has no limit.
    pub(super) fn of(limits: &Limits) -> Option<Lengths> {
        let lengths = Lengths { span: limits.span_value_length, other: limits.other_value_length };
        (lengths.span.is_some() || lengths.other.is_some()).then_some(lengths)
    }
}

impl<P> ShorteningProcessor<P> {
    pub(super) fn new(inner: P, lengths: Lengths) -> ShorteningProcessor<P> {
        ShorteningProcessor { inner, lengths }
    }
}

impl<P: SpanProcessor> SpanProcessor for ShorteningProcessor<P> {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.inner.on_start(span, cx);
    }

    fn on_end(&self, mut span: SpanData) {
        if let Some(length) = self.lengths.span {
            shorten(&mut span.attributes, length);
        }
        if let Some(length) = self.lengths.other {
            span.events.events.iter_mut().for_each(|event| shorten(&mut event.attributes, length));
            span.links.links.iter_mut().for_each(|link| shorten(&mut link.attributes, length));
        }
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

fn shorten(attributes: &mut [KeyValue], length: usize) {
    for attribute in attributes {
        match &mut attribute.value {
            Value::String(text) => shorten_text(text, length),
            Value::Array(Array::String(texts)) => texts.iter_mut().for_each(|text| shorten_text(text, length)),
            _ => {}
        }
    }
}

fn shorten_text(text: &mut StringValue, length: usize) {
    if let Some(shortened) = Limits::shortened(text.as_str(), length) {
        *text = StringValue::from(shortened.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_texts_in_arrays_are_shortened_and_nothing_else() {
        let texts = |texts: &[&'static str]| {
            Value::Array(Array::String(texts.iter().map(|text| StringValue::from(*text)).collect()))
        };
        let mut attributes = [
            KeyValue::new("text", "abcdef"),
            KeyValue::new("short", "abc"),
            KeyValue::new("number", 123_456),
            KeyValue::new("texts", texts(&["abcdef", "abc", "äöüß"])),
        ];
        shorten(&mut attributes, 3);
        let expected = [
            KeyValue::new("text", "abc"),
            KeyValue::new("short", "abc"),
            KeyValue::new("number", 123_456),
            KeyValue::new("texts", texts(&["abc", "abc", "äöü"])),
        ];
        assert_eq!(attributes, expected);
    }
}
