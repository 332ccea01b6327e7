//! Passwords: checked one at a time, where the data path is not held up.
//!
//! A check takes a tenth of a second on purpose, so it has to be had in turn, few wait, and who failed
//! has to pause. A check goes on to its end, and is counted, when its connection is gone: otherwise
//! whoever asks and hangs up has as many made as he likes.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::response::Response;
use punctual_auth::{Acl, HttpRole};
use tokio::sync::OwnedSemaphorePermit;

use super::failures::Suspect;
use super::{Authorizer, Peer, later};
use crate::config::Auth;
use crate::error::Error;
use crate::serve::auth;

const WRONG: &str = "user name or password is wrong, or the user has no http line in the ACL file";

/// Users who have a role.
pub(super) struct Users {
    passwords: auth::Users,
    acl: Acl,
}

impl Users {
    /// Nobody has a role without both files.
    pub(super) fn load(auth: &Auth) -> Result<Option<Arc<Self>>, Error> {
        let (Some(passwords), Some(acl)) = (&auth.password_file, &auth.acl_file) else {
            return Ok(None);
        };
        Ok(Some(Arc::new(Self {
            passwords: auth::Users::load(passwords)?,
            acl: auth::parse(acl, Acl::parse)?,
        })))
    }
}

impl Authorizer {
    /// The users now.
    pub(super) fn users(&self) -> Option<Arc<Users>> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.clone()
    }

    /// The role of a user, if the password is right.
    pub(super) async fn log_in(
        self: &Arc<Self>,
        peer: Peer,
        user: String,
        password: String,
    ) -> Result<HttpRole, Box<Response>> {
        let Some(users) = self.users() else {
            return Err(self.failed(peer, Suspect::new(peer, None), WRONG));
        };
        let role = users.acl.http_role(&user);
        // Who has no role is checked all the same: how long it takes tells nothing.
        if let Some(role) = role
            && users.passwords.knows(&user, password.as_bytes())
        {
            return Ok(role);
        }
        let suspect = Suspect::new(peer, role.map(|_| user.as_str()));
        if let Some(pause) = self.book().failures.pause(&suspect, Instant::now()) {
            return Err(later(pause));
        }
        let Ok(place) = self.waiting.clone().try_acquire_owned() else {
            return Err(later(Duration::from_secs(1)));
        };
        let login = Login {
            authorizer: self.clone(),
            users,
            peer,
            suspect,
            user,
            password,
        };
        let failed = |_| self.failed(peer, Suspect::new(peer, None), WRONG);
        tokio::spawn(login.check(place)).await.map_err(failed)?
    }
}

/// A password that is to be checked.
struct Login {
    authorizer: Arc<Authorizer>,
    users: Arc<Users>,
    peer: Peer,
    suspect: Suspect,
    user: String,
    password: String,
}

impl Login {
    /// Waits for its turn, and counts how it ends.
    async fn check(self, _place: OwnedSemaphorePermit) -> Result<HttpRole, Box<Response>> {
        let Self {
            authorizer,
            users,
            peer,
            suspect,
            user,
            password,
        } = self;
        // The authorizer is never closed.
        let _turn = authorizer.check.clone().acquire_owned().await;
        // Others of the same kind have failed meanwhile, perhaps.
        if let Some(pause) = authorizer.book().failures.pause(&suspect, Instant::now()) {
            return Err(later(pause));
        }
        let checked = {
            let users = users.clone();
            tokio::task::spawn_blocking(move || {
                let is_right = users
                    .passwords
                    .verify_and_remember(&user, password.as_bytes());
                users.acl.http_role(&user).filter(|_| is_right)
            })
        };
        let Some(role) = checked.await.ok().flatten() else {
            return Err(authorizer.failed(peer, suspect, WRONG));
        };
        // The files were read again, and may have another password, or no role for him.
        if !authorizer
            .users()
            .is_some_and(|now| Arc::ptr_eq(&now, &users))
        {
            return Err(authorizer.refuse(
                peer,
                "the users were read again while the password was checked",
            ));
        }
        authorizer.book().failures.forget(&suspect);
        Ok(role)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::Future as _;
    use std::net::IpAddr;
    use std::path::PathBuf;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use axum::http::StatusCode;
    use axum::http::header::RETRY_AFTER;
    use punctual_auth::{PasswordFile, hash_argon2id};
    use tempfile::TempDir;

    use super::super::{AuthorizerOptions, WAITING};
    use super::*;
    use crate::config::{Auto, HttpAuth};

    /// A authorizer, and the directory with its files.
    struct Site {
        directory: TempDir,
        authorizer: Arc<Authorizer>,
    }

    fn files(directory: &TempDir) -> Auth {
        let path = |name: &str| -> Option<PathBuf> { Some(directory.path().join(name)) };
        Auth {
            password_file: path("passwords"),
            acl_file: path("acl"),
            ..Auth::default()
        }
    }

    /// `boss` and `other` administer, `device` has no role; each has that password.
    fn write(directory: &TempDir, password: &str) -> Auth {
        let mut users = PasswordFile::default();
        for user in ["boss", "other", "device"] {
            let hash = hash_argon2id(password.as_bytes(), [1; 16]);
            users.set(user, &hash).unwrap();
        }
        let auth = files(directory);
        fs::write(auth.password_file.as_ref().unwrap(), users.to_string()).unwrap();
        let acl = "user boss\nhttp administer\nuser other\nhttp administer\nuser device\ntopic #\n";
        fs::write(auth.acl_file.as_ref().unwrap(), acl).unwrap();
        auth
    }

    fn site() -> Site {
        let directory = tempfile::tempdir().unwrap();
        let auth = write(&directory, "old");
        let authorizer = Authorizer::new(AuthorizerOptions {
            address: &"127.0.0.1:0".parse().unwrap(),
            auth: HttpAuth::Required,
            open: Auto::Auto,
            token_file: None,
            is_named: false,
            users: Some(&auth),
        });
        let authorizer = authorizer.unwrap();
        Site {
            directory,
            authorizer,
        }
    }

    const LOCAL: Peer = Peer::Host(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    impl Site {
        async fn log_in(&self, peer: Peer, user: &str, password: &str) -> (StatusCode, u64) {
            match self
                .authorizer
                .log_in(peer, user.into(), password.into())
                .await
            {
                Ok(_) => (StatusCode::OK, 0),
                Err(refusal) => {
                    let after = refusal.headers().get(RETRY_AFTER);
                    let after = after.map(|seconds| seconds.to_str().unwrap().parse().unwrap());
                    (refusal.status(), after.unwrap_or_default())
                }
            }
        }

        /// Counts so many failures that the pause is as long as can be.
        fn fail(&self, peer: Peer, user: Option<&str>) {
            for _ in 0..40 {
                let mut book = self.authorizer.book();
                let suspect = Suspect::new(peer, user);
                book.failures.add(suspect, Instant::now());
            }
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        runtime.block_on(future)
    }

    /// A check that is under way while the files are read again says nothing of the new ones.
    #[test]
    fn a_password_that_was_right_before_a_reload_is_neither_taken_nor_remembered() {
        let site = site();
        block_on(async {
            let turn = site.authorizer.check.clone().acquire_owned().await.unwrap();
            let mut under_way = pin!(site.log_in(LOCAL, "boss", "old"));
            let mut context = Context::from_waker(Waker::noop());
            assert!(under_way.as_mut().poll(&mut context).is_pending());
            tokio::task::yield_now().await;
            let auth = write(&site.directory, "new");
            site.authorizer.reload(&auth).unwrap();
            drop(turn);
            assert_eq!(under_way.await.0, StatusCode::UNAUTHORIZED);
            let old = site.log_in(LOCAL, "boss", "old").await;
            assert_eq!(old.0, StatusCode::UNAUTHORIZED);
            assert_eq!(site.log_in(LOCAL, "boss", "new").await.0, StatusCode::OK);
        });
    }

    /// Who asks and hangs up has no more checks made than others, and is counted like them.
    #[test]
    fn checks_that_nobody_waits_for_keep_their_places_and_are_counted() {
        let site = site();
        block_on(async {
            let turn = site.authorizer.check.clone().acquire_owned().await.unwrap();
            for _ in 0..=WAITING {
                let mut abandoned = Box::pin(site.log_in(LOCAL, "boss", "guess"));
                let mut context = Context::from_waker(Waker::noop());
                assert!(abandoned.as_mut().poll(&mut context).is_pending());
            }
            assert_eq!(site.authorizer.waiting.available_permits(), 0);
            let other = site.log_in(LOCAL, "other", "old").await;
            assert_eq!(other, (StatusCode::TOO_MANY_REQUESTS, 2));
            drop(turn);
            let all = u32::try_from(WAITING + 1).unwrap();
            drop(site.authorizer.waiting.acquire_many(all).await.unwrap());
            let suspect = Suspect::new(LOCAL, Some("boss"));
            assert!(site.authorizer.book().failures.count(&suspect) > 5);
        });
    }

    #[test]
    fn a_pause_that_came_while_a_check_waited_holds_for_it() {
        let site = site();
        block_on(async {
            let turn = site.authorizer.check.clone().acquire_owned().await.unwrap();
            let mut waiting = pin!(site.log_in(LOCAL, "boss", "old"));
            let mut context = Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            tokio::task::yield_now().await;
            site.fail(LOCAL, Some("boss"));
            drop(turn);
            assert_eq!(waiting.await.0, StatusCode::TOO_MANY_REQUESTS);
        });
    }

    /// One address of the loopback is as good as another, and one user is not held up for another.
    #[test]
    fn on_the_loopback_failures_count_by_user_whatever_the_address() {
        let site = site();
        let peer = |address: &str| Peer::Host(address.parse().unwrap());
        block_on(async {
            site.fail(peer("127.0.0.1"), Some("boss"));
            site.fail(peer("127.0.0.1"), None);
            for address in ["127.1.2.3", "::1", "::ffff:127.0.0.9"] {
                for user in ["boss", "device", "made-up"] {
                    let answer = site.log_in(peer(address), user, "guess").await;
                    assert_eq!(answer.0, StatusCode::TOO_MANY_REQUESTS, "{address} {user}");
                }
            }
            let other = site.log_in(peer("127.0.0.2"), "other", "old").await;
            assert_eq!(other.0, StatusCode::OK);
            // Elsewhere one source is one, whatever names it tries.
            site.fail(peer("192.0.2.1"), Some("boss"));
            for (address, status) in [
                ("192.0.2.1", StatusCode::TOO_MANY_REQUESTS),
                ("192.0.2.2", StatusCode::OK),
            ] {
                let answer = site.log_in(peer(address), "boss", "old").await;
                assert_eq!(answer.0, status, "{address}");
            }
        });
    }

    #[test]
    fn a_right_password_without_a_role_is_refused_every_time() {
        let site = site();
        block_on(async {
            for _ in 0..2 {
                let answer = site.log_in(LOCAL, "device", "old").await;
                assert_eq!(answer.0, StatusCode::UNAUTHORIZED);
            }
        });
    }
}
