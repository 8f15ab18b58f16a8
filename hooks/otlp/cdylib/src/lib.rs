//! The hook that sends spans over OTLP/HTTP as a module: `libotlp.so`, for `otlp:setup_tracing`.

tracer_sdk::export!(hooks = [otlp_hook::setup_tracing]);
