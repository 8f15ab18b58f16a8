//! The request for which a span starts.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tracer_abi as abi;

use super::convert;

/// A request to a service, as a hook is told of it while a span starts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningRequest {
    /// The id that the client and the access log see. A client may choose it, so two requests may have the same.
    pub request_id: String,
    /// The name of the application.
    pub application: &'static str,
    /// The deployment's name in the application.
    pub deployment: &'static str,
    /// The replica that handles it.
    pub replica: &'static str,
    /// The prefix under which the application is served; `/` for all.
    pub route_prefix: String,
    /// The client's address, as `address:port`; empty when unknown.
    pub client: String,
    /// Time after which the answer is not wanted, if there is one.
    pub deadline: Option<SystemTime>,
    /// The model that it is for, as its header `x-model-id` or its caller says; empty if neither does.
    pub model: String,
}

thread_local! {
    /// Request of the span that starts on this thread, as the host has lent it; null while none does, or none of a request.
    static CURRENT: Cell<*const abi::RunningRequest> = const { Cell::new(ptr::null()) };
}

/// Returns the request for which a span starts on this thread: in a span processor's `on_start` and in a sampler, of every span that a handler makes and of
/// the one around it. None elsewhere, and with a host before ABI 1.6.
///
/// Each call copies the texts. A span whose processors do not call this function costs no more than without a request.
pub fn running_request() -> Option<RunningRequest> {
    let raw = CURRENT.try_with(Cell::get).ok()?;
    if raw.is_null() {
        return None;
    }
    let mut space = MaybeUninit::uninit();
    // SAFETY: set by `enter`, whose guard lives as long as the call for which the host has lent it, on this thread.
    let raw: &abi::RunningRequest = unsafe { convert::sized(raw, &mut space) };
    // SAFETY: the texts are lent for the same call.
    let text = |text: abi::Str| String::from_utf8_lossy(unsafe { text.as_bytes() }).into_owned();
    let deadline = Some(raw.deadline_unix_nano).filter(|&nanos| nanos != 0);
    Some(RunningRequest {
        request_id: text(raw.request_id),
        application: kept(text(raw.application)),
        deployment: kept(text(raw.deployment)),
        replica: kept(text(raw.replica)),
        route_prefix: text(raw.route_prefix),
        client: text(raw.client),
        deadline: deadline.map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)),
        model: text(raw.model),
    })
}

/// Keeps a name for good. A process is one replica, so that there are few.
fn kept(name: String) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.push(name);
    name
}

/// Makes a request the one for which a span starts, until the guard is dropped.
///
/// # Safety
///
/// `request` is null, or what it points to is valid until then.
pub(super) unsafe fn enter(request: *const abi::RunningRequest) -> Entered {
    Entered(CURRENT.replace(request))
}

pub(super) struct Entered(*const abi::RunningRequest);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(size: usize) -> abi::RunningRequest {
        let text = abi::Str::new;
        abi::RunningRequest {
            size,
            request_id: text("r1"),
            application: text("shop"),
            deployment: text("App"),
            replica: text("App#1"),
            route_prefix: text("/shop"),
            client: text("127.0.0.1:9"),
            deadline_unix_nano: 5,
            model: text("de"),
        }
    }

    #[test]
    fn a_request_is_there_while_its_span_starts_and_of_a_shorter_struct_the_rest_is_empty() {
        assert_eq!(running_request(), None);
        let whole = raw(size_of::<abi::RunningRequest>());
        // SAFETY: both outlive their guards.
        let entered = unsafe { enter(&raw const whole) };
        let found = running_request().unwrap();
        assert_eq!((found.request_id.as_str(), found.application, found.replica), ("r1", "shop", "App#1"));
        assert_eq!(
            (found.client.as_str(), found.deadline, found.model.as_str()),
            ("127.0.0.1:9", Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(5)), "de")
        );
        let shorter = raw(std::mem::offset_of!(abi::RunningRequest, client));
        {
            // SAFETY: as above.
            let _inner = unsafe { enter(&raw const shorter) };
            let found = running_request().unwrap();
            assert_eq!((found.route_prefix.as_str(), found.client.as_str(), found.deadline), ("/shop", "", None));
            assert_eq!(found.model, "");
            assert!(std::thread::spawn(running_request).join().unwrap().is_none());
        }
        assert_eq!(running_request().unwrap().client, "127.0.0.1:9");
        drop(entered);
        assert_eq!(running_request(), None);
    }
}
