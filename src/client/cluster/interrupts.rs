//! Ctrl-C, for programs that want it to cancel their tasks.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use signal_hook::consts::SIGINT;
use signal_hook::low_level::{emulate_default_handler, pipe};
use tracer_core::count::Count;
use tracer_core::exit;
use tracer_ipc::protocol::{CancelWhich, Query, Reply};

use super::connected::Inner;

/// Hears what is done.
pub(super) type Say = Box<dyn FnMut(&str) + Send>;

/// Clusters whose tasks a Ctrl-C cancels.
static WATCHED: AtomicUsize = AtomicUsize::new(0);

/// Counts a cluster in, for as long as it lives.
#[derive(Debug)]
pub(super) struct Watched(());

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHED.fetch_sub(1, SeqCst);
    }
}

/// Cancels what the cluster has submitted at the first Ctrl-C, and ends this program at the second one. `say` hears what is done.
pub(super) fn watch(say: Say) -> io::Result<(Watched, impl FnOnce(Weak<Inner>) -> io::Result<()>)> {
    let (signals, signal_tx) = UnixStream::pair()?;
    pipe::register(SIGINT, signal_tx)?;
    WATCHED.fetch_add(1, SeqCst);
    let begin = move |inner: Weak<Inner>| {
        let thread = std::thread::Builder::new().name("tracer-interrupts".into());
        thread.spawn(move || listen(signals, &inner, say)).map(drop)
    };
    Ok((Watched(()), begin))
}

fn listen(mut signals: UnixStream, inner: &Weak<Inner>, mut say: Say) {
    let mut byte = [0];
    let mut has_cancelled = false;
    while signals.read_exact(&mut byte).is_ok() {
        match inner.upgrade() {
            Some(inner) if !has_cancelled => {
                has_cancelled = true;
                let query = Query::Cancel { which: CancelWhich::Job(inner.job_id), grace_ms: None };
                match inner.connection.query(&query, None) {
                    Ok(Some(Reply::Cancelled(tasks))) => {
                        let tasks = Count(tasks.len(), "task");
                        say(&format!("cancelling {tasks} (Ctrl-C again ends this program at once)"));
                    }
                    Ok(_) => say("the head gave no answer to the request to cancel the tasks"),
                    Err(error) => say(&format!("the tasks could not be cancelled: {error}")),
                }
            }
            // An embedded head ends with it, and finishes its spans.
            Some(_) => std::process::exit(exit::INTERRUPTED.into()),
            // The cluster is gone. If it was the last one, the program is again as one that does nothing about it.
            None if WATCHED.load(SeqCst) == 0 => drop(emulate_default_handler(SIGINT)),
            None => {}
        }
    }
}
