//! The commands and the flags of `run`, as clap reads them, with the examples of their help. Flags
//! of the other commands are in files of their names.

use clap::{ArgAction, Parser, Subcommand};

use super::{
    BenchArgs, CheckArgs, ClassifyArgs, DiffArgs, EmbedArgs, EngineArgs, EvalArgs, InputArgs,
    JoinArgs, LoglikelihoodArg, MergeArgs, ModelArgs, OutputArgs, PlanArgs, PromptArgs, RerankArgs,
    RewardArgs, SamplingArgs, ScoreArgs, ServeArgs, ShowArgs, StructuredOutputsArgs,
};
use vllm_batch_dataset::terminal::display::DisplayArgs;

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
  vllm-batch serve --model ./model
  vllm-batch check prompts.jsonl
  vllm-batch plan --model ./model -i prompts.jsonl
  vllm-batch bench --model ./model --num-prompts 200
  vllm-batch show out.jsonl --follow
  vllm-batch merge --verify s0.jsonl s1.jsonl s2.jsonl -o out.jsonl
  vllm-batch join pages.jsonl --to 'md/{file}.md'
  vllm-batch diff before.jsonl after.jsonl

Exit codes:
  0 every row answered         3 at least one error row       5 stopped, can be continued
  2 refused, nothing written   4 no rows in the input         6 the output is another run's
  1 a bug in vllm-batch        7 model files rejected         129/130/143/141 SIGHUP/INT/TERM/PIPE
  100 `diff`: rows differ; `eval`: a gate fails

`vllm-batch run --help` shows the flags; `run --help -v` and `man` explain all of them.";

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
    /// Answer requests over HTTP, as OpenAI's and Anthropic's servers do
    Serve(Box<ServeArgs>),
    /// Say what a run would be: prompt lengths, error rows, memory, minutes. Runs a sample only
    Plan(Box<PlanArgs>),
    /// Measure how fast a model runs: throughput, prefill or decode
    Bench(Box<BenchArgs>),
    /// Find every bad row of an input, without a model
    Check(Box<CheckArgs>),
    /// Join the outputs of all shards in row order, and prove that they equal one run
    Merge(MergeArgs),
    /// Write the answers of an output as one file for each file that its rows are parts of
    Join(JoinArgs),
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
    pub(super) fn sampling(&mut self) -> Option<&mut SamplingArgs> {
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
