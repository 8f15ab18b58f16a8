//! Tests of the built `tracer`, as its users run it. One module for each feature that a user would name.

#![allow(clippy::duplicate_mod, reason = "tests of tasks are compiled a second time, with a queue between two nodes")]

#[path = "../support/mod.rs"]
mod support;

/// False: the test runs on one head. See [`over_a_queue`].
macro_rules! differs {
    () => {
        false
    };
}

mod actors;
mod allocators;
mod attempts;
mod backends;
mod batching;
mod bundles;
mod callers;
mod cancelling;
mod clocks;
mod collectors;
mod command_map;
mod commands;
mod composition;
mod config;
mod copied_places;
mod dead_heads;
mod deaths;
mod delivery;
mod draining;
mod engine;
mod engine_access;
mod engine_setup;
mod escapes;
mod explain;
mod fairness;
mod full_disk;
mod fuzzing;
mod grpc;
mod hooks;
mod hostile;
mod hostile_queues;
mod http_api;
mod http_client;
mod hygiene;
mod idleness;
mod invariants;
mod journal;
mod json;
mod large_values;
mod leftovers;
mod library;
mod library_programs;
mod live_line;
mod load;
mod log_records;
mod long_logs;
mod manual;
mod map;
mod metrics;
mod mistakes;
mod module_metrics;
mod module_versions;
mod modules;
mod namespaces;
mod nesting;
mod new;
mod otel_env;
mod otlp_in;
mod output;
mod over_a_queue;
mod pages;
mod partitions;
mod place;
mod priorities;
mod programs;
mod proxy;
mod prune;
mod queue_bounds;
mod replica;
mod reports;
mod resources;
mod restarting;
mod rings;
mod runtime_spans;
mod sampling;
mod scaling;
mod security;
mod seen_means_recorded;
mod serve;
mod services;
mod serving_bodies;
mod serving_changes;
mod serving_clients;
mod serving_deaths;
mod serving_hostile;
mod serving_smuggling;
mod serving_soak;
mod serving_tasks;
mod serving_tls;
mod serving_without_head;
mod several_hooks;
mod shared_cancelling;
mod shared_commands;
mod shared_deaths;
mod shared_keys;
mod shared_modules;
mod shared_replicas;
mod shared_spans;
mod shared_storm;
mod shared_values;
mod soak;
mod spans;
mod start_stop;
mod stopping;
mod storms;
mod stuck_engines;
mod submit;
mod task_logs;
mod top;
mod trace_questions;
mod trace_reading;
mod view;
mod waiting;
mod websocket;
mod whole_backend;
