//! Changes of many switches without losing or doubling a packet.
//!
//! An update has three stages. *Lay* installs entries that no packet uses yet.
//! *Flip*: once all switches have confirmed those, the entries where packets
//! enter are replaced, each atomically. *Remove* deletes the old entries when all
//! packets that entered before have left.
//!
//! The changes of a stream are the difference between the entries that were sent
//! to switches so far and the target entries; changes of an earlier update that
//! were not sent yet do not count. Updates of different streams run concurrently.
//! A new update of a stream replaces one that is in the stage Lay: changes of the
//! old one that were not sent are dropped. From an update past that stage it
//! withdraws only the removals of entries that are in its target.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use punctual_model::Nanos;

use crate::event::Change;
use crate::plan::{Entry, Header, Match};
use crate::streams::PlacedEntry;

/// A switch, and an entry there.
type Place = (u64, Match);

/// What a stream shall be on the switches.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) header: Header,
    /// None if there is to be nothing of it.
    pub(crate) entries: Vec<PlacedEntry>,
    /// Whether its packets may enter before the other entries are installed,
    /// while no switch has an entry of it: without an entry they are forwarded
    /// like all other packets.
    pub(crate) at_once: bool,
}

/// Actions that are due now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Progress<K> {
    /// Changes to be made, and the number that their confirmation carries.
    pub(crate) work: Vec<(u64, u64, Vec<Change>)>,
    /// To be answered: in effect, or why not.
    pub(crate) answers: Vec<(K, Option<String>)>,
    /// Streams of which no switch has an entry any more.
    pub(crate) removed: Vec<Header>,
    /// Streams whose update failed at a switch.
    pub(crate) given_up: Vec<Header>,
}

impl<K> Default for Progress<K> {
    fn default() -> Self {
        Self {
            work: Vec::new(),
            answers: Vec::new(),
            removed: Vec::new(),
            given_up: Vec::new(),
        }
    }
}

impl<K> Progress<K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.work.is_empty()
            && self.answers.is_empty()
            && self.removed.is_empty()
            && self.given_up.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Lay,
    Flip,
    Drain,
}

/// An entry that was sent to a switch.
#[derive(Debug, Clone)]
struct SentEntry {
    entry: Entry,
    led: Inbound,
}

/// Whether other entries lead packets to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inbound {
    /// Once this update flips, when every switch has confirmed its entries.
    Later(u64),
    Now,
    /// Packets that entered before may be on their path to it.
    NoMore,
}

/// What an update is to do about a stream, by its stages.
#[derive(Debug, Clone, Default)]
struct Part {
    lay: Vec<(u64, Change)>,
    flip: Vec<(u64, Change)>,
    remove: BTreeSet<Place>,
}

#[derive(Debug, Clone)]
struct Update<K> {
    stage: Stage,
    parts: BTreeMap<Header, Part>,
    /// Requests to answer when it is in effect.
    answer: BTreeSet<K>,
    /// Switches that have not confirmed the stage, with the number of the step.
    waiting: BTreeMap<u64, u64>,
    /// When to stop waiting for them, or for packets to leave.
    until: Nanos,
    problem: Option<String>,
}

/// Updates that are under way.
#[derive(Debug, Clone)]
pub(crate) struct Updates<K> {
    told: HashMap<Header, BTreeMap<Place, SentEntry>>,
    running: BTreeMap<u64, Update<K>>,
    next: u64,
    steps: u64,
    drain: Nanos,
    confirm: Nanos,
}

impl<K: Clone + Ord> Updates<K> {
    pub(crate) fn new(drain: Nanos, confirm: Nanos) -> Self {
        Self {
            told: HashMap::new(),
            running: BTreeMap::new(),
            next: 0,
            steps: 0,
            drain,
            confirm,
        }
    }

    /// Begins an update of streams to their targets, after which these requests
    /// are answered. Steps are confirmed with [`done`](Self::done).
    pub(crate) fn start(
        &mut self,
        targets: Vec<Target>,
        answer: impl IntoIterator<Item = K>,
        now: Nanos,
        progress: &mut Progress<K>,
    ) {
        let mut answer: BTreeSet<K> = answer.into_iter().collect();
        let mut parts = BTreeMap::new();
        for target in targets {
            let header = target.header;
            let wanted: BTreeMap<Place, Entry> = target
                .entries
                .into_iter()
                .map(|each| ((each.datapath, each.matching), each.entry))
                .collect();
            let mut leaving = BTreeSet::new();
            for update in self.running.values_mut() {
                let Slot::Occupied(mut part) = update.parts.entry(header) else {
                    continue;
                };
                match update.stage {
                    Stage::Lay => {
                        part.remove();
                        // Requests that wait for the old update wait for this
                        // one, too.
                        answer.extend(update.answer.iter().cloned());
                    }
                    Stage::Flip | Stage::Drain => {
                        let remove = &mut part.get_mut().remove;
                        remove.retain(|place| !wanted.contains_key(place));
                        leaving.extend(remove.iter().copied());
                    }
                }
            }
            let told = self.told.entry(header).or_default();
            if told.is_empty() && wanted.is_empty() {
                self.told.remove(&header);
                progress.removed.push(header);
                continue;
            }
            parts.insert(header, part(told, wanted, &leaving, target.at_once));
        }
        self.running
            .retain(|_, update| update.stage != Stage::Lay || !update.parts.is_empty());
        let number = self.next;
        self.next += 1;
        let update = Update {
            stage: Stage::Lay,
            parts,
            answer,
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

    /// A switch has disconnected: updates do not wait for it; it is compared with
    /// the plan when it returns.
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
            .any(|update| update.answer.contains(key))
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
            let keys = std::mem::take(&mut update.answer).into_iter();
            progress
                .answers
                .extend(keys.map(|key| (key, problem.clone())));
        };
        match (update.stage, &update.problem) {
            (Stage::Lay, None) => self.enter(number, Stage::Flip, now, progress),
            // The path is incomplete: the old entries stay in effect until the
            // controller decides.
            (Stage::Lay, Some(_)) => {
                answers(update, progress);
                let parts = std::mem::take(&mut update.parts);
                progress.given_up.extend(parts.into_keys());
                self.running.remove(&number);
            }
            (Stage::Flip, _) => {
                answers(update, progress);
                update.stage = Stage::Drain;
                update.until = now + self.drain;
                for (header, part) in &update.parts {
                    let Some(told) = self.told.get_mut(header) else {
                        continue;
                    };
                    for place in &part.remove {
                        if let Some(told) = told.get_mut(place) {
                            told.led = Inbound::NoMore;
                        }
                    }
                }
                if update.parts.values().all(|part| part.remove.is_empty()) {
                    self.running.remove(&number);
                }
            }
            (Stage::Drain, _) => {
                let Some(update) = self.running.remove(&number) else {
                    return;
                };
                let mut changes = Vec::new();
                for (header, part) in update.parts {
                    let unset = |(datapath, matching)| (datapath, Change::Unset(matching));
                    let part: Vec<_> = part.remove.into_iter().map(unset).collect();
                    self.tell(header, &part, Inbound::NoMore, progress);
                    changes.extend(part);
                }
                // No request waits for a removal.
                self.step(changes, progress);
            }
        }
    }

    fn enter(&mut self, number: u64, stage: Stage, now: Nanos, progress: &mut Progress<K>) {
        let Some(update) = self.running.get_mut(&number) else {
            return;
        };
        update.stage = stage;
        update.until = now + self.confirm;
        let mut taken = Vec::with_capacity(update.parts.len());
        for (header, part) in &mut update.parts {
            let changes = match stage {
                Stage::Lay => std::mem::take(&mut part.lay),
                Stage::Flip | Stage::Drain => std::mem::take(&mut part.flip),
            };
            taken.push((*header, changes));
        }
        let led = match stage {
            Stage::Lay => Inbound::Later(number),
            Stage::Flip | Stage::Drain => Inbound::Now,
        };
        let mut changes = Vec::new();
        for (header, part) in taken {
            if stage == Stage::Flip {
                let told = self.told.get_mut(&header).into_iter().flatten();
                for (_, told) in told.filter(|(_, told)| told.led == Inbound::Later(number)) {
                    told.led = Inbound::Now;
                }
            }
            self.tell(header, &part, led, progress);
            changes.extend(part);
        }
        let waiting = self.step(changes, progress);
        if waiting.is_empty() {
            return self.complete(number, now, progress);
        }
        if let Some(update) = self.running.get_mut(&number) {
            update.waiting = waiting;
        }
    }

    /// Records the entries of a stream that are sent to switches.
    fn tell(
        &mut self,
        header: Header,
        changes: &[(u64, Change)],
        led: Inbound,
        progress: &mut Progress<K>,
    ) {
        if changes.is_empty() {
            return;
        }
        let told = self.told.entry(header).or_default();
        for (datapath, change) in changes {
            match change {
                Change::Set(matching, entry) => {
                    let entry = entry.clone();
                    told.insert((*datapath, *matching), SentEntry { entry, led });
                }
                Change::Unset(matching) => {
                    told.remove(&(*datapath, *matching));
                }
                // They are about no stream.
                Change::Reset | Change::Base => {}
            }
        }
        if told.is_empty() {
            self.told.remove(&header);
            progress.removed.push(header);
        }
    }

    /// Has each switch make its changes; the numbers of the steps.
    fn step(
        &mut self,
        changes: Vec<(u64, Change)>,
        progress: &mut Progress<K>,
    ) -> BTreeMap<u64, u64> {
        let mut by_switch: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
        for (datapath, change) in changes {
            by_switch.entry(datapath).or_default().push(change);
        }
        let mut steps = BTreeMap::new();
        for (datapath, changes) in by_switch {
            self.steps += 1;
            steps.insert(datapath, self.steps);
            progress.work.push((datapath, self.steps, changes));
        }
        steps
    }
}

/// The changes of a stream from the entries that were sent to the target entries.
/// Another update removes the places in `leaving`.
fn part(
    told: &BTreeMap<Place, SentEntry>,
    wanted: BTreeMap<Place, Entry>,
    leaving: &BTreeSet<Place>,
    at_once: bool,
) -> Part {
    let mut part = Part::default();
    let gone = told
        .keys()
        .filter(|place| !wanted.contains_key(place) && !leaving.contains(place));
    for place in gone {
        match place.1.is_ingress() {
            true => part.flip.push((place.0, Change::Unset(place.1))),
            false => {
                part.remove.insert(*place);
            }
        }
    }
    let at_once = at_once && told.is_empty();
    for ((datapath, matching), entry) in wanted {
        let known = told.get(&(datapath, matching));
        let is_same = known.is_some_and(|known| known.entry == entry);
        let stage = match known.map(|known| known.led) {
            Some(Inbound::Now) if is_same => continue,
            Some(Inbound::Now) => &mut part.flip,
            // It is to be confirmed before it is in use, also if the switch has it.
            _ if !matching.is_ingress() || is_same || at_once => &mut part.lay,
            _ => &mut part.flip,
        };
        stage.push((datapath, Change::Set(matching, entry)));
    }
    part
}

#[cfg(test)]
mod tests {
    use punctual_model::Rng;
    use punctual_model::srt::Protocol;

    use super::*;
    use crate::plan::{Leg, Mark};

    type TakenChanges = Vec<(u64, u64, Vec<Change>)>;

    fn header(port: u16) -> Header {
        Header {
            protocol: Protocol::Udp,
            source: [10, 0, 0, 1].into(),
            source_port: Some(port),
            destination: [10, 0, 0, 2].into(),
            destination_port: None,
        }
    }

    /// An entry of a stream at a switch: behind a mark, or where packets enter and get one.
    fn placed(stream: u16, datapath: u64, dscp: Option<u8>, port: u32, mark: u8) -> PlacedEntry {
        PlacedEntry {
            datapath,
            matching: Match {
                in_port: 1,
                header: header(stream),
                dscp,
                tagged: false,
            },
            entry: Entry {
                owner: "s".into(),
                police: None,
                mark: dscp.is_none().then_some(Mark {
                    dscp: mark,
                    pcp: None,
                }),
                legs: vec![Leg {
                    port,
                    queue: 5,
                    hand_over: None,
                    detour: None,
                }],
            },
        }
    }

    /// A stream that enters at switch 1 and goes on from there with a mark over these switches.
    fn version(stream: u16, mark: u8, behind: &[(u64, u32)]) -> Target {
        let ingress = placed(stream, 1, None, 2, mark);
        let behind = behind.iter();
        let behind = behind.map(|(at, port)| placed(stream, *at, Some(mark), *port, mark));
        Target {
            header: header(stream),
            entries: [ingress].into_iter().chain(behind).collect(),
            at_once: false,
        }
    }

    fn nothing(stream: u16) -> Target {
        Target {
            header: header(stream),
            entries: Vec::new(),
            at_once: true,
        }
    }

    fn take(progress: &mut Progress<u8>) -> (TakenChanges, Vec<(u8, Option<String>)>) {
        let taken = std::mem::take(progress);
        (taken.work, taken.answers)
    }

    fn switches(taken: &TakenChanges) -> Vec<u64> {
        taken.iter().map(|(datapath, ..)| *datapath).collect()
    }

    fn updates() -> (Updates<u8>, Progress<u8>) {
        let updates = Updates::new(Nanos(100), Nanos(1_000));
        (updates, Progress::default())
    }

    /// All switches do what they are told at once, and time passes.
    fn finish(updates: &mut Updates<u8>, progress: &mut Progress<u8>) -> Vec<Change> {
        let mut all = Vec::new();
        for _ in 0..100 {
            let (work, _) = take(progress);
            if work.is_empty() && updates.is_idle() {
                return all;
            }
            if work.is_empty()
                && let Some(now) = updates.next()
            {
                updates.tick(now, progress);
            }
            for (datapath, step, changes) in work {
                all.extend(changes);
                updates.done(datapath, step, None, Nanos(0), progress);
            }
        }
        panic!("it does not come to rest");
    }

    #[test]
    fn stages_follow_one_another() {
        let (mut updates, mut progress) = updates();
        updates.start(vec![version(1, 40, &[(2, 3)])], [], Nanos(0), &mut progress);
        finish(&mut updates, &mut progress);
        updates.start(
            vec![version(1, 41, &[(2, 3), (3, 3)])],
            [7],
            Nanos(0),
            &mut progress,
        );
        let (laid, _) = take(&mut progress);
        assert_eq!(switches(&laid), [2, 3]);
        assert!(updates.will_answer(&7));
        updates.done(2, laid[0].1, None, Nanos(1), &mut progress);
        assert_eq!(take(&mut progress), (vec![], vec![]), "one is missing");
        updates.done(3, laid[1].1, None, Nanos(2), &mut progress);
        let (flipped, answers) = take(&mut progress);
        assert_eq!((switches(&flipped), answers.len()), (vec![1], 0));
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
        let old = placed(1, 2, Some(40), 3, 40).matching;
        assert_eq!(removed[0].2, [Change::Unset(old)]);
        assert!(updates.is_idle());
    }

    #[test]
    fn entries_that_are_not_confirmed_are_waited_for_by_who_needs_them() {
        let (mut updates, mut progress) = updates();
        let first = version(1, 40, &[(2, 3)]);
        let mut second = first.clone();
        updates.start(vec![first], [1], Nanos(0), &mut progress);
        let (laid, _) = take(&mut progress);
        // Only the entry where packets enter is another one.
        second.entries[0].entry.legs[0].port = 4;
        let wanted = second.entries[0].clone();
        updates.start(vec![second], [2], Nanos(0), &mut progress);
        let (again, _) = take(&mut progress);
        assert_eq!(again.len(), 1, "{again:?}");
        assert_eq!(again[0].2, laid[0].2, "no flip before it is there");
        updates.done(2, laid[0].1, None, Nanos(1), &mut progress);
        assert_eq!(
            take(&mut progress),
            (vec![], vec![]),
            "the second has taken the place of the first"
        );
        updates.done(2, again[0].1, None, Nanos(1), &mut progress);
        let (flipped, _) = take(&mut progress);
        assert_eq!(
            flipped[0].2,
            [Change::Set(wanted.matching, wanted.entry.clone())]
        );
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
    fn what_is_not_in_use_yet_is_changed_before_it_is() {
        let (mut updates, mut progress) = updates();
        let first = version(1, 40, &[(2, 3), (3, 3)]);
        updates.start(vec![first], [], Nanos(0), &mut progress);
        take(&mut progress);
        // The entry at switch 2 is to lead elsewhere.
        let second = version(1, 40, &[(2, 4), (3, 3)]);
        updates.start(vec![second.clone()], [], Nanos(0), &mut progress);
        let (laid, _) = take(&mut progress);
        assert_eq!(switches(&laid), [2, 3], "{laid:?}");
        for (datapath, step, _) in &laid {
            updates.done(*datapath, *step, None, Nanos(1), &mut progress);
        }
        let (flipped, _) = take(&mut progress);
        let ingress = second.entries[0].clone();
        assert_eq!(flipped[0].2, [Change::Set(ingress.matching, ingress.entry)]);
        updates.done(1, flipped[0].1, None, Nanos(1), &mut progress);
        // Now it is.
        let third = version(1, 40, &[(2, 5), (3, 3)]);
        updates.start(vec![third], [], Nanos(2), &mut progress);
        assert_eq!(switches(&take(&mut progress).0), [2]);
    }

    /// It is withdrawn together with a change for which switches are still awaited, and asked for
    /// again before they confirm.
    #[test]
    fn what_was_to_go_and_is_wanted_again_stays() {
        let (mut updates, mut progress) = updates();
        let mut wanted = version(1, 40, &[(2, 3)]);
        wanted.at_once = true;
        updates.start(vec![wanted.clone()], [1], Nanos(0), &mut progress);
        finish(&mut updates, &mut progress);
        let other = version(2, 40, &[(3, 3)]);
        updates.start(vec![nothing(1), other], [2], Nanos(0), &mut progress);
        assert_eq!(switches(&progress.work), [3], "the other stream is laid");
        updates.start(vec![wanted], [3], Nanos(0), &mut progress);
        let after = finish(&mut updates, &mut progress);
        let unset = after
            .iter()
            .filter(|change| matches!(change, Change::Unset(_)));
        assert_eq!(unset.count(), 0, "{after:?}");
    }

    #[test]
    fn a_stream_enters_before_its_entries_are_there_only_if_nothing_of_it_is() {
        let (mut updates, mut progress) = updates();
        let mut wanted = version(1, 40, &[(2, 3)]);
        wanted.at_once = true;
        updates.start(vec![wanted.clone()], [], Nanos(0), &mut progress);
        assert_eq!(switches(&progress.work), [1, 2]);
        finish(&mut updates, &mut progress);
        updates.start(vec![nothing(1)], [], Nanos(0), &mut progress);
        let (work, _) = take(&mut progress);
        updates.done(1, work[0].1, None, Nanos(0), &mut progress);
        // What it was is still at switch 2.
        let mut other = version(1, 41, &[(3, 3)]);
        other.at_once = true;
        updates.start(vec![other], [], Nanos(0), &mut progress);
        assert_eq!(switches(&take(&mut progress).0), [3]);
    }

    #[test]
    fn nothing_is_flipped_when_a_switch_does_not_confirm() {
        let (mut updates, mut progress) = updates();
        let target = || vec![version(1, 41, &[(2, 3)])];
        updates.start(target(), [7], Nanos(0), &mut progress);
        take(&mut progress);
        updates.tick(Nanos(1_000), &mut progress);
        assert_eq!(progress.given_up, [header(1)]);
        let (work, answers) = take(&mut progress);
        assert!(work.is_empty() && answers[0].1.is_some(), "{answers:?}");
        // An entry that the switch did not confirm is laid again.
        updates.start(target(), [7], Nanos(0), &mut progress);
        assert_eq!(switches(&take(&mut progress).0), [2]);
        // A switch that is away is not waited for.
        updates.away(2, Nanos(1), &mut progress);
        assert_eq!(switches(&take(&mut progress).0), [1]);
    }

    /// Whatever streams are to be, one change after the other and before switches have confirmed:
    /// at last the switches have what was wanted last.
    #[test]
    fn the_last_change_of_each_stream_counts() {
        for seed in 0..2_000_u64 {
            let mut rng = Rng::new(seed);
            let (mut updates, mut progress) = updates();
            let mut switches: BTreeMap<Place, Entry> = BTreeMap::new();
            let mut wanted: BTreeMap<u16, Target> = BTreeMap::new();
            let mut open: Vec<(u64, u64)> = Vec::new();
            let mut now = Nanos(0);
            for turn in 0..200 {
                if turn < 20 {
                    let mut targets = Vec::new();
                    for stream in 1..=3 {
                        let target = match rng.below(5) {
                            0 => nothing(stream),
                            1 | 2 => {
                                let behind = [(2 + rng.below(3), 3 + rng.below(2) as u32)];
                                version(stream, 40 + rng.below(4) as u8, &behind)
                            }
                            _ => continue,
                        };
                        let at_once = rng.below(2) == 0;
                        let target = Target { at_once, ..target };
                        wanted.insert(stream, target.clone());
                        targets.push(target);
                    }
                    updates.start(targets, [turn], now, &mut progress);
                }
                for (datapath, step, changes) in take(&mut progress).0 {
                    for change in changes {
                        match change {
                            Change::Set(matching, entry) => {
                                switches.insert((datapath, matching), entry);
                            }
                            Change::Unset(matching) => {
                                switches.remove(&(datapath, matching));
                            }
                            Change::Reset | Change::Base => {}
                        }
                    }
                    open.push((datapath, step));
                }
                let confirmed: Vec<_> = open.extract_if(.., |_| rng.below(2) == 0).collect();
                for (datapath, step) in confirmed {
                    updates.done(datapath, step, None, now, &mut progress);
                }
                now = now + Nanos(rng.below(60));
                updates.tick(now, &mut progress);
            }
            assert!(updates.is_idle(), "seed {seed}");
            let entries = wanted.into_values().flat_map(|target| target.entries);
            let expected: BTreeMap<Place, Entry> = entries
                .map(|each| ((each.datapath, each.matching), each.entry))
                .collect();
            assert_eq!(switches, expected, "seed {seed}");
            let removed = updates.told.values().all(|told| !told.is_empty());
            assert!(removed, "seed {seed}: something is remembered of nothing");
        }
    }
}
