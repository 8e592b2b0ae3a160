//! `PoolingSummary`: what the small files of an encoder or a classifier say, before its weights are
//! read.

use serde_json::Value;

use super::Pooling;
use super::cached_texts::Counted;
use super::dense::DenseModule;
use super::layer_file::{LayerFile, TOKEN_LAYER, layer_of};
use super::modules::{Modules, PROMPTS, Prompts, length_of_tokenizer};
use super::row_words::SaidWords;
use super::sight;
use super::sparse_spec::{self, SparseSpec};
use super::task::resolve_task;
use crate::load::combinations::{Side, Sides};
use crate::load::model_summary::checkpoint_format;
use crate::load::step_sizes::StepSizes;
use crate::serve::input_processor::ModelLimits;
use vllm_batch_api::compared::{Scoring, Similarity};
use vllm_batch_api::pooling::{EncodingFormat, PoolingParams};
use vllm_batch_api::request::RequestError;
use vllm_batch_base::config::{DType, EngineConfig, ModelConfig};
use vllm_batch_base::pooling::{ClassToken, STEP_TOKEN};
use vllm_batch_base::pooling::{PoolingTask, PoolingType};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint as checkpoint;
use vllm_batch_checkpoint::encoders::{ClassActivation, Classifier, ClassifierHead, HeadStates};
use vllm_batch_checkpoint::hf_config::HfConfig;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::own_head;
use vllm_batch_checkpoint::quantization::QuantizationConfig;
use vllm_batch_checkpoint::spec::{DecoderSpec, EncoderSpec, HeadSpec, TowerSpec};

/// A model without its weights and its tokenizer.
#[derive(Clone, Debug)]
pub struct PoolingSummary {
    /// Where it is.
    pub files: ModelFiles,
    /// Its shape.
    pub spec: EncoderSpec,
    /// What makes embeddings of images; None: it is run for text alone.
    pub tower: Option<TowerSpec>,
    /// The configuration of its image processor, where config.json has it.
    pub processor: Option<Value>,
    /// It has a tower, even where that is left out.
    pub sees: bool,
    /// Chats begin with BOS or EOS, whatever their template writes.
    pub begins_chats: bool,
    /// How the checkpoint's linear layers are stored, where they are quantized.
    pub quantization: Option<QuantizationConfig>,
    /// How many tensors are of which type, of a GGUF file.
    pub gguf_types: Option<String>,
    /// What it is run for.
    pub task: PoolingTask,
    /// Of what its vectors or classes are made.
    pub pooling: Pooling,
    /// What its classes are made with.
    pub classifier: Option<Classifier>,
    /// What vectors pass through behind the pooling.
    pub dense: Vec<DenseModule>,
    /// What vectors of tokens pass through, in place of that.
    pub token_layer: Option<LayerFile>,
    /// What sparse vectors are made with, in place of all that.
    pub sparse: Option<SparseSpec>,
    /// Words around its rows; None: texts are as they are.
    pub(super) row_words: Option<SaidWords>,
    /// What may stand before texts.
    pub prompts: Prompts,
    /// How its vectors are compared.
    pub similarity: Similarity,
    /// The class of a language model that no file says was trained for vectors.
    pub language_class: Option<String>,
    /// What was asked for, else the checkpoint's own.
    pub dtype: DType,
    /// Longest text, in tokens: what was asked for, else the model's.
    pub max_model_len: usize,
}

impl PoolingSummary {
    /// Reads config.json and the files of sentence-transformers beside it, or a GGUF file's header.
    ///
    /// # Errors
    /// A file is missing or corrupt, the model is not supported, or it does not take texts of the
    /// length that was asked for.
    pub fn read(config: &ModelConfig) -> Result<Self, EngineError> {
        let files = ModelFiles::of_model(config)?;
        let hf_config = HfConfig::open(&files, &config.hf_overrides)?;
        // First: the keys that it reads are not unknown ones.
        let quantization = QuantizationConfig::read(&hf_config, &config.model_dir)?;
        let of_gguf = checkpoint::gguf_pooling(&hf_config)?;
        let dimensions = checkpoint::matryoshka_dimensions(&hf_config)?;
        let modules = match &files {
            ModelFiles::Folder(folder) => Modules::read(folder)?,
            ModelFiles::Gguf(_) => Modules::default(),
        };
        let tokens = config.token_classes.as_ref().or(modules.logit_score.as_ref());
        let classifier = checkpoint::classifier(&hf_config, tokens)?;
        let spec = checkpoint::encoder_spec(&hf_config)?;
        let (tower, processor, sees) = sight::read(&hf_config, config)?;
        sight::check(&spec, tower.as_ref())?;
        check_classes(classifier.as_ref(), &spec, (&hf_config, tokens.is_some()))?;
        let spec = with_head_of_files(spec, classifier.as_ref(), (&hf_config, &files, config))?;
        let classifier = activated(classifier, modules.activation.as_deref(), config)?;
        sides_of_classifier(config, classifier.as_ref()).check()?;
        let task = resolve_task(config.pooling_task, classifier.as_ref());
        let default = default_pooling(&hf_config, &spec, of_gguf)?;
        let sparse = sparse_spec::read(config, modules.splade, &hf_config, (&spec, &files))?;
        let is_trained = modules.is_pooled || of_gguf.is_some() || sparse.is_some();
        let is_language = !is_trained && classifier.is_none();
        let language_class = if is_language { language_class(&hf_config, &spec)? } else { None };
        Sides::of_model_config(config).with([(Side::SparseVectors, sparse.is_some())]).check()?;
        let row_words = SaidWords::read(&hf_config, &files)?;
        let mut pooling = modules.pooling_or(default);
        let Modules { dense, prompts, similarity, max_seq_length, .. } = modules;
        check_dense(&dense, &spec, classifier.is_some())?;
        pooling.dimensions = dimensions;
        let of_files = pooling.pooling_type;
        pooling.pooling_type = pooling_type(config, (classifier.as_ref(), task), of_files);
        let gives_tokens = pooling.pooling_type == PoolingType::All && classifier.is_none();
        let task = if gives_tokens { PoolingTask::TokenEmbed } else { task };
        check_dense_of_tokens(&dense, gives_tokens)?;
        let is_dense = classifier.is_none() && sparse.is_none();
        pooling.truncated = truncated(config, &pooling, is_dense)?.filter(|_| !gives_tokens);
        let token_layer = token_layer((&files, gives_tokens), &dense, &spec)?;
        pooling.skips_first = token_layer.is_some();
        // That of sentence-transformers' encoders of either kind.
        let default = if sparse.is_some() { Similarity::Dot } else { Similarity::default() };
        let similarity = similarity.unwrap_or(default);
        let max_model_len = longest(config, &files, max_seq_length, spec.max_model_len)?;
        check_end(classifier.as_ref(), spec.vocab_size(), max_model_len)?;
        let dtype = config.dtype.map_or_else(|| hf_config.dtype(), Ok)?;
        let gguf_types = hf_config.gguf_types().map(str::to_owned);
        let summary = Self {
            files,
            spec,
            tower,
            processor,
            sees,
            begins_chats: checkpoint::begins_chats(&hf_config)?,
            quantization,
            gguf_types,
            task,
            pooling,
            classifier,
            dense,
            token_layer,
            sparse,
            row_words,
            prompts,
            similarity,
            language_class,
            dtype,
            max_model_len,
        };
        summary.refuse_whole_texts()?;
        Ok(summary.without_unused_tower())
    }

    /// Refuses to run texts at once where a part of the model cannot.
    fn refuse_whole_texts(&self) -> Result<(), EngineError> {
        match self.spec.needs_cache {
            Some(part) if self.cached().is_none() => Err(EngineError::Model(format!(
                "{part} is supported in models whose tokens see those before them alone, and not in \
                 sparse vectors"
            ))),
            _ => Ok(()),
        }
    }

    /// What the model and a configuration have, as far as some of it goes with no other.
    pub fn sides(&self, config: &EngineConfig) -> Sides {
        Sides::of_config(config).with_layers(&self.spec.layers, self.dtype).with([
            (Side::Pooling, true),
            (Side::VisionTower, self.tower.is_some()),
            (Side::WholeTexts, self.cached().is_none()),
            (Side::QuantizedCheckpoint, self.quantization.is_some()),
            (Side::Gguf, self.gguf_types.is_some()),
        ])
    }

    /// How a checkpoint's weights are stored, where they are quantized or a GGUF file; for people
    /// to read.
    pub fn checkpoint_format(&self) -> Option<String> {
        checkpoint_format(self.quantization.as_ref(), self.gguf_types.as_deref())
    }

    /// Refuses what cannot be made of a vector; as vLLM does, sizes that it cannot be cut to.
    ///
    /// # Errors
    /// The model was not trained for the size, or for other sizes; or vectors are sparse.
    pub fn check_params(&self, params: &PoolingParams) -> Result<(), RequestError> {
        if self.sparse.is_some() {
            let asked = [
                ("normalize", params.use_activation == Some(true)),
                ("encoding_format", params.encoding_format != EncodingFormat::Float),
                ("dimensions", params.dimensions.is_some()),
            ];
            let Some((name, _)) = asked.iter().find(|(_, asked)| *asked) else { return Ok(()) };
            let message = format!("{name}: not of sparse vectors");
            return Err(RequestError::new("invalid_parameter", message));
        }
        let Some(asked) = params.dimensions else { return Ok(()) };
        let (width, sizes) = (self.full_width(), self.pooling.dimensions.as_deref());
        let message = match sizes {
            _ if self.classifier.is_some() => "dimensions: classes are not cut".to_owned(),
            None => "dimensions: the model was not trained for vectors that are cut \
                     (config.json has no matryoshka_dimensions)"
                .to_owned(),
            Some(sizes) if !sizes.is_empty() && !sizes.contains(&asked) => {
                format!("dimensions: {asked} is none of the model's: {sizes:?}")
            }
            Some(_) if !(1..=width).contains(&asked) => {
                format!("dimensions: {asked} is out of range: expected 1 to {width}")
            }
            Some(_) => return Ok(()),
        };
        Err(RequestError::new("invalid_parameter", message))
    }

    /// Values of a vector.
    pub fn width(&self, params: &PoolingParams) -> usize {
        let full = self.full_width();
        params.dimensions.unwrap_or(self.pooling.truncated.unwrap_or(full).min(full))
    }

    /// The same of one that is not cut.
    fn full_width(&self) -> usize {
        self.layers_behind().last().map_or(vector_width(&self.spec), LayerFile::outputs)
    }

    /// Its body as a decoder with a KV cache, where tokens depend on those before them alone, and
    /// the state of a text's last token is all that counts; or where no other way computes its
    /// layers, or images among its tokens. None: texts go through the body at once.
    pub fn cached(&self) -> Option<DecoderSpec> {
        let needs_cache = self.sees || self.spec.needs_cache.is_some();
        let is_cached = self.counted() == Counted::Last || needs_cache;
        self.spec.decoder().filter(|_| self.sparse.is_none() && is_cached)
    }

    /// Which states of a text count.
    pub(super) fn counted(&self) -> Counted {
        match self.pooling.pooling_type {
            PoolingType::Last => Counted::Last,
            _ => Counted::All,
        }
    }

    /// Sizes of a step.
    pub(super) fn step_sizes(&self, config: &EngineConfig) -> StepSizes {
        let sizes = StepSizes::usual(config);
        match self.counted() {
            _ if self.cached().is_none() => sizes,
            Counted::Last => sizes.at_least(self.least_step()),
            Counted::All => sizes.at_least(self.least_step()).with_all_states(),
        }
    }

    /// The layers of the model's own classifier, or of its projection, if it has them.
    pub(super) fn head_layers(&self) -> Option<&HeadSpec> {
        match self.classifier.as_ref().map(|classifier| &classifier.head) {
            Some(ClassifierHead::Layers(head)) => Some(head),
            Some(ClassifierHead::Tokens(_) | ClassifierHead::Tower) => None,
            None => self.spec.projection.as_ref(),
        }
    }

    /// What vectors pass through behind the pooling, in this order.
    pub(super) fn layers_behind(&self) -> impl Iterator<Item = &LayerFile> {
        self.dense.iter().map(|module| &module.layer).chain(&self.token_layer)
    }

    /// How the model makes a score of two texts, as vLLM decides it.
    ///
    /// # Errors
    /// It is a classifier that gives no single number.
    pub fn scoring(&self) -> Result<Scoring, EngineError> {
        match (&self.classifier, self.task) {
            (None, _) => Ok(Scoring::Vectors(self.similarity)),
            (Some(classifier), PoolingTask::Classify) if classifier.labels.len() == 1 => {
                Ok(Scoring::Pair)
            }
            (Some(classifier), task) => Err(EngineError::Config(format!(
                "the model is for `{}` with {} classes, and a score is of one; `classify` runs it",
                task.name(),
                classifier.labels.len()
            ))),
        }
    }

    /// The tokens that its classifier is made with: those that are classes, or that ends a step.
    pub(super) fn named_tokens(&self) -> Vec<ClassToken> {
        match &self.classifier {
            Some(Classifier { head: ClassifierHead::Tokens(classes), .. }) => {
                classes.tokens.clone()
            }
            Some(Classifier { states: HeadStates::Steps, .. }) => {
                vec![ClassToken::Named(STEP_TOKEN.to_owned())]
            }
            _ => Vec::new(),
        }
    }

    /// Whether its own chat template writes pairs: that of a language model which was saved by
    /// sentence-transformers as a reranker.
    pub fn reads_own_template(&self) -> bool {
        let is_numbered = |token: &ClassToken| matches!(token, ClassToken::Numbered(_));
        self.named_tokens().iter().any(is_numbered)
    }

    /// Whether it gives a number of each step of a text, in place of one for the text or a token.
    pub fn scores_steps(&self) -> bool {
        let classifier = self.classifier.as_ref();
        classifier.is_some_and(|classifier| classifier.states == HeadStates::Steps)
    }

    /// A token that ends every text, which is put there.
    pub(super) fn end_token_id(&self) -> Option<u32> {
        self.classifier.as_ref()?.end_token_id
    }

    /// What prompts are checked against.
    pub fn limits(&self) -> ModelLimits {
        // There is room for what is put behind a text.
        let max_model_len = self.max_model_len - usize::from(self.end_token_id().is_some());
        ModelLimits { vocab_size: self.spec.vocab_size(), max_model_len }
    }
}

/// The class of a model as it was trained to write texts, or to fill in words: a bidirectional
/// decoder was trained again.
fn language_class(config: &HfConfig, spec: &EncoderSpec) -> Result<Option<String>, EngineError> {
    let has_head = |name: &&str| {
        name.contains("ForMaskedLM")
            || spec.is_causal
                && ["ForCausalLM", "ForConditionalGeneration", "LMHead"]
                    .iter()
                    .any(|end| name.contains(end))
    };
    Ok(config.architectures()?.into_iter().find(has_head).map(str::to_owned))
}

/// The longest text, in tokens: what was asked for, else what the files of sentence-transformers
/// say, else those of the tokenizer, as in vLLM too; no longer than the model's context.
///
/// # Errors
/// What was asked for is longer than the context, or a file is corrupt.
fn longest(
    config: &ModelConfig,
    files: &ModelFiles,
    max_seq_length: Option<usize>,
    context: usize,
) -> Result<usize, EngineError> {
    match config.max_model_len {
        Some(asked) if (1..=context).contains(&asked) => return Ok(asked),
        Some(asked) => {
            let text = format!("expected 1 to {context}, the model's context, got {asked}");
            let help = "leave it out for the longest";
            return Err(EngineError::setting(Setting::MaxModelLen, text, help));
        }
        None => {}
    }
    let of_tokenizer = || match (config.tokenizer_dir.as_deref(), files) {
        (Some(folder), _) => length_of_tokenizer(folder),
        (None, ModelFiles::Folder(folder)) => length_of_tokenizer(folder),
        (None, ModelFiles::Gguf(_)) => Ok(None),
    };
    let length = max_seq_length.map_or_else(of_tokenizer, |length| Ok(Some(length)))?;
    Ok(length.unwrap_or(context).min(context))
}

/// The spec with the output layer that the files have, where classes are made with it.
fn with_head_of_files(
    spec: EncoderSpec,
    classifier: Option<&Classifier>,
    (hf_config, files, config): (&HfConfig, &ModelFiles, &ModelConfig),
) -> Result<EncoderSpec, EngineError> {
    match classifier.map(|classifier| &classifier.head) {
        Some(ClassifierHead::Tokens(_)) => {
            own_head::of_encoder(spec, hf_config, || files.stored(config))
        }
        _ => Ok(spec),
    }
}

/// The classifier with the activation that config_sentence_transformers.json names.
fn activated(
    classifier: Option<Classifier>,
    name: Option<&str>,
    config: &ModelConfig,
) -> Result<Option<Classifier>, EngineError> {
    let (Some(classifier), Some(name)) = (&classifier, name) else { return Ok(classifier) };
    let path = config.model_dir.join(PROMPTS);
    let activation = ClassActivation::of_torch(name, classifier.labels.len());
    let wrong = |text| EngineError::Model(format!("{}: {text}", path.display()));
    Ok(Some(Classifier { activation: activation.map_err(wrong)?, ..classifier.clone() }))
}

/// Values that are left of a vector, by config_sentence_transformers.json.
fn truncated(
    config: &ModelConfig,
    pooling: &Pooling,
    is_dense: bool,
) -> Result<Option<usize>, EngineError> {
    match pooling.truncated {
        Some(_) if !is_dense => {
            let path = config.model_dir.join(PROMPTS);
            let text = format!("{}: `truncate_dim`: only dense vectors are cut", path.display());
            Err(EngineError::Model(text))
        }
        truncated => Ok(truncated),
    }
}

/// What vectors of tokens pass through, where a folder has a layer of its own for them.
fn token_layer(
    (files, gives_tokens): (&ModelFiles, bool),
    dense: &[DenseModule],
    spec: &EncoderSpec,
) -> Result<Option<LayerFile>, EngineError> {
    let ModelFiles::Folder(folder) = files else { return Ok(None) };
    if !gives_tokens {
        return Ok(None);
    }
    let width = spec.hidden_size();
    match layer_of(folder, TOKEN_LAYER, (width, width)) {
        Some(_) if !dense.is_empty() => Err(EngineError::Model(format!(
            "{}: {TOKEN_LAYER} beside Dense modules is not supported",
            folder.display()
        ))),
        layer => Ok(layer),
    }
}

/// Which states vectors or classes are made of; `of_files`: where nothing else says it.
fn pooling_type(
    config: &ModelConfig,
    (classifier, task): (Option<&Classifier>, PoolingTask),
    of_files: PoolingType,
) -> PoolingType {
    match classifier {
        Some(classifier) => classifier.states.into(),
        None if task == PoolingTask::TokenEmbed => PoolingType::All,
        None => config.pooling_type.unwrap_or(of_files),
    }
}

/// Refuses a token behind every text that is none of the model's, or leaves no room for a text.
fn check_end(
    classifier: Option<&Classifier>,
    vocab_size: usize,
    max_model_len: usize,
) -> Result<(), EngineError> {
    match classifier.and_then(|classifier| classifier.end_token_id) {
        Some(id) if id as usize >= vocab_size || max_model_len < 2 => {
            let text = format!("`reward_token_id` {id}: there is no such token, or no room for it");
            Err(EngineError::Model(text))
        }
        _ => Ok(()),
    }
}

/// Refuses tokens as classes of a model that gives no numbers for tokens. A class of classifiers
/// has such a head where its config names the tokens, as it is edited for vLLM. `are_given`: the
/// tokens are those of a flag or of a module.
fn check_classes(
    classifier: Option<&Classifier>,
    spec: &EncoderSpec,
    (config, are_given): (&HfConfig, bool),
) -> Result<(), EngineError> {
    let writes = spec.words().is_some() && !(are_given && checkpoint::is_classifier(config)?);
    match classifier.map(|classifier| &classifier.head) {
        Some(ClassifierHead::Tokens(_)) => {
            let no_model = (Side::NoLanguageModel, !writes);
            Sides::default().with([(Side::TokenClasses, true), no_model]).check()
        }
        _ => Ok(()),
    }
}

/// The settings of a model, and what it has of a classifier.
fn sides_of_classifier(config: &ModelConfig, classifier: Option<&Classifier>) -> Sides {
    let is_of_texts = |classifier: &Classifier| {
        !matches!(classifier.states, HeadStates::Each | HeadStates::Steps)
    };
    Sides::of_model_config(config).with([
        (Side::NoClassifier, classifier.is_none()),
        (Side::Classifier, classifier.is_some()),
        (Side::ClassifierOfTexts, classifier.is_some_and(is_of_texts)),
    ])
}

/// Refuses a module that changes tokens where texts have vectors.
fn check_dense_of_tokens(dense: &[DenseModule], gives_tokens: bool) -> Result<(), EngineError> {
    if !gives_tokens && dense.iter().any(|module| module.of_tokens) {
        let text = "a Dense module of token_embeddings changes each token's state, and vectors of \
                    texts are asked for: give `settings.pooling_type` all";
        return Err(EngineError::Model(text.to_owned()));
    }
    Ok(())
}

/// Refuses modules that do not fit the model or each other.
fn check_dense(
    dense: &[DenseModule],
    spec: &EncoderSpec,
    is_classifier: bool,
) -> Result<(), EngineError> {
    let mut width = vector_width(spec);
    for module in dense {
        let inputs = module.layer.inputs();
        if is_classifier || inputs != width {
            let what = match is_classifier {
                true => "the model is a classifier".to_owned(),
                false => format!("vectors have {width} values before it"),
            };
            return Err(EngineError::Model(format!("a Dense module of {inputs} inputs: {what}")));
        }
        width = module.layer.outputs();
    }
    Ok(())
}

/// Values of what a model's own layers make of a pooled state.
fn vector_width(spec: &EncoderSpec) -> usize {
    spec.projection.as_ref().and_then(HeadSpec::width).unwrap_or(spec.hidden_size())
}

/// Which states vectors are made of where no module says it: by a GGUF file's number, else as vLLM
/// has it.
fn default_pooling(
    config: &HfConfig,
    spec: &EncoderSpec,
    of_gguf: Option<usize>,
) -> Result<PoolingType, EngineError> {
    match (of_gguf, &spec.output) {
        (Some(number), _) => PoolingType::of_gguf(number)
            .ok_or_else(|| config.error(format!("`pooling_type` {number} is not supported"))),
        (None, _) if spec.compares_tokens => Ok(PoolingType::All),
        (None, Some(_)) => Ok(PoolingType::Last),
        (None, None) if spec.ends_at.is_some() => Ok(PoolingType::Last),
        (None, None) => Ok(PoolingType::Cls),
    }
}
