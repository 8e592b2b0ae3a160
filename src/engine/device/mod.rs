//! Where memory is and what runs on it. Ops match on `Device`; nothing else names its variants.

pub mod kv_cache;
pub mod memory;
pub mod simd;
pub mod tensor;
pub mod thread_pool;

pub use kv_cache::KvCache;
pub use tensor::Tensor;

use simd::Isa;
use thread_pool::ThreadPool;

/// A device that runs ops.
#[derive(Debug)]
pub enum Device {
    /// The machine's CPU.
    Cpu(Cpu),
}

/// The CPU: its threads and the widest instruction set that they have.
#[derive(Debug)]
pub struct Cpu {
    /// Threads that share every op.
    pub pool: ThreadPool,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Device {
    /// The CPU with this many threads, None: one per physical core.
    pub fn cpu(num_threads: Option<usize>) -> Self {
        let num_threads = num_threads.unwrap_or_else(thread_pool::num_physical_cores);
        Device::Cpu(Cpu { pool: ThreadPool::new(num_threads), isa: Isa::detect() })
    }

    /// The CPU with a given instruction set: tests force every path on one machine.
    ///
    /// # Panics
    /// The machine does not have it.
    pub fn cpu_with_isa(num_threads: usize, isa: Isa) -> Self {
        assert!(isa.is_available(), "this CPU has no {}", isa.name());
        Device::Cpu(Cpu { pool: ThreadPool::new(num_threads), isa })
    }

    /// Names the set of kernels in use: outputs are equal only within one set.
    pub fn kernel_set(&self) -> String {
        match self {
            Device::Cpu(cpu) => format!("cpu-{}", cpu.isa.name()),
        }
    }

    /// Threads that share every op.
    pub fn num_threads(&self) -> usize {
        match self {
            Device::Cpu(cpu) => cpu.pool.num_threads(),
        }
    }

    /// Runs `item(thread, index)` for every index below `num_items`, on all threads, in any order.
    /// For host work beside the model, such as sampling.
    pub fn parallel_for(&self, num_items: usize, item: &(dyn Fn(usize, usize) + Sync)) {
        match self {
            Device::Cpu(cpu) => cpu.pool.run(num_items, item),
        }
    }
}
