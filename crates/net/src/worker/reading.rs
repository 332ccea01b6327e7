//! What is handled when: messages of admitted flows, clients that send something urgent, all others.

use std::time::Duration;

use punctual_broker::Nanos;

use super::{Transports, Worker};
use crate::transport::{Input, Progress, TransportKind};

/// Messages of admitted flows after which everything else has a turn, whatever comes.
const PROMISED: usize = 4096;

impl Worker {
    /// Has a transport handle a piece of input, or several of one connection while nothing more urgent
    /// comes, and does what the broker asks for then. Returns whether what has become urgent is to be
    /// written before the next piece; `None` if there was no such input.
    fn receive(&mut self, kind: TransportKind, input: Input, now: Nanos) -> Option<bool> {
        let began = self.cx.is_watched().then(|| self.cx.clock.now());
        let (conn, flush) = loop {
            match self.transports.receive(kind, &mut self.cx, input, now) {
                Progress::Done => return None,
                Progress::Handled { conn, flush } => break (conn, flush),
                Progress::InHand => {
                    if self.is_interrupted() {
                        self.transports.set_aside(kind, &mut self.cx, now);
                        break (None, true);
                    }
                }
            }
        };
        self.act(now);
        if let Some(began) = began {
            self.took(Transports::piece(kind), began, conn);
        }
        Some(flush)
    }

    /// Handles what has come by a transport, as much as one turn has time for.
    pub(super) fn read_turn(&mut self, kind: TransportKind, now: Nanos) {
        self.transports.begin_turn(kind, &self.cx, now);
        while let Some(flush) = self.receive(kind, Input::Turn, now.max(self.cx.asked)) {
            if flush {
                self.flush_urgent();
            }
            self.give_way();
        }
        self.flush_urgent();
    }

    /// Handles messages of admitted flows, one after the other, the most urgent of
    /// those that are there first.
    #[inline]
    pub(super) fn read_promised(&mut self) {
        // Most turns have none, and are to run through little code.
        if self.transports.waiting(Input::Promised) > 0 {
            self.read_all_promised();
        }
    }

    #[inline(never)]
    fn read_all_promised(&mut self) {
        for _ in 0..PROMISED {
            let Some(kind) = self.transports.first_with(Input::Promised) else {
                break;
            };
            let now = self.cx.clock.now();
            self.receive(kind, Input::Promised, now);
            self.flush_urgent();
            self.read_urgent_mail();
            self.ask();
        }
    }

    /// Reads a little from clients that sent something urgent lately and have something: who sends
    /// very much of it does not keep the others from their turn for longer than they do.
    fn read_urgent(&mut self) {
        let mut now = self.cx.clock.now();
        let until = now + self.cx.slice;
        for _ in 0..self.transports.waiting(Input::Urgent) {
            if now >= until {
                break;
            }
            if let Some(kind) = self.transports.first_with(Input::Urgent) {
                self.receive(kind, Input::Urgent, now);
                self.flush_urgent();
                now = self.cx.clock.now();
            }
        }
    }

    /// Lets clients go first that have sent something urgent since sockets were asked, if that
    /// was long ago. To be called after each piece of other work.
    #[inline]
    pub(super) fn give_way(&mut self) {
        if self.is_interrupted() || self.transports.waiting(Input::Promised) > 0 {
            self.read_urgent_mail();
            self.read_all_promised();
            self.read_urgent();
        }
    }

    /// Whether something urgent may have come since sockets were asked, if that was long ago.
    fn is_interrupted(&mut self) -> bool {
        // Most brokers have no such clients, and do not look at the clock for them.
        if !self.cx.is_watched() {
            return false;
        }
        let now = self.cx.clock.now();
        if now < self.cx.asked + self.cx.slice {
            return false;
        }
        if !self.cx.promises && now >= self.cx.urgent_until {
            self.cx.urgent_until = Nanos(0);
            return false;
        }
        self.ask();
        let mailbox = &self.cx.mailboxes[usize::from(self.cx.index)];
        let is_urgent = self.transports.waiting(Input::Promised) > 0
            || self.transports.waiting(Input::Urgent) > 0
            || mailbox.has_urgent();
        if !is_urgent {
            self.rest();
        }
        is_urgent
    }

    /// Asks sockets without waiting.
    fn ask(&mut self) {
        let Some(mut events) = self.state.asked_events.take() else {
            return;
        };
        // What fails here fails where the turn waits, which deals with it.
        if self.poll.poll(&mut events, Some(Duration::ZERO)).is_ok() {
            let now = self.cx.clock.now();
            (self.cx.asked_before, self.cx.asked) = (self.cx.asked, now);
            for event in &events {
                let is_noted = self.transports.note(&mut self.cx, event, now);
                self.state.again |= !is_noted;
            }
            self.act(now);
        }
        self.state.asked_events = Some(events);
    }
}
