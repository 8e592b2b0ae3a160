//! Models that see, on a GPU that cannot compute their vision tower: they read text alone.

use crate::execute::model_executor::gpu_needs_of;
use vllm_batch_base::config::{DType, DeviceKind, EngineConfig, KvCacheDType};
use vllm_batch_base::layers::Reach;
use vllm_batch_checkpoint::spec::{
    Bidirectional, ConnectorStep, DecoderSpec, LayerSpec, TowerSpec,
};
use vllm_batch_device::gpu_trouble;
use vllm_batch_ops::{GpuNeeds, HeadWidths, MAX_NARROW_HEAD_DIM};

/// Why a tower is left out, where a GPU takes the rest of the model alone; for people to read.
/// None: it is not.
pub(crate) fn text_alone(
    config: &EngineConfig,
    (decoder, tower): (&DecoderSpec, &TowerSpec),
    dtype: DType,
) -> Option<String> {
    gpu_needs_of(decoder).memory_of_gpu(config, dtype)?;
    let why = refusal(config, (decoder, tower), dtype)?;
    if config.device.kind == DeviceKind::Auto && gpu_trouble(&config.device).is_some() {
        return None;
    }
    Some(format!(
        "the vision tower is left out: {why}. Rows with images are error rows; `settings.device` \
         cpu computes them"
    ))
}

/// Why a GPU does not compute a tower; None: it does.
fn refusal(
    config: &EngineConfig,
    (decoder, tower): (&DecoderSpec, &TowerSpec),
    dtype: DType,
) -> Option<String> {
    let head_dim = decoder.heads().head_dim;
    let is_of_channels = |step: &ConnectorStep| matches!(step, ConnectorStep::Standardize { .. });
    let sees_whole = tower.bidirectional != Bidirectional::None;
    let is_of_some_layers = sees_whole && decoder.attentions().any(|attention| attention.is_causal);
    let is_past_windows = tower.bidirectional == Bidirectional::Prompt
        && decoder.attentions().any(|attention| attention.reach != Reach::All);
    let why = if sees_whole && head_dim > MAX_NARROW_HEAD_DIM {
        "no kernel over heads of such a width lets the tokens of an image see all of it"
    } else if is_of_some_layers {
        "no kernel lets the tokens of an image see all of it in some layers alone"
    } else if is_past_windows {
        "no kernel lets the tokens of a prompt see all of it past a window"
    } else if tower.connector.steps.iter().any(is_of_channels) {
        "no kernel of a GPU standardizes what it gives yet"
    } else if tower.attentions().any(|attention| attention.squares.is_some()) {
        "no kernel of a GPU adds what queries say of distances between patches yet"
    } else if tower.layers.iter().any(LayerSpec::is_bounded) {
        "no kernel of a GPU bounds what its layers read yet"
    } else if config.device.quantization.is_some() {
        "`settings.quantization` is for its layers too, and no kernel narrows those"
    } else if config.cache.kv_cache_dtype == KvCacheDType::Fp8 {
        "`settings.kv_cache_dtype` fp8 is for its K and V too, and no kernel narrows those"
    } else {
        return refusal_of_heads(config, tower, dtype);
    };
    Some(why.to_owned())
}

/// Why the kernels do not take its heads; None: they do.
fn refusal_of_heads(config: &EngineConfig, tower: &TowerSpec, dtype: DType) -> Option<String> {
    let of_head = |head_dim| HeadWidths { head_dim, ..HeadWidths::default() };
    let heads = tower.attentions().map(|attention| of_head(attention.heads.head_dim)).collect();
    let needs = GpuNeeds { heads, is_of_texts: true, ..GpuNeeds::default() };
    needs.refusal(dtype, config.cache.kv_cache_dtype)
}
