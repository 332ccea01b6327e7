//! The real-time network manager as a transparent proxy before any MQTT broker.
#![forbid(unsafe_code)]

mod cut;
