//! Encoding of answers to requirements in packets, by the broker and by a proxy before another one.

use punctual_codec::{Properties, PropertyBuf, PropertySet};
use punctual_model::{Answer, Conformity, Status};

/// An answer that a message or a client is served by best effort, with the reason.
pub fn best_effort(reason: String) -> Answer {
    Answer {
        status: Some(Status::BestEffort),
        reason: Some(reason),
        ..Answer::default()
    }
}

/// The answer to a receiver whose service has changed: served without a `reason`, it has the
/// requested service.
pub fn to_receiver(served: bool, reason: &str) -> Answer {
    match served && reason.is_empty() {
        true => Answer {
            status: Some(Status::Admitted),
            ..Answer::default()
        },
        false => best_effort(reason.to_owned()),
    }
}

/// The answer as a client gets it: if messages are not refused, a rejected requirement is carried
/// by best effort.
pub fn as_carried(answer: &Answer, refuse: bool) -> Answer {
    let mut answer = answer.clone();
    if answer.status == Some(Status::Rejected) && !refuse {
        answer.status = Some(Status::BestEffort);
    }
    answer
}

/// The answer that refuses a message which does not conform to its declared flow.
pub fn violation(conformity: Conformity) -> Answer {
    let reason = match conformity {
        Conformity::TooLarge => "larger than the flow's rt-size",
        _ => "sooner than the flow's rt-period allows",
    };
    Answer {
        status: Some(Status::Rejected),
        reason: Some(reason.into()),
        ..Answer::default()
    }
}

/// Adds an answer to the properties of a packet with `rest` more bytes of
/// content, as far as it fits into the client's Maximum Packet Size
/// [MQTT-3.4.2-3]: the reason is left out first. False if nothing was added.
pub fn put_answer(properties: &mut PropertyBuf, answer: &Answer, rest: usize, max: u32) -> bool {
    // Fixed header, reason code, length of the properties.
    const HEAD: usize = 5 + 1 + 4;
    let put = |answer: &Answer, properties: &mut PropertyBuf| {
        let pairs: Vec<_> = answer.user_properties().collect();
        let bytes = pairs.iter().map(|(key, value)| 5 + key.len() + value.len());
        if HEAD + rest + bytes.sum::<usize>() > max as usize {
            return false;
        }
        for (key, value) in &pairs {
            let _ = properties.push_user(key, value);
        }
        true
    };
    if put(answer, properties) {
        return true;
    }
    let short = Answer {
        reason: None,
        flow: None,
        ..answer.clone()
    };
    answer.bound.is_some() && put(&short, properties)
}

/// The topic of notifications for one client: `+` and `#` are written `_`.
pub(crate) fn client_topic(client_id: &str) -> String {
    format!("$SYS/rt/clients/{}", plain(client_id))
}

/// A name as a part of a topic.
pub(crate) fn plain(name: &str) -> String {
    name.replace(['+', '#'], "_")
}

/// A notification for one client, on a topic of its own, about the outcome of its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// `$SYS/rt/clients/CLIENT`, `+` and `#` written `_`.
    pub topic: String,
    /// One line for human readers; programs read the properties.
    pub text: String,
    properties: PropertyBuf,
}

impl Notification {
    /// A notification for a client about a topic or a filter.
    pub fn new(client_id: &str, about: &str, answer: &Answer) -> Self {
        let mut properties = PropertyBuf::new();
        let mut text = about.to_owned();
        for (key, value) in answer.user_properties() {
            let _ = properties.push_user(key, &value);
            text.push_str(&format!(" {key}={value}"));
        }
        Self {
            topic: client_topic(client_id),
            text,
            properties,
        }
    }

    /// The answer as user properties; none if one is too long for a packet.
    pub fn properties(&self) -> Properties<'_> {
        let bytes = self.properties.as_properties().as_bytes();
        Properties::check(bytes, PropertySet::PUBLISH).unwrap_or_default()
    }
}
