//! `SoundTower`: runs a `SoundTowerSpec`, from frames of sounds to states, or to embeddings of
//! tokens. Each chunk is a text of its own to the attention, so no number depends on what is
//! encoded beside it.

use super::connector::{Connector, ConnectorBuffers};
use super::loading::{LayerWeights, Loader, prepare_layers, rotary_table};
use super::sound_front::{Front, FrontBuffers, Piece};
use super::stream::Stream;
use super::text_layers::{TextBuffers, TextLayers};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{ChunkShape, SoundPositions, SoundTowerSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::Features;
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{Ids, MixedRows, NormWeight, RotaryTable, StepInputs, TextLimits};

/// A loaded tower of sounds with the buffers of its forward pass.
#[derive(Debug)]
pub struct SoundTower {
    spec: SoundTowerSpec,
    weights: Weights,
    dtype: DType,
    /// Refilled by every step.
    batch: Batch,
    /// Made for the first sound.
    buffers: Option<Buffers>,
}

#[derive(Debug)]
struct Weights {
    front: Front,
    /// (places, width)
    positions: Option<Tensor>,
    ropes: Vec<RotaryTable>,
    layers: Vec<LayerWeights>,
    final_norm: Option<NormWeight>,
    connector: Option<Connector>,
}

/// Inputs and activations, for steps of so many states.
#[derive(Debug)]
struct Buffers {
    inputs: StepInputs,
    front: FrontBuffers,
    stream: Stream,
    text: TextBuffers,
    connector: Option<ConnectorBuffers>,
}

impl SoundTower {
    /// States of a step, unless a single chunk has more.
    pub const STEP_STATES: usize = 4096;
    /// Chunks of a step.
    const STEP_CHUNKS: usize = 128;

    /// Packs the weights of a checkpoint, which whoever opened it has checked, and finishes.
    ///
    /// # Errors
    /// A weight is missing, or memory does not suffice.
    pub fn load(
        spec: SoundTowerSpec,
        dtype: DType,
        device: &Device,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let mut loader = Loader { dtype, device, checkpoint };
        let front = Front::load(&mut loader, &spec.front, spec.num_mels)?;
        let layers = spec.layers.iter().map(|layer| loader.layer(layer));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let num_places = spec.shape().num_places();
        let positions = match &spec.positions {
            None => None,
            Some(SoundPositions::Learned(table)) => Some(loader.table(table)?),
            Some(SoundPositions::Computed(of)) => {
                Some(device.upload(of.rows(num_places), of.width)?)
            }
        };
        let ropes = spec.rope.iter().map(|rope| rotary_table(device, rope, spec.num_states()));
        let ropes = ropes.collect::<Result<_, _>>()?;
        let final_norm = loader.norm(spec.final_norm.as_ref())?;
        let num_merged = spec.shape().num_merged;
        let connector = spec.connector();
        let connector = connector
            .map(|connector| Connector::load(&mut loader, connector, (num_merged, 1), None))
            .transpose()?;
        let weights = Weights { front, positions, ropes, layers, final_norm, connector };
        Ok(Self { spec, weights, dtype, batch: Batch::default(), buffers: None })
    }

    /// Its shape.
    pub fn spec(&self) -> &SoundTowerSpec {
        &self.spec
    }

    /// States of a sound, in all of its chunks.
    pub fn num_states(&self, sound: &Features) -> usize {
        self.spec.shape().chunks(sound.num_heard).map(|chunk| chunk.num_states).sum()
    }

    /// What it gives of each sound: states (num_states, width), or embeddings (num_tokens,
    /// hidden_size) where it makes tokens.
    ///
    /// # Errors
    /// The device failed, or has no memory.
    ///
    /// # Panics
    /// Frames are not as the tower was made for.
    pub fn encode(
        &mut self,
        device: &Device,
        sounds: &[Features],
    ) -> Result<Vec<Tensor>, EngineError> {
        let pieces = self.pieces(sounds);
        let mut num_rows = vec![0; sounds.len()];
        for piece in &pieces {
            num_rows[piece.sound] += self.num_rows(piece.shape);
        }
        let rows = num_rows.iter().map(|num| self.rows(device, *num));
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        let (mut rest, mut num_filled) = (&pieces[..], vec![0; sounds.len()]);
        while !rest.is_empty() {
            let (step, later) = rest.split_at(step_len(rest));
            self.run(device, step)?;
            let from = self.given();
            let mut first = 0;
            for Piece { sound, shape, .. } in step {
                let num = self.num_rows(*shape);
                let out = rows[*sound].rows_from_mut(num_filled[*sound]);
                ops::replace_rows(device, from.rows_from(first), out, num);
                (first, num_filled[*sound]) = (first + num, num_filled[*sound] + num);
            }
            device.check()?;
            rest = later;
        }
        Ok(rows)
    }

    /// Zeros in the place of what it would give of a sound of so many rows.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn zeros(&self, device: &Device, num_rows: usize) -> Result<Tensor, EngineError> {
        let mut rows = self.rows(device, num_rows)?;
        ops::fill_zero(device, &mut rows, num_rows);
        Ok(rows)
    }

    /// The chunks of all sounds, without those that give nothing.
    fn pieces<'a>(&self, sounds: &'a [Features]) -> Vec<Piece<'a>> {
        let SoundTowerSpec { num_frames, num_mels, .. } = self.spec;
        let (shape, of_chunk) = (self.spec.shape(), num_frames * num_mels);
        let of_sound = |(sound, features): (usize, &'a Features)| {
            assert_eq!(features.num_mels, num_mels, "checked when the extractor was read");
            let frames = features.values.chunks_exact(of_chunk);
            shape.chunks(features.num_heard).zip(frames).map(move |(shape, frames)| Piece {
                sound,
                frames,
                shape,
            })
        };
        let pieces = sounds.iter().enumerate().flat_map(of_sound);
        pieces.filter(|piece| self.num_rows(piece.shape) > 0).collect()
    }

    /// Rows that it gives of a chunk.
    fn num_rows(&self, shape: ChunkShape) -> usize {
        match self.weights.connector {
            Some(_) => shape.num_tokens,
            None => shape.num_states,
        }
    }

    /// What it gives of the chunks of the step in hand, one after the other.
    fn given(&self) -> &Tensor {
        let Some(buffers) = &self.buffers else { unreachable!("made for the step") };
        buffers.connector.as_ref().map_or(&buffers.stream.residual, ConnectorBuffers::tokens)
    }

    fn rows(&self, device: &Device, num_rows: usize) -> Result<Tensor, EngineError> {
        let mut rows = device.tensor(num_rows, self.spec.out_width(), Precision::Activation)?;
        rows.set_num_rows(num_rows);
        Ok(rows)
    }

    /// The stream = the states of these chunks; then the embeddings of their tokens.
    fn run(&mut self, device: &Device, pieces: &[Piece<'_>]) -> Result<(), EngineError> {
        self.place(pieces);
        self.reserve(device)?;
        let Self { spec, weights, batch, buffers, .. } = self;
        let Some(buffers) = buffers else { unreachable!("there is room for the step") };
        let Buffers { inputs, front, stream, text, connector } = buffers;
        let step = inputs.step(device, batch);
        stream.begin(step);
        weights.front.run(device, pieces, front, &mut stream.delta)?;
        stream.loras.begin(device, step.num_rows(), 0);
        ops::fill_zero(device, &mut stream.residual, step.num_rows());
        ops::add(device, &mut stream.residual, &stream.delta);
        if let Some(positions) = &weights.positions {
            ops::add_rows_of(device, step.positions(), 0, positions, &mut stream.residual);
        }
        let layers = (&spec.layers[..], &weights.layers[..]);
        let (ropes, bias, windows) = (&weights.ropes[..], None, None);
        TextLayers { device, layers, ropes, bias, is_causal: false, windows, step }
            .run(stream, text);
        if let Some(norm) = &weights.final_norm {
            ops::norm_in_place(device, &mut stream.residual, norm);
        }
        if let (Some(weights), Some(buffers)) = (&weights.connector, connector) {
            let rows = rows_of_tokens(pieces, spec.shape().num_merged);
            let states = (&stream.residual, Ids::from(&rows[..]));
            weights.run(device, states, (&[], &MixedRows::default()), buffers);
        }
        Ok(())
    }

    /// The batch = the states of these chunks, each a text.
    fn place(&mut self, pieces: &[Piece<'_>]) {
        let batch = &mut self.batch;
        batch.clear();
        batch.query_start_loc.push(0);
        let num_places = self.spec.shape().num_places() as u32;
        for piece in pieces {
            let states = 0..piece.shape.num_states as u32;
            batch.positions.extend(states.map(|state| state % num_places));
            batch.query_start_loc.push(batch.positions.len() as u32);
        }
        batch.input_ids.resize(batch.positions.len(), 0);
    }

    /// Makes room for steps of any chunks.
    fn reserve(&mut self, device: &Device) -> Result<(), EngineError> {
        if self.buffers.is_some() {
            return Ok(());
        }
        let Self { spec, weights, dtype, .. } = self;
        let max_num_tokens = Self::STEP_STATES.max(spec.num_states());
        let limits = TextLimits {
            max_num_tokens,
            max_num_texts: Self::STEP_CHUNKS,
            max_num_logits: 0,
            max_model_len: spec.num_states(),
            has_axes: false,
        };
        prepare_layers(&weights.layers, device, max_num_tokens)?;
        let num_states = spec.num_states();
        weights.ropes.iter_mut().try_for_each(|rope| rope.reach(device, num_states))?;
        let (on, width) = ((device, *dtype), spec.width());
        let connector = weights.connector.as_ref();
        connector.map_or(Ok(()), |connector| connector.prepare(device, max_num_tokens))?;
        let of_connector =
            |connector| ConnectorBuffers::new(device, connector, (max_num_tokens, width));
        self.buffers = Some(Buffers {
            inputs: StepInputs::of_texts(device, spec.heads(), limits)?,
            front: weights.front.buffers(device, max_num_tokens)?,
            stream: Stream::new(on, (max_num_tokens, width), &spec.layers)?,
            text: TextBuffers::new(on, &spec.layers, spec.heads(), limits)?,
            connector: connector.map(of_connector).transpose()?,
        });
        Ok(())
    }
}

/// How many of these chunks, which are some, make a step.
fn step_len(pieces: &[Piece<'_>]) -> usize {
    let mut num_states = 0;
    let fits = |piece: &&Piece<'_>| {
        num_states += piece.shape.num_states;
        num_states <= SoundTower::STEP_STATES
    };
    let num_fitting = pieces.iter().take(SoundTower::STEP_CHUNKS).take_while(fits).count();
    num_fitting.max(1)
}

/// The rows of states that tokens of these chunks are of.
fn rows_of_tokens(pieces: &[Piece<'_>], num_merged: usize) -> Vec<u32> {
    let mut first = 0;
    let mut rows = Vec::new();
    for Piece { shape, .. } in pieces {
        rows.extend(first..first + (shape.num_tokens * num_merged) as u32);
        first += shape.num_states as u32;
    }
    rows
}
