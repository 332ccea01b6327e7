//! The tables of nodes that exchange messages without delay: locations of clients and brokers,
//! brokers that receive a topic, and lost links.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "sessions/transfers.rs"]
mod transfers;

use std::collections::{BTreeMap, BTreeSet};

use punctual_mesh::table::{PIECE, SLICE};
use punctual_mesh::wire::{MAX_LEVELS, Message, TraceReply};
use punctual_mesh::{BrokerId, ForgetError, LinkId, Node, Output, Settings};
use punctual_model::Nanos;

fn name(n: usize) -> BrokerId {
    BrokerId::new(&format!("b{n}")).unwrap()
}

fn settings(n: usize) -> Settings {
    Settings {
        keep: Nanos::from_secs(60),
        ..Settings::new(name(n), 1, 10_u64.saturating_sub(n as u64))
    }
}

/// Brokers in a row.
struct Row {
    nodes: Vec<Node>,
    ends: BTreeMap<(usize, LinkId), (usize, LinkId)>,
    /// Outputs of nodes that concern sessions and traces.
    asked: Vec<(usize, Output)>,
    /// Outputs of nodes that concern messages kept for neighbours.
    moved: Vec<(usize, Output)>,
    /// For each node the brokers that it reaches, and whether it reports others as away.
    reach: BTreeMap<usize, (BTreeSet<BrokerId>, bool)>,
    /// The brokers behind each link, as nodes store them.
    leads: BTreeMap<(usize, BrokerId), Vec<BrokerId>>,
    /// The node whose commits are delayed at the moment, and its last commit number.
    unkept: Option<(usize, u64)>,
    /// The node whose neighbours acknowledge nothing at the moment; [`Self::flushes`] are its
    /// flushes.
    stuck: Option<usize>,
    flushes: Vec<u64>,
    /// Links at which newer messages are held.
    held: BTreeSet<(usize, LinkId)>,
    now: Nanos,
}

impl Row {
    fn new(n: usize) -> Self {
        let now = Nanos::from_secs(1);
        let node = |n| Node::new(settings(n), now);
        let mut row = Self {
            nodes: (0..n).map(node).collect(),
            ends: BTreeMap::new(),
            asked: Vec::new(),
            moved: Vec::new(),
            reach: BTreeMap::new(),
            leads: BTreeMap::new(),
            unkept: None,
            stuck: None,
            flushes: Vec::new(),
            held: BTreeSet::new(),
            now,
        };
        for b in 1..n {
            row.connect(b - 1, b);
        }
        row.run_for(5000);
        row.asked.clear();
        row
    }

    fn connect(&mut self, a: usize, b: usize) {
        let opens = [self.nodes[a].open(true), self.nodes[b].open(false)];
        let at_a = self.nodes[a].link_up(&opens[1], 1.0, self.now).unwrap();
        let at_b = self.nodes[b].link_up(&opens[0], 1.0, self.now).unwrap();
        self.ends.insert((a, at_a), (b, at_b));
        self.ends.insert((b, at_b), (a, at_a));
        self.settle();
    }

    fn cut(&mut self, a: usize, b: usize) {
        let ends: Vec<_> = self.ends.iter().map(|(from, to)| (*from, *to)).collect();
        for ((from, link), (to, _)) in ends {
            if (from, to) == (a, b) || (from, to) == (b, a) {
                self.ends.remove(&(from, link));
                self.nodes[from].link_down(link, "cut", self.now);
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let mut busy = false;
            for n in 0..self.nodes.len() {
                for output in self.nodes[n].take_outputs() {
                    busy = true;
                    match output {
                        Output::Send(link, bytes) => {
                            if let Some((to, at)) = self.ends.get(&(n, link)).copied() {
                                self.nodes[to].receive(at, &bytes, self.now).unwrap();
                            }
                        }
                        Output::CommitInterest(number) => match &mut self.unkept {
                            Some((unkept, last)) if *unkept == n => *last = number,
                            _ => self.nodes[n].interest_committed(number, self.now),
                        },
                        Output::Copy { .. }
                        | Output::Forget { .. }
                        | Output::Narrow(_)
                        | Output::Trim(_) => {
                            self.moved.push((n, output));
                        }
                        Output::Leads { link, brokers } => {
                            // A link that was given up has no peer.
                            if let Some(peer) = self.nodes[n].peer(link).cloned() {
                                self.leads.insert((n, peer), brokers);
                            }
                        }
                        Output::Flush { number, .. } if self.stuck == Some(n) => {
                            self.flushes.push(number);
                        }
                        Output::Flush { number, .. } => self.nodes[n].flushed(number),
                        Output::Hold { link, holds: true } => {
                            self.held.insert((n, link));
                        }
                        Output::Hold { link, .. } => {
                            self.held.remove(&(n, link));
                        }
                        // A link that does not carry messages holds none, either.
                        Output::Carry {
                            link,
                            carries: false,
                        } => {
                            self.held.remove(&(n, link));
                        }
                        Output::Reach { reached, away } => {
                            self.reach.insert(n, (reached, away));
                        }
                        Output::LookUp { .. }
                        | Output::Located { .. }
                        | Output::FenceAsked { .. }
                        | Output::FencePassed { .. }
                        | Output::Envelope { .. }
                        | Output::TraceReply(_) => self.asked.push((n, output)),
                        _ => {}
                    }
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn run_for(&mut self, millis: u64) {
        for _ in 0..millis / 10 {
            self.now = self.now + Nanos::from_millis(10);
            let now = self.now;
            self.nodes.iter_mut().for_each(|node| node.tick(now));
            self.settle();
        }
    }
}

/// The output by which a node gives up a neighbour, with the broker that an operator has forgotten,
/// if any.
fn given_up(peer: usize, forgotten: Option<usize>) -> Output {
    let (peer, forgotten) = (name(peer), forgotten.map(name));
    Output::Forget { peer, forgotten }
}

/// A link that has never carried messages leads to no broker, whatever is kept for it.
#[test]
fn a_link_leads_to_nobody_before_it_carries() {
    let now = Nanos::from_secs(1);
    let [mut own, mut peer] = [0, 1].map(|n| Node::new(settings(n), now));
    let opens = [own.open(true), peer.open(false)];
    let link = own.link_up(&opens[1], 1.0, now).unwrap();
    let back = peer.link_up(&opens[0], 1.0, now).unwrap();
    let is_leads = |output: &Output| matches!(output, Output::Leads { .. });
    // The neighbour's end of the link carries messages.
    let here = Message::Here {
        all: true,
        add: vec![name(1), name(2)],
        remove: Vec::new(),
    };
    own.receive(link, &here.encode(), now).unwrap();
    let mut said = own.take_outputs();
    assert!(!own.status().links[0].edge.carries());
    assert!(!said.iter().any(is_leads), "{said:?}");
    // This end carries messages now, and the neighbour does not repeat the brokers behind it.
    let mut leads = Vec::new();
    while !said.is_empty() {
        for output in said {
            match output {
                Output::Send(_, bytes) => peer.receive(back, &bytes, now).unwrap(),
                Output::Leads { brokers, .. } => leads.push(brokers),
                _ => {}
            }
        }
        for output in peer.take_outputs() {
            if let Output::Send(_, bytes) = output
                && !matches!(Message::decode(&bytes), Ok(Message::Here { .. }))
            {
                own.receive(link, &bytes, now).unwrap();
            }
        }
        said = own.take_outputs();
    }
    assert!(own.status().links[0].edge.carries());
    assert_eq!(leads, [[name(1), name(2)]]);
}

#[test]
fn envelopes_find_their_way() {
    let mut row = Row::new(4);
    row.nodes[3].envelope(&name(0), "c", [1, 2].into(), row.now);
    row.nodes[3].envelope(&name(9), "c", [3].into(), row.now);
    row.settle();
    let envelope = Output::Envelope {
        from: name(3),
        client: "c".into(),
        body: [1, 2].into(),
    };
    assert_eq!(row.asked, [(0, envelope)]);
}

impl Row {
    /// Confirms the delayed commits, and ends the delay.
    fn keep(&mut self) {
        if let Some((n, number)) = self.unkept.take() {
            self.nodes[n].interest_committed(number, self.now);
            self.settle();
        }
    }
}

/// A killed broker loses what it has not committed: other brokers must not rely on it before.
#[test]
fn others_hear_who_is_where_when_it_is_kept_what_is_wanted_there() {
    let mut row = Row::new(4);
    row.cut(1, 2);
    row.run_for(1000);
    row.nodes[2].subscribe("t", false, row.now);
    row.asked.clear();
    row.unkept = Some((1, 0));
    row.connect(1, 2);
    row.run_for(5000);
    let wanted = |row: &Row| row.nodes[0].table().receivers("t").1.len();
    assert_eq!(wanted(&row), 1, "what is wanted is told at once");
    assert!(row.nodes[1].reached().contains(&name(3)));
    assert!(!row.nodes[0].reached().contains(&name(2)));
    row.keep();
    let reached = [name(1), name(2), name(3)].into();
    assert_eq!(row.reach[&0].0, reached);
}

#[test]
fn an_envelope_waits_until_it_is_kept_what_is_wanted() {
    let mut row = Row::new(3);
    row.unkept = Some((1, 0));
    row.nodes[2].subscribe("t", false, row.now);
    row.nodes[2].envelope(&name(0), "c", [1].into(), row.now);
    row.nodes[2].envelope(&name(0), "c", [2].into(), row.now);
    row.run_for(1000);
    assert_eq!(row.asked, []);
    row.keep();
    row.settle();
    let envelope = |body: u8| {
        let (from, client) = (name(2), "c".into());
        let body = [body].into();
        (0, Output::Envelope { from, client, body })
    };
    assert_eq!(row.asked, [envelope(1), envelope(2)]);
    // No commit of filters is pending.
    row.unkept = Some((1, 0));
    row.nodes[2].envelope(&name(0), "c", [3].into(), row.now);
    row.settle();
    assert_eq!(row.asked.last(), Some(&envelope(3)));
}

/// Messages for a neighbour that is elsewhere are forwarded to it, also by a restarted broker, at
/// any time until no more such messages arrive.
#[test]
fn who_starts_again_passes_on_what_comes_for_a_neighbour_that_is_elsewhere() {
    let mut row = Row::new(3);
    row.cut(0, 1);
    row.nodes[0] = Node::new(Settings::new(name(0), 2, 10), row.now);
    let behind = vec![name(2)];
    row.nodes[0].remember(&name(2), vec!["t".into()], Vec::new(), behind, row.now);
    row.moved.clear();
    row.connect(0, 1);
    row.run_for(5000);
    let own: Vec<Output> = row
        .moved
        .drain(..)
        .filter_map(|(n, it)| (n == 0).then_some(it))
        .collect();
    let (from, to) = (name(2), name(1));
    let copy = |moves| Output::Copy {
        from: from.clone(),
        to: to.clone(),
        moves,
    };
    let times = own.iter().filter(|it| **it == copy(true)).count();
    assert!(times >= 2, "{own:?}");
    assert_eq!(own.last(), Some(&given_up(2, None)));
}

/// While a message from a neighbour cannot be forwarded, it is unknown to which other brokers it
/// has to go.
#[test]
fn what_lingers_is_kept_while_publications_wait() {
    let mut row = Row::new(3);
    let behind = vec![name(2)];
    row.nodes[0].remember(&name(9), vec!["t".into()], Vec::new(), behind, row.now);
    row.nodes[0].subscribe("$share/g/u", false, row.now);
    row.settle();
    let wants = |row: &Row| {
        let links = row.nodes[1].status().links;
        links
            .iter()
            .find(|link| link.peer == name(0))
            .unwrap()
            .filters
    };
    assert_eq!(wants(&row), 2);
    row.nodes[0].waits(LinkId(0), true, row.now);
    row.nodes[0].unsubscribe("$share/g/u", false, row.now);
    row.moved.clear();
    let forgotten = |row: &Row| row.moved.contains(&(0, given_up(9, None)));
    row.run_for(4000);
    assert!(!forgotten(&row) && wants(&row) == 2);

    row.nodes[0].waits(LinkId(0), false, row.now);
    row.run_for(1900);
    assert!(!forgotten(&row) && wants(&row) == 2);
    row.run_for(200);
    assert!(forgotten(&row));
    row.run_for(3000);
    assert_eq!(wants(&row), 0);

    // A held message is lost with its link.
    row.nodes[0].subscribe("$share/g/u", false, row.now);
    row.nodes[0].waits(LinkId(0), true, row.now);
    row.nodes[0].unsubscribe("$share/g/u", false, row.now);
    row.cut(0, 1);
    row.connect(0, 1);
    row.run_for(5000);
    assert_eq!(wants(&row), 0);
}

/// The held message is sent again, by another path or over a new connection.
#[test]
fn what_lingers_is_kept_for_a_while_when_who_sent_what_waits_is_gone() {
    for silently in [false, true] {
        let mut row = Row::new(3);
        row.nodes.push(Node::new(settings(3), row.now));
        row.connect(0, 3);
        row.run_for(5000);
        let behind = vec![name(2)];
        row.nodes[0].remember(&name(9), vec!["t".into()], Vec::new(), behind, row.now);
        let to_3 = row.nodes[0].status().links;
        let to_3 = to_3.iter().find(|link| link.peer == name(3)).unwrap().link;
        row.nodes[0].waits(to_3, true, row.now);
        row.run_for(5000);
        row.moved.clear();
        match silently {
            false => row.cut(0, 3),
            true => row.ends.retain(|from, to| from.0 != 3 && to.0 != 3),
        }
        let is_gone = |row: &Row| row.nodes[0].status().links.len() == 1;
        while !is_gone(&row) {
            row.run_for(10);
        }
        row.run_for(1900);
        let forgotten = |row: &Row| row.moved.contains(&(0, given_up(9, None)));
        assert!(!forgotten(&row), "silently: {silently}");
        row.run_for(200);
        assert!(forgotten(&row), "silently: {silently}");
    }
}

/// State that is kept for a lost link is discarded when all messages in flight have arrived, after
/// the time `heal` at the latest.
#[test]
fn what_is_kept_is_kept_until_what_was_on_its_way_has_come() {
    let forgotten = |row: &Row| row.moved.contains(&(0, given_up(9, None)));
    let lose = |mut row: Row, stuck: usize| {
        let behind = vec![name(2)];
        row.nodes[0].remember(&name(9), vec!["t".into()], Vec::new(), behind, row.now);
        row.stuck = Some(stuck);
        row.run_for(1900);
        assert!(!forgotten(&row));
        row.run_for(200);
        row
    };
    // One of the two brokers has queued messages.
    for stuck in [1, 2] {
        let mut row = lose(Row::new(3), stuck);
        row.run_for(5000);
        let flushes = std::mem::take(&mut row.flushes);
        let [number] = flushes[..] else {
            panic!("asked again while it waits: {flushes:?}");
        };
        assert!(!forgotten(&row));
        row.nodes[stuck].flushed(number);
        row.settle();
        assert!(forgotten(&row));
    }
    let mut row = lose(Row::new(3), 2);
    // The link on the path of the flush request was replaced.
    row.cut(1, 2);
    row.connect(1, 2);
    row.run_for(2500);
    assert!(row.flushes.len() == 2 && !forgotten(&row));
    row.nodes[2].flushed(row.flushes[0]);
    row.settle();
    assert!(!forgotten(&row), "what was asked before is void");
    row.nodes[2].flushed(row.flushes[1]);
    row.settle();
    assert!(forgotten(&row));

    let mut row = lose(Row::new(3), 1);
    row.run_for(9700);
    assert!(!forgotten(&row));
    row.run_for(300);
    assert!(forgotten(&row), "nothing waits for ever");
}

/// When a link begins to carry, newer messages wait until all brokers on that side have forwarded
/// what they kept, and this was acknowledged.
#[test]
fn what_is_newer_waits_until_what_was_kept_has_come() {
    let join = |stuck: usize| {
        let mut row = Row::new(4);
        assert_eq!(row.held, BTreeSet::new());
        row.cut(2, 3);
        row.run_for(3000);
        row.stuck = Some(stuck);
        row.flushes.clear();
        row.connect(2, 3);
        row.run_for(500);
        row
    };
    // No broker is behind the last one.
    let row = join(3);
    assert_eq!((row.held, row.flushes), (BTreeSet::new(), vec![]));
    for stuck in [0, 1] {
        let mut row = join(stuck);
        let at: Vec<usize> = row.held.iter().map(|(n, _)| *n).collect();
        // A second flush is requested when the brokers behind the link are known.
        assert_eq!((at, row.flushes.len()), (vec![2], 2));
        row.run_for(3000);
        assert_eq!(row.flushes.len(), 2, "each is answered once");
        for (flush, held) in row.flushes.clone().into_iter().zip([1, 0]) {
            row.nodes[stuck].flushed(flush);
            row.settle();
            assert_eq!(row.held.len(), held, "only the last answer counts");
        }
        // Holding ends with the link, and after a limit of time.
        let mut row = join(stuck);
        row.cut(2, 3);
        assert_eq!(row.held, BTreeSet::new());
        row.run_for(1000);
        row.connect(2, 3);
        row.run_for(9000);
        assert_eq!(row.held.len(), 1);
        row.run_for(1500);
        assert_eq!(row.held, BTreeSet::new());
    }
}

/// The last broker answers two flushes, of which each is requested within `wait` ms.
fn answer_twice(row: &mut Row, wait: u64) {
    for _ in 0..2 {
        row.run_for(wait);
        assert_eq!(row.flushes.len(), 1);
        row.nodes[2].flushed(row.flushes.remove(0));
        row.run_for(10);
    }
}

/// The filters of the last member of a shared subscription at a broker remain until all messages in
/// flight have arrived; those of earlier members do not.
#[test]
fn a_member_leaves_when_what_was_on_its_way_has_come() {
    let mut row = Row::new(3);
    let wants = |row: &Row| {
        let links = row.nodes[1].status().links;
        let link = links.iter().find(|link| link.peer == name(0));
        link.unwrap().filters
    };
    for _ in 0..2 {
        row.nodes[0].subscribe("$share/g/u", false, row.now);
    }
    row.run_for(100);
    assert_eq!(wants(&row), 1);
    row.stuck = Some(2);
    row.nodes[0].unsubscribe("$share/g/u", false, row.now);
    row.run_for(4000);
    assert!(wants(&row) == 1 && row.flushes.is_empty());
    row.nodes[0].unsubscribe("$share/g/u", false, row.now);
    row.run_for(2000);
    answer_twice(&mut row, 300);
    assert_eq!(wants(&row), 0);

    // Filters remain only for a limited time, whatever is in flight.
    row.nodes[0].subscribe("$share/g/u", false, row.now);
    row.nodes[0].unsubscribe("$share/g/u", false, row.now);
    row.run_for(11_000);
    assert_eq!(wants(&row), 1);
    row.run_for(1500);
    assert_eq!(wants(&row), 0);
}

#[test]
fn who_is_reached_is_who_the_tree_leads_to() {
    let mut row = Row::new(4);
    let reached = |row: &Row| -> Vec<usize> {
        let other = |n: &usize| row.nodes[1].reached().contains(&name(*n));
        (0..9).filter(other).collect()
    };
    assert_eq!(reached(&row), [0, 2, 3]);
    row.cut(2, 3);
    assert_eq!(reached(&row), [0, 2]);
    row.cut(1, 2);
    assert_eq!(reached(&row), [0]);
    row.connect(2, 3);
    row.connect(1, 2);
    row.run_for(5000);
    assert_eq!(reached(&row), [0, 2, 3]);
}

/// The brokers that answer a trace from b1, and the number of answers at which the trace was
/// complete.
fn traced(row: &mut Row, topic: &str) -> (Vec<usize>, Option<usize>) {
    row.asked.clear();
    row.nodes[1].trace(topic, row.now);
    row.settle();
    let answers: Vec<TraceReply> = row
        .asked
        .drain(..)
        .map(|(n, output)| match output {
            Output::TraceReply(traced) if n == 1 => traced,
            other => panic!("{n}: {other:?}"),
        })
        .collect();
    let all = (0..=answers.len()).find(|count| TraceReply::are_all(&answers[..*count]));
    let last = |traced: &TraceReply| (0..9).find(|n| name(*n) == traced.path.last().unwrap().0);
    let mut who: Vec<usize> = answers.iter().filter_map(last).collect();
    who.sort_unstable();
    (who, all)
}

#[test]
fn a_trace_is_complete_when_all_on_its_way_have_answered() {
    let mut row = Row::new(5);
    for (n, filter) in [(0, "a/#"), (2, "a/b"), (4, "a/+")] {
        row.nodes[n].subscribe(filter, false, row.now);
    }
    row.run_for(100);
    assert_eq!(traced(&mut row, "a/b"), (vec![0, 1, 2, 3, 4], Some(5)));
    assert_eq!(traced(&mut row, "a/b/c"), (vec![0, 1], Some(2)));
    assert_eq!(traced(&mut row, "b"), (vec![1], Some(1)));
    // If a link is cut, a trace is complete without the brokers behind it.
    row.cut(2, 3);
    assert_eq!(traced(&mut row, "a/b"), (vec![0, 1, 2], Some(3)));
}

/// The topics among these that a broker of the row sends to any link.
fn wanted(row: &Row, n: usize, topics: &str) -> String {
    let links = |topic: &str| row.nodes[n].table().receivers(topic).1;
    let wanted = topics.split(' ').filter(|topic| !links(topic).is_empty());
    wanted.collect::<Vec<_>>().join(" ")
}

/// A row of four brokers of which the last two are cut off; persistent sessions there subscribe to
/// `b2` and `b3/#`, and other sessions to further filters.
fn cut_off() -> Row {
    let mut row = Row::new(4);
    for (n, filter, lasting) in [
        (2, "b2", true),
        (3, "b3/#", true),
        (3, "b3/#", true),
        (3, "b3/x", true),
        (2, "fleeting", false),
        (3, "b3/fleeting", false),
        (3, "over", true),
    ] {
        row.nodes[n].subscribe(filter, lasting, row.now);
    }
    row.nodes[3].unsubscribe("over", true, row.now);
    row.nodes[3].subscribe("over", false, row.now);
    row.nodes[3].unsubscribe("b3/#", true, row.now);
    row.run_for(1000);
    row.cut(1, 2);
    row.moved.clear();
    row
}

const TOPICS: &str = "b2 b3/y fleeting over";

#[test]
fn for_who_is_away_what_persistent_sessions_await_is_kept_for_longer() {
    let mut row = cut_off();
    row.run_for(9900);
    assert_eq!(wanted(&row, 0, TOPICS), TOPICS);
    assert_eq!(row.moved, []);
    row.run_for(200);
    assert_eq!(wanted(&row, 0, TOPICS), "b2 b3/y");
    row.moved.retain(|(n, _)| *n == 1);
    assert_eq!(row.moved, [(1, Output::Narrow(name(2)))]);
    row.run_for(49_700);
    assert_eq!(wanted(&row, 0, TOPICS), "b2 b3/y");
    row.run_for(300);
    assert_eq!(wanted(&row, 0, TOPICS), "");
    assert_eq!(row.moved.last(), Some(&(1, given_up(2, None))));
    // No broker considers messages to be kept for the lost ones.
    row.run_for(11_000);
    assert_eq!(row.nodes[0].status().awaited, 0);
}

#[test]
fn for_who_is_back_nothing_is_kept_but_for_who_is_not() {
    let mut row = cut_off();
    row.run_for(11_000);
    row.cut(2, 3);
    row.connect(1, 3);
    row.nodes[3].unsubscribe("b3/#", true, row.now);
    row.nodes[3].unsubscribe("b3/x", true, row.now);
    row.run_for(1000);
    // Brokers that do not know the new path yet may have sent messages for the returned broker,
    // which keeps all messages for a broker that it has lost since.
    assert_eq!(wanted(&row, 0, TOPICS), TOPICS);
    row.run_for(11_000);
    assert_eq!(wanted(&row, 0, TOPICS), "b2 over");
    row.connect(1, 2);
    row.run_for(5000);
    assert_eq!(wanted(&row, 0, TOPICS), "b2 fleeting over");
}

#[test]
fn who_keeps_messages_for_others_is_kept_messages_for() {
    let mut row = cut_off();
    row.run_for(1000);
    row.cut(0, 1);
    // A further broker, because a broker that reaches no other gives up none.
    row.nodes.push(Node::new(settings(4), row.now));
    row.connect(0, 4);
    row.run_for(15_000);
    assert_eq!(wanted(&row, 4, TOPICS), "b2 b3/y");
    // Broker 1 no longer stands for brokers 2 and 3 when these are reachable elsewhere.
    row.connect(4, 2);
    row.run_for(5000);
    assert_eq!(wanted(&row, 0, TOPICS), TOPICS);
    row.connect(0, 1);
    row.run_for(5000);
    row.cut(4, 2);
    row.run_for(15_000);
    row.nodes.push(Node::new(settings(5), row.now));
    row.connect(4, 5);
    row.run_for(1000);
    assert_eq!(wanted(&row, 5, TOPICS), "b2 b3/y");
}

#[test]
fn what_persistent_sessions_await_is_known_after_a_restart() {
    let mut row = cut_off();
    row.cut(0, 1);
    row.nodes[1] = Node::new(settings(1), row.now);
    let filters = TOPICS.split(' ').map(Box::from).collect();
    let members = vec![
        (name(2), "b2".into()),
        (name(3), "b3/#".into()),
        (name(3), "$share/g/over".into()),
    ];
    let behind = vec![name(2), name(3)];
    row.nodes[1].remember(&name(2), filters, members, behind, row.now);
    row.connect(0, 1);
    row.run_for(9000);
    assert_eq!(wanted(&row, 0, TOPICS), TOPICS);
    row.run_for(2000);
    assert_eq!(wanted(&row, 0, TOPICS), "b2 b3/y");
}

#[test]
fn who_has_no_persistent_sessions_is_given_up_as_a_whole() {
    let mut row = Row::new(3);
    row.nodes[2].subscribe("b2", false, row.now);
    row.run_for(100);
    row.cut(1, 2);
    row.moved.clear();
    row.run_for(11_000);
    assert_eq!(row.moved, [(1, Output::Narrow(name(2)))]);
    assert_eq!(wanted(&row, 0, "b2"), "");
    // Messages accepted before are kept for an equal time again.
    row.run_for(8000);
    assert_eq!(row.moved.len(), 1);
    row.run_for(2000);
    assert_eq!(
        row.moves_of(1),
        [Output::Narrow(name(2)), given_up(2, None)]
    );
}

impl Row {
    /// An operator tells one broker to forget another one.
    fn forget(&mut self, n: usize, broker: usize) -> Result<(), ForgetError> {
        let forgotten = self.nodes[n].forget(&name(broker), self.now);
        self.settle();
        forgotten
    }

    /// Outputs of a broker about messages kept for neighbours, since the last call.
    fn moves_of(&mut self, n: usize) -> Vec<Output> {
        let moved = std::mem::take(&mut self.moved).into_iter();
        moved.filter_map(|(m, it)| (m == n).then_some(it)).collect()
    }
}

/// Outputs by which messages for one of two brokers behind a lost link are dropped at once.
fn dropped_but_for_others() -> [Output; 2] {
    [Output::Narrow(name(2)), Output::Trim(name(2))]
}

#[test]
fn who_is_not_to_come_back_is_given_up_at_once() {
    for waited in [100, 20_000] {
        let mut row = Row::new(3);
        row.nodes[2].subscribe("b2", true, row.now);
        row.run_for(100);
        row.cut(1, 2);
        row.run_for(waited);
        row.moved.clear();
        // Also while messages from other brokers wait for room.
        row.nodes[1].waits(LinkId(0), true, row.now);
        assert_eq!(row.forget(1, 2), Ok(()));
        assert_eq!(row.moves_of(1), [given_up(2, Some(2))]);
        let status = row.nodes[1].status();
        assert!(status.away.is_empty() && status.healing.is_empty());
        row.run_for(20_000);
        assert_eq!(wanted(&row, 0, "b2"), "");
        assert_eq!([0, 1].map(|n| row.nodes[n].status().awaited), [0, 0]);
        // If the forgotten broker returns nevertheless, it is treated like any other.
        row.connect(1, 2);
        row.run_for(5000);
        assert_eq!(wanted(&row, 0, "b2"), "b2");
        assert_eq!(row.forget(1, 2), Err(ForgetError::Present));
    }
}

#[test]
fn who_is_forgotten_leaves_what_others_await() {
    let mut row = cut_off();
    row.run_for(11_000);
    row.moved.clear();
    assert_eq!(row.forget(1, 2), Ok(()));
    assert_eq!(row.moves_of(1), dropped_but_for_others());
    assert_eq!(row.nodes[1].status().away, [name(3)]);
    row.run_for(100);
    assert_eq!(wanted(&row, 0, TOPICS), "b3/y");
    row.run_for(20_000);
    assert_eq!(wanted(&row, 0, TOPICS), "b3/y");
    assert_eq!(row.forget(1, 3), Ok(()));
    assert_eq!(row.moves_of(1), [given_up(2, Some(3))]);
    row.run_for(100);
    assert_eq!(wanted(&row, 0, TOPICS), "");

    // Messages are kept as long as all messages for another broker behind the link are kept.
    let mut row = cut_off();
    assert_eq!(row.forget(1, 2), Ok(()));
    row.run_for(9900);
    assert_eq!(
        (row.moves_of(1), wanted(&row, 0, TOPICS)),
        (Vec::new(), TOPICS.into())
    );
    row.run_for(200);
    assert_eq!(row.moves_of(1), [Output::Narrow(name(2))]);
    assert_eq!(wanted(&row, 0, TOPICS), "b3/y");

    // A broker without persistent sessions is given up together with the forgotten one.
    let mut row = cut_off();
    row.run_for(11_000);
    row.moved.clear();
    assert_eq!(row.forget(1, 3), Ok(()));
    assert_eq!(row.moves_of(1), dropped_but_for_others());
    let mut row = Row::new(4);
    row.nodes[3].subscribe("b3/y", true, row.now);
    row.run_for(100);
    row.cut(1, 2);
    row.run_for(11_000);
    row.moved.clear();
    assert_eq!(row.forget(1, 3), Ok(()));
    assert_eq!(row.moves_of(1), [given_up(2, Some(3))]);
}

#[test]
fn who_is_there_or_not_known_is_not_forgotten() {
    let mut row = cut_off();
    row.connect(0, 3);
    row.run_for(15_000);
    row.cut(2, 3);
    row.run_for(100);
    let forgotten = [0, 1, 3, 9].map(|other| row.nodes[1].forget(&name(other), row.now));
    let (present, unknown) = (Err(ForgetError::Present), Err(ForgetError::Unknown));
    assert_eq!(forgotten, [present, present, present, unknown]);
    // A broker that had reached the lost one regards it as away, whether it keeps messages for it
    // or not.
    assert_eq!(row.forget(0, 2), Ok(()));
    assert_eq!(row.forget(0, 2), unknown);
    assert_eq!(row.forget(3, 2), Ok(()));
    assert_eq!(row.forget(3, 2), unknown);
}

#[test]
fn who_is_forgotten_is_so_after_a_restart() {
    let mut row = cut_off();
    row.run_for(11_000);
    assert_eq!(row.forget(1, 2), Ok(()));
    let behind = row.leads[&(1, name(2))].clone();
    assert_eq!(behind, [name(3)]);
    row.cut(0, 1);
    row.nodes[1] = Node::new(settings(1), row.now);
    let filters = vec!["b2".into(), "b3/#".into()];
    let members = vec![(name(2), "b2".into()), (name(3), "b3/#".into())];
    row.nodes[1].remember(&name(2), filters, members, behind, row.now);
    row.connect(0, 1);
    row.run_for(12_000);
    assert_eq!(wanted(&row, 0, TOPICS), "b3/y");
    assert_eq!(row.nodes[1].status().away, [name(3)]);
    row.run_for(11_000);
    let awaited = row.nodes[0].status().awaited;
    assert_eq!(awaited, 3, "two filters at b3, and that it is kept for b3");
}

/// A broker that reaches no other does not give up brokers by itself.
#[test]
fn the_word_of_an_operator_counts_where_nobody_is_reached() {
    let mut row = cut_off();
    row.cut(0, 1);
    row.run_for(70_000);
    row.moved.clear();
    assert_eq!(row.forget(1, 2), Ok(()));
    assert_eq!(row.moves_of(1), []);
    assert_eq!(row.forget(1, 3), Ok(()));
    assert_eq!(row.moves_of(1), [given_up(2, Some(3))]);

    let mut row = cut_off();
    row.run_for(11_000);
    row.cut(0, 1);
    row.moved.clear();
    assert_eq!(row.forget(1, 2), Ok(()));
    assert_eq!(row.moves_of(1), dropped_but_for_others());
    assert_eq!(row.nodes[1].status().away, [name(3)]);
    row.run_for(100);
    row.connect(0, 1);
    row.run_for(5000);
    assert_eq!(wanted(&row, 0, TOPICS), "b3/y");
}

#[test]
fn who_is_back_gets_what_waited_when_the_others_are_forgotten() {
    let mut row = cut_off();
    row.run_for(1000);
    row.cut(2, 3);
    row.connect(1, 3);
    row.run_for(1000);
    row.moved.clear();
    assert_eq!(row.forget(1, 2), Ok(()));
    let copy = Output::Copy {
        from: name(2),
        to: name(3),
        moves: true,
    };
    assert_eq!(row.moves_of(1), [copy]);
    // A broker that did not know of the return may have sent messages that are still in flight.
    row.run_for(1900);
    assert!(!row.moves_of(1).contains(&given_up(2, None)));
    row.run_for(200);
    assert_eq!(row.moves_of(1).last(), Some(&given_up(2, None)));
}

/// The forgotten broker would have forwarded the messages that it kept for the other one.
#[test]
fn whom_the_forgotten_one_kept_messages_for_is_not_forgotten() {
    for waited in [1000, 15_000] {
        let mut row = Row::new(3);
        row.nodes[1].subscribe("b1", true, row.now);
        row.nodes[2].subscribe("b2", true, row.now);
        row.run_for(100);
        row.cut(1, 2);
        row.run_for(1000);
        row.cut(0, 1);
        row.nodes.push(Node::new(settings(3), row.now));
        row.connect(0, 3);
        row.run_for(waited);
        assert_eq!(row.forget(0, 1), Ok(()));
        assert_eq!(row.leads[&(0, name(1))], [name(2)]);
        row.run_for(15_000 - waited);
        assert_eq!(row.nodes[0].status().away, [name(2)]);
        assert_eq!(wanted(&row, 3, "b1 b2"), "b2");
        row.moved.clear();
        row.connect(2, 3);
        row.run_for(5000);
        let moved = row.moves_of(0);
        let copy = Output::Copy {
            from: name(1),
            to: name(3),
            moves: true,
        };
        assert!(moved.contains(&copy), "{moved:?}");
        assert_eq!(moved.last(), Some(&given_up(1, None)));
    }
}

#[test]
fn members_at_who_is_forgotten_are_none() {
    let mut row = Row::new(4);
    for n in [2, 3] {
        row.nodes[n].subscribe("$share/g/t", true, row.now);
    }
    row.run_for(1000);
    row.cut(1, 2);
    row.run_for(11_000);
    let members = |row: &Row| [0, 1].map(|n| row.nodes[n].status().shared["$share/g/t"].clone());
    assert_eq!(
        members(&row),
        [vec![name(2), name(3)], vec![name(2), name(3)]]
    );
    assert_eq!(row.forget(1, 2), Ok(()));
    row.run_for(100);
    assert_eq!(members(&row), [vec![name(3)], vec![name(3)]]);
    assert_eq!(wanted(&row, 0, "t"), "t");
}

/// 8192 filters of one client that cover each other: a broker and its neighbour add them, and
/// neither does more work for one input than fits into a few slices.
#[test]
fn filters_that_cover_each_other_take_a_slice_for_each_input() {
    let mut row = Row::new(3);
    let (mut most, mut before) = (0, 0);
    let mut step = |row: &mut Row, input: &dyn Fn(&mut Node, Nanos)| {
        let now = row.now;
        input(&mut row.nodes[0], now);
        let work = row.nodes[0].table().work();
        most = most.max(work - before);
        before = work;
        row.settle();
    };
    for bits in 0..1u32 << 13 {
        let levels = (0..13).map(|level| if bits >> level & 1 == 1 { "+/" } else { "a/" });
        let filter = String::from_iter(levels) + "z";
        // Some filters at a time, which arrive while the broker still handles earlier ones.
        row.now = row.now + Nanos(300_000);
        step(&mut row, &|node, now| node.subscribe(&filter, false, now));
        step(&mut row, &|node, now| node.tick(now));
    }
    while row.nodes[0].next_timeout() <= row.now {
        step(&mut row, &|node, now| node.tick(now));
    }
    assert!((1..=2 * (SLICE + PIECE)).contains(&most), "{most}");
    row.run_for(1000);
    for n in [1, 2] {
        let status = row.nodes[n].status();
        assert_eq!((status.filters, status.links.len()), (1, 3 - n), "{n}");
    }
    println!("{before} units, {most} at most for one input");
}

/// A client may subscribe to filters with more levels than brokers advertise.
#[test]
fn a_filter_with_too_many_levels_is_asked_for_as_a_wider_one() {
    let mut row = Row::new(2);
    let deep = "a/".repeat(32_767) + "z";
    let now = row.now;
    row.nodes[0].subscribe(&deep, true, now);
    row.run_for(100);
    let wide = "a/".repeat(MAX_LEVELS - 1);
    let links = |row: &Row, topic: &str| row.nodes[1].table().receivers(topic).1.len();
    assert_eq!((links(&row, &deep), links(&row, &wide)), (1, 1));
    let now = row.now;
    row.nodes[0].unsubscribe(&deep, true, now);
    row.run_for(100);
    assert_eq!(links(&row, &deep), 0);
    assert_eq!(row.nodes[1].status().links.len(), 1);
    // A neighbour that advertises such a filter unchanged loses its link.
    let link = row.nodes[1].status().links[0].link;
    let told = Message::Filters {
        add: vec![deep.into()],
        remove: vec![],
    };
    let now = row.now;
    let error = row.nodes[1].receive(link, &told.encode(), now).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a topic or filter has more than 1024 levels"
    );
}
