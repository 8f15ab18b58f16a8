//! The hook that writes OTLP JSON lines as a module: `libotlp_file.so`, for `otlp_file:setup_tracing`.

tracer_sdk::export!(hooks = [otlp_file_hook::setup_tracing]);
