//! Sockets, TLS, WebSocket and shard threads around the broker.
