//! Mail of other threads.

use punctual_broker::{Nanos, RemoteMessage};

use super::{TURN_TIME, Worker};
use crate::mailbox::{Mail, TransportMail};
use crate::overrun::Piece;
use crate::services::StoreNews;

/// Messages of another shard that are delivered at once.
const AT_ONCE_REMOTE: usize = 32;

impl Worker {
    /// Handles mail that has come, as much as one turn has time for.
    pub(super) fn read_mail(&mut self) {
        let mailbox = &self.cx.mailboxes[usize::from(self.cx.index)];
        if self.state.mail.is_empty() && mailbox.is_pending() {
            mailbox.take(&mut self.state.mail);
        }
        let until = self.cx.asked + TURN_TIME;
        let mut now = self.cx.clock.now();
        while let Some(mail) = self.state.mail.pop_front() {
            let (piece, began) = self.handle(mail, now);
            // Before the next mail: it may bring a connection that gets
            // the slot of one that was just ended.
            now = self.end_mail(piece, began);
            if now >= until {
                break;
            }
        }
    }

    /// Ends a piece of mail that began at a time; returns when the next one may begin.
    fn end_mail(&mut self, piece: Piece, began: Nanos) -> Nanos {
        self.act(began);
        self.took(piece, began, None);
        self.flush_urgent();
        self.give_way();
        self.cx.clock.now()
    }

    /// Handles mail but for the end of its last piece: what that is, and when it began.
    fn handle(&mut self, mail: Mail, now: Nanos) -> (Piece, Nanos) {
        let shard = &mut self.cx.shard;
        match mail {
            Mail::Transport(mail) => return self.transport(mail, now),
            Mail::Messages(messages) => return (Piece::Mail, self.remote(messages, now)),
            Mail::Authenticated(id, answer) => shard.authenticated(id, answer, now),
            Mail::Call(call) => call(shard, now),
            Mail::Stored(StoreNews::Committed(ticket)) => shard.committed(ticket, now),
            Mail::Stored(StoreNews::Failed(trouble)) => shard.store_failed(trouble, now),
            Mail::Stored(StoreNews::Full(why)) => shard.store_full(why, now),
            Mail::ShutDown(ending) => {
                self.state.stop_at = Some(now + self.shutdown_timeout);
                self.state.ending = Some(ending);
                self.transports.stop();
                self.cx.shard.shut_down(now);
            }
            Mail::Return => self.state.may_return = true,
        }
        (Piece::Mail, now)
    }

    /// Has a transport take mail, a piece at a time.
    fn transport(&mut self, mut mail: TransportMail, mut now: Nanos) -> (Piece, Nanos) {
        loop {
            let (rest, piece) = self.transports.mail(&mut self.cx, mail, now);
            let Some(rest) = rest else {
                return (piece, now);
            };
            now = self.end_mail(piece, now);
            mail = rest;
        }
    }

    /// Delivers messages of another shard, a few at a time; returns when the last piece began.
    fn remote(&mut self, messages: Vec<RemoteMessage>, mut now: Nanos) -> Nanos {
        let mut messages = messages.into_iter();
        loop {
            let some = messages.by_ref().take(AT_ONCE_REMOTE);
            self.cx.shard.remote(some, now);
            if messages.as_slice().is_empty() {
                return now;
            }
            now = self.end_mail(Piece::Mail, now);
        }
    }

    /// Delivers urgent messages of other shards, the most urgent first, each written before the next
    /// one is handled.
    #[inline]
    pub(super) fn read_urgent_mail(&mut self) {
        if self.cx.mailboxes[usize::from(self.cx.index)].has_urgent() {
            self.read_all_urgent_mail();
        }
    }

    #[inline(never)]
    fn read_all_urgent_mail(&mut self) {
        let mut messages = std::mem::take(&mut self.state.urgent_mail);
        self.cx.mailboxes[usize::from(self.cx.index)].take_urgent(&mut messages);
        messages.sort_by_key(RemoteMessage::rank);
        for message in messages.drain(..) {
            let now = self.cx.clock.now();
            self.cx.expect_urgent(now);
            self.cx.shard.remote(std::iter::once(message), now);
            self.flush_urgent();
            self.act(now);
        }
        self.state.urgent_mail = messages;
    }
}
