//! Rows with what texts became: ours, and lines of OpenAI's batch output.

use std::sync::Arc;

use serde::Serialize;

use super::line_breaks;
use super::{OutputOptions, RowWriter, scores};
use crate::input::base64;
use crate::input::batch_line::BatchLine;
use crate::input::fields::Passthrough;
use crate::input::row::Task;
use vllm_batch_api::pooling::{EncodingFormat, Pooled, PoolingOutput};

/// Form of pooled texts in rows.
#[derive(Clone, Debug)]
pub enum PooledForm {
    /// Vectors, under the name of the answer.
    Vectors,
    /// The name of the largest class under that name, and the numbers of all as `probs`. Names of
    /// the classes are known once the model is.
    Classes(Arc<[String]>),
    /// The number of the only class, or those of the tokens, under that name.
    Rewards,
    /// A score, or several.
    Scores,
    /// Documents in the order of their scores.
    Ranking,
}

impl PooledForm {
    /// That of a command; None: its rows are completed.
    pub fn of(task: Task) -> Option<Self> {
        match task {
            Task::Complete => None,
            Task::Embed => Some(PooledForm::Vectors),
            Task::Classify => Some(PooledForm::Classes(Arc::default())),
            Task::Reward => Some(PooledForm::Rewards),
            Task::Score => Some(PooledForm::Scores),
            Task::Rerank => Some(PooledForm::Ranking),
        }
    }

    /// Whether a CSV has room for it.
    pub fn has_columns(&self) -> bool {
        match self {
            PooledForm::Vectors | PooledForm::Scores | PooledForm::Ranking => false,
            PooledForm::Classes(_) | PooledForm::Rewards => true,
        }
    }

    /// Cells of a CSV: that of the answer, and those of `fields`. Lists are JSON.
    pub(super) fn cells(&self, text: &Pooled) -> Vec<String> {
        match (self, text) {
            (PooledForm::Vectors, Pooled::Vector(values)) => vec![json(values)],
            (PooledForm::Vectors, Pooled::Tokens(rows)) => vec![json(rows)],
            (PooledForm::Classes(labels), Pooled::Vector(values)) => {
                vec![largest(values, labels).to_owned(), json(values)]
            }
            (PooledForm::Classes(labels), Pooled::Tokens(rows)) => {
                let names: Vec<_> = rows.iter().map(|values| largest(values, labels)).collect();
                vec![json(&names), json(rows)]
            }
            (PooledForm::Rewards, Pooled::Vector(values)) => vec![json(&values.last())],
            (PooledForm::Rewards, Pooled::Tokens(rows)) => {
                vec![json(&rows.iter().map(|values| values.last()).collect::<Vec<_>>())]
            }
            (_, Pooled::Sparse(_)) => unreachable!("sparse vectors are no cells"),
            (PooledForm::Scores | PooledForm::Ranking, _) => unreachable!("they have no columns"),
        }
    }

    /// Names the classes, where there are some.
    pub(super) fn name(&mut self, labels: Arc<[String]>) {
        if let PooledForm::Classes(known) = self {
            *known = labels;
        }
    }

    /// Fields of the output beside that of the answer.
    pub fn fields(&self) -> &'static [&'static str] {
        match self {
            PooledForm::Vectors | PooledForm::Rewards | PooledForm::Ranking => &[],
            PooledForm::Scores => &[scores::SCORES],
            PooledForm::Classes(_) => &[PROBS],
        }
    }
}

const PROBS: &str = "probs";

/// Appends one JSON row with what its texts became, newline included.
pub(super) fn format_pooled(
    (passthrough, output): (&Passthrough, &PoolingOutput),
    form: &PooledForm,
    options: &OutputOptions<'_>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let mut row = RowWriter { out, options, form: None };
    row.out.push(b'{');
    match (passthrough, form) {
        (Passthrough::Batch(line), _) => {
            row.openai_envelope(line, 200, |row| row.pooled_body(line, output, form));
        }
        (_, PooledForm::Scores) => {
            row.input(passthrough);
            row.scores(output);
            row.usage_of_texts(output);
        }
        (_, PooledForm::Ranking) => {
            row.input(passthrough);
            row.results(output);
            row.usage_of_texts(output);
        }
        (_, PooledForm::Vectors) => {
            row.input(passthrough);
            row.key(options.out_field);
            let encoding = output.params.encoding_format;
            row.each(&output.texts, |row, text| row.vectors(text, encoding));
            row.usage_of_texts(output);
        }
        (_, PooledForm::Rewards) => {
            row.input(passthrough);
            row.key(options.out_field);
            row.each(&output.texts, RowWriter::rewards);
            row.usage_of_texts(output);
        }
        (_, PooledForm::Classes(labels)) => {
            row.input(passthrough);
            row.key(options.out_field);
            row.each(&output.texts, |row, text| row.labels(text, labels));
            row.key(PROBS);
            row.each(&output.texts, |row, text| row.vectors(text, EncodingFormat::Float));
            row.usage_of_texts(output);
        }
    }
    row.out.extend_from_slice(b"}\n");
    if matches!(passthrough, Passthrough::Batch(_)) {
        line_breaks::escape(out, start);
    }
}

impl RowWriter<'_> {
    /// The body of an answer to a request.
    pub(super) fn pooled_body(
        &mut self,
        line: &BatchLine,
        output: &PoolingOutput,
        form: &PooledForm,
    ) {
        if matches!(form, PooledForm::Scores | PooledForm::Ranking) {
            return self.score_body(line, output);
        }
        if let PooledForm::Classes(labels) = form {
            return self.openai_list("classify-", line, output, |row, text| {
                row.key("label");
                row.labels(text, labels);
                row.key(PROBS);
                row.vectors(text, EncodingFormat::Float);
                row.field("num_classes", &labels.len());
            });
        }
        let encoding = output.params.encoding_format;
        self.openai_list("embd-", line, output, |row, text| {
            row.field("object", "embedding");
            row.key("embedding");
            row.vectors(text, encoding);
        });
    }

    /// The body of vLLM's answers to embeddings and scores: an object for each text.
    pub(super) fn openai_list(
        &mut self,
        prefix: &str,
        line: &BatchLine,
        output: &PoolingOutput,
        item: impl Fn(&mut Self, &Pooled),
    ) {
        self.field("id", &line.digest.id(prefix));
        self.field("object", "list");
        self.field("created", &self.options.facts.created);
        self.model(line);
        self.key("data");
        let texts: Vec<_> = output.texts.iter().enumerate().collect();
        self.list(&texts, |row, (index, text)| {
            row.out.push(b'{');
            row.field("index", index);
            item(row, text);
            row.out.push(b'}');
        });
        self.usage_of_texts(output);
    }

    /// What there is of one text, or a list of that for several.
    fn each(&mut self, texts: &[Pooled], write: impl Fn(&mut Self, &Pooled)) {
        match texts {
            [text] => write(self, text),
            texts => self.list(texts, write),
        }
    }

    /// A text's vector, or its tokens'.
    fn vectors(&mut self, text: &Pooled, encoding: EncodingFormat) {
        match text {
            Pooled::Vector(vector) => self.vector(vector, encoding),
            Pooled::Tokens(rows) => self.list(rows, |row, vector| row.vector(vector, encoding)),
            Pooled::Sparse(words) => {
                let (indices, values): (Vec<_>, Vec<_>) = words.iter().copied().unzip();
                self.out.push(b'{');
                self.field("indices", &indices);
                self.field("values", &values);
                self.out.push(b'}');
            }
        }
    }

    /// The name of a text's largest class, or those of its tokens.
    fn labels(&mut self, text: &Pooled, labels: &[String]) {
        match text {
            Pooled::Vector(values) => self.value(largest(values, labels)),
            Pooled::Tokens(rows) => self.list(rows, |row, values| {
                row.value(largest(values, labels));
            }),
            Pooled::Sparse(_) => unreachable!("a classifier's outputs are not sparse"),
        }
    }

    /// The number of a text, or those of its tokens or steps: of a step that of the last class,
    /// which is that it is right.
    pub(super) fn rewards(&mut self, text: &Pooled) {
        match text {
            Pooled::Vector(values) => self.value(&values.last()),
            Pooled::Tokens(rows) => self.list(rows, |row, values| row.value(&values.last())),
            Pooled::Sparse(_) => unreachable!("a classifier's outputs are not sparse"),
        }
    }

    /// Numbers are the shortest that give the same f32 again.
    fn vector(&mut self, vector: &[f32], encoding: EncodingFormat) {
        match encoding {
            EncodingFormat::Float => self.value(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                self.value(&base64::encode(&bytes));
            }
        }
    }

    pub(super) fn usage_of_texts(&mut self, output: &PoolingOutput) {
        self.object("usage", |row| {
            row.field("prompt_tokens", &output.num_prompt_tokens);
            row.field("total_tokens", &output.num_prompt_tokens);
        });
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("plain values")
}

/// The name of the class with the largest number; of equal ones, of the first.
fn largest<'a>(values: &[f32], labels: &'a [String]) -> &'a str {
    let best = (0..values.len()).rev().max_by(|a, b| values[*a].total_cmp(&values[*b]));
    best.and_then(|best| labels.get(best)).expect("every class has a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_class_is_named_and_the_first_of_equal_ones() {
        let labels = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(largest(&[0.1, 0.7, 0.2], &labels), "b");
        assert_eq!(largest(&[0.4, 0.2, 0.4], &labels), "a");
        assert_eq!(largest(&[-3.0, -2.0, -2.0], &labels), "b");
    }
}
