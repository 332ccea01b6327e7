//! How long pieces of work take, and the broker's own work, which it does in slices.

use punctual_broker::{Budget, ConnId, Nanos};

use super::{TURN_TIME, Worker};
use crate::overrun::Piece;

impl Worker {
    /// Does what is due and what the broker does in slices, as much as one turn has time for.
    #[inline]
    pub(super) fn work(&mut self) {
        // Most turns have nothing.
        if self.cx.shard.has_work(self.cx.asked) {
            self.work_in_slices();
        }
    }

    #[inline(never)]
    fn work_in_slices(&mut self) {
        let begun = self.cx.clock.now();
        let mut now = begun;
        loop {
            let mut budget = Budget::new(self.state.pace.units(self.cx.slice));
            let Some(work) = self.cx.shard.work(now, &mut budget) else {
                break;
            };
            let then = self.took(Piece::Work(work), now, None);
            self.state.pace.learn(budget.spent(), then - now);
            let overruns = &self.cx.counters.overruns;
            overruns.note_units(Piece::Work(work), budget.spent());
            self.act(then);
            self.flush_urgent();
            self.give_way();
            now = self.cx.clock.now();
            if now >= begun + TURN_TIME {
                break;
            }
        }
    }

    /// A piece of work that began at a time is done, for that connection if for one. Returns the
    /// time.
    pub(super) fn took(&mut self, piece: Piece, began: Nanos, conn: Option<ConnId>) -> Nanos {
        let cx = &mut self.cx;
        let now = cx.clock.now();
        let limit = match cx.is_watched() {
            true => cx.slice + cx.slice,
            false => TURN_TIME,
        };
        let is_over = cx.counters.overruns.note(piece, now - began, limit);
        if is_over && cx.is_watched() && self.state.reports.is_due(piece, now) {
            cx.shard.overran(piece.name(), now - began, conn, now);
        }
        now
    }
}
