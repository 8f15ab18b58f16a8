//! `trace show`: the tree of a trace beside its waterfall, and what went wrong below.
//!
//! Spans on the critical path have a mark before them. Where nothing ran for a large part of the trace, the waterfall is folded: that time
//! takes one column, which has the same sign in every line, and a line in the tree says how long it was. All other columns
//! stand for the same time.

use std::collections::{BTreeMap, HashMap, HashSet};

use tracer_core::count::{Count, Elapsed};
use unicode_width::UnicodeWidthStr;

use super::details::{self, Details};
use super::siblings::{self, Content, Row};
use super::{BOLD, DIM, GAP, GREEN, INDENT, NAME_MIN, RED, Style, clean, fit_middle, pad_left, wrap};
use crate::loaded::Trace;
use crate::log_records::LogRecord;
use crate::path::{Idle, PathFigures, idle};
use crate::span::{Kind, Span, Status};
use crate::tree::{Item, Tree};

/// Bars of one process have one colour; a failed span's is red.
const PROCESS_STYLES: [Style; 5] = [Style("36"), Style("33"), Style("35"), Style("34"), Style("32")];

/// A narrower waterfall shows nothing.
const BAR_MIN: usize = 6;
/// A waterfall of this width gives way to nothing but the need for room of a whole column of names.
const BAR_GOOD: usize = 8;
/// A name has so many columns, however deep it is, as far as the terminal has them.
const NAME_GOOD: usize = 24;
/// A wider waterfall only makes the eye travel.
const BAR_MAX: usize = 60;
/// Messages with more lines are cut; the whole text is in the report for programs.
const MESSAGE_LINES_MAX: usize = 12;
/// Time in which nothing runs is folded from this part of the trace on: one of so many.
const FOLD_PART: u64 = 8;
/// Nothing is folded unless that is so much of the trace in all: one of so many.
const FOLD_PART_IN_ALL: u64 = 3;
/// Sign in a folded column, and at both ends of the line that tells of it.
const FOLD_SIGN: char = '⋯';
/// Columns before the attributes and events of a span on a line of its own.
const ENDED_INDENT: usize = 21;
/// Before a span on the critical path.
const PATH_SIGN: &str = "* ";

struct Line<'a> {
    gutter: String,
    /// `None` for a parent that is not there, for time that is folded, and for equal siblings.
    span: Option<&'a Span>,
    /// The figures of equal siblings, in place of the waterfall.
    figures: Option<String>,
    has_children: bool,
    is_on_path: bool,
    name: String,
    offset: String,
    duration: String,
    note: String,
    style: Style,
}

/// Renders a trace in `width` columns.
pub fn show(trace: &Trace, details: &Details<'_>, width: usize, colour: bool) -> String {
    let tree = Tree::new(trace);
    let folds = folds(trace, &tree);
    // Of one span there is nothing to choose.
    let path = (trace.spans.len() > 1).then(|| PathFigures::new(trace, &tree));
    let rows = match details.folds {
        true => siblings::folded(trace, &tree, path.as_ref()),
        false => siblings::unfolded(&tree),
    };
    let lines = lines(trace, &rows, path.as_ref(), &folds);
    let columns = Columns::new(&lines, width);
    let axis = Axis::new(trace, &folds, columns.bar);
    let mut text = header(trace, width, colour);
    for line in &lines {
        text += columns.render(line, &axis, colour).trim_end();
        text.push('\n');
        if let Some(span) = line.span {
            let gutter = " ".repeat(INDENT) + &fit_gutter(&gutter_below(line), columns.name.max(width / 2));
            text += &details::below(span, details, trace.start_unix_nano(), &gutter, width, colour);
        }
    }
    text += &loose_records(&lines, details, trace.start_unix_nano(), width, colour);
    let failed: Vec<&Span> = lines.iter().filter_map(|line| line.span).filter(|span| has_failed(span)).collect();
    for span in failed {
        text.push('\n');
        text += &failure(span, trace, width, colour);
    }
    let is_folded = rows.iter().any(|row| matches!(row.content, Content::Many(_)));
    let remarks = remarks(trace, &tree, path.as_ref(), is_folded);
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

/// Renders the log records that stand below no span: those without one, and those of spans that are not shown.
fn loose_records(
    lines: &[Line<'_>],
    details: &Details<'_>,
    start_unix_nano: u64,
    width: usize,
    colour: bool,
) -> String {
    let Some(records) = details.logs else { return String::new() };
    let shown: HashSet<_> = lines.iter().filter_map(|line| line.span).map(|span| span.span_id).collect();
    let is_loose = |record: &&LogRecord| record.span_id.is_none_or(|id| !shown.contains(&id));
    let text = details::loose(records.iter().filter(is_loose), details, start_unix_nano, width, colour);
    match (text.is_empty(), records.is_empty()) {
        (true, true) => format!("\n{}\n", DIM.paint("No log records.", colour)),
        (true, false) => text,
        (false, _) => format!("\n{}\n{text}", DIM.paint("Log records without a span that is shown:", colour)),
    }
}

/// Renders a span that has ended as a line of its own: when it ended after the start of its trace, how long it took, its name, and the rest.
/// Lines for its attributes and events follow, if they are asked for.
pub fn ended(span: &Span, trace_start_unix_nano: u64, details: &Details<'_>, colour: bool) -> String {
    let end = span.end_unix_nano().unwrap_or(span.start_unix_nano);
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
        clean(span.name()),
        DIM.paint(&pid, colour),
        RED.paint(&description, colour)
    ) + &details::below(span, details, trace_start_unix_nano, &" ".repeat(ENDED_INDENT), usize::MAX, colour)
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

/// Returns what is folded of the time in which nothing ran.
fn folds(trace: &Trace, tree: &Tree) -> Vec<Idle> {
    let duration = |idle: &Idle| idle.end_unix_nano - idle.start_unix_nano;
    let in_all = trace.duration_ns();
    let mut idle = idle(trace, tree, (in_all / FOLD_PART).max(1));
    if idle.iter().map(duration).sum::<u64>() < in_all / FOLD_PART_IN_ALL {
        idle.clear();
    }
    idle
}

/// Returns a line for time that is folded, above that of the span that ends it.
fn fold_line(fold: &Idle, gutter: &str) -> Line<'static> {
    let duration = Elapsed::from_nanos(fold.end_unix_nano - fold.start_unix_nano);
    let what = if fold.is_queued { "queued" } else { "nothing runs" };
    // Past it, the branch goes on to the span.
    let above: String = gutter.chars().take(gutter.chars().count().saturating_sub(3)).collect();
    Line {
        gutter: if gutter.is_empty() { String::new() } else { above + "│  " },
        span: None,
        figures: None,
        has_children: false,
        is_on_path: false,
        name: format!("{FOLD_SIGN} {duration} {what} {FOLD_SIGN}"),
        offset: String::new(),
        duration: String::new(),
        note: String::new(),
        style: DIM,
    }
}

/// Returns a line for spans of one name, with the median and the longest of their durations.
fn group_line<'a>(trace: &Trace, row: &Row, spans: &[u32], gutter: String, path: Option<&PathFigures>) -> Line<'a> {
    let (p50, max) = siblings::p50_and_max(trace, spans);
    let (p50, max) = (Elapsed::from_nanos(p50), Elapsed::from_nanos(max));
    // There are two at least.
    let first = &trace.spans[spans[0] as usize];
    Line {
        gutter,
        span: None,
        figures: Some(format!("p50 {p50}, max {max}")),
        has_children: row.has_children,
        is_on_path: path.is_some_and(|path| spans.iter().any(|index| path.contains(*index as usize))),
        name: format!("{} × {}", spans.len(), clean(first.name())),
        offset: offset_text(first, trace),
        duration: String::new(),
        note: String::new(),
        style: DIM,
    }
}

/// Makes the gutter of what stands below a line and belongs to it.
fn gutter_below(line: &Line<'_>) -> String {
    let end = match line.gutter.strip_suffix("└─ ") {
        Some(above) => format!("{above}   "),
        None => line.gutter.replace("├─ ", "│  "),
    };
    end + if line.has_children { "│  " } else { "   " }
}

fn lines<'a>(trace: &'a Trace, rows: &[Row], path: Option<&PathFigures>, folds: &[Idle]) -> Vec<Line<'a>> {
    let mut lines = Vec::with_capacity(rows.len());
    // For each depth on the way to the current node: whether that ancestor was the last of its siblings, and its process.
    let mut above: Vec<(bool, Option<u32>)> = Vec::new();
    let mut styles: HashMap<&(Option<u32>, Option<String>), Style> = HashMap::new();
    for row in rows {
        above.truncate(row.depth);
        let gutter = gutter(&above, row.depth, row.is_last);
        let parent_pid = above.last().and_then(|(_, pid)| *pid);
        let (index, is_circle) = match &row.content {
            Content::One(Item::Span(index)) => (*index, false),
            Content::One(Item::Circle(index)) => (*index, true),
            Content::One(Item::Missing(span_id)) => {
                above.push((row.is_last, None));
                lines.push(Line {
                    gutter,
                    span: None,
                    figures: None,
                    has_children: row.has_children,
                    is_on_path: false,
                    name: format!("parent 0x{span_id} not found"),
                    offset: String::new(),
                    duration: String::new(),
                    note: String::new(),
                    style: DIM,
                });
                continue;
            }
            Content::Many(spans) => {
                above.push((row.is_last, None));
                lines.extend(
                    folds
                        .iter()
                        .filter(|fold| spans.contains(&(fold.before as u32)))
                        .map(|fold| fold_line(fold, &gutter)),
                );
                lines.push(group_line(trace, row, spans, gutter, path));
                continue;
            }
        };
        lines.extend(folds.iter().find(|fold| fold.before == index).map(|fold| fold_line(fold, &gutter)));
        let span = &trace.spans[index];
        let process = span.process();
        let pid = process.0;
        above.push((row.is_last, pid));
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
        let duration = match span.end_unix_nano() {
            Some(_) => Elapsed::from_nanos(span.duration_ns()).to_string(),
            None if span.is_running() => Elapsed::from_nanos(span.duration_ns()).to_string(),
            None => "no end".into(),
        };
        lines.push(Line {
            gutter,
            span: Some(span),
            figures: None,
            has_children: row.has_children,
            is_on_path: path.is_some_and(|path| path.contains(index)),
            name: clean(span.name()),
            offset: offset_text(span, trace),
            duration,
            note: notes.join(", "),
            style: if has_failed(span) { RED } else { style },
        });
    }
    lines
}

/// Returns the number of a second or later attempt at a task.
fn attempt(span: &Span) -> Option<u64> {
    if span.kind != Kind::Consumer {
        return None;
    }
    span.attribute("tracer.attempt")?.as_u64().filter(|attempt| *attempt > 1)
}

/// Levels of a gutter that are made, the nearest ones: a chain may be as long as the file.
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

/// Widths of the columns.
struct Columns {
    name: usize,
    offset: usize,
    duration: usize,
    bar: usize,
    note: usize,
    has_notes: bool,
    /// The most of the column of names that the gutter takes.
    gutter: usize,
}

impl Columns {
    fn new(lines: &[Line<'_>], width: usize) -> Columns {
        let widest = |width_of: &dyn Fn(&Line<'_>) -> usize| lines.iter().map(width_of).max().unwrap_or(0);
        // A missing parent has no figures, so its text may run into their columns.
        let has_columns = |line: &Line<'_>| line.span.is_some() || line.figures.is_some();
        let name = widest(&|line| if has_columns(line) { label_width(line) } else { 0 });
        let offset = widest(&|line| line.offset.width());
        let duration = widest(&|line| line.duration.width());
        let note = widest(&|line| line.note.width());
        let figures = INDENT + GAP + offset + GAP + duration;
        let note_part = if note == 0 { 0 } else { GAP + note };
        let fixed = figures + GAP + note_part;
        let available = width.saturating_sub(fixed);
        let own_name = widest(&|line| if has_columns(line) { label_width(line) - line.gutter.width() } else { 0 });
        let columns = |name: usize, bar: usize, has_notes| {
            // A deep gutter leaves the most of the names, and is cut at the same column in all lines.
            let gutter = name.saturating_sub(own_name.min(NAME_GOOD).min(name * 2 / 3)).max(4);
            Columns { name, offset, duration, bar, note, has_notes, gutter }
        };
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

    fn render(&self, line: &Line<'_>, axis: &Axis, colour: bool) -> String {
        let indent = if line.is_on_path { PATH_SIGN.to_string() } else { " ".repeat(INDENT) };
        if line.span.is_none() && line.figures.is_none() {
            let gutter = fit_gutter(&line.gutter, self.name.max(4));
            return format!("{indent}{}{}", DIM.paint(&gutter, colour), DIM.paint(&line.name, colour));
        }
        let mark = if line.span.is_some_and(has_failed) { "✗ " } else { "" };
        let gutter = fit_gutter(&line.gutter, self.gutter);
        let name = fit_middle(&line.name, self.name.saturating_sub(gutter.width() + mark.width()));
        let filler = self.name.saturating_sub(gutter.width() + mark.width() + name.width());
        let mut text = format!(
            "{indent}{}{}{name}{}{}{}",
            DIM.paint(&gutter, colour),
            RED.paint(mark, colour),
            " ".repeat(filler + GAP),
            DIM.paint(&pad_left(&line.offset, self.offset), colour),
            " ".repeat(GAP),
        );
        if let Some(figures) = &line.figures {
            let notes = if self.has_notes && self.note > 0 { GAP + self.note } else { 0 };
            // They begin where durations do, since they are some.
            if figures.width() <= self.duration + GAP + self.bar + notes {
                return text + &DIM.paint(figures, colour);
            }
            let gutter = fit_gutter(&gutter_below(line), self.gutter + 3);
            return format!("{}\n{}{gutter}{figures}", text.trim_end(), " ".repeat(INDENT));
        }
        text += &pad_left(&line.duration, self.duration);
        text += &" ".repeat(GAP);
        if let (Some(span), 1..) = (line.span, self.bar) {
            let bar = axis.bar(span);
            for part in bar.chunk_by(|left, right| axis.kind(*left) == axis.kind(*right)) {
                let drawn: String = part.iter().collect();
                text += &match axis.kind(part[0]) {
                    Cell::Blank => drawn,
                    Cell::Bar => line.style.paint(&drawn, colour),
                    Cell::Fold => DIM.paint(&drawn, colour),
                };
            }
            if !line.note.is_empty() {
                text += &" ".repeat(self.bar - bar.len() + GAP);
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

/// The time that the waterfall shows, and the columns that it takes.
struct Axis {
    start_unix_nano: u64,
    duration_ns: u64,
    /// Columns, those of the folds included.
    width: usize,
    /// Time of the trace that is not shown, and the column that stands for it.
    folds: Vec<Fold>,
}

struct Fold {
    /// Since the start of the trace.
    start_ns: u64,
    end_ns: u64,
    column: usize,
}

/// Content of one column of the waterfall.
#[derive(PartialEq, Eq)]
enum Cell {
    Blank,
    Bar,
    Fold,
}

impl Axis {
    fn new(trace: &Trace, folds: &[Idle], width: usize) -> Axis {
        let (start_unix_nano, duration_ns) = (trace.start_unix_nano(), trace.duration_ns());
        let mut axis = Axis { start_unix_nano, duration_ns, width, folds: Vec::new() };
        if width < BAR_MIN + folds.len() {
            return axis;
        }
        let since = |unix_nano: u64| unix_nano - start_unix_nano;
        let fold =
            |idle: &Idle| Fold { start_ns: since(idle.start_unix_nano), end_ns: since(idle.end_unix_nano), column: 0 };
        axis.folds = folds.iter().map(fold).collect();
        for number in 0..axis.folds.len() {
            let shown = axis.shown_before(axis.folds[number].start_ns);
            axis.folds[number].column = axis.eighths(shown).div_ceil(8) + number;
        }
        axis
    }

    /// Returns the time before a point of the trace that is not folded.
    fn shown_before(&self, since_start_ns: u64) -> u64 {
        let folded = self.folds.iter().map(|fold| since_start_ns.clamp(fold.start_ns, fold.end_ns) - fold.start_ns);
        since_start_ns - folded.sum::<u64>()
    }

    /// Returns how far right so much time is that is not folded, in eighths of a column, without the columns of the folds.
    fn eighths(&self, shown_ns: u64) -> usize {
        let total = u128::from(self.shown_before(self.duration_ns)).max(1);
        let eighths = (self.width - self.folds.len()) * 8;
        let position = (u128::from(shown_ns) * eighths as u128 + total / 2) / total;
        usize::try_from(position).unwrap_or(eighths)
    }

    /// Returns where a point of the trace is, in eighths of a column.
    fn position(&self, since_start_ns: u64) -> usize {
        let passed = self.folds.iter().take_while(|fold| fold.end_ns <= since_start_ns).count();
        let position = self.eighths(self.shown_before(since_start_ns)) + passed * 8;
        // A fold begins with a column, which can be after the time that it stands for.
        let first = passed.checked_sub(1).map_or(0, |last| (self.folds[last].column + 1) * 8);
        let last = self.folds.get(passed).map_or(self.width * 8, |next| next.column * 8);
        position.clamp(first.min(last), last)
    }

    /// Draws a span, to the eighth of a column where Unicode has the block for it. There is always something to see.
    fn bar(&self, span: &Span) -> Vec<char> {
        const FROM_THE_LEFT: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
        let offset = span.start_unix_nano - self.start_unix_nano;
        let end = span.end_unix_nano().map_or(self.duration_ns, |_| offset + span.duration_ns());
        let eighths = self.width * 8;
        let start = self.position(offset).min(eighths - 1);
        let end = if self.duration_ns == 0 { eighths } else { self.position(end).clamp(start + 1, eighths) };
        let (column, rest) = (start / 8, start % 8);
        let mut bar = vec![' '; column];
        if end <= (column + 1) * 8 {
            // Within one column: its width counts, not where in the column it is, unless it fills the right half.
            bar.push(match rest >= 4 && end == (column + 1) * 8 && end - start >= 3 {
                true => '▐',
                false => FROM_THE_LEFT[end - start],
            });
        } else {
            // On the left edge there are only blocks for the whole column, its right half and its last eighth.
            bar.push(match rest {
                0..=2 => '█',
                3..=6 => '▐',
                _ => '▕',
            });
            bar.resize(end / 8, '█');
            bar.extend(Some(FROM_THE_LEFT[end % 8]).filter(|&block| block != ' '));
        }
        for fold in &self.folds {
            bar.resize(bar.len().max(fold.column + 1), ' ');
            bar[fold.column] = FOLD_SIGN;
        }
        bar
    }

    fn kind(&self, cell: char) -> Cell {
        match cell {
            ' ' => Cell::Blank,
            FOLD_SIGN => Cell::Fold,
            _ => Cell::Bar,
        }
    }
}

/// Returns what a failed span says: its exceptions, and its description where that adds something.
fn failure(span: &Span, trace: &Trace, width: usize, colour: bool) -> String {
    let mut title = format!("(span {}", span.span_id);
    if let Some(pid) = span.pid() {
        title += &format!(", pid {pid}");
    }
    title += &format!(", at {})", offset_text(span, trace));
    let name = clean(span.name());
    let mut text = if "✗ ".width() + name.width() + GAP + title.width() <= width {
        format!("{} {name}  {}\n", RED.paint("✗", colour), DIM.paint(&title, colour))
    } else {
        // Nothing is cut here: this is where the whole name is.
        let name = wrap(&name, width.saturating_sub("✗ ".width()).max(NAME_MIN)).join("\n  ");
        let title: Vec<_> = wrap(&title, width.saturating_sub(4).max(NAME_MIN));
        let title: String = title.iter().map(|line| format!("    {}\n", DIM.paint(line, colour))).collect();
        format!("{} {name}\n{title}", RED.paint("✗", colour))
    };

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
        // A killed program says nothing, but what killed it is known.
        let kind = span.attributes().text("error.type").map(|kind| format!("error.type: {kind}"));
        messages.push(kind.unwrap_or_else(|| "no description".into()));
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

/// Says for each node by how much its spans are shifted.
fn clock_remarks(trace: &Trace) -> impl Iterator<Item = String> {
    let mut by_node: BTreeMap<(Option<String>, bool), (usize, u64)> = BTreeMap::new();
    for shift in trace.clock_shifts() {
        let (spans, most_ns) = by_node.entry((shift.node_id, shift.shift_ns < 0)).or_default();
        *spans += shift.spans;
        *most_ns = (*most_ns).max(shift.shift_ns.unsigned_abs());
    }
    by_node.into_iter().map(|((node, is_ahead), (spans, most_ns))| {
        let node = node.map_or("another node".to_owned(), |node| format!("node {}", clean(&node)));
        let (spans, by) = (Count(spans, "span"), Elapsed::from_nanos(most_ns));
        let (moved, clock) = if is_ahead { ("earlier", "ahead") } else { ("later", "behind") };
        format!("Shown {by} {moved} than stored: {spans} of {node}, whose clock was {clock}.")
    })
}

fn remarks(trace: &Trace, tree: &Tree, path: Option<&PathFigures>, is_folded: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(path) = path {
        let part = |nanos: u64, what: &str| (nanos > 0).then(|| format!("{} {what}", Elapsed::from_nanos(nanos)));
        let parts = [
            part(path.in_spans_ns, "in its spans"),
            part(path.queued_ns, "queued"),
            part(path.between_ns, "between spans"),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        remarks.push(format!("* The critical path, which the end of the trace waited for{parts}."));
    }
    if is_folded {
        remarks.push("N × stands for N spans of one name; --no-fold shows each.".to_string());
    }
    remarks.extend(clock_remarks(trace));
    if tree.missing().next().is_some() {
        remarks.push(
            "A parent that is not found has not ended yet, was not recorded, or is in another folder.".to_string(),
        );
    }
    let separated = trace.separated_count();
    if separated > 0 {
        let (has, its) = if separated == 1 { ("has", "its") } else { ("have", "their") };
        remarks.push(format!(
            "{} {has} an id of {its} own here: a span of another kind was written with the same one.",
            Count(separated, "span")
        ));
    }
    if trace.duplicates > 0 {
        remarks.push(format!("{} left out.", Count(trace.duplicates, "duplicate record")));
    }
    remarks
}
