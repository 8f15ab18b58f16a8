//! `trace check`: a line for each bound and each offender, or JUnit's XML. `trace diff`: a line for each path.

use std::fmt::Write as _;

use tracer_core::count::{Count, Elapsed};

use super::{BOLD, DIM, GREEN, RED, clean, fit, fit_middle, pad_left};
use crate::check::{Offender, Report};
use crate::diff::{Diff, DiffRow, Side};

/// Limit on the offenders of a bound that are shown.
const OFFENDERS_SHOWN: usize = 10;
/// Separates the names of a path.
const BELOW: &str = " › ";

/// Renders the result of a check: the bounds, with what exceeds them.
pub fn check(report: &Report, width: usize, colour: bool) -> String {
    let mut text = String::new();
    for rule in &report.rules {
        let (word, style) = if rule.offenders.is_empty() { ("ok    ", GREEN) } else { ("FAILED", RED) };
        text += &format!("{} {}\n", style.paint(word, colour), fit(&clean(&rule.rule), width.saturating_sub(7)));
        for offender in rule.offenders.iter().take(OFFENDERS_SHOWN) {
            text += &fit(&format!("       {}", words(offender)), width);
            text.push('\n');
        }
        if let Some(more @ 1..) = rule.offenders.len().checked_sub(OFFENDERS_SHOWN) {
            text += &DIM.paint(&format!("       and {more} more (--format json lists all)"), colour);
            text.push('\n');
        }
    }
    let looked_at = format!("{} with {}", Count(report.traces, "trace"), Count(report.spans, "span"));
    text += &match (report.traces, report.passed) {
        (0, _) => "no trace to check, which does not pass\n".into(),
        (_, true) => format!("{looked_at} checked\n"),
        (_, false) => format!("{looked_at} checked; {}\n", exceeded(report)),
    };
    text
}

fn exceeded(report: &Report) -> String {
    let failed = report.rules.iter().filter(|rule| !rule.offenders.is_empty()).count();
    format!("{failed} of {} exceeded", Count(report.rules.len(), "bound"))
}

fn words(offender: &Offender) -> String {
    let place = offender.trace_id.map(|id| id.to_string()[..12].to_owned());
    let place = place.map(|id| format!("{id}  ")).unwrap_or_default();
    format!("{place}{}: {}", clean(&offender.name), clean(&offender.found))
}

/// Renders the result of a check as JUnit's XML: a test case for each bound.
pub fn junit(report: &Report) -> String {
    let nothing = usize::from(report.traces == 0);
    let failures = report.rules.iter().filter(|rule| !rule.offenders.is_empty()).count() + nothing;
    let tests = report.rules.len() + nothing;
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"{tests}\" failures=\"{failures}\">\n  \
         <testsuite name=\"tracer trace check\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\">\n"
    );
    if nothing == 1 {
        case(&mut text, "there are traces to check", Some(("no trace to check", String::new())));
    }
    for rule in &report.rules {
        let lines: Vec<String> = rule.offenders.iter().map(words).collect();
        let found = Count(lines.len(), "offender").to_string();
        case(&mut text, &rule.rule, (!lines.is_empty()).then(|| (found.as_str(), lines.join("\n"))));
    }
    text + "  </testsuite>\n</testsuites>\n"
}

fn case(text: &mut String, name: &str, failure: Option<(&str, String)>) {
    let name = xml(name);
    let written = match failure {
        None => writeln!(text, "    <testcase classname=\"tracer\" name=\"{name}\"/>"),
        Some((message, lines)) => writeln!(
            text,
            "    <testcase classname=\"tracer\" name=\"{name}\"><failure message=\"{}\">{}</failure></testcase>",
            xml(message),
            xml(&lines)
        ),
    };
    written.expect("a string takes everything");
}

/// Text for an attribute or an element of XML 1.0, which has no way to write most control characters.
fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            character if character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}')
            }
            character => escaped.push(character),
        }
    }
    escaped
}

/// Renders two traces beside each other: own time and count of each path that differs.
pub fn diff(diff: &Diff, width: usize, colour: bool) -> String {
    let title = |label: &str, row: &crate::Row| {
        let errors = if row.errors == 0 { String::new() } else { format!(", {}", Count(row.errors, "error")) };
        let (duration, spans) = (Elapsed::from_nanos(row.duration_ns), Count(row.spans, "span"));
        fit(&format!("{label} {}  {duration}, {spans}{errors}  {}", row.trace_id, clean(&row.title())), width) + "\n"
    };
    let mut text = title("before", &diff.before) + &title("after ", &diff.after);
    if diff.rows.is_empty() && diff.left_out == 0 {
        return text + "both have the same spans, with the same times\n";
    }
    text.push('\n');
    let mut lines = vec![["BEFORE", "AFTER", "CHANGE", "COUNT", "PATH (OWN TIME)"].map(String::from)];
    lines.extend(diff.rows.iter().map(cells));
    let columns: [usize; 4] = std::array::from_fn(|column| {
        lines.iter().map(|line| unicode_width::UnicodeWidthStr::width(line[column].as_str())).max().unwrap_or(0)
    });
    let path_width = width.saturating_sub(columns.iter().sum::<usize>() + 2 * columns.len()).max(12);
    for (index, line) in lines.iter().enumerate() {
        let cells: Vec<String> = (0..4).map(|column| pad_left(&line[column], columns[column])).collect();
        let change = match index.checked_sub(1).map(|row| diff.rows[row].self_change_ns) {
            Some(change @ 1..) => RED.paint(&cells[2], colour && change > 0),
            Some(..=-1) => GREEN.paint(&cells[2], colour),
            _ => cells[2].clone(),
        };
        let path = fit_middle(&line[4], path_width);
        let written = format!("{}  {}  {change}  {}  {path}", cells[0], cells[1], cells[3]);
        text += &if index == 0 { BOLD.paint(&written, colour) } else { written };
        text.push('\n');
    }
    if diff.left_out > 0 {
        text += &DIM.paint(&format!("{} not shown", Count(diff.left_out, "further path")), colour);
        text.push('\n');
    }
    text
}

fn cells(row: &DiffRow) -> [String; 5] {
    let own = |side: Option<Side>| side.map_or("-".into(), |side| Elapsed::from_nanos(side.self_ns).to_string());
    let count = |side: Option<Side>| side.map_or(0, |side| side.count);
    let errors = |side: Option<Side>| side.map_or(0, |side| side.errors);
    let change = Elapsed::from_nanos(row.self_change_ns.unsigned_abs()).to_string();
    let change = match row.self_change_ns {
        0 => "-".into(),
        1.. => format!("+{change}"),
        _ => format!("-{change}"),
    };
    let counts = match (count(row.before), count(row.after)) {
        (before, after) if before == after => before.to_string(),
        (before, after) => format!("{before}→{after}"),
    };
    let path: Vec<String> = row.path.iter().map(|name| clean(name)).collect();
    let errors = match (errors(row.before), errors(row.after)) {
        (before, after) if before == after => String::new(),
        (before, after) => format!(" ({before}→{} failed)", after),
    };
    [own(row.before), own(row.after), change, counts, path.join(BELOW) + &errors]
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{Offender, Rule};
    use super::super::super::fixture::{loaded, span};
    use super::*;

    fn report(offenders: usize) -> Report {
        let offender = |number: usize| Offender {
            trace_id: None,
            span_id: None,
            name: format!("read <\u{1b}[31m{number}>"),
            found: "40ms".into(),
        };
        let rules = vec![
            Rule { rule: "no errors".into(), offenders: vec![] },
            Rule { rule: "read* below 30ms".into(), offenders: (0..offenders).map(offender).collect() },
        ];
        Report { passed: offenders == 0, traces: 1, spans: 20, rules }
    }

    #[test]
    fn a_check_shows_each_bound_and_the_first_offenders() {
        assert_eq!(
            check(&report(0), 80, false),
            "ok     no errors\nok     read* below 30ms\n1 trace with 20 spans checked\n"
        );
        let text = check(&report(12), 80, false);
        assert!(text.contains("FAILED read* below 30ms\n       read <\\u{1b}[31m0>: 40ms\n"), "{text}");
        assert!(
            text.ends_with(
                "       and 2 more (--format json lists all)\n1 trace with 20 spans checked; 1 of 2 bounds exceeded\n"
            ),
            "{text}"
        );
        let nothing = Report { traces: 0, ..report(0) };
        assert!(check(&nothing, 80, false).ends_with("no trace to check, which does not pass\n"));
    }

    #[test]
    fn junit_has_a_case_for_each_bound_and_no_markup_of_others() {
        assert_eq!(
            junit(&report(1)),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"2\" failures=\"1\">\n  \
             <testsuite name=\"tracer trace check\" tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\">\n    \
             <testcase classname=\"tracer\" name=\"no errors\"/>\n    \
             <testcase classname=\"tracer\" name=\"read* below 30ms\"><failure message=\"1 offender\">read &lt;\\u{1b}[31m0&gt;: 40ms</failure></testcase>\n  \
             </testsuite>\n</testsuites>\n"
        );
        assert!(junit(&Report { traces: 0, passed: false, ..report(0) }).contains("tests=\"3\" failures=\"1\""));
    }

    #[test]
    fn two_traces_are_shown_with_the_largest_change_first() {
        let lines = [
            span("job", 1, None, (0, 100)).trace(1),
            span("read", 2, 1, (10, 30)).trace(1),
            span("job", 11, None, (200, 400)).trace(2),
            span("read", 12, 11, (210, 220)).trace(2).failed("no"),
            span("read", 13, 11, (220, 230)).trace(2),
        ];
        let text: String = lines.iter().map(|line| line.line()).collect();
        let loaded = loaded([("1.json", text.into_bytes())]);
        assert_eq!(
            diff(&Diff::new(&loaded.traces[0], &loaded.traces[1], None), 80, false),
            "before 00000000000000000000000000000001  100 µs, 2 spans  job\n\
             after  00000000000000000000000000000002  200 µs, 3 spans, 1 error  job\n\n\
             BEFORE   AFTER   CHANGE  COUNT  PATH (OWN TIME)\n \
             80 µs  180 µs  +100 µs      1  job\n \
             20 µs   20 µs        -    1→2  job › read (0→1 failed)\n"
        );
    }
}
