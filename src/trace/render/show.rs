//! `trace show`: the tree of a trace beside its waterfall, and what went wrong below.

use std::collections::HashMap;

use unicode_width::UnicodeWidthStr;

use super::{BOLD, DIM, GAP, GREEN, INDENT, NAME_MIN, RED, Style, clean, fit, pad_left, wrap};
use crate::count::{Count, Elapsed};
use crate::trace::{Item, Kind, Span, Status, Trace, Tree};

/// Bars of one process have one colour; a failed span's is red.
const PROCESS_STYLES: [Style; 5] = [Style("36"), Style("33"), Style("35"), Style("34"), Style("32")];

/// A narrower waterfall shows nothing.
const BAR_MIN: usize = 6;
/// Long names give way to a waterfall of this width.
const BAR_GOOD: usize = 16;
/// A wider waterfall only makes the eye travel.
const BAR_MAX: usize = 60;
/// Messages with more lines are cut; the whole text is in the report for programs.
const MESSAGE_LINES_MAX: usize = 12;

struct Line<'a> {
    gutter: String,
    /// `None` for a parent that is not there.
    span: Option<&'a Span>,
    name: String,
    offset: String,
    duration: String,
    note: String,
    style: Style,
}

/// Renders a trace in `width` columns.
pub fn show(trace: &Trace, width: usize, colour: bool) -> String {
    let tree = Tree::new(trace);
    let lines = lines(trace, &tree);
    let columns = Columns::new(&lines, width);
    let window = Window { start_unix_nano: trace.start_unix_nano(), duration_ns: trace.duration_ns() };
    let mut text = header(trace, width, colour);
    for line in &lines {
        text += columns.render(line, window, colour).trim_end();
        text.push('\n');
    }
    let failed: Vec<&Span> = lines.iter().filter_map(|line| line.span).filter(|span| has_failed(span)).collect();
    for span in failed {
        text.push('\n');
        text += &failure(span, trace, width, colour);
    }
    let remarks = remarks(trace, &tree);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        for line in wrap(&remark, width) {
            text += &DIM.paint(&line, colour);
            text.push('\n');
        }
    }
    text
}

/// Renders a span that has ended as a line of its own: when it ended after the start of its trace, how long it took, its name, and the rest.
pub fn ended(span: &Span, trace_start_unix_nano: u64, colour: bool) -> String {
    let end = span.end_unix_nano.unwrap_or(span.start_unix_nano);
    let after = format!("+{}", Elapsed::from_nanos(end.saturating_sub(trace_start_unix_nano)));
    let duration = Elapsed::from_nanos(span.duration_ns()).to_string();
    let mark = if has_failed(span) { "✗ " } else { "" };
    let pid = span.pid().map(|pid| format!("  pid {pid}")).unwrap_or_default();
    let description = span.status_description().filter(|_| has_failed(span)).unwrap_or_default();
    let description = if description.is_empty() { description } else { format!("  {}", clean(&description)) };
    format!(
        "{}  {}  {}{}{}{}\n",
        DIM.paint(&pad_left(&after, 9), colour),
        pad_left(&duration, 8),
        RED.paint(mark, colour),
        clean(&span.name),
        DIM.paint(&pid, colour),
        RED.paint(&description, colour)
    )
}

fn has_failed(span: &Span) -> bool {
    span.status == Status::Error
}

fn header(trace: &Trace, width: usize, colour: bool) -> String {
    let (id, spans) = (trace.id.to_string(), Count(trace.spans.len(), "span").to_string());
    let processes = Count(trace.process_count(), "process").to_string();
    let duration = Elapsed::from_nanos(trace.duration_ns()).to_string();
    let (outcome, style) = match (trace.error_count(), trace.running_count()) {
        (0, 0) => ("ok".to_string(), GREEN),
        (0, running) => (format!("{running} running"), BOLD),
        (errors, 0) => (Count(errors, "error").to_string(), RED),
        (errors, running) => (format!("{}, {running} running", Count(errors, "error")), RED),
    };
    let figures = format!("{spans}  {processes}  {duration}  ");
    let is_wide = "trace ".len() + id.len() + GAP + figures.width() + outcome.width() <= width;
    let separator = if is_wide { "  " } else { "\n  " };
    format!("trace {}{separator}{figures}{}\n", BOLD.paint(&id, colour), style.paint(&outcome, colour))
}

fn lines<'a>(trace: &'a Trace, tree: &Tree) -> Vec<Line<'a>> {
    let mut lines = Vec::with_capacity(tree.nodes.len());
    // For each depth on the way to the current node: whether that ancestor was the last of its siblings, and its process.
    let mut above: Vec<(bool, Option<u32>)> = Vec::new();
    let mut styles: HashMap<(Option<u32>, Option<String>), Style> = HashMap::new();
    for node in &tree.nodes {
        above.truncate(node.depth);
        let gutter = gutter(&above, node.depth, node.is_last);
        let parent_pid = above.last().and_then(|(_, pid)| *pid);
        let (index, is_circle) = match node.item {
            Item::Span(index) => (index, false),
            Item::Circle(index) => (index, true),
            Item::Missing(span_id) => {
                above.push((node.is_last, None));
                lines.push(Line {
                    gutter,
                    span: None,
                    name: format!("parent 0x{span_id} not found"),
                    offset: String::new(),
                    duration: String::new(),
                    note: String::new(),
                    style: DIM,
                });
                continue;
            }
        };
        let span = &trace.spans[index];
        let process = span.process();
        let pid = process.0;
        above.push((node.is_last, pid));
        let mut notes = Vec::new();
        if let Some(pid) = pid.filter(|pid| parent_pid != Some(*pid)) {
            notes.push(format!("pid {pid}"));
        }
        notes.extend(attempt(span).map(|attempt| format!("attempt {attempt}")));
        if span.is_running() {
            notes.push("running".into());
        }
        if is_circle {
            notes.push("its own ancestor".into());
        }
        let next_style = PROCESS_STYLES[styles.len() % PROCESS_STYLES.len()];
        let style = *styles.entry(process).or_insert(next_style);
        let duration = match span.end_unix_nano {
            Some(_) => Elapsed::from_nanos(span.duration_ns()).to_string(),
            None if span.is_running() => Elapsed::from_nanos(span.duration_ns()).to_string(),
            None => "no end".into(),
        };
        lines.push(Line {
            gutter,
            span: Some(span),
            name: clean(&span.name),
            offset: offset_text(span, trace),
            duration,
            note: notes.join(", "),
            style: if has_failed(span) { RED } else { style },
        });
    }
    lines
}

/// A second or later attempt at a task.
fn attempt(span: &Span) -> Option<u64> {
    if span.kind != Kind::Consumer {
        return None;
    }
    span.attribute("tracer.attempt")?.as_u64().filter(|attempt| *attempt > 1)
}

/// Of a deeper gutter only the nearest levels are made: a chain may be as long as the file.
const GUTTER_LEVELS_MAX: usize = 40;

pub(super) fn gutter(above: &[(bool, Option<u32>)], depth: usize, is_last: bool) -> String {
    // A root has no branch of its own, so that its children begin at the margin.
    let Some(levels) = depth.checked_sub(1) else { return String::new() };
    let drawn = levels.min(GUTTER_LEVELS_MAX);
    let mut gutter = if drawn < levels { "…  ".to_string() } else { String::new() };
    for (is_last, _) in &above[1 + levels - drawn..=levels] {
        gutter += if *is_last { "   " } else { "│  " };
    }
    gutter += if is_last { "└─ " } else { "├─ " };
    gutter
}

/// Cuts a gutter to `width` columns. Its end, next to the name, stays.
pub(super) fn fit_gutter(gutter: &str, width: usize) -> String {
    let columns = gutter.chars().count();
    if columns <= width {
        return gutter.into();
    }
    let kept: String = gutter.chars().skip(columns - width.saturating_sub(1)).collect();
    format!("…{kept}")
}

fn offset_text(span: &Span, trace: &Trace) -> String {
    match span.start_unix_nano - trace.start_unix_nano() {
        0 => "+0".into(),
        offset => format!("+{}", Elapsed::from_nanos(offset)),
    }
}

/// How wide each column is.
struct Columns {
    name: usize,
    offset: usize,
    duration: usize,
    bar: usize,
    has_notes: bool,
}

impl Columns {
    fn new(lines: &[Line<'_>], width: usize) -> Columns {
        let widest = |width_of: &dyn Fn(&Line<'_>) -> usize| lines.iter().map(width_of).max().unwrap_or(0);
        // A missing parent has no figures, so its text may run into their columns.
        let name = widest(&|line| if line.span.is_some() { label_width(line) } else { 0 });
        let offset = widest(&|line| line.offset.width());
        let duration = widest(&|line| line.duration.width());
        let note = widest(&|line| line.note.width());
        let figures = INDENT + GAP + offset + GAP + duration;
        let note_part = if note == 0 { 0 } else { GAP + note };
        let fixed = figures + GAP + note_part;
        let available = width.saturating_sub(fixed);
        let columns = |name: usize, bar: usize, has_notes| Columns { name, offset, duration, bar, has_notes };
        if available < NAME_MIN + BAR_MIN {
            // Too narrow for a waterfall, and perhaps for the notes.
            let available = width.saturating_sub(figures + note_part);
            if available >= NAME_MIN {
                return columns(name.min(available), 0, true);
            }
            return columns(name.min(width.saturating_sub(figures).max(NAME_MIN)), 0, false);
        }
        let name = name.min(available.saturating_sub(BAR_GOOD).max(NAME_MIN));
        let bar = (available - name).min(BAR_MAX);
        columns(name, bar, true)
    }

    fn render(&self, line: &Line<'_>, window: Window, colour: bool) -> String {
        let Some(span) = line.span else {
            return format!("{}{}", " ".repeat(INDENT), DIM.paint(&line.name, colour));
        };
        let mark = if has_failed(span) { "✗ " } else { "" };
        // A deep gutter leaves some letters of the name.
        let letters = line.name.width().min(NAME_MIN / 2);
        let gutter = fit_gutter(&line.gutter, self.name.saturating_sub(letters + mark.width()).max(4));
        let name = fit(&line.name, self.name.saturating_sub(gutter.width() + mark.width()));
        let filler = self.name.saturating_sub(gutter.width() + mark.width() + name.width());
        let mut text = format!(
            "{}{}{}{name}{}{}{}{}{}",
            " ".repeat(INDENT),
            DIM.paint(&gutter, colour),
            RED.paint(mark, colour),
            " ".repeat(filler + GAP),
            DIM.paint(&pad_left(&line.offset, self.offset), colour),
            " ".repeat(GAP),
            pad_left(&line.duration, self.duration),
            " ".repeat(GAP),
        );
        if self.bar > 0 {
            let bar = bar(span, window, self.bar);
            let drawn = bar.trim_start_matches(' ');
            let before = bar.len() - drawn.len();
            text += &" ".repeat(before);
            text += &line.style.paint(drawn, colour);
            if !line.note.is_empty() {
                text += &" ".repeat(self.bar - bar.width() + GAP);
            }
        }
        if self.has_notes {
            text += &DIM.paint(&line.note, colour);
        }
        text
    }
}

fn label_width(line: &Line<'_>) -> usize {
    let mark = if line.span.is_some_and(has_failed) { 2 } else { 0 };
    line.gutter.width() + mark + line.name.width()
}

/// The time that the waterfall shows. Taken once, because a trace looks at all its spans to say when it ended.
#[derive(Clone, Copy)]
struct Window {
    start_unix_nano: u64,
    duration_ns: u64,
}

/// Draws a span in `width` columns, to the eighth of one where Unicode has the block for it. There is always something to see.
fn bar(span: &Span, window: Window, width: usize) -> String {
    const FROM_THE_LEFT: [&str; 9] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
    let total = u128::from(window.duration_ns).max(1);
    let eighths = width * 8;
    let offset = span.start_unix_nano - window.start_unix_nano;
    let end = span.end_unix_nano.map_or(window.duration_ns, |_| offset + span.duration_ns());
    let position = |nanos: u64| {
        let position = (u128::from(nanos) * eighths as u128 + total / 2) / total;
        usize::try_from(position).unwrap_or(eighths)
    };
    let start = position(offset).min(eighths - 1);
    let end = if window.duration_ns == 0 { eighths } else { position(end).clamp(start + 1, eighths) };
    let (column, rest) = (start / 8, start % 8);
    let mut text = " ".repeat(column);
    if end <= (column + 1) * 8 {
        // Within one column: its width counts, not where in the column it is, unless it fills the right half.
        text +=
            if rest >= 4 && end == (column + 1) * 8 && end - start >= 3 { "▐" } else { FROM_THE_LEFT[end - start] };
        return text;
    }
    // On the left edge there are only blocks for the whole column, its right half and its last eighth.
    text += match rest {
        0..=2 => "█",
        3..=6 => "▐",
        _ => "▕",
    };
    text += &"█".repeat(end / 8 - column - 1);
    text += FROM_THE_LEFT[end % 8];
    text
}

/// What a failed span says: its exceptions, and its description where that adds something.
fn failure(span: &Span, trace: &Trace, width: usize, colour: bool) -> String {
    let mut title = format!("(span {}", span.span_id);
    if let Some(pid) = span.pid() {
        title += &format!(", pid {pid}");
    }
    title += &format!(", at {})", offset_text(span, trace));
    let name = fit(&clean(&span.name), width.saturating_sub("✗ ".width() + GAP + title.width()).max(NAME_MIN));
    let mut text = format!("{} {name}  {}\n", RED.paint("✗", colour), DIM.paint(&title, colour));

    let exceptions: Vec<(String, String)> = span
        .events()
        .into_iter()
        .filter(|event| event.name == "exception")
        .map(|event| {
            let attribute = |key| event.attributes.text(key).unwrap_or_default().to_string();
            (attribute("exception.type"), attribute("exception.message"))
        })
        .collect();
    let joined = |(kind, message): &(String, String)| match (kind.as_str(), message.as_str()) {
        ("", "") => "exception".to_string(),
        (kind, "") => kind.to_string(),
        ("", message) => message.to_string(),
        (kind, message) => format!("{kind}: {message}"),
    };
    let description = span.status_description().filter(|description| !description.trim().is_empty());
    let is_said_by_exception = description.as_ref().is_some_and(|description| {
        exceptions.iter().any(|exception| exception.1 == *description || joined(exception).ends_with(description))
    });
    let mut messages: Vec<String> = description.into_iter().filter(|_| !is_said_by_exception).collect();
    messages.extend(exceptions.iter().map(joined));
    if messages.is_empty() {
        messages.push("no description".into());
    }
    for message in messages {
        let wrapped: Vec<String> =
            message.lines().flat_map(|line| wrap(&clean(line), width.saturating_sub(4).max(NAME_MIN))).collect();
        for line in wrapped.iter().take(MESSAGE_LINES_MAX) {
            text += format!("    {line}").trim_end();
            text.push('\n');
        }
        if let Some(more) = wrapped.len().checked_sub(MESSAGE_LINES_MAX).filter(|more| *more > 0) {
            text += &DIM.paint(&format!("    … {}", Count(more, "more line")), colour);
            text.push('\n');
        }
    }
    text
}

fn remarks(trace: &Trace, tree: &Tree) -> Vec<String> {
    let mut remarks = Vec::new();
    if tree.missing().next().is_some() {
        remarks.push(
            "A parent that is not found has not ended yet, was not recorded, or is in another folder.".to_string(),
        );
    }
    if trace.duplicates > 0 {
        remarks.push(format!("{} left out.", Count(trace.duplicates, "duplicate record")));
    }
    remarks
}
