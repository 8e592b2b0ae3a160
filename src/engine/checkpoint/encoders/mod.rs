//! Families of encoders: from a config to an `EncoderSpec`, one file each; and decoders that make
//! vectors.

mod bert;
mod classifiers;
mod clip;
mod decoder_classifiers;
mod decoders;
mod distilbert;
mod gte;
mod heads;
mod image_classifiers;
mod jina;
mod late_interaction;
mod masked_lm;
mod modernbert;
mod mpnet;
mod nomic;
mod siglip;
mod token_classes;

pub use classifiers::{
    CLASSIFIERS, ClassActivation, Classifier, ClassifierHead, HeadStates, classifier,
};
pub use decoder_classifiers::REWARD_MODELS;
pub use image_classifiers::{IMAGE_CLASSIFIERS, ImageClassifier};
pub use late_interaction::RowWords;
pub use masked_lm::{MaskedLmSpec, masked_lm};
pub use vllm_batch_base::pooling::{ClassToken, TokenClasses, TokenMethod};

use super::families::{self, BuildTower};
use super::hf_config::HfConfig;
use super::spec::EncoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// From a config to a spec.
pub type BuildEncoder = fn(&HfConfig) -> Result<EncoderSpec, EngineError>;

/// A family of encoders that the engine has.
#[derive(Clone, Copy, Debug)]
pub struct EncoderArchitecture {
    /// Name in `architectures` of config.json.
    pub name: &'static str,
    /// Builder of its spec.
    pub spec: BuildEncoder,
    /// Builder of the spec of its tower; None: it reads texts alone.
    pub tower: Option<BuildTower>,
    /// The models that people know it by.
    pub models: &'static str,
}

const fn family(
    name: &'static str,
    spec: BuildEncoder,
    models: &'static str,
) -> EncoderArchitecture {
    EncoderArchitecture { name, spec, tower: None, models }
}

/// A family with towers of texts and of images.
const fn of_two_towers(
    name: &'static str,
    spec: BuildEncoder,
    tower: BuildTower,
    models: &'static str,
) -> EncoderArchitecture {
    EncoderArchitecture { name, spec, tower: Some(tower), models }
}

/// Hugging Face architectures that `embed` takes, by name. A class with a head is taken without it.
/// Those with a classifier are in `CLASSIFIERS`, and the decoders of `run` in `ARCHITECTURES`.
pub const ENCODERS: &[EncoderArchitecture] = &[
    family("BertForMaskedLM", bert::bert, "splade-v3, splade-cocondenser, BERT as it was trained"),
    family("BertModel", bert::bert, "all-MiniLM, bge (en), e5, gte v1, mxbai"),
    of_two_towers("CLIPModel", clip::spec, clip::tower, "CLIP, with images"),
    family("CamembertForMaskedLM", bert::roberta, "CamemBERT, as it was trained"),
    family("CamembertModel", bert::roberta, "Sentence-CamemBERT"),
    of_two_towers(
        "ColIdefics3",
        late_interaction::engine_colidefics3,
        late_interaction::engine_colidefics3_tower,
        "ColSmol",
    ),
    of_two_towers(
        "ColModernVBertForRetrieval",
        late_interaction::colmodernvbert,
        late_interaction::colmodernvbert_tower,
        "ColModernVBERT",
    ),
    of_two_towers(
        "ColPaliForRetrieval",
        late_interaction::colpali,
        late_interaction::tower_of_vlm,
        "ColPali, as transformers has it",
    ),
    of_two_towers(
        "ColQwen2",
        late_interaction::engine_colqwen2,
        late_interaction::engine_colqwen2_tower,
        "ColQwen2, as colpali-engine has it",
    ),
    of_two_towers(
        "ColQwen2ForRetrieval",
        late_interaction::colqwen2,
        late_interaction::tower_of_vlm,
        "ColQwen2, as transformers has it",
    ),
    of_two_towers(
        "ColQwen2_5",
        late_interaction::engine_colqwen2_5,
        late_interaction::engine_colqwen2_5_tower,
        "ColQwen2.5",
    ),
    family("DistilBertForMaskedLM", distilbert::spec, "splade-v3-distilbert"),
    family("DistilBertModel", distilbert::spec, "msmarco-distilbert, multi-qa-distilbert"),
    family("EuroBertForMaskedLM", decoders::eurobert, "EuroBERT, as it was trained"),
    family("EuroBertModel", decoders::eurobert, "EuroBERT"),
    family("Gemma3ForCausalLM", decoders::gemma3, "Gemma 3, EmbeddingGemma"),
    family("Gemma3TextModel", decoders::gemma3, "EmbeddingGemma"),
    family("GteModel", gte::spec, "gte-multilingual, gte-en-v1.5, as transformers writes them"),
    family("JinaBertForMaskedLM", jina::spec, "jina-embeddings-v2"),
    family("JinaBertModel", jina::spec, "jina-embeddings-v2"),
    family("MPNetForMaskedLM", mpnet::spec, "all-mpnet-base"),
    family("MPNetModel", mpnet::spec, "multi-qa-mpnet-base, paraphrase-mpnet-base"),
    family("ModernBertModel", modernbert::spec, "gte-modernbert, granite-embedding"),
    family("NewModel", gte::spec, "gte-multilingual, gte-en-v1.5, arctic-embed-m-v2"),
    family("NomicBertModel", nomic::spec, "nomic-embed-text-v1, v1.5"),
    family("RobertaForMaskedLM", bert::roberta, "RoBERTa, as it was trained"),
    family("RobertaModel", bert::roberta, "all-distilroberta, all-roberta-large"),
    of_two_towers("Siglip2Model", siglip::second_spec, siglip::second_tower, "SigLIP 2 NaFlex"),
    of_two_towers("SiglipModel", siglip::spec, siglip::tower, "SigLIP, SigLIP 2 of one resolution"),
    family("XLMRobertaForMaskedLM", bert::roberta, "XLM-RoBERTa, as it was trained"),
    family("XLMRobertaModel", bert::roberta, "bge-m3, multilingual-e5, arctic-embed-l-v2"),
];

/// Key of a GGUF file's pooling, in the words of a folder.
pub(super) const GGUF_POOLING: &str = "pooling_type";

/// The sizes that vectors of a model may be cut to; an empty list: any. None: it was not trained
/// for it. Read before the spec, since keys that nobody reads refuse the model.
///
/// # Errors
/// A key is something else than it should be.
pub fn matryoshka_dimensions(config: &HfConfig) -> Result<Option<Vec<usize>>, EngineError> {
    let root = config.root();
    root.ignore(&["sentence_transformers"]);
    let is_any = root.flag("is_matryoshka")?.unwrap_or(false);
    let sizes = root.numbers("matryoshka_dimensions")?;
    let sizes = sizes.map(|sizes| sizes.into_iter().map(|size| size as usize).collect());
    Ok(sizes.or_else(|| is_any.then(Vec::new)))
}

/// llama.cpp's number of a pooling, which a GGUF file may have. Read before the spec, as above.
///
/// # Errors
/// It is no number.
pub fn gguf_pooling(config: &HfConfig) -> Result<Option<usize>, EngineError> {
    match config.gguf_types() {
        None => Ok(None),
        Some(_) => config.root().optional_size(GGUF_POOLING),
    }
}

/// The spec of an encoder's config.
///
/// # Errors
/// The architecture is unknown (the message has those that are known), or the config lacks
/// something.
pub fn encoder_spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let names = config.architectures()?;
    config.refuse_more_layers_than(super::limits::MAX_LAYERS)?;
    // An encoder has no output layer that could share the table.
    config.root().ignore(&["tie_word_embeddings"]);
    let spec = body(config, &names).ok_or_else(|| unknown(&names))??;
    config.refuse_unread()?;
    super::limits::check_encoder(&spec).map_err(|text| config.error(text))?;
    Ok(spec)
}

/// What builds the tower of the first class of these names that has one.
pub(super) fn tower(names: &[&str]) -> Option<BuildTower> {
    let known = |name: &&str| ENCODERS.iter().find(|known| known.name == *name);
    let of_classifier = || image_classifiers::find(names).map(|known| known.tower);
    names.iter().find_map(known).map_or_else(of_classifier, |known| known.tower)
}

/// Words around the rows of a config's class, if it has some.
///
/// # Errors
/// It names no class.
pub fn row_words(config: &HfConfig) -> Result<Option<RowWords>, EngineError> {
    Ok(late_interaction::row_words(&config.architectures()?))
}

/// Whether a config's class ends with a classifier of its own.
///
/// # Errors
/// It names no class.
pub fn is_classifier(config: &HfConfig) -> Result<bool, EngineError> {
    Ok(config.architectures()?.iter().any(|name| has_classifier(name)))
}

fn has_classifier(name: &str) -> bool {
    CLASSIFIERS.iter().any(|known| known.name == name)
        || image_classifiers::find(&[name]).is_some()
        || decoder_classifiers::family(name).is_some()
}

/// The purpose of a class that writes no texts, and the commands that run it; None: an unknown
/// class.
pub(super) fn purpose(name: &str) -> Option<&'static str> {
    let is_encoder = || ENCODERS.iter().any(|known| known.name == name);
    if REWARD_MODELS.iter().any(|known| known.name == name) {
        Some("scores answers: use `reward`")
    } else if has_classifier(name) {
        Some("makes classes or scores: use `classify`, `reward`, `score` or `rerank`")
    } else if is_encoder() || families::find_body(name).is_some() {
        Some("makes vectors: use `embed`, `score` or `rerank`")
    } else {
        None
    }
}

/// The spec of the first class that is known, without its head.
fn body(config: &HfConfig, names: &[&str]) -> Option<Result<EncoderSpec, EngineError>> {
    let of_encoders = |name: &&str| bodies().find(|(known, _)| known == name);
    if let Some((_, body)) = names.iter().find_map(of_encoders) {
        return Some(body(config));
    }
    if let Some(known) = image_classifiers::find(names) {
        // Its keys are this spec's too.
        return Some((known.tower)(config).map(|tower| EncoderSpec::of_images(tower.width())));
    }
    let decoder =
        |name: &&str| families::find_body(name).or_else(|| decoder_classifiers::family(name));
    let decoder = names.iter().find_map(decoder)?;
    Some(decoders::spec(config, decoder))
}

/// Names of classes of encoders, and what builds their bodies.
fn bodies() -> impl Iterator<Item = (&'static str, BuildEncoder)> {
    let of_classifiers = CLASSIFIERS.iter().map(|known| (known.name, known.body));
    ENCODERS.iter().map(|known| (known.name, known.spec)).chain(of_classifiers)
}

fn unknown(names: &[&str]) -> EngineError {
    let of_images = IMAGE_CLASSIFIERS.iter().map(|known| known.name);
    let known: Vec<_> = bodies().map(|(known, _)| known).chain(of_images).collect();
    EngineError::Model(format!(
        "architecture {} makes no vectors here; {} do, and decoders of `run`, such as Qwen3Model \
         and Qwen3ForCausalLM (docs/EMBEDDINGS.md)",
        quoted(&names.join(", ")),
        known.join(", "),
    ))
}
