//! Starts a program without a copy of the worker's memory map.
//!
//! The standard library forks where something is to be done between fork and exec, and a fork copies the page tables of a worker, most of which
//! are never used again. This one shares the memory with the child, which runs on a stack of its own while the parent waits
//! (`CLONE_VM | CLONE_VFORK`), until it executes the program or has failed. All that needs memory is made before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::{io, ptr};

use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use tracer_core::task::CommandSpec;
use tracer_ipc::spool::Spool;

use super::Surroundings;

/// Stack of the child: the few calls that it makes take a small part of it.
const STACK_BYTES: usize = 64 << 10;

thread_local! {
    /// The stack of this thread's children, which are never two at a time: none before the first.
    static STACK: Cell<Vec<u128>> = const { Cell::new(Vec::new()) };
}

/// Search path for programs when the environment has none.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Runs a file that may be executed and is of no known format, as shells and `execvp` have it.
const SHELL: &CStr = c"/bin/sh";

/// Steps of the child. It allocates, locks and logs nothing, because its memory is its parent's.
struct Plan {
    /// The files to try, in order.
    files: Vec<CString>,
    /// Null at the end.
    arguments: Vec<*const c_char>,
    /// The same for a shell: its name, room for the file, and the other arguments.
    shell_arguments: Vec<*const c_char>,
    /// Null at the end.
    environment: *const *const c_char,
    directory: CString,
    /// Its standard input; below zero for none.
    input: c_int,
    worker: Pid,
    spool: &'static Spool,
    /// Error with which the start of the program failed; 0 while it has not.
    errno: c_int,
}

/// Starts the program of a command: in a process group that it leads, with this input or none, and to die with this worker.
pub(super) fn spawn(
    spec: &CommandSpec<'_>,
    directory: &Path,
    input: Option<OwnedFd>,
    around: &Surroundings<'_>,
    spool: &'static Spool,
) -> io::Result<Pid> {
    let carried = around.carrier.to_env();
    let none = Inherited(Variables::default());
    let inherited = if spec.replaces_environment { &none } else { around.inherited };
    let said = |name: &str| {
        let set = spec.environment.iter().rfind(|(set, _)| *set == name.as_bytes());
        set.map(|(_, value)| *value).or_else(|| inherited.0.value(name.as_bytes()))
    };
    let exporting = around
        .receiver
        .map(|receiver| receiver.variables(&around.of.attributes(), around.of.is_sampled(), said))
        .unwrap_or_default();
    let exporting = exporting.iter().map(|(name, value)| (name.as_bytes(), value.as_slice()));
    let set: Vec<_> = spec.environment.iter().copied().chain(exporting).collect();
    let environment = Environment::new(inherited, &carried, &set)?;
    let files = files(spec.program, environment.path())?;
    let texts = std::iter::once(&spec.program).chain(&spec.arguments).map(|text| CString::new(*text));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let arguments: Vec<_> = texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
    let shell_arguments = [SHELL.as_ptr(), ptr::null()].into_iter().chain(arguments[1..].iter().copied()).collect();
    let mut plan = Plan {
        files,
        arguments,
        shell_arguments,
        environment: environment.pointers.as_ptr(),
        directory: CString::new(directory.as_os_str().as_bytes())?,
        input: input.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        worker: rustix::process::getpid(),
        spool,
        errno: 0,
    };
    forget_peak();
    let pid = clone(&mut plan)?;
    if plan.errno == 0 {
        return Ok(pid);
    }
    // It has ended without running anything.
    let _ = super::reap(pid);
    Err(io::Error::from_raw_os_error(plan.errno))
}

/// Variables: `NAME=value`, each followed by a zero, one after the other in one allocation.
#[derive(Default)]
struct Variables {
    pairs: Vec<u8>,
    /// Start of each, and length of its name.
    places: Vec<(usize, usize)>,
}

impl Variables {
    /// An error if one of them holds a zero.
    fn push(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        if let Some(text) = [name, value].into_iter().find(|text| text.contains(&0)) {
            CString::new(text)?;
        }
        self.places.push((self.pairs.len(), name.len()));
        for part in [name, b"=", value, b"\0"] {
            self.pairs.extend_from_slice(part);
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|&(begin, length)| &self.pairs[begin..begin + length])
    }

    fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let place = self.names().position(|known| known == name)?;
        let value = &self.pairs[self.places[place].0 + name.len() + 1..];
        value.split(|&byte| byte == 0).next()
    }

    /// To each, as long as nothing is pushed.
    fn pointers(&self) -> impl Iterator<Item = *const c_char> {
        self.places.iter().map(|&(begin, _)| self.pairs[begin..].as_ptr().cast())
    }
}

/// Part of their worker's environment that commands get. It is taken once, so that none depends on what was run before it.
pub(crate) struct Inherited(Variables);

impl Inherited {
    /// Takes the environment of this process.
    pub(crate) fn now() -> Inherited {
        let mut variables = Variables::default();
        for (name, value) in std::env::vars_os() {
            // They come from where nothing holds a zero.
            let _ = variables.push(name.as_bytes(), value.as_bytes());
        }
        Inherited(variables)
    }
}

/// The variables of a program.
struct Environment<'a> {
    inherited: &'a Variables,
    own: Variables,
    /// To each, and null at the end.
    pointers: Vec<*const c_char>,
}

impl Environment<'_> {
    /// Returns what is `inherited`, with what is `carried` in its place or removed, and what is `set` on top of both.
    fn new<'a>(
        inherited: &'a Inherited,
        carried: &[(&str, Option<String>)],
        set: &[(&[u8], &[u8])],
    ) -> io::Result<Environment<'a>> {
        let carried = carried.iter().map(|(name, value)| (name.as_bytes(), value.as_ref().map(String::as_bytes)));
        let set = set.iter().map(|&(name, value)| (name, Some(value)));
        let changes: BTreeMap<&[u8], Option<&[u8]>> = carried.chain(set).collect();
        let inherited = &inherited.0;
        let mut own = Variables::default();
        for (name, value) in &changes {
            value.map_or(Ok(()), |value| own.push(name, value))?;
        }
        let mut pointers = Vec::with_capacity(inherited.places.len() + own.places.len() + 1);
        let unchanged = inherited.names().zip(inherited.pointers()).filter(|(name, _)| !changes.contains_key(name));
        pointers.extend(unchanged.map(|(_, pointer)| pointer));
        pointers.extend(own.pointers());
        pointers.push(ptr::null());
        Ok(Environment { inherited, own, pointers })
    }

    /// Returns the folders in which programs are looked for.
    fn path(&self) -> &[u8] {
        let name = b"PATH";
        self.own.value(name).or_else(|| self.inherited.value(name)).unwrap_or(DEFAULT_PATH.as_bytes())
    }
}

/// Returns where a program may be: in the folders of `path`, unless its name says where.
fn files(program: &[u8], path: &[u8]) -> io::Result<Vec<CString>> {
    if program.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    if program.contains(&b'/') {
        return Ok(vec![CString::new(program)?]);
    }
    let files = path.split(|&byte| byte == b':').map(|folder| {
        // An empty one is the current folder.
        let separator: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        CString::new([folder, separator, program].concat())
    });
    Ok(files.collect::<Result<_, _>>()?)
}

/// Resets the peak of memory: the most that this process ever had counts as the child's too, because for a moment it has the same: from now on the most is what
/// there is now. Where the kernel cannot do that, a command's peak is at least its worker's.
fn forget_peak() {
    static KNOWN: AtomicI64 = AtomicI64::new(0);
    let peak = || {
        // SAFETY: all zeroes are a valid rusage, which the call fills in.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage.ru_maxrss
        }
    };
    if peak() > KNOWN.load(Ordering::Relaxed) {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        KNOWN.store(peak(), Ordering::Relaxed);
    }
}

/// Runs [`child`], and returns when it has ended or executes the program.
fn clone(plan: &mut Plan) -> io::Result<Pid> {
    let mut stack = STACK.take();
    stack.reserve_exact(STACK_BYTES / size_of::<u128>());
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: all zeroes are valid signal sets, which the calls fill in. The stack is this thread's, has its full size and is aligned; the child
    // is gone from it, and from `plan`, before `clone` returns, because this thread waits until then. While it runs, no signal handler of this
    // process can run on its stack: all signals are blocked, and it puts away the handlers before it unblocks them.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let top = stack.as_mut_ptr().add(stack.capacity());
        let pid = libc::clone(child, top.cast(), flags, ptr::from_mut(plan).cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        STACK.set(stack);
        Pid::from_raw(pid).filter(|_| pid > 0).ok_or(error)
    }
}

/// Runs in the child. It returns only if the program does not run.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: the plan of the parent, which waits. What is called is safe after a fork, and what it writes, `errno` and the plan, is this thread's
    // of the parent.
    unsafe {
        let plan = &mut *plan.cast::<Plan>();
        let failed = |call: c_int| (call < 0).then(|| *libc::__errno_location());
        plan.errno = match prepare(plan, failed) {
            Some(errno) => errno,
            None => execute(plan),
        };
    }
    127
}

/// Makes the process what a command is to be. What has failed, if something has.
///
/// # Safety
///
/// Called by the child alone.
unsafe fn prepare(plan: &Plan, failed: impl Fn(c_int) -> Option<c_int>) -> Option<c_int> {
    // SAFETY: calls with arguments that outlive them.
    unsafe {
        if let Some(errno) = failed(libc::setpgid(0, 0)) {
            return Some(errno);
        }
        // By the process itself, so that whoever comes after a worker that dies at once knows the group. It leads its own.
        plan.spool.note_command_group(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs());
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            return Some(error.raw_os_error());
        }
        // The worker may have died before the kernel knew that it matters.
        if rustix::process::getppid() != Some(plan.worker) {
            return Some(libc::ESRCH);
        }
        let nothing = if plan.input < 0 { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } else { -1 };
        let input = nothing.max(plan.input);
        // The copy stays open when the program is executed, as the one that it is made of does not.
        if let Some(errno) = failed(if input > 0 { libc::dup2(input, 0) } else { input }) {
            return Some(errno);
        }
        if nothing > 0 {
            libc::close(nothing);
        }
        if let Some(errno) = failed(libc::chdir(plan.directory.as_ptr())) {
            return Some(errno);
        }
        // No handler of the worker may run here; and a program expects to end by SIGPIPE, which Rust's programs ignore.
        let mut action: libc::sigaction = std::mem::zeroed();
        for signal in 1..=libc::SIGRTMAX() {
            if libc::sigaction(signal, ptr::null(), &mut action) != 0 {
                continue;
            }
            let is_handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
            if is_handled || signal == libc::SIGPIPE {
                action = std::mem::zeroed();
                libc::sigaction(signal, &action, ptr::null_mut());
            }
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
    None
}

/// Executes the first file that can be, and returns only if none can: why, as `execvp` has it.
///
/// # Safety
///
/// Called by the child alone.
unsafe fn execute(plan: &mut Plan) -> c_int {
    let mut reason = libc::ENOENT;
    let mut is_denied = false;
    for file in &plan.files {
        // SAFETY: the lists end with null, and all that they point to outlives the call; what `execve` leaves behind is `errno`.
        reason = unsafe {
            libc::execve(file.as_ptr(), plan.arguments.as_ptr(), plan.environment);
            if *libc::__errno_location() == libc::ENOEXEC {
                plan.shell_arguments[1] = file.as_ptr();
                libc::execve(SHELL.as_ptr(), plan.shell_arguments.as_ptr(), plan.environment);
            }
            *libc::__errno_location()
        };
        match reason {
            libc::EACCES => is_denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return reason,
        }
    }
    if is_denied { libc::EACCES } else { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_sets_comes_before_what_is_carried_and_that_before_what_is_inherited() {
        let environment = |inherited: &[(&str, &str)], carried: &[(&str, Option<&str>)], set: &[(&str, &str)]| {
            let mut variables = Variables::default();
            inherited.iter().try_for_each(|(name, value)| variables.push(name.as_bytes(), value.as_bytes())).unwrap();
            let carried: Vec<_> = carried.iter().map(|&(name, value)| (name, value.map(str::to_owned))).collect();
            let set: Vec<_> = set.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            let inherited = Inherited(variables);
            let environment = Environment::new(&inherited, &carried, &set).map_err(|error| error.kind())?;
            let (&end, pairs) = environment.pointers.split_last().unwrap();
            assert!(end.is_null());
            // SAFETY: each points to a text that ends with a zero, and what it is in lives.
            let pair = |&pair| unsafe { CStr::from_ptr(pair) }.to_str().unwrap().to_owned();
            Ok((pairs.iter().map(pair).collect::<Vec<_>>(), String::from_utf8(environment.path().to_vec()).unwrap()))
        };
        let inherited = [("A", "1"), ("TRACEPARENT", "old"), ("TRACESTATE", "old"), ("PATH", "/here"), ("EMPTY", "")];
        let carried = [("TRACEPARENT", Some("new")), ("TRACESTATE", None), ("BAGGAGE", Some("b=1"))];
        let found = environment(&inherited, &carried, &[("A", "2"), ("A", "3"), ("BAGGAGE", ""), ("PATH", "/there")]);
        let expected = ["EMPTY=", "A=3", "BAGGAGE=", "PATH=/there", "TRACEPARENT=new"].map(str::to_owned).to_vec();
        assert_eq!(found, Ok((expected, "/there".to_owned())));
        let found = environment(&inherited, &[], &[]).unwrap();
        assert_eq!((found.0[1].as_str(), found.1.as_str()), ("TRACEPARENT=old", "/here"));
        assert_eq!(environment(&[], &[], &[]), Ok((Vec::new(), DEFAULT_PATH.to_owned())));
        let refused = Err(io::ErrorKind::InvalidInput);
        assert_eq!(environment(&inherited, &[], &[("A\0", "1")]), refused);
        assert_eq!(environment(&inherited, &[], &[("A", "1\0")]), refused);
    }

    #[test]
    fn a_program_is_looked_for_in_the_folders_of_the_path_unless_its_name_says_where() {
        let found = |program: &str, path: &str| files(program.as_bytes(), path.as_bytes()).unwrap();
        assert_eq!(found("ls", "/bin::/usr/bin"), [c"/bin/ls".to_owned(), c"ls".to_owned(), c"/usr/bin/ls".to_owned()]);
        assert_eq!(found("./ls", "/bin"), [c"./ls".to_owned()]);
        assert_eq!(files(b"", b"/bin").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
