//! A connection to a bridge of a live Open vSwitch.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use punctual_openflow::error_code::ErrorCode;
use punctual_openflow::multipart::Assembly;
use punctual_openflow::{Envelope, Hello, Message, MultipartBody, MultipartRequest, Xid, split};
use punctual_testbed::Ovs;

/// What a bridge sends is decoded, encoded again and compared with the bytes that came.
pub(crate) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    last: u32,
    /// Messages that were not answers.
    pub(crate) unasked: Vec<Message>,
}

impl Connection {
    /// Connects and says hello.
    pub(crate) fn open(ovs: &Ovs, bridge: &str) -> Self {
        let stream = UnixStream::connect(ovs.management(bridge)).unwrap();
        // A guard against waiting for ever; nothing depends on its length.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut connection = Self {
            stream,
            received: Vec::new(),
            last: 0,
            unasked: Vec::new(),
        };
        connection.send(Message::Hello(Hello::new()));
        match connection.receive().message {
            Message::Hello(hello) => assert!(hello.accepts(), "{hello:?}"),
            other => panic!("{other:?}"),
        }
        connection
    }

    /// The number of the last message sent.
    pub(crate) fn last_xid(&self) -> u32 {
        self.last
    }

    pub(crate) fn send(&mut self, message: Message) -> Xid {
        self.last += 1;
        let xid = Xid(self.last);
        let bytes = Envelope::new(xid, message).to_bytes().unwrap();
        self.stream.write_all(&bytes).unwrap();
        xid
    }

    pub(crate) fn receive(&mut self) -> Envelope {
        loop {
            if let Some(frame) = split(&self.received, u16::MAX).unwrap() {
                let envelope = Envelope::decode(frame).unwrap();
                assert_eq!(envelope.to_bytes().unwrap(), frame, "{envelope:?}");
                let length = frame.len();
                self.received.drain(..length);
                return envelope;
            }
            let mut bytes = [0; 16384];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the switch closed the connection");
            self.received.extend_from_slice(&bytes[..count]);
        }
    }

    /// The first answer to a message.
    pub(crate) fn ask(&mut self, message: Message) -> Message {
        let xid = self.send(message);
        loop {
            let envelope = self.receive();
            if envelope.xid == xid {
                return envelope.message;
            }
            self.unasked.push(envelope.message);
        }
    }

    /// Sends changes; what the switch refuses, by number of the change.
    pub(crate) fn apply(
        &mut self,
        changes: impl IntoIterator<Item = Message>,
    ) -> Vec<(usize, ErrorCode)> {
        let first = self.last + 1;
        for change in changes {
            self.send(change);
        }
        let barrier = self.send(Message::BarrierRequest);
        let mut refused = Vec::new();
        loop {
            let envelope = self.receive();
            match envelope.message {
                Message::BarrierReply if envelope.xid == barrier => return refused,
                Message::Error(error) if (first..barrier.0).contains(&envelope.xid.0) => {
                    refused.push(((envelope.xid.0 - first) as usize, error.code));
                }
                other => self.unasked.push(other),
            }
        }
    }

    /// A question and its whole answer.
    pub(crate) fn report(&mut self, request: MultipartRequest) -> MultipartBody {
        let xid = self.send(Message::MultipartRequest(request));
        let mut assembly = Assembly::new(1, 1000);
        loop {
            let envelope = self.receive();
            match envelope.message {
                Message::MultipartReply(part) if envelope.xid == xid => {
                    if let Some(body) = assembly.push(xid, part).unwrap() {
                        return body;
                    }
                }
                Message::Error(error) if envelope.xid == xid => panic!("{}", error.code),
                other => self.unasked.push(other),
            }
        }
    }
}
