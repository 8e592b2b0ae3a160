//! `InputConfig`: which files rows come from, how records become prompts, and which of the rows are
//! this run's.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::args::{BadRowArg, ImageArgs, InputArgs, ResumeMediaArg};
use vllm_batch_dataset::input::batch_line::BatchLines;
use vllm_batch_dataset::input::media::{MediaOptions, UrlOptions};
use vllm_batch_dataset::input::pictures::refuse_uncut;
use vllm_batch_dataset::input::row::{
    ChatDefaults, ChatMode, Likelihoods, ModelNames, RowOptions, Task, check_kwargs,
};
use vllm_batch_dataset::input::sample::{Chosen, SampledInput};
use vllm_batch_dataset::input::shard::{Shard, ShardArg};
use vllm_batch_dataset::input::sources::{PROMPT_FIELD, Sources};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_text::json_with_integers;

/// Where rows come from.
#[derive(Clone, Debug)]
pub struct InputConfig {
    /// The files, in their order.
    pub sources: Arc<Sources>,
    /// As messages name them together.
    pub name: String,
    /// How rows become prompts.
    pub rows: RowOptions,
    /// Rows to complete.
    pub limit: Option<u64>,
    /// A random part of them.
    pub sample: Option<Arc<SampledInput>>,
    /// Which of them are this process's.
    pub shard: Shard,
    /// A bad row ends the run.
    pub fail_on_bad_row: bool,
    /// Images at URLs of finished rows are those that the journal has.
    pub trusts_media: bool,
    /// Its lines were looked at by whoever took them: no two requests have one name.
    pub is_checked: bool,
}

impl InputConfig {
    /// Whether the only row is one that was typed.
    pub fn is_prompt(&self) -> bool {
        self.sources.list()[0].text.is_some()
    }

    /// The rows of the sample, if there is one.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn chosen(&self) -> Result<Option<Arc<Chosen>>, CliError> {
        let names = || self.rows.header_names();
        self.sample.as_ref().map(|sample| sample.chosen(&names())).transpose()
    }
}

/// What the flags say of rows; the rest of `RowOptions` is for whoever knows the task.
pub(super) fn input_config(
    args: InputArgs,
    stdin_is_terminal: bool,
) -> Result<InputConfig, CliError> {
    let chat = match args.chat() {
        None => ChatMode::Auto,
        Some(true) => ChatMode::Always,
        Some(false) => ChatMode::Never,
    };
    if args.input.is_empty() && args.prompt.is_none() && stdin_is_terminal {
        return Err(CliError::refused("no_input", "no --input, and standard input is a terminal")
            .help("give --input FILE, pipe rows in, or type them after --input -"));
    }
    let parts = args.images.parts();
    let sources = match &args.prompt {
        Some(prompt) => {
            refuse_uncut(&parts)?;
            Sources::of_prompt(prompt)
        }
        None => Sources::new(&args.input, |path| args.layout.resolve(path), &parts)?,
    };
    let sources = Arc::new(sources);
    args.layout.check(&sources.layouts())?;
    let limit = args.limit.map(|limit| limit as u64);
    let sample = args
        .sample
        .sample()
        .map(|sample| SampledInput::new(sample, limit, Arc::clone(&sources)).map(Arc::new));
    let sample = sample.transpose()?;
    Ok(InputConfig {
        name: sources.name(),
        sources: Arc::clone(&sources),
        rows: RowOptions {
            task: Task::Complete,
            lines_decide: false,
            likelihoods: Likelihoods::None,
            chat,
            template: args.template,
            // No row has another shape than the one that is typed.
            prompt_column: args.prompt.map(|_| PROMPT_FIELD.to_owned()).or(args.prompt_column),
            expected_column: None,
            lines: BatchLines::Own,
            fills_template: false,
            names: ModelNames::default(),
            own_params: args.row_params.unwrap_or_default(),
            allows_empty: args.chats.allow_empty_prompts,
            image_column: args.images.image_column.clone(),
            audio_column: args.images.audio_column.clone(),
            name_files: sources.name_files(),
            media: media_options(&args.images)?,
            has_priorities: false,
            are_streamed: !sources.are_seekable(),
            chats: ChatDefaults {
                system_prompt: args.chats.system_prompt.filter(|text| !text.is_empty()),
                last_assistant: args.chats.last_assistant.unwrap_or_default().into(),
                template_kwargs: template_kwargs(args.chats.chat_template_kwargs.as_deref())?,
            },
        },
        limit,
        sample,
        shard: args.shard.map_or(Ok(Shard::default()), ShardArg::resolve)?,
        fail_on_bad_row: args.on_bad_row == Some(BadRowArg::Fail),
        trusts_media: args.on_resume_media == Some(ResumeMediaArg::Trust),
        is_checked: false,
    })
}

/// Which images of rows may be read.
///
/// # Errors
/// The folder is none.
pub fn media_options(args: &ImageArgs) -> Result<MediaOptions, CliError> {
    let allowed_folder = args.allowed_local_media_path.clone();
    if let Some(folder) = allowed_folder.as_ref().filter(|folder| !folder.is_dir()) {
        let message = format!("--allowed-local-media-path {}: no such folder", folder.display());
        return Err(CliError::refused("flag", message)
            .help("name the folder beneath which rows may name images"));
    }
    let urls =
        args.allow_media_urls.then(|| UrlOptions { domains: args.allowed_media_domains.clone() });
    let most = args.limit_mm_per_prompt.unwrap_or_default();
    let (max_images, max_sounds) = (most.images, most.sounds);
    let drawing = args.pages.options().drawing;
    Ok(MediaOptions { allowed_folder, max_images, max_sounds, urls, drawing })
}

/// `--chat-template-kwargs`.
fn template_kwargs(json: Option<&str>) -> Result<Map<String, Value>, CliError> {
    let Some(json) = json else { return Ok(Map::new()) };
    let kwargs = json_with_integers(json).and_then(serde_json::from_value);
    let kwargs = kwargs.map_err(|error| format!("no JSON object: {error}"));
    let kwargs = kwargs.and_then(|kwargs| check_kwargs(&kwargs).map(|()| kwargs));
    kwargs.map_err(|what| {
        CliError::refused("chat_template_kwargs", format!("--chat-template-kwargs: {what}"))
            .help("give a JSON object, as in '{\"enable_thinking\": false}'")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use vllm_batch_dataset::input::reader::InputFormat;

    #[test]
    fn the_files_name_decides_the_format_unless_a_flag_does() {
        let format = |line: &str| config(line).unwrap().input.sources.list()[0].layout.format;
        assert_eq!(format(""), InputFormat::Csv);
        assert_eq!(format("--format txt"), InputFormat::Txt);
        let standard_input = config("--input -").unwrap().input;
        let source = standard_input.sources.list().last().unwrap();
        assert_eq!((&source.path, source.layout.format), (&None, InputFormat::Auto));
    }

    #[test]
    fn a_shard_is_a_part_of_the_input() {
        assert_eq!(config("").unwrap().input.shard, Shard::default());
        let shard = config("--shard 1/3").unwrap().input.shard;
        assert_eq!(shard, Shard { index: 1, count: 3 });
    }

    #[test]
    fn a_terminal_is_no_input() {
        let error = input_config(InputArgs::default(), true).unwrap_err();
        assert_eq!(error.code, "no_input");
    }
}
