//! Ways through the trie of filters: what covers a filter, and what it covers or overlaps.
//!
//! A search branches where the trie has both a wildcard and the level itself, so the number of
//! paths can grow as 2 to the power of the levels. There is no recursion, every step counts as one
//! unit of work, and the caller limits the units.

use std::ops::Bound;

use super::{Node, ROOT};

/// What a search came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// What the filters that were found have, together.
    pub(super) found: u64,
    /// Nodes that were visited.
    pub(super) visits: u64,
    /// Nothing is left to be visited that could have made a difference.
    pub(super) is_complete: bool,
}

/// Looks for filters that cover `levels`, but for the one that ends in `except`, until those found
/// are `enough` or `limit` nodes are visited. Covering is by form: `+/#` counts as covered by `#`
/// and not the reverse, although both match the same.
pub(super) fn covers(
    nodes: &[Node],
    levels: &[&str],
    except: u32,
    has: impl Fn(&Node) -> u64,
    enough: impl Fn(u64) -> bool,
    limit: u64,
) -> Search {
    let (mut found, mut visits) = (0, 0);
    let mut stack = vec![(ROOT, 0)];
    let at = |node: u32| &nodes[node as usize];
    while let Some((node, depth)) = stack.pop() {
        if enough(found) {
            break;
        }
        if visits == limit {
            return Search {
                found,
                visits,
                is_complete: false,
            };
        }
        visits += 1;
        let children = &at(node).children;
        if let Some(all) = children.get("#").filter(|all| **all != except) {
            found |= has(at(*all));
        }
        match levels.get(depth) {
            None if node != except => found |= has(at(node)),
            None | Some(&"#") => {}
            Some(level) => {
                let plus = children.get("+");
                let literal = children.get(*level).filter(|_| *level != "+");
                let next = plus.into_iter().chain(literal);
                stack.extend(next.map(|child| (*child, depth + 1)));
            }
        }
    }
    Search {
        found,
        visits,
        is_complete: true,
    }
}

/// Which filters a walk finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// Those that its filter covers.
    Covered,
    /// Those with which it has topics in common.
    Overlapping,
}

/// A node on the path, how many levels of the filter lead there, and which of its children was
/// visited last; [`ROOT`] if none was.
#[derive(Debug)]
struct Stop {
    node: u32,
    depth: usize,
    last: u32,
}

/// A walk to the filters that a filter covers or overlaps, one step at a time. Nodes may be added
/// between two steps, but not removed.
#[derive(Debug)]
pub(super) struct Walk {
    filter: Vec<Box<str>>,
    relation: Relation,
    stack: Vec<Stop>,
}

impl Walk {
    pub(super) fn new(filter: Vec<Box<str>>, relation: Relation) -> Self {
        let root = Stop {
            node: ROOT,
            depth: 0,
            last: ROOT,
        };
        Self {
            filter,
            relation,
            stack: vec![root],
        }
    }

    /// Whether nothing is left to be visited.
    pub(super) fn is_over(&self) -> bool {
        self.stack.is_empty()
    }

    /// Makes one step; returns the node that it came to if a filter may end there.
    pub(super) fn step(&mut self, nodes: &[Node]) -> Option<u32> {
        let stop = self.stack.last_mut()?;
        let level = self.filter.get(stop.depth).map(|level| &**level);
        let ends = stop.last == ROOT && matches!(level, None | Some("#"));
        let found = ends.then_some(stop.node);
        let overlaps = self.relation == Relation::Overlapping;
        let children = &nodes[stop.node as usize].children;
        let end = self.filter.len();
        let next = match level {
            Some("#") => following(nodes, stop).map(|(_, child)| (child, stop.depth)),
            Some("+") => {
                let mut next = following(nodes, stop);
                if let Some((level, child)) = next
                    && level == "#"
                    && !overlaps
                {
                    stop.last = child;
                    next = following(nodes, stop);
                }
                next.map(|(level, child)| (child, if level == "#" { end } else { stop.depth + 1 }))
            }
            level => {
                let all = children.get("#").filter(|_| overlaps);
                let plus = children.get("+").filter(|_| overlaps && level.is_some());
                let literal = level.and_then(|level| children.get(level));
                let ways = [
                    (all, end),
                    (literal, stop.depth + 1),
                    (plus, stop.depth + 1),
                ];
                let mut ways = ways
                    .into_iter()
                    .filter_map(|(child, depth)| Some((*child?, depth)));
                match stop.last {
                    ROOT => ways.next(),
                    last => ways.skip_while(|(child, _)| *child != last).nth(1),
                }
            }
        };
        match next {
            Some((node, depth)) => {
                stop.last = node;
                self.stack.push(Stop {
                    node,
                    depth,
                    last: ROOT,
                });
            }
            None => drop(self.stack.pop()),
        }
        found
    }
}

/// The child after the last one that was visited, and its level.
fn following<'a>(nodes: &'a [Node], stop: &Stop) -> Option<(&'a str, u32)> {
    let children = &nodes[stop.node as usize].children;
    let after = match stop.last {
        ROOT => Bound::Unbounded,
        last => Bound::Excluded(&*nodes[last as usize].level),
    };
    let (level, child) = children.range::<str, _>((after, Bound::Unbounded)).next()?;
    Some((level, *child))
}
