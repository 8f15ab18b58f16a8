//! Answers of HTTP/1.1 over a connection that stays.

use std::io::BufRead;

use super::Failure;

/// Reads an answer of status 200, and returns its body.
pub(crate) fn read_answer(from: &mut impl BufRead) -> Result<Vec<u8>, Failure> {
    let (mut line, mut length) = (String::new(), 0);
    from.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(format!("the answer is `{}`", line.trim()).into());
    }
    while !line.trim().is_empty() {
        line.clear();
        from.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(body)
}
