//! scale_by_position: queries that grow with the logarithm of their position, which keeps attention
//! sharp over long contexts (Ministral 3, Llama 4).

use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

use super::elementwise::scale_values;
use super::{Ids, for_row_chunks, gpu_row_block};
use vllm_batch_base::layers::Heads;

/// Multiplies the given heads of each row of x by 1 + beta ln(1 + floor((position + offset) /
/// original)), in place: transformers' `get_llama_4_attn_scale`, where the offset is 0. `original`
/// is the length up to which it is 1.
///
/// # Panics
/// There are not as many positions as rows, or the columns are not there.
pub fn scale_by_position(
    device: &Device,
    x: &mut Tensor,
    heads: Heads,
    positions: Ids<'_>,
    beta: f32,
    (offset, original): (f32, f32),
) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let columns = heads.num_heads * heads.head_dim;
    assert!(heads.start + columns <= width);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(x).ptr(positions.device_ptr).f32(beta).f32(offset).f32(original);
            args.dims([width, heads.start, columns]);
            let (grid, block) = ([num_rows as u32, 1], gpu_row_block(columns, 8));
            return gpu.launch(("elementwise", "scale_by_position"), grid, (block, 0), &mut args);
        }
    };
    assert_eq!(positions.host.len(), num_rows);
    let work = || Work::elementwise(num_rows * columns, 8);
    let _timed = cpu.op_timer.timed(Op::new("scale_by_position"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, columns, &|start, end| {
        for (row, &position) in (start..end).zip(&positions.host[start..end]) {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width + heads.start, columns) };
            // f32 throughout, as transformers computes it.
            let factor = 1.0 + beta * (1.0 + ((position as f32 + offset) / original).floor()).ln();
            scale_values(cpu.isa, factor, values);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::Isa;

    #[test]
    fn heads_grow_where_a_multiple_of_the_original_length_is_reached() {
        for offset in [0, 1] {
            heads_grow_by(offset);
        }
    }

    fn heads_grow_by(offset: u32) {
        let positions = [0, 63, 64, 127, 128, 6400];
        let values: Vec<f32> = (0..6 * 50).map(|i| (i as f32 * 0.7).sin()).collect();
        for isa in Isa::all_available() {
            let mut x = Tensor::from_vec(values.clone(), 50);
            let device = Device::cpu_with_isa(2, isa);
            let heads = Heads { start: 6, num_heads: 3, head_dim: 12 };
            let original = (offset as f32, 64.0);
            scale_by_position(&device, &mut x, heads, Ids::from(&positions[..]), 0.1, original);
            for (row, position) in positions.into_iter().enumerate() {
                let position = position + offset;
                let factor = 1.0 + 0.1 * (1.0 + f64::from(position / 64)).ln();
                let before = &values[row * 50..(row + 1) * 50];
                for (column, (got, before)) in x.row(row).iter().zip(before).enumerate() {
                    let is_scaled = (6..42).contains(&column) && position >= 64;
                    let expected = f64::from(*before) * if is_scaled { factor } else { 1.0 };
                    let slack = if is_scaled { 1e-6 } else { 0.0 };
                    let error = (f64::from(*got) - expected).abs();
                    assert!(error <= slack, "{isa:?}: position {position}, column {column}");
                }
            }
        }
    }
}
