//! A block of a decoder that attends to states of a source: their K and V lie in the cache before
//! those of tokens, at positions of their own.

use super::decoder::{AttentionBuffers, Pass};
use super::loading::{BlockNormWeights, Loader};
use super::stream::Stream;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;
use vllm_batch_checkpoint::spec::{CrossSpec, QkvHeads};
use vllm_batch_device::{CacheLayerMut, KvCache, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{AdaptedLinear, AttentionShape, HeadTransform, LinearWeight, Step};

/// Weights of such a block.
#[derive(Debug)]
pub(super) struct CrossWeights {
    pub norms: BlockNormWeights,
    /// (num_heads * head_dim, hidden_size)
    pub q: AdaptedLinear,
    /// (2 * num_kv_heads * head_dim, width of states)
    pub kv: LinearWeight,
    /// (hidden_size, num_heads * head_dim)
    pub out: AdaptedLinear,
}

impl CrossWeights {
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        [&self.q.weight, &self.kv, &self.out.weight].into_iter()
    }
}

impl Loader<'_> {
    pub(super) fn cross(&mut self, spec: &CrossSpec) -> Result<CrossWeights, EngineError> {
        Ok(CrossWeights {
            norms: self.norms(&spec.norms)?,
            q: self.adapted_linear(&spec.q)?,
            kv: self.linear(&spec.kv)?,
            out: self.adapted_linear(&spec.out)?,
        })
    }
}

/// Sources of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// States (rows, width) whose K and V are not in the cache yet.
    pub states: &'a Tensor,
    /// Where these go.
    pub of_states: &'a Batch,
    /// The tokens of the step, each of which sees all states of its sequence's source.
    pub seen: &'a Batch,
}

impl Pass<'_> {
    /// Puts K and V of new states into the cache, of all layers.
    pub(super) fn remember_states(&self, cache: &mut KvCache, buffers: &mut AttentionBuffers) {
        let Some(Sources { states, of_states, .. }) = self.sources else { return };
        if states.num_rows() == 0 {
            return;
        }
        for (index, (spec, weights)) in self.crosses() {
            let kv = buffers.product(states.num_rows(), &spec.kv);
            ops::linear(self.device, states, &weights.kv, kv);
            let heads = QkvHeads { num_heads: 0, ..spec.heads };
            let CacheLayerMut { cache, index } = cache.layer_mut(self.layers.0[index]);
            let (left, step) = (HeadTransform::default(), Step::on_host(of_states));
            let layer = cache.layer_mut(index);
            ops::norm_rotary_and_cache(self.device, (kv, heads), left, step, layer);
        }
    }

    /// delta = what the block adds.
    pub(super) fn cross(
        &self,
        (spec, weights): (&CrossSpec, &CrossWeights),
        cache: CacheLayerMut<'_>,
        (stream, buffers): (&mut Stream, &mut AttentionBuffers),
    ) {
        let device = self.device;
        let Some(Sources { seen, .. }) = self.sources else {
            unreachable!("a step of such a model has sources")
        };
        let AttentionBuffers { qkv: q, attended, scratch, .. } = buffers;
        stream.first_product(device, &weights.norms, (&spec.q, &weights.q), q);
        let CacheLayerMut { cache, index } = cache;
        let layer = cache.layer(index);
        attended.reshape(q.num_rows(), spec.heads.q_width());
        let (step, shape) = (Step::on_host(seen), shape_of(spec));
        ops::paged_attention(device, (q, step), layer, shape, scratch, attended);
        stream.last_product(device, attended, &weights.out);
    }

    /// The blocks, with the numbers of the attention blocks before them.
    fn crosses(&self) -> impl Iterator<Item = (usize, (&CrossSpec, &CrossWeights))> {
        let layers = self.spec.layers.iter().zip(&self.weights.layers);
        let attending = layers.filter(|(spec, _)| spec.attention.is_some()).enumerate();
        attending.filter_map(|(index, (spec, weights))| {
            Some((index, spec.cross.as_ref().zip(weights.cross.as_ref())?))
        })
    }
}

fn shape_of(spec: &CrossSpec) -> AttentionShape<'static> {
    let QkvHeads { num_heads, num_kv_heads, .. } = spec.heads;
    AttentionShape {
        num_heads,
        num_kv_heads,
        scale: spec.scale(),
        soft_cap: None,
        reach: Reach::All,
        is_causal: false,
        alibi: None,
        sinks: None,
    }
}
