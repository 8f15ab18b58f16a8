//! The default tracing hook as a loadable module.
