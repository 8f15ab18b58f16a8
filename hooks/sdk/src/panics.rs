//! Catches panics and keeps what is known about them.
//!
//! What `catch_unwind` returns does not say where the panic happened, nor how the code got there: only the panic
//! hook learns that. So this installs one when the module is loaded. On a thread that runs a task it keeps place and
//! stack instead of printing them, because the host reports them as the task's error and they would appear twice.
//! On every other thread it calls the hook that was there before.
//!
//! A panic that the task survives, because it caught it itself or because it was in a future it had spawned, is
//! printed when the task ends. Two panics at once may be about to abort the process, so nothing is held back then.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::{mem, thread};

/// A panic that was caught.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panic {
    /// Message of the panic.
    pub(crate) message: String,
    /// `file:line:column`; empty when unknown.
    pub(crate) location: String,
    /// The stack; empty unless `RUST_BACKTRACE` asks for it.
    pub(crate) stacktrace: String,
}

impl Panic {
    /// `message at file:line:column`.
    pub(crate) fn text(&self) -> String {
        if self.location.is_empty() { self.message.clone() } else { format!("{} at {}", self.message, self.location) }
    }

    fn print(&self) {
        let name = thread::current().name().unwrap_or("<unnamed>").to_owned();
        let Panic { message, location, stacktrace } = self;
        eprintln!("thread '{name}' panicked at {location}:\n{message}");
        if !stacktrace.is_empty() {
            eprintln!("stack backtrace:\n{stacktrace}");
        }
    }
}

/// Panics on this thread since [`catch`] was entered.
#[derive(Default)]
struct Watch {
    last: Option<Panic>,
    /// True if `last` has not been printed.
    is_silent: bool,
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Installs the panic hook of this module. Later calls do nothing.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !keep(info) {
                previous(info);
            }
        }));
    });
}

/// Keeps what `info` says, if this thread is watched. Returns whether that is all that need be done.
fn keep(info: &panic::PanicHookInfo<'_>) -> bool {
    let is_watched = WATCH.try_with(|watch| watch.try_borrow().is_ok_and(|watch| watch.is_some())).unwrap_or(false);
    if !is_watched {
        return false;
    }
    let backtrace = Backtrace::capture();
    let kept = Panic {
        message: message(info.payload()),
        location: info.location().map(ToString::to_string).unwrap_or_default(),
        stacktrace: match backtrace.status() {
            BacktraceStatus::Captured => backtrace.to_string(),
            _ => String::new(),
        },
    };
    WATCH.with_borrow_mut(|watch| {
        let Some(watch) = watch else { return false };
        let is_first = watch.last.is_none();
        if mem::replace(&mut watch.is_silent, is_first)
            && let Some(earlier) = &watch.last
        {
            earlier.print();
        }
        watch.last = Some(kept);
        is_first
    })
}

/// Runs `f`; a panic in it is returned, with place and stack if [`install`] was called before.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
    let outer = WATCH.replace(Some(Watch::default()));
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    let watch = WATCH.replace(outer).unwrap_or_default();
    let result = result.map_err(|payload| {
        let message = message(&*payload);
        // The value may panic once more when it is dropped, and it is of no further use.
        mem::forget(payload);
        message
    });
    let last = watch.last.unwrap_or_default();
    match result {
        Err(message) if last.message == message => Err(last),
        result => {
            if watch.is_silent {
                last.print();
            }
            result.map_err(|message| Panic { message, ..Panic::default() })
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a panic whose value is not a text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_panic_has_message_and_place() {
        install();
        let line = line!() + 1;
        let caught = catch(|| panic!("the jar is {}", "empty")).map(|()| "no panic").expect_err("it panics");
        assert_eq!(caught.message, "the jar is empty");
        assert!(caught.location.starts_with(&format!("hooks/sdk/src/panics.rs:{line}:")), "{}", caught.location);
    }

    #[test]
    fn value_that_is_not_a_text_is_said_to_be_one() {
        install();
        let caught = catch(|| panic::panic_any(7)).map(|()| "no panic").expect_err("it panics");
        assert_eq!(caught.message, "a panic whose value is not a text");
    }

    #[test]
    fn panic_that_the_code_survives_is_not_the_result() {
        install();
        let result = catch(|| {
            let inner = panic::catch_unwind(|| panic!("inside"));
            assert!(inner.is_err());
            7
        });
        assert_eq!(result.map_err(|panic| panic.message), Ok(7));
    }

    #[test]
    fn nested_calls_do_not_mix_their_panics() {
        install();
        let outer = catch(|| {
            let inner = catch(|| panic!("inner")).map(|()| "no panic").expect_err("it panics");
            assert_eq!(inner.message, "inner");
            panic!("outer");
        })
        .map(|()| "no panic")
        .expect_err("it panics");
        assert_eq!(outer.message, "outer");
        assert!(!outer.location.is_empty());
    }

    #[test]
    fn panic_resumed_with_another_value_keeps_no_wrong_place() {
        install();
        let caught = catch(|| {
            let _ = panic::catch_unwind(|| panic!("first"));
            panic::resume_unwind(Box::new("second"));
        })
        .expect_err("it panics");
        assert_eq!((caught.message.as_str(), caught.location.as_str()), ("second", ""));
    }
}
