//! The transports of a shard: passes every verb on to the one whose connection, socket or mail it is.
//!
//! This is the only place that names them one by one. Which transport has a connection is looked up in
//! [`Connections`](crate::transport::Connections).

use mio::event::Event;
use punctual_broker::{ConnId, ConnMeta, Nanos, Scope};

use crate::mailbox::TransportMail;
use crate::overrun::Piece;
use crate::quic::Quic;
use crate::tcp::Tcp;
use crate::transport::{Context, Input, Progress, Transport, TransportKind};
use crate::udp::Udp;

/// The earlier one of two times, if there is one.
#[inline]
pub(super) fn earliest(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

pub(crate) struct Transports {
    pub(crate) udp: Udp,
    pub(crate) quic: Quic,
    pub(crate) tcp: Tcp,
}

/// Does the same with the transport of that kind.
macro_rules! with {
    ($self:ident, $kind:expr, $it:ident => $call:expr) => {
        match $kind {
            TransportKind::Udp => {
                let $it = &mut $self.udp;
                $call
            }
            TransportKind::Quic => {
                let $it = &mut $self.quic;
                $call
            }
            TransportKind::Tcp => {
                let $it = &mut $self.tcp;
                $call
            }
        }
    };
}

impl Transports {
    /// How a call of [`Self::receive`] is counted.
    pub(super) const fn piece(kind: TransportKind) -> Piece {
        match kind {
            TransportKind::Udp => Udp::PIECE,
            TransportKind::Quic => Quic::PIECE,
            TransportKind::Tcp => Tcp::PIECE,
        }
    }

    /// A socket has something. `false` if the event is of none.
    pub(super) fn note(&mut self, cx: &mut Context, event: &Event, now: Nanos) -> bool {
        let Some((kind, number)) = TransportKind::of(event.token()) else {
            return false;
        };
        with!(self, kind, it => it.note(cx, number, event, now));
        true
    }

    pub(super) fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let datagrams = earliest(self.udp.next_turn(now), self.quic.next_turn(now));
        earliest(self.tcp.next_turn(now), datagrams)
    }

    /// How many connections have such input, over all transports.
    #[inline]
    pub(super) fn waiting(&self, input: Input) -> usize {
        self.udp.waiting(input) + self.quic.waiting(input) + self.tcp.waiting(input)
    }

    /// A transport that has such input.
    #[inline]
    pub(super) fn first_with(&mut self, input: Input) -> Option<TransportKind> {
        TransportKind::ALL
            .into_iter()
            .find(|kind| with!(self, kind, it => it.waiting(input)) > 0)
    }

    pub(super) fn begin_turn(&mut self, kind: TransportKind, cx: &Context, now: Nanos) {
        with!(self, kind, it => it.begin_turn(cx, now));
    }

    pub(super) fn receive(
        &mut self,
        kind: TransportKind,
        cx: &mut Context,
        input: Input,
        now: Nanos,
    ) -> Progress {
        with!(self, kind, it => it.receive(cx, input, now))
    }

    pub(super) fn set_aside(&mut self, kind: TransportKind, cx: &mut Context, now: Nanos) {
        with!(self, kind, it => it.set_aside(cx, now));
    }

    /// Takes mail; the rest of it, and how what was done is counted.
    pub(super) fn mail(
        &mut self,
        cx: &mut Context,
        mail: TransportMail,
        now: Nanos,
    ) -> (Option<TransportMail>, Piece) {
        match mail {
            TransportMail::Tcp(mail) => {
                let piece = Tcp::mail_piece(&mail);
                let rest = self.tcp.mail(cx, mail, now);
                (rest.map(TransportMail::Tcp), piece)
            }
            TransportMail::Udp(mail) => {
                let piece = Udp::mail_piece(&mail);
                let rest = self.udp.mail(cx, mail, now);
                (rest.map(TransportMail::Udp), piece)
            }
            TransportMail::Quic(mail) => {
                let piece = Quic::mail_piece(&mail);
                let rest = self.quic.mail(cx, mail, now);
                (rest.map(TransportMail::Quic), piece)
            }
        }
    }

    pub(super) fn resume(&mut self, cx: &mut Context, conn: ConnId, now: Nanos) {
        if let Some(kind) = cx.connections.kind(conn) {
            with!(self, kind, it => it.resume(cx, conn, now));
        }
    }

    pub(super) fn hand_over(
        &mut self,
        cx: &mut Context,
        conn: ConnId,
        shard: u16,
        meta: Box<ConnMeta>,
        now: Nanos,
    ) {
        if let Some(kind) = cx.connections.remove(conn) {
            with!(self, kind, it => it.hand_over(cx, conn, shard, meta, now));
        }
    }

    pub(super) fn close(&mut self, cx: &mut Context, conn: ConnId, tail: Vec<u8>, now: Nanos) {
        if let Some(kind) = cx.connections.remove(conn) {
            with!(self, kind, it => it.close(cx, conn, tail, now));
        }
    }

    /// Has a connection of that transport written to.
    #[inline]
    pub(super) fn send(
        &mut self,
        kind: TransportKind,
        cx: &mut Context,
        conn: ConnId,
        scope: Scope,
        now: Nanos,
    ) {
        with!(self, kind, it => it.send(cx, conn, scope, now));
    }

    pub(super) fn flush(&mut self, cx: &mut Context, scope: Scope, now: Nanos) {
        for kind in TransportKind::ALL {
            with!(self, kind, it => it.flush(cx, scope, now));
        }
    }

    pub(super) fn end_turn(&mut self, cx: &mut Context, now: Nanos) {
        for kind in TransportKind::ALL {
            with!(self, kind, it => it.end_turn(cx, now));
        }
    }

    pub(super) fn stop(&mut self) {
        for kind in TransportKind::ALL {
            with!(self, kind, it => it.stop());
        }
    }

    pub(super) fn is_idle(&mut self) -> bool {
        let mut kinds = TransportKind::ALL.into_iter();
        kinds.all(|kind| with!(self, kind, it => it.is_idle()))
    }
}
