//! Shared subscriptions over a mesh: one of all members at all brokers gets a message.
//!
//! The broker to which a message is published decides for each shared subscription: a member of its
//! own that is connected and keeps up, else a broker that has members, in turn; it notes that duty
//! with the message. Other brokers pass the notes on, and the broker with the duty delivers the
//! message to a member. So the decision stays with the message on whatever path it takes, even
//! repeatedly, and as brokers recognise its name, it is carried out once. If the last member has
//! left meanwhile, the message is handed on to another broker.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::common;
use crate::base::name::sign;
use crate::base::notes::{Duty, Notes};
use crate::hub::Hub;
use crate::index::group::Group;
use crate::index::matched::{Groups, Matched};
use crate::index::target::Target;
use crate::publication::Publication;
use crate::shard::capacity::{has_room, is_congested, is_kept};

/// Maximum number of members of a shared subscription that are considered for one message, which
/// bounds the time for a large one whose members are away. If there are more members, the next
/// message's turn begins behind those.
const MOST_ASKED: usize = 256;

/// The choice of a shared subscription for a message.
pub(super) enum Choice {
    /// This member gets it.
    Member(Target),
    /// This member would keep it, but its queue is full, like those of all others.
    Full(Target),
    /// No member takes the message.
    Nobody,
}

/// The first members that would take a message, by their state, as distances from the member whose
/// turn it is. A member that may not receive the topic is not considered.
#[derive(Default)]
struct Offers {
    /// Number of members that were considered.
    asked: usize,
    /// Connected, with queue capacity, and keeps up.
    ready: Option<usize>,
    /// Connected, with queue capacity.
    with_room: Option<usize>,
    /// Can keep the message, with queue capacity.
    keeps: Option<usize>,
    connected: Option<usize>,
    /// Connected, and drops a message if its queue is full.
    drops_connected: Option<usize>,
    /// Would keep the message, and drops one if its queue is full.
    drops: Option<usize>,
    /// Must keep the message if it is chosen.
    bound: Option<usize>,
}

impl Offers {
    /// Considers `most` members from `start` on, until `enough` accepts the offers.
    fn collect(
        hub: &Hub,
        here: &[Target],
        (start, most): (usize, usize),
        publication: &Publication<'_>,
        enough: impl Fn(&Self) -> bool,
    ) -> Self {
        let mut offers = Self::default();
        let (before, from) = here.split_at(start);
        for target in from.iter().chain(before).take(most) {
            offers.ask(hub, target, offers.asked, publication);
            offers.asked += 1;
            if enough(&offers) {
                break;
            }
        }
        offers
    }

    fn ask(&mut self, hub: &Hub, target: &Target, at: usize, publication: &Publication<'_>) {
        if !target.session.may_receive(publication.parts.topic) {
            return;
        }
        let has_room = || has_room(hub, target, publication);
        let drops = !hub.refuses(&target.session, publication.queue_full);
        if target.session.connected.load(Ordering::Acquire) {
            self.connected.get_or_insert(at);
            self.drops_connected = self.drops_connected.or(drops.then_some(at));
            let keeps_up = !is_congested(target);
            if (keeps_up || self.with_room.is_none()) && has_room() {
                self.with_room.get_or_insert(at);
                self.ready = self.ready.or(keeps_up.then_some(at));
            }
        }
        let bound = is_kept(target, publication);
        if bound {
            self.bound.get_or_insert(at);
        }
        if bound || hub.config.queue_qos0_offline {
            self.drops = self.drops.or(drops.then_some(at));
            if self.keeps.is_none() && has_room() {
                self.keeps = Some(at);
            }
        }
    }
}

/// The member of a shared subscription whose turn it is: the next one that is connected and keeps
/// up; failing that, one that is connected; failing that, for QoS 1 and 2, one whose session can
/// keep the message. Where policy drops messages, one whose queue is full is better than none.
pub(super) fn choose(hub: &Hub, group: &Group, publication: &Publication<'_>) -> Choice {
    let members = group.members();
    let here = &members.here[..];
    let Some(start) = group.turn().checked_rem(here.len()) else {
        return Choice::Nobody;
    };
    let most = here.len().min(MOST_ASKED);
    let is_ready = |offers: &Offers| offers.ready.is_some();
    let mut offers = Offers::collect(hub, here, (start, most), publication, is_ready);
    let place = |at: usize| (start + at) % here.len();
    let lost = most < here.len() && offers.connected.is_none();
    if lost {
        // One of the other members may be connected. The next turn begins behind those that were
        // considered.
        group.pass_over(most - 1);
        let last = group.last_connected();
        if let Some(target) = here.get(last) {
            let at = (here.len() + last - start) % here.len();
            offers.ask(hub, target, at, publication);
        }
    } else if most < here.len()
        && offers.asked > 1
        && let Some(at) = offers.connected
    {
        group.note_connected(place(at));
    }
    let chosen = offers.ready.or(offers.with_room).or(offers.keeps);
    let chosen = chosen.or(offers.drops_connected).or(offers.drops);
    match (chosen, offers.bound) {
        (Some(at), _) => {
            if at > 0 && !lost {
                // The members that were skipped had their turn.
                group.pass_over(at);
            }
            Choice::Member(here[place(at)].clone())
        }
        (None, Some(at)) => Choice::Full(here[place(at)].clone()),
        (None, None) => Choice::Nobody,
    }
}

/// Whether a member that is connected here has capacity for a message.
fn keeps_up(hub: &Hub, group: &Group, publication: &Publication<'_>) -> bool {
    let members = group.members();
    let has_room = |offers: &Offers| offers.with_room.is_some();
    let most = (0, MOST_ASKED);
    let offers = Offers::collect(hub, &members.here, most, publication, has_room);
    has_room(&offers)
}

/// The decisions about a message for shared subscriptions.
pub(super) struct Sharing {
    /// Groups of which a member on this broker gets the message.
    here: Groups,
    /// Duties of other brokers, as noted for neighbours.
    duties: SmallVec<[Duty; 1]>,
    /// Duties that other brokers take over from this one.
    handed: SmallVec<[Duty; 1]>,
}

impl Sharing {
    /// Decides about a message that was published here, or came from a neighbour that decides
    /// nothing.
    pub(super) fn decide(hub: &Hub, matched: &Matched, publication: &Publication<'_>) -> Self {
        let mut sharing = Self {
            here: Groups::new(),
            duties: SmallVec::new(),
            handed: SmallVec::new(),
        };
        for group in &matched.groups {
            let duty = match keeps_up(hub, group, publication) {
                true => None,
                false => elsewhere(group),
            };
            match duty {
                Some(duty) => sharing.duties.push(duty),
                None => sharing.here.push(group.clone()),
            }
        }
        sharing
    }

    /// Follows the decision of the broker to which the message was published.
    pub(super) fn follow(own: &str, matched: &Matched, notes: &Notes) -> Self {
        let own = sign(own);
        let mut sharing = Self {
            here: Groups::new(),
            duties: notes.duties.clone(),
            handed: SmallVec::new(),
        };
        for duty in notes.duties.iter().filter(|duty| duty.broker == own) {
            let mut groups = matched.groups.iter();
            match groups.find(|group| group.sign == duty.group) {
                Some(group) if group.members().here.is_empty() => {
                    sharing.handed.extend(elsewhere(group));
                }
                Some(group) => sharing.here.push(group.clone()),
                // No broker has members any more.
                None => {}
            }
        }
        sharing
    }

    /// The receivers of the message: those of `matched`, and with `all` every neighbour; neighbours
    /// get it with its notes.
    pub(super) fn reach(
        self,
        hub: &Hub,
        matched: &Matched,
        notes: &mut Notes,
        all: bool,
    ) -> (Matched, SmallVec<[Duty; 1]>) {
        notes.duties = self.duties;
        let targets = common::reach(hub, matched, notes, all);
        let crowd = matched.crowd && !notes.handed;
        (
            Matched::new(targets, self.here).with_crowd(crowd),
            self.handed,
        )
    }
}

/// The next broker in turn that delivers a message to a member.
pub(crate) fn elsewhere(group: &Group) -> Option<Duty> {
    let brokers = &group.members().elsewhere;
    let turn = group.turn().checked_rem(brokers.len())?;
    Some(Duty {
        broker: brokers[turn],
        group: group.sign,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use punctual_codec::QoS;

    use super::*;
    use crate::Nanos;
    use crate::base::handle::SessionHandle;
    use crate::message::Parts;
    use crate::shard::Shard;
    use crate::{Config, Directory};

    const MEMBERS: usize = 1000;

    struct Rig {
        shard: Shard,
        group: Group,
        sessions: Vec<Arc<SessionHandle>>,
    }

    impl Rig {
        /// Sessions of another shard, all of them away.
        fn new() -> Self {
            let directory = Directory::new(2);
            let config = Arc::new(Config::default());
            let group = Group::new("group", "$share/group/t");
            let sessions: Vec<_> = (0..MEMBERS)
                .map(|n| directory.handle(&Arc::from(format!("member-{n}")), 1, n as u32))
                .collect();
            let rig = Self {
                shard: Shard::new(directory, 0, config, Nanos::from_secs(1)),
                group,
                sessions,
            };
            for at in 0..MEMBERS {
                rig.join(at);
            }
            rig
        }

        fn join(&self, at: usize) {
            let session = self.sessions[at].clone();
            self.group.add(Target {
                slot: session.slot,
                session,
                qos: QoS::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                demoted: false,
                numbered: false,
                share: self.group.sign,
                subscription_ids: None,
            });
        }

        fn connect(&self, at: usize, connected: bool) {
            let session = &self.sessions[at];
            session.connected.store(connected, Ordering::Release);
        }

        /// The member that is chosen.
        fn choose(&self, qos: QoS) -> Option<usize> {
            let parts = Parts {
                topic: b"t",
                properties: &[],
                expiry: None,
                payload: &[],
                shared: None,
            };
            let publication = Publication {
                qos,
                ..Publication::plain(parts, 0)
            };
            match choose(&self.shard.hub, &self.group, &publication) {
                Choice::Member(member) => Some(member.slot as usize),
                Choice::Full(_) | Choice::Nobody => None,
            }
        }
    }

    #[test]
    fn members_take_turns() {
        let rig = Rig::new();
        (0..MEMBERS).for_each(|at| rig.connect(at, at % 3 > 0));
        let turns: Vec<_> = (0..2 * MEMBERS)
            .map(|_| rig.choose(QoS::AtMostOnce).unwrap())
            .collect();
        for at in (0..MEMBERS).filter(|at| at % 3 > 0) {
            let count = turns.iter().filter(|turn| **turn == at).count();
            assert!((2..=4).contains(&count), "{at}: {count}");
        }
        assert!(turns.iter().all(|turn| turn % 3 > 0));
    }

    /// However many members are away, only a bounded number is considered for one message; a
    /// connected member is still found.
    #[test]
    fn members_that_are_away_cost_little() {
        let rig = Rig::new();
        let parts = Parts {
            topic: b"t",
            properties: &[],
            expiry: None,
            payload: &[],
            shared: None,
        };
        let publication = Publication::plain(parts, 0);
        let members = rig.group.members();
        let range = (900, MOST_ASKED);
        let hub = &rig.shard.hub;
        let offers = Offers::collect(hub, &members.here, range, &publication, |_| false);
        assert_eq!(offers.asked, MOST_ASKED);
        drop(members);

        assert_eq!(rig.choose(QoS::AtMostOnce), None);
        let kept = [0, 1].map(|_| rig.choose(QoS::AtLeastOnce).unwrap());
        assert!(kept[0] != kept[1], "all wait in one session");

        // The member connected again without subscribing again.
        rig.connect(700, true);
        let asked = (0..MEMBERS).position(|_| rig.choose(QoS::AtMostOnce) == Some(700));
        assert!(asked.unwrap() <= MEMBERS.div_ceil(MOST_ASKED), "{asked:?}");
        // From then on its place is known.
        assert!((0..100).all(|_| rig.choose(QoS::AtMostOnce) == Some(700)));
        rig.connect(700, false);
        assert_eq!(rig.choose(QoS::AtMostOnce), None);

        // A new member is known at once.
        let last = &rig.sessions[MEMBERS - 1];
        assert!(rig.group.remove(last));
        rig.connect(MEMBERS - 1, true);
        rig.join(MEMBERS - 1);
        assert_eq!(rig.choose(QoS::AtMostOnce), Some(MEMBERS - 1));
    }
}
