//! Shared subscriptions: one of the members gets each message.
//!
//! A group is one object that the index and all cached routes have in common. Members come and go
//! in it, so that a route costs nothing for them, and stays true; only when the first comes or the
//! last goes, routes change. Its lock is taken for each message, for as long as it takes to choose a
//! member; whoever holds it takes none but those of sessions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use crate::directory::SessionHandle;
use crate::federation::sign;
use crate::lock::{read, write};
use crate::route::Target;

/// A shared subscription: share name and filter.
#[derive(Debug)]
pub(crate) struct Group {
    name: Box<str>,
    /// Of its filter, see [`crate::federation::sign`].
    pub(crate) sign: u32,
    /// Whose turn it is, among members and among brokers.
    cursor: AtomicU32,
    /// Place of a member that was connected when it was last looked at.
    connected: AtomicU32,
    members: RwLock<Members>,
}

/// The members of a shared subscription.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Those of this broker, in no order.
    pub(crate) here: Vec<Target>,
    /// Signs of other brokers of the mesh where it has members.
    pub(crate) elsewhere: Vec<u32>,
}

impl Members {
    pub(crate) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.elsewhere.is_empty()
    }
}

impl Group {
    /// One without members; `filter` with the share prefix.
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

    /// Its member, if that is the only one in the mesh.
    pub(crate) fn only_member(&self) -> Option<Target> {
        let members = self.members();
        match &*members.here {
            [only] if members.elsewhere.is_empty() => Some(only.clone()),
            _ => None,
        }
    }

    /// Adds or replaces the member of that session. Says whether it is new.
    pub(crate) fn add(&self, member: Target) -> bool {
        let here = &mut write(&self.members).here;
        let known = here
            .iter_mut()
            .find(|it| Arc::ptr_eq(&it.session, &member.session));
        if let Some(known) = known {
            *known = member;
            return false;
        }
        if here.is_empty() {
            here.reserve_exact(1);
        }
        self.connected.store(here.len() as u32, Ordering::Relaxed);
        here.push(member);
        true
    }

    /// Removes the member of that session. Says whether there was one.
    pub(crate) fn remove(&self, session: &Arc<SessionHandle>) -> bool {
        let here = &mut write(&self.members).here;
        let found = here.iter().position(|it| Arc::ptr_eq(&it.session, session));
        found.map(|at| here.swap_remove(at)).is_some()
    }

    /// Notes at which other brokers there are members, instead of those before.
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

    /// The place noted last; there may be nobody any more.
    pub(crate) fn last_connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed) as usize
    }
}
