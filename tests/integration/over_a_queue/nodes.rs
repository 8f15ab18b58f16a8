//! Two nodes with a queue between them, with the verbs of one head.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tracer::driver::{DriverError, Remote};

use crate::support::{self, Broker, HOOK, Run};

/// The queue between the nodes.
const QUEUE: &str = "default";

/// Settings that two nodes are started with. What is said of workers is said of the one that has some.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    holder: support::Builder,
    origin: support::Builder,
    workers: Option<usize>,
    /// Named resources of the one with workers, as its flag has them.
    resources: Option<String>,
}

impl Builder {
    pub(crate) fn workers(self, workers: usize) -> Builder {
        Builder { holder: self.holder.workers(workers), workers: Some(workers), ..self }
    }

    pub(crate) fn hook(self, hook: &str) -> Builder {
        Builder { holder: self.holder.hook(hook), origin: self.origin.hook(hook), ..self }
    }

    pub(crate) fn arg(self, argument: impl AsRef<OsStr>) -> Builder {
        let resources = argument.as_ref().to_str().and_then(|argument| argument.strip_prefix("--resources="));
        let resources = resources.map(str::to_owned).or(self.resources);
        Builder { holder: self.holder.arg(argument), resources, ..self }
    }

    pub(crate) fn env(self, name: &str, value: impl AsRef<OsStr>) -> Builder {
        Builder { holder: self.holder.env(name, &value), origin: self.origin.env(name, &value), ..self }
    }

    /// Starts the broker and the origin, and makes the folder of the other node.
    #[track_caller]
    pub(crate) fn build(self) -> Cluster {
        let Some(broker) = Broker::start() else {
            return Cluster { origin: self.holder.build(), holder: None, broker: None };
        };
        let joins = |node: support::Builder| node.arg("--address").arg(broker.address());
        let origin = joins(self.origin.workers(0)).submits_to(QUEUE).start();
        if let Some(resources) = self.resources {
            // A task of the queue may ask for all that there is.
            let (address, cpus) = (broker.address(), self.workers.unwrap_or(1).to_string());
            origin.tracer(&["engine", "init", "--address", &address, "--queue", QUEUE]).success();
            let bound = ["--num-cpus", &cpus, "--resource", &resources];
            origin.tracer(&[&["engine", "queue", QUEUE, "--address", &address][..], &bound].concat()).success();
        }
        // Two heads of one user have one folder for spans too, unless they are told otherwise.
        let holder = joins(self.holder).arg("--queue").arg(QUEUE).arg("--shared-commands");
        let holder = holder.env("TRACER_SPANS_DIR", origin.spans_dir()).build();
        Cluster { origin, holder: Some(holder), broker: Some(broker) }
    }

    #[track_caller]
    pub(crate) fn start(self) -> Cluster {
        let (cluster, run) = self.try_start();
        run.success();
        cluster
    }

    #[track_caller]
    pub(crate) fn try_start(self) -> (Cluster, Run) {
        let cluster = self.build();
        let run = cluster.runner().start_head(&[]);
        (cluster, run)
    }
}

/// A node without workers, which has all the verbs of [`support::Cluster`] and submits to a queue, and behind it the node that runs what is in that queue.
/// Where there is no broker it is one head.
pub(crate) struct Cluster {
    origin: support::Cluster,
    holder: Option<support::Cluster>,
    #[expect(dead_code, reason = "it is there for as long as the nodes are")]
    broker: Option<Broker>,
}

impl Cluster {
    pub(crate) fn builder() -> Builder {
        Builder::default()
    }

    #[track_caller]
    pub(crate) fn traced() -> Cluster {
        Cluster::builder().hook(HOOK).start()
    }

    #[track_caller]
    pub(crate) fn untraced() -> Cluster {
        Cluster::builder().start()
    }

    /// Returns the node whose workers run what is submitted here.
    pub(crate) fn runner(&self) -> &support::Cluster {
        self.holder.as_ref().unwrap_or(&self.origin)
    }

    /// `tracer start --head` of the node with the workers.
    pub(crate) fn start_command(&self, further: &[&str]) -> Command {
        self.runner().start_command(further)
    }

    /// Returns what stands before each line that a worker writes for a function, at whoever follows it from the other node.
    pub(crate) fn prefix(&self, function: &str, pid: impl Display) -> String {
        match &self.holder {
            Some(holder) => {
                let node = holder.status()["node_id"].as_str().expect("it has a name").to_owned();
                format!("({function} pid={pid} node={node}) ")
            }
            None => self.origin.prefix(function, pid),
        }
    }

    #[track_caller]
    pub(crate) fn workers(&self) -> Vec<Value> {
        self.runner().workers()
    }

    #[track_caller]
    pub(crate) fn worker_pids(&self) -> Vec<u32> {
        self.runner().worker_pids()
    }
}

impl Deref for Cluster {
    type Target = support::Cluster;

    fn deref(&self) -> &support::Cluster {
        &self.origin
    }
}

/// A driver of the origin whose tasks go to the queue.
pub(crate) struct Driver(tracer::Driver);

impl Driver {
    pub(crate) fn connect(temp_dir: &Path) -> Result<Driver, DriverError> {
        tracer::Driver::connect(temp_dir).map(Driver)
    }

    pub(crate) fn remote(&mut self, target: &str) -> Remote<'_> {
        self.0.remote(target).queue(QUEUE)
    }
}

impl Deref for Driver {
    type Target = tracer::Driver;

    fn deref(&self) -> &tracer::Driver {
        &self.0
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut tracer::Driver {
        &mut self.0
    }
}
