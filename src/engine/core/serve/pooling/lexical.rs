//! Lexical weights: a sparse vector of a text, a weight for each token that is in it. A layer gives
//! each token its weight, and of equal tokens the largest counts. From FlagEmbedding's `BGEM3Model`
//! and `_process_token_weights`.

use std::collections::{BTreeMap, BTreeSet};

use super::pooler::Asked;
use crate::execute::model::head::Head;
use vllm_batch_api::pooling::Pooled;
use vllm_batch_base::EngineError;
use vllm_batch_device::{Device, Tensor};

/// A loaded layer that gives tokens their weights.
#[derive(Debug)]
pub(super) struct Lexical {
    /// From a state to one number.
    layer: Head,
    /// Tokens that have no weight: special ones, which are no part of a text.
    without_weight: BTreeSet<u32>,
}

impl Lexical {
    pub(super) fn new(layer: Head) -> Self {
        Self { layer, without_weight: BTreeSet::new() }
    }

    /// Gives these tokens no weight.
    pub(super) fn leave_out(&mut self, ids: impl Iterator<Item = u32>) {
        self.without_weight.extend(ids);
    }

    /// The vectors of texts, whose states are rows of `states` (tokens of all, width), one text
    /// after the other.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub(super) fn texts(
        &self,
        device: &Device,
        states: &Tensor,
        texts: &[Asked<'_>],
    ) -> Result<Vec<Pooled>, EngineError> {
        let width = states.width();
        let num_tokens = texts.last().map_or(0, |text| text.end);
        let rows = states.values()[..num_tokens * width].to_vec();
        let numbers = self.layer.forward(device, Tensor::from_vec(rows, width))?;
        let vector = |text: &Asked<'_>| {
            let numbers = &numbers.values()[text.start..text.end];
            self.vector(text.ids.iter().copied().zip(numbers.iter().copied()))
        };
        Ok(texts.iter().map(vector).collect())
    }

    /// The tokens that have a weight, upward.
    fn vector(&self, tokens: impl Iterator<Item = (u32, f32)>) -> Pooled {
        let mut largest: BTreeMap<u32, f32> = BTreeMap::new();
        for (id, number) in tokens.filter(|(id, _)| !self.without_weight.contains(id)) {
            let largest = largest.entry(id).or_default();
            // NaN comes in, and stays.
            if number > *largest || number.is_nan() {
                *largest = number;
            }
        }
        Pooled::Sparse(largest.into_iter().filter(|(_, weight)| *weight != 0.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_checkpoint::spec::{HeadLayer, HeadSpec, LinearSpec};
    use vllm_batch_checkpoint::weights::Checkpoint;

    #[test]
    fn the_largest_weight_of_a_token_counts_and_special_ones_have_none() {
        let layer = HeadLayer::new(LinearSpec::new("linear", 1, 8));
        let spec = HeadSpec { layers: vec![layer] };
        let device = Device::cpu(Some(1));
        let layer = Head::load(&spec, &device, &mut Checkpoint::dummy(1)).unwrap();
        let mut lexical = Lexical::new(layer);
        lexical.leave_out([0, 2].into_iter());
        let of = |tokens: &[(u32, f32)]| lexical.vector(tokens.iter().copied());
        let tokens = [(0, 9.0), (7, 0.5), (5, -1.0), (7, 0.75), (6, 0.25), (7, 0.5), (2, 9.0)];
        assert_eq!(of(&tokens), Pooled::Sparse(vec![(6, 0.25), (7, 0.75)]));
        let Pooled::Sparse(words) = of(&[(5, 1.0), (5, f32::NAN), (5, 2.0)]) else { panic!() };
        assert!(words[0].1.is_nan(), "the row is to fail");
    }
}
