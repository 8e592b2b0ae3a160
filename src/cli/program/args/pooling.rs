//! Flags of `embed`, `classify` and `reward`: model, rows in and rows out as of `run`, and what
//! texts become.

use clap::ArgAction;

use super::scores::{RankingArgs, SideArgs};
use super::values::{or_minus_one, positive};
use super::{
    CacheArgs, ComputeArgs, EngineArgs, InputArgs, LoraArgs, ModelArgs, OutputArgs, RunArgs,
};
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::display::DisplayArgs;

const EMBED_EXAMPLES: &str = "\
Examples:
  vllm-batch embed --model ./all-MiniLM-L6-v2 -i texts.jsonl -o vectors.jsonl
  cat texts.txt | vllm-batch embed --model ./encoder --format txt | jq -c .embedding
  vllm-batch embed --model ./encoder -i queries.jsonl -o vectors.jsonl --prompt-name query
  vllm-batch embed --model ./encoder -i docs.csv --template '{{title}}: {{text}}' -o vectors.jsonl
  vllm-batch embed --model sentence-transformers/all-MiniLM-L6-v2 -i texts.jsonl -o vectors.npy

A row is what `run` takes: a JSON object with `text`, `input`, ..., a JSON string, a line of text or
a CSV record; or an OpenAI batch line of /v1/embeddings. Its fields pass through to the output, with
`embedding` and `usage` after them. docs/EMBEDDINGS.md has the models.

Exit codes: those of `run`.

`--help -v` adds the rarer flags and the details.";

const CLASSIFY_EXAMPLES: &str = "\
Examples:
  vllm-batch classify --model ./sentiment -i reviews.jsonl -o labels.jsonl
  cat reviews.txt | vllm-batch classify --model ./sentiment --format txt | jq -r .label
  vllm-batch classify --model ./ner -i texts.jsonl -o entities.jsonl
  vllm-batch classify --model ./sentiment -i reviews.csv --prompt-column review -o labels.jsonl

A row is what `run` takes: a JSON object with `text`, `input`, ..., a JSON string, a line of text or
a CSV record. Its fields pass through to the output, with `label`, `probs` and `usage` after them. A
model that classifies tokens gives a list of both for each text. docs/CLASSIFY.md has the models.

Exit codes: those of `run`.

`--help -v` adds the rarer flags and the details.";

const REWARD_EXAMPLES: &str = "\
Examples:
  vllm-batch reward --model ./reward-model -i chats.jsonl -o scores.jsonl
  vllm-batch reward --model ./reward-model -i answers.csv --template '{{question}} {{answer}}'
  vllm-batch reward --model ./reward-model -i chats.jsonl --no-activation | jq .score

A row is what `run` takes: `messages` with the answer as their last turn, or a text. Its fields pass
through to the output, with `score` and `usage` after them. A model that scores tokens gives a list,
one number for each. docs/CLASSIFY.md has the models.

Exit codes: those of `run`.

`--help -v` adds the rarer flags and the details.";

/// Flags of `embed`.
#[derive(Debug, clap::Args)]
#[command(after_help = EMBED_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct EmbedArgs {
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Flags of `classify`.
#[derive(Debug, clap::Args)]
#[command(after_help = CLASSIFY_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct ClassifyArgs {
    #[command(flatten)]
    flags: ClassifierArgs,
}

/// Flags of `reward`.
#[derive(Debug, clap::Args)]
#[command(after_help = REWARD_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct RewardArgs {
    #[command(flatten)]
    flags: ClassifierArgs,
}

/// All that models with a classifier are run by.
#[derive(Debug, clap::Args)]
struct ClassifierArgs {
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    classes: ClassArgs,
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Which model, rows in and rows out.
#[derive(Debug, clap::Args)]
pub(super) struct RowArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Where it is computed, and what is shown.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    lora: LoraArgs,
    #[command(flatten)]
    display: DisplayArgs,
    /// Show help (with -v: every flag)
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    help: Option<bool>,
}

/// How vectors are made and shown.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Vectors")]
pub struct VectorArgs {
    /// Which states of a text its vector is made of [default: the model's]
    #[arg(long, value_name = "TYPE")]
    pub pooling_type: Option<PoolingTypeArg>,
    /// Give vectors a length of 1 [default: as the model says]
    #[arg(long, overrides_with = "no_normalize")]
    pub normalize: bool,
    /// Leave vectors as long as they are
    #[arg(long, overrides_with = "normalize")]
    pub no_normalize: bool,
    /// Keep the first N values of a vector, of a model that was trained for it [default: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub dimensions: Option<usize>,
    /// Make sparse vectors with the model's head for masked words (SPLADE) [default: as the model
    /// says]
    #[arg(long)]
    pub sparse: bool,
    /// How vectors are written [default: float]
    #[arg(long, value_name = "FORMAT")]
    pub encoding_format: Option<EncodingFormatArg>,
    /// Put the model's prompt of this name before every text; an empty name: none [default: the
    /// model's default_prompt_name]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
}

/// What becomes of a classifier's outputs.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Classes")]
pub struct ClassArgs {
    /// Make probabilities of the model's outputs [default]
    #[arg(long, overrides_with = "no_activation")]
    pub use_activation: bool,
    /// Write the model's outputs as they are
    #[arg(long, overrides_with = "use_activation")]
    pub no_activation: bool,
    /// Tokens that are the classes of a language model, as it may say them next: `no,yes`. Of two a
    /// score is the probability of the second [default: as the model says]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub classifier_from_token: Option<Vec<String>>,
}

/// What goes into the model of a text.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Texts")]
pub struct TextArgs {
    /// Cut texts to N tokens, special ones included; -1: to what the model takes [default: a text
    /// that is too long is an error row]
    #[arg(long, value_name = "N", value_parser = or_minus_one, allow_negative_numbers = true)]
    pub truncate_prompt_tokens: Option<i64>,
}

/// What texts become, as typed: all that the commands of pooling models have beside the flags of
/// `run`.
#[derive(Clone, Debug, Default)]
pub struct PoolingFlags {
    /// Of `embed`.
    pub vectors: VectorArgs,
    /// Of `classify` and `reward`.
    pub classes: ClassArgs,
    /// Of `score` and `rerank`.
    pub sides: SideArgs,
    /// Of `rerank`.
    pub ranking: RankingArgs,
    /// Of all.
    pub texts: TextArgs,
}

/// `--pooling-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
pub enum PoolingTypeArg {
    /// The first token's
    #[value(name = "CLS", alias = "cls")]
    Cls,
    /// The mean of all
    #[value(name = "MEAN", alias = "mean")]
    Mean,
    /// The last token's
    #[value(name = "LAST", alias = "last")]
    Last,
    /// The largest value of each column
    #[value(name = "MAX", alias = "max")]
    Max,
    /// The sum, divided by the root of the number of tokens
    #[value(name = "MEAN_SQRT_LEN", alias = "mean_sqrt_len_tokens")]
    MeanSqrtLen,
    /// The mean, each token as often as its place
    #[value(name = "WEIGHTEDMEAN", alias = "weightedmean")]
    WeightedMean,
    /// All of them: a vector for each token
    #[value(name = "ALL", alias = "all")]
    All,
}

/// `--encoding-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
pub enum EncodingFormatArg {
    /// A list of numbers, each the shortest that gives the same 32 bits again
    Float,
    /// Base64 of 32-bit floats, little-endian
    Base64,
}

/// `--task`: the command whose rows are looked at, where that is not `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TaskArg {
    /// As `embed` takes them
    Embed,
    /// As `classify`
    Classify,
    /// As `reward`
    Reward,
    /// As `score`
    Score,
    /// As `rerank`
    Rerank,
}

impl From<TaskArg> for Task {
    fn from(task: TaskArg) -> Self {
        match task {
            TaskArg::Embed => Task::Embed,
            TaskArg::Classify => Task::Classify,
            TaskArg::Reward => Task::Reward,
            TaskArg::Score => Task::Score,
            TaskArg::Rerank => Task::Rerank,
        }
    }
}

/// What was typed, of two flags that turn something on and off.
fn switched(on: bool, off: bool) -> Option<bool> {
    match (on, off) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

impl VectorArgs {
    /// What was typed about the length of vectors.
    pub fn normalizes(&self) -> Option<bool> {
        switched(self.normalize, self.no_normalize)
    }
}

impl ClassArgs {
    /// What was typed about the activation.
    pub fn activates(&self) -> Option<bool> {
        switched(self.use_activation, self.no_activation)
    }
}

impl EmbedArgs {
    /// The flags that `run` has too, as if they were typed there; and those of pooling models.
    pub fn into_run(self) -> (RunArgs, PoolingFlags) {
        let Self { rows, vectors, texts, machine } = self;
        (run_args(rows, machine), PoolingFlags { vectors, texts, ..PoolingFlags::default() })
    }
}

impl ClassifyArgs {
    /// As `EmbedArgs::into_run`.
    pub fn into_run(self) -> (RunArgs, PoolingFlags) {
        self.flags.into_run()
    }
}

impl RewardArgs {
    /// As `EmbedArgs::into_run`.
    pub fn into_run(self) -> (RunArgs, PoolingFlags) {
        self.flags.into_run()
    }
}

impl ClassifierArgs {
    fn into_run(self) -> (RunArgs, PoolingFlags) {
        let Self { rows, classes, texts, machine } = self;
        (run_args(rows, machine), PoolingFlags { classes, texts, ..PoolingFlags::default() })
    }
}

/// The flags that `run` has too, as if they were typed there.
pub(super) fn run_args(rows: RowArgs, machine: MachineArgs) -> RunArgs {
    let RowArgs { model, input, output } = rows;
    let MachineArgs { compute, cache, lora, display, help } = machine;
    RunArgs {
        model,
        input,
        output,
        sampling: Default::default(),
        structured_outputs: Default::default(),
        loglikelihood: None,
        engine: EngineArgs { compute, cache, lora, ..EngineArgs::default() },
        display,
        help,
    }
}
