//! Indexers: from what a block reads and its latent of q to the tokens that its tokens attend to.

use super::decoder::Pass;
use super::loading::{AttentionWeights, Loader};
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::{AttentionSpec, DecoderSpec, IndexerSpec, LinearSpec};
use vllm_batch_device::{Device, KvCache, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    AdaptedLinear, Choice, Columns, Heads, IndexScores, LinearWeight, NormWeight, StepLimits,
};

/// Weights of an indexer.
#[derive(Debug)]
pub(super) struct IndexerWeights {
    pub q: LinearWeight,
    pub inputs: AdaptedLinear,
    k_norm: NormWeight,
}

impl Loader<'_> {
    /// The weights of what chooses a block's tokens, if that is its own.
    pub(super) fn indexer(
        &mut self,
        spec: Option<&IndexerSpec>,
    ) -> Result<Option<IndexerWeights>, EngineError> {
        let Some(spec) = spec else { return Ok(None) };
        let (q, inputs) = (self.layer_linear(&spec.q)?, self.layer_linear(&spec.inputs)?.into());
        Ok(Some(IndexerWeights { q, inputs, k_norm: self.the_norm(&spec.k_norm)? }))
    }
}

/// What indexers work in; T tokens.
#[derive(Debug)]
pub(super) struct IndexerBuffers {
    /// (T, head_dim + num_heads) keys, and factors of heads.
    inputs: Tensor,
    /// (T, num_heads * head_dim)
    q: Tensor,
    /// (T, (num_heads + 1) * head_dim) q and k.
    qk: Tensor,
    /// Of the last layer with an indexer.
    pub choice: Choice,
}

impl IndexerBuffers {
    /// Buffers for steps within these limits; None: no layer chooses.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        spec: &DecoderSpec,
        limits: StepLimits,
    ) -> Result<Option<Self>, EngineError> {
        let choices = || spec.attentions().filter_map(|block| block.choice.as_ref());
        let Some(num_chosen) = choices().map(|choice| choice.num_chosen).max() else {
            return Ok(None);
        };
        let widest = |of: &dyn Fn(&IndexerSpec) -> usize| {
            let width = spec.indexers().map(of).max().unwrap_or(0);
            device.tensor(limits.max_num_tokens, width, Precision::Activation)
        };
        Ok(Some(Self {
            inputs: widest(&|indexer| indexer.inputs.n())?,
            q: widest(&|indexer| indexer.q.n())?,
            qk: widest(&|indexer| indexer.heads.q_width() + indexer.heads.kv_width())?,
            choice: Choice::new(device, num_chosen, limits)?,
        }))
    }

    /// Where the products of what a block reads go.
    pub(super) fn product(&mut self, num_rows: usize, spec: &LinearSpec) -> &mut Tensor {
        self.inputs.reshape(num_rows, spec.n());
        &mut self.inputs
    }
}

impl Pass<'_> {
    /// Chooses the tokens that the step's tokens attend to in a block and in those after it that
    /// have no indexer; the block's products are there, and its latent of q. `layer` is that of the
    /// cache with the block's K and V.
    pub(super) fn choose(
        &self,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        (cache, layer): (&mut KvCache, usize),
        q_latent: &Tensor,
        buffers: Option<&mut IndexerBuffers>,
    ) {
        let (Some(choice), Some(weights), Some(buffers)) =
            (&spec.choice, &weights.indexer, buffers)
        else {
            return;
        };
        let Some(IndexerSpec { heads, .. }) = choice.indexer else { return };
        let Some(layer) = self.layers.1[layer] else { return };
        let Self { device, step, .. } = *self;
        let (num_rows, head_dim) = (q_latent.num_rows(), heads.head_dim);
        let IndexerBuffers { inputs, q, qk, choice: chosen } = buffers;
        let key = Heads { start: 0, num_heads: 1, head_dim };
        ops::norm_heads(device, inputs, key, &weights.k_norm);
        q.reshape(num_rows, heads.q_width());
        ops::linear(device, q_latent, &weights.q, q);
        qk.reshape(num_rows, heads.q_width() + head_dim);
        let all = Columns::run(0, heads.q_width());
        ops::copy_columns(device, (q, all), (qk, all));
        let key = (Columns::run(0, head_dim), Columns::run(heads.q_width(), head_dim));
        ops::copy_columns(device, (inputs, key.0), (qk, key.1));
        let rope = spec.rope.map(|rope| &self.weights.ropes[rope]);
        ops::rotary_and_cache(device, (qk, heads), rope, step, cache.layer_mut(layer));
        let scores =
            IndexScores { queries: qk, num_heads: heads.num_heads, factors: (inputs, head_dim) };
        ops::choose_positions(device, (scores, step), cache.layer(layer), chosen);
    }
}
