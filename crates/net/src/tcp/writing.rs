//! Writing: plain connections straight from the broker's buffers, others through their layer.

use std::io::{self, IoSlice, Write as _};

use punctual_broker::{ConnId, Nanos, Scope, Shard};

use super::Tcp;
use super::link::Link;
use super::options::takes_more;
use super::reading::{CALL, WIRE};
use super::unwritten::WriteBuffer;
use crate::transport::Context;

/// Bytes that are written in one call to a client that is sent nothing urgent.
const WRITE: usize = 512 << 10;

impl Tcp {
    /// Writes to a link as much as it takes. Where others may have to be served first, one call after
    /// the time is over is the last one; the rest waits for the next turn.
    pub(super) fn write(&mut self, cx: &mut Context, id: ConnId, scope: Scope, now: Nanos) {
        let in_turns = scope == Scope::All && (cx.promises || now < cx.urgent_until);
        let until = cx.asked + cx.slice;
        let most = match in_turns {
            true => CALL,
            false => WRITE,
        };
        let Self {
            links,
            ready,
            options,
            marking,
            ..
        } = self;
        let link = links.get_mut(id.slot as usize);
        let link = link.and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|link| link.id == id && !link.blocked) else {
            return;
        };
        let class = cx.shard.class(id);
        if class != link.class {
            link.classify(class, marking, options);
        }
        let step = match link.tuned {
            true => options.urgent_step(),
            false => usize::MAX,
        };
        // Whether others are to have their turn between two calls.
        let clock = cx.clock;
        let is_over = || in_turns && clock.now() >= until;
        let result = match link.layer {
            None if link.wire.rest().is_empty() => {
                flush_plain(&mut cx.shard, link, scope, (most, step), is_over, now)
            }
            _ => flush_layered(&mut cx.shard, link, scope, step, is_over, now),
        };
        match result {
            Ok(all) => {
                if !all {
                    cx.connections.mark(id);
                }
                if link.layer.is_some() && link.readable {
                    // It may not have been read from because of what it had to send.
                    link.list(ready, &cx.shard);
                }
            }
            Err(error) => {
                let is_reset = matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                );
                // What came before counts here, too: reading ends with the end.
                if is_reset && !link.paused {
                    link.wire = WriteBuffer::default();
                    link.closing = true;
                    link.readable = true;
                    link.blocked = true;
                    link.list(ready, &cx.shard);
                } else {
                    cx.lose(id, &error.to_string(), now);
                }
            }
        }
    }
}

/// Writes a plain connection's bytes straight from the broker's buffers, at most
/// `most` of them in one call and `step` before it asks whether the kernel wants
/// more. False if there may be more, and the time is over.
fn flush_plain(
    shard: &mut Shard,
    link: &mut Link,
    scope: Scope,
    (most, step): (usize, usize),
    is_over: impl Fn() -> bool,
    now: Nanos,
) -> io::Result<bool> {
    loop {
        let (result, wanted, cut) = {
            let mut slices = [IoSlice::new(&[]); 32];
            let filled = shard.pending(link.id, scope, now, &mut slices);
            if filled == 0 {
                return Ok(true);
            }
            let (mut count, mut all) = (1, slices[0].len().min(most));
            for slice in &slices[1..filled] {
                if all + slice.len() > most {
                    break;
                }
                (count, all) = (count + 1, all + slice.len());
            }
            if count == 1 || all > step {
                let piece = &slices[0][..slices[0].len().min(all).min(step)];
                (link.stream.write(piece), piece.len(), piece.len() < all)
            } else {
                let result = link.stream.write_vectored(&slices[..count]);
                (result, all, false)
            }
        };
        match result {
            Ok(n) => {
                link.owes_ack = false;
                let more = shard.sent(link.id, n, now);
                if n < wanted || (cut && !takes_more(&link.stream)) {
                    link.blocked = true;
                    return Ok(true);
                }
                if !more {
                    return Ok(true);
                }
                if is_over() {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.blocked = true;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a layered connection's bytes through its layer. False if there may be
/// more, and the time is over.
fn flush_layered(
    shard: &mut Shard,
    link: &mut Link,
    scope: Scope,
    step: usize,
    is_over: impl Fn() -> bool,
    now: Nanos,
) -> io::Result<bool> {
    // What is in its wire form cannot be overtaken any more.
    let ahead = step.min(WIRE);
    loop {
        if let Some(layer) = &mut link.layer
            && layer.established()
        {
            while link.wire.rest().len() < ahead {
                let (result, taken) = {
                    let mut slices = [IoSlice::new(&[]); 1];
                    if shard.pending(link.id, scope, now, &mut slices) == 0 {
                        break;
                    }
                    let piece = &slices[0][..slices[0].len().min(ahead)];
                    (layer.send(piece, link.wire.end()), piece.len())
                };
                result.map_err(io::Error::other)?;
                shard.sent(link.id, taken, now);
            }
        }
        if link.wire.rest().is_empty() {
            link.wire.release();
            return Ok(true);
        }
        match link.stream.write(link.wire.rest()) {
            Ok(n) => {
                link.owes_ack = false;
                link.wire.advance(n);
                if link.wire.rest().is_empty() && link.layer.is_none() {
                    return Ok(true);
                }
                if is_over() {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.blocked = true;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
