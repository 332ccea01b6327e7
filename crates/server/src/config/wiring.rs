//! From the configuration to what the crates below are configured with.

use std::thread::available_parallelism;
use std::time::Duration;

use punctual_broker::{
    Admission as BrokerAdmission, Bound, Class, ClientIds, Config as Broker, Discipline,
    DurabilityPolicy, Enqueue, LaneLimits, Limits as BrokerLimits, Nanos, Overflow, Policing,
    QueuePolicies, Shares, UrgencyRule,
};
use punctual_manager::{Service, Settings, Star};
use punctual_model::network::Document;
use punctual_model::{Condition, Conditions};
use punctual_net::marking::{Mark, Marking};
use punctual_net::realtime::RealtimeOptions;
use punctual_net::tls::{ClientAuthority, ClientCertificates, MinimumTls, TlsServerOptions};
use punctual_net::{QuicOptions, TcpOptions, UdpOptions};
use punctual_southbound::ovsdb::{Endpoint, EndpointError, TlsOptions};
use punctual_southbound::srt::ManagerOptions;

use super::Config;
use super::address::Transport;
use super::durability::DurableRule;
use super::keys::{
    Admission, Cookie, EgressEnqueue, EgressOverflow, EgressPolicy, IdentifierRule, Listener,
    PolicingAction, Rejected, Seal, TlsVersion,
};
use super::overflow::{QueueRule, SessionRule};
use super::units::Size;
use super::value::{Auto, Limit, Switch};

/// How many times as long as groups of the store wait for more a message waits for its
/// receivers, at most.
const PATIENCE: u32 = 16;

impl Config {
    /// The broker's part. Values are in range, so nothing is cut; a number that
    /// this machine cannot count to is as good as no limit.
    #[expect(clippy::too_many_lines, reason = "one field a line")]
    pub(crate) fn broker(&self) -> Broker {
        let limits = &self.limits;
        Broker {
            limits: BrokerLimits {
                max_packet_size: bytes(limits.max_packet_size),
                max_connect_size: bytes(limits.max_connect_size),
                max_half_open: self.server.max_half_open as usize,
                max_sessions: count(limits.max_sessions),
                max_subscriptions_per_session: count(limits.max_subscriptions_per_session),
                max_subscriptions: count(limits.max_subscriptions),
                max_subscription_bytes_per_session: size(limits.max_subscription_bytes_per_session),
                max_subscription_bytes: size(limits.max_subscription_bytes),
                max_will_size: size(limits.max_will_size),
                max_will_bytes: size(limits.max_will_bytes),
                max_topic_levels: limits.max_topic_levels.into(),
                max_topic_length: number(limits.max_topic_length.0),
                max_queued_messages: count(limits.max_queued_messages),
                max_kept_messages: count(self.mesh.max_kept_messages),
                max_queued_bytes: size(limits.max_queued_bytes),
                max_total_queued_bytes: size(limits.max_total_queued_bytes),
                urgent_reserve: self.queue.urgent_reserve,
                max_inflight: limits.max_inflight,
                receive_maximum: limits.receive_maximum,
                topic_alias_maximum: limits.topic_alias_maximum,
                max_retained_messages: count(limits.max_retained_messages),
                max_retained_bytes: size(limits.max_retained_bytes),
                max_session_expiry: match limits.max_session_expiry {
                    Limit::At(longest) => whole_seconds(longest).unwrap_or(u32::MAX),
                    Limit::Unlimited => u32::MAX,
                },
                max_keep_alive: match limits.max_keep_alive {
                    Limit::At(longest) => whole_seconds(longest).unwrap_or(u16::MAX),
                    Limit::Unlimited => 0,
                },
                max_numbered_topics: number(limits.max_numbered_topics.into()),
                max_user_properties: count(limits.max_user_properties),
                send_buffer: number(self.queue.send_buffer.0),
                topic_cache: number(limits.topic_cache.into()),
            },
            queue_full: self.queue.full.into(),
            queue_policies: self.queue_policies(),
            queue_qos0_offline: self.queue.qos0_offline,
            max_publisher_pause: nanos(self.queue.max_publisher_pause),
            max_publisher_hold: nanos(self.queue.max_hold),
            sys_interval: match self.server.sys_interval {
                Switch::On(interval) => Some(nanos(interval)),
                Switch::Off => None,
            },
            connect_timeout: nanos(self.server.connect_timeout),
            maximum_qos: self.mqtt.maximum_qos,
            retain_available: self.mqtt.retain,
            check_retain_source: self.auth.check_retain_source,
            wildcard_available: self.mqtt.wildcard_subscriptions,
            shared_available: self.mqtt.shared_subscriptions,
            subscription_ids_available: self.mqtt.subscription_identifiers,
            server_keep_alive: self.mqtt.keep_alive.and_then(whole_seconds),
            assign_client_ids: self.mqtt.empty_client_id,
            client_ids: match self.auth.client_id {
                IdentifierRule::Owner => ClientIds::Owner,
                IdentifierRule::User => ClientIds::User,
                IdentifierRule::Prefix => ClientIds::Prefix,
                IdentifierRule::Any => ClientIds::Any,
            },
            response_information: self.mqtt.response_information.clone(),
            check_passwords: self.auth.password_file.is_some(),
            check_passwords_at: self.check_passwords_at(),
            discipline: match self.egress.policy {
                EgressPolicy::FixedPriority => Discipline::FixedPriority,
                EgressPolicy::Edf => Discipline::Edf,
                EgressPolicy::Fifo => Discipline::Fifo,
            },
            shares: Shares([
                // What is admitted is bounded; its bounds know no shares.
                if self.admission.enabled {
                    Shares::ALL
                } else {
                    0
                },
                10 * u16::from(self.egress.min_share_priority),
                10 * u16::from(self.egress.min_share_normal),
                10 * u16::from(self.egress.min_share_bulk),
            ]),
            lanes: LaneLimits {
                enqueue: match self.egress.enqueue {
                    EgressEnqueue::PerReceiver => Enqueue::PerReceiver,
                    EgressEnqueue::Shared => Enqueue::Shared,
                },
                urgent: Bound {
                    messages: number(self.egress.max_waiting_messages.into()),
                    bytes: number(self.egress.max_waiting_bytes.0),
                },
                priority: Bound {
                    messages: number(self.egress.max_priority_messages.into()),
                    bytes: number(self.egress.max_priority_bytes.0),
                },
                overflow: match self.egress.overflow {
                    EgressOverflow::EvictOldest => Overflow::EvictOldest,
                    EgressOverflow::RefuseNew => Overflow::RefuseNew,
                },
            },
            rules: self
                .egress
                .rules
                .iter()
                .map(|rule| UrgencyRule {
                    filter: rule.filter.clone(),
                    urgency: rule.urgency(),
                    requirements: rule.requirements(),
                })
                .collect(),
            admission: self.admission.enabled.then(|| BrokerAdmission {
                refuse: self.admission.rejected == Rejected::Refuse,
                policing: match self.admission.policing {
                    PolicingAction::Demote => Policing::Demote,
                    PolicingAction::Shape => Policing::Shape,
                    PolicingAction::Drop => Policing::Drop,
                    PolicingAction::Off => Policing::Off,
                },
                max_flows_per_session: number(self.admission.max_flows_per_session.into()),
                absent_after: nanos(self.admission.absent_after),
                conditions: self.conditions(),
            }),
            durability: self.durability(),
            ..Broker::default()
        }
    }

    /// Whether passwords are checked, for each socket that is opened; nothing where that is the
    /// same for all.
    fn check_passwords_at(&self) -> Vec<bool> {
        let own = self.listeners.iter().any(|it| it.password_file.is_some());
        let listeners = self.listeners.iter().filter(|_| own);
        let checks = listeners.flat_map(|listener| {
            let checks = listener.passwords(&self.auth).is_some();
            std::iter::repeat_n(checks, listener.sockets())
        });
        checks.collect()
    }

    /// What happens at full queues, where that is not `queue.full`.
    fn queue_policies(&self) -> QueuePolicies {
        let own = self.listeners.iter().any(|it| it.queue_full.is_some());
        let listeners = self.listeners.iter().filter(|_| own);
        QueuePolicies {
            sessions: self
                .queue
                .sessions
                .iter()
                .map(SessionRule::policy)
                .collect(),
            topics: self.queue.rules.iter().map(QueueRule::policy).collect(),
            // One for each socket that is opened.
            listeners: listeners
                .flat_map(|listener| {
                    let full = listener.queue_full.map(Into::into);
                    std::iter::repeat_n(full, listener.sockets())
                })
                .collect(),
        }
    }

    /// What survives the process, where there is a store.
    fn durability(&self) -> DurabilityPolicy {
        let own = self.listeners.iter().any(|it| it.durability.is_some());
        let listeners = self.listeners.iter().filter(|_| own);
        DurabilityPolicy {
            default: self.store.durability.into(),
            // One for each socket that is opened.
            listeners: listeners
                .flat_map(|listener| {
                    std::iter::repeat_n(listener.durability.map(Into::into), listener.sockets())
                })
                .collect(),
            rules: self.store.rules.iter().map(DurableRule::rule).collect(),
            max_uncommitted: number(self.store.group_bytes.0),
            patience: nanos(self.store.group_delay.saturating_mul(PATIENCE)),
        }
    }

    /// What bounds take for granted and this configuration does not guarantee.
    pub(crate) fn conditions(&self) -> Conditions {
        let costs = |keys: &Admission| (keys.receive_time, keys.send_time, keys.blocking_time);
        let is_shared = |listener: &Listener| {
            matches!(listener.address.transport, Transport::Udp | Transport::Quic)
        };
        let conditions = [
            (
                Condition::NotCalibrated,
                costs(&self.admission) == costs(&Admission::default()),
            ),
            (Condition::NoRealtime, self.realtime().is_none()),
            (
                Condition::SharedSocket,
                self.listeners.iter().any(is_shared),
            ),
        ];
        let conditions = conditions.into_iter();
        conditions
            .filter_map(|(it, holds)| holds.then_some(it))
            .collect()
    }

    /// What the manager of flows is told, but for the network's file.
    pub(crate) fn manager(&self, network: Option<Document>) -> Settings {
        let keys = &self.admission;
        let ns = |duration: Duration| nanos(duration).0;
        Settings {
            network,
            broker: keys.broker_node.clone(),
            places: keys.places.clone(),
            star: Star {
                access_rate: keys.access_rate.0,
                broker_rate: keys.broker_rate.0,
                switch_delay_ns: ns(keys.switch_delay),
            },
            service: Service {
                receive_ns: ns(keys.receive_time),
                send_ns: ns(keys.send_time),
                blocking_ns: ns(keys.blocking_time),
            },
            threads: self.shards(),
            mtu: keys.mtu.into(),
            reference_rate: keys.reference_rate.0,
            clock_error_ppm: keys.clock_error,
            priorities: (keys.lowest_priority, keys.highest_priority),
            max_flows: number(keys.max_flows.into()),
            max_user_flows: keys.max_flows_per_user,
            max_user_load: keys.max_user_load,
            ..Settings::default()
        }
    }

    /// How many threads serve clients.
    pub(crate) fn shards(&self) -> u16 {
        match self.server.shards {
            Auto::Fixed(shards) => shards,
            Auto::Auto => available_parallelism().map_or(1, |n| n.get().min(256) as u16),
        }
    }

    /// How the controller of the network is asked; `None`: it is not.
    ///
    /// # Errors
    /// The servers that make no sense.
    pub(crate) fn srt(&self) -> Result<Option<ManagerOptions>, EndpointError> {
        let keys = &self.admission;
        let Some(servers) = &keys.srt else {
            return Ok(None);
        };
        let tls = match (&keys.srt_ca, &keys.srt_certificate, &keys.srt_key) {
            (Some(ca), Some(certificate), Some(key)) => Some(TlsOptions {
                ca: ca.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
                check_name: !keys.srt_any_name,
            }),
            _ => None,
        };
        let listeners = self.listeners.iter();
        let addresses: Vec<_> = listeners.map(|l| l.address.to_string()).collect();
        Ok(Some(ManagerOptions {
            endpoints: Endpoint::parse_list(servers)?,
            tls,
            name: keys.srt_name.clone(),
            address: addresses.join(", "),
            decision: keys.decision_timeout,
            keep: keys.keep,
        }))
    }

    /// Options of clients' sockets.
    pub(crate) fn tcp(&self) -> TcpOptions {
        let unsent = |limit| match limit {
            Switch::On(size) => Some(bytes(size)),
            Switch::Off => None,
        };
        TcpOptions {
            notsent_lowat: unsent(self.tcp.notsent_lowat),
            urgent_notsent_lowat: unsent(self.tcp.urgent_notsent_lowat),
            urgent_send_buffer: match self.tcp.urgent_send_buffer {
                Auto::Fixed(size) => Some(bytes(size)),
                Auto::Auto => None,
            },
            user_timeout: match self.tcp.user_timeout {
                Switch::On(timeout) => Some(timeout),
                Switch::Off => None,
            },
        }
    }

    /// What the packets of each class carry.
    pub(crate) fn marking(&self) -> Marking {
        let keys = &self.marking;
        if !keys.enabled {
            return Marking::NONE;
        }
        let marks = [
            (
                Class::RealTime,
                keys.dscp_realtime,
                keys.so_priority_realtime,
            ),
            (
                Class::Priority,
                keys.dscp_priority,
                keys.so_priority_priority,
            ),
            (Class::Normal, keys.dscp_normal, keys.so_priority_normal),
            (Class::Bulk, keys.dscp_bulk, keys.so_priority_bulk),
        ];
        let none = Marking::NONE;
        marks
            .into_iter()
            .fold(none, |marking, (class, dscp, priority)| {
                marking.with(class, Mark { dscp, priority })
            })
    }

    /// What the threads that serve clients get, where real time is asked for.
    pub(crate) fn realtime(&self) -> Option<RealtimeOptions> {
        let keys = &self.realtime;
        self.server.realtime.then(|| RealtimeOptions {
            priority: keys.priority,
            pin: keys.pin,
            heap: number(keys.heap.0),
            busy_poll: match keys.busy_poll {
                Switch::On(time) => time,
                Switch::Off => Duration::ZERO,
            },
            cpu_latency: match keys.cpu_latency {
                Switch::On(most) => Some(most),
                Switch::Off => None,
            },
        })
    }

    /// Whether the code goes into huge pages.
    pub(crate) fn huge_pages(&self) -> bool {
        match self.server.huge_pages {
            Auto::Fixed(moved) => moved,
            Auto::Auto => self.admission.enabled || self.mesh.enabled || self.server.realtime,
        }
    }

    /// Priority of threads that decide about flows, where real time is asked for:
    /// those that serve clients go before.
    pub(crate) fn deciding_priority(&self) -> Option<u8> {
        let serving = self.realtime()?.priority;
        Some((serving - 1).max(1))
    }

    /// Bound on the incomplete packets of all clients.
    pub(crate) fn max_receive_bytes(&self) -> usize {
        number(self.limits.max_receive_bytes.0)
    }
}

impl Listener {
    /// What UDP is configured with; `None` for a listener of another kind.
    pub(crate) fn udp(&self) -> Option<UdpOptions> {
        (self.address.transport == Transport::Udp).then(|| UdpOptions {
            cookie: self.cookie == Cookie::Required,
            seal: self.seal == Seal::Required,
            max_datagram: match self.max_datagram {
                Auto::Auto => None,
                Auto::Fixed(size) => Some(number(size.0)),
            },
            rate: match self.rate {
                Limit::At(rate) => Some(rate.0),
                Limit::Unlimited => None,
            },
            send_buffer: number(self.send_buffer.0),
            idle: nanos(self.idle_timeout),
        })
    }

    /// Sockets that are opened for it.
    pub(crate) fn sockets(&self) -> usize {
        self.address.resolve().map_or(1, |all| all.len())
    }

    /// What QUIC is configured with; `None` for a listener of another kind.
    pub(crate) fn quic(&self) -> Option<QuicOptions> {
        (self.address.transport == Transport::Quic).then(|| QuicOptions {
            retry: self.cookie == Cookie::Required,
            send_buffer: number(self.send_buffer.0),
            idle: nanos(self.idle_timeout),
        })
    }

    /// What TLS is made of; `None` for a listener that is not encrypted.
    pub(crate) fn tls(&self) -> Option<TlsServerOptions> {
        // Validation has seen that both are there where they are needed, and
        // only there.
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return None;
        };
        let authority = self.client_ca.as_ref().map(|ca| ClientAuthority {
            ca: ca.clone(),
            crl: self.client_crl.clone(),
        });
        Some(TlsServerOptions {
            certificate: certificate.clone(),
            key: key.clone(),
            clients: match authority {
                Some(authority) if self.require_client_certificate => {
                    ClientCertificates::Required(authority)
                }
                Some(authority) => ClientCertificates::Optional(authority),
                None => ClientCertificates::Ignored,
            },
            minimum: match self.tls_min_version {
                TlsVersion::V1_2 => MinimumTls::V1_2,
                TlsVersion::V1_3 => MinimumTls::V1_3,
            },
            max_record: number(self.tls_max_record.0),
        })
    }
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// The seconds, where `T` can hold them. Validation has seen that they are whole.
fn whole_seconds<T: TryFrom<u64>>(duration: Duration) -> Option<T> {
    duration.as_secs().try_into().ok()
}

fn number(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn bytes(size: Size) -> u32 {
    u32::try_from(size.0).unwrap_or(u32::MAX)
}

fn size(limit: Limit<Size>) -> usize {
    match limit {
        Limit::At(size) => number(size.0),
        Limit::Unlimited => usize::MAX,
    }
}

fn count(limit: Limit<u32>) -> usize {
    match limit {
        Limit::At(n) => number(n.into()),
        Limit::Unlimited => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use punctual_broker::QueueFull;

    use super::*;
    use crate::config::keys::WhenFull;

    #[test]
    fn the_documented_defaults_are_those_of_the_broker() {
        assert_eq!(Config::default().broker(), Broker::default());
    }

    #[test]
    fn the_documented_network_is_that_of_the_manager() {
        let mut config = Config::default();
        config.server.shards = Auto::Fixed(1);
        assert_eq!(config.manager(None), Settings::default());
    }

    #[test]
    fn admission_reaches_the_broker() {
        let mut config = Config::default();
        config.admission.enabled = true;
        config.admission.rejected = Rejected::Refuse;
        config.admission.policing = PolicingAction::Drop;
        let broker = config.broker();
        let admission = broker.admission.unwrap();
        assert!(admission.refuse && admission.policing == Policing::Drop);
        assert_eq!(broker.shares.0[0], Shares::ALL);
    }

    #[test]
    fn the_documented_marks_are_those_of_the_table() {
        let mut config = Config::default();
        assert_eq!(config.marking(), Marking::default());
        config.marking.enabled = false;
        assert_eq!(config.marking(), Marking::NONE);
    }

    #[test]
    fn sockets_get_what_is_set() {
        let mut config = Config::default();
        config.tcp.notsent_lowat = Switch::On(Size::kib(128));
        config.tcp.urgent_notsent_lowat = Switch::Off;
        config.tcp.urgent_send_buffer = Auto::Fixed(Size::kib(64));
        config.tcp.user_timeout = Switch::On(Duration::from_secs(30));
        let expected = TcpOptions {
            notsent_lowat: Some(131_072),
            urgent_notsent_lowat: None,
            urgent_send_buffer: Some(65_536),
            user_timeout: Some(Duration::from_secs(30)),
        };
        assert_eq!(config.tcp(), expected);
    }

    #[test]
    fn threads_get_what_is_set() {
        let mut config = Config::default();
        assert_eq!(config.realtime(), None);
        config.server.realtime = true;
        config.realtime.busy_poll = Switch::On(Duration::from_micros(50));
        let realtime = config.realtime().unwrap();
        assert_eq!((realtime.priority, realtime.pin), (40, true));
        assert_eq!(realtime.busy_poll, Duration::from_micros(50));
    }

    #[test]
    fn code_is_in_huge_pages_where_time_matters_unless_something_else_is_said() {
        let config = |set: fn(&mut Config)| {
            let mut config = Config::default();
            set(&mut config);
            config.huge_pages()
        };
        assert!(!config(|_| {}));
        assert!(config(|config| config.mesh.enabled = true));
        assert!(config(|config| config.admission.enabled = true));
        assert!(config(|config| config.server.realtime = true));
        assert!(config(|config| config.server.huge_pages = Auto::Fixed(true)));
        assert!(!config(|config| {
            config.mesh.enabled = true;
            config.server.huge_pages = Auto::Fixed(false);
        }));
    }

    #[test]
    fn what_is_set_reaches_the_broker() {
        let mut config = Config::default();
        config.limits.max_session_expiry = Limit::At(Duration::from_secs(90));
        config.limits.max_keep_alive = Limit::At(Duration::from_secs(60));
        config.limits.max_sessions = Limit::Unlimited;
        config.limits.max_queued_bytes = Limit::Unlimited;
        config.server.sys_interval = Switch::Off;
        config.server.connect_timeout = Duration::from_millis(1500);
        config.queue.full = WhenFull::Hold;
        config.queue.max_hold = Duration::from_secs(5);
        config.queue.rules = vec!["order/#: refuse".parse().unwrap()];
        config.queue.sessions = vec!["panel-*: drop-new".parse().unwrap()];
        config.listeners = vec![Listener::default(), Listener::default()];
        config.listeners[1].queue_full = Some(WhenFull::Disconnect);
        config.mqtt.keep_alive = Some(Duration::from_secs(30));
        config.auth.password_file = Some("passwd".into());
        let broker = config.broker();
        assert_eq!(broker.limits.max_session_expiry, 90);
        assert_eq!(broker.limits.max_keep_alive, 60);
        assert_eq!(broker.limits.max_sessions, usize::MAX);
        assert_eq!(broker.limits.max_queued_bytes, usize::MAX);
        assert_eq!(broker.sys_interval, None);
        assert_eq!(broker.connect_timeout, Nanos::from_millis(1500));
        assert_eq!(broker.queue_full, QueueFull::Hold);
        assert_eq!(broker.max_publisher_hold, Nanos::from_secs(5));
        let policies = broker.queue_policies;
        assert_eq!(policies.topics[0].full, QueueFull::Refuse);
        assert_eq!(policies.sessions[0].full, QueueFull::DropNew);
        // A listener on all addresses may have two sockets.
        let listeners = policies.listeners;
        assert_eq!(listeners.first(), Some(&None));
        assert_eq!(listeners.last(), Some(&Some(QueueFull::Disconnect)));
        assert_eq!(broker.server_keep_alive, Some(30));
        assert!(broker.check_passwords);
    }

    #[test]
    fn client_certificates_are_ignored_optional_or_required() {
        let mut listener = Listener::default();
        assert_eq!(listener.tls(), None);
        listener.certificate = Some("c".into());
        listener.key = Some("k".into());
        let clients = |listener: &Listener| listener.tls().map(|tls| tls.clients);
        assert_eq!(clients(&listener), Some(ClientCertificates::Ignored));
        listener.client_ca = Some("ca".into());
        listener.client_crl = Some("crl".into());
        let authority = ClientAuthority {
            ca: "ca".into(),
            crl: Some("crl".into()),
        };
        let optional = ClientCertificates::Optional(authority.clone());
        assert_eq!(clients(&listener), Some(optional));
        listener.require_client_certificate = true;
        let required = ClientCertificates::Required(authority);
        assert_eq!(clients(&listener), Some(required));
    }
}
