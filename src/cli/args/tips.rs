//! What a word that we do not know stands for elsewhere. One line each; a word that is in no table
//! gets the nearest of ours, if one is near.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

const NO_SERVER: &str = "there is no server here; `run` completes a file of rows";
const ONE_DEVICE: &str =
    "--tensor-parallel-size N shares a model out to N GPUs; --data-parallel-size N, the rows";
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
const NO_IMAGES: &str = "models read text only";

/// Flags of vLLM and its neighbours, without dashes.
const FLAGS: &[(&str, &str)] = &[
    ("tp", ONE_DEVICE),
    ("pipeline-parallel-size", ONE_DEVICE),
    ("pp", ONE_DEVICE),
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
    ("limit-mm-per-prompt", NO_IMAGES),
    ("host", NO_SERVER),
    ("port", NO_SERVER),
    ("api-key", NO_SERVER),
    ("task", NO_POOLING),
    ("runner", NO_POOLING),
    ("hf-token", "the token is taken from HF_TOKEN, or from the Hugging Face cache"),
    ("rope-scaling", "it is --hf-overrides '{\"rope_scaling\": ...}' here"),
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
    ("dry-run", "`plan` says what a run would be; `check FILE` looks at an input without a model"),
];

/// Commands of vLLM and its neighbours.
const COMMANDS: &[(&str, &str)] = &[
    ("serve", NO_SERVER),
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
    let name = name.split('=').next().unwrap_or(name);
    if let Some(tip) = of_flag(name) {
        return Some(tip.to_owned());
    }
    let flags = command.map(|c| c.get_arguments().filter_map(clap::Arg::get_long));
    let near = nearest(name, flags.into_iter().flatten());
    near.map(|near| format!("a similar flag: '--{near}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args;

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
