//! The characters of names and values in HTTP (RFC 9110, section 5).

/// Returns whether a byte may stand in a token: a method, the name of a header.
#[inline]
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether bytes are a token, which is never empty.
#[inline]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_token_byte)
}

/// Returns whether bytes may be the value of a header: no control characters but tabs.
#[inline]
pub fn is_value(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_from_other_bytes() {
        for token in ["x", "GET", "x-request-id", "!#$%&'*+-.^_`|~09azAZ"] {
            assert!(is_token(token.as_bytes()), "{token}");
        }
        for other in ["", "a b", "a:", "a/b", "é", "a\n", "\"a\"", "(a)"] {
            assert!(!is_token(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn values_have_no_control_characters_but_tabs() {
        for value in ["", "a b", "a\tb", "é", "~"] {
            assert!(is_value(value.as_bytes()), "{value:?}");
        }
        for other in ["\r", "a\nb", "\0", "\u{7f}", "\u{1b}[0m"] {
            assert!(!is_value(other.as_bytes()), "{other:?}");
        }
    }
}
