//! `check`: finds every bad row of an input without a model. Rows are read and parsed as `run` does
//! it, or the command of `--task`. What only a model can tell (token ids, lengths) is not looked
//! at.

use std::path::Path;
use std::sync::Arc;

use crate::args::{CheckArgs, DEFAULT_MAX_ERRORS};
use crate::config::{NamedModel, PoolingConfig, media_options, model_names, served_name};
use crate::model;
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::request::SamplingParams;
use vllm_batch_dataset::input::custom_ids::CustomIds;
use vllm_batch_dataset::input::files::{self, Files};
use vllm_batch_dataset::input::media::MediaOptions;
use vllm_batch_dataset::input::row::{
    BadRow, ChatDefaults, ChatMode, ModelNames, Row, RowOptions, Task,
};
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::input::sample::SampledInput;
use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::{CliError, sanitized};
use vllm_batch_dataset::terminal::exit::Exit;

/// Checks the inputs, one after the other.
///
/// # Errors
/// Flags do not go together. What is wrong with rows is shown, and is in the exit code.
pub fn run(mut args: CheckArgs, console: &Console) -> Result<Exit, CliError> {
    refuse_other_prompts(&args)?;
    args.files.append(&mut args.input);
    let names = names(&args)?;
    let media = media_options(&args.images)?;
    model::fetch_inputs(&mut args.files, &args.dataset, console)?;
    let layouts = args.files.iter().map(|path| args.layout.resolve(named(path)));
    args.layout.check(&layouts.collect::<Vec<_>>())?;
    let mut exits = Vec::new();
    for path in &args.files {
        exits.push(Check::new(path, (&args, &names, &media), console).run());
    }
    let worst =
        [Exit::Stopped, Exit::Refused, Exit::NoRows].into_iter().find(|exit| exits.contains(exit));
    Ok(worst.unwrap_or(Exit::Success))
}

/// A file; None: standard input.
fn named(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| *path != Path::new("-"))
}

/// What rows may call adapters, and the model.
fn names(args: &CheckArgs) -> Result<ModelNames, CliError> {
    let model = args.model.as_ref().map(|path| path.to_string_lossy());
    let served = args.served_model_name.clone();
    let served = served.or_else(|| model.as_deref().map(served_name));
    let named = served.as_deref().map(|served_name| NamedModel {
        model: model.as_deref().unwrap_or(served_name),
        served_name,
    });
    model_names(&args.lora, named)
}

/// Refuses flags that the command of the task has not.
fn refuse_other_prompts(args: &CheckArgs) -> Result<(), CliError> {
    let compares = args.task.is_some_and(|task| Task::from(task).compares());
    let typed = [
        ("--template", args.template.is_some()),
        ("--prompt-column", args.prompt_column.is_some()),
        ("--row-params", args.row_params.is_some()),
        ("--chat and --no-chat", args.chat || args.no_chat),
        ("--last-assistant", args.last_assistant.is_some()),
    ];
    match typed.iter().find(|(_, is_typed)| compares && *is_typed) {
        None => Ok(()),
        Some((flag, _)) => Err(PoolingConfig::not_of_scores(flag)),
    }
}

/// The check of one input.
struct Check<'a> {
    args: &'a CheckArgs,
    names: &'a ModelNames,
    media: &'a MediaOptions,
    console: &'a Console,
    path: &'a Path,
    name: String,
    /// What rows start from. A flag or the model may set any length, so none is too short.
    base: SamplingParams,
    ids: CustomIds,
    num_rows: u64,
    num_bad: u64,
    num_errors: u64,
    num_blank: u64,
    /// Rows by what is wrong with them, in the order of appearance.
    by_code: Vec<(&'static str, u64)>,
}

impl<'a> Check<'a> {
    fn new(
        path: &'a Path,
        (args, names, media): (&'a CheckArgs, &'a ModelNames, &'a MediaOptions),
        console: &'a Console,
    ) -> Self {
        Self {
            args,
            names,
            media,
            console,
            path,
            name: path.display().to_string(),
            base: SamplingParams { max_tokens: Some(u32::MAX), ..SamplingParams::default() },
            ids: CustomIds::default(),
            num_rows: 0,
            num_bad: 0,
            num_errors: 0,
            num_blank: 0,
            by_code: Vec::new(),
        }
    }

    fn run(mut self) -> Exit {
        let ended = match self.read() {
            Ok(()) if self.num_rows == 0 => {
                let message = format!("{} has no rows", self.name);
                Err(CliError::new(Exit::NoRows, "no_rows", message))
            }
            read => read.map_err(CliError::or_of_machine),
        };
        if let Err(error) = &ended {
            self.console.error(error);
        }
        if self.console.shows_summary() && self.num_rows > 0 {
            self.console.print(&sanitized(&self.summary()));
        }
        match ended {
            Err(error) => error.exit,
            Ok(()) if self.num_bad > 0 => Exit::Refused,
            Ok(()) => Exit::Success,
        }
    }

    /// Every row, up to the end or to what ends a run.
    fn read(&mut self) -> Result<(), CliError> {
        let path = self.path.to_owned();
        let parts = self.args.images.parts();
        let sources = Sources::new(&[path], |path| self.args.layout.resolve(path), &parts)?;
        let sources = Arc::new(sources);
        let options = RowOptions { name_files: sources.name_files(), ..self.options() };
        let limit = self.args.limit.map(|limit| limit as u64);
        let sample = self.args.sample.sample();
        let sample = sample.map(|sample| SampledInput::new(sample, limit, Arc::clone(&sources)));
        let chosen = sample.transpose()?.map(|sample| sample.chosen(&options.header_names()));
        let first = files::open(&sources, &options)?;
        let files = Files::new(Arc::clone(&sources), first, &options)?;
        let mut files = files.choosing(chosen.transpose()?);
        self.name = sources.name();
        while self.num_rows < limit.unwrap_or(u64::MAX) {
            let record = files.next_record();
            self.num_blank = files.blank_lines();
            self.say_notes(&mut files);
            let Some(record) = record? else { break };
            let row = files.parse(record)?;
            self.num_rows += 1;
            self.say_notes(&mut files);
            self.judge(&row, files.as_parser().task(), &sources);
        }
        for total in files.as_parser().remark_totals() {
            self.console.note(&sanitized(&format!("{}: {total}", self.name)));
        }
        Ok(())
    }

    fn say_notes(&self, files: &mut Files) {
        let found = files.take_notes();
        let note = files.parser().take_note();
        let remarks = files.parser().take_remarks();
        for text in found.iter().chain(&note).chain(&remarks) {
            self.console.note(&sanitized(&format!("{}: {text}", files.name())));
        }
    }

    fn options(&self) -> RowOptions {
        let chat = match (self.args.chat, self.args.no_chat) {
            (true, _) => ChatMode::Always,
            (_, true) => ChatMode::Never,
            _ => ChatMode::Auto,
        };
        let CheckArgs { template, prompt_column, .. } = self.args;
        RowOptions {
            task: self.args.task.map(Task::from).unwrap_or_default(),
            lines_decide: self.args.task.is_none(),
            chat,
            template: template.clone(),
            prompt_column: prompt_column.clone(),
            chats: ChatDefaults {
                last_assistant: self.args.last_assistant.unwrap_or_default().into(),
                ..ChatDefaults::default()
            },
            image_column: self.args.images.image_column.clone(),
            audio_column: self.args.images.audio_column.clone(),
            media: self.media.clone(),
            names: self.names.clone(),
            allows_empty: self.args.allow_empty_prompts,
            own_params: self.args.row_params.clone().unwrap_or_default(),
            ..RowOptions::default()
        }
    }

    /// Says what is wrong with a row. A bad one may have another's id on top.
    fn judge(&mut self, row: &Result<Row, BadRow>, task: Task, sources: &Sources) {
        let error = match row {
            Ok(row) => self.parameters(row, task).err(),
            Err(bad) => Some(bad.error.clone()),
        };
        let duplicate = self.ids.check(row, &|line| sources.said(line));
        self.num_bad += u64::from(error.is_some() || duplicate.is_some());
        for error in [error, duplicate].into_iter().flatten() {
            self.report(&error, sources);
        }
    }

    /// The row's own parameters, against the limits that every model has.
    fn parameters(&self, row: &Row, task: Task) -> Result<(), RowError> {
        let checked = match task {
            Task::Complete => {
                let params = row.overrides.apply(&self.base);
                params.and_then(|params| params.verify(u32::MAX as usize, u32::MAX))
            }
            _ => row.overrides.apply_pooling(&PoolingParams::default()).map(drop),
        };
        checked.map_err(|error| row.overrides.row_error(&error, row.line))
    }

    fn report(&mut self, error: &RowError, sources: &Sources) {
        if self.num_errors < self.max_errors() {
            self.console.error(&sources.row_error(error));
        }
        self.num_errors += 1;
        match self.by_code.iter_mut().find(|(code, _)| *code == error.code) {
            Some((_, count)) => *count += 1,
            None => self.by_code.push((error.code, 1)),
        }
    }

    fn max_errors(&self) -> u64 {
        self.args.max_errors.unwrap_or(DEFAULT_MAX_ERRORS) as u64
    }

    fn summary(&self) -> String {
        let number = |count: u64, one: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {one}s"),
        };
        let by_code = self.by_code.iter().map(|(code, count)| format!("{code} {count}"));
        let bad = match self.num_bad {
            0 => "0 bad".to_owned(),
            bad => format!("{bad} bad ({})", by_code.collect::<Vec<_>>().join(", ")),
        };
        let blank = number(self.num_blank, "blank line");
        let mut text = format!("{}: {}, {bad}, {blank}", self.name, number(self.num_rows, "row"));
        if self.num_errors > self.max_errors() {
            text += &format!(
                "; {} of {} errors shown, --max-errors shows more",
                self.max_errors(),
                self.num_errors
            );
        }
        text
    }
}
