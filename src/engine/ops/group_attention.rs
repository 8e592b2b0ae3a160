//! group_attention: what rows of queries find among the rows of a group each, as Molmo 2 makes
//! tokens of patches. A group's own rows alone count, in their order.

use vllm_batch_base::layers::QkvHeads;
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

use super::MixedRows;

/// Most rows of a group: `MAX_GROUP` of kernels/group_attention.cu.
pub const MAX_GROUP: usize = 64;

/// Row i of `out` (groups, width of queries) = the values of the rows of `kv` that are in group i,
/// by how well their keys fit row i of `q`. Rows of `kv` are keys, then values.
///
/// # Panics
/// Widths differ from those of the heads, or a group has no rows or too many.
pub fn group_attention(
    device: &Device,
    groups: &MixedRows,
    (q, kv): (&Tensor, &Tensor),
    heads: QkvHeads,
    out: &mut Tensor,
) {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    let width = num_heads * head_dim;
    assert!(q.width() == width && out.width() == width && kv.width() == 2 * heads.kv_width());
    assert!(groups.sizes().all(|size| (1..=MAX_GROUP).contains(&size)), "a size of a group");
    let num_rows = groups.num_rows();
    let scale = (head_dim as f32).sqrt().recip();
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let [ends, shares] = groups.on_gpu();
            let mut args = Args::new();
            args.ptr(ends).ptr(shares).tensor(q).tensor(kv).tensor(out);
            args.dims([num_heads, num_kv_heads, head_dim]).f32(scale);
            let grid = [num_rows as u32, num_heads as u32];
            let name = ("group_attention", "group_attention");
            return gpu.launch(name, grid, (MAX_GROUP as u32, 0), &mut args);
        }
    };
    let work = || Work::elementwise(groups.sizes().sum::<usize>() * kv.width(), 4);
    let _timed = cpu.op_timer.timed(Op::new("group_attention"), work);
    let shared = SharedMut::new(out.values_mut());
    cpu.pool.run(num_rows, &|_, row| {
        // SAFETY: each row belongs to one item.
        let out = unsafe { shared.slice(row * width, width) };
        for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let first = head / (num_heads / num_kv_heads) * head_dim;
            let rows = groups.ids(row).map(|id| &kv.row(id)[first..]);
            let rows = rows.map(|kv| (&kv[..head_dim], &kv[heads.kv_width()..][..head_dim]));
            of_head((&q.row(row)[head * head_dim..][..head_dim], scale), rows, out);
        }
    });
}

/// One head over keys and values, in this order of them.
fn of_head<'a>(
    (query, scale): (&[f32], f32),
    rows: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
    out: &mut [f32],
) {
    let score = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * scale * k).sum::<f32>();
    let mut weights = [0.0; MAX_GROUP];
    let weights = &mut weights[..rows.clone().count()];
    for (weight, (key, _)) in weights.iter_mut().zip(rows.clone()) {
        *weight = score(key);
    }
    let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for ((_, values), weight) in rows.zip(weights) {
        out.iter_mut().zip(values).for_each(|(out, value)| *out += *weight / sum * value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: QkvHeads = QkvHeads { num_heads: 4, num_kv_heads: 2, head_dim: 3 };

    fn value(index: usize) -> f32 {
        ((index * 37 + 11) % 23) as f32 * 0.1 - 1.0
    }

    fn found(groups: &[&[u32]]) -> Vec<Vec<f32>> {
        let device = Device::cpu(Some(2));
        let mut rows = MixedRows::default();
        groups.iter().for_each(|group| rows.push(group.iter().map(|id| (*id, 0.5))));
        let kv = Tensor::from_vec((0..9 * 12).map(value).collect(), 12);
        let q = (0..groups.len()).flat_map(|_| (0..12).map(|index| value(index + 500)));
        let q = Tensor::from_vec(q.collect(), 12);
        let mut out = Tensor::from_vec(vec![9.0; groups.len() * 12], 12);
        group_attention(&device, &rows, (&q, &kv), HEADS, &mut out);
        (0..groups.len()).map(|row| out.row(row).to_vec()).collect()
    }

    #[test]
    fn a_row_is_a_mean_of_values_by_keys_and_of_its_group_alone() {
        let groups: [&[u32]; 3] = [&[4], &[7, 0, 3], &[1, 2, 7, 8]];
        let all = found(&groups);
        for (group, all) in groups.iter().zip(&all) {
            assert_eq!(found(&[group])[0], *all);
            for head in 0..4 {
                let first = head / 2 * 3;
                let score = |row: u32| {
                    let products = (0..3).map(|at| {
                        let key = value(row as usize * 12 + first + at);
                        f64::from(value(500 + head * 3 + at)) * f64::from(key)
                    });
                    (products.sum::<f64>() / 3.0f64.sqrt()).exp()
                };
                let sum: f64 = group.iter().map(|row| score(*row)).sum();
                for at in 0..3 {
                    let of_row = |row: &u32| {
                        let value = value(*row as usize * 12 + 6 + first + at);
                        score(*row) / sum * f64::from(value)
                    };
                    let expected: f64 = group.iter().map(of_row).sum();
                    assert!((f64::from(all[head * 3 + at]) - expected).abs() < 1e-6, "{head}");
                }
            }
        }
    }
}
