//! Indexers: from what a block reads and its latent of q to the tokens that its tokens attend to.

use super::decoder::Pass;
use super::loading::{AttentionWeights, Loader};
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, ChoiceSpec, ChoiceUnit, DecoderSpec, IndexerSpec, LinearSpec,
};
use vllm_batch_device::{Device, KvCache, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    AdaptedLinear, Choice, ChoiceSize, Columns, Heads, IndexScores, LinearWeight, NormWeight,
    StepLimits,
};

/// Weights of an indexer.
#[derive(Debug)]
pub(super) struct IndexerWeights {
    /// Of the latent of q, if that gives q.
    pub q: Option<LinearWeight>,
    pub inputs: AdaptedLinear,
    q_norm: Option<NormWeight>,
    k_norm: NormWeight,
}

impl Loader<'_> {
    /// The weights of what chooses a block's tokens, if that is its own.
    pub(super) fn indexer(
        &mut self,
        spec: Option<&IndexerSpec>,
    ) -> Result<Option<IndexerWeights>, EngineError> {
        let Some(spec) = spec else { return Ok(None) };
        let q = spec.q.as_ref().map(|q| self.layer_linear(q)).transpose()?;
        let inputs = self.layer_linear(&spec.inputs)?.into();
        let q_norm = self.norm(spec.q_norm.as_ref())?;
        Ok(Some(IndexerWeights { q, inputs, q_norm, k_norm: self.the_norm(&spec.k_norm)? }))
    }
}

/// What indexers work in; T tokens.
#[derive(Debug)]
pub(super) struct IndexerBuffers {
    /// (T, head_dim + num_heads) keys, and factors of heads; or q and k.
    inputs: Tensor,
    /// (T, num_heads * head_dim), only where the latent of q gives it.
    q: Tensor,
    /// (T, (num_heads + 1) * head_dim) q and k, only there.
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
        // All choices of a model are alike.
        let mut choices = spec.attentions().filter_map(|block| block.choice.as_ref());
        let Some(size) = choices.find_map(size_of) else { return Ok(None) };
        let widest = |of: &dyn Fn(&IndexerSpec) -> usize| {
            let width = spec.indexers().map(of).max().unwrap_or(0);
            device.tensor(limits.max_num_tokens, width, Precision::Activation)
        };
        let if_apart = |indexer: &IndexerSpec, width| indexer.q.as_ref().map_or(0, |_| width);
        Ok(Some(Self {
            inputs: widest(&|indexer| indexer.inputs.n())?,
            q: widest(&|indexer| if_apart(indexer, indexer.heads.q_width()))?,
            qk: widest(&|indexer| if_apart(indexer, indexer.heads.qk_width()))?,
            choice: Choice::new(device, size, limits)?,
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
        q_latent: Option<&Tensor>,
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
        let (num_heads, head_dim) = (heads.num_heads, heads.head_dim);
        let IndexerBuffers { inputs, q, qk, choice: chosen } = buffers;
        let apart = weights.q.as_ref().zip(q_latent);
        let first_key = if apart.is_some() { 0 } else { heads.q_width() };
        let key = Heads { start: first_key, num_heads: 1, head_dim };
        ops::norm_heads(device, inputs, key, &weights.k_norm);
        if let Some(norm) = &weights.q_norm {
            ops::norm_heads(device, inputs, Heads { start: 0, num_heads, head_dim }, norm);
        }
        if let Some((up, latent)) = apart {
            let num_rows = latent.num_rows();
            q.reshape(num_rows, heads.q_width());
            ops::linear(device, latent, up, q);
            qk.reshape(num_rows, heads.qk_width());
            let all = Columns::run(0, heads.q_width());
            ops::copy_columns(device, (q, all), (qk, all));
            let key = (Columns::run(0, head_dim), Columns::run(heads.q_width(), head_dim));
            ops::copy_columns(device, (inputs, key.0), (qk, key.1));
        }
        let rope = spec.rope.map(|rope| &self.weights.ropes[rope]);
        let both = if apart.is_some() { &mut *qk } else { &mut *inputs };
        ops::rotary_and_cache(device, (both, heads), rope, step, cache.layer_mut(layer));
        let queries = if apart.is_some() { &*qk } else { &*inputs };
        let has_factors = choice.unit == ChoiceUnit::Token;
        let factors = has_factors.then_some((&*inputs, head_dim));
        let scores = IndexScores { queries, num_heads, factors };
        ops::choose_positions(device, (scores, step), cache.layer(layer), chosen);
    }
}

/// How much an indexer chooses; `None`: another one does.
fn size_of(choice: &ChoiceSpec) -> Option<ChoiceSize> {
    let indexer = choice.indexer.as_ref()?;
    let (num_chosen, unit) = (choice.num_chosen, choice.unit.num_tokens());
    Some(match choice.unit {
        ChoiceUnit::Token => ChoiceSize::of_positions(num_chosen),
        ChoiceUnit::Block(_) => ChoiceSize { num_chosen, unit, num_heads: indexer.heads.num_heads },
    })
}
