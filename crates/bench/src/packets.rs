//! Captures packets at network devices with kernel time stamps, by AF_PACKET sockets.
//!
//! The kernel stamps an incoming packet when the device receives it, before queues and sockets, and
//! an outgoing one when the queueing discipline hands it to the device. Source: packet(7),
//! socket(7).

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use punctual_testbed::netns::Namespace;

/// Requested size of the kernel's buffer for captured packets, bytes.
const ROOM: libc::c_int = 64 * 1024 * 1024;

/// Size of the buffer for one control message with a time stamp, bytes.
const CONTROL: usize = 64;

/// A captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Bytes of the packet in the buffer; a longer packet is truncated to the buffer's size.
    pub(crate) length: usize,
    /// Interface index of the device.
    pub(crate) device: u32,
    /// The device sent the packet; otherwise the device received it.
    pub(crate) outgoing: bool,
    /// Time stamp, nanoseconds on `CLOCK_REALTIME`.
    pub(crate) time: u64,
}

/// Which packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Incoming IPv4 packets that no ingress hook has forwarded.
    Incoming,
    /// All incoming packets, including those that the ingress hook forwards, and all outgoing ones.
    All,
}

/// A capture at all devices of a network namespace.
#[derive(Debug)]
pub(crate) struct Capture(OwnedFd);

impl Capture {
    /// Starts a capture.
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
        // SAFETY: socket takes three integers; no other code owns the descriptor that it returns.
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
        // SAFETY: the descriptor is open, and the value is valid and of the given size.
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

    /// Copies the next captured packet, if there is one, into `buffer`.
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
        // SAFETY: all pointers in `message` are valid for the lengths beside them.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) };
        if length < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                // A device went down; the capture at the other devices continues.
                _ if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: a zeroed sockaddr_ll that the kernel has filled in is valid.
        let from = unsafe { from.assume_init() };
        Ok(Some(Seen {
            length: length as usize,
            device: from.sll_ifindex as u32,
            outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
            time: time(&message),
        }))
    }

    /// Packets dropped because the buffer was full, since the last call.
    pub(crate) fn missed(&self) -> io::Result<u64> {
        let mut statistics = [0_u32; 2];
        let mut size = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the buffer is valid and of the given size.
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

/// The kernel's time stamp in a message's control data, ns; 0 without one.
fn time(message: &libc::msghdr) -> u64 {
    // SAFETY: the control buffer is valid and the kernel has set its length.
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
        // On the loopback device each packet is captured twice: outgoing and incoming.
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
