//! Frames of a WebSocket (RFC 6455, section 5.2), as far as a proxy looks at them: where one ends, and with which code the connection is closed.

/// Opcode of a close frame.
const CLOSE: u8 = 0x8;
/// Code of a close frame without one (RFC 6455, section 7.4.1).
const NO_CODE: u16 = 1005;
/// The longest header of a frame: two bytes, a length of eight, a mask of four.
const HEADER_BYTES: usize = 14;

/// Code of an end because whoever answers goes away, such as for a new version.
pub(super) const GOING_AWAY: u16 = 1001;
/// Code of an end because of a fault of whoever answers.
pub(super) const INTERNAL_ERROR: u16 = 1011;

/// Follows one direction of a WebSocket from frame to frame, in whatever pieces the bytes come.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The header of a frame, as far as it has come.
    header: Vec<u8>,
    /// Bytes of the payload that are still to come.
    left: u64,
    /// The opcode of the frame that is being read.
    opcode: u8,
    mask: [u8; 4],
    /// Bytes of this payload that have come, of a close frame's only.
    payload: Vec<u8>,
    close_code: Option<u16>,
}

impl Frames {
    /// Takes the next bytes.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.take_payload(&bytes[..count]);
                bytes = &bytes[count..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            self.take_header();
        }
    }

    /// Returns whether the last byte was the end of a frame, or nothing has come.
    pub(super) fn is_between_frames(&self) -> bool {
        self.left == 0 && self.header.is_empty()
    }

    /// Returns the code of the close frame that has come, if one has.
    pub(super) fn close_code(&self) -> Option<u16> {
        self.close_code
    }

    /// Begins the payload once the header is whole.
    fn take_header(&mut self) {
        let [first, second, ..] = self.header[..] else { return };
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
        debug_assert!(self.header.len() <= HEADER_BYTES);
        if self.header.len() < 2 + length_bytes + mask_bytes {
            return;
        }
        let length = &self.header[2..2 + length_bytes];
        self.left = match length_bytes {
            0 => u64::from(second & 0x7f),
            _ => length.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let mask = &self.header[2 + length_bytes..];
        self.mask = mask.first_chunk().copied().unwrap_or_default();
        self.opcode = first & 0xf;
        self.payload.clear();
        self.header.clear();
        if self.left == 0 {
            self.end_frame();
        }
    }

    fn take_payload(&mut self, bytes: &[u8]) {
        self.left -= bytes.len() as u64;
        if self.opcode == CLOSE {
            let wanted = 2_usize.saturating_sub(self.payload.len()).min(bytes.len());
            self.payload.extend_from_slice(&bytes[..wanted]);
        }
        if self.left == 0 {
            self.end_frame();
        }
    }

    fn end_frame(&mut self) {
        if self.opcode != CLOSE {
            return;
        }
        let code = match self.payload[..] {
            [first, second] => u16::from_be_bytes([first ^ self.mask[0], second ^ self.mask[1]]),
            _ => NO_CODE,
        };
        self.close_code.get_or_insert(code);
    }
}

/// A close frame as a server sends it.
pub(super) fn close_frame(code: u16) -> [u8; 4] {
    let [first, second] = code.to_be_bytes();
    [0x80 | CLOSE, 2, first, second]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame with this opcode and payload.
    fn frame(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let masked = if mask.is_some() { 0x80 } else { 0 };
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            length @ 0..126 => frame.push(masked | length as u8),
            length @ 126..65536 => {
                frame.push(masked | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(masked | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        let mask = mask.inspect(|mask| frame.extend(mask)).unwrap_or_default();
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[test]
    fn the_code_of_a_close_frame_is_found_masked_or_not_and_none_is_1005() {
        for (payload, code) in [(&[0x03, 0xe8, b'b', b'y', b'e'][..], 1000), (&[], 1005), (&[0x0f, 0xa1], 4001)] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let mut frames = Frames::default();
                frames.take(&frame(1, b"hello", mask));
                assert_eq!(frames.close_code(), None);
                frames.take(&frame(CLOSE, payload, mask));
                assert_eq!(frames.close_code(), Some(code));
                frames.take(&frame(CLOSE, &[0x03, 0xf3], mask));
                assert_eq!(frames.close_code(), Some(code), "the first one counts");
            }
        }
    }

    #[test]
    fn what_the_proxy_sends_is_a_frame() {
        let mut frames = Frames::default();
        frames.take(&close_frame(GOING_AWAY));
        assert_eq!((frames.close_code(), frames.is_between_frames()), (Some(1001), true));
    }

    proptest! {
        #[test]
        fn the_end_of_each_frame_is_found_however_the_bytes_are_cut(
            payloads in prop::collection::vec((0_u8..3, 0_usize..70_000, any::<Option<[u8; 4]>>()), 1..5),
            cut in 1_usize..5000,
        ) {
            let mut frames = Frames::default();
            for (opcode, length, mask) in payloads {
                let bytes = frame(opcode, &vec![0x88; length], mask);
                for (number, piece) in bytes.chunks(cut).enumerate() {
                    frames.take(piece);
                    let is_last = (number + 1) * cut >= bytes.len();
                    prop_assert_eq!(frames.is_between_frames(), is_last);
                }
                prop_assert_eq!(frames.close_code(), None);
            }
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            bytes.chunks(7).for_each(|piece| frames.take(piece));
        }
    }
}
