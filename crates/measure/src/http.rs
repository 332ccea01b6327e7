//! The least HTTP client that can ask a broker for its numbers: one GET, one answer, closed.
//!
//! Source: RFC 9112. The request asks for the connection to be closed and speaks HTTP/1.0, so
//! that the answer is never chunked and ends with the connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::{Error, Result};

/// Longest wait for the connection, and for any part of the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Largest answer that is read, bytes.
const LARGEST_ANSWER: u64 = 16 * 1024 * 1024;

/// Asks for `path` at `address` and returns the body of an answer with status 200.
///
/// # Errors
/// Nobody answers, or with another status.
pub fn http_get(address: SocketAddr, path: &str) -> Result<String> {
    let context = || format!("http://{address}{path}");
    let fail = |why: String| Error::io(context())(std::io::Error::other(why));
    let exchange = || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.take(LARGEST_ANSWER).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(Error::io(context()))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| fail("the answer is not HTTP".to_owned()))?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(fail(
            format!("it answers {status:?} {}", body.trim())
                .trim_end()
                .to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread;

    /// Serves one request with `answer`; returns the address and what was asked.
    fn serve(answer: &'static str) -> (SocketAddr, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(&stream).lines().map(|line| line.unwrap());
            let asked = lines.take_while(|line| !line.is_empty()).collect();
            (&stream).write_all(answer.as_bytes()).unwrap();
            asked
        });
        (address, served)
    }

    #[test]
    fn the_body_is_what_follows_the_head() {
        let (address, served) = serve("HTTP/1.1 200 OK\r\nA: b\r\n\r\none\r\n\r\ntwo");
        assert_eq!(http_get(address, "/x").unwrap(), "one\r\n\r\ntwo");
        let asked = served.join().unwrap();
        assert_eq!(asked[0], "GET /x HTTP/1.0");
        assert!(asked.contains(&format!("Host: {address}")));
    }

    #[test]
    fn another_status_and_other_protocols_are_errors() {
        for answer in ["HTTP/1.1 503 No\r\n\r\n{}", "hello\r\n\r\n", "hello"] {
            let (address, served) = serve(answer);
            let error = http_get(address, "/x").unwrap_err().to_string();
            assert!(error.contains(&format!("http://{address}/x")), "{error}");
            served.join().unwrap();
        }
    }
}
