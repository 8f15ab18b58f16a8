//! Libraries of modules that this node finds by name, for other nodes to compare theirs with: in the folders of its head, with the digests of those that
//! tasks of queues have named and of the small ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracer_core::task::{Envelope, TaskSpec};
use tracer_ipc::protocol::Digest;

use crate::digest;
use crate::message::{BundleMessage, ListedModules, TaskMessage};

/// Interval at which the folders are looked through.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// Time for which a library that was there is not looked for again.
const STILL_THERE: Duration = Duration::from_secs(1);
/// Bytes up to which a library is read although no task has named it yet.
const SMALL: u64 = 4 << 20;
/// Bytes that are read in one look of libraries that no task has named.
const READ_AT_ONCE: u64 = 8 << 20;
/// Names of modules of tasks that are remembered.
const USED_LIMIT: usize = 256;

/// Modules of a node.
#[derive(Debug)]
pub(crate) struct Modules {
    folders: Vec<PathBuf>,
    built_in: BTreeSet<String>,
    /// Modules that tasks of queues have named, each with when its library was seen last.
    used: BTreeMap<String, Option<Instant>>,
    /// Digests of libraries as they were when they were read.
    digests: BTreeMap<PathBuf, (State, Option<Digest>)>,
    looked: Option<Instant>,
}

/// Facts by which it is told whether a file has changed: device, inode, size, and times of change in seconds and nanoseconds.
type State = [u64; 7];

fn state(metadata: &Metadata) -> State {
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    let [modified, modified_nsec, changed, changed_nsec] = times.map(i64::cast_unsigned);
    [metadata.dev(), metadata.ino(), metadata.size(), modified, modified_nsec, changed, changed_nsec]
}

impl Modules {
    pub(crate) fn new(folders: Vec<PathBuf>, built_in: Vec<String>) -> Modules {
        let built_in = built_in.into_iter().collect();
        Modules { folders, built_in, used: BTreeMap::new(), digests: BTreeMap::new(), looked: None }
    }

    /// Returns the module that the message of a task or of a bundle names and that this node lacks, if so.
    pub(crate) fn lacked_by(&mut self, message: &[u8]) -> Option<String> {
        let module = module_of(message)?;
        let now = Instant::now();
        let seen = self.used.get(&module).copied().flatten();
        if self.built_in.contains(&module) || seen.is_some_and(|seen| now.duration_since(seen) < STILL_THERE) {
            return None;
        }
        let found = self.find(&module).is_some().then_some(now);
        self.note_used(&module, found);
        found.is_none().then_some(module)
    }

    /// Notes that the task of this envelope goes into a queue.
    pub(crate) fn note_shared(&mut self, envelope: &[u8]) {
        if let Some(module) = of_envelope(envelope).filter(|module| !self.used.contains_key(module)) {
            self.note_used(&module, None);
        }
    }

    fn note_used(&mut self, module: &str, seen: Option<Instant>) {
        if self.used.len() >= USED_LIMIT && !self.used.contains_key(module) {
            self.used.clear();
        }
        if self.used.insert(module.to_owned(), seen).is_none() {
            self.looked = None;
        }
    }

    fn find(&self, module: &str) -> Option<PathBuf> {
        let name = format!("lib{module}.so");
        self.folders.iter().map(|folder| folder.join(&name)).find(|library| library.is_file())
    }

    /// Returns the modules that there are, if it is time to look again.
    pub(crate) fn look(&mut self) -> Option<ListedModules> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_AGAIN) {
            return None;
        }
        self.looked = Some(Instant::now());
        let mut libraries = BTreeMap::new();
        for folder in &self.folders {
            for entry in folder.read_dir().into_iter().flatten().flatten() {
                let name = entry.file_name().into_string().unwrap_or_default();
                if let Some(module) = name.strip_prefix("lib").and_then(|name| name.strip_suffix(".so")) {
                    // The first folder counts.
                    libraries.entry(module.to_owned()).or_insert_with(|| entry.path());
                }
            }
        }
        self.digests.retain(|library, _| libraries.values().any(|known| known == library));
        let mut left = READ_AT_ONCE;
        let mut listed = BTreeMap::new();
        for (module, library) in libraries {
            let Ok(metadata) = library.metadata() else { continue };
            let is_used = self.used.contains_key(&module);
            listed.insert(module, self.digest(&library, &metadata, is_used, &mut left));
        }
        Some(ListedModules::of(listed, |module| self.used.contains_key(module)))
    }

    /// Returns the digest of a library as it is now, if it was read or is to be read.
    fn digest(&mut self, library: &Path, metadata: &Metadata, is_used: bool, left: &mut u64) -> Option<Digest> {
        let now = state(metadata);
        if let Some((_, digest)) = self.digests.get(library).filter(|(known, _)| *known == now) {
            return *digest;
        }
        if !is_used && metadata.len() > SMALL.min(*left) {
            return None;
        }
        *left = left.saturating_sub(metadata.len());
        let digest = digest::of_file(library).ok();
        self.digests.insert(library.to_owned(), (now, digest));
        digest
    }
}

/// Returns the module that the message of a task or of a bundle names.
fn module_of(message: &[u8]) -> Option<String> {
    if BundleMessage::is_one(message) {
        return of_envelope(BundleMessage::first_envelope(message)?);
    }
    of_envelope(TaskMessage::decode(message).ok()?.envelope)
}

fn of_envelope(envelope: &[u8]) -> Option<String> {
    match Envelope::decode(envelope).ok()?.spec {
        // A path is refused for what it is.
        TaskSpec::Function(function) if !tracer_core::module_name::is_path(function.module) => {
            Some(function.module.to_owned())
        }
        TaskSpec::Function(_) | TaskSpec::Command(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tracer_core::task::FunctionSpec;

    use super::*;
    use crate::record::Terms;

    fn message(module: &str) -> Vec<u8> {
        let mut envelope = Vec::new();
        Envelope::of(TaskSpec::Function(FunctionSpec::of_task(module, "function", &[0x90]))).encode(&mut envelope);
        let terms = Terms { at_most_once: false, crash_limit: 1 };
        TaskMessage { submitted_unix_nano: 0, terms, envelope: &envelope, digests: &[] }.encode()
    }

    #[test]
    fn libraries_are_listed_with_their_digests_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libmine.so");
        let mut modules = Modules::new(vec![folder.path().into()], vec!["demo".into()]);
        assert_eq!(modules.lacked_by(&message("mine")), Some("mine".into()));
        assert_eq!(modules.lacked_by(&message("demo")), None, "it is built in");
        assert_eq!(modules.lacked_by(&message("./libmine.so")), None, "the head says what it thinks of paths");
        assert_eq!(modules.look().unwrap().modules.len(), 0);
        assert!(modules.look().is_none(), "it was looked at just now");
        let mut digests = Vec::new();
        for contents in ["abc", "another"] {
            fs::write(&library, contents).unwrap();
            assert_eq!(modules.lacked_by(&message("mine")), None);
            modules.looked = None;
            let listed = modules.look().unwrap().modules;
            digests.push(digest::short(&listed["mine"].expect("it is small")));
        }
        assert_eq!(digests[0], "ba7816bf8f01", "as sha256sum has it");
        assert_ne!(digests[0], digests[1]);
        fs::write(folder.path().join("liblarge.so"), vec![0; SMALL as usize + 1]).unwrap();
        modules.looked = None;
        assert_eq!(modules.look().unwrap().modules["large"], None);
        modules.note_shared(TaskMessage::decode(&message("large")).unwrap().envelope);
        assert!(modules.look().unwrap().modules["large"].is_some(), "a task has named it");
    }
}
