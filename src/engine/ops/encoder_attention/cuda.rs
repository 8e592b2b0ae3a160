//! Attention of texts on a GPU: the kernels of `paged_attention`, compiled for texts.

use crate::Step;
use crate::paged_attention::{Biases, CacheAttention, attend};
use vllm_batch_base::layers::Reach;
use vllm_batch_device::cuda::DeviceBuffer;
use vllm_batch_device::{Gpu, KvCache, Tensor};

use super::{EncoderAttentionShape, RelativeBias};

pub(super) fn encoder_attention(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    cache: &KvCache,
    shape: EncoderAttentionShape<'_>,
    out: &Tensor,
) {
    let attention = CacheAttention {
        num_heads: shape.heads.num_heads,
        num_kv_heads: shape.heads.num_kv_heads,
        scale: shape.scale,
        soft_cap: shape.soft_cap,
        reach: Reach::of_window(shape.before.map(|before| before + 1)),
        biases: shape.bias.map_or(Biases::None, RelativeBias::of_kernels),
        sinks: None,
        after: Some(shape.after.unwrap_or(usize::MAX)),
    };
    attend(gpu, (qkv, step), cache.layer(0), attention, out);
}

impl RelativeBias {
    fn of_kernels(&self) -> Biases {
        let values = self.on_gpu.as_ref().map(DeviceBuffer::ptr).expect("the biases of a GPU");
        Biases::Table { values, stride: self.stride(), origin: self.origin() }
    }
}
