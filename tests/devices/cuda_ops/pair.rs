//! The two devices, what lies on them, and how outputs are compared.

use half::{bf16, f16};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, KvCacheDType, ParallelConfig, Quantization,
    ShimGpu,
};
use vllm_batch::engine::base::isa::Isa;
use vllm_batch::engine::base::layers::QkvHeads;
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::device::simd::InstructionSet;
use vllm_batch::engine::device::{Device, Precision, Tensor, open};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{StepInputs, StepLimits};

use crate::gpu;

const ALL: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];

/// Arithmetic in f32 in another order: relative to 1 + the value.
pub const CLOSE: f32 = 5e-6;

/// A GPU that computes in one dtype, and the CPU.
pub struct Pair {
    pub gpu: Device,
    pub cpu: Device,
    pub dtype: DType,
}

/// Runs a test in every dtype; not at all where there is neither a GPU nor its shim.
pub fn in_every_dtype(seed: u64, test: impl Fn(&Pair)) {
    for dtype in ALL {
        if let Some(pair) = Pair::open(dtype, seed + dtype.size_bytes() as u64, None) {
            test(&pair);
        }
    }
}

/// One thread of the CPU, by its widest instructions that round no more than a GPU does: tiles of
/// AMX take queries and weights of attention as bf16.
fn cpu() -> Device {
    let mut sets = Isa::all_available().into_iter();
    let isa = sets.find(|isa| isa.kernel_set() != Isa::Amx.kernel_set());
    Device::cpu_with_isa(1, isa.expect("portable kernels run anywhere"))
}

impl Pair {
    pub fn open(dtype: DType, seed: u64, quantization: Option<Quantization>) -> Option<Self> {
        Self::open_on(dtype, DeviceConfig { quantization, ..gpu::device(seed)? })
    }

    /// With the shim in place of this GPU. None: a real one is tested, or there is no shim.
    pub fn open_as(dtype: DType, seed: u64, stands_for: ShimGpu) -> Option<Self> {
        Self::open_on(dtype, gpu::device_as(seed, stands_for)?)
    }

    /// As `open_as`, with a cache of this type.
    pub fn open_with(
        dtype: DType,
        kv_cache_dtype: KvCacheDType,
        (seed, stands_for): (u64, ShimGpu),
    ) -> Option<Self> {
        Self::open_of(dtype, kv_cache_dtype, gpu::device_as(seed, stands_for)?)
    }

    /// On this device.
    pub fn open_on(dtype: DType, device: DeviceConfig) -> Option<Self> {
        Self::open_of(dtype, KvCacheDType::Auto, device)
    }

    fn open_of(dtype: DType, kv_cache_dtype: KvCacheDType, device: DeviceConfig) -> Option<Self> {
        // Tests run side by side: more threads would only wait for each other.
        let parallel = ParallelConfig { num_threads: Some(1), ..ParallelConfig::default() };
        let cache = CacheConfig { kv_cache_dtype, ..CacheConfig::default() };
        let config = EngineConfig { device, parallel, cache, ..EngineConfig::default() };
        let (gpu, _) = open(&config, dtype, None).expect("a device for tests");
        Some(Self { gpu, cpu: cpu(), dtype })
    }

    /// Made-up values in [-scale, scale] that both devices hold exactly.
    pub fn values(&self, num_rows: usize, width: usize, seed: u64, scale: f32) -> Rows {
        let values = SourceMatrix::random(num_rows, width, seed, scale).to_vec();
        let values = values.into_iter().map(|value| rounded(value, self.dtype)).collect();
        Rows { values, width }
    }

    /// The same thing on both devices.
    pub fn on_both<T>(&self, make: impl Fn(&Device) -> T) -> Both<T> {
        let both = Both { gpu: make(&self.gpu), cpu: make(&self.cpu) };
        self.gpu.finish_loading().expect("weights arrive");
        both
    }

    /// Runs `op`, which is given a device and the rows that it shall compute, over `num_rows` rows
    /// on both devices. Outputs have a row per row, and may differ by `slack` and by one rounding.
    /// Then it computes rows alone, in another order and more than once, on the GPU: same bits.
    pub fn check(
        &self,
        what: &str,
        num_rows: usize,
        slack: f32,
        op: &dyn Fn(&Device, &[usize]) -> Vec<Tensor>,
    ) {
        let what = format!("{what}, {num_rows} rows, {}", self.dtype.name());
        let all: Vec<usize> = (0..num_rows).collect();
        let expected = op(&self.cpu, &all);
        let got = op(&self.gpu, &all);
        assert_eq!(got.len(), expected.len(), "{what}");
        let mut bits = Vec::new();
        for (got, expected) in got.iter().zip(&expected) {
            let values = self.gpu.read(got).expect("the op ran");
            let bound = Bound { dtype: got.dtype(), slack };
            bound.assert_close(&what, &values, expected.values(), got.width());
            bits.push((to_bits(&values), got.width()));
        }
        for rows in selections(num_rows) {
            for (output, (all, width)) in op(&self.gpu, &rows).iter().zip(&bits) {
                let values = to_bits(&self.gpu.read(output).expect("the op ran"));
                for (got, row) in values.chunks(*width).zip(&rows) {
                    let expected = &all[row * width..(row + 1) * width];
                    assert!(got == expected, "{what}: row {row} differs among {rows:?}");
                }
            }
        }
    }
}

/// The rows alone, backwards, turned, repeated.
fn selections(num_rows: usize) -> Vec<Vec<usize>> {
    let (last, middle) = (num_rows - 1, num_rows / 2);
    if num_rows == 1 {
        return vec![vec![0, 0, 0]];
    }
    let turned = (middle..num_rows).chain(0..middle).collect();
    vec![vec![0], vec![last], (0..num_rows).rev().collect(), turned, vec![last, middle, middle]]
}

/// One thing per device.
pub struct Both<T> {
    gpu: T,
    cpu: T,
}

impl<T> Both<T> {
    pub fn of(&self, device: &Device) -> &T {
        match device {
            Device::Cpu(_) => &self.cpu,
            Device::Cuda(_) => &self.gpu,
        }
    }
}

/// Rows of values, from which tensors are made.
pub struct Rows {
    pub values: Vec<f32>,
    pub width: usize,
}

impl Rows {
    /// Some of the rows on a device.
    pub fn on(&self, device: &Device, rows: &[usize], precision: Precision) -> Tensor {
        let row = |row: &usize| &self.values[row * self.width..(row + 1) * self.width];
        let values: Vec<f32> = rows.iter().flat_map(row).copied().collect();
        device.upload_as(&values, self.width, precision).expect("memory")
    }

    pub fn activations(&self, device: &Device, rows: &[usize]) -> Tensor {
        self.on(device, rows, Precision::Activation)
    }
}

/// An output of this many rows, which an op sets.
pub fn output(device: &Device, num_rows: usize, width: usize, precision: Precision) -> Tensor {
    let mut out = device.tensor(num_rows, width, precision).expect("memory");
    out.set_num_rows(num_rows);
    out
}

/// What a step of a batch that has no sequences needs: rows and their ids.
pub fn step_inputs(device: &Device, batch: &Batch) -> StepInputs {
    let limits = StepLimits {
        max_num_tokens: batch.num_tokens().max(1),
        max_num_seqs: 1,
        max_num_logits: batch.logits_indices.len().max(1),
        max_model_len: 1,
        block_size: 16,
        num_q_per_kv: 1,
        heads: QkvHeads { num_heads: 1, num_kv_heads: 1, head_dim: 16 },
        attends_to_all: false,
        has_states: false,
        has_axes: !batch.axes.is_empty(),
        has_whole_images: false,
        has_choices: false,
    };
    StepInputs::new(device, limits).expect("memory")
}

pub fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::Float32 => value,
        DType::BFloat16 => bf16::from_f32(value).to_f32(),
        DType::Float16 => f16::from_f32(value).to_f32(),
    }
}

pub fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// How far an output may be from the CPU's, which is not rounded.
pub struct Bound {
    /// Of the output.
    pub dtype: DType,
    /// What arithmetic may differ by, relative to 1 + the value.
    pub slack: f32,
}

impl Bound {
    fn of(&self, value: f32) -> f32 {
        // Half of the last place of a value just above a power of two.
        let rounding = match self.dtype {
            DType::Float32 => 0.0,
            DType::BFloat16 => 0.5f32.powi(8),
            DType::Float16 => 0.5f32.powi(11),
        };
        rounding * value.abs() + self.slack * (1.0 + value.abs())
    }

    #[track_caller]
    pub fn assert_close(&self, what: &str, got: &[f32], expected: &[f32], width: usize) {
        assert_eq!(got.len(), expected.len(), "{what}");
        for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
            let (row, column) = (index / width, index % width);
            let is_close = (got - expected).abs() <= self.of(*expected);
            assert!(is_close, "{what}: ({row}, {column}) is {got}, on the CPU {expected}");
        }
    }
}
