//! Broker and clients in virtual time.
