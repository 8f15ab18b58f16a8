//! `tracer trace show --follow`.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::SourceArgs;
use crate::cli::{CommandError, Format, report};
use crate::driver::{Driver, DriverError};
use crate::exit;
use crate::protocol::{TaskFilter, TaskPages};
use crate::session::find_head;
use crate::trace::render::Details;
use crate::trace::{Live, LoadError, Loaded, Notice, Span, SpanId, Tail, Trace, TraceId, render};
use tracer_core::clock::now_unix_nano;

/// Interval at which new spans are looked for.
const INTERVAL: Duration = Duration::from_millis(100);
/// Asking the head takes at most this part of its time.
const QUERY_SHARE: u32 = 10;

/// Shows a trace until it is complete. Without a running head it is as complete as it will ever be.
pub(super) fn run(source: &SourceArgs, trace: &str, details: &Details<'_>, format: Format) -> Result<(), CommandError> {
    let failed = |error: LoadError| CommandError::new(exit::FAILED, error);
    let (folder, head) = source.folder_and_head();
    let mut live = head.map(|head| Live::new(&head.session_dir));
    let mut tail = Tail::new(&folder);
    // The spools before the files, here and below: what is written in between is then in both, and not in neither.
    let look = live.as_mut().map(|live| live.look(now_unix_nano(), |_| true)).unwrap_or_default();
    let (written, notices) = read(&mut tail).map_err(failed)?;
    for notice in &notices {
        report::warning(&notice.to_string());
    }
    let mut loaded = Loaded::new(&folder, written.clone(), Vec::new());
    loaded.add(look.spans.into_iter().map(|live| live.span));
    let id = loaded.find(trace)?.id;
    // What was seen in a spool is seen anew each time.
    let mut loaded = Loaded::new(&folder, written, Vec::new());

    let mut output = match format {
        Format::Text if report::is_terminal() && !report::is_dumb() => Output::Tree(report::Redrawn::default()),
        format => Output::Lines { format, printed: HashSet::new() },
    };
    let mut asker = Asker::default();
    let temp_dir = source.place.temp_dir();
    loop {
        // Asked before it is looked, so that all of a task that has ended is seen.
        let is_waited_for = live.is_some() && asker.has_unended_task(&temp_dir, id);
        let look = live.as_mut().map(|live| live.look(now_unix_nano(), |other| other == id)).unwrap_or_default();
        let (new, _) = read(&mut tail).map_err(failed)?;
        loaded.add(new);
        let written = loaded.traces.iter().find(|trace| trace.id == id).cloned();
        let mut seen = written.unwrap_or(Trace { id, spans: Vec::new(), duplicates: 0 });
        seen.add(look.spans.into_iter().map(|live| live.span));
        let is_complete = seen.running_count() == 0 && look.orphaned == 0 && !is_waited_for;
        output.show(&seen, details);
        if is_complete || !is_head_there(&mut live, source) {
            output.finish(&seen, details);
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Reads the folder; one that does not exist yet holds nothing yet.
fn read(tail: &mut Tail) -> Result<(Vec<Span>, Vec<Notice>), LoadError> {
    match tail.read() {
        Err(LoadError::Missing { .. }) => Ok(Default::default()),
        read => read,
    }
}

/// Returns whether there is still a head. Without one, what was running is not any more, or runs on in a process that nobody serves: it is looked
/// once again, for what was left.
fn is_head_there(live: &mut Option<Live>, source: &SourceArgs) -> bool {
    let was_there = live.is_some();
    if find_head(&source.place.temp_dir()).is_err() {
        // What it left is finished here.
        let _ = source.head();
        *live = None;
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
        let id = id.to_string();
        let mut pages = TaskPages::new(usize::MAX, TaskFilter::default());
        while let Some(tasks) = driver.next_tasks(&mut pages)? {
            if tasks.iter().any(|task| task.ended_unix_nano.is_none() && task.trace_id.as_deref() == Some(&*id)) {
                return Ok(true);
            }
        }
        Ok(false)
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
