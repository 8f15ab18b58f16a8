//! The parameters of a request's target, what follows the `?`.

use super::problem::{INVALID, Problem};

/// Takes a query apart into names and values. Each name is taken once, and only if it is `known`.
pub fn parse(query: &str, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
    let mut parameters: Vec<(String, String)> = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if !known.contains(&name.as_str()) {
            let name = name.escape_debug();
            let known = if known.is_empty() { "none".to_owned() } else { format!("`{}`", known.join("`, `")) };
            return Err(Problem::new(INVALID, format!("there is no parameter `{name}` here; known: {known}")));
        }
        if parameters.iter().any(|(other, _)| *other == name) {
            return Err(Problem::new(INVALID, format!("the parameter `{name}` is there more than once")));
        }
        parameters.push((name, value));
    }
    Ok(parameters)
}

/// Returns the value of a parameter that is a number in a range.
pub fn number(parameters: &[(String, String)], name: &str, from: u64, to: u64) -> Result<Option<u64>, Problem> {
    let Some(value) = text(parameters, name) else { return Ok(None) };
    // No sign, no blanks: only digits are a number here.
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse().ok().filter(|number| is_number && (from..=to).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let text = format!("`{name}` is `{}`, but takes a number from {from} to {to}", value.escape_debug());
            Err(Problem::new(INVALID, text))
        }
    }
}

/// Returns the value of a parameter.
pub fn text<'a>(parameters: &'a [(String, String)], name: &str) -> Option<&'a str> {
    parameters.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

fn decode(text: &str) -> Result<String, Problem> {
    let wrong = || Problem::new(INVALID, "a parameter is not percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16)).ok_or_else(wrong);
                u8::try_from(digit()? << 4 | digit()?).map_err(|_| wrong())?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_known_decoded_and_there_once() {
        let parse = |query| parse(query, &["limit", "name"]);
        let parameters = parse("limit=7&name=a%2Fb+c%C3%BC").unwrap();
        assert_eq!(number(&parameters, "limit", 1, 7).unwrap(), Some(7));
        assert_eq!(text(&parameters, "name"), Some("a/b cü"));
        assert_eq!(number(&parse("").unwrap(), "limit", 1, 7).unwrap(), None);
        for query in [
            "limit=8",
            "limit=0",
            "limit=",
            "limit",
            "limit=+1",
            "limit=1.0",
            "limit=%201",
            "limit=99999999999999999999",
        ] {
            assert!(number(&parse(query).unwrap(), "limit", 1, 7).is_err(), "{query}");
        }
        for query in ["other=1", "limit=1&limit=1", "limit=%", "limit=%g0", "limit=%f", "limit=%ff", "Limit=1"] {
            assert!(parse(query).is_err(), "{query}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_survives_its_encoding(value: String) {
            let encoded: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let parameters = parse(&format!("name={encoded}"), &["name"]).unwrap();
            assert_eq!(text(&parameters, "name"), Some(value.as_str()));
        }

        #[test]
        fn no_query_brings_it_down(query: String) {
            let _ = parse(&query, &["a"]);
        }
    }
}
