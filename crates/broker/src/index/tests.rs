//! The index and its caches against lists and naive matching.

use std::collections::BTreeMap;

use proptest::prelude::*;

use punctual_codec::SubscribeOptions;

use super::*;
use crate::Directory;
use crate::base::name::LINK_PREFIX;
use crate::base::queue_full::QueuePolicies;
use crate::route::RouteCache;

/// What one client subscribed to: options by filter, with share prefix.
type Wishes = BTreeMap<String, (SubscribeOptions, u32)>;

/// Level by level, as section 4.7 says it; independent of `topic::matches`.
fn naive_match(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let filter: Vec<&str> = filter.split('/').collect();
    let topic: Vec<&str> = topic.split('/').collect();
    for (at, level) in filter.iter().enumerate() {
        match (*level, topic.get(at)) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (name, Some(other)) if name == *other => {}
            _ => return false,
        }
    }
    filter.len() == topic.len()
}

/// Session number, QoS and identifier of the members of a group.
type Members = Vec<(u64, QoS, u32)>;

/// QoS, whether own messages are left out, whether the retain flag stays, and identifiers.
type Reception = (QoS, bool, bool, Vec<u32>);

/// What a client receives a topic with, and as a member of which groups.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    plain: BTreeMap<u64, Reception>,
    groups: Vec<Members>,
}

fn expected(clients: &[(Arc<SessionHandle>, Wishes)], topic: &str) -> Expected {
    let mut plain = BTreeMap::new();
    let mut groups: BTreeMap<(String, String), Members> = BTreeMap::new();
    for (session, wishes) in clients {
        for (filter, (options, id)) in wishes {
            let (share, pattern) = topic::split_share(filter);
            if !naive_match(pattern, topic) {
                continue;
            }
            if let Some(share) = share {
                let members = groups.entry((share.to_owned(), pattern.to_owned()));
                members
                    .or_default()
                    .push((session.number, options.qos, *id));
                continue;
            }
            let entry =
                plain
                    .entry(session.number)
                    .or_insert((QoS::AtMostOnce, true, false, Vec::new()));
            entry.0 = entry.0.max(options.qos);
            entry.1 &= options.no_local;
            entry.2 |= options.retain_as_published;
            entry.3.extend((*id != 0).then_some(*id));
        }
    }
    for (_, _, _, ids) in plain.values_mut() {
        ids.sort_unstable();
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    for members in &mut groups {
        members.sort_unstable();
    }
    groups.sort_unstable();
    Expected { plain, groups }
}

fn found(matched: &Matched) -> Expected {
    let mut plain = BTreeMap::new();
    let mut shards = Vec::new();
    for (shard, targets) in &matched.shards {
        shards.push(*shard);
        for target in targets.iter() {
            assert_eq!(target.session.shard, *shard);
            assert_eq!(target.session.slot, target.slot);
            let mut ids = target.ids().to_vec();
            ids.sort_unstable();
            let wish = (target.qos, target.no_local, target.retain_as_published, ids);
            let twice = plain.insert(target.session.number, wish);
            assert!(twice.is_none(), "a session twice");
        }
        assert!(targets.is_sorted_by_key(|target| target.session.number));
    }
    assert!(shards.is_sorted_by(|a, b| a < b), "a shard twice");
    let mut groups: Vec<Vec<_>> = matched
        .groups
        .iter()
        .map(|group| {
            let members = group.members();
            let mut members: Vec<_> = members
                .here
                .iter()
                .map(|t| {
                    (
                        t.session.number,
                        t.qos,
                        t.ids().first().copied().unwrap_or(0),
                    )
                })
                .collect();
            members.sort_unstable();
            members
        })
        .collect();
    groups.sort_unstable();
    Expected { plain, groups }
}

/// The clients that receive a topic, as they are found for a crowd: about `most` at a time.
fn in_pieces(directory: &Directory, topic: &str, most: usize) -> BTreeMap<u64, Reception> {
    let (mut all, mut after) = (BTreeMap::new(), Some(Place::FIRST_CLIENT));
    while let Some(place) = after {
        let (matched, _, next) = directory.clients_after(topic, place, most);
        let piece = found(&matched);
        assert!(piece.groups.is_empty() && next.is_none_or(|next| next > place));
        let before = all.len();
        let count = piece.plain.len();
        all.extend(piece.plain);
        assert_eq!(all.len(), before + count, "a session twice");
        after = next;
    }
    all
}

fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "", "long-level-name", "$SYS", "$x"])
}

fn any_topic() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..4)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("not empty", |topic| !topic.is_empty())
}

fn any_filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![3 => level(), 2 => Just("+")];
    let share = prop::sample::select(vec!["", "", "", "$share/g/", "$share/h/"]);
    (share, prop::collection::vec(level, 0..4), any::<bool>()).prop_map(
        |(share, mut levels, rest)| {
            if rest || levels.is_empty() || levels == [""] {
                levels.push("#");
            }
            format!("{share}{}", levels.join("/"))
        },
    )
}

fn options() -> impl Strategy<Value = (SubscribeOptions, u32)> {
    (0..3u8, any::<bool>(), any::<bool>(), 0..3u32).prop_map(|(qos, no_local, rap, id)| {
        let options = SubscribeOptions {
            qos: QoS::from_bits(qos).unwrap(),
            no_local,
            retain_as_published: rap,
            ..SubscribeOptions::default()
        };
        (options, id)
    })
}

#[derive(Debug, Clone)]
enum Step {
    Subscribe(usize, String, (SubscribeOptions, u32)),
    Unsubscribe(usize, String),
    Leave(usize),
    Match(String),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6usize, any_filter(), options()).prop_map(|(c, f, o)| Step::Subscribe(c, f, o)),
        3 => (0..6usize, any_filter()).prop_map(|(c, f)| Step::Unsubscribe(c, f)),
        1 => (0..6usize).prop_map(Step::Leave),
        4 => any_topic().prop_map(Step::Match),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The index answers as lists would, a cache never gives an old answer
    /// however small it is, and nothing is left when everyone has gone.
    #[test]
    fn agrees_with_lists(
        steps in prop::collection::vec(step(), 1..120),
        capacity in prop::sample::select(vec![1usize, 2, 1000]),
        piece in 1..5usize,
    ) {
        let directory = Directory::new(3);
        let mut cache = RouteCache::new(capacity, Vec::new(), Vec::new(), QueuePolicies::default());
        let mut clients: Vec<(Arc<SessionHandle>, Wishes)> = (0..6u32)
            .map(|n| {
                let id = Arc::from(format!("c{n}"));
                (directory.handle(&id, n as u16 % 3, n), Wishes::new())
            })
            .collect();
        for step in steps {
            match step {
                Step::Subscribe(client, filter, (options, id)) => {
                    let (session, wishes) = &mut clients[client];
                    let subscriber = Subscriber { session: session.clone(), options, id, demoted: false, numbered: false };
                    let new = directory
                        .index_mut()
                        .subscribe(&filter, subscriber, &directory.generations);
                    prop_assert_eq!(new, wishes.insert(filter, (options, id)).is_none());
                }
                Step::Unsubscribe(client, filter) => {
                    let (session, wishes) = &mut clients[client];
                    let there = directory
                        .index_mut()
                        .unsubscribe(&filter, session, &directory.generations);
                    prop_assert_eq!(there, wishes.remove(&filter).is_some());
                }
                Step::Leave(client) => {
                    let (session, wishes) = &mut clients[client];
                    for filter in std::mem::take(wishes).keys() {
                        let there = directory
                            .index_mut()
                            .unsubscribe(filter, session, &directory.generations);
                        prop_assert!(there);
                    }
                }
                Step::Match(topic) => {
                    let route = match cache.find(topic.as_bytes(), 0, &directory) {
                        Some(route) => route,
                        None => cache.insert(&topic, &directory),
                    };
                    let route = cache.get(route);
                    prop_assert_eq!(route.topic(), &topic);
                    let expected = expected(&clients, &topic);
                    prop_assert_eq!(&in_pieces(&directory, &topic, piece), &expected.plain);
                    prop_assert_eq!(found(&route.matched), expected);
                }
            }
        }
        for (session, wishes) in &clients {
            for filter in wishes.keys() {
                directory.index_mut().unsubscribe(filter, session, &directory.generations);
            }
        }
        prop_assert_eq!(directory.index_mut().len(), 0);
    }
}

/// Subscribes with default options. Whether that is new.
fn subscribe(directory: &Directory, filter: &str, session: &Arc<SessionHandle>) -> bool {
    let subscriber = Subscriber {
        session: session.clone(),
        options: SubscribeOptions::default(),
        id: 0,
        demoted: false,
        numbered: false,
    };
    let mut index = directory.index_mut();
    index.subscribe(filter, subscriber, &directory.generations)
}

/// Who publishes chooses how many levels there are.
#[test]
fn depth_takes_no_stack() {
    let directory = Directory::new(1);
    let session = directory.handle(&Arc::from("c"), 0, 0);
    let deep = "/".repeat(65_000);
    for filter in [deep.clone(), "+/".repeat(32_000) + "#", "#".into()] {
        subscribe(&directory, &filter, &session);
    }
    let index = directory.index_mut();
    let topics = [&*deep, "a", &"a/".repeat(32_000)];
    assert!(
        topics
            .iter()
            .all(|topic| index.matches(topic).targets().count() == 1)
    );
}

/// A popular topic space takes no more memory than the cache may.
#[test]
fn the_cache_is_bounded_in_bytes() {
    let directory = Directory::new(1);
    for n in 0..500 {
        let session = directory.handle(&Arc::from(format!("c{n}")), 0, n);
        subscribe(&directory, "#", &session);
    }
    let mut cache = RouteCache::new(1000, Vec::new(), Vec::new(), QueuePolicies::default());
    for n in 0..2000 {
        let topic = format!("t/{}", n % 700);
        if cache.find(topic.as_bytes(), 0, &directory).is_none() {
            cache.insert(&topic, &directory);
        }
        if n % 100 == 0 {
            directory.generations.bump_all();
        }
        assert!(cache.weight() < 1_200_000, "{}", cache.weight());
    }
}

/// Clients that are too many for one piece are not listed; neighbours are, and come first.
#[test]
fn a_crowd_is_not_listed() {
    let directory = Directory::new(2);
    let clients: Vec<_> = (0..2 * CROWD as u32)
        .map(|n| directory.handle(&Arc::from(format!("c{n}")), n as u16 % 2, n))
        .collect();
    let link = directory.handle(&Arc::from(format!("{LINK_PREFIX}b")), 0, 0);
    assert!(link.link && subscribe(&directory, "t/#", &link));
    let matches = || directory.index_mut().matches("t/1");
    for client in &clients[..CROWD] {
        assert!(subscribe(&directory, "t/+", client));
        assert!(!subscribe(&directory, "t/+", client));
    }
    let most = matches();
    assert_eq!((most.crowd, most.targets().count()), (false, CROWD + 1));
    for client in &clients[CROWD..] {
        assert!(subscribe(&directory, "t/1", client));
    }
    let crowd = matches();
    let listed: Vec<_> = crowd.targets().map(|it| it.session.number).collect();
    assert_eq!((crowd.crowd, listed), (true, vec![link.number]));
    assert_eq!(crowd.max_qos, QoS::ExactlyOnce);
    assert_eq!(in_pieces(&directory, "t/1", 100).len(), clients.len());
    // Those who go leave no gap, whatever their number was.
    for (n, client) in clients.iter().enumerate().filter(|(n, _)| n % 7 != 0) {
        let filter = ["t/+", "t/1"][usize::from(n >= CROWD)];
        let mut index = directory.index_mut();
        assert!(index.unsubscribe(filter, client, &directory.generations));
        assert!(!index.unsubscribe(filter, client, &directory.generations));
    }
    let rest = matches();
    let count = clients.len().div_ceil(7);
    assert_eq!((rest.crowd, rest.targets().count()), (false, count + 1));
    assert_eq!(in_pieces(&directory, "t/1", 100).len(), count);
}

/// A member that joins a group with members, or leaves others in it, invalidates no cached route.
#[test]
fn members_are_no_matter_of_routes() {
    let directory = Directory::new(1);
    let sessions: Vec<_> = (0..1000)
        .map(|n| directory.handle(&Arc::from(format!("c{n}")), 0, n))
        .collect();
    let subscribe = |session| subscribe(&directory, "$share/group/t/#", session);
    let mut cache = RouteCache::new(1000, Vec::new(), Vec::new(), QueuePolicies::default());
    let slot = generation_slot("t");
    let nobody = directory.generations.current(slot);
    assert!(subscribe(&sessions[0]));
    let one = directory.generations.current(slot);
    assert!(one != nobody);
    let route = cache.insert("t/1", &directory);
    let weight = cache.weight();
    for session in &sessions[1..] {
        assert!(subscribe(session));
    }
    assert_eq!(directory.generations.current(slot), one);
    let members = |cache: &RouteCache| cache.get(route).matched.groups[0].members().here.len();
    assert_eq!((members(&cache), cache.weight()), (1000, weight));
    for session in &sessions[1..] {
        let mut index = directory.index_mut();
        assert!(index.unsubscribe("$share/group/t/#", session, &directory.generations));
    }
    assert_eq!(directory.generations.current(slot), one);
    assert_eq!(members(&cache), 1);
    let mut index = directory.index_mut();
    index.unsubscribe("$share/group/t/#", &sessions[0], &directory.generations);
    drop(index);
    assert!(directory.generations.current(slot) != one);
    assert_eq!(cache.find(b"t/1", route, &directory), Some(route));
    assert!(cache.get(route).matched.is_empty());
}

/// Many topics that are seen once do not drive out those that are in use, and a number is never
/// that of another topic.
#[test]
fn the_cache_keeps_what_is_used() {
    const CAPACITY: usize = 100;
    let directory = Directory::new(1);
    let mut cache = RouteCache::new(CAPACITY, Vec::new(), Vec::new(), QueuePolicies::default());
    let mut topics = std::collections::HashMap::new();
    let mut misses = 0;
    let mut ask = |cache: &mut RouteCache, topic: &str, guess: u64| {
        let found = cache.find(topic.as_bytes(), guess, &directory);
        misses += usize::from(found.is_none());
        let number = found.unwrap_or_else(|| cache.insert(topic, &directory));
        assert_eq!(cache.get(number).topic(), topic);
        assert!(cache.len() <= CAPACITY);
        let known = topics.entry(number).or_insert_with(|| topic.to_owned());
        assert_eq!(known, topic, "one number for two topics");
        (number, misses)
    };
    let mut before = 0;
    for n in 0..20_000 {
        ask(&mut cache, &format!("once/{n}"), before);
        (before, _) = ask(&mut cache, &format!("used/{}", n % 20), before);
    }
    let (_, before) = ask(&mut cache, "used/0", 0);
    for n in 0..20 {
        ask(&mut cache, &format!("used/{n}"), 0);
    }
    let (_, after) = ask(&mut cache, "used/0", 0);
    assert_eq!(after, before, "what is used is not known");
    assert!(before < 20_000 + 200, "{before} misses");
}

/// Rules that change reach topics that are known.
#[test]
fn known_topics_follow_new_rules() {
    let directory = Directory::new(1);
    let mut cache = RouteCache::new(10, Vec::new(), Vec::new(), QueuePolicies::default());
    let route = cache.insert("a/b", &directory);
    assert!(cache.get(route).rule.is_none());
    let rule = crate::UrgencyRule {
        filter: "a/#".into(),
        urgency: crate::Urgency::default(),
        requirements: punctual_model::Requirements::NONE,
    };
    cache.set_rules(&[rule], &[], &QueuePolicies::default());
    let route = cache.find(b"a/b", route, &directory).unwrap();
    assert!(cache.get(route).rule.is_some());
    cache.set_rules(&[], &[], &QueuePolicies::default());
    let route = cache.find(b"a/b", route, &directory).unwrap();
    assert!(cache.get(route).rule.is_none());
}

/// Topics that clients think up do not have it copied, all in one piece, into more memory.
#[test]
fn a_cache_with_memory_for_all_topics_does_not_grow() {
    const CAPACITY: usize = 5000;
    let directory = Directory::new(1);
    let mut cache = RouteCache::new(CAPACITY, Vec::new(), Vec::new(), QueuePolicies::default());
    cache.reserve();
    let room = cache.room();
    assert!(room.iter().all(|room| *room > CAPACITY), "{room:?}");
    for n in 0..10 * CAPACITY {
        let topic = format!("t/{}", n / 2);
        if cache.find(topic.as_bytes(), 0, &directory).is_none() {
            cache.insert(&topic, &directory);
        }
    }
    assert_eq!((cache.len(), cache.room()), (CAPACITY, room));
}
