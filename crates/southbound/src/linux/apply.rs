//! Carries plans out where a [`Shell`] reaches, and knows what is there.

use std::collections::BTreeSet;
use std::io;

use punctual_controller::plan::{PortNumber, SwitchPlan};

use super::queues::{are_there, frames_only, levels, queues};
use super::rules::{hooks, replace, rules};

/// Runs programs on a switch: on this machine, or in a network namespace of it.
pub trait Shell {
    /// Runs a program to its end with `input` on its standard input.
    ///
    /// # Errors
    /// If it cannot be started, or fails; then what it said.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String>;
}

/// A program refused what it was given, or is missing.
#[derive(Debug, thiserror::Error)]
#[error("{program}: {source}")]
pub struct DriverError {
    /// Which one.
    pub program: &'static str,
    /// What it said.
    pub source: io::Error,
}

/// One switch.
#[derive(Debug)]
pub struct Driver<S> {
    shell: S,
    /// Names and rates of the ports that have queues and hooks.
    ports: BTreeSet<(String, u64)>,
    rules: Vec<String>,
}

impl<S: Shell> Driver<S> {
    /// A driver of a switch that it has not touched yet.
    pub fn new(shell: S) -> Self {
        Self {
            shell,
            ports: BTreeSet::new(),
            rules: Vec::new(),
        }
    }

    /// The rules that are installed.
    pub fn installed(&self) -> &[String] {
        &self.rules
    }

    /// Carries a plan out while the ports `down` are down. Ports that are new or have another
    /// rate handle single frames from now on and get queues (those of a rate of 0 keep theirs) and
    /// hooks; then all rules that differ change in one transaction. True if anything changed.
    ///
    /// # Errors
    /// Without `ip` and `tc` (Debian: iproute2) or `nft` (nftables), the privilege or the ports. Rules
    /// that are refused leave those that were there.
    pub fn apply(
        &mut self,
        plan: &SwitchPlan,
        down: &BTreeSet<PortNumber>,
    ) -> Result<bool, DriverError> {
        let ports = plan.ports.values();
        let ports: BTreeSet<_> = ports
            .map(|port| (port.name.clone(), port.rate_bps))
            .collect();
        if ports != self.ports {
            let new = || ports.difference(&self.ports);
            let commands: String = new().map(|(device, _)| frames_only(device)).collect();
            self.run("ip", &["-batch", "-"], &commands)?;
            let limited = new().filter(|(_, rate)| *rate > 0);
            let shown = self.run("tc", &["qdisc", "show"], "")?;
            let commands: String = limited
                .map(|(device, rate)| match are_there(device, &shown) {
                    true => levels(device, *rate),
                    false => queues(device, *rate),
                })
                .collect();
            self.run("tc", &["-batch", "-"], &commands)?;
        }
        let rules = rules(plan, down);
        let devices = |of: &BTreeSet<(String, u64)>| -> BTreeSet<String> {
            of.iter().map(|(device, _)| device.clone()).collect()
        };
        let hooked = devices(&ports);
        let mut text = String::new();
        if hooked != devices(&self.ports) {
            text.push_str(&hooks(hooked.iter().map(String::as_str)));
        }
        if !text.is_empty() || rules != self.rules {
            text.push_str(&replace(&rules));
            self.run("nft", &["-f", "-"], &text)?;
        }
        let changed = !text.is_empty() || ports != self.ports;
        self.ports = ports;
        self.rules = rules;
        Ok(changed)
    }

    fn run(
        &self,
        program: &'static str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, DriverError> {
        let result = self.shell.run(program, arguments, input);
        result.map_err(|source| DriverError { program, source })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{leg, plan};
    use super::*;
    use std::cell::RefCell;

    /// Writes down what it is asked, and refuses rules with a word.
    #[derive(Default)]
    struct Script {
        asked: RefCell<Vec<String>>,
        refused: Option<&'static str>,
    }

    impl Shell for &Script {
        fn run(&self, program: &str, _: &[&str], input: &str) -> io::Result<String> {
            if self.refused.is_some_and(|word| input.contains(word)) {
                return Err(io::Error::other("Interface does not exist"));
            }
            self.asked.borrow_mut().push(program.to_owned());
            Ok(String::new())
        }
    }

    #[test]
    fn only_what_differs_is_applied() {
        let script = Script::default();
        let mut driver = Driver::new(&script);
        let mut plan = plan(vec![leg(2, 7)]);
        let none = BTreeSet::new();
        assert!(driver.apply(&plan, &none).unwrap());
        assert_eq!(*script.asked.borrow(), ["ip", "tc", "tc", "nft"]);
        assert!(!driver.apply(&plan, &none).unwrap());
        for entry in plan.entries.values_mut() {
            entry.legs[0].queue = 6;
        }
        assert!(driver.apply(&plan, &none).unwrap());
        // Another rate takes no other rules.
        plan.ports.entry(1).and_modify(|port| port.rate_bps *= 2);
        assert!(driver.apply(&plan, &none).unwrap());
        assert_eq!(
            *script.asked.borrow(),
            ["ip", "tc", "tc", "nft", "nft", "ip", "tc", "tc"]
        );
    }

    #[test]
    fn what_is_refused_leaves_what_was_there() {
        let script = Script {
            refused: Some("dup"),
            ..Script::default()
        };
        let mut driver = Driver::new(&script);
        let none = BTreeSet::new();
        driver.apply(&plan(vec![leg(2, 7)]), &none).unwrap();
        let before = driver.installed().to_vec();
        let error = driver
            .apply(&plan(vec![leg(2, 7), leg(3, 7)]), &none)
            .unwrap_err();
        assert_eq!(error.to_string(), "nft: Interface does not exist");
        assert_eq!(driver.installed(), before);
    }
}
