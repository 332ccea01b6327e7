//! Delivery: from the receivers of a topic to their queues and connections, on this shard and on
//! others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::QoS;
use smallvec::SmallVec;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::hub::{Hub, Remote};
use crate::index::matched::Matched;
use crate::index::target::Target;
use crate::publication::{Promise, Publication};
use crate::shard::capacity::{is_congested, is_own};
use crate::shard::shares::{Choice, choose};

/// The sender that depends on queue capacity for a message that receivers must keep, where their
/// policy is to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependentSender {
    /// The publisher, whose message is refused.
    Publisher,
    /// A neighbour, whose message waited until there was capacity
    /// ([`cause_to_wait`](crate::mesh::shard::links::cause_to_wait)).
    Neighbour,
    /// None: a message without capacity is dropped and counted.
    Nobody,
}

/// Delivers to all receivers of a topic. Unless `whom` is [`DependentSender::Nobody`], no receiver gets a
/// message with QoS above 0 unless all receivers whose policy is to refuse can keep it.
#[expect(
    clippy::too_many_lines,
    reason = "receivers are asked and served under one borrow of the index's match"
)]
pub(crate) fn deliver_all(
    hub: &mut Hub,
    matched: &Matched,
    publication: &mut Publication<'_>,
    publisher: Option<ConnId>,
    now: Nanos,
    whom: DependentSender,
) -> Result<(), ()> {
    let acknowledged = publication.qos.min(matched.max_qos) != QoS::AtMostOnce;
    let refusable = match whom {
        // Queues of neighbours refuse, whatever the policy.
        DependentSender::Publisher => hub.may_refuse || hub.directory.federation().is_some(),
        DependentSender::Neighbour => hub.may_refuse,
        DependentSender::Nobody => false,
    };
    let mut members: SmallVec<[Target; 2]> = SmallVec::new();
    let groups = if publication.relayed {
        &[][..]
    } else {
        &matched.groups
    };
    for group in groups {
        match choose(hub, group, publication) {
            Choice::Member(member) => members.push(member),
            Choice::Full(member) if whom == DependentSender::Publisher => {
                hub.report_full(&member.session, true, now);
                return Err(());
            }
            Choice::Full(member) => {
                hub.stats.not_queued(publication.stamp.class());
                hub.report_full(&member.session, false, now);
            }
            Choice::Nobody => hub.stats.dropped_offline += 1,
        }
    }
    let targets: usize = matched.shards.iter().map(|(_, to)| to.len()).sum();
    hub.work.offered += (targets + groups.len()) as u64;
    // A client that receives the message here and, after moving, at another broker must be able to
    // recognise it.
    let goes_on =
        |target: &Target| target.session.link || target.session.carries.load(Ordering::Relaxed);
    let mut all = matched.shards.iter().flat_map(|(_, to)| to.iter());
    if hub.directory.federation().is_some() && hub.links.unpacking.is_none() && all.any(goes_on) {
        publication.named(&hub.directory);
    }
    if acknowledged && refusable {
        if let [(shard, targets)] = &*matched.shards
            && *shard == hub.index
            && let [only] = &**targets
            && matched.groups.is_empty()
        {
            publication.promise = match hub.refuses(&only.session, publication.queue_full) {
                true if whom == DependentSender::Publisher => Promise::Due,
                true => Promise::Made,
                false => Promise::None,
            };
            let receiver = hub.deliver(publication, only, now);
            if publication.promise == Promise::Refused {
                hub.release(publication.reserved);
                hub.report_full(&only.session, true, now);
                return Err(());
            }
            if let (Some(receiver), Some(publisher)) = (receiver, publisher) {
                hub.wait_for(publisher, receiver);
            }
            hub.release(publication.reserved);
            return Ok(());
        }
        publication.reserved = promise_room(hub, matched, &members, publication, (whom, now))?;
        publication.promise = Promise::Made;
    }
    for (shard, targets) in &matched.shards {
        if *shard == hub.index {
            // A publisher's own copy of an urgent message is not urgent: it goes last.
            let own = match publication.stamp.class().is_urgent() {
                true => targets
                    .iter()
                    .position(|target| is_own(target, publication)),
                false => None,
            };
            let (before, after) = targets.split_at(own.unwrap_or_default());
            let (last, after) = after.split_at(usize::from(own.is_some()));
            for target in before.iter().chain(after).chain(last) {
                if let Some(receiver) = hub.deliver(publication, target, now)
                    && let Some(publisher) = publisher
                {
                    hub.wait_for(publisher, receiver);
                }
            }
        } else {
            let targets = match publication.relayed {
                true => targets.links(),
                false => targets.clone(),
            };
            if targets.is_empty() {
                continue;
            }
            let congested = targets.iter().any(is_congested);
            let entries = hub.keep_elsewhere(publication, &targets);
            let message = publication.message(&mut hub.messages);
            let from = hub.index;
            post(
                hub,
                *shard,
                Remote::Publish {
                    from,
                    message,
                    targets,
                    promised: publication.promise == Promise::Made,
                    entries,
                    name: publication.name,
                },
                publisher,
                congested,
            );
        }
    }
    for member in &members {
        if member.session.shard == hub.index {
            if let Some(receiver) = hub.deliver(publication, member, now)
                && let Some(publisher) = publisher
            {
                hub.wait_for(publisher, receiver);
            }
        } else {
            let entries = hub.keep_elsewhere(publication, std::slice::from_ref(member));
            let message = publication.message(&mut hub.messages);
            let (target, from) = (member.clone(), hub.index);
            let congested = is_congested(member);
            post(
                hub,
                member.session.shard,
                Remote::Share {
                    from,
                    message,
                    target,
                    promised: publication.promise == Promise::Made,
                    entry: entries.map_or(0, |entries| entries[0]),
                },
                publisher,
                congested,
            );
        }
    }
    hub.release(publication.reserved);
    Ok(())
}

pub(super) fn post(
    hub: &mut Hub,
    shard: u16,
    message: Remote,
    publisher: Option<ConnId>,
    congested: bool,
) {
    let room = hub.outboxes.post(shard, message);
    let Some(publisher) = publisher else {
        return;
    };
    if !room {
        hub.wait_for_outbox(publisher, shard);
    }
    if congested {
        hub.wait_for_remote(publisher);
    }
}

/// Reserves capacity for a message at all receivers that must keep it, or at none. Each session of
/// another shard gets a reservation, which that shard releases; only sessions whose policy is to
/// refuse are checked. Returns the bytes reserved for sessions of this shard.
pub(super) fn promise_room(
    hub: &mut Hub,
    matched: &Matched,
    members: &[Target],
    publication: &Publication<'_>,
    (whom, now): (DependentSender, Nanos),
) -> Result<usize, ()> {
    let size = publication.size();
    // A relayed message goes to neighbours only.
    let relayed = publication.relayed;
    let all = || {
        let targets = matched
            .shards
            .iter()
            .flat_map(|(_, targets)| targets.iter());
        targets.filter(move |target| !relayed || target.session.link)
    };
    let plain = || {
        all().filter(|target| {
            let own = target.no_local && is_own(target, publication);
            target.qos != QoS::AtMostOnce && !own
        })
    };
    let kept = || {
        let members = members.iter().enumerate();
        members.filter(|(_, target)| target.qos != QoS::AtMostOnce)
    };
    let (mut checked, mut reserved) = (0, 0);
    let mut promise = |target: &Target, copies: usize| {
        let need = publication.need(target);
        let asks = whom == DependentSender::Publisher
            && hub.refuses(&target.session, publication.queue_full);
        let room = if target.session.shard == hub.index {
            !asks || hub.promise(target, need, copies, &mut reserved)
        } else {
            hub.reserve(&target.session, need, asks)
        };
        checked += usize::from(room);
        room
    };
    let full = plain().find(|target| !promise(target, 0)).or_else(|| {
        // A session may be a receiver by itself and as a member of groups. A copy with QoS 0 counts
        // too: it may fill the buffer that the next copy needs.
        kept().find_map(|(at, target)| {
            let before = all().chain(&members[..at]);
            let copies = before.filter(|t| Arc::ptr_eq(&t.session, &target.session));
            (!promise(target, copies.count())).then_some(target)
        })
    });
    let Some(full) = full else {
        return Ok(reserved);
    };
    for target in plain()
        .chain(kept().map(|(_, target)| target))
        .take(checked)
    {
        if target.session.shard != hub.index {
            hub.give_back(&target.session, size);
            hub.release(size);
        }
    }
    hub.release(reserved);
    hub.report_full(&full.session, true, now);
    Err(())
}
