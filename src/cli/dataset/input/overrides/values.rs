//! From the JSON of a field to the value of its parameter, by vLLM's conventions.

use std::sync::Arc;

use serde_json::{Value, json};

use vllm_batch_api::pooling::EncodingFormat;
use vllm_batch_api::request::{
    BeamSearchParams, NumLogprobs, SamplingParams, SpeechTask, StructuredOutputs, TruncationSide,
};

/// Why a value does not fit.
pub(super) enum Problem {
    /// Another type: what was expected.
    Expected(&'static str),
    /// The right type, but too small.
    AtLeast(i64),
    /// Too large.
    AtMost(i64),
    /// vLLM's words for `top_k`.
    TopK,
    /// vLLM's words for `logprobs`.
    Logprobs,
    /// In words.
    Wrong(String),
}

impl Problem {
    pub(super) fn message(&self, name: &str, text: &str) -> String {
        let got = shortened(text);
        match self {
            Problem::Expected(what) => format!("{name}: expected {what}, found {}", found(text)),
            Problem::AtLeast(least) => format!("{name} must be at least {least}, got {got}."),
            Problem::AtMost(most) => format!("{name} must be at most {most}, got {got}."),
            Problem::TopK => format!("{name} must be 0 (disable), or at least 1, got {got}."),
            Problem::Wrong(what) => format!("{name}: {what}"),
            Problem::Logprobs => format!("{name} must be non-negative or -1, got {got}."),
        }
    }
}

/// Type and beginning of a JSON value.
fn found(text: &str) -> String {
    let kind = match text.as_bytes().first() {
        Some(b'"') => "the string ",
        Some(b'[') => "the list ",
        Some(b'{') => "the object ",
        Some(b't' | b'f' | b'n') => "",
        _ => "the number ",
    };
    format!("{kind}{}", shortened(text))
}

/// At most 40 characters, without control characters (raw JSON has none but whitespace).
pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).map(|c| if c < ' ' { ' ' } else { c }).collect();
    if text.chars().nth(40).is_some() {
        short.push_str("...");
    }
    short
}

pub(super) fn set<T>(slot: &mut T, value: Result<T, Problem>) -> Result<(), Problem> {
    *slot = value?;
    Ok(())
}

pub(super) fn number(value: &Value) -> Result<f32, Problem> {
    let number = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
    number.ok_or(Problem::Expected("a number"))
}

pub(super) fn boolean(value: &Value) -> Result<bool, Problem> {
    value.as_bool().ok_or(Problem::Expected("true or false"))
}

/// An integer in a range. `256.0` is one: pandas writes it so when a column has gaps.
pub(super) fn integer(value: &Value, least: i64, most: i64) -> Result<i64, Problem> {
    /// Up to here every f64 that looks like an integer is exactly that integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let from_float = |x: f64| (x.fract() == 0.0 && x.abs() <= EXACT).then_some(x as i64);
    let integer = value.as_i64().or_else(|| value.as_f64().and_then(from_float));
    match integer.ok_or(Problem::Expected("an integer"))? {
        x if x < least => Err(Problem::AtLeast(least)),
        x if x > most => Err(Problem::AtMost(most)),
        x => Ok(x),
    }
}

pub(super) fn unsigned(value: &Value, least: u32) -> Result<u32, Problem> {
    integer(value, i64::from(least), i64::from(u32::MAX)).map(|x| x as u32)
}

/// 0 is none.
pub(super) fn limit(value: &Value) -> Result<Option<usize>, Problem> {
    Ok(Some(unsigned(value, 0)? as usize).filter(|limit| *limit > 0))
}

/// -1 and 0 are off.
pub(super) fn top_k(value: &Value) -> Result<u32, Problem> {
    match integer(value, -1, i64::from(u32::MAX)) {
        Ok(x) => Ok(x.max(0) as u32),
        Err(Problem::AtLeast(_)) => Err(Problem::TopK),
        Err(problem) => Err(problem),
    }
}

/// -1 is none; other negative ones are taken by their bits, as they are valid in vLLM.
pub(super) fn seed(value: &Value) -> Result<Option<u64>, Problem> {
    match value.as_u64() {
        Some(seed) => Ok(Some(seed)),
        None => integer(value, i64::MIN, i64::MAX).map(|x| (x != -1).then_some(x as u64)),
    }
}

/// `true` is 1 and `false` none, as in OpenAI's chat requests; -1 is the whole vocabulary.
pub(super) fn logprobs(value: &Value) -> Result<Option<NumLogprobs>, Problem> {
    if let Some(wanted) = value.as_bool() {
        return Ok(wanted.then_some(NumLogprobs::Top(1)));
    }
    match integer(value, -1, i64::from(u32::MAX)) {
        Ok(-1) => Ok(Some(NumLogprobs::All)),
        Ok(count) => Ok(Some(NumLogprobs::Top(count as u32))),
        Err(Problem::AtLeast(_)) => Err(Problem::Logprobs),
        Err(Problem::Expected(_)) => Err(Problem::Expected("an integer, true or false")),
        Err(problem) => Err(problem),
    }
}

pub(super) fn strings(value: &Value) -> Result<Vec<String>, Problem> {
    const EXPECTED: Problem = Problem::Expected("a string or a list of strings");
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or(EXPECTED)).collect()
        }
        _ => Err(EXPECTED),
    }
}

pub(super) fn token_ids(value: &Value) -> Result<Vec<u32>, Problem> {
    const EXPECTED: Problem = Problem::Expected("a list of token ids");
    let items = value.as_array().ok_or(EXPECTED)?;
    items.iter().map(|item| unsigned(item, 0).map_err(|_| EXPECTED)).collect()
}

/// -1, or at least 1.
pub(super) fn truncated_length(value: &Value) -> Result<i64, Problem> {
    match integer(value, -1, i64::MAX)? {
        0 => Err(Problem::AtLeast(1)),
        length => Ok(length),
    }
}

pub(super) fn encoding_format(value: &Value) -> Result<EncodingFormat, Problem> {
    match value.as_str() {
        Some("float") => Ok(EncodingFormat::Float),
        Some("base64") => Ok(EncodingFormat::Base64),
        _ => Err(Problem::Expected("\"float\" or \"base64\"")),
    }
}

pub(super) fn truncation_side(value: &Value) -> Result<TruncationSide, Problem> {
    match value.as_str() {
        Some("left") => Ok(TruncationSide::Left),
        Some("right") => Ok(TruncationSide::Right),
        _ => Err(Problem::Expected("\"left\" or \"right\"")),
    }
}

pub(super) fn text(value: &Value) -> Result<String, Problem> {
    value.as_str().map(str::to_owned).ok_or(Problem::Expected("a text"))
}

pub(super) fn speech_task(value: &Value) -> Result<SpeechTask, Problem> {
    match value.as_str() {
        Some("transcribe") => Ok(SpeechTask::Transcribe),
        Some("translate") => Ok(SpeechTask::Translate),
        _ => Err(Problem::Expected("\"transcribe\" or \"translate\"")),
    }
}

/// vLLM's field: `n`, which is set before it, is the width.
pub(super) fn use_beam_search(params: &mut SamplingParams, value: &Value) -> Result<(), Problem> {
    let beams = params.beam_search.unwrap_or(BeamSearchParams::of_width(params.n));
    params.beam_search = boolean(value)?.then_some(beams);
    Ok(())
}

pub(super) fn beam_width(params: &mut SamplingParams, value: &Value) -> Result<(), Problem> {
    let beam_width = unsigned(value, 1)?;
    let beams = params.beam_search.unwrap_or(BeamSearchParams::of_width(beam_width));
    params.beam_search = Some(BeamSearchParams { beam_width, ..beams });
    Ok(())
}

/// 1 asks for nothing.
pub(super) fn length_penalty(params: &mut SamplingParams, value: &Value) -> Result<(), Problem> {
    let penalty = value.as_f64().ok_or(Problem::Expected("a number"))?;
    match &mut params.beam_search {
        Some(beams) => beams.length_penalty = penalty,
        None if penalty == BeamSearchParams::DEFAULT_LENGTH_PENALTY => {}
        None => return Err(Problem::Wrong("it is for rows with use_beam_search".to_owned())),
    }
    Ok(())
}

/// OpenAI's form: an object from token id to bias.
pub(super) fn logit_bias(value: &Value) -> Result<Vec<(u32, f32)>, Problem> {
    const EXPECTED: Problem = Problem::Expected("an object of token ids and numbers");
    let pairs = value.as_object().ok_or(EXPECTED)?.iter();
    pairs
        .map(|(id, bias)| Ok((id.parse().map_err(|_| EXPECTED)?, number(bias)?)))
        .collect::<Result<_, Problem>>()
        .map_err(|_| EXPECTED)
}

pub(super) type Outputs = Option<Arc<StructuredOutputs>>;

pub(super) fn structured_outputs(value: &Value) -> Result<Outputs, Problem> {
    let is_nothing = [json!(false), json!({}), json!([]), json!("")].contains(value);
    if is_nothing {
        return Ok(None);
    }
    StructuredOutputs::from_json(value)
        .map(|outputs| Some(Arc::new(outputs)))
        .map_err(Problem::Wrong)
}

/// Free text is no constraint, and takes none away.
pub(super) fn response_format(value: &Value) -> Result<Outputs, Problem> {
    let outputs = StructuredOutputs::from_response_format(value).map_err(Problem::Wrong)?;
    Ok(outputs.map(Arc::new))
}

/// -1 is no limit, as in vLLM.
pub(super) fn thinking_token_budget(value: &Value) -> Result<Option<u32>, Problem> {
    integer(value, -1, i64::from(u32::MAX)).map(|x| u32::try_from(x).ok())
}
