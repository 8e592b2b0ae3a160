//! Rows of which it is asked how likely texts are, in place of a completion.

use super::choices::listed;
use crate::input::fields::JsonFields;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::prompt::{Choices, Prompt};

/// Likelihoods that are asked of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Likelihoods {
    /// A completion. A field named `choices` is the user's own.
    #[default]
    None,
    /// Likelihood of each of their `choices` after their prompt.
    OfChoices,
    /// Likelihood of their text.
    OfTexts,
}

impl Likelihoods {
    /// The field with the texts to choose from.
    pub(super) const CHOICES: &str = "choices";
    /// Field of an output row with the answer.
    pub const CHOICE_LOGPROBS: &str = "choice_logprobs";
    /// The same of rows whose text is asked about.
    pub const LOGLIKELIHOOD: &str = "loglikelihood";

    /// Fields that output rows get.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            Likelihoods::None => &[],
            Likelihoods::OfChoices => &[Self::CHOICE_LOGPROBS],
            Likelihoods::OfTexts => &[Self::LOGLIKELIHOOD],
        }
    }

    /// Treatment of rows, in words.
    pub(super) fn treatment(self) -> Option<&'static str> {
        match self {
            Likelihoods::None => None,
            Likelihoods::OfChoices => Some("asked how likely each of their `choices` is"),
            Likelihoods::OfTexts => Some("asked how likely their text is"),
        }
    }

    /// Request of a row with this prompt.
    pub(super) fn ask(
        self,
        prompt: Prompt,
        fields: &JsonFields,
        line: u64,
    ) -> Result<Prompt, RowError> {
        match (self, prompt) {
            (Likelihoods::None, prompt) => Ok(prompt),
            (Likelihoods::OfChoices, context) => {
                let choices = choices(fields, line)?;
                Ok(Prompt::Choices(Box::new(Choices { context, choices })))
            }
            (Likelihoods::OfTexts, Prompt::Text(text)) => Ok(Prompt::Rolling(text)),
            (Likelihoods::OfTexts, _) => {
                let message = "expected a text: it is asked how likely a text is, and not a chat or \
                               token ids";
                Err(RowError::new(code::INVALID_PROMPT, line, message))
            }
        }
    }
}

/// The texts to choose from.
fn choices(fields: &JsonFields, line: u64) -> Result<Vec<String>, RowError> {
    const CHOICES: &str = Likelihoods::CHOICES;
    let field = |name: &str| fields.get(name).and_then(|json| serde_json::from_str(json).ok());
    let wrong =
        |message: String| RowError::new(code::INVALID_PROMPT, line, message).of_param(CHOICES);
    match listed(&field) {
        Ok(Some(found)) => Ok(found.texts),
        Ok(None) => {
            Err(wrong(format!("{CHOICES}: the row has none, and its answer is one of them")))
        }
        Err(what) => Err(wrong(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(likelihoods: Likelihoods, prompt: Prompt, json: &str) -> Result<Prompt, String> {
        let fields = JsonFields::parse(json.to_owned(), 1).map_err(|bad| bad.1).unwrap();
        likelihoods.ask(prompt, &fields, 1).map_err(|error| error.message)
    }

    #[test]
    fn choices_are_a_list_of_texts_or_a_cell_with_one() {
        let text = || Prompt::Text("2+2=".to_owned());
        let expected = Prompt::Choices(Box::new(Choices {
            context: text(),
            choices: vec!["4".to_owned(), "5".to_owned()],
        }));
        for json in [r#"{"choices":["4","5"]}"#, r#"{"choices":" [\"4\", \"5\"]"}"#] {
            assert_eq!(ask(Likelihoods::OfChoices, text(), json).as_ref(), Ok(&expected));
            assert_eq!(ask(Likelihoods::None, text(), json), Ok(text()));
        }
        for (json, what) in [
            ("{}", "the row has none"),
            (r#"{"choices":null}"#, "the row has none"),
            (r#"{"choices":{"a":1}}"#, "`choices` is no list of texts"),
            (r#"{"choices":"4"}"#, "`choices` is no list of texts, but a text"),
            (r#"{"choices":["4",5]}"#, "`choices` is no list of texts"),
        ] {
            let error = ask(Likelihoods::OfChoices, text(), json).unwrap_err();
            assert!(error.contains(what), "{json}: {error}");
        }
    }

    #[test]
    fn only_a_text_is_asked_about_itself() {
        let text = Prompt::Text("a b".to_owned());
        let rolling = Prompt::Rolling("a b".to_owned());
        assert_eq!(ask(Likelihoods::OfTexts, text, "{}"), Ok(rolling));
        assert!(ask(Likelihoods::OfTexts, Prompt::TokenIds(vec![1]), "{}").is_err());
    }
}
