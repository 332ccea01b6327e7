//! What is to be told, and the thread that writes first what has to outlive a
//! restart.
//!
//! Invariants: what a client is told of its flows is on disk before; everything is
//! told in the order in which it was decided; nobody who decides waits for the disk.
//! While something is being written, what is decided meanwhile gathers, and goes to
//! the disk with one write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

use punctual_manager::{Change, State};

use super::{AdmissionService, Event, ShardReply, TICK};
use crate::error::Error;
use crate::realtime::{self, Precedence};

/// Replaces what is kept.
pub(super) type Write = Box<dyn Fn(&State) -> Result<(), String> + Send>;

/// Something to notify somebody of.
pub(super) enum Item {
    /// To whom it may concern.
    Change(Change),
    /// To who asked.
    Reply(ShardReply),
    /// To who has changed something over the API.
    Caller(Box<dyn FnOnce() + Send>),
}

/// Items, and what has to be written before they are told.
struct Batch {
    state: Option<State>,
    items: Vec<Item>,
}

/// The way of what is told.
pub(super) struct Outbox {
    service: AdmissionService,
    /// In the order of the decisions.
    items: Vec<Item>,
    /// `None` where nothing is kept.
    writer: Option<Writer>,
}

struct Writer {
    batches: Sender<Batch>,
    /// All batches have been told.
    idle: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Outbox {
    /// One that writes in a thread of that precedence, if something is to be kept.
    pub(super) fn open(
        service: &AdmissionService,
        write: Option<Write>,
        precedence: Option<Precedence>,
    ) -> Result<Self, Error> {
        let writer = match write {
            None => None,
            Some(write) => {
                let (batches, waiting) = channel();
                let idle = Arc::new(AtomicBool::new(true));
                let (service, free) = (service.clone(), idle.clone());
                let thread = thread::Builder::new().name("flows".into()).spawn(move || {
                    realtime::put_first(precedence, "the file of flows");
                    run(&service, &write, &waiting, &free);
                })?;
                Some(Writer {
                    batches,
                    idle,
                    thread,
                })
            }
        };
        Ok(Self {
            service: service.clone(),
            items: Vec::new(),
            writer,
        })
    }

    /// Takes what is to be told after all that has been decided before.
    pub(super) fn add(&mut self, items: impl IntoIterator<Item = Item>) {
        self.items.extend(items);
    }

    /// Tells what was added, or has the writer do so if there is a new state. If that
    /// is writing something else, this is for a later call, which it asks for.
    pub(super) fn send(&mut self, new_state: impl FnOnce() -> Option<State>) {
        let Some(writer) = &self.writer else {
            return notify(&self.service, std::mem::take(&mut self.items));
        };
        if !writer.idle.load(Ordering::Acquire) {
            return;
        }
        let items = std::mem::take(&mut self.items);
        match new_state() {
            Some(state) => {
                writer.idle.store(false, Ordering::Release);
                let state = Some(state);
                // The writer is there until it is closed.
                let _ = writer.batches.send(Batch { state, items });
            }
            None => notify(&self.service, items),
        }
    }

    /// Writes and tells the rest, and ends the writer.
    pub(super) fn close(self, new_state: impl FnOnce() -> Option<State>) {
        let Some(writer) = self.writer else {
            return notify(&self.service, self.items);
        };
        let (state, items) = (new_state(), self.items);
        let _ = writer.batches.send(Batch { state, items });
        drop(writer.batches);
        // It panicked if this fails, which the log has.
        let _ = writer.thread.join();
    }
}

fn notify(service: &AdmissionService, items: Vec<Item>) {
    let sink = &service.shared.sink;
    for item in items {
        match item {
            Item::Change(change) => sink.notify(change),
            Item::Reply(reply) => sink.reply(service, reply),
            Item::Caller(done) => done(),
        }
    }
}

/// What the writer does. What cannot be written is tried again.
fn run(service: &AdmissionService, write: &Write, batches: &Receiver<Batch>, idle: &AtomicBool) {
    let mut unwritten: Option<State> = None;
    loop {
        let batch = match &unwritten {
            Some(_) => batches.recv_timeout(TICK),
            None => batches.recv().map_err(RecvTimeoutError::from),
        };
        let batch = match batch {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let (state, items) = batch.map_or((None, None), |it| (it.state, Some(it.items)));
        let is_new = state.is_some();
        unwritten = state.or(unwritten);
        match unwritten.as_ref().map(write) {
            Some(Err(error)) if is_new => tracing::error!("{error}"),
            Some(Err(_)) => {}
            Some(Ok(())) | None => unwritten = None,
        }
        if let Some(items) = items {
            notify(service, items);
            idle.store(true, Ordering::Release);
            // What has gathered may go now. Without a reader nothing has.
            let _ = service.shared.events.send(Event::Written);
        }
    }
}
