//! A replica: one process that runs a deployment of a module, and handles the requests that callers send through their lanes.
//!
//! It is started by the head with its control socket as standard input, runs the hook, loads the module, and lets the module's own loop run: the
//! module waits on a descriptor that the [`engine`] lends it, and takes events. So no thread is woken for a request. For each request the
//! engine opens the span, then *claims* the request, and only then tells the module; it ends the span before the last frame of the answer is
//! handed to the lane. *Seen means recorded* follows, and what a killed replica had begun is known from its lanes' claims and from its spool.

mod commits;
mod engine;
mod lane;
mod request;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use super::{SHUTDOWN_LIMIT, WorkerError, set_up_tracing, usage};
use crate::control;
use crate::hook::{LoadedDeployment, Module, Recorder, ReplicaSettings, SearchPath};
use crate::module_store::ModuleStore;
use crate::spool::Spool;
use crate::task::ModuleVersion;
use engine::Engine;
use tracer_core::value;
use tracer_ipc::serving::{ReplicaBegin, ReplicaOrder, ReplicaReport};

/// Runs a replica until the head tells it to end or is gone. Standard input is the control socket.
pub(crate) fn run(session_dir: &Path, head_pid: u32) -> Result<(), WorkerError> {
    usage::die_with_parent(head_pid).map_err(WorkerError::Orphaned)?;
    let control = take_control().map_err(WorkerError::Io)?;
    let begin = receive_begin(&control)?;
    let spool: &'static Spool = Box::leak(Box::new(Spool::attach(&begin.spool).map_err(WorkerError::Spool)?));
    crate::hook::note_in(session_dir);
    let (recorder, hook_failure) = set_up_tracing(&begin.tracing, spool);
    let served = serve(session_dir, &control, begin, recorder, hook_failure.map(|failure| failure.to_string()));
    if let Some(Err(reason)) = recorder.map(|recorder| recorder.shutdown(SHUTDOWN_LIMIT)) {
        eprintln!("tracer: the spans of the replica could not be delivered: {reason}");
    }
    let report = match served {
        Ok(()) => ReplicaReport::Drained,
        Err(reason) => ReplicaReport::Failed { reason },
    };
    // The head sees the end of this process too.
    let _ = report_to(&control, &report);
    Ok(())
}

/// The socket that is standard input. What else wants to read that finds nothing.
fn take_control() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(control)
}

fn receive_begin(control: &OwnedFd) -> Result<ReplicaBegin, WorkerError> {
    let received = control::receive::<ReplicaOrder>(control).map_err(WorkerError::Io)?;
    let Some((ReplicaOrder::Begin, mut files)) = received else {
        return Err(WorkerError::Protocol("the first order of a replica is another one than its beginning".into()));
    };
    let file = files.pop().ok_or_else(|| WorkerError::Protocol("the first order has no file".into()))?;
    control::receive_long(file).map_err(WorkerError::Io)
}

/// Sends a report, and waits while the head does not read.
fn report_to(control: impl AsFd, report: &ReplicaReport) -> io::Result<()> {
    loop {
        match control::send(&control, report, &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut socket = [rustix::event::PollFd::new(&control, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut socket, None)?;
            }
            sent => return sent,
        }
    }
}

/// Makes the handler and handles requests until it is enough. Returns why it could not.
fn serve(
    session_dir: &Path,
    control: &OwnedFd,
    begin: ReplicaBegin,
    recorder: Option<&'static Recorder>,
    hook_failure: Option<String>,
) -> Result<(), String> {
    let (module, module_version) = load(session_dir, &begin)?;
    let name = tracer_ipc::serving::attribute_of(&begin.deployment.import_path);
    let deployment = LoadedDeployment::find(module, name, recorder).map_err(|error| error.to_string())?;
    let arguments = begin.deployment.arguments.iter().map(to_message_pack).collect::<Result<Vec<_>, _>>()?;
    let arguments = value::array(&arguments);
    let ready = ReplicaReport::Ready {
        tracing: recorder.map_or_else(|| "none".into(), Recorder::description),
        hook_failure,
        module_version,
        is_configurable: deployment.is_configurable(),
    };
    let control = control.try_clone().map_err(|error| error.to_string())?;
    let engine = Engine::start(control, &begin, deployment, ready, recorder);
    let engine: &'static Engine =
        Box::leak(Box::new(engine.map_err(|error| format!("it cannot wait for requests: {error}"))?));
    let settings = ReplicaSettings {
        arguments: &arguments,
        application: &begin.application,
        deployment: &begin.deployment.name,
        replica: &begin.name,
        max_ongoing_requests: begin.deployment.max_ongoing_requests,
        threads: begin.deployment.threads,
    };
    deployment.serve(&settings, engine.event_fd(), engine)?;
    engine.failure().map_or(Ok(()), Err)
}

/// Loads the module, in the version that the service was deployed with if that is kept. Returns what the version is called, too.
fn load(session_dir: &Path, begin: &ReplicaBegin) -> Result<(Module, Option<String>), String> {
    let path = &begin.deployment.import_path;
    let module = path.rsplit_once(':').map_or(path.as_str(), |(module, _)| module);
    let store = ModuleStore::of_session(session_dir);
    let version = begin.deployment.module_version.and_then(ModuleVersion::of_number);
    if let Some((version, stored)) = version.and_then(|version| Some((version, store.find(version)?))) {
        let name = stored.name(version);
        let loaded = Module::load_copy(module, &stored, name.clone().leak()).map_err(|error| error.to_string())?;
        return Ok((loaded, Some(name)));
    }
    let search = SearchPath { module_path: begin.module_folders.clone(), is_complete: true };
    Ok((Module::load(&search, module).map_err(|error| error.to_string())?, None))
}

fn to_message_pack(json: &serde_json::Value) -> Result<Vec<u8>, String> {
    let raw = serde_json::value::to_raw_value(json).map_err(|error| error.to_string())?;
    value::from_json(&raw).map_err(|error| error.to_string())
}
