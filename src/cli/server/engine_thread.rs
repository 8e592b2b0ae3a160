//! `EngineThread`: the engine, stepped by the thread that owns it, for requests that come over a
//! channel. A request whose asker has gone away frees its blocks before the next step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::metrics::Metrics;
use vllm_batch_api::answer::Answer;
use vllm_batch_base::EngineError;
use vllm_batch_engine::EngineInfo;
use vllm_batch_engine::serve::runner::{Runner, Work};
use vllm_batch_engine::stats::EngineStats;

/// How often an engine without work looks whether it is to end.
const IDLE: Duration = Duration::from_millis(50);

/// What the engine is told.
enum Order {
    Add { request_id: u64, work: Box<Work>, answers: Sink },
    Abort(u64),
}

/// Where answers go.
#[derive(Clone)]
enum Sink {
    /// To a request that somebody waits for.
    Request(UnboundedSender<Answer>),
    /// To a batch.
    Batch(Sender<Answer>),
}

impl Sink {
    /// Whoever is gone has said so, or will.
    fn send(&self, answer: Answer) {
        match self {
            Sink::Request(asker) => drop(asker.send(answer)),
            Sink::Batch(batch) => drop(batch.send(answer)),
        }
    }
}

/// How the thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nobody can ask any more, and all are answered.
    Answered,
    /// It was told to, with requests that are not answered.
    Told,
}

/// The engine, and where requests come from.
pub struct EngineThread {
    engine: Runner,
    orders: Receiver<Order>,
    shared: Arc<Shared>,
    /// Where answers go, by the number of their request.
    askers: HashMap<u64, Sink>,
}

/// What everybody looks at.
struct Shared {
    info: EngineInfo,
    makes_vectors: bool,
    num_unfinished: AtomicUsize,
    next_id: AtomicU64,
    has_failed: AtomicBool,
    stats: Mutex<EngineStats>,
    metrics: Mutex<Metrics>,
}

/// Asks the engine. It ends when all of these are gone.
#[derive(Clone)]
pub(crate) struct Asker {
    orders: Sender<Order>,
    shared: Arc<Shared>,
}

/// The answers to one request. Dropped before the last of them, it ends the request.
pub(crate) struct Answers {
    request_id: u64,
    received: UnboundedReceiver<Answer>,
    asker: Asker,
    is_finished: bool,
}

impl EngineThread {
    /// An engine that nobody has asked yet.
    pub(crate) fn new(engine: Runner) -> (Self, Asker) {
        let (sender, orders) = channel();
        let shared = Arc::new(Shared {
            info: engine.info().clone(),
            makes_vectors: engine.makes_vectors(),
            num_unfinished: AtomicUsize::new(0),
            next_id: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            stats: Mutex::new(engine.stats()),
            metrics: Mutex::default(),
        });
        let asker = Asker { orders: sender, shared: Arc::clone(&shared) };
        (Self { engine, orders, shared, askers: HashMap::new() }, asker)
    }

    /// Steps the engine for as long as somebody may ask it, or until it is told to end.
    ///
    /// # Errors
    /// The device failed. Requests that are under way get no answer.
    pub fn run(mut self, is_told_to_end: impl Fn() -> bool) -> Result<Ended, EngineError> {
        let ended = self.steps(is_told_to_end);
        self.shared.has_failed.store(ended.is_err(), Ordering::SeqCst);
        ended
    }

    fn steps(&mut self, is_told_to_end: impl Fn() -> bool) -> Result<Ended, EngineError> {
        let mut is_open = true;
        loop {
            if is_told_to_end() {
                return Ok(Ended::Told);
            }
            if !self.engine.has_unfinished_requests() {
                match self.orders.recv_timeout(IDLE) {
                    Ok(order) => self.obey(order),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => is_open = false,
                }
            }
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
            if self.engine.has_unfinished_requests() {
                let answers = self.engine.step()?;
                *lock(&self.shared.stats) = self.engine.stats();
                self.hand_out(answers);
            } else if !is_open {
                return Ok(Ended::Answered);
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Add { request_id, work, answers } => {
                lock(&self.shared.metrics).begun(request_id);
                self.askers.insert(request_id, answers);
                self.engine.add_request(*work);
            }
            Order::Abort(request_id) => {
                if self.askers.remove(&request_id).is_some() {
                    self.engine.abort_request(request_id);
                    lock(&self.shared.metrics).aborted(request_id);
                    *lock(&self.shared.stats) = self.engine.stats();
                }
            }
        }
    }

    fn hand_out(&mut self, answers: Vec<Answer>) {
        for answer in answers {
            let request_id = answer.request_id();
            lock(&self.shared.metrics).answered(&answer);
            let asker = match answer.is_finished() {
                true => self.askers.remove(&request_id),
                false => self.askers.get(&request_id).cloned(),
            };
            if let Some(asker) = asker {
                asker.send(answer);
            }
        }
    }
}

impl Asker {
    /// A number for a request.
    pub(crate) fn next_id(&self) -> u64 {
        self.shared.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks. `request_id`: the number that is in the work.
    pub(crate) fn ask(&self, request_id: u64, work: Work) -> Answers {
        let (answers, received) = unbounded_channel();
        self.shared.num_unfinished.fetch_add(1, Ordering::SeqCst);
        // Of an engine that has ended the receiver gets nothing.
        let answers = Sink::Request(answers);
        let _ = self.orders.send(Order::Add { request_id, work: Box::new(work), answers });
        Answers { request_id, received, asker: self.clone(), is_finished: false }
    }

    /// Asks a row of a batch, for which nobody waits: it keeps no other request out.
    pub(crate) fn ask_for_batch(&self, request_id: u64, work: Work, answers: Sender<Answer>) {
        let answers = Sink::Batch(answers);
        let _ = self.orders.send(Order::Add { request_id, work: Box::new(work), answers });
    }

    /// Ends a request.
    pub(crate) fn abort(&self, request_id: u64) {
        let _ = self.orders.send(Order::Abort(request_id));
    }

    /// What was loaded.
    pub(crate) fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// Whether it makes vectors or classes; else it completes.
    pub(crate) fn makes_vectors(&self) -> bool {
        self.shared.makes_vectors
    }

    /// Requests that are not answered yet.
    pub(crate) fn num_unfinished(&self) -> usize {
        self.shared.num_unfinished.load(Ordering::SeqCst)
    }

    /// Whether the device has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::SeqCst)
    }

    /// Counters of the engine after its last step.
    pub(crate) fn stats(&self) -> EngineStats {
        *lock(&self.shared.stats)
    }

    /// What is counted of requests.
    pub(crate) fn with_metrics<T>(&self, look: impl FnOnce(&mut Metrics) -> T) -> T {
        look(&mut lock(&self.shared.metrics))
    }
}

impl Answers {
    /// The next answer; None: the engine has ended.
    pub(crate) async fn next(&mut self) -> Option<Answer> {
        let answer = self.received.recv().await;
        self.is_finished |= answer.as_ref().is_none_or(Answer::is_finished);
        answer
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.asker.shared.num_unfinished.fetch_sub(1, Ordering::SeqCst);
        if !self.is_finished {
            self.asker.abort(self.request_id);
        }
    }
}

/// A panic ends the process, so no lock is poisoned for long.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
