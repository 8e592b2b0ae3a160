//! The engine's configuration, of the flags. The model's folders are filled in when it is found.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::device::{cpu_isa, device_config, engines};
use super::speculation::speculation;
use crate::args::{
    AnswerArgs, CacheArgs, ComputeArgs, DTypeArg, KvCacheDTypeArg, LoadFormatArg, OverflowArg,
    RunArgs,
};
use vllm_batch_base::config::{
    CacheConfig, DType, EngineConfig, GenerationConfigSource, KvCacheDType, LoadFormat, LoraConfig,
    ModelConfig, Overflow, ParallelConfig, SchedulerConfig,
};
use vllm_batch_base::files::read as read_file;
use vllm_batch_base::hf_overrides::HfOverrides;
use vllm_batch_base::run_date::RunDate;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_text::AnswerParser;

/// More than any chat template has.
const MAX_TEMPLATE_BYTES: u64 = 16 << 20;

/// What the flags say of the engine, and the chat template's text.
///
/// # Errors
/// The chat template cannot be read.
pub(super) fn engine_config(args: &RunArgs) -> Result<EngineConfig, CliError> {
    let ComputeArgs { max_num_seqs, max_num_batched_tokens, threads, .. } = args.engine.compute;
    let scheduler =
        SchedulerConfig { max_num_seqs, max_num_batched_tokens, ..SchedulerConfig::default() };
    let cache = cache_config(&args.engine.cache);
    let model = model_config(args)?;
    let isa = args.engine.compute.cpu_isa.map(cpu_isa);
    let parallel = ParallelConfig {
        num_threads: threads,
        isa,
        engines: engines(&args.engine.compute)?,
        tensor_parallel_size: args.engine.compute.tensor_parallel_size,
        pipeline_parallel_size: args.engine.compute.pipeline_parallel_size,
        stage_devices: Vec::new(),
    };
    let speculation = args.engine.speculative_config.as_deref().map(speculation).transpose()?;
    let device = device_config(&args.engine);
    // Its names are the model's too, which is not resolved here.
    let lora = LoraConfig::default();
    Ok(EngineConfig { model, cache, scheduler, parallel, device, lora, speculation })
}

fn cache_config(args: &CacheArgs) -> CacheConfig {
    let defaults = CacheConfig::default();
    let gib = |gib: f64| (gib * f64::from(1u32 << 30)) as u64;
    CacheConfig {
        block_size: args.block_size,
        enable_prefix_caching: args.prefix_caching().unwrap_or(defaults.enable_prefix_caching),
        kv_cache_dtype: match args.kv_cache_dtype {
            None | Some(KvCacheDTypeArg::Auto) => KvCacheDType::Auto,
            Some(KvCacheDTypeArg::Fp8) => KvCacheDType::Fp8,
        },
        num_blocks: args.num_gpu_blocks_override,
        kv_cache_memory_bytes: args.kv_cache_memory_bytes,
        kv_offloading_bytes: args.kv_offloading_size.map(gib),
        memory_share: args.gpu_memory_utilization,
        bytes_beside: defaults.bytes_beside,
        tower_cache_bytes: args.mm_processor_cache_gb.map(gib),
        engines_in_memory: defaults.engines_in_memory,
        num_pools: defaults.num_pools,
        pool: defaults.pool,
    }
}

fn model_config(args: &RunArgs) -> Result<ModelConfig, CliError> {
    let generation_config = match args.sampling.generation_config.as_deref() {
        None => GenerationConfigSource::Auto,
        Some(path) if path == Path::new("auto") => GenerationConfigSource::Auto,
        Some(path) if path == Path::new("vllm") => GenerationConfigSource::Vllm,
        Some(path) => GenerationConfigSource::Dir(path.to_owned()),
    };
    let [reasoning_parser, tool_call_parser] = answer_parsers(&args.output.answers)?;
    let chat_template = args.input.chats.chat_template.as_deref().map(chat_template).transpose()?;
    Ok(ModelConfig {
        model_dir: PathBuf::new(),
        mmproj: None,
        tokenizer_dir: None,
        chat_template,
        hf_overrides: hf_overrides(args.model.hf_overrides.as_deref())?,
        dtype: match args.model.dtype {
            None | Some(DTypeArg::Auto) => None,
            Some(DTypeArg::Float32) => Some(DType::Float32),
            Some(DTypeArg::BFloat16) => Some(DType::BFloat16),
            Some(DTypeArg::Float16) => Some(DType::Float16),
        },
        max_model_len: args.model.max_model_len,
        language_model_only: args.engine.language_model_only
            || args.input.images.limit_mm_per_prompt.is_some_and(|most| most.images == Some(0)),
        load_format: match args.model.load_format {
            None | Some(LoadFormatArg::Auto) => LoadFormat::Auto,
            Some(LoadFormatArg::Dummy) => LoadFormat::Dummy,
        },
        seed: args.sampling.seed.unwrap_or(0),
        generation_config,
        overflow: match args.input.overflow {
            None | Some(OverflowArg::Error) => Overflow::Error,
            Some(OverflowArg::TruncateLeft) => Overflow::TruncateLeft,
            Some(OverflowArg::TruncateRight) => Overflow::TruncateRight,
        },
        pooling_task: None,
        pooling_type: None,
        sparse: false,
        token_classes: None,
        allow_special: args.input.chats.allow_special,
        reasoning_parser,
        tool_call_parser,
        chat_date: RunDate::default(),
        on_lost_file: None,
    })
}

/// `--hf-overrides`.
fn hf_overrides(json: Option<&str>) -> Result<HfOverrides, CliError> {
    let overrides = json.map(HfOverrides::parse).transpose().map_err(|what| {
        CliError::refused("hf_overrides", format!("--hf-overrides: {what}"))
            .help("give a JSON object of config.json's keys, as in '{\"rope_scaling\": null}'")
    })?;
    Ok(overrides.unwrap_or_default())
}

/// `--reasoning-parser` and `--tool-call-parser`. Whoever gives tools wants calls.
fn answer_parsers(args: &AnswerArgs) -> Result<[Option<String>; 2], CliError> {
    let reasoning = args.reasoning_parser.as_deref();
    let tool_calls = args.tool_call_parser.as_deref().unwrap_or("auto");
    // What `auto` is, the model's chat template says.
    AnswerParser::new(reasoning.unwrap_or("none"), tool_calls, None)
        .map(|_| [reasoning, Some(tool_calls)].map(|name| name.map(str::to_owned)))
        .map_err(|message| CliError::refused("answer_parser", message))
}

/// The text of `--chat-template`: a file's, or as in vLLM the template itself.
fn chat_template(value: &Path) -> Result<String, CliError> {
    let text = value.to_str().filter(|text| text.contains("{{") || text.contains("{%"));
    match text {
        Some(text) if !value.is_file() => Ok(text.to_owned()),
        _ => {
            let refused = |error: &dyn Display| {
                let message = format!("--chat-template {}: {error}", value.display());
                CliError::refused("chat_template", message)
                    .help_of_file("give a file, or a template that has {{ or {%")
            };
            let bytes = read_file(value, MAX_TEMPLATE_BYTES).map_err(|error| refused(&error))?;
            String::from_utf8(bytes).map_err(|error| refused(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::args::command;
    use vllm_batch_base::Setting;
    use vllm_batch_dataset::terminal::flags::flag;

    #[test]
    fn every_setting_of_the_engine_has_a_flag() {
        let mut known = HashSet::new();
        for command in command(true).get_subcommands() {
            known.extend(
                command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned),
            );
        }
        for setting in Setting::ALL {
            let long = flag(*setting).strip_prefix("--").expect("a long flag");
            assert!(known.contains(long), "{setting}: there is no --{long}");
        }
    }
}
