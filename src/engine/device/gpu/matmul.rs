//! Matrix products of a GPU: cuBLASLt with algorithms that give the same bits for every number of
//! rows; on the CPU shim, a loop.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use crate::cuda::gemm::{
    Gemm, GemmError, GemmKey, GemmType, Operands, TuningTable, WORKSPACE_BYTES,
};
use crate::cuda::{CudaError, DeviceBuffer, DevicePtr, Driver, Function, Runtime};
use crate::op_times::Work;
use vllm_batch_base::config::DType;

pub(super) use crate::cuda::gemm::{launched_rows, padded_rows};

/// A linear layer, as algorithms are chosen for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Types of x and W.
    pub input: MatmulInput,
    /// Type of the outputs.
    pub output: DType,
    /// Whether a bias is added, of the model's dtype.
    pub bias: bool,
}

impl MatmulShape {
    /// Work of a product of a number of rows.
    pub(super) fn work(self, num_rows: usize) -> Work {
        let input = match self.input {
            MatmulInput::Plain(dtype) => dtype.size_bytes(),
            MatmulInput::Fp8(_) => 1,
        };
        let inputs = (num_rows + self.n) * self.k * input;
        let outputs = num_rows * self.n * self.output.size_bytes();
        let flops = 2.0 * num_rows as f64 * self.n as f64 * self.k as f64;
        Work { flops, bytes: (inputs + outputs) as f64 }
    }
}

/// Types of x and W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatmulInput {
    /// Both of one type.
    Plain(DType),
    /// Both E4M3, with a scale for each row, in a model of this dtype.
    Fp8(DType),
}

/// Where the operands of a product are.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    /// (num_rows, k)
    pub x: DevicePtr,
    /// (n, k)
    pub weight: DevicePtr,
    /// (n)
    pub bias: Option<DevicePtr>,
    /// (num_rows) and (n) f32, of E4M3 inputs.
    pub scales: Option<(DevicePtr, DevicePtr)>,
    /// (num_rows, n)
    pub out: DevicePtr,
}

/// Engine of the products.
pub(super) enum MatmulEngine {
    Lt(Box<Lt>),
    /// The shim's, with the rows that each product is prepared for: cuBLASLt needs to know.
    Host(HashMap<MatmulShape, usize>),
}

/// cuBLASLt with the choice of algorithms, and the file where that is kept.
pub(super) struct Lt {
    gemm: Gemm,
    table: TuningTable,
    path: Option<PathBuf>,
    _workspace: DeviceBuffer,
    /// Keeps the module loaded.
    _count_mismatches: Function,
}

impl MatmulEngine {
    pub(super) fn new(runtime: &Runtime, cache_dir: Option<&Path>) -> Result<Self, CudaError> {
        let Driver::Cuda(driver) = &**runtime.driver() else {
            return Ok(Self::Host(HashMap::new()));
        };
        let workspace = runtime.alloc(WORKSPACE_BYTES)?;
        let name = &runtime.driver().properties().name;
        let count_mismatches = runtime.function("count_mismatches", &[], "count_mismatches")?;
        let kernel = count_mismatches.raw().expect("a function of the driver");
        let scratch = (workspace.ptr().0, WORKSPACE_BYTES);
        let gemm = Gemm::new(driver.compute_stream(), scratch, name, kernel).map_err(failed)?;
        let path = cache_dir.map(|dir| dir.join("gemm.json"));
        let table = path.as_deref().map(TuningTable::load).unwrap_or_default();
        let (_workspace, _count_mismatches) = (workspace, count_mismatches);
        Ok(Self::Lt(Box::new(Lt { gemm, table, path, _workspace, _count_mismatches })))
    }

    /// Whether there are products of E4M3 with a scale per row, for a model of this dtype.
    pub(super) fn has_fp8(&self, dtype: DType) -> bool {
        let Self::Lt(lt) = self else { return true };
        // A layer as models have them. What cuBLASLt lacks it lacks for every shape.
        let input = MatmulInput::Fp8(dtype);
        let shape = MatmulShape { n: 4096, k: 4096, input, output: dtype, bias: false };
        lt.gemm.has(key(shape))
    }

    /// The bits of the references, by the shape of the product; None on the shim.
    pub(super) fn references(&self) -> Option<BTreeMap<String, String>> {
        match self {
            Self::Lt(lt) => Some(lt.gemm.references()),
            Self::Host(_) => None,
        }
    }

    pub(super) fn prepare(&mut self, shape: MatmulShape, max_rows: usize) -> Result<(), CudaError> {
        let lt = match self {
            Self::Lt(lt) => lt,
            Self::Host(prepared) => {
                let rows = prepared.entry(shape).or_default();
                *rows = padded_rows(max_rows).max(*rows);
                return Ok(());
            }
        };
        lt.gemm.prepare(key(shape), max_rows, &mut lt.table).map_err(failed)?;
        if let Some(path) = &lt.path {
            // A table that cannot be kept is made again next time.
            let _ = lt.table.save(path);
        }
        Ok(())
    }

    pub(super) fn run(
        &mut self,
        driver: &Driver,
        (shape, num_rows): (MatmulShape, usize),
        matmul: &Matmul,
    ) -> Result<(), CudaError> {
        match self {
            Self::Host(prepared) => {
                let Driver::Host(driver) = driver else {
                    panic!("the shim's products are its own")
                };
                if prepared.get(&shape).is_none_or(|&rows| rows < num_rows) {
                    return Err(failed(GemmError::NotPrepared { key: key(shape), rows: num_rows }));
                }
                let matmul = *matmul;
                // SAFETY: the shim's memory is the host's; the op has checked the shapes, and what
                // is recorded is replayed while its operands live.
                let work = move || unsafe { on_host(shape, num_rows, &matmul) };
                driver.run(|| format!("{num_rows} rows of {shape:?}, {matmul:?}"), Box::new(work));
            }
            Self::Lt(lt) => {
                let operands = Operands {
                    x: matmul.x.0,
                    w: matmul.weight.0,
                    bias: matmul.bias.map(|bias| bias.0),
                    scales: matmul.scales.map(|(x, w)| (x.0, w.0)),
                    out: matmul.out.0,
                };
                // SAFETY: the op has checked the shapes, and its tensors have room for the rows
                // that they are padded to; all live as long as the model.
                let queued = unsafe { lt.gemm.matmul(&key(shape), num_rows, &operands) };
                queued.map_err(failed)?;
            }
        }
        Ok(())
    }
}

fn failed(error: GemmError) -> CudaError {
    CudaError::new("cublasLtMatmul", "", error.to_string(), "")
}

fn key(shape: MatmulShape) -> GemmKey {
    let of = |dtype: DType| match dtype {
        DType::Float32 => GemmType::F32,
        DType::BFloat16 => GemmType::Bf16,
        DType::Float16 => GemmType::F16,
    };
    let input = match shape.input {
        MatmulInput::Plain(dtype) => of(dtype),
        MatmulInput::Fp8(_) => GemmType::Fp8E4m3,
    };
    GemmKey { n: shape.n, k: shape.k, input, output: of(shape.output), bias: shape.bias }
}

/// The sum over k upward with one f32 accumulator.
///
/// # Safety
/// All operands are in the host's memory and as large as the shape says.
unsafe fn on_host(shape: MatmulShape, num_rows: usize, matmul: &Matmul) {
    let MatmulShape { n, k, .. } = shape;
    let model_dtype = match shape.input {
        MatmulInput::Plain(dtype) | MatmulInput::Fp8(dtype) => dtype,
    };
    let widen = |ptr: DevicePtr, row: usize| -> Vec<f32> {
        // SAFETY: the caller's promise.
        unsafe {
            match shape.input {
                MatmulInput::Plain(dtype) => {
                    (row * k..(row + 1) * k).map(|i| read(ptr, dtype, i)).collect()
                }
                MatmulInput::Fp8(_) => {
                    let bytes = std::slice::from_raw_parts((ptr.0 as *const u8).add(row * k), k);
                    bytes.iter().map(|&bits| e4m3(bits)).collect()
                }
            }
        }
    };
    let rows: Vec<Vec<f32>> = (0..num_rows).map(|row| widen(matmul.x, row)).collect();
    for column in 0..n {
        let weights = widen(matmul.weight, column);
        for (row, x) in rows.iter().enumerate() {
            let sum = dot(x, &weights);
            // SAFETY: the caller's promise.
            unsafe {
                let scale = matmul.scales.map_or(1.0, |(x, w)| {
                    read(x, DType::Float32, row) * read(w, DType::Float32, column)
                });
                let bias = matmul.bias.map_or(0.0, |bias| read(bias, model_dtype, column));
                write(matmul.out, shape.output, row * n + column, sum * scale + bias);
            }
        }
    }
}

/// The sum of products, from the first one on, each fused.
fn dot(x: &[f32], weights: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has the instruction. Without it each product is a call of the C library.
        return unsafe { fused_dot(x, weights) };
    }
    x.iter().zip(weights).fold(0.0, |sum, (x, w)| x.mul_add(*w, sum))
}

/// # Safety
/// The CPU has FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
unsafe fn fused_dot(x: &[f32], weights: &[f32]) -> f32 {
    let mut sum = 0.0f32;
    for (x, w) in x.iter().zip(weights) {
        sum = x.mul_add(*w, sum);
    }
    sum
}

/// # Safety
/// Element `index` of `ptr` is in the host's memory.
unsafe fn read(ptr: DevicePtr, dtype: DType, index: usize) -> f32 {
    // SAFETY: the caller's promise; device memory is aligned for every type.
    unsafe {
        match dtype {
            DType::Float32 => *(ptr.0 as *const f32).add(index),
            DType::BFloat16 => (*(ptr.0 as *const bf16).add(index)).to_f32(),
            DType::Float16 => (*(ptr.0 as *const f16).add(index)).to_f32(),
        }
    }
}

/// # Safety
/// Element `index` of `ptr` is in the host's memory, and nobody else's.
unsafe fn write(ptr: DevicePtr, dtype: DType, index: usize, value: f32) {
    // SAFETY: the caller's promise; device memory is aligned for every type.
    unsafe {
        match dtype {
            DType::Float32 => *(ptr.0 as *mut f32).add(index) = value,
            DType::BFloat16 => *(ptr.0 as *mut bf16).add(index) = bf16::from_f32(value),
            DType::Float16 => *(ptr.0 as *mut f16).add(index) = f16::from_f32(value),
        }
    }
}

/// The value of an E4M3 number (Micikevicius et al., 2022): no infinities, 0x7F is NaN.
fn e4m3(bits: u8) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xF), f32::from(bits & 7));
    match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}
