//! Names of queues that many machines share.

/// The longest name of a queue, in characters.
const LONGEST: usize = 64;

/// Says what is wrong with the name of a queue, as a clause behind it. It becomes a part of names in the engine, whatever that is.
pub fn check_queue_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > LONGEST {
        return Err(format!("must have 1 to {LONGEST} characters"));
    }
    match name.chars().find(|character| !(character.is_ascii_alphanumeric() || matches!(character, '-' | '_'))) {
        Some(character) => {
            let character = character.escape_default();
            Err(format!("has `{character}` in its name, which takes letters, digits, `-` and `_`"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_a_plain_name() {
        for name in ["default", "gpu-a100", "Q_1", &"x".repeat(64)] {
            assert_eq!(check_queue_name(name), Ok(()), "{name}");
        }
        for (name, problem) in [
            ("", "must have 1 to 64 characters"),
            ("a.b", "has `.` in its name, which takes letters, digits, `-` and `_`"),
            ("a b", "has ` ` in its name, which takes letters, digits, `-` and `_`"),
            ("a\n", "has `\\n` in its name, which takes letters, digits, `-` and `_`"),
            ("ä", "has `\\u{e4}` in its name, which takes letters, digits, `-` and `_`"),
        ] {
            assert_eq!(check_queue_name(name), Err(problem.into()), "{name:?}");
        }
    }
}
