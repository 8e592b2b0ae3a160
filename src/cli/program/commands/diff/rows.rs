//! `OutputRow`: the parts of a row that are compared, from our rows, OpenAI response lines and CSV.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use vllm_batch_dataset::input::fields::JsonFields;
use vllm_batch_dataset::input::output_records::OutputRecords;
use vllm_batch_dataset::input::path;
use vllm_batch_dataset::input::reader::{Content, Record};
use vllm_batch_dataset::terminal::error::{CliError, Location};

/// By which fields rows are known, the first that is there. An OpenAI response line's own `id` is
/// the response's, not the row's.
const ID_FIELDS: [&str; 2] = ["custom_id", "id"];

/// What of a row is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputRow {
    /// Where it starts, from 1.
    pub line: u64,
    /// Its `custom_id` or `id`.
    pub id: Option<String>,
    /// Code and message, if it is an error row.
    pub error: Option<String>,
    /// None of an error row, else at least one.
    pub answers: Vec<Answer>,
}

/// One completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What was generated.
    pub text: String,
    /// The same as tokens, where the row has them.
    pub token_ids: Option<Vec<i64>>,
    /// Why it ended, where the row says it.
    pub finish_reason: Option<String>,
}

/// The rows of one output.
pub struct OutputFile {
    field: String,
    records: OutputRecords,
    columns: Option<Columns>,
}

/// Which cells of a CSV record are compared.
#[derive(PartialEq, Eq)]
struct Columns {
    names: Arc<[String]>,
    answer: usize,
    id: Option<usize>,
    finish_reason: Option<usize>,
    error: Option<usize>,
}

impl OutputFile {
    /// Opens an output whose answers are in `field`.
    ///
    /// # Errors
    /// It cannot be read, or is a CSV without that column.
    pub fn open(path: &Path, field: &str) -> Result<Self, CliError> {
        let records = OutputRecords::open(path, field)?;
        let columns = match records.headers() {
            // A CSV without rows has no header.
            Some(names) if names.is_empty() => None,
            Some(names) => Some(Columns::find(names, field, records.name())?),
            None => None,
        };
        Ok(Self { field: field.to_owned(), records, columns })
    }

    /// As messages name it.
    pub fn name(&self) -> &str {
        self.records.name()
    }

    /// What was found out of the file and a user may want to know.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.records.take_notes()
    }

    /// Whether equal records of both are equal rows.
    pub fn is_like(&self, other: &Self) -> bool {
        self.records.format() == other.records.format() && self.columns == other.columns
    }

    /// The next record.
    ///
    /// # Errors
    /// The file cannot be read, or this record.
    pub fn next_record(&mut self) -> Result<Option<Record>, CliError> {
        self.records.next_record()
    }

    /// What of a record is compared.
    ///
    /// # Errors
    /// It is no row of output.
    pub fn row(&self, record: &Record) -> Result<OutputRow, CliError> {
        let row = match (&record.content, &self.columns) {
            (Content::Cells(cells), Some(columns)) => columns.row(cells),
            (Content::Line(line), _) => {
                let fields = self.records.fields(line.clone(), record.line)?;
                json_row(&fields, &self.field).ok_or_else(|| self.no_field(record.line))?
            }
            (Content::Cells(_) | Content::Sample(_), _) => return Err(self.no_field(record.line)),
        };
        Ok(OutputRow { line: record.line, ..row })
    }

    fn no_field(&self, line: u64) -> CliError {
        let location = Location { file: self.name().to_owned(), line, ..Location::default() };
        CliError::refused("no_field", format!("the row has no field `{}`", self.field))
            .help("name the field that holds the answer with --field")
            .at(location)
    }
}

impl Columns {
    fn find(names: Arc<[String]>, field: &str, file: &str) -> Result<Self, CliError> {
        let find = |wanted: &str| names.iter().position(|name| name == wanted);
        let Some(answer) = find(field) else {
            let columns = names.join(", ");
            let message = format!("{file} has no column `{field}`; it has {columns}");
            return Err(CliError::refused("no_field", message)
                .help("name the column that holds the answer with --field"));
        };
        let id = ID_FIELDS.into_iter().find_map(find);
        let (finish_reason, error) = (find("finish_reason"), find("error"));
        Ok(Self { answer, id, finish_reason, error, names })
    }

    fn row(&self, cells: &[String]) -> OutputRow {
        let cell = |column: Option<usize>| {
            column.map(|column| cells[column].clone()).filter(|cell| !cell.is_empty())
        };
        let finish_reason = cell(self.finish_reason);
        let is_error = finish_reason.as_deref() == Some("error");
        let error = is_error.then(|| cell(self.error).unwrap_or_else(|| "error".to_owned()));
        let text = cells[self.answer].clone();
        let answers = match is_error {
            true => Vec::new(),
            false => vec![Answer { text, token_ids: None, finish_reason }],
        };
        OutputRow { line: 0, id: cell(self.id), error, answers }
    }
}

/// A JSON row of ours, or of OpenAI. None if it has no such field.
fn json_row(fields: &JsonFields, field: &str) -> Option<OutputRow> {
    let value = |name: &str| {
        let value: Option<Value> = serde_json::from_str(path::find(fields, name).ok()?).ok();
        value.filter(|value| !value.is_null())
    };
    path::find(fields, field).ok()?;
    let id = ID_FIELDS.into_iter().find_map(&value).map(|id| plain(&id));
    let answer = value(field);
    let own_reason = value("finish_reason").map(|reason| plain(&reason));
    let is_error = own_reason.as_deref() == Some("error");
    let error = value("error").map(|error| error_text(&error));
    let error = error.or_else(|| is_error.then(|| "error".to_owned()));
    let row = |error: Option<String>, answers: Vec<Answer>| {
        // An error row of ours has no answer, one of another tool may have half of one.
        let answers = if error.is_some() { Vec::new() } else { answers };
        Some(OutputRow { line: 0, id: id.clone(), error, answers })
    };
    match answer {
        Some(response) if response.get("body").is_some() => {
            let (failure, answers) = openai_response(&response);
            row(error.or(failure), answers)
        }
        answer => {
            let content = answer.as_ref().map(plain);
            let outputs = fields.get("outputs");
            let parts: Option<Vec<OutputPart>> =
                outputs.and_then(|outputs| serde_json::from_str(outputs).ok());
            // Where another field is compared, `outputs` are not of it.
            let is_first = |part: &OutputPart| match &part.content {
                Some(of_part) => *of_part == content,
                None => part.text == content.as_deref().unwrap_or_default(),
            };
            let parts = parts.filter(|parts| parts.first().is_some_and(is_first));
            let text = whole(content.unwrap_or_default(), value);
            row(
                error,
                match parts {
                    Some(parts) => parts.into_iter().map(Answer::from).collect(),
                    None => vec![Answer { text, token_ids: None, finish_reason: own_reason }],
                },
            )
        }
    }
}

/// One of our `outputs`.
#[derive(Deserialize)]
struct OutputPart {
    text: String,
    /// Where the answer has other parts: its text beside them, or null.
    #[serde(default, deserialize_with = "given")]
    content: Option<Option<String>>,
    token_ids: Option<Vec<i64>>,
    finish_reason: Option<String>,
}

/// A field that is there, be it null.
fn given<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Option<String>>, D::Error> {
    Deserialize::deserialize(field).map(Some)
}

impl From<OutputPart> for Answer {
    fn from(part: OutputPart) -> Self {
        let OutputPart { text, token_ids, finish_reason, .. } = part;
        Self { text, token_ids, finish_reason }
    }
}

/// Error and answers of an OpenAI `response`.
fn openai_response(response: &Value) -> (Option<String>, Vec<Answer>) {
    let body = &response["body"];
    let status = response["status_code"].as_u64().unwrap_or(200);
    let error = body.get("error").filter(|error| !error.is_null()).map(error_text);
    let error = error.or_else(|| (status >= 400).then(|| format!("status {status}")));
    if body["object"] == "response" && error.is_none() {
        return (None, vec![of_responses(body)]);
    }
    let Some(choices) = body["choices"].as_array().filter(|choices| !choices.is_empty()) else {
        // Embeddings, scores: compared as a whole.
        let answer = Answer { text: body.to_string(), ..Answer::default() };
        return (error, vec![answer]);
    };
    let answers = choices.iter().map(|choice| {
        let message = &choice["message"];
        let text = [&message["content"], &choice["text"]];
        let text = text.into_iter().find(|text| !text.is_null()).map(plain);
        let text = whole(text.unwrap_or_default(), |name| Some(message[name].clone()));
        let ids = choice["token_ids"].as_array();
        Answer {
            text,
            token_ids: ids.and_then(|ids| ids.iter().map(Value::as_i64).collect()),
            finish_reason: choice["finish_reason"].as_str().map(str::to_owned),
        }
    });
    (error, answers.collect())
}

/// The answer of a `response`: its thinking, text and calls. Ids, dates and what it says again of
/// its request are no part.
fn of_responses(body: &Value) -> Answer {
    let items = body["output"].as_array().map_or(&[][..], Vec::as_slice);
    let part = |item: &Value| match item["type"].as_str() {
        Some("function_call") => {
            Some(json!({"name": item["name"], "arguments": item["arguments"]}).to_string())
        }
        _ => item["content"][0]["text"].as_str().map(str::to_owned),
    };
    let text = items.iter().filter_map(part).collect::<Vec<_>>().join("\n");
    let finish_reason = body["status"].as_str().map(str::to_owned);
    Answer { text, finish_reason, ..Answer::default() }
}

/// A text with the other parts of its answer: the thinking before it, the calls after it. Ids of
/// calls are made up, here and elsewhere, and are no part.
fn whole(content: String, part: impl Fn(&str) -> Option<Value>) -> String {
    let thinking = part("reasoning").and_then(|text| text.as_str().map(str::to_owned));
    let calls = part("tool_calls").and_then(|calls| calls.as_array().cloned()).unwrap_or_default();
    let calls = calls.iter().filter_map(|call| call.get("function").map(Value::to_string));
    let content = Some(content).filter(|content| !content.is_empty());
    thinking.into_iter().chain(content).chain(calls).collect::<Vec<_>>().join("\n")
}

/// `code: message`, as the error column of a CSV has it.
fn error_text(error: &Value) -> String {
    let part = |name: &str| error.get(name).filter(|part| !part.is_null()).map(plain);
    match (part("code").or_else(|| part("type")), part("message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => plain(error),
    }
}

/// A string's content, or the JSON of anything else.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str) -> OutputRow {
        let fields = JsonFields::parse(line.to_owned(), 1).expect(line);
        json_row(&fields, "response").expect(line)
    }

    fn answer(text: &str, token_ids: Option<&[i64]>, finish_reason: Option<&str>) -> Answer {
        let (token_ids, finish_reason) =
            (token_ids.map(<[_]>::to_vec), finish_reason.map(str::to_owned));
        Answer { text: text.to_owned(), token_ids, finish_reason }
    }

    #[test]
    fn rows_of_ours() {
        let simple = row(r#"{"id":7,"response":"5","finish_reason":"stop","usage":{}}"#);
        assert_eq!((simple.id.as_deref(), simple.error), (Some("7"), None));
        assert_eq!(simple.answers, [answer("5", None, Some("stop"))]);
        let full = row(concat!(
            r#"{"response":"5","finish_reason":"stop","outputs":[{"index":0,"text":"5","#,
            r#""token_ids":[23,1],"finish_reason":"stop","logprobs":null},{"index":1,"text":"6","#,
            r#""token_ids":[24],"finish_reason":"length"}]}"#,
        ));
        let expected =
            [answer("5", Some(&[23, 1]), Some("stop")), answer("6", Some(&[24]), Some("length"))];
        assert_eq!((full.id, &full.answers[..]), (None, &expected[..]));
        let called = concat!(
            r#"{"response":null,"tool_calls":[{"id":"x","function":{"name":"f"}}],"#,
            r#""finish_reason":"tool_calls"}"#,
        );
        let expected = answer(r#"{"name":"f"}"#, None, Some("tool_calls"));
        assert_eq!(row(called).answers, [expected]);
        let parts = concat!(
            r#"{"response":null,"reasoning":"r","outputs":[{"text":"<think>r","content":null},"#,
            r#"{"text":"b"}]}"#,
        );
        let expected = [answer("<think>r", None, None), answer("b", None, None)];
        assert_eq!(row(parts).answers, expected);
        let other = r#"{"response":"other","outputs":[{"text":"5","token_ids":[1]}]}"#;
        assert_eq!(row(other).answers, [answer("other", None, None)]);
        let error = row(concat!(
            r#"{"id":"a","custom_id":"b","response":null,"finish_reason":"error","#,
            r#""error":{"code":"context_length","message":"too long"}}"#,
        ));
        assert_eq!(error.id.as_deref(), Some("b"));
        assert_eq!(error.error.as_deref(), Some("context_length: too long"));
        assert!(error.answers.is_empty());
        assert_eq!(row(r#"{"response":[0.5,1]}"#).answers, [answer("[0.5,1]", None, None)]);
        let fields = JsonFields::parse("{\"answer\":1}".to_owned(), 1).expect("JSON");
        assert_eq!(json_row(&fields, "response"), None);
    }

    #[test]
    fn openai_response_lines() {
        let chat = row(concat!(
            r#"{"id":"batch_req_1","custom_id":"r7","response":{"status_code":200,"body":{"#,
            r#""choices":[{"index":0,"message":{"role":"assistant","content":"5"},"#,
            r#""finish_reason":"stop"},{"message":{"content":null,"reasoning":"hm","#,
            r#""tool_calls":[{"id":"x","function":{"name":"f","arguments":"{}"}}]}},"#,
            r#"{"text":"7","token_ids":[3,4]}]}},"error":null}"#,
        ));
        assert_eq!((chat.id.as_deref(), chat.error), (Some("r7"), None));
        let expected = [
            answer("5", None, Some("stop")),
            answer("hm\n{\"name\":\"f\",\"arguments\":\"{}\"}", None, None),
            answer("7", Some(&[3, 4]), None),
        ];
        assert_eq!(chat.answers, expected);
        let error = |response: &str| row(&format!("{{\"response\":{response}}}")).error;
        let body = r#"{"status_code":400,"body":{"error":{"message":"no","code":"c","type":"t"}}}"#;
        assert_eq!(error(body).as_deref(), Some("c: no"));
        assert_eq!(error(r#"{"status_code":500,"body":{}}"#).as_deref(), Some("status 500"));
        let expired = r#"{"custom_id":"a","response":null,"error":{"message":"expired"}}"#;
        assert_eq!(row(expired).error.as_deref(), Some("expired"));
        let response = row(concat!(
            r#"{"response":{"body":{"id":"resp_1","object":"response","created_at":7,"error":null,"#,
            r#""status":"completed","output":[{"type":"message","content":[{"text":"5"}]},"#,
            r#"{"type":"function_call","id":"fc_1","name":"f","arguments":"{}"}]}}}"#,
        ));
        let expected = answer("5\n{\"name\":\"f\",\"arguments\":\"{}\"}", None, Some("completed"));
        assert_eq!(response.answers, [expected]);
        let embedding = row(r#"{"response":{"body":{"data":[{"embedding":[1.5]}]}}}"#);
        assert_eq!(embedding.answers[0].text, r#"{"data":[{"embedding":[1.5]}]}"#);
    }

    #[test]
    fn csv_records() {
        let names = ["id", "text", "response", "finish_reason", "error"].map(str::to_owned);
        let columns = Columns::find(Arc::new(names), "response", "a.csv").expect("it is there");
        let row = |cells: [&str; 5]| columns.row(&cells.map(str::to_owned));
        let answered = row(["7", "q", "5", "stop", ""]);
        assert_eq!((answered.id.as_deref(), answered.error), (Some("7"), None));
        assert_eq!(answered.answers, [answer("5", None, Some("stop"))]);
        let failed = row(["", "q", "", "error", "bad_csv: too few"]);
        assert_eq!((failed.id, failed.answers.len()), (None, 0));
        assert_eq!(failed.error.as_deref(), Some("bad_csv: too few"));
        let error = Columns::find(columns.names.clone(), "answer", "a.csv").err();
        let message = error.expect("no such column").message;
        assert!(message.starts_with("a.csv has no column `answer`; it has id, text"), "{message}");
    }
}
