//! Messages of failures: each is printed once, and then counted.

use std::collections::HashMap;

use tracer_core::count::Count;

/// Messages that are known at a time. Of programs that fail with another one each time, all further ones are printed.
const KNOWN: usize = 1000;

/// Messages that were printed, with how often they came again.
#[derive(Default)]
pub(super) struct Repeated {
    known: HashMap<String, Seen>,
}

struct Seen {
    first: u64,
    last: u64,
    again: u64,
}

impl Repeated {
    /// Notes that a line has failed with this message, and returns whether that was printed before.
    pub(super) fn was_printed(&mut self, line: u64, message: &str) -> bool {
        if let Some(seen) = self.known.get_mut(message) {
            seen.again += 1;
            seen.last = seen.last.max(line);
            return true;
        }
        if self.known.len() < KNOWN {
            self.known.insert(message.to_owned(), Seen { first: line, last: line, again: 0 });
        }
        false
    }

    /// Returns a line for each message that came again, in the order of the lines that it came with first.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let mut again: Vec<_> = self.known.iter().filter(|(_, seen)| seen.again > 0).collect();
        again.sort_by_key(|(_, seen)| seen.first);
        again.into_iter().map(|(message, Seen { first, last, again })| {
            let message = message.lines().next().unwrap_or_default();
            format!("{} failed as line {first} did, up to line {last}: {message}", Count(*again, "further line"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_equal_failures_are_two_lines() {
        let mut repeated = Repeated::default();
        assert!(!repeated.was_printed(3, "no\n(hint: yes)"));
        assert!((4..=1_000_000).all(|line| repeated.was_printed(line, "no\n(hint: yes)")));
        assert!(!repeated.was_printed(1, "once"));
        let lines: Vec<_> = repeated.lines().collect();
        assert_eq!(lines, ["999997 further lines failed as line 3 did, up to line 1000000: no"]);
    }

    #[test]
    fn messages_that_are_all_different_take_no_memory_without_end() {
        let mut repeated = Repeated::default();
        assert!((0..10 * KNOWN as u64).all(|line| !repeated.was_printed(line, &line.to_string())));
        assert_eq!((repeated.known.len(), repeated.lines().count()), (KNOWN, 0));
    }
}
