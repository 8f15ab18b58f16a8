//! Wall-clock time: as nanoseconds since the Unix epoch, and as people read it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the wall-clock time in nanoseconds since the Unix epoch (`CLOCK_REALTIME`).
pub fn now_unix_nano() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

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

/// Returns the nanoseconds since the Unix epoch of a time as RFC 3339 writes it, such as `2026-11-20T19:23:48.5+01:00`. None for anything else, and for
/// times before the epoch.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let number = |text: &str, digits: usize| {
        let is_whole = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        is_whole.then(|| text.parse::<i64>().ok())?
    };
    let mut parts = date.splitn(3, '-');
    let (year, month) = (number(parts.next()?, 4)?, number(parts.next()?, 2)?);
    let day = number(parts.next()?, 2)?;
    let end = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(end);
    let offset_minutes = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign @ ("+" | "-"), offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
            let all = (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)?;
            if sign == "-" { -all } else { all }
        }
        _ => return None,
    };
    let (time, fraction) = time.split_once('.').map_or((time, None), |(time, fraction)| (time, Some(fraction)));
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let second = number(parts.next()?, 2)?;
    let nanos = match fraction {
        None => 0,
        Some(digits) => {
            let kept = &digits[..digits.len().min(9)];
            let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let digits = u32::try_from(kept.len()).ok().filter(|_| is_whole)?;
            kept.parse::<i64>().ok()? * 10_i64.pow(9 - digits)
        }
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap),
        _ => return None,
    };
    // A leap second is the one after it.
    let is_in_range = (1..=days_of_month).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    let seconds =
        (days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second).checked_sub(offset_minutes * 60)?;
    let nanos = seconds.checked_mul(1_000_000_000)?.checked_add(nanos).filter(|_| is_in_range)?;
    u64::try_from(nanos).ok()
}

/// Days since 1970-01-01, after Howard Hinnant's `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
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
            assert_eq!(parse_rfc3339(expected), Some(nanos / 1_000_000 * 1_000_000));
        }
    }

    #[test]
    fn times_of_other_zones_are_read_and_what_is_no_time_is_not() {
        for (text, nanos) in [
            ("2026-11-20T20:23:48.123456789+01:00", 1_795_202_628_123_456_789),
            ("2026-11-20 14:53:48.5-04:30", 1_795_202_628_500_000_000),
            ("2026-11-20t19:23:48z", 1_795_202_628_000_000_000),
            ("2026-11-20T19:23:48.1234567899Z", 1_795_202_628_123_456_789),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000_000_000),
        ] {
            assert_eq!(parse_rfc3339(text), Some(nanos), "{text}");
        }
        for text in [
            "",
            "T",
            "2026-11-20",
            "2026-11-20T19:23:48",
            "2026-11-20T19:23Z",
            "2026-13-20T19:23:48Z",
            "2026-02-29T19:23:48Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T19:23:48.Z",
            "2026-11-20T19:23:48.\u{e9}Z",
            "2026-11-20T19:23:48+1:00",
            "2026-11-20T19:23:48+25:00",
            "+026-11-20T19:23:48Z",
            "1969-12-31T23:59:59Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
