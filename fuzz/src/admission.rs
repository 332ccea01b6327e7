//! What must hold for whatever clients ask for in user properties: the check of the fuzz target
//! `admission`, which `crates/manager/tests/replay.rs` also runs over the seeds.

use punctual_manager::{Client, Manager, Publication, Quota, Settings, State, Subscription};
use punctual_model::wire::Transport;
use punctual_model::{Answer, Requirements, Status};

/// Lines of one input, so that it takes little time.
const MOST: usize = 12;

/// Takes each line as what a client asks for: `p` (publish), `r` (reserve by the HTTP interface), `w`
/// (what if) or `s` (subscribe), its identifier, a topic or filter, bytes of the payload, and user
/// properties `key=value`, with spaces between. A last line that begins with `{` is a saved state.
pub fn admission(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let settings = Settings {
        places: vec!["client *: hosts".parse().expect("a rule")],
        max_user_load: 100,
        ..Settings::default()
    };
    let mut manager = Manager::new(settings.clone()).expect("a star");
    for (number, line) in text.lines().take(MOST).enumerate() {
        if line.starts_with('{') {
            restored(&settings, line);
        } else {
            ask(&mut manager, number as u64 + 1, line);
        }
        kept(&manager);
    }
    let state = manager.state();
    let written = state.to_json();
    let read = State::from_json(&written).expect("what was written is read");
    assert_eq!(read, state);
    let mut again = Manager::new(settings).expect("a star");
    again.restore(&read);
    kept(&again);
}

/// One client asks for something.
fn ask(manager: &mut Manager, session: u64, line: &str) {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let (kind, id, topic, payload) = (next(), next(), next(), next());
    let client = Client {
        id: id.into(),
        session,
        user: None,
        is_proven: false,
        address: None,
        transport: Transport::Tcp,
    };
    let pairs = words.filter_map(|word| word.split_once('='));
    let pairs: Vec<_> = pairs.collect();
    if let Some(answer) = Answer::read(pairs.iter().copied()) {
        let again: Vec<_> = answer.user_properties().collect();
        let again = again.iter().map(|(key, value)| (*key, value.as_str()));
        assert_eq!(Answer::read(again), Some(answer));
    }
    let requirements = requirements(&pairs);
    if kind == "s" {
        if punctual_codec::topic::validate_filter(topic).is_ok() {
            let filter = topic.into();
            let subscription = Subscription {
                filter,
                requirements,
            };
            manager.subscribe(&client, &[subscription]);
        }
        return;
    }
    if !requirements.is_real_time()
        || punctual_codec::topic::validate_name(topic.as_bytes()).is_err()
    {
        return;
    }
    let publication = Publication {
        topic,
        requirements,
        payload: payload.parse().unwrap_or(0),
        properties: 0,
        quota: Quota::default(),
    };
    let decision = match kind {
        "p" => manager.publish(&client, publication),
        "r" => manager.reserve(&client, publication),
        _ => manager.what_if(&client, publication).0,
    };
    match decision.answer.status {
        Some(Status::Admitted) => assert!(decision.answer.bound.is_some()),
        _ => assert!(decision.answer.reason.is_some_and(|why| !why.is_empty())),
    }
}

/// What of the user properties is understood. What is refused changes nothing, and what is
/// understood is written as it was meant.
fn requirements(pairs: &[(&str, &str)]) -> Requirements {
    let mut requirements = Requirements::NONE;
    for (key, value) in pairs {
        let before = requirements;
        match requirements.set(key.as_bytes(), value.as_bytes()) {
            Ok(taken) => assert_eq!(taken, requirements != before),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(requirements, before);
            }
        }
    }
    let mut again = Requirements::NONE;
    for (key, value) in requirements.user_properties() {
        assert_eq!(again.set(key.as_bytes(), value.as_bytes()), Ok(true));
    }
    assert_eq!(again, requirements);
    if !requirements.is_empty() {
        assert_eq!(requirements.to_string().parse(), Ok(requirements));
    }
    requirements
}

/// A state that is read can be taken in, whatever it says.
fn restored(settings: &Settings, text: &str) {
    if let Ok(state) = State::from_json(text) {
        let mut manager = Manager::new(settings.clone()).expect("a star");
        manager.restore(&state);
        kept(&manager);
    }
}

/// All that is admitted keeps its deadline.
fn kept(manager: &Manager) {
    for flow in manager.views(None, usize::MAX) {
        assert!(flow.bound_ns <= flow.deadline_ns, "{flow:?}");
    }
    let bounds = punctual_analysis::analyze(manager.network());
    for (flow, bounds) in manager.network().flows.iter().zip(bounds.flows) {
        for bound in bounds {
            let best = bound.best.expect("what is admitted has bounds");
            assert!(best <= flow.deadline, "{}", flow.id);
        }
    }
}
