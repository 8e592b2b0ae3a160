//! A pool that runs one parallel region at a time: workers spin briefly between regions, then park.
//!
//! Every thread has its own range of a region's items, so that neighbours share a core's cache; who
//! is done takes items from the end of another's range. A region is closed by its caller when no
//! item is left and every worker that entered has left, so a worker that wakes late costs nothing:
//! on a busy machine the caller never waits for a sleeping thread.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use vllm_batch_base::machine::{Refused, granted, no_thread};

/// Spins before a worker parks: about 50 microseconds, longer than the gap between two ops of a
/// step.
const NUM_SPINS: u32 = 20_000;

/// `state` is epoch << 32 | OPEN | number of workers inside the region.
const OPEN: u64 = 1 << 31;
const ACTIVE: u64 = OPEN - 1;

type Item<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Threads that share parallel regions; the caller of `run` is thread 0.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a region is open: there is one at a time.
    caller: Mutex<()>,
}

struct Shared {
    state: AtomicU64,
    /// By thread: what it has still to do.
    ranges: Vec<ItemRange>,
    region: UnsafeCell<Option<Region>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    num_parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// start << 32 | end of the items that are left, alone in its cache line.
#[repr(align(64))]
struct ItemRange(AtomicU64);

impl ItemRange {
    fn set(&self, start: usize, end: usize) {
        self.0.store((start as u64) << 32 | end as u64, Ordering::Relaxed);
    }

    /// The first item, for the range's own thread.
    fn take_first(&self) -> Option<usize> {
        self.take(|start, end| (start, (start + 1, end)))
    }

    /// The last item, for another thread.
    fn take_last(&self) -> Option<usize> {
        self.take(|start, end| (end - 1, (start, end - 1)))
    }

    /// `split` says of a range which item is taken and what is left.
    fn take(&self, split: impl Fn(u64, u64) -> (u64, (u64, u64))) -> Option<usize> {
        let mut range = self.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (range >> 32, range & u64::from(u32::MAX));
            if start >= end {
                return None;
            }
            let (item, (start, end)) = split(start, end);
            let left = start << 32 | end;
            let relaxed = Ordering::Relaxed;
            match self.0.compare_exchange_weak(range, left, relaxed, relaxed) {
                Ok(_) => return Some(item as usize),
                Err(now) => range = now,
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Region {
    item: *const (dyn Fn(usize, usize) + Sync),
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

// SAFETY: `region` is written only by the caller of `run` (which holds the pool's `caller`
// lock), before `state` opens the region with Release; workers read it only after they
// entered an open region with Acquire, and the caller does not return before all have left.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `region` is never used outside an open region.
unsafe impl Send for Shared {}

/// The first item of a thread's own range.
pub fn first_item(num_items: usize, num_threads: usize, thread: usize) -> usize {
    thread * num_items / num_threads
}

impl ThreadPool {
    /// A pool of `num_threads`, the caller included. At least 1.
    ///
    /// # Panics
    /// The system refuses a thread.
    pub fn new(num_threads: usize) -> Self {
        granted(Self::try_new(num_threads))
    }

    /// The same, where the system grants the threads. If it refuses one, those before it end.
    pub fn try_new(num_threads: usize) -> Result<Self, Refused> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            ranges: (0..num_threads.max(1)).map(|_| ItemRange(AtomicU64::new(0))).collect(),
            region: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            num_parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new(), caller: Mutex::new(()) };
        for thread in 1..num_threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new().name(format!("cpu-{thread}"));
            let worker = worker.spawn(move || work(&shared, thread));
            pool.workers.push(worker.map_err(|error| no_thread(&error))?);
        }
        Ok(pool)
    }

    /// Threads of the pool, the caller included.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The item of a region that a thread begins with, unless another one was sooner.
    pub fn first_item(&self, num_items: usize, thread: usize) -> usize {
        first_item(num_items, self.num_threads(), thread)
    }

    /// Runs `item(thread, index)` for every index below `num_items`; returns when all are done.
    /// Every thread takes its share of the items in ascending order; `thread` is below
    /// `num_threads()` and no two calls with one `thread` overlap, so it may index per-thread
    /// scratch.
    ///
    /// # Panics
    /// An item panicked, a region is open already (called from inside an item), or there are 2^32
    /// items.
    pub fn run(&self, num_items: usize, item: Item<'_>) {
        if num_items <= 1 || self.workers.is_empty() {
            (0..num_items).for_each(|index| item(0, index));
            return;
        }
        // A poisoned lock only says that an item panicked in an earlier region.
        let _one_region = match self.caller.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => panic!("a parallel region is open already"),
        };
        let shared = &*self.shared;
        let epoch = (shared.state.load(Ordering::Relaxed) >> 32) + 1;
        // SAFETY: only the lifetime is erased; no worker uses the pointer after this function
        // returns.
        let item_static: *const (dyn Fn(usize, usize) + Sync) = unsafe {
            std::mem::transmute::<Item<'_>, &'static (dyn Fn(usize, usize) + Sync)>(item)
        };
        assert!(u32::try_from(num_items).is_ok(), "{num_items} items");
        let num_threads = shared.ranges.len();
        for (thread, range) in shared.ranges.iter().enumerate() {
            let first = |thread: usize| first_item(num_items, num_threads, thread);
            range.set(first(thread), first(thread + 1));
        }
        // SAFETY: the region is closed and no worker is inside, so nobody reads the cell now.
        unsafe { *shared.region.get() = Some(Region { item: item_static }) };
        shared.state.store(epoch << 32 | OPEN, Ordering::SeqCst);
        if shared.num_parked.load(Ordering::SeqCst) > 0 {
            let _guard = shared.lock.lock().expect("no worker panics while it holds the lock");
            shared.wake.notify_all();
        }
        let caller = catch_unwind(AssertUnwindSafe(|| {
            drain(shared, 0, |index| item(0, index));
        }));
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut num_spins = 0u32;
        while shared.state.load(Ordering::Acquire) & ACTIVE != 0 {
            num_spins += 1;
            if num_spins < NUM_SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Err(payload) = caller {
            std::panic::resume_unwind(payload);
        }
        assert!(!shared.panicked.swap(false, Ordering::AcqRel), "a worker thread panicked");
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Ok(_guard) = self.shared.lock.lock() {
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker's panic was reported by `run`.
            let _ = worker.join();
        }
    }
}

fn drain(shared: &Shared, thread: usize, mut item: impl FnMut(usize)) {
    while let Some(index) = shared.ranges[thread].take_first() {
        item(index);
    }
    let num_threads = shared.ranges.len();
    for other in (1..num_threads).map(|distance| (thread + distance) % num_threads) {
        while let Some(index) = shared.ranges[other].take_last() {
            item(index);
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let mut seen = 0u64;
    while let Some(epoch) = next_region(shared, seen) {
        seen = epoch;
        if !enter(shared, epoch) {
            continue;
        }
        // SAFETY: this thread is counted in the open region, so the caller keeps it alive.
        let region = unsafe { (*shared.region.get()).expect("an open region is set") };
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: as above: the closure lives until the caller has seen this thread leave.
            let item = unsafe { &*region.item };
            drain(shared, thread, |index| item(thread, index));
        }));
        if result.is_err() {
            shared.panicked.store(true, Ordering::Release);
        }
        shared.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts this thread into the region of `epoch`, unless it is closed already.
fn enter(shared: &Shared, epoch: u64) -> bool {
    let mut state = shared.state.load(Ordering::Acquire);
    loop {
        if state >> 32 != epoch || state & OPEN == 0 {
            return false;
        }
        let entered = state + 1;
        match shared.state.compare_exchange_weak(
            state,
            entered,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return true,
            Err(now) => state = now,
        }
    }
}

/// Waits for a region newer than `seen`: first spinning, then parked. None: the pool is dropped.
fn next_region(shared: &Shared, seen: u64) -> Option<u64> {
    for _ in 0..NUM_SPINS {
        let epoch = shared.state.load(Ordering::Acquire) >> 32;
        if epoch != seen {
            return Some(epoch);
        }
        if shared.stop.load(Ordering::Relaxed) {
            return None;
        }
        std::hint::spin_loop();
    }
    let mut guard = shared.lock.lock().expect("no worker panics while it holds the lock");
    // SeqCst on `num_parked` and `state` in both threads: either the caller sees this thread parked
    // and takes the lock to notify, or this thread sees the new epoch below.
    shared.num_parked.fetch_add(1, Ordering::SeqCst);
    let result = loop {
        if shared.stop.load(Ordering::SeqCst) {
            break None;
        }
        let epoch = shared.state.load(Ordering::SeqCst) >> 32;
        if epoch != seen {
            break Some(epoch);
        }
        guard = shared.wake.wait(guard).expect("no worker panics while it holds the lock");
    };
    shared.num_parked.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Physical cores that this process may use: hyper-threads share their core's vector units, so a
/// second thread on a core only adds contention.
pub fn num_physical_cores() -> usize {
    let num_logical = std::thread::available_parallelism().map_or(1, usize::from);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let siblings = |cpu| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(path).ok()
    };
    // A quota may be less than the cores that it is for.
    match num_cores_of(&allowed_cpus(&status), siblings) {
        0 => num_logical,
        num_cores => num_cores.min(num_logical),
    }
}

/// The CPUs that `/proc/self/status` says this process may run on, as `numactl` and `taskset` set
/// them: not always the first ones.
fn allowed_cpus(status: &str) -> Vec<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap_or_default().trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Cores that CPUs belong to, by the list of those that share one.
fn num_cores_of(cpus: &[usize], siblings: impl Fn(usize) -> Option<String>) -> usize {
    let mut cores: Vec<String> = cpus.iter().filter_map(|&cpu| siblings(cpu)).collect();
    cores.sort();
    cores.dedup();
    cores.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_in_every_region() {
        let pool = ThreadPool::new(3);
        for round in 0..2000 {
            let num_items = round % 37;
            let counts: Vec<AtomicUsize> = (0..num_items).map(|_| AtomicUsize::new(0)).collect();
            pool.run(num_items, &|thread, index| {
                assert!(thread < 3);
                counts[index].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn parked_workers_wake_and_take_part() {
        let pool = ThreadPool::new(2);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let both = AtomicUsize::new(0);
        // Each item waits for the other: the region ends only if two threads run it.
        pool.run(2, &|_, _| {
            both.fetch_add(1, Ordering::SeqCst);
            while both.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
        assert_eq!(both.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_panic_in_an_item_reaches_the_caller_and_the_pool_survives() {
        let pool = ThreadPool::new(2);
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|_, index| assert!(index != 5, "planted"));
            }));
            assert!(result.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(100, &|_, index| {
            sum.fetch_add(index, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4950);
    }

    #[test]
    fn one_socket_of_two_has_half_of_the_cores() {
        // Two sockets of four cores of two threads, numbered as Linux does: CPU 8 is CPU 0's other.
        let siblings = |cpu: usize| (cpu < 16).then(|| format!("{},{}", cpu % 8, cpu % 8 + 8));
        let num_cores = |status: &str| num_cores_of(&allowed_cpus(status), siblings);
        let status =
            |list: &str| format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\n");
        assert_eq!(num_cores(&status("0-15")), 8);
        assert_eq!(num_cores(&status("4-7,12-15")), 4);
        assert_eq!(num_cores(&status("0,8")), 1);
        assert_eq!(num_cores(&status("3,4-5,11")), 3);
        assert_eq!(num_cores(""), 0);
    }
}
