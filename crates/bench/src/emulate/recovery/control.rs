//! The project's controller for the switches of an emulated network. Requests reach it as function
//! calls instead of through the table of requirements.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc as channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_controller::{Controller, Effect, Event, Settings};
use punctual_model::Nanos;
use punctual_southbound::openflow::{ListenOptions, Switches};
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Silence after which the controller sends an echo request to a switch.
const PROBE: Duration = Duration::from_secs(5);

/// Longest wait for the controller's next timer, ns: one day.
const MAX_WAIT: u64 = 86_400_000_000_000;

/// A running controller, which ends when this value is dropped.
pub(super) struct Control {
    controller: Arc<Mutex<Controller>>,
    events: Option<mpsc::UnboundedSender<Event>>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts a controller that listens in `namespace`, under `SCHED_FIFO` (0: the normal class).
    pub(super) fn start(namespace: &Namespace, settings: &Settings, fifo: u8) -> Result<Self> {
        let controller = Arc::new(Mutex::new(Controller::new(settings)));
        let (events, told) = mpsc::unbounded_channel();
        let (ready, listening) = channel::channel();
        let (inside, own) = (namespace.clone(), controller.clone());
        let thread = thread::spawn(move || {
            // If the namespace cannot be entered, `ready` is dropped, and the receiver below
            // returns an error.
            let _ = inside.enter(|| serve(&own, told, &ready, fifo));
        });
        let failed = || Error::io("cannot start the controller");
        let address = match listening.recv() {
            Ok(address) => address.map_err(failed())?,
            Err(_) => return Err(failed()(io::ErrorKind::Other.into())),
        };
        Ok(Self {
            controller,
            events: Some(events),
            address,
            thread: Some(thread),
        })
    }

    /// The controller's address, as Open vSwitch writes it.
    pub(super) fn target(&self) -> String {
        format!("tcp:{}", self.address)
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // If the controller has ended, the event has no effect, and the waiting caller times
            // out.
            let _ = events.send(event);
        }
    }

    /// Calls `look` with the controller, which handles no events in the meantime.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Controller) -> T) -> T {
        look(&lock(&self.controller))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.events = None;
        if let Some(thread) = self.thread.take() {
            // The panic message has already been printed.
            let _ = thread.join();
        }
    }
}

fn lock(controller: &Mutex<Controller>) -> MutexGuard<'_, Controller> {
    controller.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the controller until its event channel is closed.
fn serve(
    controller: &Mutex<Controller>,
    told: mpsc::UnboundedReceiver<Event>,
    ready: &channel::Sender<io::Result<SocketAddr>>,
    fifo: u8,
) {
    let runtime = sys::set_fifo(fifo).and_then(|()| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    });
    let listen = ListenOptions {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        tls: None,
        generation: 1,
        probe_interval: PROBE,
    };
    let ended = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let switches = Switches::listen(listen).await?;
            // `Control::start` waits for this message.
            let _ = ready.send(Ok(switches.address()));
            control(controller, told, switches).await;
            Ok(())
        })
    });
    if let Err(error) = ended {
        let _ = ready.send(Err(error));
    }
}

async fn control(
    controller: &Mutex<Controller>,
    mut told: mpsc::UnboundedReceiver<Event>,
    mut switches: Switches,
) {
    let started = Instant::now();
    let sender = switches.sender();
    let mut effects = Vec::new();
    loop {
        let tick = lock(controller).next_tick();
        let alarm = started + Duration::from_nanos(tick.0.min(MAX_WAIT));
        let event = select! {
            event = switches.next() => event.map(Event::from),
            event = told.recv() => event,
            () = sleep_until(alarm) => Some(Event::Tick),
        };
        let Some(event) = event else {
            return;
        };
        let now = Nanos(started.elapsed().as_nanos() as u64);
        lock(controller).handle(event, now, &mut effects);
        for effect in effects.drain(..) {
            if let Effect::Send {
                datapath,
                xid,
                message,
            } = effect
            {
                // If the switch has disconnected, the controller gets an event about it.
                sender.send(datapath, xid, message);
            }
        }
    }
}
