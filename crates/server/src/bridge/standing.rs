//! How bridges stand, for who watches: metrics, `$SYS` topics and the status of the mesh.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use punctual_broker::SysSource;

use super::sections::Section;

/// All bridges, as they stand at any time.
#[derive(Debug, Clone)]
pub(crate) struct Standings(Arc<[Arc<Standing>]>);

/// How one bridge stands.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Of its section.
    pub(crate) name: String,
    /// Of the other broker: host and port.
    pub(crate) address: String,
    /// What tells of it, as in Mosquitto.
    topic: Option<String>,
    pub(super) near: EndState,
    pub(super) far: EndState,
}

/// Why an end is not connected, if it is not.
#[derive(Debug)]
pub(super) struct EndState(Mutex<Option<String>>);

impl EndState {
    fn new() -> Self {
        Self(Mutex::new(Some("it has not been connected yet".into())))
    }

    pub(super) fn connected(&self) {
        *self.lock() = None;
    }

    pub(super) fn unconnected(&self, why: String) {
        *self.lock() = Some(why);
    }

    fn why(&self) -> Option<String> {
        self.lock().clone()
    }

    /// What is inside is whole after a panic, too.
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    pub(super) fn new(section: &Section) -> Self {
        let address = section.address.as_ref();
        let id = section.remote.client_id.as_ref().unwrap_or(&section.name);
        let topic = format!(
            "$SYS/broker/connection/{}/state",
            id.replace(['+', '#'], "_")
        );
        Self {
            name: section.name.clone(),
            address: address.map_or_else(String::new, |address| address.target().to_owned()),
            topic: section.notifications.then_some(topic),
            near: EndState::new(),
            far: EndState::new(),
        }
    }

    /// Why nothing goes over it; `None` if both its ends are connected.
    pub(crate) fn trouble(&self) -> Option<String> {
        let here = |why: String| format!("at this broker: {why}");
        self.far.why().or_else(|| self.near.why().map(here))
    }
}

impl Standings {
    pub(super) fn new(sections: &[Section]) -> Self {
        let all = sections.iter().map(|it| Arc::new(Standing::new(it)));
        Self(all.collect())
    }

    pub(super) fn each(&self) -> Vec<Arc<Standing>> {
        self.0.to_vec()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Standing> {
        self.0.iter().map(|standing| &**standing)
    }
}

/// 1 or 0, with Mosquitto's names (mosquitto.conf(5), `notifications`).
impl SysSource for Standings {
    fn topics(&self) -> Vec<(String, String)> {
        let state = |bridge: &Standing| {
            let value = if bridge.trouble().is_none() { "1" } else { "0" };
            Some((bridge.topic.clone()?, value.to_owned()))
        };
        self.iter().filter_map(state).collect()
    }
}
