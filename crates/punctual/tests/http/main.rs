//! The HTTP interface of the real binary, asked with raw HTTP/1.1, with raw
//! MQTT clients on the other side.

mod api;
mod broker;
mod management;
mod metrics;
mod mqtt;
