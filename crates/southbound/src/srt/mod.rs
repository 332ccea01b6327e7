//! The requirements table in an OVSDB database: its schema, and the two parties that use it.
//!
//! [`ManagerSide`] writes requests and waits for decisions, [`ControllerSide`]
//! reads requests and writes channels. Both say what they want to be in the
//! database and leave it to a task to bring it there, so whatever is away or
//! starts anew is caught up with. While the database or the controller is away,
//! what was admitted stays as it is, and a new request is answered
//! `best-effort` with the reason after a bounded wait; the decision follows.
//!
//! `ovsdb-server` enforces ranges, enumerations and that a manager has one
//! request for each flow; with the roles of the schema a manager changes only
//! rows of its own name. Sets and maps of OVSDB have no order, so an ordered
//! path is a text: a JSON list of link names.

mod controller;
mod manager;
mod replica;
mod rights;
pub mod rows;
mod step;

pub use controller::{ControllerOptions, ControllerSide, Inbox, Letter};
pub use manager::{ManagerOptions, ManagerSide, PendingRequest};
pub use rights::rights;

/// Name of the database.
pub const DATABASE: &str = "Punctual";

/// The schema, for `ovsdb-tool create`.
pub const SCHEMA: &str = include_str!("../../schema/punctual.ovsschema");

/// Name of the role of managers, for the `role` column of a listener.
pub const MANAGER_ROLE: &str = "manager";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use punctual_model::network::MAX_TIME;
    use punctual_model::srt;
    use serde_json::{Value, json};

    use super::*;

    fn columns() -> Value {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        assert_eq!(schema["name"], DATABASE);
        schema["tables"].clone()
    }

    /// What [`srt::Request::check`] and [`srt::Channel::check`] accept, the
    /// server accepts, and nothing else.
    #[test]
    fn the_server_enforces_the_ranges_of_the_model() {
        let tables = columns();
        let (request, channel) = (&tables["Request"]["columns"], &tables["Channel"]["columns"]);
        let range = |column: &Value| {
            let key = &column["type"]["key"];
            (key["minInteger"].as_u64(), key["maxInteger"].as_u64())
        };
        let most = |value: u64| Some(value);
        let (wire_least, wire_most) = (*srt::WIRE_BYTES.start(), *srt::WIRE_BYTES.end());
        for (column, least, greatest) in [
            ("generation", 0, None),
            ("qos", 0, most(2)),
            ("deadline_ns", 1, most(MAX_TIME)),
            ("period_ns", 1, most(MAX_TIME)),
            ("jitter_ns", 0, most(MAX_TIME)),
            ("size", 0, most(srt::MAX_SIZE.into())),
            ("wire_bytes", wire_least.into(), most(wire_most.into())),
            ("frames", 1, most(srt::MAX_FRAMES.into())),
            ("priority", 0, most(7)),
            ("bandwidth", 1, None),
        ] {
            assert_eq!(range(&request[column]), (Some(least), greatest), "{column}");
        }
        for (column, greatest) in [("generation", None), ("queue", Some(7)), ("dscp", Some(63))] {
            assert_eq!(range(&channel[column]), (Some(0), greatest), "{column}");
        }
        let length = |column: &Value| column["type"]["key"]["maxLength"].as_u64();
        assert_eq!(length(&request["manager"]), Some(srt::MAX_MANAGER as u64));
        assert_eq!(length(&request["flow"]), Some(srt::MAX_FLOW as u64));
        assert_eq!(length(&request["topic"]), Some(srt::MAX_TOPIC as u64));
        assert_eq!(length(&channel["reason"]), Some(srt::MAX_REASON as u64));
        assert_eq!(
            request["subscribers"]["type"]["max"],
            json!(srt::MAX_SUBSCRIBERS)
        );
    }

    #[test]
    fn the_server_knows_every_state() {
        let tables = columns();
        let states = &tables["Channel"]["columns"]["state"]["type"]["key"]["enum"][1];
        let stated: BTreeSet<_> = states
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(stated, srt::State::ALL.map(srt::State::name).into());
    }
}
