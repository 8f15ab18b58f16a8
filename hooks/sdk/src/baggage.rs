//! The W3C `baggage` header, read strictly.
//!
//! The propagator of the OpenTelemetry SDK loses values that contain `=` or `%`. What goes out is written
//! by the API crate, which does it right.
//!
//! Source: <https://www.w3.org/TR/baggage/>

/// One member: key, value (decoded), and the properties as they were written.
pub(crate) type Member<'a> = (&'a str, String, &'a str);

/// Returns the members of `header` that are well formed; the others are left out.
pub(crate) fn members(header: &str) -> impl Iterator<Item = Member<'_>> {
    header.split(',').filter_map(|member| {
        let (pair, properties) = member.split_once(';').unwrap_or((member, ""));
        let (key, value) = pair.split_once('=')?;
        let key = key.trim_matches([' ', '\t']);
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        (!key.is_empty() && key.bytes().all(is_token)).then(|| {
            let value = decoded(value.trim_matches([' ', '\t']));
            (key, value, properties.trim_matches([' ', '\t']))
        })
    })
}

/// Undoes percent-encoding. What is not UTF-8 then becomes U+FFFD, as the recommendation says.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => bytes.push(*first),
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_headers() {
        type Expected = &'static [(&'static str, &'static str, &'static str)];
        let table: &[(&str, Expected)] = &[
            ("", &[]),
            ("a=1", &[("a", "1", "")]),
            (" a\t=\t1 , b = 2 ;p=1; q ", &[("a", "1", ""), ("b", "2", "p=1; q")]),
            ("q=a=b=c", &[("q", "a=b=c", "")]),
            ("rate=50%2525", &[("rate", "50%25", "")]),
            ("rate=50%", &[("rate", "50%", "")]),
            ("name=J%C3%BCrgen", &[("name", "Jürgen", "")]),
            ("bad=%FF", &[("bad", "\u{fffd}", "")]),
            ("empty=", &[("empty", "", "")]),
            ("no-value,=no-key,a b=c,ok=1", &[("ok", "1", "")]),
        ];
        for (header, expected) in table {
            let members: Vec<_> = members(header).collect();
            let members: Vec<_> = members.iter().map(|(key, value, rest)| (*key, value.as_str(), *rest)).collect();
            assert_eq!(&members, expected, "{header:?}");
        }
    }
}
