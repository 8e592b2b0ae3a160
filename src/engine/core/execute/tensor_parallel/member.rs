//! A rank on its thread, on which its device is opened, used and closed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::execute::executor::{Executor, ExecutorError};
use crate::execute::model_executor::ModelExecutor;
use crate::load::beside::LOADING_STACK;
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::machine::no_thread;
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

/// Why a rank is not loaded; true: by a fault of its own, and not of another rank.
type LoadError = (bool, EngineError);

/// A rank on its thread. Dropped, it ends after the step that it is in.
pub(super) struct Member {
    batches: Option<Sender<Arc<Batch>>>,
    loaded: Receiver<Result<Loaded, LoadError>>,
    finished: Receiver<Result<(), ExecutorError>>,
    thread: Option<JoinHandle<()>>,
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
        let (batches, incoming) = channel();
        let (loaded_sender, loaded) = channel();
        let (finished_sender, finished) = channel();
        let thread = std::thread::Builder::new().name(format!("rank {}", rank.index));
        let run = move || {
            let _ends = EndsGroup(Arc::clone(&rank.group));
            match load(&rank) {
                Err(error) => drop(loaded_sender.send(Err(error))),
                Ok((device, mut executor)) => {
                    let num_blocks = executor.cache_shape().num_blocks;
                    let loaded = Loaded { kernel_set: device.kernel_set(), num_blocks };
                    if loaded_sender.send(Ok(loaded)).is_ok() {
                        serve(&device, &mut executor, &incoming, &finished_sender);
                    }
                }
            }
        };
        let thread = thread.stack_size(LOADING_STACK).spawn(run);
        let thread = Some(thread.map_err(|error| no_thread(&error))?);
        Ok(Self { batches: Some(batches), loaded, finished, thread })
    }

    /// Waits until it is loaded.
    pub(super) fn loaded(&self) -> Result<Loaded, LoadError> {
        let ended = || EngineError::Device("its thread has ended while it loaded".to_owned());
        self.loaded.recv().unwrap_or_else(|_| Err((true, ended())))
    }

    /// Gives it a step. What happens to one that an ended thread gets, `finish` says.
    pub(super) fn begin(&self, batch: &Arc<Batch>) {
        let batches = self.batches.as_ref().expect("it is there until the drop");
        let _ = batches.send(Arc::clone(batch));
    }

    /// Waits until it has run the step.
    pub(super) fn finish(&self) -> Result<(), ExecutorError> {
        let ended = || ExecutorError("its thread has ended".to_owned());
        self.finished.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.batches.take());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

fn load(rank: &RankToLoad) -> Result<(Arc<Device>, ModelExecutor), LoadError> {
    let (device, executor) = rank.open_and_load().map_err(|error| (true, error))?;
    rank.join(&device).map_err(|error| (false, error))?;
    Ok((device, executor))
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
