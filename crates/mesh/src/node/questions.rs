//! Look-ups in progress: requests about a client's session that go over the tree to every broker.
//!
//! Each broker replies when all brokers behind it have replied, so that the origin learns at once if no
//! broker has anything. A link that is lost, or does not reply in time, counts as a negative reply.
//!
//! Such a reply is *incomplete*, and so is every reply that contains it: the origin repeats the look-up
//! later. A link that has replied to nothing in time for [`super::Settings::heal`] still gets look-ups
//! but is not waited for, until it replies in time again. Otherwise a neighbour that hangs, and counts as
//! reached, would keep clients from connecting anywhere. Such a reply has [`Extent::Reached`], as it has
//! while brokers are away.
//!
//! A reply is complete if each reached broker has received the look-up and replied. A broker that is away
//! does not make it incomplete: when it comes into reach, the sessions of both sides are compared
//! ([`Output::Reach`]). But a broker that changes its place in the tree may miss a look-up although it is
//! reached all the time: the look-up passes its old place after it left, and its new place before it
//! arrives. The advertisement of the change travels the same links as look-up and reply, in order, so
//! that some broker on the path receives it while the look-up is open there. So a reply is also
//! incomplete where the set of reached brokers, or the links that lead to them, has changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use super::{Node, Output};
use crate::id::LinkId;
use crate::transfer::{Extent, HomeId, Located};
use crate::wire::{LookUp, LookUpReply, Message};

/// Bound on open look-ups; further ones get an incomplete negative reply.
const MAX_QUESTIONS: usize = 1 << 16;

/// Identifies a look-up: the broker that asks, the time of the CONNECT ([`LookUp::at`]), and
/// [`LookUp::round`].
pub(super) type Key = (HomeId, u64, u64);

fn key(question: &LookUp) -> Key {
    (question.at.by.clone(), question.at.micros, question.round)
}

/// What brokers have of a client; brokers that have nothing are omitted.
pub(super) type Answers = Vec<(HomeId, Located)>;

/// A look-up without a complete set of replies.
#[derive(Debug)]
struct OpenLookUp {
    question: LookUp,
    /// The link on which to reply; `None` for a look-up of this broker.
    from: Option<LinkId>,
    /// Links without a reply.
    open: BTreeSet<LinkId>,
    /// Whether the answer of this broker's core is outstanding.
    own: bool,
    answers: Answers,
    /// What the replies so far cover.
    extent: Extent,
    /// When it began, and when it is answered at the latest.
    since: Nanos,
    ends: Nanos,
    /// [`OpenLookUps::changes`] when it began.
    changes: u64,
}

/// All open look-ups.
#[derive(Debug, Default)]
pub(super) struct OpenLookUps {
    asked: BTreeMap<Key, OpenLookUp>,
    /// The same, by the time at which they are answered at the latest.
    ends: BTreeSet<(Nanos, Key)>,
    /// How often the reached brokers, or the links that lead to them, have changed.
    changes: u64,
    /// Links that have not replied in time; `None` is this broker's core.
    silent: BTreeMap<Option<LinkId>, Silence>,
}

/// State of a link, or of this broker's core, that did not reply to a look-up in time.
#[derive(Debug)]
struct Silence {
    /// When that look-up began.
    since: Nanos,
    /// A later look-up that is not waited for, and when a reply to it is late.
    tried: Option<(Key, Nanos)>,
}

impl OpenLookUps {
    /// Whether a look-up is sent without waiting for the reply of this link (or core); notes the look-up.
    fn is_given_up(
        &mut self,
        who: Option<LinkId>,
        key: &Key,
        ends: Nanos,
        heal: Nanos,
        now: Nanos,
    ) -> bool {
        let Some(silence) = self.silent.get_mut(&who) else {
            return false;
        };
        let is_long = silence.since + heal <= now;
        if is_long && silence.tried.as_ref().is_none_or(|(_, ends)| *ends <= now) {
            silence.tried = Some((key.clone(), ends));
        }
        is_long
    }

    /// A reply has arrived. If it was in time, the link (or core) counts as responsive again.
    fn hear(&mut self, who: Option<LinkId>, key: &Key, now: Nanos) {
        let is_waited_for = self.asked.get(key).is_some_and(|asked| match who {
            Some(link) => asked.open.contains(&link),
            None => asked.own,
        });
        let tried = self.silent.get(&who).and_then(|it| it.tried.as_ref());
        if is_waited_for || tried.is_some_and(|(tried, ends)| tried == key && now < *ends) {
            self.silent.remove(&who);
        }
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.ends.first().map(|(at, _)| *at)
    }
}

impl Node {
    /// Sends a look-up to all links but the one on which it came.
    pub(super) fn ask(&mut self, from: Option<LinkId>, question: LookUp, now: Nanos) {
        let key = key(&question);
        let asked = &self.questions.asked;
        if asked.contains_key(&key) || asked.len() >= MAX_QUESTIONS {
            // A look-up that arrives on a second path is answered on the first. For want of room, a
            // look-up of this broker's core gets no reply, as the core would repeat it at once; its
            // client times out.
            if from.is_some() {
                self.send_look_up_reply(from, &question, Answers::default(), Extent::Incomplete);
            }
            return;
        }
        let links = self.links.carrying();
        let others = links.filter(|link| Some(*link) != from);
        let mut open: BTreeSet<LinkId> = others.collect();
        // Brokers further away have less time, so that no reply is late.
        let further = Message::LookUp(LookUp {
            wait: question.wait - question.wait / 8,
            ..question.clone()
        });
        for link in &open {
            self.outputs.send(*link, &further);
        }
        let heal = self.settings.heal;
        let longest = self.settings.session_wait.max(heal);
        let ends = now + Nanos::from_millis(u64::from(question.wait)).min(longest);
        let mut own = from.is_some();
        if own {
            let question = question.clone();
            self.outputs.push(Output::LookUp {
                by: question.at.by.clone(),
                at: question.at,
                client: question.client,
                user: question.user,
                clean: question.clean,
            });
        }
        let expected = open.len() + usize::from(own);
        let questions = &mut self.questions;
        open.retain(|link| !questions.is_given_up(Some(*link), &key, ends, heal, now));
        own = own && !questions.is_given_up(None, &key, ends, heal, now);
        let extent = match open.len() + usize::from(own) < expected {
            true => Extent::Reached,
            false => Extent::All,
        };
        let asked = OpenLookUp {
            question,
            from,
            open,
            own,
            answers: Answers::default(),
            extent,
            since: now,
            ends,
            changes: self.questions.changes,
        };
        self.questions.asked.insert(key.clone(), asked);
        self.questions.ends.insert((ends, key.clone()));
        self.answer_if_done(key);
    }

    /// Handles the answer of this broker's core: to the first look-up for this CONNECT and client that
    /// waits for one.
    pub(super) fn answer_own(
        &mut self,
        by: &HomeId,
        micros: u64,
        client: &str,
        answer: Option<Located>,
        now: Nanos,
    ) {
        let all = (by.clone(), micros, 0)..=(by.clone(), micros, u64::MAX);
        if let Some((tried, _)) = (self.questions.silent.get(&None)).and_then(|it| it.tried.clone())
            && all.contains(&tried)
        {
            self.questions.hear(None, &tried, now);
        }
        let mut questions = self.questions.asked.range(all);
        let asked = questions.find(|(_, it)| it.own && *it.question.client == *client);
        if let Some(key) = asked.map(|(key, _)| key.clone()) {
            self.questions.hear(None, &key, now);
            let Some(asked) = self.questions.asked.get_mut(&key) else {
                return;
            };
            asked.own = false;
            let own = HomeId::from(self.settings.id.clone());
            asked.answers.extend(answer.map(|answer| (own, answer)));
            self.answer_if_done(key);
        }
    }

    /// Handles the reply of a neighbour, for itself and the brokers behind it.
    pub(super) fn heard_answers(
        &mut self,
        from: LinkId,
        key: Key,
        answers: Answers,
        extent: Extent,
        now: Nanos,
    ) {
        self.questions.hear(Some(from), &key, now);
        if let Some(asked) = self.questions.asked.get_mut(&key)
            && asked.open.remove(&from)
        {
            asked.answers.extend(answers);
            asked.extent = asked.extent.max(extent);
            self.answer_if_done(key);
        }
    }

    fn answer_if_done(&mut self, key: Key) {
        let asked = self.questions.asked.get(&key);
        if asked.is_some_and(|asked| asked.open.is_empty() && !asked.own) {
            self.answer(key);
        }
    }

    fn answer(&mut self, key: Key) {
        let questions = &mut self.questions;
        if let Some(asked) = questions.asked.remove(&key) {
            questions.ends.remove(&(asked.ends, key));
            let missed = asked.own || !asked.open.is_empty();
            let changed = asked.changes != questions.changes;
            let extent = match missed || changed {
                true => Extent::Incomplete,
                false => asked.extent,
            };
            self.send_look_up_reply(asked.from, &asked.question, asked.answers, extent);
        }
    }

    /// Answers the look-ups whose time is over.
    pub(super) fn answer_late_questions(&mut self, now: Nanos) {
        while self.questions.next().is_some_and(|at| at <= now)
            && let Some((_, key)) = self.questions.ends.pop_first()
        {
            if let Some(asked) = self.questions.asked.get(&key) {
                let since = asked.since;
                let links = asked.open.iter().map(|link| Some(*link));
                for who in links.chain(asked.own.then_some(None)) {
                    let silence = || Silence { since, tried: None };
                    self.questions.silent.entry(who).or_insert_with(silence);
                }
            }
            self.answer(key);
        }
    }

    /// The reached brokers, or the links that lead to them, have changed. Links that do not carry any
    /// more count as replied.
    pub(super) fn reach_of_questions_changed(&mut self) {
        self.questions.changes += 1;
        let links = &self.links;
        let carries = |link: &LinkId| links.get(*link).is_some_and(|link| link.edge.carries());
        let is_there = |who: &Option<LinkId>| who.as_ref().is_none_or(carries);
        self.questions.silent.retain(|who, _| is_there(who));
        let mut done = Vec::new();
        for (key, asked) in &mut self.questions.asked {
            asked.open.retain(carries);
            if asked.open.is_empty() && !asked.own {
                done.push(key.clone());
            }
        }
        done.into_iter().for_each(|key| self.answer(key));
    }

    /// Sends the reply to a look-up.
    pub(super) fn send_look_up_reply(
        &mut self,
        to: Option<LinkId>,
        question: &LookUp,
        answers: Answers,
        extent: Extent,
    ) {
        let Some(link) = to else {
            return self.report_answers(question, answers, extent);
        };
        if !self.links.carries(link) {
            return;
        }
        let look_up_reply = LookUpReply {
            at: question.at.clone(),
            round: question.round,
            answers,
            extent,
        };
        self.outputs
            .send(link, &Message::LookUpReply(look_up_reply));
    }

    fn report_answers(&mut self, question: &LookUp, answers: Answers, extent: Extent) {
        self.outputs.push(Output::Located {
            at: question.at.clone(),
            client: question.client.clone(),
            answers,
            extent: self.extent(extent),
        });
    }
}
