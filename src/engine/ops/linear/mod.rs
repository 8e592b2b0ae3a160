//! linear: out = x Wᵀ + b, with weights packed once at load.
//!
//! x (num_tokens, k), W (n, k) in the model's dtype, out (num_tokens, n). On the CPU x and out are
//! f32, and each output element is the sum over k in ascending order with one accumulator, whatever
//! the number of rows and the tile the row falls in: row-independent by construction. On a GPU
//! cuBLASLt runs algorithms that were tested to give the same bits for every number of rows.

use vllm_batch_device::simd::InstructionSet;
mod added;
mod blocks;
mod by_head;
pub mod codes;
mod cpu;
mod cuda;
mod dot;
mod int8;
mod largest;
mod pack;
mod pairs;
mod tiles;

pub(super) use added::{AddedPart, add_products};
pub use by_head::{HeadMatrices, linear_by_head};
pub(super) use cuda::{SortedRows, Sorting};
pub use largest::LargestOutputs;

use blocks::{Destination, Outputs, Shape, SumColumns};
use codes::{CodeWeights, NarrowWeights, Rounding};
use cpu::Weights;
use half::{bf16, f16};
use pairs::{Inputs, PairWeights};

use crate::activation::activate_and_mul;
use crate::gemm::MAX_INPUTS;
use crate::gemm::panel::PanelElement;
use crate::gemm::words::as_words;
use crate::shared_rows::SharedRows;
use vllm_batch_base::config::{DType, Quantization};
use vllm_batch_base::layers::Activation;
use vllm_batch_base::matrix::{SourceMatrix, SourceRows};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::cuda::DevicePtr;
use vllm_batch_device::limits::Arithmetic;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::pages::Pages;
use vllm_batch_device::simd::Bf16Products;
use vllm_batch_device::tensor::{Rows, RowsMut, SharedMut};
use vllm_batch_device::{Cpu, Device, Gpu, Tensor};

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

/// Panels of `panel_width` outputs: lane l of panel p is output p * panel_width + l. Each holds the
/// weights of all inputs (an even number, the last may be zeros), as `panel` lays them out.
#[derive(Debug)]
struct Packed {
    panel_width: usize,
    panels: Panels,
    /// One value per lane of all panels.
    bias: Option<Vec<f32>>,
}

impl Packed {
    /// x Wᵀ + b on its way to `out`, a shape without the gate's other half.
    fn product(&self, cpu: &Cpu, shape: Shape, x: Inputs<'_>, out: Outputs) {
        let bias = self.bias.as_deref();
        match &self.panels {
            Panels::Float32(panels) => plain(cpu, shape, x, Weights { panels, bias }, out),
            Panels::BFloat16(panels) if !cpu.isa.bf16_products().take_pairs() => {
                plain(cpu, shape, x, Weights { panels, bias }, out);
            }
            Panels::BFloat16(panels) => {
                let words = as_words(panels);
                pairs_product(cpu, shape, x, PairWeights { words, bias }, out);
            }
            Panels::Float16(panels) => plain(cpu, shape, x, Weights { panels, bias }, out),
            Panels::Int8(panels) => panels.linear(cpu, shape, x.floats(), bias, out),
            Panels::Codes(NarrowWeights { panels, rounding, .. }) => {
                let weights = CodeWeights { panels, rounding: *rounding, bias };
                codes_product(cpu, shape, x, weights, out);
            }
        }
    }

    /// Whether sums over k inputs go on from what an earlier product left in the output.
    fn cuts_inputs(&self, cpu: &Cpu, k: usize) -> bool {
        let is_whole = match &self.panels {
            Panels::Int8(_) => true,
            Panels::Codes(codes) => codes.rounding == Rounding::Pairs,
            Panels::BFloat16(_) => cpu.isa.bf16_products().take_pairs(),
            Panels::Float32(_) | Panels::Float16(_) => false,
        };
        !is_whole && k > MAX_INPUTS
    }

    /// Whether gate and up of an (n, k) weight begin at panels, and their inputs are not cut.
    fn can_be_gated(&self, cpu: &Cpu, (n, k): (usize, usize)) -> bool {
        n.is_multiple_of(2 * self.panel_width) && !self.cuts_inputs(cpu, k)
    }
}

#[derive(Debug)]
enum Panels {
    Float32(Pages<f32>),
    BFloat16(Pages<bf16>),
    Float16(Pages<f16>),
    Int8(int8::Int8Panels),
    Codes(NarrowWeights),
}

impl LinearWeight {
    /// Puts rows (those of q, k, v become one weight) on the device, in `dtype`. `bias` has one
    /// value per output.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    ///
    /// # Panics
    /// The bias has another length.
    pub fn load(
        device: &Device,
        dtype: DType,
        source: &SourceRows<'_>,
        bias: Option<Vec<f32>>,
    ) -> Result<Self, EngineError> {
        match device {
            Device::Cpu(cpu) => Ok(Self::pack(cpu, dtype, source, bias)),
            Device::Cuda(gpu) => {
                let (n, k) = size(source, bias.as_deref());
                let weight = cuda::Weight::load(gpu, dtype, source, bias.as_deref())?;
                Ok(Self { n, k, storage: Storage::Cuda(weight) })
            }
        }
    }

    /// As `load`, for a table whose rows are looked up too, and for other weights that a GPU's
    /// kernels read as values: there they are in `dtype`.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_values(
        device: &Device,
        dtype: DType,
        source: &SourceRows<'_>,
        bias: Option<Vec<f32>>,
    ) -> Result<Self, EngineError> {
        match device {
            Device::Cpu(cpu) => Ok(Self::pack(cpu, dtype, source, bias)),
            Device::Cuda(gpu) => {
                let (n, k) = size(source, bias.as_deref());
                let weight = cuda::Weight::load_rows(gpu, dtype, source, bias.as_deref())?;
                Ok(Self { n, k, storage: Storage::Cuda(weight) })
            }
        }
    }

    /// As `load`, for the layers of so many experts, one after the other, on a GPU. They are
    /// narrowed as the device was asked to: to E4M3 with a scale for each output.
    ///
    /// # Errors
    /// As `load`; or widths are not those of kernels over codes.
    ///
    /// # Panics
    /// As `load`; or the device is the CPU.
    pub fn load_experts(
        device: &Device,
        dtype: DType,
        source: &SourceRows<'_>,
        (bias, num_experts): (Option<Vec<f32>>, usize),
    ) -> Result<Self, EngineError> {
        let Device::Cuda(gpu) = device else { panic!("experts of the host are apart") };
        let (n, k) = size(source, bias.as_deref());
        assert!(n.is_multiple_of(num_experts), "experts are alike");
        let is_narrowed = gpu.quantization() == Some(Quantization::Fp8);
        if is_narrowed {
            refuse_fp8((n / num_experts, k), 8)?;
        }
        let experts = (bias.as_deref(), num_experts);
        let mut weight = cuda::Weight::load_experts(gpu, dtype, source, experts)?;
        if is_narrowed {
            weight.quantize_experts(gpu)?;
        }
        Ok(Self { n, k, storage: Storage::Cuda(weight) })
    }

    /// Packs them for the CPU.
    ///
    /// # Panics
    /// As `load`.
    pub fn pack(cpu: &Cpu, dtype: DType, source: &SourceRows<'_>, bias: Option<Vec<f32>>) -> Self {
        let (n, k) = size(source, bias.as_deref());
        let panel_width = 2 * cpu.isa.num_lanes();
        let codes = NarrowWeights::pack(cpu, dtype, source, panel_width);
        let panels = match (codes, dtype) {
            (Some(codes), _) => Panels::Codes(codes),
            (None, DType::Float32) => Panels::Float32(pack::pack(cpu, source, panel_width)),
            (None, DType::BFloat16) => Panels::BFloat16(pack::pack(cpu, source, panel_width)),
            (None, DType::Float16) => Panels::Float16(pack::pack(cpu, source, panel_width)),
        };
        let bias = bias.map(|bias| padded(bias, panel_width));
        Self { n, k, storage: Storage::Cpu(Packed { panel_width, panels, bias }) }
    }

    /// (outputs, inputs)
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// Bytes of the weights as the device holds them.
    pub fn num_bytes(&self) -> usize {
        match &self.storage {
            Storage::Cuda(weight) => weight.num_bytes(),
            Storage::Cpu(packed) => match &packed.panels {
                Panels::Float32(panels) => panels.len() * 4,
                Panels::BFloat16(panels) => panels.len() * 2,
                Panels::Float16(panels) => panels.len() * 2,
                Panels::Int8(panels) => panels.num_bytes(),
                Panels::Codes(codes) => codes.panels.num_bytes(),
            },
        }
    }

    /// The weight in a GPU's memory.
    ///
    /// # Panics
    /// It is on the host.
    pub(super) fn on_gpu(&self) -> &cuda::Weight {
        match &self.storage {
            Storage::Cuda(weight) => weight,
            Storage::Cpu(_) => panic!("a weight of the host was given to a GPU"),
        }
    }

    /// The rows of W in a GPU's memory, one after the other.
    ///
    /// # Panics
    /// They are on the host, quantized, or codes.
    pub(super) fn device_ptr(&self) -> DevicePtr {
        self.on_gpu().rows_ptr()
    }

    /// The bias in a GPU's memory, in the dtype that it was loaded in.
    ///
    /// # Panics
    /// It is on the host.
    pub(super) fn bias_ptr(&self) -> Option<DevicePtr> {
        self.on_gpu().bias_ptr()
    }

    /// Row `row` of W, widened: an embedding table that is tied to the output layer lives only
    /// here.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k);
        let Storage::Cpu(Packed { panel_width, panels, .. }) = &self.storage else {
            panic!("a weight of a GPU was read on the host");
        };
        match panels {
            Panels::Float32(panels) => pack::copy_row(panels, row, *panel_width, out),
            Panels::BFloat16(panels) => pack::copy_row(panels, row, *panel_width, out),
            Panels::Float16(panels) => pack::copy_row(panels, row, *panel_width, out),
            Panels::Int8(_) => panic!("int8 weights are no embedding table"),
            Panels::Codes(codes) => codes.copy_row(row, out),
        }
    }

    /// The first row of W that is not what these values (n, k) are in its type. None: there is
    /// none, or W is held narrower than that, or on a GPU.
    pub fn first_unlike(&self, values: &[f32]) -> Option<usize> {
        assert_eq!(values.len(), self.n * self.k);
        let Storage::Cpu(Packed { panels, .. }) = &self.storage else { return None };
        let rounded: fn(f32) -> f32 = match panels {
            Panels::Float32(_) => |value| value,
            Panels::BFloat16(_) => |value| bf16::from_f32(value).to_f32(),
            Panels::Float16(_) => |value| f16::from_f32(value).to_f32(),
            Panels::Int8(_) | Panels::Codes(_) => return None,
        };
        let mut row = vec![0.0; self.k];
        (0..self.n).find(|&index| {
            self.copy_row(index, &mut row);
            let expected = &values[index * self.k..][..self.k];
            row.iter().zip(expected).any(|(own, value)| *own != rounded(*value))
        })
    }

    /// Bytes of a row of W as the device holds it.
    pub(super) fn row_bytes(&self) -> usize {
        self.num_bytes() / self.n.max(1)
    }

    /// Rows of x Wᵀ + b, or with an activation f(gate) * up of them.
    fn product(
        &self,
        (cpu, packed): (&Cpu, &Packed),
        x: Rows<'_>,
        num_rows: usize,
        to: Destination,
    ) {
        let (name, n) = match to {
            Destination::Sums(_) => ("linear", self.n),
            Destination::Activated(..) => ("linear_activate_and_mul", self.n / 2),
            Destination::Largest(_) => ("linear_largest", self.n),
        };
        let x = Inputs::of(x, num_rows);
        // What is not written: a row's largest alone is kept.
        let output_bytes = if matches!(to, Destination::Largest(_)) { 0.0 } else { 4.0 };
        let work = || self.work(num_rows, (x.bytes() as f64, output_bytes));
        let _timed = cpu.op_timer.timed(self.op(name, cpu, packed), work);
        let out = Outputs { n, width: packed.panel_width, to };
        packed.product(cpu, Shape { num_rows, n, k: self.k }, x, out);
    }

    /// Entry of the layer in a list of ops, as part of the op of this name.
    fn op(&self, name: &'static str, cpu: &Cpu, packed: &Packed) -> Op {
        let arithmetic = match packed.panels {
            Panels::Int8(_) => Arithmetic::Int8,
            Panels::BFloat16(_) => Arithmetic::of_bf16(cpu.isa),
            Panels::Codes(ref codes) if codes.rounding == Rounding::Pairs => Arithmetic::BFloat16,
            Panels::Float32(_) | Panels::Float16(_) | Panels::Codes(_) => Arithmetic::Float32,
        };
        Op { name, shape: Some((self.n, self.k)), arithmetic }
    }

    /// Work of the layer for a number of rows, with inputs and outputs of so many bytes.
    fn work(&self, num_rows: usize, (input_bytes, output_bytes): (f64, f64)) -> Work {
        let (rows, n, k) = (num_rows as f64, self.n as f64, self.k as f64);
        let row_bytes = output_bytes * n + input_bytes * k;
        Work { flops: 2.0 * rows * n * k, bytes: self.num_bytes() as f64 + rows * row_bytes }
    }

    /// Narrows the weights as the device was asked to (`--quantization`), and its inputs from then
    /// on.
    ///
    /// # Errors
    /// The GPU's memory does not suffice, or its matrix units do not take such widths.
    pub fn quantize(mut self, device: &Device) -> Result<Self, EngineError> {
        let (Device::Cuda(gpu), Storage::Cuda(weight)) = (device, &mut self.storage) else {
            return Ok(self.int8_copy(device).unwrap_or(self));
        };
        if gpu.quantization() != Some(Quantization::Fp8) {
            return Ok(self);
        }
        refuse_fp8((self.n, self.k), 16)?;
        weight.quantize(gpu)?;
        Ok(self)
    }

    /// The weights in int8, where the device narrows to that.
    pub fn int8_copy(&self, device: &Device) -> Option<Self> {
        let (Device::Cpu(cpu), Storage::Cpu(packed)) = (device, &self.storage) else {
            return None;
        };
        let (n, k) = (self.n, self.k);
        if !cpu.int8 {
            return None;
        }
        let width = packed.panel_width;
        let widen = |panel: usize, out: &mut [f32]| match &packed.panels {
            Panels::Float32(panels) => pack::widen_panel(panels, panel, (k, width), out),
            Panels::BFloat16(panels) => pack::widen_panel(panels, panel, (k, width), out),
            Panels::Float16(panels) => pack::widen_panel(panels, panel, (k, width), out),
            Panels::Codes(codes) => codes.widen_panel(panel, out),
            Panels::Int8(_) => unreachable!("layers are narrowed once"),
        };
        let int8 = int8::Int8Panels::new(cpu, (n.div_ceil(width), width, k), &widen);
        let panel_width = int8.panel_width();
        let bias = packed.bias.as_ref().map(|bias| padded(bias[..n].to_vec(), panel_width));
        let packed = Packed { panel_width, panels: Panels::Int8(int8), bias };
        Some(Self { n, k, storage: Storage::Cpu(packed) })
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

/// Bytes that a layer of this matrix takes on a device as codes; None: it is widened to `dtype`.
pub fn code_bytes(device: &Device, dtype: DType, matrix: SourceMatrix<'_>) -> Option<usize> {
    match device {
        Device::Cpu(_) => codes::num_bytes(&matrix),
        Device::Cuda(gpu) => cuda::code_bytes(gpu, dtype, matrix),
    }
}

/// Refuses E4M3 for a layer of (outputs, inputs) that are no multiples of this.
fn refuse_fp8((n, k): (usize, usize), unit: usize) -> Result<(), EngineError> {
    if n.is_multiple_of(unit) && k.is_multiple_of(unit) {
        return Ok(());
    }
    let text = format!(
        "fp8 takes layers whose widths are multiples of {unit}; this model has one of {n} by {k}"
    );
    Err(EngineError::setting(Setting::Quantization, text, "leave it out"))
}

/// Whether the layers of so many experts, of these matrices one after the other, stay codes on a
/// GPU.
pub fn keeps_codes_of_experts(
    gpu: &Gpu,
    dtype: DType,
    source: &SourceRows<'_>,
    num_experts: usize,
) -> bool {
    cuda::keeps_codes_of_experts(gpu, dtype, source, num_experts)
}

/// One value per lane of all panels; those past the last output are zero.
fn padded(mut values: Vec<f32>, panel_width: usize) -> Vec<f32> {
    values.resize(values.len().next_multiple_of(panel_width), 0.0);
    values
}

/// (n, k) of the rows.
fn size(source: &SourceRows<'_>, bias: Option<&[f32]>) -> (usize, usize) {
    let n = source.num_rows();
    assert!(bias.is_none_or(|bias| bias.len() == n), "one bias per output");
    (n, source.num_columns())
}

/// out = x Wᵀ + b. `out` takes as many rows as `x` has.
///
/// # Panics
/// Widths do not fit the weight.
pub fn linear(device: &Device, x: &Tensor, weight: &LinearWeight, out: &mut Tensor) {
    out.set_num_rows(x.num_rows());
    linear_rows(device, x.rows_from(0), weight, out.rows_from_mut(0), x.num_rows());
}

/// `num_rows` rows of `out` = those of x Wᵀ + b.
///
/// # Panics
/// Widths do not fit the weight, or the rows are not in use.
pub fn linear_rows(
    device: &Device,
    x: Rows<'_>,
    weight: &LinearWeight,
    out: RowsMut<'_>,
    num_rows: usize,
) {
    let RowsMut { tensor: out, first: first_out } = out;
    assert!(x.tensor.width() == weight.k && out.width() == weight.n, "shapes of linear");
    assert!(x.first + num_rows <= x.tensor.num_rows() && first_out + num_rows <= out.num_rows());
    let (cpu, packed) = match (device, &weight.storage) {
        (Device::Cpu(cpu), Storage::Cpu(packed)) => (cpu, packed),
        (Device::Cuda(gpu), Storage::Cuda(weight)) => {
            return weight.linear(gpu, x, out.rows_from_mut(first_out), num_rows);
        }
        _ => panic!("the weight is on another device"),
    };
    let n = weight.n;
    let values = &mut out.values_mut()[first_out * n..(first_out + num_rows) * n];
    let to = SumColumns { values: SharedMut::new(values), stride: n, first: 0 };
    weight.product((cpu, packed), x, num_rows, Destination::Sums(to));
}

/// Rows of x Wᵀ + b are gate then up; `activated` = f(gate) * up for `num_rows` of them. `gate_up`
/// is for what is in between, where a device needs it.
///
/// # Panics
/// Widths do not fit the weight, or the rows are not in use.
pub fn linear_activate_and_mul(
    device: &Device,
    x: Rows<'_>,
    (weight, activation): (&LinearWeight, Activation),
    (gate_up, activated): (&mut Tensor, &mut Tensor),
    num_rows: usize,
) {
    let (cpu, packed) = match (device, &weight.storage) {
        (Device::Cpu(cpu), Storage::Cpu(packed))
            if packed.can_be_gated(cpu, (weight.n, weight.k)) =>
        {
            (cpu, packed)
        }
        _ => {
            gate_up.set_num_rows(num_rows);
            linear_rows(device, x, weight, gate_up.rows_from_mut(0), num_rows);
            return activate_and_mul(device, activation, gate_up, activated);
        }
    };
    assert!(x.tensor.width() == weight.k && 2 * activated.width() == weight.n, "shapes of linear");
    activated.set_num_rows(num_rows);
    let to = Destination::Activated(SharedRows::of(activated), activation);
    weight.product((cpu, packed), x, num_rows, to);
}

/// Multiplies inputs in f32.
fn plain<E: PanelElement>(
    cpu: &Cpu,
    shape: Shape,
    x: Inputs<'_>,
    weights: Weights<'_, E>,
    out: Outputs,
) {
    cpu::linear(cpu, shape, x.floats(), weights, out);
}

/// Multiplies inputs that are rounded to bf16.
fn pairs_product(cpu: &Cpu, shape: Shape, x: Inputs<'_>, weights: PairWeights<'_>, out: Outputs) {
    pairs::with_pairs(cpu, (x, shape.k), |rows| match cpu.isa.bf16_products() {
        Bf16Products::Tiles(unit) => tiles::linear((cpu, unit), shape, rows, weights, out),
        Bf16Products::Dots | Bf16Products::Widened => dot::linear(cpu, shape, rows, weights, out),
    });
}

/// Multiplies inputs that are rounded as the weights.
fn codes_product(cpu: &Cpu, shape: Shape, x: Inputs<'_>, weights: CodeWeights<'_>, out: Outputs) {
    if weights.rounding != Rounding::Pairs {
        return codes::linear(cpu, shape, Inputs::Floats(x.floats()), weights, out);
    }
    pairs::with_pairs(cpu, (x, shape.k), |rows| {
        codes::linear(cpu, shape, Inputs::Pairs(rows), weights, out);
    });
}

#[cfg(test)]
mod tests;
