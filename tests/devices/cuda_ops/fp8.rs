//! Ops that write E4M3 rows themselves: the same bits as the op and `quantize_rows` after it, seen
//! through a linear layer, which takes both.

use vllm_batch::engine::base::config::{DType, DeviceConfig, EngineConfig, Quantization, ShimGpu};
use vllm_batch::engine::base::layers::NormKind;
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::device::{Device, Precision, Tensor, open};
use vllm_batch::engine::ops::{LinearWeight, NormWeight, activate_and_mul, add_norm, linear};

use crate::cuda_ops::activation::kinds;
use crate::cuda_ops::pair::{Pair, output, to_bits};
use crate::gpu;

const NUM_OUTPUTS: usize = 48;

#[test]
fn fp8_is_refused_by_a_gpu_without_its_instructions() {
    let ampere = ShimGpu { compute_capability: (8, 6), max_smem_kb: 99, ..ShimGpu::default() };
    let Some(device) = gpu::device_as(0, ampere) else { return };
    let device = DeviceConfig { quantization: Some(Quantization::Fp8), ..device };
    let config = EngineConfig { device, ..EngineConfig::default() };
    let text = open(&config, DType::BFloat16, None).map(drop).unwrap_err().to_string();
    assert!(text.contains("fp8 needs compute capability 8.9"), "{text}");
    assert!(text.contains("host shim has 8.6"), "{text}");
}

/// A quantized layer of `width` inputs.
fn layer(device: &Device, dtype: DType, width: usize, num_rows: usize) -> LinearWeight {
    let source = [SourceMatrix::random(NUM_OUTPUTS, width, 7, 0.3)].into();
    let weight = LinearWeight::load(device, dtype, &source, None);
    let weight = weight.and_then(|weight| weight.quantize(device)).expect("memory");
    weight.prepare(device, device.activation_dtype(), num_rows).expect("algorithms");
    weight
}

/// Outputs of the layer over what `op` writes, into rows of E4M3 and into rows of the model's type.
fn check(
    pair: &Pair,
    (num_rows, width): (usize, usize),
    what: &str,
    op: &dyn Fn(&Device, &mut Tensor),
) {
    let weight = layer(&pair.gpu, pair.dtype, width, num_rows);
    let input = Precision::LinearInput(pair.dtype);
    let [direct, apart] = [input, Precision::Activation].map(|precision| {
        let mut rows = output(&pair.gpu, num_rows, width, precision);
        op(&pair.gpu, &mut rows);
        let mut out = output(&pair.gpu, num_rows, NUM_OUTPUTS, Precision::Activation);
        linear(&pair.gpu, &rows, &weight, &mut out);
        to_bits(&pair.gpu.read(&out).expect("the device works"))
    });
    assert_eq!(direct, apart, "{what}, {:?}, {num_rows} x {width}", pair.dtype);
}

fn in_narrow_dtypes(seed: u64, test: impl Fn(&Pair)) {
    for dtype in [DType::BFloat16, DType::Float16] {
        let Some(pair) = Pair::open(dtype, seed, Some(Quantization::Fp8)) else { return };
        test(&pair);
    }
}

#[test]
fn add_norm_fp8_is_add_norm_and_quantize_rows() {
    in_narrow_dtypes(700, |pair| {
        for (num_rows, width) in [(1, 4096), (3, 9008), (17, 96), (5, 16)] {
            for kind in [NormKind::Rms, NormKind::Layer] {
                let residual = pair.values(num_rows, width, 71, 2.0);
                let delta = pair.values(num_rows, width, 72, 1.0);
                let all: Vec<usize> = (0..num_rows).collect();
                check(pair, (num_rows, width), &format!("{kind:?}"), &|device, out| {
                    let vector = |seed| {
                        let values = pair.values(1, width, seed, 1.5).values;
                        device.upload(values, width).expect("memory")
                    };
                    let bias = (kind == NormKind::Layer).then(|| vector(74));
                    let norm = NormWeight { kind, eps: 1e-5, weight: vector(73), bias };
                    device.finish_loading().expect("the device works");
                    let mut residual = residual.on(device, &all, Precision::Full);
                    let delta = delta.activations(device, &all);
                    add_norm(device, &mut residual, Some(&delta), &norm, out);
                });
            }
        }
    });
}

#[test]
fn activate_and_mul_fp8_is_activate_and_mul_and_quantize_rows() {
    in_narrow_dtypes(710, |pair| {
        for (num_rows, width) in [(1, 14336), (4, 1040), (17, 96), (5, 16)] {
            for activation in kinds() {
                let gate_up = pair.values(num_rows, 2 * width, 75, 2.0);
                let rows: Vec<usize> = (0..num_rows).collect();
                check(pair, (num_rows, width), &format!("{activation:?}"), &|device, out| {
                    activate_and_mul(device, activation, &gate_up.activations(device, &rows), out);
                });
            }
        }
    });
}
