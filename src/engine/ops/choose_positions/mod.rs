//! choose_positions: which positions tokens attend to, where these are the best by an indexer's
//! scores (DeepSeek V3.2). `attention_of_chosen` attends to them.
//!
//! A token's choice is a function of its own row and of the keys before it. Scores are f32: a
//! product is a sum over head_dim upward, and a score a sum over heads upward. Of equal scores the
//! lowest position is better, and a score that is no number is the worst.

mod cpu;
mod cuda;
mod select;
#[cfg(test)]
mod tests;

use vllm_batch_base::EngineError;
use vllm_batch_device::kv_cache::KvData;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::{CacheLayer, Device, Tensor};

use super::{Step, StepLimits};
use cpu::{ScoreRoom, Scoring};
pub(super) use cuda::GpuChoice;

/// What an indexer scores with: the score of a token for a position is the sum over heads of
/// factor * relu(q k / sqrt(head_dim)) / sqrt(num_heads).
#[derive(Clone, Copy, Debug)]
pub struct IndexScores<'a> {
    /// (num_tokens, num_heads * head_dim) and columns of others behind them.
    pub queries: &'a Tensor,
    /// Heads of the queries, which share one of the keys.
    pub num_heads: usize,
    /// (num_tokens, num_heads) factors, from this column on.
    pub factors: (&'a Tensor, usize),
}

/// The positions that tokens of a step attend to, upward: of those that have more than `num_chosen`
/// up to their own.
#[derive(Debug)]
pub struct Choice {
    num_chosen: usize,
    /// (num_tokens, num_chosen) positions; of tokens that attend to all nothing is there.
    positions: Vec<u32>,
    room: ScoreRoom,
    /// On a GPU in the place of these.
    on_gpu: Option<GpuChoice>,
}

impl Choice {
    /// No choice yet, of so many positions for each token of steps within these limits.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(
        device: &Device,
        num_chosen: usize,
        limits: StepLimits,
    ) -> Result<Self, EngineError> {
        let on_gpu = match device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(GpuChoice::new(gpu, num_chosen, limits)?),
        };
        Ok(Self { num_chosen, positions: Vec::new(), room: ScoreRoom::default(), on_gpu })
    }

    /// # Panics
    /// It was made for the CPU.
    pub(super) fn on_gpu(&self) -> &GpuChoice {
        self.on_gpu.as_ref().expect("a choice of the CPU was given to a GPU")
    }

    /// Positions that a token attends to, at most. It attends to all if its own is below.
    pub fn num_chosen(&self) -> usize {
        self.num_chosen
    }

    /// The positions of a token of the step that has a choice, on the CPU.
    pub fn of_token(&self, token: usize) -> &[u32] {
        &self.positions[token * self.num_chosen..(token + 1) * self.num_chosen]
    }
}

/// Chooses the positions that the step's tokens attend to, by the keys in this layer of the cache,
/// the step's own included.
///
/// # Panics
/// Shapes differ.
pub fn choose_positions(
    device: &Device,
    (scores, step): (IndexScores<'_>, Step<'_>),
    layer: CacheLayer<'_>,
    choice: &mut Choice,
) {
    let kv = layer.shape();
    let (factors, column) = scores.factors;
    assert!(scores.queries.width() >= scores.num_heads * kv.head_dim && kv.num_kv_heads == 1);
    assert!(column + scores.num_heads <= factors.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let size = choice.num_chosen;
            return cuda::choose(gpu, (scores, step), layer, (size, choice.on_gpu()));
        }
    };
    let batch = step.batch;
    let work = || {
        let chooses = |position: &&u32| **position as usize >= choice.num_chosen;
        let seen = batch.positions.iter().filter(chooses).map(|p| f64::from(*p) + 1.0);
        let seen = seen.sum::<f64>();
        let key_bytes = (kv.head_dim * layer.cache.element_bytes()) as f64;
        let flops = 2.0 * (scores.num_heads * kv.head_dim) as f64 * seen;
        Work { flops, bytes: seen * key_bytes }
    };
    let _timed = cpu.op_timer.timed(Op::new("choose_positions"), work);
    let Choice { num_chosen, positions, room, .. } = choice;
    positions.resize(positions.len().max(batch.num_tokens() * *num_chosen), 0);
    let [of_k, _] = layer.ranges();
    let scoring = Scoring { cpu, scores, batch, kv };
    let out = (*num_chosen, &mut **positions);
    match &layer.cache.data {
        KvData::Float32 { k, .. } => scoring.choose(&k[of_k], room, out),
        KvData::BFloat16 { k, .. } => scoring.choose(&k[of_k], room, out),
        KvData::Float16 { k, .. } => scoring.choose(&k[of_k], room, out),
        KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
    }
}
