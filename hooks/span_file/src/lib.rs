//! The span file: one JSON object a line, as the OpenTelemetry Python console exporter writes them.
