//! A publication on its way through the shard.

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

/// Whether a publication has been promised room in queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// No: where there is no room, the policy for full queues decides.
    None,
    /// To be asked for by its only receiver, should it have to wait there.
    Due,
    /// Yes, wherever its QoS is above 0.
    Made,
    /// Its only receiver has no room.
    Refused,
}

/// A publication on its way through the shard.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    pub(crate) parts: Parts<'a>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: u64,
    /// The packet as received, if a receiver with QoS 0 and the same protocol
    /// can have it as it is; and whether it is MQTT 5.
    pub(crate) frame: Option<(&'a [u8], bool)>,
    pub(crate) expires: Nanos,
    pub(crate) stamp: Stamp,
    /// The admitted flow that it is of.
    pub(crate) watch: Option<Arc<Watch>>,
    /// Whether there is room for it wherever its QoS is above 0.
    pub(crate) promise: Promise,
    /// Bytes reserved among those of all sessions, for those that keep it here.
    pub(crate) reserved: usize,
    /// Made when someone has to keep the message.
    pub(crate) message: Option<Arc<Message>>,
    /// How it is stored.
    pub(crate) keeping: Keeping,
    /// What it is called in the mesh, once it has gone to or come from a neighbour.
    pub(crate) name: Option<Number>,
    /// The number of what came before it, if it is given a name; 0 if nothing did.
    pub(crate) follows: u32,
    /// It was here before, and goes to neighbours only.
    pub(crate) relayed: bool,
    /// One session is all that gets it: nobody asks for the message after that one.
    pub(crate) sole: bool,
    /// Who published it, if it is to be retained.
    pub(crate) author: Option<Arc<Author>>,
    /// Policy for full queues that the configuration has for its topic.
    pub(crate) queue_full: Option<QueueFull>,
}

impl<'a> Publication<'a> {
    /// With QoS 0, neither retained nor urgent, and kept nowhere.
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

    /// Its name, or a new one.
    pub(crate) fn named(&mut self, directory: &Directory) -> Option<Number> {
        if self.name.is_none() {
            let name = directory.new_name().map(Number::from);
            self.name = name.map(|name| name.after(self.follows));
        }
        self.name
    }

    /// Its class for one receiver.
    #[inline]
    pub(crate) fn class_for(&self, target: &Target) -> Class {
        match self.stamp.class() {
            Class::RealTime if target.demoted => Class::Normal,
            class => class,
        }
    }

    /// What it needs of one receiver. Neighbours see for themselves what expires.
    #[inline]
    pub(crate) fn need(&self, target: &Target) -> Need {
        Need {
            class: self.class_for(target),
            size: self.size(),
            fleeting: self.expires != Nanos::MAX && !target.session.link,
            braked: self.qos != QoS::AtMostOnce
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

    /// Whether the publication has to wait for messages on its topic that are kept back for that receiver.
    #[inline]
    pub(crate) fn is_behind(&self, target: &Target, queue: &Queue) -> bool {
        queue.has_braked(self.parts.topic) && !(self.is_older() && target.session.holds())
    }

    pub(crate) fn size(&self) -> usize {
        self.parts.topic.len() + self.parts.properties.len() + self.parts.payload.len()
    }
}
