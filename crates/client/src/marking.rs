//! Classes of traffic, and the marks that carry them on: DSCP (RFC 2474) for
//! routers and switches, `SO_PRIORITY` for this machine's queues.
//!
//! A datagram has the marks of its own class. A stream is one queue from end to end, in
//! which urgent messages wait behind others, so it is marked as a whole, with the class
//! of the most urgent message that it carried recently.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use punctual_model::Requirements;
use socket2::SockRef;

/// Time for which a stream keeps the marks of the most urgent class: longer
/// than the periods of most flows, so that marks do not change back and forth.
const MEMORY: Duration = Duration::from_secs(10);

/// What a message may overtake, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// It has an `rt-priority` or an `rt-deadline`.
    RealTime = 0,
    /// It has a `priority`.
    Priority = 1,
    /// Anything else.
    #[default]
    Normal = 2,
    /// What can wait.
    Bulk = 3,
}

/// The class of that number; beyond the last it is the last.
impl From<u8> for Class {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::RealTime,
            1 => Self::Priority,
            2 => Self::Normal,
            _ => Self::Bulk,
        }
    }
}

impl Class {
    /// The class of a message with these requirements.
    pub fn of(requirements: &Requirements) -> Self {
        if requirements.is_real_time() {
            Self::RealTime
        } else if requirements.message_priority.is_some() {
            Self::Priority
        } else {
            Self::Normal
        }
    }
}

/// The marks of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
    /// `SO_PRIORITY`, 0 to 6 without privileges.
    pub priority: u8,
}

/// The marks of every class, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marking(pub [Mark; 4]);

impl Mark {
    /// What packets have from the system.
    pub const NONE: Self = Self {
        dscp: 0,
        priority: 0,
    };
}

impl Marking {
    /// No marks.
    pub const OFF: Self = Self([Mark::NONE; 4]);
}

impl Default for Marking {
    /// What the broker has by default: EF, CS5 and best effort, with the
    /// priorities 6 and 6, which Linux' default queue serves first, and for
    /// bulk 2, which it serves last. Ordinary packets stay as they are.
    fn default() -> Self {
        let mark = |dscp, priority| Mark { dscp, priority };
        Self([mark(46, 6), mark(40, 6), Mark::NONE, mark(0, 2)])
    }
}

/// Sets the marks of one socket.
#[derive(Debug)]
pub(crate) struct Marker {
    marking: Marking,
    ipv6: bool,
    /// The marks in effect.
    mark: Mark,
    current: Option<Class>,
    /// When something of the current class was last sent.
    last: Option<Instant>,
}

impl Marker {
    pub(crate) fn new(marking: Marking, peer: SocketAddr) -> Self {
        Self {
            marking,
            ipv6: peer.is_ipv6(),
            mark: Mark::NONE,
            current: None,
            last: None,
        }
    }

    /// The next packets of a stream are of `class`.
    pub(crate) fn stream(&mut self, socket: &impl AsFd, class: Class, now: Instant) {
        let fades = |last: Instant| now.saturating_duration_since(last) > MEMORY;
        let current = self.current.filter(|_| !self.last.is_some_and(fades));
        if current.is_some_and(|current| current < class) {
            return;
        }
        self.last = Some(now);
        self.datagram(socket, class);
    }

    /// The next packet is of `class`.
    pub(crate) fn datagram(&mut self, socket: &impl AsFd, class: Class) {
        self.current = Some(class);
        let mark = self.marking.0[class as usize];
        if mark == self.mark {
            return;
        }
        self.mark = mark;
        let Mark { dscp, priority } = mark;
        let socket = SockRef::from(socket);
        let field = u32::from(dscp & 0x3F) << 2;
        // A mark that cannot be set is one that the network does not see; the
        // message goes all the same. The priority comes second, because a type
        // of service sets one of its own.
        // An IPv6 socket may speak to an IPv4 address.
        let _ = socket.set_tos_v4(field);
        if self.ipv6 {
            let _ = socket.set_tclass_v6(field);
        }
        let _ = socket.set_priority(priority.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn classes_follow_requirements() {
        let class = |text: &str| Class::of(&text.parse().unwrap());
        assert_eq!(Class::of(&Requirements::NONE), Class::Normal);
        assert_eq!(class("priority=3"), Class::Priority);
        assert_eq!(class("priority=3, deadline=5ms"), Class::RealTime);
        assert_eq!(class("rt-priority=0"), Class::RealTime);
        assert_eq!(class("late=drop"), Class::Normal);
    }

    #[test]
    fn a_stream_keeps_the_most_urgent_for_a_while() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut marker = Marker::new(Marking::default(), socket.local_addr().unwrap());
        let start = Instant::now();
        let mut tos = |class, after: u64| {
            marker.stream(&socket, class, start + Duration::from_secs(after));
            SockRef::from(&socket).tos_v4().unwrap()
        };
        assert_eq!(tos(Class::Normal, 0), 0);
        assert_eq!(tos(Class::RealTime, 1), 46 << 2);
        assert_eq!(tos(Class::Priority, 11), 46 << 2);
        assert_eq!(tos(Class::Priority, 12), 40 << 2);
        assert_eq!(tos(Class::Normal, 23), 0);
    }

    #[test]
    fn a_datagram_has_its_own() {
        let socket = UdpSocket::bind("[::1]:0").unwrap();
        let mut marker = Marker::new(Marking::default(), socket.local_addr().unwrap());
        for (class, dscp, priority) in [
            (Class::RealTime, 46, 6),
            (Class::Normal, 0, 0),
            (Class::Bulk, 0, 2),
            (Class::Priority, 40, 6),
        ] {
            marker.datagram(&socket, class);
            let set = SockRef::from(&socket);
            assert_eq!(set.tclass_v6().unwrap(), dscp << 2);
            assert_eq!(set.priority().unwrap(), priority);
        }
        Marker::new(Marking::OFF, socket.local_addr().unwrap()).datagram(&socket, Class::RealTime);
        assert_eq!(SockRef::from(&socket).tclass_v6().unwrap(), 40 << 2);
    }
}
