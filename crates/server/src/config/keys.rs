//! Every key of the configuration.
//!
//! The one place where a key's name, default, range and meaning are written.
//! `punctual config default`, `docs/configuration.md` and the messages about
//! wrong values are made from it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use punctual_codec::topic;
use punctual_manager::PlaceRule;
use punctual_net::marking::{Dscp, MOST_PRIORITY};

use super::address::{ListenAddress, Transport};
use super::durability::DurableRule;
use super::http::HttpAddress;
use super::neighbour::Neighbour;
use super::overflow::{QueueRule, SessionRule};
use super::rule::Rule;
use super::schema::section;
use super::units::{Rate, Size};
use super::value::{Auto, Limit, Scalar, Setting, Switch, Unreadable, quote, words};

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

const fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}

/// The largest packet that MQTT can carry: a header of 5 bytes and 2^28 - 1.
const LARGEST_PACKET: Size = Size(268_435_460);

/// What brokers of a mesh take from each other.
const MOST_LEVELS: u16 = topic::MAX_LEVELS as u16;

/// More memory than a machine has.
const MUCH: Size = Size::gib(1 << 20);

words! {
    /// Who may connect without a user name.
    Anonymous {
        /// Clients on this machine while there is no password file; with one,
        /// nobody.
        Auto = "auto",
        /// Clients on this machine.
        Loopback = "loopback",
        /// Everybody.
        Everybody = true,
        /// Nobody.
        Nobody = false,
    }
}

words! {
    /// Which client identifiers a user may use.
    IdentifierRule {
        /// Any that no session of another user has.
        Owner = "owner",
        /// The user name.
        User = "user",
        /// The user name, alone or with a colon and anything behind it.
        Prefix = "prefix",
        /// Any; a session of another user ends.
        Any = "any",
    }
}

words! {
    /// Who may use the HTTP interface.
    HttpAuth {
        /// Who shows that he has the role that it takes.
        Required = "required",
        /// Everybody who reaches it.
        Off = "off",
    }
}

words! {
    /// The oldest version of TLS that is spoken.
    TlsVersion {
        /// TLS 1.2 and 1.3.
        V1_2 = "1.2",
        /// TLS 1.3 alone.
        V1_3 = "1.3",
    }
}

words! {
    /// What happens to a message for a session whose queue is full.
    WhenFull {
        /// The oldest message of the queue makes room.
        DropOldest = "drop-oldest",
        /// The new message is dropped.
        DropNew = "drop-new",
        /// The publisher is refused.
        Refuse = "refuse",
        /// The publisher waits, and is refused if that takes too long.
        Hold = "hold",
        /// The slow client is disconnected.
        Disconnect = "disconnect",
    }
}

words! {
    /// How messages are ordered by urgency.
    EgressPolicy {
        /// By `rt-priority`, then by deadline.
        FixedPriority = "fixed-priority",
        /// By deadline.
        Edf = "edf",
        /// Not at all: in the order of arrival.
        Fifo = "fifo",
    }
}

words! {
    /// Where an urgent message waits for its receivers.
    EgressEnqueue {
        /// An entry for each receiver.
        PerReceiver = "per-receiver",
        /// One entry with the set of its receivers.
        Shared = "shared",
    }
}

words! {
    /// Which urgent message goes when a client's lanes are full.
    EgressOverflow {
        /// The oldest of the lowest priority.
        EvictOldest = "evict-oldest",
        /// The new one, unless others have a lower priority.
        RefuseNew = "refuse-new",
    }
}

words! {
    /// What happens to messages whose requirement is rejected.
    Rejected {
        /// They are carried as well as can be.
        BestEffort = "best-effort",
        /// They are refused.
        Refuse = "refuse",
    }
}

words! {
    /// What happens to messages that are not as their flow declared.
    PolicingAction {
        /// They go with the plain messages.
        Demote = "demote",
        /// Those that come too early wait.
        Shape = "shape",
        /// They are dropped.
        Drop = "drop",
        /// They are counted.
        Off = "off",
    }
}

words! {
    /// Over which connections between brokers messages go.
    MeshStrategy {
        /// Those behind which somebody has subscribed.
        SubscriptionTable = "subscription-table",
        /// All of the tree.
        Flooding = "flooding",
        /// Those of the tree to its root, and from there all.
        RootRelay = "root-relay",
    }
}

words! {
    /// Whether brokers of the mesh may connect at a listener.
    Brokers {
        /// Brokers and clients.
        Allow = "allow",
        /// Brokers only.
        Only = "only",
        /// Clients only.
        Deny = "deny",
    }
}

words! {
    /// How much is logged.
    LogLevel {
        /// What went wrong.
        Error = "error",
        /// And what may go wrong soon.
        Warn = "warn",
        /// And what the broker does: start, stop, reload.
        Info = "info",
        /// And clients that come and go.
        Debug = "debug",
        /// And more, for developers.
        Trace = "trace",
    }
}

words! {
    /// What a line of the log looks like.
    LogFormat {
        /// Time, level and words.
        Text = "text",
        /// One JSON object.
        Json = "json",
    }
}

words! {
    /// Whether a client's address is proven before anything is kept for it.
    Cookie {
        /// By a cookie that has to come back from there.
        Required = "required",
        /// Not at all.
        Off = "off",
    }
}

words! {
    /// Whether the datagrams of a session prove where they come from.
    Seal {
        /// Those of all sessions.
        Required = "required",
        /// Those of clients that ask for it.
        Client = "client",
    }
}

words! {
    /// What is promised about what a client is told is safe.
    Durable {
        /// Nothing: it ends with the process.
        None = "none",
        /// It is on disk, with others.
        Batched = "batched",
        /// It is on disk, as soon as it can be.
        Sync = "sync",
    }
}

section! {
    /// One address on which clients may connect. Repeat `[[listener]]` for each.
    Listener ["listener"] {
        /// Where to listen: tcp://, tls://, ws:// (MQTT over WebSocket), wss://,
        /// udp:// (MQTT in datagrams) or quic://, a host or an IP address, and a
        /// port. `*` stands for all addresses of this machine, IPv4 and IPv6.
        /// Without a port: 1883, 8883, 8083, 8084, for UDP 1883 and for QUIC
        /// 14567. With a path, as in ws://*:8083/mqtt, WebSockets are opened on
        /// that path only.
        address: ListenAddress = ListenAddress {
            transport: Transport::Tcp,
            host: "*".into(),
            port: 1883,
            path: String::new(),
        }, since "0.1.0", Restart;
        /// Largest number of clients that are connected here at one time.
        max_connections: Limit<u32> = Limit::Unlimited, in 1 => 16_000_000,
            since "0.1.0", Reload;
        /// Instead of store.durability, for sessions that are made here and for what
        /// is published here: "none", "batched" or "sync".
        durability: Option<Durable> = None, example "\"sync\"", since "0.1.0", Restart;
        /// Instead of queue.full, for sessions whose clients came by this listener
        /// last: "drop-oldest", "drop-new", "refuse", "hold" or "disconnect".
        /// queue.sessions and queue.rules come before it. After a restart it applies
        /// when the client connects.
        queue_full: Option<WhenFull> = None, example "\"refuse\"", since "0.1.0", Restart;
        /// Who may connect without a user name. "auto": clients on this machine
        /// as long as auth.password_file is not set, and nobody once it is.
        /// "loopback": clients on this machine. true: everybody. false: nobody. A
        /// client behind a proxy is where the proxy says (proxy_protocol).
        allow_anonymous: Anonymous = Anonymous::Auto, since "0.1.0", Reload;
        /// With mesh.enabled: whether brokers may connect here. "allow": brokers and
        /// clients. "only": brokers, and no clients. "deny": clients only.
        brokers: Brokers = Brokers::Allow, since "0.1.0", Reload;
        /// User names and password hashes of the clients of this listener, instead of
        /// those in auth.password_file.
        password_file: Option<PathBuf> = None, example "\"/etc/punctual/guests\"",
            since "0.1.0", Reload;
        /// Rights of the clients of this listener, instead of those in auth.acl_file. A
        /// session whose client has not come back since the broker was started has
        /// no more than all of these files allow.
        acl_file: Option<PathBuf> = None, example "\"/etc/punctual/guests.acl\"",
            since "0.1.0", Reload;
        /// What happens to messages of clients of this listener whose requirement
        /// is rejected, if not what admission.rejected says. Rights of their users
        /// (rejected= in rt lines of auth.acl_file) come before it.
        rejected: Option<Rejected> = None, example "\"refuse\"", since "0.1.0", Reload;
        /// Whether a proxy in front sends a PROXY protocol header (version 1 or 2)
        /// with the client's own address. Connections without it are closed. The
        /// header is believed: let nobody but the proxy reach the listener. Whether a
        /// client is on this machine is decided by the header and by the proxy's
        /// address.
        proxy_protocol: bool = false, since "0.1.0", Reload;
        /// Origins whose pages may open WebSockets, besides those that come from
        /// here: from the address or localhost that the browser connects to, or where
        /// nobody may connect without a user name, from any name that it connects
        /// to. "*" for all. Clients that are no browsers always may. Others are
        /// answered with 403.
        websocket_origins: Option<Vec<String>> = None,
            example "[\"https://factory.example\"]", since "0.1.0", Reload;
        /// The server's certificate and the intermediate ones, PEM. Needed by
        /// tls://, wss:// and quic://.
        certificate: Option<PathBuf> = None, example "\"/etc/punctual/server.crt\"",
            since "0.1.0", Reload;
        /// The key of the certificate, PEM, without a pass phrase.
        key: Option<PathBuf> = None, example "\"/etc/punctual/server.key\"",
            since "0.1.0", Reload;
        /// Certificates of the authorities that may vouch for clients, PEM.
        client_ca: Option<PathBuf> = None, example "\"/etc/punctual/clients.crt\"",
            since "0.1.0", Reload;
        /// Revocation lists of these authorities, PEM, one for each that issues
        /// certificates to clients. A client for whom no list speaks is refused,
        /// and so are all once the list has expired.
        client_crl: Option<PathBuf> = None, example "\"/etc/punctual/clients.crl\"",
            since "0.1.0", Reload;
        /// Whether only clients with a certificate from client_ca may connect.
        require_client_certificate: bool = false, since "0.1.0", Reload;
        /// Whether the common name of the client's certificate is its user name.
        use_identity_as_username: bool = false, since "0.1.0", Reload;
        /// The oldest version of TLS that clients may speak. QUIC has 1.3.
        tls_min_version: TlsVersion = TlsVersion::V1_2, since "0.1.0", Reload;
        /// tls:// and wss://: most bytes of content in a record that is sent. Lower
        /// it for small devices that can hold no more and do not say so; those that do
        /// (max_fragment_length, record_size_limit) get no larger ones anyway.
        tls_max_record: Size = Size::kib(16), in Size(512) => Size::kib(16),
            since "0.1.0", Reload;
        /// UDP: whether a client has to prove its address by a cookie before
        /// anything is kept for it. "off" lets clients begin with a bare CONNECT,
        /// and anybody who can forge addresses make the broker send to others:
        /// only for networks where nobody can. QUIC: the same by a Retry, which
        /// costs a round trip; "off" asks for it only while many handshakes of
        /// unproven addresses are under way, and is safe.
        cookie: Cookie = Cookie::Required, since "0.1.0", Restart;
        /// UDP: whether every datagram has to have a token, so that nobody can
        /// forge datagrams of a session whose beginning he has not seen. "client":
        /// of clients that ask for it. "required": of all.
        seal: Seal = Seal::Client, since "0.1.0", Restart;
        /// UDP: largest datagram. Larger packets cannot be sent or received.
        /// "auto": 1472 bytes with IPv4 and 1452 with IPv6, which Ethernet carries
        /// in one piece.
        max_datagram: Auto<Size> = Auto::Auto, in Size(256) => Size(65_507),
            since "0.1.0", Restart;
        /// UDP: rate of the link that datagrams leave by. Sending is paced to it,
        /// so that what waits, waits where urgent messages overtake it.
        rate: Limit<Rate> = Limit::Unlimited, in Rate(64_000) => Rate(400_000_000_000),
            since "0.1.0", Restart;
        /// UDP and QUIC: how much the system may hold back of each traffic class
        /// before the broker does.
        send_buffer: Size = Size::kib(16), in Size::kib(4) => Size::mib(64),
            since "0.1.0", Restart;
        /// UDP: silence after which a client without keep-alive is gone. QUIC:
        /// silence after which any client is gone; it is asked for a sign of life
        /// three times in that time.
        idle_timeout: Duration = seconds(300), in seconds(1) => days(365),
            since "0.1.0", Restart;
    }
}

section! {
    /// The process as a whole.
    Server ["server"] {
        /// Number of threads that serve clients. "auto": one for each CPU that
        /// the process may use.
        shards: Auto<u16> = Auto::Auto, in 1 => 256, since "0.1.0", Restart;
        /// Whether these threads get a CPU each, SCHED_FIFO and locked memory, as
        /// section realtime says, and those that decide about flows the priority
        /// below theirs. Without the privilege a warning is logged and work goes on.
        realtime: bool = false, since "0.1.0", Restart;
        /// Whether the program's code is moved into huge pages, of 2 MiB. Messages
        /// that come seldom are handled sooner, by a microsecond or two in a virtual
        /// machine; it takes up to 14 MiB of memory, and profilers do not find the
        /// names of functions. "auto": where deadlines are promised (section
        /// admission), the broker is in a mesh, or realtime is on.
        huge_pages: Auto<bool> = Auto::Auto, since "0.1.0", Restart;
        /// Directory for what is to outlive the process: sessions, messages that
        /// wait for them, retained messages (section store). It is made if there is
        /// none, and belongs to one broker. Without it nothing outlives the process.
        data: Option<PathBuf> = None, example "\"/var/lib/punctual\"", since "0.1.0", Restart;
        /// Address of the HTTP interface (/healthz, /readyz, /metrics, /api/v1), or a
        /// Unix socket, where root and the user that runs the broker may do everything.
        http: Switch<HttpAddress> = Switch::On(HttpAddress::Tcp(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::LOCALHOST), 8080))), since "0.1.0", Restart;
        /// "required": what shows clients, topics or payloads takes the role `read`,
        /// what ends clients or flows `operate`, what changes the broker `administer`.
        /// "off": everybody who reaches the interface may do everything; only on a
        /// loopback address or a Unix socket.
        http_auth: HttpAuth = HttpAuth::Required, since "0.1.0", Restart;
        /// File with tokens of the HTTP interface, one `role token` a line. It is made
        /// with random tokens if there is none. Without the key: `http-tokens` in the
        /// directory `data`; without that `http-tokens` in $RUNTIME_DIRECTORY, or
        /// `punctual/http-tokens` in $XDG_RUNTIME_DIR or, for root, in /run. Nobody
        /// but its owner, root or the user that runs the broker, may write it.
        http_token_file: Option<PathBuf> = None, example "\"/etc/punctual/http-tokens\"",
            since "0.1.0", Restart;
        /// Whether health (/healthz, /readyz), /metrics without flows, and the
        /// description of the interface are there without credentials. "auto": where
        /// the interface is on a loopback address or a Unix socket.
        http_open: Auto<bool> = Auto::Auto, since "0.1.0", Restart;
        /// Names, without port, under which the HTTP interface may be asked
        /// besides IP addresses and localhost. Others are refused, so that web
        /// pages cannot reach it through a name of their own (DNS rebinding).
        http_names: Option<Vec<String>> = None,
            example "[\"broker.example\"]", since "0.1.0", Restart;
        /// How often the $SYS topics are published.
        sys_interval: Switch<Duration> = Switch::On(seconds(10)),
            in seconds(1) => days(1), since "0.1.0", Restart;
        /// How long a client may take for the handshakes of TLS and WebSocket, and
        /// as long again to the end of its CONNECT packet.
        connect_timeout: Duration = seconds(10), in millis(100) => seconds(600),
            since "0.1.0", Reload;
        /// Largest number of connections of one thread that have not completed
        /// CONNECT, and of those in handshakes. Past it the oldest of them is
        /// closed.
        max_half_open: u32 = 4096, in 1 => 1_000_000, since "0.1.0", Reload;
        /// Largest number of connections that are accepted in one second. The
        /// others wait in the system's queue.
        accept_rate: Limit<u32> = Limit::At(10_000), in 1 => 1_000_000, since "0.1.0", Reload;
        /// How late a thread's event loop may be before the server counts as
        /// overloaded and lets new connections wait.
        max_drift: Limit<Duration> = Limit::At(seconds(1)), in millis(1) => seconds(60),
            since "0.1.0", Reload;
        /// How long a thread does other work before it looks whether clients that
        /// send something urgent have done so, and serves them first. The piece of
        /// work that was begun by then is not interrupted.
        slice: Duration = micros(100), in micros(20) => millis(10), since "0.1.0", Restart;
        /// How long clients may take to receive what is left for them when the
        /// server stops.
        shutdown_timeout: Duration = seconds(5), in millis(0) => seconds(600),
            since "0.1.0", Restart;
    }
}

section! {
    /// Who may connect, and what they may publish and subscribe to.
    Auth ["auth"] {
        /// User names and password hashes, in the format of Mosquitto ($6$, $7$
        /// and $argon2id$). `punctual passwd` writes it.
        password_file: Option<PathBuf> = None, example "\"/etc/punctual/passwd\"",
            since "0.1.0", Reload;
        /// Rights by user and topic, in the format of Mosquitto (user, topic,
        /// pattern). Without it every client may use every topic.
        acl_file: Option<PathBuf> = None, example "\"/etc/punctual/acl\"",
            since "0.1.0", Reload;
        /// Which client identifiers a user may use. "owner": any, unless there is a
        /// session of another user with it. "user": the user name alone. "prefix":
        /// the user name, alone or followed by a colon and anything else. "any": a
        /// session of another user ends, with all messages that wait in it. Clients
        /// without a user name count as one user, and with "user" and "prefix" use
        /// identifiers that are assigned to them. Others are refused (reason 0x85,
        /// Client Identifier not valid).
        client_id: IdentifierRule = IdentifierRule::Owner, since "0.1.0", Reload;
        /// Whether retained messages are kept from new subscribers once the client
        /// that published them has lost the right to their topic (acl_file). It
        /// does not concern what other brokers of a mesh have taken in.
        check_retain_source: bool = true, since "0.1.0", Reload;
    }
}

section! {
    /// How much clients may use. What does not fit is refused with the reason
    /// code that MQTT has for it, and counted.
    Limits ["limits"] {
        /// Largest packet that a client may send, its header included. A larger
        /// one ends the connection (reason 0x95, Packet too large).
        max_packet_size: Size = Size::mib(16), in Size(64) => LARGEST_PACKET,
            since "0.1.0", Reload;
        /// Largest CONNECT packet, the will included.
        max_connect_size: Size = Size::kib(256), in Size(64) => LARGEST_PACKET,
            since "0.1.0", Reload;
        /// Largest size of the incomplete packets of all clients together. A
        /// client that adds to them beyond it is disconnected.
        max_receive_bytes: Size = Size::mib(256), in Size::mib(1) => MUCH,
            since "0.1.0", Restart;
        /// Largest number of clients that are connected at one time, on all
        /// listeners together.
        max_connections: Limit<u32> = Limit::At(100_000), in 1 => 16_000_000,
            since "0.1.0", Reload;
        /// Largest number of sessions, connected or not.
        max_sessions: Limit<u32> = Limit::At(100_000), in 1 => 16_000_000,
            since "0.1.0", Reload;
        /// Longest time that a session is kept after its client has gone. A
        /// client that asks for more gets this, and with MQTT 5 is told so.
        max_session_expiry: Limit<Duration> = Limit::At(days(7)),
            in seconds(1) => days(36_500), since "0.1.0", Reload;
        /// Longest keep-alive. An MQTT 5 client that asks for more, or for none,
        /// is told to use this.
        max_keep_alive: Limit<Duration> = Limit::Unlimited,
            in seconds(1) => seconds(65_535), since "0.1.0", Reload;
        /// Largest number of subscriptions of all sessions together.
        max_subscriptions: Limit<u32> = Limit::At(1_000_000), in 1 => 100_000_000,
            since "0.1.0", Reload;
        /// Largest number of subscriptions of one session.
        max_subscriptions_per_session: Limit<u32> = Limit::At(10_000), in 1 => 100_000_000,
            since "0.1.0", Reload;
        /// Largest size of the filters of one session, in bytes of text.
        max_subscription_bytes_per_session: Limit<Size> = Limit::At(Size::mib(4)),
            in Size(1) => MUCH, since "0.1.0", Reload;
        /// Largest size of the filters of all sessions together.
        max_subscription_bytes: Limit<Size> = Limit::At(Size::mib(256)), in Size(1) => MUCH,
            since "0.1.0", Reload;
        /// Largest will: topic, properties and payload. A client with a larger one is
        /// refused (0x97, Quota exceeded).
        max_will_size: Limit<Size> = Limit::At(Size::kib(64)), in Size(1) => MUCH,
            since "0.1.0", Reload;
        /// Largest size of the wills of all clients together. A client whose will does
        /// not fit is refused (0x97, Quota exceeded).
        max_will_bytes: Limit<Size> = Limit::At(Size::mib(64)), in Size(1) => MUCH,
            since "0.1.0", Reload;
        /// Largest number of levels of a topic or a topic filter.
        max_topic_levels: u16 = 128, in 1 => MOST_LEVELS, since "0.1.0", Reload;
        /// Longest topic or topic filter.
        max_topic_length: Size = Size(65_535), in Size(1) => Size(65_535),
            since "0.1.0", Reload;
        /// Largest number of QoS 1 and 2 messages that wait for one session,
        /// those in flight not counted. For a neighbour in a mesh that takes only
        /// little of some, half as many may wait beside them.
        max_queued_messages: Limit<u32> = Limit::At(10_000), in 1 => 100_000_000,
            since "0.1.0", Reload;
        /// Largest size of the messages that wait for one session.
        max_queued_bytes: Limit<Size> = Limit::At(Size::mib(64)), in Size(1) => MUCH,
            since "0.1.0", Reload;
        /// Largest size of the messages that wait for all sessions together. A
        /// message counts once for each session that it waits for.
        max_total_queued_bytes: Limit<Size> = Limit::At(Size::gib(1)), in Size(1) => MUCH,
            since "0.1.0", Reload;
        /// Largest number of QoS 1 and 2 messages on their way to one client. A
        /// client may ask for less.
        max_inflight: u16 = 1_000, in 1 => 65_535, since "0.1.0", Reload;
        /// Receive Maximum: largest number of QoS 1 and 2 messages on their way
        /// from one client. MQTT 5 clients are told it.
        receive_maximum: u16 = 1_000, in 1 => 65_535, since "0.1.0", Reload;
        /// Largest number of topic aliases that one client may use, and that are
        /// used towards it where it allows them. With 0 there are none.
        topic_alias_maximum: u16 = 64, in 0 => 65_535, since "0.1.0", Reload;
        /// Largest number of retained messages.
        max_retained_messages: Limit<u32> = Limit::At(1_000_000), in 1 => 100_000_000,
            since "0.1.0", Reload;
        /// Largest size of all retained messages together.
        max_retained_bytes: Limit<Size> = Limit::At(Size::gib(1)), in Size(1) => MUCH,
            since "0.1.0", Reload;
        /// Number of topics whose messages are numbered for one session that asks for
        /// it (rt-sequence). Past it all of them are numbered anew, by other sources.
        max_numbered_topics: u32 = 1_024, in 1 => 1_000_000, since "0.1.0", Reload;
        /// Largest number of user properties of one packet.
        max_user_properties: Limit<u32> = Limit::At(1_000), in 1 => 100_000_000,
            since "0.1.0", Reload;
        /// Number of topics whose subscribers each thread remembers, so that it
        /// need not look for them again. With admission the memory for that is taken
        /// at the start, about 200 bytes for each.
        topic_cache: u32 = 65_536, in 1 => 16_000_000, since "0.1.0", Restart;
    }
}

section! {
    /// Which parts of MQTT clients may use, and what they are told.
    Mqtt ["mqtt"] {
        /// Highest quality of service that clients may publish or subscribe with.
        maximum_qos: u8 = 2, in 0 => 2, since "0.1.0", Reload;
        /// Whether clients may have messages retained.
        retain: bool = true, since "0.1.0", Reload;
        /// Whether clients may subscribe with + and #.
        wildcard_subscriptions: bool = true, since "0.1.0", Reload;
        /// Whether clients may share subscriptions ($share/...).
        shared_subscriptions: bool = true, since "0.1.0", Reload;
        /// Whether clients may give their subscriptions identifiers.
        subscription_identifiers: bool = true, since "0.1.0", Reload;
        /// Whether a client may leave its id empty and be given one.
        empty_client_id: bool = true, since "0.1.0", Reload;
        /// Keep-alive that MQTT 5 clients are told to use in place of their own.
        keep_alive: Option<Duration> = None, in seconds(1) => seconds(65_535),
            example "\"60s\"", since "0.1.0", Reload;
        /// Answer to clients that ask for response information; %c stands for
        /// the client's id.
        response_information: Option<String> = None, example "\"reply/%c\"",
            since "0.1.0", Reload;
    }
}

section! {
    /// What happens to messages for clients that are slow or away.
    Queue ["queue"] {
        /// When the queue of a session is full (limits.max_queued_messages and
        /// limits.max_queued_bytes). "drop-oldest": its oldest messages make room,
        /// "drop-new": it does not get the new one; what is dropped is counted and
        /// its client told, and nobody else notices. "refuse": the publisher is
        /// refused (reason 0x97, Quota exceeded; before MQTT 5 its connection is
        /// closed), so that nothing acknowledged is dropped: one client that stays
        /// away stops all who publish to it. "hold": as "refuse", but publishers
        /// wait first while the client is connected, for max_hold at most.
        /// "disconnect": the session that does not keep up is ended.
        full: WhenFull = WhenFull::DropOldest, since "0.1.0", Reload;
        /// The same for messages by topic; the first rule whose filter matches
        /// applies: "order/#: refuse", "log/#: drop-new".
        rules: Vec<QueueRule> = Vec::new(), since "0.1.0", Reload;
        /// The same for sessions by client id, whatever the topic; a * at the end
        /// stands for the rest of the id: "history: refuse", "panel-*: drop-new". A
        /// change applies when the client connects. Who may use such an id may stop
        /// publishers with "refuse" and "hold": see auth.client_id.
        sessions: Vec<SessionRule> = Vec::new(), since "0.1.0", Reload;
        /// Longest time for which "hold" makes publishers wait for a client whose
        /// queue is half full. After that what it has no room for is refused until
        /// it has caught up.
        max_hold: Duration = seconds(30), in millis(0) => seconds(3600),
            since "0.1.0", Reload;
        /// Per cent of limits.max_queued_messages, max_queued_bytes and
        /// max_total_queued_bytes that only urgent messages may fill (classes
        /// realtime and priority), so that a session full of others does not have
        /// them refused. Rounded down.
        urgent_reserve: u8 = 10, in 0 => 50, since "0.1.0", Reload;
        /// Whether QoS 0 messages wait for persistent sessions whose client is
        /// away.
        qos0_offline: bool = false, since "0.1.0", Reload;
        /// Longest time for which a publisher is held back by a subscriber that
        /// does not keep up. After that the subscriber counts as slow until it
        /// has caught up, and `full` applies.
        max_publisher_pause: Duration = millis(100), in millis(0) => seconds(60),
            since "0.1.0", Reload;
        /// How much may wait to be written to one connection before those that
        /// publish to it are held back.
        send_buffer: Size = Size::mib(1), in Size::kib(4) => Size::gib(1),
            since "0.1.0", Reload;
    }
}

section! {
    /// What is kept out of the kernel's buffers of TCP connections, where nothing
    /// can overtake any more, so that it waits in the broker, where it can. Nagle's
    /// algorithm is always off.
    Tcp ["tcp"] {
        /// How much every connection may hand to the kernel ahead of what the
        /// network takes. "off": as much as the send buffer has room for, which
        /// Linux lets grow to megabytes.
        notsent_lowat: Switch<Size> = Switch::On(Size::kib(128)), in Size::kib(4) => Size::gib(1),
            since "0.1.0", Restart;
        /// The same for connections that have been sent an urgent message (classes
        /// real time and priority). An urgent message waits at most for this much
        /// of what was sent to the same client before it.
        urgent_notsent_lowat: Switch<Size> = Switch::On(Size::kib(16)),
            in Size::kib(4) => Size::gib(1), since "0.1.0", Restart;
        /// Send buffer of these connections: what is unsent or unacknowledged. A
        /// small one also keeps the queues of slow devices and switches short, and
        /// limits throughput to its size in each round trip. "auto": Linux adapts
        /// it to the path.
        urgent_send_buffer: Auto<Size> = Auto::Auto, in Size::kib(4) => Size::gib(1),
            since "0.1.0", Restart;
        /// How long sent bytes may stay unacknowledged before the connection is
        /// given up. "off": as long as the system tries, about 15 minutes, unless
        /// keep-alive ends it earlier.
        user_timeout: Switch<Duration> = Switch::Off, in seconds(1) => days(1),
            since "0.1.0", Restart;
    }
}

section! {
    /// What the packets of each traffic class carry: the DSCP in the IP header, for
    /// switches and routers, and the SO_PRIORITY, for the queues of this host. Real
    /// time: messages with rt-priority or rt-deadline. Priority: messages with
    /// priority. Bulk: topics that a rule calls bulk. A TCP connection is marked with
    /// the most urgent class that it has been sent.
    Marking ["marking"] {
        /// Whether anything is marked.
        enabled: bool = true, since "0.1.0", Restart;
        /// DSCP of real time.
        dscp_realtime: Dscp = Dscp::EF, since "0.1.0", Restart;
        /// DSCP of priority.
        dscp_priority: Dscp = Dscp::CS5, since "0.1.0", Restart;
        /// DSCP of everything else, of answers to new connections as well.
        dscp_normal: Dscp = Dscp::CS0, since "0.1.0", Restart;
        /// DSCP of bulk. "LE" lets a network that knows it send everything else
        /// first.
        dscp_bulk: Dscp = Dscp::CS0, since "0.1.0", Restart;
        /// SO_PRIORITY of real time. Linux' default queue sends 6 and 7 first, then
        /// 0 and 4, then 1, 2, 3 and 5. More than 6 needs CAP_NET_ADMIN.
        so_priority_realtime: u8 = 6, in 0 => MOST_PRIORITY, since "0.1.0", Restart;
        /// SO_PRIORITY of priority.
        so_priority_priority: u8 = 6, in 0 => MOST_PRIORITY, since "0.1.0", Restart;
        /// SO_PRIORITY of everything else.
        so_priority_normal: u8 = 0, in 0 => MOST_PRIORITY, since "0.1.0", Restart;
        /// SO_PRIORITY of bulk.
        so_priority_bulk: u8 = 2, in 0 => MOST_PRIORITY, since "0.1.0", Restart;
    }
}

section! {
    /// What server.realtime (--realtime) gives the threads that serve clients, and
    /// with it all memory of the process locked. What lacks a privilege is skipped
    /// with a warning that names the privilege.
    Realtime ["realtime"] {
        /// SCHED_FIFO priority. Interrupt threads of the kernel have 50.
        priority: u8 = 40, in 1 => 98, since "0.1.0", Restart;
        /// Whether each thread is bound to a CPU of its own.
        pin: bool = true, since "0.1.0", Restart;
        /// Memory of each thread that is there before it is needed.
        heap: Size = Size::mib(16), in Size(0) => Size::mib(48), since "0.1.0", Restart;
        /// How long a thread looks for the next message without sleeping, after
        /// the last one. It saves the time of waking up, and costs the CPU: give
        /// the broker CPUs that nobody else uses.
        busy_poll: Switch<Duration> = Switch::Off, in micros(1) => millis(1),
            since "0.1.0", Restart;
        /// How long a CPU of the machine that has nothing to do may take to wake
        /// up, asked of the kernel (PM QoS) while the broker runs: CPUs do not
        /// sleep more deeply than that, and at 0 not at all, which costs power.
        cpu_latency: Switch<Duration> = Switch::On(micros(0)), in micros(0) => millis(10),
            since "0.1.0", Restart;
    }
}

section! {
    /// In which order messages are sent. Messages with a real-time requirement
    /// (user properties rt-priority, rt-deadline) go first, then those with a
    /// priority (user property priority, 0 most urgent), then plain ones, then
    /// bulk.
    Egress ["egress"] {
        /// Order of messages with a real-time requirement. "fixed-priority": by
        /// rt-priority, then by deadline. "edf": by deadline. "fifo": every
        /// message in the order of arrival, whatever is stated.
        policy: EgressPolicy = EgressPolicy::FixedPriority, since "0.1.0", Restart;
        /// Urgency of messages whose publisher states none, by topic; the first
        /// rule whose filter matches applies. Requirements as in user
        /// properties, where rt- may be left out: "alarm/#: priority=0",
        /// "axis/+/set: rt-priority=7, deadline=2ms"; or "log/#: bulk".
        rules: Vec<Rule> = Vec::new(), since "0.1.0", Reload;
        /// Least part, in per cent, of what one client is sent that messages
        /// with a priority get while messages with a requirement wait. The
        /// three shares are at most 50 together.
        min_share_priority: u8 = 10, in 0 => 50, since "0.1.0", Reload;
        /// The same for plain messages.
        min_share_normal: u8 = 5, in 0 => 50, since "0.1.0", Reload;
        /// The same for bulk.
        min_share_bulk: u8 = 1, in 0 => 50, since "0.1.0", Reload;
        /// Largest number of QoS 0 messages with a priority or a requirement
        /// that wait for one connection. Those with QoS 1 and 2 have the bounds
        /// of the session.
        max_waiting_messages: u32 = 10_000, in 1 => 16_000_000, since "0.1.0", Reload;
        /// Largest size of these messages.
        max_waiting_bytes: Size = Size::mib(4), in Size::kib(1) => MUCH, since "0.1.0", Reload;
        /// Of `max_waiting_messages`, the largest number that have a priority but no
        /// requirement (lane 1). Those with a requirement (lane 0) may have all.
        /// A number above that sets no bound of its own.
        max_priority_messages: u32 = 10_000, in 1 => 16_000_000, since "0.1.0", Reload;
        /// The same for `max_waiting_bytes`.
        max_priority_bytes: Size = Size::mib(4), in Size::kib(1) => MUCH, since "0.1.0", Reload;
        /// Which of them goes when there are more. A message never goes while
        /// one of lower priority stays. "evict-oldest": the oldest of the lowest
        /// priority. "refuse-new": the new one, unless others are lower.
        overflow: EgressOverflow = EgressOverflow::EvictOldest, since "0.1.0", Reload;
        /// Where a message with a priority or a requirement waits for its
        /// receivers. "per-receiver": an entry for each, in a queue of its own.
        /// "shared": one entry with the set of its receivers, in a queue of the
        /// shard. Everyone is sent the same in the same order; docs/urgency.md
        /// has what each costs.
        enqueue: EgressEnqueue = EgressEnqueue::PerReceiver, since "0.1.0", Reload;
    }
}

section! {
    /// Whether deadlines are promised. With it, only flows whose deadline is met in
    /// the worst case go before everything else, clients are told which are, and
    /// flows are held to what they declared. See docs/admission.md.
    Admission ["admission"] {
        /// Whether flows are admitted. Off: every message that states a real-time
        /// requirement goes first, and nothing is promised.
        enabled: bool = false, since "0.1.0", Restart;
        /// File with the network, TOML or JSON: nodes, links, and flows that are
        /// there anyway. Without it every host and the broker have a link of their
        /// own to one switch, as access_rate, broker_rate and switch_delay say.
        network: Option<PathBuf> = None, example "\"/etc/punctual/network.toml\"",
            since "0.1.0", Restart;
        /// The broker's node in that file.
        broker_node: String = "broker".into(), since "0.1.0", Restart;
        /// Where clients are in the network; the first that matches counts:
        /// "client press-*: h1", "user line2: h2", "address 10.0.1.0/24: h3".
        /// Others are at the node with their client id or address as a name.
        places: Vec<PlaceRule> = Vec::new(), since "0.1.0", Restart;
        /// Without a network file: rate of the hosts' links.
        access_rate: Rate = Rate(100_000_000), in Rate(1_000) => Rate(400_000_000_000),
            since "0.1.0", Restart;
        /// Without a network file: rate of the broker's link.
        broker_rate: Rate = Rate(1_000_000_000), in Rate(1_000) => Rate(400_000_000_000),
            since "0.1.0", Restart;
        /// Without a network file: longest delay of the switch.
        switch_delay: Duration = micros(10), in micros(0) => seconds(1), since "0.1.0", Restart;
        /// Longest time that the broker works on a message, its own part of every
        /// bound. `punctual calibrate` measures these three on this machine.
        receive_time: Duration = micros(100), in micros(1) => seconds(1), since "0.1.0", Restart;
        /// And for each receiver of it.
        send_time: Duration = micros(50), in micros(0) => seconds(1), since "0.1.0", Restart;
        /// Longest time for which something that is not urgent keeps it from an
        /// urgent message.
        blocking_time: Duration = micros(500), in micros(0) => seconds(1), since "0.1.0", Restart;
        /// Payload of an Ethernet frame.
        mtu: u16 = 1500, in 576 => 9216, since "0.1.0", Restart;
        /// Rate that rt-transmission-time refers to.
        reference_rate: Rate = Rate(100_000_000), in Rate(1_000) => Rate(400_000_000_000),
            since "0.1.0", Restart;
        /// How far publishers' clocks may be wrong, in millionths: their periods
        /// count as that much shorter.
        clock_error: u32 = 200, in 0 => 100_000, since "0.1.0", Restart;
        /// Lowest rt-priority that is given to flows that state none, by their
        /// deadline.
        lowest_priority: u8 = 0, in 0 => 7, since "0.1.0", Restart;
        /// Highest such priority.
        highest_priority: u8 = 7, in 0 => 7, since "0.1.0", Restart;
        /// What happens to messages whose requirement is rejected. "best-effort":
        /// they go with the plain messages. "refuse": they are refused (reason
        /// 0x97, Quota exceeded; with QoS 0 and before MQTT 5 dropped).
        rejected: Rejected = Rejected::BestEffort, since "0.1.0", Restart;
        /// What happens to messages of an admitted flow that come sooner than its
        /// rt-period or are larger than its rt-size. "demote": they go with the
        /// plain messages. "shape": those that are too early wait, and their
        /// publisher with them. "drop": they are dropped and refused (0x97).
        /// "off": they are counted.
        policing: PolicingAction = PolicingAction::Demote, since "0.1.0", Restart;
        /// Largest number of admitted flows.
        max_flows: u32 = 10_000, in 1 => 1_000_000, since "0.1.0", Restart;
        /// Largest number of flows of one session, admitted or not.
        max_flows_per_session: u32 = 1_000, in 1 => 1_000_000, since "0.1.0", Restart;
        /// Largest number of admitted flows of all clients of one user, or of all without
        /// a proven user name at one address. max-flows in an rt line of the ACL file comes before it.
        max_flows_per_user: u32 = 1_000, in 1 => 1_000_000, since "0.1.0", Restart;
        /// Per cent of the time of a thread that admitted flows of all clients of one
        /// user, or of all without a proven user name at one address, may need, so that
        /// nobody has all of it: in the long run, and within the deadline of each flow (or a shorter one
        /// that its rt-priority is meant for) for those that are as urgent. With 100 there
        /// is no such limit. A user with max-flows or max-bandwidth in an rt line of the
        /// ACL file has what that says instead.
        max_user_load: u8 = 50, in 1 => 100, since "0.1.0", Restart;
        /// How long a client may be away before its flows are given up. It asks for them
        /// again when it comes back and publishes.
        absent_after: Duration = seconds(60), in seconds(1) => days(365),
            since "0.1.0", Restart;
        /// File in which flows and subscriptions are kept over a restart. Without
        /// it, flows.json in server.data if there is that.
        file: Option<PathBuf> = None, example "\"/var/lib/punctual/flows.json\"",
            since "0.1.0", Restart;
        /// How long after a restart flows are kept for clients that have not
        /// connected again.
        keep: Duration = seconds(300), in seconds(1) => days(365), since "0.1.0", Restart;
        /// Let the controller of the network decide (docs/srt.md): servers of its
        /// table, with commas: unix:PATH, tcp:HOST:PORT, ssl:HOST:PORT. What is
        /// said above of the network does not count then.
        srt: Option<String> = None, example "\"ssl:10.0.0.1:6642,ssl:10.0.0.2:6642\"",
            since "0.1.0", Restart;
        /// Name of this broker or manager in the table, one for each; with ssl: the
        /// common name of its certificate.
        srt_name: String = "punctual".into(), since "0.1.0", Restart;
        /// Authority (PEM) that signed the certificates of the servers of the table.
        srt_ca: Option<PathBuf> = None, example "\"/etc/punctual/srt-ca.pem\"",
            since "0.1.0", Restart;
        /// Certificate (PEM) that is shown to them.
        srt_certificate: Option<PathBuf> = None, example "\"/etc/punctual/srt.pem\"",
            since "0.1.0", Restart;
        /// Key (PEM) of that certificate.
        srt_key: Option<PathBuf> = None, example "\"/etc/punctual/srt-key.pem\"",
            since "0.1.0", Restart;
        /// Whether certificates of the servers may name another host.
        srt_any_name: bool = false, since "0.1.0", Restart;
        /// How long the controller is waited for, and in `punctual manager` any
        /// decision. Then the flow is best effort, and the decision follows.
        decision_timeout: Duration = seconds(1), in millis(1) => seconds(60),
            since "0.1.0", Restart;
    }
}

section! {
    /// What survives the process, in the directory server.data (--data). Without
    /// one nothing does. See docs/store.md.
    Store ["store"] {
        /// What is promised about sessions that outlive their connections, messages
        /// with QoS 1 and 2 for them, and retained messages. "batched": they are
        /// acknowledged when they are on disk, many with one write. "sync": the
        /// same, and no write waits for more. "none": they end with the process.
        durability: Durable = Durable::Batched, since "0.1.0", Reload;
        /// The same for messages by topic; the first rule whose filter matches
        /// applies: "log/#: none", "order/#: sync".
        rules: Vec<DurableRule> = Vec::new(), since "0.1.0", Reload;
        /// How long a write waits for more, at most; no longer than writes take lately.
        /// Messages that receivers acknowledge within 16 times as long need not be
        /// written; with 0 none waits for that.
        group_delay: Duration = millis(1), in micros(0) => seconds(1), since "0.1.0", Restart;
        /// Bytes after which it does not wait. Publishers of messages that are
        /// stored wait when so much of one thread is not on disk.
        group_bytes: Size = Size::mib(1), in Size::kib(4) => Size::gib(1), since "0.1.0", Restart;
        /// Largest size of what is stored. Past it, and when the disk is full,
        /// messages that would have to be stored are refused (reason 0x97, Quota
        /// exceeded; before MQTT 5 the connection ends); what is on its way by then
        /// is taken. The disk may take twice as much for a while.
        max_bytes: Size = Size::gib(8), in Size::mib(1) => MUCH, since "0.1.0", Restart;
    }
}

section! {
    /// The broker as one of a mesh: brokers that are connected to each other in any
    /// way form one system, over one tree of their connections. See
    /// docs/federation.md.
    Mesh ["mesh"] {
        /// Whether it is. Brokers may then connect here that know the secret in
        /// mesh.secret_file, or whose user has a line `broker` in auth.acl_file.
        enabled: bool = false, since "0.1.0", Restart;
        /// Name of this broker, different from those of all others. Without it, the
        /// name of the host.
        id: Option<String> = None, example "\"berlin-1\"", since "0.1.0", Restart;
        /// Brokers to connect to: host and port, and how their distance counts if
        /// not as it is measured. A low weight attracts: "gate:1883 weight=0.2". With
        /// TLS: "tls://gate:8883".
        neighbours: Vec<Neighbour> = Vec::new(), since "0.1.0", Restart;
        /// File with a secret in its first line, of 16 to 1024 bytes: brokers that know
        /// it may connect here, and this broker presents it to neighbours if mesh.user
        /// is not set. Only this user should be able to read the file. The secret is
        /// sent as it is, so to other machines by TLS only (see `clear_password`).
        secret_file: Option<PathBuf> = None, example "\"/etc/punctual/mesh.secret\"",
            since "0.1.0", Restart;
        /// User name that it connects with.
        user: Option<String> = None, example "\"broker\"", since "0.1.0", Restart;
        /// File with the password in its first line. It is sent to neighbours of this
        /// section, of `neighbours_file`, and those that an administrator adds.
        password_file: Option<PathBuf> = None, example "\"/etc/punctual/mesh.password\"",
            since "0.1.0", Restart;
        /// Whether the secret or the password may be sent without TLS to a host that is
        /// not this machine, where everybody on the way reads it. Otherwise such
        /// neighbours are not connected.
        clear_password: bool = false, since "0.1.0", Restart;
        /// Certificates of the authorities that signed those of neighbours which are
        /// connected by TLS (PEM).
        ca_file: Option<PathBuf> = None, example "\"/etc/punctual/mesh-ca.pem\"",
            since "0.1.0", Restart;
        /// Certificate with which this broker connects, for neighbours that want
        /// one (PEM).
        cert_file: Option<PathBuf> = None, example "\"/etc/punctual/mesh.pem\"",
            since "0.1.0", Restart;
        /// The certificate's private key (PEM).
        key_file: Option<PathBuf> = None, example "\"/etc/punctual/mesh.key\"",
            since "0.1.0", Restart;
        /// File that keeps neighbours which are added at run time, one a line, for the
        /// next start. Without it they are forgotten then.
        neighbours_file: Option<PathBuf> = None,
            example "\"/var/lib/punctual/neighbours\"", since "0.1.0", Restart;
        /// File with `connection` sections as in mosquitto.conf: bridges to brokers
        /// that are not of the mesh. It works without `enabled`, too.
        bridges: Option<PathBuf> = None, example "\"/etc/mosquitto/mosquitto.conf\"",
            since "0.1.0", Restart;
        /// Over which connections messages go; the same in all brokers.
        /// "subscription-table": those behind which somebody has subscribed.
        /// "flooding": all of the tree. "root-relay": up to the root, and from there
        /// down all of the tree, as a measure to compare with.
        strategy: MeshStrategy = MeshStrategy::SubscriptionTable, since "0.1.0", Restart;
        /// Time between two messages that keep the tree. A neighbour from which
        /// nothing is heard for two and a half times as long is lost.
        hello: Duration = seconds(2), in millis(50) => seconds(60), since "0.1.0", Restart;
        /// By how many per cent another way to the root has to be shorter to be
        /// taken.
        hysteresis: u8 = 25, in 0 => 90, since "0.1.0", Restart;
        /// How long all messages for a neighbour that was lost are kept for another way, or
        /// until it is back, and publishers of what has no room are held or refused.
        heal: Duration = seconds(10), in seconds(1) => days(1), since "0.1.0", Restart;
        /// How long those are kept that persistent sessions at brokers which are away
        /// for longer than `heal` are to get (Session Expiry Interval above 0, QoS 1
        /// and 2). What has no room meanwhile is dropped and counted. With a value
        /// below that of `heal` nothing is kept after that.
        keep: Duration = days(1), in Duration::ZERO => days(365), since "0.1.0", Restart;
        /// Largest number of messages that are kept so for one neighbour, if it is
        /// more than limits.max_queued_messages. Their bytes are bounded by
        /// limits.max_queued_bytes.
        max_kept_messages: Limit<u32> = Limit::At(100_000), in 1 => 100_000_000,
            since "0.1.0", Restart;
        /// How long a broker is lost before others publish the wills of its clients,
        /// unless these have connected elsewhere. A longer delay of a will counts.
        will_wait: Duration = seconds(10), in seconds(1) => days(1), since "0.1.0", Restart;
        /// Bytes of wills that are kept for other brokers.
        max_will_bytes: Size = Size::mib(64), in Size(0) => MUCH, since "0.1.0", Restart;
        /// How long a broker that starts refuses clients while it has not joined the mesh: while
        /// it is not attached to the tree and does not know what its neighbours want. After that
        /// it lets them in; publications with QoS 1 and 2 are refused while it has reached none
        /// of the neighbours that are named and has nothing in its store that is kept for any.
        /// "0s": it serves at once, and acknowledges what it may not be able to hand on.
        join_wait: Duration = seconds(3), in Duration::ZERO => seconds(600), since "0.1.0", Restart;
        /// How long a client that connects waits until other brokers have said what they
        /// have of it, and then until something of its session comes from one of them.
        /// Then it is refused, and tries again.
        session_wait: Duration = millis(500), in millis(10) => seconds(60), since "0.1.0", Restart;
        /// Worth of a MiB of memory. The broker with the highest capacity becomes
        /// root: alpha times memory, beta times processors, and gamma.
        alpha: u32 = 1, in 0 => 1_000_000, since "0.1.0", Restart;
        /// Worth of a processor.
        beta: u32 = 1024, in 0 => 1_000_000, since "0.1.0", Restart;
        /// Worth of being this broker, for one that is to be root.
        gamma: u32 = 0, in 0 => 1_000_000_000, since "0.1.0", Restart;
        /// Topic filters that brokers may want together. A neighbour that wants more
        /// is sent everything.
        max_filters: u32 = 1_000_000, in 1 => 100_000_000, since "0.1.0", Restart;
    }
}

section! {
    /// The log. It goes to standard error, one line for each event, and never
    /// has a line for each message.
    Log ["log"] {
        /// How much: "error", "warn", "info", "debug" (clients that come and go)
        /// or "trace".
        level: LogLevel = LogLevel::Info, since "0.1.0", Reload;
        /// "text", or "json" with one object for each line.
        format: LogFormat = LogFormat::Text, since "0.1.0", Restart;
    }
}

impl Listener {
    /// The password file that holds for its clients.
    pub(crate) fn passwords<'a>(&'a self, auth: &'a Auth) -> Option<&'a Path> {
        let own = self.password_file.as_deref();
        own.or(auth.password_file.as_deref())
    }

    /// The ACL file that holds for its clients.
    pub(crate) fn rights<'a>(&'a self, auth: &'a Auth) -> Option<&'a Path> {
        self.acl_file.as_deref().or(auth.acl_file.as_deref())
    }

    /// Whether messages whose requirement is rejected are refused here, if that
    /// is stated.
    pub(crate) fn refuses(&self) -> Option<bool> {
        self.rejected.map(|rejected| rejected == Rejected::Refuse)
    }

    /// The clients that may connect here without a user name. "auto" is resolved,
    /// so the result is never [`Anonymous::Auto`].
    pub(crate) fn anonymous(&self, auth: &Auth) -> Anonymous {
        match (self.allow_anonymous, self.passwords(auth)) {
            (Anonymous::Auto, Some(_)) => Anonymous::Nobody,
            (Anonymous::Auto, None) => Anonymous::Loopback,
            (who, _) => who,
        }
    }
}
