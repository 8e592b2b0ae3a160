//! The largest output of each row, without the outputs: who wants the likeliest token alone reads
//! no more of the logits, and so they are neither written nor read back.

use super::blocks::{Destination, Rows};
use super::{LinearWeight, Panels, Storage};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

/// The largest output of each row of one product, and what it is found in.
#[derive(Debug, Default)]
pub struct LargestOutputs {
    /// (threads, num_rows)
    of_threads: Vec<Largest>,
    /// (num_rows)
    of_rows: Vec<Option<u32>>,
}

/// The largest of some outputs of a row; NaN if one is that, or +inf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Largest {
    value: f32,
    /// The first one that has it.
    output: u32,
}

impl Largest {
    /// Largest of no outputs.
    const NONE: Self = Self { value: f32::NEG_INFINITY, output: u32::MAX };

    /// Larger of both. Their order does not matter.
    fn or(self, other: Self) -> Self {
        let is_larger = other.value > self.value;
        let is_first = other.value == self.value && other.output < self.output;
        match other.value.is_nan() || is_larger || is_first {
            true if !self.value.is_nan() => other,
            _ => self,
        }
    }
}

/// Where each thread keeps the largest outputs that it has met.
#[derive(Clone, Copy)]
pub(super) struct LargestOfThreads {
    /// (threads, num_rows)
    places: SharedMut<Largest>,
    num_rows: usize,
}

impl LargestOutputs {
    /// The first of the largest outputs of each row of x Wᵀ + b; None where one is NaN or +inf, or
    /// all are -inf.
    pub fn of_rows(&self) -> &[Option<u32>] {
        &self.of_rows
    }

    /// There are no rows.
    pub fn clear(&mut self) {
        self.of_rows.clear();
    }

    /// Computes them, where the device can and it pays: on a CPU, unless it cuts sums along their
    /// inputs, and not in int8, whose decode took 5 % longer and more. Else there are no rows.
    ///
    /// # Panics
    /// Widths do not fit the weight.
    pub fn compute(&mut self, device: &Device, x: &Tensor, weight: &LinearWeight) {
        assert_eq!(x.width(), weight.k, "shapes of linear");
        self.of_rows.clear();
        let (cpu, packed) = match (device, &weight.storage) {
            (Device::Cpu(cpu), Storage::Cpu(packed)) => (cpu, packed),
            _ => return,
        };
        if packed.cuts_inputs(cpu, weight.k) || matches!(packed.panels, Panels::Int8(_)) {
            return;
        }
        let num_rows = x.num_rows();
        self.of_threads.clear();
        self.of_threads.resize(cpu.pool.num_threads() * num_rows, Largest::NONE);
        let places = SharedMut::new(&mut self.of_threads);
        let to = Destination::Largest(LargestOfThreads { places, num_rows });
        weight.product((cpu, packed), x.rows_from(0), num_rows, to);
        let of_row = |row: usize| {
            let of_threads = self.of_threads[row..].iter().step_by(num_rows);
            let largest = of_threads.fold(Largest::NONE, |a, b| a.or(*b));
            (largest.value > f32::NEG_INFINITY).then_some(largest.output)
        };
        self.of_rows.extend((0..num_rows).map(of_row));
    }
}

impl LargestOfThreads {
    /// Takes in the sums of these rows by a panel.
    ///
    /// # Safety
    /// No two calls with one thread overlap.
    pub(super) unsafe fn put(self, isa: Isa, rows: Rows, panel: PanelSums<'_>) {
        let Rows { first, end, thread, .. } = rows;
        // SAFETY: the caller's promise.
        let largest = unsafe { self.places.slice(thread * self.num_rows + first, end - first) };
        dispatch(isa, Update { panel, largest });
    }
}

/// Sums of some rows by a panel.
#[derive(Clone, Copy)]
pub(super) struct PanelSums<'a> {
    /// (rows, width)
    pub sums: &'a [f32],
    pub width: usize,
    /// Those that are outputs.
    pub num_columns: usize,
    pub first_output: usize,
}

struct Update<'a> {
    panel: PanelSums<'a>,
    largest: &'a mut [Largest],
}

impl Kernel for Update<'_> {
    /// Panels with nothing as large as what a row has already, which nearly all are, cost no more
    /// than to see that.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let PanelSums { sums, width, num_columns, first_output } = self.panel;
        for (sums, largest) in sums.chunks_exact(width).zip(self.largest) {
            let mut has_more = num_columns < width;
            for lanes in sums.chunks_exact(V::LANES) {
                // SAFETY: dispatched for this CPU.
                has_more |= unsafe { V::load(lanes.as_ptr()).any_not_below(largest.value) };
            }
            if has_more {
                let outputs = first_output as u32..;
                *largest = of_some(*largest, outputs.zip(&sums[..num_columns]));
            }
        }
    }
}

/// Larger of this one and these outputs.
fn of_some<'a>(largest: Largest, outputs: impl Iterator<Item = (u32, &'a f32)>) -> Largest {
    outputs.fold(largest, |largest, (output, &value)| {
        let value = if value == f32::INFINITY { f32::NAN } else { value };
        largest.or(Largest { value, output })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::linear;
    use vllm_batch_base::config::DType;
    use vllm_batch_base::matrix::{SourceMatrix, SourceValues};
    use vllm_batch_device::simd::InstructionSet;

    /// By `linear`, and one output after the other.
    fn expected(device: &Device, x: &Tensor, weight: &LinearWeight) -> Vec<Option<u32>> {
        let mut out = Tensor::zeros(x.num_rows(), weight.n);
        linear(device, x, weight, &mut out);
        let of_row = |row: usize| {
            let outputs = out.row(row);
            let is_bad = outputs.iter().any(|out| out.is_nan() || *out == f32::INFINITY);
            let mut largest = (f32::NEG_INFINITY, None);
            for (index, &out) in outputs.iter().enumerate() {
                if out > largest.0 {
                    largest = (out, Some(index as u32));
                }
            }
            largest.1.filter(|_| !is_bad)
        };
        (0..x.num_rows()).map(of_row).collect()
    }

    /// Weights (n, k) whose columns are the same from `period` outputs to `period`: the first of
    /// equal ones is to be found.
    fn weight(
        device: &Device,
        dtype: DType,
        (n, k): (usize, usize),
        period: usize,
    ) -> LinearWeight {
        let Device::Cpu(cpu) = device else { panic!("no CPU") };
        let few = SourceMatrix::random(period, k, 11, 1.0).to_vec();
        let values: Vec<f32> =
            (0..n).flat_map(|row| &few[row % period * k..][..k]).copied().collect();
        let rows = vec![SourceMatrix::new(n, k, SourceValues::Slice(&values))].into();
        LinearWeight::pack(cpu, dtype, &rows, None)
    }

    #[test]
    fn it_is_that_of_the_outputs_with_every_instruction_set() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(3, isa);
            for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
                for (n, period) in [(5, 5), (64, 20), (1003, 700), (1003, 3)] {
                    let weight = weight(&device, dtype, (n, 24), period);
                    let x = SourceMatrix::random(150, 24, 3, 1.0).to_vec();
                    let x = Tensor::from_vec(x, 24);
                    let mut largest = LargestOutputs::default();
                    largest.compute(&device, &x, &weight);
                    let expected = expected(&device, &x, &weight);
                    assert!(expected.iter().all(Option::is_some));
                    assert_eq!(largest.of_rows(), expected, "{isa:?} {dtype:?} {n}");
                }
            }
        }
    }

    #[test]
    fn sums_that_are_cut_give_none() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            for dtype in [DType::Float32, DType::BFloat16] {
                let weight = weight(&device, dtype, (70, 1100), 70);
                let x = Tensor::from_vec(SourceMatrix::random(20, 1100, 3, 1.0).to_vec(), 1100);
                let mut largest = LargestOutputs::default();
                largest.compute(&device, &x, &weight);
                let is_whole = dtype == DType::BFloat16 && isa.bf16_products().take_pairs();
                let expected = if is_whole { expected(&device, &x, &weight) } else { Vec::new() };
                assert_eq!(largest.of_rows(), expected, "{isa:?} {dtype:?}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_said_for_its_row_alone() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let mut values = SourceMatrix::random(70, 2, 5, 1.0).to_vec();
            // Output 40 of a row that begins with 1e38 is infinite, and of others it is not.
            (values[80], values[81]) = (1e3, 0.0);
            let rows = vec![SourceMatrix::new(70, 2, SourceValues::Slice(&values))].into();
            let Device::Cpu(cpu) = &device else { panic!("no CPU") };
            let weight = LinearWeight::pack(cpu, DType::Float32, &rows, None);
            let nan = f32::NAN;
            let x = vec![1.0, 1.0, 1e38, 1.0, -1e38, 1.0, nan, 0.0, 0.5, -0.5];
            let x = Tensor::from_vec(x, 2);
            let mut largest = LargestOutputs::default();
            largest.compute(&device, &x, &weight);
            let expected = expected(&device, &x, &weight);
            assert_eq!(largest.of_rows(), expected, "{isa:?}");
            let is_some: Vec<_> = expected.iter().map(Option::is_some).collect();
            assert_eq!(is_some, [true, false, true, false, true], "{isa:?}");
        }
    }
}
