//! `tracer view`.

use std::io::{self, BufRead};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tracer_client::driver::Driver;
use tracer_core::address::LoopbackAddress;
use tracer_core::exit;
use tracer_ipc::protocol::{PageCode, Query, Reply};
use tracer_trace::json;
use tracer_web::view::{LinkMaker, Viewer, link};

use super::trace::SourceArgs;
use super::{CommandError, CommandResult, Format, FormatArgs, report};

/// Show traces in a browser while they run
///
/// Prints a link to a page with the spans of the span files and those that are open in the processes of the head, if one runs. The link works once,
/// within a minute. A head that was started with --http serves the page; otherwise this command does, on an address of this machine until
/// Ctrl-C, and Enter prints another link.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tracer view\n  tracer view last --control\n  tracer view /data/spans --address 127.0.0.1:8000"
)]
pub(super) struct Args {
    /// A trace to begin with (its id, the beginning of its id, or `last`), or a folder of span files
    #[arg(value_name = "TRACE|FOLDER")]
    what: Option<String>,
    /// Let the page cancel tasks; without it the page only reads
    #[arg(long)]
    control: bool,
    /// Serve the page here, on this address of this machine, also if the head could; with port 0 the system picks one
    #[arg(long, value_name = "ADDRESS")]
    address: Option<LoopbackAddress>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Addresses of the page, for programs.
#[derive(serde::Serialize)]
struct Page {
    /// Works once, within a minute.
    link: String,
    url: String,
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> CommandResult {
    // A large trace or log is read for one answer.
    tracer_process::allocator::release_at_once();
    let failed = |error: io::Error| CommandError::new(exit::FAILED, format!("cannot serve the page: {error}"));
    let folder = args.what.as_deref().map(Path::new).filter(|what| what.is_dir());
    let view = match &args.what {
        Some(what) if folder.is_none() => format!("/trace/{}", find(args, what)?),
        _ => "/traces".to_owned(),
    };
    let (folder, temp_dir) = match folder {
        Some(folder) => (folder.to_owned(), None),
        None => {
            let (folder, head) = args.source.folder_and_head();
            let temp_dir = args.source.temp_dir();
            if head.is_some()
                && args.address.is_none()
                && let Some(code) = page_code(&temp_dir, args.control)
            {
                print(args, link(&code.url, &code.code, &view), code.url + "/", folder);
                return Ok(exit::OK);
            }
            (folder, Some(temp_dir))
        }
    };
    let address = args.address.unwrap_or_else(LoopbackAddress::any_port);
    let viewer = Viewer::bind(address, folder.clone(), temp_dir).map_err(|error| {
        let address = address.get();
        CommandError::new(
            exit::FAILED,
            format!("cannot listen on {address}: {error}\n(hint: `--address 127.0.0.1:0` takes a free port)"),
        )
    })?;
    let links = viewer.link_maker(args.control);
    print(args, links.link(&view).map_err(failed)?, links.url(), folder);
    if args.format.format == Format::Text {
        report::talk("the link works once, within a minute; Enter makes another one, Ctrl-C ends");
        make_links_on_enter(links, view);
    }
    let (ended, end_tx) = UnixStream::pair().map_err(failed)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, end_tx.try_clone().map_err(failed)?).map_err(failed)?;
    }
    viewer.serve(ended).map_err(failed)?;
    Ok(exit::OK)
}

/// Says where the page is.
fn print(args: &Args, link: String, url: String, folder: PathBuf) {
    match args.format.format {
        Format::Json => report::json(&json::line(&Page { link, url, folder })),
        Format::Text => report::text(&format!("traces of {} are at\n{link}\n", folder.display())),
    }
}

/// Asks the head for a code; none if it serves no page, is of a version without one, or has gone.
fn page_code(temp_dir: &Path, may_cancel: bool) -> Option<PageCode> {
    match Driver::connect(temp_dir).ok()?.query(&Query::MakePageCode { may_cancel }).ok()? {
        Reply::PageCode(code) => code,
        _ => None,
    }
}

/// Returns the whole id of the trace that is meant.
fn find(args: &Args, what: &str) -> Result<tracer_trace::TraceId, CommandError> {
    Ok(args.source.find(what, true)?.0.id)
}

/// Prints a new link for each line that is typed on a terminal.
fn make_links_on_enter(links: LinkMaker, view: String) {
    if !io::IsTerminal::is_terminal(&io::stdin()) {
        return;
    }
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(link) = line.ok().and_then(|_| links.link(&view).ok()) else { return };
            report::text(&format!("{link}\n"));
        }
    });
}
