//! Output of QUIC: what the broker, the network and the sockets let each connection send.

use std::cmp::Reverse;

use punctual_broker::{Class, Nanos, Rank, Scope};
use quinn_proto::EndpointEvent;

use super::mail::Key;
use super::output::QUEUE;
use super::{Quic, class_number};
use crate::transport::Context;

/// Datagrams made for one connection before others have their turn.
const TURN: usize = 4 * QUEUE;

impl Quic {
    /// Sends for the connections that have something to send, those with the
    /// most urgent first.
    pub(super) fn flush_links(&mut self, cx: &mut Context, scope: Scope, now: Nanos) {
        if !self.ready.is_empty() {
            let mut ranked: Vec<(Option<Rank>, Key)> = Vec::with_capacity(self.ready.len());
            let mut others = Vec::new();
            for key in std::mem::take(&mut self.ready) {
                let conn = self.links.get(&key).and_then(|link| link.conn);
                let rank = conn.and_then(|conn| cx.shard.rank(conn));
                let urgent = rank.is_some_and(|rank| rank.class < Class::Normal);
                if scope == Scope::Urgent && !urgent {
                    others.push(key);
                } else {
                    ranked.push((rank, key));
                }
            }
            self.ready = others;
            // None is less than any rank: acknowledgements and last words wait.
            ranked.sort_by_key(|(rank, _)| (rank.is_none(), *rank));
            for (_, key) in ranked {
                self.send_link(cx, key, scope, now);
            }
        }
        let quic = &mut *self;
        for output in &mut quic.outputs {
            output.send(&mut quic.sent, &cx.registry, &quic.counters);
        }
    }

    /// Has one connection send what the broker, the network and the socket let it.
    fn send_link(&mut self, cx: &mut Context, key: Key, scope: Scope, now: Nanos) {
        let instant = cx.clock.instant(now);
        let quic = &mut *self;
        let Some(link) = quic.links.get_mut(&key) else {
            return;
        };
        link.ready = false;
        let output = &mut quic.outputs[key.listener];
        if let Some(conn) = link.conn {
            link.class = cx.shard.class(conn);
        }
        let class = class_number(link.class);
        let mut left = TURN;
        let mut waits = false;
        let mut again = false;
        loop {
            // What is ready to leave, leaves first: then it is known how much
            // more may be handed over.
            loop {
                if !output.has_room(class) {
                    output.send(&mut quic.sent, &cx.registry, &quic.counters);
                    if !output.has_room(class) {
                        waits = true;
                        break;
                    }
                }
                if left == 0 {
                    again = true;
                    break;
                }
                let mut data = output.buffer();
                match link.transmit(instant, &mut data) {
                    Some(transmit) => {
                        output.push(class, transmit, data);
                        left -= 1;
                    }
                    None => {
                        output.recycle(data);
                        break;
                    }
                }
            }
            if waits || again || !link.has_room() {
                break;
            }
            let handed = if link.closing.is_some() {
                link.close_on(instant)
            } else if let Some(conn) = link.conn {
                let mut slices = [std::io::IoSlice::new(&[]); 32];
                let filled = cx.shard.pending(conn, scope, now, &mut slices);
                let n = link.hand_over(&slices[..filled], &quic.counters);
                if n > 0 {
                    cx.shard.sent(conn, n, now);
                }
                n > 0
            } else {
                false
            };
            if !handed {
                // A last look: closing makes packets without bytes.
                if link.closing.is_some() {
                    while output.has_room(class) {
                        let mut data = output.buffer();
                        let Some(transmit) = link.transmit(instant, &mut data) else {
                            output.recycle(data);
                            break;
                        };
                        output.push(class, transmit, data);
                    }
                }
                break;
            }
        }
        if again {
            link.ready = true;
            quic.ready.push(key);
        } else if waits {
            output.waiting.push(key);
        }
        let gone = quic.stopping && link.conn.is_none() && link.connection.is_closed() && !waits;
        let due = link.connection.poll_timeout();
        let mut due = due.map_or(Nanos::MAX, |due| cx.clock.nanos(due));
        if let Some(closing) = &link.closing
            && !link.connection.is_closed()
        {
            due = due.min(closing.until);
        }
        // A timer that is too early is set anew when it fires.
        if due < link.armed {
            link.armed = due;
            quic.timers.push(Reverse((due, key)));
        }
        if !self.settle(cx, key) && gone {
            self.links.remove(&key);
            self.send_to_endpoint(cx, key, EndpointEvent::drained());
        }
    }
}
