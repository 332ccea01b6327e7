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
        let unwanted: BTreeSet<(u64, Match)> = places(&stages.remove).collect();
        let mut set: BTreeSet<(u64, Match)> =
            places(&stages.lay).chain(places(&stages.flip)).collect();
        for update in self.running.values_mut() {
            let theirs = &mut update.stages;
            let is_ours = |item: &Item| headers.contains(&item.header);
            if update.stage == Stage::Lay && theirs.flip.iter().any(is_ours) {
                // It waits for entries that this one needs, too: then so does
                // this one, and does in its place what was to follow.
                let open = |item: &Item| {
                    let place = item.place();
                    place.is_some_and(|place| !set.contains(&place) && !unwanted.contains(&place))
                };
                let (flips, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut theirs.flip)
                    .into_iter()
                    .partition(is_ours);
                theirs.flip = kept;
                let flips: Vec<Item> = flips.into_iter().filter(open).collect();
                let needed = theirs.lay.iter().filter(|item| is_ours(item) && open(item));
                let needed: Vec<Item> = needed.cloned().collect();
                // What is not in use yet can be changed before it is.
                let laid: BTreeSet<(u64, Match)> = places(&theirs.lay).collect();
                let unused = |item: &Item| item.place().is_some_and(|place| laid.contains(&place));
                let (early, late): (Vec<_>, Vec<_>) = std::mem::take(&mut stages.flip)
                    .into_iter()
                    .partition(unused);
                stages.lay.extend(early);
                stages.flip = late;
                stages.flip.extend(flips);
                let (moved, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut theirs.remove)
                    .into_iter()
                    .partition(is_ours);
                theirs.remove = kept;
                stages.remove.extend(moved);
                match theirs.flip.is_empty() {
                    true => stages.answer.append(&mut theirs.answer),
                    // Both are to be in effect.
                    false => stages.answer.extend(theirs.answer.iter().cloned()),
                }
                set.extend(places(&needed));
                stages.lay.extend(needed);
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

fn places(items: &[Item]) -> impl Iterator<Item = (u64, Match)> {
    items.iter().filter_map(Item::place)
}

fn by_switch(items: Vec<Item>) -> BTreeMap<u64, Vec<Change>> {
    let mut all: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
    for item in items {
        all.entry(item.datapath).or_default().push(item.change);
    }
    all
}

#[cfg(test)]
mod tests {
    use punctual_model::srt::Protocol;

    use super::*;
    use crate::plan::{Entry, Leg};

    fn header(port: u16) -> Header {
        Header {
            protocol: Protocol::Udp,
            source: [10, 0, 0, 1].into(),
            source_port: Some(port),
            destination: [10, 0, 0, 2].into(),
            destination_port: None,
        }
    }

    fn matching(dscp: Option<u8>) -> Match {
        Match {
            in_port: 1,
            header: header(1),
            dscp,
            tagged: false,
        }
    }

    /// An entry of stream 1 at a switch, which leads to a port.
    fn set(datapath: u64, dscp: Option<u8>, port: u32) -> Item {
        let leg = Leg {
            port,
            queue: 5,
            hand_over: None,
            detour: None,
        };
        let entry = Entry {
            owner: "s".into(),
            police: None,
            mark: None,
            legs: vec![leg],
        };
        Item {
            header: header(1),
            datapath,
            change: Change::Set(matching(dscp), entry),
        }
    }

    fn unset(datapath: u64, dscp: Option<u8>) -> Item {
        Item {
            header: header(1),
            datapath,
            change: Change::Unset(matching(dscp)),
        }
    }

    type Taken = Vec<(u64, u64, Vec<Change>)>;

    fn take(progress: &mut Progress<u8>) -> (Taken, Vec<(u8, Option<String>)>) {
        let taken = std::mem::take(progress);
        (taken.work, taken.answers)
    }

    fn updates() -> (Updates<u8>, Progress<u8>) {
        let updates = Updates::new(Nanos(100), Nanos(1_000));
        (updates, Progress::default())
    }

    #[test]
    fn stages_follow_one_another() {
        let (mut updates, mut progress) = updates();
        let stages = Stages {
            lay: vec![set(2, Some(41), 3), set(3, Some(41), 3)],
            flip: vec![set(1, None, 2)],
            remove: vec![unset(2, Some(40))],
            answer: vec![7],
        };
        updates.start(stages, Nanos(0), &mut progress);
        let (laid, _) = take(&mut progress);
        assert_eq!(laid.len(), 2);
        assert!(updates.will_answer(&7));
        updates.done(2, laid[0].1, None, Nanos(1), &mut progress);
        assert_eq!(take(&mut progress), (vec![], vec![]), "one is missing");
        updates.done(3, laid[1].1, None, Nanos(2), &mut progress);
        let (flipped, answers) = take(&mut progress);
        assert_eq!((flipped.len(), flipped[0].0, answers.len()), (1, 1, 0));
        updates.done(1, flipped[0].1, None, Nanos(3), &mut progress);
        assert_eq!(take(&mut progress), (vec![], vec![(7, None)]));
        updates.tick(Nanos(102), &mut progress);
        assert_eq!(
            take(&mut progress),
            (vec![], vec![]),
            "packets may be on their way"
        );
        updates.tick(Nanos(103), &mut progress);
        let (removed, _) = take(&mut progress);
        assert_eq!(removed[0].2, [unset(2, Some(40)).change]);
        assert!(updates.is_idle());
    }

    #[test]
    fn entries_that_are_not_confirmed_are_waited_for_by_who_needs_them() {
        let (mut updates, mut progress) = updates();
        let first = Stages {
            lay: vec![set(2, Some(40), 3)],
            flip: vec![set(1, None, 2)],
            remove: vec![],
            answer: vec![1],
        };
        updates.start(first, Nanos(0), &mut progress);
        let (laid, _) = take(&mut progress);
        // Only the entry where packets enter is another one.
        let second = Stages {
            flip: vec![set(1, None, 4)],
            answer: vec![2],
            ..Stages::default()
        };
        updates.start(second, Nanos(0), &mut progress);
        let (again, _) = take(&mut progress);
        assert_eq!(again.len(), 1, "{again:?}");
        assert_eq!(again[0].2, laid[0].2, "no flip before it is there");
        updates.done(2, laid[0].1, None, Nanos(1), &mut progress);
        assert_eq!(
            take(&mut progress),
            (vec![], vec![]),
            "the first has nothing to flip"
        );
        updates.done(2, again[0].1, None, Nanos(1), &mut progress);
        let (flipped, _) = take(&mut progress);
        assert_eq!(flipped[0].2, [set(1, None, 4).change]);
        updates.done(1, flipped[0].1, None, Nanos(1), &mut progress);
        let (_, mut answers) = take(&mut progress);
        answers.sort_unstable();
        assert_eq!(answers, [(1, None), (2, None)]);
        updates.tick(Nanos(10_000), &mut progress);
        assert_eq!(
            take(&mut progress),
            (vec![], vec![]),
            "nothing that is in use is removed"
        );
        assert!(updates.is_idle());
    }

    #[test]
    fn what_another_was_to_flip_is_flipped() {
        let (mut updates, mut progress) = updates();
        let first = Stages {
            lay: vec![set(2, Some(40), 3)],
            flip: vec![set(1, None, 2)],
            ..Stages::default()
        };
        updates.start(first, Nanos(0), &mut progress);
        let (laid, _) = take(&mut progress);
        // The entry at switch 2 is to lead elsewhere.
        let second = Stages {
            flip: vec![set(2, Some(40), 4)],
            ..Stages::default()
        };
        updates.start(second, Nanos(0), &mut progress);
        let (flipped, _) = take(&mut progress);
        let changes = flipped
            .iter()
            .map(|(datapath, _, changes)| (*datapath, changes.len()));
        let changes: Vec<_> = changes.collect();
        assert_eq!(changes, [(2, 1)], "after {laid:?}");
        updates.done(2, flipped[0].1, None, Nanos(1), &mut progress);
        let (flipped, _) = take(&mut progress);
        assert_eq!(flipped[0].2, [set(1, None, 2).change]);
    }

    #[test]
    fn nothing_is_flipped_when_a_switch_does_not_confirm() {
        let (mut updates, mut progress) = updates();
        let stages = || Stages {
            lay: vec![set(2, Some(41), 3)],
            flip: vec![set(1, None, 2)],
            remove: vec![],
            answer: vec![7],
        };
        updates.start(stages(), Nanos(0), &mut progress);
        take(&mut progress);
        updates.tick(Nanos(1_000), &mut progress);
        let (work, answers) = take(&mut progress);
        assert!(work.is_empty() && answers[0].1.is_some(), "{answers:?}");
        // A switch that is away is not waited for.
        updates.start(stages(), Nanos(0), &mut progress);
        take(&mut progress);
        updates.away(2, Nanos(1), &mut progress);
        assert_eq!(take(&mut progress).0.len(), 1);
    }
}
