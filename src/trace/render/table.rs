//! `trace list`: one line a trace.

use super::{BOLD, DIM, RED, clean, fit, pad, pad_left};
use crate::count::{Count, Elapsed};
use crate::trace::List;

/// From this width on there is room for whole ids.
const WIDTH_FOR_WHOLE_IDS: usize = 110;

/// Renders the list, the newest trace at the top. `now_unix_nano` is what ages are counted from.
pub fn list(list: &List, now_unix_nano: u64, width: usize, colour: bool) -> String {
    if list.rows.is_empty() && list.left_out == 0 {
        return "no traces\n".into();
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
            clean(&row.root),
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
    text
}

/// How long ago, in whole seconds; a clock that was set back makes it now.
fn age(now_unix_nano: u64, then_unix_nano: u64) -> String {
    match now_unix_nano.saturating_sub(then_unix_nano) / 1_000_000_000 {
        0 => "now".into(),
        seconds => format!("{} ago", Elapsed(std::time::Duration::from_secs(seconds))),
    }
}
