//! The attributes that tracer-sdk re-exports and documents.
