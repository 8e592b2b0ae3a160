//! The thread that compiles and renders a model's templates. Values and sources nest deeper than
//! the stack of any other thread allows. It is made once: a thread for each row could be refused in
//! a bad moment, and a good row would be an error row.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;

use minijinja::{Environment, Value};

use super::budget::Budget;
use super::program::Program;
use super::{describe, environment, syntax};
use crate::dialect;
use vllm_batch_base::contained;

/// Stack of the thread. Values nest at most `weight::MAX_DEPTH` deep, sources at most
/// `dialect::MAX_STEPS`. Only what is used takes memory.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// The sources of a model's templates.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub default: String,
    pub tool_use: Option<String>,
}

/// Why there is no worker.
#[derive(Debug)]
pub(super) enum NoWorker {
    /// The machine has no thread or no memory for it now.
    Refused(io::Error),
    /// The template does not compile.
    Template(String),
}

/// A running worker. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    /// Whether the templates for chats without tools, and with them, loop over content.
    loops_over_content: [bool; 2],
}

struct Job {
    /// With the template for conversations with tools, where there is one.
    with_tools: bool,
    context: Value,
    answer: SyncSender<Result<String, String>>,
}

/// Templates of the thread.
struct Templates {
    budget: Arc<Budget>,
    environment: Environment<'static>,
    default: Program,
    tool_use: Option<Program>,
}

impl Worker {
    /// Starts the thread and compiles the templates in it.
    pub(super) fn start(sources: Sources, stack_bytes: usize) -> Result<Self, NoWorker> {
        let (jobs, received) = channel();
        let (compiled, outcome) = sync_channel(1);
        let work = move || match contained::contain(|| Templates::compile(sources)) {
            Some(Ok(templates)) => {
                let _ = compiled.send(Ok(templates.loops_over_content()));
                templates.serve(&received);
            }
            Some(Err(error)) => drop(compiled.send(Err(error))),
            None => drop(compiled.send(Err("the chat template engine failed on it".to_owned()))),
        };
        let thread = Builder::new().name("template".to_owned()).stack_size(stack_bytes);
        thread.spawn(work).map_err(NoWorker::Refused)?;
        match outcome.recv() {
            Ok(Ok(loops_over_content)) => Ok(Self { jobs, loops_over_content }),
            Ok(Err(error)) => Err(NoWorker::Template(error)),
            Err(_) => unreachable!("the thread answers before it ends"),
        }
    }

    /// Whether a template loops over the content of messages.
    pub(super) fn loops_over_content(&self, with_tools: bool) -> bool {
        self.loops_over_content[usize::from(with_tools)]
    }

    /// Renders with the variables of `context`; the error is for the row.
    pub(super) fn render(&self, with_tools: bool, context: Value) -> Result<String, String> {
        let (answer, rendered) = sync_channel(1);
        let sent = self.jobs.send(Job { with_tools, context, answer });
        sent.ok().and_then(|()| rendered.recv().ok()).expect("the thread lives as long as this")
    }
}

impl Templates {
    fn compile(sources: Sources) -> Result<Self, String> {
        let compile = |source: &str| {
            let syntax = syntax().map_err(|error| describe(&error))?;
            Program::compile(dialect::translate(source)?, syntax).map_err(|error| describe(&error))
        };
        let budget = Arc::new(Budget::default());
        Ok(Self {
            environment: environment(&budget),
            budget,
            default: compile(&sources.default)?,
            tool_use: sources.tool_use.as_deref().map(compile).transpose()?,
        })
    }

    fn loops_over_content(&self) -> [bool; 2] {
        let tool_use = self.tool_use.as_ref().unwrap_or(&self.default);
        [self.default.loops_over_content(), tool_use.loops_over_content()]
    }

    fn serve(&self, jobs: &Receiver<Job>) {
        while let Ok(Job { with_tools, context, answer }) = jobs.recv() {
            // minijinja 3.0.5 panics on some expressions; that must cost one row, not the run.
            let rendered = contained::contain(|| self.render(with_tools, context));
            let failed = || Err("the chat template engine failed on this row".to_owned());
            let _ = answer.send(rendered.unwrap_or_else(failed));
        }
    }

    fn render(&self, with_tools: bool, context: Value) -> Result<String, String> {
        self.budget.reset();
        let tool_use = self.tool_use.as_ref().filter(|_| with_tools);
        let program = tool_use.unwrap_or(&self.default);
        program.render(&self.environment, context).map_err(|error| describe(&error))
    }
}
