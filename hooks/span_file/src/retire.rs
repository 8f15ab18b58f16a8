//! Files that are done with, closed by a thread of their own.

use std::thread;

/// A file of fewer bytes is not worth a thread.
pub const LARGE_FILE: u64 = 1 << 20;

/// Drops open files in a thread of its own, which ends then: the last close of a file that was removed frees its blocks, and cutting one back frees some. That takes
/// tens of milliseconds for a large file, and longer on a disk that is told of each free block (the mount option `discard`), while whoever rotates a file may
/// have requests to answer. Where no thread can be started they are dropped here.
pub fn retire(files: impl Send + 'static) {
    // A thread that cannot be started drops what it was to have.
    let _ = thread::Builder::new().name("tracer-old-files".into()).spawn(move || drop(files));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Tells(Sender<Option<String>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn files_are_dropped_by_another_thread() {
        let (tells, told) = channel();
        retire((Tells(tells.clone()), Tells(tells)));
        let names: Vec<_> = told.iter().collect();
        assert_eq!(names, [(); 2].map(|()| Some("tracer-old-files".to_owned())));
    }
}
