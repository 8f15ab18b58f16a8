//! Requests with one reading and with two, whole and in pieces.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Returns what a whole connection comes to: whether it ends between two requests, or why it is refused.
fn take(bytes: &[u8]) -> Result<bool, Refusal> {
    let mut scanner = Scanner::default();
    scanner.take(bytes).map(|()| scanner.is_idle())
}

fn in_pieces(bytes: &[u8], mut size: impl FnMut() -> usize) -> Result<bool, Refusal> {
    let mut scanner = Scanner::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(size().clamp(1, rest.len()));
        scanner.take(piece)?;
        rest = after;
    }
    Ok(scanner.is_idle())
}

/// Returns a request with these headers behind the request line and `Host`.
fn with(headers: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}")
}

#[test]
fn what_has_one_reading_passes() {
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET /a?b=%20&c HTTP/1.1\r\nHost: a:80\r\nX: \tv w\t \r\nY:\r\nZ:caf\u{e9}\r\n\r\n".into(),
        "GET / HTTP/1.0\r\n\r\n".into(),
        "\r\n\r\nGET / HTTP/1.1\r\nhost:a\r\n\r\n\r\n".into(),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "M-SEARCH / HTTP/1.1\r\nHost:\r\n\r\n".into(),
        with("Content-Length: 5\r\n\r\nhello"),
        with("Content-Length: 0\r\n\r\n"),
        with("content-length: 007\r\n\r\n\r\n\0\n\r{}"),
        with("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        with("transfer-encoding:CHUNKED\r\n\r\n1\r\na\r\nA\r\n\n\r\0\n\r0\r\n\r\n\r\n0\r\nx: y\r\nz:\r\n\r\n"),
        // Extensions of chunks are passed over (RFC 9112, section 7.1.1), with the white space before them that a recipient has to take.
        with("Transfer-Encoding: chunked\r\n\r\n5;name=value\r\nhello\r\n0 ; a=\"b;c\";d\r\n\r\n"),
        with("Content-Length: 1\r\n\r\naGET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\n\r\n"),
    ] {
        assert_eq!(take(request.as_bytes()), Ok(true), "{request:?}");
        assert_eq!(in_pieces(request.as_bytes(), || 1), Ok(true), "{request:?}");
        let all_but_the_last = &request.as_bytes()[..request.len() - 1];
        assert_eq!(take(all_but_the_last), Ok(false), "{request:?}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let malformed = 400;
    for (request, status) in [
        ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), malformed),
        ("GET / HTTP/1.1\rHost: a\r\r".into(), malformed),
        ("\nGET / HTTP/1.1\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\nb: c\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n".into(), malformed),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[31m\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n".into(), malformed),
        (with("Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), malformed),
        (with("Content-Length: 5\r\nCONTENT-LENGTH: 6\r\n\r\nhello"), malformed),
        (with("Content-Length: 5, 5\r\n\r\nhello"), malformed),
        (with("Content-Length: +5\r\n\r\nhello"), malformed),
        (with("Content-Length: -1\r\n\r\n"), malformed),
        (with("Content-Length: 0x5\r\n\r\nhello"), malformed),
        (with("Content-Length:\r\n\r\n"), malformed),
        (with("Content-Length: 18446744073709551616\r\n\r\n"), malformed),
        (with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), malformed),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(), malformed),
        (with("Transfer-Encoding: gzip\r\n\r\n"), 501),
        (with("Transfer-Encoding: gzip, chunked\r\n\r\n"), 501),
        (with("Transfer-Encoding: chunked, identity\r\n\r\n"), 501),
        (with("Transfer-Encoding: xchunked\r\n\r\n"), 501),
        (with("Transfer-Encoding: \"chunked\"\r\n\r\n"), 501),
        (with("Transfer-Encoding:\r\n\r\n"), 501),
        (with("Transfer-Encoding : chunked\r\n\r\n"), malformed),
        (with(" X: y\r\n\r\n"), malformed),
        (with("X: y\r\n z\r\n\r\n"), malformed),
        (with("X\r\n\r\n"), malformed),
        (with(": y\r\n\r\n"), malformed),
        (with("X\u{e9}: y\r\n\r\n"), malformed),
        (with("Host: b\r\n\r\n"), malformed),
        ("GET / HTTP/1.1\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), malformed),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n".into(), 405),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n".into(), malformed),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET http:// HTTP/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET /\r\n\r\n".into(), malformed),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n".into(), malformed),
        ("GET / http/1.1\r\nHost: a\r\n\r\n".into(), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5;a\x01\r\nhello\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5 a\r\nhello\r\n0\r\n\r\n"), malformed),
        (with(&format!("Transfer-Encoding: chunked\r\n\r\n5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(2000))), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n") + &format!("1;{}\r\na\r\n", "a".repeat(900)).repeat(10), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n00000000000000001\r\na\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n0\r\nx y\r\n\r\n"), malformed),
        (with("Transfer-Encoding: chunked\r\n\r\n0\r\nx: y\n\r\n\r\n"), malformed),
        (with(&"X: y\r\n".repeat(HEADERS)) + "\r\n", 431),
        (with(&format!("X: {}\r\n\r\n", "y".repeat(HEAD_BYTES))), 431),
        (with("Transfer-Encoding: chunked\r\n\r\n0\r\n") + &"x: y\r\n".repeat(HEADERS + 1), 431),
    ] {
        let found = take(request.as_bytes());
        let shown = &request[..request.len().min(100)];
        assert_eq!(found.map_err(Refusal::status), Err(status), "{shown:?}");
        let pieces = in_pieces(request.as_bytes(), || 1);
        assert_eq!(pieces.map_err(Refusal::status), Err(status), "byte by byte: {shown:?}");
    }
}

#[test]
fn a_head_that_does_not_end_is_refused_before_it_fills_the_memory() {
    let mut scanner = Scanner::default();
    scanner.take(b"GET / HTTP/1.1\r\n").unwrap();
    let refused = (0..100).find_map(|_| scanner.take(&[b'x'; 1000]).err());
    assert_eq!(refused, Some(Refusal::TooLarge));
    assert!(scanner.kept.len() <= HEAD_BYTES + 1);
    assert_eq!(Scanner::default().take(&[b'x'; HEAD_BYTES + 1]), Err(Refusal::TooLarge));
}

#[test]
fn a_head_with_as_much_as_it_may_have_passes() {
    let mut request = with(&"X: y\r\n".repeat(HEADERS - 2));
    request += &format!("Z: {}\r\n\r\n", "z".repeat(HEAD_BYTES - request.len() - 7));
    assert_eq!((request.len(), take(request.as_bytes())), (HEAD_BYTES, Ok(true)));
}

#[test]
fn what_comes_with_the_end_of_a_head_and_is_behind_it_is_no_part_of_it() {
    let requests = [
        "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n\0",
        "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n\n",
        "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n\ra",
    ];
    for request in requests {
        for size in 1..request.len() {
            assert_eq!(in_pieces(request.as_bytes(), || size), Ok(false), "{request:?} by {size}");
        }
    }
}

/// Requests that are mostly good, with what parsers differ over at any place.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a HTTP/1.1\r\n",
        "POST / HTTP/1.0\r\n",
        "Host: a\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "X: y\r\n",
        "\r\n",
        "abc",
        "3\r\nabc\r\n",
        "0\r\n",
        "\r",
        "\n",
        " ",
        "\0",
    ]);
    vec(part, 0..12).prop_map(|parts| parts.concat().into_bytes())
}

#[test]
fn a_head_with_too_many_lines_is_refused_before_it_has_an_end() {
    for first in [1, 10, 1_000] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "X: y\r\n".repeat(HEADERS - 1));
        let mut scanner = Scanner::default();
        assert_eq!(scanner.take(&bytes.as_bytes()[..first.min(bytes.len())]), Ok(()));
        assert_eq!(scanner.take(&bytes.as_bytes()[first.min(bytes.len())..]), Ok(()));
        assert_eq!(scanner.take(b"X: y\r\n"), Err(Refusal::TooLarge), "{first}");
    }
    let whole = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(HEADERS - 1));
    let mut scanner = Scanner::default();
    assert!(whole.as_bytes().iter().all(|byte| scanner.take(&[*byte]) == Ok(())) && scanner.is_idle());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// By the definition: of any two bytes in a row the first is a CR exactly if the second is an LF.
    #[test]
    fn lines_are_torn_apart_where_a_cr_or_an_lf_is_without_the_other(
        bytes in vec(prop::sample::select(vec![b'\r', b'\n', b'x']), 0..12),
    ) {
        let expected = bytes.windows(2).any(|two| (two[0] == b'\r') != (two[1] == b'\n'));
        prop_assert_eq!(is_torn_apart(&bytes), expected);
    }

    #[test]
    fn it_makes_no_difference_in_which_pieces_bytes_come(bytes in bytes(), sizes in vec(1..40_usize, 1..20)) {
        let mut sizes = sizes.iter().cycle().copied();
        let pieces = in_pieces(&bytes, || sizes.next().unwrap_or(1)).map_err(Refusal::status);
        let whole = take(&bytes).map_err(Refusal::status);
        // A head that comes in pieces is judged when it is whole.
        prop_assert!(pieces == whole || (pieces == Ok(false) && whole.is_err()), "{:?} {:?}", pieces, whole);
    }

    #[test]
    fn whatever_comes_is_refused_or_taken_and_never_panics(bytes: Vec<u8>, good in bytes(), at: prop::sample::Index) {
        let _ = take(&bytes);
        let mut mixed = good;
        let at = at.index(mixed.len() + 1);
        mixed.splice(at..at, bytes.into_iter().take(3));
        let _ = take(&mixed);
    }
}
