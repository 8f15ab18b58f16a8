//! Whatever is in the index of a log, it is read to its end, each record once, and reading on from there finds what was appended.

use std::cell::OnceCell;
use std::fs;

use tracer::task_output::{Extent, HEADER, INDEX_RECORD, read_extents};

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

/// The bytes are what follows the header; those of an odd length are a file without one.
pub(super) fn holds(bytes: &[u8]) {
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir().expect("a folder"));
        let path = folder.path().join("worker-1-1.index");
        let has_header = bytes.len().is_multiple_of(2);
        let all = if has_header { [HEADER.as_slice(), bytes].concat() } else { bytes.to_vec() };
        fs::write(&path, &all).expect("it can be written");
        let mut extents: Vec<Extent> = Vec::new();
        let end = read_extents(&path, 0, |extent| extents.push(extent)).expect("it can be read");
        if !all.starts_with(&HEADER) {
            assert_eq!((extents.len(), end), (0, 0));
            return;
        }
        let records = all.len() / INDEX_RECORD - 1;
        assert_eq!((extents.len(), end), (records, ((records + 1) * INDEX_RECORD) as u64));
        for extent in &extents {
            assert_eq!(Extent::decode(&extent.encode()), *extent);
        }
        let mut more = all[..end as usize].to_vec();
        extents.iter().for_each(|extent| more.extend_from_slice(&extent.encode()));
        fs::write(&path, more).expect("it can be written");
        let mut again = Vec::new();
        read_extents(&path, end, |extent| again.push(extent)).expect("it can be read");
        assert_eq!(again, extents);
    });
}
