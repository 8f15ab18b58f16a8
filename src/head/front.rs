//! The HTTP API on the head's side: its port, its token, and the process that serves it.
//!
//! The head listens and never accepts. It hands the port to a process of its own ([`tracer_web::http_api`]), which is a driver like any
//! other: what HTTP clients do to that process reaches no memory and no file of the head's. When it dies it is started
//! again with the same port and token; who connects meanwhile waits.

mod keeping;

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

use tracer_core::address::LoopbackAddress;
use tracer_ipc::http_codes::Codes;
use tracer_ipc::http_place;
use tracer_ipc::http_place::HttpSettings;
use tracer_ipc::protocol::{HttpReport, PageCode};

use super::process::FrontProcess;

/// Pause before a process that has ended is started again.
const START_AGAIN: Duration = Duration::from_millis(500);
/// Time within which it must end when it is asked to: it answers who waits, and delivers its spans.
const END_LIMIT: Duration = Duration::from_secs(4);
/// The same, when the head is to end at once.
const FORCED_END_LIMIT: Duration = Duration::from_millis(500);

/// Reason why there is no HTTP API.
#[derive(Debug)]
pub(super) enum FrontError {
    /// Nobody can listen there.
    Listen { address: LoopbackAddress, source: io::Error },
    /// Its files in the session's folder cannot be written.
    Files { folder: PathBuf, source: io::Error },
}

impl fmt::Display for FrontError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontError::Listen { address, source } => {
                write!(f, "the HTTP API cannot listen on {address}: {source}")?;
                match source.kind() {
                    io::ErrorKind::AddrInUse => f.write_str(
                        "\n(hint: another program has this port, perhaps another head; `--http 127.0.0.1:0` takes a free one)",
                    ),
                    io::ErrorKind::PermissionDenied => {
                        f.write_str("\n(hint: ports below 1024 are for root; take another, such as 8265)")
                    }
                    _ => Ok(()),
                }
            }
            FrontError::Files { folder, source } => {
                write!(f, "the token of the HTTP API cannot be written to `{}`: {source}", folder.display())
            }
        }
    }
}

impl std::error::Error for FrontError {}

/// The share of the session's logs that its log may take.
pub(super) const LOG_SHARE: u64 = 16;

/// The HTTP API of this head.
pub(super) struct Front {
    /// None once it is ending.
    listener: Option<TcpListener>,
    address: LoopbackAddress,
    allows_commands: bool,
    is_metrics_only: bool,
    receives_otlp: bool,
    session_dir: PathBuf,
    process: Option<FrontProcess>,
    /// Time of its next start, if it does not run.
    start_at: Option<Instant>,
    restarts: u64,
    /// Description of its last end, if it has ended.
    last_end: Option<String>,
    /// The hooks that failed in it, in words.
    pub(super) hook_failures: Vec<String>,
    /// Codes of links to its page.
    codes: Codes,
    /// Time at which it is killed; set once it was asked to end.
    kill_at: Option<Instant>,
}

impl Front {
    /// Takes the port, which may be `kept` from the head before this one, and makes a token.
    pub(super) fn open(
        settings: HttpSettings,
        session_dir: &Path,
        kept: Option<TcpListener>,
    ) -> Result<Front, FrontError> {
        let listen_error = |source| FrontError::Listen { address: settings.address, source };
        let listener = match kept {
            Some(listener) => listener,
            None => TcpListener::bind(settings.address.get()).map_err(listen_error)?,
        };
        listener.set_nonblocking(true).map_err(listen_error)?;
        let bound = listener.local_addr().map_err(listen_error)?;
        let address = LoopbackAddress::try_from(bound).unwrap_or(settings.address);
        http_place::write(session_dir, &HttpSettings { address, ..settings })
            .map_err(|source| FrontError::Files { folder: session_dir.into(), source })?;
        Ok(Front {
            listener: Some(listener),
            address,
            allows_commands: settings.allows_commands,
            is_metrics_only: settings.is_metrics_only,
            receives_otlp: settings.receives_otlp,
            session_dir: session_dir.into(),
            process: None,
            start_at: Some(Instant::now()),
            restarts: 0,
            last_end: None,
            hook_failures: Vec::new(),
            codes: Codes::default(),
            kill_at: None,
        })
    }

    /// Returns its port, for the next head.
    pub(super) fn port(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Returns its process, if it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(FrontProcess::pid)
    }

    pub(super) fn report(&self) -> HttpReport {
        HttpReport {
            url: self.address.url(),
            token_path: http_place::token_path(&self.session_dir),
            viewer_token_path: http_place::viewer_token_path(&self.session_dir),
            is_metrics_only: self.is_metrics_only,
            metrics_token_path: http_place::metrics_token_path(&self.session_dir),
            receives_otlp: self.receives_otlp,
            otlp_token_path: http_place::otlp_token_path(&self.session_dir),
            otlp: None,
            allows_commands: self.allows_commands,
            pid: self.pid(),
            restarts: self.restarts,
        }
    }

    /// Makes a code for a link to the page; none if there is no page, or no random bits.
    pub(super) fn make_code(&mut self, may_cancel: bool) -> Option<PageCode> {
        if self.is_metrics_only || self.listener.is_none() {
            return None;
        }
        let code = self.codes.make(may_cancel, Instant::now()).ok()?;
        Some(PageCode { url: self.address.url(), code })
    }

    /// Takes a code, and returns whether its page may cancel tasks.
    pub(super) fn take_code(&mut self, code: &str) -> Option<bool> {
        self.codes.take(code, Instant::now())
    }

    /// Returns what a person should know.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let end = self.last_end.as_ref().map(|end| {
            let log = self.session_dir.join("logs/http.log");
            format!("the process of the HTTP API {end}, and is started again each time; see `{}`", log.display())
        });
        self.hook_failures.iter().cloned().chain(end)
    }

    /// Returns when it wants to be looked at next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.start_at.into_iter().chain(self.kill_at).min()
    }

    /// Asks the process to end, and kills it when it takes too long. True when it has ended. Its tokens are gone then, unless another program goes on with them.
    pub(super) fn end(&mut self, is_forced: bool, keeps_tokens: bool) -> bool {
        if self.listener.take().is_some() && !keeps_tokens {
            http_place::remove(&self.session_dir);
        }
        self.start_at = None;
        let Some(process) = &self.process else { return true };
        let now = Instant::now();
        match self.kill_at {
            None => {
                process.terminate();
                self.kill_at = Some(now + if is_forced { FORCED_END_LIMIT } else { END_LIMIT });
            }
            Some(kill_at) if kill_at <= now => {
                process.kill();
                // Its end wakes the loop.
                self.kill_at = Some(now + END_LIMIT);
            }
            Some(_) => {}
        }
        false
    }
}
