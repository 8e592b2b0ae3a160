//! What a checkpoint's weights are on a device: how much memory they take, and what is otherwise
//! than its config says.

use std::collections::{HashMap, HashSet};

use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, LoadFormat};
use vllm_batch_base::matrix::SourceMatrix;
use vllm_batch_checkpoint::quantization::QuantizationConfig;
use vllm_batch_checkpoint::spec::{ExpertSpec, ExpertsSpec, LinearSpec, NamedShape};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, memory};
use vllm_batch_ops::linear;

/// What weights are on a device.
pub(crate) struct HeldWeights {
    bytes: u64,
    /// Of tensors that stay codes, by name.
    code_bytes: HashMap<String, u64>,
    /// Quantized matrices, and those of them that the device widens.
    num_quantized: usize,
    num_widened: usize,
}

/// The matrices that kernels of the device read as values, whatever they are stored as: of a GPU
/// `tables`, and the experts whose codes its kernels do not take.
pub(crate) fn read_as_values<'a>(
    device: &Device,
    checkpoint: &Checkpoint,
    dtype: DType,
    tables: impl Iterator<Item = &'a LinearSpec>,
    experts: impl Iterator<Item = &'a ExpertsSpec>,
) -> Vec<NamedShape> {
    let Device::Cuda(gpu) = device else { return Vec::new() };
    let keeps_codes = |layer: &LinearSpec, num_experts: usize| {
        let mut names = HashSet::new();
        let tensors = layer.weights().filter(|(name, _)| names.insert(name.clone()));
        let matrices: Option<Vec<_>> =
            tensors.map(|tensor| checkpoint.stored_matrix(&tensor)).collect();
        matrices.is_some_and(|matrices| {
            linear::keeps_codes_of_experts(gpu, dtype, &matrices.into(), num_experts)
        })
    };
    let mut values: Vec<_> = tables.flat_map(LinearSpec::weights).collect();
    for experts in experts {
        let (num_experts, ExpertSpec { up, down }) = (experts.experts.len(), experts.stacked());
        let wide = [up, down].into_iter().filter(|layer| !keeps_codes(layer, num_experts));
        values.extend(wide.flat_map(|layer| layer.weights().collect::<Vec<_>>()));
    }
    values
}

impl HeldWeights {
    /// Of a checkpoint's tensors, among them `tables`, which hold values on the device.
    pub(crate) fn of(
        device: &Device,
        checkpoint: &Checkpoint,
        (tensors, tables): (&[NamedShape], &[NamedShape]),
        dtype: DType,
    ) -> Self {
        let tables: HashSet<_> = tables.iter().map(|(name, _)| name).collect();
        let mut held =
            Self { bytes: 0, code_bytes: HashMap::new(), num_quantized: 0, num_widened: 0 };
        for tensor in tensors {
            let matrix = checkpoint.stored_matrix(tensor);
            let is_quantized = matrix.as_ref().is_some_and(SourceMatrix::is_quantized);
            let code_bytes = matrix
                .filter(|_| !tables.contains(&tensor.0))
                .and_then(|matrix| linear::code_bytes(device, dtype, matrix));
            held.num_quantized += usize::from(is_quantized);
            held.num_widened += usize::from(is_quantized && code_bytes.is_none());
            let elements = tensor.1.iter().product::<usize>() as u64;
            let wide = elements.saturating_mul(dtype.size_bytes() as u64);
            let bytes = code_bytes.map_or(wide, |bytes| bytes as u64);
            if code_bytes.is_some() {
                held.code_bytes.insert(tensor.0.clone(), bytes);
            }
            held.bytes = held.bytes.saturating_add(bytes);
        }
        held
    }

    /// The same with tensors of f32 that are read from other files.
    pub(crate) fn and_floats(mut self, tensors: impl Iterator<Item = NamedShape>) -> Self {
        for (_, shape) in tensors {
            let bytes = shape.iter().fold(4u64, |bytes, size| bytes.saturating_mul(*size as u64));
            self.bytes = self.bytes.saturating_add(bytes);
        }
        self
    }

    /// How much memory they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of it tensors take that stay codes, by name.
    pub(crate) fn take_code_bytes(&mut self) -> HashMap<String, u64> {
        std::mem::take(&mut self.code_bytes)
    }

    /// For people: what a quantized checkpoint gains nothing by.
    pub(crate) fn note(&self, dtype: DType) -> Option<String> {
        let Self { num_quantized, num_widened, .. } = *self;
        let dtype = dtype.name();
        (num_widened > 0).then(|| {
            format!("{num_widened} of {num_quantized} quantized matrices are widened to {dtype}")
        })
    }

    /// Refuses weights that the machine's memory cannot hold: without it the process would be ended
    /// by the system. A GPU says itself what it cannot hold.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn refuse_without_memory(&self, device: &Device) -> Result<(), EngineError> {
        let (Device::Cpu(_), Some(total)) = (device, memory::total_bytes()) else { return Ok(()) };
        if self.bytes <= total {
            return Ok(());
        }
        Err(EngineError::Config(format!(
            "the weights take {} MiB of memory, there are {}; give a smaller model or `settings.dtype` \
             bfloat16",
            self.bytes >> 20,
            total >> 20
        )))
    }

    /// What is otherwise than a quantized checkpoint's config says.
    ///
    /// `of_cache`: how many scales of keys and values the files have.
    pub(crate) fn quantization_notes(
        &self,
        quantization: &QuantizationConfig,
        load_format: LoadFormat,
        (dtype, of_cache): (DType, usize),
    ) -> Vec<String> {
        if load_format == LoadFormat::Dummy {
            let format = quantization.description();
            return vec![match self.num_quantized {
                0 => format!("dummy weights are not quantized: config.json says {format}"),
                _ => format!("dummy weights are random codes of config.json's format: {format}"),
            }];
        }
        let activations = quantization.activations().map(|asked| {
            format!(
                "inputs of linear layers are computed in {}; the checkpoint's config asks for {asked}",
                dtype.name()
            )
        });
        let of_cache = (of_cache > 0).then(|| {
            format!("{of_cache} scales of keys and values are left unused: the KV cache has none")
        });
        activations.into_iter().chain(of_cache).collect()
    }
}
