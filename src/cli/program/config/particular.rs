//! Flags that only some rows use: refused where no row of an input can, said where it is not known.
//! Knows the shape of an input, and no row.

use std::path::{Path, PathBuf};

use super::pooling::{all_typed, is_matrix};
use crate::args::RunArgs;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::reader::InputFormat;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::error::CliError;

/// Which rows use a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsedBy {
    /// Chats of datasets and of batch requests.
    Chats,
    /// Chats of datasets.
    ChatsOfDatasets,
    /// Rows that become lines of a batch API, and rows that name who answers.
    NamesOfModel,
}

/// The flags of them that were typed.
#[derive(Clone, Debug, Default)]
pub struct ParticularFlags {
    typed: Vec<(&'static str, UsedBy)>,
    /// What is said of flags that nothing uses, whatever the rows are.
    idle: Vec<String>,
    /// Flags of one kind of device, and whether that is a GPU.
    of_devices: Vec<(&'static str, bool)>,
}

impl ParticularFlags {
    /// Those of a command line.
    pub fn new(args: &RunArgs) -> Self {
        let (input, output) = (&args.input, &args.output);
        let has_adapters = !args.engine.lora.modules.lora_modules.is_empty();
        let flags = [
            ("--system-prompt", UsedBy::Chats, input.chats.system_prompt.is_some()),
            ("--chat-template-kwargs", UsedBy::Chats, input.chats.chat_template_kwargs.is_some()),
            ("--chat-template", UsedBy::Chats, input.chats.chat_template.is_some()),
            ("--allow-special", UsedBy::Chats, input.chats.allow_special),
            (
                "--allowed-local-media-path",
                UsedBy::Chats,
                input.images.allowed_local_media_path.is_some(),
            ),
            ("--allow-media-urls", UsedBy::Chats, input.images.allow_media_urls),
            ("--on-resume-media", UsedBy::Chats, input.on_resume_media.is_some()),
            ("--limit-mm-per-prompt", UsedBy::Chats, input.images.limit_mm_per_prompt.is_some()),
            ("--language", UsedBy::Chats, args.sampling.language.is_some()),
            ("--translate", UsedBy::Chats, args.sampling.translate),
            ("--return-timestamps", UsedBy::Chats, args.sampling.return_timestamps),
            ("--reasoning-parser", UsedBy::Chats, output.answers.reasoning_parser.is_some()),
            ("--tool-call-parser", UsedBy::Chats, output.answers.tool_call_parser.is_some()),
            (
                "--thinking-token-budget",
                UsedBy::Chats,
                args.sampling.thinking_token_budget.is_some(),
            ),
            ("--last-assistant", UsedBy::ChatsOfDatasets, input.chats.last_assistant.is_some()),
            (
                "--served-model-name",
                UsedBy::NamesOfModel,
                output.answers.served_model_name.is_some() && !has_adapters,
            ),
        ];
        let typed = flags.into_iter().filter(|(.., is_typed)| *is_typed);
        let typed = typed.map(|(flag, used_by, _)| (flag, used_by)).collect();
        let compute = &args.engine.compute;
        let of_devices = [
            ("--enforce-eager", true, args.engine.enforce_eager),
            ("--cpu-isa", false, compute.cpu_isa.is_some()),
        ];
        let of_devices = of_devices.into_iter().filter(|(.., is_typed)| *is_typed);
        let of_devices = of_devices.map(|(flag, is_of_gpu, _)| (flag, is_of_gpu)).collect();
        Self { typed, idle: idle(args), of_devices }
    }

    /// What is said of flags that rows of a shape may not use.
    ///
    /// # Errors
    /// No row of the input can use one.
    pub fn check(&self, shape: &Shape) -> Result<Vec<String>, CliError> {
        let mut notes = Vec::new();
        for &(flag, used_by) in &self.typed {
            // Texts that are compared may be put into a template, and so may two of one class.
            let is_of_template = flag.starts_with("--chat-template");
            let reads_template =
                shape.task.compares() || shape.task == Task::Classify && is_of_template;
            let idle = match used_by {
                UsedBy::Chats if shape.is_batch || shape.is_chat || reads_template => continue,
                UsedBy::ChatsOfDatasets if shape.is_chat && !shape.is_batch => continue,
                UsedBy::NamesOfModel if shape.has_batch_lines => continue,
                UsedBy::ChatsOfDatasets if shape.is_batch => {
                    return Err(refused(flag, "the rows are batch requests, which say it"));
                }
                UsedBy::NamesOfModel => "rows that are no batch requests do not show it",
                UsedBy::Chats | UsedBy::ChatsOfDatasets if shape.is_fixed => {
                    return Err(refused(flag, "the rows are text, and it is for chat")
                        .help("leave the flag out, or give --chat"));
                }
                UsedBy::Chats | UsedBy::ChatsOfDatasets => {
                    "rows of text do not use it; --chat sends them as chat"
                }
            };
            notes.push(format!("{flag}: {idle}"));
        }
        notes.extend(self.idle.iter().cloned());
        Ok(notes)
    }

    /// What is said of flags that the device has no use for, by its set of kernels.
    pub fn of_device(&self, kernel_set: &str) -> Vec<String> {
        let is_gpu = !kernel_set.starts_with("cpu");
        let others = self.of_devices.iter().filter(|(_, is_of_gpu)| *is_of_gpu != is_gpu);
        let device = if is_gpu { "a GPU" } else { "the CPU" };
        others.map(|(flag, _)| format!("{flag}: {device} does not use it")).collect()
    }

    /// Refuses flags of chats, where all requests were looked at and none is chat.
    ///
    /// # Errors
    /// One was typed.
    pub fn refuse_of_chats(&self) -> Result<(), CliError> {
        match self.typed.iter().find(|(_, used_by)| *used_by == UsedBy::Chats) {
            None => Ok(()),
            Some((flag, _)) => Err(refused(flag, "no request is chat")),
        }
    }
}

/// What is said of flags that nothing uses, by what else was typed.
fn idle(args: &RunArgs) -> Vec<String> {
    let (model, output, sampling) = (&args.model, &args.output, &args.sampling);
    let has_adapters = !args.engine.lora.modules.lora_modules.is_empty();
    let is_local = |path: &PathBuf| path.exists();
    let fetches = !is_local(&model.model)
        || [&model.tokenizer, &model.mmproj].into_iter().flatten().any(|path| !is_local(path))
        || has_adapters
        || args.input.dataset.split.is_some()
        || args.input.input.iter().any(|path| path.to_string_lossy().starts_with("hf://"));
    let is_stream = output.out.as_ref().is_none_or(|path| path == Path::new("-"));
    let truncates = sampling.truncate_prompt_tokens.is_some();
    let flags = [
        ("--max-loras", args.engine.lora.max_loras.is_some() && !has_adapters, "no adapter"),
        (
            "--max-lora-rank",
            args.engine.lora.max_lora_rank.is_some() && !has_adapters,
            "no adapter",
        ),
        ("--revision", model.revision.is_some() && !fetches, "nothing to fetch"),
        ("--download-dir", model.download_dir.is_some() && !fetches, "nothing to fetch"),
        ("--overwrite", output.overwrite && is_stream, "no file of a run before"),
        ("--retry-failed", output.retry_failed && is_stream, "no file of a run before"),
        (
            "--truncation-side",
            sampling.truncation_side.is_some() && !truncates,
            "no --truncate-prompt-tokens; a row may have its own",
        ),
    ];
    let typed = flags.into_iter().filter(|(_, is_typed, _)| *is_typed);
    let mut idle: Vec<String> = unknown_name(output.out.as_deref()).into_iter().collect();
    idle.extend(typed.map(|(flag, _, lacks)| format!("{flag}: there is {lacks}")));
    // The seed is that of dummy weights, too.
    let is_sampling = |name: &String| !["seed", "generation_config"].contains(&name.as_str());
    let names: Vec<String> = all_typed(sampling).into_iter().filter(is_sampling).collect();
    if args.loglikelihood.is_some() && !names.is_empty() {
        let flags: Vec<_> =
            names.iter().map(|name| format!("--{}", name.replace('_', "-"))).collect();
        idle.push(format!("{}: nothing is sampled with --loglikelihood", flags.join(", ")));
    }
    idle
}

/// What is said of an output whose name ends with what is no format.
fn unknown_name(out: Option<&Path>) -> Option<String> {
    let out = out?;
    let is_text = InputFormat::from_path(out) == InputFormat::Txt;
    let is_unknown = InputFormat::is_unknown(out) && !is_matrix(out);
    let name = out.display();
    (is_text || is_unknown).then(|| {
        format!(
            "{name}: its name says no format, so rows are JSON lines, or CSV where the input is; \
             .jsonl, .csv, .tsv and .parquet say one"
        )
    })
}

fn refused(flag: &str, why: &str) -> CliError {
    CliError::refused("flag", format!("{flag}: {why}")).help("leave the flag out")
}
