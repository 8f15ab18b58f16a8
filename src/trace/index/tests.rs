use std::io::Write;

use proptest::prelude::*;
use tracer_core::propagation::FLAG_SAMPLED;
use tracer_ipc::spool::{Prefix, SLOT_COUNT, SpanOpening, Spool};

use super::super::fixture::{EPOCH, span};
use super::super::{Filter, HeatMap, List, load};
use super::*;

fn index_of(folder: &Path) -> Index {
    let mut index = Index::new(folder, INDEX_BYTES);
    index.look(None, EPOCH).unwrap();
    index
}

impl Index {
    /// Lists the newest `limit` traces that are asked for; of a bounded index, those of the files too.
    fn list(&self, among: &Among, limit: usize) -> List {
        let mut rows = Vec::new();
        let Listed { mut left_out, mut filtered_out, older } = self.list_each(among, limit, |row, _| rows.push(row));
        if let Some(older) = older {
            older.scan(|index| {
                let listed = index.list_each(among, limit, |row, _| rows.push(row));
                (left_out, filtered_out) = (left_out + listed.left_out, filtered_out + listed.filtered_out);
            });
            rows.sort_by_key(|row| std::cmp::Reverse((row.start_unix_nano, row.trace_id)));
            left_out += rows.len().saturating_sub(limit);
            rows.truncate(limit);
        }
        List { rows, left_out, filtered_out, id_digits: 32 }
    }

    fn heat_map(&self, among: &Among, columns: usize, rows: usize) -> Option<HeatMap> {
        let mut points = Vec::new();
        if let Some(older) = self.points(among, &mut points) {
            older.scan(|index| drop(index.points(among, &mut points)));
        }
        HeatMap::of_points(points, columns, rows)
    }

    fn differences(&self, among: &Among, limit: usize) -> Differences {
        let mut sample = Sample::default();
        if let Some(older) = self.sample(among, &mut sample) {
            older.scan(|index| drop(index.sample(among, &mut sample)));
        }
        sample.differences(limit)
    }
}

fn among(query: &str) -> Among {
    Among { query: Query::parse(query, EPOCH).unwrap(), region: Region::default() }
}

/// Returns the names of the spans of all traces, oldest trace first; those that are open with a `*`.
fn names(index: &Index) -> Vec<String> {
    let list = index.list(&Among::default(), usize::MAX);
    let traces = list.rows.iter().rev().map(|row| index.find(&row.trace_id.to_string()).unwrap());
    traces
        .flat_map(|trace| trace.spans)
        .map(|span| format!("{}{}", span.name(), if span.is_running() { "*" } else { "" }))
        .collect()
}

#[test]
fn each_look_has_what_was_written_and_what_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let (spans, session) = (folder.path().join("spans"), folder.path().join("session"));
    let mut index = Index::new(&spans, INDEX_BYTES);
    assert!(index.look(Some(&session), EPOCH).unwrap().0.is_nothing(), "neither is there");

    fs::create_dir_all(session.join("spool")).unwrap();
    let spool = Spool::create(&session.join("spool/worker-1.spool"), SLOT_COUNT).unwrap();
    let slot = spool
        .open(&SpanOpening {
            trace_id: 1u128.to_be_bytes(),
            span_id: 9u64.to_be_bytes(),
            parent_span_id: [0; 8],
            is_parent_remote: false,
            trace_flags: FLAG_SAMPLED,
            trace_state: b"",
            start_time_unix_nano: EPOCH,
            kind: tracer_abi::SPAN_KIND_INTERNAL,
            name: b"open",
            scope: b"test",
            scope_version: b"",
            prefix: Prefix::NONE,
            task_id: 0,
            is_attempt: false,
        })
        .unwrap();
    fs::create_dir(&spans).unwrap();
    let mut file = File::create(spans.join("1.json")).unwrap();
    file.write_all(span("first", 1, None, (0, 5)).trace(2).line().as_bytes()).unwrap();
    let Changed::Traces(mut changed) = index.look(Some(&session), EPOCH + 10).unwrap().0 else { panic!("not all") };
    changed.sort();
    assert_eq!(changed, [TraceId(1), TraceId(2)]);
    assert_eq!((names(&index), index.open().len()), (vec!["open*".into(), "first".into()], 1));
    assert!(index.look(Some(&session), EPOCH + 20).unwrap().0.is_nothing(), "only the time has changed");
    assert_eq!(index.list(&among("running"), 9).rows.len(), 1);

    spool.end(slot, EPOCH + 30);
    file.write_all(span("second", 2, None, (6, 7)).trace(2).line().as_bytes()).unwrap();
    assert!(!index.look(Some(&session), EPOCH + 40).unwrap().0.is_nothing());
    assert_eq!((names(&index), index.open().len()), (vec!["open".into(), "first".into(), "second".into()], 0));
    let changed = index.look(None, EPOCH + 50).unwrap().0;
    assert_eq!(changed, Changed::Traces(vec![TraceId(1)]), "the session is gone, and with it what was not written");
    assert_eq!(names(&index), ["first", "second"]);
    fs::remove_dir_all(&spans).unwrap();
    assert_eq!(index.look(None, EPOCH + 60).unwrap().0, Changed::All);
    assert_eq!((names(&index), index.reach().traces), (Vec::<String>::new(), 0));
}

#[test]
fn a_record_that_is_written_in_two_halves_and_a_file_that_is_begun_anew_are_read_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.json");
    let (first, second) = (span("first", 1, None, (0, 5)).line(), span("second", 2, 1, (1, 2)).line());
    fs::write(&path, format!("{first}{}", &second[..40])).unwrap();
    let mut index = index_of(folder.path());
    assert_eq!(names(&index), ["first"]);
    fs::write(&path, format!("{first}{second}")).unwrap();
    let (changed, notices) = index.look(None, EPOCH).unwrap();
    assert_eq!((changed, notices), (Changed::Traces(vec![TraceId(super::super::fixture::TRACE_ID)]), Vec::new()));
    assert_eq!(names(&index), ["first", "second"]);
    fs::write(&path, &second).unwrap();
    index.look(None, EPOCH).unwrap();
    assert_eq!(names(&index), ["second"]);
    fs::write(folder.path().join("notes.json"), "these are no spans\n{}\n").unwrap();
    let (changed, notices) = index.look(None, EPOCH).unwrap();
    assert!(changed.is_nothing());
    assert_eq!(notices.len(), 1);
}

#[test]
fn the_bound_is_kept_and_what_has_left_is_found_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = File::create(folder.path().join("1.json")).unwrap();
    let mut index = Index::new(folder.path(), 100_000);
    for part in 0..20_u64 {
        let lines: String = (0..200)
            .map(|id| {
                let id = part * 200 + id + 1;
                span("task", id, None, (id * 10, id * 10 + 5)).trace(u128::from(id)).line()
            })
            .collect();
        file.write_all(lines.as_bytes()).unwrap();
        index.look(None, EPOCH).unwrap();
        assert!(index.reach().bytes <= 100_000, "{:?}", index.reach());
    }
    assert!(index.reach().is_cut);
    let list = index.list(&Among::default(), usize::MAX);
    assert_eq!(list.rows[0].trace_id, TraceId(4000));
    assert!(list.rows.len() >= 500, "{}", list.rows.len());
    for id in [1, 2000, 4000] {
        assert_eq!(index.find(&TraceId(id).to_string()).unwrap().spans[0].span_id, SpanId(id as u64));
    }
    assert!(index.find(&TraceId(4001).to_string()).is_err());
}

#[test]
fn what_has_left_is_read_for_a_question_and_not_for_a_list_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = Index::new(folder.path(), 100_000);
    for (file, start) in [(1, 2000_u64), (2, 0)] {
        // The newer ones are in the file that is read first.
        let lines: String = (start + 1..=start + 2000)
            .map(|id| {
                let name = if id % 1000 == 7 { "rare" } else { "common" };
                span(name, id, None, (id * 10, id * 10 + 5)).trace(u128::from(id)).line()
            })
            .collect();
        fs::write(folder.path().join(format!("{file}.json")), lines).unwrap();
    }
    index.look(None, EPOCH).unwrap();
    assert!(index.reach().is_cut && index.reach().bytes <= 100_000, "{:?}", index.reach());
    let ids = |text: &str, limit| {
        let list = index.list(&among(text), limit);
        let ids: Vec<_> = list.rows.iter().map(|row| row.trace_id.0).collect();
        (ids, list.left_out, list.filtered_out)
    };
    assert_eq!(ids("name:rare", 10), (vec![3007, 2007, 1007, 7], 0, 3996));
    assert_eq!(ids("name:rare", 3), (vec![3007, 2007, 1007], 1, 3996));
    assert_eq!(ids("trace:00000000000000000000000000000002", 10).0, [2]);
    let all = index.list_each(&Among::default(), 5000, |_, _| {});
    assert!(all.older.is_none(), "of all, the newest are wanted");
    let loaded = load(folder.path()).unwrap();
    let common = among("name:common");
    let matching = || loaded.traces.iter().filter(|trace| common.query.matches(trace));
    assert_eq!(index.heat_map(&common, 7, 5), HeatMap::new(matching(), 7, 5));
    let newest = loaded.traces.iter().map(Trace::start_unix_nano).max().unwrap();
    let recent = Region { since_unix_nano: newest - 10_000, ..Region::default() };
    assert!(
        index.points(&Among { region: recent, ..among("-error") }, &mut Vec::new()).is_none(),
        "all of it is known"
    );
    let early = Region { until_unix_nano: newest - 30_000_000, ..Region::default() };
    let found = index.differences(&Among { region: early, ..Among::default() }, 5);
    assert!(found.selected > 900 && found.selected < 1100, "{found:?}");
}

#[test]
fn a_span_of_a_long_trace_takes_sixteen_bytes_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for trace in 1..=1000_u64 {
        for id in 0..20 {
            let (start, parent) = (trace * 100 + id, (id > 0).then_some(trace * 100));
            lines.push_str(&span("step", start, parent, (start, start + 5)).trace(u128::from(trace)).line());
        }
    }
    fs::write(folder.path().join("1.json"), lines).unwrap();
    let reach = index_of(folder.path()).reach();
    assert!(reach.bytes <= 16 * 20_000, "{reach:?}");
}

/// Returns the texts of the spans of a trace, by their starts.
fn texts_of(trace: &Trace) -> Vec<String> {
    trace.spans.iter().map(|span| span.text().into_owned()).collect()
}

/// Returns those of each trace, in the order in which they are handed over.
fn texts_of_each(index: Index) -> Vec<Vec<String>> {
    let mut texts = Vec::new();
    index.each_trace(|trace| texts.push(texts_of(trace)));
    texts
}

#[test]
fn traces_beyond_the_bound_are_handed_over_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let line = |id: u64| span("task", id, None, (id * 10, id * 10 + 5)).trace(u128::from(1 + id % 5000)).line();
    fs::write(folder.path().join("1.json"), (1..=10_000).map(line).collect::<String>()).unwrap();
    let mut index = Index::new(folder.path(), 100_000);
    index.look(None, EPOCH).unwrap();
    assert!(index.reach().is_cut);
    let mut own = texts_of_each(index);
    own.sort();
    let mut whole: Vec<_> = load(folder.path()).unwrap().traces.iter().map(texts_of).collect();
    whole.sort();
    assert!(own == whole && own.len() == 5000);
}

/// Trace, id, parent, start and length in microseconds, and whether it failed and is in the first file.
type SomeSpan = (u8, u8, u8, u16, u16, bool, bool);

/// Spans of a few traces in two files, so that traces are torn apart, spans are written twice, and parents are missing.
fn some_spans() -> impl Strategy<Value = Vec<SomeSpan>> {
    let one = (1..6_u8, 1..30_u8, 0..30_u8, 0..5000_u16, 0..5000_u16, any::<bool>(), any::<bool>());
    proptest::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_index_answers_as_one_who_has_read_all(spans in some_spans(), cut in 0..60_usize) {
        // What is written twice is the same both times.
        let mut spans = spans;
        let mut first = HashMap::new();
        for span in &mut spans {
            let is_first = span.6;
            *span = *first.entry((span.0, span.1)).or_insert(*span);
            span.6 = is_first;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut index = Index::new(folder.path(), INDEX_BYTES);
        for part in [&spans[..cut.min(spans.len())], &spans[cut.min(spans.len())..]] {
            for (trace, id, parent, start, len, is_error, is_first) in part {
                let parent = (*parent > 0).then_some(u64::from(*parent));
                let micros = (u64::from(*start), u64::from(*start) + u64::from(*len));
                let name = ["alpha", "beta", "gamma"][usize::from(*id) % 3];
                let mut text = span(name, u64::from(*id), parent, micros).trace(u128::from(*trace));
                if *is_error {
                    text = text.failed("no");
                }
                let path = folder.path().join(if *is_first { "1.json" } else { "2.json" });
                let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                file.write_all(text.line().as_bytes()).unwrap();
            }
            index.look(None, EPOCH).unwrap();
        }
        let loaded = load(folder.path()).unwrap();
        for text in ["", "error", "-error", "name:alpha", "name:nothing", "duration>1ms", "duration>4ms error", "spans>3", "root", "-name:beta", "until:2026-11-05T12:00:00.002Z", "since:2026-11-05T12:00:00.003Z error"] {
            let among = among(text);
            let filter = Filter { query: among.query.clone(), ..Filter::default() };
            for limit in [1, 100] {
                let (own, whole) = (index.list(&among, limit), loaded.list(&filter, Some(limit)));
                prop_assert_eq!((own.rows, own.left_out, own.filtered_out), (whole.rows, whole.left_out, whole.filtered_out), "{}", text);
            }
            let matching = || loaded.traces.iter().filter(|trace| filter.matches(trace));
            prop_assert_eq!(index.heat_map(&among, 7, 5), HeatMap::new(matching(), 7, 5), "{}", text);
            let region = Region { min_ns: 3_000_000, ..Region::default() };
            let own = index.differences(&Among { region, ..among }, 50);
            let mut whole = Differences::new(matching().rev().map(|trace| (trace, region.contains(trace))), 50);
            whole.values.iter_mut().zip(&own.values).for_each(|(left, right)| left.example = right.example);
            prop_assert_eq!(own, whole, "{}", text);
        }
        for trace in &loaded.traces {
            let own = index.find(&trace.id.to_string()).unwrap();
            let texts = |trace: &Trace| {
                let texts = trace.spans.iter().map(|span| (span.span_id, span.text().into_owned()));
                texts.collect::<std::collections::BTreeMap<_, _>>()
            };
            prop_assert_eq!(texts(&own), texts(trace));
        }
        prop_assert_eq!(index.find("last").unwrap().id, loaded.find("last").unwrap().id);
        let mut small = Index::new(folder.path(), 300);
        small.look(None, EPOCH).unwrap();
        let is_cut = small.reach().is_cut;
        prop_assert_eq!(texts_of_each(index), loaded.traces.iter().map(texts_of).collect::<Vec<_>>());
        let mut own = texts_of_each(small);
        if is_cut {
            own.sort();
        }
        let mut whole: Vec<_> = loaded.traces.iter().map(texts_of).collect();
        if is_cut {
            whole.sort();
        }
        prop_assert_eq!(own, whole);
    }
}
