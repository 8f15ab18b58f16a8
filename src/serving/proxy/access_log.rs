//! The access log, `logs/serve/access.log` of the session: a line for each request, written in batches.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use crate::clock;
use crate::http_api::log::Log;

/// Number of bytes collected before a write, unless time passes.
const BATCH: usize = 32 << 10;

/// A request that is over.
pub(super) struct Line<'a> {
    pub(super) unix_nano: u64,
    pub(super) client: &'a str,
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    /// 0 if there was no answer.
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) duration_ns: u64,
    pub(super) request_id: &'a str,
    /// Empty if it was not traced.
    pub(super) trace_id: &'a str,
    /// Empty if none has had it.
    pub(super) replica: &'a str,
}

/// The log, as one thread writes it. Each thread appends whole lines.
pub(super) struct AccessLog {
    file: Option<File>,
    log: Log,
    /// The end of each line: other services of the head write there too.
    end: String,
    lines: String,
    /// The second of the last line, and how it is written: lines of one have it in common.
    second: u64,
    second_text: String,
}

impl AccessLog {
    /// Opens it for a service. Both parts of it take `limit` bytes.
    pub(super) fn open(session_dir: &Path, service: &str, limit: u64) -> AccessLog {
        let path = session_dir.join("logs/serve/access.log");
        let _ = path.parent().map(std::fs::create_dir_all);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        if let Err(error) = &file {
            eprintln!("tracer: there is no access log `{}`: {error}", path.display());
        }
        AccessLog {
            file: file.ok(),
            log: Log::new(path, limit),
            end: format!(" service={service}\n"),
            lines: String::new(),
            second: u64::MAX,
            second_text: String::new(),
        }
    }

    /// Adds a line.
    pub(super) fn add(&mut self, line: &Line<'_>) {
        if self.file.is_none() {
            return;
        }
        let second = line.unix_nano / 1_000_000_000;
        if second != self.second {
            self.second = second;
            // Without its fraction and the `Z`.
            self.second_text = clock::utc(second * 1_000_000_000).to_string();
            self.second_text.truncate("1970-01-01T00:00:00".len());
        }
        let (millis, micros) = (line.unix_nano / 1_000_000 % 1000, line.duration_ns / 1000);
        let lines = &mut self.lines;
        lines.push_str(&self.second_text);
        lines.push('.');
        put_number(lines, millis, 3);
        let said = |text: &'static str, value| [text, if str::is_empty(value) { "-" } else { value }];
        ["Z ", line.client, " \"", line.method, " "].iter().for_each(|part| lines.push_str(part));
        put_target(lines, line.target);
        lines.push_str("\" ");
        put_number(lines, line.status.into(), 1);
        lines.push(' ');
        put_number(lines, line.bytes, 1);
        lines.push(' ');
        put_number(lines, micros / 1000, 1);
        lines.push('.');
        put_number(lines, micros % 1000, 3);
        let rest =
            [said("ms request=", line.request_id), said(" trace=", line.trace_id), said(" replica=", line.replica)];
        rest.iter().flatten().for_each(|part| lines.push_str(part));
        lines.push_str(&self.end);
        if self.lines.len() >= BATCH {
            self.write();
        }
    }

    /// Writes what was collected.
    pub(super) fn write(&mut self) {
        if let (Some(file), false) = (&mut self.file, self.lines.is_empty()) {
            // A disk that is full takes the log, not the service.
            let _ = file.write_all(self.lines.as_bytes());
            self.lines.clear();
            self.log.look();
        }
    }
}

/// Appends what a client has asked for. What would end the quotes or the line, or is no ASCII, is written as in a URL.
fn put_target(out: &mut String, target: &str) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
    if target.bytes().all(is_plain) {
        return out.push_str(target);
    }
    for byte in target.bytes() {
        if is_plain(byte) {
            out.push(byte.into());
        } else {
            let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or_default().to_ascii_uppercase();
            out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

/// Appends a number with at least so many digits. Formatting it would take longer than all else of a line.
fn put_number(out: &mut String, mut number: u64, digits: usize) {
    let mut text = [b'0'; 20];
    let mut at = text.len();
    while number > 0 || at > text.len() - digits {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.push_str(std::str::from_utf8(&text[at..]).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_they_need() {
        for (number, digits, expected) in
            [(0, 1, "0"), (7, 3, "007"), (1234, 3, "1234"), (u64::MAX, 1, "18446744073709551615")]
        {
            let mut out = String::new();
            put_number(&mut out, number, digits);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn what_would_end_a_line_or_its_quotes_is_written_as_in_a_url() {
        let of = |target: &str| {
            let mut out = String::new();
            put_target(&mut out, target);
            out
        };
        assert_eq!([of("/a?b=%22\\"), of("/\" 200 5\n")], ["/a?b=%22\\", "/%22%20200%205%0A"]);
        assert_eq!(of("/\u{85}\u{2028}\u{202e}"), "/%C2%85%E2%80%A8%E2%80%AE");
    }

    #[test]
    fn a_line_says_who_asked_for_what_and_how_it_ended_and_both_parts_stay_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AccessLog::open(folder.path(), "shop", 10_000);
        let line = Line {
            unix_nano: 0,
            client: "127.0.0.1:9",
            method: "GET",
            target: "/a?b",
            status: 200,
            bytes: 5,
            duration_ns: 1_234_567,
            request_id: "r1",
            trace_id: "",
            replica: "hello#1",
        };
        log.add(&line);
        log.write();
        let path = folder.path().join("logs/serve/access.log");
        let expected = "1970-01-01T00:00:00.000Z 127.0.0.1:9 \"GET /a?b\" 200 5 1.234ms request=r1 trace=- replica=hello#1 service=shop\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        for _ in 0..2000 {
            log.add(&line);
        }
        log.write();
        log.log.bound();
        assert!(std::fs::metadata(&path).unwrap().len() <= 10_000);
    }
}
