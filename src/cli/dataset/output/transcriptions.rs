//! Bodies of OpenAI's answers to recordings: `json` and `verbose_json`.

use super::RowWriter;
use crate::input::batch_line::{BatchLine, Echo};
use vllm_batch_api::request::RequestOutput;

impl RowWriter<'_> {
    /// The body of a transcript. Of segments it has what is known: where they are and what is said.
    pub(super) fn transcription_body(&mut self, line: &BatchLine, output: &RequestOutput) {
        let completion = &output.outputs[0];
        let shown = self.shown(completion);
        let Some(Echo::Recording(recording)) = &line.echo else {
            return self.field("text", &shown.content);
        };
        if recording.is_verbose {
            let found = self.language_found(completion).map(|language| language.name);
            self.field("task", recording.task);
            // A model that finds none knows one alone.
            self.field("language", recording.language.or(found).unwrap_or("english"));
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
}
