//! `eval`: a run whose rows are judged as they finish, and what all of them are worth: a fold over
//! the complete output. The same output gives the same report, whoever made it.

mod gates;
mod measure;
mod report;
mod rows;
mod totals;

use std::io::{self, Write};
use std::path::Path;

use crate::cli::args::{ErrorsAreArg, EvalArgs, EvalFlags};
use crate::cli::config::RunConfig;
use crate::cli::judge::Judge;
use crate::cli::judge::settings::Settings;
use crate::cli::run::{self, Load};
use crate::cli::terminal::console::Console;
use crate::cli::terminal::error::CliError;
use crate::cli::terminal::exit::Exit;
use gates::{Gates, Outcome};
use report::{Report, ReportFiles};
use rows::JudgedFile;
use totals::Totals;

/// Runs a dataset, judges it, and says what came of it.
///
/// # Errors
/// Whatever ends the run before its last row; a flag that cannot be honoured; a report that cannot
/// be written.
pub fn run(args: EvalArgs, console: &Console, load: Load<'_>) -> Result<Exit, CliError> {
    let EvalArgs { eval: flags, run: mut args } = args;
    let gates = Gates::new(&flags)?;
    let out = out_file(&args.output.out)?;
    if args.output.errors.is_some() {
        let message = "--errors: the report is made of one file, error rows included";
        return Err(CliError::refused("eval", message));
    }
    crate::cli::model::fetch_inputs(&mut args.input.input, console)?;
    let template = args.input.chat_template.clone();
    let mut config = RunConfig::new(args)?;
    let out_field = config.output.field.clone();
    let judge = Judge::new(settings(&flags, out_field.clone()));
    config.judge = Some(std::sync::Arc::new(judge));
    let reports =
        ReportFiles::new(&flags.report, &out, &run::read_files(&config.input.sources, None))?;
    let exit = run::judged(config, template, console, load)?;
    let errors_are = flags.errors_are.unwrap_or_default();
    let file = JudgedFile::open(&out, &out_field, flags.expected_column.as_deref())?;
    let totals = folded(file, errors_are)?;
    let outcomes = gates.outcomes(&totals)?;
    let report = Report::new(totals, outcomes, report::origin_of(&out));
    reports.write(&report)?;
    shown(&report)?;
    Ok(if report.holds(errors_are) { exit } else { Exit::GateFailed })
}

/// What all rows of an output come to.
fn folded(mut file: JudgedFile, errors_are: ErrorsAreArg) -> Result<Totals, CliError> {
    let mut totals = Totals::new(errors_are != ErrorsAreArg::Skipped);
    while let Some(row) = file.next_row()? {
        totals.add(&row)?;
    }
    Ok(totals)
}

fn settings(flags: &EvalFlags, out_field: String) -> Settings {
    Settings {
        scorers: flags.scorer.clone(),
        expected_column: flags.expected_column.clone(),
        normalize: flags.normalize.map(Into::into).unwrap_or_default(),
        extract: flags.extract.clone(),
        pass_if: flags.pass_if,
        out_field,
    }
}

/// The file with the judged rows: reports are made of it when it is complete.
fn out_file(out: &Option<std::path::PathBuf>) -> Result<std::path::PathBuf, CliError> {
    match out {
        Some(path) if is_object(path) => {
            let message =
                format!("--out {}: eval reads its rows again, from a file", path.display());
            Err(CliError::refused("eval", message))
        }
        Some(path) if path != Path::new("-") => Ok(path.clone()),
        _ => {
            let message = "eval needs a file for its rows: the report is made of it";
            Err(CliError::refused("eval", message).help("give --out FILE.jsonl"))
        }
    }
}

/// Measures and gates on standard output: the rows are in a file.
fn shown(report: &Report) -> Result<(), CliError> {
    let text = report.text();
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| CliError::from_stdout(&error))
}

impl Report {
    /// Whether every gate holds.
    fn holds(&self, errors_are: ErrorsAreArg) -> bool {
        let errors_fail = errors_are == ErrorsAreArg::Fail && self.totals.num_errors() > 0;
        self.outcomes.iter().all(Outcome::holds) && !errors_fail
    }
}
