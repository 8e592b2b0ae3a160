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

use crate::cli::args::PlanArgs;
use crate::cli::config::RunConfig;
use crate::cli::input::files;
use crate::cli::ledger::Document;
use crate::cli::model::{self, Loaded};
use crate::cli::run::read::Input;
use crate::cli::run::read_files;
use crate::cli::terminal::console::Console;
use crate::cli::terminal::error::CliError;
use crate::cli::terminal::exit::Exit;
use estimate::Estimate;
use report::Report;
use survey::Survey;

/// Plans a run, and prints the plan on standard output.
///
/// # Errors
/// What `run` would refuse before its first row.
pub fn run(args: PlanArgs, console: &Console) -> Result<Exit, CliError> {
    let started = Instant::now();
    let PlanArgs { plan: flags, run } = args;
    let template = run.input.chat_template.clone();
    let config = RunConfig::new(run)?;
    let mut rows = Input::open(&config.input, files::open(&config.input.sources)?)?;
    let read = read_files(&config.input.sources, template);
    let document = Document::output_json(flags.output_json.as_deref(), &read)?;
    let folders = model::find(&config, console)?;
    let summary = model::summary(&config, &folders)?;
    config.check_sampling(summary.default_sampling_params(), summary.spec.vocab_size())?;
    let loaded = model::load_from(&config, &folders, &summary)?;
    drop(summary);
    config.check_chat(loaded.engine.input_processor().has_chat_template(), false)?;
    loaded.announce(loaded.engine.info(), &config, console);
    let Loaded { mut engine, load_time, .. } = loaded;

    let max_num_seqs = config.engine.scheduler.max_num_seqs;
    let explained = flags.explain.map_or(1, |row| row as u64);
    let survey = Survey::new(&config, engine.input_processor(), explained);
    let mut surveyed = survey.read(&mut rows, max_num_seqs, console)?;
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
        max_num_batched_tokens: config.engine.scheduler.max_num_batched_tokens,
        num_cache_tokens: engine.info().num_cache_tokens,
    };
    let (seconds, requests) = (flags.sample_seconds(), mem::take(&mut surveyed.sample));
    let sample = match seconds > 0.0 && !requests.is_empty() {
        true => {
            console.note(&format!("Running rows for {seconds} s to estimate the time"));
            Some(sample::run(&mut engine, requests, seconds, max_num_seqs)?)
        }
        false => None,
    };
    let estimate = sample.as_ref().map(|sample| Estimate::new(&surveyed, sample, limits));
    let report = Report {
        model: &config.model.name,
        input: &config.input.name,
        info: engine.info(),
        block_size: engine.stats().block_size,
        load_time,
        elapsed: started.elapsed(),
        limits,
        surveyed: &surveyed,
        sample: sample.as_ref(),
        estimate,
    };
    if let Some(document) = document {
        document.write(&report.json()).map_err(CliError::from_output_midway)?;
    }
    let written = writeln!(io::stdout(), "{}", report.text());
    written.map_err(|error| CliError::from_stdout(&error))?;
    Ok(if surveyed.num_failed() > 0 { Exit::ErrorRows } else { Exit::Success })
}
