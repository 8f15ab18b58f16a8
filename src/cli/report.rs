//! The only place that writes to standard output and standard error.
//!
//! Data goes to standard output, talk to standard error. A closed pipe is not an error: whoever closed it has seen enough, and a command that only shows
//! something ends. One whose exit code says how something has ended [goes on](outlive_outputs). Data that cannot be written for another reason, such as a full disk, is an error,
//! and ends the process.
//!
//! Text of others is escaped here, so that it steers no terminal: names and cells as one line, messages line by line, JSON with `\u` escapes. What a
//! command writes to its standard output goes through as it is.
//!
//! A command that runs a hook calls [`reserve_stdout`] first, because a hook writes where it likes.

use std::borrow::Cow;
use std::error::Error;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use tracer_core::causes::with_causes;
use tracer_core::count::Count;
use tracer_core::escape;
use tracer_ipc::protocol::TaskReport;
use tracer_trace::json;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{CommandError, Format, hints, live_line};

/// True if this process goes on when an output is closed, because its exit code says how something has ended.
static OUTLIVES_OUTPUTS: AtomicBool = AtomicBool::new(false);
/// True once nobody reads standard output.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The original standard output, once [`reserve_stdout`] was called.
static DATA: OnceLock<File> = OnceLock::new();

/// Keeps the original standard output for results and redirects file descriptor 1 to standard error, so that output of loaded modules cannot mix with data.
pub(super) fn reserve_stdout() -> io::Result<()> {
    let data = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    // It was set before only if this was called before, and then standard output is the same file.
    let _ = DATA.set(data.into());
    Ok(())
}

/// Has this process go on when whoever reads an output has closed it: what is written then is thrown away, and the exit code is what it would be.
pub(super) fn outlive_outputs() {
    OUTLIVES_OUTPUTS.store(true, Ordering::Relaxed);
}

/// Runs `write` with where data goes.
fn with_data_output(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return;
    }
    let written = live_line::above(|| match DATA.get() {
        Some(mut data) => write(&mut data),
        None => {
            let mut out = io::stdout().lock();
            write(&mut out).and_then(|()| out.flush())
        }
    });
    let written = if super::had_no_stdout() { Err(rustix::io::Errno::BADF.into()) } else { written };
    if end_if_closed(&written) {
        return IS_CLOSED.store(true, Ordering::Relaxed);
    }
    if let Err(reason) = written {
        error(&io::Error::other(format!("standard output cannot be written to: {reason}")));
        std::process::exit(tracer_core::exit::FAILED.into());
    }
}

/// Writes data, with a line feed.
fn data(text: &str) {
    with_data_output(|out| out.write_all(line(text).as_bytes()));
}

/// Writes a report for people, with a line feed. It may have colours.
pub(super) fn text(text: &str) {
    data(&escape::report(text));
}

/// Writes a part of a report for people, as it is.
pub(super) fn part(text: &str) {
    with_data_output(|out| out.write_all(escape::report(text).as_bytes()));
}

/// Writes JSON, with a line feed.
pub(super) fn json(text: &str) {
    data(&escape::json(text));
}

/// Returns a report as a line.
pub(super) fn object_line(report: &impl Serialize) -> String {
    escape::json(&json::line(report)).into_owned() + "\n"
}

/// Returns a JSON value as a line.
pub(super) fn json_line(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string(value).expect("reports are plain data");
    if let Cow::Owned(escaped) = escape::json(&text) {
        text = escaped;
    }
    text.push('\n');
    text
}

/// Writes JSON that is made while it is written. Only a closed pipe is no error.
pub(super) fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = JsonWriter(io::BufWriter::new(io::stdout().lock()));
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(tracer_core::exit::OK.into()),
        written => written,
    }
}

/// Escapes JSON on its way. A serializer writes whole characters.
struct JsonWriter<W>(W);

impl<W: Write> Write for JsonWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.0.write_all(escape::json(text).as_bytes())?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes an object as JSON, with a line feed, while it is made. Where that fails, `has_failed` says whether it is the making that has.
pub(super) fn object_while_made(report: &impl Serialize, has_failed: impl Fn() -> bool) {
    with_data_output(|out| {
        let mut out = JsonWriter(io::BufWriter::new(out));
        match json::write(report, &mut out) {
            Err(_) if has_failed() => {}
            written => written?,
        }
        out.write_all(b"\n")?;
        out.flush()
    });
}

/// Writes talk, with a line feed.
pub(super) fn talk(text: &str) {
    write_talk(&escape::lines(&hints::with_place(text)));
}

fn write_talk(text: &str) {
    end_if_closed(&live_line::above(|| io::stderr().lock().write_all(line(text).as_bytes())));
}

/// Returns the text with its line feed, to be written at once: commands that run beside each other often share an output.
fn line(text: &str) -> Cow<'_, str> {
    if text.ends_with('\n') { text.into() } else { format!("{text}\n").into() }
}

/// Writes an error with its causes.
pub(super) fn error(error: &dyn Error) {
    let text = with_causes(error);
    let text = hints::with_place(&text);
    let head = if colours_on(&io::stderr()) { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    write_talk(&format!("{head} {}", escape::lines(&text)));
}

/// Says why a command failed: as an object on standard output for programs, else on standard error. Returns the exit code.
pub(super) fn failure(format: Format, failure: &CommandError) -> u8 {
    // Whoever does not read why hears that it failed.
    outlive_outputs();
    match format {
        Format::Text => error(failure.error.as_ref()),
        Format::Json => value(format, &failure.report(), |_| String::new()),
    }
    failure.exit_code
}

/// Writes a warning.
pub(super) fn warning(text: &str) {
    let head = if colours_on(&io::stderr()) { "\x1b[1;33mwarning:\x1b[0m" } else { "warning:" };
    write_talk(&format!("{head} {}", escape::lines(&hints::with_place(text))));
}

/// Writes a value as JSON for programs, or as the text that `render` makes for people.
pub(super) fn value<T: Serialize>(format: Format, value: &T, render: impl FnOnce(&T) -> String) {
    match format {
        Format::Text => text(&render(value)),
        Format::Json => json(&json::object(value)),
    }
}

/// Writes a text for people, through a pager if it is longer than the terminal. Whoever leaves the pager has seen enough.
pub(super) fn page(text: &str) {
    let text = &*escape::report(text);
    let Some(mut command) = pager(text) else { return data(text) };
    // The terminal sends Ctrl-C to both processes; it is the pager's, which would otherwise go on beside the shell.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default());
    let _ = io::stdout().lock().flush();
    let Ok(mut pager) = command.spawn() else { return data(text) };
    if let Some(mut input) = pager.stdin.take() {
        // Only that the pager was left early can go wrong here.
        let _ = input.write_all(line(text).as_bytes());
    }
    match pager.wait() {
        // The shell did not find the program, so nothing was shown.
        Ok(status) if matches!(status.code(), Some(126 | 127)) => data(text),
        _ => {}
    }
}

/// Returns the command of the pager, if standard output is a terminal and has fewer rows than the text.
fn pager(text: &str) -> Option<Command> {
    let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    if !is_terminal() || is_dumb() || (rows > 0 && text.lines().count() < rows) {
        return None;
    }
    let chosen = ["TRACER_PAGER", "PAGER"].into_iter().find_map(std::env::var_os);
    let mut command = match chosen {
        Some(chosen) if chosen.is_empty() || chosen == "cat" => return None,
        Some(chosen) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg("-c").arg(chosen);
            shell
        }
        None => {
            let path = std::env::var_os("PATH")?;
            let less = std::env::split_paths(&path).map(|folder| folder.join("less")).find(|less| less.is_file())?;
            let mut less = Command::new(less);
            less.arg("-FRX");
            less
        }
    };
    // As git does, for a `PAGER=less`: colours are shown, and it ends where a page is enough.
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped());
    Some(command)
}

/// Returns whether colours may be used on standard output.
pub(super) fn colours_on_stdout() -> bool {
    colours_on(&io::stdout())
}

fn colours_on(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && are_colours_wanted()
}

/// Returns whether the user's terminal has colours, and the user wants them.
pub(super) fn are_colours_wanted() -> bool {
    // https://no-color.org
    !is_dumb() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns whether the terminal has no colours and no cursor that moves, as that of an editor.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Returns whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A text at the end of a terminal that is drawn again and again.
#[derive(Default)]
pub(super) struct Redrawn {
    drawn: String,
}

impl Redrawn {
    /// Draws the text instead of the one before. Of a text that is higher than the terminal, the first line and the end are drawn.
    pub(super) fn draw(&mut self, text: &str) {
        let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
        // One row is for the cursor.
        let rows = if rows == 0 { 24 } else { rows }.saturating_sub(1).max(3);
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() <= rows {
            return self.replace(text.to_owned());
        }
        let left_out = lines.len() - (rows - 2);
        let end = lines[left_out..].join("\n");
        self.replace(format!("{}\n  … {}\n{end}\n", lines[0], Count(left_out - 1, "more line")));
    }

    /// Draws the whole text, for the last time.
    pub(super) fn finish(mut self, text: &str) {
        self.replace(text.to_owned());
    }

    fn replace(&mut self, text: String) {
        let text = escape::report(&text).into_owned();
        if text == self.drawn {
            return;
        }
        let up = match self.drawn.lines().count() {
            0 => String::new(),
            lines => format!("\x1b[{lines}F\x1b[J"),
        };
        data(&format!("{up}{text}"));
        self.drawn = text;
    }
}

/// Width of standard output in columns.
pub(super) fn width() -> usize {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    let size = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    size().filter(|&width| width > 0).or_else(columns).unwrap_or(80)
}

/// Returns a table without lines: columns two spaces apart. On a terminal it is as wide as that at most.
pub(super) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    table_within(is_terminal().then(width), header, rows)
}

/// Width below which no column is cut: that of the beginning of a trace's id.
const LEAST_CUT: usize = 12;

/// Returns a table whose lines have at most `width` columns of a terminal, if that can be had: the cells of the widest columns are cut. Whole cells are
/// in `--format json`, and wherever the table goes that is no terminal.
fn table_within<const N: usize>(
    width: Option<usize>,
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    LongTable::within(width, header).rows(rows)
}

/// A table whose rows come one after the other, so that they are not all in memory. Columns are as wide as their widest cell until then.
pub(super) struct LongTable<const N: usize> {
    width: Option<usize>,
    header: [String; N],
    widths: [usize; N],
    is_begun: bool,
}

impl<const N: usize> LongTable<N> {
    pub(super) fn new(header: [&str; N]) -> LongTable<N> {
        LongTable::within(is_terminal().then(width), header)
    }

    fn within(width: Option<usize>, header: [&str; N]) -> LongTable<N> {
        LongTable {
            width,
            header: header.map(str::to_owned),
            widths: header.map(UnicodeWidthStr::width),
            is_begun: false,
        }
    }

    /// Returns the lines of further rows, behind that of the header if they are the first.
    pub(super) fn rows(&mut self, rows: impl IntoIterator<Item = [String; N]>) -> String {
        let rows: Vec<[String; N]> =
            rows.into_iter().map(|row| row.map(|cell| escape::line(&cell).into_owned())).collect();
        for row in &rows {
            for (most, cell) in self.widths.iter_mut().zip(row) {
                *most = (*most).max(cell.width());
            }
        }
        self.make_room();
        let header = (!std::mem::replace(&mut self.is_begun, true)).then(|| self.header.clone());
        header.into_iter().chain(rows).map(|row| self.line(row)).collect()
    }

    fn make_room(&mut self) {
        let Some(width) = self.width else { return };
        let between = 2 * N.saturating_sub(1);
        while self.widths.iter().sum::<usize>() + between > width {
            match self.widths.iter_mut().filter(|most| **most > LEAST_CUT).max_by_key(|most| **most) {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
    }

    fn line(&self, row: [String; N]) -> String {
        let mut line = String::new();
        for (cell, &most) in row.into_iter().zip(&self.widths) {
            let cell = cut(cell, most);
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(' ', most.saturating_sub(cell.width()) + 2));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// Returns a cell of at most so many columns of a terminal.
fn cut(cell: String, most: usize) -> String {
    if cell.width() <= most {
        return cell;
    }
    let (mut kept, mut used) = (String::new(), 1);
    for character in cell.chars() {
        used += character.width().unwrap_or(0);
        if used > most {
            break;
        }
        kept.push(character);
    }
    kept + "…"
}

/// Returns a name that somebody chose, as one line.
pub(super) fn name(text: &str) -> String {
    escape::line(text).into_owned()
}

/// Returns names and values below each other, the values aligned, and on a terminal broken between their words where it ends.
pub(super) fn fields(fields: &[(&str, String)]) -> String {
    fields_within(is_terminal().then(width), fields)
}

fn fields_within(width: Option<usize>, fields: &[(&str, String)]) -> String {
    let names = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let room = width.map(|width| width.saturating_sub(names + 2).max(20));
    let mut text = String::new();
    for (name, value) in fields {
        let mut name = *name;
        for line in escape::lines(value).split('\n').flat_map(|line| broken(line, room)) {
            text.push_str(&format!("{name:names$}  {line}\n"));
            name = "";
        }
    }
    text
}

/// Breaks a line between words, so that each piece has room. A word that is longer stays whole: it may be a path, to be copied.
fn broken(line: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room.filter(|room| line.width() > *room) else { return vec![line.to_owned()] };
    let mut pieces: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match pieces.last_mut() {
            Some(last) if last.width() + 1 + word.width() <= room => {
                last.push(' ');
                last.push_str(word);
            }
            _ => pieces.push(word.to_owned()),
        }
    }
    pieces
}

/// Ends this process if the output is closed, unless it [outlives](outlive_outputs) that. Returns whether it is closed.
fn end_if_closed(written: &io::Result<()>) -> bool {
    let is_closed = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    if is_closed && !OUTLIVES_OUTPUTS.load(Ordering::Relaxed) {
        std::process::exit(tracer_core::exit::OK.into());
    }
    is_closed
}

/// Writes a command's standard output as it is.
pub(super) fn raw(bytes: &[u8]) {
    let was_closed = IS_CLOSED.load(Ordering::Relaxed);
    with_data_output(|out| out.write_all(bytes));
    if !was_closed && IS_CLOSED.load(Ordering::Relaxed) {
        talk(
            "note: nobody reads standard output any more; what else is written to it is thrown away (Ctrl-C cancels what runs)",
        );
    }
    live_line::note_output(bytes);
}

/// Writes lines of a task's output at once, each with who wrote it. The last one gets a line feed if it has none. A terminal gets them escaped, a
/// file or a pipe as the task wrote them.
pub(super) fn task_lines(prefix: &str, lines: &[u8]) {
    if io::stderr().is_terminal() {
        let text: String =
            lines.split_inclusive(|&byte| byte == b'\n').map(|line| escape::output_line(prefix, line)).collect();
        end_if_closed(&live_line::above(|| io::stderr().lock().write_all(text.as_bytes())));
        return;
    }
    let mut text = Vec::with_capacity(lines.len() + 2 * prefix.len());
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(line);
    }
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    end_if_closed(&live_line::above(|| io::stderr().lock().write_all(&text)));
}

/// Returns what is known of a task as one of a queue: the queue, its id in the cluster, and the node that runs it or ran it.
pub(super) fn of_queue(task: &TaskReport) -> impl Iterator<Item = (&'static str, String)> {
    let queue = task.queue.as_deref().map(|queue| ("queue", name(queue)));
    let cluster_id = task.cluster_task_id.clone().map(|id| ("cluster id", id));
    let node = task.node_id.as_deref().map(|node| ("node", name(node)));
    [queue, cluster_id, node].into_iter().flatten()
}

/// Returns the further options of a task as `priority 5`; none for none.
pub(super) fn options(task: &TaskReport) -> Option<String> {
    let options: Vec<_> = task.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    (!options.is_empty()).then(|| options.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_cut_at_the_width_of_a_terminal_in_its_widest_columns() {
        let rows = || [["1", "wordcount.frequencies_of_all_words", "9f6b5d3c2a10"].map(str::to_owned)];
        let whole =
            "ID  TARGET                              TRACE\n1   wordcount.frequencies_of_all_words  9f6b5d3c2a10\n";
        assert_eq!(table_within(None, ["ID", "TARGET", "TRACE"], rows()), whole);
        assert_eq!(table_within(Some(52), ["ID", "TARGET", "TRACE"], rows()), whole);
        let cut = "ID  TARGET                TRACE\n1   wordcount.frequenci…  9f6b5d3c2a10\n";
        assert_eq!(table_within(Some(38), ["ID", "TARGET", "TRACE"], rows()), cut);
        // What is left of each column can still be read, whatever the width.
        assert!(table_within(Some(1), ["ID", "TARGET", "TRACE"], rows()).contains("1   wordcount.f…  9f6b5d3c2a10\n"));
        assert_eq!(cut_text("日本語の名前", 7), "日本語…");
    }

    #[test]
    fn a_table_goes_on_below_its_first_rows() {
        let mut table = LongTable::within(None, ["ID", "NAME"]);
        assert_eq!(table.rows([["1".into(), "a".into()]]), "ID  NAME\n1   a\n");
        assert_eq!(table.rows([["12345".into(), String::new()]]), "12345\n");
        assert_eq!(table.rows([["2".into(), "b".into()]]), "2      b\n");
        assert_eq!(LongTable::within(None, ["ID", "NAME"]).rows([]), "ID  NAME\n");
    }

    fn cut_text(text: &str, most: usize) -> String {
        cut(text.to_owned(), most)
    }

    #[test]
    fn values_of_fields_are_broken_between_words_and_paths_stay_whole() {
        let path = "/a/path/that/is/longer/than/the/room";
        let fields = [("head", format!("tracer 0.1.0, from {path}")), ("is", "so".into())];
        let expected = format!("head  tracer 0.1.0, from\n      {path}\nis    so\n");
        assert_eq!(fields_within(Some(30), &fields), expected);
        assert_eq!(fields_within(None, &fields), format!("head  tracer 0.1.0, from {path}\nis    so\n"));
        assert_eq!(fields_within(None, &[("a", "b\nc".into())]), "a  b\n   c\n");
    }
}
