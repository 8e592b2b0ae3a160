//! What AutoRound writes beside the keys of the format that it saves (GPTQ or AWQ).

use serde_json::Value;

use crate::hf_config::Section;
use vllm_batch_base::EngineError;

/// Keys that say how the codes were found.
const HARMLESS: &[&str] = &[
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "amp",
    "autoround_version",
    "dynamic_max_gap",
    "enable_alg_ext",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "enable_torch_compile",
    "gradient_accumulate_steps",
    "iters",
    "low_cpu_mem_usage",
    "low_gpu_mem_usage",
    "lr",
    "minmax_lr",
    "model_dtype",
    "momentum",
    "not_use_best_mse",
    "nsamples",
    "provider",
    "quant_block_list",
    "quant_lm_head",
    "sampler",
    "scale_dtype",
    "seqlen",
    "super_group_size",
    "to_quant_block_names",
];

/// Bits from which on inputs are those of the model.
const BITS_OF_FLOATS: u64 = 16;

/// Passes over what changes nothing of how layers are stored.
///
/// # Errors
/// A key asks for something else than `format` has.
pub(super) fn read(section: &Section<'_>, format: &str) -> Result<(), EngineError> {
    section.ignore(HARMLESS);
    section.expect("data_type", "int")?;
    section.expect("super_bits", Value::Null)?;
    let act_bits = section.optional_size("act_bits")?;
    if let Some(bits) = act_bits.filter(|bits| (*bits as u64) < BITS_OF_FLOATS) {
        return Err(super::unsupported(section, format, &format!("`act_bits` {bits}")));
    }
    let packing = section.text("packing_format")?;
    let names = [format!("auto_round:{format}"), format!("auto_round:auto_{format}")];
    if let Some(other) = packing.filter(|name| !names.iter().any(|known| known == name)) {
        return Err(super::unsupported(section, format, other));
    }
    // Of single layers, and of rotated weights.
    for key in ["extra_config", "rotation_config", "transform_config"] {
        let is_empty = |keys: &Value| keys.as_object().is_some_and(|keys| keys.is_empty());
        if section.value(key).is_some_and(|value| !is_empty(value)) {
            return Err(super::unsupported(section, format, &format!("`{key}`")));
        }
    }
    Ok(())
}
