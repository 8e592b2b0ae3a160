//! Gated delta nets: their weights, and what they compute between their first and their last
//! linear layer.

use super::inner_buffers::InnerBuffers;
use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Decay, DeltaHeads, Heads, NormKind};
use vllm_batch_checkpoint::spec::{DeltaGate, DeltaNetSpec};
use vllm_batch_device::{Device, StateLayerMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    Columns, ConvColumns, ConvTaps, DeltaGateWeights, DeltaRule, Gate, LinearWeight, NormWeight,
    Step,
};

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
    decay: Decay,
    /// Layers to a and to z, where these are of low rank.
    pub low_rank: Option<[LinearWeight; 2]>,
    /// Of what a head gives.
    norm: NormWeight,
    /// What that is multiplied by, of z.
    output_gate: Gate,
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
        let form = (spec.decay, spec.beta_factor);
        let gates = DeltaGateWeights::new(self.device, (&a_log, dt_bias), form)?;
        let low_rank = match &spec.low_rank {
            None => None,
            Some(gates) => Some([self.layer_linear(&gates.a)?, self.layer_linear(&gates.z)?]),
        };
        Ok(DeltaNetWeights {
            heads: spec.heads,
            first_gate: spec.first_gate(),
            first_z: spec.first_z(),
            q_norm,
            k_norm,
            gates,
            decay: spec.decay,
            low_rank,
            norm: self.the_norm(&spec.norm)?,
            output_gate: match spec.output_gate {
                DeltaGate::Silu => Gate::Silu,
                DeltaGate::Sigmoid => Gate::Sigmoid,
            },
        })
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
        (buffers, mixed): (&mut InnerBuffers, &mut Tensor),
    ) {
        let Self { heads, first_gate, first_z, output_gate, .. } = *self;
        let activation = Some(Activation::Silu);
        let columns = ConvColumns { first: 0, gates: None, activation };
        ops::causal_conv(device, (products, step), taps, states.reborrow(), columns);
        let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = heads;
        let k_heads = |start| Heads { start, num_heads: num_k_heads, head_dim: k_dim };
        ops::norm_heads(device, products, k_heads(0), &self.q_norm);
        ops::norm_heads(device, products, k_heads(heads.k_width()), &self.k_norm);
        let (gate_weights, state) = (&self.gates, taps.state_len());
        self.inner_products(device, products, buffers);
        let InnerBuffers { products: [_, z], decays, .. } = &*buffers;
        let decays = (self.decay != Decay::OfHeads).then_some(decays);
        let rule = DeltaRule { heads, gate_weights, gates: first_gate, decays, state };
        ops::delta_rule(device, (products, step), rule, states, mixed);
        let v_heads = Heads { start: 0, num_heads: num_v_heads, head_dim: v_dim };
        ops::norm_heads(device, mixed, v_heads, &self.norm);
        let z = if self.low_rank.is_some() { (z, 0) } else { (&*products, first_z) };
        ops::gate_columns(device, mixed, z, output_gate);
    }

    /// The decays of rows of states, and z of low rank, where there are such.
    fn inner_products(&self, device: &Device, products: &Tensor, buffers: &mut InnerBuffers) {
        let first_a = self.first_gate + self.heads.num_v_heads;
        if let Some([a, z]) = &self.low_rank {
            let columns = Columns::run(first_a, a.shape().1);
            buffers.product(device, (products, columns), a, 0);
            let columns = Columns::run(self.first_z, z.shape().1);
            buffers.product(device, (products, columns), z, 1);
        }
        if self.decay != Decay::OfHeads {
            let InnerBuffers { products: [of_low_rank, _], decays, .. } = buffers;
            let a = if self.low_rank.is_some() { (&*of_low_rank, 0) } else { (products, first_a) };
            ops::delta_decays(device, a, &self.gates, decays);
        }
    }
}
