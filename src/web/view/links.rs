//! Access to the page of `tracer view`: codes of links, and the tokens that they are exchanged for.

use std::io;
use std::sync::Mutex;
use std::time::Instant;

use tracer_core::lock::lock;
use tracer_ipc::http_codes::{Codes, is_same, push};
use tracer_ipc::http_place::new_token;

use crate::http_api::access::Role;

/// The most tokens that are taken: a further one takes the place of the oldest.
const TOKENS: usize = 64;

/// Codes of links, and the tokens for which they were exchanged.
#[derive(Default)]
pub(super) struct Links {
    codes: Mutex<Codes>,
    tokens: Mutex<Vec<(String, Role)>>,
}

impl Links {
    /// Makes a code for a page that may cancel tasks, or one that only reads.
    pub(super) fn make(&self, may_cancel: bool) -> io::Result<String> {
        lock(&self.codes).make(may_cancel, Instant::now())
    }

    /// Exchanges a code for a token, and what it is good for; none if it was used, is too old at `now`, or was never made.
    pub(super) fn exchange(&self, code: &str, now: Instant) -> io::Result<Option<(String, Role)>> {
        let Some(may_cancel) = lock(&self.codes).take(code, now) else { return Ok(None) };
        let made = (new_token()?, Role::of_page(may_cancel));
        push(&mut lock(&self.tokens), made.clone(), TOKENS);
        Ok(Some(made))
    }

    /// Returns what a token is good for that was given to a page.
    pub(super) fn role(&self, shown: &[u8]) -> Option<Role> {
        // All are compared, so that the time says nothing about which.
        let known = |(token, role): &(String, Role)| is_same(shown, token.as_bytes()).then_some(*role);
        lock(&self.tokens).iter().fold(None, |found, token| found.or(known(token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_exchanged_once_for_what_it_was_made_for() {
        let links = Links::default();
        let (reader, controller) = (links.make(false).unwrap(), links.make(true).unwrap());
        let now = Instant::now();
        for (code, role) in [(reader, Role::Viewer), (controller, Role::Control)] {
            let (token, given) = links.exchange(&code, now).unwrap().unwrap();
            assert_eq!((given, links.role(token.as_bytes())), (role, Some(role)));
            assert_eq!((links.role(code.as_bytes()), links.role(b"")), (None, None));
            assert_eq!(links.exchange(&code, now).unwrap(), None, "it was used");
        }
    }

    #[test]
    fn tokens_are_bounded() {
        let links = Links::default();
        let exchange = || links.exchange(&links.make(false).unwrap(), Instant::now()).unwrap().unwrap();
        let (first, _) = exchange();
        (0..TOKENS).for_each(|_| drop(exchange()));
        assert_eq!(links.role(first.as_bytes()), None);
    }
}
