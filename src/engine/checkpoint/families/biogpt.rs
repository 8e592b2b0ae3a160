//! BioGPT: OPT with embeddings that are scaled.

use super::xglm;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, LearnedPositions, LinearSpec};
use vllm_batch_base::EngineError;

/// Rows before position 0: a leftover of fairseq's padding ids.
const POSITION_OFFSET: usize = 2;

/// The spec of a BioGPT config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let names = ["biogpt.embed_tokens", "biogpt.layers", "biogpt.layer_norm"];
    let mut spec = xglm::scaled(config, names)?;
    let num_rows = spec.max_model_len + POSITION_OFFSET;
    let table = LinearSpec::new("biogpt.embed_positions", num_rows, spec.hidden_size());
    spec.embedding.positions = Some(LearnedPositions { table, offset: POSITION_OFFSET });
    spec.output.lm_head = config.lm_head("output_projection", true)?;
    Ok(spec)
}
