//! Bodies of OpenAI's answers to recordings: `json` and `verbose_json`.

use super::RowWriter;
use crate::input::batch_line::{BatchLine, Echo};
use vllm_batch_api::request::RequestOutput;
use vllm_batch_text::Language;

/// Tokens at the end of a prompt of which one may be the language's: it, the task, no timestamps.
const NUM_LAST: usize = 3;

impl RowWriter<'_> {
    /// The body of a transcript. Of segments it has what is known: where they are and what is said.
    pub(super) fn transcription_body(&mut self, line: &BatchLine, output: &RequestOutput) {
        let completion = &output.outputs[0];
        let shown = self.shown(completion);
        let Some(Echo::Recording(recording)) = &line.echo else {
            return self.field("text", &shown.content);
        };
        if recording.is_verbose {
            let language = self.language_found(completion).or_else(|| self.language_given(output));
            self.field("task", recording.task);
            // A model without tokens of languages knows one alone.
            self.field("language", language.map_or("english", |language| language.name));
            self.field("duration", &recording.seconds());
        }
        self.field("text", &shown.content);
        if recording.is_verbose {
            let numbered: Vec<_> = shown.segments.iter().enumerate().collect();
            self.key("segments");
            self.list(&numbered, |row, (id, segment)| {
                row.out.push(b'{');
                row.field("id", id);
                row.field("seek", &0);
                row.segment(segment);
                row.out.push(b'}');
            });
        }
        self.object("usage", |row| {
            row.field("type", "duration");
            row.field("seconds", &(recording.seconds().ceil() as u64));
        });
    }

    /// The language that a prompt ends with, whoever said it: the request, or a flag.
    fn language_given(&self, output: &RequestOutput) -> Option<Language> {
        let last = output.prompt_token_ids.iter().rev().take(NUM_LAST);
        let mut texts = last.map(|id| (self.options.tokens.text)(*id));
        texts.find_map(|text| Language::of_token(&text))
    }
}
