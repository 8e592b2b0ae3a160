//! Flags of `plan`: those of `run`, and what it measures and
//! shows. It writes no rows.

use std::path::PathBuf;

use super::pooling::ClassArgs;
use super::scores::{RankingArgs, SideArgs};
use super::values::{count, positive};
use super::{PoolingFlags, RunArgs, TaskArg, VectorArgs};

/// Seconds of the measured sample.
const DEFAULT_SAMPLE_SECONDS: usize = 10;

const PLAN_EXAMPLES: &str = "\
Examples:
  vllm-batch plan --model ./model -i prompts.jsonl
  vllm-batch plan --model ./model -i chats.jsonl --explain 7
  vllm-batch plan --model ./model -i prompts.jsonl --max-num-seqs 64 --output-json plan.json
  vllm-batch plan --task embed --model ./encoder -i texts.jsonl

Flags are those of `run`, so that a command is planned by writing `plan` in place of `run`, and
`plan --task embed` in place of `embed`, with its flags. Every row is read and tokenized. Then the
model answers rows from all over the input for a few seconds, and the time of the whole run is
estimated from its steps. Answers are forgotten; no output, journal or statistics file is written or
looked at.

The plan goes to standard output, everything else to standard error.

Exit codes: those of `run`; 3 when at least one row would be an error row.";

/// Flags of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = PLAN_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct PlanArgs {
    /// What is measured and shown.
    #[command(flatten)]
    pub plan: PlanFlags,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    classes: ClassArgs,
    #[command(flatten)]
    sides: SideArgs,
    #[command(flatten)]
    ranking: RankingArgs,
    /// The run that is planned.
    #[command(flatten)]
    pub run: RunArgs,
}

impl PlanArgs {
    /// What is measured and shown, the run that is planned, and what its texts become.
    pub fn into_parts(self) -> (PlanFlags, RunArgs, PoolingFlags) {
        let Self { plan, vectors, classes, sides, ranking, run } = self;
        (plan, run, PoolingFlags { vectors, classes, sides, ranking, ..PoolingFlags::default() })
    }
}

/// What `plan` has and `run` has not.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Plan")]
pub struct PlanFlags {
    /// The command that is planned [default: run]
    #[arg(long, value_name = "COMMAND")]
    pub task: Option<TaskArg>,
    /// Show this row, counted from 1, as the model will see it [default: 1]
    #[arg(long, value_name = "ROW", value_parser = positive)]
    pub explain: Option<usize>,
    /// Run rows for this long to estimate the time; 0 measures nothing [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = count)]
    pub sample_seconds: Option<usize>,
    /// Write the plan as JSON
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
}

impl PlanFlags {
    /// Seconds of the measured sample.
    pub fn sample_seconds(&self) -> f64 {
        self.sample_seconds.unwrap_or(DEFAULT_SAMPLE_SECONDS) as f64
    }
}
