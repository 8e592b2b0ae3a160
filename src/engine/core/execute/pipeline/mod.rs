//! One model in stages, on several devices of a machine: each computes layers that follow each
//! other, and hands the stream on. A row's bytes are those of one device.
//!
//! Several engines share the stages, so that each stage has a step to compute: an engine has one
//! step under way, and goes on when that has come through. Each has as many blocks of every stage's
//! KV cache as the others, and its scheduler numbers them from 0.

mod fewest;
mod last_stage;
mod member;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fewest::FewestBlocks;
pub use fewest::Seat;
use last_stage::LastStage;
use member::{Job, Member, Order};

use super::executor::{Executor, ExecutorError, Logits};
use super::model_executor::{ModelExecutor, StageToLoad, gpu_needs_of};
use super::model_facts::ModelFacts;
use crate::load::devices::{following, shared_out};
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use crate::media_table::MediaTable;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::{Device, WhyCpu};
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

/// The stages of a model that are to be loaded.
struct StagesToLoad {
    stages: Vec<StageOfModel>,
    /// Where they meet.
    fewest: Arc<FewestBlocks>,
    /// Why they are on the CPU where nobody asked for it.
    why_cpu: Option<WhyCpu>,
}

/// A stage that is to be loaded, on the thread that it is for.
struct StageOfModel {
    index: usize,
    /// With its own device and threads.
    config: EngineConfig,
    sizes: StepSizes,
    summary: ModelSummary,
    layers: std::ops::Range<usize>,
    seat: Seat,
    given_up: Arc<AtomicBool>,
}

/// A stage on its device.
type LoadedExecutor = (Arc<Device>, ModelFacts, ModelExecutor);

impl Counts {
    fn of(executor: &ModelExecutor) -> Self {
        Self {
            loras: executor.lora_counts(),
            parts: executor.part_counts(),
            encoded: executor.encoded(),
        }
    }
}

impl StageOfModel {
    /// Opens its device, and loads its layers.
    fn load(self) -> Result<LoadedExecutor, EngineError> {
        let Self { config, sizes, summary, layers, seat, given_up, .. } = self;
        let needs = gpu_needs_of(&summary.spec.of_stage(layers.clone()));
        let (device, why_cpu) = needs.open_device(&config, summary.dtype)?;
        summary.sides(&config).check_on(&device, why_cpu.as_ref())?;
        let device = Arc::new(device);
        let stage = StageToLoad { layers, seat: Some(seat) };
        let on = Arc::clone(&device);
        let mut executor =
            ModelExecutor::load_stage(&config, &sizes, &summary, stage, on, &given_up)?;
        let element_bytes = config.cache.kv_cache_dtype.size_bytes(summary.dtype);
        let loaded = ModelFacts::of(&mut executor, &device, element_bytes);
        Ok((device, loaded, executor))
    }
}

impl Stages {
    /// Loads all stages of a model side by side.
    ///
    /// # Errors
    /// There are not so many devices, the model cannot be cut so, or a stage cannot be loaded.
    pub fn load(
        config: &EngineConfig,
        sizes: &StepSizes,
        summary: &ModelSummary,
        given_up: &Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let to_load = stages_of(config, sizes, summary, given_up)?;
        let StagesToLoad { stages, fewest, why_cpu } = to_load;
        let layers: Vec<_> = stages.iter().map(|stage| stage.layers.clone()).collect();
        let counts = Arc::<Mutex<Counts>>::default();
        let mut stages = stages.into_iter().rev();
        let last = stages.next().expect("there is a last stage");
        let mut members: Vec<Member> = Vec::new();
        for stage in stages {
            let next = members.last().map(|next| next.orders().clone());
            members.push(member::start(stage, next, Arc::clone(&counts))?);
        }
        members.reverse();
        let of_last = last.load();
        let before: Vec<_> = members.iter().map(Member::loaded).collect();
        let (device, executor, loaded) = all_loaded(before, of_last, &fewest)?;
        let facts = together(&loaded, &layers, config.cache.num_pools)?;
        Ok(Self {
            last: LastStage::new(executor),
            device,
            counts,
            facts: ModelFacts { why_cpu, ..facts },
            members,
        })
    }

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

/// The stages in their order, and the last one with its device.
///
/// # Errors
/// One was not loaded. That says why; the others, which waited for it, only that they did.
fn all_loaded(
    before: Vec<Result<ModelFacts, EngineError>>,
    last: Result<LoadedExecutor, EngineError>,
    fewest: &FewestBlocks,
) -> Result<(Arc<Device>, ModelExecutor, Vec<ModelFacts>), EngineError> {
    let (of_last, rest) = match last {
        Ok((device, what, executor)) => (Ok(what), Some((device, executor))),
        Err(error) => (Err(error), None),
    };
    let (mut loaded, mut failed) = (Vec::new(), Vec::new());
    for (index, result) in before.into_iter().chain([of_last]).enumerate() {
        match result {
            Ok(what) => loaded.push(what),
            Err(error) => failed.push((index, error)),
        }
    }
    let failed = failed.into_iter().min_by_key(|&(index, _)| fewest.has_waited_in_vain(index));
    match (failed, rest) {
        (None, Some((device, executor))) => Ok((device, executor, loaded)),
        (Some((index, error)), _) => Err(error.of(&format!("stage {index}"))),
        (None, None) => unreachable!("a stage is loaded, or says why not"),
    }
}

/// The stages that are to be loaded.
fn stages_of(
    config: &EngineConfig,
    sizes: &StepSizes,
    summary: &ModelSummary,
    given_up: &Arc<AtomicBool>,
) -> Result<StagesToLoad, EngineError> {
    let count = config.parallel.num_stages();
    let layers = summary.stages(count);
    let layers = layers.map_err(|text| refused(text, "give a smaller number, or leave it out"))?;
    let (kinds, why_cpu) = match &config.parallel.stage_devices[..] {
        [] => following(&config.device, count, Setting::PipelineParallelSize)?,
        devices => (devices.to_vec(), None),
    };
    let configs = shared_out(config, kinds, ("stage", Setting::PipelineParallelSize))?;
    let (fewest, seats) = FewestBlocks::new(count);
    let mut stages = Vec::new();
    for (((layers, mut config), seat), index) in layers.into_iter().zip(configs).zip(seats).zip(0..)
    {
        // That of all layers, of which some have states.
        config.cache.block_size = Some(summary.block_size(&config.cache));
        let (sizes, summary, given_up) = (*sizes, summary.clone(), Arc::clone(given_up));
        stages.push(StageOfModel { index, config, sizes, summary, layers, seat, given_up });
    }
    Ok(StagesToLoad { stages, fewest, why_cpu })
}

fn refused(text: String, help: &str) -> EngineError {
    EngineError::setting(Setting::PipelineParallelSize, text, help)
}

/// What was loaded, in all stages, for `num_pools` engines.
fn together(
    loaded: &[ModelFacts],
    layers: &[std::ops::Range<usize>],
    num_pools: usize,
) -> Result<ModelFacts, EngineError> {
    let first = &loaded[0];
    let mut kernels = first.kernels.clone();
    for (index, stage) in loaded.iter().enumerate() {
        let joined = kernels.joined(stage.kernels.clone());
        kernels = joined.ok_or_else(|| {
            let (own, other) = (first.kernels.name(), stage.kernels.name());
            let text = format!("stage 0 computes with {own}, and stage {index} with {other}");
            refused(text, "take devices of one kind")
        })?;
        if stage.num_blocks != first.num_blocks {
            let text = format!(
                "stage 0 has room for {} blocks of the KV cache, and stage {index} for {}",
                first.num_blocks, stage.num_blocks
            );
            return Err(refused(text, "give `settings.kv_cache_memory_bytes`"));
        }
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
    let parts: Vec<_> = loaded
        .iter()
        .zip(layers)
        .map(|(stage, layers)| {
            let (first, last) = (layers.start, layers.end - 1);
            format!("layers {first} to {last} with {:.1} MiB of weights", mib(stage.weight_bytes))
        })
        .collect();
    let mut notes: Vec<String> = Vec::new();
    for note in loaded.iter().flat_map(|stage| &stage.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes.push(format!("{} stages compute one model: {}", loaded.len(), parts.join(", ")));
    let mut code_bytes = HashMap::new();
    for stage in loaded {
        code_bytes.extend(stage.code_bytes.iter().map(|(name, bytes)| (name.clone(), *bytes)));
    }
    let sum = |of: fn(&ModelFacts) -> usize| loaded.iter().map(of).sum::<usize>();
    Ok(ModelFacts {
        device_name: format!("{} x {}, one model in stages", loaded.len(), first.device_name),
        kernels,
        num_threads: sum(|stage| stage.num_threads),
        num_blocks: first.num_blocks / num_pools,
        kv_cache_bytes: sum(|stage| stage.kv_cache_bytes) / num_pools,
        weight_bytes: loaded.iter().map(|stage| stage.weight_bytes).sum(),
        code_bytes: Arc::new(code_bytes),
        notes,
        has_states: loaded.iter().any(|stage| stage.has_states),
        ..first.clone()
    })
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
