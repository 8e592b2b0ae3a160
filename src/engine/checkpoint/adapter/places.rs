//! Where in a model the modules of an adapter are.
//!
//! Names of modules are those of the class that an adapter was trained with, which may wrap the
//! model's layers in names of its own, or leave such names out. What is left without them is
//! compared.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::{AdapterFiles, AdapterKind, AdapterModule, BaseCopy};
use crate::spec::{
    DecoderSpec, EncoderSpec, HeadSpec, LayerSpec, LinearSpec, RecurrentSpec, StreamsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// A linear layer that adapters may add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoraPlace {
    /// One of a layer.
    Layer {
        /// Index of the layer.
        layer: usize,
        /// Linear layer within it.
        block: LoraBlock,
    },
    /// The table of tokens, where it is looked up.
    Tokens,
    /// The output layer, which may be the table of tokens.
    LmHead,
}

/// A linear layer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoraBlock {
    /// The first one of attention.
    Qkv,
    /// The last one of attention.
    AttentionOut,
    /// The first one of a block that keeps a state.
    RecurrentIn,
    /// The last one of such a block.
    RecurrentOut,
    /// The first one of an MLP, or of the expert of all tokens.
    Up,
    /// The last one of it.
    Down,
}

/// All places of a model.
#[derive(Clone, Debug)]
pub struct LoraPlaces {
    linears: Vec<(LoraPlace, LinearSpec)>,
    /// The layers of its head.
    heads: Vec<LinearSpec>,
    /// The table of tokens is the output layer too.
    is_tied: bool,
    /// Names of linear layers that take no adapters, without what wraps them.
    others: HashSet<String>,
    /// Prefixes of the names of modules that a class declares and does not compute.
    idle: Vec<String>,
}

/// A and B of an adapter, and where they add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedModule {
    /// Index into `AdapterFiles::modules`.
    pub module: usize,
    /// The linear layer.
    pub place: LoraPlace,
    /// Part of the linear layer.
    pub part: usize,
}

/// A layer of a head that an adapter has whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedHead {
    /// Index into `AdapterFiles::modules`.
    pub module: usize,
    /// Index into `HeadSpec::layers`.
    pub layer: usize,
}

/// Where all modules of an adapter are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacedAdapter {
    /// Those with A and B.
    pub modules: Vec<PlacedModule>,
    /// Those that are there whole.
    pub heads: Vec<PlacedHead>,
}

/// Names that classes put around a model's layers, and others leave out.
const WRAPPERS: [&str; 14] = [
    "backbone",
    "bert",
    "distilbert",
    "gpt_neox",
    "gte",
    "language_model",
    "model",
    "mpnet",
    "new",
    "nomic_bert",
    "roberta",
    "text_model",
    "transformer",
    "auto_model",
];

/// A module's name without what wraps the model.
pub(super) fn bare(name: &str) -> &str {
    let mut rest = name;
    while let Some((first, inner)) = rest.split_once('.')
        && WRAPPERS.contains(&first)
    {
        rest = inner;
    }
    rest
}

impl LoraPlaces {
    /// Those of a decoder.
    pub fn of_decoder(spec: &DecoderSpec) -> Self {
        let tokens = &spec.embedding.tokens;
        let lm_head = spec.output.lm_head.clone();
        let lm_head = lm_head.unwrap_or_else(|| LinearSpec::new("lm_head", tokens.n(), tokens.k));
        let ends = [(LoraPlace::Tokens, tokens.clone()), (LoraPlace::LmHead, lm_head)];
        let projections = [&spec.embedding.projection, &spec.output.projection];
        let inputs = spec.embedding.of_layers.iter().flat_map(|of| [&of.table, &of.projection]);
        let positions = spec.embedding.positions.iter().map(|positions| &positions.table);
        let streams = spec.embedding.streams.iter().flat_map(StreamsSpec::linears);
        let inputs = inputs.chain(streams);
        let others = projections.into_iter().flatten().chain(inputs).chain(positions);
        Self { is_tied: spec.output.lm_head.is_none(), ..Self::of(&spec.layers, ends, others) }
    }

    /// Those of an encoder.
    pub fn of_encoder(spec: &EncoderSpec) -> Self {
        let ends = [(LoraPlace::Tokens, spec.tokens.clone())];
        let inputs = spec.layer_inputs.iter().flat_map(|of| [&of.table, &of.projection]);
        let positions = spec.positions.iter().map(|positions| &positions.table);
        let bias = spec.relative_bias.iter().map(|bias| &bias.table);
        let others = inputs.chain(positions).chain(bias).chain(&spec.token_types);
        let is_tied = spec.output.as_ref().is_some_and(|output| output.lm_head.is_none());
        Self { is_tied, ..Self::of(&spec.layers, ends, others) }
    }

    /// The same of a model with a head, of which an adapter may have layers whole.
    pub fn with_head(mut self, head: &HeadSpec) -> Self {
        self.heads = head.layers.iter().map(|layer| layer.linear.clone()).collect();
        self
    }

    fn of<'a>(
        layers: &[LayerSpec],
        ends: impl IntoIterator<Item = (LoraPlace, LinearSpec)>,
        others: impl Iterator<Item = &'a LinearSpec>,
    ) -> Self {
        let of_layers = layers.iter().enumerate().flat_map(|(layer, spec)| {
            of_layer(spec)
                .map(move |(block, linear)| (LoraPlace::Layer { layer, block }, linear.clone()))
        });
        let linears: Vec<_> = of_layers.chain(ends).collect();
        let names = |linear: &LinearSpec| -> Vec<String> {
            linear.parts.iter().map(|part| bare(&part.name).to_owned()).collect()
        };
        let all = layers.iter().flat_map(LayerSpec::linears).flat_map(names);
        let mut others: HashSet<String> = all.chain(others.flat_map(names)).collect();
        for name in linears.iter().flat_map(|(_, linear)| names(linear)) {
            others.remove(&name);
        }
        let idle = layers.iter().filter_map(|layer| layer.attention.as_ref());
        let idle = idle.flat_map(|attention| &attention.unused);
        let idle = idle.map(|name| bare(name).to_owned()).collect();
        Self { linears, heads: Vec::new(), is_tied: false, others, idle }
    }

    /// Whether the table of tokens is the output layer too.
    pub(super) fn is_tied(&self) -> bool {
        self.is_tied
    }

    /// A layer of the head.
    pub(super) fn head_layer(&self, layer: usize) -> &LinearSpec {
        &self.heads[layer]
    }

    /// All of them, with their linear layers.
    pub fn linears(&self) -> &[(LoraPlace, LinearSpec)] {
        &self.linears
    }

    /// The place of a module.
    pub fn of_module(&self, name: &str) -> Option<LoraPlace> {
        self.by_name().get(bare(name)).map(|(index, _)| self.linears[*index].0)
    }

    /// The linear layer of a place.
    ///
    /// # Panics
    /// The model has no such place.
    pub fn spec(&self, place: LoraPlace) -> &LinearSpec {
        let found = self.linears.iter().find(|(known, _)| *known == place);
        &found.expect("a place of the model").1
    }

    /// Outputs of a place for the rows of B of a part.
    ///
    /// # Panics
    /// The model has no such place.
    pub fn outputs(&self, place: LoraPlace, part: usize) -> Vec<PartOutputs> {
        let linear = self.spec(place);
        match place {
            // What is looked up is a row of the table: its columns are the outputs.
            LoraPlace::Tokens => {
                vec![PartOutputs { outputs: 0..linear.k, rows: (0..linear.k).collect() }]
            }
            LoraPlace::Layer { .. } | LoraPlace::LmHead => part_outputs(linear, part),
        }
    }

    /// Where the modules of an adapter are.
    ///
    /// # Errors
    /// The model has no such module, or one of another shape, or computes it without adapters.
    pub fn place(&self, files: &AdapterFiles) -> Result<PlacedAdapter, EngineError> {
        let error = |text| files.error(text);
        let named = self.by_name();
        let mut placed = PlacedAdapter::default();
        for (index, module) in files.modules().iter().enumerate() {
            if let AdapterKind::Saved { bias } = module.kind {
                let layer = self.place_head(module, bias).map_err(error)?;
                placed.heads.push(PlacedHead { module: index, layer });
                continue;
            }
            let Some(&(index_of_linear, part)) = named.get(bare(&module.name)) else {
                let name = format!("{}.", bare(&module.name));
                if self.idle.iter().any(|idle| name.starts_with(idle)) {
                    continue;
                }
                return Err(error(self.no_place(module)));
            };
            let (place, linear) = &self.linears[index_of_linear];
            let found = PlacedModule { module: index, place: *place, part };
            check_shape(module, *place, (linear, part)).map_err(error)?;
            if let Some(other) = placed
                .modules
                .iter()
                .find(|other| (other.place, other.part) == (found.place, found.part))
            {
                let other = quoted(&files.modules()[other.module].name);
                let name = quoted(&module.name);
                return Err(error(format!("modules {other} and {name} are one of the model")));
            }
            placed.modules.push(found);
        }
        files.check_targets(named.keys().copied())?;
        for copy in files.copies() {
            self.check_copy(copy, &named).map_err(error)?;
        }
        Ok(placed)
    }

    /// Index of the linear layer and of the part, by the part's name without its wrapping.
    pub(super) fn by_name(&self) -> HashMap<&str, (usize, usize)> {
        let parts = self.linears.iter().enumerate().flat_map(|(index, (_, linear))| {
            let names = linear.parts.iter().map(|part| bare(&part.name));
            names.enumerate().map(move |(part, name)| (name, (index, part)))
        });
        parts.collect()
    }

    fn place_head(&self, module: &AdapterModule, bias: bool) -> Result<usize, String> {
        let name = bare(&module.name);
        let found = self
            .heads
            .iter()
            .position(|linear| matches!(&linear.parts[..], [part] if bare(&part.name) == name));
        let name = quoted(&module.name);
        let Some(layer) = found else {
            return Err(format!("{name} is in `modules_to_save`, and the model has no such head"));
        };
        let linear = &self.heads[layer];
        let (own, found) = ((linear.n(), linear.k), (module.num_outputs, module.num_inputs));
        if own != found {
            return Err(format!("{name} has shape {found:?}, the model's head has {own:?}"));
        }
        match (linear.bias, bias) {
            (true, false) => Err(format!("{name} has no bias, the model's head has one")),
            (false, true) => Err(format!("{name} has a bias, the model's head has none")),
            _ => Ok(layer),
        }
    }

    fn check_copy(
        &self,
        copy: &BaseCopy,
        named: &HashMap<&str, (usize, usize)>,
    ) -> Result<(), String> {
        let found = named.get(bare(&copy.name)).map(|(index, _)| &self.linears[*index].1);
        let own = found.map(|linear| [linear.n(), linear.k]);
        match own {
            Some(own) if own == copy.shape => Ok(()),
            Some(own) => Err(format!(
                "it has a copy of {} of shape {:?}, the model's is {own:?}; tokens that were added \
                 are not supported",
                quoted(&copy.name),
                copy.shape
            )),
            None => Err(format!("{} is not in the model", quoted(&copy.name))),
        }
    }

    /// Why a module has no place, and which have.
    fn no_place(&self, module: &AdapterModule) -> String {
        let is_there = self.others.contains(bare(&module.name));
        let is_head = self.heads.iter().flat_map(|head| &head.parts);
        let is_head = is_head.into_iter().any(|part| bare(&part.name) == bare(&module.name));
        let what = match is_there || is_head {
            true => "is computed without adapters in this model",
            false => "is not in the model",
        };
        let parts = self.linears.iter().flat_map(|(_, linear)| &linear.parts);
        let last = |name: &str| name.rsplit_once('.').map_or(name, |(_, last)| last).to_owned();
        let known: BTreeSet<String> = parts.map(|part| last(&part.name)).collect();
        let known: Vec<String> = known.into_iter().collect();
        format!(
            "module {} {what}; modules that take adapters are {}",
            quoted(&module.name),
            known.join(", ")
        )
    }
}

/// Linear layers of a layer that take adapters.
fn of_layer(spec: &LayerSpec) -> impl Iterator<Item = (LoraBlock, &LinearSpec)> {
    // What layers share is computed without adapters.
    let attention = spec.attention.iter().filter(|_| spec.memory.is_none());
    let attention = attention.flat_map(|attention| {
        [(LoraBlock::Qkv, &attention.qkv), (LoraBlock::AttentionOut, &attention.out)]
    });
    let recurrent = spec.recurrent.iter().map(RecurrentSpec::linears);
    let recurrent = recurrent.flat_map(|[inputs, out]| {
        [(LoraBlock::RecurrentIn, inputs), (LoraBlock::RecurrentOut, out)]
    });
    let mlp = spec.mlp().map(|mlp| (&mlp.up, &mlp.down));
    let shared = spec.experts().and_then(|experts| experts.shared.as_ref());
    let mlp = mlp.or(shared.map(|shared| (&shared.mlp.up, &shared.mlp.down)));
    let mlp = mlp.into_iter().flat_map(|(up, down)| [(LoraBlock::Up, up), (LoraBlock::Down, down)]);
    attention.chain(recurrent).chain(mlp)
}

/// Whether A and B fit the part of a layer that they add to.
fn check_shape(
    module: &AdapterModule,
    place: LoraPlace,
    (linear, part): (&LinearSpec, usize),
) -> Result<(), String> {
    let is_table = place == LoraPlace::Tokens;
    let name = quoted(&module.name);
    if is_table != (module.kind == AdapterKind::Embedding) {
        return Err(match is_table {
            true => {
                format!("{name} is a table: lora_embedding_A and lora_embedding_B are of those")
            }
            false => format!("{name} is no table: lora_A and lora_B are of linear layers"),
        });
    }
    let own = match is_table {
        true => (linear.n(), linear.k),
        false => (linear.k, linear.parts[part].rows),
    };
    let found = (module.num_inputs, module.num_outputs);
    match own == found {
        true => Ok(()),
        false => Err(format!(
            "{name} has {} inputs and {} outputs, the model's has {} and {}; is it an adapter of \
             another model?",
            found.0, found.1, own.0, own.1
        )),
    }
}

/// Outputs of a layer, one after the other, that are rows of one of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOutputs {
    /// The outputs.
    pub outputs: Range<usize>,
    /// Row of the part for each output.
    pub rows: Vec<usize>,
}

/// Outputs of a layer for the rows of a part: B has its rows as the part has them, and the
/// layer's outputs may be in another order.
pub(super) fn part_outputs(linear: &LinearSpec, part: usize) -> Vec<PartOutputs> {
    let first: usize = linear.parts[..part].iter().map(|part| part.rows).sum();
    let stored = first..first + linear.parts[part].rows;
    let row_of = |output: usize| match linear.order.rows() {
        None => output,
        Some(rows) => rows[output] as usize,
    };
    let mut runs: Vec<PartOutputs> = Vec::new();
    for output in (0..linear.n()).filter(|output| stored.contains(&row_of(*output))) {
        let row = row_of(output) - first;
        match runs.last_mut().filter(|run| run.outputs.end == output) {
            Some(run) => {
                run.outputs.end += 1;
                run.rows.push(row);
            }
            None => runs.push(PartOutputs { outputs: output..output + 1, rows: vec![row] }),
        }
    }
    runs
}
