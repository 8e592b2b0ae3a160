//! EXAONE 3, 3.5 and Deep: Llama under other names.

use super::internlm2::{rename_norm, rename_parts};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with EXAONE's names.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let eps = config.root().number_of(&["rms_norm_eps", "layer_norm_epsilon"])?;
    let defaults = Defaults {
        rope_theta: 500_000.0,
        rms_norm_eps: eps.map_or(1e-5, |eps| eps as f32),
        ..Defaults::LLAMA
    };
    let mut spec = llama::spec_with(config, defaults)?;
    rename_parts(&mut spec.embedding.tokens, &["transformer.wte"]);
    for (index, attention) in spec.attentions_mut() {
        let name = |part: &str| format!("transformer.h.{index}.{part}");
        let of_heads = ["q_proj", "k_proj", "v_proj"];
        let of_heads = of_heads.map(|part| name(&format!("attn.attention.{part}")));
        rename_norm(&mut attention.norms, name("ln_1"));
        rename_parts(&mut attention.qkv, &of_heads.each_ref().map(String::as_str));
        rename_parts(&mut attention.out, &[&name("attn.attention.out_proj")]);
    }
    for (index, mlp) in spec.mlps_mut() {
        let name = |part: &str| format!("transformer.h.{index}.{part}");
        rename_norm(&mut mlp.norms, name("ln_2"));
        rename_parts(&mut mlp.up, &[&name("mlp.c_fc_0"), &name("mlp.c_fc_1")]);
        rename_parts(&mut mlp.down, &[&name("mlp.c_proj")]);
    }
    if let Some(norm) = &mut spec.output.norm {
        norm.parts = vec!["transformer.ln_f".to_owned()];
    }
    Ok(spec)
}
