//! SUBSCRIBE and UNSUBSCRIBE whose filters are handled in slices.

use std::iter::Peekable;
use std::vec::IntoIter;

use punctual_codec::Version;
use punctual_model::{Answer, Requirements};

use crate::admission::FilterVerdict;
use crate::base::connection::ConnId;

/// SUBSCRIBE or UNSUBSCRIBE whose filters are being handled. Meanwhile nothing is read from the
/// connection, so that the client's packets are handled in their order.
#[derive(Debug)]
pub(crate) struct FilterRequest {
    pub(crate) conn: ConnId,
    pub(crate) session: u32,
    pub(crate) packet_id: u16,
    pub(crate) kind: Kind,
    /// Reason codes for the acknowledgement, one for each filter.
    pub(crate) reasons: Vec<u8>,
    /// Filters as encoded in the packet; those before the position `handled` are done.
    pub(crate) payload: Box<[u8]>,
    pub(crate) handled: usize,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Subscribe(Box<Request>),
    Unsubscribe,
    /// The admission service is asked about the filters of a SUBSCRIBE, which is handled
    /// afterwards.
    Ask(Box<Inquiry>),
}

/// An admission request for the filters of a SUBSCRIBE.
#[derive(Debug)]
pub(crate) struct Inquiry {
    pub(crate) version: Version,
    pub(crate) requirements: Requirements,
    /// The filters to which the client may subscribe.
    pub(crate) filters: Vec<Box<str>>,
}

/// The options of a SUBSCRIBE that apply to all of its filters.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) version: Version,
    /// Whether the client is a bridge before MQTT 5.
    pub(crate) bridge: bool,
    /// Subscription Identifier; 0 for none.
    pub(crate) id: u32,
    /// Whether messages are numbered, or an error in the request for that.
    pub(crate) numbered: Result<bool, String>,
    /// An error in the stated requirements.
    pub(crate) misstated: Option<String>,
    /// The verdicts of the admission service on the filters of the request, in their order.
    pub(crate) verdicts: Peekable<IntoIter<(Box<str>, FilterVerdict)>>,
    pub(crate) answer: Option<Answer>,
    /// Whether the admission service has decided.
    pub(crate) decided: bool,
    /// Filters that were refused here although the admission service had agreed.
    pub(crate) given_up: Vec<Box<str>>,
}

impl FilterRequest {
    pub(crate) fn new(conn: ConnId, session: u32, packet_id: u16, kind: Kind) -> Self {
        Self {
            conn,
            session,
            packet_id,
            kind,
            reasons: Vec::new(),
            payload: Box::default(),
            handled: 0,
        }
    }

    /// The session of the request.
    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    /// The filter whose turn it is.
    pub(crate) fn next_filter(&self) -> Option<Box<str>> {
        let (length, rest) = self.payload[self.handled..].split_first_chunk()?;
        let filter = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
        Some(std::str::from_utf8(filter).ok()?.into())
    }

    /// Number of bytes that the request keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.payload.len()
    }
}
