//! Flags of `eval`: those of `run`, who judges, what is reported, and what must hold. An output
//! that is there is judged without a model.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{ArgPredicate, NonEmptyStringValueParser as NonEmpty};
use clap::{Arg, ArgGroup, Command};

use super::RunArgs;
use super::values::percentage;
use vllm_batch_dataset::judge::settings::{Normalize, PassIf, Scorer, pattern};

const EVAL_EXAMPLES: &str = "\
Examples:
  vllm-batch eval -m ./model -i rows.jsonl -o judged.jsonl --scorer number
  vllm-batch eval -m ./model -i rows.jsonl -o judged.jsonl --fail-under acc=0.8
  vllm-batch eval -m ./model -i rows.jsonl -o judged.jsonl --report page.html
  vllm-batch eval -m ./model -i rows.jsonl -o judged.jsonl \\
      --baseline main.jsonl --max-regression 1%
  vllm-batch eval --rescore judged.jsonl -o again.jsonl --scorer regex

A row says what is expected of its answer: `expected` (or answer, target, ideal,
label), a value, or a list of which any is right; or an `assert` list in
promptfoo's names; or `choices`. Its output row gets `score`, `passed`, `scorer`
and perhaps `extracted`. docs/EVAL.md has the scorers, reports and jobs of CI.
All flags of `run` but --prompt are flags of `eval`.

Exit codes: those of `run`, and
  100 what --fail-under, --fail-over or --max-regression ask for does not hold";

/// Flags of `eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = EVAL_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct EvalArgs {
    /// Who judges, and what must hold.
    #[command(flatten)]
    pub eval: EvalFlags,
    /// The run that is judged.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What `eval` has and `run` has not.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Eval")]
pub struct EvalFlags {
    /// How answers are judged: exact, contains, icontains, starts-with, regex, number, letter,
    /// json, json-schema, f1, levenshtein, anls, vqa, wer, cer, rouge-l, bleu, chrf, choice,
    /// perplexity or command
    /// [default: the row's assert, else exact]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = Scorer::parse)]
    pub scorer: Vec<Scorer>,
    /// Program of the scorer command, its words with spaces between them: a line of JSON in and one
    /// out for each answer
    #[arg(long, value_name = "PROGRAM", value_parser = NonEmpty::new())]
    pub scorer_command: Option<String>,
    /// Seconds that the program of --scorer-command may take for one answer [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "scorer_command")]
    pub scorer_timeout: Option<Duration>,
    /// Field with what is expected [default: the first of expected, answer, target, ideal, label,
    /// and of names that data sets have]
    #[arg(long, value_name = "NAME", value_parser = NonEmpty::new())]
    pub expected_column: Option<String>,
    /// Expect only what this regular expression finds first in the expected text: its first group,
    /// else the whole match
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub expected_extract: Option<regex::Regex>,
    /// What is done to texts before they are compared [default: strip; none for an assert]
    #[arg(long, value_name = "HOW")]
    pub normalize: Option<NormalizeArg>,
    /// Judge only what this regular expression finds first: its first group, else the whole match
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub extract: Option<regex::Regex>,
    /// Scores that pass, e.g. '>= 0.8' [default: 1, of scorers that know right and wrong only]
    #[arg(long, value_name = "LIMIT", value_parser = PassIf::parse)]
    pub pass_if: Option<PassIf>,
    /// Judge the rows of this output again, without a model; --out gets them
    #[arg(long, value_name = "OUT")]
    pub rescore: Option<PathBuf>,
    /// Write a report: FILE.json, FILE.md, FILE.junit.xml or FILE.html
    #[arg(long, value_name = "FILE")]
    pub report: Vec<PathBuf>,
    /// Exit 100 if a measure is lower: acc=0.8, or acc[GROUP]=0.7 for the rows of a group
    #[arg(long, value_name = "METRIC=N")]
    pub fail_under: Vec<String>,
    /// Exit 100 if a measure is higher: word_perplexity=20, wer=0.1
    #[arg(long, value_name = "METRIC=N")]
    pub fail_over: Vec<String>,
    /// An error row counts as wrong, is left out, or fails the gate [default: wrong]
    #[arg(long, value_name = "WHAT")]
    pub errors_are: Option<ErrorsAreArg>,
    /// Compare with this output of an earlier eval, row by row
    #[arg(long, value_name = "OLD")]
    pub baseline: Option<PathBuf>,
    /// Exit 100 if the rows of --baseline were better by more than this on the mean
    #[arg(long, value_name = "P%", value_parser = percentage, requires = "baseline")]
    pub max_regression: Option<f64>,
}

/// Flags of `run` that `--rescore` takes besides those of `eval`: where rows go, what is shown.
const OF_RESCORE: &[&str] = &["out", "out_field", "overwrite", "model"];

/// Makes `--rescore` a command without a model: flags of the run are refused beside it.
pub fn without_model(command: Command) -> Command {
    let refused = |arg: Arg| {
        let is_of_run = !matches!(arg.get_help_heading(), Some("Eval" | "Display" | "Settings"));
        match is_of_run && !OF_RESCORE.contains(&arg.get_id().as_str()) {
            true => arg.conflicts_with("rescore"),
            false => arg,
        }
    };
    // A group, since what one argument requires of another cannot be taken back where settings are
    // still to come.
    let either = ArgGroup::new("model_or_rescore").args(["model", "rescore"]);
    let command = command.mut_args(refused).group(either.required(true).multiple(true));
    command.mut_arg("model", |arg| {
        arg.required(false).default_value_if("rescore", ArgPredicate::IsPresent, "-")
    })
}

/// A number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

/// `--normalize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NormalizeArg {
    /// Nothing
    None,
    /// Leave out spaces and line breaks around the text
    Strip,
    /// The same, in lower case
    Lower,
    /// As SQuAD: lower case, no punctuation, no articles, single spaces
    Squad,
    /// As Whisper's basic normalizer: lower case, no punctuation or brackets, single spaces
    Basic,
}

impl From<NormalizeArg> for Normalize {
    fn from(arg: NormalizeArg) -> Self {
        match arg {
            NormalizeArg::None => Normalize::None,
            NormalizeArg::Strip => Normalize::Strip,
            NormalizeArg::Lower => Normalize::Lower,
            NormalizeArg::Squad => Normalize::Squad,
            NormalizeArg::Basic => Normalize::Basic,
        }
    }
}

/// `--errors-are`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ErrorsAreArg {
    /// A score of 0
    #[default]
    Wrong,
    /// In no measure
    Skipped,
    /// Exit 100 if there is one
    Fail,
}
