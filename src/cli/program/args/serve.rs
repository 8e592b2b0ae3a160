//! Flags of `serve`: those of `run` that say how requests are answered, and where they come from.

use std::path::PathBuf;

use clap::ArgAction;
use clap::builder::NonEmptyStringValueParser as NonEmpty;

use super::scores::SideArgs;
use super::values::{bytes, count, positive};
use super::{
    AnswerArgs, ChatArgs, EngineArgs, ImageArgs, InputArgs, ModelArgs, OutputArgs, PoolingFlags,
    RunArgs, SamplingArgs, TaskArg, VectorArgs,
};
use vllm_batch_dataset::terminal::display::DisplayArgs;

const SERVE_EXAMPLES: &str = "\
Examples:
  vllm-batch serve --model ./model
  vllm-batch serve --model ./model --port 9000 --api-key \"$KEY\" --max-num-queued-reqs 256
  vllm-batch serve --model ./model --batch-dir ./batches
  vllm-batch serve --task embed --model ./encoder
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"stream\": true}'

A request is answered as `run` answers the line of a batch API that has its body; flags that `run`
has mean the same. docs/SERVE.md lists the endpoints. SIGTERM and Ctrl-C let requests that are under
way end; a second one does not.

Exit codes:
  0 ended by a signal, every request answered   2 refused   7 model files rejected
  5 the device failed                           129/130/143 SIGHUP/INT/TERM, with requests cut off

`--help -v` adds the rarer flags and the details.";

/// Flags of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = SERVE_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Where requests come from.
    #[command(flatten)]
    pub server: ServerArgs,
    /// What requests ask for, of a model that does not complete prompts [default: embed]
    #[arg(long, value_name = "COMMAND", help_heading = "Server")]
    pub task: Option<TaskArg>,
    #[command(flatten)]
    chats: ChatArgs,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    answers: AnswerArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    sides: SideArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// What is shown.
    #[command(flatten)]
    pub display: DisplayArgs,
    /// Show help (with -v: every flag)
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    help: Option<bool>,
}

/// Where requests come from, and how many.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Address to listen on: 0.0.0.0 is every one of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0: any free one, which the first line on standard error says
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
    /// Answer only whoever gives one of these keys, as `Authorization: Bearer KEY` or `x-api-key`
    ///
    /// /health needs none. In VLLM_BATCH_API_KEY no other user sees it.
    #[arg(long, value_name = "KEY", num_args = 1.., value_parser = NonEmpty::new())]
    pub api_key: Vec<String>,
    /// Names that `Host` may have beside those of this machine, on 127.0.0.1: of a proxy before it
    #[arg(long, value_name = "NAME", num_args = 1.., hide_short_help = true)]
    pub allowed_hosts: Vec<String>,
    /// Requests that may be unanswered at a time, beyond which others get 503 [default: any number]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_num_queued_reqs: Option<usize>,
    /// Logprobs of a position that requests may ask for, as in vLLM; -1: of the whole vocabulary
    #[arg(long, value_name = "N", default_value_t = 20, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..), hide_short_help = true)]
    pub max_logprobs: i32,
    /// Connections at a time
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 4096)]
    #[arg(hide_short_help = true)]
    pub max_connections: usize,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "64MiB")]
    #[arg(hide_short_help = true)]
    pub max_body_bytes: u64,
    /// Take files and batches (/v1/files, /v1/batches), and keep them in this folder
    ///
    /// A batch goes on after a restart, with the bytes that `run` writes for its file.
    #[arg(long, value_name = "DIR")]
    pub batch_dir: Option<PathBuf>,
    /// Bytes of a file that is sent
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "16GiB")]
    #[arg(requires = "batch_dir", hide_short_help = true)]
    pub max_file_bytes: u64,
    /// Give up what of a batch is not answered when its completion_window is over
    #[arg(long, requires = "batch_dir", hide_short_help = true)]
    pub enforce_completion_window: bool,
    /// Seconds that requests under way may take to end after a signal
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value_t = 30)]
    pub shutdown_timeout: usize,
}

impl ServeArgs {
    /// The flags that `run` has too, as if they were typed there for one prompt; and those of
    /// vectors and scores.
    pub fn into_run(self) -> (ServerArgs, Option<TaskArg>, RunArgs, PoolingFlags) {
        let Self { model, server, task, chats, images, answers, .. } = self;
        let run = RunArgs {
            model,
            input: InputArgs { prompt: Some(String::new()), chats, images, ..Default::default() },
            output: OutputArgs { answers, ..Default::default() },
            sampling: self.sampling,
            structured_outputs: Default::default(),
            loglikelihood: None,
            engine: self.engine,
            display: self.display,
            help: self.help,
        };
        let (vectors, sides) = (self.vectors, self.sides);
        (server, task, run, PoolingFlags { vectors, sides, ..PoolingFlags::default() })
    }
}
