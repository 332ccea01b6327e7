//! Traffic classes on the wire: which DSCP the packets of a socket carry, for
//! switches and routers, and which `SO_PRIORITY`, for the queues of this host.
//!
//! Invariant: a socket has the mark that was applied last, as a whole; one
//! whose class has the system's own mark (CS0, 0) is never touched. Setting
//! `IP_TOS` changes `SO_PRIORITY` in Linux, so the latter is set after it.
//!
//! Sources: RFC 2474 and 8622 (code points), RFC 4594 section 3 (their names),
//! RFC 7657 section 5.1 (one code point for a TCP connection), socket(7),
//! ip(7), ipv6(7), tc-prio(8).

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;

use punctual_broker::Class;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Largest `SO_PRIORITY` that needs no privilege.
const MOST_UNPRIVILEGED: u8 = 6;

/// Largest `SO_PRIORITY` that a queue of Linux tells from others (`TC_PRIO_MAX`).
pub const MOST_PRIORITY: u8 = 15;

/// A differentiated services code point, 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dscp(u8);

/// Code points that have a name.
const NAMES: [(&str, u8); 23] = [
    ("CS0", 0),
    ("LE", 1),
    ("CS1", 8),
    ("AF11", 10),
    ("AF12", 12),
    ("AF13", 14),
    ("CS2", 16),
    ("AF21", 18),
    ("AF22", 20),
    ("AF23", 22),
    ("CS3", 24),
    ("AF31", 26),
    ("AF32", 28),
    ("AF33", 30),
    ("CS4", 32),
    ("AF41", 34),
    ("AF42", 36),
    ("AF43", 38),
    ("CS5", 40),
    ("VA", 44),
    ("EF", 46),
    ("CS6", 48),
    ("CS7", 56),
];

impl Dscp {
    /// Expedited forwarding (RFC 3246): a short queue before all others.
    pub const EF: Self = Self(46);
    /// Class selector 5: signalling and other urgent data.
    pub const CS5: Self = Self(40);
    /// Default forwarding: best effort.
    pub const CS0: Self = Self(0);

    /// The code point, where the number is one (0 to 63).
    pub const fn new(number: u8) -> Option<Self> {
        if number < 64 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number, 0 to 63.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The name, of a code point that has one.
    pub fn name(self) -> Option<&'static str> {
        let named = NAMES.iter().find(|(_, number)| *number == self.0);
        named.map(|(name, _)| *name)
    }

    /// The octet of the IP header that holds the code point, without ECN.
    const fn octet(self) -> u32 {
        (self.0 as u32) << 2
    }
}

/// The name, or the number of a code point that has none.
impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

/// Why a text is no code point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{value}\" is not a DSCP; {remedy}")]
pub struct DscpError {
    /// What was written.
    pub value: String,
    /// What to write instead.
    pub remedy: &'static str,
}

/// Reads a name (any case) or a number from 0 to 63. "BE", "DF" and "DEFAULT"
/// are other names of CS0, "VOICE-ADMIT" one of VA.
impl FromStr for Dscp {
    type Err = DscpError;

    fn from_str(text: &str) -> Result<Self, DscpError> {
        let fail = |remedy| DscpError {
            value: text.into(),
            remedy,
        };
        if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            let number = text.parse().ok().and_then(Self::new);
            return number.ok_or_else(|| {
                fail(
                    "write a number from 0 to 63; a value of the whole octet (TOS), such as \
                     184, is four times the DSCP",
                )
            });
        }
        let upper = text.to_ascii_uppercase();
        let name = match upper.as_str() {
            "BE" | "DF" | "DEFAULT" => "CS0",
            "VOICE-ADMIT" => "VA",
            name => name,
        };
        let named = NAMES.iter().find(|(known, _)| *known == name);
        named.map(|(_, number)| Self(*number)).ok_or_else(|| {
            fail("write EF, VA, LE, CS0 to CS7, AF11 to AF43, or a number from 0 to 63")
        })
    }
}

/// What packets of a class carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Code point in the IP header.
    pub dscp: Dscp,
    /// `SO_PRIORITY`, 0 to [`MOST_PRIORITY`]: chooses the queue of the device,
    /// and the PCP of a VLAN device (its egress-qos-map).
    pub priority: u8,
}

impl Mark {
    /// What sockets have from the system.
    pub const NONE: Self = Self {
        dscp: Dscp::CS0,
        priority: 0,
    };
}

/// The mark of each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    marks: [Mark; 4],
}

/// What each class gets unless configured otherwise. What did not ask for
/// urgency looks on the wire as it does with any other broker. 6 is the only
/// value without privilege that Linux' default queue serves before best effort;
/// 5 would come after it, and 2 is its queue for bulk.
impl Default for Marking {
    fn default() -> Self {
        Self::NONE
            .with(
                Class::RealTime,
                Mark {
                    dscp: Dscp::EF,
                    priority: 6,
                },
            )
            .with(
                Class::Priority,
                Mark {
                    dscp: Dscp::CS5,
                    priority: 6,
                },
            )
            .with(
                Class::Bulk,
                Mark {
                    dscp: Dscp::CS0,
                    priority: 2,
                },
            )
    }
}

impl Marking {
    /// Nothing is marked.
    pub const NONE: Self = Self {
        marks: [Mark::NONE; 4],
    };

    /// The same with another mark for one class.
    #[must_use]
    pub fn with(mut self, class: Class, mark: Mark) -> Self {
        self.marks[class as usize] = mark;
        self
    }

    /// The mark of a class.
    #[inline]
    pub fn mark(&self, class: Class) -> Mark {
        self.marks[class as usize]
    }

    /// Marks what the socket sends from now on, TCP or UDP, IPv4 or IPv6.
    ///
    /// # Errors
    /// As setsockopt(2). With what [`Self::allowed`] returned there are none on
    /// an open IP socket.
    pub fn apply(&self, socket: &impl AsFd, class: Class) -> io::Result<()> {
        apply(&SockRef::from(socket), self.mark(class))
    }

    /// Moves a socket from one class to another; a system call only if their
    /// marks differ.
    ///
    /// # Errors
    /// As [`Self::apply`].
    #[inline]
    pub fn change(&self, socket: &impl AsFd, from: Class, to: Class) -> io::Result<()> {
        if self.mark(from) == self.mark(to) {
            return Ok(());
        }
        self.apply(socket, to)
    }

    /// The marking that this process may use, found by trying it, and why it
    /// is less than was asked for, if it is.
    pub fn allowed(self) -> (Self, Option<String>) {
        let Err(refused) = may_use(self.most_priority()) else {
            return (self, None);
        };
        let mut less = self;
        for mark in &mut less.marks {
            mark.priority = mark.priority.min(MOST_UNPRIVILEGED);
        }
        let why = format!(
            "marking: SO_PRIORITY {} cannot be set ({refused}), {MOST_UNPRIVILEGED} is used instead; \
             give the process CAP_NET_ADMIN (AmbientCapabilities= in systemd) or configure \
             0 to {MOST_UNPRIVILEGED}",
            self.most_priority()
        );
        (less, Some(why))
    }

    fn most_priority(&self) -> u8 {
        let priorities = self.marks.iter().map(|mark| mark.priority);
        priorities.max().unwrap_or(0)
    }
}

fn apply(socket: &SockRef<'_>, mark: Mark) -> io::Result<()> {
    // An IPv6 socket may talk to an IPv4 address in disguise (::ffff:10.0.0.1);
    // its packets then take the IPv4 option, so it gets both.
    let version_6 = socket.domain()? == Domain::IPV6;
    match socket.set_tos_v4(mark.dscp.octet()) {
        // A socket for IPv6 alone needs no IPv4 option.
        Err(error) if !version_6 => return Err(error),
        _ => {}
    }
    if version_6 {
        socket.set_tclass_v6(mark.dscp.octet())?;
    }
    // Last: setting the octet has changed it.
    socket.set_priority(mark.priority.into())
}

/// Whether a socket of this process can have the priority.
fn may_use(priority: u8) -> io::Result<()> {
    if priority <= MOST_UNPRIVILEGED {
        return Ok(());
    }
    Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))
        .or_else(|_| Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)))?
        .set_priority(priority.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn code_points_have_names_and_numbers() {
        for (text, number, shown) in [
            ("EF", 46, "EF"),
            ("ef", 46, "EF"),
            ("CS5", 40, "CS5"),
            ("AF41", 34, "AF41"),
            ("af21", 18, "AF21"),
            ("BE", 0, "CS0"),
            ("le", 1, "LE"),
            ("46", 46, "EF"),
            ("3", 3, "3"),
            ("63", 63, "63"),
        ] {
            let dscp: Dscp = text.parse().unwrap();
            assert_eq!((dscp.number(), dscp.to_string()), (number, shown.into()));
            assert_eq!(shown.parse(), Ok(dscp));
        }
    }

    #[test]
    fn assured_forwarding_is_eight_classes_and_two_drops() {
        for class in 1..=4 {
            for drop in 1..=3 {
                let name = format!("AF{class}{drop}");
                let dscp: Dscp = name.parse().unwrap();
                assert_eq!(dscp.number(), 8 * class + 2 * drop, "{name}");
            }
        }
        for class in 0..=7 {
            let dscp: Dscp = format!("CS{class}").parse().unwrap();
            assert_eq!(dscp.number(), 8 * class);
        }
    }

    #[test]
    fn what_is_no_code_point_is_refused_with_a_remedy() {
        for text in [
            "64", "184", "256", "AF44", "AF51", "CS8", "", "EF ", "-1", "0x2e",
        ] {
            let error = text.parse::<Dscp>().unwrap_err();
            assert_eq!(error.value, text);
            assert!(error.to_string().contains("write"), "{error}");
        }
        let octet = "184".parse::<Dscp>().unwrap_err().to_string();
        assert!(octet.contains("four times"), "{octet}");
    }

    #[test]
    fn plain_messages_are_not_marked_and_urgent_ones_pass_best_effort() {
        let marking = Marking::default();
        assert_eq!(marking.mark(Class::Normal), Mark::NONE);
        // Bands of Linux' default queue (tc-prio(8)), 0 first.
        let band = |class| [1, 2, 2, 2, 1, 2, 0, 0][usize::from(marking.mark(class).priority)];
        assert!(band(Class::RealTime) < band(Class::Normal));
        assert!(band(Class::Priority) < band(Class::Normal));
        assert!(band(Class::Normal) < band(Class::Bulk));
        assert_eq!(marking.allowed(), (marking, None));
    }

    fn options(socket: &impl AsFd) -> (u32, Option<u32>, u32) {
        let socket = SockRef::from(socket);
        let version_6 = socket.domain().unwrap() == Domain::IPV6;
        let tclass = version_6.then(|| socket.tclass_v6().unwrap());
        (socket.tos_v4().unwrap(), tclass, socket.priority().unwrap())
    }

    #[test]
    fn the_options_of_every_kind_of_socket_are_set() {
        let marking = Marking::default();
        let mut sockets: Vec<(Socket, bool)> = vec![
            (TcpListener::bind("127.0.0.1:0").unwrap().into(), false),
            (UdpSocket::bind("127.0.0.1:0").unwrap().into(), false),
        ];
        // Where the machine has IPv6.
        let listener = TcpListener::bind("[::1]:0").map(Socket::from);
        let datagram = UdpSocket::bind("[::1]:0").map(Socket::from);
        sockets.extend(
            [listener, datagram]
                .into_iter()
                .flatten()
                .map(|s| (s, true)),
        );
        for (socket, version_6) in sockets {
            for (class, octet, priority) in [
                (Class::RealTime, 0xb8, 6),
                (Class::Priority, 0xa0, 6),
                (Class::Bulk, 0, 2),
                (Class::Normal, 0, 0),
            ] {
                marking.apply(&socket, class).unwrap();
                let expected = (octet, version_6.then_some(octet), priority);
                assert_eq!(options(&socket), expected, "{class:?}");
            }
        }
    }

    #[test]
    fn an_equal_mark_touches_nothing() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        SockRef::from(&socket).set_tos_v4(0x48).unwrap();
        let before = options(&socket);
        let marking = Marking::NONE.with(Class::RealTime, Marking::default().mark(Class::RealTime));
        marking.change(&socket, Class::Normal, Class::Bulk).unwrap();
        assert_eq!(options(&socket), before);
        marking
            .change(&socket, Class::Normal, Class::RealTime)
            .unwrap();
        assert_eq!(options(&socket), (0xb8, None, 6));
    }
}
