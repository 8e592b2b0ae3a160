//! `EncoderSpec`: what an encoder is, as data. Its layers are in a decoder's terms; `encoder.rs`
//! runs it.

use super::{
    AttentionSpec, DecoderSpec, EmbeddingScale, EmbeddingSpec, ExpertsSpec, HeadSpec, KvSource,
    LayerInputsSpec, LayerSpec, LearnedPositions, LinearSpec, NamedShape, NormSpec, OutputSpec,
    Parameters, QkvHeads, RopeSpec, Sinusoids, Stage, StreamsSpec, attentions, distinct,
    most_heads,
};
use vllm_batch_base::layers::Reach;

/// A model that makes a state of every token, in one pass over a text. Families differ in these
/// values only.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// Longest text that it was made for, in tokens.
    pub max_model_len: usize,
    /// (vocab_size, hidden_size)
    pub tokens: LinearSpec,
    /// (types, hidden_size): the row of a token's segment is added. Single texts are of the first.
    pub token_types: Option<LinearSpec>,
    /// Embeddings of tokens are multiplied by this.
    pub embed_scale: Option<EmbeddingScale>,
    /// Learned positions are added.
    pub positions: Option<LearnedPositions>,
    /// Positions are added that are computed.
    pub sinusoids: Option<Sinusoids>,
    /// Norm of the sum of embeddings.
    pub embed_norm: Option<NormSpec>,
    /// A token sees those up to it alone, and itself.
    pub is_causal: bool,
    /// One per layer. Unless the model is causal, a window is the number of positions on
    /// each side.
    pub layers: Vec<LayerSpec>,
    /// Rotary embeddings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// Bias of the scores of all layers, by distance (MPNet).
    pub relative_bias: Option<RelativeBiasSpec>,
    /// Norm of the last layer's output.
    pub final_norm: Option<NormSpec>,
    /// Prefixes of tensors that no hidden state depends on: heads and poolers of the model's
    /// original class. Those that a `HeadSpec` asks for are read anyway.
    pub of_heads: &'static [&'static str],
    /// Output layer of a decoder, behind its last norm. No vector depends on it.
    pub output: Option<OutputSpec>,
    /// Part of a decoder that needs a KV cache, in words.
    pub needs_cache: Option<&'static str>,
    /// Inputs of a decoder's layers beside the stream.
    pub layer_inputs: Option<LayerInputsSpec>,
    /// The sum becomes several streams, in such a decoder.
    pub streams: Option<StreamsSpec>,
    /// Where a text ends whose last state is its vector; None: at its last token.
    pub ends_at: Option<TextEnd>,
    /// What its vector passes through behind the pooling.
    pub projection: Option<HeadSpec>,
    /// False: every row is an image, and its tower is all that the model has.
    pub reads_texts: bool,
    /// A row has a vector of each token, where nothing else is asked for.
    pub compares_tokens: bool,
}

/// Where a text ends that has a vector of its last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnd {
    /// At the first token of this id: no state up to it depends on what is behind.
    First(u32),
    /// At the first of the largest id.
    Largest,
    /// Behind so many tokens: shorter texts are filled up with the tokenizer's token of padding,
    /// which counts as others do (SigLIP).
    Filled(usize),
}

impl TextEnd {
    /// Leaves out what is behind the end of a text, if it has one; or fills it up with a token.
    pub fn end(self, ids: &mut Vec<u32>, padding: Option<u32>) {
        let end = match self {
            TextEnd::First(id) => Some(id),
            TextEnd::Largest => ids.iter().max().copied(),
            TextEnd::Filled(len) => {
                let missing = len.saturating_sub(ids.len());
                return ids.extend(padding.into_iter().cycle().take(missing));
            }
        };
        if let Some(place) = ids.iter().position(|id| Some(*id) == end) {
            ids.truncate(place + 1);
        }
    }
}

/// T5's relative positions: a number for each head and bucket of distances.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeBiasSpec {
    /// (buckets, heads)
    pub table: LinearSpec,
    /// Distances from which on all are in the last bucket.
    pub max_distance: usize,
}

impl RelativeBiasSpec {
    /// The bucket of key position - query position. Half of them are for keys after the query; half
    /// of those for one distance each, the others for a range that grows with the distance.
    ///
    /// From transformers' `MPNetEncoder.relative_position_bucket`, in its order of operations.
    pub fn bucket(&self, distance: isize) -> usize {
        let num_buckets = self.table.n() / 2;
        let first = if distance > 0 { num_buckets } else { 0 };
        let (distance, exact) = (distance.unsigned_abs(), num_buckets / 2);
        if distance < exact {
            return first + distance;
        }
        let ratio = (distance as f32 / exact as f32).ln();
        let whole = (self.max_distance as f64 / exact as f64).ln() as f32;
        let further = ratio / whole * (num_buckets - exact) as f32;
        first + (exact + further as usize).min(num_buckets - 1)
    }
}

impl EncoderSpec {
    /// Layers whose tokens all see each other, over a table of tokens, and nothing else.
    pub fn new(max_model_len: usize, tokens: LinearSpec, layers: Vec<LayerSpec>) -> Self {
        Self {
            max_model_len,
            tokens,
            token_types: None,
            embed_scale: None,
            positions: None,
            sinusoids: None,
            embed_norm: None,
            is_causal: false,
            layers,
            ropes: Vec::new(),
            relative_bias: None,
            final_norm: None,
            of_heads: &[],
            output: None,
            needs_cache: None,
            layer_inputs: None,
            streams: None,
            ends_at: None,
            projection: None,
            reads_texts: true,
            compares_tokens: false,
        }
    }

    /// A model of images alone, whose tower has this width: one token stands for an image.
    pub fn of_images(width: usize) -> Self {
        let tokens = LinearSpec::new("no table of tokens", 1, width);
        Self { reads_texts: false, ..Self::new(1, tokens, Vec::new()) }
    }

    /// The layers of a decoder, which make states in place of logits.
    ///
    /// # Errors
    /// It has a part that encoders are not given; the text names it.
    pub fn of_decoder(decoder: DecoderSpec, is_causal: bool) -> Result<Self, String> {
        if decoder.source().is_some() {
            return Err("attention to recordings".to_owned());
        }
        let DecoderSpec { max_model_len, embedding, layers, ropes, mut output, .. } = decoder;
        let EmbeddingSpec {
            tokens,
            scale,
            projection,
            positions,
            sinusoids,
            norm,
            of_layers,
            streams,
            of_media,
        } = embedding;
        if output.after_projection.is_some() {
            return Err("a layer between the last norm and the output layer".to_owned());
        }
        if projection.is_some() || output.projection.is_some() {
            return Err("a table of tokens of another width than the model's".to_owned());
        }
        let recurrent = layers.iter().find_map(|layer| layer.recurrent.as_ref());
        let any = |is_it: &dyn Fn(&AttentionSpec) -> bool| attentions(&layers).any(is_it);
        let head_dim = attentions(&layers).next().map_or(0, |attention| attention.heads.head_dim);
        let needs_cache = match recurrent {
            Some(recurrent) => Some(recurrent.name()),
            None if any(&|block| block.sinks.is_some()) => Some("a sink of attention"),
            None if any(&|block| block.latent.is_some()) => Some("latent attention"),
            None if any(&|block| block.gate.is_some()) => Some("a gate of attention"),
            None if any(&|block| block.kv != KvSource::Own) => {
                Some("K and V that are not each layer's own")
            }
            None if any(&|block| matches!(block.reach, Reach::Chunk(_))) => {
                Some("attention in chunks")
            }
            None if any(&|block| block.heads.head_dim != head_dim) => {
                Some("heads of several widths")
            }
            None => of_layers.as_ref().map(|_| "inputs of each layer"),
        };
        Ok(Self {
            needs_cache,
            layer_inputs: of_layers,
            streams,
            embed_scale: scale,
            positions,
            sinusoids,
            embed_norm: norm,
            is_causal,
            ropes,
            final_norm: output.norm.take(),
            of_heads: of_media,
            output: Some(output),
            ..Self::new(max_model_len, tokens, layers)
        })
    }

    /// The decoder whose layers it has, where a token's state depends on those before it alone:
    /// then that may be computed after them, from their K and V.
    pub fn decoder(&self) -> Option<DecoderSpec> {
        let output = self.output.as_ref().filter(|_| self.is_causal)?;
        let embedding = EmbeddingSpec {
            scale: self.embed_scale,
            positions: self.positions.clone(),
            sinusoids: self.sinusoids,
            norm: self.embed_norm.clone(),
            of_layers: self.layer_inputs.clone(),
            streams: self.streams.clone(),
            of_media: self.of_heads,
            ..EmbeddingSpec::of(self.tokens.clone())
        };
        Some(DecoderSpec {
            max_model_len: self.max_model_len,
            embedding,
            layers: self.layers.clone(),
            ropes: self.ropes.clone(),
            output: OutputSpec { norm: self.final_norm.clone(), ..output.clone() },
            stage: Stage::WHOLE,
        })
    }

    /// Rows of the table of tokens.
    pub fn vocab_size(&self) -> usize {
        self.tokens.n()
    }

    /// Width of a token's state.
    pub fn hidden_size(&self) -> usize {
        self.tokens.k
    }

    /// The most heads of each kind that a layer has, and their width, which is the same in all.
    pub fn heads(&self) -> QkvHeads {
        most_heads(&self.layers)
    }

    /// The mixtures of experts.
    pub fn experts(&self) -> impl Iterator<Item = &ExpertsSpec> {
        self.layers.iter().filter_map(LayerSpec::experts)
    }

    /// The attention blocks.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        attentions(&self.layers)
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_layers = self.layers.iter().flat_map(LayerSpec::norms);
        let inputs = self.layer_inputs.iter().map(|inputs| &inputs.norm);
        of_layers.chain(inputs).chain(&self.embed_norm).chain(&self.final_norm)
    }

    /// All tensors: what a checkpoint is held against before anything of it is read, and what is
    /// loaded.
    pub fn tensors(&self) -> Vec<NamedShape> {
        if !self.reads_texts {
            return Vec::new();
        }
        let positions = self.positions.as_ref().map(|positions| &positions.table);
        let bias = self.relative_bias.as_ref().map(|bias| &bias.table);
        let tables = [Some(&self.tokens), self.token_types.as_ref(), positions, bias];
        let inputs = self.layer_inputs.iter();
        let of_inputs = inputs.clone().flat_map(|inputs| [&inputs.table, &inputs.projection]);
        let of_streams = self.streams.iter().flat_map(StreamsSpec::linears);
        let of_tables = tables.into_iter().flatten().chain(of_inputs).chain(of_streams);
        let of_tables = of_tables.flat_map(LinearSpec::tensors);
        let ends = [&self.embed_norm, &self.final_norm].into_iter().flatten();
        let ends = ends.chain(inputs.map(|inputs| &inputs.norm));
        let of_layers = self.layers.iter().flat_map(LayerSpec::tensors);
        distinct(of_tables.chain(of_layers).chain(ends.flat_map(NormSpec::tensors)))
    }

    /// Number of parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters::of(&self.tensors(), &self.layers)
    }

    /// The tensors of a decoder's output layer, which a checkpoint may have beside all others.
    pub fn output_tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let output = self.output.iter().filter_map(|output| output.lm_head.as_ref());
        output.flat_map(LinearSpec::tensors)
    }

    /// Layer from a hidden state to the words of the vocabulary: the output layer of a former
    /// decoder, which may be its embedding table. `None`: it was no decoder.
    pub fn words(&self) -> Option<&LinearSpec> {
        let output = self.output.as_ref()?;
        Some(output.lm_head.as_ref().unwrap_or(&self.tokens))
    }

    /// Tensors that a checkpoint may lack.
    pub fn optional_tensors(&self) -> Vec<NamedShape> {
        let optional = self.layers.iter().flat_map(LayerSpec::optional_tensors);
        optional.map(|(tensor, _)| tensor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_at_the_first_token_that_ends_it() {
        let cut = |end: TextEnd, ids: &[u32]| {
            let mut ids = ids.to_vec();
            end.end(&mut ids, Some(1));
            ids
        };
        assert_eq!(cut(TextEnd::Filled(4), &[5, 6]), [5, 6, 1, 1]);
        assert_eq!(cut(TextEnd::Filled(2), &[5, 6]), [5, 6]);
        assert_eq!(cut(TextEnd::First(9), &[1, 9, 4, 9, 5]), [1, 9]);
        assert_eq!(cut(TextEnd::First(9), &[1, 4]), [1, 4]);
        assert_eq!(cut(TextEnd::Largest, &[1, 9, 4, 9, 5]), [1, 9]);
        assert_eq!(cut(TextEnd::Largest, &[1, 4, 3]), [1, 4]);
    }

    #[test]
    fn buckets_are_those_of_transformers() {
        // `MPNetEncoder.relative_position_bucket` of transformers 5.23, of key - query.
        let spec = RelativeBiasSpec { table: LinearSpec::new("bias", 32, 4), max_distance: 128 };
        let distances = [-511, -128, -90, -64, -20, -12, -8, -7, -1, 0, 1, 7, 8, 16, 46, 91, 300];
        let buckets = [15, 15, 14, 14, 10, 9, 8, 7, 1, 0, 17, 23, 24, 26, 29, 31, 31];
        assert_eq!(distances.map(|distance| spec.bucket(distance)), buckets);
    }
}
