//! Bytes as lower-case hexadecimal digits.

/// Writes the digits of bytes over those that are there, two for each byte.
pub fn put_hex(digits: &mut [u8], bytes: &[u8]) {
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
}

/// Returns the digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = vec![0; 2 * bytes.len()];
    put_hex(&mut digits, bytes);
    String::from_utf8(digits).unwrap_or_default()
}

/// Returns the bytes that digits stand for, in any case; none for anything else, and for zeroes alone.
pub fn parse_hex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    (bytes != [0; N]).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 0x0a, 0x9f, 0xff]), "000a9fff");
        assert_eq!(hex(&[]), "");
        assert_eq!(parse_hex("000a9fFF"), Some([0, 0x0a, 0x9f, 0xff]));
        for wrong in ["", "000a9f", "000a9fff0", "000a9ff ", "00000000", "é0a9ff0"] {
            assert_eq!(parse_hex::<4>(wrong), None, "{wrong}");
        }
    }
}
