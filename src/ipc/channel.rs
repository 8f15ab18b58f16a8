//! Transport of one connection: a Unix stream socket, upgraded on request to a pair of ring buffers in shared memory.
//!
//! While one request follows the other closely, and whoever waits [looks](crate::spin) before it sleeps, most of a round trip is what
//! the kernel does for the sockets. So a client for which looking has paid asks for rings ([`kind::RINGS`]), in memory that both ends have
//! mapped. They carry what is sent to an end that is awake. All else goes through the socket as ever, and wakes whom it reaches.
//!
//! # Order
//!
//! Each direction is a stream of bytes. A piece that goes through the ring says where in the stream it belongs. Before bytes go through
//! the socket, the sender says up to where the stream is committed to it. So a receiver takes each piece in its place, and
//! reads from the socket up to the next one and no further.
//!
//! # Falling asleep
//!
//! A receiver says that it sleeps, and then looks once more. A sender puts a piece into the ring, and then looks whether the receiver is
//! awake. If it is not, the sender takes the piece back and sends it through the socket, unless the receiver was quicker. So no piece
//! stays in a ring whose receiver sleeps.
//!
//! # Trust
//!
//! Everything in the shared memory is an atomic, and nothing that is found there is believed: an end that writes nonsense breaks its
//! own connection and no other. The memory cannot be made shorter, so touching it cannot fail.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, sendmsg,
};

use ring::{COMMITTED, Memory, Next, Ring, RingReceiver, RingSender, SENDER_CORE, UNMAPPED, Way, nonsense};

use crate::protocol::frame::{FrameBuffer, put_frame};
use crate::protocol::kind;
use crate::shared_memory::SharedMemory;
use crate::spin::Spin;

mod ring;

/// Atomics of a [`ring`]; its model has loom's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Words of 64 bits in a ring: room for a batch of tasks of the usual size.
const RING_WORDS: usize = 1 << 10;
/// The two headers fill a page with room to spare; the rings follow.
const HEADER_WORDS: usize = 32;
const RINGS_AT: usize = 512;
const WORDS: usize = RINGS_AT + 2 * RING_WORDS;

/// A pair of rings, mapped.
#[derive(Debug)]
struct Rings(SharedMemory);

impl Rings {
    /// Makes rings, and the file from which the other end maps them.
    fn create() -> io::Result<(Rings, OwnedFd)> {
        let (memory, file) = SharedMemory::create(c"tracer-rings", WORDS)?;
        let rings = Rings(memory);
        rings.header(Way::ToHead, COMMITTED).store(UNMAPPED, Relaxed);
        Ok((rings, file))
    }

    /// Maps the rings that the other end has made.
    fn attach(file: &OwnedFd) -> io::Result<Rings> {
        let memory = SharedMemory::attach(file, WORDS)?;
        if memory.words().len() == WORDS { Ok(Rings(memory)) } else { Err(nonsense()) }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64; WORDS] {
        self.0.words().first_chunk().expect("rings have so many words")
    }
}

impl Memory for Rings {
    const RING_WORDS: usize = RING_WORDS;

    fn header(&self, way: Way, word: usize) -> &AtomicU64 {
        &self.words()[way as usize * HEADER_WORDS + word]
    }

    fn word(&self, way: Way, index: usize) -> &AtomicU64 {
        &self.words()[RINGS_AT + way as usize * RING_WORDS + index]
    }
}

/// Returns the core that this thread runs on, from 1 on; 0 when the kernel does not say.
fn this_core() -> u64 {
    // SAFETY: it takes nothing, and reads what is this thread's own.
    let core = unsafe { libc::sched_getcpu() };
    u64::try_from(core).map_or(0, |core| core + 1)
}

/// The sending half of a connection.
#[derive(Debug, Default)]
pub struct Sender {
    ring: Option<RingSender<Rings>>,
    /// Bytes that were sent since positions are counted.
    position: u64,
    committed: u64,
}

impl Sender {
    /// Sends what it can of `bytes` at once, or waits if the socket does. The next call goes on behind what was sent.
    pub fn write(&mut self, mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
        if let Some(ring) = &self.ring {
            ring.ring.header(SENDER_CORE).store(this_core(), Relaxed);
        }
        if self.committed <= self.position
            && let Some(ring) = &mut self.ring
            && ring.put(self.position, bytes)
        {
            self.position += bytes.len() as u64;
            return Ok(bytes.len());
        }
        // Also what there is no room for now goes through the socket later.
        self.committed = self.committed.max(self.position + bytes.len() as u64);
        if let Some(ring) = &self.ring {
            ring.commit(self.committed);
        }
        let count = stream.write(bytes)?;
        self.position += count as u64;
        Ok(count)
    }

    /// Sends all of it, through a socket that waits.
    pub fn write_all(&mut self, stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(stream, bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes rings on the head's side and gives them to the client. What was sent before goes on through the socket, so nothing may be half sent.
    pub fn give_rings(&mut self, stream: &UnixStream, receiver: &mut Receiver) -> io::Result<()> {
        let (rings, file) = Rings::create()?;
        let mut frame = Vec::new();
        put_frame(&mut frame, kind::RINGS, |_| {});
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        rights.push(SendAncillaryMessage::ScmRights(&files));
        // So few bytes go at once, or not at all.
        sendmsg(stream, &[IoSlice::new(&frame)], &mut rights, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        let rings = Arc::new(rings);
        receiver.ring = Some(RingReceiver::new(Ring { memory: Arc::clone(&rings), way: Way::ToHead }));
        let ring = RingSender::new(Ring { memory: rings, way: Way::ToClient });
        *self = Sender { ring: Some(ring), ..Sender::default() };
        Ok(())
    }

    /// Asks the head for rings, on the client's side.
    pub fn ask_for_rings(&mut self, stream: &UnixStream) -> io::Result<()> {
        let mut frame = Vec::new();
        put_frame(&mut frame, kind::RINGS, |_| {});
        self.write_all(stream, &frame)?;
        (self.position, self.committed) = (0, 0);
        Ok(())
    }

    /// Sends through the rings that have come, if any have, on the client's side.
    pub fn attach(&mut self, rings: Option<NewRings>) {
        if let Some(NewRings(ring)) = rings {
            ring.commit(self.committed);
            self.ring = Some(ring);
        }
    }
}

/// Rings that have come, for the sending half of a client.
#[derive(Debug)]
pub struct NewRings(RingSender<Rings>);

/// The receiving half of a connection.
#[derive(Debug, Default)]
pub struct Receiver {
    ring: Option<RingReceiver<Rings>>,
    /// Bytes that were received since positions are counted.
    position: u64,
    has_asked: bool,
    /// The file that has come with an answer.
    file: Option<OwnedFd>,
}

impl Receiver {
    /// Receives once, without waiting, from a socket that does not wait: 0 at the end of the stream.
    pub fn read(&mut self, stream: &UnixStream, inbox: &mut FrameBuffer) -> io::Result<usize> {
        loop {
            let looked_up_to = self.committed();
            match self.next()? {
                Next::Piece => {
                    let count = self.take_piece(inbox)?;
                    if count > 0 {
                        return Ok(count);
                    }
                }
                Next::Socket(limit) => return self.read_socket(stream, inbox, limit, RecvFlags::DONTWAIT),
                Next::Nothing => {
                    // Only the end of the stream is not announced.
                    let (bytes, _) = recv(stream, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
                    if bytes == 0 && matches!(self.next()?, Next::Nothing) {
                        return Ok(0);
                    }
                    if bytes > 0 && self.committed() == looked_up_to {
                        return Err(nonsense());
                    }
                }
            }
        }
    }

    /// Receives once: what comes while it looks, or else what comes whenever it does. 0 at the end of the stream. No piece is in the ring
    /// afterwards, so whoever waits for the socket to be readable hears of all that comes.
    pub fn wait(&mut self, stream: &UnixStream, inbox: &mut FrameBuffer, spin: &mut Spin) -> io::Result<usize> {
        if self.ring.is_none() {
            let mut found = None;
            spin.look(|| match self.read_socket(stream, inbox, u64::MAX, RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                read => {
                    found = Some(read);
                    true
                }
            });
            if let Some(read) = found {
                return read;
            }
        } else if spin.will_look() && !(spin.is_for_answers() && self.shares_core()) {
            self.wake_up();
            let mut found = Ok(0);
            spin.look(|| {
                found = match self.next() {
                    Ok(Next::Piece) => return true,
                    Ok(Next::Socket(limit)) => self.read_socket(stream, inbox, limit, RecvFlags::DONTWAIT),
                    Ok(Next::Nothing) => return false,
                    Err(error) => Err(error),
                };
                !found.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            });
            self.fall_asleep();
            let found =
                found.or_else(|error| if error.kind() == ErrorKind::WouldBlock { Ok(0) } else { Err(error) })?;
            let received = found + self.take_all(stream, inbox)?;
            if received > 0 {
                return Ok(received);
            }
        }
        self.read_socket(stream, inbox, u64::MAX, RecvFlags::empty())
    }

    /// Returns whether the other end has to run on the core that this end looks on, as far as is known. Then looking keeps it from what is
    /// waited for: who yields runs on until it has had as much of the core as the other, which has more to do.
    fn shares_core(&self) -> bool {
        let of_sender = self.ring.as_ref().map_or(0, |ring| ring.ring.header(SENDER_CORE).load(Relaxed));
        of_sender != 0 && of_sender == this_core()
    }

    /// Takes what has come while it was awake.
    fn take_all(&mut self, stream: &UnixStream, inbox: &mut FrameBuffer) -> io::Result<usize> {
        let mut received = 0;
        loop {
            match self.next()? {
                Next::Piece => received += self.take_piece(inbox)?,
                Next::Socket(limit) => {
                    // What is committed before a piece is about to come.
                    let flags = if self.has_pieces() { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
                    match self.read_socket(stream, inbox, limit, flags) {
                        Ok(0) => return Ok(received),
                        Ok(count) => received += count,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(received),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                Next::Nothing => return Ok(received),
            }
        }
    }

    fn read_socket(
        &mut self,
        stream: &UnixStream,
        inbox: &mut FrameBuffer,
        limit: u64,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let file = (self.has_asked && self.ring.is_none()).then_some(&mut self.file);
        let count = inbox.read_from(&mut Socket { stream, limit, flags, file })?;
        self.position += count as u64;
        Ok(count)
    }

    fn committed(&self) -> Option<u64> {
        self.ring.as_ref().and_then(RingReceiver::committed)
    }

    fn next(&mut self) -> io::Result<Next> {
        let position = self.position;
        self.ring.as_mut().map_or(Ok(Next::Socket(u64::MAX)), |ring| ring.next(position))
    }

    fn front(&mut self) -> io::Result<Option<u64>> {
        self.ring.as_mut().map_or(Ok(None), RingReceiver::front)
    }

    /// Returns whether pieces are in the ring.
    fn has_pieces(&mut self) -> bool {
        matches!(self.front(), Ok(Some(_)))
    }

    /// Returns whether there is more to receive, as far as that can be seen without asking the kernel.
    pub fn has_more(&mut self) -> bool {
        self.ring.is_some() && self.committed().is_some() && !matches!(self.next(), Ok(Next::Nothing))
    }

    /// Returns whether a piece comes next.
    pub fn has_piece(&mut self) -> bool {
        let position = self.position;
        self.front().map_or(true, |front| front == Some(position))
    }

    /// Takes the first piece. Returns its length; 0 when it was taken back meanwhile.
    fn take_piece(&mut self, inbox: &mut FrameBuffer) -> io::Result<usize> {
        let Some(ring) = &mut self.ring else { return Ok(0) };
        let count = ring.take(|piece| inbox.read_from(piece))?;
        self.position += count as u64;
        Ok(count)
    }

    /// From now on it looks into the ring, if the other end has mapped it.
    pub fn wake_up(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.wake_up();
        }
    }

    /// Stops looking into the ring, once it has taken what is there now.
    pub fn fall_asleep(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.fall_asleep();
        }
    }

    /// Returns whether a client is to ask for rings now, which it does once.
    pub fn begins_to_ask(&mut self, spin: &Spin) -> bool {
        spin.has_paid_often() && !std::mem::replace(&mut self.has_asked, true)
    }

    /// Notes on the head's side that the client has asked for rings. What of the inbox was not handled yet came after that.
    pub fn was_asked(&mut self, inbox: &FrameBuffer) {
        self.position = inbox.unread() as u64;
    }

    /// Notes on the client's side that the head has answered. What of the inbox was not handled yet came after that. Without rings it stays with the socket.
    pub fn attach(&mut self, inbox: &FrameBuffer) -> Option<NewRings> {
        let rings = Arc::new(Rings::attach(&self.file.take()?).ok()?);
        self.position = inbox.unread() as u64;
        self.ring = Some(RingReceiver::new(Ring { memory: Arc::clone(&rings), way: Way::ToClient }));
        Some(NewRings(RingSender::new(Ring { memory: rings, way: Way::ToHead })))
    }
}

/// A socket that is read with conditions.
struct Socket<'a> {
    stream: &'a UnixStream,
    limit: u64,
    flags: RecvFlags,
    /// Place for a file that comes with the bytes, if one may come.
    file: Option<&'a mut Option<OwnedFd>>,
}

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.limit).map_or(buffer.len(), |limit| limit.min(buffer.len()));
        let buffer = &mut buffer[..length];
        let Some(file) = &mut self.file else { return Ok(recv(self.stream, buffer, self.flags)?.0) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = self.flags | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(self.stream, &mut [IoSliceMut::new(buffer)], &mut rights, flags)?;
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                **file = files.last();
            }
        }
        Ok(received.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use proptest::prelude::*;

    use super::*;

    /// One end of a connection.
    #[derive(Default)]
    struct End {
        sender: Sender,
        receiver: Receiver,
        inbox: FrameBuffer,
    }

    impl End {
        /// Takes what has come to the inbox.
        fn take(&mut self) -> Vec<u8> {
            let mut bytes = Vec::new();
            while let Some((frame_kind, body)) =
                self.inbox.next_frame(1 << 20).expect("frames arrive as they were sent")
            {
                assert_eq!(frame_kind, kind::OUTPUT);
                bytes.extend_from_slice(body);
            }
            bytes
        }
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        put_frame(&mut frame, kind::OUTPUT, |out| out.extend_from_slice(body));
        frame
    }

    /// Returns a head and a client that have rings.
    fn ringed() -> (End, UnixStream, End, UnixStream) {
        let (mut head, mut client) = (End::default(), End::default());
        let (head_stream, client_stream) = UnixStream::pair().unwrap();
        head_stream.set_nonblocking(true).unwrap();
        client.receiver.has_asked = true;
        client.sender.ask_for_rings(&client_stream).unwrap();
        // What is sent between the question and the answer counts.
        client.sender.write_all(&client_stream, &frame(b"early")).unwrap();
        head.receiver.read(&head_stream, &mut head.inbox).unwrap();
        assert_eq!(head.inbox.next_frame(100), Ok(Some((kind::RINGS, &[][..]))));
        head.receiver.was_asked(&head.inbox);
        assert_eq!(head.take(), b"early");
        head.sender.give_rings(&head_stream, &mut head.receiver).unwrap();
        head.sender.write_all(&head_stream, &frame(b"first")).unwrap();
        let mut spin = Spin::default();
        client.receiver.wait(&client_stream, &mut client.inbox, &mut spin).unwrap();
        if client.inbox.unread() < 15 {
            client.receiver.wait(&client_stream, &mut client.inbox, &mut spin).unwrap();
        }
        assert_eq!(client.inbox.next_frame(100), Ok(Some((kind::RINGS, &[][..]))));
        let rings = client.receiver.attach(&client.inbox);
        assert!(rings.is_some());
        client.sender.attach(rings);
        assert_eq!(client.take(), b"first");
        (head, head_stream, client, client_stream)
    }

    fn is_readable(stream: &UnixStream) -> bool {
        crate::spin::is_readable(stream, std::time::Duration::ZERO)
    }

    #[test]
    fn who_is_awake_gets_it_through_the_ring_and_who_sleeps_through_the_socket() {
        let (mut head, head_stream, mut client, client_stream) = ringed();
        client.sender.write_all(&client_stream, &frame(b"one")).unwrap();
        assert!(is_readable(&head_stream) && !head.receiver.has_piece());
        head.receiver.wake_up();
        client.sender.write_all(&client_stream, &frame(b"two")).unwrap();
        assert!(!head.receiver.has_piece(), "the first one comes before it");
        assert!(head.receiver.has_more());
        head.receiver.read(&head_stream, &mut head.inbox).unwrap();
        assert_eq!(head.take(), b"one", "no more than that is read from the socket");
        assert!(!is_readable(&head_stream) && head.receiver.has_piece());
        head.receiver.read(&head_stream, &mut head.inbox).unwrap();
        assert_eq!(head.take(), b"two");
        head.receiver.fall_asleep();
        client.sender.write_all(&client_stream, &frame(b"three")).unwrap();
        assert!(is_readable(&head_stream) && !head.receiver.has_piece());
    }

    #[test]
    fn whoever_waits_for_an_answer_leaves_the_core_to_whom_it_is_from() {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let (mut head, head_stream, mut client, client_stream) = ringed();
        let here = this_core();
        assert_ne!(here, 0, "the kernel says which core it is");
        let mut only = CpuSet::new();
        only.set(here as usize - 1);
        sched_setaffinity(None, &only).expect("a core that it has run on");
        let mut looks = |core: u64, mut spin: Spin| {
            head.sender.write_all(&head_stream, &frame(b"answer")).unwrap();
            let said = &head.sender.ring.as_ref().unwrap().ring.header(SENDER_CORE);
            assert_eq!(said.load(Relaxed), here);
            said.store(core, Relaxed);
            client.receiver.wait(&client_stream, &mut client.inbox, &mut spin).unwrap();
            assert_eq!(client.take(), b"answer");
            spin.paid_looks()
        };
        assert_eq!(looks(here, Spin::always().for_answers()), 0, "it sleeps");
        assert_eq!(looks(here + 1, Spin::always().for_answers()), 1, "the head runs elsewhere");
        assert_eq!(looks(0, Spin::always().for_answers()), 1, "nobody knows where");
        assert_eq!(looks(here, Spin::always()), 1, "a worker waits for whatever comes");
    }

    #[test]
    fn what_the_ring_has_no_room_for_goes_through_the_socket_and_what_follows_keeps_its_place() {
        let (mut head, head_stream, mut client, client_stream) = ringed();
        head.receiver.wake_up();
        let mut sent = Vec::new();
        for length in [7_000, 3_000, 100, 8, 9_000, 1] {
            let body: Vec<u8> = (0..length).map(|byte: usize| (byte * 7 + length) as u8).collect();
            client.sender.write_all(&client_stream, &frame(&body)).unwrap();
            sent.extend_from_slice(&body);
        }
        let mut received = Vec::new();
        while head.receiver.has_more() {
            head.receiver.read(&head_stream, &mut head.inbox).unwrap();
            received.extend(head.take());
        }
        assert!(received == sent);
        assert!(head.receiver.read(&head_stream, &mut head.inbox).is_err_and(|e| e.kind() == ErrorKind::WouldBlock));
    }

    #[test]
    fn what_was_sent_before_the_end_is_received_before_it() {
        let (mut head, head_stream, mut client, client_stream) = ringed();
        head.receiver.wake_up();
        client.sender.write_all(&client_stream, &frame(b"last")).unwrap();
        client_stream.shutdown(Shutdown::Both).unwrap();
        assert_ne!(head.receiver.read(&head_stream, &mut head.inbox).unwrap(), 0);
        assert_eq!(head.take(), b"last");
        assert_eq!(head.receiver.read(&head_stream, &mut head.inbox).unwrap(), 0);
        // The client has shut it down itself, so what it waits for ends too.
        let mut spin = Spin::default();
        assert_eq!(client.receiver.wait(&client_stream, &mut client.inbox, &mut spin).unwrap(), 0);
    }

    #[test]
    fn a_piece_that_the_receiver_did_not_see_before_it_slept_is_taken_back() {
        let (mut head, _head_stream, mut client, client_stream) = ringed();
        head.receiver.wake_up();
        client.sender.write_all(&client_stream, &frame(b"one")).unwrap();
        // As the sender does when it finds the receiver asleep.
        client.sender.ring.as_ref().unwrap().take_back(0);
        assert!(!head.receiver.has_piece());
        client.sender.position -= 8;
        client.sender.write_all(&client_stream, &frame(b"one")).unwrap();
        assert!(head.receiver.has_piece(), "its room is free again, and it is sent at its place");
    }

    #[test]
    fn a_client_that_cannot_map_rings_goes_on_with_its_socket() {
        let (mut head, mut client) = (End::default(), End::default());
        let (head_stream, client_stream) = UnixStream::pair().unwrap();
        head_stream.set_nonblocking(true).unwrap();
        client.sender.ask_for_rings(&client_stream).unwrap();
        head.receiver.read(&head_stream, &mut head.inbox).unwrap();
        head.inbox.next_frame(100).unwrap();
        head.receiver.was_asked(&head.inbox);
        head.sender.give_rings(&head_stream, &mut head.receiver).unwrap();
        head.receiver.wake_up();
        client.sender.attach(None);
        for _ in 0..3 {
            client.sender.write_all(&client_stream, &frame(b"on")).unwrap();
            head.receiver.read(&head_stream, &mut head.inbox).unwrap();
            assert_eq!(head.take(), b"on");
        }
    }

    /// Sends `bodies` in a thread each way, with receivers that fall asleep and wake up at their own pace.
    fn exchange(bodies: &[Vec<u8>], naps: &[u8]) {
        let (mut head, head_stream, mut client, client_stream) = ringed();
        let sent = bodies.concat();
        std::thread::scope(|scope| {
            let mut to_head = std::mem::take(&mut client.sender);
            let mut to_client = std::mem::take(&mut head.sender);
            let (for_client, for_head) = (client_stream.try_clone().unwrap(), head_stream.try_clone().unwrap());
            scope.spawn(move || {
                bodies.iter().for_each(|body| to_head.write_all(&for_client, &frame(body)).unwrap());
            });
            scope.spawn(move || {
                for body in bodies {
                    let frame = frame(body);
                    let mut rest = &frame[..];
                    while !rest.is_empty() {
                        match to_client.write(&for_head, rest) {
                            Ok(count) => rest = &rest[count..],
                            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
            scope.spawn(|| {
                let mut received = Vec::new();
                let (mut looks, mut sleeps) = (Spin::always(), Spin::default());
                for nap in naps.iter().cycle() {
                    if received.len() == sent.len() {
                        break;
                    }
                    let spin = if nap % 2 == 0 {
                        &mut looks
                    } else {
                        let limit = std::time::Duration::from_secs(60);
                        assert!(crate::spin::is_readable(&client_stream, limit), "the socket says what has come");
                        &mut sleeps
                    };
                    assert_ne!(client.receiver.wait(&client_stream, &mut client.inbox, spin).unwrap(), 0);
                    received.extend(client.take());
                }
                assert!(received == sent);
            });
            let mut received = Vec::new();
            for nap in naps.iter().cycle() {
                if received.len() == sent.len() {
                    break;
                }
                head.receiver.wake_up();
                (0..*nap).for_each(|_| std::thread::yield_now());
                if nap % 3 == 0 && !head.receiver.has_piece() {
                    head.receiver.fall_asleep();
                    if !head.receiver.has_more() {
                        crate::spin::is_readable(&head_stream, std::time::Duration::from_secs(60));
                    }
                }
                match head.receiver.read(&head_stream, &mut head.inbox) {
                    Ok(count) => assert_ne!(count, 0),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
                received.extend(head.take());
            }
            assert!(received == sent);
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn everything_arrives_once_and_in_order(
            bodies in prop::collection::vec(
                prop_oneof![
                    8 => prop::collection::vec(any::<u8>(), 0..300),
                    1 => prop::collection::vec(any::<u8>(), 7_000..40_000),
                ],
                1..200,
            ),
            naps in prop::collection::vec(0..8u8, 1..40),
        ) {
            exchange(&bodies, &naps);
        }

        /// Writes anything from the other end into the memory: it is refused or taken for bytes, and neither waited for nor believed.
        #[test]
        fn nonsense_in_the_rings_breaks_no_more_than_the_connection(
            nonsense in prop::collection::vec(
                (prop_oneof![Just(ring::TAIL), Just(COMMITTED), 0..WORDS], prop_oneof![0..5000u64, any::<u64>()]),
                1..40,
            ),
        ) {
            let (mut head, head_stream, mut client, client_stream) = ringed();
            head.receiver.wake_up();
            client.sender.write_all(&client_stream, &frame(b"good")).unwrap();
            for (word, value) in nonsense {
                client.sender.ring.as_ref().unwrap().ring.memory.words()[word].store(value, Relaxed);
                for _ in 0..4 {
                    let _ = (head.receiver.has_piece(), head.receiver.has_more());
                    let _ = head.receiver.read(&head_stream, &mut head.inbox);
                    let _ = head.sender.write(&head_stream, &frame(b"answer"));
                }
            }
        }
    }
}
