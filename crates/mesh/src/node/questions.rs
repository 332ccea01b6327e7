//! Questions about a client's session that go over the tree to every broker.
//!
//! Each broker answers when all behind it have, so that who asks knows at once when nobody has
//! anything. A link that is lost, and one that does not answer in time, has answered with no.
//!
//! Such an answer is *incomplete*, and so is every one that it is a part of: who asked asks again later.
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
use crate::transfer::{HomeId, Located};
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
    /// Whether one of the answers is.
    incomplete: bool,
    /// When it is answered at the latest.
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
}

impl Questions {
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
                self.tell_answers(from, &question, Answers::default(), true);
            }
            return;
        }
        let links = self.links.carrying();
        let others = links.filter(|link| Some(*link) != from);
        let open: BTreeSet<LinkId> = others.collect();
        // Who is asked further away answers earlier, so that no answer comes too late.
        let further = Message::LookUp(LookUp {
            wait: question.wait - question.wait / 8,
            ..question.clone()
        });
        for link in &open {
            self.outputs.send(*link, &further);
        }
        let longest = self.settings.session_wait.max(self.settings.heal);
        let ends = now + Nanos::from_millis(u64::from(question.wait)).min(longest);
        let own = from.is_some();
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
        let asked = Asked {
            question,
            from,
            open,
            own,
            answers: Answers::default(),
            incomplete: false,
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
    ) {
        let questions = (by.clone(), micros, 0)..=(by.clone(), micros, u64::MAX);
        let mut questions = self.questions.asked.range_mut(questions);
        if let Some((key, asked)) =
            questions.find(|(_, it)| it.own && *it.question.client == *client)
        {
            let key = key.clone();
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
        incomplete: bool,
    ) {
        if let Some(asked) = self.questions.asked.get_mut(&key)
            && asked.open.remove(&from)
        {
            asked.answers.extend(answers);
            asked.incomplete |= incomplete;
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
            let incomplete = asked.incomplete || missed || changed;
            self.tell_answers(asked.from, &asked.question, asked.answers, incomplete);
        }
    }

    /// Answers the questions whose time is over.
    pub(super) fn answer_late_questions(&mut self, now: Nanos) {
        while self.questions.next().is_some_and(|at| at <= now)
            && let Some((_, key)) = self.questions.ends.pop_first()
        {
            self.answer(key);
        }
    }

    /// It has changed whom this broker reaches, or how; nobody answers over links that do not carry any
    /// more.
    pub(super) fn reach_of_questions_changed(&mut self) {
        self.questions.changes += 1;
        let links = &self.links;
        let carries = |link: &LinkId| links.get(*link).is_some_and(|link| link.edge.carries());
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
        incomplete: bool,
    ) {
        let Some(link) = to else {
            return self.tell_own_answers(question, answers, incomplete);
        };
        if !self.links.carries(link) {
            return;
        }
        let looked_up = LookedUp {
            at: question.at.clone(),
            round: question.round,
            answers,
            incomplete,
        };
        self.outputs.send(link, &Message::LookedUp(looked_up));
    }

    fn tell_own_answers(&mut self, question: &LookUp, answers: Answers, incomplete: bool) {
        self.outputs.push(Output::Located {
            at: question.at.clone(),
            client: question.client.clone(),
            answers,
            extent: self.extent(incomplete),
        });
    }
}
