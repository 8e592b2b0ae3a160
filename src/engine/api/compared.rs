//! Texts and images that are compared: which with which, and what a score of two vectors is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::pooling::Pooled;
use vllm_batch_media::Medium;

/// One of the things that are compared (`ScoreInput` of vLLM).
#[derive(Clone, Debug, PartialEq)]
pub enum ScoreInput {
    /// A text.
    Text(String),
    /// The content of a turn, with images or without (`ScoreMultiModalParam` of vLLM).
    Content(ScoreContent),
}

/// The content of a turn that is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreContent {
    /// Parts `{"type": "text", "text": ...}` and `{"type": "image"}`: the places of `media`.
    pub parts: Vec<Value>,
    /// The images, once they were read.
    pub media: Vec<Arc<Medium>>,
    /// The parts as the row has them, in JSON.
    pub given: String,
}

/// Queries and documents of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    queries: Vec<ScoreInput>,
    documents: Vec<ScoreInput>,
    /// The row has a list of either, so its answer is a list.
    is_list: bool,
    /// What a template sees besides, such as an `instruction`.
    variables: Map<String, Value>,
}

/// How two texts become a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Each becomes a vector, and the vectors are compared (a bi-encoder).
    Vectors(Similarity),
    /// The model reads both at once (a cross-encoder).
    Pair,
    /// The same as one text, the second right behind the first, as vLLM has it of decoders.
    Joined,
    /// The same, as a chat template writes them: turns of `query` and `document`.
    Template,
}

impl Default for Scoring {
    fn default() -> Self {
        Scoring::Vectors(Similarity::default())
    }
}

/// What is computed of two vectors: sums upward in f64, rounded once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Similarity {
    /// Of the angle between them, from -1 to 1.
    #[default]
    Cosine,
    /// The sum of their products.
    Dot,
    /// The distance, below zero.
    Euclidean,
    /// The sum of differences, below zero.
    Manhattan,
}

impl Compared {
    /// One query with each of the documents, or each query with the document of its place.
    ///
    /// # Errors
    /// There is no text of either, or their numbers do not fit; in vLLM's words.
    pub fn new<T: Into<ScoreInput>>(
        queries: Vec<T>,
        documents: Vec<T>,
        is_list: bool,
    ) -> Result<Self, &'static str> {
        let inputs = |inputs: Vec<T>| inputs.into_iter().map(T::into).collect::<Vec<_>>();
        let (queries, documents) = (inputs(queries), inputs(documents));
        match (queries.len(), documents.len()) {
            (0, _) => Err("at least one text must be given"),
            (_, 0) => Err("at least one text to compare it with must be given"),
            (several, others) if several > 1 && several != others => {
                Err("the numbers of texts must be 1:1, 1:N or N:N")
            }
            _ => Ok(Self { queries, documents, is_list, variables: Map::new() }),
        }
    }

    /// The same with what a template sees besides.
    pub fn with_variables(self, variables: Map<String, Value>) -> Self {
        Self { variables, ..self }
    }

    /// What a template sees besides.
    pub fn variables(&self) -> &Map<String, Value> {
        &self.variables
    }

    /// What comes first.
    pub fn queries(&self) -> &[ScoreInput] {
        &self.queries
    }

    /// What that is compared with: one per score.
    pub fn documents(&self) -> &[ScoreInput] {
        &self.documents
    }

    /// The same with its images, those of the queries first.
    ///
    /// # Panics
    /// There are fewer than places of images.
    pub fn with_media(mut self, media: Vec<Arc<Medium>>) -> Self {
        let mut media = media.into_iter();
        for input in self.queries.iter_mut().chain(&mut self.documents) {
            if let ScoreInput::Content(content) = input {
                let num_images = content.num_images();
                content.media.extend(media.by_ref().take(num_images));
                assert_eq!(content.media.len(), num_images, "each place has its image");
            }
        }
        self
    }

    /// The images of each of what is compared, those of the queries first.
    pub fn media(&self) -> impl Iterator<Item = &[Arc<Medium>]> {
        self.queries.iter().chain(&self.documents).map(ScoreInput::media)
    }

    /// Whether the answer is a list.
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// The places of query and document of every score.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let has_one = self.queries.len() == 1;
        (0..self.documents.len()).map(move |index| (if has_one { 0 } else { index }, index))
    }
}

impl From<String> for ScoreInput {
    fn from(text: String) -> Self {
        ScoreInput::Text(text)
    }
}

impl ScoreInput {
    /// The text; of a content the texts of its parts, joined by newlines as in vLLM.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            ScoreInput::Text(text) => text.into(),
            ScoreInput::Content(content) => {
                let texts: Vec<_> =
                    content.parts.iter().filter_map(|part| part["text"].as_str()).collect();
                texts.join("\n").into()
            }
        }
    }

    /// Its images.
    pub fn media(&self) -> &[Arc<Medium>] {
        match self {
            ScoreInput::Text(_) => &[],
            ScoreInput::Content(content) => &content.media,
        }
    }

    /// Whether it has places of images.
    pub fn has_images(&self) -> bool {
        matches!(self, ScoreInput::Content(content) if content.num_images() > 0)
    }

    /// What a chat template sees as the content of its turn.
    pub fn content(&self) -> Value {
        match self {
            ScoreInput::Text(text) => text.as_str().into(),
            ScoreInput::Content(content) => content.parts.clone().into(),
        }
    }
}

impl ScoreContent {
    fn num_images(&self) -> usize {
        self.parts.iter().filter(|part| part["type"] == "image").count()
    }
}

impl Similarity {
    /// By the name in `similarity_fn_name` of sentence-transformers.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "cosine" => Similarity::Cosine,
            "dot" | "dot_product" => Similarity::Dot,
            "euclidean" => Similarity::Euclidean,
            "manhattan" => Similarity::Manhattan,
            _ => return None,
        })
    }

    /// Of what two texts became. Of vectors of tokens: the sum of what each of the first text's is
    /// to the nearest of the second's (ColBERT's MaxSim).
    pub fn of(self, a: &Pooled, b: &Pooled) -> f32 {
        if let (Pooled::Sparse(_), Pooled::Sparse(_)) = (a, b) {
            let (a, b) = aligned(a.words(), b.words());
            return self.of_vectors(&a, &b) as f32;
        }
        let nearest = |a: &Vec<f32>| {
            let each = b.rows().iter().map(|b| self.of_vectors(a, b));
            // What is no number is never passed over.
            each.reduce(|most, other| if most >= other || most.is_nan() { most } else { other })
        };
        a.rows().iter().filter_map(nearest).sum::<f64>() as f32
    }

    /// Of two vectors of one length. The cosine's lengths are 1e-8 at least, as in PyTorch.
    fn of_vectors(self, a: &[f32], b: &[f32]) -> f64 {
        let sum = |of: fn(f64, f64) -> f64| -> f64 {
            a.iter().zip(b).map(|(a, b)| of(f64::from(*a), f64::from(*b))).sum()
        };
        let length = |vector: &[f32]| {
            let squares = vector.iter().map(|value| f64::from(*value) * f64::from(*value));
            squares.sum::<f64>().sqrt().max(1e-8)
        };
        match self {
            Similarity::Cosine => sum(|a, b| a * b) / (length(a) * length(b)),
            Similarity::Dot => sum(|a, b| a * b),
            Similarity::Euclidean => -sum(|a, b| (a - b) * (a - b)).sqrt(),
            Similarity::Manhattan => -sum(|a, b| (a - b).abs()),
        }
    }
}

/// Two sparse vectors over the words that either has.
fn aligned(a: &[(u32, f32)], b: &[(u32, f32)]) -> (Vec<f32>, Vec<f32>) {
    let mut words: BTreeMap<u32, (f32, f32)> = BTreeMap::new();
    a.iter().for_each(|(word, weight)| words.entry(*word).or_default().0 = *weight);
    b.iter().for_each(|(word, weight)| words.entry(*word).or_default().1 = *weight);
    words.into_values().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_paired_one_to_one_one_to_many_or_each_to_its_own() {
        let texts = |count: usize| vec![String::new(); count];
        let pairs = |queries, documents| {
            let compared = Compared::new(texts(queries), texts(documents), true)?;
            Ok::<_, &'static str>(compared.pairs().collect::<Vec<_>>())
        };
        assert_eq!(pairs(1, 1), Ok(vec![(0, 0)]));
        assert_eq!(pairs(1, 3), Ok(vec![(0, 0), (0, 1), (0, 2)]));
        assert_eq!(pairs(2, 2), Ok(vec![(0, 0), (1, 1)]));
        for (queries, documents) in [(0, 1), (1, 0), (2, 3), (2, 1)] {
            assert!(pairs(queries, documents).is_err(), "{queries}:{documents}");
        }
    }

    #[test]
    fn similarities_are_those_of_sentence_transformers() {
        let (a, b) = ([3.0, 4.0, 0.0], [0.0, 2.0, 1.0]);
        let vector = |values: [f32; 3]| Pooled::Vector(values.to_vec());
        let of = |name: &str| Similarity::of_name(name).unwrap().of(&vector(a), &vector(b));
        assert_eq!(of("cosine"), (8.0 / (5.0 * 5f64.sqrt())) as f32);
        assert_eq!(of("dot"), 8.0);
        assert_eq!(of("euclidean"), -(14f64.sqrt() as f32));
        assert_eq!(of("manhattan"), -6.0);
        assert_eq!(Similarity::of_name("x"), None);
        assert_eq!(Similarity::Cosine.of(&vector([0.0; 3]), &vector(b)), 0.0);
    }

    #[test]
    fn sparse_vectors_are_compared_word_by_word() {
        let a = Pooled::Sparse(vec![(3, 2.0), (7, 1.0)]);
        let b = Pooled::Sparse(vec![(2, 9.0), (7, 4.0)]);
        assert_eq!(Similarity::Dot.of(&a, &b), 4.0);
        assert_eq!(Similarity::Manhattan.of(&a, &b), -(2.0 + 3.0 + 9.0));
    }

    #[test]
    fn vectors_of_tokens_are_compared_with_the_nearest_each() {
        let tokens =
            |rows: &[[f32; 2]]| Pooled::Tokens(rows.iter().map(|row| row.to_vec()).collect());
        let query = tokens(&[[1.0, 0.0], [0.0, 2.0]]);
        let document = tokens(&[[3.0, 0.0], [0.5, 0.5], [-9.0, 1.0]]);
        assert_eq!(Similarity::Dot.of(&query, &document), 3.0 + 2.0);
    }
}
