//! Mamba 2: blocks of the recurrence alone, no attention and no MLP.

use super::mamba::{self, Blocks};
use crate::hf_config::HfConfig;
use crate::spec::{
    BlockNorms, DecoderSpec, EmbeddingSpec, GateOrder, LayerSpec, LinearSpec, NormSpec, OutputSpec,
    RecurrentSpec, Stage,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ScanShape};

/// No key bounds the context, and nothing in the model does: as far as Mistral has tried its
/// Codestral Mamba.
const MAX_MODEL_LEN: usize = 1 << 18;

/// The recurrence in every layer.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let eps = config.layer_norm_eps(1e-5)?;
    let blocks = blocks(config, eps)?;
    around(config, (eps, false), |name, norms| blocks.block(name, norms))
}

/// Layers of blocks of a recurrence alone, each by its name and with its norm, between the
/// embedding and the output layer, which is the table if the family `is_tied`.
pub(super) fn around(
    config: &HfConfig,
    (eps, is_tied): (f32, bool),
    block: impl Fn(&str, BlockNorms) -> RecurrentSpec,
) -> Result<DecoderSpec, EngineError> {
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let layer = |index: usize| {
        let name = |part: &str| format!("backbone.layers.{index}.{part}");
        let norms = BlockNorms::before(NormSpec::rms(name("norm"), hidden, eps));
        let recurrent = Some(block(&name("mixer"), norms));
        LayerSpec { recurrent, ..LayerSpec::default() }
    };
    let norm = NormSpec::rms("backbone.norm_f", hidden, eps);
    Ok(DecoderSpec {
        max_model_len: config
            .root()
            .optional_size("max_position_embeddings")?
            .unwrap_or(MAX_MODEL_LEN),
        embedding: EmbeddingSpec::of(LinearSpec::new("backbone.embeddings", vocab, hidden)),
        layers: (0..config.num_layers()?).map(layer).collect(),
        ropes: Vec::new(),
        output: OutputSpec::new(norm, config.lm_head("lm_head", is_tied)?),
        stage: Stage::WHOLE,
    })
}

fn blocks(config: &HfConfig, eps: f32) -> Result<Blocks, EngineError> {
    let root = config.root();
    let size = |key, default| mamba::size(config, key, default);
    let hidden = config.hidden_size()?;
    let scan = ScanShape {
        num_heads: size("num_heads", 128)?,
        head_dim: size("head_dim", 64)?,
        num_groups: size("n_groups", 8)?,
        state_size: size("state_size", 128)?,
    };
    let inner = size("expand", 2)?.saturating_mul(hidden);
    if inner != scan.num_heads.saturating_mul(scan.head_dim) {
        return Err(config.error(format!("`expand` gives {inner} values, not those of all heads")));
    }
    root.expect("rms_norm", true)?;
    // Of training, of how many tokens are taken at once, and of residuals, which are in f32 here.
    // The last one says something else in published files than their code does.
    root.ignore(&[
        "chunk_size",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "time_step_floor",
        "time_step_max",
        "time_step_min",
        "time_step_rank",
        "norm_before_gate",
    ]);
    Blocks {
        hidden,
        scan,
        num_taps: size("conv_kernel", 4)?,
        has_conv_bias: root.flag("use_conv_bias")?.unwrap_or(true),
        has_bias: [root.flag("use_bias")?.unwrap_or(false); 2],
        activation: config.activation_or(Activation::Silu)?,
        dt_bounds: mamba::dt_bounds(config)?,
        norm: Some((eps, GateOrder::BeforeNorm)),
    }
    .checked(config)
}
