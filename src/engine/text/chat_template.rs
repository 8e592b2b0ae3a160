//! `ChatTemplate`: messages to prompt text, byte for byte as transformers' `apply_chat_template`.
//!
//! Templates come with models and are not trusted: steps, nesting, output and the memory of values
//! are limited, nothing can be included.

pub(super) mod budget;
mod program;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Jinja};
use serde_json::{Map, Value};

use super::control_tokens::{ControlTokens, RenderedChat};
use crate::engine::files::{self, MAX_CONFIG_BYTES};

use super::{
    RunDate, TextError, Tokenizer, content_parts, dialect, filters, python, python_methods,
};
use budget::Budget;
use program::Program;

/// Instructions a render may take: a conversation of ten thousand messages takes about a million.
const FUEL: u64 = 5_000_000;
/// Nesting of blocks and macro calls (a macro counts four).
const RECURSION_LIMIT: usize = 200;
/// Longest rendered text, in bytes.
const MAX_OUTPUT: usize = 16 << 20;
/// The template of a model; of several, the one for conversations without tools.
const DEFAULT: &str = "default";
/// The one for conversations with tools, where a model has both.
const TOOL_USE: &str = "tool_use";

/// What a template sees besides the messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Ends the prompt with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// JSON array of tool schemas.
    pub tools: Option<Value>,
    /// JSON array of documents.
    pub documents: Option<Value>,
    /// Further variables (`enable_thinking`, ...), vLLM's `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` formats.
    pub now: RunDate,
}

impl Default for ChatOptions {
    /// As vLLM's `LLM.chat`.
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: None,
            documents: None,
            kwargs: Map::new(),
            now: RunDate::default(),
        }
    }
}

/// A compiled chat template. Rendering shares nothing between threads.
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Program,
    tool_use: Option<Program>,
    source: String,
    /// `bos_token`, `eos_token`, ... as variables.
    special_tokens: BTreeMap<String, String>,
    control_tokens: OnceLock<ControlTokens>,
    takes_content_parts: OnceLock<bool>,
}

impl ChatTemplate {
    /// The template of a model folder: chat_template.jinja, else the key in tokenizer_config.json,
    /// else chat_template.json, which transformers reads for processors; None if it has none.
    ///
    /// # Errors
    /// A file is corrupt, or the template does not compile.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        for name in ["chat_template.jinja", "tokenizer_config.json", "chat_template.json"] {
            let path = dir.join(name);
            let Some(text) = read(&path)? else { continue };
            let sources = if name.ends_with(".jinja") {
                let tool_use = read(&dir.join("additional_chat_templates/tool_use.jinja"))?;
                let tool_use = tool_use.map(|source| (TOOL_USE, source));
                [(DEFAULT, text)].into_iter().chain(tool_use).collect()
            } else {
                let json: Value =
                    serde_json::from_str(&text).map_err(|error| TextError::file(&path, error))?;
                named_templates(&json["chat_template"])
            };
            if !sources.is_empty() {
                let tokens = tokenizer.special_tokens().clone();
                return Self::compile(sources, tokens)
                    .map(Some)
                    .map_err(|error| TextError::file(&path, error));
            }
        }
        Ok(None)
    }

    /// Compiles a template (`--chat-template`).
    ///
    /// # Errors
    /// It does not compile.
    pub fn new(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self, TextError> {
        let tokens = [("bos_token", bos_token), ("eos_token", eos_token)];
        let tokens = tokens.into_iter().filter_map(|(k, v)| Some((k.to_string(), v?.to_string())));
        Self::compile(vec![(DEFAULT, source.to_string())], tokens.collect())
            .map_err(|error| TextError::Model(format!("chat template: {error}")))
    }

    /// Whether it may write the date.
    pub fn shows_date(&self) -> bool {
        self.source.contains("strftime_now")
    }

    fn compile(
        sources: Vec<(&'static str, String)>,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let mut programs = BTreeMap::new();
        let mut all = String::new();
        for (name, source) in sources {
            let syntax = syntax().map_err(|error| describe(&error))?;
            let program = Program::compile(dialect::translate(&source)?, syntax);
            programs.insert(name, program.map_err(|error| describe(&error))?);
            all.push_str(&source);
        }
        let Some(default) = programs.remove(DEFAULT) else {
            return Err("several chat templates, and none is called `default`".to_string());
        };
        Ok(Self {
            environment: environment(),
            default,
            tool_use: programs.remove(TOOL_USE),
            source: all,
            special_tokens,
            control_tokens: OnceLock::new(),
            takes_content_parts: OnceLock::new(),
        })
    }

    /// Renders a JSON array of messages.
    ///
    /// # Errors
    /// The template rejects the messages (its text is in the error), or takes too long or writes
    /// too
    /// much.
    pub fn render(&self, messages: &Value, options: &ChatOptions) -> Result<String, TextError> {
        let context = self.context(messages, options)?;
        let tool_use = options.tools.as_ref().and(self.tool_use.as_ref());
        let program = tool_use.unwrap_or(&self.default);
        let text = program.render(&self.environment, context);
        let text = text.map_err(|error| TextError::template(describe(&error)))?;
        match text.len() > MAX_OUTPUT {
            true => Err(TextError::template("the chat template writes more than 16 MiB")),
            false => Ok(text),
        }
    }

    /// Renders messages for `Tokenizer::encode_chat`. Control tokens in what users wrote are text,
    /// unless `allow_special`. A template belongs to one tokenizer.
    ///
    /// # Errors
    /// As `render`.
    pub fn render_messages(
        &self,
        tokenizer: &Tokenizer,
        messages: &Value,
        options: &ChatOptions,
        allow_special: bool,
    ) -> Result<RenderedChat, TextError> {
        let joined;
        let messages = match content_parts::occur_in(messages) && !self.takes_content_parts() {
            true => {
                joined = content_parts::joined(messages)?;
                &joined
            }
            false => messages,
        };
        let control =
            self.control_tokens.get_or_init(|| ControlTokens::new(tokenizer, &self.source));
        let values =
            || options.tools.iter().chain(&options.documents).chain(options.kwargs.values());
        let typed = control.occur_in_value(messages) || values().any(|v| control.occur_in_value(v));
        if allow_special || !typed {
            return Ok(RenderedChat::new(self.render(messages, options)?, false));
        }
        let mark = |value: &Option<Value>| value.as_ref().map(|value| control.mark(value));
        let marked = ChatOptions {
            tools: mark(&options.tools),
            documents: mark(&options.documents),
            kwargs: options.kwargs.iter().map(|(k, v)| (k.clone(), control.mark(v))).collect(),
            ..*options
        };
        Ok(RenderedChat::new(self.render(&control.mark(messages), &marked)?, true))
    }

    fn takes_content_parts(&self) -> bool {
        *self.takes_content_parts.get_or_init(|| content_parts::are_taken_by(self))
    }

    /// The variables of a render. transformers passes `tools` and `documents` even when they are
    /// None.
    fn context(&self, messages: &Value, options: &ChatOptions) -> Result<Jinja, TextError> {
        let Some(messages) = messages.as_array() else {
            return Err(TextError::template("messages is not a JSON array"));
        };
        if messages.is_empty() {
            return Err(TextError::template("messages is empty: a conversation needs a message"));
        }
        if let Some(message) = messages.iter().find(|message| !message.is_object()) {
            let message =
                format!("a message is a JSON object with role and content, not {message}");
            return Err(TextError::template(message));
        }
        let mut context: BTreeMap<&str, Jinja> = BTreeMap::new();
        for (name, token) in &self.special_tokens {
            context.insert(name, Jinja::from(token.as_str()));
        }
        let optional = |value: &Option<Value>| Jinja::from(Serde(value));
        context.insert("tools", optional(&options.tools));
        context.insert("documents", optional(&options.documents));
        context.insert("add_generation_prompt", Jinja::from(options.add_generation_prompt));
        for (name, value) in &options.kwargs {
            context.insert(name, Jinja::from(Serde(value)));
        }
        let messages: Vec<Jinja> = messages.iter().map(message_variable).collect();
        context.insert("messages", Jinja::from(messages));
        let now = options.now;
        let strftime_now = Jinja::from_function(move |format: &str| now.strftime(format));
        context.insert("strftime_now", strftime_now);
        context.insert(budget::BUDGET, Jinja::from_object(Budget::default()));
        Ok(Jinja::from(context))
    }
}

/// A file's text; None if there is no such file.
fn read(path: &Path) -> Result<Option<String>, TextError> {
    match files::read_text(path, MAX_CONFIG_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::file(path, error)),
    }
}

/// A template, or a list of named ones; others than these two are never chosen by themselves.
fn named_templates(value: &Value) -> Vec<(&'static str, String)> {
    if let Some(source) = value.as_str() {
        return vec![(DEFAULT, source.to_string())];
    }
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    let named = |name: &'static str| {
        let in_list = list.iter().find(|template| template["name"] == name);
        let source = in_list.map_or(&value[name], |template| &template["template"]);
        Some((name, source.as_str()?.to_string()))
    };
    [DEFAULT, TOOL_USE].into_iter().filter_map(named).collect()
}

/// A message as transformers passes it on: keys whose value is null are left out, and reasoning,
/// which
/// goes by three names, is given as `reasoning_content` and `thinking`.
fn message_variable(message: &Value) -> Jinja {
    let mut fields = Map::new();
    let given = message.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let names = ["reasoning_content", "thinking", "reasoning"];
    let reasoning = names.iter().filter_map(|name| message.get(*name)).find(|text| !text.is_null());
    if let Some(reasoning) = reasoning {
        fields.insert("thinking".to_string(), reasoning.clone());
    }
    fields.extend(given.map(|(key, value)| (key.clone(), value.clone())));
    if let Some(reasoning) = reasoning {
        fields.insert("reasoning_content".to_string(), reasoning.clone());
    }
    Jinja::from(Serde(fields))
}

/// transformers' whitespace rules.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// transformers' sandbox: its filters and globals, no loader, and limits.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Errors would hold the values of variables, and take them out of the thread with their stack.
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python_methods::unknown_method);
    environment.set_formatter(print);
    filters::add_to(&mut environment);
    budget::add_to(&mut environment);
    environment
}

/// `{{ value }}` as Python's `str(value)`.
fn print(output: &mut Output, state: &mut State, value: &Jinja) -> Result<(), Error> {
    let printed = match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => return Ok(()),
        (_, Some(text)) => {
            budget::charge_written(state, text.len())?;
            output.write_str(text)
        }
        _ => {
            let text = python::to_str(value)?;
            budget::charge_written(state, text.len())?;
            output.write_str(&text)
        }
    };
    printed.map_err(|_| Error::new(ErrorKind::WriteFailure, "the output is full"))
}

/// An error with its causes and the line of the template.
fn describe(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => {
            "the chat template takes too many steps (endless loop?)".to_string()
        }
        _ => error.detail().map_or_else(|| error.kind().to_string(), str::to_string),
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line} of the template)"));
    }
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
