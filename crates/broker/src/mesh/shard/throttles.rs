//! Remote flow control between neighbours: handles the filters that a neighbour sends; see
//! [`crate::mesh::throttle`].

use std::sync::Arc;

use punctual_codec::ReasonCode;

use crate::Nanos;
use crate::mesh::link::LinkState;
use crate::mesh::throttle::{gist, parse};
use crate::shard::{Fail, Shard};

impl LinkState {
    /// A short list of filters that match all that the neighbour's filters match.
    pub(crate) fn gist(&self) -> Arc<[Box<str>]> {
        gist(self.filters.iter().map(|filter| &**filter)).into()
    }
}

impl Shard {
    /// Handles the filters on which a neighbour accepts few messages from now on.
    pub(crate) fn told_to_throttle(
        &mut self,
        slot: u32,
        message: &[u8],
        now: Nanos,
    ) -> Result<(), Fail> {
        let filters = parse(message).ok_or_else(|| {
            let why = "what a neighbour says that it takes only little of is not understood";
            Fail::new(ReasonCode::ProtocolError, why)
        })?;
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return Ok(());
        };
        session.set_throttle(filters.into());
        let conn = session.conn;
        hub.look_at_throttles(now);
        hub.pump(slot, now);
        if let Some(conn) = conn {
            hub.check_relief(conn);
        }
        Ok(())
    }
}
