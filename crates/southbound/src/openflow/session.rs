//! One connection's dialogue, without a socket and without a clock.
//!
//! The handshake asks for features, ports, meters and the role of a master, all
//! at once after the hello; when the last answer is there the switch is told of.
//! Replies to these questions and echoes stay here, all else is passed on.

use punctual_openflow::multipart::Assembly;
use punctual_openflow::{
    DecodeError, Envelope, ErrorReport, Hello, Message, MultipartBody, MultipartRequest, PortDesc,
    Role, RoleMessage, Xid, split, xid_of,
};

/// Bytes of the largest message.
const MAX_MESSAGE: u16 = u16::MAX;
/// Parts of the answer about ports.
const MAX_PARTS: usize = 64;

const HELLO: Xid = Xid(0xffff_ff00);
const FEATURES: Xid = Xid(0xffff_ff01);
const PORTS: Xid = Xid(0xffff_ff02);
const METERS: Xid = Xid(0xffff_ff03);
const ROLE: Xid = Xid(0xffff_ff04);
const ECHO: Xid = Xid(0xffff_ff05);

/// Why a peer is not to be talked to any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// What it sends cannot be cut into messages.
    #[error("not understood: {0}")]
    Stream(DecodeError),
    /// It does not speak OpenFlow 1.3.
    #[error("it does not speak OpenFlow 1.3")]
    Version,
    /// It began with something else than a hello.
    #[error("it began with something else than a hello")]
    NoHello,
    /// It refuses a question of the handshake.
    #[error("it refuses the handshake: {0}")]
    Refused(String),
    /// Its answer about ports has too many parts, or parts that do not fit.
    #[error("its ports cannot be read: {0}")]
    Ports(String),
    /// A newer controller is its master.
    #[error("it has another master")]
    Role,
}

/// An event of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// It is ready.
    Ready {
        /// Its datapath identifier.
        datapath: u64,
        /// Meters that it has.
        meters: u32,
        /// Its ports.
        ports: Vec<PortDesc>,
    },
    /// A message, after it was ready.
    Message(Xid, Message),
}

/// The dialogue.
#[derive(Debug)]
pub struct Session {
    unread: Vec<u8>,
    output: Vec<u8>,
    generation: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Hello,
    Asking(Box<Answers>),
    Ready,
}

#[derive(Debug)]
struct Answers {
    assembly: Assembly,
    datapath: Option<u64>,
    ports: Option<Vec<PortDesc>>,
    meters: Option<u32>,
    role: bool,
    /// Changes of ports and other messages that came meanwhile.
    early: Vec<(Xid, Message)>,
}

/// Messages that may come before the handshake is done.
const MAX_EARLY: usize = 256;

impl Session {
    /// Begins with a hello. `generation` grows with every start of a controller:
    /// switches obey the newest.
    pub fn new(generation: u64) -> Self {
        let mut session = Self {
            unread: Vec::new(),
            output: Vec::new(),
            generation,
            state: State::Hello,
        };
        session.send(HELLO, Message::Hello(Hello::new()));
        session
    }

    /// Bytes for the switch; the caller removes those it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether the handshake is done.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Asks for a sign of life.
    pub fn probe(&mut self) {
        self.send(ECHO, Message::EchoRequest(Vec::new()));
    }

    /// Takes what the switch sent.
    ///
    /// # Errors
    /// End the connection, after the output is sent.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        told: &mut Vec<SessionEvent>,
    ) -> Result<(), SessionError> {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut rest = &unread[..];
        while let Some(one) = split(rest, MAX_MESSAGE).map_err(SessionError::Stream)? {
            rest = &rest[one.len()..];
            match Envelope::decode(one) {
                Ok(envelope) => self.take(envelope.xid, envelope.message, told)?,
                Err(DecodeError::Version(_)) => return Err(SessionError::Version),
                // It is answered and skipped.
                Err(error) => {
                    tracing::debug!("a message of a switch is not understood: {error}");
                    let report = ErrorReport {
                        code: error.reply(),
                        data: one[..one.len().min(64)].to_vec(),
                    };
                    self.send(xid_of(one), Message::Error(report));
                }
            }
        }
        self.unread = rest.to_vec();
        Ok(())
    }

    fn take(
        &mut self,
        xid: Xid,
        message: Message,
        told: &mut Vec<SessionEvent>,
    ) -> Result<(), SessionError> {
        match (&mut self.state, message) {
            (State::Hello, Message::Hello(hello)) => {
                if !hello.accepts() {
                    let report = ErrorReport {
                        code: DecodeError::Version(hello.version).reply(),
                        data: b"OpenFlow 1.3 is spoken here".to_vec(),
                    };
                    self.send(xid, Message::Error(report));
                    return Err(SessionError::Version);
                }
                self.ask();
                Ok(())
            }
            (State::Hello, Message::Error(error)) => {
                Err(SessionError::Refused(format!("{:?}", error.code)))
            }
            (State::Hello, _) => Err(SessionError::NoHello),
            (_, Message::EchoRequest(data)) => {
                self.send(xid, Message::EchoReply(data));
                Ok(())
            }
            (_, Message::EchoReply(_)) => Ok(()),
            (State::Ready, message) => {
                told.push(SessionEvent::Message(xid, message));
                Ok(())
            }
            (State::Asking(answers), message) => {
                answers.take(xid, message)?;
                if let Some(ready) = answers.complete() {
                    told.push(ready);
                    let early = std::mem::take(&mut answers.early).into_iter();
                    told.extend(early.map(|(xid, message)| SessionEvent::Message(xid, message)));
                    self.state = State::Ready;
                }
                Ok(())
            }
        }
    }

    fn ask(&mut self) {
        self.state = State::Asking(Box::new(Answers {
            assembly: Assembly::new(2, MAX_PARTS),
            datapath: None,
            ports: None,
            meters: None,
            role: false,
            early: Vec::new(),
        }));
        let role = RoleMessage {
            role: Role::Master,
            generation: self.generation,
        };
        self.send(FEATURES, Message::FeaturesRequest);
        self.send(ROLE, Message::RoleRequest(role));
        let meters = MultipartRequest::MeterFeatures;
        self.send(METERS, Message::MultipartRequest(meters));
        let ports = MultipartRequest::PortDesc;
        self.send(PORTS, Message::MultipartRequest(ports));
    }

    fn send(&mut self, xid: Xid, message: Message) {
        // None of these is longer than a message may be.
        let _ = Envelope::new(xid, message).encode(&mut self.output);
    }
}

impl Answers {
    fn take(&mut self, xid: Xid, message: Message) -> Result<(), SessionError> {
        match message {
            Message::FeaturesReply(features) if xid == FEATURES => {
                self.datapath = Some(features.datapath.0);
            }
            Message::RoleReply(_) if xid == ROLE => self.role = true,
            Message::MultipartReply(part) if matches!(xid, PORTS | METERS) => {
                let whole = self.assembly.push(xid, part);
                match whole.map_err(|error| SessionError::Ports(error.to_string()))? {
                    Some(MultipartBody::PortDesc(ports)) => self.ports = Some(ports),
                    Some(MultipartBody::MeterFeatures(features)) => {
                        self.meters = Some(features.max_meters);
                    }
                    _ => {}
                }
            }
            // A switch without meters, and one that knows no roles, will do.
            Message::Error(_) if xid == METERS => self.meters = Some(0),
            Message::Error(error) if xid == ROLE => {
                use punctual_openflow::ErrorCode;
                use punctual_openflow::error_code::RoleRequestFailed;
                if error.code == ErrorCode::from(RoleRequestFailed::Stale) {
                    return Err(SessionError::Role);
                }
                self.role = true;
            }
            Message::Error(error) if matches!(xid, FEATURES | PORTS) => {
                return Err(SessionError::Refused(format!("{:?}", error.code)));
            }
            other if self.early.len() < MAX_EARLY => self.early.push((xid, other)),
            _ => {}
        }
        Ok(())
    }

    fn complete(&mut self) -> Option<SessionEvent> {
        let (Some(datapath), Some(meters), true, true) =
            (self.datapath, self.meters, self.role, self.ports.is_some())
        else {
            return None;
        };
        Some(SessionEvent::Ready {
            datapath,
            meters,
            ports: self.ports.take().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use punctual_openflow::error_code::{MeterModFailed, RoleRequestFailed};
    use punctual_openflow::{Capabilities, DatapathId, ErrorCode, Features, MultipartReply};

    use super::*;

    fn bytes(xid: Xid, message: Message) -> Vec<u8> {
        Envelope::new(xid, message).to_bytes().unwrap()
    }

    fn asked(session: &mut Session) -> Vec<(Xid, Message)> {
        let bytes = std::mem::take(session.output());
        let mut rest = &bytes[..];
        let mut all = Vec::new();
        while let Some(one) = split(rest, u16::MAX).unwrap() {
            let envelope = Envelope::decode(one).unwrap();
            all.push((envelope.xid, envelope.message));
            rest = &rest[one.len()..];
        }
        all
    }

    fn error(code: impl Into<ErrorCode>) -> Message {
        Message::Error(ErrorReport {
            code: code.into(),
            data: Vec::new(),
        })
    }

    fn begun() -> Session {
        let mut session = Session::new(7);
        assert!(matches!(asked(&mut session)[..], [(_, Message::Hello(_))]));
        let hello = bytes(Xid(1), Message::Hello(Hello::new()));
        session.receive(&hello, &mut Vec::new()).unwrap();
        session
    }

    fn answer(session: &mut Session, refuse: &[Xid]) -> Result<Vec<SessionEvent>, SessionError> {
        let mut told = Vec::new();
        for (xid, message) in asked(session) {
            let reply = match message {
                _ if refuse.contains(&xid) => error(MeterModFailed::Unknown),
                Message::FeaturesRequest => Message::FeaturesReply(Features {
                    datapath: DatapathId(5),
                    buffers: 0,
                    tables: 1,
                    auxiliary: 0,
                    capabilities: Capabilities::default(),
                    reserved: 0,
                }),
                Message::RoleRequest(role) => Message::RoleReply(role),
                Message::MultipartRequest(MultipartRequest::PortDesc) => {
                    let part = |more| MultipartReply {
                        more,
                        body: MultipartBody::PortDesc(Vec::new()),
                    };
                    let first = bytes(xid, Message::MultipartReply(part(true)));
                    session.receive(&first, &mut told)?;
                    Message::MultipartReply(part(false))
                }
                other => panic!("{other:?}"),
            };
            session.receive(&bytes(xid, reply), &mut told)?;
        }
        Ok(told)
    }

    #[test]
    fn a_switch_is_told_of_when_it_has_answered_everything() {
        let mut session = begun();
        let early = bytes(Xid(9), Message::BarrierReply);
        session.receive(&early, &mut Vec::new()).unwrap();
        let ready = SessionEvent::Ready {
            datapath: 5,
            meters: 0,
            ports: Vec::new(),
        };
        let early = SessionEvent::Message(Xid(9), Message::BarrierReply);
        assert_eq!(answer(&mut session, &[METERS]), Ok(vec![ready, early]));
        assert!(session.is_ready());
    }

    #[test]
    fn echoes_are_answered() {
        let mut session = begun();
        asked(&mut session);
        let echo = bytes(Xid(3), Message::EchoRequest(vec![1, 2]));
        // One byte at a time.
        for byte in echo {
            session.receive(&[byte], &mut Vec::new()).unwrap();
        }
        assert_eq!(
            asked(&mut session),
            [(Xid(3), Message::EchoReply(vec![1, 2]))]
        );
        session.probe();
        assert_eq!(
            asked(&mut session),
            [(ECHO, Message::EchoRequest(Vec::new()))]
        );
    }

    #[test]
    fn others_are_turned_away() {
        let mut told = Vec::new();
        let old = Hello {
            version: 1,
            elements: Vec::new(),
        };
        let mut session = Session::new(1);
        let said = session.receive(&bytes(Xid(1), Message::Hello(old)), &mut told);
        assert_eq!(said, Err(SessionError::Version));
        assert!(
            matches!(asked(&mut session)[..], [_, (_, Message::Error(_))]),
            "it is told why"
        );

        let barrier = bytes(Xid(1), Message::BarrierReply);
        assert_eq!(
            Session::new(1).receive(&barrier, &mut told),
            Err(SessionError::NoHello)
        );
        let http = Session::new(1).receive(b"GET / HTTP/1.1\r\n\r\n", &mut told);
        assert!(http.is_err() || told.is_empty());
        let short = Session::new(1).receive(&[4, 0, 0, 1, 0, 0, 0, 0], &mut told);
        assert!(matches!(short, Err(SessionError::Stream(_))));

        let mut session = begun();
        let stale = bytes(ROLE, error(RoleRequestFailed::Stale));
        assert_eq!(session.receive(&stale, &mut told), Err(SessionError::Role));
        let mut session = begun();
        assert!(matches!(
            answer(&mut session, &[FEATURES]),
            Err(SessionError::Refused(_))
        ));
        assert_eq!(told, []);
    }

    #[test]
    fn what_is_not_understood_is_answered_and_skipped() {
        let mut session = begun();
        answer(&mut session, &[METERS]).unwrap();
        let mut told = Vec::new();
        session
            .receive(&[4, 99, 0, 8, 0, 0, 0, 6], &mut told)
            .unwrap();
        session
            .receive(&bytes(Xid(8), Message::BarrierReply), &mut told)
            .unwrap();
        assert_eq!(told, [SessionEvent::Message(Xid(8), Message::BarrierReply)]);
        assert!(matches!(
            asked(&mut session)[..],
            [(Xid(6), Message::Error(_))]
        ));
    }
}
