//! What a format asks of the tensors of a module, and what the files have of them.

use std::fmt::Debug;
use std::sync::Arc;

use safetensors::Dtype;

use super::floats;
use super::grouped::ScaleValues;
use vllm_batch_base::matrix::QuantizedMatrix;
use vllm_batch_base::matrix::{Scales, Table};

/// A matrix over the bytes of weight files.
pub(super) type Matrix<'a> = Arc<dyn QuantizedMatrix + 'a>;

/// How a linear layer of a checkpoint is stored.
pub trait Scheme: Debug + Send + Sync {
    /// Its tensors, for a layer of (outputs, inputs).
    ///
    /// # Errors
    /// The format has no layer of this shape; the text says why.
    fn needs(&self, shape: (usize, usize)) -> Result<Vec<Need>, String>;

    /// Whether its tensors hold several matrices, which stand below each other in what it makes of
    /// them; shapes then have their number in front.
    fn holds_several(&self) -> bool {
        false
    }

    /// The matrix that they are.
    ///
    /// # Errors
    /// A tensor has a value that the format has not; the text names it.
    fn matrix<'a>(
        &self,
        shape: (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String>;
}

/// A tensor that a format asks for.
#[derive(Clone, Debug)]
pub struct Need {
    /// Its name, behind the module's and a dot, or an underscore of its own: the first that is
    /// there counts.
    pub suffixes: &'static [&'static str],
    /// Types that it may have.
    pub dtypes: &'static [Dtype],
    /// Shapes that it may have; any, where there are none.
    pub shapes: Vec<Vec<usize>>,
    /// What is made of it.
    pub role: Role,
}

/// What is made of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Weights are made of it.
    Required,
    /// The same, where it is there.
    Optional,
    /// Nothing: activations are not quantized.
    OfActivations,
    /// Nothing: old files have biases of zeros for models without biases.
    Zeros,
}

/// Types of scales.
pub(super) const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

impl Need {
    /// A tensor that weights are made of.
    pub fn required(
        suffix: &'static [&'static str],
        dtypes: &'static [Dtype],
        shapes: Vec<Vec<usize>>,
    ) -> Self {
        Self { suffixes: suffix, dtypes, shapes, role: Role::Required }
    }

    /// The same in another role.
    pub fn in_role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// A tensor of the files.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl<'a> StoredTensor<'a> {
    /// Scales, as they are held. Bytes are E8M0.
    ///
    /// # Panics
    /// They are of no type that scales have.
    pub(super) fn scales(&self) -> ScaleValues<'a> {
        let kind = match self.dtype {
            Dtype::F32 => Scales::Float32,
            Dtype::F16 => Scales::Float16,
            Dtype::BF16 => Scales::BFloat16,
            Dtype::F8_E4M3 => table(floats::e4m3),
            Dtype::F8_E8M0 | Dtype::U8 => table(floats::e8m0),
            other => panic!("{other} is no type of scales"),
        };
        ScaleValues { bytes: self.bytes.into(), kind }
    }

    /// Elements of F32.
    ///
    /// # Panics
    /// They are of another type.
    pub fn floats(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Elements of I32.
    pub fn integers(&self) -> impl Iterator<Item = i32> + '_ {
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes))
    }
}

/// Scales of a byte.
pub(super) fn table(value: impl Fn(u8) -> f32) -> Scales {
    Scales::Table(Table(Arc::new(std::array::from_fn(|byte| value(byte as u8)))))
}

/// The tensors of one module.
#[derive(Clone, Debug)]
pub struct ModuleTensors<'a> {
    /// The module's name.
    pub name: String,
    /// By their suffixes.
    pub tensors: Vec<(&'static str, StoredTensor<'a>)>,
}

impl<'a> ModuleTensors<'a> {
    /// A tensor, if it is there.
    pub fn get(&self, suffix: &str) -> Option<StoredTensor<'a>> {
        let found = self.tensors.iter().find(|(name, _)| *name == suffix);
        found.map(|(_, tensor)| *tensor)
    }

    /// A tensor that is required: the first of these names that is there.
    ///
    /// # Panics
    /// None is there: it was not checked.
    pub fn required(&self, suffixes: &[&str]) -> StoredTensor<'a> {
        let found = suffixes.iter().find_map(|suffix| self.get(suffix));
        found.unwrap_or_else(|| panic!("{}.{} was not checked", self.name, suffixes[0]))
    }

    /// An error about one of the tensors.
    pub fn error(&self, suffix: &str, text: impl std::fmt::Display) -> String {
        format!("tensor {}.{suffix}: {text}", self.name)
    }

    /// Groups of columns as a list that the files have: (columns) of I32, below `num_groups`.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn group_list(&self, suffix: &str, num_groups: usize) -> Result<Option<Vec<u32>>, String> {
        let Some(tensor) = self.get(suffix) else { return Ok(None) };
        let group = |number: i32| match usize::try_from(number) {
            Ok(group) if group < num_groups => Ok(group as u32),
            _ => {
                let text = format!("a group of {number} is out of range, there are {num_groups}");
                Err(self.error(suffix, text))
            }
        };
        tensor.integers().map(group).collect::<Result<_, _>>().map(Some)
    }
}
