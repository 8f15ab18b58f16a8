//! Durations as people type them.

use std::time::Duration;

/// A text that is not a duration. Its message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a duration such as `500ms`, `10s` or `2m`, found `{}`", .found)]
pub struct DurationError {
    found: String,
}

/// Reads a duration: a number, which may have decimals, and a unit (`ns`, `us`, `ms`, `s`, `m` or `h`); without a unit, seconds.
///
/// Fit for use as a value parser of a flag.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError { found: text.to_string() };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let nanos_per_unit: u128 = match unit.trim_start_matches(' ') {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(error()),
    };
    let (whole, decimals) = match number.split_once('.') {
        Some((_, "")) => return Err(error()),
        Some((whole, decimals)) => (whole, decimals),
        None => (number, ""),
    };
    // Digits beyond these cannot change the result by a nanosecond.
    let decimals = &decimals[..decimals.len().min(16)];
    let scale = 10_u128.pow(u32::try_from(decimals.len()).map_err(|_| error())?);
    let whole: u64 = whole.parse().map_err(|_| error())?;
    let decimals: u64 = if decimals.is_empty() { 0 } else { decimals.parse().map_err(|_| error())? };
    let nanos = u128::from(whole) * nanos_per_unit + u128::from(decimals) * nanos_per_unit / scale;
    // What does not fit 64 bits of nanoseconds (584 years) is a mistake.
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_or_are_seconds() {
        for (text, expected) in [
            ("500ms", Duration::from_millis(500)),
            ("10s", Duration::from_secs(10)),
            ("2m", Duration::from_secs(120)),
            ("1h", Duration::from_secs(3600)),
            ("50us", Duration::from_micros(50)),
            ("1.5µs", Duration::from_nanos(1500)),
            ("7ns", Duration::from_nanos(7)),
            ("10", Duration::from_secs(10)),
            ("0", Duration::ZERO),
            ("1.5s", Duration::from_millis(1500)),
            ("0.25", Duration::from_millis(250)),
            ("1.5 m", Duration::from_secs(90)),
            ("0.0000000005s", Duration::ZERO),
            ("1.00000000000000000000000001s", Duration::from_secs(1)),
        ] {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "s",
            "ms",
            "ten",
            "-1s",
            "+1s",
            "1 .5s",
            "1.2.3",
            ".5s",
            "1.",
            "5x",
            "1e3",
            "10S",
            "99999999999999999999",
            "18446744073709551615h",
            "1s ",
            "١s",
        ] {
            let error = parse_duration(text).expect_err(text);
            assert_eq!(
                error.to_string(),
                format!("expected a duration such as `500ms`, `10s` or `2m`, found `{text}`")
            );
        }
    }
}
