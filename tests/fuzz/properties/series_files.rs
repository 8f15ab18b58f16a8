//! Files of series, which any process of the same user could have written: both kinds are read, or are none, and nothing of them is more than they hold.

use tracer_ipc::metrics::{SERIES_LIMIT, instruments, read, read_folder};

pub(crate) fn holds(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let path = folder.path().join("1");
    std::fs::write(&path, bytes).expect("it can be written to");
    // What is cut off is an error, and not a series.
    let series = read(&path).unwrap_or_default();
    assert!(series.len() * 2048 <= bytes.len(), "{} series in {} bytes", series.len(), bytes.len());
    for series in &series {
        let texts = series.attributes.iter().flat_map(|(key, value)| [key, value]);
        assert!(texts.map(String::len).sum::<usize>() <= 256);
    }
    let summed = read_folder(folder.path()).unwrap_or_default();
    assert!(summed.len() <= series.len(), "equal series are one");
    let measured = instruments::read_folder(folder.path()).unwrap_or_default();
    for one in &measured {
        assert!(one.definition.boundaries.is_sorted_by(|lower, upper| lower < upper));
        assert!(one.series.len() <= bytes.len().max(SERIES_LIMIT));
        let buckets = one.definition.boundaries.len() + 1;
        assert!(one.series.iter().all(|series| series.buckets.is_empty() || series.buckets.len() == buckets));
    }
}
