//! Costs of the CPU's ops: calls, time, and the work that bounds it from below. Off unless it is
//! asked for, and then two readings of the clock per op: 90 ns a call on a Xeon of 2023, and 3 ns
//! while it is off. A GPU's kernels are ops of their own here, timed in `gpu/kernel_times.rs`.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::limits::{Arithmetic, Limits};

/// Kind of op; linear layers apart by their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The function in `ops`.
    pub name: &'static str,
    /// (n, k) of a weight.
    pub shape: Option<(usize, usize)>,
    /// Arithmetic that it computes in.
    pub arithmetic: Arithmetic,
}

impl Op {
    /// An op of f32 without weights that matter.
    pub fn new(name: &'static str) -> Self {
        Self { name, shape: None, arithmetic: Arithmetic::Float32 }
    }
}

impl fmt::Display for Op {
    /// `linear 576 x 1536`: outputs by inputs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Some((n, k)) => write!(f, "{} {n} x {k}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// Work of a call, however it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Multiplications and additions, where they may bound the op.
    pub flops: f64,
    /// Bytes of inputs, weights and outputs, each once, as they are stored.
    pub bytes: f64,
}

impl Work {
    /// `num_values` elements of so many bytes, read and written together: what little is computed
    /// takes less time than that.
    pub fn elementwise(num_values: usize, bytes_per_value: usize) -> Self {
        Self { flops: 0.0, bytes: num_values as f64 * bytes_per_value as f64 }
    }
}

/// Cost of all calls of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpTime {
    /// Kind of op.
    pub op: Op,
    /// Calls.
    pub num_calls: u64,
    /// Their time.
    pub time: Duration,
    /// Their work.
    pub work: Work,
    /// Operations of the calls whose operations take longer than their bytes.
    pub bound_flops: f64,
    /// Bytes of the others.
    pub bound_bytes: f64,
}

impl OpTime {
    fn new(op: Op) -> Self {
        let (time, work) = (Duration::ZERO, Work::default());
        Self { op, num_calls: 0, time, work, bound_flops: 0.0, bound_bytes: 0.0 }
    }

    fn add(&mut self, work: Work, time: Duration, limits: &Limits) {
        self.num_calls += 1;
        self.time += time;
        self.work.flops += work.flops;
        self.work.bytes += work.bytes;
        let compute_seconds = limits.compute_seconds(self.op.arithmetic, work.flops);
        if compute_seconds > limits.memory_seconds(work.bytes) {
            self.bound_flops += work.flops;
        } else {
            self.bound_bytes += work.bytes;
        }
    }

    /// Seconds that the calls take at least: of each the longer of its operations and its bytes.
    pub fn floor_seconds(&self, limits: &Limits) -> f64 {
        limits.compute_seconds(self.op.arithmetic, self.bound_flops)
            + limits.memory_seconds(self.bound_bytes)
    }
}

/// Costs of a run's ops, and the machine's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTimes {
    /// The best that was measured before and after the run, or what was given.
    pub limits: Limits,
    /// In order of their first calls.
    pub ops: Vec<OpTime>,
}

impl OpTimes {
    /// No times yet. For each call, the limits that are known now decide what bounds it.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ops: Vec::with_capacity(NUM_OPS) }
    }

    /// Adds a call.
    pub(super) fn add(&mut self, op: Op, work: Work, time: Duration) {
        let Self { limits, ops } = self;
        let known = ops.iter().position(|known| known.op == op);
        let index = known.unwrap_or_else(|| {
            ops.push(OpTime::new(op));
            ops.len() - 1
        });
        ops[index].add(work, time, limits);
    }
}

/// More kinds of ops than a model has, so that a step allocates nothing.
const NUM_OPS: usize = 64;

/// Times ops while it is on. Ops run one at a time, on the thread that owns the engine.
#[derive(Debug, Default)]
pub struct OpTimer {
    is_on: AtomicBool,
    times: Mutex<Option<OpTimes>>,
}

impl OpTimer {
    /// Starts over.
    pub(super) fn start(&self, limits: Limits) {
        *self.times() = Some(OpTimes::new(limits));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Times against the best of the limits then and now; `None`: timing was not on.
    pub(super) fn finish(&self, limits: impl FnOnce() -> Limits) -> Option<OpTimes> {
        self.is_on.store(false, Ordering::Relaxed);
        let OpTimes { limits: before, ops } = self.times().take()?;
        Some(OpTimes { limits: before.best(limits()), ops })
    }

    /// Times an op until the result is dropped; None while the timer is off.
    #[must_use = "the time ends when it is dropped"]
    pub fn timed(&self, op: Op, work: impl FnOnce() -> Work) -> Option<Timed<'_>> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let work = work();
        Some(Timed { timer: self, op, work, started: Instant::now() })
    }

    fn record(&self, op: Op, work: Work, time: Duration) {
        if let Some(times) = &mut *self.times() {
            times.add(op, work, time);
        }
    }

    fn times(&self) -> MutexGuard<'_, Option<OpTimes>> {
        // A poisoned lock only says that a thread panicked: sums are whole at any time.
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An op that is running.
#[derive(Debug)]
pub struct Timed<'a> {
    timer: &'a OpTimer,
    op: Op,
    work: Work,
    started: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.timer.record(self.op, self.work, self.started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::Limit;
    use super::*;

    fn limits(flops: f64, bandwidth: f64) -> Limits {
        let limit = |per_second| Limit { per_second, is_given: false };
        Limits { arithmetic: [Some(limit(flops)), None, None], memory: limit(bandwidth) }
    }

    #[test]
    fn a_timer_that_is_off_computes_no_work_and_has_no_result() {
        let timer = OpTimer::default();
        assert!(timer.timed(Op::new("add"), || panic!("not asked for")).is_none());
        assert_eq!(timer.finish(|| panic!("nothing to hold against")), None);
    }

    #[test]
    fn calls_add_up_by_op_and_what_was_before_is_forgotten() {
        let timer = OpTimer::default();
        timer.start(limits(1.0, 1.0));
        drop(timer.timed(Op::new("before"), Work::default));
        timer.start(limits(10.0, 2.0));
        let linear = |n| Op { shape: Some((n, 4)), ..Op::new("linear") };
        for (n, flops) in [(8, 40.0), (16, 1.0), (8, 2.0)] {
            let timed = timer.timed(linear(n), || Work { flops, bytes: 6.0 });
            std::thread::sleep(Duration::from_millis(2));
            drop(timed);
        }
        let OpTimes { ops, limits: found } = timer.finish(|| limits(20.0, 1.0)).unwrap();
        assert_eq!(found, limits(20.0, 2.0), "the best of both");
        let names: Vec<_> = ops.iter().map(|op| op.op.to_string()).collect();
        assert_eq!(names, ["linear 8 x 4", "linear 16 x 4"]);
        assert_eq!((ops[0].num_calls, ops[1].num_calls), (2, 1));
        assert_eq!(ops[0].work, Work { flops: 42.0, bytes: 12.0 });
        assert!(ops[0].time >= Duration::from_millis(4), "{ops:?}");
        // One call of 40 operations, which take 4 s against 3 s, and one of 6 bytes.
        assert_eq!(ops[0].floor_seconds(&found), 40.0 / 20.0 + 6.0 / 2.0);
        assert_eq!(ops[1].floor_seconds(&found), 3.0);
        assert!(timer.timed(linear(8), Work::default).is_none(), "it is off again");
    }
}
