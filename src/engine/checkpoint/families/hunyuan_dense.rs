//! Hunyuan (dense, V1): Llama with norms of q and k after the rotary embedding.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, QkNormOrder, QkNormSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with query_layernorm and key_layernorm.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let root = config.root();
    let has_norms = root.flag("use_qk_norm")?.unwrap_or(true);
    root.expect("attention_head_dim", spec.heads().head_dim)?;
    root.expect("add_classification_head", false)?;
    root.expect("norm_type", "rms")?;
    root.expect("use_cla", false)?;
    root.expect("use_rotary_pos_emb", true)?;
    // Without `use_cla` no layer shares K and V. The others are of the first layers' width, of
    // pooling, and of the tokenizer.
    root.ignore(&["cla_share_factor", "class_num", "dense_list", "org_vocab_size", "pool_type"]);
    root.ignore(&["eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id"]);
    root.ignore(&["pad_id", "text_end_id", "text_start_id", "video_end_id", "video_start_id"]);
    for (index, attention) in spec.attentions_mut().filter(|_| has_norms) {
        let names = ["query_layernorm", "key_layernorm"];
        let norms = llama::head_norms(index, names, attention.heads.head_dim, eps);
        attention.qk_norm = Some(QkNormSpec { order: QkNormOrder::AfterRotation, ..norms });
    }
    Ok(spec)
}
