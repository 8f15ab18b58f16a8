//! Repair of what Python's `json` writes that is no JSON: the floats `NaN`, `Infinity` and `-Infinity`.

use std::borrow::Cow;

const WORDS: [&[u8]; 2] = [b"NaN", b"Infinity"];

/// Returns where such a word stands, outside of strings, with its sign if it has one.
fn words(text: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    if !WORDS.iter().any(|word| memchr::memmem::find(text, word).is_some()) {
        return found;
    }
    let (mut at, mut is_in_string) = (0, false);
    while at < text.len() {
        match text[at] {
            b'\\' if is_in_string => at += 1,
            b'"' => is_in_string = !is_in_string,
            b'N' | b'I' if !is_in_string => {
                if let Some(word) = WORDS.iter().find(|word| text[at..].starts_with(word)) {
                    let start = if at > 0 && text[at - 1] == b'-' { at - 1 } else { at };
                    found.push((start, at + word.len()));
                    at += word.len() - 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the text with numbers of the same length in the places of such words, for a reader that steps over them. None when there are none.
pub(super) fn as_numbers(text: &[u8]) -> Option<Vec<u8>> {
    let words = words(text);
    if words.is_empty() {
        return None;
    }
    let mut numbers = text.to_vec();
    for (start, end) in words {
        numbers[start..end].fill(b'1');
    }
    Some(numbers)
}

/// Returns the text with such words as strings, as OTLP and tracer's own files have them.
pub(crate) fn as_strings(text: Cow<'_, str>) -> Cow<'_, str> {
    let words = words(text.as_bytes());
    if words.is_empty() {
        return text;
    }
    let (mut strings, mut copied) = (String::with_capacity(text.len() + 2 * words.len()), 0);
    for (start, end) in words {
        strings.push_str(&text[copied..start]);
        strings.push('"');
        strings.push_str(&text[start..end]);
        strings.push('"');
        copied = end;
    }
    strings.push_str(&text[copied..]);
    strings.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_python_become_numbers_or_strings_outside_of_strings_only() {
        for (text, numbers, strings) in [
            (r#"{"a": NaN}"#, Some(r#"{"a": 111}"#), r#"{"a": "NaN"}"#),
            (r#"[-Infinity, Infinity,1]"#, Some(r#"[111111111, 11111111,1]"#), r#"["-Infinity", "Infinity",1]"#),
            (r#"{"NaN": "Infinity \" NaN"}"#, None, r#"{"NaN": "Infinity \" NaN"}"#),
            (r#"{"é": [NaN, "\\", NaN]}"#, Some(r#"{"é": [111, "\\", 111]}"#), r#"{"é": ["NaN", "\\", "NaN"]}"#),
            ("{}", None, "{}"),
            ("-Inf", None, "-Inf"),
        ] {
            assert_eq!(as_numbers(text.as_bytes()), numbers.map(|text| text.as_bytes().to_vec()), "{text}");
            assert_eq!(as_strings(text.into()), strings, "{text}");
        }
    }
}
