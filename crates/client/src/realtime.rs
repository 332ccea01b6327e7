//! Requirements and answers as typed values in the user properties of a
//! packet, which is where they travel.

use punctual_codec::{PropertyBuf, PropertyId};
use punctual_model::{Answer, RequirementError, Requirements, SEQUENCE_KEY, is_requirement_key};

/// Requirements and answers among the properties of a packet.
///
/// CONNECT takes the requirements of all that the client publishes, PUBLISH
/// and a Will those of one message, SUBSCRIBE those of the receiver. Answers
/// come with CONNACK, PUBACK, PUBREC and SUBACK.
pub trait RealTimeProperties {
    /// Sets the fields that are set in `requirements`; other fields, and all other
    /// properties, stay.
    fn require(&mut self, requirements: &Requirements) -> &mut Self;

    /// In SUBSCRIBE, requests that the server numbers its messages for these
    /// subscriptions; see [`Delivery::number`](crate::Delivery::number).
    fn number_deliveries(&mut self) -> &mut Self;

    /// The requirements stated in these properties.
    ///
    /// # Errors
    /// A user property with a key of ours does not say anything valid.
    fn requirements(&self) -> Result<Requirements, RequirementError>;

    /// What the server says to requirements, if it says something.
    fn answer(&self) -> Option<Answer>;
}

impl RealTimeProperties for PropertyBuf {
    fn require(&mut self, requirements: &Requirements) -> &mut Self {
        let given: Vec<(&str, String)> = requirements.user_properties().collect();
        let replaced = |key: &str| given.iter().any(|(given, _)| *given == key);
        if self.as_properties().user().any(|(key, _)| replaced(key)) {
            let mut others = Self::new();
            for property in self.as_properties().iter() {
                if property.id != PropertyId::UserProperty || !replaced(property.pair().0) {
                    others.push(property);
                }
            }
            *self = others;
        }
        for (key, value) in &given {
            // Keys and values of requirements are some ten bytes long.
            let _ = self.push_user(key, value);
        }
        self
    }

    fn number_deliveries(&mut self) -> &mut Self {
        // Some ten bytes are never too long.
        let _ = self.push_user(SEQUENCE_KEY, "on");
        self
    }

    fn requirements(&self) -> Result<Requirements, RequirementError> {
        let mut requirements = Requirements::NONE;
        for (key, value) in self.as_properties().user() {
            if is_requirement_key(key.as_bytes()) {
                requirements.set(key.as_bytes(), value.as_bytes())?;
            }
        }
        Ok(requirements)
    }

    fn answer(&self) -> Option<Answer> {
        Answer::read(self.as_properties().user())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use punctual_model::{Late, Status};
    use std::time::Duration;

    #[test]
    fn a_message_says_what_it_requires() {
        let mut message = Message::new("t", "x");
        message.properties.push_user("colour", "blue").unwrap();
        let requirements = Requirements {
            late: Some(Late::Drop),
            message_priority: Some(3),
            ..Requirements::NONE
        };
        let message = message
            .priority(9)
            .deadline(Duration::from_micros(1_500))
            .period(Duration::from_millis(10))
            .requirements(&requirements);
        let user: Vec<_> = message.properties.as_properties().user().collect();
        assert_eq!(
            user,
            [
                ("colour", "blue"),
                ("rt-deadline", "1500us"),
                ("rt-period", "10ms"),
                ("priority", "3"),
                ("rt-late", "drop"),
            ]
        );
        let expected = Requirements {
            deadline: Some(Duration::from_micros(1_500)),
            period: Some(Duration::from_millis(10)),
            ..requirements
        };
        assert_eq!(message.properties.requirements(), Ok(expected));
    }

    #[test]
    fn other_properties_stay() {
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::MessageExpiryInterval, 5);
        properties.push_user("priority", "1").unwrap();
        properties.push_user("priority2", "1").unwrap();
        properties.require(&"priority=2".parse().unwrap());
        let left = properties.as_properties();
        assert_eq!(left.number(PropertyId::MessageExpiryInterval), Some(5));
        let user: Vec<_> = left.user().collect();
        assert_eq!(user, [("priority2", "1"), ("priority", "2")]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut properties = PropertyBuf::new();
        properties.push_user("rt-priority", "9").unwrap();
        let error = properties.requirements().unwrap_err();
        assert_eq!(error.key(), "rt-priority");
    }

    #[test]
    fn answers_are_found() {
        let mut properties = PropertyBuf::new();
        assert_eq!(properties.answer(), None);
        properties.push_user("rt-status", "best-effort").unwrap();
        let answer = properties.answer().unwrap();
        assert_eq!(answer.status, Some(Status::BestEffort));
    }
}
