//! `Running`, the last phase: the threads. One reads, this one steps the engine, one writes, one
//! shows progress, and one waits for the end.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::end::{Ended, Ending, side_text};
use super::feed::Feed;
use super::loaded::{Begun, Loaded};
use super::opened::Session;
use super::previous::Previous;
use super::progress::Progress;
use super::read::Order;
use super::shared::Shared;
use super::signals::Signals;
use super::window::Window;
use super::write::{Message, WriteThread, Written};
use crate::model::resolved::Resolved;
use vllm_batch_api::request::SamplingParams;
use vllm_batch_base::machine;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::runner::{Runner, Work};

/// How often an engine without work looks for signals.
const IDLE: Duration = Duration::from_millis(50);

/// A run whose threads work.
pub struct Running<'a> {
    driver: Driver,
    writing: JoinHandle<Written>,
    progress: Progress,
    ending: Ending<'a>,
}

impl<'a> Running<'a> {
    /// Begins the ledger, and starts the threads.
    ///
    /// # Errors
    /// The output is another run's, or cannot be written.
    pub fn of(loaded: Loaded<'a>) -> Result<Self, CliError> {
        let Loaded {
            session,
            config,
            reading,
            shape,
            format,
            base,
            engine,
            load_time,
            fingerprint,
            output,
            then,
        } = loaded;
        let Session { console, signals, counters, rest, remote, ready: _ } = session;
        let begun = Begun::of(output, &config, &fingerprint, then, console)?;
        let Begun { ledger, recovered, previous, left, document } = begun;
        signals.begin();

        let window = Window::new(config.window(engine.info().step_sizes.max_num_seqs));
        let stats = Mutex::new(engine.stats());
        let shared = Arc::new(Shared { config, window, counters, rest, stats });
        let (rows, messages) = channel();
        let (requests, incoming) = channel();
        let processor = engine.input_processor();
        let processor = Arc::new(processor.with_chat_date(shared.config.engine.model.chat_date));
        let max_tokens = max_tokens(&shared, &processor.default_sampling_params(), &shape);
        let untold = previous.as_ref().map(Previous::untold).unwrap_or_default();
        let writing = WriteThread::new(shared.clone(), format.clone(), processor.clone());
        let writing = writing.after(untold);
        let side_text = side_text(shared.clone(), fingerprint, &format);
        let writing = std::thread::Builder::new()
            .spawn(move || writing.run(ledger, &shape, &messages, side_text));
        let writing = machine::started(writing);
        let ending = Ending {
            shared: shared.clone(),
            console,
            signals: signals.clone(),
            started: Instant::now(),
            load_time,
            resolved: Resolved::new(&shared.config, engine.info()),
            max_tokens,
            max_model_len: processor.max_model_len(),
            left,
            document,
            remote,
        };
        let feed = Feed {
            shared: shared.clone(),
            processor,
            format,
            base,
            rows: rows.clone(),
            requests,
            recovered,
            previous,
            ids: None,
        };
        let _ = reading.order.send(Order::Feed(Box::new(feed)));
        let counters = shared.counters.clone();
        let progress = Progress::start(console.clone(), counters, signals.progress());
        let under_way = HashSet::new();
        let driver = Driver { engine, shared, signals, incoming, rows, under_way };
        Ok(Self { driver, writing, progress, ending })
    }

    /// Steps the engine to the end of the run, and waits for whoever waits for that.
    ///
    /// # Errors
    /// Whatever ends the run before its last row.
    pub fn finish(self) -> Result<Exit, CliError> {
        let Self { mut driver, writing, progress, ending } = self;
        std::thread::scope(|scope| {
            let (ended_sender, ended) = channel();
            let rows = driver.rows.clone();
            let ending = move || ending.wait(&ended, rows, writing, progress);
            let ending = std::thread::Builder::new().spawn_scoped(scope, ending);
            let ending = machine::started(ending);
            let ended = driver.drive();
            drop(driver.rows);
            let _ = ended_sender.send(ended);
            ending.join().expect("a panic ends the process in its hook")
        })
    }
}

/// Most tokens of an answer, which the estimate of the time goes by.
fn max_tokens(shared: &Shared, defaults: &SamplingParams, shape: &Shape) -> Option<u32> {
    let params = shared.config.start_of_rows(defaults, shape);
    if let Some(tokens) = params.max_tokens.filter(|_| shape.task == Task::Complete) {
        shared.counters.set_max_tokens(u64::from(tokens) * params.n as u64);
    }
    params.max_tokens
}

/// The engine, and what it is fed from and answers to.
struct Driver {
    engine: Runner,
    shared: Arc<Shared>,
    signals: Signals,
    incoming: Receiver<Result<Work, CliError>>,
    rows: Sender<Message>,
    /// Numbers of requests that the engine has.
    under_way: HashSet<u64>,
}

impl Driver {
    /// Steps the engine until every row is answered. An input that breaks off ends the run when
    /// what was read of it is answered; a row that ends it does so at once.
    fn drive(&mut self) -> Result<Ended, CliError> {
        let mut broken_off = None;
        loop {
            if let Some(exit) = self.signals.exit() {
                return Ok(Ended::Signal(exit));
            }
            let is_given_up = self.shared.rest.given_up().is_some();
            if self.shared.window.is_closed() || is_given_up && !self.give_up() {
                return Ok(Ended::NoWriter);
            }
            let next = match self.engine.has_unfinished_requests() {
                true => self.incoming.try_recv().ok(),
                false => match self.incoming.recv_timeout(IDLE) {
                    Ok(request) => Some(request),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => {
                        return broken_off.map_or(Ok(Ended::Complete), Err);
                    }
                },
            };
            for request in next.into_iter().chain(self.incoming.try_iter()) {
                match request {
                    Ok(request) => {
                        self.under_way.insert(request.request_id());
                        self.engine.add_request(request);
                    }
                    Err(error) if error.exit == Exit::Stopped => broken_off = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if !self.engine.has_unfinished_requests() {
                continue;
            }
            let outputs = self.engine.step()?;
            self.shared.set_stats(self.engine.stats());
            for output in outputs {
                if output.is_finished() {
                    self.under_way.remove(&output.request_id());
                }
                if self.rows.send(Message::Done(output)).is_err() {
                    return Ok(Ended::NoWriter);
                }
            }
        }
    }

    /// Gives up every request that the engine has. False: nobody writes their rows.
    fn give_up(&mut self) -> bool {
        let Self { engine, rows, under_way, .. } = self;
        under_way.drain().all(|position| {
            engine.abort_request(position);
            rows.send(Message::NotRun { position }).is_ok()
        })
    }
}
