//! `--speculative-config`: vLLM's JSON object of who guesses tokens. A folder that it names is not
//! looked at here.

use serde_json::{Map, Value};

use vllm_batch_base::config::{SpeculationConfig, SpeculationMethod, SuffixConfig};
use vllm_batch_dataset::terminal::error::CliError;

/// Methods, by vLLM's names.
const METHODS: [&str; 3] = ["ngram", "suffix", "draft_model"];

/// Length of an n-gram where none is given, as in vLLM.
const NGRAM: usize = 5;

/// What the flag's value says.
///
/// # Errors
/// It is no such object, or asks for what is not there: by name.
pub(super) fn speculation(text: &str) -> Result<SpeculationConfig, CliError> {
    parse(text).map_err(|message| {
        let help = format!(
            "give an object such as {{\"method\": \"ngram\", \"num_speculative_tokens\": 5}}; methods are {}",
            METHODS.join(", ")
        );
        let message = format!("--speculative-config: {message}");
        CliError::refused("speculative_config", message).help(help)
    })
}

fn parse(text: &str) -> Result<SpeculationConfig, String> {
    let Ok(Value::Object(mut keys)) = serde_json::from_str(text) else {
        return Err("it is no JSON object".to_owned());
    };
    let method = match keys.remove("method") {
        Some(Value::String(method)) => method,
        Some(other) => return Err(format!("`method` is no text: {other}")),
        None => return Err("it has no `method`".to_owned()),
    };
    let num_speculative_tokens = take(&mut keys, "num_speculative_tokens")?;
    let (method, default_tokens) = match &*method {
        "ngram" => (ngram(&mut keys)?, None),
        "suffix" => {
            let config = suffix(&mut keys)?;
            let depth = config.max_tree_depth.min(SpeculationConfig::MAX_TOKENS);
            (SpeculationMethod::Suffix(config), Some(depth))
        }
        "draft_model" => match keys.remove("model") {
            Some(Value::String(dir)) => {
                (SpeculationMethod::DraftModel { model_dir: dir.into() }, None)
            }
            _ => return Err("it has no `model`: the folder of the draft model".to_owned()),
        },
        other => return Err(format!("there is no method `{other}`")),
    };
    if let Some(key) = keys.keys().next() {
        return Err(format!("the method has no key `{key}`"));
    }
    let num_speculative_tokens =
        num_speculative_tokens.or(default_tokens).ok_or("it has no `num_speculative_tokens`")?;
    let most = SpeculationConfig::MAX_TOKENS;
    if num_speculative_tokens > most {
        return Err(format!("`num_speculative_tokens` is {num_speculative_tokens}, of {most}"));
    }
    Ok(SpeculationConfig { method, num_speculative_tokens, max_step_tokens: None, paced: true })
}

fn ngram(keys: &mut Map<String, Value>) -> Result<SpeculationMethod, String> {
    let min = take(keys, "prompt_lookup_min")?;
    let max = take(keys, "prompt_lookup_max")?;
    // As in vLLM one that is given alone is both.
    let (min, max) = (min.or(max).unwrap_or(NGRAM), max.or(min).unwrap_or(NGRAM));
    if min > max {
        return Err(format!("`prompt_lookup_min` {min} is more than `prompt_lookup_max` {max}"));
    }
    Ok(SpeculationMethod::Ngram { min, max })
}

fn suffix(keys: &mut Map<String, Value>) -> Result<SuffixConfig, String> {
    let defaults = SuffixConfig::default();
    let mut number = |key: &str, default: f64, most: f64| match keys.remove(key) {
        None => Ok(default),
        Some(value) => match value.as_f64().filter(|number| (0.0..=most).contains(number)) {
            Some(number) => Ok(number),
            None => Err(format!("`{key}` is no number from 0 to {most}: {value}")),
        },
    };
    let max_spec_factor = number("suffix_decoding_max_spec_factor", defaults.max_spec_factor, 1e3)?;
    let min_token_prob = number("suffix_decoding_min_token_prob", defaults.min_token_prob, 1.0)?;
    let max_tree_depth = take(keys, "suffix_decoding_max_tree_depth")?;
    let max_cached_requests = take(keys, "suffix_decoding_max_cached_requests")?;
    Ok(SuffixConfig {
        max_tree_depth: max_tree_depth.unwrap_or(defaults.max_tree_depth),
        max_cached_requests: max_cached_requests.unwrap_or(defaults.max_cached_requests),
        max_spec_factor,
        min_token_prob,
    })
}

/// A whole number from 1 on.
fn take(keys: &mut Map<String, Value>, key: &str) -> Result<Option<usize>, String> {
    let Some(value) = keys.remove(key) else { return Ok(None) };
    let number = value.as_u64().filter(|number| (1..=1 << 30).contains(number));
    match number {
        Some(number) => Ok(Some(number as usize)),
        None => Err(format!("`{key}` is no whole number from 1 on: {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ngrams_have_vllms_lengths() {
        let lengths = |more: &str| {
            let text = format!(r#"{{"method": "ngram", "num_speculative_tokens": 4{more}}}"#);
            let config = parse(&text).unwrap();
            assert_eq!((config.num_speculative_tokens, config.paced), (4, true));
            match config.method {
                SpeculationMethod::Ngram { min, max } => (min, max),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(lengths(""), (5, 5));
        assert_eq!(lengths(r#", "prompt_lookup_max": 3"#), (3, 3));
        assert_eq!(lengths(r#", "prompt_lookup_min": 2"#), (2, 2));
        assert_eq!(lengths(r#", "prompt_lookup_min": 2, "prompt_lookup_max": 4"#), (2, 4));
    }

    #[test]
    fn suffix_has_vllms_options_and_as_many_tokens_as_its_depth() {
        let config = parse(r#"{"method": "suffix"}"#).unwrap();
        assert_eq!(config.method, SpeculationMethod::Suffix(SuffixConfig::default()));
        assert_eq!(config.num_speculative_tokens, 24);
        let text = r#"{"method": "suffix", "num_speculative_tokens": 7,
            "suffix_decoding_max_tree_depth": 9, "suffix_decoding_max_cached_requests": 3,
            "suffix_decoding_max_spec_factor": 2.5, "suffix_decoding_min_token_prob": 0}"#;
        let config = parse(text).unwrap();
        let options = SuffixConfig {
            max_tree_depth: 9,
            max_cached_requests: 3,
            max_spec_factor: 2.5,
            min_token_prob: 0.0,
        };
        assert_eq!(config.method, SpeculationMethod::Suffix(options));
        assert_eq!(config.num_speculative_tokens, 7);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        let cases = [
            ("ngram", "no JSON object"),
            (r#"{"num_speculative_tokens": 5}"#, "no `method`"),
            (r#"{"method": "eagle3", "num_speculative_tokens": 5}"#, "no method `eagle3`"),
            (r#"{"method": "suffix", "suffix_decoding_min_token_prob": 1.5}"#, "from 0 to 1: 1.5"),
            (r#"{"method": "draft_model", "num_speculative_tokens": 5}"#, "no `model`"),
            (r#"{"method": "suffix", "prompt_lookup_max": 2}"#, "no key `prompt_lookup_max`"),
            (r#"{"method": "ngram"}"#, "no `num_speculative_tokens`"),
            (r#"{"method": "ngram", "num_speculative_tokens": 0}"#, "from 1 on: 0"),
            (r#"{"method": "ngram", "num_speculative_tokens": 129}"#, "129, of 128"),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 5, "disable_padded": 1}"#,
                "disable_padded",
            ),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 4,
                    "prompt_lookup_max": 3}"#,
                "`prompt_lookup_min` 4 is more",
            ),
        ];
        for (text, expected) in cases {
            let error = speculation(text).unwrap_err().message;
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
