//! Tests of the built `tracer`, as its users run it. One module for each feature that a user would name.

#[path = "../support/mod.rs"]
mod support;

mod config;
mod reports;
mod seen_means_recorded;
mod spans;
mod hooks;
mod modules;
mod start_stop;
mod submit;
