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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 0x0a, 0x9f, 0xff]), "000a9fff");
        assert_eq!(hex(&[]), "");
    }
}
