//! Private copies of the libraries of task modules, by content.
//!
//! A library can be built anew or overwritten at any time, and a process that has it mapped then runs into what is written there. So workers never
//! load a library from where it was found, but a copy, which nobody writes to:
//!
//! ```text
//!   <temp dir>/modules/          0700
//!     <16 digits>/               a version: a number made from the library's path and contents
//!       about.json               what it is a copy of
//!       lock                     held shared by flock by whoever submits tasks of this version
//!       o/r/g/n/lib<name>.so     the copy, and those of the libraries that it finds by `$ORIGIN`
//!     known/<16 digits>.json     the last version of the library at a path, with what `stat` said of its files
//! ```
//!
//! Whoever submits a task looks once whether the library is the known one, by device, inode, size and times of change, and makes a copy if it is
//! not. The task carries the version, so each attempt at it runs the same code. Equal contents are copied once.
//!
//! A file that is being written is waited for: it has to be a complete ELF file, and to have stood still for 50 ms. The head removes
//! copies ([`ModuleStore::prune`]) that no open task, living actor or connected driver needs and that are not the last of their library.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use tracer_core::task::ModuleVersion;

mod elf;

use elf::{ElfError, Library};

/// Longest wait for a file that is not complete, or that changes.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// A file that has changed is taken for complete when it has not been written to for so long.
const SETTLED_AFTER: Duration = Duration::from_millis(50);
/// Interval at which such a file is looked at again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The folders above a copy, so that a search path may begin with as many `$ORIGIN/..`.
const ORIGIN: &str = "o/r/g/n";
/// The most libraries that are copied for one version.
const FILES_LIMIT: usize = 64;

/// The copies of a head's place.
#[derive(Clone, Debug)]
pub struct ModuleStore {
    folder: PathBuf,
}

/// A version that does not go while this is held.
#[derive(Debug)]
pub struct Taken {
    /// The version, by content.
    pub version: ModuleVersion,
    /// Locked shared.
    _lock: File,
}

/// A version that is there.
#[derive(Clone, Debug)]
pub struct StoredModule {
    /// The copy of the library.
    pub library: PathBuf,
    about: About,
}

/// Origin of a version.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct About {
    /// The module's library, and then those that it finds by `$ORIGIN`.
    files: Vec<FileState>,
    build_id: String,
    /// True if something is found by `$ORIGIN` where no copy of it can be.
    is_bound_to_its_folder: bool,
}

/// The last version of the library at a path.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    version: String,
    files: Vec<FileState>,
}

/// A file, and what tells whether it has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    /// In nanoseconds since the Unix epoch.
    modified: i64,
    changed: i64,
}

impl FileState {
    /// Asks the system for the state of a file.
    pub fn of(path: &Path) -> io::Result<FileState> {
        Ok(FileState::from_metadata(path, &fs::metadata(path)?))
    }

    fn from_metadata(path: &Path, metadata: &fs::Metadata) -> FileState {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        FileState {
            path: path.into(),
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: nanos(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanos(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_as_it_was(&self) -> bool {
        FileState::of(&self.path).is_ok_and(|now| now == *self)
    }

    /// Time to wait until it counts as written.
    fn settles_in(&self) -> Option<Duration> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos();
        let written = u128::try_from(self.modified.max(self.changed)).ok()?;
        // What was written in the future was written by another clock.
        let ago = now.checked_sub(written)?;
        let left = SETTLED_AFTER.as_nanos().checked_sub(ago)?;
        Some(Duration::from_nanos(u64::try_from(left).ok()?)).filter(|left| !left.is_zero())
    }
}

/// Failure to copy a library.
#[derive(Debug)]
pub enum CopyError {
    /// The library was not complete for as long as it was waited for.
    Incomplete {
        /// The library that needs it.
        library: PathBuf,
        /// A clause that fits after "it".
        reason: String,
    },
    /// Something else with a file.
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Incomplete { library, reason } => {
                write!(f, "`{}` is not a complete library: it {reason}", library.display())?;
                let waited = WRITTEN_WITHIN.as_secs();
                write!(f, "\n(hint: it was waited for {waited} s; submit again when its build has ended)")
            }
            CopyError::Io { path, source } => write!(f, "`{}` cannot be copied or read: {source}", path.display()),
        }
    }
}

impl std::error::Error for CopyError {}

/// Outcome of one try to copy.
enum Try {
    Taken(Taken),
    /// The loader will say what is wrong with the file.
    NotForCopies,
    /// It is to be tried again: a clause that fits after "it".
    Again(String),
}

fn io_error<'a>(path: &'a Path) -> impl FnOnce(io::Error) -> CopyError + use<'a> {
    move |source| CopyError::Io { path: path.into(), source }
}

impl ModuleStore {
    /// Returns where the copies of a session's place are.
    pub fn of_session(session_dir: &Path) -> ModuleStore {
        let place = session_dir.parent().and_then(Path::parent).unwrap_or(session_dir);
        ModuleStore { folder: place.join("modules") }
    }

    /// Returns the version that the library at a path has now, which is copied if there is no copy of it. None for what is no library: the loader says
    /// so, and why.
    pub fn take(&self, library: &Path) -> Result<Option<Taken>, CopyError> {
        let deadline = Instant::now() + WRITTEN_WITHIN;
        loop {
            match self.try_take(library)? {
                Try::Taken(taken) => return Ok(Some(taken)),
                Try::NotForCopies => return Ok(None),
                Try::Again(reason) if Instant::now() >= deadline => {
                    return Err(CopyError::Incomplete { library: library.into(), reason });
                }
                Try::Again(_) => std::thread::sleep(LOOK_AGAIN_AFTER),
            }
        }
    }

    fn try_take(&self, library: &Path) -> Result<Try, CopyError> {
        let state = match FileState::of(library) {
            Ok(state) => state,
            // A file that is replaced is not there for a moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Try::Again("is not there".into())),
            Err(error) => return Err(io_error(library)(error)),
        };
        if let Some(version) = self.known(library).filter(|known| known.files.first() == Some(&state))
            && version.files[1..].iter().all(FileState::is_as_it_was)
            && let Some(taken) = version.version.parse().ok().and_then(|version| self.lock(version))
        {
            return Ok(Try::Taken(taken));
        }
        if let Some(left) = state.settles_in() {
            std::thread::sleep(left);
            return Ok(Try::Again("is still written to".into()));
        }
        for folder in [self.folder.clone(), self.folder.join("known")] {
            let made = DirBuilder::new().mode(0o700).recursive(true).create(&folder);
            made.map_err(io_error(&folder))?;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let new = Unfinished(self.folder.join(format!("new-{}-{number}", std::process::id())));
        let mut copying = Copying::new(&new.0);
        match copying.copy(&state, Path::new(ORIGIN))? {
            Copied::Whole => {}
            Copied::Foreign => return Ok(Try::NotForCopies),
            Copied::Changing(reason) => return Ok(Try::Again(reason)),
        }
        let version = copying.version(library);
        let about = copying.about;
        let files = about.files.clone();
        write_json(&new.0.join("about.json"), &about)?;
        let lock = new.0.join("lock");
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock).map_err(io_error(&lock))?;
        let folder = self.version_folder(version);
        // Somebody else may have made the same one, or it is there from before.
        if fs::rename(&new.0, &folder).is_err() && !folder.join("about.json").is_file() {
            let _ = fs::remove_dir_all(&folder);
            fs::rename(&new.0, &folder).map_err(io_error(&folder))?;
        }
        let known = self.known_path(library);
        let written = self.folder.join(format!("known/new-{}-{number}", std::process::id()));
        write_json(&written, &Known { version: version.to_string(), files })?;
        fs::rename(&written, &known).map_err(io_error(&known))?;
        // It may be removed before it is locked: then it is made again.
        Ok(self.lock(version).map_or_else(|| Try::Again("was removed".into()), Try::Taken))
    }

    /// Returns the last version of the library at a path, as it was when it was looked at last.
    fn known(&self, library: &Path) -> Option<Known> {
        let known: Known = serde_json::from_slice(&fs::read(self.known_path(library)).ok()?).ok()?;
        (!known.files.is_empty()).then_some(known)
    }

    fn known_path(&self, library: &Path) -> PathBuf {
        let path = library.as_os_str().as_bytes();
        let (low, high) = (crc32fast::hash(path), crc32fast::hash(&[b"known", path].concat()));
        self.folder.join(format!("known/{high:08x}{low:08x}.json"))
    }

    fn version_folder(&self, version: ModuleVersion) -> PathBuf {
        self.folder.join(version.to_string())
    }

    /// Keeps a version from being removed, if it is there.
    fn lock(&self, version: ModuleVersion) -> Option<Taken> {
        let lock = File::open(self.version_folder(version).join("lock")).ok()?;
        flock(&lock, FlockOperation::LockShared).ok()?;
        // Whoever removes it takes the lock first.
        (lock.metadata().ok()?.nlink() > 0).then_some(Taken { version, _lock: lock })
    }

    /// Returns a version, if there is a copy of it.
    pub fn find(&self, version: ModuleVersion) -> Option<StoredModule> {
        let folder = self.version_folder(version);
        let about: About = serde_json::from_slice(&fs::read(folder.join("about.json")).ok()?).ok()?;
        let name = about.files.first()?.path.file_name()?;
        let library = folder.join(ORIGIN).join(name);
        library.is_file().then_some(StoredModule { library, about })
    }

    /// Returns what spans and people call a version: the build id, if the linker noted one.
    pub fn name(&self, version: ModuleVersion) -> String {
        self.find(version).map_or_else(|| version.to_string(), |stored| stored.name(version))
    }

    /// Returns whether the file that a version is a copy of has other contents by now, as far as that is known.
    pub fn has_changed(&self, version: ModuleVersion) -> bool {
        let Some(stored) = self.find(version) else { return false };
        let Some(library) = stored.about.files.first() else { return false };
        let Ok(now) = FileState::of(&library.path) else { return false };
        match self.known(&library.path).filter(|known| known.files.first() == Some(&now)) {
            Some(known) => known.version != version.to_string(),
            None => now != *library,
        }
    }

    /// Removes the versions that are not needed, not locked, and not the last of a library that is there.
    pub fn prune(&self, is_needed: impl Fn(ModuleVersion) -> bool) {
        let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let mut last = Vec::new();
        for entry in entries(&self.folder.join("known")) {
            let known: Option<Known> =
                fs::read(entry.path()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            match known.filter(|known| known.files.first().is_some_and(|file| file.path.exists())) {
                Some(known) => last.push(known.version),
                None if is_old(&entry.path()) => drop(fs::remove_file(entry.path())),
                None => {}
            }
        }
        for entry in entries(&self.folder) {
            let name = entry.file_name().into_string().unwrap_or_default();
            let Ok(version) = name.parse::<ModuleVersion>() else {
                if name.starts_with("new-") && is_old(&entry.path()) {
                    let _ = fs::remove_dir_all(entry.path());
                }
                continue;
            };
            if is_needed(version) || last.contains(&name) {
                continue;
            }
            let lock = entry.path().join("lock");
            if let Ok(file) = File::open(&lock)
                && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                let _ = fs::remove_file(&lock);
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Returns whether nobody who made it works on it any more.
fn is_old(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > 4 * WRITTEN_WITHIN))
}

impl StoredModule {
    /// Returns where it was copied from.
    pub fn source(&self) -> &Path {
        &self.about.files[0].path
    }

    /// State of that file, as the system had it.
    pub fn source_state(&self) -> &FileState {
        &self.about.files[0]
    }

    /// Returns whether it works anywhere: it finds nothing by `$ORIGIN`.
    pub fn stands_alone(&self) -> bool {
        self.about.files.len() == 1 && !self.about.is_bound_to_its_folder
    }

    /// Returns whether it works only where it was copied from.
    pub fn is_bound_to_its_folder(&self) -> bool {
        self.about.is_bound_to_its_folder
    }

    /// Returns what spans and people call it: the build id, if the linker noted one.
    pub fn name(&self, version: ModuleVersion) -> String {
        if self.about.build_id.is_empty() { version.to_string() } else { self.about.build_id.clone() }
    }
}

/// Returns what spans and people call the library at a path as it is now; empty when it cannot be read.
pub fn build_id(library: &Path) -> String {
    let library = File::open(library).map_err(ElfError::Io).and_then(|file| Library::read(&file));
    library.map(|library| library.build_id).unwrap_or_default()
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CopyError> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::from).map_err(io_error(path))?;
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(&bytes)).map_err(io_error(path))
}

/// A folder that goes unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A version that is being copied.
struct Copying<'a> {
    folder: &'a Path,
    about: About,
    /// Checksum of each file, which tells the contents apart.
    checksums: Vec<u32>,
    /// Paths in the folder of the files that were copied.
    places: Vec<PathBuf>,
}

enum Copied {
    Whole,
    /// It is no library.
    Foreign,
    /// It changed meanwhile: a clause that fits after "it".
    Changing(String),
}

impl Copying<'_> {
    fn new(folder: &Path) -> Copying<'_> {
        let about = About { files: Vec::new(), build_id: String::new(), is_bound_to_its_folder: false };
        Copying { folder, about, checksums: Vec::new(), places: Vec::new() }
    }

    /// Copies a library to a folder of the new version, and then what it finds by `$ORIGIN`.
    fn copy(&mut self, library: &FileState, place: &Path) -> Result<Copied, CopyError> {
        self.copy_with(library, place, &[])
    }

    fn copy_with(
        &mut self,
        library: &FileState,
        place: &Path,
        inherited: &[(PathBuf, PathBuf)],
    ) -> Result<Copied, CopyError> {
        let source = &library.path;
        let folder = self.folder.join(place);
        DirBuilder::new().mode(0o700).recursive(true).create(&folder).map_err(io_error(&folder))?;
        let name = source.file_name().unwrap_or_default();
        let target = folder.join(name);
        let (copy, checksum) = copy_file(source, &target)?;
        if !library.is_as_it_was() {
            return Ok(Copied::Changing("is still written to".into()));
        }
        let about = match Library::read(&copy) {
            Ok(about) => about,
            Err(ElfError::Foreign) => return Ok(Copied::Foreign),
            Err(ElfError::Incomplete(reason)) => return Ok(Copied::Changing(reason)),
            Err(ElfError::Io(error)) => return Err(io_error(&target)(error)),
        };
        if self.about.files.is_empty() {
            self.about.build_id.clone_from(&about.build_id);
        }
        self.about.files.push(library.clone());
        self.checksums.push(checksum);
        self.places.push(place.join(name));
        let own_folder = source.parent().unwrap_or(Path::new("/"));
        let mut search = Vec::new();
        for entry in &about.search {
            let Some(rest) = entry.strip_prefix("$ORIGIN").or_else(|| entry.strip_prefix("${ORIGIN}")) else {
                continue;
            };
            let rest = rest.trim_start_matches('/');
            match normal(&place.join(rest)) {
                Some(at) => search.push((own_folder.join(rest), at)),
                None => self.about.is_bound_to_its_folder = true,
            }
        }
        search.extend_from_slice(inherited);
        for needed in about.needed.iter().filter(|needed| !needed.contains('/')) {
            let found = search.iter().find(|(folder, _)| folder.join(needed).is_file());
            let Some((folder, at)) = found else { continue };
            if self.places.contains(&at.join(needed)) {
                continue;
            }
            if self.places.len() == FILES_LIMIT {
                self.about.is_bound_to_its_folder = true;
                break;
            }
            let path = folder.join(needed);
            let state = FileState::of(&path).map_err(io_error(&path))?;
            if state.settles_in().is_some() {
                return Ok(Copied::Changing(format!("needs `{}`, which is still written to", path.display())));
            }
            let passed_on = if about.is_inherited { search.as_slice() } else { inherited };
            match self.copy_with(&state, &at.clone(), passed_on)? {
                Copied::Whole => {}
                Copied::Foreign => self.about.is_bound_to_its_folder = true,
                Copied::Changing(reason) => {
                    return Ok(Copied::Changing(format!("needs `{}`, which {reason}", path.display())));
                }
            }
        }
        Ok(Copied::Whole)
    }

    /// Returns the version: all that tells these files from others, and the path, so that two modules never share one.
    fn version(&self, library: &Path) -> ModuleVersion {
        let mut told = library.as_os_str().as_bytes().to_vec();
        told.extend(self.about.build_id.as_bytes());
        for ((file, place), checksum) in self.about.files.iter().zip(&self.places).zip(&self.checksums) {
            told.push(0);
            told.extend(place.as_os_str().as_bytes());
            told.extend(file.size.to_le_bytes());
            told.extend(checksum.to_le_bytes());
        }
        let high = crc32fast::hash(&told);
        told.push(1);
        told.reverse();
        let low = crc32fast::hash(&told);
        ModuleVersion::of_number(u64::from(high) << 32 | u64::from(low).max(1)).expect("it is not 0")
    }
}

/// Returns a path inside of a folder without `.` and `..`; none when it leads out of it.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

/// Copies a file. Returns the copy and the checksum of what is in it.
fn copy_file(source: &Path, target: &Path) -> Result<(File, u32), CopyError> {
    let mut from = File::open(source).map_err(io_error(source))?;
    let mut to = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target)
        .map_err(io_error(target))?;
    let mut checksum = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(io_error(source)(error)),
        };
        checksum.update(&buffer[..count]);
        to.write_all(&buffer[..count]).map_err(io_error(target))?;
    }
    Ok((to, checksum.finalize()))
}
