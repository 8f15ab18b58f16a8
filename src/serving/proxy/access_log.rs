//! The access log, `logs/serve/access.log` of the session: a line for each request, written in batches.
//!
//! When it has half of its bound it is put aside as `access.log.1`, in the place of the one before. Several threads and processes append to it, and whoever finds it
//! long enough renames it; the others see before their next write that another file has its name, and go on in that. So no line is lost. A lock on the file makes
//! sure that it is renamed once. Threads that write it serve requests: nothing here takes longer the more there is in it, so what was put aside before is
//! [freed in the background](tracer_span_file::retire).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tracer_core::clock;

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
    path: PathBuf,
    /// None if it could not be opened.
    file: Option<File>,
    /// Length at which it is put aside.
    part_limit: u64,
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
        let _ = path.parent().map(fs::create_dir_all);
        let file = open(&path);
        if let Err(error) = &file {
            eprintln!("tracer: there is no access log `{}`: {error}", path.display());
        }
        AccessLog {
            path,
            file: file.ok(),
            part_limit: limit / 2,
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
        if self.lines.is_empty() {
            return;
        }
        // A log that cannot be put aside goes on.
        let _ = self.follow();
        if let Some(file) = &mut self.file {
            // A disk that is full takes the log, not the service.
            let _ = file.write_all(self.lines.as_bytes());
        }
        self.lines.clear();
    }

    /// Goes on in the file that has the name of the log now, and puts it aside when it is long enough. One that was removed is made again.
    fn follow(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let own = file.metadata()?;
        let is_own = |found: &fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        if fs::metadata(&self.path).is_ok_and(|found| is_own(&found)) {
            if own.len() <= self.part_limit || flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(());
            }
            // Somebody may have renamed it just before the lock was free.
            if fs::metadata(&self.path).is_ok_and(|found| is_own(&found)) {
                self.put_aside()?;
            }
        }
        self.file = Some(open(&self.path)?);
        Ok(())
    }

    fn put_aside(&self) -> io::Result<()> {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        // A file that is open is not freed before it is closed.
        let oldest = File::open(&older).ok();
        if oldest.is_some() {
            fs::remove_file(&older)?;
        }
        fs::rename(&self.path, &older)?;
        tracer_span_file::retire(oldest);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
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
        let older = folder.path().join("logs/serve/access.log.1");
        let mut longest = 0;
        for number in 0..4000 {
            log.add(&line);
            if number % 3 == 0 {
                log.write();
            }
            let length = |path| fs::metadata(path).map_or(0, |found| found.len());
            longest = longest.max(length(&path) + length(&older));
        }
        assert!((8_000..=12_000).contains(&longest), "{longest} bytes");
    }

    /// Threads of several proxies have one log.
    #[test]
    fn whoever_puts_it_aside_takes_no_line_of_another() {
        const LINES: usize = 100;
        for _ in 0..50 {
            let folder = tempfile::tempdir().unwrap();
            std::thread::scope(|scope| {
                for name in ["a", "b", "c"] {
                    let folder = folder.path();
                    scope.spawn(move || {
                        // It is put aside once.
                        let mut log = AccessLog::open(folder, name, 2 * 1_500);
                        for number in 0..LINES {
                            log.lines.push_str(&format!("{name}{number:07}\n"));
                            log.write();
                        }
                    });
                }
            });
            let read = |name| fs::read_to_string(folder.path().join("logs/serve").join(name)).unwrap();
            let (older, newer) = (read("access.log.1"), read("access.log"));
            assert!(older.len() > 1_500 && !newer.is_empty());
            let mut found: Vec<&str> = older.lines().chain(newer.lines()).collect();
            found.sort_unstable();
            let expected =
                ["a", "b", "c"].iter().flat_map(|name| (0..LINES).map(move |number| format!("{name}{number:07}")));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_log_that_was_removed_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AccessLog::open(folder.path(), "shop", 10_000);
        let path = folder.path().join("logs/serve/access.log");
        fs::remove_file(&path).unwrap();
        log.lines.push_str("a line\n");
        log.write();
        assert_eq!(fs::read_to_string(path).unwrap(), "a line\n");
    }
}
