//! Solar Pro: Llama whose stream before some layers is mixed with that before an earlier one.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, Kept};
use vllm_batch_base::EngineError;

/// Llama's spec with two slots: layers of `bskcn_1` and `bskcn_2` keep the stream, those of
/// `bskcn_3` and `bskcn_4` come back to it, with the second share of `bskcn_tv` (the first is of
/// training).
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let root = config.root();
    // Nothing reads it: every layer is full.
    root.ignore(&["sliding_window"]);
    let shares = root.numbers("bskcn_tv")?.unwrap_or_default();
    let &[_, share] = &shares[..] else {
        return Err(config.error("`bskcn_tv` should be two numbers"));
    };
    for (slot, keeps, adds) in [(0, "bskcn_1", "bskcn_3"), (1, "bskcn_2", "bskcn_4")] {
        let layers = |key| Ok::<_, EngineError>(root.numbers(key)?.unwrap_or_default());
        let (keeps, adds) = (layers(keeps)?, layers(adds)?);
        let mut is_kept = false;
        for (index, layer) in spec.layers.iter_mut().enumerate() {
            let index = index as f64;
            if keeps.contains(&index) {
                layer.keeps.push(Kept { slot, factor: share as f32 });
                is_kept = true;
            }
            if !adds.contains(&index) {
                continue;
            }
            if !is_kept || layer.adds.is_some() {
                return Err(config.error(format!("layer {index} should add one kept stream")));
            }
            layer.adds = Some(Kept { slot, factor: (1.0 - share) as f32 });
        }
    }
    Ok(spec)
}
