//! `tracer trace show --follow`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::now_unix_nano;
use tracer_core::exit;
use tracer_ipc::protocol::{Query, Reply, TaskFilter, TaskState};
use tracer_ipc::session::find_head;
use tracer_trace::render::Details;
use tracer_trace::{INDEX_BYTES, Index, LoadError, Span, SpanId, Trace, TraceId, render};

use super::SourceArgs;
use crate::cli::{CommandError, Format, report};

/// Interval at which new spans are looked for.
const INTERVAL: Duration = Duration::from_millis(100);
/// Asking the head takes at most this part of its time.
const QUERY_SHARE: u32 = 10;

/// Looking takes at most this part of the time.
const LOOK_SHARE: u32 = 4;

/// Shows a trace until it is complete. Without a running head it is as complete as it will ever be.
pub(super) fn run(source: &SourceArgs, trace: &str, details: &Details<'_>, format: Format) -> Result<(), CommandError> {
    let failed = |error: LoadError| CommandError::new(exit::FAILED, error);
    let (folder, head) = source.folder_and_head();
    let mut session = head.map(|head| head.session_dir);
    let mut index = Index::new(&folder, INDEX_BYTES);
    let (_, notices) = index.look(session.as_deref(), now_unix_nano()).map_err(failed)?;
    for notice in &notices {
        report::warning(&notice.to_string());
    }
    let mut seen = index.find(trace)?;
    let id = seen.id;

    let mut output = match format {
        Format::Text if report::is_terminal() && !report::is_dumb() => Output::Tree(report::Redrawn::default()),
        format => Output::Lines { format, printed: HashSet::new() },
    };
    let mut asker = Asker::default();
    let temp_dir = source.place.temp_dir();
    let mut is_first = true;
    loop {
        let begun = Instant::now();
        // Asked before it is looked, so that all of a task that has ended is seen.
        let is_waited_for = session.is_some() && asker.has_unended_task(&temp_dir, id);
        let (changed, _) = index.look(session.as_deref(), now_unix_nano()).map_err(failed)?;
        if changed.has(id, &index.parts_of(id)) || seen.running_count() > 0 {
            // Of files that are gone, what was seen of them stays.
            seen = index.find(&id.to_string()).unwrap_or(seen);
            output.show(&seen, details);
        } else if is_first {
            output.show(&seen, details);
        }
        is_first = false;
        let is_complete = seen.running_count() == 0 && !index.is_orphaned(id) && !is_waited_for;
        if is_complete || !is_head_there(&mut session, source) {
            output.finish(&seen, details);
            return Ok(());
        }
        std::thread::sleep(INTERVAL.max(begun.elapsed() * LOOK_SHARE));
    }
}

/// Returns whether there is still a head. Without one, what was running is not any more, or runs on in a process that nobody serves: it is looked
/// once again, for what was left.
fn is_head_there(session: &mut Option<PathBuf>, source: &SourceArgs) -> bool {
    let was_there = session.is_some();
    if find_head(&source.place.temp_dir()).is_err() {
        // What it left is finished here.
        let _ = source.head();
        *session = None;
    }
    was_there
}

/// Asks the head for tasks that have not ended.
#[derive(Default)]
struct Asker {
    driver: Option<Driver>,
    /// The last answer, and the time from which it is asked again.
    last: Option<(bool, Instant)>,
}

impl Asker {
    /// Returns whether the head has a task of the trace that has not ended. A head that does not answer has none.
    fn has_unended_task(&mut self, temp_dir: &Path, id: TraceId) -> bool {
        let now = Instant::now();
        if let Some((answer, _)) = self.last.filter(|(_, next)| now < *next) {
            return answer;
        }
        let answer = self.ask(temp_dir, id).unwrap_or_else(|_| {
            self.driver = None;
            false
        });
        self.last = Some((answer, Instant::now() + now.elapsed() * QUERY_SHARE));
        answer
    }

    fn ask(&mut self, temp_dir: &Path, id: TraceId) -> Result<bool, DriverError> {
        let driver = match &mut self.driver {
            Some(driver) => driver,
            None => self.driver.insert(Driver::connect(temp_dir)?),
        };
        let (states, trace_id) = (TaskState::without_outcome(), Some(id.to_string()));
        let which = TaskFilter { states, trace_id, ..TaskFilter::default() };
        let Reply::Tasks(list) = driver.query(&Query::Tasks { limit: 1, which, before: None })? else {
            return Ok(false);
        };
        Ok(!list.tasks.is_empty())
    }
}

/// Output of spans as they come.
enum Output {
    /// To a terminal: the tree, drawn again.
    Tree(report::Redrawn),
    /// To anything else: each span once, when it has ended.
    Lines { format: Format, printed: HashSet<SpanId> },
}

impl Output {
    fn show(&mut self, trace: &Trace, details: &Details<'_>) {
        match self {
            Output::Tree(screen) => {
                screen.draw(&render::show(&trace.on_one_clock(), details, report::width(), report::colours_on_stdout()))
            }
            Output::Lines { format, printed } => {
                let is_new = |span: &&Span| !span.is_running() && printed.insert(span.span_id);
                let mut new: Vec<&Span> = trace.spans.iter().filter(is_new).collect();
                new.sort_by_key(|span| span.end_unix_nano());
                let colour = report::colours_on_stdout();
                let line = |span: &&Span| match format {
                    Format::Text => render::ended(span, trace.start_unix_nano(), details, colour),
                    Format::Json => span.compact_text() + "\n",
                };
                let text: String = new.iter().map(line).collect();
                match format {
                    _ if text.is_empty() => {}
                    Format::Text => report::text(&text),
                    Format::Json => report::json(&text),
                }
            }
        }
    }

    fn finish(self, trace: &Trace, details: &Details<'_>) {
        if let Output::Tree(screen) = self {
            screen.finish(&render::show(&trace.on_one_clock(), details, report::width(), report::colours_on_stdout()));
        }
    }
}
