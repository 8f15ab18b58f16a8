//! Calls of deployments by what runs in a process of the head's: handlers of a replica, and tasks of a worker.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tracer_client::calls::Calls;
use tracer_core::lock::lock;

use crate::fork;
use crate::hook::{CallHost, CallRequest, CallSink, Recorder};

/// The calling side of a process, which connects with the first call. It does not outlive its head.
pub(super) struct ProcessCalls {
    session_dir: PathBuf,
    recorder: Option<&'static Recorder>,
    /// Service and application of a replica.
    home: Option<(String, String)>,
    calls: Mutex<Option<Arc<Calls>>>,
}

impl ProcessCalls {
    pub(super) fn new(
        session_dir: &Path,
        recorder: Option<&'static Recorder>,
        home: Option<(String, String)>,
    ) -> ProcessCalls {
        ProcessCalls { session_dir: session_dir.to_owned(), recorder, home, calls: Mutex::default() }
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

    fn opened(&self) -> Option<Arc<Calls>> {
        lock(&self.calls).clone()
    }
}

impl CallHost for ProcessCalls {
    fn call(&self, request: CallRequest, sink: CallSink) -> Result<u64, String> {
        Ok(self.open()?.call(request, sink))
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
