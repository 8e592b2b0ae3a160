//! The flag table, with vLLM's spellings, and the flags of a run: typed, in variables, in a file.
//! `config` says what they mean. Knows no model and no run.
//!
//! Every flag that has a default elsewhere (model files, rows) is an `Option`, so that "given" is
//! known.

mod bench;
mod check;
mod config_file;
mod diff;
mod engine;
mod eval;
mod files;
mod input;
mod lora;
mod merge;
mod output;
mod plan;
mod pooling;
mod prompt;
mod sampling;
mod scores;
mod settings;
mod show;
mod structured_outputs;
mod tips;
pub mod values;

pub use bench::{BenchArgs, ModeArg, ResultArgs, WorkloadArgs};
pub use check::{CheckArgs, DEFAULT_MAX_ERRORS};
pub use diff::DiffArgs;
pub use engine::{
    CacheArgs, ComputeArgs, CpuIsaArg, DTypeArg, DeviceArg, EngineArgs, KvCacheDTypeArg,
    LoadFormatArg, ModelArgs, PrefillKernelArg, QuantizationArg,
};
pub use eval::{ErrorsAreArg, EvalArgs, EvalFlags};
pub use files::{DocumentKind, FlagFiles, ReportForm, Role, role};
pub use input::{
    BadRowArg, InputArgs, LastAssistantArg, LayoutArgs, LoglikelihoodArg, OverflowArg, SampleArgs,
    SplitArgs,
};
pub use lora::{LoraArgs, LoraModuleArg, LoraModulesArgs};
pub use merge::MergeArgs;
pub use output::{OutputArgs, OutputFormatArg};
pub use plan::{PlanArgs, PlanFlags};
pub use pooling::{
    ClassArgs, ClassifyArgs, EmbedArgs, EncodingFormatArg, PoolingFlags, PoolingTypeArg,
    RewardArgs, TaskArg, VectorArgs,
};
pub use prompt::PromptArgs;
pub use sampling::{SamplingArgs, TruncationSideArg};
pub use scores::{RerankArgs, ScoreArgs};
pub use settings::{Origins, Settings, Variables};
pub use show::ShowArgs;
pub use structured_outputs::{FileOrText, StructuredOutputsArgs};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::display::DisplayArgs;
use vllm_batch_dataset::terminal::error::CliError;

const ABOUT: &str = "Run a language model over a dataset: prompts in, ordered completions out";

const EXAMPLES: &str = "\
Examples:
  vllm-batch run --model ./model -p 'Name three colours'
  vllm-batch run --model ./model -i prompts.jsonl -o out.jsonl
  cat prompts.jsonl | vllm-batch run --model ./model | jq -r .response
  vllm-batch run --model ./model -i reviews.csv --template 'Summarise: {{text}}' -o out.csv
  vllm-batch eval --model ./model -i questions.jsonl -o judged.jsonl --fail-under acc=0.8
  vllm-batch embed --model ./encoder -i texts.jsonl -o vectors.jsonl
  vllm-batch classify --model ./classifier -i texts.jsonl -o labels.jsonl
  vllm-batch rerank --model ./cross-encoder -i queries.jsonl -o ranked.jsonl --top-n 10
  vllm-batch check prompts.jsonl
  vllm-batch plan --model ./model -i prompts.jsonl
  vllm-batch bench --model ./model --num-prompts 200
  vllm-batch show out.jsonl --follow
  vllm-batch merge --verify s0.jsonl s1.jsonl s2.jsonl -o out.jsonl
  vllm-batch diff before.jsonl after.jsonl

Exit codes:
  0 every row answered         3 at least one error row       5 stopped, can be continued
  2 refused, nothing written   4 no rows in the input         6 the output is another run's
  1 a bug in vllm-batch        7 model files rejected         129/130/143/141 SIGHUP/INT/TERM/PIPE
  100 `diff`: rows differ; `eval`: a gate fails

`vllm-batch run --help` shows the flags; `run --help -v` and `man` explain all of them.";

/// Flags that texts which are compared have no use for. They are refused by name.
const REFUSED_OF_SCORES: &[&str] = &[
    "prompt_column",
    "template",
    "chat",
    "no_chat",
    "system_prompt",
    "last_assistant",
    "encoding_format",
];

/// Flags of vectors, classes and scores that `plan` takes with `--task`. Short help leaves them to
/// the help of the commands that have them.
const PLANNED_OF_TASKS: &[&str] = &[
    "pooling_type",
    "normalize",
    "no_normalize",
    "dimensions",
    "sparse",
    "encoding_format",
    "prompt_name",
    "use_activation",
    "no_activation",
    "max_tokens_per_query",
    "max_tokens_per_doc",
    "document_prompt_name",
    "top_n",
];

const RUN_EXAMPLES: &str = "\
Examples:
  vllm-batch run --model ./model -p 'Name three colours'
  vllm-batch run --model ./model -i prompts.jsonl -o out.jsonl
  cat prompts.jsonl | vllm-batch run --model ./model | jq -r .response
  vllm-batch run --model ./model -i reviews.csv --template 'Summarise: {{text}}' -o out.csv
  vllm-batch run --model ./model -i chats.jsonl -o out.jsonl --temperature 0 --max-tokens 256

A row is a JSON object with `prompt`, `messages`, `question`, `text` ..., a JSON string, a line of
text or a CSV record. Its fields pass through to the output. A field named like a sampling flag
(`max_tokens`, `seed`, ...) overrides the flag.

Exit codes:
  0 every row answered         3 at least one error row       5 stopped, can be continued
  2 refused, nothing written   4 no rows in the input         6 the output is another run's
  1 a bug in vllm-batch        7 model files rejected         129/130/143/141 SIGHUP/INT/TERM/PIPE

`--help -v` adds the rarer flags and the details.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "vllm-batch", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 110)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Complete every row of a dataset, in order
    Run(Box<RunCommandArgs>),
    /// Complete every row of a dataset, judge the answers, and say what they are worth
    Eval(Box<EvalArgs>),
    /// Make a vector of every text of a dataset, in order
    Embed(Box<EmbedArgs>),
    /// Find the class of every text of a dataset, in order
    Classify(Box<ClassifyArgs>),
    /// Score every text or chat of a dataset by a reward model, in order
    Reward(Box<RewardArgs>),
    /// Say how well the two texts of every row fit
    Score(Box<ScoreArgs>),
    /// Put the documents of every query in the order of their scores
    Rerank(Box<RerankArgs>),
    /// Say what a run would be: prompt lengths, error rows, memory, minutes. Runs a sample only
    Plan(Box<PlanArgs>),
    /// Measure how fast a model runs: throughput, prefill or decode
    Bench(Box<BenchArgs>),
    /// Find every bad row of an input, without a model
    Check(Box<CheckArgs>),
    /// Join the outputs of all shards in row order, and prove that they equal one run
    Merge(MergeArgs),
    /// Show the first differing token of each row of two outputs
    Diff(DiffArgs),
    /// Print the finished rows of a run that works, was stopped or is complete
    Show(ShowArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff), for `man -l -`
    Man,
}

impl Command {
    /// The sampling parameters of a command that has them.
    fn sampling(&mut self) -> Option<&mut SamplingArgs> {
        match self {
            Command::Run(args) => Some(&mut args.run.sampling),
            Command::Eval(args) => Some(&mut args.run.sampling),
            Command::Plan(args) => Some(&mut args.run.sampling),
            _ => None,
        }
    }
}

/// Flags of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct RunCommandArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,
    /// One prompt in the place of rows.
    #[command(flatten)]
    pub one: PromptArgs,
}

/// Flags of a run, whatever is done with its answers.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct RunArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Rows in.
    #[command(flatten)]
    pub input: InputArgs,
    /// Rows out.
    #[command(flatten)]
    pub output: OutputArgs,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// What answers must match.
    #[command(flatten)]
    pub structured_outputs: StructuredOutputsArgs,
    /// Generate nothing: say how likely each of a row's `choices` is after its prompt (choices), or
    /// its text (text), as lm-evaluation-harness does
    #[arg(long, value_name = "WHAT", help_heading = "Input", hide_short_help = true)]
    pub loglikelihood: Option<LoglikelihoodArg>,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// What is shown.
    #[command(flatten)]
    pub display: DisplayArgs,
    /// Show help (with -v: every flag)
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}

/// A command line, with what is set elsewhere.
#[derive(Debug)]
pub struct Parsed {
    /// What is to be done.
    pub command: Command,
    /// The flags that were not typed.
    pub settings: Settings,
    /// The files that flags name.
    pub files: FlagFiles,
}

/// Why there is nothing to be done.
#[derive(Debug)]
pub enum ParseError {
    /// Help, version or a usage error, to be printed by `clap::Error::print`.
    Usage(clap::Error),
    /// A flag that is set elsewhere is wrong.
    Setting(CliError),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParseError::Usage(error) => error.fmt(f),
            ParseError::Setting(error) => f.write_str(&error.message),
        }
    }
}

/// Parses a command line. `--help -v` is the long help, so it is looked for first: clap stops at
/// `--help`.
///
/// # Errors
/// Help, version, a usage error, or a wrong flag in a variable or in `--config`.
pub fn parse(argv: &[OsString], variables: &Variables) -> Result<Parsed, ParseError> {
    let program = command(wants_long_help(argv));
    let short = |error| tips::with_short_usage(error, &program, command_of(argv));
    let explained =
        |error| ParseError::Usage(short(tips::explain(error, &program, command_of(argv))));
    // What was typed is looked at alone first: it may name the file, and lack what the file has.
    let typed = program.clone().mut_subcommands(settings::without_required);
    let typed = typed.try_get_matches_from(argv).map_err(|error| {
        // In the usage of the whole table what is required is shown as such.
        explained(program.clone().try_get_matches_from(argv).err().unwrap_or(error))
    })?;
    let settings = find_settings(&program, &typed, variables).map_err(ParseError::Setting)?;
    let (before, after) = argv.split_at(argv.len().min(2));
    let words = before.iter().chain(settings.words()).chain(after);
    let matches = program.clone().try_get_matches_from(words);
    let matches = matches.map_err(|error| ParseError::Usage(placed(short(error), &settings)))?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(ParseError::Usage)?;
    if let Some(sampling) = cli.command.sampling() {
        sampling.origins = settings.origins();
    }
    let files = match matches.subcommand() {
        Some((name, matches)) => {
            let command = program.find_subcommand(name).expect("it was parsed");
            FlagFiles::of(command, matches, settings.file())
        }
        None => FlagFiles::default(),
    };
    Ok(Parsed { command: cli.command, settings, files })
}

/// The command's name: the first word, since no flag can come before it.
fn command_of(argv: &[OsString]) -> Option<&str> {
    argv.get(1)?.to_str()
}

fn find_settings(
    program: &clap::Command,
    typed: &ArgMatches,
    variables: &Variables,
) -> Result<Settings, CliError> {
    let Some((name, typed)) = typed.subcommand() else { return Ok(Settings::default()) };
    let command = program.find_subcommand(name).expect("it was parsed");
    match command.get_arguments().any(|arg| arg.get_id() == settings::CONFIG) {
        true => Settings::find(program, command, typed, variables),
        false => Ok(Settings::default()),
    }
}

/// The same error with the places of flags that nobody typed.
fn placed(mut error: clap::Error, settings: &Settings) -> clap::Error {
    let mut flags = Vec::new();
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        match error.get(kind) {
            Some(ContextValue::String(flag)) => flags.push(flag.clone()),
            Some(ContextValue::Strings(several)) => flags.extend(several.iter().cloned()),
            _ => {}
        }
    }
    let places = settings.places(&flags);
    if !places.is_empty() {
        let places = places.into_iter().map(Into::into).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(places));
    }
    error
}

/// The flag table: what parsing, help, completions and the manual page are made from.
pub fn command(long_help: bool) -> clap::Command {
    // `check` is too short for progress; the flag is accepted as by the other commands.
    let hidden = |arg: Arg| arg.hide(true);
    Cli::command().mut_subcommands(|command| {
        let command = match command.get_name() {
            "check" => command.mut_arg("progress", hidden),
            "plan" => PLANNED_OF_TASKS.iter().fold(command, |command, flag| {
                command.mut_arg(flag, |arg| arg.hide_short_help(true))
            }),
            "eval" => eval::without_model(command),
            "score" | "rerank" => REFUSED_OF_SCORES
                .iter()
                .fold(command, |command, flag| command.mut_arg(flag, hidden)),
            _ => command,
        };
        let task = Task::ALL.into_iter().find(|task| task.command() == command.get_name());
        let command = match task {
            Some(task) => command.mut_arg("out_field", |arg| arg.help(answer_help(task))),
            None => command,
        };
        if !command.get_arguments().any(|arg| arg.get_id() == "verbose") {
            return command;
        }
        let command = command.arg(config_flag());
        match long_help {
            true => command.mut_arg("help", |arg| arg.action(ArgAction::HelpLong)),
            false => command,
        }
    })
}

/// What `--out-field` says of itself, of the command of a task.
fn answer_help(task: Task) -> String {
    format!("Name of the field that holds the answer [default: {}]", task.answer_field())
}

fn config_flag() -> Arg {
    Arg::new(settings::CONFIG)
        .long(settings::CONFIG)
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help_heading("Settings")
        .help("Flags from a TOML file, under the name of the command: [run]")
        .long_help(
            "Flags from a TOML file, under the name of the command: [run]\n\n\
             Keys are the long names of flags: max-tokens = 256. Every flag has a variable too: \
             VLLM_BATCH_MAX_TOKENS is --max-tokens, VLLM_BATCH_CONFIG is --config. What is typed \
             wins over variables, and they over the file; -v says which count",
        )
}

fn wants_long_help(argv: &[OsString]) -> bool {
    let flags = argv.iter().take_while(|arg| *arg != "--");
    // Flags without values may share a dash: -hv.
    let is_short = |arg: &str| {
        let flags = arg.strip_prefix('-').filter(|flags| flags.contains('v'));
        flags.is_some_and(|flags| flags.chars().all(|flag| "hqv".contains(flag)))
    };
    flags.into_iter().any(|arg| arg == "--verbose" || arg.to_str().is_some_and(is_short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_run(line: &str) -> Result<Box<RunArgs>, clap::Error> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&argv, &[]) {
            Ok(Parsed { command: Command::Run(args), .. }) => Ok(Box::new(args.run)),
            Err(ParseError::Usage(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_flag_table_is_consistent() {
        command(false).debug_assert();
        command(true).debug_assert();
    }

    #[test]
    fn numbers_stops_and_short_flags() {
        let args = parse_run(
            "vllm-batch run --model m -i a.jsonl -o b.jsonl --max-model-len 8k --stop END \
             --stop ## --stop-token-ids 1,2 --kv-cache-memory-bytes 1.5GiB -qq --logprobs -1 \
             --presence-penalty -0.5",
        )
        .unwrap();
        assert_eq!(args.model.max_model_len, Some(8000));
        assert_eq!(args.sampling.stop, ["END", "##"]);
        assert_eq!(args.sampling.stop_token_ids, Some(vec![1, 2]));
        assert_eq!(args.engine.cache.kv_cache_memory_bytes, Some(3 << 29));
        assert_eq!(args.sampling.presence_penalty, Some(-0.5));
        assert_eq!(args.sampling.logprobs, Some(-1));
        assert_eq!(args.display.quiet, 2);
        assert_eq!(args.sampling.temperature, None, "not typed stays unknown");
    }

    #[test]
    fn a_flag_and_its_opposite_override_each_other() {
        let last = |line: &str| parse_run(line).unwrap().engine.cache.prefix_caching();
        assert_eq!(last("vllm-batch run --model m"), None);
        assert_eq!(last("vllm-batch run --model m --no-enable-prefix-caching"), Some(false));
        assert_eq!(
            last("vllm-batch run --model m --no-enable-prefix-caching --enable-prefix-caching"),
            Some(true)
        );
    }

    #[test]
    fn out_of_range_values_are_refused_in_vllms_words() {
        for (flag, text) in [
            ("--temperature 3", "temperature must be in [0, 2]"),
            ("--top-p 0", "top_p must be in (0, 1]"),
            ("--min-p 1.5", "min_p must be in [0, 1]"),
            ("--repetition-penalty 0", "repetition_penalty must be greater than zero"),
            ("--prompt-logprobs 0 --prompt-logprobs-last 0", "must be at least 1"),
            ("--n 0", "must be at least 1"),
            ("--gpu-memory-utilization 1.5", "must be in (0, 1]"),
        ] {
            let error = parse_run(&format!("vllm-batch run --model m {flag}")).unwrap_err();
            assert!(error.to_string().contains(text), "{flag}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn every_command_names_the_field_of_its_answer() {
        let help = |command: &str| {
            let argv = ["vllm-batch", command, "--help"].map(OsString::from);
            let Err(ParseError::Usage(help)) = parse(&argv, &[]) else { panic!("{command}") };
            help.to_string()
        };
        for task in Task::ALL {
            let help = help(task.command());
            let wanted = format!("holds the answer [default: {}]", task.answer_field());
            assert!(help.contains(&wanted), "{help}");
            assert!(help.lines().count() < 100, "{} lines: {help}", help.lines().count());
        }
        assert!(help("plan").contains("--task") && !help("plan").contains("--dimensions"));
    }

    #[test]
    fn short_help_teaches_and_long_help_is_complete() {
        let help = |line: &str| parse_run(line).unwrap_err().to_string();
        let short = help("vllm-batch run --help");
        let long = help("vllm-batch run --help -v");
        for wanted in ["--model", "--temperature", "Exit codes:", "Examples:", "Sampling:"] {
            assert!(short.contains(wanted), "{wanted}");
        }
        assert!(!short.contains("--logit-bias") && long.contains("--logit-bias"));
        for same in ["run -v --help", "run -hv", "run -vh", "run -hqv", "run --verbose -h"] {
            assert_eq!(help(&format!("vllm-batch {same}")), long, "{same}");
        }
        assert!(short.lines().count() < 100, "{} lines", short.lines().count());
        for arg in command(true).find_subcommand("run").unwrap().get_arguments() {
            let flag = format!("--{}", arg.get_long().unwrap());
            assert!(long.contains(&flag), "{flag} is not in the long help");
        }
    }
}
