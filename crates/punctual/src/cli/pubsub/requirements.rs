//! Requirements from the command line: `--deadline 10ms` and the like. They
//! travel as user properties of PUBLISH (`pub`) or SUBSCRIBE (`sub`).

use clap::Args;
use punctual_client::{PropertyBuf, RealTimeProperties as _, Requirements};

use super::exit::Failed;

/// Flags for requirements. Each holds its own and nothing else.
#[derive(Debug, Args)]
pub(super) struct RequirementFlags {
    /// Order in the broker: 0 overtakes everything that has a greater number
    /// or none.
    #[arg(long, value_name = "N", help_heading = "Requirements")]
    #[arg(value_parser = only("priority"), allow_hyphen_values = true)]
    priority: Option<Requirements>,
    /// Time from sending to the subscriber's receipt, such as 10ms or 800us.
    #[arg(long, value_name = "DURATION", help_heading = "Requirements")]
    #[arg(value_parser = only("rt-deadline"), allow_hyphen_values = true)]
    deadline: Option<Requirements>,
    /// Shortest time between two messages, such as 100ms.
    #[arg(long, value_name = "DURATION", help_heading = "Requirements")]
    #[arg(value_parser = only("rt-period"), allow_hyphen_values = true)]
    period: Option<Requirements>,
    /// Urgency among real-time flows, 0 to 7; 7 is most urgent.
    #[arg(long, value_name = "0-7", help_heading = "Requirements")]
    #[arg(value_parser = only("rt-priority"), allow_hyphen_values = true)]
    rt_priority: Option<Requirements>,
    /// What becomes of a message whose deadline is over: deliver or drop.
    #[arg(long, value_name = "deliver|drop", help_heading = "Requirements")]
    #[arg(value_parser = only("rt-late"))]
    late: Option<Requirements>,
}

/// Reads the value of one key. The error is the remedy: clap names flag and
/// value.
fn only(
    key: &'static str,
) -> impl Fn(&str) -> Result<Requirements, String> + Clone + Send + Sync + 'static {
    move |text| {
        let mut requirements = Requirements::NONE;
        match requirements.set(key.as_bytes(), text.as_bytes()) {
            Ok(_) => Ok(requirements),
            Err(error) => Err(error.remedy().to_owned()),
        }
    }
}

impl RequirementFlags {
    /// Adds what the flags say to the properties of `packet`.
    pub(super) fn add(
        &self,
        properties: &PropertyBuf,
        packet: &str,
        v5: bool,
    ) -> Result<PropertyBuf, Failed> {
        let flags = [
            ("--priority", self.priority),
            ("--deadline", self.deadline),
            ("--period", self.period),
            ("--rt-priority", self.rt_priority),
            ("--late", self.late),
        ];
        let mut all = properties.clone();
        for (flag, requirement) in flags {
            let Some(requirement) = requirement else {
                continue;
            };
            if !v5 {
                let text = format!("{flag} needs MQTT 5: leave -V out, or say -V 5");
                return Err(Failed::usage(text));
            }
            let given = properties.as_properties();
            for (key, _) in requirement.user_properties() {
                if given.user_value(key).is_some() {
                    return Err(Failed::usage(format!(
                        "{flag} and -D {packet} user-property {key} say the same: leave one out"
                    )));
                }
            }
            all.require(&requirement);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        flags: RequirementFlags,
    }

    fn parse(words: &str) -> Result<RequirementFlags, String> {
        let words = std::iter::once("x").chain(words.split(' '));
        let command = Command::try_parse_from(words);
        command
            .map(|command| command.flags)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_become_user_properties() {
        let flags = parse("--priority 0 --deadline 1.5ms --period 10 --rt-priority 7 --late drop");
        let mut given = PropertyBuf::new();
        given.push_user("colour", "blue").unwrap();
        let all = flags.unwrap().add(&given, "publish", true).unwrap();
        let user: Vec<_> = all.as_properties().user().collect();
        assert_eq!(
            user,
            [
                ("colour", "blue"),
                ("priority", "0"),
                ("rt-deadline", "1500us"),
                ("rt-period", "10ms"),
                ("rt-priority", "7"),
                ("rt-late", "drop"),
            ]
        );
    }

    #[test]
    fn mistakes_name_flag_value_and_remedy() {
        for (words, why) in [
            (
                "--deadline 10m",
                "invalid value '10m' for '--deadline <DURATION>': must be a duration such as 10ms",
            ),
            (
                "--deadline 0",
                "invalid value '0' for '--deadline <DURATION>': must be above 0",
            ),
            (
                "--rt-priority 8",
                "invalid value '8' for '--rt-priority <0-7>': must be 0 to 7 (most urgent)",
            ),
            (
                "--priority high",
                "invalid value 'high' for '--priority <N>': must be 0 (most urgent) to \
                 18446744073709551615",
            ),
            ("--late never", "must be deliver or drop"),
            (
                "--priority -1",
                "invalid value '-1' for '--priority <N>': must be 0 (most urgent)",
            ),
            (
                "--deadline -5ms",
                "invalid value '-5ms' for '--deadline <DURATION>': must be a duration such as",
            ),
            ("--period -5", "'-5' for '--period <DURATION>': must be"),
            (
                "--rt-priority -1",
                "invalid value '-1' for '--rt-priority <0-7>': must be 0 to 7",
            ),
        ] {
            let said = parse(words).unwrap_err();
            assert!(said.contains(why), "{words}: {said}");
        }
    }

    #[test]
    fn they_are_not_said_twice_nor_before_mqtt_5() {
        let flags = parse("--deadline 1ms").unwrap();
        let mut given = PropertyBuf::new();
        let error = flags.add(&given, "publish", false).unwrap_err();
        assert!(error.text.contains("--deadline needs MQTT 5"));
        given.push_user("rt-deadline", "2ms").unwrap();
        let error = flags.add(&given, "publish", true).unwrap_err();
        assert!(error.text.contains("-D publish user-property rt-deadline"));
    }
}
