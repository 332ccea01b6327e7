//! What a datagram costs that is sent alone, with others by `sendmmsg`, and with
//! others as one packet that the system cuts (GSO): figures for docs/udp.md.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

const DATAGRAM: usize = 500;
const RUNS: usize = 7;
const DATAGRAMS: usize = 16_384;

/// A pair of sockets on loopback, the first connected to the second.
fn pair() -> (UdpSocket, UdpSocket) {
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_nonblocking(true).unwrap();
    (from, to)
}

/// Sends `count` datagrams by one `sendmmsg`.
fn send_many(socket: &UdpSocket, datagram: &[u8], count: usize) {
    let mut part = libc::iovec {
        iov_base: datagram.as_ptr().cast_mut().cast(),
        iov_len: datagram.len(),
    };
    // SAFETY: all zeros is a header without an address, parts and control data.
    let mut header: libc::mmsghdr = unsafe { zeroed() };
    header.msg_hdr.msg_iov = &raw mut part;
    header.msg_hdr.msg_iovlen = 1;
    let mut headers = vec![header; count];
    // SAFETY: `headers` has `count` valid headers, whose part outlives the call.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as u32, 0) };
    assert_eq!(sent, count as i32, "{}", std::io::Error::last_os_error());
}

/// Has the system cut what is sent into datagrams of `size` bytes.
fn segment(socket: &UdpSocket, size: i32) {
    // SAFETY: the option takes an int, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            size_of::<i32>() as u32,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The least time a datagram took to send and receive, in µs, `at_once` at a time.
fn cost(at_once: usize, send: impl Fn(&UdpSocket)) -> f64 {
    let (from, to) = pair();
    let mut buffer = [0; 2 * DATAGRAM];
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let begin = Instant::now();
        for _ in 0..DATAGRAMS / at_once {
            send(&from);
            for _ in 0..at_once {
                assert_eq!(to.recv(&mut buffer).unwrap(), DATAGRAM);
            }
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e6 / DATAGRAMS as f64);
    }
    best
}

/// `cargo test --release -p punctual-net --test segments -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn datagrams_at_once() {
    let datagrams = [7; 64 * DATAGRAM];
    println!("datagrams at once, sendmmsg, GSO: µs for a datagram");
    for at_once in [1, 2, 4, 32] {
        let many = cost(at_once, |socket| {
            send_many(socket, &datagrams[..DATAGRAM], at_once);
        });
        let cut = cost(at_once, |socket| {
            segment(socket, DATAGRAM as i32);
            let bytes = at_once * DATAGRAM;
            assert_eq!(socket.send(&datagrams[..bytes]).unwrap(), bytes);
        });
        println!("{at_once:>3} {many:5.2} {cut:5.2}");
    }
}
