//! Reason codes (section 2.4) and their 3.1.1 counterparts.

use crate::PacketType;

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, [$($packet:ident)*];)*) => {
        /// A one-byte reason code (section 2.4). Codes below 0x80 are
        /// successes. 0x00 stands for Success, Normal disconnection and
        /// Granted QoS 0 alike.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum ReasonCode { $($(#[$doc])* #[doc = $text] $name = $code,)* }

        impl ReasonCode {
            /// All codes, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code for its byte; `None` if MQTT 5 does not define it.
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($code => Some(Self::$name),)* _ => None }
            }

            /// The name the specification gives it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether the specification allows it in that packet.
            pub fn allowed_in(self, packet: PacketType) -> bool {
                match self { $(Self::$name => matches!(packet, $(PacketType::$packet)|*),)* }
            }
        }
    };
}

reason_codes! {
    Success = 0x00, "Success", [ConnAck PubAck PubRec PubRel PubComp SubAck UnsubAck Disconnect Auth];
    GrantedQos1 = 0x01, "Granted QoS 1", [SubAck];
    GrantedQos2 = 0x02, "Granted QoS 2", [SubAck];
    DisconnectWithWill = 0x04, "Disconnect with Will Message", [Disconnect];
    NoMatchingSubscribers = 0x10, "No matching subscribers", [PubAck PubRec];
    NoSubscriptionExisted = 0x11, "No subscription existed", [UnsubAck];
    ContinueAuthentication = 0x18, "Continue authentication", [Auth];
    ReAuthenticate = 0x19, "Re-authenticate", [Auth];
    UnspecifiedError = 0x80, "Unspecified error", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    MalformedPacket = 0x81, "Malformed Packet", [ConnAck Disconnect];
    ProtocolError = 0x82, "Protocol Error", [ConnAck Disconnect];
    ImplementationSpecificError = 0x83, "Implementation specific error", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    UnsupportedProtocolVersion = 0x84, "Unsupported Protocol Version", [ConnAck];
    ClientIdentifierNotValid = 0x85, "Client Identifier not valid", [ConnAck];
    BadUserNameOrPassword = 0x86, "Bad User Name or Password", [ConnAck];
    NotAuthorized = 0x87, "Not authorized", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    ServerUnavailable = 0x88, "Server unavailable", [ConnAck];
    ServerBusy = 0x89, "Server busy", [ConnAck Disconnect];
    Banned = 0x8A, "Banned", [ConnAck];
    ServerShuttingDown = 0x8B, "Server shutting down", [Disconnect];
    BadAuthenticationMethod = 0x8C, "Bad authentication method", [ConnAck Disconnect];
    KeepAliveTimeout = 0x8D, "Keep Alive timeout", [Disconnect];
    SessionTakenOver = 0x8E, "Session taken over", [Disconnect];
    TopicFilterInvalid = 0x8F, "Topic Filter invalid", [SubAck UnsubAck Disconnect];
    TopicNameInvalid = 0x90, "Topic Name invalid", [ConnAck PubAck PubRec Disconnect];
    PacketIdentifierInUse = 0x91, "Packet Identifier in use", [PubAck PubRec SubAck UnsubAck];
    PacketIdentifierNotFound = 0x92, "Packet Identifier not found", [PubRel PubComp];
    ReceiveMaximumExceeded = 0x93, "Receive Maximum exceeded", [Disconnect];
    TopicAliasInvalid = 0x94, "Topic Alias invalid", [Disconnect];
    PacketTooLarge = 0x95, "Packet too large", [ConnAck Disconnect];
    MessageRateTooHigh = 0x96, "Message rate too high", [Disconnect];
    QuotaExceeded = 0x97, "Quota exceeded", [ConnAck PubAck PubRec SubAck Disconnect];
    AdministrativeAction = 0x98, "Administrative action", [Disconnect];
    PayloadFormatInvalid = 0x99, "Payload format invalid", [ConnAck PubAck PubRec Disconnect];
    RetainNotSupported = 0x9A, "Retain not supported", [ConnAck Disconnect];
    QosNotSupported = 0x9B, "QoS not supported", [ConnAck Disconnect];
    UseAnotherServer = 0x9C, "Use another server", [ConnAck Disconnect];
    ServerMoved = 0x9D, "Server moved", [ConnAck Disconnect];
    SharedSubscriptionsNotSupported = 0x9E, "Shared Subscriptions not supported", [SubAck Disconnect];
    ConnectionRateExceeded = 0x9F, "Connection rate exceeded", [ConnAck Disconnect];
    MaximumConnectTime = 0xA0, "Maximum connect time", [Disconnect];
    SubscriptionIdentifiersNotSupported = 0xA1, "Subscription Identifiers not supported", [SubAck Disconnect];
    WildcardSubscriptionsNotSupported = 0xA2, "Wildcard Subscriptions not supported", [SubAck Disconnect];
}

impl ReasonCode {
    /// The byte on the wire.
    #[inline]
    pub fn byte(self) -> u8 {
        self as u8
    }

    /// Whether it says that the operation failed (0x80 and above).
    #[inline]
    pub fn is_error(self) -> bool {
        self.byte() >= 0x80
    }

    /// The CONNACK return code of MQTT 3.1.1 (its section 3.2.2.3) that comes
    /// closest; `None` where 3.1.1 has none and the connection is only closed.
    pub fn connack_v3(self) -> Option<u8> {
        match self {
            Self::Success => Some(0),
            Self::UnsupportedProtocolVersion => Some(1),
            Self::ClientIdentifierNotValid => Some(2),
            Self::ServerUnavailable
            | Self::ServerBusy
            | Self::QuotaExceeded
            | Self::ConnectionRateExceeded
            | Self::UseAnotherServer
            | Self::ServerMoved => Some(3),
            Self::BadUserNameOrPassword => Some(4),
            Self::NotAuthorized | Self::Banned => Some(5),
            _ => None,
        }
    }
}

impl std::fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x{:02X} {}", self.byte(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_names() {
        for byte in 0..=255u8 {
            let code = ReasonCode::from_byte(byte);
            assert_eq!(
                code.is_some(),
                ReasonCode::ALL.iter().any(|c| c.byte() == byte)
            );
            if let Some(code) = code {
                assert_eq!(code.byte(), byte);
                assert_eq!(code.is_error(), byte >= 0x80);
            }
        }
        assert_eq!(ReasonCode::ALL.len(), 43);
        assert_eq!(ReasonCode::QuotaExceeded.to_string(), "0x97 Quota exceeded");
    }

    /// 3.1.1 has return codes 0 to 5, and each is reached.
    #[test]
    fn return_codes() {
        let mut reached: Vec<u8> = ReasonCode::ALL
            .iter()
            .filter_map(|c| c.connack_v3())
            .collect();
        reached.sort_unstable();
        reached.dedup();
        assert_eq!(reached, [0, 1, 2, 3, 4, 5]);
        assert_eq!(ReasonCode::MalformedPacket.connack_v3(), None);
    }
}
