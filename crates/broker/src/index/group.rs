//! Shared subscriptions: one member gets each message.
//!
//! A group is one object that the index and all cached routes share. Members are added and removed
//! in it, so that routes need no update and stay valid; routes change only when the first member
//! joins or the last one leaves. The lock of the group is taken for each message, for the time of
//! choosing a member; while it is held only locks of sessions are taken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use foldhash::fast::RandomState;

use crate::base::handle::SessionHandle;
use crate::base::name::sign;
use crate::index::target::Target;
use crate::lock::{read, write};

/// A shared subscription: share name and filter.
#[derive(Debug)]
pub(crate) struct Group {
    name: Box<str>,
    /// Sign of its filter, see [`crate::base::name::sign`].
    pub(crate) sign: u32,
    /// The turn among members and among brokers.
    cursor: AtomicU32,
    /// Place of a member that was connected when it was last considered.
    connected: AtomicU32,
    members: RwLock<Members>,
}

/// Maximum number of members that are searched linearly; for more, their places are indexed.
const FEW: usize = 32;

/// The members of a shared subscription.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// The members on this broker, in no order.
    pub(crate) here: Vec<Target>,
    /// Their places by the numbers of their sessions, if there are more than [`FEW`].
    places: HashMap<u64, u32, RandomState>,
    /// Signs of other brokers of the mesh that have members.
    pub(crate) elsewhere: Vec<u32>,
}

impl Members {
    pub(crate) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.elsewhere.is_empty()
    }

    fn place_of(&self, session: &SessionHandle) -> Option<usize> {
        match self.places.is_empty() {
            true => self
                .here
                .iter()
                .position(|it| it.session.number == session.number),
            false => self.places.get(&session.number).map(|at| *at as usize),
        }
    }

    fn push(&mut self, member: Target) {
        if self.here.is_empty() {
            self.here.reserve_exact(1);
        }
        self.here.push(member);
        let noted = match (self.places.is_empty(), self.here.len()) {
            (true, 0..=FEW) => return,
            (true, _) => 0,
            (false, len) => len - 1,
        };
        let members = (0..).zip(&self.here).skip(noted);
        self.places
            .extend(members.map(|(at, it)| (it.session.number, at)));
    }

    fn remove(&mut self, at: usize) {
        let gone = self.here.swap_remove(at);
        if self.here.len() <= FEW / 2 {
            self.places = HashMap::default();
        } else if self.places.remove(&gone.session.number).is_some()
            && let Some(moved) = self.here.get(at)
        {
            self.places.insert(moved.session.number, at as u32);
        }
    }
}

impl Group {
    /// A group without members; `filter` has the share prefix.
    pub(crate) fn new(name: &str, filter: &str) -> Self {
        Self {
            name: name.into(),
            sign: sign(filter),
            cursor: AtomicU32::new(0),
            connected: AtomicU32::new(0),
            members: RwLock::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn members(&self) -> RwLockReadGuard<'_, Members> {
        read(&self.members)
    }

    /// The member of the group, if it is the only one in the mesh.
    pub(crate) fn only_member(&self) -> Option<Target> {
        let members = self.members();
        match &*members.here {
            [only] if members.elsewhere.is_empty() => Some(only.clone()),
            _ => None,
        }
    }

    /// Adds or replaces the member of that session. Returns whether it is new.
    pub(crate) fn add(&self, member: Target) -> bool {
        let mut members = write(&self.members);
        if let Some(at) = members.place_of(&member.session) {
            members.here[at] = member;
            return false;
        }
        self.connected
            .store(members.here.len() as u32, Ordering::Relaxed);
        members.push(member);
        true
    }

    /// Removes the member of that session. Returns whether it existed.
    pub(crate) fn remove(&self, session: &Arc<SessionHandle>) -> bool {
        let mut members = write(&self.members);
        let place = members.place_of(session);
        if let Some(at) = place {
            members.remove(at);
        }
        place.is_some()
    }

    /// Replaces the set of other brokers that have members.
    pub(crate) fn set_elsewhere(&self, brokers: &[u32]) {
        write(&self.members).elsewhere = brokers.to_vec();
    }

    /// Takes the next turn.
    pub(crate) fn turn(&self) -> usize {
        self.cursor.fetch_add(1, Ordering::Relaxed) as usize
    }

    /// Skips `turns` members: a member behind them got the message.
    pub(crate) fn pass_over(&self, turns: usize) {
        self.cursor.fetch_add(turns as u32, Ordering::Relaxed);
    }

    /// Notes the place of a connected member.
    pub(crate) fn note_connected(&self, place: usize) {
        self.connected.store(place as u32, Ordering::Relaxed);
    }

    /// The place that was noted last, which may be empty by now.
    pub(crate) fn last_connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed) as usize
    }
}

#[cfg(test)]
mod tests {
    use punctual_codec::{QoS, SubscribeOptions};

    use super::*;
    use crate::Directory;
    use crate::index::subscriber::Subscriber;

    /// Each member is found, replaced and removed, whatever other members are added or removed.
    #[test]
    fn members_come_and_go() {
        let directory = Directory::new(1);
        let group = Group::new("g", "$share/g/t");
        let sessions: Vec<_> = (0..4 * FEW as u32)
            .map(|n| directory.handle(&Arc::from(format!("c{n}")), 0, n))
            .collect();
        let member = |at: usize, qos| {
            Target::new(&Subscriber {
                session: sessions[at].clone(),
                options: SubscribeOptions {
                    qos,
                    ..SubscribeOptions::default()
                },
                id: 0,
                demoted: false,
                numbered: false,
            })
        };
        for at in 0..sessions.len() {
            assert!(group.add(member(at, QoS::AtMostOnce)));
            assert!(!group.add(member(at, QoS::AtLeastOnce)));
        }
        // From both ends and the middle.
        let mut left: Vec<usize> = (0..sessions.len()).collect();
        for turn in 0..sessions.len() {
            let gone = left.swap_remove(turn * 7 % left.len());
            assert!(group.remove(&sessions[gone]));
            assert!(!group.remove(&sessions[gone]));
            assert!(group.add(member(gone, QoS::AtMostOnce)));
            assert!(group.remove(&sessions[gone]));
            assert!(
                left.iter()
                    .all(|at| !group.add(member(*at, QoS::ExactlyOnce)))
            );
            let here = &group.members().here;
            let mut numbers: Vec<u64> = here.iter().map(|it| it.session.number).collect();
            numbers.sort_unstable();
            let mut expected: Vec<u64> = left.iter().map(|at| sessions[*at].number).collect();
            expected.sort_unstable();
            assert_eq!(numbers, expected);
        }
        assert!(group.members().is_empty());
    }
}
