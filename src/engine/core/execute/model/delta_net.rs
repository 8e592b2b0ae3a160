//! Gated delta nets: their weights, and what they compute between their first and their last
//! linear layer.

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, DeltaHeads, Heads, NormKind};
use vllm_batch_checkpoint::spec::DeltaNetSpec;
use vllm_batch_device::{Device, StateLayerMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{ConvColumns, ConvTaps, DeltaGateWeights, DeltaRule, Gate, NormWeight, Step};

/// Added to squares of lengths that q and k are divided by, in transformers' `l2norm`.
const LENGTH_EPS: f32 = 1e-6;

/// Weights of a gated delta net, beside those of any block with a state.
#[derive(Debug)]
pub(super) struct DeltaNetWeights {
    heads: DeltaHeads,
    /// Columns of the first products.
    first_gate: usize,
    first_z: usize,
    /// Divides q by its length, and by the root of its width.
    q_norm: NormWeight,
    /// Divides k by its length.
    k_norm: NormWeight,
    gates: DeltaGateWeights,
    /// Of what a head gives.
    norm: NormWeight,
}

impl Loader<'_> {
    /// The weights of a gated delta net.
    pub(super) fn delta_net(
        &mut self,
        spec: &DeltaNetSpec,
    ) -> Result<DeltaNetWeights, EngineError> {
        let width = spec.heads.k_dim;
        // A length is a root mean square times the root of the width.
        let root = (width as f32).sqrt();
        let of_length = |factor: f32| {
            let weight = self.device.upload(vec![factor; width], width)?;
            let eps = LENGTH_EPS / width as f32;
            Ok::<_, EngineError>(NormWeight { kind: NormKind::Rms, eps, weight, bias: None })
        };
        let (q_norm, k_norm) = (of_length(1.0 / (root * root))?, of_length(1.0 / root)?);
        let [a_log, dt_bias] = spec.gate_tensors();
        let a_log = self.checkpoint.vector(&a_log, 0.0)?;
        let dt_bias = self.checkpoint.vector(&dt_bias, 0.0)?;
        let gates = DeltaGateWeights::new(self.device, &a_log, dt_bias)?;
        let norm = self.norm(Some(&spec.norm))?.expect("a norm");
        let (heads, first_gate, first_z) = (spec.heads, spec.first_gate(), spec.first_z());
        Ok(DeltaNetWeights { heads, first_gate, first_z, q_norm, k_norm, gates, norm })
    }
}

impl DeltaNetWeights {
    /// mixed (num_tokens, v_width) = what the block makes of its first products, which are changed
    /// on the way, and of its states.
    pub(super) fn mix(
        &self,
        device: &Device,
        taps: &ConvTaps,
        (products, step): (&mut Tensor, Step<'_>),
        mut states: StateLayerMut<'_>,
        mixed: &mut Tensor,
    ) {
        let Self { heads, first_gate, first_z, .. } = *self;
        let activation = Some(Activation::Silu);
        let columns = ConvColumns { first: 0, gates: None, activation };
        ops::causal_conv(device, (products, step), taps, states.reborrow(), columns);
        let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = heads;
        let k_heads = |start| Heads { start, num_heads: num_k_heads, head_dim: k_dim };
        ops::norm_heads(device, products, k_heads(0), &self.q_norm);
        ops::norm_heads(device, products, k_heads(heads.k_width()), &self.k_norm);
        let (gate_weights, state) = (&self.gates, taps.state_len());
        let rule = DeltaRule { heads, gate_weights, gates: first_gate, state };
        ops::delta_rule(device, (products, step), rule, states, mixed);
        let v_heads = Heads { start: 0, num_heads: num_v_heads, head_dim: v_dim };
        ops::norm_heads(device, mixed, v_heads, &self.norm);
        ops::gate_columns(device, mixed, (products, first_z), Gate::Silu);
    }
}
