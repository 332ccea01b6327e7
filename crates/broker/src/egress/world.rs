//! Connections without sockets, for the tests of the egress: the messages pushed to each, and the
//! bytes written of these, even in parts.

use std::io::IoSlice;
use std::sync::Arc;

use punctual_codec::QoS;

use super::shared::Shared;
use super::{
    Attempt, Class, Dropped, Egress, Encoding, Entry, LaneLimits, Pool, Rank, Scope, Shares, Stamp,
};
use crate::base::delivery::Delivery;
use crate::message::{Form, Parts, Traits};
use crate::stats::Stats;
use crate::{Message, Nanos};

/// Connections, and the bytes written to each.
pub(super) struct World {
    pub(super) egresses: Vec<Egress>,
    pub(super) written: Vec<Vec<u8>>,
    pub(super) limits: LaneLimits,
    pub(super) shares: Shares,
    pub(super) shared: Shared,
    pub(super) stats: Stats,
    pool: Pool,
}

const ENCODING: Encoding = Encoding {
    v5: true,
    max_packet: 6000,
};

impl World {
    pub(super) fn new(receivers: u32, limits: LaneLimits) -> Self {
        Self {
            egresses: (0..receivers).map(|_| Egress::default()).collect(),
            written: vec![Vec::new(); receivers as usize],
            limits,
            shares: Shares::default(),
            shared: Shared::default(),
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }

    pub(super) fn push(&mut self, to: u32, message: &Arc<Message>, packet_id: u16, now: Nanos) {
        let delivery = Delivery {
            message: message.clone(),
            subscription_ids: Some(Arc::from([to + 1])),
            qos: message.qos,
            retain: false,
            share: 0,
            number: None,
            entry: 0,
        };
        let entry = Entry {
            delivery,
            packet_id,
            since: now,
            attempt: Attempt::First,
        };
        let seat = &mut self.shared.seat(to);
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        self.egresses[to as usize].push(entry, &self.limits, seat, pool, stats);
    }

    /// Appends a message with `len` bytes of payload, all `fill`, to lane 2 or 3.
    pub(super) fn append(&mut self, to: u32, class: Class, len: usize, fill: u8) {
        let payload = vec![fill; len];
        let parts = Parts {
            topic: b"plain",
            properties: &[],
            expiry: None,
            payload: &payload,
            shared: None,
        };
        let form = Form {
            v5: true,
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            packet_id: 0,
            subscription_ids: &[],
            number: None,
            alias: None,
        };
        let egress = &mut self.egresses[to as usize];
        let out = match class {
            Class::Bulk => egress.bulk(&mut self.pool),
            _ => egress.plain(),
        };
        parts.put(&form, u32::MAX, out, &mut self.pool);
    }

    pub(super) fn control(&mut self, to: u32, packet: &[u8]) {
        let egress = &mut self.egresses[to as usize];
        egress.control(&mut self.pool, |out| out.extend_from_slice(packet));
    }

    /// Writes at most `n` bytes; returns how many.
    pub(super) fn write(&mut self, of: u32, n: usize, scope: Scope, now: Nanos) -> usize {
        let mut offered: Vec<u8> = Vec::new();
        let taken = self.offer(of, scope, now, |slices| {
            offered.extend(slices.iter().flat_map(|slice| slice.iter()));
            n.min(offered.len())
        });
        self.written[of as usize].extend(&offered[..taken]);
        taken
    }

    /// Offers the next output, of which `take` accepts a part or all; returns the number of
    /// accepted bytes.
    pub(super) fn offer(
        &mut self,
        of: u32,
        scope: Scope,
        now: Nanos,
        take: impl FnOnce(&[IoSlice<'_>]) -> usize,
    ) -> usize {
        let shares = self.shares;
        let egress = &mut self.egresses[of as usize];
        let mut dropped: Vec<Dropped> = Vec::new();
        let seat = &mut self.shared.seat(of);
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        egress.plan(
            scope,
            ENCODING,
            &shares,
            seat,
            pool,
            stats,
            &mut dropped,
            now,
        );
        let mut slices = [IoSlice::new(&[]); 64];
        let filled = egress.slices(scope, &mut slices);
        let taken = take(&slices[..filled]);
        egress.advance(taken, &shares, pool, stats, now);
        taken
    }

    pub(super) fn leave(&mut self, of: u32, now: Nanos) {
        let mut egress = std::mem::take(&mut self.egresses[of as usize]);
        let seat = &mut self.shared.seat(of);
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        let tail = egress.take_all(ENCODING, &self.shares, seat, pool, stats, now);
        self.written[of as usize].extend(tail);
    }

    /// As [`Self::leave`], of a receiver that is gone.
    pub(super) fn lose(&mut self, of: u32, now: Nanos) {
        let seat = &mut self.shared.seat(of);
        self.egresses[of as usize].drop_urgent(seat, &mut self.pool, &mut self.stats);
        self.leave(of, now);
    }
}

/// An urgent message of that rank, with `len` bytes of payload, all `fill`.
pub(super) fn message(rank: Rank, qos: QoS, len: usize, fill: u8, deadline: Nanos) -> Arc<Message> {
    let payload = vec![fill; len];
    let parts = Parts {
        topic: b"urgent",
        properties: &[],
        expiry: None,
        payload: &payload,
        shared: None,
    };
    let stamp = Stamp {
        rank,
        deadline,
        drop_late: true,
    };
    let traits = Traits {
        qos,
        retain: false,
        expires: Nanos::MAX,
        publisher: 1,
        stamp,
        watch: None,
        stored: 0,
        name: 0,
    };
    Message::from_parts(&parts, traits)
}
