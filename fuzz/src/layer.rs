//! What must hold for whatever a client sends before and around its MQTT packets: the check of the
//! fuzz target `layer`, which `crates/net/tests/replay.rs` also runs over the seeds.

use punctual_net::layer::{LayerConfig, MAX_UPGRADE_BYTES, Received, WebSocketOptions};

/// What is answered at most for what came: a refused upgrade has a page of text, and a frame is
/// answered by one that is not longer.
const ANSWER: usize = 1024;

/// Takes the first byte for what lies on the listener, a PROXY header (1) or WebSocket (2), and the
/// rest for the stream of a client, whole and in pieces, which must come to the same.
pub fn layer(data: &[u8]) {
    let Some((kind, stream)) = data.split_first() else {
        return;
    };
    let config = LayerConfig {
        proxy: kind & 1 != 0,
        tls: None,
        websocket: (kind & 2 != 0).then(WebSocketOptions::default),
    };
    let whole = taken(&config, stream, stream.len().max(1));
    for piece in [1, 7] {
        assert_eq!(taken(&config, stream, piece), whole, "pieces of {piece}");
    }
}

/// What becomes of a stream: the bytes for MQTT, what is answered, and how it ends.
fn taken(config: &LayerConfig, stream: &[u8], piece: usize) -> (Vec<u8>, Vec<u8>, Option<String>) {
    let (mut app, mut wire) = (Vec::new(), Vec::new());
    let mut layer = config.accept().expect("nothing of TLS");
    let mut end = None;
    for piece in stream.chunks(piece) {
        match layer.received(piece, &mut app, &mut wire) {
            Ok(Received::Open) => {}
            Ok(Received::Ended) => end = Some(String::new()),
            Err(error) => end = Some(error.to_string()),
        }
        if end.is_some() {
            break;
        }
    }
    assert!(app.len() <= stream.len(), "more came out than in");
    assert!(
        wire.len() <= stream.len() + MAX_UPGRADE_BYTES.min(ANSWER),
        "{} bytes answered",
        wire.len()
    );
    if layer.established() {
        let _ = layer.peer();
    }
    layer.close(&mut wire);
    (app, wire, end)
}
