//! Flags of vLLM's `SamplingParams`. A row's own fields win over them, and they over the model's
//! generation_config.json.

use clap::builder::NonEmptyStringValueParser as NonEmpty;

use super::settings::Origins;
use super::values::{
    count, count_u32, length_penalty, logit_bias, min_p, or_minus_one, penalty, positive_u32,
    repetition_penalty, seed, temperature, top_p,
};

/// How tokens are chosen.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Where those are set that nobody typed.
    #[arg(skip)]
    #[serde(skip)]
    pub origins: Origins,
    /// Randomness; 0 always takes the likeliest token [default: the model's, else 1]
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Sample from the smallest set of tokens with this probability mass [default: the model's,
    /// else 1]
    #[arg(long, value_name = "P", value_parser = top_p, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Sample from the K likeliest tokens; 0 or -1: all [default: the model's, else 0]
    #[arg(long, value_name = "K", value_parser = or_minus_one)]
    #[arg(allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Drop tokens less likely than this share of the likeliest [default: the model's, else 0]
    #[arg(long, value_name = "P", value_parser = min_p, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Most tokens to generate for a row; 0 with --prompt-logprobs: none [default: the model's
    /// max_new_tokens, else 512]
    #[arg(long, value_name = "N", value_parser = count_u32)]
    pub max_tokens: Option<u32>,
    /// Tokens to generate before any stop counts [default: 0]
    #[arg(long, value_name = "N", value_parser = count, hide_short_help = true)]
    pub min_tokens: Option<usize>,
    /// Stop at this text; repeat for more. A newline is $'\n' in most shells
    #[arg(long, value_name = "TEXT", value_parser = NonEmpty::new())]
    pub stop: Vec<String>,
    /// Stop at these token ids, comma separated
    #[arg(long, value_name = "IDS", value_delimiter = ',', hide_short_help = true)]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Seed of all sampling and of dummy weights; equal seeds give equal bytes [default: 0]
    #[arg(long, value_name = "SEED", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Completions per row [default: 1]
    #[arg(short = 'n', long, value_name = "N", value_parser = positive_u32)]
    pub n: Option<u32>,
    /// Search for the N likeliest completions with N beams, in place of sampling
    #[arg(long, value_name = "N", value_parser = positive_u32, conflicts_with = "n")]
    #[arg(hide_short_help = true)]
    pub beam_width: Option<u32>,
    /// With --beam-width: a completion's score is its log-probability divided by its number of
    /// tokens, prompt included, to the power of X [default: 1]
    #[arg(long, value_name = "X", value_parser = length_penalty, allow_negative_numbers = true)]
    #[arg(requires = "beam_width", hide_short_help = true)]
    pub length_penalty: Option<f64>,
    /// Log-probabilities of the N likeliest tokens at each position; 0: of the chosen token only,
    /// -1: of the whole vocabulary
    #[arg(long, value_name = "N", value_parser = or_minus_one)]
    #[arg(allow_negative_numbers = true)]
    pub logprobs: Option<i64>,
    /// The same for the tokens of the prompt
    #[arg(long, value_name = "N", value_parser = or_minus_one)]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    pub prompt_logprobs: Option<i64>,
    /// With --prompt-logprobs: of the last N tokens only; those before them may come from the
    /// prefix cache
    #[arg(long, value_name = "N", value_parser = positive_u32, requires = "prompt_logprobs")]
    #[arg(hide_short_help = true)]
    pub prompt_logprobs_last: Option<u32>,
    /// Lower the logit of tokens that occur in the output, once [default: 0]
    #[arg(long, value_name = "X", value_parser = penalty, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub presence_penalty: Option<f32>,
    /// Lower the logit of tokens per occurrence in the output [default: 0]
    #[arg(long, value_name = "X", value_parser = penalty, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub frequency_penalty: Option<f32>,
    /// Above 1: avoid tokens of prompt and output [default: the model's, else 1]
    #[arg(long, value_name = "X", value_parser = repetition_penalty, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub repetition_penalty: Option<f32>,
    /// Go on past the end-of-sequence token, up to --max-tokens
    #[arg(long, hide_short_help = true)]
    pub ignore_eos: bool,
    /// Leave special tokens out of the text (the default)
    #[arg(long, overrides_with = "no_skip_special_tokens", hide_short_help = true)]
    pub skip_special_tokens: bool,
    /// Keep special tokens in the text
    #[arg(long, overrides_with = "skip_special_tokens", hide_short_help = true)]
    pub no_skip_special_tokens: bool,
    /// Keep the text that stopped a completion at its end
    #[arg(long, hide_short_help = true)]
    pub include_stop_str_in_output: bool,
    /// Add BIAS to the logit of a token; repeat, or separate by commas
    #[arg(long, value_name = "TOKEN_ID=BIAS", value_parser = logit_bias, value_delimiter = ',')]
    #[arg(hide_short_help = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Sample only these token ids, comma separated
    #[arg(long, value_name = "IDS", value_delimiter = ',', hide_short_help = true)]
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Never generate this word; repeat for more
    #[arg(long, value_name = "WORD", value_parser = NonEmpty::new())]
    #[arg(hide_short_help = true)]
    pub bad_words: Vec<String>,
    /// Keep only N tokens of a prompt, the last ones; -1: as many as the context holds
    #[arg(long, value_name = "N", value_parser = or_minus_one)]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    pub truncate_prompt_tokens: Option<i64>,
    /// Which end of a prompt --truncate-prompt-tokens cuts off [default: left]
    #[arg(long, value_name = "SIDE", hide_short_help = true)]
    pub truncation_side: Option<TruncationSideArg>,
    /// Most tokens of thinking, then its end is forced; needs --reasoning-parser
    #[arg(long, value_name = "N", alias = "thinking-budget", hide_short_help = true)]
    pub thinking_token_budget: Option<u32>,
    /// What is spoken in recordings, as en or english [default: the model finds it]
    #[arg(long, value_name = "LANGUAGE", value_parser = NonEmpty::new(), hide_short_help = true)]
    pub language: Option<String>,
    /// Write recordings down in English, whatever is spoken
    #[arg(long, hide_short_help = true)]
    pub translate: bool,
    /// Write where each piece of a recording's text begins and ends
    #[arg(long, hide_short_help = true)]
    pub return_timestamps: bool,
    /// Sampling defaults: the model's generation_config.json (auto), none (vllm), or that of a
    /// folder
    #[arg(long, value_name = "auto|vllm|DIR", hide_short_help = true)]
    pub generation_config: Option<std::path::PathBuf>,
}

/// `--truncation-side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TruncationSideArg {
    /// The beginning goes: the end of the prompt stays
    Left,
    /// The end goes: the beginning of the prompt stays
    Right,
}
