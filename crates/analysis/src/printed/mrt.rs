//! The formulas of "A Scalable Real-Time SDN-Based MQTT Framework for Industrial
//! Applications", section VI-D, as printed: (13) to (22), Algorithms 3 and 4.
//!
//! **These are no bounds**, as those of [`super`] are none, from which they are
//! made. A rendezvous point (RP) is a node that replicates a frame of the
//! message; up to it Algorithm 3 takes the formulas for one destination.
//!
//! What the text leaves open: the jitter of multicast (J_mc) is the longest time
//! that any RP takes for copying. J_acc is that of the path to a port, although
//! Algorithm 3 carries it on from branch to branch, as it does the total, which
//! is carried on here. The clustered paths that it visits after a link from an RP
//! are those that use the link. In (20) j is bound twice: each frame is charged
//! with the greatest value of all flows.

use punctual_model::network::Network;

use super::{Floor, Trajectory, per_path, responses, sum, trajectories};
use crate::frames::{FrameId, Frames};

/// What replication changes.
#[derive(Debug)]
pub(super) struct Multicast {
    /// J_mc, ns.
    pub(super) jitter: u64,
    /// Frames that were replicated at the node before the link.
    pub(super) replicated: Vec<bool>,
    /// Those, and all after them.
    pub(super) behind: Vec<bool>,
    /// Flows of which frames are replicated.
    pub(super) flows: Vec<bool>,
}

impl Multicast {
    pub(super) fn new(frames: &Frames<'_>) -> Self {
        let network = frames.network;
        let flows = network.flows.iter();
        let replicated: Vec<bool> = flows
            .flat_map(|flow| flow.hops.iter().map(|hop| hop.replicated))
            .collect();
        let mut multicast = Self {
            jitter: 0,
            behind: replicated.clone(),
            flows: vec![false; network.flows.len()],
            replicated,
        };
        for (id, frame) in frames.all.iter().enumerate() {
            if multicast.replicated[id] {
                let node = network.topology.links[frame.link].from;
                let copy = network.topology.nodes[node].copy_max;
                multicast.jitter = multicast.jitter.max(copy);
                multicast.flows[frame.flow] = true;
            }
            // Parents come first.
            multicast.behind[id] |= frame.parent.is_some_and(|parent| multicast.behind[parent]);
        }
        multicast
    }
}

/// Algorithm 3 with (13) to (15), release jitter added: for each flow and
/// destination, ns; `None` where the iteration does not end.
pub fn mrt_holistic(network: &Network) -> Vec<Vec<Option<u64>>> {
    let frames = Frames::new(network);
    let multicast = Multicast::new(&frames);
    let response = responses(&frames, |port, id| match multicast.behind[id] {
        true => port.multicast_response(multicast.jitter),
        false => port.response(),
    });
    let totals: Vec<_> = (0..network.flows.len())
        .map(|flow| {
            let algorithm = Algorithm {
                frames: &frames,
                multicast: &multicast,
                response: &response,
            };
            algorithm.totals(&frames.leaves[flow])
        })
        .collect();
    per_path(&frames, |leaf| {
        let flow = frames.all[leaf].flow;
        let place = frames.leaves[flow].iter().position(|own| *own == leaf)?;
        totals[flow][place]
    })
}

/// Part B and C of Algorithm 3.
struct Algorithm<'a> {
    frames: &'a Frames<'a>,
    multicast: &'a Multicast,
    response: &'a [Option<u64>],
}

impl Algorithm<'_> {
    /// For each leaf the total that is returned for it.
    fn totals(&self, leaves: &[FrameId]) -> Vec<Option<u64>> {
        let is_behind = |id: &FrameId| self.multicast.behind[*id];
        let mut total = None;
        let each = leaves.iter().map(|leaf| {
            let path = self.frames.path(*leaf);
            let (before, behind) = path.split_at(path.partition_point(|id| !is_behind(id)));
            // Once for all branches.
            let mut sum = match total.take() {
                Some(sum) => sum,
                None => before.iter().try_fold(0, |sum, id| self.add(sum, *id)),
            };
            for id in behind {
                sum = sum.and_then(|sum| self.add(sum, *id));
                if self.multicast.replicated[*id] {
                    sum = sum.and_then(|sum| self.clustered(sum, *id, leaves));
                }
            }
            total = Some(sum);
            sum
        });
        each.collect()
    }

    /// The links behind a link from an RP, once for each path that uses it, with
    /// the delay of the RP.
    fn clustered(&self, mut sum: u64, link: FrameId, leaves: &[FrameId]) -> Option<u64> {
        let delay = self.frames.all[link].own_delay;
        for leaf in leaves {
            let path = self.frames.path(*leaf);
            let Some(place) = path.iter().position(|id| *id == link) else {
                continue;
            };
            for id in &path[place + 1..] {
                let prop = self.prop(*id);
                sum = sum
                    .checked_add(self.response[*id]?)?
                    .checked_add(delay)?
                    .checked_add(prop)?;
            }
        }
        Some(sum)
    }

    fn add(&self, sum: u64, id: FrameId) -> Option<u64> {
        let frame = &self.frames.all[id];
        let switching = frame.parent.map_or(0, |_| frame.own_delay);
        sum.checked_add(self.response[id]?)?
            .checked_add(switching)?
            .checked_add(self.prop(id))
    }

    fn prop(&self, id: FrameId) -> u64 {
        self.frames.network.topology.links[self.frames.all[id].link].prop
    }
}

/// (16) to (22) and Algorithm 4 at t = 0, release jitter added: for each flow and
/// destination, ns; `None` where the iteration does not end.
pub fn mrt_trajectory(network: &Network, floor: Floor) -> Vec<Vec<Option<u64>>> {
    let frames = Frames::new(network);
    let multicast = Multicast::new(&frames);
    trajectories(&frames, floor, Some(&multicast))
}

impl Trajectory<'_> {
    /// The third term of (16): of the slowest switch and the RP, if they are two,
    /// the lesser delay. There is none without an RP.
    pub(super) fn lesser_delay(&self, path: &[FrameId], multicast: &Multicast) -> u64 {
        let delay = |id: &FrameId| self.frames.all[*id].own_delay;
        let slowest = path[1..].iter().max_by_key(|id| delay(id));
        let points = path[1..].iter().filter(|id| multicast.replicated[**id]);
        let lesser = points
            .filter(|point| Some(*point) != slowest)
            .map(|point| delay(point).min(slowest.map_or(0, delay)));
        sum(lesser)
    }
}
