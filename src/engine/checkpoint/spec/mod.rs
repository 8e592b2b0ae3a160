//! `DecoderSpec`: what a decoder-only model is, as data. `decoder.rs` runs it.

mod attention;
mod choice;
mod connector;
mod delta_net;
mod encoder;
mod ends;
mod feed_forward;
mod grid_positions;
mod head;
mod latent;
mod layer_inputs;
mod mamba;
mod memory;
mod recurrent;
mod rope;
mod row_order;
mod selective;
mod share;
mod sound;
mod sound_front;
mod sound_tokens;
mod stage;
mod streams;
mod tensors;
mod tower;

pub use attention::{
    AttentionSpec, GateFunction, GateSpan, KvSource, NormSpan, OutputGate, PositionScale,
    QkNormOrder, QkNormSpec, SquaresSpec,
};
pub use choice::{ChoiceSpec, ChoiceUnit, IndexerSpec};
pub use connector::{AttentionPool, ConnectorSpec, ConnectorStep, ConvolutionSpec, GroupPool};
pub use delta_net::{DeltaGate, DeltaNetSpec, LowRankGates, grouped_delta_inputs};
pub use encoder::{EncoderSpec, RelativeBiasSpec, TextEnd};
pub use ends::{
    AfterProjection, BesideTable, EmbeddingScale, EmbeddingSpec, LearnedPositions, OutputSpec,
    Sinusoids,
};
pub use feed_forward::{
    ApartNorms, ExpertLatentSpec, ExpertSpec, ExpertsSpec, FeedForwardSpec, LateExperts, MlpForm,
    MlpSpec, SharedExpertSpec,
};
pub use grid_positions::{GridFit, GridPositions, Mixture};
pub use head::{HeadActivation, HeadLayer, HeadSpec};
pub use latent::{LatentDims, LatentQuerySpec, LatentSpec, LatentUpSpec};
pub use layer_inputs::{LayerInputsSpec, SideBlockSpec};
pub use mamba::{GateOrder, GatedNormSpec, MambaSpec};
pub use memory::{LowRankSpec, MemorySpec};
pub use recurrent::{RecurrentSpec, ShortConvSpec, TapsSpec};
pub use rope::{AxisFrequency, Frequencies, LongRope, RopeScaling, RopeSpec, Yarn};
pub use row_order::RowOrder;
pub use selective::SelectiveSpec;
pub use share::{RankOf, Share};
pub use sound::{CrossSpec, SoundTowerSpec, SourceSpec};
pub use sound_front::{CONV_TAPS, ConvSpec, FrameConvs, SoundFront, SoundPositions, SquareConvs};
pub use sound_tokens::{ChunkShape, Heard, SoundShape, SoundTokensSpec};
pub use stage::{Stage, num_kept};
pub use streams::{BranchSpec, MixingSpec, StreamsSpec};
pub use tensors::{
    ActivationSpec, Layout, LinearSpec, NamedShape, NormSpec, Parameters, Part, Slice, bounds_of,
};
pub use tower::{Bidirectional, DeepSpec, ImageText, MarksSpec, TokenId, TowerSpec, WindowsSpec};
pub use vllm_batch_base::layers::QkvHeads;

use std::collections::HashSet;

/// A decoder-only model. Families differ in these values only.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Longest context the checkpoint was made for, rope scaling included.
    pub max_model_len: usize,
    /// From token ids to the residual stream.
    pub embedding: EmbeddingSpec,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
    /// Rotary embeddings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// From the residual stream to logits.
    pub output: OutputSpec,
    /// Which part of the model this is.
    pub stage: Stage,
}

/// One layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerSpec {
    /// Before the layer the stream is kept in these slots, times their factors (Solar).
    pub keeps: Vec<Kept>,
    /// After that, what is in this slot is added to the stream times its factor.
    pub adds: Option<Kept>,
    /// Attention block, if the layer has one (DeciLM).
    pub attention: Option<AttentionSpec>,
    /// Recurrent block in place of attention, if any (LFM2); with attention both read the same,
    /// through attention's norms, and both are added.
    pub recurrent: Option<RecurrentSpec>,
    /// A branch beside attention.
    pub branch: Option<BranchSpec>,
    /// What attention is part of, if what it gives is for the recurrent block to read (Zamba 2).
    pub memory: Option<MemorySpec>,
    /// Block behind attention that attends to states of a source, if the layer has one (Whisper).
    pub cross: Option<CrossSpec>,
    /// Feed-forward block, if the layer has one.
    pub feed_forward: Option<FeedForwardSpec>,
    /// Experts beside its MLP.
    pub late: Option<LateExperts>,
    /// Block after that, if the layer has inputs of its own.
    pub side: Option<SideBlockSpec>,
    /// How it mixes streams, where there are several.
    pub mixing: Option<MixingSpec>,
    /// In the end the stream is multiplied by this tensor of one value.
    pub scalar: Option<String>,
    /// Input of the feed-forward block.
    pub wiring: Wiring,
    /// Factor of each block's output (Granite).
    pub residual_scale: Option<f32>,
    /// And by these, each block's its own (Falcon-H1).
    pub scales: BlockScales,
}

/// Factors of what single blocks of a layer add.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScales {
    /// Scale of attention.
    pub attention: Option<f32>,
    /// Scale of the recurrent block.
    pub recurrent: Option<f32>,
    /// Scale of the feed-forward block.
    pub feed_forward: Option<f32>,
}

impl BlockScales {
    /// All there are.
    pub fn all(self) -> impl Iterator<Item = f32> {
        [self.attention, self.recurrent, self.feed_forward].into_iter().flatten()
    }
}

/// A stream of an earlier layer, in a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Slot of the stream.
    pub slot: usize,
    /// A factor of the stream.
    pub factor: f32,
}

/// Order of the blocks of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wiring {
    /// The feed-forward block reads what attention has added to.
    #[default]
    Sequential,
    /// Both read the same: x += attention(norm(x)) + mlp(norm(x)).
    Parallel,
}

impl LayerSpec {
    /// A layer of both blocks, one after the other.
    pub fn new(attention: AttentionSpec, feed_forward: impl Into<FeedForwardSpec>) -> Self {
        let (attention, feed_forward) = (Some(attention), Some(feed_forward.into()));
        Self { attention, feed_forward, ..Self::default() }
    }

    /// Feed-forward block, if that is an MLP.
    pub fn mlp(&self) -> Option<&MlpSpec> {
        self.feed_forward.as_ref().and_then(FeedForwardSpec::mlp)
    }

    /// Mixture of experts: the feed-forward block, or beside it.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        let late = || self.late.as_ref().and_then(|late| late.block.experts());
        self.feed_forward.as_ref().and_then(FeedForwardSpec::experts).or_else(late)
    }

    /// Feed-forward block, if that is a mixture of experts, to be changed.
    pub fn experts_mut(&mut self) -> Option<&mut ExpertsSpec> {
        self.feed_forward.as_mut().and_then(FeedForwardSpec::experts_mut)
    }

    /// The widest inner values of its feed-forward blocks.
    pub fn inner_width(&self) -> usize {
        self.feed_forwards().map(FeedForwardSpec::inner_width).max().unwrap_or(0)
    }

    /// The feed-forward block, and what is beside it.
    fn feed_forwards(&self) -> impl Iterator<Item = &FeedForwardSpec> {
        self.feed_forward.iter().chain(self.late.iter().map(|late| &late.block))
    }

    /// Linear layers of the layer.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let attention = self.attention.iter().flat_map(AttentionSpec::linears);
        let recurrent = self
            .recurrent
            .iter()
            .flat_map(|block| block.linears().into_iter().chain(block.inner_linears()));
        let attention = attention.chain(recurrent);
        let side = self.side.iter().flat_map(|side| [&side.gate, &side.out]);
        let branch = self.branch.iter().flat_map(|branch| [&branch.left, &branch.right]);
        let mixing = self.mixing.iter().flat_map(MixingSpec::linears);
        let beside = branch.chain(mixing).chain(side);
        let cross = self.cross.iter().flat_map(CrossSpec::linears);
        let attention =
            attention.chain(self.memory.iter().flat_map(MemorySpec::linears)).chain(cross);
        attention.chain(self.feed_forwards().flat_map(FeedForwardSpec::linears)).chain(beside)
    }

    /// Whether any of its linear layers has bounds.
    pub fn is_bounded(&self) -> bool {
        self.linears().any(|linear| !linear.bounded.is_empty())
    }

    /// Where its blocks normalize.
    pub fn block_norms(&self) -> impl Iterator<Item = &BlockNorms> {
        let attention = self.attention.iter().map(|attention| &attention.norms);
        let recurrent = self.recurrent.iter().map(RecurrentSpec::norms);
        let cross = self.cross.iter().map(|cross| &cross.norms);
        attention
            .chain(recurrent)
            .chain(cross)
            .chain(self.feed_forward.iter().map(FeedForwardSpec::norms))
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_blocks = self.block_norms().flat_map(BlockNorms::all);
        let of_attention = self.attention.iter().flat_map(AttentionSpec::inner_norms);
        let of_states = self.recurrent.iter().flat_map(RecurrentSpec::inner_norms);
        let of_states = of_states.chain(self.memory.iter().flat_map(MemorySpec::norms));
        let of_experts = self.experts().into_iter().flat_map(ExpertsSpec::inner_norms);
        let of_side = self.side.iter().map(|side| &side.norm);
        let branch = self.branch.iter().map(|branch| &branch.norm);
        let of_side = of_side.chain(branch).chain(self.mixing.iter().map(|mixing| &mixing.norm));
        of_blocks.chain(of_attention).chain(of_states).chain(of_experts).chain(of_side)
    }

    /// The tensor of its scalar, if it has one.
    pub fn scalar_tensor(&self) -> Option<NamedShape> {
        Some((self.scalar.clone()?, vec![1]))
    }

    /// All tensors.
    fn tensors(&self) -> impl Iterator<Item = NamedShape> {
        let linears = self.linears().flat_map(LinearSpec::tensors);
        let others = self.feed_forwards().flat_map(FeedForwardSpec::other_tensors);
        let sinks = self.attention.iter().flat_map(AttentionSpec::sink_tensor);
        let norms = self.norms().flat_map(NormSpec::tensors);
        let recurrent = self.recurrent.iter().flat_map(RecurrentSpec::other_tensors);
        let scales = self.block_norms().filter_map(|norms| norms.layer_scale.clone());
        let side_scale = self.mixing.iter().filter_map(|mixing| mixing.side_scale.clone());
        let others = others.chain(sinks).chain(self.scalar_tensor()).chain(scales);
        let squares = self.attention.iter().filter_map(|block| block.squares.as_ref());
        let squares = squares.flat_map(|squares| squares.tables.clone());
        let others = others.chain(side_scale).chain(squares);
        linears.chain(norms).chain(others).chain(recurrent)
    }

    /// Tensors that a checkpoint may lack, and what they are then.
    fn optional_tensors(&self) -> impl Iterator<Item = (NamedShape, f32)> {
        let of_mlp = self.mlp().into_iter().flat_map(|mlp| mlp.activation.optional_tensors());
        of_mlp.chain(self.experts().and_then(ExpertsSpec::optional_bias))
    }

    /// Lets both blocks read the same, through attention's norms.
    pub fn make_parallel(&mut self) {
        self.wiring = Wiring::Parallel;
        if let (Some(attention), Some(block)) = (&self.attention, &mut self.feed_forward) {
            *block.norms_mut() = attention.norms.clone();
        }
    }
}

/// Where a block f normalizes, and what its output is scaled by: x += f(x) when nowhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockNorms {
    /// Norm of the input: x += f(norm(x)).
    pub before: Option<NormSpec>,
    /// Norm of the output: x += norm(f(x)).
    pub after: Option<NormSpec>,
    /// The sum: x = norm(x + f(x)).
    pub of_sum: Option<NormSpec>,
    /// Factors (hidden_size) of what is added, behind the norm of it: x += factors * f(x), the
    /// layer scale of vision towers.
    pub layer_scale: Option<NamedShape>,
}

/// The attention blocks of layers.
fn attentions(layers: &[LayerSpec]) -> impl Iterator<Item = &AttentionSpec> {
    layers.iter().filter_map(|layer| layer.attention.as_ref())
}

/// The most heads of each kind that a layer has, and the widest.
fn most_heads(layers: &[LayerSpec]) -> QkvHeads {
    let most = |of: fn(&QkvHeads) -> usize| attentions(layers).map(|a| of(&a.heads)).max();
    QkvHeads {
        num_heads: most(|heads| heads.num_heads).unwrap_or(0),
        num_kv_heads: most(|heads| heads.num_kv_heads).unwrap_or(0),
        head_dim: most(|heads| heads.head_dim).unwrap_or(0),
    }
}

impl DecoderSpec {
    /// Rows of the embedding table, width of the logits.
    pub fn vocab_size(&self) -> usize {
        self.embedding.tokens.n()
    }

    /// Width of the residual stream.
    pub fn hidden_size(&self) -> usize {
        self.embedding.projection.as_ref().map_or(self.embedding.tokens.k, LinearSpec::n)
    }

    /// The most and the widest heads of all layers.
    pub fn heads(&self) -> QkvHeads {
        most_heads(&self.layers)
    }

    /// The blocks that keep states.
    pub fn recurrents(&self) -> impl Iterator<Item = &RecurrentSpec> {
        self.layers.iter().filter_map(|layer| layer.recurrent.as_ref())
    }

    /// Values of a state of the layer that has most.
    pub fn state_width(&self) -> usize {
        self.recurrents().map(RecurrentSpec::state_width).max().unwrap_or(0)
    }

    /// Bytes of a sequence's states, in f32, with as many values in every layer that has one.
    pub fn state_bytes(&self) -> usize {
        self.recurrents().count() * self.state_width() * size_of::<f32>()
    }

    /// The attention blocks whose K and V are in the cache, in its order.
    pub fn cached_attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.attentions().filter(|attention| attention.is_cached())
    }

    /// Layer of the cache with the K and V of each attention block.
    pub fn cache_layers(&self) -> Vec<usize> {
        let mut num_cached = 0;
        let mut of_layers = Vec::new();
        for layer in &self.layers {
            let source = layer.attention.as_ref().map(|attention| attention.kv);
            let cached = source.map(|source| match source {
                KvSource::OfLayer(layer) => of_layers[layer],
                KvSource::Own | KvSource::ValuesAreKeys => Some(num_cached),
            });
            num_cached += usize::from(layer.attention.as_ref().is_some_and(|a| a.is_cached()));
            of_layers.push(cached.flatten());
        }
        of_layers.into_iter().flatten().collect()
    }

    /// What its prompts begin with; None: with their first token.
    pub fn source(&self) -> Option<SourceSpec> {
        self.layers.iter().find_map(|layer| layer.cross.as_ref()).map(|cross| cross.source)
    }

    /// Part without kernels for a GPU, in words; `None`: the model runs there.
    pub fn without_gpu_kernels(&self) -> Option<&'static str> {
        if self.source().is_some() {
            return Some("attention to sounds");
        }
        let of_recurrents = self.recurrents().find_map(RecurrentSpec::without_gpu_kernels);
        let of_indexers = || self.indexers().find_map(IndexerSpec::without_gpu_kernels);
        let of_blocks = || self.attentions().find_map(AttentionSpec::blocks_without_gpu_kernels);
        of_recurrents.or_else(of_indexers).or_else(of_blocks)
    }

    /// The tables, whose rows are looked up: a GPU's kernels read them as values, whatever they are
    /// stored as.
    pub fn tables(&self) -> impl Iterator<Item = &LinearSpec> {
        let of_layers = self.embedding.of_layers.iter().map(|inputs| &inputs.table);
        of_layers.chain([&self.embedding.tokens])
    }

    /// Query heads that share a K and V head, at most.
    pub fn num_q_per_kv(&self) -> usize {
        let ratio = |heads: QkvHeads| heads.num_heads / heads.num_kv_heads;
        self.attentions().map(|attention| ratio(attention.heads)).max().unwrap_or(0)
    }

    /// The attention blocks.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        attentions(&self.layers)
    }

    /// The same with the numbers of their layers, to be changed.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = (usize, &mut AttentionSpec)> {
        let layers = self.layers.iter_mut().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.attention.as_mut()?)))
    }

    /// The feed-forward blocks that are MLPs.
    pub fn mlps(&self) -> impl Iterator<Item = &MlpSpec> + Clone {
        self.layers.iter().filter_map(LayerSpec::mlp)
    }

    /// Those that are mixtures of experts.
    pub fn experts(&self) -> impl Iterator<Item = &ExpertsSpec> {
        self.layers.iter().filter_map(LayerSpec::experts)
    }

    /// The MLPs with the numbers of their layers, to be changed.
    pub fn mlps_mut(&mut self) -> impl Iterator<Item = (usize, &mut MlpSpec)> {
        let layers = self.layers.iter_mut().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.feed_forward.as_mut()?.mlp_mut()?)))
    }

    /// The linear layers of every layer.
    pub fn layer_linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.layers.iter().flat_map(LayerSpec::linears)
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_layers = self.layers.iter().flat_map(LayerSpec::norms);
        let inputs = self.embedding.of_layers.iter().map(|inputs| &inputs.norm);
        let after = self.output.after_projection.as_ref().map(|after| &after.norm);
        let output = self.output.norm.iter().chain(after);
        of_layers.chain(inputs).chain(&self.embedding.norm).chain(output)
    }

    /// The normalizations of the residual stream and of what is added to it, to be changed.
    pub fn residual_norms_mut(&mut self) -> impl Iterator<Item = &mut NormSpec> {
        let of_layers = self.layers.iter_mut().flat_map(|layer| {
            let attention = layer.attention.iter_mut().map(|attention| &mut attention.norms);
            let recurrent = layer.recurrent.iter_mut().map(RecurrentSpec::norms_mut);
            attention
                .chain(recurrent)
                .chain(layer.feed_forward.iter_mut().map(FeedForwardSpec::norms_mut))
        });
        let of_layers = of_layers.flat_map(|BlockNorms { before, after, of_sum, .. }| {
            [before, after, of_sum].into_iter().flatten()
        });
        of_layers.chain(&mut self.embedding.norm).chain(&mut self.output.norm)
    }

    /// All tensors: what a checkpoint is held against before anything of it is read, and what is
    /// loaded.
    pub fn tensors(&self) -> Vec<NamedShape> {
        let (first, last) = (self.stage.is_first, self.stage.is_last);
        let (linears, norms) = self.embedding.parts();
        let tokens = self.has_table().then_some(&self.embedding.tokens);
        let (of_output, norms_of_output) = self.output.parts();
        let streams = self.embedding.streams.as_ref();
        let into = streams.into_iter().flat_map(|streams| &streams.into);
        let out_of = streams.into_iter().flat_map(|streams| &streams.out_of);
        let before = linears.chain(into).filter(|_| first);
        let behind = of_output.chain(out_of).filter(|_| last);
        let of_linears =
            tokens.into_iter().chain(before).chain(behind).flat_map(LinearSpec::tensors);
        let ends = norms.filter(|_| first).chain(norms_of_output.filter(|_| last));
        let of_layers = self.layers.iter().flat_map(LayerSpec::tensors);
        distinct(of_linears.chain(of_layers).chain(ends.flat_map(NormSpec::tensors)))
    }

    /// Number of parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters::of(&self.tensors(), &self.layers)
    }

    /// Tensors that a checkpoint may lack, and what they are then.
    pub fn optional_tensors(&self) -> impl Iterator<Item = (NamedShape, f32)> + '_ {
        self.layers.iter().flat_map(LayerSpec::optional_tensors)
    }
}

/// Each tensor once: both blocks of a parallel layer may read through one norm.
fn distinct(tensors: impl Iterator<Item = NamedShape>) -> Vec<NamedShape> {
    let mut known = HashSet::new();
    tensors.filter(|(name, _)| known.insert(name.clone())).collect()
}

impl BlockNorms {
    /// The usual norm, of what the block reads.
    pub fn before(norm: NormSpec) -> Self {
        Self { before: Some(norm), ..Self::default() }
    }

    /// A norm of what the block adds.
    pub fn after(norm: NormSpec) -> Self {
        Self { after: Some(norm), ..Self::default() }
    }

    /// The same, with factors of what the block adds.
    pub fn with_layer_scale(self, name: impl Into<String>, width: usize) -> Self {
        Self { layer_scale: Some((name.into(), vec![width])), ..self }
    }

    fn all(&self) -> impl Iterator<Item = &NormSpec> {
        [&self.before, &self.after, &self.of_sum].into_iter().flatten()
    }
}
