//! One engine on its own thread, on which its device is opened, used and closed.

use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use crate::load::worker::Worker;
use crate::serve::runner::{Runner, Work};
use crate::stats::EngineStats;
use crate::{EngineInfo, Shared};
use vllm_batch_api::answer::Answer;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;

use super::LoadEngine;

/// What an engine tells the thread that has them all.
pub(super) struct Stepped {
    /// Which one.
    pub engine: usize,
    /// Orders that it had received before the step.
    pub num_received: u64,
    /// After the step.
    pub stats: EngineStats,
    /// What the step finished.
    pub result: Result<Vec<Answer>, EngineError>,
}

/// What an engine is told.
pub(super) enum Order {
    /// A request.
    Add(Box<Work>),
    /// The end of one, by its number.
    Abort(u64),
}

/// What was loaded.
pub(super) struct Loaded {
    pub info: EngineInfo,
    pub shared: Shared,
    pub makes_vectors: bool,
}

/// An engine on its thread. Dropped, it ends after the step that it is in.
pub(super) type Member = Worker<Order, Loaded>;

/// Begins to load an engine; with what another one shares, if there is one.
pub(super) fn start(
    engine: usize,
    config: EngineConfig,
    (load, shared): (LoadEngine, Option<Shared>),
    steps: Sender<Stepped>,
) -> Result<Member, EngineError> {
    let load = move || {
        let runner = load(&config, shared)?;
        let what = Loaded {
            info: runner.info().clone(),
            shared: runner.shared(),
            makes_vectors: runner.makes_vectors(),
        };
        Ok((what, runner))
    };
    let serve = move |mut runner, incoming: &Receiver<_>| {
        serve(engine, &mut runner, incoming, &steps);
    };
    Worker::start(format!("engine {engine}"), load, serve)
}

/// Steps until nobody gives orders any more, or the device fails.
fn serve(engine: usize, runner: &mut Runner, incoming: &Receiver<Order>, steps: &Sender<Stepped>) {
    let mut num_received = 0;
    loop {
        let received = match runner.has_unfinished_requests() {
            true => incoming.try_recv(),
            false => incoming.recv().map_err(|_| TryRecvError::Disconnected),
        };
        match received {
            Ok(order) => {
                num_received += 1;
                match order {
                    Order::Add(work) => runner.add_request(*work),
                    Order::Abort(request_id) => drop(runner.abort_request(request_id)),
                }
                // After the end of the last request one more step says that none is left.
                if runner.has_unfinished_requests() {
                    continue;
                }
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        let result = runner.step();
        let has_failed = result.is_err();
        let stepped = Stepped { engine, num_received, stats: runner.stats(), result };
        if steps.send(stepped).is_err() || has_failed {
            return;
        }
    }
}
