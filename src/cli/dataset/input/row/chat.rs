//! Chats: where their prompt ends, and what their template sees, by the row's fields and the flags.

use serde_json::{Map, Value, json};

use super::image_parts;
use super::tools::RowTools;
use crate::input::fields::JsonFields;
use crate::input::media::Named;
use crate::input::row_error::{RowError, code};
use vllm_batch_text::{AnswerForm, Chat, ChatEnding, SaidOfThinking, json_with_integers};

/// `--last-assistant`: what becomes of a chat of a dataset that ends with the assistant's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastAssistant {
    /// The turn is the reference answer, and not sent.
    #[default]
    Drop,
    /// The answer goes on from it.
    Continue,
    /// An error row.
    Error,
}

/// Flags for every chat.
#[derive(Clone, Debug, Default)]
pub struct ChatDefaults {
    /// `--system-prompt`: the system message of chats that have none.
    pub system_prompt: Option<String>,
    /// `--last-assistant`.
    pub last_assistant: LastAssistant,
    /// `--chat-template-kwargs`: variables of the template, which a row's own win over.
    pub template_kwargs: Map<String, Value>,
}

/// Origin of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A dataset: its last answer is what `--last-assistant` says.
    Dataset,
    /// A request to OpenAI's API: rendered as it is, as in vLLM.
    OpenAi,
    /// A request to Anthropic's API: its last answer is the beginning of ours.
    Anthropic,
    /// A request for a vector of it, which nobody answers, as in vLLM.
    Vectors,
}

/// A chat as it will be sent.
pub(super) struct MadeChat {
    pub(super) chat: Chat,
    /// Form of its answer.
    pub(super) answer: AnswerForm,
    /// The structured output that makes the answer a call of a tool.
    pub(super) constraint: Option<String>,
    /// Whether its last answer is not sent.
    pub(super) dropped_answer: bool,
    /// Images of its parts, in their order.
    pub(super) images: Vec<Named>,
}

/// Variables that the messages and the program fill, and what to do instead of setting them.
const TAKEN_KWARGS: &[(&str, &str)] = &[
    ("chat_template", "use --chat-template FILE"),
    ("tokenize", "prompts are always tokenized"),
    ("messages", "they are the row's"),
    ("tools", "they are a field of the row"),
];

/// Fault of variables for the template.
pub fn check_kwargs(kwargs: &Map<String, Value>) -> Result<(), String> {
    match TAKEN_KWARGS.iter().find(|(name, _)| kwargs.contains_key(*name)) {
        Some((name, why)) => Err(format!("'{name}' cannot be set: {why}")),
        None => Ok(()),
    }
}

impl ChatDefaults {
    /// The chat of checked messages, of which there is at least one. `name` is what errors call
    /// them; `fields` are those beside them.
    pub(super) fn chat(
        &self,
        mut messages: Vec<Value>,
        fields: &JsonFields,
        origin: Origin,
        (name, line): (&str, u64),
    ) -> Result<MadeChat, RowError> {
        let mut kwargs = self.kwargs(fields, origin, line)?;
        let (ending, dropped_answer) = match ending(fields, &mut kwargs, line)? {
            Some(ending) => (ending, false),
            None => self.ending_of(&messages, origin, (name, line))?,
        };
        while dropped_answer && ends_with_answer(&messages) {
            messages.pop();
        }
        if messages.is_empty() {
            let message = format!("{name}: there is no message to answer");
            return Err(RowError::new(code::INVALID_PROMPT, line, message));
        }
        let has_system = messages[0]["role"] == "system" || messages[0]["role"] == "developer";
        if let (false, Some(text)) = (has_system, &self.system_prompt) {
            messages.insert(0, json!({ "role": "system", "content": text }));
        }
        let own_documents = || list(fields, "documents", line);
        let documents = match origin {
            Origin::OpenAi => own_documents()?.or_else(|| kwargs.remove("documents")),
            // A dataset may have a field of this name.
            Origin::Dataset | Origin::Anthropic | Origin::Vectors => kwargs.remove("documents"),
        };
        let tools = match origin {
            Origin::OpenAi | Origin::Anthropic => RowTools::of_request(fields, line)?,
            Origin::Dataset => RowTools::of_row(fields, line)?,
            Origin::Vectors => RowTools::default(),
        };
        let constraint = tools.constraint(line)?;
        let (tools, answer) = tools.into_form();
        let answer = AnswerForm {
            thinking: SaidOfThinking::by_variables(&kwargs),
            hides_reasoning: hides_reasoning(fields, origin, line)?,
            ..answer
        };
        let images = image_parts::take(&mut messages)
            .map_err(|(code, what)| RowError::new(code, line, format!("{name}: {what}")))?;
        let messages = Value::Array(messages);
        let chat = Chat { messages, ending, tools, documents, kwargs, num_media: 0 };
        Ok(MadeChat { chat, answer, constraint, dropped_answer, images })
    }

    /// Where a prompt ends whose row does not say it, and whether its last answer is not sent.
    fn ending_of(
        &self,
        messages: &[Value],
        origin: Origin,
        (name, line): (&str, u64),
    ) -> Result<(ChatEnding, bool), RowError> {
        match (origin, self.last_assistant) {
            (Origin::Vectors, _) => Ok((ChatEnding::LastMessage, false)),
            _ if !ends_with_answer(messages) => Ok((ChatEnding::NewTurn, false)),
            (Origin::OpenAi, _) => Ok((ChatEnding::NewTurn, false)),
            (Origin::Anthropic, _) | (Origin::Dataset, LastAssistant::Continue) => {
                Ok((ChatEnding::OpenMessage, false))
            }
            (Origin::Dataset, LastAssistant::Error) => {
                let message =
                    format!("{name}: the last message is the assistant's: nothing to answer");
                Err(RowError::new(code::LAST_ASSISTANT, line, message)
                    .with_help("--last-assistant drop leaves it out, continue goes on from it"))
            }
            (Origin::Dataset, LastAssistant::Drop) => Ok((ChatEnding::NewTurn, true)),
        }
    }

    /// The variables of the template: the row's over the flag's.
    fn kwargs(
        &self,
        fields: &JsonFields,
        origin: Origin,
        line: u64,
    ) -> Result<Map<String, Value>, RowError> {
        const NAME: &str = "chat_template_kwargs";
        let mut kwargs = self.template_kwargs.clone();
        match template_value(fields, NAME, line)? {
            None => {}
            Some(Value::Object(own)) => {
                check_kwargs(&own).map_err(|what| invalid(NAME, what, line))?;
                kwargs.extend(own);
            }
            Some(_) => return Err(invalid(NAME, "expected an object", line)),
        }
        const EFFORT: &str = "reasoning_effort";
        match value(fields, EFFORT, line)? {
            _ if origin == Origin::Vectors => {}
            None => {}
            Some(Value::String(effort)) => {
                // As in vLLM, for templates that only have a switch.
                kwargs.entry("enable_thinking").or_insert_with(|| (effort != "none").into());
                kwargs.insert(EFFORT.to_owned(), effort.into());
            }
            Some(_) => return Err(invalid(EFFORT, "expected a string", line)),
        }
        // A dataset may have a field of this name. "medium" is what a request without it has.
        const VERBOSITY: &str = "verbosity";
        if origin == Origin::OpenAi
            && let Some(verbosity) = value(fields, VERBOSITY, line)?
        {
            if !verbosity.is_string() {
                return Err(invalid(VERBOSITY, "expected a string", line));
            }
            if verbosity != "medium" {
                kwargs.insert(VERBOSITY.to_owned(), verbosity);
            }
        }
        Ok(kwargs)
    }
}

fn ends_with_answer(messages: &[Value]) -> bool {
    messages.last().is_some_and(|message| message["role"] == "assistant")
}

/// `include_reasoning`: a dataset may have a field of this name.
fn hides_reasoning(fields: &JsonFields, origin: Origin, line: u64) -> Result<bool, RowError> {
    const NAME: &str = "include_reasoning";
    match (value(fields, NAME, line), origin) {
        (Ok(None), _) => Ok(false),
        (Ok(Some(Value::Bool(is_shown))), _) => Ok(!is_shown),
        (_, Origin::Dataset | Origin::Vectors) => Ok(false),
        (Ok(Some(_)), _) => Err(invalid(NAME, "expected true or false", line)),
        (Err(error), _) => Err(error),
    }
}

/// Where a row says that its prompt ends, by vLLM's names; a field wins over a variable.
fn ending(
    fields: &JsonFields,
    kwargs: &mut Map<String, Value>,
    line: u64,
) -> Result<Option<ChatEnding>, RowError> {
    let mut switch = |name: &'static str| {
        let variable = kwargs.remove(name).filter(|value| !value.is_null());
        match value(fields, name, line)?.or(variable) {
            None => Ok(None),
            Some(Value::Bool(is_on)) => Ok(Some(is_on)),
            Some(_) => Err(invalid(name, "expected true or false", line)),
        }
    };
    const CONTINUE: &str = "continue_final_message";
    match (switch(CONTINUE)?, switch("add_generation_prompt")?) {
        (Some(true), Some(true)) => {
            Err(invalid(CONTINUE, "excludes `add_generation_prompt`: give one of them", line))
        }
        (Some(true), _) => Ok(Some(ChatEnding::OpenMessage)),
        (_, Some(false)) => Ok(Some(ChatEnding::LastMessage)),
        (_, Some(true)) => Ok(Some(ChatEnding::NewTurn)),
        (_, None) => Ok(None),
    }
}

/// A field that is a list.
fn list(fields: &JsonFields, name: &'static str, line: u64) -> Result<Option<Value>, RowError> {
    match template_value(fields, name, line)? {
        Some(value) if !value.is_array() => Err(invalid(name, "expected a list", line)),
        value => Ok(value),
    }
}

/// The value of a field; null is none.
pub(super) fn value(
    fields: &JsonFields,
    name: &'static str,
    line: u64,
) -> Result<Option<Value>, RowError> {
    parsed(fields, name, line, |json| serde_json::from_str(json))
}

/// The value of a field that the chat template sees, with all digits of its integers.
pub(super) fn template_value(
    fields: &JsonFields,
    name: &'static str,
    line: u64,
) -> Result<Option<Value>, RowError> {
    parsed(fields, name, line, json_with_integers)
}

fn parsed(
    fields: &JsonFields,
    name: &'static str,
    line: u64,
    parse: fn(&str) -> serde_json::Result<Value>,
) -> Result<Option<Value>, RowError> {
    let Some(json) = fields.get(name) else { return Ok(None) };
    let value = parse(json).map_err(|error| invalid(name, super::prompt::reason(&error), line))?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// The error of a field whose value is wrong.
pub(super) fn invalid(name: &'static str, what: impl std::fmt::Display, line: u64) -> RowError {
    RowError::new(code::INVALID_PARAMETER, line, format!("{name}: {what}")).of_param(name)
}
