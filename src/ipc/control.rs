//! The control socket: orders of the head to a process that it has started, reports back, and files that go along.
//!
//! A Unix socket of the kind SOCK_SEQPACKET, so that a message and its files arrive together or not at all. The proxy and the replicas of a
//! service have one each, as their standard input. A message is MessagePack and at most [`MESSAGE_LIMIT`] bytes long; what may be longer goes
//! in a [file](send_long) of memory.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a message.
pub const MESSAGE_LIMIT: usize = 64 << 10;
/// The most files that go along with one message.
pub const FILE_LIMIT: usize = 64;
/// The most bytes of what goes in a file.
const LONG_LIMIT: u64 = 64 << 20;

/// Makes both ends of a control socket.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a message, with files. Fails with [`ErrorKind::WouldBlock`] when the other end does not read, and the socket does not block.
pub fn send(socket: impl AsFd, message: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
    if bytes.len() > MESSAGE_LIMIT || files.len() > FILE_LIMIT {
        let reason = format!("a message of {} bytes with {} files is too large", bytes.len(), files.len());
        return Err(io::Error::new(ErrorKind::InvalidInput, reason));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILE_LIMIT))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(files));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut rights, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Receives a message with its files. None when the other end is closed.
///
/// # Errors
///
/// [`ErrorKind::WouldBlock`] when there is none and the socket does not block; [`ErrorKind::InvalidData`] for what is no message.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_LIMIT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILE_LIMIT))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut files = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message of a control socket was cut"));
    }
    let message = rmp_serde::from_slice(&bytes[..received.bytes]);
    Ok(Some((message.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?, files)))
}

/// Puts a value into a file of memory, for a message that it would make too long.
pub fn send_long(value: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"tracer-control", MemfdFlags::CLOEXEC)?);
    file.write_all(&rmp_serde::to_vec_named(value).map_err(io::Error::other)?)?;
    Ok(file.into())
}

/// Reads what [`send_long`] has written.
pub fn receive_long<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let mut file = File::from(file);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(LONG_LIMIT).read_to_end(&mut bytes)?;
    rmp_serde::from_slice(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_files_and_the_end_is_seen() {
        let (one, other) = pair().unwrap();
        let long = send_long(&vec!["x".repeat(1000); 100]).unwrap();
        send(&one, &("first", 1), &[long.as_fd(), one.as_fd()]).unwrap();
        send(&one, &("second", 2), &[]).unwrap();
        drop(one);
        let (first, mut files) = receive::<(String, u32)>(&other).unwrap().unwrap();
        assert_eq!((first, files.len()), (("first".to_owned(), 1), 2));
        let long: Vec<String> = receive_long(files.remove(0)).unwrap();
        assert_eq!((long.len(), long[99].len()), (100, 1000));
        drop(files);
        let (second, files) = receive::<(String, u32)>(&other).unwrap().unwrap();
        assert_eq!((second.0.as_str(), files.len()), ("second", 0));
        assert!(receive::<(String, u32)>(&other).unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_and_what_is_too_long_is_an_error() {
        let (one, other) = pair().unwrap();
        assert_eq!(send(&one, &"x".repeat(MESSAGE_LIMIT), &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
        send(&one, &"text", &[]).unwrap();
        assert_eq!(receive::<u32>(&other).unwrap_err().kind(), ErrorKind::InvalidData);
        rustix::io::ioctl_fionbio(&other, true).unwrap();
        assert_eq!(receive::<u32>(&other).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
