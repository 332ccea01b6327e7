//! Changes of many switches without losing or doubling a packet.
//!
//! An update has three stages. *Lay*: entries that no packet needs yet. *Flip*:
//! once all switches confirmed those, the entries where packets enter, each at
//! once. *Remove*: when all packets that entered before have left, what none
//! needs any more. Updates run side by side; one that changes a stream for which
//! another still waits takes its place.

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use crate::event::Change;
use crate::plan::{Header, Match};

/// A change of one switch, and whose stream it is about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub(crate) header: Header,
    pub(crate) datapath: u64,
    pub(crate) change: Change,
}

impl Item {
    fn place(&self) -> Option<(u64, Match)> {
        match &self.change {
            Change::Set(matching, _) | Change::Unset(matching) => Some((self.datapath, *matching)),
            Change::Reset | Change::Base => None,
        }
    }
}

/// What an update is to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stages<K> {
    pub(crate) lay: Vec<Item>,
    pub(crate) flip: Vec<Item>,
    pub(crate) remove: Vec<Item>,
    /// Whom to answer when it is in effect.
    pub(crate) answer: Vec<K>,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Progress<K> {
    /// Changes to be made, and the number that their confirmation carries.
    pub(crate) work: Vec<(u64, u64, Vec<Change>)>,
    /// To be answered: in effect, or why not.
    pub(crate) answers: Vec<(K, Option<String>)>,
    /// Streams whose last entries are gone.
    pub(crate) removed: Vec<Header>,
}

impl<K> Default for Progress<K> {
    fn default() -> Self {
        Self {
            work: Vec::new(),
            answers: Vec::new(),
            removed: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Lay,
    Flip,
    Drain,
}

#[derive(Debug, Clone)]
struct Update<K> {
    stage: Stage,
    stages: Stages<K>,
    /// Switches that have not confirmed the stage, with the number of the step.
    waiting: BTreeMap<u64, u64>,
    /// When to stop waiting for them, or for packets to leave.
    until: Nanos,
    problem: Option<String>,
}

/// Updates that are under way.
#[derive(Debug, Clone)]
pub(crate) struct Updates<K> {
    running: BTreeMap<u64, Update<K>>,
    next: u64,
    steps: u64,
    drain: Nanos,
    confirm: Nanos,
}

impl<K: Clone + Ord> Updates<K> {
    pub(crate) fn new(drain: Nanos, confirm: Nanos) -> Self {
        Self {
            running: BTreeMap::new(),
            next: 0,
            steps: 0,
            drain,
            confirm,
        }
    }

    /// Begins an update. Steps are confirmed with [`done`](Self::done).
    pub(crate) fn start(&mut self, mut stages: Stages<K>, now: Nanos, progress: &mut Progress<K>) {
        let headers: BTreeSet<Header> = stages.flip.iter().map(|item| item.header).collect();
        let set: BTreeSet<(u64, Match)> = stages
            .lay
            .iter()
            .chain(&stages.flip)
            .filter_map(Item::place)
            .collect();
        for update in self.running.values_mut() {
            if update.stage == Stage::Lay {
                // What it laid will never be used.
                let theirs = &mut update.stages;
                theirs.flip.retain(|item| !headers.contains(&item.header));
                let (moved, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut theirs.remove)
                    .into_iter()
                    .partition(|item| headers.contains(&item.header));
                theirs.remove = kept;
                let laid = theirs
                    .lay
                    .iter()
                    .filter(|item| headers.contains(&item.header));
                let laid = laid.filter_map(|item| {
                    let (datapath, matching) = item.place()?;
                    let change = Change::Unset(matching);
                    Some(Item {
                        header: item.header,
                        datapath,
                        change,
                    })
                });
                stages.remove.extend(moved);
                stages.remove.extend(laid);
            }
            // What is used again is not removed.
            let again = |item: &Item| item.place().is_some_and(|place| set.contains(&place));
            update.stages.remove.retain(|item| !again(item));
        }
        stages
            .remove
            .retain(|item| !item.place().is_some_and(|place| set.contains(&place)));
        let mut seen = BTreeSet::new();
        stages
            .remove
            .retain(|item| item.place().is_none_or(|place| seen.insert(place)));
        let number = self.next;
        self.next += 1;
        let update = Update {
            stage: Stage::Lay,
            stages,
            waiting: BTreeMap::new(),
            until: now,
            problem: None,
        };
        self.running.insert(number, update);
        self.enter(number, Stage::Lay, now, progress);
    }

    /// A switch carried out a step, or says why it could not.
    pub(crate) fn done(
        &mut self,
        datapath: u64,
        step: u64,
        problem: Option<String>,
        now: Nanos,
        progress: &mut Progress<K>,
    ) {
        let waits = |update: &Update<K>| update.waiting.get(&datapath) == Some(&step);
        let Some((number, update)) = self.running.iter_mut().find(|(_, update)| waits(update))
        else {
            return;
        };
        let number = *number;
        update.waiting.remove(&datapath);
        update.problem = update.problem.take().or(problem);
        if update.waiting.is_empty() {
            self.complete(number, now, progress);
        }
    }

    /// A switch is away: nobody waits for it; it is compared with the plan when
    /// it is back.
    pub(crate) fn away(&mut self, datapath: u64, now: Nanos, progress: &mut Progress<K>) {
        let waiting = self
            .running
            .values()
            .filter_map(|update| update.waiting.get(&datapath));
        for step in waiting.copied().collect::<Vec<_>>() {
            self.done(datapath, step, None, now, progress);
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Nanos, progress: &mut Progress<K>) {
        let due: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, update)| update.until <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in due {
            if let Some(update) = self.running.get_mut(&number)
                && update.stage != Stage::Drain
            {
                update
                    .problem
                    .get_or_insert_with(|| "a switch does not confirm changes".into());
                update.waiting.clear();
            }
            self.complete(number, now, progress);
        }
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.running.values().map(|update| update.until).min()
    }

    /// Whether a later update is about to answer this.
    pub(crate) fn will_answer(&self, key: &K) -> bool {
        let before = |update: &&Update<K>| update.stage != Stage::Drain;
        self.running
            .values()
            .filter(before)
            .any(|update| update.stages.answer.contains(key))
    }

    /// All that was begun is finished.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// A stage is over.
    fn complete(&mut self, number: u64, now: Nanos, progress: &mut Progress<K>) {
        let Some(update) = self.running.get_mut(&number) else {
            return;
        };
        let answers = |update: &mut Update<K>, progress: &mut Progress<K>| {
            let problem = update.problem.clone();
            let keys = std::mem::take(&mut update.stages.answer).into_iter();
            progress
                .answers
                .extend(keys.map(|key| (key, problem.clone())));
        };
        match (update.stage, &update.problem) {
            (Stage::Lay, None) => self.enter(number, Stage::Flip, now, progress),
            // The way is not whole: what was in effect stays so until whoever
            // is told decides.
            (Stage::Lay, Some(_)) => {
                answers(update, progress);
                self.running.remove(&number);
            }
            (Stage::Flip, _) => {
                answers(update, progress);
                let Some(update) = self.running.get_mut(&number) else {
                    return;
                };
                update.stage = Stage::Drain;
                update.until = now + self.drain;
                if update.stages.remove.is_empty() {
                    self.running.remove(&number);
                }
            }
            (Stage::Drain, _) => {
                let Some(update) = self.running.remove(&number) else {
                    return;
                };
                progress
                    .removed
                    .extend(update.stages.remove.iter().map(|item| item.header));
                // Nobody waits for a removal.
                for (datapath, changes) in by_switch(update.stages.remove) {
                    self.steps += 1;
                    progress.work.push((datapath, self.steps, changes));
                }
            }
        }
    }

    fn enter(&mut self, number: u64, stage: Stage, now: Nanos, progress: &mut Progress<K>) {
        let Some(update) = self.running.get_mut(&number) else {
            return;
        };
        update.stage = stage;
        update.until = now + self.confirm;
        let items = match stage {
            Stage::Lay => update.stages.lay.clone(),
            _ => std::mem::take(&mut update.stages.flip),
        };
        if items.is_empty() {
            return self.complete(number, now, progress);
        }
        for (datapath, changes) in by_switch(items) {
            self.steps += 1;
            update.waiting.insert(datapath, self.steps);
            progress.work.push((datapath, self.steps, changes));
        }
    }
}

fn by_switch(items: Vec<Item>) -> BTreeMap<u64, Vec<Change>> {
    let mut all: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
    for item in items {
        all.entry(item.datapath).or_default().push(item.change);
    }
    all
}
