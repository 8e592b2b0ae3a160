//! attention_pool: what one learned query finds among the rows of each text, as the heads of SigLIP
//! pool an image's patches. A tile's own rows alone count, in their order.

use std::ops::Range;

use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

/// Row t of `out` (texts, width) = the values of rows `texts[t]` of `qkv`, by how well their keys
/// fit the query (width). Rows (rows, 3 * width) are queries, which do not count, keys and values.
///
/// # Panics
/// Widths differ, heads are not equal, a text has no rows, or the device is a GPU.
pub fn attention_pool(
    device: &Device,
    (query, num_heads): (&[f32], usize),
    (qkv, texts): (&Tensor, &[Range<usize>]),
    out: &mut Tensor,
) {
    let width = query.len();
    assert!(width.is_multiple_of(num_heads) && (qkv.width(), out.width()) == (3 * width, width));
    assert!(texts.iter().all(|text| !text.is_empty() && text.end <= qkv.num_rows()));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(_) => unreachable!("vectors of images are made on the CPU"),
    };
    out.set_num_rows(texts.len());
    let num_rows: usize = texts.iter().map(ExactSizeIterator::len).sum();
    let work = || Work::elementwise(num_rows * 2 * width, 4);
    let _timed = cpu.op_timer.timed(Op::new("attention_pool"), work);
    let head_dim = width / num_heads;
    let shared = SharedMut::new(out.values_mut());
    cpu.pool.run(texts.len() * num_heads, &|_, item| {
        let (text, head) = (item / num_heads, item % num_heads);
        let first = head * head_dim;
        // SAFETY: each head of a text belongs to one item.
        let out = unsafe { shared.slice(text * width + first, head_dim) };
        let rows = texts[text].clone().map(|row| {
            let row = qkv.row(row);
            (&row[width + first..][..head_dim], &row[2 * width + first..][..head_dim])
        });
        pool_head(&query[first..][..head_dim], rows, out);
    });
}

/// One head over keys and values, in this order of them.
fn pool_head<'a>(
    query: &[f32],
    rows: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
    out: &mut [f32],
) {
    let scale = (query.len() as f32).sqrt().recip();
    let score = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * scale * k).sum::<f32>();
    let mut weights: Vec<f32> = rows.clone().map(|(key, _)| score(key)).collect();
    let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for ((_, values), weight) in rows.zip(&weights) {
        out.iter_mut().zip(values).for_each(|(out, value)| *out += weight / sum * value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    /// Rows of three numbers for each of two heads: queries, keys and values.
    fn pooled(texts: &[Range<usize>]) -> Vec<Vec<f32>> {
        let device = Device::cpu(Some(2));
        let value = |index: usize| ((index * 37 + 11) % 23) as f32 * 0.1 - 1.0;
        let qkv = Tensor::from_vec((0..9 * 18).map(value).collect(), 18);
        let query: Vec<_> = (0..6).map(|index| value(index + 500)).collect();
        let mut out = Tensor::from_vec(vec![9.0; texts.len() * 6], 6);
        attention_pool(&device, (&query, 2), (&qkv, texts), &mut out);
        (0..texts.len()).map(|row| out.row(row).to_vec()).collect()
    }

    #[test]
    fn a_row_is_a_mean_of_values_by_keys() {
        let value = |index: usize| f64::from(((index * 37 + 11) % 23) as f32 * 0.1 - 1.0);
        let found = pooled(&[2..7, 0..1]).swap_remove(0);
        for head in 0..2 {
            let score = |row: usize| {
                let products = (head * 3..head * 3 + 3)
                    .map(|column| value(500 + column) * value(row * 18 + 6 + column));
                (products.sum::<f64>() / 3.0f64.sqrt()).exp()
            };
            let sum: f64 = (2..7).map(score).sum();
            for (column, found) in found.iter().enumerate().skip(head * 3).take(3) {
                let of_row = |row: usize| score(row) / sum * value(row * 18 + 12 + column);
                let expected: f64 = (2..7).map(of_row).sum();
                assert!((f64::from(*found) - expected).abs() < 1e-6, "{column}");
            }
        }
    }

    #[test]
    fn texts_do_not_see_each_other() {
        let texts = [0..1, 1..2, 2..7, 7..9];
        let alone: Vec<_> = texts.iter().flat_map(|text| pooled(slice::from_ref(text))).collect();
        assert_eq!(pooled(&texts), alone);
    }
}
