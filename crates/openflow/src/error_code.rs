//! The protocol's errors: type and code, each with what it means.
//!
//! Source: OpenFlow 1.3.5, section 7.4.4; bundles: ONF extension 230, table of
//! `ofp_bundle_failed_code`, carried as experimenter errors. Codes without a name are kept.

use std::fmt;

use crate::wire::{Reader, Result, Wire};

/// The experimenter number of the Open Networking Foundation: bundles and their errors.
pub const ONF: u32 = 0x4f4e_4600;

/// What an error message reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The connection cannot be set up.
    HelloFailed(HelloFailed),
    /// The request was not understood.
    BadRequest(BadRequest),
    /// An action cannot be used.
    BadAction(BadAction),
    /// An instruction cannot be used.
    BadInstruction(BadInstruction),
    /// A match cannot be used.
    BadMatch(BadMatch),
    /// A change of flow entries failed.
    FlowModFailed(FlowModFailed),
    /// A change of groups failed.
    GroupModFailed(GroupModFailed),
    /// A change of a port failed.
    PortModFailed(PortModFailed),
    /// A change of a table failed.
    TableModFailed(TableModFailed),
    /// A request about queues failed.
    QueueOpFailed(QueueOpFailed),
    /// A change of the switch's configuration failed.
    SwitchConfigFailed(SwitchConfigFailed),
    /// A request for a role failed.
    RoleRequestFailed(RoleRequestFailed),
    /// A change of meters failed.
    MeterModFailed(MeterModFailed),
    /// A request about tables' features failed.
    TableFeaturesFailed(TableFeaturesFailed),
    /// A bundle failed.
    BundleFailed(BundleFailed),
    /// An experimenter's own error.
    Experimenter {
        /// Whose.
        experimenter: u32,
        /// Which.
        code: u16,
    },
    /// A type or code without a name here.
    Other {
        /// Type of the error.
        kind: u16,
        /// Its code.
        code: u16,
    },
}

const EXPERIMENTER: u16 = 0xffff;

/// Enumerations of codes, with their type and what each says.
macro_rules! failures {
    ($($kind:literal $name:ident: $title:literal {
        $($code:literal $variant:ident: $said:literal,)*
    })*) => {
        $(
            #[doc = concat!("Codes of the errors of type ", $kind, ": ", $title, ".")]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            #[repr(u16)]
            pub enum $name {
                $(#[doc = concat!("Code ", $code, ": ", $said, ".")] $variant = $code,)*
            }

            impl From<$name> for ErrorCode {
                fn from(code: $name) -> Self {
                    Self::$name(code)
                }
            }

            impl $name {
                fn from_code(code: u16) -> Option<Self> {
                    match code {
                        $($code => Some(Self::$variant),)*
                        _ => None,
                    }
                }

                #[cfg(test)]
                pub(crate) const EACH: &[Self] = &[$(Self::$variant),*];
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(match self {
                        $(Self::$variant => concat!($title, ": ", $said),)*
                    })
                }
            }
        )*
    };
}

failures! {
    0 HelloFailed: "hello failed" {
        0 Incompatible: "no version of the protocol in common",
        1 Eperm: "not permitted",
    }
    1 BadRequest: "bad request" {
        0 BadVersion: "version of the header is not supported",
        1 BadType: "type of message is not supported",
        2 BadMultipart: "type of multipart request is not supported",
        3 BadExperimenter: "unknown experimenter",
        4 BadExpType: "unknown type of the experimenter",
        5 Eperm: "not permitted",
        6 BadLen: "wrong length",
        7 BufferEmpty: "the buffer was already used",
        8 BufferUnknown: "no such buffer",
        9 BadTableId: "no such table, or not allowed here",
        10 IsSlave: "denied, the controller is a slave",
        11 BadPort: "no such port",
        12 BadPacket: "the packet cannot be used",
        13 MultipartBufferOverflow: "the multipart request is too long",
    }
    2 BadAction: "bad action" {
        0 BadType: "unknown action",
        1 BadLen: "wrong length",
        2 BadExperimenter: "unknown experimenter",
        3 BadExpType: "unknown type of the experimenter",
        4 BadOutPort: "cannot put out there",
        5 BadArgument: "bad argument",
        6 Eperm: "not permitted",
        7 TooMany: "too many actions",
        8 BadQueue: "cannot use the queue",
        9 BadOutGroup: "no such group, or the group may not be used here",
        10 MatchInconsistent: "does not fit the match",
        11 UnsupportedOrder: "actions are in an order that is not supported",
        12 BadTag: "unsupported tag",
        13 BadSetType: "field cannot be set",
        14 BadSetLen: "wrong length of a field to set",
        15 BadSetArgument: "bad value of a field to set",
    }
    3 BadInstruction: "bad instruction" {
        0 UnknownInst: "unknown instruction",
        1 UnsupInst: "instruction is not supported by the table",
        2 BadTableId: "goto leads to no table, or not forward",
        3 UnsupMetadata: "metadata value is not supported",
        4 UnsupMetadataMask: "metadata mask is not supported",
        5 BadExperimenter: "unknown experimenter",
        6 BadExpType: "unknown type of the experimenter",
        7 BadLen: "wrong length",
        8 Eperm: "not permitted",
    }
    4 BadMatch: "bad match" {
        0 BadType: "unknown type of match",
        1 BadLen: "wrong length",
        2 BadTag: "unsupported tag",
        3 BadDlAddrMask: "unsupported mask of an Ethernet address",
        4 BadNwAddrMask: "unsupported mask of a network address",
        5 BadWildcards: "unsupported combination of wildcards",
        6 BadField: "unsupported field",
        7 BadValue: "unsupported value",
        8 BadMask: "unsupported mask",
        9 BadPrereq: "a field lacks the field that it needs",
        10 DupField: "a field comes twice",
        11 Eperm: "not permitted",
    }
    5 FlowModFailed: "flow-mod failed" {
        0 Unknown: "for no named reason",
        1 TableFull: "the table is full",
        2 BadTableId: "no such table",
        3 Overlap: "overlaps with an entry of the same priority",
        4 Eperm: "not permitted",
        5 BadTimeout: "unsupported timeout",
        6 BadCommand: "unknown command",
        7 BadFlags: "unsupported flags",
    }
    6 GroupModFailed: "group-mod failed" {
        0 GroupExists: "the group is there already",
        1 InvalidGroup: "the group's number or buckets are not valid",
        2 WeightUnsupported: "unequal weights are not supported",
        3 OutOfGroups: "the group table is full",
        4 OutOfBuckets: "too many buckets",
        5 ChainingUnsupported: "groups that lead to groups are not supported",
        6 WatchUnsupported: "cannot watch that port or group",
        7 Loop: "groups would lead to themselves",
        8 UnknownGroup: "no such group",
        9 ChainedGroup: "another group leads to it",
        10 BadType: "unknown type of group",
        11 BadCommand: "unknown command",
        12 BadBucket: "error in a bucket",
        13 BadWatch: "error in a port or group to watch",
        14 Eperm: "not permitted",
    }
    7 PortModFailed: "port-mod failed" {
        0 BadPort: "no such port",
        1 BadHwAddr: "the Ethernet address is not the port's",
        2 BadConfig: "unsupported configuration",
        3 BadAdvertise: "unsupported features",
        4 Eperm: "not permitted",
    }
    8 TableModFailed: "table-mod failed" {
        0 BadTable: "no such table",
        1 BadConfig: "unsupported configuration",
        2 Eperm: "not permitted",
    }
    9 QueueOpFailed: "queue operation failed" {
        0 BadPort: "no such port",
        1 BadQueue: "no such queue",
        2 Eperm: "not permitted",
    }
    10 SwitchConfigFailed: "switch configuration failed" {
        0 BadFlags: "unsupported flags",
        1 BadLen: "unsupported length",
        2 Eperm: "not permitted",
    }
    11 RoleRequestFailed: "role request failed" {
        0 Stale: "the generation is older than one seen",
        1 Unsup: "roles are not supported",
        2 BadRole: "unknown role",
    }
    12 MeterModFailed: "meter-mod failed" {
        0 Unknown: "for no named reason",
        1 MeterExists: "the meter is there already",
        2 InvalidMeter: "the meter's number or bands are not valid",
        3 UnknownMeter: "no such meter",
        4 BadCommand: "unknown command",
        5 BadFlags: "unsupported flags",
        6 BadRate: "unsupported rate",
        7 BadBurst: "unsupported burst size",
        8 BadBand: "unsupported band",
        9 BadBandValue: "unsupported value in a band",
        10 OutOfMeters: "the meter table is full",
        11 OutOfBands: "too many bands",
    }
    13 TableFeaturesFailed: "table features failed" {
        0 BadTable: "no such table",
        1 BadMetadata: "unsupported metadata",
        2 BadType: "unknown property",
        3 BadLen: "wrong length",
        4 BadArgument: "unsupported value of a property",
        5 Eperm: "not permitted",
    }
    0xffff BundleFailed: "bundle failed" {
        2300 Unknown: "for no named reason",
        2301 Eperm: "not permitted",
        2302 BadId: "no such bundle",
        2303 BundleExist: "the bundle is open already",
        2304 BundleClosed: "the bundle is closed",
        2305 OutOfBundles: "too many bundles",
        2306 BadType: "unknown type of control message",
        2307 BadFlags: "unsupported or inconsistent flags",
        2308 MsgBadLen: "wrong length of the message inside",
        2309 MsgBadXid: "the message inside has another xid",
        2310 MsgUnsup: "the message inside is not supported in bundles",
        2311 MsgConflict: "the message inside conflicts with another of the bundle",
        2312 MsgTooMany: "too many messages",
        2313 MsgFailed: "a message inside failed",
        2314 Timeout: "open for too long",
        2315 BundleInProgress: "the bundle locks the resource",
    }
}

/// The types that consist of a type and a code.
macro_rules! by_kind {
    ($($kind:literal $name:ident)*) => {
        fn named(kind: u16, code: u16) -> Option<ErrorCode> {
            match kind {
                $($kind => $name::from_code(code).map(ErrorCode::$name),)*
                _ => None,
            }
        }

        impl ErrorCode {
            /// Type and code as they are sent.
            fn numbers(self) -> (u16, u16) {
                match self {
                    $(Self::$name(code) => ($kind, code as u16),)*
                    Self::BundleFailed(code) => (EXPERIMENTER, code as u16),
                    Self::Experimenter { code, .. } => (EXPERIMENTER, code),
                    Self::Other { kind, code } => (kind, code),
                }
            }

            /// All that have a name.
            #[cfg(test)]
            pub(crate) fn each() -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend($name::EACH.iter().copied().map(Self::from));)*
                all.extend(BundleFailed::EACH.iter().copied().map(Self::from));
                all
            }
        }

        impl fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name(code) => code.fmt(f),)*
                    Self::BundleFailed(code) => code.fmt(f),
                    Self::Experimenter { experimenter, code } => {
                        write!(f, "error {code} of experimenter {experimenter:#010x}")
                    }
                    Self::Other { kind, code } => write!(f, "error of type {kind}, code {code}"),
                }
            }
        }
    };
}

by_kind! {
    0 HelloFailed
    1 BadRequest
    2 BadAction
    3 BadInstruction
    4 BadMatch
    5 FlowModFailed
    6 GroupModFailed
    7 PortModFailed
    8 TableModFailed
    9 QueueOpFailed
    10 SwitchConfigFailed
    11 RoleRequestFailed
    12 MeterModFailed
    13 TableFeaturesFailed
}

impl Wire for ErrorCode {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, code) = self.numbers();
        kind.put(out);
        code.put(out);
        match self {
            Self::BundleFailed(_) => ONF.put(out),
            Self::Experimenter { experimenter, .. } => experimenter.put(out),
            _ => {}
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (kind, code) = (from.get()?, from.get()?);
        if kind != EXPERIMENTER {
            return Ok(named(kind, code).unwrap_or(Self::Other { kind, code }));
        }
        let experimenter = from.get()?;
        Ok(match BundleFailed::from_code(code) {
            Some(code) if experimenter == ONF => Self::BundleFailed(code),
            _ => Self::Experimenter { experimenter, code },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back_and_unknown_ones_are_kept() {
        let mut all = ErrorCode::each();
        assert!(all.len() > 120, "{}", all.len());
        all.push(ErrorCode::Other { kind: 5, code: 99 });
        all.push(ErrorCode::Other { kind: 77, code: 0 });
        all.push(ErrorCode::Experimenter {
            experimenter: ONF,
            code: 3,
        });
        for code in all {
            let mut bytes = Vec::new();
            code.put(&mut bytes);
            let mut reader = Reader::new(&bytes, "error");
            assert_eq!(ErrorCode::get(&mut reader), Ok(code));
            assert!(reader.is_empty() && !code.to_string().is_empty());
        }
    }
}
