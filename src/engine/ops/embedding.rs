//! embedding: rows of a table by token id or position; gathering of rows whose logits are wanted.

use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Device, Tensor};

use super::{LinearWeight, for_row_chunks};

/// out[t] = table[ids[t]] * scale. The table is packed as a linear weight, so that one that is tied
/// to the output layer is held once.
///
/// # Panics
/// An id is not in the table: requests are checked against the vocabulary before they come here.
pub fn embedding(
    device: &Device,
    ids: &[u32],
    table: &LinearWeight,
    scale: Option<f32>,
    out: &mut Tensor,
) {
    out.set_num_rows(ids.len());
    for_each_row(device, out, &|row, values| {
        table.copy_row(ids[row] as usize, values);
        if let Some(scale) = scale {
            values.iter_mut().for_each(|value| *value *= scale);
        }
    });
}

/// out[t] += table[positions[t] + offset]: learned position embeddings.
pub fn add_rows_of(
    device: &Device,
    positions: &[u32],
    offset: usize,
    table: &Tensor,
    out: &mut Tensor,
) {
    assert!(positions.len() == out.num_rows() && table.width() == out.width());
    for_each_row(device, out, &|row, values| {
        let added = table.row(positions[row] as usize + offset);
        for (value, added) in values.iter_mut().zip(added) {
            *value += added;
        }
    });
}

/// out[i] = x[indices[i]].
pub fn gather_rows(device: &Device, x: &Tensor, indices: &[u32], out: &mut Tensor) {
    assert_eq!(x.width(), out.width());
    out.resize_rows(indices.len());
    for_each_row(device, out, &|row, values| values.copy_from_slice(x.row(indices[row] as usize)));
}

fn for_each_row(device: &Device, out: &mut Tensor, row: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let Device::Cpu(cpu) = device;
    let (num_rows, width) = (out.num_rows(), out.width());
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for index in start..end {
            // SAFETY: each row belongs to one item.
            row(index, unsafe { shared.slice(index * width, width) });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::linear::SourceMatrix;
    use super::*;
    use crate::engine::config::DType;

    #[test]
    fn rows_are_looked_up_scaled_shifted_and_gathered() {
        let device = Device::cpu(Some(2));
        let source = SourceMatrix::random(50, 6, 7, 1.0);
        let table = LinearWeight::pack(&device, DType::Float32, &[source], None);
        let mut out = Tensor::zeros(4, 6);
        embedding(&device, &[49, 0, 3], &table, Some(2.0), &mut out);
        let row = |id: usize| (0..6).map(|c| source.value(id, c) * 2.0).collect::<Vec<_>>();
        assert_eq!(out.values(), [row(49), row(0), row(3)].concat());
        let positions = Tensor::from_vec((0..60).map(|i| i as f32).collect(), 6);
        add_rows_of(&device, &[0, 1, 7], 2, &positions, &mut out);
        assert_eq!(out.row(2)[1], row(3)[1] + 55.0);
        let mut gathered = Tensor::zeros(1, 6);
        gather_rows(&device, &out, &[2, 0], &mut gathered);
        assert_eq!(gathered.values(), [out.row(2), out.row(0)].concat());
    }
}
