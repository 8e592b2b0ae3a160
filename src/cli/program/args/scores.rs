//! Flags of `score` and `rerank`: those of other pooling models, and what is compared. Both become
//! `PoolingFlags`.

use super::RunArgs;
use super::pooling::{
    ClassArgs, MachineArgs, PoolingFlags, RowArgs, TextArgs, VectorArgs, run_args,
};
use super::values::positive;

const SCORE_EXAMPLES: &str = "\
Examples:
  vllm-batch score --model ./all-MiniLM-L6-v2 -i pairs.jsonl -o scores.jsonl
  cat pairs.jsonl | vllm-batch score --model ./cross-encoder | jq -c '[.id, .score]'
  vllm-batch score --model ./bge-reranker-base -i pairs.csv -o scores.jsonl

A row is {\"text_1\": ..., \"text_2\": ...}: two texts, or lists of texts, one to one, one to many or
many to as many; or a batch line of /v1/score or /v1/rerank. Its fields pass through to the output,
with `score` (or `scores` of lists) and `usage` after them. A text may be {\"image\": FILE}.
Vectors of an embedding model are compared; a cross-encoder reads both texts (docs/SCORES.md).

Exit codes: those of `run`.

`--help -v` adds the rarer flags and the details.";

const RERANK_EXAMPLES: &str = "\
Examples:
  vllm-batch rerank --model ./bge-reranker-base -i queries.jsonl -o ranked.jsonl --top-n 10
  cat queries.jsonl | vllm-batch rerank --model ./cross-encoder | jq -c '.results[0]'
  vllm-batch rerank --model ./all-MiniLM-L6-v2 -i queries.jsonl -o ranked.jsonl

A row is {\"query\": ..., \"documents\": [...]}, perhaps with `top_n`; or a batch line of /v1/rerank or
/v1/score. Its fields pass through to the output, with `results`, the best document first, and
`usage` after them. docs/SCORES.md has the models, docs/RETRIEVAL.md a whole search.

Exit codes: those of `run`. `--help -v` adds the rarer flags and the details.";

/// Flags of `score`.
#[derive(Debug, clap::Args)]
#[command(after_help = SCORE_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct ScoreArgs {
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    scores: ComparedArgs,
}

/// Flags of `rerank`.
#[derive(Debug, clap::Args)]
#[command(after_help = RERANK_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct RerankArgs {
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    ranking: RankingArgs,
    #[command(flatten)]
    scores: ComparedArgs,
}

/// How scores are made, and where.
#[derive(Debug, clap::Args)]
struct ComparedArgs {
    #[command(flatten)]
    sides: SideArgs,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    classes: ClassArgs,
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// What is compared with what.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Scores")]
pub struct SideArgs {
    /// Cut queries (`text_1`) to their first N tokens, special ones not counted [default: no limit]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_tokens_per_query: Option<usize>,
    /// The same of documents (`text_2`)
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_tokens_per_doc: Option<usize>,
    /// Put the model's prompt of this name before documents; that of --prompt-name is for queries
    /// then [default: the same]
    #[arg(long, value_name = "NAME")]
    pub document_prompt_name: Option<String>,
}

/// How long rankings are.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Scores")]
pub struct RankingArgs {
    /// Show the N best documents; a row's own `top_n` wins [default: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub top_n: Option<usize>,
}

impl ScoreArgs {
    /// As `EmbedArgs::into_run`.
    pub fn into_run(self) -> (RunArgs, PoolingFlags) {
        self.scores.into_run(self.rows, RankingArgs::default())
    }
}

impl RerankArgs {
    /// As `EmbedArgs::into_run`.
    pub fn into_run(self) -> (RunArgs, PoolingFlags) {
        self.scores.into_run(self.rows, self.ranking)
    }
}

impl ComparedArgs {
    fn into_run(self, rows: RowArgs, ranking: RankingArgs) -> (RunArgs, PoolingFlags) {
        let Self { sides, vectors, classes, texts, machine } = self;
        (run_args(rows, machine), PoolingFlags { vectors, classes, sides, ranking, texts })
    }
}
