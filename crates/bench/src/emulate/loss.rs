//! Random packet loss near the receiver: the broker's host discards a share of the packets that
//! reach it (nftables, before routing). Packets in the opposite direction are not discarded:
//! without acknowledgements, TCP holds back messages without retransmitting any, which could not be
//! distinguished from delays of the network.
//!
//! As frames with a wrong check sum do, discarded packets take time on every link, and captures see
//! them: the measured delay to a host ends at a message's first arrival. TCP retransmits discarded
//! packets, which adds traffic beyond the declared flows. Until a retransmission has arrived, TCP
//! may hold back later messages, which is no delay of the network: [`Recoveries`] identifies these
//! messages.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::fabric::Fabric;
use super::layout::Layout;
use super::observe::{Arrival, Observed};
use punctual_measure::load::Latency;
use punctual_measure::load::meter::Recorder;
use punctual_measure::{Error, Result};

/// Resolution of a share: 100 % is this many parts.
const PARTS: u32 = 100_000;

/// A share of all packets, greater than 0 % and less than 100 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loss {
    parts: u32,
}

impl Loss {
    /// Converts from percent; `None` for 0 %.
    pub(crate) fn of_percent(percent: f64) -> Option<Self> {
        let parts = (percent * f64::from(PARTS) / 100.0).round() as u32;
        (parts > 0).then_some(Self { parts })
    }

    pub(crate) fn percent(self) -> f64 {
        f64::from(self.parts) * 100.0 / f64::from(PARTS)
    }

    /// Makes the hosts of brokers discard this share of the IP packets that reach them from now on.
    pub(super) fn begin(loss: Option<Self>, layout: &Layout, fabric: &Fabric) -> Result<()> {
        let Some(loss) = loss else { return Ok(()) };
        for host in brokers(layout) {
            let rules = loss.rules();
            fabric.host(host).feed("nft", &["-f", "-"], &rules)?;
        }
        Ok(())
    }

    fn rules(self) -> String {
        format!(
            "table ip damage {{\nchain arriving {{\ntype filter hook prerouting priority raw\n\
             iifname != \"lo\" numgen random mod {PARTS} < {} counter drop\n}}\n}}\n",
            self.parts
        )
    }
}

/// Parses a percentage on the command line.
///
/// # Errors
/// What to write instead, if the value is not a percentage in range.
pub(crate) fn percent(text: &str) -> std::result::Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    value
        .filter(|value| (0.0..=50.0).contains(value))
        .ok_or_else(|| "write percent from 0 to 50, such as 3 or 0.1".to_owned())
}

/// Losses in a run.
#[derive(Debug, Serialize)]
pub(crate) struct Losses {
    /// Share of the packets that the hosts were configured to discard, percent.
    pub(crate) percent: f64,
    /// Packets that the hosts discarded.
    pub(crate) discarded: u64,
    /// Time from writing a message until its TCP retransmission arrived, µs.
    pub(crate) repeated_after: Option<Latency>,
    /// Messages excluded from the delays because TCP may have held them back.
    pub(crate) held_back: usize,
}

impl Losses {
    pub(super) fn of(
        loss: Option<Loss>,
        layout: &Layout,
        fabric: &Fabric,
        observed: &Observed,
    ) -> Result<Self> {
        let mut after = Recorder::default();
        for again in &observed.repeated {
            after.record(again.time.saturating_sub(again.stamp.written));
        }
        let recoveries = Recoveries::new(loss, &observed.repeated);
        let arrivals = observed.arrivals.iter();
        Ok(Self {
            held_back: arrivals.filter(|of| recoveries.may_hold_back(of)).count(),
            percent: loss.map_or(0.0, Loss::percent),
            discarded: loss.map_or(Ok(0), |_| discarded(layout, fabric))?,
            repeated_after: after.summary(),
        })
    }
}

/// Times in which TCP had to retransmit, by receiving host and flow; each flow has a TCP connection
/// of its own to the broker. On the connection from broker to subscriber, messages held back by
/// another flow's retransmission are not identified.
#[derive(Debug, Default)]
pub(super) struct Recoveries {
    /// From when the retransmitted message was written until it arrived again, ns.
    times: HashMap<(usize, u32), Vec<(u64, u64)>>,
}

impl Recoveries {
    /// Without configured loss there are no recoveries: retransmissions are then due to the
    /// network.
    pub(super) fn new(loss: Option<Loss>, repeated: &[Arrival]) -> Self {
        let mut times: HashMap<_, Vec<_>> = HashMap::new();
        for again in repeated.iter().filter(|_| loss.is_some()) {
            let key = (again.host, again.stamp.flow);
            let time = (again.stamp.written, again.time);
            times.entry(key).or_default().push(time);
        }
        Self { times }
    }

    /// Whether a message was written while TCP had to retransmit an earlier one.
    pub(super) fn may_hold_back(&self, arrival: &Arrival) -> bool {
        let times = self.times.get(&(arrival.host, arrival.stamp.flow));
        let written = arrival.stamp.written;
        let mut times = times.into_iter().flatten();
        times.any(|(from, until)| (from + 1..=*until).contains(&written))
    }
}

fn brokers(layout: &Layout) -> impl Iterator<Item = usize> {
    let hosts = layout.hosts.iter().enumerate();
    hosts
        .filter(|(_, host)| host.broker)
        .map(|(number, _)| number)
}

/// Number of packets that the brokers' hosts discarded.
fn discarded(layout: &Layout, fabric: &Fabric) -> Result<u64> {
    let mut sum = 0;
    for host in brokers(layout) {
        let text = fabric.host(host).run("nft", &["-j", "list", "ruleset"])?;
        let rules: Value = serde_json::from_str(&text)
            .map_err(|error| Error::io("cannot read what nft says")(error.into()))?;
        sum += counted(&rules);
    }
    Ok(sum)
}

fn counted(rules: &Value) -> u64 {
    let parts = rules["nftables"].as_array().into_iter().flatten();
    let expressions = parts.flat_map(|part| part["rule"]["expr"].as_array().into_iter().flatten());
    expressions
        .filter_map(|expression| expression["counter"]["packets"].as_u64())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::stamp::Stamp;
    use super::*;
    use punctual_testbed::netns::Namespace;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    #[test]
    fn shares_are_given_in_percent() {
        assert_eq!(Loss::of_percent(0.0), None);
        let loss = Loss::of_percent(3.0).unwrap();
        assert_eq!(loss.percent(), 3.0);
        assert!(loss.rules().contains("mod 100000 < 3000 counter drop"));
        assert_eq!(percent("0.5"), Ok(0.5));
        for text in ["", "-1", "51", "NaN", "many"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_until_a_repetition_has_arrived_may_be_held_back() {
        let arrival = |flow, sequence, written, time| Arrival {
            host: 7,
            stamp: Stamp {
                flow,
                sequence,
                nominal: written,
                written,
            },
            time,
        };
        let repeated = [arrival(1, 4, 100, 900)];
        let recoveries = Recoveries::new(Loss::of_percent(3.0), &repeated);
        let held = |flow, written| recoveries.may_hold_back(&arrival(flow, 0, written, 950));
        // The retransmitted message itself was written before, so TCP did not hold it back.
        assert_eq!(
            [100, 101, 900, 901].map(|at| held(1, at)),
            [false, true, true, false]
        );
        assert!(!held(2, 500), "another connection");
        let none = Recoveries::new(None, &repeated);
        assert!(!none.may_hold_back(&arrival(1, 5, 500, 950)));
    }

    #[test]
    fn half_of_all_packets_is_discarded_and_counted() {
        const ALL: u64 = 100;
        if Namespace::is_missing() {
            return;
        }
        let [from, to] = ["from", "to"].map(|label| Namespace::new(label).unwrap());
        from.cable("eth0", &to, "eth0").unwrap();
        from.address("eth0", [10, 9, 0, 1].into(), 24).unwrap();
        to.address("eth0", [10, 9, 0, 2].into(), 24).unwrap();
        let rules = Loss::of_percent(50.0).unwrap().rules();
        to.feed("nft", &["-f", "-"], &rules).unwrap();
        let bind = |space: &Namespace| {
            let socket = space.enter(|| UdpSocket::bind("0.0.0.0:7000"));
            socket.unwrap().unwrap()
        };
        let (sender, receiver) = (bind(&from), bind(&to));
        for _ in 0..ALL {
            sender.send_to(b"packet", "10.9.0.2:7000").unwrap();
        }
        receiver.set_nonblocking(true).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        let (mut arrived, mut discarded) = (0, 0);
        while arrived + discarded < ALL && Instant::now() < end {
            while receiver.recv(&mut [0; 16]).is_ok() {
                arrived += 1;
            }
            let text = to.run("nft", &["-j", "list", "ruleset"]).unwrap();
            discarded = counted(&serde_json::from_str(&text).unwrap());
        }
        assert_eq!(arrived + discarded, ALL);
        // 50 ± 30, six standard deviations of a hundred coin tosses.
        assert!((20..=80).contains(&discarded), "{discarded}");
    }
}
