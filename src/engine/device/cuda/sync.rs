//! Events and graphs of a driver.

use super::cuda_driver::{CudaEvent, CudaGraph};
use super::driver::{Driver, Event, Graph, Stream};
use super::error::Result;
use super::handles::{EventKind, GraphKind};
use super::host_driver::HostEvent;

impl Driver {
    /// An event; `timing` for one that `elapsed_ms` takes.
    pub fn create_event(&self, timing: bool) -> Result<Event> {
        let kind = match self {
            Driver::Cuda(driver) => EventKind::Cuda(CudaEvent::new(driver, timing)?),
            Driver::Host(_) => EventKind::Host(HostEvent::default()),
        };
        Ok(Event { kind })
    }

    /// Puts the event after all that the stream has been given so far.
    pub fn record_event(&self, event: &Event, stream: Stream) -> Result<()> {
        match (self, &event.kind) {
            (Driver::Cuda(driver), EventKind::Cuda(event)) => driver.record_event(event, stream),
            (Driver::Host(_), EventKind::Host(event)) => {
                event.record();
                Ok(())
            }
            _ => panic!("an event of another driver"),
        }
    }

    /// Makes what the stream is given from now on wait for the event.
    pub fn wait_event(&self, stream: Stream, event: &Event) -> Result<()> {
        match (self, &event.kind) {
            (Driver::Cuda(driver), EventKind::Cuda(event)) => driver.wait_event(stream, event),
            (Driver::Host(_), EventKind::Host(_)) => Ok(()),
            _ => panic!("an event of another driver"),
        }
    }

    /// Blocks the calling thread until the event has passed (at once if it was never recorded).
    pub fn synchronize_event(&self, event: &Event) -> Result<()> {
        match (self, &event.kind) {
            (Driver::Cuda(driver), EventKind::Cuda(event)) => driver.synchronize_event(event),
            (Driver::Host(_), EventKind::Host(_)) => Ok(()),
            _ => panic!("an event of another driver"),
        }
    }

    /// Whether the event has passed, without a wait.
    pub fn event_has_passed(&self, event: &Event) -> Result<bool> {
        match (self, &event.kind) {
            (Driver::Cuda(driver), EventKind::Cuda(event)) => driver.event_has_passed(event),
            (Driver::Host(_), EventKind::Host(_)) => Ok(true),
            _ => panic!("an event of another driver"),
        }
    }

    /// Milliseconds between two recorded events that have passed.
    pub fn elapsed_ms(&self, start: &Event, end: &Event) -> Result<f32> {
        match (self, &start.kind, &end.kind) {
            (Driver::Cuda(driver), EventKind::Cuda(start), EventKind::Cuda(end)) => {
                driver.elapsed_ms(start, end)
            }
            (Driver::Host(_), EventKind::Host(start), EventKind::Host(end)) => {
                Ok(HostEvent::elapsed_ms(start, end))
            }
            _ => panic!("an event of another driver"),
        }
    }

    /// From now on launches of this thread are recorded instead of run. Until `end_capture` no
    /// memory is allocated or freed, nothing waits, and no module is loaded.
    pub fn begin_capture(&self) -> Result<()> {
        match self {
            Driver::Cuda(driver) => driver.begin_capture(),
            Driver::Host(driver) => driver.begin_capture(),
        }
    }

    /// Ends the recording, also after a failed launch: then the error is of the capture.
    pub fn end_capture(&self) -> Result<Graph> {
        let kind = match self {
            Driver::Cuda(driver) => GraphKind::Cuda(CudaGraph::end_capture(driver)?),
            Driver::Host(driver) => GraphKind::Host(driver.end_capture()?),
        };
        Ok(Graph { kind })
    }

    /// Queues all launches of the graph on the compute stream.
    pub fn launch_graph(&self, graph: &Graph) -> Result<()> {
        match (self, &graph.kind) {
            (Driver::Cuda(driver), GraphKind::Cuda(graph)) => driver.launch_graph(graph),
            (Driver::Host(driver), GraphKind::Host(graph)) => driver.launch_graph(graph),
            _ => panic!("a graph of another driver"),
        }
    }

    /// Fails where `queue` would not queue what the graph has. The shim finds so what a replay
    /// would silently have as it was; on a GPU nothing is compared, and `queue` does not run.
    pub fn check_graph(&self, graph: &Graph, queue: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let (Driver::Host(driver), GraphKind::Host(graph)) = (self, &graph.kind) else {
            return Ok(());
        };
        driver.begin_capture()?;
        let queued = queue();
        let again = driver.end_capture()?;
        queued.and_then(|()| graph.check_same(&again))
    }
}
