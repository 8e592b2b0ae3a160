//! `Worker`: the thread that runs batches, one after the other, each through its states. What it
//! has done is in the folder before it goes on, so that a server that was killed goes on there.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::borrowed::BatchEngine;
use super::checked_lines::{self, Checked, Expected};
use super::published::counted;
use super::record::{Api, BatchRecord, LineError, Status};
use super::store::Store;
use super::{BatchRun, Batches, Job, Unfinished};
use crate::engine_thread::Asker;
use crate::served::Served;
use vllm_batch_dataset::input::row_error::NotRun;
use vllm_batch_dataset::terminal::clock::now;

/// How long a batch waits that the machine lacks something for.
const PAUSE: Duration = Duration::from_secs(10);

/// How often the time of a batch is looked at.
const TICK: Duration = Duration::from_millis(200);

/// Names of the results in the folder of a batch.
pub(super) const OUTPUT: &str = "output";
pub(super) const ERRORS: &str = "error";

/// Runs batches.
pub(crate) struct Worker {
    batches: Arc<Batches>,
    served: Arc<Served>,
    asker: Asker,
}

/// Why a batch goes no further.
enum Halt {
    /// The server ends.
    Stopped,
    /// The machine lacks something.
    Again(String),
    /// It cannot be run.
    Failed(Vec<LineError>),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Halt::Again(error.to_string())
    }
}

impl Worker {
    /// Starts it.
    pub(crate) fn start(
        batches: Arc<Batches>,
        served: Arc<Served>,
        asker: Asker,
    ) -> io::Result<JoinHandle<()>> {
        let worker = Self { batches, served, asker };
        std::thread::Builder::new().name("batches".to_owned()).spawn(move || worker.work())
    }

    fn work(self) {
        while let Some(batch) = self.store().next(|| self.batches.runner.prepare()) {
            let halted = self.advance(&batch.id);
            let goes_on = match halted {
                Ok(()) => true,
                Err(Halt::Stopped) => self.store().is_stopping() || self.store().pause(PAUSE),
                Err(Halt::Again(why)) => {
                    self.say(&batch.id, &format!("{why}; it is tried again"));
                    self.store().pause(PAUSE)
                }
                Err(Halt::Failed(errors)) => self.fail(&batch.id, errors),
            };
            self.store().end_run();
            if !goes_on {
                return;
            }
        }
    }

    fn store(&self) -> &Store {
        &self.batches.store
    }

    fn say(&self, id: &str, text: &str) {
        self.batches.runner.say(&format!("{id}: {text}"));
    }

    /// A batch that cannot be run has no results. Lines that were answered stay in its folder.
    fn fail(&self, id: &str, errors: Vec<LineError>) -> bool {
        let failed = self.store().change(id, |batch| {
            batch.errors = errors;
            batch.enter(Status::Failed, now());
        });
        match failed {
            Ok(_) => true,
            Err(error) => {
                self.say(id, &error.to_string());
                self.store().pause(PAUSE)
            }
        }
    }

    /// Brings a batch to its end, from wherever it is.
    fn advance(&self, id: &str) -> Result<(), Halt> {
        let run = self.store().run_of(id).expect("it was prepared");
        // What it is now: it may have been cancelled since it was chosen.
        let mut batch = self.store().record(id);
        if batch.status == Status::Cancelling {
            run.give_up(NotRun::Cancelled);
        }
        if batch.status == Status::Validating {
            batch = self.validate(batch)?;
        }
        if batch.in_progress_at.is_none() {
            // It was cancelled while its lines were looked at: no line was asked.
            self.store().change(id, |batch| batch.enter(Status::Cancelled, now()))?;
            return Ok(());
        }
        if !batch.is_run {
            batch = self.run(&batch, &run)?;
        }
        self.publish(&batch)
    }

    /// Looks at the lines of a batch.
    fn validate(&self, batch: BatchRecord) -> Result<BatchRecord, Halt> {
        let is_over = || {
            let now = self.store().record(&batch.id).status;
            self.store().is_stopping() || now != Status::Validating
        };
        let expected =
            Expected { endpoint: &batch.endpoint, names: &self.served.names, is_over: &is_over };
        let checked = match batch.api {
            Api::OpenAi => checked_lines::check(&self.input(&batch), &expected)?,
            // They were looked at when they came.
            Api::Anthropic => {
                let (num_lines, model) = (batch.counts.total, None);
                Some(Checked { num_lines, model, errors: Vec::new() })
            }
        };
        let Some(Checked { num_lines, model, errors }) = checked else {
            return match self.store().is_stopping() {
                true => Err(Halt::Stopped),
                false => Ok(self.store().record(&batch.id)),
            };
        };
        if !errors.is_empty() {
            return Err(Halt::Failed(errors));
        }
        let changed = self.store().change(&batch.id, |batch| {
            batch.counts.total = num_lines;
            if let Some(model) = model {
                batch.model = model;
            }
            // It may have been cancelled meanwhile: then none of its lines is asked.
            if batch.status == Status::Validating {
                batch.enter(Status::InProgress, now());
            }
        });
        Ok(changed?)
    }

    fn input(&self, batch: &BatchRecord) -> PathBuf {
        match batch.api {
            Api::OpenAi => self.store().content(&batch.input_file_id),
            Api::Anthropic => self.store().work_folder(&batch.id).join("requests.jsonl"),
        }
    }

    fn result(&self, batch: &BatchRecord, part: &str) -> PathBuf {
        self.store().work_folder(&batch.id).join(format!("{part}.jsonl"))
    }

    /// Answers its lines, or gives them up where it was cancelled or its time is over.
    fn run(&self, batch: &BatchRecord, run: &Arc<dyn BatchRun>) -> Result<BatchRecord, Halt> {
        fs::create_dir_all(self.store().work_folder(&batch.id))?;
        let processor = Arc::clone(&self.served.processor);
        let engine = BatchEngine::new(self.asker.clone(), processor);
        let job = Job {
            input: self.input(batch),
            output: self.result(batch, OUTPUT),
            errors: (batch.api == Api::OpenAi).then(|| self.result(batch, ERRORS)),
            engine: Box::new(engine),
        };
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| run.run(job));
            let has_deadline = self.batches.has_deadlines;
            while has_deadline && !running.is_finished() {
                if now() >= batch.expires_at {
                    run.give_up(NotRun::Expired);
                }
                std::thread::park_timeout(TICK);
            }
            running.join().expect("a panic ends the process in its hook")
        });
        match ended {
            Ok(()) => {}
            Err(Unfinished::Stopped) => return Err(Halt::Stopped),
            Err(Unfinished::Again(why)) => return Err(Halt::Again(why)),
            Err(Unfinished::Failed(code, message)) => {
                let (code, param, line) = (code.to_owned(), None, None);
                return Err(Halt::Failed(vec![LineError { code, message, param, line }]));
            }
        }
        let files = [OUTPUT, ERRORS].map(|part| self.result(batch, part));
        let (counts, usage) = counted(&[&files[0], &files[1]], batch.counts.total)?;
        let changed = self.store().change(&batch.id, |batch| {
            (batch.counts, batch.usage, batch.is_run) = (counts, usage, true);
            if batch.status == Status::InProgress {
                batch.enter(Status::Finalizing, now());
            }
        });
        Ok(changed?)
    }

    /// Shows the results of a batch that was run.
    fn publish(&self, batch: &BatchRecord) -> Result<(), Halt> {
        let (mut output, mut errors) = (None, None);
        if batch.api == Api::OpenAi {
            output = self.store().publish(batch, OUTPUT)?;
            errors = self.store().publish(batch, ERRORS)?;
        }
        self.store().change(&batch.id, |batch| {
            (batch.output_file_id, batch.error_file_id) = (output, errors);
            let end = match batch.status {
                Status::Cancelling => Status::Cancelled,
                _ if batch.counts.expired > 0 => Status::Expired,
                _ => Status::Completed,
            };
            batch.enter(end, now());
        })?;
        if batch.api == Api::OpenAi {
            // What is in it is in the files.
            let _ = fs::remove_dir_all(self.store().work_folder(&batch.id));
        }
        Ok(())
    }
}

/// Waits for the thread, for a while: it is in the middle of no file then.
pub(crate) fn joined(thread: JoinHandle<()>, time: Duration) -> bool {
    let until = Instant::now() + time;
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    thread.is_finished() && thread.join().is_ok()
}
