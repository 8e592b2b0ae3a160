//! Attention on a GPU: kernels/paged_attention.cu and paged_attention_decode.cu, wide_attention.cu,
//! or paged_attention_f32.cu for exactness. Where it was asked for, paged_attention_wgmma.cu.

mod defines;
mod launch;
mod parts;
mod wgmma;
mod wide;

pub use launch::Launch;
pub(crate) use parts::PartLaunch;
pub use wgmma::{WgmmaTrial, prefill_by_wgmma, sizes as wgmma_prefill_sizes};

use crate::MAX_NARROW_HEAD_DIM;
use crate::choose_positions::GpuChoice;
use crate::step::WorkList;
use crate::{Step, WeightValues};
use defines::{AttentionDefines, DecodeLayer};
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Reach;
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::gpu::Kernel;
use vllm_batch_device::kv_cache::KvLayerShape;
use vllm_batch_device::{CacheLayer, Gpu, Tensor};

use super::AttentionShape;
use parts::PartsTask;

/// `struct AttentionParams` of kernels/attention_params.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct AttentionParams {
    num_heads: u32,
    num_kv_heads: u32,
    cache_kv_heads: u32,
    block_size: u32,
    max_blocks_per_seq: u32,
    qkv_stride: u32,
    window: u32,
    after: u32,
    bias_stride: u32,
    bias_origin: u32,
    scale: f32,
    soft_cap: f32,
    /// Null without them.
    biases: DevicePtr,
    /// Null without them.
    sinks: DevicePtr,
    /// Null where they are in shared memory.
    states: DevicePtr,
    /// (num_tokens) where what tokens attend to ends; null: each sees up to itself.
    ends: DevicePtr,
}

impl AttentionParams {
    /// Constants that decode is compiled with.
    fn decode_layer(&self) -> DecodeLayer {
        DecodeLayer {
            num_kv_heads: self.num_kv_heads,
            group_size: self.num_heads / self.num_kv_heads,
            block_size: self.block_size,
            window: self.window,
            has_soft_cap: self.soft_cap > 0.0,
        }
    }
}

/// Attention over K and V of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheAttention {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// Which positions up to its own a token sees.
    pub reach: Reach,
    pub biases: Biases,
    /// (num_heads) scores of positions without values.
    pub sinks: Option<DevicePtr>,
    /// Most positions that a token of a whole text sees after itself. `None`: the sequences are no
    /// texts, and a token sees none.
    pub after: Option<usize>,
}

/// Biases that are added to scores.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Biases {
    None,
    /// Slopes (num_heads) of the distance, where sequences are no texts.
    Alibi(DevicePtr),
    /// (num_heads, stride) numbers by distance, of texts; `origin` is that of distance 0.
    Table {
        values: DevicePtr,
        stride: usize,
        origin: usize,
    },
}

/// Rows of a tensor core's tile.
const ROWS: usize = 16;
/// Positions of a tile of K or V.
const TILE: usize = 32;
/// As far as any text goes: what is added to a position stays in 32 bits.
const FURTHEST: usize = 1 << 30;

/// Bytes of memory that prefill of a model's widest heads keeps merged splits in, where shared
/// memory has no room for them. Narrower heads take less.
pub(crate) fn prefill_states_bytes(gpu: &Gpu, head_dim: usize) -> usize {
    match gpu.dtype() {
        DType::Float32 => 0,
        _ => {
            let launch = Launch::of(gpu, head_dim.min(MAX_NARROW_HEAD_DIM));
            launch.states_bytes(gpu.properties().num_sms)
        }
    }
}

/// Query tokens of one unit of prefill.
pub(crate) fn prefill_tokens(gpu: &Gpu, head_dim: usize, num_q_per_kv: usize) -> usize {
    let rows = match head_dim <= MAX_NARROW_HEAD_DIM {
        true => Launch::of(gpu, head_dim).prefill_rows(),
        false => wide::MAX_ROWS,
    };
    (rows / num_q_per_kv).max(1)
}

pub(super) fn paged_attention(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    layer: CacheLayer<'_>,
    shape: AttentionShape<'_>,
    out: &Tensor,
) {
    attend(gpu, (qkv, step), layer, CacheAttention::of(shape), out);
}

/// The same to what tokens chose: each has a table of its own, or one for each K and V head. Of
/// latents the cache is one of blocks of a position.
pub(super) fn attention_of_chosen(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    (layer, choice): (CacheLayer<'_>, &GpuChoice),
    shape: AttentionShape<'_>,
    out: &Tensor,
) {
    let kv = KvLayerShape { block_size: choice.block_size(), ..layer.shape() };
    assert!(shape.reach == Reach::All);
    let mut task = Task::new(gpu, (qkv, step), (layer, kv), CacheAttention::of(shape), out);
    task.defines.is_chosen = true;
    task.params.max_blocks_per_seq = choice.table_len() as u32;
    match kv.v_dim {
        0 => {
            assert!(kv.num_kv_heads == 1 && kv.block_size == 1);
            task.queue_chosen_latents(choice);
        }
        _ => task.queue_chosen_blocks(choice),
    }
}

impl CacheAttention {
    fn of(shape: AttentionShape<'_>) -> Self {
        let slopes = shape.alibi.map(WeightValues::device_ptr);
        Self {
            num_heads: shape.num_heads,
            num_kv_heads: shape.num_kv_heads,
            scale: shape.scale,
            soft_cap: shape.soft_cap,
            reach: shape.reach,
            biases: slopes.map_or(Biases::None, Biases::Alibi),
            sinks: shape.sinks.map(WeightValues::device_ptr),
            after: None,
        }
    }

    fn params(&self, (qkv, step): (&Tensor, Step<'_>), kv: KvLayerShape) -> AttentionParams {
        let (biases, stride, origin) = match self.biases {
            Biases::None => (DevicePtr::NULL, 0, 0),
            Biases::Alibi(slopes) => (slopes, 0, 0),
            Biases::Table { values, stride, origin } => (values, stride, origin),
        };
        AttentionParams {
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            cache_kv_heads: kv.num_kv_heads as u32,
            block_size: kv.block_size as u32,
            // `AttentionWork::seq` is an entry of the tables, not a row.
            max_blocks_per_seq: 1,
            qkv_stride: qkv.width() as u32,
            window: self.reach.most().map_or(0, |most| most as u32),
            after: self.after.unwrap_or(0).min(FURTHEST) as u32,
            bias_stride: stride as u32,
            bias_origin: origin as u32,
            scale: self.scale,
            soft_cap: self.soft_cap.unwrap_or(0.0),
            biases,
            sinks: self.sinks.unwrap_or(DevicePtr::NULL),
            states: step.gpu_inputs().prefill_states.ptr(),
            ends: step.attended_ends_ptr(),
        }
    }

    /// `v_dim`: width of a head's output.
    fn defines(&self, step: Step<'_>, kv: KvLayerShape, v_dim: usize) -> AttentionDefines {
        AttentionDefines {
            head_dim: kv.head_dim as u32,
            latent_dim: if kv.v_dim == 0 { v_dim as u32 } else { 0 },
            is_of_texts: self.after.is_some(),
            has_images: !step.batch.attended_ends.is_empty(),
            has_biases: !matches!(self.biases, Biases::None),
            has_sinks: self.sinks.is_some(),
            is_chunked: matches!(self.reach, Reach::Chunk(_)),
            is_chosen: false,
            launch: None,
        }
    }
}

/// Queues attention of the step's tokens to K and V in a layer of a cache: to K and the last values
/// of K, as many as a head of `out` has, where the layer has no V.
pub(crate) fn attend(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    layer: CacheLayer<'_>,
    attention: CacheAttention,
    out: &Tensor,
) {
    let kv = layer.shape();
    let task = Task::new(gpu, (qkv, step), (layer, kv), attention, out);
    match gpu.dtype() {
        DType::Float32 => task.queue_f32(),
        _ if kv.v_dim == 0 || kv.head_dim > MAX_NARROW_HEAD_DIM => task.queue_wide(),
        _ => task.queue(),
    }
}

/// Blocks of a launch over units of prompts.
#[derive(Clone, Copy)]
struct PrefillGrid {
    /// Blocks of a unit.
    parts: u32,
    /// Threads, and bytes of shared memory.
    block: (u32, usize),
    /// Those of more units stride over them.
    max_blocks: u32,
}

impl PrefillGrid {
    /// One block for each unit.
    fn of(block: (u32, usize)) -> Self {
        Self { parts: 1, block, max_blocks: u32::MAX }
    }
}

/// Attention of one layer. Tokens that decode come last, since others are added to them: those of
/// prefill that a V that is not finite could reach without being attended to.
#[derive(Clone, Copy)]
struct Task<'a> {
    gpu: &'a Gpu,
    /// qkv and out.
    tensors: (&'a Tensor, &'a Tensor),
    step: Step<'a>,
    /// Number of query heads, and of K and V heads.
    num_heads: (usize, usize),
    head_dim: usize,
    params: AttentionParams,
    defines: AttentionDefines,
    /// Where K and V are.
    cache: (DevicePtr, DevicePtr),
}

impl<'a> Task<'a> {
    /// `kv`: the layer, as attention is to see it.
    fn new(
        gpu: &'a Gpu,
        (qkv, step): (&'a Tensor, Step<'a>),
        (layer, kv): (CacheLayer<'_>, KvLayerShape),
        attention: CacheAttention,
        out: &'a Tensor,
    ) -> Self {
        let v_dim = out.width() / attention.num_heads;
        assert!(kv.v_dim == 0 || kv.v_dim == v_dim);
        let cache = match (layer.ptrs(), kv.v_dim) {
            ((k, _), 0) => (k, k.offset((kv.head_dim - v_dim) * layer.cache.element_bytes())),
            (both, _) => both,
        };
        Self {
            gpu,
            tensors: (qkv, out),
            step,
            num_heads: (attention.num_heads, attention.num_kv_heads),
            head_dim: kv.head_dim,
            params: attention.params((qkv, step), kv),
            defines: attention.defines(step, kv, v_dim),
            cache,
        }
    }

    /// The arguments that all kernels begin with.
    fn args(&self, work: (DevicePtr, DevicePtr)) -> Args {
        self.args_of(work, self.step.gpu_inputs().block_tables.ptr())
    }

    /// The same with other block tables.
    fn args_of(&self, (items, num_items): (DevicePtr, DevicePtr), tables: DevicePtr) -> Args {
        let mut args = Args::new();
        args.tensor(self.tensors.0).ptr(self.cache.0).ptr(self.cache.1).ptr(items).ptr(num_items);
        args.ptr(tables);
        args
    }

    /// Units of what tokens chose, one for each row and K and V head.
    fn queue_chosen_blocks(&self, choice: &GpuChoice) {
        let Self { gpu, defines, params, .. } = *self;
        let mut args = self.args_of(choice.work(), choice.tables());
        args.tensor(self.tensors.1);
        match gpu.dtype() {
            DType::Float32 => {
                const NAME: &str = "paged_attention_f32";
                let kernel = defines.kernel(NAME, NAME);
                args.value(params);
                gpu.launch(kernel, [self.decode_units(), 1], (128, 0), &mut args);
            }
            _ => self.launch_decode(args),
        }
    }

    /// Units of decoding by the kernel for them, which go to the output of `args`: by as many
    /// blocks as are resident, whatever the number of units.
    fn launch_decode(&self, mut args: Args) {
        let Self { gpu, defines, params, .. } = *self;
        let sizes = Launch::of(gpu, self.head_dim);
        let grid = self.decode_units().min(gpu.properties().num_sms * sizes.decode.blocks);
        args.ptr(DevicePtr::NULL).value(params);
        let kernel = sizes.kernel(parts::DECODE, defines, &params);
        gpu.launch(kernel, [grid, 1], sizes.decode_block(), &mut args);
    }

    /// A unit for each row, of what its token chose.
    fn queue_chosen_latents(&self, choice: &GpuChoice) {
        let mut args = self.args_of(choice.work(), choice.tables());
        args.tensor(self.tensors.1).value(self.params);
        let (kernel, parts, block) = match self.gpu.dtype() {
            DType::Float32 => {
                const NAME: &str = "paged_attention_f32";
                (self.defines.kernel(NAME, NAME), 1, (128, 0))
            }
            _ => {
                let num_rows = self.num_heads.0;
                let block = wide::Block::new(num_rows, self.head_dim, self.gpu.properties());
                let kernel = self.defines.kernel("wide_attention", block.entry);
                let parts = num_rows.div_ceil(block.num_rows) as u32;
                (kernel, parts, (block.threads, block.smem))
            }
        };
        self.gpu.launch(kernel, [self.step.num_rows() as u32, parts], block, &mut args);
    }

    /// A kernel over units of prompts. `args` are what it takes for some work.
    fn launch_prefill(
        &self,
        work: &WorkList,
        kernel: Kernel,
        grid: PrefillGrid,
        args: impl Fn((DevicePtr, DevicePtr)) -> Args,
    ) {
        for (launch, items) in work.launches.iter().enumerate() {
            let units = (items.len() * self.num_heads.1) as u32;
            let blocks = [units.min(grid.max_blocks), grid.parts];
            self.gpu.launch(kernel, blocks, grid.block, &mut args(work.ptrs(launch)));
        }
    }

    /// Attention of these tokens.
    fn prefill(&self, work: &WorkList, kernel: Kernel, grid: PrefillGrid) {
        self.launch_prefill(work, kernel, grid, |work| {
            let mut args = self.args(work);
            args.tensor(self.tensors.1).value(self.params);
            args
        });
    }

    /// Adds tokens to those that decode that prefill may have got wrong.
    fn find_unseen_values(&self, prefill: &WorkList, decode: &WorkList) {
        const NAME: &str = "unseen_values";
        let block_tables = self.step.gpu_inputs().block_tables.ptr();
        let kernel = self.defines.kernel(NAME, NAME);
        self.launch_prefill(prefill, kernel, PrefillGrid::of((128, 0)), |(work, num_work)| {
            let mut args = Args::new();
            args.ptr(self.cache.1).ptr(work).ptr(num_work).ptr(block_tables);
            args.value(decode.list()).value(self.params);
            args
        });
    }

    /// Units of decoding, at most. The padded rows decide it, so that a recorded launch serves
    /// every step of its size.
    fn decode_units(&self) -> u32 {
        (self.step.num_rows() * self.num_heads.1) as u32
    }

    fn queue_f32(&self) {
        const NAME: &str = "paged_attention_f32";
        let inputs = self.step.gpu_inputs();
        let kernel = self.defines.kernel(NAME, NAME);
        if !inputs.decode.host.is_empty() {
            let mut args = self.args(inputs.decode.ptrs(0));
            args.tensor(self.tensors.1).value(self.params);
            self.gpu.launch(kernel, [self.decode_units(), 1], (128, 0), &mut args);
        }
        self.prefill(&inputs.prefill, kernel, PrefillGrid::of((128, 0)));
    }

    fn queue_wide(&self) {
        let Self { gpu, defines, step, .. } = *self;
        let AttentionDefines { is_of_texts, has_images, has_biases, has_sinks, .. } = defines;
        assert!(!(is_of_texts || has_images || has_biases || has_sinks), "{defines:?}");
        let properties = gpu.properties();
        let block = |num_tokens: usize| {
            let num_rows = num_tokens * (self.num_heads.0 / self.num_heads.1);
            let block = wide::Block::new(num_rows, self.head_dim, properties);
            let kernel = defines.kernel("wide_attention", block.entry);
            (kernel, (num_rows.div_ceil(block.num_rows) as u32, (block.threads, block.smem)))
        };
        let inputs = step.gpu_inputs();
        let (kernel, (parts, threads)) = block(inputs.tokens_per_item());
        self.prefill(&inputs.prefill, kernel, PrefillGrid { parts, ..PrefillGrid::of(threads) });
        self.find_unseen_values(&inputs.prefill, &inputs.decode);
        let (kernel, (parts, threads)) = block(1);
        let mut args = self.args(inputs.decode.ptrs(0));
        args.tensor(self.tensors.1).value(self.params);
        gpu.launch(kernel, [self.decode_units(), parts], threads, &mut args);
    }

    fn queue(&self) {
        let Self { gpu, defines, step, params, .. } = *self;
        let (inputs, properties) = (step.gpu_inputs(), gpu.properties());
        let sizes = Launch::of(gpu, self.head_dim);
        let may_have_parts = params.window == 0 && !defines.has_biases && step.has_parts().0;
        let parts = inputs.parts.as_ref().filter(|_| may_have_parts);
        let whole = (&inputs.prefill, &inputs.decode);
        let (prefill, decode) = parts.map_or(whole, |parts| (&parts.prefill, &parts.units));
        let states_bytes = sizes.states_bytes(properties.num_sms);
        assert!(states_bytes <= inputs.prefill_states.bytes(), "heads are wider than was said");
        let (entry, block) = sizes.prefill_kernel(gpu, &defines);
        let grid = PrefillGrid {
            max_blocks: sizes.max_prefill_blocks(properties.num_sms),
            ..PrefillGrid::of(block)
        };
        self.prefill(prefill, sizes.kernel(entry, defines, &params), grid);
        if !defines.is_of_texts {
            self.find_unseen_values(prefill, decode);
        }
        if let Some(parts) = parts {
            let task = PartsTask { gpu, sizes, defines, params, cache: self.cache, parts };
            task.queue((self.tensors.0, step), inputs.block_tables.ptr(), self.tensors.1);
        } else if !defines.is_of_texts {
            let mut args = self.args(decode.ptrs(0));
            args.tensor(self.tensors.1);
            self.launch_decode(args);
        }
    }
}
