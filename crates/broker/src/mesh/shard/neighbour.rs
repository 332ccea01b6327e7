//! Admission of neighbour brokers: only an authenticated broker may connect as one.
//!
//! A neighbour receives all messages, takes sessions over and acts for all clients behind it. So it
//! needs either an authenticated user with the right to be a broker of that name, or the secret of
//! the mesh; the rights of an ordinary client do not suffice.

use punctual_codec::{Connect, ReasonCode, Version};

use crate::base::connection::{Admits, ConnId};
use crate::base::name::{LINK_PREFIX, SECRET_USER, peer_of};
use crate::directory::Directory;
use crate::hub::Hub;
use crate::mesh::federation::{LINKED_ALREADY, Newcomer, Unwelcome};
use crate::mesh::link::Entitlement;
use crate::session::Session;
use crate::shard::refusal::Refusal;

/// Whether a client presents the secret of the mesh rather than a user's password.
pub(crate) fn presents_secret(connect: &Connect<'_>) -> bool {
    connect.client_id.starts_with(LINK_PREFIX) && connect.username == Some(SECRET_USER)
}

/// Checks whether a listener accepts clients, or neighbours, respectively.
pub(crate) fn check_listener(admits: Admits, client_id: &str) -> Result<(), &'static str> {
    let is_broker = client_id.starts_with(LINK_PREFIX);
    match admits {
        Admits::Brokers if !is_broker => Err("this listener is for brokers of the mesh only"),
        Admits::Clients if is_broker => Err("this listener is not for brokers of a mesh"),
        Admits::All | Admits::Clients | Admits::Brokers => Ok(()),
    }
}

/// Whether a client or neighbour on that listener may stay connected with its present rights; `Err`
/// has the reason why not.
pub(crate) fn check_rights(
    directory: &Directory,
    session: &Session,
    listener: u16,
) -> Result<(), &'static str> {
    let entitlement = session.link.as_ref().map(|link| link.entitlement);
    if entitlement == Some(Entitlement::Dialled) {
        // This broker has opened the connection, so there is no listener.
        return Ok(());
    }
    let client_id = &session.handle.client_id;
    check_listener(directory.admits(listener), client_id)?;
    let user = session.username.as_deref();
    if entitlement == Some(Entitlement::Right)
        && !may_be_broker(directory, Some(listener), user, client_id)
    {
        return Err(Unwelcome::NotPermitted.why());
    }
    Ok(())
}

/// Whether a user has the right to be the neighbour that the client identifier names.
fn may_be_broker(
    directory: &Directory,
    listener: Option<u16>,
    user: Option<&str>,
    client_id: &str,
) -> bool {
    let peer = peer_of(client_id).unwrap_or_default();
    directory
        .permissions(listener, user, client_id)
        .is_some_and(|permissions| permissions.may_be_broker(peer))
}

/// Decides whether a client with the identifier of a neighbour is accepted as one, and for which
/// reason. Its user name is authenticated if it `is_proven`, or comes from its certificate.
pub(crate) fn admit(
    hub: &Hub,
    id: ConnId,
    connect: &Connect<'_>,
    username: Option<&str>,
    is_proven: bool,
) -> Result<Entitlement, Refusal> {
    let not_permitted = || Refusal::new(ReasonCode::NotAuthorized, Unwelcome::NotPermitted.why());
    let federation = hub.directory.federation().ok_or_else(not_permitted)?;
    if connect.version != Version::V5 {
        return Err(not_permitted());
    }
    let peer = peer_of(connect.client_id).unwrap_or_default();
    let has_secret = presents_secret(connect);
    let meta = hub.outlets.conns.get(id.slot).map(|conn| &conn.meta);
    let identity = meta.and_then(|meta| meta.identity());
    let listener = meta.map(|meta| meta.listener);
    let is_permitted = (identity.is_some() || is_proven && !has_secret)
        && may_be_broker(&hub.directory, listener, username, connect.client_id);
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
    let session = hub.sessions.named(connect.client_id);
    let session = session.and_then(|slot| hub.sessions.get(slot));
    // The session of a connection that this broker has opened has no user.
    let other = session
        .filter(|session| session.conn.is_some())
        .and_then(|session| session.username.as_deref());
    if other.is_some_and(|other| Some(other) != username) {
        let why = "a broker of that name is connected with other credentials";
        return Err(Refusal::new(ReasonCode::NotAuthorized, why));
    }
    Ok(match has_secret {
        true => Entitlement::Secret,
        false => Entitlement::Right,
    })
}
