//! Parts of the text of an answer: thinking, content, calls of tools. Parsing is a function
//! of the finished text and of what its row asked for; it changes no token.

mod harmony;
mod languages;
mod parser;
mod reasoning;
mod reasoning_tokens;
mod tags;
mod template;
mod tool_calls;
mod transcript;

pub use languages::Language;
pub use parser::AnswerParser;
pub use transcript::Segment;

use serde_json::{Map, Value};

/// Form that a row allows its answer to have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerForm {
    /// Functions that the answer may call, in the row's order. Empty: it calls none.
    pub tools: Vec<Tool>,
    /// Whether it calls them.
    pub tool_choice: ToolChoice,
    /// False: only the first call is kept (OpenAI's `parallel_tool_calls`).
    pub is_single_call: bool,
    /// What the row says of thinking.
    pub thinking: SaidOfThinking,
    /// The thinking is not shown (vLLM's `include_reasoning: false`).
    pub hides_reasoning: bool,
}

/// What the variables of a row's template say of thinking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaidOfThinking {
    /// `enable_thinking`, or `thinking`.
    pub switch: Option<bool>,
    /// `reasoning_effort`: false for `none` and `no_think`.
    pub effort: Option<bool>,
}

impl SaidOfThinking {
    /// By the variables.
    pub fn by_variables(variables: &Map<String, Value>) -> Self {
        let switch = |name| variables.get(name)?.as_bool();
        let effort = variables.get("reasoning_effort").and_then(Value::as_str);
        Self {
            switch: switch("enable_thinking").or_else(|| switch("thinking")),
            effort: effort.map(|effort| !["none", "no_think"].contains(&effort)),
        }
    }

    /// By the switch alone.
    pub fn switched(switch: Option<bool>) -> Self {
        Self { switch, effort: None }
    }
}

/// A function that an answer may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// JSON schema of its arguments; null where the row has none.
    pub parameters: Value,
}

/// OpenAI's `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// No call is looked for.
    #[default]
    None,
    /// The model decides: its text is looked through for calls.
    Auto,
    /// The answer is a JSON list of calls, by structured output.
    Required,
    /// The answer is the JSON arguments of this function, by structured output.
    Named(String),
}

/// An answer's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// Thinking before the answer.
    pub reasoning: Option<String>,
    /// The text. None: there is none beside the thinking or the calls.
    pub content: Option<String>,
    /// In the order of the text.
    pub tool_calls: Vec<ToolCall>,
    /// Pieces of a transcript, where it has timestamps.
    pub segments: Vec<Segment>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// Arguments: the text of a JSON object if the model wrote one.
    pub arguments: String,
}
