//! Terminal escapes: text of others is shown so that it steers no terminal.
//!
//! Names, messages and output come from whoever submitted a task. A control character, C0 or C1, or one that changes the direction of writing could
//! set a terminal's title, move its cursor, or show one name for another. Such characters are written as Rust writes them in a literal (`\r`,
//! `\u{1b}`, `\u{202e}`); everything else stays as it is. `cli::report` and `trace::render` pass all foreign text through here.

use std::borrow::Cow;

/// Returns whether a terminal acts on the character rather than showing it: a control character, or one that changes the direction of writing or ends a
/// line or paragraph.
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether the text has a byte with which a steering character begins. A quick test: most texts are plain.
fn may_steer(bytes: &[u8]) -> bool {
    bytes.iter().any(|&byte| byte < 0x20 || matches!(byte, 0x7f | 0xc2 | 0xd8 | 0xe2))
}

/// Escapes every steering character, line feeds included, so that the text is one line: a name, a cell of a table.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Escapes every steering character except line feeds: a message of several lines. The carriage return of a CR LF is dropped.
pub fn lines(text: &str) -> Cow<'_, str> {
    if text.contains("\r\n") {
        return Cow::Owned(escaped(&text.replace("\r\n", "\n"), |c| c == '\n').into_owned());
    }
    escaped(text, |c| c == '\n')
}

/// Returns the length of a text without the beginning of a character at its end: for what is cut there and goes on elsewhere.
pub fn whole_characters(text: &[u8]) -> usize {
    let is_cut = |at: &usize| match std::str::from_utf8(&text[*at..]) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    };
    (text.len().saturating_sub(3)..text.len()).find(is_cut).unwrap_or(text.len())
}

/// Escapes every steering character except line feeds and sequences that only choose colours (SGR): a report that `tracer` coloured itself.
pub fn report(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && is_steering(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find("\x1b[") {
        let (before, sequence) = rest.split_at(at);
        out.push_str(&escaped(before, |c| c == '\n'));
        match colour_sequence(sequence.as_bytes()) {
            Some(length) => {
                out.push_str(&sequence[..length]);
                rest = &sequence[length..];
            }
            None => {
                out.push_str("\\u{1b}");
                rest = &sequence[1..];
            }
        }
    }
    out.push_str(&escaped(rest, |c| c == '\n'));
    Cow::Owned(out)
}

/// Returns the length of the SGR sequence (`ESC [ digits ; m`) that the bytes begin with.
fn colour_sequence(bytes: &[u8]) -> Option<usize> {
    let parameters = bytes.strip_prefix(b"\x1b[")?;
    let length = parameters.iter().take_while(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':')).count();
    (parameters.get(length) == Some(&b'm')).then_some(2 + length + 1)
}

/// Writes steering characters inside JSON as `\u` escapes, which mean the same character. JSON itself escapes only those below U+0020.
///
/// Line feeds and spaces between the values stay; in a string there is no raw line feed.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_unescaped = |c: char| c >= '\x7f' && is_steering(c);
    if !may_steer_beyond_c0(text.as_bytes()) || !text.chars().any(is_unescaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_unescaped(c) {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn may_steer_beyond_c0(bytes: &[u8]) -> bool {
    bytes.iter().any(|&byte| matches!(byte, 0x7f | 0xc2 | 0xd8 | 0xe2))
}

/// Returns a line of a task's output for a terminal, with `prefix` before it. Tabs and colours pass, and colours end with the line. A carriage return goes
/// back to the prefix and erases what followed it, so that a progress bar is drawn in place and can hide no line but its own.
pub fn output_line(prefix: &str, bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    let mut out = String::with_capacity(prefix.len() + text.len() + 8);
    for (index, part) in text.split('\r').enumerate() {
        if index > 0 {
            out.push_str("\r\x1b[K");
        }
        out.push_str(prefix);
        let mut is_coloured = false;
        let mut rest = part;
        while let Some(at) = rest.find("\x1b[") {
            let (before, sequence) = rest.split_at(at);
            out.push_str(&escaped(before, |c| c == '\t'));
            match colour_sequence(sequence.as_bytes()) {
                Some(length) => {
                    is_coloured = true;
                    out.push_str(&sequence[..length]);
                    rest = &sequence[length..];
                }
                None => {
                    out.push_str("\\u{1b}");
                    rest = &sequence[1..];
                }
            }
        }
        out.push_str(&escaped(rest, |c| c == '\t'));
        if is_coloured {
            out.push_str("\x1b[0m");
        }
    }
    out.push('\n');
    out
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !may_steer(text.as_bytes()) || !text.chars().any(|c| is_steering(c) && !is_kept(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_steering(c) && !is_kept(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_before_a_character_that_is_not_whole() {
        for (text, expected) in [
            (&b""[..], 0),
            (b"ab", 2),
            ("ab é".as_bytes(), 5),
            (b"ab \xc3", 3),
            (b"\xf0\x9f\x98", 0),
            (b"a\xf0\x9f\x98", 1),
            (b"\xa9\xa9\xa9", 3),
            (b"a\xff", 2),
            (b"\xe2\x82\xac\xe2\x82", 3),
        ] {
            assert_eq!(whole_characters(text), expected, "{text:?}");
        }
    }
    use proptest::prelude::*;

    const HOSTILE: &str = "a\x1b]0;title\x07\x1b[2J\u{9b}31m\u{202e}cba\r\nb\tc\u{7f}\u{2028}é…";

    #[test]
    fn a_name_becomes_one_line_that_steers_nothing() {
        let expected = r"a\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\u{202e}cba\r\nb\tc\u{7f}\u{2028}é…";
        assert_eq!(line(HOSTILE), expected);
        assert_eq!(line("plain – näme 名"), "plain – näme 名");
    }

    #[test]
    fn a_message_keeps_its_lines() {
        assert_eq!(lines("one\r\ntwo\rthree\n\x1b[2J"), "one\ntwo\\rthree\n\\u{1b}[2J");
    }

    #[test]
    fn a_report_keeps_its_colours_only() {
        assert_eq!(report("\x1b[1;31merror:\x1b[0m no\n"), "\x1b[1;31merror:\x1b[0m no\n");
        assert_eq!(report("\x1b[2J\x1b[31mred\x1b[0m\x1b]0;t\x07"), "\\u{1b}[2J\x1b[31mred\x1b[0m\\u{1b}]0;t\\u{7}");
        assert_eq!(report("\x1b["), "\\u{1b}[");
    }

    #[test]
    fn json_means_the_same_afterwards() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE] });
        let text = serde_json::to_string_pretty(&value).expect("a JSON value can be written");
        let shown = json(&text);
        assert!(!shown.chars().any(|c| c != '\n' && is_steering(c)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("it is JSON"), value);
    }

    #[test]
    fn output_on_a_terminal_stays_behind_its_prefix() {
        let shown = |text: &str| output_line("(f pid=1) ", text.as_bytes());
        assert_eq!(shown("plain\n"), "(f pid=1) plain\n");
        assert_eq!(shown("plain\r\n"), "(f pid=1) plain\n");
        assert_eq!(shown("a\tb"), "(f pid=1) a\tb\n");
        assert_eq!(shown("\x1b[31mred\n"), "(f pid=1) \x1b[31mred\x1b[0m\n");
        assert_eq!(shown("\x1b[2J\x1b[1A\x1b]0;t\x07\n"), "(f pid=1) \\u{1b}[2J\\u{1b}[1A\\u{1b}]0;t\\u{7}\n");
        assert_eq!(shown("10%\r20%\n"), "(f pid=1) 10%\r\x1b[K(f pid=1) 20%\n");
    }

    proptest! {
        #[test]
        fn nothing_steers_afterwards(text in "\\PC*|[\\x00-\\u{a0}\\u{2000}-\\u{2070}m;\\[0-9]*") {
            prop_assert!(!line(&text).chars().any(is_steering));
            prop_assert!(!lines(&text).chars().any(|c| c != '\n' && is_steering(c)));
            // What is left of it are colours.
            let report = report(&text);
            let mut rest = &*report;
            while let Some(at) = rest.find('\x1b') {
                let length = colour_sequence(&rest.as_bytes()[at..]);
                prop_assert!(length.is_some(), "{report:?}");
                rest = &rest[at + length.unwrap_or(1)..];
            }
        }
    }
}
