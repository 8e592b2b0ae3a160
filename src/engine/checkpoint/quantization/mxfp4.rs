//! MXFP4 of gpt-oss: the experts of a layer, all in one tensor of codes and one of scales.

use std::sync::Arc;

use super::fp4::Fp4;
use super::names::{Module, Rule};
use super::tensors::Scheme;
use super::{Method, QuantizationConfig};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;

/// Its name in `quant_method`.
pub const MXFP4: &str = "mxfp4";

/// What the config says.
#[derive(Debug)]
struct Mxfp4 {
    excluded: Vec<Rule>,
}

/// Reads the config.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    section.ignore(&["quant_method"]);
    // Whether transformers widens them at load.
    section.ignore(&["dequantize"]);
    let mut excluded = Vec::new();
    for name in section.texts("modules_to_not_convert")?.unwrap_or_default() {
        excluded.extend(Rule::of_transformers(name).map_err(|text| section.error(text))?);
    }
    Ok(QuantizationConfig::new(Arc::new(Mxfp4 { excluded }), "mxfp4, groups of 32".to_owned()))
}

impl Method for Mxfp4 {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        let is_expert = module.names.iter().any(|name| name.contains(".experts."));
        if !is_expert || Rule::any_is_about(&self.excluded, module)? {
            return Ok(None);
        }
        Ok(Some(Arc::new(Fp4::MxExperts)))
    }
}
