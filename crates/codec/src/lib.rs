//! MQTT 3.1.1 and 5.0 control packets to and from bytes.
