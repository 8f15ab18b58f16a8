//! Whatever is sent as OTLP is refused, or becomes one line of OTLP JSON: that is decoded to itself, and its spans are read from a file.

use std::cell::OnceCell;
use std::fs;

use tracer::http_api::received_line;
use tracer::trace::load;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

/// The first byte says which signal, and in which encoding; the others are the body.
pub(super) fn holds(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let path = ["/v1/traces", "/v1/logs", "/v1/metrics"][usize::from(kind % 3)];
    let Ok(line) = received_line(path, kind / 3 % 2 == 1, body) else { return };
    if line.is_empty() {
        return;
    }
    assert_eq!(line.iter().position(|&byte| byte == b'\n'), Some(line.len() - 1), "it is one line");
    assert_eq!(received_line(path, true, &line).as_ref(), Ok(&line), "it is decoded to itself");
    if path == "/v1/traces" {
        FOLDER.with(|folder| {
            let folder = folder.get_or_init(|| tempfile::tempdir().expect("a folder"));
            fs::write(folder.path().join("1.received.jsonl"), &line).expect("it is ours");
            let loaded = load(folder.path()).expect("it is there");
            assert_eq!(loaded.notices, [], "{}", String::from_utf8_lossy(&line));
            assert!(!loaded.traces.is_empty());
        });
    }
}
