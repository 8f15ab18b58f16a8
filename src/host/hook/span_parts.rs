//! Parts that several kinds of tracer's own spans have: attributes in a list of fixed room, and the event of an exception.

use tracer_core::names;
use tracer_core::task::Failure;

use super::recorder::{ActiveSpan, Attribute};

/// Attributes in the order in which they were put, up to `N` of them, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct AttributeList<'a, const N: usize> {
    all: [(&'static str, Attribute<'a>); N],
    count: usize,
}

impl<'a, const N: usize> AttributeList<'a, N> {
    /// Makes an empty list.
    #[inline]
    pub fn new() -> Self {
        AttributeList { all: [("", Attribute::Bool(false)); N], count: 0 }
    }

    /// Puts an attribute behind the others.
    ///
    /// # Panics
    ///
    /// When there is no room.
    #[inline]
    pub fn put(&mut self, name: &'static str, value: impl Into<Attribute<'a>>) {
        self.all[self.count] = (name, value.into());
        self.count += 1;
    }

    /// Puts an attribute if it has a value.
    #[inline]
    pub fn put_some(&mut self, name: &'static str, value: Option<impl Into<Attribute<'a>>>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Returns the attributes that were put.
    #[inline]
    pub fn as_slice(&self) -> &[(&'static str, Attribute<'a>)] {
        &self.all[..self.count]
    }
}

impl<const N: usize> Default for AttributeList<'_, N> {
    fn default() -> Self {
        AttributeList::new()
    }
}

/// The most characters that a client of a service puts on a span in one attribute.
const CLIENT_CHARACTERS: usize = 256;

/// Returns the first characters of a text of a client, as many as an attribute has.
pub fn client_text(text: &str) -> &str {
    if text.len() <= CLIENT_CHARACTERS {
        return text;
    }
    text.char_indices().nth(CLIENT_CHARACTERS).map_or(text, |(end, _)| &text[..end])
}

impl ActiveSpan {
    /// Adds the event of an exception for a failure whose type is `error_type`, and sets the status to ERROR.
    pub fn add_exception(&self, error_type: &str, failure: &Failure) {
        let message = failure.to_string();
        let mut attributes = AttributeList::<3>::new();
        attributes.put(names::EXCEPTION_TYPE, error_type);
        attributes.put(names::EXCEPTION_MESSAGE, &*message);
        attributes.put_some(names::EXCEPTION_STACKTRACE, Some(failure.stacktrace()).filter(|trace| !trace.is_empty()));
        self.add_event(names::EXCEPTION_EVENT, attributes.as_slice());
        self.set_error(&message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_was_put_in_that_order() {
        let mut list = AttributeList::<4>::new();
        assert_eq!(list.as_slice(), []);
        list.put("a", "text");
        list.put_some("b", None::<u64>);
        list.put_some("c", Some(7_u64));
        list.put("d", Attribute::Bool(true));
        let expected = [("a", Attribute::Str("text")), ("c", Attribute::I64(7)), ("d", Attribute::Bool(true))];
        assert_eq!(list.as_slice(), expected);
    }

    #[test]
    fn a_client_puts_256_characters_on_a_span() {
        let (fits, is_longer) = ("é".repeat(256), "é".repeat(257));
        assert_eq!(client_text(&fits), fits);
        assert_eq!(client_text(&is_longer), fits);
        assert_eq!(client_text("text"), "text");
    }
}
