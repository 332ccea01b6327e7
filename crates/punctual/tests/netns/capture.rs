//! Frames as they arrive at a host, from a packet socket (packet(7)).

use std::io::Read as _;
use std::time::Instant;

use punctual_testbed::netns::Namespace;
use socket2::{Domain, Protocol, Socket, Type};

use crate::mqtt::PATIENCE;

/// EtherTypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Flags of a TCP header.
const SYN_ACK: u8 = 0x12;

/// Every frame that a host receives, or sends, from now on.
pub(crate) struct Capture {
    socket: Socket,
}

/// What these tests look at.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) version: u8,
    /// DSCP of the IP header.
    pub(crate) dscp: u8,
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) is_udp: bool,
    /// It answers a TCP connection request.
    pub(crate) is_syn_ack: bool,
    pub(crate) payload: Vec<u8>,
}

impl Capture {
    pub(crate) fn start(host: &Namespace) -> Self {
        let all = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
        let open = || Socket::new(Domain::PACKET, Type::RAW, Some(all));
        let socket = host.enter(open).unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    /// The next packet that is `wanted`.
    pub(crate) fn find(&mut self, wanted: impl Fn(&Packet) -> bool) -> Packet {
        let started = Instant::now();
        let mut frame = [0; 2048];
        while started.elapsed() < PATIENCE {
            let length = self.socket.read(&mut frame).expect("a frame in time");
            if let Some(packet) = Packet::parse(&frame[..length])
                && wanted(&packet)
            {
                return packet;
            }
        }
        panic!("no such packet came");
    }
}

impl Packet {
    /// TCP or UDP in IPv4 or IPv6 without extension headers, in Ethernet.
    fn parse(frame: &[u8]) -> Option<Self> {
        let ethernet = frame.get(..14)?;
        let packet = &frame[14..];
        let (version, octet, protocol, transport) =
            match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
                IPV4 => {
                    let header = usize::from(packet.first()? & 0xf) * 4;
                    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
                    // Short frames are padded.
                    (4, packet[1], *packet.get(9)?, packet.get(header..total)?)
                }
                IPV6 => {
                    let octet = (*packet.first()? << 4) | (*packet.get(1)? >> 4);
                    (6, octet, *packet.get(6)?, packet.get(40..)?)
                }
                _ => return None,
            };
        let port = |at: usize| {
            Some(u16::from_be_bytes([
                *transport.get(at)?,
                *transport.get(at + 1)?,
            ]))
        };
        let (header, flags) = match i32::from(protocol) {
            libc::IPPROTO_TCP => (
                usize::from(transport.get(12)? >> 4) * 4,
                *transport.get(13)?,
            ),
            libc::IPPROTO_UDP => (8, 0),
            _ => return None,
        };
        Some(Self {
            version,
            dscp: octet >> 2,
            from: port(0)?,
            to: port(2)?,
            is_udp: i32::from(protocol) == libc::IPPROTO_UDP,
            is_syn_ack: flags & SYN_ACK == SYN_ACK,
            payload: transport.get(header..)?.to_vec(),
        })
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        let mut windows = self.payload.windows(text.len());
        windows.any(|window| window == text.as_bytes())
    }
}
