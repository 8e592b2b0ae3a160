//! text_maxima: the largest number that any token of a text has for each word.

use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Gpu, Tensor};

use super::{GPU_BLOCK, Ids};

/// Words that a thread of the CPU takes at a time.
const CHUNK: usize = 1024;

/// largest[t] (texts of a step, num_words) = the maxima over the tokens of text t so far. `x`
/// (num_rows, num_words) has the numbers of the step's tokens from `first` on; what is before them
/// came before. `starts` has the first token of each text, and the end of all. NaN comes in, and
/// stays.
///
/// # Panics
/// Widths differ, or there is no text at `first`.
pub fn text_maxima(
    device: &Device,
    (x, first): (&Tensor, usize),
    starts: Ids<'_>,
    largest: &mut Tensor,
) {
    assert!(x.width() == largest.width() && largest.num_rows() + 1 == starts.host.len());
    let end = first + x.num_rows();
    let place = |row: usize| starts.host.partition_point(|start| (*start as usize) < row);
    // Those that have a token among these.
    let texts = starts.host.partition_point(|start| *start as usize <= first) - 1..place(end);
    let block = Block { x, first, end, texts };
    match device {
        Device::Cpu(cpu) => block.on_cpu(cpu, starts.host, largest),
        Device::Cuda(gpu) => block.on_gpu(gpu, starts, largest),
    }
}

/// Rows of tokens `first..end` of a step, which belong to some texts.
struct Block<'a> {
    x: &'a Tensor,
    first: usize,
    end: usize,
    texts: std::ops::Range<usize>,
}

impl Block<'_> {
    fn on_cpu(&self, cpu: &Cpu, starts: &[u32], largest: &mut Tensor) {
        let (width, shared) = (largest.width(), SharedMut::new(largest.values_mut()));
        let work = || Work::elementwise(self.x.num_rows() * width, 4);
        let _timed = cpu.op_timer.timed(Op::new("text_maxima"), work);
        cpu.pool.run(width.div_ceil(CHUNK), &|_, chunk| {
            let words = chunk * CHUNK..width.min((chunk + 1) * CHUNK);
            for text in self.texts.clone() {
                let (start, end) = (starts[text] as usize, starts[text + 1] as usize);
                // SAFETY: each word belongs to one item.
                let tops = unsafe { shared.slice(text * width + words.start, words.len()) };
                if start >= self.first {
                    tops.fill(f32::NEG_INFINITY);
                }
                for row in start.max(self.first)..end.min(self.end) {
                    let values = &self.x.row(row - self.first)[words.clone()];
                    for (top, value) in tops.iter_mut().zip(values) {
                        let is_larger = *value > *top || value.is_nan();
                        *top = if is_larger { *value } else { *top };
                    }
                }
            }
        });
    }

    fn on_gpu(&self, gpu: &Gpu, starts: Ids<'_>, largest: &Tensor) {
        let num_words = largest.width();
        // Steps of texts are not recorded: what changes may be an argument.
        let mut args = Args::new();
        args.tensor(self.x).ptr(starts.device_ptr);
        args.dims([self.texts.start, self.first, self.end, num_words]).tensor(largest);
        let grid = [num_words.div_ceil(GPU_BLOCK as usize) as u32, self.texts.len() as u32];
        gpu.launch(("text_maxima", "text_maxima"), grid, (GPU_BLOCK, 0), &mut args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maxima_are_those_of_a_texts_own_tokens() {
        let device = Device::cpu(Some(2));
        let width = CHUNK + 3;
        let value = |row: usize, word: usize| ((row * 7 + word * 5) % 23) as f32 - 30.0;
        let starts = [0u32, 3, 4, 9];
        let mut expected = Vec::new();
        for text in starts.windows(2) {
            let rows = text[0] as usize..text[1] as usize;
            let of = |word| rows.clone().map(|row| value(row, word)).fold(f32::MIN, f32::max);
            expected.extend((0..width).map(of));
        }
        for num_rows in [1, 2, 4, 9] {
            let mut largest = Tensor::zeros(3, width);
            for first in (0..9).step_by(num_rows) {
                let rows = first..(first + num_rows).min(9);
                let values = rows.flat_map(|row| (0..width).map(move |word| value(row, word)));
                let x = Tensor::from_vec(values.collect(), width);
                text_maxima(&device, (&x, first), starts[..].into(), &mut largest);
            }
            assert_eq!(largest.values(), expected, "{num_rows} rows at a time");
        }
        let x = Tensor::from_vec(vec![1.0, f32::NAN, 2.0], 1);
        let mut largest = Tensor::zeros(1, 1);
        text_maxima(&device, (&x, 0), [0, 3][..].into(), &mut largest);
        assert!(largest.values()[0].is_nan(), "the row is to fail");
    }
}
