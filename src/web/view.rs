//! The page that shows traces while they run: `tracer view`.
//!
//! ```text
//!   browser                          tracer view
//!   ┌──────────────────┐  files   ┌──────────────────────────────────────────┐
//!   │ page.js (Preact) │◀──────── │ page     built into the executable       │
//!   │                  │   JSON   │ answers  lists, columns, one span        │ reads   span files
//!   │ lists, bars      │◀──────── │ source   one Index behind a lock         │◀─────── spools of the session
//!   │                  │  events  │          looks 10 times a second while   │
//!   │                  │◀──────── │          a page is open                  │
//!   └──────────────────┘          └──────────────────────────────────────────┘
//! ```
//!
//! The same questions are answered by the HTTP API of a head ([`crate::http_api`]), if it has one; `Traces` answers them in both.
//!
//! The server of `tracer view` needs no head, and listens on loopback addresses. The page's files hold no data: whoever names this server in `Host` gets
//! them. All else needs the token of a viewer in `Authorization: Bearer`. There are no cookies, because every port of a machine shares them. A
//! link has a code in its fragment, which no request and no log contains; the page exchanges it for the token, once and within
//! [`LINK_TIME`]. Names, attributes and events are whatever a process wrote: the page makes text nodes of them only, and
//! the content security policy (`page`) forbids scripts from elsewhere and assignments of HTML.
//!
//! A viewer's token reads; that of a link that was made to control also cancels tasks. Nobody looks, nothing runs: the index of the files is made when a
//! page asks, follows the files while one follows `events`, and is given up ten minutes after the last look.

mod answers;
mod changes;
mod chosen_rows;
mod cluster;
mod columns;
mod history;
mod inside;
mod links;
mod page;
mod questions;
mod server;
mod source;
mod summary;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use answers::{READERS, Traces, file_answer, read_code, token_answer};
use links::Links;
pub(crate) use page::{add_headers, find as find_file};
use server::Server;
pub(crate) use source::Session;
use tracer_core::address::LoopbackAddress;

/// Time for which a link works.
pub const LINK_TIME: Duration = tracer_ipc::http_codes::CODE_TIME;

/// A viewer that listens and does not serve yet.
pub struct Viewer {
    listener: TcpListener,
    address: SocketAddr,
    links: Arc<Links>,
    server: Server,
}

/// Makes links to the page of a viewer.
#[derive(Clone)]
pub struct LinkMaker {
    address: SocketAddr,
    links: Arc<Links>,
    may_cancel: bool,
}

impl Viewer {
    /// Listens on `address`, for the span files in `folder` and what the head of `temp_dir` runs, if there is one that writes there.
    pub fn bind(address: LoopbackAddress, folder: PathBuf, temp_dir: Option<PathBuf>) -> io::Result<Viewer> {
        let listener = TcpListener::bind(address.get())?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let links = Arc::new(Links::default());
        let server = Server::new(address, Arc::clone(&links), folder, temp_dir);
        Ok(Viewer { listener, address, links, server })
    }

    /// Returns what makes links, also while the viewer serves: to a page that may cancel tasks, or to one that only reads.
    pub fn link_maker(&self, may_cancel: bool) -> LinkMaker {
        LinkMaker { address: self.address, links: Arc::clone(&self.links), may_cancel }
    }

    /// Serves until `ended` is readable.
    pub fn serve(self, ended: UnixStream) -> io::Result<()> {
        server::run(self.listener, self.server, ended)
    }
}

impl LinkMaker {
    /// Returns a link that works once, within [`LINK_TIME`], and leads to a view such as `/trace/4bf9…`.
    pub fn link(&self, view: &str) -> io::Result<String> {
        Ok(link(&format!("http://{}", self.address), &self.links.make(self.may_cancel)?, view))
    }

    /// Returns the page's address without a code.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

/// Returns a link with a code to a view of the page that is served at a URL.
pub fn link(url: &str, code: &str, view: &str) -> String {
    format!("{url}/#code={code}&to={view}")
}
