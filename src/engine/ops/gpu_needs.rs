//! `GpuNeeds`: what a model asks of the kernels of a GPU, and what they take.

use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, EngineConfig, KvCacheDType};
use vllm_batch_device::{self as device, Device, WhyCpu};

/// Widest head that kernels/paged_attention.cu takes, and with it attention in texts and a cache of
/// E4M3. Wider ones, and latents, are kernels/wide_attention.cu's.
pub const MAX_NARROW_HEAD_DIM: usize = 256;
/// Widest head that any attention kernel takes.
const MAX_HEAD_DIM: usize = 576;
/// Most tokens that the sampler's kernels take (`MAX_SEGMENTS` and `UNIT` of kernels/logits.cuh).
pub const MAX_GPU_VOCAB_SIZE: usize = (1 << 19) - 1;

/// Widths of the heads of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadWidths {
    /// Width of a K head.
    pub head_dim: usize,
    /// Width of the V of a latent, the last values of K; `None`: V is as wide as K, and apart.
    pub latent_dim: Option<usize>,
    /// Scores have biases, or heads have sinks.
    pub has_biases: bool,
}

/// Needs of a model for the kernels of a GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuNeeds {
    /// Widths of its heads, of every kind of layer.
    pub heads: Vec<HeadWidths>,
    /// Whether its sequences are whole texts.
    pub is_of_texts: bool,
    /// Tokens that are sampled from its logits; 0: none are.
    pub vocab_size: usize,
    /// A part of it that has none, in words.
    pub without_kernels: Option<&'static str>,
}

impl GpuNeeds {
    /// Opens the device that the configuration asks for. The second part says why `auto` took the
    /// CPU.
    ///
    /// # Errors
    /// The GPU that was asked for cannot be used, or its kernels do not compute such a model.
    pub fn open_device(
        &self,
        config: &EngineConfig,
        dtype: DType,
    ) -> Result<(Device, Option<WhyCpu>), EngineError> {
        device::open(config, dtype, self.refusal(dtype, config.cache.kv_cache_dtype))
    }

    /// Bytes of memory of the GPU that `open_device` takes; None: it takes the CPU, or nothing.
    pub fn memory_of_gpu(&self, config: &EngineConfig, dtype: DType) -> Option<u64> {
        match self.refusal(dtype, config.cache.kv_cache_dtype) {
            None => device::memory_of_gpu(config),
            Some(_) => None,
        }
    }

    /// Why the kernels cannot run it with these types, for people to read; None: they can.
    pub fn refusal(&self, dtype: DType, kv_cache_dtype: KvCacheDType) -> Option<String> {
        self.check(dtype, kv_cache_dtype).err()
    }

    fn check(&self, dtype: DType, kv_cache_dtype: KvCacheDType) -> Result<(), String> {
        if let Some(part) = self.without_kernels {
            return Err(format!("this model has {part}, and no kernel here computes that yet"));
        }
        check_vocab_size(self.vocab_size)?;
        let check =
            |heads: &HeadWidths| check_heads((dtype, kv_cache_dtype), *heads, self.is_of_texts);
        self.heads.iter().try_for_each(check)
    }
}

/// The sampler's kernels keep something of each part of a row of logits in memory of fixed size.
fn check_vocab_size(vocab_size: usize) -> Result<(), String> {
    match vocab_size <= MAX_GPU_VOCAB_SIZE {
        true => Ok(()),
        false => Err(format!(
            "this model has {vocab_size} tokens, and the kernels sample from up to \
             {MAX_GPU_VOCAB_SIZE}"
        )),
    }
}

/// The GPU's attention reads heads in pieces of 16 bytes.
fn check_heads(
    (dtype, kv_cache_dtype): (DType, KvCacheDType),
    heads: HeadWidths,
    is_of_texts: bool,
) -> Result<(), String> {
    let HeadWidths { head_dim, latent_dim, has_biases } = heads;
    let (is_narrow, name) = (kv_cache_dtype == KvCacheDType::Fp8, dtype.name());
    let cache = if is_narrow { " with an fp8 KV cache" } else { "" };
    assert!(!is_narrow || latent_dim.is_none(), "latents in fp8, which no kernel takes");
    let step = 16 / kv_cache_dtype.size_bytes(dtype);
    let most = if is_narrow || is_of_texts { MAX_NARROW_HEAD_DIM } else { MAX_HEAD_DIM };
    if head_dim > most || !head_dim.is_multiple_of(step) {
        return Err(format!(
            "this model's head_dim is {head_dim}, and the kernels take multiples of {step} up to \
             {most} in {name}{cache}"
        ));
    }
    let is_wide = latent_dim.is_some() || head_dim > MAX_NARROW_HEAD_DIM;
    if is_wide && has_biases && dtype != DType::Float32 {
        return Err(format!(
            "this model has ALiBi or sinks in heads of {head_dim}, and the kernels take these up \
             to {MAX_NARROW_HEAD_DIM} in {name}"
        ));
    }
    match latent_dim.filter(|width| !width.is_multiple_of(step)) {
        None => Ok(()),
        Some(width) => Err(format!(
            "this model's kv_lora_rank is {width}, and the kernels take multiples of {step} in \
             {name}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_kernels_are_named() {
        let without_kernels = Some("delta nets");
        let check = |needs: &GpuNeeds| needs.check(DType::BFloat16, KvCacheDType::Auto);
        let needs = GpuNeeds { without_kernels, ..GpuNeeds::default() };
        assert!(check(&needs).unwrap_err().contains("has delta nets, and no kernel"));
        assert_eq!(check(&GpuNeeds { without_kernels: None, ..needs }), Ok(()));
    }

    #[test]
    fn vocabularies_that_no_kernel_takes_are_named() {
        let check = |vocab_size| {
            let needs = GpuNeeds { vocab_size, ..GpuNeeds::default() };
            needs.check(DType::BFloat16, KvCacheDType::Auto)
        };
        assert_eq!(check(524_287), Ok(()));
        let text = check(524_288).unwrap_err();
        assert!(text.contains("524288 tokens, and the kernels sample from up to 524287"), "{text}");
    }

    /// As the only layers of their kind, behind others that every kernel takes.
    fn check_widths(
        (head_dim, latent_dim): (usize, Option<usize>),
        dtype: DType,
        cache: KvCacheDType,
        is_of_texts: bool,
    ) -> Result<(), String> {
        let usual = HeadWidths { head_dim: 64, has_biases: true, ..HeadWidths::default() };
        let heads = vec![usual, HeadWidths { head_dim, latent_dim, has_biases: false }];
        GpuNeeds { heads, is_of_texts, ..GpuNeeds::default() }.check(dtype, cache)
    }

    #[test]
    fn heads_that_no_kernel_takes_are_named() {
        let check = |head_dim, dtype, cache| check_widths((head_dim, None), dtype, cache, false);
        for head_dim in [16, 24, 48, 80, 96, 112, 120, 160, 192, 256, 264, 512, 576] {
            assert_eq!(check(head_dim, DType::BFloat16, KvCacheDType::Auto), Ok(()));
        }
        assert_eq!(check(12, DType::Float32, KvCacheDType::Auto), Ok(()));
        assert_eq!(check(112, DType::Float16, KvCacheDType::Fp8), Ok(()));
        let text = check(120, DType::Float16, KvCacheDType::Fp8).unwrap_err();
        assert!(text.contains("head_dim is 120"), "{text}");
        let most = "multiples of 16 up to 256 in float16 with an fp8 KV cache";
        assert!(text.contains(most), "{text}");
        assert!(check(512, DType::Float16, KvCacheDType::Fp8).unwrap_err().contains(most));
        let text = check(20, DType::BFloat16, KvCacheDType::Auto).unwrap_err();
        assert!(text.contains("multiples of 8 up to 576 in bfloat16"), "{text}");
        assert!(check(584, DType::BFloat16, KvCacheDType::Auto).is_err());
        assert!(check(10, DType::Float32, KvCacheDType::Auto).is_err());
        let of_texts = check_widths((264, None), DType::BFloat16, KvCacheDType::Auto, true);
        assert!(of_texts.unwrap_err().contains("multiples of 8 up to 256 in bfloat16"));
        let heads = vec![HeadWidths { head_dim: 512, latent_dim: None, has_biases: true }];
        let needs = GpuNeeds { heads, ..GpuNeeds::default() };
        let text = needs.check(DType::BFloat16, KvCacheDType::Auto).unwrap_err();
        assert!(text.contains("sinks in heads of 512") && text.contains("up to 256"), "{text}");
        assert_eq!(needs.check(DType::Float32, KvCacheDType::Auto), Ok(()));
    }

    #[test]
    fn latents_that_no_kernel_takes_are_named() {
        let check = |widths, cache| check_widths(widths, DType::BFloat16, cache, false);
        assert_eq!(check((576, Some(512)), KvCacheDType::Auto), Ok(()));
        let text = check((576, Some(508)), KvCacheDType::Auto).unwrap_err();
        assert!(
            text.contains("kv_lora_rank is 508, and the kernels take multiples of 8"),
            "{text}"
        );
    }
}
