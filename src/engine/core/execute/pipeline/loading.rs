//! Loading the stages of a model side by side, each on the thread that it is for, and what they are
//! together.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::fewest::{FewestBlocks, Seat};
use super::last_stage::LastStage;
use super::member::{self, Member};
use super::{Counts, Stages};
use crate::execute::model_executor::{ModelExecutor, StageToLoad, gpu_needs_of};
use crate::execute::model_facts::ModelFacts;
use crate::load::devices::{following, shared_out};
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::{Device, WhyCpu};

/// The stages of a model that are to be loaded.
struct StagesToLoad {
    stages: Vec<StageOfModel>,
    /// Where they meet.
    fewest: Arc<FewestBlocks>,
    /// Why they are on the CPU where nobody asked for it.
    why_cpu: Option<WhyCpu>,
}

/// A stage that is to be loaded, on the thread that it is for.
pub(super) struct StageOfModel {
    pub index: usize,
    /// With its own device and threads.
    config: EngineConfig,
    sizes: StepSizes,
    summary: ModelSummary,
    layers: Range<usize>,
    seat: Seat,
    given_up: Arc<AtomicBool>,
}

/// A stage on its device.
type LoadedExecutor = (Arc<Device>, ModelFacts, ModelExecutor);

impl StageOfModel {
    /// Opens its device, and loads its layers.
    pub(super) fn load(self) -> Result<LoadedExecutor, EngineError> {
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
    layers: &[Range<usize>],
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
