//! Which transport each connection of a shard belongs to, and which connections are to be written to.

use punctual_broker::ConnId;

use super::TransportKind;

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: ConnId,
    kind: TransportKind,
    /// In the list of those to be written to. It must not be there twice: each time it is written to
    /// puts it back while it has more, so that entries would multiply.
    dirty: bool,
}

/// The connections of a shard, by the broker's slot. An identifier of a connection that has ended
/// names nothing.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    entries: Vec<Option<Entry>>,
    /// To be written to.
    dirty: Vec<ConnId>,
}

impl Connections {
    /// A connection was opened.
    pub(super) fn insert(&mut self, id: ConnId, kind: TransportKind) {
        let at = id.slot as usize;
        if self.entries.len() <= at {
            self.entries.resize(at + 1, None);
        }
        self.entries[at] = Some(Entry {
            id,
            kind,
            dirty: false,
        });
    }

    #[inline]
    fn get_mut(&mut self, id: ConnId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.slot as usize)?.as_mut()?;
        (entry.id == id).then_some(entry)
    }

    /// The transport of a connection.
    #[inline]
    pub(crate) fn kind(&self, id: ConnId) -> Option<TransportKind> {
        let entry = self.entries.get(id.slot as usize)?.as_ref()?;
        (entry.id == id).then_some(entry.kind)
    }

    /// Forgets a connection that ends, or goes to another shard; its transport.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<TransportKind> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        entry
            .take_if(|entry| entry.id == id)
            .map(|entry| entry.kind)
    }

    /// Has a connection written to, in this turn or, once it was in this one, in the next.
    pub(crate) fn mark(&mut self, id: ConnId) {
        if self.becomes_dirty(id) {
            self.dirty.push(id);
        }
    }

    /// The same for a list of those that are written to now.
    pub(crate) fn mark_in(&mut self, id: ConnId, list: &mut Vec<ConnId>) {
        if self.becomes_dirty(id) {
            list.push(id);
        }
    }

    /// Marks a connection; false if it was, or is unknown.
    #[inline]
    fn becomes_dirty(&mut self, id: ConnId) -> bool {
        let entry = self.get_mut(id);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.dirty, true))
    }

    /// Whether any is to be written to.
    pub(crate) fn has_marked(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Moves those to be written to to the end of a list. They stay marked until [`Self::unmark`].
    pub(crate) fn take_marked(&mut self, list: &mut Vec<ConnId>) {
        list.append(&mut self.dirty);
    }

    /// A connection is about to be written to; its transport.
    #[inline]
    pub(crate) fn unmark(&mut self, id: ConnId) -> Option<TransportKind> {
        let entry = self.get_mut(id)?;
        entry.dirty = false;
        Some(entry.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32, generation: u32) -> ConnId {
        ConnId { slot, generation }
    }

    #[test]
    fn a_connection_belongs_to_the_transport_that_opened_it() {
        let mut connections = Connections::default();
        connections.insert(id(3, 1), TransportKind::Udp);
        assert_eq!(connections.kind(id(3, 1)), Some(TransportKind::Udp));
        assert_eq!(connections.remove(id(3, 1)), Some(TransportKind::Udp));
        assert_eq!(connections.kind(id(3, 1)), None);
        connections.insert(id(3, 2), TransportKind::Tcp);
        assert_eq!(connections.kind(id(3, 1)), None, "the slot has another one");
        assert_eq!(connections.remove(id(3, 1)), None);
        assert_eq!(connections.kind(id(3, 2)), Some(TransportKind::Tcp));
        assert_eq!(connections.kind(id(9, 1)), None);
    }

    #[test]
    fn a_connection_is_marked_once_until_it_is_written_to() {
        let mut connections = Connections::default();
        connections.insert(id(0, 1), TransportKind::Tcp);
        let mut list = Vec::new();
        connections.mark(id(0, 1));
        connections.mark(id(0, 1));
        connections.mark(id(1, 1));
        connections.take_marked(&mut list);
        connections.mark(id(0, 1));
        assert_eq!(
            (&list[..], connections.has_marked()),
            (&[id(0, 1)][..], false)
        );
        assert_eq!(connections.unmark(id(0, 1)), Some(TransportKind::Tcp));
        connections.mark(id(0, 1));
        assert!(connections.has_marked());
    }
}
