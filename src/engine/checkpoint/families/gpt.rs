//! Shared by GPT-2's descendants: LayerNorm before each block, q, k and v of all heads, an MLP
//! without a gate. Each family changes what it has of its own.

use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, LayerSpec, LinearSpec,
    MlpForm, MlpSpec, NormSpec, OutputSpec, QkvHeads, Stage,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// A model of this kind.
pub(super) struct Gpt {
    /// Names of its tensors.
    pub names: Names,
    /// Attention heads.
    pub heads: QkvHeads,
    /// Inner width of its MLP.
    pub inner: usize,
    /// The MLP's activation.
    pub activation: Activation,
    /// Attention has biases, and the MLP has.
    pub biases: [bool; 2],
    /// Longest context, in tokens.
    pub max_model_len: usize,
}

/// Names of tensors; those of a layer are what stands after its number.
pub(super) struct Names {
    /// The embedding table.
    pub tokens: &'static str,
    /// Prefix of a layer's number in tensor names.
    pub layers: &'static str,
    /// The norms that attention and the MLP read through; they may be one.
    pub norms: [&'static str; 2],
    /// q, k and v: one tensor, or three.
    pub qkv: &'static [&'static str],
    /// From attention to the residual stream.
    pub out: &'static str,
    /// Into the MLP.
    pub up: &'static str,
    /// Out of the MLP.
    pub down: &'static str,
    /// The norm of the output.
    pub final_norm: &'static str,
}

impl Gpt {
    /// Spec with the embedding table as the output layer.
    pub(super) fn spec(&self, config: &HfConfig) -> Result<DecoderSpec, EngineError> {
        let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
        let eps = config.layer_norm_eps(1e-5)?;
        let layers = (0..config.num_layers()?).map(|index| self.layer(index, hidden, eps));
        Ok(DecoderSpec {
            max_model_len: self.max_model_len,
            embedding: EmbeddingSpec::of(LinearSpec::new(self.names.tokens, vocab, hidden)),
            layers: layers.collect(),
            ropes: Vec::new(),
            output: OutputSpec::new(NormSpec::layer(self.names.final_norm, hidden, eps), None),
            stage: Stage::WHOLE,
        })
    }

    fn layer(&self, index: usize, hidden: usize, eps: f32) -> LayerSpec {
        let Self { names, heads, inner, biases: [attention_bias, mlp_bias], .. } = self;
        let name = |part: &str| format!("{}.{index}.{part}", names.layers);
        let [attention_norms, mlp_norms] =
            names.norms.map(|part| BlockNorms::before(NormSpec::layer(name(part), hidden, eps)));
        let qkv = match names.qkv {
            [all] => vec![(name(all), heads.qkv_width())],
            parts => {
                let widths = [heads.q_width(), heads.kv_width(), heads.kv_width()];
                parts.iter().zip(widths).map(|(part, rows)| (name(part), rows)).collect()
            }
        };
        let qkv = LinearSpec::stacked(qkv, hidden).with_bias(*attention_bias);
        let linear = |part, n, k, bias: &bool| LinearSpec::new(name(part), n, k).with_bias(*bias);
        let out = linear(names.out, hidden, heads.q_width(), attention_bias);
        let mlp = MlpSpec {
            norms: mlp_norms,
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(self.activation),
            up: linear(names.up, *inner, hidden, mlp_bias),
            down: linear(names.down, hidden, *inner, mlp_bias),
        };
        LayerSpec::new(AttentionSpec::new(attention_norms, *heads, qkv, out), mlp)
    }
}

/// `n_inner`, else four times the residual stream.
pub(super) fn inner_width(config: &HfConfig) -> Result<usize, EngineError> {
    let hidden = config.hidden_size()?;
    Ok(config.root().optional_size("n_inner")?.unwrap_or(4 * hidden))
}
