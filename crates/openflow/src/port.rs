//! Ports of a switch: what they are, what changes.
//!
//! Source: OpenFlow 1.3.5, sections 7.2.1, 7.3.4.3 and 7.4.3.

use crate::id::Text;
use crate::wire::{bits, codes, layout};
use crate::{Mac, PortNo};

layout! {
    /// A port.
    pub struct PortDesc {
        /// Its number.
        pub port: PortNo [4],
        /// Its Ethernet address.
        pub mac: Mac [2],
        /// Its name.
        pub name: Text<16>,
        /// What a controller set.
        pub config: PortConfig,
        /// What it is found to be.
        pub state: PortState,
        /// What it does now.
        pub current: PortFeatures,
        /// What it offers the other end.
        pub advertised: PortFeatures,
        /// What it could do.
        pub supported: PortFeatures,
        /// What the other end offers.
        pub peer: PortFeatures,
        /// Rate now in kbit/s.
        pub current_kbps: u32,
        /// Highest rate in kbit/s.
        pub max_kbps: u32,
    }
}

impl PortDesc {
    /// Whether packets can leave there: neither switched off nor without a link.
    pub fn is_up(&self) -> bool {
        !self.config.contains(PortConfig::PORT_DOWN) && !self.state.contains(PortState::LINK_DOWN)
    }
}

bits! {
    /// What a controller can set on a port.
    pub struct PortConfig: u32 {
        /// Switched off.
        const PORT_DOWN = 1;
        /// Drops what it receives.
        const NO_RECV = 1 << 2;
        /// Drops what is to be sent.
        const NO_FWD = 1 << 5;
        /// Sends the controller nothing from there.
        const NO_PACKET_IN = 1 << 6;
    }
}

bits! {
    /// What a port is found to be.
    pub struct PortState: u32 {
        /// No link.
        const LINK_DOWN = 1;
        /// Blocked by a protocol such as spanning tree.
        const BLOCKED = 1 << 1;
        /// Alive, for fast failover.
        const LIVE = 1 << 2;
    }
}

bits! {
    /// Rates and media of a port.
    pub struct PortFeatures: u32 {
        /// 10 Mbit/s, half duplex.
        const MB_10_HD = 1;
        /// 10 Mbit/s.
        const MB_10_FD = 1 << 1;
        /// 100 Mbit/s, half duplex.
        const MB_100_HD = 1 << 2;
        /// 100 Mbit/s.
        const MB_100_FD = 1 << 3;
        /// 1 Gbit/s, half duplex.
        const GB_1_HD = 1 << 4;
        /// 1 Gbit/s.
        const GB_1_FD = 1 << 5;
        /// 10 Gbit/s.
        const GB_10_FD = 1 << 6;
        /// 40 Gbit/s.
        const GB_40_FD = 1 << 7;
        /// 100 Gbit/s.
        const GB_100_FD = 1 << 8;
        /// 1 Tbit/s.
        const TB_1_FD = 1 << 9;
        /// Another rate.
        const OTHER = 1 << 10;
        /// Copper.
        const COPPER = 1 << 11;
        /// Fibre.
        const FIBER = 1 << 12;
        /// Negotiates the rate.
        const AUTONEG = 1 << 13;
        /// Can be paused.
        const PAUSE = 1 << 14;
        /// Can be paused in one direction.
        const PAUSE_ASYM = 1 << 15;
    }
}

layout! {
    /// A port came, went or changed.
    pub struct PortStatus {
        /// Which of these.
        pub reason: PortReason [7],
        /// The port as it is now, or was.
        pub port: PortDesc,
    }
}

codes! {
    /// What happened to a port.
    pub enum PortReason: u8 else Reason {
        /// It is new.
        Add = 0,
        /// It is gone.
        Delete = 1,
        /// It changed.
        Modify = 2,
    }
}

layout! {
    /// Changes a port.
    pub struct PortMod {
        /// Which.
        pub port: PortNo [4],
        /// Its Ethernet address, as a check.
        pub mac: Mac [2],
        /// New values of the bits.
        pub config: PortConfig,
        /// Which bits.
        pub mask: PortConfig,
        /// What to offer the other end; none: as before.
        pub advertise: PortFeatures [4],
    }
}
