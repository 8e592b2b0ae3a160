//! A rank on its thread, on which its device is opened, used and closed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::execute::executor::{Executor, ExecutorError};
use crate::execute::model_executor::ModelExecutor;
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use crate::load::worker::Worker;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_device::Device;
use vllm_batch_device::gpu::Group;
use vllm_batch_ops::batch::Batch;

/// A rank that is to be loaded.
pub(super) struct RankToLoad {
    pub index: usize,
    /// With its own device.
    pub config: EngineConfig,
    pub sizes: StepSizes,
    /// With its share of the model.
    pub summary: ModelSummary,
    pub group: Arc<Group>,
    pub given_up: Arc<AtomicBool>,
}

/// What must be equal on all ranks.
pub(super) struct Loaded {
    pub kernel_set: String,
    pub num_blocks: usize,
}

/// Why a rank is not loaded.
pub(super) struct LoadError {
    /// It is a fault of its own, and not of another rank.
    pub is_own: bool,
    pub error: EngineError,
}

impl From<EngineError> for LoadError {
    fn from(error: EngineError) -> Self {
        Self { is_own: true, error }
    }
}

/// A rank on its thread. Dropped, it ends after the step that it is in.
pub(super) struct Member {
    worker: Worker<Arc<Batch>, Loaded, LoadError>,
    finished: Receiver<Result<(), ExecutorError>>,
}

/// Ends the group with the thread, however that ends: nobody may wait for a rank that is gone.
struct EndsGroup(Arc<Group>);

impl Drop for EndsGroup {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Member {
    /// Begins to load a rank.
    pub(super) fn start(rank: RankToLoad) -> Result<Self, EngineError> {
        let (finished_sender, finished) = channel();
        let ends = EndsGroup(Arc::clone(&rank.group));
        let name = format!("rank {}", rank.index);
        let serve = move |(device, mut executor): (Arc<Device>, _), incoming: &Receiver<_>| {
            // Before the executor, whose device may wait for other ranks.
            let _ends = ends;
            serve(&device, &mut executor, incoming, &finished_sender);
        };
        let worker = Worker::start(name, move || load(&rank), serve)?;
        Ok(Self { worker, finished })
    }

    /// Waits until it is loaded.
    pub(super) fn loaded(&self) -> Result<Loaded, LoadError> {
        self.worker.loaded()
    }

    /// Gives it a step. What happens to one that an ended thread gets, `finish` says.
    pub(super) fn begin(&self, batch: &Arc<Batch>) {
        let _ = self.worker.orders().send(Arc::clone(batch));
    }

    /// Waits until it has run the step.
    pub(super) fn finish(&self) -> Result<(), ExecutorError> {
        let ended = || ExecutorError("its thread has ended".to_owned());
        self.finished.recv().unwrap_or_else(|_| Err(ended()))
    }
}

/// What is equal on all ranks, and the rank.
fn load(rank: &RankToLoad) -> Result<(Loaded, (Arc<Device>, ModelExecutor)), LoadError> {
    let (device, executor) = rank.open_and_load()?;
    rank.join(&device).map_err(|error| LoadError { is_own: false, error })?;
    let num_blocks = executor.cache_shape().num_blocks;
    let loaded = Loaded { kernel_set: device.kernel_set(), num_blocks };
    Ok((loaded, (device, executor)))
}

/// Runs steps until nobody gives them any more, or one fails.
fn serve(
    device: &Device,
    executor: &mut ModelExecutor,
    incoming: &Receiver<Arc<Batch>>,
    finished: &Sender<Result<(), ExecutorError>>,
) {
    while let Ok(batch) = incoming.recv() {
        // The end of the step is waited for: a failure that shows only then would be one that the
        // others wait for without an end.
        let ran = executor.execute(&batch).map(drop);
        let synchronized = || device.synchronize().map_err(|e| ExecutorError(e.to_string()));
        let ran = ran.and_then(|()| synchronized());
        let has_failed = ran.is_err();
        if finished.send(ran).is_err() || has_failed {
            return;
        }
    }
}
