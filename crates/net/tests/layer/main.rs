//! The layers between socket and MQTT, driven from memory: every test plays the peer, feeds bytes
//! in any split and looks at what comes out. No sockets, no clock but that of certificates.

mod files;
mod hostile;
mod proxy;
mod secure;
mod support;
mod tls;
mod websocket;
