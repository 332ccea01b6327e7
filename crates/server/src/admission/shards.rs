//! The reply sink of the broker's shards: a reply goes to the shard that asked, a
//! change to all of them.

use punctual_broker::Shard;
use punctual_manager::{Change, Reply};
use punctual_net::Handle;

use super::{AdmissionService, ReplySink, ShardReply};

impl ReplySink for Handle {
    fn reply(&self, service: &AdmissionService, reply: ShardReply) {
        let at = usize::from(reply.shard);
        match reply.reply {
            Reply::GoOn { conn } => {
                self.call(at, move |shard: &mut Shard, _| shard.go_on(conn));
            }
            Reply::Flow {
                client,
                topic,
                requirements,
                decision,
            } => {
                self.call(at, move |shard, now| {
                    let decision = Some(decision.into());
                    let (id, session) = (&client.id, client.session);
                    shard.decide_flow(id, session, &topic, requirements, decision, false, now);
                });
            }
            Reply::Subscription {
                conn,
                client,
                decision,
            } => {
                let service = service.clone();
                self.call(at, move |shard, _| {
                    let Err(decision) = shard.decide_subscription(conn, decision) else {
                        return;
                    };
                    // Who asked is gone before the subscription was made.
                    let filters = decision.verdicts.into_iter().map(|(filter, _)| filter);
                    let lost: Vec<_> = filters
                        .filter(|filter| !shard.is_subscribed(&client.id, filter))
                        .collect();
                    service.give_up(client, lost);
                });
            }
        }
    }

    fn notify(&self, change: Change) {
        // One shard has the session.
        for shard in 0..self.shards() {
            let change = change.clone();
            self.call(shard, move |shard, now| match change {
                Change::Flow {
                    client,
                    session,
                    topic,
                    requirements,
                    decision,
                    notify,
                } => {
                    let decision = decision.map(Into::into);
                    shard.decide_flow(
                        &client,
                        session,
                        &topic,
                        requirements,
                        decision,
                        notify,
                        now,
                    );
                }
                Change::Subscription {
                    client,
                    session,
                    filter,
                    served,
                    reason,
                } => shard.decide_receiver(&client, session, &filter, served, &reason, now),
            });
        }
    }
}
