//! The flag table, with vLLM's spellings, and the flags of a run: typed, in variables, in a file.
//! `config` says what they mean. Knows no model and no run.
//!
//! Every flag that has a default elsewhere (model files, rows) is an `Option`, so that "given" is
//! known.

mod bench;
mod check;
mod commands;
mod config_file;
mod diff;
mod engine;
mod eval;
mod files;
mod input;
mod join;
mod lora;
mod merge;
mod output;
mod parse;
mod plan;
mod pooling;
mod prompt;
mod sampling;
mod scores;
mod serve;
mod settings;
mod show;
mod structured_outputs;
mod table;
mod tips;
pub mod values;

pub use bench::{BenchArgs, ModeArg, ResultArgs, WorkloadArgs};
pub use check::{CheckArgs, DEFAULT_MAX_ERRORS};
pub use commands::{Cli, Command, RunArgs, RunCommandArgs};
pub use diff::DiffArgs;
pub use engine::{
    CacheArgs, ComputeArgs, CpuIsaArg, DTypeArg, DeviceArg, EngineArgs, KvCacheDTypeArg,
    LoadFormatArg, ModelArgs, PrefillKernelArg, QuantizationArg, SchedulingPolicyArg,
};
pub use eval::{ErrorsAreArg, EvalArgs, EvalFlags};
pub use files::{DocumentKind, FlagFiles, ReportForm, Role, role};
pub use input::{
    BadRowArg, ChatArgs, ImageArgs, InputArgs, LastAssistantArg, LayoutArgs, LoglikelihoodArg,
    OverflowArg, ResumeMediaArg, SampleArgs, SplitArgs,
};
pub use join::JoinArgs;
pub use lora::{DefaultMmLorasArg, LoraArgs, LoraModuleArg, LoraModulesArgs};
pub use merge::MergeArgs;
pub use output::{AnswerArgs, OutputArgs, OutputFormatArg};
pub use parse::{ParseError, Parsed, parse};
pub use plan::{PlanArgs, PlanFlags};
pub use pooling::{
    ClassArgs, ClassifyArgs, EmbedArgs, EncodingFormatArg, PoolingFlags, PoolingTypeArg,
    RewardArgs, TaskArg, VectorArgs,
};
pub use prompt::PromptArgs;
pub use sampling::{SamplingArgs, TruncationSideArg};
pub use scores::{RerankArgs, ScoreArgs};
pub use serve::{ServeArgs, ServerArgs};
pub use settings::{Origins, Settings, Variables};
pub use show::ShowArgs;
pub use structured_outputs::{FileOrText, StructuredOutputsArgs};
pub use table::command;
