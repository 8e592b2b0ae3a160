//! CodeGen: GPT-J whose q, k and v are one tensor, stored as four shares of the heads.

use super::gptj;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, QkvHeads, RowOrder};
use vllm_batch_base::EngineError;

/// Shares of the heads: the cores of the machine that trained it.
const NUM_SHARES: usize = 4;

/// GPT-J's spec with the rows of q, k and v in this order.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Nothing reads it.
    config.root().ignore(&["n_ctx"]);
    let heads = config.equal_heads()?;
    if !heads.num_heads.is_multiple_of(NUM_SHARES) {
        return Err(config.error(format!(
            "{} attention heads are not supported: CodeGen stores four equal shares",
            heads.num_heads
        )));
    }
    gptj::with_qkv(config, &["attn.qkv_proj"], shares(heads))
}

/// Each share is its q, its v, its k.
fn shares(heads: QkvHeads) -> RowOrder {
    let width = heads.q_width() / NUM_SHARES;
    let rows = |part: usize| {
        (0..NUM_SHARES).flat_map(move |share| {
            let first = ((3 * share + part) * width) as u32;
            first..first + width as u32
        })
    };
    RowOrder::new(rows(0).chain(rows(2)).chain(rows(1)).collect())
}
