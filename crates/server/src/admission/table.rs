//! The requirements table behind the service: a thread with the connection to the
//! database, and the events that it sends.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use punctual_manager::RequirementsTable;
use punctual_model::srt::Request;
use punctual_southbound::srt::{ManagerOptions, ManagerSide};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Event, Timing};
use crate::error::Error;
use crate::realtime::{self, Precedence};

/// The table as the remote manager writes it; with it the thread ends.
struct Link {
    side: ManagerSide,
    runtime: Handle,
    events: Sender<Event>,
    timing: Arc<Timing>,
    /// Dropped to end the thread.
    life: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.life = None;
        if let Some(thread) = self.thread.take() {
            // It panicked if this fails, which the log has.
            let _ = thread.join();
        }
    }
}

impl RequirementsTable for Link {
    fn ask(&mut self, request: Request) -> u64 {
        let began = Instant::now();
        let asking = self.side.begin(request);
        let generation = asking.generation();
        let (events, timing) = (self.events.clone(), self.timing.clone());
        self.runtime.spawn(async move {
            let channel = asking.decided().await;
            timing.add(began.elapsed());
            // Without a reader the service has closed.
            let _ = events.send(Event::Decided(channel));
        });
        generation
    }

    fn withdraw(&mut self, flow: &str) {
        self.side.withdraw(flow);
    }
}

/// Begins to connect, in a thread of that precedence. Decisions are sent as events.
pub(super) fn open(
    options: ManagerOptions,
    precedence: Option<Precedence>,
    events: Sender<Event>,
    timing: Arc<Timing>,
) -> Result<Box<dyn RequirementsTable>, Error> {
    let (started, starting) = channel();
    let (life, ended) = oneshot::channel::<()>();
    let news = events.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    let thread = thread::Builder::new().name("srt".into());
    let thread = thread.spawn(move || {
        realtime::put_first(precedence, "the connection to the table");
        runtime.block_on(async move {
            let side = match ManagerSide::start(options) {
                Ok(side) => side,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let _ = started.send(Ok(side.clone()));
            let forward =
                async { while news.send(Event::Decided(side.next_change().await)).is_ok() {} };
            tokio::select! {
                () = forward => {}
                _ = ended => {}
            }
        });
        // A look-up of a name may still be under way.
        runtime.shutdown_background();
    })?;
    let side = starting
        .recv()
        .map_err(|_| "the connection to the table could not be begun")?
        .map_err(|error| format!("admission.srt: {error}"))?;
    Ok(Box::new(Link {
        side,
        runtime: handle,
        events,
        timing,
        life: Some(life),
        thread: Some(thread),
    }))
}
