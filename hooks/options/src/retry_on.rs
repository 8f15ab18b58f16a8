//! Lists of failures that are tried again, as people write them.

/// Checks a list for `--retry-on`: `error`, `panic`, `timeout`, `exit`, `exit:CODE`, `signal`, `signal:NUMBER`, another value that
/// `error.type` may have, or the type of an error. Says what is wrong with it.
pub fn check_retry_on(list: &str) -> Result<(), String> {
    for kind in list.split(',').map(str::trim) {
        let number = |number: &str, range: std::ops::RangeInclusive<u32>| {
            number.parse().is_ok_and(|number| range.contains(&number))
        };
        let problem = match kind.split_once(':') {
            _ if kind.is_empty() => Some("a kind is empty"),
            Some(("exit", code)) if !number(code, 1..=255) => Some("an exit code is 1 to 255"),
            Some(("signal", signal)) if !number(signal, 1..=64) => Some("a signal is given by its number, 1 to 64"),
            _ if kind.contains(char::is_whitespace) => Some("a kind has no spaces"),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(format!("`{kind}` in `{list}`: {problem}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_kinds_that_cannot_be_is_refused() {
        for good in ["error", "exit:75,signal:9", "panic, timeout", "my::Error", "not_started"] {
            assert_eq!(check_retry_on(good), Ok(()));
        }
        for (bad, problem) in [
            ("", "a kind is empty"),
            ("error,", "a kind is empty"),
            ("exit:0", "an exit code is 1 to 255"),
            ("exit:256", "an exit code is 1 to 255"),
            ("signal:KILL", "a signal is given by its number, 1 to 64"),
            ("exit 3", "a kind has no spaces"),
        ] {
            assert!(check_retry_on(bad).unwrap_err().contains(problem), "{bad}");
        }
    }
}
