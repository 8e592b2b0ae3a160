//! Times of kernels and products on a GPU: an event before each and one after it. Off unless it is
//! asked for; then nothing is recorded as a graph, whose launches could not be told apart.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::lock;
use crate::cuda::{CudaError, Driver, Event, Stream};
use crate::limits::Limits;
use crate::op_times::{Op, OpTimes, Work};

/// Launches that are under way before their times are read.
const NUM_PENDING: usize = 1024;

/// Times of launches.
#[derive(Default)]
pub(super) struct KernelTimes {
    is_on: AtomicBool,
    times: Mutex<Option<Times>>,
}

struct Times {
    all: OpTimes,
    /// Before and after each of the pending launches; more are made as they are needed.
    events: Vec<(Event, Event)>,
    pending: Vec<(Op, Work)>,
}

impl KernelTimes {
    /// Whether launches are timed.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Starts over.
    pub(super) fn start(&self, limits: Limits) {
        let all = OpTimes::new(limits);
        *lock(&self.times) = Some(Times { all, events: Vec::new(), pending: Vec::new() });
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Times since the start; `None`: timing was not on.
    pub(super) fn finish(&self, driver: &Driver) -> Result<Option<OpTimes>, CudaError> {
        self.is_on.store(false, Ordering::Relaxed);
        let Some(mut times) = lock(&self.times).take() else { return Ok(None) };
        times.read(driver)?;
        Ok(Some(times.all))
    }

    /// Queues a launch by `queue`, and times it while it is on.
    pub(super) fn timed(
        &self,
        driver: &Driver,
        what: impl FnOnce() -> (Op, Work),
        queue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let mut times = lock(&self.times);
        let Some(times) = times.as_mut().filter(|_| self.is_on()) else { return queue() };
        if times.pending.len() == NUM_PENDING {
            times.read(driver)?;
        }
        let place = times.pending.len();
        if place == times.events.len() {
            times.events.push((driver.create_event(true)?, driver.create_event(true)?));
        }
        let (before, after) = &times.events[place];
        driver.record_event(before, Stream::Compute)?;
        queue()?;
        driver.record_event(after, Stream::Compute)?;
        times.pending.push(what());
        Ok(())
    }
}

impl Times {
    /// Waits for the pending launches and adds their times.
    fn read(&mut self, driver: &Driver) -> Result<(), CudaError> {
        for ((op, work), (before, after)) in self.pending.drain(..).zip(&self.events) {
            driver.synchronize_event(after)?;
            let milliseconds = f64::from(driver.elapsed_ms(before, after)?);
            self.all.add(op, work, Duration::from_secs_f64(1e-3 * milliseconds));
        }
        Ok(())
    }
}
