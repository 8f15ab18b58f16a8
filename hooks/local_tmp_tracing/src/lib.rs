//! The default tracing hook: spans to /tmp/spans/<pid>.json.
