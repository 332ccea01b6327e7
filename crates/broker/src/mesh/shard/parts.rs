//! Session transfers: sessions are frozen, and sent in parts.

use std::sync::Arc;

use punctual_codec::QoS;
use punctual_mesh::transfer::{Event as TransferEvent, HomeId, MAX_PART, Mark, Record, TransferId};

use crate::Nanos;
use crate::base::name::MessageName;
use crate::hub::Hub;
use crate::journal::Journal;
use crate::mesh::custody::{Arriving, Discarded, Frozen, Snapshot, Then};
use crate::mesh::journal::moved::{Round, put_delivery, put_inflight, put_session, put_state};
use crate::session::{Session, Step};

impl Hub {
    /// Freezes a session: it sends nothing to its client until it has moved or is thawed.
    pub(crate) fn freeze(&mut self, client: &Arc<str>, freeze: punctual_mesh::transfer::Freeze) {
        let directory = self.directory.clone();
        let (Some(slot), Some(federation)) = (self.sessions.named(client), directory.federation())
        else {
            return;
        };
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.sweep_at = Nanos::MAX;
        let history = session.history.as_ref();
        let mut known = history.map(|history| history.known()).unwrap_or_default();
        let best = session.subscriptions.iter().map(|it| it.options.qos).max();
        if best > Some(QoS::AtMostOnce) {
            // Messages that passed here while the session was here may still arrive at its next
            // broker.
            let mark = session.began().map_or(0, |began| began.passed);
            let (passed, since) = federation.passed(mark);
            let passed: Vec<u64> = passed.into_iter().map(MessageName::key).collect();
            if best == Some(QoS::ExactlyOnce) {
                let since = passed.len().saturating_sub(since);
                known.passed.extend(&passed[since..]);
            }
            known.given.extend(directory.names_since(session.began()));
        }
        // The fence: messages that other shards have sent until now arrive before the snapshot is
        // made.
        let frozen = Frozen {
            freeze,
            known,
            fence: self.outboxes.fence(self.index),
            snapshot: None,
            next: 0,
            bytes: Vec::new(),
            cut: 0,
        };
        if let Some(custody) = &mut self.links.custody {
            custody.frozen.insert(client.clone(), frozen);
        }
    }

    /// Takes the snapshot of a frozen session, once; false while its fence has not passed.
    fn take_snapshot(&mut self, client: &Arc<str>) -> bool {
        let directory = self.directory.clone();
        let slot = self.sessions.named(client);
        let session = slot.and_then(|slot| self.sessions.get_mut(slot));
        let (Some(session), Some(custody)) = (session, &mut self.links.custody) else {
            return false;
        };
        let Some(frozen) = custody.frozen.get_mut(client) else {
            return false;
        };
        if frozen.snapshot.is_some() {
            return true;
        }
        if !self.outboxes.fences.is_passed(frozen.fence) {
            return false;
        }
        let in_flight = session.window.deliveries_mut();
        in_flight.for_each(|it| directory.name_delivery(it));
        let unsent = std::mem::take(&mut session.queue);
        session.share_queue_len();
        put_session(&mut frozen.bytes, session);
        put_state(&mut frozen.bytes, session, &frozen.known);
        frozen.snapshot = Some(Snapshot {
            sent: Vec::new(),
            load: unsent.load(),
            unsent,
        });
        true
    }

    /// Ends the freeze of a session: its queue has the messages of the snapshot, and later ones
    /// behind them.
    pub(crate) fn thaw(&mut self, client: &Arc<str>, now: Nanos) {
        let custody = self.links.custody.as_mut();
        let frozen = custody.and_then(|it| it.frozen.remove(client));
        let slot = self.sessions.named(client);
        let session = slot.and_then(|slot| self.sessions.get_mut(slot));
        let (Some(frozen), Some(slot), Some(session)) = (frozen, slot, session) else {
            return;
        };
        let snapshot = frozen.snapshot.unwrap_or_default();
        let mut queue = snapshot.unsent;
        queue.put_before(snapshot.sent);
        queue.append(std::mem::take(&mut session.queue));
        session.queue = queue;
        session.share_queue_len();
        let epoch = session.epoch;
        if session.conn.is_none() && session.sweep_by(now) {
            let timer = crate::timers::Timer::Sweep { slot, epoch };
            self.timers.arm(session.sweep_at, timer);
        }
    }

    /// Drops the snapshot of a frozen session, which another broker has received.
    pub(crate) fn forget_snapshot(&mut self, client: &Arc<str>, slot: u32) {
        let custody = self.links.custody.as_mut();
        let frozen = custody.and_then(|it| it.frozen.remove(client));
        let snapshot = frozen.and_then(|it| it.snapshot);
        let (Some(snapshot), Some(session)) = (snapshot, self.sessions.get_mut(slot)) else {
            return;
        };
        // In one turn, and so in one commit: after a restart all of them are gone, or none.
        let all = snapshot.sent.iter().map(|(_, delivery)| delivery);
        for delivery in all.chain(snapshot.unsent.iter()) {
            Journal::passed_on(&mut self.journal, session, delivery.entry);
        }
        self.discard_snapshot(snapshot);
    }

    /// Encodes the next part of a frozen session, of at most [`MAX_PART`] bytes.
    pub(crate) fn make_part(&mut self, client: &Arc<str>, id: TransferId, number: u32, now: Nanos) {
        if !self.take_snapshot(client) {
            let custody = self.links.custody.as_mut();
            let frozen = custody.and_then(|it| Some((it.frozen.get(client)?.fence, it)));
            if let Some((fence, custody)) = frozen {
                let then = Then::MakePart(client.clone(), id, number);
                custody.fenced.push_back((fence, then));
            }
            return;
        }
        let (offset, directory) = (self.offset(now), self.directory.clone());
        let slot = self.sessions.named(client);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let (Some(session), Some(custody)) = (session, &mut self.links.custody) else {
            return;
        };
        let frozen = custody.frozen.get_mut(client);
        let Some(frozen) = frozen.filter(|it| it.freeze == id.freeze) else {
            return;
        };
        let mut is_all = false;
        if frozen.bytes.len() - frozen.cut <= MAX_PART {
            frozen.bytes.drain(..frozen.cut);
            frozen.cut = 0;
        }
        while frozen.bytes.len() - frozen.cut <= MAX_PART && !is_all {
            if let Some(in_flight) = session.window.at(frozen.next) {
                if in_flight.step != Step::Done {
                    put_inflight(&mut frozen.bytes, in_flight, offset);
                }
                frozen.next += 1;
            } else if let Some(snapshot) = &mut frozen.snapshot
                && let Some((since, mut delivery)) = snapshot.unsent.pop()
            {
                directory.name_delivery(&mut delivery);
                put_delivery(&mut frozen.bytes, &delivery, offset);
                snapshot.sent.push((since, delivery));
            } else {
                is_all = true;
            }
        }
        let part = frozen.bytes.len().min(frozen.cut + MAX_PART);
        let bytes = frozen.bytes[frozen.cut..part].into();
        frozen.cut = part;
        let made = TransferEvent::PartMade {
            last: is_all && part == frozen.bytes.len(),
            id,
            number,
            bytes,
        };
        custody.events.push_back((client.clone(), made));
    }

    pub(crate) fn keep_part(
        &mut self,
        client: &Arc<str>,
        id: TransferId,
        number: u32,
        bytes: &[u8],
        now: Nanos,
    ) {
        let custody = self.links.custody.as_mut();
        let known = custody.and_then(|it| it.arriving.get(client));
        if known.is_none_or(|it| it.id != id || number == 0) {
            self.drop_parts(client);
        }
        let custody = self.links.custody.as_mut();
        let known = custody.and_then(|it| it.arriving.remove(client));
        let mut arriving = known.unwrap_or_else(|| Arriving {
            id,
            round: Some(Box::new(self.begin_round(client, now))),
        });
        let has_room = self.store_trouble().is_none();
        if let Some(round) = &mut arriving.round
            && (!has_room || self.read_part(round, bytes, now).is_none())
        {
            self.discard_round(arriving.round.take());
        }
        if let Some(custody) = &mut self.links.custody {
            custody.arriving.insert(client.clone(), arriving);
        }
    }

    /// Discards the received parts of a session.
    pub(crate) fn drop_parts(&mut self, client: &Arc<str>) {
        let custody = self.links.custody.as_mut();
        let arriving = custody.and_then(|it| it.arriving.remove(client));
        self.discard_round(arriving.and_then(|it| it.round));
    }

    fn discard_round(&mut self, round: Option<Box<Round>>) {
        if let Some(slot) = round.and_then(|round| round.slot) {
            self.discard_copy(slot);
        }
    }

    /// Ends a copy. Its messages are still at the broker that sent them, or in the session that has
    /// absorbed the copy.
    pub(crate) fn discard_copy(&mut self, slot: u32) {
        if let Some(session) = self.end_placed(slot) {
            self.discard(Discarded {
                sent: Vec::new(),
                queue: session.queue,
                window: session.window,
            });
        }
    }

    /// Takes a copy or a stub out of the slab and the store; returns it.
    pub(crate) fn end_placed(&mut self, slot: u32) -> Option<Session> {
        self.store_session_end(slot);
        let session = self.sessions.remove(slot)?;
        session.handle.end();
        let mut load = session.queue.load();
        if let Some(custody) = &mut self.links.custody {
            custody.here_since.remove(&slot);
            custody.beginning.remove(&slot);
            if let Some((_, delivery)) = custody.next.remove(&slot) {
                load.add(&delivery.message);
            }
        }
        self.forget_queued(&load);
        self.stats.inflight_messages -= u64::from(session.window.open());
        Some(session)
    }

    /// Makes a copy of the received parts, all of which are here.
    pub(crate) fn prepare_copy(
        &mut self,
        client: &Arc<str>,
        id: &TransferId,
        from: HomeId,
        mark: Mark,
        now: Nanos,
    ) {
        let custody = self.links.custody.as_mut();
        let arriving = custody.and_then(|it| it.arriving.get(client));
        if arriving.is_none_or(|it| it.id != *id) || self.store_trouble().is_some() {
            self.drop_parts(client);
        }
        let custody = self.links.custody.as_mut();
        let arriving = custody.and_then(|it| it.arriving.remove(client));
        let mut round = arriving.and_then(|it| it.round);
        let slot = round.as_mut().and_then(|round| self.end_parts(round, now));
        match slot {
            Some(slot) => {
                let copy = Record::Copy {
                    id: id.clone(),
                    from,
                    mark,
                };
                self.set_record(slot, copy);
                if let Some(custody) = &mut self.links.custody {
                    let copies = custody.copies.entry(client.clone()).or_default();
                    copies.push((id.clone(), slot));
                }
            }
            None => {
                self.discard_round(round);
                if let Some(custody) = &mut self.links.custody {
                    let failed = TransferEvent::CopyFailed(id.clone());
                    custody.events.push_back((client.clone(), failed));
                }
            }
        }
    }
}
