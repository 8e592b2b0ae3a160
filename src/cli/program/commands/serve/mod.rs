//! `serve`: one model behind HTTP. The crate `server` has the connections; here a model is loaded
//! as for `run`, requests become rows, and signals end it.

mod batches;
mod requests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::args::{PoolingFlags, RunArgs, ServeArgs, ServerArgs};
use crate::config::RunConfig;
use crate::model::{self, Folders, Loaded, Summary};
use crate::run::open_model::OpenModel;
use crate::run::signals::Signals;
use crate::run::{by_model, signed};
use batches::ServedModel;
use requests::{Notes, Requests};
use vllm_batch_api::sampling_params::UNLIMITED_LOGPROBS;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::reader::InputFormat;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::clock::now;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::runner::Runner;
use vllm_batch_server::{Ended, EngineThread, Served, Server, ServerConfig, Serving};

/// Serves a model until a signal comes.
///
/// # Errors
/// The address cannot be had, the model cannot be loaded, or its device fails.
pub fn run(args: ServeArgs, console: &Console) -> Result<Exit, CliError> {
    let (server, task, run, pooling) = args.into_run();
    let listening = bind(&server)?;
    let store = server.batch_dir.as_deref().map(batches::open).transpose()?;
    let flags = Flags { task: task.map(Task::from), run, pooling };
    let (config, folders, summary) = configured(&flags, console)?;
    if store.is_some() {
        batches::check(config.input.rows.task)?;
    }
    let config = Arc::new(config);
    let signals = Signals::install().map_err(|error| CliError::from_signals(&error))?;
    let max_logprobs = u32::try_from(server.max_logprobs).unwrap_or(UNLIMITED_LOGPROBS);
    let Ready { served, engine, model } = load(&config, &folders, summary, max_logprobs, console)?;
    let names = served.names.clone();
    let address = listening.address();
    let batches = store.map(|store| batches::of(store, &server, flags, model, console));
    let (serving, engine) = listening
        .serve(&server_config(&server), served, engine, batches)
        .map_err(|error| CliError::from_machine(format!("cannot start threads: {error}")))?;
    signals.begin();
    console.note(&format!("Serving {} at http://{address}", names[0]));
    if !address.ip().is_loopback() && server.api_key.is_empty() {
        console.warn("other machines may ask, without a key; --api-key KEY asks for one");
    }
    let timeout = Duration::from_secs(server.shutdown_timeout as u64);
    let ended = stepped(&serving, engine, &signals, timeout);
    serving.leave_batches();
    ended
}

/// Flags that say how requests are answered, and rows of batches.
#[derive(Clone)]
struct Flags {
    /// What requests ask for; None: what the model is for.
    task: Option<Task>,
    run: RunArgs,
    pooling: PoolingFlags,
}

/// A model that is loaded, and what asks it.
struct Ready {
    served: Served,
    engine: Runner,
    model: ServedModel,
}

fn bind(server: &ServerArgs) -> Result<Server, CliError> {
    let ServerArgs { host, port, .. } = server;
    Server::bind(host, *port).map_err(|error| {
        let message = format!("cannot listen on {host}:{port}: {error}");
        CliError::refused("address", message).help("give another --port, or 0 for any free one")
    })
}

fn server_config(args: &ServerArgs) -> ServerConfig {
    ServerConfig {
        api_keys: args.api_key.clone(),
        allowed_hosts: args.allowed_hosts.clone(),
        max_body_bytes: args.max_body_bytes as usize,
        max_connections: args.max_connections,
        max_num_queued_reqs: args.max_num_queued_reqs,
    }
}

/// The configuration, by what the model is for where no flag says it.
fn configured(flags: &Flags, console: &Console) -> Result<(RunConfig, Folders, Summary), CliError> {
    let Flags { task, run, pooling } = flags.clone();
    if task == Some(Task::Reward) {
        let message = "--task reward: no endpoint answers with rewards";
        let help = "`vllm-batch reward` does, over a dataset; --task score serves scores";
        return Err(CliError::refused("flag", message).help(help));
    }
    let config = RunConfig::new(run.clone())?;
    let folders = model::find(&config, console)?;
    let pooled = |task| -> Result<_, CliError> {
        let config = RunConfig::of_lines(task, run.clone(), pooling.clone())?;
        let summary = model::summary_for(&config, &folders)?;
        Ok((config, summary))
    };
    let (mut config, summary) = match task {
        Some(task) => pooled(task)?,
        None => match model::summary_for(&config, &folders) {
            Ok(summary) => (config, summary),
            Err(_) if model::makes_vectors(&config, &folders) => {
                let vectors = pooled(Task::Embed);
                vectors.or_else(|error| pooled(Task::Classify).map_err(|_| error))?
            }
            Err(error) => return Err(error),
        },
    };
    let rows = &mut config.input.rows;
    // Requests are no rows of the prompt that the flags were read for.
    (rows.prompt_column, rows.are_streamed) = (None, true);
    config.output.is_answer_alone = false;
    Ok((config, folders, summary))
}

/// Loads the model, as `run` does.
fn load(
    config: &Arc<RunConfig>,
    folders: &Folders,
    summary: Summary,
    max_logprobs: u32,
    console: &Console,
) -> Result<Ready, CliError> {
    let OpenModel { summary, base, files, loaded } =
        OpenModel::load(config, folders, summary, None, &model::load_from)?;
    let files = files.join().expect("a panic ends the process in its hook")?;
    let (processor, info) = (loaded.engine.input_processor(), loaded.engine.info());
    by_model::check(config, &base, &processor)?;
    loaded.announce(info, config, console);
    let (format, _) = signed(config, &shape(config), files.clone(), &summary, &loaded.engine)?;
    let RowFormat::Json(json) = format.clone() else { unreachable!("requests are JSON") };
    let notes = Notes::new(console);
    let requests = Requests {
        config: config.clone(),
        base,
        processor: processor.clone(),
        format,
        notes,
        max_logprobs,
    };
    let Loaded { engine, model_dir, .. } = loaded;
    let model = ServedModel { config: config.clone(), summary, files, model_dir };
    let served = Served {
        format: json,
        processor,
        names: names(config),
        created: now(),
        ask: Box::new(move |request| requests.ask(request)),
    };
    Ok(Ready { served, engine, model })
}

/// Names that requests may have for the model, and those of its adapters.
fn names(config: &RunConfig) -> Vec<String> {
    let own = [config.model.served_name.clone(), config.model.name.clone()];
    let adapters = config.engine.lora.modules.iter().map(|module| module.name.clone());
    let mut names: Vec<String> = Vec::new();
    for name in own.into_iter().chain(adapters) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The shape of an input of requests.
fn shape(config: &RunConfig) -> Shape {
    Shape {
        format: InputFormat::Jsonl,
        headers: None,
        delimiter: None,
        crlf: false,
        is_marked: false,
        has_batch_lines: true,
        is_chat: false,
        is_batch: true,
        is_fixed: true,
        task: config.input.rows.task,
    }
}

/// Steps the engine until a signal has come and requests have ended, or may not take longer.
fn stepped(
    serving: &Serving,
    engine: EngineThread,
    signals: &Signals,
    timeout: Duration,
) -> Result<Exit, CliError> {
    let deadline = std::cell::Cell::new(None);
    let is_told_to_end = || {
        if signals.exit().is_none() {
            return false;
        }
        let deadline = deadline.get().unwrap_or_else(|| {
            serving.drain();
            let at = Instant::now() + timeout;
            deadline.set(Some(at));
            at
        });
        Instant::now() >= deadline
    };
    let ended = engine.run(is_told_to_end)?;
    match (ended, signals.exit()) {
        (Ended::Told, Some(exit)) => Ok(exit),
        (Ended::Told | Ended::Answered, _) => Ok(Exit::Success),
    }
}
