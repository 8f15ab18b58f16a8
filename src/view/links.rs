//! Codes of links, each for one use, and the tokens that they are exchanged for.

use std::io;
use std::sync::Mutex;
use std::time::Instant;

use super::LINK_TIME;
use crate::http_api::access::is_same;
use crate::http_api::place::new_token;
use tracer_core::lock::lock;

/// The most codes that wait for their use: a further one takes the place of the oldest.
const CODES: usize = 16;
/// The most tokens that are taken: a further one takes the place of the oldest.
const TOKENS: usize = 64;

/// Access to the pages: codes of links, and the tokens for which they were exchanged.
#[derive(Default)]
pub(super) struct Links {
    codes: Mutex<Vec<(String, Instant)>>,
    tokens: Mutex<Vec<String>>,
}

impl Links {
    /// Makes a code.
    pub(super) fn make(&self) -> io::Result<String> {
        let code = new_token()?;
        push(&mut lock(&self.codes), (code.clone(), Instant::now()), CODES);
        Ok(code)
    }

    /// Exchanges a code for a token; none if it was used, is too old at `now`, or was never made.
    pub(super) fn exchange(&self, code: &str, now: Instant) -> io::Result<Option<String>> {
        let mut codes = lock(&self.codes);
        codes.retain(|(_, made)| now.saturating_duration_since(*made) <= LINK_TIME);
        let Some(at) = codes.iter().position(|(known, _)| is_same(code.as_bytes(), known.as_bytes())) else {
            return Ok(None);
        };
        codes.remove(at);
        let token = new_token()?;
        push(&mut lock(&self.tokens), token.clone(), TOKENS);
        Ok(Some(token))
    }

    /// Returns whether a token was given to a page.
    pub(super) fn is_token(&self, shown: &[u8]) -> bool {
        // All are compared, so that the time says nothing about which.
        lock(&self.tokens).iter().fold(false, |found, token| found | is_same(shown, token.as_bytes()))
    }
}

fn push<T>(all: &mut Vec<T>, new: T, most: usize) {
    if all.len() == most {
        all.remove(0);
    }
    all.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_code_is_exchanged_once_and_in_time() {
        let links = Links::default();
        let (code, late) = (links.make().unwrap(), links.make().unwrap());
        let now = Instant::now();
        assert_eq!(links.exchange("", now).unwrap(), None);
        let token = links.exchange(&code, now).unwrap().unwrap();
        assert!(links.is_token(token.as_bytes()) && !links.is_token(code.as_bytes()) && !links.is_token(b""));
        assert_eq!(links.exchange(&code, now).unwrap(), None, "it was used");
        assert_eq!(links.exchange(&late, now + LINK_TIME + Duration::from_secs(1)).unwrap(), None);
    }

    #[test]
    fn codes_and_tokens_are_bounded() {
        let links = Links::default();
        let codes: Vec<String> = (0..=CODES).map(|_| links.make().unwrap()).collect();
        assert_eq!(links.exchange(&codes[0], Instant::now()).unwrap(), None);
        let first = links.exchange(&codes[1], Instant::now()).unwrap().unwrap();
        for _ in 0..TOKENS {
            let code = links.make().unwrap();
            links.exchange(&code, Instant::now()).unwrap().unwrap();
        }
        assert!(!links.is_token(first.as_bytes()));
    }
}
