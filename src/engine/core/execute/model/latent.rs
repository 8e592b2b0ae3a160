//! Latent attention: from what a block's first product gives to the rows that attention takes, and
//! from what attention gives to values.
//!
//! One form for every step, the absorbed one: a head's q goes through its matrix of K, and what
//! attention sums is latents, which go through its matrix of V. So K and V of a token are never
//! expanded, and a chunk, a prompt and a decoded token are computed alike.

use super::loading::{AttentionWeights, Loader};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Heads;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, DecoderSpec, LatentDims, LatentSpec, LatentUpSpec, LinearSpec,
};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{Columns, HeadMatrices, LinearWeight, NormWeight};

/// Weights of latent attention, beside those of any attention.
#[derive(Debug)]
pub(super) struct LatentWeights {
    /// The norm and the matrix that lead from the latent of q to q.
    pub q: Option<(NormWeight, LinearWeight)>,
    /// Of the latent of K and V.
    norm: NormWeight,
    /// (rank, nope) of each head: from q to what is multiplied with latents.
    keys: HeadMatrices,
    /// (v, rank) of each head: from sums of latents to values.
    values: HeadMatrices,
}

impl Loader<'_> {
    /// The weights of an attention block whose K and V are latents.
    pub(super) fn latent(
        &mut self,
        spec: &AttentionSpec,
    ) -> Result<Option<LatentWeights>, EngineError> {
        let Some(latent) = &spec.latent else { return Ok(None) };
        let q = match &latent.q {
            None => None,
            Some(q) => {
                let norm = self.norm(Some(&q.norm))?.expect("a norm");
                Some((norm, self.layer_linear(&q.up)?))
            }
        };
        let norm = self.norm(Some(&latent.norm))?.expect("a norm");
        let (keys, values) = self.head_matrices(latent, spec.heads.num_heads)?;
        Ok(Some(LatentWeights { q, norm, keys, values }))
    }

    /// The matrices of K and of V of each head. They hold values of the model's dtype, whatever
    /// the checkpoint holds: those of K are transposed, and codes cannot be.
    fn head_matrices(
        &mut self,
        spec: &LatentSpec,
        num_heads: usize,
    ) -> Result<(HeadMatrices, HeadMatrices), EngineError> {
        let (device, dtype) = (self.device, self.dtype);
        let LatentDims { nope, rank, v, .. } = spec.dims;
        let (of_keys, of_values) = ((num_heads, rank, nope), (num_heads, v, rank));
        let pack = |shape, at: &dyn Fn(usize, usize, usize) -> f32| {
            HeadMatrices::pack(device, dtype, shape, at)
        };
        match &spec.up {
            LatentUpSpec::Together(both) => {
                let stored = self.widened(both)?;
                let row = |head: usize, index: usize| (head * (nope + v) + index) * rank;
                let keys = pack(of_keys, &|head, n, k| stored[row(head, k) + n])?;
                let values = pack(of_values, &|head, n, k| stored[row(head, nope + n) + k])?;
                Ok((keys, values))
            }
            LatentUpSpec::Apart { keys, values } => {
                let stored = self.widened(keys)?;
                let keys = pack(of_keys, &|head, n, k| stored[(head * rank + n) * nope + k])?;
                let stored = self.widened(values)?;
                let values = pack(of_values, &|head, n, k| stored[(head * v + n) * rank + k])?;
                Ok((keys, values))
            }
        }
    }

    /// All values of a layer, row by row.
    fn widened(&mut self, spec: &LinearSpec) -> Result<Vec<f32>, EngineError> {
        let mut stored = vec![0.0; spec.n() * spec.k];
        let (rows, _) = self.rows(spec)?;
        for (row, values) in stored.chunks_exact_mut(spec.k).enumerate() {
            rows.read_row(row, values);
        }
        drop(rows);
        self.checkpoint.release();
        Ok(stored)
    }
}

/// What latent attention works in; T tokens.
#[derive(Debug)]
pub(super) struct LatentBuffers {
    /// (T, rank of q), only where q has a latent.
    pub q_latent: Tensor,
    /// (T, num_heads * (rope + nope)), only where q has a latent.
    q: Tensor,
    /// (T, (num_heads + 1) * (rope + rank) + v_dim) q, k and v as attention takes them, with the
    /// cache's v_dim.
    qkv: Tensor,
    /// (T, num_heads * v)
    values: Tensor,
}

impl LatentBuffers {
    /// Buffers for steps of `num_tokens` tokens; None: no layer needs them.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        spec: &DecoderSpec,
        num_tokens: usize,
    ) -> Result<Option<Self>, EngineError> {
        let blocks = || spec.attentions().filter_map(|block| Some((block, block.latent.as_ref()?)));
        if blocks().next().is_none() {
            return Ok(None);
        }
        let widest = |of: &dyn Fn(&AttentionSpec, &LatentSpec) -> usize| {
            let width = blocks().map(|(block, latent)| of(block, latent)).max().unwrap_or(0);
            device.tensor(num_tokens, width, Precision::Activation)
        };
        Ok(Some(Self {
            q_latent: widest(&|_, latent| latent.q.as_ref().map_or(0, |q| q.up.k))?,
            q: widest(&|_, latent| latent.q.as_ref().map_or(0, |q| q.up.n()))?,
            qkv: widest(&|block, latent| row_width(device, block, latent.dims))?,
            values: widest(&|block, _| block.out.k)?,
        }))
    }

    /// Normalizes the latents of what the block's first product gives. The one of q, if there is
    /// one, is `q_latent` then.
    pub(super) fn begin(
        &mut self,
        device: &Device,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        product: &mut Tensor,
    ) {
        let (latent, weights) = parts(spec, weights);
        let LatentDims { rope, rank, .. } = latent.dims;
        let q_width = q_width(spec, latent, product);
        let one = |start: usize, head_dim: usize| Heads { start, num_heads: 1, head_dim };
        ops::norm_heads(device, product, one(q_width + rope, rank), &weights.norm);
        if let Some((norm, _)) = &weights.q {
            ops::norm_heads(device, product, one(0, q_width), norm);
            self.q_latent.reshape(product.num_rows(), q_width);
            let all = Columns::run(0, q_width);
            ops::copy_columns(device, (product, all), (&mut self.q_latent, all));
        }
    }

    /// q, k and v as attention takes them, before any rotation, of what the block's first product
    /// gives, when it [has begun](Self::begin).
    pub(super) fn qkv(
        &mut self,
        device: &Device,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        product: &Tensor,
    ) -> &mut Tensor {
        let (latent, weights) = parts(spec, weights);
        let (num_rows, num_heads) = (product.num_rows(), spec.heads.num_heads);
        let LatentDims { rope, nope, rank, .. } = latent.dims;
        let q_width = q_width(spec, latent, product);
        let Self { q_latent, q, qkv, .. } = self;
        let q = match &weights.q {
            None => product,
            Some((_, up)) => {
                q.reshape(num_rows, num_heads * latent.dims.q());
                ops::linear(device, q_latent, up, q);
                q
            }
        };
        qkv.reshape(num_rows, row_width(device, spec, latent.dims));
        let of_heads = |start: usize, stride: usize, width: usize| Columns {
            start,
            stride,
            num: num_heads,
            width,
        };
        let (stride, key) = (latent.dims.q(), latent.dims.key());
        let turning = (of_heads(0, stride, rope), of_heads(0, key, rope));
        ops::copy_columns(device, (q, turning.0), (qkv, turning.1));
        let still = (of_heads(rope, stride, nope), of_heads(rope, key, rank));
        ops::linear_by_head(device, (q, still.0), &weights.keys, (qkv, still.1));
        let (k, v) = (num_heads * key, (num_heads + 1) * key);
        let from = Columns::run(q_width, key);
        ops::copy_columns(device, (product, from), (qkv, Columns::run(k, key)));
        // Where the cache has V in K it is not written apart.
        if device.latent_v_dim(rank) > 0 {
            let from = Columns::run(q_width + rope, rank);
            ops::copy_columns(device, (product, from), (qkv, Columns::run(v, rank)));
        }
        qkv
    }

    /// The values of the heads, of the sums of latents that attention gives.
    pub(super) fn values(
        &mut self,
        device: &Device,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        attended: &Tensor,
    ) -> &mut Tensor {
        let (latent, weights) = parts(spec, weights);
        let LatentDims { rank, v, .. } = latent.dims;
        self.values.reshape(attended.num_rows(), spec.out.k);
        let of_heads =
            |width: usize| Columns { start: 0, stride: width, num: spec.heads.num_heads, width };
        let to = (&mut self.values, of_heads(v));
        ops::linear_by_head(device, (attended, of_heads(rank)), &weights.values, to);
        &mut self.values
    }
}

/// Values of q, or of its latent, that a block's first product gives.
fn q_width(spec: &AttentionSpec, latent: &LatentSpec, product: &Tensor) -> usize {
    product.width() - latent.dims.key() - spec.num_gates()
}

fn parts<'a>(
    spec: &'a AttentionSpec,
    weights: &'a AttentionWeights,
) -> (&'a LatentSpec, &'a LatentWeights) {
    let weights = weights.latent.as_ref().expect("weights of a latent");
    (spec.latent.as_ref().expect("a block with a latent"), weights)
}

/// Values of q, k and v as attention takes them.
fn row_width(device: &Device, spec: &AttentionSpec, dims: LatentDims) -> usize {
    (spec.heads.num_heads + 1) * dims.key() + device.latent_v_dim(dims.rank)
}
