//! What a word that we do not know stands for elsewhere. One line each; a word that is in no table
//! gets the nearest of ours, if one is near.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

const SERVER: &str = "`serve` answers requests over HTTP; `run` completes a file of rows";
const ONE_DEVICE: &str = "--tensor-parallel-size N shares a model out to N GPUs; \
                         --pipeline-parallel-size N, its layers; --data-parallel-size N, the rows";
const ENGINES: &str = "it is --data-parallel-size N here, or --device cuda:all";
const NO_POOLING: &str =
    "the command says it: `run` completes; others are `embed`, `classify`, `score`, `rerank`";
const ALWAYS: &str = "it is always so; leave the flag out";
const OWN_CODE: &str = "no code of a model is ever run; the families are built in";
const SPECULATION: &str =
    r#"--speculative-config '{"method": "ngram", "num_speculative_tokens": 5}' has all of it"#;
const STRUCTURE: &str =
    "--structured-outputs.json FILE (or .regex, .choice, .grammar) constrains all rows";
const CHOICES: &str =
    "it is --structured-outputs.choice TEXT here, once for each text that an answer may be";
const SCHEMA: &str = "it is --structured-outputs.json FILE here: answers are JSON of that schema";
const OVERWRITE: &str =
    "the same command continues a run; --overwrite starts over and replaces what exists";
const CALLS: &str =
    "calls are looked for wherever a row has tools; --tool-call-parser none turns that off";
const BEAMS: &str = "--beam-width N searches with N beams";
const NO_BEST_OF: &str = "-n gives several samples, and --beam-width the likeliest completions";
const NO_LOGS: &str = "there are no request logs; -q hides progress, --stats FILE has the figures";
const IN_ROWS: &str = "rows have it: give each row a field of this name";
const ON_GPUS: &str = "a GPU has all layers (--device cuda:N), or those of a stage \
                       (--pipeline-parallel-size N)";
const KV_TYPE: &str = "it is --kv-cache-dtype here, for keys and values alike";
const HEAD: &str = "--limit N takes the first rows, --sample N random ones";
const PROMPT_FIELD: &str = "it is --prompt-column here, or --template '... {{name}} ...'";
const AT_ONCE: &str = "it is --max-num-seqs here; answers do not depend on it";
const ROPE: &str = "it is --hf-overrides '{\"rope_parameters\": ...}' here";
const NO_DIALOGUE: &str = "there is no dialogue here; -p TEXT answers one prompt";
const HARNESS: &str =
    "there are no built-in tasks; `eval` judges the rows of a file by what each expects";
const SMALL: &str = "it is --quantization fp8 or int8 here";

/// Flags of vLLM and its neighbours, without dashes.
const FLAGS: &[(&str, &str)] = &[
    ("tp", ONE_DEVICE),
    ("pp", "it is --pipeline-parallel-size here"),
    ("dp", ENGINES),
    ("enable-expert-parallel", ONE_DEVICE),
    ("distributed-executor-backend", ONE_DEVICE),
    ("gpus", ENGINES),
    ("num-gpus", ENGINES),
    ("trust-remote-code", OWN_CODE),
    ("lora-path", "it is --lora-modules NAME=DIR here"),
    ("lora", "it is --lora-modules NAME=DIR here; rows name it in `lora`"),
    ("max-cpu-loras", "adapters stay in memory, or are read again; leave the flag out"),
    ("lora-dtype", "it is the type of the model; leave the flag out"),
    ("fully-sharded-loras", ONE_DEVICE),
    ("speculative-model", SPECULATION),
    ("num-speculative-tokens", SPECULATION),
    ("structured-outputs-config", STRUCTURE),
    ("guided-decoding-backend", STRUCTURE),
    ("guided-json", SCHEMA),
    ("json-schema", SCHEMA),
    ("json", SCHEMA),
    ("schema", SCHEMA),
    ("guided-choice", CHOICES),
    ("choices", CHOICES),
    ("choice", CHOICES),
    ("guided-regex", "it is --structured-outputs.regex REGEX here"),
    ("regex", "it is --structured-outputs.regex REGEX here"),
    ("guided-grammar", "it is --structured-outputs.grammar FILE here"),
    ("grammar", "it is --structured-outputs.grammar FILE here"),
    ("grammar-file", "it is --structured-outputs.grammar FILE here"),
    ("force", OVERWRITE),
    ("replace", OVERWRITE),
    ("response-format", STRUCTURE),
    ("enable-auto-tool-choice", CALLS),
    ("use-beam-search", BEAMS),
    ("num-beams", BEAMS),
    ("best-of", NO_BEST_OF),
    ("enable-chunked-prefill", ALWAYS),
    ("async-scheduling", ALWAYS),
    ("disable-log-stats", NO_LOGS),
    ("disable-log-requests", NO_LOGS),
    ("enable-log-requests", NO_LOGS),
    ("host", SERVER),
    ("port", SERVER),
    ("api-key", SERVER),
    ("task", NO_POOLING),
    ("runner", NO_POOLING),
    ("hf-token", "the token is taken from HF_TOKEN, or from the Hugging Face cache"),
    ("rope-scaling", ROPE),
    ("max-logprobs", "there is no such limit; --logprobs -1 gives all"),
    (
        "swap-space",
        "rows that do not fit are computed again, or come back from --kv-offloading-size",
    ),
    ("cpu-offload-gb", "weights stay on one device; --quantization makes them smaller"),
    ("compilation-config", "there is nothing to compile; --enforce-eager turns CUDA graphs off"),
    ("tokenizer-mode", "there is one: tokenizer.json"),
    ("num-scheduler-steps", ALWAYS),
    ("backend", "there is one engine; leave the flag out"),
    ("input-file", "it is --input here, or -i"),
    ("sep", "it is --delimiter here"),
    ("separator", "it is --delimiter here"),
    ("charset", "it is --encoding here"),
    ("header", "tables have a header; --no-header reads those that have none"),
    ("output-file", "it is --out here, or -o"),
    ("output", "it is --out here, or -o"),
    ("max-new-tokens", "it is --max-tokens here"),
    ("max-completion-tokens", "it is --max-tokens here"),
    ("n-predict", "it is --max-tokens here"),
    ("ctx-size", "it is --max-model-len here"),
    ("batch-size", "it is --max-num-seqs here; answers do not depend on it"),
    ("num-threads", "it is --threads here"),
    ("resume", "the same command continues a run; --overwrite starts over"),
    // vLLM's.
    ("enable-reasoning", "--reasoning-parser NAME has all of it"),
    ("override-generation-config", "flags win over it: --temperature, --top-p, ..."),
    ("chat-template-content-format", "it is found in the chat template; leave the flag out"),
    ("kv-transfer-config", "--kv-offloading-size GIB moves keys and values to the host's memory"),
    ("load-format-extra", ALWAYS),
    ("gpu-memory", "it is --gpu-memory-utilization here, a share of the memory"),
    ("disable-custom-all-reduce", ONE_DEVICE),
    ("max-seq-len-to-capture", "CUDA graphs take every length; --enforce-eager turns them off"),
    ("cuda-graph-sizes", "CUDA graphs take every size; --enforce-eager turns them off"),
    ("model-impl", "there is one; leave the flag out"),
    ("skip-tokenizer-init", "prompts of token ids need no tokenizer; leave the flag out"),
    ("dataset-name", "it is --input FILE here, or OWNER/NAME of the hub with --split"),
    ("dataset-path", "it is --input FILE here, or OWNER/NAME of the hub with --split"),
    ("hf-dataset", "it is --input OWNER/NAME with --split here"),
    ("mm-processor-kwargs", "images are prepared as the model's files say; leave the flag out"),
    // llama.cpp's.
    ("n-gpu-layers", ON_GPUS),
    ("gpu-layers", ON_GPUS),
    ("split-mode", ONE_DEVICE),
    ("tensor-split", ONE_DEVICE),
    ("main-gpu", "it is --device cuda:N here"),
    ("predict", "it is --max-tokens here"),
    ("ctx", "it is --max-model-len here"),
    ("context-length", "it is --max-model-len here"),
    ("max-length", "--max-tokens limits an answer, --max-model-len prompt and answer together"),
    ("repeat-penalty", "it is --repetition-penalty here"),
    ("reverse-prompt", "it is --stop here"),
    ("parallel", AT_ONCE),
    ("ubatch-size", "it is --max-num-batched-tokens here; answers do not depend on it"),
    ("cont-batching", ALWAYS),
    ("flash-attn", ALWAYS),
    ("mlock", ALWAYS),
    ("no-mmap", "weights are mapped where that is possible; leave the flag out"),
    ("jinja", ALWAYS),
    ("conversation", NO_DIALOGUE),
    ("interactive", NO_DIALOGUE),
    ("hf-repo", "it is --model OWNER/NAME here"),
    ("hf-file", "it is --model OWNER/NAME here; a GGUF file is named by its path"),
    ("cache-type-k", KV_TYPE),
    ("cache-type-v", KV_TYPE),
    ("model-draft", SPECULATION),
    ("draft-model", SPECULATION),
    ("rope-freq-base", ROPE),
    ("rope-theta", ROPE),
    ("image", "rows have it: a field `image`, or --image-column NAME"),
    ("prompt-file", "it is -p - < FILE here, and -i FILE for a prompt in each line"),
    ("file", "it is --input here, or -i"),
    ("p", "`run` has it: `vllm-batch run -p TEXT`; rows come from --input"),
    ("no-display-prompt", "-p prints the answer alone; leave the flag out"),
    // OpenAI's, as its clients have them.
    ("instructions", "it is --system-prompt here"),
    ("system", "it is --system-prompt here"),
    ("messages", IN_ROWS),
    ("tools", IN_ROWS),
    ("functions", IN_ROWS),
    ("tool-choice", IN_ROWS),
    ("top-logprobs", "it is --logprobs N here"),
    (
        "reasoning-effort",
        "it is --chat-template-kwargs '{\"reasoning_effort\": \"low\"}' here, or a row's field",
    ),
    ("stream", "rows come out in order as they finish; --unordered gives each at once"),
    ("stop-sequences", "it is --stop here, once for each text"),
    ("stop-strings", "it is --stop here, once for each text"),
    ("endpoint", "each line of a batch file has its `url`"),
    ("completion-window", "there is none; leave the flag out"),
    // lm-eval's and transformers'.
    ("tasks", HARNESS),
    ("num-fewshot", HARNESS),
    ("model-args", "its parts are flags here: --dtype, --max-model-len, ..."),
    ("gen-kwargs", "its parts are flags here: --temperature, --max-tokens, ..."),
    ("apply-chat-template", "it is --chat here"),
    ("system-instruction", "it is --system-prompt here"),
    ("output-path", "it is --out here, or -o; `eval` has --report FILE too"),
    ("output-dir", "it is --out FILE here, or -o"),
    ("log-samples", "`eval` writes every judged row to --out"),
    ("use-cache", "the same command continues a run; --overwrite starts over"),
    ("metric", "it is --scorer here, of `eval`"),
    ("torch-dtype", "it is --dtype here"),
    ("precision", "it is --dtype here"),
    ("load-in-8bit", SMALL),
    ("load-in-4bit", SMALL),
    ("cache-dir", "it is --download-dir here"),
    ("peft", "it is --lora-modules NAME=DIR here"),
    ("adapter", "it is --lora-modules NAME=DIR here"),
    ("model-id", "it is --model here, or -m"),
    ("model-name", "it is --model here, or -m"),
    ("model-name-or-path", "it is --model here, or -m"),
    ("model-path", "it is --model here, or -m"),
    ("do-sample", "--temperature 0 takes the likeliest token, anything above samples"),
    ("greedy", "it is --temperature 0 here"),
    ("random-seed", "it is --seed here"),
    ("num-return-sequences", "it is --n here"),
    ("num-samples", HEAD),
    ("max-samples", HEAD),
    ("max-rows", HEAD),
    ("head", HEAD),
    ("shuffle", HEAD),
    ("random-sample", HEAD),
    ("column", PROMPT_FIELD),
    ("text-column", PROMPT_FIELD),
    ("input-column", PROMPT_FIELD),
    ("prompt-field", PROMPT_FIELD),
    ("prompt-key", PROMPT_FIELD),
    ("prompt-template", "it is --template '... {{name}} ...' here"),
    ("label-column", "it is --expected-column here, of `eval`"),
    ("target-column", "it is --expected-column here, of `eval`"),
    ("workers", AT_ONCE),
    ("num-workers", AT_ONCE),
    ("concurrency", AT_ONCE),
    ("max-concurrency", AT_ONCE),
    ("timeout", "no row waits for a server; --max-tokens bounds an answer"),
    ("max-retries", "--retry-failed asks error rows again"),
    ("retries", "--retry-failed asks error rows again"),
    ("cpu", "it is --device cpu here"),
    ("gpu", "it is --device cuda here"),
    ("debug", "it is -v here"),
    ("silent", "it is -q here; -qq shows errors only"),
    ("no-color", "it is --color never here"),
    ("no-progress", "it is --progress none here, or -q"),
    ("dry-run", "`plan` says what a run would be; `check FILE` looks at an input without a model"),
];

/// Commands of vLLM and its neighbours.
const COMMANDS: &[(&str, &str)] = &[
    ("chat", "there is no dialogue here; `run --chat` sends each row as a user turn"),
    ("complete", "it is `run` here"),
    ("generate", "it is `run` here"),
    ("run-batch", "it is `run` here; OpenAI batch files are read as they are"),
    ("batch", "it is `run` here; OpenAI batch files are read as they are"),
    ("download", "`run` downloads a model by its Hugging Face id"),
    ("pull", "`run` downloads a model by its Hugging Face id"),
    ("convert", "safetensors are read as they are; other formats are not read"),
    ("quantize", "`run --quantization` narrows the weights at load"),
    ("resume", "the same `run` command continues"),
    ("version", "it is `--version` here"),
    ("collect-env", "`run -v` shows what was resolved"),
];

/// What a flag that we do not have stands for; its name without dashes.
pub fn of_flag(name: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(flag, _)| *flag == name).map(|(_, tip)| *tip)
}

fn of_command(name: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(command, _)| *command == name).map(|(_, tip)| *tip)
}

/// The candidate that a word is probably a misspelling or the beginning of.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let score = |candidate: &&str| match candidate.starts_with(word) && word.len() >= 3 {
        true => 1.0,
        false => strsim::normalized_damerau_levenshtein(word, candidate),
    };
    let near = candidates.map(|candidate| (score(&candidate), candidate));
    let near = near.filter(|(score, _)| *score >= 0.6);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}

/// The same error with the usage of its command: clap's names the flags that were typed.
pub fn with_short_usage(
    mut error: clap::Error,
    program: &clap::Command,
    command: Option<&str>,
) -> clap::Error {
    let mut program = program.clone();
    program.build();
    if let Some(command) = command.and_then(|name| program.find_subcommand_mut(name))
        && error.get(ContextKind::Usage).is_some()
    {
        let usage = ContextValue::StyledStr(command.render_usage());
        error.insert(ContextKind::Usage, usage);
    }
    error
}

/// The same error with the tip that is true.
///
/// `command`: which command's flags were parsed, if it is known.
pub fn explain(
    mut error: clap::Error,
    program: &clap::Command,
    command: Option<&str>,
) -> clap::Error {
    let word = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let command = command.and_then(|name| program.find_subcommand(name));
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let Some(name) = word(&error, ContextKind::InvalidSubcommand) else { return error };
            let names = program.get_subcommands().map(clap::Command::get_name);
            let near = || nearest(&name, names).map(|near| format!("a similar command: '{near}'"));
            of_command(&name).map(str::to_owned).or_else(near)
        }
        ErrorKind::UnknownArgument => {
            let Some(word) = word(&error, ContextKind::InvalidArg) else { return error };
            of_word(&word, command)
        }
        _ => return error,
    };
    for kind in
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Suggested]
    {
        error.remove(kind);
    }
    if let Some(tip) = tip {
        let tips = vec![StyledStr::from(tip)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// The tip for a flag or a word that a command does not take.
fn of_word(word: &str, command: Option<&clap::Command>) -> Option<String> {
    let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
        let takes =
            |flag: &str| command.is_some_and(|c| c.get_arguments().any(|a| a.get_id() == flag));
        return match (takes("input"), takes("model")) {
            (true, _) => Some(format!("the input is named by a flag: -i {word}; the model by -m")),
            (_, true) => Some(format!("the model is named by a flag: -m {word}")),
            _ => None,
        };
    };
    // Some write flags as Python writes names.
    let name = name.split('=').next().unwrap_or(name).replace('_', "-");
    if let Some(tip) = of_input(&name, command) {
        return Some(tip);
    }
    let flags = command.map(|c| c.get_arguments().filter_map(clap::Arg::get_long));
    let flags: Vec<&str> = flags.into_iter().flatten().collect();
    if let Some(tip) = of_flag(&name).filter(|_| !flags.contains(&name.as_str())) {
        return Some(tip.to_owned());
    }
    let name = name.as_str();
    let near = nearest(name, flags.into_iter());
    near.map(|near| format!("a similar flag: '--{near}'"))
}

/// The tip for the flag of an input that a command takes without one.
fn of_input(name: &str, command: Option<&clap::Command>) -> Option<String> {
    let command = command.filter(|_| ["i", "input"].contains(&name))?;
    let values = command.get_positionals().filter_map(|arg| arg.get_value_names()?.first());
    let values: Vec<&str> = values.map(|value| value.as_str()).collect();
    (!values.is_empty()).then(|| {
        let (name, values) = (command.get_name(), values.join(" "));
        format!("files are named without a flag: vllm-batch {name} {values}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    #[test]
    fn no_tip_is_about_a_word_that_we_have() {
        let program = args::command(true);
        for (name, tip) in COMMANDS {
            assert!(program.find_subcommand(name).is_none(), "{name}: {tip}");
        }
        let run = program.find_subcommand("run").unwrap();
        for (name, tip) in FLAGS {
            let has = run.get_arguments().any(|arg| arg.get_long() == Some(name));
            assert!(!has, "--{name}: {tip}");
        }
    }

    #[test]
    fn near_is_near() {
        let words = ["temperature", "max-tokens", "man", "run", "truncate-prompt-tokens"];
        let near = |word| nearest(word, words.into_iter());
        assert_eq!(near("temprature"), Some("temperature"));
        assert_eq!(near("temp"), Some("temperature"));
        assert_eq!(near("rum"), Some("run"));
        assert_eq!(near("plan"), None);
        assert_eq!(near("trust-remote-code"), None);
    }
}
