//! What the command line means: `RunConfig`, every question answered that needs no model. Knows how
//! flags are typed, and nothing of what a run then does.

mod device;
mod engine;
mod input;
mod lora;
mod model_source;
mod output;
mod particular;
mod pooling;
mod sampling;
mod speculation;
mod window;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use self::engine::engine_config;
use self::input::input_config;
pub use self::input::{InputConfig, media_options};
use self::lora::lora_config;
pub use self::lora::{NamedModel, model_names};
pub use self::model_source::{ModelSource, served_name};
use self::output::output_config;
pub use self::output::{OutputConfig, errors_beside, is_table};
pub use self::particular::ParticularFlags;
pub use self::pooling::{PoolingConfig, all_typed, first_typed};
use self::sampling::overlay;
pub use self::window::WindowLimits;
use crate::args::{OutputFormatArg, RunArgs, SamplingArgs, SchedulingPolicyArg};
use vllm_batch_api::request::{SamplingParams, StructuredOutputs, UNLIMITED_LOGPROBS};
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::run_date::RunDate;
use vllm_batch_dataset::input::batch_line::BatchLines;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::overrides::DEFAULT_MAX_TOKENS;
use vllm_batch_dataset::input::row::{ChatMode, Likelihoods};
use vllm_batch_dataset::judge::Judge;
use vllm_batch_dataset::output::format_settings::FormatSettings;
use vllm_batch_dataset::terminal::clock::now;
use vllm_batch_dataset::terminal::error::CliError;

/// A run, resolved.
#[derive(Debug)]
pub struct RunConfig {
    /// For the engine; the model's folder is filled in once the model is found.
    pub engine: EngineConfig,
    /// Which model, as typed.
    pub model: ModelSource,
    /// Where rows come from.
    pub input: InputConfig,
    /// Where rows go.
    pub output: OutputConfig,
    /// Sampling flags as typed.
    pub sampling: SamplingArgs,
    /// What answers must match, of rows that do not say.
    pub structured_outputs: Option<Arc<StructuredOutputs>>,
    /// What that was read from, for errors.
    pub structured_outputs_place: String,
    /// What rows become that are not completed.
    pub pooling: Option<PoolingConfig>,
    /// Typed flags that only some rows use.
    pub particular: ParticularFlags,
    /// Who judges the rows of `eval`.
    pub judge: Option<Arc<Judge>>,
    /// When the run began, in seconds since 1970: what chat templates and `created` see.
    pub started: i64,
    /// It is SOURCE_DATE_EPOCH.
    date_is_fixed: bool,
}

impl RunConfig {
    /// Resolves the flags, and reads the chat template file.
    ///
    /// # Errors
    /// Flags that cannot be honoured, or files that they name and that are not there.
    pub fn new(args: RunArgs) -> Result<Self, CliError> {
        let mut engine = engine_config(&args)?;
        let fixed = source_date_epoch()?;
        let (started, date_is_fixed) = (fixed.unwrap_or_else(now), fixed.is_some());
        engine.model.chat_date = RunDate::from_unix(started);
        let output = output_config(&args)?;
        let typed = typed_params(&args);
        let particular = ParticularFlags::new(&args);
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let name = text(args.model.model);
        let mut model = ModelSource {
            served_name: args
                .output
                .answers
                .served_model_name
                .unwrap_or_else(|| served_name(&name)),
            name,
            mmproj: args.model.mmproj.map(text),
            tokenizer: args.model.tokenizer.map(text),
            revision: args.model.revision,
            download_dir: args.model.download_dir,
        };
        let mut input = input_config(args.input, std::io::stdin().is_terminal())?;
        input.rows.own_params = input.rows.own_params.with_typed(typed);
        input.rows.has_priorities =
            args.engine.compute.scheduling_policy == Some(SchedulingPolicyArg::Priority);
        let named = NamedModel { model: &model.name, served_name: &model.served_name };
        (engine.lora, engine.scheduler.max_loras, input.rows.names) =
            lora_config(&args.engine.lora, named)?;
        if let Some(merged) = &engine.lora.merged {
            // It is who answers.
            model.served_name.clone_from(&merged.name);
        }
        input.rows.lines = batch_lines(args.output.output_format);
        input.rows.fills_template = engine.model.chat_template.is_some();
        input.rows.likelihoods = args.loglikelihood.map_or(Likelihoods::None, Into::into);
        if input.rows.likelihoods != Likelihoods::None && input.rows.lines == BatchLines::OpenAi {
            let message = "--loglikelihood: lines of OpenAI's batch API have no such answers";
            let help = "leave out --output-format openai";
            return Err(CliError::refused("output", message).help(help));
        }
        let structured_outputs = sampling::structured_outputs(&args.structured_outputs)?;
        let sampling = args.sampling;
        Ok(Self {
            engine,
            model,
            input,
            output,
            sampling,
            structured_outputs,
            structured_outputs_place: args.structured_outputs.place(),
            pooling: None,
            particular,
            judge: None,
            started,
            date_is_fixed,
        })
    }

    /// How far reading may be ahead of engines that run so many sequences at once each. A loaded
    /// engine says how many: where no flag does, the device decides.
    pub fn window(&self, max_num_seqs: usize) -> WindowLimits {
        WindowLimits::of(self.engine.parallel.engines, max_num_seqs)
    }

    /// The run is one that began at this time.
    pub fn begin_at(&mut self, started: i64) {
        if !self.date_is_fixed {
            self.started = started;
            self.engine.model.chat_date = RunDate::from_unix(started);
        }
    }

    /// The date of what is asked now; that of SOURCE_DATE_EPOCH, where it is fixed.
    pub fn date_now(&self) -> RunDate {
        match self.date_is_fixed {
            true => self.engine.model.chat_date,
            false => RunDate::from_unix(now()),
        }
    }

    /// What rows are written by.
    pub fn format_settings(&self) -> FormatSettings {
        FormatSettings {
            path: self.output.path.clone(),
            is_matrix: self.output.is_matrix,
            is_answer_alone: self.output.is_answer_alone,
            out_field: self.output.field.clone(),
            detail: self.output.detail,
            sources: Arc::clone(&self.input.sources),
            shard: self.input.shard,
            task: self.input.rows.task,
            likelihoods: self.input.rows.likelihoods,
            lines: self.input.rows.lines,
            is_judged: self.judge.is_some(),
            typed: self.row_params(SamplingParams::default()),
            reasoning_parser: self.engine.model.reasoning_parser.clone(),
            model: self.model.served_name.clone(),
            started: self.started,
        }
    }

    /// The name of the model, where rows show it.
    pub fn shown_model_name(&self, shape: &Shape) -> Option<&str> {
        shape.has_batch_lines.then_some(self.model.served_name.as_str())
    }

    /// Refuses flags that would make an error row of every row without its own values.
    ///
    /// # Errors
    /// The flags do not fit each other, the model's defaults or its vocabulary.
    pub fn check_sampling(
        &self,
        model_defaults: SamplingParams,
        vocab_size: usize,
    ) -> Result<(), CliError> {
        let params = self.sampling_params(model_defaults);
        let verified = params.verify(vocab_size, UNLIMITED_LOGPROBS);
        let verified = verified.and_then(|()| match self.input.rows.likelihoods {
            Likelihoods::None => Ok(()),
            Likelihoods::OfChoices | Likelihoods::OfTexts => {
                params.verify_scores_texts("--loglikelihood")
            }
        });
        verified.map_err(|error| {
            let help =
                "change the flag; the model's generation_config.json gives what no flag does";
            CliError::refused(error.code, error.message).help(help)
        })
    }

    /// Refuses chat with a model that would make an error row of every row.
    ///
    /// `all_chat`: every row that can be sent is chat, by its shape.
    ///
    /// # Errors
    /// There is no chat template.
    pub fn check_chat(&self, has_chat_template: bool, all_chat: bool) -> Result<(), CliError> {
        let (what, help) = match self.input.rows.chat {
            _ if has_chat_template => return Ok(()),
            ChatMode::Always => {
                ("--chat", "give one with --chat-template FILE, or leave out --chat")
            }
            _ if all_chat => ("the rows are chat", "give one with --chat-template FILE"),
            _ => return Ok(()),
        };
        let message = format!("{what}: the model has no chat template");
        Err(CliError::refused("no_chat_template", message).help(help))
    }

    /// The model's defaults with the flags over them, and the default length of rows.
    pub fn sampling_params(&self, model_defaults: SamplingParams) -> SamplingParams {
        let params = self.row_params(model_defaults);
        let max_tokens = params.max_tokens.or(Some(DEFAULT_MAX_TOKENS));
        SamplingParams { max_tokens, ..params }
    }

    /// What rows start from: the model's defaults with the flags over them. `max_tokens` is None
    /// where nobody says it, since its default is the row's: OpenAI's endpoints have their own.
    pub fn row_params(&self, model_defaults: SamplingParams) -> SamplingParams {
        let structured_outputs = self.structured_outputs.clone();
        overlay(&self.sampling, SamplingParams { structured_outputs, ..model_defaults })
    }

    /// What rows of an input without own parameters are sampled with. The length of a batch request
    /// is its endpoint's, where nothing says it.
    pub fn start_of_rows(&self, model_defaults: &SamplingParams, shape: &Shape) -> SamplingParams {
        match shape.has_batch_lines {
            true => self.row_params(model_defaults.clone()),
            false => self.sampling_params(model_defaults.clone()),
        }
    }
}

/// Parameters of rows that flags were typed for, by their names.
fn typed_params(args: &RunArgs) -> Vec<String> {
    let mut typed = all_typed(&args.sampling);
    typed.extend(first_typed(&args.structured_outputs).map(|_| "structured_outputs".to_owned()));
    let kwargs = args.input.chats.chat_template_kwargs.as_ref();
    typed.extend(kwargs.map(|_| "chat_template_kwargs".to_owned()));
    typed
}

/// The time that reproducible builds set: it makes runs of different days equal.
#[expect(
    clippy::disallowed_methods,
    reason = "the variable is a convention of reproducible builds"
)]
fn source_date_epoch() -> Result<Option<i64>, CliError> {
    let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let message = format!("SOURCE_DATE_EPOCH={text} is not a number of seconds");
        CliError::refused("environment", message)
    })
}

/// Which rows become batch lines: whoever asks for our rows gets ours.
fn batch_lines(format: Option<OutputFormatArg>) -> BatchLines {
    match format {
        None | Some(OutputFormatArg::Auto) => BatchLines::Own,
        Some(OutputFormatArg::Simple | OutputFormatArg::Full) => BatchLines::Never,
        Some(OutputFormatArg::OpenAi) => BatchLines::OpenAi,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, parse};
    use vllm_batch_api::request::NumLogprobs;
    use vllm_batch_base::config::{DType, GenerationConfigSource, Overflow};
    use vllm_batch_base::config::{DeviceKind, Quantization};
    use vllm_batch_dataset::terminal::exit::Exit;

    pub fn config(flags: &str) -> Result<RunConfig, CliError> {
        let line = format!("vllm-batch run --model m --input rows.csv {flags}");
        let argv: Vec<_> = line.split_whitespace().map(Into::into).collect();
        match parse(&argv, &[]).unwrap().command {
            Command::Run(args) => RunConfig::new(args.run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_over_generation_config_over_defaults() {
        let model = || SamplingParams {
            temperature: 0.6,
            top_k: 20,
            max_tokens: None,
            ..SamplingParams::default()
        };
        let params = config("--top-k -1 --seed 7").unwrap().sampling_params(model());
        assert_eq!((params.temperature, params.top_k, params.seed), (0.6, 0, None));
        assert_eq!(params.max_tokens, Some(512));
        assert_eq!(config("").unwrap().row_params(model()).max_tokens, None);
        let given = SamplingParams { max_tokens: Some(99), ..model() };
        assert_eq!(config("").unwrap().sampling_params(given.clone()).max_tokens, Some(99));
        let params = config("--max-tokens 3 --logprobs -1").unwrap().sampling_params(given);
        assert_eq!((params.max_tokens, params.logprobs), (Some(3), Some(NumLogprobs::All)));
    }

    #[test]
    fn flags_that_no_row_can_meet_are_refused() {
        let greedy = || SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let check = |flags: &str| config(flags).unwrap().check_sampling(greedy(), 1000);
        let error = check("--n 2").unwrap_err();
        assert_eq!(error.message, "n must be 1 when using greedy sampling, got 2.");
        assert!(check("--min-tokens 9 --max-tokens 8").is_err());
        for flags in [
            "--logprobs 1001",
            "--prompt-logprobs 1001",
            "--stop-token-ids 1000",
            "--allowed-token-ids 1000",
            "--logit-bias 1000=5",
        ] {
            assert_eq!(check(flags).unwrap_err().exit, Exit::Refused, "{flags}");
        }
        for flags in ["", "--n 2 --temperature 1", "--logprobs -1 --logit-bias 999=1"] {
            assert!(check(flags).is_ok(), "{flags}");
        }
    }

    #[test]
    fn no_flags_give_the_engines_defaults() {
        let (got, mut default) = (config("").unwrap().engine, EngineConfig::default());
        // The engine has no clock: the command line reads it.
        default.model.chat_date = got.model.chat_date;
        // Nor an environment; and a library does not look for a GPU unasked.
        assert_eq!(got.device.kind, DeviceKind::Auto);
        default.device = got.device.clone();
        // Nor for calls.
        default.model.tool_call_parser = Some("auto".to_owned());
        assert_eq!(format!("{got:?}"), format!("{default:?}"));
    }

    #[test]
    fn flags_reach_the_engine() {
        let flags = "--max-num-seqs 1000 --no-enable-prefix-caching --num-gpu-blocks-override 9 \
                     --dtype bfloat16 --seed 7 --overflow truncate-left --generation-config vllm \
                     --gpu-memory-utilization 0.5 --threads 3 --device cuda:1 --enforce-eager \
                     --quantization fp8 --speculative-config {\"method\":\"suffix\"}";
        let config = config(flags).unwrap();
        let EngineConfig { model, cache, scheduler, parallel, device, speculation, .. } =
            &config.engine;
        assert_eq!(speculation.as_ref().map(|config| config.num_speculative_tokens), Some(24));
        assert_eq!((&device.kind, device.enforce_eager), (&DeviceKind::Cuda(1), true));
        assert_eq!(device.quantization, Some(Quantization::Fp8));
        assert_eq!(scheduler.max_num_seqs, Some(1000));
        assert_eq!(scheduler.max_num_batched_tokens, None);
        assert_eq!((cache.num_blocks, cache.enable_prefix_caching), (Some(9), false));
        assert_eq!((cache.memory_share, parallel.num_threads), (Some(0.5), Some(3)));
        assert_eq!((model.dtype, model.seed), (Some(DType::BFloat16), 7));
        assert_eq!(model.overflow, Overflow::TruncateLeft);
        assert_eq!(model.generation_config, GenerationConfigSource::Vllm);
    }

    #[test]
    fn chat_needs_a_template() {
        for (flags, all_chat) in [("--chat", false), ("", true)] {
            let error = config(flags).unwrap().check_chat(false, all_chat).unwrap_err();
            assert_eq!((error.code, error.exit), ("no_chat_template", Exit::Refused));
            assert!(config(flags).unwrap().check_chat(true, all_chat).is_ok());
        }
        assert!(config("").unwrap().check_chat(false, false).is_ok(), "messages are error rows");
    }

    #[test]
    fn rows_in_any_order_are_for_standard_output() {
        for flags in ["--unordered", "--unordered --out -", "--journal j"] {
            assert!(config(flags).is_ok(), "{flags}");
        }
        for flag in ["--out out.jsonl", "--journal j", "--errors e.jsonl", "--retry-failed"] {
            let error = config(&format!("--unordered {flag}")).unwrap_err();
            assert_eq!((error.code, error.exit), ("unordered", Exit::Refused), "{flag}");
            let name = flag.split(' ').next().unwrap();
            assert!(error.message.ends_with(name), "{}", error.message);
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let error = config("--chat-template /nowhere/t.jinja").unwrap_err();
        assert_eq!((error.code, error.exit), ("chat_template", Exit::Refused));
    }
}
