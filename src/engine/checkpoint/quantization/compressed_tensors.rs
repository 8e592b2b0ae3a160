//! compressed-tensors, as LLM Compressor writes it: groups of modules, each with a format.

use std::sync::Arc;

use safetensors::Dtype;

use super::fp4::Fp4;
use super::names::{Module, Rule};
use super::packed::Packed;
use super::scaled::{Element, ScaledBytes, Scales, Spread};
use super::tensors::{FLOATS, Scheme};
use super::{Method, QuantizationConfig};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// What the config says.
#[derive(Debug)]
struct CompressedTensors {
    /// In the order of the config. None: the group quantizes no weights.
    groups: Vec<(Targets, Option<Arc<dyn Scheme>>)>,
    ignored: Targets,
}

/// Names of modules, patterns of names, and classes.
#[derive(Debug, Default)]
struct Targets {
    names: Vec<Rule>,
    /// All linear layers.
    has_linear: bool,
}

/// The class of every linear layer.
const LINEAR: &str = "Linear";

impl Targets {
    fn read(section: &Section<'_>, key: &str) -> Result<Self, EngineError> {
        let mut targets = Self::default();
        for target in section.texts(key)?.unwrap_or_default() {
            match target.strip_prefix("re:") {
                Some(pattern) => {
                    let rule = Rule::pattern(pattern).map_err(|text| section.error(text))?;
                    targets.names.push(rule);
                }
                None if target == LINEAR => targets.has_linear = true,
                None => targets.names.push(Rule::Name(target.to_owned())),
            }
        }
        Ok(targets)
    }
}

/// Reads the config.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    section.ignore(&["global_compression_ratio", "kv_cache_scheme", "quant_method", "version"]);
    match section.text("quantization_status")? {
        // Early files were packed without saying so.
        None | Some("compressed" | "frozen") => {}
        Some(other) => return Err(super::unsupported(section, "compressed-tensors", other)),
    }
    for key in ["sparsity_config", "transform_config", "moe_sparsity_config"] {
        let Some(of_key) = section.section(key)? else { continue };
        let is_dense = of_key.text("format")? == Some("dense");
        if !is_dense && of_key.names().next().is_some() {
            return Err(super::unsupported(section, "compressed-tensors", key));
        }
        of_key.ignore(&of_key.names().collect::<Vec<_>>());
    }
    let ignored = Targets::read(section, "ignore")?;
    let format = section.text("format")?;
    let config_groups = section.section("config_groups")?;
    let Some(config_groups) = config_groups else {
        return Err(section.error("`config_groups` is missing"));
    };
    let mut groups = Vec::new();
    let (mut descriptions, mut activations) = (Vec::new(), Vec::new());
    for name in config_groups.names() {
        let Some(group) = config_groups.section(name)? else { continue };
        let targets = Targets::read(&group, "targets")?;
        if group.value("output_activations").is_some() {
            let what = "quantized outputs of layers";
            return Err(super::unsupported(&group, "compressed-tensors", what));
        }
        let format = group.text("format")?.or(format).unwrap_or("dense");
        if let Some(inputs) = group.section("input_activations")? {
            activations.push(described_activations(&inputs)?);
        }
        let scheme = match group.section("weights")? {
            Some(weights) => {
                let (scheme, description) = scheme(&weights, format)?;
                descriptions.push(description);
                Some(scheme)
            }
            None => None,
        };
        groups.push((targets, scheme));
    }
    descriptions.dedup();
    activations.dedup();
    let description = format!("compressed-tensors {}", descriptions.join(" and "));
    let method = CompressedTensors { groups, ignored };
    let config = QuantizationConfig::new(Arc::new(method), description);
    Ok(match activations.is_empty() {
        true => config,
        false => config.with_activations(activations.join(" and ")),
    })
}

/// What the config asks of the inputs of layers.
fn described_activations(section: &Section<'_>) -> Result<String, EngineError> {
    section.ignore(HARMLESS);
    section.ignore(&["actorder", "block_structure", "group_size", "strategy", "symmetric"]);
    let kind = if section.text("type")? == Some("float") { "fp" } else { "int" };
    let bits = section.optional_size("num_bits")?.unwrap_or(8);
    let when = match section.value("dynamic") {
        Some(serde_json::Value::Bool(false)) | None => "with scales of the file",
        Some(_) => "by their largest values",
    };
    Ok(format!("{kind}{bits}, {when}"))
}

/// Keys that say how scales were found, or what type they have, which the files say.
const HARMLESS: &[&str] = &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];

/// How weights are stored, and in words.
fn scheme(section: &Section<'_>, format: &str) -> Result<(Arc<dyn Scheme>, String), EngineError> {
    section.ignore(HARMLESS);
    section.expect("dynamic", false)?;
    let bits = section.optional_size("num_bits")?.unwrap_or(8);
    let is_float = match section.text("type")?.unwrap_or("int") {
        "float" => true,
        "int" => false,
        other => return Err(super::unsupported(section, "compressed-tensors", other)),
    };
    let spread = spread(section)?;
    let has_zeros = !section.flag("symmetric")?.unwrap_or(true);
    let act_order = section.value("actorder");
    let is_listed = match act_order.and_then(serde_json::Value::as_str) {
        Some("group" | "dynamic") => true,
        Some("weight" | "static") => false,
        _ => match act_order {
            None | Some(serde_json::Value::Bool(false)) => false,
            Some(serde_json::Value::Bool(true)) => true,
            Some(other) => {
                let what = format!("actorder {other}");
                return Err(super::unsupported(section, "compressed-tensors", &what));
            }
        },
    };
    let kind = if is_float { "fp" } else { "int" };
    let description = format!("{format} {kind}{bits}, {spread}");
    let bytes = |element, dtypes| -> Arc<dyn Scheme> {
        let scales = Scales { suffixes: &["weight_scale"], dtypes };
        Arc::new(ScaledBytes { element, scales, spread, has_zeros, factor: None })
    };
    let (is_block, is_whole) = (matches!(spread, Spread::Block(..)), spread == Spread::Tensor);
    let scheme: Arc<dyn Scheme> = match (format, is_float, bits) {
        ("pack-quantized", false, 1..=8) if !is_block && (!has_zeros || !is_whole) => {
            Arc::new(Packed { bits, spread, has_zeros, is_listed })
        }
        _ if is_listed => {
            let what = format!("{format} with actorder group");
            return Err(super::unsupported(section, "compressed-tensors", &what));
        }
        ("int-quantized" | "naive-quantized", false, 1..=8) => bytes(Element::Int8, FLOATS),
        _ if has_zeros => {
            let what = format!("{format} without `symmetric`");
            return Err(super::unsupported(section, "compressed-tensors", &what));
        }
        ("float-quantized" | "naive-quantized", true, 8) => bytes(Element::E4m3, FLOATS),
        ("mxfp8-quantized", true, 8) if spread == Spread::Group(32) => {
            bytes(Element::E4m3, &[Dtype::U8, Dtype::F8_E8M0])
        }
        ("nvfp4-pack-quantized", true, 4) if spread == Spread::Group(16) => {
            Arc::new(Fp4::NvDivided)
        }
        ("mxfp4-pack-quantized", true, 4) if spread == Spread::Group(32) => Arc::new(Fp4::Mx),
        _ => return Err(super::unsupported(section, "compressed-tensors", &description)),
    };
    Ok((scheme, description))
}

/// Weights that share a scale.
fn spread(section: &Section<'_>) -> Result<Spread, EngineError> {
    let size = super::group_size(section, &["group_size"])?;
    let strategy = section.text("strategy")?;
    let strategy = strategy.unwrap_or(match size {
        None => "tensor",
        Some(super::GroupSize::All) => "channel",
        Some(super::GroupSize::Of(_)) => "group",
    });
    match (strategy, size) {
        ("tensor", _) => Ok(Spread::Tensor),
        ("channel", _) => Ok(Spread::Channel),
        ("group" | "tensor_group", Some(super::GroupSize::Of(size))) => Ok(Spread::Group(size)),
        ("block", _) => super::fp8::block(section, "block_structure"),
        (other, _) => {
            let what = format!("strategy {}", quoted(other));
            Err(super::unsupported(section, "compressed-tensors", &what))
        }
    }
}

impl Method for CompressedTensors {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        if self.ignored.has_linear || Rule::any_is_about(&self.ignored.names, module)? {
            return Ok(None);
        }
        // A name counts before a class.
        for (targets, scheme) in &self.groups {
            if Rule::any_is_about(&targets.names, module)? {
                return Ok(scheme.clone());
            }
        }
        let group = self.groups.iter().find(|(targets, _)| targets.has_linear);
        Ok(group.and_then(|(_, scheme)| scheme.clone()))
    }
}
