//! `Gpu`: a CUDA device as ops see it. Launches by name, matrix products, uploads of a step, CUDA
//! graphs.
//!
//! Ops cannot fail. What the driver reports is kept here, and nothing is queued after it; the
//! executor asks once a step.

mod graphs;
mod group;
mod kernel;
mod kernel_times;
mod matmul;
mod readback;
mod scratch;
mod uploads;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use group::{Group, Rank};
pub use kernel::{Defines, Kernel};
pub use matmul::{Matmul, MatmulInput, MatmulShape};
pub use readback::Readback;

use super::cuda::driver::DEFAULT_SMEM_BYTES;
use super::cuda::gemm;
use super::cuda::{
    Args, CudaError, DeviceBuffer, DevicePtr, Driver, Function, PinnedBuffer, Plain, Properties,
    Runtime, Staging,
};
use super::kernel_set::KernelSet;
use super::limits::Limits;
use super::op_times::{Op, OpTimes, Work};
use super::tensor::SharedMut;
use super::thread_pool::ThreadPool;
use super::{Precision, Tensor};
use graphs::Graphs;
use kernel_times::KernelTimes;
use matmul::MatmulEngine;
use readback::Readbacks;
use scratch::Scratch;
use uploads::{Packed, Uploads};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, KvCacheDType, Quantization};

/// Settings of a `Gpu`.
#[derive(Clone, Debug)]
pub struct GpuConfig {
    /// Type of weights, activations and KV cache.
    pub dtype: DType,
    /// Whether linear layers are narrowed.
    pub quantization: Option<Quantization>,
    /// Type of K and V.
    pub kv_cache_dtype: KvCacheDType,
    /// No CUDA graphs.
    pub enforce_eager: bool,
    /// Where the choice of matrix algorithms is kept; None: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Host threads, for sampling that the GPU does not do.
    pub num_threads: Option<usize>,
}

/// A CUDA device, or the CPU shim that runs its kernels in tests.
pub struct Gpu {
    runtime: Runtime,
    config: GpuConfig,
    functions: Mutex<HashMap<Kernel, LoadedKernel>>,
    matmul: Mutex<MatmulEngine>,
    uploads: Mutex<Uploads>,
    /// While weights are loaded.
    staging: Mutex<Option<Staging>>,
    graphs: Mutex<Graphs>,
    kernel_times: KernelTimes,
    scratch: Mutex<Scratch>,
    sampled: OnceLock<Sampled>,
    rank: OnceLock<Rank>,
    /// Whether weights are held as codes.
    has_codes: AtomicBool,
    /// Whether prefill is `PrefillKernel::Wgmma`.
    has_wgmma: AtomicBool,
    failure: Mutex<Option<CudaError>>,
    pub(super) pool: ThreadPool,
}

/// The tokens of the last step that sampled, and their way to the host.
struct Sampled {
    results: DeviceBuffer,
    readbacks: Mutex<Readbacks>,
}

struct LoadedKernel {
    function: Function,
    /// Dynamic shared memory that it may have.
    max_smem: usize,
}

/// Bytes of weights that one thread copies at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Words that a block of `copy_segments` takes, and its threads; blocks of one segment at most.
const WORDS_PER_BLOCK: u64 = 2048;
const SEGMENT_BLOCK: u32 = 128;
const MAX_SEGMENT_BLOCKS: u64 = 32;
/// Values that a block takes in kernels over runs of elements.
const VALUES_PER_BLOCK: usize = 2048;
const BLOCK: u32 = 256;

/// cuBLASLt has the scaling on some generations only, whatever the GPU's instructions.
fn no_fp8(properties: &Properties, cublas_version: usize) -> String {
    let ((major, minor), name) = (properties.compute_capability, &properties.name);
    format!(
        "`settings.quantization` fp8 needs matrix products of E4M3 with a scale per row, and cuBLASLt \
         {cublas_version} has none for {name} (compute capability {major}.{minor}): leave it out"
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Gpu").field(&self.properties().name).finish()
    }
}

impl Gpu {
    /// A device that computes in `config.dtype`.
    ///
    /// # Errors
    /// cuBLASLt does not start, or pinned memory is short.
    pub fn new(driver: Driver, config: GpuConfig) -> Result<Self, EngineError> {
        let runtime = Runtime::new(driver);
        let matmul = MatmulEngine::new(&runtime, config.cache_dir.as_deref())?;
        if config.quantization == Some(Quantization::Fp8) && !matmul.has_fp8(config.dtype) {
            let properties = runtime.driver().properties();
            return Err(EngineError::Config(no_fp8(properties, gemm::cublas_version())));
        }
        let uploads = Uploads::new(&runtime)?;
        let pool = super::open::threads(config.num_threads)?;
        Ok(Self {
            runtime,
            config,
            functions: Mutex::default(),
            matmul: Mutex::new(matmul),
            uploads: Mutex::new(uploads),
            staging: Mutex::default(),
            graphs: Mutex::default(),
            kernel_times: KernelTimes::default(),
            scratch: Mutex::default(),
            sampled: OnceLock::new(),
            rank: OnceLock::new(),
            has_codes: AtomicBool::new(false),
            has_wgmma: AtomicBool::new(false),
            failure: Mutex::default(),
            pool,
        })
    }

    /// See `Device::use_on_this_thread`.
    pub(super) fn use_on_this_thread(&self) -> Result<(), EngineError> {
        Ok(self.runtime.driver().bind_to_thread()?)
    }

    /// Type of weights, activations and KV cache.
    pub fn dtype(&self) -> DType {
        self.config.dtype
    }

    /// Whether linear layers are narrowed.
    pub fn quantization(&self) -> Option<Quantization> {
        self.config.quantization
    }

    /// Type of K and V.
    pub fn kv_cache_dtype(&self) -> KvCacheDType {
        self.config.kv_cache_dtype
    }

    /// Properties of the device.
    pub fn properties(&self) -> &Properties {
        self.runtime.driver().properties()
    }

    /// Names the set of kernels, as [`Gpu::kernels`].
    pub fn kernel_set(&self) -> String {
        self.kernels().name()
    }

    /// The set of kernels. The versions of cuBLASLt and NVRTC are part of it, and the bits of
    /// matrix products, which two models of GPU of one generation may not share. To be asked once
    /// all products are prepared.
    pub fn kernels(&self) -> KernelSet {
        let (major, minor) = self.properties().compute_capability;
        let weights = match self.quantization() {
            Some(Quantization::Fp8) => "-fp8",
            None | Some(Quantization::Int8) => "",
        };
        let cache = match self.kv_cache_dtype() {
            KvCacheDType::Auto => "",
            KvCacheDType::Fp8 => "-kv8f16",
        };
        let ranks = self.rank().map(|rank| format!("-tp{}", rank.num_ranks()));
        let kind = match &**self.runtime.driver() {
            Driver::Cuda(driver) => {
                let lt = gemm::cublas_version();
                let nvrtc = driver.compiler().version_name();
                format!("cuda-sm{major}{minor}-lt{lt}-nvrtc{nvrtc}")
            }
            Driver::Host(_) => "cuda-shim".to_owned(),
        };
        KernelSet {
            products: lock(&self.matmul).references(),
            weights,
            has_codes: self.has_codes.load(Ordering::Relaxed),
            others: format!("{cache}{}", ranks.unwrap_or_default()),
            ..KernelSet::of_kind(kind)
        }
    }

    /// Notes that weights are held as codes, of which the kernel set's name tells from then on.
    pub fn compute_with_codes(&self) {
        self.has_codes.store(true, Ordering::Relaxed);
    }

    /// (free, total) bytes of the device's memory.
    ///
    /// # Errors
    /// The device failed.
    pub fn memory_info(&self) -> Result<(usize, usize), EngineError> {
        Ok(self.runtime.driver().memory_info()?)
    }

    /// Zeroed memory.
    ///
    /// # Errors
    /// There is not so much.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceBuffer, EngineError> {
        Ok(DeviceBuffer::zeroed(self.runtime.driver(), bytes.max(1))?)
    }

    /// Zeroed memory of the host that kernels read and write.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub(super) fn alloc_on_host(&self, bytes: usize) -> Result<PinnedBuffer, EngineError> {
        Ok(PinnedBuffer::new(self.runtime.driver(), bytes)?)
    }

    /// An activation with room for `max_rows` rows and for what they are padded to.
    pub(super) fn tensor(
        &self,
        max_rows: usize,
        width: usize,
        precision: Precision,
    ) -> Result<Tensor, EngineError> {
        let rows = self.max_padded_rows(max_rows);
        let dtype = match precision {
            Precision::LinearInput(_) if self.quantization() == Some(Quantization::Fp8) => {
                let (buffer, scales) = (self.alloc(rows * width)?, self.alloc(rows * 4)?);
                return Ok(Tensor::on_gpu_in_fp8(buffer, scales, width));
            }
            Precision::Full => DType::Float32,
            Precision::Activation | Precision::LinearInput(_) | Precision::Attended(_) => {
                self.config.dtype
            }
        };
        Ok(Tensor::on_gpu(self.alloc(rows * width * dtype.size_bytes())?, dtype, width))
    }

    /// Rows that a step of `num_rows` runs with: a few sizes, for which there are algorithms and
    /// CUDA graphs.
    pub fn padded_rows(&self, num_rows: usize) -> usize {
        matmul::launched_rows(num_rows)
    }

    /// Rows that buffers of steps of up to `max_rows` rows need.
    pub fn max_padded_rows(&self, max_rows: usize) -> usize {
        matmul::padded_rows(max_rows)
    }

    /// Queues a kernel.
    pub fn launch(
        &self,
        kernel: impl Into<Kernel>,
        grid: [u32; 2],
        (block, smem): (u32, usize),
        args: &mut Args,
    ) {
        let kernel = kernel.into();
        if grid.contains(&0) {
            return;
        }
        self.attempt(|| {
            let mut functions = lock(&self.functions);
            let loaded = match functions.entry(kernel) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(self.load(kernel)?)
                }
            };
            if smem > loaded.max_smem {
                self.runtime.driver().set_max_dynamic_smem(&loaded.function, smem)?;
                loaded.max_smem = smem;
            }
            let what = || (Op::new(kernel.entry), Work::default());
            self.kernel_times.timed(self.runtime.driver(), what, || {
                self.runtime.launch(&loaded.function, [grid[0], grid[1], 1], block, smem, args)
            })
        });
    }

    fn load(&self, kernel: Kernel) -> Result<LoadedKernel, CudaError> {
        let defines = kernel.defines(self.config.dtype, self.kv_cache_dtype());
        let defines: Vec<_> = defines.iter().map(|(name, value)| (*name, &value[..])).collect();
        let function = self.runtime.function(kernel.source, &defines, kernel.entry)?;
        Ok(LoadedKernel { function, max_smem: DEFAULT_SMEM_BYTES })
    }

    /// Queues a kernel over a run of values.
    pub fn launch_over(&self, num_values: usize, kernel: impl Into<Kernel>, args: &mut Args) {
        let blocks = num_values.div_ceil(VALUES_PER_BLOCK) as u32;
        self.launch(kernel, [blocks, 1], (BLOCK, 0), args);
    }

    /// Fills memory with zeros.
    pub fn fill_zero(&self, ptr: DevicePtr, bytes: usize) {
        self.attempt(|| self.runtime.driver().memset(ptr, 0, bytes));
    }

    /// Copies memory of the GPU, in order with the launches.
    pub fn copy(&self, from: DevicePtr, to: DevicePtr, bytes: usize) {
        self.attempt(|| self.runtime.driver().copy_device_to_device(to, from, bytes));
    }

    /// Copies values to the start of a buffer, in order with the launches; they may be reused at
    /// once.
    pub fn upload(&self, buffer: &DeviceBuffer, bytes: &[u8]) {
        self.upload_at(buffer, 0, bytes);
    }

    /// As `upload`, to the byte `start` of the buffer.
    pub fn upload_at(&self, buffer: &DeviceBuffer, start: usize, bytes: &[u8]) {
        let to = (buffer, start);
        let is_full = lock(&self.uploads).is_full_for(to, bytes.len());
        if is_full {
            self.copy_packed();
            self.pack_uploads();
        }
        self.keep_failure(|| lock(&self.uploads).upload(self.runtime.driver(), to, bytes));
    }

    /// Uploads that follow are copied as one, when something else is queued. Their buffers are not
    /// to be freed before.
    pub fn pack_uploads(&self) {
        lock(&self.uploads).pack();
    }

    fn copy_packed(&self) {
        let packed = lock(&self.uploads).take_packed();
        if let Some(Packed { list, num_segments, max_words }) = packed {
            let blocks = max_words.div_ceil(WORDS_PER_BLOCK).min(MAX_SEGMENT_BLOCKS);
            let grid = [num_segments as u32, blocks as u32];
            let kernel = ("copy_segments", "copy_segments");
            self.launch(kernel, grid, (SEGMENT_BLOCK, 0), Args::new().ptr(list));
        }
    }

    /// Copies values from a buffer, after all that was queued, and waits for it.
    pub fn download<T: Plain + Default>(&self, buffer: DevicePtr, values: &mut [T]) {
        self.attempt(|| {
            let bytes = super::cuda::memory::bytes_of_mut(values);
            self.runtime.driver().copy_from_device(bytes, buffer)
        });
    }

    /// Copies `bytes` bytes of weights that `fill(offset, piece)` writes on all host threads,
    /// straight from where they are to memory that the device reads. Offsets are multiples of 256.
    ///
    /// # Errors
    /// The device failed.
    pub fn upload_weights(
        &self,
        to: DevicePtr,
        bytes: usize,
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<(), EngineError> {
        let mut staging = lock(&self.staging);
        if staging.is_none() {
            *staging = Some(Staging::new(self.runtime.driver())?);
        }
        let staging = staging.as_mut().expect("just made");
        staging.upload::<CudaError>(to, bytes, |offset, chunk| {
            let (len, chunk) = (chunk.len(), SharedMut::new(chunk));
            self.pool.run(len.div_ceil(PIECE_BYTES), &|_, index| {
                let start = index * PIECE_BYTES;
                // SAFETY: each piece belongs to one item.
                let piece = unsafe { chunk.slice(start, PIECE_BYTES.min(len - start)) };
                fill(offset + start, piece);
            });
            Ok(())
        })?;
        Ok(())
    }

    /// Waits for the weights that are on their way, so that a kernel may read them.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_for_weights(&self) -> Result<(), EngineError> {
        if let Some(staging) = lock(&self.staging).as_mut() {
            staging.finish()?;
        }
        Ok(())
    }

    /// Ends loading: waits for the copies and gives their buffers back.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish_loading(&self) -> Result<(), EngineError> {
        if let Some(mut staging) = lock(&self.staging).take() {
            staging.finish()?;
        }
        self.synchronize()
    }

    /// Waits for all that was queued.
    ///
    /// # Errors
    /// Something of it failed, or was refused before.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        self.copy_packed();
        self.check()?;
        Ok(self.runtime.synchronize()?)
    }

    /// Returns the first failure since the last call.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), EngineError> {
        lock(&self.failure).take().map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Runs what queues work, after the packed uploads.
    fn attempt(&self, queue: impl FnOnce() -> Result<(), CudaError>) {
        self.copy_packed();
        self.keep_failure(queue);
    }

    /// Runs what queues work, unless something failed before; keeps its error.
    fn keep_failure(&self, queue: impl FnOnce() -> Result<(), CudaError>) {
        if lock(&self.failure).is_some() {
            return;
        }
        if let Err(error) = queue() {
            lock(&self.failure).get_or_insert(error);
        }
    }

    /// Runs `queue`, which queues the same launches whenever the key is the same, or replays them.
    pub(super) fn record_or_replay(&self, key: Option<usize>, queue: &mut dyn FnMut()) {
        let driver = self.runtime.driver();
        let key = key.filter(|_| !self.config.enforce_eager && !self.kernel_times.is_on());
        let Some(key) = key else { return queue() };
        let mut graphs = lock(&self.graphs);
        self.attempt(|| {
            let mut queue = || {
                queue();
                lock(&self.failure).take().map_or(Ok(()), Err)
            };
            graphs.run(driver, key, &mut queue)
        });
    }

    /// Chooses algorithms for products of this shape.
    ///
    /// # Errors
    /// There is none that gives the same bits for every number of rows.
    pub fn prepare_matmul(&self, shape: MatmulShape, max_rows: usize) -> Result<(), EngineError> {
        Ok(lock(&self.matmul).prepare(shape, max_rows)?)
    }

    /// Queues out = x Wᵀ + b over `num_rows` rows, and the rows that they are padded to.
    pub fn matmul(&self, shape: MatmulShape, num_rows: usize, matmul: &Matmul) {
        let driver = self.runtime.driver();
        let what = || {
            let op = Op { shape: Some((shape.n, shape.k)), ..Op::new("linear") };
            (op, shape.work(num_rows))
        };
        self.attempt(|| {
            self.kernel_times
                .timed(driver, what, || lock(&self.matmul).run(driver, (shape, num_rows), matmul))
        });
    }

    /// Times kernels and products from now on, against these limits.
    pub(super) fn start_kernel_times(&self, limits: Limits) {
        self.kernel_times.start(limits);
    }

    /// Times since the start; `None`: nothing was timed.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn finish_kernel_times(&self) -> Result<Option<OpTimes>, EngineError> {
        self.check()?;
        Ok(self.kernel_times.finish(self.runtime.driver())?)
    }

    /// Makes room for the results of sampling, logprobs included, `bytes` in all.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn reserve_sampled(&self, bytes: usize) -> Result<(), EngineError> {
        if self.sampled.get().is_some_and(|sampled| sampled.results.bytes() >= bytes) {
            // Of another engine over this device, which samples when this one does not.
            return Ok(());
        }
        let readbacks = Mutex::new(Readbacks::new(&self.runtime, bytes)?);
        let sampled = Sampled { results: self.alloc(bytes)?, readbacks };
        self.sampled.set(sampled).map_err(|_| EngineError::Device("reserved twice".to_owned()))
    }

    fn sampled(&self) -> &Sampled {
        self.sampled.get().expect("reserved with the sampler")
    }

    /// Where results of sampling are, until the next step's.
    pub fn sampled_ptr(&self) -> DevicePtr {
        self.sampled().results.ptr()
    }

    /// Starts to copy the first `num_bytes` of them to the host, beside what is queued next.
    ///
    /// # Errors
    /// The device failed, now or in what was queued before.
    pub fn read_sampled(&self, num_bytes: usize) -> Result<Readback, EngineError> {
        self.check()?;
        let sampled = self.sampled();
        let mut readbacks = lock(&sampled.readbacks);
        Ok(readbacks.start(self.runtime.driver(), sampled.results.ptr(), num_bytes)?)
    }

    /// Waits for that copy, and takes `values` from its byte `start` on.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish_read<T: Plain + Default>(
        &self,
        readback: Readback,
        start: usize,
        values: &mut [T],
    ) -> Result<(), EngineError> {
        let readbacks = lock(&self.sampled().readbacks);
        let bytes = readbacks.finish(self.runtime.driver(), readback)?;
        let values = super::cuda::memory::bytes_of_mut(values);
        values.copy_from_slice(&bytes[start..start + values.len()]);
        Ok(())
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        EngineError::Device(error.to_string())
    }
}

impl Args {
    /// A tensor's values.
    pub fn tensor(&mut self, tensor: &Tensor) -> &mut Self {
        self.ptr(tensor.device_ptr())
    }

    /// Dimensions, each as a u32.
    pub fn dims<const N: usize>(&mut self, dims: [usize; N]) -> &mut Self {
        dims.into_iter().fold(self, |args, dim| args.u32(dim as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_without_products_of_fp8_is_named() {
        let properties = Properties {
            name: "NVIDIA L40S".to_owned(),
            compute_capability: (8, 9),
            num_sms: 142,
            max_smem_per_block_bytes: 99 << 10,
            max_launch_positions: None,
        };
        let text = no_fp8(&properties, 130_100);
        assert!(text.contains("cuBLASLt 130100 has none for NVIDIA L40S"), "{text}");
        assert!(text.contains("capability 8.9): leave it out"), "{text}");
    }
}
