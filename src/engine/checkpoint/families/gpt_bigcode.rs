//! GPTBigCode (StarCoder 1, Granite Code 20B and 34B): GPT-2 with one KV head, its matrices stored
//! as usual.

use super::gpt2;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, QkvHeads, RowOrder};
use vllm_batch_base::EngineError;

/// GPT-2's spec with the heads of this family.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // How StarCoder's first server ran it.
    root.ignore(&[
        "inference_runner",
        "max_batch_size",
        "max_sequence_length",
        "n_ctx",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    ]);
    let heads = config.equal_heads()?;
    let heads = match root.flag("multi_query")?.unwrap_or(true) {
        true => QkvHeads { num_kv_heads: 1, ..heads },
        false => heads,
    };
    root.expect("num_key_value_heads", heads.num_kv_heads)?;
    let mut spec = gpt2::with_positions(config, heads)?;
    let order = RowOrder::grouped_qkv(heads);
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.order = order.clone();
    }
    Ok(spec)
}
