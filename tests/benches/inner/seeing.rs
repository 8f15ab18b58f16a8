//! Reading span files for who looks at them: the first index of a folder, beside `jq -c .` over the same files, and questions to it.

use std::fs;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use tracer::trace::{Among, Differences, INDEX_BYTES, Index, Query, Region, Sample};
use tracer_span_file::{ResourceJson, Status, Value, write_line};

use super::{EPOCH, folder, span_of_file};

const SPANS: u64 = 100_000;
/// Spans of each trace, and the files of processes that they are spread over.
const SHAPES: [(&str, u64, u64); 2] = [("10 spans a trace", 10, 3), ("100,000 spans a trace", SPANS, 4)];

/// Writes span files as processes do: those of a trace stand together in each file.
fn write_files(folder: &std::path::Path, spans_of_trace: u64, files: u64) -> u64 {
    let resource = [("service.name", Value::Str("tracer")), ("process.pid", Value::I64(4711))];
    let resource = ResourceJson::new(&resource[..], "");
    let mut buffers = vec![Vec::new(); files as usize];
    for number in 0..SPANS {
        let (trace, within) = (number / spans_of_trace, number % spans_of_trace);
        let region = if trace.is_multiple_of(10) { "eu" } else { "us" };
        let attributes = [
            ("tracer.remote", Value::Str("function")),
            ("tracer.function", Value::Str("demo.my_function")),
            ("tracer.queued_ns", Value::I64((number * 7919 % 1_000_000) as i64)),
            ("region", Value::Str(region)),
        ];
        let mut span = span_of_file(number, &attributes);
        span.trace_id = (u128::from(trace) * 0x9e37_79b9_7f4a_7c15_f39c + 1).to_be_bytes();
        span.parent_span_id = (within > 0).then(|| (number - within + 1).to_be_bytes());
        span.end_time_unix_nano = span.start_time_unix_nano + if region == "eu" { 900_000 } else { 500 };
        span.status = Status::Unset;
        write_line(&mut buffers[(within * files / spans_of_trace) as usize], &span, &resource);
    }
    let sizes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
    for (number, buffer) in buffers.iter().enumerate() {
        fs::write(folder.join(format!("{}.json", number + 1)), buffer).expect("the folder can be written to");
    }
    sizes
}

fn index_of(folder: &std::path::Path) -> Index {
    let mut index = Index::new(folder, INDEX_BYTES);
    index.look(None, EPOCH).expect("the folder can be read");
    index
}

/// Counts the rows of a list of 200 traces. The index has room for all of them.
fn list(index: &Index, among: &Among) -> usize {
    let mut rows = 0;
    let listed = index.list_each(among, 200, |row, _| rows += usize::from(black_box(row).spans > 0));
    assert!(listed.older.is_none(), "the index is bounded");
    rows
}

fn differences(index: &Index, among: &Among) -> Differences {
    let mut sample = Sample::default();
    assert!(index.sample(among, &mut sample).is_none(), "the index is bounded");
    sample.differences(40)
}

/// The first index and `jq`, and what is different in a region.
pub(super) fn seeing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("100,000 spans in files");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(5));
    for (shape, spans_of_trace, files) in SHAPES {
        let folder = folder();
        group.throughput(Throughput::Bytes(write_files(folder.path(), spans_of_trace, files)));
        group.bench_function(BenchmarkId::new("first index", shape), |bencher| {
            bencher.iter(|| black_box(index_of(folder.path())));
        });
        let index = index_of(folder.path());
        let reach = index.reach();
        println!("  {} bytes a span in the index, {shape}", reach.bytes as f64 / SPANS as f64);
        if Command::new("jq").arg("--version").stdout(Stdio::null()).status().is_ok() {
            group.bench_function(BenchmarkId::new("floor: jq -c .", shape), |bencher| {
                bencher.iter(|| {
                    let paths = (1..=files).map(|number| folder.path().join(format!("{number}.json")));
                    let status = Command::new("jq").args(["-c", "."]).args(paths).stdout(Stdio::null()).status();
                    assert!(status.is_ok_and(|status| status.success()));
                });
            });
        }
        let region = Region { min_ns: 100_000, ..Region::default() };
        let among = Among { query: Query::default(), region };
        group.bench_function(BenchmarkId::new("what is different", shape), |bencher| {
            bencher.iter(|| black_box(differences(&index, &among)));
        });
        group.bench_function(BenchmarkId::new("list of 200", shape), |bencher| {
            bencher.iter(|| black_box(list(&index, &Among::default())));
        });
        let question = Query::parse("region=eu", EPOCH).expect("it parses");
        let among = Among { query: question, region: Region::default() };
        group.bench_function(BenchmarkId::new("question for an attribute", shape), |bencher| {
            bencher.iter(|| black_box(list(&index, &among)));
        });
        group.bench_function(BenchmarkId::new("a trace", shape), |bencher| {
            bencher.iter(|| black_box(index.find("last").expect("there is one")));
        });
    }
    group.finish();
}
