//! Rows with scores: of pairs of texts, or of documents in the order of their scores. Ours, and
//! vLLM's batch lines of both.

use std::cmp::Ordering;

use super::RowWriter;
use crate::input::batch_line::{BatchKind, BatchLine};
use vllm_batch_api::compared::{Compared, ScoreInput};
use vllm_batch_api::pooling::{Pooled, PoolingOutput};

/// The field with the scores of a list.
pub(super) const SCORES: &str = "scores";

/// Places of the best scores, the best first; of equal ones the first.
fn ranking(scores: &[f32], top_n: Option<usize>) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    // A row with scores that are no numbers is an error row.
    let better = |a: &usize, b: &usize| scores[*b].partial_cmp(&scores[*a]);
    places.sort_by(|a, b| better(a, b).unwrap_or(Ordering::Equal));
    places.truncate(top_n.unwrap_or(usize::MAX));
    places
}

/// The number of every pair.
fn scores(output: &PoolingOutput) -> Vec<f32> {
    output.texts.iter().flat_map(Pooled::values).collect()
}

/// What was compared.
fn compared(output: &PoolingOutput) -> &Compared {
    output.compared.as_deref().expect("scores are of texts that were compared")
}

impl RowWriter<'_> {
    /// The answer of a row: a score, or a list of them.
    pub(super) fn scores(&mut self, output: &PoolingOutput) {
        let (scores, field) = (scores(output), self.options.out_field);
        match compared(output).is_list() {
            false => self.field(field, &scores[0]),
            // What the user named has that name.
            true if field != "score" => self.field(field, &scores),
            true => self.field(SCORES, &scores),
        }
    }

    /// The answer of a row: places of its documents with their scores.
    pub(super) fn results(&mut self, output: &PoolingOutput) {
        let scores = scores(output);
        self.key(self.options.out_field);
        self.list(&ranking(&scores, output.params.top_n), |row, index| {
            row.out.push(b'{');
            row.field("index", index);
            row.field("relevance_score", &scores[*index]);
            row.out.push(b'}');
        });
    }

    /// The body of an answer to a request.
    pub(super) fn score_body(&mut self, line: &BatchLine, output: &PoolingOutput) {
        match line.kind {
            BatchKind::Rerank => self.rerank_body(line, output),
            _ => self.openai_list("score-", line, output, |row, score| {
                row.field("object", "score");
                row.key("score");
                row.rewards(score);
            }),
        }
    }

    fn rerank_body(&mut self, line: &BatchLine, output: &PoolingOutput) {
        let (scores, documents) = (scores(output), compared(output).documents());
        self.field("id", &line.digest.id("rerank-"));
        self.model(line);
        self.usage_of_texts(output);
        self.key("results");
        self.list(&ranking(&scores, output.params.top_n), |row, index| {
            row.out.push(b'{');
            row.field("index", index);
            row.object("document", |row| match &documents[*index] {
                ScoreInput::Text(text) => row.field("text", text),
                ScoreInput::Content(content) => {
                    row.key("multi_modal");
                    row.out.extend_from_slice(content.given.as_bytes());
                }
            });
            row.field("relevance_score", &scores[*index]);
            row.out.push(b'}');
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_of_equal_ones_the_first() {
        let scores = [0.5, -1.0, 0.75, 0.5, -0.0, 0.0];
        assert_eq!(ranking(&scores, None), [2, 0, 3, 4, 5, 1]);
        assert_eq!(ranking(&scores, Some(2)), [2, 0]);
        assert_eq!(ranking(&scores, Some(9)).len(), 6);
    }
}
