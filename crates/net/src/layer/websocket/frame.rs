//! Frames of RFC 6455 section 5: headers in, payload out, in any split.
//!
//! Data payload goes straight to the caller; only a header (14 bytes) and the payload of a control
//! frame (125 bytes) are ever kept. Every violation is an error as soon as the byte that proves it
//! arrives.

use super::FrameError;

/// First two bytes, 8 bytes of length, 4 of mask.
const MAX_HEADER_BYTES: usize = 14;
/// Payload of a control frame (RFC 6455 section 5.5).
const MAX_CONTROL_BYTES: u64 = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// Reads the peer's frames.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    header: [u8; MAX_HEADER_BYTES],
    header_bytes: u8,
    /// A data message has begun and its last frame has not.
    in_message: bool,
    payload: Option<Payload>,
    /// Payload of the control frame that is being read. Without allocation while there is none.
    control: Vec<u8>,
}

/// The frame whose payload is being read.
#[derive(Debug, Clone, Copy)]
struct Payload {
    opcode: u8,
    left: u64,
    /// Rotated so that its first byte belongs to the next payload byte.
    mask: [u8; 4],
}

/// What a call of [`FrameReader::next`] found.
#[derive(Debug)]
pub(super) enum Event {
    /// Payload was appended, or a frame ended that needs nothing.
    Data,
    /// To be answered with a pong of the same payload.
    Ping(Vec<u8>),
    /// To be answered with a close of this code. No frame follows.
    Close(u16),
}

impl FrameReader {
    /// Reads up to the end of a frame or of `bytes` and returns what is left. `None`: nothing is
    /// left to read.
    pub(super) fn next<'a>(
        &mut self,
        mut bytes: &'a [u8],
        app: &mut Vec<u8>,
    ) -> Result<Option<(Event, &'a [u8])>, FrameError> {
        let mut payload = match self.payload {
            Some(payload) => payload,
            None => match self.read_header(&mut bytes)? {
                Some(payload) => payload,
                None => return Ok(None),
            },
        };
        if payload.left > 0 && bytes.is_empty() {
            self.payload = Some(payload);
            return Ok(None);
        }
        let length =
            usize::try_from(payload.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let (part, rest) = bytes.split_at(length);
        let target = if payload.opcode < CLOSE {
            app
        } else {
            &mut self.control
        };
        let start = target.len();
        target.extend_from_slice(part);
        unmask(&mut target[start..], payload.mask);
        payload.mask.rotate_left(length % 4);
        payload.left -= length as u64;
        if payload.left > 0 {
            self.payload = Some(payload);
            return Ok(Some((Event::Data, rest)));
        }
        self.payload = None;
        let event = match payload.opcode {
            PING => Event::Ping(std::mem::take(&mut self.control)),
            CLOSE => Event::Close(answer_to_close(&self.control)?),
            _ => {
                self.control.clear();
                Event::Data
            }
        };
        Ok(Some((event, rest)))
    }

    /// Takes header bytes until the header is complete.
    fn read_header(&mut self, bytes: &mut &[u8]) -> Result<Option<Payload>, FrameError> {
        loop {
            let have = usize::from(self.header_bytes);
            let wanted = match have {
                0 | 1 => 2,
                _ => 2 + length_bytes(self.header[1]) + 4,
            };
            if have == wanted {
                self.header_bytes = 0;
                return self.parse_header(wanted).map(Some);
            }
            let take = (wanted - have).min(bytes.len());
            if take == 0 {
                return Ok(None);
            }
            let (part, rest) = bytes.split_at(take);
            self.header[have..have + take].copy_from_slice(part);
            self.header_bytes += take as u8;
            *bytes = rest;
            // As early as possible: a peer that breaks the rules may send no more.
            if have == 0 {
                self.check_first()?;
            }
            if have < 2 && have + take >= 2 {
                self.check_second()?;
            }
        }
    }

    fn check_first(&self) -> Result<(), FrameError> {
        let first = self.header[0];
        if first & RESERVED != 0 {
            return Err(FrameError::ReservedBits);
        }
        match first & OPCODE {
            TEXT => Err(FrameError::Text),
            CONTINUATION if !self.in_message => Err(FrameError::Continuation),
            BINARY if self.in_message => Err(FrameError::Continuation),
            CLOSE | PING | PONG if first & FIN == 0 => Err(FrameError::Control),
            CONTINUATION | BINARY | CLOSE | PING | PONG => Ok(()),
            other => Err(FrameError::ReservedOpcode(other)),
        }
    }

    fn check_second(&self) -> Result<(), FrameError> {
        let [first, second, ..] = self.header;
        if second & MASKED == 0 {
            return Err(FrameError::Unmasked);
        }
        if first & OPCODE >= CLOSE && u64::from(second & LENGTH) > MAX_CONTROL_BYTES {
            return Err(FrameError::Control);
        }
        Ok(())
    }

    fn parse_header(&mut self, bytes: usize) -> Result<Payload, FrameError> {
        let header = &self.header[..bytes];
        let (extended, mask) = header[2..].split_at(bytes - 6);
        let length = match extended.len() {
            0 => u64::from(header[1] & LENGTH),
            _ => extended
                .iter()
                .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let shortest = match extended.len() {
            0 => true,
            2 => length > MAX_CONTROL_BYTES,
            _ => length > u64::from(u16::MAX) && length <= i64::MAX as u64,
        };
        if !shortest {
            return Err(FrameError::Length);
        }
        let opcode = header[0] & OPCODE;
        if opcode < CLOSE {
            self.in_message = header[0] & FIN == 0;
        }
        Ok(Payload {
            opcode,
            left: length,
            mask: [mask[0], mask[1], mask[2], mask[3]],
        })
    }
}

/// How many bytes of length follow the second header byte.
fn length_bytes(second: u8) -> usize {
    match second & LENGTH {
        127 => 8,
        126 => 2,
        _ => 0,
    }
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// The code with which to answer a close frame: its own, or none with 1000.
fn answer_to_close(payload: &[u8]) -> Result<u16, FrameError> {
    match payload {
        [] => Ok(super::NORMAL),
        [_] => Err(FrameError::CloseCode),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            // Section 7.4: 1004 to 1006 and 1015 are never sent, 1012 to 1014 came later.
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(FrameError::CloseCode);
            }
            match std::str::from_utf8(reason) {
                Ok(_) => Ok(code),
                Err(_) => Err(FrameError::CloseReason),
            }
        }
    }
}

/// Header of a frame from the server: final, not masked.
#[derive(Debug, Clone, Copy)]
pub(in crate::layer) struct FrameHeader {
    bytes: [u8; 10],
    length: usize,
}

impl FrameHeader {
    /// A binary frame with `payload` bytes.
    pub(super) fn binary(payload: usize) -> Self {
        Self::new(BINARY, payload)
    }

    fn new(opcode: u8, payload: usize) -> Self {
        let mut bytes = [0; 10];
        bytes[0] = FIN | opcode;
        let wide = (payload as u64).to_be_bytes();
        let length = if payload <= MAX_CONTROL_BYTES as usize {
            bytes[1] = wide[7];
            2
        } else if payload <= usize::from(u16::MAX) {
            bytes[1] = 126;
            bytes[2..4].copy_from_slice(&wide[6..]);
            4
        } else {
            bytes[1] = 127;
            bytes[2..].copy_from_slice(&wide);
            10
        };
        Self { bytes, length }
    }

    pub(in crate::layer) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

pub(super) fn write_pong(payload: &[u8], wire: &mut Vec<u8>) {
    wire.extend_from_slice(FrameHeader::new(PONG, payload.len()).as_slice());
    wire.extend_from_slice(payload);
}

pub(super) fn write_close(code: u16, wire: &mut Vec<u8>) {
    wire.extend_from_slice(FrameHeader::new(CLOSE, 2).as_slice());
    wire.extend_from_slice(&code.to_be_bytes());
}
