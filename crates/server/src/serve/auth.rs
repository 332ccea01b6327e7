//! Password and ACL files behind the broker's questions.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use punctual_auth::{Acl, ClientAcl, FileError, PasswordFile, Remembered, Verdict};
use punctual_broker::lock::lock;
use punctual_broker::{
    AccessControl, AuthAnswer, AuthRequest, Credential, FlowQuota, Permissions, UrgencyRights,
};
use punctual_codec::ReasonCode;
use punctual_net::Authenticator;

use crate::error::Error;

/// Reads an ACL file.
pub(crate) fn rights(path: &Path) -> Result<Arc<dyn AccessControl>, Error> {
    let acl = parse(path, Acl::parse)?;
    for warning in acl.warnings() {
        tracing::warn!("{}: {warning}", path.display());
    }
    Ok(Arc::new(Rights(acl)))
}

/// Reads a file in which every line has to be right.
pub(crate) fn parse<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<FileError>>,
) -> Result<T, Error> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors
            .iter()
            .map(|error| format!("{}: {error}", path.display()))
            .collect();
        lines.join("\n").into()
    })
}

/// The users of a password file, and which of their passwords were verified lately.
pub(crate) struct Users {
    file: PasswordFile,
    remembered: Mutex<Remembered>,
    /// Since when `remembered` counts.
    start: Instant,
}

impl Users {
    /// Reads a password file.
    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        Self::new(parse(path, PasswordFile::parse)?)
    }

    fn new(file: PasswordFile) -> Result<Self, Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .map_err(|error| format!("the system has no random numbers: {error}"))?;
        Ok(Self {
            file,
            remembered: Mutex::new(Remembered::new(key)),
            start: Instant::now(),
        })
    }

    /// Whether the password of that user was verified a short time ago.
    pub(crate) fn knows(&self, user: &str, password: &[u8]) -> bool {
        lock(&self.remembered).knows(user, password, self.start.elapsed())
    }

    /// Whether the password is right. This takes long on purpose, and what is right is known for a
    /// while, by these users alone: others that take over have not seen it.
    pub(crate) fn verify_and_remember(&self, user: &str, password: &[u8]) -> bool {
        let is_right = self.file.verify(user, password) == Verdict::Accepted;
        if is_right {
            lock(&self.remembered).remember(user, password, self.start.elapsed());
        }
        is_right
    }
}

/// The users of a listener, who may be those of others, too, and by which of their passwords clients
/// were let in there.
pub(crate) struct Passwords {
    users: Arc<Users>,
    /// By user; `None` once others have taken over.
    credentials: Mutex<Option<HashMap<Box<str>, Arc<Credential>>>>,
}

impl Passwords {
    /// Nobody has come in yet.
    pub(crate) fn new(users: Arc<Users>) -> Self {
        Self {
            users,
            credentials: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Takes over from `old`, whose file was read before. Passwords that users have no more, or never
    /// had, are revoked; without new ones all are.
    pub(crate) fn succeed(new: Option<&Self>, old: &Self) {
        let issued = lock(&old.credentials).take().unwrap_or_default();
        for (user, credential) in issued {
            match new.filter(|new| new.users.file.agrees_with(&old.users.file, &user)) {
                Some(new) => {
                    if let Some(credentials) = &mut *lock(&new.credentials) {
                        credentials.insert(user, credential);
                    }
                }
                None => credential.revoke(),
            }
        }
    }

    /// That of a user whose password was right.
    fn credential(&self, user: &str) -> Arc<Credential> {
        match &mut *lock(&self.credentials) {
            Some(credentials) => match credentials.get(user) {
                Some(known) => known.clone(),
                None => credentials.entry(user.into()).or_default().clone(),
            },
            // The file was read again meanwhile, and perhaps has another password.
            None => {
                let credential = Credential::default();
                credential.revoke();
                Arc::new(credential)
            }
        }
    }

    fn accept(&self, user: &str) -> AuthAnswer {
        AuthAnswer::Accept {
            username: None,
            data: None,
            credential: Some(self.credential(user)),
        }
    }
}

/// What a client says it is, and what it gives as proof.
fn said(request: &AuthRequest) -> (&str, &[u8]) {
    let user = request.username.as_deref().unwrap_or_default();
    (user, request.password.as_deref().unwrap_or_default())
}

impl Authenticator for Passwords {
    fn recognise(&self, request: &AuthRequest) -> Option<AuthAnswer> {
        let (user, password) = said(request);
        let is_known = self.users.knows(user, password);
        is_known.then(|| self.accept(user))
    }

    fn authenticate(&self, request: &AuthRequest) -> AuthAnswer {
        let (user, password) = said(request);
        match self.users.verify_and_remember(user, password) {
            true => self.accept(user),
            false => AuthAnswer::Deny {
                reason: ReasonCode::BadUserNameOrPassword,
            },
        }
    }
}

#[derive(Debug)]
struct Rights(Acl);

impl AccessControl for Rights {
    fn permissions(&self, user: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>> {
        Some(Arc::new(ClientRights(self.0.for_client(user, client_id))))
    }
}

#[derive(Debug)]
struct ClientRights(ClientAcl);

impl Permissions for ClientRights {
    fn may_publish(&self, topic: &str) -> bool {
        self.0.may_publish(topic)
    }

    fn may_receive(&self, topic: &str) -> bool {
        self.0.may_receive(topic)
    }

    fn may_subscribe(&self, filter: &str) -> bool {
        self.0.may_subscribe(filter)
    }

    fn may_be_broker(&self, name: &str) -> bool {
        self.0.may_be_broker(name)
    }

    fn quota(&self) -> FlowQuota {
        let rights = self.0.rt_rights().unwrap_or_default();
        FlowQuota {
            max_flows: rights.max_flows,
            max_bandwidth: rights.max_bandwidth,
        }
    }

    fn refuses(&self, topic: &str) -> Option<bool> {
        self.0.rt_rights_on(topic).refuse
    }

    fn urgency(&self, topic: &str) -> UrgencyRights {
        let rights = self.0.rt_rights_on(topic);
        UrgencyRights {
            max_rt_priority: (!rights.no_real_time).then(|| rights.max_priority.unwrap_or(7)),
            min_priority: (!rights.no_priority).then(|| rights.min_priority.unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passwords(users: &[(&str, u8)]) -> Passwords {
        Passwords::new(Arc::new(Users::new(file(users)).unwrap()))
    }

    /// The password of each user is its name.
    fn file(users: &[(&str, u8)]) -> PasswordFile {
        let mut file = PasswordFile::default();
        for (user, salt) in users {
            let hash = punctual_auth::hash_argon2id(user.as_bytes(), [*salt; 16]);
            file.set(user, &hash).unwrap();
        }
        file
    }

    fn credential(answer: Option<AuthAnswer>) -> Option<Arc<Credential>> {
        match answer? {
            AuthAnswer::Accept { credential, .. } => credential,
            _ => None,
        }
    }

    #[test]
    fn passwords_that_change_are_revoked_and_others_stay() {
        let old = passwords(&[("same", 1), ("changed", 1), ("gone", 1)]);
        let issued = ["same", "changed", "gone"].map(|user| old.credential(user));
        assert!(Arc::ptr_eq(&issued[0], &old.credential("same")));
        let mut new = file(&[("changed", 2)]);
        let hash = old.users.file.to_string();
        let hash = hash
            .lines()
            .find_map(|line| line.strip_prefix("same:"))
            .unwrap();
        new.set("same", hash).unwrap();
        let new = Passwords::new(Arc::new(Users::new(new).unwrap()));
        Passwords::succeed(Some(&new), &old);
        let revoked = issued.each_ref().map(|credential| credential.is_revoked());
        assert_eq!(revoked, [false, true, true]);
        assert!(Arc::ptr_eq(&issued[0], &new.credential("same")));
        // What the old ones answer late lets nobody in.
        assert!(old.credential("same").is_revoked());
        Passwords::succeed(None, &new);
        assert!(issued[0].is_revoked());
    }

    #[test]
    fn a_verified_password_is_recognised_until_the_file_is_read_again() {
        let old = passwords(&[("user", 1)]);
        let request = |password: &str| AuthRequest {
            conn: punctual_broker::ConnId::from_number(1),
            listener: 0,
            peer: None,
            client_id: "c".into(),
            username: Some("user".into()),
            password: Some(password.as_bytes().into()),
            method: None,
            again: false,
            waits: punctual_broker::Waits::default(),
        };
        assert!(old.recognise(&request("user")).is_none());
        assert!(credential(Some(old.authenticate(&request("wrong")))).is_none());
        assert!(old.recognise(&request("wrong")).is_none());
        let first = credential(Some(old.authenticate(&request("user")))).unwrap();
        let again = credential(old.recognise(&request("user"))).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(old.recognise(&request("wrong")).is_none());
        let new = passwords(&[("user", 1)]);
        Passwords::succeed(Some(&new), &old);
        assert!(new.recognise(&request("user")).is_none());
    }

    /// Listeners with the same file know the same passwords, and each revokes its own.
    #[test]
    fn listeners_that_share_a_file_revoke_apart() {
        let users = Arc::new(Users::new(file(&[("user", 1)])).unwrap());
        let old = [0, 1].map(|_| Passwords::new(users.clone()));
        let issued = old.each_ref().map(|old| old.credential("user"));
        Passwords::succeed(Some(&Passwords::new(users)), &old[0]);
        Passwords::succeed(Some(&passwords(&[("user", 2)])), &old[1]);
        let revoked = issued.each_ref().map(|credential| credential.is_revoked());
        assert_eq!(revoked, [false, true]);
    }
}
