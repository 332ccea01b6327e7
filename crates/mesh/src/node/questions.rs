//! Questions about a client's session that go over the tree to every broker.
//!
//! Each broker answers when all behind it have, so that who asks knows at once when nobody has
//! anything. A link that is lost, and one that does not answer in time, has answered with no.
//!
//! Such an answer is *incomplete*, and so is every one that it is a part of: who asked asks again later.
//! A link that has answered nothing in time for [`super::Settings::heal`] is asked and not waited for any
//! more, until it answers in time again: a neighbour that hangs, and is taken to be reached, would
//! otherwise keep clients out everywhere for as long. The answer is of those that are to be waited for
//! ([`Extent::Reached`]), as it is while brokers are not reached.
//!
//! One is complete if each broker that is reached was asked, and has answered. A broker that is not
//! reached does not make it incomplete: when it comes, it is compared what both have
//! ([`Output::Reach`]). But one that changes its place in the tree, and is reached all
//! the while, may be asked at neither, as the question passes the old place after it has left and the new
//! one before it comes. What is told of it goes the same ways as question and answer, and in order, so
//! that one of the brokers on the way hears of it while the question is open there: the answer is
//! incomplete also where whom a broker reaches, and how, has changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use super::{Node, Output};
use crate::id::LinkId;
use crate::transfer::{Extent, HomeId, Located};
use crate::wire::{LookUp, LookedUp, Message};

/// Questions that are open at a time; those beyond are answered with no, incompletely.
const MAX_QUESTIONS: usize = 1 << 16;

/// Who asks, when the CONNECT came ([`LookUp::at`]), and [`LookUp::round`].
pub(super) type Key = (HomeId, u64, u64);

fn key(question: &LookUp) -> Key {
    (question.at.by.clone(), question.at.micros, question.round)
}

/// What brokers have; who has nothing is not in it.
pub(super) type Answers = Vec<(HomeId, Located)>;

/// A question that is not answered.
#[derive(Debug)]
struct Asked {
    question: LookUp,
    /// Who is to be answered; `None` for this broker itself.
    from: Option<LinkId>,
    /// Who has not answered.
    open: BTreeSet<LinkId>,
    /// Whether this broker's own core has not.
    own: bool,
    answers: Answers,
    /// What the answers cover, but for who is open.
    extent: Extent,
    /// When it was asked, and is answered at the latest.
    since: Nanos,
    ends: Nanos,
    /// [`Questions::changes`] when it was asked.
    changes: u64,
}

/// All questions that are open.
#[derive(Debug, Default)]
pub(super) struct Questions {
    asked: BTreeMap<Key, Asked>,
    /// When they are answered at the latest.
    ends: BTreeSet<(Nanos, Key)>,
    /// How often it has changed whom this broker reaches, or how.
    changes: u64,
    /// Who has not answered in time since then; `None` is this broker's own core.
    silent: BTreeMap<Option<LinkId>, Silence>,
}

/// Of somebody who has not answered a question in time.
#[derive(Debug)]
struct Silence {
    /// When that was asked.
    since: Nanos,
    /// A question that was asked later and not waited for, and when an answer to it is late.
    tried: Option<(Key, Nanos)>,
}

impl Questions {
    /// Whether a question is put to somebody without waiting for the answer; notes that it is.
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

    /// An answer has come from somebody who was silent before: it is waited for again if that was in time.
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
    /// Asks all but who has asked.
    pub(super) fn ask(&mut self, from: Option<LinkId>, question: LookUp, now: Nanos) {
        let key = key(&question);
        let asked = &self.questions.asked;
        if asked.contains_key(&key) || asked.len() >= MAX_QUESTIONS {
            // One that comes on a second way is answered on the first, if that is still one. A core
            // would ask again at once where there is no room: its client has waited for long enough soon.
            if from.is_some() {
                self.tell_answers(from, &question, Answers::default(), Extent::Incomplete);
            }
            return;
        }
        let links = self.links.carrying();
        let others = links.filter(|link| Some(*link) != from);
        let mut open: BTreeSet<LinkId> = others.collect();
        // Who is asked further away answers earlier, so that no answer comes too late.
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
        let asked = Asked {
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

    /// This broker's own core has answered the first of the questions for that CONNECT that are about that
    /// client and wait for it.
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

    /// A neighbour has answered, for itself and those behind it.
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
            self.tell_answers(asked.from, &asked.question, asked.answers, extent);
        }
    }

    /// Answers the questions whose time is over.
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

    /// It has changed whom this broker reaches, or how; nobody answers over links that do not carry any
    /// more.
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

    /// Tells who has asked what was answered.
    pub(super) fn tell_answers(
        &mut self,
        to: Option<LinkId>,
        question: &LookUp,
        answers: Answers,
        extent: Extent,
    ) {
        let Some(link) = to else {
            return self.tell_own_answers(question, answers, extent);
        };
        if !self.links.carries(link) {
            return;
        }
        let looked_up = LookedUp {
            at: question.at.clone(),
            round: question.round,
            answers,
            extent,
        };
        self.outputs.send(link, &Message::LookedUp(looked_up));
    }

    fn tell_own_answers(&mut self, question: &LookUp, answers: Answers, extent: Extent) {
        self.outputs.push(Output::Located {
            at: question.at.clone(),
            client: question.client.clone(),
            answers,
            extent: self.extent(extent),
        });
    }
}
