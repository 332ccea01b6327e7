//! CONNECT and authentication (sections 3.1, 3.2, 3.15, 4.12).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use punctual_codec::{
    Auth, ConnAck, Connect, DecodeError, Frame, Packet, PacketType, PropertyBuf, PropertyId, QoS,
    ReasonCode, Version, Will, topic,
};
use punctual_mesh::transfer::{HomeId, Mark, Record, Stamp};
use punctual_model::Requirements;

use super::{AuthAnswer, Fail, Next, REVOKED, Shard};
use crate::access::Permissions;
use crate::admission::Ask;
use crate::answers::{best_effort, put_answer};
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::base::name::LINK_PREFIX;
use crate::directory::{ClaimError, Directory};
use crate::egress::Class;
use crate::hub::{AuthRequest, Authenticating, Awaited, Conn, Event, Hub, Output, State, Waits};
use crate::mesh::federation::Service;
use crate::mesh::link::Entitlement;
use crate::mesh::shard::neighbour;
use crate::message::put_forwarded;
use crate::reserved::Reserved;
use crate::session::{Session, Stored};
use crate::shard::refusal::Refusal;
use crate::shard::stated::report_urgency;
use crate::timers::Timer;
use crate::{Config, Credential, Message, Nanos, urgency};

/// The reason for refusing clients a new session.
pub(crate) const NO_ROOM: &str = "limits.max_sessions reached";
/// The reason given to clients that connect before the broker has joined its mesh.
const NOT_JOINED: &str = "this broker has not joined its mesh yet; connect again in a moment";

impl Shard {
    /// Handles the first packet of a connection, which has to be CONNECT [MQTT-3.1.0-1].
    pub(super) fn first_packet(
        &mut self,
        id: ConnId,
        frame: Frame<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        if frame.kind != PacketType::Connect {
            return Err(Fail::new(
                ReasonCode::ProtocolError,
                "first packet is not CONNECT",
            ));
        }
        self.hub.stats.connects_received += 1;
        let version = Connect::peek_version(frame.body);
        if let (Some(conn), Some(version)) = (self.hub.outlets.conn(id), version) {
            conn.version = version;
        }
        let connect = match Connect::decode(frame.body) {
            Ok(connect) => connect,
            Err(error) => {
                if version.is_none() && error != DecodeError::UnsupportedVersion {
                    return Err(error.into());
                }
                let refusal = Refusal::new(error.reason(), error.to_string());
                self.refuse_connect(id, None, &refusal);
                return Err(Fail::silent(refusal.why));
            }
        };
        if let Some(conn) = self.hub.outlets.conn(id) {
            let max = connect.properties.number(PropertyId::MaximumPacketSize);
            conn.max_packet = max.unwrap_or(u32::MAX).min(conn.max_packet);
            conn.bridge = Connect::is_bridge(frame.body);
        }
        if connect.version.is_v5() && !frame.is_minimal() {
            let error = DecodeError::Malformed("remaining length");
            let refusal = Refusal::new(error.reason(), error.to_string());
            self.refuse_connect(id, Some(&connect), &refusal);
            return Err(Fail::silent(refusal.why));
        }
        if !connect.client_id.is_empty() {
            let home = self.hub.directory.home(connect.client_id, self.hub.index);
            if home != self.hub.index {
                return Ok(self.hand_over(id, home));
            }
        }
        let result = match authentication(&mut self.hub, id, &connect) {
            Ok(Some(mut request)) => {
                if let Some(conn) = self.hub.outlets.conn(id) {
                    let waits = Arc::new(());
                    request.waits = Waits::with(&waits);
                    conn.state = State::Authenticating(Box::new(Authenticating {
                        body: frame.body.into(),
                        waits,
                    }));
                    if let Some((method, _)) = &request.method {
                        conn.extra().auth_method = Some(method.clone());
                    }
                    conn.paused += 1;
                }
                self.hub
                    .outlets
                    .outputs
                    .push(Output::Authenticate(Box::new(request)));
                return Ok(Next::Pause);
            }
            Ok(None) => {
                let username = connect.username.map(Arc::from);
                self.accept(
                    id,
                    &connect,
                    username,
                    None,
                    LookupState::Not(frame.body),
                    now,
                )
            }
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(())
                if self
                    .hub
                    .outlets
                    .conn(id)
                    .is_some_and(|conn| conn.paused > 0) =>
            {
                Ok(Next::Pause)
            }
            Ok(()) => Ok(Next::Packet),
            Err(refusal) => {
                self.refuse_connect(id, Some(&connect), &refusal);
                Err(Fail::silent(refusal.why))
            }
        }
    }

    fn hand_over(&mut self, id: ConnId, shard: u16) -> Next {
        if let Some(conn) = self.hub.outlets.conns.remove(id.slot) {
            self.hub.stats.connections -= 1;
            self.hub.stats.connections_opened -= 1;
            self.hub.stats.connects_received -= 1;
            self.hub.outlets.outputs.push(Output::Handover {
                conn: id,
                shard,
                meta: Box::new((*conn.meta).into()),
            });
        }
        Next::Moved
    }

    /// Handles a packet that arrives during an authentication.
    pub(super) fn auth_packet(&mut self, id: ConnId, frame: Frame<'_>) -> Result<Next, Fail> {
        let Some(conn) = self.hub.outlets.conn(id) else {
            return Ok(Next::Closed);
        };
        let wrong = |why| Err(Fail::new(ReasonCode::ProtocolError, why));
        match frame.kind {
            PacketType::Auth if conn.auth_method().is_some() => {}
            PacketType::Disconnect => return Err(Fail::silent("client left before CONNACK")),
            _ => return wrong("packet other than AUTH before CONNACK"),
        }
        let auth = Auth::decode(frame.body, conn.version)?;
        if auth.reason != ReasonCode::ContinueAuthentication {
            return wrong("AUTH with another reason than 0x18");
        }
        let (method, data) = Self::auth_fields(&auth)?;
        if conn.auth_method() != Some(&*method) {
            return wrong("AUTH with another method than CONNECT");
        }
        let State::Authenticating(asking) = &conn.state else {
            return Ok(Next::Closed);
        };
        let connect = Connect::decode(&asking.body)?;
        let request = AuthRequest {
            conn: id,
            listener: conn.meta.listener,
            peer: conn.meta.peer(),
            waits: Waits::with(&asking.waits),
            client_id: connect.client_id.into(),
            username: connect.username.map(Arc::from),
            password: connect.password.map(Box::from),
            method: Some((method, data)),
            again: false,
        };
        conn.paused += 1;
        self.hub
            .outlets
            .outputs
            .push(Output::Authenticate(Box::new(request)));
        Ok(Next::Pause)
    }

    /// Handles AUTH from a connected client, which authenticates again [MQTT-4.12.1-1].
    pub(super) fn auth_again(&mut self, id: ConnId, auth: &Auth<'_>) -> Result<(), Fail> {
        let Some(conn) = self.hub.outlets.conn(id) else {
            return Ok(());
        };
        let expected = if conn.authenticating_again() {
            ReasonCode::ContinueAuthentication
        } else {
            ReasonCode::ReAuthenticate
        };
        let (method, data) = Self::auth_fields(auth)?;
        if auth.reason != expected || conn.auth_method() != Some(&*method) {
            return Err(Fail::new(
                ReasonCode::ProtocolError,
                "AUTH does not continue the authentication of CONNECT",
            ));
        }
        conn.extra().authenticating_again = true;
        let (listener, peer) = (conn.meta.listener, conn.meta.peer());
        let session = conn.session;
        if let Some(session) = self.hub.sessions.get(session) {
            let request = AuthRequest {
                conn: id,
                listener,
                peer,
                waits: Waits::default(),
                client_id: session.handle.client_id.clone(),
                username: session.username.clone(),
                password: None,
                method: Some((method, data)),
                again: true,
            };
            self.hub
                .outlets
                .outputs
                .push(Output::Authenticate(Box::new(request)));
        }
        Ok(())
    }

    /// Handles the answer to an [`AuthRequest`].
    pub fn authenticated(&mut self, id: ConnId, answer: AuthAnswer, now: Nanos) {
        let Some(conn) = self.hub.outlets.conn(id) else {
            return;
        };
        let method = conn.auth_method().map(Box::from);
        if conn.authenticating_again() {
            self.authenticated_again(id, method, answer, now);
            return;
        }
        let State::Authenticating(asking) = &mut conn.state else {
            return;
        };
        if let AuthAnswer::Continue { data } = answer {
            let reason = ReasonCode::ContinueAuthentication;
            if send_auth(&mut self.hub, id.slot, reason, method, &data) {
                self.hub.resume(vec![id]);
                return;
            }
            let refusal = Refusal::new(ReasonCode::PacketTooLarge, AUTH_TOO_LARGE);
            self.refuse_connect(id, None, &refusal);
            self.fail(id, &Fail::silent(refusal.why), now);
            return;
        }
        let body = std::mem::take(&mut asking.body);
        let Ok(connect) = Connect::decode(&body) else {
            return;
        };
        let result = match answer {
            AuthAnswer::Accept {
                username,
                data,
                credential,
            } => {
                prove(&mut self.hub, id, credential);
                let username = username.or_else(|| connect.username.map(Arc::from));
                let auth = method.map(|method| (method, data.unwrap_or_default()));
                self.accept(id, &connect, username, auth, LookupState::Not(&body), now)
            }
            AuthAnswer::Deny { reason } => Err(Refusal::new(reason, "authentication failed")),
            AuthAnswer::Continue { .. } => return,
        };
        match result {
            Ok(()) => self.hub.resume(vec![id]),
            Err(refusal) => {
                self.refuse_connect(id, Some(&connect), &refusal);
                self.fail(id, &Fail::silent(refusal.why), now);
            }
        }
    }

    fn authenticated_again(
        &mut self,
        id: ConnId,
        method: Option<Box<str>>,
        answer: AuthAnswer,
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        let (reason, data) = match answer {
            AuthAnswer::Continue { data } => (ReasonCode::ContinueAuthentication, data),
            AuthAnswer::Accept {
                data, credential, ..
            } => {
                if credential.is_some() {
                    prove(hub, id, credential);
                }
                (ReasonCode::Success, data.unwrap_or_default())
            }
            AuthAnswer::Deny { .. } => {
                let fail = Fail::new(ReasonCode::NotAuthorized, "authentication failed");
                self.fail(id, &fail, now);
                return;
            }
        };
        if reason == ReasonCode::Success
            && let Some(conn) = hub.outlets.conn(id)
        {
            conn.extra().authenticating_again = false;
        }
        if !send_auth(hub, id.slot, reason, method, &data) {
            let fail = Fail::new(ReasonCode::PacketTooLarge, AUTH_TOO_LARGE);
            self.fail(id, &fail, now);
        }
    }

    /// Answers CONNECT, as far as it could be decoded, with a refusal, if the protocol has a reason
    /// code for it.
    pub(crate) fn refuse_connect(
        &mut self,
        id: ConnId,
        connect: Option<&Connect<'_>>,
        refusal: &Refusal,
    ) {
        let hub = &mut self.hub;
        hub.stats.refused_connects += 1;
        hub.stats.count_disconnect(refusal.reason);
        let Some(conn) = hub.outlets.conns.get(id.slot) else {
            return;
        };
        hub.outlets
            .outputs
            .push(Output::Event(Event::ConnectRefused {
                client_id: connect.map(|connect| connect.client_id.into()),
                peer: conn.meta.peer(),
                username: connect.and_then(|connect| connect.username.map(Arc::from)),
                reason: refusal.reason,
                why: refusal.why.clone(),
            }));
        if !conn.v5() && refusal.reason.connack_v3().is_none() {
            return;
        }
        let mut properties = PropertyBuf::new();
        // The reason string is left out if it would make the packet too large [MQTT-3.2.2-19].
        if conn.v5() && refusal.why.len() + 16 < conn.max_packet as usize {
            let _ = properties.push_data(PropertyId::ReasonString, refusal.why.as_bytes());
        }
        let connack = ConnAck {
            session_present: false,
            reason: refusal.reason,
            properties: properties.as_properties(),
        };
        hub.send(id.slot, &Packet::ConnAck(connack));
    }

    /// Accepts a neighbour to which this broker has connected.
    pub(crate) fn accept_link(&mut self, id: ConnId, connect: &Connect<'_>, now: Nanos) {
        if let Err(refusal) = self.accept(id, connect, None, None, LookupState::ForNothing, now) {
            self.fail(id, &Fail::silent(refusal.why), now);
        }
    }

    /// Accepts an authenticated client: finds or creates its session, sends CONNACK, and sends
    /// waiting messages. Other brokers may first be asked for the session.
    pub(crate) fn accept(
        &mut self,
        id: ConnId,
        connect: &Connect<'_>,
        username: Option<Arc<str>>,
        auth: Option<(Box<str>, Box<[u8]>)>,
        looked: LookupState<'_>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let Some(mut newcomer) = self.introduce(id, connect, username, auth.as_ref(), now)? else {
            return Ok(());
        };
        let Some(place) = self.session_for(&newcomer, auth, looked, now)? else {
            return Ok(());
        };
        let hub = &mut self.hub;
        let Some(attached) = attach_session(hub, &mut newcomer, place, looked) else {
            return Ok(());
        };
        if attach_connection(hub, &newcomer, place.slot, &attached, now).is_none() {
            return Ok(());
        }
        let (is_link, entitlement) = (newcomer.is_link, newcomer.entitlement);
        welcome(hub, newcomer, place, &attached, now);
        if is_link {
            self.link_is_up(id, place.slot, entitlement);
            return Ok(());
        }
        if hub.config.admission.is_some() {
            if let Some(conn) = hub.outlets.conns.get_mut(id.slot) {
                conn.paused += 1;
            }
            hub.ask(place.slot, Ask::Connected { conn: id });
        }
        hub.pump(place.slot, now);
        Ok(())
    }

    /// Reads the requests of a CONNECT, and checks those that do not depend on the session. `None`
    /// if the connection is closed.
    fn introduce<'a>(
        &mut self,
        id: ConnId,
        connect: &'a Connect<'a>,
        username: Option<Arc<str>>,
        auth: Option<&(Box<str>, Box<[u8]>)>,
        now: Nanos,
    ) -> Result<Option<Newcomer<'a>>, Refusal> {
        let config = self.hub.config.clone();
        let v5 = connect.version.is_v5();
        let mut wish = Wish::new(connect, &config)?;
        let Some(conn) = self.hub.outlets.conn(id) else {
            return Ok(None);
        };
        // The credential may have been revoked since it was checked.
        if conn.meta.is_revoked() {
            return Err(Refusal::new(ReasonCode::NotAuthorized, REVOKED));
        }
        let assigned = connect.client_id.is_empty();
        let username = conn.meta.identity().cloned().or(username);
        let client_id: Arc<str> = if assigned {
            let nonce = conn.meta.nonce;
            config.client_ids.assign(username.as_deref(), nonce)
        } else {
            connect.client_id.into()
        };
        // A connection that this broker opened itself needs no rights and no CONNACK.
        let (max_packet, dialled) = (conn.max_packet, conn.link);
        let listener = conn.meta.listener;
        let properties = match v5 {
            true => wish.answer(connect, &config, &client_id, auth),
            false => PropertyBuf::new(),
        };
        // CONNACK cannot be left out, and must not be larger than the client allows
        // [MQTT-3.1.2-24].
        let rest = properties.as_properties().as_bytes().len() + 2;
        if !dialled && rest + CONNACK_HEADERS > max_packet as usize {
            let why = format!(
                "Maximum Packet Size of {max_packet} bytes is too small for CONNACK, which has {}",
                rest + CONNACK_HEADERS
            );
            return Err(Refusal::new(ReasonCode::PacketTooLarge, why));
        }
        let will = connect
            .will
            .map(|will| make_will(&will, &config, &self.hub.directory.will_bytes))
            .transpose()?;
        let is_link = client_id.starts_with(LINK_PREFIX);
        let durability = match self.hub.journal {
            Some(_) => config.durability.of_listener(listener),
            None => Durability::None,
        };
        // A broker that acknowledges a message to a neighbour which guarantees its durability must
        // guarantee the durability, too.
        let durability = match is_link && self.hub.journal.is_some() {
            true => durability.max(Durability::Batched),
            false => durability,
        };
        if is_link {
            wish.session_expiry = u32::MAX;
        } else if self.hub.service() == Service::None {
            return Err(Refusal::new(ReasonCode::ServerUnavailable, NOT_JOINED));
        }
        let mut entitlement = Entitlement::Dialled;
        if is_link && !dialled {
            let is_proven =
                auth.is_some() || config.checks_passwords(listener) && username.is_some();
            entitlement = neighbour::admit(&self.hub, id, connect, username.as_deref(), is_proven)?;
        }
        self.end_session_of_stored_will(&client_id, now);
        // Messages that wait for one user must not be sent to another user of the same identifier.
        let is_foreign = !is_link && self.hub.is_foreign(&client_id, username.as_deref());
        Ok(Some(Newcomer {
            id,
            connect,
            clean_start: connect.clean_start || is_foreign,
            wish,
            client_id,
            assigned,
            username,
            listener,
            is_link,
            dialled,
            entitlement,
            durability,
            will,
            properties,
            max_packet,
        }))
    }

    /// The session of a client: the local one, or a new one. `None` if other brokers are asked for
    /// the session first.
    fn session_for(
        &mut self,
        newcomer: &Newcomer<'_>,
        auth: Option<(Box<str>, Box<[u8]>)>,
        looked: LookupState<'_>,
        now: Nanos,
    ) -> Result<Option<Place>, Refusal> {
        let (id, client_id) = (newcomer.id, &newcomer.client_id);
        let is_own = !newcomer.is_link && !newcomer.assigned;
        let existing = self.hub.sessions.named(client_id);
        let session = existing.and_then(|slot| self.hub.sessions.get(slot));
        if is_own {
            check_identifier(&self.hub, client_id, session, newcomer.username.as_deref())?;
        }
        let may_stay = session.is_some() && !newcomer.clean_start;
        // A full store still accepts a neighbour: without the link other brokers would be cut off.
        if let Some(trouble) = self.hub.store_trouble()
            && newcomer.is_durable()
            && (!newcomer.is_link || self.hub.is_store_failing())
            && !existing.is_some_and(|slot| may_stay && self.hub.is_safe(slot))
        {
            return Err(Refusal::new(trouble.reason(), trouble.why()));
        }
        let moves = is_own && self.hub.has_custody();
        if moves && let LookupState::Not(body) = looked {
            if let Some(slot) = existing {
                // The broker may not have noticed that the client has left.
                self.take_over(slot, false, now);
            }
            let awaited = Awaited {
                body: body.into(),
                username: newcomer.username.clone(),
                auth,
            };
            self.await_transfer(id, client_id, newcomer.clean_start, awaited, now)?;
            return Ok(None);
        }
        if moves && existing.is_none() {
            // The client was granted a session, but there was no capacity to create it.
            return Err(Refusal::new(ReasonCode::QuotaExceeded, NO_ROOM));
        }
        if let Some(slot) = existing.filter(|_| !moves) {
            self.take_over(slot, newcomer.clean_start, now);
        }
        let existing = self.hub.sessions.named(client_id);
        let is_present = match looked {
            LookupState::Granted { present, .. } => present,
            _ => existing.is_some(),
        };
        let slot = match existing {
            Some(slot) => slot,
            None => make_session(&mut self.hub, client_id)?,
        };
        Ok(Some(Place {
            slot,
            existed: existing.is_some(),
            is_present,
        }))
    }
}

/// A client or neighbour that is being accepted.
struct Newcomer<'a> {
    id: ConnId,
    connect: &'a Connect<'a>,
    /// Whether the client gets a new session even if one exists.
    clean_start: bool,
    wish: Wish,
    client_id: Arc<str>,
    /// Whether the broker has assigned the client identifier.
    assigned: bool,
    username: Option<Arc<str>>,
    listener: u16,
    is_link: bool,
    /// Whether this broker has opened the connection.
    dialled: bool,
    entitlement: Entitlement,
    durability: Durability,
    will: Option<crate::session::Will>,
    /// The properties of CONNACK.
    properties: PropertyBuf,
    max_packet: u32,
}

impl Newcomer<'_> {
    /// Whether the session outlives the process.
    fn is_durable(&self) -> bool {
        self.durability > Durability::None && self.wish.session_expiry > 0
    }
}

/// The place of a newcomer's session.
#[derive(Clone, Copy)]
struct Place {
    slot: u32,
    /// Whether there was a session in the slot already.
    existed: bool,
    /// Session Present.
    is_present: bool,
}

/// The state of a session that its new connection needs.
struct Attached {
    number: u64,
    /// Whether the client has confirmed that it knows of the session.
    is_confirmed: bool,
    permissions: Option<Arc<dyn Permissions>>,
    has_flows: bool,
    /// The most urgent priority of its admitted flows.
    promised: Option<u8>,
    /// Number of messages that the session has dropped, and how many of them have not been reported
    /// to the client.
    dropped: u64,
    lost: u64,
}

/// Creates a session for a client that has none on this broker.
fn make_session(hub: &mut Hub, client_id: &Arc<str>) -> Result<u32, Refusal> {
    let max = hub.config.limits.max_sessions;
    if let Err(error) = hub.directory.claim(client_id, hub.index, max) {
        return Err(match error {
            ClaimError::Quota => Refusal::new(ReasonCode::QuotaExceeded, NO_ROOM),
            ClaimError::Elsewhere => Refusal::new(
                ReasonCode::ServerBusy,
                "client identifier is being connected elsewhere",
            ),
        });
    }
    let (directory, index) = (hub.directory.clone(), hub.index);
    let slot = hub
        .sessions
        .insert_with(|slot| Session::new(directory.handle(client_id, index, slot)));
    hub.sessions.name(slot);
    Ok(slot)
}

/// The rights of a newcomer. Requirements of its will that exceed these rights are noted in the
/// remark.
fn permissions_of(hub: &Hub, newcomer: &mut Newcomer<'_>) -> Option<Arc<dyn Permissions>> {
    if newcomer.is_link {
        return None;
    }
    let user = newcomer.username.as_deref();
    let listener = Some(newcomer.listener);
    let permissions = hub
        .directory
        .permissions(listener, user, &newcomer.client_id)?;
    if let Some(will) = &newcomer.connect.will {
        let stated = urgency::stated(will.properties).unwrap_or_default();
        let asked = urgency::asked(stated, None, || permissions.urgency(will.topic));
        if let Some(excess) = asked.refused {
            let remark = format!("will: {}", excess.on(will.topic));
            add(&mut newcomer.wish.remark, &remark);
        }
    }
    Some(permissions)
}

/// Attaches a client to its session. `None` if the session is gone.
fn attach_session(
    hub: &mut Hub,
    newcomer: &mut Newcomer<'_>,
    place: Place,
    looked: LookupState<'_>,
) -> Option<Attached> {
    let permissions = permissions_of(hub, newcomer);
    let slot = place.slot;
    let epoch = hub.sessions.next_epoch();
    let wish = &newcomer.wish;
    if place.existed && wish.session_expiry == 0 {
        hub.store_session_end(slot);
    }
    let session = hub.sessions.get_mut(slot)?;
    if !place.is_present {
        let durable = newcomer.is_durable();
        session.durable = durable;
        session.handle.set_durable(durable);
    }
    session.durability = newcomer.durability;
    session.conn = Some(newcomer.id.slot);
    session.epoch = epoch;
    session.expiry = wish.session_expiry;
    session.sweep_at = Nanos::MAX;
    session.classes = wish.classes;
    let rights_changed = session.username != newcomer.username
        || permissions.is_some()
        || session.handle.is_restricted();
    session.username.clone_from(&newcomer.username);
    session.listener = Some(newcomer.listener);
    hub.config
        .note_queue_full(&session.handle, Some(newcomer.listener));
    let is_told = newcomer.connect.version.is_v5() && !newcomer.is_link;
    let losses = session.losses.as_ref().filter(|_| is_told);
    let [dropped, lost] = losses.map_or([0, 0], |losses| losses.count());
    session.handle.set_permissions(permissions.clone());
    session.handle.connected.store(true, Ordering::Release);
    if !newcomer.is_link
        && session.custody.is_none()
        && let Some(mark) = new_mark(&hub.directory)
    {
        session.set_record(Stored::new(Record::Session(mark)));
    }
    let flows = session.flows.iter().flat_map(|flows| flows.values());
    let promised = flows.filter_map(|flow| Some(flow.state.grant()?.priority));
    let attached = Attached {
        number: session.handle.number,
        is_confirmed: session.mark().is_none_or(|mark| mark.confirmed),
        permissions,
        has_flows: session.flows.is_some(),
        promised: promised.max(),
        dropped,
        lost,
    };
    let has_subscriptions = !session.subscriptions.is_empty();
    hub.notify_federation_of_lasting(slot);
    let session = hub.sessions.get_mut(slot)?;
    if !newcomer.is_link
        && !newcomer.assigned
        && let Some(federation) = hub.directory.federation()
    {
        let (client, user) = (&newcomer.client_id, session.username.as_deref());
        let since = looked.since();
        session.arrived = federation.arrived(client, user, newcomer.clean_start, since);
        session.mark_received();
    }
    let will = newcomer.will.take();
    let name = will.as_ref().and_then(|_| hub.directory.will_name());
    hub.set_will(slot, will.map(|will| crate::session::Will { name, ..will }));
    if place.is_present && rights_changed && has_subscriptions {
        hub.directory.generations.bump_all();
    }
    Some(attached)
}

/// Attaches a connection to its session. `None` if the connection is gone.
fn attach_connection(
    hub: &mut Hub,
    newcomer: &Newcomer<'_>,
    slot: u32,
    attached: &Attached,
    now: Nanos,
) -> Option<()> {
    let (id, wish) = (newcomer.id, &newcomer.wish);
    let conn = hub.outlets.conns.get_mut(id.slot)?;
    conn.state = State::Connected;
    if wish.classes == 1 << Class::Bulk as u8 {
        conn.class = Class::Bulk;
    }
    conn.session = slot;
    // Until a packet of the client arrives, the client may not know of the reported losses either.
    conn.unheard = !attached.is_confirmed || attached.lost > 0;
    conn.number = attached.number;
    conn.durability = newcomer.durability;
    conn.permissions.clone_from(&attached.permissions);
    conn.connected_at = now;
    conn.keep_alive = wish.keep_alive;
    conn.receive_max = wish.receive_max;
    conn.max_packet = wish.max_packet.min(conn.max_packet);
    conn.alias_max = wish.alias_max;
    conn.problem_information = wish.problem_information;
    if !wish.default.is_empty() {
        conn.extra().default = wish.default;
        conn.states = true;
    }
    conn.states |= attached.has_flows;
    conn.promised = attached.promised;
    let peer = conn.meta.peer();
    hub.stats.clients_connected += 1;
    if wish.keep_alive > 0 {
        let ConnId { slot, generation } = id;
        let timer = Timer::KeepAlive { slot, generation };
        hub.timers.arm(now + conn.patience(), timer);
    }
    hub.outlets.outputs.push(Output::Event(Event::Connected {
        client_id: newcomer.client_id.clone(),
        peer,
        version: newcomer.connect.version,
        username: newcomer.username.clone(),
    }));
    Some(())
}

/// Answers CONNECT.
fn welcome(hub: &mut Hub, newcomer: Newcomer<'_>, place: Place, attached: &Attached, now: Nanos) {
    let Newcomer {
        id,
        connect,
        wish,
        mut properties,
        max_packet,
        ..
    } = newcomer;
    let rest = properties.as_properties().as_bytes().len() + 2;
    if attached.lost > 0
        && put_dropped(&mut properties, attached.lost, rest, max_packet)
        && let Some(conn) = hub.outlets.conns.get_mut(id.slot)
    {
        conn.extra().told_dropped = attached.dropped;
    }
    if let Some(remark) = &wish.remark {
        report_urgency(hub, id, remark, now);
    }
    if let (true, Some(remark)) = (connect.version.is_v5(), wish.remark) {
        let rest = properties.as_properties().as_bytes().len() + 2;
        put_answer(&mut properties, &best_effort(remark), rest, max_packet);
    }
    let connack = ConnAck {
        session_present: place.is_present,
        reason: ReasonCode::Success,
        properties: properties.as_properties(),
    };
    if !newcomer.dialled {
        hub.send(id.slot, &Packet::ConnAck(connack));
    }
    hub.store_connected(id.slot, place.slot, !place.is_present, now);
}

/// The mark of a session whose identifier was assigned just now, in a mesh: no other broker can
/// have a session with that identifier.
fn new_mark(directory: &Directory) -> Option<Mark> {
    let federation = directory.federation()?;
    let by = HomeId::new(federation.name())?;
    let micros = federation.next_stamp();
    let at = Stamp { micros, by };
    Some(Mark {
        confirmed: true,
        epoch: at.clone(),
        born: Some(at),
        blind: false,
    })
}

/// The state of a lookup of a session at other brokers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LookupState<'a> {
    /// Other brokers were not asked yet; the body of CONNECT.
    Not(&'a [u8]),
    /// The client gets the local session.
    Granted {
        /// Session Present.
        present: bool,
        /// The time at which the client connected.
        at: u64,
    },
    /// No session has to be looked up.
    ForNothing,
}

impl LookupState<'_> {
    fn since(self) -> Option<u64> {
        match self {
            Self::Granted { at, .. } => Some(at),
            Self::Not(_) | Self::ForNothing => None,
        }
    }
}

/// The authentication request for a client; `None` if its connection is closed, or if no request is
/// needed: for a neighbour with a secret, a proven identity, or an allowed anonymous client.
fn authentication(
    hub: &mut Hub,
    id: ConnId,
    connect: &Connect<'_>,
) -> Result<Option<AuthRequest>, Refusal> {
    let config = hub.config.clone();
    let directory = hub.directory.clone();
    let Some(conn) = hub.outlets.conn(id) else {
        return Ok(None);
    };
    let admits = directory.admits(conn.meta.listener);
    let request = |conn: &Conn, method| AuthRequest {
        conn: id,
        listener: conn.meta.listener,
        peer: conn.meta.peer(),
        client_id: connect.client_id.into(),
        username: connect.username.map(Arc::from),
        password: connect.password.map(Box::from),
        method,
        again: false,
        waits: Waits::default(),
    };
    neighbour::check_listener(admits, connect.client_id)
        .map_err(|why| Refusal::new(ReasonCode::NotAuthorized, why))?;
    if neighbour::presents_secret(connect) {
        // The secret is checked when the neighbour is accepted.
        conn.meta.prove(None);
        return Ok(None);
    }
    if let Some(method) = connect.properties.text(PropertyId::AuthenticationMethod) {
        if !config.auth_methods.iter().any(|known| known == method) {
            return Err(Refusal::new(
                ReasonCode::BadAuthenticationMethod,
                "authentication method not supported",
            ));
        }
        let data = connect
            .properties
            .data(PropertyId::AuthenticationData)
            .unwrap_or_default();
        return Ok(Some(request(conn, Some((method.into(), data.into())))));
    }
    if conn.meta.identity().is_some() {
        conn.meta.prove(None);
        return Ok(None);
    }
    if config.checks_passwords(conn.meta.listener)
        && (connect.username.is_some() || connect.password.is_some())
    {
        return Ok(Some(request(conn, None)));
    }
    if conn.meta.allow_anonymous {
        return Ok(None);
    }
    Err(Refusal::new(
        ReasonCode::NotAuthorized,
        "anonymous clients are not allowed here",
    ))
}

/// Notes the credential with which the client of a connection has authenticated, if the credential
/// can be revoked.
fn prove(hub: &mut Hub, id: ConnId, credential: Option<Arc<Credential>>) {
    if let Some(conn) = hub.outlets.conn(id) {
        conn.meta.prove(credential);
    }
}

/// Checks that a user may use the client identifier: the identifier obeys the binding rule, and
/// neither its session nor a connection that waits for that session belongs to another user.
fn check_identifier(
    hub: &Hub,
    client_id: &str,
    session: Option<&Session>,
    user: Option<&str>,
) -> Result<(), Refusal> {
    let rule = hub.config.client_ids;
    let refusal = |why| Err(Refusal::new(ReasonCode::ClientIdentifierNotValid, why));
    if let Some(why) = rule.refuses(client_id, user) {
        return refusal(why);
    }
    let waiting = hub
        .links
        .custody
        .as_ref()
        .and_then(|it| it.waiting.get(client_id));
    let waiting = waiting.into_iter().flatten();
    let waiting =
        waiting.filter_map(
            |waits| match &hub.outlets.conns.get(waits.conn.slot)?.state {
                State::Awaiting(awaited) => Some(&awaited.username),
                _ => None,
            },
        );
    let mut owners = session.map(|it| &it.username).into_iter().chain(waiting);
    match rule.keep_owner() && owners.any(|owner| owner.as_deref() != user) {
        true => refusal("the client identifier has a session of another user (auth.client_id)"),
        false => Ok(()),
    }
}

fn put_auth(properties: &mut PropertyBuf, method: &str, data: &[u8]) {
    let _ = properties.push_data(PropertyId::AuthenticationMethod, method.as_bytes());
    if !data.is_empty() {
        let _ = properties.push_data(PropertyId::AuthenticationData, data);
    }
}

/// Sends AUTH. False if AUTH exceeds the client's Maximum Packet Size.
#[must_use]
fn send_auth(
    hub: &mut Hub,
    slot: u32,
    reason: ReasonCode,
    method: Option<Box<str>>,
    data: &[u8],
) -> bool {
    let mut properties = PropertyBuf::new();
    if let Some(method) = method {
        put_auth(&mut properties, &method, data);
    }
    let auth = Auth {
        reason,
        properties: properties.as_properties(),
    };
    hub.send(slot, &Packet::Auth(auth))
}

/// The reason for ending an authentication.
const AUTH_TOO_LARGE: &str = "Maximum Packet Size of the client is too small for AUTH";

/// Bytes of CONNACK other than its properties, flags and reason code: the packet type, the
/// remaining length and the property length. Both lengths take one byte each as long as a client's
/// Maximum Packet Size can be too small.
const CONNACK_HEADERS: usize = 3;

/// The requests of a client, limited to what the broker allows.
struct Wish {
    session_expiry: u32,
    keep_alive: u16,
    receive_max: u16,
    max_packet: u32,
    alias_max: u16,
    problem_information: bool,
    response_information: bool,
    /// Default requirements of all publications of the client.
    default: Requirements,
    classes: u8,
    /// The requirements, of publications or of the will, that are not followed, with the reasons.
    remark: Option<String>,
}

impl Wish {
    fn new(connect: &Connect<'_>, config: &Config) -> Result<Self, Refusal> {
        let limits = &config.limits;
        let properties = connect.properties;
        if connect.client_id.is_empty() {
            let allowed = match connect.version {
                Version::V31 => false,
                Version::V311 => connect.clean_start && config.assign_client_ids,
                Version::V5 => config.assign_client_ids,
            };
            if !allowed {
                return Err(Refusal::new(
                    ReasonCode::ClientIdentifierNotValid,
                    "a client identifier is required",
                ));
            }
        }
        if properties.user_count() > limits.max_user_properties {
            return Err(Refusal::new(
                ReasonCode::QuotaExceeded,
                "more user properties than limits.max_user_properties",
            ));
        }
        let wanted = if connect.version.is_v5() {
            properties
                .number(PropertyId::SessionExpiryInterval)
                .unwrap_or(0)
        } else if connect.clean_start {
            0
        } else {
            u32::MAX
        };
        let mut keep_alive = connect.keep_alive;
        if connect.version.is_v5() {
            if let Some(server) = config.server_keep_alive {
                keep_alive = server;
            }
            let max = limits.max_keep_alive;
            if max != 0 && (keep_alive == 0 || keep_alive > max) {
                keep_alive = max;
            }
        }
        let number = |id| properties.number(id);
        let mut remark = None;
        let mut note = |why: String| add(&mut remark, &why);
        let stated = |properties| urgency::stated(properties).map_err(|e| e.to_string());
        let default = stated(properties).map_err(&mut note);
        let classes = urgency::classes(properties).map_err(&mut note);
        if config.admission.is_some()
            && let Ok(default) = &default
            && default.is_real_time()
            && default.period.is_none()
            && default.bandwidth.is_none()
        {
            note("rt-period is missing (or rt-bandwidth): no flow can be admitted".into());
        }
        if let Some(will) = &connect.will {
            let _ = stated(will.properties).map_err(&mut note);
        }
        Ok(Self {
            default: default.unwrap_or_default(),
            classes: classes.unwrap_or(urgency::ALL_CLASSES),
            remark,
            session_expiry: wanted.min(limits.max_session_expiry),
            keep_alive,
            receive_max: number(PropertyId::ReceiveMaximum)
                .map_or(u16::MAX, |max| max as u16)
                .min(limits.max_inflight),
            max_packet: number(PropertyId::MaximumPacketSize).unwrap_or(u32::MAX),
            alias_max: number(PropertyId::TopicAliasMaximum)
                .map_or(0, |max| max as u16)
                .min(limits.topic_alias_maximum),
            problem_information: number(PropertyId::RequestProblemInformation) != Some(0),
            response_information: number(PropertyId::RequestResponseInformation) == Some(1),
        })
    }

    /// The properties of CONNACK, without remarks.
    fn answer(
        &self,
        connect: &Connect<'_>,
        config: &Config,
        client_id: &str,
        auth: Option<&(Box<str>, Box<[u8]>)>,
    ) -> PropertyBuf {
        let mut properties = PropertyBuf::new();
        self.put_answer(connect, config, &mut properties);
        if connect.client_id.is_empty() {
            let _ =
                properties.push_data(PropertyId::AssignedClientIdentifier, client_id.as_bytes());
        }
        if let (Some(template), true) = (&config.response_information, self.response_information) {
            let information = template.replace("%c", client_id);
            let _ = properties.push_data(PropertyId::ResponseInformation, information.as_bytes());
        }
        if let Some((method, data)) = auth {
            put_auth(&mut properties, method, data);
        }
        properties
    }

    /// Adds the properties of CONNACK that state where a request of the client was not granted, and
    /// the broker's own limits.
    fn put_answer(&self, connect: &Connect<'_>, config: &Config, answer: &mut PropertyBuf) {
        let limits = &config.limits;
        let wanted = connect
            .properties
            .number(PropertyId::SessionExpiryInterval)
            .unwrap_or(0);
        if wanted != self.session_expiry {
            answer.push_number(PropertyId::SessionExpiryInterval, self.session_expiry);
        }
        if limits.receive_maximum < u16::MAX {
            answer.push_number(
                PropertyId::ReceiveMaximum,
                u32::from(limits.receive_maximum),
            );
        }
        if config.maximum_qos < QoS::ExactlyOnce as u8 {
            answer.push_number(PropertyId::MaximumQoS, u32::from(config.maximum_qos));
        }
        answer.push_number(PropertyId::MaximumPacketSize, limits.max_packet_size);
        answer.push_number(
            PropertyId::TopicAliasMaximum,
            u32::from(limits.topic_alias_maximum),
        );
        for (available, id) in [
            (config.retain_available, PropertyId::RetainAvailable),
            (
                config.wildcard_available,
                PropertyId::WildcardSubscriptionAvailable,
            ),
            (
                config.subscription_ids_available,
                PropertyId::SubscriptionIdentifierAvailable,
            ),
            (
                config.shared_available,
                PropertyId::SharedSubscriptionAvailable,
            ),
        ] {
            if !available {
                answer.push_number(id, 0);
            }
        }
        if self.keep_alive != connect.keep_alive {
            answer.push_number(PropertyId::ServerKeepAlive, u32::from(self.keep_alive));
        }
    }
}

/// User property of CONNACK: how many messages the session has lost because its queue was full,
/// since the last report to the client.
const DROPPED_KEY: &str = "punctual-dropped";

/// Adds how many messages a session has lost, unless the packet, with `rest` bytes of other
/// content, would then exceed the client's `max_packet` bytes.
fn put_dropped(properties: &mut PropertyBuf, lost: u64, rest: usize, max_packet: u32) -> bool {
    // The property identifier and two string lengths; the property length and the remaining length
    // may grow.
    const HEAD: usize = 1 + 2 + 2 + 3 + 3;
    let value = lost.to_string();
    let size = rest + CONNACK_HEADERS + HEAD + DROPPED_KEY.len() + value.len();
    size <= max_packet as usize && properties.push_user(DROPPED_KEY, &value).is_ok()
}

/// Adds another reason to the remark for a client.
fn add(remark: &mut Option<String>, why: &str) {
    let all = remark.get_or_insert_default();
    if !all.is_empty() {
        all.push_str("; ");
    }
    all.push_str(why);
}

fn make_will(
    will: &Will<'_>,
    config: &Config,
    total: &Arc<AtomicUsize>,
) -> Result<crate::session::Will, Refusal> {
    if will.qos as u8 > config.maximum_qos {
        return Err(Refusal::new(
            ReasonCode::QosNotSupported,
            "will QoS not supported",
        ));
    }
    if will.retain && !config.retain_available {
        return Err(Refusal::new(
            ReasonCode::RetainNotSupported,
            "retained will not supported",
        ));
    }
    let limits = &config.limits;
    if will.topic.len() > limits.max_topic_length
        || topic::levels(will.topic) > limits.max_topic_levels
    {
        return Err(Refusal::new(
            ReasonCode::TopicNameInvalid,
            "will topic exceeds limits.max_topic_length or limits.max_topic_levels",
        ));
    }
    let mut properties = Vec::new();
    put_forwarded(will.properties, &mut properties);
    let quota = |why: &str| Refusal::new(ReasonCode::QuotaExceeded, why);
    let size = will.topic.len() + properties.len() + will.payload.len();
    if size > limits.max_will_size {
        return Err(quota("the will is larger than limits.max_will_size"));
    }
    let reserved = Reserved::take(total, size, limits.max_will_bytes);
    let reserved = reserved.ok_or_else(|| quota("limits.max_will_bytes reached"))?;
    let expiry = will.properties.number(PropertyId::MessageExpiryInterval);
    let message = Message::will(
        will.topic,
        &properties,
        will.payload,
        will.qos,
        will.retain,
        expiry,
    );
    Ok(crate::session::Will {
        message,
        name: None,
        due: None,
        reserved: Some(reserved),
        delay: will
            .properties
            .number(PropertyId::WillDelayInterval)
            .unwrap_or(0),
    })
}
