//! The sockets of one local client: its own, and a transport to the broker.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::Notice;
use super::relay::{Relay, RelayContext, RelayFailure};
use crate::transport::Transport;

/// Reads from each side before other clients have their turn.
const TURNS: usize = 16;

/// Time for the last words to leave, and for the broker to close.
const LINGER: Duration = Duration::from_secs(1);

/// Result of serving a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// All is done until something happens.
    Idle,
    /// There is more to do.
    More,
    /// CONNECT has come.
    WantsTransport,
    /// Both sides are closed.
    Gone,
}

/// A local client.
pub(super) struct Peer {
    pub(super) relay: Relay,
    pub(super) address: SocketAddr,
    /// Its armed timer.
    pub(super) timer: Option<Instant>,
    /// A transport is being opened.
    pub(super) opening: bool,
    /// `None` when it is closed.
    local: Option<TcpStream>,
    upstream: Option<Box<dyn Transport>>,
    /// The end of either stream has been announced.
    local_finished: bool,
    finished: bool,
    /// When CONNECT has to be there.
    patience: Instant,
    /// When a connection that is over is closed.
    deadline: Option<Instant>,
    why: Option<String>,
}

impl Peer {
    pub(super) fn new(
        stream: TcpStream,
        address: SocketAddr,
        common: Arc<RelayContext>,
        patience: Instant,
    ) -> Self {
        Self {
            relay: Relay::new(common),
            address,
            timer: None,
            opening: false,
            local: Some(stream),
            upstream: None,
            local_finished: false,
            finished: false,
            patience,
            deadline: None,
            why: None,
        }
    }

    pub(super) fn attach(&mut self, transport: Box<dyn Transport>) {
        self.opening = false;
        if let Some(most) = transport.max_packet() {
            self.relay.carry(most);
        }
        self.upstream = Some(transport);
    }

    /// There is no way to the broker.
    pub(super) fn refuse(&mut self, why: &str) {
        self.opening = false;
        self.broker_gone(why);
    }

    pub(super) fn closed(self) -> Notice {
        Notice::Closed {
            client: self.address,
            client_id: self.relay.client_id().to_owned(),
            why: self.why,
            ruled: self.relay.ruled,
        }
    }

    /// When it has something to do without anything happening.
    pub(super) fn timeout(&self, epoch: Instant) -> Option<Instant> {
        let connect = (!self.relay.is_over() && self.relay.is_new()).then_some(self.patience);
        let relay = self.relay.timeout().map(|at| epoch + at);
        let upstream = self.upstream.as_ref().and_then(|u| u.timeout());
        [connect, relay, upstream, self.deadline]
            .into_iter()
            .flatten()
            .min()
    }

    /// Moves bytes until nothing moves, or others should have their turn.
    pub(super) fn serve(&mut self, buffer: &mut [u8], epoch: Instant) -> Progress {
        let now = Instant::now();
        if self.relay.is_new() && now >= self.patience {
            self.note(RelayFailure::Client(
                "it did not send CONNECT in time".into(),
            ));
            self.relay.client_gone();
        }
        let ticked = self.relay.tick(now.saturating_duration_since(epoch));
        self.ended(ticked);
        if let Some(upstream) = &mut self.upstream
            && let Err(error) = upstream.tick()
        {
            self.broker_gone(&error.to_string());
        }
        for _ in 0..TURNS {
            let moved = self.read_local(buffer, epoch)
                | self.read_upstream(buffer, epoch)
                | self.write_upstream(epoch)
                | self.write_local();
            if self.is_gone() {
                return Progress::Gone;
            }
            if !moved {
                return match self.relay.wants_transport()
                    && self.upstream.is_none()
                    && !self.opening
                {
                    true => Progress::WantsTransport,
                    false => Progress::Idle,
                };
            }
        }
        Progress::More
    }

    /// Whether both sides are closed, or have had their time.
    fn is_gone(&mut self) -> bool {
        if !self.relay.is_over() {
            return false;
        }
        let now = Instant::now();
        if now >= *self.deadline.get_or_insert(now + LINGER) {
            return true;
        }
        self.local.is_none() && self.upstream.is_none()
    }

    fn read_local(&mut self, buffer: &mut [u8], epoch: Instant) -> bool {
        let over = self.relay.is_over();
        if !over && !self.relay.wants_client() {
            return false;
        }
        let Some(local) = &mut self.local else {
            return false;
        };
        let read = local.read(buffer);
        let now = epoch.elapsed();
        match read {
            Ok(0) => {
                self.local = None;
                if !over {
                    self.why = Some("it closed without DISCONNECT".into());
                    self.relay.client_gone();
                }
                true
            }
            // Input is read to the end, so that closing does not cause a reset, which may
            // overtake the last packet.
            Ok(_) if over => true,
            Ok(n) => {
                let result = self.relay.receive_client(&buffer[..n], now);
                self.ended(result);
                true
            }
            Err(error) if is_temporary(&error) => false,
            Err(error) => {
                self.local = None;
                if !over {
                    self.why = Some(error.to_string());
                    self.relay.client_gone();
                }
                true
            }
        }
    }

    fn read_upstream(&mut self, buffer: &mut [u8], epoch: Instant) -> bool {
        let over = self.relay.is_over();
        if !over && !self.relay.wants_broker() {
            return false;
        }
        let Some(upstream) = &mut self.upstream else {
            return false;
        };
        match upstream.read(buffer) {
            Ok(0) => {
                self.upstream = None;
                if !over {
                    self.broker_gone("the broker closed the connection");
                }
                true
            }
            // As above.
            Ok(_) if over => true,
            Ok(n) => {
                let result = self.relay.receive_broker(&buffer[..n], epoch.elapsed());
                self.ended(result);
                true
            }
            Err(error) if is_temporary(&error) => false,
            Err(error) => {
                self.upstream = None;
                if !over {
                    self.broker_gone(&error.to_string());
                }
                true
            }
        }
    }

    fn write_upstream(&mut self, epoch: Instant) -> bool {
        let Some(upstream) = &mut self.upstream else {
            return false;
        };
        let mut moved = false;
        let result = loop {
            let Some((class, bytes)) = self.relay.to_broker() else {
                break upstream.flush();
            };
            upstream.mark(class);
            match upstream.write(bytes) {
                Ok(n) => {
                    self.relay.broker_took(n);
                    moved = true;
                }
                Err(error) => break Err(error),
            }
        };
        match result {
            Ok(()) if self.relay.is_over() && !self.finished => {
                self.finished = true;
                // How the transport itself ends is a courtesy.
                let _ = upstream.finish();
            }
            Err(error) if !is_temporary(&error) => {
                self.upstream = None;
                self.broker_gone(&error.to_string());
                return true;
            }
            _ => {}
        }
        if moved && !self.relay.is_over() {
            let result = self.relay.advance(epoch.elapsed());
            self.ended(result);
        }
        moved
    }

    fn write_local(&mut self) -> bool {
        let Some(local) = &mut self.local else {
            return false;
        };
        let mut moved = false;
        while !self.relay.to_client().is_empty() {
            match local.write(self.relay.to_client()) {
                Ok(n) => {
                    self.relay.client_took(n);
                    moved = true;
                }
                Err(error) if is_temporary(&error) => return moved,
                Err(error) => {
                    self.local = None;
                    self.why = Some(error.to_string());
                    self.relay.client_gone();
                    return true;
                }
            }
        }
        if self.relay.is_over() && !self.local_finished {
            self.local_finished = true;
            // It fails only if the client has closed already.
            let _ = local.shutdown(Shutdown::Write);
            return true;
        }
        moved
    }

    fn ended(&mut self, result: Result<(), RelayFailure>) {
        if let Err(ended) = result {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: RelayFailure) {
        self.why.get_or_insert_with(|| ended.to_string());
    }

    fn broker_gone(&mut self, why: &str) {
        self.upstream = None;
        if !self.relay.is_over() {
            self.why.get_or_insert_with(|| why.to_owned());
            self.relay.broker_gone();
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
