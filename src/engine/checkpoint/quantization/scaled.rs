//! Bytes with scales: E4M3 and int8 of native fp8, compressed-tensors, ModelOpt and bitsandbytes.

use std::sync::Arc;

use safetensors::Dtype;

use super::grouped::{GroupedMatrix, Groups, Meaning, Parts, Zeros};
use super::layout::Codes;
use super::tensors::{Matrix, ModuleTensors, Need, Role, Scheme};

/// A byte per weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScaledBytes {
    pub element: Element,
    pub scales: Scales,
    pub spread: Spread,
    /// Scales are subtracted from: `weight_zero_point`.
    pub has_zeros: bool,
    /// What each product is multiplied with afterwards.
    pub factor: Option<f32>,
}

/// What a byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    E4m3,
    Int8,
}

/// The tensor of scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales {
    /// Its names.
    pub suffixes: &'static [&'static str],
    /// Types that it may have.
    pub dtypes: &'static [Dtype],
}

/// Weights that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All.
    Tensor,
    /// Those of an output.
    Channel,
    /// A number of inputs of an output.
    Group(usize),
    /// Blocks of (outputs, inputs), the last ones short.
    Block(usize, usize),
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Spread::Tensor => write!(f, "one scale for a matrix"),
            Spread::Channel => write!(f, "a scale for each output"),
            Spread::Group(size) => write!(f, "groups of {size}"),
            Spread::Block(rows, columns) => write!(f, "blocks of {rows} x {columns}"),
        }
    }
}

impl Spread {
    /// Shapes of the tensor of scales.
    ///
    /// # Errors
    /// The layer cannot be divided so.
    pub(super) fn shapes(self, (n, k): (usize, usize)) -> Result<Vec<Vec<usize>>, String> {
        Ok(match self {
            Spread::Tensor => vec![vec![1], vec![], vec![1, 1]],
            Spread::Channel => vec![vec![n, 1], vec![n]],
            Spread::Group(size) if k.is_multiple_of(size) => vec![vec![n, k / size]],
            Spread::Group(size) => {
                return Err(format!("{k} inputs are no whole number of groups of {size}"));
            }
            Spread::Block(rows, columns) => vec![vec![n.div_ceil(rows), k.div_ceil(columns)]],
        })
    }

    /// Outputs and inputs of a group.
    pub(super) fn block(self, (n, k): (usize, usize)) -> (usize, usize) {
        match self {
            Spread::Tensor => (n, k),
            Spread::Channel => (1, k),
            Spread::Group(size) => (1, size),
            Spread::Block(rows, columns) => (rows, columns),
        }
    }
}

/// Scales of activations, which are computed as they are.
pub(super) fn of_activations() -> Vec<Need> {
    let names: [&[&str]; 4] = [
        &["input_scale", "activation_scale"],
        &["input_zero_point"],
        &["input_global_scale"],
        &["output_scale"],
    ];
    let dtypes: &[Dtype] =
        &[Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::I8, Dtype::U8, Dtype::I32, Dtype::F8_E4M3];
    let need = |names| Need::required(names, dtypes, Vec::new()).in_role(Role::OfActivations);
    names.into_iter().map(need).collect()
}

impl Scheme for ScaledBytes {
    fn needs(&self, shape: (usize, usize)) -> Result<Vec<Need>, String> {
        let dtype: &[Dtype] = match self.element {
            Element::E4m3 => &[Dtype::F8_E4M3],
            Element::Int8 => &[Dtype::I8],
        };
        let shapes = self.spread.shapes(shape)?;
        let zeros = match self.has_zeros {
            true => Need::required(&["weight_zero_point"], &[Dtype::I8], shapes.clone()),
            false => no_zeros(),
        };
        let mut needs = vec![
            Need::required(&["weight"], dtype, vec![vec![shape.0, shape.1]]),
            Need::required(self.scales.suffixes, self.scales.dtypes, shapes),
            zeros,
        ];
        needs.extend(of_activations());
        Ok(needs)
    }

    fn matrix<'a>(
        &self,
        shape: (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        let bytes = tensors.required(&["weight"]).bytes;
        Ok(Arc::new(GroupedMatrix::from(Parts {
            num_columns: shape.1,
            codes: Codes::Bytes { num_columns: shape.1, bytes },
            meaning: match self.element {
                Element::E4m3 => Meaning::Float8,
                Element::Int8 => Meaning::Signed,
            },
            groups: Groups::blocks(self.spread.block(shape), shape.1),
            scales: tensors.required(self.scales.suffixes).scales(),
            zeros: match self.has_zeros {
                true => {
                    let bytes = tensors.required(&["weight_zero_point"]).bytes;
                    Zeros::Each(bytes.iter().map(|byte| i16::from(*byte as i8)).collect())
                }
                false => Zeros::Same(0),
            },
            factor: self.factor,
        })))
    }
}

/// Old files have zero points of zero where there are none.
pub(super) fn no_zeros() -> Need {
    let dtypes = &[Dtype::I8, Dtype::U8, Dtype::I32, Dtype::F8_E4M3, Dtype::F16, Dtype::BF16];
    Need::required(&["weight_zero_point"], dtypes, Vec::new()).in_role(Role::Zeros)
}
