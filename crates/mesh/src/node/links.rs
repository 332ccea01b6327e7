//! Connections to neighbours, and link numbers.
//!
//! A neighbour keeps its link number while it is connected or messages are queued for it; no two
//! neighbours share one. There is one link between two brokers: if both have opened a connection, the one
//! opened by the broker with the lower name stays.

use std::collections::BTreeMap;

use punctual_model::Nanos;

use super::Settings;
use crate::id::{BrokerId, LinkId};
use crate::rtt::{self, Rtt};
use crate::strategy::Strategy;
use crate::tree::{Advert, Edge};
use crate::wire::{Hello, Open, VERSIONS, common_version};

/// Assumed round-trip time of a link before it was measured.
const UNMEASURED: Nanos = Nanos::from_millis(10);

/// Why a connection does not become a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No common version.
    #[error(
        "speaks versions {} to {} of the mesh protocol, this broker {} to {}: none in common",
        .0.0, .0.1, VERSIONS.start(), VERSIONS.end()
    )]
    Version((u8, u8)),
    /// It has this broker's name, or is this broker.
    #[error("has the same name as this broker: give each its own (mesh.id)")]
    Name,
    /// The two brokers use different forwarding strategies.
    #[error(
        "forwards by {theirs}, this broker by {ours}: all of a mesh need the same (mesh.strategy)"
    )]
    Strategy {
        /// The neighbour's.
        theirs: Strategy,
        /// This broker's.
        ours: Strategy,
    },
    /// There is a connection between the two already.
    #[error("is connected already")]
    Parallel,
    /// All link numbers are in use.
    #[error("would be one neighbour too many: {} are allowed", LinkId::MAX)]
    Full,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: BrokerId,
    pub(super) instance: u64,
    pub(super) dialled: bool,
    /// The highest protocol version that both ends support.
    pub(super) version: u8,
    pub(super) edge: Edge,
    weight: f64,
    rtt: Rtt,
    /// The send time in the neighbour's last hello (its clock), and when that hello arrived.
    echo: Option<(u64, Nanos)>,
    /// By how many microseconds the neighbour's clock was ahead of this broker's in its last hello.
    clock_ahead: Option<i64>,
    /// Whether publications from the neighbour wait at this broker.
    waits: bool,
}

impl Link {
    pub(super) fn new(peer: &Open, version: u8, weight: f64) -> Self {
        Self {
            peer: peer.id.clone(),
            instance: peer.instance,
            dialled: !peer.dialled,
            version,
            edge: Edge::Spare,
            weight,
            rtt: Rtt::default(),
            echo: None,
            clock_ahead: None,
            waits: false,
        }
    }

    /// Cost in the tree; `hop` is added for the broker at its end.
    pub(super) fn cost(&self, hop: Nanos) -> u64 {
        let rtt = self.rtt.used().unwrap_or(UNMEASURED);
        rtt::cost(rtt, self.weight, hop)
    }

    /// Smoothed round-trip time.
    pub(super) fn rtt(&self) -> Option<Nanos> {
        self.rtt.smoothed()
    }

    /// Whether no hello of the neighbour has arrived yet.
    pub(super) fn is_unheard(&self) -> bool {
        self.echo.is_none()
    }

    /// Handles the times in a hello; returns whether the cost may have changed.
    pub(super) fn heard(&mut self, hello: &Hello, hysteresis: u32, now: Nanos) -> bool {
        self.echo = Some((hello.sent, now));
        let Some((sent, ago)) = hello.echo else {
            return false;
        };
        let rtt = (now.0 / 1000).checked_sub(sent.saturating_add(ago));
        rtt.is_some_and(|rtt| self.rtt.sample(Nanos(rtt * 1000), hysteresis))
    }

    /// By how many microseconds the neighbour's clock is ahead, if known.
    pub(super) fn clock_ahead(&self) -> Option<i64> {
        self.clock_ahead
    }

    /// Compares the neighbour's clock with this broker's (microseconds since 1970).
    pub(super) fn compare_clocks(&mut self, theirs: Option<u64>, own: Option<u64>) {
        let ahead = |(theirs, own): (u64, u64)| {
            i64::try_from(i128::from(theirs) - i128::from(own)).unwrap_or(i64::MAX)
        };
        self.clock_ahead = theirs.zip(own).map(ahead);
    }

    /// The next hello to the neighbour.
    pub(super) fn hello(&self, advert: Advert, clock: Option<u64>, now: Nanos) -> Hello {
        let echo = self.echo.map(|(sent, at)| (sent, (now - at).0 / 1000));
        let sent = now.0 / 1000;
        Hello {
            advert,
            sent,
            echo,
            clock,
        }
    }
}

/// All links of a broker.
#[derive(Debug)]
pub(super) struct Links {
    up: BTreeMap<LinkId, Link>,
    /// Numbers of neighbours, also of those that are not connected and have messages queued.
    numbers: BTreeMap<BrokerId, LinkId>,
    /// How long a publication may be in flight in the mesh.
    linger: Nanos,
    /// When publications from a neighbour last ceased to wait here, or that neighbour was lost.
    went_on: Nanos,
}

impl Links {
    pub(super) fn new(linger: Nanos, now: Nanos) -> Self {
        Self {
            up: BTreeMap::new(),
            numbers: BTreeMap::new(),
            linger,
            went_on: now,
        }
    }

    /// Decides whether a connection may become a link. Returns its number (an existing link with that
    /// number is replaced) and the common protocol version.
    pub(super) fn admit(&self, peer: &Open, settings: &Settings) -> Result<(LinkId, u8), Refusal> {
        let theirs = peer.versions.0..=peer.versions.1;
        let version = common_version(&VERSIONS, &theirs).ok_or(Refusal::Version(peer.versions))?;
        if peer.id == settings.id {
            return Err(Refusal::Name);
        }
        if peer.strategy != settings.strategy {
            return Err(Refusal::Strategy {
                theirs: peer.strategy,
                ours: settings.strategy,
            });
        }
        let dialled = !peer.dialled;
        let link = self.number_for(&peer.id).ok_or(Refusal::Full)?;
        if let Some(old) = self.up.get(&link) {
            // If both opened one, that of the lower name stays. A second connection from the same side,
            // or after a restart of the neighbour, means that the first is dead.
            let lower_dialled = (settings.id < peer.id) == dialled;
            let same = old.instance == peer.instance && old.dialled != dialled;
            if same && !lower_dialled {
                return Err(Refusal::Parallel);
            }
        }
        Ok((link, version))
    }

    /// The number of a neighbour, or an unused one; `None` if all are used.
    fn number_for(&self, peer: &BrokerId) -> Option<LinkId> {
        if let Some(link) = self.numbers.get(peer) {
            return Some(*link);
        }
        let used = |link: &LinkId| self.numbers.values().any(|other| other == link);
        (0..LinkId::MAX).map(LinkId).find(|link| !used(link))
    }

    /// Adds a link that is up.
    pub(super) fn insert(&mut self, number: LinkId, link: Link) {
        self.numbers.insert(link.peer.clone(), number);
        self.up.insert(number, link);
    }

    /// Gives a number to a neighbour after a restart, unless it is connected or no number is free.
    pub(super) fn recall(&mut self, peer: &BrokerId) -> Option<LinkId> {
        let link = self.number_for(peer);
        let link = link.filter(|link| !self.up.contains_key(link))?;
        self.numbers.insert(peer.clone(), link);
        Some(link)
    }

    /// Removes a link that is down. Its neighbour keeps the number.
    pub(super) fn remove(&mut self, link: LinkId, now: Nanos) {
        if self.up.remove(&link).is_some_and(|link| link.waits) {
            self.went_on = now;
        }
    }

    /// Frees a number; returns the neighbour that had it.
    pub(super) fn release(&mut self, link: LinkId) -> Option<BrokerId> {
        let peer = self.peer(link).cloned()?;
        self.numbers.remove(&peer);
        Some(peer)
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Link> {
        self.up.get(&link)
    }

    pub(super) fn get_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.up.get_mut(&link)
    }

    pub(super) fn is_up(&self, link: LinkId) -> bool {
        self.up.contains_key(&link)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.up.iter().map(|(id, link)| (*id, link))
    }

    /// The neighbour with this number, connected or not.
    pub(super) fn peer(&self, link: LinkId) -> Option<&BrokerId> {
        let up = self.up.get(&link).map(|link| &link.peer);
        up.or_else(|| {
            let mut numbers = self.numbers.iter();
            let (peer, _) = numbers.find(|(_, other)| **other == link)?;
            Some(peer)
        })
    }

    /// The link to a neighbour that is connected.
    pub(super) fn to(&self, peer: &BrokerId) -> Option<(LinkId, &Link)> {
        let link = self.numbers.get(peer)?;
        Some((*link, self.up.get(link)?))
    }

    /// Sets the weight of a link; returns the link if that changes it.
    pub(super) fn weigh(&mut self, peer: &BrokerId, weight: f64) -> Option<(LinkId, &Link)> {
        let id = *self.numbers.get(peer)?;
        let link = self.up.get_mut(&id)?;
        if link.weight == weight {
            return None;
        }
        link.weight = weight;
        Some((id, link))
    }

    /// Whether any link carries.
    pub(super) fn any_carries(&self) -> bool {
        self.up.values().any(|link| link.edge.carries())
    }

    /// Whether a link carries.
    pub(super) fn carries(&self, link: LinkId) -> bool {
        let link = self.up.get(&link);
        link.is_some_and(|link| link.edge.carries())
    }

    /// All links that carry.
    pub(super) fn carrying(&self) -> impl Iterator<Item = LinkId> {
        let links = self.up.iter().filter(|(_, link)| link.edge.carries());
        links.map(|(id, _)| *id)
    }

    /// How long a publication may be in flight in the mesh.
    pub(super) fn linger(&self) -> Nanos {
        self.linger
    }

    /// Sets whether publications from a neighbour wait at this broker.
    pub(super) fn set_waits(&mut self, link: LinkId, waits: bool, now: Nanos) {
        if let Some(link) = self.up.get_mut(&link) {
            if link.waits && !waits {
                self.went_on = now;
            }
            link.waits = waits;
        }
    }

    /// When [`Self::linger`] after an instant is over; `None` while publications of a neighbour wait at
    /// this broker.
    pub(super) fn linger_ends(&self, since: Nanos) -> Option<Nanos> {
        let waits = self.up.values().any(|link| link.waits);
        (!waits).then_some(since.max(self.went_on) + self.linger)
    }
}
