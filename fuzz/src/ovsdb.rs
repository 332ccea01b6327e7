//! What must hold for whatever a database server sends: the check of the fuzz
//! target `ovsdb`, which `crates/southbound/tests/replay.rs` also runs over the
//! seeds.

use punctual_southbound::ovsdb::cache::Cache;
use punctual_southbound::ovsdb::operation::outcomes;
use punctual_southbound::ovsdb::schema::Schema;
use punctual_southbound::ovsdb::session::{Incoming, Session, SessionError};
use punctual_southbound::ovsdb::value::Row;
use punctual_southbound::srt::SCHEMA;
use punctual_southbound::srt::rows::{of_channel, of_request, to_channel, to_request};

/// Largest message, bytes.
const MOST: usize = 4096;

/// Reads the input as a stream, whole and byte by byte, which must come to the
/// same; what arrives is taken for updates, replies and rows.
pub fn ovsdb(data: &[u8]) {
    let (whole, result) = received(data, data.len().max(1));
    let (cut, cut_result) = received(data, 1);
    assert_eq!((&whole, result.is_err()), (&cut, cut_result.is_err()));
    let mut cache = Cache::default();
    if let Ok(schema) = serde_json::from_str(SCHEMA).map(|value| Schema::from_json(&value)) {
        cache.set_schema(schema.unwrap_or_default());
    }
    for message in whole {
        match message {
            Incoming::Notification { params, .. } => {
                let _ = cache.updated(&params);
                changes(&mut cache);
            }
            Incoming::Reply { result, .. } => {
                let (Ok(value) | Err(value)) = result;
                let _ = outcomes(2, &value);
                let _ = cache.replied(&value);
                changes(&mut cache);
            }
            Incoming::Alive => {}
        }
    }
}

fn received(data: &[u8], size: usize) -> (Vec<Incoming>, Result<(), SessionError>) {
    let mut session = Session::new(MOST);
    for _ in 0..4 {
        session.request("transact", &serde_json::Value::Null);
    }
    let mut incoming = Vec::new();
    for chunk in data.chunks(size) {
        if let Err(error) = session.receive(chunk, &mut incoming) {
            return (incoming, Err(error));
        }
    }
    (incoming, Ok(()))
}

/// What is read of a row is written and read again.
fn changes(cache: &mut Cache) {
    for change in cache.take_changes() {
        assert_ne!(change.old, change.new);
        let Some(row) = change.new else { continue };
        assert_eq!(Row::from_json(&row.to_json()).as_ref(), Ok(&row));
        if let Ok(request) = to_request(&row) {
            assert_eq!(to_request(&of_request(&request)), Ok(request));
        }
        if let Ok(channel) = to_channel(&row) {
            assert_eq!(to_channel(&of_channel(&channel)), Ok(channel));
        }
    }
}
