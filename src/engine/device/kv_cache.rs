//! `KvCache`: the paged K and V of every layer, in the model's dtype.

use half::{bf16, f16};

use super::cuda::{DeviceBuffer, DevicePtr};
use super::{Device, Gpu};
use crate::engine::EngineError;
use crate::engine::config::DType;

/// Token positions of a block are stored in groups of this many, so a block is a multiple of it.
pub const KV_GROUP_TOKENS: usize = 16;

/// Sizes of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheShape {
    /// Layers that have K and V.
    pub num_layers: usize,
    /// Blocks of the pool, shared by all layers: block b of every layer belongs together.
    pub num_blocks: usize,
    /// Tokens of a block; a multiple of [`KV_GROUP_TOKENS`].
    pub block_size: usize,
    /// K and V heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl KvCacheShape {
    /// Width of a V row: head_dim rounded up to whole vectors.
    pub fn v_width(&self) -> usize {
        self.head_dim.next_multiple_of(KV_GROUP_TOKENS)
    }

    /// K elements of one (block, head): (head_dim, block_size), tokens in the lanes.
    pub fn k_len(&self) -> usize {
        self.head_dim * self.block_size
    }

    /// V elements of one (block, head): (block_size, v_width).
    pub fn v_len(&self) -> usize {
        self.block_size * self.v_width()
    }

    /// Bytes of one block over all layers and heads, K and V, with elements of `element_bytes`.
    pub fn block_bytes(&self, element_bytes: usize) -> usize {
        self.num_layers * self.num_kv_heads * (self.k_len() + self.v_len()) * element_bytes
    }
}

/// On the CPU K: (num_layers, num_blocks, num_kv_heads, head_dim, block_size), V: (num_layers,
/// num_blocks, num_kv_heads, block_size, v_width). Q·K then has tokens in the lanes and P·V the
/// head's width. On a GPU both are (num_layers, num_blocks, num_kv_heads, block_size, head_dim).
#[derive(Debug)]
pub struct KvCache {
    /// Sizes.
    pub shape: KvCacheShape,
    /// Values.
    pub data: KvData,
}

/// The values by dtype. Untouched pages take no memory: the system zeroes them at first use.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum KvData {
    Float32 { k: Vec<f32>, v: Vec<f32> },
    BFloat16 { k: Vec<bf16>, v: Vec<bf16> },
    Float16 { k: Vec<f16>, v: Vec<f16> },
    Cuda { k: DeviceBuffer, v: DeviceBuffer },
}

impl KvCache {
    /// An empty cache on the device.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    ///
    /// # Panics
    /// As `new`.
    pub fn on_device(
        device: &Device,
        shape: KvCacheShape,
        dtype: DType,
    ) -> Result<Self, EngineError> {
        match device {
            Device::Cpu(_) => Ok(Self::new(shape, dtype)),
            Device::Cuda(gpu) => Self::on_gpu(gpu, shape),
        }
    }

    /// Zeroed: no kernel may ever meet a NaN that nobody wrote.
    fn on_gpu(gpu: &Gpu, shape: KvCacheShape) -> Result<Self, EngineError> {
        assert!(shape.block_size.is_multiple_of(KV_GROUP_TOKENS));
        let element_bytes = gpu.kv_cache_dtype().size_bytes(gpu.dtype());
        let bytes = shape.num_blocks * shape.block_bytes(element_bytes) / 2;
        let (k, v) = (gpu.alloc(bytes)?, gpu.alloc(bytes)?);
        Ok(Self { shape, data: KvData::Cuda { k, v } })
    }

    /// K and V of one layer in a GPU's memory.
    ///
    /// # Panics
    /// The cache is on the host.
    pub(in crate::engine) fn layer_ptrs(&self, layer: usize) -> (DevicePtr, DevicePtr) {
        let KvData::Cuda { k, v } = &self.data else {
            panic!("a cache of the host was given to a GPU");
        };
        let offset = k.bytes() / self.shape.num_layers * layer;
        (k.ptr().offset(offset), v.ptr().offset(offset))
    }

    /// An empty cache of the CPU.
    ///
    /// # Panics
    /// `block_size` is no multiple of [`KV_GROUP_TOKENS`].
    pub fn new(shape: KvCacheShape, dtype: DType) -> Self {
        assert!(shape.block_size.is_multiple_of(KV_GROUP_TOKENS));
        let num = shape.num_layers * shape.num_blocks * shape.num_kv_heads;
        let (k, v) = (num * shape.k_len(), num * shape.v_len());
        let data = match dtype {
            DType::Float32 => KvData::Float32 { k: vec![0.0; k], v: vec![0.0; v] },
            DType::BFloat16 => KvData::BFloat16 { k: zeroed_bf16(k), v: zeroed_bf16(v) },
            DType::Float16 => KvData::Float16 { k: zeroed_f16(k), v: zeroed_f16(v) },
        };
        Self { shape, data }
    }
}

/// `vec![bf16::ZERO; n]` writes every element; a zeroed u16 vector comes untouched from the system.
fn zeroed_bf16(len: usize) -> Vec<bf16> {
    half::vec::HalfBitsVecExt::reinterpret_into(vec![0u16; len])
}

fn zeroed_f16(len: usize) -> Vec<f16> {
    half::vec::HalfBitsVecExt::reinterpret_into(vec![0u16; len])
}
