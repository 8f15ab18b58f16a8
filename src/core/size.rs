//! Sizes as people type them.

use crate::count::Size;

/// A text that is not a size. Its message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a size such as `500MiB` or `2GiB`, found `{}`", .found)]
pub struct SizeError {
    found: String,
}

/// Reads a number of bytes: a whole number and a unit, `B`, `KiB`, `MiB`, `GiB` or `TiB` in powers of 1024, `KB`, `MB`, `GB` or `TB` in powers of
/// 1000. Without a unit nobody would know which was meant.
///
/// Fit for use as a value parser of a flag.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError { found: text.to_string() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let bytes_per_unit: u64 = match unit.trim_start_matches(' ').to_ascii_lowercase().as_str() {
        "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(error()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(bytes_per_unit)).ok_or_else(error)
}

/// The lowest bound on memory, in bytes. Below it a worker could not even start.
pub const MEMORY_LEAST: u64 = 32 << 20;

/// Checks a bound on memory, in bytes.
pub fn check_memory(bytes: u64) -> Result<u64, String> {
    if bytes < MEMORY_LEAST {
        let least = Size(MEMORY_LEAST);
        return Err(format!("expected at least {least}, found {}", Size(bytes)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (text, expected) in [
            ("500MiB", Some(500 << 20)),
            ("2 GiB", Some(2 << 30)),
            ("2gib", Some(2 << 30)),
            ("1GB", Some(1_000_000_000)),
            ("7B", Some(7)),
            ("16777215TiB", Some(16_777_215 << 40)),
            ("16777216TiB", None),
            ("500", None),
            ("500M", None),
            ("1.5GiB", None),
            ("MiB", None),
            ("-1MiB", None),
            ("", None),
        ] {
            assert_eq!(parse_size(text).ok(), expected, "{text}");
        }
        assert_eq!(parse_size("2G").unwrap_err().to_string(), "expected a size such as `500MiB` or `2GiB`, found `2G`");
    }
}
