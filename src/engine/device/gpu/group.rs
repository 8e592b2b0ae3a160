//! `Group`: GPUs of one machine that compute one model together, each a rank on a thread of its
//! own. Who they are, the memory that each lends the others, and the end of all when one fails.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Gpu, lock};
use crate::cuda::{CudaError, DeviceBuffer, DevicePtr, Driver, PinnedBuffer, bytes_of};
use vllm_batch_base::EngineError;

/// Blocks of a launch of kernels/all_reduce.cu at most: few enough to run at once on any GPU, also
/// on one that tests give to several ranks.
const MAX_BLOCKS: u32 = 32;
/// The halves of a rank's memory begin at multiples of it, and have as many elements.
const ALIGN: usize = 256;

/// The ranks of a model, to be shared by their threads.
pub struct Group {
    members: Mutex<Members>,
    changed: Condvar,
    num_ranks: usize,
}

#[derive(Default)]
struct Members {
    /// By rank.
    joined: Vec<Option<Arc<Member>>>,
    has_failed: bool,
}

/// Memory that a rank lends. It stays until the last rank ends, since others read it.
struct Member {
    driver: Arc<Driver>,
    /// As kernels/all_reduce.cu has it.
    memory: DeviceBuffer,
    /// (1) u32: not 0 when nobody shall wait any more.
    stop: PinnedBuffer,
}

/// A device's place in a group.
pub struct Rank {
    group: Arc<Group>,
    own: Arc<Member>,
    index: usize,
    /// (num_ranks) u64
    memories: DeviceBuffer,
    /// (num_blocks) u32
    epochs: DeviceBuffer,
    num_blocks: u32,
    capacity: usize,
}

impl Group {
    /// A group of a number of ranks, none of which is there yet.
    pub fn new(num_ranks: usize) -> Arc<Self> {
        let members = Members { joined: vec![None; num_ranks], has_failed: false };
        Arc::new(Self { members: Mutex::new(members), changed: Condvar::new(), num_ranks })
    }

    /// Ranks that there are to be.
    pub fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    /// Ends it: no rank waits for another any more, neither on its device nor in `Gpu::join`. What
    /// they compute from then on is of no use.
    pub fn stop(&self) {
        let mut members = lock(&self.members);
        members.has_failed = true;
        for member in members.joined.iter().flatten() {
            member.stop();
        }
        self.changed.notify_all();
    }

    /// Lets the others find `member`, and waits until all are there.
    fn meet(&self, index: usize, member: &Arc<Member>) -> Result<Vec<Arc<Member>>, EngineError> {
        let mut members = lock(&self.members);
        let before = members.joined[index].replace(Arc::clone(member));
        assert!(before.is_none(), "rank {index} joins once");
        self.changed.notify_all();
        loop {
            if members.has_failed {
                member.stop();
                return Err(EngineError::Device("another rank has failed".to_owned()));
            }
            let joined: Vec<_> = members.joined.iter().flatten().cloned().collect();
            if joined.len() == self.num_ranks {
                return Ok(joined);
            }
            members = self.changed.wait(members).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} ranks)", self.num_ranks)
    }
}

impl Member {
    fn stop(&self) {
        let at = self.stop.device_ptr().0 as *mut u32;
        // SAFETY: memory of at least four bytes, aligned to pages or to words, that lives as long
        // as self; nobody makes a reference to it, and kernels only load it.
        unsafe { AtomicU32::from_ptr(at) }.store(1, Ordering::Release);
    }
}

impl Rank {
    /// Index of the rank.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.group.num_ranks
    }

    /// Where the addresses of all ranks' memories are.
    pub fn memories(&self) -> DevicePtr {
        self.memories.ptr()
    }

    /// Where its counters of sums are.
    pub fn epochs(&self) -> DevicePtr {
        self.epochs.ptr()
    }

    /// Flag that tells its kernels not to wait.
    pub fn stop(&self) -> DevicePtr {
        self.own.stop.device_ptr()
    }

    /// Blocks of every launch that sums.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Values that it sums at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Gpu {
    /// Takes a place in a group whose ranks all sum up to `max_values` values at a time, and waits
    /// until every rank has taken its own, each on its thread.
    ///
    /// # Errors
    /// The memory does not suffice, devices cannot reach each other's memory, or another rank has
    /// failed.
    ///
    /// # Panics
    /// The place is taken, or this device has one.
    pub fn join(
        &self,
        group: &Arc<Group>,
        index: usize,
        max_values: usize,
    ) -> Result<(), EngineError> {
        let num_ranks = group.num_ranks;
        let capacity = max_values.next_multiple_of(ALIGN);
        let num_blocks = self.properties().num_sms.min(MAX_BLOCKS);
        let counters = num_blocks as usize * size_of::<u32>();
        let arrivals = (num_ranks * counters).next_multiple_of(ALIGN);
        let driver = self.runtime.driver();
        let memory = self.alloc(arrivals + 2 * capacity * self.dtype().size_bytes())?;
        let epochs = self.alloc(counters)?;
        // Zeros that came later would undo the first arrivals.
        self.synchronize()?;
        let stop = self.alloc_on_host(size_of::<u32>())?;
        let own = Arc::new(Member { driver: Arc::clone(driver), memory, stop });
        let all = group.meet(index, &own)?;
        for other in &all {
            driver.reach(&other.driver).map_err(|error| cannot_reach(driver, other, &error))?;
        }
        let addresses: Vec<u64> = all.iter().map(|member| member.memory.ptr().0).collect();
        let memories = self.alloc(num_ranks * size_of::<u64>())?;
        self.upload(&memories, bytes_of(&addresses));
        let group = Arc::clone(group);
        let rank = Rank { group, own, index, memories, epochs, num_blocks, capacity };
        assert!(self.rank.set(rank).is_ok(), "a device joins once");
        self.synchronize()
    }

    /// Rank in a group; `None`: it computes alone.
    pub fn rank(&self) -> Option<&Rank> {
        self.rank.get()
    }
}

fn cannot_reach(driver: &Driver, other: &Member, error: &CudaError) -> EngineError {
    EngineError::Config(format!(
        "{} cannot read the memory of another {} of the machine: {error}; run one engine on each \
         (`settings.data_parallel_size`), or take GPUs that NVLink or one PCIe switch connects",
        driver.properties().name,
        other.driver.properties().name
    ))
}
