//! `Warnings`: what is said once of the rows of a run, at the first row that causes it. None of it
//! changes a row.

use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::sanitized;
use vllm_batch_engine::request::Request;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_text::{AnswerForm, Chat, ToolChoice};

/// Different variables that are warned about.
const MAX_KWARGS_NAMED: usize = 8;

/// Warnings, each shown once, at the first row that causes it.
pub struct Warnings<'a> {
    console: &'a Console,
    of_collisions: bool,
    of_two_bos: bool,
    of_calls: bool,
    of_thinking: bool,
    /// Variables that the chat template does not read.
    of_kwargs: Vec<String>,
}

impl<'a> Warnings<'a> {
    /// None is shown yet.
    pub fn new(console: &'a Console) -> Self {
        Self {
            console,
            of_collisions: false,
            of_two_bos: false,
            of_calls: false,
            of_thinking: false,
            of_kwargs: Vec::new(),
        }
    }

    /// Says which fields of the input are renamed because ours have their names.
    pub fn collisions(&mut self, names: impl Fn() -> Vec<String>) {
        if self.of_collisions {
            return;
        }
        let names = names();
        if names.is_empty() {
            return;
        }
        self.of_collisions = true;
        let renamed: Vec<String> = names.iter().map(|name| format!("input_{name}")).collect();
        let (names, renamed) = (sanitized(&names.join(", ")), sanitized(&renamed.join(", ")));
        self.console.warn(&format!(
            "fields of the input are named like ours: {names}; written as {renamed}"
        ));
    }

    /// Says which variables the chat template does not read: they change nothing.
    pub fn unread_kwargs(
        &mut self,
        chat: &Chat,
        line: u64,
        processor: &InputProcessor,
        sources: &Sources,
    ) {
        for name in chat.kwargs.keys() {
            // The switch that comes with an effort is our own. Of its two names one may be read.
            let given = |name| chat.kwargs.contains_key(name);
            let reads_other = |other| given(other) && processor.template_mentions(other);
            let is_ours = match name.as_str() {
                "enable_thinking" => given("reasoning_effort") || reads_other("thinking"),
                "thinking" => reads_other("enable_thinking"),
                _ => false,
            };
            if is_ours || processor.template_mentions(name) || self.of_kwargs.contains(name) {
                continue;
            }
            if self.of_kwargs.len() < MAX_KWARGS_NAMED {
                let name = sanitized(name);
                self.console.warn(&format!(
                    "{}: the chat template does not read `{name}`, so it changes nothing",
                    sources.said(line)
                ));
                self.of_kwargs.push(name);
            }
        }
    }

    /// Says which lists of a chat its template does not show, so that the model does not know them.
    pub fn unshown(
        &mut self,
        chat: &Chat,
        line: u64,
        processor: &InputProcessor,
        sources: &Sources,
    ) {
        let lists = [("tools", chat.tools.is_some()), ("documents", chat.documents.is_some())];
        for (name, _) in lists.into_iter().filter(|(_, is_given)| *is_given) {
            let is_known = self.of_kwargs.iter().any(|known| known == name);
            if is_known || processor.template_mentions(name) || !processor.has_chat_template() {
                continue;
            }
            self.console.warn(&format!(
                "{}: the chat template does not show `{name}`: the model does not see them",
                sources.said(line)
            ));
            self.of_kwargs.push(name.to_owned());
        }
    }

    /// Says that thinking stays text, at the first chat that does not switch it off.
    pub fn unread_thinking(&mut self, form: &AnswerForm, processor: &InputProcessor) {
        if self.of_thinking || form.thinking.switch == Some(false) {
            return;
        }
        self.of_thinking = true;
        if let Some(parser) = processor.unused_reasoning_parser() {
            self.console.note(&format!(
                "The model thinks before it answers, and rows show that as text; \
                 --reasoning-parser {parser} shows it apart"
            ));
        }
    }

    /// Says that calls of tools stay text, where nobody knows how the model writes them.
    pub fn unread_calls(
        &mut self,
        form: &AnswerForm,
        line: u64,
        processor: &InputProcessor,
        sources: &Sources,
    ) {
        let is_unread = !form.tools.is_empty()
            && form.tool_choice == ToolChoice::Auto
            && processor.answer_parser().names().1 == "none";
        if is_unread && !self.of_calls {
            self.of_calls = true;
            self.console.warn(&format!(
                "{}: the row has tools, and no parser reads calls from its answer, so they stay \
                 text; name one with --tool-call-parser",
                sources.said(line)
            ));
        }
    }

    /// Says that a prompt's text brings the BOS that the tokenizer adds anyway.
    pub fn two_bos(
        &mut self,
        request: &Request,
        line: u64,
        processor: &InputProcessor,
        sources: &Sources,
    ) {
        if !self.of_two_bos && processor.begins_with_two_bos(&request.prompt_token_ids) {
            self.of_two_bos = true;
            self.console.warn(&format!(
                "{}: the prompt begins with the BOS token, and the tokenizer adds another; leave it \
                 out of the text, or give chat rows as `messages`",
                sources.said(line)
            ));
        }
    }
}
