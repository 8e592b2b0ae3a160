//! Instruction sets: which ones this machine has, what they are called, what they multiply by.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

use super::tiles::{TileUnit, tile_stride};
use vllm_batch_base::config::DType;
use vllm_batch_base::isa::Isa;

/// What a set is to kernels: whether this machine has it, and what it multiplies by.
pub trait InstructionSet: Copy {
    /// The fastest that this machine has. `vdpbf16ps` runs at twice the rate of multiply-adds on
    /// AMD's cores, and at half of it on Intel's (measured: docs/PERFORMANCE.md). The bf16 of
    /// aarch64 is taken where it is asked for, until a machine that has it has shown what it gains.
    fn detect() -> Self;

    /// Every set that this machine has, the widest first.
    fn all_available() -> Vec<Self>;

    /// Whether this machine has it.
    fn is_available(self) -> bool;

    /// The set that stands for it on this machine: the twin of AMX needs no more than AVX2.
    #[must_use]
    fn or_its_equal(self) -> Self;

    /// What products of bf16 weights run by with this set.
    fn bf16_products(self) -> Bf16Products;

    /// What int8 products run by on this machine with this set.
    fn int8_dots(self) -> Int8Dots;

    /// f32 lanes of a vector.
    fn num_lanes(self) -> usize;

    /// [`Vector::NUM_REGISTERS`] of its vectors.
    fn num_registers(self) -> usize;
}

impl InstructionSet for Isa {
    fn detect() -> Self {
        let mut fastest = Self::all_available();
        fastest.retain(|&isa| match isa {
            Isa::Avx512Bf16 => has_fast_bf16(),
            Isa::AmxTwin | Isa::AmxTwinAvx2 | Isa::NeonBf16 => false,
            Isa::Amx | Isa::Avx512 | Isa::Avx2 | Isa::Neon | Isa::Portable => true,
        });
        fastest[0]
    }

    fn all_available() -> Vec<Self> {
        let all = [
            Isa::Amx,
            Isa::AmxTwin,
            Isa::AmxTwinAvx2,
            Isa::Avx512Bf16,
            Isa::Avx512,
            Isa::Avx2,
            Isa::NeonBf16,
            Isa::Neon,
            Isa::Portable,
        ];
        all.into_iter().filter(|isa| isa.is_available()).collect()
    }

    fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            // Every CPU of aarch64 has it.
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 => is_aarch64_feature_detected!("bf16"),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::NeonBf16 => false,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Isa::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && Isa::Avx512.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => TileUnit::Amx.is_available() && Isa::Avx512Bf16.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::AmxTwin => Isa::Avx512.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AmxTwinAvx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    fn or_its_equal(self) -> Self {
        match self {
            Isa::AmxTwin if !self.is_available() => Isa::AmxTwinAvx2,
            isa => isa,
        }
    }

    fn bf16_products(self) -> Bf16Products {
        match self {
            Isa::Avx512Bf16 | Isa::NeonBf16 => Bf16Products::Dots,
            Isa::Amx => Bf16Products::Tiles(TileUnit::Amx),
            Isa::AmxTwin => Bf16Products::Tiles(TileUnit::Twin),
            Isa::AmxTwinAvx2 => Bf16Products::Tiles(TileUnit::TwinAvx2),
            Isa::Avx512 | Isa::Avx2 | Isa::Neon | Isa::Portable => Bf16Products::Widened,
        }
    }

    fn int8_dots(self) -> Int8Dots {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Int8Dots::Amx,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxTwin
                if is_x86_feature_detected!("avx512vnni") =>
            {
                Int8Dots::Vnni
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AmxTwinAvx2 if is_x86_feature_detected!("avxvnni") => {
                Int8Dots::AvxVnni
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonBf16 if is_aarch64_feature_detected!("i8mm") => Int8Dots::Smmla,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonBf16 if is_aarch64_feature_detected!("dotprod") => Int8Dots::Sdot,
            Isa::Neon | Isa::NeonBf16 | Isa::Portable => Int8Dots::Portable,
            _ => Int8Dots::Avx2,
        }
    }

    fn num_lanes(self) -> usize {
        match self {
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxTwin | Isa::AmxTwinAvx2 => 16,
            Isa::Avx2 | Isa::Neon | Isa::NeonBf16 | Isa::Portable => 8,
        }
    }

    fn num_registers(self) -> usize {
        match self {
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxTwin => 32,
            Isa::Avx2 | Isa::Neon | Isa::NeonBf16 => 16,
            Isa::AmxTwinAvx2 | Isa::Portable => 8,
        }
    }
}

/// Instructions for products of bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Products {
    /// Multiply-adds of f32, which weights are widened for.
    Widened,
    /// `vdpbf16ps`, or `bfmmla` and `bfdot`.
    Dots,
    /// Tiles.
    Tiles(TileUnit),
}

impl Bf16Products {
    /// Whether inputs are words of two bf16, which they are rounded to.
    pub fn take_pairs(self) -> bool {
        self != Bf16Products::Widened
    }

    /// The tiles that multiply values of this type; None: it has none.
    pub fn tiles_of(self, dtype: DType) -> Option<TileUnit> {
        match (self, dtype) {
            (Bf16Products::Tiles(unit), DType::BFloat16) => Some(unit),
            _ => None,
        }
    }

    /// Words from a row of so many inputs to the next one, where they take pairs.
    pub fn row_stride(self, num_inputs: usize) -> usize {
        let num_words = num_inputs.div_ceil(2);
        match self {
            Bf16Products::Tiles(_) => tile_stride(num_words),
            Bf16Products::Dots | Bf16Products::Widened => num_words,
        }
    }
}

/// Instructions for dot products of int8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8Dots {
    /// `tdpbssd`, tiles of 16 rows by 16 columns.
    Amx,
    /// `vpdpbusd`, 16 lanes: weights are offset by 128, which the initial sums take off.
    Vnni,
    /// The same, 8 lanes: AVX-VNNI, without AVX-512.
    AvxVnni,
    /// `vpsignb`, `vpmaddubsw` and `vpmaddwd`, 8 lanes: no pair of products of 7 bits and a sign
    /// overflows.
    Avx2,
    /// `smmla`, two rows by two outputs: words of two lanes lie by pairs, so that a register is two
    /// outputs of eight inputs.
    Smmla,
    /// `sdot`, 4 lanes.
    Sdot,
    /// Plain loops.
    Portable,
}

/// Whether the vendor is AMD.
fn has_fast_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        (vendor.ebx, vendor.edx, vendor.ecx)
            == (
                u32::from_le_bytes(*b"Auth"),
                u32::from_le_bytes(*b"enti"),
                u32::from_le_bytes(*b"cAMD"),
            )
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}
