//! The one way in which a test does not check what it is for. It needs the standard library alone, so that every package can include it.

#![allow(unreachable_pub, reason = "each package that includes this file has it at a place of its own")]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Says that this thread's test, or the rest of it, is skipped because the machine lacks something; the caller returns. In the gate
/// (`.ci/run`), which names a file with `TRACER_TEST_SKIPS`, it is also written there: cargo shows nothing of a test that
/// passes, so the gate lists the skips at its end, and fails when it finds a lack that `.ci/skips` does not permit.
pub fn skip(lack: &str, detail: impl Display) {
    let detail = detail.to_string();
    let detail = detail.split_whitespace().collect::<Vec<_>>().join(" ");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    eprintln!("skipped: {lack}: {detail}");
    let Some(path) = std::env::var_os("TRACER_TEST_SKIPS") else { return };
    let mut file =
        OpenOptions::new().create(true).append(true).open(&path).expect("the list of skips can be written to");
    // One write, because several test binaries may append at once.
    file.write_all(format!("{test}\t{lack}\t{detail}\n").as_bytes()).expect("the list of skips can be written to");
}
