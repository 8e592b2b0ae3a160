//! `plan`: what a run would be. Every row is read and tokenized as `run` does it; some are run for
//! a few seconds, and the time of all is estimated from that. Nothing is written.

mod estimate;
mod lengths;
mod report;
mod sample;
mod survey;

use std::io::{self, Write};

use super::args::PlanArgs;
use super::config::RunConfig;
use super::console::Console;
use super::error::CliError;
use super::exit::Exit;
use super::model::{self, Loaded};
use super::progress::Counters;
use super::result_file;
use super::run::read::{self, Input};
use estimate::Estimate;
use report::Report;
use survey::Survey;

/// Plans a run, and prints the plan on standard output.
///
/// # Errors
/// What `run` would refuse before its first row.
pub fn run(args: PlanArgs, console: &Console) -> Result<Exit, CliError> {
    let (args, flags) = args.split();
    let config = RunConfig::new(args)?;
    if let Some(path) = &flags.output_json {
        result_file::check("--output-json", "output_json", path)?;
    }
    let mut rows = Input::open(&config.input, read::open(&config.input)?)?;
    let folders = model::find(&config, console)?;
    let summary = model::summary(&config, &folders)?;
    config.check_sampling(summary.default_sampling_params(), summary.spec.vocab_size)?;
    let loaded = model::load_from(&config, &folders)?;
    config.check_chat(loaded.engine.input_processor().has_chat_template(), false)?;
    loaded.announce(&config, console);
    let Loaded { mut engine, load_time, .. } = loaded;

    let max_num_seqs = config.engine.scheduler.max_num_seqs;
    let explained = flags.explain.map_or(1, |row| row as u64);
    let survey = Survey::new(&config, engine.input_processor(), explained);
    let surveyed = survey.read(&mut rows, max_num_seqs, console)?;
    let needs_template = surveyed.failed_by("no_chat_template") == surveyed.num_rows;
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
    let (seconds, requests) = (flags.sample_seconds(), surveyed.sample.clone());
    let sample = match seconds > 0.0 && !requests.is_empty() {
        true => {
            console.note(&format!("Running rows for {seconds} s to estimate the time"));
            Some(sample::run(&mut engine, requests, seconds, max_num_seqs, &Counters::default())?)
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
        limits,
        surveyed: &surveyed,
        sample: sample.as_ref(),
        estimate,
    };
    if let Some(path) = &flags.output_json {
        result_file::write(path, "output_json", &report.json())?;
    }
    let written = writeln!(io::stdout(), "{}", report.text());
    written.map_err(|error| CliError::from_stdout(&error))?;
    Ok(if surveyed.num_failed() > 0 { Exit::ErrorRows } else { Exit::Success })
}
