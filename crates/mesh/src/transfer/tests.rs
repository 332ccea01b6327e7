//! What no other home can do to this one: bounds, and messages in any state.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// The least shell: marks of sessions, and nothing in them.
#[derive(Debug, Default)]
struct Marks(RefCell<BTreeMap<Arc<str>, Mark>>);

impl Sessions for Marks {
    fn mark(&self, client: &str) -> Option<Mark> {
        self.0.borrow().get(client).cloned()
    }
}

fn home(n: u8) -> HomeId {
    HomeId::new(["own", "a", "b", "c"][usize::from(n % 4)]).unwrap()
}

fn transfers(bounds: Bounds) -> Transfers {
    let times = Times {
        session_wait: Nanos::from_secs(5),
        heal: Nanos::from_secs(5),
        keep: Nanos::from_secs(60),
    };
    let own = home(0);
    let mut transfers = Transfers::new(Settings {
        own,
        instance: 1,
        times,
        bounds,
    });
    transfers.set_reach(&BTreeSet::from([home(1), home(2)]), true);
    transfers.take_actions();
    transfers
}

/// Does what is said; returns the answers to CONNECTs, and what is sent.
fn perform(transfers: &mut Transfers, marks: &Marks) -> (Vec<Answer>, Vec<TransferMessage>) {
    let (mut answers, mut sent) = (Vec::new(), Vec::new());
    loop {
        let actions = transfers.take_actions();
        if actions.is_empty() {
            return (answers, sent);
        }
        for (client, action) in actions {
            match action {
                Action::Write(number, changes) => {
                    for change in changes {
                        let mut all = marks.0.borrow_mut();
                        match change {
                            Change::Begin(mark) | Change::Mark(mark) | Change::Install(_, mark) => {
                                all.insert(client.clone(), mark);
                            }
                            Change::End | Change::Depart(..) | Change::Demote(_) => {
                                all.remove(&client);
                            }
                            _ => {}
                        }
                    }
                    transfers.handle(&client, Event::Written(number), 0, marks);
                }
                Action::MakePart(id, number) => {
                    let made = Event::PartMade {
                        id,
                        number,
                        last: number == 1,
                        bytes: [0; 8].into(),
                    };
                    transfers.handle(&client, made, 0, marks);
                }
                Action::Connack { answer, .. } => answers.push(answer),
                Action::Send(_, message) => sent.push(message),
                _ => {}
            }
        }
    }
}

fn stamp(n: u8) -> Stamp {
    Stamp {
        micros: (n >> 2).into(),
        by: home(n),
    }
}

fn transfer(n: u8) -> TransferId {
    TransferId {
        at: stamp(n & 15),
        freeze: Freeze {
            instance: 1,
            number: u64::from(n >> 6),
        },
    }
}

fn mark(n: u8) -> Mark {
    Mark {
        confirmed: n & 1 == 0,
        epoch: stamp(n & 15),
        born: (n & 16 != 0).then(|| stamp(n >> 4)),
        blind: n & 32 != 0,
    }
}

fn message(kind: u8, n: u8, m: u8) -> TransferMessage {
    match kind % 12 {
        0 => TransferMessage::Take {
            at: stamp(n),
            user: None,
        },
        1 => TransferMessage::Refused {
            at: stamp(n),
            newer: (m & 1 == 0).then(|| stamp(m)),
        },
        2 | 3 => TransferMessage::Part {
            id: transfer(n),
            number: (m & 3).into(),
            last: (m & 4 != 0).then(|| mark(m)),
            bytes: vec![0; m.into()].into(),
        },
        4 => TransferMessage::PartAck {
            id: transfer(n),
            number: m.into(),
        },
        5 => TransferMessage::Stored(transfer(n)),
        6 => TransferMessage::Commit(transfer(n)),
        7 => TransferMessage::Abort(transfer(n)),
        8 => TransferMessage::Done(transfer(n)),
        9 => TransferMessage::Claim {
            mark: mark(n),
            user: None,
        },
        10 => TransferMessage::Yielded(stamp(n)),
        _ => TransferMessage::Resync,
    }
}

fn event(kind: u8, n: u8, m: u8) -> Event {
    match kind {
        0 => Event::Lookup {
            by: home(n),
            at: stamp(n),
            clean: m & 1 == 0,
        },
        1 => Event::Located {
            at: stamp(n),
            answers: vec![(
                home(m),
                Located {
                    session: (m & 1 == 0).then(|| (m & 2 == 0, stamp(m >> 2))),
                    ..Located::default()
                },
            )],
            extent: [Extent::All, Extent::Reached, Extent::Incomplete][usize::from(m % 3)],
        },
        2 => Event::Due(Timer::Connect(stamp(n), 0)),
        3 => Event::Due(Timer::Stored(transfer(n), m)),
        4 => Event::Due(Timer::Keep(PartnerState::Copy(transfer(n)), None)),
        5 => Event::Due(Timer::Claim(m)),
        6 => Event::Due(Timer::Sweep),
        7 => Event::FencePassed(stamp(n)),
        8 => Event::Confirmed,
        9 => Event::Ended,
        10 => Event::Closed(stamp(n)),
        _ => Event::Message(home(n >> 4), message(kind, n, m)),
    }
}

proptest! {
    /// Whatever others say in whatever order, nothing panics and the books are right.
    #[test]
    fn any_event_in_any_state(events in proptest::collection::vec(any::<[u8; 3]>(), 0..200)) {
        let bounds = Bounds { connects: 2, transfers: 2, per_home: 1, per_client: 2, records: 3, ..Bounds::default() };
        let mut transfers = transfers(bounds);
        let marks = Marks::default();
        for [kind, n, m] in events {
            let client = ["x", "y", "z"][usize::from(m % 3)];
            match kind {
                240.. => {
                    transfers.connect(client, n & 1 == 0, (n >> 4).into(), &marks);
                }
                230.. => transfers.set_reach(&(1..n % 4).map(home).collect(), m & 1 == 0),
                _ => transfers.handle(client, event(kind % 32, n, m), 0, &marks),
            }
            perform(&mut transfers, &marks);
            let mut totals = Totals::default();
            transfers.clients.values().for_each(|custody| totals.add(custody));
            prop_assert_eq!(&totals, &transfers.shared.totals);
            prop_assert!(totals.connects <= bounds.connects);
            prop_assert!(totals.transfers <= bounds.transfers);
        }
    }
}

fn refused(why: Refusal) -> Vec<Answer> {
    vec![Answer::Refused(why)]
}

#[test]
fn more_clients_than_may_wait_are_refused() {
    let mut transfers = transfers(Bounds {
        connects: 1,
        ..Bounds::default()
    });
    let marks = Marks::default();
    transfers.connect("x", false, 1, &marks);
    assert_eq!(perform(&mut transfers, &marks).0, []);
    transfers.connect("y", false, 2, &marks);
    assert_eq!(perform(&mut transfers, &marks).0, refused(Refusal::Busy));
}

/// As many clients as may are looked up at a time; those who come after them wait, and go on in their order.
#[test]
fn clients_wait_for_others_in_their_order() {
    let mut transfers = transfers(Bounds {
        active: 2,
        ..Bounds::default()
    });
    let marks = Marks::default();
    let look_up_reply = |transfers: &mut Transfers| {
        let mut clients = Vec::new();
        loop {
            let actions = transfers.take_actions();
            if actions.is_empty() {
                return clients;
            }
            for (client, action) in actions {
                match action {
                    Action::Lookup { .. } => clients.push(client.to_string()),
                    Action::Arm(timer @ Timer::Next, _) => {
                        transfers.handle(&client, Event::Due(timer), 9, &marks);
                    }
                    _ => {}
                }
            }
        }
    };
    let ats: Vec<Stamp> = ["a", "b", "c", "d", "e"]
        .map(|client| transfers.connect(client, false, 9, &marks))
        .into();
    assert_eq!(look_up_reply(&mut transfers), ["a", "b"]);
    // One that has left is passed over, and one with Clean Start waits for nobody.
    transfers.handle("c", Event::Closed(ats[2].clone()), 9, &marks);
    transfers.connect("f", true, 9, &marks);
    assert_eq!(look_up_reply(&mut transfers), ["f"]);
    for (client, at) in [("a", &ats[0]), ("f", &ats[0])] {
        transfers.handle(client, Event::Closed(at.clone()), 9, &marks);
    }
    assert_eq!(look_up_reply(&mut transfers), [""; 0], "f is one of two");
    transfers.handle("b", Event::Closed(ats[1].clone()), 9, &marks);
    assert_eq!(look_up_reply(&mut transfers), ["d"]);
    let due = Event::Due(Timer::Queued(ats[4].clone()));
    transfers.handle("e", due, 9, &marks);
    assert!(
        !transfers.clients.contains_key("e"),
        "it has waited for long"
    );
}

/// A client that waits for its session, which another home has.
fn request(transfers: &mut Transfers, marks: &Marks) -> TransferId {
    let at = transfers.connect("x", false, 9, marks);
    let located = Located {
        session: Some((true, stamp(1))),
        ..Located::default()
    };
    let event = Event::Located {
        at: at.clone(),
        answers: vec![(home(1), located)],
        extent: Extent::All,
    };
    transfers.handle("x", event, 9, marks);
    let freeze = Freeze {
        instance: 1,
        number: 1,
    };
    TransferId { at, freeze }
}

fn part(id: &TransferId, number: u32, last: bool) -> Event {
    let part = TransferMessage::Part {
        id: id.clone(),
        number,
        last: last.then(|| mark(0)),
        bytes: [0; 8].into(),
    };
    Event::Message(home(1), part)
}

/// A home with a confirmed session, and two that had a later one, which has yielded to it: the stub at the
/// first of these still leads to the second.
#[test]
fn a_stub_that_leads_to_a_session_that_has_yielded_holds_nobody_up() {
    let confirmed = Located {
        session: Some((true, stamp(4))),
        ..Located::default()
    };
    let stub = |to, epoch, left| Located {
        moved: Some((home(to), stamp(epoch))),
        left: Some(stamp(left)),
        ..Located::default()
    };
    for (left, is_taken) in [(20, true), (24, true), (16, false)] {
        let (mut transfers, marks) = (transfers(Bounds::default()), Marks::default());
        transfers.set_reach(&[1, 2, 3].map(home).into(), false);
        let at = transfers.connect("x", false, 99, &marks);
        let located = Event::Located {
            at,
            answers: vec![
                (home(1), confirmed.clone()),
                (home(2), stub(1, 4, left)),
                (home(3), stub(2, 20, 8)),
            ],
            extent: Extent::All,
        };
        transfers.handle("x", located, 9, &marks);
        let (answers, sent) = perform(&mut transfers, &marks);
        let takes = |it: &TransferMessage| matches!(it, TransferMessage::Take { .. });
        let expected = match is_taken {
            true => Vec::new(),
            false => refused(Refusal::OnItsWay),
        };
        assert_eq!(answers, expected, "{left}");
        assert_eq!(sent.iter().any(takes), is_taken, "{left}");
    }
}

#[test]
fn a_session_that_is_too_large_stays_where_it_is() {
    let mut transfers = transfers(Bounds {
        session_bytes: 15,
        ..Bounds::default()
    });
    let marks = Marks::default();
    let id = request(&mut transfers, &marks);
    transfers.handle("x", part(&id, 0, false), 9, &marks);
    assert_eq!(perform(&mut transfers, &marks).0, []);
    transfers.handle("x", part(&id, 1, true), 9, &marks);
    assert_eq!(perform(&mut transfers, &marks).0, refused(Refusal::Busy));
    assert!(transfers.clients.is_empty());
}

/// Each step of a transfer may take `session_wait`: the answer to a look-up, each part, and the commit.
#[test]
fn a_client_waits_for_each_step_of_a_transfer() {
    for steps in 0..=2 {
        let mut transfers = transfers(Bounds::default());
        let marks = Marks::default();
        let id = request(&mut transfers, &marks);
        let mut answers = |event| {
            transfers.handle("x", event, 9, &marks);
            perform(&mut transfers, &marks).0
        };
        let due = |progress| Event::Due(Timer::Connect(id.at.clone(), progress));
        assert_eq!(answers(due(0)), []);
        let mut progress = 1;
        for step in 0..steps {
            assert_eq!(answers(part(&id, step, step == 1)), []);
            assert_eq!(answers(due(progress)), [], "{steps}");
            progress = if step == 1 { u32::MAX } else { progress + 1 };
        }
        let silent = refused(Refusal::OwnerSilent);
        assert_eq!(answers(due(progress)), silent, "{steps}");
    }
}

#[test]
fn too_many_transfers_are_refused() {
    let bounds = Bounds {
        transfers: 1,
        ..Bounds::default()
    };
    let mut transfers = transfers(bounds);
    let marks = Marks::default();
    for client in ["x", "y"] {
        marks.0.borrow_mut().insert(client.into(), mark(0));
    }
    for (client, is_refused) in [("x", false), ("y", true)] {
        let at = stamp(20);
        let take = TransferMessage::Take { at, user: None };
        transfers.handle(client, Event::Message(home(1), take), 9, &marks);
        let (_, sent) = perform(&mut transfers, &marks);
        let refused = |it: &TransferMessage| matches!(it, TransferMessage::Refused { .. });
        assert_eq!(sent.iter().any(refused), is_refused, "{client}");
    }
}

#[test]
fn parts_come_in_order_and_from_the_owner() {
    let mut transfers = transfers(Bounds::default());
    let marks = Marks::default();
    let id = request(&mut transfers, &marks);
    perform(&mut transfers, &marks);
    let mut sends = |event| {
        transfers.handle("x", event, 9, &marks);
        perform(&mut transfers, &marks).1
    };
    assert_eq!(sends(part(&id, 1, false)), [], "one is missing");
    let Event::Message(_, first) = part(&id, 0, false) else {
        unreachable!();
    };
    assert_eq!(sends(Event::Message(home(2), first)), [], "not the owner");
    let ack = TransferMessage::PartAck {
        id: id.clone(),
        number: 0,
    };
    assert_eq!(sends(part(&id, 0, false)), vec![ack.clone()]);
    assert_eq!(sends(part(&id, 0, false)), [ack], "said again");
    let stored = TransferMessage::Stored(id.clone());
    assert_eq!(sends(part(&id, 1, true)), vec![stored.clone()]);
    assert_eq!(sends(part(&id, 1, true)), [stored], "said again");
    let done = TransferMessage::Done(id.clone());
    let commit = || Event::Message(home(1), TransferMessage::Commit(id.clone()));
    assert_eq!(sends(commit()), vec![done.clone()]);
    assert_eq!(sends(commit()), [done], "said again");
}

#[test]
fn the_future_is_not_believed() {
    let mut transfers = transfers(Bounds::default());
    let marks = Marks::default();
    marks.0.borrow_mut().insert("x".into(), mark(0));
    let today = 1_800_000_000_000_000;
    let take = TransferMessage::Take {
        at: Stamp {
            micros: punctual_model::LAST_INSTANT,
            by: home(1),
        },
        user: None,
    };
    let event = Event::Message(home(1), take);
    transfers.handle("x", event, today, &marks);
    assert_eq!(perform(&mut transfers, &marks), (Vec::new(), Vec::new()));
    assert_eq!(transfers.connect("y", false, today, &marks).micros, today);
}

/// A partner that is away at some moments is not given up, and one that is away all the time is.
#[test]
fn what_is_kept_is_given_up_when_its_partner_was_away_all_the_time() {
    let mut transfers = transfers(Bounds::default());
    let marks = Marks::default();
    let id = request(&mut transfers, &marks);
    perform(&mut transfers, &marks);
    let kept = PartnerState::Copy(id.clone());
    transfers.handle("x", part(&id, 0, true), 9, &marks);
    let mut before = None;
    let mut due = |transfers: &mut Transfers| {
        let event = Event::Due(Timer::Keep(kept.clone(), before));
        transfers.take_actions();
        transfers.handle("x", event, 9, &marks);
        let actions = transfers.take_actions();
        let gave_up = Action::GaveUp(kept.clone());
        for (_, action) in &actions {
            if let Action::Arm(Timer::Keep(_, armed), _) = action {
                before = *armed;
            }
        }
        actions.iter().any(|(_, action)| *action == gave_up)
    };
    let both = BTreeSet::from([home(1), home(2)]);
    let one = BTreeSet::from([home(2)]);
    assert!(!due(&mut transfers), "reached");
    for _ in 0..2 {
        transfers.set_reach(&one, true);
        assert!(!due(&mut transfers), "away since then");
        transfers.set_reach(&both, true);
        transfers.set_reach(&one, true);
        assert!(!due(&mut transfers), "away again");
        transfers.set_reach(&both, true);
        assert!(!due(&mut transfers), "reached");
    }
    transfers.set_reach(&one, true);
    assert!(!due(&mut transfers));
    assert!(due(&mut transfers), "away all the time");
}

/// A session is claimed at a home and leaves before that home has answered. The home will yield, and its stub
/// will lead here: so the stub here stays, and repeats the claim, until the home has answered.
#[test]
fn a_stub_stays_until_all_who_were_told_of_its_session_have_answered() {
    let mut transfers = transfers(Bounds::default());
    let marks = Marks::default();
    let own = Mark {
        confirmed: true,
        epoch: stamp(4),
        born: None,
        blind: false,
    };
    marks.0.borrow_mut().insert("x".into(), own.clone());
    let lesser = Mark {
        confirmed: false,
        epoch: Stamp {
            micros: 2,
            by: home(2),
        },
        born: None,
        blind: true,
    };
    let say = |transfers: &mut Transfers, from: u8, message: TransferMessage| {
        transfers.handle("x", Event::Message(home(from), message), 9, &marks);
        perform(transfers, &marks).1
    };
    let claim = |mark: &Mark| TransferMessage::Claim {
        mark: mark.clone(),
        user: None,
    };
    let answer = say(&mut transfers, 2, claim(&lesser));
    assert_eq!(answer, [claim(&own)]);
    // Meanwhile the session leaves for another home.
    let at = Stamp {
        micros: 8,
        by: home(1),
    };
    let take = TransferMessage::Take {
        at: at.clone(),
        user: None,
    };
    let parts = say(&mut transfers, 1, take);
    let Some(TransferMessage::Part { id, .. }) = parts.last().cloned() else {
        panic!("{parts:?}");
    };
    say(&mut transfers, 1, TransferMessage::Stored(id.clone()));
    say(&mut transfers, 1, TransferMessage::Done(id));
    let is_stub = |transfers: &mut Transfers| {
        transfers.handle("x", Event::FencePassed(at.clone()), 9, &marks);
        perform(transfers, &marks);
        let route = transfers.route("x", &own.epoch, None, &marks);
        route == Route::Forward(home(1), at.clone())
    };
    assert!(is_stub(&mut transfers));
    transfers.handle("x", Event::Due(Timer::Claim(0)), 9, &marks);
    assert_eq!(perform(&mut transfers, &marks).1, [claim(&own)]);
    say(
        &mut transfers,
        2,
        TransferMessage::Yielded(own.epoch.clone()),
    );
    assert!(!is_stub(&mut transfers));
}
