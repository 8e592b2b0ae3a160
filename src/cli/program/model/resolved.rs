//! What a run resolved to, once its model is loaded: shown by `-v`, and the `engine` of `--stats`.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::args::SamplingArgs;
use crate::config::RunConfig;
use vllm_batch_api::request::SamplingParams;
use vllm_batch_base::config::LoraConfig;
use vllm_batch_dataset::terminal::numbers::grouped;
use vllm_batch_engine::EngineInfo;

/// The engine of a run.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    device: String,
    kernel_set: String,
    num_threads: usize,
    dtype: &'static str,
    checkpoint_format: Option<String>,
    quantization: Option<String>,
    kv_cache_dtype: String,
    kv_cache_tokens: usize,
    kv_cache_bytes: usize,
    num_offloaded_tokens: usize,
    block_size: usize,
    max_model_len: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    prefix_caching: bool,
    seed: u64,
    /// Adapters, each with its largest rank where that is known.
    loras: Vec<(String, Option<usize>)>,
    max_loras: usize,
    is_merged: bool,
}

impl Resolved {
    /// Of a loaded engine.
    pub fn new(config: &RunConfig, info: &EngineInfo) -> Self {
        let engine = &config.engine;
        Self {
            device: info.device_name.clone(),
            kernel_set: info.kernel_set.clone(),
            num_threads: info.num_threads,
            dtype: info.dtype.name(),
            checkpoint_format: info.checkpoint_format.clone(),
            quantization: engine.device.quantization.map(|kind| kind.name().to_owned()),
            kv_cache_dtype: engine.cache.kv_cache_dtype.name(info.dtype).to_owned(),
            kv_cache_tokens: info.num_cache_tokens,
            kv_cache_bytes: info.kv_cache_bytes,
            num_offloaded_tokens: info.num_offloaded_tokens,
            block_size: info.block_size,
            max_model_len: info.max_model_len,
            max_num_seqs: info.step_sizes.max_num_seqs,
            max_num_batched_tokens: info.step_sizes.max_num_batched_tokens,
            // Texts that are computed whole have no cache.
            prefix_caching: engine.cache.enable_prefix_caching && info.num_cache_tokens > 0,
            seed: engine.model.seed,
            loras: loras(&engine.lora, &info.lora_ranks),
            max_loras: engine.scheduler.max_loras,
            is_merged: engine.lora.merged.is_some(),
        }
    }

    fn num_blocks(&self) -> usize {
        self.kv_cache_tokens / self.block_size.max(1)
    }

    /// Rows of the full length that the KV cache holds at once.
    fn max_concurrency(&self) -> f64 {
        self.kv_cache_tokens as f64 / self.max_model_len.max(1) as f64
    }

    /// The lines of `-v`.
    pub fn lines(&self) -> String {
        match self.adapters() {
            None => self.engine_lines(),
            Some(adapters) if self.is_merged => format!("{}\n{adapters}", self.engine_lines()),
            Some(adapters) => {
                format!("{}\n{adapters}, {} in a step", self.engine_lines(), self.max_loras)
            }
        }
    }

    /// The adapters, in words; None: there are none.
    pub fn adapters(&self) -> Option<String> {
        let named = |(name, rank): &(String, Option<usize>)| match rank {
            Some(rank) => format!("{name} (rank {rank})"),
            None => name.clone(),
        };
        let names: Vec<_> = self.loras.iter().map(named).collect();
        let merged = if self.is_merged { ", merged" } else { "" };
        (!names.is_empty()).then(|| format!("Adapters: {}{merged}", names.join(", ")))
    }

    /// The `lora` of `--stats`, of an engine that has loaded adapters so often; null: there are
    /// none.
    pub fn lora_json(&self, num_loads: u64) -> Value {
        let module = |(name, rank): &(String, Option<usize>)| json!({ "name": name, "rank": rank });
        match self.loras.is_empty() {
            true => Value::Null,
            false => json!({
                "modules": self.loras.iter().map(module).collect::<Vec<_>>(),
                "merged": self.is_merged,
                "max_loras": self.max_loras,
                "loads": num_loads,
            }),
        }
    }

    fn engine_lines(&self) -> String {
        let number = |number: usize| grouped(number as u64);
        let quantization = match &self.quantization {
            Some(kind) => format!(", {kind} linear layers"),
            None => String::new(),
        };
        let format = match &self.checkpoint_format {
            Some(format) => format!(" of {format}"),
            None => String::new(),
        };
        let prefix_caching = if self.prefix_caching { "on" } else { "off" };
        let engine = format!(
            "Engine: {}, kernels {}, {} thread{}, {}{format}{quantization}",
            self.device,
            self.kernel_set,
            self.num_threads,
            if self.num_threads == 1 { "" } else { "s" },
            self.dtype,
        );
        if self.kv_cache_tokens == 0 {
            return format!(
                "{engine}\nLimits: texts of {} tokens, {} texts, {} tokens per step",
                number(self.max_model_len),
                number(self.max_num_seqs),
                number(self.max_num_batched_tokens),
            );
        }
        let offloaded = match self.num_offloaded_tokens {
            0 => String::new(),
            tokens => format!(", and {} tokens in the host's memory", number(tokens)),
        };
        format!(
            "{engine}\n\
             KV cache: {} tokens in {} blocks of {}, {:.1} MiB of {}{offloaded}\n\
             Maximum concurrency for rows of {} tokens: {:.2}x\n\
             Limits: context {}, {} sequences, {} tokens per step; prefix caching {prefix_caching}",
            number(self.kv_cache_tokens),
            number(self.num_blocks()),
            self.block_size,
            self.kv_cache_bytes as f64 / f64::from(1u32 << 20),
            self.kv_cache_dtype,
            number(self.max_model_len),
            self.max_concurrency(),
            number(self.max_model_len),
            number(self.max_num_seqs),
            number(self.max_num_batched_tokens),
        )
    }

    /// The `engine` of `--stats`.
    pub fn json(&self) -> Value {
        json!({
            "device": self.device,
            "kernels": self.kernel_set,
            "threads": self.num_threads,
            "dtype": self.dtype,
            "checkpoint_format": self.checkpoint_format,
            "quantization": self.quantization,
            "kv_cache_dtype": self.kv_cache_dtype,
            "kv_cache_tokens": self.kv_cache_tokens,
            "kv_cache_bytes": self.kv_cache_bytes,
            "num_offloaded_tokens": self.num_offloaded_tokens,
            "num_blocks": self.num_blocks(),
            "block_size": self.block_size,
            "max_model_len": self.max_model_len,
            "max_concurrency": self.max_concurrency(),
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "prefix_caching": self.prefix_caching,
            "seed": self.seed,
        })
    }
}

/// The adapters of a run, each with its rank.
fn loras(config: &LoraConfig, ranks: &[usize]) -> Vec<(String, Option<usize>)> {
    let ranks = ranks.iter().copied().map(Some).chain(std::iter::repeat(None));
    let modules = config.modules.iter().chain(&config.merged);
    modules.zip(ranks).map(|(module, rank)| (module.name.clone(), rank)).collect()
}

/// The sampling parameters that rows start from, each with where it is from.
///
/// `model`: the defaults of the model's generation_config.json; `rows`: those with the flags over
/// them.
pub fn sampling_line(
    flags: &SamplingArgs,
    model: &SamplingParams,
    rows: &SamplingParams,
) -> String {
    let neutral = SamplingParams::default();
    let mut text = String::new();
    let mut add = |name: &str, value: String, is_flag: bool, is_models: bool| {
        let origin = match (is_flag, is_models) {
            (true, _) => flags.origins.of(name).unwrap_or("flag"),
            (_, true) => "generation_config.json",
            _ => "default",
        };
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{name} {value} ({origin})");
    };
    macro_rules! each {
        ($($name:ident),*) => {
            $(add(
                stringify!($name),
                rows.$name.to_string(),
                flags.$name.is_some(),
                model.$name != neutral.$name,
            );)*
        };
    }
    each!(temperature, top_p, top_k, min_p);
    match rows.beam_search {
        None => {
            each!(n);
        }
        Some(beams) => {
            add("beam_width", beams.beam_width.to_string(), flags.beam_width.is_some(), false);
            let is_flag = flags.length_penalty.is_some();
            add("length_penalty", beams.length_penalty.to_string(), is_flag, false);
        }
    }
    each!(presence_penalty, frequency_penalty, repetition_penalty);
    let max_tokens = rows.max_tokens.map_or("of the endpoint".to_owned(), |n| n.to_string());
    add("max_tokens", max_tokens, flags.max_tokens.is_some(), model.max_tokens.is_some());
    format!("Sampling: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::LoraModule;

    fn resolved() -> Resolved {
        Resolved {
            device: "a CPU".into(),
            kernel_set: "cpu-avx2".into(),
            num_threads: 4,
            dtype: "bfloat16",
            kv_cache_dtype: "bfloat16".into(),
            kv_cache_tokens: 131_072,
            kv_cache_bytes: 3 << 20,
            block_size: 32,
            max_model_len: 3000,
            max_num_seqs: 256,
            max_num_batched_tokens: 4096,
            prefix_caching: true,
            ..Resolved::default()
        }
    }

    #[test]
    fn what_was_resolved_is_said_in_numbers() {
        let lines = "\
Engine: a CPU, kernels cpu-avx2, 4 threads, bfloat16
KV cache: 131,072 tokens in 4,096 blocks of 32, 3.0 MiB of bfloat16
Maximum concurrency for rows of 3,000 tokens: 43.69x
Limits: context 3,000, 256 sequences, 4,096 tokens per step; prefix caching on";
        assert_eq!(resolved().lines(), lines);
        let offloads = Resolved { num_offloaded_tokens: 64_000, ..resolved() };
        assert!(offloads.lines().contains("bfloat16, and 64,000 tokens in the host's memory\n"));
        let format = Some("gptq 4 bit, groups of 128".to_owned());
        let packed = Resolved {
            checkpoint_format: format.clone(),
            quantization: Some("int8".to_owned()),
            ..resolved()
        };
        let line = "4 threads, bfloat16 of gptq 4 bit, groups of 128, int8 linear layers\n";
        assert!(packed.lines().contains(line), "{}", packed.lines());
        assert_eq!(packed.json()["checkpoint_format"], json!(format));
        let encoder = Resolved { kv_cache_tokens: 0, ..resolved() };
        let lines = encoder.lines();
        assert!(
            lines.ends_with("\nLimits: texts of 3,000 tokens, 256 texts, 4,096 tokens per step")
        );
        let json = resolved().json();
        assert_eq!((&json["num_blocks"], &json["quantization"]), (&json!(4096), &Value::Null));
    }

    #[test]
    fn adapters_are_named_with_their_ranks() {
        let module = |name: &str| LoraModule { name: name.to_owned(), dir: "dir".into() };
        let modules = vec![module("a"), module("b")];
        let config = LoraConfig { modules, ..LoraConfig::default() };
        let run = Resolved { loras: loras(&config, &[16, 8]), max_loras: 2, ..resolved() };
        let line = "Adapters: a (rank 16), b (rank 8)";
        assert_eq!(run.adapters().as_deref(), Some(line));
        assert!(run.lines().ends_with(&format!("\n{line}, 2 in a step")), "{}", run.lines());
        let modules = json!([{"name": "a", "rank": 16}, {"name": "b", "rank": 8}]);
        let json = json!({"modules": modules, "merged": false, "max_loras": 2, "loads": 7});
        assert_eq!(run.lora_json(7), json);
        let config = LoraConfig { merged: Some(module("a")), ..LoraConfig::default() };
        let merged = Resolved { loras: loras(&config, &[]), is_merged: true, ..resolved() };
        assert!(merged.lines().ends_with("\nAdapters: a, merged"), "{}", merged.lines());
        assert_eq!((resolved().adapters(), resolved().lora_json(0)), (None, Value::Null));
    }

    #[test]
    fn each_parameter_has_its_origin() {
        let model =
            SamplingParams { temperature: 0.6, max_tokens: None, ..SamplingParams::default() };
        let rows = SamplingParams { top_p: 0.9, max_tokens: Some(512), ..model.clone() };
        let mut flags = SamplingArgs { top_p: Some(0.9), ..SamplingArgs::default() };
        let line = sampling_line(&flags, &model, &rows);
        let start = "Sampling: temperature 0.6 (generation_config.json), top_p 0.9 (flag), top_k 0 \
                     (default), ";
        assert!(line.starts_with(start), "{line}");
        assert!(line.ends_with(", max_tokens 512 (default)"), "{line}");
        flags.origins = [("top-p".to_owned(), "VLLM_BATCH_TOP_P".to_owned())].into_iter().collect();
        let line = sampling_line(&flags, &model, &rows);
        assert!(line.contains(", top_p 0.9 (VLLM_BATCH_TOP_P), top_k 0 (default), "), "{line}");
    }
}
