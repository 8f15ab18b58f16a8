//! Numbers as people read them: counts with their noun, durations and sizes.
//!
//! Everything here is a value with a [`Display`](fmt::Display), so that it can stand inside a message. Reading
//! a duration that a person typed is [`config::parse_duration`](crate::duration::parse_duration).

use std::fmt;
use std::time::Duration;

/// A number and what it counts: `Count(3, "worker")` prints `3 workers`, `Count(1, "worker")` prints `1 worker`.
///
/// The noun is English, singular and regular; of several words the last one takes the plural.
#[derive(Clone, Copy, Debug)]
pub struct Count<'a, N>(pub N, pub &'a str);

impl<N: Copy + fmt::Display + TryInto<u64>> fmt::Display for Count<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count(number, noun) = *self;
        write!(f, "{number} ")?;
        if number.try_into().is_ok_and(|number: u64| number == 1) {
            return f.write_str(noun);
        }
        if let Some(stem) = noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u'])) {
            return write!(f, "{stem}ies");
        }
        let is_sibilant = noun.ends_with(['s', 'x', 'z']) || noun.ends_with("ch") || noun.ends_with("sh");
        write!(f, "{noun}{}", if is_sibilant { "es" } else { "s" })
    }
}

/// A duration for people: `850 ns`, `1.2 ms`, `3 s`, `2 m 05 s`, `1 h 02 m`, `3 d 04 h`.
///
/// Below a minute it has at most one decimal, and none from 100 on. It is rounded to what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Elapsed(pub Duration);

impl Elapsed {
    /// Returns a duration given in nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Elapsed {
        Elapsed(Duration::from_nanos(nanos))
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos < 1000 {
            return f.pad(&format!("{nanos} ns"));
        }
        // A unit is used when the value, rounded as it will be shown, stays below the next one.
        for (unit, nanos_per_unit, limit) in [("µs", 1_000, 1000), ("ms", 1_000_000, 1000), ("s", 1_000_000_000, 60)] {
            let tenths = (nanos * 10 + nanos_per_unit / 2) / nanos_per_unit;
            let whole = (nanos + nanos_per_unit / 2) / nanos_per_unit;
            if tenths < 1000 && tenths < limit * 10 {
                return match tenths % 10 {
                    0 => f.pad(&format!("{} {unit}", tenths / 10)),
                    tenth => f.pad(&format!("{}.{tenth} {unit}", tenths / 10)),
                };
            }
            if tenths >= 1000 && whole < limit {
                return f.pad(&format!("{whole} {unit}"));
            }
        }
        let seconds = (nanos + 500_000_000) / 1_000_000_000;
        if seconds < 3600 {
            return f.pad(&format!("{} m {:02} s", seconds / 60, seconds % 60));
        }
        let minutes = (seconds + 30) / 60;
        if minutes < 24 * 60 {
            return f.pad(&format!("{} h {:02} m", minutes / 60, minutes % 60));
        }
        let hours = (minutes + 30) / 60;
        f.pad(&format!("{} d {:02} h", hours / 24, hours % 24))
    }
}

/// A number of bytes for people: `512 B`, `1.2 MiB`. Powers of 1024, at most one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut bytes_per_unit: u128 = 1024;
        for (index, unit) in units.iter().enumerate() {
            let tenths = (u128::from(self.0) * 10 + bytes_per_unit / 2) / bytes_per_unit;
            if tenths < 10 * 1024 || index == units.len() - 1 {
                return match (tenths / 10, tenths % 10) {
                    (whole, 0) => f.pad(&format!("{whole} {unit}")),
                    (whole, _) if whole >= 100 => f.pad(&format!("{} {unit}", (tenths + 5) / 10)),
                    (whole, tenth) => f.pad(&format!("{whole}.{tenth} {unit}")),
                };
            }
            bytes_per_unit *= 1024;
        }
        unreachable!("the last unit takes whatever is left")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_agree_with_their_noun() {
        for (count, expected) in [
            (Count(0, "worker"), "0 workers"),
            (Count(1, "worker"), "1 worker"),
            (Count(3, "worker"), "3 workers"),
            (Count(2, "process"), "2 processes"),
            (Count(2, "retry"), "2 retries"),
            (Count(2, "key"), "2 keys"),
            (Count(2, "match"), "2 matches"),
            (Count(2, "span file"), "2 span files"),
            (Count(1, "span file"), "1 span file"),
            (Count(-1, "worker"), "-1 workers"),
        ] {
            assert_eq!(count.to_string(), expected);
        }
        assert_eq!(Count(1_usize, "span").to_string(), "1 span");
        assert_eq!(Count(u64::MAX, "span").to_string(), "18446744073709551615 spans");
        assert_eq!(Count(1_u8, "span").to_string(), "1 span");
    }

    #[test]
    fn durations_are_rounded_to_what_is_shown() {
        for (nanos, expected) in [
            (0, "0 ns"),
            (850, "850 ns"),
            (999, "999 ns"),
            (1_000, "1 µs"),
            (1_049, "1 µs"),
            (1_050, "1.1 µs"),
            (99_949, "99.9 µs"),
            (99_950, "100 µs"),
            (999_499, "999 µs"),
            (999_500, "1 ms"),
            (1_234_567, "1.2 ms"),
            (12_400_000, "12.4 ms"),
            (123_456_789, "123 ms"),
            (999_600_000, "1 s"),
            (3_000_000_000, "3 s"),
            (59_949_999_999, "59.9 s"),
            (59_950_000_000, "1 m 00 s"),
            (125_000_000_000, "2 m 05 s"),
            (3_599_400_000_000, "59 m 59 s"),
            (3_599_600_000_000, "1 h 00 m"),
            (3_720_000_000_000, "1 h 02 m"),
            (86_400_000_000_000, "1 d 00 h"),
            (273_600_000_000_000, "3 d 04 h"),
        ] {
            assert_eq!(Elapsed::from_nanos(nanos).to_string(), expected, "{nanos} ns");
        }
        assert_eq!(Elapsed(Duration::MAX).to_string(), "213503982334601 d 07 h");
        assert_eq!(format!("[{:>8}]", Elapsed::from_nanos(1_000)), "[    1 µs]");
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1_258_291, "1.2 MiB"),
            (120_000_000, "114 MiB"),
            (1024 * 1024 - 1, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), expected, "{bytes} bytes");
        }
    }
}
