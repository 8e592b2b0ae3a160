//! choose_positions: which positions tokens attend to, where these are the best by an indexer's
//! scores (DeepSeek V3.2), or blocks of them (MiniMax M3). `attention_of_chosen` attends to them.
//!
//! A token's choice is a function of its own row and of the keys before it. Scores are f32: a
//! product is a sum over head_dim upward, and a score a sum over heads upward, or the largest
//! product of a block. Of equal scores the lowest position is better, and a score that is no number
//! is the worst.

#[cfg(test)]
mod block_tests;
mod blocks;
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
/// factor * relu(q k / sqrt(head_dim)) / sqrt(num_heads); without factors, that of a head for a
/// block of positions is the largest q k.
#[derive(Clone, Copy, Debug)]
pub struct IndexScores<'a> {
    /// (num_tokens, num_heads * head_dim) and columns of others behind them.
    pub queries: &'a Tensor,
    /// Heads of the queries, which share one of the keys.
    pub num_heads: usize,
    /// (num_tokens, num_heads) factors, from this column on.
    pub factors: Option<(&'a Tensor, usize)>,
}

/// How much is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceSize {
    /// Positions that a token attends to, at most: all if its own is below.
    pub num_chosen: usize,
    /// Positions that are chosen together. If several, the token's own are among them.
    pub unit: usize,
    /// K and V heads that each have a choice; 1: all have the same.
    pub num_heads: usize,
}

impl ChoiceSize {
    /// Choices of single positions for all heads.
    pub fn of_positions(num_chosen: usize) -> Self {
        Self { num_chosen, unit: 1, num_heads: 1 }
    }

    /// Units of a choice.
    fn num_units(self) -> usize {
        self.num_chosen / self.unit
    }

    /// Units of all heads.
    fn num_of_token(self) -> usize {
        self.num_units() * self.num_heads
    }
}

/// The units of positions that tokens of a step attend to, upward: of those that have more than
/// `num_chosen` positions up to their own.
#[derive(Debug)]
pub struct Choice {
    size: ChoiceSize,
    /// (num_tokens, num_heads, num_units); of tokens that attend to all nothing is there.
    units: Vec<u32>,
    room: ScoreRoom,
    /// On a GPU in the place of these.
    on_gpu: Option<GpuChoice>,
}

impl Choice {
    /// No choice yet, of this size for each token of steps within these limits.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(device: &Device, size: ChoiceSize, limits: StepLimits) -> Result<Self, EngineError> {
        let on_gpu = match device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(GpuChoice::new(gpu, size, limits)?),
        };
        Ok(Self { size, units: Vec::new(), room: ScoreRoom::default(), on_gpu })
    }

    /// # Panics
    /// It was made for the CPU.
    pub(super) fn on_gpu(&self) -> &GpuChoice {
        self.on_gpu.as_ref().expect("a choice of the CPU was given to a GPU")
    }

    /// How much is chosen.
    pub fn size(&self) -> ChoiceSize {
        self.size
    }

    /// Positions that the token at this one attends to, if it has a choice.
    pub(super) fn num_positions(&self, position: usize) -> usize {
        self.size.num_chosen - self.size.unit + position % self.size.unit + 1
    }

    /// The units of a token of the step that has a choice, on the CPU: those of each head.
    pub fn of_token(&self, token: usize) -> impl Iterator<Item = &[u32]> {
        let num = self.size.num_of_token();
        self.units[token * num..(token + 1) * num].chunks_exact(self.size.num_units())
    }
}

/// Chooses the positions that the step's tokens attend to, by the keys in this layer of the cache,
/// the step's own included: by factors single positions, without them blocks.
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
    assert!(scores.queries.width() >= scores.num_heads * kv.head_dim && kv.num_kv_heads == 1);
    match scores.factors {
        Some((factors, column)) => {
            assert!(column + scores.num_heads <= factors.width());
            assert!(choice.size.unit == 1 && choice.size.num_heads == 1);
        }
        None => {
            assert!(choice.size.unit > 1 && choice.size.num_heads == scores.num_heads);
            assert!(
                choice.size.unit.is_multiple_of(kv.block_size),
                "blocks of the cache are whole"
            );
        }
    }
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let size = choice.size;
            return cuda::choose(gpu, (scores, step), layer, (size, choice.on_gpu()));
        }
    };
    let batch = step.batch;
    let work = || {
        let chooses = |position: &&u32| **position as usize >= choice.size.num_chosen;
        let seen = batch.positions.iter().filter(chooses).map(|p| f64::from(*p) + 1.0);
        let seen = seen.sum::<f64>();
        let key_bytes = (kv.head_dim * layer.cache.element_bytes()) as f64;
        let flops = 2.0 * (scores.num_heads * kv.head_dim) as f64 * seen;
        Work { flops, bytes: seen * key_bytes }
    };
    let _timed = cpu.op_timer.timed(Op::new("choose_positions"), work);
    let Choice { size, units, room, .. } = choice;
    units.resize(units.len().max(batch.num_tokens() * size.num_of_token()), 0);
    let [of_k, _] = layer.ranges();
    let scoring = Scoring { cpu, scores, batch, kv };
    let out = (*size, &mut **units);
    match &layer.cache.data {
        KvData::Float32 { k, .. } => scoring.choose(&k[of_k], room, out),
        KvData::BFloat16 { k, .. } => scoring.choose(&k[of_k], room, out),
        KvData::Float16 { k, .. } => scoring.choose(&k[of_k], room, out),
        KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
    }
}
