//! `Tower`: runs a `TowerSpec`, from patches of images to embeddings of a decoder's tokens. Each
//! tile is a text of its own to the attention, so no number depends on what is encoded beside it.

use std::borrow::Cow;

use super::connector::{Connector, ConnectorBuffers};
use super::loading::{LayerWeights, Loader, rotary_table};
use super::stream::Stream;
use super::text_layers::{TextBuffers, TextLayers, TextWindows};
use super::windows::Windows;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{GridFit, TowerSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::{Layout, PatchOrder, Patches};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{
    BandTables, LinearWeight, MixedRow, NormWeight, RotaryTable, Step, StepInputs, TextLimits,
};

/// A loaded tower with the buffers of its forward pass.
#[derive(Debug)]
pub struct Tower {
    spec: TowerSpec,
    weights: Weights,
    dtype: DType,
    inputs: StepInputs,
    /// Refilled by every step.
    batch: Batch,
    /// Its positions, where they are mixtures.
    mixed: Vec<MixedRow>,
    /// Its windows as texts; empty: there are none.
    windows: Batch,
    /// Made for the first image, and again for a larger tile.
    buffers: Option<Buffers>,
}

#[derive(Debug)]
struct Weights {
    /// (width, 3 * frames * patch_size²)
    patches: LinearWeight,
    /// (1, width)
    class_token: Option<Tensor>,
    /// (side² and the class token, width)
    positions: Option<Tensor>,
    /// At most one.
    ropes: Vec<RotaryTable>,
    embed_norm: Option<NormWeight>,
    layers: Vec<LayerWeights>,
    final_norm: Option<NormWeight>,
    /// That of embeddings, and those of what is added later.
    connectors: Vec<Connector>,
}

/// Activations, for steps of up to T patches and class tokens.
#[derive(Debug)]
struct Buffers {
    max_num_tokens: usize,
    /// (STEP_PATCHES, 3 * frames * patch_size²)
    samples: Tensor,
    stream: Stream,
    text: TextBuffers,
    /// One for each connector.
    connectors: Vec<ConnectorBuffers>,
}

/// A tile of one of the images of a step.
#[derive(Clone, Debug)]
struct Tile {
    image: usize,
    /// Which of its tiles.
    index: usize,
    /// Of a tower that has any.
    windows: Option<Windows>,
}

impl Tower {
    /// Patches and class tokens of a step, unless a single tile has more; so many are floats at a
    /// time.
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
        let layers = layers.collect::<Result<_, _>>()?;
        let (class_token, positions) = (spec.class_token.as_ref(), spec.positions.as_ref());
        let ropes = spec.rope.iter().map(|rope| rotary_table(device, rope, 0));
        let ropes = ropes.collect::<Result<_, _>>()?;
        let connectors = spec.connectors();
        let connectors = connectors
            .map(|connector| Connector::load(&mut loader, connector, spec.merge_size))
            .collect::<Result<_, _>>()?;
        let weights = Weights {
            layers,
            patches: loader.linear(&spec.patches)?,
            class_token: class_token.map(|tensor| loader.row(tensor)).transpose()?,
            positions: positions.map(|positions| loader.table(&positions.table)).transpose()?,
            ropes,
            embed_norm: loader.norm(spec.embed_norm.as_ref())?,
            final_norm: loader.norm(spec.final_norm.as_ref())?,
            connectors,
        };
        let limits = limits(Tower::STEP_PATCHES);
        let inputs = StepInputs::of_texts(device, spec.heads(), limits)?;
        let (batch, windows, mixed) = Default::default();
        Ok(Self { spec, weights, dtype, inputs, batch, mixed, windows, buffers: None })
    }

    /// The embeddings (num_tokens, hidden_size) of each image, whose bytes are these numbers, and
    /// behind them as many rows of each kind that is added later.
    ///
    /// # Errors
    /// The device failed, or has no memory. Or tiles are not as the tower was made for.
    ///
    /// # Panics
    /// The patches are of another tower.
    pub fn encode(
        &mut self,
        device: &Device,
        images: &[Patches],
        tables: &BandTables,
    ) -> Result<Vec<Tensor>, EngineError> {
        let rows = images.iter().map(|image| self.rows(device, image.layout.num_tokens()));
        let mut rows: Vec<Tensor> = rows.collect::<Result<_, EngineError>>()?;
        for image in images {
            let Layout { merge_size, .. } = image.layout;
            assert_eq!(image.patch_size, self.spec.patch_size, "patches of another tower");
            assert_eq!(merge_size, self.spec.merge_size, "tokens of another tower");
            self.check_grid(image)?;
        }
        let tiles = images.iter().enumerate().flat_map(|(image, patches)| {
            let windows = self.windows_of(patches);
            (0..patches.layout.num_tiles()).map(move |index| {
                let windows = windows.clone();
                Tile { image, index, windows }
            })
        });
        let tiles: Vec<_> = tiles.collect();
        let num_class_tokens = self.num_class_tokens();
        let num_tokens =
            |tile: &Tile| patches_per_tile(images[tile.image].layout) + num_class_tokens;
        let mut rest = &tiles[..];
        while !rest.is_empty() {
            let mut sum = 0;
            let fits = rest.iter().take_while(|tile| {
                let is_first = sum == 0;
                sum += num_tokens(tile);
                is_first || sum <= Tower::STEP_PATCHES
            });
            let (step, after) = rest.split_at(fits.count());
            self.run(device, (images, step), tables, &mut rows)?;
            rest = after;
        }
        device.check()?;
        Ok(rows)
    }

    /// Rows that it gives of a token: its embedding, and what is added later. Those of a kind lie
    /// beside each other.
    pub fn rows_per_token(&self) -> usize {
        1 + self.spec.deep.len()
    }

    /// What it would give of so many tokens, zeros.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn zeros(&self, device: &Device, num_tokens: usize) -> Result<Tensor, EngineError> {
        let mut rows = self.rows(device, num_tokens)?;
        let num_rows = rows.num_rows();
        ops::fill_zero(device, &mut rows, num_rows);
        Ok(rows)
    }

    fn rows(&self, device: &Device, num_tokens: usize) -> Result<Tensor, EngineError> {
        let num_rows = num_tokens * self.rows_per_token();
        let mut rows = device.tensor(num_rows, self.spec.connector.n(), Precision::Full)?;
        rows.set_num_rows(num_rows);
        Ok(rows)
    }

    /// Refuses patches that the tower was not made for.
    fn check_grid(&self, image: &Patches) -> Result<(), EngineError> {
        let (Layout { rows, columns, .. }, num_frames) = (image.layout, self.spec.num_frames());
        if image.num_frames != num_frames {
            return Err(EngineError::Model(format!(
                "the image processor makes patches of {} frames, and the vision tower was made for \
                 {num_frames}; help: preprocessor_config.json is another model's",
                image.num_frames
            )));
        }
        let Some(positions) = &self.spec.positions else { return Ok(()) };
        let side = positions.side;
        let is_for_all = positions.fit != GridFit::OwnAlone;
        if is_for_all || (rows, columns) == (side, side) {
            return Ok(());
        }
        Err(EngineError::Model(format!(
            "the image processor makes tiles of {columns}x{rows} patches, and the vision tower was \
             made for {side}x{side}; help: preprocessor_config.json is another model's"
        )))
    }

    /// The windows of each tile of an image.
    fn windows_of(&self, image: &Patches) -> Option<Windows> {
        let windows = self.spec.windows.as_ref()?;
        assert_eq!(image.order, PatchOrder::Merged, "windows are of tokens");
        Some(Windows::new(image.layout, windows.side))
    }

    /// Tokens before the patches of a tile.
    fn num_class_tokens(&self) -> usize {
        usize::from(self.spec.class_token.is_some())
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
        let num_class_tokens = self.num_class_tokens();
        let Self { spec, weights, inputs, batch, mixed, windows, buffers, .. } = self;
        let longest = batch.axes.iter().flatten().max().map_or(0, |last| *last as usize + 1);
        weights.ropes.iter_mut().for_each(|rope| rope.extend_to(longest));
        let Some(buffers) = buffers else { unreachable!("there is room for the step") };
        let step = inputs.step(device, batch);
        let starts = batch.query_start_loc.windows(2).map(|pair| pair[0] as usize);
        let tiles = tiles.iter().zip(starts).map(|(tile, first)| PlacedTile {
            image: &images[tile.image],
            index: tile.index,
            windows: tile.windows.as_ref(),
            first,
            first_patch: first + num_class_tokens,
            of_image: tile.image,
        });
        let tiles: Vec<_> = tiles.collect();
        let num_frames = spec.num_frames();
        let pass = Pass { device, num_frames, weights, step, tiles: &tiles };
        pass.embed((tables, mixed), buffers);
        let ends = spec.deep.iter().map(|deep| deep.layer + 1).chain([spec.layers.len()]);
        let mut first = 0;
        for (level, end) in ends.enumerate() {
            let Buffers { stream, text, .. } = &mut *buffers;
            let windows = spec.windows.as_ref().map(|spec| TextWindows {
                step: Step::on_host(windows),
                is_whole: &spec.is_whole[first..end],
            });
            let layers = (&spec.layers[first..end], &weights.layers[first..end]);
            let ropes = &weights.ropes;
            let layers =
                TextLayers { device, layers, ropes, bias: None, is_causal: false, windows, step };
            layers.run(stream, text);
            if level < spec.deep.len() {
                pass.connect(1 + level, buffers, rows);
            }
            first = end;
        }
        if let Some(norm) = &weights.final_norm {
            ops::norm_in_place(device, &mut buffers.stream.residual, norm);
        }
        pass.connect(0, buffers, rows);
        Ok(())
    }

    /// The batch = the patches of the tiles, each tile a text, behind its class token.
    fn place(&mut self, images: &[Patches], tiles: &[Tile]) {
        let num_class_tokens = self.num_class_tokens() as u32;
        let Self { spec, batch, mixed, windows, .. } = self;
        mixed.clear();
        for batch in [&mut *batch, &mut *windows] {
            batch.clear();
            batch.query_start_loc.push(0);
        }
        for tile in tiles {
            let Patches { layout, order, .. } = images[tile.image];
            batch.positions.extend(0..num_class_tokens);
            match &spec.positions {
                None => {}
                Some(positions) if positions.fit == GridFit::Between => {
                    let grid = (layout.rows, layout.columns);
                    mixed.extend(places(layout, order).map(|place| positions.between(grid, place)));
                }
                Some(positions) => {
                    assert_eq!(order, PatchOrder::Rows, "positions are row after row");
                    let of_grid = positions.of_grid(layout.rows, layout.columns);
                    batch.positions.extend(of_grid.map(|position| num_class_tokens + position));
                }
            }
            if spec.rope.is_some() {
                batch.axes.resize(batch.positions.len(), [0; 3]);
                let axes = |(row, column)| [row as u32, column as u32, 0];
                let axes = places(layout, order).map(axes);
                match &tile.windows {
                    None => batch.axes.extend(axes),
                    Some(windows) => {
                        let axes: Vec<_> = axes.collect();
                        batch.axes.extend(windows.patches.iter().map(|at| axes[*at as usize]));
                    }
                }
                batch.positions.resize(batch.axes.len(), 0);
            }
            if let Some(of_tile) = &tile.windows {
                let first = batch.query_start_loc.last().copied().unwrap_or(0);
                windows.query_start_loc.extend(of_tile.ends.iter().map(|end| first + end));
            }
            batch.query_start_loc.push(batch.positions.len() as u32);
        }
        batch.input_ids.resize(batch.positions.len(), 0);
    }

    /// Makes room for a step of so many patches and class tokens.
    fn reserve(&mut self, device: &Device, num_tokens: usize) -> Result<(), EngineError> {
        if self.buffers.as_ref().is_some_and(|buffers| num_tokens <= buffers.max_num_tokens) {
            return Ok(());
        }
        let max_num_tokens = num_tokens.max(Tower::STEP_PATCHES);
        self.buffers = None;
        let Self { spec, weights, dtype, .. } = self;
        let layers = (&*spec, &weights.connectors[..]);
        self.buffers = Some(Buffers::new((device, *dtype), layers, max_num_tokens)?);
        Ok(())
    }
}

impl Buffers {
    fn new(
        (device, dtype): (&Device, DType),
        (spec, connectors): (&TowerSpec, &[Connector]),
        max_num_tokens: usize,
    ) -> Result<Self, EngineError> {
        let on = (device, dtype);
        let samples = (Tower::STEP_PATCHES, spec.patches.k);
        Ok(Self {
            max_num_tokens,
            samples: device.tensor(samples.0, samples.1, Precision::Activation)?,
            stream: Stream::new(on, (max_num_tokens, spec.width()), &spec.layers)?,
            text: TextBuffers::new(on, &spec.layers, spec.heads(), limits(max_num_tokens))?,
            connectors: connectors
                .iter()
                .map(|connector| {
                    ConnectorBuffers::new(device, connector, (max_num_tokens, spec.width()))
                })
                .collect::<Result<_, _>>()?,
        })
    }
}

/// A tile of the step in hand.
struct PlacedTile<'a> {
    image: &'a Patches,
    /// Which of its tiles.
    index: usize,
    windows: Option<&'a Windows>,
    /// Its first row of the stream.
    first: usize,
    /// The row of its first patch.
    first_patch: usize,
    /// Which image it is of.
    of_image: usize,
}

impl PlacedTile<'_> {
    /// The samples of its patches, in the order of the stream.
    fn bytes(&self) -> Cow<'_, [u8]> {
        let len = self.image.samples.len() / self.image.layout.num_tiles();
        let bytes = &self.image.samples[self.index * len..(self.index + 1) * len];
        match self.windows {
            None => Cow::Borrowed(bytes),
            Some(windows) => Cow::Owned(windows.ordered(bytes)),
        }
    }

    /// Rows of the stream that are its patches, those of a token beside each other.
    fn by_token(&self) -> Vec<u32> {
        let (Patches { layout, order, .. }, first) = (self.image, self.first_patch as u32);
        match self.windows {
            None => patches_by_token(*layout, *order, first),
            Some(windows) => windows.rows(first),
        }
    }
}

/// What is around the layers of a step.
struct Pass<'a> {
    device: &'a Device,
    /// Of a patch.
    num_frames: usize,
    weights: &'a Weights,
    step: Step<'a>,
    tiles: &'a [PlacedTile<'a>],
}

impl Pass<'_> {
    /// residual = norm(products of patches, and class tokens, + positions)
    fn embed(&self, (tables, mixed): (&BandTables, &[MixedRow]), buffers: &mut Buffers) {
        let Self { device, num_frames, weights, step, tiles } = *self;
        let Buffers { samples, stream, .. } = buffers;
        stream.begin(step);
        stream.loras.begin(device, step.num_rows(), 0);
        for tile in tiles {
            // Through `delta`, whose type a GPU's linear layers write.
            let bytes = tile.bytes();
            let chunks = bytes.chunks(Tower::STEP_PATCHES * samples.width() / num_frames);
            for (chunk, bytes) in chunks.enumerate() {
                ops::patch_values(device, bytes, (tables, num_frames), samples);
                let first = tile.first_patch + chunk * Tower::STEP_PATCHES;
                let out = stream.delta.rows_from_mut(first);
                let num_rows = samples.num_rows();
                ops::linear_rows(device, samples.rows_from(0), &weights.patches, out, num_rows);
            }
        }
        let Stream { residual, delta, .. } = stream;
        ops::fill_zero(device, residual, step.num_rows());
        ops::add(device, residual, delta);
        if let Some(token) = &weights.class_token {
            for tile in tiles {
                let out = residual.rows_from_mut(tile.first);
                ops::replace_rows(device, token.rows_from(0), out, 1);
            }
        }
        match &weights.positions {
            None => {}
            Some(table) if mixed.is_empty() => {
                ops::add_rows_of(device, step.positions(), 0, table, residual);
            }
            Some(table) => ops::add_mixed_rows(device, mixed, table, residual),
        }
        if let Some(norm) = &weights.embed_norm {
            ops::norm_in_place(device, residual, norm);
        }
    }

    /// Rows of images, of this kind, = what its connector makes of the patches of their tokens.
    fn connect(&self, kind: usize, buffers: &mut Buffers, rows: &mut [Tensor]) {
        let Self { device, weights, tiles, .. } = *self;
        let Buffers { stream, connectors, .. } = buffers;
        let connector = &weights.connectors[kind];
        for tile in tiles {
            let (layout, by_token) = (tile.image.layout, tile.by_token());
            let first = kind * layout.num_tokens() + tile.index * layout.tokens_per_tile();
            let out = rows[tile.of_image].rows_from_mut(first);
            let patches = (&stream.residual, &by_token[..]);
            connector.run(device, patches, &mut connectors[kind], out);
        }
    }
}

/// A tile is never longer than a step, which has a text for each patch at most.
fn limits(max_num_tokens: usize) -> TextLimits {
    TextLimits { max_num_tokens, max_num_texts: max_num_tokens, max_model_len: max_num_tokens }
}

fn patches_per_tile(layout: Layout) -> usize {
    layout.rows * layout.columns
}

/// Rows of the stream of a tile that begins at `first`: the patches of each token beside each
/// other, row after row, as tokens are.
fn patches_by_token(layout: Layout, order: PatchOrder, first: u32) -> Vec<u32> {
    match order {
        PatchOrder::Merged => (first..).take(patches_per_tile(layout)).collect(),
        PatchOrder::Rows => {
            let row = |(row, column)| first + (row * layout.columns + column) as u32;
            places(layout, PatchOrder::Merged).map(row).collect()
        }
    }
}

/// Row and column of each patch of a tile, in this order of them.
fn places(layout: Layout, order: PatchOrder) -> impl Iterator<Item = (usize, usize)> {
    let Layout { rows, columns, merge_size, .. } = layout;
    let side = match order {
        PatchOrder::Rows => 1,
        PatchOrder::Merged => merge_size,
    };
    (0..rows * columns).map(move |patch| {
        let (square, within) = (patch / (side * side), patch % (side * side));
        let (row, column) = (square / (columns / side), square % (columns / side));
        (row * side + within / side, column * side + within % side)
    })
}

#[cfg(test)]
#[path = "tower_tests.rs"]
mod tests;
