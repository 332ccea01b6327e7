//! What has to be true, and the search, breadth first, so that what is found has a shortest trace.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::super::custody::OutboundTransfer;
use super::world::{CLIENT, ClientState, Scope, Step, World, number};

/// States of a scope at most.
const MOST: usize = 200_000_000;

impl World {
    /// What has to be true in every state.
    pub(super) fn check(&self, scope: &Scope) -> Result<(), String> {
        self.check_owners(scope)?;
        let (client, budget) = (&self.client, scope.budget);
        if budget.cleans == 0 && !client.anew && client.delivered.iter().any(|n| *n > 1) {
            return Err("P2: a message of QoS 2 was delivered twice".into());
        }
        if client.got_old {
            return Err("P6: a message of a session that Clean Start has ended".into());
        }
        if self.is_lost && budget.cleans == 0 {
            return Err("P1: a message comes where nothing is known of the client".into());
        }
        if self.is_sent_back {
            return Err("I3: a message goes in a circle".into());
        }
        let failures = budget.cuts + budget.crashes + budget.silences;
        let nothing_failed = failures == 0 && budget.cleans == 0;
        if nothing_failed && client.anew {
            return Err("P7: a new session although nothing failed".into());
        }
        Ok(())
    }

    fn check_owners(&self, scope: &Scope) -> Result<(), String> {
        let sessions = self
            .brokers
            .iter()
            .filter_map(|it| it.memory.session.as_ref());
        let sessions: Vec<_> = sessions.collect();
        for (n, (mark, content)) in sessions.iter().enumerate() {
            for (other, other_content) in &sessions[..n] {
                if content.line == other_content.line {
                    return Err("I2: two sessions of one line".into());
                }
                if mark.epoch == other.epoch {
                    return Err("P3: two sessions of one epoch".into());
                }
            }
        }
        for broker in 0..self.brokers.len() {
            let outbound = self.brokers[broker]
                .machine
                .as_ref()
                .map(|it| it.outbound(CLIENT));
            let outbound = outbound.unwrap_or_default();
            let mut freezes = outbound.iter().map(|it| match it {
                OutboundTransfer::Frozen { id, .. } | OutboundTransfer::Committed { id, .. } => id,
            });
            let mut seen = Vec::new();
            if freezes.any(|id| {
                let again = seen.contains(&id);
                seen.push(id);
                again
            }) {
                return Err("I1: a transfer is frozen and has an outcome".into());
            }
        }
        for broker in &self.brokers {
            let target = broker
                .memory
                .stub
                .as_ref()
                .map(|(stub, _)| number(&stub.target));
            let there = target.map(|target| &self.brokers[target].memory);
            // Clean Start ends what is older at one broker after the other.
            let checked = there.filter(|_| scope.budget.cleans == 0);
            if checked
                .is_some_and(|it| it.session.is_none() && it.stub.is_none() && it.copies.is_empty())
            {
                return Err("I3: a stub leads to nothing".into());
            }
        }
        Ok(())
    }

    /// What has to be true where nothing more happens by itself.
    pub(super) fn check_quiet(&self, scope: &Scope) -> Result<(), String> {
        let client = &self.client;
        if client.state != ClientState::Connected {
            return Err("P5: the client is not let in".into());
        }
        if scope.budget.cleans == 0 {
            let mut all = (0..3).filter(|m| self.owed >> m & 1 == 1);
            if let Some(lost) = all.find(|m| client.delivered[*m] == 0) {
                return Err(format!("P1: message {lost} is lost"));
            }
        }
        let here = &self.brokers[client.place].memory;
        if here.session.as_ref().is_none_or(|(_, it)| !it.subscribed) {
            return Err("P1: the client believes in a subscription that is not there".into());
        }
        let all = || self.brokers.iter().map(|it| &it.memory);
        if all().filter(|it| it.session.is_some()).count() != 1 {
            return Err("P3: not one session at the end".into());
        }
        if all().any(|it| it.stub.is_some()) {
            return Err("P4: a stub stays".into());
        }
        if all().any(|it| !it.copies.is_empty() || !it.outcomes.is_empty()) {
            return Err("P4: a copy or an outcome stays".into());
        }
        if self.brokers.iter().any(|it| it.snapshot.is_some()) {
            return Err("P4: a session stays frozen".into());
        }
        if here.session.as_ref().is_some_and(|(mark, _)| mark.blind) {
            return Err("P4: a session stays blind".into());
        }
        Ok(())
    }
}

/// What was found, after which steps.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) why: String,
    pub(super) states: usize,
    pub(super) trace: String,
}

/// What was seen where nothing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) states: usize,
    pub(super) quiet: usize,
}

struct Search<'a> {
    scope: &'a Scope,
    /// By its fingerprint, the state before.
    seen: HashMap<u64, u64>,
    /// Back from each state to those before it.
    edges: Vec<(u64, u64)>,
    quiet: Vec<u64>,
}

/// Visits every state; of `live` scopes also looks whether each leads to one where nothing more
/// happens.
pub(super) fn search(scope: &Scope, live: bool) -> Result<Count, Violation> {
    let start = World::new(scope);
    let mut search = Search {
        scope,
        seen: HashMap::new(),
        edges: Vec::new(),
        quiet: Vec::new(),
    };
    let prints = start.prints(None);
    let mut next = VecDeque::from([(start.clone(), prints)]);
    search.seen.insert(start.print(prints), 0);
    // Breadth first finds a violation with the fewest steps; depth first keeps fewer states in the queue.
    while let Some((world, prints)) = match scope.depth_first {
        true => next.pop_back(),
        false => next.pop_front(),
    } {
        let print = world.print(prints);
        let steps = world.steps(scope);
        let is_quiet = steps.iter().all(|step| step.is_voluntary());
        let mut checked = world.check(scope);
        if is_quiet {
            search.quiet.push(print);
            checked = checked.and_then(|()| world.check_quiet(scope));
        }
        checked.map_err(|why| search.found(&start, print, why))?;
        for step in steps {
            let mut then = world.clone();
            then.apply(scope, step);
            let then_prints = then.prints(Some((&world, prints)));
            let after = then.print(then_prints);
            if live {
                search.edges.push((after, print));
            }
            if let Entry::Vacant(vacant) = search.seen.entry(after) {
                vacant.insert(print);
                next.push_back((then, then_prints));
            }
        }
        if search.seen.len() > MOST {
            return Err(search.found(&start, print, "too many states".into()));
        }
    }
    if live {
        search.check_live(&start)?;
    }
    Ok(Count {
        states: search.seen.len(),
        quiet: search.quiet.len(),
    })
}

impl Search<'_> {
    /// I5: every state leads to one where nothing more happens.
    fn check_live(&mut self, start: &World) -> Result<(), Violation> {
        self.edges.sort_unstable();
        let mut good: hashbrown::HashSet<u64> = self.quiet.iter().copied().collect();
        let mut open = self.quiet.clone();
        while let Some(print) = open.pop() {
            let first = self.edges.partition_point(|(after, _)| *after < print);
            let before = self.edges[first..].iter();
            for (_, before) in before.take_while(|(after, _)| *after == print) {
                if good.insert(*before) {
                    open.push(*before);
                }
            }
        }
        match self.seen.keys().find(|print| !good.contains(*print)) {
            None => Ok(()),
            Some(print) => Err(self.found(start, *print, "I5: no quiet end is reached".into())),
        }
    }

    /// The steps to a state, found again.
    fn found(&self, start: &World, end: u64, why: String) -> Violation {
        let mut path = vec![end];
        while let Some(before) = path.last().and_then(|print| self.seen.get(print))
            && *before != 0
        {
            path.push(*before);
        }
        let (mut world, mut trace) = (start.clone(), String::new());
        for print in path.iter().rev().skip(1) {
            let steps = world.steps(self.scope);
            let then = steps.into_iter().find_map(|step| {
                let mut then = world.clone();
                then.apply(self.scope, step);
                (then.print(then.prints(None)) == *print).then_some((step, then))
            });
            let Some((step, then)) = then else {
                break;
            };
            trace += &match step {
                Step::Deliver { index, .. } => {
                    let (from, to, message) = &world.control[usize::from(index)];
                    format!("  {step:?}: {from}->{to} {message:?}\n")
                }
                _ => format!("  {step:?}\n"),
            };
            world = then;
        }
        Violation {
            why,
            states: self.seen.len(),
            trace: format!("{trace}{}", world.summary()),
        }
    }
}

impl World {
    fn summary(&self) -> String {
        let mut text = format!("{:?}\n", self.client);
        for (k, broker) in self.brokers.iter().enumerate() {
            text += &format!(
                "broker {k}: {:?} lookup {:?} fence {:?} timers {:?}\n",
                broker.memory, broker.lookup, broker.fence, broker.timers
            );
        }
        text
    }
}
