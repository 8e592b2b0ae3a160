//! What the flags of the commands of pooling models mean, once the model is known.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{RunConfig, errors_beside};
use crate::cli::args::{
    EncodingFormatArg, OutputArgs, OutputFormatArg, PoolingFlags, PoolingTypeArg, RunArgs,
    VectorArgs,
};
use crate::cli::input::row::Task;
use crate::cli::terminal::error::CliError;
use crate::engine::pooling::{
    EncodingFormat, PoolingParams, PoolingSummary, PoolingTask, PoolingType,
};

/// What texts become, and how it is shown.
#[derive(Clone, Debug)]
pub struct PoolingConfig {
    /// Which command it is.
    pub task: Task,
    flags: PoolingFlags,
}

impl RunConfig {
    /// The same of the flags of a command of pooling models.
    ///
    /// # Errors
    /// As `new`; or a flag asks for what an answer of this command has not.
    ///
    /// # Panics
    /// The task is that of `run`.
    pub fn pooling(
        task: Task,
        (mut args, flags): (RunArgs, PoolingFlags),
    ) -> Result<Self, CliError> {
        let field = match task {
            Task::Complete => panic!("`run` has a configuration of its own"),
            Task::Embed => "embedding",
            Task::Classify => "label",
            Task::Reward => "score",
        };
        let is_asked = |path: &mut PathBuf| task == Task::Embed && is_matrix(path);
        let matrix = args.output.out.take_if(is_asked);
        if let Some(path) = &matrix {
            check_matrix(path, &args.output, &flags.vectors)?;
        }
        args.output.out_field.get_or_insert_with(|| field.to_owned());
        let refused = |message: String| Err(CliError::refused("output", message));
        match args.output.output_format {
            Some(OutputFormatArg::Full) => {
                let text = "--output-format full: there are no other outputs and no token ids";
                return refused(text.to_owned());
            }
            Some(OutputFormatArg::OpenAi) if task != Task::Embed => {
                let text = "--output-format openai: OpenAI's batches have no such answers";
                return refused(text.to_owned());
            }
            _ => {}
        }
        for (flag, parser) in [
            ("--reasoning-parser", &args.output.reasoning_parser),
            ("--tool-call-parser", &args.output.tool_call_parser),
        ] {
            if parser.is_some() {
                return refused(format!("{flag}: there is no thinking and there are no calls"));
            }
        }
        let mut config = Self::new(args)?;
        config.input.rows.task = task;
        config.engine.model.pooling_task = match task {
            Task::Embed if flags.vectors.pooling_type == Some(PoolingTypeArg::All) => {
                Some(PoolingTask::TokenEmbed)
            }
            Task::Complete | Task::Embed => Some(PoolingTask::Embed),
            Task::Classify | Task::Reward => Some(PoolingTask::Classify),
        };
        config.engine.model.pooling_type = flags.vectors.pooling_type.map(|name| match name {
            PoolingTypeArg::Cls => PoolingType::Cls,
            PoolingTypeArg::Mean => PoolingType::Mean,
            PoolingTypeArg::Last => PoolingType::Last,
            PoolingTypeArg::Max => PoolingType::Max,
            PoolingTypeArg::MeanSqrtLen => PoolingType::MeanSqrtLen,
            PoolingTypeArg::WeightedMean => PoolingType::WeightedMean,
            PoolingTypeArg::All => PoolingType::All,
        });
        config.engine.model.sparse = flags.vectors.sparse;
        if let Some(path) = matrix {
            let output = &mut config.output;
            output.is_matrix = true;
            output.errors.get_or_insert_with(|| errors_beside(&path));
            output.path = Some(path);
        }
        config.pooling = Some(PoolingConfig { task, flags });
        Ok(config)
    }
}

/// Whether a file's name asks for a matrix of NumPy's.
fn is_matrix(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"))
}

/// Refuses what a matrix cannot be.
fn check_matrix(path: &Path, output: &OutputArgs, flags: &VectorArgs) -> Result<(), CliError> {
    let is_other_file = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    let what = match (output, flags) {
        _ if is_other_file => "is no file, and a matrix is one",
        (OutputArgs { out_field: Some(_), .. }, _) => "is a matrix, which has no --out-field",
        (OutputArgs { output_format: Some(OutputFormatArg::OpenAi), .. }, _) => {
            "is a matrix, and --output-format openai asks for lines"
        }
        (_, VectorArgs { encoding_format: Some(EncodingFormatArg::Base64), .. }) => {
            "is a matrix of floats, and --encoding-format asks for base64"
        }
        _ => return Ok(()),
    };
    let message = format!("--out: {} {what}", path.display());
    Err(CliError::refused("output", message).help("name the output FILE.jsonl"))
}

impl PoolingConfig {
    /// What rows without own parameters are asked with, of this model.
    ///
    /// # Errors
    /// A flag asks for what the model has not.
    pub fn params(&self, summary: &PoolingSummary) -> Result<PoolingParams, CliError> {
        let PoolingFlags { vectors, classes, texts } = &self.flags;
        let num_labels = summary.classifier.as_ref().map_or(0, |found| found.labels.len());
        if self.task == Task::Reward && num_labels != 1 {
            let message =
                format!("a reward has one number, and the model has {num_labels} classes");
            return Err(CliError::refused("model", message).help("`classify` gives all of them"));
        }
        if texts.truncate_prompt_tokens == Some(0) {
            let message = "--truncate-prompt-tokens must be -1 or at least 1, got 0";
            return Err(CliError::refused("invalid_parameter", message));
        }
        let params = PoolingParams {
            dimensions: vectors.dimensions,
            use_activation: vectors.normalizes().or(classes.activates()),
            truncate_prompt_tokens: texts.truncate_prompt_tokens,
            prompt: prompt(vectors, summary)?,
            include_prompt: summary.pooling.include_prompt,
            encoding_format: match vectors.encoding_format {
                Some(EncodingFormatArg::Base64) => EncodingFormat::Base64,
                Some(EncodingFormatArg::Float) | None => EncodingFormat::Float,
            },
            ..PoolingParams::default()
        };
        let checked = summary.check_params(&params);
        checked.map_err(|error| CliError::refused(error.code, format!("--{}", error.message)))?;
        Ok(params)
    }

    /// Refuses a model whose vectors are no rows of a matrix.
    ///
    /// # Errors
    /// They are sparse, or there is one for each token.
    pub fn check_matrix(summary: &PoolingSummary) -> Result<(), CliError> {
        let what = match (&summary.splade, summary.task) {
            (Some(_), _) => "sparse vectors are no rows of a matrix",
            (None, PoolingTask::TokenEmbed) => "vectors of tokens are no rows of a matrix",
            (None, _) => return Ok(()),
        };
        Err(CliError::refused("output", format!("--out: {what}"))
            .help("name the output FILE.jsonl"))
    }

    /// What texts become, in one line.
    pub fn line(params: &PoolingParams, summary: &PoolingSummary) -> String {
        let pooling = &summary.pooling;
        let prompt = match &params.prompt {
            Some(prompt) => format!(", with {prompt:?} before every text"),
            None => String::new(),
        };
        if let Some(classifier) = &summary.classifier {
            let activation = match params.use_activation {
                Some(false) => "no activation".to_owned(),
                Some(true) | None => format!("{:?}", classifier.activation),
            };
            let (task, labels) = (summary.task.name(), classifier.labels.len());
            return format!("Classes: {labels}, {task}, {activation}{prompt}");
        }
        let normalized = match params.use_activation.unwrap_or(pooling.normalize) {
            true => "normalized",
            false => "not normalized",
        };
        if summary.splade.is_some() {
            return format!("Vectors: sparse, of {} words{prompt}", summary.spec.vocab_size());
        }
        let size = summary.width(params);
        format!("Vectors: {size} values, {:?} pooling, {normalized}{prompt}", pooling.pooling_type)
    }
}

/// What stands before every text.
fn prompt(flags: &VectorArgs, summary: &PoolingSummary) -> Result<Option<Arc<str>>, CliError> {
    let prompts = &summary.prompts;
    let name = flags.prompt_name.as_ref().or(prompts.default.as_ref());
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
    Ok(Some(prompt.as_str().into()).filter(|prompt: &Arc<str>| !prompt.is_empty()))
}
