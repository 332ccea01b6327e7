//! Compiles streams into flow entries of switches.

use std::collections::BTreeMap;

use punctual_model::network::LinkIndex;

use super::{Receiver, Stream};
use crate::plan::{BEST_EFFORT, Detour, Entry, HandOver, Leg, Mark, Match, Police, Rewrite};
use crate::topology::{End, Map};

/// The first tag of detours; smaller tags are for versions of paths.
pub(crate) const DETOURS: u8 = 4;

/// A flow entry and its switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedEntry {
    pub(crate) datapath: u64,
    pub(crate) matching: Match,
    pub(crate) entry: Entry,
}

/// Compiles streams into flow entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compiler {
    /// Whether priorities are also carried in an 802.1Q tag.
    pub(crate) tags: bool,
}

/// The outgoing links that follow each incoming link, with the receivers directly behind each
/// outgoing link.
type Tree = BTreeMap<LinkIndex, BTreeMap<LinkIndex, Vec<Receiver>>>;

impl Compiler {
    /// The flow entries of a stream.
    pub(crate) fn compile(
        &self,
        stream: &Stream,
        map: &Map,
        police: Option<Police>,
    ) -> Vec<PlacedEntry> {
        let mut placed = Vec::new();
        let first = map.access_links(stream.source).map(|(first, _)| first);
        let paths = stream.path_set.paths.iter().map(Vec::as_slice);
        let tree = tree(paths.zip(&stream.receivers));
        let owner = owner(stream);
        for (link, next) in &tree {
            let Some(into) = map.ends(*link).and_then(|ends| ends.into) else {
                continue;
            };
            let ingress = Some(*link) == first;
            let legs = self.legs(stream, map, next, true);
            let mark = Mark {
                dscp: code(stream, false),
                pcp: self.tags.then_some(stream.class),
            };
            placed.push(PlacedEntry {
                datapath: into.datapath,
                matching: self.matching(stream, into, (!ingress).then_some(mark.dscp)),
                entry: Entry {
                    owner: owner.clone(),
                    police: police.filter(|_| ingress),
                    mark: ingress.then_some(mark),
                    legs,
                },
            });
        }
        for (link, next) in &detours(stream) {
            let Some(into) = map.ends(*link).and_then(|ends| ends.into) else {
                continue;
            };
            placed.push(PlacedEntry {
                datapath: into.datapath,
                matching: self.matching(stream, into, Some(code(stream, true))),
                entry: Entry {
                    owner: owner.clone(),
                    police: None,
                    mark: None,
                    legs: self.legs(stream, map, next, false),
                },
            });
        }
        placed
    }

    fn matching(&self, stream: &Stream, into: End, dscp: Option<u8>) -> Match {
        Match {
            in_port: into.port,
            header: stream.header,
            dscp,
            // A packet that has a mark also has a tag.
            tagged: self.tags && dscp.is_some(),
        }
    }

    fn legs(
        &self,
        stream: &Stream,
        map: &Map,
        next: &BTreeMap<LinkIndex, Vec<Receiver>>,
        covered: bool,
    ) -> Vec<Leg> {
        let mut legs = Vec::new();
        for (link, receivers) in next {
            let Some(out) = map.ends(*link).and_then(|ends| ends.out) else {
                continue;
            };
            let leg = |hand_over, detour| Leg {
                port: out.port,
                queue: stream.class,
                hand_over,
                detour,
            };
            if receivers.is_empty() {
                let detour = stream.detours.get(link).filter(|_| covered);
                let first = detour
                    .and_then(|detour| detour.first())
                    .and_then(|path| path.first());
                let detour = first
                    .and_then(|link| map.ends(*link)?.out)
                    .map(|out| Detour {
                        port: out.port,
                        queue: stream.class,
                        dscp: code(stream, true),
                    });
                legs.push(leg(None, detour));
            }
            for receiver in receivers {
                let address = receiver.mac.map(|mac| Rewrite {
                    mac,
                    ip: receiver.peer.address,
                    port: receiver.peer.port,
                });
                let last = HandOver {
                    dscp: Mark::code_point(stream.class, 0),
                    untag: self.tags,
                    address,
                };
                legs.push(leg(Some(last), None));
            }
        }
        legs.sort_unstable();
        legs
    }
}

/// Name of the owner of a stream's entries, which is equal after a restart.
pub(crate) fn owner(stream: &Stream) -> String {
    let header = &stream.header;
    let port = |port: Option<u16>| port.map_or_else(|| "*".into(), |port| port.to_string());
    format!(
        "{}:{}:{}>{}:{}",
        header.protocol.name(),
        header.source,
        port(header.source_port),
        header.destination,
        port(header.destination_port),
    )
}

fn code(stream: &Stream, detour: bool) -> u8 {
    let tag = (stream.tag % DETOURS) + if detour { DETOURS } else { BEST_EFFORT };
    Mark::code_point(stream.class, tag)
}

fn tree<'a>(paths: impl Iterator<Item = (&'a [LinkIndex], &'a Receiver)>) -> Tree {
    let mut tree = Tree::new();
    for (path, receiver) in paths {
        for pair in path.windows(2) {
            let [link, next] = pair else {
                continue;
            };
            tree.entry(*link).or_default().entry(*next).or_default();
        }
        if let [.., before, last] = path
            && let Some(receivers) = tree.get_mut(before).and_then(|next| next.get_mut(last))
        {
            receivers.push(*receiver);
        }
    }
    tree
}

/// The links of all detours, except the first link of each.
fn detours(stream: &Stream) -> Tree {
    let each = stream.detours.iter().flat_map(|(link, paths)| {
        let beyond = stream.path_set.paths.iter().zip(&stream.receivers);
        let beyond = beyond
            .filter(|(path, _)| path.contains(link))
            .map(|(_, receiver)| receiver);
        paths.iter().map(Vec::as_slice).zip(beyond)
    });
    let mut tree = tree(each);
    // Two detours may end in the same links.
    for next in tree.values_mut() {
        for receivers in next.values_mut() {
            receivers.sort_unstable();
            receivers.dedup();
        }
    }
    tree
}

/// Whether all detours of a stream agree on the links that follow each link.
pub(crate) fn are_consistent(stream: &Stream) -> bool {
    let mut known: BTreeMap<LinkIndex, BTreeMap<LinkIndex, Vec<Receiver>>> = BTreeMap::new();
    stream.detours.iter().all(|(link, paths)| {
        let beyond = stream.path_set.paths.iter().zip(&stream.receivers);
        let beyond = beyond
            .filter(|(path, _)| path.contains(link))
            .map(|(_, receiver)| receiver);
        let tree = tree(paths.iter().map(Vec::as_slice).zip(beyond));
        tree.into_iter()
            .all(|(link, next)| *known.entry(link).or_insert_with(|| next.clone()) == next)
    })
}
