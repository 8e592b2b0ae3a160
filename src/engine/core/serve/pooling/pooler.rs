//! From the states of a text's tokens to what it becomes: pooled, through the head, and its end. A
//! function of the text's states alone, in one order.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::Pooling;
use super::lexical::Lexical;
use super::splade::Splade;
use crate::execute::model::head::Head;
use vllm_batch_api::pooling::{Pooled, PoolingParams};
use vllm_batch_api::request::LoraId;
use vllm_batch_base::EngineError;
use vllm_batch_base::pooling::PoolingType;
use vllm_batch_checkpoint::encoders::ClassActivation;
use vllm_batch_device::{Device, Tensor};

/// All that comes after the body of a model.
pub(super) struct Pooler {
    /// Which states count, and how vectors end.
    pub pooling: Pooling,
    /// What becomes of them.
    pub head: Option<Head>,
    /// The same of texts that are computed with an adapter which has a head of its own.
    pub heads_of_loras: HashMap<LoraId, Head>,
    /// What makes sparse vectors of them instead.
    pub sparse: Option<Sparse>,
    /// What becomes of a classifier's outputs; None: they are vectors.
    pub activation: Option<ClassActivation>,
    /// Which of them, where it reads each token.
    pub outputs: TokenOutputs,
}

/// Outputs of a classifier that reads each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TokenOutputs {
    /// All of them.
    #[default]
    All,
    /// Their mean, which is that of the text.
    Mean,
    /// Those of tokens of this id.
    Of(u32),
}

/// What makes sparse vectors of a text.
pub(super) enum Sparse {
    /// Numbers of all words.
    Splade(Splade),
    /// Weights of the tokens.
    Lexical(Lexical),
}

/// A text in a step: its tokens' states are rows `start..end` of all, and what is asked of it.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub start: usize,
    pub end: usize,
    /// Its tokens; none where the last one alone counts.
    pub ids: &'a [u32],
    /// The first tokens, which the pooling leaves out. There is another one behind them.
    pub num_skipped: usize,
    pub params: &'a PoolingParams,
    /// Texts of one adapter lie together.
    pub lora: Option<LoraId>,
}

impl Pooler {
    /// The rows of texts' states that count, where only one of each text does; None: more of them.
    pub(super) fn only_rows(&self, texts: &[Asked<'_>]) -> Option<Vec<u32>> {
        let reads_others = self.sparse.is_some() || self.outputs != TokenOutputs::All;
        let row = |text: &Asked<'_>| match self.pooling.pooling_type {
            _ if reads_others => None,
            PoolingType::Cls => Some((text.start + text.num_skipped) as u32),
            PoolingType::Last => Some(text.end as u32 - 1),
            _ => None,
        };
        texts.iter().map(row).collect()
    }

    /// What texts become, whose states are rows of `states` (tokens of all, width); with words for
    /// vectors, a text's largest numbers are a row of it (texts, words).
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub(super) fn texts(
        &self,
        device: &Device,
        states: &Tensor,
        texts: &[Asked<'_>],
    ) -> Result<Vec<Pooled>, EngineError> {
        match &self.sparse {
            Some(Sparse::Splade(splade)) => return Ok(splade.texts(device, states)),
            Some(Sparse::Lexical(lexical)) => return lexical.texts(device, states, texts),
            None => {}
        }
        let width = states.width();
        let pooled = |index: usize| {
            let Asked { start, end, ids, num_skipped, .. } = texts[index];
            let states = &states.values()[start * width..end * width];
            match self.outputs {
                TokenOutputs::Of(id) => of_tokens(states, width, ids, id),
                TokenOutputs::All | TokenOutputs::Mean => {
                    self.pooling.pooled(states, width, num_skipped)
                }
            }
        };
        let Some(head) = &self.head else {
            let ended = |index| self.ended(&pooled(index), width, texts[index].params);
            return Ok(each(device, texts.len(), &ended));
        };
        let pooled = each(device, texts.len(), &pooled);
        let mut all = Vec::with_capacity(texts.len());
        for of_lora in texts.chunk_by(|a, b| a.lora == b.lora) {
            let of_head = of_lora[0].lora.and_then(|lora| self.heads_of_loras.get(&lora));
            let pooled = &pooled[all.len()..][..of_lora.len()];
            all.extend(self.headed(device, (of_head.unwrap_or(head), width), (pooled, of_lora))?);
        }
        Ok(all)
    }

    /// What becomes of texts, whose pooled rows are `width` wide, by a head.
    fn headed(
        &self,
        device: &Device,
        (head, width): (&Head, usize),
        (pooled, texts): (&[Vec<f32>], &[Asked<'_>]),
    ) -> Result<Vec<Pooled>, EngineError> {
        let mut first = 0;
        let starts: Vec<_> = pooled
            .iter()
            .map(|rows| {
                let start = first;
                first += rows.len() / width;
                start..first
            })
            .collect();
        let rows = match pooled.concat() {
            // No text has a token that counts.
            rows if rows.is_empty() => Tensor::from_vec(rows, width),
            rows => head.forward(device, Tensor::from_vec(rows, width))?,
        };
        let ended = |index: usize| {
            let (rows_of_text, width) = (starts[index].clone(), rows.width());
            let rows = &rows.values()[rows_of_text.start * width..rows_of_text.end * width];
            self.ended(rows, width, texts[index].params)
        };
        Ok(each(device, texts.len(), &ended))
    }

    /// The end of a text's rows (rows, width).
    pub(super) fn ended(&self, rows: &[f32], width: usize, params: &PoolingParams) -> Pooled {
        let ended = |row: &[f32]| match self.activation {
            None => self.pooling.vector(row, params),
            Some(activation) => match params.use_activation {
                Some(false) => row.to_vec(),
                Some(true) | None => activated(row, activation),
            },
        };
        let num_tokens = (rows.len() / width) as f32;
        match self.pooling.pooling_type {
            PoolingType::All if self.outputs == TokenOutputs::Mean => {
                Pooled::Vector(ended(&divided(sums(rows, width, |_| 1.0), num_tokens)))
            }
            PoolingType::All => Pooled::Tokens(rows.chunks_exact(width).map(ended).collect()),
            _ => Pooled::Vector(ended(rows)),
        }
    }
}

/// What `item` gives of every number below `num_items`, on the threads of the device.
pub(super) fn each<T: Send + Sync>(
    device: &Device,
    num_items: usize,
    item: &(dyn Fn(usize) -> T + Sync),
) -> Vec<T> {
    let results: Vec<_> = (0..num_items).map(|_| OnceLock::new()).collect();
    device.parallel_for(num_items, &|_, index| {
        let is_first = results[index].set(item(index)).is_ok();
        assert!(is_first, "each item runs once");
    });
    results.into_iter().map(|result| result.into_inner().expect("every item ran")).collect()
}

/// States (tokens, width) of the tokens of one id.
fn of_tokens(states: &[f32], width: usize, ids: &[u32], id: u32) -> Vec<f32> {
    let of_each = states.chunks_exact(width).zip(ids);
    of_each.filter(|(_, token)| **token == id).flat_map(|(state, _)| state).copied().collect()
}

impl Pooling {
    /// The states (tokens, width) of a text that count, made one or left as they are.
    ///
    /// `num_skipped`: the first tokens, which a vector of the text leaves out.
    fn pooled(&self, states: &[f32], width: usize, num_skipped: usize) -> Vec<f32> {
        let counted = &states[num_skipped * width..];
        let num_tokens = (counted.len() / width) as f32;
        match self.pooling_type {
            PoolingType::Cls => counted[..width].to_vec(),
            PoolingType::Last => counted[counted.len() - width..].to_vec(),
            PoolingType::Max => max(counted, width),
            PoolingType::Mean => divided(sums(counted, width, |_| 1.0), num_tokens),
            PoolingType::MeanSqrtLen => divided(sums(counted, width, |_| 1.0), num_tokens.sqrt()),
            PoolingType::WeightedMean => {
                // A token keeps its place, whatever is left out before it.
                let weight = |index: usize| (num_skipped + index + 1) as f32;
                let total = (0..counted.len() / width).map(weight).sum();
                divided(sums(counted, width, weight), total)
            }
            PoolingType::All if self.skips_first => states[width..].to_vec(),
            PoolingType::All => states.to_vec(),
        }
    }

    /// A vector, cut to its `dimensions` and then normalized, in this order as in vLLM. The
    /// model's own `truncate_dim` comes behind its Normalize module, as in sentence-transformers,
    /// and before a normalization that was asked for.
    fn vector(&self, row: &[f32], params: &PoolingParams) -> Vec<f32> {
        let mut vector = row[..params.dimensions.unwrap_or(row.len())].to_vec();
        let in_the_end = self.truncated.filter(|_| params.dimensions.is_none());
        let cut = |vector: &mut Vec<f32>| vector.truncate(in_the_end.unwrap_or(usize::MAX));
        if params.use_activation == Some(true) {
            cut(&mut vector);
        }
        if params.use_activation.unwrap_or(self.normalize) {
            normalize(&mut vector);
        }
        cut(&mut vector);
        vector
    }
}

/// Weighted sums over tokens upward, in f32.
fn sums(states: &[f32], width: usize, weight: impl Fn(usize) -> f32) -> Vec<f32> {
    let mut sums = vec![0.0f32; width];
    for (index, state) in states.chunks_exact(width).enumerate() {
        let weight = weight(index);
        sums.iter_mut().zip(state).for_each(|(sum, value)| *sum += value * weight);
    }
    sums
}

fn divided(mut sums: Vec<f32>, by: f32) -> Vec<f32> {
    sums.iter_mut().for_each(|sum| *sum /= by);
    sums
}

/// The largest value of each column; NaN where there is one, so that the row fails.
fn max(states: &[f32], width: usize) -> Vec<f32> {
    let mut largest = vec![f32::NEG_INFINITY; width];
    for state in states.chunks_exact(width) {
        for (largest, value) in largest.iter_mut().zip(state) {
            let is_larger = *value > *largest || value.is_nan();
            *largest = if is_larger { *value } else { *largest };
        }
    }
    largest
}

/// Divides by the length, which is 1e-12 at least, as PyTorch's `normalize` has it.
fn normalize(vector: &mut [f32]) {
    let squares = vector.iter().map(|value| f64::from(*value) * f64::from(*value));
    let length = squares.sum::<f64>().sqrt().max(1e-12) as f32;
    vector.iter_mut().for_each(|value| *value /= length);
}

/// The numbers of a row's classes, computed in f64 and rounded once.
fn activated(row: &[f32], activation: ClassActivation) -> Vec<f32> {
    let values = row.iter().map(|value| f64::from(*value));
    let of_each = |f: fn(f64) -> f64| values.clone().map(|value| f(value) as f32).collect();
    match activation {
        ClassActivation::Identity => row.to_vec(),
        ClassActivation::Sigmoid => of_each(|value| 1.0 / (1.0 + (-value).exp())),
        ClassActivation::Tanh => of_each(f64::tanh),
        ClassActivation::Softmax => {
            let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = values.map(|value| (value - largest).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.into_iter().map(|power| (power / sum) as f32).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [f32; 6] = [3.0, 4.0, 1.0, 2.0, 0.5, 0.0];

    fn pooled(
        pooling_type: PoolingType,
        activation: Option<ClassActivation>,
        params: &PoolingParams,
    ) -> Pooled {
        pooled_behind(pooling_type, activation, params, 0)
    }

    fn pooled_behind(
        pooling_type: PoolingType,
        activation: Option<ClassActivation>,
        params: &PoolingParams,
        num_skipped: usize,
    ) -> Pooled {
        let pooling = Pooling { pooling_type, ..Pooling::default() };
        let outputs = TokenOutputs::All;
        let pooler = Pooler {
            pooling,
            head: None,
            heads_of_loras: HashMap::new(),
            sparse: None,
            activation,
            outputs,
        };
        // Another text is before it.
        let all = [&[9.0, 9.0][..], &STATES].concat();
        let states = Tensor::from_vec(all, 2);
        let other = Asked { start: 0, end: 1, ids: &[1], num_skipped: 0, params, lora: None };
        let asked = [other, Asked { start: 1, end: 4, ids: &[1, 2, 3], num_skipped, ..other }];
        let mut texts = pooler.texts(&Device::cpu(Some(2)), &states, &asked).unwrap();
        texts.pop().unwrap()
    }

    fn raw() -> PoolingParams {
        PoolingParams { use_activation: Some(false), ..PoolingParams::default() }
    }

    fn vector(pooling_type: PoolingType, params: &PoolingParams) -> Vec<f32> {
        match pooled(pooling_type, None, params) {
            Pooled::Vector(vector) => vector,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_type_takes_its_tokens() {
        assert_eq!(vector(PoolingType::Cls, &raw()), [3.0, 4.0]);
        assert_eq!(vector(PoolingType::Last, &raw()), [0.5, 0.0]);
        assert_eq!(vector(PoolingType::Mean, &raw()), [1.5, 2.0]);
        let tokens = Pooled::Tokens(vec![vec![3.0, 4.0], vec![1.0, 2.0], vec![0.5, 0.0]]);
        assert_eq!(pooled(PoolingType::All, None, &raw()), tokens);
    }

    #[test]
    fn each_type_of_sentence_transformers_counts_behind_the_prompt() {
        let root = |number: f32| number.sqrt();
        for (pooling_type, all, behind_one) in [
            (PoolingType::Cls, [3.0, 4.0], [1.0, 2.0]),
            (PoolingType::Last, [0.5, 0.0], [0.5, 0.0]),
            (PoolingType::Mean, [1.5, 2.0], [0.75, 1.0]),
            (PoolingType::Max, [3.0, 4.0], [1.0, 2.0]),
            (
                PoolingType::MeanSqrtLen,
                [4.5 / root(3.0), 6.0 / root(3.0)],
                [1.5 / root(2.0), 2.0 / root(2.0)],
            ),
            (PoolingType::WeightedMean, [6.5 / 6.0, 8.0 / 6.0], [3.5 / 5.0, 4.0 / 5.0]),
        ] {
            for (num_skipped, expected) in [(0, all), (1, behind_one)] {
                let got = pooled_behind(pooling_type, None, &raw(), num_skipped);
                assert_eq!(got, Pooled::Vector(expected.to_vec()), "{pooling_type:?}");
            }
        }
        assert!(max(&[1.0, f32::NAN, 2.0], 1)[0].is_nan(), "the row is to fail");
    }

    #[test]
    fn a_vector_is_cut_before_it_is_normalized() {
        let one = PoolingParams { dimensions: Some(1), ..PoolingParams::default() };
        assert_eq!(vector(PoolingType::Cls, &one), [1.0]);
        assert_eq!(vector(PoolingType::Cls, &PoolingParams::default()), [0.6, 0.8]);
        // By `truncate_dim` it is cut behind that, unless it is asked for.
        let pooling = Pooling { truncated: Some(1), ..Pooling::default() };
        let asked = |use_activation| PoolingParams { use_activation, ..PoolingParams::default() };
        assert_eq!(pooling.vector(&[3.0, 4.0], &asked(None)), [0.6]);
        assert_eq!(pooling.vector(&[3.0, 4.0], &asked(Some(true))), [1.0]);
        assert_eq!(pooling.vector(&[3.0, 4.0], &asked(Some(false))), [3.0]);
        let two = PoolingParams { dimensions: Some(2), ..PoolingParams::default() };
        assert_eq!(pooling.vector(&[3.0, 4.0], &two), [0.6, 0.8]);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
    }

    #[test]
    fn classes_get_their_activation_unless_the_row_does_not_want_it() {
        let params = PoolingParams::default();
        let raw = raw();
        let classes = |activation, params| pooled(PoolingType::Cls, Some(activation), params);
        let softmax = classes(ClassActivation::Softmax, &params);
        assert_eq!(softmax, Pooled::Vector(vec![0.268_941_43, 0.731_058_6]));
        let raw_classes = classes(ClassActivation::Softmax, &raw);
        assert_eq!(raw_classes, Pooled::Vector(vec![3.0, 4.0]));
        let sigmoid = classes(ClassActivation::Sigmoid, &params);
        assert_eq!(sigmoid, Pooled::Vector(vec![0.952_574_13, 0.982_013_76]));
        let tanh = classes(ClassActivation::Tanh, &params);
        assert_eq!(tanh, Pooled::Vector(vec![0.995_054_8, 0.999_329_3]));
        let identity = classes(ClassActivation::Identity, &params);
        assert_eq!(identity, Pooled::Vector(vec![3.0, 4.0]));
        let Pooled::Tokens(tokens) =
            pooled(PoolingType::All, Some(ClassActivation::Softmax), &params)
        else {
            panic!()
        };
        assert_eq!((tokens.len(), &tokens[1]), (3, &vec![0.268_941_43, 0.731_058_6]));
        // Large outputs do not overflow.
        assert_eq!(activated(&[1000.0, 0.0], ClassActivation::Softmax), [1.0, 0.0]);
    }
}
