//! A stage on its thread, on which its device is opened, used and closed.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

use super::Counts;
use super::loading::StageOfModel;
use crate::execute::executor::ExecutorError;
use crate::execute::model::stage_rows::StageRows;
use crate::execute::model_executor::ModelExecutor;
use crate::execute::model_facts::ModelFacts;
use crate::load::worker::Worker;
use crate::media_table::MediaTable;
use vllm_batch_base::EngineError;
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

/// A stage on its thread. Dropped, it ends after the steps that it has.
pub(super) type Member = Worker<Order, ModelFacts>;

/// Begins to load a stage, behind which these orders go on; None: behind it is the last one. The
/// first stage of a model counts.
pub(super) fn start(
    stage: StageOfModel,
    next: Option<Sender<Order>>,
    counts: Arc<Mutex<Counts>>,
) -> Result<Member, EngineError> {
    let index = stage.index;
    let load = move || {
        let (_, what, executor) = stage.load()?;
        Ok((what, executor))
    };
    let serve = move |mut executor, incoming: &Receiver<_>| {
        let counts = (index == 0).then_some(&*counts);
        serve(index, &mut executor, incoming, next.as_ref(), counts);
    };
    Worker::start(format!("stage {index}"), load, serve)
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
