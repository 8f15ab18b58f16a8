#![no_main]

#[path = "../properties/trace_context.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds(bytes));
