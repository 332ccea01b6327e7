//! Packets that wait for an answer from the peer, and are repeated until it comes.
//!
//! Each exchange has one entry: PUBLISH with QoS 1 and 2, then PUBREL; SUBSCRIBE, UNSUBSCRIBE,
//! PINGREQ and AUTH from a client. Its next transmission is one retransmission timeout away,
//! doubled each time, and never later than the end of the message's lifetime. When that ends, the
//! MQTT layer above gets an answer made here, and a QoS 2 exchange is still released towards the
//! peer, so that its identifier does not stay in use there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use punctual_codec::{Ack, Frame, PacketType, QoS, ReasonCode, Version};

use crate::packet::{packet_id, publish_qos, put_repeated, reason};
use crate::rtt::Rtt;

/// Transmissions of one packet after which a peer that has said nothing at all
/// meanwhile counts as gone.
const PATIENCE: u32 = 10;
/// Packets repeated in one go; the others follow a round trip later, so that a
/// lost burst does not come back as a burst.
const BURST: usize = 32;
/// Pause between two goes before the round trip is known.
const BURST_PAUSE: Duration = Duration::from_millis(5);

/// QoS 2 exchanges that are remembered after their end, so that a copy of
/// their PUBREC is not taken for that of an earlier connection.
const QOS_2: usize = 256;

/// What an exchange is known by. Packet identifiers are their own keys.
type Key = u32;
const PING: Key = 1 << 16;
const AUTH: Key = 2 << 16;

#[derive(Debug)]
struct Request {
    packet: Box<[u8]>,
    kind: PacketType,
    qos: QoS,
    class: u8,
    transmissions: u32,
    first_sent: Duration,
    last_sent: Duration,
    due: Duration,
    /// When repeating it makes no sense any more.
    ends: Duration,
    /// Whether the answer is for this layer and not for the packets above.
    own: bool,
}

/// Exchanges that this side has begun.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    requests: BTreeMap<Key, Request>,
    due: BTreeSet<(Duration, Key)>,
    /// Identifiers of the last QoS 2 exchanges begun on this connection.
    exactly_once: VecDeque<u16>,
    /// No repetitions before.
    pause: Duration,
    pub(crate) rtt: Rtt,
}

/// What a received answer is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was waited for.
    Awaited,
    /// No exchange waits for it: it is a repetition, or late.
    Stray,
}

/// What [`Outbound::repeat`] has found out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RepeatOutcome {
    /// Packets sent again.
    pub(crate) packets: u64,
    /// Messages whose lifetime is over.
    pub(crate) expired: u64,
    /// The peer answers nothing.
    pub(crate) gone: bool,
}

impl Outbound {
    /// Notes a packet that is being sent, if it has to be answered.
    pub(crate) fn sending(
        &mut self,
        frame: &Frame<'_>,
        class: u8,
        lifetime: Option<Duration>,
        now: Duration,
    ) {
        let qos = match frame.kind {
            PacketType::Publish => publish_qos(frame).unwrap_or_default(),
            _ => QoS::AtMostOnce,
        };
        let key = match frame.kind {
            PacketType::PingReq => Some(PING),
            PacketType::Auth => Some(AUTH),
            PacketType::Publish
            | PacketType::PubRel
            | PacketType::Subscribe
            | PacketType::Unsubscribe => packet_id(frame).map(Key::from),
            _ => None,
        };
        if (qos == QoS::ExactlyOnce || frame.kind == PacketType::PubRel)
            && let Some(id) = packet_id(frame)
        {
            self.exactly_once.truncate(QOS_2 - 1);
            self.exactly_once.push_front(id);
        }
        if let Some(key) = key {
            let ends = lifetime.map_or(Duration::MAX, |lifetime| now.saturating_add(lifetime));
            let request = Request {
                packet: frame.bytes.into(),
                kind: frame.kind,
                qos,
                class,
                transmissions: 1,
                first_sent: now,
                last_sent: now,
                due: now.saturating_add(self.rtt.timeout(1)).min(ends),
                ends,
                own: false,
            };
            self.start(key, request);
        }
    }

    /// Begins to wait for the answer to what is being sent.
    fn start(&mut self, key: Key, request: Request) {
        self.remove(key);
        self.due.insert((request.due, key));
        self.requests.insert(key, request);
    }

    fn remove(&mut self, key: Key) -> Option<Request> {
        let request = self.requests.remove(&key)?;
        self.due.remove(&(request.due, key));
        Some(request)
    }

    /// Takes an answer in. PUBREC that is a stray may still have to be
    /// answered by the packets above, with PUBREL.
    pub(crate) fn answer(&mut self, frame: &Frame<'_>, now: Duration) -> Answer {
        let (key, begun_by) = match frame.kind {
            PacketType::PingResp => (Some(PING), PacketType::PingReq),
            PacketType::Auth => (Some(AUTH), PacketType::Auth),
            PacketType::PubAck | PacketType::PubRec => {
                (packet_id(frame).map(Key::from), PacketType::Publish)
            }
            PacketType::PubComp => (packet_id(frame).map(Key::from), PacketType::PubRel),
            PacketType::SubAck => (packet_id(frame).map(Key::from), PacketType::Subscribe),
            PacketType::UnsubAck => (packet_id(frame).map(Key::from), PacketType::Unsubscribe),
            _ => (None, PacketType::Connect),
        };
        let Some(key) = key else {
            return Answer::Stray;
        };
        let Some(request) = self.requests.get(&key) else {
            // A PUBREC without an exchange may be for a message of an earlier connection: the MQTT
            // layer above decides.
            let foreign = frame.kind == PacketType::PubRec
                && reason(frame) < 0x80
                && !packet_id(frame).is_some_and(|id| self.exactly_once.contains(&id));
            return if foreign {
                Answer::Awaited
            } else {
                Answer::Stray
            };
        };
        let right_qos = match frame.kind {
            PacketType::PubAck => request.qos == QoS::AtLeastOnce,
            PacketType::PubRec => request.qos == QoS::ExactlyOnce,
            _ => true,
        };
        if request.kind != begun_by || !right_qos {
            return Answer::Stray;
        }
        if request.transmissions == 1 {
            self.rtt.sample(now.saturating_sub(request.last_sent));
        }
        match self.remove(key) {
            Some(request) if !request.own => Answer::Awaited,
            _ => Answer::Stray,
        }
    }

    /// An AUTH was answered, be it by CONNACK.
    pub(crate) fn settle_auth(&mut self) {
        self.remove(AUTH);
    }

    /// When [`Self::repeat`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| (*due).max(self.pause))
    }

    /// Gives to `send` what is to be sent again, and appends to `inbox` the
    /// answers that will not come. `heard` is when the peer last said
    /// anything.
    pub(crate) fn repeat(
        &mut self,
        version: Version,
        heard: Duration,
        now: Duration,
        inbox: &mut Vec<u8>,
        mut send: impl FnMut(&[u8], u8),
    ) -> RepeatOutcome {
        let mut repeated = RepeatOutcome::default();
        if now < self.pause {
            return repeated;
        }
        let mut packet = Vec::new();
        while let Some(&(due, key)) = self.due.first()
            && due <= now
        {
            if repeated.packets as usize >= BURST {
                self.pause = now + self.rtt.smoothed().unwrap_or(BURST_PAUSE).max(BURST_PAUSE);
                break;
            }
            let Some(request) = self.requests.get_mut(&key) else {
                self.due.remove(&(due, key));
                continue;
            };
            if request.ends <= now {
                repeated.expired += 1;
                self.give_up(key, version, now, inbox);
                continue;
            }
            if request.transmissions >= PATIENCE && heard < request.first_sent {
                repeated.gone = true;
                break;
            }
            packet.clear();
            put_repeated(&request.packet, &mut packet);
            send(&packet, request.class);
            repeated.packets += 1;
            request.transmissions += 1;
            request.last_sent = now;
            request.due = (now + self.rtt.timeout(request.transmissions)).min(request.ends);
            let due_again = request.due;
            self.due.remove(&(due, key));
            self.due.insert((due_again, key));
        }
        repeated
    }

    /// Ends an exchange that the peer will not, or must not, hear of again.
    fn give_up(&mut self, key: Key, version: Version, now: Duration, inbox: &mut Vec<u8>) {
        let Some(request) = self.remove(key) else {
            return;
        };
        let Ok(id) = u16::try_from(key) else {
            return;
        };
        if request.kind != PacketType::Publish {
            return;
        }
        refuse_publish(request.qos, id, version, inbox);
        // The peer may have taken the message, its answer being what was
        // lost. Where the answer above cannot say that the handshake has
        // ended, PUBREL comes from there.
        if request.qos == QoS::ExactlyOnce && version.is_v5() {
            let [high, low] = id.to_be_bytes();
            let request = Request {
                packet: [0x62, 2, high, low].into(),
                kind: PacketType::PubRel,
                qos: QoS::AtMostOnce,
                class: request.class,
                transmissions: 0,
                first_sent: now,
                last_sent: now,
                due: now,
                ends: Duration::MAX,
                own: true,
            };
            self.start(key, request);
        }
    }
}

/// Appends the answer by which the packets above learn that a message was not,
/// and will not be, sent.
pub(crate) fn refuse_publish(qos: QoS, id: u16, version: Version, inbox: &mut Vec<u8>) {
    let kind = match qos {
        QoS::AtMostOnce => return,
        QoS::AtLeastOnce => PacketType::PubAck,
        QoS::ExactlyOnce => PacketType::PubRec,
    };
    let ack = Ack::new(id, ReasonCode::UnspecifiedError);
    let _ = ack.encode(kind, version, inbox);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{DUP, frames};
    use punctual_codec::{Properties, Publish};

    fn publish(qos: QoS, id: u16) -> Vec<u8> {
        let mut out = Vec::new();
        Publish {
            dup: false,
            qos,
            retain: false,
            topic: "t",
            packet_id: id,
            properties: Properties::EMPTY,
            payload: b"x",
        }
        .encode(Version::V5, &mut out)
        .unwrap();
        out
    }

    fn frame(packet: &[u8]) -> Frame<'_> {
        frames(packet, packet.len()).next().unwrap()
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Sends what is due until `end`; the times and packets.
    fn run(
        outbound: &mut Outbound,
        end: Duration,
        inbox: &mut Vec<u8>,
    ) -> (Vec<(Duration, Vec<u8>)>, RepeatOutcome) {
        let mut sent = Vec::new();
        let mut last = RepeatOutcome::default();
        while let Some(at) = outbound.timeout()
            && at <= end
            && !last.gone
        {
            last = outbound.repeat(Version::V5, Duration::ZERO, at, inbox, |packet, _| {
                sent.push((at, packet.to_vec()));
            });
        }
        (sent, last)
    }

    #[test]
    fn repeats_with_backoff_until_answered() {
        let mut outbound = Outbound::default();
        let packet = publish(QoS::AtLeastOnce, 7);
        outbound.sending(&frame(&packet), 0, None, ms(1000));
        let mut inbox = Vec::new();
        let (sent, _) = run(&mut outbound, ms(2700), &mut inbox);
        let times: Vec<_> = sent.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [ms(1200), ms(1600), ms(2400)]);
        assert!(sent.iter().all(|(_, packet)| packet[0] & DUP != 0));
        assert_eq!(
            outbound.answer(&frame(&[0x50, 2, 0, 7]), ms(2700)),
            Answer::Stray
        );
        assert_eq!(
            outbound.answer(&frame(&[0x40, 2, 0, 8]), ms(2700)),
            Answer::Stray
        );
        assert_eq!(
            outbound.answer(&frame(&[0x40, 2, 0, 7]), ms(2700)),
            Answer::Awaited
        );
        assert_eq!(
            outbound.answer(&frame(&[0x40, 2, 0, 7]), ms(2700)),
            Answer::Stray
        );
        assert_eq!(outbound.timeout(), None);
        assert_eq!(
            outbound.rtt.smoothed(),
            None,
            "Karn: no sample of a repetition"
        );
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_lifetime_ends_it() {
        let mut outbound = Outbound::default();
        for (qos, id) in [(QoS::AtLeastOnce, 7), (QoS::ExactlyOnce, 8)] {
            let packet = publish(qos, id);
            outbound.sending(&frame(&packet), 0, Some(ms(250)), ms(0));
        }
        let mut inbox = Vec::new();
        let (sent, _) = run(&mut outbound, ms(250), &mut inbox);
        let publishes = sent.iter().filter(|(_, p)| p[0] >> 4 == 3).count();
        assert_eq!(publishes, 2, "one repetition each fits");
        let answers: Vec<_> = frames(&inbox, 100)
            .map(|f| (f.kind, packet_id(&f), reason(&f)))
            .collect();
        assert_eq!(
            answers,
            [
                (PacketType::PubAck, Some(7), 0x80),
                (PacketType::PubRec, Some(8), 0x80)
            ]
        );
        // The peer is told to forget identifier 8, and its answer goes nowhere.
        assert_eq!(sent.last().map(|(_, p)| &p[..]), Some(&[0x62, 2, 0, 8][..]));
        assert_eq!(
            outbound.answer(&frame(&[0x70, 2, 0, 8]), ms(260)),
            Answer::Stray
        );
        assert!(outbound.requests.is_empty() && outbound.due.is_empty());
    }

    #[test]
    fn a_peer_that_answers_nothing_is_gone() {
        let mut outbound = Outbound::default();
        let packet = publish(QoS::AtLeastOnce, 7);
        outbound.sending(&frame(&packet), 0, None, ms(1));
        let (sent, last) = run(&mut outbound, Duration::from_secs(3600), &mut Vec::new());
        assert!(last.gone);
        assert_eq!(sent.len() as u32, PATIENCE - 1);
    }

    #[test]
    fn a_lost_burst_comes_back_in_pieces() {
        let mut outbound = Outbound::default();
        for id in 1..=100 {
            let packet = publish(QoS::AtLeastOnce, id);
            outbound.sending(&frame(&packet), 0, None, ms(0));
        }
        let mut at = ms(200);
        let mut pieces = Vec::new();
        for _ in 0..4 {
            let mut sent = 0;
            outbound.repeat(Version::V5, ms(0), at, &mut Vec::new(), |_, _| sent += 1);
            pieces.push(sent);
            let next = outbound.timeout().unwrap();
            assert!(next > at);
            at = next;
        }
        assert_eq!(pieces, [32, 32, 32, 4]);
    }

    #[test]
    fn one_exchange_of_qos_2() {
        let mut outbound = Outbound::default();
        let packet = publish(QoS::ExactlyOnce, 9);
        outbound.sending(&frame(&packet), 0, None, ms(0));
        assert_eq!(
            outbound.answer(&frame(&[0x50, 2, 0, 9]), ms(10)),
            Answer::Awaited
        );
        assert_eq!(outbound.rtt.smoothed(), Some(ms(10)));
        outbound.sending(&frame(&[0x62, 2, 0, 9]), 0, None, ms(10));
        assert_eq!(
            outbound.answer(&frame(&[0x50, 2, 0, 9]), ms(11)),
            Answer::Stray
        );
        assert_eq!(
            outbound.answer(&frame(&[0x70, 2, 0, 9]), ms(20)),
            Answer::Awaited
        );
        assert_eq!(
            outbound.answer(&frame(&[0x50, 2, 0, 9]), ms(21)),
            Answer::Stray
        );
        // PUBREC of a message that an earlier connection sent.
        assert_eq!(
            outbound.answer(&frame(&[0x50, 2, 0, 8]), ms(21)),
            Answer::Awaited
        );
        assert_eq!(
            outbound.answer(&frame(&[0x50, 3, 0, 8, 0x80]), ms(21)),
            Answer::Stray
        );
    }
}
