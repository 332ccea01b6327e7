//! `-D command identifier value`: MQTT 5 properties from the command line.

use clap::error::{Error as ClapError, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use punctual_client::{PropertyBuf, PropertyId};
use punctual_codec::PropertySet;

/// All `-D` of a command line, by the packet they go into.
#[derive(Debug, Clone, Default)]
pub(super) struct PacketProperties {
    pub(super) connect: PropertyBuf,
    pub(super) publish: PropertyBuf,
    pub(super) subscribe: PropertyBuf,
    pub(super) unsubscribe: PropertyBuf,
    pub(super) disconnect: PropertyBuf,
    pub(super) will: PropertyBuf,
}

const ID: &str = "property";

impl PacketProperties {
    /// Whether there was no `-D`.
    pub(super) fn is_empty(&self) -> bool {
        [
            &self.connect,
            &self.publish,
            &self.subscribe,
            &self.unsubscribe,
            &self.disconnect,
            &self.will,
        ]
        .into_iter()
        .all(|properties| properties.as_properties().is_empty())
    }

    fn add(&mut self, words: &[&str]) -> Result<(), String> {
        let [packet, name, values @ ..] = words else {
            return Err("needs a packet, a property and its value".into());
        };
        let (into, allowed) = match packet.to_ascii_lowercase().as_str() {
            "connect" => (&mut self.connect, PropertySet::CONNECT),
            "publish" => (&mut self.publish, PropertySet::PUBLISH),
            "subscribe" => (&mut self.subscribe, PropertySet::SUBSCRIBE),
            "unsubscribe" => (&mut self.unsubscribe, PropertySet::UNSUBSCRIBE),
            "disconnect" => (&mut self.disconnect, PropertySet::DISCONNECT),
            "will" => (&mut self.will, PropertySet::WILL),
            _ => {
                return Err(format!(
                    "{packet:?} is none of connect, publish, subscribe, unsubscribe, \
                     disconnect and will"
                ));
            }
        };
        let known = PropertyId::ALL.iter().copied();
        let Some(id) = known.clone().find(|id| spelled(*id) == *name) else {
            return Err(format!("there is no property {name:?}"));
        };
        // The specification has it in PUBLISH, but only servers may send it.
        let from_server = id == PropertyId::SubscriptionIdentifier && *packet == "publish";
        if !allowed.contains(id) || from_server {
            let names: Vec<String> = known
                .filter(|id| allowed.contains(*id))
                .map(spelled)
                .collect();
            return Err(format!(
                "{packet} has no {name}; it has {}",
                names.join(", ")
            ));
        }
        match (id, values) {
            (PropertyId::UserProperty, [key, value]) => into
                .push_user(key, value)
                .map(|_| ())
                .map_err(|error| error.to_string()),
            (PropertyId::UserProperty, _) => Err("user-property needs a name and a value".into()),
            (_, [value]) => put(into, id, value),
            _ => Err(format!("{name} needs one value")),
        }
    }
}

/// The identifier's name on the command line.
fn spelled(id: PropertyId) -> String {
    id.name().to_ascii_lowercase().replace(' ', "-")
}

/// The range of a numeric property; `None` for strings and binary data.
fn range(id: PropertyId) -> Option<(u32, u32)> {
    use PropertyId as P;
    match id {
        P::PayloadFormatIndicator
        | P::RequestProblemInformation
        | P::RequestResponseInformation
        | P::MaximumQoS
        | P::RetainAvailable
        | P::WildcardSubscriptionAvailable
        | P::SubscriptionIdentifierAvailable
        | P::SharedSubscriptionAvailable => Some((0, 1)),
        P::ServerKeepAlive | P::TopicAliasMaximum => Some((0, 65_535)),
        P::ReceiveMaximum | P::TopicAlias => Some((1, 65_535)),
        P::MessageExpiryInterval | P::SessionExpiryInterval | P::WillDelayInterval => {
            Some((0, u32::MAX))
        }
        P::MaximumPacketSize => Some((1, u32::MAX)),
        P::SubscriptionIdentifier => Some((1, 268_435_455)),
        _ => None,
    }
}

fn put(into: &mut PropertyBuf, id: PropertyId, value: &str) -> Result<(), String> {
    if into.as_properties().contains(id) {
        return Err(format!("{} is given twice", spelled(id)));
    }
    let Some((least, most)) = range(id) else {
        return match into.push_data(id, value.as_bytes()) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
    };
    match value.parse() {
        Ok(number) if (least..=most).contains(&number) => {
            into.push_number(id, number);
            Ok(())
        }
        _ => Err(format!(
            "{} is {value:?}, but must be {least} to {most}",
            spelled(id)
        )),
    }
}

impl Args for PacketProperties {
    fn augment_args(command: Command) -> Command {
        command.arg(
            Arg::new(ID)
                .short('D')
                .long(ID)
                .action(ArgAction::Append)
                .num_args(3..=4)
                .allow_negative_numbers(true)
                .value_names(["PACKET", "PROPERTY", "VALUE"])
                .help(
                    "Add an MQTT 5 property to connect, publish, subscribe, unsubscribe, \
                     disconnect or will, such as `-D publish content-type text/plain` or \
                     `-D publish user-property NAME VALUE`",
                ),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PacketProperties {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, ClapError> {
        let mut all = Self::default();
        for words in matches.get_occurrences::<String>(ID).into_iter().flatten() {
            let words: Vec<&str> = words.map(String::as_str).collect();
            all.add(&words).map_err(|why| {
                let text = format!("-D {}: {why}\n", words.join(" "));
                ClapError::raw(ErrorKind::ValueValidation, text)
            })?;
        }
        Ok(all)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), ClapError> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(words: &str) -> Result<PacketProperties, String> {
        let mut properties = PacketProperties::default();
        let words: Vec<&str> = words.split(' ').collect();
        properties.add(&words).map(|()| properties)
    }

    #[test]
    fn properties_go_where_they_belong() {
        let p = add("publish message-expiry-interval 60").unwrap();
        let number = p
            .publish
            .as_properties()
            .number(PropertyId::MessageExpiryInterval);
        assert_eq!(number, Some(60));
        let p = add("will user-property k v").unwrap();
        let user: Vec<_> = p.will.as_properties().user().collect();
        assert_eq!(user, [("k", "v")]);
        let p = add("CONNECT authentication-data abc").unwrap();
        let data = p
            .connect
            .as_properties()
            .data(PropertyId::AuthenticationData);
        assert_eq!(data, Some(&b"abc"[..]));
        assert!(!p.is_empty());
    }

    #[test]
    fn wrong_ones_are_refused_with_the_reason() {
        for (words, why) in [
            ("puback reason-string x", "none of connect, publish"),
            ("publish nonsense x", "there is no property \"nonsense\""),
            (
                "subscribe content-type x",
                "it has subscription-identifier, user-property",
            ),
            (
                "publish subscription-identifier 1",
                "has no subscription-identifier",
            ),
            ("publish topic-alias 0", "must be 1 to 65535"),
            (
                "connect receive-maximum x",
                "is \"x\", but must be 1 to 65535",
            ),
            ("publish user-property k", "a name and a value"),
            ("publish content-type a b", "needs one value"),
        ] {
            let said = add(words).unwrap_err();
            assert!(said.contains(why), "{words}: {said}");
        }
    }
}
