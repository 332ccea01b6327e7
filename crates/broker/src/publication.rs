//! Publications that a shard is processing.

use std::sync::Arc;

use punctual_codec::QoS;

use crate::Nanos;
use crate::base::author::Author;
use crate::base::queue_full::QueueFull;
use crate::directory::Directory;
use crate::egress::{Class, Stamp};
use crate::index::target::Target;
use crate::journal::keeping::Keeping;
use crate::message::{Message, Messages, Parts, Traits};
use crate::room::Need;
use crate::sequence::Number;
use crate::session::{Queue, overtakes_held};
use crate::watch::Watch;

/// Whether queue capacity has been reserved for a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// No: the policy for full queues decides.
    None,
    /// Its only receiver reserves capacity, if the publication has to wait there.
    Due,
    /// Yes, at every receiver with QoS above 0.
    Made,
    /// The queue of its only receiver is full.
    Refused,
}

/// A publication that a shard is processing.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    pub(crate) parts: Parts<'a>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: u64,
    /// The packet as received, if a receiver with QoS 0 and the same protocol version can get it
    /// unchanged; and whether it is of MQTT 5.
    pub(crate) frame: Option<(&'a [u8], bool)>,
    pub(crate) expires: Nanos,
    pub(crate) stamp: Stamp,
    /// The admitted flow to which it belongs.
    pub(crate) watch: Option<Arc<Watch>>,
    /// Whether capacity is reserved at every receiver with QoS above 0.
    pub(crate) promise: Promise,
    /// Bytes reserved in the bound of all sessions, for sessions of this shard that keep it.
    pub(crate) reserved: usize,
    /// The message, created when the first session has to keep it.
    pub(crate) message: Option<Arc<Message>>,
    /// How it is stored.
    pub(crate) keeping: Keeping,
    /// The name in the mesh, once the publication was sent to or received from a neighbour.
    pub(crate) name: Option<Number>,
    /// The number of the previous message, if it is given a name; 0 if there is none.
    pub(crate) follows: u32,
    /// Whether this broker had it before, so that it is sent to neighbours only.
    pub(crate) relayed: bool,
    /// Whether a single session gets it: then the message is not needed afterwards.
    pub(crate) sole: bool,
    /// The publisher, if the publication is retained.
    pub(crate) author: Option<Arc<Author>>,
    /// Policy for full queues that the configuration has for its topic.
    pub(crate) queue_full: Option<QueueFull>,
}

impl<'a> Publication<'a> {
    /// A publication with QoS 0, neither retained nor urgent, and not stored.
    #[inline]
    pub(crate) fn plain(parts: Parts<'a>, publisher: u64) -> Self {
        Self {
            parts,
            qos: QoS::AtMostOnce,
            retain: false,
            publisher,
            frame: None,
            expires: Nanos::MAX,
            stamp: Stamp::PLAIN,
            watch: None,
            promise: Promise::None,
            reserved: 0,
            message: None,
            keeping: Keeping::NOT,
            name: None,
            follows: 0,
            relayed: false,
            sole: false,
            author: None,
            queue_full: None,
        }
    }
}

impl Publication<'_> {
    pub(crate) fn from_message(message: &Arc<Message>, now: Nanos) -> Publication<'_> {
        Publication {
            qos: message.qos,
            retain: message.retain,
            expires: message.expires,
            stamp: message.stamp,
            watch: message.watch.clone(),
            message: Some(message.clone()),
            ..Publication::plain(message.parts(now), message.publisher)
        }
    }

    pub(crate) fn message(&mut self, messages: &mut Messages) -> Arc<Message> {
        if let Some(message) = &self.message {
            return message.clone();
        }
        let message = messages.make(&self.parts, self.traits());
        self.message.insert(message).clone()
    }

    /// The same for the session that keeps it last.
    #[inline]
    pub(crate) fn last_message(&mut self, messages: &mut Messages) -> Arc<Message> {
        match (self.sole, self.message.take()) {
            (true, Some(message)) => message,
            (true, None) => messages.make_for_one(&self.parts, self.traits()),
            (false, message) => {
                self.message = message;
                self.message(messages)
            }
        }
    }

    #[inline]
    fn traits(&self) -> Traits {
        Traits {
            qos: self.qos,
            retain: self.retain,
            expires: self.expires,
            publisher: self.publisher,
            stamp: self.stamp,
            watch: self.watch.clone(),
            stored: self.keeping.message,
            name: self.name.and_then(Number::name_key).unwrap_or(0),
        }
    }

    /// The name of the publication, or a new one.
    pub(crate) fn named(&mut self, directory: &Directory) -> Option<Number> {
        if self.name.is_none() {
            let name = directory.new_name().map(Number::from);
            self.name = name.map(|name| name.after(self.follows));
        }
        self.name
    }

    /// The class of the publication for one receiver.
    #[inline]
    pub(crate) fn class_for(&self, target: &Target) -> Class {
        match self.stamp.class() {
            Class::RealTime if target.demoted => Class::Normal,
            class => class,
        }
    }

    /// The capacity that the publication needs at one receiver. Neighbours handle expiry
    /// themselves.
    #[inline]
    pub(crate) fn need(&self, target: &Target) -> Need {
        Need {
            class: self.class_for(target),
            size: self.size(),
            fleeting: self.expires != Nanos::MAX && !target.session.link,
            throttled: self.qos != QoS::AtMostOnce
                && !self.stamp.class().is_urgent()
                && target
                    .session
                    .is_kept_back(self.parts.topic, self.retain, self.is_older()),
        }
    }

    /// See [`overtakes_held`].
    #[inline]
    fn is_older(&self) -> bool {
        overtakes_held(self.expires, self.name)
    }

    /// Whether the publication has to wait for deferred messages on its topic for that receiver.
    #[inline]
    pub(crate) fn is_behind(&self, target: &Target, queue: &Queue) -> bool {
        queue.has_throttled(self.parts.topic) && !(self.is_older() && target.session.holds())
    }

    pub(crate) fn size(&self) -> usize {
        self.parts.topic.len() + self.parts.properties.len() + self.parts.payload.len()
    }
}
