//! Marks in the worker's output: which attempt writes from here on. See [`tracer_ipc::task_output`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use tracer_core::lock::lock;
use tracer_ipc::task_output::{Mark, Marking, Nonce, Owner};

/// The marks of this process.
#[derive(Default)]
pub(super) struct OutputMarks {
    /// None when nothing is marked.
    pipes: Option<Pipes>,
    current: Mutex<Option<Mark>>,
    /// True if what is written now is said to be of attempts without a mark.
    is_unmarked: AtomicBool,
    functions: Mutex<Vec<&'static FunctionMarks>>,
}

/// The two outputs that the worker was started with; a task may close or replace its own.
struct Pipes {
    nonce: Nonce,
    outputs: [OwnedFd; 2],
}

/// Marking of one function.
#[derive(Debug)]
pub(super) struct FunctionMarks {
    number: u32,
    is_on: AtomicBool,
}

impl OutputMarks {
    /// Marks with this nonce in the outputs as they are now. Where they cannot be kept nothing is marked, and the head shows output as approximate.
    pub(super) fn new(nonce: Option<Nonce>) -> OutputMarks {
        let keep = |output: &dyn AsFd| rustix::io::fcntl_dupfd_cloexec(output.as_fd(), 3);
        let outputs = || Ok::<_, Errno>([keep(&io::stdout())?, keep(&io::stderr())?]);
        let pipes = nonce.and_then(|nonce| Some(Pipes { nonce, outputs: outputs().ok()? }));
        OutputMarks { pipes, ..OutputMarks::default() }
    }

    /// Takes a function in, whose attempts are marked until the head says that they need not be.
    pub(super) fn register(&self) -> &'static FunctionMarks {
        let mut functions = lock(&self.functions);
        let number = u32::try_from(functions.len() + 1).unwrap_or(u32::MAX);
        let marks = Box::leak(Box::new(FunctionMarks { number, is_on: AtomicBool::new(true) }));
        functions.push(marks);
        marks
    }

    /// Follows an order of the head.
    pub(super) fn follow(&self, order: Marking) {
        let functions = lock(&self.functions);
        match order {
            Marking::All => functions.iter().for_each(|marks| marks.is_on.store(true, Relaxed)),
            Marking::Stop(number) => {
                if let Some(marks) = (number as usize).checked_sub(1).and_then(|index| functions.get(index)) {
                    marks.is_on.store(false, Relaxed);
                }
            }
        }
    }

    /// Marks what is written from here on as an attempt's. Attempts of functions that need not be marked
    /// have one mark in common.
    /// Returns whether the attempt is marked.
    pub(super) fn begin(&self, function: Option<&FunctionMarks>, owner: impl FnOnce() -> Owner) -> bool {
        if let Some(function) = function
            && !function.is_on.load(Relaxed)
        {
            if !self.is_unmarked.load(Relaxed) {
                self.write(Mark::UNMARKED);
            }
            return false;
        }
        self.write(Mark { function: function.map_or(0, |function| function.number), owner: owner() });
        true
    }

    /// Writes out what the C library holds back of a marked attempt that has ended, before another attempt is marked.
    pub(super) fn flush(&self) {
        if self.pipes.is_some() {
            flush_c_streams();
        }
    }

    /// Returns the mark that is in force.
    pub(super) fn current(&self) -> Option<Mark> {
        *lock(&self.current)
    }

    /// Puts the mark back that was in force before an attempt that ran inside of another.
    pub(super) fn restore(&self, mark: Option<Mark>) {
        if self.current() != mark {
            self.write(mark.unwrap_or(Mark::NONE));
        }
    }

    /// Ends the last attempt's output: what follows is the worker's own.
    pub(super) fn end(&self) {
        self.write(Mark::NONE);
    }

    /// Writes a mark to both outputs, unless it is in force already.
    fn write(&self, mark: Mark) {
        let Some(Pipes { nonce, outputs }) = &self.pipes else { return };
        let mut current = lock(&self.current);
        if *current == Some(mark) {
            return;
        }
        flush_c_streams();
        let bytes = mark.encode(nonce);
        for output in outputs {
            // One write puts it into the pipe whole. Without a reader there is nobody to tell.
            while let Err(Errno::INTR) = rustix::io::write(output, &bytes) {}
        }
        *current = Some(mark);
        self.is_unmarked.store(mark == Mark::UNMARKED, Relaxed);
    }
}

/// Writes out what the C library holds back of its output streams.
fn flush_c_streams() {
    // SAFETY: a null pointer stands for all output streams; each is locked while it is written out.
    unsafe {
        libc::fflush(std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_marked_until_the_head_says_otherwise() {
        let marks = OutputMarks::default();
        let (first, second) = (marks.register(), marks.register());
        let is_marked = || [first, second].map(|function| marks.begin(Some(function), || Owner::None));
        assert_eq!(is_marked(), [true, true]);
        marks.follow(Marking::Stop(2));
        marks.follow(Marking::Stop(77));
        assert_eq!(is_marked(), [true, false]);
        marks.follow(Marking::All);
        assert_eq!(is_marked(), [true, true]);
    }
}
