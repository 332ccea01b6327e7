//! The sockets of a UDP listener: one for each traffic class, all bound to the
//! same port, so that what one is marked with never meets packets of another.
//!
//! The kernel spreads what arrives over them by the sender's address; all are
//! read. Datagrams are moved in batches (recvmmsg, sendmmsg). On a listener for
//! all addresses the one that a client used is noted (IP_PKTINFO), and answers
//! leave from it. Source: udp(7), ip(7), ipv6(7), cmsg(3).

use std::collections::VecDeque;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};

use punctual_broker::Class;
use punctual_udp::{Path, Transmit};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::marking::Marking;

/// Traffic classes, and so sockets.
pub(crate) const CLASSES: usize = Class::ALL.len();
/// Datagrams moved by one system call.
const BATCH: usize = 32;
/// Datagrams asked for as long as they come one by one: one more than there is,
/// so that the system's answer says that it was all.
const FEW: usize = 2;
/// The largest datagram there is.
const LARGEST: usize = 64 << 10;
/// Room for one IPv6 packet information.
const CONTROL: usize = 64;
/// Receive buffer asked for; the system may grant less.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The sockets of one listener, by class.
pub(crate) struct Sockets {
    sockets: [Socket; CLASSES],
    ipv6: bool,
    /// Whether the local address of datagrams has to be set.
    any: bool,
}

impl Sockets {
    /// Opens and binds the sockets.
    pub(crate) fn open(
        address: SocketAddr,
        send_buffer: usize,
        marking: &Marking,
    ) -> io::Result<Self> {
        // Sockets that may share a port would share it with those of another
        // server too, and each would get half of the datagrams: one that may
        // not tells whether the port is free, and which it is.
        let probe = Self::bind(address, false, send_buffer)?;
        let bound = probe.local_addr()?.as_socket().unwrap_or(address);
        drop(probe);
        let open = |class| {
            let socket = Self::bind(bound, true, send_buffer)?;
            marking.apply(&socket, class)?;
            Ok::<_, io::Error>(socket)
        };
        let [a, b, c, d] = Class::ALL;
        let sockets = [open(a)?, open(b)?, open(c)?, open(d)?];
        Ok(Self {
            sockets,
            ipv6: address.is_ipv6(),
            any: address.ip().is_unspecified(),
        })
    }

    fn bind(address: SocketAddr, shared: bool, send_buffer: usize) -> io::Result<Socket> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if shared {
            socket.set_reuse_port(true)?;
        }
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        if address.ip().is_unspecified() {
            let on: libc::c_int = 1;
            if address.is_ipv6() {
                set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, on)?;
            } else {
                set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, on)?;
            }
        }
        socket.set_send_buffer_size(send_buffer)?;
        // Less than asked for works too, only sooner full.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        socket.bind(&address.into())?;
        Ok(socket)
    }

    /// Has datagrams that are too large for the path lost instead of fragmented,
    /// as QUIC demands (RFC 9000 section 14), which finds out by itself what the path
    /// takes.
    pub(crate) fn never_fragment(&self) -> io::Result<()> {
        self.set_discovery(libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE)
    }

    /// Has datagrams refused that are too large for what the system knows of the
    /// path, instead of fragmented.
    pub(crate) fn refuse_fragments(&self) -> io::Result<()> {
        self.set_discovery(libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO)
    }

    fn set_discovery(&self, ipv4: libc::c_int, ipv6: libc::c_int) -> io::Result<()> {
        for socket in &self.sockets {
            if self.ipv6 {
                set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, ipv6)?;
            }
            if !self.ipv6 || self.any {
                set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, ipv4)?;
            }
        }
        Ok(())
    }

    /// The address they are bound to.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets[0]
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::Error::other("a UDP socket without IP address"))
    }

    /// The address that a datagram came to; `local` is its IP address, where the system gives one.
    pub(crate) fn destination(&self, local: Option<IpAddr>) -> Option<SocketAddr> {
        let mut address = self.local_addr().ok()?;
        if let Some(local) = local {
            address.set_ip(local);
        }
        (!address.ip().is_unspecified()).then_some(address)
    }

    /// The socket that sends a class.
    pub(crate) fn of(&self, class: usize) -> &Socket {
        &self.sockets[class]
    }

    /// Reads up to one batch from a class' socket; false if there is nothing
    /// more to read for now.
    pub(crate) fn receive(&self, class: usize, batch: &mut ReceiveBatch) -> io::Result<bool> {
        batch.receive(self.sockets[class].as_raw_fd())
    }

    /// Sends the first `allowed` datagrams of `queue` and removes them. One that the
    /// system refuses is dropped and noted in `refused`. Stops with
    /// `WouldBlock` when the socket is full.
    pub(crate) fn send(
        &self,
        class: usize,
        batch: &mut SendBatch,
        queue: &mut VecDeque<Transmit<Path>>,
        mut allowed: usize,
        mut done: impl FnMut(Vec<u8>),
        refused: &mut Refused,
    ) -> io::Result<()> {
        let socket = &self.sockets[class];
        while allowed > 0
            && let Some(first) = queue.front()
        {
            let count = queue.len().min(allowed).min(BATCH);
            let sent = if count == 1 && !self.any {
                let to = self.name_of(&first.path);
                socket.send_to(&first.data, &to).map(|_| 1)
            } else {
                batch.send(self, class, queue, count)
            };
            let n = match sent {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        || error.raw_os_error() == Some(libc::ENOBUFS) =>
                {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                // An ICMP message about an earlier datagram, or a path that
                // does not take this one: it is lost, as datagrams may be.
                Err(error) => {
                    refused.count += 1;
                    if error.raw_os_error() == Some(libc::EMSGSIZE) {
                        refused.too_long.push(first.path.remote);
                    }
                    1
                }
            };
            allowed = allowed.saturating_sub(n);
            for _ in 0..n {
                if let Some(transmit) = queue.pop_front() {
                    done(transmit.data);
                }
            }
        }
        Ok(())
    }

    /// Where a datagram goes, as these sockets call it.
    #[inline]
    fn name_of(&self, path: &Path) -> SockAddr {
        SockAddr::from(match (path.remote, self.ipv6) {
            (SocketAddr::V4(to), true) => {
                SocketAddrV6::new(to.ip().to_ipv6_mapped(), to.port(), 0, 0).into()
            }
            (to, _) => to,
        })
    }
}

/// Datagrams that the system has refused.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// How many, or that were too many to wait.
    pub(crate) count: u64,
    /// Where those were to go that the path does not take.
    pub(crate) too_long: Vec<SocketAddr>,
}

/// Bytes of a datagram that the system knows the path to an address takes.
pub(crate) fn path_capacity(to: SocketAddr) -> io::Result<usize> {
    // Only connected sockets have a path.
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&to.into())?;
    let (level, name, headers) = match to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, 28),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU, 48),
    };
    let mut mtu: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointers are to a live c_int and to its length.
    match unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut mtu).cast(),
            &raw mut size,
        )
    } {
        0 => Ok(usize::try_from(mtu).unwrap_or(0).saturating_sub(headers)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_option(socket: &Socket, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a live c_int of the length given.
    match unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Buffers for one recvmmsg.
pub(crate) struct ReceiveBatch {
    data: Box<[u8]>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
    /// Of the data and of the control messages.
    lengths: Vec<(usize, usize)>,
    filled: usize,
    /// How many to ask for next: a header takes longer to set up than one
    /// datagram takes to be routed.
    ask: usize,
}

/// Aligned as control messages have to be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Arrays for the system, of which only the first elements are used and set.
type Vectors = [MaybeUninit<libc::iovec>; BATCH];
type Headers = [MaybeUninit<libc::mmsghdr>; BATCH];

impl ReceiveBatch {
    /// Buffers, if they are needed at all.
    pub(crate) fn new(needed: bool) -> Self {
        let bytes = if needed { BATCH * LARGEST } else { 0 };
        Self {
            data: vec![0; bytes].into_boxed_slice(),
            // SAFETY: all zeros is a valid address storage, of no family.
            names: vec![unsafe { std::mem::zeroed() }; BATCH],
            controls: vec![Control([0; CONTROL]); BATCH],
            lengths: vec![(0, 0); BATCH],
            filled: 0,
            ask: FEW,
        }
    }

    fn receive(&mut self, fd: RawFd) -> io::Result<bool> {
        self.filled = 0;
        let asked = self.ask;
        let mut vectors: Vectors = [const { MaybeUninit::uninit() }; BATCH];
        let mut headers: Headers = [const { MaybeUninit::uninit() }; BATCH];
        for n in 0..asked {
            let vector = vectors[n].write(libc::iovec {
                iov_base: self.data[n * LARGEST..].as_mut_ptr().cast(),
                iov_len: LARGEST,
            });
            // SAFETY: all zeros is a valid mmsghdr without buffers.
            let header = headers[n].write(unsafe { std::mem::zeroed() });
            header.msg_hdr.msg_name = (&raw mut self.names[n]).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = (&raw mut self.controls[n]).cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        // SAFETY: the first `asked` headers are set and point to buffers of the
        // lengths they say, which live until the call returns and overlap
        // nowhere.
        let n = unsafe {
            libc::recvmmsg(
                fd,
                headers.as_mut_ptr().cast(),
                asked as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(false),
                // An ICMP message; reading continues.
                io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted => Ok(true),
                _ => Err(error),
            };
        }
        self.filled = n as usize;
        for (lengths, header) in self.lengths.iter_mut().zip(&headers[..self.filled]) {
            // SAFETY: set above; the system fills no more than asked for.
            let header = unsafe { header.assume_init_ref() };
            *lengths = (header.msg_len as usize, header.msg_hdr.msg_controllen);
        }
        let more = self.filled == asked;
        self.ask = if more {
            BATCH
        } else {
            (self.filled + 1).max(FEW)
        };
        Ok(more)
    }

    /// What was read: where from, and bytes.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = (Path, &[u8])> {
        (0..self.filled).filter_map(|n| {
            let (len, control_len) = self.lengths[n];
            let data = self.data.get(n * LARGEST..n * LARGEST + len.min(LARGEST))?;
            let path = Path {
                remote: address_of(&self.names[n])?,
                local: local_of(&self.controls[n].0[..control_len.min(CONTROL)]),
            };
            Some((path, data))
        })
    }
}

/// The address that the kernel has written, IPv4 not mapped to IPv6.
fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one, and the storage is
            // larger and as aligned.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(match ip.to_ipv4_mapped() {
                Some(ip) => (ip, port).into(),
                None => SocketAddrV6::new(ip, port, 0, name.sin6_scope_id).into(),
            })
        }
        _ => None,
    }
}

/// Bytes of a control message's header.
const HEADER: usize = size_of::<libc::cmsghdr>();

/// The local address in control messages.
fn local_of(mut control: &[u8]) -> Option<IpAddr> {
    while control.len() >= HEADER {
        let mut header = MaybeUninit::<libc::cmsghdr>::uninit();
        // SAFETY: there are that many bytes, and any bytes are a cmsghdr.
        let header = unsafe {
            std::ptr::copy_nonoverlapping(control.as_ptr(), header.as_mut_ptr().cast(), HEADER);
            header.assume_init()
        };
        let len = header.cmsg_len as usize;
        let body = control.get(HEADER..len)?;
        match (header.cmsg_level, header.cmsg_type) {
            // in_pktinfo: interface, the address for answers, destination.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let octets: [u8; 4] = body.get(4..8)?.try_into().ok()?;
                return Some(Ipv4Addr::from(octets).into());
            }
            // in6_pktinfo: destination, interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let octets: [u8; 16] = body.get(..16)?.try_into().ok()?;
                return Some(Ipv6Addr::from(octets).to_canonical());
            }
            _ => {}
        }
        control = control.get(len.next_multiple_of(size_of::<usize>())..)?;
    }
    None
}

/// Appends the control message that makes a datagram leave from `local`;
/// returns its length.
fn put_local(local: IpAddr, ipv6: bool, control: &mut [u8; CONTROL]) -> usize {
    let (level, kind, body): (_, _, &[u8]) = match (local, ipv6) {
        (IpAddr::V4(ip), false) => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&ip.octets());
            return put_control(libc::IPPROTO_IP, libc::IP_PKTINFO, &info, control);
        }
        (IpAddr::V4(ip), true) => (
            libc::IPPROTO_IPV6,
            libc::IPV6_PKTINFO,
            &ip.to_ipv6_mapped().octets(),
        ),
        (IpAddr::V6(ip), true) => (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &ip.octets()),
        (IpAddr::V6(_), false) => return 0,
    };
    let mut info = [0; 20];
    info[..16].copy_from_slice(body);
    put_control(level, kind, &info, control)
}

fn put_control(level: i32, kind: i32, body: &[u8], control: &mut [u8; CONTROL]) -> usize {
    // SAFETY: all zeros is a valid cmsghdr.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_len = (HEADER + body.len()) as _;
    header.cmsg_level = level;
    header.cmsg_type = kind;
    // SAFETY: the control buffer has room for a header, which is plain data.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const header).cast(), control.as_mut_ptr(), HEADER);
    }
    control[HEADER..HEADER + body.len()].copy_from_slice(body);
    (HEADER + body.len()).next_multiple_of(size_of::<usize>())
}

/// Buffers for one sendmmsg.
pub(crate) struct SendBatch {
    names: Vec<SockAddr>,
    controls: Vec<Control>,
}

impl SendBatch {
    pub(crate) fn new() -> Self {
        Self {
            names: Vec::with_capacity(BATCH),
            controls: vec![Control([0; CONTROL]); BATCH],
        }
    }

    /// Sends the first `count` datagrams of a queue, at most [`BATCH`]; returns
    /// how many were sent.
    fn send(
        &mut self,
        sockets: &Sockets,
        class: usize,
        queue: &VecDeque<Transmit<Path>>,
        count: usize,
    ) -> io::Result<usize> {
        self.names.clear();
        let first = queue.iter().take(count);
        self.names
            .extend(first.map(|transmit| sockets.name_of(&transmit.path)));
        let mut vectors: Vectors = [const { MaybeUninit::uninit() }; BATCH];
        let mut headers: Headers = [const { MaybeUninit::uninit() }; BATCH];
        for (n, (transmit, name)) in queue.iter().zip(&self.names).enumerate() {
            let vector = vectors[n].write(libc::iovec {
                // Sending does not write through it.
                iov_base: transmit.data.as_ptr().cast_mut().cast(),
                iov_len: transmit.data.len(),
            });
            // SAFETY: all zeros is a valid mmsghdr without buffers.
            let header = headers[n].write(unsafe { std::mem::zeroed() });
            header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = name.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            if let Some(local) = transmit.path.local.filter(|_| sockets.any) {
                let len = put_local(local, sockets.ipv6, &mut self.controls[n].0);
                if len > 0 {
                    header.msg_hdr.msg_control = (&raw mut self.controls[n]).cast();
                    header.msg_hdr.msg_controllen = len as _;
                }
            }
        }
        // SAFETY: the first `count` headers are set and point to live buffers of
        // the lengths they say; nothing is written but the lengths in the
        // headers.
        let n = unsafe {
            libc::sendmmsg(
                sockets.sockets[class].as_raw_fd(),
                headers.as_mut_ptr().cast(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        match n {
            n if n >= 0 => Ok(n as usize),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    fn transmit(to: SocketAddr, local: Option<IpAddr>, data: &[u8]) -> Transmit<Path> {
        Transmit {
            path: Path { remote: to, local },
            class: 0,
            data: data.to_vec(),
        }
    }

    fn receive(sockets: &Sockets) -> Vec<(Path, Vec<u8>)> {
        let mut batch = ReceiveBatch::new(true);
        let mut all = Vec::new();
        for class in 0..CLASSES {
            sockets.receive(class, &mut batch).unwrap();
            all.extend(batch.datagrams().map(|(path, data)| (path, data.to_vec())));
        }
        all
    }

    fn client(address: &str) -> UdpSocket {
        let socket = UdpSocket::bind(address).unwrap();
        let patience = Some(Duration::from_secs(10));
        socket.set_read_timeout(patience).unwrap();
        socket
    }

    #[test]
    fn datagrams_come_and_go_in_every_class() {
        let sockets =
            Sockets::open("127.0.0.1:0".parse().unwrap(), 16 << 10, &Marking::NONE).unwrap();
        let address = sockets.local_addr().unwrap();
        let client = client("127.0.0.1:0");
        client.send_to(b"to the server", address).unwrap();
        client.send_to(b"", address).unwrap();
        let from = client.local_addr().unwrap();
        let got = receive(&sockets);
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].0.remote, from);
        assert_eq!(got[0].1, b"to the server");
        let mut batch = SendBatch::new();
        let mut refused = Refused::default();
        for class in 0..CLASSES {
            let mut queue: VecDeque<_> = (0..40)
                .map(|n| transmit(from, None, &[class as u8, n]))
                .collect();
            let mut done = 0;
            sockets
                .send(
                    class,
                    &mut batch,
                    &mut queue,
                    usize::MAX,
                    |_| done += 1,
                    &mut refused,
                )
                .unwrap();
            assert_eq!((done, queue.len(), refused.count), (40, 0, 0));
            for n in 0..40 {
                let mut buffer = [0; 10];
                let (len, peer) = client.recv_from(&mut buffer).unwrap();
                assert_eq!((peer, &buffer[..len]), (address, &[class as u8, n][..]));
            }
        }
    }

    #[test]
    fn answers_leave_from_the_address_that_was_asked() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let sockets = Sockets::open(any.parse().unwrap(), 16 << 10, &Marking::NONE).unwrap();
            let port = sockets.local_addr().unwrap().port();
            let client = client("127.0.0.1:0");
            let asked: SocketAddr = ([127, 0, 0, 7], port).into();
            client.send_to(b"x", asked).unwrap();
            let got = receive(&sockets);
            assert_eq!(got[0].0.local, Some(asked.ip()), "{any}");
            let answer = Transmit {
                path: got[0].0,
                class: 0,
                data: b"y".to_vec(),
            };
            let mut refused = Refused::default();
            let mut queue = VecDeque::from([answer]);
            let mut batch = SendBatch::new();
            sockets
                .send(0, &mut batch, &mut queue, usize::MAX, |_| {}, &mut refused)
                .unwrap();
            let (_, peer) = client.recv_from(&mut [0; 10]).unwrap();
            assert_eq!((peer, refused.count), (asked, 0), "{any}");
        }
    }

    #[test]
    fn what_the_system_refuses_is_lost_alone() {
        let sockets =
            Sockets::open("127.0.0.1:0".parse().unwrap(), 16 << 10, &Marking::NONE).unwrap();
        let client = client("127.0.0.1:0");
        let to = client.local_addr().unwrap();
        let too_large = vec![0; 70_000];
        let mut queue = VecDeque::from([
            transmit(to, None, b"1"),
            transmit(to, None, &too_large),
            transmit(to, None, b"2"),
        ]);
        let mut refused = Refused::default();
        let mut batch = SendBatch::new();
        sockets
            .send(0, &mut batch, &mut queue, usize::MAX, |_| {}, &mut refused)
            .unwrap();
        assert_eq!(refused.count, 1);
        let mut buffer = [0; 10];
        client.recv_from(&mut buffer).unwrap();
        let (len, _) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"2");
    }

    #[test]
    fn a_port_in_use_is_not_shared_by_mistake() {
        let sockets =
            Sockets::open("127.0.0.1:0".parse().unwrap(), 16 << 10, &Marking::NONE).unwrap();
        let address = sockets.local_addr().unwrap();
        let error = Sockets::open(address, 16 << 10, &Marking::NONE)
            .err()
            .unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
