//! The loop of a thread: it follows orders, accepts connections, and drains.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;
use tracer_core::problem::Problem;
use tracer_ipc::session;

use super::super::access_log::AccessLog;
use super::super::admission::Admission;
use super::super::connection::{Connection, conversation};
use super::super::figures::Figures;
use super::super::limits::RefusalTurns;
use super::super::refusals;
use super::super::rounds::{self, Rounds};
use super::super::spinning::Spinning;
use super::super::stream::ClientStream;
use super::super::tls::Certified;
use super::{ACCEPT_PAUSE, Begin, OldNames, Order, ProxyThread};
/// Runs a thread until it has drained, or nobody gives it orders any more.
pub(in crate::proxy) fn run(begin: Begin, orders: UnboundedReceiver<Order>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(follow(begin, orders))
}

async fn follow(begin: Begin, mut orders: UnboundedReceiver<Order>) -> std::io::Result<()> {
    let place = session::place_of(&begin.session_dir).to_owned();
    let thread = Rc::new(ProxyThread {
        admission: Admission::new(Arc::clone(&begin.table), begin.caller, begin.seed, Arc::clone(&begin.reports)),
        recorder: begin.recorder,
        propagators: begin.propagators,
        old_names: OldNames::of(&std::env::var("OTEL_SEMCONV_STABILITY_OPT_IN").unwrap_or_default()),
        spinning: Spinning::default(),
        figures: Figures::open(&place, &begin.service),
        log: RefCell::new(AccessLog::open(&begin.session_dir, &begin.service, begin.log_limit)),
        settings: RefCell::default(),
        lanes: RefCell::new(vec![None; begin.table.capacity().replicas]),
        lost: RefCell::default(),
        flush: Rc::default(),
        connections: RefCell::default(),
        room: begin.room,
        next_connection: Cell::new(0),
        rounds: Rounds::default(),
        is_draining: Cell::new(false),
        has_heir: Cell::new(false),
        random: Cell::new(begin.seed),
        reports: begin.reports,
        commits: begin.commits,
        is_about_to_write: Cell::new(false),
        refusal_turns: RefusalTurns::default(),
        lingering: Cell::new(0),
        table: begin.table,
    });
    let flush = Rc::clone(&thread.flush);
    drop(tokio::task::spawn_local(async move { flush.run().await }));
    let spinning = Rc::clone(&thread);
    drop(tokio::task::spawn_local(async move { spinning.spinning.run().await }));
    drop(tokio::task::spawn_local(collect(Rc::clone(&thread), begin.wake)));
    drop(tokio::task::spawn_local(rounds::look_after(Rc::clone(&thread))));
    let mut listener = Some(begin.listener);
    let mut accepting: Option<AbortHandle> = None;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Settings(settings, certified, done) => {
                thread.configure(&settings, certified);
                if let Some(listener) = listener.take() {
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    accepting = Some(tokio::task::spawn_local(accept(Rc::clone(&thread), listener)).abort_handle());
                }
                drop(done);
            }
            Order::Lane { replica, name, socket, claims, done } => {
                thread.take_lane(replica, &name, socket, &claims);
                drop(done);
            }
            Order::Caller(caller, wake) => thread.admission.add_caller(caller, wake),
            Order::Refresh => thread.refresh(),
            Order::Tell(telling) => thread.notify(&telling),
            Order::Gone(replica) => {
                thread.gone(replica);
                thread.refresh();
            }
            Order::Connection(socket) => thread.take_over(socket),
            Order::Drain { timeout, has_heir, done } => {
                thread.has_heir.set(has_heir);
                // Not polled again, so that the next connection is another proxy's.
                if let Some(accepting) = accepting.take() {
                    accepting.abort();
                }
                drop(done);
                drain(&thread, &mut orders, timeout).await;
                break;
            }
        }
    }
    thread.log.borrow_mut().write();
    Ok(())
}

/// Waits until there is no connection any more, and follows meanwhile what is said of replicas.
async fn drain(thread: &Rc<ProxyThread>, orders: &mut UnboundedReceiver<Order>, timeout: Duration) {
    thread.is_draining.set(true);
    thread.connections.borrow().values().for_each(|connection| connection.wake());
    let deadline = Instant::now() + timeout;
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    while !thread.connections.borrow().is_empty() {
        if Instant::now() >= deadline {
            thread.connections.borrow().values().for_each(|connection| connection.cut());
        }
        let order = poll_fn(|context| match orders.poll_recv(context) {
            Poll::Ready(Some(order)) => Poll::Ready(Some(order)),
            Poll::Ready(None) | Poll::Pending => tick.poll_tick(context).map(|_| None),
        });
        match order.await {
            Some(Order::Gone(replica)) => thread.gone(replica),
            Some(Order::Refresh) => thread.refresh(),
            Some(Order::Tell(telling)) => thread.notify(&telling),
            Some(Order::Lane { replica, name, socket, claims, done }) => {
                thread.take_lane(replica, &name, socket, &claims);
                drop(done);
            }
            Some(Order::Drain { has_heir: false, .. }) => {
                thread.has_heir.set(false);
                thread.connections.borrow().values().for_each(|connection| connection.wake());
            }
            _ => {}
        }
    }
}

/// Takes what other callers have granted, each time that one of them says so.
async fn collect(thread: Rc<ProxyThread>, wake: OwnedFd) {
    // An event descriptor is read as a pipe is.
    let Ok(wake) = pipe::Receiver::from_owned_fd_unchecked(wake) else { return };
    while wake.readable().await.is_ok() {
        let _ = wake.try_read(&mut [0; 8]);
        thread.admission.collect();
    }
}

async fn accept(thread: Rc<ProxyThread>, listener: tokio::net::TcpListener) {
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // As many files are open as may be. Those who wait are served when others have gone.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let certified = thread.settings().certified.clone();
        thread.converse(stream, address, certified);
    }
}

impl ProxyThread {
    /// Serves a connection that was accepted, if there is room for it; with certificates, if its client speaks TLS.
    fn converse(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, certified: Option<Arc<Certified>>) {
        // Answers are written whole, and nobody waits for a second one.
        let _ = stream.set_nodelay(true);
        if !self.make_room() {
            if certified.is_some() {
                // To say why takes a handshake, which is what there is no room for.
                return;
            }
            let text = "the limit on connections is reached, and all of them are busy";
            let problem = Problem::new(refusals::UNAVAILABLE, text).header(http::header::RETRY_AFTER, "1");
            let (thread, request_id) = (Rc::clone(self), self.new_request_id());
            drop(tokio::task::spawn_local(async move {
                let stream = ClientStream::Plain(stream);
                conversation::turn_away(&thread, stream, problem, request_id.to_str().unwrap_or_default()).await;
            }));
            return;
        }
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        let known = Connection::new(self, address);
        self.connections.borrow_mut().insert(number, Rc::clone(&known));
        self.room.take();
        let own = Rc::clone(self);
        drop(tokio::task::spawn_local(async move {
            conversation::converse(Rc::clone(&own), stream, known, certified).await;
            own.connections.borrow_mut().remove(&number);
            own.room.give_back();
        }));
    }

    /// Takes a connection that another proxy had.
    fn take_over(self: &Rc<Self>, socket: OwnedFd) {
        let stream = std::net::TcpStream::from(socket);
        // One whose client has gone meanwhile has no address.
        if let Ok(address) = stream.peer_addr()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            // With TLS it would have stayed where its keys are.
            self.converse(stream, address, None);
        }
    }

    /// Makes room for a connection: if there are too many, the one goes that has had nothing to do for longest. False when all have.
    fn make_room(&self) -> bool {
        if self.room.is_left() {
            return true;
        }
        let connections = self.connections.borrow();
        let idle = connections.values().filter_map(|known| Some((known.idle_for(self.look())?, known)));
        let longest = idle.max_by_key(|(looks, _)| *looks);
        longest.inspect(|(_, connection)| connection.cut()).is_some()
    }
}
