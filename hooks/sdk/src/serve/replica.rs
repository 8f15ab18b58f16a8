//! The loop of a replica: takes events from the host, polls a future for each request, and sends what was answered in one go.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use http::header::CONTENT_LENGTH;
use http::{Request, Uri, Version};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tracer_abi as abi;

use super::DeploymentItem;
use super::body::Body;
use super::context::{Inner, RequestContext};
use super::exchange::{Exchange, Mailbox};
use super::handler::Handler;
use super::lent::{HostTable, read_headers, take_over};
use super::method::CalledMethod;
use crate::serve::batch;
use crate::task::{Arguments, Failure};
use crate::{panics, proxy};

/// Events that are taken at a time.
const EVENTS: usize = 64;

/// Runs a replica of `item` until the host says that it is over.
///
/// # Safety
///
/// `serving` is as [`abi::Deployment::on_serve`] promises.
pub(crate) unsafe fn serve(item: &'static DeploymentItem, serving: *const abi::Serving) -> Result<(), Failure> {
    // SAFETY: promised by the caller.
    let host = unsafe { HostTable::new(serving) };
    let runtime = runtime(host.settings())?;
    // SAFETY: what the host lends stays as it is while the process lives.
    let bytes = unsafe { host.settings().arguments.as_bytes() };
    let created = runtime.block_on(async {
        let creation = panics::catch(|| {
            let mut arguments = Arguments::of_creation(item.name, item.parameters, bytes)?;
            (item.create)(&mut arguments)
        });
        let mut creation = creation.map_err(Failure::of_panic)??;
        poll_fn(|context| match panics::catch(|| creation.as_mut().poll(context)) {
            Ok(polled) => polled,
            Err(panic) => Poll::Ready(Err(Failure::of_panic(panic))),
        })
        .await
    });
    let handler = created?;
    batch::begin_replica(host);
    proxy::report_displaced(item.crate_name);
    host.ready();
    // As a task among the others, whose turn comes after theirs: the future that `block_on` itself polls has to be woken through the system.
    let outcome = runtime.block_on(async { tokio::spawn(run(handler, host)).await });
    let outcome = outcome.unwrap_or_else(|error| Err(stopped(error)));
    // Futures that handlers have spawned end here; what blocks a thread of the pool is left to the end of the process.
    runtime.shutdown_background();
    outcome
}

/// Returns why the loop has not come to its end. A panic in it goes on.
fn stopped(error: tokio::task::JoinError) -> Failure {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => Failure::runtime(format!("the loop of the replica has stopped: {error}")),
    }
}

/// Threads for functions that block, at least: they are started when they are needed.
const BLOCKING_LEAST: usize = 512;

fn runtime(settings: &abi::Serving) -> Result<Runtime, Failure> {
    let mut builder = match settings.threads {
        0 | 1 => Builder::new_current_thread(),
        threads => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads as usize);
            builder
        }
    };
    // A function that blocks has a thread for each request, of which there may be more later.
    builder.max_blocking_threads((settings.max_ongoing_requests as usize).max(BLOCKING_LEAST)).enable_all();
    builder.build().map_err(|error| Failure::runtime(format!("cannot start the async runtime: {error}")))
}

/// The replica's side of all its requests.
struct Replica {
    host: HostTable,
    handler: Arc<dyn Handler>,
    open: Mutex<HashMap<u64, Open>>,
}

/// A request that is open.
struct Open {
    mailbox: Arc<Mailbox>,
    abort: Option<AbortHandle>,
}

async fn run(handler: Arc<dyn Handler>, host: HostTable) -> Result<(), Failure> {
    let replica = Arc::new(Replica { host, handler, open: Mutex::default() });
    let fd = host.event_fd()?;
    // SAFETY: the descriptor stays open, and the same file, while the process lives.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
        .map_err(|error| Failure::runtime(format!("the host's event descriptor cannot be watched: {error}")))?;
    loop {
        if replica.take_events() {
            return Ok(());
        }
        let_others_run().await;
        replica.flush();
        wait(&fd, &replica).await?;
    }
}

/// Lets the futures run that have something to do, before this one goes on.
async fn let_others_run() {
    let mut have_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut have_run, true) {
            return Poll::Ready(());
        }
        // To the end of the queue. `yield_now` would ask the system for events, too, which come later here.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for events, or for an answer that nothing but time has brought. While the host says that events come soon the loop does not sleep.
async fn wait(fd: &AsyncFd<BorrowedFd<'static>>, replica: &Replica) -> Result<(), Failure> {
    let (mut readable, mut answered) = (pin!(fd.readable()), pin!(replica.host.answered()));
    let ready = loop {
        let ready = poll_fn(|context| {
            if let Poll::Ready(ready) = readable.as_mut().poll(context) {
                return Poll::Ready(Some(Some(ready)));
            }
            if answered.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(None));
            }
            if replica.host.look() { Poll::Ready(None) } else { Poll::Pending }
        });
        match ready.await {
            Some(ready) => break ready,
            // The loop takes in what is ready, and comes back without having slept.
            None => tokio::task::yield_now().await,
        }
    };
    replica.host.stay_awake();
    match ready {
        // `take_events` takes all that there are, so the next readiness is another one.
        Some(Ok(mut guard)) => guard.clear_ready(),
        Some(Err(error)) => {
            return Err(Failure::runtime(format!("the host's event descriptor cannot be watched: {error}")));
        }
        None => {}
    }
    Ok(())
}

impl Replica {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what was answered.
    fn flush(&self) {
        if self.host.take_unsent() {
            // What handlers print belongs before their answers.
            let _ = io::stdout().flush();
            self.host.flush();
        }
    }

    /// Takes all events. Returns whether the last of them has come.
    fn take_events(self: &Arc<Self>) -> bool {
        let mut events = [std::ptr::null(); EVENTS];
        loop {
            let taken = self.host.take_events(&mut events);
            for &event in &events[..taken.min(EVENTS)] {
                // SAFETY: the host's event, valid until the next are taken, which nobody does meanwhile.
                let event = unsafe { crate::host::read_sized(event) };
                if event.kind == abi::EVENT_STOP {
                    return true;
                }
                // SAFETY: as above.
                unsafe { self.on_event(&event) };
            }
            if taken == 0 {
                return false;
            }
        }
    }

    /// # Safety
    ///
    /// Everything that `event` points to is readable, and its piece is this side's.
    unsafe fn on_event(self: &Arc<Self>, event: &abi::RequestEvent) {
        // SAFETY: promised by the caller; every event is handled once.
        let piece = unsafe { take_over(event.piece) };
        let mailbox = || self.open().get(&event.number).map(|open| open.mailbox.clone());
        match event.kind {
            abi::EVENT_REQUEST => {
                // SAFETY: promised by the caller.
                let head = unsafe { crate::host::read_sized(event.head) };
                // SAFETY: as above.
                unsafe { self.begin(event.number, &head, |mailbox| self.put(mailbox, event, piece)) };
            }
            abi::EVENT_BODY => {
                if let Some(mailbox) = mailbox() {
                    // SAFETY: promised by the caller.
                    unsafe { self.put(&mailbox, event, piece) };
                }
            }
            abi::EVENT_BODY_CUT => {
                if let Some(mailbox) = mailbox() {
                    mailbox.cut();
                }
            }
            abi::EVENT_ROOM => {
                if let Some(mailbox) = mailbox() {
                    mailbox.room();
                }
            }
            abi::EVENT_GONE => {
                let abort = self.open().get_mut(&event.number).and_then(|open| open.abort.take());
                if let Some(abort) = abort {
                    abort.abort();
                }
            }
            abi::EVENT_HEALTH => self.order(event.number, |handler| handler.health()),
            abi::EVENT_CONFIGURE => self.order(event.number, |handler| handler.reconfigure(piece)),
            _ => {}
        }
    }

    /// # Safety
    ///
    /// The trailers of `event` are readable.
    unsafe fn put(&self, mailbox: &Mailbox, event: &abi::RequestEvent, piece: bytes::Bytes) {
        let trailers = (event.trailer_count > 0)
            // SAFETY: promised by the caller.
            .then(|| unsafe { read_headers(event.trailers, event.trailer_count) });
        mailbox.put(piece, event.is_last != 0, trailers);
    }

    /// Begins a request.
    ///
    /// # Safety
    ///
    /// Everything that `head` points to is readable; its span is lent until the request is ended.
    unsafe fn begin(self: &Arc<Self>, number: u64, head: &abi::RequestHead, put_first: impl FnOnce(&Mailbox)) {
        // SAFETY: promised by the caller.
        let (request, length, context) = unsafe { self.request(number, head) };
        let mailbox = Arc::new(Mailbox::new(self.host, number, length));
        put_first(&mailbox);
        let lent = proxy::Lent { span: head.span, context: head.span_context, baggage: head.baggage, is_guarded: true };
        // SAFETY: promised by the caller; `Exchange` ends the loan before it ends the request.
        let current = unsafe { proxy::attach(lent) }.into_held();
        let mut request = request.map(|()| Body::incoming(mailbox.clone()));
        request.extensions_mut().insert(context.clone());
        if head.version == 0 {
            // SAFETY: promised by the caller.
            let name = String::from_utf8_lossy(unsafe { head.target.as_bytes() });
            request.extensions_mut().insert(CalledMethod(name.into()));
        }
        let replica = self.clone();
        let on_end = Box::new(move |number| {
            replica.open().remove(&number);
        });
        let exchange = Exchange::new(self.handler.clone(), request, mailbox.clone(), current, context, on_end);
        self.open().insert(number, Open { mailbox, abort: None });
        let task = tokio::spawn(exchange);
        // It may have ended already, on another thread.
        if let Some(open) = self.open().get_mut(&number) {
            open.abort = Some(task.abort_handle());
        }
    }

    /// Returns the request without its body, the length that the client has said, and the context.
    ///
    /// # Safety
    ///
    /// Everything that `head` points to is readable.
    unsafe fn request(&self, number: u64, head: &abi::RequestHead) -> (Request<()>, Option<u64>, RequestContext) {
        // SAFETY: promised by the caller.
        let text = |text: abi::Str| String::from_utf8_lossy(unsafe { text.as_bytes() }).into_owned();
        let mut request = Request::new(());
        *request.method_mut() = text(head.method).parse().unwrap_or_default();
        *request.uri_mut() = uri(&text(head.target));
        *request.version_mut() = match head.version {
            10 => Version::HTTP_10,
            20 => Version::HTTP_2,
            _ => Version::HTTP_11,
        };
        // SAFETY: promised by the caller.
        *request.headers_mut() = unsafe { read_headers(head.headers, head.header_count) };
        let length = (head.has_length != 0)
            .then(|| request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok())
            .flatten();
        let model = request.headers().get("x-model-id").and_then(|model| model.to_str().ok());
        let model = model.map(str::to_owned).unwrap_or_default();
        let served = self.host.settings();
        // SAFETY: texts of the host's table live as long as the process, and are UTF-8.
        let name = |text: abi::Str| std::str::from_utf8(unsafe { text.as_bytes() }).unwrap_or_default();
        let context = RequestContext::new(Inner {
            host: Some((self.host, number)),
            application: name(served.application),
            deployment: name(served.deployment),
            replica: name(served.replica),
            request_id: text(head.request_id),
            route_prefix: text(head.route_prefix),
            client: text(head.client),
            model,
            deadline_unix_nano: head.deadline_unix_nano,
        });
        (request, length, context)
    }

    /// Carries out an order of the host's, beside the requests.
    fn order<F>(self: &Arc<Self>, number: u64, call: impl FnOnce(&dyn Handler) -> F)
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let (replica, called) = (self.clone(), panics::catch(|| call(&*self.handler)));
        tokio::spawn(async move {
            let outcome = match called {
                Ok(future) => {
                    let mut future = pin!(future);
                    poll_fn(|context| match panics::catch(|| future.as_mut().poll(context)) {
                        Ok(polled) => polled,
                        Err(panic) => Poll::Ready(Err(Failure::of_panic(panic))),
                    })
                    .await
                }
                Err(panic) => Err(Failure::of_panic(panic)),
            };
            replica.host.answer(number, outcome);
        });
    }
}

/// Returns the target as handlers see it: path and query.
fn uri(target: &str) -> Uri {
    target.parse().unwrap_or_else(|_| Uri::from_static("*"))
}
