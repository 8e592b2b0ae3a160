//! `plan`: what a run would be. Every row is read and tokenized as `run` does it; some are run for
//! a few seconds, and the time of all is estimated from that. Nothing is written.

mod estimate;
mod lengths;
mod report;
mod sample;
mod survey;

use std::io::{self, Write};
use std::mem;
use std::time::Instant;

use crate::args::{FlagFiles, PlanArgs, PoolingFlags, RunArgs, TaskArg};
use crate::config::{RunConfig, first_typed};
use crate::ledger::LockedOutput;
use crate::ledger::error::LedgerError;
use crate::model::{self, Loaded, Summary};
use crate::run::read::Input;
use crate::run::row_params::RowParams;
use crate::run::{files_of, inputs};
use estimate::Estimate;
use report::Report;
use sample::Sample;
use survey::Survey;
use vllm_batch_dataset::input::files;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::runner::{Runner, Work};

/// Full steps that a sample of texts is enough for, about.
const TEXT_STEPS: usize = 16;

/// Plans a run, and prints the plan on standard output.
///
/// # Errors
/// What `run` would refuse before its first row.
pub fn run(args: PlanArgs, named: FlagFiles, console: &Console) -> Result<Exit, CliError> {
    let started = Instant::now();
    let (flags, mut run, of_texts) = args.into_parts();
    model::fetch_inputs(&mut run.input.input, &run.input.dataset, console)?;
    let config = planned(flags.task, run.clone(), of_texts)?;
    let input = files::open(&config.input.sources, &config.input.rows)?;
    let mut rows = Input::open(&config.input, input)?;
    let shape = rows.shape();
    let config = match shape.task == config.input.rows.task {
        true => config,
        false => RunConfig::of_lines(shape.task, run, PoolingFlags::default())?,
    };
    let format = RowFormat::new(&config.format_settings(), &shape)?;
    // A summary is that of the run that is planned.
    let named = named.without("--stats");
    let locked = LockedOutput::of_documents(named, inputs(&config.input.sources));
    let mut locked = locked.map_err(LedgerError::at_start)?;
    let folders = model::find(&config, console)?;
    let read = files_of(&folders).and_then(|files| locked.refuse_read(&files));
    read.map_err(LedgerError::at_start)?;
    let summary = model::summary_for(&config, &folders)?;
    let base = RowParams::start(&config, &summary)?;
    let loaded = match &summary {
        Summary::Generate(summary) => model::load_from(&config, &folders, summary)?.into_runner(),
        Summary::Pooling(summary) => model::load_pooling(&config, &folders, summary)?,
    };
    drop(summary);
    config.check_chat(loaded.engine.input_processor().has_chat_template(), false)?;
    loaded.announce(loaded.engine.info(), &config, console);
    let Loaded { mut engine, load_time, .. } = loaded;

    let sizes = engine.info().step_sizes;
    let (max_num_seqs, max_num_batched_tokens) = (sizes.max_num_seqs, sizes.max_num_batched_tokens);
    let explained = flags.explain.map_or(1, |row| row as u64);
    let format = format.with_width(base.width());
    let survey = Survey::new(&config, engine.input_processor(), (base, format), explained);
    let mut surveyed = survey.read(&mut rows, max_sample_rows(&engine, max_num_seqs), console)?;
    // A shard may be empty: nothing in it is a chat.
    let needs_template =
        surveyed.num_rows > 0 && surveyed.failed_by("no_chat_template") == surveyed.num_rows;
    config.check_chat(!needs_template, needs_template)?;
    if flags.explain.is_some() && surveyed.explained.is_none() {
        let message = format!("--explain {explained}: the input has {} rows", surveyed.num_rows);
        return Err(CliError::refused("explain", message));
    }
    let limits = estimate::Limits {
        max_num_seqs,
        max_num_batched_tokens,
        num_cache_tokens: engine.info().num_cache_tokens,
    };
    let requests = mem::take(&mut surveyed.sample);
    let sample = sampled(&mut engine, requests, flags.sample_seconds(), limits, console)?;
    let estimate = sample.as_ref().map(|sample| Estimate::new(&surveyed, sample, limits));
    let report = Report {
        model: &config.model.name,
        input: &config.input.name,
        info: engine.info(),
        completes: !engine.makes_vectors(),
        block_size: engine.info().block_size,
        load_time,
        elapsed: started.elapsed(),
        limits,
        surveyed: &surveyed,
        sample: sample.as_ref(),
        estimate,
    };
    for document in locked.take_documents("--output-json") {
        document.write(&report.json())?;
    }
    let written = writeln!(io::stdout(), "{}", report.text());
    written.map_err(|error| CliError::from_stdout(&error))?;
    Ok(if surveyed.num_failed() > 0 { Exit::ErrorRows } else { Exit::Success })
}

/// Runs some rows for so many seconds; None: there are no seconds, or no rows.
fn sampled(
    engine: &mut Runner,
    requests: Vec<Work>,
    seconds: f64,
    limits: estimate::Limits,
    console: &Console,
) -> Result<Option<Sample>, CliError> {
    if seconds <= 0.0 || requests.is_empty() {
        return Ok(None);
    }
    console.note(&format!("Running rows for {seconds} s to estimate the time"));
    let estimate::Limits { max_num_seqs, max_num_batched_tokens, .. } = limits;
    Ok(Some(match engine.makes_vectors() {
        false => sample::run(engine, requests, seconds, max_num_seqs)?,
        true => sample::run_texts(engine, requests, seconds, max_num_batched_tokens)?,
    }))
}

/// The run that is planned: that of `run`, or of the command of a task.
fn planned(
    task: Option<TaskArg>,
    run: RunArgs,
    of_texts: PoolingFlags,
) -> Result<RunConfig, CliError> {
    if let Some(task) = task {
        return RunConfig::of_lines(task.into(), run, of_texts);
    }
    let PoolingFlags { vectors, classes, sides, ranking, .. } = &of_texts;
    let typed = first_typed(vectors)
        .or_else(|| first_typed(classes))
        .or_else(|| first_typed(sides))
        .or_else(|| first_typed(ranking));
    match typed {
        None => Ok(RunConfig::new(run)?.by_lines()),
        Some(flag) => Err(CliError::refused("flag", format!("--{flag}: `run` has no such flag"))
            .help("name the command that is planned: --task embed, ...")),
    }
}

/// Rows to run at most. Whole texts go through an engine fast.
fn max_sample_rows(engine: &Runner, max_num_seqs: usize) -> usize {
    match engine.makes_vectors() {
        false => max_num_seqs,
        true => TEXT_STEPS * max_num_seqs,
    }
}
