//! The file that lines are appended to, and the folder it is in.
//!
//! # Why no lock
//!
//! A file has one writer at a time by construction: `<pid>.json` belongs to the process of that pid while it lives, and to
//! the host that supervised it after it has been reaped. A later process with the same pid begins after that. So the
//! writer may cut a torn tail and rename the file without asking anybody.
//!
//! # Why whole lines
//!
//! A batch is handed to the kernel in one `write` on an `O_APPEND` descriptor, after which no SIGKILL can reach it. When
//! the kernel takes only a part (a full disk), the file is cut back to the last whole line. A tail that somebody left
//! torn nevertheless (loss of power) is cut off before the first append, and counted: ending the line instead would leave
//! text in the file that is not JSON, over which every later reader would stumble, while a half span has no value.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::retire::{LARGE_FILE, retire};
use crate::space::SpaceAhead;

/// Names the folder of the span files. Unset or empty means `/tmp/spans`.
pub const SPANS_DIR_VARIABLE: &str = "TRACER_SPANS_DIR";

const DEFAULT_DIR: &str = "/tmp/spans";
/// Extension of the files whose lines [`write_line`](crate::write_line) makes.
const EXTENSION: &str = "json";

/// Returns the folder of the span files: what [`SPANS_DIR_VARIABLE`] says, else `/tmp/spans`. A relative path is resolved against
/// the current folder, so that a later change of that does not move the files.
pub fn dir_from_env() -> PathBuf {
    dir_from(std::env::var_os(SPANS_DIR_VARIABLE).map(PathBuf::from))
}

fn dir_from(variable: Option<PathBuf>) -> PathBuf {
    let dir = variable.filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| PathBuf::from(DEFAULT_DIR));
    std::path::absolute(&dir).unwrap_or(dir)
}

/// Makes `dir` ready for span files: creates it and its parents with mode 0700 where they are missing, and checks that it is
/// a folder, not a symbolic link, of this process's own user, and writable.
///
/// Spans tell what programs do and with what, and `/tmp` belongs to everybody. So a folder that someone else has put
/// there is refused, by root too.
pub fn prepare_dir(dir: &Path) -> Result<(), SpanDirError> {
    open_dir(dir).map(drop)
}

/// [`prepare_dir`], returning the folder that was checked: everything after is done relative to this descriptor, so that the
/// path cannot be exchanged between the check and the use.
fn open_dir(dir: &Path) -> Result<OwnedFd, SpanDirError> {
    // `lstat("link/")` follows the link. Collecting the components drops a trailing slash.
    let dir: PathBuf = dir.components().filter(|component| *component != Component::CurDir).collect();
    let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
    let fail = |problem| SpanDirError { dir: dir.clone(), problem };
    if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)
        && error.kind() != io::ErrorKind::AlreadyExists
        && error.kind() != io::ErrorKind::NotADirectory
    {
        return Err(fail(DirProblem::NotCreated(error)));
    }
    let found = rustix::fs::lstat(&dir).map_err(|error| fail(DirProblem::NotCreated(error.into())))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => return Err(fail(DirProblem::Link)),
        _ => return Err(fail(DirProblem::NotAFolder)),
    }
    check_owner(found.st_uid).map_err(fail)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::open(&dir, flags, Mode::empty()) {
        Ok(folder) => folder,
        // It was a folder a moment ago.
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(fail(DirProblem::Link)),
        Err(error) => return Err(fail(DirProblem::NotUsable(error.into()))),
    };
    let opened = rustix::fs::fstat(&folder).map_err(|error| fail(DirProblem::NotUsable(error.into())))?;
    check_owner(opened.st_uid).map_err(fail)?;
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(&dir, access).map_err(|error| fail(DirProblem::NotUsable(error.into())))?;
    Ok(folder)
}

fn check_owner(owner: u32) -> Result<(), DirProblem> {
    let own = rustix::process::geteuid().as_raw();
    if owner == own { Ok(()) } else { Err(DirProblem::OtherOwner { owner, own }) }
}

/// A folder that span files cannot be written to. The message says which folder, what is wrong, and what to do.
#[derive(Debug)]
pub struct SpanDirError {
    dir: PathBuf,
    problem: DirProblem,
}

#[derive(Debug)]
enum DirProblem {
    NotCreated(io::Error),
    NotAFolder,
    Link,
    OtherOwner { owner: u32, own: u32 },
    NotUsable(io::Error),
}

impl SpanDirError {
    /// Returns the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl fmt::Display for SpanDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = self.dir.display();
        match &self.problem {
            DirProblem::NotCreated(error) => write!(f, "span folder `{dir}` cannot be created: {error}")?,
            DirProblem::NotAFolder => write!(f, "span folder `{dir}` is not a folder")?,
            DirProblem::Link => {
                write!(f, "span folder `{dir}` is a symbolic link, which somebody could point elsewhere")?
            }
            DirProblem::OtherOwner { owner, own } => {
                write!(f, "span folder `{dir}` belongs to user {owner}, but this process runs as user {own}")?;
            }
            DirProblem::NotUsable(error) => write!(f, "span folder `{dir}` cannot be written to: {error}")?,
        }
        write!(f, "\n(hint: set `{SPANS_DIR_VARIABLE}` to a folder of your own)")
    }
}

impl std::error::Error for SpanDirError {}

/// Rotation of a span file: its size, and how much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A file is rotated before it would grow beyond this many bytes. Only a single line that is longer makes a longer file.
    pub max_bytes: u64,
    /// Number of rotated files that are kept beside the current one, the newest as `<pid>.1.json`. Older ones are removed, and counted in
    /// [`Counts::files_removed`].
    pub keep: u32,
}

impl Default for Rotation {
    /// 256 MiB, and three rotated files: a process takes at most 1 GiB.
    fn default() -> Rotation {
        Rotation { max_bytes: 256 << 20, keep: 3 }
    }
}

/// The environment variable for [`Rotation::max_bytes`].
pub const MAX_BYTES_VARIABLE: &str = "TRACER_SPANS_MAX_BYTES";

impl Rotation {
    /// Returns the default, with the size that [`MAX_BYTES_VARIABLE`] says in bytes. What is no such number counts as not said; `tracer start`
    /// has refused it.
    pub fn from_env() -> Rotation {
        let said = std::env::var(MAX_BYTES_VARIABLE).ok().and_then(|text| text.parse().ok());
        let default = Rotation::default();
        Rotation { max_bytes: said.filter(|&bytes| bytes > 0).unwrap_or(default.max_bytes), ..default }
    }
}

/// Counts of what became of the lines, since the [`SpanFile`] was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes appended.
    pub bytes: u64,
    /// Appends that failed, wholly or in part.
    pub failures: u64,
    /// Lines given up, as told by [`SpanFile::count_dropped`].
    pub lines_dropped: u64,
    /// Torn last lines of somebody else that were cut off.
    pub torn_lines: u64,
    /// Full files that rotation removed.
    pub files_removed: u64,
}

/// `<folder>/<pid>.json`, or with another extension, opened at the first append.
///
/// A process that makes no spans leaves no file. When the file or its folder is removed while it is open, both are made
/// again. Dropping it loses nothing: it buffers nothing.
#[derive(Debug)]
pub struct SpanFile {
    dir: PathBuf,
    pid: u32,
    /// Extension of the names, without the dot.
    extension: Cow<'static, str>,
    rotation: Rotation,
    folder: OwnedFd,
    file: Option<OwnedFd>,
    /// The length to cut the file back to before the next append, when cutting failed after a partial write.
    torn_after: Option<u64>,
    space: SpaceAhead,
    counts: Counts,
}

impl SpanFile {
    /// Checks the folder as [`prepare_dir`] does. Creates no file.
    pub fn try_new(dir: &Path, pid: u32, rotation: Rotation) -> Result<SpanFile, SpanDirError> {
        SpanFile::try_with_extension(dir, pid, EXTENSION, rotation)
    }

    /// [`try_new`](Self::try_new) for lines in another format: the file is `<pid>.<extension>`, and rotated ones are
    /// `<pid>.<n>.<extension>`.
    pub fn try_with_extension(
        dir: &Path,
        pid: u32,
        extension: impl Into<Cow<'static, str>>,
        rotation: Rotation,
    ) -> Result<SpanFile, SpanDirError> {
        let folder = open_dir(dir)?;
        Ok(SpanFile {
            dir: dir.to_path_buf(),
            pid,
            extension: extension.into(),
            rotation,
            folder,
            file: None,
            torn_after: None,
            space: SpaceAhead::default(),
            counts: Counts::default(),
        })
    }

    /// Returns the path of the current file.
    pub fn path(&self) -> PathBuf {
        self.dir.join(self.file_name(0))
    }

    /// Returns the pid in the name.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Counts of the lines so far, by what became of them.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts lines that the caller had for this file and gave up.
    pub fn count_dropped(&mut self, lines: u64) {
        self.counts.lines_dropped += lines;
    }

    /// Appends `lines`, which is empty or ends in a line feed, in one write unless the file has to be rotated amid them.
    ///
    /// On return the lines are with the kernel: a SIGKILL cannot reach them, a loss of power can.
    /// On failure a prefix of whole lines may be in the file; [`AppendError::consumed`] says how long it is. The caller
    /// may append the rest later, or drop it and say so with [`count_dropped`](Self::count_dropped).
    ///
    /// # Panics
    ///
    /// If `lines` does not end in a line feed.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), AppendError> {
        assert!(lines.last().is_none_or(|&byte| byte == b'\n'), "lines given to a span file end in a line feed");
        let mut consumed = 0;
        while consumed < lines.len() {
            let result = self.append_some(&lines[consumed..], &mut consumed);
            if let Err(problem) = result {
                self.counts.failures += 1;
                return Err(AppendError { path: self.path(), consumed, problem });
            }
        }
        Ok(())
    }

    /// Closes the file. A later [`append`](Self::append) opens it again. Nobody else may append to it meanwhile.
    pub fn close(&mut self) {
        drop(self.take_file());
    }

    /// Takes the file out, to be closed.
    fn take_file(&mut self) -> Option<OldFile> {
        // A tail that could not be cut off is, when the file is opened again.
        self.torn_after = None;
        let space = std::mem::take(&mut self.space);
        self.file.take().map(|file| OldFile { file, space })
    }

    /// Appends as many of `lines` as the current file has room for, after rotating it if that is none.
    fn append_some(&mut self, lines: &[u8], consumed: &mut usize) -> Result<(), AppendProblem> {
        let size = self.ready_file()?;
        let room = self.rotation.max_bytes.saturating_sub(size);
        let fits = if lines.len() as u64 <= room {
            lines.len()
        } else {
            lines[..room as usize].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
        };
        let batch = match fits {
            0 if size > 0 => return self.rotate(),
            0 => &lines[..=lines.iter().position(|&byte| byte == b'\n').expect("`append` checked the last byte")],
            fits => &lines[..fits],
        };
        let file = self.file.as_ref().expect("`ready_file` opened it");
        self.space.take(file, size, batch.len());
        let (written, result) = write_whole(file, batch);
        let whole = batch[..written].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if whole < written {
            let good = size + whole as u64;
            self.torn_after = rustix::fs::ftruncate(file, good).is_err().then_some(good);
        }
        *consumed += whole;
        self.counts.bytes += whole as u64;
        result.map_err(AppendProblem::Io)
    }

    /// Sees to it that the file is open, linked in its folder, and ends in a whole line. Returns its size.
    fn ready_file(&mut self) -> Result<u64, AppendProblem> {
        if let Some(file) = &self.file {
            let found = rustix::fs::fstat(file)?;
            if found.st_nlink > 0 {
                let Some(good) = self.torn_after else {
                    return Ok(found.st_size as u64);
                };
                rustix::fs::ftruncate(file, good)?;
                self.torn_after = None;
                return Ok(good);
            }
            // Somebody removed the file, and perhaps the folder. Lines appended to it now would be seen by nobody.
            self.file = None;
            self.space = SpaceAhead::default();
            self.torn_after = None;
            self.folder = open_dir(&self.dir).map_err(AppendProblem::Dir)?;
        }
        let flags =
            OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = |folder: &OwnedFd, name| rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR);
        let file = match open(&self.folder, self.file_name(0)) {
            Err(Errno::NOENT) => {
                // The folder was removed.
                self.folder = open_dir(&self.dir).map_err(AppendProblem::Dir)?;
                open(&self.folder, self.file_name(0))?
            }
            Err(Errno::LOOP) => return Err(AppendProblem::NotOurs),
            file => file?,
        };
        let found = rustix::fs::fstat(&file)?;
        let is_regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_regular || found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(AppendProblem::NotOurs);
        }
        let size = found.st_size as u64;
        let good = end_of_last_line(&file, size)?;
        if good < size {
            rustix::fs::ftruncate(&file, good)?;
            self.counts.torn_lines += 1;
        }
        self.file = Some(file);
        Ok(good)
    }

    /// `<pid>.json` becomes `<pid>.1.json`, after that has become `<pid>.2.json`, and so on up to the first number that is
    /// free. So the numbers have no gap, even after a crash amid the renaming. Blocks of large files are freed in the background.
    fn rotate(&mut self) -> Result<(), AppendProblem> {
        let full = self.take_file();
        let keep = self.rotation.keep;
        if keep == 0 {
            rustix::fs::unlinkat(&self.folder, self.file_name(0), AtFlags::empty())?;
            self.counts.files_removed += 1;
            self.retire(full);
            return Ok(());
        }
        let mut free = 1;
        while free <= keep && self.exists(free)? {
            free += 1;
        }
        let mut oldest = None;
        if free > keep {
            // A file that is open is not freed before it is closed.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            oldest = rustix::fs::openat(&self.folder, self.file_name(keep), flags, Mode::empty()).ok();
            rustix::fs::unlinkat(&self.folder, self.file_name(keep), AtFlags::empty())?;
            self.counts.files_removed += 1;
            free = keep;
        }
        self.retire((full, oldest));
        for number in (0..free).rev() {
            let (from, to) = (self.file_name(number), self.file_name(number + 1));
            rustix::fs::renameat(&self.folder, from, &self.folder, to)?;
        }
        Ok(())
    }

    fn retire(&self, files: impl Send + 'static) {
        if self.rotation.max_bytes >= LARGE_FILE {
            retire(files);
        }
    }

    fn exists(&self, number: u32) -> Result<bool, AppendProblem> {
        match rustix::fs::statat(&self.folder, self.file_name(number), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn file_name(&self, number: u32) -> String {
        match number {
            0 => format!("{}.{}", self.pid, self.extension),
            number => format!("{}.{number}.{}", self.pid, self.extension),
        }
    }
}

/// A file that nothing more is appended to. Dropped, it gives back the space that it has ahead, and is closed.
struct OldFile {
    file: OwnedFd,
    space: SpaceAhead,
}

impl Drop for OldFile {
    fn drop(&mut self) {
        if let Ok(found) = rustix::fs::fstat(&self.file) {
            self.space.give_back(&self.file, found.st_size as u64);
        }
    }
}

/// Writes until everything is written or an error comes. Returns how much was written in either case.
fn write_whole(file: &OwnedFd, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(file, &bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(error) => return (written, Err(error.into())),
        }
    }
    (written, Ok(()))
}

/// Returns where the last whole line of the file ends: the offset after its last line feed, or 0.
fn end_of_last_line(file: &OwnedFd, size: u64) -> Result<u64, Errno> {
    let mut block = [0; 4096];
    let mut end = size;
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let wanted = (end - start) as usize;
        let mut filled = 0;
        while filled < wanted {
            match rustix::io::pread(file, &mut block[filled..wanted], start + filled as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(at) = block[..wanted].iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Lines that could not be appended. The message says which file, and why.
#[derive(Debug)]
pub struct AppendError {
    path: PathBuf,
    consumed: usize,
    problem: AppendProblem,
}

#[derive(Debug)]
enum AppendProblem {
    Io(io::Error),
    Dir(SpanDirError),
    NotOurs,
}

impl From<Errno> for AppendProblem {
    fn from(error: Errno) -> AppendProblem {
        AppendProblem::Io(error.into())
    }
}

impl AppendError {
    /// Count of the bytes of the lines handed over that are in the file nevertheless: whole lines, from the first.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            AppendProblem::Io(error) => write!(f, "span file `{path}` cannot be written: {error}"),
            AppendProblem::Dir(error) => error.fmt(f),
            AppendProblem::NotOurs => write!(
                f,
                "span file `{path}` is not a regular file of this user, so nothing is written to it\n(hint: remove it)"
            ),
        }
    }
}

impl std::error::Error for AppendError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_means_the_default_folder() {
        assert_eq!(dir_from(None), Path::new("/tmp/spans"));
        assert_eq!(dir_from(Some(PathBuf::new())), Path::new("/tmp/spans"));
        assert_eq!(dir_from(Some("/elsewhere".into())), Path::new("/elsewhere"));
        assert!(dir_from(Some("relative".into())).is_absolute());
    }
}
