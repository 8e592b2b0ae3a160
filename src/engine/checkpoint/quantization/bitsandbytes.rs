//! bitsandbytes: nf4 and fp4 with blocks that run over the rows, and int8 with a scale per output.

use std::sync::Arc;

use safetensors::Dtype;
use serde::Deserialize;

use super::grouped::{GroupedMatrix, Groups, Meaning, Parts, ScaleValues, Zeros};
use super::layout::Codes;
use super::names::{Module, Place, Rule};
use super::scaled::{Element, ScaledBytes, Scales, Spread};
use super::tensors::{Matrix, ModuleTensors, Need, Role, Scheme};
use super::{Method, QuantizationConfig};
use crate::hf_config::Section;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::matrix::Scales as ScaleKind;

/// What the config says.
#[derive(Debug)]
struct BitsAndBytes {
    scheme: Arc<dyn Scheme>,
    /// None: all but the output layer.
    skipped: Option<Vec<Rule>>,
}

/// Keys that say what is computed in, or how a model is quantized while it is loaded.
const HARMLESS: &[&str] = &[
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_threshold",
    "quant_method",
];

/// Reads the config.
///
/// # Errors
/// It asks for something else than what is read here.
pub(super) fn read(section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    section.ignore(HARMLESS);
    let skipped = section.texts("llm_int8_skip_modules")?.map(|names| {
        let rules = names.into_iter().map(Rule::of_transformers);
        rules.collect::<Result<Vec<_>, _>>().map(|rules| rules.into_iter().flatten().collect())
    });
    let skipped = skipped.transpose().map_err(|text| section.error(text))?;
    let is_4bit = section.flag("load_in_4bit")?.unwrap_or(false);
    let is_8bit = section.flag("load_in_8bit")?.unwrap_or(false);
    let nested = section.flag("bnb_4bit_use_double_quant")?.unwrap_or(false);
    let quant_type = section.text("bnb_4bit_quant_type")?.unwrap_or("fp4");
    let (scheme, description): (Arc<dyn Scheme>, _) = match (is_4bit, is_8bit) {
        (true, false) => {
            section.expect("bnb_4bit_quant_storage", "uint8")?;
            let kind = match quant_type {
                "nf4" => Kind::Nf4,
                "fp4" => Kind::Fp4,
                other => return Err(super::unsupported(section, "bitsandbytes", other)),
            };
            let nested_text = if nested { ", double quantized" } else { "" };
            let scheme = FourBit { kind, is_nested: nested };
            (Arc::new(scheme), format!("bitsandbytes {quant_type}{nested_text}"))
        }
        (false, true) => {
            section.ignore(&["bnb_4bit_quant_storage"]);
            (Arc::new(EightBit(EIGHT_BIT)), "bitsandbytes int8".to_owned())
        }
        _ => {
            let text = "bitsandbytes: one of `load_in_4bit` and `load_in_8bit` should be true";
            return Err(section.error(text));
        }
    };
    let config = QuantizationConfig::new(Arc::new(BitsAndBytes { scheme, skipped }), description);
    Ok(if is_8bit { config.with_activations("int8, rows by their largest values") } else { config })
}

impl Method for BitsAndBytes {
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        let is_skipped = match &self.skipped {
            Some(rules) => Rule::any_is_about(rules, module)?,
            None => module.place == Place::Head,
        };
        Ok((!is_skipped).then(|| Arc::clone(&self.scheme)))
    }
}

/// Levels of 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nf4,
    Fp4,
}

/// 4 bits to a weight.
#[derive(Clone, Copy, Debug)]
struct FourBit {
    kind: Kind,
    /// The scales have scales.
    is_nested: bool,
}

/// `quant_state`, a JSON text in a tensor of bytes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuantState {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    #[serde(rename = "dtype")]
    _dtype: String,
    nested_blocksize: Option<usize>,
    #[serde(rename = "nested_dtype")]
    _nested_dtype: Option<String>,
    nested_offset: Option<f64>,
}

/// Many times those of a state.
const MAX_STATE_BYTES: usize = 1 << 14;

/// Blocks that bitsandbytes has.
const BLOCK_SIZES: std::ops::RangeInclusive<usize> = 32..=4096;

impl FourBit {
    /// The tensor of the state.
    fn state_name(self) -> &'static [&'static str; 1] {
        match self.kind {
            Kind::Nf4 => &["weight.quant_state.bitsandbytes__nf4"],
            Kind::Fp4 => &["weight.quant_state.bitsandbytes__fp4"],
        }
    }

    /// The state, of a layer of this shape.
    fn state(
        self,
        (n, k): (usize, usize),
        tensors: &ModuleTensors<'_>,
    ) -> Result<QuantState, String> {
        let [name] = self.state_name();
        let bytes = tensors.required(&[name]).bytes;
        if bytes.len() > MAX_STATE_BYTES {
            return Err(tensors.error(name, format!("{} bytes are no state", bytes.len())));
        }
        let state: QuantState =
            serde_json::from_slice(bytes).map_err(|error| tensors.error(name, error))?;
        let is_size = |size: usize| BLOCK_SIZES.contains(&size) && size.is_power_of_two();
        if !is_size(state.blocksize) || state.nested_blocksize.is_some_and(|size| !is_size(size)) {
            let text = format!("blocks of {} values are not supported", state.blocksize);
            return Err(tensors.error(name, text));
        }
        if state.shape != [n, k] || !name.ends_with(&state.quant_type) {
            let found = quoted(&format!("{} of {:?}", state.quant_type, state.shape));
            let text = format!("it is {found}, config.json asks for [{n}, {k}]");
            return Err(tensors.error(name, text));
        }
        Ok(state)
    }

    /// The largest magnitude of each block.
    fn scales<'a>(
        self,
        num_weights: usize,
        state: &QuantState,
        tensors: &ModuleTensors<'a>,
    ) -> Result<ScaleValues<'a>, String> {
        let name = "weight.absmax";
        let scales = tensors.required(&[name]);
        let num_blocks = num_weights.div_ceil(state.blocksize);
        let check = |name: &str, found: usize, asked: usize| match found == asked {
            true => Ok(()),
            false => Err(tensors.error(name, format!("{found} values, {asked} are asked for"))),
        };
        if !self.is_nested {
            check(name, scales.bytes.len() / 4, num_blocks)?;
            return Ok(scales.scales());
        }
        let (Some(size), Some(offset)) = (state.nested_blocksize, state.nested_offset) else {
            let text = "`nested_blocksize` or `nested_offset` is missing";
            return Err(tensors.error(self.state_name()[0], text));
        };
        check(name, scales.bytes.len(), num_blocks)?;
        let levels = tensors.required(&["weight.nested_quant_map"]).floats();
        let outer_name = "weight.nested_absmax";
        let outer = tensors.required(&[outer_name]).floats();
        check(outer_name, outer.len(), num_blocks.div_ceil(size))?;
        let offset = offset as f32;
        let scale = |(index, code): (usize, &u8)| {
            let product = levels[usize::from(*code)] * outer[index / size];
            (product + offset).to_le_bytes()
        };
        let bytes = scales.bytes.iter().enumerate().flat_map(scale).collect();
        Ok(ScaleValues { bytes, kind: ScaleKind::Float32 })
    }
}

impl Scheme for FourBit {
    fn needs(&self, (n, k): (usize, usize)) -> Result<Vec<Need>, String> {
        let num_bytes = (n * k).div_ceil(2);
        let absmax: &[Dtype] = if self.is_nested { &[Dtype::U8] } else { &[Dtype::F32] };
        let mut needs = vec![
            Need::required(&["weight"], &[Dtype::U8], vec![vec![num_bytes, 1], vec![1, num_bytes]]),
            Need::required(&["weight.absmax"], absmax, Vec::new()),
            Need::required(&["weight.quant_map"], &[Dtype::F32], vec![vec![16]]),
            Need::required(self.state_name(), &[Dtype::U8], Vec::new()),
        ];
        if self.is_nested {
            needs.extend([
                Need::required(&["weight.nested_absmax"], &[Dtype::F32], Vec::new()),
                Need::required(&["weight.nested_quant_map"], &[Dtype::F32], vec![vec![256]]),
            ]);
        }
        Ok(needs)
    }

    fn matrix<'a>(
        &self,
        shape: (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        let state = self.state(shape, tensors)?;
        let (n, num_columns) = shape;
        let map = tensors.required(&["weight.quant_map"]).floats();
        let bytes = tensors.required(&["weight"]).bytes;
        Ok(Arc::new(GroupedMatrix::from(Parts {
            num_columns,
            codes: Codes::HighFirst { num_columns, bytes },
            meaning: Meaning::Table(Arc::new(std::array::from_fn(|code| map[code]))),
            groups: Groups::Runs { num_columns, len: state.blocksize },
            scales: self.scales(n * num_columns, &state, tensors)?,
            zeros: Zeros::Same(0),
            factor: None,
        })))
    }
}

/// int8 rows, with the largest magnitude of each.
#[derive(Clone, Copy, Debug)]
struct EightBit(ScaledBytes);

const EIGHT_BIT: ScaledBytes = ScaledBytes {
    element: Element::Int8,
    scales: Scales { suffixes: &["SCB"], dtypes: &[Dtype::F32] },
    spread: Spread::Channel,
    has_zeros: false,
    factor: Some(1.0 / 127.0),
};

impl Scheme for EightBit {
    fn needs(&self, shape: (usize, usize)) -> Result<Vec<Need>, String> {
        let mut needs = self.0.needs(shape)?;
        // Zero: row by row.
        let format = Need::required(&["weight_format"], &[Dtype::U8], Vec::new());
        needs.push(format.in_role(Role::Zeros));
        Ok(needs)
    }

    fn matrix<'a>(
        &self,
        shape: (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        self.0.matrix(shape, tensors)
    }
}
