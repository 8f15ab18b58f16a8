//! Processes and threads that spans come from, told apart also where ids were given twice.

use std::collections::{HashMap, HashSet};

use crate::span::{Attributes, Details, Span, process, resource};

/// No process of Linux has a higher id; those that share one get a number above.
pub(super) const PID_MAX: u32 = 1 << 22;

/// The processes that were met.
#[derive(Default)]
pub(super) struct Processes {
    pid_by_resource: HashMap<(Option<u32>, String), u32>,
    pid_by_process: HashMap<(Option<u32>, Option<String>), u32>,
    taken: HashSet<u32>,
    /// Each with its number, in the order in which they were met.
    pub(super) names: Vec<(u32, String)>,
    /// Threads that have a name, by the numbers of process and thread.
    pub(super) threads: HashMap<(u32, u64), String>,
}

impl Processes {
    /// Returns the numbers of the span's process and thread; a process whose spans name no thread has one of its own number.
    pub(super) fn thread(&mut self, span: &Span, details: &Details) -> (u32, u64) {
        let pid = self.pid(span, details);
        let tid = details.attributes.get("thread.id").and_then(serde_json::Value::as_u64).unwrap_or(pid.into());
        if let Some(name) = details.attributes.text("thread.name") {
            self.threads.entry((pid, tid)).or_insert_with(|| name.into());
        }
        (pid, tid)
    }

    /// Returns the number of the span's process: its id, unless another process in these spans has that too.
    fn pid(&mut self, span: &Span, details: &Details) -> u32 {
        let key = (span.pid_of_file(), details.resource.clone());
        if let Some(pid) = self.pid_by_resource.get(&key) {
            return *pid;
        }
        let attributes = resource(&details.resource).0;
        let process = process(&attributes, span.pid_of_file());
        let pid = match self.pid_by_process.get(&process) {
            Some(pid) => *pid,
            None => self.add(process, &attributes),
        };
        self.pid_by_resource.insert(key, pid);
        pid
    }

    fn add(&mut self, process: (Option<u32>, Option<String>), attributes: &Attributes) -> u32 {
        let own = process.0.filter(|pid| !self.taken.contains(pid));
        let further = || (PID_MAX + 1..).find(|pid| !self.taken.contains(pid)).unwrap_or(u32::MAX);
        let pid = own.unwrap_or_else(further);
        let service = attributes.text("service.name").unwrap_or("process");
        let name = process.0.map_or_else(|| service.to_owned(), |pid| format!("{service} (pid {pid})"));
        self.taken.insert(pid);
        self.names.push((pid, name));
        self.pid_by_process.insert(process, pid);
        pid
    }
}
