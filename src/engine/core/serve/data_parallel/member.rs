//! One engine on its own thread, on which its device is opened, used and closed.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::load::beside::LOADING_STACK;
use crate::serve::runner::{Runner, Work};
use crate::stats::EngineStats;
use crate::{EngineInfo, Shared};
use vllm_batch_api::answer::Answer;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::machine::no_thread;

use super::LoadEngine;

/// What an engine tells the thread that has them all.
pub(super) struct Stepped {
    /// Which one.
    pub engine: usize,
    /// Orders that it had received before the step.
    pub num_received: u64,
    /// After the step.
    pub stats: EngineStats,
    /// What the step finished.
    pub result: Result<Vec<Answer>, EngineError>,
}

/// What an engine is told.
pub(super) enum Order {
    /// A request.
    Add(Box<Work>),
    /// The end of one, by its number.
    Abort(u64),
}

/// What was loaded.
pub(super) struct Loaded {
    pub info: EngineInfo,
    pub shared: Shared,
    pub makes_vectors: bool,
}

/// An engine on its thread. Dropped, it ends after the step that it is in.
pub(super) struct Member {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    loaded: Receiver<Result<Loaded, EngineError>>,
}

impl Member {
    /// Begins to load an engine; with what another one shares, if there is one.
    pub(super) fn start(
        engine: usize,
        config: EngineConfig,
        (load, shared): (LoadEngine, Option<Shared>),
        steps: Sender<Stepped>,
    ) -> Result<Self, EngineError> {
        let (orders, incoming) = channel();
        let (loaded_sender, loaded) = channel();
        let run = move || {
            let mut runner = match load(&config, shared) {
                Ok(runner) => runner,
                Err(error) => {
                    let _ = loaded_sender.send(Err(error));
                    return;
                }
            };
            let what = Loaded {
                info: runner.info().clone(),
                shared: runner.shared(),
                makes_vectors: runner.makes_vectors(),
            };
            if loaded_sender.send(Ok(what)).is_ok() {
                serve(engine, &mut runner, &incoming, &steps);
            }
        };
        let thread = std::thread::Builder::new().name(format!("engine {engine}"));
        let thread = thread.stack_size(LOADING_STACK).spawn(run);
        let thread = thread.map_err(|error| no_thread(&error))?;
        Ok(Self { orders: Some(orders), thread: Some(thread), loaded })
    }

    /// Waits until it is loaded.
    ///
    /// # Errors
    /// It cannot be.
    pub(super) fn loaded(&self) -> Result<Loaded, EngineError> {
        let ended = || EngineError::Device("its thread has ended while it loaded".to_owned());
        self.loaded.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Gives it an order. What happens to one that an ended thread gets, `has_ended` says.
    pub(super) fn send(&self, order: Order) {
        let orders = self.orders.as_ref().expect("it is there until the drop");
        let _ = orders.send(order);
    }

    /// Whether its thread has ended, which only a failure makes it do.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Steps until nobody gives orders any more, or the device fails.
fn serve(engine: usize, runner: &mut Runner, incoming: &Receiver<Order>, steps: &Sender<Stepped>) {
    let mut num_received = 0;
    loop {
        let received = match runner.has_unfinished_requests() {
            true => incoming.try_recv(),
            false => incoming.recv().map_err(|_| TryRecvError::Disconnected),
        };
        match received {
            Ok(order) => {
                num_received += 1;
                match order {
                    Order::Add(work) => runner.add_request(*work),
                    Order::Abort(request_id) => drop(runner.abort_request(request_id)),
                }
                // After the end of the last request one more step says that none is left.
                if runner.has_unfinished_requests() {
                    continue;
                }
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        let result = runner.step();
        let has_failed = result.is_err();
        let stepped = Stepped { engine, num_received, stats: runner.stats(), result };
        if steps.send(stepped).is_err() || has_failed {
            return;
        }
    }
}
