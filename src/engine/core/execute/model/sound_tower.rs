//! `SoundTower`: runs a `SoundTowerSpec`, from frames of sounds to states. Each sound is a text of
//! its own to the attention, so no number depends on what is encoded beside it.

use super::loading::{LayerWeights, Loader, prepare_layers};
use super::stream::Stream;
use super::text_layers::{TextBuffers, TextLayers};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{CONV_TAPS, ConvSpec, SoundTowerSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::Features;
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{LinearWeight, NormWeight, StepInputs, TextLimits};

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
    /// (outputs, 3 * inputs) each
    convs: Vec<LinearWeight>,
    /// (states, width)
    positions: Tensor,
    layers: Vec<LayerWeights>,
    final_norm: Option<NormWeight>,
}

/// Inputs and activations, for steps of so many sounds.
#[derive(Debug)]
struct Buffers {
    inputs: StepInputs,
    /// (frames of all sounds and a row of zeros, width): outputs of a convolution.
    frames: Tensor,
    /// (outputs, 3 * width): what the next one reads.
    windows: Tensor,
    stream: Stream,
    text: TextBuffers,
}

impl SoundTower {
    /// States of a step, unless a single sound has more.
    const STEP_STATES: usize = 4096;

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
        let convs = spec.convs.iter().map(|conv| loader.linear(&conv.linear));
        let convs = convs.collect::<Result<Vec<_>, _>>()?;
        let layers = spec.layers.iter().map(|layer| loader.layer(layer));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let positions = loader.table(&spec.positions)?;
        let final_norm = loader.norm(spec.final_norm.as_ref())?;
        let weights = Weights { convs, positions, layers, final_norm };
        Ok(Self { spec, weights, dtype, batch: Batch::default(), buffers: None })
    }

    /// Its shape.
    pub fn spec(&self) -> &SoundTowerSpec {
        &self.spec
    }

    /// Sounds of a step.
    pub fn sounds_per_step(&self) -> usize {
        (Self::STEP_STATES / self.spec.num_states()).max(1)
    }

    /// The states (num_states, width) of each sound.
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
        let SoundTowerSpec { num_frames, num_mels, .. } = self.spec;
        let is_fit =
            |sound: &Features| (sound.num_frames, sound.num_mels) == (num_frames, num_mels);
        assert!(sounds.iter().all(is_fit), "checked when the feature extractor was read");
        let mut states = Vec::with_capacity(sounds.len());
        for step in sounds.chunks(self.sounds_per_step()) {
            self.run(device, step)?;
            let stream = &self.buffers.as_ref().expect("made for the step").stream;
            for index in 0..step.len() {
                let mut rows = self.rows(device)?;
                let num_rows = rows.num_rows();
                let from = stream.residual.rows_from(index * num_rows);
                ops::replace_rows(device, from, rows.rows_from_mut(0), num_rows);
                states.push(rows);
            }
            device.check()?;
        }
        Ok(states)
    }

    /// Zeros in the place of what it would give of a sound.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn zeros(&self, device: &Device) -> Result<Tensor, EngineError> {
        let mut rows = self.rows(device)?;
        let num_rows = rows.num_rows();
        ops::fill_zero(device, &mut rows, num_rows);
        Ok(rows)
    }

    fn rows(&self, device: &Device) -> Result<Tensor, EngineError> {
        let num_states = self.spec.num_states();
        let mut rows = device.tensor(num_states, self.spec.width(), Precision::Activation)?;
        rows.set_num_rows(num_states);
        Ok(rows)
    }

    /// The stream = the states of these sounds.
    fn run(&mut self, device: &Device, sounds: &[Features]) -> Result<(), EngineError> {
        self.place(sounds.len());
        self.reserve(device)?;
        let Self { spec, weights, batch, buffers, .. } = self;
        let Some(Buffers { inputs, frames, windows, stream, text }) = buffers else {
            unreachable!("there is room for the step")
        };
        let step = inputs.step(device, batch);
        stream.begin(step);
        stream.loras.begin(device, step.num_rows(), 0);
        let mut num_frames = spec.num_frames;
        for (index, (conv, weight)) in spec.convs.iter().zip(&weights.convs).enumerate() {
            let is_last = index + 1 == spec.convs.len();
            let num_outputs = conv.num_outputs(num_frames);
            let of_sounds;
            let read = match index {
                0 => {
                    of_sounds = device.upload_as(
                        &of_frames(conv, sounds),
                        conv.linear.k,
                        Precision::Activation,
                    )?;
                    &of_sounds
                }
                _ => {
                    gather(device, conv, (sounds.len(), num_frames), frames, windows);
                    &*windows
                }
            };
            let out = if is_last { &mut stream.delta } else { &mut *frames };
            ops::linear(device, read, weight, out);
            ops::activate(device, conv.activation, out);
            // What is on the device is read before it goes.
            device.check()?;
            num_frames = num_outputs;
        }
        ops::fill_zero(device, &mut stream.residual, step.num_rows());
        ops::add(device, &mut stream.residual, &stream.delta);
        ops::add_rows_of(device, step.positions(), 0, &weights.positions, &mut stream.residual);
        let layers = (&spec.layers[..], &weights.layers[..]);
        let (ropes, bias, windows) = (&[][..], None, None);
        TextLayers { device, layers, ropes, bias, is_causal: false, windows, step }
            .run(stream, text);
        if let Some(norm) = &weights.final_norm {
            ops::norm_in_place(device, &mut stream.residual, norm);
        }
        Ok(())
    }

    /// The batch = the states of so many sounds, each a text.
    fn place(&mut self, num_sounds: usize) {
        let (batch, num_states) = (&mut self.batch, self.spec.num_states() as u32);
        batch.clear();
        batch.query_start_loc.push(0);
        for index in 1..=num_sounds as u32 {
            batch.positions.extend(0..num_states);
            batch.query_start_loc.push(index * num_states);
        }
        batch.input_ids.resize(batch.positions.len(), 0);
    }

    /// Makes room for steps of any number of sounds.
    fn reserve(&mut self, device: &Device) -> Result<(), EngineError> {
        if self.buffers.is_some() {
            return Ok(());
        }
        let num_sounds = self.sounds_per_step();
        let Self { spec, weights, dtype, .. } = self;
        let num_states = spec.num_states();
        let max_num_tokens = num_sounds * num_states;
        let limits = TextLimits {
            max_num_tokens,
            max_num_texts: num_sounds,
            max_num_logits: 0,
            max_model_len: num_states,
            has_axes: false,
        };
        let activation = device.activation_dtype();
        let longest = num_sounds * spec.num_frames;
        for conv in &weights.convs {
            conv.prepare(device, activation, longest)?;
        }
        prepare_layers(&weights.layers, device, max_num_tokens)?;
        let (on, width) = ((device, *dtype), spec.width());
        let read = max_num_tokens * CONV_TAPS;
        self.buffers = Some(Buffers {
            inputs: StepInputs::of_texts(device, spec.heads(), limits)?,
            frames: device.tensor(longest + 1, width, Precision::Activation)?,
            windows: device.tensor(read, width, Precision::Activation)?,
            stream: Stream::new(on, (max_num_tokens, width), &spec.layers)?,
            text: TextBuffers::new(on, &spec.layers, spec.heads(), limits)?,
        });
        Ok(())
    }
}

/// What a convolution reads of frames of sounds: for each output the frame before, its own and the
/// one behind.
fn of_frames(conv: &ConvSpec, sounds: &[Features]) -> Vec<f32> {
    let mut values = Vec::new();
    for Features { num_frames, num_mels, values: frames } in sounds {
        for output in 0..conv.num_outputs(*num_frames) {
            for tap in 0..CONV_TAPS {
                match (output * conv.stride + tap).checked_sub(1).filter(|at| at < num_frames) {
                    Some(at) => values.extend_from_slice(&frames[at * num_mels..][..*num_mels]),
                    None => values.resize(values.len() + num_mels, 0.0),
                }
            }
        }
    }
    values
}

/// The same of outputs of another one, so many of each sound, which have room for a row of zeros.
fn gather(
    device: &Device,
    conv: &ConvSpec,
    (num_sounds, num_frames): (usize, usize),
    frames: &mut Tensor,
    windows: &mut Tensor,
) {
    let zeros = num_sounds * num_frames;
    frames.set_num_rows(zeros + 1);
    let width = frames.width();
    frames.row_mut(zeros).fill(0.0);
    let place = |sound: usize, at: usize| {
        let own = at.checked_sub(1).filter(|at| *at < num_frames);
        own.map_or(zeros, |at| sound * num_frames + at) as u32
    };
    let outputs = |sound| (0..conv.num_outputs(num_frames)).map(move |output| (sound, output));
    let outputs = (0..num_sounds).flat_map(outputs);
    let taps = outputs.flat_map(|(sound, output)| {
        (0..CONV_TAPS).map(move |tap| place(sound, output * conv.stride + tap))
    });
    let rows: Vec<u32> = taps.collect();
    windows.reshape(rows.len(), width);
    ops::gather_rows(device, frames, (&rows[..]).into(), windows);
    windows.reshape(rows.len() / CONV_TAPS, CONV_TAPS * width);
}
