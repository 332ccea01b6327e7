//! What the broker asks for ([`Output`]).

use std::sync::atomic::Ordering;

use punctual_broker::{AuthAnswer, Nanos, Output};
use punctual_codec::ReasonCode;

use super::Worker;

impl Worker {
    /// Does what the broker asks for.
    #[inline]
    pub(super) fn act(&mut self, now: Nanos) {
        if self.cx.shard.has_outputs() {
            self.act_on_all(now);
        }
    }

    #[inline(never)]
    fn act_on_all(&mut self, now: Nanos) {
        while self.cx.shard.has_outputs() {
            let mut outputs = std::mem::take(&mut self.state.outputs);
            self.cx.shard.take_outputs(&mut outputs);
            for output in outputs.drain(..) {
                self.act_on(output, now);
            }
            self.state.outputs = outputs;
            let connected = self.cx.shard.clients_connected();
            self.connected[usize::from(self.cx.index)].store(connected, Ordering::Relaxed);
        }
    }

    fn act_on(&mut self, output: Output, now: Nanos) {
        let (transports, cx) = (&mut self.transports, &mut self.cx);
        match output {
            Output::Close { conn, tail } => transports.close(cx, conn, tail, now),
            Output::Resume(conn) => transports.resume(cx, conn, now),
            Output::Handover { conn, shard, meta } => {
                transports.hand_over(cx, conn, shard, meta, now);
            }
            Output::Authenticate(request) => {
                let conn = request.conn;
                if !self.logins.ask(cx.index, request) {
                    let answer = AuthAnswer::Deny {
                        reason: ReasonCode::ServerBusy,
                    };
                    cx.shard.authenticated(conn, answer, now);
                }
            }
            Output::Admission(request) => {
                if let Some(desk) = &self.admission {
                    desk.ask(cx.index, *request);
                }
            }
            Output::Event(event) => {
                if self.events.try_send(event).is_err() {
                    cx.counters.events_lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
