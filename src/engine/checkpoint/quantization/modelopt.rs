//! ModelOpt's FP8 and NVFP4: in config.json, or in hf_quant_config.json beside it.

use std::sync::Arc;

use safetensors::Dtype;

use super::fp4::Fp4;
use super::names::{Module, Rule};
use super::scaled::{Element, ScaledBytes, Scales, Spread};
use super::tensors::Scheme;
use super::{Method, QuantizationConfig};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;

/// What the config says.
#[derive(Debug)]
struct ModelOpt {
    scheme: Arc<dyn Scheme>,
    excluded: Vec<Rule>,
}

/// A scale for a matrix of E4M3.
const FP8: ScaledBytes = ScaledBytes {
    element: Element::E4m3,
    scales: Scales { suffixes: &["weight_scale"], dtypes: &[Dtype::F32] },
    spread: Spread::Tensor,
    has_zeros: false,
    factor: None,
};

/// Reads the config, in either of its forms.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    // `config_groups` says what `quant_algo` means.
    section.ignore(&["config_groups", "kv_cache_scheme", "producer", "quant_method"]);
    let nested = section.section("quantization")?;
    let section = nested.as_ref().unwrap_or(section);
    section.ignore(&["config_groups", "kv_cache_quant_algo", "kv_cache_scheme"]);
    let (scheme, group): (Arc<dyn Scheme>, _) = match section.text("quant_algo")? {
        Some("FP8") => (Arc::new(FP8), None),
        Some("NVFP4") => (Arc::new(Fp4::NvMultiplied), Some(16)),
        other => return Err(super::unsupported(section, "modelopt", other.unwrap_or("none"))),
    };
    let algorithm = section.text("quant_algo")?.unwrap_or_default();
    if let Some(asked) = section.optional_size("group_size")?
        && Some(asked) != group
    {
        return Err(super::unsupported(section, "modelopt", &format!("groups of {asked}")));
    }
    for key in ["has_zero_point", "pre_quant_scale"] {
        section.expect(key, false)?;
    }
    let mut excluded = Vec::new();
    for key in ["exclude_modules", "ignore"] {
        for name in section.texts(key)?.unwrap_or_default() {
            excluded.push(Rule::wildcard(name).map_err(|text| section.error(text))?);
        }
    }
    let config = QuantizationConfig::new(
        Arc::new(ModelOpt { scheme, excluded }),
        format!("modelopt {algorithm}"),
    );
    Ok(config.with_activations(if group.is_some() { "NVFP4" } else { "fp8" }))
}

impl Method for ModelOpt {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        let is_excluded = Rule::any_is_about(&self.excluded, module)?;
        Ok((!is_excluded).then(|| Arc::clone(&self.scheme)))
    }
}
