use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use punctual_codec::{Properties, QoS};

use super::shared::{MAX_GONE_BYTES, REMEMBERED};
use super::*;
use crate::base::version::VERSION_BITS;

fn message(topic: &str, payload: &[u8]) -> Arc<Message> {
    Message::new(
        topic.as_bytes(),
        Properties::EMPTY,
        payload,
        QoS::AtMostOnce,
        true,
        Nanos(0),
        0,
    )
}

/// One that expires.
fn fleeting(topic: &str, expires: Nanos) -> Arc<Message> {
    let mut message = message(topic, b"x");
    Arc::get_mut(&mut message).unwrap().expires = expires;
    message
}

impl Retained {
    fn set(&mut self, message: Arc<Message>, version: u64) {
        let topic = message.topic().to_owned();
        self.entry(&topic).set(message, version, None);
    }

    fn version_of(&mut self, topic: &str) -> u64 {
        self.entry(topic).version()
    }
}

fn topics(piece: &Piece) -> impl Iterator<Item = String> {
    let found = piece.found.iter();
    found.map(|found| found.message.topic().to_owned())
}

/// What a search finds in pieces of so many messages and units.
fn all(store: &Retained, filter: &str, limit: usize, units: u64) -> Vec<String> {
    let mut from = Some(RetainedCursor::default());
    let mut found = Vec::new();
    while let Some(at) = from {
        let mut budget = Budget::new(units);
        let piece = store.scan(filter, &at, limit, &mut budget, Nanos(0));
        assert!(piece.found.len() <= limit);
        found.extend(topics(&piece));
        assert_ne!(piece.next, Some(at), "it goes on");
        from = piece.next;
    }
    found
}

/// Units of work of a search to the end.
fn units(store: &Retained, filter: &str, from: &RetainedCursor) -> u64 {
    let mut budget = Budget::unlimited();
    let piece = store.scan(filter, from, usize::MAX, &mut budget, Nanos(0));
    assert_eq!(piece.next, None);
    budget.spent()
}

#[test]
fn scans_in_pieces() {
    let mut store = Retained::default();
    for topic in ["a", "a/b", "a/b/c", "a/c", "ab", "b/b", "$SYS/x"] {
        store.set(message(topic, b"x"), 1);
    }
    for limit in [1, 2, 100] {
        for units in [0, 1, 3, 1000] {
            let all = |filter| all(&store, filter, limit, units);
            assert_eq!(all("a/#"), ["a", "a/b", "a/b/c", "a/c"]);
            assert_eq!(all("+/b"), ["a/b", "b/b"]);
            assert_eq!(all("a/+"), ["a/b", "a/c"]);
            assert_eq!(all("a/b"), ["a/b"]);
            assert_eq!(all("#").len(), 6);
            assert_eq!(all("+/#").len(), 6);
            assert_eq!(all("$SYS/#"), ["$SYS/x"]);
        }
    }
    store.set(message("a/b", b""), 2);
    assert_eq!(all(&store, "a/#", 10, 10), ["a", "a/b/c", "a/c"]);
    assert_eq!(store.len(), 6);
    for topic in ["a", "a/b/c", "a/c", "ab", "b/b", "$SYS/x"] {
        store.remove(store.find(topic).unwrap());
    }
    assert_eq!((store.bytes(), store.len(), store.topics.len()), (0, 0, 1));
}

/// A search comes past those branches only whose path a beginning of the filter matches, whatever
/// else there is.
#[test]
fn work_depends_on_what_may_match() {
    let mut store = Retained::default();
    let names: Vec<String> = (0..100)
        .flat_map(|a| (0..100).map(move |b| format!("ret/{a}/{b}/v")))
        .chain((0..10_000).map(|n| format!("other/{n}/7/v")))
        .collect();
    for name in &names {
        store.set(message(name, b"x"), 1);
    }
    let paths = |filter: &str| {
        let levels: Vec<&str> = filter.split('/').collect();
        let mut paths = BTreeSet::new();
        for name in &names {
            let name: Vec<&str> = name.split('/').collect();
            for n in 1..=name.len().min(levels.len()) {
                if topic::matches(&levels[..n].join("/"), &name[..n].join("/")) {
                    paths.insert(name[..n].join("/"));
                }
            }
        }
        paths.len() as u64
    };
    let units = |filter| units(&store, filter, &RetainedCursor::default());
    for filter in [
        "ret/+/7/v",
        "ret/7/+/v",
        "ret/7/7/v",
        "+/7/7/v",
        "+/none",
        "none/+",
    ] {
        let (units, most) = (units(filter), paths(filter));
        assert!(units <= most, "{filter}: {units} units, {most} paths");
    }
    assert!(units("ret/+/7/v") <= 1 + 100 + 100);
    assert!(units("ret/+/+/+/none") <= 1 + 100 + 100 * 100);
    assert!(units("ret/#") <= 1 + 100 + 100 * 100);
}

/// Where a filter names the level below `+`, branches are looked at many at a time. What is found is
/// the same whichever of them lead to that level, and wherever a search stops.
#[test]
fn a_level_below_a_wildcard_is_looked_for_ahead() {
    let mut store = Retained::default();
    // Few and many branches of a node, pieces that all topics of a node share, levels that are longer
    // than a piece or just as long, and topics that end where others go on.
    let below = [
        vec!["x", "x/y", "x/y/z"],
        vec!["y"],
        vec!["x/y", "y/x"],
        vec![],
        vec!["long-enough-for-two/x", "long-enough-for-two/x/y"],
        vec!["fifteen-envelopes/y", "fifteen-envelopes"],
        (0..20).map(|_| "many").collect(),
    ];
    let mut names = BTreeSet::new();
    for n in 0..150 {
        let above = match n % 4 {
            0 => format!("r/{n}"),
            1 => format!("r/{n}-a-level-of-more-than-a-piece"),
            2 => format!("r/{n:015}"),
            _ => format!("$r/{n}"),
        };
        names.insert(above.clone());
        let below = &below[n % below.len()];
        for (at, rest) in below.iter().enumerate() {
            match *rest {
                "many" => names.insert(format!("{above}/{at}/x")),
                rest => names.insert(format!("{above}/{rest}")),
            };
        }
    }
    for name in &names {
        store.set(message(name, b"x"), 1);
    }
    for filter in [
        "r/+/x",
        "r/+/x/#",
        "r/+/x/y",
        "r/+/y",
        "+/+/x",
        "r/+/+/x",
        "r/+/x/+",
        "r/+/7/x",
        "r/+/none",
        "r/+/long-enough-for-two/x",
        "r/+/fifteen-envelopes",
        "r/+/fifteen-envelopes/#",
        "$r/+/x",
        "r/+/long-enough-for-two/+",
    ] {
        let matching = names.iter().filter(|name| topic::matches(filter, name));
        let matching: Vec<String> = matching.cloned().collect();
        for (limit, units) in [(1, 1000), (7, 1), (usize::MAX, 5), (usize::MAX, u64::MAX)] {
            assert_eq!(all(&store, filter, limit, units), matching, "{filter}");
        }
    }
}

/// A piece is no longer than its budget and the depth of the tree, and what leads to where it goes
/// on is all that is looked at again.
#[test]
fn pieces_stay_within_their_budget() {
    const DEPTH: u64 = 6;
    let mut store = Retained::default();
    for n in 0..4096 {
        let at = |level| n >> (3 * level) & 7;
        let topic = format!("r/{}/{}/{}/{}/v", at(0), at(1), at(2), at(3));
        store.set(message(&topic, b"x"), 1);
    }
    for filter in ["#", "r/+/+/3/+/v", "+/+/+/+/+/none", "r/7/+/#"] {
        for most in [1, 10, 100] {
            let from = RetainedCursor::default();
            let at_once = units(&store, filter, &from);
            let (mut left, mut next, mut pieces) = (at_once, Some(from), 0);
            while let Some(from) = next {
                let mut budget = Budget::new(most);
                let piece = store.scan(filter, &from, usize::MAX, &mut budget, Nanos(0));
                let rest = piece.next.as_ref().map(|next| units(&store, filter, next));
                let rest = rest.unwrap_or(0);
                assert!(
                    left <= rest + most + DEPTH,
                    "{filter} {most}: {left} {rest}"
                );
                (left, next, pieces) = (rest, piece.next, pieces + 1);
            }
            // What is not needed to come to where it goes on is new.
            let new = most.saturating_sub(DEPTH).max(1);
            assert!(pieces <= 1 + at_once / new, "{filter} {most}: {pieces}");
        }
    }
}

#[test]
fn a_long_topic_is_kept_once() {
    let mut store = Retained::default();
    let deep = "/".repeat(60_000);
    for end in ["a", "b", "b/c", ""] {
        store.set(message(&format!("{deep}{end}"), b"x"), 1);
    }
    assert_eq!(store.topics.len(), 2, "the root and where they differ");
    let filter = format!("{deep}+");
    assert_eq!(all(&store, &filter, 10, 10).len(), 3);
    assert_eq!(all(&store, "#", 1, 1).len(), 4);
    store.set(message(&format!("{deep}b"), b""), 1);
    store.set(message(&deep, b""), 1);
    store.set(message(&format!("{deep}a"), b""), 1);
    assert_eq!((store.topics.len(), store.len()), (1, 1));
    assert_eq!(all(&store, "#", 1, 1), [format!("{deep}b/c")]);
}

#[test]
fn what_expires_is_removed_in_pieces() {
    let mut store = Retained::default();
    for n in 0..100 {
        store.set(fleeting(&format!("a/{n}"), Nanos(n)), 1);
        // Again and again: what was replaced leaves nothing.
        store.set(fleeting("often", Nanos(1000 + n)), 1);
    }
    store.set(message("a/20", b"x"), 2);
    store.set(fleeting("a/21", Nanos(500)), 2);
    assert_eq!(store.expiries.len(), 100);
    let mut expire = |now, units| store.expire(Nanos(now), &mut Budget::new(units));
    assert_eq!([expire(9, 4), expire(9, 4), expire(9, 4)], [4, 4, 2]);
    assert_eq!(expire(400, 1000), 88);
    assert_eq!(expire(500, 1000), 1);
    assert_eq!(expire(1099, 1000), 1);
    assert_eq!(store.len(), 1);
    assert!(store.get("a/20").is_some());
}

#[test]
fn versions_in_a_mesh_are_times_and_only_grow() {
    let mut store = Retained::default();
    let micros = VERSIONS_SINCE;
    let clock = |after: u64, own| Some((micros + after, own));
    let first = store.next_version(clock(1000, 1));
    let second = store.next_version(clock(1000, 1));
    assert!(second > first);
    // A clock that stands, or is behind that of another broker.
    store.set(message("a", b"x"), 5000 << SALT | 2);
    assert!(store.next_version(clock(1001, 1)) > 5000 << SALT | 2);
    assert_ne!(
        store.next_version(clock(9000, 1)) & 7,
        store.next_version(clock(9500, 2)) & 7
    );
    let last = store.next_version(clock(2_000_000_000_000_000, 7));
    assert!(last < 1 << VERSION_BITS);
}

#[test]
fn what_is_gone_is_remembered_within_bounds() {
    const MOST: usize = 1 << 16;
    let mut store = Retained::default();
    store.set(message("a", b"x"), 1);
    store.set(message("a", b""), 2);
    assert_eq!(store.version_of("a"), 0, "alone nothing has to be");
    store.remember_gone();
    store.set(message("a", b""), 3);
    assert_eq!(store.version_of("a"), 3);
    store.set(message("a", b"y"), 4);
    assert_eq!(store.version_of("a"), 4);
    store.remove(store.find("a").unwrap());
    assert_eq!(store.version_of("a"), 4);
    for n in 0..2 * MOST {
        let topic = format!("some/topic/{n}");
        store.set(message(&topic, b""), 5 + n as u64);
    }
    assert_eq!(store.gone_since().count(), MOST);
    assert_eq!(store.version_of("a"), 0);
    // One that is long takes the place of no more than it is long.
    store.set(message(&"l".repeat(60_000), b""), 5 + 2 * MOST as u64);
    assert_eq!(MOST - store.gone_since().count(), 60_000 / 128);
    let mut later = 2 * MOST as u64 + 10 + REMEMBERED;
    let mut before = store.gone_since().count();
    while before > 1 {
        later += 1;
        store.set(message("b", b""), later);
        let left = store.gone_since().count();
        assert!(left == 1 || before - left <= 16, "few at once");
        before = left;
    }
    assert_eq!(MAX_GONE_BYTES / MOST, 128);
}

/// Levels that are short, long, and just as long as a piece, some with the same beginning, and some
/// with what is before a slash in the order of text.
const LEVELS: [&str; 14] = [
    "",
    "a",
    "b",
    "a-b",
    "a!",
    "$SYS",
    "ab",
    "abcdefghijklmn",
    "abcdefghijklmno",
    "abcdefghijklmnop",
    "abcdefghijklmnoü",
    "abcdefghijklmno abcdefghijklmno",
    "abcdefghijklmno abcdefghijklmno-",
    "ü",
];

fn topic_names() -> impl Strategy<Value = String> {
    let level = prop_oneof![
        prop::sample::select(&LEVELS[..]).prop_map(str::to_owned),
        (0..40u32).prop_map(|n| n.to_string()),
    ];
    let names = prop::collection::vec(level, 1..6).prop_map(|levels| levels.join("/"));
    names.prop_filter("empty", |name| !name.is_empty())
}

fn filters() -> impl Strategy<Value = String> {
    let parts = (
        topic_names(),
        prop::collection::vec(any::<bool>(), 6),
        0..4u8,
    );
    parts.prop_map(|(topic, wild, end)| {
        let levels = topic.split('/').zip(wild);
        let levels = levels.map(|(level, wild)| if wild { "+" } else { level });
        let mut filter: Vec<&str> = levels.collect();
        match end {
            0 => filter.push("#"),
            1 => *filter.last_mut().unwrap() = "#",
            _ => {}
        }
        filter.join("/")
    })
}

#[derive(Debug, Clone)]
enum Change {
    /// With a time at which it expires, or none.
    Set(String, u64),
    Remove(String),
    /// One that is there, by number.
    RemoveSome(usize),
    Expire(u64),
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (topic_names(), 0..20u64).prop_map(|(topic, at)| Change::Set(topic, at)),
        1 => topic_names().prop_map(Change::Remove),
        4 => any::<prop::sample::Index>().prop_map(|at| Change::RemoveSome(at.index(1000))),
        1 => (0..20u64).prop_map(Change::Expire),
    ]
}

/// Topics, with the time at which what they have expires.
type Model = BTreeMap<String, u64>;

fn change(store: &mut Retained, model: &mut Model, change: &Change, version: u64) {
    match change {
        Change::Set(topic, at) => {
            // Few expire.
            let at = if *at < 5 { 100 * (1 + at) } else { u64::MAX };
            store.set(fleeting(topic, Nanos(at)), version);
            model.insert(topic.clone(), at);
        }
        Change::Remove(topic) => {
            store.set(message(topic, b""), version);
            model.remove(topic);
        }
        Change::RemoveSome(at) => {
            if let Some(topic) = model.keys().nth(at % model.len().max(1)).cloned() {
                store.set(message(&topic, b""), version);
                model.remove(&topic);
            }
        }
        Change::Expire(at) => {
            let now = if *at < 2 { 100 * at } else { 0 };
            let before = model.len();
            model.retain(|_, expires| *expires > now);
            let expired = store.expire(Nanos(now), &mut Budget::unlimited());
            assert_eq!(expired, before - model.len());
        }
    }
}

fn check(store: &mut Retained, model: &Model) {
    assert_eq!(store.len(), model.len());
    let sizes = model.keys().map(|topic| topic.len() + 1);
    assert_eq!(store.bytes(), sizes.sum::<usize>());
    let expiring = model.values().filter(|at| **at < u64::MAX);
    assert_eq!(store.expiries.len(), expiring.count());
    // Every node but the root has two branches at least.
    assert!(store.topics.len() <= 1 + model.len().saturating_sub(1));
    for topic in model.keys() {
        assert!(store.entry(topic).is_there(), "{topic}");
    }
    let mut sums = [0u64; PARTS];
    let kept = store.messages.iter();
    let kept = kept.map(|(_, kept)| (kept.message.topic(), kept.version));
    for (topic, version) in kept.chain(store.gone_since()) {
        if !topic.starts_with('$') {
            let digest = digest(topic, version);
            let sum = &mut sums[(digest >> 58) as usize];
            *sum = sum.wrapping_add(digest);
        }
    }
    assert_eq!(store.sums(), sums);
    let (mut digests, mut from, mut counted) = (Vec::new(), DigestCursor::default(), [0u64; PARTS]);
    while !store.digests(u64::MAX, &mut from, &mut Budget::new(3), &mut digests) {}
    for digest in digests {
        let sum = &mut counted[(digest >> 58) as usize];
        *sum = sum.wrapping_add(digest);
    }
    assert_eq!(counted, sums);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A search in pieces between changes finds all that is there from its beginning to its end, in
    /// order, once, and nothing that does not match or never was there.
    #[test]
    fn is_as_a_plain_map(
        before in prop::collection::vec(changes(), 0..150),
        searches in prop::collection::vec(
            (filters(), prop::collection::vec((changes(), 0..6u64, 1..4usize), 0..30)),
            1..6,
        ),
    ) {
        let (mut store, mut model, mut version) = (Retained::default(), Model::new(), 0);
        store.remember_gone();
        for it in &before {
            version += 1;
            change(&mut store, &mut model, it, version);
        }
        check(&mut store, &model);
        for (filter, meanwhile) in &searches {
            let matching = |model: &Model| -> BTreeSet<String> {
                let topics = model.keys().filter(|topic| topic::matches(filter, topic));
                topics.cloned().collect()
            };
            let at_once = all(&store, filter, usize::MAX, u64::MAX);
            prop_assert_eq!(&at_once, &matching(&model).into_iter().collect::<Vec<_>>());
            prop_assert_eq!(&at_once, &all(&store, filter, 2, 2));
            for after in model.keys() {
                let from = RetainedCursor::after(after);
                let mut budget = Budget::unlimited();
                let piece = store.scan(filter, &from, usize::MAX, &mut budget, Nanos(0));
                let above = at_once.iter().filter(|topic| *topic > after).cloned();
                prop_assert!(topics(&piece).eq(above), "{filter} after {after}");
            }
            let mut always = matching(&model);
            let mut ever = always.clone();
            let (mut from, mut found) = (Some(RetainedCursor::default()), Vec::new());
            let mut meanwhile = meanwhile.iter();
            while let Some(at) = from {
                let (mut budget, mut limit) = (Budget::new(4), 4);
                if let Some((it, units, most)) = meanwhile.next() {
                    version += 1;
                    change(&mut store, &mut model, it, version);
                    always = &always & &matching(&model);
                    ever.extend(matching(&model));
                    (budget, limit) = (Budget::new(*units), *most);
                }
                let piece = store.scan(filter, &at, limit, &mut budget, Nanos(0));
                found.extend(topics(&piece));
                from = piece.next;
            }
            prop_assert!(found.is_sorted_by(|a, b| a < b), "{:?}", found);
            let found: BTreeSet<String> = found.into_iter().collect();
            prop_assert!(found.is_superset(&always), "{:?} lacks some of {:?}", found, always);
            prop_assert!(found.is_subset(&ever), "{:?} has more than {:?}", found, ever);
            check(&mut store, &model);
        }
    }
}

/// Who publishes chooses how many levels there are.
#[test]
fn depth_takes_no_stack() {
    let mut store = Retained::default();
    let deep = [
        "/".repeat(65_000),
        "a/".repeat(32_000),
        "a/".repeat(32_000) + "b",
    ];
    for (version, topic) in deep.iter().enumerate() {
        store.set(message(topic, b"x"), version as u64 + 1);
    }
    assert_eq!(all(&store, "#", 10, 1 << 40).len(), 3);
    assert_eq!(
        all(&store, &("+/".repeat(32_000) + "#"), 10, 1 << 40).len(),
        3
    );
    assert_eq!(
        all(&store, &("a/".repeat(32_000) + "+"), 10, 1 << 40).len(),
        2
    );
    for topic in &deep {
        store.set(message(topic, b""), 9);
    }
    assert_eq!(store.len(), 0);
}
