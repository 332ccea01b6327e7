//! The topics of a mesh that all brokers share.

use std::sync::Arc;

use crate::base::notes::Notes;
use crate::directory::Directory;
use crate::hub::Hub;
use crate::index::generation_slot;
use crate::index::matched::Matched;
use crate::index::target::Target;

/// The client identifier of the first neighbour among the receivers, if there is one.
pub(super) fn first_of<'a>(directory: &Directory, matched: &'a Matched) -> Option<&'a Arc<str>> {
    directory.federation()?;
    let mut targets = matched.targets();
    let link = targets.find(|target| target.session.link)?;
    Some(&link.session.client_id)
}

/// The topic on which neighbours compare their retained messages. A neighbour that is sent all
/// retained messages has subscribed to it, too.
pub(crate) const TOPIC: &str = "$mesh/retained";

/// The receivers of a message: the matching ones and, with `all`, every neighbour that has
/// subscribed to [`TOPIC`]; neighbours get it with its notes. If the message was handed on, only
/// neighbours get it.
pub(crate) fn reach(hub: &Hub, matched: &Matched, notes: &Notes, all: bool) -> Vec<Target> {
    let ids = (!notes.is_empty()).then(|| notes.ids());
    let keepers = all.then(|| keepers(hub));
    let keepers = keepers.iter().flat_map(Matched::targets);
    let gets = |target: &&Target| target.session.link || !notes.handed;
    let mut targets: Vec<Target> = matched.targets().filter(gets).cloned().collect();
    for keeper in keepers.filter(|target| target.session.link) {
        let same = |target: &Target| Arc::ptr_eq(&target.session, &keeper.session);
        if !targets.iter().any(same) {
            targets.push(keeper.clone());
        }
    }
    for target in targets.iter_mut().filter(|target| target.session.link) {
        target.subscription_ids = ids.clone();
    }
    targets.sort_unstable_by_key(Target::key);
    targets
}

/// The neighbours that are sent all retained messages.
pub(super) fn keepers(hub: &Hub) -> Matched {
    hub.directory.lookup(TOPIC, generation_slot(TOPIC)).1
}

/// Whether all brokers of a mesh share a topic.
pub(crate) fn is_common(hub: &Hub, topic: &[u8]) -> bool {
    !topic.starts_with(b"$") && hub.directory.federation().is_some()
}
