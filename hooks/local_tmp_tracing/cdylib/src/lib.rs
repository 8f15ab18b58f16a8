//! The default tracing hook as a module: `liblocal_tmp_tracing.so`, for `local_tmp_tracing:setup_tracing`.

tracer_sdk::export!(hooks = [local_tmp_tracing_hook::setup_tracing]);
