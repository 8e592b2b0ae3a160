//! `Unfinished`: what is out of the one answer that is printed while it is made (`--prompt`).

use vllm_batch_api::request::CompletionDelta;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_text::AnswerForm;

/// An answer in the making.
#[derive(Debug, Default)]
pub struct Unfinished {
    /// All of its text so far.
    text: String,
    /// Bytes of its row that are out.
    shown: String,
}

impl Unfinished {
    /// Takes in what is new; returns what the row has more by that.
    pub fn take_in(
        &mut self,
        deltas: &[CompletionDelta],
        format: &RowFormat,
        form: Option<&AnswerForm>,
    ) -> &str {
        deltas.iter().for_each(|delta| self.text.push_str(&delta.text));
        let num_shown = self.shown.len();
        self.shown = format.beginning(form, &self.text);
        &self.shown[num_shown..]
    }

    /// The row as it is out at the end, of the one that its answer became. Of one that failed in
    /// the middle, what is out stays.
    pub fn whole(&self, row: Vec<u8>) -> Vec<u8> {
        if row.starts_with(self.shown.as_bytes()) {
            return row;
        }
        let end = if self.shown.ends_with('\n') { "" } else { "\n" };
        [&self.shown, end].concat().into_bytes()
    }
}
