//! The pieces of a line: strings, numbers, ids and times, appended to a byte buffer.
//!
//! Everything here is on the path of every span, so each function looks first for the case that is nearly always
//! true (nothing to escape, the second seen last) and leaves the rest to a cold twin.

use std::cell::RefCell;

const HEX: &[u8; 16] = b"0123456789abcdef";
/// The digits of each byte.
const HEX_BYTES: [[u8; 2]; 256] = {
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [HEX[byte >> 4], HEX[byte & 0xf]];
        byte += 1;
    }
    table
};
/// The digits of each number below 100.
const DECIMAL_PAIRS: [[u8; 2]; 100] = {
    let mut table = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        table[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    table
};

/// Digits of the largest number.
const MOST_DIGITS: usize = u64::MAX.ilog10() as usize + 1;

/// Appends `text` as a JSON string, quotes included.
///
/// UTF-8 is written as it is, where Python would write `\uXXXX`: both read back as the same string. Three characters
/// are escaped although JSON does not ask for it, U+0085, U+2028 and U+2029, because many readers split lines there.
pub fn write_string(buffer: &mut Vec<u8>, text: &str) {
    buffer.push(b'"');
    write_text(buffer, text);
    buffer.push(b'"');
}

/// Appends what is between the quotes of a JSON string; see [`write_string`].
#[inline]
pub(crate) fn write_text(buffer: &mut Vec<u8>, text: &str) {
    if is_plain(text.as_bytes()) {
        buffer.extend_from_slice(text.as_bytes());
    } else {
        write_escaped(buffer, text);
    }
}

/// [`write_text`] of what should be UTF-8. What is not is replaced.
#[inline]
pub(crate) fn write_bytes(buffer: &mut Vec<u8>, text: &[u8]) {
    if is_plain(text) {
        buffer.extend_from_slice(text);
    } else {
        write_escaped(buffer, &String::from_utf8_lossy(text));
    }
}

/// Appends what should be UTF-8 as a JSON string, quotes included. What is not UTF-8 is replaced.
#[inline]
pub fn write_byte_string(buffer: &mut Vec<u8>, text: &[u8]) {
    buffer.reserve(text.len() + 2);
    buffer.push(b'"');
    write_bytes(buffer, text);
    buffer.push(b'"');
}

/// Returns whether every byte is ASCII and none of them needs an escape. Looks at eight bytes at a time.
fn is_plain(bytes: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The high bit of a byte of `suspects` is set when that byte of `word` is not plain. A borrow may set further
    // bits, but only above a byte that is itself not plain, so the answer for the whole word is exact.
    // The other bits of it say nothing.
    let suspects = |word: u64| {
        let control = word.wrapping_sub(ONES * 0x20);
        let quote = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
        let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
        word | ((control | quote | backslash) & !word)
    };
    // The last eight bytes overlap those before them.
    let Some(last) = bytes.last_chunk::<8>() else {
        return bytes.iter().all(|&byte| (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\');
    };
    let mut all = suspects(u64::from_le_bytes(*last));
    for chunk in bytes.as_chunks::<8>().0 {
        all |= suspects(u64::from_le_bytes(*chunk));
    }
    all & HIGHS == 0
}

#[cold]
fn write_escaped(buffer: &mut Vec<u8>, text: &str) {
    for character in text.chars() {
        match character {
            '"' => buffer.extend_from_slice(b"\\\""),
            '\\' => buffer.extend_from_slice(b"\\\\"),
            '\n' => buffer.extend_from_slice(b"\\n"),
            '\r' => buffer.extend_from_slice(b"\\r"),
            '\t' => buffer.extend_from_slice(b"\\t"),
            '\u{8}' => buffer.extend_from_slice(b"\\b"),
            '\u{c}' => buffer.extend_from_slice(b"\\f"),
            '\0'..='\u{1f}' | '\u{85}' | '\u{2028}' | '\u{2029}' => {
                let code = character as u16;
                buffer.extend_from_slice(b"\\u");
                for shift in [12, 8, 4, 0] {
                    buffer.push(HEX[usize::from((code >> shift) & 0xf)]);
                }
            }
            _ => {
                let mut utf8 = [0; 4];
                buffer.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
            }
        }
    }
}

/// Appends `true` or `false`.
pub fn write_bool(buffer: &mut Vec<u8>, value: bool) {
    buffer.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Appends a number.
pub fn write_i64(buffer: &mut Vec<u8>, value: i64) {
    if value < 0 {
        buffer.push(b'-');
    }
    let mut number = value.unsigned_abs();
    let count = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let start = buffer.len();
    buffer.extend_from_slice(&[0; MOST_DIGITS]);
    buffer.truncate(start + count);
    // Put where they stay: a text of digits that were just put into it would be copied only when all that was written before has left the
    // processor.
    let mut pairs = buffer[start..].rchunks_exact_mut(2);
    for pair in &mut pairs {
        pair.copy_from_slice(&DECIMAL_PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if let [first] = pairs.into_remainder() {
        *first = b'0' + number as u8;
    }
}

/// Appends a number, or a string where JSON has no number: `"NaN"`, `"Infinity"` and `"-Infinity"`, the names that the
/// JSON form of protobuf uses. Python writes them without quotes, which no other reader accepts.
pub fn write_f64(buffer: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        buffer.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    } else if value.is_nan() {
        buffer.extend_from_slice(b"\"NaN\"");
    } else if value > 0.0 {
        buffer.extend_from_slice(b"\"Infinity\"");
    } else {
        buffer.extend_from_slice(b"\"-Infinity\"");
    }
}

/// Appends an id as `"0x…"`, in lower-case hexadecimal digits.
pub(crate) fn write_id(buffer: &mut Vec<u8>, id: &[u8; 8]) {
    buffer.extend_from_slice(b"\"0x");
    write_hex(buffer, id);
    buffer.push(b'"');
}

/// Appends bytes as lower-case hexadecimal digits, without quotes.
#[inline]
pub fn write_hex<const N: usize>(buffer: &mut Vec<u8>, id: &[u8; N]) {
    let start = buffer.len();
    buffer.extend_from_slice([[0; 2]; N].as_flattened());
    // Put where they stay, as the digits of a time are.
    if let Some(places) = buffer[start..].as_chunks_mut().0.first_chunk_mut::<N>() {
        for index in 0..N {
            places[index] = HEX_BYTES[usize::from(id[index])];
        }
    }
}

/// A time in quotes.
type TimeText = [u8; "\"2026-11-20T19:34:35.000000Z\"".len()];
/// Offset of its microseconds.
const MICROS: usize = "\"2026-11-20T19:34:35.".len();

thread_local! {
    /// The second rendered last, because the two times of a span are mostly in one second.
    static LAST_SECOND: RefCell<(u64, TimeText)> = const { RefCell::new((0, *b"\"1970-01-01T00:00:00.000000Z\"")) };
}

/// Appends a time as `"YYYY-MM-DDTHH:MM:SS.ffffffZ"`: UTC, cut to the microsecond.
///
/// Cut, where Python rounds: so a time is never later than the one it stands for.
pub(crate) fn write_time(buffer: &mut Vec<u8>, unix_nano: u64) {
    let second = unix_nano / 1_000_000_000;
    let mut micros = (unix_nano % 1_000_000_000 / 1_000) as usize;
    let start = buffer.len() + MICROS;
    LAST_SECOND.with_borrow_mut(|(cached, text)| {
        if *cached != second {
            (*cached, *text) = (second, render_second(second));
        }
        buffer.extend_from_slice(text);
    });
    // Put where they stay, as those of a number are.
    for pair in buffer[start..start + 6].as_chunks_mut().0.iter_mut().rev() {
        *pair = DECIMAL_PAIRS[micros % 100];
        micros /= 100;
    }
}

/// Fills `place` with the last digits of `number`, padded with zeros.
fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cold]
fn render_second(second: u64) -> TimeText {
    let (days, of_day) = (second / 86_400, (second % 86_400) as u32);
    let (year, month, day) = civil_from_days(days);
    let mut text = *b"\"0000-00-00T00:00:00.000000Z\"";
    write_digits(&mut text[1..5], year);
    write_digits(&mut text[6..8], month);
    write_digits(&mut text[9..11], day);
    write_digits(&mut text[12..14], of_day / 3_600);
    write_digits(&mut text[15..17], of_day / 60 % 60);
    write_digits(&mut text[18..20], of_day % 60);
    text
}

/// Returns the proleptic Gregorian date of a day counted from 1970-01-01. A `u64` of nanoseconds ends in the year 2554, so four
/// digits suffice for the year.
///
/// The method counts years from March, so that the leap day is the last of a year, and eras of 400 years; it is
/// described by Howard Hinnant in "chrono-Compatible Low-Level Date Algorithms".
fn civil_from_days(days: u64) -> (u32, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year as u32, month as u32, day as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut buffer = Vec::new();
        write(&mut buffer);
        String::from_utf8(buffer).expect("the writers append UTF-8")
    }

    #[test]
    fn strings_are_escaped_as_the_table_says() {
        let table = [
            ("", r#""""#),
            ("plain", r#""plain""#),
            ("exactly8", r#""exactly8""#),
            ("a\"b", r#""a\"b""#),
            ("a\\b", r#""a\\b""#),
            ("line\nfeed", r#""line\nfeed""#),
            ("\r\t\u{8}\u{c}", r#""\r\t\b\f""#),
            ("\0\u{1}\u{1f}", r#""\u0000\u0001\u001f""#),
            ("\u{7f}", "\"\u{7f}\""),
            ("/", r#""/""#),
            ("é 日本 🦀", "\"é 日本 🦀\""),
            ("next\u{85}line\u{2028}and\u{2029}", r#""next\u0085line\u2028and\u2029""#),
            ("seven77\"", r#""seven77\"""#),
            ("eight888\\", r#""eight888\\""#),
            ("\u{80}", "\"\u{80}\""),
        ];
        for (text, expected) in table {
            assert_eq!(rendered(|buffer| write_string(buffer, text)), expected, "for {text:?}");
        }
    }

    #[test]
    fn every_byte_at_every_place_is_judged_plain_or_not() {
        for place in 0..17 {
            for byte in 0..=255_u8 {
                let mut bytes = [b'a'; 17];
                bytes[place] = byte;
                let expected = (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\';
                assert_eq!(is_plain(&bytes), expected, "byte {byte:#04x} at {place}");
            }
        }
    }

    #[test]
    fn whole_numbers_are_what_the_standard_library_writes() {
        let near = |number: i64| [number.saturating_sub(1), number, number.saturating_add(1)];
        let powers = (0..=18).map(|power| 10_i64.pow(power)).flat_map(|power| [power, -power, power / 3]);
        for number in powers.chain([0, i64::MIN, i64::MAX]).flat_map(near).chain(-1_000..1_000) {
            assert_eq!(rendered(|buffer| write_i64(buffer, number)), number.to_string());
        }
    }

    #[test]
    fn floats_that_json_has_no_number_for_become_strings() {
        let table = [
            (f64::NAN, r#""NaN""#),
            (f64::INFINITY, r#""Infinity""#),
            (f64::NEG_INFINITY, r#""-Infinity""#),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
        ];
        for (value, expected) in table {
            assert_eq!(rendered(|buffer| write_f64(buffer, value)), expected);
        }
    }

    #[test]
    fn times_are_cut_to_the_microsecond() {
        let table = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (999, "1970-01-01T00:00:00.000000Z"),
            (1_000, "1970-01-01T00:00:00.000001Z"),
            (951_782_399_999_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_709_164_800_000_000_000, "2024-02-29T00:00:00.000000Z"),
            (1_767_225_599_123_456_789, "2025-12-31T23:59:59.123456Z"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000000Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551Z"),
        ];
        for (unix_nano, expected) in table {
            assert_eq!(rendered(|buffer| write_time(buffer, unix_nano)), format!("\"{expected}\""));
        }
    }

    #[test]
    fn consecutive_days_have_consecutive_dates() {
        let mut previous = civil_from_days(0);
        assert_eq!(previous, (1970, 1, 1));
        for days in 1..213_504 {
            let (year, month, day) = civil_from_days(days);
            let (last_year, last_month, last_day) = previous;
            let next_day = (year, month, day) == (last_year, last_month, last_day + 1);
            let next_month = (year, month, day) == (last_year, last_month + 1, 1) && last_day >= 28;
            let next_year = (year, month, day) == (last_year + 1, 1, 1) && (last_month, last_day) == (12, 31);
            assert!(next_day || next_month || next_year, "{previous:?} is followed by {:?}", (year, month, day));
            previous = (year, month, day);
        }
    }
}
