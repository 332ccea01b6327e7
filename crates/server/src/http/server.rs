//! Connections: accepted while there is room, each with bounds on its headers
//! and its age, and ended in good order.
//!
//! A connection that waits for a request, its first or its next one, makes room for a new one: a health
//! check is answered however many others hold connections open. No source has more than half of the
//! places, so that the rest is there for others ([`places`]).

mod places;

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::{CONNECTION, HeaderValue};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::select;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::places::{Place, Places};
use super::authorization::Peer;
use crate::config::HttpAddress;

/// Pause after a connection could not be accepted.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Bounds on connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections at the same time.
    pub(super) connections: usize,
    /// Of these, how many one source may have.
    pub(super) per_source: usize,
    /// Connections that wait for a place, half of them of one source; further ones wait in the kernel's
    /// backlog.
    pub(super) waiting: usize,
    /// How long one waits for a place, at most.
    pub(super) patience: Duration,
    /// Age of a connection without a request, and of a request, from which it makes room for others.
    pub(super) slow: Duration,
    /// Answers after which a connection is closed while more than half of the places are taken.
    pub(super) answers: u32,
    /// How long the head of a request may take, the wait for it included.
    pub(super) head: Duration,
    /// Most bytes of the head of a request, and most bytes that are read ahead.
    pub(super) head_bytes: usize,
    /// Most headers of a request.
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
            per_source: 32,
            waiting: 64,
            patience: Duration::from_secs(5),
            slow: Duration::from_secs(2),
            answers: 100,
            head: Duration::from_secs(10),
            head_bytes: 16 << 10,
            headers: 64,
            age: Duration::from_secs(120),
            grace: Duration::from_secs(2),
        }
    }
}

/// An opened address.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "it is there to be dropped")] Socket,
    ),
}

/// A Unix socket in the file system, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody has removed it before, which is as well.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An address that is opened outside of the runtime.
#[derive(Debug)]
pub(super) enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener, Socket),
}

impl Bound {
    /// Opens the address; what it is called then.
    pub(super) fn open(address: &HttpAddress) -> std::io::Result<(Self, HttpAddress)> {
        match address {
            HttpAddress::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                Ok((Self::Tcp(listener), address.into()))
            }
            HttpAddress::Unix(path) => {
                let listener = bind_unix(path)?;
                let socket = Socket(path.clone());
                // Everybody may knock; authorization asks who it is.
                let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
                std::fs::set_permissions(path, everybody)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(listener, socket), address.clone()))
            }
        }
    }

    /// To be called within the runtime.
    pub(super) fn listen(self) -> std::io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener, socket) => {
                Listener::Unix(UnixListener::from_std(listener)?, socket)
            }
        })
    }
}

/// Binds the path, also where a process that is gone has left its socket.
fn bind_unix(path: &std::path::Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    let first = UnixListener::bind(path);
    match first {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            // Files that are no sockets refuse as well, and are somebody's.
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            let is_left = is_socket
                && UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
            if !is_left {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        first => first,
    }
}

/// A connection that was accepted.
enum Accepted {
    Tcp(TcpStream, Peer),
    Unix(UnixStream, Peer),
}

impl Accepted {
    fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, peer) | Self::Unix(_, peer) => *peer,
        }
    }
}

impl Listener {
    async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Without it answers are only slower.
                let _ = stream.set_nodelay(true);
                Ok(Accepted::Tcp(stream, Peer::Host(address.ip())))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred()?.uid();
                Ok(Accepted::Unix(stream, Peer::Process(user)))
            }
        }
    }
}

/// Serves until told to stop.
pub(super) async fn serve(
    listener: Listener,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let places = Places::new(&bounds);
    let tasks = Arc::new(Semaphore::new(bounds.connections + bounds.waiting));
    let mut connections = JoinSet::new();
    let mut failing = false;
    loop {
        while connections.try_join_next().is_some() {}
        let accepting = async {
            let task = tasks.clone().acquire_owned().await;
            (task, listener.accept().await)
        };
        let (task, accepted) = select! {
            next = accepting => next,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok(accepted) => {
                failing = false;
                let (router, stop, places) = (router.clone(), stop.clone(), places.clone());
                connections.spawn(async move {
                    let peer = accepted.peer();
                    let entered = timeout(bounds.patience, places.enter(peer.source()));
                    if let Ok(Some(place)) = entered.await {
                        let served = Served {
                            router,
                            bounds,
                            peer,
                            place,
                        };
                        match accepted {
                            Accepted::Tcp(stream, _) => served.run(stream, stop).await,
                            Accepted::Unix(stream, _) => served.run(stream, stop).await,
                        }
                    }
                    drop(task);
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

/// A connection that has a place.
struct Served {
    router: Router,
    bounds: Bounds,
    peer: Peer,
    place: Place,
}

impl Served {
    async fn run(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        mut stop: watch::Receiver<bool>,
    ) {
        let Self {
            router,
            bounds,
            peer,
            place,
        } = self;
        let routes = TowerToHyperService::new(router);
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            place.begin();
            let answering = routes.call(request);
            let place = &place;
            async move {
                let mut answer = answering.await?;
                if place.end() {
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(CONNECTION, close);
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(bounds.head)
                .max_headers(bounds.headers)
                .max_buf_size(bounds.head_bytes)
                .serve_connection(TokioIo::new(stream), service)
        );
        let grace = select! {
            // What goes wrong here concerns the peer alone, who has seen it.
            _ = connection.as_mut() => return,
            // Others wait for its place: what is ready is written, and no more.
            () = place.evicted() => Duration::ZERO,
            () = sleep(bounds.age) => bounds.grace,
            _ = stop.wait_for(|stop| *stop) => bounds.grace,
        };
        connection.as_mut().graceful_shutdown();
        let _ = timeout(grace, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_was_left_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let first = bind_unix(&socket).unwrap();
        assert!(bind_unix(&socket).is_err(), "somebody listens");
        drop(first);
        let file = directory.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        assert!(bind_unix(&file).is_err() && bind_unix(&link).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        assert!(link.is_symlink());
    }
}
