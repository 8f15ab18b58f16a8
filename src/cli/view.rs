//! `tracer view`.

use std::io::{self, BufRead};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::trace::SourceArgs;
use super::{CommandError, CommandResult, Format, FormatArgs, report};
use crate::exit;
use crate::http_api::LoopbackAddress;
use crate::json;
use crate::trace;
use crate::view::{LinkMaker, Viewer};

/// Show traces in a browser while they run
///
/// Serves a page on an address of this machine until Ctrl-C, with the spans of the span files and those that are open in the processes of
/// the head, if one runs. The link that is printed works once, within a minute; Enter prints another one.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tracer view\n  tracer view last\n  tracer view /data/spans --address 127.0.0.1:8000"
)]
pub(super) struct Args {
    /// A trace to begin with (its id, the beginning of its id, or `last`), or a folder of span files
    #[arg(value_name = "TRACE|FOLDER")]
    what: Option<String>,
    /// Address of this machine to listen on; with port 0 the system picks one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    address: LoopbackAddress,
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
    let failed = |error: io::Error| CommandError::new(exit::FAILED, format!("cannot serve the page: {error}"));
    let folder = args.what.as_deref().map(Path::new).filter(|what| what.is_dir());
    let view = match &args.what {
        Some(what) if folder.is_none() => format!("/trace/{}", find(args, what)?),
        _ => "/traces".to_owned(),
    };
    let (folder, temp_dir) = match folder {
        Some(folder) => (folder.to_owned(), None),
        None => (args.source.folder_and_head().0, Some(args.source.temp_dir())),
    };
    let viewer = Viewer::bind(args.address, folder.clone(), temp_dir).map_err(|error| {
        let address = args.address.get();
        CommandError::new(
            exit::FAILED,
            format!("cannot listen on {address}: {error}\n(hint: `--address 127.0.0.1:0` takes a free port)"),
        )
    })?;
    let links = viewer.link_maker();
    let link = links.link(&view).map_err(failed)?;
    match args.format.format {
        Format::Json => report::json(&json::line(&Page { link, url: links.url(), folder })),
        Format::Text => {
            report::text(&format!("traces of {} are at\n{link}\n", folder.display()));
            report::talk("the link works once, within a minute; Enter makes another one, Ctrl-C ends");
            make_links_on_enter(links, view);
        }
    }
    let (ended, end_tx) = UnixStream::pair().map_err(failed)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, end_tx.try_clone().map_err(failed)?).map_err(failed)?;
    }
    viewer.serve(ended).map_err(failed)?;
    Ok(exit::OK)
}

/// Returns the whole id of the trace that is meant.
fn find(args: &Args, what: &str) -> Result<trace::TraceId, CommandError> {
    Ok(args.source.load_with_running()?.find(what)?.id)
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
