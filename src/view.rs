//! The page that shows traces while they run: `tracer view`.
//!
//! ```text
//!   browser                          tracer view
//!   ┌──────────────────┐  files   ┌──────────────────────────────────────────┐
//!   │ page.js (Preact) │◀──────── │ page     built into the executable       │
//!   │                  │   JSON   │ answers  lists, columns, one span        │ reads   span files
//!   │ lists, bars      │◀──────── │ source   one Watch behind a lock         │◀─────── spools of the session
//!   │                  │  events  │          looks 10 times a second while   │
//!   │                  │◀──────── │          a page is open                  │
//!   └──────────────────┘          └──────────────────────────────────────────┘
//! ```
//!
//! It only reads, needs no head, and listens on loopback addresses. The page's files hold no data: whoever names this server in `Host` gets
//! them. All else needs the token of a viewer in `Authorization: Bearer`. There are no cookies, because every port of a machine shares them. A
//! link has a code in its fragment, which no request and no log contains; the page exchanges it for the token, once and within
//! [`LINK_TIME`]. Names, attributes and events are whatever a process wrote: the page makes text nodes of them only, and
//! the content security policy (`page`) forbids scripts from elsewhere and assignments of HTML.
//!
//! Nobody looks, nothing runs: the files are read when a page asks, and again only while one follows `events`.

mod answers;
mod columns;
mod links;
mod page;
mod questions;
mod server;
mod source;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::http_api::LoopbackAddress;
use links::Links;
use source::Source;

/// Time for which a link works.
pub const LINK_TIME: Duration = Duration::from_secs(60);

/// A viewer that listens and does not serve yet.
pub struct Viewer {
    listener: TcpListener,
    address: SocketAddr,
    links: Arc<Links>,
    source: Arc<Source>,
}

/// Makes links to the page of a viewer.
#[derive(Clone)]
pub struct LinkMaker {
    address: SocketAddr,
    links: Arc<Links>,
}

impl Viewer {
    /// Listens on `address`, for the span files in `folder` and what the head of `temp_dir` runs, if there is one that writes there.
    pub fn bind(address: LoopbackAddress, folder: PathBuf, temp_dir: Option<PathBuf>) -> io::Result<Viewer> {
        let listener = TcpListener::bind(address.get())?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let source = Arc::new(Source::new(folder, temp_dir));
        Ok(Viewer { listener, address, links: Arc::new(Links::default()), source })
    }

    /// Returns what makes links, also while the viewer serves.
    pub fn link_maker(&self) -> LinkMaker {
        LinkMaker { address: self.address, links: Arc::clone(&self.links) }
    }

    /// Serves until `ended` is readable.
    pub fn serve(self, ended: UnixStream) -> io::Result<()> {
        server::run(self.listener, self.address, self.links, self.source, ended)
    }
}

impl LinkMaker {
    /// Returns a link that works once, within [`LINK_TIME`], and leads to a view such as `/trace/4bf9…`.
    pub fn link(&self, view: &str) -> io::Result<String> {
        Ok(format!("http://{}/#code={}&to={view}", self.address, self.links.make()?))
    }

    /// Returns the page's address without a code.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}
