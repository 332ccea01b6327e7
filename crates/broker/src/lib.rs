//! The MQTT server as a state machine without sockets or clocks.
