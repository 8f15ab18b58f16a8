//! Nothing in a span file is fatal, and what was read can be shown, counted and exported, and read again from there.

use std::cell::OnceCell;
use std::fs;

use tracer::trace::{CriticalPath, Loaded, Report, Tree, export, load, render};

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

/// The bytes are those of a file.
pub(super) fn holds(bytes: &[u8]) {
    let loaded = read("1.json", bytes);
    let traces: Vec<_> = loaded.traces.iter().collect();
    let (mut otlp, mut chrome) = (Vec::new(), Vec::new());
    export::otlp(&traces, &mut otlp).expect("a vector takes everything");
    export::chrome(&traces, &mut chrome).expect("a vector takes everything");
    loaded.stats(None);
    for trace in &traces {
        let report: Report<'_> = trace.report();
        let _ = value(&report);
        trace.root();
        let path = CriticalPath::new(trace, &Tree::new(trace));
        let sum: u64 = path.stretches().map(|stretch| stretch.duration_ns()).sum();
        assert_eq!(sum, trace.duration_ns(), "the path is as long as the trace");
        for width in [20, 80, 300] {
            let all = render::Details { attributes: true, events: true, folds: false, ..render::Details::default() };
            for details in [render::Details::default(), all] {
                assert!(!render::show(trace, &details, width, true).is_empty());
            }
        }
        for span in &trace.spans {
            let _ = (span.attributes(), span.events(), span.links(), span.pid(), span.compact_text());
        }
    }
    let ids = |loaded: &Loaded| -> Vec<_> {
        let spans = loaded.traces.iter().flat_map(|trace| &trace.spans);
        let mut ids: Vec<_> =
            spans.map(|span| (span.trace_id(), span.span_id, span.parent_id(), span.name().to_owned())).collect();
        ids.sort();
        ids
    };
    let again = read("1.json", &otlp);
    assert_eq!(again.notices, []);
    assert_eq!(ids(&again), ids(&loaded), "what was exported is read again");
}

fn value(report: &Report<'_>) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec(report)
}

fn read(name: &str, bytes: &[u8]) -> Loaded {
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir().expect("a folder can be made")).path();
        fs::write(folder.join(name), bytes).expect("the folder can be written to");
        load(folder).expect("the folder can be read")
    })
}
