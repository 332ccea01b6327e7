//! What simulations do with a shard that has no network of its own.

use std::io::IoSlice;

use punctual_broker::{ConnId, Nanos, Scope, Shard};

/// All that a shard has for a connection at that time, which is taken as sent.
pub fn take_pending(shard: &mut Shard, conn: ConnId, now: Nanos) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = shard.pending(conn, Scope::All, now, &mut slices);
        let before = all.len();
        (slices[..filled].iter()).for_each(|slice| all.extend_from_slice(slice));
        if all.len() == before {
            return all;
        }
        shard.sent(conn, all.len() - before, now);
    }
}
