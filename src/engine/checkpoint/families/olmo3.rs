//! OLMo 3: OLMo 2 with three sliding layers to each full one; the rotary embedding is stretched in
//! full layers alone.

use super::olmo2;
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{DecoderSpec, RopeScaling, RopeSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Base of the frequencies where the file has none.
const ROPE_BASE: f64 = 500_000.0;

/// OLMo 2's spec with windows.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = olmo2::spec(config)?;
    let root = config.root();
    let full = config.rope_of(LayerType::Full, ROPE_BASE)?;
    let parameters = root.section("rope_parameters")?;
    let sliding = match parameters.and_then(|section| section.value("sliding_attention")) {
        Some(_) => config.rope_of(LayerType::Sliding, ROPE_BASE)?,
        None => RopeSpec { scaling: RopeScaling::None, ..full.clone() },
    };
    spec.ropes = vec![full, sliding];
    let window = root.size_or_none("sliding_window", 4096)?;
    let slides = config.sliding_layers(4)?;
    for (index, attention) in spec.attentions_mut() {
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = Some(usize::from(slides[index]));
    }
    Ok(spec)
}
