//! Connections: accepted while there is room, each with bounds on its headers
//! and its age, and ended in good order.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Pause after a connection could not be accepted.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Bounds on connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections at the same time; further ones wait in the kernel's backlog.
    pub(super) connections: usize,
    /// How long the head of a request may take, the wait for it included.
    pub(super) head: Duration,
    /// Bytes of the head of a request, and of what is read ahead.
    pub(super) head_bytes: usize,
    /// Headers of a request.
    pub(super) headers: usize,
    /// Age after which a connection takes no more requests.
    pub(super) age: Duration,
    /// How long a connection that is to end may take for its last answer.
    pub(super) grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(10),
            head_bytes: 16 << 10,
            headers: 64,
            age: Duration::from_secs(120),
            grace: Duration::from_secs(2),
        }
    }
}

/// Serves until told to stop.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(bounds.connections));
    let mut connections = JoinSet::new();
    let mut failing = false;
    loop {
        while connections.try_join_next().is_some() {}
        let accepting = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = select! {
            next = accepting => next,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                failing = false;
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(async move {
                    connection(stream, router, bounds, stop).await;
                    drop(place);
                });
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "the HTTP interface cannot accept a connection");
                }
                failing = true;
                sleep(EXHAUSTED).await;
            }
        }
    }
    drop(listener);
    // Each of them ends within its grace.
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    // Without it answers are only slower.
    let _ = stream.set_nodelay(true);
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .max_headers(bounds.headers)
            .max_buf_size(bounds.head_bytes)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    select! {
        // What goes wrong here concerns the peer alone, who has seen it.
        _ = connection.as_mut() => return,
        () = sleep(bounds.age) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(bounds.grace, connection).await;
}
