//! Status of a broker in the mesh, for operators.

use std::collections::BTreeMap;

use punctual_model::Nanos;

use super::{Membership, Node};
use crate::id::{BrokerId, LinkId, Rank};
use crate::strategy::Strategy;
use crate::tree::Edge;

/// Status of a link, part of [`Status`].
#[derive(Debug, Clone, PartialEq)]
pub struct LinkStatus {
    /// Its number.
    pub link: LinkId,
    /// The neighbour.
    pub peer: BrokerId,
    /// Whether this broker opened the connection.
    pub dialled: bool,
    /// The version of [`crate::wire`] that both ends speak.
    pub version: u8,
    /// Its role in the tree.
    pub edge: Edge,
    /// Smoothed round-trip time.
    pub rtt: Option<Nanos>,
    /// Cost in microseconds.
    pub cost: u64,
    /// The root that the neighbour advertises, and the neighbour's cost to reach it.
    pub offer: Option<(BrokerId, u64)>,
    /// Number of filters of the neighbour.
    pub filters: usize,
    /// By how many microseconds the neighbour's clock is ahead of this broker's, if known.
    pub clock_ahead: Option<i64>,
}

/// Status of a broker in the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Its name.
    pub id: BrokerId,
    /// Its capacity.
    pub capacity: u64,
    /// Its forwarding strategy.
    pub strategy: Strategy,
    /// The root.
    pub root: Rank,
    /// The root's epoch.
    pub epoch: u64,
    /// Cost of the path to the root in microseconds.
    pub cost: u64,
    /// Number of links of that path.
    pub hops: u16,
    /// The parent, if there is one.
    pub parent: Option<BrokerId>,
    /// Whether it is root or its parent has accepted it.
    pub attached: bool,
    /// Its progress in joining the mesh.
    pub membership: Membership,
    /// Links that are up.
    pub links: Vec<LinkStatus>,
    /// Number of filters in the table.
    pub filters: usize,
    /// Number of filters of persistent sessions at other brokers, summed over these brokers.
    pub awaited: usize,
    /// Filter additions and removals sent to neighbours so far.
    pub advertised: u64,
    /// Other brokers with members of shared subscriptions, by shared filter.
    pub shared: BTreeMap<Box<str>, Vec<BrokerId>>,
    /// Neighbours for whose lost links messages are queued.
    pub healing: Vec<BrokerId>,
    /// Brokers that have been away for longer than [`crate::Settings::heal`], and for whose persistent
    /// sessions messages are queued here.
    pub away: Vec<BrokerId>,
    /// Number of clients here whose wills others publish if this broker is lost.
    pub wills: usize,
    /// Number of wills that are stored here for other brokers.
    pub wills_kept: usize,
    /// By how many microseconds the clocks of most neighbours are ahead of this broker's, if that is so
    /// much that this broker's clock must be wrong.
    pub clock_error: Option<i64>,
    /// Claims of neighbours that were discarded because they are about the future.
    pub future_claims: u64,
}

impl Node {
    /// The present status.
    pub fn status(&self) -> Status {
        let (cost, hops) = self.tree.path();
        let parent = self
            .tree
            .parent()
            .and_then(|(link, _)| self.peer(link).cloned());
        let links = self.links.iter().map(|(id, link)| {
            let (cost, offer) = self.tree.offer(id).unwrap_or_default();
            LinkStatus {
                link: id,
                peer: link.peer.clone(),
                dialled: link.dialled,
                version: link.version,
                edge: link.edge,
                rtt: link.rtt(),
                cost,
                offer: offer.map(|(root, cost)| (root.id.clone(), cost)),
                filters: self.filters.table.count_wanted_by(id),
                clock_ahead: link.clock_ahead(),
            }
        });
        let (wills, wills_kept) = self.clients.wills.counts();
        Status {
            clock_error: self.clock_error(),
            future_claims: self.clocks.left_out,
            wills,
            wills_kept,
            id: self.settings.id.clone(),
            capacity: self.settings.capacity,
            strategy: self.settings.strategy,
            root: self.tree.root().clone(),
            epoch: self.tree.epoch(),
            cost,
            hops,
            parent,
            attached: self.tree.is_attached(),
            membership: self.membership(),
            links: links.collect(),
            filters: self.filters.table.len(),
            awaited: self.interest.len(),
            advertised: self.filters.table.advertised(),
            shared: self.members.elsewhere().clone(),
            healing: self
                .lost
                .links()
                .filter_map(|link| self.peer(link).cloned())
                .collect(),
            away: self.lost.away().into_iter().collect(),
        }
    }
}
