//! `quant_method: fp8`: E4M3 as DeepSeek and Qwen publish it (blocks), or with a scale per matrix.

use std::sync::Arc;

use safetensors::Dtype;

use super::names::{Module, Place, Rule};
use super::scaled::{Element, ScaledBytes, Scales, Spread};
use super::tensors::Scheme;
use super::{Method, QuantizationConfig};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;

/// What the config says.
#[derive(Debug)]
struct Fp8 {
    scheme: ScaledBytes,
    ignored: Vec<Rule>,
}

/// Names of the scales, which are multiplied with whatever they are called.
const SCALES: Scales = Scales {
    suffixes: &["weight_scale_inv", "weight_scale"],
    dtypes: &[Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0, Dtype::U8],
};

/// Largest side of a block.
const MAX_BLOCK: usize = 1 << 16;

/// Reads the config.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    // `scale_fmt` says what the scales were rounded to, their type is in the file.
    section.ignore(&["quant_method", "dequantize", "scale_fmt", "is_checkpoint_fp8_serialized"]);
    section.expect("fmt", "e4m3")?;
    section.expect("expert_dtype", "fp8")?;
    if section.list("modules_to_convert")?.is_some_and(|list| !list.is_empty()) {
        return Err(super::unsupported(section, "fp8", "embeddings (`modules_to_convert`)"));
    }
    let spread = match section.value("weight_block_size") {
        None => Spread::Tensor,
        Some(_) => block(section, "weight_block_size")?,
    };
    let activations = match section.text("activation_scheme")?.unwrap_or("dynamic") {
        "static" => "fp8, one scale for a matrix",
        "dynamic" => "fp8, by their largest values",
        other => return Err(super::unsupported(section, "fp8", other)),
    };
    let mut ignored = Vec::new();
    for key in ["modules_to_not_convert", "ignored_layers"] {
        for name in section.texts(key)?.unwrap_or_default() {
            let rules = Rule::of_transformers(name).map_err(|text| section.error(text))?;
            ignored.extend(rules);
        }
    }
    let scheme = ScaledBytes {
        element: Element::E4m3,
        scales: SCALES,
        spread,
        has_zeros: false,
        factor: None,
    };
    let config =
        QuantizationConfig::new(Arc::new(Fp8 { scheme, ignored }), format!("fp8, {spread}"));
    Ok(config.with_activations(activations))
}

/// A list of the two sides of a block.
///
/// # Errors
/// It is something else.
pub(super) fn block(section: &Section<'_>, key: &str) -> Result<Spread, EngineError> {
    let sides = section.list(key)?.unwrap_or_default();
    let side = |value: &serde_json::Value| {
        let side = usize::try_from(value.as_u64()?).ok()?;
        (1..=MAX_BLOCK).contains(&side).then_some(side)
    };
    match sides.iter().map(side).collect::<Vec<_>>()[..] {
        [Some(rows), Some(columns)] => Ok(Spread::Block(rows, columns)),
        _ => Err(section.error(format!("`{key}` should be the two sides of a block"))),
    }
}

impl Method for Fp8 {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        // Neither transformers nor vLLM converts the output layer.
        let is_left = module.place == Place::Head || Rule::any_is_about(&self.ignored, module)?;
        Ok((!is_left).then(|| Arc::new(self.scheme) as Arc<dyn Scheme>))
    }
}
