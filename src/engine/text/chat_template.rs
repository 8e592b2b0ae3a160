//! `ChatTemplate`: messages to prompt text, byte for byte as transformers' `apply_chat_template`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Jinja};
use serde_json::{Map, Value};

use super::control_tokens::{ControlTokens, RenderedChat};
use super::{RunDate, TextError, Tokenizer, dialect, python, python_methods};

/// Instructions a render may take: a conversation of ten thousand messages takes about a million.
const FUEL: u64 = 5_000_000;
/// Nesting of blocks and macro calls (a macro counts four).
const RECURSION_LIMIT: usize = 200;
/// Longest rendered text, in bytes.
const MAX_OUTPUT: usize = 16 << 20;
/// The only template of the environment.
const NAME: &str = "chat_template";

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
    source: String,
    /// `bos_token`, `eos_token`, ... as variables.
    special_tokens: BTreeMap<String, String>,
    control_tokens: OnceLock<ControlTokens>,
}

impl ChatTemplate {
    /// The template of a model folder: chat_template.jinja, else chat_template.json, else
    /// tokenizer_config.json; None if it has none.
    ///
    /// # Errors
    /// A file is corrupt, or the template does not compile.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        for name in ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"] {
            let path = dir.join(name);
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(TextError::file(&path, error)),
            };
            let source = if name.ends_with(".jinja") {
                Some(text)
            } else {
                let json: Value =
                    serde_json::from_str(&text).map_err(|error| TextError::file(&path, error))?;
                default_template(&json["chat_template"])
            };
            if let Some(source) = source {
                let tokens = tokenizer.special_tokens().clone();
                return Self::compile(source, tokens)
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
        Self::compile(source.to_string(), tokens.collect())
            .map_err(|error| TextError::Model(format!("chat template: {error}")))
    }

    fn compile(source: String, special_tokens: BTreeMap<String, String>) -> Result<Self, String> {
        let mut environment = environment().map_err(|error| describe(&error))?;
        environment
            .add_template_owned(NAME, dialect::translate(&source))
            .map_err(|error| describe(&error))?;
        Ok(Self { environment, source, special_tokens, control_tokens: OnceLock::new() })
    }

    /// Renders a JSON array of messages.
    ///
    /// # Errors
    /// The template rejects the messages (its text is in the error), or takes too long or writes too
    /// much.
    pub fn render(&self, messages: &Value, options: &ChatOptions) -> Result<String, TextError> {
        let context = self.context(messages, options)?;
        let mut output = LimitedOutput { bytes: Vec::new() };
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut output).map(|_| ()))
            .map_err(|error| TextError::template(describe(&error)))?;
        String::from_utf8(output.bytes)
            .map_err(|_| TextError::template("the chat template wrote invalid UTF-8"))
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

    /// The variables of a render. transformers passes `tools` and `documents` even when they are None.
    fn context(&self, messages: &Value, options: &ChatOptions) -> Result<Jinja, TextError> {
        let Some(messages) = messages.as_array() else {
            return Err(TextError::template("messages is not a JSON array"));
        };
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
        let messages: Vec<Jinja> = messages.iter().map(with_reasoning_names).collect();
        context.insert("messages", Jinja::from(messages));
        let now = options.now;
        let strftime_now = Jinja::from_function(move |format: &str| now.strftime(format));
        context.insert("strftime_now", strftime_now);
        Ok(Jinja::from(context))
    }
}

/// A template, or the one called `default` of a list of named ones.
fn default_template(value: &Value) -> Option<String> {
    if let Some(source) = value.as_str() {
        return Some(source.to_string());
    }
    let named = |template: &&Value| template["name"] == "default";
    value.as_array()?.iter().find(named)?["template"].as_str().map(str::to_string)
}

/// Reasoning goes by three names; transformers gives templates `reasoning_content` and `thinking`.
fn with_reasoning_names(message: &Value) -> Jinja {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let reasoning = names.iter().filter_map(|name| message.get(*name)).find(|text| !text.is_null());
    let (Some(reasoning), Some(fields)) = (reasoning, message.as_object()) else {
        return Jinja::from(Serde(message));
    };
    let mut aliased = Map::new();
    aliased.insert("thinking".to_string(), reasoning.clone());
    aliased.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
    aliased.insert("reasoning_content".to_string(), reasoning.clone());
    Jinja::from(Serde(aliased))
}

/// transformers' sandbox: its whitespace rules, filters and globals, no loader, and limits.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python_methods::unknown_method);
    environment.set_formatter(print);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("trim", trim);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("items", items);
    environment.add_function("raise_exception", raise_exception);
    // jinja2 also counts strings and mappings as sequences, and None as nothing.
    environment.add_test("sequence", |value: &Jinja| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_test("iterable", |value: &Jinja| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("callable", |value: &Jinja| {
        value.kind() == ValueKind::Plain && value.as_object().is_some()
    });
    Ok(environment)
}

/// `{{ value }}` as Python's `str(value)`.
fn print(output: &mut Output, _state: &mut State, value: &Jinja) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => output.write_str(value.as_str().unwrap_or_default()),
        _ => output.write_str(&python::to_str(value)?),
    }
    .map_err(|_| Error::new(ErrorKind::WriteFailure, "the output is full"))
}

fn raise_exception(message: &Jinja) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
}

fn trim(value: &Jinja, chars: Option<&str>) -> Result<Jinja, Error> {
    let text = value.as_str().map_or_else(|| python::to_str(value), |text| Ok(text.to_string()))?;
    Ok(Jinja::from(python_methods::strip(&text, chars, true, true)))
}

/// An undefined value has length 0.
fn length(value: &Jinja) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let message = format!("object of type {} has no len()", value.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

/// An undefined value has no items.
fn items(value: &Jinja) -> Result<Jinja, Error> {
    if value.is_undefined() {
        return Ok(Jinja::from(Vec::<Jinja>::new()));
    }
    minijinja::filters::items(value)
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

/// Takes what a template writes, up to `MAX_OUTPUT`.
struct LimitedOutput {
    bytes: Vec<u8>,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other("the chat template writes more than 16 MiB"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
