//! `AnswerParser`: a reasoning parser and a tool-call parser, by name or by the chat template.

use std::ops::Range;

use super::reasoning::{self, ReasoningFormat, Rule};
use super::tool_calls::{self, CallFormat, is_json, named_calls};
use super::{
    AnswerForm, ParsedAnswer, SaidOfThinking, ToolCall, ToolChoice, harmony, template, transcript,
};

/// The tool-call parser of Harmony, whose channels `harmony.rs` reads.
const HARMONY: &[&str] = &["openai", "gpt-oss"];

/// Splits the text of an answer into thinking, content and calls. A pure function of the text and
/// of what its row asked for. By default an answer is one text.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerParser {
    reasoning: Option<&'static ReasoningFormat>,
    tool_calls: ToolCalls,
    /// Answers are transcripts of recordings.
    is_of_transcripts: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum ToolCalls {
    #[default]
    None,
    Format(&'static CallFormat),
    Harmony,
}

impl AnswerParser {
    /// A parser by names of vLLM: `none`, `auto` (by the chat template's text), or a parser's.
    ///
    /// # Errors
    /// A name that is not known, with those that are; Harmony beside a parser of another form.
    pub fn new(reasoning: &str, tool_calls: &str, template: Option<&str>) -> Result<Self, String> {
        let by_template = |choose: fn(&str) -> &'static str| template.map_or("none", choose);
        let reasoning = match reasoning {
            "auto" => by_template(template::reasoning_parser),
            name => name,
        };
        let tool_calls = match tool_calls {
            "auto" => by_template(template::tool_call_parser),
            name => name,
        };
        let parser = Self {
            reasoning: reasoning_format(reasoning)?,
            tool_calls: calls_format(tool_calls)?,
            is_of_transcripts: false,
        };
        let is_mixed = match parser.tool_calls {
            ToolCalls::None => false,
            ToolCalls::Harmony => parser.reasoning.is_some() && !parser.thinks_in_channels(),
            ToolCalls::Format(_) => parser.thinks_in_channels(),
        };
        if is_mixed {
            return Err(format!(
                "the reasoning parser `{reasoning}` does not go with the tool-call parser \
                 `{tool_calls}`: answers of gpt-oss need `openai_gptoss` and `openai`"
            ));
        }
        Ok(parser)
    }

    /// Of a model that writes down recordings.
    pub fn of_transcripts() -> Self {
        Self { is_of_transcripts: true, ..Self::default() }
    }

    /// Whether answers are transcripts of recordings.
    pub fn is_of_transcripts(&self) -> bool {
        self.is_of_transcripts
    }

    /// All names of reasoning parsers.
    pub fn reasoning_names() -> Vec<&'static str> {
        sorted(reasoning::FORMATS.iter().flat_map(|format| format.names))
    }

    /// All names of tool-call parsers.
    pub fn tool_call_names() -> Vec<&'static str> {
        sorted(tool_calls::FORMATS.iter().flat_map(|format| format.names).chain(HARMONY))
    }

    /// The names of its reasoning parser and its tool-call parser, as they are in fingerprints.
    pub fn names(&self) -> (&'static str, &'static str) {
        let reasoning = self.reasoning.map_or("none", |format| format.names[0]);
        let tool_calls = match self.tool_calls {
            ToolCalls::None => "none",
            ToolCalls::Format(format) => format.names[0],
            ToolCalls::Harmony => HARMONY[0],
        };
        (reasoning, tool_calls)
    }

    /// Start and end of the thinking. The template may have written the start: then it is
    /// not in the answer. Granite writes "Here's" for "Here is" at times.
    pub fn reasoning_markers(&self) -> Option<(&'static str, &'static str)> {
        let channels = self.is_harmony().then_some((harmony::THINKING, harmony::FINAL));
        self.reasoning.map(|format| (format.start, format.end)).or(channels)
    }

    /// Whether an answer may think, by what its row says of it ([`AnswerForm::thinking`]).
    pub fn may_think(&self, said: SaidOfThinking) -> bool {
        let by_row = self.reasoning.map(|format| format.switch.is_on(said));
        by_row.unwrap_or_else(|| self.is_harmony())
    }

    /// Whether an answer of its models may begin without thinking, and without a word of it.
    pub fn may_answer_at_once(&self) -> bool {
        self.reasoning.is_some_and(|format| match format.rule {
            Rule::UpToEnd | Rule::Harmony => false,
            Rule::IfEnded | Rule::Sentences | Rule::Channel | Rule::Answer => true,
            Rule::Tags { is_open, .. } => !is_open,
        })
    }

    /// Whether its tags are special tokens in its models, so that the text must show those. Tags
    /// of calls are looked for only in answers of rows with tools.
    pub fn needs_special_tokens(&self) -> bool {
        let in_calls = match self.tool_calls {
            ToolCalls::None => false,
            ToolCalls::Format(format) => format.has_special_tokens,
            ToolCalls::Harmony => true,
        };
        in_calls || self.needs_special_tokens_to_think()
    }

    /// Whether the tags of thinking are special tokens: then answers of all rows must show those.
    pub fn needs_special_tokens_to_think(&self) -> bool {
        self.is_harmony() || self.reasoning.is_some_and(|format| format.has_special_tokens)
    }

    /// The parts of an answer. What cannot be read as calls stays content.
    pub fn parse(&self, text: &str, form: &AnswerForm) -> ParsedAnswer {
        if self.is_of_transcripts {
            let content = Some(transcript::without_times(text));
            let segments = transcript::segments(text);
            return ParsedAnswer { content, segments, ..ParsedAnswer::default() };
        }
        let mut answer = if self.is_harmony() {
            let parts = harmony::read(text, form.tool_choice == ToolChoice::Auto);
            let thinking: Vec<&str> = parts.thinking.into_iter().map(|part| &text[part]).collect();
            let (thinking, content) = (thinking.join("\n"), parts.content.join("\n"));
            answer_of(thinking, content, parts.calls)
        } else {
            self.parse_tags(text, form)
        };
        match &form.tool_choice {
            ToolChoice::Named(name) => as_arguments(&mut answer, name),
            ToolChoice::Required => as_list(&mut answer),
            ToolChoice::None | ToolChoice::Auto => {}
        }
        if form.is_single_call {
            answer.tool_calls.truncate(1);
        }
        if form.hides_reasoning {
            answer.reasoning = None;
        }
        answer
    }

    /// The content of an answer that goes on, as far as nothing that comes takes it back: a
    /// beginning of the content of `parse`. None where calls are looked for, or on channels.
    pub fn content_so_far(&self, text: &str, form: &AnswerForm) -> String {
        let may_call = form.tool_choice != ToolChoice::None;
        match self.reasoning {
            _ if may_call || self.is_harmony() => String::new(),
            Some(format) => joined(text, &format.split_so_far(text, form).content),
            None => text.to_owned(),
        }
    }

    /// Where the thinking is.
    pub(super) fn thinking(&self, text: &str, form: &AnswerForm) -> Vec<Range<usize>> {
        match self.reasoning {
            _ if self.is_harmony() => harmony::read(text, true).thinking,
            Some(format) => format.split(text, form).thinking,
            None => Vec::new(),
        }
    }

    fn parse_tags(&self, text: &str, form: &AnswerForm) -> ParsedAnswer {
        let (thinking, content) = match self.reasoning {
            Some(format) => {
                let split = format.split(text, form);
                (joined(text, &split.thinking), joined(text, &split.content))
            }
            None => (String::new(), text.to_owned()),
        };
        let calls = match self.tool_calls {
            ToolCalls::Format(format) if form.tool_choice == ToolChoice::Auto => {
                (format.read)(&content, &form.tools)
            }
            _ => None,
        };
        match calls {
            Some(calls) => answer_of(thinking, calls.content, calls.calls),
            None => answer_of(thinking, content, Vec::new()),
        }
    }

    fn thinks_in_channels(&self) -> bool {
        self.reasoning.is_some_and(|format| matches!(format.rule, Rule::Harmony))
    }

    /// Whether answers are messages on channels. One of the two names is enough: a form is whole.
    fn is_harmony(&self) -> bool {
        matches!(self.tool_calls, ToolCalls::Harmony) || self.thinks_in_channels()
    }
}

/// Some parts of a text as one.
fn joined(text: &str, parts: &[Range<usize>]) -> String {
    parts.iter().map(|part| &text[part.clone()]).collect()
}

/// An answer of parts, of which empty ones are absent. White space beside calls is no content.
fn answer_of(thinking: String, content: String, tool_calls: Vec<ToolCall>) -> ParsedAnswer {
    let is_blank = content.is_empty() || (!tool_calls.is_empty() && content.trim().is_empty());
    ParsedAnswer {
        reasoning: (!thinking.is_empty()).then_some(thinking),
        content: (!is_blank).then_some(content),
        tool_calls,
        segments: Vec::new(),
    }
}

/// Makes the content the arguments of the function that the row named. An answer that was cut is
/// not JSON, and stays content.
fn as_arguments(answer: &mut ParsedAnswer, name: &str) {
    if let Some(arguments) = answer.content.take_if(|content| is_json(content)) {
        answer.tool_calls = vec![ToolCall { name: name.to_owned(), arguments }];
    }
}

/// Makes the content the calls that it lists. An answer that was cut stays content.
fn as_list(answer: &mut ParsedAnswer) {
    if let Some(calls) = answer.content.as_deref().and_then(named_calls) {
        answer.content = None;
        answer.tool_calls = calls;
    }
}

/// The format of a name; none for `none`.
fn reasoning_format(name: &str) -> Result<Option<&'static ReasoningFormat>, String> {
    let mut formats = reasoning::FORMATS.iter();
    match formats.find(|format| format.names.contains(&name)) {
        Some(format) => Ok(Some(format)),
        None if name == "none" => Ok(None),
        None => Err(unknown("reasoning", name, &AnswerParser::reasoning_names())),
    }
}

/// The same for calls.
fn calls_format(name: &str) -> Result<ToolCalls, String> {
    let mut formats = tool_calls::FORMATS.iter();
    match formats.find(|format| format.names.contains(&name)) {
        Some(format) => Ok(ToolCalls::Format(format)),
        None if name == "none" => Ok(ToolCalls::None),
        None if HARMONY.contains(&name) => Ok(ToolCalls::Harmony),
        None => Err(unknown("tool-call", name, &AnswerParser::tool_call_names())),
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a &'static str>) -> Vec<&'static str> {
    let mut names: Vec<&str> = names.copied().collect();
    names.sort_unstable();
    [&["none", "auto"], &names[..]].concat()
}

fn unknown(kind: &str, name: &str, names: &[&str]) -> String {
    format!("no {kind} parser is called `{name}`; there are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        reasoning: &str,
        tool_calls: &str,
        text: &str,
        tool_choice: ToolChoice,
    ) -> ParsedAnswer {
        let form = AnswerForm { tool_choice, ..AnswerForm::default() };
        AnswerParser::new(reasoning, tool_calls, None).expect("known names").parse(text, &form)
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn answer(reasoning: Option<&str>, content: Option<&str>, calls: &[ToolCall]) -> ParsedAnswer {
        ParsedAnswer {
            reasoning: reasoning.map(str::to_owned),
            content: content.map(str::to_owned),
            tool_calls: calls.to_vec(),
            segments: Vec::new(),
        }
    }

    const CALLS: &str = concat!(
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"b\": 1.0,\"a\":1e3}}</tool_call>",
        "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>"
    );

    #[test]
    fn arguments_are_the_models_own_text() {
        let parsed = parse("none", "hermes", CALLS, ToolChoice::Auto);
        let calls = [call("f", "{\"b\": 1.0,\"a\":1e3}"), call("g", "{}")];
        assert_eq!(parsed, answer(None, None, &calls));
    }

    #[test]
    fn a_row_that_wants_no_call_gets_the_text() {
        assert_eq!(
            parse("none", "hermes", CALLS, ToolChoice::None).content.as_deref(),
            Some(CALLS)
        );
        let text = "<|channel|>commentary to=functions.f<|message|>{}";
        assert_eq!(parse("none", "openai", text, ToolChoice::None), answer(None, Some("{}"), &[]));
    }

    #[test]
    fn the_content_is_a_named_functions_arguments() {
        let named = || ToolChoice::Named("f".to_owned());
        let parsed = parse("qwen3", "none", "one</think>{\"a\": 1}", named());
        assert_eq!(parsed, answer(Some("one"), None, &[call("f", "{\"a\": 1}")]));
        let cut = parse("qwen3", "hermes", "one</think>{\"a\": ", named());
        assert_eq!(cut, answer(Some("one"), Some("{\"a\": "), &[]));
        assert_eq!(parse("qwen3", "none", "one", named()), answer(Some("one"), None, &[]));
    }

    #[test]
    fn the_content_is_the_list_of_required_calls() {
        let text = r#"[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]"#;
        let parsed = parse("none", "none", text, ToolChoice::Required);
        assert_eq!(parsed, answer(None, None, &[call("f", "{\"a\": 1}"), call("g", "{}")]));
        let cut = parse("none", "hermes", &text[..60], ToolChoice::Required);
        assert_eq!(cut, answer(None, Some(&text[..60]), &[]));
    }

    #[test]
    fn one_call_is_kept_and_thinking_hidden_where_the_row_says_so() {
        let parser = AnswerParser::new("qwen3", "hermes", None).expect("known names");
        let form = AnswerForm {
            tool_choice: ToolChoice::Auto,
            is_single_call: true,
            hides_reasoning: true,
            ..AnswerForm::default()
        };
        let parsed = parser.parse(&format!("one</think>{CALLS}"), &form);
        assert_eq!(parsed, answer(None, None, &[call("f", "{\"b\": 1.0,\"a\":1e3}")]));
    }

    #[test]
    fn names_are_vllms_and_others_are_refused_with_the_list() {
        let parser = AnswerParser::new("gpt-oss", "openai", None).expect("known names");
        assert_eq!(parser.names(), ("openai_gptoss", "openai"));
        assert!(parser.needs_special_tokens() && parser.needs_special_tokens_to_think());
        let error =
            AnswerParser::new("none", "kimi_k3", None).expect_err("a name that is not here");
        assert!(error.contains("`kimi_k3`") && error.contains("hermes, hunyuan_a13b"), "{error}");
        let error = AnswerParser::new("step3", "none", None).expect_err("a name that is not here");
        assert!(error.contains("reasoning") && error.contains("deepseek_r1"), "{error}");
        assert!(AnswerParser::new("qwen3", "openai", None).is_err());
        assert!(AnswerParser::new("openai_gptoss", "hermes", None).is_err());
    }

    /// Of every text, whatever its tags, at every place where it may be cut.
    #[test]
    fn content_so_far_is_the_beginning_of_the_content() {
        let pieces = [
            "<think>",
            "</think>",
            "<tool_call>",
            "Here is my thought process:",
            "Here's my response:",
            "[THINK]",
            "[/THINK]",
            "<|channel|>final<|message|>",
            "<|channel>",
            "<channel|>",
            "thought",
            "<｜DSML｜tool_calls>",
            "\n</think>\n<answer>\n",
            "<|END_THINKING|>",
            "<response>",
            "one \u{e9}",
            "<th",
            " \n",
        ];
        let (mut state, mut num_shown) = (3u64, 0);
        let mut random = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let tools = ["none", "hermes", "openai"];
        for name in AnswerParser::reasoning_names().into_iter().filter(|name| *name != "auto") {
            for _ in 0..300 {
                let text: String = (0..random(9)).map(|_| pieces[random(pieces.len())]).collect();
                let switch = [None, Some(true), Some(false)][random(3)];
                let thinking = SaidOfThinking { switch, effort: switch };
                let tool_choice = [ToolChoice::None, ToolChoice::Auto][random(2)].clone();
                let form = AnswerForm { thinking, tool_choice, ..AnswerForm::default() };
                let Ok(parser) = AnswerParser::new(name, tools[random(3)], None) else { continue };
                let content = parser.parse(&text, &form).content.unwrap_or_default();
                let mut before = String::new();
                for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                    let so_far = parser.content_so_far(&text[..end], &form);
                    assert!(content.starts_with(&so_far), "{name}, {text:?}: {so_far:?}");
                    assert!(so_far.starts_with(&before), "{name}, {text:?}: {before:?}");
                    before = so_far;
                }
                num_shown += usize::from(!before.is_empty());
            }
        }
        assert!(num_shown > 500, "{num_shown} answers had content before their ends");
    }

    #[test]
    fn rows_turn_thinking_on_and_off() {
        let on = |name: &str| {
            let parser = AnswerParser::new(name, "none", None).expect("a known name");
            let said = |on| parser.may_think(SaidOfThinking::switched(on));
            [None, Some(true), Some(false)].map(said)
        };
        assert_eq!(on("none"), [false; 3]);
        assert_eq!(on("deepseek_r1"), [true; 3]);
        assert_eq!(on("qwen3"), [true, true, false]);
        assert_eq!(on("deepseek_v3"), [false, true, false]);
        assert_eq!(on("hy_v3"), [false; 3]);
        let hunyuan = AnswerParser::new("hy_v3", "none", None).expect("a known name");
        assert!(hunyuan.may_think(SaidOfThinking { switch: None, effort: Some(true) }));
        let harmony = AnswerParser::new("none", "openai", None).expect("a known name");
        assert!(harmony.may_think(SaidOfThinking::default()) && !harmony.may_answer_at_once());
        let at_once = |name| AnswerParser::new(name, "none", None).expect("known");
        assert!(at_once("granite").may_answer_at_once());
        assert!(at_once("mistral").may_answer_at_once());
        assert!(!at_once("qwen3").may_answer_at_once());
    }

    #[test]
    fn markers_and_special_tokens_are_the_parsers() {
        let parser = |reasoning, calls| AnswerParser::new(reasoning, calls, None).expect("names");
        assert_eq!(parser("qwen3", "none").reasoning_markers(), Some(("<think>", "</think>")));
        assert_eq!(parser("none", "hermes").reasoning_markers(), None);
        let harmony = parser("none", "openai").reasoning_markers();
        assert_eq!(harmony.map(|(_, end)| end), Some("<|channel|>final<|message|>"));
        assert!(parser("none", "hermes").needs_special_tokens());
        assert!(!parser("none", "hermes").needs_special_tokens_to_think());
        assert!(!parser("qwen3", "llama3_json").needs_special_tokens());
        assert!(parser("mistral", "none").needs_special_tokens());
    }
}
