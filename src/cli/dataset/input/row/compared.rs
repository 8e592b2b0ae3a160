//! Rows in which texts and images are compared, and batch requests of the same: two of them or
//! lists (`score`), a query with its documents (`rerank`).

use serde_json::{Map, Value};

use super::Task;
use super::asked::Asked;
use super::blank;
use super::endpoint::Endpoint;
use super::score_inputs::inputs;
use super::unsupported::{self, Place};
use crate::input::fields::JsonFields;
use crate::input::media::Named;
use crate::input::overrides::Overrides;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::compared::{Compared, ScoreInput};
use vllm_batch_api::prompt::Prompt;

/// Names of the fields with the texts: what is compared, and what with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sides {
    pub queries: &'static str,
    pub documents: &'static str,
}

const fn sides(queries: &'static str, documents: &'static str) -> Sides {
    Sides { queries, documents }
}

/// Fields of `score`: ours, and those that vLLM takes too.
const SCORE: &[Sides] = &[
    sides("text_1", "text_2"),
    sides("data_1", "data_2"),
    sides("queries", "documents"),
    sides("queries", "items"),
];

/// Fields of `classify` with two texts of one class.
pub(super) const PAIR: &[Sides] = &[SCORE[0]];

/// Fields of `rerank`.
const RERANK: &[Sides] = &[sides("query", "documents")];

/// A template's variable: what the query asks for.
const INSTRUCTION: &str = "instruction";

/// The spellings of a task's rows; None: its rows compare nothing.
pub(super) fn spellings(task: Task) -> Option<&'static [Sides]> {
    match task {
        Task::Score => Some(SCORE),
        Task::Rerank => Some(RERANK),
        Task::Complete | Task::Embed | Task::Classify | Task::Reward => None,
    }
}

/// The spelling of a row of which these names are fields.
pub(super) fn spelling(all: &[Sides], has: impl Fn(&str) -> bool) -> Option<Sides> {
    all.iter().copied().find(|sides| has(sides.queries) && has(sides.documents))
}

/// What a row compares, with the images that it names. It has both fields.
pub(super) fn read(
    sides: Sides,
    fields: &JsonFields,
    allows_empty: bool,
    line: u64,
) -> Result<(Compared, Vec<Named>), RowError> {
    let get = |name| fields.get(name).expect("the spelling is that of its fields");
    let mut images = Vec::new();
    let (queries, has_queries) = inputs(sides.queries, get(sides.queries), &mut images, line)?;
    let (documents, has_documents) =
        inputs(sides.documents, get(sides.documents), &mut images, line)?;
    let ranks = RERANK.contains(&sides);
    if ranks && has_queries {
        return Err(wrong(sides.queries, "expected a text, found a list", line));
    }
    let compared = Compared::new(queries, documents, has_queries || has_documents || ranks)
        .map_err(|what| wrong(sides.documents, what, line))?;
    if !allows_empty {
        blank::check_sides(&compared, [sides.queries, sides.documents], line)?;
    }
    Ok((compared, images))
}

/// The same with the variables of a template, if there is one: the row's `instruction` is among
/// them.
pub(super) fn instructed(
    compared: Compared,
    fields: &JsonFields,
    variables: Option<&Map<String, Value>>,
) -> Compared {
    let Some(variables) = variables else { return compared };
    let mut variables = variables.clone();
    let text = fields.get(INSTRUCTION).and_then(|json| serde_json::from_str::<String>(json).ok());
    variables.extend(text.map(|text| (INSTRUCTION.to_owned(), text.into())));
    compared.with_variables(variables)
}

/// The prompt of a row: its texts are compared, or of one class.
pub(super) fn prompt(
    task: Task,
    compared: Compared,
    (sides, line): (Sides, u64),
) -> Result<Prompt, RowError> {
    match (task, compared.queries(), compared.documents()) {
        (Task::Classify, [ScoreInput::Text(first)], [ScoreInput::Text(second)])
            if !compared.is_list() =>
        {
            Ok(Prompt::Pair([first.clone(), second.clone()]))
        }
        (Task::Classify, ..) => {
            Err(wrong(sides.queries, "expected two texts, found another value", line))
        }
        _ => Ok(Prompt::Compared(Box::new(compared))),
    }
}

/// Reads the body of a batch request.
pub(super) fn read_request(
    endpoint: Endpoint,
    body: &JsonFields,
    (variables, allows_empty): (Option<&Map<String, Value>>, bool),
    line: u64,
) -> Result<Asked, RowError> {
    let spellings = if endpoint == Endpoint::Rerank { RERANK } else { SCORE };
    unsupported::check(body, Place::Score, line)?;
    let instruction = body.get(INSTRUCTION).filter(|json| !matches!(*json, "null" | "\"\""));
    if variables.is_none() && instruction.is_some() {
        return Err(unsupported::error(INSTRUCTION, line));
    }
    let has = |name: &str| body.get(name).is_some_and(|json| json != "null");
    let Some(sides) = spelling(spellings, has) else {
        return Err(wrong("body", &format!("expected {}", described(spellings)), line));
    };
    let (compared, images) = read(sides, body, allows_empty, line)?;
    let compared = instructed(compared, body, variables);
    let overrides = Overrides::collect_pooling(body);
    Ok(Asked { images, ..Asked::new(Prompt::Compared(Box::new(compared)), overrides) })
}

/// The first spelling, for messages.
pub(super) fn described(all: &[Sides]) -> String {
    format!("`{}` and `{}`", all[0].queries, all[0].documents)
}

fn wrong(name: &'static str, what: &str, line: u64) -> RowError {
    RowError::new(code::INVALID_PROMPT, line, format!("{name}: {what}")).of_param(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> JsonFields {
        JsonFields::parse(json.to_owned(), 1).map_err(|bad| bad.1).unwrap()
    }

    fn row(task: Task, json: &str) -> Result<(Vec<String>, Vec<String>, bool), String> {
        let fields = fields(json);
        let sides = spelling(spellings(task).unwrap(), |name| fields.get(name).is_some());
        let (compared, _) =
            read(sides.ok_or("no spelling")?, &fields, false, 1).map_err(|e| e.message)?;
        let texts = |inputs: &[ScoreInput]| inputs.iter().map(|i| i.text().into_owned()).collect();
        let [queries, documents] = [compared.queries(), compared.documents()].map(texts);
        Ok((queries, documents, compared.is_list()))
    }

    #[test]
    fn texts_are_strings_or_lists_under_any_of_vllms_names() {
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        let one = Ok((vec![a.clone()], vec![b.clone()], false));
        assert_eq!(row(Task::Score, r#"{"text_1":"a","text_2":"b"}"#), one);
        assert_eq!(row(Task::Score, r#"{"data_1":"a","data_2":"b"}"#), one);
        let list = Ok((vec![a], vec![b, c], true));
        assert_eq!(row(Task::Score, r#"{"queries":"a","documents":["b","c"]}"#), list);
        assert_eq!(row(Task::Score, r#"{"queries":["a"],"items":["b","c"]}"#), list);
        assert_eq!(row(Task::Rerank, r#"{"query":"a","documents":["b","c"]}"#), list);
        for (task, json, what) in [
            (Task::Score, r#"{"text_1":["a","b"],"text_2":["c"]}"#, "text_2: the numbers"),
            (Task::Score, r#"{"text_1":[],"text_2":["c"]}"#, "at least one text"),
            (
                Task::Score,
                r#"{"text_1":7,"text_2":"c"}"#,
                "text_1: expected a text or an object with `content`, found a number",
            ),
            (Task::Score, r#"{"text_1":"a","text_2":["c",[]]}"#, "text_2: item 1: expected a"),
            (Task::Score, r#"{"text_1":"a"}"#, "no spelling"),
            (Task::Rerank, r#"{"query":["a"],"documents":["c"]}"#, "query: expected a text"),
            (Task::Rerank, r#"{"query":"a","documents":[]}"#, "documents: at least one"),
        ] {
            let error = row(task, json).unwrap_err();
            assert!(error.contains(what), "{json}: {error}");
        }
    }

    #[test]
    fn two_texts_have_one_class() {
        let pair = |json: &str| {
            let (compared, _) = read(PAIR[0], &fields(json), false, 1)?;
            prompt(Task::Classify, compared, (PAIR[0], 1))
        };
        let texts = Prompt::Pair(["a".to_owned(), "b".to_owned()]);
        assert_eq!(pair(r#"{"text_1":"a","text_2":"b"}"#), Ok(texts));
        let error = pair(r#"{"text_1":"a","text_2":["b"]}"#).unwrap_err();
        assert_eq!(error.message, "text_1: expected two texts, found another value");
    }

    #[test]
    fn a_batch_request_has_the_fields_of_its_endpoint() {
        let asked = |endpoint, body: &str| {
            read_request(endpoint, &fields(body), (None, false), 1)
                .map(drop)
                .map_err(|error| error.code)
        };
        let pair = r#"{"text_1":"a","text_2":"b"}"#;
        let ranking = r#"{"query":"a","documents":["b"],"top_n":1}"#;
        assert_eq!(asked(Endpoint::Score, pair), Ok(()));
        assert_eq!(asked(Endpoint::Rerank, ranking), Ok(()));
        assert_eq!(asked(Endpoint::Rerank, pair), Err("invalid_prompt"));
        let instructed = r#"{"text_1":"a","text_2":"b","instruction":"x"}"#;
        assert_eq!(asked(Endpoint::Score, instructed), Err("unsupported_field"));
    }
}
