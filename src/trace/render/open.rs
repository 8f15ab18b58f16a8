//! `trace open`: the tree of what is running, with ages.

use tracer_core::count::Elapsed;
use unicode_width::UnicodeWidthStr;

use super::show::{fit_gutter, gutter};
use super::{BOLD, DIM, GAP, INDENT, NAME_MIN, clean, fit, pad, pad_left};
use crate::open::{Open, OpenTrace};
use crate::tree::{Item, Tree};

/// Renders what is open in `width` columns.
pub fn open(open: &Open, width: usize, colour: bool) -> String {
    if open.traces.is_empty() {
        return "nothing is open\n".into();
    }
    let texts: Vec<String> = open.traces.iter().map(|trace| one(trace, width, colour)).collect();
    texts.join("\n")
}

struct Line {
    gutter: String,
    name: String,
    age: String,
    note: String,
    is_open: bool,
}

fn one(open: &OpenTrace, width: usize, colour: bool) -> String {
    let id = open.trace_id.to_string();
    let mut text = format!("trace {}  {} open\n", BOLD.paint(&id, colour), open.spans.len());
    let mut above: Vec<(bool, Option<u32>)> = Vec::new();
    let mut lines = Vec::new();
    for node in Tree::new(&open.trace).nodes() {
        above.truncate(node.depth);
        let gutter = gutter(&above, node.depth, node.is_last);
        above.push((node.is_last, None));
        lines.push(match node.item {
            Item::Missing(span_id) => Line {
                gutter,
                name: format!("parent 0x{span_id} not found"),
                age: String::new(),
                note: String::new(),
                is_open: false,
            },
            Item::Span(index) | Item::Circle(index) => {
                let span = &open.trace.spans[index];
                let is_open = span.is_running();
                let age = if is_open { Elapsed::from_nanos(span.duration_ns()).to_string() } else { "ended".into() };
                let note = span.pid().filter(|_| is_open).map(|pid| format!("pid {pid}")).unwrap_or_default();
                Line { gutter, name: clean(span.name()), age, note, is_open }
            }
        });
    }
    let widest = |width_of: &dyn Fn(&Line) -> usize| lines.iter().map(width_of).max().unwrap_or(0);
    let (age, note) = (widest(&|line| line.age.width()), widest(&|line| line.note.width()));
    let name = widest(&|line| line.gutter.width() + line.name.width());
    let name = name.min(width.saturating_sub(INDENT + GAP + age + GAP + note).max(NAME_MIN));
    for line in &lines {
        let letters = line.name.width().min(NAME_MIN / 2);
        let gutter = fit_gutter(&line.gutter, name.saturating_sub(letters).max(4));
        let fitted = fit(&line.name, name.saturating_sub(gutter.width()));
        let filled = pad(&fitted, name.saturating_sub(gutter.width()));
        let filled = if line.is_open { filled } else { DIM.paint(&filled, colour) };
        let age = pad_left(&line.age, age);
        let age = if line.is_open { age } else { DIM.paint(&age, colour) };
        let (indent, gap) = (" ".repeat(INDENT), " ".repeat(GAP));
        let gutter = DIM.paint(&gutter, colour);
        text += format!("{indent}{gutter}{filled}{gap}{age}{gap}{}", DIM.paint(&line.note, colour)).trim_end();
        text.push('\n');
    }
    text
}
