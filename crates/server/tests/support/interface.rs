//! Requests to the HTTP interface of a broker.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use punctual_auth::{HttpRole, TokenFile};
use serde_json::Value;

use super::PATIENCE;

/// The HTTP interface of a broker.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) http: SocketAddr,
    /// The file with its tokens.
    pub(crate) tokens: PathBuf,
}

/// What the interface says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Interface {
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path)
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.request("DELETE", path)
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Answer {
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.http
        ))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let administrator = self.credentials(HttpRole::Administer);
        self.post_as(&administrator, path, body)
    }

    /// The same with these lines in the head, and no others that show who it is.
    pub(crate) fn post_as(&self, lines: &str, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        self.send_as_it_is(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{lines}\r\n{body}",
            body.len()
        ))
    }

    /// A header that shows the role.
    pub(crate) fn credentials(&self, role: HttpRole) -> String {
        let text = fs::read_to_string(&self.tokens).unwrap();
        let tokens = TokenFile::parse(&text).unwrap();
        let token = tokens.token_for(role).unwrap();
        format!("Authorization: Bearer {token}\r\n")
    }

    /// Sends anything as an administrator, and reads until the broker closes.
    pub(crate) fn send(&self, request: &str) -> Answer {
        let (line, rest) = request.split_once("\r\n").unwrap();
        let credentials = self.credentials(HttpRole::Administer);
        self.send_as_it_is(&format!("{line}\r\n{credentials}{rest}"))
    }

    /// Sends anything, and reads until the broker closes.
    pub(crate) fn send_as_it_is(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let answer = Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        };
        let length = answer.header("content-length").map(str::parse);
        // RFC 9110 section 8.6: an answer without content has no length.
        let expected = (answer.status != 204).then_some(Ok(body.len()));
        assert_eq!(length, expected, "{answer:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
        answer
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = headers.find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// The body of an answer with status 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The refusal of an answer with that status; it says what to do.
    pub(crate) fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json();
        for part in ["error", "remedy"] {
            assert!(
                error[part].as_str().is_some_and(|text| !text.is_empty()),
                "{self:?}"
            );
        }
        error
    }

    fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_str(&self.body).unwrap()
    }
}
