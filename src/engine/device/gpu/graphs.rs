//! CUDA graphs: the launches of a step recorded once, and replayed as one.

use std::collections::HashMap;

use crate::cuda::{CudaError, Driver, Graph};

/// Recorded steps by key.
#[derive(Default)]
pub(super) struct Graphs {
    recorded: HashMap<usize, Recording>,
}

enum Recording {
    /// Has run once: modules are loaded and algorithms chosen, which a recording cannot do.
    Seen,
    Done(Graph),
}

impl Graphs {
    /// Runs `queue` at first, records it the second time, and replays the recording from then on.
    pub(super) fn run(
        &mut self,
        driver: &Driver,
        key: usize,
        queue: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        match self.recorded.get(&key) {
            Some(Recording::Done(graph)) => {
                driver.check_graph(graph, queue)?;
                return driver.launch_graph(graph);
            }
            Some(Recording::Seen) => {}
            None => {
                queue()?;
                self.recorded.insert(key, Recording::Seen);
                return Ok(());
            }
        }
        let Some(graph) = recorded(driver, queue)? else { return queue() };
        let launched = driver.launch_graph(&graph);
        self.recorded.insert(key, Recording::Done(graph));
        launched
    }
}

/// Graph of the launches of `queue`; `None` if another thread's use of the device ended the
/// recording, as another engine on the same GPU can. The step is then recorded when it comes again.
fn recorded(
    driver: &Driver,
    queue: &mut dyn FnMut() -> Result<(), CudaError>,
) -> Result<Option<Graph>, CudaError> {
    driver.begin_capture()?;
    let queued = queue();
    let graph = driver.end_capture();
    let is_lost = graph.as_ref().is_err_and(CudaError::is_lost_recording);
    match queued {
        // cuBLASLt has a status of its own for it.
        Err(error) if !is_lost || error.is_unfit_for_recording() => Err(error),
        _ if is_lost => Ok(None),
        _ => graph.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{DevicePtr, HostDriver};

    /// A driver with 16 bytes of memory, and where they are.
    fn driver() -> (Driver, DevicePtr) {
        let driver = Driver::Host(HostDriver::new("", "", 0));
        let memory = driver.alloc(16).unwrap();
        (driver, memory)
    }

    fn lose_recording(driver: &Driver) -> CudaError {
        let Driver::Host(driver) = driver else { panic!("the shim") };
        driver.lose_recording();
        CudaError::new("cublasLtMatmul", "", "CUBLAS_STATUS_INTERNAL_ERROR", "")
    }

    #[test]
    fn a_step_whose_recording_is_lost_runs_and_is_recorded_later() {
        let (driver, memory) = driver();
        let mut graphs = Graphs::default();
        // How often the step is queued: as it is; in vain, then as it is; to be recorded; to be
        // compared with what is replayed.
        for (sight, expected) in [1, 2, 1, 1, 1].into_iter().enumerate() {
            driver.memset(memory, 9, 16).unwrap();
            let mut num_queued = 0;
            let mut queue = || {
                num_queued += 1;
                driver.memset(memory, 5, 16)?;
                match (sight, num_queued) {
                    (1, 1) => Err(lose_recording(&driver)),
                    _ => Ok(()),
                }
            };
            graphs.run(&driver, 7, &mut queue).unwrap();
            assert_eq!(num_queued, expected, "sight {sight}");
            let mut read = [0; 16];
            driver.copy_from_device(&mut read, memory).unwrap();
            assert_eq!(read, [5; 16], "sight {sight}");
        }
        assert!(matches!(graphs.recorded[&7], Recording::Done(_)));
    }

    #[test]
    fn a_step_that_cannot_be_recorded_is_an_error() {
        let (driver, memory) = driver();
        let mut graphs = Graphs::default();
        let mut queue = || {
            driver.memset(memory, 0, 16)?;
            driver.alloc(16).map(drop)
        };
        graphs.run(&driver, 7, &mut queue).unwrap();
        let error = graphs.run(&driver, 7, &mut queue).unwrap_err();
        assert!(error.is_unfit_for_recording(), "{error}");
    }
}
