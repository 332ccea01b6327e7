//! One connection per client: a client that connects to another broker is taken over there.

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_model::{Nanos, Rng};
use punctual_sim::Edge;

use crate::client::Client;
use crate::each_shards;
use crate::world::World;

/// Brokers in a row, of which the last one reaches the first only over the others.
fn row(n: usize) -> World {
    let edge = |at: usize| Edge::new([at, at + 1], Nanos::from_millis(2));
    let edges = (0..n - 1).map(edge).collect();
    let mut world = World::new(Rng::new(1), n, edges, true, &Config::default(), |_| ());
    world.run_for(5000);
    world
}

fn sessions(world: &World, site: usize) -> usize {
    let running = world.sites[site].running.as_ref();
    running.unwrap().directory().totals().sessions
}

#[test]
fn a_client_is_at_the_broker_that_it_connected_to_last() {
    each_shards(|| {
        for clean in [false, true] {
            let mut world = row(4);
            let before = sessions(&world, 0);
            let first = Client::new("c".into(), Some("t"), 0);
            let mut second = Client::new("c".into(), Some("t"), 3);
            second.lasts = !clean;
            world.clients = vec![first, second];
            world.connect(0);
            world.run_for(1000);
            assert!(world.clients[0].is_connected());
            assert_eq!(sessions(&world, 0), before + 1);
            world.connect(1);
            world.run_for(1000);
            assert!(!world.clients[0].is_connected());
            assert!(world.clients[1].is_connected());
            // The client's session has followed it, or has ended.
            assert_eq!(sessions(&world, 0), before);
            // The client returns to the first broker, which does not deliver earlier messages as new ones.
            world.connect(0);
            world.run_for(1000);
            assert!(world.clients[0].is_connected());
            assert!(!world.clients[1].is_connected());
            world.clients.push(Client::new("p".into(), None, 1));
            world.connect(2);
            world.run_for(1000);
            world.publish(2, "t", QoS::ExactlyOnce);
            world.run_for(1000);
            assert_eq!(world.clients[0].received, [0]);
        }
    });
}
