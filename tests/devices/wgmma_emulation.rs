//! What the shim makes of `wgmma`: the product that its descriptors name, and an error for each
//! thing that a GPU would silently answer wrong.

use std::path::{Path, PathBuf};

use vllm_batch::engine::device::cuda::*;

/// Two products of warpgroups, with a mistake that MISTAKE names.
const SOURCE: &str = r#"
#include "wgmma.cuh"
enum Mistake {
  NONE, UNFENCED_COPY, UNFENCED_REGISTERS, TOUCHED_SUMS, TOUCHED_OPERAND, NO_WAIT, THREE_WARPS,
  NO_SWIZZLE, OFF_PATTERN, OTHER_SWIZZLE, OTHER_STRIDE, OTHER_MAJOR, PAST_END, READ_EARLY
};
__device__ float left(u32 row, u32 k) { return float((row * 5 + k * 3) % 7) - 3.0f; }

// out (64, 64) = left (64, 16) * rows 16 to 31 of b (64, 64), or columns of it transposed; twice.
KERNEL(128) product(const T* b, float* out) {
  DYN_SMEM(u8, smem);
  const SmemAddress first = smem_address(smem);
  const SmemAddress base = (first + WGMMA_ALIGNMENT - 1) / WGMMA_ALIGNMENT * WGMMA_ALIGNMENT;
  for (u32 i = threadIdx.x; i < 64 * 8; i += 128) {
    const u32 row = i / 8, chunk = MISTAKE == NO_SWIZZLE ? i % 8 : i % 8 ^ row % 8;
    copy_async_16(base + row * WGMMA_ROW_BYTES + chunk * 16, b + i * 8, true);
  }
  commit_async();
  wait_async<0>();
  if (MISTAKE != UNFENCED_COPY) fence_async_proxy();
  __syncthreads();
  const u32 lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16;
  u32 a[4];
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = first_row + lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
    a[i] = narrow_x2<T>(left(row, k), left(row, k + 1));
  }
  float d[8][4];
  u64 operand = describe_operand(base + (TRANSPOSED ? 16 * WGMMA_ROW_BYTES : 32));
  if (MISTAKE == OFF_PATTERN) operand = describe_operand(base + WGMMA_ROW_BYTES);
  if (MISTAKE == OTHER_SWIZZLE) operand ^= u64(3) << 62;
  if (MISTAKE == OTHER_STRIDE) operand ^= u64(WGMMA_ALIGNMENT >> 4) << 33;
  if (MISTAKE == PAST_END) operand = describe_operand(base + 64 * WGMMA_ROW_BYTES);
  if (MISTAKE != UNFENCED_REGISTERS) wgmma_fence();
  if (MISTAKE != THREE_WARPS || threadIdx.x < 96) {
    constexpr bool is_transposed = (TRANSPOSED != 0) != (MISTAKE == OTHER_MAJOR);
    wgmma<T, is_transposed, false>(d, a, operand);
    wgmma<T, is_transposed, true>(d, a, operand);
  }
  wgmma_commit();
  if (MISTAKE == TOUCHED_SUMS) d[1][2] = 0.0f;
  if (MISTAKE == TOUCHED_OPERAND && threadIdx.x == 5)
    store_shared_16(base + 17 * WGMMA_ROW_BYTES + 32, {});
  if (MISTAKE != NO_WAIT && MISTAKE != READ_EARLY) wgmma_wait<0>();
  for (u32 i = 0; i < 32; ++i) {
    const u32 row = first_row + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[row * 64 + column] = d[i / 4][i % 4];
  }
  if (MISTAKE == READ_EARLY) wgmma_wait<0>();
}
EXPORT(product)
"#;

/// The kernels' headers and the shim, with this source.
fn folder(name: &str) -> PathBuf {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wgmma").join(name);
    for from in [kernels.clone(), kernels.join("host")] {
        let to = folder.join(from.strip_prefix(&kernels).expect("inside"));
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(&from).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension != "cu") {
                std::fs::copy(&file, to.join(file.file_name().expect("a file"))).unwrap();
            }
        }
    }
    std::fs::write(folder.join("product.cu"), SOURCE).unwrap();
    folder
}

fn has_compiler() -> bool {
    std::process::Command::new("g++").arg("--version").output().is_ok()
}

/// b (64, 64): small integers.
fn operand(row: usize, column: usize) -> f32 {
    ((row * 11 + column * 7) % 13) as f32 - 6.0
}

fn expected(is_transposed: bool) -> Vec<f32> {
    let element = |row: usize, column: usize| -> f32 {
        let left = |k: usize| ((row * 5 + k * 3) % 7) as f32 - 3.0;
        let right = |k: usize| match is_transposed {
            true => operand(16 + k, column),
            false => operand(column, 16 + k),
        };
        (0..16).map(|k| 2.0 * left(k) * right(k)).sum()
    };
    (0..64 * 64).map(|index| element(index / 64, index % 64)).collect()
}

fn run(folder: &Path, dtype: &str, is_transposed: bool, mistake: &str) -> Result<Vec<f32>> {
    let modules = folder.join("modules");
    let gpu = Runtime::new(Driver::Host(HostDriver::new(folder, modules, 3)));
    let transposed = if is_transposed { "1" } else { "0" };
    let defines = [("DTYPE", dtype), ("TRANSPOSED", transposed), ("MISTAKE", mistake)];
    let product = gpu.function("product", &defines, "product")?;
    let bits = |value: f32| match dtype {
        "bf16" => half::bf16::from_f32(value).to_bits(),
        _ => half::f16::from_f32(value).to_bits(),
    };
    let b: Vec<u16> = (0..64 * 64).map(|index| bits(operand(index / 64, index % 64))).collect();
    let b = DeviceBuffer::from_slice(gpu.driver(), &b)?;
    let out = DeviceBuffer::from_slice(gpu.driver(), &[0.0f32; 64 * 64])?;
    gpu.launch(&product, [1, 1, 1], 128, 9 << 10, Args::new().ptr(b.ptr()).ptr(out.ptr()))?;
    gpu.synchronize()?;
    out.read(64 * 64)
}

#[test]
fn products_are_those_that_descriptors_name() {
    if !has_compiler() {
        return println!("SKIP: the CPU shim of the GPU's kernels is built with g++");
    }
    let folder = folder("right");
    for dtype in ["bf16", "f16"] {
        for is_transposed in [false, true] {
            let got = run(&folder, dtype, is_transposed, "NONE").unwrap();
            assert_eq!(got, expected(is_transposed), "{dtype}, transposed: {is_transposed}");
        }
    }
}

#[test]
fn operands_that_lie_otherwise_give_other_products() {
    if !has_compiler() {
        return println!("SKIP: the CPU shim of the GPU's kernels is built with g++");
    }
    let folder = folder("other");
    for mistake in ["NO_SWIZZLE", "OTHER_STRIDE", "OTHER_MAJOR", "READ_EARLY"] {
        for is_transposed in [false, true] {
            let got = run(&folder, "bf16", is_transposed, mistake);
            let is_right = got.is_ok_and(|got| got == expected(is_transposed));
            assert!(!is_right, "{mistake}, transposed: {is_transposed}");
        }
    }
}

#[test]
fn what_is_not_waited_for_or_fenced_is_an_error() {
    if !has_compiler() {
        return println!("SKIP: the CPU shim of the GPU's kernels is built with g++");
    }
    let folder = folder("wrong");
    for (mistake, expected) in [
        ("UNFENCED_COPY", "a copy that has not come, or was not fenced"),
        ("UNFENCED_REGISTERS", "wgmma without wgmma.fence before it"),
        ("TOUCHED_SUMS", "accumulators were written while a product was under way"),
        ("TOUCHED_OPERAND", "shared memory was written while a product was reading it"),
        ("NO_WAIT", "a product was not waited for"),
        ("THREE_WARPS", "the warps of a group have started different products"),
        ("OFF_PATTERN", "a pattern of 8 rows begins off its place"),
        ("OTHER_SWIZZLE", "the 128-byte swizzle alone"),
        ("PAST_END", "past the block's shared memory"),
    ] {
        let error = run(&folder, "bf16", true, mistake).unwrap_err().to_string();
        assert!(error.contains(expected), "{mistake}: {error}");
    }
}
