//! Switches in a row with queues at every port, and hosts: `s1-s2` is the port of
//! `s1` to `s2`, `s2-b` its port to the broker.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;

use punctual_client::{Client, Config, Endpoint, Options, Url};
use punctual_southbound::linux::queues;
use punctual_testbed::netns::Namespace;
use punctual_testbed::{Datapath, Ovs};

/// Bits per second of every link: less than the switches can forward.
pub(crate) const RATE: u64 = 20_000_000;
/// Frames that wait for a port without a promise. All ports of a switch share the
/// send buffer of its socket, so that longer queues would make it drop urgent
/// frames, too.
const PATIENCE: u32 = 30;
/// Where the manager listens.
pub(crate) const PORT: u16 = 1883;

pub(crate) struct Network {
    /// Where the switches, the table and the controller are.
    pub(crate) switches: Namespace,
    pub(crate) ovs: Ovs,
    pub(crate) publisher: Namespace,
    pub(crate) broker: Namespace,
    pub(crate) subscriber: Namespace,
    pub(crate) count: u64,
    broker_at: u64,
}

pub(crate) const fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 78, 0, host))
}

pub(crate) const PUBLISHER: IpAddr = address(1);
pub(crate) const BROKER: IpAddr = address(2);
pub(crate) const SUBSCRIBER: IpAddr = address(3);

impl Network {
    /// A row of so many switches, the broker at that one; `None`, with the reason
    /// printed, where it cannot be and need not be.
    pub(crate) fn build(count: u64, broker_at: u64) -> Option<Self> {
        if Namespace::is_missing() || Ovs::is_missing() {
            return None;
        }
        let switches = Namespace::new("switches").unwrap();
        let ovs = Ovs::start_in(Datapath::Userspace, &|command| switches.place(command)).unwrap();
        let network = Self {
            publisher: Namespace::new("publisher").unwrap(),
            broker: Namespace::new("broker").unwrap(),
            subscriber: Namespace::new("subscriber").unwrap(),
            switches,
            ovs,
            count,
            broker_at,
        };
        for number in 1..=count {
            network.ovs.bridge(&format!("s{number}"), number).unwrap();
        }
        for number in 1..count {
            let ends = [(number, number + 1), (number + 1, number)];
            let names = ends.map(|(from, to)| format!("s{from}-s{to}"));
            let switches = &network.switches;
            switches.cable(&names[0], switches, &names[1]).unwrap();
            for ((from, to), name) in ends.iter().zip(&names) {
                // Lower numbers lead to lower switches.
                network.port(*from, name, if to < from { 1 } else { 2 });
            }
        }
        for (host, letter, at, port, address) in [
            (&network.publisher, "p", 1, 3, PUBLISHER),
            (&network.broker, "b", broker_at, 4, BROKER),
            (&network.subscriber, "s", count, 5, SUBSCRIBER),
        ] {
            let name = format!("s{at}-{letter}");
            network.switches.cable(&name, host, "eth0").unwrap();
            host.address("eth0", address, 24).unwrap();
            host.enter(|| finish_checksums(c"eth0")).unwrap().unwrap();
            network.port(at, &name, port);
        }
        Some(network)
    }

    fn port(&self, switch: u64, device: &str, number: u32) {
        let bridge = format!("s{switch}");
        self.ovs.port(&bridge, device, number).unwrap();
        // Afterwards, because the switch removes what it finds there.
        let lines = queues(device, RATE);
        self.switches.feed("tc", &["-batch", "-"], &lines).unwrap();
        self.switches
            .tc(&format!(
                "qdisc change dev {device} parent 1:10 pfifo limit {PATIENCE}"
            ))
            .unwrap();
    }

    /// The network as the controller is told it.
    pub(crate) fn document(&self) -> String {
        let mut text = String::new();
        for number in 1..=self.count {
            text.push_str(&format!(
                "[[nodes]]\nid = \"s{number}\"\nsd_max = \"200us\"\n"
            ));
        }
        let between = (1..self.count).map(|n| (format!("s{n}"), format!("s{}", n + 1)));
        let hosts = [(1, "p"), (self.broker_at, "b"), (self.count, "s")];
        for (_, host) in hosts {
            text.push_str(&format!("[[nodes]]\nid = \"{host}\"\n"));
        }
        let hosts = hosts.map(|(at, host)| (format!("s{at}"), host.to_owned()));
        for (one, other) in between.chain(hosts) {
            for (from, to) in [(&one, &other), (&other, &one)] {
                text.push_str(&format!(
                    "[[links]]\nid = \"{from}>{to}\"\nfrom = \"{from}\"\nto = \"{to}\"\n\
                     rate_bps = {RATE}\nbe_bytes = 1538\n"
                ));
            }
        }
        text
    }

    /// Packets that have left a port by a queue.
    pub(crate) fn sent(&self, port: &str, queue: u8) -> u64 {
        self.counter(port, queue, "pkt")
    }

    /// Packets that wait in a queue of a port.
    pub(crate) fn backlog(&self, port: &str, queue: u8) -> u64 {
        self.counter(port, queue, "p ")
    }

    /// Packets for which a queue of a port had no room.
    pub(crate) fn dropped(&self, port: &str, queue: u8) -> u64 {
        self.counter(port, queue, ", overlimits")
    }

    /// The number before `unit` in the statistics of a class.
    fn counter(&self, port: &str, queue: u8, unit: &str) -> u64 {
        let arguments = format!("-s class show dev {port} classid 1:{:x}", 0x10 + queue);
        let text = self.switches.tc(&arguments).unwrap();
        let text = match unit {
            "p " => text.split("backlog").nth(1).unwrap_or_default(),
            ", overlimits" => text.split("dropped").nth(1).unwrap_or_default(),
            _ => &text,
        };
        let before = text.split(unit).next().unwrap_or_default();
        let digits = before.trim_end().rsplit(|c: char| !c.is_ascii_digit());
        digits.map(str::to_owned).next().unwrap().parse().unwrap()
    }

    /// The entries of a switch, without what counts, and how many seconds each has been there.
    pub(crate) fn entries(&self, number: u64) -> BTreeMap<String, f64> {
        let bridge = format!("s{number}");
        let text = self.ovs.ofctl("dump-flows", &bridge, [""; 0]).unwrap();
        let entries = text.lines().filter(|line| line.contains("cookie="));
        entries
            .map(|line| {
                let (counts, rest): (Vec<&str>, Vec<&str>) = line.split(", ").partition(|field| {
                    let name = field.trim_start().split('=').next();
                    ["duration", "n_packets", "n_bytes"]
                        .map(Some)
                        .contains(&name)
                });
                let age = counts.iter().find_map(|field| {
                    let age = field.trim_start().strip_prefix("duration=")?;
                    age.strip_suffix('s')?.parse().ok()
                });
                (rest.join(", "), age.unwrap())
            })
            .collect()
    }

    /// For how long each switch has had no controller, in seconds; 0 while it has one.
    pub(crate) fn seconds_without_controller(&self) -> Vec<u64> {
        let columns = ["--columns=status", "--format=list", "list", "controller"];
        let text = self.ovs.vsctl(columns).unwrap();
        let statuses = text.lines().filter(|line| line.starts_with("status"));
        statuses
            .map(|status| {
                let rest = status.split("sec_since_disconnect=").nth(1);
                let number = |rest: &str| {
                    let digits: String = rest
                        .chars()
                        .filter(|it| *it != '"')
                        .take_while(char::is_ascii_digit)
                        .collect();
                    digits.parse().ok()
                };
                match status.contains("state=ACTIVE") {
                    true => 0,
                    false => rest.and_then(number).unwrap_or(0),
                }
            })
            .collect()
    }

    /// A client on one of the hosts, at the manager.
    pub(crate) fn client(&self, id: &str, host: &Namespace) -> Client {
        let endpoint: Endpoint = Url::parse(&format!("mqtt://{BROKER}:{PORT}"))
            .unwrap()
            .endpoint;
        let options = Options {
            endpoint,
            config: Config {
                client_id: id.into(),
                ..Config::default()
            },
            reconnect: None,
        };
        host.enter(|| Client::connect(options).unwrap().0).unwrap()
    }
}

/// Makes a device's packets leave with checksums: a switch in user space forwards
/// what Linux would leave to the hardware as it is. (`ethtool -K DEVICE tx off`)
fn finish_checksums(device: &CStr) -> io::Result<()> {
    /// `struct ethtool_value`, linux/ethtool.h.
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    const ETHTOOL_STXCSUM: u32 = 0x17;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut value = Value {
        command: ETHTOOL_STXCSUM,
        data: 0,
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: an all-zero `ifreq` is one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: both structures are as the kernel expects them and outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
