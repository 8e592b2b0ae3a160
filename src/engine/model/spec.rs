//! `DecoderSpec`: what a decoder-only model is, as data. No behaviour: `decoder.rs` runs it.

use crate::engine::ops::{Activation, NormKind};

/// A decoder-only model. Families differ in these values only.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Rows of the embedding table, width of the logits.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width between the MLP's projections.
    pub intermediate_size: usize,
    /// Longest context the checkpoint was made for, rope scaling included.
    pub max_model_len: usize,
    /// Token embeddings.
    pub embedding: EmbeddingSpec,
    /// All normalizations.
    pub norm: NormSpec,
    /// Where a layer normalizes.
    pub norm_placement: NormPlacement,
    /// Normalization before the output layer.
    pub has_final_norm: bool,
    /// Heads.
    pub attention: AttentionSpec,
    /// Feed-forward.
    pub mlp: MlpSpec,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
    /// Rotary embeddings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// logits = cap * tanh(logits / cap).
    pub final_logit_soft_cap: Option<f32>,
    /// The output layer is the embedding table.
    pub tie_word_embeddings: bool,
    /// Names of its tensors.
    pub names: TensorNames,
}

/// Token embeddings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddingSpec {
    /// Embeddings are multiplied by sqrt(hidden_size), rounded to the model's dtype (Gemma).
    pub scaled: bool,
    /// Width of the table when it is not hidden_size; projections lead in and out (OPT-350m).
    pub projected_from: Option<usize>,
    /// Learned positions are added.
    pub positions: Option<LearnedPositions>,
}

/// A table of position embeddings: position p is row p + offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Rows.
    pub num_rows: usize,
    /// Row of position 0.
    pub offset: usize,
}

/// All normalizations of a model are of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// The factor is 1 + weight (Gemma).
    pub unit_offset: bool,
}

/// Where a layer normalizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// x += f(norm(x)).
    Pre,
    /// x = norm(x + f(x)).
    Post,
    /// x += norm(f(norm(x))).
    Sandwich,
}

/// Heads and their arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub num_heads: usize,
    /// K and V heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub out_bias: bool,
    /// q and k heads are normalized before the rotary embedding.
    pub qk_norm: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// scores = cap * tanh(scores / cap).
    pub soft_cap: Option<f32>,
}

/// Feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpSpec {
    /// down(act(gate(x)) * up(x)), else down(act(up(x))).
    pub gated: bool,
    /// The activation.
    pub activation: Activation,
    /// All its projections have biases.
    pub bias: bool,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Positions a token attends to, itself included; None: all before it.
    pub sliding_window: Option<usize>,
    /// Index into `ropes`; None: no rotary embedding.
    pub rope: Option<usize>,
}

/// A rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// How frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// Stretching of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below original / this are high frequencies.
        high_freq_factor: f64,
        /// Context length of the first training.
        original_max_position_embeddings: f64,
    },
}

impl RopeSpec {
    /// (head_dim / 2) radians per position.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        let plain = |i: usize| 1.0 / self.theta.powf(2.0 * i as f64 / head_dim as f64);
        (0..head_dim / 2).map(|i| self.scaling.stretch(plain(i)) as f32).collect()
    }
}

impl RopeScaling {
    fn stretch(&self, inv_freq: f64) -> f64 {
        match *self {
            RopeScaling::None => inv_freq,
            RopeScaling::Linear { factor } => inv_freq / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let turns = original * inv_freq / (2.0 * std::f64::consts::PI);
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
            }
        }
    }
}

/// Names of tensors in a checkpoint, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorNames {
    /// Before everything but `lm_head`.
    pub prefix: &'static str,
    /// Final normalization.
    pub final_norm: &'static str,
    /// Normalization of the attention block: before it, or after it in a post-norm model.
    pub attention_norm: &'static str,
    /// Second normalization of the attention block in a sandwich.
    pub attention_post_norm: &'static str,
    /// Normalization of the MLP block.
    pub mlp_norm: &'static str,
    /// Second normalization of the MLP block in a sandwich.
    pub mlp_post_norm: &'static str,
    /// Output projection of attention.
    pub out_proj: &'static str,
    /// Gate projection of a gated MLP.
    pub gate_proj: &'static str,
    /// Up projection.
    pub up_proj: &'static str,
    /// Down projection.
    pub down_proj: &'static str,
}

impl TensorNames {
    /// Llama and most others.
    pub const LLAMA: Self = Self {
        prefix: "model.",
        final_norm: "norm",
        attention_norm: "input_layernorm",
        attention_post_norm: "",
        mlp_norm: "post_attention_layernorm",
        mlp_post_norm: "",
        out_proj: "self_attn.o_proj",
        gate_proj: "mlp.gate_proj",
        up_proj: "mlp.up_proj",
        down_proj: "mlp.down_proj",
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_divides_low_keeps_high_and_ramps_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        let wavelength = |length: f64| 2.0 * std::f64::consts::PI / length;
        assert_eq!(scaling.stretch(wavelength(100.0)), wavelength(100.0));
        assert_eq!(scaling.stretch(wavelength(10_000.0)), wavelength(10_000.0) / 8.0);
        let middle = wavelength(8192.0 / 2.5);
        assert!((scaling.stretch(middle) / middle - (0.5 / 8.0 + 0.5)).abs() < 1e-12);
    }
}
