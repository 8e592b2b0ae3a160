//! The adapters of a model: which of them have their matrices beside its weights. They come as rows
//! ask for them, and go where another one needs their slot. Who is there changes no byte.

use std::ops::Range;

use super::head::SavedLinear;
use super::loading::LayerWeights;
use crate::load::combinations::{Side, Sides};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, EngineConfig, LoraConfig, LoraId, LoraModule};
use vllm_batch_base::files::quoted;
use vllm_batch_checkpoint::adapter::{
    AdapterFiles, AdapterMatrices, BaseCopy, LoraBlock, LoraPlace, LoraPlaces, MergedAdapter,
    PartOutputs, PlacedAdapter, PlacedHead, PlacedModule, SavedModule,
};
use vllm_batch_checkpoint::spec::Stage;
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::Device;
use vllm_batch_ops::batch::{Batch, LoraCounts};
use vllm_batch_ops::{
    LinearWeight, LoraDelta, LoraPart, LoraSlots, SlotRows, StepLoras, TableDelta, TableSlots,
};

/// All adapters that rows may name, and the slots of those that are resident.
#[derive(Debug, Default)]
pub struct ResidentLoras {
    /// By `LoraId`.
    adapters: Vec<Adapter>,
    slots: Vec<Slot>,
    num_steps: u64,
    num_loads: u64,
    /// The rank of the adapter that became part of the weights.
    merged_rank: Option<usize>,
}

/// An adapter, and where in the model its modules are.
#[derive(Debug)]
struct Adapter {
    files: AdapterFiles,
    layers: Vec<AdaptedLayer>,
    heads: Vec<PlacedHead>,
    /// What it was trained with as the table of tokens, where it has that.
    table_copy: Option<BaseCopy>,
}

/// A layer of the model that an adapter adds to.
#[derive(Debug)]
struct AdaptedLayer {
    place: LoraPlace,
    /// Outputs and inputs.
    shape: (usize, usize),
    parts: Vec<AdaptedPart>,
}

#[derive(Debug)]
struct AdaptedPart {
    /// Which of the adapter's modules.
    module: usize,
    /// Which outputs its rows are.
    outputs: Vec<PartOutputs>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    lora: Option<LoraId>,
    /// The last step that it was needed in.
    last_step: u64,
}

/// Where adapters' matrices go in a model's weights.
pub(super) struct AdaptedWeights<'a> {
    pub layers: &'a mut [LayerWeights],
    pub tokens: &'a mut TableSlots,
    /// The table itself, where tokens are looked up.
    pub table: Option<&'a LinearWeight>,
    /// What the rows of that table are multiplied by.
    pub table_scale: Option<f32>,
    pub lm_head: Option<&'a mut LoraSlots>,
}

impl AdaptedWeights<'_> {
    /// The slots of a linear layer. None: no logits are computed where states are asked for.
    fn slots_of(&mut self, place: LoraPlace) -> Option<&mut LoraSlots> {
        let slots = match place {
            LoraPlace::Layer { layer, block } => self.layers[layer].loras_mut(block),
            LoraPlace::LmHead if self.lm_head.is_none() => return None,
            LoraPlace::LmHead => self.lm_head.as_deref_mut(),
            LoraPlace::Tokens => None,
        };
        Some(slots.expect("adapters are placed where the model has a layer"))
    }

    /// What a slot has at a place is dropped, or replaced.
    fn set(&mut self, device: &Device, place: LoraPlace, slot: usize, delta: Option<LoraDelta>) {
        if let Some(slots) = self.slots_of(place) {
            slots.set(device, slot, delta);
        }
    }
}

impl LayerWeights {
    fn loras_mut(&mut self, block: LoraBlock) -> Option<&mut LoraSlots> {
        let layer = match block {
            LoraBlock::Qkv => &mut self.attention.as_mut()?.qkv,
            LoraBlock::AttentionOut => &mut self.attention.as_mut()?.out,
            LoraBlock::RecurrentIn => &mut self.recurrent.as_mut()?.inputs,
            LoraBlock::RecurrentOut => &mut self.recurrent.as_mut()?.out,
            LoraBlock::Up => &mut self.feed_forward.as_mut()?.mlp.as_mut()?.up,
            LoraBlock::Down => &mut self.feed_forward.as_mut()?.mlp.as_mut()?.down,
        };
        Some(&mut layer.loras)
    }
}

impl ResidentLoras {
    /// Reads the small part of all adapters: what they are, and whether the model has the places.
    /// One may become part of the model's weights, which are not loaded yet.
    ///
    /// # Errors
    /// An adapter is corrupt, of another model, or has what is not supported; or the weights are
    /// such that none is merged with.
    pub fn open(
        config: &EngineConfig,
        places: &LoraPlaces,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let LoraConfig { modules, max_lora_rank, merged, of_images: _ } = &config.lora;
        let lost = config.model.on_lost_file;
        let open = |module: &LoraModule| {
            let files = AdapterFiles::open(&module.dir, *max_lora_rank, lost)?;
            let PlacedAdapter { modules, heads } = places.place(&files)?;
            let is_of_table =
                |copy: &&BaseCopy| places.of_module(&copy.name) == Some(LoraPlace::Tokens);
            let table_copy = files.copies().iter().find(is_of_table).cloned();
            Ok(Adapter { layers: adapted_layers(&modules, places), heads, table_copy, files })
        };
        let adapters = modules.iter().map(open).collect::<Result<Vec<_>, EngineError>>()?;
        let slots = vec![Slot::default(); config.scheduler.max_loras.min(adapters.len())];
        let mut merged_rank = None;
        if let Some(module) = merged {
            let merged = MergedAdapter::open(module, *max_lora_rank, places, lost)?;
            merged_rank = Some(merged.rank());
            checkpoint.merge(merged)?;
        }
        Ok(Self { adapters, slots, merged_rank, ..Self::default() })
    }

    /// The same for a stage of so many layers of the model, which has what is placed there.
    pub(super) fn of_stage(mut self, stage: Stage, num_layers: usize) -> Self {
        let own = stage.first_layer..stage.first_layer + num_layers;
        for Adapter { layers, .. } in &mut self.adapters {
            layers.retain_mut(|AdaptedLayer { place, .. }| match place {
                LoraPlace::Layer { layer, .. } => {
                    let is_here = own.contains(layer);
                    *layer = layer.wrapping_sub(own.start);
                    is_here
                }
                LoraPlace::Tokens => stage.is_first,
                LoraPlace::LmHead => stage.is_last,
            });
        }
        self
    }

    /// Makes room on the device for as many adapters as there are slots, in steps of up to so many
    /// tokens and rows of logits.
    ///
    /// # Errors
    /// The device takes no adapters of this kind, or its memory does not suffice; or an adapter was
    /// trained with another table of tokens.
    pub(super) fn reserve(
        &self,
        device: &Device,
        mut weights: AdaptedWeights<'_>,
        (step, max_rows): (&mut StepLoras, (usize, usize)),
    ) -> Result<(), EngineError> {
        for Adapter { files, layers, table_copy, .. } in &self.adapters {
            if layers.iter().any(|layer| layer.place == LoraPlace::Tokens) {
                let table = weights.table.expect("it is looked up here");
                refuse_other_table(files, table_copy.as_ref(), table)?;
            }
        }
        let mut layers: Vec<(&AdaptedLayer, (usize, usize))> = Vec::new();
        let of_adapters = self.adapters.iter().flat_map(|adapter| {
            adapter.layers.iter().map(|layer| (layer, layer.num_parts_and_rank(&adapter.files)))
        });
        for (layer, (num_parts, rank)) in of_adapters {
            match layers.iter_mut().find(|(other, _)| other.place == layer.place) {
                Some((_, most)) => *most = (most.0.max(num_parts), most.1.max(rank)),
                None => layers.push((layer, (num_parts, rank))),
            }
        }
        for &(layer, most) in &layers {
            if layer.place == LoraPlace::Tokens {
                Sides::default().with([(Side::TableLora, true)]).check_on(device, None)?;
            } else if let Some(slots) = weights.slots_of(layer.place) {
                slots.reserve(device, layer.shape, self.slots.len(), most)?;
            }
        }
        match layers.iter().map(|(_, (num_parts, rank))| num_parts * rank).max() {
            Some(max_ranks) => step.reserve(device, max_rows, max_ranks),
            None => Ok(()),
        }
    }

    /// Brings the adapters of a step to where they are needed, and says which of its rows have
    /// which slots. Those that were needed last stay.
    ///
    /// # Errors
    /// A file cannot be read any more, or memory does not suffice.
    ///
    /// # Panics
    /// The step has more adapters than there are slots.
    pub(super) fn begin_step(
        &mut self,
        batch: &Batch,
        (device, dtype): (&Device, DType),
        mut weights: AdaptedWeights<'_>,
        step: &mut StepLoras,
    ) -> Result<(), EngineError> {
        self.num_steps += 1;
        for rows in &batch.loras {
            if let Some(slot) = self.slot_of(rows.lora) {
                self.slots[slot].last_step = self.num_steps;
            }
        }
        for rows in &batch.loras {
            if self.slot_of(rows.lora).is_none() {
                self.load(rows.lora, (device, dtype), &mut weights)?;
            }
        }
        step.of_tokens.clear();
        step.of_logits.clear();
        for rows in &batch.loras {
            let slot = self.slot_of(rows.lora).expect("adapters of the step were loaded");
            let range = |rows: &Range<u32>| rows.start as usize..rows.end as usize;
            step.of_tokens.push(SlotRows { slot, rows: range(&rows.tokens) });
            step.of_logits.push(SlotRows { slot, rows: range(&rows.logits) });
        }
        Ok(())
    }

    /// The layers of a classifier's head that adapters have in the place of the model's.
    ///
    /// # Errors
    /// A file cannot be read any more.
    pub fn saved_layers(&self) -> Result<Vec<(LoraId, Vec<SavedLinear>)>, EngineError> {
        let with_heads = (0..).zip(&self.adapters).filter(|(_, adapter)| !adapter.heads.is_empty());
        let saved = |(index, Adapter { files, heads, .. }): (u32, &Adapter)| {
            let layer = |&PlacedHead { module, layer }: &PlacedHead| {
                let SavedModule { weight, bias } = files.read_saved(&files.modules()[module])?;
                Ok(SavedLinear { layer, weight, bias })
            };
            let layers = heads.iter().map(layer).collect::<Result<_, EngineError>>()?;
            Ok((LoraId(index), layers))
        };
        with_heads.map(saved).collect()
    }

    /// What became of them.
    pub fn counts(&self) -> LoraCounts {
        let num_resident = self.slots.iter().filter(|slot| slot.lora.is_some()).count();
        LoraCounts { num_loads: self.num_loads, num_resident }
    }

    /// The largest rank of each adapter.
    pub fn ranks(&self) -> Vec<usize> {
        let largest =
            |adapter: &Adapter| adapter.files.modules().iter().map(|module| module.rank).max();
        let resident = self.adapters.iter().map(|adapter| largest(adapter).unwrap_or(0));
        self.merged_rank.into_iter().chain(resident).collect()
    }

    fn slot_of(&self, lora: LoraId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.lora == Some(lora))
    }

    fn load(
        &mut self,
        lora: LoraId,
        (device, dtype): (&Device, DType),
        weights: &mut AdaptedWeights<'_>,
    ) -> Result<(), EngineError> {
        let slots = self.slots.iter().enumerate();
        let (slot, oldest) = slots.min_by_key(|(_, slot)| slot.last_step).expect("a slot");
        assert!(oldest.last_step < self.num_steps, "as many adapters as slots");
        if let Some(before) = oldest.lora {
            for layer in &self.adapters[before.0 as usize].layers {
                match layer.place {
                    LoraPlace::Tokens => weights.tokens.set(slot, None),
                    place => weights.set(device, place, slot, None),
                }
            }
        }
        self.slots[slot] = Slot::default();
        let Adapter { files, layers, .. } = &self.adapters[lora.0 as usize];
        for layer in layers {
            let mut parts = layer.parts(files)?;
            if layer.place == LoraPlace::Tokens {
                parts[0].scale *= weights.table_scale.unwrap_or(1.0);
                let delta = TableDelta::load(device, &parts[0]);
                weights.tokens.set(slot, Some(delta));
            } else {
                let delta = LoraDelta::load(device, dtype, layer.shape.1, &parts)?;
                weights.set(device, layer.place, slot, Some(delta));
            }
        }
        self.slots[slot] = Slot { lora: Some(lora), last_step: self.num_steps };
        self.num_loads += 1;
        Ok(())
    }
}

/// peft writes a copy of a table beside what it adds to its rows.
fn refuse_other_table(
    files: &AdapterFiles,
    copy: Option<&BaseCopy>,
    table: &LinearWeight,
) -> Result<(), EngineError> {
    let Some(copy) = copy else { return Ok(()) };
    match table.first_unlike(&files.read_copy(copy)?) {
        None => Ok(()),
        Some(row) => Err(files.error(format!(
            "{}: row {row} of its copy is not that of the model; the adapter was trained with \
             another model, or changed the table",
            quoted(&copy.name)
        ))),
    }
}

impl AdaptedLayer {
    /// How many parts it has, and the largest rank of one.
    fn num_parts_and_rank(&self, files: &AdapterFiles) -> (usize, usize) {
        let num_parts = self.parts.iter().map(|part| part.outputs.len()).sum();
        let ranks = self.parts.iter().map(|part| files.modules()[part.module].rank);
        (num_parts, ranks.max().unwrap_or(0))
    }

    /// Reads its matrices.
    fn parts(&self, files: &AdapterFiles) -> Result<Vec<LoraPart>, EngineError> {
        let mut parts = Vec::new();
        for AdaptedPart { module, outputs } in &self.parts {
            let module = &files.modules()[*module];
            let (rank, scale) = (module.rank, module.scale);
            let AdapterMatrices { a, b } = files.read(module)?;
            parts.extend(outputs.iter().map(|PartOutputs { outputs, rows }| {
                let row = |row: &usize| b[row * rank..][..rank].iter().copied();
                let b = rows.iter().flat_map(row).collect();
                LoraPart { a: a.clone(), b, rank, scale, first_output: outputs.start }
            }));
        }
        Ok(parts)
    }
}

/// The layers that an adapter adds to, each once.
fn adapted_layers(placed: &[PlacedModule], places: &LoraPlaces) -> Vec<AdaptedLayer> {
    let mut layers: Vec<AdaptedLayer> = Vec::new();
    for &PlacedModule { module, place, part } in placed {
        let spec = places.spec(place);
        let part = AdaptedPart { module, outputs: places.outputs(place, part) };
        match layers.iter_mut().find(|layer| layer.place == place) {
            Some(layer) => layer.parts.push(part),
            None => {
                let shape = (spec.n(), spec.k);
                layers.push(AdaptedLayer { place, shape, parts: vec![part] });
            }
        }
    }
    for layer in &mut layers {
        layer.parts.sort_by_key(|part| part.outputs.first().map(|run| run.outputs.start));
    }
    layers
}
