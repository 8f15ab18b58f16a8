//! A model of a connection's ring (`channel/ring.rs`) with its socket: loom says when bytes are lost, come twice or out of order, or stay in the
//! ring of a receiver that sleeps.

#![allow(unreachable_pub, dead_code, reason = "the file that is included has them for its own crate")]

mod model;
#[path = "../channel/ring.rs"]
mod ring;

mod sync {
    pub(super) use super::model::{AtomicU64, Ordering, fence};
}

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;
use model::{AtomicU64, Weakened, check};
use ring::{Memory, Next, Ring, RingReceiver, RingSender, Way};

/// Room for two pieces of a byte: the third goes where the first was.
const RING_WORDS: usize = 6;

struct OneRing {
    header: [AtomicU64; 5],
    words: [AtomicU64; RING_WORDS],
    /// Bytes that go through the socket, in their order.
    socket: Mutex<VecDeque<u8>>,
}

impl Memory for OneRing {
    const RING_WORDS: usize = RING_WORDS;

    fn header(&self, _: Way, word: usize) -> &AtomicU64 {
        // Two lines apart in the real one.
        &self.header[word % 13]
    }

    fn word(&self, _: Way, index: usize) -> &AtomicU64 {
        &self.words[index]
    }
}

struct Sender {
    ring: RingSender<OneRing>,
    position: u64,
    committed: u64,
}

impl Sender {
    /// Sends a byte as the sender of a connection does.
    fn send(&mut self, byte: u8) {
        if self.committed > self.position || !self.ring.put(self.position, &[byte]) {
            self.committed = self.position + 1;
            self.ring.commit(self.committed);
            self.ring.ring.memory.socket.lock().unwrap().push_back(byte);
        }
        self.position += 1;
    }
}

struct Receiver {
    ring: RingReceiver<OneRing>,
    received: Vec<u8>,
}

impl Receiver {
    /// Takes what comes next, as the receiver of a connection does. False when there is nothing.
    fn receive(&mut self) -> bool {
        match self.ring.next(self.received.len() as u64).unwrap() {
            Next::Nothing => false,
            Next::Piece => {
                let mut byte = [0; 1];
                // None when it was taken back.
                let count = self.ring.take(|piece| piece.read(&mut byte)).unwrap();
                self.received.extend(&byte[..count]);
                true
            }
            Next::Socket(limit) => {
                assert!(limit > 0);
                // What was committed before a piece is about to come.
                let waits = self.ring.front().unwrap().is_some();
                loop {
                    if let Some(byte) = self.ring.ring.memory.socket.lock().unwrap().pop_front() {
                        self.received.push(byte);
                        return true;
                    }
                    if !waits {
                        return false;
                    }
                    thread::yield_now();
                }
            }
        }
    }
}

/// A receiver that is awake, looks once, and falls asleep, while a sender sends.
fn exchange(weakened: Weakened, count: u8) {
    check(weakened, move || {
        let zero = || AtomicU64::new(0);
        let memory = Arc::new(OneRing {
            header: std::array::from_fn(|_| zero()),
            words: std::array::from_fn(|_| zero()),
            socket: Mutex::default(),
        });
        let ring = || Ring { memory: Arc::clone(&memory), way: Way::ToHead };
        let mut sender = Sender { ring: RingSender::new(ring()), position: 0, committed: 0 };
        let mut receiver = Receiver { ring: RingReceiver::new(ring()), received: Vec::new() };
        receiver.ring.wake_up();
        let sending = thread::spawn(move || (1..=count).for_each(|byte| sender.send(byte)));
        receiver.receive();
        receiver.ring.fall_asleep();
        while receiver.receive() {}
        sending.join().unwrap();
        // From now on it waits for the socket alone.
        assert_eq!(receiver.ring.front().unwrap(), None, "a piece stays in the ring of a receiver that sleeps");
        receiver.received.extend(memory.socket.lock().unwrap().drain(..));
        assert!(receiver.received.iter().copied().eq(1..=count), "{:?}", receiver.received);
    });
}

#[test]
fn bytes_arrive_once_and_in_order_and_none_stays_with_a_receiver_that_sleeps() {
    exchange(Weakened::Nothing, 3);
}

#[test]
#[should_panic(expected = "has invalid contents")]
fn without_acquire_and_release_a_piece_is_seen_before_its_bytes() {
    exchange(Weakened::Synchronization, 1);
}

#[test]
#[should_panic(expected = "stays in the ring")]
fn without_the_fences_a_piece_stays_with_a_receiver_that_sleeps() {
    exchange(Weakened::Fences, 1);
}
