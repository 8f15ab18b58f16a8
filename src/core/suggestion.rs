//! The nearest known name to one that is not known.
//!
//! It decides what is near enough to be worth saying. Where the known names come from, and what the rest of the message says, is
//! the caller's affair.

/// Returns the known name that `name` most probably stands for, or `None` when none is near enough.
///
/// Near enough is a Damerau-Levenshtein distance of at most a third of the longer name; of names of up to three letters, two letters swapped. Case, and `-` in place of `_`, do not
/// count. Of several equally near names the first is returned.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name_folded = fold(name);
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        let candidate_folded = fold(candidate);
        let (name_len, candidate_len) = (name_folded.chars().count(), candidate_folded.chars().count());
        // One letter makes another word of so short a one: `tpu` is no slip for `gpu`. Two that are swapped are one.
        let is_other_word = name_len.max(candidate_len) <= 3 && sorted(&name_folded) != sorted(&candidate_folded);
        let limit = if is_other_word { 0 } else { name_len.max(candidate_len) / 3 };
        // The distance is at least the difference in length; this also keeps a hostile name of a megabyte cheap.
        if name_len.abs_diff(candidate_len) > limit {
            continue;
        }
        let distance = strsim::damerau_levenshtein(&name_folded, &candidate_folded);
        if distance <= limit && best.is_none_or(|(best_distance, _)| distance < best_distance) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns the hint line for an error message that named `name`, with the line break before it: `\n(hint: did you mean
/// ...?)`. Empty when no known name is near enough.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |nearest| format!("\n(hint: did you mean `{nearest}`?)"))
}

fn sorted(name: &str) -> Vec<char> {
    let mut letters: Vec<char> = name.chars().take(4).collect();
    letters.sort_unstable();
    letters
}

fn fold(name: &str) -> String {
    name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Returns the text as one word of a shell's command line.
pub fn shell_word(text: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-+=:@%".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: [&str; 4] = ["local_tmp_tracing", "otlp", "otlp_file", "console"];

    #[test]
    fn a_slip_finds_its_name() {
        for (name, expected) in [
            ("otlp", Some("otlp")),
            ("oltp", Some("otlp")),
            ("otpl", Some("otlp")),
            ("OTLP", Some("otlp")),
            ("otlp-file", Some("otlp_file")),
            ("otlp_fiel", Some("otlp_file")),
            ("local_tmp_tracin", Some("local_tmp_tracing")),
            ("local-temp-tracing", Some("local_tmp_tracing")),
            ("consul", Some("console")),
            ("zipkin", None),
            ("o", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, HOOKS), expected, "{name}");
        }
    }

    #[test]
    fn short_names_are_not_guessed_at() {
        assert_eq!(nearest("ab", ["ac"]), None);
        assert_eq!(nearest("tpu", ["gpu"]), None);
        assert_eq!(nearest("gup", ["tpu", "gpu"]), Some("gpu"));
        assert_eq!(nearest("GPU", ["gpu"]), Some("gpu"));
    }

    #[test]
    fn of_equally_near_names_the_first_wins() {
        assert_eq!(nearest("cats", ["bats", "cars"]), Some("bats"));
    }

    #[test]
    fn the_hint_is_a_line_of_its_own() {
        assert_eq!(hint("oltp", HOOKS), "\n(hint: did you mean `otlp`?)");
        assert_eq!(hint("zipkin", HOOKS), "");
    }

    #[test]
    fn a_huge_name_is_answered_at_once() {
        assert_eq!(nearest(&"x".repeat(10_000_000), HOOKS), None);
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(shell_word("/tmp/a-b.c"), "/tmp/a-b.c");
        assert_eq!(shell_word("/tmp/it's here"), "'/tmp/it'\\''s here'");
        assert_eq!(shell_word(""), "''");
    }
}
