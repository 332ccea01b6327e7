//! Effect of many sessions that end at once on another client, which sends PINGREQ all the time.

use std::thread;
use std::time::{Duration, Instant};

use punctual_measure::load::client::Handshake;
use punctual_measure::wire::{PINGRESP, Version, kind};
use punctual_measure::{Error, Result};

use super::crowd::Crowd;
use super::ground::Ground;
use super::report::Measures;
use crate::blocking::Connection;
use crate::sys;

/// Pause between a PINGRESP and the next PINGREQ.
const PAUSE: Duration = Duration::from_micros(200);
/// An answer that takes longer than this is late.
const PROMPT: Duration = Duration::from_millis(1);
/// The end of the sessions is over when the broker was not busy for this time.
const QUIET: Duration = Duration::from_millis(300);
/// `SCHED_FIFO` priority of the client that sends PINGREQ.
const FIFO: u8 = 30;
/// Time over which the broker's CPU use is averaged to decide whether it is busy.
const SPAN: Duration = Duration::from_millis(10);

/// One PINGREQ and its answer.
#[derive(Clone, Copy, Debug)]
struct Ping {
    /// When the answer arrived, since the connections began to close.
    at: Duration,
    took: Duration,
    /// CPU time of the broker at the answer.
    cpu: Duration,
}

/// Closes all connections of a crowd at once, and measures the delay of another client's pings.
pub(super) fn end(ground: &Ground, crowd: Crowd) -> Result<Measures> {
    let mut pinger = Pinger::connect(ground)?;
    for _ in 0..20 {
        pinger.ping(ground.extent.patience)?;
    }
    let started = Instant::now();
    let pings = thread::scope(|scope| {
        // Closing all sockets takes time; pings go on meanwhile.
        scope.spawn(|| drop(crowd));
        // With real-time priority, other threads on this core do not delay the client. Without the
        // privilege, the measurement includes such delays.
        let _ = sys::set_fifo(FIFO);
        let pings = pinger.watch(ground, started);
        let _ = sys::set_fifo(0);
        pings
    })?;
    let idle = idle_at(&pings);
    let (prompt, longest) = late(&pings, idle + SPAN);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(vec![
        ("end: ms until the broker is idle", ms(idle)),
        ("end: ms until pings are prompt", ms(prompt)),
        ("end: longest ping, ms", ms(longest)),
    ])
}

/// When the last late answer arrived, and the longest time of an answer, among pings sent before
/// `end`: later delays have other causes.
fn late(pings: &[Ping], end: Duration) -> (Duration, Duration) {
    let asked = pings.iter().filter(|ping| ping.at <= end + ping.took);
    asked.fold(Default::default(), |(prompt, longest), ping| {
        let prompt = match ping.took > PROMPT {
            true => ping.at,
            false => prompt,
        };
        (prompt, ping.took.max(longest))
    })
}

/// When the last [`SPAN`] ended in which the broker used more than half of its core.
fn idle_at(pings: &[Ping]) -> Duration {
    let (mut from, mut idle) = (0, Duration::ZERO);
    for ping in pings {
        while pings[from + 1..]
            .first()
            .is_some_and(|next| next.at + SPAN <= ping.at)
        {
            from += 1;
        }
        let (time, cpu) = (ping.at - pings[from].at, ping.cpu - pings[from].cpu);
        if time >= SPAN && cpu * 2 > time {
            idle = ping.at;
        }
    }
    idle
}

struct Pinger(Connection);

impl Pinger {
    fn connect(ground: &Ground) -> Result<Self> {
        let client_id = "pinger";
        let handshake = Handshake {
            address: ground.address(),
            version: Version::V311,
            client_id,
            filters: &[],
            qos: 0,
            persistent: false,
        };
        let (stream, _) = handshake.run()?;
        let stream = stream.set_nonblocking(false).map(|()| stream);
        Connection::new(client_id.to_owned(), stream).map(Self)
    }

    /// Sends PINGREQ and waits for PINGRESP.
    fn ping(&mut self, patience: Duration) -> Result<Duration> {
        let asked = Instant::now();
        self.0.send(&[kind::PINGREQ << 4, 0])?;
        let mut come = false;
        while !come {
            let left = patience.saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Err(self.0.failure("did not answer"));
            }
            self.0.read(left, |first, _| come |= first == PINGRESP[0])?;
        }
        Ok(asked.elapsed())
    }

    /// Pings until the broker is no longer busy.
    fn watch(&mut self, ground: &Ground, started: Instant) -> Result<Vec<Ping>> {
        // The broker may be busy before it answers the first ping.
        let mut pings = vec![Ping {
            at: started.elapsed(),
            took: Duration::ZERO,
            cpu: ground.cpu()?,
        }];
        loop {
            let took = self.ping(ground.extent.patience)?;
            pings.push(Ping {
                at: started.elapsed(),
                took,
                cpu: ground.cpu()?,
            });
            let at = started.elapsed();
            // A check after every ping would take so long that it would delay the pings.
            if pings.len().is_multiple_of(64) && at >= idle_at(&pings) + QUIET {
                return Ok(pings);
            }
            if at >= ground.extent.patience {
                return Err(Error::Broker {
                    client: "pinger".to_owned(),
                    what: format!("was not idle after {:?}", ground.extent.patience),
                });
            }
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One ping in each millisecond; the broker is busy until `busy` ms, and then uses a tenth of
    /// the core.
    fn pings(busy: u64) -> Vec<Ping> {
        let ping = |ms: u64| Ping {
            at: Duration::from_millis(ms),
            took: Duration::from_micros(if ms == 7 { 5000 } else { 50 }),
            cpu: Duration::from_micros(1000 * ms.min(busy) + 100 * ms.saturating_sub(busy)),
        };
        (1..=200).map(ping).collect()
    }

    #[test]
    fn the_end_is_where_the_core_is_mostly_free_again() {
        let idle = idle_at(&pings(100)).as_millis();
        assert!((100..=105).contains(&idle), "{idle}");
        assert_eq!(idle_at(&pings(0)), Duration::ZERO);
        assert_eq!(idle_at(&[]), Duration::ZERO);
    }

    #[test]
    fn pings_are_prompt_after_the_last_late_one() {
        let ms = Duration::from_millis;
        assert_eq!(late(&pings(100), ms(100)), (ms(7), ms(5)));
        // The ping was sent after 2 ms.
        assert_eq!(late(&pings(100), ms(2)), (ms(7), ms(5)));
        assert_eq!(late(&pings(100), ms(1)).0, Duration::ZERO);
        assert_eq!(late(&[], ms(9)), Default::default());
    }
}
