//! Functions of nodes for the transfer of sessions: look-ups, reached brokers, and fences of stubs.

use std::collections::BTreeSet;

use punctual_mesh::transfer::{CopyState, Extent, HomeId, Located, Stamp, Stub};
use punctual_mesh::wire::{ClientStub, MAX_STUBS};
use punctual_mesh::{Node, Output};
use punctual_model::{LAST_INSTANT, Nanos};

use super::{Row, name, settings};

fn home(n: usize) -> HomeId {
    name(n).into()
}

fn stamp(micros: u64, n: usize) -> Stamp {
    Stamp {
        micros,
        by: home(n),
    }
}

/// The answer of a broker that has a session.
fn session(n: usize) -> Located {
    Located {
        session: Some((true, stamp(3, n))),
        ..Located::default()
    }
}

/// The first broker looks up a client, with stamp 7.
fn look_up(row: &mut Row) {
    let (at, now) = (stamp(7, 0), row.now);
    row.nodes[0].look_up(&at, "c", Some("u"), true, now);
    row.settle();
}

/// The brokers that were asked by the first broker's look-up, since the last call.
fn looked_up(row: &mut Row) -> Vec<usize> {
    let is = |(_, output): &(usize, Output)| matches!(output, Output::LookUp { .. });
    let asked: Vec<_> = row.asked.extract_if(.., |asked| is(asked)).collect();
    let wanted = Output::LookUp {
        by: home(0),
        at: stamp(7, 0),
        client: "c".into(),
        user: Some("u".into()),
        clean: true,
    };
    assert!(asked.iter().all(|(_, output)| *output == wanted));
    asked.into_iter().map(|(n, _)| n).collect()
}

fn answer(row: &mut Row, n: usize, located: Located) {
    let now = row.now;
    row.nodes[n].found(&home(0), &stamp(7, 0), "c", located, now);
    row.settle();
}

/// The result of the first broker's look-up: the brokers that have a session or its remains, in
/// order, and the extent of the answers.
fn located(row: &mut Row) -> Option<(Vec<(HomeId, Located)>, Extent)> {
    let (n, output) = row.asked.pop()?;
    let Output::Located {
        at,
        client,
        mut answers,
        extent,
    } = output
    else {
        panic!("{output:?}");
    };
    assert_eq!((n, at, &*client), (0, stamp(7, 0), "c"));
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    Some((answers, extent))
}

fn nothing(extent: Extent) -> Option<(Vec<(HomeId, Located)>, Extent)> {
    Some((Vec::new(), extent))
}

#[test]
fn a_look_up_asks_all_and_tells_what_each_has() {
    let mut row = Row::new(4);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2, 3]);
    let stub = Located {
        moved: Some((home(3), stamp(3, 3))),
        copy: CopyState::Stuck,
        ..Located::default()
    };
    answer(&mut row, 3, session(3));
    answer(&mut row, 1, stub.clone());
    assert_eq!(located(&mut row), None, "one has not answered");
    // An answer about another client is ignored.
    let now = row.now;
    row.nodes[2].found(&home(0), &stamp(7, 0), "d", session(2), now);
    row.nodes[2].found(&home(0), &stamp(8, 0), "c", session(2), now);
    row.settle();
    assert_eq!(located(&mut row), None);
    answer(&mut row, 2, Located::default());
    let both = vec![(home(1), stub), (home(3), session(3))];
    assert_eq!(located(&mut row), Some((both, Extent::All)));
    // A second answer of a broker is ignored.
    answer(&mut row, 2, session(2));
    row.run_for(1000);
    assert_eq!(row.asked, []);

    let mut alone = Row::new(1);
    look_up(&mut alone);
    assert_eq!(located(&mut alone), nothing(Extent::All));
}

#[test]
fn an_answer_is_complete_also_if_it_comes_late() {
    let mut row = Row::new(4);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2, 3]);
    answer(&mut row, 1, Located::default());
    answer(&mut row, 2, Located::default());
    row.run_for(300);
    answer(&mut row, 3, Located::default());
    assert_eq!(located(&mut row), nothing(Extent::All));
}

/// A distant broker stops waiting for an answer long before the broker that has begun the look-up
/// would.
#[test]
fn it_is_passed_on_that_an_answer_is_incomplete() {
    let mut row = Row::new(14);
    look_up(&mut row);
    (1..13).for_each(|n| answer(&mut row, n, Located::default()));
    assert_eq!(looked_up(&mut row).len(), 13);
    // Each broker on the path shortens the waiting time by an eighth for the next one.
    let wait = settings(0).session_wait.0 / 1_000_000;
    row.run_for(wait / 4 - 5);
    assert_eq!(located(&mut row), nothing(Extent::Incomplete));
}

/// An answer to an earlier look-up for a CONNECT is not an answer to the next one.
#[test]
fn a_repeated_look_up_is_another_one() {
    let mut row = Row::new(3);
    look_up(&mut row);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2, 1, 2]);
    answer(&mut row, 1, Located::default());
    answer(&mut row, 2, Located::default());
    assert_eq!(located(&mut row), nothing(Extent::All));
    assert_eq!(located(&mut row), None);
    answer(&mut row, 2, session(2));
    answer(&mut row, 1, Located::default());
    let found = vec![(home(2), session(2))];
    assert_eq!(located(&mut row), Some((found, Extent::All)));
}

#[test]
fn a_look_up_ends_although_somebody_does_not_answer() {
    let mut row = Row::new(3);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2]);
    answer(&mut row, 1, session(1));
    row.run_for(370);
    assert_eq!(located(&mut row), None);
    row.run_for(130);
    let one = vec![(home(1), session(1))];
    assert_eq!(located(&mut row), Some((one, Extent::Incomplete)));
    // This answer is too late.
    answer(&mut row, 2, session(2));
    assert_eq!(row.asked, []);
}

/// A reachable broker that does not answer delays clients as long as a lost one, and not longer.
#[test]
fn who_does_not_answer_for_long_is_not_waited_for() {
    let heal = settings(0).heal;
    let nobody = Located::default;
    for silent in [2, 3] {
        let mut row = Row::new(4);
        let since = row.now;
        let all_but = |row: &mut Row, silent: usize| {
            look_up(row);
            assert_eq!(looked_up(row), [1, 2, 3]);
            let others = (1..4).filter(|n| *n != silent);
            others.for_each(|n| answer(row, n, nobody()));
        };
        while row.now < since + heal {
            all_but(&mut row, silent);
            assert_eq!(located(&mut row), None);
            row.run_for(500);
            assert_eq!(located(&mut row), nothing(Extent::Incomplete));
        }
        all_but(&mut row, silent);
        assert_eq!(located(&mut row), nothing(Extent::Reached));
        // Look-ups wait for the broker again when it has answered in time.
        row.run_for(1000);
        answer(&mut row, silent, nobody());
        look_up(&mut row);
        (1..4).for_each(|n| answer(&mut row, n, nobody()));
        assert_eq!(located(&mut row), nothing(Extent::Reached));
        row.asked.clear();
        look_up(&mut row);
        (1..4).for_each(|n| answer(&mut row, n, nobody()));
        assert_eq!(located(&mut row), nothing(Extent::All));
    }
}

#[test]
fn who_is_away_is_not_asked_and_the_answer_says_so() {
    let mut row = Row::new(3);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2]);
    answer(&mut row, 1, Located::default());
    row.cut(1, 2);
    assert_eq!(located(&mut row), nothing(Extent::Incomplete));
    // The broker may be reachable again soon.
    row.run_for(900);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1]);
    answer(&mut row, 1, session(1));
    let one = vec![(home(1), session(1))];
    assert_eq!(located(&mut row), Some((one, Extent::Incomplete)));
    row.run_for(200);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1]);
    answer(&mut row, 1, session(1));
    let one = vec![(home(1), session(1))];
    assert_eq!(located(&mut row), Some((one, Extent::Reached)));

    // The link of the broker that has begun the look-up.
    row.connect(1, 2);
    row.run_for(5000);
    row.asked.clear();
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2]);
    row.cut(0, 1);
    assert_eq!(located(&mut row), nothing(Extent::Incomplete));
    row.run_for(1100);
    row.asked.clear();
    look_up(&mut row);
    assert_eq!(located(&mut row), nothing(Extent::Reached));
}

/// A broker that moves in the tree is asked at neither place, though the broker that has begun the
/// look-up reaches it all the while.
#[test]
fn a_look_up_is_incomplete_if_the_tree_has_changed() {
    let mut row = Row::new(4);
    look_up(&mut row);
    row.cut(2, 3);
    row.connect(0, 3);
    row.run_for(100);
    assert!(row.nodes[0].reached().contains(&name(3)));
    row.asked.clear();
    answer(&mut row, 1, Located::default());
    answer(&mut row, 2, Located::default());
    assert_eq!(located(&mut row), nothing(Extent::Incomplete));
    // The look-up is also incomplete if a distant broker has only joined.
    let mut row = Row::new(4);
    row.cut(2, 3);
    row.run_for(100);
    look_up(&mut row);
    assert_eq!(looked_up(&mut row), [1, 2]);
    row.connect(2, 3);
    row.run_for(100);
    row.asked.clear();
    answer(&mut row, 1, Located::default());
    answer(&mut row, 2, Located::default());
    assert_eq!(located(&mut row), nothing(Extent::Incomplete));
}

/// A stamp from the future would end all CONNECTs until that time.
#[test]
fn a_look_up_from_the_future_is_not_heard() {
    let mut row = Row::new(3);
    row.nodes[1].set_clock(LAST_INSTANT / 2);
    let (at, now) = (stamp(LAST_INSTANT, 0), row.now);
    row.nodes[0].look_up(&at, "c", None, false, now);
    row.settle();
    assert_eq!(row.asked, []);
    row.run_for(500);
    let extent = match row.asked.pop() {
        Some((0, Output::Located { extent, .. })) => extent,
        other => panic!("{other:?}"),
    };
    assert_eq!((extent, &row.asked[..]), (Extent::Incomplete, &[][..]));
}

#[test]
fn it_is_told_who_is_reached_and_whether_others_are_away() {
    let ids = |all: &[usize]| -> BTreeSet<_> { all.iter().map(|n| name(*n)).collect() };
    let mut row = Row::new(3);
    let told = |row: &Row, all: &[usize], away: bool| {
        let n = row.nodes.len() - 1;
        assert_eq!(row.reach[&n], (ids(all), away));
    };
    told(&row, &[0, 1], false);
    row.cut(0, 1);
    row.run_for(100);
    told(&row, &[1], true);
    row.connect(0, 1);
    row.run_for(5000);
    told(&row, &[0, 1], false);
    row.cut(1, 2);
    told(&row, &[], true);

    // After the start, before any event.
    let first = |node: &mut Node| {
        let outputs = node.take_outputs().into_iter();
        let reach = outputs.filter_map(|output| match output {
            Output::Reach { reached, away } => Some((reached, away)),
            _ => None,
        });
        reach.collect::<Vec<_>>()
    };
    let join_wait = Nanos(0);
    let new = |wait| {
        let settings = punctual_mesh::Settings {
            join_wait: wait,
            ..settings(0)
        };
        Node::new(settings, row.now)
    };
    let mut node = new(join_wait);
    assert_eq!(first(&mut node), [(ids(&[]), false)]);
    assert_eq!(first(&mut node), []);
    // Others are reported as away if messages are kept for them, or before the node has joined.
    for behind in [vec![], vec![name(1), name(2)]] {
        let mut node = new(join_wait);
        node.remember(&name(1), vec!["t".into()], Vec::new(), behind, row.now);
        assert_eq!(first(&mut node), [(ids(&[]), true)]);
    }
    let mut node = new(Nanos::from_secs(3));
    assert_eq!(first(&mut node), [(ids(&[]), true)]);
    node.tick(row.now + Nanos::from_secs(3));
    assert_eq!(first(&mut node), [(ids(&[]), false)]);
}

/// The stub of a client at the first broker.
fn stub(n: u64) -> ClientStub {
    let stub = Stub {
        target: home(1),
        target_epoch: stamp(n, 1),
        for_epoch: stamp(1, 0),
    };
    (format!("c{n}").into(), stub)
}

fn fence(row: &mut Row, stubs: impl Iterator<Item = u64>) {
    for n in stubs {
        let (client, stub) = stub(n);
        row.nodes[0].fence_stub(&client, &stub, row.now);
    }
    row.settle();
}

/// A fence request to a broker's core: its number, and the clients of the stubs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Core {
    n: usize,
    number: u64,
    stubs: Vec<u64>,
}

/// Fence requests to cores since the last call.
fn asked(row: &mut Row) -> Vec<Core> {
    let is = |(_, output): &(usize, Output)| matches!(output, Output::FenceAsked { .. });
    let asked = row.asked.extract_if(.., |asked| is(asked));
    let asked = asked.map(|(n, output)| {
        let Output::FenceAsked { by, number, stubs } = output else {
            unreachable!()
        };
        assert_eq!(by, home(0));
        let named: Vec<u64> = stubs.iter().map(|it| it.1.target_epoch.micros).collect();
        assert!(
            stubs
                .iter()
                .eq(&named.iter().map(|n| stub(*n)).collect::<Vec<_>>())
        );
        Core {
            n,
            number,
            stubs: named,
        }
    });
    asked.collect()
}

/// Each core answers its request: the given brokers block the given stubs.
fn block(row: &mut Row, blocks: &[(usize, u64)]) -> Vec<Core> {
    let asked = asked(row);
    for core in &asked {
        let stays = |n: &u64| blocks.contains(&(core.n, *n));
        let places = (0..).zip(&core.stubs);
        let blocked = places.filter(|(_, n)| stays(n)).map(|(place, _)| place);
        let (now, blocked) = (row.now, blocked.collect());
        row.nodes[core.n].fence_answered(&home(0), core.number, blocked, now);
    }
    row.settle();
    asked
}

/// Stubs that may end, since the last call.
fn passed(row: &mut Row) -> Vec<u64> {
    let is = |(_, output): &(usize, Output)| matches!(output, Output::FencePassed { .. });
    let passed = row.asked.extract_if(.., |asked| is(asked));
    let passed = passed.map(|(n, output)| {
        let Output::FencePassed { client, epoch } = output else {
            unreachable!()
        };
        assert_eq!((n, &client), (0, &stub(epoch.micros).0));
        assert_eq!(epoch, stub(epoch.micros).1.target_epoch);
        epoch.micros
    });
    passed.collect()
}

/// The brokers that are asked, with the stubs.
fn named(asked: &[Core]) -> Vec<(usize, &[u64])> {
    asked.iter().map(|core| (core.n, &core.stubs[..])).collect()
}

/// A stub passes if no asked broker blocks it, in either round.
#[test]
fn a_stub_stays_while_another_broker_leads_there() {
    let mut row = Row::new(3);
    fence(&mut row, 1..2);
    fence(&mut row, 2..6);
    // The first stub is asked about at once and alone; later ones are collected into one request.
    assert_eq!(named(&block(&mut row, &[])), [(1, &[1][..]), (2, &[1])]);
    assert!(passed(&mut row).is_empty());
    row.run_for(50);
    assert_eq!(named(&block(&mut row, &[])), [(1, &[1][..]), (2, &[1])]);
    assert_eq!(passed(&mut row), [1]);
    row.run_for(60);
    let first = block(&mut row, &[(1, 2), (2, 4)]);
    assert_eq!(named(&first), [(1, &[2, 3, 4, 5][..]), (2, &[2, 3, 4, 5])]);
    row.run_for(10);
    let second = block(&mut row, &[(2, 5)]);
    assert_eq!(named(&second), [(1, &[3, 5][..]), (2, &[3, 5])]);
    assert_eq!(passed(&mut row), [3]);
    // Blocked stubs are discarded: the broker has to request their fences again.
    row.run_for(20_000);
    assert_eq!(row.asked, []);
    fence(&mut row, [2].into_iter());
    block(&mut row, &[(1, 2), (2, 2)]);
    row.run_for(20_000);
    assert_eq!(row.asked, [], "not asked a second time for none");
    fence(&mut row, [2].into_iter());
    block(&mut row, &[]);
    row.run_for(10);
    block(&mut row, &[]);
    assert_eq!(passed(&mut row), [2]);
}

#[test]
fn a_question_names_so_many_stubs_at_most() {
    let mut row = Row::new(2);
    let most = MAX_STUBS as u64;
    fence(&mut row, 0..most + 10);
    let mut sizes = Vec::new();
    for _ in 0..30 {
        sizes.extend(block(&mut row, &[]).iter().map(|core| core.stubs.len()));
        row.run_for(10);
    }
    let mut all = passed(&mut row);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..most + 10));
    assert_eq!(sizes, [1, 1, MAX_STUBS, 9, MAX_STUBS, 9]);

    // A request has room for fewer long names.
    for _ in 0..8 {
        let client = "c".repeat(60_000);
        row.nodes[0].fence_stub(&client, &stub(1).1, row.now);
    }
    let mut sizes = Vec::new();
    for _ in 0..30 {
        row.settle();
        for (n, output) in std::mem::take(&mut row.asked) {
            if let Output::FenceAsked { by, number, stubs } = output {
                sizes.push(stubs.len());
                row.nodes[n].fence_answered(&by, number, Vec::new(), row.now);
            }
        }
        row.run_for(10);
    }
    assert_eq!(sizes, [1, 1, 5, 2, 5, 2]);
}

/// A stub stays while a core has not answered, or a neighbour has not acknowledged messages queued
/// for it.
#[test]
fn a_stub_stays_while_something_is_on_its_way_to_it() {
    let mut row = Row::new(3);
    row.stuck = Some(2);
    fence(&mut row, 1..2);
    for round in [1, 2] {
        row.run_for(3000);
        assert!(row.flushes.is_empty(), "the core is waited for first");
        // A core is asked once, however often the request is repeated.
        assert_eq!(named(&block(&mut row, &[])), [(1, &[1][..]), (2, &[1])]);
        row.run_for(1000);
        assert_eq!(
            (row.flushes.len(), passed(&mut row)),
            (1, vec![]),
            "{round}"
        );
        row.nodes[2].flushed(row.flushes.remove(0));
        row.settle();
    }
    assert_eq!(passed(&mut row), [1]);

    // The stub does not wait for ever.
    fence(&mut row, 2..3);
    block(&mut row, &[]);
    row.run_for(10_000);
    row.nodes[2].flushed(row.flushes.remove(0));
    row.run_for(1000);
    assert_eq!(row.asked, []);
    fence(&mut row, 2..3);
    assert_eq!(named(&block(&mut row, &[])), [(1, &[2][..]), (2, &[2])]);
}

/// A stub stays while messages kept for a lost link may return, or an asked broker is unreachable.
#[test]
fn a_stub_stays_while_something_may_turn_round() {
    let mut row = Row::new(3);
    let behind = vec![name(1)];
    row.nodes[2].remember(&name(9), vec!["t".into()], Vec::new(), behind, row.now);
    row.run_for(100);
    fence(&mut row, 1..2);
    for _ in 0..180 {
        block(&mut row, &[]);
        row.run_for(10);
    }
    assert!(passed(&mut row).is_empty());
    for _ in 0..150 {
        block(&mut row, &[]);
        row.run_for(10);
    }
    assert_eq!(passed(&mut row), [1]);

    for (a, b) in [(0, 1), (1, 2)] {
        let mut row = Row::new(3);
        fence(&mut row, 1..2);
        assert_eq!(asked(&mut row).len(), 2);
        row.cut(a, b);
        row.run_for(3000);
        block(&mut row, &[]);
        assert!(passed(&mut row).is_empty(), "{a} has lost {b}");
        row.connect(a, b);
        for _ in 0..500 {
            block(&mut row, &[]);
            row.run_for(10);
        }
        assert_eq!(passed(&mut row), [1]);
    }

    let mut alone = Row::new(1);
    fence(&mut alone, 1..2);
    alone.run_for(10);
    assert_eq!(passed(&mut alone), [1]);
}

/// A stub stays until brokers have answered that joined during the request, at the asking broker or
/// at one that forwards the request.
#[test]
fn a_stub_stays_while_somebody_has_come_who_was_not_asked() {
    for at in [0, 1] {
        let mut row = Row::new(2);
        fence(&mut row, 1..2);
        assert_eq!(named(&block(&mut row, &[])), [(1, &[1][..])]);
        row.stuck = Some(1);
        row.run_for(10);
        assert_eq!(named(&block(&mut row, &[])), [(1, &[1][..])]);
        assert_eq!((row.flushes.len(), passed(&mut row)), (1, vec![]));
        row.nodes.push(Node::new(settings(2), row.now));
        row.connect(at, 2);
        row.run_for(100);
        row.nodes[1].flushed(row.flushes.remove(0));
        row.settle();
        assert!(passed(&mut row).is_empty(), "another one at {at}");
        row.stuck = None;
        row.run_for(2000);
        let asked = block(&mut row, &[]);
        assert!(asked.iter().any(|core| core.n == 2), "{asked:?}");
        assert_eq!(passed(&mut row), [1]);
    }
}
