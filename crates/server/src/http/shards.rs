//! Questions to the shards.
//!
//! A question is a closure that the shard's thread runs between two messages,
//! so it has to be short: one look-up, or one [`SLICE`] of a list. A
//! shard that does not answer in time is reported, never waited for, and has at
//! most [`WAITING`] questions in its mailbox, however many requests there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_broker::{Nanos, Shard};
use punctual_net::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::error::ApiError;

/// How long a shard may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Questions to one shard at the same time; others wait for them here.
const WAITING: usize = 16;
/// How long a shard looks at entries of a list for one question; the step that
/// it is in comes to its end.
const SLICE: Duration = Duration::from_micros(50);
/// Entries of one step.
pub(super) const STEP: u32 = 64;
/// Pause between two slices, so that a long list takes a small share of a
/// shard's time.
const PAUSE: Duration = Duration::from_millis(1);

/// The shards of the broker.
#[derive(Clone)]
pub(super) struct Shards {
    handle: Handle,
    gates: Arc<[Arc<Semaphore>]>,
    /// One list is put together at a time.
    lists: Arc<Semaphore>,
}

/// A shard has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoAnswer {
    pub(super) shard: usize,
}

impl From<NoAnswer> for ApiError {
    fn from(NoAnswer { shard }: NoAnswer) -> Self {
        Self::unavailable(
            format!("shard {shard} does not answer within {PATIENCE:?}"),
            "try again; if it stays so the broker is overloaded or stuck: see its log and \
             punctual_event_loop_drift_seconds in /metrics",
        )
    }
}

impl Shards {
    pub(super) fn new(handle: Handle) -> Self {
        let gates = (0..handle.shards()).map(|_| Arc::new(Semaphore::new(WAITING)));
        Self {
            gates: gates.collect(),
            handle,
            lists: Arc::new(Semaphore::new(1)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.gates.len()
    }

    /// Asks one shard. A question that is not answered in time is not run
    /// later.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        question: impl FnOnce(&mut Shard, Nanos) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let asking = async {
            let place = self.gates[shard].clone().acquire_owned().await.ok()?;
            let (answer, answered) = oneshot::channel();
            self.handle.call(shard, move |shard, now| {
                if !answer.is_closed() {
                    // Whoever asked may be gone by now.
                    let _ = answer.send(question(shard, now));
                }
                drop(place);
            });
            answered.await.ok()
        };
        let answer = timeout(PATIENCE, asking).await.ok().flatten();
        answer.ok_or(NoAnswer { shard })
    }

    /// Asks all shards at once; the answers are in their order.
    pub(super) async fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&mut Shard, Nanos) -> T + Clone + Send + 'static,
    ) -> Vec<Result<T, NoAnswer>> {
        let mut asking = JoinSet::new();
        for shard in 0..self.len() {
            let (shards, question) = (self.clone(), question.clone());
            asking.spawn(async move { (shard, shards.ask(shard, question).await) });
        }
        let mut answers: Vec<_> = (0..self.len())
            .map(|shard| Err(NoAnswer { shard }))
            .collect();
        while let Some(done) = asking.join_next().await {
            if let Ok((shard, answer)) = done {
                answers[shard] = answer;
            }
        }
        answers
    }

    /// Puts a list together, shard by shard and slice by slice. `step` adds to
    /// the list what it finds from a position on, and says where to go on.
    pub(super) async fn list<L, P>(
        &self,
        mut list: L,
        step: impl Fn(&Shard, P, &mut L) -> Option<P> + Clone + Send + 'static,
    ) -> Result<L, NoAnswer>
    where
        L: Send + 'static,
        P: Default + Send + 'static,
    {
        // The semaphore is never closed, so that this always is the turn.
        let _turn = self.lists.acquire().await;
        for shard in 0..self.len() {
            let mut position = Some(P::default());
            while let Some(from) = position {
                let step = step.clone();
                let question = move |shard: &mut Shard, _| {
                    let started = Instant::now();
                    let mut position = step(shard, from, &mut list);
                    while let Some(from) = position.take_if(|_| started.elapsed() < SLICE) {
                        position = step(shard, from, &mut list);
                    }
                    (list, position)
                };
                (list, position) = self.ask(shard, question).await?;
                if position.is_some() {
                    sleep(PAUSE).await;
                }
            }
        }
        Ok(list)
    }
}
