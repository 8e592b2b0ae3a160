//! `KvCache`: the paged K and V of every layer, in the model's dtype.

mod host_blocks;

use std::ops::Range;

use half::{bf16, f16};

use super::cuda::{DeviceBuffer, DevicePtr};
use super::{Device, Gpu};
use crate::pages::Pages;
use host_blocks::HostBlocks;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::machine::{Refused, granted};

/// Token positions of a block are stored in groups of this many, so a block is a multiple of it.
pub const KV_GROUP_TOKENS: usize = 16;

/// The K and V heads of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvHeads {
    /// Number of heads that there is room for; a layer of the model may use the first ones.
    pub num: usize,
    /// Width of a K head.
    pub head_dim: usize,
    /// Width of a V head; 0: V is the last values of K ([`Device::latent_v_dim`]).
    pub v_dim: usize,
}

/// Sizes of a KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCacheShape {
    /// The layers that have K and V of their own.
    pub layers: Vec<KvHeads>,
    /// Blocks of the pool, shared by all layers: block b of every layer belongs together.
    pub num_blocks: usize,
    /// Tokens of a block; a multiple of [`KV_GROUP_TOKENS`].
    pub block_size: usize,
    /// Recurrent states of layers in each block.
    pub states: StateShape,
    /// Width of a panel of the device's products ([`Device::kv_panel_width`]): V rows are whole
    /// panels.
    pub panel_width: usize,
}

/// Sizes of one layer of a KV cache, as in [`KvHeads`] and [`KvCacheShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct KvLayerShape {
    pub num_blocks: usize,
    pub block_size: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub v_dim: usize,
    pub panel_width: usize,
}

/// Recurrent states: of each block and layer the one after the last token that was computed of the
/// block, in f32. So a full block has the state at its end, wherever it is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    /// Layers that have a state.
    pub num_layers: usize,
    /// Values of a state, of the layer that has most; another uses the first ones.
    pub width: usize,
}

impl StateShape {
    /// Values of all layers of a block.
    fn block_len(&self) -> usize {
        self.num_layers * self.width
    }
}

impl KvLayerShape {
    /// Width of a V row: v_dim rounded up to whole panels.
    pub fn v_width(&self) -> usize {
        self.v_dim.next_multiple_of(self.panel_width)
    }

    /// Positions in a panel of K: a panel's width, or half of it where blocks do not hold whole
    /// ones.
    pub fn k_panel_width(&self) -> usize {
        match self.block_size.is_multiple_of(self.panel_width) {
            true => self.panel_width,
            false => self.panel_width / 2,
        }
    }

    /// K elements of one (block, head): panels of (head_dim, k_panel_width), tokens in the lanes.
    pub fn k_len(&self) -> usize {
        self.head_dim.next_multiple_of(2) * self.block_size
    }

    /// V elements of one (block, head): panels of (block_size, panel_width).
    pub fn v_len(&self) -> usize {
        self.block_size * self.v_width()
    }

    /// K elements and V elements of a block.
    pub fn block_lens(&self) -> [usize; 2] {
        [self.k_len(), self.v_len()].map(|len| len * self.num_kv_heads)
    }
}

impl KvCacheShape {
    /// One layer.
    pub fn layer(&self, index: usize) -> KvLayerShape {
        self.layer_of(self.layers[index])
    }

    fn layer_of(&self, heads: KvHeads) -> KvLayerShape {
        let Self { num_blocks, block_size, panel_width, .. } = *self;
        let KvHeads { num: num_kv_heads, head_dim, v_dim } = heads;
        KvLayerShape { num_blocks, block_size, num_kv_heads, head_dim, v_dim, panel_width }
    }

    /// K elements and V elements of a block in each layer.
    fn block_lens(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        self.layers.iter().map(|heads| self.layer_of(*heads).block_lens())
    }

    /// Bytes of one block over all layers and heads, K and V, with elements of `element_bytes`; and
    /// those of its states.
    pub fn block_bytes(&self, element_bytes: usize) -> usize {
        let kv: usize = self.block_lens().flatten().sum();
        kv * element_bytes + self.states.block_len() * size_of::<f32>()
    }

    /// Tokens that the cache holds.
    pub fn num_tokens(&self) -> usize {
        self.num_blocks * self.block_size
    }

    /// Bytes of all blocks, as `block_bytes`. A cache that is asked for may be larger than any
    /// memory.
    pub fn num_bytes(&self, element_bytes: usize) -> usize {
        self.num_blocks.saturating_mul(self.block_bytes(element_bytes))
    }
}

/// Layers lie one after the other. On the CPU each is (num_blocks, num_kv_heads), and of each K in
/// panels of positions over head_dim, V in panels of the head's columns over positions, as
/// `ops::gemm` takes them: Q·K then has tokens in the lanes and P·V the head's width. On a GPU both
/// are (num_blocks, num_kv_heads, block_size, head_dim), and panels are one column wide.
#[derive(Debug)]
pub struct KvCache {
    /// Sizes.
    pub shape: KvCacheShape,
    /// Values.
    pub data: KvData,
    /// (state layers, num_blocks, width) states.
    pub states: StateData,
    /// Where K and V of each layer begin, and where those of the last one end.
    starts: Vec<[usize; 2]>,
    element_bytes: usize,
    /// Further blocks, which nothing but copies reads or writes.
    host: Option<HostBlocks>,
}

/// The values by dtype. Untouched pages take no memory: the system zeroes them at first use.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum KvData {
    Float32 { k: Pages<f32>, v: Pages<f32> },
    BFloat16 { k: Pages<bf16>, v: Pages<bf16> },
    Float16 { k: Pages<f16>, v: Pages<f16> },
    Cuda { k: DeviceBuffer, v: DeviceBuffer },
}

/// States, where their device has them.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum StateData {
    Host(Pages<f32>),
    Cuda(DeviceBuffer),
}

/// One layer of a cache, to be read.
#[derive(Clone, Copy, Debug)]
pub struct CacheLayer<'a> {
    /// The cache.
    pub cache: &'a KvCache,
    /// Index of the layer.
    pub index: usize,
}

/// One layer of a cache, to be written.
#[derive(Debug)]
pub struct CacheLayerMut<'a> {
    /// The cache.
    pub cache: &'a mut KvCache,
    /// Index of the layer.
    pub index: usize,
}

/// The states of one layer, to be read and written.
#[derive(Debug)]
pub struct StateLayerMut<'a> {
    /// (num_blocks, width)
    pub values: StateValues<'a>,
    /// Values of a state.
    pub width: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

/// The values of one layer's states, where their device has them.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum StateValues<'a> {
    Host(&'a mut [f32]),
    Cuda(DevicePtr),
}

impl<'a> StateLayerMut<'a> {
    /// (num_blocks, width) states on the host.
    pub fn on_host(values: &'a mut [f32], width: usize, block_size: usize) -> Self {
        Self { values: StateValues::Host(values), width, block_size }
    }

    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> StateLayerMut<'_> {
        let Self { values, width, block_size } = self;
        let values = match values {
            StateValues::Host(values) => StateValues::Host(values),
            StateValues::Cuda(ptr) => StateValues::Cuda(*ptr),
        };
        StateLayerMut { values, width: *width, block_size: *block_size }
    }

    /// The values on the host.
    ///
    /// # Panics
    /// They are on a GPU.
    pub fn into_host(self) -> &'a mut [f32] {
        match self.values {
            StateValues::Host(values) => values,
            StateValues::Cuda(_) => panic!("states of a GPU were given to the CPU"),
        }
    }

    /// Where they are in a GPU's memory.
    ///
    /// # Panics
    /// They are on the host.
    pub fn ptr(&self) -> DevicePtr {
        match &self.values {
            StateValues::Cuda(ptr) => *ptr,
            StateValues::Host(_) => panic!("states of the host were given to a GPU"),
        }
    }
}

impl CacheLayer<'_> {
    /// Sizes of the layer.
    pub fn shape(self) -> KvLayerShape {
        self.cache.shape.layer(self.index)
    }

    /// Range of its elements among those of all layers: of K and of V.
    pub fn ranges(self) -> [Range<usize>; 2] {
        self.cache.layer_ranges(self.index)
    }

    /// Where K and V of the layer are in a GPU's memory.
    ///
    /// # Panics
    /// The cache is on the host.
    pub fn ptrs(self) -> (DevicePtr, DevicePtr) {
        self.cache.layer_ptrs(self.index)
    }
}

impl KvCache {
    /// An empty cache on the device.
    ///
    /// # Errors
    /// The memory does not suffice.
    ///
    /// # Panics
    /// As `new`.
    pub fn on_device(
        device: &Device,
        shape: KvCacheShape,
        dtype: DType,
    ) -> Result<Self, EngineError> {
        match device {
            Device::Cpu(_) => Ok(Self::try_new(shape, dtype)?),
            Device::Cuda(gpu) => Self::on_gpu(gpu, shape),
        }
    }

    /// Zeroed: no kernel may ever meet a NaN that nobody wrote.
    fn on_gpu(gpu: &Gpu, shape: KvCacheShape) -> Result<Self, EngineError> {
        assert!(shape.block_size.is_multiple_of(KV_GROUP_TOKENS));
        let is_known = |heads: &KvHeads| [0, heads.head_dim].contains(&heads.v_dim);
        assert!(shape.layers.iter().all(is_known) && shape.panel_width == 1, "{shape:?}");
        let element_bytes = gpu.kv_cache_dtype().size_bytes(gpu.dtype());
        let starts = starts(&shape);
        let [k, v] = starts[shape.layers.len()].map(|len| len.saturating_mul(element_bytes));
        let (k, v) = (gpu.alloc(k)?, gpu.alloc(v)?);
        let num_states = shape.num_blocks.saturating_mul(shape.states.block_len());
        let states = StateData::Cuda(gpu.alloc(num_states.saturating_mul(size_of::<f32>()))?);
        let data = KvData::Cuda { k, v };
        Ok(Self { shape, data, states, starts, element_bytes, host: None })
    }

    /// Adds so many blocks in the host's memory to the cache of a GPU. In lists of copies they come
    /// after the GPU's.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn add_host_blocks(&mut self, gpu: &Gpu, num_blocks: usize) -> Result<(), EngineError> {
        let shape = KvCacheShape { num_blocks, ..self.shape.clone() };
        self.host = Some(HostBlocks::new(gpu, shape, self.element_bytes)?);
        Ok(())
    }

    /// Blocks in the host's memory.
    pub fn num_host_blocks(&self) -> usize {
        self.host.as_ref().map_or(0, HostBlocks::num_blocks)
    }

    /// Where K and V of the host's blocks are, of one layer; null: there are none.
    pub fn host_layer_ptrs(&self, layer: usize) -> [DevicePtr; 2] {
        self.host.as_ref().map_or([DevicePtr::NULL; 2], |host| host.layer_ptrs(layer))
    }

    /// The same of states.
    pub fn host_state_ptr(&self, layer: usize) -> DevicePtr {
        self.host.as_ref().map_or(DevicePtr::NULL, |host| host.state_ptr(layer))
    }

    /// K and V of one layer in a GPU's memory; V is null where it is the last values of K.
    ///
    /// # Panics
    /// The cache is on the host.
    fn layer_ptrs(&self, layer: usize) -> (DevicePtr, DevicePtr) {
        let KvData::Cuda { k, v } = &self.data else {
            panic!("a cache of the host was given to a GPU");
        };
        let [k_start, v_start] = self.starts[layer].map(|start| start * self.element_bytes);
        let v = match self.shape.layers[layer].v_dim {
            0 => DevicePtr::NULL,
            _ => v.ptr().offset(v_start),
        };
        (k.ptr().offset(k_start), v)
    }

    /// One layer, to be read.
    pub fn layer(&self, index: usize) -> CacheLayer<'_> {
        CacheLayer { cache: self, index }
    }

    /// One layer, to be written.
    pub fn layer_mut(&mut self, index: usize) -> CacheLayerMut<'_> {
        CacheLayerMut { cache: self, index }
    }

    /// Elements of a layer among those of all: of K and of V.
    pub fn layer_ranges(&self, layer: usize) -> [Range<usize>; 2] {
        let ([k, v], [k_end, v_end]) = (self.starts[layer], self.starts[layer + 1]);
        [k..k_end, v..v_end]
    }

    /// The states of one of the layers that have them.
    pub fn state_layer_mut(&mut self, index: usize) -> StateLayerMut<'_> {
        let width = self.shape.states.width;
        let len = self.shape.num_blocks * width;
        let values = match &mut self.states {
            StateData::Host(values) => {
                StateValues::Host(&mut values[index * len..(index + 1) * len])
            }
            StateData::Cuda(buffer) => {
                StateValues::Cuda(buffer.ptr().offset(index * len * size_of::<f32>()))
            }
        };
        StateLayerMut { values, width, block_size: self.shape.block_size }
    }

    /// Bytes of an element.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// An empty cache of the CPU.
    ///
    /// # Panics
    /// `block_size` is no multiple of [`KV_GROUP_TOKENS`], or the system refuses the memory.
    pub fn new(shape: KvCacheShape, dtype: DType) -> Self {
        granted(Self::try_new(shape, dtype))
    }

    fn try_new(shape: KvCacheShape, dtype: DType) -> Result<Self, Refused> {
        assert!(shape.block_size.is_multiple_of(KV_GROUP_TOKENS));
        let starts = starts(&shape);
        let [k, v] = starts[shape.layers.len()];
        let data = match dtype {
            DType::Float32 => {
                KvData::Float32 { k: Pages::try_zeroed(k)?, v: Pages::try_zeroed(v)? }
            }
            DType::BFloat16 => {
                KvData::BFloat16 { k: Pages::try_zeroed(k)?, v: Pages::try_zeroed(v)? }
            }
            DType::Float16 => {
                KvData::Float16 { k: Pages::try_zeroed(k)?, v: Pages::try_zeroed(v)? }
            }
        };
        let num_states = shape.num_blocks.saturating_mul(shape.states.block_len());
        let states = StateData::Host(Pages::try_zeroed(num_states)?);
        let element_bytes = dtype.size_bytes();
        Ok(Self { shape, data, states, starts, element_bytes, host: None })
    }
}

/// Where K and V of each layer begin, and where those of the last one end.
fn starts(shape: &KvCacheShape) -> Vec<[usize; 2]> {
    let mut next = [0usize; 2];
    let mut starts = vec![next];
    for lens in shape.block_lens() {
        let after =
            |which: usize| next[which].saturating_add(lens[which].saturating_mul(shape.num_blocks));
        next = [after(0), after(1)];
        starts.push(next);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_counts_the_heads_of_every_layer_and_the_states_of_every_block() {
        let heads = |num, head_dim, v_dim| KvHeads { num, head_dim, v_dim };
        let shape = KvCacheShape {
            layers: vec![heads(2, 8, 8), heads(1, 6, 10)],
            num_blocks: 3,
            block_size: 32,
            states: StateShape { num_layers: 2, width: 5 },
            panel_width: 8,
        };
        assert_eq!(shape.num_tokens(), 96);
        // V rows are whole panels; states are f32 whatever K and V are.
        let block = 32 * (2 * (8 + 8) + 6 + 16) * 2 + 2 * 5 * 4;
        assert_eq!(shape.num_bytes(2), 3 * block);
        let huge = KvCacheShape { num_blocks: usize::MAX, ..shape };
        assert_eq!(huge.num_bytes(2), usize::MAX);
    }
}
