//! The texts that a row's answer is one of, in the forms of published data sets: ARC, HellaSwag,
//! MMLU, WinoGrande, PIQA, TruthfulQA and others.

use serde_json::{Map, Value};

/// Texts to choose from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedChoices {
    /// At least one.
    pub texts: Vec<String>,
    /// Labels of the row for each of them, as `A` or `1`; empty: no labels.
    pub labels: Vec<String>,
    /// Places that the row itself says are right.
    pub right: Vec<usize>,
}

/// Fields that hold choices, in the order they are looked for.
const FIELDS: [&str; 4] = ["choices", "endings", "options", "mc1_targets"];

/// Fields with one choice each: what their names begin with, the ends of the names, and the labels.
type Columns = (&'static str, [&'static str; 5], Option<[&'static str; 5]>);

const NUMBERS: [&str; 5] = ["1", "2", "3", "4", "5"];

/// WinoGrande and SIQA count their answers from 1, PIQA and COPA from 0.
const COLUMNS: [Columns; 5] = [
    ("option", NUMBERS, Some(NUMBERS)),
    ("answer", ["A", "B", "C", "D", "E"], Some(NUMBERS)),
    ("choice", NUMBERS, None),
    ("sol", NUMBERS, None),
    ("ending", ["0", "1", "2", "3", "4"], None),
];

/// The choices of a row; None: it has none.
///
/// # Errors
/// A field that holds them is in no form that is known.
pub fn listed(field: &dyn Fn(&str) -> Option<Value>) -> Result<Option<ListedChoices>, String> {
    for name in FIELDS {
        let Some(value) = field(name).filter(|value| !value.is_null()) else { continue };
        return read(value).map(Some).map_err(|what| format!("`{name}` {what}"));
    }
    let text = |name: String| match field(&name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let columns = COLUMNS.iter().find_map(|(name, ends, labels)| {
        let texts: Vec<String> =
            ends.iter().map_while(|end| text(format!("{name}{end}"))).collect();
        let labels = labels.iter().flat_map(|labels| labels[..texts.len()].iter());
        let labels = labels.map(|label| (*label).to_owned()).collect();
        (texts.len() > 1).then_some(ListedChoices { texts, labels, right: Vec::new() })
    });
    Ok(columns)
}

/// A list of texts; of objects with `text` and `label`; an object with lists of both; one with a
/// text for each letter; one with `choices` and 1 for those that are right. A cell holds them as
/// JSON.
fn read(value: Value) -> Result<ListedChoices, String> {
    let value = match &value {
        Value::String(cell) => match serde_json::from_str::<Value>(cell) {
            Ok(value) if value.is_array() || value.is_object() => value,
            _ => return Err("is no list of texts, but a text".to_owned()),
        },
        _ => value,
    };
    let found = match &value {
        Value::Array(values) if values.iter().all(Value::is_object) => {
            let all = |name: &str| values.iter().map(|value| value[name].clone()).collect();
            of_lists(&all("text"), Some(&all("label")))
        }
        Value::Array(_) => texts(&value).map(of_texts),
        Value::Object(fields) => of_object(fields),
        _ => None,
    };
    let found = found.filter(|found| !found.texts.is_empty());
    found.ok_or_else(|| "is no list of texts, nor `text` and `label` lists".to_owned())
}

fn of_object(fields: &Map<String, Value>) -> Option<ListedChoices> {
    if let Some(choices) = fields.get("choices") {
        let texts = texts(choices)?;
        let marks = fields.get("labels")?.as_array()?;
        let right = (0..texts.len()).filter(|place| marks.get(*place) == Some(&1.into())).collect();
        return Some(ListedChoices { right, ..of_texts(texts) });
    }
    if let Some(texts) = fields.get("text") {
        return of_lists(texts, fields.get("label"));
    }
    let is_letter = |name: &String| name.len() == 1 && name.as_bytes()[0].is_ascii_alphanumeric();
    let mut pairs: Vec<_> = fields.iter().filter(|(name, _)| is_letter(name)).collect();
    if pairs.len() < fields.len() {
        return None;
    }
    pairs.sort_by_key(|(name, _)| name.as_str());
    let texts = pairs.iter().map(|(_, text)| text.as_str().map(str::to_owned));
    let labels = pairs.iter().map(|(name, _)| (*name).clone()).collect();
    Some(ListedChoices { labels, ..of_texts(texts.collect::<Option<_>>()?) })
}

fn of_lists(list: &Value, labels: Option<&Value>) -> Option<ListedChoices> {
    let texts = texts(list)?;
    let labels = labels.and_then(self::texts).filter(|labels| labels.len() == texts.len());
    Some(ListedChoices { labels: labels.unwrap_or_default(), ..of_texts(texts) })
}

fn of_texts(texts: Vec<String>) -> ListedChoices {
    ListedChoices { texts, ..ListedChoices::default() }
}

fn texts(list: &Value) -> Option<Vec<String>> {
    list.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(row: &Value) -> Result<Option<ListedChoices>, String> {
        listed(&|name| row.get(name).cloned())
    }

    #[test]
    fn choices_are_read_as_data_sets_are_published() {
        let two = |labels: &[&str], right: &[usize]| ListedChoices {
            texts: vec!["a".to_owned(), "b".to_owned()],
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            right: right.to_vec(),
        };
        let cases = [
            (json!({"choices": ["a", "b"]}), two(&[], &[])),
            (json!({"choices": " [\"a\", \"b\"]"}), two(&[], &[])),
            (json!({"choices": {"text": ["a", "b"], "label": ["A", "B"]}}), two(&["A", "B"], &[])),
            (
                json!({"choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}),
                two(&["1", "2"], &[]),
            ),
            (json!({"endings": ["a", "b"], "label": "1"}), two(&[], &[])),
            (json!({"options": {"B": "b", "A": "a"}}), two(&["A", "B"], &[])),
            (json!({"option1": "a", "option2": "b", "answer": "2"}), two(&["1", "2"], &[])),
            (json!({"sol1": "a", "sol2": "b", "label": 0}), two(&[], &[])),
            (json!({"answerA": "a", "answerB": "b", "label": "1"}), two(&["1", "2"], &[])),
            (json!({"mc1_targets": {"choices": ["a", "b"], "labels": [0, 1]}}), two(&[], &[1])),
        ];
        for (row, expected) in cases {
            assert_eq!(of(&row), Ok(Some(expected)), "{row}");
        }
        assert_eq!(of(&json!({"choices": null, "option1": "a", "x": 1})), Ok(None));
        for row in [json!({"choices": "a"}), json!({"choices": []}), json!({"options": {"x": 1}})] {
            assert!(of(&row).unwrap_err().contains("is no list of texts"), "{row}");
        }
    }
}
