//! Network namespaces for experiments and tests: hosts, links with a rate, programs in them.
//!
//! A [`Namespace`] has no name: it is a file descriptor, and the kernel deletes it, with its
//! devices, queues and addresses, once nothing refers to it any more. So nothing is left behind
//! by a run that panics or is killed. Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and the
//! programs `ip` and `tc` (Debian: iproute2). Sources: setns(2), veth(4), tc-htb(8).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use punctual_measure::{Error, Result};

/// A network of its own: devices, addresses, routes, ports. Its loopback device is up.
#[derive(Clone, Debug)]
pub struct Namespace {
    handle: Arc<OwnedFd>,
    label: Arc<str>,
}

/// What waits on a device until the link has time for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// One queue, first in, first out.
    Fifo,
    /// Three queues in strict order, chosen by the packet's priority (`SO_PRIORITY`) as Linux
    /// does by default: 6 and 7 before 0 and 4 before 1, 2, 3 and 5 (tc-prio(8)).
    ByPriority,
}

impl Namespace {
    /// Makes an empty namespace; `label` names it in messages.
    ///
    /// # Errors
    /// Without the privileges, or without `ip`.
    pub fn new(label: &str) -> Result<Self> {
        // unshare(2) moves the calling thread, so a thread is made for it.
        let made = thread::spawn(|| {
            // SAFETY: unshare takes flags only and concerns this thread alone.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let made = made
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread for it panicked")));
        let file = made.map_err(Error::io(format!(
            "cannot make the network namespace {label} (it takes root)"
        )))?;
        let namespace = Self {
            handle: Arc::new(file.into()),
            label: label.into(),
        };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// For tests: true, with the reason printed, where namespaces cannot be made.
    ///
    /// # Panics
    /// If they cannot and `PUNCTUAL_REQUIRE_NETNS` is set.
    pub fn is_missing() -> bool {
        let Err(error) = Self::check() else {
            return false;
        };
        crate::skip("PUNCTUAL_REQUIRE_NETNS", error);
        true
    }

    /// Whether namespaces and shaped links can be made here.
    ///
    /// # Errors
    /// What is missing.
    pub fn check() -> Result<()> {
        let probe = Self::new("probe")?;
        probe.tc("qdisc show").map(drop)
    }

    /// Makes `command` run in this namespace.
    pub fn place(&self, command: &mut Command) {
        let handle = self.handle.clone();
        // SAFETY: between fork and exec there is one system call; nothing allocates or locks.
        unsafe { command.pre_exec(move || move_into(&handle)) };
    }

    /// Runs `work` on a thread in this namespace: sockets that it opens belong here for good.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    ///
    /// # Panics
    /// If `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let result = thread::scope(|scope| {
            let inside = scope.spawn(|| move_into(&self.handle).map(|()| work()));
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        result.map_err(Error::io(format!(
            "cannot enter the network namespace {}",
            self.label
        )))
    }

    /// Runs a program to its end and returns what it printed.
    ///
    /// # Errors
    /// If it cannot be started or fails; then what it said on standard error.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run_with(program, arguments, Stdio::null())
    }

    fn run_with(&self, program: &str, arguments: &[&str], input: Stdio) -> Result<String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(input);
        self.place(&mut command);
        let context = || format!("{}: {program} {}", self.label, arguments.join(" "));
        let output = command.output().map_err(Error::io(context()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::io(context())(io::Error::other(said)))
        }
    }

    /// As [`Self::run`], with `input` on the program's standard input: for `ip -batch -` and the
    /// like, which do in one process what would take many.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn feed(&self, program: &str, arguments: &[&str], input: &str) -> Result<String> {
        let context = || format!("{}: {program} {}", self.label, arguments.join(" "));
        let input = memory_file("input", input.as_bytes()).map_err(Error::io(context()))?;
        self.run_with(program, arguments, input.into())
    }

    /// A file that stands for this namespace while this process has it.
    pub fn path(&self) -> String {
        let descriptor = self.handle.as_raw_fd();
        format!("/proc/{}/fd/{descriptor}", std::process::id())
    }

    /// Sets a kernel parameter of this namespace: a path below /proc/sys, such as
    /// `net/ipv4/tcp_congestion_control`.
    ///
    /// # Errors
    /// If there is no such parameter or it does not take the value.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{parameter}");
        let context = format!("{}: cannot write {value} to {path}", self.label);
        self.enter(|| fs::write(path, value))?
            .map_err(Error::io(context))
    }

    /// Runs `ip` with arguments separated by spaces.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn ip(&self, arguments: &str) -> Result<String> {
        self.run("ip", &arguments.split(' ').collect::<Vec<_>>())
    }

    /// Runs `tc` with arguments separated by spaces.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn tc(&self, arguments: &str) -> Result<String> {
        self.run("tc", &arguments.split(' ').collect::<Vec<_>>())
    }

    /// Joins two namespaces by a cable (a veth pair) whose ends are named and up. TCP builds no
    /// packets larger than a frame on it: a super-packet of 64 KiB would block a slow link for
    /// 5 ms and hide every priority.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn cable(&self, device: &str, other: &Self, other_device: &str) -> Result<()> {
        self.ip(&format!(
            "link add {device} type veth peer name {other_device} netns {}",
            other.path()
        ))?;
        for (end, device) in [(self, device), (other, other_device)] {
            end.ip(&format!("link set {device} gso_max_segs 1 up"))?;
        }
        Ok(())
    }

    /// Gives a device an address that can be used at once.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn address(&self, device: &str, address: IpAddr, prefix: u8) -> Result<()> {
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        self.ip(&format!(
            "address add {address}/{prefix} dev {device}{nodad}"
        ))
        .map(drop)
    }

    /// Makes a bridge (an Ethernet switch) of devices of this namespace.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn bridge(&self, name: &str, devices: &[&str]) -> Result<()> {
        self.ip(&format!("link add {name} type bridge"))?;
        for device in devices {
            self.ip(&format!("link set {device} master {name}"))?;
        }
        self.ip(&format!("link set {name} up")).map(drop)
    }

    /// Limits what leaves by `device` to `rate` bits per second on the wire, preamble, check sum
    /// and gap between frames included. Up to 1000 frames wait in `queue`.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn shape(&self, device: &str, rate: u64, queue: Queue) -> Result<()> {
        self.tc(&format!(
            "qdisc add dev {device} root handle 1: htb default 1"
        ))?;
        self.tc(&format!(
            "class add dev {device} parent 1: classid 1:1 htb rate {rate}bit \
             burst 3100 cburst 3100 quantum 1514 overhead 24"
        ))?;
        let leaf = match queue {
            Queue::Fifo => "pfifo limit 1000",
            Queue::ByPriority => "pfifo_fast",
        };
        self.tc(&format!(
            "qdisc add dev {device} parent 1:1 handle 10: {leaf}"
        ))
        .map(drop)
    }
}

/// A file that is in memory only, with that content, to be read from its beginning. It is gone
/// with the last descriptor of it, so that nothing stays behind whatever happens.
///
/// # Errors
/// The system has no memory or descriptor left.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<File> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a valid text for the call; the descriptor returned is ours alone.
    let mut file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from(OwnedFd::from_raw_fd(fd))
    };
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// Moves the calling thread into the namespace.
fn move_into(handle: &OwnedFd) -> io::Result<()> {
    // SAFETY: setns takes a descriptor that is open and a flag.
    match unsafe { libc::setns(handle.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    #[test]
    fn two_hosts_talk_through_a_switch_and_nobody_else_sees_them() {
        if Namespace::is_missing() {
            return;
        }
        let [a, b, switch] = ["a", "b", "switch"].map(|label| Namespace::new(label).unwrap());
        a.cable("eth0", &switch, "one").unwrap();
        b.cable("eth0", &switch, "two").unwrap();
        switch.bridge("br0", &["one", "two"]).unwrap();
        switch.shape("one", 10_000_000, Queue::Fifo).unwrap();
        switch.shape("two", 10_000_000, Queue::ByPriority).unwrap();
        let v4 = |n| IpAddr::from(Ipv4Addr::new(10, 9, 0, n));
        let v6 = |n| IpAddr::from(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, n));
        for (host, n) in [(&a, 1), (&b, 2)] {
            host.address("eth0", v4(n), 24).unwrap();
            host.address("eth0", v6(n.into()), 64).unwrap();
        }
        for address in [v4(1), v6(1)] {
            let listener = a
                .enter(|| TcpListener::bind((address, 7000)))
                .unwrap()
                .unwrap();
            let mut there = b
                .enter(|| TcpStream::connect((address, 7000)))
                .unwrap()
                .unwrap();
            let (mut here, _) = listener.accept().unwrap();
            there.write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            here.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
        }
        let elsewhere = Namespace::new("elsewhere").unwrap();
        let stranger = elsewhere.enter(|| TcpStream::connect((v4(1), 7000)));
        assert!(stranger.unwrap().is_err());
        assert!(
            switch
                .tc("-s qdisc show dev two")
                .unwrap()
                .contains("pfifo_fast")
        );
    }

    #[test]
    fn parameters_are_those_of_one_namespace() {
        if Namespace::is_missing() {
            return;
        }
        const TTL: &str = "net/ipv4/ip_default_ttl";
        let [a, b] = ["a", "b"].map(|label| Namespace::new(label).unwrap());
        let read = |host: &Namespace| host.run("cat", &["/proc/sys/net/ipv4/ip_default_ttl"]);
        let before = read(&b).unwrap();
        a.set(TTL, "7").unwrap();
        assert_eq!(read(&a).unwrap(), "7\n");
        assert_eq!(read(&b).unwrap(), before);
        let error = a.set(TTL, "much").unwrap_err().to_string();
        assert!(error.contains("cannot write much"), "{error}");
    }

    #[test]
    fn what_a_program_says_when_it_fails_is_kept() {
        if Namespace::is_missing() {
            return;
        }
        let a = Namespace::new("a").unwrap();
        let error = a.ip("link set nothing up").unwrap_err().to_string();
        assert!(error.starts_with("a: ip link set nothing up: "), "{error}");
        assert!(error.contains("nothing"), "{error}");
    }
}
