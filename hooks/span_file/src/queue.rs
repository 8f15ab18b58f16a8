//! The queue of lines between a span's end, which must be fast, and the file.
//!
//! Lines are rendered into a buffer that all threads of a process share, and stay there until somebody asks for them to be on disk, or until
//! there are [`WRITE_AT`] bytes of them. So a burst of spans costs one `write`, and a lonely one is not delayed beyond its task.
//!
//! # Back-pressure
//!
//! While one thread writes, the others go on adding lines. When [`CAPACITY`] bytes wait, whoever has a further line waits until some of
//! them are in the file, for at most [`PATIENCE`]: dropping is for a file that cannot be written. Once somebody has waited in
//! vain, nobody waits any more until the write that hangs has returned.
//!
//! A file that refuses (a full disk) is tried again with every commit and now and then between them. What it refuses is kept up to the same
//! capacity; beyond that lines are dropped, and counted.
//!
//! # Locks
//!
//! One short lock guards the buffer. The file belongs to whoever has set `is_writing` under that lock; a writer takes no other lock, so a
//! thread that waits for room, whatever it holds, waits for nobody but the kernel. In a process that was forked from the owner nobody waits
//! and nothing is written: the thread that wrote is not there, and the file is the owner's.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::file::{Counts, SpanFile};

/// The buffer is written when it holds this much, whether or not somebody asks. Half of it would cost the kernel a third more for each span.
const WRITE_AT: usize = 128 << 10;
/// Limit of the bytes that wait in memory.
const CAPACITY: usize = 8 << 20;
/// Time that a line waits for room.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit of the bytes that are written at once, so that a slow disk makes room bit by bit for those who wait.
const PIECE: usize = 1 << 20;
/// Lines that are dropped between two attempts to write: perhaps nobody commits.
const RETRY_EVERY: u64 = 1_024;

/// Target that lines are appended to.
pub trait LineSink {
    /// Appends whole lines, as [`SpanFile::append`] does.
    fn append_lines(&mut self, lines: &[u8]) -> Result<(), Refusal>;
}

/// Lines that were not taken.
#[derive(Debug)]
pub struct Refusal {
    /// Number of bytes that were taken nevertheless: whole lines, from the first.
    pub consumed: usize,
    /// Error, for people.
    pub reason: String,
}

impl LineSink for SpanFile {
    fn append_lines(&mut self, lines: &[u8]) -> Result<(), Refusal> {
        self.append(lines).map_err(|error| Refusal { consumed: error.consumed(), reason: error.to_string() })
    }
}

/// Lines on their way to a file, with a state `S` that renders them.
#[derive(Debug)]
pub struct LineQueue<S, W = SpanFile> {
    /// The process that writes.
    pid: u32,
    buffer: Mutex<Buffer<S>>,
    /// Locked by whoever has set [`Buffer::is_writing`], who never has to wait for it.
    output: Mutex<Output<W>>,
    /// Tells those who wait for room, or for their turn to write, that there may be some.
    has_changed: Condvar,
    capacity: usize,
    patience: Duration,
}

#[derive(Debug)]
struct Buffer<S> {
    /// Lines that nobody has tried to write yet.
    lines: Vec<u8>,
    /// Number of these lines.
    count: u64,
    state: S,
    /// Bytes that the writer has, or that are left of a write that failed.
    unwritten: usize,
    /// True if somebody has [`LineQueue::output`].
    is_writing: bool,
    /// Threads that have to write what there is now. Others leave the file to them.
    committers: u32,
    /// Threads on [`LineQueue::has_changed`].
    waiters: u32,
    /// True if the last attempt to write failed.
    is_refused: bool,
    /// True if a line has waited in vain for the write that is under way.
    is_stuck: bool,
    /// Lines dropped since the queue was made.
    dropped: u64,
    /// Number of them that [`LineQueue::take_dropped`] has told of.
    told: u64,
}

#[derive(Debug)]
struct Output<W> {
    sink: W,
    /// Lines that come before those in the buffer: an earlier attempt to write them failed, or they are being written.
    lines: Vec<u8>,
    /// Number of these lines.
    count: u64,
}

/// Error of a commit.
#[derive(Debug, PartialEq, Eq)]
pub struct CommitError {
    /// Error in words, for people.
    pub reason: String,
    /// Lines that wait in memory for the next attempt.
    pub waiting: u64,
}

impl<S, W: LineSink> LineQueue<S, W> {
    /// Makes a queue of this process, before `sink`.
    pub fn new(sink: W, state: S) -> LineQueue<S, W> {
        LineQueue::with_limits(sink, state, CAPACITY, PATIENCE)
    }

    fn with_limits(sink: W, state: S, capacity: usize, patience: Duration) -> LineQueue<S, W> {
        let buffer = Buffer {
            lines: Vec::new(),
            count: 0,
            state,
            unwritten: 0,
            is_writing: false,
            committers: 0,
            waiters: 0,
            is_refused: false,
            is_stuck: false,
            dropped: 0,
            told: 0,
        };
        LineQueue {
            pid: std::process::id(),
            buffer: Mutex::new(buffer),
            output: Mutex::new(Output { sink, lines: Vec::new(), count: 0 }),
            has_changed: Condvar::new(),
            capacity,
            patience,
        }
    }

    /// Adds the lines of `items`. Waits for room, as the page above says; what finds none is dropped and counted.
    pub fn append<T>(&self, items: impl Iterator<Item = T>, put_line: impl Fn(&S, &mut Vec<u8>, T)) {
        let mut is_due = false;
        let mut buffer = self.lock();
        for item in items {
            if buffer.lines.len() + buffer.unwritten >= self.capacity {
                let (after, has_room) = self.make_room(buffer);
                buffer = after;
                if !has_room {
                    buffer.dropped += 1;
                    if buffer.dropped.is_multiple_of(RETRY_EVERY) && !buffer.is_writing && buffer.committers == 0 {
                        buffer = self.write(buffer).0;
                    }
                    continue;
                }
            }
            let Buffer { lines, count, state, .. } = &mut *buffer;
            let before = lines.len();
            put_line(state, lines, item);
            *count += 1;
            // Once per so many bytes, not once per line, in case nothing can be written now.
            is_due |= before / WRITE_AT != lines.len() / WRITE_AT;
        }
        if is_due && !buffer.is_writing && buffer.committers == 0 {
            // The next commit reports a failure: the lines wait for it, or are counted.
            let _ = self.write(buffer);
        }
    }

    /// Writes all that was added before. On return it is with the kernel.
    ///
    /// On failure what could not be written waits for the next attempt.
    pub fn commit(&self) -> Result<(), CommitError> {
        self.with_turn(|queue, buffer| queue.write(buffer).1)
    }

    /// Writes all that was added before and then `lines`, which the caller keeps if that fails.
    pub fn write_through(&self, lines: &[u8]) -> Result<(), CommitError> {
        self.with_turn(|queue, buffer| queue.write_with(buffer, lines).1)
    }

    /// Lines dropped since the queue was made.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Lines dropped since it was asked last.
    pub fn take_dropped(&self) -> u64 {
        let Buffer { dropped, told, .. } = &mut *self.lock();
        *dropped - std::mem::replace(told, *dropped)
    }

    /// Lends what renders the lines.
    pub fn with_state<R>(&self, work: impl FnOnce(&mut S) -> R) -> R {
        work(&mut self.lock().state)
    }

    /// Lends the file, between two writes. In a forked process there is none.
    pub fn with_sink<R>(&self, work: impl FnOnce(&mut W) -> R) -> Option<R> {
        let result = self.with_turn(|queue, _buffer| Ok(work(&mut queue.lock_output().sink)));
        result.ok()
    }

    /// Waits until nobody writes, and has `work` done under the lock.
    fn with_turn<R>(
        &self,
        work: impl FnOnce(&Self, MutexGuard<'_, Buffer<S>>) -> Result<R, CommitError>,
    ) -> Result<R, CommitError> {
        let mut buffer = self.lock();
        if buffer.is_writing {
            self.refuse_if_forked(&mut buffer)?;
            buffer.committers += 1;
            while buffer.is_writing {
                buffer.waiters += 1;
                buffer = self.has_changed.wait(buffer).unwrap_or_else(PoisonError::into_inner);
                buffer.waiters -= 1;
            }
            buffer.committers -= 1;
        }
        work(self, buffer)
    }

    /// Waits, while the file takes lines, until there is room for another one. False when there is none.
    #[cold]
    fn make_room<'a>(&'a self, mut buffer: MutexGuard<'a, Buffer<S>>) -> (MutexGuard<'a, Buffer<S>>, bool) {
        let is_forked = std::process::id() != self.pid;
        let mut until = None;
        loop {
            if buffer.lines.len() + buffer.unwritten < self.capacity {
                return (buffer, true);
            }
            if is_forked || buffer.is_refused || buffer.is_stuck {
                return (buffer, false);
            }
            if !buffer.is_writing && buffer.committers == 0 {
                buffer = self.write(buffer).0;
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + self.patience);
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                buffer.is_stuck = true;
                continue;
            }
            buffer.waiters += 1;
            let woken = self.has_changed.wait_timeout(buffer, rest);
            buffer = woken.unwrap_or_else(PoisonError::into_inner).0;
            buffer.waiters -= 1;
        }
    }

    /// Puts everything that is buffered into the file, in order, while nobody else does. On failure the lines that are not in the file wait
    /// for the next attempt.
    fn write<'a>(&'a self, buffer: MutexGuard<'a, Buffer<S>>) -> Turn<'a, S> {
        self.write_with(buffer, &[])
    }

    /// The same with lines of the caller's after them, which stay the caller's on failure.
    fn write_with<'a>(&'a self, mut buffer: MutexGuard<'a, Buffer<S>>, further: &[u8]) -> Turn<'a, S> {
        if buffer.lines.is_empty() && buffer.unwritten == 0 && further.is_empty() {
            return (buffer, Ok(()));
        }
        if let Err(error) = self.refuse_if_forked(&mut buffer) {
            return (buffer, Err(error));
        }
        let mut output = self.lock_output();
        if output.lines.is_empty() {
            std::mem::swap(&mut output.lines, &mut buffer.lines);
        } else {
            output.lines.append(&mut buffer.lines);
        }
        output.count += std::mem::take(&mut buffer.count);
        buffer.unwritten = output.lines.len();
        buffer.is_writing = true;
        drop(buffer);

        let Output { sink, lines, count } = &mut *output;
        // A sink that panics must not leave the others waiting for it.
        let writer = Writer { queue: self };
        let mut consumed = 0;
        let mut result = Ok(());
        while consumed < lines.len() && result.is_ok() {
            let piece = piece_of(&lines[consumed..]);
            result = sink.append_lines(piece);
            consumed += result.as_ref().map_or_else(|refusal| refusal.consumed, |()| piece.len());
            if consumed < lines.len() {
                let mut buffer = self.lock();
                buffer.unwritten = lines.len() - consumed;
                self.notify(&buffer);
            }
        }
        *count -= if consumed == lines.len() { *count } else { count_lines(&lines[..consumed]) };
        lines.drain(..consumed);
        if result.is_ok() && !further.is_empty() {
            result = sink.append_lines(further).or_else(|refusal| match refusal.consumed {
                0 => Err(refusal),
                // Some are in the file: the others follow them, and the caller must not give all of them again.
                consumed => {
                    lines.extend_from_slice(&further[consumed..]);
                    *count += count_lines(&further[consumed..]);
                    Ok(())
                }
            });
        }
        std::mem::forget(writer);

        let mut buffer = self.lock();
        buffer.unwritten = lines.len();
        buffer.is_refused = result.is_err();
        if lines.is_empty() && buffer.lines.is_empty() {
            // It gets its memory back, which is in the cache.
            std::mem::swap(lines, &mut buffer.lines);
        }
        let result = result.map_err(|refusal| CommitError { reason: refusal.reason, waiting: *count });
        drop(output);
        self.end_turn(&mut buffer);
        (buffer, result)
    }

    /// Drops what there is in a process that was forked from the one that made the queue.
    fn refuse_if_forked(&self, buffer: &mut Buffer<S>) -> Result<(), CommitError> {
        let own = std::process::id();
        if own == self.pid {
            return Ok(());
        }
        buffer.dropped += std::mem::take(&mut buffer.count);
        buffer.lines.clear();
        let reason = format!(
            "process {own} was forked from process {} after that had set up tracing, so its spans are dropped\n\
             (hint: start programs with exec, which gives them tracing of their own)",
            self.pid
        );
        Err(CommitError { reason, waiting: 0 })
    }

    // The locks guard nothing that a panic could leave half-done: lines are appended whole, or cut off again.

    fn lock_output(&self) -> MutexGuard<'_, Output<W>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S, W> LineQueue<S, W> {
    fn lock(&self) -> MutexGuard<'_, Buffer<S>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_turn(&self, buffer: &mut Buffer<S>) {
        (buffer.is_writing, buffer.is_stuck) = (false, false);
        self.notify(buffer);
    }

    fn notify(&self, buffer: &Buffer<S>) {
        // It is a system call, also when nobody waits.
        if buffer.waiters > 0 {
            self.has_changed.notify_all();
        }
    }
}

/// The lock again, and how the write went.
type Turn<'a, S> = (MutexGuard<'a, Buffer<S>>, Result<(), CommitError>);

/// Gives the file back when the writer panics.
struct Writer<'a, S, W> {
    queue: &'a LineQueue<S, W>,
}

impl<S, W> Drop for Writer<'_, S, W> {
    fn drop(&mut self) {
        self.queue.end_turn(&mut self.queue.lock());
    }
}

/// Returns the first lines, as many as are written at once.
fn piece_of(lines: &[u8]) -> &[u8] {
    if lines.len() <= PIECE {
        return lines;
    }
    let end = lines[..PIECE].iter().rposition(|&byte| byte == b'\n');
    let end = end.or_else(|| lines.iter().position(|&byte| byte == b'\n'));
    end.map_or(lines, |end| &lines[..=end])
}

fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

impl<S> LineQueue<S> {
    /// Counts of the lines so far, by what became of them.
    pub fn counts(&self) -> Counts {
        let lines_dropped = self.dropped();
        let counts = self.with_sink(|file| file.counts()).unwrap_or_default();
        Counts { lines_dropped: counts.lines_dropped + lines_dropped, ..counts }
    }

    /// Closes the file, as [`SpanFile::close`] does.
    pub fn close(&self) {
        if std::process::id() == self.pid {
            self.with_sink(SpanFile::close);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A sink in memory, which does what a test wants before it takes lines.
    struct Sink {
        taken: Arc<Mutex<Vec<u8>>>,
        before: Box<dyn FnMut() -> Result<(), String> + Send>,
    }

    impl LineSink for Sink {
        fn append_lines(&mut self, lines: &[u8]) -> Result<(), Refusal> {
            (self.before)().map_err(|reason| Refusal { consumed: 0, reason })?;
            self.taken.lock().unwrap().extend_from_slice(lines);
            Ok(())
        }
    }

    type Taken = Arc<Mutex<Vec<u8>>>;

    fn queue(
        capacity: usize,
        patience: Duration,
        before: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> (LineQueue<(), Sink>, Taken) {
        let taken = Taken::default();
        let sink = Sink { taken: Arc::clone(&taken), before: Box::new(before) };
        (LineQueue::with_limits(sink, (), capacity, patience), taken)
    }

    fn add(queue: &LineQueue<(), Sink>, numbers: std::ops::Range<u64>) {
        queue.append(numbers, |(), lines, number| lines.extend_from_slice(format!("{number}\n").as_bytes()));
    }

    fn numbers(taken: &Taken) -> Vec<u64> {
        let taken = taken.lock().unwrap();
        std::str::from_utf8(&taken).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    }

    /// No test waits for as long.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn whoever_is_faster_than_the_file_waits_for_it_and_nothing_is_dropped() {
        const THREADS: u64 = 16;
        const EACH: u64 = 2_000;
        let slow = || {
            (0..50).for_each(|_| std::thread::yield_now());
            Ok(())
        };
        let (queue, taken) = queue(1_000, LONG, slow);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..EACH {
                        add(queue, thread * EACH + number..thread * EACH + number + 1);
                        // As threads that make spans do when their tasks end.
                        if number % 500 == 0 {
                            queue.commit().unwrap();
                        }
                    }
                });
            }
        });
        queue.commit().unwrap();
        let numbers = numbers(&taken);
        assert_eq!((numbers.len() as u64, queue.dropped()), (THREADS * EACH, 0));
        for thread in 0..THREADS {
            let of_thread = numbers.iter().copied().filter(|number| number / EACH == thread);
            assert!(of_thread.eq(thread * EACH..(thread + 1) * EACH), "each once, in order");
        }
    }

    #[test]
    fn a_file_that_refuses_keeps_nobody_waiting_and_what_was_kept_is_written_when_it_takes_lines_again() {
        let accepts = Arc::new(AtomicBool::new(false));
        let refuse = {
            let accepts = Arc::clone(&accepts);
            move || if accepts.load(Ordering::Relaxed) { Ok(()) } else { Err("the disk is full".to_owned()) }
        };
        let (queue, taken) = queue(1_000, LONG, refuse);
        add(&queue, 0..10_000);
        let error = queue.commit().unwrap_err();
        assert_eq!(error.reason, "the disk is full");
        let kept = error.waiting;
        assert!((100..1_000).contains(&kept), "{kept}");
        assert_eq!((queue.dropped(), queue.take_dropped(), queue.take_dropped()), (10_000 - kept, 10_000 - kept, 0));
        accepts.store(true, Ordering::Relaxed);
        // Nobody commits: enough that are dropped try again.
        add(&queue, 10_000..20_000);
        queue.commit().unwrap();
        let numbers = numbers(&taken);
        assert!(numbers[..kept as usize].iter().copied().eq(0..kept), "the oldest are kept");
        assert_eq!(numbers.len() as u64 + queue.dropped(), 20_000);
        assert_eq!(numbers.last(), Some(&19_999));
    }

    #[test]
    fn a_write_that_hangs_is_waited_for_once() {
        let (begins, has_begun): (Sender<()>, Receiver<()>) = channel();
        let (go, goes): (Sender<()>, Receiver<()>) = channel();
        let hang = move || {
            begins.send(()).unwrap();
            goes.recv().map_err(|error| error.to_string())
        };
        let (queue, taken) = queue(1_000, Duration::from_millis(20), hang);
        add(&queue, 0..1);
        std::thread::scope(|scope| {
            let committing = scope.spawn(|| queue.commit());
            has_begun.recv().unwrap();
            let since = Instant::now();
            add(&queue, 1..10_000);
            // Had each of them waited, it would have been three minutes.
            assert!(since.elapsed() < LONG, "{:?}", since.elapsed());
            assert!(queue.dropped() > 9_000);
            go.send(()).unwrap();
            committing.join().unwrap().unwrap();
            // The others take nobody's time either.
            (0..10).for_each(|_| go.send(()).unwrap());
            queue.commit().unwrap();
            let dropped = queue.dropped();
            add(&queue, 20_000..20_001);
            queue.commit().unwrap();
            assert_eq!(queue.dropped(), dropped);
        });
        assert_eq!(numbers(&taken).len() as u64 + queue.dropped(), 10_001);
    }

    #[test]
    fn a_slow_file_makes_room_piece_by_piece() {
        let (begins, has_begun): (Sender<()>, Receiver<()>) = channel();
        let (go, goes): (Sender<()>, Receiver<()>) = channel();
        let stepwise = move || {
            begins.send(()).unwrap();
            goes.recv().map_err(|error| error.to_string())
        };
        let (queue, _) = queue(3 * PIECE, LONG, stepwise);
        let line = vec![b'x'; PIECE / 2];
        let add = || {
            queue.append(std::iter::once(()), |(), lines, ()| {
                lines.extend_from_slice(&line);
                lines.push(b'\n');
            });
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| (0..6).for_each(|_| add()));
            has_begun.recv().unwrap();
            // The capacity is reached while a part of it is still being written.
            let second = scope.spawn(|| (0..12).for_each(|_| add()));
            for _ in 0..40 {
                let _ = go.send(());
            }
            first.join().unwrap();
            second.join().unwrap();
            queue.commit().unwrap();
        });
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn what_is_written_through_comes_after_what_waits_and_stays_the_callers_on_failure() {
        let accepts = Arc::new(AtomicBool::new(false));
        let refuse = {
            let accepts = Arc::clone(&accepts);
            move || if accepts.load(Ordering::Relaxed) { Ok(()) } else { Err("no".to_owned()) }
        };
        let (queue, taken) = queue(1_000, LONG, refuse);
        add(&queue, 0..2);
        assert_eq!(queue.write_through(b"100\n").unwrap_err(), CommitError { reason: "no".into(), waiting: 2 });
        accepts.store(true, Ordering::Relaxed);
        queue.write_through(b"100\n").unwrap();
        assert_eq!(numbers(&taken), [0, 1, 100]);
    }

    #[test]
    fn a_forked_process_neither_writes_nor_waits() {
        let (mut queue, taken) = queue(1_000, LONG, || Ok(()));
        // As in a child whose parent's thread was writing at the fork.
        queue.pid += 1;
        queue.lock().is_writing = true;
        add(&queue, 0..10_000);
        let error = queue.commit().unwrap_err();
        assert!(error.reason.contains("was forked from process"), "{}", error.reason);
        assert_eq!((queue.dropped(), numbers(&taken).len()), (10_000, 0));
    }
}
