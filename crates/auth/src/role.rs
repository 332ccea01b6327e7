//! The rights of a user of the HTTP interface.

use std::fmt;
use std::str::FromStr;

/// A role at the HTTP interface. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HttpRole {
    /// Sees clients, topics, payloads, flows and the configuration.
    Read,
    /// Ends clients and flows, removes retained messages.
    Operate,
    /// Changes the configuration, the neighbours of the mesh and the users.
    Administer,
}

impl HttpRole {
    /// All roles, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Administer];

    /// What an error proposes to write.
    pub(crate) const REMEDY: &str = "write read, operate or administer";

    /// Its name in files and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Administer => "administer",
        }
    }
}

impl fmt::Display for HttpRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownRole;

impl FromStr for HttpRole {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let mut all = Self::ALL.into_iter();
        all.find(|role| role.name() == text).ok_or(UnknownRole)
    }
}
