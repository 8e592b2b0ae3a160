//! What the flags of the commands of pooling models mean: before the model is known, and once it
//! is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{RunConfig, errors_beside};
use crate::args::{
    ClassArgs, EncodingFormatArg, InputArgs, OutputArgs, OutputFormatArg, PoolingFlags,
    PoolingTypeArg, RunArgs, VectorArgs,
};
use vllm_batch_api::compared::Scoring;
use vllm_batch_api::pooling::{EncodingFormat, PoolingParams};
use vllm_batch_base::pooling::{PoolingTask, PoolingType, TokenClasses};
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::pooling::PoolingSummary;

/// What texts become, and how it is shown.
#[derive(Clone, Debug)]
pub struct PoolingConfig {
    /// Which command it is.
    pub task: Task,
    /// A flag names a chat template.
    has_template: bool,
    flags: PoolingFlags,
}

impl RunConfig {
    /// The same, where lines of OpenAI's batch API may ask for something else: then the
    /// configuration is that of `of_lines`.
    pub fn by_lines(mut self) -> Self {
        self.input.rows.lines_decide = true;
        self
    }

    /// The same of the flags of `run`, where its rows ask for something else than completions.
    ///
    /// # Errors
    /// As `pooling`; or a flag says how completions are made.
    ///
    /// # Panics
    /// As `pooling`.
    pub fn of_lines(
        task: Task,
        mut args: RunArgs,
        mut flags: PoolingFlags,
    ) -> Result<Self, CliError> {
        flags.texts.truncate_prompt_tokens = args.sampling.truncate_prompt_tokens.take();
        // It is that of dummy weights, too.
        let seed = args.sampling.seed.take();
        let RunArgs { sampling, structured_outputs, engine, loglikelihood, .. } = &args;
        let of_outputs =
            || first_typed(structured_outputs).map(|name| format!("structured-outputs.{name}"));
        let of_texts = || loglikelihood.map(|_| "loglikelihood".to_owned());
        let typed = first_typed(sampling).or_else(of_outputs).or_else(of_texts);
        let typed = typed.or_else(|| first_typed(engine));
        if let Some(flag) = typed {
            let message = format!("--{flag}: rows get {}, not completions", task.gives());
            return Err(CliError::refused("flag", message).help("leave the flag out"));
        }
        args.sampling.seed = seed;
        Self::pooling(task, (args, flags))
    }

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
        assert!(task != Task::Complete, "`run` has a configuration of its own");
        let is_asked = |path: &mut PathBuf| task == Task::Embed && is_matrix(path);
        let matrix = args.output.out.take_if(is_asked);
        if let Some(path) = &matrix {
            check_matrix(path, &args.output, &flags.vectors)?;
        }
        args.output.out_field.get_or_insert_with(|| task.answer_field().to_owned());
        let refused = |message: String| Err(CliError::refused("output", message));
        match args.output.output_format {
            Some(OutputFormatArg::Full) => {
                let text = "--output-format full: there are no other outputs and no token ids";
                return refused(text.to_owned());
            }
            Some(OutputFormatArg::OpenAi) if task == Task::Classify => {
                let text = "--output-format openai: OpenAI's batches have no such answers";
                return refused(text.to_owned());
            }
            _ => {}
        }
        for (flag, parser) in [
            ("--reasoning-parser", &args.output.answers.reasoning_parser),
            ("--tool-call-parser", &args.output.answers.tool_call_parser),
        ] {
            if parser.is_some() {
                return refused(format!("{flag}: there is no thinking and there are no calls"));
            }
        }
        if task.compares() {
            refuse_other_prompts(&args.input)?;
        }
        let mut config = Self::new(args)?;
        config.input.rows.task = task;
        let has_template = config.engine.model.chat_template.is_some();
        config.engine.model.pooling_task = match task {
            _ if flags.vectors.pooling_type == Some(PoolingTypeArg::All) => {
                Some(PoolingTask::TokenEmbed)
            }
            Task::Complete | Task::Embed => Some(PoolingTask::Embed),
            Task::Classify | Task::Reward => Some(PoolingTask::Classify),
            // The model says it.
            Task::Score | Task::Rerank => None,
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
        config.engine.model.token_classes = flags.classes.token_classes(task)?;
        if let Some(path) = matrix {
            let output = &mut config.output;
            output.is_matrix = true;
            output.errors.get_or_insert_with(|| errors_beside(&path));
            output.path = Some(path);
        }
        config.pooling = Some(PoolingConfig { task, has_template, flags });
        Ok(config)
    }
}

impl ClassArgs {
    /// Which tokens are classes.
    fn token_classes(&self, task: Task) -> Result<Option<TokenClasses>, CliError> {
        let Some(tokens) = &self.classifier_from_token else { return Ok(None) };
        let classes = TokenClasses::new(tokens, task != Task::Classify);
        let refused = |text| CliError::refused("flag", format!("--classifier-from-token: {text}"));
        classes.map(Some).map_err(refused)
    }
}

/// The names of the flags of a group that were typed, as fields.
pub fn all_typed<Flags: Serialize + Default>(flags: &Flags) -> Vec<String> {
    let fields = |flags: &Flags| serde_json::to_value(flags).expect("flags are plain values");
    let (Value::Object(typed), untyped) = (fields(flags), fields(&Flags::default())) else {
        return Vec::new();
    };
    let is_typed = |(name, value): &(&String, &Value)| untyped.get(name.as_str()) != Some(value);
    typed.iter().filter(is_typed).map(|(name, _)| name.clone()).collect()
}

/// The name of a flag of a group that was typed, if any was.
pub fn first_typed<Flags: Serialize + Default>(flags: &Flags) -> Option<String> {
    Some(all_typed(flags).first()?.replace('_', "-"))
}

/// Whether a file's name asks for a matrix of NumPy's.
pub(super) fn is_matrix(path: &Path) -> bool {
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
    /// Why texts that are compared are no prompt that a flag makes.
    pub fn not_of_scores(flag: &str) -> CliError {
        let message = format!("{flag}: the texts of a row are compared as they are");
        CliError::refused("flag", message).help("leave the flag out")
    }

    /// What rows without own parameters are asked with, of this model.
    ///
    /// # Errors
    /// A flag asks for what the model has not.
    pub fn params(&self, summary: &PoolingSummary) -> Result<PoolingParams, CliError> {
        let PoolingFlags { vectors, classes, sides, ranking, texts } = &self.flags;
        let num_labels = summary.classifier.as_ref().map_or(0, |found| found.labels.len());
        if self.task == Task::Reward && num_labels != 1 && !summary.scores_steps() {
            let message =
                format!("a reward has one number, and the model has {num_labels} classes");
            return Err(CliError::refused("model", message).help("`classify` gives all of them"));
        }
        if texts.truncate_prompt_tokens == Some(0) {
            let message = "--truncate-prompt-tokens must be -1 or at least 1, got 0";
            return Err(CliError::refused("invalid_parameter", message));
        }
        let scoring = match self.task.compares() {
            true => self.scoring(summary)?,
            false => Scoring::default(),
        };
        let query_prompt = prompt("--prompt-name", vectors.prompt_name.as_ref(), summary)?;
        let document_prompt = match &sides.document_prompt_name {
            None => query_prompt.clone(),
            name => prompt("--document-prompt-name", name.as_ref(), summary)?,
        };
        let params = PoolingParams {
            scoring,
            document_prompt,
            max_tokens_per_query: sides.max_tokens_per_query,
            max_tokens_per_doc: sides.max_tokens_per_doc,
            top_n: ranking.top_n,
            dimensions: vectors.dimensions,
            use_activation: vectors.normalizes().or(classes.activates()),
            truncate_prompt_tokens: texts.truncate_prompt_tokens,
            prompt: query_prompt,
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
        let what = match (&summary.sparse, summary.task) {
            (Some(_), _) => "sparse vectors are no rows of a matrix",
            (None, PoolingTask::TokenEmbed) => "vectors of tokens are no rows of a matrix",
            (None, _) => return Ok(()),
        };
        Err(CliError::refused("output", format!("--out: {what}"))
            .help("name the output FILE.jsonl"))
    }

    /// How the model makes scores; flags that are for another way of it are refused.
    fn scoring(&self, summary: &PoolingSummary) -> Result<Scoring, CliError> {
        let PoolingFlags { vectors, classes, sides, .. } = &self.flags;
        let scoring = match (summary.scoring()?, self.has_template) {
            (Scoring::Pair, true) => Scoring::Template,
            (Scoring::Pair, false) if summary.reads_own_template() => Scoring::Template,
            (Scoring::Pair, false) if summary.spec.output.is_some() => Scoring::Joined,
            (scoring, _) => scoring,
        };
        let of_pairs = [
            ("--use-activation or --no-activation", classes.activates().is_some()),
            ("--chat-template", self.has_template),
        ];
        let of_vectors = [
            ("--normalize or --no-normalize", vectors.normalizes().is_some()),
            ("--document-prompt-name", sides.document_prompt_name.is_some()),
        ];
        let (refused, message) = match scoring {
            Scoring::Vectors(_) => (&of_pairs[..], "the model has no classifier"),
            Scoring::Pair | Scoring::Joined | Scoring::Template => {
                (&of_vectors[..], "the model reads both texts at once")
            }
        };
        let cuts_sides = sides.max_tokens_per_query.or(sides.max_tokens_per_doc).is_some();
        let is_one_text = matches!(scoring, Scoring::Joined | Scoring::Template);
        let typed = [
            ("--encoding-format", vectors.encoding_format.is_some(), "scores are numbers"),
            (
                "--max-tokens-per-query or --max-tokens-per-doc",
                cuts_sides && is_one_text,
                "the texts are read as one; give --truncate-prompt-tokens",
            ),
        ];
        let refused = refused.iter().map(|(flag, is_typed)| (*flag, *is_typed, message));
        match refused.chain(typed).find(|(_, is_typed, _)| *is_typed) {
            None => Ok(scoring),
            Some((flag, _, message)) => {
                Err(CliError::refused("flag", format!("{flag}: {message}")))
            }
        }
    }

    /// What is said of a model that was not trained for what it is asked.
    pub fn warning(summary: &PoolingSummary) -> Option<String> {
        let class = summary.language_class.as_ref()?;
        Some(format!(
            "the model is a language model ({class}), and none of its files says that it was \
             trained for vectors (modules.json of sentence-transformers, a pooling of GGUF): its \
             vectors, and scores and rankings by them, mean little"
        ))
    }

    /// What texts become, in one line.
    pub fn line(params: &PoolingParams, summary: &PoolingSummary) -> String {
        let pooling = &summary.pooling;
        let prompt = match &params.prompt {
            Some(prompt) => {
                let what = match params.scoring {
                    Scoring::Vectors(_) => "text",
                    Scoring::Pair | Scoring::Joined | Scoring::Template => "pair",
                };
                format!(", with {} before every {what}", Value::from(&**prompt))
            }
            None => String::new(),
        };
        if let Some(classifier) = &summary.classifier {
            let activation = match params.use_activation {
                Some(false) => "no activation".to_owned(),
                Some(true) | None => classifier.activation.name().to_owned(),
            };
            let (task, labels) = (summary.task.name(), classifier.labels.len());
            return format!("Classes: {labels}, {task}, {activation}{prompt}");
        }
        let normalized = match params.use_activation.unwrap_or(pooling.normalize) {
            true => "normalized",
            false => "not normalized",
        };
        if summary.sparse.is_some() {
            return format!("Vectors: sparse, of {} words{prompt}", summary.spec.vocab_size());
        }
        let size = summary.width(params);
        let pooling = pooling.pooling_type.name();
        format!("Vectors: {size} values, {pooling} pooling, {normalized}{prompt}")
    }
}

/// What stands before texts, by the name that a flag gives, or the model.
fn prompt(
    flag: &str,
    name: Option<&String>,
    summary: &PoolingSummary,
) -> Result<Option<Arc<str>>, CliError> {
    let prompts = &summary.prompts;
    let name = name.or(prompts.default.as_ref());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let refused = |message: String| CliError::refused("prompt_name", message);
    let Some(prompt) = prompts.by_name.get(name) else {
        let known: Vec<_> = prompts.by_name.keys().map(String::as_str).collect();
        let known = match known.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", known.join(", ")),
        };
        return Err(refused(format!("{flag} {name}: the model has no such prompt"))
            .help(format!("config_sentence_transformers.json names them; {known}")));
    };
    Ok(Some(prompt.as_str().into()).filter(|prompt: &Arc<str>| !prompt.is_empty()))
}

/// Refuses flags that make a prompt of a row in another way than its texts.
fn refuse_other_prompts(input: &InputArgs) -> Result<(), CliError> {
    let typed = [
        ("--template", input.template.is_some()),
        ("--prompt-column", input.prompt_column.is_some()),
        ("--row-params", input.row_params.is_some()),
        ("--chat and --no-chat", input.chat().is_some()),
        (
            "--chat-template-kwargs without --chat-template",
            input.chats.chat_template_kwargs.is_some() && input.chats.chat_template.is_none(),
        ),
        ("--system-prompt", input.chats.system_prompt.is_some()),
        ("--last-assistant", input.chats.last_assistant.is_some()),
    ];
    match typed.iter().find(|(_, is_typed)| *is_typed) {
        None => Ok(()),
        Some((flag, _)) => Err(PoolingConfig::not_of_scores(flag)),
    }
}
