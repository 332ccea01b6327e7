//! What is written when: what is urgent at once, the rest at the end of a turn; and messages for
//! other shards.

use punctual_broker::{Nanos, Scope};

use super::Worker;
use crate::mailbox::Mail;
use crate::overrun::Piece;

impl Worker {
    /// Writes what the connections that got something have to say. Writing may
    /// make more to say, for these or for others: that is the second round; the
    /// rest waits for the next turn.
    pub(super) fn flush(&mut self, now: Nanos) {
        let mut dirty = std::mem::take(&mut self.state.dirty);
        // Those that are marked from now on have their next turn.
        self.cx.connections.take_marked(&mut dirty);
        for _ in 0..2 {
            self.cx.shard.take_dirty(&mut self.state.given);
            for id in self.state.given.drain(..) {
                self.cx.connections.mark_in(id, &mut dirty);
            }
            for id in dirty.drain(..) {
                let Some(kind) = self.cx.connections.unmark(id) else {
                    continue;
                };
                let began = self.cx.is_watched().then(|| self.cx.clock.now());
                self.transports
                    .send(kind, &mut self.cx, id, Scope::All, now);
                if let Some(began) = began {
                    self.took(Piece::Write, began, Some(id));
                }
                self.give_way();
            }
        }
        self.state.dirty = dirty;
        self.transports.flush(&mut self.cx, Scope::All, now);
    }

    /// Writes what is urgent, the most urgent first.
    #[inline]
    pub(super) fn flush_urgent(&mut self) {
        if self.cx.shard.posts_urgent() {
            self.post_urgent();
        }
        if self.cx.shard.has_urgent() {
            self.flush_all_urgent();
        }
    }

    #[inline(never)]
    fn flush_all_urgent(&mut self) {
        let now = self.cx.clock.now();
        let mut urgent = std::mem::take(&mut self.state.urgent);
        self.cx.shard.take_urgent(&mut urgent);
        for id in urgent.drain(..) {
            if let Some(kind) = self.cx.connections.kind(id) {
                // How long it waited includes the writes before its own.
                let now = self.cx.clock.now();
                self.transports
                    .send(kind, &mut self.cx, id, Scope::Urgent, now);
            }
        }
        self.state.urgent = urgent;
        self.transports.flush(&mut self.cx, Scope::Urgent, now);
        self.act(now);
    }

    /// Sends urgent messages to other shards.
    #[inline(never)]
    fn post_urgent(&mut self) {
        let shard = &mut self.cx.shard;
        for (other, mailbox) in (0_u16..).zip(self.cx.mailboxes.iter()) {
            if other != self.cx.index {
                mailbox.post_urgent(|urgent| shard.take_urgent_outbox(other, urgent));
            }
        }
    }

    /// Sends messages to other shards that can take them.
    pub(super) fn post(&mut self) {
        let (shard, index) = (&mut self.cx.shard, self.cx.index);
        for (other, mailbox) in (0_u16..).zip(self.cx.mailboxes.iter()) {
            if other != index && shard.has_outbox(other) && mailbox.has_room() {
                let mut messages = Vec::new();
                shard.take_outbox(other, &mut messages);
                mailbox.post(Mail::Messages(messages));
            }
        }
    }
}
