//! Who asks, and what that allows.
//!
//! Three ways lead to a role: a token of the token file, a user of the password file whom the ACL
//! file gives an `http` line, and at a Unix socket the user identifier that the system states. A
//! route says what it takes (`Access`); the table of routes is the only place where that is
//! written.
//!
//! Tokens have 128 bits or more and are compared in constant time, so guessing them is hopeless: wrong
//! ones are not counted, and a right one always counts. Passwords are guessable and cost a tenth of a
//! second each: one is checked at a time, on a thread of its own, few wait, and who failed several
//! times has to pause (`logins`, `Failures`).

mod failures;
mod files;
mod logins;

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use punctual_auth::{HttpRole, TokenFile};
use punctual_model::source_address;
use tokio::sync::Semaphore;

use self::failures::{Failures, Suspect};
use self::files::NoTokens;
pub use self::files::token_path;
use self::logins::Users;
use super::error::ApiError;
use crate::config::{Auth, Auto, Config, HttpAddress, HttpAuth, Switch};
use crate::error::Error;
use crate::logging::Budget;

/// Password checks that wait for the one that is made.
const WAITING: usize = 16;
/// What to do where there is no file of tokens.
const NO_TOKENS: &str = "there are no tokens: set server.http_token_file (or server.data; of a controller \
                         --http-token-file) and start again";
/// Refusals that are logged in a minute.
const LOGGED: u32 = 10;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A host.
    Host(IpAddr),
    /// A process of this machine, with that user identifier.
    Process(u32),
}

/// Peers that are treated as one where something is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    /// A host, by its [source address](source_address).
    Host(IpAddr),
    /// This machine: each of its programs can have every address of the loopback.
    Loopback,
    /// A user of this machine.
    User(u32),
}

impl Peer {
    pub(super) fn source(self) -> Source {
        match self {
            Self::Process(user) => Source::User(user),
            Self::Host(_) if self.is_local() => Source::Loopback,
            Self::Host(address) => Source::Host(source_address(address)),
        }
    }

    /// Whether it is on this machine.
    fn is_local(self) -> bool {
        match self {
            Self::Process(_) => true,
            Self::Host(address) => address.to_canonical().is_loopback(),
        }
    }
}

/// What a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// As `Open`; and wrong credentials are counted, and answered as none: a probe with an old token is
    /// not to have a broker restarted that is well.
    Health,
    /// Nothing, unless `server.http_open` says otherwise.
    Open,
    /// A role.
    Role(HttpRole),
}

impl Access {
    pub(super) const READ: Self = Self::Role(HttpRole::Read);
    pub(super) const OPERATE: Self = Self::Role(HttpRole::Operate);
    pub(super) const ADMINISTER: Self = Self::Role(HttpRole::Administer);

    #[cfg(test)]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Health | Self::Open => "open",
            Self::Role(role) => role.name(),
        }
    }
}

/// Role of who asks, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller(pub(super) Option<HttpRole>);

/// What changes with every request.
struct Book {
    failures: Failures,
    log: Budget,
}

/// Decides who may do what.
pub struct Authorizer {
    /// Whether a role is asked for at all.
    asks_role: bool,
    /// Whether open routes are there for everybody.
    has_open_routes: bool,
    /// Who may do everything at a Unix socket, beside root.
    own_user: u32,
    token_file: Option<PathBuf>,
    tokens: RwLock<Arc<TokenFile>>,
    users: RwLock<Option<Arc<Users>>>,
    /// Whose password is checked.
    check: Arc<Semaphore>,
    /// Whose password is or will be checked.
    waiting: Arc<Semaphore>,
    book: Mutex<Book>,
}

/// What an [`Authorizer`] is made of.
pub struct AuthorizerOptions<'a> {
    /// Where the interface listens.
    pub address: &'a HttpAddress,
    /// Whether a role has to be shown.
    pub auth: HttpAuth,
    /// Whether open routes are there for everybody; `auto`: if only this machine reaches the interface.
    pub open: Auto<bool>,
    /// Where the tokens are or will be; `None` if there is no place for them.
    pub token_file: Option<PathBuf>,
    /// Whether somebody has named that file, and it is an error if it cannot be used.
    pub is_named: bool,
    /// Files with users.
    pub users: Option<&'a Auth>,
}

/// What a request shows of itself.
enum Credentials {
    None,
    Token(String),
    Password { user: String, password: String },
}

impl Authorizer {
    /// The authorizer of a broker's interface; `None` if it has none.
    pub(crate) fn open(config: &Config) -> Result<Option<Arc<Self>>, Error> {
        let Switch::On(address) = &config.server.http else {
            return Ok(None);
        };
        let server = &config.server;
        let named = server.http_token_file.clone();
        let authorizer = Self::new(AuthorizerOptions {
            address,
            auth: server.http_auth,
            open: server.http_open,
            is_named: named.is_some(),
            token_file: named.or_else(|| token_path(server.data.as_deref(), "http-tokens")),
            users: Some(&config.auth),
        })?;
        Ok(Some(authorizer))
    }

    /// Reads the files, and makes the one of the tokens if there is none.
    ///
    /// # Errors
    ///
    /// An address that other machines reach without authentication; a file that cannot be used.
    pub fn new(options: AuthorizerOptions<'_>) -> Result<Arc<Self>, Error> {
        let address = options.address;
        let asks_role = options.auth == HttpAuth::Required;
        if !asks_role && !address.is_local() {
            return Err(format!(
                "{address} can be reached from other machines and asks for no credentials; have it on \
                 127.0.0.1 or a Unix socket, or with authentication"
            )
            .into());
        }
        let mut token_file = options.token_file.filter(|_| asks_role);
        let mut tokens = TokenFile::default();
        if !asks_role {
            tracing::warn!(
                "{}: every user of this machine may do everything there (server.http_auth)",
                address.url()
            );
        } else if let Some(path) = &token_file {
            match files::open(path) {
                Ok(found) => tokens = found,
                Err(NoTokens::Absent(why)) if !options.is_named => {
                    tracing::warn!("{why}; name a file that can be made in server.http_token_file");
                    token_file = None;
                }
                Err(why) => return Err(why.to_string().into()),
            }
        } else {
            tracing::warn!(
                "there is no place for the tokens of {}; name a file in server.http_token_file",
                address.url()
            );
        }
        let users = match options.users.filter(|_| asks_role) {
            Some(auth) => Users::load(auth)?,
            None => None,
        };
        Ok(Arc::new(Self {
            asks_role,
            has_open_routes: match options.open {
                Auto::Fixed(open) => open,
                Auto::Auto => address.is_local(),
            },
            own_user: files::own_user(),
            token_file,
            tokens: RwLock::new(Arc::new(tokens)),
            users: RwLock::new(users),
            check: Arc::new(Semaphore::new(1)),
            waiting: Arc::new(Semaphore::new(1 + WAITING)),
            book: Mutex::new(Book {
                failures: Failures::default(),
                log: Budget::new(LOGGED),
            }),
        }))
    }

    /// Reads users and tokens again. What is shown from now on is measured by them.
    pub(crate) fn reload(&self, auth: &Auth) -> Result<(), Error> {
        if !self.asks_role {
            return Ok(());
        }
        let users = Users::load(auth)?;
        if let Some(path) = &self.token_file {
            *self.tokens.write().unwrap_or_else(PoisonError::into_inner) =
                Arc::new(files::open(path).map_err(|why| why.to_string())?);
        }
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = users;
        Ok(())
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The role of who asks; `None` if nothing is shown.
    async fn identify(
        self: &Arc<Self>,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<Option<HttpRole>, Box<Response>> {
        if !self.asks_role {
            return Ok(Some(HttpRole::Administer));
        }
        let Some(shown) = Credentials::of(headers) else {
            return Err(self.failed(
                peer,
                Suspect::new(peer, None),
                "there are several Authorization headers, or the one is neither Bearer and a token \
                 nor Basic and user:password in Base64",
            ));
        };
        match shown {
            Credentials::None => Ok(match peer {
                Peer::Process(user) if user == 0 || user == self.own_user => {
                    Some(HttpRole::Administer)
                }
                _ => None,
            }),
            Credentials::Token(token) => {
                let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
                match tokens.role_of(&token) {
                    Some(role) => Ok(Some(role)),
                    None => Err(self.refuse(peer, "the token is not one of the token file")),
                }
            }
            Credentials::Password { user, password } => {
                self.log_in(peer, user, password).await.map(Some)
            }
        }
    }

    /// Counts a failure, and refuses.
    fn failed(&self, peer: Peer, suspect: Suspect, why: &'static str) -> Box<Response> {
        let pause = self.book().failures.add(suspect, Instant::now());
        let refusal = self.refuse(peer, why);
        pause.map_or(refusal, later)
    }

    /// Refuses credentials, and says so in the log if it has not been said too often.
    fn refuse(&self, peer: Peer, why: &'static str) -> Box<Response> {
        let left_out = self.book().log.take(Instant::now());
        if let Some(left_out) = left_out {
            tracing::warn!(?peer, left_out, "HTTP request refused: {why}");
        }
        self.challenge(peer, why)
    }

    /// Asks for credentials.
    fn challenge(&self, peer: Peer, why: &'static str) -> Box<Response> {
        let mut remedy = match self.token_file {
            Some(_) => "send Authorization: Bearer with a token of the token file".to_owned(),
            None => NO_TOKENS.to_owned(),
        };
        let mut bearer = "Bearer realm=\"punctual\"".to_owned();
        // Where the file is helps only somebody who may read it, and is nobody's business elsewhere.
        if let Some(path) = self.token_file.as_ref().filter(|_| peer.is_local()) {
            remedy += &format!(", {}", path.display());
            let path = path.display().to_string();
            bearer += &format!(
                ", token_file=\"{}\"",
                path.replace('\\', "\\\\").replace('"', "\\\"")
            );
        }
        let has_users = self.users().is_some();
        if has_users {
            remedy += ", or send name and password of a user with an http line in the ACL file";
        }
        let error = ApiError::new(StatusCode::UNAUTHORIZED, why, remedy);
        let mut response = error.into_response();
        let headers = response.headers_mut();
        // A path that cannot stand in a header is not told.
        let bearer = HeaderValue::from_str(&bearer)
            .unwrap_or(HeaderValue::from_static("Bearer realm=\"punctual\""));
        headers.append(WWW_AUTHENTICATE, bearer);
        if has_users {
            let basic = HeaderValue::from_static("Basic realm=\"punctual\", charset=\"UTF-8\"");
            headers.append(WWW_AUTHENTICATE, basic);
        }
        Box::new(response)
    }

    /// Whether the request may go on, and as whom.
    async fn admit(
        self: &Arc<Self>,
        request: &Parts,
        access: Access,
    ) -> Result<Caller, Box<Response>> {
        let peer = request.extensions.get::<Peer>().copied();
        // Who cannot be told from others is nobody of this machine.
        let peer = peer.unwrap_or(Peer::Host(Ipv6Addr::UNSPECIFIED.into()));
        let identified = self.identify(&request.headers, peer).await;
        let role = match identified {
            Err(_) if access == Access::Health && self.has_open_routes => None,
            identified => identified?,
        };
        let needed = match access {
            Access::Health | Access::Open if self.has_open_routes => return Ok(Caller(role)),
            Access::Health | Access::Open => HttpRole::Read,
            Access::Role(needed) => needed,
        };
        match role {
            Some(role) if role >= needed => Ok(Caller(Some(role))),
            Some(role) => Err(Box::new(
                ApiError::new(
                    StatusCode::FORBIDDEN,
                    format!("this takes the role {needed}, and the credentials have {role}"),
                    format!("ask with a token or user of the role {needed}"),
                )
                .into_response(),
            )),
            None => Err(self.challenge(peer, "this takes a role, and no credentials were sent")),
        }
    }
}

/// What a layer before a route knows.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) authorizer: Arc<Authorizer>,
    pub(super) access: Access,
}

/// Lets a request pass to its route, or answers it.
pub(super) async fn pass(State(door): State<Door>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match door.authorizer.admit(&head, door.access).await {
        Ok(caller) => {
            if head.method != Method::GET && head.method != Method::HEAD {
                tracing::debug!(role = ?caller.0, "HTTP {} {}", head.method, head.uri);
            }
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(refusal) => *refusal,
    }
}

fn later(pause: Duration) -> Box<Response> {
    let seconds = pause.as_secs() + 1;
    let error = ApiError::new(
        StatusCode::TOO_MANY_REQUESTS,
        "credentials were wrong too often, or too many are checked now",
        format!("try again after {seconds} s"),
    );
    let mut response = error.into_response();
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    Box::new(response)
}

impl Credentials {
    /// What the headers show; `None` if that cannot be told.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let Some(header) = all.next() else {
            return Some(Self::None);
        };
        if all.next().is_some() {
            return None;
        }
        let (scheme, rest) = header.to_str().ok()?.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("Bearer") {
            return Some(Self::Token(rest.to_owned()));
        }
        if !scheme.eq_ignore_ascii_case("Basic") {
            return None;
        }
        let pair = String::from_utf8(BASE64_STANDARD.decode(rest).ok()?).ok()?;
        let (user, password) = pair.split_once(':')?;
        Some(Self::Password {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }
}
