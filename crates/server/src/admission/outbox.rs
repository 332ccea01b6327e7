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

use super::{Letter, Office, Post, TICK};
use crate::error::Error;
use crate::realtime::{self, Precedence};

/// Replaces what is kept.
pub(super) type Write = Box<dyn Fn(&State) -> Result<(), String> + Send>;

/// Something to tell.
pub(super) enum Item {
    /// To whom it may concern.
    Change(Change),
    /// To who asked.
    Letter(Letter),
    /// To who has changed something over the API.
    Visitor(Box<dyn FnOnce() + Send>),
}

/// Items, and what has to be written before they are told.
struct Parcel {
    state: Option<State>,
    items: Vec<Item>,
}

/// The way of what is told.
pub(super) struct Outbox {
    office: Office,
    /// In the order of the decisions.
    items: Vec<Item>,
    /// `None` where nothing is kept.
    writer: Option<Writer>,
}

struct Writer {
    parcels: Sender<Parcel>,
    /// All parcels have been told.
    idle: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Outbox {
    /// One that writes in a thread of that precedence, if something is to be kept.
    pub(super) fn open(
        office: &Office,
        write: Option<Write>,
        precedence: Option<Precedence>,
    ) -> Result<Self, Error> {
        let writer = match write {
            None => None,
            Some(write) => {
                let (parcels, waiting) = channel();
                let idle = Arc::new(AtomicBool::new(true));
                let (office, free) = (office.clone(), idle.clone());
                let thread = thread::Builder::new().name("flows".into()).spawn(move || {
                    realtime::put_first(precedence, "the file of flows");
                    run(&office, &write, &waiting, &free);
                })?;
                Some(Writer {
                    parcels,
                    idle,
                    thread,
                })
            }
        };
        Ok(Self {
            office: office.clone(),
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
            return tell(&self.office, std::mem::take(&mut self.items));
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
                let _ = writer.parcels.send(Parcel { state, items });
            }
            None => tell(&self.office, items),
        }
    }

    /// Writes and tells the rest, and ends the writer.
    pub(super) fn close(self, new_state: impl FnOnce() -> Option<State>) {
        let Some(writer) = self.writer else {
            return tell(&self.office, self.items);
        };
        let (state, items) = (new_state(), self.items);
        let _ = writer.parcels.send(Parcel { state, items });
        drop(writer.parcels);
        // It panicked if this fails, which the log has.
        let _ = writer.thread.join();
    }
}

fn tell(office: &Office, items: Vec<Item>) {
    let counter = &office.shared.counter;
    for item in items {
        match item {
            Item::Change(change) => counter.tell(change),
            Item::Letter(letter) => counter.answer(office, letter),
            Item::Visitor(tell) => tell(),
        }
    }
}

/// What the writer does. What cannot be written is tried again.
fn run(office: &Office, write: &Write, parcels: &Receiver<Parcel>, idle: &AtomicBool) {
    let mut unwritten: Option<State> = None;
    loop {
        let parcel = match &unwritten {
            Some(_) => parcels.recv_timeout(TICK),
            None => parcels.recv().map_err(RecvTimeoutError::from),
        };
        let parcel = match parcel {
            Ok(parcel) => Some(parcel),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let (state, items) = parcel.map_or((None, None), |it| (it.state, Some(it.items)));
        let is_new = state.is_some();
        unwritten = state.or(unwritten);
        match unwritten.as_ref().map(write) {
            Some(Err(error)) if is_new => tracing::error!("{error}"),
            Some(Err(_)) => {}
            Some(Ok(())) | None => unwritten = None,
        }
        if let Some(items) = items {
            tell(office, items);
            idle.store(true, Ordering::Release);
            // What has gathered may go now. Without a reader nothing has.
            let _ = office.shared.posts.send(Post::Written);
        }
    }
}
