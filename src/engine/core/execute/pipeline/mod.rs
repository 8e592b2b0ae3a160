//! One model in stages, on several devices of a machine: each computes layers that follow each
//! other, and hands the stream on. A row's bytes are those of one device.
//!
//! Several engines share the stages, so that each stage has a step to compute: an engine has one
//! step under way, and goes on when that has come through. Each has as many blocks of every stage's
//! KV cache as the others, and its scheduler numbers them from 0.

mod fewest;
mod last_stage;
mod loading;
mod member;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use fewest::Seat;
use last_stage::LastStage;
use member::{Job, Member, Order};

use super::executor::{Executor, ExecutorError, Logits};
use super::model_executor::ModelExecutor;
use super::model_facts::ModelFacts;
use crate::media_table::MediaTable;
use vllm_batch_base::EngineError;
use vllm_batch_device::Device;
use vllm_batch_ops::batch::{Batch, LoraCounts, PartCounts};

/// The stages of a model. Dropped, their threads end.
pub struct Stages {
    last: LastStage,
    /// Of the last stage: engines sample there.
    device: Arc<Device>,
    counts: Arc<Mutex<Counts>>,
    facts: ModelFacts,
    /// Those before the last one, in the order of the layers.
    members: Vec<Member>,
}

/// What steps came to.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    loras: LoraCounts,
    parts: PartCounts,
    encoded: (u64, Duration),
}

impl Counts {
    fn of(executor: &ModelExecutor) -> Self {
        Self {
            loras: executor.lora_counts(),
            parts: executor.part_counts(),
            encoded: executor.encoded(),
        }
    }
}

impl Stages {
    /// The device where engines sample.
    pub fn device(&self) -> Arc<Device> {
        Arc::clone(&self.device)
    }

    /// What was loaded, in all stages.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Where the first stage takes orders.
    fn first(&self) -> &Sender<Order> {
        self.members.first().expect("there are two stages or more").orders()
    }
}

/// Runs an engine's steps through the stages.
pub struct StagedExecutor {
    stages: Arc<Stages>,
    /// The first of its blocks in the KV cache of each stage.
    first_block: u32,
    /// It is the engine that counts for all.
    counts_for_all: bool,
    /// While its logits are looked at.
    last: Option<Box<ModelExecutor>>,
}

impl StagedExecutor {
    /// Of the engine with this number, on whose thread it is made.
    ///
    /// # Errors
    /// The device of the last stage failed.
    pub fn new(stages: Arc<Stages>, engine: usize) -> Result<Self, EngineError> {
        stages.device.use_on_this_thread()?;
        let first_block = (engine * stages.facts.num_blocks) as u32;
        Ok(Self { stages, first_block, counts_for_all: engine == 0, last: None })
    }

    /// Steps may have media of this table from now on, if the model sees any.
    pub fn set_media_table(&self, table: Arc<MediaTable>) {
        // A thread that has ended says so when it is given a step.
        let _ = self.stages.first().send(Order::Media(table));
    }

    fn counts(&self) -> Counts {
        match self.counts_for_all {
            true => *self.stages.counts.lock().expect("no thread panics while it holds the lock"),
            false => Counts::default(),
        }
    }
}

impl Executor for StagedExecutor {
    fn execute(&mut self, batch: &Batch) -> Result<Logits<'_>, ExecutorError> {
        self.release();
        let ended = || ExecutorError("the thread of a stage has ended".to_owned());
        let own = batch.from_block(self.first_block, self.stages.facts.block_size as u32);
        let batch = Arc::new(own);
        let (reply, arrived) = channel();
        let job = Job { batch: Arc::clone(&batch), rows: None, reply };
        self.stages.first().send(Order::Step(job)).map_err(|_| ended())?;
        let rows = arrived.recv().map_err(|_| ended())??;
        let last = self.last.insert(self.stages.last.take()?);
        last.run_stage(&batch, Some(&rows))?;
        Ok(last.logits())
    }

    fn release(&mut self) {
        if let Some(last) = self.last.take() {
            self.stages.last.put(last);
        }
    }

    fn lora_counts(&self) -> LoraCounts {
        self.counts().loras
    }

    fn part_counts(&self) -> PartCounts {
        self.counts().parts
    }

    fn encoded(&self) -> (u64, Duration) {
        self.counts().encoded
    }
}

impl Drop for StagedExecutor {
    fn drop(&mut self) {
        match std::thread::panicking() {
            false => self.release(),
            true => self.stages.last.lose(),
        }
    }
}
