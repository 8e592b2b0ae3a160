//! A stage on its thread, on which its device is opened, used and closed.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{Counts, LoadedStage, StageOfModel};
use crate::execute::executor::ExecutorError;
use crate::execute::model::stage_rows::StageRows;
use crate::execute::model_executor::ModelExecutor;
use crate::load::beside::LOADING_STACK;
use crate::media_table::MediaTable;
use vllm_batch_base::EngineError;
use vllm_batch_base::machine::no_thread;
use vllm_batch_ops::batch::Batch;

/// A step on its way through the stages.
pub(super) struct Job {
    pub batch: Arc<Batch>,
    /// What the stage before has made of it.
    pub rows: Option<StageRows>,
    /// To the engine, which has it go through the last stage.
    pub reply: Sender<Result<StageRows, ExecutorError>>,
}

/// What the thread of a stage is told.
pub(super) enum Order {
    Step(Job),
    Media(Arc<MediaTable>),
}

/// A stage that is being loaded.
pub(super) struct Loading(Receiver<Result<LoadedStage, EngineError>>);

/// A stage on its thread. Dropped, it ends after the steps that it has.
pub(super) struct Member {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Begins to load a stage, behind which these orders go on; None: behind it is the last one.
    /// The first stage of a model counts.
    pub(super) fn start(
        stage: StageOfModel,
        next: Option<Sender<Order>>,
        counts: Arc<Mutex<Counts>>,
    ) -> Result<(Self, Loading), EngineError> {
        let (orders, incoming) = channel();
        let (loaded_sender, loaded) = channel();
        let thread = std::thread::Builder::new().name(format!("stage {}", stage.index));
        let index = stage.index;
        let run = move || {
            let loaded = stage.load();
            let (what, mut executor) = match loaded {
                Ok((_, what, executor)) => (what, executor),
                Err(error) => return drop(loaded_sender.send(Err(error))),
            };
            if loaded_sender.send(Ok(what)).is_ok() {
                let counts = (index == 0).then_some(&*counts);
                serve(index, &mut executor, &incoming, next.as_ref(), counts);
            }
        };
        let thread = thread.stack_size(LOADING_STACK).spawn(run);
        let thread = Some(thread.map_err(|error| no_thread(&error))?);
        Ok((Self { orders: Some(orders), thread }, Loading(loaded)))
    }

    /// Where it takes orders.
    pub(super) fn orders(&self) -> Sender<Order> {
        self.orders.clone().expect("it is there until the drop")
    }
}

impl Loading {
    /// Waits until it is loaded.
    pub(super) fn finish(self) -> Result<LoadedStage, EngineError> {
        let ended = || EngineError::Device("its thread has ended while it loaded".to_owned());
        self.0.recv().unwrap_or_else(|_| Err(ended()))
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

/// Runs steps until nobody gives them any more, or one fails.
fn serve(
    index: usize,
    executor: &mut ModelExecutor,
    incoming: &Receiver<Order>,
    next: Option<&Sender<Order>>,
    counts: Option<&Mutex<Counts>>,
) {
    while let Ok(order) = incoming.recv() {
        let Job { batch, rows, reply } = match order {
            Order::Step(job) => job,
            Order::Media(table) => {
                executor.set_media_table(table);
                continue;
            }
        };
        let ran = executor.run_stage(&batch, rows.as_ref());
        if let Some(counts) = counts {
            let mut counts = counts.lock().expect("no thread panics while it holds the lock");
            *counts = Counts::of(executor);
        }
        match (ran, next) {
            (Ok(rows), Some(next)) => {
                // Where its thread has ended, nothing is left that could reply.
                let _ = next.send(Order::Step(Job { batch, rows, reply }));
            }
            (Ok(rows), None) => {
                let rows = rows.expect("the last stage is no member");
                let _ = reply.send(Ok(rows));
            }
            (Err(ExecutorError(text)), _) => {
                let _ = reply.send(Err(ExecutorError(format!("stage {index}: {text}"))));
                return;
            }
        }
    }
}
