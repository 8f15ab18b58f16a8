//! Calls of deployments by what runs in a process of the head's: handlers of a replica, and tasks of a worker.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use tracer_client::calls::Calls;
use tracer_core::lock::lock;
use tracer_host::hook::{CallHost, CallRequest, CallSink, Recorder};
use tracer_ipc::fork;

/// The calling side of a process, which connects with the first call. It does not outlive its head.
pub(super) struct ProcessCalls {
    session_dir: PathBuf,
    recorder: Option<&'static Recorder>,
    /// Service and application of a replica.
    home: Option<(String, String)>,
    calls: Mutex<Option<Arc<Calls>>>,
    /// Wakes the loop that looks for answers, in a replica.
    wake_loop: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl ProcessCalls {
    pub(super) fn new(
        session_dir: &Path,
        recorder: Option<&'static Recorder>,
        home: Option<(String, String)>,
    ) -> ProcessCalls {
        ProcessCalls {
            session_dir: session_dir.to_owned(),
            recorder,
            home,
            calls: Mutex::default(),
            wake_loop: OnceLock::new(),
        }
    }

    fn open(&self) -> Result<Arc<Calls>, String> {
        if fork::is_copy() {
            return Err(
                "only the process that tracer has started can call deployments, and not one that it has forked".into(),
            );
        }
        let mut calls = lock(&self.calls);
        if let Some(calls) = &*calls {
            return Ok(Arc::clone(calls));
        }
        let made = Calls::connect(&self.session_dir, self.recorder, self.home.clone())?;
        Ok(Arc::clone(calls.insert(made)))
    }

    /// Says how to wake the loop of the process, which [looks](Self::look) before it sleeps.
    pub(super) fn set_loop(&self, wake: impl Fn() + Send + Sync + 'static) {
        // It is set once, by the replica.
        let _ = self.wake_loop.set(Box::new(wake));
    }

    /// Looks for the answer of a call, if there is one call; see [`Calls::look`].
    pub(super) fn look(&self, events: BorrowedFd<'_>) -> bool {
        self.opened().is_some_and(|calls| calls.look(events))
    }

    fn opened(&self) -> Option<Arc<Calls>> {
        lock(&self.calls).clone()
    }
}

impl CallHost for ProcessCalls {
    fn call(&self, request: CallRequest, sink: CallSink) -> Result<u64, String> {
        let calls = self.open()?;
        let number = calls.call(request, sink);
        if let Some(wake) = self.wake_loop.get().filter(|_| calls.wants_look()) {
            wake();
        }
        Ok(number)
    }

    fn consumed(&self, call: u64, bytes: usize) {
        if let Some(calls) = self.opened() {
            calls.consumed(call, bytes);
        }
    }

    fn cancel(&self, call: u64) {
        if let Some(calls) = self.opened() {
            calls.cancel(call);
        }
    }
}
