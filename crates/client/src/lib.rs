//! MQTT client library.
