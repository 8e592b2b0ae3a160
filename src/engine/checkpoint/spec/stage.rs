//! Stages of a model: layers that follow each other, as a spec of their own, with what is before
//! the first of them or behind the last. Each is computed on a device of its own.

use std::ops::Range;

use super::{DecoderSpec, KvSource, LayerSpec, LinearSpec};

/// Which part of a model a spec is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Number of its first layer in the model.
    pub first_layer: usize,
    /// It makes the stream of token ids.
    pub is_first: bool,
    /// It makes logits of the stream.
    pub is_last: bool,
    /// Slots of the model's kept streams, which go from stage to stage.
    pub num_kept: usize,
    /// Layers of the model share blocks that read the embeddings, which go from stage to stage.
    pub has_memory: bool,
}

impl Stage {
    /// All of a model.
    pub const WHOLE: Self =
        Self { first_layer: 0, is_first: true, is_last: true, num_kept: 0, has_memory: false };

    /// Whether it is all of a model.
    pub fn is_whole(self) -> bool {
        self.is_first && self.is_last
    }
}

/// Slots of the streams that layers keep.
pub fn num_kept(layers: &[LayerSpec]) -> usize {
    let slots = layers.iter().flat_map(|layer| &layer.keeps).map(|kept| kept.slot);
    let late = layers.iter().filter_map(|layer| layer.late.as_ref()).map(|late| late.slot);
    slots.chain(late).map(|slot| slot + 1).max().unwrap_or(0)
}

impl DecoderSpec {
    /// Layers of each of so many stages, whose largest has as few weights as can be. The first
    /// `num_deep` layers, which rows of images are added behind, are of the first stage.
    ///
    /// # Errors
    /// In words: the model cannot be cut into so many.
    pub fn stages(&self, count: usize, num_deep: usize) -> Result<Vec<Range<usize>>, String> {
        let cuts = self.cuts(num_deep);
        if count > cuts.len() + 1 {
            return Err(match cuts.len() + 1 {
                1 => "the layers of this model cannot be parted".to_owned(),
                most => format!("the layers of this model make {most} stages at most"),
            });
        }
        // Ends of stages; the first `before` of a bound are of the stages before it.
        let bounds: Vec<_> = [0].into_iter().chain(cuts).chain([self.layers.len()]).collect();
        let weights = |from: usize, to: usize| self.num_weights_of(bounds[from]..bounds[to]);
        let last = bounds.len() - 1;
        // The least of the largest stage up to a bound, and where the last of them begins.
        let mut least: Vec<(u64, usize)> = (0..=last).map(|to| (weights(0, to), 0)).collect();
        let mut begins = Vec::new();
        for stage in 1..count {
            let of_bound = |to: usize| {
                let from = (stage..to).min_by_key(|&from| least[from].0.max(weights(from, to)));
                from.map_or((u64::MAX, 0), |from| (least[from].0.max(weights(from, to)), from))
            };
            least = (0..=last).map(of_bound).collect();
            begins.push(least.iter().map(|&(_, from)| from).collect::<Vec<_>>());
        }
        let mut ends = vec![last];
        for begins in begins.iter().rev() {
            ends.push(begins[*ends.last().expect("there is one")]);
        }
        ends.push(0);
        ends.reverse();
        Ok(ends.windows(2).map(|pair| bounds[pair[0]]..bounds[pair[1]]).collect())
    }

    /// Numbers of layers that a stage may begin with: they and those behind them take no K, V or
    /// choices of tokens from layers before.
    fn cuts(&self, num_deep: usize) -> Vec<usize> {
        let chooses = |layer: &LayerSpec| {
            let choice = layer.attention.as_ref().and_then(|block| block.choice.as_ref());
            choice.map(|choice| choice.indexer.is_some())
        };
        let takes_none_before = |cut: &usize| {
            let kv = self.layers[*cut..].iter().filter_map(|layer| layer.attention.as_ref());
            let mut kv = kv.map(|block| block.kv);
            let is_before = |kv| matches!(kv, KvSource::OfLayer(layer) if layer < *cut);
            let choices = self.layers[*cut..].iter().find_map(chooses);
            !kv.any(is_before) && choices.unwrap_or(true)
        };
        (num_deep.max(1)..self.layers.len()).filter(takes_none_before).collect()
    }

    /// Weights of linear layers of a stage.
    fn num_weights_of(&self, layers: Range<usize>) -> u64 {
        let num = |linear: &LinearSpec| (linear.n() * linear.k) as u64;
        let (is_first, is_last) = (layers.start == 0, layers.end == self.layers.len());
        let inputs = self.embedding.of_layers.iter().map(|inputs| num(&inputs.table));
        let inputs = inputs.filter(|_| is_first);
        let tokens = num(&self.embedding.tokens);
        let head = self.output.lm_head.as_ref().map_or(tokens, num);
        let ends = [tokens].into_iter().filter(|_| is_first);
        let ends = ends.chain([head].into_iter().filter(|_| is_last)).chain(inputs);
        ends.chain(self.layers[layers].iter().flat_map(LayerSpec::linears).map(num)).sum()
    }

    /// The stage of these layers, which are those of one of its [stages](Self::stages).
    pub fn of_stage(&self, layers: Range<usize>) -> Self {
        let first_layer = layers.start;
        let is_last = layers.end == self.layers.len();
        let mut own = Self {
            stage: Stage {
                first_layer,
                is_first: first_layer == 0,
                is_last,
                num_kept: num_kept(&self.layers),
                has_memory: self.layers.iter().any(|layer| layer.memory.is_some()),
            },
            layers: self.layers[layers].to_vec(),
            ..self.clone()
        };
        // Of each block that layers share, who holds it here.
        let mut owners: Vec<(usize, usize)> = Vec::new();
        for (index, layer) in own.layers.iter_mut().enumerate() {
            if let Some(attention) = &mut layer.attention
                && let KvSource::OfLayer(source) = &mut attention.kv
            {
                *source -= first_layer;
            }
            let Some(memory) = &mut layer.memory else { continue };
            let owner = memory.owner.unwrap_or(first_layer + index);
            let here = owners.iter().find(|(of, _)| *of == owner).map(|&(_, here)| here);
            memory.owner = here;
            if here.is_none() {
                owners.push((owner, index));
            }
        }
        own
    }

    /// Whether it looks up token ids in the table of tokens, or makes logits by it.
    pub fn has_table(&self) -> bool {
        self.stage.is_first || (self.stage.is_last && self.output.lm_head.is_none())
    }
}
