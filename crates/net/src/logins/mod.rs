//! Passwords are checked here, away from the shards: a hash takes tens of milliseconds on purpose, and
//! anybody who can connect can ask for one.
//!
//! One thread (`logins`) takes the questions of the shards. What the [`Authenticator`] can answer
//! without work it answers at once; the others wait in a [`Queue`], which is fair to the sources they
//! come from, and are handed to threads (`auth-N`) that run when nothing else wants to. Answers go back
//! the same way, so that no thread of low priority holds a lock that a shard waits for.
//!
//! Bounds: [`ASKED`] questions on their way here, those of [`queue`] that wait, and one for each thread.
//! Clients beyond that are answered 0x89 (Server busy). Questions of connections that have ended are
//! dropped before any work is done for them.

mod backoff;
mod queue;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::Duration;

use punctual_broker::lock::{lock, read};
use punctual_broker::{AuthAnswer, AuthRequest, ConnId, Nanos};
use punctual_codec::ReasonCode;
use punctual_model::source_address;

use crate::clock::Clock;
use crate::mailbox::{Mail, Mailbox};
use crate::realtime;
use crate::services::Authenticator;
use queue::Queue;

/// Questions and answers on their way to the thread that takes them.
const ASKED: usize = 1024;

/// Who checks passwords now.
pub(crate) type Authenticators = Arc<RwLock<Option<Arc<dyn Authenticator>>>>;

/// Where clients come from, as far as they share the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Source {
    /// No address.
    Unknown,
    /// A [source address](source_address).
    Address(IpAddr),
}

impl Source {
    fn of(peer: Option<SocketAddr>) -> Self {
        peer.map_or(Self::Unknown, |peer| {
            Self::Address(source_address(peer.ip()))
        })
    }

    /// Whether it is this machine (127.0.0.0/8, and the network of ::1): all its clients share it, and
    /// with a proxy here that does not tell addresses, all clients there are.
    fn is_local(self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Address(IpAddr::V4(address)) => address.is_loopback(),
            Self::Address(IpAddr::V6(network)) => network.is_unspecified(),
        }
    }
}

/// A client that wants to prove who it is, and the shard that asks.
#[derive(Debug)]
struct Login {
    shard: u16,
    request: Box<AuthRequest>,
}

impl Login {
    fn source(&self) -> Source {
        Source::of(self.request.peer)
    }

    /// Bytes that it keeps.
    fn size(&self) -> usize {
        let request = &self.request;
        let password = request.password.as_ref().map_or(0, |it| it.len());
        let data = request.method.as_ref().map_or(0, |(_, data)| data.len());
        let user = request.username.as_ref().map_or(0, |it| it.len());
        size_of::<AuthRequest>() + request.client_id.len() + user + password + data
    }
}

/// Something for the thread.
enum LoginEvent {
    Asked(Login),
    Decided {
        shard: u16,
        conn: ConnId,
        source: Source,
        answer: AuthAnswer,
    },
    /// A thread has nothing to do, as its client has left.
    Idle,
    /// Nobody asks any more.
    Closed,
}

/// Where shards ask.
#[derive(Clone)]
pub(crate) struct Logins(Arc<LoginSender>);

struct LoginSender(SyncSender<LoginEvent>);

impl Drop for LoginSender {
    fn drop(&mut self) {
        // It fails only with the thread gone.
        let _ = self.0.send(LoginEvent::Closed);
    }
}

impl Logins {
    /// Hands a question in; false if too many are on their way. Never waits.
    pub(crate) fn ask(&self, shard: u16, request: Box<AuthRequest>) -> bool {
        let asked = LoginEvent::Asked(Login { shard, request });
        self.0.0.try_send(asked).is_ok()
    }
}

/// The thread that takes questions.
struct LoginService {
    news: Receiver<LoginEvent>,
    jobs: SyncSender<Login>,
    /// Threads that wait for a job.
    idle: usize,
    queue: Queue<Login>,
    authenticator: Authenticators,
    mailboxes: Arc<[Mailbox]>,
    clock: Clock,
}

/// Starts the threads, `threads` of them for hashes. They end when nobody can ask any more.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn start(
    threads: usize,
    authenticator: &Authenticators,
    mailboxes: &Arc<[Mailbox]>,
    clock: Clock,
) -> io::Result<Logins> {
    let (sender, news) = sync_channel(ASKED);
    let (jobs, waiting) = sync_channel(threads);
    let waiting = Arc::new(Mutex::new(waiting));
    for n in 0..threads {
        let (jobs, authenticator, news) = (waiting.clone(), authenticator.clone(), sender.clone());
        thread::Builder::new()
            .name(format!("auth-{n}"))
            .spawn(move || check(&jobs, &authenticator, &news))?;
    }
    let desk = LoginService {
        news,
        jobs,
        idle: threads,
        queue: Queue::default(),
        authenticator: authenticator.clone(),
        mailboxes: mailboxes.clone(),
        clock,
    };
    thread::Builder::new()
        .name("logins".into())
        .spawn(move || desk.run())?;
    Ok(Logins(Arc::new(LoginSender(sender))))
}

/// Checks passwords until nobody asks any more.
fn check(
    jobs: &Mutex<Receiver<Login>>,
    authenticator: &Authenticators,
    news: &SyncSender<LoginEvent>,
) {
    if let Err(error) = realtime::set_nice() {
        tracing::warn!(%error, "passwords are checked with the priority of all else");
    }
    loop {
        let next = lock(jobs).recv();
        let Ok(login) = next else {
            return;
        };
        let decided = match login.request.waits.is_over() {
            true => LoginEvent::Idle,
            false => LoginEvent::Decided {
                shard: login.shard,
                conn: login.request.conn,
                source: login.source(),
                answer: decide(authenticator, &login.request),
            },
        };
        if news.send(decided).is_err() {
            return;
        }
    }
}

/// The answer of who checks passwords now, also if that has changed in between.
fn decide(authenticator: &Authenticators, request: &AuthRequest) -> AuthAnswer {
    loop {
        let Some(current) = read(authenticator).clone() else {
            return AuthAnswer::Deny {
                reason: ReasonCode::BadUserNameOrPassword,
            };
        };
        let answer = current.authenticate(request);
        let now = read(authenticator);
        if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &current)) {
            return answer;
        }
    }
}

impl LoginService {
    fn run(mut self) {
        loop {
            let now = self.clock.now();
            self.hand_out(now);
            let news = match self.queue.ready_at(now).filter(|_| self.idle > 0) {
                Some(at) => {
                    let wait = Duration::from_nanos((at - now).0);
                    self.news.recv_timeout(wait)
                }
                None => self.news.recv().map_err(RecvTimeoutError::from),
            };
            let now = self.clock.now();
            match news {
                Ok(LoginEvent::Asked(login)) => self.asked(login, now),
                Ok(LoginEvent::Decided {
                    shard,
                    conn,
                    source,
                    answer,
                }) => {
                    self.idle += 1;
                    match &answer {
                        AuthAnswer::Deny { .. } => self.queue.failed(source, now),
                        AuthAnswer::Accept { .. } => self.queue.succeeded(source),
                        AuthAnswer::Continue { .. } => {}
                    }
                    self.answer(shard, conn, answer);
                }
                Ok(LoginEvent::Idle) => self.idle += 1,
                Err(RecvTimeoutError::Timeout) => {}
                // The others end when there are no jobs any more.
                Ok(LoginEvent::Closed) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn asked(&mut self, login: Login, now: Nanos) {
        if login.request.waits.is_over() {
            return;
        }
        let current = read(&self.authenticator).clone();
        if let Some(answer) = current.and_then(|current| current.recognise(&login.request)) {
            return self.answer(login.shard, login.request.conn, answer);
        }
        let (source, size) = (login.source(), login.size());
        let is_over = |login: &Login| login.request.waits.is_over();
        for login in self.queue.push(source, login, size, is_over, now) {
            let answer = AuthAnswer::Deny {
                reason: ReasonCode::ServerBusy,
            };
            self.answer(login.shard, login.request.conn, answer);
        }
    }

    /// Gives threads that wait something to do.
    fn hand_out(&mut self, now: Nanos) {
        while self.idle > 0
            && let Some(login) = self.queue.pop(now)
        {
            // There is room for as many as there are threads.
            if !login.request.waits.is_over() && self.jobs.try_send(login).is_ok() {
                self.idle -= 1;
            }
        }
    }

    fn answer(&self, shard: u16, conn: ConnId, answer: AuthAnswer) {
        self.mailboxes[usize::from(shard)].post(Mail::Authenticated(conn, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_one_source() {
        let source = |address: &str| Source::of(Some(address.parse().unwrap()));
        assert_eq!(source("192.0.2.1:1"), source("[::ffff:192.0.2.1]:2"));
        assert_ne!(source("192.0.2.1:1"), source("192.0.2.2:1"));
        assert_eq!(source("[2001:db8::1]:1"), source("[2001:db8::ffff:2]:2"));
        assert_ne!(source("[2001:db8::1]:1"), source("[2001:db8:0:1::1]:1"));
        assert_eq!(Source::of(None), Source::Unknown);
        let is_local = |address: &str| source(address).is_local();
        assert!(
            [
                "127.0.0.1:1",
                "127.9.9.9:1",
                "[::1]:1",
                "[::ffff:127.0.0.1]:1"
            ]
            .into_iter()
            .all(is_local)
        );
        assert!(
            !["192.0.2.1:1", "[2001:db8::1]:1", "[fe80::1]:1"]
                .into_iter()
                .any(is_local)
        );
    }
}
