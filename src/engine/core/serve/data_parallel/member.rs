//! One engine on its own thread, on which its device is opened, used and closed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::serve::input_processor::InputProcessor;
use crate::serve::runner::{Runner, Work};
use crate::stats::EngineStats;
use crate::{EngineInfo, LOADING_STACK};
use vllm_batch_api::answer::Answer;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::machine::no_thread;

use super::LoadEngine;

/// What an engine tells the thread that has them all.
pub(super) struct Stepped {
    /// Which one.
    pub engine: usize,
    /// Requests that it had received before the step.
    pub num_received: u64,
    /// After the step.
    pub stats: EngineStats,
    /// What the step finished.
    pub result: Result<Vec<Answer>, EngineError>,
}

/// What was loaded.
pub(super) struct Loaded {
    pub info: EngineInfo,
    pub input_processor: Arc<InputProcessor>,
    pub makes_vectors: bool,
}

/// An engine on its thread. Dropped, it ends after the step that it is in.
pub(super) struct Member {
    requests: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    loaded: Receiver<Result<Loaded, EngineError>>,
}

impl Member {
    /// Begins to load an engine; with `processor`, without a tokenizer of its own.
    pub(super) fn start(
        engine: usize,
        config: EngineConfig,
        (load, processor): (LoadEngine, Option<Arc<InputProcessor>>),
        steps: Sender<Stepped>,
    ) -> Result<Self, EngineError> {
        let (requests, incoming) = channel();
        let (loaded_sender, loaded) = channel();
        let run = move || {
            let mut runner = match load(&config, processor) {
                Ok(runner) => runner,
                Err(error) => {
                    let _ = loaded_sender.send(Err(error));
                    return;
                }
            };
            let what = Loaded {
                info: runner.info().clone(),
                input_processor: runner.input_processor(),
                makes_vectors: runner.makes_vectors(),
            };
            if loaded_sender.send(Ok(what)).is_ok() {
                serve(engine, &mut runner, &incoming, &steps);
            }
        };
        let thread = std::thread::Builder::new().name(format!("engine {engine}"));
        let thread = thread.stack_size(LOADING_STACK).spawn(run);
        let thread = thread.map_err(|error| no_thread(&error))?;
        Ok(Self { requests: Some(requests), thread: Some(thread), loaded })
    }

    /// Waits until it is loaded.
    ///
    /// # Errors
    /// It cannot be.
    pub(super) fn loaded(&self) -> Result<Loaded, EngineError> {
        let ended = || EngineError::Device("its thread has ended while it loaded".to_owned());
        self.loaded.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Gives it a request. What happens to one that an ended thread gets, `has_ended` says.
    pub(super) fn send(&self, work: Work) {
        let requests = self.requests.as_ref().expect("it is there until the drop");
        let _ = requests.send(work);
    }

    /// Whether its thread has ended, which only a failure makes it do.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Steps until nobody gives requests any more, or the device fails.
fn serve(engine: usize, runner: &mut Runner, incoming: &Receiver<Work>, steps: &Sender<Stepped>) {
    let mut num_received = 0;
    loop {
        let received = match runner.has_unfinished_requests() {
            true => incoming.try_recv(),
            false => incoming.recv().map_err(|_| TryRecvError::Disconnected),
        };
        match received {
            Ok(work) => {
                runner.add_request(work);
                num_received += 1;
                continue;
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
