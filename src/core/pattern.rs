//! Patterns for names, as people write them.

/// Returns whether a text fits a pattern, in which `*` stands for any text and `?` for any character.
pub fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut place) = (0, 0);
    // The last star, and the place in the text up to which it stands for.
    let mut star: Option<(usize, usize)> = None;
    while place < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(&character) if character == '?' || character == text[place] => {
                at += 1;
                place += 1;
            }
            _ => match &mut star {
                Some((star, end)) => {
                    *end += 1;
                    (at, place) = (*star + 1, *end);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&character| character == '*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_stand_for_any_text_and_question_marks_for_a_character() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "nightly"),
            ("night*", "nightly"),
            ("*ly", "nightly"),
            ("n*t*y", "nightly"),
            ("n?ghtly", "nightly"),
            ("*a*b*", "xxaxabx"),
            ("\u{e4}?", "\u{e4}\u{f6}"),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("?", ""), ("night", "nightly"), ("*lx", "nightly"), ("n*z*", "nightly")] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
        // It does not try every way.
        assert!(!fits(&"a*".repeat(40), &"a".repeat(39)));
    }
}
