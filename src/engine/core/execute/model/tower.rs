//! `Tower`: runs a `TowerSpec`, from patches of images to embeddings of a decoder's tokens. Each
//! tile is a text of its own to the attention, so no number depends on what is encoded beside it.

use super::connector::{Connector, ConnectorBuffers};
use super::loading::{LayerWeights, Loader, prepare_layers, rotary_table};
use super::picture::{between_tokens, packed};
use super::shown::Shown;
use super::stream::Stream;
use super::text_layers::{TextBuffers, TextLayers, TextWindows};
use super::tower_pass::{NO_PATCH, Pass, PlacedTile, places, positions_of};
use super::windows::Windows;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{GridFit, TowerSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::{Layout, Marks, PatchOrder, Patches};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{
    BandTables, LinearWeight, MixedRows, NormWeight, PatchScratch, RotaryTable, StepInputs,
    TextLimits,
};

/// A loaded tower with the buffers of its forward pass.
#[derive(Debug)]
pub struct Tower {
    spec: TowerSpec,
    weights: Weights,
    dtype: DType,
    /// Refilled by every step.
    batch: Batch,
    /// Its positions, where they are mixtures.
    mixed: MixedRows,
    /// The patches of each token, where tiles share tokens.
    groups: MixedRows,
    /// The same rows with windows as texts, where there are any.
    windows: Batch,
    /// Made for the first image, and again for a larger tile; on a GPU at once, since the KV cache
    /// takes what is left.
    buffers: Option<Buffers>,
}

#[derive(Debug)]
pub(super) struct Weights {
    /// (width, 3 * frames * patch_size²)
    pub patches: LinearWeight,
    /// (1, width)
    pub class_token: Option<Tensor>,
    /// (side² and the class token, width)
    pub positions: Option<Tensor>,
    /// At most one.
    pub ropes: Vec<RotaryTable>,
    pub patch_norm: Option<NormWeight>,
    pub embed_norm: Option<NormWeight>,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Option<NormWeight>,
    /// That of embeddings, and those of what is added later.
    pub connectors: Vec<Connector>,
    /// (rows, hidden_size): what stands between tokens.
    between_tokens: Option<Tensor>,
}

/// Inputs and activations, for steps of up to T patches and class tokens.
#[derive(Debug)]
pub(super) struct Buffers {
    limits: TextLimits,
    inputs: StepInputs,
    /// Of windows, where there are any.
    window_inputs: Option<StepInputs>,
    pub scratch: PatchScratch,
    /// (STEP_PATCHES, 3 * frames * patch_size²)
    pub samples: Tensor,
    pub stream: Stream,
    /// (num_states * T, width): streams that are kept, one behind the other; None: the last alone.
    states: Option<Tensor>,
    text: TextBuffers,
    /// One for each connector.
    pub connectors: Vec<ConnectorBuffers>,
    /// (1, width): zeros in place of patches beyond an edge, where tokens reach over it.
    edge: Option<Tensor>,
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
    /// Tiles or windows of a step, unless a single tile has more.
    pub(super) const STEP_TEXTS: usize = 512;

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
        let ropes = spec.rope.iter().map(|rope| rotary_table(device, rope, Self::STEP_PATCHES));
        let ropes = ropes.collect::<Result<_, _>>()?;
        let num_states = [spec.num_states()].into_iter().chain(std::iter::repeat(1));
        let (mut between, added) = between_tokens(&mut loader, &spec)?;
        let connectors = spec.connectors().zip(num_states);
        let connectors = connectors
            .map(|(connector, num)| {
                let merged = (spec.merge_size.pow(2), num);
                Connector::load(&mut loader, connector, merged, added.as_deref())
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let (true, Some(lines)) = (spec.connects_lines, &between) {
            between = Some(connectors[0].of_pooled(device, lines)?);
        }
        let weights = Weights {
            layers,
            patches: loader.linear(&spec.patches)?,
            class_token: class_token.map(|tensor| loader.row(tensor)).transpose()?,
            positions: positions.map(|positions| loader.table(&positions.table)).transpose()?,
            ropes,
            patch_norm: loader.norm(spec.patch_norm.as_ref())?,
            embed_norm: loader.norm(spec.embed_norm.as_ref())?,
            final_norm: loader.norm(spec.final_norm.as_ref())?,
            connectors,
            between_tokens: between,
        };
        let (batch, windows, mixed, groups) = Default::default();
        let mut tower = Self { spec, weights, dtype, batch, mixed, groups, windows, buffers: None };
        // Those of an image with shared tokens are one step, and Molmo 2's has so many.
        let num_steps = if tower.spec.connector.pools_groups() { 2 } else { 1 };
        match device.preallocated_rows(num_steps * Self::STEP_PATCHES) {
            0 => {}
            num_tokens => tower.reserve(device, num_tokens, Self::STEP_TEXTS)?,
        }
        Ok(tower)
    }

    /// Its shape.
    pub fn spec(&self) -> &TowerSpec {
        &self.spec
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
        let of_tiles = |layout: Layout| match self.spec.connector.gives_one_row() {
            true => layout.num_tiles(),
            false => layout.num_tile_tokens(),
        };
        let rows = images.iter().map(|image| self.rows(device, of_tiles(image.layout)));
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
        let mut rest = &tiles[..];
        while !rest.is_empty() {
            let num = self.tiles_of_step(images, rest);
            let (step, after) = rest.split_at(num);
            self.run(device, (images, step), tables, &mut rows)?;
            rest = after;
        }
        let of_images = images.iter().zip(rows);
        let between = self.weights.between_tokens.as_ref();
        let rows = of_images.map(|(image, rows)| packed(device, between, (image.layout, rows)));
        let rows = rows.collect::<Result<_, _>>()?;
        device.check()?;
        Ok(rows)
    }

    /// How many of these tiles are the next step: whole images where tiles share tokens.
    fn tiles_of_step(&self, images: &[Patches], tiles: &[Tile]) -> usize {
        let num_class_tokens = self.num_class_tokens();
        let (mut num_tiles, mut num_tokens, mut num_texts) = (0, 0, 0);
        let are_joined = self.spec.connector.pools_groups();
        for unit in tiles.chunk_by(|tile, next| are_joined && tile.image == next.image) {
            for tile in unit {
                let Patches { layout, .. } = images[tile.image];
                let of_tokens = match are_joined {
                    true => 0,
                    false => layout.tokens_of_tile(tile.index) * layout.merge_size.pow(2),
                };
                num_tokens += of_tokens.max(images[tile.image].num_patches_of(tile.index));
                num_tokens += num_class_tokens;
                let of_filled = self
                    .spec
                    .windows
                    .as_ref()
                    .map_or(1, |w| w.num_filled((layout.rows, layout.columns)));
                num_texts += tile.windows.as_ref().map_or(of_filled, |own| own.ends.len());
            }
            let fits = num_tokens <= Tower::STEP_PATCHES && num_texts <= Tower::STEP_TEXTS;
            if num_tiles > 0 && !fits {
                break;
            }
            num_tiles += unit.len();
        }
        num_tiles
    }

    /// Rows that it gives of a token: its embedding, and what is added later. Those of a kind lie
    /// beside each other.
    pub fn rows_per_token(&self) -> usize {
        1 + self.spec.deep.len()
    }

    /// Zeros in the place of what it would give of an image.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn zeros(&self, device: &Device, layout: Layout) -> Result<Tensor, EngineError> {
        let is_one_row = self.spec.connector.gives_one_row();
        let num_tokens = if is_one_row { 1 } else { layout.num_tokens() };
        let mut rows = self.rows(device, num_tokens)?;
        let num_rows = rows.num_rows();
        ops::fill_zero(device, &mut rows, num_rows);
        Ok(rows)
    }

    fn rows(&self, device: &Device, num_tokens: usize) -> Result<Tensor, EngineError> {
        let num_rows = num_tokens * self.rows_per_token();
        let width = self.spec.connector.n();
        let mut rows = device.tensor(num_rows, width, Precision::Activation)?;
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
        let Layout { merge_size, middle, marks, .. } = image.layout;
        let num_between = middle.map_or(0, |middle| middle.lines.num());
        let own = [&self.spec.newline, &self.spec.separator].into_iter().flatten().count();
        let of_tower = self.spec.marks.as_ref().map(|marks| marks.ids.len());
        let is_padded = image.layout.shown(0).is_some();
        if num_between != own
            || marks.map(Marks::num) != of_tower
            || is_padded != self.spec.connects_lines
        {
            return Err(EngineError::Model(
                "the image processor and the vision tower are of different models: only one of \
                 them has newlines or marks; help: preprocessor_config.json is another model's"
                    .to_owned(),
            ));
        }
        let is_whole = rows.is_multiple_of(merge_size) && columns.is_multiple_of(merge_size);
        if !is_whole && !self.spec.overhangs && !image.layout.shares_tokens() {
            return Err(EngineError::Model(format!(
                "the image processor makes tiles of {columns}x{rows} patches, which are no tokens \
                 of {merge_size}x{merge_size}; help: preprocessor_config.json is another model's"
            )));
        }
        let Some(positions) = &self.spec.positions else { return Ok(()) };
        let side = positions.side;
        let is_fit = match positions.fit {
            GridFit::OwnAlone => (rows, columns) == (side, side),
            GridFit::ByAxis => rows.max(columns) <= side,
            // Of a part of a tile.
            GridFit::SameShare if is_padded => (rows, columns) == (side, side),
            GridFit::SameShare
            | GridFit::Between
            | GridFit::BetweenMiddles
            | GridFit::Cubic
            | GridFit::Linear
            | GridFit::Turned => true,
        };
        if is_fit {
            return Ok(());
        }
        Err(EngineError::Model(format!(
            "the image processor makes tiles of {columns}x{rows} patches, and the vision tower was \
             made for {side}x{side}; help: preprocessor_config.json is another model's"
        )))
    }

    /// The windows of each tile of an image.
    fn windows_of(&self, image: &Patches) -> Option<Windows> {
        let windows = self.spec.windows.as_ref().filter(|windows| !windows.is_filled)?;
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
        let tiles = self.place(images, tiles);
        self.group(&tiles);
        let num_texts = self.batch.query_start_loc.len().max(self.windows.query_start_loc.len());
        let num_rows = self.batch.logits_indices.len() / self.spec.num_states();
        let num_tokens = self.batch.num_tokens().max(self.windows.num_tokens());
        self.reserve(device, num_tokens.max(num_rows), num_texts)?;
        let Self { spec, weights, batch, mixed, groups, windows, buffers, .. } = self;
        mixed.upload(device)?;
        groups.upload(device)?;
        let longest = batch.axes.iter().flatten().max().map_or(0, |last| *last as usize + 1);
        weights.ropes.iter_mut().try_for_each(|rope| rope.reach(device, longest))?;
        let Some(buffers) = buffers else { unreachable!("there is room for the step") };
        let Buffers { inputs, window_inputs, scratch, samples, stream, states, .. } = buffers;
        let (text, connectors) = (&mut buffers.text, &mut buffers.connectors);
        let edge = buffers.edge.as_ref().filter(|_| {
            // Otherwise there may be no room for it.
            batch.logits_indices.contains(&(batch.num_tokens() as u32))
        });
        let of_windows = window_inputs.as_mut().map(|inputs| inputs.step(device, windows));
        let step = inputs.step(device, batch);
        let num_frames = spec.num_frames();
        let scale = spec.scale;
        let pass = Pass { device, num_frames, scale, weights, step, tiles: &tiles };
        pass.embed((tables, mixed), (scratch, samples), stream)?;
        let num_tokens = step.batch.num_tokens();
        let mut first = 0;
        for end in spec.stops() {
            let windows = spec.windows.as_ref().zip(of_windows);
            let windows = windows
                .map(|(spec, step)| TextWindows { step, is_whole: &spec.is_whole[first..end] });
            let layers = (&spec.layers[first..end], &weights.layers[first..end]);
            let ropes = &weights.ropes;
            let layers =
                TextLayers { device, layers, ropes, bias: None, is_causal: false, windows, step };
            layers.run(stream, text);
            for (level, _) in spec.deep.iter().enumerate().filter(|(_, deep)| deep.layer + 1 == end)
            {
                let kind = 1 + level;
                pass.connect(kind, (&stream.residual, groups), &mut connectors[kind], rows);
            }
            if let Some(states) = states {
                states.set_num_rows(num_tokens * spec.num_states());
                for (place, _) in spec.states.iter().enumerate().filter(|(_, at)| **at == end) {
                    let out = states.rows_from_mut(place * num_tokens);
                    ops::replace_rows(device, stream.residual.rows_from(0), out, num_tokens);
                }
            }
            first = end;
        }
        if let Some(norm) = &weights.final_norm {
            ops::norm_in_place(device, &mut stream.residual, norm);
        }
        if let Some(zeros) = edge {
            stream.residual.set_num_rows(num_tokens + 1);
            let out = stream.residual.rows_from_mut(num_tokens);
            ops::replace_rows(device, zeros.rows_from(0), out, 1);
        }
        let last = states.as_ref().unwrap_or(&stream.residual);
        pass.connect(0, (last, groups), &mut connectors[0], rows);
        Ok(())
    }

    /// The batch = the patches of the tiles, each tile a text, behind its class token; and where
    /// they are in it.
    fn place<'a>(&mut self, images: &'a [Patches], tiles: &'a [Tile]) -> Vec<PlacedTile<'a>> {
        let num_class_tokens = self.num_class_tokens() as u32;
        let Self { spec, batch, mixed, windows, .. } = self;
        mixed.clear();
        for batch in [&mut *batch, &mut *windows] {
            batch.clear();
            batch.query_start_loc.push(0);
        }
        let mut placed = Vec::with_capacity(tiles.len());
        for tile in tiles {
            let image = &images[tile.image];
            let Patches { layout, order, .. } = *image;
            let first = batch.positions.len();
            let shown = Shown::new((layout, tile.index), order);
            batch.positions.extend(0..num_class_tokens);
            if let Some(positions) = &spec.positions {
                let of_grid = positions_of(positions, (image, tile.index), shown.as_ref(), mixed);
                batch.positions.extend(of_grid.map(|position| num_class_tokens + position));
            }
            if spec.rope.is_some() {
                batch.axes.resize(batch.positions.len(), [0; 3]);
                let axes = |(row, column)| [row as u32, column as u32, 0];
                let axes = places((layout, tile.index), order).map(axes);
                match &tile.windows {
                    None => batch.axes.extend(axes),
                    Some(windows) => {
                        let axes: Vec<_> = axes.collect();
                        batch.axes.extend(windows.patches.iter().map(|at| axes[*at as usize]));
                    }
                }
            }
            let tile = PlacedTile {
                image,
                of_image: tile.image,
                index: tile.index,
                windows: tile.windows.as_ref(),
                shown,
                first,
                num_class_tokens: num_class_tokens as usize,
                is_one_row: spec.connector.gives_one_row(),
                is_class_token: spec.connector.reads_class_token(),
            };
            let num_rows = tile.num_class_tokens + tile.num_patches();
            batch.positions.resize(first + num_rows, 0);
            if let Some(shown) = &tile.shown {
                let num_seen = tile.num_class_tokens + shown.num_seen;
                batch.seen_lens.push(num_seen as u32);
            }
            batch.logits_indices.extend(tile.by_token());
            if let Some(of_tile) = tile.windows {
                let ends = of_tile.ends.iter().map(|end| first as u32 + end);
                windows.query_start_loc.extend(ends);
            } else if let Some(own) = &spec.windows {
                let first = windows.query_start_loc.last().copied().unwrap_or(0);
                let of_window = (own.side * own.side) as u32;
                let ends = (1..=own.num_filled((layout.rows, layout.columns)) as u32)
                    .map(|end| first + end * of_window);
                windows.query_start_loc.extend(ends);
            }
            batch.query_start_loc.push(batch.positions.len() as u32);
            placed.push(tile);
        }
        self.end_batch();
        placed
    }

    /// Fills what follows from the texts of the batch.
    fn end_batch(&mut self) {
        let Self { spec, batch, windows, .. } = self;
        let num_tokens = batch.positions.len();
        batch.input_ids.resize(num_tokens, 0);
        let rows = &batch.logits_indices;
        batch.logits_indices = of_states(rows, spec.num_states(), num_tokens);
        if spec.windows.is_some() {
            windows.input_ids.clone_from(&batch.input_ids);
            windows.positions.clone_from(&batch.positions);
            windows.axes.clone_from(&batch.axes);
            // With rows beyond edges, where windows are filled up.
            let num_rows = windows.query_start_loc.last().map_or(0, |end| *end as usize);
            windows.input_ids.resize(num_rows, 0);
            windows.positions.resize(num_rows, 0);
        }
    }

    /// The patches of each token of the step, where tiles share tokens.
    fn group(&mut self, tiles: &[PlacedTile<'_>]) {
        self.groups.clear();
        for tile in tiles.iter().filter(|tile| tile.index == 0) {
            let first = tile.first as u32;
            for patches in tile.image.layout.groups().into_iter().flatten() {
                let share = (patches.len() as f32).recip();
                self.groups.push(patches.into_iter().map(|patch| (first + patch, share)));
            }
        }
    }

    /// Makes room for a step of so many patches and class tokens, and so many tiles or windows.
    fn reserve(
        &mut self,
        device: &Device,
        num_tokens: usize,
        num_texts: usize,
    ) -> Result<(), EngineError> {
        let fits = |limits: TextLimits| {
            num_tokens <= limits.max_num_tokens && num_texts <= limits.max_num_texts
        };
        if self.buffers.as_ref().is_some_and(|buffers| fits(buffers.limits)) {
            return Ok(());
        }
        let max_num_tokens = num_tokens.max(Tower::STEP_PATCHES);
        let max_num_texts = num_texts.max(Tower::STEP_TEXTS);
        let limits = TextLimits {
            max_num_tokens,
            max_num_texts,
            max_num_logits: max_num_tokens * self.spec.num_states(),
            max_model_len: max_num_tokens,
            has_axes: self.spec.rope.is_some(),
        };
        self.buffers = None;
        let Self { spec, weights, dtype, .. } = self;
        weights.prepare(device, max_num_tokens)?;
        self.buffers = Some(Buffers::new((device, *dtype), (&*spec, weights), limits)?);
        Ok(())
    }
}

impl Weights {
    /// Makes the device ready to run every product of steps of so many tokens.
    fn prepare(&self, device: &Device, max_num_tokens: usize) -> Result<(), EngineError> {
        self.patches.prepare(device, device.activation_dtype(), max_num_tokens)?;
        prepare_layers(&self.layers, device, max_num_tokens)?;
        let mut connectors = self.connectors.iter();
        connectors.try_for_each(|connector| connector.prepare(device, max_num_tokens))
    }
}

impl Buffers {
    fn new(
        (device, dtype): (&Device, DType),
        (spec, weights): (&TowerSpec, &Weights),
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let (on, max_num_tokens) = ((device, dtype), limits.max_num_tokens);
        let inputs = || StepInputs::of_texts(device, spec.heads(), limits);
        let patch_bytes = spec.patches.k / spec.num_frames();
        let connectors = weights.connectors.iter();
        let sizes = (max_num_tokens, spec.width());
        let connectors =
            connectors.map(|connector| ConnectorBuffers::new(device, connector, sizes));
        Ok(Self {
            limits,
            inputs: inputs()?,
            window_inputs: spec.windows.as_ref().map(|_| inputs()).transpose()?,
            scratch: PatchScratch::new(device, Tower::STEP_PATCHES * patch_bytes)?,
            samples: device.tensor(Tower::STEP_PATCHES, spec.patches.k, Precision::Activation)?,
            stream: Stream::new(on, sizes, &spec.layers)?,
            states: (!spec.states.is_empty())
                .then(|| {
                    let num_rows = spec.num_states() * max_num_tokens;
                    device.tensor(num_rows, spec.width(), Precision::Full)
                })
                .transpose()?,
            text: TextBuffers::new(on, &spec.layers, spec.heads(), limits)?,
            connectors: connectors.collect::<Result<_, _>>()?,
            edge: spec
                .overhangs
                .then(|| {
                    let mut zeros = device.tensor(1, spec.width(), Precision::Full)?;
                    zeros.set_num_rows(1);
                    ops::fill_zero(device, &mut zeros, 1);
                    Ok::<_, EngineError>(zeros)
                })
                .transpose()?,
        })
    }
}

/// These rows of so many streams that lie one behind the other, those of a row beside each other.
/// Of a patch beyond an edge it is the row behind all.
fn of_states(rows: &[u32], num_states: usize, num_tokens: usize) -> Vec<u32> {
    let states = |row: &u32| {
        let row = if *row == NO_PATCH { num_tokens as u32 } else { *row };
        (0..num_states).map(move |state| (state * num_tokens) as u32 + row)
    };
    rows.iter().flat_map(states).collect()
}

#[cfg(test)]
#[path = "tower_tests.rs"]
mod tests;
