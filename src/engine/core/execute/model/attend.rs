//! An attention block of a decoder: from the stream to what it adds, over the cache.

use super::decoder::{AttentionBuffers, Pass};
use super::indexer::IndexerBuffers;
use super::loading::AttentionWeights;
use super::stream::{Stream, begin_heads, scale_q};
use super::value_columns::{values_of_keys, with_zeros_behind_values, without_zeros};
use vllm_batch_checkpoint::spec::{
    AttentionSpec, GateFunction, GateSpan, KvSource, OutputGate, QkvHeads,
};
use vllm_batch_device::{CacheLayerMut, Device, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{AttentionShape, Gate};

impl Pass<'_> {
    /// delta = what the block adds.
    pub(super) fn attention(
        &self,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        cache: CacheLayerMut<'_>,
        (stream, buffers): (&mut Stream, &mut AttentionBuffers),
    ) {
        let device = self.device;
        let AttentionBuffers { qkv, indexer, .. } = buffers;
        stream.qkv(device, (spec, weights), qkv, indexer.as_mut());
        let values = self.attend((spec, weights), cache, buffers);
        stream.last_product(device, values, &weights.out);
    }

    /// What attention gives to its last linear layer, of its first product.
    pub(super) fn attend<'b>(
        &self,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        cache: CacheLayerMut<'_>,
        buffers: &'b mut AttentionBuffers,
    ) -> &'b mut Tensor {
        let Self { device, step, .. } = *self;
        let AttentionBuffers {
            qkv: product,
            with_values,
            narrowed,
            latent,
            indexer,
            attended,
            scratch,
            ..
        } = buffers;
        let mut latent = latent.as_mut().filter(|_| spec.latent.is_some());
        let CacheLayerMut { cache, index } = cache;
        if let Some(latent) = &mut latent {
            latent.begin(device, (spec, weights), product);
        }
        let q_latent = latent.as_ref().map(|latent| &latent.q_latent);
        self.choose((spec, weights), (cache, index), q_latent, indexer.as_mut());
        let qkv = match (&mut latent, with_values) {
            (Some(latent), _) => latent.qkv(device, (spec, weights), product),
            (None, Some(all)) if spec.kv == KvSource::ValuesAreKeys => {
                values_of_keys(device, spec.heads, product, all);
                all
            }
            (None, Some(all)) if spec.narrow_v.is_some() => {
                with_zeros_behind_values(device, spec, product, all);
                all
            }
            _ => &mut *product,
        };
        let rope = spec.rope.map(|rope| &self.weights.ropes[rope]);
        let left = begin_heads(device, (spec, weights), rope, step, qkv);
        if spec.is_cached() {
            let layer = cache.layer_mut(index);
            ops::norm_rotary_and_cache(device, (qkv, spec.heads), left, step, layer);
        } else if !left.is_none() {
            ops::norm_and_rotate(device, (qkv, spec.own_heads()), left, step);
        }
        scale_q(device, spec, step, qkv);
        let shape = shape_of(spec, weights);
        attended.reshape(step.num_rows(), shape.num_heads * spec.v_dim());
        let layer = cache.layer(index);
        match indexer.as_ref().filter(|_| spec.choice.is_some()) {
            None => ops::paged_attention(device, (qkv, step), layer, shape, scratch, attended),
            Some(IndexerBuffers { choice, .. }) => {
                let layer = (layer, choice);
                ops::attention_of_chosen(device, (qkv, step), layer, shape, scratch, attended);
            }
        }
        if let Some(gate) = spec.gate {
            gate_heads(device, (spec, gate), product, attended);
        }
        match latent {
            Some(latent) => latent.values(device, (spec, weights), attended),
            None => match (spec.narrow_v, narrowed) {
                (Some(v_dim), Some(narrowed)) => {
                    without_zeros(device, (spec.heads, v_dim), attended, narrowed);
                    narrowed
                }
                _ => attended,
            },
        }
    }
}

fn shape_of<'a>(spec: &AttentionSpec, weights: &'a AttentionWeights) -> AttentionShape<'a> {
    let AttentionSpec { scale, soft_cap, reach, is_causal, .. } = *spec;
    let QkvHeads { num_heads, num_kv_heads, .. } = spec.heads;
    AttentionShape {
        num_heads,
        num_kv_heads,
        scale,
        soft_cap,
        reach,
        is_causal,
        alibi: weights.alibi.as_ref(),
        sinks: weights.sinks.as_ref(),
    }
}

/// Multiplies what heads give by gates, the last values of the block's first product.
fn gate_heads(
    device: &Device,
    (spec, OutputGate { span, function }): (&AttentionSpec, OutputGate),
    product: &Tensor,
    attended: &mut Tensor,
) {
    let gate = match function {
        GateFunction::Sigmoid => Gate::Sigmoid,
        GateFunction::Softplus => Gate::Softplus,
    };
    let num_values = match span {
        GateSpan::Value => 1,
        GateSpan::Head => spec.v_dim(),
    };
    let gates = (product, product.width() - spec.num_gates());
    ops::gate_heads(device, attended, gates, (gate, num_values));
}
