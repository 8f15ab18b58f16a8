//! `trace list`: one line a trace. `trace stats`: one line a name.

use tracer_core::count::{Count, Elapsed};

use super::{BOLD, DIM, RED, clean, fit, pad, pad_left};
use crate::list::List;
use crate::stats::Stats;

/// From this width on there is room for whole ids.
const WIDTH_FOR_WHOLE_IDS: usize = 110;

/// Renders the list, the newest trace at the top. `now_unix_nano` is what ages are counted from.
pub fn list(list: &List, now_unix_nano: u64, width: usize, colour: bool) -> String {
    if list.rows.is_empty() && list.left_out == 0 {
        return match list.filtered_out {
            0 => "no traces\n".into(),
            others => format!("no trace matches; {} not\n", does(others)),
        };
    }
    let id_digits = if width >= WIDTH_FOR_WHOLE_IDS { 32 } else { list.id_digits };
    let mut lines = vec![["TRACE ID", "STARTED", "DURATION", "SPANS", "ERRORS", "ROOT"].map(String::from)];
    for row in &list.rows {
        lines.push([
            row.trace_id.to_string()[..id_digits].to_string(),
            age(now_unix_nano, row.start_unix_nano),
            Elapsed::from_nanos(row.duration_ns).to_string(),
            row.spans.to_string(),
            // A column of zeros hides the one figure that matters.
            if row.errors == 0 { "-".into() } else { row.errors.to_string() },
            clean(&row.title()),
        ]);
    }
    let columns: [usize; 5] = std::array::from_fn(|column| {
        lines.iter().map(|line| unicode_width::UnicodeWidthStr::width(line[column].as_str())).max().unwrap_or(0)
    });
    let taken = columns.iter().sum::<usize>() + 2 * columns.len();
    // However narrow the terminal is, a name is more use than its first letter.
    let root_width = width.saturating_sub(taken).max(12);
    let mut text = String::new();
    for (index, [id, started, duration, spans, errors, root]) in lines.iter().enumerate() {
        let (id, started) = (pad(id, columns[0]), pad_left(started, columns[1]));
        let (duration, spans) = (pad_left(duration, columns[2]), pad_left(spans, columns[3]));
        let (errors, root) = (pad_left(errors, columns[4]), fit(root, root_width));
        let line = match index.checked_sub(1).map(|row| &list.rows[row]) {
            None => BOLD.paint(&format!("{id}  {started}  {duration}  {spans}  {errors}  {root}"), colour),
            Some(row) => {
                let errors = if row.errors == 0 { DIM } else { RED }.paint(&errors, colour);
                format!("{id}  {started}  {duration}  {spans}  {errors}  {root}")
            }
        };
        text += line.trim_end();
        text.push('\n');
    }
    if list.left_out > 0 {
        text += &DIM.paint(&format!("{} not shown", Count(list.left_out, "older trace")), colour);
        text.push('\n');
    }
    if list.filtered_out > 0 {
        text += &DIM.paint(&format!("{} not match", does(list.filtered_out)), colour);
        text.push('\n');
    }
    text
}

fn does(traces: usize) -> String {
    format!("{} {}", Count(traces, "trace"), if traces == 1 { "does" } else { "do" })
}

/// Renders figures for each name, in the order that they have.
pub fn stats(stats: &Stats, width: usize, colour: bool) -> String {
    if stats.names == 0 {
        return "no spans\n".into();
    }
    let elapsed = |nanos| Elapsed::from_nanos(nanos).to_string();
    let mut lines = vec![["SELF", "COUNT", "P50", "P95", "MAX", "ERRORS", "NAME"].map(String::from)];
    lines.extend(stats.rows.iter().map(|row| {
        [
            elapsed(row.self_ns),
            row.count.to_string(),
            elapsed(row.p50_ns),
            elapsed(row.p95_ns),
            elapsed(row.max_ns),
            if row.errors == 0 { "-".into() } else { row.errors.to_string() },
            clean(&row.name),
        ]
    }));
    let columns: [usize; 6] = std::array::from_fn(|column| {
        lines.iter().map(|line| unicode_width::UnicodeWidthStr::width(line[column].as_str())).max().unwrap_or(0)
    });
    let name_width = width.saturating_sub(columns.iter().sum::<usize>() + 2 * columns.len()).max(12);
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let has_errors = index.checked_sub(1).map(|row| stats.rows[row].errors > 0);
        let mut written = String::new();
        for (column, width) in columns.iter().enumerate() {
            let cell = pad_left(&line[column], *width);
            let style = if has_errors == Some(true) { RED } else { DIM };
            let is_error_figure = column == 5 && has_errors.is_some();
            written += &if is_error_figure { style.paint(&cell, colour) } else { cell };
            written += "  ";
        }
        written += &fit(&line[6], name_width);
        text += &if index == 0 { BOLD.paint(&written, colour) } else { written };
        text.push('\n');
    }
    if stats.left_out > 0 {
        text += &DIM.paint(&format!("{} not shown", Count(stats.left_out, "further name")), colour);
        text.push('\n');
    }
    text
}

/// Returns how long ago, in whole seconds; a clock that was set back makes it now.
fn age(now_unix_nano: u64, then_unix_nano: u64) -> String {
    match now_unix_nano.saturating_sub(then_unix_nano) / 1_000_000_000 {
        0 => "now".into(),
        seconds => format!("{} ago", Elapsed(std::time::Duration::from_secs(seconds))),
    }
}
