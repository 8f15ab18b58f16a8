//! Properties of the fuzz targets under `tests/fuzz`, over their seeds and over random changes of these. `cargo fuzz` looks longer.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[path = "../fuzz/properties/arguments.rs"]
mod arguments;
#[path = "../fuzz/properties/extents.rs"]
mod extents;
#[path = "../fuzz/properties/lane.rs"]
mod lane;
#[path = "../fuzz/properties/log_records.rs"]
mod log_records;
#[path = "../fuzz/properties/marks.rs"]
mod marks;
#[path = "../fuzz/properties/otlp.rs"]
mod otlp;
#[path = "../fuzz/properties/protocol.rs"]
mod protocol;
#[path = "../fuzz/properties/queries.rs"]
mod queries;
#[path = "../fuzz/properties/series_files.rs"]
mod series_files;
#[path = "../fuzz/properties/span_files.rs"]
mod span_files;
#[path = "../fuzz/properties/trace_context.rs"]
mod trace_context;

/// Runs a target over its seeds, each of them cut and changed at random places, and two of them joined.
fn replay(target: &str, holds: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(folder).expect("every target has seeds");
    let seeds: Vec<Vec<u8>> =
        entries.map(|entry| fs::read(entry.expect("it can be listed").path()).expect("it can be read")).collect();
    assert!(seeds.len() >= 4, "`{target}` has {} seeds", seeds.len());
    seeds.iter().for_each(|seed| holds(seed));
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let input = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), changes);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(300));
    let result = runner.run(&input, |(first, second, cut, changes)| {
        let (first, second): (&Vec<u8>, &Vec<u8>) = (first.get(&seeds), second.get(&seeds));
        let mut bytes = first.clone();
        bytes.truncate(cut.index(bytes.len() + 1));
        bytes.extend_from_slice(second);
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        holds(&bytes);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{target}: {error}"));
}

#[test]
fn any_trace_context_is_carried_on_valid() {
    replay("trace_context", trace_context::holds);
}

#[test]
fn hostile_frames_and_messages_are_refused() {
    replay("protocol", protocol::holds);
}

#[test]
fn hostile_frames_of_a_lane_are_refused_and_what_is_taken_is_sent_on_as_it_came() {
    replay("lane", lane::holds);
}

#[test]
fn any_span_file_is_read_and_what_is_exported_is_read_again() {
    replay("span_files", span_files::holds);
}

#[test]
fn hostile_files_of_series_are_read_or_are_none() {
    replay("series_files", series_files::holds);
}

#[test]
fn what_is_left_of_log_records_is_one_line_or_none() {
    replay("log_records", log_records::holds);
}

#[test]
fn hostile_otlp_is_refused_or_a_line_that_is_read_again() {
    replay("otlp", otlp::holds);
}

#[test]
fn hostile_arguments_are_refused() {
    replay("arguments", arguments::holds);
}

#[test]
fn no_task_can_forge_a_mark_and_every_byte_keeps_its_owner() {
    replay("marks", marks::holds);
}

#[test]
fn any_index_of_a_log_is_read_to_its_end() {
    replay("extents", extents::holds);
}

#[test]
fn any_question_is_answered_or_marked() {
    replay("queries", queries::holds);
}
