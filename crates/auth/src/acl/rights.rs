//! `rt` lines: what a user may ask for in real-time requirements.

use crate::FileError;

/// Keys of an `rt` line, as the remedies name them.
const KEYS: &str = "write max-priority, priority, max-bandwidth, max-flows or rejected";
/// What switches a kind of requirement off.
const NONE: &str = "none";

/// Limits on the real-time requirements that a user may set, from the `rt` lines of the user's
/// section. `None` means that the file sets no such limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtRights {
    /// Highest `rt-priority`, 0 to 7.
    pub max_priority: Option<u8>,
    /// No `rt-priority` and no `rt-deadline` at all: `max-priority=none`.
    pub no_real_time: bool,
    /// Most urgent, that is lowest, `priority`: 0 for any.
    pub min_priority: Option<u64>,
    /// No `priority` at all: `priority=none`.
    pub no_priority: bool,
    /// Most bandwidth of all the user's flows together, in bit/s; at least 1.
    pub max_bandwidth: Option<u64>,
    /// Most flows with requirements at the same time; 0 for none.
    pub max_flows: Option<u32>,
    /// Whether messages whose requirement is rejected are refused (`rejected=refuse`) or carried
    /// all the same (`rejected=best-effort`).
    pub refuse: Option<bool>,
}

impl RtRights {
    /// These, and where they say nothing those of `general`.
    pub(super) fn or(self, general: Self) -> Self {
        let own_real_time = self.max_priority.is_some() || self.no_real_time;
        let own_priority = self.min_priority.is_some() || self.no_priority;
        Self {
            max_priority: self.max_priority.or(general.max_priority),
            no_real_time: self.no_real_time || (general.no_real_time && !own_real_time),
            min_priority: self.min_priority.or(general.min_priority),
            no_priority: self.no_priority || (general.no_priority && !own_priority),
            max_bandwidth: self.max_bandwidth.or(general.max_bandwidth),
            max_flows: self.max_flows.or(general.max_flows),
            refuse: self.refuse.or(general.refuse),
        }
    }

    /// Takes in one `key=value` of an `rt` line.
    pub(super) fn set(&mut self, item: &str, line: usize) -> Result<(), FileError> {
        let Some((key, value)) = item.split_once('=') else {
            return Err(FileError::new(
                line,
                "rt key",
                item,
                "has no value",
                "write key=value",
            ));
        };
        match key {
            "max-priority" if value == NONE && self.max_priority.is_none() => {
                self.no_real_time = true;
                Ok(())
            }
            "priority" if value == NONE && self.min_priority.is_none() => {
                self.no_priority = true;
                Ok(())
            }
            "priority" => {
                let remedy = "0 (most urgent) to 18446744073709551615, or none";
                let parsed = value.parse().ok().filter(|_| !self.no_priority);
                fill(
                    &mut self.min_priority,
                    "priority",
                    value,
                    parsed,
                    line,
                    remedy,
                )
            }
            "max-priority" => {
                let parsed = value.parse().ok();
                let parsed = parsed.filter(|priority| *priority <= 7 && !self.no_real_time);
                fill(
                    &mut self.max_priority,
                    "max-priority",
                    value,
                    parsed,
                    line,
                    "0 to 7, or none",
                )
            }
            "max-bandwidth" => {
                let remedy =
                    "a number of bit/s above 0, or one with a unit such as 500kbit, 2Mbit or 1Gbit";
                let parsed = parse_bandwidth(value);
                fill(
                    &mut self.max_bandwidth,
                    "max-bandwidth",
                    value,
                    parsed,
                    line,
                    remedy,
                )
            }
            "max-flows" => {
                let parsed = value.parse().ok();
                fill(
                    &mut self.max_flows,
                    "max-flows",
                    value,
                    parsed,
                    line,
                    "0 to 4294967295",
                )
            }
            "rejected" => {
                let parsed = match value {
                    "refuse" => Some(true),
                    "best-effort" => Some(false),
                    _ => None,
                };
                let remedy = "refuse or best-effort";
                fill(&mut self.refuse, "rejected", value, parsed, line, remedy)
            }
            _ => Err(FileError::new(line, "rt key", key, "is unknown", KEYS)),
        }
    }
}

fn fill<T>(
    slot: &mut Option<T>,
    key: &'static str,
    value: &str,
    parsed: Option<T>,
    line: usize,
    valid: &'static str,
) -> Result<(), FileError> {
    if parsed.is_none() {
        return Err(FileError::new(
            line,
            key,
            value,
            "is not valid",
            format!("write {valid}"),
        ));
    }
    if slot.is_some() {
        let remedy = "keep one of the values";
        return Err(FileError::new(
            line,
            key,
            value,
            "is set again for the same user",
            remedy,
        ));
    }
    *slot = parsed;
    Ok(())
}

/// Bit/s from text such as `2Mbit` or `9600`; units are decimal and their case is not significant.
fn parse_bandwidth(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "bit" => 1,
        "kbit" => 1_000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        _ => return None,
    };
    number
        .parse::<u64>()
        .ok()?
        .checked_mul(factor)
        .filter(|bandwidth| *bandwidth > 0)
}
