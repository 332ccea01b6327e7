//! Who may connect as a neighbour broker: nobody who has not proven to be one.
//!
//! A neighbour forwards everything, takes sessions over and speaks for all clients behind it. So that
//! is a right of a user whose name is proven, for brokers of certain names, or belongs to who knows the
//! secret of the mesh; that an ordinary client may connect counts for nothing.

use punctual_codec::{Connect, ReasonCode, Version};

use super::connect::Refusal;
use super::links;
use crate::federation::{LINK_PREFIX, LINKED_ALREADY, Newcomer, SECRET_USER, Unwelcome};
use crate::hub::{Admits, ConnId, Hub};

/// Whether a client presents the secret of the mesh instead of a user's password.
pub(super) fn presents_secret(connect: &Connect<'_>) -> bool {
    connect.client_id.starts_with(LINK_PREFIX) && connect.username == Some(SECRET_USER)
}

/// Whether a listener is there for who connects.
pub(super) fn check_listener(admits: Admits, connect: &Connect<'_>) -> Result<(), Refusal> {
    let is_broker = connect.client_id.starts_with(LINK_PREFIX);
    let why = match admits {
        Admits::Brokers if !is_broker => "this listener is for brokers of the mesh only",
        Admits::Clients if is_broker => "this listener is not for brokers of a mesh",
        Admits::All | Admits::Clients | Admits::Brokers => return Ok(()),
    };
    Err(Refusal::new(ReasonCode::NotAuthorized, why))
}

/// Whether a client that calls itself a neighbour is one. Its user name is not just a claim if it
/// `is_proven`, or is that of its certificate.
pub(super) fn admit(
    hub: &Hub,
    id: ConnId,
    connect: &Connect<'_>,
    username: Option<&str>,
    is_proven: bool,
) -> Result<(), Refusal> {
    let not_permitted = || Refusal::new(ReasonCode::NotAuthorized, Unwelcome::NotPermitted.why());
    let federation = hub.directory.federation().ok_or_else(not_permitted)?;
    if connect.version != Version::V5 {
        return Err(not_permitted());
    }
    let peer = links::peer_of(connect.client_id).unwrap_or_default();
    let has_secret = presents_secret(connect);
    let meta = hub.conns.get(id.slot).map(|conn| &conn.meta);
    let identity = meta.and_then(|meta| meta.identity());
    let listener = meta.map(|meta| meta.listener);
    let is_permitted = (identity.is_some() || is_proven && !has_secret)
        && hub
            .directory
            .permissions(listener, username, connect.client_id)
            .is_some_and(|permissions| permissions.may_be_broker(peer));
    let newcomer = Newcomer {
        peer,
        secret: has_secret.then(|| connect.password.unwrap_or_default()),
        is_permitted,
    };
    if let Err(unwelcome) = federation.admit(newcomer) {
        let reason = match unwelcome {
            Unwelcome::NotPermitted | Unwelcome::OwnName => ReasonCode::NotAuthorized,
            Unwelcome::WrongSecret => ReasonCode::BadUserNameOrPassword,
            Unwelcome::NoName => ReasonCode::ClientIdentifierNotValid,
            Unwelcome::Connected => {
                let why = format!("{LINKED_ALREADY}{}", federation.name());
                return Err(Refusal::new(ReasonCode::ServerBusy, why));
            }
        };
        return Err(Refusal::new(reason, unwelcome.why()));
    }
    let session = hub.session_named(connect.client_id);
    let session = session.and_then(|slot| hub.sessions.get(slot));
    // One that this broker has opened itself has no user.
    let other = session
        .filter(|session| session.conn.is_some())
        .and_then(|session| session.username.as_deref());
    if other.is_some_and(|other| Some(other) != username) {
        let why = "a broker of that name is connected with other credentials";
        return Err(Refusal::new(ReasonCode::NotAuthorized, why));
    }
    Ok(())
}
