//! `--journal-sync`: a thread that brings the journal to the disk, so that the head does not wait for that.
//!
//! The head says up to where the journal is written, and goes on. The thread syncs once for all that has come meanwhile, and says up to where it has come.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tracer_core::lock::lock;
use tracer_ipc::fault;

use super::Event;

/// Files to sync, and the position in the journal that is on the disk then.
struct Wanted {
    files: Vec<Arc<File>>,
    position: u64,
}

#[derive(Default)]
struct Shared {
    wanted: Mutex<(Option<Wanted>, bool)>,
    changed: Condvar,
}

/// The thread. Dropped, it ends when it has synced what was wanted.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Syncer {
    /// Starts the thread. `tell` gets the position after each sync, or why there was none.
    pub(super) fn start(
        sync: impl Fn(&File) -> io::Result<()> + Send + 'static,
        tell: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Syncer> {
        let shared = Arc::<Shared>::default();
        let in_thread = Arc::clone(&shared);
        let run = move || {
            while let Some(Wanted { files, position }) = in_thread.next() {
                fault::hold("sync");
                let synced = files.iter().try_for_each(|file| sync(file)).map(|()| position);
                tell(Event::Synced(synced));
            }
        };
        let thread = std::thread::Builder::new().name("tracer-sync".into()).spawn(run)?;
        Ok(Syncer { shared, thread: Some(thread) })
    }

    /// Asks for a sync of all of these files, up to this position.
    pub(super) fn want(&self, files: Vec<Arc<File>>, position: u64) {
        lock(&self.shared.wanted).0 = Some(Wanted { files, position });
        self.shared.changed.notify_one();
    }
}

impl Shared {
    /// Returns what is wanted next; none when there is nothing more to come.
    fn next(&self) -> Option<Wanted> {
        let mut wanted = lock(&self.wanted);
        loop {
            match &mut *wanted {
                (next @ Some(_), _) => return next.take(),
                (None, true) => return None,
                (None, false) => {}
            }
            wanted = self.changed.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        lock(&self.shared.wanted).1 = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Channel of the threads' messages to the head, each with a wake-up.
pub(super) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    wake: Arc<std::os::fd::OwnedFd>,
}

impl Events {
    pub(super) fn new() -> io::Result<Events> {
        let (sender, receiver) = channel();
        let wake =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        Ok(Events { sender, receiver, wake: Arc::new(wake) })
    }

    /// For a thread.
    pub(super) fn teller(&self) -> impl Fn(Event) + Send + 'static {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        move |event| {
            // A head that is gone needs no news.
            let _ = sender.send(event);
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        }
    }

    /// Returns what has been told.
    pub(super) fn take(&self) -> Vec<Event> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.receiver.try_iter().collect()
    }

    /// Readable when there is something to take.
    pub(super) fn watched(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.wake)
    }
}
