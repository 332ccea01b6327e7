//! Packets as they pass devices, with the kernel's time of each: AF_PACKET sockets.
//!
//! A packet that comes in is stamped when the device takes it, before queues and sockets; one
//! that goes out when the queue hands it to the device. Source: packet(7), socket(7).

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use punctual_testbed::netns::Namespace;

/// Bytes asked of the kernel for packets that were not looked at yet.
const ROOM: libc::c_int = 64 * 1024 * 1024;

/// Room for one control message with a time.
const CONTROL: usize = 64;

/// A packet that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its length in the buffer, cut off at the buffer's end.
    pub(crate) length: usize,
    /// Index of the device.
    pub(crate) device: u32,
    /// It left by the device.
    pub(crate) outgoing: bool,
    /// Nanoseconds on `CLOCK_REALTIME`.
    pub(crate) time: u64,
}

/// Which packets are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// IPv4 that comes in and that no ingress hook has forwarded.
    Incoming,
    /// All that comes in, also if it is forwarded in the ingress hook, and all that goes out.
    All,
}

/// Sees packets of all devices of a namespace.
#[derive(Debug)]
pub(crate) struct Capture(OwnedFd);

impl Capture {
    /// Begins to see packets.
    pub(crate) fn new(namespace: &Namespace, which: Which) -> punctual_measure::Result<Self> {
        namespace
            .enter(|| Self::open(which))?
            .map_err(punctual_measure::Error::io("cannot capture packets"))
    }

    fn open(which: Which) -> io::Result<Self> {
        let protocol = match which {
            Which::Incoming => libc::ETH_P_IP,
            Which::All => libc::ETH_P_ALL,
        };
        let protocol = (protocol as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three integers; the descriptor returned is ours alone.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, libc::c_int::from(protocol));
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let capture = Self(fd);
        capture.set(libc::SO_TIMESTAMPNS, 1)?;
        capture.set(libc::SO_RCVBUFFORCE, ROOM)?;
        Ok(capture)
    }

    fn set(&self, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the value is valid and of the size given.
        let returned = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        match returned {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes the next packet, if there is one, into `buffer`.
    pub(crate) fn next(&self, buffer: &mut [u8]) -> io::Result<Option<Seen>> {
        let mut from = MaybeUninit::<libc::sockaddr_ll>::zeroed();
        let mut control = [MaybeUninit::<u64>::uninit(); CONTROL / 8];
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: an all-zero msghdr is valid.
        let mut message = unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() };
        message.msg_name = from.as_mut_ptr().cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        // SAFETY: everything that `message` points to is valid and of the length it says.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) };
        if length < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                // A device went down; the others go on.
                _ if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: zeroes and what the kernel wrote are a valid sockaddr_ll.
        let from = unsafe { from.assume_init() };
        Ok(Some(Seen {
            length: length as usize,
            device: from.sll_ifindex as u32,
            outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
            time: time(&message),
        }))
    }

    /// Packets that came while the room was full, since this was asked last.
    pub(crate) fn missed(&self) -> io::Result<u64> {
        let mut statistics = [0_u32; 2];
        let mut size = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the buffer is valid and of the size given.
        let returned = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        match returned {
            0 => Ok(u64::from(statistics[1])),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The kernel's time in a message's control data; 0 if it has none.
fn time(message: &libc::msghdr) -> u64 {
    // SAFETY: the control buffer is valid and its length is what the kernel wrote.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_TIMESTAMPNS {
                let data = libc::CMSG_DATA(at);
                let seconds = data.add(offset_of!(libc::timespec, tv_sec));
                let nanos = data.add(offset_of!(libc::timespec, tv_nsec));
                let seconds = seconds.cast::<i64>().read_unaligned() as u64;
                let nanos = nanos.cast::<i64>().read_unaligned() as u64;
                return seconds * 1_000_000_000 + nanos;
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn packets_are_seen_at_the_device_with_the_kernels_time() {
        if Namespace::is_missing() {
            return;
        }
        let host = Namespace::new("host").unwrap();
        let capture = Capture::new(&host, Which::All).unwrap();
        let socket = host.enter(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
        let socket = socket.unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        socket.send(b"hello").unwrap();
        socket.recv(&mut [0; 8]).unwrap();
        // On the loopback device a packet goes out and comes in again.
        let mut buffer = [0; 128];
        let mut seen = Vec::new();
        while let Some(packet) = capture.next(&mut buffer).unwrap() {
            assert!(buffer[..packet.length].ends_with(b"hello"));
            seen.push(packet);
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(seen[0].outgoing && !seen[1].outgoing);
        assert!(seen[0].time > 0 && seen[0].time <= seen[1].time);
        assert_eq!(capture.missed().unwrap(), 0);
    }
}
