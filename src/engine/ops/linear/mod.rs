//! linear: out = x Wᵀ + b, with weights packed once at load.
//!
//! x (num_tokens, k), W (n, k) in the model's dtype, out (num_tokens, n). On the CPU x and out are
//! f32, and each output element is the sum over k in ascending order with one accumulator, whatever
//! the number of rows and the tile the row falls in: row-independent by construction. On a GPU
//! cuBLASLt runs algorithms that were tested to give the same bits for every number of rows.

mod cpu;
mod cuda;
mod pack;

pub use pack::{SourceMatrix, SourceValues};

use half::{bf16, f16};

use crate::engine::EngineError;
use crate::engine::config::{DType, Quantization};
use crate::engine::device::cuda::DevicePtr;
use crate::engine::device::{Cpu, Device, Tensor};

/// Weights of a linear layer, or an embedding table.
#[derive(Debug)]
pub struct LinearWeight {
    n: usize,
    k: usize,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Cpu(Packed),
    Cuda(cuda::Weight),
}

/// Panels of `panel_width` output columns: panel p holds (k, panel_width) elements, column lane l
/// of panel p is output p * panel_width + l.
#[derive(Debug)]
struct Packed {
    panel_width: usize,
    panels: Panels,
    bias: Option<Vec<f32>>,
}

#[derive(Debug)]
enum Panels {
    Float32(Vec<f32>),
    BFloat16(Vec<bf16>),
    Float16(Vec<f16>),
}

impl LinearWeight {
    /// Puts the rows of `parts`, one after the other (q, k, v become one weight), on the device, in
    /// `dtype`. `bias` has one value per output.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    ///
    /// # Panics
    /// Parts differ in width, or the bias has another length.
    pub fn load(
        device: &Device,
        dtype: DType,
        parts: &[SourceMatrix<'_>],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, EngineError> {
        match device {
            Device::Cpu(cpu) => Ok(Self::pack(cpu, dtype, parts, bias)),
            Device::Cuda(gpu) => {
                let (n, k) = size(parts, bias.as_deref());
                let weight = cuda::Weight::load(gpu, dtype, (n, k), parts, bias.as_deref())?;
                Ok(Self { n, k, storage: Storage::Cuda(weight) })
            }
        }
    }

    /// Packs them for the CPU.
    ///
    /// # Panics
    /// As `load`.
    pub fn pack(
        cpu: &Cpu,
        dtype: DType,
        parts: &[SourceMatrix<'_>],
        bias: Option<Vec<f32>>,
    ) -> Self {
        let (n, k) = size(parts, bias.as_deref());
        let panel_width = 2 * cpu.isa.num_lanes();
        let panels = match dtype {
            DType::Float32 => Panels::Float32(pack::pack(&cpu.pool, parts, panel_width)),
            DType::BFloat16 => Panels::BFloat16(pack::pack(&cpu.pool, parts, panel_width)),
            DType::Float16 => Panels::Float16(pack::pack(&cpu.pool, parts, panel_width)),
        };
        Self { n, k, storage: Storage::Cpu(Packed { panel_width, panels, bias }) }
    }

    /// Bytes of the weights as the device holds them.
    pub fn num_bytes(&self) -> usize {
        match &self.storage {
            Storage::Cuda(weight) => weight.num_bytes(),
            Storage::Cpu(packed) => match &packed.panels {
                Panels::Float32(panels) => panels.len() * 4,
                Panels::BFloat16(panels) => panels.len() * 2,
                Panels::Float16(panels) => panels.len() * 2,
            },
        }
    }

    /// The rows of W in a GPU's memory, one after the other.
    ///
    /// # Panics
    /// They are on the host, or quantized.
    pub(super) fn device_ptr(&self) -> DevicePtr {
        match &self.storage {
            Storage::Cuda(weight) => weight.rows_ptr(),
            Storage::Cpu(_) => panic!("a weight of the host was given to a GPU"),
        }
    }

    /// Row `row` of W, widened: an embedding table that is tied to the output layer lives only
    /// here.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k);
        let Storage::Cpu(Packed { panel_width, panels, .. }) = &self.storage else {
            panic!("a weight of a GPU was read on the host");
        };
        let start = row / panel_width * panel_width * self.k + row % panel_width;
        match panels {
            Panels::Float32(panels) => pack::copy_column(panels, start, *panel_width, out),
            Panels::BFloat16(panels) => pack::copy_column(panels, start, *panel_width, out),
            Panels::Float16(panels) => pack::copy_column(panels, start, *panel_width, out),
        }
    }

    /// Narrows the weights as the device was asked to (`--quantization`), and its inputs from then
    /// on.
    ///
    /// # Errors
    /// The GPU's memory does not suffice, or its matrix units do not take such widths.
    pub fn quantize(mut self, device: &Device) -> Result<Self, EngineError> {
        let (Device::Cuda(gpu), Storage::Cuda(weight)) = (device, &mut self.storage) else {
            return Ok(self);
        };
        if gpu.quantization() != Some(Quantization::Fp8) {
            return Ok(self);
        }
        if !self.n.is_multiple_of(16) || !self.k.is_multiple_of(16) {
            return Err(EngineError::Config(format!(
                "--quantization fp8 takes layers whose widths are multiples of 16; this model has \
                 one of {} by {}",
                self.n, self.k
            )));
        }
        weight.quantize(gpu)?;
        Ok(self)
    }

    /// Makes the device ready to run this layer over up to `max_rows` rows, with outputs of this
    /// type: on a GPU, chooses algorithms.
    ///
    /// # Errors
    /// The GPU has none that gives the same bits for every number of rows.
    pub fn prepare(
        &self,
        device: &Device,
        output: DType,
        max_rows: usize,
    ) -> Result<(), EngineError> {
        match (device, &self.storage) {
            (Device::Cuda(gpu), Storage::Cuda(weight)) => {
                if let Some(width) = weight.quantized_width() {
                    gpu.reserve_fp8(max_rows, width)?;
                }
                weight.prepare(gpu, output, max_rows)
            }
            _ => Ok(()),
        }
    }
}

/// (n, k) of stacked parts.
fn size(parts: &[SourceMatrix<'_>], bias: Option<&[f32]>) -> (usize, usize) {
    let k = parts[0].num_columns;
    assert!(parts.iter().all(|part| part.num_columns == k), "parts of one width");
    let n = parts.iter().map(|part| part.num_rows).sum();
    assert!(bias.is_none_or(|bias| bias.len() == n), "one bias per output");
    (n, k)
}

/// out = x Wᵀ + b. `out` takes as many rows as `x` has.
///
/// # Panics
/// Widths do not fit the weight.
pub fn linear(device: &Device, x: &Tensor, weight: &LinearWeight, out: &mut Tensor) {
    out.set_num_rows(x.num_rows());
    linear_rows(device, (x, 0), weight, (out, 0), x.num_rows());
}

/// Rows `first_out..` of `out` = rows `first..` of x Wᵀ + b.
///
/// # Panics
/// Widths do not fit the weight, or the rows are not in use.
pub fn linear_rows(
    device: &Device,
    (x, first): (&Tensor, usize),
    weight: &LinearWeight,
    (out, first_out): (&mut Tensor, usize),
    num_rows: usize,
) {
    assert!(x.width() == weight.k && out.width() == weight.n, "shapes of linear");
    assert!(first + num_rows <= x.num_rows() && first_out + num_rows <= out.num_rows());
    let (cpu, packed) = match (device, &weight.storage) {
        (Device::Cpu(cpu), Storage::Cpu(packed)) => (cpu, packed),
        (Device::Cuda(gpu), Storage::Cuda(weight)) => {
            return weight.linear(gpu, (x, first), (out, first_out), num_rows);
        }
        _ => panic!("the weight is on another device"),
    };
    let shape = cpu::Shape { num_rows, n: weight.n, k: weight.k };
    let bias = packed.bias.as_deref();
    let x = &x.values()[first * weight.k..(first + num_rows) * weight.k];
    let out = &mut out.values_mut()[first_out * weight.n..(first_out + num_rows) * weight.n];
    match &packed.panels {
        Panels::Float32(panels) => cpu::linear(cpu, shape, x, panels, bias, out),
        Panels::BFloat16(panels) => cpu::linear(cpu, shape, x, panels, bias, out),
        Panels::Float16(panels) => cpu::linear(cpu, shape, x, panels, bias, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::device::simd::Isa;

    const DTYPES: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let source = SourceMatrix::random(1, len, seed, 1.0);
        (0..len).map(|column| source.value(0, column)).collect()
    }

    fn check(isa: Isa, dtype: DType, m: usize, n: usize, k: usize) {
        let device = Device::cpu_with_isa(2, isa);
        let split = n / 3;
        let parts =
            [SourceMatrix::random(split, k, 1, 1.0), SourceMatrix::random(n - split, k, 2, 1.0)];
        let parts = if split == 0 { &parts[1..] } else { &parts[..] };
        let bias = random(n, 3);
        let weight = LinearWeight::load(&device, dtype, parts, Some(bias.clone())).unwrap();
        let x = Tensor::from_vec(random(m * k, 4), k);
        let mut out = Tensor::zeros(m + 1, n);
        linear(&device, &x, &weight, &mut out);
        let mut w_row = vec![0.0; k];
        for (column, bias) in bias.iter().enumerate() {
            weight.copy_row(column, &mut w_row);
            for row in 0..m {
                let exact: f64 =
                    (0..k).map(|i| f64::from(x.row(row)[i]) * f64::from(w_row[i])).sum();
                let got = f64::from(out.row(row)[column]);
                let expected = exact + f64::from(*bias);
                assert!((got - expected).abs() < 1e-4, "{isa:?} {dtype:?} {m}x{n}x{k}");
            }
        }
    }

    #[test]
    fn agrees_with_a_naive_loop_over_tile_edges_on_every_path() {
        for isa in Isa::all_available() {
            for dtype in DTYPES {
                for (m, n, k) in [(1, 1, 1), (3, 5, 7), (13, 33, 16), (27, 70, 40), (100, 31, 64)] {
                    check(isa, dtype, m, n, k);
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            for dtype in DTYPES {
                let (m, n, k) = (131, 75, 96);
                let parts = [SourceMatrix::random(n, k, 5, 1.0)];
                let weight = LinearWeight::load(&device, dtype, &parts, None).unwrap();
                let x = Tensor::from_vec(random(m * k, 6), k);
                let mut all = Tensor::zeros(m, n);
                linear(&device, &x, &weight, &mut all);
                for row in 0..m {
                    let one = Tensor::from_vec(x.row(row).to_vec(), k);
                    let mut out = Tensor::zeros(1, n);
                    linear(&device, &one, &weight, &mut out);
                    assert_eq!(out.row(0), all.row(row), "{isa:?} {dtype:?} row {row}");
                }
            }
        }
    }

    #[test]
    fn packing_keeps_values_of_the_same_dtype_exactly() {
        let device = Device::cpu(Some(2));
        let values: Vec<bf16> = (0..40 * 9).map(|i| bf16::from_f32(i as f32 * 0.37)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let source = SourceMatrix::from_bytes(40, 9, DType::BFloat16, &bytes);
        let weight = LinearWeight::load(&device, DType::BFloat16, &[source], None).unwrap();
        let mut row = vec![0.0; 9];
        for n in 0..40 {
            weight.copy_row(n, &mut row);
            let expected: Vec<f32> =
                values[n * 9..(n + 1) * 9].iter().map(|v| v.to_f32()).collect();
            assert_eq!(row, expected);
        }
    }
}
