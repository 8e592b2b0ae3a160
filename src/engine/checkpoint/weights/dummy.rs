//! Weights that are made up, for shapes without files: random values, and of quantized modules the
//! tensors that their format stores, of random codes with one scale.

use std::collections::HashMap;

use safetensors::Dtype;

use super::quantized::{QuantizedModule, QuantizedModules};
use crate::quantization::{
    Module, ModuleTensors, Need, Place, QuantizationConfig, Role, StoredTensor,
};
use crate::spec::LinearSpec;
use half::{bf16, f16};
use vllm_batch_base::EngineError;
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};
use vllm_batch_base::split_mix::{GAMMA, mix};

/// Largest absolute value of plain weights: small, so that activations stay finite. Those of codes
/// are of this order.
const SCALE: f32 = 0.05;
/// Scale of integers of 4 bits, and of 4-bit floats.
const OF_FEW_BITS: f32 = 1.0 / 64.0;
/// Scale of bytes and of E4M3, which goes up to 448.
const OF_BYTES: f32 = 1.0 / 4096.0;

/// Made-up weights.
#[derive(Debug, Default)]
pub struct DummyWeights {
    seed: u64,
    modules: QuantizedModules,
    /// What tensors of these are read from, each from the first byte on.
    bytes: HashMap<Fill, Vec<u8>>,
}

/// Bytes that a tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fill {
    /// Random ones.
    Codes,
    /// The same without those of NaN.
    Floats8,
    /// An element, again and again: its first bytes, and how many.
    Elements([u8; 4], usize),
}

impl DummyWeights {
    /// A pure function of the seed and each tensor's name.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Makes the modules that the config quantizes as its format stores them.
    ///
    /// # Errors
    /// The format has no such module.
    pub(super) fn quantize<'a>(
        &mut self,
        config: &QuantizationConfig,
        linears: impl Iterator<Item = (&'a LinearSpec, Place)>,
    ) -> Result<(), EngineError> {
        for (linear, place) in
            linears.filter(|(_, place)| !matches!(place, Place::Router | Place::Tower))
        {
            for part in &linear.parts {
                let module = Module { names: [&part.name, &part.name], place };
                let added = self.modules.add(config, (linear, part), &module);
                added.map_err(EngineError::Config)?;
            }
        }
        for tensor in self.modules.iter().flat_map(tensors_of).flatten() {
            let bytes = self.bytes.entry(tensor.fill).or_default();
            if bytes.len() < tensor.num_bytes {
                *bytes = tensor.fill.bytes(tensor.num_bytes);
            }
        }
        Ok(())
    }

    /// A matrix of (rows, columns).
    pub(super) fn matrix(&self, name: &str, (n, k): (usize, usize)) -> SourceMatrix<'_> {
        self.codes(name).unwrap_or_else(|| {
            // FNV-1a of the name: stable everywhere.
            let seed = name.bytes().fold(self.seed ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
            });
            SourceMatrix::random(n, k, seed, SCALE)
        })
    }

    /// The matrix of a module that is quantized.
    pub(super) fn codes(&self, name: &str) -> Option<SourceMatrix<'_>> {
        let module = self.modules.get(name)?;
        let stored = |tensor: Tensor| {
            let bytes = &self.bytes[&tensor.fill][..tensor.num_bytes];
            (tensor.suffix, StoredTensor { dtype: tensor.dtype, bytes })
        };
        let tensors = tensors_of(module)?.into_iter().map(stored).collect();
        let tensors = ModuleTensors { name: module.name.clone(), tensors };
        let values = SourceValues::Quantized(module.scheme.matrix(module.shape, &tensors).ok()?);
        Some(SourceMatrix::new(module.shape.0, module.shape.1, values))
    }
}

/// A tensor of a module.
struct Tensor {
    suffix: &'static str,
    dtype: Dtype,
    num_bytes: usize,
    fill: Fill,
}

/// The tensors that a module must have; None: its format does not say of what shape they are.
fn tensors_of(module: &QuantizedModule) -> Option<Vec<Tensor>> {
    let needs = module.needs.iter().filter(|need| need.role == Role::Required);
    let has_words = needs.clone().any(|need| need.dtypes.contains(&Dtype::I32));
    let is_of_bytes = needs.clone().any(|need| {
        let is_byte = [Dtype::I8, Dtype::F8_E4M3].iter().any(|dtype| need.dtypes.contains(dtype));
        is_byte && !need.suffixes[0].contains("scale")
    });
    let scale = if is_of_bytes { OF_BYTES } else { OF_FEW_BITS };
    let tensor = |need: &Need| {
        let suffix = need.suffixes[0];
        let shape = need.shapes.first()?;
        // Tools that pack words write scales in 16 bits.
        let half = Some(Dtype::F16).filter(|half| has_words && need.dtypes.contains(half));
        let dtype = half.or(need.dtypes.first().copied())?;
        let num_bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Some(Tensor { suffix, dtype, num_bytes, fill: fill(suffix, dtype, scale) })
    };
    needs.map(tensor).collect()
}

fn fill(suffix: &str, dtype: Dtype, scale: f32) -> Fill {
    let elements = |bytes: &[u8]| {
        let mut first = [0; 4];
        first[..bytes.len()].copy_from_slice(bytes);
        Fill::Elements(first, bytes.len())
    };
    // compressed-tensors divides by it.
    let scale = if suffix.contains("global_scale") { 1.0 / scale } else { scale };
    match dtype {
        Dtype::F32 => elements(&scale.to_le_bytes()),
        Dtype::F16 => elements(&f16::from_f32(scale).to_le_bytes()),
        Dtype::BF16 => elements(&bf16::from_f32(scale).to_le_bytes()),
        // 1 in E4M3, and a power of two in E8M0.
        Dtype::F8_E4M3 if suffix.contains("scale") => elements(&[0x38]),
        Dtype::U8 | Dtype::F8_E8M0 if suffix.contains("scale") => {
            elements(&[(127 + scale.log2() as i32) as u8])
        }
        Dtype::F8_E4M3 => Fill::Floats8,
        // Groups in order.
        _ if suffix.contains("g_idx") => elements(&[0]),
        _ => Fill::Codes,
    }
}

impl Fill {
    fn bytes(self, len: usize) -> Vec<u8> {
        let random = |index: usize| mix((index as u64 + 1).wrapping_mul(GAMMA)).to_le_bytes();
        let is_nan = |byte: u8| byte & 0x7f == 0x7f;
        let mut bytes: Vec<u8> = match self {
            Fill::Codes | Fill::Floats8 => (0..len.div_ceil(8)).flat_map(random).collect(),
            Fill::Elements(element, size) => {
                element[..size].iter().copied().cycle().take(len).collect()
            }
        };
        bytes.truncate(len);
        if self == Fill::Floats8 {
            bytes.iter_mut().filter(|byte| is_nan(**byte)).for_each(|byte| *byte ^= 1);
        }
        bytes
    }
}
