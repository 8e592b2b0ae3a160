//! AWQ, as AutoAWQ writes it for its `gemm` kernel: codes of 4 bits, eight outputs to a word.

use std::sync::Arc;

use safetensors::Dtype;

use super::grouped::{GroupedMatrix, Groups, Meaning, Parts, Zeros};
use super::layout::Codes;
use super::names::{Module, Place, Rule};
use super::tensors::{FLOATS, Matrix, ModuleTensors, Need, Scheme};
use super::{GroupSize, Method, QuantizationConfig, group_size};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;

/// What the config says.
#[derive(Debug)]
struct Awq {
    scheme: AwqScheme,
    lm_head: bool,
    ignored: Vec<Rule>,
}

/// How a layer is stored.
#[derive(Clone, Copy, Debug)]
struct AwqScheme {
    group_size: GroupSize,
}

/// Outputs to a word.
const PACKED: usize = 8;

/// Keys that say how the codes were found, or which program runs them.
const HARMLESS: &[&str] = &[
    "backend",
    "batch_size",
    "damp_percent",
    "dataset",
    "desc_act",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "meta",
    "model_seqlen",
    "modules_to_fuse",
    "quant_method",
    "sym",
    "tokenizer",
    "true_sequential",
];

/// Reads the config.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    section.ignore(HARMLESS);
    super::auto_round::read(section, "awq")?;
    for key in ["version", "checkpoint_format", "format"] {
        let format = section.text(key)?.unwrap_or("gemm");
        if !format.eq_ignore_ascii_case("gemm") {
            return Err(super::unsupported(section, "awq", format));
        }
    }
    section.expect("zero_point", true)?;
    section.expect("pack_dtype", "int32")?;
    let bits = section.size_of(&["bits", "w_bit"])?;
    if bits != 4 {
        return Err(super::unsupported(section, "awq", &format!("{bits} bit")));
    }
    let group_size = group_size(section, &["group_size", "q_group_size"])?;
    let group_size = group_size.unwrap_or(GroupSize::Of(128));
    let ignored = section.texts("modules_to_not_convert")?.unwrap_or_default();
    let method = Awq {
        scheme: AwqScheme { group_size },
        lm_head: section.flag("lm_head")?.unwrap_or(false),
        ignored: ignored.into_iter().map(|part| Rule::Part(part.to_owned())).collect(),
    };
    Ok(QuantizationConfig::new(Arc::new(method), format!("awq 4 bit, {group_size}")))
}

impl Method for Awq {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        let is_quantized = match module.place {
            Place::Head => self.lm_head,
            Place::Elsewhere => false,
            Place::Layer | Place::Router | Place::Tower => {
                !Rule::any_is_about(&self.ignored, module)?
            }
        };
        Ok(is_quantized.then(|| Arc::new(self.scheme) as Arc<dyn Scheme>))
    }
}

impl Scheme for AwqScheme {
    fn needs(&self, (n, k): (usize, usize)) -> Result<Vec<Need>, String> {
        if !n.is_multiple_of(PACKED) {
            return Err(format!("awq has no layer of {n} outputs: they come in {PACKED}s"));
        }
        let num_groups = k.div_ceil(self.group_size.of(k));
        Ok(vec![
            Need::required(&["qweight"], &[Dtype::I32], vec![vec![k, n / PACKED]]),
            Need::required(&["qzeros"], &[Dtype::I32], vec![vec![num_groups, n / PACKED]]),
            Need::required(&["scales"], FLOATS, vec![vec![num_groups, n]]),
        ])
    }

    fn matrix<'a>(
        &self,
        (n, k): (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        let columns = self.group_size.of(k);
        let codes = |suffix| {
            let bytes = tensors.required(&[suffix]).bytes;
            Codes::Interleaved { num_words: n / PACKED, bytes }
        };
        let zeros = codes("qzeros");
        let groups = 0..k.div_ceil(columns);
        let positions = groups.flat_map(|group| (0..n).map(move |row| (group, row)));
        let zeros = positions.map(|(group, row)| i16::from(zeros.code(row, group))).collect();
        Ok(Arc::new(GroupedMatrix::from(Parts {
            num_columns: k,
            codes: codes("qweight"),
            meaning: Meaning::Unsigned,
            groups: Groups::Blocks { rows: 1, columns, strides: (1, n) },
            scales: tensors.required(&["scales"]).scales(),
            zeros: Zeros::Each(zeros),
            factor: None,
        })))
    }
}
