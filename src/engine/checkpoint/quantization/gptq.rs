//! GPTQ, as AutoGPTQ and GPTQModel write it: codes of 2, 3, 4 or 8 bits in columns of words.

use std::sync::Arc;

use safetensors::Dtype;

use super::grouped::{GroupedMatrix, Groups, Meaning, Parts, Zeros};
use super::layout::Codes;
use super::names::{Module, Place, Rule};
use super::tensors::{FLOATS, Matrix, ModuleTensors, Need, Role, Scheme};
use super::{GroupSize, Method, QuantizationConfig, group_size};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;

/// What the config says.
#[derive(Debug)]
struct Gptq {
    scheme: GptqScheme,
    lm_head: bool,
    /// First match counts. None: not quantized.
    dynamic: Vec<(Rule, Option<GptqScheme>)>,
    /// Endings of the modules that are quantized; None: all of a layer.
    modules: Option<Vec<Rule>>,
}

/// How a layer is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GptqScheme {
    bits: usize,
    group_size: GroupSize,
    /// Inputs were quantized in an order of their own: a list has the group of each.
    desc_act: bool,
    /// What is added to each zero as stored.
    zero_offset: i16,
}

/// Keys that say how the codes were found, or which program runs them.
const HARMLESS: &[&str] = &[
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "exllama_config",
    "fast_loading",
    "failsafe",
    "foem",
    "gptaq",
    "hessian",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "mse",
    "offload_to_disk",
    "pad_token_id",
    "quant_method",
    "static_groups",
    // The zeros are in the file.
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// Reads the config.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    section.ignore(HARMLESS);
    super::auto_round::read(section, "gptq")?;
    let formats = [section.text("checkpoint_format")?, section.text("format")?];
    let format = formats.into_iter().flatten().next().unwrap_or("gptq");
    let zero_offset = match format {
        "gptq" => 1,
        "gptq_v2" => 0,
        other => return Err(super::unsupported(section, "gptq", other)),
    };
    section.expect("is_marlin_format", false)?;
    section.expect("pack_dtype", "int32")?;
    section.expect("method", "gptq")?;
    let base = GptqScheme {
        bits: section.size("bits")?,
        group_size: group_size(section, &["group_size"])?.unwrap_or(GroupSize::Of(128)),
        desc_act: section.flag("desc_act")?.unwrap_or(false),
        zero_offset,
    };
    check_bits(section, base.bits)?;
    let method = Gptq {
        scheme: base,
        lm_head: section.flag("lm_head")?.unwrap_or(false),
        dynamic: dynamic(section, base)?,
        modules: modules(section)?,
    };
    let act_order = if base.desc_act { ", act order" } else { "" };
    let description = format!("{format} {} bit, {}{act_order}", base.bits, base.group_size);
    Ok(QuantizationConfig::new(Arc::new(method), description))
}

fn check_bits(section: &Section<'_>, bits: usize) -> Result<(), EngineError> {
    match [2, 3, 4, 8].contains(&bits) {
        true => Ok(()),
        false => Err(super::unsupported(section, "gptq", &format!("{bits} bit"))),
    }
}

/// Modules with values of their own, by patterns.
fn dynamic(
    section: &Section<'_>,
    base: GptqScheme,
) -> Result<Vec<(Rule, Option<GptqScheme>)>, EngineError> {
    let Some(dynamic) = section.section("dynamic")? else { return Ok(Vec::new()) };
    let mut rules = Vec::new();
    for key in dynamic.names() {
        let (is_left, pattern) = match key.split_at_checked(2) {
            Some(("-:", pattern)) => (true, pattern),
            Some(("+:", pattern)) => (false, pattern),
            _ => (false, key),
        };
        let rule = Rule::pattern(pattern).map_err(|text| section.error(text))?;
        let mut scheme = base;
        if let Some(of_rule) = dynamic.section(key)? {
            of_rule.ignore(HARMLESS);
            scheme.bits = of_rule.optional_size("bits")?.unwrap_or(base.bits);
            scheme.group_size = group_size(&of_rule, &["group_size"])?.unwrap_or(base.group_size);
            scheme.desc_act = of_rule.flag("desc_act")?.unwrap_or(base.desc_act);
            check_bits(&of_rule, scheme.bits)?;
        }
        rules.push((rule, (!is_left).then_some(scheme)));
    }
    Ok(rules)
}

/// `modules_in_block_to_quantize`: a list of names in a layer, or a list of such lists.
fn modules(section: &Section<'_>) -> Result<Option<Vec<Rule>>, EngineError> {
    let key = "modules_in_block_to_quantize";
    let Some(list) = section.list(key)? else { return Ok(None) };
    let nested = list.iter().flat_map(|value| match value.as_array() {
        Some(inner) => inner.as_slice(),
        None => std::slice::from_ref(value),
    });
    let rule = |value: &serde_json::Value| {
        let name = value.as_str().ok_or_else(|| {
            section.error(format!("`{key}` should be a list of names, or of lists of names"))
        })?;
        Ok(Rule::Ending(format!(".{name}")))
    };
    nested.map(rule).collect::<Result<_, _>>().map(Some)
}

impl Method for Gptq {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        for (rule, scheme) in &self.dynamic {
            if rule.is_about(module)? {
                return Ok(scheme.map(|scheme| Arc::new(scheme) as Arc<dyn Scheme>));
            }
        }
        let is_quantized = match module.place {
            Place::Head => self.lm_head,
            Place::Elsewhere | Place::Tower => false,
            Place::Layer | Place::Router => match &self.modules {
                None => true,
                Some(rules) => Rule::any_is_about(rules, module)?,
            },
        };
        Ok(is_quantized.then(|| Arc::new(self.scheme) as Arc<dyn Scheme>))
    }
}

impl Scheme for GptqScheme {
    fn needs(&self, (n, k): (usize, usize)) -> Result<Vec<Need>, String> {
        let num_groups = k.div_ceil(self.group_size.of(k));
        let words = |len: usize| (len * self.bits).div_ceil(32);
        let list = match self.desc_act && num_groups > 1 {
            true => Role::Required,
            false => Role::Optional,
        };
        Ok(vec![
            Need::required(&["qweight"], &[Dtype::I32], vec![vec![words(k), n]]),
            Need::required(&["qzeros"], &[Dtype::I32], vec![vec![num_groups, words(n)]]),
            Need::required(&["scales"], FLOATS, vec![vec![num_groups, n]]),
            Need::required(&["g_idx"], &[Dtype::I32], vec![vec![k]]).in_role(list),
            Need::required(&["bias"], FLOATS, vec![vec![n]]).in_role(Role::Zeros),
        ])
    }

    fn matrix<'a>(
        &self,
        (n, k): (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        let (bits, columns) = (self.bits, self.group_size.of(k));
        let num_groups = k.div_ceil(columns);
        // Some old files have zeros where the groups are in order.
        let list = tensors.group_list("g_idx", num_groups)?;
        let list = list.filter(|list| list.iter().any(|group| *group != 0));
        let zeros = tensors.required(&["qzeros"]).bytes;
        let zeros = Codes::Rows { bits, row_bytes: 4 * (n * bits).div_ceil(32), bytes: zeros };
        let positions = (0..num_groups).flat_map(|group| (0..n).map(move |row| (group, row)));
        // Not in the bits of the code: the largest zero plus one is one more than they hold.
        let zero = |(group, row)| i16::from(zeros.code(group, row)) + self.zero_offset;
        Ok(Arc::new(GroupedMatrix::from(Parts {
            num_columns: k,
            codes: Codes::Words { bits, num_rows: n, bytes: tensors.required(&["qweight"]).bytes },
            meaning: Meaning::Unsigned,
            groups: match list {
                Some(of_columns) => Groups::Listed { of_columns, strides: (1, n) },
                None => Groups::Blocks { rows: 1, columns, strides: (1, n) },
            },
            scales: tensors.required(&["scales"]).scales(),
            zeros: Zeros::Each(positions.map(zero).collect()),
            factor: None,
        })))
    }
}
