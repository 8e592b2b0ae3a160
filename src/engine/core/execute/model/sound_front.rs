//! `Front`: runs a `SoundFront`, from frames of chunks of sounds to the first values of their
//! states.

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::{
    CONV_TAPS, ChunkShape, ConvSpec, FrameConvs, SoundFront, SquareConvs,
};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::LinearWeight;

/// A chunk of a sound.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    /// Which sound.
    pub sound: usize,
    /// (frames of a chunk, mels)
    pub frames: &'a [f32],
    pub shape: ChunkShape,
}

/// Loaded convolutions.
#[derive(Debug)]
pub(super) struct Front {
    spec: SoundFront,
    /// (outputs, places * inputs) each, and what is behind them.
    products: Vec<LinearWeight>,
    num_mels: usize,
}

/// What they work in.
#[derive(Debug)]
pub(super) struct FrontBuffers {
    /// (outputs and a row of zeros, channels) of a convolution.
    outputs: Tensor,
    /// (outputs, places * channels): what the next one reads.
    read: Tensor,
    /// (states, width) of some squares.
    states: Tensor,
}

/// Frames that are convolved together over squares.
#[derive(Clone, Copy)]
struct Square<'a> {
    /// (frames, mels)
    frames: &'a [f32],
    /// States of it that there are.
    num_states: usize,
}

/// Squares that are convolved at a time.
const STEP_SQUARES: usize = 4;
/// Places of a square of three by three.
const NUM_PLACES: usize = 9;

impl Front {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        spec: &SoundFront,
        num_mels: usize,
    ) -> Result<Self, EngineError> {
        let linears: Vec<_> = match spec {
            SoundFront::Frames(frames) => frames.convs.iter().map(|conv| &conv.linear).collect(),
            SoundFront::Squares(squares) => squares.convs.iter().chain([&squares.out]).collect(),
        };
        let products = linears.into_iter().map(|linear| loader.linear(linear));
        let products = products.collect::<Result<_, _>>()?;
        Ok(Self { spec: spec.clone(), products, num_mels })
    }

    /// Buffers for steps of so many states, which the device is made ready for.
    ///
    /// # Errors
    /// It has no memory, or cannot run a product.
    pub(super) fn buffers(
        &self,
        device: &Device,
        max_num_states: usize,
    ) -> Result<FrontBuffers, EngineError> {
        let tensor = |num_rows, width| device.tensor(num_rows, width, Precision::Activation);
        let width = self.spec.width();
        let (num_outputs, num_channels, num_read, num_states) = match &self.spec {
            SoundFront::Frames(_) => {
                (max_num_states * self.spec.stride(), width, max_num_states * CONV_TAPS, 0)
            }
            SoundFront::Squares(squares) => {
                let num_channels = squares.convs[0].n();
                let [num_first, num_second] = [1, 2].map(|level| {
                    let sizes = [squares.num_frames, self.num_mels].map(|num| squares.sizes(num));
                    STEP_SQUARES * sizes[0][level] * sizes[1][level]
                });
                (
                    num_first,
                    num_channels,
                    num_second * NUM_PLACES,
                    STEP_SQUARES * squares.num_frames,
                )
            }
        };
        let activation = device.activation_dtype();
        let most = num_outputs.max(max_num_states);
        self.products.iter().try_for_each(|weight| weight.prepare(device, activation, most))?;
        Ok(FrontBuffers {
            outputs: tensor(num_outputs + 1, num_channels)?,
            read: tensor(num_read, num_channels)?,
            states: tensor(num_states, width)?,
        })
    }

    /// `out` (states of all chunks, width) = what the convolutions give of them.
    ///
    /// # Errors
    /// The device failed, or has no memory.
    pub(super) fn run(
        &self,
        device: &Device,
        pieces: &[Piece<'_>],
        buffers: &mut FrontBuffers,
        out: &mut Tensor,
    ) -> Result<(), EngineError> {
        match &self.spec {
            SoundFront::Frames(frames) => self.over_frames(device, (frames, pieces), buffers, out),
            SoundFront::Squares(squares) => {
                let all = self.squares(squares, pieces);
                let mut first = 0;
                for step in all.chunks(STEP_SQUARES) {
                    self.over_squares(device, (squares, step), buffers)?;
                    let num_rows = buffers.states.num_rows();
                    let into = out.rows_from_mut(first);
                    ops::replace_rows(device, buffers.states.rows_from(0), into, num_rows);
                    device.check()?;
                    first += num_rows;
                }
                Ok(())
            }
        }
    }

    fn over_frames(
        &self,
        device: &Device,
        (spec, pieces): (&FrameConvs, &[Piece<'_>]),
        buffers: &mut FrontBuffers,
        out: &mut Tensor,
    ) -> Result<(), EngineError> {
        let FrontBuffers { outputs, read, .. } = buffers;
        let (convs, num_mels) = (&spec.convs, self.num_mels);
        let num_frames = |piece: &Piece<'_>| match spec.is_cut {
            true => piece.shape.num_own,
            false => piece.frames.len() / num_mels,
        };
        let num_outputs = |piece| num_outputs(convs, num_frames(piece), piece.shape.num_states);
        let nums: Vec<_> = pieces.iter().map(num_outputs).collect();
        for (index, (conv, weight)) in convs.iter().zip(&self.products).enumerate() {
            let is_last = index + 1 == convs.len();
            let of_sounds;
            let x = match index {
                0 => {
                    let nums = nums.iter().map(|nums| nums[0]);
                    let values = of_frames(conv, pieces.iter().zip(nums), num_mels);
                    of_sounds = device.upload_as(&values, conv.linear.k, Precision::Activation)?;
                    &of_sounds
                }
                _ => {
                    let nums = nums.iter().map(|nums| (nums[index - 1], nums[index]));
                    let rows = taps(conv, nums);
                    gather(device, (&rows, CONV_TAPS), outputs, read);
                    &*read
                }
            };
            let out = if is_last { &mut *out } else { &mut *outputs };
            out.set_num_rows(nums.iter().map(|nums| nums[index]).sum());
            ops::linear(device, x, weight, out);
            ops::activate(device, conv.activation, out);
            // What is on the device is read before it goes.
            device.check()?;
        }
        Ok(())
    }

    /// The squares of chunks.
    fn squares<'a>(&self, squares: &SquareConvs, pieces: &[Piece<'a>]) -> Vec<Square<'a>> {
        let (num_frames, stride) = (squares.num_frames, self.spec.stride());
        let mut all = Vec::new();
        for piece in pieces {
            let num_own = piece.shape.num_own;
            let is_cut = squares.is_cut && num_own < num_frames && piece.shape.is_all;
            let len = if is_cut { num_own } else { num_frames };
            for start in (0..num_own).step_by(num_frames) {
                let frames = &piece.frames[start * self.num_mels..][..len * self.num_mels];
                let num_states = (num_own - start).min(num_frames).div_ceil(stride);
                all.push(Square { frames, num_states });
            }
        }
        all
    }

    /// The states of some squares, in the buffer of them.
    fn over_squares(
        &self,
        device: &Device,
        (spec, squares): (&SquareConvs, &[Square<'_>]),
        buffers: &mut FrontBuffers,
    ) -> Result<(), EngineError> {
        let FrontBuffers { outputs, read, states } = buffers;
        let of_mels = spec.sizes(self.num_mels);
        let of_frames = squares.iter().map(|square| square.frames.len() / self.num_mels);
        let of_frames: Vec<_> = of_frames.map(|num| spec.sizes(num)).collect();
        let (behind, convs) = self.products.split_last().expect("the product is there");
        for (level, weight) in convs.iter().enumerate() {
            let sizes = of_frames.iter().map(|sizes| [sizes[level], of_mels[level]]);
            let rows = places(sizes);
            let of_sounds;
            let x = match level {
                0 => {
                    let samples = squares.iter().flat_map(|square| square.frames);
                    let samples: Vec<f32> = samples.copied().chain([0.0]).collect();
                    let values: Vec<_> = rows.iter().map(|row| samples[*row as usize]).collect();
                    of_sounds = device.upload_as(&values, NUM_PLACES, Precision::Activation)?;
                    &of_sounds
                }
                _ => {
                    gather(device, (&rows, NUM_PLACES), outputs, read);
                    &*read
                }
            };
            outputs.set_num_rows(rows.len() / NUM_PLACES);
            ops::linear(device, x, weight, outputs);
            ops::activate(device, spec.activation, outputs);
            device.check()?;
        }
        let (num_left, mut first, mut rows) = (of_mels[convs.len()], 0, Vec::new());
        for (square, sizes) in squares.iter().zip(&of_frames) {
            rows.extend((first..first + square.num_states * num_left).map(|row| row as u32));
            first += sizes[convs.len()] * num_left;
        }
        gather(device, (&rows, num_left), outputs, read);
        states.set_num_rows(rows.len() / num_left);
        ops::linear(device, read, behind, states);
        Ok(())
    }
}

/// Outputs of each convolution that so many states of a chunk of so many frames are made of.
fn num_outputs(convs: &[ConvSpec], num_frames: usize, num_states: usize) -> Vec<usize> {
    let mut all = vec![num_frames];
    for conv in convs {
        all.push(conv.num_outputs(all[all.len() - 1]));
    }
    let mut nums = vec![num_states];
    for (conv, most) in convs.iter().zip(&all).skip(1).rev() {
        nums.push(conv.num_inputs(nums[nums.len() - 1]).min(*most));
    }
    nums.reverse();
    nums
}

/// What a convolution reads of chunks, of each for so many outputs: the frame before, its own and
/// the one behind.
fn of_frames<'a>(
    conv: &ConvSpec,
    pieces: impl Iterator<Item = (&'a Piece<'a>, usize)>,
    num_mels: usize,
) -> Vec<f32> {
    let mut values = Vec::new();
    for (piece, num_outputs) in pieces {
        let num_frames = piece.frames.len() / num_mels;
        for output in 0..num_outputs {
            for tap in 0..CONV_TAPS {
                match (output * conv.stride + tap).checked_sub(1).filter(|at| *at < num_frames) {
                    Some(at) => {
                        values.extend_from_slice(&piece.frames[at * num_mels..][..num_mels])
                    }
                    None => values.resize(values.len() + num_mels, 0.0),
                }
            }
        }
    }
    values
}

/// The rows that a convolution reads of the outputs of another one, of each chunk so many of so
/// many. Beyond the ends it is the row behind all.
fn taps(conv: &ConvSpec, nums: impl Iterator<Item = (usize, usize)> + Clone) -> Vec<u32> {
    let zeros = nums.clone().map(|(num_inputs, _)| num_inputs).sum();
    let (mut first, mut rows) = (0, Vec::new());
    for (num_inputs, num_outputs) in nums {
        for output in 0..num_outputs {
            rows.extend((0..CONV_TAPS).map(|tap| {
                let own = (output * conv.stride + tap).checked_sub(1);
                own.filter(|at| *at < num_inputs).map_or(zeros, |at| first + at) as u32
            }));
        }
        first += num_inputs;
    }
    rows
}

/// The same of a convolution over squares of these sizes, of frames and of mels: for every second
/// of both the places around it, of which frames are the second axis.
fn places(sizes: impl Iterator<Item = [usize; 2]> + Clone) -> Vec<u32> {
    let zeros = sizes.clone().map(|[num_frames, num_mels]| num_frames * num_mels).sum();
    let (mut first, mut rows) = (0, Vec::new());
    for [num_frames, num_mels] in sizes {
        let place = |frame: Option<usize>, mel: Option<usize>| match (frame, mel) {
            (Some(frame), Some(mel)) if frame < num_frames && mel < num_mels => {
                first + frame * num_mels + mel
            }
            _ => zeros,
        };
        for frame in (0..num_frames).step_by(2) {
            for mel in (0..num_mels).step_by(2) {
                for index in 0..NUM_PLACES {
                    let (of_mel, of_frame) = (mel + index / 3, frame + index % 3);
                    rows.push(place(of_frame.checked_sub(1), of_mel.checked_sub(1)) as u32);
                }
            }
        }
        first += num_frames * num_mels;
    }
    rows
}

/// `read` = these rows of `outputs`, so many beside each other. The row behind all of them is
/// zeros.
fn gather(
    device: &Device,
    (rows, num_beside): (&[u32], usize),
    outputs: &mut Tensor,
    read: &mut Tensor,
) {
    let (num_rows, width) = (outputs.num_rows(), outputs.width());
    outputs.set_num_rows(num_rows + 1);
    outputs.row_mut(num_rows).fill(0.0);
    read.reshape(rows.len(), width);
    ops::gather_rows(device, outputs, rows.into(), read);
    read.reshape(rows.len() / num_beside, num_beside * width);
}
