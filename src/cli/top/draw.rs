//! The picture: two lines about the head, a warning, the workers, the queue, and the keys. It fits into 80 columns and 24 rows, and says nothing by
//! colour alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table as TableWidget};

use super::super::report;
use super::model::{Model, QueueRow, Table, WorkerRow};

/// Rows of a table beside its own: its frame and the names of its columns.
const AROUND: u16 = 3;

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let (workers, queue) = (model.workers(), model.queue());
    let warning = model.warnings().next().map(str::to_owned);
    let [head, warnings, tables, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(u16::from(warning.is_some())),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let of_queue = height_of_queue(tables.height, workers.len(), queue.len());
    let [upper, lower] = Layout::vertical([Constraint::Fill(1), Constraint::Length(of_queue)]).areas(tables);
    frame.render_widget(Paragraph::new(model.header().map(Line::from).to_vec()), head);
    if let Some(warning) = warning {
        let count = model.warnings().count() - 1;
        let more = if count > 0 { format!(" (and {count} more: `tracer status`)") } else { String::new() };
        let style = colour(Color::Yellow).add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(Span::styled(format!("warning: {warning}{more}"), style)), warnings);
    }
    draw_workers(frame, upper, model, &workers);
    draw_queue(frame, lower, model, &queue);
    let text = "q quit  j k scroll  Tab other table  p pause";
    frame.render_widget(Paragraph::new(Span::styled(text, Style::new().add_modifier(Modifier::DIM))), keys);
}

/// Divides the rows of the screen: the queue gets what the workers leave, and at least what it needs or half of all.
fn height_of_queue(all: u16, workers: usize, queue: usize) -> u16 {
    let wanted = |rows: usize| u16::try_from(rows.max(1)).unwrap_or(u16::MAX).saturating_add(AROUND);
    let left = all.saturating_sub(wanted(workers));
    left.max(wanted(queue).min(all / 2))
}

/// Returns a colour, unless the user wants none.
fn colour(colour: Color) -> Style {
    if report::are_colours_wanted() { Style::new().fg(colour) } else { Style::new() }
}

/// Keeps the first row of a table within its rows, and returns which are shown.
fn scrolled(model: &mut Model, table: Table, area: Rect, rows: usize) -> std::ops::Range<usize> {
    let room = usize::from(area.height.saturating_sub(AROUND));
    let first = &mut model.first[table as usize];
    *first = (*first).min(rows.saturating_sub(room));
    *first..(*first + room).min(rows)
}

fn frame_of(model: &Model, table: Table, title: String) -> Block<'static> {
    let style = if model.table == table { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
    let mark = if model.table == table { "> " } else { "" };
    Block::new().borders(Borders::TOP | Borders::BOTTOM).title(Span::styled(format!("{mark}{title}"), style))
}

/// Returns the title of a table of which not all rows fit.
fn title(name: &str, shown: &std::ops::Range<usize>, rows: usize) -> String {
    if shown.len() == rows {
        format!("{name} ({rows})")
    } else {
        format!("{name} ({} to {} of {rows})", shown.start + 1, shown.end)
    }
}

fn header<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    Row::new(names.map(Cell::from)).style(Style::new().add_modifier(Modifier::UNDERLINED))
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, model: &mut Model, rows: &[WorkerRow]) {
    let shown = scrolled(model, Table::Workers, area, rows.len());
    let title = format!("{}: {}", title("workers", &shown, rows.len()), model.of_workers());
    let row = |row: &WorkerRow| {
        let WorkerRow { worker, pid, state, runs, span, elapsed, ended } = row.clone();
        let style = if state == "busy" { colour(Color::Green) } else { Style::new() };
        let runs = if span.is_empty() { runs } else { format!("{runs} > {span}") };
        Row::new([worker, pid, state, runs, elapsed, ended].map(Cell::from)).style(style)
    };
    let widths = [
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(8),
    ];
    let table = TableWidget::new(rows[shown].iter().map(row), widths)
        .header(header(["worker", "pid", "state", "runs", "for", "ended"]))
        .block(frame_of(model, Table::Workers, title));
    frame.render_widget(table, area);
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, model: &mut Model, rows: &[QueueRow]) {
    let shown = scrolled(model, Table::Queue, area, rows.len());
    let mut title = title("waiting, by function", &shown, rows.len());
    if model.queue_left_out() > 0 {
        title = format!("{title}, of the newest tasks; {} older ones wait too", model.queue_left_out());
    }
    let row = |QueueRow { target, tasks, oldest, reason }: &QueueRow| {
        Row::new([target.clone(), tasks.to_string(), oldest.clone(), reason.clone()].map(Cell::from))
    };
    let widths = [Constraint::Fill(2), Constraint::Length(8), Constraint::Length(10), Constraint::Fill(3)];
    let table = TableWidget::new(rows[shown].iter().map(row), widths)
        .header(header(["function", "tasks", "oldest", "why the oldest waits"]))
        .block(frame_of(model, Table::Queue, title));
    frame.render_widget(table, area);
}
