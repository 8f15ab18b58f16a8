//! Codes of links to the page. Each is exchanged for a token once, within [`CODE_TIME`].

use std::io;
use std::time::{Duration, Instant};

use crate::http_place::new_token;

/// Time for which a code works.
pub const CODE_TIME: Duration = Duration::from_secs(60);
/// The most codes that wait for their use: a further one takes the place of the oldest.
const CODES: usize = 16;

/// Codes that wait for their use, oldest first.
#[derive(Debug, Default)]
pub struct Codes(Vec<Code>);

#[derive(Debug)]
struct Code {
    text: String,
    made: Instant,
    may_cancel: bool,
}

impl Codes {
    /// Makes a code for a page that may cancel tasks, or one that only reads.
    pub fn make(&mut self, may_cancel: bool, now: Instant) -> io::Result<String> {
        let text = new_token()?;
        push(&mut self.0, Code { text: text.clone(), made: now, may_cancel }, CODES);
        Ok(text)
    }

    /// Takes a code, and returns whether its page may cancel tasks; none if the code was used, is too old at `now`, or was never made.
    pub fn take(&mut self, code: &str, now: Instant) -> Option<bool> {
        self.0.retain(|known| now.saturating_duration_since(known.made) <= CODE_TIME);
        let at = self.0.iter().position(|known| is_same(code.as_bytes(), known.text.as_bytes()))?;
        Some(self.0.remove(at).may_cancel)
    }
}

/// Compares in a time that says nothing about where the two differ.
pub fn is_same(shown: &[u8], token: &[u8]) -> bool {
    let differs = shown.iter().zip(token).fold(0, |differs, (shown, token)| differs | (shown ^ token));
    std::hint::black_box(differs) == 0 && shown.len() == token.len()
}

/// Appends; the first one goes when there are `most`.
pub fn push<T>(all: &mut Vec<T>, new: T, most: usize) {
    if all.len() == most {
        all.remove(0);
    }
    all.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_taken_once_and_in_time() {
        let mut codes = Codes::default();
        let now = Instant::now();
        let mut make = |may_cancel| codes.make(may_cancel, now).unwrap();
        let (reader, controller, late) = (make(false), make(true), make(true));
        assert_eq!(codes.take("", now), None);
        assert_eq!(codes.take(&reader, now), Some(false));
        assert_eq!(codes.take(&reader, now), None, "it was used");
        assert_eq!(codes.take(&controller, now + CODE_TIME), Some(true));
        assert_eq!(codes.take(&late, now + CODE_TIME + Duration::from_secs(1)), None);
    }

    #[test]
    fn codes_are_bounded() {
        let (mut codes, now) = (Codes::default(), Instant::now());
        let made: Vec<String> = (0..=CODES).map(|_| codes.make(false, now).unwrap()).collect();
        assert_eq!(codes.take(&made[0], now), None);
        assert!(made[1..].iter().all(|code| codes.take(code, now).is_some()));
    }
}
