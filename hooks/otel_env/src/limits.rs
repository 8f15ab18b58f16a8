//! Limits of a span.

use super::Reader;

/// Default limit of the attributes and span events that are kept, and of the attributes of each event and link.
pub const DEFAULT_COUNT_LIMIT: usize = 128;
/// Default limit of the links that are kept. It is higher than OpenTelemetry's 128, because the span of a batch is linked with each request in it.
pub const DEFAULT_LINK_LIMIT: usize = 4096;

/// Limits of a span, as far as the environment says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Attributes of a span.
    pub span_attributes: Option<usize>,
    /// Events of a span.
    pub span_events: Option<usize>,
    /// Links of a span.
    pub span_links: Option<usize>,
    /// Attributes of a span event.
    pub event_attributes: Option<usize>,
    /// Attributes of a link.
    pub link_attributes: Option<usize>,
    /// Characters of a text among a span's attributes. No limit where nothing is said.
    pub span_value_length: Option<usize>,
    /// Characters of a text among the attributes of a span event or a link. No limit where nothing is said.
    pub other_value_length: Option<usize>,
}

impl Reader<'_> {
    /// `OTEL_*_LIMIT`. The variable for a kind of thing is stronger than the one for all attributes.
    pub fn limits(&mut self) -> Limits {
        let attributes = self.number("OTEL_ATTRIBUTE_COUNT_LIMIT");
        let value_length = self.number("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT");
        Limits {
            span_attributes: self.number("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT").or(attributes),
            span_events: self.number("OTEL_SPAN_EVENT_COUNT_LIMIT"),
            span_links: self.number("OTEL_SPAN_LINK_COUNT_LIMIT"),
            event_attributes: self.number("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT").or(attributes),
            link_attributes: self.number("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT").or(attributes),
            span_value_length: self.number("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT").or(value_length),
            other_value_length: value_length,
        }
    }
}

impl Limits {
    /// Returns the first `limit` characters of a text, or nothing if it has no more than those.
    pub fn shortened(text: &str, limit: usize) -> Option<&str> {
        // As many bytes cannot hold more characters; most texts end here.
        if text.len() <= limit {
            return None;
        }
        text.char_indices().nth(limit).map(|(end, _)| &text[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{problems, reader};

    #[test]
    fn the_variable_for_a_kind_of_thing_is_stronger_than_that_for_all() {
        let all = reader(&[("OTEL_ATTRIBUTE_COUNT_LIMIT", "5"), ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "10")]).limits();
        let expected = Limits {
            span_attributes: Some(5),
            event_attributes: Some(5),
            link_attributes: Some(5),
            span_value_length: Some(10),
            other_value_length: Some(10),
            ..Limits::default()
        };
        assert_eq!(all, expected);
        let each = reader(&[
            ("OTEL_ATTRIBUTE_COUNT_LIMIT", "5"),
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "10"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "2"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
            ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "3"),
            ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "4"),
            ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "20"),
        ])
        .limits();
        let expected = Limits {
            span_attributes: Some(1),
            span_events: Some(2),
            span_links: Some(0),
            event_attributes: Some(3),
            link_attributes: Some(4),
            span_value_length: Some(20),
            other_value_length: Some(10),
        };
        assert_eq!(each, expected);
        assert_eq!(reader(&[]).limits(), Limits::default());
    }

    #[test]
    fn what_is_no_number_is_ignored() {
        for text in ["-1", "many", "1.5", "99999999999999999999999"] {
            let mut reader = Reader::new(|name| (name == "OTEL_SPAN_LINK_COUNT_LIMIT").then(|| text.into()));
            assert_eq!(reader.limits(), Limits::default(), "{text}");
            let said = format!("`OTEL_SPAN_LINK_COUNT_LIMIT` is `{text}`, expected a number from 0 up; it is ignored");
            assert_eq!(problems(reader), [said]);
        }
    }

    #[test]
    fn texts_are_shortened_by_characters() {
        for (text, limit, expected) in [
            ("abc", 3, None),
            ("abc", 2, Some("ab")),
            ("abc", 0, Some("")),
            ("", 0, None),
            ("äöü", 3, None),
            ("äöü", 2, Some("äö")),
            ("a€b", 2, Some("a€")),
        ] {
            assert_eq!(Limits::shortened(text, limit), expected, "{text} {limit}");
        }
    }
}
