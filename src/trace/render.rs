//! Traces as text for people, in columns that fit a terminal.
//!
//! Pure functions from values to text: width, colour and the time of day are arguments. A width of [`usize::MAX`] means that nothing is
//! cut, which is right when the output is not a terminal. Names come from files that anyone may have written, so characters that
//! would steer a terminal are escaped.

mod check;
mod details;
mod open;
mod show;
mod siblings;
mod table;

pub use check::{check, diff, junit};
pub use details::Details;
pub use open::open;
pub use show::{ended, show};
pub use table::{list, stats};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns before a line of a tree.
const INDENT: usize = 2;
/// Columns between two columns.
const GAP: usize = 2;
/// However narrow the terminal is, so much of a name is shown.
const NAME_MIN: usize = 16;

/// Colours and weights, or nothing at all.
#[derive(Clone, Copy)]
struct Style(&'static str);

const BOLD: Style = Style("1");
const DIM: Style = Style("2");
const RED: Style = Style("31");
const GREEN: Style = Style("32");

impl Style {
    fn paint(self, text: &str, colour: bool) -> String {
        if colour && !text.is_empty() { format!("\x1b[{}m{text}\x1b[0m", self.0) } else { text.into() }
    }
}

/// Returns one line without anything that steers a terminal.
pub(super) fn clean(text: &str) -> String {
    tracer_core::escape::line(text).into_owned()
}

/// Makes any text a line of at most `width` columns that does not steer a terminal.
pub fn one_line(text: &str, width: usize) -> String {
    fit(&clean(text), width)
}

/// Cuts a clean text to `width` columns, the last of which says so.
fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut fitted = String::new();
    let mut columns = 0;
    for c in text.chars() {
        columns += c.width().unwrap_or(0);
        // The last column is for the ellipsis.
        if columns >= width {
            break;
        }
        fitted.push(c);
    }
    if width > 0 {
        fitted.push('…');
    }
    fitted
}

/// Cuts a clean text to `width` columns in its middle, so that names which differ at their ends stay different.
fn fit_middle(text: &str, width: usize) -> String {
    if text.width() <= width || width < 3 {
        return fit(text, width);
    }
    let mut end = String::new();
    let mut columns = 0;
    for c in text.chars().rev() {
        columns += c.width().unwrap_or(0);
        if columns > (width - 1) / 2 {
            break;
        }
        end.insert(0, c);
    }
    // With the ellipsis, which takes the last column of the start.
    let start = fit(text, width - end.width());
    start + &end
}

/// Fills a text up with spaces on its right.
fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// Fills a text up with spaces on its left.
fn pad_left(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// Breaks a clean text into lines of at most `width` columns, at spaces where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.trim_end();
    while rest.width() > width {
        let mut columns = 0;
        let end = rest.char_indices().find(|(_, c)| {
            columns += c.width().unwrap_or(0);
            columns > width
        });
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let end = end.map_or(rest.len(), |(end, _)| end).max(first);
        let (line, _) = rest.split_at(end);
        // A line that ends just before a space is whole.
        let last_space = line.rfind(' ').filter(|at| !line[..*at].trim().is_empty());
        let end = if rest[end..].starts_with(' ') { end } else { last_space.unwrap_or(end) };
        let line = rest[..end].trim_end();
        if !line.is_empty() {
            lines.push(line.to_string());
        }
        rest = rest[end..].trim_start();
    }
    if !rest.is_empty() || lines.is_empty() {
        lines.push(rest.to_string());
    }
    lines
}

#[cfg(test)]
mod tests;
