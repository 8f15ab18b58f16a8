//! A log that is kept within a bound: `logs/http.log` of this process, which is its standard error, where hooks may write for every request.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, io};

use tracer_core::lock::lock;

/// Shortest time between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// The log: what is written now, and before it the part that was put aside.
pub(crate) struct Log {
    path: PathBuf,
    /// Limit on the bytes of both parts.
    limit: u64,
    looked: Mutex<Instant>,
}

impl Log {
    /// Bounds the file at this path.
    pub(crate) fn new(path: PathBuf, limit: u64) -> Log {
        let log = Log { path, limit, looked: Mutex::new(Instant::now()) };
        log.bound();
        log
    }

    /// Looks at how long it is, unless that was done a moment ago.
    pub(crate) fn look(&self) {
        let now = Instant::now();
        let mut looked = lock(&self.looked);
        if now.duration_since(*looked) >= PAUSE {
            *looked = now;
            drop(looked);
            self.bound();
        }
    }

    /// Puts the log aside if it has grown to half of the bound.
    pub(crate) fn bound(&self) {
        // What it is at the moment: somebody may have removed it, or run this process by hand.
        let size = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if size > self.limit / 2 {
            // A log that cannot be put aside goes on.
            let _ = self.put_aside();
        }
    }

    /// Copies it and begins again. Others have it open for appending, so it keeps its name; what they write meanwhile is lost.
    fn put_aside(&self) -> io::Result<()> {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        fs::copy(&self.path, older)?;
        fs::OpenOptions::new().write(true).open(&self.path)?.set_len(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn both_parts_stay_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("logs")).unwrap();
        let path = folder.path().join("logs/http.log");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let log = Log::new(path.clone(), 1000);
        for number in 0..100 {
            writeln!(file, "{number:0>99}").unwrap();
            log.bound();
            let sizes = [&path, &folder.path().join("logs/http.log.1")]
                .map(|path| fs::metadata(path).map_or(0, |found| found.len()));
            assert!(sizes.iter().sum::<u64>() <= 1000 + 200, "{sizes:?}");
        }
        assert!(fs::read_to_string(folder.path().join("logs/http.log.1")).unwrap().contains("95\n"));
    }
}
