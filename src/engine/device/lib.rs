//! Where memory is and what runs on it: CPUs with their vectors and threads, GPUs with their
//! kernels. Ops match on `Device`; nothing else names its variants. Knows no model.
//!
//! Read first: [`Device`], [`Tensor`], [`Gpu`].

#![warn(missing_docs, unreachable_pub)]

pub mod cuda;
pub mod gpu;
mod kernel_set;
pub mod kv_cache;
pub mod limits;
pub mod memory;
pub mod narrow_inputs;
pub mod op_times;
mod open;
pub mod pages;
pub mod simd;
pub mod tensor;
pub mod thread_pool;

pub use cuda::memory::bytes_of;
pub use gpu::{Gpu, GpuConfig, Matmul, MatmulInput, MatmulShape};
pub use kernel_set::KernelSet;
pub use kv_cache::{CacheLayer, CacheLayerMut, KvCache, StateLayerMut};
pub use narrow_inputs::NarrowInputs;
pub use open::{
    KERNEL_SOURCES, WhyCpu, gpu_trouble, memory_of_gpu, num_gpus, open, open_host, why_cpu,
};
pub use tensor::{Precision, Rows, RowsMut, Tensor};

use std::sync::{Arc, Mutex};

use cuda::Plain;
use gpu::Group;
use limits::{GivenLimits, Limits};
use op_times::{Op, OpTimer, OpTimes, Timed, Work};
use pages::{Pages, SharedPages};
use simd::InstructionSet;
use simd::Isa;
use thread_pool::ThreadPool;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;

/// Rows of the MLP at a time on the CPU: its buffers are the widest, and rows are independent.
const CPU_BLOCK_ROWS: usize = 512;
/// Rows of an output layer over words at a time, where all tokens have an output.
const CPU_OUTPUT_ROWS: usize = 64;
const GPU_OUTPUT_ROWS: usize = 512;

/// A device that runs ops.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There is one of it.
pub enum Device {
    /// The machine's CPU.
    Cpu(Cpu),
    /// An NVIDIA GPU, or the CPU shim in its place.
    Cuda(Box<Gpu>),
}

/// The CPU: its threads and the widest instruction set that they have.
#[derive(Debug)]
pub struct Cpu {
    /// Threads that share every op.
    pub pool: ThreadPool,
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Whether linear layers are narrowed to int8.
    pub int8: bool,
    /// Inputs of a linear layer as its instructions take them; one layer runs at a time.
    pub narrow_inputs: Mutex<NarrowInputs>,
    /// Where weights lie.
    pub weight_pages: SharedPages,
    /// Times of its ops, when they are wanted.
    pub op_timer: OpTimer,
}

impl Cpu {
    fn new(pool: ThreadPool, isa: Isa) -> Self {
        let (narrow_inputs, op_timer) = (Mutex::default(), OpTimer::default());
        let weight_pages = SharedPages::default();
        Self { pool, isa, int8: false, narrow_inputs, weight_pages, op_timer }
    }

    /// `len` zeros for weights as they are loaded. With int8 they go when they are narrowed, and
    /// leave no gaps between those that stay.
    pub fn loaded_pages<E: Plain>(&self, len: usize) -> Pages<E> {
        if self.int8 { Pages::zeroed_huge(len) } else { self.weight_pages.zeroed(len) }
    }

    /// Whether linear layers in this type take their inputs as pairs of bf16.
    pub fn reads_pairs(&self, dtype: DType) -> bool {
        dtype == DType::BFloat16 && !self.int8 && self.isa.bf16_products().take_pairs()
    }
}

impl Device {
    /// The CPU with this many threads, None: one per physical core.
    pub fn cpu(num_threads: Option<usize>) -> Self {
        let num_threads = num_threads.unwrap_or_else(thread_pool::num_physical_cores);
        Device::Cpu(Cpu::new(ThreadPool::new(num_threads), Isa::detect()))
    }

    /// The CPU with a given instruction set: tests force every path on one machine.
    ///
    /// # Panics
    /// The machine does not have it, or refuses the threads.
    pub fn cpu_with_isa(num_threads: usize, isa: Isa) -> Self {
        Self::cpu_of(ThreadPool::new(num_threads), isa)
    }

    /// The CPU with threads that were started.
    ///
    /// # Panics
    /// The machine does not have the instructions.
    fn cpu_of(pool: ThreadPool, isa: Isa) -> Self {
        assert!(isa.is_available(), "this CPU has no {}", isa.name());
        Device::Cpu(Cpu::new(pool, isa))
    }

    /// The same CPU with linear layers narrowed to int8 (`LinearWeight::quantize`).
    ///
    /// # Panics
    /// It is a GPU.
    pub fn with_int8(self) -> Self {
        match self {
            Device::Cpu(cpu) => Device::Cpu(Cpu { int8: true, ..cpu }),
            Device::Cuda(_) => panic!("int8 is for the CPU"),
        }
    }

    /// Names the set of kernels in use: outputs are equal only within one set.
    pub fn kernel_set(&self) -> String {
        self.kernels().name()
    }

    /// The set of kernels in use.
    pub fn kernels(&self) -> KernelSet {
        match self {
            Device::Cpu(cpu) => {
                let int8 = if cpu.int8 { "-int8-groups" } else { "" };
                KernelSet::of_kind(format!("cpu-{}{int8}", cpu.isa.kernel_set()))
            }
            Device::Cuda(gpu) => gpu.kernels(),
        }
    }

    /// Name of the device.
    pub fn name(&self) -> String {
        match self {
            Device::Cpu(_) => "cpu".to_owned(),
            Device::Cuda(gpu) => gpu.properties().name.clone(),
        }
    }

    /// Host threads that share every op of the CPU, and the host's part of sampling.
    pub fn num_threads(&self) -> usize {
        self.pool().num_threads()
    }

    /// Runs `item(thread, index)` for every index below `num_items`, on all host threads, in any
    /// order. For host work beside the model, such as sampling.
    pub fn parallel_for(&self, num_items: usize, item: &(dyn Fn(usize, usize) + Sync)) {
        self.pool().run(num_items, item);
    }

    fn pool(&self) -> &ThreadPool {
        match self {
            Device::Cpu(cpu) => &cpu.pool,
            Device::Cuda(gpu) => &gpu.pool,
        }
    }

    /// An activation buffer for up to `max_rows` rows; none is in use.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn tensor(
        &self,
        max_rows: usize,
        width: usize,
        precision: Precision,
    ) -> Result<Tensor, EngineError> {
        match self {
            Device::Cpu(cpu) => match precision {
                Precision::LinearInput(dtype) | Precision::Attended(dtype)
                    if cpu.reads_pairs(dtype) =>
                {
                    Ok(Tensor::try_pairs(max_rows, width, cpu.isa.bf16_products())?)
                }
                _ => Ok(Tensor::try_zeros(max_rows, width)?),
            },
            Device::Cuda(gpu) => gpu.tensor(max_rows, width, precision),
        }
    }

    /// Full-precision values on the device.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn upload(&self, values: Vec<f32>, width: usize) -> Result<Tensor, EngineError> {
        match self {
            Device::Cpu(_) => Ok(Tensor::from_vec(values, width)),
            Device::Cuda(_) => self.upload_as(&values, width, Precision::Full),
        }
    }

    /// Values rounded to what `precision` is on the device, and never to E4M3; in order with the
    /// launches.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn upload_as(
        &self,
        values: &[f32],
        width: usize,
        precision: Precision,
    ) -> Result<Tensor, EngineError> {
        match self {
            Device::Cpu(_) => Ok(Tensor::from_vec(values.to_vec(), width)),
            Device::Cuda(gpu) => {
                let dtype = match precision {
                    Precision::Full => DType::Float32,
                    _ => gpu.dtype(),
                };
                let num_rows = values.len() / width;
                let rows = gpu.max_padded_rows(num_rows);
                let buffer = gpu.alloc(rows * width * dtype.size_bytes())?;
                gpu.upload(&buffer, &tensor::narrowed(values, dtype));
                let mut tensor = Tensor::on_gpu(buffer, dtype, width);
                tensor.set_num_rows(num_rows);
                Ok(tensor)
            }
        }
    }

    /// Writes rows to an activation that has room for them, rounded to its type, in order with the
    /// launches. On a GPU rows of zeros pad them.
    ///
    /// # Panics
    /// It is a linear layer's input of a type of its own.
    pub fn write(&self, tensor: &mut Tensor, values: &[f32]) {
        let num_rows = values.len() / tensor.width();
        match self {
            Device::Cpu(_) => {
                tensor.set_num_rows(num_rows);
                tensor.values_mut().copy_from_slice(values);
            }
            Device::Cuda(gpu) => {
                tensor.set_num_rows(gpu.padded_rows(num_rows));
                let mut bytes = tensor::narrowed(values, tensor.dtype());
                bytes.resize(tensor.num_rows() * tensor.row_bytes(), 0);
                let buffer = tensor.gpu_buffer().expect("values of one type");
                gpu.upload(buffer, &bytes);
            }
        }
    }

    /// The rows in use, widened, after all that was queued.
    ///
    /// # Errors
    /// The device failed.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<f32>, EngineError> {
        match self {
            Device::Cpu(_) => Ok(tensor.widened()),
            Device::Cuda(gpu) => {
                let dtype = tensor.dtype();
                let len = tensor.num_rows() * tensor.width();
                let mut bytes = vec![0u8; len * dtype.size_bytes()];
                gpu.download(tensor.device_ptr(), &mut bytes);
                gpu.synchronize()?;
                Ok(tensor::widened(&bytes, dtype))
            }
        }
    }

    /// The first rows of a tensor in full precision where the host reads them, after all that was
    /// queued: the tensor itself, or `copy`, which has its width.
    ///
    /// # Errors
    /// The device failed.
    pub fn on_host<'a>(
        &self,
        tensor: &'a Tensor,
        num_rows: usize,
        copy: &'a mut Tensor,
    ) -> Result<&'a Tensor, EngineError> {
        let Device::Cuda(gpu) = self else { return Ok(tensor) };
        assert!(tensor.dtype() == DType::Float32 && tensor.width() == copy.width());
        assert!(num_rows <= tensor.num_rows());
        copy.resize_rows(num_rows);
        gpu.download(tensor.device_ptr(), copy.values_mut());
        gpu.check()?;
        Ok(copy)
    }

    /// A thread other than the one that opened it uses it from now on.
    ///
    /// # Errors
    /// The device failed.
    pub fn use_on_this_thread(&self) -> Result<(), EngineError> {
        match self {
            Device::Cpu(_) => Ok(()),
            Device::Cuda(gpu) => gpu.use_on_this_thread(),
        }
    }

    /// Width of the panels in which the KV cache is laid out.
    pub fn kv_panel_width(&self) -> usize {
        match self {
            Device::Cpu(cpu) => 2 * cpu.isa.num_lanes(),
            Device::Cuda(_) => 1,
        }
    }

    /// Width of a V head in the cache where V is the last `rank` values of K: the CPU's products
    /// take it in another layout than K, and a GPU reads it where K is.
    pub fn latent_v_dim(&self, rank: usize) -> usize {
        match self {
            Device::Cpu(_) => rank,
            Device::Cuda(_) => 0,
        }
    }

    /// Type of what linear layers read and write.
    pub fn activation_dtype(&self) -> DType {
        match self {
            Device::Cpu(_) => DType::Float32,
            Device::Cuda(gpu) => gpu.dtype(),
        }
    }

    /// Whether a step may be queued before the tokens of the one before are known.
    pub fn runs_ahead(&self) -> bool {
        matches!(self, Device::Cuda(_))
    }

    /// Bytes of a GPU's memory, those in use too; None: it is the CPU.
    ///
    /// # Errors
    /// The device failed.
    pub fn memory_of_gpu(&self) -> Result<Option<u64>, EngineError> {
        match self {
            Device::Cpu(_) => Ok(None),
            Device::Cuda(gpu) => Ok(Some(gpu.memory_info()?.1 as u64)),
        }
    }

    /// Rows that a product of so many reads and writes, at most.
    pub fn padded_rows(&self, num_rows: usize) -> usize {
        match self {
            Device::Cpu(_) => num_rows,
            Device::Cuda(gpu) => gpu.max_padded_rows(num_rows),
        }
    }

    /// Rows of a step that the MLP takes at a time.
    pub fn block_rows(&self, num_rows: usize) -> usize {
        match self {
            Device::Cpu(_) => num_rows.clamp(1, CPU_BLOCK_ROWS),
            Device::Cuda(_) => num_rows.max(1),
        }
    }

    /// Rows of a step whose numbers for all words are there at a time: on the CPU what its caches
    /// hold some of, on a GPU enough to fill it.
    pub fn output_rows(&self, num_rows: usize) -> usize {
        match self {
            Device::Cpu(_) => num_rows.clamp(1, CPU_OUTPUT_ROWS),
            Device::Cuda(_) => num_rows.clamp(1, GPU_OUTPUT_ROWS),
        }
    }

    /// Rows to allocate now for a buffer that is rarely full (0 on the CPU, where it grows).
    pub fn preallocated_rows(&self, max_rows: usize) -> usize {
        match self {
            Device::Cpu(_) => 0,
            Device::Cuda(_) => max_rows,
        }
    }

    /// Runs `queue`. A GPU records what it queues and replays that, when the key is one that it has
    /// seen: equal keys mean equal launches.
    pub fn record_or_replay(&self, key: Option<usize>, queue: &mut dyn FnMut()) {
        match self {
            Device::Cpu(_) => queue(),
            Device::Cuda(gpu) => gpu.record_or_replay(key, queue),
        }
    }

    /// Waits for weights that are on their way.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish_loading(&self) -> Result<(), EngineError> {
        match self {
            Device::Cpu(_) => Ok(()),
            Device::Cuda(gpu) => gpu.finish_loading(),
        }
    }

    /// Waits for all that was queued.
    ///
    /// # Errors
    /// Something of it failed.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        match self {
            Device::Cpu(_) => Ok(()),
            Device::Cuda(gpu) => gpu.synchronize(),
        }
    }

    /// Takes place `index` of a group that sums up to `max_rows` rows of `width` at a time, and
    /// waits until every rank has taken its own.
    ///
    /// # Errors
    /// As [`Gpu::join`].
    ///
    /// # Panics
    /// It is the CPU.
    pub fn join(
        &self,
        group: &Arc<Group>,
        index: usize,
        (max_rows, width): (usize, usize),
    ) -> Result<(), EngineError> {
        match self {
            Device::Cpu(_) => panic!("a rank on the CPU"),
            Device::Cuda(gpu) => gpu.join(group, index, gpu.max_padded_rows(max_rows) * width),
        }
    }

    /// Times ops from now on. Linear layers are of a model in `dtype`. Limits of the machine that
    /// are not given are measured, in less than half a second. A GPU times its kernels, and records
    /// no graph meanwhile; what is not given is not known of it.
    pub fn start_op_times(&self, dtype: DType, given: GivenLimits) {
        match self {
            Device::Cpu(cpu) => cpu.op_timer.start(Limits::find(cpu, dtype, given)),
            Device::Cuda(gpu) => gpu.start_kernel_times(Limits::of_gpu(given)),
        }
    }

    /// Costs of ops since the start; arguments as there, since the limits are measured again.
    /// `None`: nothing was timed.
    ///
    /// # Errors
    /// A GPU failed.
    pub fn finish_op_times(
        &self,
        dtype: DType,
        given: GivenLimits,
    ) -> Result<Option<OpTimes>, EngineError> {
        match self {
            Device::Cpu(cpu) => Ok(cpu.op_timer.finish(|| Limits::find(cpu, dtype, given))),
            Device::Cuda(gpu) => gpu.finish_kernel_times(),
        }
    }

    /// Times host work beside the ops, such as sampling, until the result is dropped.
    #[must_use = "the time ends when it is dropped"]
    pub fn timed(&self, op: Op, work: impl FnOnce() -> Work) -> Option<Timed<'_>> {
        match self {
            Device::Cpu(cpu) => cpu.op_timer.timed(op, work),
            Device::Cuda(_) => None,
        }
    }

    /// Returns the first failure since the last call; ops themselves cannot fail.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), EngineError> {
        match self {
            Device::Cpu(_) => Ok(()),
            Device::Cuda(gpu) => gpu.check(),
        }
    }
}
