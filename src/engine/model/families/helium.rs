//! Helium: Llama whose rotary embedding turns neighbours.

use super::llama::{self, Defaults};
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{DecoderSpec, RowOrder};

/// Llama's spec with q and k in pairs.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 100_000.0, rms_norm_eps: 1e-8, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    turn_pairs(&mut spec);
    spec.attentions_mut().for_each(|(_, attention)| attention.out.bias = false);
    Ok(spec)
}

/// Rotary embeddings turn values 2i and 2i + 1 of every q and k head.
pub(super) fn turn_pairs(spec: &mut DecoderSpec) {
    let rotary_dims: Vec<_> = spec.ropes.iter().map(|rope| rope.rotary_dim).collect();
    for (_, attention) in spec.attentions_mut() {
        if let Some(rope) = attention.rope {
            attention.qkv.order = RowOrder::rotated_in_pairs(attention.heads, rotary_dims[rope]);
        }
    }
}
