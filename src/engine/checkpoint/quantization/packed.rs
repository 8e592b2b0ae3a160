//! compressed-tensors' `pack-quantized`: codes of 1 to 8 bits without gaps along each row.

use std::sync::Arc;

use safetensors::Dtype;

use super::grouped::{GroupedMatrix, Groups, Meaning, Parts, Zeros};
use super::layout::Codes;
use super::scaled::{Spread, no_zeros, of_activations};
use super::tensors::{FLOATS, Matrix, ModuleTensors, Need, Role, Scheme};

/// How a layer is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    pub bits: usize,
    pub spread: Spread,
    /// A zero for each scale, packed along the outputs.
    pub has_zeros: bool,
    /// A list has the group of each input.
    pub is_listed: bool,
}

impl Packed {
    fn words(self, len: usize) -> usize {
        (len * self.bits).div_ceil(32)
    }
}

/// The group of each input.
const LIST: &str = "weight_g_idx";

impl Scheme for Packed {
    fn needs(&self, (n, k): (usize, usize)) -> Result<Vec<Need>, String> {
        let num_groups = k / self.spread.block((n, k)).1;
        let zeros = match self.has_zeros {
            true => {
                let shape = vec![self.words(n), num_groups];
                Need::required(&["weight_zero_point"], &[Dtype::I32], vec![shape])
            }
            false => no_zeros(),
        };
        let list = if self.is_listed { Role::Required } else { Role::Optional };
        let mut needs = vec![
            Need::required(&["weight_packed"], &[Dtype::I32], vec![vec![n, self.words(k)]]),
            Need::required(&["weight_scale"], FLOATS, self.spread.shapes((n, k))?),
            Need::required(&["weight_shape"], &[Dtype::I64], vec![vec![2]]).in_role(Role::Optional),
            Need::required(&[LIST], &[Dtype::I32], vec![vec![k]]).in_role(list),
            zeros,
        ];
        needs.extend(of_activations());
        Ok(needs)
    }

    fn matrix<'a>(
        &self,
        (n, k): (usize, usize),
        tensors: &ModuleTensors<'a>,
    ) -> Result<Matrix<'a>, String> {
        if let Some(shape) = tensors.get("weight_shape") {
            let sizes = shape.bytes.as_chunks::<8>().0.iter().map(|size| i64::from_le_bytes(*size));
            let sizes: Vec<_> = sizes.collect();
            if sizes != [n as i64, k as i64] {
                let text = format!("it is {sizes:?}, config.json asks for [{n}, {k}]");
                return Err(tensors.error("weight_shape", text));
            }
        }
        let (rows, columns) = self.spread.block((n, k));
        let num_groups = k / columns;
        // -1: in order.
        let is_unset = |list: &[i32]| list.contains(&-1);
        let list = tensors.get(LIST).map(|list| list.integers().collect::<Vec<_>>());
        let of_columns = match list {
            Some(list) if !is_unset(&list) => tensors.group_list(LIST, num_groups)?,
            _ => None,
        };
        let of_columns = of_columns.filter(|_| num_groups > 1);
        let zeros = match self.has_zeros {
            true => {
                let bytes = tensors.required(&["weight_zero_point"]).bytes;
                let codes = Codes::Words { bits: self.bits, num_rows: num_groups, bytes };
                let at = (0..n).flat_map(|row| (0..num_groups).map(move |group| (group, row)));
                Zeros::Each(at.map(|(group, row)| i16::from(codes.code(group, row))).collect())
            }
            false => Zeros::Same(1 << (self.bits - 1)),
        };
        let bytes = tensors.required(&["weight_packed"]).bytes;
        Ok(Arc::new(GroupedMatrix::from(Parts {
            num_columns: k,
            codes: Codes::Rows { bits: self.bits, row_bytes: 4 * self.words(k), bytes },
            meaning: Meaning::Unsigned,
            groups: match of_columns {
                Some(of_columns) => Groups::Listed { of_columns, strides: (num_groups, 1) },
                None => Groups::blocks((rows, columns), k),
            },
            scales: tensors.required(&["weight_scale"]).scales(),
            zeros,
            factor: None,
        })))
    }
}
