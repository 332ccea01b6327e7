//! Wire-level conformance tests: raw bytes to the real broker, raw bytes back.
//!
//! One module per chapter of MQTT 5.0. A test's doc comment starts with the
//! normative statements it proves: `[MQTT-3.3.1-5]` by the numbering of MQTT
//! 5.0, `[3.1.1 MQTT-3.3.1-5]` by that of MQTT 3.1.1. `docs/conformance.md`
//! lists all statements with their tests, and the module `conformance` fails
//! when the two disagree.

mod broker;
mod build;
mod conn;
mod parse;

mod fixture;

mod admission;
mod alias;
mod auth;
mod client_id;
mod conformance;
mod connack;
mod connect;
mod disconnect;
mod expiry;
mod flow;
mod hostile;
mod limits;
mod listeners;
mod located;
mod logins;
mod malformed;
mod ordering;
mod overflow;
mod owner;
mod ping;
mod publish;
mod qos;
mod retained;
mod revoked;
mod session;
mod shared;
mod subscribe;
mod topics;
mod unsubscribe;
mod urgency;
mod utf8;
mod websocket;
mod will;
