//! What the flags of `embed` mean, once the model is known.

use std::sync::Arc;

use super::RunConfig;
use crate::cli::args::{
    EmbedArgs, EncodingFormatArg, OutputFormatArg, PoolingArgs, PoolingTypeArg,
};
use crate::cli::input::row::Task;
use crate::cli::terminal::error::CliError;
use crate::engine::pooling::{EncodingFormat, PoolingParams, PoolingSummary, PoolingType};

/// Name of the field with the vector.
const FIELD: &str = "embedding";

/// How vectors are made and shown.
#[derive(Clone, Debug)]
pub struct EmbedConfig {
    flags: PoolingArgs,
}

impl RunConfig {
    /// The same of the flags of `embed`.
    ///
    /// # Errors
    /// As `new`.
    pub fn embedding(args: EmbedArgs) -> Result<Self, CliError> {
        let (mut args, flags) = args.into_run();
        args.output.out_field.get_or_insert_with(|| FIELD.to_owned());
        if args.output.output_format == Some(OutputFormatArg::Full) {
            let message = "--output-format full: a vector has no other outputs and no token ids";
            return Err(CliError::refused("output", message));
        }
        for (flag, parser) in [
            ("--reasoning-parser", &args.output.reasoning_parser),
            ("--tool-call-parser", &args.output.tool_call_parser),
        ] {
            if parser.is_some() {
                let message = format!("{flag}: a vector has no thinking and no calls");
                return Err(CliError::refused("output", message));
            }
        }
        let mut config = Self::new(args)?;
        config.input.rows.task = Task::Embed;
        config.engine.model.pooling_type = flags.pooling_type.map(|name| match name {
            PoolingTypeArg::Cls => PoolingType::Cls,
            PoolingTypeArg::Mean => PoolingType::Mean,
            PoolingTypeArg::Last => PoolingType::Last,
        });
        config.embed = Some(EmbedConfig { flags });
        Ok(config)
    }
}

impl EmbedConfig {
    /// How the vectors of rows without own parameters are made, of this model.
    ///
    /// # Errors
    /// A flag asks for what the model has not.
    pub fn params(&self, summary: &PoolingSummary) -> Result<PoolingParams, CliError> {
        let flags = &self.flags;
        if flags.truncate_prompt_tokens == Some(0) {
            let message = "--truncate-prompt-tokens must be -1 or at least 1, got 0";
            return Err(CliError::refused("invalid_parameter", message));
        }
        let params = PoolingParams {
            dimensions: flags.dimensions,
            normalize: flags.normalizes(),
            truncate_prompt_tokens: flags.truncate_prompt_tokens,
            prompt: self.prompt(summary)?,
            encoding_format: match flags.encoding_format {
                Some(EncodingFormatArg::Base64) => EncodingFormat::Base64,
                Some(EncodingFormatArg::Float) | None => EncodingFormat::Float,
            },
            ..PoolingParams::default()
        };
        let checked = summary.check_dimensions(&params);
        checked.map_err(|error| CliError::refused(error.code, format!("--{}", error.message)))?;
        Ok(params)
    }

    /// What stands before every text.
    fn prompt(&self, summary: &PoolingSummary) -> Result<Option<Arc<str>>, CliError> {
        let prompts = &summary.prompts;
        let name = self.flags.prompt_name.as_ref().or(prompts.default.as_ref());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
        let refused = |message: String| CliError::refused("prompt_name", message);
        let Some(prompt) = prompts.by_name.get(name) else {
            let known: Vec<_> = prompts.by_name.keys().map(String::as_str).collect();
            let known = match known.is_empty() {
                true => "it has none".to_owned(),
                false => format!("it has {}", known.join(", ")),
            };
            return Err(refused(format!("--prompt-name {name}: the model has no such prompt"))
                .help(format!("config_sentence_transformers.json names them; {known}")));
        };
        if !prompt.is_empty() && !summary.pooling.include_prompt {
            let message = "a pooling that leaves the prompt's tokens out is not supported";
            return Err(refused(message.to_owned()).help("give --prompt-name ''"));
        }
        Ok(Some(prompt.as_str().into()).filter(|prompt: &Arc<str>| !prompt.is_empty()))
    }

    /// How vectors are made, in one line.
    pub fn line(params: &PoolingParams, summary: &PoolingSummary) -> String {
        let pooling = &summary.pooling;
        let normalized = match params.normalize.unwrap_or(pooling.normalize) {
            true => "normalized",
            false => "not normalized",
        };
        let size = params.dimensions.unwrap_or(summary.spec.hidden_size());
        let prompt = match &params.prompt {
            Some(prompt) => format!(", with {prompt:?} before every text"),
            None => String::new(),
        };
        format!("Vectors: {size} values, {:?} pooling, {normalized}{prompt}", pooling.pooling_type)
    }
}
