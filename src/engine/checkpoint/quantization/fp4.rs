//! E2M1 with scales: NVFP4 of compressed-tensors and ModelOpt, and MXFP4.

use std::sync::Arc;

use safetensors::Dtype;

use super::floats;
use super::grouped::{GroupedMatrix, Groups, Meaning, Parts, Zeros};
use super::layout::Codes;
use super::scaled::{Spread, of_activations};
use super::tensors::{Matrix, ModuleTensors, Need, Scheme, table};

/// Four bits per weight, the first of two in the low half of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fp4 {
    /// Scales of E4M3 for 16 inputs, divided by one for the matrix.
    NvDivided,
    /// Scales of E4M3 for 16 inputs, multiplied with one for the matrix.
    NvMultiplied,
    /// Scales of E8M0 for 32 inputs.
    Mx,
    /// The same of several matrices in one tensor, 16 bytes to a scale (gpt-oss).
    MxExperts,
}

impl Fp4 {
    fn spread(self) -> Spread {
        Spread::Group(match self {
            Fp4::Mx | Fp4::MxExperts => 32,
            Fp4::NvDivided | Fp4::NvMultiplied => 16,
        })
    }

    fn weight(self) -> &'static [&'static str] {
        match self {
            Fp4::NvMultiplied => &["weight"],
            Fp4::NvDivided | Fp4::Mx => &["weight_packed"],
            Fp4::MxExperts => &["_blocks"],
        }
    }

    fn scales(self) -> &'static [&'static str] {
        if self == Fp4::MxExperts { &["_scales"] } else { &["weight_scale"] }
    }

    /// The scale of the whole matrix.
    fn global(self) -> Option<&'static [&'static str]> {
        match self {
            Fp4::NvDivided => Some(&["weight_global_scale"]),
            Fp4::NvMultiplied => Some(&["weight_scale_2"]),
            Fp4::Mx | Fp4::MxExperts => None,
        }
    }
}

impl Scheme for Fp4 {
    fn needs(&self, shape: (usize, usize)) -> Result<Vec<Need>, String> {
        let dtypes: &[Dtype] = match self {
            Fp4::Mx | Fp4::MxExperts => &[Dtype::U8, Dtype::F8_E8M0],
            _ => &[Dtype::F8_E4M3],
        };
        let scales = Need::required(self.scales(), dtypes, self.spread().shapes(shape)?);
        let codes = match self {
            Fp4::MxExperts => vec![shape.0, shape.1 / 32, 16],
            _ => vec![shape.0, shape.1 / 2],
        };
        let codes = Need::required(self.weight(), &[Dtype::U8], vec![codes]);
        let mut needs = vec![codes, scales];
        if let Some(global) = self.global() {
            needs.push(Need::required(global, &[Dtype::F32], Spread::Tensor.shapes(shape)?));
        }
        needs.extend(of_activations());
        Ok(needs)
    }

    fn holds_several(&self) -> bool {
        *self == Fp4::MxExperts
    }

    fn matrix<'a>(
        &self,
        shape: (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        let bytes = tensors.required(self.weight()).bytes;
        let mut scales = tensors.required(self.scales()).scales();
        if let Some(global) = self.global() {
            let global = tensors.required(global).floats()[0];
            scales.kind = table(|byte| match self {
                Fp4::NvDivided => floats::e4m3(byte) / global,
                _ => floats::e4m3(byte) * global,
            });
        }
        Ok(Arc::new(GroupedMatrix::from(Parts {
            num_columns: shape.1,
            codes: Codes::Rows { bits: 4, row_bytes: shape.1 / 2, bytes },
            meaning: Meaning::Table(Arc::new(std::array::from_fn(|code| floats::e2m1(code as u8)))),
            groups: Groups::blocks(self.spread().block(shape), shape.1),
            scales,
            zeros: Zeros::Same(0),
            factor: None,
        })))
    }
}
