//! Password and ACL files behind the broker's questions.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use punctual_auth::{Acl, ClientAcl, FileError, PasswordFile, Verdict};
use punctual_broker::{
    AccessControl, AuthAnswer, AuthRequest, FlowQuota, Permissions, UrgencyRights,
};
use punctual_codec::ReasonCode;
use punctual_net::Authenticator;

use crate::cli::Failure;
use crate::config::Auth;

/// Who checks passwords, and who knows rights.
type Loaded = (
    Option<Arc<dyn Authenticator>>,
    Option<Arc<dyn AccessControl>>,
);

/// Reads the files that the configuration names.
pub(crate) fn load(auth: &Auth) -> Result<Loaded, Failure> {
    let authenticator = match &auth.password_file {
        None => None,
        Some(path) => {
            let file = parse(path, PasswordFile::parse)?;
            Some(Arc::new(Passwords(file)) as Arc<dyn Authenticator>)
        }
    };
    let access = match &auth.acl_file {
        None => None,
        Some(path) => {
            let acl = parse(path, Acl::parse)?;
            for warning in acl.warnings() {
                tracing::warn!("{}: {warning}", path.display());
            }
            Some(Arc::new(Rights(acl)) as Arc<dyn AccessControl>)
        }
    };
    Ok((authenticator, access))
}

fn parse<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<FileError>>,
) -> Result<T, Failure> {
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

struct Passwords(PasswordFile);

impl Authenticator for Passwords {
    fn authenticate(&self, request: &AuthRequest) -> AuthAnswer {
        let user = request.username.as_deref().unwrap_or_default();
        let password = request.password.as_deref().unwrap_or_default();
        match self.0.verify(user, password) {
            Verdict::Accepted => AuthAnswer::Accept {
                username: None,
                data: None,
            },
            Verdict::WrongPassword | Verdict::UnknownUser => AuthAnswer::Deny {
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

    fn is_broker(&self) -> bool {
        self.0.is_broker()
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
