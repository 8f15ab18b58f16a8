//! The hook that writes spans to standard error as a module: `libconsole.so`, for `console:setup_tracing`.

tracer_sdk::export!(hooks = [console_hook::setup_tracing]);
