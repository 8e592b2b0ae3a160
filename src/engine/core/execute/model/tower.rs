//! `Tower`: runs a `TowerSpec`, from patches of images to embeddings of a decoder's tokens. Each
//! tile is a text of its own to the attention, so no number depends on what is encoded beside it.

use std::ops::Range;

use super::loading::{LayerWeights, Loader};
use super::stream::Stream;
use super::text_layers::{TextBuffers, TextLayers};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::TowerSpec;
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::{Layout, PatchOrder, Patches};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{BandTables, LinearWeight, NormWeight, StepInputs, TextLimits};

/// A loaded tower with the buffers of its forward pass.
#[derive(Debug)]
pub struct Tower {
    spec: TowerSpec,
    weights: Weights,
    dtype: DType,
    inputs: StepInputs,
    /// Refilled by every step.
    batch: Batch,
    /// Made for the first image, and again for a larger tile.
    buffers: Option<Buffers>,
}

#[derive(Debug)]
struct Weights {
    /// (width, 3 * patch_size²)
    patches: LinearWeight,
    /// (side², width)
    positions: Tensor,
    layers: Vec<LayerWeights>,
    final_norm: Option<NormWeight>,
    /// (the decoder's hidden_size, merge_size² * width)
    connector: LinearWeight,
}

/// Activations, for steps of up to T patches.
#[derive(Debug)]
struct Buffers {
    max_num_patches: usize,
    /// (STEP_PATCHES, 3 * patch_size²)
    samples: Tensor,
    stream: Stream,
    text: TextBuffers,
    /// (T, width), and (T / merge_size², merge_size² * width): patches of a tile by tokens.
    merged: Tensor,
}

/// A tile of one of the images of a step.
#[derive(Clone, Debug)]
struct Tile {
    image: usize,
    /// Which of its tiles.
    index: usize,
}

impl Tower {
    /// Patches of a step, unless a single tile has more; so many are floats at a time.
    pub const STEP_PATCHES: usize = 4096;

    /// Packs the weights of a checkpoint, which whoever opened it has checked, and finishes.
    ///
    /// # Errors
    /// A weight is missing, or memory does not suffice.
    pub fn load(
        spec: TowerSpec,
        dtype: DType,
        device: &Device,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let mut loader = Loader { dtype, device, checkpoint };
        let layers = spec.layers.iter().map(|layer| loader.layer(layer));
        let weights = Weights {
            layers: layers.collect::<Result<_, _>>()?,
            patches: loader.linear(&spec.patches)?,
            positions: loader.table(&spec.positions.table)?,
            final_norm: loader.norm(spec.final_norm.as_ref())?,
            connector: loader.linear(&spec.connector)?,
        };
        let limits = limits(Tower::STEP_PATCHES);
        let inputs = StepInputs::of_texts(device, spec.heads(), limits)?;
        Ok(Self { spec, weights, dtype, inputs, batch: Batch::default(), buffers: None })
    }

    /// The embeddings (num_tokens, hidden_size) of each image, whose bytes are these numbers.
    ///
    /// # Errors
    /// The device failed, or has no memory.
    ///
    /// # Panics
    /// The patches are of another tower.
    pub fn encode(
        &mut self,
        device: &Device,
        images: &[Patches],
        tables: &BandTables,
    ) -> Result<Vec<Tensor>, EngineError> {
        let hidden_size = self.spec.connector.n();
        let rows = images.iter().map(|image| {
            let num_tokens = image.layout.num_tokens();
            let mut rows = device.tensor(num_tokens, hidden_size, Precision::Full)?;
            rows.set_num_rows(num_tokens);
            Ok(rows)
        });
        let mut rows: Vec<Tensor> = rows.collect::<Result<_, EngineError>>()?;
        for image in images {
            let Layout { merge_size, .. } = image.layout;
            assert_eq!(image.patch_size, self.spec.patch_size, "patches of another tower");
            assert_eq!(merge_size, self.spec.merge_size, "tokens of another tower");
            assert!(image.order == PatchOrder::Rows && image.num_frames == 1, "as its spec says");
        }
        let tiles = images.iter().enumerate().flat_map(|(image, patches)| {
            (0..patches.layout.num_tiles()).map(move |index| Tile { image, index })
        });
        let tiles: Vec<_> = tiles.collect();
        let num_patches = |tile: &Tile| patches_per_tile(images[tile.image].layout);
        let mut rest = &tiles[..];
        while !rest.is_empty() {
            let mut sum = 0;
            let fits = rest.iter().take_while(|tile| {
                let is_first = sum == 0;
                sum += num_patches(tile);
                is_first || sum <= Tower::STEP_PATCHES
            });
            let (step, after) = rest.split_at(fits.count());
            self.run(device, (images, step), tables, &mut rows)?;
            rest = after;
        }
        device.check()?;
        Ok(rows)
    }

    /// Encodes the tiles of a step into their rows.
    fn run(
        &mut self,
        device: &Device,
        (images, tiles): (&[Patches], &[Tile]),
        tables: &BandTables,
        rows: &mut [Tensor],
    ) -> Result<(), EngineError> {
        self.place(images, tiles);
        self.reserve(device, self.batch.num_tokens())?;
        let Self { spec, weights, inputs, batch, buffers, .. } = self;
        let Some(buffers) = buffers else { unreachable!("there is room for the step") };
        let step = inputs.step(device, batch);
        let Buffers { samples, stream, text, merged, .. } = buffers;
        stream.begin(step);
        stream.loras.begin(device, step.num_rows(), 0);
        let starts = batch.query_start_loc.windows(2).map(|pair| pair[0] as usize);
        for (tile, first) in tiles.iter().zip(starts.clone()) {
            // Through `delta`, whose type a GPU's linear layers write.
            let bytes = tile.bytes(&images[tile.image]);
            let chunks = bytes.chunks(Tower::STEP_PATCHES * samples.width());
            for (chunk, bytes) in chunks.enumerate() {
                ops::patch_values(device, bytes, tables, samples);
                let out = stream.delta.rows_from_mut(first + chunk * Tower::STEP_PATCHES);
                let num_rows = samples.num_rows();
                ops::linear_rows(device, samples.rows_from(0), &weights.patches, out, num_rows);
            }
        }
        ops::fill_zero(device, &mut stream.residual, step.num_rows());
        ops::add(device, &mut stream.residual, &stream.delta);
        ops::add_rows_of(device, step.positions(), 0, &weights.positions, &mut stream.residual);
        let layers = (&spec.layers[..], &weights.layers[..]);
        TextLayers { device, layers, ropes: &[], bias: None, is_causal: false, step }
            .run(stream, text);
        if let Some(norm) = &weights.final_norm {
            ops::norm_in_place(device, &mut stream.residual, norm);
        }
        for (tile, first) in tiles.iter().zip(starts) {
            let layout = images[tile.image].layout;
            let by_token = patches_by_token(layout, first as u32);
            merged.reshape(by_token.len(), spec.width());
            ops::gather_rows(device, &stream.residual, by_token[..].into(), merged);
            let num_tokens = layout.tokens_per_tile();
            merged.reshape(num_tokens, spec.connector.k);
            let out = rows[tile.image].rows_from_mut(tile.index * num_tokens);
            ops::linear_rows(device, merged.rows_from(0), &weights.connector, out, num_tokens);
        }
        Ok(())
    }

    /// The batch = the patches of the tiles, each tile a text.
    fn place(&mut self, images: &[Patches], tiles: &[Tile]) {
        let batch = &mut self.batch;
        batch.clear();
        batch.query_start_loc.push(0);
        for tile in tiles {
            let Layout { rows, columns, .. } = images[tile.image].layout;
            batch.positions.extend(self.spec.positions.of_grid(rows, columns));
            batch.query_start_loc.push(batch.positions.len() as u32);
        }
        batch.input_ids.resize(batch.positions.len(), 0);
    }

    /// Makes room for a step of so many patches.
    fn reserve(&mut self, device: &Device, num_patches: usize) -> Result<(), EngineError> {
        if self.buffers.as_ref().is_some_and(|buffers| num_patches <= buffers.max_num_patches) {
            return Ok(());
        }
        let max_num_patches = num_patches.max(Tower::STEP_PATCHES);
        self.buffers = None;
        self.buffers = Some(Buffers::new((device, self.dtype), &self.spec, max_num_patches)?);
        Ok(())
    }
}

impl Buffers {
    fn new(
        (device, dtype): (&Device, DType),
        spec: &TowerSpec,
        max_num_patches: usize,
    ) -> Result<Self, EngineError> {
        let on = (device, dtype);
        let activations = |rows, width| device.tensor(rows, width, Precision::Activation);
        Ok(Self {
            max_num_patches,
            samples: activations(Tower::STEP_PATCHES, spec.patches.k)?,
            stream: Stream::new(on, (max_num_patches, spec.width()), &spec.layers)?,
            text: TextBuffers::new(on, &spec.layers, spec.heads(), limits(max_num_patches))?,
            // The stream's type, whose rows it takes.
            merged: device.tensor(max_num_patches, spec.width(), Precision::Full)?,
        })
    }
}

impl Tile {
    /// The samples of its patches.
    fn bytes<'a>(&self, image: &'a Patches) -> &'a [u8] {
        let num_tiles = image.layout.num_tiles();
        let len = image.samples.len() / num_tiles;
        let Range { start, end } = self.index * len..(self.index + 1) * len;
        &image.samples[start..end]
    }
}

/// A tile is never longer than a step, which has a text for each patch at most.
fn limits(max_num_patches: usize) -> TextLimits {
    TextLimits {
        max_num_tokens: max_num_patches,
        max_num_texts: max_num_patches,
        max_model_len: max_num_patches,
    }
}

fn patches_per_tile(layout: Layout) -> usize {
    layout.rows * layout.columns
}

/// Rows of the stream of a tile that begins at `first`: the patches of each token beside each
/// other, row after row, as tokens are.
fn patches_by_token(layout: Layout, first: u32) -> Vec<u32> {
    let Layout { rows, columns, merge_size, .. } = layout;
    let mut patches = Vec::with_capacity(patches_per_tile(layout));
    for row in 0..rows / merge_size {
        for column in 0..columns / merge_size {
            for within in 0..merge_size * merge_size {
                let row = row * merge_size + within / merge_size;
                let column = column * merge_size + within % merge_size;
                patches.push(first + (row * columns + column) as u32);
            }
        }
    }
    patches
}

#[cfg(test)]
#[path = "tower_tests.rs"]
mod tests;
