//! What is refused and said once the model is loaded, before the first row is asked: flags that
//! this model cannot honour, and what the others come to.

use std::sync::Arc;

use super::row_params::RowParams;
use crate::config::{PoolingConfig, RunConfig};
use crate::model::resolved;
use vllm_batch_api::compared::Scoring;
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::request::{Constraint, SamplingParams};
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_text::json_schema::Validator;

/// Refuses flags that would make an error row of every row that they are for.
///
/// # Errors
/// There is one.
pub fn check(
    config: &RunConfig,
    base: &RowParams,
    processor: &InputProcessor,
) -> Result<(), CliError> {
    if let Some(params) = base.sampling() {
        processor.check_guidance(params).map_err(|error| {
            // Its first word is the parameter's name.
            let end = error.message.find([':', '.', ' ']).unwrap_or(error.message.len());
            let (name, rest) = error.message.split_at(end);
            if name == "structured_outputs" {
                let place = &config.structured_outputs_place;
                return refused_outputs(params, error.code, place, rest);
            }
            let flag = name.replace('_', "-");
            CliError::refused(error.code, format!("--{flag}{rest}"))
        })?;
    }
    let chats = &config.input.rows.chats;
    if let Some(text) = &chats.system_prompt
        && let Some(what) = processor.refuses_system(text, &chats.template_kwargs)
    {
        let message = format!("--system-prompt: {what}");
        return Err(CliError::refused("chat_template", message)
            .help("leave the flag out, and put its text into the rows"));
    }
    Ok(())
}

/// What is refused of the file or flag that answers must match; and where, if the schema says it.
fn refused_outputs(
    params: &SamplingParams,
    code: &'static str,
    place: &str,
    what: &str,
) -> CliError {
    let constraint = params.structured_outputs.as_ref().map(|outputs| &outputs.constraint);
    let found = match constraint {
        Some(Constraint::Json(schema)) => Validator::new(schema, &Arc::default()).err(),
        _ => None,
    };
    // The compiler of masks says what is wrong, the validator where.
    let path = found.as_deref().and_then(|text| text.rsplit_once(" at /")).map(|found| found.1);
    let path = path.filter(|_| !what.contains(" at /")).map(|path| format!(" at /{path}"));
    CliError::refused(code, format!("{place}{what}{}", path.unwrap_or_default()))
}

/// Says what rows are asked with.
///
/// # Errors
/// A chat template would leave out both texts of a pair.
pub fn say(
    config: &RunConfig,
    shape: &Shape,
    base: &RowParams,
    processor: &InputProcessor,
    console: &Console,
) -> Result<(), CliError> {
    match base {
        RowParams::Sampling(_) => {
            let defaults = processor.default_sampling_params();
            let rows = config.start_of_rows(&defaults, shape);
            console.detail(&resolved::sampling_line(&config.sampling, &defaults, &rows));
            Ok(())
        }
        RowParams::Pooling(params, summary) => {
            console.detail(&PoolingConfig::line(params, summary));
            if let Some(warning) = PoolingConfig::warning(summary) {
                console.warn(&warning);
            }
            check_scoring(config, params, processor, console)
        }
    }
}

/// What of a pair a model's prompt shows.
fn check_scoring(
    config: &RunConfig,
    params: &PoolingParams,
    processor: &InputProcessor,
    console: &Console,
) -> Result<(), CliError> {
    let is_own = config.engine.model.chat_template.is_none();
    match params.scoring {
        Scoring::Joined => console.note(
            "The model reads the second text right behind the first; --chat-template FILE gives \
             the words that it was trained with",
        ),
        Scoring::Template if is_own && !processor.template_mentions("document") => {
            let message = "the model's own chat template knows no turn of role `document`";
            return Err(CliError::refused("chat_template", message)
                .help("give the one that it was trained with: --chat-template FILE"));
        }
        Scoring::Template | Scoring::Vectors(_) | Scoring::Pair => {}
    }
    Ok(())
}
