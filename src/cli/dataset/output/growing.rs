//! `Growing`: an answer that goes on, and what of it is out. Text goes out when nothing that comes
//! takes it back.

use vllm_batch_text::{AnswerForm, AnswerParser};

/// An answer that goes on.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// All of its text so far, where its parts are looked for in it.
    text: String,
    /// Content that is out.
    pub(super) content: String,
    /// Thinking that is out.
    pub(super) reasoning: String,
}

/// What goes out next.
pub(super) struct New {
    /// All of the thinking: content begins where it has ended.
    pub(super) reasoning: Option<String>,
    /// More of the content; may be empty.
    pub(super) content: String,
}

impl Growing {
    /// Goes on with more text. `form`: None of a text that is completed, which has no parts.
    pub(super) fn take_in(
        &mut self,
        more: &str,
        form: Option<&AnswerForm>,
        parser: &AnswerParser,
    ) -> New {
        let Some(form) = form else {
            self.content.push_str(more);
            return New { reasoning: None, content: more.to_owned() };
        };
        self.text.push_str(more);
        let so_far = parser.content_so_far(&self.text, form);
        let content = so_far.strip_prefix(&*self.content).unwrap_or_default().to_owned();
        let begins = self.content.is_empty() && !content.is_empty();
        let reasoning = if begins { parser.parse(&self.text, form).reasoning } else { None };
        self.reasoning.push_str(reasoning.as_deref().unwrap_or_default());
        self.content.push_str(&content);
        New { reasoning, content }
    }

    /// What of the whole content is not out.
    pub(super) fn left_of_content<'a>(&self, whole: Option<&'a str>) -> &'a str {
        whole.and_then(|whole| whole.strip_prefix(&*self.content)).unwrap_or_default()
    }

    /// The same of the thinking.
    pub(super) fn left_of_reasoning<'a>(&self, whole: Option<&'a str>) -> &'a str {
        whole.and_then(|whole| whole.strip_prefix(&*self.reasoning)).unwrap_or_default()
    }
}
