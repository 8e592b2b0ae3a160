//! Runs of an algorithm over adversarial matrices: are its bits those of the reference, and how
//! long does it take.

use std::cell::Cell;
use std::ffi::c_void;

use cudarc::driver::sys as cu;

use super::Operands;
use super::adversary::{Adversary, Random, encode};
use super::buckets;
use super::error::{GemmError, cuda};
use super::handle::{DeviceBuffer, Timer};
use super::key::GemmKey;
use super::operation::{Backend, NO_REDUCTION, Operation, Rows, num_splits};
use super::table::Algorithm;
use crate::cuda::disk_cache::Hasher;

/// The reference is the heuristic's choice for this many rows.
pub(super) const REFERENCE_ROWS: usize = 2048;

/// The reference is computed with this many rows.
const COMPUTED_ROWS: usize = 64;

/// Rows of x repeat after this many: prime, so that each comes to stand at every place of a tile.
const PERIOD: usize = 61;

/// Rows of w repeat after this many.
const W_PERIOD: usize = 256;

/// Launches go round copies of w of this many bytes in all, more than an L2 cache holds.
const W_BYTES: usize = 160 << 20;

/// The matrices of a GEMM's trials and what is known from them.
pub(super) struct Trial<'a> {
    pub backend: &'a Backend,
    pub operation: Operation,
    /// Most rows that it has matrices for.
    pub max_rows: usize,
    timer: Timer,
    pub operands: Operands,
    w_bytes: usize,
    num_w: usize,
    num_launches: Cell<usize>,
    pub reference_algorithm: Algorithm,
    /// (PERIOD, n)
    reference: DeviceBuffer,
    out: DeviceBuffer,
    /// One word.
    num_mismatches: DeviceBuffer,
    /// Buffers that `operands` points at.
    _inputs: [DeviceBuffer; 5],
}

impl<'a> Trial<'a> {
    /// Matrices for launches of up to `max_rows` rows, and the reference.
    pub(super) fn new(
        backend: &'a Backend,
        key: GemmKey,
        max_rows: usize,
    ) -> Result<Self, GemmError> {
        let stream = backend.stream;
        let max_rows = max_rows.max(buckets::MAX_PADDING);
        let data = Adversary::new(PERIOD, W_PERIOD.min(key.n), key.k, key.input);
        let (bias, x_scales, w_scales) = vectors(&key);
        let w_bytes = key.n * key.k * key.input.bytes();
        let num_w = W_BYTES.div_ceil(w_bytes).clamp(1, 64);
        let x_bytes = max_rows * key.k * key.input.bytes();
        let inputs = [
            DeviceBuffer::repeat(&data.x, x_bytes, stream)?,
            DeviceBuffer::repeat(&data.w, w_bytes * num_w, stream)?,
            DeviceBuffer::repeat(&bias, bias.len(), stream)?,
            DeviceBuffer::repeat(&x_scales, max_rows * size_of::<f32>(), stream)?,
            DeviceBuffer::repeat(&w_scales, w_scales.len(), stream)?,
        ];
        let row_bytes = key.n * key.output.bytes();
        let out = DeviceBuffer::new(max_rows * row_bytes)?;
        let operands = Operands {
            x: inputs[0].address,
            w: inputs[1].address,
            bias: Some(inputs[2].address),
            scales: Some((inputs[3].address, inputs[4].address)),
            out: out.address,
        };
        let operation = Operation::new(key)?;
        operation.bind(&operands)?;
        let mut trial = Self {
            backend,
            operation,
            max_rows,
            timer: Timer::new()?,
            operands,
            w_bytes,
            num_w,
            num_launches: Cell::new(0),
            reference_algorithm: Algorithm::default(),
            reference: DeviceBuffer::new(PERIOD * row_bytes)?,
            out,
            num_mismatches: DeviceBuffer::new(size_of::<u32>())?,
            _inputs: inputs,
        };
        trial.compute_reference(PERIOD * row_bytes)?;
        Ok(trial)
    }

    fn compute_reference(&mut self, bytes: usize) -> Result<(), GemmError> {
        let Self { backend, operation, .. } = self;
        let rows = operation.rows(COMPUTED_ROWS)?;
        let offered =
            operation.heuristic(backend, &operation.rows(REFERENCE_ROWS)?, NO_REDUCTION)?;
        let usable = |algorithm: &&Algorithm| {
            num_splits(algorithm).is_ok_and(|splits| splits <= 1)
                && operation.accepts(backend, &rows, algorithm)
        };
        let missing = GemmError::NoAlgorithm { key: operation.key, rows: REFERENCE_ROWS };
        self.reference_algorithm = *offered.iter().find(usable).ok_or(missing)?;
        self.launch(&rows, 0, &self.reference_algorithm)?;
        // SAFETY: `out` has room for more rows than `reference`.
        cuda("cuMemcpyDtoDAsync", unsafe {
            let (to, from) = (self.reference.address, self.out.address);
            cu::cuMemcpyDtoDAsync_v2(to, from, bytes, self.backend.stream)
        })
    }

    /// A hash of the reference's bits.
    pub(super) fn reference_hash(&self) -> Result<String, GemmError> {
        let key = &self.operation.key;
        let bytes = PERIOD * key.n * key.output.bytes();
        let bits = self.reference.read(bytes, self.backend.stream)?;
        let mut hasher = Hasher::default();
        hasher.field(&bits);
        Ok(format!("{:032x}", hasher.finish()))
    }

    /// A first look at an algorithm's time. None: it does not run here.
    pub(super) fn first_micros(
        &self,
        rows: &Rows,
        algorithm: &Algorithm,
    ) -> Result<Option<f64>, GemmError> {
        let does_run = self.operation.accepts(self.backend, rows, algorithm)
            && self.launch(rows, 0, algorithm).is_ok();
        // The larger w, the longer a launch takes and the fewer do.
        let count = self.num_w.min(4);
        does_run.then(|| self.time(count, rows, algorithm)).transpose()
    }

    /// Microseconds of a launch, over so many launches as take about 300 of them.
    pub(super) fn micros(
        &self,
        rows: &Rows,
        algorithm: &Algorithm,
        about: f64,
    ) -> Result<f64, GemmError> {
        self.time((300.0 / about.max(1.0)).clamp(1.0, 20.0) as usize, rows, algorithm)
    }

    fn time(&self, count: usize, rows: &Rows, algorithm: &Algorithm) -> Result<f64, GemmError> {
        let work = || self.launch_times(count, rows, algorithm);
        Ok(self.timer.time(self.backend.stream, work)? / count as f64)
    }

    fn launch_times(
        &self,
        count: usize,
        rows: &Rows,
        algorithm: &Algorithm,
    ) -> Result<(), GemmError> {
        for _ in 0..count {
            self.num_launches.set(self.num_launches.get() + 1);
            self.launch(rows, self.num_launches.get() % self.num_w, algorithm)?;
        }
        Ok(())
    }

    fn launch(&self, rows: &Rows, copy: usize, algorithm: &Algorithm) -> Result<(), GemmError> {
        let w = self.operands.w + (copy * self.w_bytes) as u64;
        let operands = Operands { w, ..self.operands };
        // SAFETY: the buffers of this trial, large enough for every bucket it is asked about.
        unsafe { self.operation.launch(self.backend, rows, &operands, algorithm) }
    }

    /// Whether the algorithm runs here and every element of `out` becomes the reference's.
    pub(super) fn matches(&self, rows: &Rows, algorithm: &Algorithm) -> Result<bool, GemmError> {
        if !self.operation.accepts(self.backend, rows, algorithm) {
            return Ok(false);
        }
        let stream = self.backend.stream;
        self.out.fill(0xFF, stream)?;
        self.launch(rows, 0, algorithm)?;
        self.num_mismatches.fill(0, stream)?;
        let key = &self.operation.key;
        let mut addresses = [self.out.address, self.reference.address, self.num_mismatches.address];
        let [out, reference, count] = addresses.each_mut().map(|a| (&raw mut *a).cast::<c_void>());
        let mut width = (key.n * key.output.bytes() / size_of::<u16>()) as u32;
        let mut period = PERIOD as u32;
        let (width, period) = ((&raw mut width).cast(), (&raw mut period).cast());
        let mut arguments = [out, reference, width, period, count];
        // SAFETY: the kernel's parameters, over rows that both buffers hold.
        cuda("cuLaunchKernel", unsafe {
            cu::cuLaunchKernel(
                self.backend.count_mismatches,
                rows.launched as u32,
                1,
                1,
                256,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })?;
        let count = self.num_mismatches.read(size_of::<u32>(), stream)?;
        Ok(count.iter().all(|&byte| byte == 0))
    }
}

/// Bias (n), scales of x (PERIOD) and of w (n).
fn vectors(key: &GemmKey) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let mut random = Random(key.n as u64);
    let mut bias = Vec::new();
    (0..key.n).for_each(|_| encode(random.value(0), key.output, &mut bias));
    let mut scales = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|_| (random.value(0).abs() + 0.25).to_le_bytes()).collect()
    };
    (bias, scales(PERIOD), scales(key.n))
}
