//! Sessions that follow their clients: who has one, and what brokers' cores write to each
//! other about it.
//!
//! A question goes over the tree to every broker; each answers when all behind it have, so
//! that who asks knows at once when nobody has the session. A link that is lost, and one
//! that does not answer in [`super::Settings::session_wait`], or [`super::Settings::heal`] where no client
//! waits, has answered with no.
//!
//! Such an answer is *incomplete*, and so is every one that it is a part of: who asked asks again later.
//! One is complete if each broker that is reached was asked, and has answered. A broker that is not
//! reached does not make it incomplete: when it comes, it is asked for what was missed without it
//! ([`Output::Came`]). But one that changes its place in the tree, and is reached all the while, may be
//! asked at neither, as the question passes the old place after it has left and the new one before it
//! comes. What is told of it goes the same ways as question and answer, and in order, so that one of
//! the brokers on the way hears of it while the question is open there: the answer is incomplete also
//! where whom a broker reaches, and how, has changed meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_model::Nanos;

use super::keeping::Keeping;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::wire::{Found, Holder, Letter, Message, SeekSession};

/// Letters that wait for [`super::Node::kept`]; those beyond are lost, and written again.
const MAX_LETTERS: usize = 1 << 10;

/// Questions that are open at a time; those beyond are answered with no, incompletely.
const MAX_SEEKS: usize = 1 << 16;
/// Brokers of which it is remembered since when they are away.
const MAX_AWAY: usize = 1 << 12;

/// Who asks, and the number of the question there.
type Question = (BrokerId, u64);

/// A question that is not answered.
#[derive(Debug)]
struct Asked {
    client: Box<str>,
    /// Who is to be answered; `None` for this broker itself.
    from: Option<LinkId>,
    /// Who has not answered.
    open: BTreeSet<LinkId>,
    /// Whether this broker's own core has not.
    own: bool,
    holders: Vec<Holder>,
    /// Whether one of the answers is.
    incomplete: bool,
    /// From when on one is enough that has the whole session: no client waits for others.
    enough: Nanos,
    /// When it is answered at the latest.
    ends: Nanos,
    /// [`Seeks::changes`] when it was asked.
    changes: u64,
}

impl Asked {
    fn is_enough(&self, now: Nanos) -> bool {
        self.enough <= now && self.holders.iter().any(|holder| holder.whole)
    }
}

/// Questions, and who is there to be asked.
#[derive(Debug, Default)]
pub(super) struct Seeks {
    asked: BTreeMap<Question, Asked>,
    /// When they are answered at the latest; some may be already.
    ends: BTreeSet<(Nanos, Question)>,
    /// How often it has changed whom this broker reaches, or how.
    changes: u64,
    /// Brokers that are reached.
    present: BTreeSet<BrokerId>,
    /// Those that were, and since when they are not.
    away: BTreeMap<BrokerId, Nanos>,
    /// Letters on their way to others, and where they come from: they wait until so many
    /// wishes are kept.
    letters: VecDeque<(u64, LinkId, Letter)>,
}

impl Seeks {
    pub(super) fn next(&self) -> Option<Nanos> {
        self.ends.first().map(|(at, _)| *at)
    }

    pub(super) fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// A letter that came over a link waits until so many wishes are kept.
    fn put_off(&mut self, wished: u64, from: LinkId, letter: Letter) {
        if self.letters.len() < MAX_LETTERS {
            self.letters.push_back((wished, from, letter));
        }
    }

    /// A letter that does not wait any more, and where it came from.
    fn next_letter(&mut self, keeping: &Keeping) -> Option<(LinkId, Letter)> {
        let is_kept = |(wished, ..): &mut (u64, LinkId, Letter)| keeping.is_kept(*wished);
        let (_, from, letter) = self.letters.pop_front_if(is_kept)?;
        Some((from, letter))
    }
}

impl Node {
    /// Whether somebody could be asked for sessions.
    pub fn can_seek(&self) -> bool {
        self.links.any_carries()
    }

    /// Asks all other brokers for the session of a client; [`Output::Found`] is the answer,
    /// with the same `number`, in [`super::Settings::session_wait`] at the latest if that client `waits`
    /// for it, and otherwise in [`super::Settings::heal`], if that is longer and nobody with the whole
    /// session has answered before.
    pub fn seek(&mut self, number: u64, client: &str, user: Option<&str>, waits: bool, now: Nanos) {
        let wait = match waits {
            true => self.settings.session_wait,
            false => self.longest_seek(),
        };
        let seek = SeekSession {
            by: self.settings.id.clone(),
            number,
            client: client.into(),
            user: user.map(Into::into),
            wait: (wait.0 / 1_000_000).min(u64::from(u32::MAX)) as u32,
        };
        self.ask(None, seek, now);
        self.settle(now);
    }

    fn longest_seek(&self) -> Nanos {
        self.settings.session_wait.max(self.settings.heal)
    }

    /// What this broker's core has of a session that it was asked for with [`Output::Sought`]:
    /// when its client connected last, and whether it is the whole session.
    pub fn sought(&mut self, by: &BrokerId, number: u64, has: Option<(u64, bool)>) {
        let (broker, key) = (self.settings.id.clone(), (by.clone(), number));
        if let Some(asked) = self.seeks.asked.get_mut(&key) {
            asked.own = false;
            let holder = has.map(|(at, whole)| Holder { broker, at, whole });
            asked.holders.extend(holder);
            self.answer_if_done(key);
        }
    }

    /// Something for another broker's core about a session. It is lost if that broker is not
    /// reached.
    pub fn letter(&mut self, to: &BrokerId, client: &str, body: Arc<[u8]>, now: Nanos) {
        let letter = Letter {
            to: to.clone(),
            from: self.settings.id.clone(),
            client: client.into(),
            body,
        };
        self.pass_letter(None, letter, now);
    }

    pub(super) fn heard_seek(&mut self, from: LinkId, seek: SeekSession, now: Nanos) {
        if !self.clocks.is_past(seek.number) {
            let key = (seek.by, seek.number);
            return self.tell_found(Some(from), key, seek.client, Vec::new(), true);
        }
        self.ask(Some(from), seek, now);
    }

    pub(super) fn heard_found(&mut self, from: LinkId, found: Found, now: Nanos) {
        let key = (found.by, found.number);
        if let Some(asked) = self.seeks.asked.get_mut(&key)
            && asked.open.remove(&from)
        {
            asked.holders.extend(found.holders);
            asked.incomplete |= found.incomplete;
            match asked.is_enough(now) {
                true => self.answer_seek(key),
                false => self.answer_if_done(key),
            }
        }
    }

    pub(super) fn pass_letter(&mut self, from: Option<LinkId>, letter: Letter, now: Nanos) {
        if letter.to == self.settings.id {
            let Letter {
                from, client, body, ..
            } = letter;
            self.outputs.push(Output::Letter { from, client, body });
            return;
        }
        match from {
            Some(link) if !self.keeping.is_all_kept() || self.seeks.has_letters() => {
                self.seeks.put_off(self.keeping.wished(), link, letter);
            }
            _ => self.send_letter(from, letter, now),
        }
    }

    /// Passes on letters that wait for nothing any more.
    pub(super) fn pass_letters(&mut self, now: Nanos) {
        while let Some((from, letter)) = self.seeks.next_letter(&self.keeping) {
            self.send_letter(Some(from), letter, now);
        }
    }

    /// Sends a letter once all filters are told that are wanted by now: who hears that a session is safe
    /// here knows what is wanted for it.
    fn send_letter(&mut self, from: Option<LinkId>, letter: Letter, now: Nanos) {
        self.pace.add_letter(from, letter);
        self.tell(now);
    }

    /// Sends a letter that waits for nothing any more to where its receiver is.
    pub(super) fn post_letter(&mut self, from: Option<LinkId>, letter: Letter) {
        let (links, _) = self.reach.where_are(&BTreeSet::from([letter.to.clone()]));
        let mut links = links.into_iter().filter(|link| Some(*link) != from);
        if let Some(link) = links.find(|link| self.links.carries(*link)) {
            self.outputs.send(link, &Message::Letter(letter));
        }
    }

    fn ask(&mut self, from: Option<LinkId>, seek: SeekSession, now: Nanos) {
        let key = (seek.by.clone(), seek.number);
        if self.seeks.asked.contains_key(&key) || self.seeks.asked.len() >= MAX_SEEKS {
            // One that comes on a second way is answered on the first, if that is still one.
            return self.tell_found(from, key, seek.client, Vec::new(), true);
        }
        let links = self.links.carrying();
        let others = links.filter(|link| Some(*link) != from);
        let open: BTreeSet<LinkId> = others.collect();
        // Who is asked further away answers earlier, so that no answer comes too late.
        let further = SeekSession {
            wait: seek.wait - seek.wait / 8,
            ..seek.clone()
        };
        for link in &open {
            self.outputs.send(*link, &Message::Seek(further.clone()));
        }
        let wait = Nanos::from_millis(u64::from(seek.wait)).min(self.longest_seek());
        let asked = Asked {
            client: seek.client.clone(),
            from,
            open,
            own: from.is_some(),
            holders: Vec::new(),
            incomplete: false,
            enough: now + wait.min(self.settings.session_wait),
            ends: now + wait,
            changes: self.seeks.changes,
        };
        let times = [asked.enough, asked.ends];
        self.seeks.asked.insert(key.clone(), asked);
        self.seeks.ends.extend(times.map(|at| (at, key.clone())));
        if from.is_some() {
            self.outputs.push(Output::Sought(seek));
        }
        self.answer_if_done(key);
    }

    fn answer_if_done(&mut self, key: Question) {
        let asked = self.seeks.asked.get(&key);
        if asked.is_some_and(|asked| asked.open.is_empty() && !asked.own) {
            self.answer_seek(key);
        }
    }

    fn answer_seek(&mut self, key: Question) {
        if let Some(asked) = self.seeks.asked.remove(&key) {
            for at in [asked.enough, asked.ends] {
                self.seeks.ends.remove(&(at, key.clone()));
            }
            let missed = asked.own || !asked.open.is_empty();
            let incomplete = asked.incomplete || missed || asked.changes != self.seeks.changes;
            self.tell_found(asked.from, key, asked.client, asked.holders, incomplete);
        }
    }

    /// Answers the questions whose time is over.
    pub(super) fn answer_late_seeks(&mut self, now: Nanos) {
        while self.seeks.next().is_some_and(|at| at <= now)
            && let Some((_, key)) = self.seeks.ends.pop_first()
        {
            let asked = self.seeks.asked.get(&key);
            if asked.is_some_and(|asked| asked.ends <= now || asked.is_enough(now)) {
                self.answer_seek(key);
            }
        }
    }

    /// Nobody answers over links that do not carry any more.
    fn forget_lost_answers(&mut self) {
        let links = &self.links;
        let carries = |link: &LinkId| links.get(*link).is_some_and(|link| link.edge.carries());
        let mut done = Vec::new();
        for (key, asked) in &mut self.seeks.asked {
            asked.open.retain(carries);
            if asked.open.is_empty() && !asked.own {
                done.push(key.clone());
            }
        }
        done.into_iter().for_each(|key| self.answer_seek(key));
    }

    fn tell_found(
        &mut self,
        to: Option<LinkId>,
        (by, number): Question,
        client: Box<str>,
        holders: Vec<Holder>,
        incomplete: bool,
    ) {
        match to {
            None => self.outputs.push(Output::Found {
                number,
                client,
                holders,
                incomplete,
            }),
            Some(link) if self.links.carries(link) => self.outputs.send(
                link,
                &Message::Found(Found {
                    by,
                    number,
                    holders,
                    incomplete,
                }),
            ),
            Some(_) => {}
        }
    }

    /// Other brokers to which the tree leads from here: what is published finds its way there.
    pub fn reached(&self) -> &BTreeSet<BrokerId> {
        &self.seeks.present
    }

    /// Notes who is reached now, and tells who was not before.
    pub(super) fn note_presence(&mut self, now: Nanos) {
        self.seeks.changes += 1;
        self.forget_lost_answers();
        let own = &self.settings.id;
        let reached = self.reach.reached().filter(|id| *id != own);
        let present: BTreeSet<BrokerId> = reached.cloned().collect();
        let seeks = &mut self.seeks;
        for gone in seeks.present.difference(&present) {
            // So long it may have been away before that was noticed.
            let patience = self.settings.tree.patience();
            let since = Nanos(now.0.saturating_sub(patience.0));
            seeks.away.insert(gone.clone(), since);
        }
        for came in present.difference(&seeks.present) {
            let away = seeks.away.remove(came).unwrap_or(Nanos(0));
            let broker = came.clone();
            self.clients.wills.came(came, now);
            self.outputs.push(Output::Came { broker, away });
        }
        seeks.present = present;
        while seeks.away.len() > MAX_AWAY {
            let first = seeks.away.iter().min_by_key(|(_, since)| **since);
            let Some(first) = first.map(|(id, _)| id.clone()) else {
                return;
            };
            seeks.away.remove(&first);
        }
    }
}
