//! Tracing the path of a topic. A trace travels wherever a publication on its topic would travel. Each
//! broker on the path sends a reply back along that path, with the number of links on which it forwarded
//! the trace, so that the origin knows when all replies have arrived. Brokers between store nothing.

use punctual_model::Nanos;

use super::{Node, Output};
use crate::id::LinkId;
use crate::wire::{MAX_TRACE, Message, Trace, TraceReply};

impl Node {
    /// Traces a topic to all brokers that would receive a publication on it. Replies come as
    /// [`Output::TraceReply`] with the returned number.
    pub fn trace(&mut self, topic: &str, now: Nanos) -> u64 {
        self.traces += 1;
        let trace = Trace {
            origin: self.settings.id.clone(),
            number: self.traces,
            topic: topic.into(),
            path: Vec::new(),
        };
        self.follow(None, trace);
        self.settle(now);
        self.traces
    }

    /// Replies to a trace, and forwards it.
    pub(super) fn follow(&mut self, from: Option<LinkId>, mut trace: Trace) {
        let id = self.settings.id.clone();
        if trace.path.len() >= MAX_TRACE - 1 || trace.path.iter().any(|(passed, _)| *passed == id) {
            return;
        }
        let (subscribed, mut links) = self.filters.table.receivers(&trace.topic);
        links.retain(|link| Some(*link) != from && self.links.carries(*link));
        let mut path = trace.path.clone();
        path.push((id.clone(), 0));
        let traced = TraceReply {
            number: trace.number,
            left: path.len() as u8 - 1,
            path,
            subscribed,
            next: links.len() as u8,
        };
        self.traced(traced);
        trace.path.push((id.clone(), 0));
        for link in links {
            if let Some((_, micros)) = trace.path.last_mut() {
                let rtt = self.links.get(link).and_then(|next| next.rtt());
                *micros = rtt.map_or(0, |rtt| rtt.0 / 1000);
            }
            self.outputs.send(link, &Message::Trace(trace.clone()));
        }
    }

    /// Forwards a reply towards the origin of its trace.
    pub(super) fn traced(&mut self, mut traced: TraceReply) {
        let at = usize::from(traced.left);
        if traced
            .path
            .get(at)
            .is_none_or(|(id, _)| *id != self.settings.id)
        {
            return;
        }
        let Some(before) = at.checked_sub(1) else {
            self.outputs.push(Output::TraceReply(traced));
            return;
        };
        traced.left -= 1;
        let next = traced.path.get(before);
        if let Some((next, _)) = next.and_then(|(id, _)| self.links.to(id)) {
            self.outputs.send(next, &Message::TraceReply(traced));
        }
    }
}
