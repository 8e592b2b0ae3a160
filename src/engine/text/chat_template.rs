//! `ChatTemplate`: messages to prompt text, byte for byte as transformers' `apply_chat_template`.
//!
//! Templates come with models and are not trusted: steps, nesting, output and the memory of values
//! are limited, nothing can be included.

pub(super) mod budget;
mod chains;
mod content_loops;
pub(super) mod counted;
mod program;
pub(super) mod sequences;
mod weight;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value as Jinja};
use serde_json::{Map, Value};

use super::content_parts::ContentFormat;
use super::control_tokens::{ControlTokens, RenderedChat};
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES};
use vllm_batch_base::machine::has_room_for_stack;

use super::python::arguments::{self, bind};
use super::{TextError, Tokenizer, TypedTokens, content_parts, filters, integers, python};
use budget::Budget;
use vllm_batch_base::run_date::RunDate;
use worker::{NoWorker, STACK_BYTES, Sources, Worker};

/// Instructions a render may take: a conversation of ten thousand messages takes about a million.
const FUEL: u64 = 5_000_000;
/// Nesting of blocks and macro calls (a macro counts four).
const RECURSION_LIMIT: usize = 100;
/// Longest rendered text, in bytes.
const MAX_OUTPUT: usize = 16 << 20;
/// Longest format of a date, in bytes.
const MAX_DATE: usize = 4096;
/// The template of a model; of several, the one for conversations without tools.
const DEFAULT: &str = "default";
/// The one for conversations with tools, where a model has both.
const TOOL_USE: &str = "tool_use";

/// Templates by their names.
type NamedSources = Vec<(&'static str, String)>;

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
    /// Whether content parts `{"type": "image"}` and `{"type": "audio"}` stand for media.
    pub has_media: bool,
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
            has_media: false,
            now: RunDate::default(),
        }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    sources: Sources,
    /// None: the machine refused a thread, and no row has asked for it since.
    worker: Mutex<Option<Worker>>,
    /// Of the worker.
    stack_bytes: usize,
    /// `bos_token`, `eos_token`, ... as variables.
    special_tokens: BTreeMap<String, String>,
    control_tokens: OnceLock<ControlTokens>,
    /// Of the template for chats without tools and of that with them.
    content_formats: [OnceLock<ContentFormat>; 2],
}

impl ChatTemplate {
    /// The template of a model folder: chat_template.jinja, else the key in tokenizer_config.json,
    /// else chat_template.json, which transformers reads for processors; None if it has none.
    ///
    /// # Errors
    /// A file is corrupt, or the template does not compile.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        let Some((path, sources)) = sources_in(dir)? else { return Ok(None) };
        let tokens = tokenizer.special_tokens().clone();
        let template = Self::compile(sources, tokens, STACK_BYTES);
        template.map(Some).map_err(|error| TextError::file(&path, error))
    }

    /// Whether a model's folder has one.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn is_in(dir: &Path) -> Result<bool, TextError> {
        sources_in(dir).map(|found| found.is_some())
    }

    /// The templates of a GGUF file, the one for conversations with tools if it has one; `path` is
    /// for messages.
    ///
    /// # Errors
    /// One does not compile.
    pub fn from_gguf(
        default: &str,
        tool_use: Option<&str>,
        tokenizer: &Tokenizer,
        path: &Path,
    ) -> Result<Self, TextError> {
        let tool_use = tool_use.map(|source| (TOOL_USE, source.to_owned()));
        let sources = [(DEFAULT, default.to_owned())].into_iter().chain(tool_use).collect();
        Self::compile(sources, tokenizer.special_tokens().clone(), STACK_BYTES)
            .map_err(|error| TextError::file(path, format!("its chat template: {error}")))
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
        let sources = vec![(DEFAULT, source.to_string())];
        Self::compile(sources, tokens.collect(), STACK_BYTES)
            .map_err(|error| TextError::Model(format!("chat template: {error}")))
    }

    /// Whether a name occurs in it: a variable that it reads, a role that it knows.
    pub fn mentions(&self, name: &str) -> bool {
        let mut sources = self.sources.tool_use.iter().chain([&self.sources.default]);
        sources.any(|source| source.contains(name))
    }

    /// The text; of two, of the one for chats with tools, which says how calls are written.
    pub fn source(&self) -> &str {
        self.sources.tool_use.as_deref().unwrap_or(&self.sources.default)
    }

    /// Whether it may write the date.
    pub fn shows_date(&self) -> bool {
        self.mentions("strftime_now")
    }

    fn compile(
        sources: NamedSources,
        special_tokens: BTreeMap<String, String>,
        stack_bytes: usize,
    ) -> Result<Self, String> {
        let mut sources: BTreeMap<_, _> = sources.into_iter().collect();
        let Some(default) = sources.remove(DEFAULT) else {
            return Err("several chat templates, and none is called `default`".to_string());
        };
        let sources = Sources { default, tool_use: sources.remove(TOOL_USE) };
        let start = || match has_room_for_stack(stack_bytes) {
            true => Worker::start(sources.clone(), stack_bytes),
            false => Err(NoWorker::Refused(io::ErrorKind::OutOfMemory.into())),
        };
        let worker = match start() {
            Ok(worker) => Some(worker),
            // Rows may need no template.
            Err(NoWorker::Refused(_)) => None,
            Err(NoWorker::Template(error)) => return Err(error),
        };
        Ok(Self {
            sources,
            worker: Mutex::new(worker),
            stack_bytes,
            special_tokens,
            control_tokens: OnceLock::new(),
            content_formats: Default::default(),
        })
    }

    /// The worker, made now if there was no thread for it before. Rows are rendered one by one.
    fn worker(&self) -> Result<MutexGuard<'_, Option<Worker>>, TextError> {
        // Whoever panicked with it in hand left it as it was.
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let started = Worker::start(self.sources.clone(), self.stack_bytes);
            *worker = Some(started.map_err(|error| match error {
                NoWorker::Refused(error) => TextError::Machine(format!(
                    "there is no thread for the chat template: {error}; raise the limit of \
                     threads or of memory (ulimit -u, ulimit -v)"
                )),
                NoWorker::Template(error) => TextError::Model(format!("chat template: {error}")),
            })?);
        }
        Ok(worker)
    }

    /// Renders a JSON array of messages.
    ///
    /// # Errors
    /// The template rejects the messages (its text is in the error), or takes too long or writes
    /// too much; or the machine has no thread for it.
    pub fn render(&self, messages: &Value, options: &ChatOptions) -> Result<String, TextError> {
        let context = self.context(messages, options)?;
        let worker = self.worker()?;
        let worker = worker.as_ref().expect("made above");
        let text = worker.render(options.tools.is_some(), context).map_err(TextError::template)?;
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
        typed: TypedTokens<'_>,
    ) -> Result<RenderedChat, TextError> {
        // Before anything is learned of the template: a probe that finds no thread learns nothing.
        drop(self.worker()?);
        let with_tools = options.tools.is_some();
        let messages = content_parts::prepared(messages, options.has_media, || {
            self.content_format(with_tools)
        })?;
        let messages = &*messages;
        let only;
        let control = match typed {
            TypedTokens::Control => {
                return Ok(RenderedChat::new(self.render(messages, options)?, false));
            }
            TypedTokens::ControlBut(tokens) => {
                only = ControlTokens::only(tokens);
                &only
            }
            TypedTokens::Text => self.control_tokens.get_or_init(|| {
                let Sources { default, tool_use } = &self.sources;
                let sources = [default, tool_use.as_deref().unwrap_or("")].concat();
                ControlTokens::new(tokenizer, &sources)
            }),
        };
        let values =
            || options.tools.iter().chain(&options.documents).chain(options.kwargs.values());
        let occur = control.occur_in_value(messages) || values().any(|v| control.occur_in_value(v));
        if !occur {
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

    fn content_format(&self, with_tools: bool) -> ContentFormat {
        let format = &self.content_formats[usize::from(with_tools)];
        *format.get_or_init(|| content_parts::format_of(self, with_tools))
    }

    /// Whether it loops over the content of messages, by vLLM's rule.
    pub(super) fn loops_over_content(&self, with_tools: bool) -> bool {
        let worker = self.worker();
        worker.is_ok_and(|worker| {
            worker.as_ref().is_some_and(|worker| worker.loops_over_content(with_tools))
        })
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
        let optional = |value: &Option<Value>| value.as_ref().map_or(Jinja::from(()), variable);
        context.insert("tools", optional(&options.tools));
        context.insert("documents", optional(&options.documents));
        context.insert("add_generation_prompt", Jinja::from(options.add_generation_prompt));
        for (name, value) in &options.kwargs {
            context.insert(name, variable(value));
        }
        let messages = messages.iter().map(message_variable).collect();
        context.insert("messages", weight::given(messages));
        let now = options.now;
        let strftime_now = Jinja::from_function(move |args: Rest<ValueOrKwargs>| {
            let [format] = bind("strftime_now", &args.into_values(), 1, ["format"])?;
            let format = format.unwrap_or_default();
            match arguments::text(&format)? {
                format if format.len() > MAX_DATE => {
                    Err(budget::too_much("the chat template writes too long a date"))
                }
                format => Ok(now.strftime(format)),
            }
        });
        context.insert("strftime_now", strftime_now);
        Ok(Jinja::from(context))
    }
}

/// A file's text; None if there is no such file.
fn read(path: &Path) -> Result<Option<String>, TextError> {
    match files::read_text(path, MAX_CONFIG_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::io(path, &error)),
    }
}

/// The templates of a model's folder, by their names, and the file that has them.
fn sources_in(dir: &Path) -> Result<Option<(PathBuf, NamedSources)>, TextError> {
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
            return Ok(Some((path, sources)));
        }
    }
    Ok(None)
}

/// A template, or a list of named ones; others than these two are never chosen by themselves.
fn named_templates(value: &Value) -> NamedSources {
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
    variable(&Value::Object(fields))
}

/// JSON as a template sees it.
fn variable(value: &Value) -> Jinja {
    match value {
        Value::Array(items) => weight::given(items.iter().map(variable).collect()),
        Value::Object(fields) => {
            Jinja::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), variable(value))))
        }
        Value::String(text) if integers::is_large(text) => integers::value(text),
        scalar => Jinja::from(Serde(scalar)),
    }
}

/// transformers' whitespace rules.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// transformers' sandbox: its filters and globals, no loader, and limits.
fn environment(budget: &Arc<Budget>) -> Environment<'static> {
    let mut environment = Environment::new();
    // Errors would hold the values of variables, and take them out of the thread with their stack.
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    let counts = Arc::clone(budget);
    environment.set_unknown_method_callback(move |state, value, method, args| {
        counted::called(&counts, state, value, method, args)
    });
    let counts = Arc::clone(budget);
    environment.set_formatter(move |output, state, value| print(&counts, output, state, value));
    // It writes all variables, and jinja2 has no such function.
    environment.remove_global("debug");
    filters::add_to(&mut environment, budget);
    counted::add_to(&mut environment, budget);
    environment
}

/// `{{ value }}` as Python's `str(value)`.
fn print(
    budget: &Budget,
    output: &mut Output,
    state: &State<'_, '_>,
    value: &Jinja,
) -> Result<(), Error> {
    if value.is_undefined() {
        return Ok(());
    }
    let escapes = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
    let written = match value.as_str() {
        Some(text) if !escapes => {
            budget.charge_written(text.len())?;
            output.write_str(text)
        }
        _ => {
            budget.charge_all(value)?;
            let text = python::arguments::soft(value)?;
            let text = if escapes { python::html::escape(&text) } else { text };
            budget.charge_written(text.len())?;
            output.write_str(&text)
        }
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the output is full"))
}

/// Longest message of an error, in bytes: a template may raise any text.
const MAX_MESSAGE: usize = 2000;

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
    if text.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests;
