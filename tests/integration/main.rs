//! Tests of the built `tracer`, as its users run it. One module for each feature that a user would name.

#[path = "../support/mod.rs"]
mod support;

mod actors;
mod attempts;
mod backends;
mod cancelling;
mod collectors;
mod commands;
mod config;
mod dead_heads;
mod deaths;
mod delivery;
mod explain;
mod fairness;
mod full_disk;
mod fuzzing;
mod hooks;
mod http_api;
mod http_client;
mod hygiene;
mod journal;
mod large_values;
mod leftovers;
mod library;
mod library_programs;
mod load;
mod map;
mod modules;
mod nesting;
mod otel_env;
mod output;
mod reports;
mod resources;
mod rings;
mod runtime_spans;
mod sampling;
mod security;
mod seen_means_recorded;
mod several_hooks;
mod soak;
mod spans;
mod start_stop;
mod submit;
mod trace_reading;
mod whole_backend;
