//! `eval`: a run whose rows are judged as they finish, and what all of them are worth: a fold over
//! the complete output. The same output gives the same report, whoever made it.

mod baseline;
mod gates;
mod github;
mod input_again;
mod measure;
mod paired;
mod report;
mod rescore;
mod rows;
mod totals;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::args::{
    ErrorsAreArg, EvalArgs, EvalFlags, FlagFiles, InputArgs, LoglikelihoodArg, RunArgs,
};
use crate::config::{InputConfig, RunConfig};
use crate::ledger::Document;
use crate::ledger::meta::Meta;
use crate::ledger::remote::Staged;
use crate::model;
use crate::run::{self, Load};
use baseline::Baseline;
use gates::{Gates, Outcome};
use report::{Report, Thumbnails};
use rescore::Rescore;
use rows::JudgedFile;
use totals::Totals;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::judge::Judge;
use vllm_batch_dataset::judge::settings::{Scorer, Settings};
use vllm_batch_dataset::object_store::is_object;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Judges a dataset that is run, or an output that is finished, and says what it is worth.
///
/// # Errors
/// Whatever ends the run before its last row; a flag that cannot be honoured; a report that cannot
/// be written.
pub fn run(
    args: EvalArgs,
    mut files: FlagFiles,
    console: &Console,
    load: Load<'_>,
) -> Result<Exit, CliError> {
    let EvalArgs { eval: flags, run: args } = args;
    let gates = Gates::new(&flags)?;
    if flags.scorer.contains(&Scorer::Command) != flags.scorer_command.is_some() {
        let message = "--scorer command and --scorer-command PROGRAM go together";
        return Err(CliError::refused("eval", message));
    }
    let out = out_file(&args.output.out)?;
    let field = args.output.out_field.as_deref().unwrap_or(Task::Complete.answer_field());
    let evaluation = Evaluation { field: field.to_owned(), out, flags, gates, console };
    report::check_names(&evaluation.flags.report)?;
    if let Some(old) = &evaluation.flags.baseline {
        // Before anything is computed.
        evaluation.check_baseline(old)?;
    }
    if let Some(path) = github::Job::found().as_ref().and_then(github::Job::summary) {
        files.add_read("GITHUB_STEP_SUMMARY", path.to_owned());
    }
    match evaluation.flags.rescore.clone() {
        Some(old) => evaluation.rescore(&old, files, args.output.overwrite),
        None => evaluation.run(args, files, load),
    }
}

/// What is asked of a dataset's answers.
struct Evaluation<'a> {
    /// Of the answer.
    field: String,
    /// The file with the judged rows.
    out: PathBuf,
    flags: EvalFlags,
    gates: Gates,
    console: &'a Console,
}

/// Where rows came from.
struct Origin {
    args: InputArgs,
    config: InputConfig,
}

impl Evaluation<'_> {
    fn run(&self, mut args: RunArgs, files: FlagFiles, load: Load<'_>) -> Result<Exit, CliError> {
        if args.output.errors.is_some() {
            let message = "--errors: the report is made of one file, error rows included";
            return Err(CliError::refused("eval", message));
        }
        // Flags that go with objects alone are refused: the output is a file.
        Staged::of(&mut args.output)?;
        args.loglikelihood = self.loglikelihood(args.loglikelihood)?;
        model::fetch_inputs(&mut args.input.input, &args.input.dataset, self.console)?;
        let input = args.input.clone();
        let mut config = RunConfig::new(args)?;
        config.input.rows.expected_column = self.flags.expected_column.clone();
        config.judge = Some(Arc::new(self.judge()));
        let origin = Origin { args: input, config: config.input.clone() };
        self.gates.check(&self.flags, &|name| github::has_assert_named(&origin, name))?;
        let (exit, reports) = run::judged(config, files, self.console, load)?;
        self.conclude(exit, reports, Some(&origin))
    }

    fn rescore(&self, old: &Path, files: FlagFiles, overwrite: bool) -> Result<Exit, CliError> {
        let judge = self.judge();
        self.gates.check(&self.flags, &|name| has_assert_named(old, &self.field, name))?;
        let rescore = Rescore { old, new: &self.out, overwrite, judge: &judge };
        let (exit, reports) = rescore.run(files, self.console)?;
        self.conclude(exit, reports, None)
    }

    /// Looks whether a baseline was judged as this output will be, as far as can be said before.
    fn check_baseline(&self, old: &Path) -> Result<(), CliError> {
        if let Ok(meta) = Meta::beside(old) {
            baseline::refuse_other_settings(&meta, &self.judge().described())?;
        }
        let mut file = self.open(old)?;
        let names: Vec<&str> = self.flags.scorer.iter().map(|scorer| scorer.name()).collect();
        let names = names.join(",");
        while let Some(row) = file.next_row()? {
            if row.error.is_some() {
                continue;
            }
            // Asserts of a row have their names behind those of the scorers.
            let is_same = row.scorer == names || row.scorer.starts_with(&format!("{names},"));
            if !names.is_empty() && !is_same {
                return Err(baseline::other_scorer(&row.scorer, &names));
            }
            break;
        }
        Ok(())
    }

    /// What the scorers ask of the model in place of a completion.
    fn loglikelihood(
        &self,
        typed: Option<LoglikelihoodArg>,
    ) -> Result<Option<LoglikelihoodArg>, CliError> {
        let asks = |scorer: &Scorer| match scorer {
            Scorer::Choice => Some(LoglikelihoodArg::Choices),
            Scorer::Perplexity => Some(LoglikelihoodArg::Text),
            _ => None,
        };
        let mut asked: Vec<_> = self.flags.scorer.iter().map(asks).collect();
        asked.dedup();
        let refused = |message: &str| Err(CliError::refused("eval", message));
        match (&asked[..], typed) {
            ([_, _, ..], _) => refused(
                "--scorer: `choice` and `perplexity` judge no completion: each stands alone",
            ),
            ([Some(asked)], None) => Ok(Some(*asked)),
            ([Some(asked)], Some(typed)) if *asked == typed => Ok(Some(typed)),
            (_, None) => Ok(None),
            (_, Some(_)) => refused("--loglikelihood: --scorer choice or perplexity asks for it"),
        }
    }

    fn judge(&self) -> Judge {
        let flags = &self.flags;
        Judge::new(Settings {
            scorers: flags.scorer.clone(),
            expected_column: flags.expected_column.clone(),
            expected_extract: flags.expected_extract.clone(),
            normalize: flags.normalize.map(Into::into),
            extract: flags.extract.clone(),
            pass_if: flags.pass_if,
            command: flags.scorer_command.clone(),
            command_timeout: flags.scorer_timeout,
            out_field: self.field.clone(),
        })
    }

    fn open(&self, path: &Path) -> Result<JudgedFile, CliError> {
        JudgedFile::open(path, &self.field, self.flags.expected_column.as_deref())
    }

    /// Says what the finished output is worth. `exit`: how the run ended.
    fn conclude(
        &self,
        exit: Exit,
        reports: Vec<Document>,
        origin: Option<&Origin>,
    ) -> Result<Exit, CliError> {
        let report = self.report()?;
        let alone = report.baseline.as_ref().map(Baseline::num_alone).unwrap_or_default();
        if alone != [0, 0] {
            let [here, there] = alone;
            self.console.warn(&format!(
                "--baseline: {here} rows of this output and {there} of the baseline have no \
                 partner, and are not compared"
            ));
        }
        for document in reports {
            let mut pictures = || origin.and_then(Thumbnails::of);
            report.write(document, &mut || self.open(&self.out), &mut pictures)?;
        }
        let mut text = report.text(self.console.stdout_style());
        if let Some(job) = github::Job::found() {
            let places = origin.map(|origin| github::places(&report, origin, &job));
            text += &github::annotations(&report, &places.unwrap_or_default());
            job.summarize(&report.markdown(), self.console);
        }
        // The rows are in a file.
        let written = io::stdout().lock().write_all(text.as_bytes());
        written.map_err(|error| CliError::from_stdout(&error))?;
        let holds = report.outcomes.iter().all(Outcome::holds);
        Ok(match exit {
            _ if !holds => Exit::GateFailed,
            // A row that is answered may be too much work for its scorer.
            Exit::Success if report.totals.num_errors() > 0 => Exit::ErrorRows,
            exit => exit,
        })
    }

    fn report(&self) -> Result<Report, CliError> {
        let errors_are = self.flags.errors_are.unwrap_or_default();
        let errors_are_wrong = errors_are != ErrorsAreArg::Skipped;
        let mut totals = Totals::new(errors_are_wrong, &self.flags);
        let mut file = self.open(&self.out)?;
        while let Some(row) = file.next_row()? {
            totals.add(&row)?;
        }
        let then = self.flags.baseline.as_deref();
        let compared =
            then.map(|then| Baseline::new(&mut self.open(&self.out)?, then, errors_are_wrong));
        let baseline = compared.transpose()?;
        let mut outcomes = self.gates.outcomes(&totals)?;
        if let (Some(baseline), Some(most)) = (&baseline, self.flags.max_regression) {
            outcomes.push(Outcome::of_regression(baseline.difference(), most));
        }
        if errors_are == ErrorsAreArg::Fail {
            outcomes.push(Outcome::of_errors(totals.num_errors()));
        }
        let origin = report::origin_of(&self.out);
        Ok(Report { totals, outcomes, baseline, origin })
    }
}

/// Whether a row of an output may have an `assert` with a name.
fn has_assert_named(path: &Path, field: &str, name: &str) -> bool {
    let Ok(mut file) = JudgedFile::open(path, field, None) else { return true };
    let names_it = |text: &str| text.contains("assert") && text.contains(name);
    while let Ok(Some((_, fields))) = file.next_fields() {
        if names_it(fields.text()) {
            return true;
        }
    }
    false
}

/// The file with the judged rows: reports are made of it when it is complete.
fn out_file(out: &Option<PathBuf>) -> Result<PathBuf, CliError> {
    match out {
        Some(path) if is_object(path) => {
            let message =
                format!("--out {}: eval reads its rows again, from a file", path.display());
            Err(CliError::refused("eval", message))
        }
        // A pipe has no rows that could be read again, and would be waited for.
        Some(path) if path.exists() && !path.is_file() && !path.is_dir() => {
            let message =
                format!("--out {}: eval reads its rows again, from a file", path.display());
            Err(CliError::refused("eval", message).help("give --out FILE.jsonl"))
        }
        Some(path) if path != Path::new("-") => Ok(path.clone()),
        _ => {
            let message = "eval needs a file for its rows: the report is made of it";
            Err(CliError::refused("eval", message).help("give --out FILE.jsonl"))
        }
    }
}
