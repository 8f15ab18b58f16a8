//! Output on its way over a server: in order, before what is asked later, and never more than so much at a time. What is too much is dropped.

use std::sync::Arc;

use async_nats::Subscriber;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::coop::unconstrained;
use tracer_core::PlaceId;

use super::{FromEngine, Nats, told_subject};
use crate::message::TOLD_LIMIT;
use crate::output::OutputMessage;

/// The most bytes of output that are on their way to the server.
const LEAVING: usize = 4 << 20;
/// The most bytes of output that have come from the server and wait for the agent.
const COMING: usize = 8 << 20;

/// Room for output that leaves.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LEAVING))
}

/// Takes room for so many bytes, if there is some.
fn take(room: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    Arc::clone(room).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
}

impl Nats {
    /// Sends output to the node of a place: at once, so that what is asked later comes later, or not at all.
    pub(crate) fn send_output(&self, place: PlaceId, message: Vec<u8>) {
        let Some(room) = take(&self.output_room, message.len()) else { return };
        let publishing = self.client.publish(told_subject(place), message.into());
        if unconstrained(publishing).now_or_never().is_some_and(|sent| sent.is_ok()) {
            let client = self.client.clone();
            tokio::spawn(async move {
                let _ = client.flush().await;
                drop(room);
            });
        }
    }
}

/// A wish to hear when everything is handed on that other nodes had told by then.
pub(super) type Turn = oneshot::Sender<()>;

/// Hands on what other nodes tell, and grants turns.
pub(super) async fn hand_on(
    mut told: Subscriber,
    mut turns: UnboundedReceiver<Turn>,
    events: UnboundedSender<FromEngine>,
) {
    let room = Arc::new(Semaphore::new(COMING));
    loop {
        tokio::select! {
            biased;
            message = told.next() => {
                let Some(message) = message else { return };
                let taken = match OutputMessage::is_one(&message.payload) {
                    true => match take(&room, message.payload.len()) {
                        None => continue,
                        taken => taken,
                    },
                    false if message.payload.len() > TOLD_LIMIT => continue,
                    false => None,
                };
                let _ = events.send(FromEngine::Told(message.payload.to_vec(), taken));
            }
            Some(turn) = turns.recv() => drop(turn.send(())),
        }
    }
}

/// Waits until everything is handed on that other nodes have told by now.
pub(super) async fn wait_for_turn(turns: &UnboundedSender<Turn>) {
    let (turn, granted) = oneshot::channel();
    if turns.send(turn).is_ok() {
        let _ = granted.await;
    }
}
