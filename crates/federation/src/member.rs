//! A broker as a member of a mesh: its node, its links, and the tasks of its shards.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use punctual_broker::{ConnId, Directory, KeptLink, MessageNames as _, Nanos, Service, Shard};
use punctual_mesh::transfer::{FenceAnswer, HomeId};
use punctual_mesh::wire::{Arrival, ClientStub, Message, Open, TOPIC, TraceReply};
use punctual_mesh::{
    BrokerId, Dialling, Event, ForgetError, LinkId, Membership, Node, Output, Settings,
};

use crate::event::{DropCause, DroppedMessages, LinkEvent, ShardEvent};
use crate::port::Port;
use crate::task::{ShardTask, Shards};

/// Filters of a neighbour that a shard is given at a time.
const PIECE: usize = 32;

/// Something for the shell: for its log, its operators or its connections.
#[derive(Debug)]
pub enum Notice {
    /// The node reports an event.
    Event(Event),
    /// A broker answers [`Member::trace`].
    TraceReply(TraceReply),
    /// A neighbour has introduced itself, and there is a link to it.
    Linked(Open),
    /// A neighbour has introduced itself, and is refused for that reason.
    Refused(BrokerId, String),
    /// A neighbour has sent something that the protocol does not allow; its connection is closed.
    Misbehaved(BrokerId, String),
    /// A connection of a neighbour is gone; the shell may connect again.
    Disconnected(BrokerId),
    /// Messages in the queue of a neighbour are dropped.
    Dropped(DroppedMessages),
}

/// A broker as a member of a mesh.
///
/// The shell gives it the [events](ShardEvent) of the shards, in their order, and has it
/// [act](Self::act) after each of them and after each call of another method that takes the time.
/// [`Self::take_notices`] is to be emptied then, too.
#[derive(Debug)]
pub struct Member {
    node: Node,
    port: Arc<Port>,
    directory: Arc<Directory>,
    /// At most [`LinkId::MAX`].
    links: BTreeMap<LinkId, (BrokerId, ConnId)>,
    /// Connections of neighbours that have not introduced themselves.
    waiting: HashMap<ConnId, BrokerId>,
    /// Neighbours that have introduced themselves on a connection that the first shard has not
    /// reported yet.
    expected: BTreeMap<BrokerId, Open>,
    /// Factors of the round-trip times of neighbours, other than 1. The shell bounds their number.
    weights: BTreeMap<BrokerId, f64>,
    notices: Vec<Notice>,
}

impl Member {
    /// A broker that begins; `port` is that of its shards, which `directory` has.
    pub fn new(settings: Settings, port: Arc<Port>, directory: Arc<Directory>, now: Nanos) -> Self {
        Self {
            node: Node::new(settings, now),
            port,
            directory,
            links: BTreeMap::new(),
            waiting: HashMap::new(),
            expected: BTreeMap::new(),
            weights: BTreeMap::new(),
            notices: Vec::new(),
        }
    }

    /// The broker's node in the tree.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Takes over what the first shard has stored for neighbours ([`Shard::links`]).
    pub fn remember(&mut self, links: Vec<KeptLink>, now: Nanos) {
        for kept in links {
            let Some(peer) = BrokerId::new(&kept.peer) else {
                continue;
            };
            let members = kept.members.into_iter();
            let members =
                members.filter_map(|(broker, filter)| Some((BrokerId::new(&broker)?, filter)));
            let behind = kept.behind.iter().filter_map(|id| BrokerId::new(id));
            let (members, behind) = (members.collect(), behind.collect());
            self.node
                .remember(&peer, kept.filters, members, behind, now);
        }
    }

    /// See [`Node::set_dialling`].
    pub fn set_dialling(&mut self, dialling: Dialling, now: Nanos) {
        self.node_mut().set_dialling(dialling, now);
    }

    /// Scales the measured round-trip time to a neighbour.
    pub fn weigh(&mut self, peer: &BrokerId, weight: f64, now: Nanos) {
        if weight == 1.0 {
            self.weights.remove(peer);
        } else {
            self.weights.insert(peer.clone(), weight);
        }
        self.node_mut().weigh(peer, weight, now);
    }

    /// A neighbour has introduced itself on a connection that is on its way to the first shard,
    /// which this broker opened.
    pub fn expect(&mut self, open: Open) {
        self.expected.insert(open.id.clone(), open);
    }

    /// The connection that was announced by [`Self::expect`] does not come.
    pub fn unexpect(&mut self, peer: &BrokerId) {
        self.expected.remove(peer);
    }

    /// Closes the connections to a neighbour.
    pub fn disconnect(&mut self, peer: &BrokerId, why: &str, shards: &mut impl Shards) {
        for (id, conn) in self.links.values() {
            if id == peer {
                close(shards, *conn, why.to_owned());
            }
        }
    }

    /// Gives up a broker that is away and does not come back ([`Node::forget`]).
    ///
    /// # Errors
    /// Those of [`Node::forget`].
    pub fn forget(
        &mut self,
        broker: &BrokerId,
        shards: &mut impl Shards,
        now: Nanos,
    ) -> Result<(), ForgetError> {
        self.node_mut().forget(broker, now)?;
        let name = broker.as_str().to_owned();
        self.all_shards(shards, move |shard, now| shard.forget_broker(&name, now));
        Ok(())
    }

    /// Asks all brokers which of them get a topic; the number is in their replies.
    pub fn trace(&mut self, topic: &str, now: Nanos) -> u64 {
        self.node_mut().trace(topic, now)
    }

    /// When [`Self::tick`] is due.
    pub fn next_timeout(&self) -> Nanos {
        self.node.next_timeout()
    }

    /// Runs the timers that are due.
    pub fn tick(&mut self, now: Nanos) {
        let node = self.node_mut();
        if node.next_timeout() <= now {
            node.tick(now);
        }
    }

    /// Removes and returns the notices for the shell.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Handles an event of a shard.
    pub fn take(&mut self, event: ShardEvent, shards: &mut impl Shards, now: Nanos) {
        let node = self.node_mut();
        match event {
            ShardEvent::Subscribed(filter, persistent) => node.subscribe(&filter, persistent, now),
            ShardEvent::Unsubscribed(filter, persistent) => {
                node.unsubscribe(&filter, persistent, now);
            }
            ShardEvent::Arrived(arrival) => node.arrived(arrival, now),
            ShardEvent::Claimed(arrival) => node.has_arrived_elsewhere(&arrival),
            ShardEvent::Will(client, will) => node.set_will(&client, will, now),
            ShardEvent::LookUp {
                at,
                client,
                user,
                clean,
            } => node.look_up(&at, &client, user.as_deref(), clean, now),
            ShardEvent::Found {
                by,
                at,
                client,
                located,
            } => node.found(&by, &at, &client, located, now),
            ShardEvent::Forward {
                number,
                address,
                message,
            } => self.at_home_of(shards, address.client.clone(), move |shard, _, now| {
                shard.take_forwarded(number, &address, &message, now);
            }),
            ShardEvent::Forwarded(number) => {
                shards.call(0, Box::new(move |shard, _| shard.forwarded(number)));
            }
            ShardEvent::Envelope { to, client, body } => node.envelope(&to, &client, body, now),
            ShardEvent::InterestCommitted(number) => node.interest_committed(number, now),
            ShardEvent::Flushed(number) => node.flushed(number),
            ShardEvent::FenceStub { client, stub } => node.fence_stub(&client, &stub, now),
            ShardEvent::FenceAnswered {
                by,
                number,
                blocked,
            } => node.fence_answered(&by, number, blocked, now),
            ShardEvent::Link { conn, peer, event } => {
                self.take_link(conn, peer, event, shards, now);
            }
            ShardEvent::Dropped(dropped) => self.notices.push(Notice::Dropped(dropped)),
        }
    }

    fn take_link(
        &mut self,
        conn: ConnId,
        peer: BrokerId,
        event: LinkEvent,
        shards: &mut impl Shards,
        now: Nanos,
    ) {
        match event {
            LinkEvent::Up { dialled } => {
                let expected = dialled.then(|| self.expected.remove(&peer)).flatten();
                match expected {
                    Some(open) => self.link_up(conn, open, shards, now),
                    None => {
                        self.waiting.insert(conn, peer);
                    }
                }
            }
            LinkEvent::Message(bytes) => self.message(conn, &bytes, shards, now),
            LinkEvent::Waits(waits) => {
                if let Some(link) = self.link_of(conn) {
                    self.node.waits(link, waits, now);
                }
            }
            LinkEvent::Down(why) => self.down(conn, peer, &why, now),
        }
    }

    fn link_up(&mut self, conn: ConnId, open: Open, shards: &mut impl Shards, now: Nanos) {
        let weight = self.weights.get(&open.id).copied().unwrap_or(1.0);
        match self.node.link_up(&open, weight, now) {
            Ok(link) => {
                if let Some((_, old)) = self.links.insert(link, (open.id.clone(), conn)) {
                    close(shards, old, "replaced by a newer connection".into());
                }
                self.port.linked(&open.id, !open.dialled);
                self.notices.push(Notice::Linked(open));
            }
            Err(refusal) => {
                let why = refusal.to_string();
                self.notices.push(Notice::Refused(open.id, why.clone()));
                close(shards, conn, why);
            }
        }
    }

    fn message(&mut self, conn: ConnId, bytes: &[u8], shards: &mut impl Shards, now: Nanos) {
        if let Some(link) = self.link_of(conn) {
            if let Err(error) = self.node.receive(link, bytes, now) {
                // The node has given the link up, and may use its number for another neighbour.
                if let Some((peer, _)) = self.remove_link(link) {
                    let notice = Notice::Misbehaved(peer, error.to_string());
                    self.notices.push(notice);
                }
                close(shards, conn, error.to_string());
            }
            return;
        }
        let Some(peer) = self.waiting.remove(&conn) else {
            return;
        };
        match Message::decode(bytes) {
            Ok(Message::Open(open)) if open.id == peer && open.dialled => {
                let answer = Message::Open(self.node.open(false)).encode();
                let send = move |shard: &mut Shard, _| shard.link_send(conn, TOPIC, &answer);
                shards.call(0, Box::new(send));
                self.link_up(conn, open, shards, now);
            }
            _ => {
                let why = "its first message does not introduce it";
                self.notices.push(Notice::Misbehaved(peer, why.into()));
                close(shards, conn, why.into());
            }
        }
    }

    fn down(&mut self, conn: ConnId, peer: BrokerId, why: &str, now: Nanos) {
        self.waiting.remove(&conn);
        if let Some(link) = self.link_of(conn) {
            self.remove_link(link);
            self.node.link_down(link, why, now);
        }
        self.notices.push(Notice::Disconnected(peer));
    }

    /// The link that uses a connection.
    fn link_of(&self, conn: ConnId) -> Option<LinkId> {
        let mut links = self.links.iter();
        let (link, _) = links.find(|(_, (_, current))| *current == conn)?;
        Some(*link)
    }

    /// Removes a link, and returns its neighbour and its connection.
    fn remove_link(&mut self, link: LinkId) -> Option<(BrokerId, ConnId)> {
        let removed = self.links.remove(&link)?;
        self.port.unlinked(&removed.0);
        Some(removed)
    }

    /// Passes the outputs of the node on to the shards; returns whether there were any. If messages
    /// are copied to a neighbour, the first shard runs all its tasks without other work between them:
    /// a message that a client publishes in between would neither be copied nor sent. Otherwise long
    /// lists of filters are divided into several tasks, and the shard serves clients between them.
    pub fn act(&mut self, shards: &mut impl Shards) -> bool {
        let outputs = self.node.take_outputs();
        let has_acted = !outputs.is_empty();
        let piece = match outputs.iter().any(|it| matches!(it, Output::Copy { .. })) {
            true => usize::MAX,
            false => PIECE,
        };
        // The first shard runs these without other work between them.
        let mut tasks: Vec<ShardTask> = Vec::new();
        for output in outputs {
            match output {
                Output::Close(link, why) => {
                    if let Some((_, conn)) = self.remove_link(link) {
                        tasks.push(Box::new(move |shard, now| {
                            shard.link_close(conn, &why, now);
                        }));
                    }
                }
                Output::Interest { link, add, remove } => {
                    let Some(peer) = self.peer_name(link) else {
                        continue;
                    };
                    for (add, remove) in pieces(add, remove, piece) {
                        let peer = peer.clone();
                        if add.len() + remove.len() >= piece {
                            submit(shards, &mut tasks);
                        }
                        tasks.push(Box::new(move |shard, _| {
                            shard.link_interest(&peer, &add, &remove);
                        }));
                    }
                }
                Output::PersistentInterest {
                    link,
                    broker,
                    add,
                    remove,
                } => {
                    let Some(peer) = self.peer_name(link) else {
                        continue;
                    };
                    for (add, remove) in pieces(add, remove, piece) {
                        let (peer, broker) = (peer.clone(), broker.clone());
                        if add.len() + remove.len() >= piece {
                            submit(shards, &mut tasks);
                        }
                        tasks.push(Box::new(move |shard, _| {
                            shard.link_lasting(&peer, broker.as_str(), &add, &remove);
                        }));
                    }
                }
                Output::TraceReply(reply) => self.notices.push(Notice::TraceReply(reply)),
                Output::Membership(membership) => {
                    let port = self.port.clone();
                    let service = service(membership);
                    tasks.push(Box::new(move |_, _| port.set_service(service)));
                }
                Output::Event(event) => {
                    if let Event::Edge(..) | Event::Parent { .. } = event {
                        self.note_parent();
                    }
                    self.notices.push(Notice::Event(event));
                }
                Output::Send(..)
                | Output::Carry { .. }
                | Output::Hold { .. }
                | Output::Leads { .. }
                | Output::CommitInterest(_)
                | Output::Reached
                | Output::Copy { .. }
                | Output::Members { .. }
                | Output::Behind { .. }
                | Output::Narrow(_)
                | Output::Trim(_)
                | Output::Forget { .. }
                | Output::Flush { .. } => tasks.extend(self.task_for_link(output)),
                Output::Arrived(_)
                | Output::Will { .. }
                | Output::Published { .. }
                | Output::LookUp { .. }
                | Output::Located { .. }
                | Output::Reach { .. }
                | Output::Envelope { .. }
                | Output::FenceAsked { .. }
                | Output::FencePassed { .. } => self.act_for_clients(output, shards),
            }
        }
        submit(shards, &mut tasks);
        has_acted
    }

    /// The task of the first shard for an output about a link or a neighbour's session; `None` if
    /// its neighbour is gone.
    fn task_for_link(&self, output: Output) -> Option<ShardTask> {
        let task: ShardTask = match output {
            Output::Send(link, bytes) => {
                let conn = self.links.get(&link)?.1;
                Box::new(move |shard, _| shard.link_send(conn, TOPIC, &bytes))
            }
            Output::Carry { link, carries } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, now| shard.link_carry(&peer, carries, now))
            }
            Output::Hold { link, holds } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, now| shard.link_hold(&peer, holds, now))
            }
            Output::Leads { link, brokers } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, _| shard.link_leads(&peer, &names(&brokers)))
            }
            Output::CommitInterest(number) => Box::new(move |shard, _| shard.link_keep(number)),
            Output::Reached => Box::new(|shard, _| shard.link_reached()),
            Output::Copy { from, to, moves } => Box::new(move |shard, now| {
                shard.link_copy(from.as_str(), to.as_str(), moves, now);
            }),
            Output::Members { filter, brokers } => {
                Box::new(move |shard, _| shard.link_members(&filter, &names(&brokers)))
            }
            Output::Behind {
                link,
                filter,
                brokers,
            } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, _| shard.link_behind(&peer, &filter, &names(&brokers)))
            }
            Output::Narrow(peer) => Box::new(move |shard, _| shard.link_narrow(peer.as_str())),
            Output::Trim(peer) => {
                let port = self.port.clone();
                Box::new(move |shard, _| {
                    let messages = shard.link_trim(peer.as_str());
                    report_dropped(&port, peer, messages, DropCause::Unwanted);
                })
            }
            Output::Forget { peer, forgotten } => {
                let port = self.port.clone();
                Box::new(move |shard, now| {
                    let messages = shard.link_forget(peer.as_str(), now);
                    let cause = forgotten.map_or(DropCause::Away, DropCause::Forgotten);
                    report_dropped(&port, peer, messages, cause);
                })
            }
            Output::Flush { link, number } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, now| shard.link_flush(&peer, number, now))
            }
            _ => return None,
        };
        Some(task)
    }

    /// Has the shards of clients do what an output about their sessions and wills says.
    fn act_for_clients(&self, output: Output, shards: &mut impl Shards) {
        match output {
            Output::Arrived(arrivals) => self.arrived_elsewhere(arrivals, shards),
            Output::Will { will, turn } => {
                self.at_home_of(shards, will.client, move |shard, client, now| {
                    shard.link_will(client, &will.message, turn, now);
                });
            }
            Output::Published { wills, same } => {
                for will in wills {
                    self.at_home_of(shards, will.client, move |shard, client, now| {
                        shard.will_was_published(client, &will.message, same, now);
                    });
                }
            }
            Output::LookUp {
                by,
                at,
                client,
                user,
                clean,
            } => {
                self.port.note_arrival(at.micros);
                self.at_home_of(shards, client, move |shard, client, now| {
                    shard.look_up(&by, client, user.as_deref(), (&at, clean), now);
                });
            }
            Output::Located {
                at,
                client,
                answers,
                extent,
            } => self.at_home_of(shards, client, move |shard, client, now| {
                shard.located(client, &at, answers, extent, now);
            }),
            Output::Reach { reached, away } => {
                let reached = reached.into_iter().map(HomeId::from).collect();
                self.all_shards(shards, move |shard, now| {
                    shard.set_reach(&reached, away, now);
                });
            }
            Output::Envelope { from, client, body } if client.is_empty() => {
                self.all_shards(shards, move |shard, now| {
                    shard.transfer_message(from.as_str(), "", &body, now);
                });
            }
            Output::Envelope { from, client, body } => {
                self.at_home_of(shards, client, move |shard, client, now| {
                    shard.transfer_message(from.as_str(), client, &body, now);
                });
            }
            Output::FenceAsked { by, number, stubs } => {
                self.ask_for_stubs(&by, number, &stubs, shards);
            }
            Output::FencePassed { client, epoch } => {
                self.at_home_of(shards, client, move |shard, client, now| {
                    shard.fence_passed(client, &epoch, now);
                });
            }
            _ => {}
        }
    }

    fn arrived_elsewhere(&self, arrivals: Vec<Arrival>, shards: &mut impl Shards) {
        if let Some(last) = arrivals.iter().map(|arrival| arrival.at).max() {
            self.port.note_arrival(last);
        }
        self.all_shards(shards, move |shard, now| {
            for arrival in &arrivals {
                let (user, at) = (arrival.user.as_deref(), arrival.at);
                shard.user_arrived_elsewhere(&arrival.client, user, at, now);
            }
        });
    }

    /// Another broker asks which of its stubs have to stay: the shard of each client is asked, and
    /// the last of them answers.
    fn ask_for_stubs(
        &self,
        by: &HomeId,
        number: u64,
        stubs: &Arc<[ClientStub]>,
        shards: &mut impl Shards,
    ) {
        let mut places: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        for (place, (client, _)) in (0..).zip(&**stubs) {
            let home = self.directory.home(client, 0);
            places.entry(home).or_default().push(place);
        }
        // How many have not answered, and the answers of the others.
        let answers = Arc::new(Mutex::new((places.len(), Vec::new())));
        for (home, places) in places {
            let (answers, port) = (answers.clone(), self.port.clone());
            let (by, stubs) = (by.clone(), stubs.clone());
            let ask = move |shard: &mut Shard, now| {
                let mut stays = |place: &u32| {
                    let (client, stub) = &stubs[*place as usize];
                    shard.fence_asked(&by, client, stub, now) != FenceAnswer::Clear
                };
                let stay: Vec<u32> = places.into_iter().filter(|it| stays(it)).collect();
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.0 -= 1;
                answers.1.extend(stay);
                if answers.0 == 0 {
                    let blocked = std::mem::take(&mut answers.1);
                    port.report(ShardEvent::FenceAnswered {
                        by,
                        number,
                        blocked,
                    });
                }
            };
            shards.call(home, Box::new(ask));
        }
    }

    /// Tells the shards the path to the root. Until a new parent has accepted, they use the old
    /// one: messages for it wait, and are copied.
    fn note_parent(&self) {
        match self.node.tree().parent() {
            None => self.port.set_parent(None),
            Some((link, true)) => self.port.set_parent(self.node.peer(link)),
            Some((_, false)) => {}
        }
    }

    fn all_shards(
        &self,
        shards: &mut impl Shards,
        task: impl Fn(&mut Shard, Nanos) + Send + Sync + 'static,
    ) {
        let task = Arc::new(task);
        for shard in 0..self.directory.shards() {
            let task = task.clone();
            shards.call(shard, Box::new(move |shard, now| task(shard, now)));
        }
    }

    /// Has the shard that has a client's session, or would have it, do something with it.
    fn at_home_of(
        &self,
        shards: &mut impl Shards,
        client: Box<str>,
        task: impl FnOnce(&mut Shard, &str, Nanos) + Send + 'static,
    ) {
        let home = self.directory.home(&client, 0);
        shards.call(home, Box::new(move |shard, now| task(shard, &client, now)));
    }

    fn peer_name(&self, link: LinkId) -> Option<String> {
        self.node.peer(link).map(|id| id.as_str().to_owned())
    }

    /// The node, after its clock is set.
    fn node_mut(&mut self) -> &mut Node {
        self.node.set_clock(self.port.clock());
        &mut self.node
    }
}

/// Reports that messages for a neighbour are dropped, if there are any.
fn report_dropped(port: &Port, peer: BrokerId, messages: u64, cause: DropCause) {
    if messages > 0 {
        port.report(ShardEvent::Dropped(DroppedMessages {
            peer,
            messages,
            cause,
        }));
    }
}

fn names(brokers: &[BrokerId]) -> Vec<&str> {
    brokers.iter().map(BrokerId::as_str).collect()
}

fn close(shards: &mut impl Shards, conn: ConnId, why: String) {
    let close = move |shard: &mut Shard, now| shard.link_close(conn, &why, now);
    shards.call(0, Box::new(close));
}

/// Has the first shard do these tasks between two packets.
fn submit(shards: &mut impl Shards, tasks: &mut Vec<ShardTask>) {
    let tasks = std::mem::take(tasks);
    if !tasks.is_empty() {
        let all = |shard: &mut Shard, now| tasks.into_iter().for_each(|task| task(shard, now));
        shards.call(0, Box::new(all));
    }
}

/// Filters that are added and removed, at most `most` at a time.
fn pieces(
    add: Vec<Box<str>>,
    remove: Vec<Box<str>>,
    most: usize,
) -> impl Iterator<Item = (Vec<Box<str>>, Vec<Box<str>>)> {
    let (mut add, mut remove) = (add.into_iter(), remove.into_iter());
    std::iter::from_fn(move || {
        let added: Vec<_> = add.by_ref().take(most).collect();
        let removed: Vec<_> = remove.by_ref().take(most - added.len()).collect();
        (!added.is_empty() || !removed.is_empty()).then_some((added, removed))
    })
}

/// The service of a broker that is a member to that degree.
fn service(membership: Membership) -> Service {
    match membership {
        Membership::Joining => Service::None,
        Membership::Stranded => Service::Deliveries,
        Membership::Joined => Service::Full,
    }
}
