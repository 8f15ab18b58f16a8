//! Whatever a dead process has left where its log records are becomes one line of OTLP JSON that the receiver of OTLP takes, or none.

use tracer::http_api::received_line;
use tracer::spool::logs::render_any;

/// The bytes are those behind the header of the buffer.
pub(super) fn holds(bytes: &[u8]) {
    let (line, request) = render_any(bytes);
    assert!(received_line("/v1/logs", false, &request).is_ok(), "exporters get OTLP");
    if line.is_empty() {
        return;
    }
    assert_eq!(line.iter().position(|&byte| byte == b'\n'), Some(line.len() - 1), "it is one line");
    assert!(received_line("/v1/logs", true, &line).is_ok(), "{}", String::from_utf8_lossy(&line));
}
