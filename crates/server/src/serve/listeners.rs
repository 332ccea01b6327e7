//! Passwords and rights by listener, where listeners have files of their own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use punctual_broker::{
    AccessControl, AuthAnswer, AuthRequest, FlowQuota, Permissions, UrgencyRights,
};
use punctual_codec::ReasonCode;
use punctual_net::Authenticator;

use super::auth::{self, Passwords, Users};
use crate::config::Config;
use crate::error::Error;

/// Who checks passwords, and who knows rights.
pub(crate) struct Loaded {
    /// For each listener of the configuration, which may have several sockets.
    listeners: Vec<(Option<Arc<Passwords>>, usize)>,
    /// Without an ACL file, everybody has all.
    pub(crate) access: Option<Arc<dyn AccessControl>>,
}

impl Loaded {
    /// The former, for the server; `None` if no listener has a password file.
    pub(crate) fn authenticator(&self) -> Option<Arc<dyn Authenticator>> {
        let listeners = self.listeners.iter();
        let of: Vec<_> = listeners
            .flat_map(|(passwords, sockets)| std::iter::repeat_n(passwords.clone(), *sockets))
            .collect();
        let some = of.iter().any(Option::is_some);
        some.then(|| Arc::new(ByListener { of }) as Arc<dyn Authenticator>)
    }

    /// `new` takes over: what clients have proven by a listener is revoked unless the files that
    /// it has now say the same. Both are for the same listeners.
    pub(crate) fn succeeded_by(&self, new: &Self) {
        for (i, (old, _)) in self.listeners.iter().enumerate() {
            if let Some(old) = old {
                let new = new.listeners.get(i).and_then(|(new, _)| new.as_deref());
                Passwords::succeed(new, old);
            }
        }
    }
}

/// Reads the files that the configuration names for its listeners, each of them once.
pub(crate) fn load(config: &Config) -> Result<Loaded, Error> {
    let mut users: HashMap<&Path, Arc<Users>> = HashMap::new();
    let mut paths: Vec<Option<&Path>> = Vec::new();
    let mut rights = Vec::new();
    let (mut listeners, mut of) = (Vec::new(), Vec::new());
    for listener in &config.listeners {
        let sockets = listener.sockets();
        let passwords = match listener.passwords(&config.auth) {
            None => None,
            Some(path) => {
                let known = match users.entry(path) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(new) => new.insert(Arc::new(Users::load(path)?)).clone(),
                };
                Some(Arc::new(Passwords::new(known)))
            }
        };
        listeners.push((passwords, sockets));
        let acl = listener.rights(&config.auth);
        let at = match paths.iter().position(|path| *path == acl) {
            Some(at) => at,
            None => {
                rights.push(acl.map(auth::rights).transpose()?);
                paths.push(acl);
                rights.len() - 1
            }
        };
        of.extend(std::iter::repeat_n(at, sockets));
    }
    let access = match rights.len() {
        // It is the same for all.
        0 | 1 => rights.pop().flatten(),
        _ => Some(Arc::new(Rights { of, files: rights }) as Arc<dyn AccessControl>),
    };
    Ok(Loaded { listeners, access })
}

/// Asks the users of the listener that a client has come by.
struct ByListener {
    /// For each socket.
    of: Vec<Option<Arc<Passwords>>>,
}

impl ByListener {
    fn of(&self, request: &AuthRequest) -> Option<&Arc<Passwords>> {
        self.of.get(usize::from(request.listener))?.as_ref()
    }
}

impl Authenticator for ByListener {
    fn recognise(&self, request: &AuthRequest) -> Option<AuthAnswer> {
        self.of(request)?.recognise(request)
    }

    fn authenticate(&self, request: &AuthRequest) -> AuthAnswer {
        match self.of(request) {
            Some(passwords) => passwords.authenticate(request),
            // Nobody has a password there.
            None => AuthAnswer::Deny {
                reason: ReasonCode::BadUserNameOrPassword,
            },
        }
    }
}

#[derive(Debug)]
struct Rights {
    /// Which of the files, for each socket.
    of: Vec<usize>,
    /// `None` for everything.
    files: Vec<Option<Arc<dyn AccessControl>>>,
}

impl Rights {
    fn by_file(&self, user: Option<&str>, client_id: &str) -> Vec<Arc<dyn Permissions>> {
        let files = self.files.iter().flatten();
        files
            .filter_map(|access| access.permissions(user, client_id))
            .collect()
    }
}

impl AccessControl for Rights {
    fn permissions(&self, user: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>> {
        Some(Arc::new(Common(self.by_file(user, client_id))))
    }

    fn permissions_at(
        &self,
        listener: Option<u16>,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        let at = listener.and_then(|listener| self.of.get(usize::from(listener)));
        match at {
            Some(at) => self.files[*at].as_ref()?.permissions(user, client_id),
            None => self.permissions(user, client_id),
        }
    }

    fn permissions_anywhere(
        &self,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        let all_restrict = self.files.iter().all(Option::is_some);
        all_restrict.then(|| {
            let rights = self.by_file(user, client_id);
            Arc::new(Any(rights)) as Arc<dyn Permissions>
        })
    }
}

/// What all files allow, for a client of which is not known any more by which listener it came.
#[derive(Debug)]
struct Common(Vec<Arc<dyn Permissions>>);

impl Permissions for Common {
    fn may_publish(&self, topic: &str) -> bool {
        self.0.iter().all(|rights| rights.may_publish(topic))
    }

    fn may_receive(&self, topic: &str) -> bool {
        self.0.iter().all(|rights| rights.may_receive(topic))
    }

    fn may_subscribe(&self, filter: &str) -> bool {
        self.0.iter().all(|rights| rights.may_subscribe(filter))
    }

    fn urgency(&self, topic: &str) -> UrgencyRights {
        let all = self.0.iter().map(|rights| rights.urgency(topic));
        all.fold(UrgencyRights::ALL, |a, b| UrgencyRights {
            max_rt_priority: a.max_rt_priority.min(b.max_rt_priority),
            min_priority: a
                .min_priority
                .zip(b.min_priority)
                .map(|(a, b)| u64::max(a, b)),
        })
    }

    fn refuses(&self, topic: &str) -> Option<bool> {
        self.0
            .iter()
            .filter_map(|rights| rights.refuses(topic))
            .max()
    }

    fn may_be_broker(&self, name: &str) -> bool {
        !self.0.is_empty() && self.0.iter().all(|rights| rights.may_be_broker(name))
    }

    fn quota(&self) -> FlowQuota {
        let all = || self.0.iter().map(|rights| rights.quota());
        FlowQuota {
            max_flows: all().filter_map(|quota| quota.max_flows).min(),
            max_bandwidth: all().filter_map(|quota| quota.max_bandwidth).min(),
        }
    }
}

/// What one file or another allows, for what was done by a listener that is not known any more.
#[derive(Debug)]
struct Any(Vec<Arc<dyn Permissions>>);

impl Permissions for Any {
    fn may_publish(&self, topic: &str) -> bool {
        self.0.iter().any(|rights| rights.may_publish(topic))
    }

    fn may_receive(&self, topic: &str) -> bool {
        self.0.iter().any(|rights| rights.may_receive(topic))
    }

    fn may_subscribe(&self, filter: &str) -> bool {
        self.0.iter().any(|rights| rights.may_subscribe(filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arguments;

    const LISTENERS: &str = "[[listener]]\naddress = \"tcp://127.0.0.1:1\"\n\
         [[listener]]\naddress = \"tcp://127.0.0.1:2\"\n";

    fn loaded(dir: &Path, files: &[(&str, &str)], more: &str) -> Loaded {
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
        }
        let name = dir.join("punctual.toml");
        let text = format!("{LISTENERS}{more}").replace("DIR", &dir.display().to_string());
        std::fs::write(&name, text).unwrap();
        let none: [(String, String); 0] = [];
        load(&Config::load(Some(&name), none, &Arguments::default()).unwrap()).unwrap()
    }

    /// Each listener has its rights; what is known of none is judged by all of them, or by any.
    #[test]
    fn rights_are_those_of_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("acl", "topic read both\ntopic read a\ntopic write a\n"),
            (
                "own",
                "topic read both\ntopic read b\ntopic write b\nuser hub\nbroker hub\n",
            ),
        ];
        let more = "acl_file = \"DIR/own\"\n[auth]\nacl_file = \"DIR/acl\"\n";
        let access = loaded(dir.path(), &files, more).access.unwrap();
        let may = |listener, topic| {
            let rights = access.permissions_at(listener, None, "c");
            rights.unwrap().may_receive(topic)
        };
        let topics = ["both", "a", "b"];
        assert_eq!(topics.map(|it| may(Some(0), it)), [true, true, false]);
        assert_eq!(topics.map(|it| may(Some(1), it)), [true, false, true]);
        assert_eq!(topics.map(|it| may(None, it)), [true, false, false]);
        let any = access.permissions_anywhere(None, "c").unwrap();
        assert_eq!(
            ["a", "b", "c"].map(|it| any.may_publish(it)),
            [true, true, false]
        );
        let broker = |listener| {
            let rights = access.permissions_at(listener, Some("hub"), "c");
            rights.unwrap().may_be_broker("hub")
        };
        assert_eq!([Some(0), Some(1), None].map(broker), [false, true, false]);
    }
}
