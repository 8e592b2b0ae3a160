//! One model over several GPUs of a machine. Each rank has a thread, a device, its share of every
//! layer and of the KV cache. The first one is the engine's own: it schedules and samples, and the
//! others get the batches that it computes. `ops::all_reduce` sums what they have computed, in the
//! order of ranks, so that a row's bytes depend on how many ranks there are and on nothing else.

mod member;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::executor::ExecutorError;
use super::model_executor::{self, ModelExecutor};
use crate::load::devices::gpus;
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use member::{LoadError, Member, RankToLoad};
use vllm_batch_base::config::{DeviceKind, EngineConfig};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint::spec::RankOf;
use vllm_batch_device::gpu::Group;
use vllm_batch_device::{Device, num_gpus};
use vllm_batch_ops::batch::Batch;

/// The ranks besides the first one. Dropped, they end.
pub struct OtherRanks {
    group: Arc<Group>,
    /// Rank 1 and those that follow it.
    members: Vec<Member>,
    /// What their devices are called, which are of one kind.
    device_name: String,
}

/// Loads the first rank of a model, then the others side by side; the first one finds the size of
/// the KV cache for all. Steps of the executor are run by all of them.
///
/// # Errors
/// There are not so many GPUs, the model cannot be shared so, or a rank cannot be loaded.
pub fn load(
    config: &EngineConfig,
    sizes: &StepSizes,
    summary: &ModelSummary,
    given_up: &Arc<AtomicBool>,
) -> Result<(Arc<Device>, ModelExecutor), EngineError> {
    let count = config.parallel.num_ranks();
    let mut kinds = kinds(&config.device.kind, count)?.into_iter();
    let group = Group::new(count);
    let to_load = |index: usize, kind: DeviceKind| {
        let mut config = config.clone();
        config.device.kind = kind;
        let mut summary = summary.clone();
        let own = summary.spec.of_rank(RankOf { index, count });
        summary.spec = own.map_err(|text| refused(text, "give another number, or leave it out"))?;
        let (group, given_up) = (Arc::clone(&group), Arc::clone(given_up));
        Ok::<_, EngineError>(RankToLoad { index, config, sizes: *sizes, summary, group, given_up })
    };
    let first = to_load(0, kinds.next().expect("there is a first rank"))?;
    let (device, mut executor) = first.open_and_load()?;
    let num_blocks = executor.cache_shape().num_blocks;
    let (members, device_name) = (Vec::new(), device.name());
    let mut others = OtherRanks { group: Arc::clone(&group), members, device_name };
    for (index, kind) in (1..).zip(kinds) {
        let mut rank = to_load(index, kind)?;
        // One scheduler gives out the blocks of all.
        rank.config.cache.num_blocks = Some(num_blocks);
        others.members.push(Member::start(rank)?);
    }
    let joined = first.join(&device);
    if joined.is_err() {
        group.stop();
    }
    others.are_loaded(joined, (&device.kernel_set(), num_blocks))?;
    executor.run_steps_with(others);
    Ok((device, executor))
}

/// The device of each rank: GPUs that follow each other.
fn kinds(asked: &DeviceKind, count: usize) -> Result<Vec<DeviceKind>, EngineError> {
    let first = match asked {
        DeviceKind::Cuda(first) => *first,
        DeviceKind::Auto => 0,
        DeviceKind::Cpu | DeviceKind::CudaShim { .. } => return Ok(vec![asked.clone(); count]),
    };
    let there = num_gpus()
        .map_err(|why| refused(format!("it needs {count} GPUs: {why}"), "leave it out"))?;
    gpus(first, count, there).map_err(|text| refused(text, "give at most so many"))
}

fn refused(text: String, help: &str) -> EngineError {
    EngineError::setting(Setting::TensorParallelSize, text, help)
}

impl RankToLoad {
    /// Opens its device, and loads its share of the model.
    fn open_and_load(&self) -> Result<(Arc<Device>, ModelExecutor), EngineError> {
        let Self { config, sizes, summary, given_up, .. } = self;
        let needs = model_executor::gpu_needs_of(&summary.spec);
        let (device, why_cpu) = needs.open_device(config, summary.dtype)?;
        summary.sides(config).check_on(&device, why_cpu.as_ref())?;
        let device = Arc::new(device);
        let executor = ModelExecutor::load(config, sizes, summary, Arc::clone(&device), given_up)?;
        Ok((device, executor))
    }

    /// Takes its place among the others, and waits for them.
    fn join(&self, device: &Device) -> Result<(), EngineError> {
        let max_num_tokens = self.sizes.max_num_batched_tokens;
        let hidden_size = self.summary.spec.hidden_size();
        device.join(&self.group, self.index, (max_num_tokens, hidden_size))
    }
}

impl OtherRanks {
    /// How many there are, with the first one.
    pub fn num_ranks(&self) -> usize {
        self.group.num_ranks()
    }

    /// Waits until all are loaded. `first`: how it went with the first rank, and what that has.
    fn are_loaded(
        &self,
        first: Result<(), EngineError>,
        (kernel_set, num_blocks): (&str, usize),
    ) -> Result<(), EngineError> {
        // The rank that failed says why; the others only that one has.
        let mut failed = None;
        for (rank, member) in (1..).zip(&self.members) {
            match member.loaded() {
                Ok(loaded) if loaded.kernel_set != kernel_set => {
                    let other = loaded.kernel_set;
                    let text =
                        format!("rank 0 computes with {kernel_set}, and rank {rank} with {other}");
                    return Err(refused(text, "take GPUs of one kind"));
                }
                Ok(loaded) if loaded.num_blocks != num_blocks => {
                    let text = format!(
                        "rank 0 has room for {num_blocks} blocks of the KV cache, and rank {rank} \
                         for {}",
                        loaded.num_blocks
                    );
                    return Err(refused(text, "give `settings.kv_cache_memory_bytes`"));
                }
                Ok(_) => {}
                Err(LoadError { is_own: true, error }) => return Err(of_rank(rank, error)),
                Err(LoadError { error, .. }) => failed = failed.or(Some(of_rank(rank, error))),
            }
        }
        first.map_err(|error| of_rank(0, error))?;
        failed.map_or(Ok(()), Err)
    }

    /// Gives them a step.
    pub fn begin(&self, batch: &Batch) {
        let batch = Arc::new(batch.clone());
        self.members.iter().for_each(|member| member.begin(&batch));
    }

    /// Waits until they have run it. `first`: how it went on the first rank.
    ///
    /// # Errors
    /// One has failed. Then none waits for another any more.
    pub fn finish(&self, first: Result<(), ExecutorError>) -> Result<(), ExecutorError> {
        if first.is_err() {
            self.group.stop();
        }
        let mut failed = first.err().map(|error| (0, error));
        for (rank, member) in (1..).zip(&self.members) {
            failed = failed.or(member.finish().err().map(|error| (rank, error)));
        }
        match failed {
            None => Ok(()),
            Some((rank, error)) => {
                Err(ExecutorError(format!("rank {rank} ({}): {}", self.device_name, error.0)))
            }
        }
    }
}

impl Drop for OtherRanks {
    fn drop(&mut self) {
        self.group.stop();
    }
}

/// The same error, with the rank.
fn of_rank(rank: usize, error: EngineError) -> EngineError {
    error.of(&format!("rank {rank}"))
}
