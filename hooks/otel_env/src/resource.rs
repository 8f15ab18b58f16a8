//! Resource: the attributes by which a process describes itself.

use super::{RESOURCE_ATTRIBUTES, Reader, SERVICE_NAME};

impl Reader<'_> {
    /// `OTEL_RESOURCE_ATTRIBUTES` with `OTEL_SERVICE_NAME` over its `service.name`. Of a key that is there twice the last counts.
    /// If one attribute cannot be understood, none of that variable is taken, as the specification wants it.
    pub fn resource_attributes(&mut self) -> Vec<(String, String)> {
        let mut attributes: Vec<(String, String)> = Vec::new();
        let listed = self.text(RESOURCE_ATTRIBUTES).unwrap_or_default();
        for member in listed.split(',').map(str::trim).filter(|member| !member.is_empty()) {
            let pair = member.split_once('=').and_then(|(key, value)| {
                let key = decoded(key.trim()).filter(|key| !key.is_empty())?;
                Some((key, decoded(value.trim())?))
            });
            let Some((key, value)) = pair else {
                let expected = "expected `key=value` with percent-encoding";
                let text = format!("has `{member}`, {expected}; the whole variable is ignored");
                self.complain(RESOURCE_ATTRIBUTES, text);
                attributes.clear();
                break;
            };
            put(&mut attributes, key, value);
        }
        if let Some(name) = self.text(SERVICE_NAME) {
            put(&mut attributes, "service.name".into(), name);
        }
        attributes
    }
}

fn put(attributes: &mut Vec<(String, String)>, key: String, value: String) {
    match attributes.iter_mut().find(|(known, _)| *known == key) {
        Some((_, known)) => *known = value,
        None => attributes.push((key, value)),
    }
}

/// Decodes a percent-encoded text; none when it is broken.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::problems;

    fn read(listed: &str, service_name: &str) -> (Vec<(String, String)>, Vec<String>) {
        let mut reader = Reader::new(|name| match name {
            RESOURCE_ATTRIBUTES => Some(listed.into()),
            SERVICE_NAME => Some(service_name.into()),
            _ => None,
        });
        (reader.resource_attributes(), problems(reader))
    }

    #[test]
    fn attributes_are_decoded() {
        for (listed, expected) in [
            ("", vec![]),
            ("a=1", vec![("a", "1")]),
            (" a = 1 , b = two words ,", vec![("a", "1"), ("b", "two words")]),
            ("key%2Cwith=a%3Db%25", vec![("key,with", "a=b%")]),
            ("city=K%C3%B6ln,x=", vec![("city", "Köln"), ("x", "")]),
            ("a=1,a=2", vec![("a", "2")]),
            ("a=b=c", vec![("a", "b=c")]),
            ("city=Köln", vec![("city", "Köln")]),
        ] {
            let expected: Vec<_> = expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            assert_eq!(read(listed, ""), (expected, Vec::new()), "{listed}");
        }
    }

    #[test]
    fn a_broken_attribute_costs_the_whole_variable() {
        for (listed, member) in
            [("a=1,b", "b"), ("a=1,=2", "=2"), ("a=%2", "a=%2"), ("a=%zz", "a=%zz"), ("a=%ff", "a=%ff")]
        {
            let said = format!(
                "`OTEL_RESOURCE_ATTRIBUTES` has `{member}`, expected `key=value` with percent-encoding; \
                 the whole variable is ignored"
            );
            assert_eq!(read(listed, ""), (Vec::new(), vec![said]), "{listed}");
        }
    }

    #[test]
    fn the_service_has_the_name_of_its_own_variable() {
        let named = |value: &str| vec![("service.name".to_owned(), value.to_owned())];
        assert_eq!(read("service.name=listed", "").0, named("listed"));
        assert_eq!(read("service.name=listed", "named").0, named("named"));
        assert_eq!(read("broken", "named").0, named("named"));
    }
}
