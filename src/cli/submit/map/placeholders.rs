//! Places in a command where a line stands: `{}` is all of it, `{1}` its first field.

/// Returns the words with the line in them, at the end if no word has a place for it. Fails if the line has too few fields.
pub(super) fn fill<'a>(words: impl Iterator<Item = &'a [u8]>, line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let fields: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
    let mut has_place = false;
    let mut filled = Vec::new();
    for word in words {
        let (mut text, mut rest) = (Vec::new(), word);
        while let Some((before, field, after)) = next(rest) {
            has_place = true;
            text.extend_from_slice(before);
            text.extend_from_slice(match field {
                0 => line,
                field => fields.get(field - 1).ok_or_else(|| {
                    format!("there is no field {field} for `{{{field}}}` in it: it has {}", fields.len())
                })?,
            });
            rest = after;
        }
        text.extend_from_slice(rest);
        filled.push(text);
    }
    if !has_place {
        filled.push(line.to_vec());
    }
    Ok(filled)
}

/// Returns what is before the next place, its field (0 for the whole line), and what is behind it.
fn next(text: &[u8]) -> Option<(&[u8], usize, &[u8])> {
    memchr::memchr_iter(b'{', text).find_map(|open| {
        let length = memchr::memchr(b'}', &text[open..])?;
        let field = match &text[open + 1..open + length] {
            b"" => 0,
            number if number.iter().all(u8::is_ascii_digit) && number[0] != b'0' => {
                std::str::from_utf8(number).ok()?.parse().ok()?
            }
            _ => return None,
        };
        Some((&text[..open], field, &text[open + length + 1..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(words: &[&str], line: &str) -> Result<Vec<String>, String> {
        let filled = fill(words.iter().map(|word| word.as_bytes()), line.as_bytes())?;
        Ok(filled.into_iter().map(|word| String::from_utf8(word).unwrap()).collect())
    }

    #[test]
    fn a_line_stands_where_it_is_asked_for_or_at_the_end() {
        for (words, line, expected) in [
            (&["wc", "-l"][..], "a b.txt", &["wc", "-l", "a b.txt"][..]),
            (&["wc", "-l"], "a.txt\r", &["wc", "-l", "a.txt"]),
            (&["cp", "{}", "to/{}.old"], "a b", &["cp", "a b", "to/a b.old"]),
            (&["{2}", "--lr={1}", "{1}{1}"], "0.1\t  sh", &["sh", "--lr=0.1", "0.10.1"]),
            // What is no place stays.
            (&["awk", "{print $1}", "{0} {01} {x} {", "{}"], "f", &["awk", "{print $1}", "{0} {01} {x} {", "f"]),
            (&["a", "{{}}", "}{1}{"], "f", &["a", "{f}", "}f{"]),
        ] {
            assert_eq!(filled(words, line).unwrap(), expected, "{words:?} {line}");
        }
    }

    #[test]
    fn a_line_with_too_few_fields_is_refused() {
        let reason = filled(&["a", "{1}", "{3}"], "x y").unwrap_err();
        assert_eq!(reason, "there is no field 3 for `{3}` in it: it has 2");
    }
}
