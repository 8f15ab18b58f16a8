//! Times as people read them.

use std::fmt;

/// A point in time, in UTC and to the millisecond: `2026-11-20T19:23:48.123Z`.
pub struct Utc(u64);

/// Formats nanoseconds since the Unix epoch.
pub fn utc(unix_nano: u64) -> Utc {
    Utc(unix_nano)
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0 / 1_000_000;
        let (seconds, millisecond) = (milliseconds / 1000, milliseconds % 1000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
    }
}

/// Year, month and day of a day since 1970-01-01, after Howard Hinnant's `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (nanos, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00.000Z"),
            (1_795_202_628_123_456_789, "2026-11-20T19:23:48.123Z"),
            (4_102_444_799_999_999_999, "2099-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(utc(nanos).to_string(), expected);
        }
    }
}
