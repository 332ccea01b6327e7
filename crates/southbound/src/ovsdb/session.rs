//! JSON-RPC 1.0 over a stream: requests with numbers, replies, notifications,
//! and echoes in both directions (RFC 7047 section 4). No socket and no clock:
//! bytes in, bytes out.

use serde_json::{Value, json};

use super::frame::{FrameError, Splitter};
use super::value::MalformedValue;

/// Why a peer is not to be talked to any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Not a sequence of messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message that means nothing.
    #[error("not understood: {0}")]
    Message(#[from] MalformedValue),
}

/// What arrived.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// The reply to a request.
    Reply {
        /// Number of the request.
        id: u64,
        /// Result, or the error.
        result: Result<Value, Value>,
    },
    /// A message that was not requested.
    Notification {
        /// What it is about.
        method: String,
        /// Its content.
        params: Value,
    },
    /// A sign of life.
    Alive,
}

/// One connection's dialogue.
#[derive(Debug)]
pub struct Session {
    splitter: Splitter,
    next: u64,
    output: Vec<u8>,
}

/// Identifier of own echoes.
const PROBE: &str = "echo";

impl Session {
    /// For messages of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self {
            splitter: Splitter::new(most),
            next: 0,
            output: Vec::new(),
        }
    }

    /// Writes a request; its number.
    pub fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.write(&json!({"method": method, "params": params, "id": id}));
        id
    }

    /// Asks for a sign of life.
    pub fn probe(&mut self) {
        self.write(&json!({"method": "echo", "params": [], "id": PROBE}));
    }

    /// Bytes for the peer; the caller removes those it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Takes what the peer sent. Echoes are answered here.
    ///
    /// # Errors
    /// The peer does not speak the protocol: end the connection.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), SessionError> {
        let mut texts = Vec::new();
        let split = self
            .splitter
            .push(bytes, |message| texts.push(message.to_vec()));
        for text in texts {
            let message: Value = serde_json::from_slice(&text)
                .map_err(|error| MalformedValue(format!("a message is not JSON: {error}")))?;
            incoming.extend(self.message(message)?);
        }
        Ok(split?)
    }

    fn message(&mut self, mut message: Value) -> Result<Option<Incoming>, SessionError> {
        let id = message.get("id").cloned().unwrap_or(Value::Null);
        match message.get("method") {
            Some(Value::String(method)) => {
                let method = method.clone();
                let params = message
                    .get_mut("params")
                    .map(Value::take)
                    .unwrap_or_default();
                if id.is_null() {
                    return Ok(Some(Incoming::Notification { method, params }));
                }
                match method.as_str() {
                    "echo" => self.write(&json!({"id": id, "result": params, "error": null})),
                    _ => self.write(&json!({
                        "id": id, "result": null, "error": {"error": "unknown method"},
                    })),
                }
                Ok(Some(Incoming::Alive))
            }
            None | Some(Value::Null) => {
                if id == PROBE {
                    return Ok(Some(Incoming::Alive));
                }
                let number = id.as_u64().filter(|id| *id < self.next);
                let id =
                    number.ok_or_else(|| MalformedValue::new("is a reply to nothing", &message))?;
                let result = match message.get_mut("error").map(Value::take) {
                    None | Some(Value::Null) => Ok(message
                        .get_mut("result")
                        .map(Value::take)
                        .unwrap_or_default()),
                    Some(error) => Err(error),
                };
                Ok(Some(Incoming::Reply { id, result }))
            }
            Some(_) => Err(MalformedValue::new("is no message", &message).into()),
        }
    }

    fn write(&mut self, message: &Value) {
        // A vector takes everything, and values are always JSON.
        let _ = serde_json::to_writer(&mut self.output, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(session: &mut Session, text: &str) -> Result<Vec<Incoming>, SessionError> {
        let mut incoming = Vec::new();
        session.receive(text.as_bytes(), &mut incoming)?;
        Ok(incoming)
    }

    fn output(session: &mut Session) -> String {
        String::from_utf8(std::mem::take(session.output())).unwrap()
    }

    #[test]
    fn replies_are_for_requests() {
        let mut session = Session::new(1000);
        assert_eq!(session.request("list_dbs", &json!([])), 0);
        assert_eq!(
            output(&mut session),
            r#"{"id":0,"method":"list_dbs","params":[]}"#
        );
        let reply = r#"{"id":0,"result":["D"],"error":null}"#;
        let result = Ok(json!(["D"]));
        assert_eq!(
            receive(&mut session, reply),
            Ok(vec![Incoming::Reply { id: 0, result }])
        );
        let error = r#"{"id":0,"result":null,"error":{"error":"no"}}"#;
        let result = Err(json!({"error": "no"}));
        assert_eq!(
            receive(&mut session, error),
            Ok(vec![Incoming::Reply { id: 0, result }])
        );
        for text in [
            r#"{"id":1,"result":1}"#,
            r#"{"id":"x","result":1}"#,
            "{}",
            r#"{"method":1}"#,
            "{x}",
        ] {
            assert!(receive(&mut session, text).is_err(), "{text}");
        }
    }

    #[test]
    fn echoes_are_answered_and_asked_for() {
        let mut session = Session::new(1000);
        let echo = r#"{"id":"e","method":"echo","params":[1]}"#;
        assert_eq!(receive(&mut session, echo), Ok(vec![Incoming::Alive]));
        assert_eq!(
            output(&mut session),
            r#"{"error":null,"id":"e","result":[1]}"#
        );
        session.probe();
        assert_eq!(
            output(&mut session),
            r#"{"id":"echo","method":"echo","params":[]}"#
        );
        let alive = r#"{"id":"echo","result":[],"error":null}"#;
        assert_eq!(receive(&mut session, alive), Ok(vec![Incoming::Alive]));
    }

    #[test]
    fn depth_takes_no_stack() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!(
                "{{\"id\":1,\"result\":{}1{}}}",
                open.repeat(100_000),
                close.repeat(100_000)
            );
            let refused = receive(&mut Session::new(10_000_000), &deep);
            assert!(matches!(refused, Err(SessionError::Message(_))));
        }
    }

    #[test]
    fn notifications_are_told() {
        let mut session = Session::new(1000);
        let update = r#"{"id":null,"method":"update3","params":[null,"x",{}]}"#;
        let expected = Incoming::Notification {
            method: "update3".into(),
            params: json!([null, "x", {}]),
        };
        assert_eq!(receive(&mut session, update), Ok(vec![expected]));
        assert!(session.output().is_empty());
    }
}
