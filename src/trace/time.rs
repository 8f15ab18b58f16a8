//! Points in time as span files write them: `2026-11-05T12:34:56.789012Z`.

const SECONDS_PER_DAY: u64 = 86_400;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Reads a time in UTC to nanoseconds since the Unix epoch. `None` when it is malformed, or before 1970 or after 2554.
pub(super) fn parse(text: &str) -> Option<u64> {
    let (date_time, rest) = text.as_bytes().split_at_checked(19)?;
    for (offset, separator) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')] {
        let found = date_time[offset];
        // RFC 3339 allows a space for the T.
        if found != separator && !(separator == b'T' && found == b' ') {
            return None;
        }
    }
    let [year, month, day] = [number(&date_time[..4])?, number(&date_time[5..7])?, number(&date_time[8..10])?];
    let [hour, minute, second] =
        [number(&date_time[11..13])?, number(&date_time[14..16])?, number(&date_time[17..19])?];
    let is_date = year >= 1970 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    // 60 is a leap second.
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (nanos, zone) = match rest.split_first() {
        Some((b'.', rest)) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 || digits > 9 {
                return None;
            }
            let scale = 10_u64.pow(9 - u32::try_from(digits).ok()?);
            (number(&rest[..digits])? * scale, &rest[digits..])
        }
        _ => (0, rest),
    };
    if zone != b"Z" && zone != b"+00:00" {
        return None;
    }
    let seconds = days_since_epoch(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos)
}

/// Writes a time with six decimals, or with nine when it has nanoseconds.
pub fn format(unix_nano: u64) -> String {
    let (seconds, nanos) = (unix_nano / NANOS_PER_SECOND, unix_nano % NANOS_PER_SECOND);
    let (year, month, day) = date(seconds / SECONDS_PER_DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let date_time = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    match nanos % 1000 {
        0 => format!("{date_time}.{:06}Z", nanos / 1000),
        _ => format!("{date_time}.{nanos:09}Z"),
    }
}

/// `digits` is short enough not to overflow.
fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0')))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(is_leap(year)),
        _ => 31,
    }
}

/// For years from 1970. The algorithm is the usual one, with years that begin in March so that the leap day comes last.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Returns the inverse of [`days_since_epoch`].
fn date(days_since_epoch: u64) -> (u64, u64, u64) {
    let days = days_since_epoch + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_in_every_precision() {
        for (text, expected) in [
            ("1970-01-01T00:00:00.000000Z", 0),
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.5Z", 500_000_000),
            ("2026-11-05T12:34:56.789012Z", 1_793_882_096_789_012_000),
            ("2026-11-05T12:34:56.789012345Z", 1_793_882_096_789_012_345),
            ("2026-11-05 12:34:56.789012+00:00", 1_793_882_096_789_012_000),
            ("2000-02-29T23:59:60Z", 951_868_800_000_000_000),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for text in [
            "",
            "2026",
            "2026-11-05",
            "2026-11-05T12:34:56",
            "2026-11-05T12:34:56.Z",
            "2026-11-05T12:34:56.1234567890Z",
            "2026-13-05T12:34:56Z",
            "2026-11-31T12:34:56Z",
            "2026-02-29T12:34:56Z",
            "2026-00-05T12:34:56Z",
            "2026-11-00T12:34:56Z",
            "2026-11-05T24:34:56Z",
            "2026-11-05T12:60:56Z",
            "2026-11-05T12:34:61Z",
            "1969-12-31T23:59:59Z",
            "9999-12-31T23:59:59Z",
            "2026-11-05T12:34:56+01:00",
            "2026-11-05T12:34:56ZZ",
            "+026-11-05T12:34:56Z",
            "2026/11/05T12:34:56Z",
            "2026-11-05T12:34:5éZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_time_survives_the_round_trip(unix_nano in any::<u64>()) {
            prop_assert_eq!(parse(&format(unix_nano)), Some(unix_nano));
            let micros = unix_nano / 1000 * 1000;
            prop_assert_eq!(parse(&format(micros)), Some(micros));
            prop_assert_eq!(format(micros).len(), 27);
        }
    }
}
