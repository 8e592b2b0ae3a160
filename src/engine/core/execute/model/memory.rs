//! Blocks that layers share, which read the embeddings beside the stream: their weights, and what
//! they give the recurrent block of a layer to read.

use super::decoder::{AttentionBuffers, Pass};
use super::loading::{AttentionWeights, Loader};
use super::stream::Stream;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;
use vllm_batch_checkpoint::spec::{
    ActivationSpec, AttentionSpec, DecoderSpec, LayerSpec, LowRankSpec, MemorySpec,
};
use vllm_batch_device::{CacheLayerMut, Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{Columns, LinearWeight, NormWeight};

/// Weights of a layer's use of such a block.
#[derive(Debug)]
pub(super) struct MemoryWeights {
    /// Those that other layers have too; None: another one holds them.
    shared: Option<Box<SharedWeights>>,
    qkv_adapters: Option<[LowRank; 3]>,
    up_adapter: LowRank,
    out: LinearWeight,
}

#[derive(Debug)]
struct SharedWeights {
    attention: AttentionWeights,
    norm: NormWeight,
    up: LinearWeight,
    activation: Activation,
    down: LinearWeight,
}

#[derive(Debug)]
struct LowRank {
    down: LinearWeight,
    up: LinearWeight,
}

impl Loader<'_> {
    /// The weights of a layer's use of a block that layers share.
    pub(super) fn memory(
        &mut self,
        spec: &LayerSpec,
    ) -> Result<Option<MemoryWeights>, EngineError> {
        let (Some(memory), Some(attention)) = (&spec.memory, &spec.attention) else {
            return Ok(None);
        };
        let shared = match memory.owner {
            Some(_) => None,
            None => Some(Box::new(self.shared(attention, memory)?)),
        };
        let qkv_adapters = match &memory.qkv_adapters {
            None => None,
            Some([q, k, v]) => Some([self.low_rank(q)?, self.low_rank(k)?, self.low_rank(v)?]),
        };
        Ok(Some(MemoryWeights {
            shared,
            qkv_adapters,
            up_adapter: self.low_rank(&memory.up_adapter)?,
            out: self.layer_linear(&memory.out)?,
        }))
    }

    fn shared(
        &mut self,
        attention: &AttentionSpec,
        memory: &MemorySpec,
    ) -> Result<SharedWeights, EngineError> {
        let ActivationSpec::Known(activation) = memory.mlp.activation else {
            unreachable!("families of such blocks have no others")
        };
        Ok(SharedWeights {
            attention: self.attention(attention)?,
            norm: self.the_norm(memory.mlp.norms.before.as_ref().expect("a norm"))?,
            up: self.layer_linear(&memory.mlp.up)?,
            activation,
            down: self.layer_linear(&memory.mlp.down)?,
        })
    }

    fn low_rank(&mut self, spec: &LowRankSpec) -> Result<LowRank, EngineError> {
        Ok(LowRank { down: self.layer_linear(&spec.down)?, up: self.layer_linear(&spec.up)? })
    }
}

impl LowRank {
    fn linears(&self) -> [&LinearWeight; 2] {
        [&self.down, &self.up]
    }

    /// out = this of x.
    fn compute(&self, device: &Device, x: &Tensor, (low, out): (&mut Tensor, &mut Tensor)) {
        let num_rows = x.num_rows();
        low.reshape(num_rows, self.down.shape().0);
        out.reshape(num_rows, self.up.shape().0);
        ops::linear(device, x, &self.down, low);
        ops::linear(device, low, &self.up, out);
    }
}

impl MemoryWeights {
    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        let shared = self.shared.iter().flat_map(|shared| {
            let AttentionWeights { qkv, out, .. } = &shared.attention;
            [&qkv.weight, &out.weight, &shared.up, &shared.down]
        });
        let adapters = self.qkv_adapters.iter().flatten().chain([&self.up_adapter]);
        shared.chain(adapters.flat_map(LowRank::linears)).chain([&self.out])
    }
}

/// What such blocks work in; T tokens.
#[derive(Debug)]
pub(super) struct MemoryBuffers {
    /// (T, hidden_size) the embeddings of the step's tokens.
    embedded: Tensor,
    /// (T, hidden_size) the stream, in the model's dtype.
    own: Tensor,
    /// (T, 2 * hidden_size) the stream and the embeddings.
    both: Tensor,
    /// (T, rank)
    low: Tensor,
    /// (T, outputs) what an adapter adds to q, k or v.
    part: Tensor,
    /// (T, outputs) what adapters add.
    added: Tensor,
    /// (T, 2 * intermediate_size)
    up: Tensor,
    /// (T, intermediate_size)
    activated: Tensor,
    /// (T, hidden_size) each.
    outs: [Tensor; 2],
    /// (T, hidden_size) what the recurrent block reads, in the place of the stream.
    sum: Tensor,
}

impl MemoryBuffers {
    /// Buffers for steps of `num_tokens` tokens; None: no layer of the model has such
    /// a block.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        spec: &DecoderSpec,
        num_tokens: usize,
    ) -> Result<Option<Self>, EngineError> {
        let memories = || spec.layers.iter().filter_map(|layer| layer.memory.as_ref());
        if memories().next().is_none() && !spec.stage.has_memory {
            return Ok(None);
        }
        let widest = |of: &dyn Fn(&MemorySpec) -> usize| memories().map(of).max().unwrap_or(0);
        let adapters =
            |memory: &MemorySpec| memory.qkv_adapters.iter().flatten().map(|a| a.up.n()).sum();
        let hidden = spec.hidden_size();
        let per_token = |width: usize| device.tensor(num_tokens, width, Precision::Activation);
        let up = widest(&|memory| memory.mlp.up.n());
        Ok(Some(Self {
            embedded: per_token(hidden)?,
            own: per_token(hidden)?,
            both: per_token(2 * hidden)?,
            low: per_token(widest(&|memory| memory.up_adapter.up.k))?,
            part: per_token(widest(&adapters))?,
            added: per_token(widest(&adapters).max(up))?,
            up: per_token(up)?,
            activated: per_token(widest(&|memory| memory.mlp.down.k))?,
            outs: [per_token(hidden)?, per_token(hidden)?],
            sum: device.tensor(num_tokens, hidden, Precision::Full)?,
        }))
    }

    /// Keeps the embeddings.
    pub(super) fn begin(&mut self, device: &Device, embeddings: &Tensor) {
        ops::copy(device, embeddings, &mut self.embedded);
    }

    /// The stream and what the recurrent block reads change places.
    pub(super) fn swap(&mut self, stream: &mut Stream) {
        std::mem::swap(&mut stream.residual, &mut self.sum);
    }
}

impl Pass<'_> {
    /// Leaves the sum of the stream and of what the layer's block gives in `buffers`.
    pub(super) fn remember(
        &self,
        (spec, weights): (&LayerSpec, &MemoryWeights),
        cache: CacheLayerMut<'_>,
        (stream, attention, buffers): (&mut Stream, &mut AttentionBuffers, &mut MemoryBuffers),
    ) {
        let (Some(memory), Some(block)) = (&spec.memory, &spec.attention) else {
            unreachable!("a layer that has such weights")
        };
        let owner = memory.owner.and_then(|owner| self.weights.layers[owner].memory.as_ref());
        let shared = owner.unwrap_or(weights).shared.as_ref().expect("the owner holds them");
        let (device, hidden) = (self.device, buffers.own.width());
        stream.settle(device);
        let MemoryBuffers { embedded, own, both, low, part, added, outs, sum, .. } = buffers;
        let num_rows = stream.residual.num_rows();
        ops::copy(device, &stream.residual, own);
        both.set_num_rows(num_rows);
        let (all, behind) = (Columns::run(0, hidden), Columns::run(hidden, hidden));
        ops::copy_columns(device, (own, all), (both, all));
        ops::copy_columns(device, (embedded, all), (both, behind));
        let norm = shared.attention.norms.before.as_ref().expect("a norm");
        ops::norm_in_place(device, both, norm);
        let product = attention.product(num_rows, &block.qkv);
        ops::linear(device, both, &shared.attention.qkv.weight, product);
        if let Some(adapters) = &weights.qkv_adapters {
            added.reshape(num_rows, product.width());
            let mut start = 0;
            for adapter in adapters {
                adapter.compute(device, both, (low, part));
                let width = part.width();
                let place = Columns::run(start, width);
                ops::copy_columns(device, (part, Columns::run(0, width)), (added, place));
                start += width;
            }
            ops::add(device, product, added);
        }
        let values = self.attend((block, &shared.attention), cache, attention);
        outs[0].set_num_rows(num_rows);
        ops::linear(device, values, &shared.attention.out.weight, &mut outs[0]);
        sum.set_num_rows(num_rows);
        ops::fill_zero(device, sum, num_rows);
        ops::add(device, sum, own);
        buffers.recall(device, (shared, weights));
    }
}

impl MemoryBuffers {
    /// What later stages go on with.
    pub(super) fn embedded_mut(&mut self) -> &mut Tensor {
        &mut self.embedded
    }

    /// sum += the last layer of the MLP of what attention has left.
    fn recall(&mut self, device: &Device, (shared, weights): (&SharedWeights, &MemoryWeights)) {
        let Self { low, added, up, activated, outs: [first, second], sum, .. } = self;
        let num_rows = first.num_rows();
        ops::norm_in_place(device, first, &shared.norm);
        up.set_num_rows(num_rows);
        ops::linear(device, first, &shared.up, up);
        weights.up_adapter.compute(device, first, (low, added));
        ops::add(device, up, added);
        ops::activate_and_mul(device, shared.activation, up, activated);
        second.set_num_rows(num_rows);
        ops::linear(device, activated, &shared.down, second);
        ops::linear(device, second, &weights.out, first);
        ops::add(device, sum, first);
    }
}
