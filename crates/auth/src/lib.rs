//! Password and ACL files in mosquitto's formats.
