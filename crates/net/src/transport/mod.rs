//! The verbs that every transport has, and when a shard's thread calls them.
//!
//! A transport carries the packets of clients to the broker of a shard
//! ([`Shard`](punctual_broker::Shard)), and what the broker has for them to the network. There are
//! three: [`tcp`](crate::tcp), with all that lies over it, [`udp`](crate::udp) and
//! [`quic`](crate::quic). Every shard's thread has one of each, and what is particular to one is in
//! its directory. A connection of the broker belongs to one transport from [`Context::open`] until
//! [`Transport::close`] or [`Transport::hand_over`]; [`Connections`] says to which one.
//!
//! # A turn
//!
//! 1. The thread waits for its sockets, and for the time that [`Transport::next_turn`] says. Every
//!    event of a socket goes to [`Transport::note`].
//! 2. Mail of other threads: [`Transport::mail`].
//! 3. Connections that send messages of admitted flows: [`Transport::receive`] with
//!    [`Input::Promised`].
//! 4. For each transport [`Transport::begin_turn`], and [`Transport::receive`] with [`Input::Turn`]
//!    until it is [`Progress::Done`]: everything else that has come, and timers.
//! 5. For each connection for which the broker has something, [`Transport::send`]; then
//!    [`Transport::flush`] for each transport, and [`Transport::end_turn`].
//!
//! Between two calls the thread may ask its sockets again and call `note`, `receive` with
//! [`Input::Promised`] and [`Input::Urgent`], `send` and `flush` with [`Scope::Urgent`], and whatever
//! the broker's outputs ask for. So a transport has to be consistent after each call.
//!
//! # Rules
//!
//! - A call handles one piece: at most what the analysis of deadlines assumes that the thread is away
//!   for (100 µs), or one packet if that takes longer. None blocks.
//! - A transport calls the broker ([`Context::shard`]) and never the thread. What the broker wants
//!   done (closing, resuming, handing over) comes back as a verb: the thread carries out the broker's
//!   outputs after every call of `receive` and `mail`, after a round of `note`, and after a round of
//!   `send`. So one call opens at most one connection; the next could get the slot of one that the
//!   broker has ended and that the transport still has.
//! - A connection that is lost is reported to the broker ([`Context::lose`]) and kept until `close`.
//! - `close`, `hand_over`, `resume` and `send` may name a connection that the transport has no more:
//!   then they do nothing.
//! - Every buffer has a bound. What was received and not consumed counts in [`Context::unread`].
//! - Where a message of a connection that is known costs no allocation, it stays so: `tests/steady.rs`.
//!
//! # A further transport
//!
//! It implements [`Transport`], has a variant of [`TransportKind`] and one of
//! [`TransportMail`](crate::mailbox::TransportMail), a field in `Transports` (`worker/transports.rs`),
//! which passes every verb on, a [`Piece`] by which its work is counted, and its sockets are opened in
//! `server.rs`.

mod connections;
mod context;

use mio::Token;
use mio::event::Event;
use punctual_broker::{ConnId, ConnMeta, Nanos, Scope};

pub(crate) use connections::Connections;
pub(crate) use context::{Context, TOO_MUCH_UNREAD};

use crate::overrun::Piece;

/// The transports, in the order in which they have their turns: datagrams, of which the kernel keeps
/// few, go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransportKind {
    Udp,
    Quic,
    Tcp,
}

impl TransportKind {
    pub(crate) const ALL: [Self; 3] = [Self::Udp, Self::Quic, Self::Tcp];

    /// The bits of a token above this one say whose it is.
    const SHIFT: u32 = 41;

    /// Token of a socket of this transport, which has numbers below 2^41 for its sockets.
    pub(crate) const fn token(self, number: usize) -> Token {
        Token((self as usize) << Self::SHIFT | number)
    }

    /// The transport and its number of a token; the inverse of [`Self::token`]. `None` for tokens of
    /// no transport.
    pub(crate) fn of(token: Token) -> Option<(Self, usize)> {
        let kind = Self::ALL.get(token.0 >> Self::SHIFT)?;
        Some((*kind, token.0 & ((1 << Self::SHIFT) - 1)))
    }
}

/// Which input is to be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Of connections that send messages of admitted flows, the most urgent first.
    Promised,
    /// Of connections that sent something urgent lately. Little at a time: this is between other work.
    Urgent,
    /// All, each connection at most once in a turn.
    Turn,
}

/// What a call of [`Transport::receive`] has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing, or the turn of this transport is over.
    Done,
    /// A piece was handled, and there is more of the same connection in hand. The thread either calls
    /// `receive` again, or [`Transport::set_aside`], before any other `receive`.
    InHand,
    /// A piece was handled.
    Handled {
        /// The connection, if it was of one; for the report if it took too long.
        conn: Option<ConnId>,
        /// What has become urgent by it is to be written before the next piece. Else at the end of the
        /// transport's turn: pieces are small, and what they cause shares system calls.
        flush: bool,
    },
}

/// What carries connections of a shard. See the module for when which verb is called.
pub(crate) trait Transport {
    /// What its parts on different threads say to each other.
    type Mail;

    /// How a call of [`Self::receive`] is counted.
    const PIECE: Piece;

    /// Epoll has something about the socket with that number, edge-triggered. Notes it, so that the
    /// next `receive`, `send` or `flush` uses it, and does not read. A connection of which nothing can
    /// be read may be reported as lost.
    fn note(&mut self, cx: &mut Context, number: usize, event: &Event, now: Nanos);

    /// When it needs a turn without an event of a socket; `now` if at once, as there is input or output
    /// that a turn has not handled. `None` if never.
    fn next_turn(&mut self, now: Nanos) -> Option<Nanos>;

    /// How many connections have such input; 0 where input is not chosen by urgency. Called often.
    #[inline]
    fn waiting(&self, _input: Input) -> usize {
        0
    }

    /// A turn begins: `receive` with [`Input::Turn`] begins with the first connection.
    fn begin_turn(&mut self, cx: &Context, now: Nanos);

    /// Handles a piece of input: gives the broker packets of one connection, opens one, or does one
    /// step of a handshake. Without input of that kind it is [`Progress::Done`], at once. A turn ends
    /// after a bounded number of pieces even while more comes.
    fn receive(&mut self, cx: &mut Context, input: Input, now: Nanos) -> Progress;

    /// Puts back what is in hand, after [`Progress::InHand`]: something more urgent has come. The
    /// connection has its next turn with the rest.
    fn set_aside(&mut self, _cx: &mut Context, _now: Nanos) {}

    /// Takes mail, as far as a piece goes; the rest is handed in again, before any other mail.
    fn mail(&mut self, cx: &mut Context, mail: Self::Mail, now: Nanos) -> Option<Self::Mail>;

    /// How a call of [`Self::mail`] with that mail is counted.
    fn mail_piece(_mail: &Self::Mail) -> Piece {
        Piece::Mail
    }

    /// The broker reads again from a connection that it had paused ([`Flow::Pause`]).
    ///
    /// [`Flow::Pause`]: punctual_broker::Flow::Pause
    fn resume(&mut self, cx: &mut Context, conn: ConnId, now: Nanos);

    /// The session of a connection lives on another shard: sends the connection there, with all that
    /// was received and not consumed. The broker here has forgotten it.
    fn hand_over(
        &mut self,
        cx: &mut Context,
        conn: ConnId,
        shard: u16,
        meta: Box<ConnMeta>,
        now: Nanos,
    );

    /// The broker has forgotten a connection. Sends `tail`, its last bytes, without waiting for them to
    /// leave, and ends it ([`Counters::closed`](crate::Counters)); within
    /// [`LINGER`](crate::tcp::LINGER) where the network does not take them.
    fn close(&mut self, cx: &mut Context, conn: ConnId, tail: Vec<u8>, now: Nanos);

    /// The broker has something for a connection: writes it as far as the socket takes it, or has
    /// `flush` do so. What it does not finish in its piece it marks ([`Connections::mark`]) and does in
    /// the next turn; what the socket does not take, when there is room again.
    fn send(&mut self, cx: &mut Context, conn: ConnId, scope: Scope, now: Nanos);

    /// Sends what `send` has left to it, the most urgent first.
    fn flush(&mut self, _cx: &mut Context, _scope: Scope, _now: Nanos) {}

    /// The output of a turn was written.
    fn end_turn(&mut self, _cx: &mut Context, _now: Nanos) {}

    /// The server shuts down: connections end once their last bytes have left.
    fn stop(&mut self) {}

    /// Whether no connection has anything to be sent any more. The thread ends then, or when its
    /// time is over.
    fn is_idle(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_whose_they_are() {
        for kind in TransportKind::ALL {
            for number in [0, 1, (1 << TransportKind::SHIFT) - 1] {
                assert_eq!(TransportKind::of(kind.token(number)), Some((kind, number)));
            }
        }
        assert_eq!(TransportKind::of(Token(usize::MAX)), None);
    }
}
