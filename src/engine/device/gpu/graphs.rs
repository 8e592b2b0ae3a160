//! CUDA graphs: the launches of a step recorded once, and replayed as one.

use std::collections::HashMap;

use crate::engine::device::cuda::{CudaError, Driver, Graph};

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
        queue: &mut dyn FnMut(),
    ) -> Result<(), CudaError> {
        match self.recorded.get(&key) {
            Some(Recording::Done(graph)) => {
                driver.check_graph(graph, queue)?;
                return driver.launch_graph(graph);
            }
            Some(Recording::Seen) => {}
            None => {
                queue();
                self.recorded.insert(key, Recording::Seen);
                return Ok(());
            }
        }
        driver.begin_capture()?;
        queue();
        let graph = driver.end_capture()?;
        let launched = driver.launch_graph(&graph);
        self.recorded.insert(key, Recording::Done(graph));
        launched
    }
}
