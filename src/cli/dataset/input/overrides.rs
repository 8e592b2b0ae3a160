//! `Overrides`: the sampling parameters that a row brings, by vLLM's field names and conventions.

mod values;

use serde_json::Value;

use self::values::{
    Problem, beam_width, boolean, encoding_format, integer, length_penalty, limit, logit_bias,
    logprobs, number, response_format, seed, set, shortened, speech_task, strings,
    structured_outputs, text, thinking_token_budget, token_ids, top_k, truncated_length,
    truncation_side, unsigned, use_beam_search,
};

use super::fields::{JsonFields, json_string};
use super::row::Task;
use super::row_error::{RowError, code};
use super::spellings::Spellings;
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::request::{RequestError, SamplingParams};

/// `max_tokens` of a row that is no batch request, where nobody says it.
pub const DEFAULT_MAX_TOKENS: u32 = 512;

/// Sampling fields of one row as JSON text, converted by [`Overrides::apply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overrides {
    entries: Vec<(&'static str, String)>,
    default_length: DefaultLength,
    spellings: Spellings,
}

/// `max_tokens` where neither row, flag nor generation_config.json says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultLength {
    /// [`DEFAULT_MAX_TOKENS`].
    Row,
    /// OpenAI's chat: the rest of the context.
    Context,
    /// OpenAI's completions: 16.
    Completions,
}

impl DefaultLength {
    fn max_tokens(self) -> Option<u32> {
        match self {
            DefaultLength::Row => Some(DEFAULT_MAX_TOKENS),
            DefaultLength::Context => None,
            DefaultLength::Completions => Some(16),
        }
    }
}

/// Puts a value, never null, into its parameter.
type Setter<P> = fn(&mut P, &Value) -> Result<(), Problem>;

/// Every field that overrides a parameter. `max_completion_tokens` is OpenAI's later name of
/// `max_tokens` and wins over it, as in vLLM: the table's order is the order of application.
const PARAMETERS: &[(&str, Setter<SamplingParams>)] = &[
    ("n", |p, v| set(&mut p.n, unsigned(v, 1))),
    ("presence_penalty", |p, v| set(&mut p.presence_penalty, number(v))),
    ("frequency_penalty", |p, v| set(&mut p.frequency_penalty, number(v))),
    ("repetition_penalty", |p, v| set(&mut p.repetition_penalty, number(v))),
    ("temperature", |p, v| set(&mut p.temperature, number(v))),
    ("top_p", |p, v| set(&mut p.top_p, number(v))),
    ("top_k", |p, v| set(&mut p.top_k, top_k(v))),
    ("min_p", |p, v| set(&mut p.min_p, number(v))),
    ("seed", |p, v| set(&mut p.seed, seed(v))),
    ("stop", |p, v| set(&mut p.stop, strings(v))),
    ("stop_token_ids", |p, v| set(&mut p.stop_token_ids, token_ids(v))),
    ("ignore_eos", |p, v| set(&mut p.ignore_eos, boolean(v))),
    ("max_tokens", |p, v| set(&mut p.max_tokens, unsigned(v, 0).map(Some))),
    ("max_completion_tokens", |p, v| set(&mut p.max_tokens, unsigned(v, 0).map(Some))),
    ("min_tokens", |p, v| set(&mut p.min_tokens, unsigned(v, 0))),
    ("logprobs", |p, v| set(&mut p.logprobs, logprobs(v))),
    ("prompt_logprobs", |p, v| set(&mut p.prompt_logprobs, logprobs(v))),
    ("prompt_logprobs_last", |p, v| set(&mut p.prompt_logprobs_last, unsigned(v, 1).map(Some))),
    ("skip_special_tokens", |p, v| set(&mut p.skip_special_tokens, boolean(v))),
    ("include_stop_str_in_output", |p, v| set(&mut p.include_stop_str_in_output, boolean(v))),
    ("logit_bias", |p, v| set(&mut p.logit_bias, logit_bias(v))),
    ("allowed_token_ids", |p, v| set(&mut p.allowed_token_ids, token_ids(v).map(Some))),
    ("bad_words", |p, v| set(&mut p.bad_words, strings(v))),
    ("truncate_prompt_tokens", |p, v| {
        set(&mut p.truncate_prompt_tokens, integer(v, -1, i64::MAX).map(Some))
    }),
    ("truncation_side", |p, v| set(&mut p.truncation_side, truncation_side(v))),
    ("use_beam_search", use_beam_search),
    ("beam_width", beam_width),
    ("length_penalty", length_penalty),
    ("structured_outputs", |p, v| set(&mut p.structured_outputs, structured_outputs(v))),
    // OpenAI's form of it, which wins, as in vLLM.
    ("response_format", |p, v| {
        response_format(v).map(|outputs| {
            p.structured_outputs = outputs.or(p.structured_outputs.take());
        })
    }),
    ("thinking_token_budget", |p, v| set(&mut p.thinking_token_budget, thinking_token_budget(v))),
];

/// The same of how a recording is written down. Only requests for transcripts have them: a data set
/// may have a `language` or a `task` of its own.
const SPEECH_PARAMETERS: &[(&str, Setter<SamplingParams>)] = &[
    ("language", |p, v| set(&mut p.speech.language, text(v).map(Some))),
    ("task", |p, v| set(&mut p.speech.task, speech_task(v))),
    ("return_timestamps", |p, v| set(&mut p.speech.return_timestamps, boolean(v))),
];

/// The same of vectors and classes, by the names of vLLM's requests for them.
const POOLING_PARAMETERS: &[(&str, Setter<PoolingParams>)] = &[
    ("dimensions", |p, v| set(&mut p.dimensions, unsigned(v, 1).map(|n| Some(n as usize)))),
    (USE_ACTIVATION, |p, v| set(&mut p.use_activation, boolean(v).map(Some))),
    ("encoding_format", |p, v| set(&mut p.encoding_format, encoding_format(v))),
    ("add_special_tokens", |p, v| set(&mut p.add_special_tokens, boolean(v))),
    ("truncate_prompt_tokens", |p, v| {
        set(&mut p.truncate_prompt_tokens, truncated_length(v).map(Some))
    }),
    ("truncation_side", |p, v| set(&mut p.truncation_side, truncation_side(v))),
    // 0 is no limit.
    ("max_tokens_per_query", |p, v| set(&mut p.max_tokens_per_query, limit(v))),
    ("max_tokens_per_doc", |p, v| set(&mut p.max_tokens_per_doc, limit(v))),
    (TOP_N, |p, v| set(&mut p.top_n, limit(v))),
];

/// Parameters that errors call by the first name, where a row may have them by the second.
const SECOND_NAMES: [(&str, &str); 2] =
    [("max_tokens", "max_completion_tokens"), ("structured_outputs", "response_format")];

/// Whether a model's activation is applied.
const USE_ACTIVATION: &str = "use_activation";

/// Number of documents that a ranking shows.
const TOP_N: &str = "top_n";

impl Overrides {
    /// The sampling fields among a row's fields. `null` is "not given"; of duplicates the last
    /// counts.
    pub fn collect(fields: &JsonFields) -> Self {
        let mut collected = Self::collect_of(PARAMETERS.iter().map(|(name, _)| *name), fields);
        for (read, written) in SECOND_NAMES {
            let has = |name: &str| collected.entries.iter().any(|(known, _)| *known == name);
            if has(written) && !has(read) {
                collected.spellings.add(read, written);
            }
        }
        collected
    }

    /// The fields of an embeddings request that say how its vectors are made.
    pub fn collect_pooling(fields: &JsonFields) -> Self {
        Self::collect_of(POOLING_PARAMETERS.iter().map(|(name, _)| *name), fields)
    }

    /// The field of a row that says what becomes of its classes.
    pub fn collect_classes(fields: &JsonFields) -> Self {
        Self::collect_of([USE_ACTIVATION].into_iter(), fields)
    }

    fn collect_of(names: impl Iterator<Item = &'static str>, fields: &JsonFields) -> Self {
        let entries = names.filter_map(|name| {
            let value = fields.get(name)?;
            (value != "null").then(|| (name, value.to_owned()))
        });
        Self { entries: entries.collect(), ..Self::none() }
    }

    /// The field of a row of `rerank` that says how long its ranking is.
    pub fn collect_top_n(fields: &JsonFields) -> Self {
        let value = fields.get(TOP_N).filter(|json| *json != "null");
        Self::none().with(TOP_N, value.map(str::to_owned))
    }

    /// Overrides of a row without any.
    pub fn none() -> Self {
        let (entries, spellings) = (Vec::new(), Spellings::default());
        Self { entries, default_length: DefaultLength::Row, spellings }
    }

    /// `base` with the row's fields over it. Sizes that depend on the model are checked later.
    ///
    /// # Errors
    /// A field has the wrong type or value: code `invalid_parameter`.
    pub fn apply_pooling(&self, base: &PoolingParams) -> Result<PoolingParams, RequestError> {
        let mut params = base.clone();
        set_all(&self.entries, &[POOLING_PARAMETERS], &mut params)?;
        Ok(params)
    }

    /// The same with another value of a parameter; None: not given.
    pub fn with(mut self, name: &'static str, json: Option<String>) -> Self {
        self.entries.retain(|(known, _)| *known != name);
        if json.is_none() {
            self.spellings.remove(name);
        }
        self.entries.extend(json.map(|json| (name, json)));
        self
    }

    /// The same with the value of a parameter that the row calls `written`; None: not given.
    pub fn with_written(
        mut self,
        name: &'static str,
        written: &'static str,
        json: Option<String>,
    ) -> Self {
        if json.is_some() {
            self.spellings.add(name, written);
        }
        self.with(name, json)
    }

    /// The same with one more name that errors have, and what the row calls it.
    pub fn spelling(mut self, name: &'static str, written: &'static str) -> Self {
        self.spellings.add(name, written);
        self
    }

    /// The error of the row's request, in the row's names.
    pub fn row_error(&self, error: &RequestError, line: u64) -> RowError {
        self.spellings.in_words_of_row(RowError::from_request(error, line))
    }

    /// The same with another default of `max_tokens`.
    pub fn with_default_length(mut self, default_length: DefaultLength) -> Self {
        self.default_length = default_length;
        self
    }

    /// `base` with the row's fields over it; where `base` has no `max_tokens`, nobody has said it,
    /// and the row's kind decides. Ranges that depend on other fields or on the model are
    /// checked by the engine's input processor.
    ///
    /// # Errors
    /// A field has the wrong type or value: code `invalid_parameter`.
    pub fn apply(&self, base: &SamplingParams) -> Result<SamplingParams, RequestError> {
        let mut params = base.clone();
        params.max_tokens = params.max_tokens.or(self.default_length.max_tokens());
        set_all(&self.entries, &[PARAMETERS, SPEECH_PARAMETERS], &mut params)?;
        if !self.entries.iter().any(|(name, _)| *name == "n") {
            params.n = match (base.beam_search, params.beam_search) {
                (_, Some(beams)) => beams.beam_width,
                (Some(_), None) => 1,
                (None, None) => params.n,
            };
        }
        Ok(params)
    }

    /// The row's own seed: such a row is keyed by it alone. A seed of -1 is none, as in vLLM.
    pub fn seed(&self) -> Option<u64> {
        let (_, text) = self.entries.iter().find(|(name, _)| *name == "seed")?;
        seed(&serde_json::from_str(text).ok()?).ok()?
    }

    /// Whether the row says itself how long its answer may be.
    pub fn has_own_length(&self) -> bool {
        let is_length = |name: &str| matches!(name, "max_tokens" | "max_completion_tokens");
        self.entries.iter().any(|(name, _)| is_length(name))
    }

    /// Whether the row overrides nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Puts values into the parameters of their names.
fn set_all<P>(
    entries: &[(&'static str, String)],
    parameters: &[&[(&str, Setter<P>)]],
    params: &mut P,
) -> Result<(), RequestError> {
    for (name, text) in entries {
        let set = parameters
            .iter()
            .copied()
            .flatten()
            .find(|(known, _)| known == name)
            .map(|(_, set)| set);
        let set = set.expect("entries hold known names only");
        let invalid = |message| RequestError::new(code::INVALID_PARAMETER, message);
        // A number too large for f64, or a lone surrogate: valid in a row, not in a parameter.
        let value: Value = serde_json::from_str(text)
            .map_err(|_| invalid(format!("{name}: {} cannot be represented", shortened(text))))?;
        set(params, &value).map_err(|problem| invalid(problem.message(name, text)))?;
    }
    Ok(())
}

/// The names of all parameters.
pub fn parameter_names() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().map(|(name, _)| *name)
}

/// The names of the parameters that rows of a task set, where they are no batch requests.
pub fn names_for(task: Task) -> impl Iterator<Item = &'static str> {
    let others: &[&str] = match task {
        Task::Classify | Task::Reward => &[USE_ACTIVATION],
        Task::Rerank => &[TOP_N],
        // A row's own fields say nothing of vectors.
        Task::Complete | Task::Embed | Task::Score => &[],
    };
    parameter_names().filter(move |_| task == Task::Complete).chain(others.iter().copied())
}

/// The parameter that a message about an invalid one begins with.
pub fn parameter_of(message: &str) -> Option<&'static str> {
    let name = message.split([' ', ':']).next()?;
    let of_vectors = POOLING_PARAMETERS.iter().map(|(name, _)| *name);
    parameter_names().chain(of_vectors).find(|known| *known == name)
}

/// A CSV cell as the JSON value of the parameter its column names: `None` if the column names none.
/// An empty cell is "not given"; a cell that is no JSON is text, so that mistakes are reported as
/// such.
pub fn parameter_cell(column: &str, cell: &str) -> Option<String> {
    PARAMETERS.iter().find(|(name, _)| *name == column)?;
    let text = cell.trim();
    let takes_text = matches!(column, "stop" | "bad_words");
    let json = match text {
        "" => "null".to_owned(),
        // What spreadsheets and pandas write for booleans.
        _ if text.eq_ignore_ascii_case("true") && !takes_text => "true".to_owned(),
        _ if text.eq_ignore_ascii_case("false") && !takes_text => "false".to_owned(),
        // A stop string may look like a number or have spaces that count.
        _ if takes_text && !text.starts_with('[') => json_string(cell),
        _ if serde_json::from_str::<Value>(text).is_ok() => text.to_owned(),
        _ => json_string(cell),
    };
    // A cell of spaces is a stop string, a newline for example; only nothing is nothing.
    Some(if takes_text && text.is_empty() && !cell.is_empty() { json_string(cell) } else { json })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vllm_batch_api::request::{
        BeamSearchParams, Constraint, NumLogprobs, RequestOutputKind, StructuredOutputs,
        TruncationSide,
    };

    fn apply(row: &str) -> Result<SamplingParams, String> {
        let fields = JsonFields::parse(row.to_owned(), 1).expect("valid row");
        Overrides::collect(&fields).apply(&SamplingParams::default()).map_err(|error| {
            assert_eq!(error.code, "invalid_parameter");
            error.message
        })
    }

    #[test]
    fn every_field_reaches_its_parameter() {
        let row = r####"{"n":2,"presence_penalty":0.5,"frequency_penalty":-1,
            "repetition_penalty":1.25,"temperature":0,"top_p":0.5,"top_k":7,"min_p":0.25,"seed":42,
            "stop":["a","###"],"stop_token_ids":[5,6],"ignore_eos":true,"max_tokens":9,
            "min_tokens":3,"logprobs":5,"prompt_logprobs":-1,"prompt_logprobs_last":4,"skip_special_tokens":false,
            "include_stop_str_in_output":true,"logit_bias":{"17":-100,"3":1.5},
            "allowed_token_ids":[1],"bad_words":"x","truncate_prompt_tokens":-1,
            "truncation_side":"right","structured_outputs":{"regex":"a"},
            "response_format":{"type":"json_object"},"thinking_token_budget":7,"other":1}"####;
        let expected = SamplingParams {
            n: 2,
            presence_penalty: 0.5,
            frequency_penalty: -1.0,
            repetition_penalty: 1.25,
            temperature: 0.0,
            top_p: 0.5,
            top_k: 7,
            min_p: 0.25,
            seed: Some(42),
            stop: vec!["a".into(), "###".into()],
            stop_token_ids: vec![5, 6],
            ignore_eos: true,
            max_tokens: Some(9),
            min_tokens: 3,
            logprobs: Some(NumLogprobs::Top(5)),
            prompt_logprobs: Some(NumLogprobs::All),
            prompt_logprobs_last: Some(4),
            skip_special_tokens: false,
            include_stop_str_in_output: true,
            logit_bias: vec![(17, -100.0), (3, 1.5)],
            allowed_token_ids: Some(vec![1]),
            bad_words: vec!["x".into()],
            truncate_prompt_tokens: Some(-1),
            truncation_side: TruncationSide::Right,
            beam_search: None,
            output_kind: RequestOutputKind::FinalOnly,
            structured_outputs: Some(Arc::new(StructuredOutputs::new(Constraint::JsonObject))),
            thinking_token_budget: Some(7),
            speech: Default::default(),
        };
        assert_eq!(apply(row), Ok(expected));
    }

    #[test]
    fn beam_search_is_asked_for_by_n_or_by_its_width() {
        let flags = SamplingParams {
            n: 4,
            beam_search: Some(BeamSearchParams { beam_width: 4, length_penalty: 0.5 }),
            ..SamplingParams::default()
        };
        let of = |row: &str, base: &SamplingParams| {
            let fields = JsonFields::parse(row.to_owned(), 1).expect("valid row");
            let params = Overrides::collect(&fields).apply(base).expect("valid values");
            let beams = params.beam_search.map(|beams| (beams.beam_width, beams.length_penalty));
            (params.n, beams)
        };
        let none = SamplingParams::default();
        let cases = [
            (r#"{"use_beam_search":true,"n":3}"#, &none, (3, Some((3, 1.0)))),
            (r#"{"use_beam_search":true,"n":3,"length_penalty":2}"#, &none, (3, Some((3, 2.0)))),
            (r#"{"beam_width":5}"#, &none, (5, Some((5, 1.0)))),
            (r#"{"use_beam_search":true,"beam_width":5}"#, &none, (5, Some((5, 1.0)))),
            (r#"{"use_beam_search":false,"n":2,"length_penalty":1.0}"#, &none, (2, None)),
            (r"{}", &flags, (4, Some((4, 0.5)))),
            (r#"{"beam_width":2,"length_penalty":-1}"#, &flags, (2, Some((2, -1.0)))),
            (r#"{"use_beam_search":true}"#, &flags, (4, Some((4, 0.5)))),
            (r#"{"use_beam_search":false}"#, &flags, (1, None)),
            // The engine refuses it.
            (r#"{"n":2}"#, &flags, (2, Some((4, 0.5)))),
        ];
        for (row, base, expected) in cases {
            assert_eq!(of(row, base), expected, "{row}");
        }
        let alone = apply(r#"{"length_penalty":0.5}"#);
        assert_eq!(alone, Err("length_penalty: it is for rows with use_beam_search".to_owned()));
    }

    #[test]
    fn the_conventions_of_vllm() {
        let base = SamplingParams::default();
        type Holds = fn(&SamplingParams) -> bool;
        let cases: &[(&str, Holds)] = &[
            (r#"{"top_k":-1}"#, |p| p.top_k == 0),
            (r#"{"seed":-1}"#, |p| p.seed.is_none()),
            (r#"{"seed":18446744073709551615}"#, |p| p.seed == Some(u64::MAX)),
            (r#"{"logprobs":true}"#, |p| p.logprobs == Some(NumLogprobs::Top(1))),
            (r#"{"logprobs":false}"#, |p| p.logprobs.is_none()),
            (r#"{"logprobs":0}"#, |p| p.logprobs == Some(NumLogprobs::Top(0))),
            (r#"{"stop":"\n"}"#, |p| p.stop == ["\n"]),
            (r#"{"max_tokens":256.0}"#, |p| p.max_tokens == Some(256)),
            (r#"{"max_completion_tokens":8,"max_tokens":4}"#, |p| p.max_tokens == Some(8)),
            (r#"{"temperature":0.1,"temperature":0.5}"#, |p| p.temperature == 0.5),
        ];
        for (row, holds) in cases {
            assert!(holds(&apply(row).expect(row)), "{row}");
        }
        assert_eq!(apply(r#"{"max_tokens":null,"stop":null,"seed":null}"#), Ok(base));
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            (
                r#"{"temperature":"hot"}"#,
                r#"temperature: expected a number, found the string "hot""#,
            ),
            (r#"{"temperature":1e400}"#, "temperature: 1e400 cannot be represented"),
            (r#"{"temperature":1e39}"#, "temperature: expected a number, found the number 1e39"),
            (r#"{"max_tokens":2.5}"#, "max_tokens: expected an integer, found the number 2.5"),
            (r#"{"max_tokens":-1}"#, "max_tokens must be at least 0, got -1."),
            (r#"{"prompt_logprobs_last":0}"#, "prompt_logprobs_last must be at least 1, got 0."),
            (r#"{"min_tokens":-1}"#, "min_tokens must be at least 0, got -1."),
            (r#"{"n":99999999999}"#, "n must be at most 4294967295, got 99999999999."),
            (r#"{"top_k":-2}"#, "top_k must be 0 (disable), or at least 1, got -2."),
            (r#"{"logprobs":-2}"#, "logprobs must be non-negative or -1, got -2."),
            (
                r#"{"logprobs":[1]}"#,
                "logprobs: expected an integer, true or false, found the list [1]",
            ),
            (r#"{"seed":1e30}"#, "seed: expected an integer, found the number 1e30"),
            (r#"{"stop":[1]}"#, "stop: expected a string or a list of strings, found the list [1]"),
            (r#"{"stop":"\ud800"}"#, r#"stop: "\ud800" cannot be represented"#),
            (r#"{"ignore_eos":1}"#, "ignore_eos: expected true or false, found the number 1"),
            (
                r#"{"stop_token_ids":[-1]}"#,
                "stop_token_ids: expected a list of token ids, found the list [-1]",
            ),
            (
                r#"{"logit_bias":{"x":1}}"#,
                "logit_bias: expected an object of token ids and numbers, \
                 found the object {\"x\":1}",
            ),
            (
                r#"{"truncate_prompt_tokens":-2}"#,
                "truncate_prompt_tokens must be at least -1, got -2.",
            ),
            (
                r#"{"truncation_side":"up"}"#,
                r#"truncation_side: expected "left" or "right", found the string "up""#,
            ),
        ];
        for (row, message) in cases {
            assert_eq!(apply(row), Err(message.to_owned()), "{row}");
        }
    }

    #[test]
    fn a_row_knows_its_own_seed() {
        let seed = |row: &str| {
            let fields = JsonFields::parse(row.to_owned(), 1).expect("valid row");
            Overrides::collect(&fields).seed()
        };
        assert_eq!(seed(r#"{"seed":7}"#), Some(7));
        assert_eq!(seed(r#"{"seed":-1}"#), None);
        assert_eq!(seed(r#"{"seed":"x"}"#), None);
        assert_eq!(seed(r#"{"prompt":"x"}"#), None);
    }

    #[test]
    fn cells_become_values() {
        let cases = [
            ("temperature", "0.7", Some("0.7")),
            ("temperature", " 0.7 ", Some("0.7")),
            ("temperature", "hot", Some("\"hot\"")),
            ("temperature", "", Some("null")),
            ("ignore_eos", "True", Some("true")),
            ("stop", "5", Some("\"5\"")),
            ("stop", "\n", Some("\"\\n\"")),
            ("stop", "", Some("null")),
            ("stop", r#"["a","b"]"#, Some(r#"["a","b"]"#)),
            ("logit_bias", r#"{"1":2}"#, Some(r#"{"1":2}"#)),
            ("prompt", "0.7", None),
        ];
        for (column, cell, json) in cases {
            assert_eq!(parameter_cell(column, cell).as_deref(), json, "{column} {cell:?}");
        }
    }
}
