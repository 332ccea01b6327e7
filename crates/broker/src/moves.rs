//! Sessions that follow their clients from one broker of a mesh to another.
//!
//! Who connects where its session is not, waits for CONNACK while the other brokers are asked
//! for it ([`crate::Federation::seek`]). The broker that has it ends the client's connection
//! there, and sends the session as a *stream*: operations as they are stored, cut into parts,
//! each acknowledged, in *rounds*. The first round is the session as it is; what comes
//! for it meanwhile is kept, and sent in further rounds until every broker knows where
//! the session is now, and all has come that was on its way before; then the subscriptions
//! end here, a last round goes, and with its acknowledgement the session ends. A round is
//! acknowledged when it is committed, and what it had is forgotten here only then. So what was
//! acknowledged to a publisher is at one of both at every moment, whoever is killed and whatever
//! connection breaks; what is at both for a moment is recognised by what it is called ([`Had`]).
//!
//! Where something of QoS 2 goes, it goes when it is committed here: otherwise a crash here
//! would leave its identifier there and no message, or the message there, and its
//! publisher would send it again as a new one.
//!
//! What comes to the new broker by itself, and says in its name that it comes after something that
//! had not come to the old one, waits in the session until a round has brought that ([`Ahead`]), for
//! a part of the time for which messages may be under way: two ways would change the order.
//!
//! Who has got a new session because the other broker was not reached in time gets what waits
//! there when it is, but nothing else of that session: its client was told that it has none. It stays
//! there until the client has sent something, and so is known to have heard that. Until then it has
//! the subscriptions of what was left here of that session, for what is on its way to it.
//!
//! Source: MQTT 5.0, 3.1.2.4 and 4.1, for brokers that are one server.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::Nanos;
use crate::hub::ConnId;
use crate::journal::{HadLog, Kind, Known, Round};
use crate::session::{Delivery, Subscription};

/// Bytes of a part.
pub(crate) const PART: usize = 16 << 10;
/// Parts that are not acknowledged.
pub(crate) const WINDOW: usize = 16;
/// After which what was not answered is said again; twice as long each time.
pub(crate) const PATIENCE: Nanos = Nanos::from_millis(200);
/// The longest of these times.
pub(crate) const MOST_PATIENCE: Nanos = Nanos::from_secs(30);
/// How often a broker is asked that has not begun.
pub(crate) const TRIES: u32 = 8;
/// After which it is seen whether it can be asked for more, if it does not answer.
pub(crate) const ASK_ON: Nanos = Nanos::from_secs(1);
/// After which it is seen where the client of a session is that nobody has asked for.
pub(crate) const ORPHANED: Nanos = Nanos::from_secs(2);
/// After which what came for a session that has left is sent on.
pub(crate) const GATHER: Nanos = Nanos::from_millis(20);
/// Messages that a session has got here and that are recognised when they come from where it
/// was.
const MAX_HAD: usize = 1 << 12;

/// Names of what had passed elsewhere that are remembered.
const MAX_PASSED: usize = 1 << 14;
/// Rows of names that were given elsewhere that are remembered.
const MAX_GIVEN: usize = 64;
/// Messages of a session that wait for those before them, at most.
pub(crate) const MOST_AHEAD: usize = 256;

/// A broker that has something of a client's session, see [`crate::Shard::found`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub broker: String,
    /// When the client connected there last, as [`crate::Federation::clock`]; 0 if that is not
    /// known.
    pub at: u64,
    /// Whether it is the session, and not only what was left of it.
    pub whole: bool,
}

/// How long things may take when sessions move between brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTimes {
    /// A client waits for its session, since it connected or something of it came.
    pub wait: Nanos,
    /// A message is under way in the mesh.
    pub linger: Nanos,
    /// A broker is away until nothing more waits for it.
    pub heal: Nanos,
}

impl MoveTimes {
    /// Without a mesh.
    pub(crate) const NONE: Self = Self {
        wait: Nanos(0),
        linger: Nanos(0),
        heal: Nanos(0),
    };
    /// After which a broker is asked again whose parts do not come any more.
    pub(crate) const SILENCE: Nanos = Nanos::from_secs(1);

    /// How long a message waits for the one before it: few are under way for longer than a part of
    /// the time for which they may be, and where one waits it is under way itself.
    pub(crate) fn patience(self) -> Nanos {
        Nanos(self.linger.0 / 4)
    }
}

/// By which number packet identifiers that a broker of a mesh gives in a session that it has since
/// then are apart from others. A client that was given two sessions, or one that was at two brokers
/// for a while, remembers identifiers of both; they are hardly ever the same ones.
pub(crate) fn apart(broker: &str, since: u64) -> u64 {
    punctual_model::digest(broker.bytes().chain(since.to_le_bytes()))
}

/// What cores write to each other. Numbers are fixed, the highest byte last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Letter<'a> {
    /// Send the session, of a client that connected at that time; with 0 say only when it was
    /// there.
    Take { at: u64, user: Option<&'a str> },
    /// There is none that could be sent.
    Nothing { at: u64 },
    /// The client has connected there later, at that time.
    Newer { at: u64 },
    /// A part of a stream.
    Part {
        /// Later ones of a session have higher numbers.
        stream: u64,
        /// Counts up from 0.
        number: u32,
        /// It is the last of a round.
        round: bool,
        /// It is the last.
        end: bool,
        bytes: &'a [u8],
    },
    /// Parts below this number have come; of the last of a round: are safe.
    Got { stream: u64, next: u32 },
    /// Of that stream nothing is known.
    Lost { stream: u64 },
    /// The session has ended where it went.
    Gone { stream: u64 },
    /// That stream was given up: what came of it is not the session any more.
    Void { stream: u64 },
}

impl<'a> Letter<'a> {
    const TAKE: u8 = 0;
    const NOTHING: u8 = 1;
    const PART: u8 = 2;
    const GOT: u8 = 3;
    const LOST: u8 = 4;
    const GONE: u8 = 5;
    const VOID: u8 = 6;
    const NEWER: u8 = 7;
    const ROUND: u8 = 1;
    const END: u8 = 2;

    pub(crate) fn encode(&self) -> Arc<[u8]> {
        let mut out = Vec::new();
        let mut put = |kind: u8, number: u64| {
            out.push(kind);
            out.extend_from_slice(&number.to_le_bytes());
        };
        match *self {
            Self::Take { at, user } => {
                put(Self::TAKE, at);
                out.push(u8::from(user.is_some()));
                out.extend_from_slice(user.unwrap_or_default().as_bytes());
            }
            Self::Nothing { at } => put(Self::NOTHING, at),
            Self::Newer { at } => put(Self::NEWER, at),
            Self::Part {
                stream,
                number,
                round,
                end,
                bytes,
            } => {
                put(Self::PART, stream);
                out.extend_from_slice(&number.to_le_bytes());
                let flag = |set: bool, flag: u8| if set { flag } else { 0 };
                out.push(flag(round, Self::ROUND) | flag(end, Self::END));
                out.extend_from_slice(bytes);
            }
            Self::Got { stream, next } => {
                put(Self::GOT, stream);
                out.extend_from_slice(&next.to_le_bytes());
            }
            Self::Lost { stream } => put(Self::LOST, stream),
            Self::Gone { stream } => put(Self::GONE, stream),
            Self::Void { stream } => put(Self::VOID, stream),
        }
        out.into()
    }

    /// Reads what [`Self::encode`] wrote, and nothing else.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        let small = |rest: &'a [u8]| {
            let (number, rest) = rest.split_first_chunk()?;
            Some((u32::from_le_bytes(*number), rest))
        };
        let (letter, rest) = match *kind {
            Self::TAKE => {
                let (named, user) = rest.split_first()?;
                let user = std::str::from_utf8(user).ok()?;
                let user = match named {
                    0 if user.is_empty() => None,
                    1 => Some(user),
                    _ => return None,
                };
                (Self::Take { at: number, user }, &[][..])
            }
            Self::NOTHING => (Self::Nothing { at: number }, rest),
            Self::NEWER => (Self::Newer { at: number }, rest),
            Self::PART => {
                let stream = number;
                let (number, rest) = small(rest)?;
                let (flags, bytes) = rest.split_first()?;
                if flags & !(Self::ROUND | Self::END) != 0 {
                    return None;
                }
                let part = Self::Part {
                    stream,
                    number,
                    round: flags & Self::ROUND != 0,
                    end: flags & Self::END != 0,
                    bytes,
                };
                (part, &[][..])
            }
            Self::GOT => {
                let (next, rest) = small(rest)?;
                let stream = number;
                (Self::Got { stream, next }, rest)
            }
            Self::LOST => (Self::Lost { stream: number }, rest),
            Self::GONE => (Self::Gone { stream: number }, rest),
            Self::VOID => (Self::Void { stream: number }, rest),
            _ => return None,
        };
        rest.is_empty().then_some(letter)
    }
}

/// A client that waits for CONNACK until its session has come.
#[derive(Debug)]
pub(crate) struct Awaiting {
    pub(crate) conn: ConnId,
    /// Which question it waits for.
    pub(crate) number: u64,
    /// What looks after it.
    pub(crate) timer: u64,
    pub(crate) until: Nanos,
    /// Somebody may have its session who has not been heard.
    pub(crate) unsure: bool,
    /// What is left of its session was found once, and not the session.
    pub(crate) missed: bool,
}

/// A session on its way to another broker.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) to: Arc<str>,
    /// When the client connected there.
    pub(crate) at: u64,
    pub(crate) stream: u64,
    pub(crate) timer: u64,
    /// Its subscriptions have ended here, and this is the last round, unless something
    /// still came.
    pub(crate) ending: bool,
    /// When they are to end; known when the first round is safe.
    pub(crate) ends: Option<Nanos>,
    /// Until when that is put off at most, while there are brokers that do not hear of it.
    pub(crate) ends_by: Nanos,
    /// After that they end when all has come that was on its way here.
    pub(crate) fence: Fence,
    /// Those that have ended.
    pub(crate) subscriptions: Option<Vec<Subscription>>,
    /// What is to be committed here before the round is sent.
    pub(crate) after: u64,
    /// Messages of the round.
    pub(crate) kept: Vec<Delivery>,
    /// The first of the window, and of these, that are not in `bytes`.
    pub(crate) next: (usize, usize),
    /// Of the round, and not cut into parts.
    pub(crate) bytes: Vec<u8>,
    /// Parts that are not acknowledged, as letters, and the number of the first.
    pub(crate) parts: VecDeque<Arc<[u8]>>,
    pub(crate) first: u32,
    /// The last part of the round was cut; there is none.
    pub(crate) cut: bool,
    /// When they are sent again, and how long that is put off each time.
    pub(crate) again: Nanos,
    pub(crate) patience: Nanos,
    /// Messages that went.
    pub(crate) messages: u64,
    /// What was to be taken up here meanwhile, see [`crate::session::Window::take_up`].
    pub(crate) taken_up: Vec<TakenUp>,
}

/// Whether all has come that was on its way here, see [`crate::Federation::fence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    Unasked,
    Asked,
    Passed,
}

/// A packet identifier of a session that ends, of a message with QoS 2 that its client may
/// have.
pub(crate) type TakenUp = (u16, Option<Delivery>);

/// A session, or what is left of one, on its way here.
#[derive(Debug)]
pub(crate) struct Coming {
    /// When the client connected here.
    pub(crate) at: u64,
    /// Whose session it has to be.
    pub(crate) user: Option<Arc<str>>,
    pub(crate) timer: u64,
    /// As the session, if there is none by then.
    pub(crate) whole: bool,
    /// When the client connected there last, as [`Holder::at`].
    pub(crate) arrived: u64,
    /// When it was asked for there was only what is left of a session.
    pub(crate) left: bool,
    /// It stays where it is until the client is known to have heard of the one that is here.
    pub(crate) held: bool,
    /// It came as the session.
    pub(crate) came: bool,
    /// What was elsewhere was added to it, and is nowhere else.
    pub(crate) joined: bool,
    /// What came is the session: where it comes from is only what is left.
    pub(crate) handed: bool,
    /// Something of it is safe here.
    pub(crate) safe: bool,
    /// It ended here.
    pub(crate) gone: bool,
    /// The last round has come.
    pub(crate) ending: bool,
    /// All of it is safe here.
    pub(crate) complete: bool,
    pub(crate) stream: u64,
    /// The part that is expected.
    pub(crate) next: u32,
    /// The ticket that the last part waits for.
    pub(crate) waits: Option<u64>,
    pub(crate) round: Option<Box<Round>>,
    /// When the broker is asked again, how long that is put off, and how often it was asked
    /// before it began.
    pub(crate) again: Nanos,
    pub(crate) patience: Nanos,
    pub(crate) tries: u32,
}

impl Coming {
    pub(crate) fn new(
        at: u64,
        user: Option<Arc<str>>,
        timer: u64,
        whole: bool,
        now: Nanos,
    ) -> Self {
        Self {
            at,
            user,
            timer,
            whole,
            arrived: 0,
            left: false,
            held: false,
            came: false,
            joined: false,
            handed: false,
            safe: false,
            gone: false,
            ending: false,
            complete: false,
            stream: 0,
            next: 0,
            waits: None,
            round: None,
            again: now + PATIENCE,
            patience: PATIENCE,
            tries: 0,
        }
    }
}

/// What a broker is asked for that is reached again: one session after the other, of those that it
/// may have an old one of, and few at a time, however many there are.
#[derive(Debug)]
pub(crate) struct Asking {
    /// Sessions that were missed since then.
    pub(crate) since: Nanos,
    /// And until then: for later ones it was asked as their clients connected.
    pub(crate) until: Nanos,
    /// Where the next of them is looked for.
    pub(crate) next: u32,
    /// Clients of those that it has not answered about.
    pub(crate) open: HashSet<Arc<str>, foldhash::fast::RandomState>,
    /// It was given up to wait for an answer: when it comes again it is asked for all of them.
    pub(crate) unanswered: bool,
    /// The errand that looks after it; 0 for none.
    pub(crate) timer: u64,
}

impl Asking {
    /// It is not asked for anything now.
    pub(crate) fn nothing(since: Nanos) -> Self {
        Self {
            since,
            until: since,
            next: u32::MAX,
            open: HashSet::default(),
            unanswered: false,
            timer: 0,
        }
    }
}

/// What a session has got that may come again.
#[derive(Debug, Default)]
pub(crate) struct Had {
    /// What it is called, or where it was stored.
    keys: HashSet<u64, foldhash::fast::RandomState>,
    /// Those that came here by themselves, the oldest first.
    own: VecDeque<u64>,
    /// What had passed where the session was, before that left.
    passed: HashSet<u64, foldhash::fast::RandomState>,
    /// Names that were given where the session was while it was there, the latest last.
    given: VecDeque<Given>,
    /// The highest numbers of what had passed or was given there, by origins: what is above them
    /// and has not come is still there, or on its way.
    reached: HashMap<u32, u32, foldhash::fast::RandomState>,
    /// What came here by itself before something that precedes it; `None` unless that may still
    /// come from where the session was.
    pub(crate) ahead: Option<VecDeque<Ahead>>,
    /// The errand that looks after it; 0 for none.
    pub(crate) timer: u64,
    pub(crate) until: Nanos,
    /// What of it is stored, for a session that survives.
    pub(crate) log: Option<Box<HadLog>>,
}

impl Had {
    /// Notes something that comes here by itself, with QoS 2 if it is to come `once` after a
    /// restart, too; false if the session has had it.
    pub(crate) fn note(&mut self, name: u64, once: bool) -> bool {
        let given = self.given.iter().any(|given| given.has(name));
        if self.passed.contains(&name) || given || !self.keys.insert(name) {
            return false;
        }
        if self.own.len() >= MAX_HAD
            && let Some(oldest) = self.own.pop_front()
        {
            self.keys.remove(&oldest);
        }
        self.own.push_back(name);
        if let Some(log) = self.log.as_mut().filter(|_| once) {
            log.note(Kind::Own, [name]);
        }
        true
    }

    /// Notes something that comes from where the session was, by what it is called and where
    /// it was stored, 0 for nothing; false if the session has had it.
    pub(crate) fn note_moved(&mut self, keys: [u64; 2]) -> bool {
        let known = keys.iter().any(|key| self.keys.contains(key));
        let keys = keys.into_iter().filter(|key| *key != 0);
        if let Some(log) = &mut self.log {
            log.note(Kind::Had, keys.clone());
        }
        self.keys.extend(keys);
        !known
    }

    /// What is to come before a message, if that has neither come nor passed where the session
    /// was.
    pub(crate) fn lacks(&self, previous: u64) -> bool {
        let origin = (previous >> 32) as u32;
        let last = self.reached.get(&origin);
        let comes = last.is_some_and(|last| previous as u32 > *last) && !self.has(previous);
        let mut ahead = self.ahead.iter().flatten();
        comes || ahead.any(|it| it.delivery.message.name == previous)
    }

    /// Whether it had something of that name.
    pub(crate) fn has(&self, name: u64) -> bool {
        name != 0 && self.keys.contains(&name)
    }

    /// All of it, for another broker.
    pub(crate) fn known(&self) -> Known {
        Known {
            had: self.keys.iter().copied().collect(),
            passed: self.passed.iter().copied().collect(),
            given: self.given.iter().map(|given| given.0).collect(),
            reached: self.reached.iter().map(name_of).collect(),
        }
    }

    /// What was known elsewhere.
    pub(crate) fn learn(&mut self, known: &Known) {
        self.keys.extend(&known.had);
        let room = MAX_PASSED.saturating_sub(self.passed.len());
        // The latest come last.
        let passed = known.passed.iter().rev().take(room);
        self.passed.extend(passed.clone());
        if let Some(log) = &mut self.log {
            log.note(Kind::Had, known.had.iter().copied());
            log.note(Kind::Passed, passed.copied());
            log.note(Kind::Given, known.given.iter().flatten().copied());
            log.note(Kind::Reached, known.reached.iter().copied());
        }
        for given in known.given.iter().copied().map(Given) {
            if self.given.contains(&given) {
                continue;
            }
            if self.given.len() >= MAX_GIVEN {
                self.given.pop_front();
            }
            self.given.push_back(given);
        }
        let last = known.given.iter().map(|[_, last]| last);
        for name in known.passed.iter().chain(last).chain(&known.reached) {
            raise(&mut self.reached, *name);
        }
    }
}

/// Notes the number of a name, if it is the highest of its origin.
fn raise(last: &mut HashMap<u32, u32, foldhash::fast::RandomState>, name: u64) {
    let last = last.entry((name >> 32) as u32).or_default();
    *last = (name as u32).max(*last);
}

/// The last name of each origin.
pub(crate) fn last_of_each(names: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut last = HashMap::default();
    names.for_each(|name| raise(&mut last, name));
    let names: Vec<u64> = last.iter().map(name_of).collect();
    names.into_iter()
}

fn name_of((origin, number): (&u32, &u32)) -> u64 {
    u64::from(*origin) << 32 | u64::from(*number)
}

/// Names that were given in a row: the last before them, and the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Given([u64; 2]);

impl Given {
    fn has(self, name: u64) -> bool {
        let [after, last] = self.0;
        after < name && name <= last
    }
}

/// What had been at a broker when a session began to be there: only of what comes after that is it
/// known that the session has had it if it wanted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Began {
    /// See [`crate::Federation::mark_passed`].
    pub(crate) passed: u64,
    /// Since when what passed is stored, see [`NameLog::position`].
    ///
    /// [`NameLog::position`]: crate::journal::NameLog::position
    pub(crate) stored: u64,
    /// Of the names that were given there then.
    pub(crate) origin: NonZeroU32,
    /// Number in the last of them.
    pub(crate) given: u32,
}

/// A message that waits for what comes before it.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// The name of that.
    pub(crate) previous: u64,
    /// When it does not wait any more.
    pub(crate) until: Nanos,
    pub(crate) since: Nanos,
    pub(crate) delivery: Delivery,
}

/// What looks after something at a time.
#[derive(Debug, Clone)]
pub(crate) enum Errand {
    Awaiting(Arc<str>),
    Leaving {
        slot: u32,
        session: u64,
    },
    Coming(Way),
    /// A session of a client, of whom somebody may have another one who has not been heard.
    Unsure {
        slot: u32,
        session: u64,
        /// It is looked at once more.
        again: bool,
    },
    /// A broker that is asked for sessions.
    Asking(Arc<str>),
    Had {
        slot: u32,
        session: u64,
    },
    /// Messages of a session that wait for others.
    Ahead {
        slot: u32,
        session: u64,
    },
    /// A session with subscriptions of what was left of the one before it.
    Inherited {
        slot: u32,
        session: u64,
    },
    /// A session whose client is at another broker, which has not asked for it.
    Orphan {
        slot: u32,
        session: u64,
    },
}

/// Client and broker.
pub(crate) type Way = (Arc<str>, Arc<str>);

type Map<K, V> = HashMap<K, V, foldhash::quality::RandomState>;

/// All of one shard but what is with its sessions.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Clients that wait.
    pub(crate) awaiting: Map<Arc<str>, Awaiting>,
    pub(crate) coming: BTreeMap<Way, Coming>,
    /// Brokers that are asked, by their names.
    pub(crate) asking: BTreeMap<Arc<str>, Asking>,
    /// Errands and when they are due; timers that come earlier are void.
    pub(crate) errands: Map<u64, (Nanos, Errand)>,
    pub(crate) last: u64,
    /// The last stream that was begun.
    pub(crate) stream: u64,
    /// Parts that are acknowledged with commits, in order of tickets.
    pub(crate) unsafe_parts: VecDeque<(u64, Way)>,
    /// Slots of sessions that have had something that is to be stored.
    pub(crate) had_more: Vec<u32>,
    /// Sessions of which a round is sent with commits, with their numbers, in order of
    /// tickets.
    pub(crate) unsafe_rounds: VecDeque<(u64, u32, u64)>,
}

impl Moves {
    /// Whether nothing moves here or is waited for.
    pub(crate) fn is_idle(&self) -> bool {
        self.awaiting.is_empty() && self.coming.is_empty()
    }

    /// From where something of a client's session comes.
    pub(crate) fn ways_of(&self, client: &Arc<str>) -> Vec<Way> {
        let from = (client.clone(), Arc::from(""));
        let ways = self.coming.range(from..).map(|(way, _)| way);
        ways.take_while(|way| way.0 == *client).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_written() {
        let letters = [
            Letter::Take {
                at: 7,
                user: Some("ü"),
            },
            Letter::Take { at: 7, user: None },
            Letter::Nothing { at: u64::MAX },
            Letter::Newer { at: 1 },
            Letter::Part {
                stream: 1,
                number: 2,
                round: true,
                end: false,
                bytes: b"abc",
            },
            Letter::Got { stream: 3, next: 4 },
            Letter::Lost { stream: 5 },
            Letter::Gone { stream: 6 },
            Letter::Void { stream: 6 },
        ];
        for letter in letters {
            let bytes = letter.encode();
            assert_eq!(Letter::decode(&bytes), Some(letter.clone()));
            if !matches!(letter, Letter::Take { .. } | Letter::Part { .. }) {
                assert_eq!(Letter::decode(&[&*bytes, b"x"].concat()), None);
            }
            assert_eq!(Letter::decode(&bytes[..8]), None);
        }
        assert_eq!(Letter::decode(&[9; 9]), None);
    }

    #[test]
    fn what_a_session_has_had_is_recognised() {
        let mut had = Had::default();
        assert!(had.note(1, true) && !had.note(1, true));
        assert!(!had.note_moved([1, 0]));
        assert!(had.note_moved([2, 3]) && !had.note_moved([0, 3]) && !had.note(2, true));
        // What has no name is never recognised.
        assert!(had.note_moved([0, 0]) && had.note_moved([0, 0]));
        had.learn(&Known {
            had: vec![20],
            passed: vec![10],
            given: vec![[5 << 32 | 3, 5 << 32 | 7]],
            reached: Vec::new(),
        });
        assert!(
            had.note(5 << 32 | 3, true),
            "given before the session was there"
        );
        assert!(!had.note(20, true) && !had.note_moved([20, 0]));
        assert!(!had.note(10, true) && !had.note(5 << 32 | 7, true) && had.note(5 << 32 | 8, true));
        // It passed elsewhere, but was not there for this session.
        assert!(had.note_moved([5 << 32 | 6, 0]));
        for name in 100..100 + 2 * MAX_HAD as u64 {
            had.note(name, true);
        }
        assert!(had.keys.len() <= MAX_HAD + 6);
        assert!(
            !had.note_moved([2, 0]),
            "what came from there is not forgotten"
        );
    }

    #[test]
    fn what_had_not_passed_where_a_session_was_is_to_come() {
        let (one, other, third) = (1 << 32, 2 << 32, 3 << 32);
        let mut had = Had::default();
        had.learn(&Known {
            had: Vec::new(),
            passed: Vec::new(),
            given: vec![[third, third | 4]],
            reached: last_of_each([one | 5, other | 2, one | 7].into_iter()).collect(),
        });
        let lacks = |had: &Had, names: &[u64]| -> Vec<bool> {
            names.iter().map(|name| had.lacks(*name)).collect()
        };
        let names = [one | 6, one | 8, other | 3, third | 4, third | 5];
        assert_eq!(lacks(&had, &names), [false, true, true, false, true]);
        assert!(!had.lacks(4 << 32 | 1), "nothing is known of that origin");
        had.note_moved([one | 8, 0]);
        assert!(had.note(other | 3, true));
        assert_eq!(lacks(&had, &names), [false, false, false, false, true]);
    }
}
