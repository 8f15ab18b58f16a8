//! The default tracing hook as a loadable module.

tracer_sdk::export!(hooks = [tracer_local_tmp_tracing::setup_tracing]);
